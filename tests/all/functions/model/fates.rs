//! What becomes of a job that has left its bucket, as the model knows it.

use super::jobs::{Dead, Line, Options, Ready, Retry};
use super::reference::Model;
use crate::rig::MS;

/// When a job that failed may leave again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Back {
    /// After its back-off.
    Off,
    /// In so many milliseconds.
    In(u64),
    /// The other side turned it away: since this moment, "first, in the order of their first dispatch".
    First(u64),
}

impl Model {
    pub(super) fn pending(&self) -> Vec<usize> {
        (0..self.ready.len()).filter(|n| self.ready[*n].taken_ms.is_some()).collect()
    }

    pub(super) fn fail(&mut self, now: u64, n: usize, back: Back, keep: bool, dead: bool, reason: &str) -> i64 {
        let entry = self.finish(now, n);
        let p = self.policy(now, &entry.bucket);
        let options = entry.options();
        let counts = !keep || entry.kept >= 20;
        if dead || (counts && entry.attempt >= p.attempts) {
            self.bury(&entry.bucket, entry.job, entry.attempt, reason, options.without_deadline());
            return 2;
        }
        let doubled = u128::from(p.backoff.0) << (entry.attempt - 1).min(60);
        let delay = match back {
            Back::Off => doubled.min(p.backoff.1.into()) as u64,
            Back::In(ms) => ms * MS,
            Back::First(_) => 0,
        };
        let ends = if let Back::First(at) = back { at } else { now + delay };
        // "A retry whose back-off would end past its deadline goes to `drip:dead`."
        if options.deadline.is_some_and(|deadline| ends > deadline) {
            self.bury(&entry.bucket, entry.job, entry.attempt, "expired", options.without_deadline());
            return 2;
        }
        let (attempt, kept) = (entry.attempt + u64::from(counts), entry.kept + u64::from(keep));
        if entry.first.is_some() {
            self.backs_off(&entry.bucket, &options.id, attempt, ends);
        }
        let from = format!("{} {}", entry.id, entry.route);
        let tries = (attempt, kept);
        let retry = if let Back::First(_) = back {
            Retry::first(ends, (&entry.id, &entry.route), tries, options, entry.job)
        } else {
            Retry::new(ends, delay, &from, tries, options, entry.job)
        };
        self.retries.entry(entry.bucket.clone()).or_default().insert(retry);
        self.expect(&entry.bucket, ends);
        1
    }

    /// A job of a remembered id backs off: that can be found, and cancelled.
    fn backs_off(&mut self, bucket: &str, id: &str, attempt: u64, ends: u64) {
        let Some(accepted) = self.ids.get(bucket).and_then(|ids| ids.get(id)).copied() else { return };
        let lines = self.lines.entry(bucket.into()).or_default();
        if lines.get(id).is_none_or(|line| line.state == 'r') {
            lines.insert(id.into(), Line { state: 'r', accepted, eta: ends, attempt });
        }
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
        entry
    }
}
