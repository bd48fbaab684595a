//! Pushes through the HTTP server: what a producer is told, and what is in Redis then.

use std::io::Write as _;

use serde_json::{Value, json};

use super::http::{Door, OPS, TOKENS, next_answer, written};
use crate::rig::eventually;

const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");

/// A door, and a bucket whose next job leaves in an hour: the first one is out.
fn door_and_full_hour(toml: &str) -> Door {
    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\n{toml}"));
    assert_eq!(door.push("a", b"first").status, 202);
    eventually("the first one has left", || door.shell.case.stream("ready").len() == 1);
    door
}

#[test]
fn a_push_is_answered_with_what_became_of_it_and_a_full_bucket_says_when_to_come_again() {
    let mut door = door_and_full_hour("capacity = 2\n");
    for (job, depth, hours) in [(&b"\xff\x00\r\n\n"[..], 1, 1), (b"", 2, 2)] {
        let said = door.push("a", job).json(202);
        let eta = said["eta_ms"].as_i64().expect("a time");
        assert_eq!(said, json!({"accepted": 1, "depth": depth, "capacity": 2, "eta_ms": eta}));
        assert!((hours * 3_600_000 - 60_000..=hours * 3_600_000).contains(&eta), "{eta}");
    }
    let full = door.push("a", b"one too many");
    let (error, _) = full.problem(429);
    let body = full.json(429);
    let ms = body["retry_after_ms"].as_u64().expect("a time");
    assert_eq!((error.as_str(), &body["depth"], &body["capacity"]), ("full", &json!(2), &json!(2)));
    assert!((3_540_000..=3_600_000).contains(&ms), "{ms}");
    assert_eq!(full.header("retry-after"), Some(ms.div_ceil(1_000).to_string().as_str()));
    let queue = door.shell.case.queue("a");
    let waiting: Vec<Vec<u8>> = door.shell.case.cmd(&["LRANGE", &queue, "0", "-1"]);
    assert_eq!(waiting, [&b""[..], b"\xff\x00\r\n\n"], "byte for byte, and only those");
}

#[test]
fn names_are_percent_encoded_and_may_be_any_that_a_bucket_may_have() {
    let mut door = Door::open("[defaults]\nrate = '1/h'\n");
    let names = [
        ("a%2Fb", "a/b"),
        ("100%25", "100%"),
        ("a:b", "a:b"),
        ("a%3ab", "a:b"),
        ("two%20words", "two words"),
        ("a+b", "a+b"),
        ("zo%C3%AB", "zoë"),
        ("%F0%9F%92%A7", "💧"),
        ("%2E%2E", ".."),
        ("%2Fv1%2Fbuckets%2Fx%2Fjobs", "/v1/buckets/x/jobs"),
        ("a%3Fmatch=x%23y", "a?match=x#y"),
        ("*", "*"),
        ("jobs", "jobs"),
        ("pause", "pause"),
        ("resume", "resume"),
        ("close", "close"),
        ("open", "open"),
        ("slow", "slow"),
        ("purge", "purge"),
        ("settings", "settings"),
        ("buckets", "buckets"),
    ];
    for (written, is) in names {
        let ready = door.shell.case.stream("ready").len();
        let before = door.shell.case.waiting(is).len();
        assert_eq!(door.push(written, is.as_bytes()).status, 202, "{written}");
        eventually(is, || {
            let entries = door.shell.case.stream("ready");
            let left = entries.len() > ready && entries.last().is_some_and(|entry| entry.text("bucket") == is);
            left || door.shell.case.waiting(is).len() > before
        });
        assert_eq!(door.get(&format!("/v1/buckets/{written}")).json(200)["status"]["bucket"], is, "{written}");
    }
    let long = "x".repeat(201);
    for bad in ["%ff", "a%00b", "%7Ba%7D", "a%0Ab", "", &long] {
        let (error, detail) = door.push(bad, b"job").problem(400);
        assert!(error == "bad-name" && !detail.is_empty(), "{bad}: {error} {detail}");
    }
    assert_eq!(door.push(&long[1..], b"job").status, 202);
}

