//! What operators set at run time: which policy a bucket has then, when it counts, and where a paused bucket waits.

use serde_json::{Value as Json, json};

use crate::rig::Case;

const T0: u64 = 1_800_000_000_000_000;
const S: u64 = 1_000_000;
const MS: u64 = 1_000;

/// The fields that a key stands for, as the program spells them.
fn fields(key: &str, value: &str) -> Json {
    match key {
        "rate" => {
            let (count, period_us) = match value {
                "1/s" => (1, S),
                "5/s" => (5, S),
                "10/s" => (10, S),
                "100/s" => (100, S),
                "1/d" => (1, 86_400 * S),
                other => panic!("{other}"),
            };
            json!({ "count": count, "period_us": period_us })
        }
        "capacity" => json!({ "capacity": value.parse::<u64>().expect("a number") }),
        "attempts" => json!({ "attempts": value.parse::<u64>().expect("a number") }),
        "route" => json!({ "route": value }),
        "overflow" => json!({ "overflow": value }),
        "pause" | "close" => json!({}),
        other => panic!("{other}"),
    }
}

/// What `drip__set` replies: whether it was done, each key with its text before and after, and who pauses the bucket.
type Told = (i64, Vec<String>, String);

fn change(case: &mut Case, now: u64, change: &Json) -> Told {
    case.fcall("drip__set", &["policy"], &[now.to_string(), change.to_string()])
}

fn is_glob(name: &str) -> bool {
    name.contains(['*', '?', '[', '\\'])
}

fn set_for(case: &mut Case, now: u64, name: &str, keys: &[(&str, &str)], for_us: Option<u64>) -> Told {
    let set: serde_json::Map<String, Json> = keys
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!({ "text": value, "policy": fields(key, value) })))
        .collect();
    let mut c = json!({ "match": name, "is_glob": is_glob(name), "set": set, "by": "root@web1", "user": "default", "reason": "why" });
    if let Some(us) = for_us {
        c["for_us"] = json!(us);
    }
    let told = change(case, now, &c);
    assert_eq!(told.0, 1, "{name} {keys:?}");
    told
}

fn set(case: &mut Case, now: u64, name: &str, key: &str, value: &str) -> Told {
    set_for(case, now, name, &[(key, value)], None)
}

fn unset(case: &mut Case, now: u64, name: &str, keys: &[&str]) -> Told {
    change(case, now, &json!({ "match": name, "is_glob": is_glob(name), "unset": keys }))
}

fn capacity(case: &mut Case, now: u64, bucket: &str) -> i64 {
    case.peek_at(now, bucket)[2]
}

/// Where a bucket stands, and its due there.
fn place(case: &mut Case, bucket: &str) -> Vec<(&'static str, u64)> {
    ["schedule", "rest", "paused"]
        .into_iter()
        .filter_map(|name| {
            let key = case.key(name);
            let due: Option<f64> = case.cmd(&["ZSCORE", &key, bucket]);
            due.map(|due| (name, due as u64))
        })
        .collect()
}

/// How late the last job left.
fn lateness(case: &mut Case) -> u64 {
    let entry = case.stream("ready").pop().expect("one left");
    entry.number("at_us") - entry.number("due_us")
}

/// How many jobs leave at a time, and how long to wait then.
fn drain(case: &mut Case, now: u64) -> (i64, i64) {
    let drained = case.settle_at(now);
    (drained.dispatched, drained.wait_us)
}

fn keys_left(case: &mut Case) -> Vec<String> {
    let mut left: Vec<String> = case.keys();
    left.retain(|key| !["policy", "ready", "routes", "wake", "stats", "events"].contains(&key.as_str()));
    left
}

