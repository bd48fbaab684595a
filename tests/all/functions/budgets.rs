//! Budgets: pace on every node of a tree, what waits for a share and where, what the doors say, and what happens when operators or
//! a reload change something above a bucket.

use super::flow::{audit, excess, jobs, left};
use crate::rig::{Case, MS, S, Server, T0};

const TREE: &str = "[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[budget]]\nmatch = 'p:*'\nrate = '8/s'\nwithin = 'p'\n\
                    [[bucket]]\nmatch = 'p:*:*'\nrate = '6/s'\nwithin = 'p:{1}'\n[defaults]\nrate = '100/s'\ncapacity = 100\n";

/// Let time pass from due to due, as a daemon does, with a look at everything after each step.
fn run(case: &mut Case, mut now: u64, until: u64) {
    loop {
        let wait = case.settle_at(now).wait_us;
        audit(case);
        if wait < 0 || now + wait as u64 > until {
            break;
        }
        now += wait as u64;
    }
    case.settle_at(until);
}

#[test]
fn an_entry_says_the_due_from_which_its_budget_went_on() {
    let mut case = Case::with(TREE);
    // A state that a server left which ended in the middle of something: it went on, and has no work.
    let (budgets, schedule, went_on) = (case.key("budgets"), case.key("schedule"), T0 + 90 * MS);
    let _: i64 = case.cmd(&["HSET", &budgets, "{p:a}", &format!("0 {went_on} 0 0 rest")]);
    case.lpush("p:a:1", &["x"]);
    let _: i64 = case.cmd(&["ZADD", &schedule, &(T0 + 50 * MS).to_string(), "p:a:1"]);
    case.drain_at(T0 + 100 * MS);
    assert_eq!(case.stream("ready")[0].number("due_us"), went_on);
}

#[test]
fn every_node_of_a_tree_keeps_its_pace() {
    let mut case = Case::with(TREE);
    for bucket in ["p:a:1", "p:a:2", "p:b:1", "p:c:1"] {
        case.push_at(T0, bucket, &jobs(40));
    }
    run(&mut case, T0, T0 + 10 * S);
    let all = left(&mut case, "p:");
    assert!((100..=102).contains(&all.len()), "{} jobs in ten seconds at 10/s", all.len());
    assert!(excess(&all, 1, 100 * MS) <= 20 * MS);
    // Three accounts share 10/s, and two senders the part of the first.
    let nodes = [
        ("p:a", 125, 33),
        ("p:b", 125, 33),
        ("p:a:1", 167, 16),
        ("p:a:2", 167, 16),
        ("p:b:1", 167, 33),
        ("p:c:1", 167, 33),
    ];
    for (head, ms, share) in nodes {
        // Inside a budget a node may make up for an interval of its own, or two of its parent's.
        let at = left(&mut case, head);
        assert!(excess(&at, 1, ms * MS) <= 250 * MS, "{head}: {}", excess(&at, 1, ms * MS));
        assert!((share - 1..=share + 2).contains(&at.len()), "{head}: {} jobs", at.len());
    }
}

#[test]
fn what_a_budget_leaves_is_gone_when_it_has_come_to_rest() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, TREE);
    for bucket in ["p:a:1", "p:b:1"] {
        case.push_at(T0, bucket, &jobs(3));
    }
    run(&mut case, T0, T0 + 20 * S);
    let left: Vec<String> = case
        .keys()
        .into_iter()
        .filter(|key| !["policy", "ready", "routes", "stats", "wake"].contains(&key.as_str()))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_bucket_whose_chain_cannot_be_resolved_lets_nothing_out_and_a_reload_ends_it() {
    let toml =
        "[[budget]]\nmatch = 'p:a*'\nrate = '10/s'\n[[bucket]]\nmatch = 'p:*:*'\nrate = '6/s'\nwithin = 'p:{1}'\n";
    let mut case = Case::with(toml);
    case.lpush("p:b:1", &["x"]);
    case.wake_at(T0, &["p:b:1"]);
    case.settle_at(T0 + S);
    assert_eq!(case.stream("ready").len(), 0);
    let args = [T0.to_string(), "y".into()];
    let key = "queue:p:b:1";
    let refused = case.try_fcall::<redis::Value>("drip__push", &[key], &args).expect_err("it is refused");
    assert_eq!(refused.code(), Some("BADBUCKET"));
    assert_eq!(refused.detail(), Some("p:b:1 has no budget to leave through: no [[budget]] matches p:b"));
    audit(&mut case);
    case.configure_at(&(T0 + S).to_string(), &toml.replace("p:a*", "p:*"));
    case.settle_at(T0 + S);
    assert_eq!(case.stream("ready").len(), 1);
    audit(&mut case);
}

