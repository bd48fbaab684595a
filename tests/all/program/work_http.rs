//! `dripd work --http`: what is posted, and what the answer means.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

use super::work::WORK;
use super::{Shell, Work};
use crate::rig::{Daemon, eventually};

/// A post as the server saw it.
pub struct Post {
    pub job: Vec<u8>,
    pub head: HashMap<String, String>,
    pub at: Instant,
}

impl Post {
    pub fn is(&self, job: &str) -> bool {
        self.job == job.as_bytes()
    }
}

/// A server that answers each job with a status and headers: what stands between `HTTP/1.1 ` and the empty line.
pub struct Hook {
    pub url: String,
    posts: Receiver<Post>,
}

impl Hook {
    /// `answer` is told the job and how often it came before.
    pub fn start(answer: fn(&str, usize) -> &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let (sender, posts) = channel();
        std::thread::spawn(move || {
            let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.expect("a connection"));
                let post = read_post(&mut reader);
                let before = seen.entry(post.job.clone()).or_default();
                let status = answer(&String::from_utf8_lossy(&post.job), *before);
                *before += 1;
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                // The test may be over by now.
                if reader.into_inner().write_all(answer.as_bytes()).is_err() || sender.send(post).is_err() {
                    return;
                }
            }
        });
        Self { url, posts }
    }

    #[track_caller]
    pub fn next(&self) -> Post {
        self.posts.recv_timeout(Duration::from_secs(20)).expect("a post within 20 s")
    }

    /// Whether nothing came.
    pub fn is_quiet(&self) -> bool {
        self.posts.try_recv().is_err()
    }

    #[track_caller]
    pub fn take(&self, posts: usize) -> Vec<Post> {
        (0..posts).map(|_| self.next()).collect()
    }
}

fn read_post(reader: &mut BufReader<TcpStream>) -> Post {
    let mut head = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            // One that comes twice is one with a comma, as HTTP has it.
            let both = |old: &String| format!("{old}, {value}");
            let name = name.to_ascii_lowercase();
            let value = head.get(&name).map_or_else(|| value.to_owned(), both);
            head.insert(name, value);
        }
    }
    let length = head.get("content-length").map_or(0, |n| n.parse().expect("a length"));
    let mut job = vec![0; length];
    reader.read_exact(&mut job).expect("a body");
    Post { job, head, at: Instant::now() }
}

#[test]
fn work_http_posts_jobs_and_obeys_the_status() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, before| match (job, before) {
        ("limited", 0) => "429 Too Many\r\nretry-after: 1",
        ("gone", _) => "410 Gone",
        ("broken", _) => "500 Broken",
        ("slow", 0) => "408 Timeout",
        ("conflict", 0) => "409 Conflict",
        ("early", 0) => "425 Too Early",
        _ => "204 Fine",
    });
    let worker = Work::start(&shell, &["--http", &hook.url]);
    shell.case.lpush("bü", &["limited", "gone", "broken", "fine", "slow", "conflict", "early"]);
    let posts = hook.take(13);
    eventually("nothing is left", || shell.case.stream("ready").is_empty());
    assert_eq!(worker.stop().0, Some(0));
    let of = |job: &str| posts.iter().filter(|post| post.is(job)).collect::<Vec<_>>();
    let times = ["fine", "gone", "broken", "limited", "slow", "conflict", "early"].map(|job| of(job).len());
    assert_eq!(times, [1, 1, 3, 2, 2, 2, 2]);
    let limited = of("limited");
    assert!(limited[1].at - limited[0].at >= Duration::from_secs(1), "Retry-After is honoured");
    assert_eq!(limited[1].head["drip-attempt"], "1", "and the attempt not counted");
    assert_eq!(of("slow")[1].head["drip-attempt"], "2", "a 408 is a failure");
    let mut dead: Vec<_> = shell.case.stream("dead").iter().map(|e| (e.text("job"), e.text("reason"))).collect();
    dead.sort();
    assert_eq!(dead, [("broken".into(), "HTTP 500".into()), ("gone".into(), "HTTP 410".into())]);
}

