//! Where the HTTP server listens: ports and paths, taken ones, several daemons, sockets that are passed, and the end.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::built_in_redis::{BuiltIn, is_gone};
use super::http::{Door, EYES, OPS, TOKENS, exchange, next_answer, written};
use super::{Running, Shell, Stopped};
use crate::rig::{Daemon, Server, dripd, eventually};

const CONFIG: &str = "[defaults]\nrate = '1/h'\n";

/// Within which a daemon stops: five seconds are promised for all of it, the rest is for a machine that is busy.
const STOPS_WITHIN: Duration = Duration::from_millis(5_600);

/// Whether a stop took no longer. Where something hangs it takes nearly as long, so it is tried some times: a busy machine may be late itself.
fn is_in_time(took: Duration) -> bool {
    println!("it stopped after {took:?}");
    took < STOPS_WITHIN
}

fn listening(toml: &str, listen: &str) -> Shell {
    Shell::new(&format!("{toml}[http]\nlisten = '{listen}'\n"))
}

#[track_caller]
fn end_of(shell: &Shell) -> (Option<i32>, String) {
    let mut daemon = Daemon::spawn(shell.home());
    let code = daemon.wait();
    (code, daemon.log())
}

#[test]
fn a_written_port_that_is_taken_is_an_error_and_the_default_one_a_warning() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound");
    let (code, log) = end_of(&listening(CONFIG, &address.to_string()));
    assert_eq!(code, Some(1), "{log}");
    assert!(
        log.contains(&format!("http.listen: cannot listen on {address}"))
            && log.contains("another process listens there"),
        "{log}"
    );
    // The default may be taken by anybody: then it is, and if not it is now.
    let _default = TcpListener::bind("127.0.0.1:7380");
    let server = Server::start(&[]);
    let shell = Shell::on(&server, CONFIG);
    let text = std::fs::read_to_string(shell.home().join("config.toml")).expect("read");
    shell.file("config.toml", text.split("[http]").next().expect("a part"));
    let (first, second) = (Daemon::start(shell.home()), Daemon::start(shell.home()));
    for daemon in [&first, &second] {
        assert!(daemon.log().contains("this daemon serves without HTTP"), "{}", daemon.log());
    }
}

#[test]
fn several_daemons_of_one_redis_have_doors_of_their_own() {
    let mut door = Door::open(CONFIG);
    let other = Daemon::start(door.shell.home());
    let port = super::http::port_of(&other);
    assert_ne!(port, door.port);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    assert_eq!(exchange(&mut stream, port, "POST /v1/buckets/a/jobs", &[], b"1").status, 202);
    assert_eq!(door.push("a", b"2").status, 202);
    eventually("both are there", || door.shell.case.stream("ready").len() + door.shell.case.waiting("a").len() == 2);
}

#[test]
fn a_listener_that_others_reach_without_a_token_is_refused_at_the_start() {
    let shell = Shell::new(CONFIG);
    let before = std::fs::read_to_string(shell.home().join("config.toml")).expect("read");
    let before = before.split("[http]").next().expect("a part");
    shell.file("config.toml", &format!("{before}[http]\nlisten = '0.0.0.0:0'\n"));
    let (code, log) = end_of(&shell);
    assert!(
        code == Some(78) && log.contains("http.listen: 0.0.0.0:0 can be reached from other machines"),
        "{code:?} {log}"
    );
    let tokens = format!("[http]\nlisten = '0.0.0.0:0'\n{TOKENS}");
    shell.file("config.toml", &format!("{before}{tokens}"));
    let (code, log) = end_of(&shell);
    assert!(code == Some(78) && log.contains("ops cannot be read"), "a token that is not there: {code:?} {log}");
    for name in ["ops", "eyes", "billing"] {
        shell.file(name, &format!("{name}-secret\n"));
    }
    let daemon = Daemon::start(shell.home());
    eventually("it says where it listens", || daemon.log().contains("0.0.0.0:"));
    let log = daemon.log();
    let port = log.split("0.0.0.0:").nth(1).expect("it says where").split('"').next().expect("a port");
    let port: u16 = port.trim().parse().expect("a port");
    let ask = |headers: &[(&str, &str)]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        exchange(&mut stream, port, "GET /v1/status", headers, b"").status
    };
    // Here a request is never local, whatever its Host says.
    assert_eq!((ask(&[]), ask(&[("Host", "127.0.0.1")]), ask(&[EYES])), (401, 401, 200));
}

