//! What operators do over HTTP, and its effect in Redis: the same as that of the commands.

use serde_json::{Value, json};

use super::dead::bury;
use super::http::{Door, EYES, OPS, TOKENS};
use crate::rig::eventually;

const CONFIG: &str = "[defaults]\nrate = '1/h'\ncapacity = 10\n[[budget]]\nmatch = 'twilio'\nrate = '100/s'\n\
                      [[bucket]]\nmatch = 'sms:*'\nwithin = 'twilio'\n";

fn door() -> Door {
    Door::open(&format!("{CONFIG}{TOKENS}"))
}

/// What `dripd settings` shows: of what, the key, the value and why.
fn settings(door: &Door) -> Vec<[String; 4]> {
    let (code, out, err) = door.shell.run(&["settings", "--json"]);
    assert_eq!(code, 0, "{err}");
    let all: Vec<Value> = serde_json::from_str(&out).expect("JSON");
    assert_eq!(Value::from(all.clone()), door.get("/v1/settings").json(200), "the door shows the same");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows: Vec<_> =
        all.iter().map(|one| ["match", "key", "value", "reason"].map(|name| text(&one[name]))).collect();
    rows.sort();
    rows
}

fn row(of: &str, key: &str, value: &str, reason: &str) -> [String; 4] {
    [of, key, value, reason].map(str::to_owned)
}

fn capacity(door: &Door, bucket: &str) -> Value {
    door.get(&format!("/v1/buckets/{bucket}")).json(200)["status"]["capacity"].clone()
}

#[test]
fn keys_are_set_and_taken_back_of_a_name_of_a_glob_and_of_a_budget() {
    let door = door();
    let said = door
        .operate("PATCH /v1/buckets/a%2Fb/settings?reason=night&for=10m", &json!({"rate": "5/s", "capacity": 3}))
        .json(200);
    assert_eq!((&said["match"], &said["done"], &said["glob"]), (&json!("a/b"), &json!(true), &json!(false)));
    let keys: Vec<&Value> = said["keys"].as_array().expect("keys").iter().map(|key| &key["key"]).collect();
    assert_eq!(keys, [&json!("capacity"), &json!("rate")]);
    assert_eq!(settings(&door), [row("a/b", "capacity", "3", "night"), row("a/b", "rate", "\"5/s\"", "night")]);
    assert_eq!(capacity(&door, "a%2Fb"), 3);
    // A word that stands where a name may stand is a name here.
    door.operate("PATCH /v1/buckets/settings/settings", &json!({"capacity": 4})).json(200);
    door.operate("PATCH /v1/buckets/pause/settings/capacity", &json!(5)).json(200);
    door.operate("PATCH /v1/buckets/settings/capacity?match=sms:*", &json!(6)).json(200);
    door.operate("PATCH /v1/budgets/twilio/settings", &json!({"rate": "7/s"})).json(200);
    door.operate("PATCH /v1/budgets/settings?match=tw*", &json!({"concurrency": 8})).json(200);
    let capacities = ["settings", "pause", "sms:x", "other"].map(|bucket| capacity(&door, bucket));
    assert_eq!(capacities, [json!(4), json!(5), json!(6), json!(10)]);
    assert_eq!(settings(&door).len(), 7);

    door.operate("DELETE /v1/buckets/a%2Fb/settings/rate", &Value::Null).json(200);
    door.operate("DELETE /v1/buckets/settings/settings", &Value::Null).json(200);
    door.operate("DELETE /v1/buckets/pause/settings", &Value::Null).json(200);
    door.operate("DELETE /v1/budgets/twilio/settings/rate", &Value::Null).json(200);
    door.operate("DELETE /v1/budgets/settings?match=tw*", &Value::Null).json(200);
    let again = door.operate("DELETE /v1/buckets/pause/settings", &Value::Null).json(200);
    assert_eq!(again["done"], false, "there is nothing any more");
    assert_eq!(settings(&door), [row("a/b", "capacity", "3", "night"), row("sms:*", "capacity", "6", "")]);
    door.operate("DELETE /v1/buckets/settings/capacity?match=sms:*", &Value::Null).json(200);
    assert_eq!(capacity(&door, "sms:x"), 10);
}

