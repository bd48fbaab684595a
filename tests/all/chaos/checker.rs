//! Decides from a history alone whether every promise was kept.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{Answer, Entry, History, Node, UNNOTICED_US};

/// What was wrong with a history, each with an example, and what is worth knowing of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Accepted, and never left.
    pub lost: Vec<String>,
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
        let Self { lost, twice, again: _, intruders, out_of_order, too_fast, too_many } = self;
        [lost, twice, intruders, out_of_order, too_fast, too_many].into_iter().all(Vec::is_empty)
    }
}

/// An id in a stream has milliseconds: two of them may lie this much further apart than they say.
const ID_US: u64 = 1_000;

pub fn judge(history: &History) -> Judgement {
    let mut said = Judgement::default();
    fates(history, &mut said);
    order(history, &mut said);
    for (n, node) in history.nodes.iter().enumerate() {
        paces(history, n, node, &mut said);
        slots(history, n, node, &mut said);
    }
    said
}

/// Which side of the moments at which all was lost.
fn age(history: &History, us: u64) -> usize {
    history.lost_all_us.iter().filter(|at| **at <= us).count()
}

/// What became of each push.
fn fates(history: &History, said: &mut Judgement) {
    let mut left: HashMap<&str, Vec<&Entry>> = HashMap::new();
    for entry in &history.entries {
        left.entry(&entry.job).or_default().push(entry);
    }
    let acked: HashMap<u64, u64> = history.held.iter().filter_map(|held| Some((held.at, held.acked_us?))).collect();
    let pushed: HashSet<(&str, usize)> = history.pushes.iter().map(|push| (push.job.as_str(), push.bucket)).collect();
    for push in &history.pushes {
        let of = left.get(push.job.as_str());
        let is_gone = history.lost_all_us.iter().any(|at| *at >= push.sent_us);
        match push.answer {
            Answer::Accepted if of.is_none() && !is_gone => said.lost.push(push.job.clone()),
            Answer::Rejected if of.is_some() => said.intruders.push(format!("{} was rejected", push.job)),
            _ => {}
        }
    }
    for (job, entries) in &left {
        if entries.iter().any(|entry| !pushed.contains(&(job, entry.bucket))) {
            said.intruders.push(format!("{job} was never pushed into that bucket"));
        }
        for (n, entry) in entries.iter().enumerate().skip(1) {
            let before = entries[n - 1];
            if entry.attempt <= before.attempt && entry.attempt == 1 {
                said.twice.push(format!("{job} left twice as a first attempt"));
            } else if acked.get(&before.at).is_some_and(|acked_us| *acked_us < entry.left_us) {
                said.twice.push(format!("{job} left again after it was acknowledged"));
            } else {
                said.again += 1;
            }
        }
    }
}

