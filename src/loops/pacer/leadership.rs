//! Leadership: which daemon serves a partition when several serve one Redis.
//!
//! There are two schemes. In the only partition of a system every daemon serves, and any of them may do all the work without knowing of
//! the others; but when all call at once, all but one find nothing to do. So the oldest calls first, and the others follow: they call a
//! little later, and find that nothing is left. A follower that finds something several times in a row takes it that the oldest is
//! dead or too slow, and calls as early as the oldest would, for a while. Until then the jobs leave 5 ms late.
//!
//! Where a system has several partitions each daemon serves those in which it ranks first, and is the standby in the others. A standby
//! calls four times a second however busy the partition is, so that daemons may be added for little Redis time; a killed daemon costs its
//! partitions up to 0.6 s.

use std::time::{Duration, Instant};

use super::schedule::Role;
use super::standby::Standby;
use crate::store::Partition;
use crate::store::heartbeat::Alive;
use crate::store::jobs::drain::Drained;

/// How many calls in a row must find something to say that the older daemon does not do the work.
const TAKE_OVER_AFTER: u32 = 3;

/// How long a follower calls early then, at first and at most. The time doubles whenever the work was left to it again.
const FIRST_LEAD: Duration = Duration::from_millis(100);
const LONGEST_LEAD: Duration = Duration::from_secs(10);

/// Whether a daemon leaves a partition to another one, by the scheme of its system.
#[derive(Debug)]
pub(super) enum Leadership {
    /// The only partition of a system.
    SinglePartition(Follower),
    /// One of several partitions.
    Shared(Standby),
}

impl Leadership {
    pub(super) fn of(partition: &Partition) -> Self {
        if partition.is_single() {
            Self::SinglePartition(Follower::default())
        } else {
            Self::Shared(Standby::default())
        }
    }

    /// A call is back. `alive` are the daemons that serve the partition.
    pub(super) fn called(&mut self, drained: &Drained, alive: Alive) {
        match self {
            Self::SinglePartition(follower) => follower.called(drained.dispatched + drained.rejected > 0, alive),
            Self::Shared(standby) => standby.called(drained.latest, alive),
        }
    }

    pub(super) fn role(&self) -> Role {
        match self {
            Self::SinglePartition(follower) if follower.is_follower() => Role::Follower,
            Self::SinglePartition(_) => Role::Leader,
            Self::Shared(standby) => standby.role(),
        }
    }
}

/// Whether a daemon follows an older one.
#[derive(Debug)]
pub(super) struct Follower {
    /// An older daemon is alive.
    follows: bool,
    /// Calls in a row that found something while this daemon followed.
    found: u32,
    /// Until then this daemon calls early all the same.
    until: Option<Instant>,
    /// How long it calls early the next time.
    next: Duration,
}

impl Default for Follower {
    fn default() -> Self {
        Self { follows: false, found: 0, until: None, next: FIRST_LEAD }
    }
}

impl Follower {
    /// A call is back. `found_work`: it let out or rejected something.
    fn called(&mut self, found_work: bool, alive: Alive) {
        self.called_at(Instant::now(), found_work, alive);
    }

    fn called_at(&mut self, now: Instant, found_work: bool, alive: Alive) {
        self.follows = alive.before > 0;
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.until = None;
        if !found_work {
            (self.found, self.next) = (0, FIRST_LEAD);
            return;
        }
        self.found += 1;
        if self.found >= TAKE_OVER_AFTER {
            self.until = Some(now + self.next);
            (self.found, self.next) = (0, (self.next * 2).min(LONGEST_LEAD));
        }
    }

    /// Whether this daemon leaves the work to an older one.
    fn is_follower(&self) -> bool {
        self.follows && self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_OF_TWO: Alive = Alive { daemons: 2, before: 0, rejections: 0, last_heartbeat: None };
    const SECOND: Alive = Alive { daemons: 2, before: 1, rejections: 0, last_heartbeat: None };

    #[test]
    fn the_oldest_never_follows() {
        let (mut leadership, now) = (Follower::default(), Instant::now());
        for found in [true, false, false, false, false, true] {
            leadership.called_at(now, found, FIRST_OF_TWO);
            assert!(!leadership.is_follower());
        }
    }

    #[test]
    fn a_younger_one_takes_over_while_work_is_left_to_it() {
        let (mut leadership, now) = (Follower::default(), Instant::now());
        let mut call = |after: Duration, found: bool| {
            leadership.called_at(now + after, found, SECOND);
            leadership.is_follower()
        };
        assert!(call(Duration::ZERO, true), "the older one may have been late once");
        assert!(call(Duration::ZERO, false));
        assert!(call(Duration::ZERO, true));
        assert!(call(Duration::ZERO, true));
        assert!(!call(Duration::ZERO, true), "three in a row: it does not do the work");
        assert!(
            !call(FIRST_LEAD / 2, false),
            "asking early it finds something or nothing: that says nothing of the older one"
        );
        assert!(call(FIRST_LEAD, true), "does it still not?");
        assert!(call(FIRST_LEAD, true));
        assert!(!call(FIRST_LEAD, true));
        assert!(!call(FIRST_LEAD * 2, true), "twice as long this time");
        assert!(call(FIRST_LEAD * 3, false), "the older one is back");
        for _ in 0..2 {
            assert!(call(FIRST_LEAD * 4, true));
        }
        assert!(!call(FIRST_LEAD * 4, true));
        assert!(call(FIRST_LEAD * 5, true), "and it begins with a short while again");
    }
}
