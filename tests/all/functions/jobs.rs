//! Dispatched jobs: ack, fail, retries, leases, the dead, and the removal of what is finished.

use redis::Value;

use crate::rig::{Case, Drained, Entry, MS, S, T0};

/// A case with jobs of bucket `b` in a worker's hand.
fn in_hand(toml: &str, jobs: &[&str]) -> (Case, Vec<Entry>) {
    taken_of(Case::with(toml), jobs)
}

/// The same in a case of which nothing has left before.
pub(super) fn taken_of(mut case: Case, jobs: &[&str]) -> (Case, Vec<Entry>) {
    case.settle_at(T0);
    case.push_at(T0, "b", jobs);
    for n in 0..jobs.len() as u64 {
        case.settle_at(T0 + n * S);
    }
    let taken = case.take("ready", 1_000);
    assert_eq!(taken.len(), jobs.len());
    (case, taken)
}

fn fail_at(case: &mut Case, now: u64, id: &str, options: &[&str]) -> i64 {
    let now = now.to_string();
    let args: Vec<&str> = [now.as_str(), id].into_iter().chain(options.iter().copied()).collect();
    case.fcall("drip__fail", &["ready"], &args)
}

/// A whole pass at a time; replies how many jobs were taken back, how many entries removed, and the time left in ms.
pub(super) fn reap_at(case: &mut Case, now: &str, take_back: bool) -> (i64, i64, i64) {
    let (mut route, mut id, mut sum) = (String::new(), String::new(), (0, 0, i64::MAX));
    for _ in 0..10_000 {
        let reply: (String, String, i64, i64, i64, i64, i64, Vec<Value>, i64, i64) =
            case.fcall("drip__reap", &["policy"], &[now, if take_back { "1" } else { "0" }, &route, &id]);
        sum = (sum.0 + reply.3, sum.1 + reply.4, if reply.2 < 0 { sum.2 } else { sum.2.min(reply.2) });
        (route, id) = (reply.0, reply.1);
        if route.is_empty() {
            return sum;
        }
    }
    panic!("a pass that does not end");
}

pub(super) fn server_now(case: &mut Case) -> u64 {
    let (s, us): (u64, u64) = case.cmd(&["TIME"]);
    s * S + us
}

const FAST: &str = "[defaults]\nrate = '1/s'\nbackoff = { initial = '2s', max = '5s' }\nattempts = 4\n";

#[test]
fn ack_deletes_what_was_pending_and_leaves_the_rest_alone() {
    let (mut case, taken) = in_hand(FAST, &["1", "2", "3"]);
    case.push_at(T0 + 9 * S, "b", &["undelivered"]);
    case.settle_at(T0 + 9 * S);
    let undelivered = case.stream("ready")[3].id.clone();
    let ids = [&taken[0].id, &taken[0].id, &taken[2].id, &undelivered, &"5-5".to_owned()];
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &ids), 2);
    assert_eq!(case.jobs("ready"), ["2", "undelivered"]);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &ids), 0, "safe to repeat");
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready:none"], &ids), 0);
}

#[test]
fn a_failed_job_waits_out_its_back_off_and_leaves_ahead_of_the_queue_on_a_rate_slot() {
    let (mut case, taken) = in_hand(FAST, &["1"]);
    case.push_at(T0 + 10 * S, "b", &["2", "3", "4"]);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
    assert_eq!(fail_at(&mut case, T0 + 10 * S, &taken[0].id, &[]), 1);
    assert_eq!(case.jobs("ready"), ["2"], "its entry is gone");
    assert_eq!(case.settle_at(T0 + 11 * S).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 11_999 * MS).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 12 * S).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 13 * S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["2", "3", "1", "4"]);
    let retry = &case.stream("ready")[2];
    assert_eq!((retry.text("attempt"), retry.text("id")), ("2".to_owned(), taken[0].id.clone()));
    assert_eq!(retry.number("due_us"), T0 + 12 * S);
}

