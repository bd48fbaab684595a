//! The door with options, as the model knows it: what becomes of a submit, and what is known of a job by its id.

use std::collections::BTreeMap;

use super::jobs::{Job, Line, Options};
use super::policy::Policy;
use super::reference::{Model, State, honest, retry_ms};
use crate::rig::MS;

/// What a submit asks for.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) id: Option<String>,
    /// When it may leave, in microseconds since the epoch.
    pub(super) at: Option<u64>,
    pub(super) ttl: Option<u64>,
    pub(super) cost: u64,
    pub(super) headers: Vec<(String, String)>,
}

/// What it is answered.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    pub(super) five: [i64; 5],
    pub(super) verdict: &'static str,
    pub(super) id: String,
    pub(super) by: String,
}

impl Model {
    /// "Verdicts are decided in this order: duplicate, full, late, gated, else delayed or queued." `made` is the id of a job that came
    /// without one. `None`: it is too large.
    pub(super) fn submit(&mut self, now: u64, bucket: &str, body: &str, asked: &Asked, made: &str) -> Option<Told> {
        let state = self.look(now, bucket);
        if body.len() > self.record.limit("max_job_bytes") {
            return None;
        }
        let p = state.policy.clone();
        let at = asked.at.filter(|at| *at > now); // "the past is now"
        let known = asked.id.as_ref().filter(|id| self.is_remembered(now, bucket, &p, id));
        if let Some(id) = known {
            // "The first one's eta or -1: nothing was changed or charged."
            let line = self.lines.get(bucket).and_then(|lines| lines.get(id)).filter(|line| !line.is_cancelled());
            let eta = line.map_or(-1, |line| ms_until(now, line.eta));
            let five = [1, state.keeps as i64, p.capacity as i64, -1, eta];
            return Some(Told { five, verdict: "duplicate", id: id.clone(), by: bucket.into() });
        }
        let due = self.begun(now, bucket, &state);
        let depth = at.map_or(state.keeps, |_| self.delayed.get(bucket).map_or(0, BTreeMap::len));
        let refusal = self.refusal(now, bucket, &state, asked.ttl.or(p.ttl.map(|us| us / MS)), at, depth);
        self.settle(bucket, &state);
        if let Some((verdict, retry, by)) = refusal {
            self.stand(now, bucket, state.due);
            let five = [0, depth as i64, p.capacity as i64, retry, -1];
            return Some(Told { five, verdict, id: String::new(), by });
        }
        let id = asked.id.clone().unwrap_or_else(|| made.to_owned());
        // "deadline = accept + ttl (with DELAY: from its time on)"
        let deadline = asked.ttl.map(|ms| ms * MS).or(p.ttl).map(|us| at.unwrap_or(now) + us);
        let options =
            Options { id: id.clone(), cost: asked.cost, deadline, accepted: now, headers: asked.headers.clone() };
        let job = Job { body: body.into(), options: Some(options) };
        let (verdict, depth, eta) = if let Some(at) = at {
            self.pass_gate(now, bucket, &p, 1);
            let member = format!("{now:016}{}", job.stored());
            self.delayed.entry(bucket.into()).or_default().insert((at, member), job);
            self.expect(now, bucket, at);
            self.stand(now, bucket, state.due);
            ("delayed", depth + 1, p.pace().eta_ms(at.max(due), now, 1))
        } else {
            let due = self.queue_up(now, bucket, &state, vec![job]);
            ("queued", self.len(bucket), p.pace().eta_ms(due, now, self.len(bucket)))
        };
        let state = if at.is_some() { 'd' } else { 'q' };
        let line = Line { state, accepted: now, eta: now + eta as u64 * MS, attempt: 1 };
        self.lines.entry(bucket.into()).or_default().insert(id.clone(), line);
        if asked.id.is_some() {
            self.remember(now, bucket, &p, &id);
        }
        let five = [1, depth as i64, p.capacity as i64, -1, eta];
        Some(Told { five, verdict, id, by: bucket.into() })
    }

    /// Why a job is not accepted: the verdict, after how long to try again, and who decides that. `at` is the time of a delayed one, and
    /// `depth` how many wait where it would.
    fn refusal(
        &self,
        now: u64,
        bucket: &str,
        state: &State,
        ttl: Option<u64>,
        at: Option<u64>,
        depth: usize,
    ) -> Option<(&'static str, i64, String)> {
        let (p, gate_wait) = (&state.policy, self.gate_wait(now, bucket, &state.policy));
        let due = self.begun(now, bucket, state);
        // "Delayed jobs have a bound of their own, as large as the capacity." A list with drop-oldest is never full.
        if depth >= p.capacity && (at.is_some() || !p.drop_oldest) {
            let first = self.delayed.get(bucket).and_then(|jobs| jobs.first_key_value()).map_or(0, |(at, _)| at.0);
            let until = if at.is_some() { first.max(due) } else { due };
            let is_stuck = self.waits_for_somebody(now, bucket, state, until);
            return Some(("full", honest(retry_ms(now, until), is_stuck).max(gate_wait), bucket.into()));
        }
        // "As things stand it could not leave before its deadline; before that long the same submit is late again."
        let eta = at.map_or_else(
            || p.pace().eta_ms(self.reckoned(now, bucket, Some(due)), now, (state.keeps + 1).min(p.capacity)),
            |at| p.pace().eta_ms(at.max(due), now, 1) - ms_until(now, at),
        );
        let late = ttl.map_or(0, |ttl| eta - ttl as i64);
        if late > 0 {
            let is_stuck = self.waits_for_somebody(now, bucket, state, self.reckoned(now, bucket, Some(due)));
            return Some(("late", honest(late, is_stuck), bucket.into()));
        }
        (gate_wait > 0).then(|| ("gated", gate_wait, "fixed-window".into()))
    }

