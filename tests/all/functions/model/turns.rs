//! What a wake and a drain do, as the model knows it: the turns of buckets, and the sweep that carries a change.

use std::collections::BTreeSet;

use super::jobs::{Job, Options, Ready, Retry};
use super::policy::Policy;
use super::reference::{Held, Model, State, Turns};
use super::submit::Changed;
use crate::rig::S;

impl Model {
    /// Replies how many jobs left: those that came into buckets without work that may go. A bucket on the schedule keeps its turn.
    pub(super) fn wake(&mut self, now: u64, buckets: &[&str]) -> usize {
        let mut left = self.begin(now);
        for bucket in buckets {
            if self.len(bucket) > 0 {
                let mut state = self.look(now, bucket);
                let was_paused = self.paused.contains_key(*bucket);
                if let Some(due) = state.due.filter(|due| !was_paused || *due > now) {
                    self.settle(bucket, &state);
                    self.place(now, bucket, due); // one that is closed may be cut to nothing
                } else {
                    self.rest.remove(*bucket);
                    state.due = state.due.or(Some(now));
                    left += self.visit(now, bucket, state, None);
                }
            }
        }
        left
    }

    /// What every call does first: back-offs end, and held buckets have their turns. Replies how many jobs left.
    pub(super) fn begin(&mut self, now: u64) -> usize {
        self.end_settings(now);
        let ended = self.index.iter().filter(|(_, announced)| announced.is_some_and(|ends| ends <= now));
        for bucket in ended.map(|(bucket, _)| bucket.clone()).collect::<Vec<_>>() {
            let p = self.policy(now, &bucket);
            // The time of a delayed job has come, and it waits for one that failed.
            if let Some(ends) = self.first_retry(&bucket).filter(|ends| p.is_ordered && *ends > now) {
                self.index.insert(bucket, Some(ends));
                continue;
            }
            self.index.insert(bucket.clone(), None);
            let waits = self.held.contains_key(&bucket) || self.paused.contains_key(&bucket);
            let is_full = self.full.contains_key(&bucket) && self.is_full(now, &bucket, &p);
            if !waits && !is_full && !self.schedule.contains_key(&bucket) {
                self.come_back(now, bucket);
            }
        }
        // Those that are held for a route come before one that moves to it.
        let routes = self.routes_held.clone();
        self.closed = routes.iter().cloned().collect();
        routes.iter().map(|route| self.held_turns(now, route)).sum()
    }

    /// The buckets that are held for a route, in the order of their turns: rank, due and name.
    pub(super) fn held_for(&self, route: &str) -> Vec<(u64, u64, String)> {
        let held = self.held.iter().filter(|(_, held)| held.route == route);
        let mut held: Vec<_> = held.map(|(bucket, held)| (held.rank, held.due, bucket.clone())).collect();
        held.sort();
        held
    }

    /// "A route that has room serves its line by self-clocked fair queueing": one job each.
    fn held_turns(&mut self, now: u64, route: &str) -> usize {
        self.closed.remove(route);
        self.begin_line(now, route);
        let mut left = 0;
        while self.room(now, route) > 0 {
            let Some((rank, due, bucket)) = self.held_for(route).into_iter().next() else { break };
            self.held.remove(&bucket);
            let is_here = self.policy(now, &bucket).route == route;
            self.schedule.insert(bucket.clone(), if is_here { due } else { due.max(now) });
            let state = self.look(now, &bucket);
            self.at_route = Some(route.to_owned());
            left += self.visit(now, &bucket, state, Some((route, rank)));
            self.at_route = None;
        }
        if self.held_for(route).is_empty() {
            self.routes_held.retain(|held| held != route);
        } else {
            self.closed.insert(route.to_owned());
        }
        left
    }

    /// What is known of the line of a route. After a second without one, or a step back of the clock, that is nothing: "virtual time is at
    /// least the lowest in the line - 1".
    fn begin_line(&mut self, now: u64, route: &str) -> &mut Turns {
        let lowest = self.held_for(route).first().map(|(rank, ..)| *rank);
        let turns = self.turns_of(route);
        if now > turns.at + S || now < turns.at {
            turns.tags.clear();
            turns.time = 0;
        }
        turns.time = turns.time.max(lowest.map_or(0, |lowest| lowest.saturating_sub(1)));
        turns.at = now;
        turns
    }