#[test]
fn back_offs_double_up_to_their_maximum_and_the_last_failure_is_the_death() {
    let (mut case, taken) = in_hand(FAST, &["x"]);
    let (mut id, mut now) = (taken[0].id.clone(), T0 + 100 * S);
    for (attempt, wait) in [(2, 2 * S), (3, 4 * S), (4, 5 * S)] {
        assert_eq!(fail_at(&mut case, now, &id, &["REASON", "no luck"]), 1);
        case.settle_at(now);
        assert_eq!(case.settle_at(now + wait - 1).dispatched, 0);
        now += wait;
        assert_eq!(case.settle_at(now).dispatched, 1);
        let again = case.take("ready", 1).remove(0);
        assert_eq!((again.number("attempt"), again.text("id")), (attempt, taken[0].id.clone()));
        id = again.id;
    }
    assert_eq!(fail_at(&mut case, now, &id, &["REASON", &"é".repeat(700)]), 2);
    let dead = case.stream("dead").remove(0);
    assert_eq!((dead.text("bucket"), dead.text("job"), dead.text("attempt")), ("b".into(), "x".into(), "4".into()));
    assert_eq!((dead.text("id"), dead.fields["reason"].len()), (taken[0].id.clone(), 1_000));
    assert_eq!(case.settle_at(now + 10 * S), Drained { wait_us: -1, dispatched: 0, rejected: 0 });
    let keys = case.keys();
    assert!(
        keys.iter().all(|key| ["dead", "policy", "ready", "routes", "stats", "wake"].contains(&key.as_str())),
        "{keys:?}"
    );
}

#[test]
fn fail_says_what_became_of_the_job_and_reads_its_options() {
    let (mut case, taken) = in_hand(FAST, &["1", "2", "3", "4"]);
    let now = T0 + 100 * S;
    assert_eq!(fail_at(&mut case, now, &taken[0].id, &["dead"]), 2);
    assert_eq!(case.stream("dead")[0].text("reason"), "failed");
    assert_eq!(fail_at(&mut case, now, &taken[0].id, &[]), 0, "not pending any more");
    assert_eq!(fail_at(&mut case, now, "1-1", &[]), 0);
    assert_eq!(fail_at(&mut case, now, &taken[1].id, &["KEEP", "RETRY_IN", "0", "REASON", "shutdown"]), 1);
    assert_eq!(fail_at(&mut case, now, &taken[2].id, &["RETRY_IN", "1500"]), 1);
    assert_eq!(fail_at(&mut case, now, &taken[3].id, &["KEEP"]), 1);
    assert_eq!(case.settle_at(now).dispatched, 1);
    assert_eq!(case.settle_at(now + 1_499 * MS).dispatched, 0);
    case.settle_at(now + 1_500 * MS);
    case.settle_at(now + 2_500 * MS);
    let again = case.stream("ready");
    let seen: Vec<_> = again.iter().map(|e| (e.text("job"), e.number("attempt"), e.text("id"))).collect();
    let id = |n: usize| taken[n].id.clone();
    assert_eq!(
        seen,
        [("2".into(), 1, id(1)), ("3".into(), 2, id(2)), ("4".into(), 1, id(3))],
        "KEEP does not count the attempt"
    );
}

#[test]
fn retries_leave_in_the_order_in_which_their_back_offs_ended_and_equal_jobs_do_not_collapse() {
    let (mut case, taken) = in_hand(FAST, &["same", "same", "other"]);
    let now = T0 + 100 * S;
    assert_eq!(fail_at(&mut case, now, &taken[2].id, &["RETRY_IN", "300"]), 1);
    assert_eq!(fail_at(&mut case, now, &taken[1].id, &["RETRY_IN", "200"]), 1);
    assert_eq!(fail_at(&mut case, now, &taken[0].id, &["RETRY_IN", "200"]), 1);
    case.push_at(now, "b", &["queued"]);
    for second in 1..6 {
        case.settle_at(now + second * S);
    }
    let again: Vec<_> = case.stream("ready").iter().map(|e| (e.text("job"), e.fields.get("id").cloned())).collect();
    assert_eq!(again.len(), 4);
    assert_eq!(again[2].1.as_deref(), Some(taken[2].id.as_bytes()));
    assert_eq!(again[3].0, "queued");
}

