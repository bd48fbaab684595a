//! The reference model of `tree_model`: quotas, "at most so many units dispatched in a calendar window".

use std::collections::BTreeMap;

use fastrand::Rng;

use super::tree_reference::Tree;
use crate::rig::S;

/// One quota of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quota {
    pub(super) count: u64,
    pub(super) period: u64,
    /// Hours from UTC.
    pub(super) hours: i64,
}

/// How a window is known: by its period and its offset. So "a changed count goes on from what was used".
pub(super) type Name = (u64, i64);

/// When the last window of each kind ends, and what was used of it.
pub(super) type Windows = BTreeMap<Name, (u64, u64)>;

impl Quota {
    pub(super) fn random(rng: &mut Rng) -> Self {
        // Of seven minutes only those windows begin at the same moments that have the same offset.
        let (period, hours) = [(S, 0), (5 * S, 0), (60 * S, 0), (420 * S, -8), (420 * S, 5)][rng.usize(0..5)];
        Self { count: rng.u64(1..40), period, hours }
    }

    pub(super) fn name(self) -> Name {
        (self.period, self.hours)
    }

    pub(super) fn toml(self) -> String {
        let Self { count, period, hours } = self;
        let offset = if hours == 0 {
            String::new()
        } else {
            format!("@{}{:02}:00", if hours < 0 { '-' } else { '+' }, hours.abs())
        };
        format!("'{count}/{}s{offset}'", period / S)
    }

    /// As a record has it.
    pub(super) fn json(self) -> String {
        let offset = self.hours * 3_600 * S as i64;
        format!(r#"{{"count":{},"period_us":{},"offset_us":{offset}}}"#, self.count, self.period)
    }

    /// "Aligned to multiples of the period since 1970 in UTC, or in an offset."
    fn end(self, now: u64) -> u64 {
        let there = now as i64 + self.hours * 3_600 * S as i64;
        now - there as u64 % self.period + self.period
    }

    /// "Used up, or too little left for the next job": until when so many units have no room. "One larger than the quota goes alone in a
    /// window."
    fn full_till(self, windows: &Windows, units: u64, now: u64) -> Option<u64> {
        let (ends, used) = *windows.get(&self.name())?;
        (now < ends && used > 0 && used + units > self.count).then_some(ends)
    }

    /// Of what left at a moment so many units more, or less, count, where that window has not ended.
    pub(super) fn counts_more(self, windows: &mut Windows, left_at: u64, units: i64) {
        if let Some((ends, used)) = windows.get_mut(&self.name())
            && *ends - self.period <= left_at
        {
            *used = used.saturating_add_signed(units);
        }
    }

    /// So many units have left.
    fn uses(self, windows: &mut Windows, units: u64, now: u64) {
        let window = windows.entry(self.name()).or_default();
        if now >= window.0 {
            *window = (self.end(now), 0);
        }
        window.1 += units;
    }
}

impl Tree {
    /// Until when a node must wait for a quota; 0: it need not.
    fn full_till(&self, n: usize, units: u64, now: u64) -> u64 {
        let node = &self.nodes[n];
        node.quotas.iter().filter_map(|quota| quota.full_till(&node.windows, units, now)).max().unwrap_or(0)
    }

    /// "The node waits until the window's end, and nothing overtakes that job": a job of cost 1 finds a node that waits.
    pub(super) fn has_room(&mut self, n: usize, now: u64) -> bool {
        let Some(job) = self.next(n, now) else { return true };
        if job.cost == 1 || job.is_cancelled || job.is_late(now) {
            return true;
        }
        let cost = job.cost;
        let chain: Vec<usize> = std::iter::once(n).chain(self.above(n)).collect();
        for (level, node) in chain.iter().enumerate() {
            let till = self.full_till(*node, cost, now);
            if till > 0 {
                let node = &mut self.nodes[*node];
                (node.needs, node.went_on) = (cost, node.went_on.max(till));
                self.go_first.extend(&chain[..level]);
                if level > 0 {
                    self.happens("a job that a budget's quota has too little for goes first");
                }
                return false;
            }
        }
        true
    }

    /// A call looks at a bucket: one that went on at the end of a window is due since that moment, as after a pause. (So a slower rate that
    /// is set between that moment and its next job puts that one off by the difference of the intervals: a bucket does not know any more
    /// when its last job left. It is later than "last dispatch + the new interval", never earlier.)
    pub(super) fn looks_at(&mut self, n: usize, now: u64) {
        let node = &mut self.nodes[n];
        if node.queue.is_some() && node.went_on <= now {
            (node.due, node.went_on) = (node.due.max(node.went_on), 0);
        }
    }

    /// A job has left: units count "as charged".
    pub(super) fn uses(&mut self, n: usize, cost: u64, now: u64) {
        let node = &mut self.nodes[n];
        for quota in &node.quotas {
            quota.uses(&mut node.windows, cost, now);
        }
        node.needs = 1;
        let till = self.full_till(n, 1, now);
        self.nodes[n].went_on = self.nodes[n].went_on.max(till);
    }

    /// The quotas of a node are others from now on, or what was used of them is. One that waited for them, and need not any more, goes on
    /// now. A budget without work has waited for nothing.
    pub(super) fn holds(&mut self, n: usize, now: u64) {
        let (till, is_at_rest) = (self.full_till(n, self.nodes[n].needs, now), self.is_at_rest(n));
        let till = till.max(self.slowed_till(n, now));
        let node = &mut self.nodes[n];
        if node.went_on > now && till < node.went_on {
            node.went_on = if is_at_rest { till } else { till.max(now) };
        }
        node.went_on = node.went_on.max(till);
    }

    pub(super) fn set_quotas(&mut self, n: usize, quotas: Vec<Quota>, now: u64) {
        self.nodes[n].quotas = quotas;
        self.holds(n, now);
        self.put_right(n, now);
    }
}