#[test]
fn a_post_hands_on_headers_cost_and_deadline_and_no_producer_sets_what_the_worker_says() {
    let shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, before| if job == "first" && before == 0 { "500 Broken" } else { "200 Fine" });
    let _worker = Work::start(&shell, &["--http", &hook.url, "--header", "Authorization: Bearer ours"]);
    let headers = [
        "traceparent: 00-1-2-01",
        "content-type: text/csv",
        "authorization: Bearer theirs",
        "drip-bucket: theirs",
        "content-length: 9",
        "x-shop: a \"b\"",
    ];
    let mut push = vec!["push", "b", "first", "--id", "order-7", "--cost", "3", "--ttl", "1h"];
    push.extend(headers.iter().flat_map(|header| ["--header", header]));
    assert_eq!(shell.run(&push).0, 0);
    let posts = hook.take(2);
    for post in &posts {
        let said = |name: &str| post.head.get(name).map(String::as_str);
        assert_eq!((said("traceparent"), said("content-type")), (Some("00-1-2-01"), Some("text/csv")));
        assert_eq!((said("authorization"), said("drip-bucket")), (Some("Bearer ours"), Some("b")));
        assert_eq!((said("content-length"), said("drip-cost")), (Some("5"), Some("3")));
        assert_eq!((said("drip-h-authorization"), said("drip-h-drip-bucket")), (Some("Bearer theirs"), Some("theirs")));
        assert_eq!((said("drip-h-x-shop"), said("x-shop")), (Some("a \"b\""), None));
        assert!(said("drip-deadline-us").is_some_and(|us| us.parse::<u64>().is_ok()), "{:?}", post.head);
        assert!(said("drip-id").is_some_and(|id| id.starts_with("order-7-")), "{:?}", post.head);
    }
    assert_eq!(posts[1].head["drip-attempt"], "2", "and again in the second try");
    assert_eq!(shell.run(&["push", "b", "plain"]).0, 0);
    let plain = hook.next();
    assert!(plain.head.keys().all(|name| !name.starts_with("drip-h-") && name != "drip-cost" && name != "traceparent"));
    let (code, _, err) = shell.run(&["work", "--http", &hook.url, "--header", "Drip-H-X: 1"]);
    assert_eq!((code, err.contains("drip-h-x is set by dripd itself")), (2, true), "{err}");
}

#[test]
fn a_post_says_what_the_job_is_and_where_it_comes_from() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, before| if job == "again" && before == 0 { "500 Broken" } else { "200 Fine" });
    let _worker = Work::start(&shell, &["--http", &hook.url]);
    let queue = shell.case.queue("bü");
    let jobs = [&b"{\"n\":1}"[..], b"hello", b"\xff\x00", b"", b"again"];
    redis::cmd("LPUSH").arg(queue).arg(&jobs[..]).exec(&mut shell.case.redis).expect("LPUSH");
    let posts = hook.take(6);
    let types: Vec<&str> = posts.iter().take(5).map(|post| post.head["content-type"].as_str()).collect();
    assert_eq!(types, ["application/json", "text/plain", "application/octet-stream", "text/plain", "text/plain"]);
    assert!(posts.iter().zip(jobs).all(|(post, job)| post.job == job), "byte for byte, in order");
    for post in &posts {
        assert_eq!(post.head["drip-bucket"], "bü");
        let (entry, bucket) = post.head["drip-id"].rsplit_once('-').expect("an entry id and a digest");
        assert!(entry.split('-').all(|n| n.parse::<u64>().is_ok()), "{entry}");
        assert_eq!(bucket, "579077f8dd4d539f", "printf bü | sha256sum");
    }
    let (first, second) = (&posts[4].head, &posts[5].head);
    assert_eq!((first["drip-attempt"].as_str(), second["drip-attempt"].as_str()), ("1", "2"));
    assert_eq!(first["drip-id"], second["drip-id"], "a retry is the same job");
}

