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
}

impl Store {
    /// Throw away all jobs that wait in a bucket, in one step; those that failed too where `with_retries` says so.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code; [`StoreError::Lost`] when the outcome is unknown.
    pub async fn purge(
        &mut self,
        bucket: &BucketName,
        with_retries: bool,
        author: &Author,
    ) -> Result<Purged, StoreError> {
        let with_retries: &[u8] = if with_retries { b"1" } else { b"0" };
        let args = [b"".as_slice(), with_retries, author.by.as_bytes(), author.user.as_bytes()];
        let reply = self.function("drip__purge", &[self.keys().queue(bucket)], &args).await?;
        let shown = unexpected("drip__purge", &reply);
        let (jobs, retries, retries_left, cut) = redis::from_redis_value(reply).map_err(|_| shown)?;
        Ok(Purged { jobs, retries, retries_left, cut })
    }
}
