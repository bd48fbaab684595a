//! A time to live on a key of dripd takes its jobs away without a word: it is taken away, whatever key it is, and a queue that is gone is noted.

use redis::Value;

use crate::rig::{Case, MS, S, T0};

type Note = (String, String, String, u64);

/// A whole pass over the keys. Replies the keys that had a time to live.
fn keep(case: &mut Case) -> Vec<String> {
    let mut found = Vec::new();
    for _ in 0..1_000 {
        let (more, notes): (i64, Vec<Note>) = case.fcall("drip__keep", &["policy"], &[""]);
        assert!(notes.iter().all(|(kind, ..)| kind == "expires"), "{notes:?}");
        found.extend(notes.into_iter().map(|(_, key, ..)| key));
        if more == 0 {
            found.sort();
            return found;
        }
    }
    panic!("a pass that does not end");
}

fn counted(case: &mut Case, name: &str) -> u64 {
    let figures: Vec<Value> = case.fcall("drip__figures", &["policy"], &[""]);
    let counters: Vec<(String, u64)> = redis::from_redis_value_ref(&figures[1]).expect("counters");
    counters.into_iter().find(|(counter, _)| counter == name).map_or(0, |(_, n)| n)
}

/// The notes of a call of a daemon.
fn notes(case: &mut Case, function: &str, key: &str, now: u64) -> Vec<Note> {
    let reply: Vec<Value> = case.fcall(function, &[key], &[now.to_string()]);
    redis::from_redis_value_ref(&reply[6]).expect("notes")
}

/// Work of every kind: budgets and routes that hold, slots, retries, delayed jobs, settings, slow-downs and told limits.
const ALL: &str = "[defaults]\nrate = '10/s'\nbackoff = { initial = '1h', max = '1h' }\n\
    [[budget]]\nmatch = 'p'\nrate = '1/h'\nquota = '100/d'\n[[bucket]]\nmatch = 'p:*'\nwithin = 'p'\n\
    [[bucket]]\nmatch = 'slots'\nconcurrency = 1\n[[bucket]]\nmatch = 'mail'\nroute = 'mail'\n[limits]\nmax_ready = 2\n";

fn filled() -> Case {
    let mut case = Case::with(ALL);
    case.settle_at(T0);
    for bucket in ["a", "p:a", "p:b", "slots", "mail", "paused"] {
        case.push_at(T0, bucket, &["1", "2", "3", "4"]);
    }
    case.submit_at(T0, "a", "later", &["ID", "i", "DELAY", "3600000", "COST", "3"]);
    for n in 0..5 {
        case.settle_at(T0 + n * 200 * MS);
    }
    let taken = case.take("ready", 1).remove(0);
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &[(T0 + S).to_string().as_str(), &taken.id]), 1);
    case.settle_at(T0 + 2 * S);
    case
}

#[test]
fn every_key_that_dripd_keeps_loses_the_time_to_live_that_somebody_gave_it() {
    crate::roles::as_roles();
    let mut case = filled();
    keep(&mut case);
    let before = counted(&mut case, "lifetimes_removed");
    let keys: Vec<String> =
        case.keys().into_iter().filter(|key| !key.starts_with("ids:") && !key.starts_with("gate:")).collect();
    assert!(keys.len() >= 15, "{keys:?}");
    for kind in
        ["queue:a", "queue:p:a", "retry:", "delayed:a", "ready", "ready:mail", "wait:", "jobs:a", "policy", "stats"]
    {
        assert!(keys.iter().any(|key| key.starts_with(kind)), "{kind} of {keys:?}");
    }
    for key in &keys {
        let key = case.key(key);
        assert_eq!(case.cmd::<i64>(&["PEXPIRE", &key, "60000"]), 1, "{key}");
    }
    let mut expected: Vec<String> = keys.iter().map(|key| case.key(key)).collect();
    expected.sort();
    assert_eq!(keep(&mut case), expected);
    for key in &expected {
        assert_eq!(case.cmd::<i64>(&["PTTL", key]), -1, "{key}");
    }
    assert_eq!(counted(&mut case, "lifetimes_removed") - before, expected.len() as u64);
    assert_eq!(keep(&mut case), Vec::<String>::new());
}

