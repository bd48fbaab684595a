//! The top of the buckets: the first of each order, as the last walk found them (`walk`), with how old that is.

use std::fmt;

use redis::{FromRedisValue, Value};
use serde::{Deserialize, Serialize};

use crate::model::glob::Glob;
use crate::model::words;
use crate::store::client::Store;
use crate::store::connection::{StoreError, Text};
use crate::store::library::is_missing_function;
use crate::store::partitions::Partitions;

/// How many buckets of each order are kept.
pub const KEPT: usize = 1_000;

/// How many of them are stored together, so that whoever wants ten need not read a thousand.
pub(super) const PART: usize = 100;

/// An order of buckets, the largest value first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// How long until it is empty, at its rate.
    Empty,
    /// How many jobs wait.
    Depth,
    /// How many of its jobs were rejected in the last 10 to 20 minutes, about.
    Rejected,
    /// How long its next job has been due, of those that wait for nothing but their due.
    Late,
    /// Budgets, by how many wait for a share of each. The name of one stands in braces, and its depth is how many wait.
    Budgets,
}

impl By {
    /// The orders of buckets.
    pub const ALL: [Self; 4] = [Self::Empty, Self::Depth, Self::Rejected, Self::Late];

    /// The value by which a row is ranked.
    pub(super) fn value(self, row: &Row) -> u64 {
        match self {
            Self::Empty => row.empty_in_ms,
            Self::Rejected => row.rejected,
            Self::Late => row.late_us,
            Self::Depth | Self::Budgets => row.depth,
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Depth => "depth",
            Self::Rejected => "rejected",
            Self::Late => "late",
            Self::Budgets => "budgets",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for By {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|by| by.as_str() == text).ok_or("write empty, depth, rejected or late")
    }
}

words! {
    /// Where a bucket waits.
    #[derive(Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "lowercase")]
    #[schema(as = RankedPlace)]
    pub enum Place {
        /// For its due.
        Due = "due",
        /// For its share of a budget.
        Share = "share",
        /// For a slot: as many of its jobs are in flight as may be.
        Full = "full",
        /// For its route, which is full.
        Held = "held",
        /// An operator stopped it.
        Paused = "paused",
        /// For a budget that cannot be found.
        Refused = "refused",
        /// It has no work.
        Idle = "idle",
    }
}

/// How things stood with a bucket when the walk passed it. Retries are left out of all times, and a pause or a full route is
/// taken to end at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RankedBucket)]
pub struct Row {
    /// Its name.
    pub bucket: String,
    /// Where it waits.
    pub place: Place,
    /// Where its jobs go.
    pub route: String,
    /// Jobs that wait.
    pub depth: u64,
    /// How many may.
    pub capacity: u64,
    /// Its rate: jobs in a period.
    pub count: u64,
    /// The length of a period.
    pub period_us: u64,
    /// Until its next job may leave; 0: it may now, or there is none.
    pub due_in_us: u64,
    /// Until it is empty if nothing more comes; 0: it is, or the last job may leave now.
    pub empty_in_ms: u64,
    /// How long its next job has been due; 0 where it waits for something else.
    pub late_us: u64,
    /// How many of its jobs were rejected in the last 10 to 20 minutes, about.
    pub rejected: u64,
}

impl Row {
    /// Whether its next job is put off by more than its rate: by a slow-down, a quota, a told limit, the cost of the last
    /// job, or one of these of a budget above it.
    pub fn is_put_off(&self) -> bool {
        let interval_us = self.period_us.div_ceil(self.count.max(1));
        self.place == Place::Due && self.due_in_us > interval_us
    }
}

/// A row as the functions reply it: name, place, route, depth, capacity, count, period, due, time until empty, lateness, rejected.
pub(super) type FlatRow = (Text, String, Text, u64, u64, u64, u64, u64, u64, u64, u64);

/// The first buckets of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Top {
    /// When the walk began, on the server's clock, in microseconds since the epoch: nothing in it is older.
    pub as_of_us: u64,
    /// How long ago that was.
    pub age_ms: u64,
    /// How long the walk took.
    pub took_ms: u64,
    /// How many buckets it passed: those that had work.
    pub buckets: u64,
    /// The buckets, the first one of the order first.
    pub rows: Vec<Row>,
}

/// A ranking as it is kept: several orders of one walk.
pub(super) struct Ranked {
    pub as_of_us: u64,
    pub age_us: u64,
    pub took_us: u64,
    pub buckets: u64,
    /// The rows of each order that was asked for.
    pub orders: Vec<Vec<Row>>,
}

