//! Bounds of the arguments of commands: how long something may be set for, and how long a reason may be.

use std::time::Duration;

use crate::model::duration;

/// The longest time for which something may be set.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// The shortest time for which something may be set.
pub const SHORTEST: Duration = Duration::from_millis(1);

/// The longest reason, in bytes.
pub const REASON_MOST: usize = 1_000;

/// Read the time for which something is set.
///
/// # Errors
///
/// A hint what to write instead.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    let fits = |time: &Duration| (SHORTEST..=LONGEST).contains(time);
    duration::parse(text).filter(fits).ok_or("write a whole number and a unit (ms s m h d), as in 10m: 1ms to 366d")
}

/// Read a reason of at most [`REASON_MOST`] bytes.
///
/// # Errors
///
/// The reason is too long to be stored.
pub fn reason(text: &str) -> Result<String, &'static str> {
    if text.len() <= REASON_MOST { Ok(text.to_owned()) } else { Err("at most 1,000 bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_1ms_to_366d() {
        for (text, expected) in [("1ms", SHORTEST), ("10m", Duration::from_secs(600)), ("366d", LONGEST)] {
            assert_eq!(time(text), Ok(expected), "{text}");
        }
        for bad in ["", "0s", "999us", "367d", "10", "soon"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_reason_has_at_most_1000_bytes() {
        assert!(reason(&"x".repeat(REASON_MOST)).is_ok());
        assert!(reason(&"x".repeat(REASON_MOST + 1)).is_err());
        assert!(reason(&"é".repeat(501)).is_err(), "bytes count, not characters");
    }
}
