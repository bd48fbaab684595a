//! Throwing away what waits in a bucket.

use super::change::Author;
use super::reply::unexpected;
use super::{Store, StoreError};
use crate::words::bucket::BucketName;

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// Jobs that waited and are gone.
    pub jobs: u64,
    /// Failed jobs that waited for another try and are gone.
    pub retries: u64,
    /// Failed jobs that still wait for another try.
    pub retries_left: u64,
    /// Jobs that had come over the capacity and had not been cut yet.
    pub cut: u64,
    /// Jobs that waited for their time and are gone.
    pub delayed: u64,
    /// Jobs that still wait for their time.
    pub delayed_left: u64,
}

/// What is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The queue, and with it what is asked for besides.
    Queue {
        /// Jobs that failed and wait for another try.
        retries: bool,
        /// Jobs that wait for their time.
        delayed: bool,
    },
    /// Jobs that wait for their time, and nothing else.
    DelayedAlone,
}

impl Store {
    /// Throw away jobs that wait in a bucket, in one step.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code; [`StoreError::Lost`] when the outcome is unknown.
    pub async fn purge(&mut self, bucket: &BucketName, what: What, author: &Author) -> Result<Purged, StoreError> {
        let (retries, delayed): (&[u8], &[u8]) = match what {
            What::Queue { retries, delayed } => (if retries { b"1" } else { b"0" }, if delayed { b"1" } else { b"0" }),
            What::DelayedAlone => (b"0", b"only"),
        };
        let args = [b"".as_slice(), retries, author.by.as_bytes(), author.user.as_bytes(), b"", delayed];
        let reply = self.function("drip__purge", &[self.keys().queue(bucket)], &args).await?;
        let shown = unexpected("drip__purge", &reply);
        let six = redis::from_redis_value(reply).map_err(|_| shown)?;
        let (jobs, retries, retries_left, cut, delayed, delayed_left) = six;
        Ok(Purged { jobs, retries, retries_left, cut, delayed, delayed_left })
    }
}
