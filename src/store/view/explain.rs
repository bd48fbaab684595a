//! Facts about a bucket that waits, or a budget, as the functions reply them.

use std::time::Duration;

use redis::FromRedisValue;
use serde::{Deserialize, de::DeserializeOwned};

use super::level_limits::{Credit, Paid, QuotaUsed, ToldLimit};
use super::routes::Ready;
use super::status::WritesRefused;
use crate::model::duration::{show, show_per_period};
use crate::model::{bucket::BucketName, limiter::Limiter, source::Source};
use crate::store::client::Store;
use crate::store::connection::{StoreError, Text};
use crate::store::control::settings::Stands;
use crate::store::reply::{Reply, named};

/// For how long ids are remembered where no `dedup` was written: that is worth no word.
const DEDUP_US: u64 = 600_000_000;

/// Everything that says why a bucket waits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Facts {
    /// The server's time, microseconds since the epoch.
    #[serde(skip)]
    pub now_us: u64,
    /// Where it waits.
    pub place: Place,
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
    /// Its delayed jobs.
    #[serde(default)]
    pub delayed: Retries,
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
    /// Its last turn failed, and it is tried again at its due.
    pub parked: Option<Parked>,
    /// How many daemons are alive.
    pub daemons: u64,
    /// Why Redis takes no writes now.
    #[serde(skip)]
    pub writes_refused: Option<WritesRefused>,
    /// Whether a record is stored.
    pub has_record: bool,
    /// Whether a change still spreads.
    pub spreading: bool,
    /// Where the record comes from; `None`: nobody knows.
    #[serde(skip)]
    pub source: Option<Source>,
}

/// The turn of a bucket that failed: what was noted then.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Parked {
    /// The kind of the note.
    pub kind: String,
    /// The key that it is about.
    pub subject: String,
    /// What the server said; may be empty.
    pub detail: String,
}

/// Where a bucket waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
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

/// Jobs in flight: dispatched and not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct Slots {
    /// How many are.
    pub taken: u64,
    /// How many may be.
    pub of: u64,
}

/// A wait for a share of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct Share {
    /// The budget.
    pub of: String,
    /// How many wait for a share of it.
    pub waiting: u64,
    /// How many of them go first.
    pub ahead: u64,
}

/// One level of a chain: the bucket, or a budget above it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Level {
    /// `bucket` or `budget`
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Where it waits.
    pub place: Place,
    /// Why nothing may leave it: its chain cannot be resolved.
    pub refused: Option<String>,
    /// Its parent.
    pub within: Option<String>,
    /// Its jobs in flight, where they are limited.
    pub slots: Option<Slots>,
    /// Its limit of jobs in flight is new, and those are counted before anything leaves.
    #[serde(default)]
    pub counting: bool,
    /// Its wait for a share.
    pub share: Option<Share>,
    /// Of a budget: how many wait for a share of it.
    pub waiting: Option<u64>,
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
    /// Keys that operators have set.
    #[serde(default)]
    pub set: Vec<SetKey>,
    /// The reason for its due, where that is not one job at its rate.
    pub paid: Option<Paid>,
    /// What corrections of costs have left over.
    pub credit: Option<Credit>,
    /// For how long it is slowed down.
    #[serde(default)]
    pub slow_us: u64,
    /// What the other side says about its limit.
    pub told: Option<ToldLimit>,
    /// Its quotas.
    #[serde(default)]
    pub quotas: Vec<QuotaUsed>,
    /// The policy that applies.
    pub policy: Applies,
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
    count: Option<u32>,
    period_us: Option<u64>,
    job_count: Option<u32>,
    job_period_us: Option<u64>,
    ttl_us: Option<u64>,
    dedup_us: Option<u64>,
    cost_max: Option<u64>,
    /// 0 while it is closed.
    #[serde(default)]
    pub capacity: u64,
    lease_ms: Option<u64>,
    attempts: Option<u64>,
    backoff_initial_us: Option<u64>,
    backoff_max_us: Option<u64>,
    #[serde(default)]
    overflow: String,
    /// Where jobs go; empty for a budget.
    #[serde(default)]
    pub route: String,
    catch_up_us: Option<u64>,
    #[serde(default)]
    admit: Vec<Admit>,
    within: Option<String>,
    weight: Option<u32>,
    concurrency: Option<u32>,
    #[serde(default)]
    pub(crate) ordered: bool,
    told: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Admit {
    limiter: String,
    args: Vec<String>,
}

