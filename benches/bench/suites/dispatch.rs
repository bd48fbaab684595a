//! dispatch: what a dispatch costs Redis, inside of the calls that drain: beside a bare function that makes the same calls, as
//! the buckets become more, and call by call.

use std::io;
use std::time::Duration;

use super::drain::{drain, wait_for_jobs};
use super::fill::{push_plainly, ready, schedule};
use super::in_redis;
use super::lab::{Apart, Daemon, Server, keys, queue};
use super::measure::{Spread, Times};
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Reply, parts, text};
use super::{FLOORS, JOB, SLOW};

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (mine, bare) = (Server::start()?, Server::start()?);
    for (buckets, goal) in [(100, None), (2_000, Some(Bound::AtMost(1.25))), (20_000, None)] {
        in_redis(report, &mine, &bare, buckets, goal)?;
    }
    drop((mine, bare));
    cost(report)?;
    let (mine, bare) = (Server::start()?, Server::start()?);
    calls(report, &mine, &bare)
}

/// What a dispatch takes inside of calls, beside a bare function that makes the same calls: so many buckets due at once, again
/// and again, on servers that share one core while the load has another. A hundred are one call, so that their end-to-end time
/// would say nothing.
fn in_redis(report: &mut Report, mine: &Server, bare: &Server, buckets: usize, goal: Option<Bound>) -> io::Result<()> {
    let cost = |server: &Server, function: &str, argument: &str| -> io::Result<f64> {
        let mut wire = in_redis::emptied(server, SLOW)?;
        wire.call(&["FUNCTION", "LOAD", "REPLACE", FLOORS])?;
        in_redis::dispatch(&mut wire, &[function, argument], buckets, |round, n| format!("drain-{round}-{n}"))
    };
    let _apart = Apart::of(&[mine, bare])?;
    let what = format!("in Redis, a dispatch of a drain of {} buckets", figure(buckets as f64));
    report.pairs(
        |pairs| {
            let row = Row::of("dispatch", &what, pairs.mine, "us")
                .beside("a bare function, the same calls", pairs.beside.median)
                .ratio(pairs.ratio);
            if let Some(goal) = goal { row.ratio_goal(goal) } else { row }
        },
        || cost(mine, "drip__drain", ""),
        || cost(bare, "floor_drain", "100"),
    )?;
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
        push_plainly(&mut wire, "crowd", buckets)?;
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
            Row::new("dispatch", "in Redis, a dispatch among 1,000,000 buckets", pairs.mine.median, "us")
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
    for (what, jobs, buckets, batch) in
        [("100 bytes", &[JOB.to_owned()] as &[String], 100_000, "100"), ("100 bytes to 1 MB", &large, 1_000, "4")]
    {
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
        let (own, beside) = (own.ms(99.9), beside.ms(99.9));
        let row = Row::new("dispatch", what, own, "ms").beside("a bare function, the same calls", beside);
        report.add(row.ratio(Spread::of(&[own / beside])).ratio_goal(Bound::AtMost(1.25)));
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