/// Run a daemon as systemd does, with sockets passed as its third file descriptor and those after it.
fn with_a_socket(shell: &Shell, socket: impl Into<std::os::fd::OwnedFd>, log: &Path) -> Running {
    // Only a shell knows the id that `LISTEN_PID` must have before the program runs.
    let file = std::fs::File::create(log).expect("a log");
    let script = r#"exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" run"#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(dripd().get_program()).current_dir(shell.home());
    command.env("RUNTIME_DIRECTORY", shell.home().join("run")).env("RUST_LOG", "info");
    command.stdin(Stdio::from(socket.into())).stdout(Stdio::null()).stderr(file);
    Running(Some(command.spawn().expect("sh runs")))
}

#[test]
fn a_socket_that_is_passed_takes_the_place_of_the_written_one_and_must_be_as_safe() {
    let (log, taken) = (tempfile::tempdir().expect("a directory"), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let log = log.path().join("log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let shell = listening(CONFIG, &taken.local_addr().expect("bound").to_string());
    let open = TcpListener::bind("0.0.0.0:0").expect("a port");
    let again = open.try_clone().expect("the same");
    let mut refused = with_a_socket(&shell, open, &log);
    let code = refused.wait().expect("it ends").code();
    // As a bad file: started again it would be refused again.
    assert!(code == Some(78) && said().contains("can be reached from other machines"), "{code:?} {}", said());

    // With tokens it is served, and no reload may take them all away.
    let text = std::fs::read_to_string(shell.home().join("config.toml")).expect("read");
    shell.file("ops", "ops-secret\n");
    shell.file("config.toml", &format!("{text}[[http.token]]\nname = 'ops'\nfile = 'ops'\nmay = 'operate'\n"));
    let port = again.local_addr().expect("bound").port();
    let daemon = with_a_socket(&shell, again, &log);
    let ask = |headers: &[(&str, &str)]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        exchange(&mut stream, port, "GET /v1/status", headers, b"").status
    };
    eventually("it serves", || said().contains("serving redis"));
    eventually("it says so", || said().contains("(from systemd)"));
    assert_eq!((ask(&[]), ask(&[OPS])), (401, 200));
    shell.file("config.toml", &text);
    let (code, _, err) = shell.run(&["reload"]);
    assert!(code != 0 && err.contains("can be reached from other machines"), "{code} {err}");
    assert_eq!((ask(&[]), ask(&[OPS])), (401, 200));
    drop(daemon);
}

#[test]
fn a_passed_socket_that_takes_nobody_is_told_of_once() {
    let (log, shell) = (tempfile::tempdir().expect("a directory"), listening(CONFIG, ""));
    let log = log.path().join("log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let deaf = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    deaf.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
    let daemon = with_a_socket(&shell, std::os::fd::OwnedFd::from(deaf), &log);
    eventually("it is told", || said().contains("no connection can be taken"));
    std::thread::sleep(std::time::Duration::from_millis(500)); // ten more tries
    assert_eq!(said().matches("no connection can be taken").count(), 1, "{}", said());
    drop(daemon);
}

#[test]
fn a_socket_at_a_path_is_for_its_owner_and_group_and_gone_at_the_end() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("http.sock");
    let listen = format!("unix:{}", path.display());
    let shell = listening(CONFIG, &listen);
    drop(UnixListener::bind(&path).expect("one that is left over"));
    let mut daemon = Daemon::start(shell.home());
    assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o660);
    let ask = |request: &str, headers: &[(&str, &str)]| {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        exchange(&mut stream, 1, request, headers, b"job").status
    };
    assert_eq!((ask("POST /v1/buckets/a/jobs", &[]), ask("GET /v1/status", &[("Host", "example.com")])), (202, 421));
    assert_eq!(ask("POST /v1/buckets/a/pause", &[]), 403);
    // Another one does not take it away, nor what is no socket.
    let (code, log) = end_of(&listening(CONFIG, &listen));
    assert!(code == Some(1) && log.contains("another process listens there"), "{code:?} {log}");
    assert_eq!(ask("GET /healthz", &[]), 200);
    let (code, took) = daemon.stop();
    assert!(code == Some(0) && took < super::STOPS_WITHIN, "{code:?} {took:?}");
    assert!(!path.exists(), "removed");
    std::fs::write(&path, "somebody's").expect("written");
    let (code, log) = end_of(&listening(CONFIG, &listen));
    assert!(code == Some(1) && log.contains("a file that is no socket is there"), "{code:?} {log}");
    assert_eq!(std::fs::read_to_string(&path).expect("it stays"), "somebody's");
    // One that another daemon has put there meanwhile stays.
    std::fs::remove_file(&path).expect("removed");
    let mut first = Daemon::start(shell.home());
    std::fs::remove_file(&path).expect("removed");
    let _second = UnixListener::bind(&path).expect("another one");
    first.stop();
    assert!(path.exists(), "it is not this one's");
}

