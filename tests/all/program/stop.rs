//! How a daemon ends: by one signal, by two at a time, by a second one, and while Redis hangs.

use std::process::Command;
use std::time::{Duration, Instant};

use super::STOPS_WITHIN;
use crate::program::built_in_redis::{BuiltIn, is_gone};
use crate::rig::{Daemon, Server, eventually, signal};

#[test]
fn two_signals_at_a_time_are_one_request_to_stop() {
    for round in 0..3 {
        let built_in = BuiltIn::new("");
        let mut daemon = Daemon::start(built_in.dir());
        let pid = built_in.pid();
        daemon.signal("STOP");
        daemon.signal("TERM");
        daemon.signal("INT");
        // The last one comes at once: half a second later it would be a second request.
        let pid_of_daemon = daemon.child.id();
        let both = format!("kill -CONT {pid_of_daemon} && kill -TERM {pid_of_daemon}");
        assert!(Command::new("sh").args(["-c", &both]).status().expect("sh runs").success());
        assert_eq!(daemon.wait(), Some(0), "round {round}: {}", daemon.log());
        assert!(is_gone(pid), "redis is not left behind");
    }
}

#[test]
fn a_second_signal_half_a_second_later_ends_at_once_with_130() {
    let built_in = BuiltIn::new("");
    let mut daemon = Daemon::start(built_in.dir());
    let pid = built_in.pid();
    signal(pid, "STOP"); // so that the end takes seconds
    daemon.signal("TERM");
    eventually("it stops", || daemon.log().contains("stopping"));
    std::thread::sleep(Duration::from_millis(1_500)); // more than half a second, and less than the end takes
    daemon.signal("INT");
    assert_eq!(daemon.wait(), Some(130), "{}", daemon.log());
    signal(pid, "CONT");
}

#[test]
fn a_daemon_whose_built_in_redis_hangs_stops_in_time_and_leaves_it_to_be_adopted() {
    let built_in = BuiltIn::new("");
    let mut daemon = Daemon::start(built_in.dir());
    let pid = built_in.pid();
    built_in.case().lpush("b", &["x", "y"]);
    eventually("one leaves", || built_in.case().stream("ready").len() == 1);
    signal(pid, "STOP");
    let (code, took) = daemon.stop();
    signal(pid, "CONT");
    assert_eq!(code, Some(0), "{}", daemon.log());
    assert!(took < STOPS_WITHIN, "{took:?}");
    eventually("it stops when it can", || is_gone(pid));
    let _daemon = Daemon::start(built_in.dir());
    assert_eq!(built_in.case().waiting("b"), ["y"], "cleanly");
}

#[test]
fn a_daemon_whose_redis_hangs_stops_in_time() {
    let server = Server::start(&[]);
    let home = server.home("");
    let mut daemon = Daemon::start(home.path());
    signal(server.pid(), "STOP");
    let since = Instant::now();
    daemon.signal("TERM");
    let code = daemon.wait();
    assert_eq!(code, Some(0), "{}", daemon.log());
    assert!(since.elapsed() < STOPS_WITHIN, "{:?}", since.elapsed());
}

#[test]
fn a_daemon_that_waits_for_a_redis_that_hangs_stops_in_time() {
    let server = Server::start(&[]);
    let home = server.home("");
    signal(server.pid(), "STOP");
    let mut daemon = Daemon::spawn(home.path());
    eventually("it starts", || daemon.log().contains("starting"));
    std::thread::sleep(Duration::from_millis(300)); // it connects, and is not answered
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0), "{}", daemon.log());
    assert!(took < STOPS_WITHIN, "{took:?}");
}
