//! Asking a limiter: what belongs together, and what the verdict says.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::store::reply::Verdict;
use crate::words::limiter::{Kind, Limiter};

/// What a limiter is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Which one.
    pub kind: Kind,
    /// How many in how long.
    pub rate: (u32, Duration),
    /// How many this call stands for; 0 only looks.
    pub quantity: u32,
    /// How many may pass at once, for those that have a capacity.
    pub capacity: Option<u32>,
    /// How many beyond the first may pass at once, for a throttle.
    pub burst: Option<u32>,
    /// Whether windows begin at multiples of the period since 1970.
    pub aligned: bool,
}

impl Asked {
    /// The limiter that the words describe.
    ///
    /// # Errors
    ///
    /// What does not belong together.
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

/// A quantity of 0 only looks: nothing is allowed by it, and what it finds closed is no refusal of it.
#[must_use]
pub fn is_closed(verdict: &Verdict, quantity: u32) -> bool {
    verdict.limited || (quantity == 0 && verdict.remaining == 0)
}

/// Why a call that is refused will never pass.
#[must_use]
pub fn never_passes(verdict: &Verdict, quantity: u32) -> String {
    format!("{quantity} at once can never pass: the limit is {}; ask for less, or in parts", verdict.limit)
}

/// The verdict of a limiter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LimiterVerdict)]
pub struct Said {
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

/// The verdict for machines.
#[must_use]
pub fn as_json(verdict: &Verdict, quantity: u32) -> serde_json::Value {
    let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    let said = Said {
        limited: is_closed(verdict, quantity),
        limit: verdict.limit,
        remaining: verdict.remaining,
        retry_after_ms: verdict.retry_after.map_or(-1, |wait| ms(wait).cast_signed()),
        reset_after_ms: ms(verdict.reset_after),
    };
    serde_json::json!(said)
}
