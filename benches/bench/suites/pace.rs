//! pace: how true it is. Every dispatch carries when it was due and when it left; from these come the lateness, the error of
//! the spacing between two jobs of a bucket, and the rate achieved.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::JOB;
use super::lab::{Server, queue};
use super::measure::{Floor, Over, PAIRS, Spread, Times};
use super::report::{Bound, Report, Row, figure};
use super::taken::{Dispatch, lateness, take_until};
use super::wire::{Load, Wire, parts, text};
use dripd::model::policy::Policy;

/// What does not count after the last push.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long the first pushes take, at least. A bucket keeps the phase that its first push gave it, so pushes that come as fast as
/// they can leave dues in heaps, and each interval repeats them.
const FILL: Duration = Duration::from_secs(2);

/// Buckets of one rate.
struct Kind {
    /// `count/period`, as a policy has it.
    rate: &'static str,
    interval: Duration,
    buckets: usize,
}

/// What one run showed.
struct Run {
    taken: Vec<Dispatch>,
    floor: Floor,
}

/// A push of all the jobs that a bucket needs, and when it is made, after the start.
struct Fill {
    at: Duration,
    queue: String,
    jobs: usize,
}

impl Kind {
    fn name(&self, n: usize) -> String {
        format!("{}:{n}", self.rate)
    }

    fn policy(&self) -> String {
        format!("[[bucket]]\nmatch = \"{}:*\"\nrate = \"{}\"\ncapacity = 10000000\n", self.rate, self.rate)
    }

    /// The pushes of these buckets: their dues are spread evenly over one interval, and they come in as many intervals as it takes
    /// to make them gently.
    fn fills(&self, lasting: Duration) -> impl Iterator<Item = Fill> {
        let jobs = (lasting.as_secs_f64() / self.interval.as_secs_f64()) as usize + 2;
        let step = self.interval.as_secs_f64() / self.buckets as f64;
        let intervals = (FILL.as_secs_f64() / self.interval.as_secs_f64()).ceil() as usize;
        let mut order: Vec<usize> = (0..self.buckets).collect();
        fastrand::shuffle(&mut order);
        order.into_iter().enumerate().map(move |(n, bucket)| Fill {
            at: Duration::from_secs_f64(step * n as f64) + self.interval * (n % intervals) as u32,
            queue: queue(&self.name(bucket)),
            jobs,
        })
    }
}

/// Push it all, each at its time or as soon as possible after it.
fn fill(wire: &mut Wire, fills: &[Fill]) -> io::Result<()> {
    let start = Instant::now();
    let mut left = fills;
    while !left.is_empty() {
        let now = start.elapsed();
        let due = left.iter().take_while(|fill| fill.at <= now).count().min(64);
        if due == 0 {
            std::thread::sleep(left[0].at.saturating_sub(now));
            continue;
        }
        let mut load = Load::default();
        for fill in &left[..due] {
            let mut words = vec!["LPUSH", &fill.queue];
            words.resize(2 + fill.jobs, JOB);
            load.push(&words);
        }
        wire.run(&mut load, due, due)?;
        left = &left[due..];
    }
    Ok(())
}

/// The server's clock.
pub(super) fn now_us(wire: &mut Wire) -> io::Result<u64> {
    let time = wire.call(&["TIME"])?;
    let part = |n: usize| parts(&time).get(n).and_then(|part| text(part)?.parse::<u64>().ok());
    part(0).zip(part(1)).map(|(s, us)| s * 1_000_000 + us).ok_or_else(|| io::Error::other("TIME replies no time"))
}

/// Let buckets drip for so long, and read what left them.
fn run_for(kinds: &[Kind], lasting: Duration) -> io::Result<Run> {
    let server = Server::start()?;
    let policies: String = kinds.iter().map(Kind::policy).collect();
    let _daemon = server.daemon(&policies)?;
    let mut wire = server.wire()?;
    let (over, settled) = (Over::default(), Over::default());
    let longest = kinds.iter().map(|kind| kind.interval).max().unwrap_or_default();
    let whole = lasting + WARM_UP + FILL + longest.min(Duration::from_secs(10)) + Duration::from_secs(2);
    let mut fills: Vec<Fill> = kinds.iter().flat_map(|kind| kind.fills(whole)).collect();
    fills.sort_by_key(|fill| fill.at);
    std::thread::scope(|scope| {
        let _set = over.when_dropped();
        let (reads, samples) = (server.wire()?, server.wire()?);
        let worker = scope.spawn(|| take_until(&over, reads));
        fill(&mut wire, &fills)?;
        std::thread::sleep(WARM_UP);
        let from = now_us(&mut wire)?;
        let pinged = scope.spawn(|| Floor::sample(samples, &settled));
        std::thread::sleep(lasting);
        let to = now_us(&mut wire)?;
        drop(settled.when_dropped());
        let floor = pinged.join().expect("a sampler does not panic")?;
        drop(over.when_dropped());
        let mut taken = worker.join().expect("a worker does not panic")?;
        taken.retain(|job| (from..to).contains(&job.at_us));
        if taken.is_empty() {
            return Err(io::Error::other("nothing left its bucket"));
        }
        Ok(Run { taken, floor })
    })
}

