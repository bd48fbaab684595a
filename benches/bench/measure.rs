//! What is made of samples: histograms for times, and pairs for ratios.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::wire::Wire;

/// How many interleaved pairs a ratio is made of.
pub(super) const PAIRS: usize = 5;

/// How often the floor is sampled, on average.
const PROBE_EVERY: Duration = Duration::from_millis(2);

/// Quartiles further apart than this are noise, unless they agree about the goal.
const NOISE: f64 = 0.15;

/// What a figure has to reach.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// It should be large.
    AtLeast(f64),
    /// It should be small.
    AtMost(f64),
}

impl Bound {
    /// Whether a figure reaches it.
    pub(super) fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => figure >= bound,
            Self::AtMost(bound) => figure <= bound,
        }
    }
}

/// The middle of some samples, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// The first quartile.
    pub(super) low: f64,
    /// The second.
    pub(super) median: f64,
    /// The third.
    pub(super) high: f64,
}

impl Spread {
    /// Of some samples, at least one.
    pub(super) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| {
            let place = quarter as f64 / 4.0 * (sorted.len() - 1) as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            let above = (below + 1).min(sorted.len() - 1);
            sorted[below] + (sorted[above] - sorted[below]) * part
        };
        Self { low: at(1), median: at(2), high: at(3) }
    }

    /// Whether they lie too far apart and do not agree about a goal.
    pub(super) fn is_noisy_about(&self, goal: Bound) -> bool {
        self.is_noisy() && goal.is_met(self.low) != goal.is_met(self.high)
    }

    /// Whether the samples lie too far apart to say anything by themselves.
    pub(super) fn is_noisy(&self) -> bool {
        self.high - self.low > NOISE * self.median.abs()
    }
}

/// Two things measured in turns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pairs {
    /// The first of each pair.
    pub(super) mine: Spread,
    /// The second.
    pub(super) beside: Spread,
    /// The first by the second, pair by pair.
    pub(super) ratio: Spread,
}

impl Pairs {
    /// Of samples taken in turns.
    pub(super) fn of(pairs: &[(f64, f64)]) -> Self {
        let column = |pick: fn(&(f64, f64)) -> f64| Spread::of(&pairs.iter().map(pick).collect::<Vec<_>>());
        Self { mine: column(|p| p.0), beside: column(|p| p.1), ratio: column(|p| p.0 / p.1) }
    }

    /// Measure two things in turns, each first in every other pair. A pair before the first is not counted.
    pub(super) fn measure(
        mut mine: impl FnMut() -> io::Result<f64>,
        mut beside: impl FnMut() -> io::Result<f64>,
    ) -> io::Result<Self> {
        let mut pairs = Vec::new();
        for round in 0..=PAIRS {
            let pair = if round % 2 == 0 {
                let first = mine()?;
                (first, beside()?)
            } else {
                let first = beside()?;
                (mine()?, first)
            };
            if round > 0 {
                pairs.push(pair);
            }
        }
        Ok(Self::of(&pairs))
    }
}

/// Processor time in microseconds: of Redis, and of its daemons together.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(super) struct Cost {
    pub(super) redis_us: f64,
    pub(super) daemon_us: f64,
}

impl Cost {
    /// What each of so many jobs took of it.
    pub(super) fn a_job(self, jobs: usize) -> Self {
        Self { redis_us: self.redis_us / jobs as f64, daemon_us: self.daemon_us / jobs as f64 }
    }
}

impl std::ops::Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { redis_us: self.redis_us - before.redis_us, daemon_us: self.daemon_us - before.daemon_us }
    }
}

/// What a job took in each run of a measurement.
#[derive(Debug, Default)]
pub(super) struct Costs(RefCell<Vec<Cost>>);

impl Costs {
    /// One more run.
    pub(super) fn add(&self, cost: Cost) {
        self.0.borrow_mut().push(cost);
    }

    /// The median of the runs, at least one.
    pub(super) fn median(&self) -> Cost {
        let of = |pick: fn(&Cost) -> f64| Spread::of(&self.0.borrow().iter().map(pick).collect::<Vec<_>>()).median;
        Cost { redis_us: of(|cost| cost.redis_us), daemon_us: of(|cost| cost.daemon_us) }
    }
}

/// Times in microseconds.
#[derive(Debug, Clone)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    /// None so far.
    pub(super) fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are allowed"))
    }

    /// One more, in nanoseconds.
    pub(super) fn add_ns(&mut self, ns: u64) {
        self.0.record(ns).expect("it grows by itself");
    }

    /// One more, in microseconds.
    pub(super) fn add_us(&mut self, us: u64) {
        self.add_ns(us.saturating_mul(1_000));
    }

    /// One more.
    pub(super) fn add(&mut self, time: Duration) {
        self.add_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// One more of a probe that is sent every so often and waits for its answer: what it could not send meanwhile was late too
    /// (coordinated omission), and is filled in.
    fn add_probe(&mut self, time: Duration) {
        let (ns, every) = (u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), PROBE_EVERY.as_nanos() as u64);
        self.0.record_correct(ns, every).expect("it grows by itself");
    }

    /// Those of another run besides.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.add(&other.0).expect("it grows by itself");
    }

    /// The time that `percent` of them do not exceed, in milliseconds.
    pub(super) fn ms(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e6
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.0.len()
    }
}

/// Tells the threads of a measurement that it is over, also when it failed.
#[derive(Debug, Default)]
pub(super) struct Over(AtomicBool);

/// Sets it when it goes out of scope.
pub(super) struct WhenDropped<'a>(&'a Over);

impl Over {
    /// Whether it is over.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It is over.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// It is over when what this replies is dropped.
    pub(super) fn when_dropped(&self) -> WhenDropped<'_> {
        WhenDropped(self)
    }
}

impl Drop for WhenDropped<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// What no daemon can be faster than, sampled while something else runs: how much too long the kernel sleeps, and a
/// round trip to the same Redis.
pub(super) struct Floor {
    /// Oversleep and round trip together.
    pub(super) both: Times,
    /// The round trip alone.
    pub(super) ping: Times,
}

impl Floor {
    /// Sample until it is over, some five hundred times a second.
    pub(super) fn sample(mut wire: Wire, over: &Over) -> io::Result<Self> {
        let mut floor = Self { both: Times::new(), ping: Times::new() };
        while !over.is_set() {
            let nap = PROBE_EVERY.mul_f64(0.5 + fastrand::f64());
            let start = Instant::now();
            std::thread::sleep(nap);
            let woke = Instant::now();
            wire.call(&["PING"])?;
            floor.ping.add_probe(woke.elapsed());
            floor.both.add_probe(start.elapsed().saturating_sub(nap));
        }
        Ok(floor)
    }
}