/// Jobs that wait for a time: failed ones for another try, or delayed ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
#[schema(as = JobsOutOfTheQueue)]
pub struct Retries {
    /// How many.
    pub waiting: u64,
    /// How many of them have waited for long enough.
    pub ended: u64,
    /// Until the first of them has.
    #[serde(alias = "next_us")]
    pub next_in_us: Option<u64>,
}

/// A worker of a route.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
#[schema(as = WorkerOfARoute)]
pub struct Worker {
    /// Its name; of one that is no UTF-8 as much as can be shown.
    pub name: String,
    /// Jobs that it holds.
    pub leases: u64,
    /// How long ago it was last heard of.
    pub idle_ms: u64,
}

/// How things stand at a gate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct Wrong {
    /// The key.
    pub key: String,
    /// What it holds.
    #[serde(rename = "type")]
    pub holds: String,
    /// What it should hold.
    pub wanted: String,
    /// `route` where it is a key of its route, `slots` where it tells the jobs in flight.
    #[serde(default, skip_serializing)]
    pub of: String,
}

/// Everything that says how a budget stands.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BudgetFacts {
    /// The server's time, microseconds since the epoch.
    #[serde(skip)]
    pub now_us: u64,
    /// From the budget to the root of its chain.
    pub levels: Vec<Level>,
    /// How many daemons are alive.
    pub daemons: u64,
    /// Why Redis takes no writes now.
    #[serde(skip)]
    pub writes_refused: Option<WritesRefused>,
    /// Whether a record is stored.
    pub has_record: bool,
    /// Whether a change still spreads.
    pub spreading: bool,
    /// Where the record comes from; `None`: nobody knows.
    #[serde(skip)]
    pub source: Option<Source>,
}

impl BudgetFacts {
    /// Read what the function replied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Reply`], with what is wrong with it.
    pub fn read(reply: redis::Value) -> Result<Self, StoreError> {
        let (now_us, json, source): (u64, Vec<u8>, Vec<u8>) = decode("drip__explain_budget", reply)?;
        let facts: Self = read_json("drip__explain_budget", &json)?;
        with_levels("drip__explain_budget", &facts.levels)?;
        Ok(Self { now_us, source: read_source(&source), ..facts })
    }
}

impl Facts {
    /// Read what the function replied.
    ///
    /// # Errors
    ///
    /// [`StoreError::Reply`], with what is wrong with it.
    pub fn read(reply: redis::Value) -> Result<Self, StoreError> {
        let (now_us, json, source, workers): FactsReply = decode("drip__explain", reply)?;
        let facts: Self = read_json("drip__explain", &json)?;
        with_levels("drip__explain", &facts.levels)?;
        let workers = workers.into_iter().filter_map(named).collect();
        Ok(Self { now_us, source: read_source(&source), workers, route: facts.route.complete(), ..facts })
    }
}

/// The time, the facts and the source of the record as JSON, and the name, the leases and the idle time of each worker.
type FactsReply = (u64, Vec<u8>, Vec<u8>, Vec<(Text, u64, u64)>);

fn decode<T: FromRedisValue>(call: &'static str, value: redis::Value) -> Result<T, StoreError> {
    Reply { call, value }.decode()
}

fn read_json<T: DeserializeOwned>(call: &'static str, json: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(json).map_err(|why| StoreError::Reply { call, reply: why.to_string() })
}

fn with_levels(call: &'static str, levels: &[Level]) -> Result<(), StoreError> {
    if levels.is_empty() {
        Err(StoreError::Reply { call, reply: "a chain without a level".to_owned() })
    } else {
        Ok(())
    }
}

/// The source of the record; none where nothing is stored, or only a newer version can read it.
fn read_source(json: &[u8]) -> Option<Source> {
    serde_json::from_slice(json).ok()
}

