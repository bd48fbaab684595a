//! A client that adds a prefix to its keys, as ioredis' `keyPrefix` does, comes to a space that no daemon serves. It is told so.

use redis::Value;

use crate::rig::{Case, S, T0};

/// Every public function about jobs, with a key and arguments that it would take.
const CALLS: [(&str, &str, &[&str]); 11] = [
    ("drip_push", "queue:a", &["job"]),
    ("drip_peek", "queue:a", &[]),
    ("drip_submit", "queue:a", &["job", "ID", "1"]),
    ("drip_find", "queue:a", &["1"]),
    ("drip_cancel", "queue:a", &["1"]),
    ("drip_slow", "queue:a", &["PAUSE", "1000"]),
    ("drip_told", "queue:a", &["0", "1000"]),
    ("drip_ack", "ready", &["1-1"]),
    ("drip_ack", "ready:fast", &["1-1", "COST", "5", "REMAINING", "0", "RESET", "1000"]),
    ("drip_fail", "ready", &["1-1", "REASON", "x"]),
    ("drip_adjust", "ready", &["1-1", "+1"]),
];

#[test]
fn every_public_function_refuses_a_prefix_without_policies_and_names_it_and_changes_nothing() {
    crate::roles::as_roles();
    let mut case = Case::new();
    let prefix = case.prefix.clone();
    case.prefix = format!("shop:{prefix}");
    for (name, key, args) in CALLS {
        let why = case.try_fcall::<Value>(name, &[key], args).expect_err(name);
        assert_eq!(why.code(), Some("BADBUCKET"), "{name}: {why}");
        let says = why.detail().unwrap_or_default();
        for part in [&format!("\"shop:{prefix}\""), "does your client add a key prefix?", "try again"] {
            assert!(says.contains(part), "{name}: {says}");
        }
    }
    let all: Vec<Vec<String>> = case.fcall("drip_submit_all", &["queue:a"], &["0", "1", "job"]);
    assert!(all[0][0].starts_with("BADBUCKET no policies are stored"), "{all:?}");
    assert_eq!(case.keys(), Vec::<String>::new());
    case.prefix = prefix;
    for (name, key, args) in CALLS {
        case.try_fcall::<Value>(name, &[key], args).expect(name);
    }
}

#[test]
fn a_space_whose_record_is_away_refuses_pushes_until_it_is_back_and_its_workers_go_on() {
    let mut case = Case::new();
    case.push_at(T0, "a", &["1", "2"]);
    case.drain_at(T0);
    let entry = case.take("ready", 1).remove(0);
    let policy = case.key("policy");
    let _: i64 = case.cmd(&["DEL", &policy]);
    assert_eq!(case.refusal("drip_push", &["queue:a"], &["3"]), "BADBUCKET");
    assert_eq!(case.refusal("drip_peek", &["queue:a"], &[""; 0]), "BADBUCKET");
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&entry.id]), 1, "what a worker holds is there");
    assert_eq!(case.refusal("drip_ack", &["ready"], &[&entry.id]), "BADBUCKET");
    assert_eq!(case.configure(""), 1);
    assert_eq!(case.push_at(T0 + S, "a", &["3"])[..2], [1, 2]);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&entry.id]), 0);
}
