//! The group of a ready stream: how many entries nobody has read, where Redis does not know or is wrong, and the names of workers.

use std::collections::HashMap;

use redis::Value;

use super::jobs::{reap_at, server_now, taken_of};
use crate::rig::{Case, S, Server, T0, eventually, load_library};

/// What Redis says of the group of the ready stream.
fn group_of(case: &mut Case) -> HashMap<String, Value> {
    let key = case.key("ready");
    case.cmd::<Vec<HashMap<String, Value>>>(&["XINFO", "GROUPS", &key]).remove(0)
}

/// How many entries of the ready stream are undelivered, as figures show it.
fn undelivered(case: &mut Case) -> i64 {
    type Routes = Vec<(String, i64, i64, i64, i64)>;
    let figures: Vec<Value> = case.fcall("drip__figures", &["policy"], &[""]);
    let of_routes: Vec<Value> = redis::from_redis_value_ref(&figures[5]).expect("a list");
    let routes: Routes = redis::from_redis_value(Value::Array(of_routes)).expect("five for each");
    routes.iter().map(|(_, undelivered, ..)| undelivered).sum()
}

#[test]
fn a_lag_that_a_failover_made_wrong_hides_nothing_and_holds_nothing_and_is_mended() {
    let server = Server::start(&[]); // nobody has asked there who may not mend groups: once refused it is not tried again
    let case = Case::on(&server, "[defaults]\nrate = '1/s'\nlease = '1h'\n[limits]\nmax_ready = 4\n");
    let (mut case, taken) = taken_of(case, &["1", "2", "3", "4"]);
    let key = case.key("ready");
    case.push_at(T0 + 10 * S, "b", &["5", "6", "7", "8", "9"]);
    (10..12).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
    let delivered: String = redis::from_redis_value_ref(&group_of(&mut case)["last-delivered-id"]).expect("an id");
    // A replica is told what was delivered, and not how much that is; somebody may set anything.
    let mut now = T0 + 12 * S;
    for (n, entries_read) in (0..).zip(["0", "2", "100"]) {
        case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", &delivered, "ENTRIESREAD", entries_read]);
        assert_ne!(group_of(&mut case)["lag"], Value::Int(2 + n), "it is wrong");
        assert_eq!(undelivered(&mut case), 2 + n);
        case.cmd::<i64>(&["XACK", &key, "workers", &taken[1 + n as usize].id]);
        assert_eq!(reap_at(&mut case, "", true).1, 1, "finished, behind one that is pending");
        let room = i64::from(n < 2);
        assert_eq!(case.settle_at(now).dispatched, room, "there is room for four");
        now += S;
    }
    // When nothing is undelivered the count begins anew, and stays right.
    case.take("ready", 100);
    let newest = case.stream("ready").pop().expect("some").id;
    case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", &newest, "ENTRIESREAD", "1"]);
    assert!(matches!(group_of(&mut case)["lag"], Value::Int(lag) if lag > 0));
    assert_eq!(undelivered(&mut case), 0);
    reap_at(&mut case, "", true);
    assert_eq!(group_of(&mut case)["lag"], Value::Int(0));
    assert_eq!(case.settle_at(now).dispatched, 1);
    assert_eq!(group_of(&mut case)["lag"], Value::Int(1));
}

