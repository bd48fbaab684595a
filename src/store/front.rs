//! What a bucket's page shows besides how it stands: the jobs that leave next, and the dispatches that came last.

use redis::{FromRedisValue as _, Value};

use super::reply::{list, text, unexpected};
use super::{Store, StoreError};
use crate::words::bucket::BucketName;

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
pub struct Front {
    /// How many wait.
    pub depth: u64,
    /// Those that leave next, as many as were asked for, and no more once 1 MiB was read.
    pub jobs: Vec<WaitingJob>,
}

/// A job that has left, in microseconds since the epoch on the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drip {
    /// When it was due.
    pub due_us: u64,
    /// When it left.
    pub left_us: u64,
}

/// The last dispatches of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drips {
    /// The server's time.
    pub at_us: u64,
    /// How many jobs have left since they are remembered; `None`: those of too many other buckets are.
    pub left: Option<u64>,
    /// The last of them, at most 100, the oldest first.
    pub drips: Vec<Drip>,
}

impl Store {
    /// The first bytes of the jobs that leave a bucket next: of at most [`JOBS_MOST`] jobs, at most [`BYTES_MOST`] bytes of each.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` where the key of the bucket holds something else.
    pub async fn front(&mut self, bucket: &BucketName, jobs: usize, bytes: usize) -> Result<Front, StoreError> {
        let (jobs, bytes) = (jobs.to_string(), bytes.to_string());
        let args = [b"".as_slice(), jobs.as_bytes(), bytes.as_bytes()];
        let reply = self.reading("drip__front", &[self.keys().queue(bucket)], &args).await?;
        front_of(&reply).ok_or_else(|| unexpected("drip__front", &reply))
    }

    /// The last dispatches of a bucket. They are remembered as long as somebody asks.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn drips(&mut self, bucket: &BucketName) -> Result<Drips, StoreError> {
        let reply = self.reading("drip__drips", &[self.keys().queue(bucket)], &[b"".as_slice()]).await?;
        drips_of(&reply).ok_or_else(|| unexpected("drip__drips", &reply))
    }
}

fn front_of(reply: &Value) -> Option<Front> {
    let (depth, jobs) = list(reply)?.split_first()?;
    let (jobs, []) = jobs.as_chunks::<2>() else { return None };
    let job = |[bytes, first]: &[Value; 2]| {
        let Value::BulkString(first) = first else { return None };
        Some(WaitingJob { bytes: u64::from_redis_value_ref(bytes).ok()?, first: first.clone() })
    };
    Some(Front { depth: u64::from_redis_value_ref(depth).ok()?, jobs: jobs.iter().map(job).collect::<Option<_>>()? })
}

fn drips_of(reply: &Value) -> Option<Drips> {
    let time = |value: &Value| text(value)?.parse().ok();
    let (at, rest) = list(reply)?.split_first()?;
    let at_us = time(at)?;
    let Some((left, drips)) = rest.split_first() else { return Some(Drips { at_us, left: None, drips: Vec::new() }) };
    let (drips, []) = drips.as_chunks::<2>() else { return None };
    let drip = |[due, left]: &[Value; 2]| Some(Drip { due_us: time(due)?, left_us: time(left)? });
    let left = Some(u64::from_redis_value_ref(left).ok()?);
    Some(Drips { at_us, left, drips: drips.iter().map(drip).collect::<Option<_>>()? })
}
