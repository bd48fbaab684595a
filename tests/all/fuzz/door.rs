//! The HTTP server of a running daemon under requests that are none, or nearly.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use proptest::prelude::*;

use super::{cases, damage, damaged};
use crate::program::http::{Door, TOKENS};
use crate::program::proc;

/// Requests that the door knows, of each kind.
const GOOD: [&str; 12] = [
    "POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Length: 5\r\n\r\nhello",
    "POST /v1/buckets/a/jobs?split=lines HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na\nb\n\r\n0\r\n\r\n",
    "GET /v1/buckets?by=depth&match=a%2A&limit=5&now=true HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\n\r\n",
    "GET /v1/buckets/a%2Fb/jobs?limit=5&bytes=100 HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization: Bearer ops-secret\r\n\r\n",
    "PATCH /v1/buckets/a/settings?for=10m&reason=x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n{\"rate\": \"5/s\", \"capacity\": 1000}",
    "DELETE /v1/buckets/a/settings/rate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\n\r\n",
    "POST /v1/buckets/a/pause HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"for\": \"10m\"}",
    "POST /v1/limit/fixed-window/k HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n{\"rate\": \"5/60s\", \"quantity\": 1}",
    "GET /v1/dead?bucket=a&before=2026-01-01&limit=5&after=1-1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\n\r\n",
    "POST /v1/what-if HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"bucket\": \"a\", \"set\": {\"rate\": \"5/s\"}, \"push\": 9}",
    "GET /metrics/buckets?match=a&top=3 HTTP/1.1\r\nHost: localhost\r\nForwarded: for=1.2.3.4\r\nAuthorization: Bearer ops-secret\r\n\r\n",
    "GET /v1/status HTTP/1.0\r\n\r\n",
];

/// What bytes are answered, up to the end. The other side says at once that it will send no more.
fn answer(port: u16, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(40))).expect("a timeout");
    let mut bytes = Vec::new();
    // It may close before it has read all.
    if stream.write_all(request).and_then(|()| stream.shutdown(Shutdown::Write)).is_ok() {
        let _ = stream.read_to_end(&mut bytes);
    }
    bytes
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let like = (prop::sample::select(&GOOD[..]), prop::collection::vec(damage(), 0..5))
        .prop_map(|(text, damages)| damaged(text.as_bytes().to_vec(), &damages));
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..200), 9 => like]
}

#[test]
fn whatever_is_asked_the_door_answers_or_closes_and_stays_open() {
    let door = Door::open(TOKENS);
    let pid = door.daemon.child.id();
    let memory = || proc(pid, "status", "VmRSS:").expect("it runs");
    let before = memory();
    let mut runner = proptest::test_runner::TestRunner::new(cases(600));
    let done = runner.run(&request(), |request| {
        let answer = answer(door.port, &request);
        let text = String::from_utf8_lossy(&answer);
        let status: Option<u16> = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        prop_assert!(answer.is_empty() || status.is_some(), "{}", text);
        prop_assert!(status.is_none_or(|status| status != 500 && status != 504), "{}", text);
        Ok(())
    });
    done.unwrap_or_else(|why| panic!("{why}\n{}", door.daemon.log()));
    assert_eq!(door.get("/healthz").status, 200);
    assert!(!door.daemon.log().contains("panicked"), "{}", door.daemon.log());
    assert!(memory() < before + 64 * 1024, "from {before} kB to {} kB", memory());
}
