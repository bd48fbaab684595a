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
        json!({ "count": 1e15 }),
        json!({ "count": 1.5 }),
        json!({ "capacity": -5 }),
        json!({ "capacity": 1e300 }),
        json!({ "attempts": 0 }),
        json!({ "lease_ms": 0 }),
        json!({ "overflow": "banana" }),
        json!({ "route": "a b" }),
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
    let odd = json!({ "match": "a", "is_glob": false, "set": { "colour": { "text": "green", "policy": {} } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), odd.to_string()]), "BADARG");
    let endless =
        json!({ "match": "a", "is_glob": false, "for_us": 1e300, "set": { "pause": { "text": "", "policy": {} } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), endless.to_string()]), "BADARG");
    let key = case.key("settings");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &key]), 0);
}

#[test]
fn a_setting_that_a_newer_version_stored_and_this_one_cannot_use_is_left_out_alone() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 9\n");
    set(&mut case, T0, "a", &["capacity=3"], None);
    set(&mut case, T0, "b*", &["capacity=4"], None);
    set(&mut case, T0, "c", &["pause"], None);
    set(&mut case, T0, "d*", &["close"], None);
    let unknown = json!({ "lasting": { "text": "?", "policy": { "admit": [{ "limiter": "tidal-window", "args": [] }] }, "since": "1", "seq": 9 } });
    let (settings, globs, policy) = (case.key("settings"), case.key("globs"), case.key("policy"));
    for name in ["a", "c"] {
        let mut entry: Json = serde_json::from_str(&case.cmd::<String>(&["HGET", &settings, name])).expect("JSON");
        entry["keys"]["admit"] = unknown.clone();
        let _: i64 = case.cmd(&["HSET", &settings, name, &entry.to_string()]);
    }
    let mut all: Json = serde_json::from_str(&case.cmd::<String>(&["GET", &globs])).expect("JSON");
    for name in ["b*", "d*"] {
        all["globs"][name]["keys"]["admit"] = unknown.clone();
    }
    let _: String = case.cmd(&["SET", &globs, &all.to_string()]);
    let _: i64 = case.cmd(&["HSET", &policy, "settings", "of another server"]);
    for bucket in ["a", "b1", "c", "d1"] {
        case.lpush(bucket, &["job"]);
    }
    let queues = ["a", "b1", "c", "d1"].map(|bucket| case.queue(bucket));
    let mut wake = vec!["FCALL", "drip__wake", "4"];
    wake.extend(queues.iter().map(String::as_str));
    let now = T0.to_string();
    wake.push(&now);
    let woken: Vec<redis::Value> = case.cmd(&wake);
    assert_eq!(woken[1], redis::Value::Int(2), "a and b leave, c is paused, d is closed");
    let notes = Vec::<String>::from_redis_value_ref(&woken[6]).expect("notes");
    assert_eq!(notes[..2], ["newer".to_owned(), settings], "and the daemon is told");
    assert_eq!(["a", "b1", "d1"].map(|bucket| capacity(&mut case, T0, bucket)), [3, 4, 0]);
    assert_eq!(case.waiting("c").len(), 1);
}

#[test]
fn settings_of_the_wrong_type_hold_up_no_sweep() {
    for (key, good, bad) in [("globs", "SET", "LPUSH"), ("ends", "ZADD", "LPUSH")] {
        let mut case = Case::with("[defaults]\nrate = '1/s'\n");
        set(&mut case, T0, "a", &["capacity=3"], Some(S));
        let name = case.key(key);
        let _: i64 = case.cmd(&["DEL", &name]);
        let _: i64 = case.cmd(&[bad, &name, "odd"]);
        case.lpush("b", &["1", "2"]);
        assert_eq!(case.wake_at(T0, &["b"]).dispatched, 1, "{good}");
        assert_eq!(case.settle_at(T0 + S).dispatched, 1, "{key}");
        let held = case.key("rest");
        let far = (T0 + 9_000 * S).to_string();
        let _: i64 = case.cmd(&["ZADD", &held, &far, "c"]);
        case.settle_at(T0 - 60 * S);
        let due: Option<f64> = case.cmd(&["ZSCORE", &held, "c"]);
        assert_eq!(
            due,
            Some((T0 - 59 * S) as f64),
            "the sweep after a step of the clock has come by, in spite of {key}"
        );
    }
}