#[test]
fn a_setting_wins_over_the_file_and_unset_is_back_to_it() {
    let mut case = Case::with("[defaults]\ncapacity = 9\n[[bucket]]\nmatch = 'a'\ncapacity = 8\n");
    assert_eq!(set(&mut case, T0, "a", "capacity", "3").1, ["capacity", "", "3"]);
    assert_eq!((capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b")), (3, 9));
    assert_eq!(set(&mut case, T0, "a", "capacity", "4").1, ["capacity", "3", "4"]);
    assert_eq!(set(&mut case, T0, "b", "capacity", "2").1, ["capacity", "", "2"]);
    assert_eq!((capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b")), (4, 2));
    assert_eq!(unset(&mut case, T0, "a", &["rate"]).0, 0, "nothing of that was set");
    assert_eq!(unset(&mut case, T0, "a", &["capacity"]).1, ["capacity", "4", ""]);
    assert_eq!((capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b")), (8, 2));
    let all = json!({ "match": "b", "is_glob": false, "unset_all": true });
    assert_eq!(change(&mut case, T0, &all).1, ["capacity", "2", ""]);
    assert_eq!(capacity(&mut case, T0, "b"), 9);
    assert_eq!(keys_left(&mut case), [""; 0], "nothing is left of settings that are taken back");
}

#[test]
fn a_name_wins_over_globs_and_of_globs_the_one_set_last_for_each_key() {
    let mut case = Case::with("[defaults]\ncapacity = 9\n");
    set(&mut case, T0, "a*", "capacity", "3");
    set(&mut case, T0, "*b", "capacity", "4");
    assert_eq!(capacity(&mut case, T0, "ab"), 4);
    set(&mut case, T0, "a*", "rate", "1/s");
    assert_eq!(capacity(&mut case, T0, "ab"), 4, "another key of it was set last, not this one");
    set(&mut case, T0, "a*", "capacity", "5");
    assert_eq!((capacity(&mut case, T0, "ab"), capacity(&mut case, T0, "b")), (5, 4));
    set(&mut case, T0, "ab", "capacity", "6");
    set(&mut case, T0, "*b", "capacity", "7");
    assert_eq!((capacity(&mut case, T0, "ab"), capacity(&mut case, T0, "b")), (6, 7));
    unset(&mut case, T0, "ab", &["capacity"]);
    assert_eq!(capacity(&mut case, T0, "ab"), 7);
    unset(&mut case, T0, "*b", &["capacity"]);
    assert_eq!((capacity(&mut case, T0, "ab"), capacity(&mut case, T0, "b")), (5, 9));
}

#[test]
fn a_timed_setting_lies_over_the_lasting_one_and_ends_by_itself_without_a_daemon() {
    let mut case = Case::with("[defaults]\ncapacity = 9\n");
    set(&mut case, T0, "a", "capacity", "5");
    set_for(&mut case, T0, "a", &[("capacity", "3")], Some(10 * S));
    assert_eq!(capacity(&mut case, T0 + 10 * S - 1, "a"), 3);
    assert_eq!(capacity(&mut case, T0 + 10 * S, "a"), 5, "no daemon has made a call");
    assert_eq!(case.push_at(T0 + 10 * S, "a", &["x"])[2], 5);
    set_for(&mut case, T0, "b*", &[("capacity", "4")], Some(10 * S));
    assert_eq!(capacity(&mut case, T0 + 10 * S - 1, "b1"), 4);
    assert_eq!(capacity(&mut case, T0 + 10 * S, "b1"), 9);
    let drained = case.settle_at(T0 + 10 * S);
    assert_eq!(drained.dispatched, 1);
    case.settle_at(T0 + 20 * S);
    let key = case.key("ends");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &key]), 0, "what has ended is forgotten");
    let key = case.key("globs");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &key]), 0);
    unset(&mut case, T0 + 20 * S, "a", &["capacity"]);
    case.settle_at(T0 + 30 * S);
    assert_eq!(keys_left(&mut case), [""; 0]);
}

#[test]
fn a_new_rate_counts_from_the_last_dispatch_and_so_does_the_old_one_when_it_ends() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    case.push_at(T0, "a", &["1", "2", "3", "4"]);
    case.push_at(T0, "other", &["1", "2"]);
    assert_eq!(case.drain_at(T0).dispatched, 2);
    assert_eq!(case.due("a"), Some(T0 + 86_400 * S));
    set_for(&mut case, T0 + S, "a", &[("rate", "1/s")], Some(5 * S));
    assert_eq!(case.due("a"), Some(T0 + S), "last dispatch + 1 s: live when the call is over");
    assert_eq!(case.due("other"), Some(T0 + 86_400 * S), "nobody else is touched");
    assert_eq!(drain(&mut case, T0 + S), (1, S as i64));
    assert_eq!(drain(&mut case, T0 + 2 * S), (1, S as i64));
    // Nothing is called for a while: the end counts all the same, and the job that would have left at 3 s waits for a day.
    assert_eq!(case.drain_at(T0 + 6 * S).dispatched, 0);
    assert_eq!(case.due("a"), Some(T0 + 2 * S + 86_400 * S));
}

