//! What operators set, as the model knows it: pauses, closed doors and keys of a policy, of names and of globs.

use std::collections::BTreeMap;

use dripd::store::change::Change;
use proptest::prelude::*;
use serde_json::Value;

use super::Pair;
use super::policy::{Policy, Record, matches};
use super::reference::Model;
use crate::functions::settings_table::{change, take_back};
use crate::rig::{MS, S};

/// What is set: by name, or by one of the globs.
const PATTERNS: [&str; 6] = ["a", "b", "slow", "mail", "s*", "*l*"];

const VALUES: [&str; 27] = [
    "pause",
    "pause",
    "pause",
    "close",
    "rate=2/s",
    "rate=1/20s",
    "rate=500/s",
    "job_rate=1/s",
    "job_rate=none",
    "capacity=1",
    "capacity=7",
    "overflow=drop-oldest",
    "route=mail",
    "route=default",
    "ttl=1s",
    "dedup=2s",
    "catch_up=0s",
    "slow={ initial = '40ms', cap = '3s', adaptive = true }",
    "slow={ max = '2s', adaptive = true }",
    "slow={ initial = '400ms', max = '1s' }",
    "concurrency=1",
    "concurrency=3",
    "concurrency=none",
    "concurrency=1",
    "ordered=true",
    "ordered=true",
    "ordered=false",
];

/// Where those begin that jobs keep their order by.
const ORDERED: usize = 23;

#[derive(Debug, Clone)]
pub enum Op {
    /// Of one pattern a value, and for how long in milliseconds.
    Set(usize, usize, Option<u64>),
    /// Of one pattern the key of a value.
    TakeBack(usize, usize),
}

pub fn op() -> impl Strategy<Value = Op> {
    let (pattern, value) = (0..PATTERNS.len(), prop_oneof![3 => 0..VALUES.len(), 1 => ORDERED..VALUES.len()]);
    let lasts = prop::option::of(prop_oneof![Just(60), Just(900), Just(5_000), Just(60_000)]);
    prop_oneof![
        3 => (pattern.clone(), value.clone(), lasts).prop_map(|(p, v, l)| Op::Set(p, v, l)),
        2 => (pattern, value).prop_map(|(p, v)| Op::TakeBack(p, v)),
    ]
}

/// One value of one key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct One {
    text: String,
    policy: Value,
    since: u64,
    till: Option<u64>,
}

/// "A timed one lies over the untimed one of the same name and key, which is back at its end."
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lies {
    lasting: Option<One>,
    timed: Option<One>,
}

impl Lies {
    fn in_force(&self, at: u64) -> Option<&One> {
        self.timed.as_ref().filter(|one| one.till.is_some_and(|till| at < till)).or(self.lasting.as_ref())
    }

    fn till(&self) -> Option<u64> {
        self.timed.as_ref().and_then(|one| one.till)
    }
}

/// All that is set for one name, by key.
pub(super) type Own = BTreeMap<String, Lies>;

/// What is set for globs: the pattern, the key and the value, "the one set last" at the end. A timed one stands beside the lasting one of the same
/// pattern and key.
pub(super) type Globs = Vec<(String, String, One)>;

/// Those of them that count at a moment.
pub(super) fn in_force(globs: &Globs, at: u64) -> impl Iterator<Item = &(String, String, One)> {
    let counts = move |one: &One| one.till.is_some_and(|till| at < till);
    globs.iter().filter(move |(pattern, key, one)| {
        let lies_under = || globs.iter().any(|(p, k, over)| (p, k) == (pattern, key) && counts(over));
        counts(one) || one.till.is_none() && !lies_under()
    })
}

/// What is in force of the keys that are set for a bucket: the pattern and the value. "Exact names win over globs. Among globs the one set
/// last wins, for each key by itself."
fn winners<'a>(
    globs: &'a Globs,
    own: Option<&'a Own>,
    bucket: &'a str,
    at: u64,
) -> BTreeMap<&'a str, (&'a str, &'a One)> {
    let of_globs = in_force(globs, at).filter(|(pattern, ..)| matches(pattern, bucket));
    let of_globs = of_globs.map(|(pattern, key, one)| (key.as_str(), (pattern.as_str(), one)));
    let of_name =
        own.into_iter().flatten().filter_map(|(key, lies)| Some((key.as_str(), (bucket, lies.in_force(at)?))));
    of_globs.chain(of_name).collect()
}

impl Model {
    /// What applies to a bucket by a record: at 0 with all timed settings, as long as they are known.
    pub(super) fn policy_by(&self, record: &Record, at: u64, bucket: &str) -> Policy {
        let set = winners(&record.globs, self.own.get(bucket), bucket, at);
        let mut p = record.policy(bucket, &set.values().map(|(_, one)| &one.policy).collect::<Vec<_>>());
        p.paused_by = set.get("pause").map(|(pattern, _)| (*pattern).to_owned());
        p.is_closed = set.contains_key("close");
        // "The capacity in force is 0 and overflow `reject`, also where it is `drop-oldest`."
        if p.is_closed {
            (p.capacity, p.drop_oldest) = (0, false);
        }
        p
    }

