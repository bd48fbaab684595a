//! The jobs of a bucket: those that leave next, and the last dispatches.

use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{QueryResult, query};
use super::context::Context;
use super::memory::Room;
use super::problem::Problem;
use super::resource_path::ResourcePath;
use crate::model::escape::escaped;
use crate::store::bucket_page::{BYTES_MOST, JOBS_MOST, WaitingJob};

/// The jobs that are shown unless `limit` says otherwise, and the bytes of each unless `bytes` does.
const JOBS: usize = 20;
const BYTES: usize = 256;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitingJobsQuery {
    /// How many jobs at most, 1 to 100; 20 if nothing is said
    #[param(minimum = 1, maximum = 100)]
    limit: Option<usize>,
    /// How many bytes of each at most, 1 to 4,096; 256 if nothing is said
    #[param(minimum = 1, maximum = 4096)]
    bytes: Option<usize>,
}

/// The jobs that leave a bucket next.
#[derive(Serialize, ToSchema)]
pub(super) struct WaitingJobs {
    /// The bucket.
    bucket: String,
    /// How many wait.
    depth: u64,
    /// Those that leave next, the next one first.
    jobs: Vec<FirstBytes>,
}

/// The first bytes of a job.
#[derive(Serialize, ToSchema)]
struct FirstBytes {
    /// How many it has in all.
    bytes: u64,
    /// Whether there are more than these.
    cut: bool,
    /// As they may be shown anywhere.
    first: String,
    /// As they are.
    first_base64: String,
}

/// The last dispatches of a bucket.
#[derive(Serialize, ToSchema)]
pub(super) struct LastDrips {
    /// The bucket.
    bucket: String,
    /// The time at Redis, in microseconds since the epoch.
    at_us: u64,
    /// How many jobs have left since they are remembered; null: those of too many other buckets are.
    left: Option<u64>,
    /// The last of them, the oldest first: when each was due and when it left, in microseconds since the epoch.
    drips: Vec<[u64; 2]>,
}

/// `GET /v1/buckets/<b>/jobs`.
pub(super) async fn waiting(
    Context { state, caller }: Context,
    Extension(room): Extension<Arc<Room>>,
    path: ResourcePath,
    how_many: QueryResult<WaitingJobsQuery>,
) -> Result<Json<WaitingJobs>, Problem> {
    let bucket = path.into_name()?;
    caller.may_see_jobs(Some(bucket.as_str()))?;
    let WaitingJobsQuery { limit, bytes } = query(how_many)?;
    let (limit, bytes) = (limit.unwrap_or(JOBS), bytes.unwrap_or(BYTES));
    if !(1..=JOBS_MOST).contains(&limit) || !(1..=BYTES_MOST).contains(&bytes) {
        return Err(Problem::bad_request(format!("write a limit of 1 to {JOBS_MOST}, and bytes of 1 to {BYTES_MOST}")));
    }
    // A byte may be shown as `\u{1b}` in JSON, and in base64.
    room.at_least(limit * bytes * 10).await?;
    let front = state.query(async |whole| whole.of(&bucket).bucket_page(&bucket, limit, bytes).await).await?;
    let jobs = front.jobs.iter().map(FirstBytes::of).collect();
    Ok(Json(WaitingJobs { bucket: bucket.to_string(), depth: front.depth, jobs }))
}

impl FirstBytes {
    fn of(job: &WaitingJob) -> Self {
        let is_cut = job.bytes > job.first.len() as u64;
        // The text must not end with half a character.
        let whole = match std::str::from_utf8(&job.first) {
            Err(why) if is_cut && why.error_len().is_none() => why.valid_up_to(),
            _ => job.first.len(),
        };
        Self {
            bytes: job.bytes,
            cut: is_cut,
            first: escaped(job.first.get(..whole).unwrap_or_default()),
            first_base64: BASE64_STANDARD.encode(&job.first),
        }
    }
}

/// `GET /v1/buckets/<b>/drips`.
pub(super) async fn drips(Context { state, caller }: Context, path: ResourcePath) -> Result<Json<LastDrips>, Problem> {
    let bucket = path.into_name()?;
    caller.may_read(Some(bucket.as_str()))?;
    let said = state.query(async |whole| whole.of(&bucket).recent_dispatches(&bucket).await).await?;
    let drips = said.drips.iter().map(|drip| [drip.due_us, drip.left_us]).collect();
    Ok(Json(LastDrips { bucket: bucket.to_string(), at_us: said.at_us, left: said.left, drips }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_cut_between_two_characters_and_shown_without_what_hides_itself() {
        let said = |first: &[u8], bytes| {
            serde_json::to_value(FirstBytes::of(&WaitingJob { bytes, first: first.to_vec() })).expect("JSON")
        };
        assert_eq!(said("aé".as_bytes(), 3)["first"], "aé");
        assert_eq!(said(b"a\xc3", 9)["first"], "a", "the rest of the character is not there");
        assert_eq!(said(b"a\xc3", 2)["first"], r"a\xc3", "there is no rest");
        assert_eq!(said("<b>\u{202e}".as_bytes(), 6)["first"], r"<b>\u{202e}");
    }
}
