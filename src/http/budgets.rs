//! Budgets: their current states, and one with its explanation.

use axum::Json;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::context::Context;
use super::problem::Problem;
use super::resource_path::ResourcePath;
use crate::explain::BudgetSaid;
use crate::model::subject::Subject;
use crate::operate::explain::explain_budget;
use crate::operate::moment::rfc3339;
use crate::store::explain::Slots;
use crate::store::snapshots::{BudgetSnapshot, MAX_SNAPSHOTS, Why};
use crate::store::top::{By, Top};
use crate::store::{Partitions, StoreError};

/// The budgets for whose shares most wait, as the last walk found them: the walk, and their names.
pub(super) async fn ranked(store: &mut Partitions) -> Result<(Option<Top>, Vec<String>), StoreError> {
    let top = store.top(By::Budgets, None, MAX_SNAPSHOTS).await?;
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
    /// Its credit of corrected costs, as a time at its rate in microseconds; negative: debt.
    credit_us: i64,
    /// Why it waits.
    why: Why,
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
    fn of(row: &BudgetSnapshot, per_s: Option<f64>) -> Self {
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
            credit_us: row.credit_us,
            why: row.why.clone(),
        }
    }
}

/// `GET /v1/budgets`: the current states of the budgets for whose shares most wait, of those that the configuration
/// names, and of the budgets above them.
pub(super) async fn all(Context { state, caller }: Context) -> Result<Json<Budgets>, Problem> {
    caller.may_read(None)?;
    let look = async |mut store: Partitions| {
        let (top, mut names) = ranked(&mut store).await?;
        let mut now = store.budget_snapshots(&names).await?;
        // A `[[budget]]` entry with a glob stands for several budgets, and a budget above a ranked one need not be
        // ranked itself.
        let known = |name: &String| now.rows.iter().any(|row| row.budget == *name);
        let mut above: Vec<String> =
            now.rows.iter().filter_map(|row| row.parent.clone()).filter(|name| !known(name)).collect();
        above.sort();
        above.dedup();
        above.truncate(MAX_SNAPSHOTS);
        if !above.is_empty() {
            let more = store.budget_snapshots(&above).await?;
            names = now.rows.iter().map(|row| row.budget.clone()).collect();
            now.rows.extend(more.rows.into_iter().filter(|row| !names.contains(&row.budget)));
        }
        Ok::<_, StoreError>((top.map(|top| (top.as_of_us, top.age_ms)), now))
    };
    let (ranking, now) = state.query(look).await?;
    let per_s = state.throughput.per_second(&now);
    let rows = now.rows.iter().zip(per_s).map(|(row, per_s)| BudgetRow::of(row, per_s)).collect();
    let as_of = ranking.and_then(|(as_of, _)| rfc3339(as_of / 1_000));
    Ok(Json(Budgets { as_of, age_ms: ranking.map(|(_, age)| age), at_us: now.at_us, rows }))
}

/// `GET /v1/budgets/<budget>`: the settings of a budget, what waits for it, and what of it is used.
pub(super) async fn one(Context { state, caller }: Context, path: ResourcePath) -> Result<Json<BudgetSaid>, Problem> {
    let budget = path.into_name()?;
    caller.may_read(None)?;
    match state.call(async |store| explain_budget(&store, &budget).await).await {
        // The name is valid, so the only wrong argument is a budget that does not exist.
        Err(StoreError::Refused { code, message, .. }) if code == "BADARG" => {
            Err(Problem::new(StatusCode::NOT_FOUND, "not-found", message))
        }
        answer => answer.map(Json).map_err(Problem::of_question),
    }
}
