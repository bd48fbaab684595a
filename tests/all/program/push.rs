//! `dripd push` of one job, and what every command does without Redis.

use std::io::{BufRead as _, BufReader};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Shell, said, signal};
use crate::rig::{Daemon, Server, dripd, eventually};

#[test]
fn push_says_what_became_of_one_job() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 2\n");
    let (code, out, err) = shell.run(&["push", "b", "one"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "accepted: 1 of 2 waiting, due in 0 ms\n", ""));
    assert_eq!(shell.run(&["push", "b", "two"]).0, 0);
    let (code, out, err) = shell.run(&["push", "b", "three"]);
    assert_eq!((code, out.as_str()), (75, ""));
    assert!(err.starts_with("dripd push: b is full, 2 of 2: try again in"), "{err}");
    assert_eq!(shell.case.waiting("b"), ["one", "two"]);
    for args in [
        &["push"][..],
        &["push", "b"],
        &["push", "a{b", "x"],
        &["push", "b", "x", "--file", "y"],
        &["push", "--file", "x"],
        &["push", "--bucket-from", ".a", "x"],
        &["push", "--bucket-from", "a", "--file", "x"],
    ] {
        assert_eq!(shell.run(args).0, 2, "{args:?}");
    }
    let (code, _, err) = shell.run(&["push", "b", "--file", "not-there"]);
    assert_eq!(code, 1);
    assert!(err.contains("cannot read not-there"), "{err}");
}

#[test]
fn nobody_who_reads_is_no_reason_to_fail_or_to_break() {
    let shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let script = format!(
        "cd {:?} && {:?} push b x | true; echo ${{PIPESTATUS[0]}}; {:?} push b x > /dev/full; echo $?",
        shell.home(),
        env!("CARGO_BIN_EXE_dripd"),
        env!("CARGO_BIN_EXE_dripd")
    );
    let output = Command::new("bash").args(["-c", &script]).env_remove("DRIPD_REDIS_URL").output().expect("bash runs");
    assert_eq!(said(&output), (0, "0\n0\n".to_owned(), String::new()));
}

#[test]
fn commands_say_in_one_line_that_redis_cannot_be_used() {
    let home = tempfile::tempdir().expect("a directory");
    let nobody = format!("redis://user:secret@127.0.0.1:{}", crate::rig::free_port());
    for args in [&["push", "b", "x"][..], &["status"], &["work", "--print"]] {
        let since = Instant::now();
        let output =
            dripd().args(args).env("DRIPD_REDIS_URL", &nobody).current_dir(home.path()).output().expect("it runs");
        let (code, _, err) = said(&output);
        assert_eq!(code, 69, "{args:?} {err}");
        assert!(err.contains("cannot use redis at redis://user:***@127.0.0.1:") && !err.contains("secret"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(since.elapsed() >= Duration::from_secs(5), "it tries for 5 s");
    }
}

#[test]
fn a_push_that_waits_for_room_can_be_interrupted() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 1\n");
    assert_eq!(shell.run(&["push", "b", "one"]).0, 0);
    let child = shell.spawn(&["push", "b", "two", "--wait"]);
    // The last call of the push before was another one, and its connection may still be listed.
    eventually("it waits", || shell.case.cmd::<String>(&["CLIENT", "LIST"]).contains("cmd=fcall_ro"));
    signal(child.id(), "INT");
    let (code, out, err) = said(&child.wait_with_output().expect("it ends"));
    assert!(code == 130 && out.is_empty(), "{code} {out}{err}");
    assert!(err.ends_with("dripd push: interrupted: nothing was accepted\n"), "{err}");
    assert_eq!(shell.case.waiting("b"), ["one"]);
}

#[test]
fn a_push_that_waits_says_that_no_daemon_runs() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 1\n");
    assert_eq!(shell.run(&["push", "b", "one"]).0, 0);
    let file = shell.file("jobs", "two\n");
    let told = "dripd push: no daemon runs, so nothing leaves the bucket: start one with `dripd run`; still waiting";
    for args in [&["push", "b", "two", "--wait"][..], &["push", "b", "--file", &file, "--wait"]] {
        let mut child = shell.spawn(args);
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        assert_eq!(stderr.lines().next().expect("a line").expect("text"), told, "{args:?}");
    }
    let daemon = Daemon::start(shell.home());
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("the daemon has said that it runs", || !shell.must_run(&["status"]).contains("NONE RUNS"));
    assert_eq!(shell.run(&["push", "b", "one"]).0, 0);
    let child = shell.spawn(&["push", "b", "two", "--wait"]);
    eventually("it waits", || shell.case.cmd::<String>(&["CLIENT", "LIST"]).contains("cmd=fcall_ro"));
    signal(child.id(), "INT");
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    assert_eq!((code, err.as_str()), (130, "dripd push: interrupted: nothing was accepted\n"), "{}", daemon.log());
}

