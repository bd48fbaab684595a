//! Told limits: the other side says how much more it lets through until its limit resets. What leaves then, which of several reports counts,
//! and what is shown of it.

use crate::rig::{Case, Entry, MS, S, T0};

use super::flow::{ack_at, at, audit, fail_at, held_ms, jobs, left, run};

/// `drip_told` of a bucket.
#[track_caller]
fn told_at(case: &mut Case, now: u64, bucket: &str, how: &[&str]) -> i64 {
    let args: Vec<String> = [now.to_string()].into_iter().chain(how.iter().map(|word| (*word).to_owned())).collect();
    let reply = case.fcall("drip__told", &[&format!("queue:{bucket}")], &args);
    audit(case);
    reply
}

/// Why a call is refused, in words.
#[track_caller]
fn refused(case: &mut Case, function: &str, key: &str, args: &[&str]) -> String {
    let why = case.try_fcall::<redis::Value>(function, &[key], args).expect_err("it is wrong");
    assert_eq!(why.code(), Some("BADARG"), "{why}");
    why.detail().expect("an explanation").to_owned()
}

/// Acknowledge a job, and say something with that.
#[track_caller]
fn ack_with(case: &mut Case, now: u64, entry: &Entry, how: &[&str]) {
    let args: Vec<String> =
        [now.to_string(), entry.id.clone()].into_iter().chain(how.iter().map(|word| (*word).to_owned())).collect();
    assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
    audit(case);
}

/// When jobs of a bucket of 10/s with this policy have left since the beginning, in ms, where this is told at the beginning.
fn leaves(policy: &str, how: &[&str], seconds: u64) -> Vec<u64> {
    let mut case = Case::with(&format!("[defaults]\nrate = '10/s'\n{policy}"));
    told_at(&mut case, T0, "a", how);
    case.push_at(T0, "a", &jobs(200));
    run(&mut case, T0, T0 + seconds * S);
    left(&mut case, "a").into_iter().map(|us| us / MS).collect()
}

#[test]
fn where_nothing_is_left_nothing_leaves_until_the_reset_and_then_at_the_rate() {
    crate::roles::as_roles();
    let times = leaves("", &["0", "2000"], 3);
    assert_eq!(times[..3], [2_000, 2_100, 2_200], "the wait earns nothing");
    assert_eq!(times.len(), 11);
}

#[test]
fn what_is_left_leaves_and_then_nothing_until_the_reset() {
    assert_eq!(leaves("", &["3", "2000"], 3)[..5], [0, 100, 200, 2_000, 2_100]);
    let spread = leaves("told = 'spread'\n", &["4", "2000"], 3);
    assert_eq!(spread[..6], [0, 500, 1_000, 1_500, 2_000, 2_100], "evenly over the time left");
    let many = leaves("told = 'spread'\n", &["100", "2000"], 1);
    assert_eq!(many[..4], [0, 100, 200, 300], "and never faster than the rate");
    assert_eq!(leaves("told = 'off'\n", &["0", "2000"], 1)[..3], [0, 100, 200]);
}

#[test]
fn after_a_reset_a_window_is_reckoned_where_the_limit_is_known_until_something_is_told() {
    let stop = leaves("", &["1", "1000", "LIMIT", "2"], 4);
    assert_eq!(stop[..4], [0, 1_000, 1_100, 2_030], "two in a window, which is a little longer than was told");
    let spread = leaves("told = 'spread'\n", &["1", "1000", "LIMIT", "2"], 4);
    assert_eq!(spread[..4], [0, 1_000, 1_515, 2_030]);
    let forgotten = leaves("", &["0", "1000", "LIMIT", "1"], 70);
    let last = &forgotten[forgotten.len() - 10..];
    assert_eq!(last[9] - last[0], 900, "a minute after the last report its rate counts alone");
}

#[test]
fn a_window_of_hours_that_nothing_was_told_of_since_is_followed_by_one_that_is_reckoned() {
    for policy in ["", "told = 'spread'\n"] {
        let mut case = Case::with(&format!("[defaults]\nrate = '10/s'\n{policy}"));
        told_at(&mut case, T0, "a", &["0", "7200000", "LIMIT", "20"]);
        case.push_at(T0, "a", &jobs(200));
        run(&mut case, at(7_190, 0), at(7_260, 0));
        let times = left(&mut case, "a");
        assert!(times[0] >= 7_200 * S && times.len() <= 20, "{policy}: {times:?}");
    }
}