    /// Whether a job with this id was accepted so lately that another one is a duplicate: "from the accept, never extended".
    fn is_remembered(&self, now: u64, bucket: &str, p: &Policy, id: &str) -> bool {
        self.ids.get(bucket).and_then(|ids| ids.get(id)).is_some_and(|accepted| accepted + p.dedup > now)
    }

    /// "At most capacity + dedup / interval of one bucket, the oldest forgotten first."
    fn remember(&mut self, now: u64, bucket: &str, p: &Policy, id: &str) {
        self.dropped.remove(&(bucket.to_owned(), id.to_owned()));
        let ids = self.ids.entry(bucket.into()).or_default();
        ids.insert(id.into(), now);
        let most = p.capacity + (p.dedup / p.rate.step().max(1)) as usize;
        let old = ids.values().filter(|accepted| **accepted + p.dedup <= now).count();
        let is_dropped = |id: &str| self.dropped.contains(&(bucket.to_owned(), id.to_owned()));
        let mut by_age: Vec<_> = ids.iter().map(|(id, accepted)| (*accepted, is_dropped(id), id.clone())).collect();
        by_age.sort();
        for (_, _, id) in by_age.iter().take(old.max(ids.len().saturating_sub(most))) {
            ids.remove(id);
        }
    }

    /// What is known of a job that has not left yet; nothing where a second one with its id was accepted since.
    pub(super) fn line_of(&self, bucket: &str, job: &Job) -> Option<&Line> {
        let options = job.options.as_ref()?;
        let line = self.lines.get(bucket)?.get(&options.id)?;
        (!"rR".contains(line.state) && line.accepted == options.accepted).then_some(line)
    }

    /// It is gone from where it waited. Its id stays remembered.
    pub(super) fn left_line(&mut self, bucket: &str, job: &Job) {
        if self.line_of(bucket, job).is_some() {
            let id = &job.options.as_ref().expect("it has a line").id;
            self.lines.get_mut(bucket).expect("some").remove(id);
        }
    }

    /// A job is gone and will not leave any more: as long as its id is remembered, that is known too.
    pub(super) fn drops(&mut self, bucket: &str, id: &str) {
        if self.ids.get(bucket).is_some_and(|ids| ids.contains_key(id)) {
            self.dropped.insert((bucket.to_owned(), id.to_owned()));
        }
    }

    /// "1 cancelled (its place frees at its turn), 2 dispatched already, 0 not known." 1 also where it was dropped before.
    pub(super) fn cancel(&mut self, now: u64, bucket: &str, id: &str) -> i64 {
        let p = self.policy(now, bucket);
        if let Some(line) = self.lines.get_mut(bucket).and_then(|lines| lines.get_mut(id)) {
            line.state = line.state.to_ascii_uppercase();
            return 1;
        }
        let was_dropped = self.dropped.contains(&(bucket.to_owned(), id.to_owned()));
        match self.is_remembered(now, bucket, &p, id) {
            true if was_dropped => 1,
            true => 2,
            false => 0,
        }
    }

    /// "`left` = dispatched or gone, while the id is remembered"; "what was answered at the accept, less the time since".
    pub(super) fn find(&self, now: u64, bucket: &str, id: &str) -> (String, i64, i64) {
        let line = self.lines.get(bucket).and_then(|lines| lines.get(id));
        if let Some(line) = line.filter(|line| !line.is_cancelled()) {
            let state = match line.state {
                'q' => "queued",
                'd' => "delayed",
                _ => "retrying",
            };
            return (state.into(), ms_until(now, line.eta), line.attempt as i64);
        }
        let is_known = line.is_some() || self.is_remembered(now, bucket, &self.policy(now, bucket), id);
        (if is_known { "left" } else { "unknown" }.into(), -1, 0)
    }

    /// How many more the gate of a bucket lets in, and when its window began.
    pub(super) fn gate(&self, now: u64, bucket: &str, p: &Policy) -> (usize, u64) {
        let Some(gate) = p.gate else { return (usize::MAX, now) };
        let known =
            self.gates.get(bucket).filter(|(begin, _)| now < begin + gate.period && *begin <= now + gate.period);
        let (begin, count) = known.copied().unwrap_or((now, 0));
        (gate.limit.saturating_sub(count), begin)
    }

    pub(super) fn pass_gate(&mut self, now: u64, bucket: &str, p: &Policy, n: usize) {
        let Some(gate) = p.gate else { return };
        let (free, begin) = self.gate(now, bucket, p);
        self.gates.insert(bucket.into(), (begin, gate.limit - free + n));
    }

    /// Until the gate lets one more in; 0: it does now.
    pub(super) fn gate_wait(&self, now: u64, bucket: &str, p: &Policy) -> i64 {
        let (free, begin) = self.gate(now, bucket, p);
        if free > 0 { 0 } else { p.gate.map_or(0, |gate| ms_until(now, begin + gate.period)) }
    }
}

fn ms_until(now: u64, at: u64) -> i64 {
    at.saturating_sub(now).div_ceil(MS) as i64
}
