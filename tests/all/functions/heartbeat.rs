//! Daemons are known: their beats, how long one counts, and what `status` says of them.

use std::process::Command;

use redis::{FromRedisValue as _, Value};

use crate::rig::{Case, Daemon, S, Server, T0, dripd, eventually};

/// The daemons that are alive at a time: what each said, and how long ago in milliseconds.
fn living(case: &mut Case, now: u64) -> Vec<(String, i64)> {
    let reply: Vec<Value> = case.fcall("drip__daemons", &["daemons"], &[now.to_string()]);
    let mut found: Vec<(String, i64)> = reply
        .chunks_exact(3)
        .map(|beat| {
            (
                String::from_redis_value_ref(&beat[1]).expect("a text"),
                i64::from_redis_value_ref(&beat[2]).expect("a number"),
            )
        })
        .collect();
    found.sort();
    found
}

/// A beat. Replies how many of those that are alive were started before.
fn beat(case: &mut Case, now: u64, id: &str, json: &str) -> usize {
    let args = [now.to_string(), id.to_owned(), json.to_owned()];
    let (alive, before, _): (usize, usize, u64) = case.fcall("drip__beat", &["daemons"], &args);
    assert_eq!(alive, living(case, now).len());
    before
}

fn one(json: &str, age_ms: i64) -> (String, i64) {
    (json.to_owned(), age_ms)
}

#[test]
fn a_beat_counts_for_15_s_and_one_that_is_over_is_dropped_by_the_next() {
    let mut case = Case::bare();
    assert_eq!(living(&mut case, T0), []);
    beat(&mut case, T0, "a", "first");
    beat(&mut case, T0 + 4 * S, "b", "second");
    assert_eq!(living(&mut case, T0 + 5 * S), [one("first", 5_000), one("second", 1_000)]);
    beat(&mut case, T0 + 5 * S, "a", "again");
    assert_eq!(living(&mut case, T0 + 15 * S), [one("again", 10_000), one("second", 11_000)]);
    assert_eq!(living(&mut case, T0 + 19 * S), [one("again", 14_000)], "the second is over");
    let key = case.key("daemons");
    assert_eq!(case.cmd::<i64>(&["HLEN", &key]), 2);
    beat(&mut case, T0 + 19 * S, "a", "again");
    assert_eq!(case.cmd::<i64>(&["HLEN", &key]), 1, "and dropped");
    let left: i64 = case.cmd(&["PTTL", &key]);
    assert!((1..=15_000).contains(&left), "the last one leaves nothing behind: {left}");
}

#[test]
fn a_beat_tells_how_many_daemons_are_older() {
    let mut case = Case::bare();
    let since = |s: u64| format!(r#"{{"since":{s}}}"#);
    assert_eq!(beat(&mut case, T0, "c", &since(20)), 0);
    assert_eq!(beat(&mut case, T0, "b", &since(30)), 1);
    assert_eq!(beat(&mut case, T0, "a", &since(10)), 0);
    assert_eq!(beat(&mut case, T0, "c", &since(20)), 1);
    assert_eq!(beat(&mut case, T0, "d", &since(20)), 2, "of two that were started at once one goes first");
    assert_eq!(beat(&mut case, T0, "says nothing", "x"), 4);
    assert_eq!(beat(&mut case, T0, "b", &since(30)), 3);
    assert_eq!(beat(&mut case, T0 + 15 * S, "b", &since(30)), 0, "the others are over");
}

#[test]
fn an_empty_beat_takes_a_daemon_off_and_a_clock_that_went_back_keeps_no_dead_one() {
    let mut case = Case::bare();
    beat(&mut case, T0, "a", "x");
    beat(&mut case, T0, "b", "y");
    beat(&mut case, T0 + 1, "a", "");
    assert_eq!(living(&mut case, T0 + 1), [one("y", 0)]);
    assert_eq!(living(&mut case, T0 - 3_600 * S), [], "it would count for an hour more");
    beat(&mut case, T0 - 3_600 * S, "a", "x");
    let key = case.key("daemons");
    assert_eq!(case.cmd::<Vec<String>>(&["HKEYS", &key]), ["a"]);
    assert_eq!(case.refusal("drip__beat", &["daemons"], &["", "", "x"]), "BADARG");
    assert_eq!(case.refusal("drip__beat", &["other"], &["", "a", "x"]), "BADARG");
}

#[test]
fn status_lists_the_daemons_and_says_loudly_when_there_is_none() {
    let server = Server::start(&[]);
    let home = server.home("");
    let status = |args: &[&str]| {
        let output = dripd().arg("status").args(args).current_dir(home.path()).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let json = || -> serde_json::Value { serde_json::from_str(&status(&["--json"])).expect("JSON") };
    let mut first = Daemon::start(home.path());
    eventually("it beats", || json()["daemons"].as_array().is_some_and(|daemons| daemons.len() == 1));
    let found = json();
    let daemon = &found["daemons"][0];
    assert_eq!(daemon["pid"], first.child.id());
    assert_eq!(daemon["version"], env!("CARGO_PKG_VERSION"));
    assert!(daemon["has_record"].is_boolean() && daemon["age_ms"].is_u64() && daemon["since"].is_u64(), "{daemon}");
    assert!(!daemon["host"].as_str().expect("a text").is_empty());
    let mut second = Daemon::start(home.path());
    eventually("both are listed", || status(&[]).matches("\ndaemon ").count() == 2);
    assert!(!status(&[]).contains("NONE RUNS"));
    assert_eq!(first.stop().0, Some(0));
    assert_eq!(json()["daemons"].as_array().map(Vec::len), Some(1), "one that stops says so");
    assert_eq!(second.stop().0, Some(0));
    assert!(status(&[]).contains("NONE RUNS"), "{}", status(&[]));
    assert_eq!(json()["daemons"], serde_json::json!([]));
    let name = Command::new("uname").arg("-n").output().expect("uname").stdout;
    assert_eq!(found["daemons"][0]["host"].as_str(), std::str::from_utf8(&name).ok().map(str::trim));
}
