//! Policies: rate, capacity, lease, attempts, back-off, overflow, route, catch-up, gates and the place in a tree; and
//! the record of all policies.
//! Nothing is computed here: the functions in Redis alone decide what a policy means for a bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::model::duration::micros;
use crate::model::forward::Forward;
use crate::model::limiter::Limiter;
use crate::model::node::{Budget, Node};
use crate::model::parent::Parent;
use crate::model::partitioning::Partitioning;
use crate::model::rate::Rate;
use crate::model::ready_window::ReadyWindow;
use crate::model::route::Route;
use crate::model::words;

words! {
    /// What happens to a job that comes to a full bucket.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Overflow {
        /// The new job is rejected.
        Reject = "reject",
        /// The new job goes in and the oldest waiting one is dropped.
        DropOldest = "drop-oldest",
    }
}

/// Everything that applies to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The rate at which jobs leave.
    pub rate: Rate,
    /// How many jobs may wait, 1 to 10,000,000.
    pub capacity: u32,
    /// How long a worker may hold a job, 1 s to 7 d.
    pub lease: Duration,
    /// How often a job is tried before it is dead, 1 to 1,000.
    pub attempts: u32,
    /// The wait before the second try; it doubles before each further one.
    pub backoff_initial: Duration,
    /// The longest wait before a try.
    pub backoff_max: Duration,
    /// The treatment of a job that comes to a full bucket.
    pub overflow: Overflow,
    /// The route that its jobs take.
    pub route: Route,
    /// The most lateness that is made up: at most 1 s or one interval of the rate, whichever is longer.
    pub catch_up: Duration,
    /// Whether somebody set `catch_up`. Inside a budget only a value that was set applies; otherwise a default for the
    /// place in the tree does.
    pub is_catch_up_set: bool,
    /// The gates: limiters that a job must pass at the doors that run code. A plain push passes none.
    pub admit: Vec<Limiter>,
    /// Whether jobs finish in the order in which they were pushed; needs a concurrency of 1.
    pub ordered: bool,
    /// For how long the id of a submitted job is remembered, 1 s to 7 d.
    pub dedup: Duration,
    /// How long a submitted job may wait where it does not say so itself; none: no limit.
    pub ttl: Option<Duration>,
    /// The most that a job may cost, 1 to 100,000; none: [`Policy::cost_limit`] follows from the rate.
    pub cost_max: Option<u64>,
    /// The settings that a bucket has in common with a budget, its place in a tree among them.
    pub node: Node,
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
            is_catch_up_set: false,
            admit: Vec::new(),
            ordered: false,
            dedup: Duration::from_secs(600),
            ttl: None,
            cost_max: None,
            node: Node::default(),
        }
    }
}

impl Policy {
    /// The highest cost of a job, whatever is configured.
    pub const COST_MOST: u64 = 100_000;

    /// The most that a job may cost: `cost_max`, or what the rate lets out in a minute, 1 to 100,000. (The functions
    /// compute the same: policy/prepared.)
    pub fn cost_limit(&self) -> u64 {
        let in_a_minute = u128::from(self.rate.count()) * 60_000_000 / self.rate.period().as_micros();
        let most = u64::try_from(in_a_minute).unwrap_or(Self::COST_MOST).clamp(1, Self::COST_MOST);
        self.cost_max.unwrap_or(most)
    }

    /// The longest `catch_up` at a rate: one interval, and at least 1 s.
    pub fn longest_catch_up(rate: Rate) -> Duration {
        (rate.period() / rate.count()).max(Duration::from_secs(1))
    }
}

/// Fields of `[defaults]` that the record leaves out while they have the value of [`Policy::default`].
const IF_USED: [&str; 13] = [
    "catch_up_set",
    "within",
    "weight",
    "concurrency",
    "ordered",
    "quotas",
    "slow",
    "dedup_us",
    "ttl_us",
    "cost_max",
    "job_count",
    "job_period_us",
    "told",
];

/// Serialized as the functions read it: durations in whole microseconds, the lease in milliseconds. A setting that is
/// absent is the empty value of its type: `""`, 0 or `[]`.
impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Policy", 24)?;
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
        s.serialize_field("catch_up_set", &self.is_catch_up_set)?;
        s.serialize_field("admit", &self.admit)?;
        s.serialize_field("within", self.node.within.as_ref().map_or("", Parent::as_str))?;
        s.serialize_field("weight", &self.node.weight)?;
        s.serialize_field("concurrency", &self.node.concurrency.unwrap_or(0))?;
        s.serialize_field("ordered", &self.ordered)?;
        s.serialize_field("quotas", &self.node.quotas)?;
        s.serialize_field("slow", &self.node.slow)?;
        s.serialize_field("dedup_us", &micros(self.dedup))?;
        s.serialize_field("ttl_us", &self.ttl.map_or(0, micros))?;
        s.serialize_field("cost_max", &self.cost_max.unwrap_or(0))?;
        s.serialize_field("job_count", &self.node.job_rate.map_or(0, Rate::count))?;
        s.serialize_field("job_period_us", &self.node.job_rate.map_or(0, |rate| micros(rate.period())))?;
        s.serialize_field("told", self.node.told.as_str())?;
        s.end()
    }
}

