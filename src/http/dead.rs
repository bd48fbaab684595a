//! Dead letters: shown by page, and put back or dropped, exactly those that a filter finds.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::Door;
use super::body::{NoQuery, read_words};
use super::buckets::{query, value};
use super::document::shapes;
use super::problem::Problem;
use super::who::Caller;
use crate::operate::dead::{Found, Order, Outcome, Said, Wanted, count, run, short_glob};
use crate::operate::letter::{LetterSaid, as_value};
use crate::store::StoreError;
use crate::store::dead::{Act, Letter, PAGE_MOST};
use crate::store::link::OfStore;
use crate::words::entry::EntryId;

/// How many letters are shown unless `limit` says otherwise.
const SHOWN: u64 = 100;

/// How many bytes of letters one answer holds, about.
const PAGE_BYTES: usize = 8 * 1_048_576;

/// Which letters are listed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Listed {
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

/// Which letters a change is about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhichDeadLetters)]
pub(super) struct Which {
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
    #[schema(value_type = Vec<LetterSaid>)]
    letters: Vec<Value>,
    /// The `after` of the next page; null: this is the last one.
    next: Option<String>,
}

/// What a change would be about.
#[derive(Serialize, ToSchema)]
pub(super) struct DeadCounted {
    /// How many were found.
    matched: u64,
    /// How many are no dead letters, and cannot go back.
    malformed: u64,
    /// How many dead letters there are.
    left: u64,
    /// By bucket.
    buckets: BTreeMap<String, Busy>,
    /// The newest that was counted: the `up_to` of the change.
    up_to: Option<String>,
}

/// For how long a bucket would be busy with what is put back.
#[derive(Serialize, ToSchema)]
struct Busy {
    /// How many letters.
    letters: u64,
    /// For how long, at its rate.
    busy_ms: u64,
}

/// An entry of the stream, where one is given.
fn entry(name: &str, text: Option<&str>) -> Result<Option<EntryId>, Problem> {
    let wrong =
        |text| Problem::bad_request(format!("{name}: {text:?} is not an entry; write its id, as 1750000000000-0"));
    text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
}

impl Which {
    /// Whether it says which letters are meant: nobody deletes all of them by leaving something out.
    fn is_meant(&self) -> bool {
        let Self { bucket, reason, id, before, limit, dry_run, all, up_to: _ } = self;
        let texts = [bucket, reason, id, before];
        *all || *dry_run || limit.is_some() || texts.into_iter().any(Option::is_some)
    }
}

/// The filter of a list or a change.
fn wanted(
    bucket: Option<&String>,
    reason: Option<&String>,
    id: Option<&String>,
    before: Option<&String>,
) -> Result<Wanted, Problem> {
    fn word<T>(
        name: &str,
        text: Option<&String>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let wrong = |why| Problem::bad_request(format!("{name}: {why}"));
        text.map(|text| read(text).map_err(wrong)).transpose()
    }
    Ok(Wanted {
        bucket: word("bucket", bucket, short_glob)?,
        reason: word("reason", reason, short_glob)?,
        id: word("id", id, |text| text.parse().map_err(str::to_owned))?,
        before: word("before", before, |text| text.parse().map_err(str::to_owned))?,
    })
}

/// `GET /v1/dead`.
pub(super) async fn list(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    which: Result<Query<Listed>, QueryRejection>,
) -> Result<Json<DeadLetters>, Problem> {
    caller.may_see_jobs(None)?;
    let Listed { bucket, reason, id, before, limit, after } = query(which)?;
    let wanted = wanted(bucket.as_ref(), reason.as_ref(), id.as_ref(), before.as_ref())?;
    let most = limit.unwrap_or(SHOWN);
    if !(1..=PAGE_MOST).contains(&most) {
        return Err(Problem::bad_request(format!("limit={most} is not allowed; write 1 to {PAGE_MOST}")));
    }
    let after = entry("after", after.as_deref())?;
    let call = async |mut store: crate::store::Whole| {
        let Some(mut filter) = wanted.filter(&mut store).await? else {
            return Ok::<_, StoreError>((Vec::new(), false));
        };
        filter.after = after;
        let (mut letters, mut bytes) = (Vec::new(), 0);
        loop {
            let page = store.dead_page(&filter, most.saturating_sub(letters.len() as u64) + 1).await?;
            for letter in page.letters {
                // Letters of several partitions may have one id: they stand on one page.
                let is_last = letters.last().is_none_or(|last: &Letter| last.entry != letter.entry);
                if is_last && (letters.len() as u64 >= most || bytes >= PAGE_BYTES) {
                    return Ok((letters, true));
                }
                bytes += letter.fields.iter().map(|(_, value)| value.len()).sum::<usize>();
                letters.push(letter);
            }
            let Some(next) = page.next else { return Ok((letters, false)) };
            filter.after = Some(next);
        }
    };
    let (letters, has_more) = door.ask(call).await?;
    let next = letters.last().filter(|_| has_more).map(|letter| letter.entry.to_string());
    let letters: Vec<Value> = letters.iter().map(as_value).collect();
    Ok(Json(DeadLetters { letters, next }))
}