#[test]
fn retries_do_not_count_against_capacity_and_keep_the_rate() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 3\nbackoff = { initial = '1s', max = '1s' }\n";
    let (mut case, taken) = in_hand(toml, &["1", "2", "3"]);
    let now = T0 + 100 * S;
    for entry in &taken {
        fail_at(&mut case, now, &entry.id, &[]);
    }
    assert_eq!(case.push_at(now, "b", &["4", "5", "6", "7"])[..3], [3, 3, 3]);
    let mut times = Vec::new();
    let mut at = now;
    while times.len() < 6 {
        let drained = case.settle_at(at);
        times.extend(std::iter::repeat_n(at, drained.dispatched as usize));
        at += drained.wait_us as u64;
    }
    assert!(times.windows(2).all(|t| t[1] - t[0] >= 100 * MS), "{times:?}");
}

#[test]
fn a_back_off_lies_no_further_ahead_than_its_length_after_the_clock_stepped_back() {
    let (mut case, taken) = in_hand(FAST, &["1", "2"]);
    let now = T0 + 100 * S;
    fail_at(&mut case, now, &taken[0].id, &["RETRY_IN", "3000"]);
    fail_at(&mut case, now, &taken[1].id, &["RETRY_IN", "600000"]);
    case.settle_at(now);
    let back = now - 3_600 * S;
    assert_eq!(case.settle_at(back).wait_us, 3 * S as i64);
    assert_eq!(case.settle_at(back + 3 * S).dispatched, 1);
    assert_eq!(case.settle_at(back + 3 * S + 5 * S).wait_us, 592 * S as i64);
}

#[test]
fn a_retry_without_a_wait_leaves_at_once_though_the_clock_stepped_back() {
    let (mut case, taken) = in_hand(FAST, &["1"]);
    let now = T0 + 100 * S;
    case.settle_at(now);
    fail_at(&mut case, now, &taken[0].id, &["RETRY_IN", "0"]);
    assert_eq!(case.settle_at(now - 3_600 * S).dispatched, 1);
}

#[test]
fn a_job_whose_lease_ran_out_is_taken_back_as_if_it_had_failed() {
    let (mut case, taken) = in_hand("[defaults]\nrate = '10/s'\nlease = '30s'\nattempts = 2\n", &["1", "2"]);
    let key = case.key("ready");
    let now = server_now(&mut case);
    let (taken_back, _, left) = reap_at(&mut case, &(now + 29 * S).to_string(), true);
    assert_eq!(taken_back, 0);
    assert!((500..=1_050).contains(&left), "{left} ms");
    // A worker that renews keeps its job.
    let _: Value = case.cmd(&["XCLAIM", &key, "workers", "w", "0", &taken[1].id, "JUSTID"]);
    let _: Value = case.cmd(&["XCLAIM", &key, "workers", "w", "0", &taken[0].id, "IDLE", "5000", "JUSTID"]);
    assert_eq!(reap_at(&mut case, &(now + 26 * S).to_string(), false).0, 0, "not in the grace after a start");
    assert_eq!(reap_at(&mut case, &(now + 26 * S).to_string(), true).0, 1);
    assert_eq!(case.jobs("ready"), ["2"]);
    case.settle_at(now + 28 * S);
    let again = case.take("ready", 5).remove(0);
    assert_eq!((again.text("job"), again.number("attempt"), again.text("id")), ("1".into(), 2, taken[0].id.clone()));
    assert_eq!(reap_at(&mut case, &(now + 61 * S).to_string(), true).0, 2);
    let dead = case.stream("dead");
    assert_eq!((dead.len(), dead[0].text("job"), dead[0].text("reason")), (1, "1".into(), "lease expired".into()));
}

#[test]
fn finished_entries_go_also_behind_a_long_job_and_pending_or_undelivered_ones_never() {
    let mut case =
        Case::with("[defaults]\nrate = '1000000/s'\ncapacity = 2000\ncatch_up = '1s'\n[limits]\nbatch = 50\n");
    case.settle_at(T0);
    case.push_at(
        T0,
        "b",
        &(0..600).map(|n| n.to_string()).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(),
    );
    case.settle_at(T0 + S);
    let (key, taken) = (case.key("ready"), case.take("ready", 500));
    let keep = [0_usize, 7, 8, 250, 499];
    for (n, entry) in taken.iter().enumerate() {
        if !keep.contains(&n) {
            let _: i64 = case.cmd(&["XACK", &key, "workers", &entry.id]);
        }
    }
    let expect: Vec<String> = keep.iter().copied().chain(500..600).map(|n| n.to_string()).collect();
    assert_eq!(reap_at(&mut case, "", true).1, 495);
    assert_eq!(case.jobs("ready"), expect);
    assert_eq!(reap_at(&mut case, "", true).1, 0);
    for n in keep {
        let _: i64 = case.cmd(&["XACK", &key, "workers", &taken[n].id]);
    }
    assert_eq!(reap_at(&mut case, "", true).1, 5);
    assert_eq!(case.stream("ready").len(), 100);
    let other = ["XREADGROUP", "GROUP", "others", "o", "STREAMS", &key, ">"];
    let _: String = case.cmd(&["XGROUP", "CREATE", &key, "others", "0"]);
    let _: Value = case.cmd(&other);
    assert_eq!(reap_at(&mut case, "", true).1, 0, "another group does not count");
    let rest = case.take("ready", 200);
    for entry in &rest {
        assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&entry.id]), 1);
    }
    assert!(case.stream("ready").is_empty());
}

