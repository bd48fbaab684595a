//! Budgets that rest: what is stored of one through which jobs pass is up to a second ahead of it. Whoever finds it (the same server after a pause,
//! another one, one that was restarted) keeps the pace all the same, and lets nobody wait long for it.

use super::flow::{audit, jobs, left};
use crate::rig::{Case, Server, T0, load_library};

const MS: u64 = 1_000;

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
    passes(&mut case, 0, "slow:1");
    assert_eq!(stored(&mut case, "{slow}"), Some(3_000 * MS), "of a slow one each job is written");
    assert_eq!(case.settle_at(T0 + 5_000 * MS).wait_us, -1);
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

#[test]
fn a_server_that_comes_back_does_not_believe_what_it_knew_of_a_budget_before() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let mut here = Case::on(&servers[0], FAST);
    let mut there = Case { redis: servers[1].connect(), prefix: here.prefix.clone() };
    load_library(&mut there.redis);
    passes(&mut here, 0, "b:1");
    moves(&mut here, &mut there);
    there.push_at(T0 + 300 * MS, "b:1", &["x"]);
    assert_eq!(there.settle_at(T0 + 310 * MS).dispatched, 1, "the other one knows less, so it lets the job wait");
    moves(&mut there, &mut here);
    here.push_at(T0 + 312 * MS, "b:1", &["x"]);
    assert_eq!(here.settle_at(T0 + 319 * MS).dispatched, 0, "a job left 9 ms ago");
    assert_eq!(here.settle_at(T0 + 322 * MS).dispatched, 1);
}

#[test]
fn a_budget_keeps_its_pace_through_all_servers_that_have_it_in_turns() {
    let servers = [Server::start(&[]), Server::start(&[])];
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut here = Case::on(&servers[0], FAST);
        let mut there = Case { redis: servers[1].connect(), prefix: here.prefix.clone() };
        load_library(&mut there.redis);
        let (mut now, mut pushed, mut story) = (0, 0, Vec::new());
        for _ in 0..60 {
            now += [1, 9, 30, 300][rng.usize(0..4)] * MS + rng.u64(0..MS);
            match rng.usize(0..5) {
                0 => {
                    moves(&mut here, &mut there);
                    std::mem::swap(&mut here, &mut there);
                    story.push(format!("{now} moves"));
                }
                1 => {
                    story.push(format!("{now} the server forgets"));
                    load_library(&mut here.redis);
                }
                _ => {
                    let (bucket, n) = (format!("b:{}", rng.u8(0..3)), rng.usize(1..4));
                    story.push(format!("{now} {n} into {bucket}"));
                    here.push_at(T0 + now, &bucket, &jobs(n));
                    pushed += n;
                }
            }
            here.settle_at(T0 + now);
            audit(&mut here);
        }
        while here.settle_at(T0 + now).wait_us >= 0 {
            now += 10 * MS;
        }
        let at = left(&mut here, "b:");
        assert_eq!(at.len(), pushed, "seed {seed}\n{}", story.join("\n"));
        for pair in at.windows(2) {
            assert!(pair[1] >= pair[0] + 10 * MS, "seed {seed}: {pair:?}\n{}", story.join("\n"));
        }
        moves(&mut here, &mut there);
        let _: () = there.cmd(&["FLUSHALL"]);
    }
}
