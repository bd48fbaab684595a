//! The worker loop in Python is the same wherever it is shown, and it works.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::pages;
use crate::rig::{Daemon, Server, eventually};

/// The loop as a page shows it: its first block in Python.
fn shown_in(path: &str) -> String {
    let pages = pages();
    let page = pages.iter().find(|page| page.path == Path::new(path)).expect("a page");
    let found = page.blocks.iter().find(|(info, _)| info == "python");
    found.unwrap_or_else(|| panic!("{path} shows no loop in Python")).1.clone()
}

/// A Python with the stock client, which is kept between runs: it comes from a package registry. `None` without Python.
fn python() -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loop");
    let python = venv.join("bin/python");
    let runs = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    if !runs(Command::new(&python).args(["-c", "import redis"])) {
        Command::new("python3").arg("--version").output().ok()?;
        assert!(runs(Command::new("python3").args(["-m", "venv"]).arg(&venv)), "no virtual environment");
        assert!(runs(Command::new(&python).args(["-m", "pip", "install", "-q", "redis"])), "pip install redis");
    }
    Some(python)
}

/// A worker, which ends with the value: the loop has no end of its own.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_readme_and_the_page_on_workers_show_the_same_loop_in_python() {
    assert_eq!(shown_in("README.md"), shown_in("docs/workers.md"));
}

#[test]
fn the_loop_in_python_takes_jobs_finishes_them_and_says_which_failed() {
    let Some(python) = python() else {
        writeln!(std::io::stderr(), "SKIPPED: the loop in Python: no python3 on the PATH").expect("standard error");
        return;
    };
    let server = Server::start(&[]);
    let home = server.home("[defaults]\nattempts = 1\n");
    let _daemon = Daemon::start(home.path());
    let (text, port) = (shown_in("README.md"), server.port.to_string());
    assert!(text.contains("7379"), "the loop names the port of the built-in Redis:\n{text}");
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
