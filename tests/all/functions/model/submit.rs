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
    /// It takes the place of a job with this id that waits.
    pub(super) replaces: bool,
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

/// What has changed of a job since it was stored.
pub(super) enum Changed {
    Nothing,
    Cancelled,
    Replaced(Job),
}

impl Model {
    /// "Verdicts are decided in this order: replaced, duplicate, full, late, gated, else delayed or queued." `made` is the id of a job that
    /// came without one. `None`: it is too large.
    pub(super) fn submit(&mut self, now: u64, bucket: &str, body: &str, asked: &Asked, made: &str) -> Option<Told> {
        let state = self.look(now, bucket);
        if body.len() > self.record.limit("max_job_bytes") {
            return None;
        }
        let p = state.policy.clone();
        let at = asked.at.filter(|at| *at > now); // "the past is now"
        let due = self.begun(now, bucket, &state);
        // "deadline = accept + ttl (with DELAY: from its time on)"
        let deadline = asked.ttl.map(|ms| ms * MS).or(p.ttl).map(|us| at.unwrap_or(now) + us);
        let since = self.next_since(now, bucket, asked.id.as_deref());
        let options = |id: &str| Options {
            id: id.into(),
            cost: asked.cost,
            deadline,
            accepted: since,
            headers: asked.headers.clone(),
        };
        if let Some(id) = &asked.id {
            let line = self.line(bucket, id).filter(|line| !line.is_cancelled() && !line.is_late(now)).cloned();
            if let Some(line) = line.clone().filter(|_| asked.replaces) {
                let job = Job { body: body.into(), options: Some(options(id)) };
                let eta = self.replace(now, bucket, line, job, at, due);
                self.settle(bucket, &state);
                self.stand(now, bucket, state.due);
                let five = [1, state.keeps as i64, p.capacity as i64, -1, eta];
                return Some(Told { five, verdict: "replaced", id: id.clone(), by: bucket.into() });
            }
            if line.is_some() || self.is_remembered(now, bucket, &p, id) {
                // "The first one's eta or -1: nothing was changed or charged."
                let eta = line.map_or(-1, |line| ms_until(now, line.eta));
                let five = [1, state.keeps as i64, p.capacity as i64, -1, eta];
                return Some(Told { five, verdict: "duplicate", id: id.clone(), by: bucket.into() });
            }
        }
        let depth = at.map_or(state.keeps, |_| self.delayed.get(bucket).map_or(0, BTreeMap::len));
        let refusal = self.refusal(now, bucket, &state, asked.ttl.or(p.ttl.map(|us| us / MS)), at, depth);
        self.settle(bucket, &state);
        if let Some((verdict, retry, by)) = refusal {
            self.stand(now, bucket, state.due);
            let five = [0, depth as i64, p.capacity as i64, retry, -1];
            return Some(Told { five, verdict, id: String::new(), by });
        }
        let id = asked.id.clone().unwrap_or_else(|| made.to_owned());
        let job = Job { body: body.into(), options: Some(options(&id)) };
        let (verdict, depth, eta) = if let Some(at) = at {
            self.pass_gate(now, bucket, &p, 1);
            let member = format!("{since:016}{}", job.stored());
            self.delayed.entry(bucket.into()).or_default().insert((at, member), job);
            self.expect(now, bucket, at);
            self.stand(now, bucket, state.due);
            ("delayed", depth + 1, p.pace().eta_ms(at.max(due), now, 1))
        } else {
            let due = self.queue_up(now, bucket, &state, vec![job]);
            ("queued", self.len(bucket), p.pace().eta_ms(due, now, self.len(bucket)))
        };
        let (state, place) = at.map_or(('q', "-".into()), |at| ('d', at.to_string()));
        let accepted = if asked.id.is_some() { since } else { 0 };
        let line = Line {
            state,
            since,
            eta: now + eta as u64 * MS,
            attempt: 1,
            accepted,
            deadline: deadline.unwrap_or(0),
            place,
        };
        self.lines.entry(bucket.into()).or_default().insert(id.clone(), line);
        self.has_mark = true;
        let five = [1, depth as i64, p.capacity as i64, -1, eta];
        Some(Told { five, verdict, id, by: bucket.into() })
    }

