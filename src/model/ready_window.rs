//! The ready window: how old undelivered jobs of a route may become before its buckets are held.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::model::duration;

/// The largest age of undelivered jobs; [`Self::OFF`] is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyWindow(Option<Duration>);

impl ReadyWindow {
    /// The valid forms in words, for error messages.
    pub const HINT: &'static str =
        "write a whole number and a unit (us ms s m h d), as in \"250ms\": 1ms to 1h, or \"off\"";

    /// No limit of age: only `limits.max_ready` bounds the route.
    pub const OFF: Self = Self(None);

    /// Read a window of 1 ms to 1 h, or `off`; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::OFF);
        }
        let bounds = Duration::from_millis(1)..=Duration::from_secs(3_600);
        duration::parse(text).filter(|window| bounds.contains(window)).map(|window| Self(Some(window)))
    }

    /// The length of the window; `None` if it is off.
    pub fn duration(self) -> Option<Duration> {
        self.0
    }

    /// Whether this is the built-in default, 250 ms.
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

/// Serialized as the functions read it: whole microseconds, 0 where it is off.
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