impl Ranked {
    /// The ranking of another partition comes to this one: it is as old as the older one.
    fn add(mut self, other: Self) -> Self {
        self.as_of_us = self.as_of_us.min(other.as_of_us);
        self.age_us = self.age_us.max(other.age_us);
        self.took_us = self.took_us.max(other.took_us);
        self.buckets += other.buckets;
        for (rows, more) in self.orders.iter_mut().zip(other.orders) {
            rows.extend(more);
        }
        self
    }

    /// The first rows of all partitions, of each order.
    fn settle(&mut self, orders: &[By], limit: usize) {
        for (rows, by) in self.orders.iter_mut().zip(orders) {
            rows.sort_by(|a, b| by.value(b).cmp(&by.value(a)).then_with(|| a.bucket.cmp(&b.bucket)));
            rows.truncate(limit);
        }
    }
}

impl Partitions {
    /// The first buckets by an order, at most so many and at most [`KEPT`], of those whose names match. `None` until the first walk
    /// is over: it is made by the daemons.
    pub async fn top(&mut self, by: By, only: Option<&Glob>, limit: usize) -> Result<Option<Top>, StoreError> {
        let limit = limit.min(KEPT);
        let wanted = if only.is_some() { KEPT } else { limit };
        let Some(ranked) = self.ranked(&[by], wanted).await? else { return Ok(None) };
        let Ranked { as_of_us, age_us, took_us, buckets, orders } = ranked;
        let mut rows: Vec<Row> = orders.into_iter().flatten().collect();
        rows.retain(|row| only.is_none_or(|glob| glob.matches(row.bucket.as_bytes())));
        rows.truncate(limit);
        Ok(Some(Top { as_of_us, age_ms: age_us / 1_000, took_ms: took_us / 1_000, buckets, rows }))
    }

    /// The first `limit` rows of several orders. `None` until every partition was walked once.
    pub(super) async fn ranked(&mut self, orders: &[By], limit: usize) -> Result<Option<Ranked>, StoreError> {
        let rankings = self.all(async |mut store: Store| store.ranked(orders, limit).await).await?;
        let several = rankings.len() > 1;
        let Some(rankings) = rankings.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut ranked = rankings.into_iter().reduce(Ranked::add);
        if several && let Some(ranked) = &mut ranked {
            ranked.settle(orders, limit);
        }
        Ok(ranked)
    }
}

impl Store {
    /// The first `limit` rows of several orders, of the same walk. A library that does not know them yet has none.
    async fn ranked(&mut self, orders: &[By], limit: usize) -> Result<Option<Ranked>, StoreError> {
        let mut command = redis::cmd("FCALL_RO");
        command.arg("drip__top").arg(1).arg(self.keys().policy()).arg("").arg(limit.div_ceil(PART));
        for by in orders {
            command.arg(by.as_str());
        }
        let reply = match self.call("drip__top", &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => return Ok(None),
            other => other?,
        };
        reply.decode_with(
            |items: Vec<Value>| {
                if items.is_empty() { Some(None) } else { ranked_of(&items, orders.len(), limit).map(Some) }
            },
        )
    }
}

/// The time, how old the ranking is, how long it took, how many buckets it passed, and then the parts of each order, JSON each.
fn ranked_of(items: &[Value], orders: usize, limit: usize) -> Option<Ranked> {
    let (head, parts) = items.split_at_checked(4)?;
    let (as_of_us, age_us, took_us, buckets) = FromRedisValue::from_redis_value(Value::Array(head.to_vec())).ok()?;
    let rows = |parts: Vec<Vec<u8>>| -> Option<Vec<Row>> {
        let parts: Vec<Vec<Row>> = parts.iter().map(|json| serde_json::from_slice(json).ok()).collect::<Option<_>>()?;
        Some(parts.into_iter().flatten().take(limit).collect())
    };
    let parts = Vec::<Vec<Vec<u8>>>::from_redis_value_ref(&Value::Array(parts.get(..orders)?.to_vec())).ok()?;
    let orders = parts.into_iter().map(rows).collect::<Option<_>>()?;
    Some(Ranked { as_of_us, age_us, took_us, buckets, orders })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_written_and_nothing_else_is_one() {
        for by in By::ALL {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        assert!("Depth".parse::<By>().is_err() && "".parse::<By>().is_err());
    }
}
