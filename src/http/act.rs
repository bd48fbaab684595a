//! What changes something of buckets and budgets: `set`, `unset`, `pause`, `resume`, `close`, `open`, `slow` and `purge`, of one name or, where
//! the path names none, of a glob.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

use super::Door;
use super::at::At;
use super::body::{NoQuery, read_json, read_words};
use super::buckets::{name, query};
use super::changed::{Changed, JobsOut, Purged, Slowed};
use super::document::shapes;
use super::problem::Problem;
use super::who::Caller;
use crate::config::settings;
use crate::operate::change::{ChangeError, make};
use crate::operate::dead::short_glob;
use crate::store::change::{Change, SetTo, SlowDown};
use crate::store::purge::What;
use crate::words::bucket::BucketName;
use crate::words::duration;
use crate::words::glob::is_glob;
use crate::words::subject::Subject;

/// The longest time that something may be set for.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// The longest reason, in bytes.
pub(super) const REASON_MOST: usize = 1_000;

/// What a request for a glob says in its query.
#[derive(Deserialize, IntoParams, Default)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Words {
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

/// The same in a body, for requests that have nothing else to say.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Stop {
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
pub(super) struct Slow {
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

/// What is purged.
#[derive(Deserialize, ToSchema, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Purge {
    /// Jobs that failed and wait for another try, too
    #[serde(default)]
    retries: bool,
    /// Jobs that wait for their time, too
    #[serde(default)]
    delayed: bool,
}

/// What a request acts on.
struct Target {
    is_budget: bool,
    pattern: String,
    is_glob: bool,
}

impl Target {
    fn one(is_budget: bool, text: &str) -> Result<Self, Problem> {
        Ok(Self { is_budget, pattern: name(text)?.as_str().to_owned(), is_glob: false })
    }

    fn all(is_budget: bool, words: &Words) -> Result<Self, Problem> {
        let Some(pattern) = words.pattern.clone().filter(|pattern| !pattern.is_empty()) else {
            return Err(Problem::bad_request("write ?match= and a glob, as in match=sms:*; or name one in the path"));
        };
        let pattern = short_glob(&pattern).map_err(|why| Problem::bad_request(format!("match: {why}")))?;
        if is_glob(&pattern) {
            return Ok(Self { is_budget, pattern, is_glob: true });
        }
        Self::one(is_budget, &pattern)
    }

    fn of(is_budget: bool, named: Option<BucketName>, words: &Words) -> Result<Self, Problem> {
        match named {
            Some(_) if words.pattern.is_some() => {
                Err(Problem::bad_request("the path names one: match= has no place here"))
            }
            Some(named) => Ok(Self { is_budget, pattern: named.as_str().to_owned(), is_glob: false }),
            None => Self::all(is_budget, words),
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.is_budget, pattern: &self.pattern }
    }

    /// Whether the caller may change something of it.
    fn allowed(&self, caller: &Caller) -> Result<(), Problem> {
        caller.may_operate((!self.is_glob && !self.is_budget).then_some(self.pattern.as_str()))
    }

    fn change(&self, what: &'static str, lasts: Option<&str>, reason: Option<&str>) -> Result<Change, Problem> {
        is_short(reason)?;
        Ok(Change {
            what,
            pattern: self.subject().stored(),
            is_glob: self.is_glob,
            for_us: lasts.map(time).transpose()?.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            reason: reason.map(str::to_owned),
            ..Change::default()
        })
    }
}

fn is_short(reason: Option<&str>) -> Result<(), Problem> {
    match reason.filter(|reason| reason.len() > REASON_MOST) {
        Some(_) => Err(Problem::bad_request(format!("a reason has at most {REASON_MOST} bytes"))),
        None => Ok(()),
    }
}

fn time(text: &str) -> Result<Duration, Problem> {
    let fits = |time: &Duration| (Duration::from_millis(1)..=LONGEST).contains(time);
    let wrong = || {
        Problem::bad_request(format!(
            "{text:?} is not a time; write a whole number and a unit (ms s m h d), as in 10m: 1ms to 366d"
        ))
    };
    duration::parse(text).filter(fits).ok_or_else(wrong)
}

/// Make a change and say what became of it.
async fn done(door: &Door, caller: &Caller, mut change: Change) -> Result<Changed, Problem> {
    let told = async |mut store: crate::store::Whole| {
        let author = door.author(&mut store, caller).await;
        (change.by, change.user) = (author.by, author.user);
        Ok::<_, ChangeError>((make(&mut store, &change).await?, change))
    };
    let (told, change) = door.call(told).await?;
    Changed::of(&change, told)
}

