//! Control at run time, as an operator has it: set, unset, pause, resume, close, open, settings.

use std::time::{Duration, Instant};

use super::Shell;
use crate::rig::{Daemon, dripd, eventually, server};

/// Run a command that must do what it is asked for. Replies what it said.
fn done(shell: &Shell, args: &[&str]) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[test]
fn a_rate_is_changed_for_a_while_and_shown_with_who_and_why() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let daemon = Daemon::start(shell.home());
    shell.case.lpush("acme", &["1", "2", "3"]);
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    let out = done(&shell, &["set", "acme", "rate=1000/s", "--for", "1h", "--reason", "they asked for it"]);
    assert!(
        out.starts_with("acme: rate = \"1000/s\" until 2") && out.ends_with("Z (before: as in the file)\n"),
        "{out}"
    );
    let out = done(&shell, &["set", "acme", "rate=2/s"]);
    assert!(out.starts_with("acme: rate = \"2/s\" is set, but \"1000/s\" lies over it until 2"), "{out}");
    done(&shell, &["unset", "acme"]);
    done(&shell, &["set", "acme", "rate=1000/s", "--for", "1h", "--reason", "they asked for it"]);
    eventually("the others leave", || shell.case.stream("ready").len() == 3);
    let out = done(&shell, &["settings"]);
    for part in [
        "acme: rate = \"1000/s\"\n  until 2",
        "(in 59m",
        "\n  since 2",
        "@",
        "as Redis user default\n",
        "because they asked for it\n",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let json: serde_json::Value = serde_json::from_str(&done(&shell, &["settings", "--json"])).expect("JSON");
    assert_eq!((&json[0]["match"], &json[0]["key"], &json[0]["glob"]), (&"acme".into(), &"rate".into(), &false.into()));
    assert_eq!(done(&shell, &["settings", "b*"]), "nothing is set: the file and its defaults hold\n");
    eventually("the log tells of it", || {
        let log = daemon.log();
        log.contains("changed at run time") && log.contains("they asked for it") && log.contains("match=\"acme\"")
    });
    assert_eq!(done(&shell, &["unset", "acme"]), "acme: rate = as in the file (before: \"1000/s\")\n");
    assert_eq!(
        done(&shell, &["unset", "acme"]),
        "acme: nothing of that was set; no job waits in a bucket of this name\n"
    );
}

#[test]
fn what_was_set_at_night_finds_its_way_into_the_file() {
    let shell = Shell::new("");
    done(&shell, &["set", "sms:*", "rate=2/s", "capacity=7"]);
    done(&shell, &["set", "sms:acme", "overflow=drop-oldest", "--for", "2h"]);
    done(&shell, &["pause", "mail:*"]);
    let out = done(&shell, &["settings", "--toml"]);
    let file: toml::Table = out.parse().expect("TOML");
    let entries = file["bucket"].as_array().expect("entries");
    let sms = entries.iter().find(|entry| entry["match"].as_str() == Some("sms:*")).expect("it is there");
    assert_eq!((sms["rate"].as_str(), sms["capacity"].as_integer()), (Some("2/s"), Some(7)));
    assert!(out.contains("# not for the file: \"sms:acme\" has overflow = \"drop-oldest\" until 2"), "{out}");
    assert!(out.contains("# not for the file: \"mail:*\" has pause until it is taken back"), "{out}");
}

#[test]
fn a_budget_that_only_a_job_rate_limits_is_an_entry_for_the_file() {
    let shell = Shell::new("[[budget]]\nmatch = 'p'\nrate = '1/s'\n");
    done(&shell, &["set", "p", "job_rate=5/s", "--budget"]);
    let file: toml::Table = done(&shell, &["settings", "--toml"]).parse().expect("TOML");
    assert_eq!((file["budget"][0]["match"].as_str(), file["budget"][0]["job_rate"].as_str()), (Some("p"), Some("5/s")));
}

