//! The reference model of `tree_model`: delayed jobs and those that back off, which wait aside for their time.

use std::collections::{BTreeMap, VecDeque};

use super::tree_fates::Retry;
use super::tree_reference::{Job, Node, Place, Tree};

/// The delayed jobs of a bucket, and its retries.
#[derive(Debug, Clone, Default)]
pub(super) struct Later {
    /// "In the order of times"; of two with the same time the one that was accepted first leaves first.
    pub(super) jobs: BTreeMap<(u64, u64), Job>,
    /// "Retries leave in the order in which their back-offs ended", and those of one slow-down "in the order of their first dispatch".
    pub(super) retries: BTreeMap<(u64, usize), Retry>,
    /// "It takes turns with the queue, one and one": a job of the queue leaves next, while one whose time has come waits.
    pub(super) is_queue_next: bool,
    /// "While a job of the bucket backs off or was given back, the bucket waits for it, so that jobs finish in the order in which they were pushed."
    pub(super) is_ordered: bool,
    /// When a call looks at the bucket for their sake. `ANNOUNCED`: one has, and put it where its work is seen.
    pub(super) look: Option<u64>,
}

pub(super) const ANNOUNCED: u64 = u64::MAX;

impl Later {
    /// When a call must look at the bucket, where none has.
    pub(super) fn next_look(&self) -> Option<u64> {
        self.look.filter(|look| *look != ANNOUNCED)
    }

    /// Whether a call has seen that the time of a job has come, or a back-off has ended.
    fn is_seen(&self, now: u64) -> bool {
        self.look == Some(ANNOUNCED) && self.first().is_some_and(|at| at <= now)
    }

    /// The same of delayed jobs alone.
    fn is_time_seen(&self, now: u64) -> bool {
        self.look == Some(ANNOUNCED) && self.first_time().is_some_and(|at| at <= now)
    }

    /// The first time of a delayed job.
    pub(super) fn first_time(&self) -> Option<u64> {
        self.jobs.keys().next().map(|(at, _)| *at)
    }

    /// The first end of a back-off.
    fn first_end(&self) -> Option<u64> {
        self.retries.keys().next().map(|(ends, _)| *ends)
    }

    /// The first of both; where jobs finish in their order a delayed one waits for one that failed.
    pub(super) fn first(&self) -> Option<u64> {
        let time = self.first_time().filter(|_| !self.is_ordered || self.retries.is_empty());
        time.into_iter().chain(self.first_end()).min()
    }

    /// Whether the bucket waits for one that failed: for the end of its back-off, or for the call that sees that.
    pub(super) fn waits_for_retry(&self, now: u64) -> bool {
        self.is_ordered && self.first_end().is_some_and(|ends| ends > now || self.look != Some(ANNOUNCED))
    }

    /// What is to come first may be another one: a call looks at the bucket then. What has come and was announced stays so.
    pub(super) fn expects_first(&mut self, now: u64) {
        match (self.first(), self.look) {
            (Some(first), Some(look)) if first <= now => {
                self.look = Some(if look == ANNOUNCED { look } else { look.min(first) });
            }
            (first, _) => self.look = first,
        }
    }

    /// The retry that leaves next: "ahead of the queue".
    pub(super) fn retry(&self, now: u64) -> Option<(u64, usize)> {
        let first = self.retries.keys().next().copied();
        first.filter(|(ends, _)| self.look == Some(ANNOUNCED) && *ends <= now)
    }

    /// Something comes at a time, perhaps before all that is known of; where jobs finish in their order what is first is known each time.
    pub(super) fn expects(&mut self, at: u64, now: u64) {
        self.look = Some(self.look.map_or(at, |look| if look == ANNOUNCED { look } else { look.min(at) }));
        if self.is_ordered {
            self.expects_first(now);
        }
    }
}

