//! Delayed jobs that an older library put aside are in no count: the first sweep counts all of them anew, while jobs come and go.

use crate::rig::{Case, S, Server, T0, load_library, rand_u64};

/// What the count of delayed jobs is, and what it should be.
fn counts(case: &mut Case) -> (i64, i64) {
    let (count, any) = (case.key("delays"), case.key("delayed:"));
    let said: Option<i64> = case.cmd(&["GET", &count]);
    let buckets: Vec<String> = case.cmd(&["KEYS", &format!("{any}*")]);
    (said.unwrap_or(0), buckets.iter().map(|key| case.cmd::<i64>(&["ZCARD", key])).sum())
}

/// As it is after the update of a library that did not count: some are in the count, for they came since.
fn as_after_an_update(case: &mut Case, counted: &str) {
    let (policy, count) = (case.key("policy"), case.key("delays"));
    case.cmd::<i64>(&["HDEL", &policy, "delays"]);
    case.cmd::<String>(&["SET", &count, counted]);
    load_library(&mut case.redis);
}

fn is_over(case: &mut Case) -> bool {
    let policy = case.key("policy");
    case.cmd::<Option<String>>(&["HGET", &policy, "delays"]).is_some()
}

fn audit(case: &mut Case) {
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[""; 0]);
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn jobs_that_an_older_library_delayed_are_counted_while_others_come_and_go() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '100/s'\n[limits]\nbatch = 10\n");
    let seed = rand_u64();
    eprintln!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    case.settle_at(T0);
    for n in 0..600 {
        let bucket = format!("b{}", dice.u32(..200));
        case.submit_at(T0, &bucket, &format!("{n}"), &["DELAY", &dice.u32(1..20_000).to_string()]);
    }
    for counted in ["3", "0", "100000"] {
        as_after_an_update(&mut case, counted);
        let (mut now, mut calls) = (T0 + 2 * S, 0);
        while !is_over(&mut case) {
            assert!(calls < 5_000, "it comes to an end");
            (now, calls) = (now + dice.u64(..20_000), calls + 1);
            case.drain_at(now);
            let bucket = format!("b{}", dice.u32(..250)); // some are new
            match dice.u32(..4) {
                0 => drop(case.submit_at(
                    now,
                    &bucket,
                    &format!("n{calls}"),
                    &["DELAY", &dice.u32(1..5_000).to_string()],
                )),
                1 => {
                    let args = [now.to_string().as_str(), "0", "me", "", "", "only"].map(str::to_owned);
                    let _: Vec<i64> = case.fcall("drip__purge", &[&format!("queue:{bucket}")], &args);
                }
                _ => {}
            }
        }
        assert!(calls > 100, "it was done in steps: {calls} calls");
        let (said, right) = counts(&mut case);
        assert!(right > 50, "{right} wait");
        assert_eq!(said, right);
        audit(&mut case);
        for n in 0..300 {
            case.submit_at(T0, &format!("b{}", dice.u32(..200)), &format!("r{calls}-{n}"), &["DELAY", "30000"]);
        }
    }
    for n in 0..1_000 {
        case.settle_at(T0 + 100 * S + n * S / 100);
    }
    assert_eq!(counts(&mut case), (0, 0), "all have left");
    assert!(!case.keys().iter().any(|key| key.starts_with("delay")), "nothing of them is left: {:?}", case.keys());
}

#[test]
fn they_are_counted_once_and_a_server_that_starts_does_not_count_again() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '100/s'\n");
    for n in 0..50 {
        case.submit_at(T0, &format!("b{n}"), "x", &["DELAY", "20000"]);
    }
    as_after_an_update(&mut case, "7");
    case.settle_at(T0 + S);
    assert_eq!(counts(&mut case), (50, 50));
    let count = case.key("delays");
    case.cmd::<String>(&["SET", &count, "7"]);
    load_library(&mut case.redis);
    case.settle_at(T0 + 2 * S);
    assert_eq!(counts(&mut case), (7, 50), "nobody looks at each bucket once more");
}

#[test]
fn a_count_that_broke_off_for_the_server_was_a_replica_meanwhile_begins_anew() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '100/s'\n");
    for n in 0..50 {
        case.submit_at(T0, &format!("b{n}"), "x", &["DELAY", "60000"]);
    }
    as_after_an_update(&mut case, "0");
    let mut now = T0 + S;
    for _ in 0..30 {
        now += 1_000;
        assert_eq!(case.drain_at(now).wait_us, 0, "it counts");
    }
    // What another server did meanwhile: this one was told the result, and no function ran here.
    for n in 0..50 {
        let (delayed, retries) = (case.key(&format!("delayed:b{n}")), case.key("retries"));
        if n % 2 == 0 {
            case.cmd::<i64>(&["DEL", &delayed]);
            case.cmd::<i64>(&["ZREM", &retries, &format!("b{n}")]);
        }
    }
    case.settle_at(now + S);
    assert_eq!(counts(&mut case), (25, 25));
}
