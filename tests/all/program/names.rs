//! Names and globs on the command line and over HTTP: one rule for both, said in the answer, with the way out; and what people are shown of
//! times and of bytes that nobody sees.

use serde_json::{Value, json};

use super::Shell;
use super::http::{Door, OPS, TOKENS};

/// A command that must do what it is asked for. Replies what it said.
fn done(shell: &Shell, args: &[&str]) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}: {out}");
    out
}

#[test]
fn a_glob_is_no_name_and_says_how_the_one_of_that_very_name_is_written() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    for bucket in ["h[1]", "h1", "[2001:db8::1]", "sms:a"] {
        shell.case.push_at(crate::rig::T0, bucket, &["1", "2"]);
    }
    let out = done(&shell, &["pause", "h[1]"]);
    let way_out = r#"; "h[1]" is a glob: for the one of this very name write 'h\[1\]'"#;
    assert_eq!(out, format!("h[1]: paused; 1 bucket with work now; none of their jobs is out{way_out}\n"));
    let empty = Shell::new(""); // no daemon runs, and where nothing waits none is needed to spread a change
    done(&empty, &["pause", "h[1]"]);
    assert_eq!(done(&empty, &["resume", "h[1]"]), format!("h[1]: paused no more{way_out}\n"));
    let out = done(&empty, &["set", "h[1]", "rate=2/h"]);
    assert_eq!(out, format!("h[1]: rate = \"2/h\" (before: as in the file){way_out}\n"));

    let (code, _, err) = shell.run(&["pause", "[2001:db8::1]"]);
    assert!(code == 2 && err.contains(r"write '\[2001:db8::1\]'") && !err.contains("means every"), "{code} {err}");
    assert_eq!(done(&shell, &["pause", r"\[2001:db8::1\]"]), "[2001:db8::1]: paused; none of its jobs is out\n");
    let status = done(&shell, &["status", r"\[2001:db8::1\]"]);
    assert!(status.contains(r"`dripd resume '\[2001:db8::1\]'` ends that"), "{status}");
    let explained = done(&shell, &["explain", r"\[2001:db8::1\]"]);
    assert!(explained.contains(r"nothing leaves until `dripd resume '\[2001:db8::1\]'`"), "{explained}");
    assert_eq!(done(&shell, &["resume", r"\[2001:db8::1\]"]), "[2001:db8::1]: paused no more\n");

    for one in [
        &["slow", "sms:*", "30s"][..],
        &["slow", "sms:a", "30s", "--in", "t*"],
        &["told", "sms:*", "5", "30s"],
        &["purge", "sms:*", "--yes"],
        &["explain", "sms:*"],
        &["what-if", "sms:*", "--push", "1"],
        &["status", "sms:*"],
        &["job", "find", "sms:*", "1"],
        &["job", "cancel", "sms:*", "1"],
        &["job", "cancel", "sms:*", "--delayed", "--yes"],
    ] {
        let (code, out, err) = shell.run(one);
        assert_eq!((code, out.as_str()), (2, ""), "{one:?}: {err}");
        assert!(err.contains(r"write 'sms:\*'") || one.contains(&"--in"), "{one:?}: {err}");
        assert!(err.contains("one name is needed here"), "{one:?}: {err}");
    }
    assert_eq!(shell.case.waiting("sms:a").len(), 2);
    assert_eq!(done(&shell, &["slow", r"h\[1\]", "30s"]), "h[1]: goes on in 30.0 s\n");
    assert!(done(&shell, &["purge", r"h\[1\]", "--yes"]).starts_with("h[1]: 2 jobs thrown away"));
    assert!(shell.case.waiting_is_empty("h[1]") && shell.case.waiting("h1").len() == 2);
    // Programs ask for the partition of a name and push to it: there a name is a name.
    let (code, _, err) = shell.run(&["partition", "sms:*"]);
    assert!(code == 0 && err.contains("is taken as the name of one bucket"), "{err}");
    assert_eq!(shell.run(&["push", "sms:*", "x"]).0, 0);
    assert_eq!(shell.case.waiting("sms:*").len(), 1);
}

#[test]
fn a_name_that_no_bucket_has_is_said() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    shell.case.push_at(crate::rig::T0, "acme", &["1", "2"]);
    let note = "no job waits in a bucket of this name";
    for (args, says) in [
        (&["pause", "acmee"][..], "acmee: paused; none of its jobs is out"),
        (&["close", "acmee"], "acmee: closed"),
        (&["slow", "acmee", "30s"], "acmee: goes on in 30.0 s"),
        (&["told", "acmee", "5", "30s"], "acmee: 5 more jobs until its limit resets in 30.0 s"),
        (&["told", "acmee", "clear"], "acmee: what was told is forgotten"),
    ] {
        assert_eq!(done(&shell, args), format!("{says}; {note}\n"));
    }
    let out = done(&shell, &["set", "acmee", "rate=2/h"]);
    assert_eq!(out, format!("acmee: rate = \"2/h\" (before: as in the file); {note}\n"));
    for args in [&["pause", "acme"][..], &["set", "acme", "rate=2/h"], &["slow", "acme", "30s"], &["pause", "ac*"]] {
        assert!(!done(&shell, args).contains("no job waits"), "{args:?}");
    }
}