/// An entry for the names that match a glob: a `[[bucket]]` or a `[[budget]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Matched<T = Policy> {
    /// A glob as in Redis `KEYS`, on bytes.
    #[serde(rename = "match")]
    pub glob: String,
    /// The settings of the entry. For a bucket they are `[defaults]`, overridden key by key; for a budget only what the
    /// entry says.
    pub policy: T,
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
    /// How old undelivered jobs of a route may become before its buckets are held. A route may have a window of its
    /// own.
    #[serde(rename = "ready_window_us", skip_serializing_if = "ReadyWindow::is_default")]
    pub ready_window: ReadyWindow,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_job_bytes: 1_048_576,
            rejected_keep: 10_000,
            max_ready: 10_000,
            batch: 100,
            ready_window: ReadyWindow::default(),
        }
    }
}

/// The record that the functions obey. Redis stores it as one value, which is always replaced whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The policy of buckets that match no entry.
    pub defaults: Policy,
    /// The `[[bucket]]` entries; the first that matches wins.
    pub buckets: Vec<Matched>,
    /// The `[[budget]]` entries; the first that matches wins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Matched<Budget>>,
    /// The routes that forward.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Forward>,
    /// The ready windows of routes that have one of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ready_windows: BTreeMap<Route, ReadyWindow>,
    /// Bounds that hold for all buckets.
    pub limits: Limits,
    /// The partitioning; left out where there is a single partition.
    #[serde(skip_serializing_if = "Partitioning::is_single", rename = "cut")]
    pub partitioning: Partitioning,
}

impl Record {
    /// The settings of a route that forwards; `None` for a route whose jobs go to a ready stream.
    pub fn forward(&self, route: &Route) -> Option<&Forward> {
        self.routes.iter().find(|forward| forward.name == *route)
    }

    /// The ready window of a route: its own, or that of `[limits]`.
    pub fn ready_window(&self, route: &Route) -> ReadyWindow {
        self.ready_windows.get(route).copied().unwrap_or(self.limits.ready_window)
    }

    /// Whether any policy has a `ttl`, after which waiting jobs are given up.
    pub fn has_ttl(&self) -> bool {
        self.defaults.ttl.is_some() || self.buckets.iter().any(|entry| entry.policy.ttl.is_some())
    }

