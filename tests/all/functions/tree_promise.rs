//! Promise 1 for what has left in `tree_model`, from the entries alone: of no node did more leave in any window than its rate, its `job_rate` and its
//! catch-up allow.

use super::model::Rate;
use super::tree_model::Pair;
use super::tree_reference::Left;

/// "In every window of length W, at most `1 + floor((W + catch_up) / interval)`", with costs (largest cost) in place of 1; "to within 1 us".
fn most(first: u64, rate: Rate, window: u64) -> u64 {
    first + (u128::from(window) * rate.count / rate.period) as u64
}

impl Pair {
    /// Since the last change of a rate. In units that were charged, whatever corrections came.
    pub(super) fn keeps_promise(&self) {
        let left = &self.tree.left[self.steady_since..];
        for n in 0..self.tree.nodes.len() {
            let node = &self.tree.nodes[n];
            let is_below = |one: &Left| {
                let bucket = self.tree.nodes.iter().position(|node| node.id == one.bucket).expect("its bucket");
                bucket == n || self.tree.above(bucket).contains(&n)
            };
            let charges = &self.tree.charges[self.steady_since..];
            let own: Vec<(&Left, u64)> = left
                .iter()
                .zip(charges)
                .filter(|(one, _)| is_below(one))
                .map(|(one, charges)| (one, charges[&n]))
                .collect();
            for (i, (first, _)) in own.iter().enumerate() {
                let (mut units, mut largest) = (0, 0);
                for (jobs, (last, charged)) in own[i..].iter().enumerate() {
                    (units, largest) = (units + charged, largest.max(*charged));
                    let window = last.at - first.at + self.tree.catch_up(n) + 1;
                    let is_kept = units <= most(largest, node.rate, window)
                        && node.job_rate.is_none_or(|rate| (jobs as u64) < most(1, rate, window));
                    let story = || self.story.join("\n");
                    assert!(is_kept, "{}: {} units from {first:?} to {last:?}\n{}", node.id, units, story());
                }
            }
        }
    }
}
