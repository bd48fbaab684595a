//! The reference model of `tree_model`: what pushes and submits do to a bucket, and what they are answered.

use std::collections::VecDeque;

use super::tree_reference::{Job, Place, QUARTER, Tree};

/// What a submit asks for, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) cost: u64,
    pub(super) ttl: Option<u64>,
    pub(super) delay: Option<u64>,
}

impl Tree {
    fn name(&self, n: usize) -> String {
        self.nodes[n].id.trim_matches(['{', '}']).to_owned()
    }

    fn depth(&self, n: usize) -> usize {
        self.nodes[n].queue.as_ref().map_or(0, VecDeque::len)
    }

    /// The due of a bucket as a reply reckons with it: idle time earns no credit, and a pause, or the wait for a slot, is taken to end now.
    fn reckoned(&self, n: usize, now: u64) -> u64 {
        let node = &self.nodes[n];
        let is_over = node.is_paused || matches!(node.place, Place::Nowhere | Place::Full(_));
        if is_over { self.due(n).max(now) } else { self.due(n) }
    }

    /// A wait in ms: "at least 1,000 where only an operator, a daemon or a worker can free a place".
    fn honest(&self, n: usize, due: u64, now: u64, ms: i64) -> i64 {
        let waits = |n: usize| self.nodes[n].is_paused || matches!(self.nodes[n].place, Place::Full(_));
        let above = self.above(n);
        let latest = above.iter().map(|b| self.nodes[*b].due.max(self.nodes[*b].went_on)).fold(due, u64::max);
        let is_stuck = waits(n) || self.is_full(n, now) || above.iter().any(|b| waits(*b)) || latest + 1_000_000 < now;
        if is_stuck { ms.max(1_000) } else { ms }
    }

    /// An atomic push: what it replies.
    pub(super) fn push(&mut self, n: usize, jobs: &[Job], now: u64) -> [i64; 5] {
        self.looks_at(n, now);
        let (capacity, before) = (self.capacity, self.depth(n));
        let accepted = jobs.len().min(capacity - before);
        let accepted = accepted.min(self.gates_free(n, now));
        if accepted > 0 {
            if matches!(self.nodes[n].place, Place::Full(_)) && !self.has_jobs(n, now) {
                self.nodes[n].due = self.nodes[n].due.max(now); // idle time earns no credit
                self.nodes[n].place = Place::Full(self.due(n));
            }
            self.begins(n, now);
            self.passes_gates(n, accepted, now);
            let queue = self.nodes[n].queue.as_mut().expect("a bucket");
            queue.extend(jobs[..accepted].iter().cloned());
        }
        self.stands_up(n, now);
        let (due, depth) = (self.reckoned(n, now), before + accepted);
        let room = if depth < capacity { 0 } else { self.honest(n, due, now, self.eta_ms(n, due, now, 1).max(1)) };
        let wait = if accepted < jobs.len() { room.max(self.gate_wait(n, now).0) } else { -1 };
        let eta = if accepted == 0 { -1 } else { self.eta_ms(n, due, now, depth) };
        [accepted as i64, depth as i64, capacity as i64, wait, eta]
    }

    /// Every push looks at its bucket: one that is not due yet waits for that where the time of a job of it has come.
    fn stands_up(&mut self, n: usize, now: u64) {
        if self.due(n) > now && self.nodes[n].later.look.is_some_and(|look| look <= now) {
            self.begins(n, now);
        } else if self.due(n) > now && self.nodes[n].place != Place::Nowhere && !self.has_jobs(n, now) {
            self.rests_where_it_waited(n, now);
        }
    }