#[test]
fn the_end_of_a_setting_is_one_of_the_times_that_a_drain_waits_for() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    case.push_at(T0, "a", &["1", "2"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    set_for(&mut case, T0, "zzz", &[("rate", "1/s")], Some(7 * S));
    assert_eq!(case.settle_at(T0).wait_us, 7 * S as i64);
    set_for(&mut case, T0, "z*", &[("rate", "1/s")], Some(3 * S));
    assert_eq!(case.settle_at(T0).wait_us, 3 * S as i64);
    case.settle_at(T0 + 3 * S);
    assert_eq!(case.settle_at(T0 + 3 * S).wait_us, 4 * S as i64);
    case.settle_at(T0 + 7 * S);
    assert_eq!(case.settle_at(T0 + 7 * S).wait_us, (86_400 - 7) * S as i64);
}

#[test]
fn a_glob_re_anchors_what_it_matches_and_nothing_else_as_it_spreads() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    for n in 0..300 {
        case.push_at(T0, &format!("a{n}"), &["1", "2"]);
        case.push_at(T0, &format!("b{n}"), &["1", "2"]);
    }
    while case.drain_at(T0).dispatched > 0 {}
    set(&mut case, T0 + S, "a*", "rate", "1/s");
    assert_eq!(case.push_at(T0 + S, "a0", &["3"])[4], S as i64 / 1_000, "an atomic push obeys at once");
    let told = change(
        &mut case,
        T0 + S,
        &json!({ "match": "b*", "is_glob": true, "set": {
        "capacity": { "text": "5", "policy": { "capacity": 5 } } } }),
    );
    assert_eq!(told.0, -1, "one change spreads at a time");
    let mut calls = 0;
    while case.drain_at(T0 + S).wait_us == 0 {
        calls += 1;
        assert!(calls < 100, "bounded batches");
    }
    assert!(calls > 6, "and not all in one call: {calls}");
    assert_eq!(case.stream("ready").len(), 900, "each a let out one more");
    for n in [0, 7, 299] {
        assert_eq!(case.due(&format!("b{n}")), Some(T0 + 86_400 * S));
    }
    let key = case.key("reached");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &key]), 0);
}

#[test]
fn a_paused_bucket_takes_jobs_until_it_is_full_and_lets_nothing_out_until_it_is_resumed() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 3\n");
    case.push_at(T0, "a", &["1", "2"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    assert_eq!(set(&mut case, T0, "a", "pause", "").2, "a");
    assert_eq!(place(&mut case, "a"), [("paused", T0 + S)]);
    assert_eq!(drain(&mut case, T0 + 10 * S), (0, -1), "nobody calls");
    assert_eq!(
        case.push_at(T0 + 10 * S, "a", &["3", "4", "5"]),
        [2, 3, 3, 1_000, 2_000],
        "as if it ended now, but that takes somebody a second"
    );
    assert_eq!(case.lpush("a", &["6"]), 4);
    case.wake_at(T0 + 11 * S, &["a"]);
    assert_eq!(case.waiting("a"), ["2", "3", "4"], "cut as ever");
    assert_eq!(place(&mut case, "a"), [("paused", T0 + S)]);
    assert_eq!(unset(&mut case, T0 + 20 * S, "a", &["pause"]).0, 1);
    assert_eq!(place(&mut case, "a"), [("schedule", T0 + 20 * S)], "with no credit");
    assert_eq!(drain(&mut case, T0 + 20 * S), (1, S as i64));
    assert_eq!(lateness(&mut case), 0);
    assert_eq!(case.due("a"), Some(T0 + 21 * S));
}

#[test]
fn a_pause_of_an_idle_bucket_stores_nothing_but_itself_and_its_first_job_waits() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    set(&mut case, T0, "a", "pause", "");
    assert_eq!(place(&mut case, "a"), []);
    case.lpush("a", &["1"]);
    assert_eq!(case.wake_at(T0, &["a"]).dispatched, 0);
    assert_eq!(place(&mut case, "a"), [("paused", T0)]);
    case.push_at(T0 + S, "b", &["x"]);
    assert_eq!(case.drain_at(T0 + S).dispatched, 1);
    set_for(&mut case, T0 + S, "b", &[("pause", "")], Some(3 * S));
    case.push_at(T0 + 2 * S, "b", &["1", "2"]);
    assert_eq!(place(&mut case, "b"), [("paused", T0 + 2 * S)]);
    assert_eq!(case.settle_at(T0 + 3 * S).wait_us, S as i64, "the end of the pause");
    assert_eq!(case.settle_at(T0 + 4 * S).dispatched, 1, "it ended by itself");
    assert_eq!(lateness(&mut case), 0);
    assert_eq!(case.due("b"), Some(T0 + 5 * S));
}

