//! What becomes of a job that has left its bucket, as the model knows it.

use super::jobs::{Dead, Line, Options, Ready, Retry};
use super::reference::Model;
use crate::rig::MS;

/// When a job that failed may leave again.
#[derive(Debug, Clone, Copy)]
pub(in crate::functions) enum Back {
    /// After its back-off.
    Off,
    /// In so many milliseconds.
    In(u64),
    /// The other side turned it away: since this moment, "first, in the order of their first dispatch".
    First(u64),
}

/// A job that a worker gives back: which try it was, how often it was given back before, and what the worker asks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::functions) struct GivenBack {
    pub(in crate::functions) attempt: u64,
    pub(in crate::functions) kept: u64,
    pub(in crate::functions) deadline: Option<u64>,
    pub(in crate::functions) back: Back,
    pub(in crate::functions) keep: bool,
    pub(in crate::functions) dead: bool,
}

/// How often a job is tried, the first wait and the longest one.
#[derive(Debug, Clone, Copy)]
pub(in crate::functions) struct Tries {
    pub(in crate::functions) attempts: u64,
    pub(in crate::functions) backoff: (u64, u64),
}

/// What becomes of it.
pub(in crate::functions) enum Fate {
    /// It waits until `ends`, which is `delay` long, for this try.
    Again {
        ends: u64,
        delay: u64,
        attempt: u64,
        kept: u64,
    },
    Dead,
    Expired,
}

impl GivenBack {
    pub(in crate::functions) fn fate(self, tries: Tries, now: u64) -> Fate {
        let counts = !self.keep || self.kept >= 20;
        if self.dead || (counts && self.attempt >= tries.attempts) {
            return Fate::Dead;
        }
        let doubled = u128::from(tries.backoff.0) << (self.attempt - 1).min(60);
        let delay = match self.back {
            Back::Off => doubled.min(tries.backoff.1.into()) as u64,
            Back::In(ms) => ms * MS,
            Back::First(_) => 0,
        };
        let ends = if let Back::First(at) = self.back { at } else { now + delay };
        // "A retry whose back-off would end past its deadline goes to `drip:dead`."
        if self.deadline.is_some_and(|deadline| ends > deadline) {
            return Fate::Expired;
        }
        Fate::Again { ends, delay, attempt: self.attempt + u64::from(counts), kept: self.kept + u64::from(self.keep) }
    }
}

impl Model {
    pub(super) fn pending(&self) -> Vec<usize> {
        (0..self.ready.len()).filter(|n| self.ready[*n].taken_ms.is_some()).collect()
    }

    pub(super) fn fail(&mut self, now: u64, n: usize, back: Back, keep: bool, dead: bool, reason: &str) -> i64 {
        let entry = self.ready[n].clone();
        let p = self.policy(now, &entry.bucket);
        let options = entry.options();
        let Ready { attempt, kept, deadline, .. } = entry;
        let tries = Tries { attempts: p.attempts, backoff: p.backoff };
        let fate = GivenBack { attempt, kept, deadline, back, keep, dead }.fate(tries, now);
        let Fate::Again { ends, delay, attempt, kept } = fate else {
            let reason = if matches!(fate, Fate::Expired) { "expired" } else { reason };
            self.bury(&entry.bucket, entry.job, attempt, reason, options.without_deadline());
            self.finish(now, n);
            return 2;
        };
        if entry.first.is_some() {
            self.can_be_found(now, &entry.bucket, &options.id, &entry.id, (attempt, ends));
        }
        let from = format!("{} {}", entry.id, entry.route);
        let tries = (attempt, kept);
        let retry = if let Back::First(_) = back {
            Retry::first(ends, (&entry.id, &entry.route), tries, options, entry.job)
        } else {
            Retry::new(ends, delay, &from, tries, options, entry.job)
        };
        self.backs_off(now, &entry.bucket, retry);
        self.finish(now, n); // an ordered bucket waits for it by now
        1
    }

    /// A job with an id backs off: it can be found, and cancelled. Where another one with that id waits by now, that one is found.
    pub(super) fn can_be_found(&mut self, now: u64, bucket: &str, id: &str, entry: &str, (attempt, eta): (u64, u64)) {
        if !self.has_mark || self.line(bucket, id).is_some_and(|line| !line.is_cancelled() && !line.is_late(now)) {
            return;
        }
        let accepted = self.ids.get_mut(bucket).and_then(|ids| ids.remove(id)).unwrap_or(0);
        let since = self.next_since(now, bucket, Some(id));
        let line = Line { state: 'r', since, eta, attempt, accepted, deadline: 0, place: entry.into() };
        self.lines.entry(bucket.into()).or_default().insert(id.into(), line);
    }

    /// "`drip:dead` keeps cost and headers."
    pub(super) fn bury(&mut self, bucket: &str, job: String, attempt: u64, reason: &str, options: Options) {
        self.dead.push(Dead { bucket: bucket.into(), job, attempt, reason: reason.into(), options });
    }

    /// A worker is done with an entry: it was told what it cost, if at all, while it was pending.
    pub(super) fn finish(&mut self, now: u64, n: usize) -> Ready {
        let entry = self.ready.remove(n);
        self.adjusted.remove(&format!("{} {}", entry.route, entry.id));
        self.slot_freed(now, &entry);
        self.gone.push((entry.route.clone(), entry.id.clone()));
        entry
    }
}
