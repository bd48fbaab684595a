//! `XGROUP SETID`: of other groups it changes nothing, and of the group of a ready stream it loses nothing, wherever it is set and whenever.

use std::collections::BTreeMap;

use fastrand::Rng;
use redis::Value;

use super::jobs::{reap_at, server_now, taken_of};
use crate::rig::{Case, Entry, MS, S, Server, T0, load_library};

const TOML: &str = "[defaults]\nrate = '1/s'\nlease = '1h'\nattempts = 1\n[limits]\nready_window = '1h'\n";

fn set_id(case: &mut Case, stream: &str, group: &str, id: &[&str]) {
    let words: Vec<&str> = ["XGROUP", "SETID", stream, group].iter().chain(id).copied().collect();
    case.cmd::<()>(&words);
}

/// A plain XACK of what a worker has.
fn finish(case: &mut Case, entries: &[Entry]) {
    let key = case.key("ready");
    for entry in entries {
        assert_eq!(case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]), 1);
    }
}

/// The jobs that workers get from now on, in order, each acknowledged plainly.
fn rest(case: &mut Case, now: u64) -> Vec<String> {
    let mut got = Vec::new();
    for n in 0..40 {
        case.settle_at(now + n * S);
        let some = case.take("ready", 10);
        finish(case, &some);
        got.extend(some.iter().map(|entry| entry.text("job")));
        reap_at(case, &(now + n * S).to_string(), true);
    }
    got.sort();
    got
}

/// Jobs 1 and 2 are finished, 3, 4 and 5 are undelivered, and a pass has seen the group before those left.
fn undelivered(case: Case) -> Case {
    let (mut case, taken) = taken_of(case, &["1", "2"]);
    finish(&mut case, &taken);
    reap_at(&mut case, "", true);
    case.push_at(T0 + 10 * S, "b", &["3", "4", "5"]);
    (10..13).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
    case
}

#[test]
fn a_group_of_somebody_else_that_is_moved_makes_no_job_run_again() {
    let mut case = undelivered(Case::with(TOML));
    let (ready, other) = (case.key("ready"), case.key("orders"));
    case.cmd::<String>(&["XADD", &other, "*", "a", "1"]);
    for stream in [&other, &ready] {
        case.cmd::<()>(&["XGROUP", "CREATE", stream, "billing", "0"]);
    }
    let mut got = Vec::new();
    for n in 0..6 {
        set_id(&mut case, &other, "billing", &["$"]);
        set_id(&mut case, &ready, "billing", &[if n % 2 == 0 { "$" } else { "0" }]);
        let some = case.take("ready", 1);
        finish(&mut case, &some);
        got.extend(some.iter().map(|entry| entry.text("job")));
        case.settle_at(T0 + (13 + n) * S);
        set_id(&mut case, &other, "billing", &["0"]);
        reap_at(&mut case, "", true);
        if n == 2 {
            case.cmd::<()>(&["CONFIG", "RESETSTAT"]);
        }
    }
    got.extend(rest(&mut case, T0 + 30 * S));
    assert_eq!(got, ["3", "4", "5"]);
}

#[test]
fn a_group_that_is_moved_between_a_load_of_the_library_and_the_first_pass_loses_nothing() {
    for target in [&["$"][..], &["9999999999999-0"], &["9999999999999-0", "ENTRIESREAD", "5"]] {
        let server = Server::start(&[]);
        let mut case = undelivered(Case::on(&server, TOML));
        let key = case.key("ready");
        load_library(&mut server.connect());
        set_id(&mut case, &key, "workers", target);
        case.drain_at(T0 + 13 * S); // a look, with nothing remembered
        reap_at(&mut case, "", true);
        assert_eq!(rest(&mut case, T0 + 20 * S), ["3", "4", "5"], "{target:?}: each once, although it has one attempt");
    }
}

#[test]
fn a_group_whose_first_jobs_are_skipped_before_any_pass_loses_nothing() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, TOML);
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2"]);
    (0..2).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
    let key = case.key("ready");
    set_id(&mut case, &key, "workers", &["$"]);
    reap_at(&mut case, "", true);
    assert_eq!(rest(&mut case, T0 + 20 * S), ["1", "2"]);
}

#[test]
fn what_workers_take_and_finish_after_a_move_that_was_seen_comes_once() {
    let mut case = undelivered(Case::with(TOML));
    let key = case.key("ready");
    set_id(&mut case, &key, "workers", &["$"]);
    case.push_at(T0 + 13 * S, "b", &["6"]);
    assert_eq!(case.settle_at(T0 + 13 * S).dispatched, 1, "the route is looked at before it leaves");
    // Redis knows the count again from here on.
    let some = case.take("ready", 10);
    assert_eq!(some.iter().map(|entry| entry.text("job")).collect::<Vec<_>>(), ["6"]);
    finish(&mut case, &some);
    reap_at(&mut case, "", true);
    assert_eq!(rest(&mut case, T0 + 20 * S), ["3", "4", "5"]);
}

