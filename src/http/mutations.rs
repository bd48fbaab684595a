//! Requests that change buckets and budgets: `set`, `unset`, `pause`, `resume`, `close`, `open`, `slow` and `purge`, of
//! one name or, where the path names none, of a glob.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::body::{NoQuery, Unread, query, read_json, read_members};
use super::context::Context;
use super::document::shapes;
use super::problem::Problem;
use super::reach;
use super::resource_path::{ResourcePath, bad_name, name};
use super::state::AppState;
use crate::config::settings;
use crate::model::bucket::BucketName;
use crate::model::duration;
use crate::model::node::Units;
use crate::operate::bounds::{self, REASON_MOST};
use crate::operate::changed::Changed;
use crate::operate::dead_filter::short_glob;
use crate::operate::node_request::NodeRequest;
use crate::operate::pause::{Direction, PauseRequest, ResumeRequest};
use crate::operate::purge::{PurgeOptions, PurgeRequest};
use crate::operate::set::{SetRequest, UnsetRequest, values_of_json};
use crate::operate::slow::Slowed;
use crate::operate::target::Target;
use crate::operate::told::TakenReport;
use crate::store::Partitions;
use crate::store::jobs::work::{LIMIT_MOST, LimitReport};
use crate::store::purge::Purged;

/// The query of a request that changes something.
#[derive(Deserialize, IntoParams, Default)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MutationQuery {
    /// The glob, where the path names nothing
    #[serde(rename = "match")]
    #[param(value_type = Option<shapes::NameOrGlob>)]
    pattern: Option<String>,
    /// It ends by itself after so long: `10m`
    #[serde(rename = "for")]
    #[param(value_type = Option<shapes::Time>)]
    lasts: Option<String>,
    /// Why, for whoever reads the settings later
    #[param(value_type = Option<shapes::Reason>)]
    reason: Option<String>,
}

/// A pause or a closure: for how long, and why.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
#[schema(as = Stop)]
pub(super) struct PauseBody {
    /// It ends by itself after so long: `"10m"`
    #[serde(rename = "for")]
    #[schema(value_type = Option<shapes::Time>)]
    lasts: Option<String>,
    /// Why, for whoever reads the settings later
    #[schema(value_type = Option<shapes::Reason>)]
    reason: Option<String>,
}

/// A slow-down.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Slow)]
pub(super) struct SlowBody {
    /// For how long: `"30s"`
    #[serde(rename = "for")]
    #[schema(value_type = Option<shapes::Time>)]
    lasts: Option<String>,
    /// It goes on now
    #[serde(default)]
    clear: bool,
    /// A budget above the bucket that is slowed down in its place
    #[serde(rename = "in")]
    #[schema(value_type = Option<shapes::Name>)]
    within: Option<String>,
    /// Why
    #[schema(value_type = Option<shapes::Reason>)]
    reason: Option<String>,
}

/// A report of a limit, or that it is forgotten.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Told)]
pub(super) struct ToldBody {
    /// So much more is let through until the reset
    #[schema(maximum = 1_000_000_000)]
    remaining: Option<u64>,
    /// Until the limit resets, in milliseconds
    #[schema(maximum = 31_622_400_000_u64)]
    reset_ms: Option<u64>,
    /// How much is let through after a reset
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    limit: Option<u64>,
    /// What is counted: jobs, or what they cost [default: job]
    units: Option<Units>,
    /// What was told is forgotten
    #[serde(default)]
    clear: bool,
    /// A budget above the bucket that it is about in its place
    #[serde(rename = "in")]
    #[schema(value_type = Option<shapes::Name>)]
    within: Option<String>,
    /// Why
    #[schema(value_type = Option<shapes::Reason>)]
    reason: Option<String>,
}

impl ToldBody {
    /// The report; `None`: what was told is forgotten.
    fn report(&self) -> Result<Option<LimitReport>, Problem> {
        let example = "write {\"remaining\": 12, \"reset_ms\": 30000}, or {\"clear\": true}";
        let Self { limit, units, .. } = *self;
        match (self.remaining, self.reset_ms, self.clear) {
            (None, None, true) if limit.is_none() && units.is_none() => Ok(None),
            (Some(remaining), Some(reset_ms), false) => {
                if remaining > LIMIT_MOST || limit.is_some_and(|limit| !(1..=LIMIT_MOST).contains(&limit)) {
                    let why = format!("remaining is 0 to {LIMIT_MOST}, and limit 1 to {LIMIT_MOST}");
                    return Err(Problem::bad_request(why));
                }
                if u128::from(reset_ms) > duration::LONGEST.as_millis() {
                    return Err(Problem::bad_request("reset_ms is 0 to that of 366 days"));
                }
                Ok(Some(LimitReport {
                    remaining,
                    reset_ms,
                    resets_at_ms: None,
                    limit,
                    units: units.unwrap_or(Units::Job),
                }))
            }
            _ => Err(Problem::bad_request(example)),
        }
    }
}

