//! How things stand under one prefix: what `dripd status` shows of everything.

use std::collections::BTreeMap;

use serde::Serialize;

use super::routes::RouteStatus;
use super::top::{By, Row};
use crate::model::policy::Record;
use crate::model::source::Source;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::connection::acl::Role;
use crate::store::heartbeat::DaemonStatus;
use crate::store::partitions::Partitions;

/// How many buckets of an order are shown.
const BUCKETS_SHOWN: usize = 10;

/// How things stand under one prefix.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Status {
    /// Where Redis is.
    pub redis: String,
    /// Its version.
    pub version: String,
    /// What it lacks: each a sentence with the way out.
    pub warnings: Vec<String>,
    /// Why Redis takes no writes now, so that nobody can push.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refuses_writes: Option<WritesRefused>,
    /// Into how many partitions the keys are divided, where that is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u8>,
    /// Of a cluster: the partitions that cannot be reached now, of which nothing here tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub away: Option<Vec<AwayPartition>>,
    /// Buckets that wait for their due.
    pub scheduled: u64,
    /// How many buckets and budgets wait for a share of a budget.
    pub sharing: u64,
    /// How many buckets are held for workers of their route.
    pub held: u64,
    /// How many wait for a job in flight to finish.
    pub full: u64,
    /// Buckets with work that an operator stopped.
    pub paused: u64,
    /// Buckets in which failed jobs wait for another try, or delayed jobs for their time.
    pub retrying: u64,
    /// Delayed jobs that wait for their time, in all buckets.
    pub delayed: u64,
    /// Whether a policy record is stored.
    pub has_record: bool,
    /// Whether it is the one of the configuration at hand.
    pub same_record: bool,
    /// Where it comes from; `None`: nobody said.
    pub record_source: Option<RecordSource>,
    /// Whether a change of policy still spreads.
    pub spreading: bool,
    /// The daemons that are alive; with none nothing leaves a bucket.
    pub daemons: Vec<DaemonStatus>,
    /// The ready streams, and the lists that routes forward to.
    pub routes: Vec<RouteStatus>,
    /// Entries of the rejected stream.
    pub rejected: u64,
    /// Entries of the dead stream.
    pub dead: u64,
    /// Jobs counted since the keys were made, by what became of them.
    pub counters: BTreeMap<String, u64>,
    /// How late jobs left, since the keys were made; to within a fifth. `None` before the first.
    pub lateness: Option<Lateness>,
    /// The buckets that come first; `None` until the first walk is over.
    pub top: Option<StatusTop>,
}

/// Redis takes no writes now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct WritesRefused {
    /// Why, and the way out.
    pub why: String,
    /// Whether it lacks memory alone: then jobs go on to leave, and workers to take and acknowledge them.
    pub pushes_only: bool,
}

impl WritesRefused {
    /// The refusal in words for whoever looks.
    pub(crate) fn of(why: &StoreError) -> Self {
        Self { why: why.in_words(Role::Observer), pushes_only: why.is_full() }
    }

    /// What follows from it.
    pub fn outcome(&self) -> &'static str {
        if self.pushes_only {
            "nobody can push; what waits still leaves"
        } else {
            "nobody can push, nothing leaves, and workers can neither take nor acknowledge jobs"
        }
    }
}

/// A partition that cannot be reached now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct AwayPartition {
    /// Its number.
    pub partition: u8,
    /// Where it is, or should be.
    pub node: String,
    /// Why it cannot be reached.
    pub why: String,
}

/// Where a record comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct RecordSource {
    /// The machine of the daemon that put it into force.
    pub host: String,
    /// The file; `None`: the built-in defaults.
    pub path: Option<String>,
}

/// The buckets that come first, as the last walk found them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct StatusTop {
    /// When the walk began, on the server's clock, in microseconds since the epoch: nothing in it is older.
    pub as_of_us: u64,
    /// How long ago that was.
    pub age_ms: u64,
    /// How long the walk took.
    pub took_ms: u64,
    /// How many buckets it passed: those that had work.
    pub buckets: u64,
    /// Those in which most jobs wait, at most ten.
    pub fullest: Vec<Row>,
    /// Those that rejected most in the last 10 to 20 minutes, at most ten.
    pub rejecting: Vec<Row>,
}

