//! The state of a budget, in words.

use std::time::Duration;

use serde::Serialize;

use super::ancestors::{called, full, its_time_is_for, latest, no_server, stopped, waiting_for};
use super::binding::Binding;
use super::local_time::LocalTime;
use super::{Link, chain_text, values_text};
use crate::model::counted::counted;
use crate::model::duration::say;
use crate::model::escape::line;
use crate::store::explain::BudgetFacts;

/// How a budget stands. Its JSON is what `dripd explain --budget --json` prints; `docs/explain.md` says what each field means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = BudgetExplanation)]
pub struct BudgetSaid {
    budget: String,
    binds: Binding,
    says: String,
    waiting: u64,
    due_in_us: Option<u64>,
    chain: Vec<Link>,
    daemons: u64,
    spreading: bool,
}

impl BudgetSaid {
    /// Explain the facts of a budget; times are shown by `local_time`.
    pub fn of(facts: &BudgetFacts, local_time: &LocalTime) -> Self {
        let level = facts.levels.first().expect("a chain begins with what is asked about");
        let waiting = level.waiting.unwrap_or(0);
        let (binds, says) = what_binds(facts, waiting, local_time);
        Self {
            budget: level.name.clone(),
            binds,
            says,
            waiting,
            due_in_us: level.due_us,
            chain: facts.levels.iter().map(|level| Link::of(facts.into(), level, local_time)).collect(),
            daemons: facts.daemons,
            spreading: facts.spreading,
        }
    }

    /// The sentence that says what binds.
    pub fn says(&self) -> &str {
        &self.says
    }

    /// The explanation as text for a terminal.
    pub fn text(&self) -> String {
        chain_text(&self.chain)
            + "\n"
            + &values_text(self.chain.iter().take(1).flat_map(|link| &link.policy))
            + "\n"
            + &line(&self.says)
            + "\n"
    }
}

fn what_binds(facts: &BudgetFacts, waiting: u64, local_time: &LocalTime) -> (Binding, String) {
    let level = &facts.levels[0];
    let stopped = stopped(&facts.levels, local_time).or_else(|| full(level));
    let (name, waits) = (called(level), counted(waiting, "waits for a share of it", "wait for a share of it"));
    if let Some(said) = stopped {
        return (said.binding, format!("{}; {waits}", said.words));
    }
    if let Some(reason) = no_server(facts.writes_refused.as_ref(), facts.daemons) {
        return (reason.binding, reason.words);
    }
    if waiting == 0 {
        return (Binding::Empty, format!("nothing waits for a share of {name}"));
    }
    let above_us = latest(&facts.levels[1..]).map_or(0, |(us, _)| us);
    if let Some(due) = level.due_us.filter(|us| *us > 0 && *us >= above_us) {
        let due = say(Duration::from_micros(due));
        let (binding, because) = its_time_is_for(level, local_time);
        return (binding, format!("the next job leaves in {due}: {name} {because}; {waits}"));
    }
    match waiting_for(&facts.levels, local_time) {
        Some(said) => (said.binding, format!("{}; {waits}", said.words)),
        None => (Binding::Due, format!("the next job leaves now: nothing holds {name} back; {waits}")),
    }
}
