//! How routes stand: what no worker has read yet, how old that is, how fast workers take, and which buckets wait for them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::counted::counted;
use crate::model::duration::say;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::library::is_missing_function;
use crate::store::partitions::Partitions;

/// A route: a ready stream, or a list that it forwards to.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct RouteStatus {
    /// Its name.
    pub route: String,
    /// The key of the list that it forwards to; absent: it is a ready stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why nothing leaves by it, where a key is of another type than it must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
    /// Jobs that no worker has taken yet.
    pub undelivered: u64,
    /// How long ago the oldest of them left its bucket, in microseconds; 0 where there is none.
    pub age_us: u64,
    /// How old it may become before buckets are held, in microseconds; none: `ready_window` is off.
    pub ready_window_us: Option<u64>,
    /// How many undelivered jobs hold its buckets.
    pub limit: u64,
    /// Buckets that are held for it.
    pub held: u64,
    /// Jobs that workers hold.
    pub pending: u64,
    /// How many workers hold a job, or asked for one in the last minute.
    pub workers: u64,
    /// Jobs that workers have taken since the keys were made.
    pub taken: u64,
    /// How many jobs workers took a second, over the last ten or so; none: it is not known yet.
    pub taken_per_second: Option<f64>,
    /// What there is to say where it holds buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

/// A route as the functions reply it; see `drip__routes`.
type Flat = (String, (String, String, String), u64, u64, u64, u64, u64, u64, u64, u64, (u64, u64));

/// A pace in words: `98/s`, `4.2/s`, `12/m`.
pub fn say_pace(per_second: f64) -> String {
    let units = [(1.0, "s"), (60.0, "m"), (3_600.0, "h")];
    let (seconds, unit) = units.into_iter().find(|(seconds, _)| per_second * seconds >= 1.0).unwrap_or((3_600.0, "h"));
    let pace = per_second * seconds;
    if pace == 0.0 {
        "0/s".to_owned()
    } else if pace >= 10.0 {
        format!("{pace:.0}/{unit}")
    } else {
        format!("{pace:.1}/{unit}")
    }
}

impl RouteStatus {
    fn of(flat: Flat) -> Self {
        let (route, (to, key, wanted), undelivered, age_us, window_us, limit, held, pending, workers, taken, pace) =
            flat;
        let (recently, over_us) = pace;
        Self {
            route,
            to: Some(to).filter(|to| !to.is_empty()),
            wrong: (!key.is_empty()).then(|| format!("the key {key} must hold a {wanted}: rename or delete it")),
            undelivered,
            age_us,
            ready_window_us: (window_us > 0).then_some(window_us),
            limit,
            held,
            pending,
            workers,
            taken,
            taken_per_second: (over_us > 0).then(|| recently as f64 * 1e6 / over_us as f64),
            says: None,
        }
    }

    /// Add the same route of another partition.
    fn add(&mut self, other: Self) {
        self.wrong = self.wrong.take().or(other.wrong);
        self.undelivered += other.undelivered;
        self.age_us = self.age_us.max(other.age_us);
        self.limit += other.limit;
        self.held += other.held;
        self.pending += other.pending;
        self.workers = self.workers.max(other.workers);
        self.taken += other.taken;
        self.taken_per_second = match (self.taken_per_second, other.taken_per_second) {
            (Some(one), Some(another)) => Some(one + another),
            (one, another) => one.or(another),
        };
    }

    /// Whether its oldest undelivered job is older than it may be.
    pub fn is_behind(&self) -> bool {
        self.ready_window_us.is_some_and(|window| self.age_us > window)
    }

    /// What there is to say where it holds buckets.
    pub fn in_words(&self) -> Option<String> {
        if self.held == 0 {
            return None;
        }
        let route = &self.route;
        let waited = say(Duration::from_micros(self.age_us));
        let waiting = counted(self.held, "bucket waits for them", "buckets wait for them");
        Some(match self.taken_per_second {
            Some(pace) if pace == 0.0 && self.undelivered > 0 => {
                format!("nobody takes jobs of route {route}: the oldest has waited {waited}; {waiting}")
            }
            pace => {
                let take = pace.map_or_else(String::new, |pace| format!("; they take {}", say_pace(pace)));
                if self.is_behind() {
                    format!("workers of route {route} are behind: the oldest job has waited {waited}{take}; {waiting}")
                } else {
                    format!("workers of route {route} are busy{take}; {waiting}")
                }
            }
        })
    }
}

impl Partitions {
    /// How all routes stand, by their names.
    pub async fn routes(&mut self) -> Result<Vec<RouteStatus>, StoreError> {
        let mut routes: Vec<RouteStatus> = Vec::new();
        for route in self.all(async |mut store: Store| store.routes().await).await?.into_iter().flatten() {
            match routes.iter_mut().find(|known| known.route == route.route && known.to == route.to) {
                Some(known) => known.add(route),
                None => routes.push(route),
            }
        }
        routes.sort_by(|a, b| (&a.route, &a.to).cmp(&(&b.route, &b.to)));
        for route in &mut routes {
            route.says = route.in_words();
        }
        Ok(routes)
    }
}