    fn turns_of(&mut self, route: &str) -> &mut Turns {
        let forwards = self.record.forwards(route);
        let turns = self.had_turns.entry(route.to_owned()).or_default();
        if turns.forwards != forwards {
            *turns = Turns { forwards, ..Turns::default() };
        }
        turns
    }

    /// A bucket stands in the line of its route from now on. "A node that joins gets max(its last tag, virtual time - 1) + 1/n, a new one
    /// virtual time + 1/n"; n is 1 for a bucket.
    fn hold(&mut self, now: u64, bucket: &str, p: &Policy, due: u64, rank: Option<u64>) {
        let turns = self.begin_line(now, &p.route);
        let last = turns.tags.get(bucket).map_or(turns.time, |tag| (*tag).max(turns.time.saturating_sub(1)));
        let rank = rank.unwrap_or(last + 1);
        if !self.routes_held.contains(&p.route) {
            self.routes_held.push(p.route.clone());
        }
        self.held.insert(bucket.into(), Held { route: p.route.clone(), due, rank });
    }

    /// A bucket has work that may leave, once it is due: no earlier than now.
    fn come_back(&mut self, now: u64, bucket: String) {
        let state = self.look(now, &bucket);
        if state.fresh || self.prev.is_some() {
            self.settle(&bucket, &state); // what changed reaches it before its due becomes now
        }
        self.keep_slow(&bucket, &state);
        let due = state.due.unwrap_or(now).max(now);
        self.leave_all(&bucket);
        let is_full = self.is_full(now, &bucket, &state.policy);
        let place = match state.policy.paused_by {
            Some(_) => &mut self.paused,
            None if is_full => &mut self.full,
            None => &mut self.schedule,
        };
        place.insert(bucket, due);
    }

    /// "At most n jobs of the bucket are in flight: dispatched and not finished." Jobs that left before a limit was set count too (`counted`).
    pub(super) fn is_full(&self, now: u64, bucket: &str, p: &Policy) -> bool {
        let taken = || self.in_flight().filter(|entry| entry.bucket == bucket).count();
        p.slots.is_some_and(|slots| self.is_uncounted(now, bucket) || taken() >= slots)
            || p.is_ordered && self.waits_for_retry(now, bucket)
    }

    /// "While a job of the bucket backs off or was given back, the bucket waits for it": until that is over and it was scheduled for that.
    fn waits_for_retry(&self, now: u64, bucket: &str) -> bool {
        self.first_retry(bucket).is_some_and(|ends| ends > now || self.index.get(bucket) != Some(&None))
    }

    /// When the first back-off of a bucket ends.
    fn first_retry(&self, bucket: &str) -> Option<u64> {
        self.retries.get(bucket).and_then(|retries| retries.first()).map(|retry| retry.ends)
    }

    /// An entry of a bucket is in flight no more. "What frees a slot puts it back, with no credit for the wait."
    pub(super) fn slot_freed(&mut self, now: u64, entry: &Ready) {
        let bucket = &entry.bucket;
        if entry.holds && self.full.contains_key(bucket) && !self.is_full(now, bucket, &self.policy(now, bucket)) {
            self.come_back(now, bucket.clone());
        }
    }

    /// How many jobs more a route takes: none "while the route's age is over `ready_window`", and none "while the route's limit of undelivered jobs is
    /// reached". The limit is an estimate, which the functions are asked for.
    pub(super) fn room(&self, now: u64, route: &str) -> usize {
        if self.closed.contains(route) {
            return 0;
        }
        let max_ready = self.record.limit("max_ready");
        if self.record.forwards(route) {
            return self.list.room(max_ready);
        }
        let undelivered = || self.ready.iter().filter(|entry| entry.route == route && entry.taken_ms.is_none());
        let oldest = undelivered().map(|entry| entry.at).next();
        let limit = match self.record.ready_window(route) {
            Some(window) if oldest.is_some_and(|at| now.saturating_sub(at) > window) => 0,
            Some(_) => self.limits.get(route).map_or(max_ready, |limit| max_ready.min(*limit)),
            None => max_ready,
        };
        limit.saturating_sub(undelivered().count())
    }

