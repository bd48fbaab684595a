//! What the reference models found wrong, each with the shortest sequence that shows it.

use super::flow::{at, audit, left, run, set_at, slow_at, unset_at};
use crate::rig::{Case, MS, S, T0};

#[test]
fn a_dear_job_that_is_paid_at_a_new_rate_is_paid_in_full() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "dear", &["COST", "3"]);
    case.settle_at(T0);
    // By the old rate it has paid after 300 ms, by the new one after 30 s.
    case.configure_at(&T0.to_string(), "[defaults]\nrate = '1/10s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    assert_eq!(case.due("b"), Some(T0 + 30 * S));
    case.settle_at(T0 + S);
    assert_eq!(case.push_at(T0 + S, "b", &["next"])[4], 29_000);
    assert_eq!(case.settle_at(T0 + 29 * S).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 30 * S).dispatched, 1);
}

#[test]
fn a_budget_that_a_dear_job_left_is_paid_in_full_at_a_new_rate() {
    let toml = |rate: &str| {
        format!(
            "[defaults]\nrate = '1000/s'\nwithin = 'up'\n[[budget]]\nmatch = 'up'\nrate = '{rate}'\ncatch_up = '0s'\n"
        )
    };
    let mut case = Case::with(&toml("10/s"));
    case.settle_at(T0);
    case.submit_at(T0, "b", "dear", &["COST", "3"]);
    case.settle_at(T0);
    case.configure_at(&T0.to_string(), &toml("1/10s"));
    case.settle_at(T0);
    case.settle_at(T0 + S);
    case.push_at(T0 + S, "b", &["next"]);
    assert_eq!(case.settle_at(T0 + 29 * S).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 30 * S).dispatched, 1);
}

#[test]
fn a_deadline_is_judged_by_the_same_time_that_the_verdict_tells() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 1\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3"]);
    case.settle_at(T0);
    case.settle_at(T0 + 5 * S); // its route has no room: it is held, and due since four seconds
    assert_eq!(case.submit_at(T0 + 5 * S, "b", "4", &[]).five[4], 2_000);
    let late = case.submit_at(T0 + 5 * S, "b", "5", &["TTL", "2000"]);
    assert_eq!((late.verdict.as_str(), late.five), ("late", [0, 3, 1_000, 1_000, -1]));
    assert_eq!(case.submit_at(T0 + 5 * S, "b", "5", &["TTL", "3000"]).verdict, "queued");
}

#[test]
fn a_purge_takes_what_was_cancelled_with_it() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    for (id, delay) in [("queued", "0"), ("delayed", "900")] {
        case.submit_at(T0, "b", id, &["ID", id, "DELAY", delay]);
        assert_eq!(case.cancel_at(T0, "b", id), 1);
    }
    let args = [T0.to_string(), "1".into(), String::new(), String::new(), String::new(), "1".into()];
    assert_eq!(case.fcall::<Vec<i64>>("drip__purge", &["queue:b"], &args), [1, 0, 0, 0, 1, 0]);
    assert_eq!(case.cancel_at(T0, "b", "queued"), 0, "it is gone");
    assert!(!case.keys().contains(&"jobs:b".to_owned()), "{:?}", case.keys());
}

#[test]
fn jobs_above_a_lowered_capacity_stay_known() {
    let toml = |capacity: u64| {
        format!("[defaults]\nrate = '1/s'\ncapacity = {capacity}\ndedup = '1s'\n[limits]\nmax_ready = 1\n")
    };
    let mut case = Case::with(&toml(20));
    case.settle_at(T0);
    for n in 0..20 {
        case.submit_at(T0, "b", "x", &["ID", &n.to_string()]);
    }
    case.settle_at(T0); // the first one leaves, and the route is full from now on
    let now = T0 + 60 * S;
    case.configure_at(&now.to_string(), &toml(10));
    case.settle_at(now);
    for n in 0..10 {
        let told = case.submit_at(now + n * MS, "b", "x", &["DELAY", "1000"]);
        assert_eq!(told.verdict, "delayed");
    }
    for n in 1..20 {
        assert_eq!(case.find_at(now + S, "b", &n.to_string()).0, "queued", "{n}");
    }
}

#[test]
fn a_purge_of_more_jobs_than_it_looks_at_leaves_no_line_behind() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 10000\n");
    case.settle_at(T0);
    for n in 0..5_000 {
        case.submit_at(T0, "b", "x", &["ID", &n.to_string()]);
    }
    let args = [T0.to_string(), "1".into(), String::new(), String::new(), String::new(), "1".into()];
    assert_eq!(case.fcall::<Vec<i64>>("drip__purge", &["queue:b"], &args)[0], 5_000);
    assert!(!case.keys().contains(&"jobs:b".to_owned()), "{:?}", case.keys());
}

