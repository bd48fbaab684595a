//! `dripd dead list`, `retry` and `drop`.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{Shell, at_a_terminal, said};
use crate::rig::{Case, Daemon, eventually};

const CONFIG: &str = "[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'slow'\nrate = '2/m'\n";

/// Entries of the dead stream, as the functions write them: bucket, job, reason. Replies their ids.
pub fn bury(case: &mut Case, letters: &[(&str, &[u8], &str)]) -> Vec<String> {
    let dead = case.key("dead");
    let mut pipeline = redis::pipe();
    for (bucket, job, reason) in letters {
        let add = pipeline.cmd("XADD").arg(&dead).arg("*").arg("bucket").arg(bucket).arg("job").arg(job);
        add.arg(&["attempt", "5", "id", "1750000000000-3", "reason", reason]);
    }
    pipeline.query(&mut case.redis).expect("XADD")
}

/// So many jobs of one bucket, each with its number.
fn bury_many(case: &mut Case, bucket: &str, n: usize) -> Vec<String> {
    let jobs: Vec<String> = (0..n).map(|n| n.to_string()).collect();
    let letters: Vec<(&str, &[u8], &str)> = jobs.iter().map(|job| (bucket, job.as_bytes(), "failed")).collect();
    bury(case, &letters)
}

/// The bodies of a bucket's retries.
fn retries(case: &mut Case, bucket: &str) -> Vec<String> {
    let key = case.key(&format!("retry:{bucket}"));
    let members: Vec<String> = case.cmd(&["ZRANGE", &key, "0", "-1"]);
    members.iter().map(|member| member.splitn(8, ' ').nth(7).expect("a body").to_owned()).collect()
}

fn length(case: &mut Case) -> i64 {
    let dead = case.key("dead");
    case.cmd(&["XLEN", &dead])
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}"))).collect()
}