    pub(super) fn policy(&self, now: u64, bucket: &str) -> Policy {
        self.policy_by(&self.record, now, bucket)
    }

    /// What a bucket was put right by when a call last looked at it, where something changed since.
    pub(super) fn before(&self, now: u64, bucket: &str) -> Option<Policy> {
        if let Some(at) = self.spread.get(bucket) {
            return self.has_ended(*at, now, bucket).then(|| self.policy_by(&self.record, *at, bucket));
        }
        if let Some(prev) = &self.prev {
            return Some(self.policy_by(prev, 0, bucket));
        }
        self.has_ended(0, now, bucket).then(|| self.policy_by(&self.record, 0, bucket))
    }

    /// Whether a setting of a bucket has ended since a moment.
    pub(super) fn has_ended(&self, since: u64, now: u64, bucket: &str) -> bool {
        let globs = self.record.globs.iter().filter(|(pattern, ..)| matches(pattern, bucket));
        self.ends_of(bucket).chain(globs.filter_map(|(.., one)| one.till)).any(|till| since < till && till <= now)
    }

    /// Whether a setting of its own name has ended that is known still.
    pub(super) fn own_has_ended(&self, now: u64, bucket: &str) -> bool {
        self.ends_of(bucket).any(|till| till <= now)
    }

    /// When the timed settings of a name end.
    fn ends_of(&self, bucket: &str) -> impl Iterator<Item = u64> {
        self.own.get(bucket).into_iter().flat_map(BTreeMap::values).filter_map(Lies::till)
    }

    /// When the first timed setting ends.
    pub(super) fn first_end(&self) -> Option<u64> {
        let names = self.own.values().flat_map(BTreeMap::values).filter_map(Lies::till);
        names.chain(self.first_end_of_globs()).min()
    }

    fn first_end_of_globs(&self) -> Option<u64> {
        self.record.globs.iter().filter_map(|(.., one)| one.till).min()
    }

    /// Whether a setting of a glob has ended, and not all buckets have seen that.
    pub(super) fn has_glob_ended(&self, now: u64) -> bool {
        self.first_end_of_globs().is_some_and(|end| end <= now)
    }

    /// What is over is not known any more.
    pub(super) fn drop_over(&mut self, now: u64, bucket: &str) {
        let Some(own) = self.own.get_mut(bucket) else { return };
        for lies in own.values_mut() {
            lies.timed.take_if(|one| one.till.is_some_and(|till| till <= now));
        }
        own.retain(|_, lies| *lies != Lies::default());
    }

    /// "The end of `--for` counts in every call from that moment": a drain puts right what it left behind.
    pub(super) fn end_settings(&mut self, now: u64) {
        for bucket in self.own.keys().cloned().collect::<Vec<_>>() {
            if self.ends_of(&bucket).any(|till| till <= now) {
                self.put_right(now, &bucket, None);
            }
        }
        if self.prev.is_some() || !self.has_glob_ended(now) {
            return;
        }
        // "It starts the same spread", where any bucket stands.
        if self.first_end_of_globs().is_some_and(|end| self.stands(end)) || self.may_count(&[]) {
            self.prev = Some(self.record.clone());
        } else {
            self.spread_is_over(now);
        }
    }

    /// A change has reached all buckets.
    pub(super) fn spread_is_over(&mut self, now: u64) {
        self.prev = None;
        self.spread.clear();
        self.record.globs.retain(|(.., one)| one.till.is_none_or(|till| till > now));
    }

    /// A setting of before the clock stepped back lasts, from now on, for as long as it was made for.
    pub(super) fn bring_back(&mut self, now: u64) {
        let names = self.own.values_mut().flat_map(BTreeMap::values_mut).filter_map(|lies| lies.timed.as_mut());
        let globs = self.record.globs.iter_mut().map(|(.., one)| one);
        for one in names.chain(globs).filter(|one| one.since > now + 10 * S) {
            (one.till, one.since) = (one.till.map(|till| till - one.since + now), now);
        }
    }

    /// A bucket of which something changed stands where it must.
    pub(super) fn put_right(&mut self, now: u64, bucket: &str, was: Option<Policy>) {
        let was = was.or_else(|| self.before(now, bucket));
        let state = self.look_from(now, bucket, was);
        let was_working = self.is_working(now, bucket);
        let has_work = self.len(bucket) > 0 || was_working;
        self.settle(bucket, &state);
        self.orders(now, bucket, true);
        match state.due.or(has_work.then_some(now)) {
            Some(due) => self.place_as(now, bucket, due, self.len(bucket) > 0 || was_working),
            None => self.leave_all(bucket),
        }
    }