/// In a bucket, what was accepted before another was sent leaves before that one.
fn order(history: &History, said: &mut Judgement) {
    let accepted = history.pushes.iter().filter(|push| push.answer == Answer::Accepted);
    let pushed: HashMap<&str, (u64, u64)> =
        accepted.map(|push| (push.job.as_str(), (push.sent_us, push.answered_us))).collect();
    let mut last_sent: HashMap<usize, (u64, &str)> = HashMap::new();
    let mut seen = HashSet::new();
    for entry in history.entries.iter().filter(|entry| entry.attempt == 1 && seen.insert(&entry.job)) {
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

/// Whether an entry's bucket is a node, or below it.
fn is_below(history: &History, bucket: usize, node: usize) -> bool {
    std::iter::successors(Some(bucket), |at| history.nodes[*at].parent).any(|at| at == node)
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
    for entry in history.entries.iter().filter(|entry| is_below(history, entry.bucket, n)) {
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

/// The earliest moment at which it may have been decided that an entry leaves.
fn decided_us(history: &History, entry: &Entry) -> u64 {
    let before = history.stalls.partition_point(|(from, _)| *from <= entry.left_us + ID_US);
    let stall = history.stalls[..before].last().filter(|(_, to)| *to >= entry.left_us);
    stall.map_or(entry.left_us, |(from, _)| *from).min(entry.left_us - UNNOTICED_US)
}

/// Never more in flight than there are slots: from when an entry left to when its worker began to give it back, or it left again.
fn slots(history: &History, n: usize, node: &Node, said: &mut Judgement) {
    let Some(slots) = node.slots else { return };
    let given: HashMap<u64, u64> = history.held.iter().filter_map(|held| Some((held.at, held.given_us?))).collect();
    let mut changes: Vec<(u64, i64, &str)> = Vec::new();
    let mut later: HashMap<&str, u64> = HashMap::new();
    // The last one first, so that it is known when a job left again.
    for entry in history.entries.iter().rev().filter(|entry| is_below(history, entry.bucket, n)) {
        let again = later.insert(&entry.job, entry.left_us);
        // Whoever let go of it did so somewhere between; only what is sure counts.
        let lost = history.lost_all_us.iter().copied().find(|at| *at >= entry.left_us);
        let end = [given.get(&entry.at).copied(), again, lost].into_iter().flatten().min();
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

#[cfg(test)]
mod tests {
    use super::super::history::{Held, Push};
    use super::*;

    const MS: u64 = 1_000;

    /// Two buckets of 100/s in a budget of 150/s with two slots; ten jobs each, 20 ms apart, finished after 1 ms. Every promise is kept.
    fn good() -> History {
        let node = |name: &str, count, slots, parent| Node {
            name: name.to_owned(),
            count,
            period_us: 1_000 * MS,
            catch_up_us: 20 * MS,
            slots,
            parent,
        };
        let mut history = History {
            nodes: vec![node("a", 100, None, Some(2)), node("b", 100, None, Some(2)), node("p", 150, Some(2), None)],
            ..History::default()
        };
        for n in 0..10 {
            for bucket in 0..2 {
                let (job, sent_us) = (format!("{bucket}-{n}"), 1_000 * MS + n * 2 * MS);
                let answer = Answer::Accepted;
                history.pushes.push(Push { job: job.clone(), bucket, sent_us, answered_us: sent_us + MS, answer });
                let (at, left_us) = (n * 2 + bucket as u64, 2_000 * MS + n * 20 * MS + 7 * MS * bucket as u64);
                history.entries.push(Entry { at, left_us, job, bucket, attempt: 1 });
                let given_us = Some(left_us + 2 * MS);
                history.held.push(Held { at, given_us, acked_us: Some(left_us + 3 * MS) });
            }
        }
        history
    }

    fn objections(change: impl FnOnce(&mut History)) -> [usize; 6] {
        let mut history = good();
        change(&mut history);
        let Judgement { lost, twice, again: _, intruders, out_of_order, too_fast, too_many } = judge(&history);
        [lost.len(), twice.len(), intruders.len(), out_of_order.len(), too_fast.len(), too_many.len()]
    }

    #[test]
    fn a_history_in_which_every_promise_is_kept_is_good() {
        assert_eq!(judge(&good()), Judgement::default());
    }

    #[test]
    fn a_job_that_was_accepted_and_never_left_is_lost_and_one_whose_answer_was_lost_is_not() {
        assert_eq!(objections(|history| drop(history.entries.remove(7))), [1, 0, 0, 0, 0, 0]);
        let unknown = |history: &mut History| {
            let job = history.entries.remove(7).job;
            history.pushes.iter_mut().find(|push| push.job == job).expect("pushed").answer = Answer::Unknown;
        };
        assert_eq!(objections(unknown), [0; 6]);
        let all_lost = |history: &mut History| {
            history.entries.remove(19);
            history.lost_all_us.push(1_900 * MS);
        };
        assert_eq!(objections(all_lost), [0; 6]);
    }

    #[test]
    fn a_job_leaves_again_only_while_it_is_not_finished() {
        let again = |history: &mut History, attempt| {
            let mut entry = history.entries[0].clone();
            (entry.at, entry.left_us, entry.attempt) = (100, 5_000 * MS, attempt);
            history.entries.push(entry);
        };
        assert_eq!(objections(|history| again(history, 1)), [0, 1, 0, 0, 0, 0], "as a first attempt");
        assert_eq!(objections(|history| again(history, 2)), [0, 1, 0, 0, 0, 0], "it was acknowledged");
        let mut history = good();
        history.held[0].acked_us = None;
        again(&mut history, 2);
        let said = judge(&history);
        assert!(said.is_good() && said.again == 1, "{said:?}");
    }

    #[test]
    fn a_rejected_job_and_one_that_nobody_pushed_must_not_leave() {
        assert_eq!(objections(|history| history.pushes[3].answer = Answer::Rejected), [0, 0, 1, 0, 0, 0]);
        assert_eq!(objections(|history| drop(history.pushes.remove(3))), [0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn what_was_accepted_before_another_was_sent_leaves_before_it() {
        let swap = |history: &mut History| {
            let (first, second) = (history.entries[4].job.clone(), history.entries[6].job.clone());
            (history.entries[4].job, history.entries[6].job) = (second, first);
        };
        assert_eq!(objections(swap), [0, 0, 0, 1, 0, 0]);
        let at_once = |history: &mut History| {
            swap(history);
            history.pushes.iter_mut().for_each(|push| push.answered_us = push.sent_us + 100 * MS);
        };
        assert_eq!(objections(at_once), [0; 6], "both were on their way at a time");
    }

    #[test]
    fn no_window_of_a_bucket_or_of_a_budget_holds_too_many() {
        // A bucket may be 20 ms early by what it makes up, and no more: five of its jobs in a millisecond are too many.
        let rush = |history: &mut History, from: u64| {
            for entry in history.entries.iter_mut().filter(|entry| entry.bucket == 0) {
                if (10..20).contains(&entry.at) {
                    entry.left_us = from;
                }
            }
            history.entries.sort_by_key(|entry| entry.left_us);
            history.held.clear();
            history.nodes[2].slots = None;
        };
        let told = objections(|history| rush(history, 2_100 * MS));
        assert!(told[4] > 0 && told[..4] == [0; 4], "{told:?}");
        // Where no lateness is made up, those after one that was late by 10 ms are too early, unless it was the server that stood still.
        let late = |history: &mut History| {
            (history.nodes[0].count, history.nodes[0].catch_up_us) = (50, 0);
            history.entries[8].left_us += 10 * MS;
        };
        assert_eq!(objections(late)[4], 5);
        let stalled = |history: &mut History| {
            late(history);
            history.stalls.push((2_080 * MS, 2_091 * MS));
        };
        assert_eq!(objections(stalled)[4], 0);
        // Each bucket keeps its rate, and both together are too fast for the budget.
        let both = |history: &mut History| {
            history.nodes[2].count = 50;
            history.nodes[2].slots = None;
        };
        let told = objections(both);
        assert!(told[4] > 0 && told[..4] == [0; 4], "{told:?}");
        let halves = |history: &mut History| {
            both(history);
            // A node forgets with everything else.
            history.lost_all_us = (0..20).map(|n| 2_000 * MS + n * 10 * MS).collect();
        };
        assert_eq!(objections(halves)[4], 0);
    }

    #[test]
    fn a_slot_is_taken_until_its_job_is_given_back_or_leaves_again() {
        let slow = |history: &mut History| {
            for held in &mut history.held[..3] {
                (held.given_us, held.acked_us) = (Some(2_060 * MS), Some(2_061 * MS));
            }
        };
        assert_eq!(objections(slow), [0, 0, 0, 0, 0, 4], "three at a time, four times, where two may be");
        let dead_worker = |history: &mut History| {
            (history.held[0].given_us, history.held[0].acked_us) = (None, None);
            let mut entry = history.entries[0].clone();
            (entry.at, entry.left_us, entry.attempt) = (100, 3_000 * MS, 2);
            history.entries.push(entry);
        };
        // It keeps one slot until it leaves again: of the others two overlap now and then.
        assert_eq!(objections(dead_worker)[5], 0);
    }
}