#[test]
fn retries_of_a_paused_bucket_wait_too() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nbackoff = { initial = '1s', max = '1s' }\n");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    let entry = case.take("ready", 1).remove(0);
    let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string(), entry.id]);
    set(&mut case, T0, "a", "pause", "");
    assert_eq!(case.settle_at(T0 + 5 * S).dispatched, 0);
    assert_eq!(place(&mut case, "a"), [("paused", T0 + 5 * S)]);
    assert_eq!(case.settle_at(T0 + 6 * S).wait_us, -1);
    unset(&mut case, T0 + 7 * S, "a", &["pause"]);
    assert_eq!(case.settle_at(T0 + 7 * S).dispatched, 1);
    assert_eq!(case.stream("ready").last().expect("one").text("attempt"), "2");
}

#[test]
fn a_glob_pauses_many_and_resume_brings_back_exactly_those() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    for n in 0..250 {
        case.push_at(T0, &format!("a{n}"), &["1", "2"]);
    }
    case.push_at(T0, "b", &["1", "2"]);
    set(&mut case, T0, "a7", "pause", "");
    set(&mut case, T0, "a*", "pause", "");
    assert_eq!(case.settle_at(T0).dispatched, 1, "of the one that is not paused");
    let key = case.key("paused");
    assert_eq!(case.cmd::<i64>(&["ZCARD", &key]), 250);
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 5 * S).wait_us, -1);
    unset(&mut case, T0 + 9 * S, "a*", &["pause"]);
    case.settle_at(T0 + 9 * S);
    assert_eq!(place(&mut case, "a7"), [("paused", T0)], "its own pause stops it");
    assert_eq!(place(&mut case, "a8"), [("schedule", T0 + 10 * S)]);
    assert_eq!(case.stream("ready").len(), 2 + 249);
    let told = unset(&mut case, T0 + 9 * S, "a7", &["pause"]);
    assert_eq!((told.0, told.2.as_str()), (1, ""));
    assert_eq!(case.settle_at(T0 + 9 * S).dispatched, 1);
}

#[test]
fn resume_says_which_other_pause_still_stops_the_bucket() {
    let mut case = Case::with("");
    set(&mut case, T0, "a*", "pause", "");
    set(&mut case, T0, "a1", "pause", "");
    assert_eq!(unset(&mut case, T0, "a1", &["pause"]).2, "a*");
}

#[test]
fn a_closed_bucket_takes_nothing_and_lets_out_what_is_there() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 4\noverflow = 'drop-oldest'\n");
    case.push_at(T0, "a", &["1", "2", "3"]);
    set(&mut case, T0, "a", "close", "");
    assert_eq!(case.peek_at(T0, "a"), [0, 3, 0, 1_000, 0]);
    assert_eq!(case.push_at(T0, "a", &["4"])[..3], [0, 3, 0]);
    case.lpush("a", &["5", "6"]);
    assert_eq!(case.wake_at(T0, &["a"]).dispatched, 1);
    assert_eq!(case.waiting("a"), ["2", "3"]);
    let rejected = case.stream("rejected");
    let reasons: Vec<String> = rejected.iter().map(|entry| entry.text("reason")).collect();
    assert_eq!(reasons, ["closed", "closed"]);
    case.drain_at(T0 + S);
    case.drain_at(T0 + 2 * S);
    assert_eq!(case.stream("ready").len(), 3);
    case.lpush("a", &["7"]);
    case.wake_at(T0 + 3 * S, &["a"]);
    assert!(case.waiting("a").is_empty(), "nothing is let in behind the last one either");
    unset(&mut case, T0 + 3 * S, "a", &["close"]);
    assert_eq!(case.push_at(T0 + 3 * S, "a", &["8"])[..3], [1, 1, 4]);
}

