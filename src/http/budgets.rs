//! Budgets: as they stand now, and one with its explanation.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Door;
use super::at::At;
use super::buckets::{WhyItWaits, named, why_said};
use super::problem::Problem;
use super::who::Caller;
use crate::explain::{BudgetSaid, Wall};
use crate::operate::moment::rfc3339;
use crate::operate::pace::{A_SECOND, Paces};
use crate::store::explain::Slots;
use crate::store::rows::{BudgetNow, MOST, Now};
use crate::store::top::{By, Top};
use crate::store::{StoreError, Whole};
use crate::words::subject::Subject;

/// How fast jobs pass through budgets: from the looks of all who ask, at whatever they ask for.
#[derive(Default)]
pub(super) struct Passing(Mutex<Paces>);

impl Passing {
    /// How many jobs pass through each of these in a second, as far as that is known by now.
    pub(super) fn per_second(&self, now: &Now<BudgetNow>) -> Vec<Option<f64>> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        paces.forget(now.at_us);
        let pace = |row: &BudgetNow| {
            let rate = row.rate.unwrap_or(A_SECOND);
            paces.note(&row.budget, now.at_us, row.passed, rate);
            paces.per_second(&row.budget, rate)
        };
        now.rows.iter().map(pace).collect()
    }
}

/// The budgets for whose shares most wait, as the last walk found them, by their names.
pub(super) async fn ranked(store: &mut Whole) -> Result<(Option<Top>, Vec<String>), StoreError> {
    let top = store.top(By::Budgets, None, MOST).await?;
    let name = |stored: &str| Subject::of_stored(stored).pattern.to_owned();
    let names = top.iter().flat_map(|top| &top.rows).map(|row| name(&row.bucket)).collect();
    Ok((top, names))
}

/// The budgets as they stand now.
#[derive(Serialize, ToSchema)]
pub(super) struct Budgets {
    /// When the last walk began, which says which budgets come first, RFC 3339; null: no walk is over yet.
    as_of: Option<String>,
    /// How long ago that was.
    age_ms: Option<u64>,
    /// The time at Redis, in microseconds since the epoch.
    at_us: u64,
    /// The budgets, and those above them.
    rows: Vec<BudgetRow>,
}

/// A budget as it stands now.
#[derive(Serialize, ToSchema)]
struct BudgetRow {
    /// Its name.
    budget: String,
    /// The budget above it.
    parent: Option<String>,
    /// Its weight there.
    weight: u64,
    /// How many buckets and budgets wait for a share of it.
    waiting: u64,
    /// Its rate: jobs in a period.
    count: Option<u64>,
    /// The length of a period.
    period_us: Option<u64>,
    /// Until its next job may leave; 0: now.
    due_in_us: u64,
    /// Its jobs in flight, where they are limited.
    slots: Option<Slots>,
    /// The quota of which most is used.
    quota: Option<QuotaNow>,
    /// How many jobs pass through it in a second; null: nobody knows yet.
    per_s: Option<f64>,
    /// How much of its rate, its slots or its quota is used, whichever is used most; 1 is all.
    utilization: Option<f64>,
    /// Why it waits.
    why: WhyItWaits,
}

/// How much of a quota is used.
#[derive(Serialize, ToSchema)]
struct QuotaNow {
    /// So many have left in the window.
    used: u64,
    /// How many may.
    of: u64,
}

impl BudgetRow {
    fn of(row: &BudgetNow, per_s: Option<f64>) -> Self {
        let round = |x: f64| (x * 1_000.0).round() / 1_000.0;
        Self {
            budget: row.budget.clone(),
            parent: row.parent.clone(),
            weight: row.weight,
            waiting: row.waiting,
            count: row.rate.map(|(count, _)| count),
            period_us: row.rate.map(|(_, period)| period),
            due_in_us: row.due_in_us,
            slots: row.slots,
            quota: row.quota.map(|(used, of)| QuotaNow { used, of }),
            per_s: per_s.map(round),
            utilization: row.used(per_s).map(round),
            why: why_said(&row.why),
        }
    }
}

/// `GET /v1/budgets`: those for whose shares most wait, those that the configuration names, and those above them, as they stand now.
pub(super) async fn all(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Budgets>, Problem> {
    caller.may_read(None)?;
    let look = async |mut store: Whole| {
        let (top, mut names) = ranked(&mut store).await?;
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
    let (ranking, now) = door.ask(look).await?;
    let per_s = door.passing.per_second(&now);
    let rows = now.rows.iter().zip(per_s).map(|(row, per_s)| BudgetRow::of(row, per_s)).collect();
    let as_of = ranking.and_then(|(as_of, _)| rfc3339(as_of / 1_000));
    Ok(Json(Budgets { as_of, age_ms: ranking.map(|(_, age)| age), at_us: now.at_us, rows }))
}

/// A budget: what it allows, what waits for it, and what of it is used.
pub(super) async fn one(
    State(door): State<Arc<Door>>,
    Extension(caller): Extension<Caller>,
    at: At,
) -> Result<Json<BudgetSaid>, Problem> {
    let budget = named(at)?;
    caller.may_read(None)?;
    let facts = match door.call(async |whole| whole.of(&budget).explain_budget(&budget).await).await {
        // The name is a good one, so that no other argument can be wrong.
        Err(StoreError::Refused { code, message, .. }) if code == "BADARG" => {
            return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", message));
        }
        answer => answer.map_err(Problem::of_question)?,
    };
    Ok(Json(BudgetSaid::of(&facts, &Wall::here(facts.now_us))))
}