/// The buckets or budgets that a path and a query name.
fn target(is_budget: bool, named: Option<BucketName>, query: &MutationQuery) -> Result<Target, Problem> {
    let pattern = query.pattern.as_deref();
    match (named, pattern.filter(|pattern| !pattern.is_empty())) {
        (Some(_), _) if pattern.is_some() => Err(Problem::bad_request("the path names one: match= has no place here")),
        (Some(named), _) => Ok(Target::named(is_budget, &named)),
        (None, None) => {
            Err(Problem::bad_request("write ?match= and a glob, as in match=sms:*; or name one in the path"))
        }
        (None, Some(pattern)) => {
            let pattern = short_glob(pattern).map_err(|why| Problem::bad_request(format!("match: {why}")))?;
            Target::parse(is_budget, &pattern).map_err(|why| bad_name(&why))
        }
    }
}

fn reason(text: Option<&str>) -> Result<Option<String>, Problem> {
    let wrong = |_| Problem::bad_request(format!("a reason has at most {REASON_MOST} bytes"));
    text.map(|text| bounds::reason(text).map_err(wrong)).transpose()
}

fn time(text: Option<&str>) -> Result<Option<Duration>, Problem> {
    let wrong = |text, hint| Problem::bad_request(format!("{text:?} is not a time; {hint}"));
    text.map(|text| bounds::time(text).map_err(|hint| wrong(text, hint))).transpose()
}

/// The head of a request that changes something: its caller, its target and its query. A caller without the permission
/// is refused here, before the body is read.
pub(super) struct MutationRequest {
    context: Context,
    target: Target,
    query: MutationQuery,
    verb: &'static str,
    key: Option<String>,
}

impl FromRequestParts<Arc<AppState>> for MutationRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<AppState>) -> Result<Self, Problem> {
        let ResourcePath { is_budget, named, verb, key } = ResourcePath::from_request_parts(parts, state).await?;
        let query: MutationQuery = query(Query::try_from_uri(&parts.uri))?;
        let context = Context::from_request_parts(parts, state).await?;
        let target = target(is_budget, named, &query)?;
        context.caller.may_operate((!target.is_glob() && !is_budget).then_some(target.subject().pattern))?;
        Ok(Self { context, target, query, verb, key })
    }
}

impl MutationRequest {
    /// The bucket that the request is about; `None`: a budget, or all that a glob matches, which only a token for all
    /// buckets may change.
    fn one_bucket(&self) -> Result<Option<BucketName>, Problem> {
        let subject = self.target.subject();
        (!self.target.is_glob() && !subject.is_budget).then(|| name(subject.pattern)).transpose()
    }
}

/// `PATCH …/settings`, also with a key behind it.
pub(super) async fn set(request: MutationRequest, body: Unread) -> Result<Json<Changed>, Problem> {
    let given: Map<String, Value> = match &request.key {
        None => read_json(body).await?,
        Some(key) => Map::from_iter([(key.clone(), read_json(body).await?)]),
    };
    if given.is_empty() {
        return Err(Problem::bad_request("write the keys and their values, as in {\"rate\": \"5/s\"}"));
    }
    let values = values_of_json(&given, &request.target.subject()).map_err(Problem::bad_request)?;
    if let Some(bucket) = request.one_bucket()? {
        reach::may_set(&request.context.caller, &request.context.state, &bucket, &values).await?;
    }
    let reason = reason(request.query.reason.as_deref())?;
    let lasts = time(request.query.lasts.as_deref())?;
    let by = request.context.by();
    let set = SetRequest { target: request.target, values, lasts, reason };
    Ok(Json(request.context.state.call(async |mut store: Partitions| set.run(&mut store, &by).await).await?))
}

/// `DELETE …/settings`, also with a key behind it.
pub(super) async fn unset(request: MutationRequest) -> Result<Json<Changed>, Problem> {
    let keys: Vec<String> = request.key.iter().cloned().collect();
    let keys = settings::parse_keys(&keys, request.target.subject().is_budget);
    let keys = keys.map_err(|why| Problem::bad_request(why.to_string()))?;
    if let Some(bucket) = request.one_bucket()? {
        reach::may_unset(&request.context.caller, &request.context.state, &bucket, &keys).await?;
    }
    let reason = reason(request.query.reason.as_deref())?;
    let by = request.context.by();
    let unset = UnsetRequest { target: request.target, keys, reason };
    Ok(Json(request.context.state.call(async |mut store: Partitions| unset.run(&mut store, &by).await).await?))
}

