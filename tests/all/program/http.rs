//! The HTTP door from outside, over raw sockets: what a request is answered, byte for byte. Here: the tools, and the requests that only ask.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::Shell;
use crate::rig::{Daemon, Server, eventually};

/// A token for everything, one that reads, and one that pushes into some buckets.
pub const TOKENS: &str = "[[http.token]]\nname = 'ops'\nfile = 'ops'\nmay = 'operate'\n\
                          [[http.token]]\nname = 'eyes'\nfile = 'eyes'\nmay = 'read'\n\
                          [[http.token]]\nname = 'billing'\nfile = 'billing'\nmay = 'push'\nmatch = 'billing:*'\n";

pub const OPS: (&str, &str) = ("Authorization", "Bearer ops-secret");
pub const EYES: (&str, &str) = ("Authorization", "Bearer eyes-secret");
pub const BILLING: (&str, &str) = ("Authorization", "Bearer billing-secret");

/// A daemon with a door at a port of its own.
pub struct Door {
    pub shell: Shell,
    pub daemon: Daemon,
    pub port: u16,
}

/// What a request was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// An answer as it came over the wire.
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
        let head = String::from_utf8(bytes[..end].to_vec()).expect("a head is text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(is, _)| is.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{}", self.head, String::from_utf8_lossy(&self.body));
        let kind = if status < 400 { "application/json" } else { "application/problem+json" };
        assert_eq!(self.header("content-type"), Some(kind));
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The body of an answer that is a problem, whole as the contract has it. Replies its word and what it says.
    #[track_caller]
    pub fn problem(&self, status: u16) -> (String, String) {
        let body = self.json(status);
        assert_eq!(body["status"], status);
        for member in ["type", "title", "error"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member} of {body}");
        }
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        (text("error"), text("detail"))
    }
}

impl Door {
    /// On the shared server, under a configuration without an `[http]` section.
    pub fn open(toml: &str) -> Self {
        Self::of(Shell::new(&Self::listening(toml)))
    }

    /// The same on a server of its own.
    pub fn on(server: &Server, toml: &str) -> Self {
        Self::of(Shell::on(server, &Self::listening(toml)))
    }

    fn listening(toml: &str) -> String {
        match toml.split_once("[[http.token]]") {
            Some((before, tokens)) => {
                format!("{before}[http]\nlisten = '127.0.0.1:0'\n[[http.token]]{tokens}")
            }
            None => format!("{toml}[http]\nlisten = '127.0.0.1:0'\n"),
        }
    }

    /// In a shell whose configuration says where to listen. The tokens of [`TOKENS`] are there.
    pub fn of(shell: Shell) -> Self {
        for name in ["ops", "eyes", "billing"] {
            shell.file(name, &format!("{name}-secret\n"));
        }
        let daemon = Daemon::start(shell.home());
        let port = port_of(&daemon);
        Self { shell, daemon, port }
    }

    /// Send a request, "METHOD target", and read its answer.
    #[track_caller]
    pub fn ask(&self, request: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        exchange(&mut self.connect(), self.port, request, headers, body)
    }

    /// The same for an operator, with words of JSON.
    #[track_caller]
    pub fn operate(&self, request: &str, words: &Value) -> Answer {
        let body = if words.is_null() { String::new() } else { words.to_string() };
        self.ask(request, &[OPS, ("Content-Type", "application/json")], body.as_bytes())
    }

    pub fn get(&self, target: &str) -> Answer {
        self.ask(&format!("GET {target}"), &[], b"")
    }

    pub fn push(&self, bucket: &str, job: &[u8]) -> Answer {
        self.ask(&format!("POST /v1/buckets/{bucket}/jobs"), &[], job)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(40))).expect("a timeout");
        stream
    }
}

/// The port of a door that chose it.
pub fn port_of(daemon: &Daemon) -> u16 {
    let mut port = None;
    eventually("the door says where it listens", || {
        let log = daemon.log();
        let at = log.lines().find(|line| line.contains("the HTTP door is open"));
        port = at
            .and_then(|line| line.split("127.0.0.1:").nth(1))
            .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a port"));
        port.is_some()
    });
    port.expect("it was found")
}

/// One request and its answer over a connection that ends with it.
#[track_caller]
pub fn exchange<S: std::io::Read + std::io::Write>(
    stream: &mut S,
    port: u16,
    request: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    stream.write_all(&written(port, request, headers, body, "close")).expect("sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer and the end");
    Answer::parse(&bytes)
}

/// A request as it goes over the wire. Where no `Host` is among the headers it is this machine; an empty one is left out.
pub fn written(port: u16, request: &str, headers: &[(&str, &str)], body: &[u8], connection: &str) -> Vec<u8> {
    let mut text = format!("{request} HTTP/1.1\r\nConnection: {connection}\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        write!(text, "Host: localhost:{port}\r\n").expect("text");
    }
    for (name, value) in headers.iter().filter(|(name, value)| *name != "Host" || !value.is_empty()) {
        write!(text, "{name}: {value}\r\n").expect("text");
    }
    if !headers.iter().any(|(name, _)| *name == "Transfer-Encoding") {
        write!(text, "Content-Length: {}\r\n", body.len()).expect("text");
    }
    [text.as_bytes(), b"\r\n", body].concat()
}

/// Read one answer of a connection that goes on.
#[track_caller]
pub fn next_answer(stream: &mut impl std::io::Read) -> Answer {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).expect("more"), 1, "it ended: {:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let mut answer = Answer::parse(&head);
    let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    answer.body = vec![0; length];
    stream.read_exact(&mut answer.body).expect("the body");
    answer
}

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
