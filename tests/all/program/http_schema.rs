//! What `/openapi.json` says of requests and answers, held against a running daemon: every answer is what its schema says, no member of it is
//! left out there, what is accepted is what a schema allows, and what a schema forbids is refused.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::http::{Answer, Door, TOKENS};
use crate::rig::{Server, eventually};

/// A tree with all that a budget and a bucket may have, so that as little as possible of an answer is null.
const POLICIES: &str = "[defaults]\nrate = '1/h'\ncost_max = 10\ncapacity = 10\n[limits]\nmax_job_bytes = 1000\n\
     [[budget]]\nmatch = 'tenant'\nrate = '2/h'\nquota = '100/d'\nconcurrency = 5\n\
     [[bucket]]\nmatch = 'in:*'\nwithin = 'tenant'\nquota = '90/d@+02:00'\nconcurrency = 3\n\
     [[bucket]]\nmatch = 'small'\ncapacity = 1\n[[bucket]]\nmatch = 'fast'\nrate = '1000/s'\n\
     [[bucket]]\nmatch = 'gated'\nadmit = { limiter = 'fixed-window', limit = 5, period = '1h' }\n";

/// The document, and which of its operations and answers were seen.
struct Document {
    json: Value,
    seen: BTreeSet<(String, String)>,
}

/// The names of schemas that are parts of others: what else is in the object is said there.
fn parts_of_others(of: &Value, within: bool, found: &mut BTreeSet<String>) {
    if let (true, Some(name)) = (within, of.get("$ref").and_then(Value::as_str)) {
        found.insert(name.rsplit('/').next().expect("a name").to_owned());
    }
    match of {
        Value::Object(all) => all.iter().for_each(|(key, one)| parts_of_others(one, key == "allOf", found)),
        Value::Array(all) => all.iter().for_each(|one| parts_of_others(one, within, found)),
        _ => {}
    }
}

/// Clients may not rely on it, but here an answer must have no member that its schema does not name.
fn tighten(of: &mut Value, is_part: bool) {
    let Value::Object(object) = of else {
        if let Value::Array(all) = of {
            for one in all {
                tighten(one, is_part);
            }
        }
        return;
    };
    if object.contains_key("allOf") {
        object.insert("unevaluatedProperties".to_owned(), json!(false));
    } else if !is_part && object.get("properties").is_some_and(Value::is_object) {
        object.entry("additionalProperties").or_insert(json!(false));
    }
    object.iter_mut().for_each(|(key, one)| tighten(one, key == "allOf"));
}

impl Document {
    fn of(door: &Door) -> Self {
        let mut json = door.get("/openapi.json").json(200);
        let mut parts = BTreeSet::new();
        parts_of_others(&json, false, &mut parts);
        let schemas = json["components"]["schemas"].as_object_mut().expect("schemas");
        schemas.iter_mut().for_each(|(name, schema)| tighten(schema, parts.contains(name)));
        Self { json, seen: BTreeSet::new() }
    }

    fn operation(&self, method: &str, path: &str) -> &Value {
        let operation = &self.json["paths"][path][method];
        assert!(operation.is_object(), "{method} {path} is not in the document");
        operation
    }

    /// What is wrong with a value; nothing: it is what the schema says.
    fn faults(&self, schema: &Value, value: &Value) -> Vec<String> {
        let whole = json!({ "components": self.json["components"], "allOf": [schema] });
        let validator = jsonschema::validator_for(&whole).expect("a schema");
        validator.iter_errors(value).map(|why| format!("{} at {}", why, why.instance_path())).collect()
    }

    /// An answer is one of those that the document tells, and what that says.
    #[track_caller]
    fn tells(&mut self, method: &str, path: &str, answer: &Answer) -> Value {
        let told = self.operation(method, path)["responses"][answer.status.to_string()].clone();
        let shown = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(told.is_object(), "{method} {path} is not told to answer {}: {shown}", answer.status);
        let kind = answer.header("content-type").expect("a type").split(';').next().expect("a type").trim();
        let content = told["content"].as_object().expect("a type");
        assert!(content.contains_key(kind) || content.contains_key("*/*"), "{method} {path}: {kind}, not {content:?}");
        self.seen.insert((method.to_owned(), path.to_owned()));
        let Ok(value) = serde_json::from_slice::<Value>(&answer.body) else { return Value::Null };
        if kind.ends_with("json") {
            let faults = self.faults(&content[kind]["schema"], &value);
            assert!(faults.is_empty(), "{method} {path}: {faults:#?}\n{value:#}");
        }
        value
    }

