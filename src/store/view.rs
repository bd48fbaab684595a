//! Calls that only read.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{FromRedisValue, RedisResult, Value};
use serde::Serialize;

use super::reply::unexpected;
use super::{Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::policy::Record;

/// How things stand with one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
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
    /// Jobs that wait for their time.
    pub delayed: u64,
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
    /// The name or glob that pauses it.
    pub paused_by: Option<String>,
    /// When that ends by itself, microseconds since the epoch on the server's clock.
    pub paused_until_us: Option<u64>,
    /// The name or glob that closes it: it accepts nothing.
    pub closed_by: Option<String>,
    /// When that ends by itself, likewise.
    pub closed_until_us: Option<u64>,
    /// Why nothing may leave it: its budgets cannot be found.
    pub refused: Option<String>,
    /// The limiters before the doors that run code.
    pub gates: Vec<GateStatus>,
}

/// How things stand at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
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
type LookReply = (u64, u64, i64, u64, u64, u64, u64, u64, u64, String, String, LookMore);

/// Its last part: the gates, what pauses the bucket and until when, what closes it and until when, why nothing may leave it, and its delayed jobs.
type LookMore = (Vec<(String, u64, u64, u64)>, String, String, String, String, String, u64);

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

/// Of so many queues, whether the bucket of each stands in one of the places asked for.
fn stands<E>(replies: &[Result<Value, E>], queues: usize) -> Vec<bool> {
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
    /// A page of a scan over every key, of which those that match a pattern are replied.
    pub(super) async fn scan_queues(&mut self, cursor: u64, pattern: &str) -> Result<Scanned, StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
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

    /// Those of some queues whose buckets neither wait for their due nor are paused. At most two commands, none when there are no queues.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn unscheduled(&mut self, mut queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        for place in [self.keys().schedule(), self.keys().paused()] {
            if queues.is_empty() {
                break;
            }
            let asked = self.call("ZMSCORE", &self.ask_place(place, &queues)).await;
            if let Err(why) = &asked
                && why.code().is_none()
            {
                return asked.map(|_| queues); // a key of the wrong type is no reason not to look
            }
            let stands = stands(&[asked], queues.len());
            queues = queues.into_iter().zip(stands).filter(|(_, stands)| !stands).map(|(queue, _)| queue).collect();
        }
        Ok(queues)
    }

    /// Those of some buckets that neither wait for their due nor are paused.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn without_turn(&mut self, buckets: &[Arc<str>]) -> Result<Vec<Arc<str>>, StoreError> {
        let queues = buckets.iter().map(|name| format!("{}{name}", self.keys().queues()).into_bytes()).collect();
        let unscheduled = self.unscheduled(queues).await?;
        Ok(unscheduled.iter().filter_map(|key| self.bucket_of(key)).collect())
    }

    /// How many jobs wait in some buckets, in their order.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn lengths(&mut self, buckets: &[Arc<str>]) -> Result<Vec<u64>, StoreError> {
        if buckets.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for name in buckets {
            pipeline.cmd("LLEN").arg(format!("{}{name}", self.keys().queues()));
        }
        self.call_all("LLEN", &pipeline).await
    }

    /// Ask which of the buckets of some queues stand in a place.
    fn ask_place(&self, place: String, queues: &[Vec<u8>]) -> redis::Cmd {
        let mut command = redis::cmd("ZMSCORE");
        command.arg(place);
        for queue in queues {
            command.arg(queue.strip_prefix(self.keys().queues().as_bytes()).unwrap_or_default());
        }
        command
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
        for place in [self.keys().schedule(), self.keys().paused()] {
            pipeline.add_command(self.ask_place(place, queues));
        }
        for queue in queues {
            pipeline.cmd("LLEN").arg(queue);
        }
        pipeline.ignore_errors(); // of a queue that is no list
        let replies: Vec<RedisResult<Value>> = self.call_all("LLEN", &pipeline).await?;
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

    /// How things stand with one bucket.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn bucket_status(&mut self, bucket: &BucketName) -> Result<BucketStatus, StoreError> {
        let reply = self.reading("drip__look", &[self.keys().queue(bucket)], &[b""]).await?;
        let (depth, capacity, due, held, retries, count, period_us, lease_ms, attempts, overflow, route, more) =
            redis::from_redis_value::<LookReply>(reply)
                .map_err(|why| StoreError::Reply { call: "drip__look", reply: why.to_string() })?;
        let (bucket, due_in_us) = (bucket.to_string(), u64::try_from(due).ok());
        let held = held == 1;
        let gate = |(limiter, limit, remaining, wait_ms)| GateStatus { limiter, limit, remaining, wait_ms };
        let (gates, paused_by, paused_until, closed_by, closed_until, refused, delayed) = more;
        let some = |text: String| (!text.is_empty()).then_some(text);
        let (paused_by, closed_by, refused) = (some(paused_by), some(closed_by), some(refused));
        let (paused_until_us, closed_until_us) = (paused_until.parse().ok(), closed_until.parse().ok());
        let gates = gates.into_iter().map(gate).collect();
        Ok(BucketStatus {
            bucket,
            depth,
            capacity,
            due_in_us,
            held,
            retries,
            delayed,
            count,
            period_us,
            lease_ms,
            attempts,
            overflow,
            route,
            paused_by,
            paused_until_us,
            closed_by,
            closed_until_us,
            refused,
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
        self.call_all("LLEN", &pipeline).await
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
