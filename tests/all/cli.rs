//! The commands: push, work, status, check, functions, and the examples.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::{configure, home};
use crate::rig::{Case, Daemon, Server, dripd, eventually};

/// A case with its own directory, in which commands find its configuration.
pub struct Shell {
    pub case: Case,
    home: tempfile::TempDir,
}

impl Shell {
    pub fn new(toml: &str) -> Self {
        let case = Case::with(toml);
        let home = home(&case, toml);
        Self { case, home }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = dripd();
        command.args(args).current_dir(self.home.path()).env("RUST_LOG", "info");
        command
    }

    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        said(&self.command(args).stdin(Stdio::null()).output().expect("it runs"))
    }

    fn pipe(&self, args: &[&str], input: &[u8]) -> (i32, String, String) {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("it ends");
        feeder.join().expect("fed");
        said(&output)
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it runs")
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    }
}

pub fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

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
fn push_takes_a_job_a_line_and_the_bucket_from_a_field() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let file = shell.file(
        "jobs.ndjson",
        "{\"tenant\":\"a\",\"n\":1}\n\n{\"tenant\":7}\n{\"tenant\":1.5}\nno json\n{\"other\":1}\n{\"tenant\":\"x{y\"}\n{\"tenant\":\"a\",\"n\":2}",
    );
    let (code, _, err) = shell.run(&["push", "--file", &file, "--bucket-from", ".tenant"]);
    assert_eq!(code, 1);
    for line in [
        "line 4 .tenant is neither",
        "line 5 is no JSON",
        "line 6 has no .tenant",
        "line 7",
        "3 accepted, 0 rejected, 4 skipped",
    ] {
        assert!(err.contains(line), "{line} is not in\n{err}");
    }
    assert_eq!(shell.case.waiting("a"), ["{\"tenant\":\"a\",\"n\":1}", "{\"tenant\":\"a\",\"n\":2}"]);
    assert_eq!(shell.case.waiting("7").len(), 1);
    let nested = shell.file("nested.ndjson", "{\"to\":{\"region\":\"eu\"}}\n");
    assert_eq!(shell.run(&["push", "--file", &nested, "--bucket-from", ".to.region"]).0, 0);
    assert_eq!(shell.case.waiting("eu").len(), 1);
}

#[test]
fn push_counts_what_was_rejected_and_names_what_is_too_large() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 3\n[limits]\nmax_job_bytes = 10\n");
    let (code, _, err) = shell.pipe(&["push", "b", "--file", "-"], b"1\r\n\xff\x00\n3\n4\n5\n");
    assert_eq!((code, err.as_str()), (75, "3 accepted, 2 rejected, 0 skipped\n"));
    let queue = shell.case.queue("b");
    let jobs: Vec<Vec<u8>> = shell.case.cmd(&["LRANGE", &queue, "0", "-1"]);
    assert_eq!(jobs, [b"3".to_vec(), b"\xff\x00".to_vec(), b"1\r".to_vec()]);
    let (code, _, err) = shell.pipe(&["push", "c", "--file", "-"], b"small\nmuch too large\nfits\n");
    assert_eq!(code, 1);
    assert!(
        err.contains("line 2 is too large, 14 bytes") && err.contains("2 accepted, 0 rejected, 1 skipped"),
        "{err}"
    );
    assert_eq!(shell.case.waiting("c"), ["small", "fits"]);
}

