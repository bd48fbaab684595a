//! When the pacer of a partition calls next, and how many names go with the call.

use std::time::{Duration, Instant};

use crate::store::jobs::drain::Drained;

/// The longest sleep: the safety net behind the wake-ups.
const LONGEST_NAP: Duration = Duration::from_secs(30);

/// How long to wait before a call is repeated that the partition cannot answer yet: its slot is on the move, or its cluster takes no calls.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// How long to wait where no record is stored, for nothing is looked at without one: at first, and at most. A daemon stores its own at
/// once, but in other partitions than the authority only when the authority can be reached.
const RECORD_SOON: Duration = Duration::from_millis(5);
const RECORD_LATER: Duration = Duration::from_secs(1);

/// How many names may go with a call, however few or many jobs left with the last one.
const FEWEST_NAMES: usize = 100;
pub(super) const MOST_NAMES: usize = 500;

/// How much later than a leader a standby calls: after something is due, or a queue or the wake key changed.
pub(super) const STANDBY_DELAY: Duration = Duration::from_millis(25);

/// The role of a daemon in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The daemon calls as soon as something is due or a queue changed.
    Leader,
    /// The daemon calls a little later than the leader, and finds that nothing is left to do.
    Standby,
}

/// How often the calls of a leader take names along: `NAMES_BURST` at once, then one in `NAMES_EVERY`. A call that the names fill does
/// not wait. So a queue is looked at as soon as it is reported, and under load one call stands for many.
const NAMES_EVERY: Duration = Duration::from_millis(2);
const NAMES_BURST: u32 = 8;

/// The next call of one pacer.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) role: Role,
    /// When the next bucket is due, as the last reply says.
    due: Instant,
    /// No call before that: the partition was on the move, or had no record.
    not_before: Instant,
    /// How long to wait for a record when the next call finds none.
    record_in: Duration,
    /// When the calls that took names along so far will have been paid for, one `NAMES_EVERY` each.
    paid: Instant,
    /// How many names go with the next call: more than jobs left with the last one, for each of them brings its bucket back; and
    /// no more than the last one looked at, where it had no room for all.
    names: usize,
    /// The last call had no room for all of its names: the next one goes at once.
    left_over: bool,
}

