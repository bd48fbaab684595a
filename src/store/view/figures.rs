//! Figures of everything under a prefix, for monitoring.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::status::{AwayPartition, Lates};
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;
use crate::store::reply::named;

/// Counts that are no sums over partitions.
const OF_NODES: [&str; 2] = ["slow", "told"];
const DAEMONS: &str = "daemons";

/// Figures at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// That moment on the server's clock, in microseconds since the epoch.
    pub at_us: u64,
    /// Counters since the keys were made, by name.
    pub counters: BTreeMap<String, u64>,
    /// How many buckets and budgets wait, by place.
    pub waiting: BTreeMap<String, u64>,
    /// For how long the first one there has been due, in microseconds.
    pub overdue_us: BTreeMap<String, u64>,
    /// How many names and globs have settings, and how many nodes a slow-down or a told limit.
    pub settings: BTreeMap<String, u64>,
    /// The ready streams.
    pub routes: Vec<RouteFigures>,
    /// Entries of the rejected and of the dead stream, daemons that are alive, and how many of those that wait are budgets.
    pub counts: BTreeMap<String, u64>,
    /// Partitions of a cluster that cannot be reached now: nothing here tells of them.
    pub away: Vec<AwayPartition>,
}

/// A ready stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct RouteFigures {
    /// Its name.
    pub route: String,
    /// Jobs that no worker has taken yet.
    pub undelivered: u64,
    /// Jobs that workers hold.
    pub in_flight: u64,
    /// Entries, finished ones among them.
    pub entries: u64,
    /// How long the oldest job that no worker has taken has been there, in milliseconds.
    pub oldest_ms: u64,
}

impl Figures {
    /// A counter; 0 where it never counted.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// How many jobs left how late, since the keys were made.
    pub fn lates(&self) -> Lates {
        self.counters_of("late:").filter_map(|(quarter, n)| Some((quarter.parse().ok()?, n))).collect()
    }

    /// Jobs that did not fit; those that a newer one pushed out too.
    pub fn rejected(&self) -> u64 {
        self.counter("rejected") + self.counter("dropped")
    }

    /// How many buckets wait, wherever that is.
    pub fn buckets_waiting(&self) -> u64 {
        let all: u64 = self.waiting.iter().filter(|(place, _)| *place != "retrying").map(|(_, n)| n).sum();
        all.saturating_sub(self.count("budgets"))
    }

    /// One of `counts`.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// The counters whose names begin so, by the rest of their names.
    pub fn counters_of<'a>(&'a self, head: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.counters.iter().filter_map(move |(name, n)| Some((name.strip_prefix(head)?, *n)))
    }
}

/// Add counts by name to others.
fn add(to: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, n) in more {
        *to.entry(name).or_default() += n;
    }
}

impl Figures {
    /// Add the figures of another partition.
    fn add(&mut self, other: Self) {
        self.at_us = self.at_us.max(other.at_us);
        let daemons = self.count(DAEMONS).max(other.count(DAEMONS));
        add(&mut self.counters, other.counters);
        add(&mut self.waiting, other.waiting);
        for (place, us) in other.overdue_us {
            let first = self.overdue_us.entry(place).or_default();
            *first = (*first).max(us);
        }
        for route in other.routes {
            match self.routes.iter_mut().find(|known| known.route == route.route) {
                Some(known) => known.add(&route),
                None => self.routes.push(route),
            }
        }
        // Settings are the same in every partition; these are where their nodes live.
        for kind in OF_NODES {
            *self.settings.entry(kind.to_owned()).or_default() += other.settings.get(kind).copied().unwrap_or(0);
        }
        add(&mut self.counts, other.counts);
        self.counts.entry(DAEMONS.to_owned()).and_modify(|n| *n = daemons);
    }
}

impl RouteFigures {
    fn add(&mut self, other: &Self) {
        self.undelivered += other.undelivered;
        self.in_flight += other.in_flight;
        self.entries += other.entries;
        self.oldest_ms = self.oldest_ms.max(other.oldest_ms);
    }
}

impl Partitions {
    /// Figures of all partitions together. The cost does not depend on the number of buckets.
    pub async fn figures(&mut self) -> Result<Figures, StoreError> {
        let this = self.with_none_skipped();
        let all = this.all(async |mut store: Store| store.figures().await).await;
        self.add_skipped(&this);
        let mut all = all?.into_iter();
        let mut figures = all.next().unwrap_or_default();
        all.for_each(|more| figures.add(more));
        figures.routes.sort_by(|a, b| a.route.cmp(&b.route));
        figures.away = this.away();
        Ok(figures)
    }
}

impl Store {
    /// Figures of one partition.
    async fn figures(&mut self) -> Result<Figures, StoreError> {
        self.call_read_only("drip__figures", &[self.keys().policy()], "").await?.decode_with(figures_of)
    }
}

/// The time, counters, waiting, overdue, settings, routes, counts.
type FiguresReply = (u64, Flat, Flat, Flat, Flat, Vec<(String, u64, u64, u64, u64)>, Flat);

type Flat = Vec<(String, u64)>;

fn figures_of((at_us, counters, waiting, overdue_us, settings, routes, counts): FiguresReply) -> Option<Figures> {
    let map = |flat: Flat| flat.into_iter().collect();
    let (counters, waiting, overdue_us) = (map(counters), map(waiting), map(overdue_us));
    let routes = routes.into_iter().map(named).collect::<Option<_>>()?;
    let (settings, counts) = (map(settings), map(counts));
    Some(Figures { at_us, counters, waiting, overdue_us, settings, routes, counts, away: Vec::new() })
}
