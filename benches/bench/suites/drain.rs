//! drain: everything is due at once, as after an outage. How many jobs leave a second, beside the two commands that cannot be
//! saved, and what a dispatch costs Redis as the buckets become more.

use std::io;
use std::time::Duration;

use super::lab::{Daemon, Server, keys, queue, wait_for};
use super::measure::{Pairs, Times};
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Reply, Wire, parts, text};
use super::{FAST, FLOORS, JOB, SLOW};
use dripd::words::policy::Route;

fn ready() -> String {
    keys().ready(&Route::default())
}

/// Put one job into each of so many buckets through the atomic door: they are scheduled, and due.
pub(super) fn schedule(wire: &mut Wire, name: &str, buckets: usize) -> io::Result<()> {
    let queues: Vec<String> = (0..buckets).map(|n| queue(&format!("{name}-{n}"))).collect();
    let mut load = Load::of(queues.iter().map(|queue| vec!["FCALL", "drip_push", "1", queue.as_str(), JOB]));
    wire.run(&mut load, buckets, 200)
}

/// Wait until so many jobs are in the ready stream.
pub(super) fn wait_for_jobs(wire: &mut Wire, jobs: usize) -> io::Result<()> {
    wait_for("the jobs to leave their buckets", || Ok(wire.int(&["XLEN", &ready()])? >= jobs as i64))
}

/// When the first and the last call let jobs out, and how many the last one did: from the entries themselves.
fn ends(wire: &mut Wire) -> io::Result<(u64, u64, usize)> {
    let mut at_us = |command, from, to, count| -> io::Result<Vec<u64>> {
        let reply = wire.call(&[command, &ready(), from, to, "COUNT", count])?;
        let at = |entry| text(parts(parts(entry).get(1)?).get(9)?)?.parse().ok();
        Ok(parts(&reply).iter().filter_map(at).collect())
    };
    let (first, last) = (at_us("XRANGE", "-", "+", "1")?, at_us("XREVRANGE", "+", "-", "1000")?);
    let (Some(first), Some(end)) = (first.first(), last.first()) else {
        return Err(io::Error::other("the ready stream has no entries of dripd's"));
    };
    Ok((*first, *end, last.iter().filter(|at| *at == end).count()))
}

/// Dispatches a second, from the first call to the last; the jobs of the last one had no time of their own.
pub(super) fn dispatches_a_second(wire: &mut Wire, jobs: usize) -> io::Result<f64> {
    let (first, last, of_last) = ends(wire)?;
    Ok((jobs - of_last) as f64 * 1e6 / (last - first).max(1) as f64)
}

/// Start a daemon on what is due and wait until all of it left.
fn drain(server: &Server, policies: &str, jobs: usize) -> io::Result<(f64, Daemon)> {
    let daemon = server.begin_daemon(policies)?;
    let mut wire = server.wire()?;
    wait_for_jobs(&mut wire, jobs)?;
    Ok((dispatches_a_second(&mut wire, jobs)?, daemon))
}

/// So many buckets with a job each, due at once.
fn drain_many(server: &Server, buckets: usize) -> io::Result<f64> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    server.record(SLOW)?;
    schedule(&mut wire, "drain", buckets)?;
    drain(server, SLOW, buckets).map(|(rate, _)| rate)
}

/// One bucket with many jobs, all of them due.
fn drain_one(server: &Server, jobs: usize) -> io::Result<f64> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    server.record(FAST)?;
    let queue = queue("fast");
    let mut words = vec!["FCALL", "drip_push", "1", queue.as_str()];
    words.resize(4 + 1_000, JOB);
    let mut load = Load::of([words].into_iter());
    wire.run(&mut load, jobs / 1_000, 1)?;
    drain(server, FAST, jobs).map(|(rate, _)| rate)
}

/// What remains when the pacing is taken away: the same entry added, the same job taken, pipelined.
fn floor(server: &Server, buckets: usize, jobs: usize) -> io::Result<f64> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    let queues: Vec<String> = (0..buckets).map(|n| queue(&format!("drain-{n}"))).collect();
    let mut fill = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
    wire.run(&mut fill, jobs, 64)?;
    let (ready, mut load) = (ready(), Load::default());
    for (n, queue) in queues.iter().enumerate() {
        let bucket = format!("drain-{n}");
        load.push(&[
            "XADD",
            &ready,
            "*",
            "bucket",
            &bucket,
            "job",
            JOB,
            "attempt",
            "1",
            "due_us",
            "1750000000000000",
            "at_us",
            "1750000000000000",
            "lease_ms",
            "60000",
        ]);
        load.push(&["RPOP", queue]);
    }
    let (mut load, start) = (load.repeated(), std::time::Instant::now());
    wire.run(&mut load, 2 * jobs, 200)?;
    Ok(jobs as f64 / start.elapsed().as_secs_f64())
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (mine, bare) = (Server::start()?, Server::start()?);
    for (buckets, goal) in [(10_000, None), (100_000, Some(150_000.0))] {
        let what = format!("{} buckets due at once", figure(buckets as f64));
        let pairs = report.pairs(
            |pairs| row(&what, pairs, goal),
            || drain_many(&mine, buckets),
            || floor(&bare, buckets, buckets),
        )?;
        report.point("drain", "dripd", buckets as f64, pairs.mine.median);
        report.point("drain", "XADD + RPOP, pipelined", buckets as f64, pairs.beside.median);
    }
    let jobs = 200_000;
    report.pairs(
        |pairs| row("one fast bucket", pairs, Some(400_000.0)),
        || drain_one(&mine, jobs),
        || floor(&bare, 1, jobs),
    )?;
    for buckets in [100, 1_000, 20_000] {
        in_redis(report, &mine, &bare, buckets)?;
    }
    drop(mine);
    million(report, &bare)?;
    cost(report)?;
    let mine = Server::start()?;
    calls(report, &mine, &bare)
}

