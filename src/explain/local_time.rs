//! Times of the server's clock, as people read them: in the time zone of whoever asks.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The current time, in microseconds since the epoch, and the time zone in which times are shown.
#[derive(Debug, Clone)]
pub struct LocalTime {
    now_us: u64,
    zone: TimeZone,
}

fn timestamp(us: u64) -> Timestamp {
    i64::try_from(us).ok().and_then(|us| Timestamp::from_microsecond(us).ok()).unwrap_or_default()
}

/// A time for machines: RFC 3339, in UTC, to the second.
pub fn rfc3339(us: u64) -> String {
    timestamp(us / 1_000_000 * 1_000_000).to_string()
}

impl LocalTime {
    /// Times in the time zone of this machine.
    pub fn here(now_us: u64) -> Self {
        Self { now_us, zone: TimeZone::system() }
    }

    /// Times in another time zone.
    pub fn of(now_us: u64, zone: TimeZone) -> Self {
        Self { now_us, zone }
    }

    /// A time, in microseconds since the epoch, as `12:03`, with its date unless that is today.
    pub fn say(&self, us: u64) -> String {
        let (at, now) = [us, self.now_us].map(|us| timestamp(us).to_zoned(self.zone.clone())).into();
        let format = if at.date() == now.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
        at.strftime(format).to_string()
    }

    /// The time `ms` milliseconds ago, as [`Self::say`] shows it.
    pub fn say_ago(&self, ms: u64) -> String {
        self.say(self.now_us.saturating_sub(ms * 1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_said_as_the_clock_on_the_wall_shows_it_and_with_its_date_on_another_day() {
        let at = |text: &str| {
            u64::try_from(text.parse::<Timestamp>().expect("a time").as_microsecond()).expect("after 1970")
        };
        let now = at("2026-11-21T00:30:00Z");
        let local_time = |hours| LocalTime::of(now, TimeZone::fixed(jiff::tz::offset(hours)));
        assert_eq!(local_time(0).say(at("2026-11-21T00:03:59.9Z")), "00:03");
        assert_eq!(local_time(0).say(at("2026-11-20T23:50:00Z")), "2026-11-20 23:50");
        assert_eq!(local_time(1).say(at("2026-11-20T23:50:00Z")), "00:50");
        assert_eq!(local_time(1).say_ago(40 * 60_000), "00:50");
        assert_eq!(rfc3339(now + 999_999), "2026-11-21T00:30:00Z");
    }
}
