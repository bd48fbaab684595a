//! Buckets: the first of all by an order, and one with its explanation.

use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{QueryResult, at_most, query};
use super::context::Context;
use super::document::shapes;
use super::memory::Room;
use super::problem::Problem;
use super::resource_path::ResourcePath;
use crate::explain::Explanation;
use crate::model::glob::Glob;
use crate::operate::explain::explain_bucket;
use crate::operate::moment::rfc3339;
use crate::store::snapshots::{BucketSnapshot, MAX_SNAPSHOTS, Why};
use crate::store::top::{By, KEPT, Row};
use crate::store::view::BucketStatus;
use crate::store::{Partitions, StoreError};

/// How many buckets are shown unless `limit` says otherwise.
const SHOWN: usize = 100;

/// The bytes of a bucket in an answer, about.
const ROW: usize = 1_024;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TopQuery {
    /// Only buckets whose names this glob matches
    #[serde(rename = "match")]
    only: Option<String>,
    /// `empty` (longest until empty), `depth`, `rejected` (in the last 10 to 20 minutes) or `late`; `empty` if nothing is said
    #[param(value_type = Option<shapes::Order>)]
    by: Option<String>,
    /// How many at most, 1 to 1,000; 100 if nothing is said
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The first 64 rows as they stand now, and why each waits; the order stays that of the walk
    #[serde(default)]
    now: bool,
}

/// The first buckets by an order, as the last walk over all of them found them.
#[derive(Serialize, ToSchema)]
pub(super) struct TopBuckets {
    /// When the walk began, RFC 3339; null: no walk is over yet.
    as_of: Option<String>,
    /// The same in microseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of_us: Option<u64>,
    /// How long ago that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
    /// How long the walk took.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    /// The order.
    by: &'static str,
    /// How many buckets the walk passed: those that had work.
    buckets: u64,
    /// The first of them.
    rows: Vec<TopRow>,
}

/// A bucket of those.
#[derive(Serialize, ToSchema)]
struct TopRow {
    #[serde(flatten)]
    row: Row,
    /// With `now`, of the first 64: why it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<Why>,
    /// Likewise: the name or glob that closes it, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    #[expect(clippy::option_option, reason = "it is left out without `now`, and null where nothing closes the bucket")]
    closed_by: Option<Option<String>>,
    /// Likewise: how many jobs have left it since somebody looks at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
}

/// How a bucket stands, and why it waits.
#[derive(Serialize, ToSchema)]
pub(super) struct OneBucket {
    /// As `dripd status <bucket> --json`.
    status: BucketStatus,
    /// As `dripd explain --json`.
    explanation: Explanation,
}

impl From<BucketSnapshot> for TopRow {
    fn from(now: BucketSnapshot) -> Self {
        Self { row: now.row, why: Some(now.why), closed_by: Some(now.closed_by), left: Some(now.left) }
    }
}

/// `GET /v1/buckets`: the first buckets by an order, as the last walk over all of them found them, with the age of that
/// walk.
pub(super) async fn top(
    Context { state, caller }: Context,
    Extension(room): Extension<Arc<Room>>,
    read: QueryResult<TopQuery>,
) -> Result<Json<TopBuckets>, Problem> {
    caller.may_read(None)?;
    let which = query(read)?;
    let by = which.by.as_deref().unwrap_or("empty");
    let by: By = by.parse().map_err(|why| Problem::bad_request(format!("by={by:?} is not known; {why}")))?;
    let limit = at_most("limit", which.limit.unwrap_or(SHOWN), KEPT)?;
    room.at_least(limit * ROW).await?;
    let only = which.only.as_deref().map(Glob::parse);
    let look = async |mut store: Partitions| {
        let top = store.top(by, only.as_ref(), limit).await?;
        let rows = top.iter().flat_map(|top| &top.rows).take(if which.now { MAX_SNAPSHOTS } else { 0 });
        let names: Vec<String> = rows.map(|row| row.bucket.clone()).collect();
        let now = if names.is_empty() { Vec::new() } else { store.bucket_snapshots(&names).await?.rows };
        Ok::<_, StoreError>((top, now))
    };
    let (top, now) = state.query(look).await?;
    let by = by.as_str();
    let (as_of_us, age_ms, took_ms, buckets, rows) = match top {
        None => (None, None, None, 0, Vec::new()),
        Some(top) => (Some(top.as_of_us), Some(top.age_ms), Some(top.took_ms), top.buckets, top.rows),
    };
    let later = rows.into_iter().skip(now.len()).map(|row| TopRow { row, why: None, closed_by: None, left: None });
    let rows = now.into_iter().map(TopRow::from).chain(later).collect();
    let as_of = as_of_us.and_then(|us| rfc3339(us / 1_000));
    Ok(Json(TopBuckets { as_of, as_of_us, age_ms, took_ms, by, buckets, rows }))
}

/// `GET /v1/buckets/<bucket>`: the status of a bucket, and why it waits.
pub(super) async fn bucket(Context { state, caller }: Context, path: ResourcePath) -> Result<Json<OneBucket>, Problem> {
    let bucket = path.into_name()?;
    caller.may_read(Some(bucket.as_str()))?;
    let config = state.config();
    let call = async |store: Partitions| {
        let status = store.of(&bucket).bucket_status(&bucket).await?;
        Ok::<_, StoreError>(OneBucket { status, explanation: explain_bucket(&store, &bucket, &config).await? })
    };
    Ok(Json(state.query(call).await?))
}
