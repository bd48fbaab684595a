//! What the other side says about its limits: which node it is about, and a word in the log, once a minute, where it cannot be
//! understood or has no place.

use tracing::warn;

use super::Job;
use super::once_a_minute::OnceAMinute;
use crate::model::bucket::BucketName;
use crate::store::jobs::work::{LimitReport, Reports};

/// The reports of all jobs of a worker.
#[derive(Debug, Default)]
pub(super) struct LimitsTold {
    /// The budget that they are about; none: the job's bucket.
    budget: Option<BucketName>,
    unread: OnceAMinute,
    misplaced: OnceAMinute,
}

impl LimitsTold {
    /// Reports about the budget of this name above each job's bucket; none: the bucket.
    pub(super) fn about(budget: Option<BucketName>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// The reports to pass on.
    pub(super) fn reports(&self, list: Vec<LimitReport>) -> Reports {
        let budget = self.budget.clone().filter(|_| !list.is_empty());
        Reports { list, budget }
    }

    /// Headers could not be understood: they are passed over.
    pub(super) fn unread(&self, headers: &[String]) {
        let Some(header) = headers.first() else { return };
        if let Some(times) = self.unread.count(headers.len()) {
            warn!(header, times, "a header about a limit cannot be understood: it is passed over");
        }
    }

    /// No budget of that name is above the bucket of a job: its reports are dropped.
    pub(super) fn misplaced(&self, job: &Job) {
        if let (Some(budget), Some(times)) = (&self.budget, self.misplaced.count(1)) {
            let bucket = &job.bucket;
            warn!(%bucket, %budget, times, "no budget of that name is above the bucket: what was told of its limits is dropped");
        }
    }
}