fn row(what: &str, pairs: &Pairs, goal: Option<f64>) -> Row {
    let row = Row::of("drain", what, pairs.mine, "/s").beside("XADD + RPOP", pairs.beside.median).ratio(pairs.ratio);
    if let Some(goal) = goal { row.value_goal(Bound::AtLeast(goal)) } else { row }
}

/// What a dispatch takes inside of calls, beside a bare function that makes the same calls: so many buckets due at once, again
/// and again. A hundred are one call, so that their end-to-end time would say nothing.
fn in_redis(report: &mut Report, mine: &Server, bare: &Server, buckets: usize) -> io::Result<()> {
    const JOBS: usize = 20_000;
    let cost = |server: &Server, function: &str, argument: &str| -> io::Result<f64> {
        let mut wire = server.wire()?;
        wire.call(&["FLUSHALL"])?;
        server.record(SLOW)?;
        wire.call(&["FUNCTION", "LOAD", "REPLACE", FLOORS])?;
        let mut usec = 0.0;
        for round in 0..JOBS / buckets {
            schedule(&mut wire, &format!("drain-{round}"), buckets)?;
            wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?;
            wire.call(&["CONFIG", "RESETSTAT"])?;
            while wire.int(&["XLEN", &ready()])? < buckets as i64 {
                wire.call(&["FCALL", function, "1", &keys().schedule(), argument])?;
            }
            usec += wire.cost("fcall")?.1;
        }
        Ok(usec / JOBS as f64)
    };
    let what = format!("in Redis, a dispatch of a drain of {} buckets", figure(buckets as f64));
    report.pairs(
        |pairs| {
            Row::of("drain", &what, pairs.mine, "us")
                .beside("a bare function, the same calls", pairs.beside.median)
                .ratio(pairs.ratio)
        },
        || cost(mine, "drip__drain", ""),
        || cost(bare, "floor_drain", "100"),
    )?;
    Ok(())
}

/// A million of them, once: it takes half a minute. The daemon's memory in such a burst is seen on the way.
fn million(report: &mut Report, bare: &Server) -> io::Result<()> {
    const MILLION: usize = 1_000_000;
    let server = Server::start()?;
    server.record(SLOW)?;
    schedule(&mut server.wire()?, "drain", MILLION)?;
    let (rate, daemon) = drain(&server, SLOW, MILLION)?;
    let (_, peak) = daemon.memory()?;
    let beside = floor(bare, MILLION, MILLION)?;
    report.add(Row::new("drain", "1,000,000 buckets due at once (one run)", rate, "/s").beside("XADD + RPOP", beside));
    report.point("drain", "dripd", MILLION as f64, rate);
    report.point("drain", "XADD + RPOP, pipelined", MILLION as f64, beside);
    report.add(
        Row::new("memory", "the daemon at most, 1,000,000 due at once", peak, "MB").value_goal(Bound::AtMost(48.0)),
    );
    Ok(())
}

/// A server with so many buckets scheduled in an hour, and its daemon.
struct Crowd {
    daemon: Daemon,
    server: Server,
    round: usize,
}

impl Crowd {
    fn of(buckets: usize) -> io::Result<Self> {
        let server = Server::start()?;
        let daemon = server.daemon(SLOW)?;
        let mut wire = server.wire()?;
        let queues: Vec<String> = (0..buckets).map(|n| queue(&format!("crowd-{n}"))).collect();
        wire.run(&mut Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB])), buckets, 64)?;
        wait_for_jobs(&mut wire, buckets)?;
        Ok(Self { daemon, server, round: 0 })
    }

    /// What a dispatch costs Redis, in microseconds inside of calls: of a thousand more buckets that become due.
    fn cost(&mut self) -> io::Result<f64> {
        const BUCKETS: usize = 1_000;
        self.round += 1;
        let mut wire = self.server.wire()?;
        self.daemon.freeze(true)?;
        wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?;
        schedule(&mut wire, &format!("more-{}", self.round), BUCKETS)?;
        wire.call(&["CONFIG", "RESETSTAT"])?;
        self.daemon.freeze(false)?;
        wait_for_jobs(&mut wire, BUCKETS)?;
        std::thread::sleep(Duration::from_millis(50)); // the echoes of the dispatches are part of what they cost
        let (_, usec) = wire.cost("fcall")?;
        Ok(usec / BUCKETS as f64)
    }
}

