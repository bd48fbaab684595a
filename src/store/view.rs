//! Calls that only read.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{FromRedisValue, RedisResult, Value};
use serde::Serialize;

use super::keys::GROUP;
use super::library::is_missing_function;
use super::reply::{self, unexpected};
use super::{Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::policy::{Record, Route};

/// How things stand under one prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Where Redis is.
    pub redis: String,
    /// Its version.
    pub version: String,
    /// What it lacks: each a sentence with the way out.
    pub warnings: Vec<String>,
    /// Buckets that are not idle, those held aside.
    pub scheduled: u64,
    /// Buckets whose jobs wait for another try.
    pub retrying: u64,
    /// Whether a policy record is stored.
    pub has_record: bool,
    /// Whether it is the one of the configuration at hand.
    pub same_record: bool,
    /// Whether a change of policy still spreads.
    pub spreading: bool,
    /// The daemons that are alive; with none nothing leaves a bucket.
    pub daemons: Vec<DaemonStatus>,
    /// The ready streams.
    pub routes: Vec<RouteStatus>,
    /// Entries of the rejected stream.
    pub rejected: u64,
    /// Entries of the dead stream.
    pub dead: u64,
    /// Jobs counted since the keys were made, by what became of them.
    pub counters: BTreeMap<String, u64>,
    /// How late jobs left, since the keys were made; to within a fifth. `None` before the first.
    pub lateness: Option<Lateness>,
}

/// A daemon that is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DaemonStatus {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it was started, seconds since the epoch.
    pub since: u64,
    /// Whether the record in force is that of its configuration.
    pub has_record: bool,
    /// How long ago it last said so, in milliseconds.
    pub age_ms: u64,
}

/// A ready stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RouteStatus {
    /// Its name.
    pub route: String,
    /// Jobs that no worker has taken yet.
    pub undelivered: u64,
    /// Jobs that workers hold.
    pub pending: u64,
    /// Buckets held because it is full.
    pub held: u64,
}

/// How late jobs left their buckets, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Half of them were at most this late.
    pub p50_us: u64,
    /// All but one in a hundred.
    pub p99_us: u64,
    /// All of them.
    pub max_us: u64,
}

/// How things stand with one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketStatus {
    /// Its name.
    pub bucket: String,
    /// Jobs that wait.
    pub depth: u64,
    /// How many may.
    pub capacity: u64,
    /// Until the next job may leave; `None`: nothing is scheduled.
    pub due_in_us: Option<u64>,
    /// Whether it waits for its route.
    pub held: bool,
    /// Failed jobs that wait for another try.
    pub retries: u64,
    /// Jobs in a period.
    pub count: u64,
    /// The length of a period.
    pub period_us: u64,
    /// How long a worker may hold a job.
    pub lease_ms: u64,
    /// How often a job is tried.
    pub attempts: u64,
    /// What happens when it is full.
    pub overflow: String,
    /// Where its jobs go.
    pub route: String,
    /// The limiters before the doors that run code.
    pub gates: Vec<GateStatus>,
}

/// How things stand at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateStatus {
    /// Which recipe.
    pub limiter: String,
    /// The limit, the capacity, or the burst and one.
    pub limit: u64,
    /// How many it would let in now.
    pub remaining: u64,
    /// Until it lets one in; 0: now.
    pub wait_ms: u64,
}

/// What `drip__look` replies, in its order.
type LookReply = (u64, u64, i64, u64, u64, u64, u64, u64, u64, String, String, Vec<(String, u64, u64, u64)>);

impl Lateness {
    /// Read the counters `late:<k>`: k counts the quarters of an octave, less one microsecond.
    fn of(stats: &BTreeMap<String, u64>) -> Option<Self> {
        let mut counts: Vec<(u32, u64)> =
            stats.iter().filter_map(|(name, n)| Some((name.strip_prefix("late:")?.parse().ok()?, *n))).collect();
        counts.sort_unstable();
        let total: u64 = counts.iter().map(|(_, n)| n).sum();
        let at = |part: f64| {
            let mut left = (total as f64 * part).ceil() as u64;
            counts.iter().find_map(|(k, n)| {
                left = left.saturating_sub(*n);
                (left == 0).then(|| 2_f64.powf(f64::from(k + 1) / 4.0) as u64)
            })
        };
        Some(Self { p50_us: at(0.5)?, p99_us: at(0.99)?, max_us: at(1.0)? })
    }
}

/// How things stand with a queue that a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Whether its bucket is scheduled, or paused.
    pub scheduled: bool,
    /// How many jobs wait; `None` where it is no list.
    pub length: Option<u64>,
}

/// A page of a scan over the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Where the scan goes on; `None` when it is over.
    pub next: Option<u64>,
    /// The keys of the queues found.
    pub queues: Vec<Vec<u8>>,
}

/// In how many places a bucket with work waits that no scan needs to look at: the schedule, and the paused ones.
const PLACES: usize = 2;