    /// Whether a body is what a request may be sent.
    fn allows(&self, method: &str, path: &str, body: &Value) -> bool {
        let schema = &self.operation(method, path)["requestBody"]["content"]["application/json"]["schema"];
        assert!(!schema.is_null(), "{method} {path} takes no JSON");
        self.faults(schema, body).is_empty()
    }

    /// Ask what the document allows, and look at what is answered.
    #[track_caller]
    fn ask(&mut self, door: &Door, request: (&str, &str, &str), body: &Value, status: u16) -> Value {
        let (method, path, target) = request;
        if !body.is_null() {
            assert!(self.allows(method, path, body), "{method} {path} forbids {body}");
        }
        let answer = door.operate(&format!("{} {target}", method.to_uppercase()), body);
        assert_eq!(answer.status, status, "{method} {target} {body}: {}", String::from_utf8_lossy(&answer.body));
        self.tells(method, path, &answer)
    }
}

/// A door whose buckets and budgets wait for something.
fn busy() -> (Server, Door) {
    let server = Server::start(&[]);
    let mut door = Door::on(&server, &format!("{POLICIES}{TOKENS}"));
    let case = &mut door.shell.case;
    for bucket in ["in:a", "in:b", "small"] {
        case.lpush(bucket, &["1", "2", "3"]);
    }
    eventually("some have left", || case.stream("ready").len() >= 2);
    let dead = case.key("dead");
    for (bucket, job) in [("in:a", &b"text"[..]), ("in:b", b"\xff"), ("fast", b"again")] {
        let mut add = redis::cmd("XADD");
        add.arg(&dead).arg("*").arg("bucket").arg(bucket).arg("job").arg(job);
        add.arg(&["attempt", "5", "id", "1750000000000-3", "reason", "carrier down"]);
        add.query::<()>(&mut case.redis).expect("XADD");
    }
    (server, door)
}

#[test]
fn every_answer_to_a_get_is_what_its_schema_says() {
    let (_server, door) = busy();
    let mut document = Document::of(&door);
    document.ask(
        &door,
        ("patch", "/v1/budgets/{budget}/settings", "/v1/budgets/tenant/settings?for=1h&reason=why"),
        &json!({"rate": "3/h"}),
        200,
    );
    door.operate("POST /v1/buckets/pause?match=in:b*&for=1h&reason=why", &Value::Null).json(200);
    door.operate("POST /v1/buckets/in:b/close", &Value::Null).json(200);
    door.operate("POST /v1/buckets/in:a/slow", &json!({"for": "1h"})).json(200);
    door.operate("PATCH /v1/buckets/gated/settings", &json!({"capacity": 7})).json(200);
    let push =
        door.ask("POST /v1/buckets/in:a/jobs", &[("Drip-Id", "mine"), ("Drip-Cost", "2"), super::http::OPS], b"x");
    document.tells("post", "/v1/buckets/{bucket}/jobs", &push);
    eventually("the walk has seen them", || {
        door.get("/v1/buckets").json(200)["rows"].as_array().expect("rows").len() >= 2
            && door.get("/v1/status").json(200)["top"].is_object()
            && door.get("/v1/budgets").json(200)["as_of"].is_string()
    });
    let paths: Vec<String> = document.json["paths"].as_object().expect("paths").keys().cloned().collect();
    let gets = paths.iter().filter(|path| !document.json["paths"][path]["get"].is_null() && *path != "/v1/events");
    let gets: Vec<&String> = gets.collect();
    assert!(gets.len() > 20, "{gets:?}");
    let script = String::from_utf8(door.get("/").body).expect("a page");
    let file = script.split("assets/").nth(1).and_then(|rest| rest.split('"').next()).expect("it has a file");
    for path in gets {
        for bucket in ["in:a", "in:b", "gated", "none"] {
            let named = [("{bucket}", bucket), ("{budget}", "tenant"), ("{id}", "mine"), ("{file}", file)];
            let target = named.iter().fold(path.clone(), |target, (name, is)| target.replace(name, is));
            let answer = door.ask(&format!("GET {target}"), &[super::http::OPS], b"");
            let may_be_none =
                path.contains("{id}") && bucket != "in:a" || path.starts_with("/v1/budgets/") && !path.contains('{');
            assert!(answer.status == 200 || may_be_none && answer.status == 404, "{target}: {}", answer.status);
            document.tells("get", path, &answer);
            if !path.contains('{') {
                break;
            }
        }
    }
    for (path, query) in [
        ("/v1/buckets", "?now=true&by=depth&limit=2&match=*"),
        ("/v1/settings", "?match=in:*&limit=1"),
        ("/v1/dead", "?limit=1&bucket=in:*&before=0s"),
        ("/v1/buckets/{bucket}/jobs", "?limit=1&bytes=1"),
        ("/v1/buckets", "?by=name"),
        ("/v1/dead", "?all=true"),
    ] {
        let answer = door.ask(&format!("GET {}{query}", path.replace("{bucket}", "in:a")), &[super::http::OPS], b"");
        document.tells("get", path, &answer);
        assert_eq!(answer.status, if query == "?by=name" || query == "?all=true" { 400 } else { 200 }, "{path}{query}");
    }
    let answer = door.get("/v1/dead");
    assert_eq!(document.tells("get", "/v1/dead", &answer)["status"], 401, "without a token");
}

