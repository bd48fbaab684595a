//! Rates: how many jobs leave a bucket in a period; parsed, printed and checked here.
//! Nothing is computed here: the functions in Redis alone decide what a rate means for a due.

use std::fmt;
use std::time::Duration;

use crate::model::duration::{LONGEST, count_per_period, show_per_period};

/// The largest count. With it the functions' products, at most count squared, stay below 2^53, where a double is exact.
pub(crate) const MAX_COUNT: u32 = 50_000_000;

/// How many jobs leave a bucket in a period, evenly spaced: `count/period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    period: Duration,
}

impl Rate {
    /// The valid forms in words, for error messages.
    pub const HINT: &'static str = "write count/period, as in 5/s, 30/60s, 1/500ms or 50/d: count 1 to 50000000, period 1ms to 366d, \
         at least 1us between two jobs";

    /// The rate of the built-in defaults: ten jobs a second.
    pub const DEFAULT: Self = Self { count: 10, period: Duration::from_secs(1) };

    /// Read `count/period`: `5/s`, `30/60s`, `1/500ms`. A period in `us` is refused.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`] for another text or a rate out of bounds.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (count, period) = count_per_period(text).ok_or(Self::HINT)?;
        Self::new(count, period).filter(|_| !text.ends_with("us")).ok_or(Self::HINT)
    }

    /// The rate of `count` jobs a period; `None` where it is out of bounds.
    pub fn new(count: u32, period: Duration) -> Option<Self> {
        let in_bounds = (1..=MAX_COUNT).contains(&count)
            && (Duration::from_millis(1)..=LONGEST).contains(&period)
            && period.as_micros() >= u128::from(count);
        in_bounds.then_some(Self { count, period })
    }

    /// The number of jobs in a period.
    pub fn count(self) -> u32 {
        self.count
    }

    /// The length of a period.
    pub fn period(self) -> Duration {
        self.period
    }

    /// Jobs a second.
    pub fn per_second(self) -> f64 {
        f64::from(self.count) / self.period.as_secs_f64()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_per_period(self.count, self.period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_count_and_a_period() {
        for (text, count, us) in [
            ("5/s", 5, 1_000_000),
            ("30/60s", 30, 60_000_000),
            ("1/500ms", 1, 500_000),
            ("50/d", 50, 86_400_000_000),
            ("1000000/s", 1_000_000, 1_000_000),
            ("50000000/m", 50_000_000, 60_000_000),
            ("50000000/50s", 50_000_000, 50_000_000),
            ("1/366d", 1, 366 * 86_400_000_000),
        ] {
            let rate = Rate::parse(text).expect(text);
            assert_eq!((rate.count(), rate.period().as_micros()), (count, us), "{text}");
        }
        for bad in [
            "",
            "5",
            "5/",
            "/s",
            "0/s",
            "5/0s",
            "5/sec",
            "1.5/s",
            "5/1.5s",
            "-1/s",
            "1000001/s",
            "50000001/m",
            "50000000/49s",
            "1/367d",
            "1001/1ms",
            "5/10us",
            "1/999us",
            "1/5000us",
            " 5/s",
            "5/s ",
            "0x5/s",
            "5//s",
        ] {
            assert!(Rate::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_is_shown_as_it_is_written() {
        for text in ["5/s", "30/m", "1/500ms", "50/d", "1/10s", "100/h"] {
            assert_eq!(Rate::parse(text).expect(text).to_string(), text);
        }
    }
}
