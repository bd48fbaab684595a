//! Paces: how fast jobs leave now, measured from samples of how many have left. The result does not depend on who takes
//! samples or how often.

use std::collections::{HashMap, VecDeque};

/// The time over which a pace is measured: microseconds or intervals of the rate, whichever is longer.
const WINDOW_US: u64 = 10_000_000;
const INTERVALS: u64 = 5;

/// The shortest time between samples that yields a pace: microseconds or intervals of the rate, whichever is longer.
const LEAST_US: u64 = 2_500_000;
const LEAST_INTERVALS: u64 = 3;

/// How long Redis counts the jobs of a bucket that nobody asks about, in microseconds.
const KEPT_US: u64 = 150_000_000;

/// A sample that is older than the last one by less than this, in microseconds, arrived out of order and is ignored; by
/// more, the clock stepped back.
const LATE_US: u64 = 5_000_000;

/// The rate by which something without a rate is measured: jobs in a period in microseconds.
pub const A_SECOND: (u64, u64) = (1_000, 1_000_000);

/// The number of samples that a window is kept in.
const LOOKS: u64 = 20;

/// The samples of one bucket: the time in microseconds, and how many jobs had left.
#[derive(Debug, Default)]
struct Looks {
    kept: VecDeque<(u64, u64)>,
    last: (u64, u64),
}

/// The samples of many buckets, by name.
#[derive(Debug, Default)]
pub struct Paces(HashMap<String, Looks>);

fn interval_us(rate: (u64, u64)) -> u64 {
    rate.1 / rate.0.max(1)
}

impl Paces {
    /// Add a sample: by `at_us`, `left` jobs of `name` had left. `rate` is jobs in a period in microseconds.
    pub fn note(&mut self, name: &str, at_us: u64, left: u64, rate: (u64, u64)) {
        let looks = self.0.entry(name.to_owned()).or_default();
        if at_us < looks.last.0 && looks.last.0 - at_us < LATE_US {
            return;
        }
        // Redis began to count from 0 again, or the clock stepped back.
        if left < looks.last.1 || at_us < looks.last.0 {
            looks.kept.clear();
        }
        looks.last = (at_us, left);
        let window_us = WINDOW_US.max(INTERVALS * interval_us(rate));
        if looks.kept.back().is_none_or(|(at, _)| at_us - at >= window_us / LOOKS) {
            looks.kept.push_back((at_us, left));
        }
        while looks.kept.get(1).is_some_and(|(at, _)| at + window_us <= at_us) {
            looks.kept.pop_front();
        }
    }

    /// Forget names that nobody has sampled for a while: Redis no longer counts them.
    pub fn forget(&mut self, now_us: u64) {
        self.0.retain(|_, looks| looks.last.0 + KEPT_US >= now_us);
    }

    /// The pace in jobs a second; `None` while it is too early to say.
    pub fn per_second(&self, name: &str, rate: (u64, u64)) -> Option<f64> {
        let looks = self.0.get(name)?;
        let (from, before) = looks.kept.front()?;
        let long_us = looks.last.0 - from;
        let is_known = long_us >= LEAST_US.max(LEAST_INTERVALS * interval_us(rate));
        is_known.then(|| (looks.last.1 - before) as f64 / (long_us as f64 / 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn a_pace_is_known_after_some_seconds_and_follows_the_last_ten() {
        let (mut paces, rate) = (Paces::default(), (10, S));
        for n in 0..=30 {
            let left = if n <= 20 { 10 * n } else { 200 };
            paces.note("a", n * S, left, rate);
            let expected = match n {
                0..=2 => None,
                3..=20 => Some(10.0),
                n => Some(f64::from(u32::try_from(30 - n).expect("small"))),
            };
            assert_eq!(paces.per_second("a", rate), expected, "second {n}");
        }
        paces.note("a", 31 * S, 3, rate);
        assert_eq!(paces.per_second("a", rate), None, "it is counted anew");
    }

    #[test]
    fn it_makes_no_difference_how_many_look_and_how_often() {
        let (mut paces, rate) = (Paces::default(), (10, S));
        for n in 0..=30 {
            for after_us in [0, 1, 400_000] {
                paces.note("a", n * S + after_us, 10 * n + 10 * after_us / S, rate);
                // The answer to an earlier question arrives after a later one.
                paces.note("a", (n * S + after_us).saturating_sub(300), 10 * n, rate);
                let known = paces.per_second("a", rate);
                assert_eq!(known.is_some(), n * S + after_us >= LEAST_US, "second {n}");
                assert!(
                    known.is_none_or(|pace| (9.7..=10.3).contains(&pace)),
                    "{known:?} in second {n} after {after_us}"
                );
            }
        }
        paces.note("a", 20 * S, 500, rate);
        assert_eq!(paces.per_second("a", rate), None, "the clock stepped back");
    }

    #[test]
    fn of_looks_a_minute_apart_the_last_two_count_and_those_too_far_apart_tell_nothing() {
        let (mut paces, rate) = (Paces::default(), (10, S));
        let mut look = |at_s: u64, left| {
            paces.forget(at_s * S);
            paces.note("a", at_s * S, left, rate);
            paces.per_second("a", rate)
        };
        assert_eq!(look(0, 0), None);
        assert_eq!(look(60, 300), Some(5.0));
        assert_eq!(look(120, 900), Some(10.0));
        assert_eq!(look(300, 0), None, "nobody asked, so that Redis counts anew");
    }

    #[test]
    fn a_slow_bucket_is_watched_for_some_of_its_intervals_in_bounded_memory() {
        let (mut paces, rate) = (Paces::default(), (1, 60 * S));
        for second in 0..3_600 {
            paces.note("a", second * S, second / 60, rate);
            let known = paces.per_second("a", rate);
            assert_eq!(known.is_some(), second >= 180, "second {second}");
            assert!(known.is_none_or(|pace| (0.012..0.021).contains(&pace)), "{known:?} at {second}");
        }
        assert!(paces.0["a"].kept.len() <= 22, "{}", paces.0["a"].kept.len());
    }
}
