//! What requests and answers hold together: bodies that do not end, answers that nobody takes, and health beside them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::dead::bury;
use super::http::{Answer, BILLING, Door, EYES, OPS, TOKENS, next_answer, written};
use super::http_connections::raise_the_limit_of_files;
use crate::rig::eventually;

const CONFIG: &str = "[defaults]\nrate = '1/h'\ncapacity = 1000000\n";
const MIB: usize = 1_048_576;

/// The most memory that the daemon has held so far, in kB.
fn peak(door: &Door) -> u64 {
    super::proc(door.daemon.child.id(), "status", "VmHWM:").expect("it runs")
}

/// Whether health is answered within a second. A busy machine may be late itself, so it is asked some times, but not for
/// as long as what stands in its way may stay.
fn is_healthy(door: &Door) -> bool {
    let began = Instant::now();
    let is_soon = |_| {
        let since = Instant::now();
        let statuses = [door.get("/healthz").status, door.get("/readyz").status];
        assert_eq!(statuses, [200, 200]);
        since.elapsed() < Duration::from_secs(1)
    };
    (0..5).any(is_soon) && began.elapsed() < Duration::from_secs(10)
}

#[test]
fn forty_bodies_of_8_mb_that_do_not_end_hold_64_mib_together_and_give_way() {
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    assert!(is_healthy(&door));
    let before = peak(&door);
    let headers = [BILLING, ("Content-Type", "application/x-ndjson")];
    let request = "POST /v1/buckets/billing:a/jobs?split=lines";
    let body = [&vec![b'x'; 8 * MIB - 1][..], b"\n"].concat();
    let whole = written(door.port, request, &headers, &body, "close");
    let cut = &whole[..whole.len() - 1];
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..40)
            .map(|_| {
                let mut stream = door.connect();
                scope.spawn(move || {
                    let _ = stream.write_all(cut); // as much of it as is read
                    let mut answer = Vec::new();
                    let _ = stream.read_to_end(&mut answer);
                    Answer::parse(&answer)
                })
            })
            .collect();
        assert!(is_healthy(&door));
        for sender in senders {
            let answer = sender.join().expect("it is answered");
            match answer.status {
                503 => {
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    assert_eq!(answer.problem(503).0, "busy");
                }
                status => assert_eq!((status, answer.problem(status).0.as_str()), (408, "too-slow")),
            }
        }
    });
    let held = peak(&door) - before;
    assert!(held < 96 * 1_024, "{held} kB more than before, of which 65,536 are allowed");
    let push = |body: &[u8]| door.ask(request, &headers, body).status;
    eventually("there is room again", || push(b"1\n2\n") == 200);
    // All of them end now: what 40 of them are on their way to Redis is bounded too. A line is larger than a job may be.
    let lines = [&vec![b'x'; MIB - 1][..], b"\n"].concat().repeat(8);
    let whole = written(door.port, request, &headers, &lines, "close");
    std::thread::scope(|scope| {
        for _ in 0..40 {
            let (mut stream, whole) = (door.connect(), &whole);
            scope.spawn(move || {
                let _ = stream.write_all(whole);
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer);
                let status = Answer::parse(&answer).status;
                assert!([200, 408, 503].contains(&status), "{status}");
            });
        }
    });
    let held = peak(&door) - before;
    assert!(held < 160 * 1_024, "{held} kB more than before");
}

#[test]
fn thirty_answers_that_nobody_takes_hold_no_more_than_the_bound_and_give_way() {
    let mut door = Door::open(&format!("{CONFIG}{TOKENS}"));
    // JSON has six bytes for each of these.
    let job = vec![1; 128 * 1_024];
    let letters: Vec<(&str, &[u8], &str)> = (0..48).map(|_| ("billing:a", &job[..], "failed")).collect();
    bury(&mut door.shell.case, &letters);
    let before = peak(&door);
    let request = written(door.port, "GET /v1/dead?limit=1000", &[EYES], b"", "keep-alive");
    let deaf: Vec<TcpStream> = (0..30)
        .map(|_| {
            let mut stream = door.connect();
            socket2::SockRef::from(&stream).set_recv_buffer_size(4_096).expect("set");
            stream.write_all(&request).expect("sent");
            stream
        })
        .collect();
    assert!(is_healthy(&door));
    let mut page = serde_json::Value::Null;
    eventually("somebody who takes it is answered", || {
        let answer = door.ask("GET /v1/dead?limit=1000", &[OPS], b"");
        if answer.status == 200 {
            page = answer.json(200);
        } else {
            assert_eq!(answer.problem(503).0, "busy");
        }
        answer.status == 200
    });
    assert_eq!(page["letters"].as_array().map(Vec::len), Some(8), "a page ends at a mebibyte of letters");
    assert!(page["next"].is_string());
    let held = peak(&door) - before;
    assert!(held < 112 * 1_024, "{held} kB more than before, of which 65,536 are allowed");
    drop(deaf);
}

#[test]
fn a_thousand_slow_bodies_hide_no_health() {
    assert!(raise_the_limit_of_files() > 2_400, "this machine allows too few open files");
    let door = Door::open(CONFIG);
    let head = b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx";
    let begin = |_| {
        let mut stream = door.connect();
        stream.write_all(head).expect("sent");
        stream
    };
    let mut slow: Vec<TcpStream> = (0..1_024).map(begin).collect();
    assert!(is_healthy(&door));
    slow.extend((0..64).map(begin));
    assert!(is_healthy(&door));
    // Others have their turn as soon as the bodies have had some seconds.
    let since = Instant::now();
    eventually("a push is taken", || door.push("b", b"job").status == 202);
    assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    drop(slow);
}

#[test]
fn who_asks_is_known_before_a_byte_of_the_body_is_read() {
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    for (request, token, status) in [
        ("POST /v1/what-if", BILLING, 403),
        ("POST /v1/what-if", ("Authorization", "Bearer wrong"), 401),
        ("POST /v1/buckets/sms:a/jobs", BILLING, 403),
        ("PATCH /v1/buckets/a/settings", EYES, 403),
        ("POST /v1/buckets/a/pause", EYES, 403),
        ("POST /v1/buckets/a/slow", EYES, 403),
        ("POST /v1/buckets/a/told", EYES, 403),
        ("POST /v1/buckets/a/purge", EYES, 403),
        ("POST /v1/dead/retry", EYES, 403),
        ("POST /v1/dead/drop", EYES, 403),
        ("POST /v1/limit/throttle/k", EYES, 403),
    ] {
        let mut stream = door.connect();
        let words = br#"{"bucket": "billing:a"}"#;
        let whole = written(door.port, request, &[token, ("Expect", "100-continue")], words, "keep-alive");
        stream.write_all(&whole[..whole.len() - words.len()]).expect("sent");
        assert_eq!(next_answer(&mut stream).status, status, "{request} {token:?}");
    }
}