#[test]
fn a_post_has_the_headers_that_were_asked_for_and_a_signature_of_each_try() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|_, before| if before == 0 { "500 Broken" } else { "200 Fine" });
    let keys = [[7; 32], [8; 32]].map(|key| (BASE64_STANDARD.encode(key), hmac::Key::new(hmac::HMAC_SHA256, &key)));
    let secrets = shell.file("secrets", &format!("whsec_{}\n{}\n", keys[0].0, keys[1].0));
    let headers = ["X-Team: a", "X-Team: b", "Content-Type: application/cloudevents+json"];
    let headers = headers.iter().flat_map(|header| ["--header", header]);
    let args: Vec<&str> = ["--http", &hook.url, "--secret-file", &secrets].into_iter().chain(headers).collect();
    let worker = Work::start(&shell, &args);
    shell.case.lpush("b", &["{}"]);
    let posts = hook.take(2);
    for post in &posts {
        let of = |name: &str| post.head[name].as_str();
        assert_eq!((of("content-type"), of("x-team")), ("application/cloudevents+json", "a, b"));
        assert_eq!(of("webhook-id"), of("drip-id"));
        let signed = format!("{}.{}.{{}}", of("webhook-id"), of("webhook-timestamp"));
        let signatures: Vec<&str> = of("webhook-signature").split(' ').collect();
        assert_eq!(signatures.len(), 2, "one for each secret");
        for (signature, (_, key)) in signatures.iter().zip(&keys) {
            let tag = BASE64_STANDARD.decode(signature.strip_prefix("v1,").expect("version 1")).expect("base64");
            hmac::verify(key, signed.as_bytes(), &tag).expect("genuine");
        }
        let at: u64 = of("webhook-timestamp").parse().expect("seconds");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
        assert!(now >= at && now - at < 60, "{at} is now, {now}");
    }
    assert_eq!(posts[0].head["webhook-id"], posts[1].head["webhook-id"], "a retry is the same job");
    assert!(!worker.stop().2.contains(&keys[0].0), "no secret is logged");
}

#[test]
fn a_producer_chooses_no_part_of_what_is_signed() {
    let shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|_, _| "200 Fine");
    let key = [7; 32];
    let secrets = shell.file("secrets", &BASE64_STANDARD.encode(key));
    let _worker = Work::start(&shell, &["--http", &hook.url, "--secret-file", &secrets]);
    let (key, mut seen) = (hmac::Key::new(hmac::HMAC_SHA256, &key), std::collections::HashSet::new());
    // The first one would be, with the body `2000000000.{}.…`, a genuine signature of another id, time and body.
    for id in ["order.2000000000.{}", "order", "order_7-a", "a:b", "a/b+c="] {
        assert_eq!(shell.run(&["push", "b", "body", "--id", id]).0, 0, "{id}");
        let post = hook.next();
        let of = |name: &str| post.head[name].as_str();
        assert!(of("drip-id").starts_with(&format!("{id}-")), "{:?}", post.head);
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        assert!(of("webhook-id").bytes().all(is_safe), "{id}: {}", of("webhook-id"));
        assert_eq!(of("webhook-id") == of("drip-id"), id.bytes().all(is_safe), "{id}: what is safe stays as it is");
        let signed = format!("{}.{}.body", of("webhook-id"), of("webhook-timestamp"));
        let tag = of("webhook-signature").strip_prefix("v1,").expect("version 1");
        hmac::verify(&key, signed.as_bytes(), &BASE64_STANDARD.decode(tag).expect("base64")).expect("genuine");
        assert!(seen.insert(of("webhook-id").to_owned()), "{id}: no two jobs share one");
    }
}

/// A server that keeps its connections, and answers each job with a body of so many bytes as it says, some time after the head. Replies which
/// connection each job came on.
fn keeps_connections() -> (String, Receiver<usize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (sender, came) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                loop {
                    let post = read_post(&mut reader);
                    let job = String::from_utf8_lossy(&post.job).into_owned();
                    let Some((kind, length)) = job.split_once(' ') else { return }; // the end of the connection
                    let body = "x".repeat(length.parse().expect("a length"));
                    let (head, body) = match kind {
                        "plain" => (format!("content-length: {length}"), body),
                        "chunks" => {
                            ("transfer-encoding: chunked".into(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
                        }
                        // These two do not come to their end.
                        "long" => ("content-length: 10000000".into(), body),
                        _ => ("transfer-encoding: chunked".into(), format!("{:x}\r\n{body}\r\n", body.len())),
                    };
                    let _ = sender.send(number); // the test may be over by now
                    let mut write = |text: &str| reader.get_mut().write_all(text.as_bytes());
                    if write(&format!("HTTP/1.1 200 Fine\r\n{head}\r\n\r\n")).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(50)); // as over a network: the head is read alone
                    let _ = write(&body);
                }
            });
        }
    });
    (url, came)
}

