//! neighbours: how a bucket at 100/s fares while others are busy.

use std::io;
use std::time::Duration;

use super::JOB;
use super::lab::{Daemon, Server, queue};
use super::measure::{Floor, Over, PAIRS, Times};
use super::pace::now_us;
use super::report::{Bound, Report, Row};
use super::taken::{lateness, take_until};
use super::wire::{Load, Wire};

const POLICIES: &str =
    "[defaults]\nrate = \"1/h\"\ncapacity = 10000000\n[[bucket]]\nmatch = \"steady\"\nrate = \"100/s\"\n";
const PUSHES: usize = 1_000_000 / PAIRS;
const WAKES: usize = 100_000;

/// What one run showed of the steady bucket, of the others, and of a connection that only asks for a PONG.
pub(super) struct Seen {
    pub(super) late: Times,
    ping: Times,
    /// Jobs that left other buckets in the time that was watched.
    pub(super) others: usize,
    /// Of the time that was watched, on the server's clock.
    pub(super) us: u64,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self { late: Times::new(), ping: Times::new(), others: 0, us: 0 }
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.late.join(&other.late);
        self.ping.join(&other.ping);
        self.others += other.others;
        self.us += other.us;
    }

    /// The row of the steady bucket's lateness, beside the PING meanwhile: it may be later than alone by what that takes, and by
    /// half a millisecond.
    pub(super) fn row(&self, suite: &'static str, what: &str, alone: &Self) -> Row {
        let most = self.ping.ms(99.0) + alone.late.ms(99.0) + 0.5;
        let what = format!("lateness p99 of a bucket at 100/s while {what} ({} jobs)", self.late.len());
        Row::new(suite, what, self.late.ms(99.0), "ms")
            .beside("a PING meanwhile, p99", self.ping.ms(99.0))
            .value_goal(Bound::AtMost(most))
    }
}

/// A server with a daemon, its steady bucket full of jobs.
pub(super) struct Street {
    pub(super) daemon: Daemon,
    pub(super) server: Server,
}

impl Street {
    /// One with the steady bucket alone.
    pub(super) fn new() -> io::Result<Self> {
        Self::with("")
    }

    /// One with further policies.
    pub(super) fn with(policies: &str) -> io::Result<Self> {
        let server = Server::start()?;
        let daemon = server.daemon(&format!("{POLICIES}{policies}"))?;
        let queue = queue("steady");
        let mut load = Load::of([vec!["LPUSH", queue.as_str(), JOB]].into_iter());
        server.wire()?.run(&mut load, 20_000, 64)?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self { daemon, server })
    }

    /// Watch the steady bucket while something goes on.
    pub(super) fn watch(&self, meanwhile: impl FnOnce(&mut Wire) -> io::Result<()>) -> io::Result<Seen> {
        let (over, settled) = (Over::default(), Over::default());
        std::thread::scope(|scope| {
            let _set = over.when_dropped();
            let (reads, samples, mut wire) = (self.server.wire()?, self.server.wire()?, self.server.wire()?);
            let worker = scope.spawn(|| take_until(&over, reads));
            let pinged = scope.spawn(|| Floor::sample(samples, &settled));
            let from = now_us(&mut wire)?;
            let done = meanwhile(&mut wire);
            let to = now_us(&mut wire)?;
            drop(settled.when_dropped());
            let floor = pinged.join().expect("a sampler does not panic")?;
            drop(over.when_dropped());
            let taken = worker.join().expect("a worker does not panic")?;
            done?;
            let (steady, others): (Vec<_>, Vec<_>) = taken.iter().partition(|job| job.bucket == "steady");
            let others = others.iter().filter(|job| (from..to).contains(&job.at_us)).count();
            Ok(Seen { late: lateness(steady.into_iter()), ping: floor.ping, others, us: to - from })
        })
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let street = Street::new()?;
    let (mut alone, mut pushed, mut woken) = (Seen::new(), Seen::new(), Seen::new());
    let busy = queue("busy");
    let mut flood = Load::of([vec!["LPUSH", busy.as_str(), JOB]].into_iter());
    for round in 0..PAIRS {
        alone.join(&street.watch(|_| {
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        })?);
        pushed.join(&street.watch(|wire| wire.run(&mut flood, PUSHES, 16))?);
        street.server.wire()?.call(&["UNLINK", &busy])?;
        let queues: Vec<String> = (0..WAKES).map(|n| queue(&format!("woken-{round}-{n}"))).collect();
        let mut wakes = Load::of(queues.iter().map(|queue| vec!["LPUSH", queue, JOB]));
        woken.join(&street.watch(|wire| wire.run(&mut wakes, WAKES, 16))?);
    }
    report.add(Row::new("neighbours", "lateness p99 of a bucket at 100/s, alone", alone.late.ms(99.0), "ms"));
    for (what, seen) in
        [("another takes 1,000,000 pushes in five floods", pushed), ("100,000 buckets wake at once", woken)]
    {
        report.add(seen.row("neighbours", what, &alone));
    }
    Ok(())
}