#[test]
fn push_wait_streams_a_million_lines_through_a_small_bucket_without_growing() {
    let shell = Shell::new(
        "[defaults]\nrate = '1000000/s'\ncapacity = 500\ncatch_up = '1s'\n[limits]\nbatch = 1000\nmax_ready = 10000000\n",
    );
    let _daemon = Daemon::start(shell.home.path());
    let mut child = shell.spawn(&["push", "b", "--file", "-", "--wait"]);
    let (mut stdin, pid) = (child.stdin.take().expect("piped"), child.id());
    let feeder = std::thread::spawn(move || {
        let mut text = String::with_capacity(8_000_000);
        (0..1_000_000).for_each(|n| text += &format!("{n}\n"));
        stdin.write_all(text.as_bytes())
    });
    let (mut case, mut deepest, mut peak) = (shell.case, 0, 0);
    let queue = case.queue("b");
    while child.try_wait().expect("a status").is_none() {
        deepest = deepest.max(case.cmd::<i64>(&["LLEN", &queue]));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        peak = peak.max(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    feeder.join().expect("fed").expect("all of it");
    assert_eq!(child.wait_with_output().expect("ended").stderr, b"1000000 accepted, 0 rejected, 0 skipped\n");
    let ready = case.key("ready");
    eventually("all have left", || case.cmd::<u64>(&["XLEN", &ready]) == 1_000_000);
    println!("deepest {deepest}, peak {peak} KiB");
    assert!(deepest <= 500 && peak < 60_000, "deepest {deepest}, peak {peak} KiB");
    let last: Vec<(String, Vec<(String, String)>)> = case.cmd(&["XREVRANGE", &ready, "+", "-", "COUNT", "1"]);
    assert!(last[0].1.contains(&("job".to_owned(), "999999".to_owned())));
    let _: i64 = case.cmd(&["DEL", &ready]);
}

#[test]
fn push_wait_does_not_send_again_and_again_what_cannot_go_in() {
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\ncapacity = 10\n");
    let _daemon = Daemon::start(shell.home.path());
    let file = shell.file("jobs", &format!("{}\n", "x".repeat(1_000)).repeat(200));
    let key = shell.case.key("ready");
    let mut child = shell.spawn(&["push", "b", "--file", &file, "--wait"]);
    let pid = child.id();
    let mut written = 0;
    while child.try_wait().expect("a status").is_none() {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap_or("0");
        written = written.max(line.parse::<u64>().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    eventually("all have left", || shell.case.cmd::<u64>(&["XLEN", &key]) == 200);
    println!("{written} bytes were written for 200,000 of jobs");
    assert!(written < 1_000_000, "{written} bytes for 200,000 of jobs");
}

#[test]
fn nobody_who_reads_is_no_reason_to_fail_or_to_break() {
    let shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let script = format!(
        "cd {:?} && {:?} push b x | true; echo ${{PIPESTATUS[0]}}; {:?} push b x > /dev/full; echo $?",
        shell.home.path(),
        env!("CARGO_BIN_EXE_dripd"),
        env!("CARGO_BIN_EXE_dripd")
    );
    let output = Command::new("bash").args(["-c", &script]).env_remove("DRIPD_REDIS_URL").output().expect("bash runs");
    assert_eq!(said(&output), (0, "0\n0\n".to_owned(), String::new()));
}

#[test]
fn push_wait_lets_a_trickle_through_line_by_line() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let mut child = shell.spawn(&["push", "b", "--file", "-", "--wait"]);
    let mut stdin = child.stdin.take().expect("piped");
    for n in 1..=3 {
        writeln!(stdin, "{n}").expect("written");
        eventually("it is there, though the pipe is open", || shell.case.waiting("b").len() == n);
    }
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
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

/// A worker that runs until told to stop.
struct Work(Child);

impl Work {
    fn start(shell: &Shell, args: &[&str]) -> Self {
        let args: Vec<&str> = ["work"].into_iter().chain(args.iter().copied()).collect();
        let mut command = shell.command(&args);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs"))
    }

    fn signal(&self, name: &str) {
        let done = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status();
        assert!(done.expect("sh runs").success());
    }

    fn stop(mut self) -> (Option<i32>, Duration, String) {
        let since = Instant::now();
        self.signal("TERM");
        let code = self.0.wait().expect("it ends").code();
        let mut log = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut log).expect("a log");
        (code, since.elapsed(), log)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const WORK: &str = "[defaults]\nrate = '1000/s'\nbackoff = { initial = '50ms', max = '50ms' }\nattempts = 3\n";

#[test]
fn work_exec_runs_a_command_for_each_job_and_obeys_its_exit_code() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home.path());
    let script = shell.file(
        "run.sh",
        "job=$(cat)\necho \"$DRIPD_BUCKET $DRIPD_ATTEMPT $DRIPD_ID $job\" >> seen\ncase $job in dead) exit 65;; once) [ \"$DRIPD_ATTEMPT\" = 2 ];; never) exit 3;; esac\n",
    );
    let worker = Work::start(&shell, &["--concurrency", "2", "--exec", "sh", &script]);
    shell.case.lpush("b", &["fine", "dead", "once", "never"]);
    eventually("two are dead", || shell.case.stream("dead").len() == 2);
    eventually("and nothing is left", || shell.case.stream("ready").is_empty());
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let seen = std::fs::read_to_string(shell.home.path().join("seen")).expect("seen");
    let mut runs: Vec<(String, String)> = Vec::new();
    let mut ids = std::collections::HashMap::new();
    for line in seen.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        assert_eq!(fields[0], "b");
        runs.push((fields[3].to_owned(), fields[1].to_owned()));
        assert_eq!(*ids.entry(fields[3].to_owned()).or_insert(fields[2].to_owned()), fields[2], "the id is stable");
    }
    runs.sort();
    let expect =
        [("dead", "1"), ("fine", "1"), ("never", "1"), ("never", "2"), ("never", "3"), ("once", "1"), ("once", "2")];
    assert_eq!(runs, expect.map(|(job, attempt)| (job.to_owned(), attempt.to_owned())));
    let reasons: Vec<_> = shell.case.stream("dead").iter().map(|e| (e.text("job"), e.text("reason"))).collect();
    assert_eq!(reasons, [("dead".into(), "exit code 65".into()), ("never".into(), "exit code 3".into())]);
    let ready = shell.case.key("ready");
    let consumers: Vec<redis::Value> = shell.case.cmd(&["XINFO", "CONSUMERS", &ready, "workers"]);
    assert!(consumers.is_empty(), "a worker that left leaves no name behind");
}

#[test]
fn work_renews_leases_and_gives_back_what_it_cannot_finish() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nlease = '1s'\n");
    let _daemon = Daemon::start(shell.home.path());
    let started = Instant::now();
    let worker = Work::start(&shell, &["--concurrency", "5", "--exec", "sleep 60 & echo $! >> pids; wait"]);
    shell.case.lpush("b", &["1", "2"]);
    let pids = shell.home.path().join("pids");
    eventually("both run", || std::fs::read_to_string(&pids).is_ok_and(|text| text.lines().count() == 2));
    // Past the grace of the daemon, and past many leases.
    std::thread::sleep(Duration::from_secs(14).saturating_sub(started.elapsed()));
    assert_eq!(
        shell.case.stream("ready").iter().filter(|e| e.text("attempt") == "1" && !e.fields.contains_key("id")).count(),
        2
    );
    let (code, took, log) = worker.stop();
    assert_eq!(code, Some(0), "{log}");
    assert!(took < Duration::from_secs(5), "{took:?}");
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
    let mut shell =
        Shell::new("[defaults]\nrate = '1000/s'\nlease = '1s'\nbackoff = { initial = '1ms', max = '1ms' }\n");
    let _daemon = Daemon::start(shell.home.path());
    let worker = Work::start(&shell, &["--exec", "sleep 100"]);
    shell.case.lpush("b", &["x"]);
    let ready = shell.case.key("ready");
    eventually("it is taken", || {
        shell.case.cmd::<(i64, redis::Value, redis::Value, redis::Value)>(&["XPENDING", &ready, "workers"]).0 == 1
    });
    worker.signal("KILL");
    let second = Work::start(&shell, &["--exec", "cat > got"]);
    eventually("another gets it", || {
        std::fs::read_to_string(shell.home.path().join("got")).is_ok_and(|job| job == "x")
    });
    eventually("and finishes it", || shell.case.stream("ready").is_empty());
    let list: String = shell.case.cmd(&["CLIENT", "LIST"]);
    for line in list.lines().filter(|line| line.contains("cmd=xreadgroup")) {
        let id = line.split(' ').next().and_then(|id| id.strip_prefix("id=")).expect("an id");
        let _: i64 = shell.case.cmd(&["CLIENT", "KILL", "ID", id]);
    }
    shell.case.lpush("b", &["y"]);
    eventually("it connects again", || {
        std::fs::read_to_string(shell.home.path().join("got")).is_ok_and(|job| job == "y")
    });
    drop(second);
}

#[test]
fn work_http_posts_jobs_and_obeys_the_status() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home.path());
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    let (sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut limited = 0;
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.expect("a connection"));
            let (mut head, mut length) = (Vec::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(n) = line.strip_prefix("content-length: ") {
                    length = n.parse().expect("a length");
                }
                head.push(line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let body = String::from_utf8(body).expect("text");
            let status = match body.as_str() {
                "limited" if limited == 0 => {
                    limited += 1;
                    "429 Too Many\r\nretry-after: 1"
                }
                "gone" => "410 Gone",
                "broken" => "500 Broken",
                _ => "204 Fine",
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            reader.into_inner().write_all(answer.as_bytes()).expect("answered");
            if sender.send((body, head, Instant::now())).is_err() {
                return;
            }
        }
    });
    let worker = Work::start(&shell, &["--http", &url]);
    shell.case.lpush("bü", &["limited", "gone", "broken", "fine"]);
    let mut posts = Vec::new();
    while posts.len() < 7 {
        posts.push(seen.recv_timeout(Duration::from_secs(10)).expect("a post"));
    }
    eventually("nothing is left", || shell.case.stream("ready").is_empty());
    assert_eq!(worker.stop().0, Some(0));
    let of = |job: &str| posts.iter().filter(|(body, _, _)| body == job).collect::<Vec<_>>();
    assert_eq!((of("fine").len(), of("gone").len(), of("broken").len(), of("limited").len()), (1, 1, 3, 2));
    let limited = of("limited");
    assert!(limited[1].2 - limited[0].2 >= Duration::from_secs(1), "Retry-After is honoured");
    assert!(limited[1].1.contains(&"dripd-attempt: 1".to_owned()), "and the attempt not counted: {:?}", limited[1].1);
    assert!(limited[0].1.iter().any(|line| line.starts_with("dripd-id: ")));
    let mut dead: Vec<_> = shell.case.stream("dead").iter().map(|e| (e.text("job"), e.text("reason"))).collect();
    dead.sort();
    assert_eq!(dead, [("broken".into(), "HTTP 500".into()), ("gone".into(), "HTTP 410".into())]);
}

