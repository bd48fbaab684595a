//! `dripd work`: commands, leases, and what becomes of a job when its worker dies.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use super::{STOPS_WITHIN, Shell, Work};
use crate::rig::{Daemon, Server, eventually};

pub const WORK: &str = "[defaults]\nrate = '1000/s'\nbackoff = { initial = '50ms', max = '50ms' }\nattempts = 3\n";

#[test]
fn work_exec_runs_a_command_for_each_job_and_obeys_its_exit_code() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let script = shell.file(
        "run.sh",
        "job=$(cat)\necho \"$DRIPD_BUCKET $DRIPD_ATTEMPT $DRIPD_ID $job\" >> seen\ncase $job in dead) exit 65;; once) [ \"$DRIPD_ATTEMPT\" = 2 ];; never) exit 3;; esac\n",
    );
    let worker = Work::start(&shell, &["--concurrency", "2", "--exec", "sh", &script]);
    shell.case.lpush("b", &["fine", "dead", "once", "never"]);
    let file = shell.home().join("seen");
    // One that backs off is not ready, so that nothing is left for a while before its last attempt.
    eventually("all have run", || std::fs::read_to_string(&file).is_ok_and(|seen| seen.lines().count() == 7));
    eventually("two are dead", || shell.case.stream("dead").len() == 2);
    eventually("and nothing is left", || shell.case.stream("ready").is_empty());
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < STOPS_WITHIN, "{took:?}");
    let seen = std::fs::read_to_string(&file).expect("seen");
    let mut runs: Vec<(String, String)> = Vec::new();
    let mut ids = std::collections::HashMap::new();
    for line in seen.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        assert_eq!(fields[0], "b");
        runs.push((fields[3].to_owned(), fields[1].to_owned()));
        assert_eq!(*ids.entry(fields[3].to_owned()).or_insert(fields[2].to_owned()), fields[2], "the id is stable");
        let (entry, bucket) = fields[2].rsplit_once('-').expect("an entry id and a digest");
        assert!(entry.split('-').all(|n| n.parse::<u64>().is_ok()), "{}", fields[2]);
        assert_eq!(bucket, "3e23e8160039594a", "printf b | sha256sum");
    }
    runs.sort();
    let expect =
        [("dead", "1"), ("fine", "1"), ("never", "1"), ("never", "2"), ("never", "3"), ("once", "1"), ("once", "2")];
    assert_eq!(runs, expect.map(|(job, attempt)| (job.to_owned(), attempt.to_owned())));
    let mut reasons: Vec<_> = shell.case.stream("dead").iter().map(|e| (e.text("job"), e.text("reason"))).collect();
    reasons.sort(); // two run at a time
    assert_eq!(reasons, [("dead".into(), "exit code 65".into()), ("never".into(), "exit code 3".into())]);
    let ready = shell.case.key("ready");
    let consumers: Vec<redis::Value> = shell.case.cmd(&["XINFO", "CONSUMERS", &ready, "workers"]);
    assert!(consumers.is_empty(), "a worker that left leaves no name behind");
}

#[test]
fn a_command_gets_headers_cost_and_deadline_of_its_own_job_in_the_environment() {
    let shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let script = shell.file("run.sh", "job=$(cat)\nenv | grep -E '^DRIPD_(HEADER|COST|DEADLINE)' | sort > seen.$job\n");
    // As if the worker were itself started for a job of another worker.
    let mut command = shell.command(&["work", "--exec", "sh", &script]);
    command.env("DRIPD_HEADER_OTHER", "1").env("DRIPD_DEADLINE_US", "1");
    let _worker = Work::spawn(&shell, command);
    let push = [
        "push",
        "b",
        "full",
        "--cost",
        "3",
        "--ttl",
        "1h",
        "--header",
        "x-a-1: $(touch bad) 'q'",
        "--header",
        "traceparent: 00",
    ];
    assert_eq!(shell.run(&push).0, 0);
    assert_eq!(shell.run(&["push", "b", "plain"]).0, 0);
    let seen = |job: &str| std::fs::read_to_string(shell.home().join(format!("seen.{job}"))).unwrap_or_default();
    eventually("both have run", || !seen("plain").is_empty() && seen("full").lines().count() == 4);
    let full = seen("full");
    let lines: Vec<&str> = full.lines().collect();
    assert!(lines[1].strip_prefix("DRIPD_DEADLINE_US=").is_some_and(|us| us.len() == 16), "{full}");
    assert_eq!((lines[0], lines[2]), ("DRIPD_COST=3", "DRIPD_HEADER_TRACEPARENT=00"));
    assert_eq!(lines[3], "DRIPD_HEADER_X_A_1=$(touch bad) 'q'");
    assert_eq!(
        seen("plain"),
        "DRIPD_COST=1\n",
        "nothing of the other job, and nothing that the worker was started with"
    );
}

