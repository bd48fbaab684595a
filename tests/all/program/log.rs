//! The log of `run` and `work`: how it is written.

use std::process::Command;

use super::{Shell, Work, said};
use crate::rig::{Case, Daemon, dripd, eventually};
use crate::shell::configure;

/// A line of the log begins with its time: 2026-01-02T03:04:05.
fn begins_with_a_time(line: &str) -> bool {
    let shape: String = line.chars().take(19).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00"
}

#[test]
fn a_record_is_one_line_and_a_value_with_spaces_is_quoted() {
    let case = Case::bare();
    let home = super::daemon::home(&case, "");
    let daemon = Daemon::start(home.path());
    configure(home.path(), &case, "[defaults]\nrate = 'fast'\ncapacity = -1\n");
    daemon.signal("HUP");
    eventually("it is refused", || daemon.log().contains("2 problems"));
    let log = daemon.log();
    let refusal = log.lines().find(|line| line.contains("2 problems")).expect("a line");
    assert!(refusal.contains("; defaults.rate: \"fast\"") && refusal.contains("; defaults.capacity: -1"), "{refusal}");
    assert!(log.lines().all(begins_with_a_time), "{log}");

    let nobody = format!("redis://127.0.0.1:{}", crate::rig::free_port());
    let home = tempfile::tempdir().expect("a directory");
    let waiting = Daemon::spawn_with(home.path(), &[("DRIPD_REDIS_URL", &nobody)]);
    eventually("it says that it waits", || waiting.log().contains("redis cannot be used"));
    assert!(waiting.log().contains(" why=\"cannot use redis at redis://127.0.0.1:"), "{}", waiting.log());
}

#[test]
fn as_json_every_record_is_an_object_the_failure_at_the_end_too() {
    let mut shell = Shell::new(super::work::WORK);
    let _daemon = Daemon::start(shell.home());
    let worker = Work::start(&shell, &["--log-format", "json", "--exec", "false"]);
    shell.case.lpush("b ü", &["job"]);
    eventually("it fails", || worker.log().contains("failed: it will be tried again"));
    let (code, _, log) = worker.stop();
    assert_eq!(code, Some(0));
    let records: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(records.iter().all(|record| record["timestamp"].is_string() && record["message"].is_string()), "{log}");
    let failed = records.iter().find(|record| record["message"] == "failed: it will be tried again").expect("a record");
    assert_eq!((&failed["level"], &failed["bucket"], &failed["attempt"]), (&"INFO".into(), &"b ü".into(), &1.into()));

    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("config.toml"), "[defaults]\nrate = 'fast'\ncapacity = -1\n").expect("written");
    for command in [&["run"][..], &["work", "--print"]] {
        let output = dripd().args(command).args(["--log-format", "json"]).current_dir(home.path()).output();
        let (code, out, err) = said(&output.expect("it runs"));
        assert_eq!((code, out.as_str(), err.lines().count()), (78, "", 1), "{err}");
        let record: serde_json::Value = serde_json::from_str(&err).expect("JSON");
        assert_eq!((&record["level"], &record["message"]), (&"ERROR".into(), &"failed".into()));
        assert!(record["why"].as_str().is_some_and(|why| why.contains("defaults.capacity: -1")), "{err}");
    }
    assert_eq!(said(&dripd().args(["run", "--log-format", "xml"]).output().expect("it runs")).0, 2);
}

#[test]
fn no_colour_where_nobody_wants_it() {
    let home = tempfile::tempdir().expect("a directory");
    // The log begins, and then there is no directory for the data.
    std::fs::write(home.path().join("config.toml"), "[redis]\ndata_dir = '/dev/null/x'\n").expect("written");
    let on_a_terminal = |environment: &[(&str, &str)]| {
        let command = format!("{} run", env!("CARGO_BIN_EXE_dripd"));
        let mut script = Command::new("script"); // of util-linux: it gives the command a terminal
        script.args(["-qec", &command, "/dev/null"]).current_dir(home.path());
        for name in ["NO_COLOR", "DRIPD_CONFIG", "DRIPD_REDIS_URL", "STATE_DIRECTORY", "JOURNAL_STREAM"] {
            script.env_remove(name);
        }
        let output = script.env("TERM", "xterm").envs(environment.iter().copied()).output().expect("script runs");
        let (code, out, err) = said(&output);
        assert!(code == 69 && out.contains("starting"), "{code} {out}{err}");
        out
    };
    assert!(on_a_terminal(&[]).contains('\u{1b}'), "a terminal gets colours");
    assert!(on_a_terminal(&[("NO_COLOR", "")]).contains('\u{1b}'), "empty is as good as not set");
    for plain in [&[("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
        assert!(!on_a_terminal(plain).contains('\u{1b}'), "{plain:?}");
    }
}
