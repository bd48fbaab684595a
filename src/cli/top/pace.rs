//! A measured pace as text.

use std::time::Duration;

use crate::model::duration::show_per_period;

/// A pace in the unit of the rate that is set, if that is a plain unit, otherwise in one that gives at least 1:
/// `9.8/s`, `29.0/m`, `0/s`.
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
    fn a_pace_is_shown_in_the_unit_of_the_rate_or_in_one_that_makes_it_a_number_to_read() {
        let shown = [(9.84, S), (0.5, 60 * S), (0.5, 1_500_000), (1234.0, S), (0.0, S), (0.0, 90 * S), (0.001, 90 * S)]
            .map(|(pace, period)| shown(pace, period));
        assert_eq!(shown, ["9.8/s", "30.0/m", "30.0/m", "1234/s", "0/s", "0/s", "3.6/h"]);
    }
}
