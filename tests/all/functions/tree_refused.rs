//! Buckets and budgets whose chain cannot be resolved: circles and chains that are too long, how they come about at run time, and that
//! everybody goes on when the change that made them is taken back or ends.

use redis::Value;

use super::flow::{audit, left, run};
use crate::rig::{Case, MS, S, T0};

/// Set `within` of a budget, for a time or until it is taken back; `None`: take it back.
#[track_caller]
fn within(case: &mut Case, now: u64, budget: &str, parent: Option<&str>, for_us: Option<u64>) {
    let what = match parent {
        Some(parent) => format!(r#""set":{{"within":{{"text":"x","policy":{{"within":"{parent}"}}}}}}"#),
        None => r#""unset":["within"]"#.to_owned(),
    };
    let until = for_us.map_or(String::new(), |us| format!(r#","for_us":{us}"#));
    let change =
        format!(r#"{{"what":"set","match":"{{{budget}}}","is_glob":false,{what}{until},"by":"me","user":"u"}}"#);
    let reply: Vec<Value> = case.fcall("drip__set", &["policy"], &[now.to_string(), change]);
    assert_eq!(reply[0], Value::Int(1), "{budget} within {parent:?}");
}

/// What a drain notes: kind, subject, detail, count of each.
fn notes(case: &mut Case, now: u64) -> Vec<String> {
    let reply: Vec<Value> = case.fcall("drip__drain", &["schedule"], &[now.to_string()]);
    redis::from_redis_value(reply[6].clone()).expect("the notes")
}

#[test]
fn a_circle_that_a_setting_closes_lets_nothing_out_and_stops_no_call() {
    for is_timed in [false, true] {
        let mut case = Case::with(
            "[[budget]]\nmatch = 'a'\nrate = '5/s'\n[[budget]]\nmatch = 'b'\nrate = '5/s'\nwithin = 'a'\n\
             [[bucket]]\nmatch = 'x:*'\nrate = '10/s'\nwithin = 'b'\n",
        );
        case.settle_at(T0);
        within(&mut case, T0, "b", Some(""), is_timed.then_some(S));
        within(&mut case, T0, "a", Some("b"), None);
        for bucket in ["x:1", "x:2", "x:3"] {
            case.push_at(T0, bucket, &["1", "2", "3", "4", "5"]);
        }
        run(&mut case, T0, T0 + 900 * MS);
        let before = left(&mut case, "x:").len();
        assert!((4..=6).contains(&before), "b is the root: {before}");
        if !is_timed {
            within(&mut case, T0 + S, "b", None, None);
        }
        case.settle_at(T0 + S);
        case.settle_at(T0 + 3 * S);
        let after = left(&mut case, "x:").len();
        assert!(after <= before + 1, "nothing leaves a circle: {after}");
        let why = case.try_fcall::<Value>("drip__push", &["queue:x:4"], &[(T0 + 3 * S).to_string(), "y".to_owned()]);
        assert!(why.expect_err("refused").to_string().contains("form a circle"));
        let _: Value = case.fcall("drip__explain_budget", &["policy"], &[(T0 + 3 * S).to_string(), "a".to_owned()]);
        let _: Value = case.fcall("drip__explain", &["queue:x:1"], &[(T0 + 3 * S).to_string()]);
        within(&mut case, T0 + 4 * S, "a", Some(""), None);
        run(&mut case, T0 + 4 * S, T0 + 20 * S);
        assert_eq!(left(&mut case, "x:").len(), 15, "and then all goes on");
    }
}

#[test]
fn a_glob_of_budgets_is_not_put_within_one_of_its_own() {
    let mut case = Case::with("[[budget]]\nmatch = 'a*'\nrate = '5/s'\n");
    let change = r#"{"what":"set","match":"{a*}","is_glob":true,"set":{"within":{"text":"x","policy":{"within":"a1"}}},"by":"me","user":"u"}"#;
    let why = case.try_fcall::<Value>("drip__set", &["policy"], &[T0.to_string(), change.to_owned()]);
    let why = why.expect_err("refused").to_string();
    assert!(why.contains("nothing could leave a*: its budgets form a circle: a1"), "{why}");
}

/// `m` comes below `r`, below `top`: with that its children have five levels.
const DEEP: &str = "[[budget]]\nmatch = 'q'\nrate = '100/s'\nwithin = 'm'\n[[budget]]\nmatch = 'm'\nrate = '100/s'\n\
                    [[budget]]\nmatch = 'r'\nrate = '100/s'\nwithin = 'r2'\n[[budget]]\nmatch = 'r2'\nrate = '100/s'\nwithin = 'top'\n\
                    [[budget]]\nmatch = 'top'\nrate = '100/s'\n[[bucket]]\nmatch = 'b:*'\nrate = '5/s'\nwithin = 'q'\n";

#[test]
fn what_a_setting_of_a_budget_above_has_refused_goes_on_when_that_is_taken_back_or_ends() {
    // Jobs that come before the change wait for a share of `q`, which is refused with them; those after it are refused by themselves.
    for (is_timed, comes_before) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut case = Case::with(DEEP);
        case.settle_at(T0);
        let jobs = |case: &mut Case, now| {
            for bucket in ["b:1", "b:2", "b:3"] {
                case.lpush(bucket, &["1", "2", "3"]);
                case.wake_at(now, &[bucket]);
            }
        };
        if comes_before {
            jobs(&mut case, T0);
        }
        within(&mut case, T0 + 1, "m", Some("r"), is_timed.then_some(S));
        if !comes_before {
            jobs(&mut case, T0 + 2);
        }
        case.settle_at(T0 + 500 * MS);
        let before = left(&mut case, "b:").len();
        assert!(before <= 3, "nothing leaves: {before}");
        assert!(case.cmd::<i64>(&["ZCARD", &case.key("refused")]) > 0, "they are refused");
        if !is_timed {
            within(&mut case, T0 + 600 * MS, "m", None, None);
        }
        run(&mut case, T0 + 600 * MS, T0 + 10 * S);
        assert_eq!(left(&mut case, "b:").len(), 9, "timed: {is_timed}, before: {comes_before}");
    }
}

#[test]
fn the_refused_go_on_though_a_call_that_lets_nothing_out_is_the_first_to_see_that_a_setting_ended() {
    let mut case = Case::with(&format!("{DEEP}[[bucket]]\nmatch = 'c:*'\nrate = '5/s'\nwithin = 'm'\n"));
    case.settle_at(T0);
    within(&mut case, T0, "m", Some("r"), Some(S));
    for bucket in ["b:1", "b:2", "b:3"] {
        case.lpush(bucket, &["1"]);
        case.wake_at(T0 + MS, &[bucket]);
    }
    case.settle_at(T0 + 500 * MS);
    assert_eq!(case.cmd::<i64>(&["ZCARD", &case.key("refused")]), 3);
    case.push_at(T0 + S + 1, "c:1", &["1"]);
    run(&mut case, T0 + S + 2, T0 + 3 * S);
    assert_eq!(left(&mut case, "b:").len(), 3);
}

#[test]
fn a_refused_bucket_stands_in_one_place_though_no_budget_is_configured_any_more() {
    const WITHOUT: &str = "[[bucket]]\nmatch = 't:*'\nrate = '1/s'\n";
    let mut case = Case::with(&format!("[[budget]]\nmatch = 'top'\nrate = '10/s'\n{WITHOUT}"));
    case.settle_at(T0);
    let change = |what: &str| format!(r#"{{"what":"set","match":"t:2","is_glob":false,{what},"by":"me","user":"u"}}"#);
    let set = change(r#""set":{"within":{"text":"x","policy":{"within":"top"}}}"#);
    let _: Value = case.fcall("drip__set", &["policy"], &[T0.to_string(), set]);
    case.configure_at(&(T0 + S).to_string(), WITHOUT);
    case.settle_at(T0 + S);
    case.lpush("t:2", &["1", "2", "3", "4"]);
    case.wake_at(T0 + 2 * S, &["t:2"]);
    assert_eq!(case.settle_at(T0 + 2 * S).dispatched, 0, "its budget is not there");
    let unset = change(r#""unset":["within"]"#);
    let _: Value = case.fcall("drip__set", &["policy"], &[(T0 + 3 * S).to_string(), unset]);
    audit(&mut case);
    run(&mut case, T0 + 3 * S, T0 + 4 * S + 500 * MS);
    case.configure_at(&(T0 + 4 * S + 600 * MS).to_string(), &format!("[defaults]\nattempts = 7\n{WITHOUT}"));
    run(&mut case, T0 + 4 * S + 600 * MS, T0 + 10 * S);
    assert_eq!(left(&mut case, "t:2"), [3 * S, 4 * S, 5 * S, 6 * S]);
}

#[test]
fn a_reload_that_takes_a_budget_out_of_the_one_that_serves_it_raises_nothing() {
    let toml = |within: &str| {
        format!(
            "[[budget]]\nmatch = 'top'\nrate = '10/s'\n[[budget]]\nmatch = 'acc'\nrate = '1000/s'\n{within}\
             [[bucket]]\nmatch = 'b:*'\nrate = '10/s'\nwithin = 'acc'\n"
        )
    };
    let mut case = Case::with(&toml("within = 'top'\n"));
    case.settle_at(T0);
    for n in 0..6 {
        case.push_at(T0, &format!("b:{n}"), &["x", "y"]);
    }
    case.settle_at(T0);
    case.configure_at(&(T0 + 50 * MS).to_string(), &toml(""));
    // `top` is due before the change has come by.
    for n in 0..6 {
        assert_eq!(notes(&mut case, T0 + 250 * MS + n), Vec::<String>::new());
    }
    run(&mut case, T0 + 251 * MS, T0 + 3 * S);
    assert_eq!(left(&mut case, "b:").len(), 12);
}
