//! What `dripd explain` makes of a tree: the words of each case, with the clock in hand.

use dripd::explain::{BudgetSaid, Explanation, File, LocalTime};
use dripd::store::explain::{BudgetFacts, Facts};
use jiff::tz::TimeZone;
use serde_json::{Value as Json, json};

use super::explain::{T0, beat, configure};
use super::flow::slow_at;
use crate::rig::{Case, S};

const TREE: &str = "
[[budget]]
match = 'twilio'
rate = '1/20s'
catch_up = '0s'
[[budget]]
match = 'twilio:*'
rate = '1/5s'
catch_up = '0s'
within = 'twilio'
[[bucket]]
match = 'twilio:*:*'
rate = '1/s'
within = 'twilio:{1}'
";

fn explain(case: &mut Case, now: u64, bucket: &str) -> Explanation {
    let reply = case.fcall("drip__explain", &[&format!("queue:{bucket}")], &[now.to_string()]);
    let file = File { name: "/home/me/config.toml".to_owned(), is_in_force: Some(true) };
    Explanation::of(&Facts::read(reply).expect("facts"), file, &LocalTime::of(now, TimeZone::UTC))
}

fn says(case: &mut Case, now: u64, bucket: &str) -> Vec<String> {
    explain(case, now, bucket).says().to_vec()
}

fn budget(case: &mut Case, now: u64, name: &str) -> BudgetSaid {
    let reply = case.fcall("drip__explain_budget", &["policy"], &[now.to_string(), name.to_owned()]);
    BudgetSaid::of(&BudgetFacts::read(reply).expect("facts"), &LocalTime::of(now, TimeZone::UTC))
}

fn set(case: &mut Case, now: u64, name: &str, key: &str, text: &str, policy: &Json) {
    let c = json!({ "match": name, "is_glob": false, "by": "root@web1", "set": { key: { "text": text, "policy": policy } } });
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), c.to_string()]);
    assert_eq!(told.0, 1);
}

