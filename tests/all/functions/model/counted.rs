//! A limit of what is in flight that is new, as the model knows it: "jobs in flight count when a limit is added", and nothing leaves before they
//! are counted.

use super::BUCKETS;
use super::policy::{Policy, Record};
use super::reference::Model;
use super::settings::in_force;
use super::workers::ROUTES;

/// Whether a configuration limits what is in flight anywhere.
fn limits(json: &str) -> bool {
    json.split("\"concurrency\":").skip(1).any(|after| !after.starts_with('0'))
}

/// What a configuration, and what is set for globs at a moment, says of limits and routes; at 0 with all timed settings, as long as they are known.
fn written_limits(record: &Record, at: u64) -> String {
    let of = |policy: &serde_json::Value| format!("{} {}\n", policy["concurrency"], policy["route"]);
    let mut text = String::new();
    if limits(&record.json) {
        text += &of(&record.value["defaults"]);
        for entry in record.value["buckets"].as_array().into_iter().flatten() {
            text += &format!("{} {}", entry["match"], of(&entry["policy"]));
        }
        for route in record.value["routes"].as_array().into_iter().flatten() {
            text += &format!("{}\n", route["name"]);
        }
    }
    for (pattern, key, one) in in_force(&record.globs, at).filter(|(_, key, _)| key == "concurrency" || key == "route")
    {
        text += &format!("{pattern} {key} {one:?}\n");
    }
    text
}

fn has_limit(p: &Policy) -> bool {
    p.slots.is_some()
}

impl Model {
    /// Whether the jobs of a bucket with a limit are not counted yet: a change that still spreads has brought the limit, or the end of a setting.
    pub(super) fn is_uncounted(&self, now: u64, bucket: &str) -> bool {
        self.uncounted.contains(bucket)
            || self.is_gained(now, bucket)
            || self.has_ended(0, now, bucket) && !has_limit(&self.policy_by(&self.record, 0, bucket))
    }

    /// Whether a change that still spreads has brought its limit.
    fn is_gained(&self, now: u64, bucket: &str) -> bool {
        let brings_limits = |prev: &&Record| written_limits(prev, 0) != written_limits(&self.record, now);
        let prev = self.prev.as_ref().filter(brings_limits);
        prev.is_some_and(|prev| !has_limit(&self.policy_by(prev, 0, bucket)))
    }

    /// The jobs of a bucket that are in flight hold a slot each.
    pub(super) fn counts(&mut self, bucket: &str) {
        for entry in self.ready.iter_mut().filter(|entry| entry.bucket == bucket) {
            entry.holds = true;
        }
    }

    /// A setting of a name has ended, and it has a limit again.
    pub(super) fn has_limit_again(&mut self, now: u64, bucket: &str) {
        let has_own_ended = self.own_has_ended(now, bucket);
        let before = self.policy_by(&self.record, 0, bucket);
        if has_own_ended && !has_limit(&before) && has_limit(&self.policy(now, bucket)) {
            self.uncounted.insert(bucket.to_owned());
        }
    }

    /// A drain counts the jobs of such buckets, and they go on.
    pub(super) fn count_marked(&mut self, now: u64) {
        for bucket in std::mem::take(&mut self.uncounted) {
            if has_limit(&self.policy(now, &bucket)) {
                self.counts(&bucket);
            }
            self.put_right(now, &bucket, None);
        }
    }

    /// A change has reached all buckets: the jobs are counted of those that have a limit by it, and they go on.
    pub(super) fn spread_ends(&mut self, now: u64) {
        let gained: Vec<&str> = BUCKETS
            .into_iter()
            .filter(|bucket| self.is_gained(now, bucket) && has_limit(&self.policy(now, bucket)))
            .collect();
        self.spread_is_over(now);
        for bucket in &gained {
            self.counts(bucket);
        }
        for bucket in self.full.keys().cloned().collect::<Vec<_>>() {
            if gained.contains(&bucket.as_str()) {
                self.put_right(now, &bucket, None);
            }
        }
    }

    /// Whether jobs are out that a change may have to count.
    pub(super) fn may_count(&self, globs_before: &[&str]) -> bool {
        let of_globs = self.record.globs.iter().map(|(_, key, _)| key.as_str()).chain(globs_before.iter().copied());
        self.is_any_out && (limits(&self.record.json) || of_globs.into_iter().any(|key| key == "concurrency"))
    }
}

impl super::Pair {
    /// Whether any ready stream has an entry, be it one that is done with.
    pub(super) fn sees_what_is_out(&mut self) {
        let streams = ROUTES.map(|route| self.case.key(&super::stream(route)));
        let lengths = streams.map(|stream| self.case.try_cmd::<u64>(&["XLEN", &stream]).unwrap_or(0));
        self.model.is_any_out = lengths.iter().any(|length| *length > 0);
    }
}
