//! The reference model of `tree_model`: slow-downs of buckets and of the budgets above them. "A node may go at the latest" of its pace, the windows
//! of its quotas and the end of its slow-down.

use super::model::{Slow, Slowing};
use super::tree_model::{Pair, name};
use super::tree_reference::Tree;
use crate::rig::{MS, S};

/// How long slow-downs last, of every node here.
pub(super) const SLOWING: Slowing = Slowing { initial: 300 * MS, max: 2 * S, cap: 5 * S, is_adaptive: false };

impl Tree {
    /// When the slow-down of a node ends; 0: nothing slows it down.
    pub(super) fn slowed_till(&self, n: usize, now: u64) -> u64 {
        self.nodes[n].slow.as_ref().map(|slow| slow.till).filter(|till| *till > now).unwrap_or(0)
    }

    /// "A slow-down is only ever extended; `CLEAR` shortens." Replies "{ms until it goes on, incidents}".
    pub(super) fn slow_down(&mut self, n: usize, ms: Option<u64>, now: u64) -> (u64, u64) {
        let slow = self.slowed(n, now, |slow| match ms {
            Some(ms) => slow.ask(now, ms, &SLOWING),
            None => slow.clear(now),
        });
        (slow.till.saturating_sub(now).div_ceil(MS), slow.incidents)
    }

    /// Something happens to the slow-down of a node, which stands where it must from then on.
    pub(super) fn slowed(&mut self, n: usize, now: u64, act: impl FnOnce(&mut Slow)) -> Slow {
        self.looks_at(n, now);
        let mut slow = self.nodes[n].slow.take().unwrap_or_default().put_right(now);
        act(&mut slow);
        self.nodes[n].slow = Some(slow.clone());
        self.holds(n, now);
        self.put_right(n, now);
        slow
    }

    /// "After `max` without" an incident nothing of a slow-down is known any more.
    pub(super) fn forgets_slow(&mut self, now: u64) {
        for node in &mut self.nodes {
            node.slow = node.slow.take().filter(|slow| slow.over() > now);
        }
    }
}

impl Pair {
    /// Somebody slows a bucket down, or a budget above it, or ends that.
    pub(super) fn slow_down(&mut self) {
        self.settle_what_came();
        let bucket = self.any(|node| node.queue.is_some());
        let above = self.tree.above(bucket);
        let n = if above.is_empty() || self.rng.bool() { bucket } else { above[self.rng.usize(0..above.len())] };
        let ms = [None, None, Some(1), Some(40), Some(300), Some(700), Some(8_000)][self.rng.usize(0..7)];
        let (id, budget) = (self.tree.nodes[bucket].id.clone(), self.tree.nodes[n].id.clone());
        self.tell(&format!("slow {id} in {budget} {ms:?}"));
        let mut args = vec![self.now.to_string()];
        args.extend(ms.map_or(vec!["CLEAR".into()], |ms| vec!["PAUSE".into(), ms.to_string()]));
        if n != bucket {
            args.extend(["IN".into(), name(&budget).to_owned()]);
        }
        let told: (u64, u64) = self.case.fcall("drip__slow", &[&format!("queue:{id}")], &args);
        assert_eq!(told, self.tree.slow_down(n, ms, self.now), "{}", self.story.join("\n"));
    }
}
