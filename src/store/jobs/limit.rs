//! Limiters: a question at a key of an application, whether a call may pass.

use std::time::Duration;

use crate::model::limiter::{Kind, Limiter};
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::reply::{count, wait};

/// The answer of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call was refused.
    pub limited: bool,
    /// The limit, the capacity, or the burst and one.
    pub limit: u64,
    /// The largest quantity that would pass now.
    pub remaining: u64,
    /// Until the same call passes, if nobody else calls; `None` when it passed, or never will.
    pub retry_after: Option<Duration>,
    /// Until the key carries no information.
    pub reset_after: Duration,
}

impl Store {
    /// Ask a limiter whether so many may pass at a key, any key, and charge it if they do. Never repeat a call that was lost:
    /// it may have charged.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with the function's code: `WRONGTYPE` when the key holds something else.
    pub async fn limit(&mut self, limiter: &Limiter, key: &[u8], quantity: u32) -> Result<Verdict, StoreError> {
        let name = match limiter.kind() {
            Kind::FixedWindow => "drip_fixed_window",
            Kind::SlidingWindow => "drip_sliding_window",
            Kind::SlidingCounter => "drip_sliding_counter",
            Kind::TokenBucket => "drip_token_bucket",
            Kind::LeakyMeter => "drip_leaky_meter",
            Kind::Throttle => "drip_throttle",
        };
        let unit = if limiter.kind() == Kind::Throttle { Duration::from_secs } else { Duration::from_millis };
        let args = (limiter.parameters(), quantity, limiter.option());
        self.call_function(name, &[key], args).await?.decode_with(|five| verdict(five, unit))
    }
}

/// The five integers of a limiter, its times in a unit.
fn verdict(
    [limited, limit, remaining, retry_after, reset_after]: [i64; 5],
    unit: fn(u64) -> Duration,
) -> Option<Verdict> {
    Some(Verdict {
        limited: limited == 1,
        limit: count(limit)?,
        remaining: count(remaining)?,
        retry_after: wait(retry_after, unit),
        reset_after: wait(reset_after, unit)?,
    })
}