#[test]
fn of_many_buckets_each_is_looked_at() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    case.settle_at(T0);
    let names: Vec<String> = (0..1_000).map(|n| format!("b{n}")).collect();
    for name in &names {
        case.push_at(T0, name, &["1", "2"]);
    }
    case.settle_at(T0);
    let mut expected: Vec<String> = names.iter().step_by(7).map(|name| case.queue(name)).collect();
    for key in &expected {
        let key = key.clone();
        case.cmd::<i64>(&["EXPIRE", &key, "60"]);
    }
    expected.sort();
    let mut found = keep(&mut case);
    found.retain(|key| expected.contains(key));
    assert_eq!(found, expected);
}

#[test]
fn a_queue_that_is_reported_loses_its_time_to_live_at_once() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n");
    case.settle_at(T0);
    case.lpush("a", &["1", "2", "3"]);
    let queue = case.queue("a");
    case.cmd::<i64>(&["EXPIRE", &queue, "100"]);
    let noted = notes(&mut case, "drip__wake", "queue:a", T0);
    assert_eq!(noted.iter().map(|(kind, key, ..)| (kind.as_str(), key)).collect::<Vec<_>>(), [("expires", &queue)]);
    assert_eq!(case.cmd::<i64>(&["PTTL", &queue]), -1);
    assert!(notes(&mut case, "drip__wake", "queue:a", T0).is_empty());
    // While reports come by the thousand only some are looked at: each costs a call.
    for n in 0..100 {
        case.cmd::<i64>(&["EXPIRE", &queue, "100"]);
        let noted = notes(&mut case, "drip__wake", "queue:a", T0 + 50 * MS);
        assert_eq!(noted.len(), usize::from(n < 18), "{n}");
    }
    assert_eq!(notes(&mut case, "drip__wake", "queue:a", T0 + 200 * MS).len(), 1);
}

#[test]
fn a_queue_that_vanished_while_its_bucket_had_work_is_noted_and_counted_at_its_turn() {
    for words in [&["DEL"][..], &["PEXPIREAT", "1"], &["LTRIM", "1", "0"]] {
        let mut case = Case::with("[defaults]\nrate = '1/s'\n");
        case.settle_at(T0);
        case.push_at(T0, "a", &["1", "2", "3"]);
        case.settle_at(T0);
        let queue = case.queue("a");
        let words: Vec<&str> = [words[0], &queue].into_iter().chain(words[1..].iter().copied()).collect();
        case.cmd::<Value>(&words);
        assert!(notes(&mut case, "drip__drain", "schedule", T0 + S - 1).is_empty());
        let noted = notes(&mut case, "drip__drain", "schedule", T0 + S);
        assert_eq!(noted.iter().map(|(kind, key, ..)| (kind.as_str(), key)).collect::<Vec<_>>(), [("emptied", &queue)]);
        assert_eq!(counted(&mut case, "queues_vanished"), 1);
        assert!(notes(&mut case, "drip__drain", "schedule", T0 + 2 * S).is_empty());
        super::flow::audit(&mut case);
    }
}

#[test]
fn what_dripd_itself_takes_out_of_a_bucket_is_no_queue_that_vanished() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nbackoff = { initial = '100ms', max = '100ms' }\n");
    case.settle_at(T0);
    case.push_at(T0, "purged", &["1", "2"]);
    for id in ["x", "y"] {
        case.submit_at(T0, "cancelled", id, &["ID", id]);
        case.submit_at(T0, "aside", id, &["ID", id, "DELAY", "1500"]);
        case.submit_at(T0, "late", id, &["ID", id, "TTL", "1500"]);
    }
    case.push_at(T0, "failed", &["1"]);
    case.settle_at(T0);
    let _: Value = case.fcall("drip__purge", &["queue:purged"], &[T0.to_string().as_str(), "1", "me", "me", ""]);
    for id in ["x", "y"] {
        case.cancel_at(T0, "cancelled", id);
        case.cancel_at(T0, "aside", id);
    }
    for entry in case.take("ready", 20) {
        let _: i64 = case.fcall("drip__fail", &["ready"], &[T0.to_string().as_str(), &entry.id]);
    }
    for n in 1..100 {
        let noted = notes(&mut case, "drip__drain", "schedule", T0 + n * 100 * MS);
        assert!(noted.is_empty(), "{noted:?}");
        for entry in case.take("ready", 20) {
            let _: i64 = case.fcall("drip__fail", &["ready"], &[(T0 + n * 100 * MS).to_string().as_str(), &entry.id]);
        }
    }
    assert_eq!(counted(&mut case, "queues_vanished"), 0);
}
