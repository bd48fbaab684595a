//! What operators and workers do in `tree_model`: set, pause, purge, cancel, find, and say what a job really cost.

use super::flow::{set_at, unset_at};
use super::model::Rate;
use super::tree_model::{Pair, With, random_quotas, random_rate};
use crate::rig::{Case, MS};

/// What is over of a node without work is forgotten by calls, one every 100 ms: until then a new rate may find it.
const FORGOTTEN_IN: u64 = 200 * MS;

impl Pair {
    /// A change of one key of a node.
    pub(super) fn set(&mut self) {
        self.settle_what_came();
        let (n, is_rate) = (self.any(|_| true), self.rng.bool());
        let id = self.tree.nodes[n].id.clone();
        if self.has(With::Slow) && self.rng.u8(0..4) == 0 {
            self.set_adaptive(n);
        } else if self.has(With::Quotas) && self.rng.bool() {
            self.settle();
            let quotas = random_quotas(&mut self.rng, true, 1);
            self.tell(&format!("set {id} {quotas:?}"));
            let list: Vec<String> = quotas.iter().map(|quota| quota.json()).collect();
            let policy = format!(r#"{{"quotas":[{}]}}"#, list.join(","));
            set_at(&mut self.case, self.now, &id, "quota", &policy);
            self.tree.set_quotas(n, quotas, self.now);
        } else if is_rate {
            let rate = random_rate(&mut self.rng);
            self.sets_rate(n, rate);
        } else {
            self.tree.nodes[n].weight = self.rng.u32(1..5);
            let weight = self.tree.nodes[n].weight;
            self.tell(&format!("set {id} weight {weight}"));
            set_at(&mut self.case, self.now, &id, "weight", &format!(r#"{{"weight":{weight}}}"#));
            self.tree.put_right(n, self.now);
        }
    }

    /// A rate is set. Where what is stored of a node without work says too little to tell what follows, nothing is done: `false`.
    pub(super) fn sets_rate(&mut self, n: usize, rate: Rate) -> bool {
        let policy = format!(r#"{{"count":{},"period_us":{}}}"#, rate.count, rate.period);
        self.changes_rate(n, rate, |case, now, id| set_at(case, now, id, "rate", &policy))
    }

    /// The rate that was set is taken back: this one is configured. `false` as of `sets_rate`.
    pub(super) fn unsets_rate(&mut self, n: usize, configured: Rate) -> bool {
        self.changes_rate(n, configured, |case, now, id| unset_at(case, now, id, "rate"))
    }

    fn changes_rate(&mut self, n: usize, rate: Rate, change: impl FnOnce(&mut Case, u64, &str)) -> bool {
        self.settle();
        if self.is_being_forgotten(n) || self.tree.moves_a_resting_budget(n, rate, self.now) {
            return false;
        }
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("the rate of {id} is {rate:?}"));
        change(&mut self.case, self.now, &id);
        self.tree.set_rate(n, rate, self.now);
        self.steady_since = self.tree.left.len();
        true
    }

    fn is_being_forgotten(&self, n: usize) -> bool {
        self.tree.is_over(n, self.now) && !self.tree.is_over(n, self.now - FORGOTTEN_IN)
    }

    /// A pause, or its end.
    pub(super) fn pause(&mut self) {
        self.settle_what_came();
        let n = self.any(|_| true);
        self.pauses(n);
    }

    /// A node is paused, or goes on.
    pub(super) fn pauses(&mut self, n: usize) {
        let (id, is_paused) = (self.tree.nodes[n].id.clone(), !self.tree.nodes[n].is_paused);
        self.tell(&format!("pause {id} {is_paused}"));
        if is_paused {
            set_at(&mut self.case, self.now, &id, "pause", "{}");
        } else {
            unset_at(&mut self.case, self.now, &id, "pause");
        }
        self.tree.set_paused(n, is_paused, self.now);
    }

    /// A purge of a bucket: of its queue, of its delayed jobs, or of both.
    pub(super) fn purge(&mut self) {
        self.settle_what_came();
        let n = self.any(|node| node.queue.is_some());
        let (id, which) = (self.tree.nodes[n].id.clone(), ["0", "1", "only"][self.rng.usize(0..3)]);
        self.tell(&format!("purge {id} {which}"));
        let now = self.now.to_string();
        let retries = self.rng.u8(0..3) == 0;
        let args = [now.as_str(), if retries { "1" } else { "0" }, "", "", "", which];
        let told: Vec<i64> = self.case.fcall("drip__purge", &[&format!("queue:{id}")], &args);
        let of = (which != "only", retries, which != "0");
        self.tell(&format!("retries: {retries}"));
        assert_eq!(told, self.tree.purge(n, of, self.now), "{}", self.story.join("\n"));
    }

    /// A job of those that were submitted, or one of another bucket: nobody knows that.
    fn any_submitted(&mut self) -> (usize, String) {
        let (n, job) = self.submitted[self.rng.usize(0..self.submitted.len())].clone();
        if self.rng.u8(0..8) == 0 { (self.any(|node| node.queue.is_some()), job) } else { (n, job) }
    }

    pub(super) fn cancel(&mut self) {
        let (n, job) = self.any_submitted();
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("cancel {id} {job}"));
        let told = self.case.cancel_at(self.now, &id, &job);
        assert_eq!(told, self.tree.cancel(n, &job, self.now), "{}", self.story.join("\n"));
    }

    /// A worker says what a job really cost, "while the entry is pending, once".
    pub(super) fn adjust(&mut self) {
        self.settle_what_came();
        self.settle();
        let Some(at) = self.take_some() else { return };
        let left = self.tree.left[at].clone();
        let units = [-50, -3, -1, 0, 1, 2, 5, 60, 9_000][self.rng.usize(0..9)];
        self.tell(&format!("adjust {left:?} {units:+}"));
        let (entry, is_told) = self.taken[at].clone();
        let args = [self.now.to_string(), entry, format!("{units:+}")];
        let told: i64 = self.case.fcall("drip__adjust", &["ready"], &args);
        assert_eq!(told, i64::from(!is_told), "{}", self.story.join("\n"));
        if !is_told {
            self.tree.adjust(&left, units, self.now);
        }
        self.taken[at].1 = true;
    }

    pub(super) fn find(&mut self) {
        let (n, job) = self.any_submitted();
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("find {id} {job}"));
        let told = self.case.find_at(self.now, &id, &job);
        assert_eq!(told, self.tree.find(n, &job, self.now), "{}", self.story.join("\n"));
    }
}
