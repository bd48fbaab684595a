//! Durations and counts per period, read and printed: `20ms`, `5/s`, `30/60s`.

use std::time::Duration;

/// The longest duration that any key takes.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Read `count/period`; `5/s` and `5/1s` mean the same. Other text gives `None`. The caller checks the bounds.
pub fn count_per_period(text: &str) -> Option<(u32, Duration)> {
    let (count, period) = text.split_once('/')?;
    let count = whole(count).and_then(|n| u32::try_from(n).ok())?;
    let unit_alone = period.starts_with(|c: char| c.is_ascii_alphabetic());
    let period = if unit_alone { parse(&format!("1{period}")) } else { parse(period) }?;
    Some((count, period))
}

fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 15 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Read a duration: a whole number of at most 15 digits and one of `us ms s m h d`. Other text gives `None`.
pub fn parse(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    whole(number)?.checked_mul(unit_us).map(Duration::from_micros)
}

/// Write a duration as [`parse`] reads it, in the largest unit that keeps it whole.
pub fn show(duration: Duration) -> String {
    let us = duration.as_micros();
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    match units.into_iter().find(|(unit, _)| us > 0 && us.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{}{name}", us / unit),
        None => format!("{us}us"),
    }
}

/// Write a duration roughly, rounded down to the largest unit of which there are at least two, or to seconds: `59m` for
/// an hour less a second.
pub fn about(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    let fits = units.into_iter().find(|(_, unit)| seconds >= 2 * unit);
    fits.map_or_else(|| format!("{seconds}s"), |(name, unit)| format!("{}{name}", seconds / unit))
}

/// Write how long something takes, for a sentence: `250 ms`, `3.2 s`, `5 m 20 s`, `3 h 12 m`, `2 d 4 h`.
pub fn say(duration: Duration) -> String {
    let (us, seconds) = (duration.as_micros(), (duration.as_millis() + 500) / 1_000);
    let two = |whole: u128, unit, rest: u128, part| match rest {
        0 => format!("{whole} {unit}"),
        rest => format!("{whole} {unit} {rest} {part}"),
    };
    match us {
        0..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..100_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if seconds < 6_000 => two(seconds / 60, "m", seconds % 60, "s"),
        _ if seconds < 172_800 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Write milliseconds for people: as they are where they are few, as [`say`] does where nobody could read them.
pub fn in_ms(ms: impl TryInto<u64>) -> String {
    match ms.try_into().unwrap_or(u64::MAX) {
        ms @ 0..10_000 => format!("{ms} ms"),
        ms => say(Duration::from_millis(ms)),
    }
}

/// Write a duration for people, in its two largest units: `850ms`, `12.5s`, `1h40m`.
pub fn rough(duration: Duration) -> String {
    let (ms, s) = (duration.as_millis(), duration.as_secs());
    match s {
        0 => format!("{ms}ms"),
        1..100 => format!("{}.{}s", s, ms % 1_000 / 100),
        100..3_600 => format!("{}m{}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{}m", s / 3_600, s / 60 % 60),
        _ => format!("{}d{}h", s / 86_400, s / 3_600 % 24),
    }
}

/// Write `count/period` as [`count_per_period`] reads it: `5/s`, `30/10m`.
pub fn show_per_period(count: impl std::fmt::Display, period: Duration) -> String {
    let period = show(period);
    let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(|c: char| c.is_ascii_alphabetic()));
    format!("{count}/{}", unit.unwrap_or(&period))
}

/// Convert a duration to whole microseconds, the unit in which the functions read it.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("durations are at most 366 days")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_is_never_more_than_it_is() {
        let shown = [0, 59, 119, 120, 3_599, 7_199, 7_200, 172_799, 172_800].map(|s| about(Duration::from_secs(s)));
        assert_eq!(shown, ["0s", "59s", "119s", "2m", "59m", "119m", "2h", "47h", "2d"]);
    }

    #[test]
    fn what_is_said_has_two_or_three_digits() {
        let shown =
            [0, 400, 9_900, 250_000, 3_200_000, 99_949_000, 320_000_000, 600_000_000, 11_520_000_000, 187_200_000_000];
        let shown = shown.map(|us| say(Duration::from_micros(us)));
        assert_eq!(
            shown,
            ["0.0 ms", "0.4 ms", "9.9 ms", "250 ms", "3.2 s", "99.9 s", "5 m 20 s", "10 m", "3 h 12 m", "2 d 4 h"]
        );
    }

    #[test]
    fn milliseconds_are_written_so_that_people_can_read_them() {
        let shown = [0, 9_999, 10_000, 119_500, 17_280_000_000].map(|ms: u64| in_ms(ms));
        assert_eq!(shown, ["0 ms", "9999 ms", "10.0 s", "2 m", "200 d"]);
        assert_eq!(in_ms(u128::MAX), in_ms(u64::MAX));
    }

    #[test]
    fn for_people_the_two_largest_units_are_enough() {
        let shown = [0, 850, 1_000, 12_560, 99_999, 100_000, 3_599_999, 6_000_000, 86_399_999, 266_400_000];
        let shown = shown.map(|ms| rough(Duration::from_millis(ms)));
        assert_eq!(shown, ["0ms", "850ms", "1.0s", "12.5s", "99.9s", "1m40s", "59m59s", "1h40m", "23h59m", "3d2h"]);
    }

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        assert_eq!(parse("3us"), Some(Duration::from_micros(3)));
        assert_eq!(parse("20ms"), Some(Duration::from_millis(20)));
        for (text, seconds) in [("90s", 90), ("2m", 120), ("3h", 3 * 3_600), ("7d", 7 * 86_400)] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "5", "s", "1.5s", "5 s", "-5s", "5S", "99999999999999999s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