#[test]
fn work_print_writes_jobs_of_one_route_in_order() {
    let toml = "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'm*'\nroute = 'mail'\n";
    let mut shell = Shell::new(toml);
    let _daemon = Daemon::start(shell.home.path());
    let mut worker = Work::start(&shell, &["--print", "--route", "mail"]);
    shell.case.lpush("other", &["x"]);
    shell.case.lpush("m1", &["1", "2", "3"]);
    let lines: Vec<_> =
        BufReader::new(worker.0.stdout.take().expect("piped")).lines().take(3).map(|l| l.expect("a line")).collect();
    assert_eq!(lines, ["1", "2", "3"]);
    assert_eq!(shell.case.jobs("ready"), ["x"]);
    let (code, took, _) = worker.stop();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5));
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
fn status_shows_everything_and_one_bucket_to_people_and_machines() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 5\n");
    let (_, out, _) = shell.run(&["status"]);
    assert!(out.contains("policies    in force as in"), "{out}");
    let _daemon = Daemon::start(shell.home.path());
    shell.case.lpush("b", &["1", "2", "3", "4", "5", "6", "7"]);
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("it is counted", || shell.run(&["status"]).1.contains("1 dispatched"));
    let (code, out, err) = shell.run(&["status", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&status["scheduled"], &status["rejected"], &status["routes"][0]["undelivered"]),
        (&1.into(), &2.into(), &1.into())
    );
    assert!(status["lateness"]["p99_us"].is_u64());
    let (_, out, _) = shell.run(&["status", "b", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&status["depth"], &status["capacity"], &status["count"], &status["route"]),
        (&4.into(), &5.into(), &1.into(), &"default".into())
    );
    assert!(shell.run(&["status", "b"]).1.contains("depth       4 of 5"));
    configure(shell.home.path(), &shell.case, "[defaults]\ncapacity = 6\n");
    assert!(shell.run(&["status"]).1.contains("another one is in force"));
}

