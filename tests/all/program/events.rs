//! `GET /v1/events`: what is going on, as it happens.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Shell;
use crate::rig::{Daemon, Server, eventually, free_port};

/// A stream of events.
struct Events {
    lines: BufReader<TcpStream>,
    status: u16,
    head: String,
}

impl Events {
    fn open(port: u16) -> Self {
        Self::with(port, "")
    }

    fn with(port: u16, headers: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}\r\n").expect("sent");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        Self { lines, status, head }
    }

    /// The next event: its name and what it says. `None`: the stream has ended.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if !matches!(self.lines.read_line(&mut line), Ok(1..)) || line == "0\r\n" {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                event.trim().clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).expect("JSON")));
            }
        }
    }

    /// The next event of this name that is as wanted.
    #[track_caller]
    fn until(&mut self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(20) {
            let (found, data) = self.next().expect("the stream goes on");
            if found == name && is_so(&data) {
                return data;
            }
        }
        panic!("no such {name} within 20 s");
    }
}

fn start(toml: &str) -> (Shell, Daemon, u16) {
    let port = free_port();
    let shell = Shell::new(&format!("[http]\nlisten = '127.0.0.1:{port}'\n{toml}"));
    let daemon = Daemon::start(shell.home());
    (shell, daemon, port)
}

#[test]
fn a_stream_begins_with_what_was_and_goes_on_with_what_is() {
    let (mut shell, _daemon, port) = start("[defaults]\nrate = '1000/s'\n");
    let mut events = Events::open(port);
    assert_eq!(events.status, 200, "{}", events.head);
    assert!(events.head.to_lowercase().contains("content-type: text/event-stream"), "{}", events.head);
    let (name, history) = events.next().expect("the first event");
    let columns = ["at_ms", "dispatched_per_s", "rejected_per_s", "late_p50_us", "late_p99_us", "waiting"];
    assert_eq!((name.as_str(), &history["columns"]), ("history", &serde_json::json!(columns)));
    shell.case.lpush("acme", &["1", "2", "3"]);
    let sum = |all: &Value| all["dispatched"].as_u64() == Some(3);
    let totals = events.until("totals", sum);
    assert_eq!((&totals["daemons"], &totals["waiting"]), (&1.into(), &0.into()));
    let rows = |history: &Value| history["rows"].as_array().map_or(0, Vec::len);
    eventually("the second is remembered", || {
        shell.case.lpush("acme", &["4"]); // what left before the door's first look is no difference between two of them
        events.until("totals", |_| true); // a second: of streams that were left the door learns when it writes to them
        let (_, history) = Events::open(port).next().expect("the history");
        let has_left = |row: &Value| row[1].as_f64() > Some(0.0) && row[3].is_u64() && row[4].is_u64();
        rows(&history) > 0 && history["rows"].as_array().expect("rows").iter().any(has_left)
    });
}

#[test]
fn changes_and_slow_downs_are_told_as_they_come_and_those_before_at_first() {
    let (shell, _daemon, port) = start("");
    assert_eq!(shell.run(&["pause", "before", "--reason", "it was before"]).0, 0);
    let mut events = Events::open(port);
    let first = events.until("changes", |_| true);
    assert_eq!(
        (&first[0]["what"], &first[0]["match"], &first[0]["reason"]),
        (&"pause".into(), &"before".into(), &"it was before".into())
    );
    assert_eq!(shell.run(&["slow", "acme", "10m"]).0, 0);
    let next = events.until("changes", |_| true);
    assert_eq!(next.as_array().map(Vec::len), Some(1), "each once: {next}");
    assert_eq!(
        (&next[0]["what"], &next[0]["match"], &next[0]["budget"]),
        (&"slow".into(), &"acme".into(), &false.into())
    );
    let mut late = Events::open(port);
    let both = late.until("changes", |_| true);
    assert_eq!(both.as_array().map(Vec::len), Some(2), "one who comes later is told all: {both}");
}

#[test]
fn at_most_64_streams_are_open_and_a_place_is_free_when_one_ends() {
    let (_shell, _daemon, port) = start("");
    let mut open: Vec<Events> = (0..64).map(|_| Events::open(port)).collect();
    assert!(open.iter().all(|events| events.status == 200));
    let mut more = Events::open(port);
    assert_eq!(more.status, 503, "{}", more.head);
    assert!(more.head.to_lowercase().contains("retry-after: 5"), "{}", more.head);
    let length = more
        .head
        .to_lowercase()
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next()?.trim().parse().ok());
    let mut body = vec![0; length.expect("a length")];
    more.lines.read_exact(&mut body).expect("a body");
    assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON")["error"], "too-many-streams");
    for events in &mut open {
        assert_eq!(events.next().expect("it is told").0, "history");
    }
    open.pop();
    eventually("a place is free", || Events::open(port).status == 200);
}

