//! Jobs with options: submitting one, and what can be asked and done about it by its id.

use std::time::Duration;

use redis::{FromRedisValue as _, Value};

use super::reply::{self, Pushed, unexpected};
use super::{Store, StoreError};
use crate::words::bucket::BucketName;

/// How many jobs with options one call takes.
pub const SUBMITS_MOST: usize = 100;

/// When a submitted job may leave at the earliest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After so long.
    In(Duration),
    /// At a time, milliseconds since the epoch.
    At(u64),
}

/// What is asked for a submitted job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Its id: another job with the same one is a duplicate.
    pub id: Option<String>,
    /// When it may leave; at once where nothing is said.
    pub start: Option<Start>,
    /// How long it may wait.
    pub ttl: Option<Duration>,
    /// How many slots of each rate it takes; 1 where nothing is said.
    pub cost: Option<u64>,
    /// Fields of its entry, by name.
    pub headers: Vec<(String, String)>,
}

impl Options {
    /// Whether anything is asked for.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// As `drip_submit` takes them.
    fn args(&self) -> Vec<String> {
        let ms = |time: Duration| time.as_millis().to_string();
        let mut args = Vec::new();
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        if let Some(id) = &self.id {
            add("ID", id.clone());
        }
        match self.start {
            Some(Start::In(delay)) => add("DELAY", ms(delay)),
            Some(Start::At(at)) => add("AT", at.to_string()),
            None => {}
        }
        if let Some(ttl) = self.ttl {
            add("TTL", ms(ttl));
        }
        if let Some(cost) = self.cost {
            add("COST", cost.to_string());
        }
        for (name, value) in &self.headers {
            args.extend(["HEADER".to_owned(), name.clone(), value.clone()]);
        }
        args
    }
}

/// What became of a submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Whether it is in the bucket, by this push or an earlier one.
    pub is_accepted: bool,
    /// Jobs waiting now; of a delayed one, delayed jobs.
    pub depth: u64,
    /// Of this bucket.
    pub capacity: u64,
    /// Of a refused one: until the same may be accepted.
    pub retry_after: Option<Duration>,
    /// When it can leave at the earliest.
    pub eta: Option<Duration>,
    /// `queued`, `delayed`, `duplicate`, `full`, `late` or `gated`.
    pub verdict: String,
    /// Its id, given or made up; empty when refused without one.
    pub id: String,
    /// When it is expected to leave.
    pub expected: Option<Duration>,
    /// The bucket, budget or gate that decides.
    pub by: String,
}

/// What became of a single job that asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Posted {
    /// Its bucket has no `ttl`: it was pushed as any other job.
    Pushed(Pushed),
    /// Its bucket has a `ttl`: it was submitted.
    Submitted(Submitted),
}

/// How things stand with a submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `queued`, `delayed`, `retrying`, `left` or `unknown`.
    pub state: String,
    /// Until it can leave at the earliest; none: it waits no more.
    pub eta: Option<Duration>,
    /// Which attempt comes next; 0: none that is known.
    pub attempt: u64,
}

/// What became of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is dropped when its turn comes.
    Yes,
    /// It has left already.
    Left,
    /// Nothing is known of it.
    Unknown,
}

/// A time of a reply, where -1 is none.
fn time(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// The nine values of a verdict.
fn submitted(call: &'static str, reply: Value) -> Result<Submitted, StoreError> {
    type Nine = (i64, u64, u64, i64, i64, String, String, i64, String);
    let shown = unexpected(call, &reply);
    let nine: Nine = redis::from_redis_value(reply).map_err(|_| shown)?;
    let (accepted, depth, capacity, retry_after, eta, verdict, id, expected, by) = nine;
    Ok(Submitted {
        is_accepted: accepted == 1,
        depth,
        capacity,
        retry_after: time(retry_after),
        eta: time(eta),
        verdict,
        id,
        expected: time(expected),
        by,
    })
}

impl Store {
    /// Put one job with options into a bucket. Never repeat a submit that was lost, unless it has an id: it may have run.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code; [`StoreError::Lost`] when the outcome is unknown.
    pub async fn submit(
        &mut self,
        bucket: &BucketName,
        job: &[u8],
        options: &Options,
    ) -> Result<Submitted, StoreError> {
        let options = options.args();
        let args: Vec<&[u8]> = std::iter::once(job).chain(options.iter().map(String::as_bytes)).collect();
        let reply = self.function("drip_submit", &[self.keys().queue(bucket)], &args).await?;
        submitted("drip_submit", reply)
    }

    /// Put several jobs with options into a bucket, at most [`SUBMITS_MOST`], one after the other and each judged by itself; with `stops` as far
    /// as there is room. The first refusal ends it. Never repeat what was lost, unless every job has an id.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`], where it is about all of them.
    pub async fn submit_all(
        &mut self,
        bucket: &BucketName,
        jobs: &[(&[u8], &Options)],
        stops: bool,
    ) -> Result<Vec<Result<Submitted, StoreError>>, StoreError> {
        const CALL: &str = "drip_submit_all";
        let mut args = vec![if stops { b"1".to_vec() } else { b"0".to_vec() }];
        for (job, options) in jobs {
            let options = options.args();
            args.extend([(options.len() + 1).to_string().into_bytes(), job.to_vec()]);
            args.extend(options.into_iter().map(String::into_bytes));
        }
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let reply = self.function(CALL, &[self.keys().queue(bucket)], &args).await?;
        let Value::Array(told) = reply else { return Err(unexpected(CALL, &reply)) };
        let one = |reply: Value| match <[String; 1]>::from_redis_value_ref(&reply) {
            Ok([error]) => {
                let (code, message) = error.split_once(' ').unwrap_or((error.as_str(), ""));
                Err(StoreError::Refused { call: CALL, code: code.to_owned(), message: message.to_owned() })
            }
            Err(_) => submitted(CALL, reply),
        };
        Ok(told.into_iter().map(one).collect())
    }

    /// Put one job that asks for nothing into a bucket: with a deadline, where the bucket has a `ttl`. Never repeat one that was lost.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`].
    pub async fn post(&mut self, bucket: &BucketName, job: &[u8]) -> Result<Posted, StoreError> {
        let reply = self.function("drip__post", &[self.keys().queue(bucket)], &[b"", job]).await?;
        match &reply {
            Value::Array(values) if values.len() == 5 => reply::pushed("drip__post", &reply).map(Posted::Pushed),
            _ => submitted("drip__post", reply).map(Posted::Submitted),
        }
    }

    /// How things stand with a submitted job.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code.
    pub async fn find_job(&mut self, bucket: &BucketName, id: &str) -> Result<Found, StoreError> {
        let reply = self.reading("drip_find", &[self.keys().queue(bucket)], &[id.as_bytes()]).await?;
        let shown = unexpected("drip_find", &reply);
        let (state, eta, attempt): (String, i64, u64) = redis::from_redis_value(reply).map_err(|_| shown)?;
        Ok(Found { state, eta: time(eta), attempt })
    }

    /// Have a submitted job that waits be dropped when its turn comes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn cancel_job(&mut self, bucket: &BucketName, id: &str) -> Result<Cancelled, StoreError> {
        match self.function("drip_cancel", &[self.keys().queue(bucket)], &[id.as_bytes()]).await? {
            Value::Int(0) => Ok(Cancelled::Unknown),
            Value::Int(1) => Ok(Cancelled::Yes),
            Value::Int(2) => Ok(Cancelled::Left),
            other => Err(unexpected("drip_cancel", &other)),
        }
    }
}
