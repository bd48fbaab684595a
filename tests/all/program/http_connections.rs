//! Connections that do harm, on purpose or not: slow ones, many, half-open, with garbage, without end, and such that take no answer.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::http::{Answer, Door, TOKENS, next_answer, written};
use crate::rig::eventually;

const CONFIG: &str = "[defaults]\nrate = '1/h'\ncapacity = 1000000\n";

/// Wait for the end of a connection. Replies what came before it, and when.
fn end_of(stream: &mut TcpStream, since: Instant) -> (Vec<u8>, Duration) {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(why) if why.kind() == ErrorKind::ConnectionReset => {}
        Err(why) => panic!("it has not ended: {why}"),
    }
    (bytes, since.elapsed())
}

#[test]
fn a_head_has_five_seconds_and_a_body_thirty_however_slowly_they_drip() {
    let door = Door::open(CONFIG);
    let since = Instant::now();
    let (mut silent, mut drips, mut kept, mut body) = (door.connect(), door.connect(), door.connect(), door.connect());
    drips.write_all(b"GET /healthz HTTP/1.1\r\n").expect("sent");
    kept.write_all(&written(door.port, "GET /healthz", &[], b"", "keep-alive")).expect("sent");
    assert_eq!(next_answer(&mut kept).status, 200);
    kept.write_all(b"GET ").expect("sent"); // the next head has begun
    body.write_all(b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        .expect("sent");
    let mut dripping = drips.try_clone().expect("the same");
    let mut dripping_body = body.try_clone().expect("the same");
    let dripper = std::thread::spawn(move || {
        // A byte a tenth of a second: it is never silent for long.
        let mut both = [Some(&mut dripping), Some(&mut dripping_body)];
        while both.iter().any(Option::is_some) {
            for one in &mut both {
                if one.as_mut().is_some_and(|stream| stream.write_all(b"x").is_err()) {
                    *one = None;
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    for (what, stream) in [("silent", &mut silent), ("drips", &mut drips), ("kept", &mut kept)] {
        let (bytes, after) = end_of(stream, since);
        assert!(bytes.is_empty() && after >= Duration::from_secs(5), "{what}: {after:?}");
        assert!(after < Duration::from_secs(20), "{what}: {after:?}");
    }
    let (bytes, after) = end_of(&mut body, since);
    assert_eq!(Answer::parse(&bytes).problem(408).0, "too-slow");
    assert!((30..38).contains(&after.as_secs()), "{after:?}");
    dripper.join().expect("both have ended");
}

#[test]
fn a_connection_that_a_client_keeps_for_later_is_still_there_after_the_time_that_a_head_has() {
    let door = Door::open(CONFIG);
    let mut kept = door.connect();
    let ask = |kept: &mut TcpStream| {
        kept.write_all(&written(door.port, "GET /healthz", &[], b"", "keep-alive")).expect("sent");
        next_answer(kept).status
    };
    assert_eq!(ask(&mut kept), 200);
    std::thread::sleep(Duration::from_millis(7_500)); // half as long again as a head may take
    assert_eq!(ask(&mut kept), 200);
}

#[test]
fn garbage_is_refused_and_costs_nobody_else_anything() {
    let door = Door::open(CONFIG);
    let many_headers = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-A: b\r\n".repeat(200));
    let long_header = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: {}\r\n\r\n", "b".repeat(400_000));
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(100_000));
    for (garbage, statuses) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[400][..]), // the beginning of TLS
        (b"\0\0\0\0\r\n\r\n", &[400]),
        (b"GET /healthz\r\n\r\n", &[400]),
        (b"GET  /healthz HTTP/1.1\r\n\r\n", &[400]),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n", &[400]),
        (b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", &[400]),
        (b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", &[400]),
        (b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", &[400, 501]),
        (b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", &[400]),
        (many_headers.as_bytes(), &[431]),
        (long_header.as_bytes(), &[431]),
        (long_target.as_bytes(), &[414, 431]),
    ] {
        // Behind a good request, as one that is smuggled in would be.
        let mut stream = door.connect();
        let good = written(door.port, "GET /healthz", &[], b"", "keep-alive");
        stream.write_all(&[&good[..], garbage].concat()).expect("sent");
        assert_eq!(next_answer(&mut stream).status, 200);
        let shown = String::from_utf8_lossy(&garbage[..garbage.len().min(60)]).into_owned();
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let (bytes, _) = end_of(&mut stream, Instant::now());
        let answer = Answer::parse(&bytes);
        assert!(statuses.contains(&answer.status), "{shown:?}: {}", String::from_utf8_lossy(&bytes));
        answer.problem(answer.status);
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{shown:?}");
        assert_eq!(door.get("/healthz").status, 200, "{shown:?}");
    }
    // HTTP/2 without an agreement on it is closed without a word: what follows would be no text.
    let mut other = door.connect();
    other.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
    assert_eq!(end_of(&mut other, Instant::now()).0, b"");
    // A body that ends too soon is no job.
    let mut cut = door.connect();
    cut.write_all(b"POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf")
        .expect("sent");
    cut.shutdown(std::net::Shutdown::Write).expect("the end");
    let _ = end_of(&mut cut, Instant::now());
    assert_eq!(door.get("/v1/buckets/a").json(200)["status"]["depth"], 0);
}

#[test]
fn a_gibibyte_is_refused_at_once_and_whoever_goes_on_sending_finds_the_answer() {
    let door = Door::open(CONFIG);
    let rss = || super::proc(door.daemon.child.id(), "status", "VmRSS:").expect("it runs");
    let before = rss();
    for head in ["Content-Length: 1073741824", "Transfer-Encoding: chunked"] {
        let mut stream = door.connect();
        let request = format!("POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let piece = [b"100000\r\n".to_vec(), vec![b'x'; 1_048_576], b"\r\n".to_vec()].concat();
        // As a simple client does it: all of it first, and only then the answer. It is not all taken, but the answer is there.
        let sent = (0..1_024).take_while(|_| stream.write_all(&piece).is_ok()).count();
        assert!(sent < 1_024, "not a gibibyte is read");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(Answer::parse(&answer).status, 413, "{head}");
    }
    // A client that sends only a little too much is answered, though it does not listen before its end. A busy machine may be longer over it
    // than the two seconds for which the door reads on: then once more.
    let request = written(door.port, "POST /v1/buckets/a/jobs", &[], &vec![b'x'; 4_000_000], "keep-alive");
    let is_taken = |_| {
        let mut stream = door.connect();
        let sent = stream.write_all(&request);
        assert_eq!(next_answer(&mut stream).problem(413).0, "too-large");
        sent.is_ok()
    };
    assert!((0..5).any(is_taken), "all of it is taken");
    assert!(rss() < before + 64 * 1_024, "{before} kB, then {} kB", rss());
}

#[test]
fn clients_that_never_take_their_answers_are_closed_and_the_others_are_served() {
    let door = Door::open(CONFIG);
    let since = Instant::now();
    // Much that costs the door little: until all eight stand still the first must not have been there for 30 s.
    let request = written(door.port, "GET /assets/uplot.min.js", &[], b"", "keep-alive");
    let mut deaf: Vec<TcpStream> = (0..8).map(|_| door.connect()).collect();
    for stream in &mut deaf {
        stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        // Until nothing more is taken: what is not read stands in the way.
        while stream.write_all(&request).is_ok() {}
    }
    eventually("others are served", || door.push("a", b"job").status == 202);
    // They end some 30 s after the last byte was taken. A connection that has ended takes no byte any more; a full one takes none yet.
    let is_there = |stream: &mut TcpStream| match stream.write(b"x") {
        Ok(_) => true,
        Err(why) => why.kind() == ErrorKind::WouldBlock,
    };
    // A busy machine is long in filling what lies between, and its last byte is as late.
    let full = Instant::now();
    while !deaf.is_empty() {
        assert!(full.elapsed() < Duration::from_secs(180), "{} are still there", deaf.len());
        assert_eq!(door.get("/healthz").status, 200);
        std::thread::sleep(Duration::from_millis(200));
        deaf.retain_mut(is_there);
    }
    assert!(since.elapsed() >= Duration::from_secs(30), "{:?}", since.elapsed());
}

#[test]
fn as_many_that_take_nothing_as_there_may_be_keep_nobody_out() {
    assert!(raise_the_limit_of_files() > 2_400, "this machine allows too few open files");
    let door = Door::open(CONFIG);
    let request = written(door.port, "GET /assets/uplot.min.js", &[], b"", "keep-alive");
    let many = request.repeat(200); // more answers than lie between
    let deaf: Vec<TcpStream> = (0..1_024)
        .map(|_| {
            let stream = door.connect();
            // Small, so that it is full at once.
            socket2::SockRef::from(&stream).set_recv_buffer_size(4_096).expect("set");
            stream.set_nonblocking(true).expect("set");
            let _ = (&stream).write(&many);
            stream
        })
        .collect();
    // Ten requests of others, each of which needs the place of one of them, in less time than one of them may stand still.
    let since = Instant::now();
    for _ in 0..10 {
        assert_eq!(door.get("/healthz").status, 200);
    }
    assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    drop(deaf);
}

#[test]
fn a_client_that_has_said_all_and_closes_its_side_gets_its_answer() {
    let door = Door::open(CONFIG);
    let mut stream = door.connect();
    stream.write_all(&written(door.port, "POST /v1/buckets/a/jobs", &[], b"job", "keep-alive")).expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("no more follows");
    let (bytes, _) = end_of(&mut stream, Instant::now());
    assert_eq!(Answer::parse(&bytes).status, 202);
    // One that says nothing at all is no error, and does not stay.
    let stream = door.connect();
    stream.shutdown(std::net::Shutdown::Write).expect("no more follows");
    let mut stream = stream;
    let (bytes, after) = end_of(&mut stream, Instant::now());
    assert!(bytes.is_empty() && after < Duration::from_secs(4), "{after:?}");
}

/// Raise the limit of open files of this process as far as it goes, for connections by the thousand. Replies it.
pub fn raise_the_limit_of_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[test]
fn of_ten_thousand_half_open_connections_the_idlest_make_room_and_requests_are_answered() {
    let allowed = raise_the_limit_of_files();
    let door = Door::open(&format!("{CONFIG}{TOKENS}"));
    let many = usize::try_from(allowed.saturating_sub(500)).map_or(10_000, |most| most.min(10_000));
    assert!(many > 2_000, "this machine allows {allowed} open files");
    let limit = std::fs::read_to_string(format!("/proc/{}/limits", door.daemon.child.id())).expect("it runs");
    let limit: u64 = limit
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .and_then(|line| line.split_whitespace().nth(3))
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let most = 1_024.min(usize::try_from(limit).expect("a number") - 128);

    let mut in_body = door.connect();
    let words = br#"{"bucket":"a"}"#;
    let request = written(door.port, "POST /v1/what-if", &[("Expect", "100-continue")], words, "keep-alive");
    in_body.write_all(&request[..request.len() - words.len()]).expect("sent");
    assert_eq!(next_answer(&mut in_body).status, 100);
    let mut half_open = Vec::with_capacity(many);
    while half_open.len() < many {
        let mut stream = door.connect();
        let _ = stream.write_all(b"GET /v1/sta");
        half_open.push(stream);
        if half_open.len() % 1_000 == 0 {
            assert_eq!(door.get("/healthz").status, 200, "after {}", half_open.len());
        }
        if half_open.len() == 2_000 {
            // A request in hand is not closed however long ago it began; those that came first are.
            in_body.write_all(words).expect("sent");
            assert_eq!(next_answer(&mut in_body).status, 200);
        }
    }
    let fds = std::fs::read_dir(format!("/proc/{}/fd", door.daemon.child.id())).expect("it runs").count();
    assert!(fds <= most + 64, "{fds} descriptors for at most {most} connections");
    let (bytes, _) = end_of(&mut half_open[0], Instant::now());
    assert!(bytes.is_empty(), "closed to make room");
    drop(half_open);
    eventually("they are gone", || {
        std::fs::read_dir(format!("/proc/{}/fd", door.daemon.child.id())).expect("it runs").count() < 64
    });
    assert_eq!(door.get("/v1/status").status, 200);
}

#[test]
fn when_as_many_requests_as_may_be_are_served_the_next_one_waits_for_the_first_that_ends_and_health_does_not() {
    let allowed = raise_the_limit_of_files();
    assert!(allowed > 2_400, "this machine allows {allowed} open files");
    let door = Door::open(CONFIG);
    // As many as are served at a time, each with a request in hand.
    let words = br#"{"bucket":"a"}"#;
    let request = written(door.port, "POST /v1/what-if", &[("Expect", "100-continue")], words, "keep-alive");
    let begun = |_| {
        let mut stream = door.connect();
        stream.write_all(&request[..request.len() - words.len()]).expect("sent");
        stream
    };
    let mut busy: Vec<TcpStream> = (0..960).map(begun).collect();
    for stream in &mut busy {
        assert_eq!(next_answer(stream).status, 100);
    }
    let mut waits = door.connect();
    waits.write_all(&written(door.port, "GET /v1/status", &[], b"", "close")).expect("sent");
    waits.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    assert!(waits.read(&mut [0]).is_err(), "there is no place yet");
    assert_eq!(door.get("/healthz").status, 200);
    // None of them is closed by its client.
    busy[17].write_all(words).expect("sent");
    // On a busy machine its body may have been in the way of the other one for too long.
    let status = next_answer(&mut busy[17]).status;
    assert!([200, 408].contains(&status), "{status}");
    waits.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    assert_eq!(next_answer(&mut waits).status, 200);
}
