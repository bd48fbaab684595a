//! What the functions reply, decoded once into names.

use std::time::Duration;

use redis::Value;

use super::StoreError;
use crate::words::bucket::BucketName;

/// What a drain or a wake did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// How long to sleep before the next one; `None`: until woken.
    pub wait: Option<Duration>,
    /// How many jobs left their buckets.
    pub dispatched: u64,
    /// How many were cut or too large.
    pub rejected: u64,
    /// The lateness of the latest job.
    pub latest: Duration,
    /// Whether a policy record is stored.
    pub has_record: bool,
    /// Whether a change of policy still spreads.
    pub spreading: bool,
    /// What should be logged: what, and of which key.
    pub notes: Vec<(String, String)>,
    /// How many of the queues of a wake were looked at; the rest is for the next call.
    pub looked: usize,
}

/// What a part of a reaping pass did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Where the pass goes on; `None` when it is over.
    pub next: Option<(String, String)>,
    /// The time until the next lease may end, of the entries seen.
    pub left: Option<Duration>,
    /// Jobs taken back.
    pub taken_back: u64,
    /// Finished entries deleted.
    pub removed: u64,
    /// Entries in the streams seen.
    pub live: u64,
    /// The length of the dead stream.
    pub dead: u64,
    /// What should be logged.
    pub notes: Vec<(String, String)>,
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// How many of the jobs went in: the first ones.
    pub accepted: usize,
    /// Jobs waiting now.
    pub depth: u64,
    /// Of this bucket.
    pub capacity: u64,
    /// Until one place is expected to be free; `None` when all went in.
    pub retry_after: Option<Duration>,
    /// Until the last accepted job is due; `None` when none went in.
    pub eta: Option<Duration>,
}

/// What a limiter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call was refused.
    pub limited: bool,
    /// The limit, the capacity, or the burst and one.
    pub limit: u64,
    /// The largest quantity that would pass now.
    pub remaining: u64,
    /// Until the same call passes, if nobody else calls; `None` when it passed, or never will.
    pub retry_after: Option<Duration>,
    /// Until the key carries no information.
    pub reset_after: Duration,
}

/// What became of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// It waits for its next try.
    Retried,
    /// It is in the dead stream.
    Dead,
    /// It was not this worker's any more.
    NotPending,
}

/// A job as a worker takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The entry to acknowledge.
    pub entry: String,
    /// The stable identity: the entry of the first dispatch.
    pub id: String,
    /// The bucket it came from; `None` when the entry is malformed.
    pub bucket: Option<BucketName>,
    /// The bytes that the producer pushed; `None` when the entry is malformed.
    pub body: Option<Vec<u8>>,
    /// 1 for the first try.
    pub attempt: u64,
    /// When it was due, microseconds since the epoch.
    pub due_us: u64,
    /// When it left its bucket, microseconds since the epoch.
    pub at_us: u64,
    /// How long it may be held.
    pub lease: Duration,
}

pub(super) fn unexpected(call: &'static str, reply: &Value) -> StoreError {
    let shown: String = format!("{reply:?}").chars().take(200).collect();
    StoreError::Reply { call, reply: shown }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(n) = value { Some(*n) } else { None }
}

fn count(value: &Value) -> Option<u64> {
    number(value).and_then(|n| u64::try_from(n).ok())
}

fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) | Value::Set(items) => Some(items),
        _ => None,
    }
}

fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    let texts = list(value)?.iter().map(text).collect::<Option<Vec<_>>>()?;
    Some(texts.chunks_exact(4).map(|note| (note[0].clone(), note[1].clone())).collect())
}

/// A wait as the functions reply it: −1 stands for none.
fn wait(n: i64, unit: fn(u64) -> Duration) -> Option<Duration> {
    u64::try_from(n).ok().map(unit)
}

