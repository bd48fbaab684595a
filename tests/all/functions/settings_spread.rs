//! What spreads, and what happens in the middle of it: a killed daemon, another change, the end of a setting, lost memory. Each of
//! these is a sequence that went wrong once, or may easily.

use dripd::store::change::Change;

use super::settings_table::{change, take_back};
use crate::rig::{Case, MS, S, Server, T0, load_library};

const DAY: u64 = 86_400 * S;

type Told = (i64, Vec<String>, String);

fn make(case: &mut Case, now: u64, change: &Change) -> Told {
    let json = serde_json::to_string(change).expect("JSON");
    case.fcall("drip__set", &["policy"], &[now.to_string(), json])
}

#[track_caller]
fn set(case: &mut Case, now: u64, pattern: &str, words: &[&str]) {
    assert_eq!(make(case, now, &change(pattern, words, None)).0, 1, "{pattern} {words:?}");
}

#[track_caller]
fn set_for(case: &mut Case, now: u64, pattern: &str, words: &[&str], us: u64) {
    assert_eq!(make(case, now, &change(pattern, words, Some(us))).0, 1, "{pattern} {words:?}");
}

#[track_caller]
fn unset(case: &mut Case, now: u64, pattern: &str, keys: &[&str]) {
    assert_eq!(make(case, now, &take_back(pattern, keys)).0, 1, "{pattern} {keys:?}");
}

fn exists(case: &mut Case, name: &str) -> bool {
    let key = case.key(name);
    case.cmd::<i64>(&["EXISTS", &key]) == 1
}

/// The sets in which a bucket stands, and its dues there.
fn places(case: &mut Case, bucket: &str) -> Vec<(&'static str, u64)> {
    let due = |name| {
        let key = case.key(name);
        case.cmd::<Option<f64>>(&["ZSCORE", &key, bucket]).map(|due| (name, due as u64))
    };
    let mut found: Vec<_> = ["schedule", "rest", "paused"].into_iter().filter_map(due).collect();
    for (name, route) in [("held:default", "default"), ("held:other", "other")] {
        found.extend(case.held(route).into_iter().filter(|(held, _)| held == bucket).map(|(_, due)| (name, due)));
    }
    found
}

/// Buckets with a job that left at T0 and one that waits.
fn busy(case: &mut Case, buckets: impl Iterator<Item = String>) {
    let mut pipe = redis::pipe();
    for bucket in buckets {
        pipe.cmd("FCALL")
            .arg("drip__push")
            .arg(1)
            .arg(case.queue(&bucket))
            .arg(T0.to_string())
            .arg("1")
            .arg("2")
            .ignore();
    }
    pipe.exec(&mut case.redis).expect("pushed");
    while case.drain_at(T0).dispatched > 0 {}
}

/// A job that left at T0 failed, and is back at once.
fn fail_first(case: &mut Case, now: u64) {
    let entry = case.take("ready", 1).remove(0);
    let reply: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), entry.id, "RETRY_IN".into(), "0".into()]);
    assert_eq!(reply, 1);
}

#[test]
fn a_spread_that_was_cut_off_goes_on_with_whoever_comes_and_moves_each_bucket_once() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/d'\n[limits]\nbatch = 10\n");
    busy(&mut case, (0..300).map(|n| format!("a{n}")));
    set(&mut case, T0 + S, "a*", &["rate=1/h"]);
    for calls in [1, 5, 20] {
        for _ in 0..calls {
            assert_eq!(case.drain_at(T0 + 2 * S).wait_us, 0, "it is still at it");
        }
        // Whoever drained is gone, and so is what Redis remembered.
        load_library(&mut case.redis);
    }
    assert!(case.settle_at(T0 + 3 * S).wait_us > 0);
    for n in 0..300 {
        assert_eq!(places(&mut case, &format!("a{n}")), [("schedule", T0 + 3_600 * S)], "a{n}");
    }
    assert!(!exists(&mut case, "reached"));
}