#[test]
fn a_delayed_job_is_next_after_jobs_of_the_queue_that_left_while_none_could() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\nwithin = 'up'\n[[budget]]\nmatch = 'up'\nrate = '1/s'\ncatch_up = '0s'\n",
    );
    case.settle_at(T0);
    case.push_at(T0, "a", &["first"]);
    case.settle_at(T0);
    case.submit_at(T0, "b", "delayed", &["DELAY", "40"]);
    case.submit_at(T0, "b", "later", &["DELAY", "5000"]);
    case.settle_at(T0 + 40 * MS); // it waits for its share
    case.settle_at(T0 + S);
    case.push_at(T0 + S, "b", &["1", "2", "3", "4"]);
    for second in 2..7 {
        case.settle_at(T0 + second * S);
    }
    let left: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("job")).collect();
    assert_eq!(left, ["first", "delayed", "1", "2", "3", "later", "4"]);
}

#[test]
fn the_wait_for_room_among_delayed_jobs_counts_the_budgets_above() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 1\nwithin = 'up'\n[[budget]]\nmatch = 'up'\nrate = '1/10s'\ncatch_up = '0s'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    case.push_at(T0, "a", &["first"]);
    case.settle_at(T0);
    let told = case.submit_at(T0, "b", "1", &["DELAY", "40"]);
    assert_eq!((told.verdict.as_str(), told.five), ("delayed", [1, 1, 1, -1, 10_000]));
    let told = case.submit_at(T0, "b", "2", &["DELAY", "40"]);
    assert_eq!((told.verdict.as_str(), told.five), ("full", [0, 1, 1, 10_000, -1]));
}

#[test]
fn a_delayed_job_that_a_closed_bucket_refuses_is_told_when_to_come_again() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    set_at(&mut case, T0, "a", "close", "{}");
    // "Closed: capacity 0, and times as if it ended now": nothing waits there, so there is room once somebody opens it.
    let told = case.submit_at(T0, "a", "later", &["DELAY", "5000"]);
    assert_eq!((told.five, told.verdict.as_str()), ([0, 0, 0, 1_000, -1], "full"));
    unset_at(&mut case, T0, "a", "close");
    case.push_at(T0, "a", &["now"]);
    case.settle_at(T0);
    set_at(&mut case, T0, "a", "close", "{}");
    let told = case.submit_at(T0, "a", "later", &["DELAY", "5000"]);
    assert_eq!(told.five, [0, 0, 0, 1_000, -1], "the bucket is not due before");
}