/// Of so many queues, whether the bucket of each stands in one of the places asked for (see `ask_places`).
fn stands(replies: &[RedisResult<Value>], queues: usize) -> Vec<bool> {
    let mut stands = vec![false; queues];
    for reply in replies.iter().take(PLACES) {
        let Ok(Value::Array(dues)) = reply else { continue };
        for (stands, due) in stands.iter_mut().zip(dues) {
            *stands |= *due != Value::Nil;
        }
    }
    stands
}

impl Store {
    /// A page of a scan over every key, of which those of queues are replied.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn scan_queues(&mut self, cursor: u64) -> Result<Scanned, StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(self.keys().queue_pattern()).arg("COUNT").arg(1_000);
        let reply = self.call("SCAN", &command).await?;
        let (next, queues): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|why| StoreError::Reply { call: "SCAN", reply: why.to_string() })?;
        Ok(Scanned { next: (next != 0).then_some(next), queues })
    }

    /// A number that has grown when something may happen earlier than the daemons know; for those that are not told.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn wakes(&mut self) -> Result<u64, StoreError> {
        let wakes: Option<u64> = self.read("GET", redis::cmd("GET").arg(self.keys().wake())).await?;
        Ok(wakes.unwrap_or(0))
    }

    /// Those of some queues whose buckets neither wait for their due nor are paused. One round trip, none when there are no queues.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn unscheduled(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        if queues.is_empty() {
            return Ok(queues);
        }
        let mut pipeline = redis::pipe();
        self.ask_places(&mut pipeline, &queues);
        let replies: Vec<RedisResult<Value>> = pipeline
            .ignore_errors()
            .query_async(&mut self.connection)
            .await
            .map_err(|why| StoreError::of_call(self.address.shown(), "ZMSCORE", &why))?;
        let stands = stands(&replies, queues.len());
        Ok(queues.into_iter().zip(stands).filter(|(_, stands)| !stands).map(|(queue, _)| queue).collect())
    }

    /// Ask where the buckets of some queues stand: the first [`PLACES`] commands of a pipeline.
    fn ask_places(&self, pipeline: &mut redis::Pipeline, queues: &[Vec<u8>]) {
        for place in [self.keys().schedule(), self.keys().paused()] {
            let mut command = redis::cmd("ZMSCORE");
            command.arg(place);
            for queue in queues {
                command.arg(queue.strip_prefix(self.keys().queues().as_bytes()).unwrap_or_default());
            }
            pipeline.add_command(command);
        }
    }

    /// How things stand with some queues, in their order. One round trip, and none when there are no queues.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn standing(&mut self, queues: &[Vec<u8>]) -> Result<Vec<Standing>, StoreError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        self.ask_places(&mut pipeline, queues);
        for queue in queues {
            pipeline.cmd("LLEN").arg(queue);
        }
        let replies: Vec<RedisResult<Value>> = pipeline
            .ignore_errors() // of a queue that is no list
            .query_async(&mut self.connection)
            .await
            .map_err(|why| StoreError::of_call(self.address.shown(), "LLEN", &why))?;
        let (places, lengths) = replies.split_at_checked(PLACES).ok_or_else(|| unexpected("LLEN", &Value::Nil))?;
        let standing = stands(places, queues.len()).into_iter().zip(lengths).map(|(scheduled, length)| Standing {
            scheduled,
            length: length.as_ref().ok().and_then(|n| u64::from_redis_value_ref(n).ok()),
        });
        Ok(standing.collect())
    }

    /// The bucket whose queue a key is; `None` when its name is none.
    #[must_use]
    pub fn bucket_of(&self, key: &[u8]) -> Option<Arc<str>> {
        let name = key.strip_prefix(self.keys().queues().as_bytes())?;
        BucketName::parse(name).ok().map(|name| name.as_str().into())
    }

    /// Whether the record in force is `record`; `None` when none is stored.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn has_record(&mut self, record: &Record) -> Result<Option<bool>, StoreError> {
        let reply = self.call("HGET", redis::cmd("HGET").arg(self.keys().policy()).arg("record")).await?;
        match reply {
            Value::Nil => Ok(None),
            Value::BulkString(json) => Ok(Some(json == record.to_json().as_bytes())),
            other => Err(unexpected("HGET", &other)),
        }
    }

    /// How things stand.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn status(&mut self, record: &Record) -> Result<Status, StoreError> {
        match self.read_status(record).await {
            // Redis does not say which key it was.
            Err(why) if why.code() == Some("WRONGTYPE") => Err(self.check_types().await.err().unwrap_or(why)),
            other => other,
        }
    }

    async fn read_status(&mut self, record: &Record) -> Result<Status, StoreError> {
        let keys = self.keys().clone();
        let held: Option<String> = self.read("HGET", redis::cmd("HGET").arg(keys.policy()).arg("prev_id")).await?;
        let stats: BTreeMap<String, u64> = self.read("HGETALL", redis::cmd("HGETALL").arg(keys.stats())).await?;
        let same = self.has_record(record).await?;
        let mut routes = Vec::new();
        let mut names: Vec<String> = self.read("SMEMBERS", redis::cmd("SMEMBERS").arg(keys.routes())).await?;
        names.sort();
        for name in names {
            if let Ok(route) = Route::parse(&name) {
                routes.push(self.route_status(&route).await?);
            }
        }
        Ok(Status {
            redis: self.address().shown().to_owned(),
            version: self.version().await?,
            warnings: self.lacks().await?,
            scheduled: self.read("ZCARD", redis::cmd("ZCARD").arg(keys.schedule())).await?,
            retrying: self.read("ZCARD", redis::cmd("ZCARD").arg(keys.retries())).await?,
            has_record: same.is_some(),
            same_record: same == Some(true),
            spreading: held.is_some(),
            daemons: self.daemons().await?,
            routes,
            rejected: self.read("XLEN", redis::cmd("XLEN").arg(keys.rejected())).await?,
            dead: self.read("XLEN", redis::cmd("XLEN").arg(keys.dead())).await?,
            lateness: Lateness::of(&stats),
            counters: stats.into_iter().filter(|(name, _)| !name.starts_with("late:")).collect(),
        })
    }

    /// The daemons that are alive, by host and process. A library that does not know them yet counts as none: it is an older
    /// one, and the first daemon of this version replaces it.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn daemons(&mut self) -> Result<Vec<DaemonStatus>, StoreError> {
        let mut command = redis::cmd("FCALL_RO");
        command.arg("drip__daemons").arg(1).arg(self.keys().daemons()).arg("");
        let reply = match self.call("drip__daemons", &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => return Ok(Vec::new()),
            other => other?,
        };
        let mut daemons = reply::daemons("drip__daemons", &reply)?;
        daemons.sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
        Ok(daemons)
    }

    async fn route_status(&mut self, route: &Route) -> Result<RouteStatus, StoreError> {
        let stream = self.keys().ready(route);
        let length: u64 = self.read("XLEN", redis::cmd("XLEN").arg(&stream)).await?;
        let held = self.keys().held(route.as_str());
        let held: u64 = self.read("ZCARD", redis::cmd("ZCARD").arg(held)).await?;
        let pending = match self.call("XPENDING", redis::cmd("XPENDING").arg(&stream).arg(GROUP)).await {
            Ok(Value::Array(summary)) => summary.first().and_then(|n| u64::from_redis_value_ref(n).ok()).unwrap_or(0),
            Ok(_) | Err(StoreError::Refused { .. }) => 0,
            Err(why) => return Err(why),
        };
        let route = route.as_str().to_owned();
        Ok(RouteStatus { route, undelivered: length.saturating_sub(pending), pending, held })
    }

    /// How things stand with one bucket.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn bucket_status(&mut self, bucket: &BucketName) -> Result<BucketStatus, StoreError> {
        let reply = self.function("drip__look", &[self.keys().queue(bucket)], &[b""]).await?;
        let (depth, capacity, due, held, retries, count, period_us, lease_ms, attempts, overflow, route, gates) =
            redis::from_redis_value::<LookReply>(reply)
                .map_err(|why| StoreError::Reply { call: "drip__look", reply: why.to_string() })?;
        let (bucket, due_in_us) = (bucket.to_string(), u64::try_from(due).ok());
        let held = held == 1;
        let gate = |(limiter, limit, remaining, wait_ms)| GateStatus { limiter, limit, remaining, wait_ms };
        let gates = gates.into_iter().map(gate).collect();
        Ok(BucketStatus {
            bucket,
            depth,
            capacity,
            due_in_us,
            held,
            retries,
            count,
            period_us,
            lease_ms,
            attempts,
            overflow,
            route,
            gates,
        })
    }

    /// How many jobs wait in each of some buckets, by the length of their queues.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn depths(&mut self, buckets: &[BucketName]) -> Result<Vec<u64>, StoreError> {
        let mut pipeline = redis::pipe();
        for bucket in buckets {
            pipeline.cmd("LLEN").arg(self.keys().queue(bucket));
        }
        let reply = pipeline.query_async(&mut self.connection).await;
        reply.map_err(|why| StoreError::of_call(self.address.shown(), "LLEN", &why))
    }

    /// How many jobs of each bucket the rejected stream tells of: an entry is one job, or says for how many it stands.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn rejected(&mut self) -> Result<BTreeMap<String, u64>, StoreError> {
        type Entries = Vec<(String, BTreeMap<String, Vec<u8>>)>;
        let key = self.keys().rejected();
        let entries: Entries = self.read("XRANGE", redis::cmd("XRANGE").arg(key).arg("-").arg("+")).await?;
        let mut counts = BTreeMap::new();
        for (_, fields) in entries {
            let Some(bucket) = fields.get("bucket") else { continue };
            let count = fields.get("count").and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
            *counts.entry(String::from_utf8_lossy(bucket).into_owned()).or_default() += count.unwrap_or(1);
        }
        Ok(counts)
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
}
