//! Generated traffic: what `--load` says, and the arrivals that follow from it. The same seed gives the same arrivals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::str::FromStr;
use std::time::Duration;

use super::traffic::{Job, Push};
use crate::model::bucket::BucketName;
use crate::model::duration::{self, LONGEST};
use crate::model::rate::Rate;
use crate::store::simulation::Kind;

/// The most buckets of a load, and the most jobs that are pushed at once.
const MOST_BUCKETS: u64 = 1_000_000;
const MOST_AT_ONCE: u64 = 1_000;

/// The highest cost of a job.
const MOST_COST: u64 = 100_000;

const HINT: &str = "write NAME: [N buckets,] RATE [in all] and, with commas, evenly | poisson | bursts of N, cost N [to M] [real N | real P%], \
                    deadline TIME, delay TIME, throttle P% [for TIME], fail P% of the others, from TIME, until TIME, \
                    the first three of whole milliseconds; as in \
                    'sms:*: 200 buckets, 2/s, bursts of 50'";

/// When the jobs of a bucket come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrivals {
    /// One after the other, in equal distances.
    Evenly,
    /// At random, independently of each other.
    Poisson,
    /// So many at once, in equal distances.
    Bursts(u64),
}

/// What a job really costs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Real {
    /// So many units.
    Units(u64),
    /// This share of its cost.
    Share(f64),
}

impl Real {
    fn parse(text: &str) -> Option<Self> {
        let units = || if text == "0" { Some(0) } else { number(text, MOST_COST) };
        percent(text).map(Self::Share).or_else(|| units().map(Self::Units))
    }

    fn of(self, cost: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Share(share) => (share * cost as f64).round() as u64,
        }
    }
}

/// The traffic of some buckets.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// As it was written.
    pub text: String,
    /// The name of its bucket, or a pattern with one `*`, which stands for the number of each.
    pub name: String,
    buckets: u64,
    /// Jobs a second into each bucket.
    per_second: f64,
    arrivals: Arrivals,
    cost: Option<(u64, u64)>,
    /// What a job really costs, where workers say so.
    real: Option<Real>,
    deadline: Option<Duration>,
    delay: Option<Duration>,
    fail: f64,
    throttle: f64,
    retry_after: Option<Duration>,
    from: Duration,
    until: Option<Duration>,
}

fn number(text: &str, most: u64) -> Option<u64> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    plain.parse().ok().filter(|n| (1..=most).contains(n))
}

fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.trim().strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// What an option that was understood is about.
fn kind_of(option: &str) -> &str {
    match option.split_whitespace().next().unwrap_or_default() {
        "evenly" | "poisson" | "bursts" => "way to arrive",
        word if word.contains('/') => "rate",
        word if word.starts_with(|c: char| c.is_ascii_digit()) => "number of buckets",
        word => word,
    }
}

impl Load {
    /// When its last job comes, where that is said.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }

    /// The pattern that its buckets match.
    pub fn pattern(&self) -> String {
        let escape = |c: char| matches!(c, '?' | '[' | ']' | '\\').then_some('\\').into_iter().chain([c]);
        self.name.chars().flat_map(escape).collect()
    }

