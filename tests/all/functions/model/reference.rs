//! The reference model of `model`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::jobs::{Ready, Retry};
use super::policy::{Policy, Record};
use crate::rig::MS;

/// The end of a bucket's first back-off; `None`: it is over, and the bucket was scheduled for it.
pub(super) type Announced = Option<u64>;

pub(super) struct Model {
    pub(super) record: Record,
    pub(super) prev: Option<Record>,
    pub(super) spread: BTreeSet<String>,
    pub(super) queues: BTreeMap<String, VecDeque<String>>,
    pub(super) levels: BTreeMap<String, usize>,
    pub(super) schedule: BTreeMap<String, u64>,
    pub(super) held: BTreeMap<String, (String, u64)>,
    /// Without work, and not past their due.
    pub(super) rest: BTreeMap<String, u64>,
    /// When those at rest were last forgotten.
    pub(super) forgot: u64,
    pub(super) retries: BTreeMap<String, BTreeSet<Retry>>,
    pub(super) index: BTreeMap<String, Announced>,
    pub(super) ready: Vec<Ready>,
    pub(super) rejected: Vec<(String, String, &'static str)>,
    pub(super) dead: Vec<(String, String, u64, String, String)>,
}

pub(super) struct State {
    pub(super) policy: Policy,
    pub(super) fresh: bool,
    pub(super) due: Option<u64>,
    pub(super) keeps: usize,
}

impl Model {
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            prev: None,
            spread: BTreeSet::new(),
            queues: BTreeMap::new(),
            levels: BTreeMap::new(),
            schedule: BTreeMap::new(),
            held: BTreeMap::new(),
            rest: BTreeMap::new(),
            forgot: 0,
            retries: BTreeMap::new(),
            index: BTreeMap::new(),
            ready: Vec::new(),
            rejected: Vec::new(),
            dead: Vec::new(),
        }
    }

    pub(super) fn len(&self, bucket: &str) -> usize {
        self.queues.get(bucket).map_or(0, VecDeque::len)
    }

    pub(super) fn look(&self, now: u64, bucket: &str) -> State {
        let policy = self.record.policy(bucket);
        let mut due = self.schedule.get(bucket).copied().or(self.held.get(bucket).map(|(_, due)| *due));
        due = due.or(self.rest.get(bucket).copied());
        let mut bound = policy.capacity.max(self.levels.get(bucket).copied().unwrap_or(0));
        let mut fresh = false;
        if let Some(prev) = self.prev.as_ref().filter(|_| !self.spread.contains(bucket)) {
            let old = prev.policy(bucket);
            fresh = true;
            bound = bound.max(old.capacity);
            if old.rate != policy.rate {
                due = due.map(|due| old.rate.re_anchored(policy.rate, due, now));
            }
        }
        due = due.map(|due| due.min(now + policy.rate.interval()));
        due = due.filter(|due| *due > now || !self.rest.contains_key(bucket));
        State { policy, fresh, due, keeps: self.len(bucket).min(bound) }
    }

    pub(super) fn set_level(&mut self, bucket: &str, capacity: usize) {
        let len = self.len(bucket);
        if len > capacity {
            self.levels.insert(bucket.into(), len)
        } else {
            self.levels.remove(bucket)
        };
    }

    pub(super) fn cut(&mut self, bucket: &str, keeps: usize, drop_oldest: bool) {
        let queue = self.queues.entry(bucket.into()).or_default();
        let over = queue.len() - keeps;
        let gone: Vec<String> =
            if drop_oldest { queue.drain(..over).collect() } else { queue.drain(keeps..).collect() };
        let reason = if drop_oldest { "dropped" } else { "full" };
        self.rejected.extend(gone.into_iter().map(|job| (bucket.to_owned(), job, reason)));
    }

    pub(super) fn settle(&mut self, bucket: &str, state: &State) {
        self.cut(bucket, state.keeps, state.policy.drop_oldest);
        self.set_level(bucket, state.policy.capacity);
        if state.fresh {
            self.spread.insert(bucket.into());
        }
    }

    /// Drop the buckets at rest whose due is over, at most every 100 ms, and not while a change spreads: it may put a due off.
    pub(super) fn forget(&mut self, now: u64) {
        let is_soon = (self.forgot..self.forgot + 100 * MS).contains(&now);
        if !is_soon && self.prev.is_none() && self.rest.values().any(|due| *due <= now) {
            self.rest.retain(|_, due| *due > now);
            self.forgot = now;
        }
    }

    /// A bucket with work waits for its own due first, and only then for its route.
    pub(super) fn store_due(&mut self, now: u64, bucket: &str, due: u64) {
        let route = self.record.policy(bucket).route;
        match self.held.get_mut(bucket) {
            Some(held) if due <= now && held.0 == route => held.1 = due,
            held => {
                // Time spent held is no lateness.
                let due = if held.is_some() { due.max(now) } else { due };
                self.schedule(bucket, due);
            }
        }
    }

    pub(super) fn schedule(&mut self, bucket: &str, due: u64) {
        self.rest.remove(bucket);
        self.held.remove(bucket);
        self.schedule.insert(bucket.into(), due);
    }

    pub(super) fn push(&mut self, now: u64, bucket: &str, jobs: &[String]) -> Option<[i64; 5]> {
        let state = self.look(now, bucket);
        let limit = self.record.limit("max_job_bytes");
        if jobs.iter().any(|job| job.len() > limit) {
            return None;
        }
        self.settle(bucket, &state);
        let p = &state.policy;
        let mut due = state.due;
        let accepted = if p.drop_oldest { jobs.len() } else { jobs.len().min(p.capacity.saturating_sub(state.keeps)) };
        if accepted > 0 {
            let working = match self.index.get(bucket) {
                Some(None) => true,
                Some(Some(ends)) => *ends <= now,
                None => false,
            };
            if due.is_none_or(|due| due < now && state.keeps == 0 && !working) {
                due = Some(now);
            }
            let level = p.capacity.max(state.keeps);
            self.queues.entry(bucket.into()).or_default().extend(jobs[..accepted].iter().cloned());
            if self.len(bucket) > level {
                self.cut(bucket, level, true);
            }
        }
        // Before it moves: one that its old route held goes on now by the route that it has now, with no credit.
        let (depth, reckoned) = (self.len(bucket), self.reckoned(now, bucket, due));
        if let Some(due) = due {
            self.store_due(now, bucket, due);
        } else if self.rest.get(bucket).is_some_and(|due| *due > now) {
            self.rest.remove(bucket); // by a new rate it rested for long enough
        }
        let due = reckoned;
        let retry = ((due as i64 - now as i64).div_euclid(1_000)
            + i64::from((due as i64 - now as i64).rem_euclid(1_000) != 0))
        .max(1);
        let all = accepted == jobs.len();
        let eta = if accepted == 0 { -1 } else { p.rate.eta_ms(due, now, depth) };
        Some([accepted as i64, depth as i64, p.capacity as i64, if all { -1 } else { retry }, eta])
    }

    pub(super) fn peek(&self, now: u64, bucket: &str) -> [i64; 5] {
        let state = self.look(now, bucket);
        let (p, depth, due) = (&state.policy, state.keeps, self.reckoned(now, bucket, state.due));
        let full = depth >= p.capacity && !p.drop_oldest;
        let wait = due as i64 - now as i64;
        let retry = (wait.div_euclid(1_000) + i64::from(wait.rem_euclid(1_000) != 0)).max(1);
        let eta = if depth == 0 { -1 } else { p.rate.eta_ms(due, now, 1) };
        [0, depth as i64, p.capacity as i64, if full { retry } else { -1 }, eta]
    }

    /// The due that a reply reckons with: of a held bucket as if that ended now.
    pub(super) fn reckoned(&self, now: u64, bucket: &str, due: Option<u64>) -> u64 {
        due.map_or(now, |due| if self.held.contains_key(bucket) { due.max(now) } else { due })
    }

    /// Replies how many jobs left: those that came into buckets without work that may go. A bucket on the schedule keeps its turn.
    pub(super) fn wake(&mut self, now: u64, buckets: &[&str]) -> usize {
        self.begin(now);
        let mut left = 0;
        for bucket in buckets {
            if self.len(bucket) > 0 {
                let mut state = self.look(now, bucket);
                if let Some(due) = state.due {
                    self.settle(bucket, &state);
                    self.store_due(now, bucket, due);
                } else {
                    self.rest.remove(*bucket);
                    state.due = Some(now);
                    left += self.visit(now, bucket, state);
                }
            }
        }
        left
    }

    /// What every call does first: held buckets go on where there is room, and back-offs end.
    pub(super) fn begin(&mut self, now: u64) {
        for route in ["default", "mail"] {
            let held = self.held.iter().filter(|(_, (name, _))| name == route);
            let mut held: Vec<(u64, String)> = held.map(|(bucket, (_, due))| (*due, bucket.clone())).collect();
            held.sort();
            for (due, bucket) in held.into_iter().take(self.room(route)) {
                self.held.remove(&bucket);
                self.schedule.insert(bucket, due.max(now));
            }
        }
        let ended = self.index.iter().filter(|(_, announced)| announced.is_some_and(|ends| ends <= now));
        for bucket in ended.map(|(bucket, _)| bucket.clone()).collect::<Vec<_>>() {
            self.index.insert(bucket.clone(), None);
            if !self.held.contains_key(&bucket) && !self.schedule.contains_key(&bucket) {
                let state = self.look(now, &bucket);
                if state.fresh {
                    self.settle(&bucket, &state); // what changed reaches it before its due becomes now
                }
                self.schedule(&bucket, state.due.unwrap_or(now).max(now));
            }
        }
    }

    pub(super) fn room(&self, route: &str) -> usize {
        let undelivered = self.ready.iter().filter(|entry| entry.route == route && entry.taken_ms.is_none()).count();
        self.record.limit("max_ready").saturating_sub(undelivered)
    }

    /// Everything that drains do at one moment, however many it takes. Replies how many jobs left.
    pub(super) fn drain(&mut self, now: u64) -> usize {
        self.begin(now);
        self.drain_begun(now)
    }

    /// The same in a call that has begun already.
    pub(super) fn drain_begun(&mut self, now: u64) -> usize {
        let mut left = 0;
        loop {
            let before = (left, self.prev.is_some(), self.schedule.clone(), self.held.clone(), self.index.clone());
            // A sweep takes the held buckets first and those on the schedule last, and what has become due in between leaves in between.
            for part in [Self::sweep_held, Self::sweep_rest, Self::sweep_schedule] {
                left += self.turns(now);
                self.forget(now);
                part(self, now);
                self.begin(now);
            }
            if before == (left, false, self.schedule.clone(), self.held.clone(), self.index.clone()) {
                return left;
            }
        }
    }

    /// The turns of the buckets that are due, the longest due first. Replies how many jobs left.
    pub(super) fn turns(&mut self, now: u64) -> usize {
        let due = self.schedule.iter().map(|(bucket, due)| (*due, bucket.clone()));
        let mut due: Vec<(u64, String)> = due.filter(|(due, _)| *due <= now).collect();
        due.sort();
        let mut left = 0;
        for (_, bucket) in due {
            let state = self.look(now, &bucket);
            left += self.visit(now, &bucket, state);
        }
        left
    }

    pub(super) fn visit(&mut self, now: u64, bucket: &str, state: State) -> usize {
        self.settle(bucket, &state);
        let p = state.policy;
        let (mut due, mut left) = (state.due.expect("scheduled"), 0);
        let next = |due: u64| p.rate.after(due.max(now - p.catch_up));
        let announced = self.index.get(bucket) == Some(&None);
        while announced && due <= now && self.room(&p.route) > 0 {
            let retries = self.retries.entry(bucket.into()).or_default();
            let Some(retry) = retries.first().filter(|retry| retry.ends <= now).cloned() else { break };
            retries.remove(&retry);
            let words: Vec<&str> = retry.member.splitn(8, ' ').collect();
            self.dispatch(
                now,
                bucket,
                &p,
                due,
                words[7],
                words[4].parse().expect("attempt"),
                Some((words[6].to_owned(), words[5].parse().expect("kept"))),
            );
            due = next(due);
            left += 1;
        }
        let mut working = false;
        if announced {
            match self.retries.get(bucket).and_then(|retries| retries.first()) {
                None => drop(self.index.remove(bucket)),
                Some(retry) if retry.ends <= now => working = true,
                Some(retry) => drop(self.index.insert(bucket.into(), Some(retry.ends))),
            }
        }
        let limit = self.record.limit("max_job_bytes");
        while due <= now && self.room(&p.route) > 0 {
            let Some(job) = self.queues.get_mut(bucket).and_then(VecDeque::pop_front) else { break };
            if job.len() > limit {
                self.rejected.push((bucket.into(), job, "too_large"));
            } else {
                self.dispatch(now, bucket, &p, due, &job, 1, None);
                due = next(due);
                left += 1;
            }
        }
        self.set_level(bucket, p.capacity);
        self.schedule.remove(bucket);
        match (due > now, self.len(bucket) > 0 || working) {
            (true, true) => drop(self.schedule.insert(bucket.into(), due)),
            (true, false) => drop(self.rest.insert(bucket.into(), due)),
            (false, true) => drop(self.held.insert(bucket.into(), (p.route.clone(), due))),
            (false, false) => {}
        }
        left
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn dispatch(
        &mut self,
        now: u64,
        bucket: &str,
        p: &Policy,
        due: u64,
        job: &str,
        attempt: u64,
        first: Option<(String, u64)>,
    ) {
        let (first, kept) = first.map_or((None, 0), |(id, kept)| (Some(id), kept));
        self.ready.push(Ready {
            id: String::new(),
            route: p.route.clone(),
            bucket: bucket.into(),
            job: job.into(),
            attempt,
            kept,
            due,
            at: now,
            lease_ms: p.lease_ms,
            first,
            taken_ms: None,
        });
    }

    /// What a sweep does to the buckets that wait with work.
    pub(super) fn sweep_all(&mut self, now: u64, names: Vec<String>) {
        for bucket in names {
            let state = self.look(now, &bucket);
            if self.prev.is_some() {
                self.settle(&bucket, &state);
            }
            self.store_due(now, &bucket, state.due.expect("scheduled"));
        }
    }

    pub(super) fn sweep_held(&mut self, now: u64) {
        self.sweep_all(now, self.held.keys().cloned().collect());
    }

    pub(super) fn sweep_rest(&mut self, now: u64) {
        for bucket in self.rest.keys().cloned().collect::<Vec<_>>() {
            let state = self.look(now, &bucket);
            if self.prev.is_some() {
                self.settle(&bucket, &state);
            }
            match state.due {
                Some(due) => drop(self.rest.insert(bucket, due)),
                None if self.prev.is_some() => drop(self.rest.remove(&bucket)),
                None => {}
            }
        }
    }

    /// Then the change that spread is over; and it looks at the back-offs.
    pub(super) fn sweep_schedule(&mut self, now: u64) {
        self.sweep_all(now, self.schedule.keys().cloned().collect());
        self.prev = None;
        self.spread.clear();
        for (bucket, retries) in &mut self.retries {
            let clamped: BTreeSet<Retry> =
                retries.iter().map(|r| Retry { ends: r.ends.min(now + r.delay), ..r.clone() }).collect();
            if clamped != *retries {
                *retries = clamped;
                if let Some(Some(ends)) = self.index.get_mut(bucket) {
                    *ends = retries.first().expect("some").ends;
                }
            }
        }
    }

    pub(super) fn pending(&self) -> Vec<usize> {
        (0..self.ready.len()).filter(|n| self.ready[*n].taken_ms.is_some()).collect()
    }

    pub(super) fn fail(&mut self, now: u64, n: usize, wait: Option<u64>, keep: bool, dead: bool, reason: &str) -> i64 {
        let entry = self.ready.remove(n);
        let p = self.record.policy(&entry.bucket);
        let first = entry.first.clone().unwrap_or(entry.id.clone());
        let counts = !keep || entry.kept >= 20;
        if dead || (counts && entry.attempt >= p.attempts) {
            self.dead.push((entry.bucket, entry.job, entry.attempt, first, reason.to_owned()));
            return 2;
        }
        let doubled = u128::from(p.backoff.0) << (entry.attempt - 1).min(60);
        let delay = wait.map_or(doubled.min(p.backoff.1.into()) as u64, |ms| ms * MS);
        let (next, kept) = (entry.attempt + u64::from(counts), entry.kept + u64::from(keep));
        let member = format!("2 {} {} {delay} {next} {kept} {first} {}", entry.id, entry.route, entry.job);
        let ends = now + delay;
        self.retries.entry(entry.bucket.clone()).or_default().insert(Retry { ends, member, delay });
        match self.index.get(&entry.bucket) {
            None => drop(self.index.insert(entry.bucket, Some(ends))),
            Some(Some(first)) if *first > ends => drop(self.index.insert(entry.bucket, Some(ends))),
            Some(_) => {}
        }
        1
    }

    pub(super) fn configure(&mut self, now: u64, record: Record) -> i64 {
        if record.json == self.record.json {
            return 0;
        }
        if self.prev.is_some() {
            return -1;
        }
        let old = std::mem::replace(&mut self.record, record);
        if !self.schedule.is_empty() || !self.held.is_empty() || self.rest.values().any(|due| *due > now) {
            self.prev = Some(old);
            self.spread.clear();
        }
        1
    }
}