#[test]
fn streams_that_nobody_reads_give_way_to_new_listeners() {
    let (_shell, _daemon, port) = start("");
    let unread: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            write!(stream, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").expect("sent");
            stream
        })
        .collect();
    let mut listeners = Vec::new();
    eventually("sixteen more listen", || {
        let events = Events::open(port);
        if events.status == 200 {
            listeners.push(events);
        }
        listeners.len() == 16
    });
    assert_eq!(listeners[0].next().expect("it is told").0, "history");
    drop(unread);
}

#[test]
fn a_stream_whose_listener_takes_nothing_is_closed_after_some_seconds() {
    let (mut shell, _daemon, port) = start("");
    let events = shell.case.key("events");
    for _ in 0..200 {
        let reason = "x".repeat(3_000);
        let _: String = shell.case.cmd(&["XADD", &events, "*", "what", "pause", "match", "a", "reason", &reason]);
    }
    let mut first = Events::open(port); // with it the changes are read
    first.until("changes", |_| true);
    let mut deaf = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket2::SockRef::from(&deaf).set_recv_buffer_size(4_096).expect("set");
    write!(deaf, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").expect("sent");
    let since = Instant::now();
    // A connection that has ended takes no more bytes.
    while deaf.write_all(b"x").is_ok() {
        first.until("totals", |_| true); // a second
        assert!(since.elapsed() < Duration::from_secs(20), "others have 30 s");
    }
    assert!(first.next().is_some(), "who listens goes on");
}

#[test]
fn term_ends_the_streams_at_once_also_those_that_nobody_reads() {
    let (_shell, mut daemon, port) = start("");
    let mut read = Events::open(port);
    read.until("totals", |_| true);
    let unread = Events::open(port);
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(4), "it waits for 5 s where a request does not end: {took:?}");
    assert!(std::iter::from_fn(|| read.next()).count() < 1_000, "and the stream has an end");
    drop(unread);
}

#[test]
fn a_reload_ends_the_streams_so_that_a_token_that_is_gone_opens_nothing_more() {
    let port = free_port();
    let tokens = tempfile::tempdir().expect("a directory");
    let file = tokens.path().join("token");
    std::fs::write(&file, "sesame\n").expect("written");
    let shell = Shell::new(&format!(
        "[http]\nlisten = '127.0.0.1:{port}'\n[[http.token]]\nname = 'ops'\nfile = '{}'\nmay = 'read'\n",
        file.display()
    ));
    let _daemon = Daemon::start(shell.home());
    let mut events = Events::with(port, "Authorization: Bearer sesame\r\n");
    assert_eq!(events.status, 200);
    events.until("totals", |_| true);
    std::fs::write(&file, "another\n").expect("written");
    assert_eq!(shell.run(&["reload"]).0, 0);
    while events.next().is_some() {}
    assert_eq!(Events::with(port, "Authorization: Bearer sesame\r\n").status, 401);
    assert_eq!(Events::with(port, "Authorization: Bearer another\r\n").status, 200);
}

#[test]
fn changes_are_read_only_while_somebody_listens_and_by_one_reader_for_all() {
    let server = Server::start(&[]);
    let port = free_port();
    let shell = Shell::on(&server, &format!("[http]\nlisten = '127.0.0.1:{port}'\n"));
    let _daemon = Daemon::start(shell.home());
    let mut redis = server.connect();
    // Of whoever looks once a second: the totals are a function, changes are read as a stream.
    let mut calls = |name: &str| {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut redis).expect("INFO");
        let line =
            info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls="))).map(str::to_owned);
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let mut first = Events::open(port);
    first.until("totals", |_| true);
    let mut others: Vec<Events> = (0..9).map(|_| Events::open(port)).collect();
    let (before, since) = (calls("xrange"), Instant::now());
    eventually("changes are read", || {
        first.until("totals", |_| true); // some may have come before
        since.elapsed() >= Duration::from_secs(3) && calls("xrange") >= before + 2
    });
    let (by_ten, seconds) = (calls("xrange") - before, since.elapsed().as_secs());
    assert!(by_ten <= 2 * seconds, "ten who listen for {seconds} seconds: {by_ten} reads");
    assert!(others.iter_mut().all(|events| events.next().is_some()), "all of them are told");
    drop((first, others));
    let mut again = Events::open(port); // it sees that the others are gone, and then goes itself
    again.until("totals", |_| true);
    drop(again);
    let mut last = calls("xrange");
    eventually("nobody reads changes", || {
        std::thread::sleep(Duration::from_millis(2_200)); // two looks and a bit
        let now = calls("xrange");
        std::mem::replace(&mut last, now) == now
    });
}

#[test]
fn a_stream_outlives_redis_and_says_so() {
    let server = Server::start(&[]);
    let port = free_port();
    let shell = Shell::on(&server, &format!("[http]\nlisten = '127.0.0.1:{port}'\n"));
    let _daemon = Daemon::start(shell.home());
    let mut events = Events::open(port);
    events.until("totals", |_| true);
    drop(server);
    let said = events.until("redis", |said| said["up"] == false);
    assert!(said["why"].as_str().is_some_and(|why| why.contains("redis")), "{said}");
}
