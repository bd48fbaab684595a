//! Everything that a demo saw: its buckets, when its events came, what became of its daemons.

use std::collections::BTreeMap;

use super::bucket::{Bucket, Taken, now_us};
use super::plan::{Event, Plan};
use super::probe::Stalls;
use crate::model::bucket::BucketName;

/// What is shown is so old: by then the workers have handed over what left a bucket before it.
const SHOWN_LATE_US: u64 = 100_000;

/// What a worker reports: it did a job, or was refused it and gave it back.
pub(super) struct WorkerEvent {
    pub(super) bucket: BucketName,
    pub(super) job: Taken,
    pub(super) is_refused: bool,
}

pub(super) struct Seen {
    pub(super) plan: &'static Plan,
    pub(super) buckets: Vec<Bucket>,
    /// The budget above them, with the jobs of all of them.
    pub(super) budget: Option<Bucket>,
    pub(super) start_us: u64,
    /// When each event of the plan came, up to now.
    pub(super) came_us: Vec<u64>,
    /// The processes of the daemons; none: it has not begun.
    pub(super) processes: Vec<u32>,
    /// How many jobs Redis recorded as rejected, by bucket.
    pub(super) recorded: BTreeMap<String, u64>,
    pub(super) stalls: Stalls,
}

impl Seen {
    pub(super) fn new(plan: &'static Plan) -> Self {
        Self {
            plan,
            buckets: plan.buckets.iter().map(|(name, rate, capacity)| Bucket::new(name, rate, *capacity)).collect(),
            budget: plan.budget.map(|(name, rate)| Bucket::new(name, rate, 0)),
            start_us: now_us(),
            came_us: Vec::new(),
            processes: Vec::new(),
            recorded: BTreeMap::new(),
            stalls: Stalls::default(),
        }
    }

    /// Put a job where it belongs.
    pub(super) fn note(&mut self, event: &WorkerEvent) {
        let bucket = self.buckets.iter_mut().find(|bucket| bucket.name == event.bucket);
        for node in bucket.into_iter().chain(&mut self.budget) {
            if event.is_refused { node.refused.push(event.job) } else { node.took(event.job) }
        }
    }

    /// When something happened.
    pub(super) fn when(&self, event: Event) -> Option<u64> {
        let n = self.plan.events.iter().position(|(_, other, _)| *other == event)?;
        self.came_us.get(n).copied()
    }

    /// The moment that is shown.
    pub(super) fn shown_us(&self) -> u64 {
        (now_us() - SHOWN_LATE_US).max(self.start_us)
    }

    /// How much of the demo is shown, in milliseconds; nothing before it began.
    pub(super) fn shown_ms(&self) -> u64 {
        if self.processes.is_empty() { 0 } else { (self.shown_us() - self.start_us) / 1_000 }
    }

    /// Whether all was pushed, and each job is out, or waits in a bucket from which nothing leaves any more.
    pub(super) fn is_over(&self) -> bool {
        let planned = |n| (self.plan.pushed_by)(n, self.plan.ends_by_ms);
        let may_wait = self.when(Event::Close).is_some();
        self.buckets
            .iter()
            .enumerate()
            .all(|(n, bucket)| bucket.pushed() == planned(n) && bucket.is_settled() && (may_wait || bucket.depth == 0))
    }
}