#[test]
fn check_says_what_a_configuration_means_or_every_problem_of_it() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\n[[bucket]]\nmatch = 'sms:*'\nrate = '1/10s'\n");
    let (code, out, _) = shell.run(&["check"]);
    assert_eq!(code, 0);
    assert!(out.contains("sms:*     rate 1/10s") && out.contains("(others)  rate 5/s"), "{out}");
    let bad = shell.file("bad.toml", "[defaults]\nrate = '5'\ncapacity = -1\n[redis]\ntls = true\n[htp]\n");
    let (code, out, err) = shell.run(&["check", &bad]);
    assert_eq!((code, out.as_str()), (78, ""));
    for part in [
        "4 problems",
        "defaults.rate: \"5\"",
        "defaults.capacity: -1",
        "redis.tls is not in this version",
        "did you mean http?",
    ] {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
    let broken = shell.file("broken.toml", "[defaults\n");
    assert_eq!(shell.run(&["check", &broken]).0, 78);
    assert_eq!(shell.run(&["--config", "not-there.toml", "check"]).0, 78);
    assert_eq!(shell.run(&["--config", &bad, "run"]).0, 78);
    assert_eq!(shell.run(&["--config", &bad, "push", "b", "x"]).0, 78);
}

#[test]
fn status_and_push_say_that_a_gate_is_closed() {
    let shell =
        Shell::new("[defaults]\nrate = '1/h'\nadmit = { limiter = 'fixed-window', limit = 1, period = '1h' }\n");
    assert_eq!(shell.run(&["push", "b", "one"]).0, 0);
    let (code, _, err) = shell.run(&["push", "b", "two"]);
    assert_eq!(code, 75);
    assert!(err.starts_with("dripd push: b is limited by its fixed-window, 1 of 1000: try again in 3"), "{err}");
    let (_, out, _) = shell.run(&["status", "b"]);
    assert!(out.contains("gate        fixed-window: 0 of 1 left, the next in 3"), "{out}");
    let (_, out, _) = shell.run(&["status", "b", "--json"]);
    assert!(out.contains("\"gates\":[{\"limiter\":\"fixed-window\",\"limit\":1,\"remaining\":0,"), "{out}");
    let (_, out, _) = shell.run(&["check"]);
    assert!(out.contains("admit fixed-window 1/h\nnote      admit holds for drip_push only"), "{out}");
}