#[test]
fn where_little_came_back_one_job_asks_and_an_answer_that_is_lost_holds_up_no_more_than_the_rate() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    told_at(&mut case, T0, "a", &["0", "3600000", "LIMIT", "40"]);
    case.push_at(T0, "a", &jobs(100));
    run(&mut case, T0, at(3_600, 50));
    let taken = case.take("ready", 1);
    ack_with(&mut case, at(3_600, 60), &taken[0], &["REMAINING", "0", "RESET", "1700000", "LIMIT", "40"]);
    run(&mut case, at(3_600, 60), at(5_500, 0));
    // Nobody answers the job of 5,300 s. 40 an hour are one in 90 s, and 3 % more.
    let times: Vec<u64> = left(&mut case, "a").into_iter().map(|us| us / MS).collect();
    assert_eq!(times, [5_300_060, 5_392_760, 5_485_460]);
}

#[test]
fn a_reset_may_be_a_time() {
    for policy in ["", "told = 'spread'\n"] {
        let mut case = Case::with(&format!("[defaults]\nrate = '10/s'\n{policy}"));
        case.push_at(T0, "a", &jobs(100));
        run(&mut case, T0, at(0, 0));
        let taken = case.take("ready", 1);
        // It left two seconds before its answer, which makes no difference to a time.
        let resets = (at(5, 0) / MS).to_string();
        ack_with(&mut case, at(2, 0), &taken[0], &["REMAINING", "0", "RESET", &resets, "LIMIT", "50"]);
        assert_eq!(told_at(&mut case, at(2, 1), "a", &["40", &(at(2, 1) / MS).to_string()]), 0, "that is over");
        run(&mut case, at(2, 1), at(5, 50));
        assert_eq!(left(&mut case, "a"), [5 * S], "{policy}");
    }
}

#[test]
fn a_window_is_as_long_as_it_was_when_the_answered_job_left() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0, "a", &jobs(100));
    run(&mut case, T0, T0);
    let taken = case.take("ready", 1);
    let resets = (at(5, 0) / MS).to_string();
    ack_with(&mut case, at(3, 0), &taken[0], &["REMAINING", "0", "RESET", &resets, "LIMIT", "10"]);
    run(&mut case, at(3, 0), at(10, 0));
    let times = left(&mut case, "a");
    assert_eq!((times[0], times.len()), (5 * S, 10), "no second window begins before the first one can be answered");
}

#[test]
fn the_lower_report_counts_until_a_reset_and_an_older_one_changes_nothing() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    assert_eq!(told_at(&mut case, T0, "a", &["5", "1000"]), 1);
    assert_eq!(told_at(&mut case, T0, "a", &["7", "3000"]), 0, "more is left");
    assert_eq!(told_at(&mut case, T0, "a", &["2", "2000"]), 1);
    case.push_at(T0, "a", &jobs(50));
    run(&mut case, T0, at(2, 0));
    assert_eq!(left(&mut case, "a"), [0, 100 * MS, 2 * S], "and its reset");
    assert_eq!(told_at(&mut case, at(2, 50), "a", &["40", "3000"]), 1, "after the reset more counts too");
    let taken = case.take("ready", 10);
    ack_with(&mut case, at(2, 100), &taken[0], &["REMAINING", "0", "RESET", "2000"]);
    run(&mut case, at(2, 100), at(2, 500));
    assert_eq!(left(&mut case, "a").len(), 7, "it was answered when it left two seconds ago: its window is over");
}

#[test]
fn jobs_that_are_out_are_taken_off_what_is_left() {
    for policy in ["", "concurrency = 50\n"] {
        let mut case = Case::with(&format!("[defaults]\nrate = '10/s'\n{policy}"));
        case.push_at(T0, "a", &jobs(100));
        told_at(&mut case, T0, "a", &["90", "60000"]);
        run(&mut case, T0, at(0, 900));
        let taken = case.take("ready", 10);
        assert_eq!(taken.len(), 10);
        ack_with(&mut case, at(1, 0) - 1, &taken[0], &["REMAINING", "20", "RESET", "60000"]);
        run(&mut case, at(1, 0), at(4, 0));
        assert_eq!(left(&mut case, "a").len(), 10 + 11 - 1, "nine of the twenty are out: {policy}");
        ack_at(&mut case, at(4, 0), &taken[1..]);
        run(&mut case, at(4, 0), at(6, 0));
        assert_eq!(
            left(&mut case, "a").len(),
            11,
            "that they are done changes nothing: they were among those let through"
        );
    }
}

