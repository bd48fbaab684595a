//! Snapshots: the state of some buckets and budgets now, by name. What is asked for is bounded by the one who asks, whatever the
//! number of buckets. `dripd top` asks once a second.

use std::collections::HashMap;

use redis::{FromRedisValue as _, Value};
use serde::Serialize;
use utoipa::ToSchema;

use super::explain::Slots;
use super::top::{FlatRow, Row};
use crate::model::words;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;
use crate::store::reply::{Reply, given, named};

/// How many rows a call tells of.
pub const MAX_SNAPSHOTS: usize = 64;

words! {
    /// The first reason for which something waits, of those that `explain` would tell.
    pub enum Cause {
        /// Its key holds something else than a list.
        WrongType = "wrong-type",
        /// Its budgets cannot be found.
        Refused = "refused",
        /// An operator stopped it, under this name or glob.
        Paused = "paused",
        /// An operator stopped this budget above it.
        PausedAbove = "paused-above",
        /// As many jobs are in flight as may be: `3 of 3`.
        Slots = "slots",
        /// The other side asked for a pause.
        Slow = "slow",
        /// A slow-down left it this part of its rate, in percent.
        Slowed = "slowed",
        /// The other side lets through no more, or not so soon: `12 of 100 jobs left`.
        Told = "told",
        /// As many have left as may in a window of the calendar.
        Quota = "quota",
        /// Its rate lets no job out yet.
        Rate = "rate",
        /// For its share of this budget.
        Share = "share",
        /// Its route is full: workers are away.
        Held = "held",
        /// Only failed jobs wait, and their back-off runs.
        BackingOff = "backing-off",
        /// Only delayed jobs wait, or the first of them comes before any failed job.
        Delayed = "delayed",
        /// Nothing: its next job may leave now.
        Due = "due",
        /// Nothing waits.
        Empty = "empty",
    }
}

/// A word for why something waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = WhyItWaits)]
pub struct Why {
    /// The word: `rate`, `share`, `paused`, …
    word: String,
    /// What it is about: a glob, a budget, a route, a key; mostly empty.
    pub about: String,
}

impl Why {
    /// A cause that is known.
    pub fn new(cause: Cause, about: impl Into<String>) -> Self {
        Self { word: cause.to_string(), about: about.into() }
    }

    /// The cause that the word stands for, or, of one that only a newer version knows, the word.
    pub fn cause(&self) -> Result<Cause, &str> {
        Cause::parse(&self.word).ok_or(&self.word)
    }
}

/// The state of a bucket now. Here the times of its row know of pauses by order, and of slow-downs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSnapshot {
    /// As the walk tells it.
    pub row: Row,
    /// Why it waits.
    pub why: Why,
    /// The name or glob that closes it: it takes nothing in.
    pub closed_by: Option<String>,
    /// How many jobs have left it since somebody looks at it.
    pub left: u64,
}

/// The state of a budget now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetSnapshot {
    /// Its name.
    pub budget: String,
    /// How many buckets and budgets wait for a share of it.
    pub waiting: u64,
    /// Its rate, jobs in a period of so many microseconds; `None`: it has none.
    pub rate: Option<(u64, u64)>,
    /// Until its next job may leave; 0: now.
    pub due_in_us: u64,
    /// Its jobs in flight, where they are limited.
    pub slots: Option<Slots>,
    /// The quota of which most is used, where it has any: used, and how many may.
    pub quota: Option<(u64, u64)>,
    /// Why it waits.
    pub why: Why,
    /// The budget above it.
    pub parent: Option<String>,
    /// Its weight there.
    pub weight: u64,
    /// Its credit of corrected costs, as a time at its rate in microseconds; negative: debt.
    pub credit_us: i64,
    /// How many jobs have passed through it since somebody looks at it.
    pub passed: u64,
}

impl BudgetSnapshot {
    /// How much of it is used, where so many jobs pass in a second: of its rate, its slots or its quota, whichever is used most. `None`:
    /// nobody knows yet.
    pub fn used(&self, per_s: Option<f64>) -> Option<f64> {
        let of_rate =
            self.rate.zip(per_s).map(|((count, period_us), per_s)| per_s * (period_us as f64 / 1e6) / count as f64);
        let parts = [self.slots.map(|slots| (slots.taken, slots.of)), self.quota];
        let parts = parts.into_iter().flatten().map(|(n, all)| n as f64 / all as f64);
        of_rate.into_iter().chain(parts).reduce(f64::max)
    }
}

/// Snapshots at one moment of the server's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now<T> {
    /// That moment, in microseconds since the epoch.
    pub at_us: u64,
    /// In the order in which it was asked for.
    pub rows: Vec<T>,
}

impl Now<BucketSnapshot> {
    /// Read what the function replied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Reply`], with the reply.
    pub fn read(reply: Value) -> Result<Self, StoreError> {
        Reply { call: "drip__rows", value: reply }.decode_with(buckets_of)
    }
}

impl Now<BudgetSnapshot> {
    /// Read what the function replied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Reply`], with the reply.
    pub fn read(reply: Value) -> Result<Self, StoreError> {
        Reply { call: "drip__budget_rows", value: reply }.decode_with(budgets_of)
    }
}

