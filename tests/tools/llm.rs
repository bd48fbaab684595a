//! The example for LLM APIs: its worker, its producer and its small endpoint, with the configuration beside them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::clients::python_with_redis;
use crate::rig::{Daemon, Server, eventually};
use crate::shell::said;

/// A program of the example that runs, and ends with the value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All of the example at work.
struct Example {
    python: PathBuf,
    port: u16,
    server: Server,
    home: tempfile::TempDir,
    programs: Vec<Program>,
    daemon: Daemon,
}

impl Example {
    /// Start it with this configuration and an endpoint that allows so many requests and tokens a minute.
    fn start(toml: &str, requests: u32, tokens: u32) -> Self {
        Self::start_with(toml, requests, tokens, 10)
    }

    /// The same, where the limits count in any so many seconds.
    fn start_with(toml: &str, requests: u32, tokens: u32, slice: u32) -> Self {
        let python = python_with_redis();
        let server = Server::start(&[]);
        let home = server.home(toml);
        let daemon = Daemon::start(home.path());
        let mut endpoint = Command::new(&python);
        endpoint.args(["examples/llm/endpoint.py", "0"]);
        endpoint.env("LLM_RPM", requests.to_string()).env("LLM_TPM", tokens.to_string());
        endpoint.env("LLM_SLICE", slice.to_string());
        let mut endpoint = Program(endpoint.stdout(Stdio::piped()).spawn().expect("it runs"));
        let mut line = String::new();
        BufReader::new(endpoint.0.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let mut example = Self { python, port, server, home, programs: vec![endpoint], daemon };
        example.go("worker.py", &[], "worker.log");
        example
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(Path::new("examples/llm").join(program)).env("REDIS_URL", self.server.url());
        command.env("LLM_BASE_URL", format!("http://127.0.0.1:{}/v1", self.port)).env("LLM_MODELS", "large=big-1");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Run a program of it until the end.
    fn go(&mut self, program: &str, args: &[&str], log: &str) {
        let file = std::fs::File::create(self.home.path().join(log)).expect("a log");
        let mut command = self.command(program);
        command.args(args).stdin(Stdio::null()).stderr(file.try_clone().expect("the same")).stdout(file);
        self.programs.push(Program(command.spawn().expect("it runs")));
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.home.path().join(name)).unwrap_or_default()
    }

    /// Submit so many prompts, whose answers may have so many tokens. Replies what the producer says.
    fn submit(&self, model: &str, team: &str, prompts: usize, most_tokens: u32) -> String {
        let mut command = self.command("submit.py");
        command.args([model, team]).env("LLM_MAX_TOKENS", most_tokens.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut producer = command.spawn().expect("it runs");
        let lines: Vec<String> = (0..prompts).map(|n| format!("prompt {n} {}", "x".repeat(n * 7 % 40))).collect();
        producer.stdin.take().expect("its input").write_all(lines.join("\n").as_bytes()).expect("written");
        let (code, out, err) = said(&producer.wait_with_output().expect("it ends"));
        assert_eq!(code, 0, "{out}{err}");
        out
    }

    /// What the endpoint saw of a model.
    fn figure(&self, model: &str, name: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the endpoint");
        stream.write_all(b"GET /figures HTTP/1.1\r\nConnection: close\r\n\r\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let json: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
        json[model][name].as_u64().unwrap_or(0)
    }

    fn answered(&self) -> usize {
        self.log("worker.log").lines().filter(|line| line.ends_with("well said")).count()
    }

    fn all_are_answered(&self, jobs: usize) {
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("every prompt has an answer", || self.answered() >= jobs);
        }));
        assert!(all.is_ok(), "{} of {jobs}\n{}\n{}", self.answered(), self.log("worker.log"), self.daemon.log());
    }
}

fn configuration() -> String {
    std::fs::read_to_string("examples/llm/dripd.toml").expect("the configuration")
}

/// Cheap requests, of which their number counts, then dear ones, of which their tokens do. Replies what was refused, and the most requests and
/// tokens in ten seconds.
fn side_by_side() -> [u64; 3] {
    let example = Example::start(&configuration(), 600, 60_000);
    assert_eq!(example.submit("small", "support", 120, 12), "120 queued at small\n");
    assert_eq!(example.submit("small", "support", 90, 190), "90 queued at small\n");
    example.all_are_answered(100);
    example.all_are_answered(210);
    assert_eq!(example.figure("small", "answered"), 210);
    ["refused", "most_requests", "most_tokens"].map(|name| example.figure("small", name))
}

