//! Submitted jobs that wait for their time, and those that may not wait for ever.

use redis::Value;

use crate::rig::{Case, MS, S, T0};

fn purge(case: &mut Case, now: u64, retries: &str, delayed: &str) -> Vec<i64> {
    let args = [now.to_string().as_str(), retries, "me", "", "", delayed].map(str::to_owned);
    case.fcall("drip__purge", &["queue:b"], &args)
}

#[test]
fn a_delayed_job_leaves_at_its_time_or_at_the_due_of_its_bucket_the_later() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 2\n");
    case.settle_at(T0);
    let one = case.submit_at(T0, "b", "one", &["DELAY", "2500"]);
    assert_eq!((one.five, one.verdict.as_str()), ([1, 1, 2, -1, 2_500], "delayed"));
    let at = ((T0 + 1_500 * MS) / MS).to_string();
    let two = case.submit_at(T0, "b", "two", &["AT", &at]);
    assert_eq!((two.five, two.verdict.as_str()), ([1, 2, 2, -1, 1_500], "delayed"));
    assert_eq!(case.submit_at(T0, "b", "full", &["DELAY", "1"]).five, [0, 2, 2, 1_500, -1]);
    assert_eq!(case.push_at(T0, "b", &["now"]), [1, 1, 2, -1, 0], "the queue has a bound of its own");
    assert_eq!(case.find_at(T0, "b", &two.id), ("delayed".into(), 1_500, 1));
    let reply = case.settle_at(T0);
    assert_eq!((reply.dispatched, reply.wait_us), (1, 1_500_000));
    assert_eq!(case.settle_at(T0 + 1_500 * MS - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 1_500 * MS).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 2_499 * MS).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 2_500 * MS).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["now", "two", "one"]);
    let last = &case.stream("ready")[2];
    assert_eq!(last.number("due_us"), T0 + 2_500 * MS, "waiting for its time is no lateness");
    assert_eq!(case.submit_at(T0 + 3 * S, "b", "past", &["AT", &at]).verdict, "queued", "the past is now");
    assert_eq!(case.submit_at(T0 + 3 * S, "b", "zero", &["DELAY", "0"]).verdict, "queued");
}

#[test]
fn delayed_jobs_take_turns_with_the_queue_one_and_one_in_the_order_of_their_times() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    for (job, delay) in [("d3", "900"), ("d1", "500"), ("d2", "500")] {
        case.submit_at(T0, "b", job, &["DELAY", delay]);
    }
    case.push_at(T0, "b", &["q1", "q2", "q3", "q4"]);
    for n in 0..7 {
        assert_eq!(case.settle_at(T0 + n * S).dispatched, 1);
    }
    assert_eq!(case.jobs("ready"), ["q1", "d1", "q2", "d2", "q3", "d3", "q4"]);
    case.settle_at(T0 + 20 * S);
    assert!(
        case.keys().iter().all(|key| !key.ends_with(":b") && key != "turns" && key != "retries"),
        "{:?}",
        case.keys()
    );
}

#[test]
fn many_that_may_leave_at_once_take_turns_too() {
    let mut case = Case::with("[defaults]\nrate = '1000000/s'\ncatch_up = '1s'\n[limits]\nbatch = 3\n");
    case.settle_at(T0);
    for n in 0..4 {
        case.submit_at(T0 + n, "b", &format!("d{n}"), &["DELAY", "10"]);
    }
    case.push_at(T0 + 9 * MS, "b", &["q0", "q1", "q2", "q3", "q4"]);
    case.settle_at(T0 + 10 * MS + 4);
    case.settle_at(T0 + S);
    assert_eq!(case.jobs("ready"), ["d0", "q0", "d1", "q1", "d2", "q2", "d3", "q3", "q4"]);
}