/// How late jobs left their buckets, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Lateness {
    /// Half of them were at most this late.
    pub p50_us: u64,
    /// All but one in a hundred.
    pub p99_us: u64,
    /// All of them.
    pub max_us: u64,
}

/// How many jobs left how late, by quarters of an octave, less one microsecond.
pub type Lates = BTreeMap<u32, u64>;

impl Lateness {
    /// Read the counters `late:<k>`.
    fn of(stats: &BTreeMap<String, u64>) -> Option<Self> {
        Self::of_counts(
            &stats.iter().filter_map(|(name, n)| Some((name.strip_prefix("late:")?.parse().ok()?, *n))).collect(),
        )
    }

    /// How late the jobs were that left between two counts.
    pub fn between(before: &Lates, after: &Lates) -> Option<Self> {
        let since = |(k, n): (&u32, &u64)| (*k, n.saturating_sub(before.get(k).copied().unwrap_or(0)));
        Self::of_counts(&after.iter().map(since).collect())
    }

    fn of_counts(counts: &Lates) -> Option<Self> {
        let total: u64 = counts.values().sum();
        let at = |part: f64| {
            let mut left = (total as f64 * part).ceil() as u64;
            counts.iter().find_map(|(k, n)| {
                left = left.saturating_sub(*n);
                (left == 0).then(|| 2_f64.powf(f64::from(k + 1) / 4.0) as u64)
            })
        };
        if total == 0 {
            return None;
        }
        Some(Self { p50_us: at(0.5)?, p99_us: at(0.99)?, max_us: at(1.0)? })
    }
}

/// The figures of one partition.
struct Part {
    stats: BTreeMap<String, u64>,
    spreading: bool,
    /// Sizes: scheduled, those that wait for a share or for workers, full, paused, retrying, delayed, rejected, dead.
    sizes: [u64; 8],
}

impl Part {
    fn add(mut self, other: Self) -> Self {
        for (name, n) in other.stats {
            *self.stats.entry(name).or_default() += n;
        }
        self.sizes.iter_mut().zip(other.sizes).for_each(|(size, more)| *size += more);
        self.spreading |= other.spreading;
        self
    }
}

impl Partitions {
    /// How things stand.
    pub async fn status(&mut self, record: &Record) -> Result<Status, StoreError> {
        let mut one = self.with_none_skipped();
        let status = one.read_status(record).await;
        self.add_skipped(&one);
        match status {
            // Redis does not say which key it was.
            Err(why) if why.code() == Some("WRONGTYPE") => Err(self.check_types().await.err().unwrap_or(why)),
            other => other,
        }
    }

    async fn read_status(&mut self, record: &Record) -> Result<Status, StoreError> {
        let parts = self.all(async |mut store: Store| store.part().await).await?;
        let Part { stats, spreading, sizes } = parts.into_iter().reduce(Part::add).expect("one at least");
        let [scheduled, waiting, full, paused, retrying, delayed, rejected, dead] = sizes;
        let routes = self.routes().await?;
        let held = routes.iter().map(|route| route.held).sum();
        let mut one = self.any();
        let same = one.has_record(record).await?;
        Ok(Status {
            redis: self.redacted().to_owned(),
            version: one.version().await?,
            warnings: self.lacks().await?,
            refuses_writes: self.refuses_writes().await?.as_ref().map(WritesRefused::of),
            partitions: Some(self.layout().partitioning().partitions).filter(|n| *n > 1),
            top: self.status_top().await?,
            away: self.is_cluster().then(|| self.away()),
            record_source: one.record_source().await?,
            daemons: one.daemons().await?,
            has_record: same.is_some(),
            same_record: same == Some(true),
            scheduled,
            sharing: waiting.saturating_sub(held),
            held,
            full,
            paused,
            retrying,
            delayed,
            spreading,
            routes,
            rejected,
            dead,
            lateness: Lateness::of(&stats),
            counters: stats.into_iter().filter(|(name, _)| !name.starts_with("late:")).collect(),
        })
    }

