//! tree: what budgets, quotas and slots cost: a job in Redis, beside that of a plain bucket; memory; and a crowd of 100,000 buckets
//! in 1,000 accounts in 10 providers, with what a bucket outside of all that notices.

use std::io;
use std::time::{Duration, Instant};

use super::JOB;
use super::fill::{push_plainly, ready, schedule_all};
use super::in_redis::{DRAIN, dispatch, dispatch_once, drain_all, drain_once, emptied};
use super::lab::{Apart, Server, queue, spent};
use super::measure::Pairs;
use super::neighbours::{Seen, Street};
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Wire};

/// So many buckets are due at once.
const BUCKETS: usize = 2_000;

/// A bucket within an account within a provider, none of which keeps a job back; a plain one; one of each that drips again and again, where
/// the others let one job out; and one with a quota, and one with slots.
const DEPTH_THREE: &str = r#"
[defaults]
rate = "1/h"
capacity = 10000000
[[budget]]
match = "provider"
rate = "1000000/s"
catch_up = "1s"
[[budget]]
match = "provider:*"
rate = "1000000/s"
catch_up = "1s"
within = "provider"
[[bucket]]
match = "again-*"
rate = "1000/s"
[[bucket]]
match = "provider:*:again-*"
rate = "1000/s"
within = "provider:{1}"
[[bucket]]
match = "provider:*:*"
within = "provider:{1}"
[[bucket]]
match = "daily:*"
quota = "1000000/d"
[[bucket]]
match = "slots:*"
concurrency = 1000
"#;

/// What the saturated budget lets out in a second.
const SATURATED_RATE: usize = 2_000;

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    uncontended(report)?;
    uncontended_crowd(report)?;
    saturated(report)?;
    memory(report)?;
    crowd(report)
}

/// The row of a dispatch beside that of a plain bucket.
fn beside_plain(what: &str, pairs: &Pairs, goal: Option<f64>) -> Row {
    let row = Row::of("tree", format!("in Redis, a dispatch {what}"), pairs.mine, "us")
        .beside("of a plain bucket", pairs.beside.median)
        .ratio(pairs.ratio);
    goal.iter().fold(row, |row, most| row.ratio_goal(Bound::AtMost(*most)))
}

/// The name of a bucket, by its round and number.
type Name<'a> = &'a dyn Fn(usize, usize) -> String;

/// What a dispatch takes of buckets with these names.
fn of(server: &Server, name: Name) -> io::Result<f64> {
    dispatch(&mut emptied(server, DEPTH_THREE)?, &DRAIN, BUCKETS, name)
}

/// Dispatches that no level keeps back. Those of plain buckets beside them have names of the same length: a longer one takes longer.
fn uncontended(report: &mut Report) -> io::Result<()> {
    let (mine, beside) = (Server::start()?, Server::start()?);
    let _apart = Apart::of(&[&mine, &beside])?;
    let mut compare = |what: &str, name: Name, plain: Name, goal| {
        report.pairs(|pairs| beside_plain(what, pairs, goal), || of(&mine, name), || of(&beside, plain)).map(drop)
    };
    // With 100 accounts and more each job of a call is in an account of its own. With 1,000 an account comes again only after ten calls.
    for (accounts, many) in [(10, "10"), (100, "100"), (1_000, "1,000")] {
        let again = |first: &'static str| move |_: usize, n: usize| format!("{first}:{}:again-{n}", n % accounts);
        let what = format!("at depth three, uncontended, {many} accounts, each bucket again and again");
        compare(&what, &again("provider"), &again("again-er"), Some(1.3))?;
    }
    for (accounts, many) in [(10, "10"), (100, "100"), (1_000, "1,000")] {
        let new = |first: &'static str| move |round: usize, n: usize| format!("{first}:{}:{round}-{n}", n % accounts);
        let what = format!("at depth three, uncontended, {many} accounts, each bucket's first job");
        compare(&what, &new("provider"), &new("plain-er"), Some(1.3))?;
    }
    let new = |first: &'static str| move |round: usize, n: usize| format!("{first}:{round}-{n}");
    compare("of a bucket with a quota", &new("daily"), &new("plain"), None)?;
    compare("of a bucket with slots", &new("slots"), &new("plain"), None)
}

/// The crowd again, where nothing keeps a job back: its buckets become due in any order.
fn uncontended_crowd(report: &mut Report) -> io::Result<()> {
    let (mine, beside) = (Server::start()?, Server::start()?);
    let _apart = Apart::of(&[&mine, &beside])?;
    let policies = crowded(1_000_000, 1_000_000, 1_000) + "[defaults]\nrate = \"1000/s\"\n";
    let (mut mine, mut beside) = (emptied(&mine, &policies)?, emptied(&beside, &policies)?);
    let of = |wire: &mut Wire, kind| {
        let mut senders: Vec<usize> = (0..SENDERS).collect();
        fastrand::shuffle(&mut senders);
        let us = dispatch_once(wire, &DRAIN, senders.into_iter().map(|n| member(kind, n)))?;
        Ok(us / SENDERS as f64)
    };
    report.pairs(
        |pairs| beside_plain(&format!("at depth three, uncontended, {CROWD}"), pairs, Some(1.3)),
        || of(&mut mine, "sender"),
        || of(&mut beside, "nobody"),
    )?;
    Ok(())
}

