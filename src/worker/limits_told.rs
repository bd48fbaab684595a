//! What the other side says about its limits: which node it is about, and a word in the log, once a minute, where it cannot be
//! understood or has no place.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::warn;

use super::Job;
use crate::model::bucket::BucketName;
use crate::store::jobs::work::{LimitReport, Reports};

/// How often the log names what could not be used.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The reports of all jobs of a worker.
#[derive(Debug, Default)]
pub(super) struct LimitsTold {
    /// The budget that they are about; none: the job's bucket.
    budget: Option<BucketName>,
    unread: Throttled,
    misplaced: Throttled,
}

/// How often something happened since the log last said so.
#[derive(Debug, Default)]
struct Throttled(Mutex<(u64, Option<Instant>)>);

impl Throttled {
    /// Count it so many times more. Replies how often it happened, where the log should say so now.
    fn count(&self, times: usize) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.0 += times as u64;
        let is_time = state.1.is_none_or(|said| said.elapsed() >= SAID_EVERY);
        is_time.then(|| {
            state.1 = Some(Instant::now());
            std::mem::take(&mut state.0)
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_it_at_once_and_then_once_a_minute() {
        let counted = Throttled::default();
        assert_eq!([counted.count(1), counted.count(2), counted.count(1)], [Some(1), None, None]);
        let an_earlier_time = Instant::now().checked_sub(SAID_EVERY);
        counted.0.lock().expect("nobody else has it").1 = an_earlier_time;
        let expected = an_earlier_time.is_some().then_some(4);
        assert_eq!(counted.count(1).filter(|_| an_earlier_time.is_some()), expected);
    }
}
