//! Adaptive rates: a slow-down that leaves a part of the rate behind, which comes back while jobs wait.

use super::flow::{ack_at, at, audit, fail_at, held_ms, jobs, left, run, slow_downs, text};
use crate::rig::{Case, MS, S, T0};

#[test]
fn an_adaptive_rate_goes_down_with_each_incident_and_comes_back_while_jobs_wait() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 100000\nslow = { adaptive = true }\n");
    for _ in 0..6 {
        case.push_at(T0, "a", &jobs(1_000));
    }
    let mut now = T0;
    for (n, percent) in [(1, 90), (2, 81), (3, 73)] {
        case.settle_at(now);
        let entry = case.take("ready", 1).remove(0);
        fail_at(&mut case, now, &entry, &["THROTTLED"]);
        let held = held_ms(&mut case, now, "a");
        assert!((1_000..=1_100).contains(&held), "it pauses for `initial` only: {held}");
        assert!(
            text(&mut case, now).ends_with(&format!(", at {percent} % of its rate")),
            "{n}: {}",
            text(&mut case, now)
        );
        now = case.due("a").expect("it waits");
    }
    let before = case.stream("ready").len();
    run(&mut case, now, now + 9 * S);
    let ready = case.stream("ready").split_off(before);
    let gap = ready[1].number("at_us") - ready[0].number("at_us");
    assert_eq!(gap, 137_175, "100 ms / 0.729, rounded up");
    assert!(ready.windows(2).all(|pair| pair[1].number("at_us") - pair[0].number("at_us") == gap), "one an interval");
    run(&mut case, now + 9 * S, now + 15 * S);
    assert!(text(&mut case, now + 15 * S).ends_with(", at 74 % of its rate"), "{}", text(&mut case, now + 15 * S));
    run(&mut case, now + 15 * S, now + 500 * S);
    assert_eq!(text(&mut case, now + 500 * S), "", "a hundredth each 10 s");
}

#[test]
fn an_adaptive_rate_comes_back_only_while_jobs_wait_has_a_floor_and_is_forgotten_after_a_day() {
    let mut case =
        Case::with("[defaults]\nrate = '10/s'\ncapacity = 100000\nslow = { adaptive = true, initial = '1ms' }\n");
    let mut now = T0;
    for _ in 0..60 {
        case.push_at(now, "a", &["x"]);
        case.settle_at(now);
        let entry = case.take("ready", 1).remove(0);
        fail_at(&mut case, now, &entry, &["THROTTLED"]);
        now += 10 * S;
        case.settle_at(now);
        let again = case.take("ready", 9);
        ack_at(&mut case, now, &again);
        now += 10 * S;
    }
    assert!(text(&mut case, now).contains("at 2 % of its rate"), "1/64 is the least: {}", text(&mut case, now));
    for _ in 0..20 {
        case.push_at(now, "a", &["x"]);
        case.settle_at(now);
        now += 100 * S;
    }
    assert!(text(&mut case, now).contains("at 2 % of its rate"), "no job had to wait: {}", text(&mut case, now));
    case.push_at(now, "a", &["1", "2"]);
    run(&mut case, now, now + 7 * S);
    let out = left(&mut case, "a");
    assert_eq!(out[out.len() - 1] - out[out.len() - 2], 6_400 * MS, "64 intervals");
    case.settle_at(now + 86_400 * S);
    audit(&mut case);
    assert!(!case.keys().contains(&"slow".to_owned()), "a day after the last incident");
}

