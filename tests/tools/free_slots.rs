//! Workers read no more than they have free slots: what a worker holds and has not begun would leave its hand faster than the rate.
//!
//! All jobs lie in the ready stream. Each says that it has begun, by a file, and blocks until a file says that it may end. So it is known how many
//! are at work, and Redis knows how many were read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redis::{Connection, FromRedisValue as _};

use crate::clients::{node_client, python_with_redis};
use crate::rig::{Daemon, Server, dripd, eventually};
use crate::shell::signal;

/// How many jobs there are.
const JOBS: usize = 20;

/// A system in which nothing but the rate keeps jobs from the ready stream.
struct Scene {
    server: Server,
    home: tempfile::TempDir,
    redis: Connection,
    partitions: usize,
    _daemon: Daemon,
}

/// A worker that runs, and ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Scene {
    /// One in which all jobs are ready: of each its bucket and what it says.
    fn new(partitions: usize, job: impl Fn(usize) -> [String; 2]) -> Self {
        let server = Server::start(&[]);
        let toml = "[defaults]\nrate = '1000/s'\n[limits]\nready_window = 'off'\n";
        let home = server.home(&format!("partitions = {partitions}\n{toml}"));
        let daemon = Daemon::start(home.path());
        let mut scene = Self { redis: server.connect(), server, home, partitions, _daemon: daemon };
        for n in 0..JOBS {
            let mut push = scene.here(dripd());
            let done = push.arg("push").args(job(n)).output().expect("it runs");
            assert!(done.status.success(), "{done:?}");
        }
        eventually("all jobs are ready", || scene.sum("XLEN", &[]) == JOBS);
        scene
    }

    /// The ready streams.
    fn streams(&self) -> Vec<String> {
        match self.partitions {
            1 => vec!["drip:ready".to_owned()],
            n => (0..n).map(|n| format!("drip:ready:{{{n}}}")).collect(),
        }
    }

    /// The sum of what a command says of each ready stream, all at one moment: a number, or a list that begins with one.
    fn sum(&mut self, command: &str, args: &[&str]) -> usize {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for stream in self.streams() {
            pipe.cmd(command).arg(stream).arg(args);
        }
        let replies: Vec<redis::Value> = pipe.query(&mut self.redis).expect("answers");
        let number = |value: &redis::Value| match value {
            redis::Value::Array(values) => usize::from_redis_value_ref(&values[0]),
            value => usize::from_redis_value_ref(value),
        };
        replies.iter().map(|value| number(value).expect("a number")).sum()
    }

    /// How many jobs workers hold. The groups are made by the daemon.
    fn pending(&mut self) -> usize {
        self.sum("XPENDING", &["workers"])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A file in the directory of the scene.
    fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).expect("written");
        self.path(name)
    }

    /// A command in the directory of the scene.
    fn here(&self, mut command: Command) -> Command {
        command.current_dir(self.home.path()).env("REDIS_URL", self.server.url()).env_remove("MAX_JOBS");
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        command
    }

    /// The jobs that have begun.
    fn begun(&self) -> BTreeSet<String> {
        let names = std::fs::read_dir(self.home.path()).expect("a folder").map(|entry| entry.expect("one").file_name());
        names.filter_map(|name| Some(name.to_str()?.strip_prefix("begun-")?.to_owned())).collect()
    }

    /// Let a worker with so many slots do half of the jobs, one after the other, and stop it. It never holds more than it has slots, and leaves nothing.
    fn holds_what_it_runs(&mut self, slots: usize, command: Command) {
        let (log, mut command) = (File::create(self.path("log")).expect("a log"), self.here(command));
        command.stdout(log.try_clone().expect("the same")).stderr(log);
        let mut worker = Running(command.spawn().expect("it runs"));
        let mut may_end = BTreeSet::new();
        for done in 0..=JOBS / 2 {
            eventually("all slots are at work", || {
                let pending = self.pending();
                assert!(pending <= slots, "{pending} jobs were read, and there are {slots} slots");
                // The next one is read when the one before it is acknowledged: as many were begun as there are slots, and those that ended.
                pending == slots && self.begun().len() == slots + done
            });
            let next = self.begun().difference(&may_end).next().expect("a slot is at work").clone();
            self.file(&format!("end-{next}"), "");
            may_end.insert(next);
        }
        signal(worker.0.id(), "TERM");
        self.file("end-all", "");
        eventually("it ends", || {
            let pending = self.pending();
            assert!(pending <= slots, "{pending} jobs were read, and there are {slots} slots");
            worker.0.try_wait().expect("it can be waited for").is_some()
        });
        let (code, log) = (worker.0.wait().expect("it ended").code(), std::fs::read_to_string(self.path("log")));
        assert_eq!(code, Some(0), "{log:?}");
        assert_eq!(self.pending(), 0, "what it read is done, and nothing is left in its hand: {log:?}");
    }
}

/// The work of a job in the shell: `$job` begins, and blocks.
const IN_SHELL: &str = r#": > "begun-$job"; until [ -e "end-$job" ] || [ -e end-all ]; do sleep 0.01; done"#;

/// The same in Python, as a function.
const IN_PYTHON: &str = r#"
import os, time
def block(job):
    open(f"begun-{job}", "w").close()
    while not (os.path.exists(f"end-{job}") or os.path.exists("end-all")): time.sleep(0.01)
"#;

