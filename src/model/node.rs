//! Nodes: what buckets and budgets have in common as parts of a tree, and budgets, which are nothing else.
//! What they mean is decided by the functions in Redis alone.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::model::duration::micros;
use crate::model::parent::Parent;
use crate::model::quota::Quota;
use crate::model::rate::Rate;

/// What a bucket or a budget is in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The budget above it.
    pub within: Option<Parent>,
    /// Its share of that, next to the others, 1 to 1,000.
    pub weight: u32,
    /// The most jobs in flight, 1 to 100,000; none: any number.
    pub concurrency: Option<u32>,
    /// At most so many in a window of the calendar.
    pub quotas: Vec<Quota>,
    /// How it slows down.
    pub slow: Slow,
    /// How fast jobs leave whatever they cost, beside the rate.
    pub job_rate: Option<Rate>,
}

impl Default for Node {
    fn default() -> Self {
        Self { within: None, weight: 1, concurrency: None, quotas: Vec::new(), slow: Slow::default(), job_rate: None }
    }
}

/// What happens when the other side says that it is too fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// The first pause where the other side names no time; it doubles with each further one.
    pub initial: Duration,
    /// The longest such pause.
    pub max: Duration,
    /// The longest pause where it names one.
    pub cap: Duration,
    /// Whether the rate is lowered too.
    pub adaptive: bool,
}

impl Default for Slow {
    fn default() -> Self {
        let (initial, max, cap) = (Duration::from_secs(1), Duration::from_secs(600), Duration::from_secs(3_600));
        Self { initial, max, cap, adaptive: false }
    }
}

/// As the functions read it.
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

/// A budget: a node without a queue, that paces and bounds what is below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Budget {
    /// How fast jobs leave all that is below it; none: at any pace.
    pub rate: Option<Rate>,
    /// The most lateness that is made up; none: what suits its place in the tree.
    pub catch_up: Option<Duration>,
    /// What it has in common with a bucket.
    pub node: Node,
}

impl Budget {
    /// Whether it bounds anything.
    pub fn limits_something(&self) -> bool {
        self.rate.is_some()
            || self.node.job_rate.is_some()
            || !self.node.quotas.is_empty()
            || self.node.concurrency.is_some()
    }
}

/// As the functions read it: only what it says.
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
        map.end()
    }
}