/// Dispatches under one budget that everybody waits for.
fn saturated(report: &mut Report) -> io::Result<()> {
    let (mine, beside) = (Server::start()?, Server::start()?);
    let _apart = Apart::of(&[&mine, &beside])?;
    for (children, goal) in [(1_000, Some(1.8)), (10_000, None)] {
        let what = format!("under one saturated budget, {} children waiting", figure(children as f64));
        report.pairs(
            |pairs| beside_plain(&what, pairs, goal),
            || serve(&mine, children),
            || plain_in_rhythm(&beside),
        )?;
    }
    Ok(())
}

/// The calls of a round, a batch each, and how many rounds there are. Between two of them passes the time in which a saturated budget comes to
/// allow as much. What a server computes after a pause takes it longer, so a plain bucket is measured in the same rhythm.
const CALLS: usize = 2;
const ROUNDS: usize = 20;

/// Microseconds that the calls of all rounds take, each begun by `prepare`.
fn rounds(wire: &mut Wire, mut prepare: impl FnMut(&mut Wire, usize) -> io::Result<()>) -> io::Result<f64> {
    let mut usec = 0.0;
    for round in 0..ROUNDS {
        prepare(wire, round)?;
        std::thread::sleep(Duration::from_secs_f64((100 * CALLS) as f64 / SATURATED_RATE as f64));
        wire.call(&["CONFIG", "RESETSTAT"])?;
        for _ in 0..CALLS {
            drain_once(wire, &DRAIN)?;
        }
        usec += wire.cost("fcall")?.1;
    }
    Ok(usec)
}

/// What a dispatch of a plain bucket takes in calls that come in this rhythm.
fn plain_in_rhythm(server: &Server) -> io::Result<f64> {
    let mut wire = emptied(server, DEPTH_THREE)?;
    let due =
        |wire: &mut Wire, round: usize| schedule_all(wire, (0..100 * CALLS).map(|n| format!("plain-{round}-{n}")), 1);
    let usec = rounds(&mut wire, due)?;
    Ok(usec / wire.int(&["XLEN", &ready()])? as f64)
}

/// What a dispatch takes inside of calls of full batches, while so many children wait for one budget.
fn serve(server: &Server, children: usize) -> io::Result<f64> {
    let policies = format!(
        "[defaults]\ncapacity = 10000000\n[[budget]]\nmatch = \"busy\"\nrate = \"{SATURATED_RATE}/s\"\ncatch_up = \"1s\"\n\
         [[bucket]]\nmatch = \"busy:*\"\nrate = \"1000/s\"\nwithin = \"busy\"\n"
    );
    let mut wire = emptied(server, &policies)?;
    // In their turns they leave about one job each in a round, and never run out.
    let jobs = 2 * ROUNDS * 100 * CALLS / children + 20;
    schedule_all(&mut wire, (0..children).map(|n| format!("busy:{n}")), jobs)?;
    drain_all(&mut wire)?;
    let before = wire.int(&["XLEN", &ready()])?;
    let usec = rounds(&mut wire, |_, _| Ok(()))?;
    let left = wire.int(&["XLEN", &ready()])? - before;
    if left < (ROUNDS * CALLS * 100) as i64 {
        return Err(io::Error::other(format!("only {left} jobs left a saturated budget")));
    }
    Ok(usec / left as f64)
}

/// Bytes of a child that waits for its budget, and of a budget that is not at rest.
fn memory(report: &mut Report) -> io::Result<()> {
    const CHILDREN: usize = 100_000;
    let policies = "[defaults]\nrate = \"1000/s\"\ncapacity = 10000000\n[[budget]]\nmatch = \"*\"\nrate = \"1/h\"\n\
                    [[bucket]]\nmatch = \"child-*\"\nwithin = \"all\"\n[[bucket]]\nmatch = \"own-*\"\nwithin = \"of-{1}\"\n";
    let added = |what: &dyn Fn(&mut Wire) -> io::Result<()>| -> io::Result<f64> {
        let server = Server::start()?;
        let mut wire = emptied(&server, policies)?;
        let before = wire.info("memory", "used_memory")?;
        what(&mut wire)?;
        Ok((wire.info("memory", "used_memory")? - before) / CHILDREN as f64)
    };
    let names = |name: &'static str| (0..CHILDREN).map(move |n| format!("{name}-{n}"));
    let queues = added(&|wire| push_plainly(wire, "child", CHILDREN))?;
    let waiting = added(&|wire| {
        schedule_all(wire, names("child"), 1)?;
        drain_all(wire)
    })?;
    let budgets = added(&|wire| {
        schedule_all(wire, names("own"), 1)?;
        drain_all(wire)?;
        std::thread::sleep(Duration::from_millis(10)); // the buckets come to rest, their budgets do not
        drain_all(wire)?;
        wire.call(&["XTRIM", &ready(), "MAXLEN", "0"]).map(drop)
    })?;
    report.add(
        Row::new("tree", "a bucket that waits for its budget, beside its jobs", waiting - queues, "bytes")
            .value_goal(Bound::AtMost(350.0)),
    );
    report.add(Row::new("tree", "a budget that is not at rest", budgets, "bytes").value_goal(Bound::AtMost(500.0)));
    Ok(())
}

