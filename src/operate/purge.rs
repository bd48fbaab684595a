//! `purge`: throw away the jobs that wait in a bucket.

use clap::Args;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::model::bucket::BucketName;
use crate::model::counted::counted;
use crate::model::escape::escaped;
use crate::store::change::Author;
use crate::store::purge::{Purged, What};
use crate::store::{Partitions, StoreError};

/// Throw away the jobs that wait in a bucket.
#[derive(Debug, Clone)]
pub struct PurgeRequest {
    /// The bucket.
    pub bucket: BucketName,
    /// The kinds of jobs.
    pub what: What,
}

/// The kinds of jobs that are purged, beside those of the queue.
#[derive(Debug, Clone, Copy, Default, Args, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Purge)]
pub struct PurgeOptions {
    /// Jobs that failed and wait for another try, too
    #[arg(long)]
    #[serde(default)]
    pub retries: bool,
    /// Jobs that wait for their time, too
    #[arg(long)]
    #[serde(default)]
    pub delayed: bool,
}

impl From<PurgeOptions> for What {
    fn from(PurgeOptions { retries, delayed }: PurgeOptions) -> Self {
        Self::Queue { retries, delayed }
    }
}

impl PurgeRequest {
    /// Throw the jobs away in one step, in the name of `by`.
    ///
    /// # Errors
    ///
    /// A call to Redis fails.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Purged, StoreError> {
        let author = Author { by: by.to_owned(), user: store.whoami().await };
        store.of(&self.bucket).purge(&self.bucket, self.what, &author).await
    }

    /// The outcome for people.
    pub fn describe(&self, gone: &Purged) -> String {
        let name = escaped(self.bucket.as_str().as_bytes());
        let What::Queue { retries, delayed } = self.what else {
            return format!("{}: {} delayed jobs dropped", self.bucket, gone.delayed);
        };
        let and_retries =
            if retries { format!(" and {}", counted(gone.retries, "retry", "retries")) } else { String::new() };
        let and_delayed = if delayed { format!(", {} delayed", gone.delayed) } else { String::new() };
        let cut = match gone.cut {
            0 => String::new(),
            n => format!("; {} had come over its capacity and are counted as rejected", counted(n, "job", "jobs")),
        };
        let (jobs, left) = (counted(gone.jobs, "job", "jobs"), counted(gone.retries_left, "retry", "retries"));
        format!("{name}: {jobs}{and_retries} thrown away{and_delayed}, 0 jobs and {left} left{cut}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_says_what_is_gone_and_what_is_left() {
        let bucket = BucketName::parse(b"acme").expect("a name");
        let describe = |what| {
            let bucket = bucket.clone();
            let gone = Purged {
                bucket: bucket.to_string(),
                jobs: 1,
                retries: 2,
                retries_left: 0,
                cut: 3,
                delayed: 4,
                delayed_left: 0,
            };
            PurgeRequest { bucket, what }.describe(&gone)
        };
        let cut = "; 3 jobs had come over its capacity and are counted as rejected";
        assert_eq!(
            describe(What::Queue { retries: true, delayed: true }),
            format!("acme: 1 job and 2 retries thrown away, 4 delayed, 0 jobs and 0 retries left{cut}")
        );
        assert_eq!(
            describe(What::Queue { retries: false, delayed: false }),
            format!("acme: 1 job thrown away, 0 jobs and 0 retries left{cut}")
        );
        assert_eq!(describe(What::DelayedAlone), "acme: 4 delayed jobs dropped");
    }
}
