//! A simulated system on a throw-away server: the real functions, and beside them an event loop (`event_loop.lua`) that
//! pushes, drains and works at simulated times.

use serde::Serialize;

use super::client::Store;
use super::connection::{StoreError, Text};
use super::explain::Facts;
use super::library::source;
use crate::model::bucket::BucketName;
use crate::model::policy::Record;

/// The event loop.
const EVENT_LOOP: &str = include_str!("event_loop.lua");

/// Who takes jobs, and how it goes.
#[derive(Debug, Clone, Serialize)]
pub struct World {
    /// The seed of everything that happens by chance: 1 to 2^31 − 2.
    pub seed: u32,
    /// How jobs go, by the kind that their text names; jobs of another kind succeed.
    pub kinds: Vec<Kind>,
    /// The workers of each route.
    pub routes: Vec<RouteWorkers>,
}

/// How jobs of a kind go.
#[derive(Debug, Clone, Serialize)]
pub struct Kind {
    /// The share of tries that fail, 0 to 1.
    pub fail: f64,
    /// The share of tries that the other side refuses because they come too fast, 0 to 1.
    pub throttle: f64,
    /// The wait that it asks for then, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether workers say what a job really cost: the fourth number of its text.
    pub is_corrected: bool,
}

/// The workers of a route.
#[derive(Debug, Clone, Serialize)]
pub struct RouteWorkers {
    /// The route.
    pub name: String,
    /// Workers of one sort each.
    pub groups: Vec<Group>,
}

/// Workers of one sort.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// The name by which they read.
    pub name: String,
    /// How many there are.
    pub free: u64,
    /// How long a job takes, or its mean, in microseconds.
    pub service_us: u64,
    /// Whether that varies exponentially.
    pub is_exponential: bool,
    /// When they take no jobs, in microseconds since the beginning.
    pub away: Vec<(u64, u64)>,
}

/// Jobs that a producer sends to a bucket in one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// When, in microseconds since the beginning.
    pub at_us: u64,
    /// The bucket.
    pub bucket: BucketName,
    /// Whether it is one job with options, which is submitted, as words; otherwise jobs, which are pushed.
    pub is_submitted: bool,
    /// The jobs, or the job and its options.
    pub words: Vec<String>,
}

/// What became of an arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// So many jobs of a push were accepted.
    Accepted(u64),
    /// The verdict of a submit, or an error.
    Said(String),
}

/// What happened to accepted jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker took one.
    Taken {
        /// Its text.
        job: String,
        /// Whether for the first time.
        is_first: bool,
        /// Whether after its deadline.
        is_late: bool,
    },
    /// Some were dropped.
    Dropped {
        /// Their bucket.
        bucket: String,
        /// How many.
        jobs: u64,
        /// Whether at their turn, because their deadline was over; otherwise newer ones pushed them out.
        is_late: bool,
    },
    /// A try of one failed: its text. It waits for another, or is given up at the same time.
    Failed(String),
    /// One was given up: its text.
    Dead(String),
}

/// What happened in a part of the simulated time.
#[derive(Debug, Default)]
pub struct Step {
    /// The time that was reached, in microseconds since the epoch.
    pub reached_us: u64,
    /// The verdicts of the arrivals that were due by then, in their order.
    pub verdicts: Vec<Verdict>,
    /// What happened to accepted jobs, and when, in microseconds since the beginning, in their order.
    pub events: Vec<(u64, Event)>,
    /// How many times a job failed, and was refused because it came too fast, since the beginning.
    pub failed: u64,
    /// See `failed`.
    pub throttled: u64,
}

/// The time; how many arguments were used; the verdicts; events; failed and throttled tries.
type StepReply = (u64, usize, Vec<redis::Value>, Vec<(Text, u64, u64)>, u64, u64);

