//! A slot on the move: its partition stands still, and goes on at the other server, in order and with no credit. And a primary that is
//! added, and one that is taken away again.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Connection, Value};

use super::doors::curl;
use super::failover::sessions;
use super::{Cluster, PARTITIONS, kill, node};
use crate::cluster::{ask, id_of, join};
use crate::program::{Work, said};
use crate::rig::{Server, eventually, free_port};

/// What a connection is refused with.
fn refusal(redis: &mut Connection, words: &[&str], asks: bool) -> String {
    let mut pipeline = redis::pipe();
    if asks {
        pipeline.cmd("ASKING").ignore();
    }
    pipeline.cmd(words[0]).arg(&words[1..]);
    let reply: Result<(Value,), _> = pipeline.query(redis);
    reply.expect_err("refused").code().unwrap_or("none").to_owned()
}

/// The entries of a partition's stream: job, and when it left.
fn left(cluster: &Cluster, number: u8, bucket: &str) -> Vec<(String, u64)> {
    let entries: Vec<(String, BTreeMap<String, String>)> =
        cluster.redis(number, &["XRANGE", &format!("drip:ready:{{{number}}}"), "-", "+"]);
    let of = entries.into_iter().filter(|(_, fields)| fields["bucket"] == bucket);
    of.map(|(_, fields)| (fields["job"].clone(), fields["at_us"].parse().expect("a time"))).collect()
}

fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()).expect("before 580000")
}