#[test]
fn a_budget_is_adaptive_too_and_one_without_a_rate_only_pauses() {
    let toml = "[[budget]]\nmatch = 'r'\nrate = '10/s'\nslow = { adaptive = true }\n[[budget]]\nmatch = 'n'\nquota = '100000/h'\n\
                slow = { adaptive = true }\n[[bucket]]\nmatch = 'r*'\nrate = '100/s'\nwithin = 'r'\n[[bucket]]\nmatch = 'n*'\n\
                rate = '10/s'\nwithin = 'n'\n[defaults]\ncapacity = 100000\n";
    let mut case = Case::with(toml);
    for bucket in ["r1", "r2", "n1"] {
        for _ in 0..3 {
            case.push_at(T0, bucket, &jobs(1_000));
        }
    }
    run(&mut case, T0, T0);
    for entry in case.take("ready", 9) {
        let bucket = entry.text("bucket");
        fail_at(&mut case, T0, &entry, &["THROTTLED", "IN", &bucket[..1]]);
    }
    let mut told: Vec<String> =
        slow_downs(&mut case, T0).iter().map(|one| format!("{} {}", one.0, one.1["text"])).collect();
    told.sort();
    assert_eq!(told, ["{n} \"1 incident\"", "{r} \"1 incident, at 90 % of its rate\""]);
    run(&mut case, T0, at(9, 0));
    let at_r = left(&mut case, "r");
    assert!(at_r.windows(2).skip(1).all(|pair| pair[1] - pair[0] == 111_112), "{at_r:?}");
    let at_n = left(&mut case, "n");
    assert!(at_n.windows(2).all(|pair| pair[1] - pair[0] == 100 * MS), "{at_n:?}");
    run(&mut case, at(9, 0), at(150, 0));
    assert_eq!(slow_downs(&mut case, at(150, 0)), [], "the rate is back");
}

#[test]
fn the_rate_comes_back_while_nothing_but_retries_or_delayed_jobs_waits() {
    for is_delayed in [true, false] {
        let mut case = Case::with("[defaults]\nrate = '1/s'\nslow = { adaptive = true, initial = '1ms' }\n");
        case.push_at(T0, "a", &["x"]);
        run(&mut case, T0, T0);
        let first = case.take("ready", 1).remove(0);
        if is_delayed {
            for _ in 0..30 {
                case.submit_at(T0, "a", "x", &["DELAY", "1"]);
            }
        } else {
            case.push_at(T0, "a", &jobs(30));
            run(&mut case, T0, at(30, 0));
            for entry in case.take("ready", 30) {
                fail_at(&mut case, at(30, 0), &entry, &["RETRY_IN", "0"]);
            }
        }
        let began = if is_delayed { T0 } else { at(30, 0) };
        fail_at(&mut case, began, &first, &["THROTTLED"]);
        assert!(text(&mut case, began).ends_with(", at 90 % of its rate"), "{}", text(&mut case, began));
        run(&mut case, began, began + 25 * S);
        let told = text(&mut case, began + 25 * S);
        assert!(told.ends_with(", at 92 % of its rate"), "a hundredth each 10 s, delayed {is_delayed}: {told}");
    }
}

#[test]
fn the_rate_does_not_come_back_after_what_waited_was_thrown_away() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nslow = { adaptive = true, initial = '1ms' }\n");
    case.push_at(T0, "a", &jobs(3));
    run(&mut case, T0, T0);
    let first = case.take("ready", 1).remove(0);
    fail_at(&mut case, T0, &first, &["THROTTLED"]);
    run(&mut case, T0, at(2, 0)); // the retry leaves, and two jobs wait
    let _: Vec<i64> = case.fcall("drip__purge", &["queue:a"], &[at(2, 0).to_string(), "1".into()]);
    run(&mut case, at(2, 0), at(1_000, 0));
    case.push_at(at(1_000, 0), "a", &["x"]);
    run(&mut case, at(1_000, 0), at(1_000, 0));
    assert_eq!(left(&mut case, "a").last(), Some(&(1_000 * S)));
    let told = text(&mut case, at(1_000, 0));
    assert!(told.ends_with("at 90 % of its rate"), "nothing waited: {told}");
}

