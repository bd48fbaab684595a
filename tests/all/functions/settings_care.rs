//! What settings must not do: be stored though they make no policy, hold for longer than they were made for, be forgotten with another
//! key, or hide from whoever asks what is in force.

use dripd::store::change::Change;
use redis::FromRedisValue as _;
use serde_json::{Value as Json, json};

use super::settings_table::{change, take_back};
use crate::rig::{Case, MS, S, T0};

type Told = (i64, Vec<String>, String);

#[track_caller]
fn make(case: &mut Case, now: u64, change: &Change) -> Told {
    let json = serde_json::to_string(change).expect("JSON");
    let told: Told = case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
    assert_eq!(told.0, 1, "{change:?}");
    told
}

#[track_caller]
fn set(case: &mut Case, now: u64, pattern: &str, words: &[&str], for_us: Option<u64>) {
    make(case, now, &change(pattern, words, for_us));
}

fn capacity(case: &mut Case, now: u64, bucket: &str) -> i64 {
    case.peek_at(now, bucket)[2]
}

#[test]
fn what_makes_no_policy_is_refused_and_nothing_of_it_is_stored() {
    let mut case = Case::with("[defaults]\ncapacity = 9\n");
    let unknown = json!([{ "limiter": "tidal-window", "args": ["1", "2"] }]);
    for fields in [
        json!({ "count": 0 }),
        json!({ "count": "5" }),
        json!({ "period_us": -1 }),
        json!({ "capacity": null }),
        json!({ "admit": "5/s" }),
        json!({ "admit": unknown }),
        json!({ "colour": "green" }),
    ] {
        let c = json!({ "match": "a", "is_glob": false, "set": { "rate": { "text": "?", "policy": fields } } });
        assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), c.to_string()]), "BADARG", "{c}");
    }
    let long = json!({ "match": "a", "is_glob": false, "reason": "x".repeat(1_001), "set": { "pause": { "text": "", "policy": {} } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), long.to_string()]), "BADARG");
    let key = case.key("settings");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &key]), 0);
}

#[test]
fn a_setting_that_a_newer_version_stored_and_this_one_cannot_use_stops_nobody() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 9\n");
    set(&mut case, T0, "a", &["capacity=3"], None);
    set(&mut case, T0, "b*", &["capacity=4"], None);
    let unknown = json!({ "lasting": { "text": "?", "policy": { "admit": [{ "limiter": "tidal-window", "args": [] }] }, "since": "1", "seq": 9 } });
    let (settings, globs, policy) = (case.key("settings"), case.key("globs"), case.key("policy"));
    let mut entry: Json = serde_json::from_str(&case.cmd::<String>(&["HGET", &settings, "a"])).expect("JSON");
    entry["keys"]["admit"] = unknown.clone();
    let mut all: Json = serde_json::from_str(&case.cmd::<String>(&["GET", &globs])).expect("JSON");
    all["globs"]["b*"]["keys"]["admit"] = unknown;
    let _: i64 = case.cmd(&["HSET", &settings, "a", &entry.to_string()]);
    let _: String = case.cmd(&["SET", &globs, &all.to_string()]);
    let _: i64 = case.cmd(&["HSET", &policy, "settings", "of another server"]);
    case.lpush("a", &["1"]);
    case.lpush("b1", &["2"]);
    let queues = [case.queue("a"), case.queue("b1")];
    let woken: Vec<redis::Value> = case.cmd(&["FCALL", "drip__wake", "2", &queues[0], &queues[1], &T0.to_string()]);
    assert_eq!(woken[1], redis::Value::Int(2), "the file's policy holds");
    let notes = Vec::<String>::from_redis_value_ref(&woken[6]).expect("notes");
    assert_eq!(notes[..2], ["newer".to_owned(), settings], "and the daemon is told");
    assert_eq!([capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b1")], [9, 9]);
}

#[test]
fn what_is_set_for_a_while_ends_no_later_though_the_clock_steps_back() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 9\n");
    set(&mut case, T0, "a", &["capacity=3"], Some(60 * S));
    set(&mut case, T0, "b*", &["capacity=4"], Some(60 * S));
    case.settle_at(T0 + S);
    let hour_ago = T0 - 3_600 * S;
    case.settle_at(hour_ago);
    assert_eq!([capacity(&mut case, hour_ago, "a"), capacity(&mut case, hour_ago, "b1")], [3, 4], "they hold on");
    let later = hour_ago + 61 * S;
    case.settle_at(later);
    assert_eq!(
        [capacity(&mut case, later, "a"), capacity(&mut case, later, "b1")],
        [9, 9],
        "a minute later they do not"
    );
    let left: Vec<String> = ["settings", "globs", "ends"].iter().map(|name| case.key(name)).collect();
    assert_eq!(case.cmd::<i64>(&["EXISTS", &left[0], &left[1], &left[2]]), 0, "and nothing of them is left");
}