#[test]
fn work_renews_leases_and_gives_back_what_it_cannot_finish() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nlease = '5s'\n");
    let _daemon = Daemon::start(shell.home());
    let started = Instant::now();
    let worker = Work::start(&shell, &["--concurrency", "5", "--exec", "sleep 60 & echo $! >> pids; wait"]);
    shell.case.lpush("b", &["1", "2"]);
    let pids = shell.home().join("pids");
    eventually("both run", || std::fs::read_to_string(&pids).is_ok_and(|text| text.lines().count() == 2));
    // Past the grace of the daemon, and past two leases.
    std::thread::sleep(Duration::from_secs(14).saturating_sub(started.elapsed()));
    assert_eq!(
        shell.case.stream("ready").iter().filter(|e| e.text("attempt") == "1" && !e.fields.contains_key("id")).count(),
        2
    );
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < STOPS_WITHIN, "{took:?}");
    eventually("they are back", || {
        shell.case.stream("ready").iter().filter(|e| e.fields.contains_key("id")).count() == 2
    });
    assert!(shell.case.stream("ready").iter().all(|e| e.text("attempt") == "1"), "KEEP");
    for pid in std::fs::read_to_string(&pids).expect("pids").lines() {
        eventually("the commands are gone, and theirs too", || {
            !std::path::Path::new(&format!("/proc/{pid}/stat")).exists()
                || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
        });
    }
}

#[test]
fn a_worker_that_is_killed_or_cut_off_loses_nothing() {
    let server = Server::start(&[]);
    // The lease of the first worker is over before the grace of the daemon is, and that of the second one does not end while it works.
    let toml = "[defaults]\nrate = '1000/s'\nlease = '5s'\nbackoff = { initial = '1ms', max = '1ms' }\n";
    let mut shell = Shell::on(&server, toml);
    let _daemon = Daemon::start(shell.home());
    let worker = Work::start(&shell, &["--exec", "sleep 100"]);
    shell.case.lpush("b", &["x"]);
    let ready = shell.case.key("ready");
    eventually("it is taken", || {
        shell.case.cmd::<(i64, redis::Value, redis::Value, redis::Value)>(&["XPENDING", &ready, "workers"]).0 == 1
    });
    worker.signal("KILL");
    let second = Work::start(&shell, &["--exec", "cat > got"]);
    eventually("another gets it", || std::fs::read_to_string(shell.home().join("got")).is_ok_and(|job| job == "x"));
    eventually("and finishes it", || shell.case.stream("ready").is_empty());
    // The server is this test's own, and so is every connection to it.
    let killed: i64 = shell.case.cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(killed >= 2, "both connections of the worker: {killed}");
    shell.case.lpush("b", &["y"]);
    eventually("it connects again", || std::fs::read_to_string(shell.home().join("got")).is_ok_and(|job| job == "y"));
    drop(second);
}

#[test]
fn work_print_writes_jobs_of_one_route_in_order() {
    let toml = "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'm*'\nroute = 'mail'\n";
    let mut shell = Shell::new(toml);
    let _daemon = Daemon::start(shell.home());
    let mut worker = Work::start(&shell, &["--print", "--route", "mail"]);
    shell.case.lpush("other", &["x"]);
    shell.case.lpush("m1", &["1", "2", "3"]);
    let lines: Vec<_> = BufReader::new(worker.child.stdout.take().expect("piped"))
        .lines()
        .take(3)
        .map(|l| l.expect("a line"))
        .collect();
    assert_eq!(lines, ["1", "2", "3"]);
    assert_eq!(shell.case.jobs("ready"), ["x"]);
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < STOPS_WITHIN, "{took:?}");
}