#[test]
fn a_promoted_replica_does_not_know_what_was_read_and_the_next_pass_tells_it() {
    let (primary, replica) = (Server::start(&["--repl-diskless-sync-delay", "0"]), Server::start(&[]));
    let mut case = Case::on(&primary, "[defaults]\nrate = '1/s'\nlease = '1h'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["1", "2", "3", "4", "5", "6"]);
    (0..4).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
    case.take("ready", 1);
    let mut promoted = Case { redis: replica.connect(), prefix: case.prefix.clone() };
    promoted.cmd::<()>(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    eventually("the replica has all", || {
        promoted.cmd::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
    let taken = case.take("ready", 10);
    assert_eq!(case.cmd::<i64>(&["WAIT", "1", "10000"]), 1);
    promoted.cmd::<()>(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!((group_of(&mut case)["lag"].clone(), undelivered(&mut case)), (Value::Int(0), 0));
    // Redis 7.0 says 3; Redis 7.2 and Valkey tell their replicas what was read.
    let told = &group_of(&mut promoted)["lag"];
    assert!([Value::Int(3), Value::Int(0)].contains(told), "{told:?}");
    assert_eq!(undelivered(&mut promoted), 0);
    let key = promoted.key("ready");
    promoted.cmd::<i64>(&["XACK", &key, "workers", &taken[1].id]);
    assert_eq!(reap_at(&mut promoted, "", true).1, 1, "finished, behind one that is pending");
    assert_eq!(group_of(&mut promoted)["lag"], Value::Int(0));
    assert_eq!(promoted.settle_at(T0 + 20 * S).dispatched, 1);
    assert_eq!((group_of(&mut promoted)["lag"].clone(), undelivered(&mut promoted)), (Value::Int(1), 1));
}

/// How many workers the default route has, as `status` shows it.
fn workers(case: &mut Case, now: u64) -> i64 {
    let (_, rows): (u64, Vec<Vec<Value>>) = case.fcall("drip__routes", &["policy"], &[now.to_string()]);
    redis::from_redis_value_ref(&rows[0][8]).expect("a number")
}

#[test]
fn only_workers_that_hold_a_job_or_asked_lately_count() {
    let (mut case, _) = taken_of(Case::with("[defaults]\nrate = '10/s'\nlease = '1d'\n"), &["1"]);
    let key = case.key("ready");
    for name in ["b", "c"] {
        case.cmd::<i64>(&["XGROUP", "CREATECONSUMER", &key, "workers", name]);
    }
    let now = server_now(&mut case);
    assert_eq!((workers(&mut case, now), workers(&mut case, now + 50 * S)), (3, 3));
    assert_eq!(workers(&mut case, now + 62 * S), 1, "the one that holds a job");
    let facts: Vec<Value> = case.fcall("drip__explain", &["queue:b"], &[(now + 62 * S).to_string()]);
    let text: String = redis::from_redis_value_ref(&facts[1]).expect("JSON");
    assert!(text.contains(r#""workers":1"#), "{text}");
}

#[test]
fn with_the_rights_of_its_role_a_daemon_lets_names_go_and_corrects_counts() {
    crate::roles::as_roles();
    let (mut case, taken) = taken_of(Case::with("[defaults]\nrate = '10/s'\nlease = '1d'\n"), &["1"]);
    let key = case.key("ready");
    case.cmd::<i64>(&["XGROUP", "CREATECONSUMER", &key, "workers", "ended"]);
    case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", &taken[0].id, "ENTRIESREAD", "0"]);
    assert_eq!(group_of(&mut case)["lag"], Value::Int(1), "as after a promotion");
    let now = server_now(&mut case);
    for _ in 0..5 {
        reap_at(&mut case, &(now + 3_700 * S).to_string(), true);
    }
    assert_eq!(
        (group_of(&mut case)["lag"].clone(), group_of(&mut case)["consumers"].clone()),
        (Value::Int(0), Value::Int(1))
    );
    case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", "9999999999999-0"]);
    reap_at(&mut case, "", true);
    case.push_at(T0 + 10 * S, "b", &["2"]);
    case.settle_at(T0 + 10 * S);
    assert_eq!(case.take("ready", 5).len(), 1, "a group that was ahead of its stream delivers again");
}

#[test]
fn names_of_workers_that_ended_are_let_go_and_never_one_that_holds_a_job() {
    let server = Server::start(&[]); // as above
    let (mut case, taken) = taken_of(Case::on(&server, "[defaults]\nrate = '10/s'\nlease = '1d'\n"), &["1"]);
    let key = case.key("ready");
    for name in ["ended", "ended too"] {
        case.cmd::<i64>(&["XGROUP", "CREATECONSUMER", &key, "workers", name]);
    }
    let names = |case: &mut Case| -> Vec<String> {
        let consumers: Vec<HashMap<String, Value>> = case.cmd(&["XINFO", "CONSUMERS", &key, "workers"]);
        consumers.iter().map(|one| redis::from_redis_value_ref(&one["name"]).expect("a name")).collect()
    };
    assert_eq!(names(&mut case).len(), 3);
    let now = server_now(&mut case);
    let five_passes = |case: &mut Case, at: u64| (0..5).map(|_| reap_at(case, &at.to_string(), true).0).sum::<i64>();
    five_passes(&mut case, now + 3_500 * S);
    assert_eq!(names(&mut case).len(), 3, "they may only be slow");
    five_passes(&mut case, now + 3_700 * S);
    assert_eq!(names(&mut case).len(), 1);
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&taken[0].id]), 1, "it still has its job");
    five_passes(&mut case, now + 3_700 * S);
    assert_eq!(names(&mut case).len(), 0, "on a route at rest, too");
}

#[test]
fn leases_of_jobs_that_are_done_are_forgotten_within_minutes() {
    const JOBS: usize = 20_000;
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nlease = '1h'\n[limits]\nbatch = 1000\n");
    let key = case.key("ready");
    // Lua collects its garbage a little with each call: the least of many looks is what it holds.
    let lua = |case: &mut Case| -> i64 {
        let look = |_| {
            (0..200).for_each(|_| assert!(!case.fcall::<Vec<Value>>("drip__version", &[], &[""; 0]).is_empty()));
            let info: String = case.cmd(&["INFO", "memory"]);
            let line = info.lines().find_map(|line| line.strip_prefix("used_memory_vm_functions:"));
            line.expect("it is there").trim().parse::<i64>().expect("a number")
        };
        (0..60).map(look).min().expect("sixty looks")
    };
    let now = server_now(&mut case);
    reap_at(&mut case, &now.to_string(), true);
    let before = lua(&mut case);
    let mut add = redis::pipe();
    for _ in 0..JOBS {
        add.cmd("XADD").arg(&key).arg("*").arg("bucket").arg("b").arg("job").arg("j").ignore();
    }
    add.exec(&mut case.redis).expect("they are added");
    let ids: Vec<String> = case.take("ready", JOBS).into_iter().map(|entry| entry.id).collect();
    reap_at(&mut case, &(now + 5 * S).to_string(), true); // within their first second none is looked at
    let held = lua(&mut case) - before;
    assert!(held > 1_000_000, "what is remembered of {JOBS} jobs in hand takes {held} bytes");
    for some in ids.chunks(1_000) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &some), 1_000);
    }
    (1..=2).for_each(|minute| assert_eq!(reap_at(&mut case, &(now + minute * 61 * S).to_string(), true).0, 0));
    let kept = lua(&mut case) - before;
    assert!(kept < held / 4, "{kept} bytes of {held} are still held");
}

/// The jobs that a worker gets from now on, each acknowledged by a plain XACK, and the passes of the reaper between.
fn take_all(case: &mut Case, now: u64) -> Vec<String> {
    let (key, mut got) = (case.key("ready"), Vec::new());
    for n in 0..40 {
        case.settle_at(now + n * S);
        for entry in case.take("ready", 10) {
            case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]);
            got.push(entry.text("job"));
        }
        reap_at(case, &(now + n * S).to_string(), true);
    }
    got.sort();
    got
}

