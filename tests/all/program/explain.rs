//! `dripd explain` and `dripd what-if`, beside a daemon that runs.

use serde_json::Value as Json;

use super::Shell;
use crate::rig::{Daemon, eventually};
use crate::shell::configure;

/// Run a command that must do what it is asked for. Replies what it said.
#[track_caller]
fn done(shell: &Shell, args: &[&str]) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

/// A line with what differs from run to run made the same: `in 3 m 20 s` is `in T`, and who did it is root@web1 at 12:03.
fn masked(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let (bare, end) = word.split_at(word.trim_end_matches([':', ',', ';', ')']).len());
        let last = words.last().cloned().unwrap_or_default();
        let is_unit = ["ms", "s", "m", "h", "d"].contains(&bare) && last.parse::<f64>().is_ok();
        if is_unit {
            words.pop();
            if words.last().is_some_and(|last| last == "T") {
                words.pop();
            }
            words.push(format!("T{end}"));
        } else if bare.len() == 5 && bare.as_bytes()[2] == b':' && bare.replace(':', "").parse::<u16>().is_ok() {
            words.push(format!("12:03{end}"));
        } else if bare.len() == 10 && bare.as_bytes()[4] == b'-' {
            // The day, where the test runs past midnight.
        } else if word.contains('@') {
            words.push("root@web1".to_owned());
        } else {
            words.push(word.to_owned());
        }
    }
    words.join(" ")
}

/// What binds: the last line.
#[track_caller]
fn last(shell: &Shell, bucket: &str) -> String {
    let out = done(shell, &["explain", bucket]);
    masked(out.trim_end().lines().last().expect("a line"))
}

fn json(shell: &Shell, bucket: &str) -> Json {
    serde_json::from_str(&done(shell, &["explain", bucket, "--json"])).expect("JSON")
}

/// Wait until a change for a glob has come to all buckets: until then that is said, too.
#[track_caller]
fn has_spread(shell: &Shell) {
    eventually("it has spread", || json(shell, "acme")["spreading"] == false);
}

