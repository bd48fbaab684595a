//! Policies: rate, capacity, lease, attempts, back-off, overflow, route, catch-up and gates, as words that cannot be wrong.
//! Nothing is computed here: what they mean for a bucket is decided by the functions in Redis alone.

use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::words::limiter::Limiter;
use crate::words::rate::Rate;

/// What happens to a job that comes to a full bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// The new job is rejected.
    Reject,
    /// The new job goes in and the oldest waiting one is dropped.
    DropOldest,
}

/// The name of a ready stream: 1 to 64 of `a-z A-Z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Route(Box<str>);

impl Route {
    /// What a route looks like, for error messages.
    pub const HINT: &'static str = "a route is 1 to 64 of a-z A-Z 0-9 . _ -";

    /// Read the name of a route.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`], for a text that is none.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if fits { Ok(Self(text.into())) } else { Err(Self::HINT) }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the route called `default`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        &*self.0 == "default"
    }
}

impl Default for Route {
    fn default() -> Self {
        Self("default".into())
    }
}

impl std::str::FromStr for Route {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// What applies to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How fast jobs leave.
    pub rate: Rate,
    /// How many jobs may wait, 1 to 10,000,000.
    pub capacity: u32,
    /// How long a worker may hold a job, 1 s to 7 d.
    pub lease: Duration,
    /// How often a job is tried, 1 to 1,000.
    pub attempts: u32,
    /// The wait before the second try; it doubles before each further one.
    pub backoff_initial: Duration,
    /// The longest such wait.
    pub backoff_max: Duration,
    /// What happens when the bucket is full.
    pub overflow: Overflow,
    /// Where its jobs go.
    pub route: Route,
    /// The most lateness that is made up, at most 1 s.
    pub catch_up: Duration,
    /// The gates before the doors that run code; a plain push passes none.
    pub admit: Vec<Limiter>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rate: Rate::DEFAULT,
            capacity: 1_000,
            lease: Duration::from_secs(60),
            attempts: 5,
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(600),
            overflow: Overflow::Reject,
            route: Route::default(),
            catch_up: Duration::from_millis(20),
            admit: Vec::new(),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("durations are at most 366 days")
}

/// As the functions read it: whole microseconds and milliseconds.
impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Policy", 11)?;
        s.serialize_field("count", &self.rate.count())?;
        s.serialize_field("period_us", &micros(self.rate.period()))?;
        s.serialize_field("capacity", &self.capacity)?;
        s.serialize_field("lease_ms", &(micros(self.lease) / 1_000))?;
        s.serialize_field("attempts", &self.attempts)?;
        s.serialize_field("backoff_initial_us", &micros(self.backoff_initial))?;
        s.serialize_field("backoff_max_us", &micros(self.backoff_max))?;
        s.serialize_field("overflow", &self.overflow)?;
        s.serialize_field("route", &self.route)?;
        s.serialize_field("catch_up_us", &micros(self.catch_up))?;
        s.serialize_field("admit", &self.admit)?;
        s.end()
    }
}

/// A `[[bucket]]` entry: the policy of the buckets whose name matches a glob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Matched {
    /// A glob as in Redis `KEYS`, on bytes.
    #[serde(rename = "match")]
    pub glob: String,
    /// `[defaults]`, overridden key by key.
    pub policy: Policy,
}

/// Bounds that hold for all buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// The largest job, in bytes.
    pub max_job_bytes: u64,
    /// How many entries the rejected stream keeps.
    pub rejected_keep: u64,
    /// How many dispatched jobs of a route may wait for a worker before its buckets are held.
    pub max_ready: u64,
    /// How many jobs or buckets one call handles, 1 to 1,000.
    pub batch: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_job_bytes: 1_048_576, rejected_keep: 10_000, max_ready: 10_000, batch: 100 }
    }
}

/// The record that the functions obey: stored in Redis whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Record {
    /// What applies where no entry matches.
    pub defaults: Policy,
    /// The entries; the first that matches wins.
    pub buckets: Vec<Matched>,
    /// Bounds for all.
    pub limits: Limits,
}

impl Record {
    /// The record as it is stored: the same configuration always gives the same text. An entry names only the keys in which it
    /// differs from the defaults: there may be ten thousand entries, and each server that meets the record has to read them all.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut record = serde_json::to_value(self).expect("a record holds only numbers and text");
        let defaults = record["defaults"].clone();
        for entry in record["buckets"].as_array_mut().into_iter().flatten() {
            if let Some(policy) = entry["policy"].as_object_mut() {
                policy.retain(|key, value| defaults[key.as_str()] != *value);
            }
        }
        record.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_record_names_only_what_differs_from_the_defaults() {
        let policy = Policy { capacity: 5, ..Policy::default() };
        let entry = |glob: &str, policy| Matched { glob: glob.to_owned(), policy };
        let buckets = vec![entry("a", policy), entry("b*", Policy::default())];
        let json = Record { buckets, ..Record::default() }.to_json();
        assert!(json.contains(r#"[{"match":"a","policy":{"capacity":5}},{"match":"b*","policy":{}}]"#), "{json}");
    }
}