#[test]
fn a_group_that_is_moved_between_two_parts_of_a_pass_loses_nothing() {
    let toml = "[defaults]\nrate = '1000000/s'\nlease = '1h'\nattempts = 1\n[limits]\nbatch = 5\nready_window = '1h'\n";
    let mut case = Case::with(toml);
    case.settle_at(T0);
    let names: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    case.push_at(T0, "b", &names.iter().map(String::as_str).collect::<Vec<_>>());
    for n in 0..20 {
        case.settle_at(T0 + n * MS);
    }
    let key = case.key("ready");
    let held = case.take("ready", 8);
    assert_eq!(held.len(), 8);
    for _ in 0..5 {
        reap_at(&mut case, "", true); // one of them is thorough
    }
    let mut part = |route: &str, id: &str| -> (String, String) {
        let reply: (String, String, i64, i64, i64, i64, i64, Vec<Value>, i64, i64) =
            case.fcall("drip__reap", &["policy"], &["", "1", route, id]);
        (reply.0, reply.1)
    };
    let (route, id) = part("", "");
    assert_eq!(id, held[4].id, "there is more");
    let _: () =
        redis::cmd("XGROUP").arg("SETID").arg(&key).arg("workers").arg("$").query(&mut case.redis).expect("moved");
    let mut at = (route, id);
    while !at.0.is_empty() {
        let reply: (String, String, i64, i64, i64, i64, i64, Vec<Value>, i64, i64) =
            case.fcall("drip__reap", &["policy"], &["", "1", &at.0, &at.1]);
        at = (reply.0, reply.1);
    }
    finish(&mut case, &held);
    let mut expected: Vec<String> = names[8..].to_vec();
    expected.sort();
    assert_eq!(rest(&mut case, T0 + 20 * S), expected);
}

#[test]
fn a_count_that_is_gone_because_somebody_deleted_an_undelivered_entry_makes_no_job_run_again() {
    let mut case = undelivered(Case::with(TOML));
    let (key, all) = (case.key("ready"), case.stream("ready"));
    case.cmd::<i64>(&["XDEL", &key, &all.last().expect("5").id]);
    let some = case.take("ready", 1);
    finish(&mut case, &some);
    assert_eq!(some[0].text("job"), "3");
    reap_at(&mut case, "", true);
    assert_eq!(rest(&mut case, T0 + 20 * S), ["4"]);
}

/// Nothing tells that from a move, and a job must not run twice.
#[test]
fn jobs_that_were_finished_since_somebody_deleted_an_undelivered_entry_before_them_do_not_run_again() {
    let mut case = undelivered(Case::with(TOML));
    let (key, all) = (case.key("ready"), case.stream("ready"));
    case.cmd::<i64>(&["XDEL", &key, &all[0].id]);
    let some = case.take("ready", 1);
    assert_eq!(some[0].text("job"), "4");
    finish(&mut case, &some);
    reap_at(&mut case, "", true);
    assert_eq!(rest(&mut case, T0 + 20 * S), ["5"]);
}

/// What dripd itself deleted is no riddle: the jobs that the group was made to skip come back.
#[test]
fn a_group_that_is_moved_while_workers_acknowledge_with_the_function_loses_nothing() {
    let mut case = undelivered(Case::with(TOML));
    let key = case.key("ready");
    let some = case.take("ready", 1);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&some[0].id]), 1);
    set_id(&mut case, &key, "workers", &["$"]);
    reap_at(&mut case, "", true);
    assert_eq!(rest(&mut case, T0 + 20 * S), ["4", "5"]);
}

