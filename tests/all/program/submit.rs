//! Jobs with options by the command line and over HTTP.

use serde_json::json;

use super::Shell;
use super::http::Door;
use crate::rig::{Case, Daemon, Server, eventually};

#[test]
fn push_takes_options_and_says_what_became_of_the_job() {
    let shell = Shell::new("[defaults]\nrate = '1/h'\ncost_max = 100\ncapacity = 2\n");
    let (code, out, err) = shell.run(&["push", "b", "one", "--id", "order-7", "--header", "Traceparent: 00-x"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "queued: 1 of 2 waiting, due in 0 ms, id order-7\n", ""));
    let (code, out, _) = shell.run(&["push", "b", "one", "--id", "order-7"]);
    assert_eq!((code, out.as_str()), (0, "duplicate: 1 of 2 waiting, due in 0 ms, id order-7\n"));
    let (code, out, _) = shell.run(&["push", "b", "later", "--delay", "90s", "--cost", "3", "--id", "d"]);
    assert_eq!((code, out.starts_with("delayed: 1 of 2 waiting, due in ")), (0, true), "{out}");
    let (_, out, _) = shell.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&status["delayed"], &status["retrying"]), (&json!(1), &json!(1)));
    assert!(shell.run(&["status"]).1.contains("\ndelayed     1 job waits for its time\n"));
    let (code, _, err) = shell.run(&["push", "b", "late", "--ttl", "1s"]);
    assert_eq!((code, err.contains("could not let it out in time")), (75, true), "{err}");
    assert_eq!(shell.run(&["push", "b", "two"]).0, 0);
    let (code, _, err) = shell.run(&["push", "b", "three", "--cost", "2"]);
    assert_eq!((code, err.contains("b is full, 2 of 2")), (75, true), "{err}");
    for wrong in [
        &["push", "b", "x", "--delay", "1s", "--at", "2040-01-01T00:00:00Z"][..],
        &["push", "b", "x", "--cost", "0"],
        &["push", "b", "x", "--header", "no colon"],
        &["push", "b", "--file", "-", "--id", "x"],
        &["job", "cancel", "b"],
        &["job", "cancel", "b", "x", "--delayed"],
    ] {
        assert_eq!(shell.run(wrong).0, 2, "{wrong:?}");
    }
    let (code, out, _) = shell.run(&["job", "find", "b", "order-7"]);
    assert_eq!((code, out.as_str()), (0, "order-7: queued, attempt 1, due in 0 ms\n"));
    assert_eq!(shell.run(&["job", "find", "b", "nobody", "--json"]).0, 1);
    let (code, out, _) = shell.run(&["job", "cancel", "b", "order-7"]);
    assert_eq!((code, out.as_str()), (0, "order-7: cancelled; it is dropped when its turn comes\n"));
    let (code, _, err) = shell.run(&["job", "cancel", "b", "nobody"]);
    assert_eq!((code, err.contains("b knows no job nobody")), (1, true), "{err}");
    let (code, out, _) = shell.run(&["job", "cancel", "b", "--delayed", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "b: 1 delayed jobs dropped\n"));
    assert_eq!(shell.run(&["job", "find", "b", "d"]).1, "d: unknown\n");
}