    /// Everything that drains do at one moment, however many it takes. Replies how many jobs left.
    pub(super) fn drain(&mut self, now: u64) -> usize {
        self.begin(now) + self.drain_begun(now)
    }

    /// The same in a call that has begun already.
    pub(super) fn drain_begun(&mut self, now: u64) -> usize {
        let mut left = 0;
        self.bring_back(now);
        loop {
            let before = (left, self.prev.is_some(), self.schedule.clone(), self.held.clone(), self.index.clone());
            // A sweep takes the held buckets last, and what has become due in between leaves in between.
            if self.is_anything_set() {
                left += self.turns(now); // it looks at that before, in a call of its own
                self.forget(now);
                left += self.begin(now);
            }
            for part in [Self::sweep_paused, Self::sweep_full, Self::sweep_rest, Self::sweep_schedule, Self::sweep_held]
            {
                left += self.turns(now);
                self.forget(now);
                part(self, now);
                left += self.begin(now);
            }
            self.count_marked(now);
            if before == (left, false, self.schedule.clone(), self.held.clone(), self.index.clone()) {
                return left;
            }
        }
    }

    /// The turns of the buckets that are due, the longest due first. Replies how many jobs left.
    pub(super) fn turns(&mut self, now: u64) -> usize {
        let due: Vec<(u64, String)> = self.schedule.iter().map(|(bucket, due)| (*due, bucket.clone())).collect();
        let due = due.into_iter().filter(|(due, _)| *due <= now);
        let mut due: Vec<_> = due.collect();
        due.sort();
        let mut left = 0;
        for (_, bucket) in due {
            let state = self.look(now, &bucket);
            left += self.visit(now, &bucket, state, None);
        }
        left
    }

    /// The turn of a bucket: retries first, then delayed jobs and the queue. One that was held, for a route and with a rank, has it for one job.
    /// Replies how many jobs left.
    fn visit(&mut self, now: u64, bucket: &str, state: State, held: Option<(&str, u64)>) -> usize {
        let mut most = if held.is_some() { 1 } else { usize::MAX };
        self.settle(bucket, &state);
        let (p, before) = (state.policy, self.out());
        let mut due = state.due.expect("scheduled");
        let announced = self.index.get(bucket) == Some(&None);
        // "A paused bucket lets nothing out."
        if p.paused_by.is_some() {
            self.place(now, bucket, due);
            return 0;
        }
        self.paused.remove(bucket);
        self.full.remove(bucket);
        if announced {
            self.let_retries_out(now, bucket, &p, &mut due, &mut most);
        }
        // One that failed could leave, and may not yet: nothing overtakes it.
        let is_behind = p.is_ordered && self.first_retry(bucket).is_some_and(|ends| ends <= now);
        if !is_behind {
            self.by_turns(now, bucket, &p, (&mut due, &mut most), announced);
        }
        let (has_left, is_held) = (self.out() > before, held.is_some());
        if let Some((route, rank)) = held.filter(|_| has_left) {
            let turns = self.turns_of(route);
            turns.tags.insert(bucket.to_owned(), rank);
            turns.time = turns.time.max(rank);
        }
        // "A turn in which no job left changes no tag."
        let rank = held.filter(|(route, _)| *route == p.route && !has_left).map(|(_, rank)| rank);
        let working = announced && self.announce(now, bucket, true);
        self.set_level(bucket, p.capacity);
        self.schedule.remove(bucket);
        if self.len(bucket) == 0 && !working {
            self.has_no_work(now, bucket, Some(due));
        } else if self.is_full(now, bucket, &p) {
            self.full.insert(bucket.into(), due);
            return self.out() - before;
        }
        match (due > now, self.len(bucket) > 0 || working) {
            (false, true) if is_held || self.room(now, &p.route) == 0 => self.hold(now, bucket, &p, due, rank),
            (_, true) => drop(self.schedule.insert(bucket.into(), due)),
            (true, false) => drop(self.rest.insert(bucket.into(), due)),
            (false, false) => {}
        }
        self.out() - before
    }

