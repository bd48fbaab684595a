//! delayed: a million delayed jobs over a thousand buckets. What it takes to submit and to keep them, that nobody else notices them, and how
//! they leave, are cancelled and are purged. The time at which they are due is passed to the functions, so nobody waits a day for it.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::fill::ready;
use super::in_redis;
use super::lab::{Apart, Server, keys, queue, wait_for_quiet};
use super::report::{Bound, Report, Row, figure};
use super::settings::longest_ms;
use super::wire::{Load, Reply, Wire, parts, text};
use super::{FAST, JOB};

const BUCKETS: usize = 1_000;
const JOBS: usize = 1_000_000;

/// So many are submitted in one go.
const PART: usize = 100_000;

/// Of a bucket each job has a time of its own, in this many milliseconds: a prime, so that they come in no order.
const SPREAD_MS: u64 = 1_009;

const PIPELINE: usize = 64;

/// A bucket that lets out a job an hour beside the fast ones.
const ONE_IS_SLOW: &str = "[[bucket]]\nmatch = \"slow\"\nrate = \"1/h\"\n";

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (many, none) = (Server::start()?, Server::start()?);
    let policies = FAST.to_owned() + ONE_IS_SLOW;
    let mut wire = in_redis::emptied(&many, &policies)?;
    let begins_ms = now_ms()? + 86_400_000;
    fill(report, &none, &mut wire, begins_ms)?;
    drop(in_redis::emptied(&none, &policies)?);
    others(report, &many, &none, "1,000,000 delayed jobs that wait for their time", Bound::AtMost(1.1))?;
    at_rest(report, &many, &policies)?;
    one_by_one(report, &mut wire)?;
    let plain = behind(report, &many, &none)?;
    leave(report, &mut wire, begins_ms, plain)
}

fn now_ms() -> io::Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The time of the n-th job, and the job: it names its time, and is as long as any.
fn job(n: usize, begins_ms: u64) -> (String, String) {
    let at = begins_ms + (n / BUCKETS) as u64 * 7_919 % SPREAD_MS;
    (at.to_string(), format!("{at:016}{}", &JOB[16..]))
}

fn bucket(n: usize) -> String {
    format!("later-{}", n % BUCKETS)
}

