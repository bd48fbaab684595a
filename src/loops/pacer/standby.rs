//! Standing by: where several daemons serve a partition, the one that ranks first (`loops/ranking`) is its leader, and the others are its
//! standbys. A standby calls a little later than the leader would, so that jobs of a leader that was killed leave that much late, and
//! serves too when it finds late jobs twice running. The names of changed queues it keeps for a while: only a bucket that nobody looked
//! at meanwhile says that nobody serves.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::drainer::Drainer;
use super::schedule::{MOST_NAMES, Role};
use crate::store::heartbeat::Alive;
use crate::store::jobs::drain::Drained;
use crate::store::wake::WakeQueue;
use crate::store::{Store, StoreError};

/// The lateness from which on a job should have left before the look: nearly all of the delay of a standby.
const LATE_FROM: Duration = Duration::from_millis(20);

/// How many looks in a row must find late jobs to say that nobody serves.
const LATE_LOOKS: u32 = 2;

/// How often a standby looks for stalled buckets, while queues change; and at most at how many that changed since the last look. Where
/// nobody serves, those are stalled too, or jobs are late: so under load some tell as much as all.
const STALLED_EVERY: Duration = Duration::from_millis(250);
const REPORTED_MOST: usize = 500;

/// Names of so many of these looks are kept, for a take-over: a daemon that was killed is missed within two.
const LOOKS_KEPT: usize = 3;

/// Names of changed queues, and whether there were more.
#[derive(Debug, Default)]
struct Names {
    names: HashSet<Arc<str>>,
    is_part: bool,
}

/// Whether a daemon is the standby of a partition, or has taken over.
#[derive(Debug)]
pub(super) struct Standby {
    /// When this daemon began. It leaves the work to those that have told since then that they are alive: one that was killed before
    /// counts for alive for a while.
    began: Instant,
    /// Other daemons come first.
    follows: bool,
    /// Looks in a row that found late jobs.
    late: u32,
    /// The last look did not let out all that was due: what the next one finds is as late, and says nothing new.
    goes_on: bool,
    /// When this daemon began to serve because those that come first did not.
    took_over_at: Option<Instant>,
    /// Buckets whose queues changed since the last look for stalled ones.
    reported: Names,
    /// Those of the looks before: of one that has its turn, more may have been pushed than its capacity allows, and nobody looked.
    before: VecDeque<Names>,
    /// The buckets that may be stalled.
    stalled: StalledBuckets,
    /// When the next look for stalled buckets is due, while there is something to look at.
    stalled_at: Option<Instant>,
}

