//! The load of the demo: producers that push in bursts, and workers that take what has dripped out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::seen::{Bucket, Seen, Taken, now_us};
use super::stage::Stage;
use crate::cli::{Exit, Failure};
use crate::store::{Address, Partition, Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::policy::Route;

const WORKERS: usize = 4;

/// How many jobs a worker takes at a time, at most: it is so quick with them that a lease is no matter.
const TAKES: usize = 16;

/// A bucket that holds more than it may is looked at again and again, but not for longer than this.
const LOOKS_FOR: Duration = Duration::from_secs(1);

type Told = (BucketName, Taken);

pub(super) struct Load {
    store: Store,
    workers: JoinSet<Result<(), StoreError>>,
    taken: UnboundedReceiver<Told>,
    buckets: Vec<BucketName>,
}

impl Load {
    /// Start the workers.
    pub(super) fn start(stage: &Stage, store: Store) -> Self {
        let (sender, taken) = unbounded_channel();
        let (mut workers, partition) = (JoinSet::new(), Partition::of(&stage.config.redis));
        for n in 0..WORKERS {
            workers.spawn(work(stage.address.clone(), partition.clone(), format!("demo-{n}"), sender.clone()));
        }
        Self { store, workers, taken, buckets: Vec::new() }
    }

    /// The next job in a worker's hand.
    pub(super) async fn next(&mut self) -> Result<Told, Failure> {
        tokio::select! {
            Some(ended) = self.workers.join_next() => {
                let why = match ended { Ok(Err(why)) => why.to_string(), other => format!("{other:?}") };
                Err(Failure::new(Exit::Failed, format!("a worker of the demo ended: {why}")))
            }
            Some(told) = self.taken.recv() => Ok(told),
        }
    }

    /// One that was taken already and not looked at.
    pub(super) fn at_hand(&mut self) -> Option<Told> {
        self.taken.try_recv().ok()
    }

    /// A burst: one plain push, judged by its reply as any producer would. A job is its own number.
    pub(super) async fn push(&mut self, bucket: &mut Bucket, jobs: u64) -> Result<(), StoreError> {
        let numbers: Vec<Vec<u8>> = (bucket.pushed..bucket.pushed + jobs).map(|n| n.to_string().into_bytes()).collect();
        let at_us = now_us();
        let length = self.store.push_plain(&bucket.name, &numbers).await?;
        bucket.pushed(at_us, jobs, length);
        Ok(())
    }

    /// Ask how many jobs wait, and note for how long more did than may.
    pub(super) async fn watch(&mut self, seen: &mut Seen) -> Result<(), StoreError> {
        if self.buckets.is_empty() {
            self.buckets = seen.buckets.iter().map(|bucket| bucket.name.clone()).collect();
        }
        let since = Instant::now();
        loop {
            let asked = Instant::now();
            let depths = self.store.depths(&self.buckets).await?;
            let answered = Instant::now();
            for (bucket, depth) in seen.buckets.iter_mut().zip(depths) {
                bucket.waits(depth, asked, answered);
            }
            let over = seen.buckets.iter().any(|bucket| bucket.depth > bucket.capacity);
            if !over || since.elapsed() >= LOOKS_FOR {
                return Ok(());
            }
        }
    }

    /// Stop the workers, and hand over what they still took. Replies what Redis tells of rejected jobs.
    pub(super) async fn end(mut self, seen: &mut Seen) -> Result<BTreeMap<String, u64>, StoreError> {
        self.workers.shutdown().await;
        while let Some((bucket, job)) = self.at_hand() {
            seen.took(&bucket, job);
        }
        self.watch(seen).await?;
        self.store.rejected().await
    }
}

/// Take jobs and acknowledge them.
async fn work(
    address: Address,
    partition: Partition,
    name: String,
    sender: UnboundedSender<Told>,
) -> Result<(), StoreError> {
    let route = Route::default();
    let mut reader = Store::connect_blocking(&address, &partition, Duration::from_secs(1)).await?;
    let mut store = Store::connect(&address, &partition).await?;
    reader.open_route(&route).await?;
    loop {
        let jobs = reader.take(&route, &name, TAKES, Duration::from_secs(1)).await?;
        for job in &jobs {
            let number = job.body.as_deref().and_then(|body| std::str::from_utf8(body).ok()?.parse().ok());
            if let (Some(bucket), Some(number)) = (job.bucket.clone(), number) {
                let _ = sender.send((bucket, Taken { number, due_us: job.due_us, at_us: job.at_us }));
            }
        }
        for job in &jobs {
            store.ack(&route, &job.entry).await?;
        }
    }
}
