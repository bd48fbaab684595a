//! Purge: what waits in a bucket is thrown away in one step, and nothing else changes.

use crate::rig::{Case, Drained, MS, S, Server, T0};

const SLOW: &str =
    "[defaults]\nrate = '1/s'\ncapacity = 5\ncatch_up = '0s'\nbackoff = { initial = '10s', max = '10s' }\n";

/// What a purge replies: jobs and retries thrown away, retries that stay, jobs that were cut.
fn purge_at(case: &mut Case, now: u64, bucket: &str, retries: bool) -> [i64; 4] {
    let (now, retries) = (now.to_string(), if retries { "1" } else { "0" });
    let args = [now.as_str(), retries, "ada@web1", "default", "wrong batch"];
    let reply: Vec<i64> = case.fcall("drip__purge", &[&format!("queue:{bucket}")], &args);
    reply.try_into().expect("four integers")
}

/// A bucket whose first `failed` jobs have failed and wait for another try, until T0 + 10 s and later.
fn with_retries(case: &mut Case, bucket: &str, failed: u64) {
    for n in 0..failed {
        case.push_at(T0 + n * S, bucket, &[&format!("failed {n}")]);
        assert_eq!(case.settle_at(T0 + n * S).dispatched, 1);
        let taken = case.take("ready", 1).remove(0);
        let args = [(T0 + n * S).to_string(), taken.id];
        assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    }
}

/// The keys that hold something of a bucket.
fn keys_of_buckets(case: &mut Case) -> Vec<String> {
    let words = ["queue:", "retry:", "schedule", "rest", "level", "retries", "wait:", "waiting"];
    case.keys().into_iter().filter(|key| words.iter().any(|word| key.starts_with(word))).collect()
}

