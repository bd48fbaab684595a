//! What the reference models found wrong, each with the shortest sequence that shows it.

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

/// Two rates, of which the first is lowered while a dear job is in flight; then that job turns out to have cost one unit less.
fn adjusted_after_a_slower_rate(toml: impl Fn(&str) -> String) -> i64 {
    let mut case = Case::with(&toml("10/s"));
    case.settle_at(T0);
    case.submit_at(T0, "b", "dear", &["COST", "50"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0).id;
    case.configure_at(&T0.to_string(), &toml("1/s"));
    case.settle_at(T0);
    assert_eq!(case.fcall::<i64>("drip__adjust", &["ready"], &[T0.to_string().as_str(), &entry, "-1"]), 1);
    case.push_at(T0, "b", &["next"])[4]
}

#[test]
fn what_a_dear_job_really_cost_is_reckoned_at_the_rate_of_now_beside_a_job_rate() {
    let bucket = |rate: &str| format!("[defaults]\nrate = '{rate}'\njob_rate = '100/s'\n");
    assert_eq!(adjusted_after_a_slower_rate(bucket), 49_000);
    let budget = |rate: &str| {
        format!(
            "[defaults]\nrate = '1000/s'\nwithin = 'up'\n[[budget]]\nmatch = 'up'\nrate = '{rate}'\njob_rate = '100/s'\ncatch_up = '0s'\n"
        )
    };
    assert_eq!(adjusted_after_a_slower_rate(budget), 49_000);
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
    assert_eq!(case.cancel_at(T0, "b", "queued"), 1, "it will not leave any more");
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
fn what_a_job_really_cost_brings_back_no_due_from_before_the_clock_was_set_back() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\njob_rate = '1/s'\n");
    case.settle_at(T0 + 3_600 * S);
    case.push_at(T0 + 3_600 * S, "b", &["1", "2"]);
    case.settle_at(T0 + 3_600 * S);
    case.settle_at(T0);
    assert_eq!(case.due("b"), Some(T0 + S));
    let entry = case.take("ready", 1).remove(0);
    let args = [T0.to_string(), entry.id, "+1".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__adjust", &["ready"], &args), 1);
    assert_eq!(case.due("b"), Some(T0 + S + MS), "one unit later than it was");
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
