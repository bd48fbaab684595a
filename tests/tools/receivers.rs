//! `dripd work --http` to receivers as people write them: a `FastAPI` model and `express.json()` take the job as it is, and the
//! reference libraries of Standard Webhooks find the signature genuine. Their packages come from registries and are kept.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::needs;
use crate::rig::{Daemon, eventually, free_port};
use crate::shell::{Running, Shell, Work, said};

const POLICIES: &str = "[defaults]\nrate = '1000/s'\nbackoff = { initial = '50ms', max = '50ms' }\nattempts = 3\n";

/// 24 bytes, as base64.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The folder with what a receiver needs.
fn receivers(language: &str) -> &'static str {
    const WORK: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/receivers");
    let output = Command::new("sh").args(["tests/receivers/setup.sh", WORK, language]).output().expect("sh runs");
    let (code, out, err) = said(&output);
    assert_eq!(code, 0, "{out}{err}");
    if out.trim() != language {
        needs::skipped(&out, "apt-get install python3-venv nodejs npm, with a package registry in reach");
    }
    WORK
}

fn a_fastapi_model_takes_the_job_as_it_is_and_finds_its_signature_genuine() {
    let work = receivers("python");
    check(Command::new(format!("{work}/venv/bin/python")).arg("tests/receivers/fastapi_app.py"));
}

fn express_json_takes_the_job_as_it_is_and_finds_its_signature_genuine() {
    let work = receivers("node");
    check(Command::new("node").arg(format!("{work}/express_app.mjs")));
}

fn check(receiver: &mut Command) {
    let mut shell = Shell::new(POLICIES);
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

tests! {
    a_fastapi_model_takes_the_job_as_it_is_and_finds_its_signature_genuine,
    express_json_takes_the_job_as_it_is_and_finds_its_signature_genuine,
}
