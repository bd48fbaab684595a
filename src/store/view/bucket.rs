//! The status of one bucket, and how many jobs wait in some buckets or were rejected there.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explain::Gate;
use crate::model::bucket::BucketName;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::reply::given;

/// How things stand with one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct BucketStatus {
    /// Its name.
    pub bucket: String,
    /// Jobs that wait.
    pub depth: u64,
    /// How many may.
    pub capacity: u64,
    /// Until the next job may leave; `None`: nothing is scheduled.
    pub due_in_us: Option<u64>,
    /// Whether it waits for its route.
    pub held: bool,
    /// Failed jobs that wait for another try.
    pub retries: u64,
    /// Jobs that wait for their time.
    pub delayed: u64,
    /// Jobs in a period.
    pub count: u64,
    /// The length of a period.
    pub period_us: u64,
    /// How long a worker may hold a job.
    pub lease_ms: u64,
    /// How often a job is tried.
    pub attempts: u64,
    /// What happens when it is full.
    pub overflow: String,
    /// Where its jobs go.
    pub route: String,
    /// The name or glob that pauses it.
    pub paused_by: Option<String>,
    /// When that ends by itself, microseconds since the epoch on the server's clock.
    pub paused_until_us: Option<u64>,
    /// The name or glob that closes it: it accepts nothing.
    pub closed_by: Option<String>,
    /// When that ends by itself, likewise.
    pub closed_until_us: Option<u64>,
    /// Why nothing may leave it: its budgets cannot be found.
    pub refused: Option<String>,
    /// The limiters before the doors that run code.
    pub gates: Vec<Gate>,
}

/// The reply of `drip__look`.
type LookReply = (u64, u64, i64, u64, u64, u64, u64, u64, u64, String, String, LookMore);

/// Its last part: the gates; the name or glob that pauses the bucket, and until when; the one that closes it, and until when; why nothing may
/// leave it; and its delayed jobs.
type LookMore = (Vec<(String, u64, u64, u64)>, String, String, String, String, String, u64);

impl Store {
    /// How things stand with one bucket.
    pub async fn bucket_status(&mut self, bucket: &BucketName) -> Result<BucketStatus, StoreError> {
        let reply = self.call_read_only("drip__look", &[self.keys().queue(bucket)], "").await?;
        let (depth, capacity, due, held, retries, count, period_us, lease_ms, attempts, overflow, route, more) =
            reply.decode::<LookReply>()?;
        let gate = |(limiter, limit, remaining, wait_ms)| Gate { limiter, limit, remaining, wait_ms };
        let (gates, paused_by, paused_until, closed_by, closed_until, refused, delayed) = more;
        Ok(BucketStatus {
            bucket: bucket.to_string(),
            depth,
            capacity,
            due_in_us: u64::try_from(due).ok(),
            held: held == 1,
            retries,
            delayed,
            count,
            period_us,
            lease_ms,
            attempts,
            overflow,
            route,
            paused_by: given(paused_by),
            paused_until_us: paused_until.parse().ok(),
            closed_by: given(closed_by),
            closed_until_us: closed_until.parse().ok(),
            refused: given(refused),
            gates: gates.into_iter().map(gate).collect(),
        })
    }

    /// How many jobs wait in each of some buckets, by the length of their queues.
    pub async fn depths(&mut self, buckets: &[BucketName]) -> Result<Vec<u64>, StoreError> {
        let mut pipeline = redis::pipe();
        for bucket in buckets {
            pipeline.cmd("LLEN").arg(self.keys().queue(bucket));
        }
        self.call_pipeline("LLEN", &pipeline).await
    }

    /// How many jobs of each bucket the rejected stream tells of: an entry is one job, or says for how many it stands.
    pub async fn rejected(&mut self) -> Result<BTreeMap<String, u64>, StoreError> {
        type Entries = Vec<(String, BTreeMap<String, Vec<u8>>)>;
        let key = self.keys().rejected();
        let entries: Entries = self.read("XRANGE", redis::cmd("XRANGE").arg(key).arg("-").arg("+")).await?;
        let mut counts = BTreeMap::new();
        for (_, fields) in entries {
            let Some(bucket) = fields.get("bucket") else { continue };
            let count = fields.get("count").and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
            *counts.entry(String::from_utf8_lossy(bucket).into_owned()).or_default() += count.unwrap_or(1);
        }
        Ok(counts)
    }
}
