//! The counters that the last scrape showed, because a counter never goes back.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counters of the last scrape.
#[derive(Default)]
pub(super) struct LastScrape(Mutex<Counters>);

/// Counters of jobs.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) acked: u64,
    pub(super) dispatched: u64,
}

impl LastScrape {
    /// The counters, locked, to compare with and to replace.
    pub(super) fn counters(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
