//! The throughput of budgets: how fast jobs pass through them.

use std::sync::{Mutex, PoisonError};

use crate::operate::pace::{A_SECOND, Paces};
use crate::store::snapshots::{BudgetSnapshot, Now};

/// The paces of all budgets, measured from every answer that any client asks for.
#[derive(Default)]
pub(super) struct Throughput(Mutex<Paces>);

impl Throughput {
    /// The jobs that pass through each of these budgets in a second, where that is known by now.
    pub(super) fn per_second(&self, now: &Now<BudgetSnapshot>) -> Vec<Option<f64>> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paces.forget(now.at_us);
        let pace = |row: &BudgetSnapshot| {
            let rate = row.rate.unwrap_or(A_SECOND);
            paces.note(&row.budget, now.at_us, row.passed, rate);
            paces.per_second(&row.budget, rate)
        };
        now.rows.iter().map(pace).collect()
    }
}
