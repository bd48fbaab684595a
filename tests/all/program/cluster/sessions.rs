//! The sessions of a daemon with the servers of a cluster: what begins anew, what ends, and what is said of it; and what a partition that is
//! away, or goes where nobody can be reached, does to the others.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use redis::Value;

use super::failover::sessions;
use super::{Cluster, PARTITIONS, kill, node};
use crate::cluster::{ask, join};
use crate::program::Stopped;
use crate::rig::{Daemon, Server, eventually};

/// The lines of a log that tell of a server.
fn told(log: &str, what: &str, port: u16) -> Vec<String> {
    let at = format!("redis=\"127.0.0.1:{port}\"");
    log.lines().filter(|line| line.contains(what) && line.contains(&at)).map(str::to_owned).collect()
}

/// The server of a number in the list of those that a cluster has, by port.
fn server(cluster: &Cluster, port: u16) -> &Server {
    cluster.servers.iter().find(|server| server.port == port).expect("one of ours")
}

#[test]
fn a_session_that_begins_anew_is_told_of_pushes_as_the_first_one_was() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    let (number, schedule) = (3, "drip:schedule:{3}");
    let port = cluster.home(number).port;
    eventually("it is served", || sessions(&daemon.log(), port) == 1);
    // Something that only somebody else can mend; the connection stays.
    let _: Value = cluster.redis(number, &["DEL", schedule]);
    let _: Value = cluster.redis(number, &["SET", schedule, "x"]);
    eventually("it is not served", || !told(&daemon.log(), "is not served now", port).is_empty());
    let _: Value = cluster.redis(number, &["DEL", schedule]);
    eventually("it is served again", || sessions(&daemon.log(), port) == 2);
    let lines = told(&daemon.log(), "serving a server of the cluster", port);
    assert!(lines.iter().all(|line| line.contains("tracking=true")), "{lines:?}");
    assert!(!daemon.log().contains("CLIENT TRACKING is not available"), "{}", daemon.log());
    let bucket = &cluster.a_bucket_each()[usize::from(number)];
    cluster.run(&["push", bucket, "x"]);
    eventually("it has left", || cluster.status()["counters"]["dispatched"] == 1);
}