#[test]
fn a_name_that_is_set_while_a_glob_spreads_counts_from_its_last_dispatch() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    busy(&mut case, ["a1", "a2"].map(str::to_owned).into_iter());
    set(&mut case, T0 + S, "a*", &["rate=1/h"]);
    set(&mut case, T0 + S, "a1", &["rate=1/m"]);
    assert_eq!(case.due("a1"), Some(T0 + 60 * S), "live when the call is over, though the spread has not come by");
    case.settle_at(T0 + S);
    assert_eq!((case.due("a1"), case.due("a2")), (Some(T0 + 60 * S), Some(T0 + 3_600 * S)));
    // And one that is taken back while another glob spreads.
    set(&mut case, T0 + 2 * S, "*", &["capacity=7"]);
    unset(&mut case, T0 + 2 * S, "a1", &["rate"]);
    assert_eq!(case.due("a1"), Some(T0 + 3_600 * S));
    case.settle_at(T0 + 2 * S);
    assert_eq!((case.due("a1"), case.due("a2")), (Some(T0 + 3_600 * S), Some(T0 + 3_600 * S)));
}

#[test]
fn settings_that_end_while_a_reload_spreads_count_once() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    busy(&mut case, ["a", "b1", "c"].map(str::to_owned).into_iter());
    set_for(&mut case, T0, "a", &["rate=1/m"], 5 * S);
    set_for(&mut case, T0, "b*", &["rate=1/m"], 5 * S);
    case.settle_at(T0);
    assert_eq!(["a", "b1", "c"].map(|b| case.due(b)), [T0 + 60 * S, T0 + 60 * S, T0 + DAY].map(Some));
    assert_eq!(case.configure_at(&(T0 + 4 * S).to_string(), "[defaults]\nrate = '1/h'\n"), 1);
    // No call until both have ended and the reload has reached nobody.
    case.settle_at(T0 + 61 * S);
    assert_eq!(["a", "b1", "c"].map(|b| case.due(b)), [Some(T0 + 3_600 * S); 3]);
    assert_eq!(case.stream("ready").len(), 3, "nothing left at a rate that had ended");
    case.settle_at(T0 + 62 * S);
    assert!(!exists(&mut case, "globs") && !exists(&mut case, "ends") && !exists(&mut case, "reached"));
}

#[test]
fn a_setting_of_a_glob_that_ends_while_another_glob_spreads_reaches_those_that_were_reached_before() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n[limits]\nbatch = 10\n");
    busy(&mut case, (0..200).map(|n| format!("a{n}")));
    set_for(&mut case, T0, "a*", &["rate=1/h"], 10 * S);
    case.settle_at(T0);
    set(&mut case, T0 + 9 * S, "*", &["rate=1/m"]);
    for _ in 0..8 {
        case.drain_at(T0 + 9 * S); // some are reached: the glob set last counts for them
    }
    assert_eq!(make(&mut case, T0 + 9 * S, &change("a1*", &["capacity=9"], None)).0, -1);
    case.settle_at(T0 + 11 * S);
    for n in 0..200 {
        assert_eq!(places(&mut case, &format!("a{n}")), [("schedule", T0 + 60 * S)], "a{n}");
    }
    // The same where it is the glob that ends that had won.
    set_for(&mut case, T0 + 12 * S, "a*", &["rate=1/h"], S);
    for _ in 0..8 {
        case.drain_at(T0 + 12 * S);
    }
    case.settle_at(T0 + 13 * S);
    for n in 0..200 {
        assert_eq!(places(&mut case, &format!("a{n}")), [("schedule", T0 + 60 * S)], "a{n}");
    }
    assert!(!exists(&mut case, "reached"));
}

#[test]
fn what_ended_before_a_glob_is_set_spreads_with_it() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    busy(&mut case, ["a", "b"].map(str::to_owned).into_iter());
    set_for(&mut case, T0, "*", &["rate=10/s"], 50 * MS);
    case.settle_at(T0); // all are due 100 ms after their last job
    set(&mut case, T0 + 60 * MS, "a*", &["rate=1/h"]);
    case.settle_at(T0 + 200 * MS);
    assert_eq!((case.due("a"), case.due("b")), (Some(T0 + 3_600 * S), Some(T0 + DAY)));
    assert_eq!(case.stream("ready").len(), 2);
}

