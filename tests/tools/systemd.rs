//! The service unit under a real systemd, booted as PID 1 of a throw-away root; see `tests/systemd`.

use std::process::Command;

use crate::authority::{Authority, Holds};
use crate::needs;

fn the_unit_keeps_its_word_under_a_real_systemd() {
    let files = tempfile::tempdir().expect("a directory");
    std::fs::copy(env!("CARGO_BIN_EXE_dripd"), files.path().join("dripd")).expect("the binary");
    for name in ["dripd.service", "dripd.socket", "no-network.conf"] {
        std::fs::copy(format!("systemd/{name}"), files.path().join(name)).expect(name);
    }
    let worker = "dripd-worker@.service";
    std::fs::copy(format!("examples/{worker}"), files.path().join(worker)).expect(worker);
    let authority = Authority::new("the CA of the outside Redis");
    authority.write(files.path(), "ca.pem");
    authority.issue(files.path(), "server", &["localhost"], Holds::Still);
    authority.issue(files.path(), "client", &["dripd"], Holds::Still);
    let output = Command::new("bash")
        .args(["tests/systemd/boot.sh", "tests/systemd/cases.sh"])
        .arg(files.path())
        .output()
        .expect("bash runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => assert!(text.lines().filter(|line| line.starts_with("ok ")).count() > 20, "{text}"),
        Some(77) => needs::skipped(&text, "run it as root, outside of a container"),
        code => panic!("{code:?}\n{text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

tests! {
    the_unit_keeps_its_word_under_a_real_systemd,
}