#[test]
fn a_job_that_was_turned_away_tells_too() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0, "a", &jobs(20));
    run(&mut case, T0, T0);
    let entry = case.take("ready", 1).remove(0);
    let how = ["THROTTLED", "RETRY_AFTER", "500", "REASON", "429", "REMAINING", "0", "RESET", "2000", "LIMIT", "9"];
    assert_eq!(fail_at(&mut case, at(0, 10), &entry, &how), 1);
    run(&mut case, at(0, 10), at(2, 100));
    assert_eq!(left(&mut case, "a"), [2_010 * MS], "the later of both; it left again, with a new entry");
}

const TREE: &str =
    "[[budget]]\nmatch = 'api'\ntold = 'spread'\n[[bucket]]\nmatch = 'a*'\nrate = '100/s'\nwithin = 'api'\n";

#[test]
fn a_budget_without_a_rate_is_paced_by_what_it_is_told_alone() {
    let mut case = Case::with(TREE);
    assert_eq!(told_at(&mut case, T0, "a1", &["10", "5000", "IN", "api"]), 1);
    for bucket in ["a1", "a2"] {
        case.push_at(T0, bucket, &jobs(20));
    }
    run(&mut case, T0, at(4, 900));
    let times = left(&mut case, "a");
    assert_eq!(times, (0..10).map(|n| n * 500 * MS).collect::<Vec<_>>());
    assert_eq!(left(&mut case, "a1").len(), 5, "in turn");
}

#[test]
fn costs_are_told_apart_from_jobs() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\n");
    told_at(&mut case, T0, "a", &["10", "5000", "UNITS", "cost", "LIMIT", "100"]);
    for cost in ["4", "4", "4", "150"] {
        case.submit_at(T0, "a", "x", &["COST", cost]);
    }
    run(&mut case, T0, at(4, 0));
    assert_eq!(left(&mut case, "a").len(), 2, "the third one costs more than what is left");
    run(&mut case, at(4, 0), at(5, 50));
    assert_eq!(left(&mut case, "a").len(), 3);
    run(&mut case, at(5, 50), at(20, 0));
    assert_eq!(left(&mut case, "a").len(), 4, "what costs more than the limit leaves in a window of its own");
    let mut case = Case::with("[defaults]\nrate = '100/s'\n");
    told_at(&mut case, T0, "a", &["1", "5000"]);
    case.submit_at(T0, "a", "x", &["COST", "40"]);
    case.submit_at(T0, "a", "x", &["COST", "1"]);
    run(&mut case, T0, at(1, 0));
    assert_eq!(left(&mut case, "a").len(), 1, "jobs are counted whatever they cost");
}

#[test]
fn what_was_told_is_shown_cleared_and_forgotten_with_its_keys() {
    let mut case = Case::with(TREE);
    told_at(&mut case, T0, "a1", &["0", "5000", "LIMIT", "50"]);
    case.push_at(T0, "a1", &jobs(5));
    run(&mut case, T0, at(1, 0));
    let explained: (String, String, String, Vec<redis::Value>) =
        case.fcall("drip__explain", &["queue:a1"], &[at(1, 0).to_string()]);
    let facts: serde_json::Value = serde_json::from_str(&explained.1).expect("JSON");
    let level = &facts["levels"][0];
    let expected = serde_json::json!({
        "left": 0, "limit": 50, "unit": "job", "reset_us": 4_000_000, "is_reckoned": false, "waits_us": 4_000_000,
    });
    assert_eq!(level["told"], expected);
    assert_eq!(
        (&level["set"][0]["key"], &level["set"][0]["text"]),
        (&"told-limit".into(), &"0 of 50 jobs left".into())
    );
    let listed: Vec<redis::Value> = case.fcall("drip__settings", &["policy"], &[at(1, 0).to_string(), "s0".to_owned()]);
    let next: String = redis::from_redis_value_ref(&listed[0]).expect("a cursor");
    assert_eq!((next.as_str(), listed.len()), ("t0", 2), "no slow-downs, and told limits come next");
    let listed: Vec<redis::Value> = case.fcall("drip__settings", &["policy"], &[at(1, 0).to_string(), next]);
    assert_eq!(listed.len(), 5);
    assert_eq!(told_at(&mut case, at(1, 0), "a1", &["CLEAR"]), 1);
    assert_eq!(told_at(&mut case, at(1, 0), "a1", &["CLEAR"]), 0);
    run(&mut case, at(1, 0), at(1, 0));
    assert_eq!(left(&mut case, "a"), [S], "it goes on at once, with one job: the wait earned nothing");
    told_at(&mut case, at(1, 5), "a1", &["3", "1000", "IN", "api"]);
    assert!(case.keys().iter().any(|key| key == "told"));
    run(&mut case, at(1, 5), at(70, 0));
    case.fcall::<redis::Value>("drip__reap", &["policy"], &[at(71, 0).to_string()]);
    assert!(case.keys().iter().all(|key| key != "told" && key != "over"), "{:?}", case.keys());
}