impl Schedule {
    /// The first call is due now.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            role: Role::Leader,
            due: now,
            not_before: now,
            record_in: RECORD_SOON,
            paid: now,
            names: FEWEST_NAMES,
            left_over: false,
        }
    }

    /// How many names fill a call. When so many wait, the call is made at once.
    pub(super) fn enough_names(&self) -> usize {
        self.names
    }

    /// A call takes names along.
    pub(super) fn took_names(&mut self, now: Instant) {
        self.paid = self.paid.max(now) + NAMES_EVERY;
    }

    /// Something may be due now that the last reply did not know of.
    pub(super) fn may_be_due(&mut self, now: Instant) {
        self.call_by(if self.role == Role::Standby { now + STANDBY_DELAY } else { now });
    }

    /// Call by then, whatever the last reply said.
    pub(super) fn call_by(&mut self, at: Instant) {
        self.due = self.due.min(at);
    }

    /// The partition cannot answer yet.
    pub(super) fn retry_later(&mut self, now: Instant) {
        self.not_before = now + RETRY_DELAY;
        (self.due, self.left_over) = (self.not_before, false);
    }

    /// A call with so many names is back.
    pub(super) fn called(&mut self, now: Instant, woken: usize, drained: &Drained) {
        self.left_over = drained.looked < woken && drained.record.is_some();
        let left = usize::try_from(drained.dispatched).unwrap_or(MOST_NAMES);
        let names = if self.left_over { drained.looked } else { left + left / 2 };
        self.names = names.clamp(FEWEST_NAMES, MOST_NAMES);
        self.due = now + drained.wait.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
        if drained.record.is_none() {
            self.due = now + self.record_in;
            self.not_before = self.due; // names that wait change nothing
            self.record_in = (self.record_in * 2).min(RECORD_LATER);
        } else {
            self.record_in = RECORD_SOON;
        }
        if self.role == Role::Standby && drained.wait != Some(Duration::ZERO) {
            self.due += STANDBY_DELAY;
        }
    }

    /// How long to sleep, while so many names wait.
    pub(super) fn nap(&self, now: Instant, waiting: usize) -> Duration {
        let at = self.names_at(now, waiting).map_or(self.due, |at| at.min(self.due));
        at.max(self.not_before).saturating_duration_since(now)
    }

    /// When the names that wait may go with a call; none where none waits, or where this daemon takes none along.
    fn names_at(&self, now: Instant, waiting: usize) -> Option<Instant> {
        if waiting == 0 || self.role == Role::Standby {
            return None;
        }
        if waiting >= self.names || self.left_over {
            return Some(now);
        }
        Some(self.paid.checked_sub(NAMES_EVERY * (NAMES_BURST - 1)).unwrap_or(self.paid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(wait: Option<Duration>, looked: usize) -> Drained {
        let (latest, record) = (Duration::ZERO, Some("a".to_owned()));
        Drained { wait, dispatched: 0, rejected: 0, latest, record, spreading: false, notes: Vec::new(), looked }
    }

    #[test]
    fn the_role_decides_how_soon_after_a_reply_the_next_call_is_made() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let nap = |role, wait, waiting| {
            let mut schedule = Schedule { role, ..Schedule::new(now) };
            schedule.called(now, 0, &drained(wait, 0));
            schedule.nap(now, waiting)
        };
        assert_eq!(nap(Role::Leader, Some(second), 0), second);
        assert_eq!(nap(Role::Leader, Some(second), 1), Duration::ZERO, "a name waits");
        assert_eq!(nap(Role::Leader, None, 0), LONGEST_NAP);
        assert_eq!(nap(Role::Standby, Some(second), 0), second + STANDBY_DELAY);
        assert_eq!(nap(Role::Standby, Some(second), 1), second + STANDBY_DELAY, "it takes no names along");
        assert_eq!(nap(Role::Standby, None, 0), LONGEST_NAP + STANDBY_DELAY);
        for role in [Role::Leader, Role::Standby] {
            assert_eq!(nap(role, Some(Duration::ZERO), 0), Duration::ZERO, "more is due");
        }
    }

    #[test]
    fn a_standby_calls_a_little_later_than_something_may_be_due_however_often_that_is_said() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut schedule = Schedule { role: Role::Standby, ..Schedule::new(start) };
        schedule.called(start, 0, &drained(Some(second), 0));
        for ms in [100, 110, 120] {
            schedule.may_be_due(start + Duration::from_millis(ms));
        }
        assert_eq!(schedule.nap(start, 1), Duration::from_millis(100) + STANDBY_DELAY);
        schedule.role = Role::Leader;
        schedule.may_be_due(start);
        assert_eq!(schedule.nap(start, 0), Duration::ZERO);
    }

    #[test]
    fn calls_with_names_are_spaced_after_a_burst_unless_the_names_fill_a_call() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.called(now, 0, &drained(None, 0));
        for _ in 0..NAMES_BURST {
            assert_eq!(schedule.nap(now, 1), Duration::ZERO);
            schedule.took_names(now);
        }
        assert!(schedule.nap(now, 1) > Duration::ZERO);
        assert_eq!(schedule.nap(now, FEWEST_NAMES), Duration::ZERO);
        schedule.called(now, 9, &drained(None, 5));
        assert_eq!(schedule.nap(now, 4), Duration::ZERO, "the last call had no room for them");
        schedule.retry_later(now);
        assert_eq!(schedule.nap(now, FEWEST_NAMES), RETRY_DELAY, "the partition is on the move");
    }
}