#[test]
fn the_end_of_a_globs_setting_counts_in_a_peek_and_a_push_with_no_call_in_between() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\ncapacity = 3\n");
    busy(&mut case, ["a", "b"].map(str::to_owned).into_iter());
    set_for(&mut case, T0, "*", &["rate=1/d", "capacity=9"], 5 * S);
    case.settle_at(T0);
    let day_ms = (DAY / MS) as i64;
    assert_eq!(case.peek_at(T0 + 5 * S - 1, "a"), [0, 1, 9, -1, day_ms - 4_999]);
    assert_eq!(case.peek_at(T0 + 5 * S, "a"), [0, 1, 3, -1, 55_000], "last dispatch + the interval in force");
    assert_eq!(case.push_at(T0 + 5 * S, "a", &["3"]), [1, 2, 3, -1, 115_000]);
    assert_eq!(case.due("a"), Some(T0 + 60 * S));
    // It has reached that bucket and no other: nothing else may begin to spread before it has.
    assert_eq!(make(&mut case, T0 + 6 * S, &change("*", &["rate=1/h"], None)).0, -1);
    assert_eq!(case.configure_at(&(T0 + 6 * S).to_string(), "[defaults]\nrate = '1/h'\n"), -1);
    case.settle_at(T0 + 7 * S);
    assert_eq!((case.due("a"), case.due("b")), (Some(T0 + 60 * S), Some(T0 + 60 * S)));
    set(&mut case, T0 + 8 * S, "*", &["rate=1/h"]);
}

#[test]
fn a_bucket_that_was_idle_when_its_setting_ended_keeps_the_pace_in_force() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    set_for(&mut case, T0, "a*", &["rate=10/s"], 50 * MS);
    case.push_at(T0, "a1", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(places(&mut case, "a1"), [("rest", T0 + 100 * MS)]);
    case.settle_at(T0 + 120 * MS);
    assert_eq!(places(&mut case, "a1"), [("rest", T0 + DAY)], "not forgotten at the due of a rate that is over");
}

#[test]
fn an_end_that_no_call_has_seen_counts_though_another_glob_or_a_reload_comes_first() {
    let at_rest = || {
        let mut case = Case::with("[defaults]\nrate = '10/s'\n");
        set_for(&mut case, T0, "*", &["rate=200/s"], MS);
        case.push_at(T0, "a", &["1"]);
        case.settle_at(T0);
        assert_eq!(places(&mut case, "a"), [("rest", T0 + 5 * MS)]);
        case
    };
    // By the rate that is over it has rested for long enough, by the one in force it has not.
    let mut case = at_rest();
    set(&mut case, T0 + 10 * MS, "b*", &["capacity=7"]);
    case.settle_at(T0 + 10 * MS);
    assert_eq!(places(&mut case, "a"), [("rest", T0 + 100 * MS)]);
    let mut case = at_rest();
    assert_eq!(case.configure_at(&(T0 + 10 * MS).to_string(), "[defaults]\nrate = '1/s'\n"), 1);
    case.settle_at(T0 + 10 * MS);
    assert_eq!(places(&mut case, "a"), [("rest", T0 + S)]);
    // And another end, that of a setting which made no difference, does not hide it.
    let mut case = at_rest();
    set_for(&mut case, T0, "b*", &["capacity=7"], 8 * MS);
    case.settle_at(T0 + 10 * MS);
    assert_eq!(places(&mut case, "a"), [("rest", T0 + 100 * MS)]);
}

#[test]
fn names_whose_settings_ended_are_not_forgotten_before_they_are_put_right() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n[limits]\nbatch = 10\n");
    for n in 0..30 {
        set_for(&mut case, T0, &format!("a{n}"), &["rate=200/s"], MS);
        case.push_at(T0, &format!("a{n}"), &["1"]);
    }
    assert_eq!(case.settle_at(T0).dispatched, 30);
    // Neither by a pass of the reaper, which comes first, nor by a drain that has no room for all of them.
    let _: redis::Value = case.fcall("drip__reap", &["policy"], &[(T0 + 10 * MS).to_string().as_str(), "1", "", ""]);
    case.settle_at(T0 + 10 * MS);
    for n in 0..30 {
        assert_eq!(places(&mut case, &format!("a{n}")), [("rest", T0 + DAY)], "a{n}");
    }
}

