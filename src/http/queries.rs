//! Questions about the whole system, and limiters: `status`, `settings`, `what-if`, `limit`.

use std::sync::Arc;

use axum::Json;
use axum::extract::Extension;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::body::{NoQuery, QueryResult, Unread, at_most, query, read_members};
use super::context::Context;
use super::document::keys::BucketKeysOrNone;
use super::document::shapes;
use super::memory::Room;
use super::problem::Problem;
use super::reach;
use super::resource_path::name;
use crate::explain::WhatIfSaid;
use crate::model::duration::count_per_period;
use crate::model::glob::Glob;
use crate::model::limiter::Kind;
use crate::model::subject::Subject;
use crate::operate::limit::{LimitRequest, LimiterVerdict, never_passes};
use crate::operate::set::values_of_json;
use crate::operate::settings::{SetValue, is_matched, rows};
use crate::operate::what_if::{PUSH_MOST, WhatIfRequest};
use crate::store::routes::RouteStatus;
use crate::store::status::Status;

/// `GET /v1/status`.
pub(super) async fn status(Context { state, caller }: Context) -> Result<Json<Status>, Problem> {
    caller.may_read(None)?;
    let config = state.config();
    Ok(Json(state.query(async |mut store| store.status(&config.record).await).await?))
}

/// `GET /v1/routes`.
pub(super) async fn routes(Context { state, caller }: Context) -> Result<Json<Vec<RouteStatus>>, Problem> {
    caller.may_read(None)?;
    Ok(Json(state.query(async |mut store| store.routes().await).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SettingsQuery {
    /// Only names and globs that this glob matches
    #[serde(rename = "match")]
    only: Option<String>,
    /// Of how many names and globs at most, 1 to 10,000; 1,000 if nothing is said. The header `Drip-More` says that there are more
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
}

/// The names and globs whose settings are shown unless `limit` says otherwise, and the most that `limit` may be.
const SETTINGS_SHOWN: usize = 1_000;
const SETTINGS_MOST: usize = 10_000;

/// The bytes of one of them in an answer, about.
const ROW: usize = 1_024;

/// The header that says that a list was cut.
const MORE: HeaderName = HeaderName::from_static("drip-more");

/// `GET /v1/settings`.
pub(super) async fn all_settings(
    Context { state, caller }: Context,
    Extension(room): Extension<Arc<Room>>,
    which: QueryResult<SettingsQuery>,
) -> Result<Response, Problem> {
    caller.may_read(None)?;
    let which = query(which)?;
    let only = which.only.as_deref().map(Glob::parse);
    let most = at_most("limit", which.limit.unwrap_or(SETTINGS_SHOWN), SETTINGS_MOST)?;
    room.at_least(most * ROW).await?;
    let is_meant = |stored: &str| is_matched(only.as_ref(), stored);
    let (all, has_more) = state.query(async |mut store| store.some_settings(most, is_meant).await).await?;
    let values: Vec<SetValue> = all.iter().flat_map(rows).map(SetValue::from).collect();
    let mut answer = Json(values).into_response();
    if has_more {
        answer.headers_mut().insert(MORE, HeaderValue::from_static("true"));
    }
    Ok(answer)
}

/// What a change or a push would do.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhatIf)]
pub(super) struct WhatIfBody {
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
    Context { state, caller }: Context,
    _: NoQuery,
    body: Unread,
) -> Result<Json<WhatIfSaid>, Problem> {
    caller.may_read_some()?;
    let WhatIfBody { bucket, set, push } = read_members(body).await?;
    let bucket = name(&bucket)?;
    caller.may_read(Some(bucket.as_str()))?;
    if push > PUSH_MOST {
        return Err(Problem::bad_request(format!("push: at most {PUSH_MOST} jobs")));
    }
    let subject = Subject { is_budget: false, pattern: bucket.as_str() };
    let values = values_of_json(&set, &subject).map_err(Problem::bad_request)?;
    // The forecast tells how much the budget and the workers that it names have to do.
    reach::names_nothing_of_others(&caller, &state, &bucket, &values)?;
    let request = WhatIfRequest { bucket, values, push };
    Ok(Json(state.query(async |store| request.run(&store).await).await?))
}

/// A question to a limiter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Limit)]
pub(super) struct LimitBody {
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
    Context { state, caller }: Context,
    uri: Uri,
    _: NoQuery,
    body: Unread,
) -> Result<Response, Problem> {
    caller.may_operate(None)?;
    let mut parts = uri.path().split('/').skip(3);
    let (kind, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kind: Kind = kind
        .parse()
        .map_err(|why: <Kind as std::str::FromStr>::Err| Problem::new(StatusCode::NOT_FOUND, "not-found", why))?;
    let key: Vec<u8> = percent_decode_str(key).collect();
    let LimitBody { rate, quantity, capacity, burst, aligned } = read_members(body).await?;
    let quantity = quantity.unwrap_or(1);
    let wrong = || Problem::bad_request("rate: write limit/period, as in 5/60s, 100/h or 1/500ms");
    let rate = count_per_period(&rate).ok_or_else(wrong)?;
    let request = LimitRequest { kind, rate, quantity, capacity, burst, aligned };
    let limiter = request.limiter().map_err(Problem::bad_request)?;
    let verdict = state.call(async |whole| whole.of_key(&key).limit(&limiter, &key, quantity).await).await?;
    let answer = LimiterVerdict::of(&verdict, quantity);
    if !verdict.limited {
        return Ok(Json(answer).into_response());
    }
    let Some(retry_after) = verdict.retry_after else {
        return Err(Problem::bad_request(never_passes(&verdict, quantity)));
    };
    let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "limited", "");
    for (name, value) in json!(answer).as_object().into_iter().flatten() {
        problem = problem.with(name, value.clone());
    }
    Ok(problem.retry_after_ms(u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX)).into_response())
}