#[test]
fn a_delayed_job_below_a_budget_in_an_ordered_bucket_and_behind_a_pause_waits_as_any_other() {
    let toml = "[defaults]\nrate = '10/s'\nbackoff = { initial = '5s', max = '5s' }\n\
                [[budget]]\nmatch = 'up'\nrate = '1/s'\n[[bucket]]\nmatch = 'b'\nwithin = 'up'\nconcurrency = 1\nordered = true\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    case.submit_at(T0, "b", "tomorrow", &["ID", "t", "DELAY", "86400000"]);
    case.submit_at(T0, "b", "soon", &["DELAY", "1000"]);
    case.push_at(T0, "b", &["1", "2"]);
    assert_eq!(case.settle_at(T0).dispatched, 1, "an ordered bucket waits for no delayed job");
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &[(T0 + S).to_string().as_str(), &entry.id]), 1);
    assert_eq!(case.settle_at(T0 + 3 * S).dispatched, 0, "but for the one that failed");
    assert_eq!(case.settle_at(T0 + 6 * S).dispatched, 1);
    for n in 0..2 {
        let entry = case.take("ready", 1).remove(0);
        let id = entry.id.clone();
        assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &[(T0 + (7 + n) * S).to_string().as_str(), &id]), 1);
        assert_eq!(case.settle_at(T0 + (7 + n) * S).dispatched, 1);
    }
    let audit: Vec<String> = case.fcall("drip__audit", &["policy"], &[(T0 + 9 * S).to_string()]);
    assert_eq!(audit, Vec::<String>::new());
    let left: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("job")).collect();
    assert_eq!(left.len(), 1, "two are acknowledged, one is in flight: {left:?}");
    assert_eq!(case.find_at(T0 + 9 * S, "b", "t").0, "delayed");
}

#[test]
fn a_purge_takes_delayed_jobs_only_where_it_is_asked_to() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2"]);
    case.submit_at(T0, "b", "q", &["ID", "q"]);
    case.submit_at(T0, "b", "d", &["ID", "d", "DELAY", "5000"]);
    assert_eq!(purge(&mut case, T0, "0", ""), [3, 0, 0, 0, 0, 1]);
    assert_eq!((case.find_at(T0, "b", "q").0, case.find_at(T0, "b", "d").0), ("unknown".into(), "delayed".into()));
    case.push_at(T0, "b", &["3"]);
    assert_eq!(purge(&mut case, T0, "0", "only"), [0, 0, 0, 0, 1, 0]);
    assert_eq!(case.waiting("b"), ["3"]);
    case.submit_at(T0, "b", "d", &["ID", "e", "DELAY", "5000"]);
    assert_eq!(purge(&mut case, T0, "1", "1"), [1, 0, 0, 0, 1, 0]);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 0);
    let event = case.stream("events").pop().expect("an event");
    assert_eq!(
        (event.text("before"), event.text("after")),
        ("1 jobs, 0 retries, 1 delayed".into(), "0 jobs, 0 retries, 0 delayed".into())
    );
}

#[test]
fn a_job_that_could_not_leave_before_its_deadline_is_late_and_not_one_moment_longer() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3"]);
    let late = case.submit_at(T0, "b", "x", &["ID", "x", "TTL", "2999"]);
    assert_eq!((late.five, late.verdict.as_str(), late.id.as_str()), ([0, 3, 1_000, 1, -1], "late", ""));
    assert_eq!(case.submit_at(T0, "b", "x", &["TTL", "1000"]).five, [0, 3, 1_000, 2_000, -1]);
    assert_eq!(case.submit_at(T0 + MS, "b", "x", &["TTL", "2999"]).verdict, "queued", "that long after");
    let aside = case.submit_at(T0, "c", "x", &["DELAY", "5000", "TTL", "1"]);
    assert_eq!(aside.verdict, "delayed", "it counts from its time on");
    case.settle_at(T0 + 5_001 * MS);
    assert_eq!(case.stream("ready").iter().filter(|entry| entry.text("bucket") == "c").count(), 1);
}

