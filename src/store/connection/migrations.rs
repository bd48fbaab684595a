//! Migrations: partitions of a cluster whose slot was on the move to another server, and when that was last seen. The first calls
//! after that are told, for the wait is no lateness of the jobs that were due meanwhile, wherever the partition is served then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When each of some partitions was last seen on the move, by number.
#[derive(Debug, Default)]
pub(in crate::store) struct Migrations {
    seen: Mutex<BTreeMap<u8, Instant>>,
}

impl Migrations {
    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<u8, Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago a partition was last seen on the move.
    /// `None`: it was not, or nothing waits any more that was due by then.
    pub(in crate::store) fn ago(&self, number: u8) -> Option<Duration> {
        self.seen().get(&number).map(Instant::elapsed)
    }

    /// A partition is on the move.
    pub(in crate::store) fn note(&self, number: u8) {
        self.seen().insert(number, Instant::now());
    }

    /// Nothing waits any more that was due while a partition was on the move.
    pub(in crate::store) fn end(&self, number: u8) {
        self.seen().remove(&number);
    }
}
