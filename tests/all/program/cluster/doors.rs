//! What every door and command does on a cluster where nothing moves.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use redis::Value;

use super::failover::sessions;
use super::{Cluster, PARTITIONS};
use crate::cluster::ask;
use crate::program::Work;
use crate::rig::{eventually, free_port};

pub(super) fn curl(args: &[&str]) -> String {
    let out = std::process::Command::new("curl").arg("-sS").args(args).output().expect("curl");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn on_a_cluster_every_door_and_every_command_does_what_it_does_on_one_redis() {
    let port = free_port();
    let toml = format!(
        "partition_by = 1\n[http]\nlisten = '127.0.0.1:{port}'\n[defaults]\nrate = '1000/s'\n\
         [[budget]]\nmatch = 'twilio-*'\nrate = '1/h'\n[[bucket]]\nmatch = 'twilio-*:*'\nwithin = 'twilio-{{1}}'\n"
    );
    let cluster = Cluster::start(false, "no", &toml);
    let daemon = cluster.daemon_of_all();
    assert!(daemon.log().contains("serving"), "{}", daemon.log());

    // Four doors, every partition.
    let (buckets, mut pushed) = (cluster.a_bucket_each(), BTreeSet::new());
    for (bucket, number) in buckets.iter().zip(0..) {
        let (key, job) = (cluster.queue(bucket), |door: &str| format!("{door}-{bucket}"));
        let length: i64 = cluster.redis(number, &["LPUSH", &key, &job("plain")]);
        assert!(length >= 1);
        let accepted: Vec<i64> = cluster.redis(number, &["FCALL", "drip_push", "1", &key, &job("atomic")]);
        assert_eq!(accepted[0], 1);
        cluster.run(&["push", bucket, &job("command")]);
        let url = format!("http://127.0.0.1:{port}/v1/buckets/{bucket}/jobs");
        let answer = curl(&["--data", &job("http"), &url]);
        assert!(answer.contains("\"accepted\":1"), "{answer}");
        pushed.extend(["plain", "atomic", "command", "http"].map(job));
    }
    eventually("all have left", || cluster.status()["counters"]["dispatched"] == u64::from(PARTITIONS) * 4);
    for (number, bucket) in (0..).zip(&buckets) {
        let entries: Vec<(String, BTreeMap<String, String>)> =
            cluster.redis(number, &["XRANGE", &format!("drip:ready:{{{number}}}"), "-", "+"]);
        assert_eq!(entries.len(), 4);
        assert!(entries.iter().all(|(_, fields)| fields["bucket"] == *bucket));
    }
    let mut work = Work::start(&cluster.shell, &["--concurrency", "3", "--print"]);
    eventually("all are done", || {
        let status = cluster.status();
        let is_whole = status["away"] == serde_json::json!([]);
        is_whole && status["routes"][0]["undelivered"] == 0 && status["routes"][0]["pending"] == 0
    });
    work.signal("TERM");
    let mut out = String::new();
    work.child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    let mut taken: Vec<String> = out.lines().map(str::to_owned).collect();
    taken.sort();
    assert_eq!(taken, pushed.into_iter().collect::<Vec<_>>(), "each once");

    // Settings reach every partition; a daemon of another cut is refused.
    cluster.run(&["set", "*", "capacity=7", "--yes"]);
    for bucket in &buckets {
        assert!(cluster.run(&["status", bucket]).contains("0 of 7"));
    }
    assert!(cluster.run(&["settings"]).contains("capacity"));
    cluster.run(&["unset", "*", "capacity", "--yes"]);
    cluster.run(&["pause", "*", "--yes"]);
    cluster.run(&["push", &buckets[5], "waits"]);
    assert!(cluster.run(&["explain", &buckets[5]]).contains("paused"));
    assert!(cluster.run(&["purge", &buckets[5], "--yes"]).contains("1 job"));
    cluster.run(&["resume", "*", "--yes"]);
    cluster.run(&["reload"]);

    // Limiters, of any key.
    for n in 0..12 {
        let key = format!("limit:login:{n}");
        cluster.run(&["limit", "throttle", &key, "1/h"]);
        let (code, _, err) = cluster.shell.run(&["limit", "throttle", &key, "1/h"]);
        assert_eq!(code, 75, "{err}");
    }

    // Budgets live where their buckets do.
    for sender in ["a", "b", "c"] {
        cluster.run(&["push", &format!("twilio-x:{sender}"), "x"]);
    }
    eventually("one has left, and the others wait for their share", || {
        let status = cluster.status();
        status["counters"]["dispatched"] == u64::from(PARTITIONS) * 4 + 1 && status["sharing"] == 2
    });

    eventually("all partitions are there", || {
        let status = cluster.status();
        status["partitions"] == PARTITIONS && status["away"] == serde_json::json!([])
    });
    assert_eq!(curl(&[&format!("http://127.0.0.1:{port}/readyz")]), "ok\n");
    let served = format!("dripd_partitions{{state=\"served\"}} {PARTITIONS}\n");
    eventually("all are served", || curl(&[&format!("http://127.0.0.1:{port}/metrics")]).contains(&served));
    for server in &cluster.servers {
        let libraries: Vec<Value> = ask(&mut server.connect(), &["FUNCTION", "LIST"]);
        assert_eq!(libraries.len(), 1, "the library is on every primary");
    }
}

#[test]
fn what_is_no_cluster_or_has_nobody_to_answer_is_said_with_the_way_out() {
    let server = crate::rig::Server::start(&[]);
    let home = |nodes: &str| {
        let case = crate::rig::Case { redis: server.connect(), prefix: "drip".to_owned() };
        let shell = crate::program::Shell { case, home: tempfile::tempdir().expect("a directory") };
        shell.file("config.toml", &format!("[redis]\ncluster = [{nodes}]\npartitions = 4\n"));
        shell
    };
    let shell = home(&format!("'127.0.0.1:{}'", server.port));
    let (code, _, err) = shell.run(&["push", "acme", "x"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains("it is no node of a cluster; name it in redis.url"), "{err}");
    let (one, other) = (free_port(), free_port());
    let (code, _, err) = home(&format!("'127.0.0.1:{one}', '127.0.0.1:{other}'")).run(&["push", "acme", "x"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains(&format!("127.0.0.1:{one}: ")) && err.contains(&format!("127.0.0.1:{other}: ")), "{err}");
}

#[test]
fn each_role_has_the_rights_that_it_takes_on_a_cluster() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let of_role = |role: &str| {
        let (code, line, err) = cluster.shell.run(&["acl", role]);
        assert_eq!(code, 0);
        assert!(err.contains("load it on every node of the cluster"), "{err}");
        let line = line.trim_end().replace(">PASSWORD", ">secret");
        let words: Vec<&str> = line.split(' ').collect();
        for server in &cluster.servers {
            let _: Value = ask(&mut server.connect(), &words);
        }
        let case = crate::rig::Case { redis: cluster.servers[0].connect(), prefix: "drip".to_owned() };
        let shell = crate::program::Shell { case, home: tempfile::tempdir().expect("a directory") };
        let text = std::fs::read_to_string(cluster.shell.home().join("config.toml")).expect("a configuration");
        let login = format!("[redis]\nuser = '{role}'\npassword_file = 'pw'\n");
        shell.file("config.toml", &text.replacen("[redis]\n", &login, 1));
        shell.file("pw", "secret\n");
        shell
    };
    let daemon_of = of_role("daemon");
    let daemon = crate::rig::Daemon::start(daemon_of.home());
    // It loads the library on each of them, which nobody else here may do.
    eventually("all are served", || (0..3).all(|n| sessions(&daemon.log(), cluster.servers[n].port) == 1));
    let [submitter, operator, observer, worker] = ["submitter", "operator", "observer", "worker"].map(of_role);
    let ok = |shell: &crate::program::Shell, args: &[&str]| {
        let (code, out, err) = shell.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
    };
    let buckets = cluster.a_bucket_each();
    for bucket in &buckets {
        ok(&submitter, &["push", bucket, "x"]);
    }
    ok(&operator, &["set", &buckets[3], "capacity=5"]);
    ok(&operator, &["pause", &buckets[1]]);
    ok(&operator, &["resume", &buckets[1]]);
    ok(&observer, &["status"]);
    ok(&observer, &["settings"]);
    let work = Work::start(&worker, &["--concurrency", "8", "--exec", "true"]);
    eventually("all are done", || {
        let status = cluster.status();
        let routes = status["routes"].as_array().cloned().unwrap_or_default();
        status["counters"]["dispatched"] == PARTITIONS
            && routes.iter().all(|route| route["undelivered"] == 0 && route["pending"] == 0)
    });
    work.stop();
    for server in &cluster.servers {
        for entry in crate::roles::refused(&mut server.connect(), "") {
            // Who may not ask whether full coverage is required goes on, and so does a worker that may not take its name away.
            assert!(entry.contains("config|get") || entry.contains("xgroup|delconsumer"), "{entry}");
        }
    }
}