#[test]
fn entries_for_the_file_mean_the_same_there() {
    let shell = Shell::new("");
    for (pattern, value) in [
        ("sms:a*", "rate=2/s"),
        ("*", "capacity=7"),
        ("sms:*", "rate=3/s"),
        ("sms:a*", "attempts=2"),
        ("sms:acme", "rate=4/s"),
        ("*:b", "lease=2m"),
    ] {
        done(&shell, &["set", pattern, value, "--yes"]);
    }
    let policies = |shell: &Shell| {
        ["sms:acme", "sms:abel", "sms:x", "mail:b", "mail"].map(|bucket| {
            let status: serde_json::Value =
                serde_json::from_str(&done(shell, &["status", bucket, "--json"])).expect("JSON");
            ["count", "capacity", "attempts", "lease_ms"].map(|field| status[field].as_u64().expect("a number"))
        })
    };
    let set = policies(&shell);
    assert_eq!(set[0], [4, 7, 2, 60_000], "each key is decided by itself");
    let part = done(&shell, &["settings", "sms:*", "--toml"]);
    assert!(part.contains("capacity = 7 # set for \"*\"") && !part.contains("match = \"*\""), "{part}");
    let file = done(&shell, &["settings", "--toml"]);
    let by_file = Shell::new(&file);
    Daemon::start(by_file.home()).stop();
    assert_eq!(policies(&by_file), set, "{file}");
    let open = "# \"*:b\" and \"sms:*\" may meet in some buckets: in the file the one above decides all keys of those.";
    assert!(file.contains(open), "{file}");
    assert_eq!(file.matches("may meet").count(), 2, "\"sms:*\" and \"sms:a*\": {file}");
}

