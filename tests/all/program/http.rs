//! The HTTP server from outside, over raw sockets: what a request is answered, byte for byte. Here: the requests that only ask.

use serde_json::{Value, json};

pub use crate::door::{Answer, BILLING, Door, EYES, OPS, TOKENS, exchange, next_answer, port_of, written};
use crate::rig::eventually;

#[test]
fn what_is_nowhere_is_404_and_a_wrong_method_405_with_those_that_are_right() {
    let door = Door::open(TOKENS);
    for target in ["/v1", "/v1/", "/v1/bucket/a", "/v1/buckets/a/b/c/d", "/v1/buckets/a/", "/v2/status", "/x%00"] {
        let (error, detail) = door.get(target).problem(404);
        assert!(error == "not-found" && detail.contains("there is nothing at /"), "{target}: {detail}");
    }
    for (request, allowed) in [
        ("PUT /v1/buckets/a/jobs", "GET,HEAD,POST"),
        ("PUT /v1/buckets/a", "GET,HEAD"),
        ("POST /v1/status", "GET,HEAD"),
        ("OPTIONS /v1/buckets/a/settings", "PATCH,DELETE"),
        ("DELETE /v1/buckets/pause", "GET,HEAD,POST"),
        ("POST /v1/buckets/jobs", "GET,HEAD"),
    ] {
        let answer = door.ask(request, &[], b"");
        assert_eq!(answer.problem(405).0, "method-not-allowed", "{request}");
        let mut is: Vec<&str> = answer.header("allow").expect("Allow").split(',').collect();
        let mut should: Vec<&str> = allowed.split(',').collect();
        is.sort_unstable();
        should.sort_unstable();
        assert_eq!(is, should, "{request}");
    }
    // Budgets are neither closed nor purged.
    for request in ["POST /v1/budgets/a/close", "POST /v1/budgets/a/purge", "POST /v1/budgets/a/jobs"] {
        door.operate(request, &Value::Null).problem(404);
    }
}