fn an_endpoint_refuses_nothing_at_95_percent_of_both_of_its_limits() {
    // The endpoint counts when a request arrives: a worker that this machine stops for half a second can be refused. So it may try again.
    let mut seen = Vec::new();
    for _ in 0..3 {
        let [refused, requests, tokens] = side_by_side();
        // It allows 100 requests and 10,000 tokens in 10 s.
        if refused == 0 && requests >= 90 && tokens >= 9_000 {
            return;
        }
        seen.push([refused, requests, tokens]);
    }
    panic!("refused, most requests and most tokens in 10 s: {seen:?}");
}

/// Every estimate is too high, by a third on average. Replies what was refused, and the share of the rate that was used in the second minute.
fn corrected() -> (u64, f64) {
    let example = Example::start_with(&configuration(), 6_000, 60_000, 60);
    let out = example.submit("small", "support", 1_000, 190);
    assert_eq!(out, "1000 queued at small\n");
    eventually("the first answer", || example.figure("small", "answered") > 0);
    let begun = Instant::now();
    let minute = Duration::from_secs(60);
    std::thread::sleep(minute); // what counts is what happens in a time
    let (from, before) = (Instant::now(), example.figure("small", "tokens"));
    std::thread::sleep((2 * minute).saturating_sub(begun.elapsed()));
    let (lasted, after) = (from.elapsed(), example.figure("small", "tokens"));
    let used = (after - before) as f64 / (57_000.0 / 60.0 * lasted.as_secs_f64());
    (example.figure("small", "refused"), used)
}

fn after_a_minute_the_limit_is_used_though_every_estimate_is_too_high() {
    // A machine that stops for a second may lose that, or bunch requests. So it may try again.
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (refused, used) = corrected();
        if refused == 0 && (0.97..=1.03).contains(&used) {
            return;
        }
        seen.push((refused, used));
    }
    panic!("refused, and used of the limit in the second minute: {seen:?}");
}

fn a_model_waits_for_as_long_as_its_endpoint_says() {
    // How many requests are under way when the endpoint refuses the first one depends on this machine. So it may try again.
    let mut seen = Vec::new();
    for _ in 0..3 {
        // 25 requests in 10 s, where the configuration lets out 95.
        let example = Example::start(&configuration(), 150, 60_000);
        assert_eq!(example.submit("large", "batch", 40, 12), "40 queued at large\n");
        example.all_are_answered(40);
        assert_eq!(example.figure("big-1", "answered"), 40);
        assert!(example.figure("big-1", "most_requests") <= 25);
        let refused = example.figure("big-1", "refused");
        if (1..=16).contains(&refused) {
            return;
        }
        seen.push(refused);
    }
    panic!("{seen:?} were refused: at most what all slots had in hand, twice");
}

fn what_waited_for_too_long_is_answered_by_another_model() {
    let toml = configuration().replace("ttl = \"20s\"", "ttl = \"2s\"");
    assert!(toml.contains("\"2s\""), "the configuration has another deadline");
    let mut example = Example::start(&toml, 600, 60_000);
    example.go("submit.py", &["--expired"], "expired.log");
    let out = example.submit("large", "search", 40, 190);
    assert!(
        out.contains(" queued at large\n") && out.contains(" queued at small\n"),
        "late ones went on at once: {out}"
    );
    example.all_are_answered(40);
    let (large, small) = (example.figure("big-1", "answered"), example.figure("small", "answered"));
    assert_eq!(large + small, 40);
    let moved = example.log("expired.log").lines().filter(|line| *line == "search: queued at small").count();
    assert!(moved > 0 && large > 0, "{large} by the large one, {moved} expired: {}", example.log("expired.log"));
}

tests! {
    an_endpoint_refuses_nothing_at_95_percent_of_both_of_its_limits,
    after_a_minute_the_limit_is_used_though_every_estimate_is_too_high,
    a_model_waits_for_as_long_as_its_endpoint_says,
    what_waited_for_too_long_is_answered_by_another_model,
}