    fn option(&mut self, text: &str) -> Option<()> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let time = duration::parse;
        let whole_ms = |text| time(text).filter(|time| time.subsec_nanos() % 1_000_000 == 0 && *time <= LONGEST);
        if let ["cost", costs @ .., "real", real] = &words[..] {
            self.real = Some(Real::parse(real)?);
            return self.option(&format!("cost {}", costs.join(" ")));
        }
        match words[..] {
            ["evenly"] => self.arrivals = Arrivals::Evenly,
            ["poisson"] => self.arrivals = Arrivals::Poisson,
            ["bursts", "of", n] => self.arrivals = Arrivals::Bursts(number(n, MOST_AT_ONCE)?),
            ["cost", n] => self.cost = number(n, MOST_COST).map(|n| (n, n)),
            ["cost", n, "to", m] => {
                let (least, most) = (number(n, MOST_COST)?, number(m, MOST_COST)?);
                self.cost = Some((least <= most).then_some((least, most))?);
            }
            ["deadline", after] => {
                self.deadline = Some(whole_ms(after).filter(|time| !time.is_zero())?);
            }
            ["delay", by] => self.delay = Some(whole_ms(by)?),
            ["fail", share] => self.fail = percent(share)?,
            ["throttle", share] => self.throttle = percent(share)?,
            ["throttle", share, "for", wait] => {
                (self.throttle, self.retry_after) = (percent(share)?, Some(whole_ms(wait)?));
            }
            ["from", at] => self.from = time(at)?,
            ["until", at] => self.until = Some(time(at)?),
            [n, "bucket" | "buckets"] => self.buckets = number(n, MOST_BUCKETS)?,
            [rate] => self.per_second = Rate::parse(rate).ok()?.per_second(),
            // The number of buckets may stand behind it: it is divided when all is read.
            [rate, "in", "all"] => self.per_second = -Rate::parse(rate).ok()?.per_second(),
            _ => return None,
        }
        (self.cost.is_some() || words[0] != "cost").then_some(())
    }

    /// How its jobs go.
    pub(super) fn kind(&self) -> Kind {
        let retry_after_ms = self.retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        Kind { fail: self.fail, throttle: self.throttle, retry_after_ms, is_corrected: self.real.is_some() }
    }

    /// The name of its n-th bucket, from 0 on.
    fn bucket(&self, n: u64) -> BucketName {
        let name = self.name.replacen('*', &(n + 1).to_string(), 1);
        BucketName::parse(name.as_bytes()).expect("the name was checked with the highest number")
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.rsplit_once(": ").ok_or(HINT)?;
        let mut load = Self {
            text: text.to_owned(),
            name: name.trim().to_owned(),
            buckets: 1,
            per_second: 0.0,
            arrivals: Arrivals::Evenly,
            cost: None,
            real: None,
            deadline: None,
            delay: None,
            fail: 0.0,
            throttle: 0.0,
            retry_after: None,
            from: Duration::ZERO,
            until: None,
        };
        let mut seen = Vec::new();
        for option in options.split(',').map(str::trim) {
            load.option(option).ok_or_else(|| format!("{option:?} is not understood: {HINT}"))?;
            let kind = kind_of(option);
            if seen.contains(&kind) {
                return Err(format!("{option:?} is a second {kind}: leave one out"));
            }
            seen.push(kind);
        }
        if load.per_second < 0.0 {
            load.per_second /= -(load.buckets as f64);
        }
        let stars = load.name.matches('*').count();
        if load.per_second == 0.0 {
            return Err(format!("it has no rate: {HINT}"));
        }
        if stars > 1 || stars == 0 && load.buckets > 1 {
            return Err("the name of several buckets needs one *, which stands for the number of each".to_owned());
        }
        let longest = load.name.replacen('*', &load.buckets.to_string(), 1);
        BucketName::parse(longest.as_bytes()).map_err(|why| why.to_string())?;
        if load.until.is_some_and(|until| until <= load.from) {
            return Err("it ends before it begins: let `until` be later than `from`".to_owned());
        }
        Ok(load)
    }
}

/// The arrivals of several loads, in the order of time.
#[derive(Debug)]
pub struct Generator<'a> {
    loads: &'a [Load],
    /// When the next arrival of each bucket is: the time in nanoseconds, the load, and the bucket of it.
    next: BinaryHeap<Reverse<(u64, usize, u64)>>,
    random: fastrand::Rng,
    until_ns: u64,
    /// The other jobs of a burst in which each has a cost of its own.
    burst: Vec<Push>,
}

impl<'a> Generator<'a> {
    /// The arrivals in so long.
    pub fn new(loads: &'a [Load], seed: u64, lasts: Duration) -> Self {
        let until_ns = u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
        let mut generator = Self {
            loads,
            next: BinaryHeap::new(),
            random: fastrand::Rng::with_seed(seed),
            until_ns,
            burst: Vec::new(),
        };
        for (at, load) in loads.iter().enumerate() {
            for bucket in 0..load.buckets {
                // Each bucket begins somewhere in its first distance, so that they do not march in step.
                let gap = generator.gap_ns(load);
                let first = match load.arrivals {
                    Arrivals::Poisson => gap,
                    _ => generator.random.u64(0..gap.max(1)),
                };
                generator.push(load.from.as_nanos() as u64 + first, at, bucket);
            }
        }
        generator
    }

    /// How long it is until the next arrival of a bucket.
    fn gap_ns(&mut self, load: &Load) -> u64 {
        let mean = 1e9 / load.per_second;
        let gap = match load.arrivals {
            Arrivals::Evenly => mean,
            Arrivals::Bursts(n) => mean * n as f64,
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * mean,
        };
        gap.round() as u64
    }

    fn push(&mut self, at_ns: u64, load: usize, bucket: u64) {
        let until = self.loads[load].until.map_or(u64::MAX, |until| until.as_nanos() as u64);
        if at_ns < until.min(self.until_ns) {
            self.next.push(Reverse((at_ns, load, bucket)));
        }
    }
}

impl Iterator for Generator<'_> {
    type Item = Push;

    fn next(&mut self) -> Option<Push> {
        if let Some(push) = self.burst.pop() {
            return Some(push);
        }
        let Reverse((at_ns, at, number)) = self.next.pop()?;
        let load = &self.loads[at];
        let gap = self.gap_ns(load);
        self.push(at_ns + gap, at, number);
        let jobs = if let Arrivals::Bursts(n) = load.arrivals { n } else { 1 };
        let (pushes, jobs) = if load.cost.is_some_and(|(least, most)| least < most) { (jobs, 1) } else { (1, jobs) };
        for _ in 0..pushes {
            let cost = load.cost.map(|(least, most)| self.random.u64(least..=most));
            let real = load.real.zip(cost).map(|(real, cost)| real.of(cost));
            let job = Job { cost, real, delay: load.delay, ttl: load.deadline, ..Job::default() };
            self.burst.push(Push { at_us: at_ns / 1_000, bucket: load.bucket(number), jobs, job, kind: Some(at) });
        }
        self.burst.pop()
    }
}