/// Set keys of a policy.
async fn set(acting: Acting, given: Map<String, Value>) -> Result<Json<Changed>, Problem> {
    let Acting { door, caller, target, words, .. } = acting;
    if given.is_empty() {
        return Err(Problem::bad_request("write the keys and their values, as in {\"rate\": \"5/s\"}"));
    }
    let given =
        settings::parse(&words_of(&given)?, &target.subject()).map_err(|why| Problem::bad_request(why.to_string()))?;
    let mut change = target.change("set", words.lasts.as_deref(), words.reason.as_deref())?;
    change.set = given.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
    change.asks = Some("others");
    done(&door, &caller, change).await.map(Json)
}

/// Keys and values as words, as the command takes them.
pub(super) fn words_of(given: &Map<String, Value>) -> Result<Vec<String>, Problem> {
    let is_key = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let word = |(key, value): (&String, &Value)| match as_toml(value) {
        _ if !is_key(key) => Err(Problem::bad_request(format!("{key:?} is not a key of a policy"))),
        Some(text) => Ok(format!("{key}={text}")),
        None => Err(Problem::bad_request(format!(
            "{key}: null sets nothing; DELETE …/settings/{key} takes it back to the file"
        ))),
    };
    given.iter().map(word).collect()
}

/// A value of JSON as TOML has it, on one line; nothing for null.
fn as_toml(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::Array(all) => format!("[{}]", all.iter().map(as_toml).collect::<Option<Vec<_>>>()?.join(", ")),
        Value::Object(all) => {
            let one = |(key, value): (&String, &Value)| {
                Some(format!("{} = {}", toml::Value::String(key.clone()), as_toml(value)?))
            };
            format!("{{ {} }}", all.iter().map(one).collect::<Option<Vec<_>>>()?.join(", "))
        }
        Value::String(text) => toml::Value::String(text.clone()).to_string(),
        other => other.to_string(),
    })
}

/// Take keys back to the file.
async fn unset(acting: Acting) -> Result<Json<Changed>, Problem> {
    let Acting { door, caller, target, words, key, .. } = acting;
    let keys: Vec<String> = key.into_iter().collect();
    let keys = settings::parse_keys(&keys, target.is_budget).map_err(|why| Problem::bad_request(why.to_string()))?;
    let mut change = target.change("unset", None, words.reason.as_deref())?;
    (change.unset_all, change.unset) = (keys.is_empty(), keys);
    change.asks = Some("others");
    done(&door, &caller, change).await.map(Json)
}

/// The verbs that stop something or let it go on: the key that each is about, and whether it stops.
fn stop_of(verb: &str) -> Option<(&'static str, &'static str, bool)> {
    match verb {
        "pause" => Some(("pause", "pause", true)),
        "close" => Some(("close", "close", true)),
        "resume" => Some(("resume", "pause", false)),
        "open" => Some(("open", "close", false)),
        _ => None,
    }
}

fn no_such(verb: &str, kind: &str) -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "not-found",
        format!("a {kind} has no {verb:?}; /openapi.json lists what there is"),
    )
}

async fn stop(acting: Acting, body: Body) -> Result<Json<Changed>, Problem> {
    let Acting { door, caller, target, words, verb, .. } = acting;
    let is_known = stop_of(verb).filter(|(_, key, _)| !target.is_budget || *key == "pause");
    let (what, key, stops) = is_known.ok_or_else(|| no_such(verb, target.subject().kind()))?;
    let more: Stop = read_words(body).await?;
    // What the body says holds; what it overrules must make sense all the same.
    words.lasts.as_deref().map(time).transpose()?;
    is_short(words.reason.as_deref())?;
    let (lasts, reason) = (more.lasts.or(words.lasts), more.reason.or(words.reason));
    if lasts.is_some() && !stops {
        return Err(Problem::bad_request(format!("{verb} holds from now on: `for` has no place here")));
    }
    let mut change = target.change(what, lasts.as_deref(), reason.as_deref())?;
    if stops {
        change.set.insert(key.to_owned(), SetTo { text: "yes".to_owned(), policy: json!({}) });
    } else {
        change.unset = vec![key.to_owned()];
        change.asks = Some(if key == "pause" { "paused" } else { "closed" });
    }
    let mut said = done(&door, &caller, change).await?;
    if what == "pause" && !target.is_budget {
        let out = door.call(async |mut store| store.jobs_out(&target.pattern, target.is_glob).await).await?;
        said.jobs_out = Some(JobsOut { ready: out.ready, with_workers: out.with_workers });
    }
    Ok(Json(said))
}

