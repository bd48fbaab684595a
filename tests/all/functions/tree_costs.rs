//! The reference model of `tree_model`: what jobs with a cost pay on each node, and when one can leave.

use super::model::{Pace, Rate};
use super::tree_reference::Tree;

impl Tree {
    fn pace(&self, n: usize) -> Pace {
        Pace { rate: self.nodes[n].rate, job: self.nodes[n].job_rate, catch_up: self.catch_up(n) }
    }

    /// "COST takes n slots of every `rate` above it": a job has left in return for `due`.
    pub(super) fn pay(&mut self, n: usize, due: u64, cost: u64, now: u64) {
        let (next, paid) = self.pace(n).pay(self.nodes[n].paid.take(), due, cost, now);
        let node = &mut self.nodes[n];
        let is_kept = cost > 1 || node.job_rate.is_some() || node.queue.is_none();
        (node.due, node.paid) = (next, paid.filter(|_| is_kept));
    }

    /// How far the turn of a child goes with a job of this cost, in steps of a job of cost 1: "the longer of cost x interval and job
    /// interval of the parent".
    pub(super) fn units(&self, parent: usize, cost: u64) -> f64 {
        let pace = self.pace(parent);
        let Some(job) = pace.job.filter(|_| cost > 1) else { return cost as f64 };
        let (unit, job) = (pace.rate.interval(), job.interval());
        (cost * unit).max(job) as f64 / unit.max(job) as f64
    }

    /// When the n-th job of a bucket could leave, and who decides that: the bucket, or the nearest of the latest budgets above.
    pub(super) fn leaves(&self, n: usize, due: u64, now: u64, jobs: usize) -> (i64, usize) {
        let mut latest = (self.pace(n).eta_ms(due, now, jobs), n);
        for b in self.above(n) {
            let eta = self.pace(b).eta_ms(self.met(b, now).max(now), now, jobs);
            if eta > latest.0 {
                latest = (eta, b);
            }
        }
        latest
    }

    /// A new rate: the due follows it.
    pub(super) fn set_rate(&mut self, n: usize, rate: Rate, now: u64) {
        let (old, due) = (self.nodes[n].rate, self.nodes[n].due);
        if !self.is_over(n, now) && due > 0 && old != rate {
            let (was, is) = (self.pace(n), Pace { rate, ..self.pace(n) });
            let node = &mut self.nodes[n];
            // What nobody needs to know any more is forgotten.
            let mut paid = node.paid.take().filter(|paid| paid.over > now);
            let due = was.re_anchored(is, paid.as_mut(), due, now);
            // No due lies further ahead than what the last job pays.
            (node.due, node.paid) = (due.min(now + is.reach(paid.as_ref())), paid);
        }
        self.nodes[n].rate = rate;
        self.put_right(n, now);
    }
}
