//! Redis at fault, seen from outside: an answer that does not come, and a server that takes no writes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::program::said;
use crate::rig::{Case, Daemon, Server, dripd, eventually, test_config};

/// A way to a server that passes everything on until somebody pushes: that reaches the server, and the connection ends before
/// its answer. Counts the pushes that it saw.
pub fn way_that_loses_the_answer_to_a_push(server: &Server) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let (port, to, pushes) = (listener.local_addr().expect("bound").port(), server.port, Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&pushes);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (seen, server) =
                (Arc::clone(&seen), TcpStream::connect(("127.0.0.1", to)).expect("the server is there"));
            std::thread::spawn(move || pass_on(client, server, &seen));
        }
    });
    (port, pushes)
}

fn pass_on(mut client: TcpStream, mut server: TcpStream, pushes: &AtomicU64) {
    let (mut back, mut to_client) = (server.try_clone().expect("a clone"), client.try_clone().expect("a clone"));
    std::thread::spawn(move || std::io::copy(&mut back, &mut to_client));
    let mut buffer = vec![0; 65_536];
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        let sent = String::from_utf8_lossy(&buffer[..n]);
        let is_push = ["drip_push", "drip__post"].iter().any(|function| sent.contains(function));
        if is_push {
            pushes.fetch_add(1, Ordering::Relaxed);
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
        if server.write_all(&buffer[..n]).is_err() {
            break;
        }
        if is_push {
            let _ = server.read(&mut buffer); // it has run
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_push_whose_outcome_is_unknown_is_said_to_be_so_and_never_repeated() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\n");
    let (port, pushes) = way_that_loses_the_answer_to_a_push(&server);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!("[redis]\nurl = 'redis://127.0.0.1:{port}'\nprefix = '{}'\n", case.prefix);
    std::fs::write(home.path().join("config.toml"), toml).expect("written");
    let output = dripd().args(["push", "b", "once"]).current_dir(home.path()).output().expect("it runs");
    let (code, out, err) = said(&output);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.starts_with("dripd push: trying to push to b: lost redis at ") && err.lines().count() == 1, "{err}");
    assert!(err.ends_with("; it may have been done or not\n"), "{err}");
    eventually("it went in", || case.waiting("b") == ["once"]);
    assert_eq!(pushes.load(Ordering::Relaxed), 1, "it was sent once");
}

#[test]
fn a_replica_is_named_and_a_daemon_whose_server_became_one_serves_again_when_it_is_none() {
    let (primary, replica) = (Server::start(&[]), Server::start(&[]));
    let mut case = Case { redis: replica.connect(), prefix: "drip".to_owned() };
    let home = replica.home("[defaults]\nrate = '1000/s'\n");
    let daemon = Daemon::start(home.path());
    let port = primary.port.to_string();
    let _: String = case.cmd(&["REPLICAOF", "127.0.0.1", &port]);
    eventually("it says what is wrong and the way out", || {
        daemon.log().contains("read-only replica") && daemon.log().contains("name the primary in redis.url")
    });
    let output = dripd().args(["push", "b", "x"]).current_dir(home.path()).output().expect("it runs");
    let (code, _, err) = said(&output);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains("read-only replica"), "{err}");
    let _: String = case.cmd(&["REPLICAOF", "NO", "ONE"]);
    eventually("it serves again", || daemon.log().matches("serving redis").count() == 2);
    case.lpush("b", &["x"]);
    eventually("and drains", || case.stream("ready").len() == 1);
}

#[test]
fn what_is_pushed_after_a_flush_is_judged_by_the_daemons_own_record() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!("[redis]\nurl = '{}'\n[defaults]\nrate = '1/h'\ncapacity = 10000\n", server.url());
    std::fs::write(home.path().join("config.toml"), test_config(&toml)).expect("written");
    let _daemon = Daemon::start(home.path());
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    for _ in 0..3 {
        let _: String = case.cmd(&["FLUSHALL"]);
        assert_eq!(case.lpush("b", &vec!["x"; 5_000]), 5_000);
        eventually("the first leaves", || case.stream("ready").len() == 1);
        assert_eq!(case.waiting("b").len(), 4_999);
        assert!(case.stream("rejected").is_empty());
    }
}

#[test]
fn the_reaper_rests_between_its_passes() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!("[redis]\nurl = '{}'\n[defaults]\nrate = '10000/s'\nlease = '2s'\n", server.url());
    std::fs::write(home.path().join("config.toml"), test_config(&toml)).expect("written");
    let _daemon = Daemon::start(home.path());
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    case.lpush("b", &["x"; 50]);
    eventually("they are out", || case.stream("ready").len() == 50);
    assert_eq!(case.take("ready", 50).len(), 50);
    let passes = |case: &mut Case| -> u64 {
        let info: String = case.cmd(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_xpending:calls="));
        line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
    };
    eventually("it passes", || passes(&mut case) > 0);
    let (since, before) = (std::time::Instant::now(), passes(&mut case));
    eventually("some leases' time goes by", || {
        // Renewed now and then, so that leases end at all times and none is taken back.
        let ready = case.key("ready");
        let ids: Vec<String> = case.stream("ready").iter().map(|entry| entry.id.clone()).collect();
        for id in ids {
            let _: redis::Value = case.cmd(&["XCLAIM", &ready, "workers", "w", "0", &id, "JUSTID"]);
        }
        since.elapsed() > std::time::Duration::from_secs(4)
    });
    let (passes, seconds) = (passes(&mut case) - before, since.elapsed().as_secs_f64());
    assert!(passes as f64 <= seconds / 0.75 + 1.0, "{passes} passes over 50 jobs in {seconds} s");
}
