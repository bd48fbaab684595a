//! The judge of `settings_world`: what must be true after each step.

use std::collections::HashMap;

use super::settings_seen::Seen;
use super::settings_table::InForce;
use super::settings_world::{BUCKETS, Did, OFF_US, ROUTES, World};
use crate::rig::{Entry, MS, S};

macro_rules! ensure {
    ($is_so:expr, $($why:tt)+) => {
        if !$is_so { return Err(format!($($why)+)); }
    };
}

impl World {
    /// Read the state that a step left and judge it.
    pub(super) fn judge(&mut self, did: &Did) -> Result<(), String> {
        let after = Seen::read(&mut self.case, self.now, self.peeks);
        let before = std::mem::replace(&mut self.seen, after);
        for b in 0..BUCKETS.len() {
            self.find_unshown(b, &before, did)?;
        }
        self.each_job_is_in_one_place()?;
        for (b, bucket) in BUCKETS.iter().enumerate() {
            let why = |why: String| format!("{bucket}: {why}");
            self.cuts(b, &before, did).map_err(why)?;
            self.order(b, &before, did).map_err(why)?;
            self.pace(b, &before).map_err(why)?;
            self.stands_anew(b);
            self.places(b, &before, did).map_err(why)?;
            self.peeked(b).map_err(why)?;
        }
        self.free_idle_ones();
        did.settled.map_or(Ok(()), |wait| self.rests(wait))
    }

