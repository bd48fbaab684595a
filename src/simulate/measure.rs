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
    /// The most jobs that waited in it, for another try too.
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
    /// Those that no worker has taken yet.
    pub waiting: u64,
    /// Those that workers took, and that wait for another try.
    pub retrying: u64,
}

impl Counts {
    /// All that wait.
    pub fn all_waiting(&self) -> u64 {
        self.waiting + self.retrying
    }
}

/// How much of what a rate lets through was used: of a pattern by all its buckets together.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// What it lets through, in all; `None`: there is no such rate, or one of the buckets has none.
    allowed: Option<f64>,
    used: f64,
}

impl Use {
    /// That of several buckets together.
    fn and(self, other: Self) -> Self {
        let allowed = self.allowed.zip(other.allowed).map(|(one, other)| one + other);
        Self { allowed, used: self.used + other.used }
    }

    /// 0 to 1, and a little more by `catch_up`; `None`: there is no such rate.
    fn share(self) -> Option<f64> {
        self.allowed.filter(|allowed| *allowed > 0.0).map(|allowed| self.used / allowed)
    }
}

/// What a bucket or a budget may let out, and did.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    /// What its rate, and its `job_rate`, let through a second; `None`: there is none.
    per_second: [Option<f64>; 2],
    /// What it let out of each: units of cost, and jobs.
    out: [u64; 2],
    /// The last of these, and when it left, in microseconds since the beginning.
    last: [u64; 2],
    last_us: u64,
}

impl Flow {
    fn add(&mut self, at_us: u64, cost: u64) {
        self.last = [cost, 1];
        (self.out, self.last_us) = ([self.out[0] + cost, self.out[1] + 1], at_us);
    }

    /// What was used in so long. A job is paid for after it left: what the last one pays for after the end is left out.
    fn used(&self, lasts_us: u64) -> [Use; 2] {
        let seconds = |us: u64| us as f64 / 1e6;
        std::array::from_fn(|of| {
            let paid = self.per_second[of].map_or(0.0, |rate| rate * seconds(lasts_us.saturating_sub(self.last_us)));
            let used = self.out[of] as f64 - (self.last[of] as f64 - paid).max(0.0);
            Use { allowed: self.per_second[of].map(|rate| rate * seconds(lasts_us)), used }
        })
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
    /// Of a budget: what it may let out, and did.
    flow: Flow,
    /// How much of its rate, and of its `job_rate`, was used, when all is over.
    used: [Use; 2],
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
            flow: Flow::default(),
            used: [Use { allowed: Some(0.0), used: 0.0 }; 2],
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
        self.used.into_iter().filter_map(Use::share).reduce(f64::max)
    }
}

/// A bucket that had traffic.
#[derive(Debug)]
struct Bucket {
    name: BucketName,
    groups: Vec<usize>,
    flow: Flow,
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
        let flow = Flow { per_second: levels.first().map_or([None; 2], per_second), ..Flow::default() };
        let mut groups: Vec<usize> = (0..self.groups.len()).filter(|at| of_name(&self.groups[*at])).collect();
        for level in levels.iter().skip(1) {
            let at = *self.budgets.entry(level.name.clone()).or_insert_with(|| {
                self.groups.push(Group::new(level.name.clone(), true));
                self.groups.len() - 1
            });
            self.groups[at].flow.per_second = per_second(level);
            groups.push(at);
        }
        for at in &groups {
            self.groups[*at].buckets += 1;
        }
        let at = self.buckets.len();
        self.buckets.push(Bucket { name: name.clone(), groups, flow, counts: Counts::default() });
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
            group.most_waiting = group.most_waiting.max(group.counts.all_waiting());
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
        bucket.flow.add(self.moment_us, cost);
        for at in &bucket.groups {
            self.groups[*at].flow.add(self.moment_us, cost);
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
            group.most_waiting = group.counts.all_waiting();
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
            let is_waiting = |bucket: &Bucket| bucket.groups.contains(&pattern) && bucket.counts.all_waiting() > 0;
            let of_it = |at: &usize| is_waiting(&self.buckets[*at]);
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
        for group in self.groups.iter_mut().filter(|group| group.is_budget) {
            group.used = group.flow.used(self.lasts_us);
        }
        for bucket in std::mem::take(&mut self.buckets) {
            let Counts { accepted, taken, retrying, .. } = bucket.counts;
            let served = if accepted == 0 { 0.0 } else { taken.saturating_sub(retrying) as f64 / accepted as f64 };
            let used = bucket.flow.used(self.lasts_us);
            for at in &bucket.groups {
                let group = &mut self.groups[*at];
                if !group.is_budget {
                    group.used.iter_mut().zip(used).for_each(|(all, one)| *all = all.and(one));
                }
                let (sum, squares) = &mut group.served;
                *sum += served;
                *squares += served * served;
            }
        }
        self.groups.retain(|group| group.counts.pushed > 0);
    }
}
