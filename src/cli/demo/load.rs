//! The load of the demo: producers that push in bursts, and workers that take what has dripped out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::bucket::{Bucket, Taken, now_us};
use super::seen::{Seen, WorkerEvent};
use super::stage::Stage;
use crate::cli::{Exit, Failure};
use crate::model::bucket::BucketName;
use crate::model::route::Route;
use crate::store::change::{NodeChange, SlowDown};
use crate::store::jobs::work::Reports;
use crate::store::jobs::work::{Fail, Throttled};
use crate::store::{Address, Layout, Partition, Store, StoreError};

const WORKERS: usize = 4;

/// How many jobs a worker takes at a time, at most: it is so quick with them that a lease is no matter.
const TAKES: usize = 16;

/// For how long a worker waits for a job before it looks whether it is to go away.
const TAKES_FOR: Duration = Duration::from_millis(50);

/// A bucket that holds more than it may is looked at again and again, but not for longer than this.
const LOOKS_FOR: Duration = Duration::from_secs(1);

/// For how long a budget is closed at the end: longer than what is under way needs to arrive.
const CLOSED_FOR_MS: u64 = 6_000;

/// That the next job is refused: by which budget, and for how long.
type Refusal = Arc<Mutex<Option<Throttled>>>;

pub(super) struct Load {
    store: Store,
    workers: JoinSet<Result<(), StoreError>>,
    events: UnboundedReceiver<WorkerEvent>,
    refusal: Refusal,
    is_away: watch::Sender<bool>,
}

impl Load {
    /// Start the workers.
    pub(super) fn start(stage: &Stage, store: Store) -> Self {
        let ((sender, events), refusal) = (unbounded_channel(), Refusal::default());
        let (mut workers, partition) = (JoinSet::new(), Layout::of(&stage.config.redis).authority());
        let (is_away, away) = watch::channel(false);
        for n in 0..WORKERS {
            let (address, name) = (stage.address.clone(), format!("demo-{n}"));
            let worker = Worker { name, sender: sender.clone(), refusal: Arc::clone(&refusal), away: away.clone() };
            workers.spawn(worker.work(address, partition.clone()));
        }
        Self { store, workers, events, refusal, is_away }
    }

    /// The workers stop taking jobs, or take them again.
    pub(super) fn send_away(&self, is_away: bool) {
        let _ = self.is_away.send(is_away);
    }

    /// The other side of a budget refuses the next job that a worker takes.
    pub(super) fn refuse(&self, budget: Option<&Bucket>, retry_after: Duration) {
        let throttled = Throttled { retry_after: Some(retry_after), budget: budget.map(|budget| budget.name.clone()) };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(throttled);
    }

    /// Let nothing leave under a budget any more, so that what is under way arrives and the rest waits.
    pub(super) async fn close(&mut self, budget: Option<&Bucket>) -> Result<(), StoreError> {
        let Some(budget) = budget else { return Ok(()) };
        let (node, by) = (format!("{{{}}}", budget.name.as_str()), "demo".to_owned());
        let what = SlowDown { ms: Some(CLOSED_FOR_MS) };
        let closed = NodeChange { node, within: None, what, by, user: String::new(), reason: None };
        self.store.slow(&closed).await.map(drop)
    }

    /// What a worker tells next.
    pub(super) async fn next(&mut self) -> Result<WorkerEvent, Failure> {
        tokio::select! {
            Some(ended) = self.workers.join_next() => {
                let why = match ended { Ok(Err(why)) => why.to_string(), other => format!("{other:?}") };
                Err(Failure::new(Exit::Failed, format!("a worker of the demo ended: {why}")))
            }
            Some(event) = self.events.recv() => Ok(event),
        }
    }

    /// A burst, unless it is of no jobs: one plain push, judged by its reply as any producer would. A job is its own number.
    pub(super) async fn push(&mut self, bucket: &mut Bucket, jobs: u64) -> Result<(), StoreError> {
        if jobs == 0 {
            return Ok(());
        }
        let first = bucket.pushed();
        let numbers: Vec<Vec<u8>> = (first..first + jobs).map(|n| n.to_string().into_bytes()).collect();
        let at_us = now_us();
        let length = self.store.push_plain(&bucket.name, &numbers).await?;
        bucket.note_push(at_us, jobs, length);
        Ok(())
    }

    /// Ask how many jobs wait, and note for how long more did than may.
    pub(super) async fn watch(&mut self, buckets: &mut [Bucket]) -> Result<(), StoreError> {
        let names: Vec<BucketName> = buckets.iter().map(|bucket| bucket.name.clone()).collect();
        let since = Instant::now();
        loop {
            let asked = Instant::now();
            let depths = self.store.depths(&names).await?;
            let answered = Instant::now();
            for (bucket, depth) in buckets.iter_mut().zip(depths) {
                bucket.note_depth(depth, asked, answered);
            }
            let over = buckets.iter().any(|bucket| bucket.depth > bucket.capacity);
            if !over || since.elapsed() >= LOOKS_FOR {
                return Ok(());
            }
        }
    }

    /// Stop the workers, and note what they still did and what Redis tells of rejected jobs.
    pub(super) async fn end(mut self, seen: &mut Seen) -> Result<(), StoreError> {
        self.workers.shutdown().await;
        while let Ok(event) = self.events.try_recv() {
            seen.note(&event);
        }
        self.watch(&mut seen.buckets).await?;
        seen.recorded = self.store.rejected().await?;
        Ok(())
    }
}

/// One of the workers.
struct Worker {
    name: String,
    sender: UnboundedSender<WorkerEvent>,
    refusal: Refusal,
    away: watch::Receiver<bool>,
}

impl Worker {
    /// Take jobs and acknowledge them; give one back when the other side refuses it.
    async fn work(mut self, address: Address, partition: Partition) -> Result<(), StoreError> {
        let route = Route::default();
        let mut reader = Store::connect_blocking(&address, &partition, TAKES_FOR).await?;
        let mut store = Store::connect(&address, &partition).await?;
        reader.open_route(&route).await?;
        loop {
            if self.away.wait_for(|away| !away).await.is_err() {
                return Ok(()); // the demo is over
            }
            let since_us = now_us();
            let jobs = reader.take(&route, &self.name, TAKES, Some(TAKES_FOR)).await?;
            let handed_us = (since_us, now_us());
            for job in &jobs {
                let number = job.body.as_deref().and_then(|body| std::str::from_utf8(body).ok()?.parse().ok());
                let (Some(bucket), Some(number)) = (job.bucket.clone(), number) else { continue };
                let taken = Taken { number, due_us: job.due_us, at_us: job.at_us, asked_us: handed_us };
                let refused = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(throttled) = refused {
                    let fail = Fail { throttled: Some(throttled), reason: "429".to_owned(), ..Fail::default() };
                    let since_us = now_us();
                    store.fail(&route, &job.entry, &fail).await?;
                    let taken = Taken { asked_us: (since_us, now_us()), ..taken };
                    let _ = self.sender.send(WorkerEvent { bucket, job: taken, is_refused: true });
                } else {
                    let _ = self.sender.send(WorkerEvent { bucket, job: taken, is_refused: false });
                    store.ack(&route, &job.entry, &Reports::default()).await?;
                }
            }
        }
    }
}
