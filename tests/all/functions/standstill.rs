//! A partition that stood still, for its slot was on the move to another server: the first calls after that are told since when it goes on.
//! What was due by then is due at that moment: the wait counts neither as lateness nor as credit, whatever the bucket waits for.

use redis::Value;

use crate::rig::{Case, MS, S, T0};

/// What systems may let a bucket wait for, and what the entries of each are checked against: all have 10/s.
const SYSTEMS: [(&str, &str); 7] = [
    ("a rate", "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\n"),
    ("a quota", "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\nquota = '10000/d'\n"),
    ("a rate of jobs", "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\njob_rate = '50/s'\n"),
    ("a slot", "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\nconcurrency = 500\n"),
    (
        "a budget",
        "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\nwithin = 'p'\n[[budget]]\nmatch = 'p'\nrate = '15/s'\n",
    ),
    (
        "two budgets",
        "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\nwithin = 'p'\n[[budget]]\nmatch = 'p'\nrate = '15/s'\nwithin = 'top'\n\
         [[budget]]\nmatch = 'top'\nrate = '12/s'\n",
    ),
    (
        "budgets with a quota and slots",
        "[defaults]\nrate = '10/s'\ncatch_up = '20ms'\nwithin = 'p'\n[[budget]]\nmatch = 'p'\nrate = '15/s'\nquota = '10000/d'\nwithin = 'top'\n\
         [[budget]]\nmatch = 'top'\nconcurrency = 500\n",
    ),
];

/// When the partition goes on, as the daemon knows it, and its first call after that.
const GOES_ON: u64 = T0 + 60 * S;
const FIRST: u64 = GOES_ON + 30 * MS;

/// What a call let out: the wait after it, how many jobs, and the lateness of the latest.
struct Drained {
    wait_us: i64,
    dispatched: i64,
    latest_us: i64,
}

fn drained(reply: &[Value]) -> Drained {
    let number = |at: usize| redis::from_redis_value_ref(&reply[at]).expect("a number");
    Drained { wait_us: number(0), dispatched: number(1), latest_us: number(3) }
}

/// Calls of a daemon that knows since when the partition goes on, or of one that does not, until nothing more is due.
fn settle(case: &mut Case, now: u64, goes_on: Option<u64>) -> Drained {
    let ago = goes_on.map_or(String::new(), |since| (now - since).to_string());
    let mut sum = Drained { wait_us: 0, dispatched: 0, latest_us: 0 };
    while sum.wait_us == 0 {
        let reply: Vec<Value> = case.fcall("drip__drain", &["schedule"], &[now.to_string().as_str(), "1", &ago]);
        let one = drained(&reply);
        sum.wait_us = one.wait_us;
        sum.dispatched += one.dispatched;
        sum.latest_us = sum.latest_us.max(one.latest_us);
    }
    sum
}

/// Two buckets with jobs of every kind, some of which come due while the partition stands still.
fn standing_still(toml: &str) -> Case {
    let mut case = Case::with(toml);
    case.settle_at(T0);
    for bucket in ["a", "b"] {
        case.push_at(T0, bucket, &["1", "2", "3", "4"]);
        case.submit_at(T0, bucket, "dear", &["COST", "2"]);
        case.submit_at(T0, bucket, "later", &["DELAY", "20000"]);
    }
    case.settle_at(T0);
    case.settle_at(T0 + 200 * MS);
    let taken = case.take("ready", 100);
    assert!(taken.len() >= 2);
    let failed = [(T0 + 200 * MS).to_string(), taken[0].id.clone(), "RETRY_IN".to_owned(), "30000".to_owned()];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &failed), 1);
    case
}

#[test]
fn what_a_bucket_waited_while_its_partition_stood_still_is_neither_lateness_nor_credit() {
    for (what, toml) in SYSTEMS {
        let mut case = standing_still(toml);
        let before = case.stream("ready").len();
        let first = settle(&mut case, FIRST, Some(GOES_ON));
        assert!((1..=2).contains(&first.dispatched), "{what}: {} at once, no credit", first.dispatched);
        assert!(first.latest_us <= 30_000, "{what}: {} us late", first.latest_us);
        let mut wait = first.wait_us;
        let mut now = FIRST;
        while wait >= 0 {
            now += u64::try_from(wait).expect("a time").max(1);
            let next = case.settle_at(now);
            wait = next.wait_us;
        }
        let entries = case.stream("ready");
        for entry in &entries[before.min(entries.len() - 1)..] {
            let (due, at) = (entry.number("due_us"), entry.number("at_us"));
            assert!(due >= GOES_ON && at - due <= 30_000, "{what}: {:?} is {} us late", entry.fields, at - due);
        }
        let jobs = case.jobs("ready");
        assert_eq!(jobs.iter().filter(|job| *job == "later").count(), 2, "{what}: {jobs:?}");
        for bucket in ["a", "b"] {
            let of = entries.iter().filter(|entry| entry.text("bucket") == bucket);
            let times: Vec<u64> = of.map(|entry| entry.number("at_us")).collect();
            for (i, from) in times.iter().enumerate() {
                for (n, to) in times.iter().enumerate().skip(i) {
                    let most = 1 + (to - from + 20_000 + 1) / 100_000;
                    assert!((n - i + 1) as u64 <= most, "{what}: {} jobs of {bucket} in {} us", n - i + 1, to - from);
                }
            }
        }
        let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
        assert_eq!(wrong, Vec::<String>::new(), "{what}");
    }
}

#[test]
fn without_being_told_a_call_counts_from_the_due() {
    for (what, toml) in SYSTEMS {
        let first = settle(&mut standing_still(toml), FIRST, None);
        assert!(first.latest_us > 50_000_000, "{what}: {} us", first.latest_us);
    }
}

#[test]
fn it_is_so_of_more_buckets_than_one_call_takes_and_of_a_wake_and_what_is_due_later_keeps_its_due() {
    let mut case =
        Case::with("[defaults]\nrate = '10/s'\n[limits]\nbatch = 7\n[[bucket]]\nmatch = 'slow'\nrate = '1/90s'\n");
    case.settle_at(T0);
    case.push_at(T0, "slow", &["1", "2"]);
    case.settle_at(T0);
    for n in 0..40 {
        case.push_at(T0, &format!("b{n}"), &["1"]);
    }
    let due = case.due("slow").expect("it waits");
    assert!(due > FIRST);
    let queue = "queue:b39";
    let args = [FIRST.to_string(), "1".to_owned(), (FIRST - GOES_ON).to_string()];
    let reply: Vec<Value> = case.fcall("drip__wake", &[queue], &args);
    let woken = drained(&reply);
    assert!(woken.dispatched > 0 && woken.latest_us <= 30_000, "{} us late", woken.latest_us);
    let rest = settle(&mut case, FIRST, Some(GOES_ON));
    assert!(rest.latest_us <= 30_000, "{} us late", rest.latest_us);
    let late = |entry: &crate::rig::Entry| entry.number("at_us") - entry.number("due_us");
    let entries = case.stream("ready");
    assert_eq!(entries.len(), 41);
    assert!(entries.iter().all(|entry| entry.number("at_us") < FIRST || late(entry) <= 30_000));
    assert_eq!(case.due("slow"), Some(due));
}