#[test]
fn limits_of_a_minute_and_of_a_day_are_kept_apart() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    assert_eq!(told_at(&mut case, T0, "a", &["100", "60000", "LIMIT", "100"]), 1);
    assert_eq!(told_at(&mut case, T0, "a", &["150", "86400000", "LIMIT", "10000"]), 1);
    case.push_at(T0, "a", &jobs(1_000));
    run(&mut case, T0, at(59, 0));
    assert_eq!(left(&mut case, "a").len(), 100);
    run(&mut case, at(59, 0), at(200, 0));
    assert_eq!(left(&mut case, "a").len(), 150, "of the day no more are left");
}

#[test]
fn an_answer_that_took_longer_than_the_reset_counts_where_nothing_else_is_known() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0, "a", &jobs(100));
    run(&mut case, T0, T0);
    let entry = case.take("ready", 1).remove(0);
    ack_with(&mut case, at(20, 0), &entry, &["REMAINING", "0", "RESET", "6000"]);
    run(&mut case, at(20, 0), at(25, 0));
    assert_eq!(left(&mut case, "a").len(), 0);
    run(&mut case, at(25, 0), at(26, 0));
    assert_eq!(left(&mut case, "a").len(), 1);
}

#[test]
fn an_entry_from_the_future_holds_nothing_for_longer_than_was_told() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ntold = 'spread'\n");
    case.push_at(at(3_600, 0), "a", &jobs(100));
    run(&mut case, at(3_600, 0), at(3_600, 0));
    let entry = case.take("ready", 1).remove(0);
    ack_with(&mut case, T0, &entry, &["REMAINING", "5", "RESET", "10000", "LIMIT", "50"]);
    run(&mut case, T0, at(30, 0));
    assert!(left(&mut case, "a").len() > 50, "a reset and more are over");
}

#[test]
fn a_clock_that_steps_back_holds_nothing_for_longer_than_was_told() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    told_at(&mut case, at(3_600, 0), "a", &["0", "2000"]);
    case.push_at(T0, "a", &jobs(5));
    run(&mut case, T0, at(2, 200));
    assert_eq!(left(&mut case, "a"), [2 * S, 2 * S + 100 * MS, 2 * S + 200 * MS]);
}

