//! Jobs with options: the headers of a push, and `GET` and `DELETE /v1/buckets/<bucket>/jobs/<id>`.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{RefOr, Required};
use utoipa::{PartialSchema as _, ToSchema};

use super::context::Context;
use super::document::shapes;
use super::problem::Problem;
use super::resource_path::ResourcePath;
use crate::model::bucket::BucketName;
use crate::model::duration;
use crate::store::submit::{Cancelled, Options, Start, Submitted};

/// What a job with options came to.
#[derive(Serialize, ToSchema)]
pub(super) struct SubmittedJob {
    /// 1: it is in the bucket, by this request or an earlier one.
    accepted: u8,
    /// Jobs waiting now; of a delayed job, delayed ones.
    depth: u64,
    /// How many may.
    capacity: u64,
    /// Until the job is due, in milliseconds; -1: it has left.
    eta_ms: i64,
    /// `queued`, `delayed`, `replaced` or `duplicate`.
    verdict: String,
    /// Its id, given or made up.
    id: String,
    /// Until the job is expected to leave, in milliseconds; -1: it has left.
    expected_ms: i64,
    /// The bucket or budget that decides `eta_ms`.
    by: String,
}

/// How things stand with a job that was pushed with an id.
#[derive(Serialize, ToSchema)]
pub(super) struct FoundJob {
    /// Its bucket.
    bucket: String,
    /// Its id.
    id: String,
    /// `queued`, `delayed`, `retrying` or `left`.
    state: String,
    /// Until it can leave at the earliest, in milliseconds; -1: it waits no more.
    eta_ms: i64,
    /// Which attempt comes next; 0: none that is known.
    attempt: u64,
}

/// A job that is dropped when its turn comes.
#[derive(Serialize, ToSchema)]
pub(super) struct CancelledJob {
    /// Its bucket.
    bucket: String,
    /// Its id.
    id: String,
    /// True.
    cancelled: bool,
}

/// The headers of a push, for the document.
pub(super) fn parameters() -> Vec<Parameter> {
    let header = |name: &str, says: &str, schema: RefOr<Schema>| {
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header).required(Required::False);
        parameter.description(Some(says)).schema(Some(schema)).build()
    };
    let cost = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(100_000));
    vec![
        header("Drip-Id", "Another push with the same id changes nothing", shapes::OwnId::schema()),
        header("Drip-Replace", "`true`: where a job with this id waits, take its place", bool::schema()),
        header(
            "Drip-Delay",
            "How long the job waits first: milliseconds, or with a unit; at most 366d",
            shapes::Delay::schema(),
        ),
        header(
            "Drip-Ttl",
            "For how long it may wait: milliseconds, or with a unit; at most 366d",
            shapes::Ttl::schema(),
        ),
        header("Drip-Cost", "How many slots of each rate it takes", RefOr::T(cost.into())),
        header("traceparent", "Handed on to the worker", shapes::OwnId::schema()),
    ]
}

/// Read a time in a header: a whole number of milliseconds, or a number with a unit.
fn time(name: &str, text: &str) -> Result<Duration, Problem> {
    let plain = || text.parse().ok().map(Duration::from_millis);
    let wrong =
        || Problem::bad_request(format!("{name}: {text:?} is no time; write milliseconds, or a unit, as in 30s"));
    duration::parse(text).or_else(plain).ok_or_else(wrong)
}

/// Read the options of a job from the headers of a push.
pub(super) fn options(headers: &HeaderMap) -> Result<Options, Problem> {
    let text = |name: &str| {
        let value = headers.get(name).map(|value| value.to_str());
        value.transpose().map_err(|_| Problem::bad_request(format!("{name} holds bytes that are no plain text")))
    };
    let mut options = Options { id: text("drip-id")?.map(str::to_owned), ..Options::default() };
    options.replaces = match text("drip-replace")? {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(Problem::bad_request(format!("Drip-Replace: {other:?} is neither true nor false"))),
    };
    if let Some(delay) = text("drip-delay")? {
        options.start = Some(Start::In(time("Drip-Delay", delay)?));
    }
    if let Some(ttl) = text("drip-ttl")? {
        options.ttl = Some(time("Drip-Ttl", ttl)?);
    }
    if let Some(cost) = text("drip-cost")? {
        let wrong = || Problem::bad_request(format!("Drip-Cost: {cost:?} is no whole number"));
        options.cost = Some(cost.parse().map_err(|_| wrong())?);
    }
    if let Some(parent) = text("traceparent")? {
        options.headers.push(("traceparent".to_owned(), parent.to_owned()));
    }
    Ok(options)
}

