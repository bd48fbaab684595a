//! The reference model of `tree_model`: slow-downs of buckets and of the budgets above them. "A node may go at the latest" of its pace, the windows
//! of its quotas and the end of its slow-down. With `adaptive` incidents leave less of the rate, which comes back while jobs wait.

use super::flow::set_at;
use super::model::{Slow, Slowing};
use super::tree_model::{Pair, name};
use super::tree_reference::Tree;
use crate::rig::{MS, S};

/// How long slow-downs last, of every node here.
pub(super) fn slowing(is_adaptive: bool) -> Slowing {
    Slowing { initial: 300 * MS, max: 2 * S, cap: 5 * S, is_adaptive }
}

/// The same in the words of `config.toml`.
pub(super) fn slowing_toml(is_adaptive: bool) -> String {
    let Slowing { initial, max, cap, .. } = slowing(is_adaptive);
    let [initial, max, cap] = [initial, max, cap].map(|us| us / MS);
    format!("slow = {{ initial = '{initial}ms', max = '{max}ms', cap = '{cap}ms', adaptive = {is_adaptive} }}\n")
}

/// As a record has it.
fn slowing_json(is_adaptive: bool) -> String {
    let Slowing { initial, max, cap, .. } = slowing(is_adaptive);
    format!(r#"{{"slow":{{"initial_us":{initial},"max_us":{max},"cap_us":{cap},"adaptive":{is_adaptive}}}}}"#)
}

impl Tree {
    pub(super) fn slowing(&self, n: usize) -> Slowing {
        slowing(self.nodes[n].is_adaptive)
    }

    pub(super) fn happens(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    /// What incidents left of the rate of a node; 1: all of it.
    pub(super) fn left_of_rate(&self, n: usize, now: u64) -> f64 {
        let node = &self.nodes[n];
        node.slow.as_ref().filter(|_| node.is_adaptive).map_or(1.0, |slow| slow.put_right(now).left())
    }

    /// "No due lies further ahead" than what the last job pays, at what is left of the rate: more of it may be left than when that was paid.
    fn reaches(&mut self, n: usize, now: u64) {
        let latest = now + self.pace(n, now).reach(self.nodes[n].paid.as_ref());
        if self.nodes[n].due > latest {
            self.nodes[n].due = latest;
            self.happens("a due is earlier as all of the rate is back");
        }
    }

    /// A job leaves a node. "Every 10 s without an incident in which jobs waited adds 1 % of the configured rate, up to it, reckoned when jobs
    /// leave." Of a bucket what waits for nothing but its turn has waited; for a budget a job has waited that did not come while nothing waited.
    pub(super) fn comes_back(&mut self, n: usize, now: u64) {
        let has_waited = self.serving.contains(&n);
        let node = &mut self.nodes[n];
        let Some(slow) = &mut node.slow else { return };
        *slow = slow.put_right(now);
        let before = slow.left();
        if let Some(queue) = &node.queue {
            let has_retry = node.later.retries.keys().next().is_some_and(|(ends, _)| *ends <= now);
            let has_delayed = node.later.first_time().is_some_and(|at| at <= now);
            slow.comes_back(now, !queue.is_empty() || has_retry || has_delayed);
        } else {
            slow.comes_back_above(now, has_waited, node.went_on);
        }
        if slow.left() > before {
            let of_budget = node.queue.is_none();
            self.happens(if of_budget { "the rate of a budget comes back" } else { "the rate of a bucket comes back" });
        }
    }

    /// Something waits for a budget from now on, for which nothing did.
    pub(super) fn has_waiting(&mut self, n: usize, now: u64) {
        if let Some(paid) = &mut self.nodes[n].paid {
            paid.has_work(now);
        }
        if let Some(slow) = &mut self.nodes[n].slow {
            *slow = slow.put_right(now);
            slow.has_waiting(now);
        }
    }

    /// Nothing of a bucket waits any more, for whatever reason.
    pub(super) fn has_no_work(&mut self, n: usize, now: u64) {
        self.idles(n, self.due(n), now);
        if let Some(slow) = &mut self.nodes[n].slow {
            slow.rests();
        }
    }

    /// What incidents left of a rate is known while `adaptive` is switched off, and does not count.
    pub(super) fn set_adaptive(&mut self, n: usize, is_adaptive: bool, now: u64) {
        self.nodes[n].is_adaptive = is_adaptive;
        self.reaches(n, now);
        self.put_right(n, now);
    }

    /// When the slow-down of a node ends; 0: nothing slows it down.
    pub(super) fn slowed_till(&self, n: usize, now: u64) -> u64 {
        self.nodes[n].slow.as_ref().map(|slow| slow.till).filter(|till| *till > now).unwrap_or(0)
    }

    /// "A slow-down is only ever extended; `CLEAR` shortens." Replies "{ms until it goes on, incidents}".
    pub(super) fn slow_down(&mut self, n: usize, ms: Option<u64>, now: u64) -> (u64, u64) {
        let how = self.slowing(n);
        let slow = self.slowed(n, now, |slow| match ms {
            Some(ms) => slow.ask(now, ms, &how),
            None => slow.clear(now),
        });
        self.put_right(n, now);
        (slow.till.saturating_sub(now).div_ceil(MS), slow.incidents)
    }

    /// Something happens to the slow-down of a node. It must be put right.
    pub(super) fn slowed(&mut self, n: usize, now: u64, act: impl FnOnce(&mut Slow)) -> Slow {
        self.looks_at(n, now);
        let mut slow = self.nodes[n].slow.take().unwrap_or_default().put_right(now);
        let before = slow.left();
        if self.nodes[n].queue.is_some() && self.is_over(n, now) {
            self.nodes[n].due = now; // a bucket without work that may go at once: that is all that is known of its pace from now on
        }
        act(&mut slow);
        if slow.left() < before {
            self.happens("an incident lowers a rate");
        }
        self.nodes[n].slow = Some(slow.clone());
        self.reaches(n, now);
        self.holds(n, now);
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
    pub(super) fn set_adaptive(&mut self, n: usize) {
        let (id, is_adaptive) = (self.tree.nodes[n].id.clone(), !self.tree.nodes[n].is_adaptive);
        self.settle();
        self.tell(&format!("set {id} adaptive {is_adaptive}"));
        set_at(&mut self.case, self.now, &id, "slow", &slowing_json(is_adaptive));
        self.tree.set_adaptive(n, is_adaptive, self.now);
    }

    /// A bucket has work for a while, or nothing happens for a day: by then what was left of a rate is forgotten.
    pub(super) fn stays_busy(&mut self) {
        if self.rng.u8(0..8) == 0 {
            self.now += 86_400 * S;
            self.tell("a day later");
            return self.settle();
        }
        let n = self.any_slower();
        for _ in 0..self.rng.usize(1..12) {
            self.push(n);
            self.settle_often(5);
        }
    }

    /// Some bucket, often one of which incidents have left less than all of the rate, or of a budget above.
    fn any_slower(&mut self) -> usize {
        let is_slower = |n: &usize| self.tree.left_of_rate(*n, self.now) < 1.0;
        let nodes = 0..self.tree.nodes.len();
        let buckets = nodes.filter(|n| self.tree.nodes[*n].queue.is_some());
        let slower = |n: &usize| is_slower(n) || self.tree.above(*n).iter().any(is_slower);
        let slower: Vec<usize> = buckets.filter(slower).collect();
        if slower.is_empty() || self.rng.u8(0..4) == 0 {
            return self.any(|node| node.queue.is_some());
        }
        slower[self.rng.usize(0..slower.len())]
    }

    /// Somebody slows a bucket down, or a budget above it, or ends that.
    pub(super) fn slow_down(&mut self) {
        self.settle_what_came();
        let bucket = self.any_slower();
        let above = self.tree.above(bucket);
        let n = if above.is_empty() || self.rng.bool() { bucket } else { above[self.rng.usize(0..above.len())] };
        let ms = [None, None, Some(1), Some(40), Some(300), Some(700), Some(8_000)][self.rng.usize(0..7)];
        self.slows(bucket, n, ms);
    }

    /// Somebody slows a node, which is a bucket or a budget above it, down for so many milliseconds, or ends that.
    pub(super) fn slows(&mut self, bucket: usize, n: usize, ms: Option<u64>) {
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
