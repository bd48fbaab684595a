//! Whose turn it is when several daemons serve one Redis. Any of them may do all the work, and need not know of the others; but
//! when all ask at once, all but one ask for nothing. So the oldest asks first, and the others stand back: they ask a little later,
//! and find that nothing is left to do. If something is left, several times in a row, the oldest is dead or too slow, and the
//! one that found it asks as early as the oldest would, for a while. Where a system has several partitions, each daemon has its own
//! (`share`), and stands by in the others.

use std::time::{Duration, Instant};

use crate::loops::share::Share;
use crate::store::Partition;
use crate::store::beat::Alive;
use crate::store::reply::Drained;

/// How much later than due a daemon asks that stands back, and how long it keeps the names of changed queues.
pub(super) const STAND_BACK: Duration = Duration::from_millis(5);

/// So many calls in a row that found something say that the older daemon does not do the work.
const FOUND: u32 = 3;

/// For how long a daemon asks early then, at first and at most: each time that the work was left again, twice as long.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Whether a daemon leaves a partition to another one, and how.
#[derive(Debug)]
pub(super) enum Turn {
    /// The only partition of a system: all are ready to do all the work.
    OfAll(Follow),
    /// One of several.
    Shared(Share),
}

impl Turn {
    pub(super) fn of(partition: &Partition) -> Self {
        if partition.is_whole() { Self::OfAll(Follow::default()) } else { Self::Shared(Share::default()) }
    }

    /// A call is back; and who is alive.
    pub(super) fn called(&mut self, drained: &Drained, alive: Alive) {
        match self {
            Self::OfAll(follow) => follow.called(drained.dispatched + drained.rejected > 0, alive),
            Self::Shared(share) => share.called(drained.latest, alive),
        }
    }

    /// Jobs were found that wait, and nobody has looked at their queue.
    pub(super) fn step_in(&mut self) {
        if let Self::Shared(share) = self {
            share.step_in();
        }
    }

    /// Whether it serves because another one did not.
    pub(super) fn stepped_in(&self) -> bool {
        matches!(self, Self::Shared(share) if share.stepped_in())
    }

    /// Whether this daemon asks a little later than due, for an older one does the work.
    pub(super) fn stands_back(&self) -> bool {
        matches!(self, Self::OfAll(follow) if follow.stands_back())
    }

    /// Whether this daemon only looks now and then whether another one does the work.
    pub(super) fn stands_by(&self) -> bool {
        matches!(self, Self::Shared(share) if share.stands_by())
    }
}

/// Whether a daemon stands back behind an older one.
#[derive(Debug)]
pub(super) struct Follow {
    /// An older daemon is alive.
    follows: bool,
    /// Calls in a row that found something while it stood back.
    found: u32,
    /// Until then it asks early all the same.
    until: Option<Instant>,
    /// For how long it asks early the next time.
    next: Duration,
}

impl Default for Follow {
    fn default() -> Self {
        Self { follows: false, found: 0, until: None, next: FIRST }
    }
}

impl Follow {
    /// A call is back: whether it let out or rejected anything, and who is alive.
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
            (self.found, self.next) = (0, FIRST);
            return;
        }
        self.found += 1;
        if self.found >= FOUND {
            self.until = Some(now + self.next);
            (self.found, self.next) = (0, (self.next * 2).min(LONGEST));
        }
    }

    /// Whether this daemon leaves the work to an older one.
    fn stands_back(&self) -> bool {
        self.follows && self.until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_OF_TWO: Alive = Alive { daemons: 2, before: 0, rejections: 0, beaten: None };
    const SECOND: Alive = Alive { daemons: 2, before: 1, rejections: 0, beaten: None };

    #[test]
    fn the_oldest_never_stands_back() {
        let (mut turn, now) = (Follow::default(), Instant::now());
        for found in [true, false, false, false, false, true] {
            turn.called_at(now, found, FIRST_OF_TWO);
            assert!(!turn.stands_back());
        }
    }

    #[test]
    fn a_younger_one_takes_over_while_work_is_left_to_it() {
        let (mut turn, now) = (Follow::default(), Instant::now());
        let mut call = |after: Duration, found: bool| {
            turn.called_at(now + after, found, SECOND);
            turn.stands_back()
        };
        assert!(call(Duration::ZERO, true), "the older one may have been late once");
        assert!(call(Duration::ZERO, false));
        assert!(call(Duration::ZERO, true));
        assert!(call(Duration::ZERO, true));
        assert!(!call(Duration::ZERO, true), "three in a row: it does not do the work");
        assert!(
            !call(FIRST / 2, false),
            "asking early it finds something or nothing: that says nothing of the older one"
        );
        assert!(call(FIRST, true), "does it still not?");
        assert!(call(FIRST, true));
        assert!(!call(FIRST, true));
        assert!(!call(FIRST * 2, true), "twice as long this time");
        assert!(call(FIRST * 3, false), "the older one is back");
        for _ in 0..2 {
            assert!(call(FIRST * 4, true));
        }
        assert!(!call(FIRST * 4, true));
        assert!(call(FIRST * 5, true), "and it begins with a short while again");
    }
}