#[test]
fn what_is_read_with_noack_counts_as_done_at_once() {
    let mut case = Case::with(FAST);
    case.push_at(T0, "b", &["lost", "waits"]);
    case.settle_at(T0);
    let key = case.key("ready");
    let entry = case.stream("ready")[0].id.clone();
    let _: Value = case.cmd(&["XREADGROUP", "GROUP", "workers", "w", "NOACK", "STREAMS", &key, ">"]);
    assert_eq!(fail_at(&mut case, T0, &entry, &[]), 0, "it is nobody's");
    let (taken_back, removed, _) = reap_at(&mut case, &T0.to_string(), true);
    assert_eq!((taken_back, removed), (0, 1), "deleted, and not taken back");
    assert!(case.stream("ready").is_empty() && case.stream("dead").is_empty());
    assert_eq!(case.waiting("b"), ["waits"]);
}

#[test]
fn foreign_entries_go_to_the_dead_with_what_they_held() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    let key = case.key("ready");
    for fields in [
        &["hello", "world", "reason", "mine"][..],
        &["job", "j"],
        &["bucket", "a{b", "job", "j"],
        &["bucket", "b", "job", "j", "attempt", "x"],
    ] {
        let words: Vec<&str> = ["XADD", &key, "*"].into_iter().chain(fields.iter().copied()).collect();
        let _: String = case.cmd(&words);
    }
    let good: String = case.cmd(&["XADD", &key, "*", "bucket", "b", "job", "fine"]);
    let taken = case.take("ready", 10);
    assert_eq!(fail_at(&mut case, T0, &taken[1].id, &[]), 2);
    let now = server_now(&mut case) + 5 * S;
    assert_eq!(reap_at(&mut case, &now.to_string(), true).0, 3);
    let dead = case.stream("dead");
    assert_eq!(dead.len(), 4);
    assert!(dead.iter().all(|entry| entry.text("reason") == "malformed"), "{dead:?}");
    assert!(dead.iter().any(|entry| entry.fields.get("hello").is_some_and(|value| value == b"world")));
    assert_eq!(case.stream("ready")[0].id, good);
    assert_eq!(fail_at(&mut case, T0, &good, &[]), 1, "one with a bucket and a job is a job");
}

#[test]
fn an_entry_deleted_while_it_was_pending_is_let_go() {
    let (mut case, taken) = in_hand(FAST, &["1", "2"]);
    let key = case.key("ready");
    let _: i64 = case.cmd(&["XDEL", &key, &taken[0].id]);
    assert_eq!(fail_at(&mut case, T0, &taken[0].id, &[]), 0);
    let now = server_now(&mut case) + 5 * S;
    reap_at(&mut case, &now.to_string(), true);
    let pending: Vec<Value> = case.cmd(&["XPENDING", &key, "workers", "-", "+", "10"]);
    assert_eq!(pending.len(), 1);
}

#[test]
fn an_entry_deleted_after_its_lease_was_seen_is_let_go_and_harms_no_other() {
    let (mut case, taken) = in_hand("[defaults]\nrate = '10/s'\nlease = '30s'\n", &["1", "2"]);
    let (key, now) = (case.key("ready"), server_now(&mut case));
    reap_at(&mut case, &(now + 5 * S).to_string(), true);
    let _: i64 = case.cmd(&["XDEL", &key, &taken[0].id]);
    assert_eq!(reap_at(&mut case, &(now + 40 * S).to_string(), true).0, 1);
    let pending: Vec<Value> = case.cmd(&["XPENDING", &key, "workers", "-", "+", "10"]);
    assert!(pending.is_empty(), "{pending:?}");
}