fn event((Text(text), at_us, how): (Text, u64, u64)) -> Option<(u64, Event)> {
    let event = match how {
        0..4 => Event::Taken { job: text, is_first: how & 1 == 1, is_late: how & 2 == 2 },
        6 => Event::Dead(text),
        7 => Event::Failed(text),
        _ => {
            let (jobs, bucket) = text.split_once(' ')?;
            Event::Dropped { bucket: bucket.to_owned(), jobs: jobs.parse().ok()?, is_late: how == 4 }
        }
    };
    Some((at_us, event))
}

impl Store {
    /// Begin: put the functions, this record and this world on an empty server.
    pub async fn begin_simulation(&mut self, record: &Record, now_us: u64, world: &World) -> Result<(), StoreError> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(format!("{}{EVENT_LOOP}", source()));
        self.call("FUNCTION LOAD", &load).await?;
        let policy = self.keys().policy();
        self.call_function("drip__policy", &[&policy], (now_us, "simulation", record.to_json(), "replace", "{}"))
            .await?;
        self.beat_in_simulation(now_us).await?;
        let world = serde_json::to_string(world).expect("it is text and numbers");
        self.call_function("drip__begin_simulation", &[&policy], (now_us, world)).await?;
        Ok(())
    }

    /// What happens until a time, in microseconds since the epoch, or as much of it as one call does. `arrivals` are due
    /// by then, in their order; those without a verdict in the reply are for the next call.
    pub async fn simulate(
        &mut self,
        start_us: u64,
        till_us: u64,
        arrivals: impl Iterator<Item = &Arrival>,
    ) -> Result<Step, StoreError> {
        let mut command = redis::cmd("FCALL");
        command.arg("drip__simulate").arg(1).arg(self.keys().policy()).arg(till_us);
        for arrival in arrivals {
            command.arg(start_us + arrival.at_us).arg(arrival.bucket.as_str()).arg(arrival.words.len());
            command.arg(u8::from(arrival.is_submitted)).arg(&arrival.words);
        }
        let reply = self.call("drip__simulate", &command).await?;
        let verdict = |value| match value {
            redis::Value::Int(n) => u64::try_from(n).ok().map(Verdict::Accepted),
            other => redis::from_redis_value::<Text>(other).ok().map(|text| Verdict::Said(text.0)),
        };
        reply.decode_with(|(reached_us, _, verdicts, events, failed, throttled): StepReply| {
            Some(Step {
                reached_us,
                verdicts: verdicts.into_iter().map(verdict).collect::<Option<_>>()?,
                events: events.into_iter().map(event).collect::<Option<_>>()?,
                failed,
                throttled,
            })
        })
    }

    /// The jobs that wait in a bucket at the end and that no worker has taken yet; `None`: those of them that lie ready
    /// for workers. Then those of them whose deadline has passed.
    pub async fn still_waiting(
        &mut self,
        bucket: Option<&BucketName>,
        now_us: u64,
    ) -> Result<[Vec<String>; 2], StoreError> {
        let key = bucket.map_or_else(|| self.keys().policy(), |bucket| self.keys().queue(bucket));
        let jobs: (Vec<Text>, Vec<Text>) = self.call_function("drip__still_waiting", &[key], now_us).await?.decode()?;
        let texts = |jobs: Vec<Text>| jobs.into_iter().map(|job| job.0).collect();
        Ok([texts(jobs.0), texts(jobs.1)])
    }

    /// A daemon is alive, for whoever asks what binds.
    pub async fn beat_in_simulation(&mut self, now_us: u64) -> Result<(), StoreError> {
        let daemons = self.keys().daemons();
        self.call_function("drip__beat", &[daemons], (now_us, "simulated", "{}")).await.map(drop)
    }

    /// Why a bucket waits at a simulated time.
    pub async fn explain_at(&mut self, bucket: &BucketName, now_us: u64) -> Result<Facts, StoreError> {
        Facts::read(self.call_read_only("drip__explain", &[self.keys().queue(bucket)], now_us).await?.value)
    }
}