/// The reason why nothing went in, told from the figures of the verdict: a closed bucket has no capacity, and a bucket
/// with free places was not full. (A bucket that drops its oldest jobs is never full either, which the figures do not
/// tell. So the text claims no more than how many places are taken.)
pub(super) fn why_not(depth: u64, capacity: u64) -> String {
    match capacity {
        0 => "the bucket is closed: an operator lets nothing in".to_owned(),
        _ if depth < capacity => {
            format!("a gate of the bucket (`admit`) lets nothing in now; of its {capacity} places {depth} are taken")
        }
        _ => format!("all {capacity} places of the bucket are taken: {depth} jobs wait"),
    }
}

/// The answer to a job with options.
pub(super) fn answer(submitted: Submitted) -> Response {
    let (eta_ms, expected_ms) = (ms(submitted.eta), ms(submitted.expected));
    let Submitted { depth, capacity, verdict, id, by, .. } = submitted;
    if submitted.is_accepted {
        let is_new = verdict == "queued" || verdict == "delayed";
        let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
        let job = SubmittedJob { accepted: 1, depth, capacity, eta_ms, verdict, id, expected_ms, by };
        return (status, Json(job)).into_response();
    }
    let retry_after_ms = submitted.retry_after.map_or(1, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let (error, detail) = match verdict.as_str() {
        "late" => ("late", format!("as things stand it could not leave before its deadline: {by} is too far behind")),
        "gated" => ("gated", format!("a gate of the bucket, {by}, lets nothing in now")),
        _ => ("full", why_not(depth, capacity)),
    };
    Problem::new(StatusCode::TOO_MANY_REQUESTS, error, detail)
        .with("retry_after_ms", retry_after_ms)
        .with("depth", depth)
        .with("capacity", capacity)
        .with("by", by)
        .retry_after_ms(retry_after_ms)
        .into_response()
}

/// A time in whole milliseconds; -1 for none.
pub(super) fn ms(time: Option<Duration>) -> i64 {
    time.map_or(-1, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

/// The bucket and the id that a path names.
fn one(path: ResourcePath) -> Result<(BucketName, String), Problem> {
    path.named.zip(path.key).ok_or_else(|| Problem::bad_request("the path names no bucket and no id"))
}

fn unknown(bucket: &BucketName, id: &str) -> Problem {
    let detail = format!("{bucket} knows no job {id:?}: it never came, or was forgotten since");
    Problem::new(StatusCode::NOT_FOUND, "unknown-job", detail)
}

/// `GET /v1/buckets/<bucket>/jobs/<id>`.
pub(super) async fn find(Context { state, caller }: Context, path: ResourcePath) -> Result<Json<FoundJob>, Problem> {
    let (bucket, id) = one(path)?;
    caller.may_read(Some(bucket.as_str()))?;
    let found = state.query(async |whole| whole.of(&bucket).find_job(&bucket, &id).await).await?;
    if found.state == "unknown" {
        return Err(unknown(&bucket, &id));
    }
    let (bucket, eta_ms) = (bucket.to_string(), ms(found.eta));
    Ok(Json(FoundJob { bucket, id, state: found.state, eta_ms, attempt: found.attempt }))
}

/// `DELETE /v1/buckets/<bucket>/jobs/<id>`.
pub(super) async fn cancel(
    Context { state, caller }: Context,
    path: ResourcePath,
) -> Result<Json<CancelledJob>, Problem> {
    let (bucket, id) = one(path)?;
    caller.may_push(bucket.as_str())?;
    match state.call(async |whole| whole.of(&bucket).cancel_job(&bucket, &id).await).await? {
        Cancelled::Yes => Ok(Json(CancelledJob { bucket: bucket.to_string(), id, cancelled: true })),
        Cancelled::Left => {
            Err(Problem::new(StatusCode::CONFLICT, "left", format!("job {id:?} of {bucket} has left already")))
        }
        Cancelled::Unknown => Err(unknown(&bucket, &id)),
    }
}
