//! Things that happen only after many steps of the same kind, each a step of a random sequence: a job that is given back again and again, and
//! many retries of one bucket most of which are cancelled.

use proptest::prelude::*;

use super::jobs::Ready;
use super::options::Submit;
use super::{BUCKETS, Pair, options, settings, slow, workers};

#[derive(Debug, Clone)]
pub enum Op {
    /// This pending job is given back so many times, and each so manieth time because it was turned away.
    GiveBack { which: usize, times: usize, throttled: usize },
    /// So many jobs of a bucket fail, and the first ones of them are cancelled while they back off. Others wait behind them in the queue.
    Cancel { bucket: usize, failed: usize, cancelled: usize },
    /// A bucket becomes ordered, or is so no more, while a job of it backs off for so long and the time of a delayed one comes; by its name, where
    /// `lasts` says for how long, or by a glob.
    Order { bucket: usize, is_ordered: bool, back_off: u64, lasts: Option<u64>, by_glob: bool },
}

/// Back-offs that are not over before all jobs have failed.
const LONG_MS: u64 = 3_600_000;

pub fn op() -> impl Strategy<Value = Op> {
    let back_off = prop_oneof![Just(0), Just(700), Just(5_000), Just(60_000)];
    let lasts = prop::option::weighted(0.3, prop_oneof![Just(900), Just(5_000)]);
    let order = (0..BUCKETS.len(), any::<bool>(), back_off, lasts, any::<bool>());
    prop_oneof![
        order.prop_map(|(bucket, is_ordered, back_off, lasts, by_glob)| Op::Order {
            bucket,
            is_ordered,
            back_off,
            lasts,
            by_glob
        }),
        (0..8_usize, 19..27_usize, 2..5_usize).prop_map(|(which, times, throttled)| Op::GiveBack {
            which,
            times,
            throttled
        }),
        (0..BUCKETS.len(), 12..20_usize, 1..3_usize).prop_map(|(bucket, failed, live)| Op::Cancel {
            bucket,
            failed,
            cancelled: failed - live
        }),
    ]
}

impl Pair {
    pub fn many(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::GiveBack { which, times, throttled } => self.give_back(*which, *times, *throttled),
            Op::Order { bucket, is_ordered, back_off, lasts, by_glob } => {
                self.order(*bucket, *is_ordered, *back_off, *lasts, *by_glob)
            }
            Op::Cancel { bucket, failed, cancelled } => self.cancel_many(*bucket, *failed, *cancelled),
        }
    }

    fn give_back(&mut self, which: usize, times: usize, throttled: usize) -> Result<(), TestCaseError> {
        let Some(n) = self.model.pending().iter().cycle().nth(which).copied() else { return Ok(()) };
        let (bucket, id) = (self.model.ready[n].bucket.clone(), self.model.ready[n].options().id);
        for k in 0..times {
            let Some(n) = self.is_delivered(|entry| entry.bucket == bucket && entry.options().id == id)? else { break };
            self.step(&if k % throttled == 0 {
                super::Op::Slow(slow::Op::Throttled(n, Some(3)))
            } else {
                super::Op::Fail(n, Some(0), true, false)
            })?;
        }
        Ok(())
    }

    fn order(
        &mut self,
        b: usize,
        is_ordered: bool,
        back_off: u64,
        lasts: Option<u64>,
        by_glob: bool,
    ) -> Result<(), TestCaseError> {
        let bucket = BUCKETS[b];
        let pattern = match bucket {
            "slow" if by_glob => "s*",
            "mail" if by_glob => "*l*",
            _ => bucket,
        };
        let value = |is_ordered| if is_ordered { "ordered=true" } else { "ordered=false" };
        for value in ["concurrency=1", value(!is_ordered)] {
            self.step(&super::Op::Set(settings::Op::of(pattern, value, None)))?;
            self.step(&super::Op::Drain)?;
        }
        self.step(&super::Op::Atomic(b, 2))?;
        if let Some(n) = self.is_delivered(|entry| entry.bucket == bucket && entry.holds)? {
            self.step(&super::Op::Fail(n, Some(back_off), false, false))?;
        }
        self.step(&super::Op::WithOptions(options::Op::Submit(Submit::delayed(b))))?;
        self.step(&super::Op::Advance(130))?;
        self.step(&super::Op::Drain)?;
        self.step(&super::Op::Set(settings::Op::of(pattern, value(is_ordered), lasts)))?;
        for wait_ms in [0, 130, 1_000, 3_500, 60_000] {
            self.step(&super::Op::Advance(wait_ms))?;
            self.step(&super::Op::Drain)?;
            self.step(&super::Op::Workers(workers::Op::Take(5)))?;
        }
        Ok(())
    }

    /// The place among those that are pending of an entry that leaves and is delivered, sooner or later.
    fn is_delivered(&mut self, is_it: impl Fn(&Ready) -> bool) -> Result<Option<usize>, TestCaseError> {
        for wait_ms in [0, 10, 1_000, 20_000] {
            if wait_ms > 0 {
                self.step(&super::Op::Advance(wait_ms))?;
                self.step(&super::Op::Drain)?;
            }
            self.step(&super::Op::Workers(workers::Op::Take(20)))?;
            let found = self.model.pending().into_iter().position(|n| is_it(&self.model.ready[n]));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn cancel_many(&mut self, b: usize, failed: usize, cancelled: usize) -> Result<(), TestCaseError> {
        let first = 1_000 + self.pushed as usize;
        for id in first..first + failed {
            self.step(&super::Op::WithOptions(options::Op::Submit(Submit::of_id(b, id))))?;
            let name = format!("id{id}");
            let is_it = |entry: &Ready| entry.bucket == BUCKETS[b] && entry.first.as_ref() == Some(&name);
            let Some(n) = self.is_delivered(is_it)? else { break };
            self.step(&super::Op::Fail(n, Some(LONG_MS), false, false))?;
        }
        for id in first..first + cancelled {
            self.step(&super::Op::WithOptions(options::Op::CancelOf(b, id)))?;
        }
        self.step(&super::Op::Atomic(b, 2))?;
        self.step(&super::Op::Advance(LONG_MS + 100_000))?;
        for _ in 0..3 {
            self.step(&super::Op::Drain)?;
            self.step(&super::Op::Workers(workers::Op::Take(20)))?;
            self.step(&super::Op::Advance(1_000))?;
        }
        Ok(())
    }
}
