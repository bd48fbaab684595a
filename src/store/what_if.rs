//! What the functions forecast of a change or a push: decoded, and nothing added.

use redis::FromRedisValue;

use super::change::Change;
use super::reply::unexpected;
use super::{Store, StoreError};
use crate::words::bucket::BucketName;

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

/// What a change or a push would do to a bucket.
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

/// What `drip__what_if` replies: the verdict, the dropped, two forecasts, why it is not exact.
type WhatIfReply = (Vec<i64>, u64, (u64, i64, i64), (u64, i64, i64), Vec<String>);

impl Store {
    /// What a change, as `set` would make it, and a push of so many jobs would do to a bucket. Nothing is changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` when its queue is none.
    pub async fn what_if(&mut self, bucket: &BucketName, change: &Change, jobs: u64) -> Result<WhatIf, StoreError> {
        let (json, jobs) = (serde_json::to_string(change).expect("a change is text and numbers"), jobs.to_string());
        let args = [b"".as_slice(), json.as_bytes(), jobs.as_bytes()];
        let reply = self.reading("drip__what_if", &[self.keys().queue(bucket)], &args).await?;
        what_if(&reply).ok_or_else(|| unexpected("drip__what_if", &reply))
    }
}

fn what_if(reply: &redis::Value) -> Option<WhatIf> {
    let (verdict, dropped, now, then, because) = WhatIfReply::from_redis_value_ref(reply).ok()?;
    let some = |n: i64| u64::try_from(n).ok();
    let forecast = |(jobs, last, empty): (u64, i64, i64)| Forecast {
        jobs,
        last_leaves_in_us: some(last),
        empty_in_us: some(empty),
    };
    let verdict = match verdict[..] {
        [] => None,
        [accepted, depth, capacity, retry_after, eta] => Some(Verdict {
            accepted: some(accepted)?,
            dropped,
            depth: some(depth)?,
            capacity: some(capacity)?,
            retry_after_ms: some(retry_after),
            eta_ms: some(eta),
        }),
        _ => return None,
    };
    Some(WhatIf { verdict, now: forecast(now), then: forecast(then), because })
}
