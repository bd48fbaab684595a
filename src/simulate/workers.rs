//! Simulated workers: what `--workers` says.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use crate::model::duration;
use crate::model::policy::Record;
use crate::store::simulation::{Group, RouteWorkers};

const HINT: &str = "write [ROUTE: ]COUNTxTIME and, with commas, exponential, away FROM to TO; as in '20x150ms' or \
                    'mail: 5x2s, exponential, away 10m to 12m'";

/// The most workers of one sort.
const MOST: u64 = 1_000_000;

/// Workers of one sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// The route that they serve; `None`: each one that has no workers of its own.
    pub route: Option<String>,
    count: u64,
    takes: Duration,
    is_exponential: bool,
    away: Vec<(Duration, Duration)>,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Workers {
    /// Workers that are always free, and take no time.
    pub fn enough() -> Self {
        Self { route: None, count: MOST, takes: Duration::ZERO, is_exponential: false, away: Vec::new() }
    }

    /// The longest that a job takes, or, where that varies exponentially, that one of 150 takes.
    pub(super) fn longest(&self) -> Duration {
        if self.is_exponential { self.takes * 5 } else { self.takes }
    }

    /// The n-th group of a route.
    pub(super) fn group(&self, n: usize) -> Group {
        Group {
            name: format!("group-{n}"),
            free: self.count,
            service_us: us(self.takes),
            is_exponential: self.is_exponential,
            away: self.away.iter().map(|(from, to)| (us(*from), us(*to))).collect(),
        }
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (route, workers) = match text.rsplit_once(": ") {
            Some((route, workers)) => (Some(route.trim().to_owned()), workers),
            None => (None, text),
        };
        let mut parts = workers.split(',').map(str::trim);
        let how_many = parts.next().and_then(|part| part.split_once('x'));
        let (count, takes) = how_many
            .and_then(|(count, takes)| {
                Some((count.parse().ok().filter(|n| (1..=MOST).contains(n))?, duration::parse(takes)?))
            })
            .ok_or(HINT)?;
        let mut read = Self { route, count, takes, is_exponential: false, away: Vec::new() };
        for part in parts {
            let words: Vec<&str> = part.split_whitespace().collect();
            match words[..] {
                ["exponential"] => read.is_exponential = true,
                ["away", from, "to", to] => {
                    let times = duration::parse(from).zip(duration::parse(to)).filter(|(from, to)| from < to);
                    read.away.push(times.ok_or_else(|| format!("{part:?} is no time away: {HINT}"))?);
                }
                _ => return Err(format!("{part:?} is not understood: {HINT}")),
            }
        }
        Ok(read)
    }
}

/// Workers of a route that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nobody works on route {route}: no policy names it; the routes are {routes}")]
pub struct NoRoute {
    /// The route that was named.
    pub route: String,
    /// Those that are there.
    pub routes: String,
}

/// The routes that a record names.
fn routes(record: &Record) -> BTreeSet<String> {
    let policies = record.buckets.iter().map(|entry| &entry.policy.route);
    policies.chain([&record.defaults.route]).map(|route| route.as_str().to_owned()).collect()
}

/// Workers that are named have a route in one of these records at least.
///
/// # Errors
///
/// A route that none of them has.
pub fn check_routes(records: &[&Record], all: &[Workers]) -> Result<(), NoRoute> {
    let routes: BTreeSet<String> = records.iter().flat_map(|record| routes(record)).collect();
    let Some(route) = all.iter().filter_map(|workers| workers.route.as_ref()).find(|route| !routes.contains(*route))
    else {
        return Ok(());
    };
    let routes = routes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    Err(NoRoute { route: route.clone(), routes })
}

/// The workers of each route.
pub(super) fn route_workers(record: &Record, all: &[Workers]) -> Vec<RouteWorkers> {
    let routes = routes(record);
    let enough = Workers::enough();
    let workers_of = |route: &String| {
        let own: Vec<&Workers> = all.iter().filter(|workers| workers.route.as_ref() == Some(route)).collect();
        let shared: Vec<&Workers> = all.iter().filter(|workers| workers.route.is_none()).collect();
        match (own.is_empty(), shared.is_empty()) {
            (false, _) => own,
            (true, false) => shared,
            (true, true) => vec![&enough],
        }
    };
    let routes = routes.iter().map(|route| {
        let groups = workers_of(route).iter().enumerate().map(|(n, workers)| workers.group(n)).collect();
        RouteWorkers { name: route.clone(), groups }
    });
    routes.collect()
}
