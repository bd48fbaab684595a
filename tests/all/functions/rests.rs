//! Budgets that rest: what is stored of one through which jobs pass is up to a second ahead of it. Whoever finds it (the same server after a pause,
//! another one, one that was restarted) keeps the pace all the same, and lets nobody wait long for it.

use super::flow::{audit, jobs, left};
use crate::rig::{Case, Server, T0, load_library};

const MS: u64 = 1_000;

/// With a remainder in each interval, two levels, and lateness that is made up for.
const ODD: &str = "[[budget]]\nmatch = 'b'\nrate = '3/s'\n[[budget]]\nmatch = 'b:*'\nrate = '7/2s'\ncatch_up = '250ms'\nwithin = 'b'\n\
                   [[bucket]]\nmatch = 'b:*:*'\nrate = '1000/s'\nwithin = 'b:{1}'\n";

const FAST: &str = "[[budget]]\nmatch = 'b'\nrate = '100/s'\ncatch_up = '0s'\n[[budget]]\nmatch = 'slow'\nrate = '1/3s'\ncatch_up = '0s'\n\
                    [[bucket]]\nmatch = 'b:*'\nrate = '1000/s'\nwithin = 'b'\n[[bucket]]\nmatch = 'slow:*'\nrate = '1000/s'\nwithin = 'slow'\n";

/// Until when a budget rests, as it is stored: from the beginning.
fn stored(case: &mut Case, budget: &str) -> Option<u64> {
    let rest = case.key("rest");
    let score: Option<f64> = case.cmd(&["ZSCORE", &rest, budget]);
    score.map(|score| score as u64 - T0)
}

/// A job comes into a bucket and should leave at once.
#[track_caller]
fn passes(case: &mut Case, at: u64, bucket: &str) {
    case.push_at(T0 + at, bucket, &["x"]);
    assert_eq!(case.settle_at(T0 + at).dispatched, 1, "{bucket} at {at}");
}

#[test]
fn what_is_stored_of_a_budget_that_rests_is_seldom_written_and_at_most_a_second_ahead() {
    let mut case = Case::with(FAST);
    let mut seen = Vec::new();
    for n in 0..150 {
        let at = n * 20 * MS;
        passes(&mut case, at, "b:1");
        let stored = stored(&mut case, "{b}").expect("it rests");
        assert!((at + 10 * MS..=at + 1_010 * MS).contains(&stored), "{stored} at {at}");
        seen.push(stored);
    }
    seen.dedup();
    assert!(seen.len() <= 4, "in three seconds it was written {} times", seen.len());
    for at in [3_000 * MS, 6_500 * MS] {
        passes(&mut case, at, "slow:1");
        assert_eq!(stored(&mut case, "{slow}"), Some(at + 3_000 * MS), "of a slow one each job is written");
    }
    passes(&mut case, 9_000 * MS, "b:1");
    assert_eq!(case.settle_at(T0 + 11_000 * MS).wait_us, -1);
    assert_eq!(stored(&mut case, "{b}"), None, "it is gone in the end");
    audit(&mut case);
}

#[test]
fn after_a_pause_a_server_knows_how_far_ahead_it_was() {
    let mut case = Case::with(FAST);
    // For longer than a server believes what it remembers, and for less than what is stored is ahead.
    for n in 0..3 {
        passes(&mut case, n * 300 * MS, "b:1");
    }
    let before = stored(&mut case, "{b}");
    assert_eq!(before, Some(1_010 * MS), "nothing was written since the first job");
    case.push_at(T0 + 605 * MS, "b:2", &["x"]);
    assert_eq!(case.settle_at(T0 + 605 * MS).dispatched, 0, "and it keeps its pace: the last job left 5 ms ago");
    assert_eq!(case.settle_at(T0 + 610 * MS).dispatched, 1);
}

#[test]
fn a_server_that_knows_nothing_lets_the_next_job_wait_for_an_interval_at_most() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, FAST);
    passes(&mut case, 0, "b:1");
    load_library(&mut case.redis);
    case.push_at(T0 + 500 * MS, "b:1", &["x"]);
    assert_eq!(case.settle_at(T0 + 500 * MS).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 510 * MS).dispatched, 1);
    passes(&mut case, 520 * MS, "b:1");
}

/// A partition that moves to and fro between two servers, each of which remembers what it did: all keys, one by one.
fn moves(from: &mut Case, to: &mut Case) {
    let head = from.key("");
    let keys: Vec<Vec<u8>> = from.cmd(&["KEYS", &format!("{}*", head.split(':').next().expect("the prefix"))]);
    for key in keys {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut from.redis).expect("its dump");
        let _: () = redis::cmd("RESTORE").arg(&key).arg(0).arg(dump).query(&mut to.redis).expect("it has moved");
        let _: i64 = redis::cmd("UNLINK").arg(&key).query(&mut from.redis).expect("it is gone");
    }
}

/// Two servers, the first of which has the keys.
fn two(servers: &[Server; 2], toml: &str) -> (Case, Case) {
    let here = Case::on(&servers[0], toml);
    let mut there = Case { redis: servers[1].connect(), prefix: here.prefix.clone() };
    load_library(&mut there.redis);
    (here, there)
}