#[test]
fn a_job_that_waits_is_replaced_by_the_command_by_a_file_and_over_http() {
    let mut door = Door::open("[defaults]\nrate = '1/h'\ncapacity = 2\n");
    assert_eq!(door.push("a", b"first").status, 202);
    eventually("it leaves its place to others", || door.shell.case.stream("ready").len() == 1);
    for id in ["1", "2"] {
        let (code, out, err) = door.shell.run(&["push", "a", "old", "--id", id, "--replace"]);
        assert_eq!((code, out.starts_with("queued: ")), (0, true), "{out}{err}");
    }
    let (code, out, err) = door.shell.run(&["push", "a", "new 1", "--id", "1", "--replace"]);
    assert_eq!((code, out.starts_with("replaced: 2 of 2 waiting")), (0, true), "{out}{err}");
    let file = door.shell.file("jobs", "{\"id\":\"2\",\"n\":1}\n{\"id\":\"2\",\"n\":2}\n{\"id\":\"3\",\"n\":3}\n");
    let (code, _, err) = door.shell.run(&["push", "a", "--file", &file, "--id-from", ".id", "--replace"]);
    assert_eq!((code, err.contains("2 accepted, 1 rejected")), (75, true), "{err}");
    for wrong in [&["push", "a", "x", "--replace"][..], &["push", "a", "--file", &file, "--replace"]] {
        assert_eq!(door.shell.run(wrong).0, 2, "which job is to be replaced is not said: {wrong:?}");
    }
    let push = |headers: &[(&str, &str)]| door.ask("POST /v1/buckets/a/jobs", headers, b"over http");
    let said = push(&[("Drip-Id", "1"), ("Drip-Replace", "true")]).json(200);
    assert_eq!((&said["verdict"], &said["accepted"], &said["depth"]), (&json!("replaced"), &json!(1), &json!(2)));
    assert_eq!(push(&[("Drip-Id", "1"), ("Drip-Replace", "false")]).json(200)["verdict"], "duplicate");
    assert_eq!(push(&[("Drip-Replace", "true")]).status, 400);
    assert_eq!(push(&[("Drip-Id", "1"), ("Drip-Replace", "yes")]).status, 400);
    let too_dear = push(&[("Drip-Id", "1"), ("Drip-Cost", "2")]);
    assert!(too_dear.status == 400 && String::from_utf8_lossy(&too_dear.body).contains("cost_max is 1"));
    let page: Vec<redis::Value> = door.shell.case.fcall("drip__front", &["queue:a"], &["", "10", "100"]);
    let shown: Vec<String> =
        page[1..].chunks(2).map(|of| redis::from_redis_value(of[1].clone()).expect("a job")).collect();
    assert_eq!(shown, ["over http", "{\"id\":\"2\",\"n\":2}"], "an operator sees what will leave");
}

#[test]
fn headers_of_a_push_over_http_are_options_and_a_job_is_found_and_cancelled_by_its_id() {
    let mut door = Door::open("[defaults]\nrate = '1/h'\ncost_max = 100\ncapacity = 3\n");
    assert_eq!(door.push("a", b"first").status, 202);
    eventually("it leaves its place to others", || door.shell.case.stream("ready").len() == 1);
    let push = |headers: &[(&str, &str)]| door.ask("POST /v1/buckets/a/jobs", headers, b"x");
    let said = push(&[("Drip-Id", "order-7"), ("Drip-Cost", "2"), ("traceparent", "00-1")]).json(202);
    assert_eq!((&said["verdict"], &said["id"], &said["by"]), (&json!("queued"), &json!("order-7"), &json!("a")));
    assert_eq!(push(&[("Drip-Id", "order-7")]).json(200)["verdict"], "duplicate");
    assert_eq!(push(&[("Drip-Delay", "90s"), ("Drip-Id", "d")]).json(202)["verdict"], "delayed");
    assert_eq!(push(&[("Drip-Delay", "90000")]).json(202)["verdict"], "delayed");
    assert_eq!(push(&[("Drip-Ttl", "1s")]).problem(429).0, "late");
    for wrong in [("Drip-Ttl", "soon"), ("Drip-Cost", "0"), ("Drip-Cost", "x"), ("Drip-Id", "a b")] {
        assert_eq!(push(&[wrong]).status, 400, "{wrong:?}");
    }
    let found = door.get("/v1/buckets/a/jobs/order-7").json(200);
    assert_eq!((&found["state"], &found["attempt"]), (&json!("queued"), &json!(1)));
    assert_eq!(door.get("/v1/buckets/a/jobs/nobody").problem(404).0, "unknown-job");
    let cancel = |id: &str| door.ask(&format!("DELETE /v1/buckets/a/jobs/{id}"), &[], b"");
    assert_eq!(cancel("order-7").json(200)["cancelled"], true);
    assert_eq!(door.get("/v1/buckets/a/jobs/order-7").problem(404).0, "unknown-job", "its id is free");
    assert_eq!(cancel("nobody").problem(404).0, "unknown-job");
    assert_eq!(push(&[("Drip-Cost", "1")]).status, 202);
    assert_eq!(push(&[("Drip-Cost", "1")]).status, 202);
    assert_eq!(push(&[("Drip-Cost", "1")]).problem(429).0, "full");
}

