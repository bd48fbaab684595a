//! scale: the points of the model in docs/scaling.md that one machine can show: several daemons on one Redis, and a network
//! between a daemon and its Redis. And what each further daemon adds to the work of Redis while there is a steady load.

use std::io;
use std::time::{Duration, Instant};

use dripd::model::route::Route;

use super::drain::{dispatches_a_second, wait_for_jobs};
use super::fill::schedule;
use super::lab::{Daemon, Server, keys, queue, spent};
use super::measure::{Cost, Costs, PAIRS, Pairs};
use super::proxy;
use super::report::{Bound, Report, Row, figure};
use super::wire::{Load, Wire};
use super::{JOB, SLOW};

const BUCKETS: usize = 30_000;

/// Daemons on one Redis, by the socket or with a round trip between them and it.
#[derive(Clone, Copy)]
struct Setting {
    daemons: usize,
    round_trip: Option<Duration>,
}

impl Setting {
    fn words(self) -> String {
        let daemons = if self.daemons == 1 { "1 daemon".to_owned() } else { format!("{} daemons", self.daemons) };
        match self.round_trip {
            None => daemons,
            Some(Duration::ZERO) => format!("{daemons}, through the proxy"),
            Some(added) => format!("{daemons}, a round trip of {} ms more", added.as_secs_f64() * 1e3),
        }
    }

