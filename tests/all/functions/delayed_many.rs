//! Many delayed jobs over many buckets: their order, how they are counted, cancelled and purged, and what a clock that steps does to them.

use std::collections::BTreeMap;

use crate::rig::{Case, MS, S, T0, rand_u64};

const BUCKETS: u64 = 20;
const EACH: u64 = 40;

fn audit(case: &mut Case, now: u64) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new());
}

/// How many delayed jobs the whole system is said to have.
fn counted(case: &mut Case, now: u64) -> i64 {
    type Flat = Vec<(String, i64)>;
    type Figures = (String, Vec<(String, String)>, Flat, Flat, Flat, redis::Value, Flat);
    let figures: Figures = case.fcall("drip__figures", &["policy"], &[now.to_string()]);
    figures.6.iter().find(|(name, _)| name == "delayed").expect("they are counted").1
}

/// Jobs with times of their own and some that share one; each job is named after its time and the order of its accept.
fn fill(case: &mut Case, from_ms: u64) {
    let seed = rand_u64();
    eprintln!("seed {seed}");
    let mut dice = seed;
    for n in 0..EACH {
        for bucket in 0..BUCKETS {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = from_ms + (dice >> 33) % 500;
            let reply =
                case.submit_at(T0 + n, &format!("b{bucket}"), &format!("{at}-{n:03}"), &["AT", &at.to_string()]);
            assert_eq!(reply.verdict, "delayed");
        }
    }
}

/// The jobs that left, by bucket.
fn left(case: &mut Case) -> BTreeMap<String, Vec<String>> {
    let mut left = BTreeMap::<String, Vec<String>>::new();
    for entry in case.stream("ready") {
        left.entry(entry.text("bucket")).or_default().push(entry.text("job"));
    }
    left
}

#[test]
fn jobs_of_many_buckets_leave_each_in_the_order_of_their_times_and_then_of_their_accepts() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\ncapacity = 100\ncatch_up = '0s'\n[limits]\nbatch = 50\n");
    case.settle_at(T0);
    fill(&mut case, T0 / MS + 1_000);
    assert_eq!(counted(&mut case, T0), (BUCKETS * EACH) as i64);
    assert_eq!(case.settle_at(T0 + 999 * MS).dispatched, 0, "not one before its time");
    for step in 0..60 {
        case.settle_at(T0 + S + step * 10 * MS);
        audit(&mut case, T0 + S + step * 10 * MS);
    }
    case.settle_at(T0 + 5 * S);
    let left = left(&mut case);
    assert_eq!(left.values().map(Vec::len).sum::<usize>() as u64, BUCKETS * EACH);
    for (bucket, jobs) in left {
        assert!(jobs.is_sorted(), "{bucket}: {jobs:?}");
    }
    assert!(!case.keys().iter().any(|key| key.starts_with("delay")), "nothing of them is left");
    assert_eq!(counted(&mut case, T0 + 5 * S), 0);
}

#[test]
fn a_clock_that_steps_back_keeps_delayed_jobs_for_their_time_and_one_that_steps_forward_lets_them_go_in_order() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\ncatch_up = '0s'\n");
    case.settle_at(T0);
    for (job, delay) in [("late", "7000"), ("early", "5000")] {
        case.submit_at(T0, "b", job, &["DELAY", delay]);
    }
    let hour = 3_600 * S;
    for now in [T0 - hour, T0 - hour + 8 * S, T0 + 4_999 * MS] {
        assert_eq!(case.settle_at(now).dispatched, 0, "a delay becomes a time at once");
        audit(&mut case, now);
    }
    let after = case.submit_at(T0 - hour, "b", "of then", &["DELAY", "1000"]);
    assert_eq!(after.five[4], 1_000);
    assert_eq!(case.settle_at(T0 - hour + S).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 5 * S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["of then", "early"]);
    for (job, delay) in [("3", "30000"), ("1", "10000"), ("2", "20000")] {
        case.submit_at(T0 + 5 * S, "c", job, &["DELAY", delay]);
    }
    for n in 0..3 {
        case.settle_at(T0 + 24 * hour + n * S);
        audit(&mut case, T0 + 24 * hour + n * S);
    }
    let left = left(&mut case);
    assert_eq!(
        (&left["b"][2..], &left["c"][..]),
        (&["late".to_owned()][..], &["1".into(), "2".into(), "3".into()][..])
    );
}