#[test]
fn while_nothing_moves_one_node_is_asked_for_its_state_and_the_slots_more_rarely() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    eventually("all are served", || (0..3).all(|n| sessions(&daemon.log(), cluster.servers[n].port) == 1));
    let asked = |what: &str| -> Vec<u64> {
        let of = |server: &Server| -> u64 {
            let info: String = ask(&mut server.connect(), &["INFO", "commandstats"]);
            let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_cluster|{what}:calls=")));
            line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        cluster.servers.iter().map(of).collect()
    };
    let more = |what: &str, before: &[u64]| -> Vec<u64> {
        asked(what).iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let mut seen = Vec::new();
    // Where this machine stands still a node is asked later, or all of them are: so it is as it should be in one of three times, or never.
    let is_rare = (0..3).any(|_| {
        let (states, slots, since) = (asked("info"), asked("slots"), Instant::now());
        eventually("each was asked", || more("info", &states).iter().all(|calls| *calls > 0));
        eventually("some times", || more("info", &states).iter().sum::<u64>() >= 18);
        // Each of the daemon's parts that need the map asks once a second. If all nodes were asked, it would be half that long at most.
        let (calls, took) = (more("info", &states).iter().sum::<u64>(), since.elapsed());
        let slots = more("slots", &slots).iter().sum::<u64>();
        seen.push((calls, slots, took));
        took > Duration::from_secs(4) && (1..=calls * 2 / 3).contains(&slots)
    });
    assert!(is_rare, "asked for the state, for the slots, and how long that took: {seen:?}");
}

#[test]
fn a_partition_that_goes_where_nobody_answers_is_away_and_the_server_that_had_it_goes_on() {
    let mut cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let new = node("no");
    cluster.servers.push(new);
    join(&cluster.ports());
    let daemon = cluster.daemon();
    let buckets = cluster.a_bucket_each();
    let (number, new) = (5, cluster.servers[3].port);
    let old = cluster.home(number).port;
    let beside = (0..PARTITIONS).find(|other| *other != number && cluster.home(*other).port == old).expect("one");
    eventually("it is served", || sessions(&daemon.log(), old) == 1);

    // First to a server that can be reached: that is no fault.
    cluster.begin_move(number, server(&cluster, old), server(&cluster, new)).finish();
    eventually("it is served there", || sessions(&daemon.log(), new) == 1);
    let line = told(&daemon.log(), "partitions have moved to another server", old);
    assert!(line.len() == 1 && line[0].contains(" INFO ") && line[0].contains("partitions=\"5\""), "{line:?}");
    assert!(line[0].contains(&format!("to=\"127.0.0.1:{new}\"")), "{line:?}");
    cluster.begin_move(number, server(&cluster, new), server(&cluster, old)).finish();
    eventually("it is back", || told(&daemon.log(), "partitions=\"5\" to=", new).len() == 1);
    eventually("it is served there again", || sessions(&daemon.log(), old) >= 2);
    cluster.run(&["push", &buckets[usize::from(number)], "x"]);
    eventually("it has left", || cluster.status()["counters"]["dispatched"] == 1);
    assert!(!daemon.log().contains("is not served now"), "{}", daemon.log());
    assert!(!daemon.log().contains("partitions=\"\""), "{}", daemon.log());

    // And then to one that hangs.
    let before = sessions(&daemon.log(), old);
    let moving = cluster.begin_move(number, server(&cluster, old), server(&cluster, new));
    let pid = server(&cluster, new).pid();
    // The daemon stands still meanwhile, or it might reach that server before it hangs.
    let daemon_stopped = Stopped::stop(daemon.child.id());
    let stopped = moving.finish_and_stop(pid);
    drop(daemon_stopped);
    eventually("it is away", || !told(&daemon.log(), "partitions have left a server and are away", old).is_empty());
    cluster.run(&["push", &buckets[usize::from(beside)], "x"]);
    let status = || -> serde_json::Value {
        let (_, out, _) = cluster.shell.run(&["status", "--json"]);
        serde_json::from_str(&out).unwrap_or_default()
    };
    eventually("the one beside it goes on", || {
        let status = status();
        status["away"][0]["partition"] == number && status["counters"]["dispatched"].as_u64() >= Some(1)
    });
    drop(stopped);
    eventually("it is served when that server is back", || sessions(&daemon.log(), new) >= 2);
    cluster.run(&["push", &buckets[usize::from(number)], "x"]);
    eventually("both have left", || cluster.status()["counters"]["dispatched"] == 3);
    let log = daemon.log();
    assert_eq!(sessions(&log, old), before, "it did not begin anew\n{log}");
    assert!(told(&log, "is not served now", old).is_empty(), "{log}");
}

#[test]
fn what_is_reloaded_while_partition_0_hangs_is_answered_and_comes_into_force_when_it_is_back() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let notify = cluster.shell.home().join("notify");
    let heard = UnixDatagram::bind(&notify).expect("a socket");
    heard.set_nonblocking(true).expect("a socket");
    let daemon = Daemon::spawn_with(cluster.shell.home(), &[("NOTIFY_SOCKET", notify.to_str().expect("text"))]);
    let mut said = Vec::new();
    let mut last_said = |name: &str| {
        let mut bytes = [0; 4_096];
        while let Ok(n) = heard.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            said.extend(text.lines().filter(|line| ["READY=1", "RELOADING=1"].contains(line)).map(str::to_owned));
        }
        said.last().is_some_and(|last| last == name)
    };
    // What it tells is read all the while: a socket has room for ten messages, and then it would wait.
    eventually("all are served", || {
        last_said("READY=1");
        (0..3).all(|n| sessions(&daemon.log(), cluster.servers[n].port) == 1)
    });
    eventually("it is ready", || last_said("READY=1"));
    let hung = cluster.home(0);
    let other = (0..PARTITIONS).find(|number| cluster.home(*number).port != hung.port).expect("one");
    let bucket = cluster.a_bucket_each().swap_remove(usize::from(other));
    let stopped = Stopped::stop(hung.pid());
    cluster.configure("[defaults]\nrate = '1000/s'\ncapacity = 7\n");
    let since = Instant::now();
    let ends: Vec<(i32, String)> = std::thread::scope(|scope| {
        let reload = || {
            let (code, _, err) = cluster.shell.run(&["reload"]);
            (code, err)
        };
        let both = [scope.spawn(reload), scope.spawn(reload)];
        while !both.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            last_said("READY=1");
            std::thread::sleep(Duration::from_millis(2));
        }
        both.into_iter().map(|one| one.join().expect("it ends")).collect()
    });
    assert!(since.elapsed() < Duration::from_secs(45), "both are answered: {ends:?}");
    assert!(ends.iter().all(|(code, err)| *code == 69 && err.contains("partition 0")), "{ends:?}");
    eventually("systemd is told that it goes on", || last_said("READY=1"));
    drop(stopped);
    eventually("it is in force", || cluster.shell.run(&["status", &bucket]).1.contains("0 of 7"));
}

