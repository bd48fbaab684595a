//! Points in time, as people write and read them.

use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::duration;

/// A point in the past, given as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A time, in milliseconds since the epoch.
    At(u64),
    /// A time before now, on the server's clock.
    Ago(Duration),
}

impl Moment {
    /// The moment in milliseconds since the epoch, where `now_ms` is the present.
    pub fn ms(self, now_ms: u64) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at = || text.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_millisecond()).ok());
        let ago = duration::parse(text).map(Self::Ago);
        ago.or_else(|| at().map(Self::At)).ok_or("write a time, as in 2026-05-01T12:00:00Z, or how long ago, as in 2h")
    }
}

/// Milliseconds since the epoch as RFC 3339 in UTC, to the millisecond; `None` outside of the calendar's range.
pub fn rfc3339(ms: u64) -> Option<String> {
    let time = Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(format!("{time:.3}"))
}

/// Microseconds since the epoch, given as text, as RFC 3339 to the second; any other text is returned unchanged.
pub fn of_micros(text: &str) -> String {
    let seconds = text.parse::<u64>().ok().and_then(|us| i64::try_from(us / 1_000_000).ok());
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| text.to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_how_long_ago() {
        assert_eq!("2h".parse(), Ok(Moment::Ago(Duration::from_secs(7_200))));
        assert_eq!("2025-06-15T15:06:40Z".parse(), Ok(Moment::At(1_750_000_000_000)));
        assert_eq!("2025-06-15T17:06:40.5+02:00".parse(), Ok(Moment::At(1_750_000_000_500)));
        for bad in ["", "2", "yesterday", "2025-06-15", "2025-06-15T15:06:40", "1960-01-01T00:00:00Z"] {
            assert!(bad.parse::<Moment>().is_err(), "{bad}");
        }
        assert_eq!(Moment::Ago(Duration::from_secs(1)).ms(5_000), 4_000);
        assert_eq!(Moment::Ago(Duration::from_secs(9)).ms(5_000), 0);
        assert_eq!(Moment::At(7).ms(5_000), 7);
    }

    #[test]
    fn a_time_is_written_as_it_is_read() {
        assert_eq!(rfc3339(1_750_000_000_500).as_deref(), Some("2025-06-15T15:06:40.500Z"));
        assert_eq!(rfc3339(u64::MAX), None);
    }
}