#[test]
fn a_due_that_was_paid_at_the_whole_rate_is_re_anchored_from_when_its_job_left() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0, "a", &jobs(2));
    run(&mut case, T0, T0);
    let first = case.take("ready", 1).remove(0);
    assert_eq!(
        case.configure_at(&T0.to_string(), "[defaults]\nrate = '100/s'\nslow = { adaptive = true, initial = '1ms' }\n"),
        1
    );
    fail_at(&mut case, T0, &first, &["THROTTLED"]);
    run(&mut case, T0, at(1, 0));
    assert_eq!(left(&mut case, "a"), [11_112, 2 * 11_112], "100/s, less a tenth");
}

#[test]
fn one_job_pays_at_most_366_days_at_an_adaptive_rate_too() {
    let mut case = Case::with("[defaults]\nrate = '1/366d'\nslow = { adaptive = true, initial = '1ms' }\n");
    case.push_at(T0, "a", &["x"]);
    run(&mut case, T0, T0);
    let first = case.take("ready", 1).remove(0);
    let later = at(366 * 86_400, 0);
    fail_at(&mut case, later, &first, &["THROTTLED"]);
    run(&mut case, later, later + S);
    let left_at = T0 + *left(&mut case, "a").last().expect("it left again");
    assert!(left_at > later, "the retry");
    assert_eq!(case.due("a"), Some(left_at + 366 * 86_400 * S));
}

/// What is left of the rate of a budget, in percent, so long after an incident, where jobs of this cost wait all the time and each leaves so
/// much too late.
fn after(options: &str, cost: &str, late: u64, seconds: u64) -> String {
    let toml = format!(
        "[[budget]]\nmatch = 'p'\nrate = '100/s'\n{options}slow = {{ adaptive = true, initial = '1ms' }}\n[[bucket]]\nmatch = 'a*'\n\
         rate = '100000/s'\nwithin = 'p'\n[defaults]\ncapacity = 100000\n"
    );
    let mut case = Case::with(&toml);
    for n in 0..2 {
        for _ in 0..2_000 / cost.parse::<u64>().expect("a number") {
            case.submit_at(T0, &format!("a{n}"), "x", &["COST", cost]);
        }
    }
    let mut now = T0;
    case.settle_at(now);
    let first = case.take("ready", 1).remove(0);
    fail_at(&mut case, now, &first, &["THROTTLED", "IN", "p"]);
    while now < at(seconds, 0) {
        now += case.settle_at(now).wait_us as u64 + late;
    }
    text(&mut case, now).rsplit(", ").next().expect("a part").to_owned()
}

#[test]
fn the_rate_of_a_budget_comes_back_at_strict_spacing_and_where_jobs_are_dear() {
    assert_eq!(after("", "1", 0, 35), "at 93 % of its rate");
    assert_eq!(after("catch_up = '0s'\n", "1", 1, 35), "at 93 % of its rate", "each leaves a little late");
    assert_eq!(after("", "100", 0, 35), "at 93 % of its rate");
    assert_eq!(after("job_rate = '2/s'\n", "1", 0, 35), "at 93 % of its rate");
}

#[test]
fn who_clears_what_slows_a_budget_down_need_not_wait_out_the_interval_that_was_left() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '1/s'\nslow = { adaptive = true, initial = '1ms' }\n[[bucket]]\nmatch = 'a'\n\
         rate = '1000/s'\nwithin = 'p'\n",
    );
    let mut now = T0;
    for _ in 0..30 {
        case.push_at(now, "a", &["x"]);
        run(&mut case, now, now + 100 * S);
        now += 100 * S;
        for entry in case.take("ready", 9) {
            fail_at(&mut case, now, &entry, &["THROTTLED", "IN", "p"]);
        }
    }
    now += 100 * S;
    case.settle_at(now);
    case.push_at(now, "a", &["x"]);
    case.settle_at(now);
    let begun = left(&mut case, "a").len();
    super::flow::slow_at(&mut case, now, "a", &["CLEAR", "IN", "p"]);
    run(&mut case, now, now + S);
    assert_eq!(left(&mut case, "a").len(), begun + 1, "one a second, not one in twenty");
}
