//! What the functions know of a bucket that waits, and what they forecast of a change: decoded, and nothing added.

use std::time::Duration;

use redis::FromRedisValue;
use serde::Deserialize;

use super::change::{Change, Stands};
use super::reply::unexpected;
use super::{Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::duration::{show, show_per_period};
use crate::words::limiter::Limiter;
use crate::words::source::Source;

/// Everything that says why a bucket waits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Facts {
    /// The server's time, microseconds since the epoch.
    #[serde(skip)]
    pub now_us: u64,
    /// Where it waits.
    pub place: Place,
    /// What it waits for, where that is something of the tree.
    #[serde(default)]
    pub waits_for: WaitsFor,
    /// Jobs in its queue that count.
    pub depth: u64,
    /// Jobs above its level, to be rejected when it is looked at next.
    pub over: u64,
    /// How many it may keep because its capacity was lowered under it; `None`: its capacity.
    pub keeps: Option<u64>,
    /// From the bucket to the root of its chain.
    pub levels: Vec<Level>,
    /// Its failed jobs.
    pub retries: Retries,
    /// Where its jobs go.
    pub route: Ready,
    /// Who takes them, those with most leases first; at most a hundred.
    #[serde(skip)]
    pub workers: Vec<Worker>,
    /// The limiters before `drip_push`.
    #[serde(default)]
    pub gates: Vec<Gate>,
    /// Why they cannot be asked.
    pub bad_gate: Option<String>,
    /// Keys of it that hold something else than they should.
    #[serde(default)]
    pub wrong: Vec<Wrong>,
    /// How many daemons are alive.
    pub daemons: u64,
    /// Whether a record is stored.
    pub has_record: bool,
    /// Whether a change still spreads.
    pub spreading: bool,
    /// Where the record comes from; `None`: nobody knows.
    #[serde(skip)]
    pub source: Option<Source>,
}

/// Where a bucket waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the schedule, for its due.
    Due,
    /// It has no work, and its due is still to come.
    Rest,
    /// For whoever paused it.
    Paused,
    /// For a slot of its own, or for a failed job that must finish first.
    Full,
    /// For its share of a budget.
    Share,
    /// For a budget that cannot be found.
    Refused,
    /// For its route.
    Held,
    /// Nothing of it is stored, or only jobs that nobody has looked at.
    None,
}

/// What a bucket waits for that stands in a place of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WaitsFor {
    /// How many of its jobs are in flight.
    pub in_flight: u64,
    /// How many may be.
    pub concurrency: u64,
    /// The budget of which it waits for a share.
    pub budget: Option<String>,
    /// Why its budgets cannot be found.
    pub why: Option<String>,
}

/// One level of a chain: today the bucket itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Level {
    /// `bucket`
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Until its next job may leave; `None`: nothing was stored, so at once.
    pub due_us: Option<u64>,
    /// For how long it has been due.
    pub late_ms: Option<u64>,
    /// The place of its entry in the record, from 1 on; `None`: none matches.
    pub entry: Option<usize>,
    /// The glob of that entry.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// The name or glob that pauses it.
    pub paused: Option<String>,
    /// The name or glob that closes it.
    pub closed: Option<String>,
    /// What operators have set.
    #[serde(default)]
    pub set: Vec<SetKey>,
    /// For how long it is slowed down.
    #[serde(default)]
    pub slow_us: u64,
    /// Its quotas.
    #[serde(default)]
    pub quotas: Vec<QuotaUsed>,
    /// What applies.
    pub policy: Applies,
}

/// A quota, and how much of its window was used.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QuotaUsed {
    count: u32,
    period_us: u64,
    /// So many have left in the window.
    pub used: u64,
    /// Until the window ends.
    pub ends_us: u64,
}

impl QuotaUsed {
    /// Whether no more have room in the window.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.used >= u64::from(self.count)
    }

    /// As people write it.
    #[must_use]
    pub fn shown(&self) -> String {
        show_per_period(self.count, Duration::from_micros(self.period_us))
    }
}