#[test]
fn a_server_that_comes_back_does_not_believe_what_it_knew_of_a_budget_before() {
    // The last one comes to rest at the very time that the first server stored ahead.
    for gap in [300, 990] {
        let servers = [Server::start(&[]), Server::start(&[])];
        let (mut here, mut there) = two(&servers, FAST);
        passes(&mut here, 0, "b:1");
        moves(&mut here, &mut there);
        there.push_at(T0 + gap * MS, "b:1", &["x"]);
        there.settle_at(T0 + gap * MS);
        there.settle_at(T0 + (gap + 10) * MS);
        assert_eq!(left(&mut there, "b:"), [0, (gap + 10) * MS], "the other one knows less, so it lets the job wait");
        moves(&mut there, &mut here);
        here.push_at(T0 + (gap + 12) * MS, "b:1", &["x"]);
        assert_eq!(here.settle_at(T0 + (gap + 19) * MS).dispatched, 0, "a job left 9 ms ago");
        assert_eq!(here.settle_at(T0 + (gap + 22) * MS).dispatched, 1);
    }
}

#[test]
fn a_call_that_fails_before_it_has_written_how_long_a_budget_rests_is_made_up_for_by_the_next_job() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'b'\nrate = '2/s'\ncatch_up = '0s'\n[[budget]]\nmatch = 'daily'\nquota = '9/d'\n\
         [[bucket]]\nmatch = 'b:*'\nrate = '1000/s'\nwithin = 'b'\n[[bucket]]\nmatch = 'daily:*'\nrate = '1000/s'\nwithin = 'daily'\n",
    );
    let over = case.key("over");
    let _: () = case.cmd(&["SET", &over, "damaged"]);
    for bucket in ["b:1", "daily:1"] {
        case.lpush(bucket, &["x"]);
    }
    let keys: Vec<String> = ["b:1", "daily:1"].map(|bucket| format!("queue:{bucket}")).to_vec();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    case.try_fcall::<redis::Value>("drip__wake", &keys, &[T0.to_string()]).expect_err("a key is damaged");
    assert_eq!(left(&mut case, "b:"), [0], "and the job has left");
    let _: i64 = case.cmd(&["DEL", &over]);
    for at in (100..500).step_by(100) {
        case.settle_at(T0 + at * MS);
    }
    passes(&mut case, 500 * MS, "b:1");
    case.push_at(T0 + 800 * MS, "b:1", &["x"]);
    assert_eq!(case.settle_at(T0 + 800 * MS).dispatched, 0, "a job left 300 ms ago");
    assert_eq!(case.settle_at(T0 + 1_000 * MS).dispatched, 1);
}

/// Promise 1 of what left at these times, with so much lateness made up for.
#[track_caller]
fn keeps(at: &[u64], (count, period): (u64, u64), catch_up: u64, story: &[String]) {
    for (i, first) in at.iter().enumerate() {
        for (n, last) in at[i..].iter().enumerate() {
            let most = 1 + (last - first + catch_up + 1) * count / period;
            assert!((n as u64) < most, "{} jobs from {first} to {last}\n{}", n + 1, story.join("\n"));
        }
    }
}

#[test]
fn budgets_keep_their_pace_through_all_servers_that_have_them_in_turns() {
    let servers = [Server::start(&[]), Server::start(&[])];
    for (seed, toml) in (0..60).map(|seed| (seed, if seed % 2 == 0 { FAST } else { ODD })) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut here, mut there) = two(&servers, toml);
        let (mut now, mut pushed, mut story) = (0, 0, vec![format!("seed {seed}")]);
        for _ in 0..60 {
            now += [1, 9, 30, 300, 600][rng.usize(0..5)] * MS + rng.u64(0..MS);
            match rng.usize(0..6) {
                0 => {
                    now += 250 * MS; // no partition comes back sooner: a server believes for so long that it still has it
                    moves(&mut here, &mut there);
                    std::mem::swap(&mut here, &mut there);
                    story.push(format!("{now} moves"));
                }
                1 => {
                    story.push(format!("{now} the server forgets"));
                    load_library(&mut here.redis);
                }
                _ => {
                    let (bucket, n) = (format!("b:{}:{}", rng.u8(0..2), rng.u8(0..2)), rng.usize(1..3));
                    story.push(format!("{now} {n} into {bucket}"));
                    here.push_at(T0 + now, &bucket, &jobs(n));
                    pushed += n;
                }
            }
            while here.drain_at(T0 + now).wait_us == 0 {}
            audit(&mut here);
        }
        loop {
            let wait = here.settle_at(T0 + now).wait_us;
            if wait < 0 {
                break;
            }
            now += wait as u64;
        }
        let all = left(&mut here, "b:");
        assert_eq!(all.len(), pushed, "{}", story.join("\n"));
        if toml == FAST {
            keeps(&all, (100, 1_000_000), 0, &story);
        } else {
            keeps(&all, (3, 1_000_000), 20 * MS, &story);
            for account in ["b:0:", "b:1:"] {
                keeps(&left(&mut here, account), (7, 2_000_000), 250 * MS, &story);
            }
        }
        let _: () = here.cmd(&["FLUSHALL"]);
    }
}
