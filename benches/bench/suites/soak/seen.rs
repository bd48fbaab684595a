//! What left its bucket, and when, by the server's clock: what workers took, which is all of it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::report::{Bound, Report, Row};

const MINUTE_US: u64 = 60_000_000;

/// How many jobs left, by bucket and minute.
pub(super) struct Seen(Mutex<BTreeMap<String, BTreeMap<u64, u64>>>);

/// Buckets or budgets whose rate is watched: how the names begin, whether those that begin so share one rate, and what promise 1 says.
struct Watched {
    names: &'static str,
    is_one: bool,
    a_second: f64,
    catch_up: f64,
    /// The least part of the rate that must be reached over the whole run: with a catch-up of 20 ms what a busy machine is later is lost.
    at_least: f64,
}

const WATCHED: [Watched; 4] = [
    Watched { names: "exact:", is_one: false, a_second: 10.0, catch_up: 1.0, at_least: 0.9999 },
    Watched { names: "steady:", is_one: false, a_second: 10.0, catch_up: 0.02, at_least: 0.98 },
    Watched { names: "http:", is_one: false, a_second: 10.0, catch_up: 0.02, at_least: 0.98 },
    Watched { names: "tree:", is_one: true, a_second: 40.0, catch_up: 1.0, at_least: 0.9999 },
];

impl Seen {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// A worker took an entry. (Whoever only reads the stream misses some: what is acknowledged by function is deleted at once.)
    pub(super) fn note(&self, bucket: &str, at_us: u64) {
        let bucket = if bucket.starts_with("once:") { "once" } else { bucket };
        let mut seen = self.0.lock().expect("no panic");
        *seen.entry(bucket.to_owned()).or_default().entry(at_us / MINUTE_US).or_default() += 1;
    }

    /// How many jobs of these left in each minute: of each bucket, or of all together.
    fn of(&self, watched: &Watched) -> Vec<BTreeMap<u64, u64>> {
        let seen = self.0.lock().expect("no panic");
        let of_each = seen.iter().filter(|(name, _)| name.starts_with(watched.names)).map(|(_, counts)| counts.clone());
        if !watched.is_one {
            return of_each.collect();
        }
        vec![of_each.flatten().fold(BTreeMap::new(), |mut all, (minute, count)| {
            *all.entry(minute).or_default() += count;
            all
        })]
    }

    /// Judge the whole minutes of the run: no minute with more than is promised, none that is slower than the rate by more than a busy
    /// machine explains, and the end as fast as the beginning.
    pub(super) fn judge(&self, report: &mut Report, (first, end): (u64, u64)) {
        for watched in &WATCHED {
            let name = format!("{}*{}", watched.names, if watched.is_one { ", a budget" } else { "" });
            let rate = watched.a_second;
            let most_allowed = 1.0 + ((60.0 + watched.catch_up) * rate).floor();
            let (mut most, mut least, mut slowest) = (0.0_f64, f64::INFINITY, f64::INFINITY);
            let (mut early, mut late) = (0.0, 0.0);
            for counts in self.of(watched) {
                let of_minute = |minute: u64| counts.get(&minute).copied().unwrap_or(0) as f64;
                let mut sum = 0.0;
                for minute in first..=end {
                    let count = of_minute(minute);
                    (most, least, sum) = (most.max(count), least.min(count), sum + count);
                    if minute < first + (end - first) / 2 {
                        early += count;
                    } else if minute > end - (end - first) / 2 {
                        late += count;
                    }
                }
                slowest = slowest.min(sum / (end - first + 1) as f64 / 60.0 / rate);
            }
            let row = |what: String, value: f64, unit| Row::new("soak", format!("{name}: {what}"), value, unit);
            report.add(
                row(format!("most jobs in a minute (least {least:.0}) at {rate:.0}/s"), most, "")
                    .value_goal(Bound::AtMost(most_allowed)),
            );
            report.add(
                row("the slowest of them over the whole run, by its rate".to_owned(), 100.0 * slowest, "%")
                    .value_goal(Bound::AtLeast(100.0 * watched.at_least)),
            );
            report.add(
                row("second half by first half".to_owned(), 100.0 * late / early, "%").value_goal(Bound::AtLeast(99.0)),
            );
        }
        let quota = self.of(&Watched { names: "quota:", is_one: true, a_second: 2.0, catch_up: 0.0, at_least: 1.0 });
        let most = quota.iter().flat_map(BTreeMap::values).max().copied().unwrap_or(0);
        report.add(
            Row::new("soak", "a quota of 120/m: most jobs in a minute", most as f64, "")
                .value_goal(Bound::AtMost(120.0)),
        );
    }
}