impl Standby {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            follows: false,
            late: 0,
            goes_on: false,
            took_over_at: None,
            reported: Names::default(),
            before: VecDeque::new(),
            stalled: StalledBuckets::default(),
            stalled_at: None,
        }
    }

    /// One look: let out what is due, and now and then the jobs of stalled buckets. Late jobs twice running, or jobs of stalled buckets,
    /// say that nobody serves the partition: this daemon takes over.
    pub(super) async fn look(&mut self, calls: &mut Drainer) -> Result<(), StoreError> {
        let drained = calls.call_alone().await?;
        self.called(&drained, calls.alive());
        calls.take_in(&[], &drained, self.role());
        self.keep_names(&calls.wake_queue);
        let is_time = self.is_standby() && self.stalled_at().is_some_and(|at| at <= Instant::now());
        let neglected = if is_time { self.drain_stalled(calls).await? } else { 0 };
        if neglected > 0 {
            self.take_over_at(Instant::now());
        }
        calls.set_role(self.role());
        if self.is_standby() {
            if let Some(at) = self.stalled_at() {
                calls.call_by(at);
            }
            return Ok(());
        }
        if self.took_over_at.is_some() {
            let partition = calls.number();
            info!(partition, neglected, "jobs of a partition were late: serving it too");
        }
        let kept: Vec<_> = self.before.drain(..).chain([std::mem::take(&mut self.reported)]).collect();
        if kept.iter().any(|kept| kept.is_part) {
            calls.wake_queue.names_lost();
        }
        let mut names: HashSet<_> = kept.into_iter().flat_map(|kept| kept.names).collect();
        names.extend(std::mem::take(&mut self.stalled.seen).into_keys());
        calls.wake_queue.complete(&names.into_iter().collect::<Vec<_>>(), 0);
        calls.wake_queue.ready.notify_one();
        Ok(())
    }

    /// Keep the names that were reported, for the next look for stalled buckets.
    fn keep_names(&mut self, wake_queue: &WakeQueue) {
        let names = wake_queue.take(usize::MAX);
        wake_queue.complete(&names, names.len());
        for name in names {
            // One that was seen must not count as left alone since.
            if self.reported.names.len() < REPORTED_MOST || self.stalled.seen.contains_key(&name) {
                self.reported.names.insert(name);
            } else {
                self.reported.is_part = true;
            }
        }
    }

    /// When the next look for stalled buckets is due; `None`: nothing changed since the last one.
    fn stalled_at(&mut self) -> Option<Instant> {
        if self.reported.names.is_empty() && self.stalled.seen.is_empty() {
            self.stalled_at = None;
        } else if self.stalled_at.is_none() {
            self.stalled_at = Some(Instant::now() + STALLED_EVERY);
        }
        self.stalled_at
    }

    /// Drain the buckets that are stalled. Replies how many of them were only waiting for that.
    async fn drain_stalled(&mut self, calls: &mut Drainer) -> Result<usize, StoreError> {
        let stalled = self.stalled.look(&mut calls.store, &self.reported.names).await?;
        calls.wake_queue.dirty.notify_one();
        // Until a call has looked at them: one may fail, or have no room for all.
        let names = stalled.iter().map(|(name, _)| Arc::clone(name)).collect();
        self.before.push_back(std::mem::replace(&mut self.reported, Names { names, is_part: false }));
        while self.before.len() > LOOKS_KEPT {
            self.before.pop_front();
        }
        self.stalled_at = None;
        let mut neglected = 0;
        for stalled in stalled.chunks(MOST_NAMES) {
            let names: Vec<_> = stalled.iter().map(|(name, _)| Arc::clone(name)).collect();
            let drained = calls.store.drain(&names).await?;
            calls.take_in(&[], &drained, self.role());
            let looked = &names[..drained.looked.min(names.len())];
            for name in looked {
                self.reported.names.remove(name);
            }
            let after: HashMap<_, _> = without_state(&mut calls.store, looked).await?.into_iter().collect();
            neglected += stalled[..looked.len()].iter().filter(|(name, length)| after.get(name) < Some(length)).count();
        }
        Ok(neglected)
    }

    /// A call is back.
    pub(super) fn called(&mut self, drained: &Drained, alive: Alive) {
        self.called_at(Instant::now(), drained.latest, drained.wait == Some(Duration::ZERO), alive);
    }

    /// `latest` is the lateness of the latest job that a call let out; `more`: it did not let out all that was due.
    fn called_at(&mut self, now: Instant, latest: Duration, more: bool, alive: Alive) {
        let goes_on = std::mem::replace(&mut self.goes_on, more);
        self.follows =
            alive.before > 0 && alive.last_heartbeat.is_some_and(|last_heartbeat| last_heartbeat > self.began);
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
        if self.took_over_at.is_some() || goes_on {
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

/// Buckets with jobs that had no state when a standby looked last. Nothing says when they are due, so nothing else shows that they are
/// late. A push may have come just before the look. So a bucket counts as stalled when it has no state at the next look either and its
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

/// Those of some buckets that have jobs and no state, each with the length of its queue.
async fn without_state(store: &mut Store, names: &[Arc<str>]) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
    let mut found = Vec::new();
    for names in names.chunks(NAMES_PER_CALL) {
        let left = store.without_state(names).await?;
        let lengths = store.lengths(&left).await?;
        found.extend(left.into_iter().zip(lengths).filter(|(_, length)| *length > 0));
    }
    Ok(found)
}

impl StalledBuckets {
    /// One look, with the names that were reported since the last one. Replies the buckets that are stalled, each with the length of its
    /// queue.
    async fn look(
        &mut self,
        store: &mut Store,
        touched: &HashSet<Arc<str>>,
    ) -> Result<Vec<(Arc<str>, u64)>, StoreError> {
        let untouched = self.seen.keys().filter(|name| !touched.contains(*name));
        let names: Vec<Arc<str>> = untouched.chain(touched).cloned().collect();
        let waiting = without_state(store, &names).await?;
        Ok(self.found(touched, waiting))
    }

    /// The buckets of a look that have jobs and no state, each with the length of its queue.
    fn found(&mut self, touched: &HashSet<Arc<str>>, waiting: Vec<(Arc<str>, u64)>) -> Vec<(Arc<str>, u64)> {
        let before = std::mem::take(&mut self.seen);
        let mut stalled_buckets = Vec::new();
        for (name, length) in waiting {
            let grew = match before.get(&name) {
                Some(_) if !touched.contains(&name) => GROWTHS,
                Some(seen) if length > seen.length => seen.grew + 1,
                _ => 0,
            };
            if grew >= GROWTHS {
                stalled_buckets.push((name, length));
            } else {
                self.seen.insert(name, Seen { length, grew });
            }
        }
        stalled_buckets
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
        let mut begins_later = Standby::new(start);
        begins_later.called_at(start, Duration::ZERO, false, one_before);
        assert!(!begins_later.is_standby(), "that one may have been killed before");
        let mut standby = Standby::new(start.checked_sub(LATE_FROM).expect("the machine runs for longer"));
        let mut look = |ms, late_ms, alive| {
            standby.called_at(after(ms), Duration::from_millis(late_ms), late_ms == 60, alive);
            standby.is_standby()
        };
        assert!(look(200, 60, one_before), "Redis stood still: the first may be about to call");
        assert!(look(201, 59, one_before), "the rest of it");
        assert!(look(225, 3, one_before));
        assert!(look(250, 24, one_before), "the first may have been late once");
        assert!(look(275, 3, one_before));
        assert!(look(300, 24, one_before));
        assert!(!look(1_000, 26, one_before), "twice in a row");
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
            let found = waiting.iter().map(|(text, length)| (name(text), *length)).collect();
            let found = stalled.found(&touched.iter().map(|text| name(text)).collect(), found);
            found.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(look(&["lies", "busy", "grows"], &[("lies", 1), ("busy", 1), ("grows", 1)]), "");
        assert_eq!(look(&["busy", "grows"], &[("lies", 1), ("busy", 1), ("grows", 9)]), "lies");
        assert_eq!(look(&["busy", "grows"], &[("busy", 2), ("grows", 17)]), "grows");
        assert_eq!(look(&["busy", "served"], &[("busy", 1), ("served", 1)]), "", "it was shorter in between");
        assert_eq!(look(&["busy"], &[("busy", 2)]), "", "one that had its turn is forgotten");
    }
}
