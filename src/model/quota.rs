//! Quotas: at most so many in each window of the calendar; parsed, printed and checked here. The functions in Redis
//! alone decide what is counted and when a window ends.

use std::fmt;
use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::model::duration::{LONGEST, count_per_period, micros, show_per_period};

/// The largest count of a quota.
pub(crate) const MAX_COUNT: u32 = 1_000_000_000;

/// The largest distance of a time zone from UTC, in minutes.
const FURTHEST: i32 = 14 * 60;

/// A count for each window, written `count/period`. Windows begin at multiples of the period since 1970, in UTC or in a
/// time zone that is a fixed offset from it: `1000/d@-08:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    count: u32,
    period: Duration,
    offset_minutes: i32,
}

impl Quota {
    /// The valid forms in words, for error messages.
    pub const HINT: &'static str = "write count/period, as in \"1000/d\" or, in another time zone than UTC, \"1000/d@-08:00\": count 1 to 1000000000, \
         period 1s to 366d; or a list of up to 4; [] is none";

    /// The most quotas of one bucket or budget: each dispatch checks all of them.
    pub const MOST_OF_ONE: usize = 4;

    /// Read `count/period` or `count/period@+hh:mm`.
    ///
    /// # Errors
    ///
    /// [`Self::HINT`] for another text or a quota out of bounds.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (amount, offset) = text.split_once('@').map_or((text, None), |(amount, offset)| (amount, Some(offset)));
        let offset_minutes = offset.map_or(Some(0), minutes).ok_or(Self::HINT)?;
        let (count, period) = count_per_period(amount).ok_or(Self::HINT)?;
        let bounds = Duration::from_secs(1)..=LONGEST;
        let fits = (1..=MAX_COUNT).contains(&count) && bounds.contains(&period);
        if fits { Ok(Self { count, period, offset_minutes }) } else { Err(Self::HINT) }
    }

    /// Whether two quotas count in the same windows: their period and offset are equal.
    pub fn has_windows_of(self, other: Self) -> bool {
        (self.period, self.offset_minutes) == (other.period, other.offset_minutes)
    }
}

/// The minutes of an offset such as `-08:00`; `None` if it is malformed or more than 14 hours.
fn minutes(text: &str) -> Option<i32> {
    let (sign, [h1, h2, b':', m1, m2]) = text.as_bytes().split_first()? else { return None };
    let two = |tens: &u8, ones: &u8| {
        let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
        is_number.then(|| i32::from(tens - b'0') * 10 + i32::from(ones - b'0'))
    };
    let (hours, minutes) = (two(h1, h2)?, two(m1, m2)?);
    let all = hours * 60 + minutes;
    if minutes >= 60 || all > FURTHEST {
        return None;
    }
    match sign {
        b'+' => Some(all),
        b'-' => Some(-all),
        _ => None,
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show_per_period(self.count, self.period))?;
        let (sign, minutes) = (if self.offset_minutes < 0 { '-' } else { '+' }, self.offset_minutes.abs());
        if minutes == 0 { Ok(()) } else { write!(f, "@{sign}{:02}:{:02}", minutes / 60, minutes % 60) }
    }
}

/// Serialized as the functions read it: period and offset in microseconds.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut s = serializer.serialize_struct("Quota", 3)?;
        s.serialize_field("count", &self.count)?;
        s.serialize_field("period_us", &micros(self.period))?;
        s.serialize_field("offset_us", &(i64::from(self.offset_minutes) * 60_000_000))?;
        s.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_is_a_count_a_period_and_where_its_days_begin() {
        for (text, count, period_us, offset_us) in [
            ("1000/d", 1_000, 86_400_000_000_u64, 0_i64),
            ("1/s", 1, 1_000_000, 0),
            ("1000000000/30d", 1_000_000_000, 2_592_000_000_000, 0),
            ("50/6h@+05:30", 50, 21_600_000_000, 19_800_000_000),
            ("1000/d@-08:00", 1_000, 86_400_000_000, -28_800_000_000),
            ("1/d@+14:00", 1, 86_400_000_000, 50_400_000_000),
        ] {
            let quota = Quota::parse(text).expect(text);
            let stored = json!({ "count": count, "period_us": period_us, "offset_us": offset_us });
            assert_eq!(serde_json::to_value(quota).expect("json"), stored, "{text}");
            assert_eq!(quota.to_string(), text);
        }
        assert_eq!(Quota::parse("24/1d@-00:00").map(|quota| quota.to_string()).as_deref(), Ok("24/d"));
    }

    #[test]
    fn what_is_no_quota_is_refused() {
        for bad in [
            "",
            "1000",
            "0/d",
            "1/500ms",
            "1/367d",
            "1000000001/d",
            "5000000000/d",
            "1/d@",
            "1/d@8",
            "1/d@08:00",
            "1/d@-8:00",
            "1/d@-08:60",
            "1/d@+14:01",
            "1/d@-08:00:00",
            "1/d@−8:00",
            "1/d@UTC",
            "1/d@+05:30@+05:30",
            " 1/d",
            "-1/d",
        ] {
            assert_eq!(Quota::parse(bad), Err(Quota::HINT), "{bad:?}");
        }
    }

    #[test]
    fn two_quotas_have_the_same_windows_where_period_and_time_zone_are_the_same() {
        let of = |text| Quota::parse(text).expect(text);
        assert!(of("5/d").has_windows_of(of("7/24h@+00:00")));
        assert!(!of("5/d").has_windows_of(of("5/d@+01:00")) && !of("5/d").has_windows_of(of("5/h")));
    }
}
