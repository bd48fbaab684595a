//! Which daemon serves which partition, where a system has several. It is a preference, of which nothing is stored: any daemon may
//! serve any partition at any time. Each ranks those that are alive, for each partition, by a hash of both names (rendezvous hashing:
//! Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996), so all come to the same order without a word, and when
//! one joins or leaves only its own partitions move. The first serves by wake-ups and timer. The others stand by: they look four times
//! a second whether something is late, and serve too when the first does not.

use std::time::{Duration, Instant};

use crate::store::beat::{Alive, Beaten};

/// How often a daemon looks that stands by.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A job that a look lets out so late should have left before.
const LATE: Duration = Duration::from_millis(100);

/// So many looks in a row that found late jobs say that nobody serves.
const LATE_LOOKS: u32 = 2;

/// Whether a daemon stands by in one partition.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Others come first.
    follows: bool,
    /// Looks in a row that found late jobs.
    late: u32,
    /// It serves since then, for those that come first did not.
    stepped_in: Option<Instant>,
}

impl Share {
    /// A call is back that let out what was late by as much, at most; and who is alive.
    pub(super) fn called(&mut self, latest: Duration, alive: Alive) {
        self.called_at(Instant::now(), latest, alive);
    }

    fn called_at(&mut self, now: Instant, latest: Duration, alive: Alive) {
        self.follows = alive.before > 0;
        if !self.follows {
            (self.late, self.stepped_in) = (0, None);
            return;
        }
        if self.stepped_in.is_some_and(|since| alive.beaten.is_some_and(|beaten| beaten > since)) {
            self.stepped_in = None; // all that come first have told since that they are alive
        }
        if self.stepped_in.is_some() {
            return;
        }
        self.late = if latest >= LATE { self.late + 1 } else { 0 };
        if self.late >= LATE_LOOKS {
            self.step_in_at(now);
        }
    }

    /// Jobs were found that wait, and nobody has looked at their queue.
    pub(super) fn step_in(&mut self) {
        self.step_in_at(Instant::now());
    }

    fn step_in_at(&mut self, now: Instant) {
        (self.late, self.stepped_in) = (0, Some(now));
    }

    /// Whether it serves because those that come first did not.
    pub(super) fn stepped_in(&self) -> bool {
        self.stepped_in.is_some()
    }

    /// Whether it leaves the partition to others, and looks only now and then.
    pub(super) fn stands_by(&self) -> bool {
        self.follows && self.stepped_in.is_none()
    }
}

/// How many of the daemons that are alive come before one in a partition, and when the last of those told that it is alive.
pub(super) fn rank(partition: u8, id: &str, beaten: &[Beaten]) -> (usize, Option<Instant>) {
    let own = (weight(partition, id), id);
    let before =
        beaten.iter().filter(|other| other.id != id && (weight(partition, &other.id), other.id.as_str()) > own);
    let (mut count, mut oldest) = (0, None);
    for other in before {
        count += 1;
        oldest = Some(oldest.map_or(other.at, |at: Instant| at.min(other.at)));
    }
    (count, oldest)
}

/// A number for each pair of names that any daemon of any version comes to: FNV-1a of 64 bits (Fowler, Noll, Vo), and at its end the
/// mixing of `SplitMix64` (Steele, Lea, Flood), for names that differ in their last letters only.
fn weight(partition: u8, id: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let named = id.bytes().chain([partition]).fold(0xcbf2_9ce4_8422_2325, hash);
    let mixed = (named ^ (named >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(ids: &[String]) -> Vec<Beaten> {
        ids.iter().map(|id| Beaten { id: id.clone(), at: Instant::now(), connection: None }).collect()
    }

    fn ids(n: usize) -> Vec<String> {
        (0..n).map(|n| format!("host-{n}-0000000{n}")).collect()
    }

    fn first_of(partition: u8, ids: &[String]) -> Vec<&String> {
        ids.iter().filter(|id| rank(partition, id, &alive(ids)).0 == 0).collect()
    }

    #[test]
    fn every_partition_has_one_first_and_each_daemon_its_part() {
        let ids = ids(4);
        let mut firsts = vec![0; ids.len()];
        for partition in 0..64 {
            let first = first_of(partition, &ids);
            assert_eq!(first.len(), 1, "{partition}: {first:?}");
            firsts[ids.iter().position(|id| id == first[0]).expect("one of them")] += 1;
        }
        assert!(firsts.iter().all(|n| (8..=26).contains(n)), "{firsts:?}");
    }

    #[test]
    fn when_one_leaves_only_its_partitions_move() {
        let all = ids(5);
        for partition in 0..64 {
            let before = first_of(partition, &all)[0];
            for gone in all.iter().filter(|id| *id != before) {
                let rest: Vec<_> = all.iter().filter(|id| *id != gone).cloned().collect();
                assert_eq!(first_of(partition, &rest)[0], before);
            }
        }
    }

    #[test]
    fn it_steps_in_after_two_late_looks_until_those_that_come_first_are_seen_alive() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let one_before = Alive { daemons: 2, before: 1, rejections: 0, beaten: Some(start) };
        let mut share = Share::default();
        let mut look = |ms, late_ms, alive| {
            share.called_at(after(ms), Duration::from_millis(late_ms), alive);
            share.stands_by()
        };
        assert!(look(250, 240, one_before), "the first may have been late once");
        assert!(look(500, 3, one_before));
        assert!(look(750, 240, one_before));
        assert!(!look(1_000, 120, one_before), "twice in a row");
        assert!(!look(1_010, 0, one_before), "it serves, so nothing is late any more");
        let heard = Alive { beaten: Some(after(900)), ..one_before };
        assert!(!look(5_000, 0, heard), "that was before it stepped in");
        let heard = Alive { beaten: Some(after(5_900)), ..one_before };
        assert!(look(6_000, 0, heard), "the first is back");
        let alone = Alive { daemons: 1, before: 0, rejections: 0, beaten: None };
        assert!(!look(6_010, 500, alone));
        assert!(look(6_020, 500, one_before), "what was late before counts no more");
    }
}
