//! What there is to know of buckets: the top of all, and one with its explanation.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::Door;
use super::at::At;
use super::problem::Problem;
use super::who::Caller;
use crate::explain::{Explanation, File, Wall};
use crate::store::StoreError;
use crate::store::rows::{BucketNow, MOST, Why};
use crate::store::top::{By, KEPT};
use crate::words::bucket::{BadBucketName, BucketName};
use crate::words::glob::Glob;

/// How many buckets are shown unless `limit` says otherwise.
const SHOWN: usize = 100;

/// A name that none can be.
pub(super) fn bad_name(why: &BadBucketName) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-name", why.to_string())
}

/// The name of a bucket or a budget.
pub(super) fn name(text: &str) -> Result<BucketName, Problem> {
    BucketName::parse(text.as_bytes()).map_err(|why| bad_name(&why))
}

/// The one that a path names.
pub(super) fn named(at: At) -> Result<BucketName, Problem> {
    at.named.ok_or_else(|| Problem::bad_request("the path names none"))
}

/// The words of a query, or what is wrong with them.
pub(super) fn query<T>(read: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    read.map(|Query(read)| read).map_err(|why| Problem::bad_request(why.body_text()))
}

/// Text and numbers, of which JSON can be made.
pub(super) fn value(of: &impl serde::Serialize) -> Json<Value> {
    Json(serde_json::to_value(of).unwrap_or_default())
}

/// A member of an object.
pub(super) fn put(object: &mut Value, name: &str, member: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), member);
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only buckets whose names this glob matches
    #[serde(rename = "match")]
    only: Option<String>,
    /// `empty` (longest until empty), `depth`, `rejected` (in the last 10 to 20 minutes) or `late`; `empty` if nothing is said
    by: Option<String>,
    /// How many at most, 1 to 1,000; 100 if nothing is said
    limit: Option<usize>,
    /// The first 64 rows as they stand now, and why each waits; the order stays that of the walk
    #[serde(default)]
    now: bool,
}

/// A word for why something waits, and what that is about.
pub(super) fn why_as_json(why: &Why) -> Value {
    let (word, about) = match why {
        Why::WrongType(about) => ("wrong-type", about.as_str()),
        Why::Refused(about) => ("refused", about.as_str()),
        Why::Paused(about) => ("paused", about.as_str()),
        Why::PausedAbove(about) => ("paused-above", about.as_str()),
        Why::Slots(about) => ("slots", about.as_str()),
        Why::Slow => ("slow", ""),
        Why::Slowed(about) => ("slowed", about.as_str()),
        Why::Quota => ("quota", ""),
        Why::Rate => ("rate", ""),
        Why::Share(about) => ("share", about.as_str()),
        Why::Held(about) => ("held", about.as_str()),
        Why::BackingOff => ("backing-off", ""),
        Why::Delayed => ("delayed", ""),
        Why::Due => ("due", ""),
        Why::Empty => ("empty", ""),
        Why::Other(word) => (word.as_str(), ""),
    };
    json!({ "word": word, "about": about })
}

/// A row as it stands now.
fn now_as_json(now: &BucketNow) -> Value {
    let mut row = json!(now.row);
    put(&mut row, "why", why_as_json(&now.why));
    put(&mut row, "closed_by", json!(now.closed_by));
    put(&mut row, "left", json!(now.left));
    row
}

/// The first buckets by an order, as the last walk over all of them found them, with how old that is.
pub(super) async fn top(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    caller.may_read(None)?;
    let which = query(which)?;
    let by = which.by.as_deref().unwrap_or("empty");
    let by: By = by.parse().map_err(|why| Problem::bad_request(format!("by={by:?} is not known; {why}")))?;
    let limit = which.limit.unwrap_or(SHOWN);
    if !(1..=KEPT).contains(&limit) {
        return Err(Problem::bad_request(format!("limit={limit} is not allowed; write 1 to {KEPT}")));
    }
    let only = which.only.as_deref().map(Glob::parse);
    let look = async |mut store: crate::store::Whole| {
        let top = store.top(by, only.as_ref(), limit).await?;
        let rows = top.iter().flat_map(|top| &top.rows).take(if which.now { MOST } else { 0 });
        let names: Vec<String> = rows.map(|row| row.bucket.clone()).collect();
        let now = if names.is_empty() { Vec::new() } else { store.rows_now(&names).await?.rows };
        Ok::<_, StoreError>((top, now))
    };
    let (top, now) = door.ask(look).await?;
    Ok(Json(match top {
        None => json!({ "as_of": null, "by": by.as_str(), "buckets": 0, "rows": [] }),
        Some(top) => json!({
            "as_of": crate::operate::moment::rfc3339(top.as_of_us / 1_000), "as_of_us": top.as_of_us, "age_ms": top.age_ms,
            "took_ms": top.took_ms, "by": by.as_str(), "buckets": top.buckets,
            "rows": now.iter().map(now_as_json).chain(top.rows.iter().skip(now.len()).map(|row| json!(row))).collect::<Vec<_>>(),
        }),
    }))
}

/// A bucket: how it stands, and why it waits.
pub(super) async fn bucket(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    at: At,
) -> Result<Json<Value>, Problem> {
    let bucket = named(at)?;
    caller.may_read(Some(bucket.as_str()))?;
    let config = door.config();
    let call = async |store: crate::store::Whole| {
        let (status, facts) =
            (store.of(&bucket).bucket_status(&bucket).await?, store.of(&bucket).explain(&bucket).await?);
        let is_in_force =
            if config.path.is_some() { store.authority().has_record(&config.record).await? } else { None };
        Ok::<_, StoreError>((status, facts, is_in_force))
    };
    let (status, facts, is_in_force) = door.ask(call).await?;
    let file = File { name: config.source(), is_in_force };
    let explanation = Explanation::of(&facts, file, &Wall::here(facts.now_us));
    Ok(Json(json!({ "status": status, "explanation": explanation })))
}
