//! `dripd limit`, from outside.

use std::process::Stdio;
use std::time::Instant;

use super::{Shell, said};
use crate::rig::{Case, Server, dripd};

#[test]
fn limit_answers_in_words_in_json_and_by_its_exit_code() {
    let shell = Shell::new("");
    let key = shell.case.key("hist:laoqian:reply");
    let limit = |args: &[&str]| shell.run(&[&["limit", "sliding-window", &key, "2/1h"], args].concat());
    assert_eq!(limit(&["--quantity", "0"]), (0, "allowed: 2 of 2 left\n".to_owned(), String::new()));
    assert_eq!(limit(&[]), (0, "allowed: 1 of 2 left, all again in 1h\n".to_owned(), String::new()));
    let (code, out, _) = limit(&["--json"]);
    let reply: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let whole = serde_json::json!(
        {"limited": false, "limit": 2, "remaining": 0, "retry_after_ms": -1, "reset_after_ms": 3_600_000}
    );
    assert_eq!((code, reply), (0, whole));
    let (code, out, err) = limit(&[]);
    assert_eq!((code, err.as_str()), (75, ""));
    assert!(out.starts_with("refused: 0 of 2 left, try again in 3"), "{out}");
}

#[test]
fn more_than_the_limit_at_once_is_an_error_and_no_matter_of_trying_later() {
    let shell = Shell::new("");
    for (limiter, rate, options) in [
        ("fixed-window", "2/h", &[][..]),
        ("sliding-window", "2/h", &[]),
        ("sliding-counter", "2/h", &[]),
        ("token-bucket", "5/h", &["--capacity", "2"]),
        ("leaky-meter", "5/h", &["--capacity", "2"]),
        ("throttle", "5/h", &["--burst", "1"]),
    ] {
        let key = shell.case.key(limiter);
        let limit =
            |args: &[&str]| shell.run(&[&["limit", limiter, &key, rate, "--quantity", "3"], options, args].concat());
        let said = "dripd limit: 3 at once can never pass: the limit is 2; ask for less, or in parts\n";
        assert_eq!(limit(&[]), (1, String::new(), said.to_owned()), "{limiter}");
        assert_eq!(limit(&["--wait"]), (1, String::new(), said.to_owned()), "{limiter}");
        let (code, out, err) = limit(&["--json"]);
        assert_eq!((code, err.as_str()), (1, said), "{limiter}");
        assert!(out.contains("\"limited\":true") && out.contains("\"retry_after_ms\":-1"), "{limiter}: {out}");
    }
}

#[test]
fn a_quantity_of_0_looks_and_says_when_nothing_is_left() {
    let shell = Shell::new("");
    for limiter in ["fixed-window", "sliding-window", "sliding-counter", "token-bucket", "leaky-meter", "throttle"] {
        let left = "nothing left: 0 of 1 left, all again in ";
        let key = shell.case.key(limiter);
        let limit = |args: &[&str]| shell.run(&[&["limit", limiter, &key, "1/h"], args].concat());
        assert_eq!(limit(&["--quantity", "0"]), (0, "allowed: 1 of 1 left\n".to_owned(), String::new()), "{limiter}");
        assert!(limit(&["--quantity", "0", "--json"]).1.contains("\"limited\":false"), "{limiter}");
        assert_eq!(limit(&[]).0, 0, "{limiter}");
        let (code, out, err) = limit(&["--quantity", "0"]);
        assert!(code == 0 && out.starts_with(left) && err.is_empty(), "{limiter}: {code} {out}{err}");
        let (code, out, _) = limit(&["--quantity", "0", "--json"]);
        assert!(code == 0 && out.contains("\"limited\":true") && out.contains("\"remaining\":0"), "{limiter}: {out}");
        assert_eq!(limit(&["--quantity", "0", "--wait"]).0, 0, "it waits for nothing: {limiter}");
    }
}

