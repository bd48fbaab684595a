//! Who may use the HTTP server: each rule, and tries to get round it.

use std::io::Write as _;

use serde_json::json;

use super::http::{BILLING, Door, EYES, OPS, TOKENS, next_answer};
use crate::rig::eventually;

const CONFIG: &str = "[defaults]\nrate = '1/h'\n";

/// A door with tokens that others reach by a name.
fn known_as(hosts: &str) -> Door {
    let tokens = TOKENS.replacen(
        "[[http.token]]",
        &format!("[http]\nlisten = '127.0.0.1:0'\nhosts = {hosts}\n[[http.token]]"),
        1,
    );
    Door::of(super::Shell::new(&format!("{CONFIG}{tokens}")))
}

#[test]
fn without_a_token_local_reads_and_pushes_are_open_and_changes_say_how_to_name_one() {
    let mut door = Door::open(CONFIG);
    assert_eq!(door.push("a", b"job").status, 202);
    for target in ["/v1/status", "/v1/settings", "/v1/buckets", "/v1/buckets/a", "/openapi.json", "/healthz", "/readyz"]
    {
        assert_eq!(door.get(target).status, 200, "{target}");
    }
    assert_eq!(door.ask("POST /v1/what-if", &[], br#"{"bucket":"a"}"#).status, 200);
    for request in [
        "PATCH /v1/buckets/a/settings",
        "PATCH /v1/buckets/a/settings/rate",
        "DELETE /v1/buckets/a/settings",
        "DELETE /v1/buckets/settings?match=*",
        "POST /v1/buckets/a/pause",
        "POST /v1/buckets/pause?match=*",
        "POST /v1/buckets/a/resume",
        "POST /v1/buckets/a/close",
        "POST /v1/buckets/a/open",
        "POST /v1/buckets/a/slow",
        "POST /v1/buckets/a/purge",
        "POST /v1/budgets/a/pause",
        "GET /v1/dead",
        "POST /v1/dead/retry",
        "POST /v1/dead/drop",
        "POST /v1/limit/fixed-window/k",
    ] {
        let (error, detail) = door.ask(request, &[], b"{}").problem(403);
        assert!(error == "forbidden" && detail.contains("[[http.token]]"), "{request}: {detail}");
        // A token that is not named opens nothing, and is not taken for none.
        assert_eq!(door.ask(request, &[OPS], b"{}").problem(401).0, "unauthorized", "{request}");
    }
    let settings: Vec<String> = door.shell.case.keys().into_iter().filter(|key| key.contains("settings")).collect();
    assert!(settings.is_empty(), "{settings:?}");
}

#[test]
fn as_soon_as_a_token_is_named_pushes_changes_and_jobs_need_one() {
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    for request in ["POST /v1/buckets/a/jobs", "POST /v1/buckets/a/pause", "GET /v1/dead", "POST /v1/limit/throttle/k"]
    {
        let answer = door.ask(request, &[], b"");
        assert_eq!(answer.problem(401).0, "unauthorized", "{request}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{request}");
    }
    assert_eq!(door.get("/v1/status").status, 200, "what shows no jobs stays open to local requests");
    let bearer = |value: &'static str| ("Authorization", value);
    for wrong in [
        "Bearer wrong",
        "Bearer ops-secre",
        "Bearer ops-secret2",
        "Bearer",
        "Bearer ",
        "ops-secret",
        "Basic b3BzLXNlY3JldA==",
        "Bearer ops-secret, Bearer ops-secret",
        "Bearer \"ops-secret\"",
        "Token ops-secret",
        "Bearer OPS-SECRET",
        "Bearer \u{fc}",
    ] {
        assert_eq!(door.ask("GET /v1/status", &[bearer(wrong)], b"").problem(401).0, "unauthorized", "{wrong}");
    }
    for right in ["Bearer ops-secret", "bearer ops-secret", "BEARER   ops-secret"] {
        assert_eq!(door.ask("GET /v1/dead", &[bearer(right)], b"").status, 200, "{right}");
    }
    for two in [[OPS, OPS], [OPS, EYES], [EYES, bearer("Bearer wrong")]] {
        assert!(door.ask("GET /v1/status", &two, b"").problem(401).1.contains("one Authorization header"));
    }
    // A token belongs into its header and nowhere else.
    assert_eq!(door.get("/v1/dead?access_token=ops-secret").status, 401);
}

#[test]
fn each_token_opens_what_it_is_for_and_no_more() {
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    let status = |request: &str, token, body: &[u8]| door.ask(request, &[token], body).status;
    for (bucket, allowed) in [
        ("billing:a", 202),
        ("billing:", 202),
        ("billing%3Aa", 202),
        ("billing", 403),
        ("Billing:a", 403),
        ("a:billing:", 403),
        ("x%2Fbilling:a", 403),
        ("sms:a", 403),
    ] {
        assert_eq!(status(&format!("POST /v1/buckets/{bucket}/jobs"), BILLING, b"job"), allowed, "{bucket}");
        assert_eq!(status(&format!("POST /v1/buckets/{bucket}/jobs"), OPS, b"job"), 202, "{bucket}");
        assert_eq!(status(&format!("POST /v1/buckets/{bucket}/jobs"), EYES, b"job"), 403, "{bucket}");
    }
    let lines = ("Content-Type", "application/x-ndjson");
    assert_eq!(door.ask("POST /v1/buckets/sms:a/jobs?split=lines", &[BILLING, lines], b"1\n").status, 403);
    for read in ["/v1/status", "/v1/settings", "/v1/buckets", "/v1/buckets/billing:a", "/v1/dead", "/openapi.json"] {
        let request = format!("GET {read}");
        let (push, reads, operates) =
            (status(&request, BILLING, b""), status(&request, EYES, b""), status(&request, OPS, b""));
        assert_eq!((push, reads, operates), (403, 200, 200), "{read}");
    }
    for (change, body) in [
        ("PATCH /v1/buckets/billing:a/settings", r#"{"rate":"2/h"}"#),
        ("DELETE /v1/buckets/settings?match=billing:*", ""),
        ("POST /v1/buckets/billing:a/pause", ""),
        ("POST /v1/buckets/pause?match=billing:*", ""),
        ("POST /v1/buckets/billing:a/purge", ""),
        ("POST /v1/buckets/billing:a/slow", r#"{"for":"1s"}"#),
        ("POST /v1/dead/drop", r#"{"dry_run":true}"#),
        ("POST /v1/limit/fixed-window/billing:a", r#"{"rate":"1/s"}"#),
    ] {
        for token in [BILLING, EYES] {
            assert_eq!(door.ask(change, &[token], body.as_bytes()).problem(403).0, "forbidden", "{change} {token:?}");
        }
        assert_eq!(status(change, OPS, body.as_bytes()), 200, "{change}");
    }
    assert_eq!(status("POST /v1/what-if", EYES, br#"{"bucket":"a"}"#), 200);
    assert_eq!(status("POST /v1/what-if", BILLING, br#"{"bucket":"billing:a"}"#), 403);
}

#[test]
fn a_host_is_a_loopback_name_or_listed_and_exactly_one() {
    let door = known_as("['drip.example.com', '10.0.0.1:8443']");
    let ask = |request: &str, host: &'static str| door.ask(request, &[("Host", host)], b"");
    for local in ["localhost", "LocalHost:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:7380", "[::ffff:127.0.0.1]"]
    {
        assert_eq!(ask("GET /v1/status", local).status, 200, "{local}");
    }
    for foreign in [
        "evil.example.com",
        "localhost.evil.example.com",
        "127.0.0.1.nip.io",
        "drip.example.com.",
        "xdrip.example.com",
        "10.0.0.1",
        "10.0.0.1:80",
        "[::2]",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "localhost.",
    ] {
        for request in ["GET /v1/status", "GET /healthz", "GET /", "POST /v1/buckets/a/jobs"] {
            let answer = door.ask(request, &[("Host", foreign), OPS], b"");
            assert!(answer.problem(421).1.contains("http.hosts"), "{request} {foreign}");
        }
    }
    for listed in ["drip.example.com", "DRIP.Example.COM:443", "10.0.0.1:8443"] {
        assert_eq!(ask("GET /v1/status", listed).problem(401).0, "unauthorized", "{listed}");
        assert_eq!(door.ask("GET /v1/status", &[("Host", listed), EYES], b"").status, 200, "{listed}");
        assert_eq!((ask("GET /healthz", listed).status, ask("GET /readyz", listed).status), (200, 200), "{listed}");
    }
    for wrong in ["", " ", "user@localhost", "local host", "localhost/x", "http://localhost"] {
        assert_eq!(ask("GET /v1/status", wrong).status, 400, "{wrong:?}");
    }
    for two in [["localhost", "localhost"], ["localhost", "evil.example.com"]] {
        let answer = door.ask("GET /v1/status", &[("Host", two[0]), ("Host", two[1])], b"");
        assert!(answer.problem(400).1.contains("one Host"), "{two:?}");
    }
    // The target counts, and must not say something else than the header.
    for (target, host, is) in [
        ("http://localhost/v1/status", "localhost", 200),
        ("http://localhost/v1/status", "evil.example.com", 400),
        ("http://evil.example.com/v1/status", "localhost", 400),
        ("http://evil.example.com/v1/status", "evil.example.com", 421),
        ("http://drip.example.com/v1/status", "drip.example.com", 401),
        ("http://localhost@evil.example.com/v1/status", "localhost", 400),
    ] {
        assert_eq!(ask(&format!("GET {target}"), host).status, is, "{target} {host}");
    }
    for (text, is) in
        [("GET /v1/status HTTP/1.0\r\n\r\n", 400), ("GET /v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n", 200)]
    {
        let mut stream = door.connect();
        stream.write_all(text.as_bytes()).expect("sent");
        assert_eq!(next_answer(&mut stream).status, is, "{text}");
    }
}

#[test]
fn what_a_proxy_hands_on_is_not_local() {
    let (door, open) = (Door::open(&format!("{CONFIG}{TOKENS}")), Door::open(CONFIG));
    for header in [
        ("Forwarded", "for=127.0.0.1"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("x-forwarded-host", "localhost"),
        ("X-Forwarded-Proto", ""),
        ("X-FORWARDED-ANYTHING", "1"),
        ("X-Real-IP", "127.0.0.1"),
    ] {
        for door in [&door, &open] {
            for request in ["GET /v1/status", "GET /v1/buckets/a", "POST /v1/buckets/a/jobs", "GET /openapi.json"] {
                assert_eq!(door.ask(request, &[header], b"job").problem(401).0, "unauthorized", "{header:?} {request}");
            }
            assert_eq!(door.ask("GET /healthz", &[header], b"").status, 200);
        }
        assert_eq!(door.ask("GET /v1/status", &[header, EYES], b"").status, 200, "with a token");
    }
}

#[test]
fn a_page_of_another_site_may_do_nothing_but_open_a_page() {
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    let own = format!("http://localhost:{}", door.port);
    let other_port = format!("http://localhost:{}", door.port.wrapping_add(1));
    for header in [
        ("Origin", "null"),
        ("Origin", "http://evil.example.com"),
        ("Origin", &other_port),
        ("Origin", "http://127.0.0.1"),
        ("Origin", ""),
        ("Origin", "chrome-extension://abc"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        for request in
            ["GET /v1/status", "POST /v1/buckets/a/jobs", "POST /v1/buckets/a/purge", "OPTIONS /v1/status", "POST /"]
        {
            let answer = door.ask(request, &[header, OPS], b"");
            assert!(answer.problem(403).1.contains("another site"), "{header:?} {request}");
            assert!(!answer.head.to_ascii_lowercase().contains("access-control-"), "no CORS: {}", answer.head);
        }
        assert_ne!(door.get("/").status, 403);
        assert_ne!(door.ask("GET /", &[header], b"").status, 403, "{header:?}");
    }
    for header in [("Origin", own.as_str()), ("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "none")] {
        assert_eq!(door.ask("POST /v1/buckets/a/jobs", &[header, OPS], b"job").status, 202, "{header:?}");
    }
    let two = [("Origin", own.as_str()), ("Origin", "http://evil.example.com"), OPS];
    assert_eq!(door.ask("POST /v1/buckets/a/jobs", &two, b"job").status, 403);
}

#[test]
fn every_request_of_the_document_needs_a_token_from_elsewhere() {
    let door = known_as("['drip.example.com']");
    let document = door.get("/openapi.json").json(200);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let target = path.replace(['{', '}'], "");
            let request = format!("{} {target}", method.to_uppercase());
            let answer = door.ask(&request, &[("Host", "drip.example.com")], b"");
            if path == "/healthz" || path == "/readyz" {
                assert_eq!(answer.status, 200, "{request}");
            } else if path != "/" && !path.starts_with("/assets") {
                assert_eq!(answer.problem(401).0, "unauthorized", "{request}");
                asked += 1;
            }
        }
    }
    assert!(asked > 30, "{asked}");
    // Nor does it say what there is and what not.
    for request in ["GET /no/such", "PUT /v1/status", "POST /v1/buckets/%ff/jobs"] {
        door.ask(request, &[("Host", "drip.example.com")], b"").problem(401);
    }
}

#[test]
fn tokens_and_hosts_are_read_again_on_reload_or_all_stays_as_it_was() {
    let door = known_as("['drip.example.com']");
    let of = |host: &'static str, token| door.ask("GET /v1/status", &[("Host", host), token], b"").status;
    let new = ("Authorization", "Bearer new-secret");
    assert_eq!((of("localhost", OPS), of("localhost", new)), (200, 401));
    door.shell.file("ops", "new-secret\n");
    assert_eq!(of("localhost", OPS), 200, "not before it is told to");
    assert_eq!(door.shell.run(&["reload"]).0, 0);
    assert_eq!((of("localhost", OPS), of("localhost", new)), (401, 200));

    let file = door.shell.home().join("config.toml");
    let good = std::fs::read_to_string(&file).expect("read");
    let refused = |change: &dyn Fn(), says: &str| {
        change();
        let (code, _, err) = door.shell.run(&["reload"]);
        assert!(code != 0 && err.contains(says), "{code} {err}");
        assert_eq!(
            (of("localhost", new), of("drip.example.com", EYES), of("other.example.com", EYES)),
            (200, 200, 421)
        );
    };
    let with_hosts = good.replace("drip.example.com", "other.example.com");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    refused(
        &|| {
            std::fs::remove_file(door.shell.home().join("eyes")).expect("removed");
            write(&with_hosts);
        },
        "cannot be read",
    );
    refused(
        &|| {
            door.shell.file("eyes", "\nsecond line\n");
        },
        "has no token in its first line",
    );
    refused(
        &|| {
            door.shell.file("eyes", "two words\n");
        },
        "no header can hold",
    );
    refused(
        &|| {
            door.shell.file("eyes", "new-secret\n");
        },
        "holds the token of \"ops\" too",
    );
    door.shell.file("eyes", "eyes-secret\nwhat follows is no part of it\n");
    assert_eq!(door.shell.run(&["reload"]).0, 0);
    assert_eq!((of("drip.example.com", EYES), of("other.example.com", EYES)), (421, 200));
    // Without any token local reads are open, and all others shut out.
    write(good.split("[[http.token]]").next().expect("a part"));
    assert_eq!(door.shell.run(&["reload"]).0, 0);
    assert_eq!(of("localhost", new), 401);
    assert_eq!(door.push("a", b"job").status, 202);
    assert!(!door.daemon.log().contains("secret"), "no token is in the log");
}

#[test]
fn what_an_operator_does_carries_the_name_of_the_token() {
    let mut door = Door::open(&format!("{CONFIG}{TOKENS}"));
    door.operate("POST /v1/buckets/a/pause", &json!({"reason": "carrier down"})).json(200);
    let (_, said, _) = door.shell.run(&["settings", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let by = said[0]["by"].as_str().expect("somebody");
    assert!(by.starts_with("ops@") && by.ends_with(" over HTTP"), "{by}");
    assert_eq!((&said[0]["user"], &said[0]["reason"]), (&json!("default"), &json!("carrier down")));
    eventually("it is an event too", || {
        door.shell
            .case
            .stream("events")
            .iter()
            .any(|event| event.fields.values().any(|value| value.starts_with(b"ops@")))
    });
}