#[test]
fn a_daemon_of_another_cut_is_refused_also_while_partition_0_is_away() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let daemon = cluster.daemon();
    eventually("all have the record", || cluster.all_have_the_record());
    drop(daemon);
    kill(cluster.home(0));
    let text = std::fs::read_to_string(cluster.shell.home().join("config.toml")).expect("a configuration");
    cluster.shell.file("config.toml", &text.replace("partitions = 16", "partitions = 8"));
    let mut other = Daemon::spawn(cluster.shell.home());
    eventually("it ends", || other.child.try_wait().expect("a child").is_some());
    assert_eq!(other.wait(), Some(78), "{}", other.log());
    assert!(other.log().contains("redis.partitions = 16") && other.log().contains("redis.partitions = 8"));
    assert!(!other.log().contains("serving"), "{}", other.log());
    let (code, _, err) = cluster.shell.run(&["status"]);
    assert_eq!(code, 78, "{err}");
}

#[test]
fn a_slot_that_its_server_does_not_serve_is_said_with_the_partition_and_the_way_out() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let _daemon = cluster.daemon_of_all();
    let slot = cluster.slot(5).to_string();
    let _: Value = ask(&mut cluster.home(5).connect(), &["CLUSTER", "DELSLOTS", &slot]);
    for _ in 0..5 {
        let (code, _, err) = cluster.shell.run(&["status"]);
        assert_eq!(code, 69, "{err}");
        assert!(err.contains("dripd status: partition 5"), "{err}");
        assert!(!err.contains("was refused") && (err.contains("ADDSLOTS") || err.contains("try again when")), "{err}");
    }
}

#[test]
fn a_server_that_is_ready_after_the_others_has_the_record_at_once() {
    let cluster = Cluster::start(false, "no", "[defaults]\nrate = '1000/s'\n");
    let home = cluster.home(0).port;
    let late = cluster.servers.iter().find(|server| server.port != home).expect("another");
    let number = cluster.partitions_of(late)[0];
    let record = |redis: &mut redis::Connection| -> bool {
        ask(redis, &["HEXISTS", &format!("drip:policy:{{{number}}}"), "record"])
    };
    // The look of each second would find it too: so it is at once in one of five times, or never.
    let at_once = (0..5).any(|_| {
        for server in &cluster.servers {
            let _: redis::Value = ask(&mut server.connect(), &["FLUSHALL"]);
            let _: redis::Value = ask(&mut server.connect(), &["FUNCTION", "FLUSH"]);
        }
        let mut redis = late.connect();
        let stopped = Stopped::stop(late.pid());
        let daemon = Daemon::spawn(cluster.shell.home());
        eventually("the others are served", || sessions(&daemon.log(), home) == 1);
        drop(stopped);
        eventually("it is served", || sessions(&daemon.log(), late.port) == 1);
        let since = Instant::now();
        eventually("it has the record", || record(&mut redis));
        since.elapsed() < Duration::from_millis(250)
    });
    assert!(at_once);
}

#[test]
fn each_node_that_would_lose_jobs_in_a_crash_is_named_in_the_log_and_in_status() {
    let cluster = Cluster::start(false, "no", "");
    let _: Value = ask(&mut cluster.servers[1].connect(), &["CONFIG", "SET", "appendonly", "yes"]);
    let daemon = cluster.daemon();
    let names = |text: &str, server: &Server| {
        text.contains(&format!("appendonly is off at 127.0.0.1:{}: a crash", server.port))
    };
    let lacking = [&cluster.servers[0], &cluster.servers[2]];
    eventually("both are named", || lacking.iter().all(|server| names(&daemon.log(), server)));
    assert!(!names(&daemon.log(), &cluster.servers[1]), "{}", daemon.log());
    let warnings = cluster.status()["warnings"].to_string();
    assert!(lacking.iter().all(|server| names(&warnings, server)), "{warnings}");
    assert!(!names(&warnings, &cluster.servers[1]), "{warnings}");
    assert_eq!(daemon.log().matches("appendonly is off").count(), 2, "{}", daemon.log());
}
