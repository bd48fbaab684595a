//! Reasons that make a node wait besides its own due: its state, and the budgets above it. A reason that only a person
//! ends comes first, then the one that ends last.

use std::time::Duration;

use super::binding::{Binding, Reason};
use super::local_time::LocalTime;
use super::provenance::Hand;
use super::{plain, shell};
use crate::model::counted::counted;
use crate::model::duration::say;
use crate::model::naming;
use crate::store::explain::{Level, Share, Slots};
use crate::store::level_limits::Paid;
use crate::store::status::WritesRefused;

/// The name of a level in a sentence: `acme` or `budget twilio`.
pub(super) fn called(level: &Level) -> String {
    if level.kind == "budget" { format!("budget {}", plain(&level.name)) } else { plain(&level.name) }
}

/// Why nothing leaves any bucket: Redis takes no writes, or no daemon runs. A daemon cannot say that it runs while Redis takes no writes.
pub(super) fn no_server(refused: Option<&WritesRefused>, daemons: u64) -> Option<Reason> {
    if let Some(refused) = refused.filter(|refused| !refused.pushes_only) {
        return Some(Reason::new(Binding::NoWrites, format!("{}: {}", refused.outcome(), refused.why)));
    }
    let words = || "nothing leaves: no daemon runs; start one with `dripd run`".to_owned();
    (daemons == 0).then(|| Reason::new(Binding::NoDaemon, words()))
}

/// The reason why nothing leaves a node whose chain of budgets cannot be resolved.
pub(super) fn refused(level: &Level) -> Option<Reason> {
    let why = plain(level.refused.as_ref()?);
    let name = called(level);
    let words =
        format!("nothing leaves {name}: {why}; a reload of a configuration that has it, or `dripd set`, ends that");
    Some(Reason::about(level, Binding::Refused, words))
}

/// The reason why nothing leaves a node that an operator paused, and what ends the pause.
pub(super) fn paused(level: &Level, local_time: &LocalTime) -> Option<Reason> {
    let pattern = level.paused.as_ref()?;
    let hand = Hand::of_key(level, "pause");
    let until = hand.as_ref().and_then(|hand| hand.until(local_time));
    let flag = if level.kind == "budget" { "--budget " } else { "" };
    let written = if *pattern == level.name { naming::written(pattern) } else { pattern.clone() };
    let until = until.unwrap_or_else(|| format!("`dripd resume {flag}{}`", shell(&written)));
    let hand = hand.map_or_else(String::new, |hand| format!(" {}", hand.say(local_time)));
    let words = format!("nothing leaves until {until}: {} is paused{hand}", called(level));
    Some(Reason::about(level, Binding::Paused, words))
}

/// The reason why nothing leaves a node all of whose slots are taken, or whose jobs in flight are not counted yet.
pub(super) fn full(level: &Level) -> Option<Reason> {
    if let (true, Some(Slots { of, .. })) = (level.counting, level.slots) {
        let words = format!(
            "nothing leaves for a moment: {} has a new concurrency of {of}, and its jobs in flight are counted first",
            called(level)
        );
        return Some(Reason::about(level, Binding::Slot, words));
    }
    let Slots { taken, of } = level.slots.filter(|slots| slots.taken >= slots.of)?;
    let jobs = counted(taken, "job", "jobs");
    let words = format!(
        "nothing leaves until a job in flight is finished: {} has {jobs} out, its concurrency is {of}",
        called(level)
    );
    Some(Reason::about(level, Binding::Slot, words))
}

/// The reason of the first level that lets nothing out until somebody acts: its chain is refused, or it is paused.
pub(super) fn stopped(budgets: &[Level], local_time: &LocalTime) -> Option<Reason> {
    budgets.iter().find_map(|level| refused(level).or_else(|| paused(level, local_time)))
}

/// The longest wait among some budgets, in microseconds, and its budget; of equal waits the one of the nearest budget.
/// `None` where no budget has a due ahead.
pub(super) fn latest(budgets: &[Level]) -> Option<(u64, &Level)> {
    let waits = budgets.iter().rev().filter_map(|level| Some((level.due_us.filter(|us| *us > 0)?, level)));
    waits.max_by_key(|(us, _)| *us)
}