    /// Dispatches a second when everything is due.
    fn rate(self, server: &Server, costs: &Costs) -> io::Result<f64> {
        let mut wire = server.wire()?;
        wire.call(&["FLUSHALL"])?;
        server.record(SLOW)?;
        let url = self.round_trip.map(|added| proxy::delay(server.port, added)).transpose()?;
        let begin = || match url {
            Some(port) => server.daemon_at(&format!("redis://127.0.0.1:{port}"), SLOW),
            None => server.begin_daemon(SLOW),
        };
        // All of them serve, and are held still until everything is due.
        let daemons = (0..self.daemons).map(|_| begin()).collect::<io::Result<Vec<_>>>()?;
        for daemon in &daemons {
            daemon.wait_until_it_serves()?;
            daemon.freeze(true)?;
        }
        schedule(&mut wire, "scale", BUCKETS)?;
        let before = spent(server, &daemons)?;
        for daemon in &daemons {
            daemon.freeze(false)?;
        }
        wait_for_jobs(&mut wire, BUCKETS)?;
        costs.add((spent(server, &daemons)? - before).a_job(BUCKETS));
        dispatches_a_second(&mut wire, BUCKETS)
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    due_at_once(report)?;
    steady(report)
}

fn due_at_once(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let one = Setting { daemons: 1, round_trip: None };
    let micros = |us| Some(Duration::from_micros(us));
    let settings = [
        Setting { daemons: 2, round_trip: None },
        Setting { daemons: 3, round_trip: None },
        Setting { daemons: 1, round_trip: micros(0) },
        Setting { daemons: 1, round_trip: micros(200) },
        Setting { daemons: 1, round_trip: micros(1_000) },
        Setting { daemons: 3, round_trip: micros(1_000) },
    ];
    let mut pairs: [Vec<(f64, f64)>; 6] = Default::default();
    let (costs, of_one): ([Costs; 6], Costs) = Default::default();
    one.rate(&server, &of_one)?; // the first one does not count
    for _ in 0..PAIRS {
        let beside = one.rate(&server, &of_one)?;
        for ((setting, pairs), costs) in settings.iter().zip(&mut pairs).zip(&costs) {
            pairs.push((setting.rate(&server, costs)?, beside));
        }
    }
    for ((setting, pairs), costs) in settings.iter().zip(&pairs).zip(&costs) {
        let pairs = Pairs::of(pairs);
        report.add(
            Row::of("scale", format!("30,000 buckets due at once, {}", setting.words()), pairs.mine, "/s")
                .beside("1 daemon", pairs.beside.median)
                .ratio(pairs.ratio)
                .cost(costs.median()),
        );
    }
    Ok(())
}

/// Buckets that let out 20,000 jobs a second together, their dues spread evenly.
const STEADY: &str = "[defaults]\nrate = \"10/s\"\ncapacity = 10000000\n";
const STEADY_BUCKETS: usize = 2_000;

/// Below this the machine is too busy for the load: Redis lags, its calls carry more jobs each, and further daemons seem free.
const STEADY_AT_LEAST: f64 = 19_000.0;
const INTERVAL: Duration = Duration::from_millis(100);

/// Jobs of each bucket, enough for all samples.
const STEADY_JOBS: usize = 1_000;

/// How long daemons are left alone when one has just started, until each has heard of the others and has found its place; and when some
/// have ended.
const SETTLE: Duration = Duration::from_secs(6);
const SETTLE_ALONE: Duration = Duration::from_secs(1);
const SAMPLE: Duration = Duration::from_secs(1);

/// What a job costs while it drips steadily, and how many left a second: fewer, if this machine cannot do more.
fn cost(server: &Server, wire: &mut Wire, daemons: &[Daemon]) -> io::Result<(Cost, f64)> {
    std::thread::sleep(if daemons.len() > 1 { SETTLE } else { SETTLE_ALONE });
    let ready = keys().ready(&Route::default());
    wire.call(&["XTRIM", &ready, "MAXLEN", "0"])?;
    let (start, before, since) = (wire.int(&["XLEN", &ready])?, spent(server, daemons)?, Instant::now());
    std::thread::sleep(SAMPLE);
    let (after, end, lasted) = (spent(server, daemons)?, wire.int(&["XLEN", &ready])?, since.elapsed());
    let jobs = usize::try_from(end - start).ok().filter(|jobs| *jobs > 0);
    let jobs = jobs.ok_or_else(|| io::Error::other("nothing left its bucket"))?;
    Ok(((after - before).a_job(jobs), jobs as f64 / lasted.as_secs_f64()))
}

/// Processor time of Redis for a job with two and three daemons, beside one. The first daemon runs all the time, so that the
/// dues keep their places between the samples.
fn steady(report: &mut Report) -> io::Result<()> {
    let server = Server::start()?;
    let mut daemons = vec![server.daemon(STEADY)?];
    let mut wire = server.wire()?;
    for n in 0..STEADY_BUCKETS {
        let queue = queue(&format!("steady-{n}"));
        let mut words = vec!["LPUSH", queue.as_str()];
        words.resize(2 + STEADY_JOBS, JOB);
        wire.run(&mut Load::of([words].into_iter()), 1, 1)?;
        std::thread::sleep(INTERVAL / 100); // twenty intervals for all of them
    }
    let (mut pairs, costs): ([Vec<(f64, f64)>; 2], [Costs; 3]) = Default::default();
    let mut least = f64::INFINITY;
    for _ in 0..PAIRS {
        let (one, rate) = cost(&server, &mut wire, &daemons)?;
        least = least.min(rate);
        costs[0].add(one);
        for (pairs, costs) in pairs.iter_mut().zip(&costs[1..]) {
            daemons.push(server.daemon(STEADY)?);
            let (more, rate) = cost(&server, &mut wire, &daemons)?;
            least = least.min(rate);
            pairs.push((more.redis_us, one.redis_us));
            costs.add(more);
        }
        daemons.truncate(1);
    }
    let one = costs[0].median();
    let what = format!("20,000 dispatches a second (at least {} were reached), 1 daemon: Redis, a job", figure(least));
    report.add(Row::new("scale", what, one.redis_us, "us").cost(one));
    for ((daemons, pairs), costs) in [2, 3].into_iter().zip(&pairs).zip(&costs[1..]) {
        let pairs = Pairs::of(pairs);
        let row =
            Row::of("scale", format!("20,000 dispatches a second, {daemons} daemons: Redis, a job"), pairs.mine, "us")
                .beside("1 daemon", pairs.beside.median)
                .ratio(pairs.ratio)
                .cost(costs.median());
        report.add(if least < STEADY_AT_LEAST { row } else { row.ratio_goal(Bound::AtMost(1.05)) });
    }
    Ok(())
}