    /// Entries of the ready streams that are new.
    fn left<'a>(&'a self, b: usize, before: &Seen) -> Vec<&'a Entry> {
        let is_new = |(route, entry): &&(usize, Entry)| {
            entry.text("bucket") == BUCKETS[b] && !before.ready.iter().any(|(r, old)| r == route && old.id == entry.id)
        };
        self.seen.ready.iter().filter(is_new).map(|(_, entry)| entry).collect()
    }

    /// New entries of the stream of rejected jobs.
    fn rejected<'a>(&'a self, b: usize, before: &Seen) -> Vec<&'a Entry> {
        let of_it = self.seen.rejected.iter().filter(|entry| entry.text("bucket") == BUCKETS[b]);
        of_it.filter(|entry| !before.rejected.iter().any(|old| old.id == entry.id)).collect()
    }

    /// Of a large cut some jobs are only counted: which they are.
    fn find_unshown(&mut self, b: usize, before: &Seen, did: &Did) -> Result<(), String> {
        let new = self.rejected(b, before);
        let counted: u64 = new.iter().filter(|e| e.fields.contains_key("count")).map(|e| e.number("count")).sum();
        let mut named: Vec<String> =
            new.iter().filter(|e| e.fields.contains_key("job")).map(|e| e.text("job")).collect();
        let here = self.left(b, before).into_iter().map(|entry| entry.text("job"));
        let here: Vec<String> = here.chain(self.seen.queues[b].iter().cloned()).chain(named.iter().cloned()).collect();
        let all = before.queues[b].iter().chain(did.pushed_to(b));
        let unshown: Vec<String> = all.filter(|job| !here.contains(job)).cloned().collect();
        ensure!(unshown.len() as u64 == counted, "{}: {unshown:?} are gone, {counted} were counted", BUCKETS[b]);
        named.extend(unshown);
        self.rejected.extend(named);
        Ok(())
    }

    fn each_job_is_in_one_place(&self) -> Result<(), String> {
        let mut found: HashMap<String, usize> = HashMap::new();
        let queued = self.seen.queues.iter().flatten().cloned();
        let backing_off = self.seen.retries.iter().flatten().map(|(_, job)| job.clone());
        let ready = self.seen.ready.iter().map(|(_, entry)| entry.text("job"));
        let all = queued.chain(backing_off).chain(ready).chain(self.rejected.iter().cloned());
        for job in all.chain(self.seen.dead.iter().cloned()).chain(self.done.iter().cloned()) {
            *found.entry(job).or_default() += 1;
        }
        for job in &self.jobs {
            let times = found.remove(job).unwrap_or(0);
            ensure!(times == 1, "{job} is in {times} places");
        }
        ensure!(found.is_empty(), "nobody pushed {found:?}");
        // Every retry is known to the index, or nobody would ever look at it; one that was announced stands somewhere.
        for (b, bucket) in BUCKETS.iter().enumerate() {
            let known = self.seen.index.get(*bucket).copied();
            let first = self.seen.retries[b].first().map(|(ends, _)| *ends as f64);
            ensure!(
                known.is_some() == first.is_some(),
                "{bucket}: retries {first:?}, of which the index says {known:?}"
            );
            let waits = self.seen.is_in(b, |place| place != "rest");
            ensure!(known != Some(f64::INFINITY) || waits, "{bucket}: its retry was announced, and it stands nowhere");
        }
        Ok(())
    }

    /// What was rejected, and whether it had to be.
    fn cuts(&mut self, b: usize, before: &Seen, did: &Did) -> Result<(), String> {
        let InForce { policy, closed, .. } = self.in_force(b);
        let rejected = self.rejected(b, before);
        let is_cut = !rejected.is_empty();
        let expect = match (policy.drop_oldest, &closed) {
            (true, _) => "dropped",
            (_, Some(_)) => "closed",
            _ => "full",
        };
        for entry in &rejected {
            ensure!(entry.text("reason") == expect, "rejected as {} instead of {expect}", entry.text("reason"));
        }
        let pushed = did.pushed_to(b);
        let is_atomic = did.looked.contains(&b) && !pushed.is_empty();
        let deep = before.queues[b].len() + pushed.len();
        let gone = before.queues[b].iter().chain(pushed).filter(|job| self.rejected.contains(*job)).count();
        let kept = deep - gone;
        let has_left = !self.left(b, before).is_empty();
        let moved = before.places[b] != self.seen.places[b];
        let now_stands = before.stands(b, self.now);
        let track = &mut self.tracks[b];
        if policy.capacity != track.caps.0 || policy.capacity != track.caps.1 {
            track.stood &= now_stands;
            if !now_stands {
                track.looked.0 = 0; // of one that stands nowhere nobody remembers what it was allowed to keep
            }
        }
        track.caps = (track.caps.0.min(policy.capacity), track.caps.1.max(policy.capacity));
        let is_looked = did.looked.contains(&b) || has_left || moved || is_cut;
        if !is_looked {
            return Ok(());
        }
        let named = did.looked.contains(&b);
        let low = policy.capacity.max(track.looked.0).max(if track.stood { track.caps.0 } else { 0 });
        let high = track.caps.1.max(track.looked.1);
        if is_atomic && policy.drop_oldest {
            // It lets its own jobs in and drops as many of the oldest.
            ensure!(kept >= low.min(deep) && kept <= high, "{kept} of {deep} kept, {low} to {high} were allowed");
        } else if is_atomic {
            let cut_to = kept - pushed.len();
            let low = low.min(before.queues[b].len());
            ensure!(cut_to >= low && cut_to <= high, "cut to {cut_to}, {low} to {high} were allowed");
        } else {
            ensure!(kept >= low.min(deep), "{kept} of {deep} kept, at least {low} had to be");
            ensure!(!named || kept <= high, "{kept} of {deep} kept, at most {high} were allowed");
        }
        if named || has_left || is_cut {
            track.stood = self.seen.stands(b, self.now);
            let deep = self.seen.queues[b].len();
            track.looked = (if track.stood { deep } else { 0 }, deep);
            // A rejected atomic push and a spread cut what is over, and leave it to the wake to schedule what nobody has seen.
            track.is_unlooked &= self.seen.places[b].iter().all(|(place, _)| place == "rest");
            track.caps = (policy.capacity, policy.capacity);
        } else {
            track.looked.0 = track.looked.0.min(self.seen.queues[b].len());
        }
        Ok(())
    }

    /// First in, first out; retries ahead of the queue.
    fn order(&self, b: usize, before: &Seen, did: &Did) -> Result<(), String> {
        let all: Vec<&String> = before.queues[b].iter().chain(did.pushed_to(b)).collect();
        let rest: Vec<&String> = all.iter().copied().filter(|job| !self.rejected.contains(*job)).collect();
        let drops = all.iter().map(|job| self.rejected.contains(*job)).collect::<Vec<_>>();
        let is_sorted = drops.is_sorted() || drops.iter().rev().is_sorted();
        ensure!(is_sorted, "neither the oldest nor the newest were rejected: {drops:?} of {all:?}");
        let left = self.left(b, before);
        let (again, first): (Vec<&Entry>, Vec<&Entry>) = left.iter().partition(|entry| entry.fields.contains_key("id"));
        let first: Vec<String> = first.iter().map(|entry| entry.text("job")).collect();
        let now: Vec<&String> = first.iter().chain(&self.seen.queues[b]).collect();
        ensure!(rest == now, "{rest:?} became {now:?}");
        let again: Vec<String> = again.iter().map(|entry| entry.text("job")).collect();
        let ended: Vec<&String> =
            before.retries[b].iter().filter(|(ends, _)| *ends <= self.now).map(|(_, job)| job).collect();
        ensure!(again.iter().eq(ended.iter().take(again.len()).copied()), "retries {again:?} of {ended:?}");
        if self.table.limit("batch") >= 10 && !first.is_empty() {
            ensure!(again.len() == ended.len(), "{first:?} left before {ended:?}");
            let at = left.iter().position(|entry| !entry.fields.contains_key("id")).expect("some");
            ensure!(at == again.len(), "a retry left behind {first:?}");
        }
        Ok(())
    }

    /// Each job left by the rate, the route and the lease in force, out of a bucket that was not paused.
    fn pace(&mut self, b: usize, before: &Seen) -> Result<(), String> {
        let InForce { policy: p, paused, .. } = self.in_force(b);
        let (now, mut track) = (self.now, self.tracks[b].clone());
        if before.is_in(b, |place| place == "paused" || place.starts_with("held"))
            && !self.seen.is_in(b, |place| place == "paused" || place.starts_with("held"))
        {
            track.went_on = now;
            track.base = track.base.map(|(low, high)| (low, high.max(now))); // a new rate may count from there
        }
        for entry in self.left(b, before) {
            let due = entry.number("due_us");
            ensure!(paused.is_none(), "{} left while {paused:?} pauses it", entry.text("job"));
            ensure!(entry.number("at_us") == now, "it did not leave now");
            ensure!(entry.number("lease_ms") == p.lease_ms, "lease {}", entry.number("lease_ms"));
            let route = self.seen.ready.iter().find(|(_, other)| other == entry).map(|(route, _)| ROUTES[*route]);
            ensure!(route == Some(p.route.as_str()), "it left to {route:?} instead of {}", p.route);
            ensure!(due <= now, "it left {} us before its due", due - now);
            ensure!(
                due >= track.went_on,
                "the wait counts as lateness: due {} us before it went on",
                track.went_on - due
            );
            if let Some((low, _)) = track.base.filter(|_| !track.is_free) {
                let earliest = p.rate.after(low).saturating_sub(OFF_US);
                ensure!(due >= earliest, "{} us too early, by the rate in force", earliest - due);
            }
            let least = now.saturating_sub(p.catch_up);
            // Of one that waited for workers the due is now, and it makes up for as much as any other.
            let base = due.max(least);
            (track.base, track.is_free) = (Some((if due == now { least } else { base }, base)), false);
        }
        self.tracks[b] = track;
        Ok(())
    }

    /// A due that is no more in the future may have been set to the moment at which its bucket went on, or came to stand. It does
    /// not tell how long before that the last dispatch was: a new rate may count from there.
    fn stands_anew(&mut self, b: usize) {
        let Some((_, due)) = self.seen.places[b].iter().find(|(place, _)| place != "rest") else { return };
        let track = &mut self.tracks[b];
        if track.base.is_none() {
            (track.base, track.is_free) = (Some((0, *due)), true);
        } else if let Some((_, high)) = track.base.as_mut().filter(|_| track.is_free || *due <= self.now) {
            *high = (*high).max(*due);
        }
    }

    fn places(&self, b: usize, before: &Seen, did: &Did) -> Result<(), String> {
        let (places, now, track) = (&self.seen.places[b], self.now, &self.tracks[b]);
        ensure!(places.len() <= 1, "it stands in {places:?}");
        let InForce { policy: p, paused, .. } = self.in_force(b);
        let was_forgotten = places.is_empty() && !track.is_free;
        if let Some((low, _)) = track.base.filter(|_| was_forgotten) {
            let due = p.rate.after(low).saturating_sub(OFF_US);
            ensure!(due <= now, "it is forgotten {} us before its due; it stood in {:?}", due - now, before.places[b]);
        }
        if did.settled.is_none() {
            return Ok(());
        }
        // One that was announced is not taken back where the clock steps back by less than what starts a sweep.
        let announced = self.seen.index.get(BUCKETS[b]) == Some(&f64::INFINITY);
        let ended = announced || self.seen.retries[b].first().is_some_and(|(ends, _)| *ends <= now);
        let has_work = !self.seen.queues[b].is_empty() && !track.is_unlooked || ended;
        let Some((place, due)) = places.first() else {
            ensure!(!has_work, "it has work and stands nowhere");
            return Ok(());
        };
        let has_any = !self.seen.queues[b].is_empty() || ended;
        ensure!(has_any || place == "rest", "it has no work and stands in {place}");
        ensure!(!has_work || place != "rest", "it has work and rests");
        ensure!(
            (place == "paused") == (has_work && paused.is_some()) || track.is_unlooked,
            "paused by {paused:?}: {place}"
        );
        if let Some(route) = place.strip_prefix("held:") {
            let waiting =
                |(r, entry): &&(usize, Entry)| ROUTES[*r] == route && !self.taken.contains(&(*r, entry.id.clone()));
            let ready = self.seen.ready.iter().filter(waiting).count() as u64;
            ensure!(route == p.route, "held by {route}, and its route is {}", p.route);
            ensure!(ready >= self.table.limit("max_ready"), "held, and its route has room");
            ensure!(*due <= self.latest, "held, and it is not due");
        } else if place != "paused" && (place == "schedule" || *due > now) {
            ensure!(*due > now, "it is due, and has not left");
            let Some((low, high)) = track.base else {
                return Err(format!("it has never left, and {place} says {due}"));
            };
            let from = if track.is_free { 0 } else { p.rate.after(low).saturating_sub(OFF_US) };
            let to = p.rate.after(high) + OFF_US;
            ensure!((from..=to).contains(due), "due {due} in {place}, not between {from} and {to}; now {now}");
        }
        Ok(())
    }

    /// What a peek says now, with no call in between: the capacity in force, and the due by the rate in force.
    fn peeked(&self, b: usize) -> Result<(), String> {
        let Some(peeked) = &self.seen.peeked else { return Ok(()) };
        let [_, depth, capacity, retry_ms, eta_ms] = peeked[b];
        let (p, track) = (self.in_force(b).policy, &self.tracks[b]);
        ensure!(capacity == p.capacity as i64, "peek: capacity {capacity} instead of {}", p.capacity);
        let is_full = depth >= capacity && !p.drop_oldest;
        ensure!((retry_ms == -1) != is_full, "peek: retry after {retry_ms} ms at {depth} of {capacity}");
        ensure!((eta_ms == -1) == (depth == 0), "peek: eta {eta_ms} ms at {depth}");
        let Some((low, high)) = track.base.filter(|_| depth > 0) else { return Ok(()) };
        let ms = |due: u64| due.saturating_sub(self.now).div_ceil(MS) as i64;
        let from = if track.is_free { 0 } else { ms(p.rate.after(low).saturating_sub(OFF_US)) };
        let to = ms(p.rate.after(high) + OFF_US);
        ensure!((from..=to).contains(&eta_ms), "peek: eta {eta_ms} ms, not between {from} and {to}");
        Ok(())
    }

    /// A bucket of which nothing is stored, past its due, has nothing that could keep its next job. The earlier value of `base` counts:
    /// were its due still to come by the later one, it would stand at rest.
    pub(super) fn free_idle_ones(&mut self) {
        for b in 0..BUCKETS.len() {
            let Some((low, _)) = self.tracks[b].base else { continue };
            let is_idle = !self.seen.stands(b, self.now);
            if is_idle && self.in_force(b).policy.rate.after(low) <= self.now {
                self.tracks[b].is_free = true;
            }
        }
    }

    /// After drains until nothing moved: how long the last one said to wait.
    fn rests(&mut self, wait: i64) -> Result<(), String> {
        let dues = self.seen.places.iter().flatten().filter(|(place, _)| place == "schedule").map(|(_, due)| *due);
        let ends = self.seen.index.values().filter(|ends| ends.is_finite()).map(|ends| *ends as u64);
        let held = self.seen.places.iter().flatten().any(|(place, _)| place.starts_with("held"));
        let next =
            dues.chain(ends).chain(self.table.next_end(self.now)).chain(held.then_some(self.now + 20 * MS)).min();
        let expect = next.map_or(-1, |at| at as i64 - self.now as i64);
        // Or sooner, to write counters, once a second.
        let sooner = (0..=S as i64).contains(&wait) && (expect == -1 || wait < expect);
        ensure!(wait == expect || sooner, "it waits for {wait} us instead of {expect}");
        let key = self.case.key("policy");
        ensure!(self.case.cmd::<i64>(&["HEXISTS", &key, "prev_id"]) == 0, "it rests, and a change still spreads");
        Ok(())
    }
}
