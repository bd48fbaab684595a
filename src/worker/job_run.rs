//! One job in one slot: run it, keep its lease meanwhile, and tell Redis and the log what became of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::identity::identity;
use super::limits_told::LimitsTold;
use super::spans::{Received, Source, Waits};
use super::{Job, Outcome, Runner};
use crate::model::bucket::BucketName;
use crate::model::route::Route;
use crate::store::jobs::work::{Fail, Failed, Job as Entry, Reports, Throttled};
use crate::store::link::Link;
use crate::store::{Partitions, StoreError};

/// The longest time for which an answer that was lost is asked for again.
const MOST_PATIENCE: Duration = Duration::from_secs(60);

/// A job that runs in a slot: what its calls need.
pub(super) struct JobRun {
    /// The partition of its job.
    pub(super) number: u8,
    pub(super) route: Route,
    pub(super) name: String,
    pub(super) runner: Arc<Runner>,
    pub(super) link: Arc<Link>,
    /// The budget that the other side slows down. None: the bucket.
    pub(super) slows: Option<BucketName>,
    /// What it says about its limits.
    pub(super) told: Arc<LimitsTold>,
    /// The span of the read that brought the job, where spans are sent.
    pub(super) received: Option<Received>,
}

/// An entry in hand: what calls about it need.
struct Held {
    entry: String,
    lease: Duration,
    taken: Instant,
}

/// The reply of Redis about a job. None: it did not reply in time.
type Answer<T> = Option<Result<T, StoreError>>;

impl JobRun {
    pub(super) async fn work(self, entry: Entry, kill: CancellationToken) {
        let held = Held { entry: entry.entry, lease: entry.lease, taken: Instant::now() };
        let (Some(bucket), Some(body)) = (entry.bucket, entry.body) else {
            let fail = Fail { dead: true, reason: "malformed".to_owned(), ..Fail::default() };
            return say_malformed(&held.entry, self.fail(&held, &fail).await);
        };
        let Entry { id, attempt, due_us, at_us, cost, deadline_us, headers, .. } = entry;
        let mut job = Job { id: identity(&id, &bucket), bucket, attempt, body, cost, deadline_us, headers };
        let source = Source { route: &self.route, worker: &self.name, partition: self.number };
        let process = self.received.as_ref().map(|read| read.process(&source, &Waits::of(due_us, at_us), &mut job));
        let cancel = kill.child_token();
        let (outcome, reports) = tokio::select! {
            outcome = self.runner.run(&job, &self.told, &cancel) => outcome,
            () = self.keep_lease(&held, &job) => {
                let Job { bucket, attempt, id, .. } = &job;
                warn!(%bucket, attempt, id, "the lease is lost: the job is somebody else's now");
                return cancel.cancel(); // dropping the run has ended it
            }
        };
        if let Some(process) = process {
            process.end(&outcome);
        }
        let told = Fail { reports: self.told.reports(reports), ..Fail::default() };
        match outcome {
            Outcome::Done => self.done(&held, &job, told.reports).await,
            Outcome::Failed(reason) => self.give_up(&held, &job, Fail { reason, ..told }).await,
            Outcome::Dead(reason) => self.give_up(&held, &job, Fail { dead: true, reason, ..told }).await,
            Outcome::GivenBack(retry_in, reason) => {
                self.give_up(&held, &job, Fail { retry_in, keep: true, reason, ..told }).await;
            }
            Outcome::Throttled(retry_after, reason) => {
                self.slow_down(&held, &job, retry_after, Fail { reason, ..told }).await;
            }
        }
    }

    /// Renew the lease three times in its length. Returns only when it is lost.
    async fn keep_lease(&self, held: &Held, job: &Job) {
        let mut renewed = held.taken;
        loop {
            sleep(held.lease / 3).await;
            let asked = Instant::now();
            let left = held.lease.saturating_sub(renewed.elapsed());
            let renew = |partitions: Partitions| async move {
                partitions.at(self.number).renew(&self.route, &self.name, &held.entry).await
            };
            let why = match timeout(left, self.link.until_answered(renew)).await {
                Ok(Ok(false)) => return,
                Ok(Ok(true)) => None,
                // Only the word that the job is gone ends it.
                Ok(Err(why)) => Some(why.to_string()),
                // Redis is away, and so is whoever would take the job back: go on, and ask again.
                Err(_) => Some("redis did not answer in time".to_owned()),
            };
            renewed = asked;
            if let Some(why) = why {
                let Job { bucket, attempt, id, .. } = job;
                warn!(%bucket, attempt, id, why, "the lease cannot be renewed: the job keeps running");
            }
        }
    }

    async fn ack(&self, held: &Held, reports: &Reports) -> Answer<bool> {
        let ack = |partitions: Partitions| async move {
            partitions.at(self.number).ack(&self.route, &held.entry, reports).await
        };
        timeout(held.patience(), self.link.until_answered(ack)).await.ok()
    }

    /// Acknowledge a job, with what the other side says about its limits; without it where that has no place.
    async fn done(&self, held: &Held, job: &Job, reports: Reports) {
        let mut answer = self.ack(held, &reports).await;
        if !reports.list.is_empty() && is_bad_argument(answer.as_ref()) {
            self.told.misplaced(job);
            answer = self.ack(held, &Reports::default()).await;
        }
        say_done(job, answer);
    }

