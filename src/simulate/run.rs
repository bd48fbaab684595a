//! A simulation: the traffic goes in, the event loop on the server says what happens, and that is measured.

use std::iter::Peekable;
use std::path::PathBuf;
use std::time::Duration;

use super::load::{Generator, Load};
use super::measure::{Measures, SLOTS};
use super::trace::{BadTrace, Trace};
use super::traffic::Push;
use super::workers::{Workers, route_workers};
use crate::config::Config;
use crate::explain::{Binding, Explanation, File, LocalTime};
use crate::model::bucket::BucketName;
use crate::model::duration::show;
use crate::model::partitioning::Partitioning;
use crate::model::policy::Record;
use crate::model::route::Route;
use crate::store::simulation::{Arrival, Event, Kind, Step, Verdict, World};
use crate::store::{Layout, Store, StoreError};
use crate::system::scratch_redis::{ScratchRedis, ScratchRedisError};

/// Jobs that are sent in one call, about.
const MOST_AT_ONCE: usize = 2_000;

/// Buckets that are asked what binds them in each slot, but at least one of each pattern.
const MOST_ASKED: usize = 8;

/// Its multiples, without their whole parts, are spread evenly and repeat nothing (Weyl 1916).
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

/// What producers send, in the order of time.
type Pushes<'a> = Box<dyn Iterator<Item = Result<Push, BadTrace>> + 'a>;

/// Where the traffic comes from.
#[derive(Debug, Clone)]
pub enum Traffic {
    /// It is generated.
    Loads(Vec<Load>),
    /// It is in a file.
    Trace(PathBuf),
}

/// What is simulated, besides a configuration.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What producers send.
    pub traffic: Traffic,
    /// Who takes it.
    pub workers: Vec<Workers>,
    /// For how long.
    pub lasts: Duration,
    /// The time at which it begins, in microseconds since the epoch: quotas have windows of the calendar.
    pub start_us: u64,
    /// The seed of everything that happens by chance.
    pub seed: u64,
    /// Patterns of buckets that are measured together.
    pub patterns: Vec<String>,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// There is no server.
    #[error(transparent)]
    Server(#[from] ScratchRedisError),
    /// A call failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] BadTrace),
    /// The functions refuse what the traffic sends.
    #[error("bucket {bucket} refuses the job at {at:?}: {why}")]
    Refused {
        /// The bucket.
        bucket: BucketName,
        /// When, since the beginning.
        at: Duration,
        /// The words of the function.
        why: String,
    },
}

/// What happened.
#[derive(Debug)]
pub struct Outcome {
    /// The figures.
    pub measures: Measures,
    /// How many jobs producers sent.
    pub pushed: u64,
    /// How many tries failed, and were refused because they came too fast.
    pub failed: u64,
    /// See `failed`.
    pub throttled: u64,
    /// What the traffic says and was not simulated, in words.
    pub left_out: Option<String>,
}

impl Traffic {
    /// What producers send in so long, in the order of time.
    fn pushes<'a>(&'a self, plan: &Plan) -> Result<Pushes<'a>, SimulationError> {
        Ok(match self {
            Self::Loads(loads) => Box::new(Generator::new(loads, plan.seed, plan.lasts).map(Ok)),
            Self::Trace(path) => Box::new(Trace::open(path)?),
        })
    }

    fn kinds(&self) -> Vec<Kind> {
        match self {
            Self::Loads(loads) => loads.iter().map(Load::kind).collect(),
            Self::Trace(_) => Vec::new(),
        }
    }
}

/// What a simulation leaves out and would matter here, in words.
pub fn left_out(record: &Record, plan: &Plan) -> Option<String> {
    let leases = record.buckets.iter().map(|entry| entry.policy.lease).chain([record.defaults.lease]);
    let lease = leases.min().unwrap_or(record.defaults.lease);
    let longest = plan.workers.iter().map(Workers::longest).max().unwrap_or_default();
    (longest >= lease).then(|| {
        format!(
            "workers hold jobs for {} or longer, and a lease ends after {}: live such jobs are given out again, which is not simulated",
            show(longest),
            show(lease)
        )
    })
}