#[test]
fn lowering_a_capacity_throws_nothing_out() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 5\n");
    case.push_at(T0, "a", &["1", "2", "3", "4", "5"]);
    set(&mut case, T0, "a", "capacity", "2");
    case.lpush("a", &["6"]);
    case.wake_at(T0, &["a"]);
    assert_eq!(case.waiting("a"), ["2", "3", "4", "5"]);
    let rejected = case.stream("rejected");
    assert_eq!((rejected.len(), rejected[0].text("job").as_str()), (1, "6"));
}

#[test]
fn settings_outlive_a_reload_and_a_reload_those_of_the_file_that_nobody_set() {
    let mut case = Case::with("[defaults]\ncapacity = 9\nrate = '1/s'\n");
    set(&mut case, T0, "a", "capacity", "3");
    set(&mut case, T0, "b*", "capacity", "4");
    case.settle_at(T0);
    assert_eq!(case.configure("[defaults]\ncapacity = 8\nrate = '5/s'\n"), 1);
    case.settle_at(T0 + S);
    assert_eq!(["a", "b1", "c"].map(|bucket| capacity(&mut case, T0 + S, bucket)), [3, 4, 8]);
}

#[test]
fn at_most_100_globs_and_100_000_names_are_set() {
    let mut case = Case::with("");
    for n in 0..100 {
        set(&mut case, T0, &format!("{n}*"), "capacity", "3");
    }
    let c =
        json!({ "match": "x*", "is_glob": true, "set": { "capacity": { "text": "3", "policy": { "capacity": 3 } } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), c.to_string()]), "TOOMANY");
    set(&mut case, T0, "7*", "capacity", "4");
    let key = case.key("settings");
    let mut pipe = redis::pipe();
    for n in 0..100_000 {
        pipe.cmd("HSET").arg(&key).arg(format!("n{n}")).arg(r#"{"v":1,"keys":{}}"#).ignore();
    }
    pipe.exec(&mut case.redis).expect("stored");
    let c =
        json!({ "match": "x", "is_glob": false, "set": { "capacity": { "text": "3", "policy": { "capacity": 3 } } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), c.to_string()]), "TOOMANY");
    assert_eq!(unset(&mut case, T0, "x", &[]).0, 0, "what takes back needs no room");
    set(&mut case, T0, "n7", "capacity", "4");
    assert_eq!(capacity(&mut case, T0, "n7"), 4);
}

#[test]
fn what_a_newer_version_stored_is_left_alone_and_bad_changes_are_refused() {
    let mut case = Case::with("[defaults]\ncapacity = 9\n");
    set(&mut case, T0, "b", "capacity", "4");
    let key = case.key("settings");
    let newer = r#"{"v":2,"odd":{}}"#;
    let _: i64 = case.cmd(&["HSET", &key, "a", newer]);
    assert_eq!(capacity(&mut case, T0, "a"), 9);
    let c =
        json!({ "match": "a", "is_glob": false, "set": { "capacity": { "text": "3", "policy": { "capacity": 3 } } } });
    assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), c.to_string()]), "BADARG");
    assert_eq!(case.cmd::<String>(&["HGET", &key, "a"]), newer);
    for bad in [
        "",
        "x",
        "{}",
        r#"{"match":""}"#,
        r#"{"match":"a{"}"#,
        r#"{"match":"a","set":{"capacity":3}}"#,
        r#"{"match":"a","for_us":0}"#,
    ] {
        assert_eq!(case.refusal("drip__set", &["policy"], &[T0.to_string(), bad.to_owned()]), "BADARG", "{bad}");
    }
}

