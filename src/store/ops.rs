//! Calls that change something, in the order of a job's life.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::keys::GROUP;
use super::reply::{self, Drained, Failed, Healed, Job, Pushed, Reaped, Verdict, unexpected};
use super::{Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::limiter::{Kind, Limiter};
use crate::words::policy::{Record, Route};
use crate::words::source::Source;

/// How many queues one call looks at.
const LOOKED_AT: usize = 500;

/// What a [`super::Whole::put_record`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The record is in force now.
    Stored,
    /// It was in force already, or another is and it was only to be stored where none is.
    Kept,
    /// Another change still spreads: drain, and try again.
    Busy,
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
    /// Why; at most 1,000 bytes are kept.
    pub reason: String,
}

/// What the other side says when it is asked too often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Throttled {
    /// When to come back, where it says so.
    pub retry_after: Option<Duration>,
    /// The budget above the job's bucket that slows down; none: the bucket does.
    pub budget: Option<BucketName>,
}

impl Store {
    /// Put jobs into a bucket, all or the first ones. Never repeat a push that was lost: it may have run.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code; [`StoreError::Lost`] when the outcome is unknown.
    pub async fn push(&mut self, bucket: &BucketName, jobs: &[Vec<u8>]) -> Result<Pushed, StoreError> {
        let args: Vec<&[u8]> = jobs.iter().map(Vec::as_slice).collect();
        let reply = self.function("drip_push", &[self.keys().queue(bucket)], &args).await?;
        reply::pushed("drip_push", &reply)
    }

    /// A plain push, as any Redis client makes it. Replies the length of the queue, which is the verdict.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`] when the outcome is unknown.
    pub async fn push_plain(&mut self, bucket: &BucketName, jobs: &[Vec<u8>]) -> Result<u64, StoreError> {
        let mut command = redis::cmd("LPUSH");
        command.arg(self.keys().queue(bucket)).arg(jobs);
        match self.call("LPUSH", &command).await? {
            Value::Int(length) => Ok(u64::try_from(length).unwrap_or(0)),
            other => Err(unexpected("LPUSH", &other)),
        }
    }

    /// What a push would meet.
    ///
    /// # Errors
    ///
    /// As [`Self::push`].
    pub async fn peek(&mut self, bucket: &BucketName) -> Result<Pushed, StoreError> {
        let reply = self.reading("drip_peek", &[self.keys().queue(bucket)], &[]).await?;
        reply::pushed("drip_peek", &reply)
    }

    /// Ask a limiter whether so many may pass at a key, any key, and charge it if they do. Never repeat a call that was lost:
    /// it may have charged.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code: `WRONGTYPE` when the key holds something else.
    pub async fn limit(&mut self, limiter: &Limiter, key: &[u8], quantity: u32) -> Result<Verdict, StoreError> {
        let name = match limiter.kind() {
            Kind::FixedWindow => "drip_fixed_window",
            Kind::SlidingWindow => "drip_sliding_window",
            Kind::SlidingCounter => "drip_sliding_counter",
            Kind::TokenBucket => "drip_token_bucket",
            Kind::LeakyMeter => "drip_leaky_meter",
            Kind::Throttle => "drip_throttle",
        };
        let unit = if limiter.kind() == Kind::Throttle { Duration::from_secs } else { Duration::from_millis };
        let (mut args, quantity) = (limiter.parameters(), quantity.to_string());
        args.push(quantity);
        args.extend(limiter.option().map(str::to_owned));
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        let reply = self.function(name, &[key], &args).await?;
        reply::verdict(name, &reply, unit)
    }