#[test]
fn a_budget_may_be_named_by_a_number() {
    let mut case = Case::with(
        "[[budget]]\nmatch = '5'\nrate = '10/s'\n[[bucket]]\nmatch = 'a:*'\nwithin = '5'\n\
         [[bucket]]\nmatch = '*:b'\nwithin = '{1}'\n",
    );
    for bucket in ["a:1", "5:b"] {
        case.push_at(T0, bucket, &jobs(5));
    }
    run(&mut case, T0, T0 + 900 * MS);
    assert_eq!(left(&mut case, "").len(), 10);
    assert!(excess(&left(&mut case, ""), 1, 100 * MS) <= 20 * MS);
}

#[test]
fn the_doors_reckon_with_every_budget_above() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '1/s'\ncatch_up = '0s'\n[[bucket]]\nmatch = '*'\nrate = '10/s'\ncapacity = 3\nwithin = 'p'\n",
    );
    assert_eq!(case.push_at(T0, "a", &["1", "2"])[4], 1_000, "the second one is due a second after the first");
    case.settle_at(T0);
    assert_eq!(case.push_at(T0, "b", &["1", "2", "3"])[4], 3_000, "siblings are left out: they come one a second");
    assert_eq!(case.push_at(T0, "b", &["4"]), [0, 3, 3, 1_000, -1], "room comes when the next one leaves");
    assert_eq!(case.peek_at(T0 + 400 * MS, "b"), [0, 3, 3, 600, 600]);
}

#[test]
fn a_paused_budget_stops_what_is_below_it_and_goes_on_with_no_credit() {
    let mut case =
        Case::with("[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[bucket]]\nmatch = '*'\nrate = '1/h'\nwithin = 'p'\n");
    for n in 0..20 {
        case.push_at(T0, &format!("a{n}"), &["1", "2"]);
    }
    run(&mut case, T0, T0 + 500 * MS);
    let before = case.stream("ready").len();
    let change = |what: &str, set: &str, unset: &str| {
        format!(
            r#"{{"what":"{what}","match":"{{p}}","is_glob":false,"set":{set},"unset":{unset},"unset_all":false,"by":"me","user":"u"}}"#
        )
    };
    let pause = change("pause", r#"{"pause":{"text":"yes","policy":{}}}"#, "[]");
    let _: redis::Value = case.fcall("drip__set", &["policy"], &[(T0 + 500 * MS).to_string(), pause]);
    audit(&mut case);
    case.settle_at(T0 + 7_200 * S);
    assert_eq!(case.stream("ready").len(), before, "nothing leaves");
    let resume = change("resume", "{}", r#"["pause"]"#);
    let now = T0 + 7_200 * S;
    let _: redis::Value = case.fcall("drip__set", &["policy"], &[now.to_string(), resume]);
    run(&mut case, now, now + S);
    let after: Vec<_> = case.stream("ready").split_off(before);
    assert!((10..=12).contains(&after.len()), "{} at 10/s: the pause earned nothing", after.len());
    for entry in &after {
        assert!(entry.number("due_us") >= now, "the pause is no lateness");
    }
    let mut names: Vec<String> = after.iter().map(|entry| entry.text("bucket")).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), after.len(), "no child at 1/h got a second job");
}
