//! The HTTP server and a Redis that is away: it says what is known, repeats no push, and goes on when Redis is back.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::faults::way_that_loses_the_answer_to_a_push;
use super::http::{Door, OPS, TOKENS};
use super::{Running, Shell};
use crate::rig::{Case, Server, eventually, load_library, server_program, signal};

const CONFIG: &str = "[defaults]\nrate = '1/h'\n";

#[test]
fn a_push_whose_answer_is_lost_is_504_and_went_in_once() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, CONFIG);
    let (port, pushes) = way_that_loses_the_answer_to_a_push(&server);
    let home = Shell::on(&server, "");
    let toml = format!(
        "[redis]\nurl = 'redis://127.0.0.1:{port}'\nprefix = '{}'\n{CONFIG}[http]\nlisten = '127.0.0.1:0'\n",
        case.prefix
    );
    home.file("config.toml", &toml);
    let door = Door::of(home);
    let (error, detail) = door.push("b", b"once").problem(504);
    assert!(error == "unknown-outcome" && detail.contains("lost redis"), "{detail}");
    eventually("it went in", || case.stream("ready").len() == 1 || case.waiting("b") == ["once"]);
    assert_eq!(pushes.load(std::sync::atomic::Ordering::Relaxed), 1, "once");
    // The next one needs a new connection, and gets it.
    door.push("b", b"twice").problem(504);
    assert_eq!(pushes.load(std::sync::atomic::Ordering::Relaxed), 2);
    // The connection is cut before the push is passed on, and a job may be between the two reads.
    eventually("both went in", || case.stream("ready").len() + case.waiting("b").len() == 2);
}

#[test]
fn a_redis_that_does_not_answer_costs_a_504_and_the_push_is_there_once_when_it_does() {
    let server = Server::start(&[]);
    let mut door = Door::on(&server, &format!("{CONFIG}{TOKENS}"));
    let push = |door: &Door, job: &[u8]| door.ask("POST /v1/buckets/a/jobs", &[OPS], job);
    assert_eq!(push(&door, b"1").status, 202);
    eventually("it is out", || door.shell.case.stream("ready").len() == 1);
    let pid = server.pid();
    signal(pid, "STOP");
    let since = Instant::now();
    let lost = push(&door, b"2");
    let change = door.operate("POST /v1/buckets/a/pause", &Value::Null);
    let took = since.elapsed();
    signal(pid, "CONT");
    eventually("it answers", || door.get("/v1/status").status == 200);
    signal(pid, "STOP");
    let question = door.get("/v1/status");
    signal(pid, "CONT");
    // A question that was lost has done nothing.
    assert_eq!(question.problem(504).0, "no-answer");
    assert_eq!(lost.problem(504).0, "unknown-outcome");
    assert!(took >= Duration::from_secs(5), "{took:?}");
    // The change came upon a connection that could not be made: nothing was sent.
    assert_eq!(change.problem(503).0, "no-redis");
    assert_eq!(change.header("retry-after"), Some("1"));
    eventually("it goes on", || push(&door, b"3").status == 202);
    let waiting = door.shell.case.waiting("a");
    assert!(waiting.iter().filter(|job| *job == "2").count() <= 1 && waiting.contains(&"3".to_owned()), "{waiting:?}");
}

#[test]
fn the_door_outlives_redis_says_503_and_goes_on_when_it_is_back() {
    let server = Server::start(&[]);
    let door = Door::on(&server, &format!("{CONFIG}{TOKENS}"));
    let push = || door.ask("POST /v1/buckets/a/jobs", &[OPS], b"job");
    assert_eq!(push().status, 202);
    let port = server.port;
    drop(server);
    eventually("the door has seen it", || push().status == 503);
    for request in [
        "POST /v1/buckets/a/jobs",
        "GET /v1/status",
        "GET /v1/buckets/a",
        "POST /v1/buckets/a/purge",
        "POST /v1/dead/drop",
    ] {
        let words = if request.ends_with("drop") { json!({ "all": true }) } else { json!({}) };
        let answer = door.operate(request, &words);
        let (error, detail) = answer.problem(503);
        assert!(error == "no-redis" && detail.contains(&port.to_string()), "{request}: {detail}");
        assert_eq!(answer.header("retry-after"), Some("1"), "{request}");
    }
    // What needs no Redis is answered as ever.
    assert_eq!(door.get("/healthz").status, 200);
    eventually("it is not ready", || door.get("/readyz").status == 503);
    assert_eq!(door.get("/readyz").header("retry-after"), Some("1"));
    assert_eq!(door.get("/openapi.json").status, 200);
    door.ask("POST /v1/buckets/%ff/jobs", &[OPS], b"").problem(400);

    let home = tempfile::tempdir().expect("a directory");
    let mut redis = Command::new(server_program());
    redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]).arg("--dir").arg(home.path());
    let _redis = Running(Some(redis.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it runs")));
    eventually("it is ready", || door.get("/readyz").status == 200);
    eventually("it takes pushes", || push().status == 202);
}

#[test]
fn a_redis_that_lost_its_functions_gets_them_again_and_the_push_goes_in() {
    let server = Server::start(&[]);
    let mut door = Door::on(&server, &format!("{CONFIG}{TOKENS}"));
    let _: String = door.shell.case.cmd(&["FUNCTION", "FLUSH"]);
    assert_eq!(door.ask("POST /v1/buckets/a/jobs", &[OPS], b"job").status, 202);
    load_library(&mut door.shell.case.redis);
    // One without memory for writes says so, and that it may pass.
    let _: String = door.shell.case.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    let answer = door.ask("POST /v1/buckets/a/jobs", &[OPS], b"job");
    let (error, detail) = answer.problem(503);
    assert!(error == "refused" && detail.contains("maxmemory"), "{detail}");
    assert_eq!(answer.header("retry-after"), Some("1"));
    let _: String = door.shell.case.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
}