#[test]
fn functions_prints_the_library_as_redis_loads_it() {
    let shell = Shell::new("");
    let (code, out, _) = shell.run(&["functions"]);
    assert_eq!((code, out.as_str()), (0, dripd::store::library::SOURCE));
    let server = Server::start(&[]);
    let mut redis = server.connect();
    redis::cmd("FUNCTION").arg("LOAD").arg(out).exec(&mut redis).expect("it loads");
    let reply: Vec<i64> =
        redis::cmd("FCALL").arg(&["drip_push", "1", "drip:queue:b", "x"]).query(&mut redis).expect("FCALL");
    assert_eq!(reply, [1, 1, 1_000, -1, 0]);
}

#[test]
fn the_examples_run_with_stock_clients() {
    let server = Server::start(&[]);
    let home = tempfile::tempdir().expect("a directory");
    let toml = format!(
        "[redis]\nurl = '{}'\n[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'small:*'\nrate = '1/h'\ncapacity = 3\n",
        server.url()
    );
    std::fs::write(home.path().join("config.toml"), toml).expect("written");
    let _daemon = Daemon::start(home.path());
    // The clients are kept between runs: they come from package registries.
    let work = concat!(env!("CARGO_TARGET_TMPDIR"), "/examples");
    let output = Command::new("sh").args(["tests/examples.sh", &server.url(), work]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    for line in out.lines().filter(|line| line.starts_with("SKIPPED")) {
        writeln!(std::io::stderr(), "{line}").expect("standard error"); // past the capture of the test harness
    }
}

#[test]
fn the_demo_keeps_its_promises_and_ends_by_itself() {
    let home = tempfile::tempdir().expect("a directory");
    let since = Instant::now();
    let output = dripd().arg("demo").current_dir(home.path()).output().expect("it runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    assert!(out.contains("webhook") && out.contains("nothing lost: kept"), "{out}");
    assert!(!out.contains('\u{1b}'), "no escapes where there is no terminal");
}
