//! Plain pushes: by function, and as any client of Redis makes them.

use std::time::Duration;

use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::reply::{count, wait};

/// The verdict on a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// How many of the jobs went in: the first ones.
    pub accepted: usize,
    /// Jobs waiting now.
    pub depth: u64,
    /// Of this bucket.
    pub capacity: u64,
    /// Until one place is expected to be free; `None` when all went in.
    pub retry_after: Option<Duration>,
    /// Until the last accepted job is due; `None` when none went in.
    pub eta: Option<Duration>,
}

/// How long to wait before a try again while the partition is on the move, or Redis takes no jobs for another reason that passes.
pub const MOVING_RETRY: Duration = Duration::from_secs(1);

impl Store {
    /// Put jobs into a bucket, all or the first ones. Never repeat a push that was lost: it may have run.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code; [`StoreError::Lost`] when the outcome is unknown.
    pub async fn push(&mut self, bucket: &BucketName, jobs: &[Vec<u8>]) -> Result<Pushed, StoreError> {
        self.call_function("drip_push", &[self.keys().queue(bucket)], jobs).await?.decode_with(pushed)
    }

    /// A plain push, as any Redis client makes it. Replies the length of the queue, which is the verdict.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`] when the outcome is unknown.
    pub async fn push_plain(&mut self, bucket: &BucketName, jobs: &[Vec<u8>]) -> Result<u64, StoreError> {
        let mut command = redis::cmd("LPUSH");
        command.arg(self.keys().queue(bucket)).arg(jobs);
        self.read("LPUSH", &command).await
    }

    /// The state of a bucket as a push would find it.
    ///
    /// # Errors
    ///
    /// As [`Self::push`].
    pub async fn peek(&mut self, bucket: &BucketName) -> Result<Pushed, StoreError> {
        self.call_read_only("drip_peek", &[self.keys().queue(bucket)], None::<&str>).await?.decode_with(pushed)
    }
}

pub(super) fn pushed([accepted, depth, capacity, retry_after, eta]: [i64; 5]) -> Option<Pushed> {
    Some(Pushed {
        accepted: usize::try_from(accepted).ok()?,
        depth: count(depth)?,
        capacity: count(capacity)?,
        retry_after: wait(retry_after, Duration::from_millis),
        eta: wait(eta, Duration::from_millis),
    })
}