    /// How many jobs are where workers find them.
    fn out(&self) -> usize {
        self.ready.len() + self.list.jobs.len()
    }

    fn may_go(&self, now: u64, bucket: &str, p: &Policy, due: u64) -> bool {
        due <= now && !self.is_full(now, bucket, p) && self.room(now, &p.route) > 0
    }

    /// "Retries leave in the order in which their back-offs ended." One that was cancelled is gone "at its turn, without a rate slot", and
    /// one whose deadline is over is dead.
    fn let_retries_out(&mut self, now: u64, bucket: &str, p: &Policy, due: &mut u64, most: &mut usize) {
        while *most > 0 && self.may_go(now, bucket, p, *due) {
            let Some(retries) = self.retries.get_mut(bucket) else { break };
            let Some(retry) = retries.first().filter(|retry| retry.ends <= now).cloned() else { break };
            retries.remove(&retry);
            let mut retry = retry;
            let id = retry.options.id.clone();
            let (changed, accepted) = self.taken(bucket, &id, &format!("r{}", retry.entry), 0);
            match changed {
                Changed::Cancelled => continue,
                Changed::Replaced(job) => {
                    let options = job.options.expect("submitted");
                    (retry.body, retry.options) = (job.body, Options { accepted: 0, ..options }); // nothing tells when
                }
                Changed::Nothing => {}
            }
            self.left(now, bucket, &id, accepted);
            if retry.options.deadline.is_some_and(|deadline| deadline < now) {
                let attempt = (retry.attempt - 1).max(1);
                self.bury(bucket, retry.body, attempt, "expired", retry.options);
                continue;
            }
            *most -= 1; // one that is given up takes no turn
            let job = Job { body: retry.body, options: Some(retry.options) };
            self.dispatch(now, bucket, p, due, job, (retry.attempt, retry.kept));
        }
    }

    /// A delayed job, "when its time has come, takes turns with the queue, one and one, in the order of times".
    fn by_turns(&mut self, now: u64, bucket: &str, p: &Policy, (due, most): (&mut u64, &mut usize), announced: bool) {
        let mut is_queue = self.turns.contains(bucket);
        loop {
            let first = self.delayed.get(bucket).and_then(|jobs| jobs.first_key_value());
            let next = first.map(|(at, _)| at.clone()).filter(|at| announced && at.0 <= now);
            is_queue = is_queue && next.is_some();
            if *most == 0 || !self.may_go(now, bucket, p, *due) {
                break;
            }
            let takes_queue = next.is_none() || is_queue && self.len(bucket) > 0;
            let job = if takes_queue {
                self.queues.get_mut(bucket).and_then(std::collections::VecDeque::pop_front)
            } else {
                next.as_ref().and_then(|at| self.delayed.get_mut(bucket).and_then(|jobs| jobs.remove(at)))
            };
            let Some(job) = job else { break };
            let (before, is_held) = (self.out(), *most == 1);
            self.first_turn(now, bucket, p, due, job, if takes_queue { 'q' } else { 'd' });
            // A held bucket has its turn for one job, which a dropped one does not use up.
            let is_kept = is_held && self.out() == before;
            *most -= usize::from(!is_kept);
            is_queue = next.is_some() && (!takes_queue || is_kept);
        }
        if announced {
            let waits = self.delayed.get(bucket).is_some_and(|jobs| !jobs.is_empty());
            if is_queue && waits {
                self.turns.insert(bucket.into())
            } else {
                self.turns.remove(bucket)
            };
        }
    }

