//! Slow-downs from outside: `dripd slow`, and workers that are told to wait, by a real server or a real command.

use std::time::Duration;

use super::work_http::Hook;
use super::{Shell, Work};
use crate::rig::{Daemon, eventually};

#[track_caller]
fn done(shell: &Shell, args: &[&str]) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

const TREE: &str = "[[budget]]\nmatch = 'twilio'\nrate = '1000/s'\n[[bucket]]\nmatch = 'sms:*'\nwithin = 'twilio'\n\
                    [defaults]\nrate = '1000/s'\nslow = { initial = '100ms', max = '200ms', cap = '1h' }\n";

#[test]
fn an_operator_slows_a_bucket_down_for_a_while_and_ends_that() {
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\n");
    let _daemon = Daemon::start(shell.home());
    assert_eq!(
        done(&shell, &["slow", "acme", "10m", "--reason", "their HTTP 429"]),
        "acme: goes on in 10 m; no job waits in a bucket of this name\n"
    );
    let out = done(&shell, &["slow", "acme", "1s"]);
    assert!(out.contains("; the slow-down in force lasts longer"), "{out}");
    assert_eq!(
        done(&shell, &["slow", "acme", "2h"]),
        "acme: goes on in 60 m; slow.cap allows no more; no job waits in a bucket of this name\n"
    );
    shell.case.lpush("acme", &["1"]);
    shell.case.lpush("other", &["2"]);
    eventually("the other one leaves", || shell.case.stream("ready").len() == 1);
    assert_eq!(shell.case.jobs("ready"), ["2"]);
    let out = done(&shell, &["settings"]);
    for part in ["acme: slowed down (asked for)\n  until 2", "(in 59m)", "\n  since 2", "@"] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let json: serde_json::Value = serde_json::from_str(&done(&shell, &["settings", "--json"])).expect("JSON");
    assert_eq!(
        (&json[0]["match"], &json[0]["key"], json[0]["until"].is_string()),
        (&"acme".into(), &"slow-down".into(), true)
    );
    let toml = done(&shell, &["settings", "--toml"]);
    assert!(
        toml.contains("# not for the file: \"acme\" is slowed down (asked for) until 2"),
        "it is no key of the file: {toml}"
    );
    toml.parse::<toml::Table>().expect("TOML");
    assert_eq!(done(&shell, &["slow", "acme", "clear"]), "acme: slowed down no more\n");
    eventually("it goes on at once", || shell.case.stream("ready").len() == 2);
    assert_eq!(done(&shell, &["settings"]), "nothing is set: the file and its defaults hold\n");
    let events = shell.case.stream("events");
    assert_eq!(
        (events[0].text("what"), events[0].text("match"), events[0].text("reason")),
        ("slow".into(), "acme".into(), "their HTTP 429".into())
    );
    assert!(events.iter().all(|event| event.text("by").contains('@')), "who it was");
}

#[test]
fn a_budget_is_slowed_down_by_its_name_or_through_a_bucket_below_it() {
    let mut shell = Shell::new(TREE);
    let _daemon = Daemon::start(shell.home());
    assert_eq!(done(&shell, &["slow", "twilio", "10m", "--budget"]), "budget twilio: goes on in 10 m\n");
    shell.case.lpush("sms:acme", &["1"]);
    shell.case.lpush("mail", &["2"]);
    eventually("what is not below it leaves", || shell.case.stream("ready").len() == 1);
    assert_eq!(shell.case.jobs("ready"), ["2"]);
    assert!(done(&shell, &["settings"]).starts_with("budget twilio: slowed down (asked for)\n"));
    assert_eq!(done(&shell, &["slow", "sms:acme", "clear", "--in", "twilio"]), "budget twilio: slowed down no more\n");
    eventually("it goes on at once", || shell.case.stream("ready").len() == 2);
    for (args, code, why) in [
        (&["slow", "twili", "5s", "--budget"][..], 1, "no [[budget]] of the configuration in force matches twili"),
        (&["slow", "mail", "5s", "--in", "twilio"], 1, "no budget above mail"),
        (&["slow", "acme", "soon"], 2, "or clear"),
        (&["slow", "acme"], 2, "<DURATION|clear>"),
        (&["slow", "a{b", "5s"], 2, "a{b"),
        (&["slow", "acme", "5s", "--budget", "--in", "twilio"], 2, "cannot be used with"),
    ] {
        let (is, out, err) = shell.run(args);
        assert!(is == code && err.contains(why) && out.is_empty(), "{args:?}: {is} {err}");
    }
}

