//! settings: what operators set for some buckets, and what that costs the others.

use std::io;
use std::time::{Duration, Instant};

use dripd::store::change::{Change, SetTo};
use serde_json::json;

use super::fill::ready;
use super::in_redis;
use super::lab::{Apart, Daemon, Server, queue, spent, wait_for, wait_for_quiet};
use super::measure::PAIRS;
use super::neighbours::{Seen, Street};
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Wire, parts};
use super::{JOB, SLOW};

/// Names that are set in a second.
const A_SECOND: u32 = 100;

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (set, none) = (Server::start()?, Server::start()?);
    let names: Vec<Change> = (0..1_000).map(|n| faster(format!("set-{n}"), false)).collect();
    let all_set = |changes: &[Change], wire: &mut Wire| changes.iter().try_for_each(|change| make(wire, change));
    others(report, &set, &none, "1,000 other names set", |wire| all_set(&names, wire), Bound::AtMost(1.2))?;
    let globs: Vec<Change> = (0..100).map(|n| faster(format!("*:tenant-{n}"), true)).collect();
    others(report, &set, &none, "100 globs set that fit none", |wire| all_set(&globs, wire), Bound::AtMost(1.5))?;
    let tell = |wire: &mut Wire| {
        wire.call(&["FCALL", "drip_told", "1", "drip:queue:told", "100", "3600000", "LIMIT", "100"]).map(drop)
    };
    others(report, &set, &none, "a limit told of another bucket", tell, Bound::AtMost(1.2))?;
    drop((set, none));
    steadily(report)?;
    paused(report)
}

/// A new rate, as `dripd set` puts it.
fn faster(pattern: String, is_glob: bool) -> Change {
    let rate = SetTo { text: "2/h".to_owned(), policy: json!({ "count": 2, "period_us": 3_600_000_000_u64 }) };
    let set = [("rate".to_owned(), rate)].into();
    Change { what: "set", pattern, is_glob, set, by: "bench@here".to_owned(), ..Change::default() }
}

fn make(wire: &mut Wire, change: &Change) -> io::Result<()> {
    let json = serde_json::to_string(change)?;
    let told = wire.call(&["FCALL", "drip__set", "1", "drip:policy", "", &json])?;
    if parts(&told).len() == 3 { Ok(()) } else { Err(io::Error::other(format!("drip__set: {told:?}"))) }
}

