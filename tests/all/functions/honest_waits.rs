//! `retry_after_ms` is at least a second where only an operator, a daemon or a worker can free a place. A producer that obeys it must not
//! ask in a loop.

use crate::rig::{Case, MS, S, T0};

use super::flow::{at, set_at, unset_at};

/// A bucket of 10/s with one place, and whatever else.
fn small(more: &str) -> Case {
    Case::with(&format!("[defaults]\nrate = '10/s'\ncapacity = 1\n{more}"))
}

/// What all that are told to try again are told of a full bucket, in ms.
#[track_caller]
fn waits(case: &mut Case, now: u64, bucket: &str) -> i64 {
    let pushed = case.push_at(now, bucket, &["more"]);
    let submitted = case.submit_at(now, bucket, "more", &["TTL", "60000"]);
    assert_eq!((pushed[0], submitted.verdict.as_str()), (0, "full"), "{bucket}");
    let peeked = case.peek_at(now, bucket);
    assert_eq!((submitted.five[3], peeked[3]), (pushed[3], pushed[3]), "{bucket}");
    pushed[3]
}

#[test]
fn a_paused_or_closed_bucket_has_room_no_sooner_than_in_a_second() {
    let mut case = small("");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(waits(&mut case, T0, "a"), 1, "a daemon lets it out now");
    set_at(&mut case, T0, "a", "pause", "{}");
    assert_eq!(waits(&mut case, T0, "a"), 1_000);
    assert_eq!(waits(&mut case, at(100, 0), "a"), 1_000);
    unset_at(&mut case, at(100, 0), "a", "pause");
    assert_eq!(waits(&mut case, at(100, 0), "a"), 1);
    set_at(&mut case, at(100, 0), "a", "close", "{}");
    assert_eq!(waits(&mut case, at(100, 0), "a"), 1_000);
    case.settle_at(at(100, 0));
    set_at(&mut case, at(100, 0), "b", "close", "{}");
    assert_eq!(waits(&mut case, at(100, 0), "b"), 1_000, "empty, and closed");
    assert_eq!(case.submit_at(at(100, 0), "b", "later", &["DELAY", "5"]).five[3], 1_000);
}

#[test]
fn a_bucket_of_an_hour_says_the_hour() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 1\n");
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    case.push_at(T0, "a", &["2"]);
    assert_eq!(waits(&mut case, T0, "a"), 3_600_000);
    set_at(&mut case, T0, "a", "pause", "{}");
    assert_eq!(waits(&mut case, T0, "a"), 3_600_000);
}

#[test]
fn a_held_or_blocked_bucket_waits_for_a_worker() {
    for (limit, more) in [("held", "[limits]\nmax_ready = 1\n"), ("blocked", "concurrency = 1\n")] {
        let mut case = small(more);
        case.push_at(T0, "a", &["1"]);
        case.settle_at(T0);
        case.push_at(T0, "a", &["2"]);
        // No worker has finished the first job, so the due alone says little of a blocked one.
        assert_eq!(waits(&mut case, T0, "a"), if limit == "held" { 100 } else { 1_000 }, "{limit}");
        case.settle_at(T0 + 100 * MS);
        assert_eq!(waits(&mut case, T0 + 100 * MS, "a"), 1_000, "{limit}");
    }
}

#[test]
fn where_no_daemon_lets_jobs_out_a_place_is_free_no_sooner_than_in_a_second() {
    let mut case = small("");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(waits(&mut case, T0 + S, "a"), 1, "a daemon may be late");
    assert_eq!(waits(&mut case, T0 + S + 1, "a"), 1_000, "but not by so much");
    case.lpush("b", &["1"]);
    assert_eq!(waits(&mut case, T0, "b"), 1_000, "nobody has looked at it");
    let budget = "within = 'all'\n[[budget]]\nmatch = 'all'\nrate = '1/s'\n";
    let mut case = small(budget);
    case.push_at(T0, "a", &["1"]);
    assert_eq!(waits(&mut case, at(2, 0), "a"), 1_000, "below a budget too");
}

#[test]
fn a_bucket_that_waits_for_its_share_is_told_when_the_budget_lets_a_job_out() {
    let mut case = small("within = 'all'\n[[budget]]\nmatch = 'all'\nrate = '1/s'\n");
    for bucket in ["a", "b", "c"] {
        case.push_at(T0, bucket, &["1"]);
    }
    for second in 0..2 {
        case.settle_at(at(second, 0));
    }
    let last = ["a", "b", "c"].into_iter().find(|bucket| case.peek_at(at(1, 400), bucket)[1] == 1).expect("one waits");
    assert_eq!(waits(&mut case, at(1, 400), last), 580, "but for its catch-up");
    set_at(&mut case, at(1, 400), "{all}", "pause", "{}");
    assert_eq!(waits(&mut case, at(1, 500), last), 1_000, "a paused budget");
}

#[test]
fn a_job_that_would_be_late_where_nothing_moves_is_told_a_second_too() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    case.push_at(T0, "a", &["1"; 11]);
    let late = |case: &mut Case| {
        let submitted = case.submit_at(T0, "a", "x", &["TTL", "5"]);
        (submitted.verdict, submitted.five[3])
    };
    assert_eq!(late(&mut case), ("late".to_owned(), 6));
    set_at(&mut case, T0, "a", "pause", "{}");
    assert_eq!(late(&mut case), ("late".to_owned(), 1_000));
}
