//! A key of dripd's that holds something else raises an error in the middle of a turn. Whatever key it is, and wherever a job waits, no job
//! leaves twice, none is lost, no rate is passed, and all goes on once the key is repaired.

use std::collections::BTreeMap;

use crate::rig::{Case, S, T0};

/// A bucket alone, one with a quota and slots, and two below budgets, in which jobs of every kind wait.
const TOML: &str = "[defaults]\ncost_max = 10\nrate = '1/s'\ncapacity = 50\nbackoff = { initial = '1s', max = '1s' }\n\
    [[bucket]]\nmatch = 'quota'\nquota = '1000/h'\nconcurrency = 40\n\
    [[bucket]]\nmatch = 'below:*'\nwithin = 'budget'\n\
    [[bucket]]\nmatch = 'slow'\nrate = '1/m'\n\
    [[budget]]\nmatch = 'budget'\nrate = '2/s'\nconcurrency = 100\n";
const BUCKETS: [&str; 5] = ["alone", "quota", "below:a", "below:b", "slow"];

/// Every key of which a turn reads or writes something. `{}` stands for a bucket.
const KEYS: &[&str] = &[
    "jobs:{}",
    "ids:{}",
    "slots",
    "inflight",
    "slow",
    "windows",
    "told",
    "paid",
    "over",
    "level",
    "waiting",
    "budgets",
    "wait:budget{default}",
    "turns",
    "delays",
    "rejected",
    "rest",
    "full",
    "stats",
    "retries",
    "delayed:{}",
    "retry:{}",
];

fn fill(case: &mut Case) -> Vec<String> {
    let mut all = Vec::new();
    for bucket in BUCKETS {
        let mut name = |kind: &str| {
            all.push(format!("{bucket} {kind}"));
            all.last().expect("it").clone()
        };
        let failed = name("failed");
        case.submit_at(T0, bucket, &failed, &["ID", "failed", "COST", "2"]);
        case.settle_at(T0);
        for entry in case.take("ready", 10) {
            case.fcall::<i64>("drip__fail", &["ready"], &[T0.to_string(), entry.id]);
        }
        for kind in ["plain 1", "plain 2"] {
            case.push_at(T0, bucket, &[&name(kind)]);
        }
        let (submitted, delayed) = (name("submitted"), name("delayed"));
        case.submit_at(T0, bucket, &submitted, &["ID", "submitted", "COST", "2"]);
        case.submit_at(T0, bucket, &delayed, &["ID", "delayed", "DELAY", "2000"]);
        let late = format!("{bucket} late"); // when its turn comes; where that is sure already, it is not accepted
        if case.submit_at(T0, bucket, &late, &["ID", "late", "TTL", "6000"]).verdict == "queued" {
            all.push(late);
        }
    }
    all
}

/// How often each job has left or was rejected: each must be once at most.
fn seen(case: &mut Case, gone: &mut BTreeMap<String, String>) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for stream in ["ready", "rejected", "dead"] {
        if case.cmd::<String>(&["TYPE", &case.key(stream)]) == "stream" {
            for entry in case.stream(stream) {
                gone.insert(format!("{stream} {}", entry.id), entry.text("job"));
            }
        }
    }
    for job in gone.values() {
        *seen.entry(job.clone()).or_default() += 1;
    }
    seen
}

#[test]
fn a_turn_that_raises_an_error_sends_no_job_twice() {
    for broken in KEYS {
        for bucket in BUCKETS.iter().take(if broken.contains("{}") { BUCKETS.len() } else { 1 }) {
            let mut case = Case::with(TOML);
            case.settle_at(T0);
            let all = fill(&mut case);
            let before = case.stream("ready").len();
            assert_eq!(before, 0);
            let key = case.key(&broken.replace("{}", bucket));
            let kept = format!("{key}:kept");
            let _ = case.try_cmd::<String>(&["RENAME", &key, &kept]);
            let _: String = case.cmd(&["SET", &key, "x"]);
            let (mut now, mut gone) = (T0, BTreeMap::new());
            let about = format!("{broken} of {bucket}");
            for _ in 0..20 {
                now += S / 2;
                let _ = case.try_fcall::<redis::Value>("drip__drain", &["schedule"], &[now.to_string()]);
                let seen = seen(&mut case, &mut gone);
                let twice: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
                assert!(twice.is_empty(), "{about}: {twice:?}");
            }
            let slow = gone.values().filter(|job| job.starts_with("slow")).count();
            assert!(slow <= 2, "{about}: {slow} jobs of 1/m in 10 s"); // one of them was late, and took no slot
            let _: i64 = case.cmd(&["DEL", &key]);
            let _ = case.try_cmd::<String>(&["RENAME", &kept, &key]);
            for _ in 0..100 {
                now += 5 * S;
                case.fcall::<redis::Value>("drip__heal", &["policy"], &[now.to_string()]);
                case.settle_at(now);
                seen(&mut case, &mut gone);
            }
            let seen = seen(&mut case, &mut gone);
            for job in &all {
                assert_eq!(seen.get(job), Some(&1), "{about}: {job}\n{seen:?}");
            }
        }
    }
}
