//! The ready-made worker: takes as many jobs as it has slots for, runs each, and says what became of it.
//!
//! Two connections: one waits for jobs, the other renews, acknowledges and gives back. A call whose answer was lost is
//! made again until the lease is over: acknowledging and giving back are safe to repeat.

mod asked;
mod exec;
mod http;
mod identity;
mod print;
mod slot;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use exec::Exec;
pub use http::{Http, header};
pub use identity::identity;
pub use print::Print;
use slot::Slot;
pub use webhook::Signer;

use crate::store::acl::Role;
use crate::store::link::Link;
use crate::store::{Address, Partition, Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::policy::Route;

/// How long one read waits for jobs. A stop has to wait for it: a read that is given up may still take a job.
const BLOCK: Duration = Duration::from_secs(1);

/// How long the jobs in hand may go on after a stop; the rest of the five seconds is for giving them back.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// The wait before a connection is made again: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long taking the worker's name off the group may take.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);

/// How long giving back may take after a stop.
const GIVE_BACK_WITHIN: Duration = Duration::from_millis(900);

/// A job as it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The bucket it came from.
    pub bucket: BucketName,
    /// Its stable identity, as it is known outside its stream: the same in every try, and no other job's.
    pub id: String,
    /// 1 for the first try.
    pub attempt: u64,
    /// The bytes that the producer pushed.
    pub body: Vec<u8>,
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It failed, and is to be tried again.
    Failed(String),
    /// It failed, and trying again is of no use.
    Dead(String),
    /// It was not tried properly: again without counting it, after the given wait or the back-off.
    GivenBack(Option<Duration>, String),
    /// The other side said that it is too fast, and maybe when to come back: again without counting it, and more slowly.
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

impl Runner {
    async fn run(&self, job: &Job, stop: &CancellationToken) -> Outcome {
        match self {
            Self::Exec(exec) => exec.run(job, stop).await,
            Self::Http(http) => tokio::select! {
                outcome = http.run(job) => outcome,
                () = stop.cancelled() => Outcome::GivenBack(Some(Duration::ZERO), "worker stopped".to_owned()),
            },
            Self::Print(print) => print.run(job).await,
        }
    }
}

/// A worker on one route.
pub struct Worker {
    address: Address,
    partition: Partition,
    route: Route,
    name: String,
    slots: usize,
    runner: Arc<Runner>,
    link: Arc<Link>,
    slows: Option<BucketName>,
}

impl Worker {
    /// A worker with `slots` jobs at a time at most.
    #[must_use]
    pub fn new(address: Address, partition: Partition, route: Route, slots: usize, runner: Runner) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Containers may share both the host's name and the process id, and two workers must not share a name.
        let name = format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let link = Arc::new(Link::new(address.clone(), partition.clone()));
        Self { address, partition, route, name, slots, runner: Arc::new(runner), link, slows: None }
    }

    /// Let what the other side asks for slow down the budget of this name above a job's bucket, not the bucket alone.
    #[must_use]
    pub fn slowing(self, budget: Option<BucketName>) -> Self {
        Self { slows: budget, ..self }
    }

    /// Work until stopped: then finish what is in hand within five seconds, or give it back.
    ///
    /// # Errors
    ///
    /// When Redis could not be used once; after that it is waited for.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        let mut reader = self.reader().await?;
        let (mut running, kill) = (JoinSet::new(), CancellationToken::new());
        info!(route = self.route.as_str(), worker = self.name, slots = self.slots, "working");
        let (mut pause, mut reads) = (FIRST_PAUSE, false);
        while !stop.is_cancelled() {
            while running.try_join_next().is_some() {}
            if running.len() >= self.slots {
                tokio::select! { _ = running.join_next() => {}, () = stop.cancelled() => {} }
                continue;
            }
            // A read that is given up may still take a job, so after a stop it has a moment to answer.
            let overdue = async {
                stop.cancelled().await;
                sleep(BLOCK + GIVE_BACK_WITHIN / 2).await;
            };
            let taken = tokio::select! {
                taken = reader.take(&self.route, &self.name, self.slots - running.len(), BLOCK) => taken,
                () = overdue => {
                    reads = true;
                    break;
                }
            };
            match taken {
                Ok(entries) => {
                    pause = FIRST_PAUSE;
                    for entry in entries {
                        running.spawn(self.slot().work(entry, kill.clone()));
                    }
                }
                Err(why) => {
                    let Some(again) = self.take_failed(why, &mut pause, &stop).await else { break };
                    reader = again;
                }
            }
        }
        let finished = timeout(FINISH_WITHIN, async { while running.join_next().await.is_some() {} }).await;
        kill.cancel();
        let given_back = timeout(GIVE_BACK_WITHIN, async { while running.join_next().await.is_some() {} }).await;
        if given_back.is_err() {
            warn!(jobs = running.len(), "jobs could not be given back: they are taken back when their leases end");
        } else if finished.is_err() {
            info!("gave back what was not finished");
        }
        // A read that was given up may still be answered with a job: it would be lost with the name.
        if given_back.is_ok() && !reads {
            let (route, name) = (&self.route, &self.name);
            let leave = |mut store: Store| async move { store.leave(route, name).await };
            let _ = timeout(LEAVE_WITHIN, self.link.until_answered(leave)).await; // an idle name does no harm
        }
        Ok(())
    }

    async fn reader(&self) -> Result<Store, StoreError> {
        let mut store = Store::connect_blocking(&self.address, &self.partition, BLOCK).await?;
        store.open_route(&self.route).await?;
        Ok(store)
    }

    /// Connect anew, or open the route anew; `None` when stopped meanwhile.
    async fn take_failed(&self, why: StoreError, pause: &mut Duration, stop: &CancellationToken) -> Option<Store> {
        if why.code() != Some("NOGROUP") {
            warn!(why = why.on_record(Role::Worker), "cannot take jobs, trying again");
        }
        loop {
            let wait = pause.mul_f64(0.5 + fastrand::f64());
            *pause = (*pause * 2).min(self.address.longest_pause(LONGEST_PAUSE));
            let again = async {
                sleep(wait).await;
                self.reader().await
            };
            tokio::select! {
                () = stop.cancelled() => return None,
                reader = again => match reader {
                    Ok(reader) => return Some(reader),
                    Err(why) => debug!(%why, "redis cannot be used"),
                }
            }
        }
    }

    /// What the slots of this worker share.
    fn slot(&self) -> Slot {
        Slot {
            route: self.route.clone(),
            name: self.name.clone(),
            runner: Arc::clone(&self.runner),
            link: Arc::clone(&self.link),
            slows: self.slows.clone(),
        }
    }
}
