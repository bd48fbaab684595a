//! What a simulation measures: for each group of buckets and each budget, how many jobs came, left and waited, how long,
//! and what bound them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::model::bucket::BucketName;
use crate::model::glob::Glob;
use crate::store::explain::Level;

/// So many slots a run is cut into: what binds is asked at the end of each, and a plot has a point for it.
pub const SLOTS: usize = 300;

/// A number that a slot of time ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// The median wait of the jobs that were taken in it, in microseconds; `None`: none was.
    pub p50_us: Option<u64>,
    /// The 99th percentile of these.
    pub p99_us: Option<u64>,
    /// The most jobs that waited in it.
    pub waiting: u64,
}

/// How many jobs came and went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Jobs that producers sent.
    pub pushed: u64,
    /// Those that were accepted.
    pub accepted: u64,
    /// Those that were refused.
    pub rejected: u64,
    /// Those that were accepted, and dropped again because newer ones took their place.
    pub pushed_out: u64,
    /// Those that were not sent again, because their id was known.
    pub duplicate: u64,
    /// Those that were refused because they could not be in time, dropped after their deadline, or taken after it.
    pub late: u64,
    /// Those that workers took, each counted once.
    pub taken: u64,
    /// How many times workers took a job, each try counted.
    pub tries: u64,
    /// The costs of all tries.
    pub units: u64,
    /// Those that were given up: after their last try, or because their next one came too late.
    pub dead: u64,
    /// Those that no worker has taken at the end.
    pub waiting: u64,
    /// Those that workers took, and that wait for another try at the end.
    pub retrying: u64,
}

/// What a rate lets through.
#[derive(Debug, Clone, Copy, Default)]
struct Allowed {
    /// A second: of a pattern that of all its buckets together; `None`: one of them has no such rate.
    per_second: Option<f64>,
    /// In all: of a pattern that of all its buckets together, of each at least a job.
    in_all: f64,
}

impl Allowed {
    /// What a rate allows in so long: a last job may begin with what is left, whatever it costs.
    fn in_all(per_second: Option<f64>, seconds: f64, most_cost: u64) -> f64 {
        let most_cost = most_cost as f64;
        per_second.map_or(0.0, |limit| (limit * seconds / most_cost - 1e-9).ceil() * most_cost)
    }

    /// How much of it these used, 0 to 1; `None`: there is no such rate.
    fn used(self, by: u64) -> Option<f64> {
        self.per_second.filter(|limit| *limit > 0.0).map(|_| by as f64 / self.in_all)
    }
}

/// A group of buckets: those with the names of a pattern, or those below a budget.
#[derive(Debug)]
pub struct Group {
    /// The pattern, or the name of the budget.
    pub name: String,
    /// Whether it is a budget.
    pub is_budget: bool,
    glob: Option<Glob>,
    /// How many jobs came and went.
    pub counts: Counts,
    /// How many buckets of it had traffic.
    pub buckets: u64,
    /// What its rate, and its `job_rate`, let through.
    allowed: [Allowed; 2],
    most_cost: u64,
    /// From the push until a worker took the job, or until the end, in microseconds.
    pub waits: Histogram<u64>,
    /// The longest of these.
    pub longest_us: u64,
    slot: Histogram<u64>,
    most_waiting: u64,
    /// Whether it is among those that changed at this moment.
    is_changed: bool,
    /// Over time.
    pub slots: Vec<Slot>,
    /// The bucket that is asked next what binds it.
    asked: usize,
    /// How often each reason bound a waiting bucket that was asked.
    pub bound: BTreeMap<String, u64>,
    /// Of each bucket the share of its accepted jobs that left: their sum and the sum of their squares.
    served: (f64, f64),
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are possible")
}

impl Group {
    fn new(name: String, is_budget: bool) -> Self {
        let glob = (!is_budget).then(|| Glob::parse(&name));
        Self {
            name,
            is_budget,
            glob,
            counts: Counts::default(),
            buckets: 0,
            allowed: [Allowed::default(); 2],
            most_cost: 1,
            waits: histogram(),
            longest_us: 0,
            slot: histogram(),
            most_waiting: 0,
            is_changed: false,
            slots: Vec::new(),
            asked: 0,
            bound: BTreeMap::new(),
            served: (0.0, 0.0),
        }
    }

    /// Jain's index of fairness (Jain, Chiu and Hawe 1984) of the shares of their accepted jobs that left the buckets:
    /// 1 where all were served alike, 1/n where one of n was served alone; `None`: nobody was.
    pub fn fairness(&self) -> Option<f64> {
        let (sum, squares) = self.served;
        (squares > 0.0).then(|| sum * sum / (self.buckets as f64 * squares))
    }

