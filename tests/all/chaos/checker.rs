//! Decides from a history alone whether every promise was kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{Answer, End, Entry, Held, History, Node, Push, UNNOTICED_US};

/// What was wrong with a history, each with an example, and what is worth knowing of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Accepted, and never left; or nobody finished it, and it never came again.
    pub lost: Vec<String>,
    /// The same of what a primary had accepted and its successor did not know of; this is allowed.
    pub not_kept: usize,
    /// Left again though it was finished, or left twice as a first attempt.
    pub twice: Vec<String>,
    /// Left again because nobody finished it in time; this is allowed.
    pub again: usize,
    /// Left though it was rejected, or though nobody pushed it.
    pub intruders: Vec<String>,
    /// Left before one of its bucket that had been accepted before it was sent.
    pub out_of_order: Vec<String>,
    /// Left in a window that was full.
    pub too_fast: Vec<String>,
    /// In flight while all slots were taken.
    pub too_many: Vec<String>,
}

impl Judgement {
    /// Whether every promise was kept.
    pub fn is_good(&self) -> bool {
        let Self { lost, not_kept: _, twice, again: _, intruders, out_of_order, too_fast, too_many } = self;
        [lost, twice, intruders, out_of_order, too_fast, too_many].into_iter().all(Vec::is_empty)
    }
}

/// The histories of several partitions: none knows of the other ones.
pub fn judge_all(histories: &[History]) -> Judgement {
    let mut said = Judgement::default();
    for history in histories {
        judge_into(history, &mut said);
    }
    said
}

/// An id in a stream has milliseconds: two of them may lie this much further apart than they say.
const ID_US: u64 = 1_000;

pub fn judge(history: &History) -> Judgement {
    judge_all(std::slice::from_ref(history))
}

fn judge_into(history: &History, said: &mut Judgement) {
    fates(history, said);
    order(history, said);
    for (n, node) in history.nodes.iter().enumerate() {
        paces(history, n, node, said);
        hands(history, n, node, said);
        slots(history, n, node, said);
    }
}

/// Which side of the moments at which all was lost, or the clock was stepped.
fn age(history: &History, us: u64) -> usize {
    let steps = history.steps_us.iter().map(|(_, to)| to);
    history.lost_all_us.iter().chain(steps).filter(|at| **at <= us).count()
}

/// Whether all primaries know of an entry from then on.
fn is_kept(history: &History, entry: &Entry) -> bool {
    entry.is_kept || history.is_kept(entry.primary, entry.left_us + ID_US)
}

/// What became of each push.
fn fates(history: &History, said: &mut Judgement) {
    let mut left: HashMap<&str, Vec<&Entry>> = HashMap::new();
    for entry in &history.entries {
        left.entry(&entry.job).or_default().push(entry);
    }
    let mut held: HashMap<u64, Vec<&Held>> = HashMap::new();
    for one in &history.held {
        held.entry(one.at).or_default().push(one);
    }
    let held = |entry: &Entry| held.get(&entry.at).map_or(&[][..], Vec::as_slice);
    // What is acknowledged and known to be so must not come again.
    let was_acked = |one: &&Held| one.acked_us.is_some_and(|acked_us| history.is_kept(one.primary, acked_us));
    let pushed: HashSet<(&str, usize)> = history.pushes.iter().map(|push| (push.job.as_str(), push.bucket)).collect();
    for push in &history.pushes {
        let of = left.get(push.job.as_str()).map_or(&[][..], Vec::as_slice);
        if push.answer == Answer::Rejected && !of.is_empty() {
            said.intruders.push(format!("{} was rejected", push.job));
        }
        let is_known = push.answer == Answer::Accepted && history.is_kept(push.primary, push.answered_us);
        let is_finished = of.iter().any(|entry| held(entry).iter().any(|one| one.end == End::Acked));
        let all_lost = history.lost_all_us.iter().any(|at| *at >= push.sent_us);
        if is_finished || all_lost || (push.answer != Answer::Accepted && of.is_empty()) {
        } else if is_known || of.iter().any(|entry| is_kept(history, entry)) {
            let fate = if of.is_empty() { "never left" } else { "was not finished and never came again" };
            said.lost.push(format!("{} {fate}", push.job));
        } else {
            said.not_kept += 1;
        }
    }
    for (job, entries) in &left {
        if entries.iter().any(|entry| !pushed.contains(&(job, entry.bucket))) {
            said.intruders.push(format!("{job} was never pushed into that bucket"));
        }
        for (n, entry) in entries.iter().enumerate() {
            let all = held(entry);
            if all[..all.len().saturating_sub(1)].iter().any(&was_acked) {
                said.twice.push(format!("{job} was delivered again after it was acknowledged"));
            }
            said.again += all.len().saturating_sub(1);
            let Some(before) = n.checked_sub(1).map(|n| entries[n]) else { continue };
            // One that was replaced while it hung may work on what it had been asked for before: its successor knows nothing of that.
            if !is_kept(history, entry) {
                said.again += 1;
                continue;
            }
            let done_us = held(before).iter().filter(|one| was_acked(one)).filter_map(|one| one.acked_us).min();
            if entry.attempt == 1 && before.attempt == 1 && is_kept(history, before) {
                said.twice.push(format!("{job} left twice as a first attempt"));
            } else if done_us.is_some_and(|done_us| done_us < entry.early_us) {
                said.twice.push(format!("{job} left again after it was acknowledged"));
            } else {
                said.again += 1;
            }
        }
    }
}