#[test]
fn wrong_keys_and_values_are_all_named_and_nothing_is_changed() {
    let shell = Shell::new("");
    let (code, out, err) = shell.run(&["set", "acme", "rate=5/sec", "capcity=3", "attempts=2"]);
    assert_eq!((code, out.as_str()), (2, ""));
    for part in ["dripd set: what is to be set: 2 problems", "rate: \"5/sec\"", "did you mean capacity?"] {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
    assert_eq!(shell.run(&["set", "a{b", "rate=5/s"]).0, 2);
    assert_eq!(shell.run(&["unset", "acme", "rat"]).0, 2);
    assert_eq!(shell.run(&["pause", "acme", "--for", "soon"]).0, 2);
    assert_eq!(done(&shell, &["settings"]), "nothing is set: the file and its defaults hold\n");
    let (code, _, err) = shell.run(&["pause", "**"]);
    assert_eq!(code, 2);
    assert!(
        err.contains("\"**\" means every bucket: pause all of them? There is no terminal to ask at; add --yes"),
        "{err}"
    );
    assert!(done(&shell, &["pause", "**", "--yes"]).contains("**: paused; 0 buckets with work now"));
}

#[test]
fn of_a_budget_only_its_own_keys_can_be_set_and_it_cannot_be_closed() {
    let shell = Shell::new("[[budget]]\nmatch = 'twilio'\nrate = '5/s'\n");
    let (code, out, err) = shell.run(&["set", "twilio", "rate=5/sec", "capacity=3", "--budget"]);
    assert_eq!((code, out.as_str()), (2, ""));
    let own = "write some of within, rate, quota, concurrency, weight, catch_up, slow";
    for part in [
        "dripd set: what is to be set: 2 problems",
        "rate: \"5/sec\" is not allowed",
        &format!("capacity: a budget has no capacity, only buckets have; {own}"),
    ] {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
    let (code, _, err) = shell.run(&["unset", "twilio", "lease", "--budget"]);
    assert!(code == 2 && err.contains("\"lease\" is no key of a budget; write some of rate, "), "{err}");
    let (code, _, err) = shell.run(&["pause", "a{b", "--budget"]);
    assert!(code == 2 && err.contains("\"a{b\" can be no budget: "), "{err}");
    let (code, _, err) = shell.run(&["pause", "*", "--budget"]);
    assert!(code == 2 && err.contains("\"*\" means every budget: pause all of them?"), "{err}");
    for command in ["close", "open"] {
        let (code, _, err) = shell.run(&[command, "twilio", "--budget"]);
        assert!(code == 2 && err.contains("unexpected argument '--budget'"), "{err}");
    }
    let (code, _, err) = shell.run(&["explain", "twili", "--budget"]);
    assert!(code == 1 && err.contains("no [[budget]] of the configuration in force matches twili"), "{code} {err}");
    assert_eq!(done(&shell, &["settings"]), "nothing is set: the file and its defaults hold\n");
}

#[test]
fn one_tenant_is_stopped_and_goes_on() {
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\n");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("sms:acme", &["1", "2"]);
    eventually("they leave", || shell.case.stream("ready").len() == 2);
    shell.case.take("ready", 1);
    let out = done(&shell, &["pause", "sms:acme", "--reason", "their gateway is down"]);
    assert_eq!(out, "sms:acme: paused; 2 jobs are out already and not called back: 1 ready, 1 with workers\n");
    done(&shell, &["pause", "sms:*"]);
    shell.case.lpush("sms:acme", &["3"]);
    shell.case.lpush("other", &["4"]);
    eventually("the other goes on", || shell.case.stream("ready").len() == 3);
    eventually("it waits in its place", || {
        let key = shell.case.key("paused");
        shell.case.cmd::<Option<f64>>(&["ZSCORE", &key, "sms:acme"]).is_some()
    });
    let (code, _, err) = shell.run(&["resume", "sms:acme"]);
    assert_eq!(code, 1);
    assert_eq!(
        err,
        "dripd resume: sms:acme: its own is taken away, but \"sms:*\" still has it paused; `dripd resume 'sms:*'`\n"
    );
    let (code, _, err) = shell.run(&["resume", "sms:acme"]);
    assert_eq!(code, 1);
    assert_eq!(
        err,
        "dripd resume: nothing is paused under \"sms:acme\"; \"sms:*\" has it paused: `dripd resume 'sms:*'`\n"
    );
    assert_eq!(done(&shell, &["resume", "sms:*"]), "sms:*: paused no more\n");
    eventually("it goes on", || shell.case.stream("ready").len() == 4);
    let (code, _, err) = shell.run(&["resume", "sms:*"]);
    assert_eq!(code, 1);
    assert_eq!(err, "dripd resume: nothing is paused under \"sms:*\"; `dripd settings` lists what is\n");
}

#[test]
fn a_pause_of_budgets_says_how_many_buckets_below_them_have_work_and_which_jobs_it_cannot_call_back() {
    let mut shell = Shell::new(
        "[defaults]\nrate = '1/h'\n[[budget]]\nmatch = 'sms'\nrate = '100/s'\n\
         [[budget]]\nmatch = 'sms:*'\nrate = '1/h'\nwithin = 'sms'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'sms:*:*'\nwithin = 'sms:{1}'\n",
    );
    let none = "; 0 buckets below with work now; none of their jobs is out\n";
    assert_eq!(done(&shell, &["pause", "sms", "--budget", "--for", "1ms"]), format!("budget sms: paused{none}"));
    let _daemon = Daemon::start(shell.home());
    // Of each account one job leaves; two of its buckets wait for their shares. Of one bucket nothing waits any more.
    for bucket in ["sms:a:1", "sms:a:2", "sms:a:3", "sms:b:1", "sms:b:2", "sms:b:3", "sms:c:1", "mail"] {
        let jobs: &[&str] = if bucket == "sms:c:1" { &["1"] } else { &["1", "2"] };
        shell.case.lpush(bucket, jobs);
    }
    eventually("one of each leaves", || shell.case.stream("ready").len() == 4);
    let waiting = shell.case.key("waiting");
    eventually("the others wait", || shell.case.cmd::<i64>(&["HLEN", &waiting]) == 4);
    shell.case.take("ready", 10);
    shell.case.lpush("sms:d:1", &["1"]);
    eventually("one more leaves", || shell.case.stream("ready").len() == 5);
    let pause = |name: &str| done(&shell, &["pause", name, "--budget", "--reason", "their gateway is down"]);
    assert_eq!(
        pause("sms:a"),
        "budget sms:a: paused; 3 buckets below with work now; 1 job is out already and not called back: 0 ready, 1 with workers\n"
    );
    assert_eq!(
        pause("sms:[ad]"),
        "budget sms:[ad]: paused; 3 buckets below with work now; 2 jobs are out already and not called back: 1 ready, 1 with workers; \
         \"sms:[ad]\" is a glob: for the one of this very name write 'sms:\\[ad\\]'\n"
    );
    assert_eq!(
        pause("sms"),
        "budget sms: paused; 6 buckets below with work now; 4 jobs are out already and not called back: 1 ready, 3 with workers\n"
    );
    let out = done(&shell, &["pause", "sms:*"]);
    assert!(
        out.starts_with("sms:*: paused; 6 buckets with work now; 4 jobs"),
        "those that wait for a share count: {out}"
    );
}

#[test]
fn a_closed_bucket_rejects_at_every_door() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let _daemon = Daemon::start(shell.home());
    assert_eq!(done(&shell, &["close", "acme"]), "acme: closed; no job waits in a bucket of this name\n");
    assert_eq!(shell.run(&["push", "acme", "x"]).0, 75);
    shell.case.lpush("acme", &["y"]);
    eventually("it is rejected", || shell.case.stream("rejected").iter().any(|entry| entry.text("reason") == "closed"));
    assert_eq!(done(&shell, &["open", "acme"]), "acme: closed no more\n");
    done(&shell, &["push", "acme", "x"]);
}

#[test]
fn a_pause_that_ends_by_itself_wakes_its_bucket() {
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\n");
    let _daemon = Daemon::start(shell.home());
    done(&shell, &["pause", "acme", "--for", "300ms"]);
    done(&shell, &["pause", "sms:*", "--for", "300ms"]);
    shell.case.lpush("acme", &["1"]);
    shell.case.lpush("sms:a", &["2"]);
    eventually("both go on", || shell.case.stream("ready").len() == 2);
    assert_eq!(done(&shell, &["settings"]), "nothing is set: the file and its defaults hold\n");
}

#[test]
fn twenty_operators_and_two_daemons_end_in_one_state_and_lose_nothing() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\ncapacity = 100000\n");
    let _daemons = [Daemon::start(shell.home()), Daemon::start(shell.home())];
    let jobs: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    let operators: Vec<_> = (0..20)
        .map(|n| {
            let glob = format!("b{}*", n % 5);
            let words = match n % 4 {
                0 => vec!["pause".to_owned(), glob, "--for".to_owned(), "200ms".to_owned()],
                1 => vec!["set".to_owned(), glob, format!("rate={}/s", 500 + n)],
                2 => vec![
                    "set".to_owned(),
                    format!("b{}", n % 5),
                    "capacity=99999".to_owned(),
                    "--for".to_owned(),
                    "1s".to_owned(),
                ],
                _ => vec!["pause".to_owned(), format!("b{}", n % 5), "--for".to_owned(), "300ms".to_owned()],
            };
            dripd().args(words).current_dir(shell.home()).stdout(std::process::Stdio::null()).spawn().expect("it runs")
        })
        .collect();
    for bucket in ["b0", "b1", "b2", "b3", "b4", "c"] {
        shell.case.lpush(bucket, &jobs);
    }
    for mut operator in operators {
        assert_eq!(operator.wait().expect("it ends").code(), Some(0));
    }
    eventually("every job leaves", || shell.case.stream("ready").len() == 1_200);
    for bucket in ["b0", "b4", "c"] {
        let left: Vec<String> = shell
            .case
            .stream("ready")
            .iter()
            .filter(|entry| entry.text("bucket") == bucket)
            .map(|entry| entry.text("job"))
            .collect();
        assert_eq!(left, jobs, "in order, each once");
    }
    eventually("what was for a while has ended", || {
        let all: serde_json::Value = serde_json::from_str(&done(&shell, &["settings", "--json"])).expect("JSON");
        all.as_array().expect("a list").iter().all(|one| one["until"].is_null())
    });
    let _ = server();
}