    /// The partitions that calls on all of them skipped.
    pub(super) fn away(&self) -> Vec<AwayPartition> {
        let one = |(partition, why): (u8, StoreError)| match why {
            StoreError::Away { node, why, .. } => AwayPartition { partition, node, why },
            why => {
                let node = self.at(partition).redacted().to_owned();
                AwayPartition { partition, node, why: why.in_words(Role::Observer) }
            }
        };
        self.skipped().into_iter().map(one).collect()
    }

    /// The buckets that come first.
    async fn status_top(&mut self) -> Result<Option<StatusTop>, StoreError> {
        let Some(ranked) = self.ranked(&[By::Depth, By::Rejected], BUCKETS_SHOWN).await? else { return Ok(None) };
        let mut orders = ranked.orders.into_iter();
        let mut next = || orders.next().unwrap_or_default();
        Ok(Some(StatusTop {
            as_of_us: ranked.as_of_us,
            age_ms: ranked.age_us / 1_000,
            took_ms: ranked.took_us / 1_000,
            buckets: ranked.buckets,
            fullest: next(),
            rejecting: next(),
        }))
    }
}

/// A figure as the functions keep it for those who look. What is no number counts as none, and keeps nobody from the rest.
fn figure(stored: Option<&[u8]>) -> u64 {
    stored.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(0)
}

impl Store {
    /// Why the server takes no writes now, in words; `None`: it does, or the user may not ask.
    ///
    /// # Errors
    ///
    /// The server cannot be asked.
    pub async fn writes_refused(&mut self) -> Result<Option<WritesRefused>, StoreError> {
        Ok(self.refuses_writes().await?.as_ref().map(WritesRefused::of))
    }

    /// How things stand in one partition.
    async fn part(&mut self) -> Result<Part, StoreError> {
        let keys = self.keys().clone();
        let before: Option<String> = self.read("HGET", redis::cmd("HGET").arg(keys.policy()).arg("prev_id")).await?;
        let stats = self.read("HGETALL", redis::cmd("HGETALL").arg(keys.stats())).await?;
        let delayed: Option<Vec<u8>> = self.read("GET", redis::cmd("GET").arg(keys.delays())).await?;
        let sizes = [
            self.read("ZCARD", redis::cmd("ZCARD").arg(keys.schedule())).await?,
            self.read("HLEN", redis::cmd("HLEN").arg(keys.waiting())).await?,
            self.read("ZCARD", redis::cmd("ZCARD").arg(keys.full())).await?,
            self.read("ZCARD", redis::cmd("ZCARD").arg(keys.paused())).await?,
            self.read("ZCARD", redis::cmd("ZCARD").arg(keys.retries())).await?,
            figure(delayed.as_deref()),
            self.read("XLEN", redis::cmd("XLEN").arg(keys.rejected())).await?,
            self.read("XLEN", redis::cmd("XLEN").arg(keys.dead())).await?,
        ];
        Ok(Part { stats, spreading: before.is_some(), sizes })
    }

    /// Where the record in force comes from, where that is stored beside it.
    async fn record_source(&mut self) -> Result<Option<RecordSource>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys().policy()).arg("source").to_owned();
        let json: Option<Vec<u8>> = self.read("HGET", &command).await?;
        let source: Option<Source> = json.and_then(|json| serde_json::from_slice(&json).ok());
        Ok(source.map(|Source { host, path, .. }| RecordSource { host, path }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_read_from_quarters_of_an_octave() {
        let stats = [("late:0", 50), ("late:28", 49), ("late:40", 1), ("dispatched", 100)];
        let stats = stats.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        assert_eq!(Lateness::of(&stats), Some(Lateness { p50_us: 1, p99_us: 152, max_us: 1_217 }));
        assert_eq!(Lateness::of(&BTreeMap::new()), None);
    }

    #[test]
    fn of_the_jobs_between_two_counts_only_those_are_told() {
        let before = Lates::from([(0, 50), (40, 1)]);
        let after = Lates::from([(0, 50), (28, 3), (40, 1)]);
        assert_eq!(Lateness::between(&before, &after), Some(Lateness { p50_us: 152, p99_us: 152, max_us: 152 }));
        assert_eq!(Lateness::between(&after, &after), None, "none left");
    }
}
