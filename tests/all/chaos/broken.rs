//! Histories in which just one thing is wrong: the checker must object to each, and to nothing else.

use std::collections::HashSet;

use super::checker::{Judgement, decided_us, judge};
use super::history::{Answer, End, Entry, Held, History, Node, Push, stalls};

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
        lease_us: 2_000 * MS,
        ready_window_us: 250 * MS,
        ..History::default()
    };
    for n in 0..10 {
        for bucket in 0..2 {
            let (job, sent_us) = (format!("{bucket}-{n}"), 1_000 * MS + n * 2 * MS);
            let answer = Answer::Accepted;
            let answered_us = sent_us + MS;
            history.pushes.push(Push { job: job.clone(), bucket, sent_us, answered_us, answer, primary: 0 });
            let (at, left_us) = (n * 2 + bucket as u64, 2_000 * MS + n * 20 * MS + 7 * MS * bucket as u64);
            let entry = Entry { at, left_us, early_us: left_us, job, bucket, attempt: 1, primary: 0, is_kept: false };
            history.entries.push(entry);
            let given_us = Some(left_us + 2 * MS);
            let acked_us = Some(left_us + 3 * MS);
            let taken_us = (left_us, left_us + MS);
            history.held.push(Held { at, taken_us, end: End::Acked, given_us, acked_us, primary: 0 });
        }
    }
    history
}

fn objections(change: impl FnOnce(&mut History)) -> [usize; 6] {
    let mut history = good();
    change(&mut history);
    history.entries.iter_mut().for_each(|entry| entry.early_us = entry.left_us);
    objections_to(&history)
}

/// How often something is lost, comes twice, left though it was rejected, out of order, too fast, while too many were in flight.
fn objections_to(history: &History) -> [usize; 6] {
    let Judgement { lost, not_kept: _, twice, again: _, intruders, out_of_order, too_fast, too_many } = judge(history);
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
        (entry.at, entry.left_us, entry.early_us, entry.attempt) = (100, 5_000 * MS, 5_000 * MS, attempt);
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
    let overlapping = |history: &mut History| {
        late(history);
        history.stalls = stalls(&[(2_080 * MS, 2_081 * MS), (2_089 * MS, 2_091 * MS), (2_092 * MS, 2_093 * MS)]);
    };
    assert_eq!(objections(overlapping)[4], 0, "it was asked before the standstill and answered after it");
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
        history.held.push(Held { at: 100, ..history.held[1].clone() });
    };
    // It keeps one slot until it leaves again: of the others two overlap now and then.
    assert_eq!(objections(dead_worker)[5], 0);
}

#[test]
fn a_job_that_nobody_finished_comes_again_or_is_lost() {
    for end in [End::Dropped, End::Failed] {
        let give_up = |history: &mut History| (history.held[3].end, history.held[3].acked_us) = (end, None);
        assert_eq!(objections(give_up), [1, 0, 0, 0, 0, 0], "{end:?}");
        let unknown = |history: &mut History| {
            give_up(history);
            history.pushes[3].answer = Answer::Unknown;
        };
        assert_eq!(objections(unknown), [1, 0, 0, 0, 0, 0], "whatever its producer was told: it was there");
        let all_lost = |history: &mut History| {
            give_up(history);
            history.lost_all_us.push(2_500 * MS);
        };
        assert_eq!(objections(all_lost), [0; 6]);
        let again = |history: &mut History| {
            give_up(history);
            let mut entry = history.entries[3].clone();
            (entry.at, entry.left_us, entry.attempt) = (100, 5_000 * MS, 2);
            history.entries.push(entry);
            history.held.push(Held { at: 100, ..history.held[1].clone() });
        };
        assert_eq!(objections(again), [0; 6]);
    }
}

#[test]
fn an_entry_is_not_delivered_again_once_it_was_acknowledged() {
    let again = |history: &mut History| history.held.push(history.held[5].clone());
    assert_eq!(objections(again), [0, 1, 0, 0, 0, 0]);
    let unanswered = |history: &mut History| {
        history.held[5].acked_us = None;
        again(history);
    };
    assert_eq!(objections(unanswered), [0; 6]);
}