    /// The turn of a job that has not left before. Cancelled, too large, or past its deadline: it is gone "without a rate slot".
    fn first_turn(&mut self, now: u64, bucket: &str, p: &Policy, due: &mut u64, job: Job, state: char) {
        let mut job = job;
        let known = job.options.clone();
        let mut remembered = 0;
        if let Some(Options { id, accepted, .. }) = &known {
            let (changed, accepted) = self.taken(bucket, id, &format!("{state}{accepted}"), *accepted);
            remembered = accepted;
            match changed {
                Changed::Cancelled => return,
                Changed::Replaced(other) => job = other,
                Changed::Nothing => {}
            }
        }
        let deadline = job.options.as_ref().and_then(|options| options.deadline);
        if job.body.len() > self.record.limit("max_job_bytes") {
            self.rejected.push((bucket.into(), job.body, "too_large"));
        } else if deadline.is_some_and(|deadline| deadline < now) {
            self.rejected.push((bucket.into(), job.body, "expired"));
        } else {
            self.dispatch(now, bucket, p, due, job, (1, 0));
            if let Some(Options { id, .. }) = known {
                self.left(now, bucket, &id, remembered);
            }
        }
    }

    /// The index says when the first back-off of a bucket ends, or the time of its first delayed job comes; what has ended and was announced
    /// stays so. Where jobs keep their order a delayed one waits for one that failed. Replies whether one has ended.
    pub(super) fn announce(&mut self, now: u64, bucket: &str, announced: bool) -> bool {
        let retry = self.first_retry(bucket);
        let waits = retry.is_some() && self.policy(now, bucket).is_ordered;
        let delayed = self.delayed.get(bucket).filter(|_| !waits).and_then(|jobs| jobs.first_key_value());
        let delayed = delayed.map(|(at, _)| at.0);
        match retry.into_iter().chain(delayed).min() {
            None => {
                self.index.remove(bucket);
                false
            }
            Some(ends) => {
                if ends > now || !announced {
                    self.index.insert(bucket.into(), Some(ends));
                } else if let Some(known) = self.index.get_mut(bucket) {
                    // A delayed job may have waited for a retry that is gone: nobody has announced it.
                    *known = known.map(|at| at.min(ends));
                }
                ends <= now
            }
        }
    }

    /// Something of a bucket may leave at `ends`.
    pub(super) fn expect(&mut self, now: u64, bucket: &str, ends: u64) {
        let first = self.index.entry(bucket.into()).or_insert(Some(ends));
        *first = first.map(|first| first.min(ends));
        if self.policy(now, bucket).is_ordered {
            self.announce(now, bucket, true);
        }
    }

    /// A job of a bucket backs off.
    pub(super) fn backs_off(&mut self, now: u64, bucket: &str, retry: Retry) {
        let ends = retry.ends;
        self.retries.entry(bucket.into()).or_default().insert(retry);
        self.expect(now, bucket, ends);
    }

    /// It waits for one that failed from now on, or waits for that no more.
    pub(super) fn orders(&mut self, now: u64, bucket: &str, announced: bool) {
        let is_ordered = self.policy(now, bucket).is_ordered;
        if self.index.get(bucket).is_some_and(|ends| ends.is_some() || is_ordered) {
            self.announce(now, bucket, announced && self.index[bucket].is_none());
        }
    }

    fn dispatch(&mut self, now: u64, bucket: &str, p: &Policy, due: &mut u64, job: Job, tries: (u64, u64)) {
        if self.record.forwards(&p.route) {
            self.list.send(job.body, self.record.end(&p.route));
            let cost = job.options.map_or(1, |options| options.cost);
            (*due, _) = self.pay(now, bucket, p, *due, cost);
            return;
        }
        let first = job.options.as_ref().map(|options| options.id.clone());
        let options = job.options.unwrap_or_else(|| Options::bare(String::new()));
        let left_for = *due;
        let charged;
        (*due, charged) = self.pay(now, bucket, p, *due, options.cost);
        self.ready.push(Ready {
            id: String::new(),
            route: p.route.clone(),
            bucket: bucket.into(),
            job: job.body,
            attempt: tries.0,
            kept: tries.1,
            due: if self.at_route.is_some() { now } else { left_for },
            at: now,
            lease_ms: p.lease_ms,
            first,
            cost: options.cost,
            charged,
            deadline: options.deadline,
            headers: options.headers,
            holds: p.slots.is_some(),
            taken_ms: None,
        });
    }

