//! The reference model of `tree_model`: what jobs with a cost pay on each node, and when one can leave.

use super::model::{Pace, Rate};
use super::tree_reference::{FRONT, Left, Place, Tree};

impl Tree {
    pub(super) fn pace(&self, n: usize, now: u64) -> Pace {
        let node = &self.nodes[n];
        Pace { rate: node.rate, job: node.job_rate, catch_up: self.catch_up(n), left: self.left_of_rate(n, now) }
    }

    /// What a bucket charges for a job of this cost that is there since `since`.
    pub(super) fn price(&self, n: usize, cost: u64, since: u64, now: u64) -> u64 {
        let paid = self.nodes[n].paid.clone().map(|paid| paid.cooled(now));
        self.pace(n, now).price(paid.as_ref(), cost, since).0
    }

    /// "COST takes n slots of every `rate` above it": a job, there since `since`, has left in return for `due`. Replies what it was charged.
    pub(super) fn pay(&mut self, n: usize, (due, since): (u64, u64), cost: u64, now: u64) -> u64 {
        let (next, paid, charged) = self.pace(n, now).pay(self.nodes[n].paid.take(), (due, since), cost, now);
        let node = &mut self.nodes[n];
        let is_bound = charged > 1 || node.job_rate.is_some() || node.queue.is_none();
        (node.due, node.paid) = (next, paid.filter(|paid| is_bound || paid.credit != 0));
        charged
    }

    /// A node has no work from now on: time pays its debt.
    pub(super) fn idles(&mut self, n: usize, due: u64, now: u64) {
        if let Some(paid) = &mut self.nodes[n].paid {
            paid.rests(now, due);
        }
    }

    /// How far the turn of a child goes with a job of this cost, in steps of a job of cost 1: "the longer of cost x interval and job
    /// interval of the parent".
    pub(super) fn units(&self, parent: usize, cost: u64) -> f64 {
        let parent = &self.nodes[parent];
        let Some(job) = parent.job_rate.filter(|_| cost != 1) else { return cost as f64 };
        let (unit, job) = (parent.rate.interval(), job.interval());
        (cost * unit).max(job) as f64 / unit.max(job) as f64
    }

    /// "What it really cost": a job that left cost so many units more, or less. Of the budgets above first, the nearest one first.
    pub(super) fn adjust(&mut self, left: &Left, units: i64, now: u64) {
        let real = left.cost.saturating_add_signed(units);
        if real == left.cost && left.charged == left.cost {
            return;
        }
        let n = self.nodes.iter().position(|node| node.id == left.bucket).expect("its bucket");
        self.looks_at(n, now);
        let (mut child, mut turn) = (n, self.nodes[n].place);
        for b in self.above(n) {
            if let Some(tag) = self.nodes[child].tag {
                let step = (self.units(b, real) - self.units(b, left.charged)) / f64::from(self.nodes[child].weight);
                let moved = (tag + step).max(tag.min(self.nodes[b].clock));
                self.nodes[child].tag = Some(moved);
                let place = if child == n { &mut turn } else { &mut self.nodes[child].place };
                if let Place::Share(ends, _) = place
                    && *ends != FRONT
                {
                    *ends += moved - tag;
                }
            }
            self.costs(b, left, (left.charged, real), now);
            if self.nodes[b].place == Place::Nowhere {
                self.idles(b, self.nodes[b].due, now);
            }
            self.put_right(b, now);
            child = b;
        }
        self.nodes[n].place = turn;
        self.costs(n, left, (left.cost, real), now);
        self.looks_at(n, now);
        self.moves(n, now);
    }

    /// The same of one node, that took the job for `base` units.
    fn costs(&mut self, n: usize, left: &Left, (base, real): (u64, u64), now: u64) {
        let (paid, due) = (self.nodes[n].paid.take(), self.nodes[n].due);
        self.nodes[n].paid = self.pace(n, now).corrected(paid, due, (base, real), now);
        let node = &mut self.nodes[n];
        for quota in &node.quotas {
            quota.counts_more(&mut node.windows, left.at, real as i64 - left.cost as i64);
        }
        self.holds(n, now);
    }

    /// When the n-th job of a bucket could leave, and who decides that: the bucket, or the nearest of the latest budgets above.
    pub(super) fn leaves(&self, n: usize, due: u64, now: u64, jobs: usize) -> (i64, usize) {
        let mut latest = (self.pace(n, now).eta_ms(due, now, jobs), n);
        for b in self.above(n) {
            let eta = self.pace(b, now).eta_ms(self.met(b, now).max(now), now, jobs);
            if eta > latest.0 {
                latest = (eta, b);
            }
        }
        latest
    }

    /// A new rate: the due follows it.
    pub(super) fn set_rate(&mut self, n: usize, rate: Rate, now: u64) {
        let (old, due) = (self.nodes[n].rate, self.nodes[n].due);
        if self.is_over(n, now) && self.nodes[n].queue.is_none() {
            self.nodes[n].due = 0; // it is forgotten, and a new rate that makes up for more does not bring it back
        } else if !self.is_over(n, now) && due > 0 && old != rate {
            let (was, is) = (self.pace(n, now), Pace { rate, ..self.pace(n, now) });
            let node = &mut self.nodes[n];
            // What nobody needs to know any more is forgotten.
            let mut paid = node.paid.take().map(|paid| paid.cooled(now)).filter(|paid| paid.ends() > now);
            let due = was.re_anchored(is, paid.as_mut(), due, now);
            // No due lies further ahead than what the last job pays.
            (node.due, node.paid) = (due.min(now + is.reach(paid.as_ref())), paid);
        }
        self.nodes[n].rate = rate;
        self.put_right(n, now);
    }
}