#[test]
fn a_retry_is_not_lost_when_a_paused_bucket_is_woken_before_its_resume_has_spread() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    busy(&mut case, ["a1", "b"].map(str::to_owned).into_iter());
    let second = case.settle_at(T0 + S).dispatched;
    assert_eq!(second, 2);
    set(&mut case, T0 + S, "a*", &["pause"]);
    case.settle_at(T0 + S);
    fail_first(&mut case, T0 + 2 * S);
    case.settle_at(T0 + 2 * S);
    assert_eq!(places(&mut case, "a1"), [("paused", T0 + 2 * S)]);
    unset(&mut case, T0 + 3 * S, "a*", &["pause"]);
    case.lpush("a1", &["new"]);
    case.wake_at(T0 + 3 * S, &["a1"]);
    case.settle_at(T0 + 4 * S);
    let left: Vec<String> = case.jobs("ready").split_off(3);
    assert_eq!(left, ["1", "new"], "the retry ahead of the queue, and both");
}

#[test]
fn a_retry_that_ends_before_a_slower_rate_has_spread_counts_from_the_last_dispatch() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0 - 10 * S, "b", &["1"]);
    case.settle_at(T0 - 10 * S);
    case.settle_at(T0); // of its pace nothing is stored any more
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    for _ in ["b", "a"] {
        fail_first(&mut case, T0 + 50 * MS);
    }
    set(&mut case, T0 + 50 * MS, "*", &["rate=1/d"]);
    assert_eq!(case.settle_at(T0 + S).dispatched, 1, "the one that has rested for long");
    assert_eq!(places(&mut case, "a"), [("schedule", T0 + DAY)]);
    assert_eq!(places(&mut case, "b"), [("rest", T0 + S + DAY)]);
}

#[test]
fn a_retry_that_ends_in_a_paused_bucket_stands_with_the_paused_ones_before_it_is_due() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n");
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    set(&mut case, T0 + S, "a", &["pause"]);
    fail_first(&mut case, T0 + 2 * S);
    assert!(case.settle_at(T0 + 2 * S).wait_us < S as i64, "for counters at most, not for its due");
    assert_eq!(places(&mut case, "a"), [("paused", T0 + 60 * S)]);
    unset(&mut case, T0 + 3 * S, "a", &["pause"]);
    assert_eq!(places(&mut case, "a"), [("schedule", T0 + 60 * S)]);
    assert_eq!(case.settle_at(T0 + 60 * S).dispatched, 1);
    assert_eq!(case.stream("ready").last().expect("one").text("attempt"), "2");
}

#[test]
fn a_retry_is_not_lost_when_a_closed_bucket_is_cut_to_nothing() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n");
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    fail_first(&mut case, T0 + S);
    set(&mut case, T0 + S, "a", &["close"]);
    case.settle_at(T0 + S);
    assert_eq!(places(&mut case, "a"), [("schedule", T0 + 60 * S)], "for its retry");
    case.lpush("a", &["2"]);
    case.wake_at(T0 + 2 * S, &["a"]);
    assert!(case.waiting("a").is_empty());
    assert_eq!(places(&mut case, "a"), [("schedule", T0 + 60 * S)]);
    case.settle_at(T0 + 60 * S);
    assert_eq!(case.stream("ready").last().expect("one").text("attempt"), "2");
}

#[test]
fn a_bucket_that_a_full_route_holds_goes_on_at_once_by_the_route_that_it_is_given() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '1s'\n[limits]\nmax_ready = 1\n");
    case.push_at(T0, "a", &["1", "2", "3"]);
    case.settle_at(T0 + S);
    assert_eq!(places(&mut case, "a"), [("held:default", T0 + 100 * MS)]);
    set(&mut case, T0 + 2 * S, "a", &["route=other"]);
    assert_eq!(places(&mut case, "a"), [("schedule", T0 + 2 * S)], "with no credit");
    assert_eq!(case.settle_at(T0 + 2 * S).dispatched, 1);
    assert_eq!(case.jobs("ready:other"), ["2"]);
    // And back when that ends by itself, also where a push is the first to see it.
    unset(&mut case, T0 + 3 * S, "a", &["route"]);
    case.settle_at(T0 + 3 * S);
    assert_eq!(places(&mut case, "a")[0].0, "held:default");
    set_for(&mut case, T0 + 4 * S, "a", &["route=other"], S);
    case.settle_at(T0 + 4 * S);
    assert_eq!(places(&mut case, "a")[0].0, "held:other");
    case.take("ready", 1);
    case.push_at(T0 + 5 * S, "a", &["4"]);
    assert_eq!(case.settle_at(T0 + 5 * S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["1", "3"]);
}

