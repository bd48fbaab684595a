//! neighbours: how a bucket at 100/s fares while others are busy.

use std::io;
use std::time::Duration;

use super::JOB;
use super::lab::{Daemon, Server, queue};
use super::measure::{Floor, Over, PAIRS, Times};
use super::report::{Bound, Report, Row};
use super::taken::{lateness, take_until};
use super::wire::{Load, Wire};

const POLICIES: &str =
    "[defaults]\nrate = \"1/h\"\ncapacity = 10000000\n[[bucket]]\nmatch = \"steady\"\nrate = \"100/s\"\n";
const PUSHES: usize = 1_000_000 / PAIRS;
const WAKES: usize = 100_000;

/// What one run showed of the steady bucket, and of a connection that only asks for a PONG.
pub(super) struct Seen {
    pub(super) late: Times,
    ping: Times,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self { late: Times::new(), ping: Times::new() }
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.late.join(&other.late);
        self.ping.join(&other.ping);
    }
}

/// A server with a daemon, its steady bucket full of jobs.
pub(super) struct Street {
    _daemon: Daemon,
    pub(super) server: Server,
}

impl Street {
    pub(super) fn new() -> io::Result<Self> {
        let server = Server::start()?;
        let daemon = server.daemon(POLICIES)?;
        let queue = queue("steady");
        let mut load = Load::of([vec!["LPUSH", queue.as_str(), JOB]].into_iter());
        server.wire()?.run(&mut load, 20_000, 64)?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self { _daemon: daemon, server })
    }

    /// Watch the steady bucket while something goes on.
    pub(super) fn watch(&self, meanwhile: impl FnOnce(&mut Wire) -> io::Result<()>) -> io::Result<Seen> {
        let (over, settled) = (Over::default(), Over::default());
        std::thread::scope(|scope| {
            let _set = over.when_dropped();
            let (reads, samples, mut wire) = (self.server.wire()?, self.server.wire()?, self.server.wire()?);
            let worker = scope.spawn(|| take_until(&over, reads));
            let pinged = scope.spawn(|| Floor::sample(samples, &settled));
            let done = meanwhile(&mut wire);
            drop(settled.when_dropped());
            let floor = pinged.join().expect("a sampler does not panic")?;
            drop(over.when_dropped());
            let taken = worker.join().expect("a worker does not panic")?;
            done?;
            Ok(Seen { late: lateness(taken.iter().filter(|job| job.bucket == "steady")), ping: floor.ping })
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
        let most = seen.ping.ms(99.0) + alone.late.ms(99.0) + 0.5;
        let samples = seen.late.len();
        report.add(
            Row::new(
                "neighbours",
                format!("lateness p99 of a bucket at 100/s while {what} ({samples} jobs)"),
                seen.late.ms(99.0),
                "ms",
            )
            .beside("a PING meanwhile, p99", seen.ping.ms(99.0))
            .value_goal(Bound::AtMost(most)),
        );
    }
    Ok(())
}
