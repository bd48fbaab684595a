//! A primary that dies, and one that hangs: its partitions wait, the others go on.

use std::collections::BTreeMap;

use super::{Cluster, PARTITIONS, kill};
use crate::cluster::ask;
use crate::program::{Stopped, Work};
use crate::rig::eventually;

/// How often the log says that a server is served.
pub(super) fn sessions(log: &str, port: u16) -> usize {
    let at = format!("redis=\"127.0.0.1:{port}\"");
    log.lines().filter(|line| line.contains("serving a server of the cluster") && line.contains(&at)).count()
}

#[test]
fn when_a_primary_is_killed_its_replica_is_served_and_the_others_do_not_notice() {
    let cluster = Cluster::start(true, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    let buckets = cluster.a_bucket_each();
    eventually("all are served", || (0..3).all(|n| sessions(&daemon.log(), cluster.servers[n].port) == 1));
    let mut work = Work::start(&cluster.shell, &["--concurrency", "4", "--print"]);
    for bucket in &buckets {
        cluster.run(&["push", bucket, &format!("before-{bucket}")]);
    }
    let finished = |cluster: &Cluster, jobs: u64| {
        let status = cluster.status();
        let is_empty = |route: &serde_json::Value| route["undelivered"] == 0 && route["pending"] == 0;
        status["away"] == serde_json::json!([])
            && status["counters"]["dispatched"].as_u64() == Some(jobs)
            && status["routes"].as_array().is_some_and(|routes| routes.iter().all(is_empty))
    };
    eventually("all are done", || finished(&cluster, u64::from(PARTITIONS)));

    let dead = &cluster.servers[1];
    let lost = cluster.partitions_of(dead);
    let others: Vec<u8> = (0..PARTITIONS).filter(|number| !lost.contains(number)).collect();
    assert!(!lost.is_empty() && !others.is_empty());
    // What its replica has not got is lost with it: an acknowledgement, too, and then its job would come again.
    eventually("its replica has all", || {
        let info: String = ask(&mut dead.connect(), &["INFO", "replication"]);
        let value = |from: &str, name: &str| {
            let at = from.split(name).nth(1).expect("it is told");
            at.split(|byte: char| !byte.is_ascii_digit()).next().expect("a number").to_owned()
        };
        info.contains("slave0:") && value(&info, "offset=") == value(&info, "master_repl_offset:")
    });
    kill(dead);
    for number in &others {
        // At once, while nobody has taken its place.
        cluster.run(&["push", &buckets[usize::from(*number)], &format!("during-{number}")]);
    }
    // A command has patience for as long as a failover takes, mostly.
    for number in &lost {
        let bucket = &buckets[usize::from(*number)];
        eventually("it is taken again", || {
            let (code, _, err) = cluster.shell.run(&["push", bucket, &format!("during-{number}")]);
            assert!(code == 0 || code == 69, "an error that says to come again: {code} {err}");
            code == 0
        });
    }
    eventually("all are done", || finished(&cluster, 2 * u64::from(PARTITIONS)));
    let log = daemon.log();
    for (n, times) in [(0, 1), (1, 1), (2, 1), (4, 1)] {
        assert_eq!(sessions(&log, cluster.servers[n].port), times, "server {n}:\n{log}");
    }
    work.signal("TERM");
    let mut out = String::new();
    std::io::Read::read_to_string(&mut work.child.stdout.take().expect("piped"), &mut out).expect("text");
    assert_eq!(out.lines().count(), 2 * usize::from(PARTITIONS), "each once\n{out}");
}

#[test]
fn a_primary_that_hangs_is_named_and_the_others_go_on_until_it_is_back() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    let buckets = cluster.a_bucket_each();
    // The one that has partition 0: nothing can be set meanwhile.
    let (hung, others) = {
        let home = cluster.home(0);
        let lost = cluster.partitions_of(home);
        (home, (0..PARTITIONS).filter(|number| !lost.contains(number)).collect::<Vec<u8>>())
    };
    let homes: BTreeMap<u8, u16> = others.iter().map(|number| (*number, cluster.home(*number).port)).collect();
    eventually("all are served", || (0..3).all(|n| sessions(&daemon.log(), cluster.servers[n].port) == 1));
    // It comes from the partition that hangs.
    eventually("all have the record", || cluster.all_have_the_record());
    let stopped = Stopped::stop(hung.pid());
    for number in &others {
        cluster.run(&["push", &buckets[usize::from(*number)], "x"]);
    }
    let left = || {
        let (code, out, err) = cluster.shell.run(&["status", "--json"]);
        assert!(code == 69 && err.contains("partition 0 is away"), "{code} {err}");
        let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let away = status["away"].as_array().expect("a list").clone();
        assert!(away.iter().any(|one| one["partition"] == 0 && one["node"] == format!("127.0.0.1:{}", hung.port)));
        status["counters"]["dispatched"].as_u64()
    };
    eventually("the others have left", || left() == Some(others.len() as u64));
    let (code, _, err) = cluster.shell.run(&["set", &buckets[usize::from(others[0])], "rate=5/s"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains("partition 0 is away"), "{err}");
    let (code, _, err) = cluster.shell.run(&["push", &buckets[0], "x"]);
    assert_eq!(code, 69, "{err}");
    // A daemon that starts meanwhile serves what there is.
    let second = cluster.daemon();
    assert!(!second.log().contains(&format!("serving a server of the cluster redis=\"127.0.0.1:{}\"", hung.port)));
    let says = format!(
        "partitions are away; they are served as soon as their server is there redis=\"127.0.0.1:{}\"",
        hung.port
    );
    assert!(second.log().contains(&says), "{}", second.log());
    drop(stopped);
    eventually("it serves that one too when it is back", || sessions(&second.log(), hung.port) == 1);
    eventually("it takes pushes again", || cluster.shell.run(&["push", &buckets[0], "x"]).0 == 0);
    eventually("and lets them out", || {
        cluster.status()["counters"]["dispatched"].as_u64() == Some(others.len() as u64 + 1)
    });
    let log = daemon.log();
    for port in homes.values() {
        assert_eq!(sessions(&log, *port), 1, "it did not notice\n{log}");
    }
    cluster.run(&["set", &buckets[0], "rate=5/s"]);
}

#[test]
fn where_full_coverage_is_asked_for_it_is_said_and_all_goes_on_when_the_last_slot_is_served() {
    let cluster = Cluster::start(true, "yes", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    assert!(daemon.log().contains("cluster-require-full-coverage is yes"), "{}", daemon.log());
    assert!(cluster.status()["warnings"].to_string().contains("cluster-require-full-coverage is yes"));
    let buckets = cluster.a_bucket_each();
    kill(&cluster.servers[2]);
    for bucket in &buckets {
        eventually("it is taken", || {
            let (code, _, err) = cluster.shell.run(&["push", bucket, "x"]);
            assert!(code == 0 || code == 69 || code == 75, "{code} {err}");
            code == 0
        });
    }
    eventually("all have left", || cluster.status()["counters"]["dispatched"].as_u64() == Some(u64::from(PARTITIONS)));
}
