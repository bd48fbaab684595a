//! A worker that is given an entry again and again, because it reads its history at its start or claims it: each delivery is a try, as the count
//! of `XPENDING` tells, though each begins a lease.

use redis::Value;

use super::jobs::{reap_at, server_now, taken_of};
use crate::rig::{Case, Entry, S, T0};

const TOML: &str = "[defaults]\nrate = '10/s'\nlease = '30s'\nattempts = 5\nbackoff = { initial = '1s', max = '1h' }\n";

/// A worker starts, and reads what it held when it died.
fn restart(case: &mut Case) {
    let key = case.key("ready");
    let _: Value = case.cmd(&["XREADGROUP", "GROUP", "workers", "w", "STREAMS", &key, "0"]);
}

fn one(attempts: &str) -> (Case, Entry) {
    let (mut case, mut taken) = taken_of(Case::with(&TOML.replace("= 5", &format!("= {attempts}"))), &["poison"]);
    let key = case.key("ready");
    // By the name under which the history is read.
    let _: Value = case.cmd(&["XCLAIM", &key, "workers", "w", "0", &taken[0].id, "JUSTID"]);
    (case, taken.remove(0))
}

fn dead(case: &mut Case) -> Vec<(String, u64, String)> {
    let dead = case.stream("dead").into_iter();
    dead.map(|entry| (entry.text("job"), entry.number("attempt"), entry.text("reason"))).collect()
}

#[test]
fn a_job_whose_worker_dies_of_it_and_reads_its_history_at_each_start_is_dead_after_its_attempts() {
    for (attempts, tries) in [("1", 1), ("5", 5)] {
        let (mut case, _) = one(attempts);
        for n in 1..tries {
            restart(&mut case);
            assert_eq!(reap_at(&mut case, "", true).0, 0, "try {}", n + 1);
        }
        restart(&mut case);
        assert_eq!(reap_at(&mut case, "", false).0, 0, "not in the grace after a start");
        assert_eq!(reap_at(&mut case, "", true).0, 1);
        assert_eq!(dead(&mut case), [("poison".to_owned(), tries + 1, "delivered too often".to_owned())]);
        assert!(case.stream("ready").is_empty());
    }
}

#[test]
fn a_lease_that_ends_after_some_deliveries_counts_them_as_tries() {
    let (mut case, taken) = one("5");
    (0..2).for_each(|_| restart(&mut case));
    let now = server_now(&mut case);
    assert_eq!(reap_at(&mut case, &(now + 31 * S).to_string(), true).0, 1);
    case.settle_at(now + 31 * S);
    assert_eq!(case.settle_at(now + 35 * S - 1_000).dispatched, 0, "the back-off of the third try");
    assert_eq!(case.settle_at(now + 36 * S).dispatched, 1);
    let again = case.take("ready", 1).remove(0);
    assert_eq!((again.number("attempt"), again.text("id")), (4, taken.id));
    // Two tries are left.
    assert_eq!(case.fcall::<i64>("drip_fail", &["ready"], &[&again.id]), 1);
}

#[test]
fn a_worker_that_says_that_its_job_failed_says_so_of_the_try_that_it_made() {
    let (mut case, taken) = one("5");
    (0..3).for_each(|_| restart(&mut case));
    let now = (T0 + 100 * S).to_string();
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &[now.as_str(), &taken.id]), 1, "the fourth");
    case.settle_at(T0 + 100 * S);
    case.settle_at(T0 + 200 * S);
    let again = case.take("ready", 1).remove(0);
    assert_eq!(again.number("attempt"), 5);
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &[now.as_str(), &again.id]), 2);
    assert_eq!(dead(&mut case), [("poison".to_owned(), 5, "failed".to_owned())]);
}

#[test]
fn a_renewed_lease_is_no_try_with_justid_and_one_without() {
    let (mut case, taken) = one("5");
    let key = case.key("ready");
    let claim = |case: &mut Case, more: &[&str]| {
        let words = ["XCLAIM", &key, "workers", "w", "0", &taken.id];
        let _: Value = case.cmd(&[&words[..], more].concat());
    };
    (0..50).for_each(|_| claim(&mut case, &["JUSTID"]));
    assert_eq!(reap_at(&mut case, "", true).0, 0);
    (0..4).for_each(|_| claim(&mut case, &[]));
    assert_eq!(reap_at(&mut case, "", true).0, 0, "five");
    claim(&mut case, &[]);
    assert_eq!(reap_at(&mut case, "", true).0, 1);
    assert_eq!(dead(&mut case).len(), 1);
}

#[test]
fn a_job_that_is_acknowledged_after_its_worker_read_it_again_is_done() {
    let (mut case, taken) = one("5");
    (0..3).for_each(|_| restart(&mut case));
    reap_at(&mut case, "", true);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&taken.id]), 1);
    assert!(case.stream("ready").is_empty() && case.stream("dead").is_empty());
}
