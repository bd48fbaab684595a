//! `limit`: ask a limiter at a key whether something may be done now.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::model::duration;
use crate::model::limiter::{Kind, Limiter};
use crate::store::jobs::limit::Verdict;

/// A question to a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRequest {
    /// The kind of limiter.
    pub kind: Kind,
    /// The count and the period.
    pub rate: (u32, Duration),
    /// The number of calls that this one stands for; 0 only looks.
    pub quantity: u32,
    /// How many may pass at once, for kinds that have a capacity.
    pub capacity: Option<u32>,
    /// How many beyond the first may pass at once, for a throttle.
    pub burst: Option<u32>,
    /// Whether windows begin at multiples of the period since 1970.
    pub aligned: bool,
}

impl LimitRequest {
    /// The limiter that the request describes.
    ///
    /// # Errors
    ///
    /// An option does not fit the kind, or a number is out of bounds.
    pub fn limiter(&self) -> Result<Limiter, String> {
        let kind = self.kind;
        if self.capacity.is_some() && kind.size_name() != Some("capacity") {
            return Err(format!("capacity is for token-bucket and leaky-meter, not for {kind}"));
        }
        if self.burst.is_some() && kind.size_name() != Some("max_burst") {
            return Err(format!("burst is for throttle, not for {kind}"));
        }
        if self.quantity > kind.most_at_once() {
            return Err(format!("the quantity of a {kind} is 0 to {}, not {}", kind.most_at_once(), self.quantity));
        }
        let limiter = Limiter::new(kind, self.rate.0, self.rate.1, self.capacity.or(self.burst))?;
        if self.aligned { limiter.aligned() } else { Ok(limiter) }
    }
}

/// The verdict of a limiter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LimiterVerdict {
    /// Whether the call is refused; of a quantity of 0, whether the next one would be.
    limited: bool,
    /// The limit, the capacity, or the burst and one.
    limit: u64,
    /// The largest quantity that would pass now.
    remaining: u64,
    /// Until the same call passes, if nobody else calls; -1 where there is no need to wait, or no use.
    retry_after_ms: i64,
    /// Until the key carries no information.
    reset_after_ms: u64,
}

/// Whether a limiter lets nothing more pass. A quantity of 0 only looks and is never refused, so `remaining` tells.
fn is_closed(verdict: &Verdict, quantity: u32) -> bool {
    verdict.limited || (quantity == 0 && verdict.remaining == 0)
}

/// The message for a call that is larger than the limit and can never pass.
pub fn never_passes(verdict: &Verdict, quantity: u32) -> String {
    format!("{quantity} at once can never pass: the limit is {}; ask for less, or in parts", verdict.limit)
}

impl LimiterVerdict {
    /// The verdict on a call of `quantity`.
    pub fn of(verdict: &Verdict, quantity: u32) -> Self {
        let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self {
            limited: is_closed(verdict, quantity),
            limit: verdict.limit,
            remaining: verdict.remaining,
            retry_after_ms: verdict.retry_after.map_or(-1, |wait| ms(wait).cast_signed()),
            reset_after_ms: ms(verdict.reset_after),
        }
    }
}

/// The verdict as a line for people.
pub fn describe(verdict: &Verdict, quantity: u32) -> String {
    let (left, limit) = (verdict.remaining, verdict.limit);
    let again = match (verdict.retry_after, verdict.reset_after) {
        (Some(retry), _) => format!(", try again in {}", duration::show(retry)),
        (None, Duration::ZERO) => String::new(),
        (None, reset) => format!(", all again in {}", duration::show(reset)),
    };
    let word = match (verdict.limited, is_closed(verdict, quantity)) {
        (true, _) => "refused",
        (false, true) => "nothing left",
        (false, false) => "allowed",
    };
    format!("{word}: {left} of {limit} left{again}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_kinds_and_too_large_quantities_are_refused() {
        let request = |kind: &str| LimitRequest {
            kind: kind.parse().expect("a kind"),
            rate: (5, Duration::from_secs(60)),
            quantity: 1,
            capacity: None,
            burst: None,
            aligned: false,
        };
        assert!(request("throttle").limiter().is_ok());
        let why = LimitRequest { capacity: Some(3), ..request("throttle") }.limiter();
        assert_eq!(why, Err("capacity is for token-bucket and leaky-meter, not for throttle".to_owned()));
        let why = LimitRequest { burst: Some(3), ..request("token-bucket") }.limiter();
        assert_eq!(why, Err("burst is for throttle, not for token-bucket".to_owned()));
        let why = LimitRequest { quantity: u32::MAX, ..request("fixed-window") }.limiter();
        assert!(why.is_err_and(|why| why.starts_with("the quantity of a fixed-window is 0 to ")));
        assert!(LimitRequest { aligned: true, ..request("throttle") }.limiter().is_err());
    }
}