    /// Look at queues that changed, if any, and let out what is due. Where no record is stored nothing is done, and the reply says
    /// so: the built-in defaults are not this daemon's.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn drain(&mut self, woken: &[Arc<str>]) -> Result<Drained, StoreError> {
        let goes_on_for = self.goes_on_for();
        let mut args = vec![b"".as_slice(), b"1"];
        args.extend(goes_on_for.as_deref().map(str::as_bytes));
        let drained = self.drain_with(woken, &args).await;
        self.note_standstill(&drained);
        drained
    }

    async fn drain_with(&mut self, woken: &[Arc<str>], args: &[&[u8]]) -> Result<Drained, StoreError> {
        if woken.is_empty() {
            let reply = self.function("drip__drain", &[self.keys().schedule()], args).await?;
            return reply::drained("drip__drain", &reply);
        }
        let queues: Vec<String> = woken.iter().map(|name| format!("{}{name}", self.keys().queues())).collect();
        let reply = self.function("drip__wake", &queues, args).await?;
        reply::woken("drip__wake", &reply)
    }

    /// Look at some queues, and let out nothing. Where no record is stored nothing is done.
    pub(super) async fn look_at(&mut self, queues: &[Vec<u8>]) -> Result<(), StoreError> {
        let mut rest = queues;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(LOOKED_AT)];
            let reply = self.function("drip__wake", some, &[b"", b"look"]).await?;
            let drained = reply::woken("drip__wake", &reply)?;
            if drained.record.is_none() {
                return Ok(());
            }
            rest = &rest[drained.looked.min(rest.len())..];
        }
        Ok(())
    }

    /// Make sure that the stream and the group of a route exist.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] when the key holds something else.
    pub async fn open_route(&mut self, route: &Route) -> Result<(), StoreError> {
        self.function("drip__route", &[self.keys().ready(route)], &[b""]).await.map(drop)
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
        let reply = self.call("XREADGROUP", &command).await?;
        reply::taken("XREADGROUP", &reply)
    }

    /// Start the lease of a job anew. Replies whether it is still this worker's.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn renew(&mut self, route: &Route, worker: &str, entry: &str) -> Result<bool, StoreError> {
        let mut command = redis::cmd("XCLAIM");
        command.arg(self.keys().ready(route)).arg(GROUP).arg(worker).arg(0).arg(entry).arg("JUSTID");
        match self.call("XCLAIM", &command).await? {
            Value::Array(claimed) => Ok(!claimed.is_empty()),
            other => Err(unexpected("XCLAIM", &other)),
        }
    }

    /// A job is done. Replies whether it still was this worker's.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn ack(&mut self, route: &Route, entry: &str) -> Result<bool, StoreError> {
        match self.function("drip_ack", &[self.keys().ready(route)], &[entry.as_bytes()]).await? {
            Value::Int(n) => Ok(n == 1),
            other => Err(unexpected("drip_ack", &other)),
        }
    }

    /// A job failed, or is given back.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn fail(&mut self, route: &Route, entry: &str, fail: &Fail) -> Result<Failed, StoreError> {
        let retry_in = fail.retry_in.map(|wait| wait.as_millis().to_string());
        let mut args: Vec<&[u8]> = vec![entry.as_bytes()];
        if let Some(ms) = &retry_in {
            args.extend([b"RETRY_IN".as_slice(), ms.as_bytes()]);
        }
        if fail.keep {
            args.push(b"KEEP");
        }
        if fail.dead {
            args.push(b"DEAD");
        }
        let throttled = fail.throttled.as_ref();
        let after = throttled.and_then(|it| it.retry_after).map(|wait| wait.as_millis().max(1).to_string());
        if throttled.is_some() {
            args.push(b"THROTTLED");
        }
        if let Some(ms) = &after {
            args.extend([b"RETRY_AFTER".as_slice(), ms.as_bytes()]);
        }
        if let Some(budget) = throttled.and_then(|it| it.budget.as_ref()) {
            args.extend([b"IN".as_slice(), budget.as_str().as_bytes()]);
        }
        if !fail.reason.is_empty() {
            args.extend([b"REASON".as_slice(), fail.reason.as_bytes()]);
        }
        let reply = self.function("drip_fail", &[self.keys().ready(route)], &args).await?;
        reply::failed("drip_fail", &reply)
    }

    /// Take a worker's name off the group of a route. Only for one that holds nothing: what it held would be lost.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn leave(&mut self, route: &Route, worker: &str) -> Result<(), StoreError> {
        let mut pending = redis::cmd("XPENDING");
        pending.arg(self.keys().ready(route)).arg(GROUP).arg("-").arg("+").arg(1).arg(worker);
        if self.call("XPENDING", &pending).await? != Value::Array(Vec::new()) {
            return Ok(());
        }
        let mut command = redis::cmd("XGROUP");
        command.arg("DELCONSUMER").arg(self.keys().ready(route)).arg(GROUP).arg(worker);
        self.call("XGROUP DELCONSUMER", &command).await.map(drop)
    }

    /// A part of a reaping pass: from its beginning, or from where the part before ended.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn reap(&mut self, take_back: bool, from: Option<(String, String)>) -> Result<Reaped, StoreError> {
        let (route, id) = from.unwrap_or_default();
        let take_back: &[u8] = if take_back { b"1" } else { b"0" };
        let args = [b"".as_slice(), take_back, route.as_bytes(), id.as_bytes()];
        let reply = self.function("drip__reap", &[self.keys().policy()], &args).await?;
        reply::reaped("drip__reap", &reply)
    }

    /// A part of a pass over the entries that hold slots: those that are in flight no more are freed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn heal(&mut self) -> Result<Healed, StoreError> {
        let reply = self.function("drip__heal", &[self.keys().policy()], &[b""]).await?;
        reply::healed("drip__heal", &reply)
    }

    /// Put a policy record into force, or only where none is stored, and say where it comes from.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] when a route's key holds something else.
    pub(super) async fn put_record(
        &mut self,
        record: &Record,
        source: &Source,
        only_if_missing: bool,
    ) -> Result<Put, StoreError> {
        let id = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let mode: &[u8] = if only_if_missing { b"if-missing" } else { b"replace" };
        let json = record.to_json();
        let source = serde_json::to_string(source).expect("a source is text and numbers");
        let args = [b"".as_slice(), id.as_bytes(), json.as_bytes(), mode, source.as_bytes()];
        match self.function("drip__policy", &[self.keys().policy()], &args).await? {
            Value::Int(1) => Ok(Put::Stored),
            Value::Int(0) => Ok(Put::Kept),
            Value::Int(-1) => Ok(Put::Busy),
            other => Err(unexpected("drip__policy", &other)),
        }
    }
}