#[test]
fn what_is_wrong_with_a_report_is_said_and_changes_nothing() {
    let mut case = Case::with(TREE);
    case.push_at(T0, "a1", &jobs(1));
    run(&mut case, T0, T0);
    let entry = case.take("ready", 1).remove(0);
    for (args, why) in [
        (&[][..], "REMAINING needs a whole number, 0 to 1000000000"),
        (&["5"][..], "RESET needs a whole number, 0 to 31622400000"),
        (&["-1", "5"], "REMAINING needs a whole number"),
        (&["5", "soon"], "RESET needs a whole number"),
        (&["5", "99999999999"], "or a time in ms since 1970"),
        (&["5", "100000000000000"], "or a time in ms since 1970"),
        (&["5", "31622400001"], "RESET needs a whole number, 0 to 31622400000"),
        (&["5", "9999999999999"], "RESET is more than 366 days ahead"),
        (&["5", "5", "LIMIT", "0"], "LIMIT needs a whole number, 1 to 1000000000"),
        (&["5", "5", "UNITS", "tokens"], "UNITS needs job or cost"),
        (&["5", "5", "IN"], "IN needs the name of a budget"),
        (&["5", "5", "IN", "other"], "\"other\" is no budget above a1"),
        (&["5", "5", "REMAINING", "5", "RESET", "5"], "drip_told takes one report"),
        (&["5", "5", "FOO"], "argument 5 is none of REMAINING n RESET ms LIMIT n UNITS job|cost IN budget"),
        (&["CLEAR", "NOW"], "CLEAR goes with IN budget alone"),
    ] {
        let refusal = refused(&mut case, "drip__told", "queue:a1", &[&[""][..], args].concat());
        assert!(refusal.contains(why), "{args:?}: {refusal}");
    }
    for (args, why) in [
        (&["REMAINING", "5"][..], "REMAINING needs RESET ms too"),
        (&["COST", "5", "RESET", "5"], "argument 4 is none of"),
        (&["REMAINING", "5", "RESET", "5", "IN", "other"], "is no budget above a1"),
        (&["REMAINING", "5", "RESET", "9999999999999"], "RESET is more than 366 days ahead"),
    ] {
        let refusal = refused(&mut case, "drip__ack", "ready", &[&["", &entry.id][..], args].concat());
        assert!(refusal.contains(why), "{args:?}: {refusal}");
        let refusal = refused(&mut case, "drip__fail", "ready", &[&["", &entry.id][..], args].concat());
        assert!(refusal.contains(why) || args[0] == "COST", "{args:?}: {refusal}");
    }
    assert!(case.keys().iter().all(|key| key != "told"));
    ack_at(&mut case, T0, &[entry]);
}

#[test]
fn a_job_that_is_given_back_in_whatever_way_stays_charged_for_it_may_have_been_asked_for() {
    for (policy, told) in [("", &["3", "60000"][..]), ("", &["3", "60000", "UNITS", "cost"]), (TREE, &[])] {
        let mut case = if policy.is_empty() { Case::with("[defaults]\nrate = '10/s'\n") } else { Case::with(policy) };
        let (bucket, told) =
            if policy.is_empty() { ("a", told) } else { ("a1", &["3", "3000", "IN", "api", "LIMIT", "9"][..]) };
        told_at(&mut case, T0, bucket, told);
        case.push_at(T0, bucket, &jobs(50));
        run(&mut case, T0, at(2, 500));
        let taken = case.take("ready", 10);
        assert_eq!(taken.len(), 3, "all that was told: {told:?}");
        for (entry, how) in taken.iter().zip([&["RETRY_IN", "0", "KEEP"][..], &["RETRY_IN", "0"], &["THROTTLED"]]) {
            assert_eq!(fail_at(&mut case, at(2, 500), entry, how), 1);
        }
        run(&mut case, at(2, 500), at(3, 0) - 1);
        assert_eq!(case.take("ready", 10).len(), 0, "the other side may have counted them: {told:?}");
    }
}

#[test]
fn what_a_job_really_cost_moves_what_is_left() {
    for function in ["drip__ack", "drip__adjust"] {
        for budget in [false, true] {
            let mut case = Case::with(if budget { TREE } else { "[defaults]\nrate = '100/s'\n" });
            let (bucket, within) = if budget { ("a1", &["IN", "api"][..]) } else { ("a", &[][..]) };
            told_at(&mut case, T0, bucket, &[&["10", "5000", "UNITS", "cost", "LIMIT", "100"], within].concat());
            for cost in ["8", "4", "4"] {
                case.submit_at(T0, bucket, "x", &["COST", cost]);
            }
            run(&mut case, T0, at(4, 500));
            let entry = case.take("ready", 10).remove(0);
            assert_eq!(left(&mut case, bucket).len(), 1, "two are left, and four are needed");
            let more = if function == "drip__ack" { &["COST", "3"][..] } else { &["-5"] };
            let args = [at(4, 500).to_string(), entry.id].into_iter().chain(more.iter().map(|word| (*word).to_owned()));
            assert_eq!(case.fcall::<i64>(function, &["ready"], &args.collect::<Vec<_>>()), 1);
            audit(&mut case);
            run(&mut case, at(4, 500), at(4, 999));
            let others = case.take("ready", 10);
            assert_eq!(others.len(), 1, "seven are left, and then three: {function} {budget}");
            let args = [at(4, 999).to_string(), others[0].id.clone(), "+50".to_owned()];
            assert_eq!(case.fcall::<i64>("drip__adjust", &["ready"], &args), 1);
            run(&mut case, at(4, 999), at(5, 0) - 1);
            assert_eq!(case.take("ready", 10).len(), 0, "what costs more than is left is not forgiven");
        }
    }
}