    /// Another job takes the place of one that waits: "its body, cost, headers and deadline are replaced, of a delayed one its time". Replies
    /// when it can leave.
    fn replace(&mut self, now: u64, bucket: &str, mut line: Line, mut job: Job, at: Option<u64>, due: u64) -> i64 {
        let id = job.options.as_ref().expect("it has an id").id.clone();
        let options = job.options.as_mut().expect("it has an id");
        if line.state != 'd' {
            // It keeps its place, so a delay means nothing, and the deadline counts from now.
            options.deadline = options.deadline.map(|deadline| deadline - at.map_or(0, |at| at - now));
        }
        let deadline = options.deadline.unwrap_or(0);
        line.deadline = if line.state == 'r' { 0 } else { deadline };
        if line.state != 'd' {
            self.lines.get_mut(bucket).expect("some").insert(id.clone(), line.clone());
            self.changed.insert((bucket.into(), id, line.key()), Some(job));
            return ms_until(now, line.eta);
        }
        let (new_at, old_at) = (at.unwrap_or(now), line.place.parse::<u64>().expect("a time"));
        job.options.as_mut().expect("it has an id").accepted = line.since;
        let stamp = format!("{:016}", line.since);
        let jobs = self.delayed.get_mut(bucket).expect("it waits there");
        let key = jobs.keys().find(|(time, member)| *time == old_at && member.starts_with(&stamp)).cloned();
        jobs.remove(&key.expect("it waits there"));
        jobs.insert((new_at, stamp + &job.stored()), job);
        self.announce(now, bucket, true);
        let eta = self.policy(now, bucket).pace().eta_ms(new_at.max(due), now, 1);
        (line.eta, line.place) = (now + eta as u64 * MS, new_at.to_string());
        self.lines.get_mut(bucket).expect("some").insert(id, line);
        eta
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

    /// What tells a job from others that had its id: the time of its accept, which is later than theirs.
    pub(super) fn next_since(&self, now: u64, bucket: &str, id: Option<&str>) -> u64 {
        let Some(id) = id else { return now };
        let line = self.line(bucket, id).map_or(0, |line| line.since + 1);
        now.max(line)
    }

    pub(super) fn line(&self, bucket: &str, id: &str) -> Option<&Line> {
        self.lines.get(bucket).and_then(|lines| lines.get(id))
    }

    /// Whether a job with this id that has left was accepted so lately that another one is a duplicate: "from the accept, never extended".
    fn is_remembered(&self, now: u64, bucket: &str, p: &Policy, id: &str) -> bool {
        self.ids.get(bucket).and_then(|ids| ids.get(id)).is_some_and(|accepted| accepted + p.dedup > now)
    }

    /// "At most capacity + dedup / interval of one bucket, the oldest forgotten first."
    pub(super) fn remember(&mut self, now: u64, bucket: &str, p: &Policy, id: &str, accepted: u64) {
        if accepted + p.dedup <= now {
            return;
        }
        let ids = self.ids.entry(bucket.into()).or_default();
        ids.insert(id.into(), accepted);
        let most = p.capacity + (p.dedup / p.rate.step().max(1)) as usize;
        let old = ids.values().filter(|accepted| **accepted + p.dedup <= now).count();
        let mut by_age: Vec<_> = ids.iter().map(|(id, accepted)| (*accepted, id.clone())).collect();
        by_age.sort();
        for (_, id) in by_age.iter().take(old.max(ids.len().saturating_sub(most))) {
            ids.remove(id);
        }
    }

    /// A job is gone from where it waited. Replies what has changed of it since it was stored, and the time by which its id is remembered if it
    /// leaves; 0: it is not. Where it is dropped its id is free.
    pub(super) fn taken(&mut self, bucket: &str, id: &str, key: &str, accepted: u64) -> (Changed, u64) {
        let changed = match self.changed.remove(&(bucket.into(), id.into(), key.into())) {
            None => Changed::Nothing,
            Some(None) => Changed::Cancelled,
            Some(Some(job)) => Changed::Replaced(job),
        };
        let Some(line) = self.line(bucket, id).cloned() else { return (changed, accepted) };
        if line.key() != key {
            return (changed, 0); // it is about another job
        }
        self.lines.get_mut(bucket).expect("some").remove(id);
        (changed, line.accepted)
    }

    /// A job has left.
    pub(super) fn left(&mut self, now: u64, bucket: &str, id: &str, accepted: u64) {
        let p = self.policy(now, bucket);
        self.remember(now, bucket, &p, id, accepted);
    }

    /// "1 cancelled (its place frees at its turn), 2 dispatched already, 0 not known."
    pub(super) fn cancel(&mut self, now: u64, bucket: &str, id: &str) -> i64 {
        let p = self.policy(now, bucket);
        let waiting = self.lines.get_mut(bucket).and_then(|lines| lines.get_mut(id)).filter(|line| !line.is_late(now));
        if let Some(line) = waiting {
            // One that backs off has left before.
            let left_before = (line.state == 'r').then_some(line.accepted);
            if !line.is_cancelled() {
                self.changed.insert((bucket.into(), id.into(), line.key()), None);
                line.state = line.state.to_ascii_uppercase();
            }
            if let Some(accepted) = left_before {
                self.remember(now, bucket, &p, id, accepted);
            }
            return 1;
        }
        if self.is_remembered(now, bucket, &p, id) { 2 } else { 0 }
    }

    /// "`left` = dispatched, while the id is remembered"; "what was answered at the accept, less the time since".
    pub(super) fn find(&self, now: u64, bucket: &str, id: &str) -> (String, i64, i64) {
        if let Some(line) = self.line(bucket, id).filter(|line| !line.is_cancelled() && !line.is_late(now)) {
            let state = match line.state {
                'q' => "queued",
                'd' => "delayed",
                _ => "retrying",
            };
            return (state.into(), ms_until(now, line.eta), line.attempt as i64);
        }
        let is_known = self.is_remembered(now, bucket, &self.policy(now, bucket), id);
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
