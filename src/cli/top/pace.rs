//! How fast jobs leave now: measured from two looks at how many have left.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::words::duration::show_per_period;

/// Over how long it is measured: so long, and so many intervals of a slow bucket.
const WINDOW_US: u64 = 10_000_000;
const INTERVALS: u64 = 5;

/// For how long it must have been looked at: so long, and so many intervals.
const LEAST_US: u64 = 2_500_000;
const LEAST_INTERVALS: u64 = 3;

/// For so long Redis counts what nobody asks for.
const KEPT_US: u64 = 30_000_000;

/// A window is kept in so many looks.
const LOOKS: u64 = 20;

/// The looks at one bucket: when, and how many had left.
#[derive(Debug, Default)]
struct Looks {
    kept: VecDeque<(u64, u64)>,
    last: (u64, u64),
}

/// Looks at many.
#[derive(Debug, Default)]
pub(super) struct Paces(HashMap<String, Looks>);

fn interval_us(rate: (u64, u64)) -> u64 {
    rate.1 / rate.0.max(1)
}

impl Paces {
    /// So many jobs of this one had left by then; its rate is jobs in a period of microseconds.
    pub(super) fn note(&mut self, name: &str, at_us: u64, left: u64, rate: (u64, u64)) {
        let looks = self.0.entry(name.to_owned()).or_default();
        // Redis began to count anew, or the clock stepped back.
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

    /// Forget those that nobody has looked at for a while: Redis counts what leaves them no more.
    pub(super) fn forget(&mut self, now_us: u64) {
        self.0.retain(|_, looks| looks.last.0 + KEPT_US >= now_us);
    }

    /// Jobs in a second; `None`: it is too early to say.
    pub(super) fn per_second(&self, name: &str, rate: (u64, u64)) -> Option<f64> {
        let looks = self.0.get(name)?;
        let (from, before) = looks.kept.front()?;
        let long_us = looks.last.0 - from;
        let is_known = long_us >= LEAST_US.max(LEAST_INTERVALS * interval_us(rate));
        is_known.then(|| (looks.last.1 - before) as f64 / (long_us as f64 / 1e6))
    }
}

/// A measured pace as people read it, in the unit of the rate that is set where that is a plain one: `9.8/s`, `29/m`, `0/s`.
pub(super) fn shown(per_second: f64, period_us: u64) -> String {
    let units = [1_000_000_u64, 60_000_000, 3_600_000_000, 86_400_000_000];
    let in_unit = |unit: u64| per_second * (unit as f64 / 1e6);
    let unit = units.into_iter().find(|unit| *unit == period_us);
    let unit = unit.or_else(|| units.into_iter().find(|unit| in_unit(*unit) >= 1.0)).unwrap_or(units[0]);
    let n = in_unit(unit);
    let n = if n == 0.0 || n >= 99.95 { format!("{n:.0}") } else { format!("{n:.1}") };
    show_per_period(n, Duration::from_micros(unit))
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

    #[test]
    fn a_pace_is_shown_in_the_unit_of_the_rate_or_in_one_that_makes_it_a_number_to_read() {
        let shown = [(9.84, S), (0.5, 60 * S), (0.5, 1_500_000), (1234.0, S), (0.0, S), (0.0, 90 * S), (0.001, 90 * S)]
            .map(|(pace, period)| shown(pace, period));
        assert_eq!(shown, ["9.8/s", "30.0/m", "30.0/m", "1234/s", "0/s", "0/s", "3.6/h"]);
    }
}