#[test]
fn a_job_that_is_too_large_is_413_and_not_read_where_its_size_is_known() {
    let door = Door::open("[limits]\nmax_job_bytes = 1000\n[defaults]\nrate = '1/h'\n");
    assert_eq!(door.push("a", &[b'x'; 1_000]).status, 202);
    let (error, detail) = door.push("a", &[b'x'; 1_001]).problem(413);
    assert!(error == "too-large" && detail.contains("1000 bytes"), "{detail}");
    // In pieces, so that its size is not known before.
    let chunked = |size: usize| {
        let body = format!("{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size));
        door.ask("POST /v1/buckets/a/jobs", &[("Transfer-Encoding", "chunked")], body.as_bytes())
    };
    assert_eq!(chunked(1_000).status, 202);
    chunked(1_001).problem(413);
    // A client that waits for leave to send is told no before it sends anything.
    let mut stream = door.connect();
    write!(
        stream,
        "POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1073741824\r\nExpect: 100-continue\r\n\r\n"
    )
    .expect("sent");
    next_answer(&mut stream).problem(413);
    let mut stream = door.connect();
    write!(
        stream,
        "POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    .expect("sent");
    assert_eq!(next_answer(&mut stream).status, 100);
    stream.write_all(b"job").expect("sent");
    assert_eq!(next_answer(&mut stream).status, 202);
}

#[test]
fn lines_are_jobs_the_first_ones_go_in_and_the_five_integers_say_how_many() {
    let mut door = door_and_full_hour("capacity = 5\n");
    let split = |door: &Door, body: &[u8]| door.ask("POST /v1/buckets/a/jobs?split=lines", &[LINES], body);
    // Empty lines are none, a carriage return belongs to the end of its line, the last line needs no end.
    let said = split(&door, b"{\"n\":1}\n\n\r\n two \r\n\r\nthree\r").json(200);
    let eta = said["eta_ms"].as_i64().expect("a time");
    assert_eq!(said, json!({"accepted": 3, "depth": 3, "capacity": 5, "retry_after_ms": -1, "eta_ms": eta}));
    assert!((3 * 3_600_000 - 60_000..=3 * 3_600_000).contains(&eta), "{eta}");
    assert_eq!(door.shell.case.waiting("a"), ["{\"n\":1}", " two ", "three"]);
    let some = split(&door, b"4\n5\n6\n7\n").json(200);
    assert_eq!((&some["accepted"], &some["depth"], &some["capacity"]), (&json!(2), &json!(5), &json!(5)));
    assert!(some["retry_after_ms"].as_i64().is_some_and(|ms| ms > 0), "{some}");
    assert_eq!(door.shell.case.waiting("a")[3..], ["4", "5"]);
    let none = split(&door, b"8\n9\n");
    let body = none.json(429);
    let integers = ["accepted", "depth", "capacity", "eta_ms"].map(|name| body[name].as_i64().expect(name));
    assert_eq!((integers, none.problem(429).0.as_str()), ([0, 5, 5, -1], "full"));
    let seconds = body["retry_after_ms"].as_u64().expect("a time").div_ceil(1_000);
    assert_eq!(none.header("retry-after"), Some(seconds.to_string().as_str()));
}

#[test]
fn lines_are_at_most_a_thousand_and_8_mib_and_one_that_is_too_large_is_named() {
    let mut door = Door::open("[limits]\nmax_job_bytes = 100000\n[defaults]\nrate = '1/h'\ncapacity = 10000\n");
    let mut split = |bucket: &str, body: &[u8]| {
        let answer = door.ask(&format!("POST /v1/buckets/{bucket}/jobs?split=lines"), &[LINES], body);
        (answer, door.shell.case.waiting(bucket).len())
    };
    let lines = |n: usize, bytes: usize| ["x".repeat(bytes), "\n".to_owned()].concat().repeat(n).into_bytes();
    let (answer, _) = split("thousand", &[lines(1_000, 3), b"\n\n".to_vec()].concat());
    assert_eq!(answer.json(200)["accepted"], 1_000);
    let (answer, waiting) = split("more", &lines(1_001, 3));
    let (error, detail) = answer.problem(413);
    assert!(error == "too-large" && detail.contains("more than 1000 lines"), "{detail}");
    assert_eq!(waiting, 0, "nothing was changed");
    // 8 MiB to the byte, and one more.
    let mut most = lines(100, 83_885);
    most.resize(8 * 1_048_576, b'\n');
    assert_eq!(split("large", &most).0.json(200)["accepted"], 100);
    let (answer, waiting) = split("line", &[b"1\n\n".to_vec(), lines(1, 100_001), b"4\n".to_vec()].concat());
    let (_, detail) = answer.problem(413);
    assert!(detail.contains("line 3 has 100001 bytes") && detail.contains("nothing was changed"), "{detail}");
    assert_eq!(waiting, 0);
    most.push(b'\n');
    let mut stream = door.connect();
    // On a busy machine the door may not read all of what it has refused; its answer is there.
    let _ = stream.write_all(&written(door.port, "POST /v1/buckets/larger/jobs?split=lines", &[LINES], &most, "close"));
    assert!(next_answer(&mut stream).problem(413).1.contains("8388608 bytes"));
    assert!(door.shell.case.waiting_is_empty("larger"));
}

#[test]
fn a_body_of_another_kind_is_415_and_what_is_not_known_is_400() {
    let mut door = Door::open("[defaults]\nrate = '1/h'\n");
    let ask = |query: &str, kind: Option<&str>, body: &[u8]| {
        let headers: Vec<(&str, &str)> = kind.iter().map(|kind| ("Content-Type", *kind)).collect();
        door.ask(&format!("POST /v1/buckets/a/jobs{query}"), &headers, body)
    };
    for kind in [None, Some("application/json"), Some("application/x-ndjson-not"), Some("")] {
        let (error, detail) = ask("?split=lines", kind, b"1\n").problem(415);
        assert!(error == "unsupported-media-type" && detail.contains("application/x-ndjson"), "{detail}");
    }
    assert_eq!(ask("?split=lines", Some("Application/X-NDJSON; charset=utf-8"), b"1\n").status, 200);
    for (query, body) in [("?split=words", &b"1"[..]), ("?splt=lines", b"1"), ("?split=lines", b"\n\r\n")] {
        ask(query, Some(LINES.1), body).problem(400);
    }
    // Without `split` the lines are one job.
    ask("", Some(LINES.1), b"1\n2\n").json(202);
    eventually("it is one job", || {
        let jobs: Vec<String> = door.shell.case.jobs("ready").into_iter().chain(door.shell.case.waiting("a")).collect();
        jobs.len() == 2 && jobs.contains(&"1\n2\n".to_owned())
    });
}

#[test]
fn a_closed_bucket_takes_nothing_and_what_redis_refuses_is_said_by_its_kind() {
    let mut door = Door::open(&format!("[defaults]\nrate = '1/h'\n{TOKENS}"));
    let push = |door: &Door, bucket: &str| door.ask(&format!("POST /v1/buckets/{bucket}/jobs"), &[OPS], b"job");
    door.operate("POST /v1/buckets/a/close", &json!({"for": "10m"})).json(200);
    let closed = push(&door, "a");
    let body = closed.json(429);
    assert_eq!((&body["error"], &body["depth"], &body["capacity"]), (&json!("full"), &json!(0), &json!(0)));
    assert_eq!(body["title"], "The bucket takes no more now");
    assert!(body["detail"].as_str().is_some_and(|detail| detail.contains("the bucket is closed")), "{body}");
    assert_eq!(body["retry_after_ms"], 1_000, "until an operator opens it");
    for options in [("Drip-Id", "1"), ("Drip-Delay", "1m")] {
        let body = door.ask("POST /v1/buckets/a/jobs", &[OPS, options], b"job").json(429);
        assert!(body["detail"].as_str().is_some_and(|detail| detail.contains("the bucket is closed")), "{body}");
        assert_eq!(body["retry_after_ms"], 1_000);
    }
    let seconds: u64 = closed.header("retry-after").expect("it is full").parse().expect("a number");
    assert!(
        seconds >= 1 && body["retry_after_ms"].as_u64().is_some_and(|ms| ms.div_ceil(1_000).max(1) == seconds),
        "{body}"
    );
    let queue = door.shell.case.queue("b");
    let _: i64 = door.shell.case.cmd(&["HSET", &queue, "of", "another kind"]);
    assert_eq!(push(&door, "b").problem(409).0, "wrong-type");
}

#[test]
fn who_is_refused_by_a_gate_is_not_told_that_the_bucket_is_full() {
    let gate = |limit| format!("admit = {{ limiter = 'fixed-window', limit = {limit}, period = '1h' }}\n");
    let mut door = Door::open(&format!(
        "[defaults]\nrate = '1/h'\ncapacity = 100\n[[bucket]]\nmatch = 'gated'\n{}[[bucket]]\nmatch = 'small'\ncapacity = 2\n{}",
        gate(2),
        gate(9)
    ));
    // The first job leaves at once. From then on the bucket has room for two, and stays full.
    door.push("small", b"job").json(202);
    eventually("it has left", || door.shell.case.jobs("ready").len() == 1);
    let refused = |bucket: &str, target: &str, headers: &[(&str, &str)], body: &[u8]| {
        let answer = door.ask(&format!("POST /v1/buckets/{bucket}/jobs{target}"), headers, body);
        let body = answer.json(429);
        assert_eq!((&body["error"], &body["title"]), (&json!("full"), &json!("The bucket takes no more now")));
        assert!(body["retry_after_ms"].as_u64().is_some_and(|ms| ms > 60_000), "{body}");
        (body["depth"].as_u64(), body["capacity"].as_u64(), body["detail"].as_str().unwrap_or_default().to_owned())
    };
    let fill = |bucket: &str| while door.push(bucket, b"job").status == 202 {};
    fill("gated");
    for (target, headers, body) in [("", &[][..], &b"job"[..]), ("?split=lines", &[LINES], b"1\n2\n")] {
        let (depth, capacity, detail) = refused("gated", target, headers, body);
        assert!(depth < capacity && detail.contains("a gate of the bucket") && !detail.contains("all"), "{detail}");
    }
    fill("small");
    let (depth, capacity, detail) = refused("small", "", &[], b"job");
    assert!(depth == capacity && detail.contains("all 2 places"), "{detail}");
}

#[test]
fn requests_over_one_connection_are_answered_in_their_order() {
    let mut door = Door::open("[defaults]\nrate = '1/h'\n");
    let mut stream = door.connect();
    for round in 0..3 {
        let mut requests = Vec::new();
        for n in 0..20 {
            let job = format!("{round}-{n}");
            requests.extend(written(door.port, "POST /v1/buckets/one/jobs", &[], job.as_bytes(), "keep-alive"));
        }
        stream.write_all(&requests).expect("sent at once");
        let depths: Vec<Value> = (0..20).map(|_| next_answer(&mut stream).json(202)["accepted"].clone()).collect();
        assert_eq!(depths, vec![json!(1); 20]);
    }
    eventually("the first one has left", || door.shell.case.stream("ready").len() == 1);
    let mut jobs = door.shell.case.jobs("ready");
    jobs.extend(door.shell.case.waiting("one"));
    let expected: Vec<String> = (0..3).flat_map(|round| (0..20).map(move |n| format!("{round}-{n}"))).collect();
    assert_eq!(jobs, expected);
}