#[test]
fn a_purge_says_how_many_jobs_it_held_and_the_rate_of_the_bucket_stays() {
    let mut case = Case::with(SLOW);
    case.push_at(T0, "b", &["1", "2", "3", "4"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(purge_at(&mut case, T0 + 400 * MS, "b", false), [3, 0, 0, 0]);
    assert!(case.waiting_is_empty("b"));
    assert_eq!(keys_of_buckets(&mut case), ["rest"], "it rests until its due");
    assert_eq!(case.due("b"), Some(T0 + S));
    assert_eq!(case.settle_at(T0 + 450 * MS).dispatched, 0);

    case.push_at(T0 + 500 * MS, "b", &["after"]);
    assert_eq!(case.settle_at(T0 + S - 1).dispatched, 0, "not before its due");
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["1", "after"], "what came after is nobody's purge");
    case.settle_at(T0 + 3 * S);
    assert_eq!(purge_at(&mut case, T0 + 3 * S, "b", true), [0, 0, 0, 0], "there is nothing to throw away");
    assert_eq!(keys_of_buckets(&mut case), [""; 0], "nothing of it is left");
}

#[test]
fn a_purge_is_an_event_with_the_numbers_before_and_after_and_one_of_nothing_is_none() {
    let mut case = Case::with(SLOW);
    with_retries(&mut case, "b", 2);
    case.push_at(T0 + 5 * S, "b", &["1", "2", "3"]);
    assert_eq!(purge_at(&mut case, T0 + 5 * S, "b", false), [3, 0, 2, 0]);
    assert_eq!(purge_at(&mut case, T0 + 5 * S, "b", false), [0, 0, 2, 0]);
    assert_eq!(purge_at(&mut case, T0 + 5 * S, "b", true), [0, 2, 0, 0]);
    assert_eq!(keys_of_buckets(&mut case), [""; 0]);
    let events = case.stream("events");
    assert_eq!(events.len(), 2, "{events:?}");
    for (event, before, after) in
        [(&events[0], "3 jobs, 2 retries", "0 jobs, 2 retries"), (&events[1], "0 jobs, 2 retries", "0 jobs, 0 retries")]
    {
        assert_eq!((event.text("what"), event.text("match")), ("purge".into(), "b".into()));
        assert_eq!((event.text("before"), event.text("after")), (before.into(), after.into()));
        assert_eq!((event.text("by"), event.text("user")), ("ada@web1".into(), "default".into()));
        assert_eq!(event.text("reason"), "wrong batch");
    }
}

#[test]
fn retries_stay_unless_they_are_purged_too() {
    let mut case = Case::with(SLOW);
    with_retries(&mut case, "b", 2);
    with_retries(&mut case, "other", 1);
    case.push_at(T0 + 5 * S, "b", &["1", "2"]);
    assert_eq!(purge_at(&mut case, T0 + 5 * S, "b", false), [2, 0, 2, 0]);
    assert_eq!(case.settle_at(T0 + 10 * S - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 2, "one of each bucket");
    assert_eq!(purge_at(&mut case, T0 + 10 * S, "b", true), [0, 1, 0, 0]);
    assert_eq!(case.settle_at(T0 + 60 * S), Drained { wait_us: -1, dispatched: 0, rejected: 0 });
    assert_eq!(keys_of_buckets(&mut case), [""; 0]);
    assert_eq!(case.stream("ready").len(), 2);
}

#[test]
fn a_bucket_whose_back_off_has_ended_keeps_its_turn() {
    let mut case = Case::with(SLOW);
    with_retries(&mut case, "b", 2);
    case.push_at(T0 + 9 * S, "b", &["1", "2", "3"]);
    // One leaves now; at T0 + 11 s both back-offs have ended and one retry leaves. The other one waits for its slot.
    assert_eq!(case.settle_at(T0 + 9_500 * MS).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 11 * S).dispatched, 1);
    assert_eq!(purge_at(&mut case, T0 + 11_100 * MS, "b", false), [2, 0, 1, 0]);
    assert_eq!(case.due("b"), Some(T0 + 12 * S));
    assert_eq!(case.settle_at(T0 + 12 * S - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 12 * S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["1", "failed 0", "failed 1"]);
}

#[test]
fn what_is_above_the_level_was_rejected_and_is_recorded_before_the_rest_goes() {
    for (overflow, reason, cut) in [("reject", "full", ["6", "7"]), ("drop-oldest", "dropped", ["1", "2"])] {
        let mut case = Case::with(&format!("{SLOW}overflow = '{overflow}'\n"));
        case.settle_at(T0);
        assert_eq!(case.lpush("b", &["1", "2", "3", "4", "5", "6", "7"]), 7);
        assert_eq!(purge_at(&mut case, T0, "b", false), [5, 0, 0, 2], "{overflow}");
        assert_eq!(case.jobs("rejected"), cut, "{overflow}");
        assert!(case.stream("rejected").iter().all(|entry| entry.text("reason") == reason));
        assert_eq!(keys_of_buckets(&mut case), [""; 0], "nobody has looked at it before");
    }
}

#[test]
fn a_level_goes_with_the_jobs_that_it_was_for() {
    let mut case = Case::with(SLOW);
    case.push_at(T0, "b", &["1", "2", "3", "4", "5"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    case.configure_at(&T0.to_string(), &SLOW.replace("capacity = 5", "capacity = 2"));
    case.settle_at(T0);
    assert_eq!(case.peek_at(T0, "b")[1..3], [4, 2]);
    assert_eq!(purge_at(&mut case, T0, "b", false), [4, 0, 0, 0]);
    assert_eq!(keys_of_buckets(&mut case), ["rest"]);
    assert_eq!(case.push_at(T0, "b", &["1", "2", "3"])[..3], [2, 2, 2]);
}

#[test]
fn a_change_that_spreads_counts_in_a_purge_too() {
    let mut case = Case::with(SLOW);
    case.push_at(T0, "b", &["1", "2", "3"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    // The rate goes down to one in ten seconds. Nothing but the purge has come by the bucket since.
    assert_eq!(case.configure_at(&T0.to_string(), &SLOW.replace("1/s", "1/10s")), 1);
    assert_eq!(purge_at(&mut case, T0 + S / 2, "b", false), [2, 0, 0, 0]);
    assert_eq!(case.due("b"), Some(T0 + 10 * S), "re-anchored: the last dispatch and the new interval");
    assert_eq!(case.settle_at(T0 + S).dispatched, 0);
    case.push_at(T0 + S, "b", &["after"]);
    assert_eq!(case.settle_at(T0 + 10 * S - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
}

#[test]
fn a_held_bucket_leaves_its_place_and_the_others_stay() {
    let mut case = Case::with(&format!("{SLOW}[limits]\nmax_ready = 1\n"));
    case.push_at(T0, "full", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    for bucket in ["b", "c"] {
        case.push_at(T0 + S, bucket, &["1", "2"]);
    }
    case.settle_at(T0 + S);
    let held = |case: &mut Case| case.held("default").into_iter().map(|(bucket, _)| bucket).collect::<Vec<_>>();
    assert_eq!(held(&mut case), ["b", "c"]);
    assert_eq!(purge_at(&mut case, T0 + 2 * S, "b", false), [2, 0, 0, 0]);
    assert_eq!(held(&mut case), ["c"]);
    assert_eq!(case.due("b"), None, "its due is over: nothing of it stays");
    case.take("ready", 1);
    assert_eq!(case.settle_at(T0 + 3 * S).dispatched, 1);
    assert_eq!(purge_at(&mut case, T0 + 3 * S, "c", false), [1, 0, 0, 0]);
    case.take("ready", 1);
    assert_eq!(case.settle_at(T0 + 9 * S), Drained { wait_us: -1, dispatched: 0, rejected: 0 });
    assert_eq!(keys_of_buckets(&mut case), [""; 0]);
}

#[test]
fn as_many_jobs_as_a_dispatch_left_behind_are_no_echo_of_it() {
    let mut case = Case::with(SLOW);
    case.push_at(T0, "b", &["1", "2", "3"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    // It is remembered that the dispatch left two jobs in a bucket that is scheduled. (While another one is scheduled: where
    // none is, all of that is forgotten.)
    case.push_at(T0, "other", &["1", "2"]);
    assert_eq!(purge_at(&mut case, T0 + 1, "b", false), [2, 0, 0, 0]);
    case.lpush("b", &["4", "5"]);
    case.wake_at(T0 + 2, &["b"]);
    let schedule = case.key("schedule");
    assert_eq!(case.cmd::<Option<u64>>(&["ZSCORE", &schedule, "b"]), Some(T0 + S), "it is scheduled again");
}

#[test]
fn a_purge_of_a_wrong_key_is_refused_by_its_code_and_changes_nothing() {
    let mut case = Case::with(SLOW);
    let (queue, retry, rejected) = (case.queue("set"), case.key("retry:b"), case.key("rejected"));
    let now = T0.to_string();
    let args = [now.as_str(), "1", "", "", ""];
    let _: i64 = case.cmd(&["SADD", &queue, "x"]);
    assert_eq!(case.refusal("drip__purge", &["queue:set"], &args), "WRONGTYPE");
    assert_eq!(case.refusal("drip__purge", &["queue:a{b"], &args), "BADBUCKET");
    assert_eq!(case.refusal("drip__purge", &["schedule"], &args), "BADBUCKET");
    assert_eq!(case.refusal("drip__purge", &["queue:a", "queue:b"], &args), "BADARG");
    case.lpush("b", &["1", "2", "3", "4", "5", "6"]);
    let _: () = case.cmd(&["SET", &retry, "x"]);
    assert_eq!(case.refusal("drip__purge", &["queue:b"], &args), "WRONGTYPE");
    let _: i64 = case.cmd(&["DEL", &retry]);
    let _: () = case.cmd(&["SET", &rejected, "x"]);
    assert_eq!(case.refusal("drip__purge", &["queue:b"], &args), "WRONGTYPE");
    assert_eq!(case.waiting("b"), ["1", "2", "3", "4", "5", "6"]);
    assert!(!case.keys().contains(&"events".to_owned()));
}

#[test]
fn a_purge_holds_where_the_events_cannot_be_written() {
    let mut case = Case::with(SLOW);
    let events = case.key("events");
    let _: () = case.cmd(&["SET", &events, "x"]);
    case.push_at(T0, "b", &["1", "2"]);
    assert_eq!(purge_at(&mut case, T0, "b", false), [2, 0, 0, 0]);
    assert!(case.waiting_is_empty("b"));
}

#[test]
fn a_paused_bucket_is_purged_and_goes_on_as_any_other() {
    let mut case = Case::with(SLOW);
    case.push_at(T0, "b", &["1", "2", "3"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    let stop = |case: &mut Case, now: u64, what: &str, pauses: bool| {
        let set = if pauses { r#"{"pause":{"text":"","policy":{}}}"# } else { "{}" };
        let unset = if pauses { "[]" } else { r#"["pause"]"# };
        let json = format!(
            r#"{{"what":"{what}","match":"b","is_glob":false,"set":{set},"unset":{unset},"unset_all":false,"by":"","user":""}}"#
        );
        let _: redis::Value = case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
    };
    stop(&mut case, T0 + 1, "pause", true);
    case.settle_at(T0 + 2 * S);
    let paused = case.key("paused");
    assert_eq!(case.cmd::<Vec<String>>(&["ZRANGE", &paused, "0", "-1"]), ["b"]);
    assert_eq!(purge_at(&mut case, T0 + 2 * S, "b", false), [2, 0, 0, 0]);
    assert_eq!(case.cmd::<i64>(&["ZCARD", &paused]), 0, "without work it waits for nothing");
    case.push_at(T0 + 3 * S, "b", &["4"]);
    assert_eq!(case.settle_at(T0 + 9 * S).dispatched, 0, "it is paused still");
    stop(&mut case, T0 + 10 * S, "resume", false);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["1", "4"]);
}

#[test]
fn a_full_redis_can_be_emptied() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, SLOW);
    case.push_at(T0, "b", &["1", "2", "3"]);
    let dead = case.key("dead");
    for n in 0..3 {
        let job = n.to_string();
        let _: String = case.cmd(&["XADD", &dead, "*", "bucket", "c", "job", &job, "attempt", "1", "id", "1-1"]);
    }
    let _: String = case.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(case.refusal("drip__push", &["queue:b"], &[T0.to_string(), "4".into()]), "OOM", "it is full");
    assert_eq!(purge_at(&mut case, T0, "b", true), [3, 0, 0, 0]);
    for (name, changed) in [("drip__dead_retry", 1), ("drip__dead_drop", 2)] {
        let most = changed.to_string();
        let args = [&T0.to_string(), "", "", "", "", "", &most, "", "", "", "", "", "0"];
        let reply: Vec<redis::Value> = case.fcall(name, &["dead"], &args);
        assert_eq!(reply[1], redis::Value::Int(changed), "{name}");
    }
    assert_eq!((case.stream("dead").len(), case.stream("events").len()), (0, 3));
}