#[test]
fn work_refuses_what_it_cannot_run() {
    let shell = Shell::new("");
    for args in [
        &["work"][..],
        &["work", "--print", "--http", "http://x"],
        &["work", "--print", "--concurrency", "0"],
        &["work", "--print", "--route", "a:b"],
        &["work", "--http", "nonsense"],
    ] {
        assert_eq!(shell.run(args).0, 2, "{args:?}");
    }
    let (code, _, err) = shell.run(&["work", "--exec", "no-such-program"]);
    assert_eq!(code, 1);
    assert!(err.contains("no-such-program"), "{err}");
}

#[test]
fn an_acknowledgement_that_redis_refuses_is_logged_as_that() {
    let mut shell = Shell::new("");
    let daemon = Daemon::start(shell.home());
    let worker = Work::start(&shell, &["--exec", "cat > got; until [ -e go ]; do sleep 0.05; done"]);
    shell.case.lpush("b", &["x"]);
    let home = shell.home().to_owned();
    eventually("it runs", || std::fs::read_to_string(home.join("got")).is_ok_and(|job| job == "x"));
    drop(daemon);
    let ready = shell.case.key("ready");
    let _: i64 = shell.case.cmd(&["DEL", &ready]);
    let _: String = shell.case.cmd(&["SET", &ready, "no stream"]);
    std::fs::write(home.join("go"), "").expect("a file");
    eventually("it is logged", || worker.log().contains("redis refused the acknowledgement"));
    let line = worker.said("bucket=b", "redis refused the acknowledgement");
    assert!(line.contains("attempt=1") && line.contains("WRONGTYPE"), "{line}");
    assert!(!worker.log().contains("this worker's"), "{}", worker.log());
}

/// What `XPENDING` says of a group: how many entries are in hand, and more.
type Pending = (i64, redis::Value, redis::Value, redis::Value);

#[test]
fn a_job_whose_output_nobody_reads_is_given_back_on_a_stop() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let mut worker = Work::start(&shell, &["--print", "--concurrency", "2"]);
    let unread = worker.child.stdout.take().expect("a pipe"); // it takes 64 KiB
    let (big, ready) = ("x".repeat(200_000), shell.case.key("ready"));
    shell.case.lpush("b", &[&big, "small"]);
    eventually("both are in hand", || shell.case.cmd::<Pending>(&["XPENDING", &ready, "workers"]).0 == 2);
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < STOPS_WITHIN, "{took:?}");
    assert!(log.contains("gave back what was not finished"), "{log}");
    eventually("they are back", || {
        shell.case.stream("ready").iter().filter(|e| e.fields.contains_key("id")).count() == 2
    });
    assert!(shell.case.stream("ready").iter().all(|e| e.text("attempt") == "1"), "KEEP");
    assert_eq!(shell.case.cmd::<Pending>(&["XPENDING", &ready, "workers"]).0, 0);
    drop(unread);
}