#[test]
fn each_case_has_words_of_its_own() {
    let mut shell = Shell::new("[defaults]\nrate = '1/d'\ncapacity = 3\nbackoff = { initial = '2h', max = '2h' }\n");
    let words = "nothing leaves: no daemon runs; start one with `dripd run`";
    shell.case.lpush("acme", &["1", "2", "3"]);
    assert_eq!(last(&shell, "acme"), format!("{words}; it is full, 3 of 3: a push is rejected"));
    let mut daemon = Daemon::start(shell.home());
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("it is heard of", || json(&shell, "acme")["daemons"] == 1);
    assert_eq!(last(&shell, "acme"), "the next job leaves in T: acme is at its rate");
    done(&shell, &["push", "acme", "4"]);
    let words = "the next job leaves in T: acme is at its rate; it is full, 3 of 3: a push is rejected";
    assert_eq!(last(&shell, "acme"), words);
    done(&shell, &["close", "acme", "--reason", "they move"]);
    let words =
        "the next job leaves in T: acme is at its rate; it takes nothing in: closed by root@web1 12:03 \"they move\"";
    assert_eq!(last(&shell, "acme"), words);
    done(&shell, &["open", "acme"]);
    done(&shell, &["pause", "ac*", "--for", "1h"]);
    has_spread(&shell);
    let words = "nothing leaves until 12:03: acme is paused for \"ac*\" by root@web1 12:03; it is full, 3 of 3: a push is rejected";
    assert_eq!(last(&shell, "acme"), words);
    done(&shell, &["resume", "ac*"]);
    has_spread(&shell);
    let words = "nothing waits: idle is empty; a job that comes now leaves at once";
    assert_eq!(last(&shell, "idle"), words);
    shell.case.lpush("failing", &["1"]);
    eventually("it leaves", || shell.case.stream("ready").len() == 2);
    let entry = shell.case.take("ready", 2).pop().expect("taken");
    let _: i64 = shell.case.fcall("drip_fail", &["ready"], &[entry.id]);
    done(&shell, &["set", "failing", "rate=1/h"]);
    let words = "the next job leaves in T: failing is backing off, 1 failed job waits for another try";
    assert_eq!(last(&shell, "failing"), words);
    let queue = shell.case.queue("wrong");
    let _: String = shell.case.cmd(&["SET", &queue, "x"]);
    let words = format!(
        "nothing goes in or out: the key {queue} holds a string, not a list; see what it is, then rename or delete it"
    );
    assert_eq!(last(&shell, "wrong"), words);
    assert_eq!(shell.run(&["what-if", "wrong"]).0, 69, "a dripd key of the wrong type");
    let file = shell.home().join("config.toml");
    let there = json(&shell, "acme")["chain"][0]["policy"][0]["from"].clone();
    assert_eq!((&there["path"], &there["line"]), (&Json::from(file.to_str()), &4.into()));
    configure(shell.home(), &shell.case, "[defaults]\nrate = '1/d'\ncapacity = 4\n"); // its jobs still wait at the end
    let out = done(&shell, &["explain", "idle"]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let file = file.display();
    let words = format!(
        "another file is in force than {file}, that of {host}:{file}; a daemon that reads yours puts it in force by starting or `dripd reload`\n"
    );
    assert!(out.contains(&words), "{words} is not in\n{out}");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let mut command = shell.command(&["explain", "idle"]);
    let url = crate::rig::server().url();
    let out = command.current_dir(elsewhere.path()).env("DRIPD_REDIS_URL", url).output().expect("it runs").stdout;
    assert!(!String::from_utf8_lossy(&out).contains("another file"), "there is no file that could be another one");
    done(&shell, &["reload"]);
    assert_eq!(json(&shell, "idle")["file"]["is_in_force"], true);
    daemon.stop();
    // It says so in Redis as it stops, if that answers within a second, and else it is forgotten.
    eventually("no daemon runs", || json(&shell, "acme")["binds"] == "no-daemon");
}

#[test]
fn a_bucket_is_held_for_workers_that_are_away() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\n[limits]\nmax_ready = 2\n");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("acme", &["1", "2", "3", "4", "5"]);
    eventually("it is held", || json(&shell, "acme")["place"] == "held");
    let line = last(&shell, "acme");
    let words = "held: acme waits since 12:03, and nobody takes jobs of route default: 2 jobs are ready, ";
    assert!(line.starts_with(words) && line.ends_with("no leases are held"), "{line}");
    shell.case.take("ready", 1);
    eventually("another one leaves", || shell.case.stream("ready").len() == 3);
    eventually("it is held again", || json(&shell, "acme")["place"] == "held");
    let line = last(&shell, "acme");
    assert!(line.starts_with("held: ") && line.contains(" of route default"), "{line}");
    let told = json(&shell, "acme");
    assert_eq!((&told["workers"][0]["name"], &told["workers"][0]["leases"]), (&"w".into(), &1.into()));
    assert_eq!(told["limits"][0]["from"]["section"], "[limits]");
}

#[test]
fn the_json_has_these_fields() {
    let shell = Shell::new("[defaults]\nadmit = { limiter = 'fixed-window', limit = 3, period = '1h' }\n");
    let names = |json: &Json| json.as_object().expect("a table").keys().cloned().collect::<Vec<_>>().join(" ");
    let told = json(&shell, "acme");
    assert_eq!(
        names(&told),
        "also binds binds_at bucket capacity chain daemons delayed depth due_in_us file gates keeps limits over overdue_ms place retries route says \
         spreading workers wrong_keys"
    );
    assert_eq!(
        names(&told["chain"][0]),
        "closed credit due_in_us kind name paused place policy quotas rate refused share slots slow_us told waiting"
    );
    assert_eq!(names(&told["chain"][0]["policy"][0]), "from key said value");
    assert_eq!(names(&told["retries"]), "ended next_in_us waiting");
    assert_eq!(
        names(&told["route"]),
        "age_us held limit max_ready name oldest_ms pending ready ready_window_us taken_per_second workers"
    );
    assert_eq!(names(&told["gates"][0]), "limit limiter remaining wait_ms");
    assert_eq!(names(&told["file"]), "is_in_force name");
    let keys: Vec<_> =
        told["chain"][0]["policy"].as_array().expect("keys").iter().map(|value| value["key"].clone()).collect();
    assert_eq!(
        Json::from(keys),
        serde_json::json!([
            "rate", "capacity", "lease", "attempts", "backoff", "overflow", "route", "catch_up", "admit"
        ])
    );
    let told: Json = serde_json::from_str(&done(&shell, &["what-if", "acme", "--push", "3", "--json"])).expect("JSON");
    assert_eq!(names(&told), "because bucket exact now push then");
    assert_eq!(names(&told["push"]), "accepted capacity depth dropped eta_ms jobs rejected retry_after_ms");
    assert_eq!(names(&told["then"]), "empty_in_us jobs last_leaves_in_us");
}

