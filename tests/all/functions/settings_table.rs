//! A small reference of what operators have set: which settings are in force for a bucket at a moment, written from the contract
//! with no thought for speed. `settings_model` compares the functions with it.

use std::collections::BTreeMap;

use dripd::config::settings;
use dripd::model::glob::{Glob, is_glob};
use dripd::model::subject::Subject;
use dripd::store::change::{Change, SetTo};
use serde_json::Value as Json;

use super::model::Policy;

/// One value that is set.
#[derive(Debug, Clone)]
struct One {
    text: String,
    policy: Json,
    /// It grows with each change.
    order: u64,
    till: Option<u64>,
}

/// What is set for one key of one name or glob.
#[derive(Debug, Clone, Default)]
struct Lies {
    lasting: Option<One>,
    timed: Option<One>,
}

impl Lies {
    fn in_force(&self, at: u64) -> Option<&One> {
        self.timed.as_ref().filter(|one| one.till.is_some_and(|till| at < till)).or(self.lasting.as_ref())
    }
}

/// What applies to a bucket at a moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InForce {
    pub(super) policy: Policy,
    /// By which name or glob.
    pub(super) paused: Option<String>,
    pub(super) closed: Option<String>,
}

/// A record: what the file says.
#[derive(Debug)]
struct Record {
    value: Json,
    globs: Vec<Glob>,
}

impl Record {
    fn parse(json: &str) -> Self {
        let value: Json = serde_json::from_str(json).expect("JSON");
        let buckets = value["buckets"].as_array().expect("entries");
        let globs = buckets.iter().map(|entry| Glob::parse(entry["match"].as_str().expect("a glob"))).collect();
        Self { value, globs }
    }
}

/// All that is set for one name or glob.
#[derive(Debug)]
struct Entry {
    /// None: it is a name.
    glob: Option<Glob>,
    keys: BTreeMap<String, Lies>,
}

/// All that is set, and the record below it.
#[derive(Debug)]
pub(super) struct Table {
    record: Record,
    entries: BTreeMap<String, Entry>,
    order: u64,
    /// When timed settings end that were set at any time.
    pub(super) ends: Vec<u64>,
}

/// A change of `key=value` words, as `dripd set` makes it; `pause` and `close` are keys without a value.
pub(super) fn change(pattern: &str, words: &[&str], lasts: Option<u64>) -> Change {
    let (stops, values): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| ["pause", "close"].contains(word));
    let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
    let values = settings::parse(&values, &Subject::of_stored(pattern)).expect("good words");
    let mut set: BTreeMap<String, SetTo> =
        values.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
    for stop in stops {
        set.insert(stop.to_owned(), SetTo { text: String::new(), policy: serde_json::json!({}) });
    }
    Change { what: "set", set, for_us: lasts, ..take_back(pattern, &[]) }
}

/// A change that takes keys back.
pub(super) fn take_back(pattern: &str, keys: &[&str]) -> Change {
    Change {
        what: "unset",
        pattern: pattern.to_owned(),
        is_glob: is_glob(pattern),
        unset: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..Change::default()
    }
}

impl Table {
    pub(super) fn new(record: &str) -> Self {
        Self { record: Record::parse(record), entries: BTreeMap::new(), order: 0, ends: Vec::new() }
    }

    pub(super) fn reload(&mut self, record: &str) {
        self.record = Record::parse(record);
    }

    pub(super) fn limit(&self, name: &str) -> u64 {
        self.record.value["limits"][name].as_u64().expect("a number")
    }

    /// The names and globs of which anything is stored.
    pub(super) fn patterns(&self) -> Vec<String> {
        self.entries.iter().filter(|(_, entry)| !entry.keys.is_empty()).map(|(pattern, _)| pattern.clone()).collect()
    }

    /// When the first timed setting ends after a moment.
    pub(super) fn next_end(&self, now: u64) -> Option<u64> {
        let lies = self.entries.values().flat_map(|entry| entry.keys.values());
        let ends = lies.filter_map(|lies| lies.timed.as_ref()?.till);
        ends.filter(|till| *till > now).min()
    }