/// What a dispatch costs with a thousand buckets scheduled, and with a million.
fn cost(report: &mut Report) -> io::Result<()> {
    let (mut few, mut many) = (Crowd::of(1_000)?, Crowd::of(1_000_000)?);
    report.pairs(
        |pairs| {
            Row::new("drain", "in Redis, a dispatch among 1,000,000 buckets", pairs.mine.median, "us")
                .beside("among 1,000", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtMost(1.5))
        },
        || many.cost(),
        || few.cost(),
    )?;
    Ok(())
}

/// How long single calls take, as SLOWLOG has it, with jobs of 100 bytes and of up to a megabyte, beside those of a bare function
/// that lets out as many: of all the calls of several drains together.
fn calls(report: &mut Report, mine: &Server, bare: &Server) -> io::Result<()> {
    const ROUNDS: usize = 3;
    let large: Vec<String> = [100, 10_000, 100_000, 1_000_000].iter().map(|n| ".".repeat(*n)).collect();
    for (what, jobs, buckets, batch, most) in [
        ("100 bytes", &[JOB.to_owned()] as &[String], 100_000, "100", 1.0),
        ("100 bytes to 1 MB", &large, 1_000, "4", 3.0),
    ] {
        let (mut own, mut beside) = (Times::new(), Times::new());
        for _ in 0..ROUNDS {
            pushed(mine, jobs, buckets)?;
            own.join(&durations(mine, || drain(mine, SLOW, buckets).map(drop))?);
            pushed(bare, jobs, buckets)?;
            beside.join(&durations(bare, || drain_bare(bare, buckets, batch))?);
        }
        let what = format!(
            "p99.9 of {} calls, jobs of {what}; p50 {:.2}, p99 {:.2}, max {:.2} ms",
            figure(own.len() as f64),
            own.ms(50.0),
            own.ms(99.0),
            own.ms(100.0)
        );
        let row =
            Row::new("drain", what, own.ms(99.9), "ms").beside("a bare function, the same calls", beside.ms(99.9));
        report.add(row.value_goal(Bound::AtMost(most)));
    }
    Ok(())
}

/// So many buckets with a job each, of these in turns.
fn pushed(server: &Server, jobs: &[String], buckets: usize) -> io::Result<()> {
    let mut wire = server.wire()?;
    wire.call(&["FLUSHALL"])?;
    server.record(SLOW)?;
    wire.call(&["FUNCTION", "LOAD", "REPLACE", FLOORS])?;
    let queues: Vec<String> = (0..buckets).map(|n| queue(&format!("call-{n}"))).collect();
    let pushes = queues.iter().enumerate();
    let mut load =
        Load::of(pushes.map(|(n, queue)| vec!["FCALL", "drip_push", "1", queue.as_str(), &jobs[n % jobs.len()]]));
    wire.run(&mut load, buckets, 20)
}

/// Let them out by the bare function.
fn drain_bare(server: &Server, buckets: usize, batch: &str) -> io::Result<()> {
    let mut wire = server.wire()?;
    while wire.int(&["XLEN", &ready()])? < buckets as i64 {
        wire.call(&["FCALL", "floor_drain", "1", &keys().schedule(), batch])?;
    }
    Ok(())
}

/// Calls and commands inside of calls that take less are not logged one by one, in microseconds: they would flood the log.
const LOGGED_US: u64 = 100;

/// How long the calls took that something made.
fn durations(server: &Server, made: impl FnOnce() -> io::Result<()>) -> io::Result<Times> {
    let mut wire = server.wire()?;
    wire.call(&["CONFIG", "SET", "slowlog-log-slower-than", &LOGGED_US.to_string(), "slowlog-max-len", "100000"])?;
    wire.call(&["SLOWLOG", "RESET"])?;
    wire.call(&["CONFIG", "RESETSTAT"])?;
    made()?;
    wire.call(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"])?;
    let log = wire.call(&["SLOWLOG", "GET", "-1"])?;
    let is_fcall = |entry: &&_| parts(entry).get(3).and_then(|words| text(parts(words).first()?)) == Some("FCALL");
    let mut times = Times::new();
    for entry in parts(&log).iter().filter(is_fcall) {
        if let Some(Reply::Integer(us)) = parts(entry).get(2) {
            times.add_us(us.unsigned_abs());
        }
    }
    let (calls, _) = wire.cost("fcall")?;
    (times.len()..calls as u64).for_each(|_| times.add_us(LOGGED_US));
    Ok(times)
}