#[test]
fn nothing_is_promised_of_what_a_primary_did_after_its_successor_heard_of_it_last() {
    // The last ten entries left after 2,100 ms, and no producer was answered after 1,019 ms.
    let lose = |history: &mut History, until_us| {
        history.entries.remove(19);
        history.kept_until_us.push(until_us);
    };
    let judged = |until_us| {
        let mut history = good();
        lose(&mut history, until_us);
        judge(&history)
    };
    assert_eq!(judged(2_100 * MS).lost.len(), 1, "it was known to be accepted");
    let said = judged(1_018 * MS);
    assert!(said.is_good() && said.not_kept == 1, "{said:?}");

    // Of the other primary the first jobs that it may not know of come again, at its own rate and in its order.
    let again = |history: &mut History, until_us: u64| {
        history.kept_until_us.push(until_us);
        for n in 10..20 {
            let (mut entry, mut held) = (history.entries[n].clone(), history.held[n].clone());
            (entry.at, entry.left_us, entry.primary) = (100 + entry.at, entry.left_us + 100 * MS, 1);
            (held.at, held.given_us, held.acked_us) =
                (entry.at, Some(entry.left_us + MS), Some(entry.left_us + 2 * MS));
            held.primary = 1;
            history.entries.push(entry);
            history.held.push(held);
        }
    };
    assert_eq!(objections(|history| again(history, 2_099 * MS)), [0; 6]);
    assert_eq!(objections(|history| again(history, 3_000 * MS))[1], 10, "it knew that they had left");
    // And one that was replaced while it hung gives out once more what its successor gave out before.
    let woken = |history: &mut History, until_us| {
        again(history, until_us);
        history.kept_until_us.push(u64::MAX);
        history.entries[10..].iter_mut().for_each(|entry| entry.primary = 1 - entry.primary);
        history.held[10..].iter_mut().for_each(|held| held.primary = 1 - held.primary);
    };
    assert_eq!(objections(|history| woken(history, 2_099 * MS)), [0; 6]);
    assert_eq!(objections(|history| woken(history, 3_000 * MS))[1], 10, "its successor knew that they had left again");
    // An entry that it knows, and not that it was acknowledged.
    let redelivered = |history: &mut History, until_us| {
        history.kept_until_us.push(until_us);
        history.held.push(Held { primary: 1, ..history.held[19].clone() });
        history.entries[19].is_kept = true;
    };
    assert_eq!(objections(|history| redelivered(history, 2_189 * MS)), [0; 6]);
    assert_eq!(objections(|history| redelivered(history, 2_191 * MS)), [0, 1, 0, 0, 0, 0], "it knew that, too");
}

#[test]
fn where_the_clock_is_stepped_every_pace_and_every_lease_may_begin_anew_once() {
    // Five of a bucket, 20 ms apart, come 30 ms early after the ones before them.
    let early = |history: &mut History| {
        (history.nodes[0].count, history.nodes[0].catch_up_us) = (50, 0);
        history.entries.iter_mut().filter(|entry| entry.at >= 10).for_each(|entry| entry.left_us -= 15 * MS);
        history.nodes[2].slots = None;
        history.entries.sort_by_key(|entry| entry.left_us);
    };
    assert_eq!(objections(early)[4], 5, "each of them is early beside the ones before");
    let stepped = |history: &mut History| {
        early(history);
        history.steps_us.push((2_081 * MS, 2_082 * MS));
    };
    assert_eq!(objections(stepped), [0; 6]);
    let twice = |history: &mut History| {
        stepped(history);
        history.entries.iter_mut().filter(|entry| entry.at >= 16).for_each(|entry| entry.left_us -= 10 * MS);
        history.entries.sort_by_key(|entry| entry.left_us);
    };
    assert!(objections(twice)[4] > 0, "and not twice");
    let hold = |history: &mut History| {
        for held in &mut history.held[..2] {
            (held.given_us, held.acked_us) = (Some(2_055 * MS), None);
        }
    };
    assert_eq!(objections(hold), [0, 0, 0, 0, 0, 4]);
    let leases_ended = |history: &mut History| {
        hold(history);
        history.steps_us.push((2_008 * MS, 2_009 * MS));
    };
    assert_eq!(objections(leases_ended), [0; 6]);
}

#[test]
fn of_what_left_between_two_moments_only_what_is_sure_counts() {
    let mut history = good();
    (history.nodes[0].count, history.nodes[0].catch_up_us) = (50, 0);
    history.entries[8].left_us += 10 * MS;
    assert_eq!(objections_to(&history), [0; 6], "it may have left when it was due");
    history.entries[8].early_us += 8 * MS;
    assert!(objections_to(&history)[4] > 0, "it left late, and those behind it did not");
}

