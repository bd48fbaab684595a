//! A daemon with its HTTP server, and requests to it over raw sockets: what is answered, byte for byte.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::rig::{Daemon, Server, eventually};
use crate::shell::Shell;

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
        let at = log.lines().find(|line| line.contains("the HTTP server listens"));
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