impl Partitions {
    /// The state of some buckets, at most [`MAX_SNAPSHOTS`] of them. Jobs that leave them are counted as long as somebody asks.
    pub async fn bucket_snapshots(&mut self, buckets: &[String]) -> Result<Now<BucketSnapshot>, StoreError> {
        let call = async |mut store: Store, names: Vec<String>| {
            if names.is_empty() && !buckets.is_empty() {
                return Ok(Now { at_us: 0, rows: Vec::new() }); // none of them lives there
            }
            Now::<BucketSnapshot>::read(store.named("drip__rows", &names).await?)
        };
        let parts = self.by_name(buckets, call).await?;
        let at_us = parts.iter().map(|(_, _, now)| now.at_us).max().unwrap_or_default();
        let mut rows: HashMap<String, BucketSnapshot> =
            parts.into_iter().flat_map(|(_, _, now)| now.rows).map(|now| (now.row.bucket.clone(), now)).collect();
        Ok(Now { at_us, rows: buckets.iter().filter_map(|name| rows.remove(name)).collect() })
    }

    /// The state of some budgets, at most [`MAX_SNAPSHOTS`] of them. Budgets that the configuration names without a glob fill the room that is
    /// left.
    pub async fn budget_snapshots(&mut self, budgets: &[String]) -> Result<Now<BudgetSnapshot>, StoreError> {
        let call = async |mut store: Store, names: Vec<String>| {
            Now::<BudgetSnapshot>::read(store.named("drip__budget_rows", &names).await?)
        };
        let parts = self.by_name(budgets, call).await?;
        let at_us = parts.iter().map(|(_, _, now)| now.at_us).max().unwrap_or_default();
        let mut rows: Vec<BudgetSnapshot> = Vec::new();
        for (number, _, now) in parts {
            // Each partition tells of those that the configuration names, wherever they live.
            rows.extend(now.rows.into_iter().filter(|row| self.layout().number_of_subject(&row.budget) == number));
        }
        let place: HashMap<&str, usize> = budgets.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        rows.sort_by_key(|row| place.get(row.budget.as_str()).copied().unwrap_or(usize::MAX));
        rows.truncate(MAX_SNAPSHOTS);
        Ok(Now { at_us, rows })
    }
}

impl Store {
    async fn named(&mut self, function: &'static str, names: &[String]) -> Result<Value, StoreError> {
        Ok(self.call_read_only(function, &[self.keys().policy()], ("", names)).await?.value)
    }
}

/// The time, the rows as the walk tells them, why each waits and what closes it, and how many have left each.
type BucketsReply = (u64, Vec<FlatRow>, Vec<(String, String, String)>, Vec<u64>);

fn buckets_of((at_us, rows, whys, left): BucketsReply) -> Option<Now<BucketSnapshot>> {
    if rows.len() != whys.len() || rows.len() != left.len() {
        return None;
    }
    let snapshot = |((row, (word, about, closed)), left)| {
        Some(BucketSnapshot { row: named(row)?, why: Why { word, about }, closed_by: given(closed), left })
    };
    Some(Now { at_us, rows: rows.into_iter().zip(whys).zip(left).map(snapshot).collect::<Option<_>>()? })
}

/// The first nine values of a budget.
type BudgetNumbers = (String, u64, u64, u64, u64, u64, u64, u64, u64);

/// The reply: the time, thirteen values of each budget, which are more than a tuple holds, and how many jobs passed each.
fn budgets_of((at_us, rows, passed): (u64, Vec<Value>, Vec<u64>)) -> Option<Now<BudgetSnapshot>> {
    let (rows, []) = rows.as_chunks::<14>() else { return None };
    if rows.len() != passed.len() {
        return None;
    }
    let rows = rows.iter().zip(passed).map(|(row, passed)| {
        let (numbers, words) = row.split_at(9);
        let (budget, waiting, count, period_us, due_in_us, taken, slots, used, quota) =
            BudgetNumbers::from_redis_value(Value::Array(numbers.to_vec())).ok()?;
        let (word, about, parent, weight, credit_us) =
            <(String, String, String, u64, i64)>::from_redis_value(Value::Array(words.to_vec())).ok()?;
        Some(BudgetSnapshot {
            budget,
            waiting,
            rate: (count > 0).then_some((count, period_us)),
            due_in_us,
            slots: (slots > 0).then_some(Slots { taken, of: slots }),
            quota: (quota > 0).then_some((used, quota)),
            why: Why { word, about },
            parent: given(parent),
            weight,
            credit_us,
            passed,
        })
    });
    Some(Now { at_us, rows: rows.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_of_a_budget_is_the_most_of_what_bounds_it() {
        let budget = BudgetSnapshot {
            budget: "twilio".to_owned(),
            waiting: 3,
            rate: Some((10, 1_000_000)),
            due_in_us: 0,
            slots: None,
            quota: Some((5, 10)),
            why: Why::new(Cause::Rate, ""),
            parent: None,
            weight: 1,
            credit_us: 0,
            passed: 0,
        };
        assert_eq!(budget.used(Some(8.0)), Some(0.8));
        assert_eq!(budget.used(None), Some(0.5), "its quota");
        let slots = Some(Slots { taken: 9, of: 10 });
        assert_eq!(BudgetSnapshot { slots, ..budget.clone() }.used(Some(8.0)), Some(0.9));
        assert_eq!(BudgetSnapshot { quota: None, ..budget.clone() }.used(None), None, "nobody knows yet");
        assert_eq!(BudgetSnapshot { rate: None, quota: None, ..budget }.used(Some(8.0)), None, "nothing bounds it");
    }
}