/// Whatever really happened, one thing more must be seen: so the judge of a long run is not blind.
pub fn would_be_seen(history: &History) {
    // Only jobs that left once: of others what is wrong might as well be right.
    let times = |job: &str| history.entries.iter().filter(|entry| entry.job == job).count();
    let accepted: HashSet<&str> =
        history.pushes.iter().filter(|push| push.answer == Answer::Accepted).map(|push| push.job.as_str()).collect();
    let is_good = |entry: &Entry| entry.attempt == 1 && accepted.contains(entry.job.as_str()) && times(&entry.job) == 1;
    let in_bucket = |bucket: usize| -> Vec<usize> {
        let is_of = |n: &usize| history.entries[*n].bucket == bucket && is_good(&history.entries[*n]);
        (0..history.entries.len()).filter(is_of).take(25).collect()
    };
    let of = |bucket: usize, n: usize| in_bucket(bucket)[n];
    let told = |what: &str, at: usize, change: &dyn Fn(&mut History)| {
        let mut history = history.clone();
        change(&mut history);
        let told = objections_to(&history);
        assert!(told[at] > 0, "{what}: {told:?}");
    };
    let job = history.entries[of(0, 20)].job.clone();
    told("a job is lost", 0, &|history| history.entries.retain(|entry| entry.job != job));
    told("a job that failed is lost", 0, &|history| {
        let at_of: Vec<u64> = history.entries.iter().filter(|entry| entry.job == job).map(|entry| entry.at).collect();
        let of_job = history.held.iter_mut().filter(|held| at_of.contains(&held.at));
        of_job.for_each(|held| (held.end, held.acked_us) = (End::Failed, None));
    });
    told("a job left twice", 1, &|history| {
        let again = Entry { at: u64::MAX, ..history.entries[of(0, 20)].clone() };
        history.entries.push(again);
    });
    told("a rejected job left", 2, &|history| {
        let push = history.pushes.iter_mut().find(|push| push.job == job).expect("pushed");
        push.answer = Answer::Rejected;
    });
    told("out of order", 3, &|history| {
        let (first, last) = (of(1, 0), of(1, 20));
        let job = history.entries[first].job.clone();
        history.entries[first].job = std::mem::replace(&mut history.entries[last].job, job);
    });
    for (what, buckets) in [("too fast for a bucket", &[0][..]), ("too fast for a budget", &[2, 3])] {
        told(what, 4, &|history| {
            // Where the server answered best: what leaves while it stands still may have been decided long before. A busy machine may have no
            // moment without a standstill, so as many come at once as take longer than the shortest one.
            let slack_us = |entry: &Entry| entry.left_us - decided_us(history, entry);
            let of_bucket: Vec<usize> =
                (0..history.entries.len()).filter(|n| history.entries[*n].bucket == buckets[0]).collect();
            let candidates = of_bucket[..of_bucket.len().saturating_sub(20)].iter().copied();
            let from = candidates
                .filter(|n| is_good(&history.entries[*n]))
                .min_by_key(|n| slack_us(&history.entries[*n]))
                .expect("jobs that left once");
            let at_us = history.entries[from].left_us;
            let next = history.entries.iter_mut().skip(from).filter(|entry| buckets.contains(&entry.bucket)).take(40);
            next.for_each(|entry| (entry.left_us, entry.early_us) = (at_us, at_us));
        });
    }
    told("a slot too many", 5, &|history| {
        let ids: Vec<u64> = (10..14).map(|n| history.entries[of(4, n)].at).collect();
        let at_us = history.entries[of(4, 10)].left_us;
        for entry in history.entries.iter_mut().filter(|entry| ids.contains(&entry.at)) {
            (entry.left_us, entry.early_us) = (at_us, at_us);
        }
        let of_them = history.held.iter_mut().filter(|held| ids.contains(&held.at));
        of_them.for_each(|held| held.given_us = Some(at_us + 1_000 * MS));
    });
}

#[test]
fn jobs_that_lay_ready_while_workers_were_away_reach_their_hands_too_fast() {
    // Ten of each bucket, 20 ms apart, are given out together: of 50 a second two and a window and a millisecond's make 2 + 13 + 1.
    let together = |history: &mut History, window_us: u64| {
        (history.nodes[0].count, history.nodes[0].catch_up_us) = (50, 20 * MS);
        history.ready_window_us = window_us;
        history.held.iter_mut().for_each(|held| held.taken_us = (2_300 * MS, 2_301 * MS));
    };
    assert_eq!(objections(|history| together(history, 250 * MS)), [0; 6]);
    assert_eq!(objections(|history| together(history, 100 * MS))[4], 1, "2 + 6 + 1, and the tenth is one too many");
    let while_blocked = |history: &mut History| {
        together(history, 100 * MS);
        history.held.iter_mut().for_each(|held| held.taken_us.0 = 1_000 * MS);
    };
    assert_eq!(objections(while_blocked), [0; 6], "a worker that waits is given each when it leaves");
    let again = |history: &mut History| {
        together(history, 250 * MS);
        history.held.extend(history.held.clone().into_iter().map(|held| Held { acked_us: None, ..held }));
    };
    assert_eq!(objections(again)[4], 0, "what is given out again was given out before");
}
