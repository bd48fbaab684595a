//! The calls of a worker: it takes jobs, renews their leases, and says what became of them.

use std::time::Duration;

use redis::Value;

use crate::model::bucket::BucketName;
use crate::model::node::Units;
use crate::model::route::Route;
use crate::store::client::Store;
use crate::store::connection::{StoreError, Text};
use crate::store::keys::GROUP;
use crate::store::reply::Reply;

/// The fate of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The job waits for its next try.
    Retried,
    /// The job is in the dead stream.
    Dead,
    /// Another worker, or none, had the job.
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
    /// How many slots of each rate it took.
    pub cost: u64,
    /// When it should have left at the latest, microseconds since the epoch.
    pub deadline_us: Option<u64>,
    /// The headers that the producer gave: names of a-z, 0-9 and -, values of plain characters.
    pub headers: Vec<(String, String)>,
}

/// The most that a report may say, of jobs or of what they cost.
pub const LIMIT_MOST: u64 = 1_000_000_000;

/// How much more the other side lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct LimitReport {
    /// So much more, until the reset; at most [`LIMIT_MOST`].
    pub remaining: u64,
    /// Until its limit resets, in milliseconds.
    pub reset_ms: u64,
    /// When it resets, in milliseconds since 1970, where the other side said that time; then it counts, and not `reset_ms`.
    #[serde(skip)]
    pub resets_at_ms: Option<u64>,
    /// How much it lets through after a reset, where it says so; 1 to [`LIMIT_MOST`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What it counts.
    pub units: Units,
}

/// Reports that come with an answer, and the budget that they are about; none: the job's bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reports {
    /// One of each limit, at most four.
    pub list: Vec<LimitReport>,
    /// A budget above the job's bucket.
    pub budget: Option<BucketName>,
}

impl Reports {
    /// As arguments of a function.
    fn args(&self) -> Vec<String> {
        let mut args = Vec::new();
        for report in &self.list {
            let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
            add("REMAINING", report.remaining.to_string());
            add("RESET", report.resets_at_ms.unwrap_or(report.reset_ms).to_string());
            if let Some(limit) = report.limit {
                add("LIMIT", limit.to_string());
            }
            add("UNITS", report.units.to_string());
            if let Some(budget) = &self.budget {
                add("IN", budget.as_str().to_owned());
            }
        }
        args
    }
}

/// How a worker gives a job back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fail {
    /// Instead of the back-off.
    pub retry_in: Option<Duration>,
    /// Do not count the attempt.
    pub keep: bool,
    /// Do not try again.
    pub dead: bool,
    /// The other side said that it is too fast.
    pub throttled: Option<Throttled>,
    /// How much more it lets through.
    pub reports: Reports,
    /// Why; at most 1,000 bytes are kept.
    pub reason: String,
}

/// The answer of a server that is asked too often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Throttled {
    /// When to come back, where it says so.
    pub retry_after: Option<Duration>,
    /// The budget above the job's bucket that slows down; none: the bucket does.
    pub budget: Option<BucketName>,
}

impl Store {
    /// Make sure that the stream and the group of a route exist.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] when the key holds something else.
    pub async fn open_route(&mut self, route: &Route) -> Result<(), StoreError> {
        self.call_function("drip__route", &[self.keys().ready(route)], "").await.map(drop)
    }

    /// Take up to `most` jobs, waiting at most `block` for the first, if at all. An empty answer is no error.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `NOGROUP` when the route is not open.
    pub async fn take(
        &mut self,
        route: &Route,
        worker: &str,
        most: usize,
        block: Option<Duration>,
    ) -> Result<Vec<Job>, StoreError> {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(worker).arg("COUNT").arg(most);
        if let Some(block) = block {
            command.arg("BLOCK").arg(u64::try_from(block.as_millis()).unwrap_or(u64::MAX));
        }
        command.arg("STREAMS").arg(self.keys().ready(route)).arg(">");
        taken(&self.call("XREADGROUP", &command).await?)
    }

    /// Start the lease of a job anew. Replies whether it is still this worker's.
    pub async fn renew(&mut self, route: &Route, worker: &str, entry: &str) -> Result<bool, StoreError> {
        let mut command = redis::cmd("XCLAIM");
        command.arg(self.keys().ready(route)).arg(GROUP).arg(worker).arg(0).arg(entry).arg("JUSTID");
        let claimed: Vec<Value> = self.read("XCLAIM", &command).await?;
        Ok(!claimed.is_empty())
    }

    /// A job is done, and this is what the other side says about its limit. Replies whether it still was this worker's.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat. [`StoreError::Refused`] with `BADARG` where the reports are about a
    /// budget that is not above the job's bucket.
    pub async fn ack(&mut self, route: &Route, entry: &str, reports: &Reports) -> Result<bool, StoreError> {
        let args = (entry, reports.args());
        self.call_function("drip_ack", &[self.keys().ready(route)], args).await?.decode_with(|n: i64| Some(n == 1))
    }

