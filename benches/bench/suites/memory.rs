//! memory: what a bucket costs Redis in each of its states, and what all of them cost the daemon.

use std::io;
use std::time::Duration;

use super::SLOW;
use super::drain::wait_for_jobs;
use super::fill::{push_plainly, schedule};
use super::lab::{Daemon, Server, keys, wait_for};
use super::report::{Bound, Report, Row};
use super::wire::{Load, Wire, parts};
use dripd::model::route::Route;
use dripd::store::keys::GROUP;

const BUCKETS: usize = 100_000;

fn used(wire: &mut Wire) -> io::Result<f64> {
    wire.info("memory", "used_memory")
}

/// Bytes a bucket that something adds to a new server.
fn bytes(what: impl FnOnce(&Server, &mut Wire) -> io::Result<()>) -> io::Result<f64> {
    let server = Server::start()?;
    server.record(SLOW)?;
    let mut wire = server.wire()?;
    let before = used(&mut wire)?;
    what(&server, &mut wire)?;
    Ok((used(&mut wire)? - before) / BUCKETS as f64)
}

/// What a list and a member of a sorted set with the same names take.
fn same_names(wire: &mut Wire) -> io::Result<()> {
    push_plainly(wire, "memory", BUCKETS)?;
    let names: Vec<String> = (0..BUCKETS).map(|n| format!("memory-{n}")).collect();
    let mut load = Load::of(names.iter().map(|name| vec!["ZADD", "drip:schedule", "1750000000000000", name]));
    wire.run(&mut load, BUCKETS, 64)
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let queues = bytes(|_, wire| push_plainly(wire, "memory", BUCKETS))?;
    let beside = bytes(|_, wire| same_names(wire))?;
    let scheduled = bytes(|_, wire| schedule(wire, "memory", BUCKETS))?;
    report.add(
        Row::new("memory", "a scheduled bucket, beside its jobs", scheduled - queues, "bytes")
            .beside("a member of a sorted set", beside - queues)
            .value_goal(Bound::AtMost(300.0)),
    );
    let in_flight = bytes(|server, wire| {
        schedule(wire, "memory", BUCKETS)?;
        let daemon = server.daemon(SLOW)?;
        wait_for_jobs(wire, BUCKETS)?;
        drop(daemon); // so that only what is in Redis for the buckets changes from here on
        take(wire, BUCKETS)
    })?;
    report.add(Row::new("memory", "a bucket with its job of 100 bytes in a worker's hand", in_flight, "bytes"));
    let idle = idle()?;
    report.add(Row::new("memory", "an idle bucket: keys and members left", idle, "").value_goal(Bound::AtMost(0.0)));
    daemons(report)
}

fn take(wire: &mut Wire, jobs: usize) -> io::Result<()> {
    let ready = keys().ready(&Route::default());
    for _ in 0..jobs.div_ceil(1_000) {
        wire.call(&["XREADGROUP", "GROUP", GROUP, "bench", "COUNT", "1000", "STREAMS", &ready, ">"])?;
    }
    Ok(())
}

/// What is left in Redis of ten thousand buckets whose jobs are done, beside what a server that never saw one holds.
fn idle() -> io::Result<f64> {
    let server = Server::start()?;
    let _daemon = server.daemon("[defaults]\nrate = \"100/s\"\n")?;
    let mut wire = server.wire()?;
    push_plainly(&mut wire, "idle", 10_000)?;
    wait_for_jobs(&mut wire, 10_000)?;
    let mut left = 0.0;
    wait_for("the buckets to vanish", || {
        let queues = wire.call(&["KEYS", &format!("{}*", keys().queues())])?;
        let queues = parts(&queues).len();
        left = (wire.int(&["ZCARD", &keys().schedule()])? + i64::try_from(queues).unwrap_or(i64::MAX)) as f64;
        Ok(left == 0.0)
    })?;
    Ok(left)
}

/// A daemon that has found what there is and has come to rest.
fn at_rest(server: &Server) -> io::Result<(Daemon, f64)> {
    let daemon = server.daemon(SLOW)?;
    let mut ticks = u64::MAX;
    wait_for("the daemon to come to rest", || {
        std::thread::sleep(Duration::from_millis(500));
        Ok(std::mem::replace(&mut ticks, daemon.ticks()?) == ticks)
    })?;
    let (now, _) = daemon.memory()?;
    Ok((daemon, now))
}

/// A server with so many buckets that are due in an hour, each with a job.
pub(super) fn due_in_an_hour(buckets: usize) -> io::Result<Server> {
    let server = Server::start()?;
    let mut wire = server.wire()?;
    let daemon = server.daemon(SLOW)?;
    push_plainly(&mut wire, "hour", buckets)?;
    wait_for_jobs(&mut wire, buckets)?;
    drop(daemon);
    wire.call(&["XTRIM", &keys().ready(&Route::default()), "MAXLEN", "0"])?;
    push_plainly(&mut wire, "hour", buckets)?;
    Ok(server)
}

fn daemons(report: &mut Report) -> io::Result<()> {
    let (few, many) = (due_in_an_hour(1_000)?, due_in_an_hour(1_000_000)?);
    let (few, many) = (at_rest(&few)?.1, at_rest(&many)?.1);
    report.add(Row::new("memory", "the daemon at rest, 1,000 buckets", few, "MB").value_goal(Bound::AtMost(12.0)));
    report.add(Row::new("memory", "the daemon at rest, 1,000,000 buckets", many, "MB").value_goal(Bound::AtMost(12.0)));
    report.add(Row::new("memory", "from 1,000 to 1,000,000 buckets", many - few, "MB").value_goal(Bound::AtMost(2.0)));
    Ok(())
}
