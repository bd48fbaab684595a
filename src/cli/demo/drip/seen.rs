//! What the demo sees: its buckets, and what becomes of its daemons.

use super::super::bucket::{Bucket, now_us};
use super::Planned;

/// What the screen shows is so old: by then the workers have handed over what left a bucket before it.
const SHOWN_LATE_US: u64 = 100_000;

/// Everything that the demo saw.
pub(super) struct Seen {
    pub(super) buckets: Vec<Bucket>,
    pub(super) start_us: u64,
    /// When the workers stopped, and when they came back.
    pub(super) away: Option<(u64, Option<u64>)>,
    /// When the first daemon was killed, and what waited in each bucket then.
    pub(super) killed: Option<Kill>,
    /// The daemons that run: their numbers and processes.
    pub(super) running: Vec<(usize, u32)>,
}

/// The end of the first daemon.
pub(super) struct Kill {
    pub(super) at_us: u64,
    pub(super) process: u32,
    pub(super) depths: Vec<u64>,
}

impl Seen {
    pub(super) fn new(planned: &[Planned]) -> Self {
        Self {
            buckets: planned.iter().map(|it| Bucket::new(it.name, it.rate, it.capacity)).collect(),
            start_us: now_us(),
            away: None,
            killed: None,
            running: Vec::new(),
        }
    }

    /// The moment that the screen shows.
    pub(super) fn shown_us() -> u64 {
        now_us() - SHOWN_LATE_US
    }

    /// Whether the workers are away now.
    pub(super) fn are_workers_away(&self) -> bool {
        matches!(self.away, Some((_, None)))
    }

    /// Between which moments the workers were away, where they are back.
    pub(super) fn pause(&self) -> Option<(u64, u64)> {
        self.away.and_then(|(from, to)| Some((from, to?)))
    }

    pub(super) fn all_is_out(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.taken.len() == bucket.accepted.len())
    }

    pub(super) fn rejected(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.rejected).sum()
    }

    /// The bucket with the highest rate.
    pub(super) fn fastest(&self) -> &Bucket {
        self.buckets.iter().min_by_key(|bucket| bucket.interval_us()).expect("there are three")
    }

    /// Where columns of a chart begin: so that the first job of the slowest bucket is in the middle of one, for each of
    /// its jobs is a mark, and none may come so close to the edge of a column that it stands now in one, now in the other.
    pub(super) fn first_column_us(&self, column_us: u64) -> u64 {
        let slowest = self.buckets.iter().max_by_key(|bucket| bucket.interval_us()).expect("there are three");
        slowest.taken.first().map_or(self.start_us, |job| job.at_us - column_us / 2)
    }
}