/// The direction of a verb, and whether it stops; `None` for a verb that neither stops nor resumes.
fn direction_of(verb: &str) -> Option<(Direction, bool)> {
    match verb {
        "pause" => Some((Direction::Out, true)),
        "close" => Some((Direction::In, true)),
        "resume" => Some((Direction::Out, false)),
        "open" => Some((Direction::In, false)),
        _ => None,
    }
}

/// `POST …/pause`, `resume`, `close`, `open`.
pub(super) async fn pause(request: MutationRequest, body: Unread) -> Result<Json<Changed>, Problem> {
    let (verb, subject) = (request.verb, request.target.subject());
    let known = direction_of(verb).filter(|(direction, _)| !subject.is_budget || *direction == Direction::Out);
    let (direction, stops) = known.ok_or_else(|| {
        let detail = format!("a {} has no {verb:?}; /openapi.json lists what there is", subject.kind());
        Problem::new(StatusCode::NOT_FOUND, "not-found", detail)
    })?;
    let more: PauseBody = read_members(body).await?;
    // The body overrides the query, which must be valid all the same.
    time(request.query.lasts.as_deref())?;
    reason(request.query.reason.as_deref())?;
    let lasts = more.lasts.as_ref().or(request.query.lasts.as_ref());
    if lasts.is_some() && !stops {
        return Err(Problem::bad_request(format!("{verb} holds from now on: `for` has no place here")));
    }
    let reason = reason(more.reason.as_ref().or(request.query.reason.as_ref()).map(String::as_str))?;
    let lasts = time(lasts.map(String::as_str))?;
    let by = request.context.by();
    let MutationRequest { context: Context { state, .. }, target, .. } = request;
    if !stops {
        let resume = ResumeRequest { direction, target, reason };
        return Ok(Json(state.call(async |mut store: Partitions| resume.run(&mut store, &by).await).await?));
    }
    let pause = PauseRequest { direction, target, lasts, reason };
    let mut changed = state.call(async |mut store: Partitions| pause.run(&mut store, &by).await).await?;
    if direction == Direction::Out && !changed.budget {
        changed.jobs_out = Some(state.call(async |mut store: Partitions| pause.jobs_out(&mut store).await).await?);
    }
    Ok(Json(changed))
}

/// A change of what holds the bucket or budget of a request, or the budget that `in` of its body names: for that the
/// caller's token must be for the budget too.
fn node_request<W>(
    request: &MutationRequest,
    what: Option<W>,
    within: Option<&str>,
    why: Option<&str>,
) -> Result<NodeRequest<W>, Problem> {
    let (reason, within) = (reason(why)?, within.map(name).transpose()?);
    if let Some(budget) = &within {
        request.context.caller.may_operate_in(budget.as_str())?;
        if request.target.subject().is_budget {
            return Err(Problem::bad_request("`in` names a budget above a bucket: it has no place here"));
        }
    }
    Ok(NodeRequest { target: request.target.clone(), what, within, reason })
}

/// `POST …/slow`.
pub(super) async fn slow(_: NoQuery, request: MutationRequest, body: Unread) -> Result<Json<Slowed>, Problem> {
    let body: SlowBody = read_members(body).await?;
    let lasts = match (body.lasts.as_deref(), body.clear) {
        (Some(text), false) => time(Some(text))?,
        (None, true) => None,
        _ => return Err(Problem::bad_request("write {\"for\": \"30s\"}, or {\"clear\": true}")),
    };
    let slow = node_request(&request, lasts, body.within.as_deref(), body.reason.as_deref())?;
    let by = request.context.by();
    Ok(Json(request.context.state.call(async |mut store: Partitions| slow.run(&mut store, &by).await).await?))
}

/// `POST …/told`.
pub(super) async fn told(_: NoQuery, request: MutationRequest, body: Unread) -> Result<Json<TakenReport>, Problem> {
    let body: ToldBody = read_members(body).await?;
    let told = node_request(&request, body.report()?, body.within.as_deref(), body.reason.as_deref())?;
    let by = request.context.by();
    Ok(Json(request.context.state.call(async |mut store: Partitions| told.run(&mut store, &by).await).await?))
}

/// `POST …/purge`.
pub(super) async fn purge(_: NoQuery, request: MutationRequest, body: Unread) -> Result<Json<Purged>, Problem> {
    let options: PurgeOptions = read_members(body).await?;
    let bucket = name(request.target.subject().pattern)?;
    let by = request.context.by();
    let purge = PurgeRequest { bucket, what: options.into() };
    Ok(Json(request.context.state.call(async |mut store: Partitions| purge.run(&mut store, &by).await).await?))
}