async fn slow(acting: Acting, body: Body) -> Result<Json<Slowed>, Problem> {
    let Acting { door, caller, target, .. } = acting;
    let asked: Slow = read_words(body).await?;
    let lasts = match (asked.lasts.as_deref(), asked.clear) {
        (Some(text), false) => Some(time(text)?),
        (None, true) => None,
        _ => return Err(Problem::bad_request("write {\"for\": \"30s\"}, or {\"clear\": true}")),
    };
    is_short(asked.reason.as_deref())?;
    if let Some(within) = &asked.within {
        name(within)?;
        caller.may_operate(None)?;
        if target.is_budget {
            return Err(Problem::bad_request("`in` names a budget above a bucket: it has no place here"));
        }
    }
    let call = async |mut store: crate::store::Whole| {
        let author = door.author(&mut store, &caller).await;
        let slow_down = SlowDown {
            node: target.subject().stored(),
            within: asked.within.clone(),
            ms: lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX)),
            by: author.by,
            user: author.user,
            reason: asked.reason.clone(),
        };
        store.slow(&slow_down).await
    };
    let goes_on = door.call(call).await?;
    let goes_on_in_ms = u64::try_from(goes_on.as_millis()).unwrap_or(u64::MAX);
    // A policy says how long a slow-down may be.
    let is_capped = lasts.is_some_and(|lasts| goes_on < lasts);
    Ok(Json(Slowed { pattern: target.pattern, budget: target.is_budget, goes_on_in_ms, capped: is_capped }))
}

async fn purge(acting: Acting, body: Body) -> Result<Json<Purged>, Problem> {
    let Acting { door, caller, target, .. } = acting;
    let asked: Purge = read_words(body).await?;
    let bucket = name(&target.pattern)?;
    let call = async |mut store: crate::store::Whole| {
        let author = door.author(&mut store, &caller).await;
        store.of(&bucket).purge(&bucket, What::Queue { retries: asked.retries, delayed: asked.delayed }, &author).await
    };
    let gone = door.call(call).await?;
    let crate::store::purge::Purged { jobs, retries, retries_left, cut, delayed, delayed_left } = gone;
    Ok(Json(Purged { bucket: bucket.to_string(), jobs, retries, retries_left, cut, delayed, delayed_left }))
}

/// A request that changes something, as far as its head says it: by whom, of what, and what is in the query. Whoever may not is
/// refused here, before the body is read.
pub(super) struct Acting {
    door: Arc<Door>,
    caller: Caller,
    target: Target,
    words: Words,
    verb: &'static str,
    key: Option<String>,
}

impl FromRequestParts<Arc<Door>> for Acting {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<Door>) -> Result<Self, Problem> {
        let At { is_budget, named, verb, key } = At::from_request_parts(parts, door).await?;
        let words: Words = query(Query::try_from_uri(&parts.uri))?;
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::internal("nobody has said who asks"))?;
        let target = Target::of(is_budget, named, &words)?;
        target.allowed(&caller)?;
        Ok(Self { door: Arc::clone(door), caller, target, words, verb, key })
    }
}

/// `PATCH …/settings`, and with a key behind it.
pub(super) async fn set_route(acting: Acting, body: Body) -> Result<Json<Changed>, Problem> {
    let given = match &acting.key {
        None => read_json(body).await?,
        Some(key) => Map::from_iter([(key.clone(), read_json(body).await?)]),
    };
    set(acting, given).await
}

/// `DELETE …/settings`, and with a key behind it.
pub(super) async fn unset_route(acting: Acting) -> Result<Json<Changed>, Problem> {
    unset(acting).await
}

/// `POST …/pause`, `resume`, `close`, `open`.
pub(super) async fn stop_route(acting: Acting, body: Body) -> Result<Json<Changed>, Problem> {
    stop(acting, body).await
}

/// `POST …/slow`.
pub(super) async fn slow_route(_: NoQuery, acting: Acting, body: Body) -> Result<Json<Slowed>, Problem> {
    slow(acting, body).await
}

/// `POST …/purge`.
pub(super) async fn purge_route(_: NoQuery, acting: Acting, body: Body) -> Result<Json<Purged>, Problem> {
    purge(acting, body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_json_is_one_of_the_file() {
        for (json, toml) in [
            (json!("5/s"), "\"5/s\""),
            (json!(100), "100"),
            (json!(true), "true"),
            (json!({ "initial": "1s", "max": "10m" }), "{ \"initial\" = \"1s\", \"max\" = \"10m\" }"),
            (json!([{ "limit": 5 }]), "[{ \"limit\" = 5 }]"),
            (json!("a \"b\"\n"), "\"a \\\"b\\\"\\n\""),
        ] {
            let text = as_toml(&json).expect("a value");
            assert_eq!(
                format!("x = {text}").parse::<toml::Table>().expect(&text)["x"],
                format!("x = {toml}").parse::<toml::Table>().expect(toml)["x"]
            );
        }
        assert_eq!(as_toml(&json!([1, null])), None);
    }
}
