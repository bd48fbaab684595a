//! window: what the ready window costs where workers keep up, and what it leaves of their pace where they hardly do; each in turns with the
//! window off.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fill::{ready, schedule};
use super::in_redis::{self, drain_once};
use super::lab::{Apart, Server, queue, wait_for, wait_for_quiet};
use super::measure::{Over, Pairs};
use super::report::{Bound, Report, Row};
use super::wire::{Load, Wire, parts, text};
use super::{JOB, SLOW};
use dripd::store::keys::GROUP;

const ON: &str = "ready_window = \"250ms\"\n";
const OFF: &str = "ready_window = \"off\"\n";

/// At the same pace, within what is asked for.
const AS_FAST: Bound = Bound::AtMost(1.03);

/// Jobs of one measurement inside Redis.
const JOBS: usize = 5_000;

/// For how long a daemon at rest is watched.
const AT_REST: Duration = Duration::from_secs(30);

/// Rounds before them.
const WARM: usize = 5;

/// For how long a worker holds a job, on average, and for how long a load lasts.
const SERVICE: Duration = Duration::from_millis(20);
const LASTS: Duration = Duration::from_secs(4);

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    // One server for both: two processes that do the same differ by up to a tenth.
    let server = Server::start()?;
    let pair = |report: &mut Report, what: &str, cost: &dyn Fn(&Server, &str) -> io::Result<f64>| {
        let apart = Apart::of(&[&server])?;
        let row = |pairs: &Pairs| {
            Row::of("window", what, pairs.mine, "us")
                .beside("ready_window off", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(AS_FAST)
        };
        report.pairs(row, || cost(&server, ON), || cost(&server, OFF))?;
        drop(apart);
        io::Result::Ok(())
    };
    pair(report, "in Redis, a dispatch, one job a call, a worker takes each", &|server, window| {
        dispatch(server, window, 1)
    })?;
    pair(report, "in Redis, a dispatch, 100 jobs a call, a worker takes all", &|server, window| {
        dispatch(server, window, 100)
    })?;
    pair(report, "in Redis, a push that wakes an idle bucket, a worker takes each", &wake)?;
    drop(server);
    drained(report)?;
    idle(report)?;
    for workers in [1, 5, 20, 100] {
        for load in [50, 80, 95] {
            loaded(report, workers, load)?;
        }
    }
    Ok(())
}

fn policies(of: &str, window: &str) -> String {
    format!("{window}{of}")
}

/// All that lies ready is taken, as by a worker that waits for it and is done with it at once.
fn take(wire: &mut Wire) -> io::Result<()> {
    wire.call(&["XREADGROUP", "GROUP", GROUP, "bench", "COUNT", "1000", "NOACK", "STREAMS", &ready(), ">"])?;
    wire.call(&["XTRIM", &ready(), "MAXLEN", "0"]).map(drop)
}

/// Microseconds a job inside of calls that let out so many each, from when the limit of the route has grown to that.
fn dispatch(server: &Server, window: &str, at_once: usize) -> io::Result<f64> {
    let mut wire = in_redis::emptied(server, &policies(SLOW, window))?;
    let (mut usec, rounds) = (0.0, JOBS / at_once);
    for round in 0..WARM + rounds {
        schedule(&mut wire, &format!("round-{round}"), at_once)?;
        wire.call(&["CONFIG", "RESETSTAT"])?;
        let mut left = 0;
        while left < at_once {
            left += match parts(&drain_once(&mut wire, &in_redis::DRAIN)?).get(1) {
                Some(super::wire::Reply::Integer(n)) => usize::try_from(*n).unwrap_or(0),
                _ => 0,
            };
            take(&mut wire)?;
        }
        if round >= WARM {
            usec += wire.cost("fcall")?.1;
        }
    }
    Ok(usec / (rounds * at_once) as f64)
}

/// Microseconds of a call that finds a job in an idle bucket and lets it out.
fn wake(server: &Server, window: &str) -> io::Result<f64> {
    let mut wire = in_redis::emptied(server, &policies(SLOW, window))?;
    let mut usec = 0.0;
    for n in 0..JOBS {
        let queue = queue(&format!("idle-{n}"));
        wire.call(&["LPUSH", &queue, JOB])?;
        wire.call(&["CONFIG", "RESETSTAT"])?;
        wire.call(&["FCALL", "drip__wake", "1", &queue, ""])?;
        usec += wire.cost("fcall")?.1;
        take(&mut wire)?;
    }
    Ok(usec / JOBS as f64)
}

