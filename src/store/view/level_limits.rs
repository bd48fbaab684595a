//! What limits a node beside its rate, as the functions reply it: the other side, windows of the calendar, what its last job was charged, and
//! the credit of corrected costs.

use std::time::Duration;

use serde::Deserialize;

use crate::model::duration::{say, show_per_period};

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

/// The payment for which a node waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Paid {
    /// The cost of its last job, where that is more than 1.
    pub cost: Option<u64>,
    /// Whether it waits for its `job_rate`.
    pub by_jobs: bool,
    /// The cost of its next job, where one of its quotas has less left.
    pub needs: Option<u64>,
}

/// The credit of a node with a rate: workers said that jobs cost less than was said, or, where it is negative, more.
/// Later jobs are charged less, or more, until it is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct Credit {
    /// As a time at its rate, in microseconds; negative: debt.
    pub us: i64,
    /// What a job is charged now, in percent of its cost.
    pub price_percent: u64,
}

impl Credit {
    /// The credit as people read it: `2.0 s of credit: jobs are charged 50 % of their cost`.
    pub fn describe(&self) -> String {
        let (time, kind) =
            (say(Duration::from_micros(self.us.unsigned_abs())), if self.us < 0 { "debt" } else { "credit" });
        format!("{time} of {kind}: jobs are charged {} % of their cost", self.price_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_and_debt_are_told_apart() {
        let say = |us, price_percent| Credit { us, price_percent }.describe();
        assert_eq!(say(2_000_000, 50), "2.0 s of credit: jobs are charged 50 % of their cost");
        assert_eq!(say(-4_000_000, 300), "4.0 s of debt: jobs are charged 300 % of their cost");
    }
}