#[test]
fn a_server_that_says_when_to_come_back_is_left_alone_until_then() {
    let mut shell = Shell::new(TREE);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, before| match (job, before) {
        ("seconds", 0) => "429 Too Many\r\nretry-after: 1",
        ("ms", 0) => "503 Busy\r\nretry-after-ms: 700",
        ("reset", 0) => "429 Too Many\r\nx-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 800ms",
        _ => "204 Fine",
    });
    let _worker = Work::start(&shell, &["--http", &hook.url]);
    for (job, ms) in [("seconds", 1_000), ("ms", 700), ("reset", 800)] {
        shell.case.lpush(job, &[job, "next"]);
        let posts = hook.take(3);
        let of = |name: &str| posts.iter().rfind(|post| post.is(name)).unwrap_or_else(|| panic!("no {name}"));
        let first = posts.iter().find(|post| post.is(job)).expect("a post");
        assert!(of(job).at - first.at >= Duration::from_millis(ms), "{job}: {:?}", of(job).at - first.at);
        assert_eq!(of(job).head["drip-attempt"], "1", "{job}: it does not count");
    }
}

#[test]
fn a_worker_that_is_told_to_wait_slows_down_the_budget_that_was_named() {
    let mut shell = Shell::new(TREE);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(
        |job, before| if job == "first" && before == 0 { "429 Too Many\r\nretry-after: 3" } else { "204 Fine" },
    );
    let worker = Work::start(&shell, &["--http", &hook.url, "--throttle-budget", "twilio"]);
    shell.case.lpush("sms:a", &["first"]);
    let first = hook.next();
    let slowed = shell.case.key("slow");
    eventually("the budget is slowed down", || shell.case.cmd::<bool>(&["HEXISTS", &slowed, "{twilio}"]));
    shell.case.lpush("sms:b", &["other"]);
    let (second, third) = (hook.next(), hook.next());
    assert!(second.at - first.at >= Duration::from_secs(3), "all that is below it waits");
    assert!(
        [&second, &third].iter().any(|post| post.is("first")) && [&second, &third].iter().any(|post| post.is("other"))
    );
    let line = worker.said("bucket=sms:a attempt=1 ", "throttled: it is given back");
    assert!(line.contains("slowed=twilio"), "{line}");
}

#[test]
fn where_the_named_budget_is_not_above_the_bucket_the_bucket_alone_slows_down() {
    let mut shell = Shell::new(TREE);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|_, before| if before == 0 { "429 Too Many\r\nretry-after: 1" } else { "204 Fine" });
    let worker = Work::start(&shell, &["--http", &hook.url, "--throttle-budget", "twilio"]);
    shell.case.lpush("mail", &["x"]);
    let posts = hook.take(2);
    assert!(posts[1].at - posts[0].at >= Duration::from_secs(1));
    let log = worker.log();
    assert!(log.contains("no budget of that name is above the bucket"), "{log}");
    eventually("nothing is left", || shell.case.stream("ready").is_empty());
}

#[test]
fn exit_code_75_slows_the_bucket_down_and_does_not_count() {
    let mut shell = Shell::new(TREE);
    let _daemon = Daemon::start(shell.home());
    let script = shell
        .file("run.sh", "echo \"$DRIPD_BUCKET $DRIPD_ATTEMPT\" >> seen\n[ \"$(wc -l < seen)\" -gt 2 ] || exit 75\n");
    let worker = Work::start(&shell, &["--exec", "sh", &script]);
    shell.case.lpush("b", &["x"]);
    eventually("it is done", || {
        let seen = std::fs::read_to_string(shell.home().join("seen")).unwrap_or_default();
        seen.lines().count() == 3 && shell.case.stream("ready").is_empty()
    });
    assert_eq!(std::fs::read_to_string(shell.home().join("seen")).expect("seen"), "b 1\nb 1\nb 1\n");
    assert_eq!(worker.log().matches("throttled: it is given back").count(), 2);
    let events = shell.case.stream("events");
    let told: Vec<String> = events.iter().map(|event| event.text("reason")).collect();
    assert_eq!(told, ["exit code 75", "exit code 75"], "two incidents, for each job left after the one before");
}

#[test]
fn a_job_that_is_always_turned_away_does_not_stop_its_bucket_for_ever() {
    let mut shell = Shell::new("[defaults]\nrate = '50/s'\nattempts = 2\nslow = { initial = '10ms', max = '20ms' }\n");
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, _| if job == "poison" { "503 Never\r\nretry-after: 0" } else { "200 Fine" });
    let _worker = Work::start(&shell, &["--http", &hook.url]);
    shell.case.lpush("b", &["poison", "1", "2", "3"]);
    let (mut tries, mut others) = (Vec::new(), Vec::new());
    while others.len() < 3 || tries.len() < 22 {
        let post = hook.next();
        let list = if post.is("poison") { &mut tries } else { &mut others };
        list.push(post);
    }
    assert!(others.iter().zip(["1", "2", "3"]).all(|(post, job)| post.is(job)), "in their order");
    let attempts: Vec<&str> = tries.iter().map(|post| post.head["drip-attempt"].as_str()).collect();
    assert!(
        attempts[..21].iter().all(|n| *n == "1") && attempts[21] == "2",
        "20 are free, then they count: {attempts:?}"
    );
    assert!(tries.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(10)), "never without a pause");
    eventually("then it is dead", || shell.case.jobs("dead") == ["poison"]);
}
