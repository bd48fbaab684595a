//! How long the calls of this process took, and how often Redis woke it: for its metrics. Counted since the start, over all connections.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The upper bounds of the times that are told apart, in seconds.
pub const BOUNDS: [f64; 12] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

/// Keys that Redis reported as changed.
pub static WAKES_BY_TRACKING: AtomicU64 = AtomicU64::new(0);

/// Queues that were found by looking at all of them.
pub static WAKES_BY_POLL: AtomicU64 = AtomicU64::new(0);

static CALLS: Mutex<BTreeMap<&'static str, Times>> = Mutex::new(BTreeMap::new());

/// How long calls of one kind took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// How many took at most as long as each bound, and longer than the one before.
    pub within: [u64; BOUNDS.len()],
    /// How many there were.
    pub count: u64,
    /// All together.
    pub sum: Duration,
}

/// A call is over.
pub(in crate::store) fn took(call: &'static str, time: Duration) {
    let seconds = time.as_secs_f64();
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let times = calls.entry(call).or_default();
    if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
        times.within[at] += 1;
    }
    times.count += 1;
    times.sum += time;
}

/// The calls so far, by name.
pub fn calls() -> BTreeMap<&'static str, Times> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