/// In a bucket, what was accepted before another was sent leaves before that one.
fn order(history: &History, said: &mut Judgement) {
    let is_kept_push = |push: &&Push| history.is_kept(push.primary, push.answered_us);
    let accepted = history.pushes.iter().filter(|push| push.answer == Answer::Accepted).filter(is_kept_push);
    let pushed: HashMap<&str, (u64, u64)> =
        accepted.map(|push| (push.job.as_str(), (push.sent_us, push.answered_us))).collect();
    let mut last_sent: HashMap<usize, (u64, &str)> = HashMap::new();
    let mut seen = HashSet::new();
    for entry in history.entries.iter().filter(|entry| entry.attempt == 1 && is_kept(history, entry)) {
        if !seen.insert(&entry.job) {
            continue;
        }
        let Some((sent_us, answered_us)) = pushed.get(entry.job.as_str()) else { continue };
        let (last, of) = last_sent.entry(entry.bucket).or_insert((0, ""));
        if answered_us < last {
            said.out_of_order.push(format!("{} left after {of}", entry.job));
        }
        if sent_us > last {
            (*last, *of) = (*sent_us, &entry.job);
        }
    }
}

/// Whether an entry counts at a node: its bucket is the node or below it, and all primaries know of it.
fn counts_at(history: &History, entry: &Entry, node: usize) -> bool {
    is_kept(history, entry)
        && std::iter::successors(Some(entry.bucket), |at| history.nodes[*at].parent).any(|at| at == node)
}

/// In every window of length W at most `1 + ⌊(W + catch_up) / interval⌋` jobs leave a node.
///
/// An id tells when the entry was made, and promised is when it was decided: up to a standstill of the server before.
///
/// For the jobs i < j that is `(j − i) × interval ≤ t_j − t_i + catch_up`: so only the largest of `t_i − i × interval` of those before a
/// job matters.
fn paces(history: &History, n: usize, node: &Node, said: &mut Judgement) {
    if node.count == 0 {
        return;
    }
    let mut before: BTreeMap<usize, (i128, i128)> = BTreeMap::new(); // by age: how many left, the largest of t_i - i * interval
    // What left about when the clock was stepped counts on neither side of that.
    let is_clear = |entry: &&Entry| {
        !history.steps_us.iter().any(|(from, to)| entry.early_us <= *to + UNNOTICED_US && entry.left_us >= *from)
    };
    for entry in history.entries.iter().filter(|entry| counts_at(history, entry, n)).filter(is_clear) {
        // In units of a count-th of a microsecond, so that nothing is rounded.
        let count = i128::from(node.count);
        let (jobs, largest) = before.entry(age(history, entry.left_us)).or_insert((0, i128::MIN));
        let here = i128::from(entry.left_us) * count - *jobs * i128::from(node.period_us);
        let allowed = i128::from(node.catch_up_us + ID_US) * count;
        if *largest != i128::MIN && here < *largest - allowed {
            let early_us = (*largest - allowed - here) / count;
            said.too_fast
                .push(format!("{} left {} {early_us} us too early at {}", entry.job, node.name, entry.left_us));
        }
        let stalled_us = entry.left_us - decided_us(history, entry);
        (*jobs, *largest) = (*jobs + 1, (*largest).max(here - i128::from(stalled_us) * count));
    }
}