impl Store {
    /// The routes of one partition. A library that does not know of them counts as none: it is an older one.
    async fn routes(&mut self) -> Result<Vec<RouteStatus>, StoreError> {
        let reply = match self.call_read_only("drip__routes", &[self.keys().policy()], "").await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => return Ok(Vec::new()),
            other => other?,
        };
        let (_, routes): (u64, Vec<Flat>) = reply.decode()?;
        Ok(routes.into_iter().map(RouteStatus::of).collect())
    }
}

/// A route as `drip_explain` tells of it: of one bucket, and in few words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = RouteOfABucket)]
pub struct Ready {
    /// The route.
    pub name: String,
    /// Jobs that no worker has taken yet.
    pub ready: u64,
    /// How many of those hold its buckets.
    pub max_ready: u64,
    /// Jobs that workers hold.
    pub pending: u64,
    /// How many workers hold a job, or asked for one in the last minute.
    pub workers: u64,
    /// How long ago the one of `ready` left that has waited longest.
    pub oldest_ms: Option<u64>,
    /// How long ago the oldest of `ready` left, in microseconds; 0 where there is none.
    #[serde(default)]
    #[schema(required)]
    pub age_us: u64,
    /// How old it may become before buckets are held; none: `ready_window` is off.
    #[serde(alias = "window_us")]
    pub ready_window_us: Option<u64>,
    /// Whether its `[[route]]` says so, and not `[limits]`.
    #[serde(default, skip_serializing)]
    pub is_own_window: bool,
    /// How many undelivered jobs hold its buckets now; none: as many as `max_ready`.
    #[schema(required, value_type = u64)]
    pub limit: Option<u64>,
    /// Buckets that are held for it.
    #[serde(default)]
    #[schema(required)]
    pub held: u64,
    /// How many jobs its workers take a second; none: it is not known.
    pub taken_per_second: Option<f64>,
    /// The key of the list that it forwards to; none: it is a ready stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(skip_serializing)]
    taken: Option<u64>,
    #[serde(skip_serializing)]
    over_us: Option<u64>,
    /// Of a held bucket: how many others have their turns before it.
    #[serde(skip_serializing)]
    pub ahead: Option<u64>,
}

impl Ready {
    /// With what follows from its figures.
    pub(super) fn complete(self) -> Self {
        let per_second = |us: u64| self.taken.unwrap_or(0) as f64 * 1e6 / us as f64;
        let taken_per_second = self.over_us.filter(|us| *us > 0).map(per_second);
        Self { limit: Some(self.most()), taken_per_second, ..self }
    }

    /// How many undelivered jobs hold its buckets.
    pub fn most(&self) -> u64 {
        self.limit.unwrap_or(self.max_ready)
    }

    /// Whether it keeps buckets from going.
    pub fn holds(&self) -> bool {
        self.held > 0 || self.ready >= self.max_ready || self.ready_window_us.is_some_and(|window| self.age_us > window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(held: u64, age_us: u64, pace: (u64, u64)) -> RouteStatus {
        let names = (String::new(), String::new(), String::new());
        RouteStatus::of(("sms".to_owned(), names, 3, age_us, 250_000, 8, held, 2, 1, 40, pace))
    }

    #[test]
    fn a_route_that_holds_buckets_says_so_with_the_pace_of_its_workers() {
        assert_eq!(route(0, 900_000, (980, 10_000_000)).in_words(), None);
        let says = |held, age, pace| route(held, age, pace).in_words().expect("it holds");
        assert_eq!(
            says(431, 1_200_000, (980, 10_000_000)),
            "workers of route sms are behind: the oldest job has waited 1.2 s; they take 98/s; 431 buckets wait for them"
        );
        assert_eq!(says(1, 200_000, (0, 0)), "workers of route sms are busy; 1 bucket waits for them");
        assert_eq!(
            says(2, 12_000_000, (0, 10_000_000)),
            "nobody takes jobs of route sms: the oldest has waited 12.0 s; 2 buckets wait for them"
        );
    }

    #[test]
    fn a_pace_is_said_in_the_unit_in_which_it_is_one_at_least() {
        let said = [98.4, 10.0, 4.25, 0.5, 1.0 / 62.0, 0.0001, 0.0].map(say_pace);
        assert_eq!(said, ["98/s", "10/s", "4.2/s", "30/m", "58/h", "0.4/h", "0/s"]);
    }

    #[test]
    fn the_partitions_of_a_route_come_together() {
        let mut one = route(1, 5, (10, 1_000_000));
        one.add(route(2, 9, (30, 1_000_000)));
        assert_eq!((one.held, one.age_us, one.limit, one.workers, one.taken), (3, 9, 16, 1, 80));
        assert_eq!(one.taken_per_second, Some(40.0));
    }
}