    /// How much of what its rates let through was used, of the one that was used most, 0 to 1; `None`: it has none.
    pub fn used(&self) -> Option<f64> {
        let of_each = self.allowed.iter().zip([self.counts.units, self.counts.tries]);
        of_each.filter_map(|(allowed, by)| allowed.used(by)).reduce(f64::max)
    }
}

/// A bucket that had traffic.
#[derive(Debug)]
struct Bucket {
    name: BucketName,
    groups: Vec<usize>,
    /// What its rate, and its `job_rate`, let through a second.
    per_second: [Option<f64>; 2],
    most_cost: u64,
    counts: Counts,
}

fn per_second(level: &Level) -> [Option<f64>; 2] {
    [level.policy.per_second(), level.policy.jobs_per_second()]
}

/// Everything that is measured in one run.
#[derive(Debug)]
pub struct Measures {
    /// The patterns first, then the budgets.
    pub groups: Vec<Group>,
    lasts_us: u64,
    budgets: HashMap<String, usize>,
    buckets: Vec<Bucket>,
    by_name: HashMap<BucketName, usize>,
    moment_us: u64,
    /// Groups in which something was counted at this moment.
    changed: Vec<usize>,
}

impl Measures {
    /// Measure groups of buckets by these patterns, for so long.
    pub fn new(patterns: &[String], lasts: Duration) -> Self {
        let groups = patterns.iter().map(|pattern| Group::new(pattern.clone(), false)).collect();
        let lasts_us = u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX);
        let (budgets, by_name) = (HashMap::new(), HashMap::new());
        Self { groups, lasts_us, budgets, buckets: Vec::new(), by_name, moment_us: 0, changed: Vec::new() }
    }

    /// The number of a bucket that had traffic before.
    pub fn known(&self, bucket: &BucketName) -> Option<usize> {
        self.by_name.get(bucket).copied()
    }

    /// Give a bucket that has traffic for the first time its number. `levels` is its chain.
    pub fn add(&mut self, name: &BucketName, levels: &[Level]) -> usize {
        let of_name = |group: &Group| group.glob.as_ref().is_some_and(|glob| glob.matches(name.as_str().as_bytes()));
        let of_bucket = levels.first().map_or([None; 2], per_second);
        let own = (0..self.groups.len()).filter(|at| of_name(&self.groups[*at]));
        let mut groups: Vec<usize> = own.collect();
        for at in &groups {
            let group = &mut self.groups[*at];
            for (allowed, one) in group.allowed.iter_mut().zip(of_bucket) {
                let all = if group.buckets == 0 { Some(0.0) } else { allowed.per_second };
                allowed.per_second = all.zip(one).map(|(all, one)| all + one);
            }
        }
        for level in levels.iter().skip(1) {
            let at = *self.budgets.entry(level.name.clone()).or_insert_with(|| {
                self.groups.push(Group::new(level.name.clone(), true));
                self.groups.len() - 1
            });
            self.groups[at].allowed = per_second(level).map(|per_second| Allowed { per_second, in_all: 0.0 });
            groups.push(at);
        }
        for at in &groups {
            self.groups[*at].buckets += 1;
        }
        let at = self.buckets.len();
        let bucket =
            Bucket { name: name.clone(), groups, per_second: of_bucket, most_cost: 1, counts: Counts::default() };
        self.buckets.push(bucket);
        self.by_name.insert(name.clone(), at);
        at
    }

    /// Count something of a bucket.
    pub fn count(&mut self, bucket: usize, add: impl Fn(&mut Counts)) {
        let bucket = &mut self.buckets[bucket];
        add(&mut bucket.counts);
        for at in &bucket.groups {
            let group = &mut self.groups[*at];
            add(&mut group.counts);
            if !std::mem::replace(&mut group.is_changed, true) {
                self.changed.push(*at);
            }
        }
    }

    /// What is counted from now on happens at this time, in microseconds since the beginning. How many jobs wait is
    /// looked at between moments: of those that come and push others out at one, fewer wait than came.
    pub fn moment(&mut self, at_us: u64) {
        if at_us != self.moment_us {
            self.moment_us = at_us;
            self.end_moment();
        }
    }

    fn end_moment(&mut self) {
        for at in self.changed.drain(..) {
            let group = &mut self.groups[at];
            group.most_waiting = group.most_waiting.max(group.counts.waiting);
            group.is_changed = false;
        }
    }

    /// A worker took a job of this cost.
    pub fn tried(&mut self, bucket: usize, cost: u64) {
        self.count(bucket, |counts| {
            counts.tries += 1;
            counts.units += cost;
        });
        let bucket = &mut self.buckets[bucket];
        bucket.most_cost = bucket.most_cost.max(cost);
        for at in &bucket.groups {
            let group = &mut self.groups[*at];
            group.most_cost = group.most_cost.max(cost);
        }
    }

    /// A worker took a job for the first time, after so long.
    pub fn taken(&mut self, bucket: usize, wait_us: u64) {
        self.count(bucket, |counts| {
            counts.taken += 1;
            counts.waiting = counts.waiting.saturating_sub(1);
        });
        self.waited(bucket, wait_us);
    }

    /// A job has waited for so long: until a worker took it, or until the end.
    pub fn waited(&mut self, bucket: usize, wait_us: u64) {
        for at in &self.buckets[bucket].groups {
            let group = &mut self.groups[*at];
            group.longest_us = group.longest_us.max(wait_us);
            group.waits.record(wait_us).expect("it grows");
            group.slot.record(wait_us).expect("it grows");
        }
    }

    /// A slot of time is over.
    pub fn end_slot(&mut self) {
        self.end_moment();
        for group in &mut self.groups {
            let at = |quantile| (!group.slot.is_empty()).then(|| group.slot.value_at_quantile(quantile));
            group.slots.push(Slot { p50_us: at(0.5), p99_us: at(0.99), waiting: group.most_waiting });
            group.slot.reset();
            group.most_waiting = group.counts.waiting;
        }
    }

    /// All buckets that had traffic.
    pub fn all_buckets(&self) -> Vec<BucketName> {
        self.buckets.iter().map(|bucket| bucket.name.clone()).collect()
    }

    /// The next buckets with waiting jobs that are asked what binds them, at most so many in all but one of each pattern: the number of the
    /// pattern, and of the bucket, and its name. All have their turns.
    pub fn next_waiting(&mut self, most: usize) -> Vec<(usize, usize, BucketName)> {
        let patterns = self.groups.iter().filter(|group| !group.is_budget).count();
        let (n, each) = (self.buckets.len(), (most / patterns.max(1)).max(1));
        let mut found = Vec::new();
        for pattern in 0..patterns {
            let from = self.groups[pattern].asked;
            let of_it =
                |at: &usize| self.buckets[*at].groups.contains(&pattern) && self.buckets[*at].counts.waiting > 0;
            let some: Vec<usize> = (from..n).chain(0..from.min(n)).filter(of_it).take(each).collect();
            if let Some(last) = some.last() {
                self.groups[pattern].asked = last + 1;
            }
            found.extend(some.into_iter().map(|at| (pattern, at, self.buckets[at].name.clone())));
        }
        found
    }

    /// Something bound a waiting bucket that was asked for a pattern.
    pub fn bound(&mut self, pattern: usize, bucket: usize, by: &str) {
        for at in &self.buckets[bucket].groups {
            if *at == pattern || self.groups[*at].is_budget {
                *self.groups[*at].bound.entry(by.to_owned()).or_insert(0) += 1;
            }
        }
    }

    /// The run is over: what is known of each bucket becomes figures of its groups. Groups without traffic go.
    pub fn finish(&mut self) {
        let seconds = self.lasts_us as f64 / 1e6;
        let in_all = |of: [Option<f64>; 2], most_cost| {
            [Allowed::in_all(of[0], seconds, most_cost), Allowed::in_all(of[1], seconds, 1)]
        };
        for group in self.groups.iter_mut().filter(|group| group.is_budget) {
            let all = in_all(group.allowed.map(|allowed| allowed.per_second), group.most_cost);
            for (allowed, in_all) in group.allowed.iter_mut().zip(all) {
                allowed.in_all = in_all;
            }
        }
        for bucket in std::mem::take(&mut self.buckets) {
            let Counts { accepted, taken, retrying, .. } = bucket.counts;
            let served = if accepted == 0 { 0.0 } else { taken.saturating_sub(retrying) as f64 / accepted as f64 };
            let all = in_all(bucket.per_second, bucket.most_cost);
            for at in &bucket.groups {
                let group = &mut self.groups[*at];
                if !group.is_budget {
                    group.allowed.iter_mut().zip(all).for_each(|(allowed, in_all)| allowed.in_all += in_all);
                }
                let (sum, squares) = &mut group.served;
                *sum += served;
                *squares += served * served;
            }
        }
        self.groups.retain(|group| group.counts.pushed > 0);
    }
}
