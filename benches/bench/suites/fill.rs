//! Jobs put into buckets, and the stream in which they arrive.

use std::io;

use dripd::model::route::Route;

use super::JOB;
use super::lab::{keys, queue};
use super::wire::{Load, Wire};

/// The stream of jobs that left their buckets.
pub(super) fn ready() -> String {
    keys().ready(&Route::default())
}

/// Put one job into each of so many buckets through the atomic door: they are scheduled, and due.
pub(super) fn schedule(wire: &mut Wire, name: &str, buckets: usize) -> io::Result<()> {
    schedule_all(wire, (0..buckets).map(|n| format!("{name}-{n}")), 1)
}

/// Put so many jobs into each of some buckets through the atomic door.
pub(super) fn schedule_all(wire: &mut Wire, buckets: impl Iterator<Item = String>, jobs: usize) -> io::Result<()> {
    let queues: Vec<String> = buckets.map(|bucket| queue(&bucket)).collect();
    let mut load = Load::of(queues.iter().map(|queue| {
        let mut words = vec!["FCALL", "drip_push", "1", queue.as_str()];
        words.resize(4 + jobs, JOB);
        words
    }));
    wire.run(&mut load, queues.len(), 200)
}

/// Put one job into each of so many buckets by plain pushes.
pub(super) fn push_plainly(wire: &mut Wire, name: &str, buckets: usize) -> io::Result<()> {
    let queues: Vec<String> = (0..buckets).map(|n| queue(&format!("{name}-{n}"))).collect();
    wire.run(&mut Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB])), buckets, 64)
}