/// The reason why a bucket waits whose own due has come, or comes before that of a budget above it, where no level is
/// stopped: a budget without a free slot, else the due of the budget that waits longest, else its turn for a share.
pub(super) fn waiting_for(levels: &[Level], local_time: &LocalTime) -> Option<Reason> {
    let (bucket, budgets) = levels.split_first()?;
    let turn = bucket.share.as_ref().map(|share| turn(bucket, share));
    let time = || latest(budgets).map(|(due, level)| at_its_rate(level, due, local_time, turn.as_deref()));
    budgets.iter().find_map(full).or_else(time).or_else(|| {
        let waits = levels.iter().find(|level| level.share.is_some())?;
        let words = format!("the next job leaves at its turn: {}", turn.as_ref()?);
        Some(Reason::about(waits, Binding::Share, words))
    })
}

fn at_its_rate(level: &Level, due: u64, local_time: &LocalTime, turn: Option<&str>) -> Reason {
    let (name, turn) = (called(level), turn.map_or_else(String::new, |turn| format!("; {turn}")));
    let (binding, because) = its_time_is_for(level, local_time);
    let binding = if binding == Binding::Rate { Binding::Share } else { binding };
    let words = format!("the next job of {name} leaves in {}: it {because}{turn}", say(Duration::from_micros(due)));
    Reason::about(level, binding, words)
}

/// The cause of a node's due, as a binding and in words: of a slow-down, a told limit and a used-up quota the one that
/// ends last, else the rate.
pub(super) fn its_time_is_for(level: &Level, local_time: &LocalTime) -> (Binding, String) {
    let needs = level.paid.and_then(|paid| paid.needs).unwrap_or(1);
    let quota = level.quotas.iter().filter(|quota| quota.left() < needs).max_by_key(|quota| quota.ends_us);
    let told = level.told.as_ref().filter(|told| told.waits_us > 0);
    let ends = quota.map_or(0, |quota| quota.ends_us).max(told.map_or(0, |told| told.waits_us));
    if level.slow_us > ends {
        let hand =
            Hand::of_key(level, "slow-down").map_or_else(String::new, |hand| format!(" {}", hand.say(local_time)));
        return (Binding::Slow, format!("is slowed down{hand}"));
    }
    if let Some(told) = told.filter(|told| told.waits_us == ends) {
        let reset = say(Duration::from_micros(told.reset_us));
        let says =
            if told.is_reckoned { "its limit has reset, and so it is taken that" } else { "the other side says that" };
        return (Binding::Told, format!("is paced by what it is told: {says} {} for {reset}", told.shown()));
    }
    match quota {
        Some(quota) if quota.left() == 0 => (Binding::Quota, format!("has used up its quota of {}", quota.shown())),
        Some(quota) => {
            let (left, of) = (quota.left(), quota.shown());
            (Binding::Quota, format!("has {left} left of its quota of {of}, and its next job costs {needs}"))
        }
        None => (Binding::Rate, format!("is at its {}", pace(level))),
    }
}

/// The name of the rate that set the due, with the cost of the last job where it had one: `rate: its last job was charged 40`.
fn pace(level: &Level) -> String {
    let is_of_jobs = level.policy.rate().is_none() && level.policy.job_rate().is_some();
    match level.paid {
        _ if is_of_jobs => "job_rate".to_owned(),
        Some(Paid { by_jobs: true, .. }) => "job_rate".to_owned(),
        Some(Paid { cost: Some(cost), .. }) => format!("rate: its last job was charged {cost}"),
        _ => "rate".to_owned(),
    }
}

/// A turn in words: `acme waits for its share of budget twilio after 3 others of 5`.
fn turn(level: &Level, share: &Share) -> String {
    let place = match share.ahead {
        0 => "as the first".to_owned(),
        ahead => format!("after {}", counted(ahead, "other", "others")),
    };
    format!("{} waits for its share of budget {} {place} of {}", called(level), plain(&share.of), share.waiting)
}
