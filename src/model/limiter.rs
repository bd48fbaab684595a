//! Limiters: the usual recipes for "at most N times in T", as types that hold only valid numbers. The functions in
//! Redis alone decide what a limiter does; this module names limiters, checks their bounds and writes them as arguments
//! of the functions.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::model::duration::{LONGEST, show, show_per_period};
use crate::model::words;

/// The largest limit, capacity or count.
pub(crate) const MAX_COUNT: u32 = 1_000_000;

/// The longest time in which a throttle's full burst may refill: redis-cell's 64 bits of nanoseconds reach 292 years.
const LONGEST_BURST: Duration = Duration::from_secs(200 * LONGEST.as_secs());

words! {
    /// Which recipe.
    pub enum Kind {
        /// At most so many in each window; up to twice as many around an edge.
        FixedWindow = "fixed-window",
        /// At most so many in every window of that length, exactly.
        SlidingWindow = "sliding-window",
        /// Two weighted fixed windows: nearly the sliding one, in constant memory.
        SlidingCounter = "sliding-counter",
        /// A capacity at once, and so many a period in the long run.
        TokenBucket = "token-bucket",
        /// The same, seen from the other side.
        LeakyMeter = "leaky-meter",
        /// redis-cell's `CL.THROTTLE`, with its own rounding.
        Throttle = "throttle",
    }
}

impl Kind {
    /// The name of the number that says how many may pass at once. `None`: the recipe has only its limit.
    pub fn size_name(self) -> Option<&'static str> {
        match self {
            Self::FixedWindow | Self::SlidingWindow | Self::SlidingCounter => None,
            Self::TokenBucket | Self::LeakyMeter => Some("capacity"),
            Self::Throttle => Some("max_burst"),
        }
    }

    /// The bounds of the number that [`Self::size_name`] names.
    pub fn sizes(self) -> std::ops::RangeInclusive<u32> {
        // With a burst of n, redis-cell lets n + 1 pass at once.
        if self == Self::Throttle { 0..=MAX_COUNT - 1 } else { 1..=MAX_COUNT }
    }

    /// The bounds of the limit, or of the count in recipes that have a size too.
    pub fn counts(self) -> std::ops::RangeInclusive<u32> {
        1..=if self == Self::SlidingWindow { 10_000 } else { MAX_COUNT }
    }

    /// The largest quantity that one call may ask for.
    pub fn most_at_once(self) -> u32 {
        *self.counts().end()
    }

    /// The unit of the period, which is a whole number of it.
    pub(crate) fn unit(self) -> Duration {
        if self == Self::Throttle { Duration::from_secs(1) } else { Duration::from_millis(1) }
    }

    /// Whether a period is a whole number of units, from one unit to 366 days.
    pub fn takes(self, period: Duration) -> bool {
        let whole = period.as_nanos().is_multiple_of(self.unit().as_nanos());
        whole && (self.unit()..=LONGEST).contains(&period)
    }

    /// The valid periods in words, for error messages.
    pub fn period_hint(self) -> &'static str {
        if self == Self::Throttle { "whole seconds, 1s to 366d" } else { "whole milliseconds, 1ms to 366d" }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = Self::ALL.map(Self::as_str).join(", ");
        Self::parse(text).ok_or_else(|| format!("write one of {names}"))
    }
}

/// A recipe with its numbers, all within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limiter {
    kind: Kind,
    count: u32,
    period: Duration,
    size: u32,
    aligned: bool,
}

impl Limiter {
    /// A limiter that allows `count` a period. `size` is how many may pass at once, in recipes that have such a number
    /// ([`Kind::size_name`]); without it, as many as `count`.
    ///
    /// # Errors
    ///
    /// The error says what is out of bounds and what is allowed.
    pub fn new(kind: Kind, count: u32, period: Duration, size: Option<u32>) -> Result<Self, String> {
        let what = if kind.size_name().is_some() { "count" } else { "limit" };
        if !kind.counts().contains(&count) {
            let (least, most) = kind.counts().into_inner();
            return Err(format!("the {what} of a {kind} is {least} to {most}, not {count}"));
        }
        if !kind.takes(period) {
            return Err(format!("the period of a {kind} is {}, not {}", kind.period_hint(), show(period)));
        }
        let size_of_count = if kind == Kind::Throttle { count - 1 } else { count };
        let size = match (size, kind.size_name()) {
            (None, _) => size_of_count,
            (Some(size), Some(_)) if kind.sizes().contains(&size) => size,
            (Some(size), Some(name)) => {
                let (least, most) = kind.sizes().into_inner();
                return Err(format!("the {name} of a {kind} is {least} to {most}, not {size}"));
            }
            (Some(_), None) => return Err(format!("a {kind} has only a limit and a period")),
        };
        if kind == Kind::Throttle
            && period.as_secs() * (u64::from(size) + 1) / u64::from(count) > LONGEST_BURST.as_secs()
        {
            return Err("max_burst + 1 calls at count / period would take more than 200 years".to_owned());
        }
        Ok(Self { kind, count, period, size, aligned: false })
    }

    /// This limiter with windows that begin at multiples of the period since the epoch.
    ///
    /// # Errors
    ///
    /// Only a fixed window can be aligned; every other recipe is refused.
    pub fn aligned(self) -> Result<Self, String> {
        if self.kind == Kind::FixedWindow {
            Ok(Self { aligned: true, ..self })
        } else {
            Err(format!("only a fixed-window can be aligned, not a {}", self.kind))
        }
    }

