//! What applies to a bucket, as the references read it from a record: with exact arithmetic.

use super::settings::Globs;
use crate::rig::{MS, S};

/// So many in a period of so many microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::functions) struct Rate {
    pub(in crate::functions) count: u128,
    pub(in crate::functions) period: u128,
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::functions) struct Policy {
    pub(in crate::functions) rate: Rate,
    pub(in crate::functions) capacity: usize,
    pub(in crate::functions) lease_ms: u64,
    pub(super) attempts: u64,
    pub(super) backoff: (u64, u64),
    pub(in crate::functions) drop_oldest: bool,
    pub(in crate::functions) route: String,
    pub(in crate::functions) catch_up: u64,
    pub(super) job: Option<Rate>,
    pub(super) dedup: u64,
    pub(super) ttl: Option<u64>,
    pub(super) gate: Option<Window>,
    pub(super) slow: Slowing,
    /// At most so many jobs in flight.
    pub(super) slots: Option<usize>,
    /// One by one in the order in which they were pushed, whatever fails.
    pub(super) is_ordered: bool,
    /// The name or glob that pauses it.
    pub(super) paused_by: Option<String>,
    pub(super) is_closed: bool,
}

/// How long a slow-down lasts, in microseconds.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::functions) struct Slowing {
    pub(in crate::functions) initial: u64,
    pub(in crate::functions) max: u64,
    pub(in crate::functions) cap: u64,
    /// It also lowers the rate, for longer than it lasts.
    pub(in crate::functions) is_adaptive: bool,
}

/// A gate of the kind `fixed-window`: so many in each window of so many microseconds, which begins with the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::functions) struct Window {
    pub(super) limit: usize,
    pub(super) period: u64,
}

/// Where jobs are added to a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    Left,
    Right,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) json: String,
    /// What operators set for globs lies over it.
    pub(super) globs: Globs,
    pub(super) value: serde_json::Value,
}

/// The globs of these tests, by hand.
pub(super) fn matches(glob: &str, bucket: &str) -> bool {
    match glob {
        "s*" => bucket.starts_with('s'),
        "mail" => bucket == "mail",
        "*l*" => bucket.contains('l'),
        other => panic!("{other}"),
    }
}

impl Record {
    pub(super) fn new(toml: &str) -> Self {
        let json = crate::rig::record(toml);
        Self { value: serde_json::from_str(&json).expect("JSON"), json, globs: Globs::new() }
    }

    /// The window of a route in microseconds, if it is not off.
    pub(super) fn ready_window(&self, route: &str) -> Option<u64> {
        let of_all = self.value["limits"].get("ready_window_us");
        let own = self.value.get("ready_windows").and_then(|own| own.get(route)).or(of_all);
        Some(own.map_or(250_000, |us| us.as_u64().expect("a number"))).filter(|us| *us > 0)
    }

    pub(super) fn limit(&self, name: &str) -> usize {
        self.value["limits"][name].as_u64().expect("a number") as usize
    }

    /// What applies to a bucket by it, where `set` lies over it.
    pub(super) fn policy(&self, bucket: &str, set: &[&serde_json::Value]) -> Policy {
        let entries = self.value["buckets"].as_array().expect("entries");
        let entry = entries.iter().find(|entry| matches(entry["match"].as_str().expect("a glob"), bucket));
        let own = entry.map(|entry| &entry["policy"]);
        let mut p = Policy::read(|name| {
            let set = set.iter().find_map(|fields| fields.get(name));
            set.or(own.and_then(|own| own.get(name))).unwrap_or(&self.value["defaults"][name])
        });
        // "A job that leaves by it takes no slot anywhere": those keys "of `[defaults]` do not apply".
        if self.forwards(&p.route) {
            (p.slots, p.is_ordered) = (None, false);
        }
        p
    }

