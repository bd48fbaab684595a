//! The ready-made worker: takes as many jobs as it has slots for, runs each, and says what became of it.
//!
//! One connection waits for jobs (`fetch`; with several partitions there are several). Another one renews, acknowledges and gives back.
//! A call whose answer was lost is made again until the lease is over: acknowledging and giving back are safe to repeat.

mod exec;
mod fetch;
mod header_value;
mod http;
mod identity;
mod job_run;
mod limit_headers;
mod limits_told;
mod once_a_minute;
mod print;
mod spans;
mod webhook;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use exec::Exec;
use fetch::{BLOCK, Fetched, Fetcher};
pub use http::{Http, header, headers_in};
pub use identity::identity;
use job_run::JobRun;
use limits_told::LimitsTold;
pub use print::Print;
pub use spans::Spans;
use spans::{Received, Source};
pub use webhook::Signer;

use crate::model::bucket::BucketName;
use crate::model::route::Route;
use crate::store::jobs::work::LimitReport;
use crate::store::link::Link;
use crate::store::{Address, Layout, Partitions, StoreError};
use crate::system::processes::unique_name;

/// How long the jobs in hand may go on after a stop, with the grace of a command; the rest of the five seconds is for giving them back.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// How long they may go on at least, where the grace is long.
const FINISH_LEAST: Duration = Duration::from_secs(1);

/// How long taking the worker's name off the group may take.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);

/// How long giving back may take after a stop.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(900);

/// A job as it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The bucket it came from.
    pub bucket: BucketName,
    /// The identity outside its stream: the same in every try, and no other job's.
    pub id: String,
    /// 1 for the first try.
    pub attempt: u64,
    /// The bytes that the producer pushed.
    pub body: Vec<u8>,
    /// How many slots of each rate it took.
    pub cost: u64,
    /// The deadline by which the job should have left, microseconds since the epoch.
    pub deadline_us: Option<u64>,
    /// The headers that the producer gave: names of a-z, 0-9 and -, values of plain characters.
    pub headers: Vec<(String, String)>,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The job is done.
    Done,
    /// The job failed, and is to be tried again.
    Failed(String),
    /// The job failed, and trying again is of no use.
    Dead(String),
    /// The job was not tried properly: it is tried again without counting this attempt, after the given wait or the back-off.
    GivenBack(Option<Duration>, String),
    /// The other side said that the worker is too fast, and maybe when to come back: the job is tried again without counting this
    /// attempt, and its bucket slows down.
    Throttled(Option<Duration>, String),
}

/// How jobs are run.
#[derive(Debug, Clone)]
pub enum Runner {
    /// By a command each.
    Exec(Exec),
    /// By a POST each.
    Http(Http),
    /// By writing them to standard output.
    Print(Print),
}

impl Outcome {
    /// The worker was stopped before the job was done.
    fn stopped() -> Self {
        Self::GivenBack(Some(Duration::ZERO), "worker stopped".to_owned())
    }
}

impl Runner {
    /// Run a job. Replies its outcome, and what the other side says about its limits. When stopped, end the run, and give the job back.
    async fn run(&self, job: &Job, told: &LimitsTold, stop: &CancellationToken) -> (Outcome, Vec<LimitReport>) {
        match self {
            Self::Exec(exec) => (exec.run(job, stop).await, Vec::new()),
            Self::Http(http) => http.run(job, told, stop).await,
            Self::Print(print) => tokio::select! {
                outcome = print.run(job) => (outcome, Vec::new()),
                () = stop.cancelled() => (Outcome::stopped(), Vec::new()),
            },
        }
    }

    /// How long ending a run may take.
    fn grace(&self) -> Duration {
        match self {
            Self::Exec(exec) => exec.grace(),
            Self::Http(_) | Self::Print(_) => Duration::ZERO,
        }
    }
}

/// A worker on one route.
pub struct Worker {
    address: Address,
    layout: Layout,
    /// The partitions that this worker reads.
    partitions: Vec<u8>,
    route: Route,
    name: String,
    slots: usize,
    runner: Arc<Runner>,
    link: Arc<Link>,
    slows: Option<BucketName>,
    told: Arc<LimitsTold>,
    spans: Option<Spans>,
}

impl Worker {
    /// A worker with `slots` jobs at a time at most.
    pub fn new(address: Address, layout: Layout, route: Route, slots: usize, runner: Runner) -> Self {
        let link = Arc::new(Link::new(address.clone(), layout.clone()));
        let partitions = (0..layout.partitioning().partitions).collect();
        let (name, runner) = (unique_name(), Arc::new(runner));
        let told = Arc::new(LimitsTold::default());
        Self { address, layout, partitions, route, name, slots, runner, link, slows: None, told, spans: None }
    }