#[test]
fn a_foreign_entry_with_a_false_id_is_malformed_and_a_false_retry_is_buried() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    let key = case.key("ready");
    for id in ["", "my id", "caf\u{e9}"] {
        let _: String = case.cmd(&["XADD", &key, "*", "bucket", "b", "job", "hello world", "id", id]);
    }
    for entry in case.take("ready", 10) {
        assert_eq!(fail_at(&mut case, T0, &entry.id, &[]), 2);
    }
    assert!(case.stream("dead").iter().all(|entry| entry.text("reason") == "malformed"));
    let (retry, index) = (case.key("retry:b"), case.key("retries"));
    let _: i64 = case.cmd(&["ZADD", &retry, "1", "nonsense"]);
    let _: i64 = case.cmd(&["ZADD", &index, "1", "b"]);
    case.push_at(T0, "b", &["1"]);
    case.settle_at(T0);
    assert_eq!(case.jobs("ready"), ["1"]);
    assert_eq!(case.stream("dead").len(), 4);
}

#[test]
fn undelivered_entries_that_somebody_deleted_neither_hold_a_route_nor_hide_finished_ones() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n[limits]\nmax_ready = 20\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 500]);
    case.settle_at(T0 + 10 * S);
    let taken = case.take("ready", 4);
    let mut now = T0 + 10 * S;
    for _ in 0..30 {
        now += MS;
        case.settle_at(now);
    }
    let key = case.key("ready");
    let undelivered: Vec<String> = case.stream("ready")[4..].iter().map(|entry| entry.id.clone()).collect();
    let words: Vec<&str> = ["XDEL", &key].into_iter().chain(undelivered.iter().map(String::as_str)).collect();
    assert_eq!(case.cmd::<usize>(&words), undelivered.len());
    assert!(case.settle_at(now + S).dispatched > 0, "the route goes on");
    for entry in &taken[1..] {
        let _: i64 = case.cmd(&["XACK", &key, "workers", &entry.id]);
    }
    let removed: i64 = (0..6).map(|_| reap_at(&mut case, "", true).1).sum();
    assert_eq!(removed, 3, "behind the one that is pending");
}

#[test]
fn a_route_that_no_policy_names_any_more_is_reaped_until_it_is_empty() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nroute = 'old'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1"]);
    case.settle_at(T0);
    case.configure("[defaults]\nrate = '10/s'\n");
    let (key, routes) = (case.key("ready:old"), case.key("routes"));
    reap_at(&mut case, "", true);
    assert_eq!(case.cmd::<i64>(&["SISMEMBER", &routes, "old"]), 1);
    let taken = case.take("ready:old", 1);
    let _: i64 = case.cmd(&["XACK", &key, "workers", &taken[0].id]);
    assert_eq!(reap_at(&mut case, "", true).1, 1);
    reap_at(&mut case, "", true);
    assert_eq!(case.cmd::<Vec<String>>(&["SMEMBERS", &routes]), ["default"]);
}

#[test]
fn a_prefix_may_look_like_a_ready_stream() {
    let mut case = Case::with("[defaults]\nroute = 'ready'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1"]);
    case.settle_at(T0);
    let taken = case.take("ready:ready", 1);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready:ready"], &[&taken[0].id]), 1);
}

#[test]
fn an_entry_with_a_lease_of_nothing_or_none_that_can_be_read_has_that_of_its_bucket() {
    let (mut case, taken) = in_hand("[defaults]\nrate = '10/s'\nlease = '30s'\n", &["1"]);
    let key = case.key("ready");
    for lease in ["0", "", "soon", "-1"] {
        let _: String = case.cmd(&["XADD", &key, "*", "bucket", "b", "job", lease, "attempt", "1", "lease_ms", lease]);
    }
    assert_eq!((taken.len(), case.take("ready", 9).len()), (1, 4));
    let now = server_now(&mut case);
    assert_eq!(reap_at(&mut case, &(now + 25 * S).to_string(), true).0, 0);
    assert_eq!(reap_at(&mut case, &(now + 31 * S).to_string(), true).0, 5);
}
