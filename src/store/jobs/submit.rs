//! Jobs with options: submitting one, and what can be asked and done about it by its id.

use std::time::Duration;

use redis::{FromRedisValue as _, Value};

use super::push::{Pushed, pushed};
use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::reply::{Reply, wait};

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

/// Options of a submitted job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Its id: another job with the same one is a duplicate.
    pub id: Option<String>,
    /// Whether it takes the place of a job with this id that waits.
    pub replaces: bool,
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
        if self.replaces {
            args.push("REPLACE".to_owned());
        }
        for (name, value) in &self.headers {
            args.extend(["HEADER".to_owned(), name.clone(), value.clone()]);
        }
        args
    }
}

/// The verdict on a submitted job.
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
    /// `queued`, `delayed`, `replaced`, `duplicate`, `full`, `late` or `gated`.
    pub verdict: String,
    /// Its id, given or made up; empty when refused without one.
    pub id: String,
    /// When it is expected to leave.
    pub expected: Option<Duration>,
    /// The bucket, budget or gate that decides.
    pub by: String,
}

/// The verdict on a single job without options.
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

/// The result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The job is dropped when its turn comes.
    Yes,
    /// The job has left already.
    Left,
    /// Nothing is known of the job.
    Unknown,
}

/// The nine values of a verdict.
type Nine = (i64, u64, u64, i64, i64, String, String, i64, String);

fn submitted((accepted, depth, capacity, retry_after, eta, verdict, id, expected, by): Nine) -> Submitted {
    let time = |ms| wait(ms, Duration::from_millis);
    let (retry_after, eta, expected) = (time(retry_after), time(eta), time(expected));
    Submitted { is_accepted: accepted == 1, depth, capacity, retry_after, eta, verdict, id, expected, by }
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
        let args = (job, options.args());
        self.call_function("drip_submit", &[self.keys().queue(bucket)], args).await?.decode().map(submitted)
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
        let answers: Vec<Value> = self.call_function(CALL, &[self.keys().queue(bucket)], args).await?.decode()?;
        let one = |value: Value| match <[String; 1]>::from_redis_value_ref(&value) {
            Ok([error]) => {
                let (code, message) = error.split_once(' ').unwrap_or((error.as_str(), ""));
                Err(StoreError::Refused { call: CALL, code: code.to_owned(), message: message.to_owned() })
            }
            Err(_) => Reply { call: CALL, value }.decode().map(submitted),
        };
        Ok(answers.into_iter().map(one).collect())
    }

    /// Put one job that asks for nothing into a bucket: with a deadline, where the bucket has a `ttl`. Never repeat one that was lost.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`].
    pub async fn post(&mut self, bucket: &BucketName, job: &[u8]) -> Result<Posted, StoreError> {
        let reply = self.call_function("drip__post", &[self.keys().queue(bucket)], ("", job)).await?;
        match &reply.value {
            Value::Array(values) if values.len() == 5 => reply.decode_with(pushed).map(Posted::Pushed),
            _ => reply.decode().map(submitted).map(Posted::Submitted),
        }
    }

    /// How things stand with a submitted job.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code.
    pub async fn find_job(&mut self, bucket: &BucketName, id: &str) -> Result<Found, StoreError> {
        let reply = self.call_read_only("drip_find", &[self.keys().queue(bucket)], id).await?;
        let (state, eta, attempt): (String, i64, u64) = reply.decode()?;
        Ok(Found { state, eta: wait(eta, Duration::from_millis), attempt })
    }

    /// Have a submitted job that waits be dropped when its turn comes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn cancel_job(&mut self, bucket: &BucketName, id: &str) -> Result<Cancelled, StoreError> {
        let cancelled = |what: i64| match what {
            0 => Some(Cancelled::Unknown),
            1 => Some(Cancelled::Yes),
            2 => Some(Cancelled::Left),
            _ => None,
        };
        let reply = self.call_function("drip_cancel", &[self.keys().queue(bucket)], id).await?;
        reply.decode_with(cancelled)
    }
}
