//! Standing by: where a system has several partitions, the daemon that ranks first in a partition serves it, and the others are its
//! standbys. A standby looks four times a second whether something is late, and serves too when the first daemon does not.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::drainer::Drainer;
use super::schedule::{MOST_NAMES, Role};
use crate::store::heartbeat::Alive;
use crate::store::{Store, StoreError};

/// The lateness from which on a job should have left before the look.
const LATE_FROM: Duration = Duration::from_millis(100);

/// How many looks in a row must find late jobs to say that nobody serves.
const LATE_LOOKS: u32 = 2;

/// Whether a daemon is the standby of a partition, or has taken over.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// Other daemons come first.
    follows: bool,
    /// Looks in a row that found late jobs.
    late: u32,
    /// When this daemon began to serve because those that come first did not.
    took_over_at: Option<Instant>,
    /// The buckets that may be stalled.
    stalled: StalledBuckets,
}

impl Standby {
    /// One look: let out what is due, and then the jobs of stalled buckets. Late jobs twice running, or jobs of stalled buckets, say
    /// that nobody serves the partition: this daemon takes over.
    pub(super) async fn look(&mut self, calls: &mut Drainer) -> Result<(), StoreError> {
        let drained = calls.call_alone().await?;
        self.called(drained.latest, calls.alive());
        calls.take_in(&[], &drained, self.role());
        let neglected = self.drain_stalled(calls).await?;
        if neglected > 0 {
            self.take_over_at(Instant::now());
        }
        calls.set_role(self.role());
        if !self.is_standby() {
            if self.took_over_at.is_some() {
                let partition = calls.number();
                info!(partition, neglected, "jobs of a partition were late: serving it too");
            }
            calls.wake_queue.complete(&self.stalled.take(), 0);
            calls.wake_queue.ready.notify_one();
        }
        Ok(())
    }

    /// Drain the buckets that are stalled. Replies how many of them were only waiting for that.
    async fn drain_stalled(&mut self, calls: &mut Drainer) -> Result<usize, StoreError> {
        let reported = calls.wake_queue.take(usize::MAX);
        if !reported.is_empty() {
            calls.wake_queue.dirty.notify_one();
        }
        let stalled = self.stalled.look(&mut calls.store, &reported).await;
        calls.wake_queue.complete(&reported, if stalled.is_ok() { reported.len() } else { 0 });
        let mut neglected = 0;
        for names in stalled?.chunks(MOST_NAMES) {
            let drained = calls.store.drain(names).await?;
            calls.take_in(&[], &drained, self.role());
            // A bucket that waits for a slot, or within a budget, has no turn afterwards either.
            neglected += names.len() - calls.store.without_turn(names).await?.len();
        }
        Ok(neglected)
    }

    /// A call is back. `latest` is the lateness of the latest job that it let out.
    pub(super) fn called(&mut self, latest: Duration, alive: Alive) {
        self.called_at(Instant::now(), latest, alive);
    }

    fn called_at(&mut self, now: Instant, latest: Duration, alive: Alive) {
        self.follows = alive.before > 0;
        if !self.follows {
            (self.late, self.took_over_at) = (0, None);
            return;
        }
        if self
            .took_over_at
            .is_some_and(|since| alive.last_heartbeat.is_some_and(|last_heartbeat| last_heartbeat > since))
        {
            self.took_over_at = None; // all that come first have said since that they are alive
        }
        if self.took_over_at.is_some() {
            return;
        }
        self.late = if latest >= LATE_FROM { self.late + 1 } else { 0 };
        if self.late >= LATE_LOOKS {
            self.take_over_at(now);
        }
    }

    fn take_over_at(&mut self, now: Instant) {
        (self.late, self.took_over_at) = (0, Some(now));
    }

    /// Whether this daemon leaves the partition to others, and looks only now and then.
    pub(super) fn is_standby(&self) -> bool {
        self.follows && self.took_over_at.is_none()
    }

    pub(super) fn role(&self) -> Role {
        if self.is_standby() { Role::Standby } else { Role::Leader }
    }
}

/// Buckets with jobs that had no turn when a standby looked last. Nothing says when they are due, so nothing else shows that they are
/// late. A push may have come just before the look. So a bucket counts as stalled when it has no turn at the next look either and its
/// queue was not touched meanwhile, or when its queue grew from look to look.
#[derive(Debug, Default)]
struct StalledBuckets {
    seen: HashMap<Arc<str>, Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    length: u64,
    /// Looks in a row that found its queue longer.
    grew: u32,
}

