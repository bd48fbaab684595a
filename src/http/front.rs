//! What the pages of the dashboard show besides: the jobs that leave a bucket next, its last dispatches, and the budgets as they stand now.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::Door;
use super::at::At;
use super::buckets::{named, query};
use super::problem::Problem;
use super::who::Caller;
use crate::operate::moment::rfc3339;
use crate::store::front::{BYTES_MOST, JOBS_MOST, WaitingJob};
use crate::store::rows::{BudgetNow, MOST, Now, Why};
use crate::store::top::By;
use crate::store::{Store, StoreError};
use crate::words::shown::shown;

/// How many jobs are shown unless `limit` says otherwise, and how many bytes of each.
const JOBS: usize = 20;
const BYTES: usize = 256;

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
        Why::Due => ("due", ""),
        Why::Empty => ("empty", ""),
        Why::Other(word) => (word.as_str(), ""),
    };
    json!({ "word": word, "about": about })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HowMany {
    /// How many jobs at most, 1 to 100; 20 if nothing is said
    limit: Option<usize>,
    /// How many bytes of each at most, 1 to 4,096; 256 if nothing is said
    bytes: Option<usize>,
}

/// `GET /v1/buckets/<b>/jobs`.
pub(super) async fn jobs(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    at: At,
    how_many: Result<Query<HowMany>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let bucket = named(at)?;
    caller.may_see_jobs(Some(bucket.as_str()))?;
    let HowMany { limit, bytes } = query(how_many)?;
    let (limit, bytes) = (limit.unwrap_or(JOBS), bytes.unwrap_or(BYTES));
    if !(1..=JOBS_MOST).contains(&limit) || !(1..=BYTES_MOST).contains(&bytes) {
        return Err(Problem::bad_request(format!("write a limit of 1 to {JOBS_MOST}, and bytes of 1 to {BYTES_MOST}")));
    }
    let front = door.call(async |mut store| store.front(&bucket, limit, bytes).await).await?;
    let jobs: Vec<Value> = front.jobs.iter().map(job_as_json).collect();
    Ok(Json(json!({ "bucket": bucket.as_str(), "depth": front.depth, "jobs": jobs })))
}

/// The first bytes as they may be shown anywhere, and as they are.
fn job_as_json(job: &WaitingJob) -> Value {
    let is_cut = job.bytes > job.first.len() as u64;
    // Not with half a character at the end.
    let whole = match std::str::from_utf8(&job.first) {
        Err(why) if is_cut && why.error_len().is_none() => why.valid_up_to(),
        _ => job.first.len(),
    };
    json!({
        "bytes": job.bytes, "cut": is_cut, "first": shown(&job.first[..whole]),
        "first_base64": BASE64_STANDARD.encode(&job.first),
    })
}

/// `GET /v1/buckets/<b>/drips`.
pub(super) async fn drips(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    at: At,
) -> Result<Json<Value>, Problem> {
    let bucket = named(at)?;
    caller.may_read(Some(bucket.as_str()))?;
    let said = door.call(async |mut store| store.drips(&bucket).await).await?;
    let drips: Vec<[u64; 2]> = said.drips.iter().map(|drip| [drip.due_us, drip.left_us]).collect();
    Ok(Json(json!({ "bucket": bucket.as_str(), "at_us": said.at_us, "left": said.left, "drips": drips })))
}

/// How much has passed through budgets at some moments, so that it can be told how much passes in a second.
#[derive(Default)]
pub(super) struct Passed(Mutex<VecDeque<(u64, BTreeMap<String, u64>)>>);

/// A look at budgets counts if the last one was at least so long ago, and as long as it is no older than that.
const LOOK_EVERY_US: u64 = 900_000;
const LOOK_BACK_US: u64 = 10_000_000;

impl Passed {
    /// Note how much has passed by now. Replies how much passed in a second, as far as that is known.
    fn note(&self, now: &Now<BudgetNow>) -> BTreeMap<String, f64> {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|(at, _)| *at <= now.at_us && now.at_us - at <= LOOK_BACK_US);
        let mut per_s = BTreeMap::new();
        for row in &now.rows {
            let before = looks.iter().find_map(|(at, passed)| Some((*at, *passed.get(&row.budget)?)));
            if let Some((at, before)) = before.filter(|(at, before)| *at < now.at_us && *before <= row.passed) {
                let seconds = (now.at_us - at) as f64 / 1e6;
                per_s.insert(row.budget.clone(), (row.passed - before) as f64 / seconds);
            }
        }
        if looks.back().is_none_or(|(at, _)| now.at_us - at >= LOOK_EVERY_US) {
            looks.push_back((now.at_us, now.rows.iter().map(|row| (row.budget.clone(), row.passed)).collect()));
        }
        per_s
    }
}

