//! A bucket whose turn cannot be taken, because a key of dripd's holds something else: it is looked at again within a second, whatever its
//! rate, and says why it waits.

use super::explain::{beat, json_of, says};
use super::flow::audit;
use super::slots::heal;
use crate::rig::{Case, MS, S, T0};

/// A damaged key: its name, a configuration of a slow bucket that needs it, and how jobs come into that.
struct Damage {
    key: &'static str,
    toml: &'static str,
    come: fn(&mut Case),
    /// How many of its jobs the first turn lets out.
    out: usize,
    /// What is said of it.
    says: &'static str,
}

const HOURLY: &str = "[defaults]\nrate = '1/h'\ncapacity = 2\n";

const DAMAGES: [Damage; 5] = [
    Damage {
        key: "rejected",
        toml: HOURLY,
        come: |case| {
            case.lpush("a", &["1", "2", "3"]);
        },
        out: 1,
        says: "rejected does not take an entry",
    },
    Damage {
        key: "rejected",
        toml: "[defaults]\nrate = '1/h'\n[limits]\nmax_job_bytes = 1024\n",
        come: |case| {
            case.lpush("a", &["x".repeat(2_000).as_str()]);
            case.lpush("a", &["1"]);
        },
        out: 1,
        says: "rejected does not take an entry",
    },
    Damage {
        key: "slots",
        toml: "[defaults]\nrate = '1/h'\nconcurrency = 1\n",
        come: |case| {
            case.lpush("a", &["1", "2"]);
        },
        out: 1,
        says: "slots holds something else than it must",
    },
    Damage {
        key: "slots",
        toml: "[defaults]\nrate = '1/h'\n[[budget]]\nmatch = 'p'\nconcurrency = 1\n[[bucket]]\nmatch = 'a'\nwithin = 'p'\n",
        come: |case| {
            case.lpush("a", &["1", "2"]);
        },
        out: 1,
        says: "slots holds something else than it must",
    },
    Damage {
        key: "delayed:a",
        toml: "[defaults]\nrate = '1/h'\n",
        come: |case| {
            case.submit_at(T0, "a", "1", &[]);
            let retries = case.key("retries");
            let _: i64 = case.cmd(&["ZADD", &retries, &T0.to_string(), "a"]);
        },
        out: 1,
        says: "queue:a (WRONGTYPE",
    },
];

#[test]
fn a_parked_bucket_of_any_rate_is_looked_at_again_each_second_and_says_why_it_waits() {
    for (n, Damage { key, toml, come, out, says: words }) in DAMAGES.iter().enumerate() {
        let mut case = Case::with(toml);
        let damaged = case.key(key);
        come(&mut case);
        let _: String = case.cmd(&["SET", &damaged, "something else"]);
        case.wake_at(T0, &["a"]);
        for second in 0..30 {
            let drained = case.settle_at(T0 + second * S);
            assert_eq!(drained.dispatched, 0, "{n}: nothing leaves");
            let wait = u64::try_from(drained.wait_us).expect("something is due");
            assert!(wait <= S, "{n}: it is looked at again after {wait} us");
        }
        let now = T0 + 29 * S + 500 * MS;
        beat(&mut case, now);
        let said = says(&mut case, now, "a");
        let last = said.last().expect("a sentence");
        let failed = "a is tried again in 500 ms: its last turn failed, ";
        assert!(last.starts_with(failed) && last.contains(words), "{n}: {said:?}");
        assert_eq!(json_of(&mut case, now, "a")["binds"], "parked", "{n}");
        let _: i64 = case.cmd(&["DEL", &damaged]);
        case.settle_at(T0 + 30 * S);
        assert_eq!(case.stream("ready").len(), *out, "{n}: it goes on within a second");
        let said = says(&mut case, T0 + 30 * S, "a");
        assert!(said.iter().all(|line| !line.contains("tried again")), "{n}: {said:?}");
        case.settle_at(T0 + 3_600 * S);
        assert_eq!(case.stream("ready").len(), *out, "{n}: at its rate");
        audit(&mut case);
    }
}

#[test]
fn a_turn_that_raises_after_jobs_have_left_is_taken_again_no_sooner_than_their_rate_lets() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncatch_up = '1s'\n");
    case.push_at(T0, "a", &["1"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    case.push_at(T0 + MS, "a", &["2"]);
    case.submit_at(T0 + MS, "a", "3", &["ID", "three"]);
    let jobs = case.key("jobs:a");
    let _: i64 = case.cmd(&["DEL", &jobs]);
    let _: String = case.cmd(&["SET", &jobs, "something else"]); // the turn of the submitted job raises
    for ms in 0..1_000 {
        case.settle_at(T0 + 900 * MS + ms * MS);
    }
    let left = case.stream("ready").len();
    assert!((2..=11).contains(&left), "one job, and those that were due in ten intervals: {left}");
    audit(&mut case);
}

/// What counts the taken slots is lost, and written anew: whoever waits for a slot does not wait for the next thorough pass.
#[test]
fn taken_slots_are_known_again_in_the_first_pass_after_their_key_is_repaired() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\nconcurrency = 1\n");
    case.push_at(T0, "a", &["a1", "a2"]);
    case.settle_at(T0);
    heal(&mut case, T0 + MS); // a thorough one
    let inflight = case.key("inflight");
    let _: i64 = case.cmd(&["DEL", &inflight]);
    let _: String = case.cmd(&["SET", &inflight, "something else"]);
    let now = T0 + S;
    case.push_at(now, "b", &["b1"]);
    assert_eq!(case.settle_at(now).dispatched, 0, "nobody knows what is out");
    heal(&mut case, now);
    let _: i64 = case.cmd(&["DEL", &inflight]);
    beat(&mut case, now);
    let said = says(&mut case, now, "b");
    assert!(said[0].starts_with("a slot of b is free"), "{said:?}");
    let now = now + S;
    heal(&mut case, now);
    assert_eq!(case.settle_at(now).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["a1", "b1"], "a has its one job out still");
    audit(&mut case);
}
