//! What a dispatch takes inside of calls that the bench makes itself, with no daemon.

use std::io;

use super::fill::{ready, schedule_all};
use super::lab::{Server, keys};
use super::wire::{Reply, Wire, parts};

/// The function that lets jobs out, and its argument: a batch as large as `limits.batch` says, a hundred.
pub(super) const DRAIN: [&str; 2] = ["drip__drain", ""];

/// So many jobs leave in one measurement.
const JOBS: usize = 20_000;

/// A server with these policies in force and nothing else, and a connection to it. Its functions are loaded anew, so that what they remembered of
/// an earlier measurement takes no room in the caches of this one.
pub(super) fn emptied(server: &Server, policies: &str) -> io::Result<Wire> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    wire.call(&["FUNCTION", "FLUSH"])?;
    server.record(policies)?;
    Ok(wire)
}

/// Call a function that drains.
pub(super) fn drain_once(wire: &mut Wire, [function, argument]: &[&str; 2]) -> io::Result<Reply> {
    wire.call(&["FCALL", function, "1", &keys().schedule(), argument])
}

/// Call `drip__drain` until nothing is due.
pub(super) fn drain_all(wire: &mut Wire) -> io::Result<()> {
    while parts(&drain_once(wire, &DRAIN)?).first() == Some(&Reply::Integer(0)) {}
    Ok(())
}

/// Microseconds a job: so many buckets become due at once, again and again, each named after its round and number, and are drained
/// by a function. Only its calls count, not the pushes.
pub(super) fn dispatch(
    wire: &mut Wire,
    drain: &[&str; 2],
    buckets: usize,
    name: impl Fn(usize, usize) -> String,
) -> io::Result<f64> {
    let mut usec = 0.0;
    for round in 0..JOBS / buckets {
        usec += dispatch_once(wire, drain, (0..buckets).map(|n| name(round, n)))?;
    }
    Ok(usec / JOBS as f64)
}

/// Microseconds in all: these buckets become due at once, with a job each, and are drained.
pub(super) fn dispatch_once(
    wire: &mut Wire,
    drain: &[&str; 2],
    buckets: impl ExactSizeIterator<Item = String>,
) -> io::Result<f64> {
    let jobs = buckets.len() as i64;
    schedule_all(wire, buckets, 1)?;
    wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?;
    wire.call(&["CONFIG", "RESETSTAT"])?;
    while wire.int(&["XLEN", &ready()])? < jobs {
        drain_once(wire, drain)?;
    }
    Ok(wire.cost("fcall")?.1)
}