#[test]
fn list_shows_any_bytes_safely_as_text_and_as_json() {
    let mut shell = Shell::new(CONFIG);
    let hostile = "\u{1b}[2J\n<script>\u{202e}\u{9b}31m".as_bytes();
    let ids = bury(
        &mut shell.case,
        &[
            ("acme", b"{\"to\": 1}", "http 500"),
            ("Z\u{fc}rich\u{200f}", hostile, "a\nb\x1b]0;x\x07"),
            ("acme", b"\xff\x00\xfe", "failed"),
            ("acme", b"", "failed"),
            ("acme", "x".repeat(5_000).as_bytes(), "failed"),
        ],
    );
    let dead = shell.case.key("dead");
    let _: String = shell.case.cmd(&["XADD", &dead, "*", "co\u{202e}lor", "r\ned"]);
    let (code, out, err) = shell.run(&["dead", "list"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let is_safe = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control() && !"\u{202e}\u{200f}".contains(c));
    assert!(is_safe(&out), "{out:?}");
    let identity = "1750000000000-3-822b33ad87c148a0";
    assert!(out.starts_with(&format!("{}  20", ids[0])), "{out}");
    assert!(out.contains(&format!("Z  acme\n    attempt 5, id {identity}: http 500\n    {{\"to\": 1}}\n")), "{out}");
    assert!(out.contains("Zürich\\u{200f}\n") && out.contains(": a\\nb\\u{1b}]0;x\\u{7}\n"), "{out}");
    assert!(out.contains("    \\u{1b}[2J\\n<script>\\u{202e}\\u{9b}31m\n"), "{out}");
    assert!(out.contains("    \\xff\\0\\xfe\n") && out.contains("    (0 bytes)\n"), "{out}");
    assert!(out.contains(&format!("    {}… (5000 bytes)\n", "x".repeat(300))), "{out}");
    assert!(
        out.contains("(no bucket)\n    MALFORMED, it cannot go back; attempt ?: no reason\n    (no job)\n"),
        "{out}"
    );
    assert!(out.ends_with("    co\\u{202e}lor: r\\ned\n"), "{out}");

    let (code, out, err) = shell.run(&["dead", "list", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(is_safe(&out), "{out:?}");
    let all = objects(&out);
    let first = &all[0];
    assert_eq!(
        (&first["entry"], &first["bucket"], &first["attempt"]),
        (&ids[0].clone().into(), &"acme".into(), &5.into())
    );
    assert_eq!((&first["id"], &first["identity"]), (&"1750000000000-3".into(), &identity.into()));
    assert_eq!(
        (&first["job"], &first["bytes"], &first["malformed"]),
        (&"{\"to\": 1}".into(), &9.into(), &false.into())
    );
    assert!(first["at"].as_str().is_some_and(|at| at.ends_with('Z') && at.starts_with("20")), "{first}");
    assert_eq!(all[1]["job"].as_str().map(str::as_bytes), Some(hostile), "the very bytes");
    assert_eq!((&all[2]["job_base64"], &all[2]["bytes"], all[2].get("job")), (&"/wD+".into(), &3.into(), None));
    assert_eq!((&all[3]["job"], &all[4]["job"]), (&"".into(), &"x".repeat(5_000).into()));
    assert_eq!((&all[5]["malformed"], all[5].get("job")), (&true.into(), None));
    assert_eq!(all[5]["others"], serde_json::json!([{ "field": "co\u{202e}lor", "value": "r\ned" }]));
}

#[test]
fn list_pages_and_says_where_it_goes_on() {
    let mut shell = Shell::new(CONFIG);
    assert_eq!(shell.run(&["dead", "list"]), (0, String::new(), "no dead letter is found\n".to_owned()));
    let ids = bury_many(&mut shell.case, "b", 2_345);
    let (code, out, err) = shell.run(&["dead", "list"]);
    assert_eq!((code, out.lines().count()), (0, 300), "100 by default, three lines each");
    assert_eq!(err, format!("more: --after {}\n", ids[99]));
    let (mut found, mut after) = (Vec::new(), "0-0".to_owned());
    loop {
        let (code, out, err) = shell.run(&["dead", "list", "--json", "--limit", "1100", "--after", &after]);
        assert_eq!(code, 0);
        found.extend(objects(&out).iter().map(|one| one["entry"].as_str().expect("an id").to_owned()));
        let Some(more) = err.strip_prefix("more: --after ") else { break };
        more.trim().clone_into(&mut after);
    }
    assert_eq!(found, ids);
    // The last of a page that is full is the last one: there is no other page.
    let (_, out, err) = shell.run(&["dead", "list", "--json", "--after", &ids[2_342], "--limit", "2"]);
    assert_eq!((objects(&out).len(), err.as_str()), (2, ""));
    let script = format!(
        "cd {:?} && {:?} dead list --limit 2000 | head -1; echo ${{PIPESTATUS[0]}}",
        shell.home(),
        env!("CARGO_BIN_EXE_dripd")
    );
    let output = Command::new("bash").args(["-c", &script]).env_remove("DRIPD_REDIS_URL").output().expect("bash runs");
    let (_, out, err) = said(&output);
    assert!(out.ends_with("\n0\n") && err.is_empty(), "whoever has read enough: {out}{err}");
}

#[test]
fn retry_says_for_how_long_buckets_will_be_busy_asks_and_says_how_many_went_back() {
    let mut shell = Shell::new(CONFIG);
    bury_many(&mut shell.case, "fast", 50);
    bury_many(&mut shell.case, "slow", 10);
    let dead = shell.case.key("dead");
    let _: String = shell.case.cmd(&["XADD", &dead, "*", "some", "thing"]);
    let before = "60 dead letters of 2 buckets would go back, ahead of what waits there:\n  \
                  slow: 10 at 2/m, busy with them for 5m\n  fast: 50 at 10/s, busy with them for 5s\n";
    let (code, out, err) = at_a_terminal(&shell, &["dead", "retry"], "n\n");
    let no = "Put 60 dead letters back? [y/N] dripd dead: nothing was changed\n";
    assert_eq!((code, out.as_str(), err), (1, "", format!("{before}{no}")));
    let (code, out, err) = shell.run(&["dead", "retry"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        err,
        format!(
            "{before}dripd dead: Put 60 dead letters back? There is no terminal to ask at; add --yes if it is meant\n"
        )
    );
    assert_eq!(length(&mut shell.case), 61);
    let (code, out, err) = at_a_terminal(&shell, &["dead", "retry"], "yes\n");
    assert_eq!(code, 0, "{err}");
    assert_eq!(
        out,
        "60 dead letters put back, 1 malformed left alone (`dripd dead drop` deletes them); 1 dead letter in all now\n"
    );
    let no_daemon = "dripd dead: no daemon runs, so nothing leaves a bucket: start one with `dripd run`\n";
    assert_eq!(err, format!("{before}Put 60 dead letters back? [y/N] {no_daemon}"));
    assert_eq!((retries(&mut shell.case, "fast").len(), retries(&mut shell.case, "slow").len()), (50, 10));
    let (code, out, _) = shell.run(&["dead", "retry", "--json"]);
    let done = serde_json::json!({ "matched": 0, "put_back": 0, "gone": 0, "kept": 0, "malformed": 1, "left": 1 });
    assert_eq!((code, objects(&out)), (0, vec![done]), "what cannot go back needs no question");
    let (code, out, err) = shell.run(&["dead", "drop", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "1 dead letter dropped; 0 dead letters in all now\n"));
    assert_eq!(err, "1 dead letter, 1 malformed, would be deleted, and their jobs with them\n");
    let told: Vec<String> = shell.case.stream("events").iter().map(|event| event.text("after")).collect();
    assert_eq!(told, ["60 put back", "1 dropped"]);
}

#[test]
fn a_job_that_goes_back_reaches_a_worker_and_the_daemon_logs_what_operators_do() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nattempts = 1\n[[bucket]]\nmatch = 'slow'\nrate = '1/h'\n");
    let daemon = Daemon::start(shell.home());
    shell.case.lpush("b", &["twice"]);
    eventually("it leaves", || shell.case.stream("ready").len() == 1);
    let first = shell.case.take("ready", 1).remove(0);
    assert_eq!(shell.case.fcall::<i64>("drip_fail", &["ready"], std::slice::from_ref(&first.id)), 2);
    let (code, out, err) = shell.run(&["dead", "retry", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "1 dead letter put back; 0 dead letters in all now\n"), "{err}");
    eventually("it leaves again", || shell.case.stream("ready").len() == 1);
    let again = shell.case.take("ready", 1).remove(0);
    assert_eq!((again.text("job"), again.text("id"), again.number("attempt")), ("twice".into(), first.id, 1));
    assert_eq!(shell.case.fcall::<i64>("drip_fail", &["ready"], &[again.id]), 2);
    assert_eq!(shell.run(&["dead", "drop", "--yes"]).0, 0);
    shell.case.lpush("slow", &["1", "2"]);
    assert_eq!(shell.run(&["purge", "slow", "--yes"]).0, 0);
    for what in ["dead-retry", "dead-drop", "purge"] {
        eventually("the daemon logs it", || {
            let log = daemon.log();
            log.lines().any(|line| line.contains("changed at run time") && line.contains(&format!("what=\"{what}\"")))
        });
    }
}

#[test]
fn filters_find_by_bucket_reason_id_and_time() {
    let mut shell = Shell::new(CONFIG);
    let dead = shell.case.key("dead");
    for (entry, bucket, id, reason) in [
        ("1700000000000-0", "sms:a", "1690000000000-1", "http 500"),
        ("1750000000000-0", "sms:b", "1690000000000-1", "http 404"),
        ("1750000000000-5", "mail", "1690000000000-2", "lease expired"),
    ] {
        let words = ["XADD", &dead, entry, "bucket", bucket, "job", "x", "attempt", "2", "id", id, "reason", reason];
        let _: String = shell.case.cmd(&words);
    }
    let now: Vec<String> = bury(&mut shell.case, &[("sms:a", b"x", "http 500")]);
    let find = |shell: &Shell, filter: &[&str]| -> Vec<String> {
        let args: Vec<&str> = ["dead", "list", "--json"].iter().chain(filter).copied().collect();
        let (code, out, err) = shell.run(&args);
        assert_eq!(code, 0, "{err}");
        objects(&out).iter().map(|one| one["entry"].as_str().expect("an id").to_owned()).collect()
    };
    let old = ["1700000000000-0", "1750000000000-0", "1750000000000-5"];
    for (filter, expect) in [
        (&["--bucket", "sms:*"][..], &[old[0], old[1], &now[0]][..]),
        (&["--bucket", "sms:*", "--reason", "http 5*"], &[old[0], &now[0]]),
        (&["--reason", "lease expired"], &[old[2]]),
        (&["--id", "1690000000000-1"], &old[..2]),
        (&["--id", "1750000000000-5"], &[old[2]]),
        (&["--id", "1690000000000-1-822b33ad87c148a0"], &[]),
        (&["--before", "2025-06-15T15:06:40Z"], &old[..1]),
        (&["--before", "2025-06-15T17:06:40.001+02:00"], &old),
        (&["--before", "1h"], &old),
        (&["--before", "0s", "--bucket", "mail"], &[old[2]]),
    ] {
        assert_eq!(find(&shell, filter), expect, "{filter:?}");
    }
    // As workers and logs know a job: its identity tells the two with the same id apart.
    let (_, out, _) = shell.run(&["dead", "list", "--json", "--bucket", "sms:b"]);
    let known_as = objects(&out)[0]["identity"].as_str().expect("an identity").to_owned();
    assert_eq!(find(&shell, &["--id", &known_as]), [old[1]]);
    let (code, out, err) = shell.run(&["dead", "drop", "--yes", "--id", &known_as, "--json"]);
    let done = serde_json::json!({ "matched": 1, "dropped": 1, "gone": 0, "kept": 0, "malformed": 0, "left": 3 });
    assert_eq!((code, objects(&out)), (0, vec![done]), "{err}");
    let (code, out, _) = shell.run(&["dead", "retry", "--yes", "--before", "1h", "--limit", "1"]);
    assert_eq!((code, out.as_str()), (0, "1 dead letter put back; 2 dead letters in all now\n"));
    assert_eq!(retries(&mut shell.case, "sms:a").len(), 1);
    let events = shell.case.stream("events");
    assert_eq!(events[0].text("before"), format!("1 dead letter with id {known_as}"));
    assert!(!events[0].fields.contains_key("match"));
}

#[test]
fn what_makes_no_sense_is_refused_with_2_and_a_wrong_key_with_69() {
    let mut shell = Shell::new(CONFIG);
    for args in [
        &["dead"][..],
        &["dead", "bury"],
        &["dead", "list", "--limit", "0"],
        &["dead", "list", "--yes"],
        &["dead", "list", "--id", "no id"],
        &["dead", "list", "--after", "5"],
        &["dead", "list", "--before", "yesterday"],
        &["dead", "drop", "--yes", "--bucket", ""],
        &["dead", "retry", "--yes", "--reason", &"x".repeat(1_001)],
    ] {
        assert_eq!(shell.run(args).0, 2, "{args:?}");
    }
    let (dead, broken) = (shell.case.key("dead"), shell.case.key("retry:broken"));
    let _: () = shell.case.cmd(&["SET", &broken, "x"]);
    bury(&mut shell.case, &[("broken", b"x", "failed"), ("good", b"x", "failed")]);
    let (code, out, err) = shell.run(&["dead", "retry", "--yes"]);
    assert_eq!((code, out.as_str()), (1, "1 dead letter put back; 1 dead letter in all now\n"));
    assert!(err.contains(&format!("dripd dead: 1 dead letter could not be put back: {broken}: ")), "{err}");
    let _: i64 = shell.case.cmd(&["DEL", &dead]);
    let _: () = shell.case.cmd(&["SET", &dead, "x"]);
    for what in [&["dead", "list"][..], &["dead", "retry", "--yes"], &["dead", "drop", "--yes"]] {
        let (code, _, err) = shell.run(what);
        assert_eq!((code, err.lines().count()), (69, 1), "{err}");
        let tried = ["list dead letters", "put dead letters back", "delete dead letters"];
        let why = format!("{dead} holds a string and must hold a stream: rename or delete it\n");
        assert!(tried.iter().any(|tried| err == format!("dripd dead: cannot {tried}: {why}")), "{err}");
    }
}

/// Jobs 0 to n - 1: in the dead stream or the retries of bucket b, each in one of them and once.
#[track_caller]
fn assert_each_once(case: &mut Case, n: usize) {
    let (dead, back) = (case.jobs("dead"), retries(case, "b"));
    assert_eq!(dead.len() + back.len(), n);
    let all: BTreeSet<usize> = dead.iter().chain(&back).map(|job| job.parse().expect("a number")).collect();
    assert_eq!(all, (0..n).collect(), "nothing lost, nothing doubled");
}

/// Begin a retry, the first one or another, and kill it. Replies whether it was in the middle.
fn is_killed_in_the_middle(shell: &mut Shell, times: usize) -> bool {
    let before = length(&mut shell.case);
    let mut child = shell.spawn(&["dead", "retry", "--yes"]);
    eventually("some are back", || length(&mut shell.case) <= before - 200);
    child.kill().expect("it runs, or ran");
    let (code, out, err) = said(&child.wait_with_output().expect("it ends"));
    assert!(code == -1 || code == 0, "{code} {err}");
    if code == 0 || length(&mut shell.case) == 0 {
        return false;
    }
    assert_eq!(out, "", "it was killed");
    assert_each_once(&mut shell.case, 5_000);
    let begun = shell.case.stream("events");
    assert_eq!((begun.len(), begun[times - 1].text("after")), (times, "begun".to_owned()));
    true
}

#[test]
fn a_retry_that_was_killed_in_the_middle_lost_and_doubled_nothing_and_is_run_again() {
    // On a busy machine it may be through before it is killed: then once more.
    for attempt in 1.. {
        // One job a call: it takes long enough to be killed in the middle.
        let mut shell = Shell::new(&format!("{CONFIG}[limits]\nbatch = 1\n"));
        bury_many(&mut shell.case, "b", 5_000);
        if (1..=2).all(|times| is_killed_in_the_middle(&mut shell, times)) {
            let left = length(&mut shell.case);
            let (code, out, err) = shell.run(&["dead", "retry", "--yes"]);
            let told = format!("{left} dead letters put back; 0 dead letters in all now\n");
            assert_eq!((code, out), (0, told), "{err}");
            assert_each_once(&mut shell.case, 5_000);
            assert_eq!(retries(&mut shell.case, "b").len(), 5_000);
            assert_eq!(shell.case.stream("events")[2].text("after"), format!("{left} put back"));
            return;
        }
        assert!(attempt < 5, "it was in the middle");
    }
}

#[test]
fn two_operators_who_press_at_the_same_time_put_each_job_back_once() {
    let mut shell = Shell::new(&format!("{CONFIG}[limits]\nbatch = 5\n"));
    bury_many(&mut shell.case, "b", 5_000);
    let all = [(); 3].map(|()| shell.spawn(&["dead", "retry", "--yes", "--json"]));
    let mut sum = 0;
    for one in all {
        let (code, out, err) = said(&one.wait_with_output().expect("it ends"));
        assert_eq!(code, 0, "{err}");
        let object = &objects(&out)[0];
        let n = |name: &str| object[name].as_u64().expect("a number");
        assert_eq!(n("put_back") + n("gone"), n("matched"), "{object}");
        sum += n("put_back");
    }
    assert_eq!(sum, 5_000);
    assert_each_once(&mut shell.case, 5_000);
    assert_eq!(retries(&mut shell.case, "b").len(), 5_000);
}