impl Run {
    fn by_bucket(&self) -> HashMap<&str, Vec<u64>> {
        let mut buckets: HashMap<&str, Vec<u64>> = HashMap::new();
        for job in &self.taken {
            buckets.entry(&job.bucket).or_default().push(job.at_us);
        }
        buckets
    }

    fn lateness(&self) -> Times {
        lateness(self.taken.iter())
    }

    /// What a bucket was later than `catch_up` and may not make up (promise 1), in microseconds.
    fn lost_us(&self, bucket: &str) -> u64 {
        let catch_up_us = Policy::default().catch_up.as_micros() as u64;
        let of_bucket = self.taken.iter().filter(|job| job.bucket == bucket);
        of_bucket.map(|job| job.at_us.saturating_sub(job.due_us).saturating_sub(catch_up_us)).sum()
    }

    /// How far the gaps between the jobs of a bucket are from its interval.
    fn spacing(&self, interval: Duration) -> Times {
        let (mut times, interval) = (Times::new(), interval.as_micros() as u64);
        for at in self.by_bucket().values() {
            at.windows(2).for_each(|pair| times.add_us((pair[1] - pair[0]).abs_diff(interval)));
        }
        times
    }
}

pub(super) fn run(report: &mut Report) -> io::Result<()> {
    rates(report)?;
    let ms = Duration::from_millis;
    loaded(report, &Kind { rate: "1/s", interval: ms(1_000), buckets: 1_000 }, 1, None)?;
    loaded(report, &Kind { rate: "10/s", interval: ms(100), buckets: 100 }, 2, None)?;
    loaded(report, &Kind { rate: "10000/s", interval: Duration::from_micros(100), buckets: 1 }, 1, None)?;
    loaded(report, &Kind { rate: "10/s", interval: ms(100), buckets: 1_000 }, PAIRS, Some(Goals::Floor))?;
    loaded(report, &Kind { rate: "1/10s", interval: ms(10_000), buckets: 100_000 }, 1, None)?;
    loaded(report, &Kind { rate: "10/s", interval: ms(100), buckets: 2_500 }, 2, None)?;
    loaded(report, &Kind { rate: "10/s", interval: ms(100), buckets: 5_000 }, PAIRS, Some(Goals::Most(3.0)))?;
    loaded(report, &Kind { rate: "1/s", interval: ms(1_000), buckets: 50_000 }, PAIRS, Some(Goals::Most(3.0)))
}

/// The rate achieved, `(N - 1) / (t_N - t_1)`, of buckets of every rate side by side.
fn rates(report: &mut Report) -> io::Result<()> {
    let kind = |rate, interval_us, buckets| Kind { rate, interval: Duration::from_micros(interval_us), buckets };
    let kinds = [
        kind("1/10s", 10_000_000, 10),
        kind("1/s", 1_000_000, 10),
        kind("10/s", 100_000, 10),
        kind("100/s", 10_000, 5),
        kind("1000/s", 1_000, 2),
        kind("10000/s", 100, 1),
    ];
    let run = run_for(&kinds, Duration::from_secs(21))?;
    let buckets = run.by_bucket();
    let (mut worst, mut stalled) = (0.0_f64, 0.0_f64);
    for kind in &kinds {
        let mut of_kind = 0.0_f64;
        for n in 0..kind.buckets {
            let name = kind.name(n);
            let at = buckets.get(name.as_str()).map_or(&[] as &[u64], Vec::as_slice);
            let ([first, .., last], gaps) = (at, at.len().saturating_sub(1)) else {
                return Err(io::Error::other(format!("{name} let fewer than two jobs out")));
            };
            let not_made_up = run.lost_us(&name);
            let achieved = gaps as f64 * 1e6 / (last - first - not_made_up) as f64;
            of_kind = of_kind.max((achieved * kind.interval.as_secs_f64() - 1.0).abs() * 100.0);
            stalled = stalled.max(not_made_up as f64 / 1e3);
        }
        report.point("rate", "deviation", 1.0 / kind.interval.as_secs_f64(), of_kind);
        worst = worst.max(of_kind);
    }
    let lost = if stalled > 0.0 {
        format!("; {stalled:.1} ms were lost to stalls longer than catch_up")
    } else {
        String::new()
    };
    let what = format!("achieved rate, the worst of 38 buckets at 1/10s to 10,000/s{lost}: off by");
    report.add(Row::new("pace", what, worst, "%").value_goal(Bound::AtMost(0.1)));
    Ok(())
}