/// Three senders of one account and one of another, each with jobs that wait, a moment after the first job left.
fn saturated() -> Case {
    let mut case = Case::with(TREE);
    for bucket in ["twilio:a:1", "twilio:a:2", "twilio:a:3", "twilio:b:1"] {
        case.push_at(T0, bucket, &["1", "2", "3"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 1, "the provider lets out one");
    beat(&mut case, T0);
    case
}

#[test]
fn a_budget_at_its_rate_and_the_turn_of_each_that_waits_for_a_share() {
    let mut case = saturated();
    case.settle_at(T0 + 2 * S);
    let mut waits: Vec<String> = Vec::new();
    for bucket in ["twilio:a:1", "twilio:a:2", "twilio:a:3"] {
        let said = says(&mut case, T0 + 2 * S, bucket);
        assert_eq!(said.len(), 1);
        waits.push(said[0].replace(bucket, "X"));
    }
    waits.sort();
    let head =
        "the next job of budget twilio leaves in 18.0 s: it is at its rate; X waits for its share of budget twilio:a";
    assert_eq!(
        waits,
        [
            format!("{head} after 1 other of 3"),
            format!("{head} after 2 others of 3"),
            format!("{head} as the first of 3"),
        ]
    );
    let said = says(&mut case, T0 + 2 * S, "twilio:b:1");
    let words = "the next job of budget twilio leaves in 18.0 s: it is at its rate; \
                 twilio:b:1 waits for its share of budget twilio:b as the first of 1";
    assert_eq!(said, [words]);
    let json = serde_json::to_value(explain(&mut case, T0 + 2 * S, "twilio:b:1")).expect("JSON");
    assert_eq!((&json["binds"], &json["place"]), (&json!("share"), &json!("share")));
    assert_eq!(json["binds_at"], json!({ "kind": "budget", "name": "twilio" }));
    let names: Vec<_> = json["chain"].as_array().expect("a list").iter().map(|link| link["name"].clone()).collect();
    assert_eq!(names, ["twilio:b:1", "twilio:b", "twilio"]);
    assert_eq!(json["chain"][1]["share"], json!({ "of": "twilio", "waiting": 1, "ahead": 0 }));
}

#[test]
fn a_budget_is_explained_by_itself() {
    let mut case = saturated();
    case.settle_at(T0 + 2 * S);
    let said = budget(&mut case, T0 + 2 * S, "twilio");
    assert_eq!(said.says(), "the next job leaves in 18.0 s: budget twilio is at its rate; 1 waits for a share of it");
    let said = budget(&mut case, T0 + 2 * S, "twilio:a");
    let words = "the next job of budget twilio leaves in 18.0 s: it is at its rate; 3 wait for a share of it";
    assert_eq!(said.says(), words, "its own three seconds are over before");
    assert_eq!(budget(&mut case, T0, "twilio:z").says(), "nothing waits for a share of budget twilio:z");
    assert_eq!(case.refusal("drip__explain_budget", &["policy"], &[T0.to_string(), "acme".to_owned()]), "BADARG");
}

#[test]
fn a_pause_above_is_named_with_whoever_made_it() {
    let mut case = saturated();
    case.settle_at(T0 + 2 * S);
    set(&mut case, T0 + 2 * S, "{twilio}", "pause", "yes", &json!({}));
    let words = "nothing leaves until `dripd resume --budget twilio`: budget twilio is paused by root@web1 08:00";
    let nobody = "nothing leaves: no daemon runs; start one with `dripd run`";
    assert_eq!(says(&mut case, T0 + 30 * S, "twilio:b:1"), [nobody]);
    beat(&mut case, T0 + 30 * S);
    assert_eq!(says(&mut case, T0 + 30 * S, "twilio:b:1"), [words]);
    assert_eq!(budget(&mut case, T0 + 30 * S, "twilio").says(), format!("{words}; 1 waits for a share of it"));
}

#[test]
fn the_level_that_keeps_a_job_back_for_longest_is_the_one_that_binds() {
    let mut case = Case::with(TREE);
    case.push_at(T0, "twilio:a:1", &["1", "2"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    beat(&mut case, T0);
    let at = T0 + S / 2;
    let binds = |case: &mut Case| serde_json::to_value(explain(case, at, "twilio:a:1")).expect("JSON")["binds"].clone();
    // Its own time comes in half a second, that of the account in 4.5, and that of the provider in 19.5.
    let words = "the next job of budget twilio leaves in 19.5 s: it is at its rate";
    assert_eq!((says(&mut case, at, "twilio:a:1"), binds(&mut case)), (vec![words.to_owned()], json!("share")));
    slow_at(&mut case, at, "twilio:a:1", &["PAUSE", "120000", "IN", "twilio:a"]);
    let slow = "the next job of budget twilio:a leaves in 2 m: it is slowed down by";
    let said = says(&mut case, at, "twilio:a:1");
    assert!(said[0].starts_with(slow), "{said:?}");
    assert_eq!(binds(&mut case), json!("slow"));
    slow_at(&mut case, at, "twilio:a:1", &["PAUSE", "180000"]);
    let said = says(&mut case, at, "twilio:a:1");
    assert!(said[0].starts_with("the next job leaves in 3 m: twilio:a:1 is slowed down"), "{said:?}");
    set(&mut case, at, "{twilio}", "pause", "yes", &json!({}));
    let paused = "nothing leaves until `dripd resume --budget twilio`: budget twilio is paused by root@web1 08:00";
    assert_eq!(says(&mut case, at, "twilio:a:1"), [paused], "only a person ends that");
    let empty = says(&mut case, at, "twilio:a:2");
    assert!(empty.contains(&"nothing waits: twilio:a:2 is empty".to_owned()), "it promises nothing: {empty:?}");
}

#[test]
fn a_chain_that_cannot_be_resolved_is_said_first() {
    let toml = "[[budget]]\nmatch = 'twilio:?'\nrate = '1/s'\n[[bucket]]\nmatch = 's:*'\nwithin = 'twilio:{1}'\n";
    let mut case = Case::with(toml);
    beat(&mut case, T0);
    let empty = says(&mut case, T0, "s:long");
    assert!(
        empty.last().expect("a line").starts_with("nothing leaves s:long: no [[budget]] matches twilio:long;"),
        "{empty:?}"
    );
    case.lpush("s:long", &["1"]);
    case.wake_at(T0, &["s:long"]);
    let words = "nothing leaves s:long: no [[budget]] matches twilio:long; \
                 a reload of a configuration that has it, or `dripd set`, ends that";
    assert_eq!(says(&mut case, T0, "s:long"), [words]);
    let json = serde_json::to_value(explain(&mut case, T0, "s:long")).expect("JSON");
    assert_eq!((&json["binds"], &json["place"]), (&json!("refused"), &json!("refused")));
}

#[test]
fn jobs_in_flight_are_counted_where_they_bind() {
    let toml = "[[budget]]\nmatch = 'p'\nconcurrency = 2\n[[bucket]]\nmatch = '*'\nrate = '100/s'\nwithin = 'p'\n";
    let mut case = Case::with(toml);
    beat(&mut case, T0);
    case.push_at(T0, "a", &["1", "2", "3", "4"]);
    let mut now = T0;
    for _ in 0..9 {
        case.settle_at(now);
        now += 20_000;
    }
    assert_eq!(case.stream("ready").len(), 2);
    let words = "nothing leaves until a job in flight is finished: budget p has 2 jobs out, its concurrency is 2";
    assert_eq!(says(&mut case, now, "a"), [words]);
    let json = serde_json::to_value(explain(&mut case, now, "a")).expect("JSON");
    assert_eq!((&json["binds"], &json["chain"][1]["slots"]), (&json!("slot"), &json!({ "taken": 2, "of": 2 })));
    assert!(json["chain"][1]["rate"].is_null());
}

#[test]
fn each_number_of_a_chain_says_which_line_of_the_file_it_comes_from() {
    let mut case = Case::bare();
    configure(&mut case, T0, TREE);
    beat(&mut case, T0);
    case.push_at(T0, "twilio:a:1", &["1"]);
    let text = explain(&mut case, T0, "twilio:a:1").text();
    for line in [
        "web1:/etc/dripd/config.toml:11 [[bucket]] match \"twilio:*:*\"\n",
        "web1:/etc/dripd/config.toml:6 [[budget]] match \"twilio:*\"\n",
        "web1:/etc/dripd/config.toml:2 [[budget]] match \"twilio\"\n",
        "  0 wait for a share of it\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    set(&mut case, T0, "{twilio:a}", "rate", "\"1/s\"", &json!({ "count": 1, "period_us": S }));
    let text = explain(&mut case, T0, "twilio:a:1").text();
    assert!(text.contains("twilio:a  1/s         set by root@web1 08:00\n"), "{text}");
    let other = "web1:/etc/dripd/config.toml:2 [[budget]] match \"twilio\"\n";
    assert!(text.contains(other), "what is set elsewhere changes nothing of where this comes from\n{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn what_would_leave_a_bucket_or_a_budget_without_its_budgets_is_not_set() {
    let mut case = Case::with(TREE);
    for (name, within) in [("x", "nobody"), ("{twilio:a}", "gone"), ("x*", "nobody"), ("{twilio}", "twilio:a")] {
        let c = json!({
            "match": name, "is_glob": name.contains('*'),
            "set": { "within": { "text": within, "policy": { "within": within } } },
        });
        assert_eq!(
            case.refusal("drip__set", &["policy"], &[T0.to_string(), c.to_string()]),
            "BADARG",
            "{name} {within}"
        );
    }
    set(&mut case, T0, "x", "within", "twilio:a", &json!({ "within": "twilio:a" }));
    let names = case.key("settings");
    assert_eq!(case.cmd::<Vec<String>>(&["HKEYS", &names]), ["x"], "nothing of the others is stored");
}

/// A child of a budget waits in the line of that, and the budget in the line of the route: with a turn for each child.
#[test]
fn below_a_budget_that_is_held_its_turn_among_all_who_wait_for_the_workers() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 2\n[[budget]]\nmatch = 'p'\nrate = '100/s'\n\
         [[bucket]]\nmatch = 'a*'\nwithin = 'p'\n",
    );
    case.push_at(T0, "first", &["1"]);
    case.push_at(T0, "second", &["1"]);
    case.settle_at(T0);
    for (n, bucket) in ["a1", "a2", "a3", "plain"].into_iter().enumerate() {
        case.push_at(T0 + S, bucket, &["1", "2"]);
        case.settle_at(T0 + S + n as u64);
    }
    let now = T0 + 62 * S;
    case.settle_at(now);
    beat(&mut case, now);
    let words = "held: a1 waits since 00:00, and nobody takes jobs of route default: 2 jobs are ready, the oldest for 62.0 s, no leases are held";
    assert_eq!(says(&mut case, now, "a1").len(), 1);
    assert_eq!(says(&mut case, now, "a1")[0].split(" and ").last(), words.split(" and ").last());
    case.take("ready", 1);
    case.settle_at(now);
    case.settle_at(now + S);
    let now = now + S;
    let four = "held: the workers of route default take 58/h, and 4 buckets wait for them; its turn comes in about ";
    let mut turns = Vec::new();
    for bucket in ["a1", "a2", "a3", "plain"] {
        let said = says(&mut case, now, bucket);
        turns.push(said[0].strip_prefix(four).unwrap_or_else(|| panic!("{bucket}: {said:?}")).to_owned());
    }
    // a1 has just had its turn, so the others below the budget, and `plain`, have theirs first.
    assert_eq!(turns, ["3 m 6 s", "62.0 s", "2 m 4 s", "62.0 s"]);
    assert_eq!(case.routes(now)[0].held, 4);
}