#[test]
fn what_waits_past_its_deadline_is_rejected_at_its_turn_and_takes_no_slot() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nttl = '10s'\n[[bucket]]\nmatch = 'free'\nttl = 'none'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "1", &["TTL", "4000"]);
    case.submit_at(T0, "b", "2", &[]);
    case.submit_at(T0, "b", "d", &["DELAY", "3000", "TTL", "1000"]);
    case.push_at(T0, "b", &["plain"]);
    let free = case.submit_at(T0, "free", "x", &[]).id;
    assert_eq!(case.find_at(T0, "free", &free).0, "queued");
    assert_eq!(case.settle_at(T0 + 4_001 * MS).dispatched, 2);
    assert_eq!(case.jobs("ready").len(), 2, "one of each bucket");
    let rejected = case.stream("rejected");
    let told: Vec<_> = rejected.iter().map(|one| (one.text("job"), one.text("reason"))).collect();
    assert_eq!(told, [("d".into(), "expired".into()), ("1".into(), "expired".into())]);
    case.settle_at(T0 + 30 * S);
    let jobs = case.jobs("ready");
    assert!(jobs.contains(&"2".to_owned()) && jobs.contains(&"plain".to_owned()), "{jobs:?}");
    assert_eq!(
        case.stream("ready").iter().find(|e| e.text("job") == "2").expect("it left").number("deadline_us"),
        T0 + 10 * S
    );
}

#[test]
fn a_flood_that_expired_is_gone_in_bounded_calls_and_holds_up_nobody() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/h'\ncapacity = 1000\n[[bucket]]\nmatch = 'b'\nrate = '1000/s'\n[limits]\nbatch = 10\n",
    );
    case.settle_at(T0);
    for n in 0..200 {
        case.submit_at(T0, "b", &n.to_string(), &["TTL", "1000"]);
    }
    case.push_at(T0, "b", &["last"]);
    let (mut now, mut most) = (T0 + 5 * S, 0);
    for _ in 0..100 {
        let before = case.stream("rejected").len();
        let reply = case.drain_at(now);
        most = most.max(case.stream("rejected").len() - before);
        now += MS;
        if reply.dispatched == 1 {
            break;
        }
    }
    assert_eq!((case.jobs("ready"), case.stream("rejected").len()), (vec!["last".to_owned()], 200));
    assert!(most <= 10, "{most} in one call");
}

#[test]
fn a_retry_past_its_deadline_is_dead_of_that() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nbackoff = { initial = '2s', max = '2s' }\n");
    case.settle_at(T0);
    for (job, ttl) in [("1", "1999"), ("2", "2000")] {
        case.submit_at(T0, "b", job, &["ID", job, "TTL", ttl]);
    }
    case.settle_at(T0);
    case.settle_at(T0 + 100 * MS);
    let taken = case.take("ready", 2);
    let fail = |case: &mut Case, now: u64, id: &str| -> i64 {
        case.fcall("drip__fail", &["ready"], &[now.to_string().as_str(), id, "REASON", "boom"])
    };
    assert_eq!(fail(&mut case, T0, &taken[0].id), 2);
    assert_eq!(fail(&mut case, T0, &taken[1].id), 1);
    let dead = case.stream("dead").remove(0);
    assert_eq!((dead.text("job"), dead.text("reason"), dead.text("id")), ("1".into(), "expired".into(), "1".into()));
    case.settle_at(T0 + 3 * S);
    let dead = case.stream("dead");
    assert_eq!((dead.len(), dead[1].text("reason")), (2, "expired".into()), "its turn came too late");
    assert_eq!(case.find_at(T0 + 3 * S, "b", "2").0, "left");
}

#[test]
fn a_delayed_job_of_a_newer_version_is_left_alone_and_told() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "x", &["DELAY", "1000"]);
    let (key, policy) = (case.key("delayed:b"), case.key("policy"));
    let mark: Vec<u8> = case.cmd(&["HGET", &policy, "mark"]);
    assert_eq!(mark.len(), 16);
    let newer: Vec<u8> = [b"1750000000000000".as_slice(), &mark, b"9 whatever"].concat();
    let added: i64 = redis::cmd("ZADD").arg(&key).arg(T0).arg(&newer).query(&mut case.redis).expect("added");
    assert_eq!(added, 1);
    let reply: Vec<Value> = case.fcall("drip__drain", &["schedule"], &[(T0 + S).to_string()]);
    let notes: Vec<String> = redis::from_redis_value(reply[6].clone()).expect("texts");
    assert!(notes.iter().any(|text| text == "newer"), "{notes:?}");
    assert_eq!((reply[1].clone(), case.cmd::<i64>(&["ZCARD", &key])), (Value::Int(0), 2));
}
