//! The examples, as a newcomer runs them.

use std::io::Write as _;
use std::process::Command;

use super::said;
use crate::rig::{Daemon, Server};

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
