//! The reference model of `tree_model`: what jobs with a cost pay on each node, and when one can leave.

use super::model::{Pace, Rate};
use super::tree_reference::{FRONT, Left, Place, Tree};

impl Tree {
    pub(super) fn pace(&self, n: usize, now: u64) -> Pace {
        let node = &self.nodes[n];
        Pace { rate: node.rate, job: node.job_rate, catch_up: self.catch_up(n), left: self.left_of_rate(n, now) }
    }

    /// "COST takes n slots of every `rate` above it": a job has left in return for `due`.
    pub(super) fn pay(&mut self, n: usize, due: u64, cost: u64, now: u64) {
        let (next, paid) = self.pace(n, now).pay(self.nodes[n].paid.take(), due, cost, now);
        let node = &mut self.nodes[n];
        let is_kept = cost > 1 || node.job_rate.is_some() || node.queue.is_none();
        (node.due, node.paid) = (next, paid.filter(|_| is_kept));
    }

    /// How far the turn of a child goes with a job of this cost, in steps of a job of cost 1: "the longer of cost x interval and job
    /// interval of the parent".
    pub(super) fn units(&self, parent: usize, cost: u64) -> f64 {
        let parent = &self.nodes[parent];
        let Some(job) = parent.job_rate.filter(|_| cost > 1) else { return cost as f64 };
        let (unit, job) = (parent.rate.interval(), job.interval());
        (cost * unit).max(job) as f64 / unit.max(job) as f64
    }

    /// "What it really cost": a job that left cost so many units more, or less. It "moves the dues, tags and quota counts that were charged", of
    /// the budgets above first, the nearest one first.
    pub(super) fn adjust(&mut self, left: &Left, units: i64, now: u64) {
        let (charged, units) = (left.cost, units.max(-(left.cost as i64)));
        if units == 0 {
            return;
        }
        let n = self.nodes.iter().position(|node| node.id == left.bucket).expect("its bucket");
        self.looks_at(n, now);
        let (mut child, mut turn) = (n, self.nodes[n].place);
        for b in self.above(n) {
            let really = charged.saturating_add_signed(units).max(1);
            let step = (self.units(b, really) - self.units(b, charged)) / f64::from(self.nodes[child].weight);
            self.nodes[child].tag = self.nodes[child].tag.map(|tag| tag + step);
            let place = if child == n { &mut turn } else { &mut self.nodes[child].place };
            if let Place::Share(ends, _) = place
                && *ends != FRONT
            {
                *ends += step;
            }
            self.costs_more(b, left, units, now);
            self.put_right(b, now);
            child = b;
        }
        self.nodes[n].place = turn;
        self.costs_more(n, left, units, now);
        self.looks_at(n, now);
        self.moves(n, now);
    }

    /// The same of one node.
    fn costs_more(&mut self, n: usize, left: &Left, units: i64, now: u64) {
        // Of a bucket without work no due is known that is over, nor of a budget one that makes no difference any more.
        let is_forgotten = match &self.nodes[n] {
            node if node.queue.is_some() => node.place == Place::Nowhere && node.due <= now,
            _ => self.is_over(n, now),
        };
        let node = &mut self.nodes[n];
        let paid = node.paid.take();
        let due = Some(node.due).filter(|_| !is_forgotten);
        let (due, paid) = self.pace(n, now).adjusted(paid, due, (left.at, left.cost), units, now);
        let node = &mut self.nodes[n];
        (node.due, node.paid) = (due, Some(paid).filter(|paid| paid.over > now));
        for quota in &node.quotas {
            quota.counts_more(&mut node.windows, left.at, units);
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
            let mut paid = node.paid.take().filter(|paid| paid.over > now);
            let due = was.re_anchored(is, paid.as_mut(), due, now);
            // No due lies further ahead than what the last job pays.
            (node.due, node.paid) = (due.min(now + is.reach(paid.as_ref())), paid);
        }
        self.nodes[n].rate = rate;
        self.put_right(n, now);
    }
}
