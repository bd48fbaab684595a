//! `POST /v1/buckets/<bucket>/jobs`: the body is a job, or each of its lines is one.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{QueryResult, Unread, query, read};
use super::context::Context;
use super::document::shapes;
use super::problem::Problem;
use super::resource_path::ResourcePath;
use super::submit::{self, ms};
use crate::model::escape::byte_order_mark;
use crate::store::jobs::push::Pushed;
use crate::store::submit::Posted;

/// The most jobs, and the most bytes, that one request may bring as lines.
const LINES_MOST: usize = 1_000;
const LINES_BYTES_MOST: usize = 8 * 1_048_576;

/// The type of a body whose lines are jobs.
pub(super) const NDJSON: &str = "application/x-ndjson";

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PushQuery {
    /// `lines`: each line of an `application/x-ndjson` body is a job.
    #[param(value_type = Option<shapes::Split>)]
    split: Option<String>,
}

/// A job went in.
#[derive(Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "these are the members of the answer")]
pub(super) struct Accepted {
    /// How many went in: 1.
    accepted: usize,
    /// Jobs waiting now.
    depth: u64,
    /// How many may.
    capacity: u64,
    /// Until the job is due, in milliseconds.
    eta_ms: i64,
}

/// Of several jobs the first ones went in.
#[derive(Serialize, ToSchema)]
pub(super) struct SomeAccepted {
    /// How many of the jobs went in: the first ones.
    accepted: usize,
    /// Jobs waiting now.
    depth: u64,
    /// How many may.
    capacity: u64,
    /// Until one place is expected to be free, in milliseconds; -1: all went in.
    retry_after_ms: i64,
    /// Until the last accepted job is due, in milliseconds; -1: none went in.
    eta_ms: i64,
}

/// Push a job: the body, unchanged.
///
/// The server never repeats a push: after a 504 the job may have gone in. With `split=lines` each line of the body is a
/// job; empty lines are skipped, and where not all fit the first ones go in.
pub(super) async fn push(
    Context { state, caller }: Context,
    path: ResourcePath,
    how: QueryResult<PushQuery>,
    headers: HeaderMap,
    body: Unread,
) -> Result<Response, Problem> {
    let bucket = path.into_name()?;
    caller.may_push(bucket.as_str())?;
    let how = query(how)?;
    let job_most = usize::try_from(state.config().record.limits.max_job_bytes).unwrap_or(usize::MAX);
    let is_split = match how.split.as_deref() {
        None => false,
        Some("lines") => true,
        Some(other) => return Err(Problem::bad_request(format!("split={other:?} is not known; write split=lines"))),
    };
    if is_split {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(NDJSON) {
            let detail = format!("split=lines takes a body of Content-Type {NDJSON}");
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail));
        }
        let read = read(body, LINES_BYTES_MOST).await?;
        let _turn = state.turn_of(read.len()).await;
        let jobs = lines(&read, job_most)?;
        drop(read);
        if submit::options(&headers)?.is_any() {
            return Err(Problem::bad_request("the headers of a job are for a single one; leave split=lines out"));
        }
        let pushed = state.call(async |whole| whole.of(&bucket).push(&bucket, &jobs).await).await?;
        return Ok(answer(pushed, true));
    }
    let job = read(body, job_most).await?;
    let _turn = state.turn_of(job.len()).await;
    let options = submit::options(&headers)?;
    if options.is_any() {
        let submitted = state.call(async |whole| whole.of(&bucket).submit(&bucket, &job, &options).await).await?;
        return Ok(submit::answer(submitted));
    }
    // A bucket may have a `ttl`, from the file or set by an operator. Then a single job has a deadline, as a job with
    // options has.
    Ok(match state.call(async |whole| whole.of(&bucket).post(&bucket, &job).await).await? {
        Posted::Pushed(pushed) => answer(pushed, false),
        Posted::Submitted(submitted) => submit::answer(submitted),
    })
}

/// Split a body into lines, each of them a job; empty lines are skipped.
fn lines(body: &[u8], job_most: usize) -> Result<Vec<Vec<u8>>, Problem> {
    let too_large = |detail: String| Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail));
    if let Some(mark) = byte_order_mark(body) {
        return Err(Problem::bad_request(format!("the body begins with {mark}; nothing was changed")));
    }
    let mut jobs = Vec::new();
    for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if line.len() > job_most {
            let bytes = line.len();
            return too_large(format!(
                "line {number} has {bytes} bytes, limits.max_job_bytes is {job_most}; nothing was changed"
            ));
        }
        if jobs.len() == LINES_MOST {
            return too_large(format!("there are more than {LINES_MOST} lines; split the push; nothing was changed"));
        }
        jobs.push(line.to_vec());
    }
    if jobs.is_empty() { Err(Problem::bad_request("there is no line that is not empty")) } else { Ok(jobs) }
}

fn answer(pushed: Pushed, is_split: bool) -> Response {
    let Pushed { accepted, depth, capacity, .. } = pushed;
    let (retry_after_ms, eta_ms) = (ms(pushed.retry_after), ms(pushed.eta));
    if accepted == 0 {
        let mut full = Problem::new(StatusCode::TOO_MANY_REQUESTS, "full", submit::why_not(depth, capacity))
            .with("retry_after_ms", retry_after_ms)
            .with("depth", depth)
            .with("capacity", capacity);
        if is_split {
            full = full.with("accepted", 0).with("eta_ms", eta_ms);
        }
        return match u64::try_from(retry_after_ms) {
            Ok(ms) => full.retry_after_ms(ms).into_response(),
            Err(_) => full.into_response(),
        };
    }
    if is_split {
        return Json(SomeAccepted { accepted, depth, capacity, retry_after_ms, eta_ms }).into_response();
    }
    (StatusCode::ACCEPTED, Json(Accepted { accepted, depth, capacity, eta_ms })).into_response()
}