#[test]
fn a_spread_whose_daemon_is_killed_in_the_middle_is_carried_on_by_the_next_one() {
    const BUCKETS: usize = 4_000;
    // One bucket a call: it takes long enough to be killed in the middle.
    let mut shell = Shell::new("[defaults]\nrate = '1/d'\n[limits]\nbatch = 1\n");
    let mut daemon = Daemon::start(shell.home());
    let mut pipe = redis::pipe();
    for n in 0..BUCKETS {
        pipe.cmd("FCALL").arg("drip_push").arg(1).arg(shell.case.queue(&format!("b{n}"))).arg("1").arg("2").ignore();
    }
    pipe.exec(&mut shell.case.redis).expect("pushed");
    let ready = shell.case.key("ready");
    for part in 1..=8 {
        eventually("more have let out their first", || {
            shell.case.cmd::<usize>(&["XLEN", &ready]) >= BUCKETS * part / 8
        });
    }
    let (policy, reached, schedule) = (shell.case.key("policy"), shell.case.key("reached"), shell.case.key("schedule"));
    let mut per_hour = 0;
    loop {
        per_hour += 1;
        done(&shell, &["set", "b*", &format!("rate={per_hour}/h")]);
        eventually("some are reached, or all were before anybody looked", || {
            shell.case.cmd::<usize>(&["HLEN", &reached]) > 50
                || shell.case.cmd::<i64>(&["HEXISTS", &policy, "prev_id"]) == 0
        });
        daemon.kill();
        let some = shell.case.cmd::<usize>(&["HLEN", &reached]);
        let has_spread = shell.case.cmd::<i64>(&["HEXISTS", &policy, "prev_id"]) == 0;
        if !has_spread && (51..BUCKETS).contains(&some) {
            break;
        }
        // This thread came too late: once more, with another change.
        assert!(per_hour < 6, "in the middle: {some}");
        daemon = Daemon::start(shell.home());
    }
    let _next = Daemon::start(shell.home());
    eventually("it has spread", || shell.case.cmd::<i64>(&["HEXISTS", &policy, "prev_id"]) == 0);
    let left = shell.case.stream("ready");
    let dues: Vec<(String, f64)> = shell.case.cmd(&["ZRANGE", &schedule, "0", "-1", "WITHSCORES"]);
    assert_eq!(dues.len(), BUCKETS);
    let first = left.iter().map(|entry| entry.number("due_us")).min().expect("some");
    let last = left.iter().map(|entry| entry.number("at_us")).max().expect("some");
    let wait = 3_600_000_000 / per_hour;
    for (bucket, due) in dues {
        assert!((first + wait..=last + wait).contains(&(due as u64)), "{bucket} counts from its last job, once");
    }
}

