//! What the demo sees: its accounts, and when the flood came and the provider refused a job.

use super::{ACCOUNT_RATE, ACCOUNTS, CAPACITY, RETRY_AFTER};
use crate::cli::demo::bucket::{Bucket, Taken, now_us};
use crate::cli::demo::load::{Refused, WorkerEvent};
use crate::model::bucket::BucketName;

/// What the screen shows is so old: by then the workers have handed over what left a bucket before it.
const SHOWN_LATE_US: u64 = 100_000;

/// The wait of an account is that of its jobs of so long.
const WAIT_OVER_US: u64 = 1_000_000;

/// Everything that the demo saw.
pub(super) struct Seen {
    pub(super) accounts: Vec<Bucket>,
    pub(super) start_us: u64,
    pub(super) has_begun: bool,
    pub(super) flood_us: Option<u64>,
    /// The job that the provider refused, and whose it was.
    pub(super) refused: Option<(BucketName, Refused)>,
}

impl Seen {
    pub(super) fn new() -> Self {
        let accounts = ACCOUNTS.iter().map(|(name, _)| Bucket::new(name, ACCOUNT_RATE, CAPACITY)).collect();
        Self { accounts, start_us: now_us(), has_begun: false, flood_us: None, refused: None }
    }

    pub(super) fn note(&mut self, event: WorkerEvent) {
        self.refused = event.note(&mut self.accounts).or(self.refused.take());
    }

    /// The moment that is shown.
    pub(super) fn shown_us(&self) -> u64 {
        now_us().saturating_sub(SHOWN_LATE_US).max(self.start_us)
    }

    /// From when to when nothing may leave, because the provider said so: what is sure of it.
    pub(super) fn closed_us(&self) -> Option<(u64, u64)> {
        self.refused
            .as_ref()
            .map(|(_, refused)| (refused.told_us.1, refused.told_us.0 + RETRY_AFTER.as_micros() as u64))
    }

    /// When it is over at the latest.
    pub(super) fn open_us(&self) -> Option<u64> {
        self.refused.as_ref().map(|(_, refused)| refused.told_us.1 + RETRY_AFTER.as_micros() as u64)
    }

    /// Jobs of all accounts that left after one moment and not after another.
    pub(super) fn left_between(&self, from_us: u64, to_us: u64) -> usize {
        self.accounts.iter().map(|account| account.taken_between(from_us, to_us).len()).sum()
    }
}

/// How long jobs of an account waited, in milliseconds: the longest of those that left in the second before some moment.
pub(super) fn wait_ms(account: &Bucket, at_us: u64) -> Option<f64> {
    let jobs = account.taken_between(at_us.saturating_sub(WAIT_OVER_US), at_us);
    jobs.iter().filter_map(|job| waited_us(account, job)).max().map(|us| us as f64 / 1e3)
}

/// How long a job waited, from its push.
pub(super) fn waited_us(account: &Bucket, job: &Taken) -> Option<u64> {
    Some(job.at_us.saturating_sub(account.pushed_us(job.number)?))
}