/// The crowd: so many providers, accounts in each of them, and senders in all.
const PROVIDERS: usize = 10;
const ACCOUNTS: usize = 100;
const SENDERS: usize = 100_000;
const CROWD: &str = "100,000 buckets in 1,000 accounts in 10 providers";

/// What all providers let out in a second.
const ALLOWED: usize = 2_000;

/// The policies of the crowd: what a provider, an account and a sender may let out in a second.
fn crowded(provider: usize, account: usize, sender: usize) -> String {
    format!(
        "[[budget]]\nmatch = \"provider:*\"\nrate = \"{provider}/s\"\n\
         [[budget]]\nmatch = \"account:*:*\"\nrate = \"{account}/s\"\nwithin = \"provider:{{1}}\"\n\
         [[bucket]]\nmatch = \"sender:*:*:*\"\nrate = \"{sender}/s\"\nwithin = \"account:{{1}}:{{2}}\"\n"
    )
}

/// The name of one of the crowd, by its number; of another kind, it is a plain bucket.
fn member(kind: &str, n: usize) -> String {
    format!("{kind}:{}:{}:{n}", n % PROVIDERS, n / PROVIDERS % ACCOUNTS)
}

/// The crowd: with nothing to do, at 80 %, and saturated.
fn crowd(report: &mut Report) -> io::Result<()> {
    const LASTING: Duration = Duration::from_secs(10);
    const EVERY: Duration = Duration::from_millis(10);
    let idle = |street: &Street| {
        street.watch(|_| {
            std::thread::sleep(LASTING);
            Ok(())
        })
    };
    let alone = idle(&Street::new()?)?;
    report.add(Row::new("tree", "lateness p99 of a bucket at 100/s, no budgets", alone.late.ms(99.0), "ms"));
    // The providers are the narrow place.
    let street = Street::with(&crowded(ALLOWED / PROVIDERS, 20, 10))?;
    let sender = |n| queue(&member("sender", n));
    report.add(idle(&street)?.row("tree", &format!("{CROWD} are idle"), &alone));

    let pushes = ALLOWED * 8 / 10 * LASTING.as_millis() as usize / 1_000;
    let queues: Vec<String> = (0..pushes).map(|_| sender(fastrand::usize(0..SENDERS))).collect();
    let mut load = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
    let (busy, cost) = costing(&street, |wire| {
        let (since, at_once) = (Instant::now(), pushes / (LASTING.as_millis() / EVERY.as_millis()) as usize);
        for n in 0..pushes / at_once {
            std::thread::sleep((since + EVERY * n as u32).saturating_duration_since(Instant::now()));
            wire.run(&mut load, at_once, at_once)?;
        }
        Ok(())
    })?;
    let rate = |seen: &Seen| seen.others as f64 * 1e6 / seen.us as f64;
    let came = pushes as f64 * 1e6 / busy.us as f64;
    report.add(busy.row("tree", &format!("{CROWD} are used at 80 %"), &alone));
    report.add(
        Row::new("tree", format!("{CROWD}, at 80 %: jobs that left"), rate(&busy), "/s")
            .beside("that came", came)
            .cost(cost)
            .ratio_goal(Bound::AtLeast(0.99)),
    );

    let queues: Vec<String> = (0..SENDERS).map(sender).collect();
    let mut load = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
    street.server.wire()?.run(&mut load, SENDERS, 64)?;
    // Until all of them have been looked at, and wait; on a slow machine that takes half a minute.
    for _ in 0..6 {
        if rate(&idle(&street)?) >= 0.99 * ALLOWED as f64 {
            break;
        }
    }
    let (full, cost) = costing(&street, |_| {
        std::thread::sleep(LASTING);
        Ok(())
    })?;
    report.add(full.row("tree", &format!("{CROWD} are saturated"), &alone));
    report.add(
        Row::new("tree", format!("{CROWD}, saturated: jobs that left"), rate(&full), "/s")
            .beside("the rates of the providers", ALLOWED as f64)
            .cost(cost)
            .ratio_goal(Bound::AtLeast(0.99)),
    );
    Ok(())
}

/// Watch a street, and what each job costs meanwhile, those of the steady bucket too.
fn costing(
    street: &Street,
    meanwhile: impl FnOnce(&mut Wire) -> io::Result<()>,
) -> io::Result<(Seen, super::measure::Cost)> {
    let daemons = std::slice::from_ref(&street.daemon);
    let before = spent(&street.server, daemons)?;
    let seen = street.watch(meanwhile)?;
    let jobs = seen.others + seen.late.len() as usize;
    Ok((seen, (spent(&street.server, daemons)? - before).a_job(jobs)))
}