#[test]
fn what_was_pushed_while_no_daemon_ran_is_kept_though_a_glob_closes_it_or_lowers_its_capacity() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 100\n");
    Daemon::start(shell.home()).kill(); // its last word still counts
    for (bucket, change) in [("sms:a", ["close", "sms:*"].as_slice()), ("web:a", &["set", "web:*", "capacity=5"])] {
        shell.case.lpush(bucket, &["x"; 80]);
        let (out, rejected) = (shell.case.stream("ready").len(), shell.case.stream("rejected").len());
        done(&shell, change);
        assert_eq!(shell.case.stream("ready").len(), out, "nothing leaves while no daemon runs");
        let mut daemon = Daemon::start(shell.home());
        eventually("one leaves", || shell.case.stream("ready").len() == out + 1);
        shell.case.lpush(bucket, &["one too many"]);
        eventually("nothing new is accepted", || shell.case.stream("rejected").len() == rejected + 1);
        assert_eq!(shell.case.waiting(bucket).len(), 79, "accepted is accepted");
        let policy = shell.case.key("policy");
        eventually("the change has spread", || shell.case.cmd::<i64>(&["HEXISTS", &policy, "prev_id"]) == 0);
        daemon.kill();
    }
}

#[test]
fn a_glob_that_would_wait_for_a_change_that_nobody_spreads_is_refused_at_once() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    Daemon::start(shell.home()).stop();
    shell.case.lpush("sms:a", &["x"]);
    let mut daemon = Daemon::start(shell.home());
    eventually("it is at rest", || shell.case.stream("ready").len() == 1);
    daemon.stop();
    done(&shell, &["set", "sms:*", "rate=1/d"]);
    let since = Instant::now();
    let (code, _, err) = shell.run(&["set", "web:*", "rate=1/d"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("no daemon runs to carry it on"), "{err}");
    assert!(since.elapsed() < Duration::from_secs(20), "it took {:?}", since.elapsed());
}

#[test]
fn the_status_of_a_bucket_says_what_stops_it_and_who_resumes_one_of_two_is_told_of_the_other() {
    let shell = Shell::new("");
    done(&shell, &["pause", "*", "--yes"]);
    done(&shell, &["close", "sms:a"]);
    let out = done(&shell, &["status", "sms:a"]);
    for line in [
        "CLOSED      it accepts nothing; `dripd open sms:a` ends that",
        "PAUSED      nothing leaves it by \"*\"; `dripd resume '*'` ends that",
    ] {
        assert!(out.contains(line), "{line} is not in\n{out}");
    }
    done(&shell, &["pause", "sms:*"]);
    let (code, _, err) = shell.run(&["resume", "sms:*"]);
    assert_eq!(code, 1);
    assert!(err.contains("\"*\" still has it paused; `dripd resume '*'`"), "{err}");
    assert_eq!(done(&shell, &["resume", "*", "--yes"]), "*: paused no more\n");
}