#[test]
fn a_queue_of_another_type_is_named_with_the_way_out() {
    let mut shell = Shell::new("");
    let queue = shell.case.queue("b");
    let _: String = shell.case.cmd(&["SET", &queue, "x"]);
    let file = shell.file("jobs", "1\n");
    for args in [&["push", "b", "x"][..], &["status", "b"], &["push", "b", "--file", &file]] {
        let (code, out, err) = shell.run(args);
        let expected = format!(": {queue} holds a string and must hold a list: rename or delete it");
        assert!(err.contains(&expected) && err.lines().count() == 1 && out.is_empty(), "{args:?}: {code} {out}{err}");
        assert_eq!(code, if args.contains(&"--file") { 1 } else { 69 }, "{args:?}");
    }
    let schedule = shell.case.key("schedule");
    let _: String = shell.case.cmd(&["SET", &schedule, "x"]);
    let (code, _, err) = shell.run(&["status"]);
    assert!(
        code == 69 && err.contains(&format!("key {schedule} is a string and must be a zset: rename or delete it")),
        "{err}"
    );
}

/// How many commands a server took, and how many connections, since the counts were reset.
fn taken(shell: &mut Shell) -> (u64, u64) {
    let info: String = shell.case.cmd(&["INFO", "stats"]);
    let count = |name: &str| -> u64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("a count");
        line.trim().parse().expect("a number")
    };
    (count("total_commands_processed:"), count("total_connections_received:"))
}

#[test]
fn a_push_that_waits_for_an_operator_asks_seldom_on_one_connection_and_goes_in_when_there_is_room() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '10/s'\ncapacity = 1\n");
    let daemon = Daemon::start(shell.home());
    let file = shell.file("jobs", "two\n");
    let options: [&[&str]; 3] = [&["two"], &["two", "--id", "2"], &["--file", &file]];
    for (stops, goes_on) in [("pause", "resume"), ("close", "open")] {
        for (n, what) in options.into_iter().enumerate() {
            let bucket = format!("{stops}-{n}");
            if stops == "pause" {
                shell.must_run(&[stops, &bucket]);
                shell.must_run(&["push", &bucket, "one"]);
            } else {
                shell.must_run(&[stops, &bucket]);
            }
            let idle = {
                let _: String = shell.case.cmd(&["CONFIG", "RESETSTAT"]);
                std::thread::sleep(Duration::from_secs(2));
                taken(&mut shell).0
            };
            let _: String = shell.case.cmd(&["CONFIG", "RESETSTAT"]);
            let since = Instant::now();
            let child = shell.spawn(&[&["push", &bucket], what, &["--wait"]].concat());
            std::thread::sleep(Duration::from_secs(4));
            let ((commands, connections), seconds) = (taken(&mut shell), since.elapsed().as_secs_f64());
            // The first words of a connection, a few tries, and what the daemon does besides.
            let most = 30.0 + seconds * (5.0 + idle as f64);
            assert!(
                (commands as f64) < most && connections <= 4,
                "{bucket}: {commands} commands, {connections} connections"
            );
            shell.must_run(&[goes_on, &bucket]);
            let (code, out, err) = said(&child.wait_with_output().expect("it ends"));
            assert_eq!(code, 0, "{bucket}: {out}{err} {}", daemon.log());
        }
    }
}

#[test]
fn a_push_into_a_closed_bucket_says_that_it_is_closed() {
    let shell = Shell::new("[defaults]\nrate = '1/h'\n");
    shell.must_run(&["close", "b"]);
    for args in [&["push", "b", "x"][..], &["push", "b", "x", "--id", "1"], &["push", "b", "x", "--delay", "1m"]] {
        let (code, out, err) = shell.run(args);
        let told = "dripd push: b is closed: an operator lets nothing in: try again in 1000 ms, or use --wait\n";
        assert_eq!((code, out.as_str(), err.as_str()), (75, "", told), "{args:?}");
    }
}

#[test]
fn a_push_where_no_daemon_ever_ran_says_so_and_waits_where_it_is_told_to() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n");
    let _: String = shell.case.cmd(&["FLUSHALL"]);
    let (code, out, err) = shell.run(&["push", "b", "x"]);
    assert!(code == 75 && out.is_empty() && err.lines().count() == 1, "{code} {out}{err}");
    assert!(err.contains("no policies are stored for the prefix \"t\"") && err.contains("dripd run"), "{err}");
    let child = shell.spawn(&["push", "b", "x", "--wait"]);
    let _daemon = Daemon::start(shell.home());
    assert_eq!(said(&child.wait_with_output().expect("it ends")).0, 0);
    eventually("it leaves", || shell.case.jobs("ready") == ["x"]);
}
