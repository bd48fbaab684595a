//! Policies: rate, capacity, lease, attempts, back-off, overflow, route, catch-up and gates, as words that cannot be wrong.
//! Nothing is computed here: what a rate means for a due is decided by the functions in Redis alone.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::words::duration::{count_per_period, show_per_period};
use crate::words::limiter::Limiter;

const DAY: Duration = Duration::from_secs(86_400);

/// How many jobs leave a bucket in a period, evenly spaced: `count/period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    period: Duration,
}

impl Rate {
    /// What a rate looks like, for error messages.
    pub const HINT: &'static str = "write count/period, as in 5/s, 30/60s, 1/500ms or 50/d: count 1 to 1000000, period 1ms to 366d, \
         at least 1us between two jobs";

    /// Read `count/period`: `5/s`, `30/60s`, `1/500ms`.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`], for a text that is none or a rate out of bounds.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (count, period) = count_per_period(text).ok_or(Self::HINT)?;
        let in_bounds = (1..=1_000_000).contains(&count)
            && (Duration::from_millis(1)..=366 * DAY).contains(&period)
            && period.as_micros() >= u128::from(count)
            && !text.ends_with("us");
        if in_bounds { Ok(Self { count, period }) } else { Err(Self::HINT) }
    }

    /// Jobs in a period.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// The length of a period.
    #[must_use]
    pub fn period(self) -> Duration {
        self.period
    }

    /// Jobs a second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        f64::from(self.count) / self.period.as_secs_f64()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_per_period(self.count, self.period))
    }
}

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
            rate: Rate { count: 10, period: Duration::from_secs(1) },
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
        s.serialize_field("count", &self.rate.count)?;
        s.serialize_field("period_us", &micros(self.rate.period))?;
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
    /// The record as it is stored: the same configuration always gives the same text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a record holds only numbers and text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_count_and_a_period() {
        for (text, count, us) in [
            ("5/s", 5, 1_000_000),
            ("30/60s", 30, 60_000_000),
            ("1/500ms", 1, 500_000),
            ("50/d", 50, 86_400_000_000),
            ("1000000/s", 1_000_000, 1_000_000),
            ("1/366d", 1, 366 * 86_400_000_000),
        ] {
            let rate = Rate::parse(text).expect(text);
            assert_eq!((rate.count(), micros(rate.period())), (count, us), "{text}");
        }
        for bad in [
            "",
            "5",
            "5/",
            "/s",
            "0/s",
            "5/0s",
            "5/sec",
            "1.5/s",
            "5/1.5s",
            "-1/s",
            "1000001/s",
            "1/367d",
            "1001/1ms",
            "5/10us",
            "1/999us",
            "1/5000us",
            " 5/s",
            "5/s ",
            "0x5/s",
            "5//s",
        ] {
            assert!(Rate::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_is_shown_as_it_is_written() {
        for text in ["5/s", "30/m", "1/500ms", "50/d", "1/10s", "100/h"] {
            assert_eq!(Rate::parse(text).expect(text).to_string(), text);
        }
    }
}