#[test]
fn what_a_stranger_makes_the_group_pass_over_goes_back_into_its_bucket() {
    for target in ["$", "the newest", "9999999999999-0", "18446744073709551615-18446744073709551615"] {
        let server = Server::start(&[]); // its figures count XGROUP SETID, whoever calls it
        let toml = "[defaults]\nrate = '1/s'\nlease = '1h'\nattempts = 1\n[limits]\nready_window = '1h'\n";
        let (mut case, taken) = taken_of(Case::on(&server, toml), &["1", "2"]);
        let key = case.key("ready");
        case.cmd::<i64>(&["XACK", &key, "workers", &taken[0].id]);
        reap_at(&mut case, "", true);
        case.push_at(T0 + 10 * S, "b", &["3", "4", "5", "6"]);
        (10..13).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
        let newest = case.stream("ready").pop().expect("some").id;
        let target = if target == "the newest" { newest.as_str() } else { target };
        case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", target]);
        assert!(case.take("ready", 10).is_empty(), "{target}: a worker gets none of them");
        case.drain_at(T0 + 12 * S + 200_000); // a look in between
        reap_at(&mut case, "", true);
        assert_eq!(case.jobs("ready"), ["2"], "{target}: what a worker holds, it holds");
        assert_eq!(
            take_all(&mut case, T0 + 20 * S),
            ["3", "4", "5", "6"],
            "{target}: each once, although it has one attempt"
        );
    }
}

#[test]
fn a_server_that_was_restarted_finds_a_group_ahead_of_its_stream_and_brings_it_back() {
    let server = Server::start(&[]);
    let case = Case::on(&server, "[defaults]\nrate = '1/s'\n");
    let (mut case, _) = taken_of(case, &["1"]);
    let key = case.key("ready");
    case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", "9999999999999-0"]);
    case.push_at(T0 + 10 * S, "b", &["2", "3"]);
    (10..12).for_each(|s| assert_eq!(case.settle_at(T0 + s * S).dispatched, 1));
    case.cmd::<()>(&["CONFIG", "RESETSTAT"]);
    load_library(&mut server.connect()); // nothing is remembered
    reap_at(&mut case, "", true);
    assert_eq!(take_all(&mut case, T0 + 20 * S), ["2", "3"]);
}

#[test]
fn a_group_that_was_moved_back_or_not_at_all_brings_nothing_twice_that_was_deleted() {
    let server = Server::start(&[]);
    let case = Case::on(&server, "[defaults]\nrate = '1/s'\nlease = '1h'\n");
    let (mut case, taken) = taken_of(case, &["1", "2", "3"]);
    let key = case.key("ready");
    case.cmd::<i64>(&["XACK", &key, "workers", &taken[0].id]);
    reap_at(&mut case, "", true);
    for target in ["0", taken[2].id.as_str()] {
        case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", target]);
        case.cmd::<()>(&["CONFIG", "RESETSTAT"]);
        reap_at(&mut case, "", true);
    }
    assert_eq!(case.jobs("ready"), ["2", "3"]);
    assert_eq!(take_all(&mut case, T0 + 20 * S), Vec::<String>::new());
}
