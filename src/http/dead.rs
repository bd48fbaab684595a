//! Dead letters: shown in pages, and put back or dropped, exactly those that a filter finds.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::body::{NoQuery, QueryResult, Unread, at_most, query, read_members};
use super::context::Context;
use super::document::shapes;
use super::memory::Room;
use super::problem::Problem;
use crate::model::entry::EntryId;
use crate::operate::dead::{DeadListRequest, DeadRequest, Interrupted};
use crate::operate::dead_filter::{DeadFilter, short_glob};
use crate::operate::letter::DeadLetter;
use crate::store::dead::{Act, Letter, PAGE_MOST};
use crate::store::{Partitions, StoreError};

/// How many letters are shown unless `limit` says otherwise.
const SHOWN: u64 = 100;

/// The bytes of letters at which an answer ends: the last one may be longer.
const PAGE_BYTES: usize = 1_048_576;

/// How many times as long as its letters an answer may be, with what it is made of: JSON writes some bytes as six.
const IN_JSON: usize = 8;

/// The calls after which an answer ends: some 100,000 letters that a filter does not find, or fewer where its globs take
/// long to compare. Then nobody keeps Redis busy for long with one request.
const CALLS: u32 = 256;

/// The query of a list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeadListQuery {
    /// Of buckets whose names this glob matches
    #[param(value_type = Option<shapes::Pattern>)]
    bucket: Option<String>,
    /// Given up for a reason that this glob matches
    #[param(value_type = Option<shapes::Pattern>)]
    reason: Option<String>,
    /// One job: its identity, its id in the streams, or its entry here
    #[param(value_type = Option<shapes::JobId>)]
    id: Option<String>,
    /// That died before a time, or so long ago: `2h`
    #[param(value_type = Option<shapes::Moment>)]
    before: Option<String>,
    /// How many at most, 1 to 1,000; 100 if nothing is said
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
    /// Only what comes after this entry
    #[param(value_type = Option<shapes::Entry>)]
    after: Option<String>,
}

/// The dead letters that a change is about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhichDeadLetters)]
pub(super) struct DeadBody {
    /// Of buckets whose names this glob matches
    #[schema(value_type = Option<shapes::Pattern>)]
    bucket: Option<String>,
    /// Given up for a reason that this glob matches
    #[schema(value_type = Option<shapes::Pattern>)]
    reason: Option<String>,
    /// One job: its identity, its id in the streams, or its entry here
    #[schema(value_type = Option<shapes::JobId>)]
    id: Option<String>,
    /// That died before a time, or so long ago: `2h`
    #[schema(value_type = Option<shapes::Moment>)]
    before: Option<String>,
    /// How many at most
    #[schema(minimum = 1)]
    limit: Option<u64>,
    /// Only count
    #[serde(default)]
    dry_run: bool,
    /// Nothing that is newer than this entry. A count replies it, so that the change is about what was counted
    #[schema(value_type = Option<shapes::Entry>)]
    up_to: Option<String>,
    /// That all are meant; without a filter or a limit nothing is changed unless this says so
    #[serde(default)]
    all: bool,
}

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub(super) struct DeadLetters {
    /// The letters, the oldest first.
    letters: Vec<DeadLetter>,
    /// The `after` of the next page; null: this is the last one. A page may be short, or empty, and not the last one:
    /// a request looks through some 100,000 letters at most.
    next: Option<String>,
}