#[test]
fn of_bad_keys_and_values_all_are_named_at_once_and_nothing_is_changed() {
    let door = door();
    for (request, words, says) in [
        (
            "PATCH /v1/buckets/a/settings",
            json!({"rate": "fast", "capacity": -1, "rat": 1}),
            vec!["rate: ", "capacity: ", "rat: "],
        ),
        ("PATCH /v1/buckets/a/settings", json!({}), vec!["write the keys"]),
        ("PATCH /v1/buckets/a/settings", json!({"rate": null}), vec!["rate: null sets nothing", "DELETE"]),
        ("PATCH /v1/buckets/a/settings", json!([1]), vec!["not what is asked for"]),
        ("PATCH /v1/buckets/a/settings/rate", json!("fast"), vec!["rate"]),
        ("PATCH /v1/buckets/a/settings?for=soon", json!({"rate": "1/s"}), vec!["\"soon\" is not a time"]),
        ("PATCH /v1/buckets/a/settings?for=0s", json!({"rate": "1/s"}), vec!["1ms to 366d"]),
        ("PATCH /v1/buckets/a/settings?form=10m", json!({"rate": "1/s"}), vec!["unknown field `form`"]),
        ("PATCH /v1/buckets/settings", json!({"rate": "1/s"}), vec!["?match="]),
        ("PATCH /v1/buckets/settings?match=", json!({"rate": "1/s"}), vec!["?match="]),
        ("PATCH /v1/buckets/a/settings?match=b*", json!({"rate": "1/s"}), vec!["match= has no place"]),
        ("DELETE /v1/buckets/a/settings/rat", Value::Null, vec!["rat"]),
        ("PATCH /v1/buckets/a/settings", json!({"rate=\"7/s\"#": 1}), vec!["is not a key of a policy"]),
        ("PATCH /v1/buckets/a/settings/rate%3D9%23", json!(1), vec!["is not a key of a policy"]),
        ("PATCH /v1/budgets/twilio/settings", json!({"capacity": 1}), vec!["capacity"]),
        ("POST /v1/buckets/a/resume", json!({"for": "1s"}), vec!["`for` has no place"]),
        ("POST /v1/buckets/a/pause", json!({"fro": "1s"}), vec!["unknown field `fro`"]),
        ("POST /v1/buckets/a/slow", json!({}), vec!["{\"for\": \"30s\"}"]),
        ("POST /v1/buckets/a/slow", json!({"for": "1s", "clear": true}), vec!["or {\"clear\": true}"]),
        ("POST /v1/buckets/a/purge", json!({"all": true}), vec!["unknown field `all`"]),
    ] {
        let (error, detail) = door.operate(request, &words).problem(400);
        assert!(error == "bad-request" && says.iter().all(|part| detail.contains(part)), "{request} {words}: {detail}");
    }
    let long = format!("POST /v1/buckets/pause?match={}*", "x".repeat(1_000));
    assert!(door.operate(&long, &Value::Null).problem(400).1.contains("1000 are allowed"));
    let long = format!("POST /v1/buckets/a/pause?reason={}", "x".repeat(1_001));
    assert!(door.operate(&long, &Value::Null).problem(400).1.contains("at most 1000 bytes"));
    for bad in [&b"{"[..], b"\xff", b"nul", b"{}{}", b"\"x\""] {
        door.ask("POST /v1/buckets/a/pause", &[OPS], bad).problem(400);
    }
    assert_eq!(door.ask("POST /v1/buckets/a/pause", &[OPS], &vec![b' '; 65_537]).problem(413).0, "too-large");
    assert_eq!(settings(&door), Vec::<[String; 4]>::new());
}

