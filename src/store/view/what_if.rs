//! Forecasts: the effect of a change or a push, as the functions reply it.

use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::control::change::Change;
use crate::store::reply::count;

/// What becomes of the jobs of a bucket if nothing but time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Forecast {
    /// Jobs in its queue.
    pub jobs: u64,
    /// Until the last of them leaves; `None`: there is none.
    pub last_leaves_in_us: Option<u64>,
    /// Until no retry and no delayed job waits any more either; `None`: nothing waits.
    pub empty_in_us: Option<u64>,
}

/// What a push would come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = PushVerdict)]
pub struct Verdict {
    /// How many of the jobs would go in.
    pub accepted: u64,
    /// How many waiting jobs would be dropped for them.
    pub dropped: u64,
    /// Jobs that would wait then.
    pub depth: u64,
    /// How many may.
    pub capacity: u64,
    /// Until one more would go in; `None`: all go in.
    pub retry_after_ms: Option<u64>,
    /// Until the last one that goes in may leave; `None`: none goes in.
    pub eta_ms: Option<u64>,
}

/// The effect of a change or a push on a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhatIf {
    /// Of the push; `None`: nothing is pushed.
    pub verdict: Option<Verdict>,
    /// As things stand.
    pub now: Forecast,
    /// With the change and the push.
    pub then: Forecast,
    /// Why it is only a lower bound, a word each; none: it is exact.
    pub because: Vec<String>,
}

/// The reply of `drip__what_if`: the verdict, the dropped jobs, two forecasts, why they are not exact.
type WhatIfReply = (Vec<i64>, u64, (u64, i64, i64), (u64, i64, i64), Vec<String>);

impl Store {
    /// Forecast the effect of a change, as `set` would make it, and of a push of so many jobs. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` when its queue is none.
    pub async fn what_if(&mut self, bucket: &BucketName, change: &Change, jobs: u64) -> Result<WhatIf, StoreError> {
        let json = serde_json::to_string(change).expect("a change is text and numbers");
        let reply = self.call_read_only("drip__what_if", &[self.keys().queue(bucket)], ("", json, jobs)).await?;
        reply.decode_with(what_if)
    }
}

fn what_if((verdict, dropped, now, then, because): WhatIfReply) -> Option<WhatIf> {
    let forecast = |(jobs, last, empty): (u64, i64, i64)| Forecast {
        jobs,
        last_leaves_in_us: count(last),
        empty_in_us: count(empty),
    };
    let verdict = match verdict[..] {
        [] => None,
        [accepted, depth, capacity, retry_after, eta] => Some(Verdict {
            accepted: count(accepted)?,
            dropped,
            depth: count(depth)?,
            capacity: count(capacity)?,
            retry_after_ms: count(retry_after),
            eta_ms: count(eta),
        }),
        _ => return None,
    };
    Some(WhatIf { verdict, now: forecast(now), then: forecast(then), because })
}