/// The same in JavaScript.
const IN_NODE: &str = r"
import { existsSync, writeFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
async function block(job) {
  writeFileSync(`begun-${job}`, '');
  while (!existsSync(`end-${job}`) && !existsSync('end-all')) await pause(10);
}
";

/// An example with its work replaced.
fn example(name: &str, work: &str, by: &str) -> String {
    let text = std::fs::read_to_string(Path::new("examples").join(name)).expect("the example");
    assert_eq!(text.matches(work).count(), 1, "{name}: {work}");
    text.replace(work, by)
}

fn in_many_buckets(n: usize) -> [String; 2] {
    [format!("tenant-{n}"), format!("job-{n}")]
}

fn the_ready_made_worker_reads_as_many_jobs_as_it_has_free_slots() {
    for (partitions, slots) in [(1, 1), (1, 5), (4, 3), (4, 6)] {
        let mut scene = Scene::new(partitions, in_many_buckets);
        let mut work = dripd();
        let script = format!("job=$(cat); {IN_SHELL}");
        work.args(["work", "--concurrency", &slots.to_string(), "--exec", "sh", "-c", &script]);
        scene.holds_what_it_runs(slots, work);
    }
}

fn the_python_client_reads_one_job_when_it_is_free() {
    let python = python_with_redis();
    for partitions in [1, 4] {
        let mut scene = Scene::new(partitions, in_many_buckets);
        let program = format!(
            "{IN_PYTHON}\nfrom dripd import Drip\nDrip(os.environ['REDIS_URL'], partitions={partitions}).work(lambda job: block(job.body.decode()))\n"
        );
        let mut work = Command::new(&python);
        work.args(["-c", &program]).env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python"));
        scene.holds_what_it_runs(1, work);
    }
}

fn the_node_client_reads_one_job_when_it_is_free() {
    let folder = node_client();
    for partitions in [1, 4] {
        let mut scene = Scene::new(partitions, in_many_buckets);
        let program = format!(
            "{IN_NODE}\nimport {{ Drip }} from './index.js';\nconst drip = new Drip(process.env.REDIS_URL, {{ partitions: {partitions} }});\nawait drip.work((job) => block(String(job.body)));\nawait drip.close();\n"
        );
        std::fs::write(folder.join("free_slots.js"), program).expect("written");
        let mut work = Command::new("node");
        work.arg(folder.join("free_slots.js"));
        scene.holds_what_it_runs(1, work);
    }
}

fn the_worker_in_python_reads_one_job_when_it_is_free() {
    let python = python_with_redis();
    let mut scene = Scene::new(1, in_many_buckets);
    let text = example("worker.py", r#"sys.stdout.buffer.write(b"%b %b\n" % (bucket, job))"#, "block(job.decode())");
    let mut work = Command::new(python);
    work.arg(scene.file("worker.py", &format!("{IN_PYTHON}{text}")));
    scene.holds_what_it_runs(1, work);
}

fn the_worker_in_node_reads_one_job_when_it_is_free() {
    let folder = node_client();
    let mut scene = Scene::new(1, in_many_buckets);
    let work = r"process.stdout.write(Buffer.concat([bucket, Buffer.from(' '), job, Buffer.from('\n')]));";
    let text = example("worker.mjs", work, "await block(String(job));");
    let text = text.trim_start_matches("#!/usr/bin/env node");
    std::fs::write(folder.join("free_slots.mjs"), format!("{IN_NODE}{text}")).expect("written");
    let mut work = Command::new("node");
    work.arg(folder.join("free_slots.mjs"));
    scene.holds_what_it_runs(1, work);
}

fn the_worker_in_shell_reads_one_job_when_it_is_free() {
    let mut scene = Scene::new(1, in_many_buckets);
    let text =
        example("worker.sh", r#"run() { printf '%s %s\n' "$1" "$2"; }"#, &format!("run() {{ job=$2; {IN_SHELL}; }}"));
    let mut work = Command::new("sh");
    work.arg(scene.file("worker.sh", &text));
    scene.holds_what_it_runs(1, work);
}

/// An endpoint that answers a prompt when its job may end.
fn endpoint(home: PathBuf) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let home = home.clone();
            std::thread::spawn(move || answer(&stream.expect("a connection"), &home));
        }
    });
    port
}

/// One request and its answer: the prompt is the name of the job.
fn answer(mut stream: &TcpStream, home: &Path) {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).expect("a line") > 2 {
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let job = body["messages"][0]["content"].as_str().expect("a prompt");
    std::fs::write(home.join(format!("begun-{job}")), "").expect("written");
    eventually("it may end", || home.join(format!("end-{job}")).exists() || home.join("end-all").exists());
    let body = r#"{"choices":[{"message":{"content":"well said"}}]}"#;
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}

fn the_worker_for_llm_apis_reads_as_many_jobs_as_it_has_free_slots() {
    let python = python_with_redis();
    let prompt = |n| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"job-{n}\"}}]}}");
    let mut scene = Scene::new(1, |n| [format!("llm:large:team-{n}"), prompt(n)]);
    let port = endpoint(scene.home.path().to_owned());
    let mut work = Command::new(python);
    work.arg(std::path::absolute("examples/llm/worker.py").expect("a path")).env("LLM_SLOTS", "4");
    work.env("LLM_BASE_URL", format!("http://127.0.0.1:{port}/v1"));
    scene.holds_what_it_runs(4, work);
}

tests! {
    the_ready_made_worker_reads_as_many_jobs_as_it_has_free_slots,
    the_python_client_reads_one_job_when_it_is_free,
    the_node_client_reads_one_job_when_it_is_free,
    the_worker_in_python_reads_one_job_when_it_is_free,
    the_worker_in_node_reads_one_job_when_it_is_free,
    the_worker_in_shell_reads_one_job_when_it_is_free,
    the_worker_for_llm_apis_reads_as_many_jobs_as_it_has_free_slots,
}