    /// The record as JSON; the same configuration always gives the same text.
    ///
    /// An entry contains only the keys in which it differs from `[defaults]`: there may be ten thousand entries, and
    /// each server that gets the record has to read them all. Features that are not used are left out, so that such a
    /// record equals that of earlier versions.
    pub fn to_json(&self) -> String {
        let mut record = serde_json::to_value(self).expect("a record holds only numbers and text");
        let defaults = record["defaults"].clone();
        for entry in record["buckets"].as_array_mut().into_iter().flatten() {
            if let Some(policy) = entry["policy"].as_object_mut() {
                policy.retain(|key, value| defaults[key.as_str()] != *value);
            }
        }
        let unused = serde_json::to_value(Policy::default()).expect("as above");
        if let Some(policy) = record["defaults"].as_object_mut() {
            policy.retain(|key, value| !IF_USED.contains(&key.as_str()) || unused[key.as_str()] != *value);
        }
        record.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::node::{Slow, Told};
    use crate::model::quota::Quota;

    fn entry<T>(glob: &str, policy: T) -> Matched<T> {
        Matched { glob: glob.to_owned(), policy }
    }

    fn json_of(record: &Record) -> Value {
        serde_json::from_str(&record.to_json()).expect("JSON")
    }

    fn within(name: &str) -> Node {
        Node { within: Some(Parent::parse(name).expect("a name")), ..Node::default() }
    }

    #[test]
    fn an_entry_of_a_record_names_only_what_differs_from_the_defaults() {
        let policy = Policy { capacity: 5, ..Policy::default() };
        let buckets = vec![entry("a", policy), entry("b*", Policy::default())];
        let json = Record { buckets, ..Record::default() }.to_json();
        assert!(json.contains(r#"[{"match":"a","policy":{"capacity":5}},{"match":"b*","policy":{}}]"#), "{json}");
    }

    #[test]
    fn without_a_tree_a_record_is_to_the_byte_what_it_was_before_there_were_trees() {
        let policy = Policy { capacity: 5, catch_up: Duration::ZERO, ..Policy::default() };
        let record = Record { buckets: vec![entry("a", policy)], ..Record::default() };
        let before = r#"{"buckets":[{"match":"a","policy":{"capacity":5,"catch_up_us":0}}],"defaults":{"admit":[],"attempts":5,"backoff_initial_us":1000000,"backoff_max_us":600000000,"capacity":1000,"catch_up_us":20000,"count":10,"lease_ms":60000,"overflow":"reject","period_us":1000000,"route":"default"},"limits":{"batch":100,"max_job_bytes":1048576,"max_ready":10000,"rejected_keep":10000}}"#;
        assert_eq!(record.to_json(), before);
    }

    #[test]
    fn what_is_used_is_named_and_what_an_entry_takes_away_too() {
        let slow = Slow { adaptive: true, ..Slow::default() };
        let quotas = vec![Quota::parse("1000/d@-08:00").expect("a quota")];
        let job_rate = Some(Rate::parse("500/m").expect("a rate"));
        let told = Told::Spread;
        let node = Node { weight: 3, concurrency: Some(1), quotas, slow, job_rate, told, ..within("a") };
        let (dedup, ttl) = (Duration::from_secs(60), Some(Duration::from_secs(30)));
        let all =
            Policy { ordered: true, is_catch_up_set: true, dedup, ttl, cost_max: Some(700), node, ..Policy::default() };
        let said = json!({
            "within": "a", "weight": 3, "concurrency": 1, "ordered": true, "catch_up_set": true,
            "quotas": [{ "count": 1000, "period_us": 86_400_000_000_u64, "offset_us": -28_800_000_000_i64 }],
            "slow": { "initial_us": 1_000_000, "max_us": 600_000_000, "cap_us": 3_600_000_000_u64, "adaptive": true },
            "dedup_us": 60_000_000, "ttl_us": 30_000_000, "cost_max": 700, "job_count": 500, "job_period_us": 60_000_000,
            "told": "spread",
        });
        let record = Record { buckets: vec![entry("x", all.clone())], ..Record::default() };
        assert_eq!(json_of(&record)["buckets"][0]["policy"], said);
        let bare = Policy { is_catch_up_set: true, ..Policy::default() };
        let record =
            Record { defaults: all.clone(), buckets: vec![entry("x", bare), entry("y", all)], ..Record::default() };
        let json = json_of(&record);
        for (key, value) in said.as_object().expect("a table") {
            assert_eq!(json["defaults"][key], *value, "{key}");
        }
        let taken = json!({
            "within": "", "weight": 1, "concurrency": 0, "ordered": false, "quotas": [],
            "slow": { "initial_us": 1_000_000, "max_us": 600_000_000, "cap_us": 3_600_000_000_u64, "adaptive": false },
            "dedup_us": 600_000_000, "ttl_us": 0, "cost_max": 0, "job_count": 0, "job_period_us": 0, "told": "stop",
        });
        assert_eq!((&json["buckets"][0]["policy"], &json["buckets"][1]["policy"]), (&taken, &json!({})));
    }

    #[test]
    fn a_budget_of_a_record_names_only_what_it_says() {
        let rate = Some(Rate::parse("3000/m").expect("a rate"));
        let catch_up = Some(Duration::from_millis(20));
        let node = Node {
            weight: 2,
            concurrency: Some(9),
            quotas: vec![Quota::parse("5/h").expect("a quota")],
            job_rate: Some(Rate::parse("7/s").expect("a rate")),
            told: Told::Off,
            ..within("up")
        };
        let budgets =
            vec![entry("a", Budget { rate, ..Budget::default() }), entry("b:*", Budget { rate, catch_up, node })];
        let json = json_of(&Record { budgets, ..Record::default() });
        let expected = json!([
            { "match": "a", "policy": { "count": 3000, "period_us": 60_000_000 } },
            { "match": "b:*", "policy": {
                "within": "up", "count": 3000, "period_us": 60_000_000, "catch_up_us": 20_000, "catch_up_set": true, "weight": 2,
                "concurrency": 9, "quotas": [{ "count": 5, "period_us": 3_600_000_000_u64, "offset_us": 0 }],
                "job_count": 7, "job_period_us": 1_000_000, "told": "off",
            } },
        ]);
        assert_eq!(json["budgets"], expected);
    }
}