#[test]
fn a_pause_spreads_over_a_bucket_at_rest_whose_due_is_over() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\n[[bucket]]\nmatch = 'b*'\nrate = '1/d'\n");
    case.push_at(T0, "a", &["1"]);
    busy(&mut case, std::iter::once("b".to_owned()));
    case.settle_at(T0 + 9 * MS);
    case.lpush("a", &["2"]);
    set(&mut case, T0 + 9 * MS, "*", &["pause"]);
    // Its due passes while the pause spreads, with a job that nobody has looked at yet.
    assert_eq!(case.settle_at(T0 + 11 * MS).dispatched, 0);
    assert_eq!(places(&mut case, "a"), [("paused", T0 + 11 * MS)]);
    unset(&mut case, T0 + S, "*", &["pause"]);
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
}

#[test]
fn a_bucket_at_rest_that_a_faster_rate_sets_free_does_not_wait_for_its_old_due() {
    let mut case = Case::with("[defaults]\nrate = '1/d'\n");
    case.push_at(T0, "a", &["1"]);
    case.settle_at(T0);
    set(&mut case, T0 + 10 * S, "a", &["rate=1/s"]);
    assert_eq!(places(&mut case, "a"), [], "it has rested for long enough");
    assert_eq!(case.push_at(T0 + 10 * S, "a", &["2"]), [1, 1, 1_000, -1, 0]);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
}

#[test]
fn the_glob_that_won_before_a_timed_setting_of_another_wins_after_it() {
    let mut case = Case::with("");
    set(&mut case, T0, "a*", &["capacity=3"]);
    set(&mut case, T0, "*b", &["capacity=4"]);
    set_for(&mut case, T0, "a*", &["capacity=5"], S);
    assert_eq!(case.peek_at(T0 + S - 1, "ab")[2], 5);
    assert_eq!(case.peek_at(T0 + S, "ab")[2], 4, "its own lasting one is back where it was, behind the one set later");
    assert_eq!(case.peek_at(T0 + S, "a")[2], 3);
}

#[test]
fn an_end_that_a_newer_version_wrote_keeps_nobody_awake() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/d'\n");
    set(&mut case, T0, "b", &["capacity=4"]);
    let (settings, ends) = (case.key("settings"), case.key("ends"));
    let _: i64 = case.cmd(&["HSET", &settings, "a", r#"{"v":2,"odd":{}}"#]);
    let _: i64 = case.cmd(&["ZADD", &ends, &(T0 + S).to_string(), "a", &(T0 + S).to_string(), "gone"]);
    load_library(&mut case.redis);
    assert_eq!(case.settle_at(T0 + 10 * S).wait_us, 60 * S as i64, "it looks again in a minute");
    assert_eq!(case.cmd::<i64>(&["ZCARD", &ends]), 1, "and no more at what nobody set");
    assert_eq!(case.cmd::<String>(&["HGET", &settings, "a"]), r#"{"v":2,"odd":{}}"#);
}

#[test]
fn a_setting_that_a_push_found_over_leaves_nothing() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    set_for(&mut case, T0, "a", &["capacity=3"], S);
    case.push_at(T0 + S, "a", &["1"]);
    let policy = case.key("policy");
    assert_eq!(case.cmd::<i64>(&["HEXISTS", &policy, "settings"]), 0);
    assert!(!exists(&mut case, "settings") && !exists(&mut case, "ends"));
    // Nor a pause, whose bucket has to move first.
    set_for(&mut case, T0 + 2 * S, "a", &["pause"], S);
    assert_eq!(places(&mut case, "a")[0].0, "paused");
    case.push_at(T0 + 3 * S, "a", &["2"]);
    assert_eq!(places(&mut case, "a")[0].0, "schedule");
    assert_eq!(case.cmd::<i64>(&["HEXISTS", &policy, "settings"]), 0);
}

#[test]
fn a_hundred_names_that_end_together_with_the_clock_set_back_are_put_right_once() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/d'\n[limits]\nbatch = 10\n");
    busy(&mut case, (0..100).map(|n| format!("a{n}")));
    for n in 0..100 {
        set_for(&mut case, T0 + S, &format!("a{n}"), &["rate=1/h"], 10 * S);
    }
    // A new library begins with a sweep over all of them, ten at a time, as does the end.
    load_library(&mut case.redis);
    case.settle_at(T0 + 11 * S);
    for n in 0..100 {
        assert_eq!(places(&mut case, &format!("a{n}")), [("schedule", T0 + DAY)], "a{n}");
    }
    assert!(!exists(&mut case, "settings") && !exists(&mut case, "ends"));
}

