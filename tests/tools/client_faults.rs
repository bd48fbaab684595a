//! What once lost jobs in the clients, or made them hang: the checks in `faults_check` of each client, what the page says of installing them,
//! and a worker that starts before Redis and before the first daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::clients::{adapters, node_client, python_with, python_with_redis};
use crate::needs::runs;
use crate::rig::{Daemon, Server, eventually, free_port, server_program, signal, test_config};
use crate::shell::said;

const SOME_TIME: Duration = Duration::from_secs(60);

/// One try for each job: none comes again while another one is awaited.
const ONE_TRY: &str = "[defaults]\nrate = '1000/s'\nattempts = 1\n";

/// A check of a client, with a dripd of its own.
fn checks(command: &mut Command, name: &str, says: &str) {
    let server = Server::start(&[]);
    let home = server.home(ONE_TRY);
    let _daemon = Daemon::start(home.path());
    let (code, out, err) = said(&command.arg(name).env("REDIS_URL", server.url()).output().expect("it runs"));
    assert_eq!((code, out), (0, format!("{says}\n")), "{err}");
}

fn in_python(name: &str, says: &str) {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let mut python = Command::new(python_with_redis());
    checks(python.arg(client.join("faults_check.py")).env("PYTHONDONTWRITEBYTECODE", "1"), name, says);
}

fn in_node(name: &str, says: &str) {
    checks(Command::new("node").arg(node_client().join("faults_check.js")), name, says);
}

fn work_that_would_not_run_is_a_type_error_and_its_job_is_kept() {
    in_python("not_run", "9 are seen at once, 7 when they reply");
    in_node("not_run", "5 are seen at once, 3 when they reply");
}

fn threads_that_share_a_python_client_acknowledge_a_job_when_it_is_done() {
    in_python("threads", "40 acknowledged");
}

fn the_python_client_reads_bytes_whatever_the_address_says() {
    in_python("bytes_always", "bytes");
}

fn the_node_client_leaves_no_connection_and_no_timer_behind() {
    in_node("ends", "nothing is left");
    in_node("close", "given back");
}

fn work_that_fails_is_logged_and_does_not_end_the_worker() {
    in_python("logs", "11 logged");
    in_node("logs", "12 logged");
}

fn a_refusal_has_the_code_that_redis_said() {
    in_python("codes", "17 codes");
    in_node("codes", "5 codes");
}