#[test]
fn over_http_a_path_has_a_name_and_match_has_a_glob() {
    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\n{TOKENS}"));
    for bucket in ["h[1]", "h1"] {
        door.shell.case.push_at(crate::rig::T0, bucket, &["1", "2"]);
    }
    let said = door.operate("POST /v1/buckets/h%5B1%5D/pause", &Value::Null).json(200);
    assert_eq!((&said["match"], &said["glob"], &said["note"]), (&json!("h[1]"), &json!(false), &Value::Null));
    let said = door.operate("POST /v1/buckets/pause?match=h%5B1%5D", &Value::Null).json(200);
    assert_eq!(said["glob"], json!(true));
    assert!(said["note"].as_str().is_some_and(|note| note.contains(r"write 'h\[1\]'")), "{said}");
    let said = door.operate(r"POST /v1/buckets/resume?match=h%5C%5B1%5C%5D", &Value::Null).json(200);
    assert_eq!((&said["match"], &said["glob"], &said["done"]), (&json!("h[1]"), &json!(false), &json!(true)));
    let said = door.operate("POST /v1/buckets/nobody/slow", &json!({"for": "30s"})).json(200);
    assert_eq!(said["note"], "no job waits in a bucket of this name");
    let one = door.ask(r"GET /metrics/buckets?match=h%5C%5B1%5C%5D", &[OPS], b"");
    assert!(one.status == 200 && String::from_utf8_lossy(&one.body).contains("bucket=\"h[1]\""), "one is named");
}

#[test]
fn a_list_of_dead_letters_ends_after_so_many_calls_and_goes_on_there() {
    let mut door = Door::open(&format!("[limits]\nbatch = 1\n{TOKENS}"));
    let key = door.shell.case.key("dead");
    let mut pipe = redis::pipe();
    for n in 1..=2_000 {
        let fields = ["bucket", "b", "job", "x", "attempt", "1", "id", "1-1", "reason", "failed"];
        pipe.cmd("XADD").arg(&key).arg(format!("{n}-0")).arg(&fields).ignore();
    }
    pipe.query::<()>(&mut door.shell.case.redis).expect("added");
    // A call looks at four batches, of one letter each, and a request makes 256 calls.
    let mut after = String::new();
    for (n, next) in [(1, json!("1024-0")), (2, Value::Null)] {
        let said = door.ask(&format!("GET /v1/dead?reason=nothing{after}"), &[OPS], b"").json(200);
        assert_eq!((said["letters"].as_array().map(Vec::len), &said["next"]), (Some(0), &next), "{n}");
        after = "&after=1024-0".to_owned();
    }
}

#[test]
fn a_byte_order_mark_is_said_where_nobody_would_see_it() {
    let shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let file = shell.file("bom.ndjson", "\u{feff}{\"to\":\"a\"}\n{\"to\":\"a\"}\n");
    let (code, _, err) = shell.run(&["push", "--file", &file, "--bucket-from", ".to"]);
    assert_eq!(code, 1);
    assert!(err.contains("line 1 is no JSON: it begins with a byte order mark (BOM, ef bb bf): write UTF-8"), "{err}");
    assert!(err.contains("1 accepted, 0 rejected, 1 skipped"), "{err}");
    let (code, _, err) = shell.run(&["push", "--file", &file, "plain"]);
    assert!(code == 0 && err.contains("line 1, its job with it, begins with a byte order mark"), "{code} {err}");

    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\n{TOKENS}"));
    let kind = ("Content-Type", "application/x-ndjson");
    let body = "\u{feff}{\"a\":1}\n{\"a\":2}\n".as_bytes();
    let (_, detail) = door.ask("POST /v1/buckets/a/jobs?split=lines", &[OPS, kind], body).problem(400);
    assert!(detail.contains("the body begins with a byte order mark (BOM, ef bb bf)"), "{detail}");
    assert!(door.shell.case.waiting_is_empty("a"));
    let (_, detail) = door.ask("POST /v1/what-if", &[OPS], "\u{feff}{}".as_bytes()).problem(400);
    assert!(detail.contains("it begins with a byte order mark"), "{detail}");
}

#[test]
fn times_and_values_are_shown_so_that_people_can_read_them() {
    let mut shell =
        Shell::new("[defaults]\nrate = '1/h'\ncapacity = 10000\n[[bucket]]\nmatch = 'week'\nquota = '5/7d'\n");
    let (code, _, err) = shell.run(&["set", "acme", "quota=1/d@Europe/Berlin"]);
    assert!(code == 2 && err.contains("quota: \"1/d@Europe/Berlin\" is not allowed"), "{err}");
    done(&shell, &["set", "acme", "rate=2/h", "--for", "1234567s"]);
    let key = shell.case.key("events");
    let events = format!("{:?}", shell.case.cmd::<redis::Value>(&["XREVRANGE", &key, "+", "-", "COUNT", "1"]));
    assert!(events.contains("for 1234567s"), "{events}");
    let out = done(&shell, &["push", "late", "x", "--delay", "200d", "--id", "x"]);
    assert!(out.contains(", due in 200 d") || out.contains(", due in 199 d "), "{out}");
    let out = done(&shell, &["job", "find", "late", "x"]);
    assert!(out.contains(", due in 200 d") || out.contains(", due in 199 d "), "{out}");
    done(&shell, &["push", "week", "x"]);
    let out = done(&shell, &["explain", "week"]);
    assert!(out.contains("0 of its quota of 5/7d used, its window ends in "), "{out}");
    assert!(out.contains(" (weeks begin on Thursday)"), "{out}");
}