#[test]
fn a_deadline_that_an_operator_set_holds_for_single_pushes_over_http_as_one_of_the_file_does() {
    let door = Door::open("[defaults]\nrate = '1/h'\n[[bucket]]\nmatch = 'file'\nttl = '2s'\n");
    assert_eq!(door.push("file", b"x").json(202)["verdict"], "queued");
    assert_eq!(door.push("set", b"x").json(202), json!({ "accepted": 1, "depth": 1, "capacity": 1000, "eta_ms": 0 }));
    assert_eq!(door.shell.run(&["set", "set", "ttl=2s"]).0, 0);
    assert_eq!(door.push("set", b"late").problem(429).0, "late");
    let lines =
        door.ask("POST /v1/buckets/set/jobs?split=lines", &[("Content-Type", "application/x-ndjson")], b"1\n2\n");
    assert_eq!(lines.json(200)["accepted"], 2, "lines tell no time");
    assert_eq!(door.shell.run(&["unset", "set", "ttl"]).0, 0);
    assert_eq!(door.push("set", b"x").status, 202);
}

#[test]
fn a_correction_counts_for_a_daemon_that_starts_after_another_was_killed() {
    let toml = "[[budget]]\nmatch = 'up'\nrate = '1000/s'\ncatch_up = '0s'\n\
                [defaults]\nrate = '1000/s'\ncatch_up = '0s'\nwithin = 'up'\n";
    // 2.4 s of credit, of which a job of 2 s takes 2/4.4; and 0.5 s of debt.
    for (units, charged) in [("-2400", 909), ("+500", 2_500)] {
        let server = Server::start(&[]);
        let home = server.home(toml);
        let mut first = Daemon::start(home.path());
        let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
        let submit = |case: &mut Case, cost: &str| {
            let _: redis::Value = case.fcall("drip_submit", &["queue:a"], &["x", "COST", cost]);
        };
        submit(&mut case, "2500");
        let stream = case.key("ready");
        eventually("it has left", || case.cmd::<i64>(&["XLEN", &stream]) == 1);
        first.kill();
        let entry = case.take("ready", 1).remove(0);
        submit(&mut case, "2000");
        assert_eq!(case.fcall::<i64>("drip_adjust", &["ready"], &[entry.id.as_str(), units]), 1);
        let _second = Daemon::start(home.path());
        eventually("the next one has left", || case.cmd::<i64>(&["XLEN", &stream]) == 2);
        let next = case.stream("ready").remove(1);
        let waited_us = next.number("at_us") - entry.number("at_us");
        assert!(waited_us >= 2_500_000, "{units}: no due moves, and the next one left after {waited_us}");
        assert_eq!(next.number("charged"), charged, "{units}");
        assert_eq!(case.fcall::<i64>("drip_adjust", &["ready"], &[entry.id.as_str(), units]), 0, "once");
    }
}

