//! Limits of a node beside its rate, as the functions reply them: of the other side, and of windows of the calendar.

use std::time::Duration;

use serde::Deserialize;

use crate::model::duration::show_per_period;

/// How much more the other side lets through, as it says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct ToldLimit {
    /// So much more, until the reset.
    pub left: u64,
    /// What is left after a reset, where it says so.
    pub limit: Option<u64>,
    /// `job`, or `cost` where it counts what jobs cost.
    pub unit: String,
    /// Until the reset.
    pub reset_us: u64,
    /// Whether this window is only reckoned from the limit, because nothing was told of it yet.
    pub is_reckoned: bool,
    /// For how long it keeps the next job back.
    pub waits_us: u64,
}

impl ToldLimit {
    /// What is left, in words: `12 of 100 jobs are left`.
    pub fn shown(&self) -> String {
        let of = self.limit.map_or_else(String::new, |limit| format!(" of {limit}"));
        let unit = if self.unit == "cost" { "units" } else { "jobs" };
        format!("{}{of} {unit} are left", self.left)
    }
}

/// A quota, and how much of its window was used.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct QuotaUsed {
    count: u32,
    period_us: u64,
    /// So many have left in the window.
    pub used: u64,
    /// Until the window ends.
    pub ends_us: u64,
}

impl QuotaUsed {
    /// How many more units have room in the window.
    pub fn left(&self) -> u64 {
        u64::from(self.count).saturating_sub(self.used)
    }

    /// As people write it.
    pub fn shown(&self) -> String {
        show_per_period(self.count, Duration::from_micros(self.period_us))
    }

    /// Whether its windows are weeks: they begin at multiples of the period since 1970-01-01, which was a Thursday.
    pub fn is_of_weeks(&self) -> bool {
        self.period_us.is_multiple_of(7 * 86_400_000_000)
    }
}