/// The text of a simulated job: when it came, how it goes, its bucket, what it really costs and its number.
#[derive(Debug, Clone, Copy)]
struct JobText {
    at_us: u64,
    kind: usize,
    bucket: usize,
    cost: u64,
    number: u64,
}

impl JobText {
    fn write(self) -> String {
        format!("{}.{}.{}.{}.{}", self.at_us, self.kind, self.bucket, self.cost, self.number)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(str::parse::<u64>);
        let mut part = || parts.next()?.ok();
        let (at_us, kind, bucket) = (part()?, part()? as usize, part()? as usize);
        Some(Self { at_us, kind, bucket, cost: part()?, number: part()? })
    }
}

/// A running simulation.
struct Run<'a> {
    store: Store,
    _server: ScratchRedis,
    plan: &'a Plan,
    file: File,
    measures: Measures,
    /// Arrivals that are not sent yet, with the number of their bucket.
    waiting: std::collections::VecDeque<(Arrival, usize)>,
    jobs: u64,
    failed: u64,
    throttled: u64,
    /// Jobs that should fail, or be throttled, go to a route that forwards: whoever takes them there tells dripd nothing.
    forwards_failing: Option<Route>,
    record: &'a Record,
}

/// Simulate a configuration. `progress` is told how much of the time is over, in slots of [`SLOTS`].
///
/// # Errors
///
/// There is no server to run, the trace cannot be read, or the functions refuse what it sends.
pub async fn simulate(config: &Config, plan: &Plan, mut progress: impl FnMut(u64)) -> Result<Outcome, SimulationError> {
    let partition = Layout::new("drip", Partitioning::default()).authority();
    let (server, mut store) = ScratchRedis::start(&partition).await?;
    let routes = route_workers(&config.record, &plan.workers);
    let seed = u32::try_from(plan.seed % 2_147_483_646).expect("it is below 2^31") + 1;
    let world = World { seed, kinds: plan.traffic.kinds(), routes };
    // One server has all partitions.
    let record = Record { partitioning: Partitioning::default(), ..config.record.clone() };
    store.begin_simulation(&record, plan.start_us, &world).await?;
    let file = File { name: config.source(), is_in_force: Some(true) };
    let measures = Measures::new(&plan.patterns, plan.lasts);
    let waiting = std::collections::VecDeque::new();
    let mut run = Run {
        store,
        _server: server,
        plan,
        file,
        measures,
        waiting,
        jobs: 0,
        failed: 0,
        throttled: 0,
        forwards_failing: None,
        record: &config.record,
    };
    let mut pushes = plan.traffic.pushes(plan)?.peekable();
    let lasts_us = plan.lasts.as_micros() as u64;
    for slot in 1..=SLOTS as u64 {
        let [from_us, till_us] = [slot - 1, slot].map(|slot| lasts_us * slot / SLOTS as u64);
        // At round times every bucket may just be due.
        let ask_us = from_us + ((till_us - from_us) as f64 * (slot as f64 * GOLDEN_RATIO).fract()) as u64;
        run.go_on(&mut pushes, ask_us).await?;
        run.ask(ask_us).await?;
        run.go_on(&mut pushes, till_us).await?;
        if slot == SLOTS as u64 {
            run.end(lasts_us).await?;
        }
        run.measures.end_slot();
        progress(slot);
    }
    run.measures.finish();
    let left_out = run.forwards_failing.map(|route| {
        let route = route.as_str();
        format!("route {route} forwards its jobs: that they fail, or are throttled, is not simulated, because nobody tells dripd")
    });
    Ok(Outcome { measures: run.measures, pushed: run.jobs, failed: run.failed, throttled: run.throttled, left_out })
}