    /// A job failed, or is given back.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn fail(&mut self, route: &Route, entry: &str, fail: &Fail) -> Result<Failed, StoreError> {
        let throttled = fail.throttled.as_ref();
        let args = (
            entry,
            fail.retry_in.map(|wait| ("RETRY_IN", wait.as_millis())),
            fail.keep.then_some("KEEP"),
            fail.dead.then_some("DEAD"),
            throttled.map(|_| "THROTTLED"),
            throttled.and_then(|it| it.retry_after).map(|wait| ("RETRY_AFTER", wait.as_millis().max(1))),
            throttled.and_then(|it| it.budget.as_ref()).map(|budget| ("IN", budget.as_str())),
            (!fail.reason.is_empty()).then_some(("REASON", &fail.reason)),
            fail.reports.args(),
        );
        self.call_function("drip_fail", &[self.keys().ready(route)], args).await?.decode_with(failed)
    }

    /// Take a worker's name off the group of a route. Only for one that holds nothing: what it held would be lost.
    pub async fn leave(&mut self, route: &Route, worker: &str) -> Result<(), StoreError> {
        let mut pending = redis::cmd("XPENDING");
        pending.arg(self.keys().ready(route)).arg(GROUP).arg("-").arg("+").arg(1).arg(worker);
        if !self.read::<Vec<Value>>("XPENDING", &pending).await?.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("XGROUP");
        command.arg("DELCONSUMER").arg(self.keys().ready(route)).arg(GROUP).arg(worker);
        self.call("XGROUP DELCONSUMER", &command).await.map(drop)
    }
}

fn failed(what: i64) -> Option<Failed> {
    match what {
        0 => Some(Failed::NotPending),
        1 => Some(Failed::Retried),
        2 => Some(Failed::Dead),
        _ => None,
    }
}

/// The fields of an entry; none of one that was deleted.
type Fields = Option<Vec<(Vec<u8>, Vec<u8>)>>;

/// The entries of one stream, as `XREADGROUP` replies them in either protocol; nothing is an empty list.
fn taken(reply: &Reply) -> Result<Vec<Job>, StoreError> {
    let streams: Vec<(Text, Vec<(Text, Fields)>)> = reply.decode()?;
    let entries = streams.into_iter().next().map(|(_, entries)| entries).unwrap_or_default();
    Ok(entries.into_iter().map(|(Text(entry), fields)| job(entry, fields)).collect())
}

/// The least lease that there is. An entry of a stranger may say less, or nothing that can be read: who renews it as often as this needs
/// keeps it, whatever lease the bucket has.
const LEAST_LEASE: Duration = Duration::from_secs(1);

fn job(entry: String, fields: Fields) -> Job {
    let mut job = Job {
        id: entry.clone(),
        entry,
        bucket: None,
        body: None,
        attempt: 1,
        due_us: 0,
        at_us: 0,
        lease: LEAST_LEASE,
        cost: 1,
        deadline_us: None,
        headers: Vec::new(),
    };
    for (name, value) in fields.unwrap_or_default() {
        let number = || std::str::from_utf8(&value).ok()?.parse::<u64>().ok();
        match name.as_slice() {
            b"bucket" => job.bucket = BucketName::parse(&value).ok(),
            b"job" => job.body = Some(value),
            b"attempt" => job.attempt = number().unwrap_or(job.attempt),
            b"due_us" => job.due_us = number().unwrap_or_default(),
            b"at_us" => job.at_us = number().unwrap_or_default(),
            b"lease_ms" => job.lease = number().map_or(LEAST_LEASE, Duration::from_millis).max(LEAST_LEASE),
            b"id" => job.id = String::from_utf8_lossy(&value).into_owned(),
            b"cost" => job.cost = number().unwrap_or(job.cost),
            b"deadline_us" => job.deadline_us = number(),
            name => job.headers.extend(header(name, &value)),
        }
    }
    job
}

/// A field `h:<name>`. Entries of strangers may hold anything: what is no header of ours is passed over.
fn header(field: &[u8], value: &[u8]) -> Option<(String, String)> {
    let name = field.strip_prefix(b"h:").filter(|name| !name.is_empty())?;
    let is_name = name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-');
    let is_value = value.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (is_name && is_value).then(|| (text(name), text(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_passes_on_of_an_entry_are_headers_and_nothing_else() {
        assert_eq!(header(b"h:x-1", b"a b~"), Some(("x-1".to_owned(), "a b~".to_owned())));
        for (field, value) in [
            (&b"h:"[..], &b"a"[..]),
            (b"h:X", b"a"),
            (b"h:a_b", b"a"),
            (b"x", b"a"),
            (b"h:a", b"a\nb"),
            (b"h:a", b"\xff"),
        ] {
            assert_eq!(header(field, value), None, "{field:?} {value:?}");
        }
    }
}
