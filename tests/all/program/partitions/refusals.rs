//! What does not belong into a partition, and configurations that do not belong to a system.

use redis::Value;

use super::{System, shell_at};
use crate::rig::{Daemon, Server, eventually};

#[test]
fn a_push_into_a_wrong_partition_is_left_alone_and_said_with_the_right_key() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let daemon = system.daemon();
    let (right, number) = (system.queue("acme"), system.number_of("acme"));
    let wrong = format!("drip:queue:{{{}}}:acme", (number + 1) % super::PARTITIONS);
    for key in ["drip:queue:acme", wrong.as_str(), "drip:queue:{9}:acme"] {
        for function in ["drip_push", "drip_peek"] {
            let args: &[&str] = if function == "drip_push" { &["x"] } else { &[] };
            let reply: redis::RedisResult<Value> =
                redis::cmd("FCALL").arg(function).arg(1).arg(key).arg(args).query(&mut system.server.connect());
            let why = reply.expect_err("refused");
            assert_eq!(why.code(), Some("BADBUCKET"), "{key}");
            assert!(why.detail().is_some_and(|detail| detail.contains(&right)), "{key}: {why}");
        }
        let _: i64 = system.redis(&["LPUSH", key, "lost"]);
    }
    system.run(&["push", "acme", "found"]);
    eventually("the right one has left", || system.status(&[])["counters"]["dispatched"] == 1);
    eventually("the log names the right key", || {
        daemon.log().lines().any(|line| line.contains("lives in another partition") && line.contains(&right))
    });
    for key in ["drip:queue:acme", wrong.as_str(), "drip:queue:{9}:acme"] {
        assert_eq!(system.redis::<i64>(&["LLEN", key]), 1, "{key} is left alone");
    }
}

#[test]
fn who_says_another_number_of_partitions_than_is_stored_stops_with_78_and_names_both() {
    let system = System::new("[defaults]\nrate = '1000/s'\n[http]\nlisten = ''\n");
    let _daemon = system.daemon();
    let stored = "redis.partitions = 8 without redis.partition_by";
    for (toml, ours) in [
        ("partitions = 4\n", "redis.partitions = 4 without redis.partition_by"),
        ("", "redis.partitions = 1 without redis.partition_by"),
        ("partitions = 8\npartition_by = 2\n", "redis.partitions = 8 and redis.partition_by = 2"),
    ] {
        let shell = shell_at(&system.server, &format!("{toml}[http]\nlisten = ''\n"));
        for args in [&["status"][..], &["push", "a", "x"], &["run"], &["work", "--print"], &["set", "a", "rate=1/s"]] {
            let (code, _, err) = shell.run(args);
            assert_eq!(code, 78, "{args:?}: {err}");
            assert!(err.contains(stored) && err.contains(ours), "{args:?}: {err}");
        }
    }
}

#[test]
fn a_system_of_one_partition_is_not_taken_for_one_of_several() {
    let server = Server::start(&[]);
    let one = shell_at(&server, "[http]\nlisten = ''\n");
    let mut daemon = Daemon::start(one.home());
    let several = shell_at(&server, "partitions = 2\n[http]\nlisten = ''\n");
    for args in [&["status"][..], &["run"]] {
        let (code, _, err) = several.run(args);
        assert_eq!(code, 78, "{args:?}: {err}");
        assert!(err.contains("redis.partitions = 1") && err.contains("redis.partitions = 2"), "{args:?}: {err}");
    }
    daemon.stop();
    let (code, _, err) = several.run(&["status"]);
    assert_eq!(code, 78, "what is stored outlives the daemon: {err}");
}

#[test]
fn what_the_configuration_says_of_partitions_is_checked() {
    let server = Server::start(&[]);
    for (toml, said) in [
        ("partitions = 3\n", "redis.partitions: 3 is not allowed; write a power of two, 1 to 64"),
        ("partitions = 128\n", "redis.partitions: 128 is not allowed; write a power of two, 1 to 64"),
        ("partition_by = 1\n", "redis.partition_by: there is one partition; write redis.partitions too"),
        ("partitions = 2\npartition_by = 0\n", "redis.partition_by: 0 is not allowed; write how many parts, 1 to 8"),
        ("cluster = ['a:1']\n", "redis.cluster: a cluster needs redis.partitions, 2 to 64"),
        (
            "partitions = 2\n[[budget]]\nmatch = 'x'\nrate = '1/s'\n[[bucket]]\nmatch = 'x:*'\nwithin = 'x'\n",
            "bucket[1].within: with redis.partitions it needs redis.partition_by",
        ),
        (
            "partitions = 2\npartition_by = 2\n[[budget]]\nmatch = 'x'\nrate = '1/s'\n[[bucket]]\nmatch = 'x:*'\nwithin = 'x'\n",
            "bucket[1].within: \"x\" lives in another partition than what \"x:*\" matches",
        ),
    ] {
        let (code, _, err) = shell_at(&server, toml).run(&["check"]);
        assert_eq!(code, 78, "{toml}: {err}");
        assert!(err.contains(said), "{said} is not in\n{err}");
    }
    let good = "partitions = 2\npartition_by = 1\n[[budget]]\nmatch = 'x'\nrate = '1/s'\n[[bucket]]\nmatch = 'x:*'\nwithin = 'x'\n";
    assert_eq!(shell_at(&server, good).run(&["check"]).0, 0);
}
