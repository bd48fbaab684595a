//! Throwing away what waits in a bucket.

use super::change::Author;
use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;

/// The result of a purge.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Purged {
    /// The bucket.
    pub bucket: String,
    /// Jobs of its queue.
    pub jobs: u64,
    /// Failed jobs.
    pub retries: u64,
    /// Failed jobs that stayed.
    pub retries_left: u64,
    /// Jobs that had come over the capacity and had not been rejected yet.
    pub cut: u64,
    /// Delayed jobs.
    pub delayed: u64,
    /// Delayed jobs that stayed.
    pub delayed_left: u64,
}

/// The jobs that a purge throws away.
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
        let (retries, delayed) = match what {
            What::Queue { retries, delayed } => (retries, if delayed { "1" } else { "0" }),
            What::DelayedAlone => (false, "only"),
        };
        let args = ("", retries, &author.by, &author.user, "", delayed);
        let reply = self.call_function("drip__purge", &[self.keys().queue(bucket)], args).await?;
        let (jobs, retries, retries_left, cut, delayed, delayed_left) = reply.decode()?;
        Ok(Purged { bucket: bucket.to_string(), jobs, retries, retries_left, cut, delayed, delayed_left })
    }
}