/// The percentiles of lateness that are plotted, each the median of the runs': a pause of the machine is in one of them.
const PLOTTED: [f64; 3] = [50.0, 99.0, 99.9];

/// What is asked of the lateness.
#[derive(Clone, Copy)]
enum Goals {
    /// At the p50 no more than 0.1 ms over the floor, at the p99 three times it.
    Floor,
    /// At the p99 so many milliseconds.
    Most(f64),
}

/// So many rounds more are measured when the first ones do not agree about a goal.
const MORE: usize = 3;

impl Goals {
    fn is_noisy(self, p99s: &[f64]) -> bool {
        match self {
            Self::Floor => false, // a ratio to what was measured at the same time
            Self::Most(most) => Spread::of(p99s).is_noisy_about(Bound::AtMost(most)),
        }
    }
}

/// Lateness and spacing under one load, in several runs.
fn loaded(report: &mut Report, kind: &Kind, rounds: usize, goals: Option<Goals>) -> io::Result<()> {
    let per_second = kind.buckets as f64 / kind.interval.as_secs_f64();
    let (mut late, mut spacing, mut both) = (Times::new(), Times::new(), Times::new());
    let (mut p50s, mut p99s, mut over_p50, mut over_p99) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut plotted: [(Vec<f64>, Vec<f64>); 3] = Default::default();
    let (mut left, mut again) = (rounds, true);
    while left > 0 {
        let run = run_for(std::slice::from_ref(kind), Duration::from_secs(3))?;
        let of_run = run.lateness();
        p50s.push(of_run.ms(50.0));
        p99s.push(of_run.ms(99.0));
        over_p50.push(of_run.ms(50.0) - run.floor.both.ms(50.0));
        over_p99.push(of_run.ms(99.0) / run.floor.both.ms(99.0));
        for (percent, (mine, floor)) in PLOTTED.iter().zip(&mut plotted) {
            mine.push(of_run.ms(*percent));
            floor.push(run.floor.both.ms(*percent));
        }
        late.join(&of_run);
        spacing.join(&run.spacing(kind.interval));
        both.join(&run.floor.both);
        left -= 1;
        if left == 0 && again && goals.is_some_and(|goals| goals.is_noisy(&p99s)) {
            (left, again) = (MORE, false);
        }
    }
    let buckets =
        if kind.buckets == 1 { "1 bucket".to_owned() } else { format!("{} buckets", figure(kind.buckets as f64)) };
    let load = format!("{buckets} at {}", kind.rate);
    let p50 = Row::of("pace", format!("lateness p50, {load}"), Spread::of(&p50s), "ms").beside("floor", both.ms(50.0));
    let p99 = Row::of("pace", format!("lateness p99, {load}"), Spread::of(&p99s), "ms").beside("floor", both.ms(99.0));
    match goals {
        Some(Goals::Floor) => {
            report.add(p50);
            let over = Row::of("pace", format!("lateness p50 over the floor's, {load}"), Spread::of(&over_p50), "ms");
            report.add(over.value_goal(Bound::AtMost(0.1)));
            report.add(p99.ratio(Spread::of(&over_p99)).ratio_goal(Bound::AtMost(3.0)));
        }
        Some(Goals::Most(most)) => {
            report.add(p50);
            report.add(p99.value_goal(Bound::AtMost(most)));
        }
        None => {
            report.add(p50);
            report.add(p99);
        }
    }
    let tail = format!("lateness p99.9, {load}; the latest of {} was {:.2} ms", late.len(), late.ms(100.0));
    report.add(Row::new("pace", tail, late.ms(99.9), "ms").beside("floor", both.ms(99.9)));
    // One line of the plot is one kind of load: ever more buckets at the same rate.
    for (percent, (mine, floor)) in PLOTTED.iter().zip(&plotted).filter(|_| kind.rate == "10/s") {
        report.point("lateness", format!("dripd p{percent}"), per_second, Spread::of(mine).median);
        report.point("lateness", format!("floor p{percent}"), per_second, Spread::of(floor).median);
    }
    if spacing.len() == 0 {
        return Ok(()); // an interval longer than the run
    }
    let errors = format!("spacing error p50, {load}; p99 {:.3}, p99.9 {:.3} ms", spacing.ms(99.0), spacing.ms(99.9));
    report.add(Row::new("pace", errors, spacing.ms(50.0), "ms"));
    for percent in [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99] {
        report.point("spacing", load.clone(), spacing.ms(percent), percent);
    }
    Ok(())
}