/// A program that ends with the value, and its lines of either output as they come.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let (tell, lines) = channel();
        let tell_errors = tell.clone();
        let (out, err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        std::thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).try_for_each(|line| tell_errors.send(line))
        });
        Self { child, lines }
    }

    /// Wait for a line that has this in it.
    #[track_caller]
    fn says(&self, part: &str) {
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(SOME_TIME) {
                Ok(line) if line.contains(part) => return,
                Ok(line) => before.push(line),
                Err(why) => panic!("{part:?} is not said ({why}): {before:?}"),
            }
        }
    }

    /// What it exits with after a TERM.
    fn ends(&mut self) -> Option<i32> {
        signal(self.child.id(), "TERM");
        let mut code = None;
        eventually("it ends after a TERM", || {
            code = self.child.try_wait().expect("it can be asked");
            code.is_some()
        });
        code.expect("it ended").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn the_node_worker_of_the_page_ends_on_term() {
    let server = Server::start(&[]);
    let home = server.home("");
    let _daemon = Daemon::start(home.path());
    let program = node_client().join("faults_check.js");
    let mut worker = Running::start(Command::new("node").arg(program).arg("readme").env("REDIS_URL", server.url()));
    worker.says("hello");
    assert_eq!(worker.ends(), Some(0));
}

/// A Redis at a port, in a directory, which ends with the value.
fn redis_at(port: u16, dir: &Path) -> Running {
    let mut command = Command::new(server_program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir);
    let running = Running::start(&mut command);
    running.says("eady to accept connections");
    running
}

/// A worker that starts before Redis, and before the first daemon, waits for both, for longer than any number of tries lasts. So it does
/// later, with a job in its hand, and a TERM ends it then too.
fn waits(adapter: &[&str]) {
    let (port, home) = (free_port(), tempfile::tempdir().expect("a directory"));
    let url = format!("redis://127.0.0.1:{port}");
    let mut worker = Running::start(
        Command::new(adapter[0]).args(&adapter[1..]).env("REDIS_URL", &url).env("PYTHONDONTWRITEBYTECODE", "1"),
    );
    let mut commands = worker.child.stdin.take().expect("a pipe");
    writeln!(commands, r#"{{"op": "work", "route": "default"}}"#).expect("it listens");
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(20) {
        assert_eq!(worker.child.try_wait().expect("it can be asked"), None, "without Redis it waits");
        std::thread::sleep(Duration::from_millis(100));
    }
    let redis = redis_at(port, home.path());
    let client = redis::Client::open(url.as_str()).expect("a url");
    let mut connection = client.get_connection().expect("it answers");
    let push = |connection: &mut redis::Connection, job: &str| {
        let _: i64 = redis::cmd("LPUSH").arg("drip:queue:early").arg(job).query(connection).expect("pushed");
    };
    push(&mut connection, "first");
    worker.says("has a daemon been here?");
    let toml = format!("[redis]\nurl = '{url}'\n[defaults]\nlease = '60s'\n");
    std::fs::write(home.path().join("config.toml"), test_config(&toml)).expect("written");
    let daemon = Daemon::start(home.path());
    worker.says("Zmlyc3Q="); // first, in base64
    push(&mut connection, "sleep 1500");
    worker.says("c2xlZXAgMTUwMA==");
    drop(redis);
    std::thread::sleep(Duration::from_millis(1500)); // the job ends while Redis is away
    let redis = redis_at(port, home.path()); // it has forgotten all, the library too, which the daemon loads again
    let mut connection = client.get_connection().expect("it answers");
    push(&mut connection, "last");
    worker.says("bGFzdA==");
    drop((daemon, redis));
    assert_eq!(worker.ends(), Some(0), "a TERM while Redis is away");
}

fn a_worker_waits_for_redis_and_for_the_first_daemon() {
    for adapter in adapters() {
        waits(&adapter.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// The commands of the page that install a client, in an empty folder beside a copy of what they name.
fn installed_as_the_page_says(program: &str) -> (tempfile::TempDir, bool) {
    let page = std::fs::read_to_string("clients/README.md").expect("the page");
    let command =
        page.split('`').find(|part| part.starts_with(&format!("{program} install"))).expect("the page says how");
    let folder = tempfile::tempdir().expect("a folder");
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let copied = runs(Command::new("cp").arg("-r").arg(clients).arg(folder.path().join("clients")));
    assert!(copied, "a copy: what builds a package writes beside it");
    let done = runs(Command::new("sh").args(["-c", command]).current_dir(folder.path()));
    (folder, done)
}

fn the_node_client_is_installed_as_the_page_says_with_what_it_needs() {
    node_client(); // a registry is in reach
    let (folder, done) = installed_as_the_page_says("npm");
    assert!(done, "the command of the page runs");
    let program = "import { Drip } from 'dripd'; console.log(typeof Drip);";
    let import = |folder: &Path| {
        said(
            &Command::new("node")
                .args(["--input-type=module", "-e", program])
                .current_dir(folder)
                .output()
                .expect("it runs"),
        )
    };
    let (code, out, err) = import(folder.path());
    assert_eq!((code, out.as_str()), (0, "function\n"), "{err}");
    std::fs::remove_dir_all(folder.path().join("node_modules")).expect("removed");
    assert!(
        runs(Command::new("npm").args(["ci", "--silent"]).current_dir(folder.path())),
        "and again from its lock file"
    );
    assert_eq!(import(folder.path()).1, "function\n");
}

fn mypy_finds_nothing_in_the_python_client_and_refuses_an_async_handler() {
    let python = python_with("client-mypy", "mypy, redis, http_sf", &["mypy", "redis", "http-sf"]);
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let folder = tempfile::tempdir().expect("a folder");
    let checked = |what: &[PathBuf]| {
        let mut mypy = Command::new(&python);
        mypy.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(folder.path().join("cache")).args(what);
        said(&mypy.env("MYPYPATH", &client).current_dir(folder.path()).output().expect("it runs"))
    };
    let (code, out, err) =
        checked(&[client.join("dripd"), client.join("conformance.py"), client.join("faults_check.py")]);
    assert_eq!(code, 0, "{out}{err}");
    let program = folder.path().join("program.py");
    let text = "from dripd import Drip, Job\ndef now(job: Job) -> None: ...\nasync def later(job: Job) -> None: ...\ndrip = Drip()\n";
    std::fs::write(&program, format!("{text}drip.work(now)\ndrip.work(lambda job: print(job.body))\n"))
        .expect("written");
    let (code, out, err) = checked(std::slice::from_ref(&program));
    assert_eq!(code, 0, "{out}{err}");
    std::fs::write(&program, format!("{text}drip.work(later)\n")).expect("written");
    let (code, out, _) = checked(&[program]);
    assert!(code == 1 && out.contains("program.py:5: error: Argument 1 to \"work\""), "{out}");
}

tests! {
    a_refusal_has_the_code_that_redis_said,
    a_worker_waits_for_redis_and_for_the_first_daemon,
    mypy_finds_nothing_in_the_python_client_and_refuses_an_async_handler,
    the_node_client_is_installed_as_the_page_says_with_what_it_needs,
    the_node_client_leaves_no_connection_and_no_timer_behind,
    the_node_worker_of_the_page_ends_on_term,
    the_python_client_reads_bytes_whatever_the_address_says,
    threads_that_share_a_python_client_acknowledge_a_job_when_it_is_done,
    work_that_fails_is_logged_and_does_not_end_the_worker,
    work_that_would_not_run_is_a_type_error_and_its_job_is_kept,
}