/// What a dispatch of a bucket for which nothing is set or told takes inside of calls, beside the same where nothing is at all.
fn others(
    report: &mut Report,
    set: &Server,
    none: &Server,
    what: &str,
    prepare: impl Fn(&mut Wire) -> io::Result<()>,
    goal: Bound,
) -> io::Result<()> {
    const BUCKETS: usize = 2_000;
    let cost = |server: &Server, is_prepared: bool| -> io::Result<f64> {
        let mut wire = in_redis::emptied(server, SLOW)?;
        if is_prepared {
            prepare(&mut wire)?;
        }
        in_redis::dispatch(&mut wire, &in_redis::DRAIN, BUCKETS, |round, n| format!("drain-{round}-{n}"))
    };
    let _apart = Apart::of(&[set, none])?;
    report.pairs(
        |pairs| {
            Row::of("settings", format!("in Redis, a dispatch of a drain of {}, {what}", figure(2e3)), pairs.mine, "us")
                .beside("nothing set", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(goal)
        },
        || cost(set, true),
        || cost(none, false),
    )?;
    Ok(())
}

/// How late a bucket at 100/s leaves while names are set one after the other, and what one of these costs.
fn steadily(report: &mut Report) -> io::Result<()> {
    const LASTING: Duration = Duration::from_secs(2);
    let street = Street::new()?;
    let (mut alone, mut meanwhile, mut n) = (Seen::new(), Seen::new(), 0);
    for _ in 0..PAIRS {
        alone.join(&street.watch(|_| {
            std::thread::sleep(LASTING);
            Ok(())
        })?);
        meanwhile.join(&street.watch(|wire| {
            let since = Instant::now();
            for k in 0..A_SECOND * LASTING.as_secs() as u32 {
                std::thread::sleep(
                    (since + Duration::from_secs(1) / A_SECOND * k).saturating_duration_since(Instant::now()),
                );
                make(wire, &faster(format!("billed-{n}"), false))?;
                n += 1;
            }
            Ok(())
        })?);
    }
    let late = |seen: &Seen| seen.late.ms(99.0);
    report.add(
        Row::new(
            "settings",
            "lateness p99 of a bucket at 100/s while 100 other names a second are set",
            late(&meanwhile),
            "ms",
        )
        .beside("while none is", late(&alone))
        .value_goal(Bound::AtMost(late(&alone) + 0.5)),
    );
    let mut wire = street.server.wire()?;
    wire.call(&["CONFIG", "RESETSTAT"])?;
    let before = spent(&street.server, &[])?;
    for n in 0..1_000 {
        make(&mut wire, &faster(format!("counted-{n}"), false))?;
    }
    let cost = (spent(&street.server, &[])? - before).a_job(1_000);
    report.add(Row::new("settings", "one name set, processor time of Redis", cost.redis_us, "us"));
    Ok(())
}

/// What 100,000 buckets cost that a glob pauses: how long the change takes to reach them, and what they cost while they wait.
fn paused(report: &mut Report) -> io::Result<()> {
    const BUCKETS: usize = 100_000;
    const LASTING: Duration = Duration::from_secs(10);
    let server = Server::start()?;
    let daemon = server.daemon(SLOW)?;
    let mut wire = server.wire()?;
    let queues: Vec<String> = (0..BUCKETS).map(|n| queue(&format!("stopped-{n}"))).collect();
    let mut load = Load::of(queues.iter().map(|queue| vec!["FCALL", "drip_push", "1", queue, JOB, JOB]));
    wire.run(&mut load, BUCKETS, 20)?;
    wait_for("the first jobs to leave", || Ok(wire.int(&["XLEN", &ready()])? >= BUCKETS as i64))?;
    wire.call(&["CONFIG", "SET", "slowlog-log-slower-than", "100", "slowlog-max-len", "100000"])?;
    wire.call(&["SLOWLOG", "RESET"])?;
    let since = Instant::now();
    let stop = [("pause".to_owned(), SetTo { text: String::new(), policy: json!({}) })].into();
    make(&mut wire, &Change { what: "pause", set: stop, ..faster("stopped-*".to_owned(), true) })?;
    wait_for("every bucket to be paused", || Ok(wire.int(&["ZCARD", "drip:paused"])? >= BUCKETS as i64))?;
    let row = Row::new(
        "settings",
        "100,000 buckets with work paused by a glob, until it has reached the last",
        since.elapsed().as_secs_f64(),
        "s",
    );
    report.add(row);
    report.add(Row::new("settings", "the longest call of that", longest_ms(&mut wire)?, "ms"));
    wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?; // what nobody takes keeps the reaper at work
    wait_for_quiet(&mut wire)?;
    let look = |wire: &mut Wire, daemon: &Daemon| -> io::Result<(f64, u64)> {
        Ok((wire.info("stats", "total_commands_processed")?, daemon.ticks()?))
    };
    let (calls, ticks) = look(&mut wire, &daemon)?;
    std::thread::sleep(LASTING);
    let (calls_after, ticks_after) = look(&mut wire, &daemon)?;
    // One of them is the INFO of the second look.
    let calls = (calls_after - calls - 1.0) / LASTING.as_secs_f64();
    report.add(Row::new("settings", "100,000 paused buckets: commands", calls, "/s").value_goal(Bound::AtMost(2.0)));
    let ticks = (ticks_after - ticks) as f64;
    report.add(
        Row::new("settings", "100,000 paused buckets: CPU of the daemon in 10 s", ticks, "ticks")
            .value_goal(Bound::AtMost(2.0)),
    );
    Ok(())
}

/// The longest call of a function that SLOWLOG has, in milliseconds.
pub(super) fn longest_ms(wire: &mut Wire) -> io::Result<f64> {
    let log = wire.call(&["SLOWLOG", "GET", "-1"])?;
    let is_fcall = |entry: &&super::wire::Reply| {
        parts(entry).get(3).and_then(|words| super::wire::text(parts(words).first()?)) == Some("FCALL")
    };
    let us = parts(&log).iter().filter(is_fcall).filter_map(|entry| match parts(entry).get(2) {
        Some(super::wire::Reply::Integer(us)) => Some(us.unsigned_abs()),
        _ => None,
    });
    Ok(us.max().unwrap_or(0) as f64 / 1e3)
}