#[test]
fn a_glob_that_closes_before_any_record_is_stored_throws_nothing_out() {
    for words in [["close"], ["capacity=5"]] {
        let mut case = Case::with("");
        let jobs: Vec<String> = (0..80).map(|n| n.to_string()).collect();
        let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        assert_eq!(case.push_at(T0, "sms:a", &jobs)[0], 80);
        let policy = case.key("policy");
        let _: i64 = case.cmd(&["DEL", &policy]);
        set(&mut case, T0 + 1, "sms:*", &words, None);
        assert_eq!(case.configure("[defaults]\ncapacity = 100\n"), 1);
        case.settle_at(T0 + 2);
        assert_eq!((case.waiting("sms:a").len(), case.stream("rejected").len()), (79, 0), "{words:?}");
        assert_eq!(case.push_at(T0 + 3, "sms:a", &["late"])[0], 0);
    }
}

#[test]
fn a_retry_is_announced_again_where_the_call_that_announced_it_failed() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    for bucket in ["a", "b"] {
        case.lpush(bucket, &["job"]);
        case.wake_at(T0, &[bucket]);
    }
    for entry in case.take("ready", 2) {
        let args = [(T0 + MS).to_string(), entry.id, "RETRY_IN".to_owned(), "1000".to_owned()];
        let _: redis::Value = case.fcall("drip__fail", &["ready"], &args);
    }
    case.settle_at(T0 + 2 * MS);
    set(&mut case, T0 + 500 * MS, "b*", &["rate=2/h"], None);
    let reached = case.key("reached");
    let _: String = case.cmd(&["SET", &reached, "odd"]);
    let _ = case.try_fcall::<redis::Value>("drip__drain", &["schedule"], &[(T0 + 2 * S).to_string()]);
    let _: i64 = case.cmd(&["DEL", &reached]);
    case.settle_at(T0 + 3 * S);
    case.settle_at(T0 + 3_600 * S + S);
    let mut left: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("bucket")).collect();
    left.sort();
    assert_eq!(left, ["a", "b"], "each once more: what was finished is deleted");
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
    set(&mut case, T0, "sms:?", &["pause"], None);
    set(&mut case, T0, "sms:*", &["pause"], None);
    assert_eq!(make(&mut case, T0, &resume("paused")).2, "", "one that means fewer");
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
    set(&mut case, T0, "a*", &["capacity=7"], None);
    set(&mut case, T0, "ab*", &["capacity=8"], None);
    let back = make(&mut case, T0, &others(take_back("ab*", &["capacity"])));
    assert_eq!(told(&back), json!({ "capacity": { "text": "7", "match": "a*" } }));
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

#[test]
fn what_had_ended_by_a_clock_that_steps_back_holds_until_its_end_comes_again() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    case.push_at(T0, "a", &["1", "2"]);
    set(&mut case, T0, "a", &["pause"], Some(60 * MS));
    set(&mut case, T0, "b*", &["capacity=4"], Some(60 * MS));
    let _ = [capacity(&mut case, T0 + 130 * MS, "a"), capacity(&mut case, T0 + 130 * MS, "b1")]; // a look, and nothing is put right
    assert_eq!(case.settle_at(T0 + 30 * MS).dispatched, 0, "it is paused");
    assert_eq!(capacity(&mut case, T0 + 30 * MS, "b1"), 4);
    assert_eq!(case.settle_at(T0 + 60 * MS).dispatched, 1);
}

#[test]
fn jobs_of_a_route_that_only_operators_have_set_are_reaped_though_it_was_empty_before() {
    let mut case = Case::with("[defaults]\nlease = '1s'\n");
    set(&mut case, T0, "a", &["route=mail"], None);
    let taken_back = |case: &mut Case| {
        let reply: Vec<redis::Value> = case.fcall("drip__reap", &["policy"], &["", "1", "", ""]);
        u64::from_redis_value(reply[3].clone()).expect("a number")
    };
    assert_eq!(taken_back(&mut case), 0);
    case.push_at(T0, "a", &["x"]);
    case.settle_at(T0);
    let (entry, key) = (case.take("ready:mail", 1).remove(0), case.key("ready:mail"));
    let _: redis::Value = case.cmd(&["XCLAIM", &key, "workers", "w", "0", &entry.id, "IDLE", "5000", "JUSTID"]);
    assert_eq!(taken_back(&mut case), 1, "its lease has ended");
}