    /// Let what the other side asks for slow down the budget of this name above a job's bucket, not the bucket alone.
    pub fn slowing(self, budget: Option<BucketName>) -> Self {
        Self { slows: budget, ..self }
    }

    /// Let what the other side says about its limits be about the budget of this name above a job's bucket, not the bucket.
    pub fn told_in(self, budget: Option<BucketName>) -> Self {
        Self { told: Arc::new(LimitsTold::about(budget)), ..self }
    }

    /// Send spans of its jobs.
    pub fn traced(self, spans: Option<Spans>) -> Self {
        Self { spans, ..self }
    }

    /// Read these partitions only.
    pub fn from(self, partitions: Option<RangeInclusive<u8>>) -> Self {
        let partitions = partitions.map_or(self.partitions, Iterator::collect);
        Self { partitions, ..self }
    }

    /// Work until stopped. Then finish the jobs in hand within five seconds, or give them back. A command whose grace is longer than a second
    /// has that.
    ///
    /// # Errors
    ///
    /// When Redis could not be used at the start. Later the worker waits for it.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let (address, layout) = (self.address.clone(), self.layout.clone());
        let (route, name) = (self.route.clone(), self.name.clone());
        let mut fetcher = Fetcher::open(address, layout, &self.partitions, route, name, stop.clone()).await?;
        let (mut running, kill) = (JoinSet::new(), CancellationToken::new());
        info!(route = self.route.as_str(), worker = self.name, slots = self.slots, "working");
        if self.slots < self.partitions.len() {
            let (slots, partitions) = (self.slots, self.partitions.len());
            info!(
                slots,
                partitions,
                "fewer slots than partitions: each is looked at in turn; --concurrency or --partitions helps"
            );
        }
        while !stop.is_cancelled() {
            while running.try_join_next().is_some() {}
            fetcher.begin(self.slots - running.len());
            tokio::select! {
                Some(read) = fetcher.next() => self.start(&mut running, read, &kill),
                Some(_) = running.join_next() => {}
                () = stop.cancelled() => {}
            }
        }
        // A read that is given up may still take a job, so after a stop each has a moment to answer.
        let overdue = sleep(BLOCK + GIVE_BACK_WITHIN / 2);
        tokio::pin!(overdue);
        let gave_up = loop {
            tokio::select! {
                read = fetcher.next() => match read {
                    Some(read) => self.start(&mut running, read, &kill),
                    None => break false,
                },
                () = &mut overdue => break true,
            }
        };
        let grace = self.runner.grace();
        let finish = FINISH_WITHIN.saturating_sub(grace).max(FINISH_LEAST);
        let finished = timeout(finish, async { while running.join_next().await.is_some() {} }).await;
        kill.cancel();
        let given_back =
            timeout(grace + GIVE_BACK_WITHIN, async { while running.join_next().await.is_some() {} }).await;
        if given_back.is_err() {
            warn!(jobs = running.len(), "jobs could not be given back: they are taken back when their leases end");
        } else if finished.is_err() {
            info!("gave back what was not finished");
        }
        // A read that was given up may still be answered with a job: it would be lost with the name.
        if given_back.is_ok() && !gave_up {
            let (route, name, numbers) = (&self.route, &self.name, &self.partitions);
            let leave = |partitions: Partitions| async move {
                try_join_all(numbers.iter().map(async |number| partitions.at(*number).leave(route, name).await)).await
            };
            let _ = timeout(LEAVE_WITHIN, self.link.until_answered(leave)).await; // an idle name does no harm
        }
        Ok(())
    }

    /// Give the jobs of a read to slots.
    fn start(&self, running: &mut JoinSet<()>, fetched: Fetched, kill: &CancellationToken) {
        if fetched.entries.is_empty() {
            return;
        }
        let source = Source { route: &self.route, worker: &self.name, partition: fetched.number };
        let received = self.spans.as_ref().map(|spans| spans.received(&source, &fetched));
        for entry in fetched.entries {
            running.spawn(self.job_run(fetched.number, received.clone()).work(entry, kill.clone()));
        }
    }

    /// A run of a job of this partition.
    fn job_run(&self, number: u8, received: Option<Received>) -> JobRun {
        JobRun {
            number,
            route: self.route.clone(),
            name: self.name.clone(),
            runner: Arc::clone(&self.runner),
            link: Arc::clone(&self.link),
            slows: self.slows.clone(),
            told: Arc::clone(&self.told),
            received,
        }
    }
}
