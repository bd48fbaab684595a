//! push: what a producer pays, and what the daemon's listening costs it.

use std::io;
use std::time::Duration;

use super::drain::wait_for_jobs;
use super::lab::{Apart, Server, keys, queue};
use super::measure::{Over, Pairs};
use super::report::{Bound, Report, Row};
use super::wire::{Load, Wire};
use super::{FLOORS, JOB, SLOW};

const MANY: usize = 100_000;
const LPUSH: &[&str] = &["LPUSH"];
const PUSH: &[&str] = &["FCALL", "drip_push", "1"];
const FLOOR: &[&str] = &["FCALL", "floor_push", "1"];
const EMPTY: &[&str] = &["FCALL", "floor_empty", "1"];
const SAMPLE: Duration = Duration::from_millis(150);

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
        reader.track(keys().queues())?;
        let over = Over::default();
        std::thread::scope(|scope| {
            scope.spawn(|| while !over.is_set() && reader.discard().is_ok() {});
            let _set = over.when_dropped();
            self.rate(load, pipeline)
        })
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    let (watched, bare) = (Server::start()?, Server::start()?);
    let _daemon = watched.daemon(SLOW)?;
    bare.record(SLOW)?;
    let (mut with, mut without) = (Place::at(&watched)?, Place::at(&bare)?);
    let apart = Apart::of(&[&watched, &bare])?;
    fill(&mut with, &mut without)?;
    with_daemon(report, &mut with, &mut without)?;
    without.wire.call(&["FLUSHALL"])?;
    drop(apart);
    bare.record(SLOW)?;
    let _apart = Apart::of(&[&bare])?;
    bare.wire()?.call(&["FUNCTION", "LOAD", FLOORS])?;
    atomic(report, &mut without)
}

/// A hundred thousand buckets have jobs already and are scheduled: what it takes to dispatch their first ones is the business of
/// other suites.
fn fill(with: &mut Place, without: &mut Place) -> io::Result<()> {
    with.wire.run(&mut Spread::Many.load(LPUSH), MANY, 64)?;
    wait_for_jobs(&mut with.wire, MANY)?;
    without.wire.run(&mut Spread::Many.load(PUSH), MANY, 64)
}

/// Pushes with the daemon, beside the same without it.
fn with_daemon(report: &mut Report, with: &mut Place, without: &mut Place) -> io::Result<()> {
    for (name, command, spread, pipeline, goal) in [
        ("LPUSH", LPUSH, Spread::One, 1, Some(0.9)),
        ("LPUSH", LPUSH, Spread::Many, 1, Some(0.85)),
        ("LPUSH", LPUSH, Spread::One, 16, None),
        ("LPUSH", LPUSH, Spread::Many, 16, Some(0.5)),
        ("LPUSH", LPUSH, Spread::One, 64, None),
        ("LPUSH", LPUSH, Spread::Many, 64, None),
        ("drip_push", PUSH, Spread::One, 1, None),
        ("drip_push", PUSH, Spread::Many, 1, None),
        ("drip_push", PUSH, Spread::One, 16, None),
        ("drip_push", PUSH, Spread::Many, 16, None),
        ("drip_push", PUSH, Spread::One, 64, None),
        ("drip_push", PUSH, Spread::Many, 64, None),
    ] {
        let (mut mine, mut other) = (spread.load(command), spread.load(command));
        let what = format!("{name}, pipeline {pipeline}, {}, with the daemon", spread.words());
        report.pairs(
            |pairs| row(&what, "without", pairs, goal),
            || with.rate(&mut mine, pipeline),
            || without.rate(&mut other, pipeline),
        )?;
    }
    // Whoever wants to hear of changes costs this much at least.
    for (spread, pipeline, goal) in
        [(Spread::One, 1, None), (Spread::Many, 1, None), (Spread::One, 16, Some(0.9)), (Spread::Many, 16, None)]
    {
        let (mut mine, mut other) = (spread.load(LPUSH), spread.load(LPUSH));
        let what = format!("LPUSH, pipeline {pipeline}, {}, with the daemon", spread.words());
        report.pairs(
            |pairs| row(&what, "with a passive tracking reader", pairs, goal),
            || with.rate(&mut mine, pipeline),
            || without.rate_with_reader(&mut other, pipeline),
        )?;
    }
    Ok(())
}

/// Atomic pushes beside plain ones, an empty function, and one that makes the same calls.
fn atomic(report: &mut Report, place: &mut Place) -> io::Result<()> {
    const SAME: &str = "the same calls and no more";
    for (spread, pipeline, beside, command, goal) in [
        (Spread::One, 1, "LPUSH", LPUSH, Some(0.9)),
        (Spread::One, 1, SAME, FLOOR, None),
        (Spread::Many, 1, SAME, FLOOR, None),
        (Spread::One, 16, SAME, FLOOR, Some(0.7)),
        (Spread::Many, 16, SAME, FLOOR, None),
        (Spread::One, 64, SAME, FLOOR, None),
        (Spread::Many, 64, SAME, FLOOR, None),
        (Spread::One, 16, "an empty FCALL", EMPTY, None),
        (Spread::One, 16, "LPUSH", LPUSH, None),
    ] {
        let (mut mine, mut other) = (spread.load(PUSH), spread.load(command));
        let place = std::cell::RefCell::new(&mut *place);
        let what = format!("drip_push, pipeline {pipeline}, {}", spread.words());
        report.pairs(
            |pairs| row(&what, beside, pairs, goal),
            || place.borrow_mut().rate(&mut mine, pipeline),
            || place.borrow_mut().rate(&mut other, pipeline),
        )?;
    }
    Ok(())
}

fn row(what: &str, beside: &str, pairs: &Pairs, goal: Option<f64>) -> Row {
    let row = Row::new("push", what, pairs.mine.median, "/s").beside(beside, pairs.beside.median).ratio(pairs.ratio);
    if let Some(goal) = goal { row.ratio_goal(Bound::AtLeast(goal)) } else { row }
}
