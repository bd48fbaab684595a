//! Nodes: the settings that buckets and budgets share as parts of a tree; and budgets, which are nodes without a queue.
//! The functions in Redis alone decide what the settings mean.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::model::duration::micros;
use crate::model::parent::Parent;
use crate::model::quota::Quota;
use crate::model::rate::Rate;
use crate::model::words;

words! {
    /// What follows when the other side says how much more it lets through until its limit resets.
    #[derive(Default)]
    pub enum Told {
        /// Nothing.
        Off = "off",
        /// When nothing is left, nothing leaves until the reset.
        #[default]
        Stop = "stop",
        /// What is left is spread evenly over the time until the reset.
        Spread = "spread",
    }
}

words! {
    /// What a limit of the other side counts.
    #[derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Units {
        /// Jobs.
        Job = "job",
        /// What they cost.
        Cost = "cost",
    }
}

impl Units {
    /// Several of them, in words.
    pub fn counted(self) -> &'static str {
        match self {
            Self::Job => "jobs",
            Self::Cost => "units of cost",
        }
    }
}

/// The settings that a bucket and a budget have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The budget above this node; none: the node is a root.
    pub within: Option<Parent>,
    /// The weight of its share in that budget, relative to its siblings, 1 to 1,000.
    pub weight: u32,
    /// The most jobs in flight, 1 to 100,000; none: no limit.
    pub concurrency: Option<u32>,
    /// Limits for each window of the calendar; all of them apply.
    pub quotas: Vec<Quota>,
    /// The settings of slow-downs.
    pub slow: Slow,
    /// A second rate that counts jobs, whatever they cost; none: only the rate applies.
    pub job_rate: Option<Rate>,
    /// What follows from the limits that the other side tells.
    pub told: Told,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            within: None,
            weight: 1,
            concurrency: None,
            quotas: Vec::new(),
            slow: Slow::default(),
            job_rate: None,
            told: Told::default(),
        }
    }
}

/// The settings of slow-downs: what happens when the other side says that jobs come too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// The first pause where the other side names no time; it doubles with each further one.
    pub initial: Duration,
    /// The longest pause where the other side names no time.
    pub max: Duration,
    /// The longest pause where the other side names a time.
    pub cap: Duration,
    /// Whether the rate is lowered as well.
    pub adaptive: bool,
}

impl Default for Slow {
    fn default() -> Self {
        let (initial, max, cap) = (Duration::from_secs(1), Duration::from_secs(600), Duration::from_secs(3_600));
        Self { initial, max, cap, adaptive: false }
    }
}

/// Serialized as the functions read it: durations in whole microseconds.
impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Slow", 4)?;
        s.serialize_field("initial_us", &micros(self.initial))?;
        s.serialize_field("max_us", &micros(self.max))?;
        s.serialize_field("cap_us", &micros(self.cap))?;
        s.serialize_field("adaptive", &self.adaptive)?;
        s.end()
    }
}

/// A budget: a node without a queue that paces and bounds the buckets and budgets below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budget {
    /// The rate of all jobs below this budget together; none: no rate.
    pub rate: Option<Rate>,
    /// The most lateness that is made up; none: a default that depends on the place in the tree.
    pub catch_up: Option<Duration>,
    /// The settings that a budget has in common with a bucket.
    pub node: Node,
}

impl Budget {
    /// Whether the budget bounds anything: it has a rate, a job rate, a quota or a concurrency.
    pub fn limits_something(&self) -> bool {
        self.rate.is_some()
            || self.node.job_rate.is_some()
            || !self.node.quotas.is_empty()
            || self.node.concurrency.is_some()
    }
}

/// Serialized as the functions read it: only settings that differ from their defaults, durations in microseconds.
impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut map, node, default) = (serializer.serialize_map(None)?, &self.node, Node::default());
        if let Some(within) = &node.within {
            map.serialize_entry("within", within)?;
        }
        if let Some(rate) = self.rate {
            map.serialize_entry("count", &rate.count())?;
            map.serialize_entry("period_us", &micros(rate.period()))?;
        }
        if let Some(catch_up) = self.catch_up {
            map.serialize_entry("catch_up_us", &micros(catch_up))?;
            map.serialize_entry("catch_up_set", &true)?;
        }
        if node.weight != default.weight {
            map.serialize_entry("weight", &node.weight)?;
        }
        if let Some(concurrency) = node.concurrency {
            map.serialize_entry("concurrency", &concurrency)?;
        }
        if !node.quotas.is_empty() {
            map.serialize_entry("quotas", &node.quotas)?;
        }
        if node.slow != default.slow {
            map.serialize_entry("slow", &node.slow)?;
        }
        if let Some(rate) = node.job_rate {
            map.serialize_entry("job_count", &rate.count())?;
            map.serialize_entry("job_period_us", &micros(rate.period()))?;
        }
        if node.told != default.told {
            map.serialize_entry("told", node.told.as_str())?;
        }
        map.end()
    }
}