/// In every window of length W workers are given at most `2 + ⌊(ready_window + catch_up) / interval⌋ + ⌊(W + catch_up) / interval⌋` jobs of a node,
/// whose jobs use one route. By the clock of the workers: a job was given out after it was asked for and after it left, and before the answer.
fn hands(history: &History, n: usize, node: &Node, said: &mut Judgement) {
    if node.count == 0 || !history.steps_us.is_empty() {
        return;
    }
    let entries: HashMap<u64, &Entry> = history.entries.iter().map(|entry| (entry.at, entry)).collect();
    let mut seen = HashSet::new();
    let first = history.held.iter().filter(|held| seen.insert(held.at));
    let given = first.filter_map(|held| entries.get(&held.at).map(|entry| (*entry, held.taken_us)));
    let mut given: Vec<(u64, u64, &Entry)> = given
        .filter(|(entry, _)| counts_at(history, entry, n))
        .map(|(entry, (asked, answered))| (asked.max(entry.left_us), answered.max(entry.left_us), entry))
        .collect();
    given.sort_by_key(|(earliest, _, _)| *earliest);
    // In units of a count-th of a microsecond.
    let (count, interval) = (i128::from(node.count), i128::from(node.period_us));
    let more = 2 + i128::from((history.ready_window_us + node.catch_up_us) * node.count / node.period_us);
    let mut before: HashMap<usize, (i128, i128, u64)> = HashMap::new(); // by age: how many, the largest of t_i - i * interval, the last answer
    for (earliest, answered, entry) in given {
        let (jobs, largest, latest) = before.entry(age(history, entry.left_us)).or_insert((0, i128::MIN / 2, 0));
        *latest = (*latest).max(answered);
        *largest = (*largest).max(i128::from(earliest) * count - *jobs * interval);
        let here = i128::from(*latest) * count - *jobs * interval;
        let allowed = (more - 1) * interval + i128::from(node.catch_up_us) * count;
        if here + allowed < *largest {
            said.too_fast.push(format!("{} was given out too early, {} at {answered}", entry.job, node.name));
        }
        *jobs += 1;
    }
}

/// The earliest moment at which it may have been decided that an entry leaves: of standstills that overlap the first one counts.
pub fn decided_us(history: &History, entry: &Entry) -> u64 {
    let first = history.stalls.partition_point(|(_, to)| *to < entry.left_us);
    let stall = history.stalls.get(first).filter(|(from, _)| *from <= entry.left_us + ID_US);
    stall.map_or(entry.left_us, |(from, _)| *from).min(entry.left_us - UNNOTICED_US).min(entry.early_us)
}

/// Never more in flight than there are slots: from when an entry left to when its worker began to give it back, its lease ended, or it left
/// again.
fn slots(history: &History, n: usize, node: &Node, said: &mut Judgement) {
    let Some(slots) = node.slots else { return };
    let given: HashMap<u64, u64> = history.held.iter().filter_map(|held| Some((held.at, held.given_us?))).collect();
    let mut changes: Vec<(u64, i64, &str)> = Vec::new();
    let mut later: HashMap<&str, u64> = HashMap::new();
    // The last one first, so that it is known when a job left again.
    for entry in history.entries.iter().rev().filter(|entry| counts_at(history, entry, n)) {
        let again = later.insert(&entry.job, entry.early_us);
        // Whoever let go of it did so somewhere between; only what is sure counts.
        let lost = history.lost_all_us.iter().copied().find(|at| *at >= entry.left_us);
        let step = history.steps_us.iter().find(|(_, to)| *to >= entry.early_us).map(|(from, _)| *from);
        let lease = Some(entry.early_us + history.lease_us);
        let end = [given.get(&entry.at).copied(), again, lost, step, lease].into_iter().flatten().min();
        // It left within the millisecond that its id names.
        changes.push((entry.left_us + ID_US, 1, &entry.job));
        if let Some(end) = end {
            changes.push((end.max(entry.left_us + ID_US), -1, &entry.job));
        }
    }
    changes.sort_by_key(|(at, by, _)| (*at, *by));
    let mut in_flight = 0;
    for (_, by, job) in changes {
        in_flight += by;
        if by > 0 && in_flight > i64::try_from(slots).expect("few") {
            said.too_many.push(format!("{job} left {} while {slots} were in flight", node.name));
        }
    }
}