    /// A plain push, and the look at its queue that follows: what is over is cut, and what came into an empty bucket that may go
    /// goes before all that is due.
    pub(super) fn wake(&mut self, n: usize, jobs: &[String], now: u64) {
        self.times_come(now);
        self.looks_at(n, now);
        let capacity = self.capacity;
        let queue = self.nodes[n].queue.as_mut().expect("a bucket");
        queue.extend(jobs.iter().map(|job| Job::plain(job)));
        queue.truncate(capacity);
        if self.nodes[n].place == Place::Nowhere {
            self.begins(n, now);
            if self.due(n) <= now && !self.nodes[n].is_paused {
                self.bucket_turn(n, QUARTER, now);
            }
        }
    }

    /// A submit of a job whose body is its id: the five values, the verdict, and who decides.
    pub(super) fn submit(&mut self, n: usize, body: &str, asked: Asked, now: u64) -> ([i64; 5], &'static str, String) {
        // "This id was accepted before: nothing was changed or charged."
        if self.nodes[n].ids.contains(body) {
            let eta = self.find(n, body, now).1;
            return ([1, self.depth(n) as i64, self.capacity as i64, -1, eta], "duplicate", self.name(n));
        }
        let at = asked.delay.map(|ms| now + ms * 1_000);
        self.looks_at(n, now);
        let refused = self.refusal(n, asked, at, now);
        if let Some((five, verdict, by)) = refused {
            self.stands_up(n, now);
            return (five, verdict, by);
        }
        // "deadline = accept + ttl (with DELAY: from its time on)"
        let deadline = asked.ttl.map(|ttl| at.unwrap_or(now) + ttl * 1_000);
        let mut job = Job { body: body.into(), cost: asked.cost, deadline, eta: 0, is_cancelled: false };
        self.nodes[n].ids.insert(body.into());
        let Some(at) = at else {
            let (five, due) = (self.push(n, &[job], now), self.reckoned(n, now));
            let by = self.leaves(n, due, now, self.depth(n)).1;
            let job = self.nodes[n].queue.as_mut().and_then(VecDeque::back_mut).expect("it was accepted");
            job.eta = now + five[4] as u64 * 1_000;
            return (five, "queued", self.name(by));
        };
        let (eta, by) = self.leaves(n, at.max(self.reckoned(n, now)), now, 1);
        job.eta = now + eta as u64 * 1_000;
        self.passes_gates(n, 1, now);
        let later = &mut self.nodes[n].later;
        later.jobs.insert((at, now), job);
        later.expects(at, now);
        let depth = later.jobs.len();
        self.stands_up(n, now);
        ([1, depth as i64, self.capacity as i64, -1, eta], "delayed", self.name(by))
    }

    /// Why a job is not accepted: the five values, the verdict, and who decides that. "Verdicts are decided in this order: full, late, gated."
    fn refusal(&self, n: usize, asked: Asked, at: Option<u64>, now: u64) -> Option<([i64; 5], &'static str, String)> {
        let (capacity, due) = (self.capacity, self.reckoned(n, now));
        let depth = if at.is_some() { self.nodes[n].later.jobs.len() } else { self.depth(n) };
        let told = |wait: i64| [0, depth as i64, capacity as i64, wait, -1];
        // "Delayed jobs have a bound of their own, as large as the capacity."
        if depth >= capacity {
            let until = at.and(self.nodes[n].later.first_time()).map_or(due, |first| first.max(due));
            let wait = self.honest(n, until, now, self.eta_ms(n, until, now, 1).max(1));
            let wait = wait.max(self.gate_wait(n, now).0);
            return Some((told(wait), "full", self.name(n)));
        }
        let (eta, by) = match at {
            Some(at) => self.leaves(n, at.max(due), now, 1),
            None => self.leaves(n, due, now, depth + 1),
        };
        // "late: as things stand it could not leave before its deadline."
        let late = asked.ttl.map_or(0, |ttl| eta - asked.delay.unwrap_or(0) as i64 - ttl as i64);
        if late > 0 {
            return Some((told(self.honest(n, due, now, late)), "late", self.name(by)));
        }
        // "gated: a gate was the tighter one."
        let (wait, gate) = self.gate_wait(n, now);
        (wait > 0).then(|| (told(wait), "gated", gate.into()))
    }
}