#[test]
fn what_is_set_outlives_a_policy_key_that_somebody_deleted() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 9\n");
    set(&mut case, T0, "a", &["capacity=3"], None);
    set(&mut case, T0, "b*", &["pause"], None);
    let policy = case.key("policy");
    let _: i64 = case.cmd(&["DEL", &policy]);
    assert_eq!(case.configure("[defaults]\nrate = '1/s'\ncapacity = 8\n"), 1);
    case.lpush("b1", &["x"]);
    let drained = case.wake_at(T0 + S, &["b1"]);
    assert_eq!((drained.dispatched, capacity(&mut case, T0 + S, "a")), (0, 3));
}

#[test]
fn who_takes_a_glob_back_is_told_of_another_one_that_means_all_of_its_buckets() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    set(&mut case, T0, "*", &["pause"], None);
    set(&mut case, T0, "sms:*", &["pause"], None);
    let resume = |asks| Change { asks: Some(asks), ..take_back("sms:*", &["pause"]) };
    assert_eq!(make(&mut case, T0, &resume("paused")).2, "*");
    set(&mut case, T0, "sms:*", &["pause"], None);
    assert_eq!(make(&mut case, T0, &resume("closed")).2, "", "nothing closes them");
    make(&mut case, T0, &take_back("*", &["pause"]));
    set(&mut case, T0, "sms:*", &["pause"], None);
    assert_eq!(make(&mut case, T0, &resume("paused")).2, "");
}

#[test]
fn who_sets_or_takes_back_is_told_what_holds_in_place_of_it() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 9\n");
    let others = |change: Change| Change { asks: Some("others"), ..change };
    let told = |told: &Told| serde_json::from_str::<Json>(&told.2).expect("JSON");
    let hour = make(&mut case, T0, &others(change("a", &["capacity=3"], Some(3_600 * S))));
    let till = (T0 + 3_600 * S).to_string();
    assert_eq!(told(&hour), json!({ "capacity": { "text": "3", "match": "a", "till": till } }));
    let lasting = make(&mut case, T0, &others(change("a", &["capacity=5"], None)));
    assert_eq!(
        told(&lasting),
        json!({ "capacity": { "text": "3", "match": "a", "till": till } }),
        "the timed one lies over it"
    );
    set(&mut case, T0, "a*", &["capacity=7"], None);
    let back = make(&mut case, T0, &others(take_back("a", &["capacity"])));
    assert_eq!(told(&back), json!({ "capacity": { "text": "7", "match": "a*" } }));
    assert_eq!(make(&mut case, T0, &others(take_back("a*", &["capacity"]))).2, "");
}

#[test]
fn what_stands_where_is_not_believed_for_longer_because_somebody_reads() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    case.lpush("a", &["1"]);
    case.wake_at(T0, &["a"]);
    let rest = case.key("rest");
    // Another server was the primary for a while; this one replicated, and answered those who only read.
    let _: i64 = case.cmd(&["ZADD", &rest, &(T0 + S).to_string(), "b"]);
    for n in 0..=200 {
        case.peek_at(T0 + n * 100 * MS, "a");
    }
    case.settle_at(T0 + 20 * S);
    assert_eq!(case.cmd::<Option<f64>>(&["ZSCORE", &rest, "b"]), None, "what rested for long enough leaves no key");
}