#[test]
fn a_partition_on_the_move_stands_still_and_goes_on_in_order_with_no_credit_while_others_do_not_notice() {
    const JOBS: usize = 240; // so many that some still wait when the move is over
    let port = free_port();
    let toml = format!("[http]\nlisten = '127.0.0.1:{port}'\n[defaults]\nrate = '20/s'\ncapacity = 10000\n");
    let cluster = Cluster::start(false, "no", &toml);
    let _daemon = cluster.daemon_of_all();
    let buckets = cluster.a_bucket_each();
    let number = 5;
    let from = cluster.home(number);
    let to = cluster.servers.iter().find(|server| server.port != from.port).expect("another");
    let other = (0..PARTITIONS).find(|other| *other != number && cluster.home(*other).port == from.port).expect("one");
    let (bucket, beside) = (&buckets[usize::from(number)], &buckets[usize::from(other)]);
    let jobs: Vec<String> = (0..JOBS).map(|n| format!("{n:03}")).collect();
    for bucket in [bucket, beside] {
        let words: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let accepted: Vec<i64> = cluster.redis(
            if bucket == beside { other } else { number },
            &[&["FCALL", "drip_push", "1", &cluster.queue(bucket)], &words[..]].concat(),
        );
        assert_eq!(accepted[0], i64::try_from(JOBS).expect("few"));
    }
    eventually("some have left", || left(&cluster, number, bucket).len() > 5);

    let moving = cluster.begin_move(number, from, to);
    let (at_source, key) = (from.connect(), cluster.queue(bucket));
    let keys = moving.keys(from.port);
    moving.carry(keys.len() / 2);
    let stands = |server: &Server| -> Vec<(String, Vec<u8>)> {
        let mut keys = moving.keys(server.port);
        keys.sort();
        let dump = |key: String| {
            let mut pipeline = redis::pipe();
            let (bytes,) =
                pipeline.cmd("ASKING").ignore().cmd("DUMP").arg(&key).query(&mut server.connect()).expect("DUMP");
            (key, bytes)
        };
        keys.into_iter().map(dump).collect()
    };
    let (began, before) = (now_us(), [stands(from), stands(to)]);
    assert!(before.iter().all(|side| side.len() >= 2), "keys on both sides");
    // Whoever asks either side changes nothing, also when it follows ASK.
    let (mut at_source, mut at_target) = (at_source, to.connect());
    let schedule = format!("drip:schedule:{{{number}}}");
    let calls = [
        vec!["FCALL", "drip_push", "1", &key, "x"],
        vec!["FCALL", "drip__drain", "1", &schedule, ""],
        vec!["FCALL", "drip__reap", "1", &schedule, "", "1"],
    ];
    for call in &calls {
        let code = refusal(&mut at_source, call, false);
        assert!(["TRYAGAIN", "ASK"].contains(&code.as_str()), "{call:?} at the source: {code}");
        let code = refusal(&mut at_target, call, true);
        assert_eq!(code, "TRYAGAIN", "{call:?} at the target");
    }
    let (code, _, err) = cluster.shell.run(&["push", bucket, "x"]);
    assert_eq!(code, 75, "{err}");
    assert!(err.contains("try again"), "{err}");
    let later = (0..1_000).map(|n| format!("later-{n}")).find(|name| cluster.number_of(name) == number).expect("one");
    let submit = ["push", &later, "x", "--id", "one"];
    assert_eq!(cluster.shell.run(&submit).0, 75);
    let waits = cluster.shell.spawn(&[&submit[..], &["--wait"]].concat());
    let url = format!("http://127.0.0.1:{port}/v1/buckets/{bucket}/jobs");
    let answer = curl(&["-i", "--data", "x", &url]).to_lowercase();
    assert!(answer.contains(" 503 ") && answer.contains("retry-after: 1\r"), "{answer}");
    let (stood_until, passing) = (now_us(), left(&cluster, other, beside).len());
    eventually("the others go on", || left(&cluster, other, beside).len() > passing + 10);
    assert_eq!([stands(from), stands(to)], before, "nothing has changed");
    assert!(stood_until > began);
    moving.finish();

    let (code, out, err) = said(&waits.wait_with_output().expect("it ends"));
    assert!(code == 0 && out.contains("id one"), "{code} {out} {err}");
    eventually("all have left", || left(&cluster, number, bucket).len() == JOBS);
    eventually("those beside too", || left(&cluster, other, beside).len() == JOBS);
    assert_eq!(cluster.home(number).port, to.port);
    let times = |entries: Vec<(String, u64)>| -> Vec<u64> {
        assert_eq!(entries.iter().map(|(job, _)| job).collect::<Vec<_>>(), jobs.iter().collect::<Vec<_>>(), "in order");
        entries.into_iter().map(|(_, at)| at).collect()
    };
    let dues: Vec<u64> = {
        let entries: Vec<(String, BTreeMap<String, String>)> =
            cluster.redis(number, &["XRANGE", &format!("drip:ready:{{{number}}}"), "-", "+"]);
        let since = entries.iter().filter(|(_, fields)| fields["at_us"].parse::<u64>().expect("a time") > stood_until);
        since.map(|(_, fields)| fields["due_us"].parse().expect("a time")).collect()
    };
    assert!(!dues.is_empty() && dues.iter().all(|due| *due > stood_until), "the standstill is no lateness: {dues:?}");
    for (number, bucket) in [(number, bucket), (other, beside)] {
        let times = times(left(&cluster, number, bucket));
        for (i, first) in times.iter().enumerate() {
            for (n, last) in times.iter().enumerate().skip(i) {
                let most = 1 + (last - first + 20_000 + 1) / 50_000;
                assert!((n - i + 1) as u64 <= most, "{} jobs in {} us", n - i + 1, last - first);
            }
        }
        let during = times.iter().filter(|at| (began..stood_until).contains(*at)).count();
        assert!(number != 5 || during == 0, "it stood still");
    }
}

