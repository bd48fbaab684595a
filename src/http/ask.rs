//! Questions about everything, and the limiters: `status`, `settings`, `what-if`, `limit`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::Door;
use super::act::words_of;
use super::body::{NoQuery, read_words};
use super::buckets::{name, query, value};
use super::document::keys::BucketKeysOrNone;
use super::document::shapes;
use super::problem::Problem;
use super::who::Caller;
use crate::config::settings;
use crate::explain::WhatIfSaid;
use crate::operate::limit::{Asked, as_json, never_passes};
use crate::operate::settings::{Row, as_json as settings_as_json, rows};
use crate::store::change::{Change, SetTo};
use crate::words::duration::count_per_period;
use crate::words::glob::Glob;
use crate::words::limiter::Kind;
use crate::words::subject::Subject;

/// How many jobs a forecast may be about.
const PUSH_MOST: u64 = 10_000_000;

/// `GET /v1/status`.
pub(super) async fn status(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Problem> {
    caller.may_read(None)?;
    let config = door.config();
    Ok(value(&door.ask(async |mut store| store.status(&config.record).await).await?))
}

/// `GET /v1/routes`.
pub(super) async fn routes(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Problem> {
    caller.may_read(None)?;
    Ok(value(&door.ask(async |mut store| store.routes().await).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Only names and globs that this glob matches
    #[serde(rename = "match")]
    only: Option<String>,
    /// Of how many names and globs at most, 1 to 10,000; 1,000 if nothing is said. The header `Drip-More` says that there are more
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
}

/// Of how many names and globs the settings are shown unless `limit` says otherwise, and at most.
const SETTINGS_SHOWN: usize = 1_000;
const SETTINGS_MOST: usize = 10_000;

/// The header of a list that was cut.
const MORE: HeaderName = HeaderName::from_static("drip-more");

/// `GET /v1/settings`.
pub(super) async fn all_settings(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Response, Problem> {
    caller.may_read(None)?;
    let which = query(which)?;
    let only = which.only.as_deref().map(Glob::parse);
    let most = which.limit.unwrap_or(SETTINGS_SHOWN);
    if !(1..=SETTINGS_MOST).contains(&most) {
        return Err(Problem::bad_request(format!("limit={most} is not allowed; write 1 to {SETTINGS_MOST}")));
    }
    let is_meant =
        |pattern: &str| only.as_ref().is_none_or(|only| only.matches(Subject::of_stored(pattern).pattern.as_bytes()));
    let (all, has_more) = door.ask(async |mut store| store.some_settings(most, is_meant).await).await?;
    let rows: Vec<Row> = all.iter().flat_map(rows).collect();
    let mut answer = Json(settings_as_json(&rows)).into_response();
    if has_more {
        answer.headers_mut().insert(MORE, HeaderValue::from_static("true"));
    }
    Ok(answer)
}

/// What a change or a push would do.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WhatIf {
    /// Which bucket
    #[schema(value_type = shapes::Name)]
    bucket: String,
    /// Keys that would be set: `{"rate": "5/s"}`
    #[serde(default)]
    #[schema(value_type = BucketKeysOrNone)]
    set: serde_json::Map<String, Value>,
    /// How many jobs would be pushed
    #[serde(default)]
    #[schema(maximum = 10_000_000)]
    push: u64,
}

/// `POST /v1/what-if`.
pub(super) async fn what_if(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    _: NoQuery,
    body: Body,
) -> Result<Json<Value>, Problem> {
    let asked: WhatIf = read_words(body).await?;
    let bucket = name(&asked.bucket)?;
    caller.may_read(Some(bucket.as_str()))?;
    if asked.push > PUSH_MOST {
        return Err(Problem::bad_request(format!("push: at most {PUSH_MOST} jobs")));
    }
    let subject = Subject { is_budget: false, pattern: bucket.as_str() };
    let given =
        settings::parse(&words_of(&asked.set)?, &subject).map_err(|why| Problem::bad_request(why.to_string()))?;
    let set: BTreeMap<String, SetTo> =
        given.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
    let change = Change { what: "set", pattern: bucket.to_string(), set, ..Change::default() };
    let said = door.ask(async |whole| whole.of(&bucket).what_if(&bucket, &change, asked.push).await).await?;
    Ok(value(&WhatIfSaid::of(bucket.as_str(), asked.push, said)))
}

/// What a limiter is asked.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    /// How many in how long: `"5/60s"`
    #[schema(value_type = shapes::LimiterRate)]
    rate: String,
    /// How many this call stands for; 0 only looks
    #[schema(maximum = 1_000_000)]
    quantity: Option<u32>,
    /// How many may pass at once, for token-bucket and leaky-meter
    #[schema(minimum = 1, maximum = 1_000_000)]
    capacity: Option<u32>,
    /// How many may pass at once beyond the first, for throttle
    #[schema(maximum = 999_999)]
    burst: Option<u32>,
    /// Windows begin at multiples of the period since 1970, for fixed-window
    #[serde(default)]
    aligned: bool,
}

/// `POST /v1/limit/<limiter>/<key>`.
pub(super) async fn limit(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    caller.may_operate(None)?;
    let mut parts = uri.path().split('/').skip(3);
    let (kind, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kind: Kind = kind
        .parse()
        .map_err(|why: <Kind as std::str::FromStr>::Err| Problem::new(StatusCode::NOT_FOUND, "not-found", why))?;
    let key: Vec<u8> = percent_decode_str(key).collect();
    let asked: Limit = read_words(body).await?;
    let quantity = asked.quantity.unwrap_or(1);
    let wrong = || Problem::bad_request("rate: write limit/period, as in 5/60s, 100/h or 1/500ms");
    let rate: (u32, Duration) = count_per_period(&asked.rate).ok_or_else(wrong)?;
    let Limit { capacity, burst, aligned, .. } = asked;
    let limiter = Asked { kind, rate, quantity, capacity, burst, aligned }.limiter().map_err(Problem::bad_request)?;
    let verdict = door.call(async |whole| whole.of_key(&key).limit(&limiter, &key, quantity).await).await?;
    let said = as_json(&verdict, quantity);
    if !verdict.limited {
        return Ok(Json(said).into_response());
    }
    let Some(retry_after) = verdict.retry_after else {
        return Err(Problem::bad_request(never_passes(&verdict, quantity)));
    };
    let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limited", "");
    for (name, value) in said.as_object().into_iter().flatten() {
        problem = problem.with(name, value.clone());
    }
    Ok(problem.retry_after_ms(u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX)).into_response())
}

/// There is nothing at a path. (A name that is empty leaves its place in the path empty.)
pub(super) async fn nothing(uri: Uri) -> Problem {
    let is_empty_name = ["/v1/buckets/", "/v1/budgets/"]
        .into_iter()
        .filter_map(|of| uri.path().strip_prefix(of))
        .any(|rest| rest.is_empty() || rest.starts_with('/'));
    if let (true, Err(why)) = (is_empty_name, name("")) {
        return why;
    }
    Problem::new(StatusCode::NOT_FOUND, "not-found", format!("there is nothing at {}", uri.path()))
        .with("see", json!("/openapi.json"))
}

/// A path is known, and not with this method; the header `Allow` names those that are.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not answer {method}; the header Allow names what it answers", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail).with("see", json!("/openapi.json"))
}