#[test]
fn a_connection_is_used_again_after_an_answer_with_a_body_of_up_to_64_kib() {
    let mut shell =
        Shell::new("[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'b'\nconcurrency = 1\nordered = true\n");
    let _daemon = Daemon::start(shell.home());
    let (url, came) = keeps_connections();
    let worker = Work::start(&shell, &["--http", &url]);
    let jobs = ["plain 100", "plain 65536", "chunks 65536", "long 70000", "plain 1", "endless 70000", "plain 0"];
    shell.case.lpush("b", &jobs);
    let on: Vec<usize> = jobs.iter().map(|_| came.recv_timeout(Duration::from_secs(20)).expect("a post")).collect();
    assert_eq!(on, [0, 0, 0, 0, 1, 1, 2], "a longer one is left unread, and its connection closed");
    eventually("all are done", || shell.case.stream("ready").is_empty());
    assert_eq!(worker.stop().0, Some(0));
}

#[test]
fn a_body_that_does_not_end_keeps_no_job() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    // It says that 100 bytes follow, and sends none while the connection lasts.
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (sender, opened) = channel();
    std::thread::spawn(move || {
        for mut reader in listener.incoming().flatten().map(BufReader::new) {
            read_post(&mut reader);
            let _ = reader.get_mut().write_all(b"HTTP/1.1 200 Fine\r\ncontent-length: 100\r\n\r\n");
            let _ = sender.send(reader);
        }
    });
    let worker = Work::start(&shell, &["--http", &url]);
    shell.case.lpush("b", &["x"]);
    let _open = opened.recv_timeout(Duration::from_secs(20)).expect("a connection");
    eventually("it is done all the same", || worker.log().contains("done bucket=b"));
    shell.case.lpush("b", &["y"]);
    let _open_too = opened.recv_timeout(Duration::from_secs(20)).expect("a connection");
    // The job is done, whatever the stop finds it at.
    assert_eq!(worker.stop().0, Some(0));
    assert!(shell.case.stream("ready").is_empty() && shell.case.stream("dead").is_empty());
}

#[test]
fn headers_come_from_a_file_too_and_nothing_of_it_is_shown() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|_, _| "200 Fine");
    let file = shell.file("headers", "Authorization: Bearer swordfish\r\n\n  X-Team: b  \n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set");
    let more = shell.file("more", "\u{feff}X-More: 1"); // as some editors begin a file
    std::fs::set_permissions(&more, std::fs::Permissions::from_mode(0o644)).expect("set");
    let args = ["--http", &hook.url, "--header", "X-Team: a", "--header-file", &file, "--header-file", &more];
    let worker = Work::start(&shell, &args);
    shell.case.lpush("b", &["x"]);
    let post = hook.next();
    let of = |name: &str| post.head[name].as_str();
    assert_eq!((of("authorization"), of("x-team"), of("x-more")), ("Bearer swordfish", "a, b", "1"));
    let (_, _, log) = worker.stop();
    assert!(!log.contains("swordfish") && !log.contains(&format!("read {file} ")), "{log}");
    assert!(log.contains(&format!("others may read {more} (mode 644)")), "{log}");
    for (text, why) in [
        ("", "no header is in it"),
        ("\nBearer swordfish", "line 2: write 'Name: value'"),
        ("my swordfish: x", "line 1: that is no name of a header"),
        ("Drip-Id: 1", "line 1: drip-id is set by dripd itself"),
        ("X: swordfish\u{1}", "line 1: the value holds a control character"),
    ] {
        let bad = shell.file("bad", text);
        let (code, _, err) = shell.run(&["work", "--http", &hook.url, "--header-file", &bad]);
        assert_eq!((code, err.contains(why), err.contains("swordfish")), (1, true, false), "{text:?}: {err}");
    }
    let (code, _, err) = shell.run(&["work", "--http", &hook.url, "--header-file", "not-there"]);
    assert_eq!((code, err.contains("cannot read not-there")), (1, true), "{err}");
    assert_eq!(shell.run(&["work", "--print", "--header-file", &file]).0, 2, "it is for --http");
}