#[test]
fn what_if_says_what_a_change_or_a_push_would_do() {
    let mut shell = Shell::new("[defaults]\nrate = '1/d'\ncapacity = 5\n");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("acme", &["1", "2", "3", "4"]);
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("it is heard of", || json(&shell, "acme")["daemons"] == 1);
    let exact = "exact       to one interval, if nothing else is changed or pushed\n";
    let out = done(&shell, &["what-if", "acme", "rate=1/h", "--push", "4"]);
    let shown: Vec<String> = out.lines().map(masked).collect();
    assert_eq!(
        shown,
        [
            "as it is    3 jobs wait, the last leaves in T, and it is empty then",
            "the push    the first 2 jobs go in, 2 are rejected; one more may go in after T",
            "then        5 jobs wait, the last leaves in T, and it is empty then",
            "            with rate=1/h, a push of 4",
            exact.trim_end(),
        ]
    );
    let out = done(&shell, &["what-if", "idle", "--push", "1"]);
    assert_eq!(
        out,
        format!(
            "as it is    no job waits\nthe push    all 1 go in\nthen        1 job waits, the last leaves now, and it is empty then\n            with a push of 1\n{exact}"
        )
    );
    let (code, _, err) = shell.run(&["what-if", "acme", "rate=5/sec", "capcity=3"]);
    assert_eq!(code, 2);
    assert!(err.contains("2 problems") && err.contains("did you mean capacity?"), "{err}");
    done(&shell, &["pause", "acme"]);
    let out = done(&shell, &["what-if", "acme", "rate=1/s"]);
    assert!(out.ends_with("at least    it is paused: reckoned as if that ended now\n"), "{out}");
    let out = done(&shell, &["what-if", "idle", "concurrency=2", "--push", "3"]);
    let why = "at least    jobs in flight are limited by `concurrency`: reckoned as if each slot were free when a job's turn comes\n";
    assert!(out.ends_with(why), "{out}");
    let out = done(&shell, &["what-if", "idle", "concurrency=2", "--push", "3", "--json"]);
    let told: Json = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&told["exact"], &told["because"]), (&false.into(), &serde_json::json!(["slots"])));
}

fn server_time(shell: &mut Shell) -> u64 {
    let (seconds, micros): (u64, u64) = shell.case.cmd(&["TIME"]);
    seconds * 1_000_000 + micros
}

/// The prediction counts from when it was asked for; what the commands after it took, and how late jobs left, come on top.
#[test]
fn what_is_predicted_is_what_a_daemon_then_does() {
    const INTERVAL: u64 = 250_000;
    let mut shell = Shell::new("[defaults]\nrate = '1/d'\ncapacity = 100\n");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("acme", &["1", "2", "3"]);
    eventually("one leaves", || shell.case.stream("ready").len() == 1);
    eventually("it is heard of", || json(&shell, "acme")["daemons"] == 1);
    let asked = server_time(&mut shell);
    let told = done(&shell, &["what-if", "acme", "rate=4/s", "--push", "5", "--json"]);
    let told: Json = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["exact"], &told["then"]["jobs"]), (&true.into(), &7.into()));
    let predicted = told["then"]["last_leaves_in_us"].as_u64().expect("a time");
    assert!((6 * INTERVAL..=7 * INTERVAL).contains(&predicted), "the first leaves within an interval: {predicted} us");
    let pushed: Vec<i64> = shell.case.fcall("drip_push", &["queue:acme"], &["4", "5", "6", "7", "8"]);
    assert_eq!(Json::from(pushed[..3].to_vec()), serde_json::json!([5, 7, 100]));
    assert_eq!((&told["push"]["accepted"], &told["push"]["depth"]), (&5.into(), &7.into()));
    done(&shell, &["set", "acme", "rate=4/s"]);
    let commands = server_time(&mut shell) - asked;
    eventually("all leave", || shell.case.stream("ready").len() == 8);
    let entries = shell.case.stream("ready").split_off(1);
    let late: u64 = entries.iter().map(|entry| entry.number("at_us") - entry.number("due_us")).sum();
    let took = entries[6].number("at_us") - asked;
    assert!(took >= predicted, "{took} us, {predicted} were predicted");
    assert!(took <= predicted + commands + late + INTERVAL, "{took} us, {predicted} were predicted, {late} us late");
}