#[test]
fn a_flood_into_full_buckets_holds_up_no_spread() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    busy(&mut case, (0..500).map(|n| format!("p{n}")));
    set(&mut case, T0, "p*", &["pause"]);
    case.settle_at(T0);
    case.push_at(T0, "full", &["x"; 11]);
    case.settle_at(T0);
    unset(&mut case, T0 + S, "p*", &["pause"]);
    for _ in 0..40 {
        case.lpush("full", &["x"; 300]);
        case.wake_at(T0 + S, &["full"]);
    }
    let paused: Vec<String> =
        (0..500).map(|n| format!("p{n}")).filter(|p| places(&mut case, p)[0].0 == "paused").collect();
    assert_eq!(paused, Vec::<String>::new(), "each call goes on with the spread, whatever it had to reject");
    assert_eq!(case.waiting("full").len(), 10);
}

#[test]
fn a_budget_that_is_set_for_a_glob_is_named_by_the_stars_of_that_glob() {
    let budgets = "[[budget]]\nmatch = 'up:*'\nrate = '10/s'\n[[budget]]\nmatch = 'top:*'\nrate = '20/s'\n";
    for entry in ["", "[[bucket]]\nmatch = 'tw*'\n", "[[bucket]]\nmatch = '*:b'\nwithin = 'top:{1}'\n"] {
        let mut case = Case::with(&format!("[defaults]\nrate = '1000/s'\n{budgets}{entry}"));
        set(&mut case, T0, "twilio:*", &["within=up:{1}"]);
        set(&mut case, T0, "{up:*}", &["within=top:{1}"]);
        case.push_at(T0, "twilio:b", &["1", "2"]);
        case.push_at(T0, "other", &["1"]);
        case.settle_at(T0);
        assert_eq!(case.stream("ready").len(), 2, "the first one of each");
        let (rest, waits) = (case.key("rest"), case.key("wait:up:b{default}"));
        assert!(case.cmd::<Option<f64>>(&["ZSCORE", &rest, "{top:b}"]).is_some(), "{entry:?}: {:?}", case.keys());
        case.settle_at(T0 + MS);
        assert_eq!(case.cmd::<i64>(&["ZCARD", &waits]), 1, "{entry:?}: {:?}", case.keys());
        case.settle_at(T0 + 100 * MS);
        assert_eq!(case.stream("ready").len(), 3);
    }
}

#[test]
fn a_budget_whose_setting_a_submit_finds_over_goes_on() {
    for words in [["pause"], ["rate=1/h"], ["concurrency=1"], ["quota=1/d"]] {
        let mut case = Case::with(
            "[[budget]]\nmatch = 'up'\nrate = '10/s'\n[[budget]]\nmatch = 'p'\nrate = '10/s'\nwithin = 'up'\n\
             [[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'p'\n",
        );
        set_for(&mut case, T0, "{p}", &words, S);
        for bucket in ["a", "b"] {
            case.push_at(T0, bucket, &["1", "2"]);
            case.settle_at(T0);
        }
        let before = case.stream("ready").len();
        assert!(before < 2, "{words:?}");
        case.submit_at(T0 + 2 * S, "a", "3", &[]);
        for n in 0..10 {
            case.settle_at(T0 + 2 * S + n * 100 * MS);
        }
        assert_eq!(case.stream("ready").len(), 5, "{words:?}: {:?}", case.keys());
    }
}

#[test]
fn the_end_of_a_setting_for_budgets_is_waited_for() {
    let mut case = Case::with("[[budget]]\nmatch = 'p:*'\nrate = '10/s'\n[[bucket]]\nmatch = '*'\nwithin = 'p:1'\n");
    set_for(&mut case, T0, "{p:*}", &["pause"], S);
    case.push_at(T0, "a", &["1"]);
    let paused = case.settle_at(T0);
    assert_eq!((paused.dispatched, paused.wait_us), (0, S as i64));
    case.settle_at(T0 + S);
    assert_eq!(case.stream("ready").len(), 1);
    assert!(!exists(&mut case, "globs"), "what ended is stored no more");
}