    /// What a sweep does to the buckets that wait with work.
    pub(super) fn sweep_all(&mut self, now: u64, names: Vec<String>) {
        for bucket in names {
            let state = self.look(now, &bucket);
            if self.sweep_stopped(now, &bucket, &state) {
                continue;
            }
            let due = state.due.expect("scheduled");
            // One that since the clock stepped back waits for one that failed, too, finds that at its turn.
            self.hold_or_schedule(now, &bucket, due, &state.policy);
        }
    }

    /// A change has come by a bucket. Replies whether an operator or its slots stop it, or have: then it stands where it must by now.
    fn sweep_stopped(&mut self, now: u64, bucket: &str, state: &State) -> bool {
        self.keep_slow(bucket, state);
        if self.prev.is_none() {
            return false;
        }
        self.settle(bucket, state);
        let was_stopped = self.paused.contains_key(bucket) || self.full.contains_key(bucket);
        let is_full = !self.rest.contains_key(bucket) && self.is_full(now, bucket, &state.policy);
        if state.policy.paused_by.is_none() && !was_stopped && !is_full {
            return false;
        }
        let has_work = self.len(bucket) > 0 || self.is_working(now, bucket);
        if state.policy.is_ordered {
            self.orders(now, bucket, true); // the end of the sweep comes by those that are so no more
        }
        match state.due.or(has_work.then_some(now)) {
            Some(due) => self.place_as(now, bucket, due, has_work),
            None => self.leave_all(bucket),
        }
        true
    }

    pub(super) fn sweep_paused(&mut self, now: u64) {
        for bucket in self.paused.keys().cloned().collect::<Vec<_>>() {
            let state = self.look(now, &bucket);
            if !self.sweep_stopped(now, &bucket, &state) {
                self.paused.insert(bucket, state.due.expect("it waits"));
            }
        }
    }

    pub(super) fn sweep_full(&mut self, now: u64) {
        for bucket in self.full.keys().cloned().collect::<Vec<_>>() {
            let state = self.look(now, &bucket);
            if !self.sweep_stopped(now, &bucket, &state) {
                self.full.insert(bucket, state.due.expect("it waits"));
            }
        }
    }

    fn is_anything_set(&self) -> bool {
        !self.own.is_empty() || !self.record.globs.is_empty() || !self.paused.is_empty()
    }

    pub(super) fn sweep_schedule(&mut self, now: u64) {
        self.sweep_all(now, self.schedule.keys().cloned().collect());
    }

    pub(super) fn sweep_rest(&mut self, now: u64) {
        for bucket in self.rest.keys().cloned().collect::<Vec<_>>() {
            let state = self.look(now, &bucket);
            if self.sweep_stopped(now, &bucket, &state) {
                continue;
            }
            match state.due {
                Some(due) => drop(self.rest.insert(bucket, due)),
                None if self.prev.is_some() => drop(self.rest.remove(&bucket)),
                None => {}
            }
        }
    }

    /// Then the change that spread is over; and it looks at the back-offs.
    pub(super) fn sweep_held(&mut self, now: u64) {
        self.sweep_all(now, self.held.keys().cloned().collect());
        self.spread_ends(now);
        let mut changed = Vec::new();
        for (bucket, retries) in &mut self.retries {
            let clamped: BTreeSet<Retry> =
                retries.iter().map(|r| Retry { ends: r.ends.min(now + r.delay), ..r.clone() }).collect();
            if clamped != *retries {
                *retries = clamped;
                changed.push(bucket.clone());
            }
        }
        for bucket in changed {
            if self.index.get(&bucket) != Some(&None) {
                self.announce(now, &bucket, false);
            }
        }
        for bucket in self.index.keys().cloned().collect::<Vec<_>>() {
            self.orders(now, &bucket, false);
        }
    }
}