#[test]
fn taking_away_a_job_rate_that_never_was_moves_no_due() {
    let mut case = Case::with("[defaults]\nrate = '7/s'\n");
    for n in 0..20 {
        // A seventh of a second is no whole number of microseconds.
        let (bucket, now) = (format!("a{n}"), T0 + 1 + n * 47 * MS);
        case.push_at(now, &bucket, &["1", "2"]);
        set_at(&mut case, now, &bucket, "job_rate", r#"{"job_count":0,"job_period_us":0}"#);
        unset_at(&mut case, now, &bucket, "job_rate");
        assert_eq!(case.due(&bucket), Some(now));
    }
}

#[test]
fn a_budget_that_counts_jobs_alone_still_does_so_when_something_of_it_is_set() {
    let toml = "[[budget]]\nmatch = 'p'\njob_rate = '1/s'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'a'\nrate = '1000/s'\nwithin = 'p'\n";
    let mut case = Case::with(toml);
    set_at(&mut case, T0, "{p}", "weight", r#"{"weight":2}"#);
    case.submit_at(T0, "a", "dear", &["COST", "30"]);
    case.push_at(T0, "a", &["next"]);
    run(&mut case, T0, T0 + 5 * S);
    // By its own bucket the next one may go after 30 ms, by the budget after a second: "`job_rate` paces jobs whatever they cost".
    assert_eq!(left(&mut case, "a"), [0, S]);
}

#[test]
fn a_correction_does_not_move_the_end_of_a_window_that_its_bucket_waits_for() {
    // T0 is 20 s before the end of a minute.
    let mut case = Case::with("[defaults]\nrate = '1/s'\nquota = '2/m'\ncatch_up = '0s'\n");
    case.push_at(T0, "a", &["1", "2", "3", "4"]);
    run(&mut case, T0, T0 + 2 * S);
    let entry = case.take("ready", 1).remove(0).id;
    let args = [(T0 + 2 * S).to_string(), entry, "+5".into()];
    assert_eq!(case.fcall::<i64>("drip__adjust", &["ready"], &args), 1);
    run(&mut case, T0 + 2 * S, T0 + 30 * S);
    assert_eq!(left(&mut case, "a"), [0, S, 20 * S, 24 * S], "then half of the 5 s that it owes is charged");
}

/// How many jobs leave together just after a window of their budget, which nothing waited for.
fn leave_after_a_window(looks: &[u64]) -> i64 {
    let toml = "[[budget]]\nmatch = 'p'\nrate = '10/s'\nquota = '15/m'\ncatch_up = '1s'\n\
                [[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'p'\n";
    let mut case = Case::with(toml);
    // T0 is 20 s before the end of a minute.
    let ends = T0 + 20 * S;
    // Eleven leave at once and the last of all 500 ms before that end: the budget is due 400 ms before it, and not late.
    for n in 0..15 {
        case.push_at(ends - 900 * MS, &format!("b{n}"), &["x"]);
    }
    run(&mut case, ends - 900 * MS, ends - 500 * MS);
    assert_eq!(left(&mut case, "b").len(), 15);
    for look in looks {
        case.settle_at(ends - 500 * MS + look);
    }
    for n in 0..10 {
        case.push_at(ends + 100 * MS, &format!("a{n}"), &["x"]);
    }
    case.settle_at(ends + 100 * MS);
    left(&mut case, "a").len() as i64
}

#[test]
fn a_budget_that_nothing_waited_for_goes_on_after_a_window_as_after_any_idle_time() {
    // "Its lateness is now - due, at most its catch-up": 500 ms of 10/s, and one more. Nothing waited for the window's end.
    assert_eq!(leave_after_a_window(&[]), 6);
    let looks: Vec<u64> = (0..30).map(|n| n * 20 * MS).collect();
    assert_eq!(leave_after_a_window(&looks), 6, "whatever a server remembers");
}

#[test]
fn a_slow_down_shorter_than_an_interval_lasts_no_longer_where_the_clock_steps_back() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    slow_at(&mut case, T0, "a", &["PAUSE", "1800000"]);
    case.push_at(T0, "a", &["1"]);
    assert_eq!(case.due("a"), Some(T0 + 1_800 * S));
    let now = T0 - 1_200 * S;
    case.settle_at(now);
    assert_eq!(case.due("a"), Some(now + 1_800 * S), "its own length from now on");
}

#[test]
fn a_bucket_that_rested_for_long_enough_is_passed_by_where_the_clock_steps_back_and_something_of_a_slow_down_is_stored()
{
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    slow_at(&mut case, T0, "a", &["PAUSE", "100"]);
    for (ms, bucket) in [(950, "other"), (994, "a")] {
        case.push_at(at(0, ms), bucket, &["x"]);
        case.settle_at(at(0, ms));
    }
    // The other one is forgotten, and for a tenth of a second no other bucket is.
    case.settle_at(at(1, 50));
    case.settle_at(at(1, 99));
    case.push_at(at(1, 96), "third", &["x"]);
    case.settle_at(at(1, 96));
    assert_eq!(case.stream("ready").len(), 3);
    audit(&mut case);
}

#[test]
fn however_many_retries_before_it_are_cancelled_a_retry_leaves_ahead_of_the_queue() {
    for cancelled in [9, 10, 11, 20, 35] {
        let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
        case.settle_at(T0);
        for n in 0..=cancelled {
            let now = T0 + n * 2 * MS;
            case.submit_at(now, "b", &format!("job {n}"), &["ID", &n.to_string()]);
            case.settle_at(now);
            let entry = case.take("ready", 1).remove(0);
            let args = [now.to_string(), entry.id, "RETRY_IN".to_owned(), "1000".to_owned()];
            assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
        }
        for n in 0..cancelled {
            assert_eq!(case.cancel_at(T0 + S, "b", &n.to_string()), 1);
        }
        case.push_at(T0 + 2 * S, "b", &["queued", "and another"]);
        case.settle_at(T0 + 2 * S);
        case.settle_at(T0 + 3 * S);
        assert_eq!(case.jobs("ready"), [format!("job {cancelled}").as_str(), "queued", "and another"]);
        assert!(!case.keys().iter().any(|key| key == "retry:b"), "{:?}", case.keys());
    }
}

#[test]
fn a_slow_down_after_another_one_counts_from_the_end_of_that_though_nobody_looked_then() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"]);
    slow_at(&mut case, T0, "b", &["PAUSE", "400"]);
    let end = T0 + 400 * MS;
    slow_at(&mut case, end, "b", &["PAUSE", "400"]);
    set_at(&mut case, end, "b", "rate", r#"{"count":2,"period_us":1000000}"#);
    unset_at(&mut case, end, "b", "rate");
    assert_eq!(case.due("b"), Some(end + 500 * MS)); // due at the end of the first one, and half a second of the slower rate after that
}

/// A turn that began on the fast path and went on by the other one forgot what had left by then, and made up for the same lateness once more.
#[test]
fn a_bucket_that_a_slow_down_held_which_is_forgotten_by_now_makes_up_for_its_lateness_once() {
    for forgets_after in ["500ms", "600s"] {
        let slow = format!("slow = {{ initial = '100ms', max = '{forgets_after}' }}");
        let mut case = Case::with(&format!("[defaults]\nrate = '100/s'\n{slow}\n"));
        case.settle_at(T0);
        slow_at(&mut case, T0, "a", &["PAUSE", "1000"]);
        case.push_at(T0, "a", &["1"]);
        case.submit_at(T0, "a", "2", &["HEADER", "with", "options"]);
        case.push_at(T0, "a", &["3", "4", "5", "6"]);
        case.settle_at(T0 + 2 * S);
        assert_eq!(case.jobs("ready"), ["1", "2", "3"], "one, and two in 20 ms of lateness");
        audit(&mut case);
    }
}