    /// Read a limiter from a record: the name of its recipe, and the arguments that its function takes after the key.
    ///
    /// # Errors
    ///
    /// The error says what is wrong with the record.
    pub fn stored(kind: &str, args: &[String]) -> Result<Self, String> {
        let kind: Kind = kind.parse()?;
        let number = |text: &String| text.parse::<u32>().map_err(|why| format!("{text:?}: {why}"));
        let (is_aligned, args) = match args.split_last() {
            Some((last, rest)) if last == "ALIGNED" => (true, rest),
            _ => (false, args),
        };
        let (size, count, units) = match (args, kind.size_name()) {
            ([count, units], None) => (None, count, units),
            ([size, count, units], Some(_)) => (Some(number(size)?), count, units),
            _ => return Err(format!("{kind} does not take {args:?}")),
        };
        let period = units.parse::<u64>().map_err(|why| format!("{units:?}: {why}"))?;
        let unit = u64::try_from(kind.unit().as_nanos()).expect("a second at most");
        let limiter = Self::new(kind, number(count)?, Duration::from_nanos(period.saturating_mul(unit)), size)?;
        if is_aligned { limiter.aligned() } else { Ok(limiter) }
    }

    /// The recipe.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The arguments that its function takes after the key and before a quantity.
    pub fn parameters(&self) -> Vec<String> {
        let period = (self.period.as_nanos() / self.kind.unit().as_nanos()).to_string();
        let (count, size) = (self.count.to_string(), self.size.to_string());
        if self.kind.size_name().is_some() { vec![size, count, period] } else { vec![count, period] }
    }

    /// The argument that its function takes after a quantity, if there is one.
    pub fn option(&self) -> Option<&'static str> {
        self.aligned.then_some("ALIGNED")
    }
}

/// Display as `dripd check` shows it.
impl fmt::Display for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, show_per_period(self.count, self.period))?;
        if let Some(name) = self.kind.size_name() {
            write!(f, " {name} {}", self.size)?;
        }
        if self.aligned { f.write_str(" aligned") } else { Ok(()) }
    }
}

/// Serialized as the functions read it in a record: the name of the recipe, and the arguments after the key.
impl Serialize for Limiter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut args = self.parameters();
        args.extend(self.option().map(str::to_owned));
        let mut s = serializer.serialize_struct("Limiter", 2)?;
        s.serialize_field("limiter", self.kind.as_str())?;
        s.serialize_field("args", &args)?;
        s.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_limiter_is_written_as_its_function_takes_it() {
        let args = |kind, size| Limiter::new(kind, 5, 60 * S, size).map(|limiter| limiter.parameters().join(" "));
        assert_eq!(args(Kind::SlidingWindow, None).as_deref(), Ok("5 60000"));
        assert_eq!(args(Kind::TokenBucket, None).as_deref(), Ok("5 5 60000"));
        assert_eq!(args(Kind::LeakyMeter, Some(20)).as_deref(), Ok("20 5 60000"));
        assert_eq!(args(Kind::Throttle, None).as_deref(), Ok("4 5 60"));
        let aligned = Limiter::new(Kind::FixedWindow, 5, 60 * S, None).and_then(Limiter::aligned).expect("good");
        let json = serde_json::to_string(&aligned).expect("JSON");
        assert_eq!(json, r#"{"limiter":"fixed-window","args":["5","60000","ALIGNED"]}"#);
        assert_eq!(aligned.to_string(), "fixed-window 5/m aligned");
    }

    #[test]
    fn a_limiter_is_read_as_it_is_stored() {
        for kind in Kind::ALL {
            let limiter = Limiter::new(kind, 5, 60 * S, kind.size_name().map(|_| 7)).expect("good");
            assert_eq!(Limiter::stored(kind.as_str(), &limiter.parameters()).as_ref(), Ok(&limiter));
        }
        let args = ["5", "60000", "ALIGNED"].map(str::to_owned);
        assert_eq!(Limiter::stored("fixed-window", &args).expect("good").to_string(), "fixed-window 5/m aligned");
        for bad in [&[][..], &["5".to_owned()], &["x".to_owned(), "1000".to_owned()]] {
            assert!(Limiter::stored("fixed-window", bad).is_err(), "{bad:?}");
        }
        assert!(Limiter::stored("odd", &args).is_err());
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for (kind, count, period, size) in [
            (Kind::FixedWindow, 0, S, None),
            (Kind::FixedWindow, 1_000_001, S, None),
            (Kind::SlidingWindow, 10_001, S, None),
            (Kind::SlidingWindow, 1, S, Some(1)),
            (Kind::TokenBucket, 1, Duration::from_micros(1_500), None),
            (Kind::TokenBucket, 1, S, Some(0)),
            (Kind::LeakyMeter, 1, LONGEST + Duration::from_secs(86_400), None),
            (Kind::Throttle, 1, Duration::from_millis(1_500), None),
            (Kind::Throttle, 1, S, Some(1_000_000)),
            (Kind::Throttle, 1, LONGEST, Some(999_999)),
        ] {
            assert!(Limiter::new(kind, count, period, size).is_err(), "{kind} {count} {period:?} {size:?}");
        }
        assert!(Limiter::new(Kind::SlidingWindow, 1, S, None).and_then(Limiter::aligned).is_err());
        assert!(Limiter::new(Kind::Throttle, 1, LONGEST, Some(0)).is_ok());
    }
}