/// Read the id of an entry, where one is given.
fn entry(name: &str, text: Option<&str>) -> Result<Option<EntryId>, Problem> {
    let wrong =
        |text| Problem::bad_request(format!("{name}: {text:?} is not an entry; write its id, as 1750000000000-0"));
    text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

impl DeadBody {
    /// Whether the body says which letters are meant: nobody deletes all of them by leaving something out.
    fn is_meant(&self) -> bool {
        let Self { bucket, reason, id, before, limit, dry_run, all, up_to: _ } = self;
        let texts = [bucket, reason, id, before];
        *all || *dry_run || limit.is_some() || texts.into_iter().any(Option::is_some)
    }
}

/// The filter of a list or a change.
fn filter(
    bucket: Option<&String>,
    reason: Option<&String>,
    id: Option<&String>,
    before: Option<&String>,
) -> Result<DeadFilter, Problem> {
    fn word<T>(
        name: &str,
        text: Option<&String>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let wrong = |why| Problem::bad_request(format!("{name}: {why}"));
        text.map(|text| read(text).map_err(wrong)).transpose()
    }
    Ok(DeadFilter {
        bucket: word("bucket", bucket, short_glob)?,
        reason: word("reason", reason, short_glob)?,
        id: word("id", id, |text| text.parse().map_err(str::to_owned))?,
        before: word("before", before, |text| text.parse().map_err(str::to_owned))?,
    })
}

/// `GET /v1/dead`.
pub(super) async fn list(
    Context { state, caller }: Context,
    Extension(room): Extension<Arc<Room>>,
    read: QueryResult<DeadListQuery>,
) -> Result<Json<DeadLetters>, Problem> {
    caller.may_see_jobs(None)?;
    let DeadListQuery { bucket, reason, id, before, limit, after } = query(read)?;
    let filter = filter(bucket.as_ref(), reason.as_ref(), id.as_ref(), before.as_ref())?;
    let limit = at_most("limit", limit.unwrap_or(SHOWN), PAGE_MOST)?;
    let request = DeadListRequest { filter, after: entry("after", after.as_deref())?, limit, calls: Some(CALLS) };
    let longest = usize::try_from(state.config().record.limits.max_job_bytes).unwrap_or(usize::MAX);
    room.at_least(longest.saturating_add(PAGE_BYTES).saturating_mul(IN_JSON)).await?;
    let call = async |mut store: Partitions| {
        let (mut letters, mut bytes) = (Vec::new(), 0);
        let show = |letter: &Letter| {
            letters.push(DeadLetter::of(letter));
            bytes += letter.fields.iter().map(|(_, value)| value.len()).sum::<usize>();
            Ok::<_, StoreError>(if bytes >= PAGE_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let listed = request.run(&mut store, show).await?;
        Ok::<_, StoreError>((letters, listed))
    };
    let (letters, listed) = state.query(call).await?;
    let next = listed.last.filter(|_| listed.has_more).map(|entry| entry.to_string());
    Ok(Json(DeadLetters { letters, next }))
}

/// `POST /v1/dead/retry`.
pub(super) async fn retry(context: Context, _: NoQuery, body: Unread) -> Result<Response, Problem> {
    change(context, Act::Retry, body).await
}

/// `POST /v1/dead/drop`.
pub(super) async fn drop_letters(context: Context, _: NoQuery, body: Unread) -> Result<Response, Problem> {
    change(context, Act::Drop, body).await
}

impl From<Interrupted> for Problem {
    fn from(Interrupted { why, done }: Interrupted) -> Self {
        Self::from(why).with("done", done)
    }
}

async fn change(context: Context, act: Act, body: Unread) -> Result<Response, Problem> {
    context.caller.may_operate(None)?;
    let body: DeadBody = read_members(body).await?;
    let DeadBody { bucket, reason, id, before, .. } = &body;
    let filter = filter(bucket.as_ref(), reason.as_ref(), id.as_ref(), before.as_ref())?;
    if body.limit == Some(0) {
        return Err(Problem::bad_request("a limit is at least 1"));
    }
    if !body.is_meant() {
        return Err(Problem::bad_request(
            "say which dead letters: bucket, reason, id, before or limit; or {\"all\": true} for all of them",
        ));
    }
    let up_to = entry("up_to", body.up_to.as_deref())?;
    let (request, by) = (DeadRequest { act, filter, limit: body.limit, up_to }, context.by());
    if body.dry_run {
        let count = async |mut store: Partitions| {
            let found = request.count(&mut store).await?;
            request.counted(&mut store, &found).await
        };
        return Ok(Json(context.state.call(count).await?).into_response());
    }
    let run = async |mut store: Partitions| {
        let found = request.count(&mut store).await?;
        request.run(&mut store, &found, &by).await
    };
    Ok(Json(context.state.call::<_, Interrupted, _>(run).await?).into_response())
}