#[test]
fn where_nothing_is_left_of_a_day_a_shorter_limit_without_a_name_changes_nothing() {
    let day = &["0", "80000000"][..];
    for reports in [[day, &["0", "2000"]], [&["0", "2000"], day], [day, &["7", "2000"]], [&["7", "2000"], day]] {
        let mut case = Case::with("[defaults]\nrate = '10/s'\n");
        for how in reports {
            told_at(&mut case, T0, "a", how);
        }
        case.push_at(T0, "a", &jobs(20));
        run(&mut case, T0, at(79_999, 0));
        assert_eq!(left(&mut case, "a"), [0; 0], "{reports:?}");
        run(&mut case, at(79_999, 0), at(80_001, 0));
        assert_eq!(left(&mut case, "a")[0], 80_000 * S, "{reports:?}");
    }
}

#[test]
fn jobs_that_are_out_below_a_budget_are_taken_off_what_it_is_told() {
    let mut case = Case::with(&TREE.replace("spread", "stop"));
    assert_eq!(told_at(&mut case, T0, "a1", &["50", "60000", "IN", "api"]), 1);
    case.push_at(T0, "a1", &jobs(100));
    run(&mut case, T0, at(0, 95));
    let taken = case.take("ready", 20);
    assert_eq!(taken.len(), 10);
    ack_with(&mut case, at(0, 99), &taken[0], &["REMAINING", "20", "RESET", "60000", "IN", "api"]);
    run(&mut case, at(0, 99), at(4, 0));
    assert_eq!(case.take("ready", 50).len(), 11, "nine of the twenty are out");
}

#[test]
fn jobs_of_a_budget_that_are_out_on_any_route_are_taken_off_its_first_report() {
    let toml = "[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'b'\nwithin = 'api'\nroute = 'mail'\n\
                [[bucket]]\nmatch = 'a'\nwithin = 'api'\n[[budget]]\nmatch = 'api'\ntold = 'stop'\n";
    for by_name in [false, true] {
        let mut case = Case::with(toml);
        case.push_at(T0, "a", &jobs(100));
        case.push_at(T0, "b", &jobs(100));
        run(&mut case, T0, at(0, 250));
        assert_eq!((case.take("ready", 20).len(), case.take("ready:mail", 20).len()), (3, 3));
        if by_name {
            let how = r#"{"node": "{api}", "remaining": 6, "reset_ms": 60000}"#;
            assert_eq!(case.fcall::<i64>("drip__told_node", &["policy"], &[&at(0, 260).to_string(), how]), 1);
        } else {
            assert_eq!(told_at(&mut case, at(0, 260), "a", &["6", "60000", "IN", "api"]), 1);
        }
        run(&mut case, at(0, 260), at(4, 0));
        assert_eq!((case.take("ready", 20).len(), case.take("ready:mail", 20).len()), (0, 0), "{by_name}");
    }
}

#[test]
fn of_more_limits_than_are_kept_the_one_of_which_least_is_left_stays() {
    let mut case =
        Case::with("[defaults]\nrate = '100/s'\ntold = 'stop'\ncapacity = 1000\n[limits]\nready_window = 'off'\n");
    assert_eq!(told_at(&mut case, T0, "a", &["0", "5000", "LIMIT", "5"]), 1);
    for limit in [50, 500, 5_000, 50_000, 60_000] {
        told_at(&mut case, T0, "a", &[&limit.to_string(), "60000", "LIMIT", &limit.to_string()]);
    }
    case.push_at(T0, "a", &jobs(30));
    run(&mut case, T0, at(4, 900));
    assert_eq!(case.take("ready", 50).len(), 0, "nothing is left of the five");
    run(&mut case, at(4, 900), at(5, 200));
    assert!(!case.take("ready", 50).is_empty(), "after its reset they leave");
}