/// Everything is due at once, and two workers read a hundred at a time.
fn drained(report: &mut Report) -> io::Result<()> {
    const BUCKETS: usize = 50_000;
    let (on, off) = (Server::start()?, Server::start()?);
    let rate = |server: &Server, window: &str| -> io::Result<f64> {
        let policies = policies(SLOW, window);
        schedule(&mut in_redis::emptied(server, &policies)?, "drain", BUCKETS)?;
        let (taken, over) = (AtomicUsize::new(0), Over::default());
        std::thread::scope(|scope| {
            let _set = over.when_dropped();
            for n in 0..2 {
                let (mut wire, taken, over) = (server.wire()?, &taken, &over);
                scope.spawn(move || -> io::Result<()> {
                    let name = format!("w{n}");
                    let words = [
                        "XREADGROUP",
                        "GROUP",
                        GROUP,
                        &name,
                        "COUNT",
                        "100",
                        "BLOCK",
                        "50",
                        "NOACK",
                        "STREAMS",
                        &ready(),
                        ">",
                    ];
                    while !over.is_set() {
                        taken.fetch_add(entries(&wire.call(&words)?), Ordering::Relaxed);
                    }
                    Ok(())
                });
            }
            let start = Instant::now();
            let _daemon = server.begin_daemon(&policies)?;
            wait_for("the workers to have all jobs", || Ok(taken.load(Ordering::Relaxed) >= BUCKETS))?;
            Ok(BUCKETS as f64 / start.elapsed().as_secs_f64())
        })
    };
    report.pairs(
        |pairs| {
            Row::of("window", "50,000 buckets due at once, two workers read a hundred at a time", pairs.mine, "/s")
                .beside("ready_window off", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(0.97))
        },
        || rate(&on, ON),
        || rate(&off, OFF),
    )?;
    Ok(())
}

fn entries(reply: &super::wire::Reply) -> usize {
    parts(reply).first().and_then(|stream| parts(stream).get(1)).map_or(0, |entries| parts(entries).len())
}

/// A daemon that has nothing to do asks nothing more.
fn idle(report: &mut Report) -> io::Result<()> {
    let servers = [Server::start()?, Server::start()?];
    let _daemons = (servers[0].daemon(&policies(SLOW, ON))?, servers[1].daemon(&policies(SLOW, OFF))?);
    let wires = || servers.iter().map(Server::wire).collect::<io::Result<Vec<_>>>();
    wires()?.iter_mut().try_for_each(wait_for_quiet)?;
    let commands = || -> io::Result<Vec<f64>> {
        wires()?.iter_mut().map(|wire| wire.info("stats", "total_commands_processed")).collect()
    };
    let before = commands()?;
    std::thread::sleep(AT_REST);
    // One of them is the INFO of the second look.
    let a_second = |(before, after): (f64, &f64)| (after - before - 1.0) / AT_REST.as_secs_f64();
    let after = commands()?;
    let each: Vec<f64> = before.into_iter().zip(&after).map(a_second).collect();
    let [on, off] = each[..] else { return Err(io::Error::other("two servers have two figures")) };
    report.add(Row::new("window", "an idle daemon: commands", on, "/s").beside("ready_window off", off));
    Ok(())
}

/// One worker: it holds each job for a random time.
fn work(mut wire: Wire, name: &str, done: &AtomicUsize, over: &Over) -> io::Result<()> {
    let stream = ready();
    let words = ["XREADGROUP", "GROUP", GROUP, name, "COUNT", "1", "BLOCK", "50", "STREAMS", &stream, ">"];
    while !over.is_set() {
        let taken = wire.call(&words)?;
        let entry = parts(&taken).first().and_then(|stream| parts(parts(stream).get(1)?).first());
        let Some(id) = entry.and_then(|entry| text(parts(entry).first()?)) else { continue };
        std::thread::sleep(SERVICE.mul_f64(-(1.0 - fastrand::f64()).ln()));
        wire.call(&["FCALL", "drip_ack", "1", &stream, id])?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Jobs a second that workers finish where one bucket's rate is so many percent of what they could do.
fn loaded(report: &mut Report, workers: usize, percent: usize) -> io::Result<()> {
    let (on, off) = (Server::start()?, Server::start()?);
    let rate = workers as f64 / SERVICE.as_secs_f64() * percent as f64 / 100.0;
    let done_a_second = |server: &Server, window: &str| -> io::Result<f64> {
        let of = format!("[defaults]\nrate = \"{}/100s\"\ncapacity = 1000000\n", (rate * 100.0).round());
        let policies = policies(&of, window);
        let mut wire = in_redis::emptied(server, &policies)?;
        let queue = queue("busy");
        wire.run(
            &mut Load::of(std::iter::once(vec!["LPUSH", &queue, JOB])),
            (rate * 2.0 * LASTS.as_secs_f64()) as usize,
            100,
        )?;
        let _daemon = server.daemon(&policies)?;
        let (done, over) = (AtomicUsize::new(0), Over::default());
        std::thread::scope(|scope| {
            let _set = over.when_dropped();
            for n in 0..workers {
                let (wire, name, done, over) = (server.wire()?, format!("w{n}"), &done, &over);
                scope.spawn(move || work(wire, &name, done, over));
            }
            std::thread::sleep(Duration::from_secs(1)); // what lay ready is taken, and the limit has found its place
            let before = done.load(Ordering::Relaxed);
            std::thread::sleep(LASTS);
            Ok((done.load(Ordering::Relaxed) - before) as f64 / LASTS.as_secs_f64())
        })
    };
    let what = format!("{workers} workers at {percent} % load, random service times, {rate:.0}/s set");
    report.pairs(
        |pairs| {
            Row::of("window", &what, pairs.mine, "/s")
                .beside("ready_window off", pairs.beside.median)
                .ratio(pairs.ratio)
        },
        || done_a_second(&on, ON),
        || done_a_second(&off, OFF),
    )?;
    Ok(())
}