#[test]
fn a_paused_bucket_lets_nothing_out_and_a_closed_one_takes_nothing_in_until_told_otherwise() {
    let budget = "[[budget]]\nmatch = 'twilio'\nrate = '100/s'\n";
    let mut door = Door::open(&format!("[defaults]\nrate = '1000/s'\n{budget}{TOKENS}"));
    let push = |door: &Door, bucket: &str| door.ask(&format!("POST /v1/buckets/{bucket}/jobs"), &[OPS], b"job").status;
    assert_eq!(push(&door, "sms:a"), 202);
    eventually("it is out", || door.shell.case.stream("ready").len() == 1);
    let said = door.operate("POST /v1/buckets/pause?match=sms:*", &json!({"reason": "carrier down"})).json(200);
    assert_eq!(
        (&said["done"], &said["glob"], &said["jobs_out"]["ready"]),
        (&json!(true), &json!(true), &json!(1)),
        "{said}"
    );
    assert_eq!(push(&door, "sms:a"), 202);
    let stands = door.get("/v1/buckets/sms:a").json(200);
    assert!(stands["explanation"].to_string().contains("paused"), "{stands}");
    // Nothing leaves: one of another bucket, pushed later, does.
    assert_eq!(push(&door, "mail"), 202);
    eventually("the other one is out", || door.shell.case.stream("ready").len() == 2);
    assert_eq!(door.shell.case.waiting("sms:a"), ["job"]);
    let resumed = door.operate("POST /v1/buckets/sms:a/resume", &Value::Null).json(200);
    assert_eq!((&resumed["done"], &resumed["stopped_by"]), (&json!(false), &json!("sms:*")), "the glob stops it still");
    let resumed = door.operate("POST /v1/buckets/resume?match=sms:*", &Value::Null).json(200);
    assert_eq!((&resumed["done"], &resumed["stopped_by"]), (&json!(true), &Value::Null));
    eventually("it goes on", || door.shell.case.waiting_is_empty("sms:a"));

    door.operate("POST /v1/buckets/close/close", &Value::Null).json(200);
    assert_eq!(settings(&door), [row("close", "close", "yes", "")]);
    assert_eq!((push(&door, "close"), push(&door, "mail")), (429, 202));
    door.operate("POST /v1/buckets/close/open", &Value::Null).json(200);
    assert_eq!(push(&door, "close"), 202);
    door.operate("POST /v1/budgets/twilio/pause", &json!({"for": "10m"})).json(200);
    let all = door.get("/v1/settings?match=twilio").json(200);
    assert_eq!((&all[0]["budget"], &all[0]["key"], all[0]["until"].is_string()), (&json!(true), &json!("pause"), true));
    door.operate("POST /v1/budgets/twilio/resume", &Value::Null).json(200);
}

#[test]
fn a_limit_is_told_over_http_and_forgotten_again() {
    let mut door = door();
    let told = json!({"remaining": 0, "reset_ms": 3_600_000, "limit": 100});
    let said = door.operate("POST /v1/buckets/a/told", &told).json(200);
    let note = "no job waits in a bucket of this name";
    assert_eq!(said, json!({"match": "a", "budget": false, "counts": true, "note": note}));
    let more = json!({"remaining": 5, "reset_ms": 3_600_000, "limit": 100});
    assert_eq!(door.operate("POST /v1/buckets/a/told", &more).json(200)["counts"], json!(false), "less was told");
    door.shell.case.lpush("a", &["1"]);
    let explained = door.get("/v1/buckets/a").json(200).to_string();
    assert!(explained.contains("0 of 100 jobs are left"), "{explained}");
    assert_eq!(door.operate("POST /v1/buckets/a/told", &json!({"clear": true})).json(200)["counts"], json!(true));
    for bad in [
        json!({}),
        json!({"remaining": 5}),
        json!({"remaining": -1, "reset_ms": 5}),
        json!({"remaining": 5, "reset_ms": 5, "clear": true}),
        json!({"remaining": 5, "reset_ms": 5, "limit": 0}),
        json!({"remaining": 5, "reset_ms": 99_999_999_999_u64}),
        json!({"remaining": 5, "reset_ms": 5, "units": "tokens"}),
        json!({"clear": true, "limit": 5}),
    ] {
        door.operate("POST /v1/buckets/a/told", &bad).problem(400);
    }
}

#[test]
fn a_slow_down_holds_until_its_end_and_a_purge_says_how_much_it_threw_away() {
    let mut door = door();
    door.operate("POST /v1/buckets/pause/slow", &json!({"for": "1h", "reason": "429"})).json(200);
    let push = |door: &Door, bucket: &str| door.ask(&format!("POST /v1/buckets/{bucket}/jobs"), &[OPS], b"job").status;
    for _ in 0..3 {
        assert_eq!(push(&door, "pause"), 202);
    }
    assert_eq!((push(&door, "other"), push(&door, "other")), (202, 202));
    eventually("the other one goes", || door.shell.case.stream("ready").len() == 1);
    assert_eq!(door.shell.case.waiting("pause").len(), 3, "it is slow");
    let said = door.operate("POST /v1/buckets/pause/slow", &json!({"clear": true})).json(200);
    assert_eq!((&said["match"], &said["goes_on_in_ms"]), (&json!("pause"), &json!(0)));
    let said = door.operate("POST /v1/buckets/other/slow", &json!({"for": "8d"})).json(200);
    assert_eq!((&said["capped"], &said["goes_on_in_ms"]), (&json!(true), &json!(3_600_000)), "slow.cap is 1h");
    door.operate("POST /v1/buckets/other/slow", &json!({"clear": true})).json(200);
    eventually("it goes on", || door.shell.case.waiting("pause").len() == 2);
    door.operate("POST /v1/buckets/sms:a/slow", &json!({"for": "30s", "in": "twilio"})).json(200);
    let budget = door.get("/v1/budgets/twilio").json(200);
    assert!(budget.to_string().contains("slow"), "{budget}");
    let said = door.operate("POST /v1/buckets/pause/purge", &Value::Null).json(200);
    assert_eq!((&said["bucket"], &said["jobs"], &said["retries"]), (&json!("pause"), &json!(2), &json!(0)));
    assert!(door.shell.case.waiting_is_empty("pause"));
    assert_eq!(door.shell.case.waiting("other").len(), 1, "and no other one");
}