#[test]
fn an_entry_of_a_stranger_with_a_lease_of_nothing_is_run_acknowledged_and_not_renewed_without_end() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, WORK);
    let daemon = Daemon::start(shell.home());
    let ready = shell.case.key("ready");
    // The one that is a short lease comes first, while the daemon takes nothing back yet.
    for lease in ["1", "0", "", "soon", "-1", "99999999999999999999"] {
        let worker = Work::start(&shell, &["--exec", "cat >> got; sleep 0.7"]);
        let _: String = shell.case.cmd(&["CONFIG", "RESETSTAT"]);
        let since = Instant::now();
        let words = ["XADD", &ready, "*", "bucket", "b", "job", lease, "attempt", "1", "lease_ms", lease];
        let _: String = shell.case.cmd(&words);
        eventually("it is acknowledged", || shell.case.stream("ready").is_empty());
        let stats: String = shell.case.cmd(&["INFO", "commandstats"]);
        let claims = stats.lines().find_map(|line| line.strip_prefix("cmdstat_xclaim:calls="));
        let claims: u64 = claims.map_or(0, |rest| rest.split(',').next().expect("a number").parse().expect("a number"));
        // Three times a second; on a machine that is busy the command takes longer than the 0.7 s that it sleeps.
        let took = since.elapsed();
        assert!(claims <= (3 * took.as_secs() + 4).max(8), "{lease:?}: renewed {claims} times in {took:?}");
        let (code, _, log) = worker.stop();
        assert!(code == Some(0) && !log.contains("WARN"), "{lease:?}: {log}");
    }
    assert!(!daemon.log().contains("took back"), "{}", daemon.log());
}

#[test]
fn a_run_that_is_ended_gets_term_and_what_it_says_then_does_not_count() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nattempts = 1\n");
    let _daemon = Daemon::start(shell.home());
    // As many programs do: it tidies up, and ends with 0. The shell of a pipe is gone at once, and the other end has its time.
    shell.file("slow.sh", "trap 'sleep 0.3; echo $1 >> tidied; exit 0' TERM\necho $1 >> runs\nsleep 60 & wait\n");
    let home = shell.home().to_owned();
    let seen = |name: &str| std::fs::read_to_string(home.join(name)).unwrap_or_default();
    let too_long = Work::start(&shell, &["--timeout", "1s", "--grace", "20s", "--exec", "sh", "slow.sh", "alone"]);
    shell.case.lpush("b", &["x"]);
    eventually("it has failed", || shell.case.stream("dead").len() == 1);
    let reason = shell.case.stream("dead")[0].text("reason");
    assert_eq!((seen("tidied").as_str(), reason.as_str()), ("alone\n", "ran longer than 1s"));
    assert_eq!(too_long.stop().0, Some(0));
    let stopped = Work::start(&shell, &["--grace", "20s", "--exec", "sh slow.sh piped | cat"]);
    shell.case.lpush("b", &["y"]);
    eventually("it runs", || seen("runs").ends_with("piped\n"));
    let (code, _, log) = stopped.stop();
    assert_eq!((code, seen("tidied").as_str()), (Some(0), "alone\npiped\n"), "{log}");
    assert!(log.contains("gave back what was not finished"), "{log}");
    eventually("it is back", || shell.case.stream("ready").iter().any(|e| e.fields.contains_key("id")));
    assert!(shell.case.stream("ready").iter().all(|e| e.text("attempt") == "1"), "KEEP");
}

#[test]
fn a_run_that_does_not_end_is_killed_when_its_grace_is_over() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nattempts = 1\n");
    let _daemon = Daemon::start(shell.home());
    let deaf = "trap '' TERM; echo $$ > pid; sleep 60; sleep 60";
    let worker = Work::start(&shell, &["--timeout", "300ms", "--grace", "400ms", "--exec", deaf]);
    let since = Instant::now();
    shell.case.lpush("b", &["x"]);
    eventually("it has failed", || shell.case.stream("dead").len() == 1);
    assert!(since.elapsed() >= Duration::from_millis(700), "{:?}", since.elapsed());
    let pid = std::fs::read_to_string(shell.home().join("pid")).expect("it ran");
    let stat = format!("/proc/{}/stat", pid.trim());
    eventually("it is gone", || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
    assert_eq!(shell.case.stream("dead")[0].text("reason"), "ran longer than 300ms");
    // The same for a stop, whose default grace leaves it within its five seconds.
    drop(worker);
    let worker = Work::start(&shell, &["--exec", "trap '' TERM; echo run > deaf; sleep 60; sleep 60"]);
    shell.case.lpush("b", &["y"]);
    eventually("it runs", || shell.home().join("deaf").exists());
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < STOPS_WITHIN && took >= Duration::from_secs(2), "{took:?}");
    eventually("it is back", || shell.case.stream("ready").iter().any(|e| e.fields.contains_key("id")));
}