impl Run<'_> {
    /// Put what a producer sends among the arrivals.
    async fn add(&mut self, push: Push) -> Result<(), SimulationError> {
        let Push { at_us, bucket, jobs, job, kind } = push;
        let number = if let Some(number) = self.measures.known(&bucket) {
            number
        } else {
            let facts = self.store.explain_at(&bucket, self.plan.start_us + at_us).await?;
            let route = facts.levels.first().and_then(|level| Route::parse(&level.policy.route).ok());
            let kinds = self.plan.traffic.kinds();
            let fails =
                kind.and_then(|kind| kinds.get(kind)).is_some_and(|kind| kind.fail > 0.0 || kind.throttle > 0.0);
            self.forwards_failing =
                self.forwards_failing.take().or(route.filter(|route| fails && self.record.forward(route).is_some()));
            self.measures.add(&bucket, &facts.levels)
        };
        let options = job.words();
        let kind = kind.map_or(0, |kind| kind + 1);
        let mut texts = Vec::new();
        for _ in 0..jobs {
            self.jobs += 1;
            let text =
                JobText { at_us, kind, bucket: number, cost: job.real.or(job.cost).unwrap_or(1), number: self.jobs };
            texts.push(text.write());
        }
        self.measures.count(number, |counts| counts.pushed += jobs);
        let is_submitted = !options.is_empty();
        let each = if is_submitted { 1 } else { texts.len().clamp(1, 1_000) };
        for words in texts.chunks(each) {
            let words = words.iter().chain(&options).cloned().collect();
            self.waiting.push_back((Arrival { at_us, bucket: bucket.clone(), is_submitted, words }, number));
        }
        Ok(())
    }

    /// Let the simulated time pass, with what producers send meanwhile.
    async fn go_on(&mut self, pushes: &mut Peekable<Pushes<'_>>, till_us: u64) -> Result<(), SimulationError> {
        loop {
            // As many arrivals as fit into a call; it goes no further than the last of them.
            let mut upto_us = till_us;
            while let Some(push) = pushes.next_if(|push| push.as_ref().map_or(true, |push| push.at_us <= till_us)) {
                let push = push?;
                let at_us = push.at_us;
                self.add(push).await?;
                if self.waiting.len() >= MOST_AT_ONCE {
                    upto_us = at_us;
                    break;
                }
            }
            self.pass(upto_us).await?;
            if upto_us == till_us {
                return Ok(());
            }
        }
    }

    /// Let the simulated time pass.
    async fn pass(&mut self, upto_us: u64) -> Result<(), SimulationError> {
        let till_us = self.plan.start_us + upto_us;
        loop {
            let arrivals = self.waiting.iter().map(|(arrival, _)| arrival);
            let step = self.store.simulate(self.plan.start_us, till_us, arrivals).await?;
            let is_there = step.reached_us == till_us;
            self.take_in(step)?;
            if is_there && self.waiting.is_empty() {
                return Ok(());
            }
        }
    }

    /// Count what became of the first arrival that waits.
    fn arrived(&mut self, verdict: Verdict) -> Result<(), SimulationError> {
        let (arrival, bucket) = self.waiting.pop_front().expect("there is one for each verdict");
        self.measures.moment(arrival.at_us);
        let jobs = if arrival.is_submitted { 1 } else { arrival.words.len() as u64 };
        let accepted = match verdict {
            Verdict::Accepted(n) => n,
            Verdict::Said(word) => match word.as_str() {
                "queued" | "delayed" => 1,
                "duplicate" => {
                    self.measures.count(bucket, |counts| counts.duplicate += 1);
                    return Ok(());
                }
                "late" => {
                    self.measures.count(bucket, |counts| counts.late += 1);
                    return Ok(());
                }
                "full" | "gated" => 0,
                _ => {
                    let at = Duration::from_micros(arrival.at_us);
                    return Err(SimulationError::Refused { bucket: arrival.bucket, at, why: word });
                }
            },
        };
        self.measures.count(bucket, |counts| {
            counts.accepted += accepted;
            counts.waiting += accepted;
            counts.rejected += jobs - accepted;
        });
        Ok(())
    }

    fn take_in(&mut self, step: Step) -> Result<(), SimulationError> {
        // In the order of time, or more jobs would seem to wait at once.
        let mut verdicts = step.verdicts.into_iter();
        for (at_us, event) in step.events {
            while self.waiting.front().is_some_and(|(arrival, _)| arrival.at_us <= at_us)
                && let Some(verdict) = verdicts.next()
            {
                self.arrived(verdict)?;
            }
            self.measures.moment(at_us);
            match event {
                Event::Taken { job, is_first, is_late } => {
                    let Some(job) = JobText::read(&job) else { continue };
                    self.measures.tried(job.bucket, job.cost);
                    if is_first {
                        self.measures.taken(job.bucket, at_us.saturating_sub(job.at_us));
                        self.measures.count(job.bucket, |counts| counts.late += u64::from(is_late));
                    } else {
                        self.measures.count(job.bucket, |counts| counts.retrying = counts.retrying.saturating_sub(1));
                    }
                }
                Event::Dropped { bucket, jobs, is_late } => self.dropped(&bucket, jobs, is_late),
                Event::Failed(job) => {
                    let Some(job) = JobText::read(&job) else { continue };
                    self.measures.count(job.bucket, |counts| counts.retrying += 1);
                }
                Event::Dead(job) => {
                    let Some(job) = JobText::read(&job) else { continue };
                    self.measures.count(job.bucket, |counts| {
                        counts.retrying = counts.retrying.saturating_sub(1);
                        counts.dead += 1;
                    });
                }
            }
        }
        for verdict in verdicts {
            self.arrived(verdict)?;
        }
        (self.failed, self.throttled) = (step.failed, step.throttled);
        Ok(())
    }

    fn dropped(&mut self, bucket: &str, jobs: u64, is_late: bool) {
        let name = BucketName::parse(bucket.as_bytes()).ok();
        let Some(bucket) = name.and_then(|name| self.measures.known(&name)) else { return };
        self.measures.count(bucket, |counts| {
            counts.waiting = counts.waiting.saturating_sub(jobs);
            if is_late { counts.late += jobs } else { counts.pushed_out += jobs }
        });
    }

    /// It is over: a job that still waits has waited so far. Else a bucket from which nothing leaves would have no waits.
    /// One that is late waits for nothing.
    async fn end(&mut self, at_us: u64) -> Result<(), SimulationError> {
        let now_us = self.plan.start_us + at_us;
        for bucket in self.measures.all_buckets().iter().map(Some).chain([None]) {
            let [fresh, overdue] = self.store.still_waiting(bucket, now_us).await?;
            for job in fresh.iter().filter_map(|job| JobText::read(job)) {
                self.measures.waited(job.bucket, at_us.saturating_sub(job.at_us));
            }
            for job in overdue.iter().filter_map(|job| JobText::read(job)) {
                self.measures.count(job.bucket, |counts| {
                    counts.late += 1;
                    counts.waiting = counts.waiting.saturating_sub(1);
                });
            }
        }
        Ok(())
    }

    /// Ask some buckets what binds them now.
    async fn ask(&mut self, at_us: u64) -> Result<(), SimulationError> {
        let now_us = self.plan.start_us + at_us;
        self.store.beat_in_simulation(now_us).await?;
        for (pattern, number, bucket) in self.measures.next_waiting(MOST_ASKED) {
            let facts = self.store.explain_at(&bucket, now_us).await?;
            let local_time = LocalTime::of(now_us, jiff::tz::TimeZone::UTC);
            let said = Explanation::of(&facts, self.file.clone(), &local_time);
            let (binding, budget) = said.binds();
            let by = match (binding, budget) {
                // Its jobs are held, or have left it, and no worker is free.
                (Binding::Held | Binding::Empty, _) => "workers".to_owned(),
                (binding, None) => binding.word(),
                (binding, Some(budget)) => format!("{} of {budget}", binding.word()),
            };
            self.measures.bound(pattern, number, &by);
        }
        Ok(())
    }
}