#[test]
fn dead_letters_are_listed_by_page_counted_and_put_back_or_dropped_exactly_as_found() {
    let mut door = door();
    let letters: [(&str, &[u8], &str); 5] = [
        ("acme", b"{\"to\": 1}", "http 500"),
        ("acme", b"\xff\x00", "failed"),
        ("sms:a", b"<script>", "http 500"),
        ("sms:b", b"", "failed"),
        ("sms:b", b"x", "http 503"),
    ];
    let ids = bury(&mut door.shell.case, &letters);
    let list = |query: &str| door.ask(&format!("GET /v1/dead{query}"), &[EYES], b"");
    let first = list("?limit=2").json(200);
    let entries = |page: &Value| {
        page["letters"].as_array().expect("letters").iter().map(|one| one["entry"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(entries(&first), [json!(ids[0]), json!(ids[1])]);
    assert_eq!((&first["next"], &first["letters"][0]["job"]), (&json!(ids[1]), &json!("{\"to\": 1}")));
    let second = list(&format!("?limit=3&after={}", ids[1])).json(200);
    assert_eq!((entries(&second).len(), &second["next"]), (3, &Value::Null));
    assert_eq!(entries(&list("?bucket=sms:*&reason=http*").json(200)), [json!(ids[2]), json!(ids[4])]);
    for query in ["?limit=0", "?limit=1001", "?after=x", "?before=soon", "?id=no%20id", "?dry_run=true", "?buckets=x"] {
        list(query).problem(400);
    }

    let dry = door.operate("POST /v1/dead/retry", &json!({"bucket": "sms:*", "dry_run": true})).json(200);
    assert_eq!(
        (&dry["matched"], &dry["left"], &dry["buckets"]["sms:b"]["letters"]),
        (&json!(3), &json!(5), &json!(2)),
        "{dry}"
    );
    assert_eq!(entries(&list("").json(200)).len(), 5, "only counted");
    let dropped = door.operate("POST /v1/dead/drop", &json!({"reason": "http*", "limit": 2})).json(200);
    assert_eq!((&dropped["dropped"], &dropped["left"]), (&json!(2), &json!(3)), "{dropped}");
    assert_eq!(entries(&list("").json(200)), [json!(ids[1]), json!(ids[3]), json!(ids[4])]);
    let again = door.operate("POST /v1/dead/retry", &json!({"bucket": "sms:*"})).json(200);
    assert_eq!((&again["put_back"], &again["left"]), (&json!(2), &json!(1)), "{again}");
    assert_eq!(entries(&list("").json(200)), [json!(ids[1])]);
    eventually("one is out, ahead of the queue", || {
        door.shell.case.stream("ready").iter().any(|one| one.text("bucket") == "sms:b")
    });
    let none = door.operate("POST /v1/dead/drop", &json!({"id": "1-1"})).json(200);
    assert_eq!((&none["dropped"], &none["left"]), (&json!(0), &json!(1)), "{none}");
    door.operate("POST /v1/dead/drop", &json!({"after": ids[1]})).problem(400);
    door.operate("POST /v1/dead/drop", &json!({"limit": 0})).problem(400);
    // Nobody deletes all of them by leaving something out.
    assert!(door.operate("POST /v1/dead/drop", &json!({})).problem(400).1.contains("{\"all\": true}"));
    assert_eq!(door.operate("POST /v1/dead/drop", &json!({"all": true})).json(200)["dropped"], 1);
}

#[test]
fn a_change_of_dead_letters_is_about_what_was_counted_whatever_died_or_went_meanwhile() {
    let mut door = door();
    let bury_two = |door: &mut Door| bury(&mut door.shell.case, &[("acme", b"a", "failed"), ("acme", b"b", "failed")]);
    let first = bury_two(&mut door);
    let count = |door: &Door, more: Value| {
        let mut words = json!({"bucket": "acme", "dry_run": true});
        words.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        door.operate("POST /v1/dead/drop", &words).json(200)["up_to"].clone()
    };
    assert_eq!(count(&door, json!({})), json!(first[1]));
    assert_eq!(count(&door, json!({"limit": 1})), json!(first[0]), "the newest that was counted");
    assert_eq!(count(&door, json!({"bucket": "nobody"})), Value::Null);
    // One of them goes, and others die: those were not counted.
    door.operate("POST /v1/dead/drop", &json!({"id": first[0]})).json(200);
    let later = bury_two(&mut door);
    let said = door.operate("POST /v1/dead/drop", &json!({"bucket": "acme", "limit": 2, "up_to": first[1]})).json(200);
    assert_eq!((&said["dropped"], &said["left"]), (&json!(1), &json!(2)), "{said}");
    let left = door.ask("GET /v1/dead", &[EYES], b"").json(200);
    let left: Vec<_> = left["letters"].as_array().expect("letters").iter().map(|one| one["entry"].clone()).collect();
    assert_eq!(left, [json!(later[0]), json!(later[1])]);
    door.operate("POST /v1/dead/retry", &json!({"bucket": "acme", "up_to": "soon"})).problem(400);
}

/// A word that nobody reads may be one that holds something back.
#[test]
fn a_query_that_a_change_does_not_read_is_refused_and_nothing_is_changed() {
    let mut door = door();
    bury(&mut door.shell.case, &[("acme", b"a", "failed")]);
    door.operate("POST /v1/buckets/a/pause", &Value::Null).json(200);
    door.ask("POST /v1/buckets/a/jobs", &[OPS], b"job");
    for (request, words) in [
        ("POST /v1/dead/drop?bucket=sms:*&dry_run=true", json!({"all": true})),
        ("POST /v1/dead/retry?dry_run=true", json!({"all": true})),
        ("POST /v1/buckets/a/purge?dry_run=true", Value::Null),
        ("POST /v1/buckets/a/purge?match=b", Value::Null),
        ("POST /v1/buckets/a/slow?for=10s", json!({"for": "1h"})),
        ("POST /v1/buckets/a/pause?dry_run=true", Value::Null),
        ("DELETE /v1/buckets/a/settings?dry_run=true", Value::Null),
        ("PATCH /v1/buckets/a/settings?dry_run=true", json!({"rate": "5/s"})),
        ("POST /v1/what-if?push=1", json!({"bucket": "a"})),
        ("POST /v1/limit/token-bucket/k?quantity=0", json!({"rate": "1/s"})),
    ] {
        assert_eq!(door.operate(request, &words).problem(400).0, "bad-request", "{request}");
    }
    assert_eq!(door.ask("GET /v1/dead", &[EYES], b"").json(200)["letters"].as_array().map(Vec::len), Some(1));
    assert_eq!(door.shell.case.waiting("a"), ["job"]);
    assert_eq!(settings(&door), [row("a", "pause", "yes", "")]);
}

#[test]
fn of_many_settings_an_answer_has_so_many_slow_downs_first_and_says_that_there_are_more() {
    let mut door = door();
    for n in 0..1_050 {
        let capacity = json!({ "capacity": { "text": "3", "policy": { "capacity": 3 } } });
        let set = json!({ "what": "set", "match": format!("n{n}"), "set": capacity }).to_string();
        let _: (i64, Vec<String>, String) = door.shell.case.fcall("drip__set", &["policy"], &[String::new(), set]);
    }
    door.operate("POST /v1/buckets/z/slow", &json!({"for": "1h"})).json(200);
    let shown = |query: &str| {
        let answer = door.get(&format!("/v1/settings{query}"));
        let has_more = answer.header("drip-more").map(str::to_owned);
        let rows = answer.json(200).as_array().expect("rows").clone();
        (rows.len(), rows.iter().any(|row| row["match"] == "z"), has_more)
    };
    let more = Some("true".to_owned());
    assert_eq!(shown(""), (1_000, true, more.clone()));
    assert_eq!(shown("?limit=2"), (2, true, more.clone()));
    assert_eq!(shown("?limit=2000"), (1_051, true, None));
    assert_eq!(shown("?match=n10?"), (10, false, None));
    assert_eq!(shown("?match=n10?&limit=9"), (9, false, more));
    for bad in ["?limit=0", "?limit=10001", "?limit=x"] {
        door.get(&format!("/v1/settings{bad}")).problem(400);
    }
}