    /// Make a change. Replies each key with its text before and after.
    pub(super) fn apply(&mut self, now: u64, change: &Change) -> Vec<String> {
        self.order += 1;
        let fresh = || Entry { glob: change.is_glob.then(|| Glob::parse(&change.pattern)), keys: BTreeMap::new() };
        let entry = &mut self.entries.entry(change.pattern.clone()).or_insert_with(fresh).keys;
        for lies in entry.values_mut() {
            lies.timed.take_if(|one| one.till.is_some_and(|till| till <= now));
        }
        entry.retain(|_, lies| lies.lasting.is_some() || lies.timed.is_some());
        let text = |entry: &BTreeMap<String, Lies>, key: &str| {
            entry.get(key).and_then(|lies| lies.in_force(now)).map(|one| one.text.clone()).unwrap_or_default()
        };
        let is_stop = |key: &String| ["pause", "close"].contains(&key.as_str());
        let gone: Vec<String> = if change.unset_all {
            entry.keys().filter(|key| !is_stop(key)).cloned().collect()
        } else {
            change.unset.iter().filter(|key| entry.contains_key(*key)).cloned().collect()
        };
        let mut told = BTreeMap::new();
        for key in gone.iter().chain(change.set.keys()) {
            told.insert(key.clone(), text(entry, key));
        }
        for key in &gone {
            entry.remove(key);
        }
        for (key, to) in &change.set {
            let till = change.for_us.map(|lasts| now + lasts);
            let one = One { text: to.text.clone(), policy: to.policy.clone(), order: self.order, till };
            let lies = entry.entry(key.clone()).or_default();
            *(if till.is_some() { &mut lies.timed } else { &mut lies.lasting }) = Some(one);
            self.ends.extend(till);
        }
        told.into_iter().flat_map(|(key, before)| [key.clone(), before, text(entry, &key)]).collect()
    }

    /// Of one key, the name or glob whose setting counts for a bucket, and that setting: the exact name, else of the globs the
    /// one set last.
    fn winner(&self, bucket: &str, key: &str, at: u64) -> Option<(&str, &One)> {
        if let Some((name, entry)) = self.entries.get_key_value(bucket)
            && let Some(one) = entry.keys.get(key).and_then(|lies| lies.in_force(at))
        {
            return Some((name, one));
        }
        let matching = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.glob.as_ref().is_some_and(|glob| glob.matches(bucket.as_bytes())));
        let set = matching.filter_map(|(text, entry)| Some((text.as_str(), entry.keys.get(key)?.in_force(at)?)));
        set.max_by_key(|(_, one)| one.order)
    }

    /// What applies to a bucket at a moment.
    pub(super) fn in_force(&self, bucket: &str, at: u64) -> InForce {
        let record = &self.record;
        let place = record.globs.iter().position(|glob| glob.matches(bucket.as_bytes()));
        let own = place.map(|place| &record.value["buckets"][place]["policy"]);
        let keys = ["rate", "capacity", "lease", "attempts", "backoff", "overflow", "route", "catch_up"];
        let set: Vec<&Json> = keys.iter().filter_map(|key| Some(&self.winner(bucket, key, at)?.1.policy)).collect();
        let mut policy = Policy::read(|name| {
            let set = set.iter().find_map(|fields| fields.get(name));
            set.or(own.and_then(|own| own.get(name))).unwrap_or(&record.value["defaults"][name])
        });
        let by = |key: &str| self.winner(bucket, key, at).map(|(text, _)| text.to_owned());
        let (paused, closed) = (by("pause"), by("close"));
        if closed.is_some() {
            (policy.capacity, policy.drop_oldest) = (0, false);
        }
        InForce { policy, paused, closed }
    }

    /// Everything that is in force or would be, but for what is over: name or glob, key, text of the lasting and of the timed one.
    pub(super) fn listed(&self, now: u64) -> Vec<(String, String, Option<String>, Option<String>)> {
        let mut list = Vec::new();
        for (pattern, entry) in &self.entries {
            for (key, lies) in &entry.keys {
                let timed = lies.timed.as_ref().filter(|one| one.till.is_some_and(|till| now < till));
                let texts = [lies.lasting.as_ref(), timed].map(|one| one.map(|one| one.text.clone()));
                let [lasting, timed] = texts;
                if lasting.is_some() || timed.is_some() {
                    list.push((pattern.clone(), key.clone(), lasting, timed));
                }
            }
        }
        list
    }
}
