//! What keeps a node from going though its own time has come: the budgets above it, the nearest first.

use std::time::Duration;

use super::binds::{Binding, Said};
use super::moment::Wall;
use super::origin::Hand;
use super::{count, plain, shell};
use crate::store::explain::{Level, Paid, Share, Slots};
use crate::words::duration::say;

/// What a level is called in a sentence.
pub(super) fn called(level: &Level) -> String {
    if level.kind == "budget" { format!("budget {}", plain(&level.name)) } else { plain(&level.name) }
}

/// Why nothing leaves a node whose chain cannot be resolved.
pub(super) fn refused(level: &Level) -> Option<Said> {
    let why = plain(level.refused.as_ref()?);
    let name = called(level);
    let words =
        format!("nothing leaves {name}: {why}; a reload of a configuration that has it, or `dripd set`, ends that");
    Some(said(Binding::Refused, words, level))
}

/// Why nothing leaves a node that an operator stopped, and what ends that.
pub(super) fn paused(level: &Level, wall: &Wall) -> Option<Said> {
    let pattern = level.paused.as_ref()?;
    let hand = Hand::of_key(level, "pause");
    let until = hand.as_ref().and_then(|hand| hand.until(wall));
    let flag = if level.kind == "budget" { "--budget " } else { "" };
    let until = until.unwrap_or_else(|| format!("`dripd resume {flag}{}`", shell(pattern)));
    let hand = hand.map_or_else(String::new, |hand| format!(" {}", hand.say(wall)));
    let words = format!("nothing leaves until {until}: {} is paused{hand}", called(level));
    Some(said(Binding::Paused, words, level))
}

/// Why nothing leaves a node of which as many jobs are in flight as may be.
pub(super) fn full(level: &Level) -> Option<Said> {
    let Slots { taken, of } = level.slots.filter(|slots| slots.taken >= slots.of)?;
    let jobs = count(taken, "job", "jobs");
    let words = format!(
        "nothing leaves until a job in flight is finished: {} has {jobs} out, its concurrency is {of}",
        called(level)
    );
    Some(said(Binding::Slot, words, level))
}

/// What a bucket whose own time has come waits for: the first budget above it that may let nothing out, or its turn.
pub(super) fn above(levels: &[Level], wall: &Wall) -> Option<Said> {
    let (bucket, budgets) = levels.split_first()?;
    let stopped = |level| refused(level).or_else(|| paused(level, wall)).or_else(|| full(level));
    let turn = bucket.share.as_ref().map(|share| turn(bucket, share));
    budgets.iter().find_map(|level| stopped(level).or_else(|| at_its_rate(level, wall, turn.as_deref()))).or_else(
        || {
            let waits = levels.iter().find(|level| level.share.is_some())?;
            let words = format!("the next job leaves at its turn: {}", turn?);
            Some(said(Binding::Share, words, waits))
        },
    )
}

fn at_its_rate(level: &Level, wall: &Wall, turn: Option<&str>) -> Option<Said> {
    let due = level.due_us.filter(|us| *us > 0)?;
    let (name, turn) = (called(level), turn.map_or_else(String::new, |turn| format!("; {turn}")));
    let (binding, because) = its_time_is_for(level, wall);
    let binding = if binding == Binding::Rate { Binding::Share } else { binding };
    let words = format!("the next job of {name} leaves in {}: it {because}{turn}", say(Duration::from_micros(due)));
    Some(said(binding, words, level))
}

/// What the due of a node is for: what ends last.
pub(super) fn its_time_is_for(level: &Level, wall: &Wall) -> (Binding, String) {
    let quota = level.quotas.iter().filter(|quota| quota.is_used_up()).max_by_key(|quota| quota.ends_us);
    let ends = quota.map_or(0, |quota| quota.ends_us);
    if level.slow_us > ends {
        let hand = Hand::of_key(level, "slow-down").map_or_else(String::new, |hand| format!(" {}", hand.say(wall)));
        return (Binding::Slow, format!("is slowed down{hand}"));
    }
    match quota {
        Some(quota) => (Binding::Quota, format!("has used up its quota of {}", quota.shown())),
        None => (Binding::Rate, format!("is at its {}", pace(level))),
    }
}

/// Which rate its due is for: `rate: its last job cost 40`
fn pace(level: &Level) -> String {
    let is_of_jobs = level.policy.rate().is_none() && level.policy.job_rate().is_some();
    match level.paid {
        _ if is_of_jobs => "job_rate".to_owned(),
        Some(Paid { by_jobs: true, .. }) => "job_rate".to_owned(),
        Some(Paid { cost: Some(cost), .. }) => format!("rate: its last job cost {cost}"),
        _ => "rate".to_owned(),
    }
}

/// `acme waits for its share of budget twilio, after 3 others`
fn turn(level: &Level, share: &Share) -> String {
    let place = match share.ahead {
        0 => "as the first".to_owned(),
        ahead => format!("after {}", count(ahead, "other", "others")),
    };
    format!("{} waits for its share of budget {} {place} of {}", called(level), plain(&share.of), share.waiting)
}

fn said(binding: Binding, words: String, level: &Level) -> Said {
    Said { binding, words, at: Some((level.kind.clone(), level.name.clone())) }
}