#[test]
fn what_is_told_of_the_next_window_before_this_one_is_over_here_counts_when_it_is() {
    // Resets in whole seconds, rounded up: the answers of the last part of a window are of the next one.
    let mut case = Case::with("[defaults]\nrate = '100/s'\n");
    assert_eq!(told_at(&mut case, T0, "a", &["1", "2000", "LIMIT", "60"]), 1);
    assert_eq!(told_at(&mut case, at(1, 500), "a", &["40", "9000", "LIMIT", "60"]), 0, "until then the lower one");
    case.push_at(at(1, 600), "a", &jobs(100));
    run(&mut case, at(1, 600), at(10, 0));
    let times = left(&mut case, "a");
    assert_eq!((times[0], times[1]), (at(1, 600) - T0, 2 * S));
    assert_eq!(times.len(), 40, "the one that left meanwhile is one of the 40");
    run(&mut case, at(10, 0), at(12, 0));
    assert_eq!(left(&mut case, "a")[40], at(10, 500) - T0, "and then a window is reckoned");
}

/// When jobs of a bucket of 10/s leave on the days after this is told, in seconds; each one is answered with the report for its day.
fn leaves_by_day(policy: &str, first: &[&str], days: &[&[&str]]) -> Vec<u64> {
    let mut case = Case::with(&format!("[defaults]\nrate = '10/s'\n{policy}"));
    told_at(&mut case, T0, "a", first);
    case.push_at(T0, "a", &jobs(200));
    let mut times = Vec::new();
    for (day, answer) in (1..).zip(days) {
        run(&mut case, at(86_400 * (day - 1), 0), at(86_400 * day, 0));
        for entry in case.take("ready", 10) {
            times.push((entry.number("at_us") - T0) / S);
            ack_with(&mut case, at(86_400 * day, 50), &entry, answer);
        }
    }
    times.extend(left(&mut case, "a").into_iter().map(|us| us / S));
    times
}

#[test]
fn a_reset_that_is_more_than_a_day_ahead_stops_nothing_for_longer_than_a_day() {
    const SECONDS: &str = "1750000000"; // now, in seconds since 1970: as milliseconds they are twenty days
    let wrong: &[&str] = &["REMAINING", "0", "RESET", SECONDS];
    // One job a day, as long as the answers say the same.
    for policy in ["", "told = 'spread'\n"] {
        for limit in [&[][..], &["LIMIT", "100"]] {
            let first = [&["0", SECONDS], limit].concat();
            let again = [wrong, limit].concat();
            let days = leaves_by_day(policy, &first, &[&again, &again, &again]);
            assert_eq!(days, [86_400, 2 * 86_400, 3 * 86_400], "{policy} {limit:?}");
        }
    }
    // An answer that says better counts at once.
    let right: &[&str] = &["REMAINING", "5", "RESET", "1000"];
    let times = leaves_by_day("", &["0", SECONDS], &[right, right]);
    assert_eq!((times[0], times.len()), (86_400, 200), "{times:?}");
    // A time says it, too.
    let month = ((T0 + 30 * 86_400 * S) / MS).to_string();
    let again = ["REMAINING", "0", "RESET", &month];
    assert_eq!(leaves_by_day("", &["0", &month], &[&again, &again]), [86_400, 2 * 86_400]);
    // No answer comes: the next day one is asked again.
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    told_at(&mut case, T0, "a", &["0", SECONDS]);
    case.push_at(T0, "a", &jobs(9));
    run(&mut case, T0, at(86_400 * 3, 0));
    assert_eq!(left(&mut case, "a"), [1, 2, 3].map(|day| day * 86_400 * S));
}

#[test]
fn what_is_left_for_a_month_is_spread_over_the_month_and_a_day_is_left_alone() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ntold = 'spread'\n");
    told_at(&mut case, T0, "a", &["600", "2592000000"]); // 30 days
    case.push_at(T0, "a", &jobs(700));
    run(&mut case, T0, at(3 * 86_400, 0));
    assert_eq!(left(&mut case, "a").len(), 61, "20 a day");
    // After the month nothing more is known.
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    told_at(&mut case, T0, "a", &["0", "86400000"]);
    assert_eq!(case.peek_at(T0, "a")[4], -1);
    case.push_at(T0, "a", &jobs(1));
    assert_eq!(held_ms(&mut case, T0, "a"), 86_400_000, "a whole day is no more than a day");
}