#[test]
fn a_purge_and_cancellations_of_many_are_counted_and_nobody_else_is_held_up() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 1000\n[limits]\nbatch = 10\n");
    case.settle_at(T0);
    fill(&mut case, T0 / MS + 1_000);
    for n in 0..300 {
        case.submit_at(T0 + n, "known", &format!("job {n}"), &["ID", &n.to_string(), "DELAY", "1000"]);
    }
    case.push_at(T0, "known", &["plain"]);
    let all = (BUCKETS * EACH) as i64 + 300;
    assert_eq!(counted(&mut case, T0), all);
    let args = [T0.to_string().as_str(), "0", "me", "", "", "only"].map(str::to_owned);
    for bucket in 0..BUCKETS {
        let told: Vec<i64> = case.fcall("drip__purge", &[&format!("queue:b{bucket}")], &args);
        assert_eq!(told, [0, 0, 0, 0, EACH as i64, 0]);
    }
    assert_eq!(counted(&mut case, T0), 300);
    audit(&mut case, T0);
    for n in 0..299 {
        assert_eq!(case.cancel_at(T0, "known", &n.to_string()), 1);
    }
    assert_eq!(counted(&mut case, T0), 300, "a place frees at its turn");
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.settle_at(T0 + S + 300).dispatched, 1, "not one of the cancelled ones takes a slot");
    assert_eq!(case.jobs("ready"), ["plain", "job 299"]);
    assert_eq!(counted(&mut case, T0 + S + 300), 0);
    audit(&mut case, T0 + S + 300);
    assert!(!case.keys().iter().any(|key| key.starts_with("delay") || key.starts_with("jobs:")), "{:?}", case.keys());
}

#[test]
fn delayed_jobs_with_one_time_one_body_and_one_moment_are_two_jobs() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    let (one, other) =
        (case.submit_at(T0, "b", "x", &["DELAY", "1000"]), case.submit_at(T0, "b", "x", &["DELAY", "1000"]));
    assert_ne!(one.id, other.id);
    assert_eq!((one.five[1], other.five[1]), (1, 2));
    case.settle_at(T0 + S);
    case.settle_at(T0 + 2 * S);
    assert_eq!(case.jobs("ready"), ["x", "x"]);
}

#[test]
fn buckets_without_any_leave_the_plain_way_beside_one_whose_delayed_jobs_are_behind_its_rate() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'slow'\nrate = '1/m'\n");
    case.settle_at(T0);
    for n in 0..5 {
        case.submit_at(T0, "slow", &format!("s{n}"), &["DELAY", "10"]);
    }
    case.push_at(T0, "slow", &["q"]);
    assert_eq!(case.settle_at(T0 + 10 * MS).dispatched, 1);
    for n in 0..20 {
        let now = T0 + S + n * 100 * MS;
        case.push_at(now, &format!("p{n}"), &["1", "2"]);
        case.lpush(&format!("w{n}"), &["1"]);
        case.wake_at(now, &[&format!("w{n}")]);
        case.settle_at(now);
        audit(&mut case, now);
    }
    case.settle_at(T0 + 4 * S);
    let before = case.jobs("ready").len();
    assert_eq!(before, 1 + 20 * 3);
    for n in 1..6 {
        assert_eq!(case.settle_at(T0 + n * 60 * S + 11 * MS).dispatched, 1);
    }
    let of_slow: Vec<String> = left(&mut case).remove("slow").expect("it has left");
    assert_eq!(of_slow, ["s0", "q", "s1", "s2", "s3", "s4"]);
}
