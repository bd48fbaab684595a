//! The reference model of `tree_model`: delayed jobs, which wait aside for their time.

use std::collections::{BTreeMap, VecDeque};

use super::tree_reference::{Job, Place, Tree};

/// The delayed jobs of a bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Later {
    /// "In the order of times"; of two with the same time the one that was accepted first leaves first.
    pub(super) jobs: BTreeMap<(u64, u64), Job>,
    /// "It takes turns with the queue, one and one": a job of the queue leaves next, while one whose time has come waits.
    pub(super) is_queue_next: bool,
    /// When a call looks at the bucket for their sake. `ANNOUNCED`: one has, and put it where its work is seen.
    pub(super) look: Option<u64>,
}

pub(super) const ANNOUNCED: u64 = u64::MAX;

impl Later {
    /// When a call must look at the bucket, where none has.
    pub(super) fn next_look(&self) -> Option<u64> {
        self.look.filter(|look| *look != ANNOUNCED)
    }

    /// Whether a call has seen that the time of a job has come.
    fn is_seen(&self, now: u64) -> bool {
        self.look == Some(ANNOUNCED) && self.first().is_some_and(|at| at <= now)
    }

    /// The first time.
    pub(super) fn first(&self) -> Option<u64> {
        self.jobs.keys().next().map(|(at, _)| *at)
    }
}

impl Tree {
    /// What a call does first: where the time of a job has come its bucket has work. Idle time earns no credit.
    pub(super) fn times_come(&mut self, now: u64) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].later.look.is_some_and(|look| look <= now) {
                self.nodes[n].later.look = Some(ANNOUNCED);
                self.begins(n, now);
            }
        }
    }

    /// A bucket has work from now on; one that had some stays where it is.
    pub(super) fn begins(&mut self, n: usize, now: u64) {
        if self.nodes[n].place != Place::Nowhere {
            return;
        }
        self.nodes[n].due = self.nodes[n].due.max(now);
        self.arrives(n);
        let due = self.due(n);
        self.nodes[n].place = if self.nodes[n].is_paused { Place::Paused } else { Place::Schedule(due) };
    }

    /// Whether a job of a bucket could leave, were it due.
    pub(super) fn has_jobs(&self, n: usize, now: u64) -> bool {
        self.nodes[n].queue.as_ref().is_some_and(|queue| !queue.is_empty()) || self.nodes[n].later.is_seen(now)
    }

    /// Whether a job of the queue is next: "when its time has come it takes turns with the queue, one and one".
    fn is_queue_next(&self, n: usize, now: u64) -> bool {
        let node = &self.nodes[n];
        !node.later.is_seen(now)
            || node.later.is_queue_next && node.queue.as_ref().is_some_and(|queue| !queue.is_empty())
    }

    /// The job whose turn it is.
    pub(super) fn next(&self, n: usize, now: u64) -> Option<&Job> {
        let node = &self.nodes[n];
        if self.is_queue_next(n, now) { node.queue.as_ref()?.front() } else { node.later.jobs.values().next() }
    }

    /// It is taken out of its bucket.
    pub(super) fn take_next(&mut self, n: usize, now: u64) -> Option<Job> {
        let is_queue_next = self.is_queue_next(n, now);
        let node = &mut self.nodes[n];
        node.later.is_queue_next = !is_queue_next;
        if is_queue_next { node.queue.as_mut()?.pop_front() } else { node.later.jobs.pop_first().map(|(_, job)| job) }
    }

    /// After the turn of a bucket: when to look at it next for the sake of its delayed jobs.
    pub(super) fn look_ahead(&mut self, n: usize, now: u64) {
        let later = &mut self.nodes[n].later;
        if !later.is_seen(now) {
            later.is_queue_next = false;
            if later.look == Some(ANNOUNCED) {
                later.look = later.first();
            }
        }
    }

    /// "1 cancelled (queued, delayed; its place frees at its turn), 2 dispatched already, 0 not known." 1 also where it was dropped.
    pub(super) fn cancel(&mut self, n: usize, body: &str) -> i64 {
        let node = &mut self.nodes[n];
        if !node.ids.contains(body) {
            return 0;
        }
        let waiting = node.queue.iter_mut().flat_map(VecDeque::iter_mut).chain(node.later.jobs.values_mut());
        if let Some(job) = waiting.into_iter().find(|job| job.body == body) {
            job.is_cancelled = true;
            return 1;
        }
        if self.left.iter().any(|left| left.job == body) { 2 } else { 1 }
    }

    /// "`queued delayed left unknown`; `eta_ms` (what was answered at the accept, less the time since)", and the attempt.
    pub(super) fn find(&self, n: usize, id: &str, now: u64) -> (String, i64, i64) {
        let node = &self.nodes[n];
        let waits = |job: &&Job| job.body == id && !job.is_cancelled;
        let queued = node.queue.iter().flatten().find(waits).map(|job| ("queued", job.eta));
        let delayed = node.later.jobs.values().find(waits).map(|job| ("delayed", job.eta));
        match queued.or(delayed) {
            Some((state, eta)) => (state.into(), eta.saturating_sub(now).div_ceil(1_000) as i64, 1),
            None => (if node.ids.contains(id) { "left" } else { "unknown" }.into(), -1, 0),
        }
    }

    /// An operator throws away what waits in a bucket: its queue, its delayed jobs, or both. Replies what a purge does: jobs, retries, retries
    /// that stay and jobs that were cut, of which there are none here; delayed jobs, and those that stay.
    pub(super) fn purge(&mut self, n: usize, queue: bool, delayed: bool, now: u64) -> [i64; 6] {
        self.looks_at(n, now);
        let node = &mut self.nodes[n];
        let jobs = if queue { std::mem::take(node.queue.as_mut().expect("a bucket")).len() } else { 0 };
        let mut later = 0;
        if delayed {
            later = std::mem::take(&mut node.later.jobs).len();
            (node.later.look, node.later.is_queue_next) = (None, false);
        }
        let stays = node.later.jobs.len();
        self.moves(n, now);
        [jobs, 0, 0, 0, later, stays].map(|n| n as i64)
    }

    /// A bucket stands where it must; one whose turn it is not keeps its place among its siblings.
    pub(super) fn moves(&mut self, n: usize, now: u64) {
        let (due, place) = (self.due(n), self.nodes[n].place);
        self.nodes[n].place = match place {
            _ if !self.has_jobs(n, now) => Place::Nowhere,
            _ if self.nodes[n].is_paused => Place::Paused,
            Place::Share(ends, _) if due <= now => Place::Share(ends, due),
            _ => Place::Schedule(due),
        };
    }
}
