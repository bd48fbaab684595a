//! The ready window: how old undelivered jobs of a route may become before nothing more enters it.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::model::duration;

/// How old undelivered jobs may become; [`Self::OFF`]: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyWindow(Option<Duration>);

impl ReadyWindow {
    /// What it looks like, for error messages.
    pub const HINT: &'static str =
        "write a whole number and a unit (us ms s m h d), as in \"250ms\": 1ms to 1h, or \"off\"";

    /// No bound but `limits.max_ready`.
    pub const OFF: Self = Self(None);

    /// Read one: 1 ms to 1 h, or `off`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::OFF);
        }
        let bounds = Duration::from_millis(1)..=Duration::from_secs(3_600);
        duration::parse(text).filter(|window| bounds.contains(window)).map(|window| Self(Some(window)))
    }

    /// How long it is; none: it is off.
    pub fn duration(self) -> Option<Duration> {
        self.0
    }

    /// Whether it is the one that holds where none is written.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for ReadyWindow {
    fn default() -> Self {
        Self(Some(Duration::from_millis(250)))
    }
}

impl fmt::Display for ReadyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map_or_else(|| "off".to_owned(), duration::show))
    }
}

/// As the functions read it: microseconds, 0 where it is off.
impl Serialize for ReadyWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.map_or(0, duration::micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_millisecond_to_an_hour_or_off() {
        let shown = |text| ReadyWindow::parse(text).map(|window| window.to_string());
        for good in ["1ms", "250ms", "1h", "off"] {
            assert_eq!(shown(good).as_deref(), Some(good));
        }
        assert_eq!(shown("1000us").as_deref(), Some("1ms"));
        for bad in ["0s", "2h", "-1", "999us", "3601s", "none", "OFF", "", "250"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
