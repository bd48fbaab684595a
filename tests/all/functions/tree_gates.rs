//! The reference model of `tree_model`: gates before the doors of a bucket that run code. "A plain LPUSH runs none." What each kind lets in,
//! `limiters_model` says, which knows nothing but the log of its calls.

use fastrand::Rng;

use super::limiters_model::Model;
use super::tree_reference::Tree;
use crate::rig::{MS, S};

/// One limiter of `admit`.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) kind: &'static str,
    /// In the words of `config.toml`.
    pub(super) toml: String,
    it: Model,
}

impl Gate {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let kind = ["fixed-window", "sliding-window", "sliding-counter", "token-bucket", "leaky-meter", "throttle"]
            [rng.usize(0..6)];
        let (limit, count, period) = (rng.u64(1..6), rng.u64(1..4), [3 * S, 20 * S][rng.usize(0..2)]);
        let aligned = kind == "fixed-window" && rng.bool();
        let numbers = match kind {
            "token-bucket" | "leaky-meter" => format!("capacity = {limit}, count = {count}"),
            "throttle" => format!("max_burst = {}, count = {count}", limit - 1),
            _ if aligned => format!("limit = {limit}, aligned = true"),
            _ => format!("limit = {limit}"),
        };
        let toml = format!("{{ limiter = '{kind}', {numbers}, period = '{}s' }}", period / S);
        // redis-cell's arithmetic is that of a meter with room for a burst and one more.
        let name = if kind == "throttle" { "leaky-meter" } else { kind };
        Self { kind, toml, it: Model::new(name, limit, count, period, aligned) }
    }

    /// How many more may pass.
    fn free(&self, now: u64) -> usize {
        self.it.remaining(now) as usize
    }

    /// "The gate's wait": milliseconds until one more may pass; 0: one may now.
    fn wait_ms(&self, now: u64) -> i64 {
        self.it.wait_us(now, 1).div_ceil(u128::from(MS)) as i64
    }
}

impl Tree {
    /// How many of some jobs the gates of a bucket let in: as many as the tightest of them.
    pub(super) fn gates_free(&self, n: usize, now: u64) -> usize {
        self.nodes[n].gates.iter().map(|gate| gate.free(now)).min().unwrap_or(usize::MAX)
    }

    /// Until all of them let one in, and which one is the last to do so, in their order; 0: they do now.
    pub(super) fn gate_wait(&self, n: usize, now: u64) -> (i64, &'static str) {
        let mut last = (0, "");
        for gate in &self.nodes[n].gates {
            if gate.wait_ms(now) > last.0 {
                last = (gate.wait_ms(now), gate.kind);
            }
        }
        last
    }

    /// Some pass; "what is refused charges nothing".
    pub(super) fn passes_gates(&mut self, n: usize, jobs: usize, now: u64) {
        for gate in &mut self.nodes[n].gates {
            gate.it.pass(now, jobs as u64);
        }
    }
}
