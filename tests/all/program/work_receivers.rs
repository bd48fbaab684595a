//! `dripd work --http` to receivers as people write them: a `FastAPI` model and `express.json()` take the job as it is, and the
//! reference libraries of Standard Webhooks find the signature genuine. Their packages come from registries and are kept.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::work::WORK;
use super::{Running, Shell, Work, said};
use crate::rig::{Daemon, eventually, free_port};

/// 24 bytes, as base64.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn a_fastapi_model_and_express_json_take_the_job_as_it_is_and_find_its_signature_genuine() {
    let work = concat!(env!("CARGO_TARGET_TMPDIR"), "/receivers");
    let output = Command::new("sh").args(["tests/receivers/setup.sh", work]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    for line in out.lines() {
        match line {
            "python" => check(Command::new(format!("{work}/venv/bin/python")).arg("tests/receivers/fastapi_app.py")),
            "node" => check(Command::new("node").arg(format!("{work}/express_app.mjs"))),
            skipped => writeln!(std::io::stderr(), "{skipped}").expect("standard error"), // past the harness' capture
        }
    }
}

fn check(receiver: &mut Command) {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let port = free_port();
    receiver.arg(port.to_string()).arg(SECRET).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut receiver = Running(Some(receiver.spawn().expect("it runs")));
    let mut told = BufReader::new(receiver.stdout.take().expect("piped")).lines();
    eventually("the receiver listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let (secret, url) = (shell.file("secret", SECRET), format!("http://127.0.0.1:{port}/hook"));
    let worker = Work::start(&shell, &["--http", &url, "--secret-file", &secret, "--header", "X-Team: mail"]);
    shell.case.lpush("b", &["{\"to\":\"zoë\",\"n\":7}"]);
    let line = told.next().unwrap_or_else(|| panic!("it took no job: {}", worker.log())).expect("text");
    let told: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(told["job"], serde_json::json!({"to": "zoë", "n": 7}));
    assert_eq!((&told["head"]["x-team"], &told["head"]["content-type"]), (&"mail".into(), &"application/json".into()));
    assert_eq!(told["head"]["webhook-id"], told["head"]["drip-id"]);
    eventually("it is done", || shell.case.stream("ready").is_empty());
    assert!(shell.case.stream("dead").is_empty(), "{}", worker.log());
}