    async fn fail(&self, held: &Held, fail: &Fail) -> Answer<Failed> {
        let fail = |partitions: Partitions| async move {
            partitions.at(self.number).fail(&self.route, &held.entry, fail).await
        };
        timeout(held.patience(), self.link.until_answered(fail)).await.ok()
    }

    /// Give a job back that the other side refused for now, and slow down its budget. Where no budget of that name is above the job's
    /// bucket, the bucket itself slows down: a worker that was told to wait must wait.
    async fn slow_down(&self, held: &Held, job: &Job, retry_after: Option<Duration>, told: Fail) {
        let mut fail = Fail { throttled: Some(Throttled { retry_after, budget: self.slows.clone() }), ..told };
        let mut answer = self.fail(held, &fail).await;
        if !fail.reports.list.is_empty() && is_bad_argument(answer.as_ref()) {
            fail.reports = Reports::default(); // it is said below, or with the next job that is done
            answer = self.fail(held, &fail).await;
        }
        if let Some(budget) = self.slows.as_ref().filter(|_| is_bad_argument(answer.as_ref())) {
            warn!(bucket = %job.bucket, %budget, "no budget of that name is above the bucket: the bucket alone slows down");
            fail.throttled = Some(Throttled { retry_after, budget: None });
            answer = self.fail(held, &fail).await;
        }
        say_not_done(job, &fail, answer);
    }

    async fn give_up(&self, held: &Held, job: &Job, mut fail: Fail) {
        let mut answer = self.fail(held, &fail).await;
        if !fail.reports.list.is_empty() && is_bad_argument(answer.as_ref()) {
            self.told.misplaced(job);
            fail.reports = Reports::default();
            answer = self.fail(held, &fail).await;
        }
        say_not_done(job, &fail, answer);
    }
}

impl Held {
    /// For how long an answer that was lost is asked for again.
    fn patience(&self) -> Duration {
        self.lease.min(MOST_PATIENCE)
    }
}

/// Whether Redis refused a call for what it was given: a budget that is not above the bucket.
fn is_bad_argument<T>(answer: Option<&Result<T, StoreError>>) -> bool {
    matches!(answer, Some(Err(why)) if why.code() == Some("BADARG"))
}

fn say_malformed(entry: &str, answer: Answer<Failed>) {
    match answer {
        Some(Ok(_)) => warn!(entry, "the entry is no job: it is in the dead stream"),
        Some(Err(why)) => warn!(entry, %why, "the entry is no job, and redis refused to move it to the dead stream"),
        None => warn!(entry, "the entry is no job, and redis was not told in time: it comes back when its lease ends"),
    }
}

fn say_done(job: &Job, answer: Answer<bool>) {
    let Job { bucket, attempt, id, .. } = job;
    match answer {
        Some(Ok(true)) => debug!(%bucket, attempt, id, "done"),
        Some(Ok(false)) => {
            warn!(%bucket, attempt, id, "done, but the job was not this worker's any more: it may run again");
        }
        Some(Err(why)) => {
            warn!(%bucket, attempt, id, %why, "done, but redis refused the acknowledgement: the job runs again when its lease ends");
        }
        None => {
            warn!(%bucket, attempt, id, "done, but redis was not told in time: the job runs again when its lease ends");
        }
    }
}

fn say_not_done(job: &Job, fail: &Fail, answer: Answer<Failed>) {
    let (Job { bucket, attempt, id, .. }, reason) = (job, &fail.reason);
    let what = if fail.keep || fail.throttled.is_some() { "given back" } else { "failed" };
    match answer {
        Some(Ok(Failed::Retried)) => {
            if let Some(Throttled { retry_after, budget }) = &fail.throttled {
                let wait = retry_after.map_or_else(|| "as slow says".to_owned(), |wait| format!("{wait:?}"));
                let slowed = budget.as_ref().unwrap_or(bucket);
                info!(%bucket, attempt, id, reason, %slowed, wait, "throttled: it is given back, and what it came from slows down");
                return;
            }
            let wait = fail.retry_in.map_or_else(|| "its back-off".to_owned(), |wait| format!("{wait:?}"));
            if fail.keep {
                info!(%bucket, attempt, id, reason, wait, "given back: it will be tried again, and the attempt does not count");
            } else {
                info!(%bucket, attempt, id, reason, wait, "failed: it will be tried again");
            }
        }
        Some(Ok(Failed::Dead)) if fail.dead => {
            warn!(%bucket, attempt, id, reason, "failed for good: it is in the dead stream");
        }
        Some(Ok(Failed::Dead)) => {
            warn!(%bucket, attempt, id, reason, "{what}, and its attempts are used up: it is in the dead stream");
        }
        Some(Ok(Failed::NotPending)) => {
            warn!(%bucket, attempt, id, reason, "{what}, but the job was not this worker's any more: nothing changed");
        }
        Some(Err(why)) => {
            warn!(%bucket, attempt, id, reason, %why, "{what}, but redis refused that: the job comes back when its lease ends");
        }
        None => {
            warn!(%bucket, attempt, id, reason, "{what}, but redis was not told in time: the job comes back when its lease ends");
        }
    }
}