/// A key that operators have set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SetKey {
    /// The key; `pause` and `close` too.
    pub key: String,
    /// The name or glob for which it is set.
    #[serde(rename = "match")]
    pub pattern: String,
    /// By whom, since and until when, why.
    #[serde(flatten)]
    pub stands: Stands,
}

/// A policy, as a record stores it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Applies {
    count: u32,
    period_us: u64,
    /// 0 while it is closed.
    pub capacity: u64,
    lease_ms: u64,
    attempts: u64,
    backoff_initial_us: u64,
    backoff_max_us: u64,
    overflow: String,
    /// Where jobs go.
    pub route: String,
    catch_up_us: u64,
    #[serde(default)]
    admit: Vec<Admit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Admit {
    limiter: String,
    args: Vec<String>,
}

/// Failed jobs that wait for another try.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Retries {
    /// How many.
    pub waiting: u64,
    /// How many of them have waited out their back-off.
    pub ended: u64,
    /// Until the first of them has.
    pub next_us: Option<u64>,
}

/// A route's stream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ready {
    /// The route.
    pub name: String,
    /// Jobs that no worker has taken yet.
    pub ready: u64,
    /// How many of those hold its buckets.
    pub max_ready: u64,
    /// Jobs that workers hold.
    pub pending: u64,
    /// How many workers there are.
    pub workers: u64,
    /// How long ago the one of `ready` left that has waited longest.
    pub oldest_ms: Option<u64>,
}

/// A worker of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name; of one that is no UTF-8 as much as can be shown.
    pub name: String,
    /// Jobs that it holds.
    pub leases: u64,
    /// How long ago it was last heard of.
    pub idle_ms: u64,
}

/// How things stand at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Gate {
    /// Which recipe.
    pub limiter: String,
    /// The limit, the capacity, or the burst and one.
    pub limit: u64,
    /// How many it would let in now.
    pub remaining: u64,
    /// Until it lets one in; 0: now.
    pub wait_ms: u64,
}

/// A key that holds something else than it should.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Wrong {
    /// The key.
    pub key: String,
    /// What it holds.
    #[serde(rename = "type")]
    pub holds: String,
    /// What it should hold.
    pub wanted: String,
}

impl Facts {
    /// Read what the function replied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Reply`], with what is wrong with it.
    pub fn read(reply: redis::Value) -> Result<Self, StoreError> {
        let refuse = |why: String| StoreError::Reply { call: "drip__explain", reply: why };
        let (now, json, source, workers) =
            redis::from_redis_value::<ExplainReply>(reply).map_err(|why| refuse(why.to_string()))?;
        let facts: Self = serde_json::from_slice(&json).map_err(|why| refuse(why.to_string()))?;
        let (workers, []) = workers.as_chunks::<3>() else { return Err(refuse(format!("{workers:?}"))) };
        let number = |value: &redis::Value| u64::from_redis_value_ref(value).map_err(|why| refuse(why.to_string()));
        let worker = |[name, leases, idle_ms]: &[redis::Value; 3]| {
            let name = Vec::<u8>::from_redis_value_ref(name).map_err(|why| refuse(why.to_string()))?;
            let name = String::from_utf8_lossy(&name).into_owned();
            Ok(Worker { name, leases: number(leases)?, idle_ms: number(idle_ms)? })
        };
        Ok(Self {
            now_us: now.parse().map_err(|_| refuse(now))?,
            source: serde_json::from_slice(&source).ok(), // empty, or a newer one's: then nobody knows
            workers: workers.iter().map(worker).collect::<Result<_, _>>()?,
            ..facts
        })
    }
}