pub(super) fn drained(call: &'static str, reply: &Value) -> Result<Drained, StoreError> {
    let decode = || {
        let items = list(reply)?;
        Some(Drained {
            wait: wait(number(items.first()?)?, Duration::from_micros),
            dispatched: count(items.get(1)?)?,
            rejected: count(items.get(2)?)?,
            latest: Duration::from_micros(count(items.get(3)?)?),
            has_record: !text(items.get(4)?)?.is_empty(),
            spreading: count(items.get(5)?)? == 1,
            notes: pairs(items.get(6)?)?,
            looked: items.get(7).and_then(count).and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn reaped(call: &'static str, reply: &Value) -> Result<Reaped, StoreError> {
    let decode = || {
        let items = list(reply)?;
        let (route, id) = (text(items.first()?)?, text(items.get(1)?)?);
        Some(Reaped {
            next: (!route.is_empty()).then_some((route, id)),
            left: wait(number(items.get(2)?)?, Duration::from_millis),
            taken_back: count(items.get(3)?)?,
            removed: count(items.get(4)?)?,
            live: count(items.get(5)?)?,
            dead: count(items.get(6)?)?,
            notes: pairs(items.get(7)?)?,
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn pushed(call: &'static str, reply: &Value) -> Result<Pushed, StoreError> {
    let decode = || {
        let n = list(reply)?.iter().map(number).collect::<Option<Vec<_>>>()?;
        let [accepted, depth, capacity, retry_after, eta] = n[..] else { return None };
        Some(Pushed {
            accepted: usize::try_from(accepted).ok()?,
            depth: u64::try_from(depth).ok()?,
            capacity: u64::try_from(capacity).ok()?,
            retry_after: wait(retry_after, Duration::from_millis),
            eta: wait(eta, Duration::from_millis),
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

/// The five integers of a limiter, its times in a unit.
pub(super) fn verdict(call: &'static str, reply: &Value, unit: fn(u64) -> Duration) -> Result<Verdict, StoreError> {
    let decode = || {
        let n = list(reply)?.iter().map(number).collect::<Option<Vec<_>>>()?;
        let [limited, limit, remaining, retry_after, reset_after] = n[..] else { return None };
        Some(Verdict {
            limited: limited == 1,
            limit: u64::try_from(limit).ok()?,
            remaining: u64::try_from(remaining).ok()?,
            retry_after: wait(retry_after, unit),
            reset_after: wait(reset_after, unit)?,
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn failed(call: &'static str, reply: &Value) -> Result<Failed, StoreError> {
    match number(reply) {
        Some(0) => Ok(Failed::NotPending),
        Some(1) => Ok(Failed::Retried),
        Some(2) => Ok(Failed::Dead),
        _ => Err(unexpected(call, reply)),
    }
}

/// The entries of one stream, as `XREADGROUP` replies them in either protocol; nothing is an empty list.
pub(super) fn taken(call: &'static str, reply: &Value) -> Result<Vec<Job>, StoreError> {
    let entries = match reply {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(streams) => streams.first().map(|(_, entries)| entries),
        Value::Array(streams) => streams.first().and_then(list).and_then(|stream| stream.get(1)),
        _ => None,
    };
    let entries = entries.and_then(list).ok_or_else(|| unexpected(call, reply))?;
    entries.iter().map(|entry| job(entry).ok_or_else(|| unexpected(call, entry))).collect()
}

fn job(entry: &Value) -> Option<Job> {
    let [id, fields] = list(entry)? else { return None };
    let entry = text(id)?;
    let mut job = Job {
        id: entry.clone(),
        entry,
        bucket: None,
        body: None,
        attempt: 1,
        due_us: 0,
        at_us: 0,
        lease: Duration::from_secs(60),
    };
    for pair in list(fields).unwrap_or_default().chunks_exact(2) {
        let [Value::BulkString(name), Value::BulkString(value)] = pair else { return None };
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match name.as_slice() {
            b"bucket" => job.bucket = BucketName::parse(value).ok(),
            b"job" => job.body = Some(value.clone()),
            b"attempt" => job.attempt = number().unwrap_or(job.attempt),
            b"due_us" => job.due_us = number().unwrap_or_default(),
            b"at_us" => job.at_us = number().unwrap_or_default(),
            b"lease_ms" => job.lease = number().map_or(job.lease, Duration::from_millis),
            b"id" => job.id = String::from_utf8_lossy(value).into_owned(),
            _ => {}
        }
    }
    Some(job)
}