/// `POST /v1/dead/retry`.
pub(super) async fn retry(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    _: NoQuery,
    body: Body,
) -> Result<Json<Value>, Problem> {
    change(&door, &caller, Act::Retry, body).await
}

/// `POST /v1/dead/drop`.
pub(super) async fn drop_route(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    _: NoQuery,
    body: Body,
) -> Result<Json<Value>, Problem> {
    change(&door, &caller, Act::Drop, body).await
}

/// For how long each bucket would be busy with what is put back.
fn busy(found: &Found) -> BTreeMap<String, Busy> {
    let one = |(name, backlog): (&String, &crate::operate::dead::Backlog)| {
        (name.clone(), Busy { letters: backlog.letters, busy_ms: backlog.busy().as_millis() as u64 })
    };
    found.buckets.iter().map(one).collect()
}

/// What was done before something failed.
struct Halfway {
    why: StoreError,
    done: u64,
}

impl From<StoreError> for Halfway {
    fn from(why: StoreError) -> Self {
        Self { why, done: 0 }
    }
}

impl OfStore for Halfway {
    fn of_store(&self) -> Option<&StoreError> {
        Some(&self.why)
    }
}

impl From<Halfway> for Problem {
    fn from(Halfway { why, done }: Halfway) -> Self {
        Self::from(why).with("done", done)
    }
}

async fn change(door: &Door, caller: &Caller, act: Act, body: Body) -> Result<Json<Value>, Problem> {
    caller.may_operate(None)?;
    let which: Which = read_words(body).await?;
    let Which { bucket, reason, id, before, .. } = &which;
    let wanted = wanted(bucket.as_ref(), reason.as_ref(), id.as_ref(), before.as_ref())?;
    if which.limit == Some(0) {
        return Err(Problem::bad_request("a limit is at least 1"));
    }
    if !which.is_meant() {
        return Err(Problem::bad_request(
            "say which dead letters: bucket, reason, id, before or limit; or {\"all\": true} for all of them",
        ));
    }
    let up_to = entry("up_to", which.up_to.as_deref())?;
    let call = async |mut store: crate::store::Whole| {
        let filter = wanted.filter(&mut store).await?;
        let mut found = Found::default();
        let Some(mut filter) = filter else {
            return Ok((found, Outcome { left: store.dead_length().await?, ..Outcome::default() }, None));
        };
        filter.upto = [filter.upto, up_to].into_iter().flatten().min();
        found = count(&mut store, act, &filter, which.limit).await?;
        let matched = found.affected(act);
        if which.dry_run || matched == 0 {
            let outcome =
                Outcome { malformed: found.malformed, left: store.dead_length().await?, ..Outcome::default() };
            let counted = found.upto().filter(|_| matched > 0);
            return Ok((found, outcome, counted));
        }
        let author = door.author(&mut store, caller).await;
        let before = format!("{matched} dead letters{}", wanted.in_words());
        let order = Order { act, author, before, label: wanted.bucket.clone().unwrap_or_default() };
        let mut done = 0;
        match run(&mut store, &found, &order, &mut done).await {
            Ok(outcome) => Ok((found, outcome, None)),
            Err(why) => Err(Halfway { why, done }),
        }
    };
    let (found, outcome, counted_up_to) = door.call(call).await?;
    let matched = found.affected(act);
    if which.dry_run {
        let up_to = counted_up_to.map(|entry| entry.to_string());
        let (malformed, left, buckets) = (found.malformed, outcome.left, busy(&found));
        return Ok(value(&DeadCounted { matched, malformed, left, buckets, up_to }));
    }
    let mut said = Said::of(act, matched, &outcome);
    said.why = outcome.why.map(|(key, why)| format!("{key}: {why}"));
    Ok(value(&said))
}
