//! The worker loop in Python that the README shows works as it stands there.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};

use crate::clients::python_with_redis;
use crate::rig::{Daemon, Server, eventually};

/// The loop as the README shows it.
fn shown() -> String {
    let page = std::fs::read_to_string("README.md").expect("the README");
    page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a loop in Python").to_owned()
}

/// A worker, which ends with the value: the loop has no end of its own.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn the_loop_in_python_takes_jobs_finishes_them_and_says_which_failed() {
    let python = python_with_redis();
    let server = Server::start(&[]);
    let home = server.home("[defaults]\nattempts = 1\n");
    let _daemon = Daemon::start(home.path());
    let (text, port) = (shown(), server.port.to_string());
    assert!(text.contains("7379"), "the loop names the port of the built-in Redis:\n{text}");
    let needs = "protocol=2, decode_responses=False)  # ";
    assert!(
        text.contains(needs),
        "a client that is made otherwise gives replies of another form, with the job in them:\n{text}"
    );
    let (out, err) = (home.path().join("out"), home.path().join("err"));
    let _worker = Worker(
        Command::new(python)
            .args(["-u", "-c", &text.replace("7379", &port)])
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&err).expect("a file"))
            .spawn()
            .expect("Python runs"),
    );
    let mut redis = server.connect();
    let jobs: [&[u8]; 3] = [b"hello", b"\xff", b"world"];
    let _: i64 = redis::cmd("LPUSH").arg("drip:queue:acme").arg(&jobs).query(&mut redis).expect("pushed");
    let printed = |path: &Path| std::fs::read_to_string(path).expect("what it printed");
    eventually("the worker prints what is text", || {
        let err = printed(&err);
        assert!(err.is_empty(), "{err}");
        printed(&out) == "acme hello\nacme world\n"
    });
    // The job that is no text raised: it failed, and one try was all that it had.
    let dead: Vec<(String, Vec<Vec<u8>>)> =
        redis::cmd("XRANGE").arg("drip:dead").arg("-").arg("+").query(&mut redis).expect("the dead");
    let said: Vec<_> = dead.iter().flat_map(|(_, fields)| fields).map(|text| String::from_utf8_lossy(text)).collect();
    assert!(dead.len() == 1 && said.iter().any(|text| text.contains("UnicodeDecodeError")), "{said:?}");
    eventually("every job is finished", || {
        let pending: (i64, redis::Value, redis::Value, redis::Value) =
            redis::cmd("XPENDING").arg("drip:ready").arg("workers").query(&mut redis).expect("what is pending");
        pending.0 == 0
    });
}

fn the_programs_in_python_read_bytes_whatever_the_address_says() {
    let python = python_with_redis();
    let server = Server::start(&[]);
    let home = server.home("");
    let _daemon = Daemon::start(home.path());
    let mut redis = server.connect();
    let program = |path: &str, options: &str| {
        let mut command = Command::new(&python);
        command.arg(path).env("REDIS_URL", format!("{}/0{options}", server.url())).env("MAX_JOBS", "1");
        command
    };
    let options = ["", "?protocol=3", "?decode_responses=true", "?protocol=3&decode_responses=true"];
    for options in options {
        let _: i64 = redis::cmd("LPUSH").arg("drip:queue:acme").arg(b"\xff").query(&mut redis).expect("pushed");
        let worker = program("examples/worker.py", options).output().expect("it runs");
        assert_eq!(worker.stdout, b"acme \xff\n", "{options}: {}", String::from_utf8_lossy(&worker.stderr));
    }
    let prompt = home.path().join("prompt");
    std::fs::write(&prompt, "What is a leaky bucket?\n").expect("written");
    for options in options {
        let mut submit = program("examples/llm/submit.py", options);
        let submitted = submit.args(["small", "support"]).stdin(File::open(&prompt).expect("a prompt")).output();
        let submitted = submitted.expect("it runs");
        assert_eq!(
            submitted.stdout,
            b"1 queued at small\n",
            "{options}: {}",
            String::from_utf8_lossy(&submitted.stderr)
        );
    }
}

tests! {
    the_loop_in_python_takes_jobs_finishes_them_and_says_which_failed,
    the_programs_in_python_read_bytes_whatever_the_address_says,
}