impl Applies {
    /// What its rate allows a second; `None`: it has none.
    pub fn per_second(&self) -> Option<f64> {
        let period = Duration::from_micros(self.period_us?);
        Some(f64::from(self.count?) / period.as_secs_f64())
    }

    /// The same of its `job_rate`, which counts jobs whatever they cost.
    pub fn jobs_per_second(&self) -> Option<f64> {
        let period = Duration::from_micros(self.job_period_us?);
        Some(f64::from(self.job_count?) / period.as_secs_f64())
    }

    /// Its rate as people write it; `None`: it has none.
    pub fn rate(&self) -> Option<String> {
        Some(show_per_period(self.count?, Duration::from_micros(self.period_us?)))
    }

    /// Its `job_rate`; `None`: it has none.
    pub fn job_rate(&self) -> Option<String> {
        Some(show_per_period(self.job_count?, Duration::from_micros(self.job_period_us?)))
    }

    /// Each key of a policy with its value as people write it, in the order of the documents; of a bucket everything that each has.
    pub fn values(&self, kind: &str) -> Vec<(&'static str, String)> {
        let us = |us: u64| show(Duration::from_micros(us));
        let mut values = vec![("rate", self.rate().unwrap_or_else(|| "none".to_owned()))];
        values.extend(self.job_rate().map(|rate| ("job_rate", rate)));
        if kind == "bucket" {
            let gates: Vec<_> = self.admit.iter().map(Admit::shown).collect();
            values.push(("capacity", self.capacity.to_string()));
            // Forwarded jobs have none of these.
            values.extend(self.lease_ms.map(|lease| ("lease", show(Duration::from_millis(lease)))));
            values.extend(self.attempts.map(|attempts| ("attempts", attempts.to_string())));
            let backoff = self.backoff_initial_us.zip(self.backoff_max_us);
            values.extend(backoff.map(|(initial, max)| ("backoff", format!("{} to {}", us(initial), us(max)))));
            values.extend([("overflow", self.overflow.clone()), ("route", self.route.clone())]);
            values.extend(self.catch_up_us.map(|catch_up| ("catch_up", us(catch_up))));
            values.push(("admit", if gates.is_empty() { "none".to_owned() } else { gates.join(", ") }));
        } else {
            values.extend(self.catch_up_us.map(|catch_up| ("catch_up", us(catch_up))));
        }
        values.extend(self.dedup_us.filter(|time| *time != DEDUP_US).map(|time| ("dedup", us(time))));
        values.extend(self.ttl_us.map(|time| ("ttl", us(time))));
        values.extend(self.cost_max.filter(|cost| *cost > 0).map(|cost| ("cost_max", cost.to_string())));
        values.extend(self.within.clone().map(|within| ("within", within)));
        let weight = self.weight.filter(|weight| self.within.is_some() || *weight != 1);
        values.extend(weight.map(|weight| ("weight", weight.to_string())));
        values.extend(self.concurrency.map(|slots| ("concurrency", slots.to_string())));
        values.extend(self.ordered.then(|| ("ordered", "true".to_owned())));
        values.extend(self.told.clone().filter(|told| told != "stop").map(|told| ("told", told)));
        values
    }

    /// Whether a full bucket drops its oldest jobs.
    pub fn drops_oldest(&self) -> bool {
        self.overflow == "drop-oldest"
    }
}

impl Admit {
    fn shown(&self) -> String {
        // A limiter of a newer record is shown as it is stored.
        Limiter::stored(&self.limiter, &self.args)
            .map_or_else(|_| format!("{} {}", self.limiter, self.args.join(" ")), |limiter| limiter.to_string())
    }
}

impl Store {
    /// Why a bucket waits.
    pub async fn explain(&mut self, bucket: &BucketName) -> Result<Facts, StoreError> {
        Facts::read(self.call_read_only("drip__explain", &[self.keys().queue(bucket)], "").await?.value)
    }

    /// How a budget stands.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `BADARG` where the configuration in force has none of that name.
    pub async fn explain_budget(&mut self, budget: &BucketName) -> Result<BudgetFacts, StoreError> {
        let args = ("", budget.as_str());
        BudgetFacts::read(self.call_read_only("drip__explain_budget", &[self.keys().policy()], args).await?.value)
    }
}