#[test]
fn what_another_server_changed_is_noticed() {
    // A replica that was promoted has the keys of a change and not what the library remembered of it.
    let mut case = Case::with("[defaults]\ncapacity = 9\n");
    set(&mut case, T0, "a", "capacity", "4");
    assert_eq!((capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b")), (4, 9));
    let (settings, policy) = (case.key("settings"), case.key("policy"));
    let json: String = case.cmd(&["HGET", &settings, "a"]);
    let _: i64 = case.cmd(&["HSET", &settings, "b", &json, "a", &json.replace('4', "5")]);
    let _: i64 = case.cmd(&["HSET", &policy, "settings", "another"]);
    assert_eq!((capacity(&mut case, T0, "a"), capacity(&mut case, T0, "b")), (5, 4));
}

#[test]
fn settings_are_listed_with_who_when_and_why() {
    let mut case = Case::with("");
    set_for(&mut case, T0, "a", &[("capacity", "4")], Some(60 * S));
    set(&mut case, T0 + MS, "b*", "pause", "");
    let (next, now, rest): (String, String, Vec<String>) = {
        let reply: Vec<redis::Value> =
            case.fcall("drip__settings", &["policy"], &[(T0 + S).to_string(), String::new()]);
        let texts: Vec<String> = reply.into_iter().map(|v| redis::from_redis_value(v).expect("a text")).collect();
        (texts[0].clone(), texts[1].clone(), texts[2..].to_vec())
    };
    assert_eq!((next.as_str(), now.parse::<u64>()), ("", Ok(T0 + S)));
    assert_eq!((rest[0].as_str(), rest[1].as_str(), rest[3].as_str(), rest[4].as_str()), ("b*", "1", "a", "0"));
    let entry: Json = serde_json::from_str(&rest[5]).expect("an entry");
    let timed = &entry["keys"]["capacity"]["timed"];
    assert_eq!(
        (timed["text"].as_str(), timed["by"].as_str(), timed["reason"].as_str()),
        (Some("4"), Some("root@web1"), Some("why"))
    );
    let time = |name: &str| timed[name].as_str().and_then(|text| text.parse::<u64>().ok());
    assert_eq!((time("since"), time("till")), (Some(T0), Some(T0 + 60 * S)));
}

#[test]
fn each_change_is_an_event_with_what_was_before_and_after() {
    let mut case = Case::with("");
    set(&mut case, T0, "a", "capacity", "4");
    set_for(&mut case, T0, "a", &[("capacity", "5"), ("rate", "1/s")], Some(60 * S));
    unset(&mut case, T0, "a", &["capacity", "rate", "lease"]);
    let events = case.stream("events");
    let told =
        |n: usize, field: &str| events[n].fields.get(field).map(|text| String::from_utf8_lossy(text).into_owned());
    assert_eq!(
        (told(0, "match").as_deref(), told(0, "before"), told(0, "after").as_deref()),
        (Some("a"), None, Some("capacity=4"))
    );
    assert_eq!((told(0, "by").as_deref(), told(0, "reason").as_deref()), (Some("root@web1"), Some("why")));
    assert_eq!(told(1, "before").as_deref(), Some("capacity=4"));
    assert_eq!(told(1, "after").as_deref(), Some("capacity=5 rate=1/s for 1m"));
    assert_eq!((told(2, "before").as_deref(), told(2, "after")), (Some("capacity=5 rate=1/s"), None));
    assert_eq!(events.len(), 3);
}

#[test]
fn a_paused_bucket_at_rest_that_a_faster_rate_of_the_file_makes_due_is_forgotten() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    set(&mut case, T0, "a", "pause", "");
    assert_eq!(place(&mut case, "a"), [("rest", T0 + 60 * S)]);
    case.configure_at(&(T0 + S).to_string(), "[defaults]\nrate = '100/s'\n");
    assert_eq!(case.settle_at(T0 + S).dispatched, 0);
    assert_eq!(place(&mut case, "a"), []);
}

#[test]
fn a_faster_rate_of_an_empty_bucket_counts_at_once() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    set(&mut case, T0 + S, "a", "rate", "5/s");
    assert_eq!(case.push_at(T0 + S, "a", &["2"])[4], 0, "the last dispatch was more than an interval ago");
}

#[test]
fn what_is_set_for_a_name_while_another_change_spreads_throws_nothing_out_and_anchors_at_the_last_dispatch() {
    for by_glob in [true, false] {
        let mut case = Case::with("[defaults]\nrate = '1/d'\ncapacity = 5\n");
        case.push_at(T0, "a", &["1", "2", "3", "4", "5"]);
        assert_eq!(case.settle_at(T0).dispatched, 1);
        if by_glob {
            set(&mut case, T0 + S, "a*", "attempts", "3");
        } else {
            case.configure_at(&(T0 + S).to_string(), "[defaults]\nrate = '1/d'\ncapacity = 5\nattempts = 3\n");
        }
        set_for(&mut case, T0 + S, "a", &[("capacity", "2"), ("rate", "1/s")], None);
        assert_eq!(case.waiting("a").len(), 4, "by a glob: {by_glob}");
        assert_eq!(case.due("a"), Some(T0 + S), "by a glob: {by_glob}");
        assert_eq!(case.settle_at(T0 + S).dispatched, 1);
        assert_eq!(case.waiting("a").len(), 3);
    }
}