#[test]
fn lines_of_a_file_have_their_ids_and_costs_in_fields_so_that_it_can_be_pushed_again() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncost_max = 100000\ncapacity = 3\n");
    let lines = [
        r#"{"n":1,"order":"a-1","tokens":40}"#,
        r#"{"n":2,"order":2,"tokens":"7"}"#,
        r#"{"n":3,"order":"a-1","tokens":1}"#,
        r#"{"n":4,"tokens":1}"#,
        r#"{"n":5,"order":"with space","tokens":1}"#,
        r#"{"n":6,"order":"a-6","tokens":0}"#,
        "no json",
        r#"{"n":8,"order":"a-8","tokens":100000}"#,
        r#"{"n":9,"order":"a-9","tokens":5}"#,
    ];
    let file = shell.file("jobs", &lines.join("\n"));
    let rejected = shell.file("rejected", "");
    let push = ["push", "b", "--file", &file, "--id-from", ".order", "--cost-from", ".tokens", "--rejected", &rejected];
    let (code, _, err) = shell.run(&push);
    assert_eq!(code, 1, "{err}");
    for said in [
        "line 4 has no .order; skipped",
        "line 5 .order is no id: 1 to 200 bytes of ! to ~; skipped",
        "line 6 .tokens is no cost: a whole number, 1 to 100000; skipped",
        "line 7 is no JSON: ",
        "4 accepted (1 of them before), 1 rejected, 4 skipped\n",
    ] {
        assert!(err.contains(said), "{said} is not in\n{err}");
    }
    assert_eq!(std::fs::read_to_string(&rejected).expect("it is there"), format!("{}\n", lines[8]));
    let (_, _, err) = shell.run(&push);
    assert!(err.ends_with("4 accepted (4 of them before), 1 rejected, 4 skipped\n"), "{err}");
    assert_eq!(shell.run(&["job", "find", "b", "a-8", "--json"]).0, 0);
    let _daemon = crate::rig::Daemon::start(shell.home());
    let ready = shell.case.key("ready");
    crate::rig::eventually("the first has left", || shell.case.cmd::<u64>(&["XLEN", &ready]) == 1);
    let first = &shell.case.stream("ready")[0];
    assert_eq!((first.text("id"), first.text("cost"), first.text("job")), ("a-1".into(), "40".into(), lines[0].into()));
    let (code, _, err) = shell.run(&["push", "b", "x", "--id-from", ".order"]);
    assert_eq!((code, err.contains("--id-from")), (2, true), "{err}");
}

#[test]
fn a_file_with_buckets_and_ids_in_fields_waits_for_room_and_gives_up_what_would_be_late() {
    let mut shell =
        Shell::new("[defaults]\nrate = '100/s'\ncapacity = 2\n[[bucket]]\nmatch = 'slow'\nrate = '1/h'\nttl = '30m'\n");
    let _daemon = crate::rig::Daemon::start(shell.home());
    let all = (0..20).map(|n| format!("{{\"to\":\"fast\",\"id\":{n}}}\n")).collect::<Vec<_>>().concat();
    let late = "{\"to\":\"slow\",\"id\":1}\n{\"to\":\"slow\",\"id\":2}\n{\"to\":\"slow\",\"id\":3}\n";
    let file = shell.file("jobs", &(late.to_owned() + &all));
    let (code, _, err) = shell.run(&["push", "--file", &file, "--bucket-from", ".to", "--id-from", ".id", "--wait"]);
    assert_eq!(code, 75, "{err}");
    assert!(err.ends_with("21 accepted, 2 rejected, 0 skipped\n"), "{err}");
    let ready = shell.case.key("ready");
    crate::rig::eventually("all have left", || shell.case.cmd::<u64>(&["XLEN", &ready]) == 21);
    let ids: Vec<String> =
        shell.case.stream("ready").iter().filter(|e| e.text("bucket") == "fast").map(|e| e.text("id")).collect();
    assert_eq!(ids, (0..20).map(|n| n.to_string()).collect::<Vec<_>>(), "in their order");
}

#[test]
fn lines_with_ids_take_few_calls_also_where_the_bucket_is_full() {
    let server = Server::start(&[]); // nobody else calls it
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 300\n");
    let lines = (0..450).map(|n| format!("{{\"id\":{n}}}\n")).collect::<Vec<_>>().concat();
    let file = shell.file("jobs", &lines);
    let rejected = shell.file("rejected", "");
    let calls = |case: &mut Case| -> u64 {
        let stats: String = case.cmd(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls="));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    let (code, _, err) = shell.run(&["push", "b", "--file", &file, "--id-from", ".id", "--rejected", &rejected]);
    assert_eq!((code, err.ends_with("300 accepted, 150 rejected, 0 skipped\n")), (75, true), "{err}");
    let made = calls(&mut shell.case);
    assert!(made < 45, "{made} calls for 450 lines");
    let back = lines.lines().skip(300).map(|line| line.to_owned() + "\n").collect::<Vec<_>>().concat();
    assert_eq!(std::fs::read_to_string(&rejected).expect("it is there"), back);
    let queue = shell.case.queue("b");
    assert_eq!(shell.case.cmd::<u64>(&["LLEN", &queue]), 300);
}