fn budget_as_json(row: &BudgetNow, per_s: Option<f64>) -> Value {
    let part = |used: u64, of: u64| used as f64 / of.max(1) as f64;
    let of_rate = row.rate.zip(per_s).map(|((count, period_us), per_s)| {
        per_s * period_us as f64 / 1e6 / f64::from(u32::try_from(count).unwrap_or(u32::MAX))
    });
    let of_slots = row.slots.as_ref().map(|slots| part(slots.taken, slots.of));
    let of_quota = row.quota.map(|(used, of)| part(used, of));
    let highest = [of_rate, of_slots, of_quota].into_iter().flatten().reduce(f64::max);
    let round = |x: f64| (x * 1_000.0).round() / 1_000.0;
    json!({
        "budget": row.budget, "parent": row.parent, "weight": row.weight, "waiting": row.waiting,
        "count": row.rate.map(|(count, _)| count), "period_us": row.rate.map(|(_, period)| period), "due_in_us": row.due_in_us,
        "slots": row.slots.as_ref().map(|slots| json!({ "taken": slots.taken, "of": slots.of })),
        "quota": row.quota.map(|(used, of)| json!({ "used": used, "of": of })),
        "per_s": per_s.map(round), "utilization": highest.map(round), "why": why_as_json(&row.why),
    })
}

/// `GET /v1/budgets`: those for whose shares most wait, those that the configuration names, and those above them, as they stand now.
pub(super) async fn budgets(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, Problem> {
    caller.may_read(None)?;
    let look = async |mut store: Store| {
        let top = store.top(By::Budgets, None, MOST).await?;
        let bare = |name: &str| name.trim_start_matches('{').trim_end_matches('}').to_owned();
        let mut names: Vec<String> = top.iter().flat_map(|top| &top.rows).map(|row| bare(&row.bucket)).collect();
        let mut now = store.budgets_now(&names).await?;
        // A budget with a glob has expansions; one that stands above a ranked one may be none of the ranked.
        let known = |name: &String| now.rows.iter().any(|row| row.budget == *name);
        let mut above: Vec<String> =
            now.rows.iter().filter_map(|row| row.parent.clone()).filter(|name| !known(name)).collect();
        above.sort();
        above.dedup();
        above.truncate(MOST);
        if !above.is_empty() {
            let more = store.budgets_now(&above).await?;
            names = now.rows.iter().map(|row| row.budget.clone()).collect();
            now.rows.extend(more.rows.into_iter().filter(|row| !names.contains(&row.budget)));
        }
        Ok::<_, StoreError>((top.map(|top| (top.as_of_us, top.age_ms)), now))
    };
    let (ranking, now) = door.call(look).await?;
    let per_s = door.passed.note(&now);
    let rows: Vec<Value> = now.rows.iter().map(|row| budget_as_json(row, per_s.get(&row.budget).copied())).collect();
    Ok(Json(json!({
        "as_of": ranking.and_then(|(as_of, _)| rfc3339(as_of / 1_000)), "age_ms": ranking.map(|(_, age)| age), "at_us": now.at_us, "rows": rows,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(passed: u64) -> BudgetNow {
        BudgetNow {
            budget: "twilio".to_owned(),
            waiting: 3,
            rate: Some((10, 1_000_000)),
            due_in_us: 0,
            slots: None,
            quota: Some((5, 10)),
            why: Why::Rate,
            parent: None,
            weight: 1,
            passed,
        }
    }

    #[test]
    fn a_job_is_cut_between_two_characters_and_shown_without_what_hides_itself() {
        let said = |first: &[u8], bytes| job_as_json(&WaitingJob { bytes, first: first.to_vec() });
        assert_eq!(said("aé".as_bytes(), 3)["first"], "aé");
        assert_eq!(said(b"a\xc3", 9)["first"], "a", "the rest of the character is not there");
        assert_eq!(said(b"a\xc3", 2)["first"], r"a\xc3", "there is no rest");
        assert_eq!(said("<b>\u{202e}".as_bytes(), 6)["first"], r"<b>\u{202e}");
    }

    #[test]
    fn what_passes_in_a_second_is_known_from_the_second_look_on() {
        let passed = Passed::default();
        let look = |at_us, n| passed.note(&Now { at_us, rows: vec![row(n)] }).get("twilio").copied();
        assert_eq!(look(1_000_000, 0), None);
        assert_eq!(look(3_000_000, 16), Some(8.0));
        assert_eq!(look(3_100_000, 17), Some(17.0 / 2.1), "since the look that is old enough");
        assert_eq!(look(60_000_000, 500), None, "those before are too old");
        assert_eq!(look(62_000_000, 10), None, "counted anew");
    }

    #[test]
    fn the_utilization_of_a_budget_is_the_highest_of_what_it_bounds() {
        let said = budget_as_json(&row(0), Some(8.0));
        assert_eq!((&said["utilization"], &said["per_s"]), (&json!(0.8), &json!(8.0)));
        assert_eq!(budget_as_json(&row(0), None)["utilization"], json!(0.5), "its quota");
    }
}
