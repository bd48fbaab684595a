//! Traffic: what producers send, as a trace holds it and as it is generated.

use std::time::Duration;

use crate::model::bucket::BucketName;

/// What producers send at a moment: jobs of one sort to one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Push {
    /// When, in microseconds since the beginning.
    pub at_us: u64,
    /// Where to.
    pub bucket: BucketName,
    /// How many.
    pub jobs: u64,
    /// What is said of each.
    pub job: Job,
    /// Which load they are of; `None`: of a trace.
    pub kind: Option<usize>,
}

/// The options of a job; without any it is pushed, with some it is submitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: Option<String>,
    /// Its cost.
    pub cost: Option<u64>,
    /// What it really costs, as a worker says when it is done.
    pub real: Option<u64>,
    /// How long it waits at least.
    pub delay: Option<Duration>,
    /// How long it may wait.
    pub ttl: Option<Duration>,
}

impl Job {
    /// The options as `drip_submit` takes them.
    pub(super) fn words(&self) -> Vec<String> {
        let ms = |time: Duration| time.as_millis().to_string();
        let options = [
            ("ID", self.id.clone()),
            ("COST", self.cost.map(|cost| cost.to_string())),
            ("DELAY", self.delay.map(ms)),
            ("TTL", self.ttl.map(ms)),
        ];
        options.into_iter().filter_map(|(name, value)| Some([name.to_owned(), value?])).flatten().collect()
    }
}