/// Send a part of the commands that `words` makes. Replies how many went in a second; what it takes to make them does not count.
fn send(wire: &mut Wire, from: usize, words: impl Fn(usize) -> Vec<String>) -> io::Result<f64> {
    let mut took = Duration::ZERO;
    for chunk in (from..from + PART).step_by(PART / 10) {
        let commands: Vec<Vec<String>> = (chunk..chunk + PART / 10).map(&words).collect();
        let mut load = Load::of(commands.iter().map(|words| words.iter().map(String::as_str).collect()));
        let since = Instant::now();
        wire.run(&mut load, PART / 10, PIPELINE)?;
        took += since.elapsed();
    }
    Ok(PART as f64 / took.as_secs_f64())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Submit the million, and compare that with what else could be done with the same jobs.
fn fill(report: &mut Report, none: &Server, wire: &mut Wire, begins_ms: u64) -> io::Result<()> {
    let mut beside = in_redis::emptied(none, FAST)?;
    let push = |n| words(&["FCALL", "drip_push", "1", &queue(&bucket(n)), &job(n, begins_ms).1]);
    let pushed = send(&mut beside, 0, push)?;
    beside.call(&["FLUSHALL"])?;
    let submit = |n| {
        let (at, job) = job(n, begins_ms);
        words(&["FCALL", "drip_submit", "1", &queue(&bucket(n)), &job, "AT", &at])
    };
    let (before, empty) = (wire.info("memory", "used_memory")?, beside.info("memory", "used_memory")?);
    let mut rates = Vec::new();
    for from in (0..JOBS).step_by(PART) {
        rates.push(send(wire, from, submit)?);
        send(&mut beside, from, |n| {
            let (at, job) = job(n, begins_ms);
            words(&["ZADD", &bucket(n), &at, &job])
        })?;
    }
    let bytes = (wire.info("memory", "used_memory")? - before) / JOBS as f64;
    let of_members = (beside.info("memory", "used_memory")? - empty) / JOBS as f64;
    let mean = rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>();
    report.add(
        Row::new("delayed", "1,000,000 submits with a delay, 1,000 buckets, pipeline 64", mean, "/s")
            .beside("drip_push of the same jobs", pushed),
    );
    report.add(
        Row::new("delayed", "the last 100,000 of them", rates[rates.len() - 1], "/s")
            .beside("the first 100,000", rates[0])
            .ratio_goal(Bound::AtLeast(0.7)),
    );
    report.add(
        Row::new("delayed", "a delayed job of 100 bytes", bytes, "bytes")
            .beside("a member of a sorted set of as many bytes", of_members)
            .value_goal(Bound::AtMost(500.0)),
    );
    Ok(())
}

/// What a dispatch of a plain bucket takes inside of calls, beside the same on a server without delayed jobs. Replies that time.
fn others(report: &mut Report, many: &Server, none: &Server, what: &str, goal: Bound) -> io::Result<f64> {
    let round = Cell::new(0);
    let cost = |server: &Server| -> io::Result<f64> {
        round.set(round.get() + 1);
        in_redis::dispatch(&mut server.wire()?, &in_redis::DRAIN, 2_000, |n, m| {
            format!("plain-{}-{n}-{m}", round.get())
        })
    };
    let _apart = Apart::of(&[many, none])?;
    let pairs = report.pairs(
        |pairs| {
            Row::of("delayed", format!("in Redis, a dispatch of a plain bucket beside {what}"), pairs.mine, "us")
                .beside("no delayed jobs", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(goal)
        },
        || cost(many),
        || cost(none),
    )?;
    Ok(pairs.beside.median)
}

/// What a daemon asks of Redis while they wait.
fn at_rest(report: &mut Report, many: &Server, policies: &str) -> io::Result<()> {
    const LASTING: Duration = Duration::from_secs(5);
    let _daemon = many.daemon(policies)?;
    let mut wire = many.wire()?;
    wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?;
    wait_for_quiet(&mut wire)?;
    let before = wire.info("stats", "total_commands_processed")?;
    std::thread::sleep(LASTING);
    // One of them is the INFO of the second look.
    let calls = (wire.info("stats", "total_commands_processed")? - before - 1.0) / LASTING.as_secs_f64();
    report.add(Row::new("delayed", "while they wait: commands", calls, "/s").value_goal(Bound::AtMost(2.0)));
    Ok(())
}

/// Microseconds of a call, of those that something makes.
fn usec(wire: &mut Wire, makes: impl FnOnce(&mut Wire) -> io::Result<()>) -> io::Result<f64> {
    wire.call(&["CONFIG", "RESETSTAT"])?;
    makes(wire)?;
    let (calls, usec) = wire.cost("fcall")?;
    Ok(usec / calls.max(1.0))
}

/// Cancelling jobs among them, and a purge of a bucket with as many as a tenth of all.
fn one_by_one(report: &mut Report, wire: &mut Wire) -> io::Result<()> {
    let queue = queue("known");
    let id = |n: usize| format!("id-{n}");
    send(wire, 0, |n| words(&["FCALL", "drip_submit", "1", &queue, JOB, "ID", &id(n), "DELAY", "86400000"]))?;
    let ids = wire.int(&["MEMORY", "USAGE", "drip:ids:known", "SAMPLES", "0"])? as f64 / PART as f64;
    report.add(Row::new("delayed", "a remembered id of 8 bytes, of 100,000", ids, "bytes"));
    let cancel = |wire: &mut Wire| send(wire, 0, |n| words(&["FCALL", "drip_cancel", "1", &queue, &id(n)])).map(drop);
    let cancelled = usec(wire, cancel)?;
    report.add(Row::new("delayed", "in Redis, cancelling one of 100,000 in a bucket", cancelled, "us"));
    let purge = ["FCALL", "drip__purge", "1", &queue, "", "0", "bench@here", "", "", "only"];
    let purged = usec(wire, |wire| match parts(&wire.call(&purge)?).get(4) {
        Some(Reply::Integer(n)) if *n == PART as i64 => Ok(()),
        other => Err(io::Error::other(format!("the purge took {other:?} delayed jobs"))),
    })?;
    let row = Row::new("delayed", "in Redis, the purge of a bucket with 100,000", purged / 1e3, "ms");
    report.add(row.value_goal(Bound::AtMost(20.0)));
    Ok(())
}

/// The same as `others` while the time of some has come and they wait behind their bucket's rate.
fn behind(report: &mut Report, many: &Server, none: &Server) -> io::Result<f64> {
    let mut wire = many.wire()?;
    for _ in 0..100 {
        wire.call(&["FCALL", "drip_submit", "1", &queue("slow"), JOB, "DELAY", "1"])?;
    }
    std::thread::sleep(Duration::from_millis(5));
    in_redis::drain_all(&mut wire)?;
    others(report, many, none, "a bucket with 99 delayed jobs behind its rate", Bound::AtMost(1.2))
}

/// All of them are due: what each takes inside of calls, beside a plain job, and that each bucket lets them out in the order of their times.
fn leave(report: &mut Report, wire: &mut Wire, begins_ms: u64, plain: f64) -> io::Result<()> {
    wire.call(&["XTRIM", &ready(), "MAXLEN", "0"])?;
    wire.call(&["CONFIG", "SET", "slowlog-log-slower-than", "1000", "slowlog-max-len", "100000"])?;
    wire.call(&["SLOWLOG", "RESET"])?;
    wire.call(&["CONFIG", "RESETSTAT"])?;
    let (mut now_us, mut idle, schedule) = ((begins_ms + 2 * SPREAD_MS) * 1_000, 0, keys().schedule());
    while idle < 10 {
        let reply = wire.call(&["FCALL", "drip__drain", "1", &schedule, &now_us.to_string()])?;
        idle = if parts(&reply).get(1) == Some(&Reply::Integer(0)) { idle + 1 } else { 0 };
        now_us += 1_000;
    }
    let (_, spent) = wire.cost("fcall")?;
    let longest = longest_ms(wire)?;
    let seen = in_order(wire)?;
    if seen < JOBS {
        return Err(io::Error::other(format!("of {JOBS} delayed jobs {seen} left")));
    }
    let what = format!("in Redis, a dispatch of a delayed job, {} due at once, in order", figure(JOBS as f64));
    report.add(Row::new("delayed", what, spent / seen as f64, "us").beside("of a plain one", plain));
    report.add(Row::new("delayed", "the longest call of that", longest, "ms"));
    Ok(())
}

/// How many of the million left; an error where one left before an earlier one of its bucket.
fn in_order(wire: &mut Wire) -> io::Result<usize> {
    let (mut last, mut from, mut seen) = (HashMap::<String, String>::new(), "-".to_owned(), 0);
    loop {
        let reply = wire.call(&["XRANGE", &ready(), &from, "+", "COUNT", "10000"])?;
        let entries = parts(&reply);
        let Some(id) = entries.last().and_then(|entry| text(parts(entry).first()?)) else { return Ok(seen) };
        from = format!("({id}");
        for entry in entries {
            let fields = parts(entry).get(1).map(parts).unwrap_or_default();
            let (Some(bucket), Some(job)) = (fields.get(1).and_then(text), fields.get(3).and_then(text)) else {
                return Err(io::Error::other(format!("an entry without a job: {entry:?}")));
            };
            if !bucket.starts_with("later-") {
                continue;
            }
            seen += 1;
            if let Some(before) = last.insert(bucket.to_owned(), job.to_owned())
                && before.as_str() > job
            {
                return Err(io::Error::other(format!("{bucket} let out {before} before {job}")));
            }
        }
    }
}