    /// A change of a name: "it is in force when the command returns". Replies each key with its text before and after.
    fn change_name(&mut self, now: u64, change: &Change) -> Vec<String> {
        let bucket = change.pattern.as_str();
        let was = self.before(now, bucket).unwrap_or_else(|| self.policy(now, bucket));
        let kept = self.own.clone();
        self.drop_over(now, bucket);
        let own = self.own.entry(bucket.into()).or_default();
        let text = |own: &Own, key: &str| own.get(key).and_then(|lies| lies.in_force(now)).map(|one| one.text.clone());
        let keys = change.unset.iter().filter(|key| own.contains_key(*key)).chain(change.set.keys());
        let before: Vec<(String, String)> = keys.map(|key| (key.clone(), text(own, key).unwrap_or_default())).collect();
        for key in &change.unset {
            own.remove(key);
        }
        for (key, to) in &change.set {
            let till = change.for_us.map(|us| now + us);
            let one = Some(One { text: to.text.clone(), policy: to.policy.clone(), since: now, till });
            let lies = own.entry(key.clone()).or_default();
            *(if till.is_some() { &mut lies.timed } else { &mut lies.lasting }) = one;
        }
        let told: Vec<String> = before
            .into_iter()
            .flat_map(|(key, before)| {
                let after = text(own, &key).unwrap_or_default();
                [key, before, after]
            })
            .collect();
        if told.is_empty() {
            self.own = kept;
        } else {
            if was.slots.is_none() && self.policy(now, bucket).slots.is_some() {
                self.counts(bucket);
            }
            self.put_right(now, bucket, Some(was));
        }
        told
    }

    /// A change of a glob: it "spreads", as a record does. `None`: another change still does.
    fn change_glob(&mut self, now: u64, change: &Change) -> Option<Vec<String>> {
        if self.prev.is_some() {
            return None;
        }
        let (old, pattern) = (self.record.clone(), &change.pattern);
        let mut told = Vec::new();
        for key in change.unset.iter().chain(change.set.keys()) {
            let is_it = |(glob, known, _): &(String, String, One)| glob == pattern && known == key;
            let text = |globs: &Globs| in_force(globs, now).find(|one| is_it(one)).map(|(.., one)| one.text.clone());
            let (is_known, before) = (self.record.globs.iter().any(is_it), text(&self.record.globs));
            let to = change.set.get(key);
            let is_replaced = |one: &One| to.is_none() || one.till.is_some() == change.for_us.is_some();
            self.record.globs.retain(|one| !is_it(one) || !is_replaced(&one.2));
            if let Some(to) = to {
                let till = change.for_us.map(|us| now + us);
                let one = One { text: to.text.clone(), policy: to.policy.clone(), since: now, till };
                self.record.globs.push((pattern.clone(), key.clone(), one));
            }
            if is_known || to.is_some() {
                let after = text(&self.record.globs);
                told.extend([key.clone(), before.unwrap_or_default(), after.unwrap_or_default()]);
            }
        }
        if !told.is_empty() {
            self.spreads_from(now, old);
        }
        Some(told)
    }
}

impl Op {
    /// Of one pattern a value in words.
    pub(super) fn of(pattern: &str, value: &str, lasts: Option<u64>) -> Self {
        let at = |list: &[&str], word: &str| list.iter().position(|one| *one == word).expect("one of them");
        Self::Set(at(&PATTERNS, pattern), at(&VALUES, value), lasts)
    }
}

impl Pair {
    /// One change of globs spreads at a time. Where a setting of one has ended, a daemon comes first: a drain's answer says when.
    pub(super) fn sees_end(&mut self) -> Result<(), TestCaseError> {
        if self.model.has_glob_ended(self.now) { self.step(&super::Op::Drain) } else { Ok(()) }
    }

    pub fn set(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let mut change = match op {
            Op::Set(pattern, value, lasts) => change(PATTERNS[*pattern], &[VALUES[*value]], lasts.map(|ms| ms * MS)),
            Op::TakeBack(pattern, value) => {
                let key = VALUES[*value].split('=').next().expect("a key");
                take_back(PATTERNS[*pattern], &[key])
            }
        };
        change.asks = Some("paused");
        if change.is_glob {
            self.sees_end()?;
        }
        let (now, json) = (self.now, serde_json::to_string(&change).expect("JSON"));
        if self.model.cannot_forward(now, &change) {
            prop_assert_eq!(self.case.refusal("drip__set", &["policy"], &[now.to_string(), json]), "BADARG");
            return Ok(());
        }
        let told: (i64, Vec<String>, String) = self.case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
        if change.is_glob {
            let expect = self.model.change_glob(now, &change);
            let code = expect.as_ref().map_or(-1, |told| i64::from(!told.is_empty()));
            prop_assert_eq!((told.0, told.1), (code, expect.unwrap_or_default()));
            return Ok(());
        }
        let expect = self.model.change_name(now, &change);
        let by = self.model.policy(now, &change.pattern).paused_by.unwrap_or_default();
        prop_assert_eq!(told, (i64::from(!expect.is_empty()), expect, by));
        Ok(())
    }
}