#[test]
fn headers_and_secrets_of_no_use_are_refused_before_any_job_is_taken() {
    let shell = Shell::new(WORK);
    let work = |args: &[&str]| shell.run(&[&["work", "--http", "http://127.0.0.1:1/"], args].concat());
    for (args, why) in [
        (&["--header", "no colon"][..], "write 'Name: value'"),
        (&["--header", "Drip-Id: 1"], "drip-id is set by dripd itself"),
        (&["--header", "a b: c"], "no name of a header"),
    ] {
        let (code, _, err) = work(args);
        assert!(code == 2 && err.contains(why), "{args:?}: {code} {err}");
    }
    assert_eq!(shell.run(&["work", "--print", "--header", "a: b"]).0, 2, "it is for --http");
    let bad = shell.file("bad", "not a secret\n");
    for (file, why) in [(bad.as_str(), "line 1 is no secret"), ("not-there", "cannot read not-there")] {
        let (code, _, err) = work(&["--secret-file", file]);
        assert!(code == 1 && err.contains(why) && err.lines().count() == 1, "{file}: {code} {err}");
    }
}

#[test]
fn the_log_says_what_becomes_of_each_job() {
    let mut shell = Shell::new(WORK);
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, before| match (job, before) {
        ("limited", 0) => "429 Too Many",
        ("later", 0) => "503 Later\r\nretry-after: 1",
        ("gone", _) => "410 Gone",
        ("broken", _) => "500 Broken",
        _ => "204 Fine",
    });
    let worker = Work::start(&shell, &["--http", &hook.url]);
    for job in ["limited", "later", "gone", "broken", "fine"] {
        shell.case.lpush(job, &[job]);
    }
    hook.take(9);
    eventually("all is told", || {
        let log = worker.log();
        log.matches("done bucket=").count() == 3 && log.matches("it is in the dead stream").count() == 2
    });
    for (bucket, attempt, says, and) in [
        ("fine", 1, "done", ""),
        ("limited", 1, "throttled: it is given back", "wait=\"as slow says\""),
        ("later", 1, "throttled: it is given back", "wait=\"1s\""),
        ("gone", 1, "failed for good: it is in the dead stream", "reason=\"HTTP 410\""),
        ("broken", 2, "failed: it will be tried again", "reason=\"HTTP 500\""),
        ("broken", 3, "failed, and its attempts are used up: it is in the dead stream", "reason=\"HTTP 500\""),
    ] {
        let line = worker.said(&format!("bucket={bucket} attempt={attempt} "), says);
        assert!(line.contains(and), "{and} is not in {line}");
    }
    let (_, _, log) = worker.stop();
    let given_back = |line: &&str| line.contains("bucket=limited") || line.contains("bucket=later");
    assert!(!log.lines().filter(given_back).any(|line| line.contains("failed")), "{log}");
}

#[test]
fn what_the_answers_say_of_limits_is_passed_on_and_what_cannot_be_understood_is_in_the_log() {
    let mut shell = Shell::new(
        "[[budget]]\nmatch = 'api'\ntold = 'stop'\n\
         [[bucket]]\nmatch = 'b'\nrate = '1000/s'\nwithin = 'api'\n[[bucket]]\nmatch = 'other'\nrate = '1000/s'\n",
    );
    let _daemon = Daemon::start(shell.home());
    let hook = Hook::start(|job, _| match job {
        "used up" => "200 Fine\r\nratelimit: \"a\";r=0;t=3600\r\nratelimit-policy: \"a\";q=50;w=3600",
        "odd" => "200 Fine\r\nx-ratelimit-remaining: 5\r\nx-ratelimit-reset: soon",
        _ => "200 Fine",
    });
    let worker = Work::start(&shell, &["--http", &hook.url, "--told-in", "api"]);
    shell.case.lpush("other", &["odd", "used up"]);
    hook.take(2);
    shell.case.lpush("b", &["used up"]);
    hook.take(1);
    eventually("all are acknowledged", || shell.case.stream("ready").is_empty());
    shell.case.lpush("b", &["waits"]);
    eventually("the budget is told that nothing is left", || {
        shell.run(&["explain", "b"]).1.contains("the other side says that 0 of 50 jobs are left")
    });
    assert_eq!(shell.case.waiting("b"), ["waits"]);
    let (code, _, log) = worker.stop();
    assert_eq!(code, Some(0));
    for part in [
        "a header about a limit cannot be understood: it is passed over header=\"x-ratelimit-reset: soon\" times=1",
        "no budget of that name is above the bucket: what was told of its limits is dropped bucket=other budget=api",
    ] {
        assert!(log.contains(part), "{part} is not in\n{log}");
    }
}