#[test]
fn limit_wait_sleeps_for_as_long_as_it_was_told_and_asks_no_more_often() {
    let server = Server::start(&[]);
    let spawn = |args: &[&str]| {
        let mut command = dripd();
        command.args(args).env("DRIPD_REDIS_URL", server.url()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
    };
    let calls = || {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).expect("INFO");
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls=")).unwrap_or("0,");
        line.split(',').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    // Of some seconds, so that each is asked again before it lets the next one in; and all of them wait at a time.
    let (limiters, rate, period) = (["sliding-window", "token-bucket", "throttle"], "1/5s", 5_000);
    let since = Instant::now();
    for limiter in limiters {
        let passed = spawn(&["limit", limiter, limiter, rate]).wait_with_output().expect("it ends");
        assert_eq!(said(&passed).0, 0, "{limiter}");
    }
    let before = calls();
    let waiting = limiters.map(|limiter| (limiter, spawn(&["limit", limiter, limiter, rate, "--wait"])));
    for (limiter, child) in waiting {
        let (code, out, err) = said(&child.wait_with_output().expect("it ends"));
        assert!(code == 0 && out.starts_with("allowed: 0 of 1 left"), "{limiter}: {code} {out}{err}");
        let waited = since.elapsed().as_millis();
        assert!(waited >= period, "{limiter}: {waited} ms");
    }
    assert_eq!(calls() - before, 6, "of each limiter one that was refused, and one that passed");
}

#[test]
fn limit_knows_every_recipe_and_refuses_what_does_not_belong_together() {
    let shell = Shell::new("");
    for (args, left) in [
        (&["fixed-window", "5/m"][..], "4 of 5"),
        (&["fixed-window", "5/m", "--aligned"], "4 of 5"),
        (&["sliding-window", "5/60s"], "4 of 5"),
        (&["sliding-counter", "5/60s"], "4 of 5"),
        (&["token-bucket", "5/60s", "--capacity", "9"], "8 of 9"),
        (&["leaky-meter", "5/60s"], "4 of 5"),
        (&["throttle", "30/60s", "--burst", "15"], "15 of 16"),
        (&["throttle", "5/60s"], "4 of 5"),
    ] {
        let key = shell.case.key(&args.join(" "));
        let (code, out, err) = shell.run(&[&["limit", args[0], &key], &args[1..]].concat());
        assert!(code == 0 && out.contains(left), "{args:?}: {code} {out}{err}");
    }
    for args in [
        &["sliding", "k", "5/60s"][..],
        &["sliding-window", "k"],
        &["sliding-window", "k", "5"],
        &["sliding-window", "k", "0/s"],
        &["sliding-window", "k", "10001/s"],
        &["sliding-window", "k", "5/367d"],
        &["sliding-window", "k", "5/1500us"],
        &["sliding-window", "k", "5/s", "--quantity", "10001"],
        &["sliding-window", "k", "5/s", "--quantity", "-1"],
        &["sliding-window", "k", "5/s", "--capacity", "5"],
        &["sliding-window", "k", "5/s", "--aligned"],
        &["token-bucket", "k", "5/s", "--burst", "5"],
        &["token-bucket", "k", "5/s", "--burst", "5", "--capacity", "5"],
        &["throttle", "k", "5/s", "--capacity", "5"],
        &["throttle", "k", "5/500ms"],
    ] {
        let (code, out, err) = shell.run(&[&["limit"], args].concat());
        assert!(code == 2 && out.is_empty() && !err.is_empty(), "{args:?}: {code} {out}{err}");
    }
    let (list, queue) = (shell.case.key("list"), shell.case.queue("list"));
    let mut case = Case::bare();
    case.cmd::<i64>(&["LPUSH", &list, "x"]);
    let (code, _, err) = shell.run(&["limit", "token-bucket", &list, "5/s"]);
    assert!(
        code == 1 && err.starts_with(&format!("dripd limit: {list}: ")) && !err.contains("WRONGTYPE"),
        "{code} {err}"
    );
    let (code, _, err) = shell.run(&["limit", "token-bucket", &queue, "5/s"]);
    assert!(
        code == 1
            && err.starts_with("dripd limit: cannot ask the token-bucket ")
            && err.contains("one of dripd's own keys"),
        "{code} {err}"
    );
}

#[test]
fn limit_loads_the_functions_where_there_are_none_or_older_ones() {
    let server = Server::start(&[]);
    let run = || {
        let output = dripd().args(["limit", "throttle", "k", "5/h"]).env("DRIPD_REDIS_URL", server.url()).output();
        said(&output.expect("it runs"))
    };
    assert_eq!(run().0, 0);
    let old = "#!lua name=dripd\nredis.register_function{function_name='drip__version', callback=function() return 1 end, flags={'no-writes'}}";
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg("REPLACE").arg(old).query::<String>(&mut server.connect()).expect("loaded");
    let (code, out, err) = run();
    assert!(code == 0 && out.contains("3 of 5 left"), "{code} {out}{err}");
}

#[test]
fn limit_wait_outlives_a_connection_that_is_closed_while_it_sleeps() {
    let server = Server::start(&[]);
    let command = |args: &[&str]| {
        let mut command = dripd();
        command.args(["limit", "sliding-window", "k", "1/4s"]).args(args).env("DRIPD_REDIS_URL", server.url());
        command
    };
    assert_eq!(said(&command(&[]).output().expect("it runs")).0, 0);
    let waits = command(&["--wait"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut redis = server.connect();
    let refused = |redis: &mut redis::Connection| -> bool {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(redis).expect("INFO");
        stats.contains("cmdstat_fcall:calls=2,")
    };
    crate::rig::eventually("it was refused and sleeps", || refused(&mut redis));
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec(&mut redis).expect("CLIENT KILL");
    let (code, out, err) = said(&waits.wait_with_output().expect("it ends"));
    assert!(code == 0 && out.starts_with("allowed: 0 of 1 left"), "{code} {out}{err}");
}