    /// The entry of a route whose jobs go into a list.
    fn forward(&self, route: &str) -> Option<&serde_json::Value> {
        self.value["routes"].as_array()?.iter().find(|one| one["name"] == route)
    }

    pub(super) fn forwards(&self, route: &str) -> bool {
        self.forward(route).is_some()
    }

    /// The end of its list, "where its workers do not take from: `left` (default) or `right`".
    pub(super) fn end(&self, route: &str) -> End {
        let is_right = self.forward(route).is_some_and(|one| one["end"] == "right");
        if is_right { End::Right } else { End::Left }
    }
}

impl Policy {
    /// From its fields as a record holds them.
    pub(in crate::functions) fn read<'a>(field: impl Fn(&str) -> &'a serde_json::Value) -> Self {
        let n = |name: &str| field(name).as_u64().expect("a number");
        // A record leaves out what is as always.
        let more = |name: &str, otherwise: u64| field(name).as_u64().unwrap_or(otherwise);
        let arg = |gate: &serde_json::Value, n: usize| gate["args"][n].as_str()?.parse::<u64>().ok();
        let gate = field("admit").as_array().and_then(|gates| gates.first());
        Self {
            job: (more("job_count", 0) > 0)
                .then(|| Rate { count: n("job_count").into(), period: n("job_period_us").into() }),
            dedup: more("dedup_us", 600 * S),
            ttl: Some(more("ttl_us", 0)).filter(|us| *us > 0),
            gate: gate.map(|gate| Window {
                limit: arg(gate, 0).expect("a limit") as usize,
                period: arg(gate, 1).expect("a period") * MS,
            }),
            slow: Slowing {
                initial: field("slow")["initial_us"].as_u64().unwrap_or(S),
                max: field("slow")["max_us"].as_u64().unwrap_or(600 * S),
                cap: field("slow")["cap_us"].as_u64().unwrap_or(3_600 * S),
                is_adaptive: field("slow")["adaptive"].as_bool().unwrap_or(false),
            },
            slots: Some(more("concurrency", 0) as usize).filter(|n| *n > 0),
            // "Needs `concurrency = 1` on the bucket."
            is_ordered: field("ordered").as_bool().unwrap_or(false) && more("concurrency", 0) == 1,
            rate: Rate { count: n("count").into(), period: n("period_us").into() },
            capacity: n("capacity") as usize,
            lease_ms: n("lease_ms"),
            attempts: n("attempts"),
            backoff: (n("backoff_initial_us"), n("backoff_max_us")),
            drop_oldest: field("overflow") == "drop-oldest",
            route: field("route").as_str().expect("a route").to_owned(),
            catch_up: n("catch_up_us"),
            paused_by: None,
            is_closed: false,
        }
    }
}

impl Rate {
    fn part(self, k: u128) -> u128 {
        k * self.period / self.count
    }

    /// One interval later.
    pub(in crate::functions) fn after(self, t: u64) -> u64 {
        self.after_many(t, 1)
    }

    /// So many intervals later, the remainder carried: parts of a period begin at floor(k * period / count).
    pub(in crate::functions) fn after_many(self, t: u64, n: u64) -> u64 {
        let t = u128::from(t);
        let (base, r) = (t - t % self.period, t % self.period);
        let k = ((r + 1) * self.count).div_ceil(self.period) - 1;
        (base + self.part(k + u128::from(n)) + (r - self.part(k))) as u64
    }

    /// The longest interval.
    pub(in crate::functions) fn interval(self) -> u64 {
        self.period.div_ceil(self.count) as u64
    }

    pub(in crate::functions) fn eta_ms(self, due: u64, now: u64, n: usize) -> i64 {
        let scaled = (i128::from(due) - i128::from(now)) * self.count as i128 + (n as i128 - 1) * self.period as i128;
        let unit = 1_000 * self.count as i128;
        scaled.max(0).div_euclid(unit) as i64 + i64::from(scaled.max(0) % unit != 0)
    }
}
