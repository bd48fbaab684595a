//! The page of a bucket: the jobs that leave next, and the last dispatches.

use redis::{FromRedisValue as _, Value};

use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;

/// How many jobs a call tells of, and how many bytes of each.
pub const JOBS_MOST: usize = 100;
/// How many bytes of a job a call tells.
pub const BYTES_MOST: usize = 4_096;

/// A job that waits, as far as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingJob {
    /// How many bytes it has.
    pub bytes: u64,
    /// The first of them.
    pub first: Vec<u8>,
}

/// The jobs that leave a bucket next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPage {
    /// How many wait.
    pub depth: u64,
    /// Jobs that leave next: as many as were asked for, and no more once 1 MiB was read.
    pub jobs: Vec<WaitingJob>,
}

/// A job that has left, in microseconds since the epoch on the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecentDispatch {
    /// When it was due.
    pub due_us: u64,
    /// When it left.
    pub left_us: u64,
}

/// The last dispatches of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentDispatches {
    /// The server's time.
    pub at_us: u64,
    /// How many jobs have left since they are remembered; `None`: those of too many other buckets are.
    pub left: Option<u64>,
    /// The last of them, at most 100, the oldest first.
    pub drips: Vec<RecentDispatch>,
}

impl Store {
    /// The first bytes of the jobs that leave a bucket next: of at most [`JOBS_MOST`] jobs, at most [`BYTES_MOST`] bytes of each.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` where the key of the bucket holds something else.
    pub async fn bucket_page(
        &mut self,
        bucket: &BucketName,
        jobs: usize,
        bytes: usize,
    ) -> Result<BucketPage, StoreError> {
        let reply = self.call_read_only("drip__front", &[self.keys().queue(bucket)], ("", jobs, bytes)).await?;
        reply.decode_with(|items: Vec<Value>| front_of(&items))
    }

    /// The last dispatches of a bucket. They are remembered as long as somebody asks.
    pub async fn recent_dispatches(&mut self, bucket: &BucketName) -> Result<RecentDispatches, StoreError> {
        self.call_read_only("drip__drips", &[self.keys().queue(bucket)], "")
            .await?
            .decode_with(|items: Vec<Value>| drips_of(&items))
    }
}

/// How many wait, and then, of each job, how many bytes it has and the first of them.
fn front_of(items: &[Value]) -> Option<BucketPage> {
    let (depth, jobs) = items.split_first()?;
    let jobs = <(u64, Vec<u8>)>::from_redis_value_refs(jobs).ok()?;
    let jobs = jobs.into_iter().map(|(bytes, first)| WaitingJob { bytes, first }).collect();
    Some(BucketPage { depth: u64::from_redis_value_ref(depth).ok()?, jobs })
}

/// The time, how many jobs have left where that is known, and then, of each dispatch, when it was due and when it left.
fn drips_of(items: &[Value]) -> Option<RecentDispatches> {
    let number = |value| u64::from_redis_value_ref(value).ok();
    let (at, rest) = items.split_first()?;
    let at_us = number(at)?;
    let Some((left, drips)) = rest.split_first() else {
        return Some(RecentDispatches { at_us, left: None, drips: Vec::new() });
    };
    let drips = <(u64, u64)>::from_redis_value_refs(drips).ok()?;
    let drips = drips.into_iter().map(|(due_us, left_us)| RecentDispatch { due_us, left_us }).collect();
    Some(RecentDispatches { at_us, left: Some(number(left)?), drips })
}