/// Random histories. `moves_ours`: the group of the ready stream is moved too.
fn history(server: &Server, seed: u64, moves_ours: bool) {
    let mut rng = Rng::with_seed(seed);
    let mut flush = Case { redis: server.connect(), prefix: String::new() };
    let _: Value = flush.cmd(&["FLUSHALL"]);
    let toml =
        "[defaults]\nrate = '10/s'\ncapacity = 10000\nlease = '7d'\nattempts = 1\n[limits]\nready_window = '250ms'\n";
    let mut case = Case::on(server, toml);
    let mut now = server_now(&mut case);
    case.settle_at(now);
    reap_at(&mut case, "", true);
    let (ready, other) = (case.key("ready"), case.key("orders"));
    case.cmd::<String>(&["XADD", &other, "*", "a", "1"]);
    let (mut got, mut hand, mut pushed): (BTreeMap<String, u32>, Vec<Entry>, u32) = (BTreeMap::new(), Vec::new(), 0);
    let mut story = Vec::new();
    for _ in 0..150 {
        let kind = rng.u8(0..100);
        story.push(kind);
        match kind {
            0..15 => {
                let jobs: Vec<String> = (0..rng.u32(1..6)).map(|n| (pushed + n).to_string()).collect();
                pushed += jobs.len() as u32;
                case.push_at(now, "b", &jobs.iter().map(String::as_str).collect::<Vec<_>>());
            }
            15..45 => {
                now += [MS, 20 * MS, 100 * MS, 500 * MS][rng.usize(0..4)];
                case.settle_at(now);
            }
            45..65 => {
                let some = case.take("ready", rng.usize(1..4));
                for entry in &some {
                    *got.entry(entry.text("job")).or_default() += 1;
                }
                hand.extend(some);
            }
            65..78 if !hand.is_empty() => {
                let entry = hand.swap_remove(rng.usize(0..hand.len()));
                if rng.bool() {
                    case.cmd::<i64>(&["XACK", &ready, "workers", &entry.id]);
                } else {
                    case.fcall::<i64>("drip_ack", &["ready"], &[&entry.id]);
                }
            }
            65..86 => drop(reap_at(&mut case, "", true)),
            86..88 => load_library(&mut case.redis),
            88..95 => {
                let stream = [&ready, &other][rng.usize(0..2)];
                let _: Result<Value, _> = case.try_cmd(&["XGROUP", "CREATE", stream, "billing", "0"]);
                set_id(&mut case, stream, "billing", &[["$", "0", "9999999999999-0"][rng.usize(0..3)]]);
            }
            _ if moves_ours => {
                let some = case.stream("ready");
                let one = if some.is_empty() { "$".to_owned() } else { some[rng.usize(0..some.len())].id.clone() };
                let id = ["$", "0", "9999999999999-0", &one, &one][rng.usize(0..5)];
                set_id(&mut case, &ready, "workers", &[id]);
                // A move is seen when a job leaves a tenth of a second later, or by a pass. Before that a worker may read the newest entry,
                // and no trace of it is left; and so may a second move before the next pass.
                if rng.bool() {
                    now += 200 * MS;
                    case.push_at(now, "b", &[&pushed.to_string()]);
                    pushed += 1;
                    case.settle_at(now);
                    let some = case.take("ready", rng.usize(1..4));
                    for entry in &some {
                        *got.entry(entry.text("job")).or_default() += 1;
                    }
                    hand.extend(some);
                }
                reap_at(&mut case, "", true);
            }
            _ => {}
        }
    }
    for _ in 0..400 {
        now += 200 * MS;
        case.settle_at(now);
        hand.extend(case.take("ready", 10).into_iter().inspect(|one| *got.entry(one.text("job")).or_default() += 1));
        finish_any(&mut case, &mut hand);
        reap_at(&mut case, "", true);
        if case.cmd::<i64>(&["XLEN", &ready]) == 0
            && case.keys().iter().all(|key| !key.starts_with("queue") && !key.starts_with("retr"))
        {
            break;
        }
    }
    let all: Vec<String> = (0..pushed).map(|n| n.to_string()).collect();
    let lost: Vec<&String> = all.iter().filter(|job| !got.contains_key(*job)).collect();
    assert!(lost.is_empty(), "seed {seed}: {lost:?} were lost: {story:?}");
    let twice: Vec<_> = got.iter().filter(|(_, n)| **n > 1).collect();
    assert!(moves_ours || twice.is_empty(), "seed {seed}: {twice:?} ran again: {story:?}");
    super::flow::audit(&mut case);
}

fn finish_any(case: &mut Case, hand: &mut Vec<Entry>) {
    let key = case.key("ready");
    for entry in hand.drain(..) {
        case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]);
    }
}

fn histories(moves_ours: bool) {
    let server = Server::start(&[]);
    let number =
        |name: &str, otherwise: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let first = number("DRIPD_SEED", 0);
    (first..first + number("DRIPD_SEEDS", 25)).for_each(|seed| history(&server, seed, moves_ours));
}

#[test]
fn whatever_groups_of_others_are_moved_each_job_is_delivered_once() {
    histories(false);
}

#[test]
fn wherever_the_group_of_the_workers_is_moved_every_job_is_delivered() {
    histories(true);
}