#[test]
fn at_the_end_what_is_in_hand_is_finished_and_new_connections_are_not_taken() {
    let mut door = Door::open(CONFIG);
    let since = Instant::now();
    // Half a body, half a head, a connection that is kept, and one that has said nothing yet.
    let job = written(door.port, "POST /v1/buckets/a/jobs", &[("Expect", "100-continue")], b"job", "keep-alive");
    let (head, body) = job.split_at(job.len() - 3);
    let (mut in_body, mut in_head, mut kept, mut silent) =
        (door.connect(), door.connect(), door.connect(), door.connect());
    in_body.write_all(head).expect("sent");
    assert_eq!(next_answer(&mut in_body).status, 100, "the door waits for the body");
    kept.write_all(&written(door.port, "GET /healthz", &[], b"", "keep-alive")).expect("sent");
    assert_eq!(next_answer(&mut kept).status, 200);
    in_head.write_all(b"GET /healthz HT").expect("sent");
    // What was sent before anybody could know of the end is served: on a connection that was kept, and on one that is new.
    door.daemon.signal("STOP");
    for stream in [&mut silent, &mut kept] {
        stream.write_all(&written(door.port, "GET /healthz", &[], b"", "keep-alive")).expect("sent");
    }
    door.daemon.signal("TERM");
    door.daemon.signal("CONT");
    assert_eq!((next_answer(&mut silent).status, next_answer(&mut kept).status), (200, 200));
    eventually("it takes no more", || TcpStream::connect(("127.0.0.1", door.port)).is_err());
    in_head.write_all(b"TP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    in_body.write_all(body).expect("sent");
    let answer = next_answer(&mut in_body);
    assert_eq!(answer.status, 202, "it went in");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(next_answer(&mut in_head).status, 200);
    assert_eq!(door.daemon.wait(), Some(0));
    assert!(since.elapsed() < super::STOPS_WITHIN, "{:?}", since.elapsed());
    assert_eq!(door.shell.case.stream("ready").len() + door.shell.case.waiting("a").len(), 1);
}

#[test]
fn a_request_that_never_ends_does_not_hold_up_the_end() {
    let stops = |_| {
        let mut door = Door::open(CONFIG);
        let _endless = endless(door.port);
        let (code, took) = door.daemon.stop();
        assert_eq!(code, Some(0), "{took:?}");
        assert!(door.shell.case.waiting_is_empty("a"));
        is_in_time(took)
    };
    assert!((0..3).any(stops), "not within {STOPS_WITHIN:?}");
}

/// A client whose request never ends: it has been told to go on with its body.
fn endless(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let head =
        "POST /v1/buckets/a/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    assert_eq!(next_answer(&mut stream).status, 100);
    stream
}

#[test]
fn all_parts_of_a_stop_share_five_seconds_though_redis_hangs_and_a_client_never_sends_its_body() {
    let stops = |_| {
        let server = Server::start(&[]);
        let mut door = Door::on(&server, CONFIG);
        let _endless = endless(door.port);
        let hangs = Stopped::stop(server.pid());
        let _waits = door.connect(); // and one that asks what nobody answers
        let mut asks = door.connect();
        asks.write_all(&written(door.port, "GET /v1/status", &[], b"", "close")).expect("sent");
        door.daemon.signal("TERM");
        let since = Instant::now();
        assert_eq!(door.daemon.wait(), Some(0), "{}", door.daemon.log());
        let took = since.elapsed();
        drop(hangs);
        is_in_time(took)
    };
    assert!((0..3).any(stops), "not within {STOPS_WITHIN:?}");
}

#[test]
fn the_built_in_redis_has_its_part_of_the_five_seconds_though_a_client_never_sends_its_body() {
    let built_in = BuiltIn::new("[http]\nlisten = '127.0.0.1:0'\n");
    for hangs in [false, true] {
        let stops = |_| {
            let mut daemon = Daemon::start(built_in.dir());
            let _endless = endless(super::http::port_of(&daemon));
            let pid = built_in.pid();
            let stopped = hangs.then(|| Stopped::stop(pid));
            let (code, took) = daemon.stop();
            let is_stopped = hangs || is_gone(pid) && daemon.log().contains("stopped redis");
            drop(stopped);
            assert_eq!(code, Some(0), "{took:?}");
            eventually("it stops when it can", || is_gone(pid));
            is_in_time(took) && is_stopped
        };
        assert!((0..3).any(stops), "it hangs: {hangs}; not all is stopped within {STOPS_WITHIN:?}");
    }
}
