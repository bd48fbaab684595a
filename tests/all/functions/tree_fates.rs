//! The reference model of `tree_model`: what becomes of a job that has left. "A retry goes back through its bucket: it waits out its back-off,
//! then leaves ahead of the queue and takes a rate slot like any other job", and one all the way up.

use super::model::{Back, FIRST, Fate, GivenBack, Tries};
use super::tree_reference::{Job, Left, Tree};
use crate::rig::MS;

/// Of every bucket here.
pub(super) const TRIES: Tries = Tries { attempts: 3, backoff: (200 * MS, 300 * MS) };

/// A job that backs off.
#[derive(Debug, Clone)]
pub(super) struct Retry {
    pub(super) job: Job,
    /// As its next entry has them.
    pub(super) attempt: u64,
    pub(super) kept: u64,
    /// The length of its back-off.
    pub(super) delay: u64,
}

/// A job that was given up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dead {
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) attempt: u64,
    pub(super) reason: String,
    pub(super) cost: u64,
}

/// What a worker asks for that gives a job back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed {
    pub(super) back: Back,
    pub(super) keep: bool,
    pub(super) dead: bool,
}

impl Tree {
    pub(super) fn bucket_of(&self, left: &Left) -> usize {
        self.nodes.iter().position(|node| node.id == left.bucket).expect("its bucket")
    }

    /// The jobs that have left and that no worker is done with.
    pub(super) fn undone(&self) -> impl Iterator<Item = usize> {
        (0..self.left.len()).filter(|at| !self.done.contains(at))
    }

    /// The first dispatch of a job.
    pub(super) fn first_dispatch(&self, at: usize) -> usize {
        let of = |left: &Left| (left.bucket.clone(), left.job.clone());
        self.left.iter().position(|left| of(left) == of(&self.left[at])).expect("itself")
    }

    /// Whether it was submitted: then it has an id of its own.
    pub(super) fn is_submitted(&self, at: usize) -> bool {
        self.nodes[self.bucket_of(&self.left[at])].ids.contains(&self.left[at].job)
    }

    /// A worker is done with a job: "incidents are forgotten when a job that left after the slow-down was acknowledged", of each node that it
    /// went through.
    pub(super) fn acked(&mut self, at: usize, now: u64) {
        self.done.insert(at);
        let n = self.bucket_of(&self.left[at]);
        for node in std::iter::once(n).chain(self.above(n)) {
            if let Some(slow) = &mut self.nodes[node].slow {
                slow.done(self.left[at].at);
            }
        }
        self.frees_slots(at, now);
    }

    /// When the back-off of a job would end; none: it would be given up.
    pub(super) fn would_end(&self, at: usize, failed: Failed, now: u64) -> Option<u64> {
        if let Fate::Again { ends, .. } = self.fate(at, failed, now) { Some(ends) } else { None }
    }

    fn fate(&self, at: usize, Failed { back, keep, dead }: Failed, now: u64) -> Fate {
        let Left { attempt, kept, deadline, .. } = self.left[at];
        GivenBack { attempt, kept, deadline, back, keep, dead }.fate(TRIES, now)
    }

    /// A worker gives a job back: 1 it will be retried, 2 it is dead.
    pub(super) fn fails(&mut self, at: usize, failed: Failed, reason: &str, now: u64) -> i64 {
        self.done.insert(at);
        let Left { bucket, job, cost, deadline, attempt, .. } = self.left[at].clone();
        let fate = self.fate(at, failed, now);
        let Fate::Again { ends, delay, attempt, kept } = fate else {
            let reason = if matches!(fate, Fate::Expired) { "expired" } else { reason }.into();
            self.dead.push(Dead { bucket, job, attempt, reason, cost });
            self.frees_slots(at, now);
            return 2;
        };
        // "Those of one slow-down leave first, in the order of their first dispatch": of one with an id of its own nobody knows that, and the one
        // that was turned away counts.
        let order = if self.is_submitted(at) { at } else { self.first_dispatch(at) };
        let n = self.bucket_of(&self.left[at]);
        let job = Job { cost, deadline, ..Job::plain(&job) };
        let later = &mut self.nodes[n].later;
        later.retries.insert((ends, order), Retry { job, attempt, kept, delay });
        later.expects(ends, now);
        self.frees_slots(at, now);
        1
    }

    /// "Gives the job back as `KEEP` does and slows the bucket, or the budget above it that is named", `slowed`. `told` is when that goes on, as
    /// it was found: that says what the jitter was.
    pub(super) fn throttled(&mut self, at: usize, slowed: usize, retry_after: Option<u64>, told: u64, now: u64) -> i64 {
        let (left, how) = (self.left[at].at, self.slowing(slowed));
        let slow = self.slowed(slowed, now, |slow| slow.incident(now, left, retry_after, told, &how));
        let back = Back::First(slow.begun.saturating_sub(FIRST));
        let is_budget = self.nodes[slowed].queue.is_none();
        if is_budget {
            self.put_right(slowed, now);
        }
        // A bucket leaves its place when its slot is free: so long its budgets wait on, though nothing else waits for them.
        let outcome = self.fails(at, Failed { back, keep: true, dead: false }, "throttled", now);
        if !is_budget {
            self.put_right(slowed, now);
        }
        outcome
    }

    /// The turn of a bucket begins: of the retries whose turn it is, one that was cancelled is gone and one whose deadline is over is dead,
    /// both without a slot.
    pub(super) fn gives_up(&mut self, n: usize, now: u64) {
        let node = &mut self.nodes[n];
        while let Some(first) = node.later.retry(now) {
            let Retry { job, attempt, .. } = &node.later.retries[&first];
            if job.is_cancelled {
                // It is gone; it has left before, so its id stays taken.
            } else if job.is_late(now) {
                let (bucket, job, cost) = (node.id.clone(), job.body.clone(), job.cost);
                self.dead.push(Dead { bucket, job, attempt: (attempt - 1).max(1), reason: "expired".into(), cost });
            } else {
                return;
            }
            node.later.retries.remove(&first);
        }
    }
}