impl Tree {
    /// What a call does first: where the time of a job has come its bucket has work. Idle time earns no credit.
    pub(super) fn times_come(&mut self, now: u64) {
        for n in 0..self.nodes.len() {
            let later = &mut self.nodes[n].later;
            if later.look.is_none_or(|look| look > now) {
                continue;
            }
            if later.is_ordered && later.first_end().is_some_and(|ends| ends > now) {
                later.look = later.first_end(); // the time of a delayed job has come, and it waits for one that failed
                continue;
            }
            later.look = Some(ANNOUNCED);
            if matches!(self.nodes[n].place, Place::Full(_)) && !self.is_full(n, now) {
                self.happens("an ordered bucket goes on with the job that failed");
                self.has_slot(n, now);
            } else {
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
        self.nodes[n].place = self.stopped(n, due, now).unwrap_or(Place::Schedule(due));
    }

    /// Whether a job of a bucket could leave, were it due.
    pub(super) fn has_jobs(&self, n: usize, now: u64) -> bool {
        self.nodes[n].queue.as_ref().is_some_and(|queue| !queue.is_empty()) || self.nodes[n].later.is_seen(now)
    }

    /// Whether a job of the queue is next: "when its time has come it takes turns with the queue, one and one".
    fn is_queue_next(&self, n: usize, now: u64) -> bool {
        let node = &self.nodes[n];
        !node.later.is_time_seen(now)
            || node.later.is_queue_next && node.queue.as_ref().is_some_and(|queue| !queue.is_empty())
    }

    /// The job whose turn it is.
    pub(super) fn next(&self, n: usize, now: u64) -> Option<&Job> {
        let node = &self.nodes[n];
        if let Some(at) = node.later.retry(now) {
            return Some(&node.later.retries[&at].job);
        }
        if self.is_queue_next(n, now) { node.queue.as_ref()?.front() } else { node.later.jobs.values().next() }
    }

    /// It is taken out of its bucket, with the number of its try, and how often it was given back.
    pub(super) fn take_next(&mut self, n: usize, now: u64) -> Option<(Job, u64, u64)> {
        let is_queue_next = self.is_queue_next(n, now);
        let node = &mut self.nodes[n];
        if let Some(at) = node.later.retry(now) {
            return node.later.retries.remove(&at).map(|retry| (retry.job, retry.attempt, retry.kept));
        }
        node.later.is_queue_next = !is_queue_next;
        let delayed = &mut node.later.jobs;
        let job =
            if is_queue_next { node.queue.as_mut()?.pop_front() } else { delayed.pop_first().map(|(_, job)| job) };
        job.map(|job| (job, 1, 0))
    }

    /// After the turn of a bucket: when to look at it next for the sake of its delayed jobs and retries.
    pub(super) fn look_ahead(&mut self, n: usize, now: u64) {
        let later = &mut self.nodes[n].later;
        if !later.is_time_seen(now) {
            later.is_queue_next = false;
        }
        if later.look == Some(ANNOUNCED) && !later.is_seen(now) {
            later.look = later.first();
        }
    }

    /// "1 cancelled (queued, delayed or backing off; its place frees at its turn), 2 dispatched already, 0 not known."
    pub(super) fn cancel(&mut self, n: usize, body: &str, now: u64) -> i64 {
        let is_free = self.is_free(n, body, now);
        let node = &mut self.nodes[n];
        if !node.ids.contains(body) {
            return 0;
        }
        let waiting = node.queue.iter_mut().flat_map(VecDeque::iter_mut).chain(node.later.jobs.values_mut());
        let waiting =
            waiting.filter(|job| !job.is_late(now)).chain(node.later.retries.values_mut().map(|retry| &mut retry.job));
        if let Some(job) = waiting.into_iter().find(|job| job.body == body) {
            job.is_cancelled = true;
            return 1;
        }
        if is_free { 0 } else { 2 }
    }

    /// Whether a job was taken away without having run, or will be: its id is free.
    pub(super) fn is_free(&self, n: usize, id: &str, now: u64) -> bool {
        let node = &self.nodes[n];
        let mut new = node.queue.iter().flatten().chain(node.later.jobs.values()).filter(|job| job.body == id);
        node.dropped.contains(id) || new.any(|job| job.is_cancelled || job.is_late(now))
    }

    /// "`queued delayed retrying left unknown`; `eta_ms` (what was answered at the accept, less the time since)", of one that backs off the end
    /// of that; and the attempt that comes next.
    pub(super) fn find(&self, n: usize, id: &str, now: u64) -> (String, i64, i64) {
        let node = &self.nodes[n];
        let waits = |job: &&Job| job.body == id && !job.is_cancelled;
        let in_time = |job: &&Job| waits(job) && !job.is_late(now);
        let queued = node.queue.iter().flatten().find(in_time).map(|job| ("queued", job.eta, 1));
        let delayed = node.later.jobs.values().find(in_time).map(|job| ("delayed", job.eta, 1));
        let retry = node.later.retries.iter().find(|(_, retry)| waits(&&retry.job));
        let retrying = retry.map(|((ends, _), retry)| ("retrying", *ends, retry.attempt as i64));
        match queued.or(delayed).or(retrying) {
            Some((state, eta, attempt)) => (state.into(), eta.saturating_sub(now).div_ceil(1_000) as i64, attempt),
            None => (if node.ids.contains(id) && !self.is_free(n, id, now) { "left" } else { "unknown" }.into(), -1, 0),
        }
    }

    /// An operator throws away what waits in a bucket: its queue, its delayed jobs, or both, and its retries too where that is asked for.
    /// Replies what a purge does: jobs, retries, retries that stay and jobs that were cut, of which there are none here; delayed jobs, and those
    /// that stay.
    pub(super) fn purge(&mut self, n: usize, (queue, retries, delayed): (bool, bool, bool), now: u64) -> [i64; 6] {
        self.looks_at(n, now);
        let Node { queue: jobs, later, dropped, .. } = &mut self.nodes[n];
        let mut gone = [0; 3];
        if queue {
            let jobs = std::mem::take(jobs.as_mut().expect("a bucket"));
            gone[0] = jobs.len();
            dropped.extend(jobs.into_iter().map(|job| job.body));
        }
        if retries {
            gone[1] = std::mem::take(&mut later.retries).len(); // they have left before
        }
        if delayed {
            let jobs = std::mem::take(&mut later.jobs);
            (gone[2], later.is_queue_next) = (jobs.len(), false);
            dropped.extend(jobs.into_values().map(|job| job.body));
        }
        if (retries || delayed) && !later.is_seen(now) {
            later.look = later.first();
        }
        let stays = (later.retries.len(), later.jobs.len());
        if matches!(self.nodes[n].place, Place::Full(_)) && !self.is_full(n, now) {
            self.goes_on(n, now);
        }
        self.moves(n, now);
        self.settle_emptied(now);
        [gone[0], gone[1], stays.0, 0, gone[2], stays.1].map(|n| n as i64)
    }

    /// A bucket stands where it must; one whose turn it is not keeps its place among its siblings.
    pub(super) fn moves(&mut self, n: usize, now: u64) {
        let (due, place) = (self.due(n), self.nodes[n].place);
        let has_come = self.nodes[n].later.look.is_some_and(|look| look <= now); // what no call has seen
        if !self.has_jobs(n, now) && !has_come {
            self.has_no_work(n, now);
            self.nodes[n].place = Place::Nowhere;
            return;
        }
        self.nodes[n].place = match (self.stopped(n, due, now), place) {
            (Some(place), _) => place,
            (None, Place::Share(ends, _)) if due <= now => Place::Share(ends, due),
            _ => Place::Schedule(due),
        };
    }
}