#[test]
fn every_answer_to_a_change_is_what_its_schema_says() {
    let (_server, mut door) = busy();
    let mut document = Document::of(&door);
    let none = Value::Null;
    for (kind, one, name, verbs) in [
        ("buckets", "bucket", "in:a", &["pause", "resume", "close", "open"][..]),
        ("budgets", "budget", "tenant", &["pause", "resume"]),
    ] {
        let named = (format!("/v1/{kind}/{{{one}}}"), format!("/v1/{kind}/{name}"), String::new());
        let all = (format!("/v1/{kind}"), format!("/v1/{kind}"), format!("?match={}*", &name[..2]));
        for (path, target, query) in [named, all] {
            let mut ask = |method: &str, end: &str, key: &str, body: &Value| {
                let (path, target) = (format!("{path}{end}"), format!("{target}{}{query}", end.replace("{key}", key)));
                document.ask(&door, (method, &path, &target), body, 200)
            };
            ask(
                "patch",
                "/settings",
                "",
                &json!({"rate": "50/h", "weight": 3, "slow": {"max": "5m"}, "quota": ["7/h", "90/d"]}),
            );
            ask("patch", "/settings/{key}", "weight", &json!(7));
            ask("delete", "/settings/{key}", "weight", &none);
            ask("patch", "/settings/{key}", "slow", &json!({"max": "1m"}));
            ask("delete", "/settings", "", &none);
            for verb in verbs {
                let words =
                    if matches!(*verb, "pause" | "close") { json!({"for": "1h", "reason": "why"}) } else { json!({}) };
                ask("post", &format!("/{verb}"), "", &words);
                ask("post", &format!("/{verb}"), "", &none);
            }
        }
        let (path, target) = (format!("/v1/{kind}/{{{one}}}/slow"), format!("/v1/{kind}/{name}/slow"));
        document.ask(&door, ("post", &path, &target), &json!({"for": "1h", "reason": "429"}), 200);
        document.ask(&door, ("post", &path, &target), &json!({"clear": true}), 200);
        let (path, target) = (format!("/v1/{kind}/{{{one}}}/told"), format!("/v1/{kind}/{name}/told"));
        let told = json!({"remaining": 5, "reset_ms": 1_000, "limit": 9, "units": "cost", "reason": "x-ratelimit"});
        document.ask(&door, ("post", &path, &target), &told, 200);
        document.ask(&door, ("post", &path, &target), &json!({"clear": true}), 200);
    }
    let slow = ("post", "/v1/buckets/{bucket}/slow", "/v1/buckets/in:a/slow");
    document.ask(&door, slow, &json!({"for": "1h", "in": "tenant"}), 200);
    let purge = ("post", "/v1/buckets/{bucket}/purge", "/v1/buckets/in:a/purge");
    document.ask(&door, purge, &none, 200);
    document.ask(&door, purge, &json!({"retries": true, "delayed": true}), 200);

    let jobs = "/v1/buckets/{bucket}/jobs";
    let mut push = |bucket: &str, query: &str, headers: &[(&str, &str)], body: &[u8], status: u16| {
        let headers = [&[super::http::OPS], headers].concat();
        let answer = door.ask(&format!("POST /v1/buckets/{bucket}/jobs{query}"), &headers, body);
        assert_eq!(answer.status, status, "{bucket}{query}: {}", String::from_utf8_lossy(&answer.body));
        document.tells("post", jobs, &answer)
    };
    push("in:c", "", &[], b"x", 202);
    push("in:c", "", &[("Drip-Id", "one"), ("Drip-Delay", "1h")], b"x", 202);
    assert_eq!(push("in:c", "", &[("Drip-Id", "one")], b"x", 200)["verdict"], "duplicate");
    push("in:c", "?split=lines", &[("Content-Type", "application/x-ndjson")], b"x\ny\n", 200);
    push("in:c", "?split=lines", &[], b"x\ny\n", 415);
    push("in:c", "?split=words", &[], b"x", 400);
    push("in:c", "", &[], &[b'x'; 1_001], 413);
    push("small", "", &[], b"the last place", 202);
    assert_eq!(push("small", "", &[], b"x", 429)["error"], "full");
    push("small", "?split=lines", &[("Content-Type", "application/x-ndjson")], b"x\n", 429);
    assert_eq!(push("small", "", &[("Drip-Cost", "2")], b"x", 429)["error"], "full");

    let job = "/v1/buckets/{bucket}/jobs/{id}";
    document.ask(&door, ("delete", job, "/v1/buckets/in:c/jobs/one"), &none, 200);
    document.ask(&door, ("delete", job, "/v1/buckets/in:c/jobs/two"), &none, 404);
    door.ask("POST /v1/buckets/fast/jobs", &[("Drip-Id", "gone"), super::http::OPS], b"x").json(202);
    eventually("it has left", || {
        door.ask("GET /v1/buckets/fast/jobs/gone", &[super::http::OPS], b"").json(200)["state"] == "left"
    });
    document.ask(&door, ("delete", job, "/v1/buckets/fast/jobs/gone"), &none, 409);

    for verb in ["retry", "drop"] {
        let path = format!("/v1/dead/{verb}");
        document.ask(&door, ("post", &path, &path), &json!({"all": true, "dry_run": true}), 200);
        document.ask(&door, ("post", &path, &path), &json!({"bucket": "fast", "before": "0s", "limit": 5}), 200);
    }
    let wrong: &mut redis::Connection = &mut door.shell.case.redis;
    redis::cmd("SET").arg("drip:queue:wrong").arg("text").exec(wrong).expect("SET");
    document.ask(&door, ("post", "/v1/dead/drop", "/v1/dead/drop"), &json!({"all": true}), 200);
    let what_if = ("post", "/v1/what-if", "/v1/what-if");
    document.ask(&door, what_if, &json!({"bucket": "in:c", "set": {"rate": "5/s"}, "push": 20}), 200);
    document.ask(&door, what_if, &json!({"bucket": "in:c"}), 200);
    let limit = ("post", "/v1/limit/{limiter}/{key}", "/v1/limit/fixed-window/k");
    document.ask(&door, limit, &json!({"rate": "2/1h", "quantity": 2, "aligned": true}), 200);
    assert_eq!(document.ask(&door, limit, &json!({"rate": "2/1h", "aligned": true}), 429)["limited"], true);
    let changes: BTreeSet<(String, String)> = document.json["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, of)| of.as_object().expect("methods").keys().map(|method| (method.clone(), path.clone())))
        .filter(|(method, _)| method != "get")
        .collect();
    let unseen: Vec<_> = changes.difference(&document.seen).collect();
    assert!(unseen.is_empty(), "nobody looked at the answers to {unseen:?}");
}

#[test]
fn what_a_schema_forbids_is_refused_and_changes_nothing() {
    let (_server, door) = busy();
    let mut document = Document::of(&door);
    let set = ("patch", "/v1/buckets/{bucket}/settings", "/v1/buckets/x/settings");
    let of_budget = ("patch", "/v1/budgets/{budget}/settings", "/v1/budgets/tenant/settings");
    let retry = ("post", "/v1/dead/retry", "/v1/dead/retry");
    let slow = ("post", "/v1/buckets/{bucket}/slow", "/v1/buckets/x/slow");
    let what_if = ("post", "/v1/what-if", "/v1/what-if");
    let told = ("post", "/v1/buckets/{bucket}/told", "/v1/buckets/x/told");
    let limit = ("post", "/v1/limit/{limiter}/{key}", "/v1/limit/throttle/k");
    for (request, wrong) in [
        (set, json!({})),
        (set, json!({"rate": null})),
        (set, json!({"rate": "5/sec"})),
        (set, json!({"rate": "1/367d"})),
        (set, json!({"capacity": 0})),
        (set, json!({"burts": 1})),
        (set, json!({"backoff": {"least": "1s"}})),
        (set, json!({"overflow": "maybe"})),
        (set, json!({"concurrency": 100_001})),
        (set, json!({"quota": ["1/d", "2/d", "3/h", "4/m", "5/s"]})),
        (set, json!({"quota": "1/d@+14:01"})),
        (set, json!({"admit": {"limiter": "throttle", "limit": 5, "period": "60s"}})),
        (of_budget, json!({"capacity": 5})),
        (("patch", "/v1/buckets/{bucket}/settings/{key}", "/v1/buckets/x/settings/rate"), json!({"no": "such"})),
        (("post", "/v1/buckets/{bucket}/pause", "/v1/buckets/x/pause"), json!({"for": "367d"})),
        (("post", "/v1/buckets/{bucket}/pause", "/v1/buckets/x/pause"), json!({"reasn": "a"})),
        (("post", "/v1/buckets/{bucket}/resume", "/v1/buckets/x/resume"), json!({"for": "1m"})),
        (("post", "/v1/buckets/{bucket}/purge", "/v1/buckets/x/purge"), json!({"retries": 1})),
        (slow, json!({})),
        (slow, json!({"for": "1s", "reason": "y".repeat(1_001)})),
        (("post", "/v1/buckets/{bucket}/pause", "/v1/buckets/x/pause"), json!(["1h", "why"])),
        (("post", "/v1/buckets/{bucket}/purge", "/v1/buckets/x/purge"), json!([])),
        (limit, json!(["1/s", 1, null, null, false])),
        (slow, json!({"for": "1s", "clear": true})),
        (("post", "/v1/budgets/{budget}/slow", "/v1/budgets/tenant/slow"), json!({"for": "1s", "in": "tenant"})),
        (retry, json!({})),
        (retry, json!({"up_to": "1-0"})),
        (retry, json!({"limit": 0})),
        (retry, json!({"all": true, "after": "1-0"})),
        (retry, json!({"all": true, "up_to": "now"})),
        (what_if, json!({"push": 1})),
        (what_if, json!({"bucket": "a", "push": 10_000_001})),
        (told, json!({})),
        (told, json!({"remaining": 5})),
        (told, json!({"remaining": -1, "reset_ms": 5})),
        (told, json!({"remaining": 5, "reset_ms": 5, "clear": true})),
        (told, json!({"remaining": 5, "reset_ms": 5, "units": "tokens"})),
        (limit, json!({"rate": "fast"})),
        (limit, json!({"rate": "1/s", "quantity": 1_000_001})),
    ] {
        let (method, path, target) = request;
        assert!(!document.allows(method, path, &wrong), "{method} {path} allows {wrong}");
        let answer = door.operate(&format!("{} {target}", method.to_uppercase()), &wrong);
        assert_eq!(answer.status, 400, "{method} {target} {wrong}: {}", String::from_utf8_lossy(&answer.body));
        document.tells(method, path, &answer);
    }
    // What the body says holds, but what it overrules must make sense too.
    for query in ["for=soon".to_owned(), format!("reason={}", "y".repeat(1_001))] {
        let request = format!("POST /v1/buckets/x/pause?{query}");
        assert_eq!(door.operate(&request, &json!({"for": "1m", "reason": "why"})).status, 400, "{query}");
    }
    assert_eq!(door.ask("GET /v1/settings", &[super::http::OPS], b"").json(200), json!([]));
}
