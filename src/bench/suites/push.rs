//! push: what a producer pays, and what the daemon's listening costs it.

use std::io;
use std::time::Duration;

use super::drain::wait_for_jobs;
use super::{FLOORS, JOB, SLOW};
use crate::bench::lab::{Server, keys, queue, wait_for};
use crate::bench::measure::Over;
use crate::bench::report::{Bound, Report, Row};
use crate::bench::wire::{Load, Wire};

const MANY: usize = 100_000;
const SAMPLE: Duration = Duration::from_millis(300);

/// One bucket, or many.
#[derive(Clone, Copy)]
enum Spread {
    One,
    Many,
}

impl Spread {
    fn buckets(self) -> usize {
        match self {
            Self::One => 1,
            Self::Many => MANY,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::One => "one bucket",
            Self::Many => "100,000 buckets",
        }
    }

    fn load(self, command: &[&str]) -> Load {
        let queues: Vec<String> = (0..self.buckets()).map(|n| queue(&format!("push-{n}"))).collect();
        Load::of(queues.iter().map(|queue| [command, &[queue, JOB]].concat()))
    }
}

/// A server, a connection to it, and a way to begin each sample alike.
struct Place<'a> {
    server: &'a Server,
    wire: Wire,
}

impl<'a> Place<'a> {
    fn at(server: &'a Server) -> io::Result<Self> {
        Ok(Self { server, wire: server.wire()? })
    }

    /// Calls a second. What they left in one bucket is taken away; a hundred thousand grow a little.
    fn rate(&mut self, load: &mut Load, pipeline: usize) -> io::Result<f64> {
        let rate = self.wire.rate(load, pipeline, SAMPLE)?;
        self.wire.call(&["UNLINK", &queue("push-0")])?;
        Ok(rate)
    }

    /// The same, beside a connection that has every change under the queues reported to it and reads it, no more.
    fn rate_with_reader(&mut self, load: &mut Load, pipeline: usize) -> io::Result<f64> {
        let mut reader = self.server.wire()?;
        reader.send(&["HELLO", "3"])?;
        reader.send(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", keys().queues()])?;
        let over = Over::default();
        std::thread::scope(|scope| {
            scope.spawn(|| while !over.is_set() && reader.discard().is_ok() {});
            let _set = over.when_dropped();
            self.rate(load, pipeline)
        })
    }

    /// Begin again with nothing.
    fn clear(&mut self, has_daemon: bool) -> io::Result<()> {
        self.wire.call(&["FLUSHALL"])?;
        let id = || self.server.wire()?.int(&["HEXISTS", &keys().policy(), "id"]);
        if has_daemon { wait_for("the policies", || Ok(id()? == 1)) } else { Ok(()) }
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (watched, bare) = (Server::start()?, Server::start()?);
    let _daemon = watched.daemon(SLOW)?;
    bare.record(SLOW)?;
    bare.wire()?.call(&["FUNCTION", "LOAD", FLOORS])?;
    let (mut with, mut without) = (Place::at(&watched)?, Place::at(&bare)?);
    plain(report, &mut with, &mut without)?;
    with.clear(true)?;
    without.wire.call(&["FLUSHALL"])?;
    bare.record(SLOW)?;
    atomic(report, &mut without)?;
    pushed_with_daemon(report, &mut with, &mut without)
}

/// Plain pushes with the daemon, beside the same without it. The hundred thousand buckets have jobs already: what it takes to
/// dispatch their first ones is the business of other suites.
fn plain(report: &mut Report, with: &mut Place, without: &mut Place) -> io::Result<()> {
    for wire in [&mut with.wire, &mut without.wire] {
        wire.run(&mut Spread::Many.load(&["LPUSH"]), MANY, 64)?;
    }
    wait_for_jobs(&mut with.wire, MANY)?;
    for (spread, pipeline, goal) in [
        (Spread::One, 1, Some(0.9)),
        (Spread::Many, 1, Some(0.9)),
        (Spread::One, 16, None),
        (Spread::Many, 16, Some(0.4)),
        (Spread::One, 64, None),
        (Spread::Many, 64, None),
    ] {
        let (mut mine, mut other) = (spread.load(&["LPUSH"]), spread.load(&["LPUSH"]));
        let what = format!("LPUSH, pipeline {pipeline}, {}, with the daemon", spread.words());
        report.pairs(
            |pairs| {
                let row = Row::new("push", &what, pairs.mine.median, "/s").beside("without", pairs.beside.median);
                let row = row.ratio(pairs.ratio);
                if let Some(goal) = goal { row.ratio_goal(Bound::AtLeast(goal)) } else { row }
            },
            || with.rate(&mut mine, pipeline),
            || without.rate(&mut other, pipeline),
        )?;
    }
    let (mut mine, mut other) = (Spread::One.load(&["LPUSH"]), Spread::One.load(&["LPUSH"]));
    report.pairs(
        |pairs| {
            Row::new("push", "LPUSH, pipeline 16, one bucket, with the daemon", pairs.mine.median, "/s")
                .beside("with a passive tracking reader", pairs.beside.median)
                .ratio(pairs.ratio)
                .ratio_goal(Bound::AtLeast(0.9))
        },
        || with.rate(&mut mine, 16),
        || without.rate_with_reader(&mut other, 16),
    )?;
    Ok(())
}

/// Atomic pushes beside plain ones, an empty function, and one that makes the same calls.
fn atomic(report: &mut Report, place: &mut Place) -> io::Result<()> {
    const PUSH: [&str; 3] = ["FCALL", "drip_push", "1"];
    for (spread, pipeline, beside, name, goal) in [
        (Spread::One, 1, &["LPUSH"] as &[&str], "LPUSH", Some(0.9)),
        (Spread::One, 16, &["FCALL", "floor_push", "1"], "the same calls and no more", Some(0.7)),
        (Spread::Many, 16, &["FCALL", "floor_push", "1"], "the same calls and no more", None),
        (Spread::One, 64, &["FCALL", "floor_push", "1"], "the same calls and no more", None),
        (Spread::One, 16, &["FCALL", "floor_empty", "1"], "an empty FCALL", None),
        (Spread::One, 16, &["LPUSH"], "LPUSH", None),
    ] {
        let (mut mine, mut other) = (spread.load(&PUSH), spread.load(beside));
        let place = std::cell::RefCell::new(&mut *place);
        report.pairs(
            |pairs| {
                let what = format!("drip_push, pipeline {pipeline}, {}", spread.words());
                let row = Row::new("push", what, pairs.mine.median, "/s").beside(name, pairs.beside.median);
                let row = row.ratio(pairs.ratio);
                if let Some(goal) = goal { row.ratio_goal(Bound::AtLeast(goal)) } else { row }
            },
            || place.borrow_mut().rate(&mut mine, pipeline),
            || place.borrow_mut().rate(&mut other, pipeline),
        )?;
    }
    Ok(())
}

fn pushed_with_daemon(report: &mut Report, with: &mut Place, without: &mut Place) -> io::Result<()> {
    let mut loads = [Spread::One.load(&["FCALL", "drip_push", "1"]), Spread::One.load(&["FCALL", "drip_push", "1"])];
    let [mine, other] = &mut loads;
    report.pairs(
        |pairs| {
            Row::new("push", "drip_push, pipeline 16, one bucket, with the daemon", pairs.mine.median, "/s")
                .beside("without", pairs.beside.median)
                .ratio(pairs.ratio)
        },
        || with.rate(mine, 16),
        || without.rate(other, 16),
    )?;
    Ok(())
}