#[test]
fn the_state_of_all_of_a_bucket_and_of_a_budget_is_what_the_commands_say() {
    let toml = "[defaults]\nrate = '1/h'\ncapacity = 5\n[[budget]]\nmatch = 'two words'\nrate = '2/h'\n\
                [[bucket]]\nmatch = 'below:*'\nwithin = 'two words'\n";
    let mut door = Door::open(&format!("{toml}{TOKENS}"));
    door.shell.case.lpush("below:a/b", &["1", "2", "3"]);
    eventually("one has left", || door.shell.case.stream("ready").len() == 1);
    let status = door.get("/v1/status").json(200);
    let (_, said, _) = door.shell.run(&["status", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let names = |of: &Value| of.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&status), names(&said));
    let bucket = door.get("/v1/buckets/below:a%2Fb").json(200);
    assert_eq!((&bucket["status"]["depth"], &bucket["status"]["capacity"]), (&json!(2), &json!(5)), "{bucket}");
    let (_, said, _) = door.shell.run(&["explain", "below:a/b", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(names(&bucket["explanation"]), names(&said));
    eventually("both say the same", || {
        let (_, said, _) = door.shell.run(&["explain", "below:a/b", "--json"]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        door.get("/v1/buckets/below:a%2Fb").json(200)["explanation"]["binds"] == said["binds"]
    });
    let budget = door.get("/v1/budgets/two%20words").json(200);
    let (_, said, _) = door.shell.run(&["explain", "two words", "--budget", "--json"]);
    assert_eq!(names(&budget), names(&serde_json::from_str(&said).expect("JSON")));
    assert!(door.get("/v1/budgets/none").problem(404).1.contains("no [[budget]]"));
    assert_eq!(door.get("/v1/buckets/a%7D").problem(400).0, "bad-name");
    assert_eq!(door.ask("HEAD /v1/status", &[], b"").body, b"", "a HEAD has no body");
}

#[test]
fn the_top_of_buckets_is_sorted_filtered_limited_and_says_how_old_it_is() {
    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\n{TOKENS}"));
    for (bucket, jobs) in [("sms:a", 2), ("sms:b", 4), ("mail:c", 6)] {
        door.shell.case.lpush(bucket, &vec!["x"; jobs]);
    }
    let names = |answer: &Value| {
        let rows = answer["rows"].as_array().expect("rows").iter();
        rows.map(|row| row["bucket"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let mut top = Value::Null;
    eventually("the walk has seen them", || {
        top = door.get("/v1/buckets?by=depth").json(200);
        names(&top) == ["mail:c", "sms:b", "sms:a"] && top["rows"][0]["depth"] == 5
    });
    assert!(top["as_of"].is_string() && top["age_ms"].as_u64().is_some_and(|age| age < 600_000), "{top}");
    assert_eq!(names(&door.get("/v1/buckets?by=depth&match=sms:*&limit=1").json(200)), ["sms:b"]);
    for (query, says) in [
        ("by=name", "by=\"name\" is not known"),
        ("limit=0", "limit=0 is not allowed; write 1 to 1000"),
        ("limit=1001", "limit=1001"),
        ("limit=x", "limit"),
        ("sort=depth", "unknown field `sort`"),
        ("by=depth&by=late", "duplicate"),
    ] {
        let (error, detail) = door.get(&format!("/v1/buckets?{query}")).problem(400);
        assert!(error == "bad-request" && detail.contains(says), "{query}: {detail}");
    }
}

#[test]
fn a_forecast_changes_nothing_and_a_limiter_answers_as_the_command() {
    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\ncapacity = 5\n{TOKENS}"));
    door.shell.case.lpush("a", &["1", "2"]);
    eventually("one has left", || door.shell.case.stream("ready").len() == 1);
    let said = door.operate("POST /v1/what-if", &json!({"bucket": "a", "set": {"rate": "2/h"}, "push": 9})).json(200);
    assert_eq!(door.shell.case.waiting("a"), ["2"]);
    let (_, command, _) = door.shell.run(&["what-if", "a", "rate=2/h", "--push", "9", "--json"]);
    let command: Value = serde_json::from_str(&command).expect("JSON");
    assert_eq!(
        said.as_object().map(|of| of.keys().collect::<Vec<_>>()),
        command.as_object().map(|of| of.keys().collect())
    );
    for (words, says) in [
        (json!({"bucket": "a", "set": {"rate": "fast", "lease": 1}}), vec!["rate", "lease"]),
        (json!({"push": 1}), vec!["missing field `bucket`"]),
        (json!({"bucket": "a", "puhs": 1}), vec!["unknown field `puhs`"]),
        (json!({"bucket": "a", "push": 10_000_001}), vec!["at most 10000000 jobs"]),
    ] {
        let (_, detail) = door.operate("POST /v1/what-if", &words).problem(400);
        assert!(says.iter().all(|part| detail.contains(part)), "{words}: {detail}");
    }
    assert_eq!(door.operate("POST /v1/what-if", &json!({"bucket": "{a}"})).problem(400).0, "bad-name");

    let ask = |words: Value| door.operate("POST /v1/limit/fixed-window/user%2F1", &words);
    let first = ask(json!({"rate": "2/1h", "quantity": 2})).json(200);
    assert_eq!((&first["limited"], &first["limit"], &first["remaining"]), (&json!(false), &json!(2), &json!(0)));
    let refused = ask(json!({"rate": "2/1h"}));
    let body = refused.json(429);
    assert_eq!((&body["error"], &body["limited"], &body["status"]), (&json!("limited"), &json!(true), &json!(429)));
    let seconds = body["retry_after_ms"].as_u64().expect("a time").div_ceil(1_000);
    assert_eq!(refused.header("retry-after"), Some(seconds.to_string().as_str()));
    assert!(ask(json!({"rate": "2/1h", "quantity": 3})).problem(400).1.contains("can never pass"));
    for words in [json!({"rate": "fast"}), json!({}), json!({"rate": "1/s", "capacity": 3}), json!([])] {
        ask(words).problem(400);
    }
    assert_eq!(door.operate("POST /v1/limit/no-such/k", &json!({"rate": "1/s"})).problem(404).0, "not-found");
}

#[test]
fn no_cache_keeps_an_answer_but_the_files_of_the_dashboard_which_it_asks_for_again() {
    let door = Door::open(&format!("[defaults]\nrate = '1/h'\n{TOKENS}"));
    for target in
        ["/healthz", "/readyz", "/metrics", "/v1/status", "/v1/buckets/a", "/v1/dead", "/v1/no", "/v1/buckets/%ff"]
    {
        for token in [OPS, BILLING, ("X-Token", "none")] {
            let answer = door.ask(&format!("GET {target}"), &[token], b"");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{target} {}", answer.head);
        }
    }
    assert_eq!(door.operate("POST /v1/buckets/a/pause", &Value::Null).header("cache-control"), Some("no-store"));
    for target in ["/", "/assets/app.js", "/openapi.json"] {
        assert_eq!(door.get(target).header("cache-control"), Some("no-cache"), "{target}");
    }
}