/// How many looks in a row must find a queue longer to say that nobody serves it.
const GROWTHS: u32 = 2;

/// How many buckets one call asks for.
const NAMES_PER_CALL: usize = 500;

impl StalledBuckets {
    /// One look, with the names that were reported since the last one. Replies the buckets that are stalled.
    async fn look(&mut self, store: &mut Store, reported: &[Arc<str>]) -> Result<Vec<Arc<str>>, StoreError> {
        let touched: HashSet<&Arc<str>> = reported.iter().collect();
        let untouched = self.seen.keys().filter(|name| !touched.contains(name)).cloned();
        let names: Vec<Arc<str>> = untouched.chain(reported.iter().cloned()).collect();
        let mut waiting = Vec::new();
        for names in names.chunks(NAMES_PER_CALL) {
            let left = store.without_turn(names).await?;
            let lengths = store.lengths(&left).await?;
            waiting.extend(left.into_iter().zip(lengths).filter(|(_, length)| *length > 0));
        }
        Ok(self.found(&touched, waiting))
    }

    /// The buckets of a look that have jobs and no turn, each with the length of its queue.
    fn found(&mut self, touched: &HashSet<&Arc<str>>, waiting: Vec<(Arc<str>, u64)>) -> Vec<Arc<str>> {
        let before = std::mem::take(&mut self.seen);
        let mut stalled_buckets = Vec::new();
        for (name, length) in waiting {
            let grew = match before.get(&name) {
                Some(_) if !touched.contains(&name) => GROWTHS,
                Some(seen) if length > seen.length => seen.grew + 1,
                _ => 0,
            };
            if grew >= GROWTHS {
                stalled_buckets.push(name);
            } else {
                self.seen.insert(name, Seen { length, grew });
            }
        }
        stalled_buckets
    }

    /// All names that are known, for whoever serves from now on.
    fn take(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.seen).into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_over_after_two_late_looks_until_those_that_come_first_are_seen_alive() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let one_before = Alive { daemons: 2, before: 1, rejections: 0, last_heartbeat: Some(start) };
        let mut standby = Standby::default();
        let mut look = |ms, late_ms, alive| {
            standby.called_at(after(ms), Duration::from_millis(late_ms), alive);
            standby.is_standby()
        };
        assert!(look(250, 240, one_before), "the first may have been late once");
        assert!(look(500, 3, one_before));
        assert!(look(750, 240, one_before));
        assert!(!look(1_000, 120, one_before), "twice in a row");
        assert!(!look(1_010, 0, one_before), "it serves, so nothing is late any more");
        let heard = Alive { last_heartbeat: Some(after(900)), ..one_before };
        assert!(!look(5_000, 0, heard), "that was before it stepped in");
        let heard = Alive { last_heartbeat: Some(after(5_900)), ..one_before };
        assert!(look(6_000, 0, heard), "the first is back");
        let alone = Alive { daemons: 1, before: 0, rejections: 0, last_heartbeat: None };
        assert!(!look(6_010, 500, alone));
        assert!(look(6_020, 500, one_before), "what was late before counts no more");
    }

    #[test]
    fn a_bucket_is_stalled_that_is_left_lying_or_grows_and_not_one_that_was_pushed_to_just_before_each_look() {
        let name = |text: &str| Arc::<str>::from(text);
        let mut stalled = StalledBuckets::default();
        let mut look = |touched: &[&str], waiting: &[(&str, u64)]| {
            let touched: Vec<Arc<str>> = touched.iter().map(|text| name(text)).collect();
            let found = waiting.iter().map(|(text, length)| (name(text), *length)).collect();
            stalled.found(&touched.iter().collect(), found).join(" ")
        };
        assert_eq!(look(&["lies", "busy", "grows"], &[("lies", 1), ("busy", 1), ("grows", 1)]), "");
        assert_eq!(look(&["busy", "grows"], &[("lies", 1), ("busy", 1), ("grows", 9)]), "lies");
        assert_eq!(look(&["busy", "grows"], &[("busy", 2), ("grows", 17)]), "grows");
        assert_eq!(look(&["busy", "served"], &[("busy", 1), ("served", 1)]), "", "it was shorter in between");
        assert_eq!(look(&["busy"], &[("busy", 2)]), "", "one that had its turn is forgotten");
    }
}
