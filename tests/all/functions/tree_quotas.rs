//! The reference model of `tree_model`: quotas, "at most so many units dispatched in a calendar window".

use super::tree_reference::Tree;

/// A quota of a node, and what was used of its last window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quota {
    pub(super) count: u64,
    pub(super) period: u64,
    /// When that window ends.
    pub(super) ends: u64,
    pub(super) used: u64,
}

impl Quota {
    pub(super) fn new(count: u64, period: u64) -> Self {
        Self { count, period, ends: 0, used: 0 }
    }

    /// "Used up, or too little left for the next job": until when so many units have no room. "One larger than the quota goes alone in a
    /// window."
    fn full_till(self, units: u64, now: u64) -> Option<u64> {
        (now < self.ends && self.used > 0 && self.used + units > self.count).then_some(self.ends)
    }

    /// So many units have left: "aligned to multiples of the period since 1970".
    fn uses(&mut self, units: u64, now: u64) {
        if now >= self.ends {
            (self.ends, self.used) = (now - now % self.period + self.period, 0);
        }
        self.used += units;
    }
}

impl Tree {
    /// "The node waits until the window's end, and nothing overtakes that job": a job of cost 1 finds a node that waits.
    pub(super) fn has_room(&mut self, n: usize, now: u64) -> bool {
        let Some(job) = self.next(n, now) else { return true };
        if job.cost == 1 || job.is_cancelled || job.deadline.is_some_and(|deadline| deadline < now) {
            return true;
        }
        let cost = job.cost;
        for node in std::iter::once(n).chain(self.above(n)) {
            if let Some(till) = self.nodes[node].quota.and_then(|quota| quota.full_till(cost, now)) {
                self.nodes[node].went_on = till;
                return false;
            }
        }
        true
    }

    /// A call looks at a bucket: one that went on at the end of a window counts from that moment, as after a pause.
    pub(super) fn looks_at(&mut self, n: usize, now: u64) {
        let node = &mut self.nodes[n];
        if node.queue.is_some() && node.went_on <= now {
            (node.due, node.went_on) = (node.due.max(node.went_on), 0);
        }
    }

    /// A job has left: units count "as charged".
    pub(super) fn uses(&mut self, n: usize, cost: u64, now: u64) {
        let node = &mut self.nodes[n];
        if let Some(quota) = &mut node.quota {
            quota.uses(cost, now);
            node.went_on = node.went_on.max(quota.full_till(1, now).unwrap_or(0));
        }
    }
}