#[test]
fn a_primary_that_is_added_is_served_and_one_that_is_forgotten_is_missed_by_nobody() {
    let mut cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    let buckets = cluster.a_bucket_each();
    let new = node("no");
    cluster.servers.push(new);
    join(&cluster.ports());
    let moved = [1_u8, 2];
    let homes: Vec<u16> = moved.iter().map(|number| cluster.home(*number).port).collect();
    let find = |port: u16| cluster.servers.iter().find(|server| server.port == port).expect("one of ours");
    let new = &cluster.servers[3];
    let push_all = |count: u64| {
        for bucket in &buckets {
            eventually("it is taken", || {
                let (code, _, err) = cluster.shell.run(&["push", bucket, "x"]);
                assert!(code == 0 || code == 75, "{err}");
                code == 0
            });
        }
        eventually("all have left", || cluster.status()["counters"]["dispatched"].as_u64() == Some(count));
    };
    push_all(16);
    let work = Work::start(&cluster.shell, &["--concurrency", "2", "--exec", "true"]);
    for (number, port) in moved.iter().zip(&homes) {
        cluster.begin_move(*number, find(*port), new).finish();
    }
    eventually("the library is there", || {
        let libraries: Vec<Value> = ask(&mut new.connect(), &["FUNCTION", "LIST"]);
        libraries.len() == 1
    });
    push_all(32);
    eventually("the log says so", || {
        daemon.log().contains(&format!("redis=\"127.0.0.1:{}\" partitions=\"1-2\"", new.port))
    });
    for (number, port) in moved.iter().zip(&homes) {
        cluster.begin_move(*number, new, find(*port)).finish();
    }
    for server in &cluster.servers[..3] {
        let _: Value = ask(&mut server.connect(), &["CLUSTER", "FORGET", &id_of(new.port)]);
    }
    kill(new);
    push_all(48);
    eventually("nothing is away", || cluster.status()["away"] == serde_json::json!([]));
    eventually("the worker has followed, and done all", || {
        let status = cluster.status();
        let is_empty = |route: &serde_json::Value| route["undelivered"] == 0 && route["pending"] == 0;
        status["routes"].as_array().is_some_and(|routes| routes.iter().all(is_empty))
    });
    work.stop();
}

#[test]
fn a_daemon_that_starts_while_partition_0_is_on_the_move_serves_the_others_of_its_server_and_says_once_what_waits() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let first = cluster.daemon();
    let buckets = cluster.a_bucket_each();
    eventually("all have the record", || cluster.all_have_the_record());
    drop(first);
    let from = cluster.home(0);
    let to = cluster.servers.iter().find(|server| server.port != from.port).expect("another");
    let beside: Vec<u8> = cluster.partitions_of(from).into_iter().filter(|number| *number != 0).collect();
    let moving = cluster.begin_move(0, from, to);
    moving.carry(moving.keys(from.port).len() / 2);

    cluster.configure("[defaults]\nrate = '1000/s'\ncapacity = 7\n");
    let daemon = cluster.daemon();
    for number in &beside {
        cluster.run(&["push", &buckets[usize::from(*number)], "x"]);
    }
    eventually("those beside it are let out", || {
        beside.iter().all(|number| left(&cluster, *number, &buckets[usize::from(*number)]).len() == 1)
    });
    // It asks again and again, over the connection that it has.
    for _ in 0..3 {
        let refused = || -> String { ask(&mut from.connect(), &["INFO", "errorstats"]) };
        let before = refused();
        eventually("it has asked again", || refused() != before);
    }
    assert_eq!(sessions(&daemon.log(), from.port), 1, "{}", daemon.log());
    let said = daemon.log().lines().filter(|line| line.contains("WARN") && line.contains("partition 0")).count();
    assert_eq!(said, 1, "{}", daemon.log());
    moving.finish();
    eventually("its configuration is in force", || {
        let (code, out, _) = cluster.shell.run(&["status", &buckets[usize::from(beside[0])], "--json"]);
        code == 0 && serde_json::from_str::<serde_json::Value>(&out).expect("JSON")["capacity"] == 7
    });
    cluster.run(&["push", &buckets[0], "x"]);
    eventually("partition 0 is served", || left(&cluster, 0, &buckets[0]).len() == 1);
}