impl Applies {
    /// Each key of a policy with its value as people write it, in the order of the documents.
    #[must_use]
    pub fn values(&self) -> [(&'static str, String); 9] {
        let (us, ms) = (|us| show(Duration::from_micros(us)), |ms| show(Duration::from_millis(ms)));
        let gates: Vec<_> = self.admit.iter().map(Admit::shown).collect();
        [
            ("rate", show_per_period(self.count, Duration::from_micros(self.period_us))),
            ("capacity", self.capacity.to_string()),
            ("lease", ms(self.lease_ms)),
            ("attempts", self.attempts.to_string()),
            ("backoff", format!("{} to {}", us(self.backoff_initial_us), us(self.backoff_max_us))),
            ("overflow", self.overflow.clone()),
            ("route", self.route.clone()),
            ("catch_up", us(self.catch_up_us)),
            ("admit", if gates.is_empty() { "none".to_owned() } else { gates.join(", ") }),
        ]
    }

    /// Whether a full bucket drops its oldest jobs.
    #[must_use]
    pub fn drops_oldest(&self) -> bool {
        self.overflow == "drop-oldest"
    }
}

impl Admit {
    fn shown(&self) -> String {
        // What a newer record names is shown as it is stored.
        Limiter::stored(&self.limiter, &self.args)
            .map_or_else(|_| format!("{} {}", self.limiter, self.args.join(" ")), |limiter| limiter.to_string())
    }
}

/// What becomes of the jobs of a bucket if nothing but time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Forecast {
    /// Jobs in its queue.
    pub jobs: u64,
    /// Until the last of them leaves; `None`: there is none.
    pub last_leaves_in_us: Option<u64>,
    /// Until no retry waits any more either; `None`: nothing waits.
    pub empty_in_us: Option<u64>,
}

/// What a push would come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Verdict {
    /// How many of the jobs would go in.
    pub accepted: u64,
    /// How many waiting jobs would be dropped for them.
    pub dropped: u64,
    /// Jobs that would wait then.
    pub depth: u64,
    /// How many may.
    pub capacity: u64,
    /// Until one more would go in; `None`: all go in.
    pub retry_after_ms: Option<u64>,
    /// Until the last one that goes in may leave; `None`: none goes in.
    pub eta_ms: Option<u64>,
}

/// What a change or a push would do to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIf {
    /// Of the push; `None`: nothing is pushed.
    pub verdict: Option<Verdict>,
    /// As things stand.
    pub now: Forecast,
    /// With the change and the push.
    pub then: Forecast,
    /// Why it is only a lower bound, a word each; none: it is exact.
    pub because: Vec<String>,
}

/// What `drip__explain` replies: the time, the facts, the source, and three values a worker.
type ExplainReply = (String, Vec<u8>, Vec<u8>, Vec<redis::Value>);

/// What `drip__what_if` replies: the verdict, the dropped, two forecasts, why it is not exact.
type WhatIfReply = (Vec<i64>, u64, (u64, i64, i64), (u64, i64, i64), Vec<String>);

impl Store {
    /// Why a bucket waits.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn explain(&mut self, bucket: &BucketName) -> Result<Facts, StoreError> {
        Facts::read(self.function("drip__explain", &[self.keys().queue(bucket)], &[b""]).await?)
    }

    /// What a change, as `set` would make it, and a push of so many jobs would do to a bucket. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` when its queue is none.
    pub async fn what_if(&mut self, bucket: &BucketName, change: &Change, jobs: u64) -> Result<WhatIf, StoreError> {
        let (json, jobs) = (serde_json::to_string(change).expect("a change is text and numbers"), jobs.to_string());
        let args = [b"".as_slice(), json.as_bytes(), jobs.as_bytes()];
        let reply = self.function("drip__what_if", &[self.keys().queue(bucket)], &args).await?;
        what_if(&reply).ok_or_else(|| unexpected("drip__what_if", &reply))
    }
}

fn what_if(reply: &redis::Value) -> Option<WhatIf> {
    let (verdict, dropped, now, then, because) = WhatIfReply::from_redis_value_ref(reply).ok()?;
    let some = |n: i64| u64::try_from(n).ok();
    let forecast = |(jobs, last, empty): (u64, i64, i64)| Forecast {
        jobs,
        last_leaves_in_us: some(last),
        empty_in_us: some(empty),
    };
    let verdict = match verdict[..] {
        [] => None,
        [accepted, depth, capacity, retry_after, eta] => Some(Verdict {
            accepted: some(accepted)?,
            dropped,
            depth: some(depth)?,
            capacity: some(capacity)?,
            retry_after_ms: some(retry_after),
            eta_ms: some(eta),
        }),
        _ => return None,
    };
    Some(WhatIf { verdict, now: forecast(now), then: forecast(then), because })
}
