//! drain: everything is due at once, as after an outage. How many jobs leave a second, beside the two commands that cannot be
//! saved; how quickly queues are found that were filled while no daemon ran; what many `[[bucket]]` entries cost.

use std::io;

use super::fill::{push_plainly, ready, schedule};
use super::in_redis::emptied;
use super::lab::{Daemon, Server, queue, spent, wait_for};
use super::measure::{Cost, Costs, Pairs};
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Reply, Wire, parts, text};
use super::{FAST, JOB, SLOW};

/// Wait until so many jobs are in the ready stream.
pub(super) fn wait_for_jobs(wire: &mut Wire, jobs: usize) -> io::Result<()> {
    wait_for("the jobs to leave their buckets", || Ok(wire.int(&["XLEN", &ready()])? >= jobs as i64))
}

/// When each entry of a stream left its bucket, in microseconds, a page at a time.
pub(super) fn dispatch_times(wire: &mut Wire, ready: &str) -> io::Result<Vec<u64>> {
    let (mut times, mut from) = (Vec::new(), "-".to_owned());
    loop {
        let reply = wire.call(&["XRANGE", ready, &from, "+", "COUNT", "10000"])?;
        let Some(last) = parts(&reply).last().and_then(|entry| text(parts(entry).first()?)) else { return Ok(times) };
        from = format!("({last}");
        times.extend(parts(&reply).iter().filter_map(at_us));
    }
}

/// Jobs a second, from the first time to the last; the jobs of the last call had no time of their own.
pub(super) fn rate_of(times: &[u64]) -> io::Result<f64> {
    let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else {
        return Err(io::Error::other("no job left"));
    };
    let of_last = times.iter().filter(|at| *at == last).count();
    Ok((times.len() - of_last) as f64 * 1e6 / (last - first).max(1) as f64)
}

/// When an entry left its bucket.
fn at_us(entry: &Reply) -> Option<u64> {
    text(parts(parts(entry).get(1)?).get(9)?)?.parse().ok()
}

/// When the first and the last call let jobs out, and how many the last one did: from the entries themselves.
fn ends(wire: &mut Wire) -> io::Result<(u64, u64, usize)> {
    let mut times = |command, from, to, count| -> io::Result<Vec<u64>> {
        let reply = wire.call(&[command, &ready(), from, to, "COUNT", count])?;
        Ok(parts(&reply).iter().filter_map(at_us).collect())
    };
    let (first, last) = (times("XRANGE", "-", "+", "1")?, times("XREVRANGE", "+", "-", "1000")?);
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

/// A daemon that was started on what was due, when all of it has left.
pub(super) struct Drained {
    /// Dispatches a second.
    rate: f64,
    /// Processor time of a job, the start of the daemon included.
    cost: Cost,
    daemon: Daemon,
}

impl Drained {
    pub(super) fn cost(&self) -> Cost {
        self.cost
    }
}

/// Start a daemon and wait until so many jobs left.
pub(super) fn drain(server: &Server, policies: &str, jobs: usize) -> io::Result<Drained> {
    let before = spent(server, &[])?;
    let daemon = server.begin_daemon(policies)?;
    let mut wire = server.wire()?;
    wait_for_jobs(&mut wire, jobs)?;
    let cost = (spent(server, std::slice::from_ref(&daemon))? - before).a_job(jobs);
    Ok(Drained { rate: dispatches_a_second(&mut wire, jobs)?, cost, daemon })
}

/// So many buckets with a job each, due at once.
fn drain_many(server: &Server, policies: &str, buckets: usize, costs: &Costs) -> io::Result<f64> {
    schedule(&mut emptied(server, policies)?, "drain", buckets)?;
    let drained = drain(server, policies, buckets)?;
    costs.add(drained.cost);
    Ok(drained.rate)
}

/// So many buckets with a job each, pushed plainly while no daemon runs: it has to find them.
fn drain_found(server: &Server, buckets: usize, costs: &Costs) -> io::Result<f64> {
    push_plainly(&mut emptied(server, SLOW)?, "found", buckets)?;
    let drained = drain(server, SLOW, buckets)?;
    costs.add(drained.cost);
    Ok(drained.rate)
}

/// One bucket with many jobs, all of them due.
fn drain_one(server: &Server, jobs: usize, costs: &Costs) -> io::Result<f64> {
    let mut wire = emptied(server, FAST)?;
    let queue = queue("fast");
    let mut words = vec!["FCALL", "drip_push", "1", queue.as_str()];
    words.resize(4 + 1_000, JOB);
    let mut load = Load::of([words].into_iter());
    wire.run(&mut load, jobs / 1_000, 1)?;
    let drained = drain(server, FAST, jobs)?;
    costs.add(drained.cost);
    Ok(drained.rate)
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
    for (buckets, goal) in [(10_000, None), (100_000, Some(Bound::AtLeast(0.48)))] {
        let (what, costs) = (format!("{} buckets due at once", figure(buckets as f64)), Costs::default());
        let pairs = report.pairs(
            |pairs| {
                let row = beside_floor(&what, pairs, &costs);
                if let Some(goal) = goal { row.ratio_goal(goal) } else { row }
            },
            || drain_many(&mine, SLOW, buckets, &costs),
            || floor(&bare, buckets, buckets),
        )?;
        report.point("drain", "dripd", buckets as f64, pairs.mine.median);
        report.point("drain", "XADD + RPOP, pipelined", buckets as f64, pairs.beside.median);
    }
    let (jobs, costs) = (200_000, Costs::default());
    report.pairs(
        |pairs| beside_floor("one fast bucket", pairs, &costs).value_goal(Bound::AtLeast(400_000.0)),
        || drain_one(&mine, jobs, &costs),
        || floor(&bare, 1, jobs),
    )?;
    drop(mine);
    found(report)?;
    entries(report)?;
    million(report, &bare)
}

fn beside_floor(what: &str, pairs: &Pairs, costs: &Costs) -> Row {
    let row = Row::of("drain", what, pairs.mine, "/s").beside("XADD + RPOP", pairs.beside.median);
    row.ratio(pairs.ratio).cost(costs.median())
}

/// Two things in turns, as in all pairs, but only three of them: each takes a quarter of a minute.
fn few(mut mine: impl FnMut() -> io::Result<f64>, mut beside: impl FnMut() -> io::Result<f64>) -> io::Result<Pairs> {
    let one = (mine()?, beside()?);
    let beside_first = beside()?;
    let two = (mine()?, beside_first);
    Ok(Pairs::of(&[one, two, (mine()?, beside()?)]))
}

/// Queues that were filled while no daemon ran, beside buckets that are scheduled already.
fn found(report: &mut Report) -> io::Result<()> {
    let (server, costs, of_due) = (Server::start()?, Costs::default(), Costs::default());
    let pairs = few(|| drain_found(&server, 400_000, &costs), || drain_many(&server, SLOW, 100_000, &of_due))?;
    report.add(
        Row::of("drain", "400,000 queues with a job each, filled while no daemon ran", pairs.mine, "/s")
            .beside("100,000 buckets due at once", pairs.beside.median)
            .ratio(pairs.ratio)
            .cost(costs.median())
            .ratio_goal(Bound::AtLeast(0.7)),
    );
    Ok(())
}

/// A thousand `[[bucket]]` entries: names of some of the buckets, and globs that none of them fits and all are compared with.
fn many_entries() -> String {
    let names = (0..900).map(|n| format!("drain-{}", n * 100));
    let globs = (0..100).map(|n| format!("*:tenant-{n}"));
    let entry = |name| format!("[[bucket]]\nmatch = \"{name}\"\nrate = \"1/h\"\ncapacity = 10000000\n");
    names.chain(globs).map(entry).fold(SLOW.to_owned(), |policies, entry| policies + &entry)
}

/// Dispatches of buckets under many entries, beside the same under none.
fn entries(report: &mut Report) -> io::Result<()> {
    const BUCKETS: usize = 100_000;
    let (server, policies, costs, none) = (Server::start()?, many_entries(), Costs::default(), Costs::default());
    let pairs = few(|| drain_many(&server, &policies, BUCKETS, &costs), || drain_many(&server, SLOW, BUCKETS, &none))?;
    report.add(
        Row::of("drain", "100,000 buckets due at once, 1,000 [[bucket]] entries", pairs.mine, "/s")
            .beside("no entries", pairs.beside.median)
            .ratio(pairs.ratio)
            .cost(costs.median())
            .ratio_goal(Bound::AtLeast(0.95)),
    );
    Ok(())
}

/// A million of them, once: it takes half a minute. The daemon's memory in such a burst is seen on the way.
fn million(report: &mut Report, bare: &Server) -> io::Result<()> {
    const MILLION: usize = 1_000_000;
    let server = Server::start()?;
    server.record(SLOW)?;
    schedule(&mut server.wire()?, "drain", MILLION)?;
    let Drained { rate, cost, daemon } = drain(&server, SLOW, MILLION)?;
    let (_, peak) = daemon.memory()?;
    let beside = floor(bare, MILLION, MILLION)?;
    let row = Row::new("drain", "1,000,000 buckets due at once (one run)", rate, "/s").cost(cost);
    report.add(row.beside("XADD + RPOP", beside));
    report.point("drain", "dripd", MILLION as f64, rate);
    report.point("drain", "XADD + RPOP, pipelined", MILLION as f64, beside);
    report.add(
        Row::new("memory", "the daemon at most, 1,000,000 due at once", peak, "MB").value_goal(Bound::AtMost(48.0)),
    );
    Ok(())
}
