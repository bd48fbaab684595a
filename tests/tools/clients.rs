//! The clients of `clients/`: each does what the script asks of any client.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::needs::{self, runs};
use crate::rig::{Daemon, Server};
use crate::shell::said;

/// A folder of a client that is kept between runs: what it needs comes from a package registry.
fn kept(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn conforms(adapter: &[&str]) {
    let server = Server::start(&[]);
    let home = server.home(&std::fs::read_to_string("clients/conformance/dripd.toml").expect("its policies"));
    let _daemon = Daemon::start(home.path());
    let mut script = Command::new("python3");
    script.arg("clients/conformance/run.py").arg(server.url()).args(adapter).env("PYTHONDONTWRITEBYTECODE", "1");
    let (code, out, err) = said(&script.output().expect("it runs"));
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(out.lines().filter(|line| line.starts_with("ok ")).count(), 32, "{out}");
}

/// A Python that can import these, in a folder of its own with these packages.
pub fn python_with(folder: &str, imports: &str, packages: &[&str]) -> PathBuf {
    needs::one_of(&["python3"], "apt-get install python3-venv");
    let venv = kept(folder);
    // One test makes it, and others that need it wait.
    let lock = File::create(venv.with_extension("lock")).expect("a file");
    lock.lock().expect("a lock");
    let python = venv.join("bin/python");
    let has_it = runs(Command::new(&python).args(["-c", &format!("import {imports}")]))
        || runs(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            && runs(Command::new(&python).args(["-m", "pip", "install", "-q"]).args(packages));
    if !has_it {
        let what = format!("the Python packages {}", packages.join(" and "));
        needs::missing(&what, &needs::registry("apt-get install python3-venv"));
    }
    python
}

/// A Python with the stock client of Redis.
pub fn python_with_redis() -> PathBuf {
    python_with("client-python", "redis, http_sf", &["redis", "http-sf"])
}

fn the_python_client_does_what_a_client_must() {
    let python = python_with_redis();
    conforms(&[python.to_str().expect("a path"), "clients/python/conformance.py"]);
}

/// A program of eight lines that pushes a job into each of many buckets and ends when it has worked on all of them, with a partitioned dripd.
fn finds_its_partitions(command: &mut Command) {
    let server = Server::start(&[]);
    let home = server.home("partitions = 4\npartition_by = 1\n");
    let _daemon = Daemon::start(home.path());
    let (code, out, err) = said(&command.env("REDIS_URL", server.url()).output().expect("it runs"));
    assert_eq!((code, out.as_str()), (0, "12 jobs in 4 partitions\n"), "{err}");
}

fn the_python_client_finds_the_partitions_of_buckets_and_works_in_all_of_them() {
    let python = python_with_redis();
    let program = r#"
import os
from dripd import Drip
drip, seen = Drip(os.environ["REDIS_URL"], partitions=4, partition_by=1), set()
def run(job):
    seen.add(job.body)
    if len(seen) == 12: drip.stop()
for n in range(12): assert drip.push(f"tenant-{n}:mail:x", str(n)).accepted == 1
drip.work(run, signals=False)
print(f"{len(seen)} jobs in {len({drip._queue(f'tenant-{n}:mail:x').split(':')[2] for n in range(12)})} partitions")"#;
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    finds_its_partitions(
        Command::new(python).args(["-c", program]).env("PYTHONPATH", client).env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

fn the_node_client_finds_the_partitions_of_buckets_and_works_in_all_of_them() {
    let folder = node_client();
    let program = r"
import { Drip } from './index.js';
const drip = new Drip(process.env.REDIS_URL, { partitions: 4, partitionBy: 1 });
const seen = new Map();
for (let n = 0; n < 12; n += 1) if ((await drip.push(`tenant-${n}:mail:x`, String(n))).accepted !== 1) process.exit(3);
await drip.work((job) => {
  seen.set(String(job.body), job.bucket);
  if (seen.size === 12) drip.stop();
}, { signals: false });
await drip.close();
console.log(`${seen.size} jobs in 4 partitions`);
";
    std::fs::write(folder.join("partitions.js"), program).expect("written");
    finds_its_partitions(Command::new("node").arg(folder.join("partitions.js")));
}

/// Write a file that a program of another test may be reading: only where it differs, and all of it at once.
fn copied(path: &Path, text: &[u8]) {
    if std::fs::read(path).is_ok_and(|there| there == text) {
        return;
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(new, path).expect("renamed");
}

/// A folder of this name with these packages for Node.
pub fn node_with(name: &str, packages: &[&str]) -> PathBuf {
    for (program, package) in [("node", "nodejs"), ("npm", "npm")] {
        needs::one_of(&[program], &format!("apt-get install {package}"));
    }
    let folder = kept(name);
    // One test makes it, and others that need it wait.
    let lock = File::create(folder.with_extension("lock")).expect("a file");
    lock.lock().expect("a lock");
    let installed = packages.iter().all(|package| folder.join("node_modules").join(package).is_dir())
        || runs(Command::new("npm").args(["install", "--silent", "--prefix"]).arg(&folder).args(packages));
    if !installed {
        let what = packages.join(" ");
        needs::missing(&format!("the Node packages {what}"), &needs::registry(&format!("npm install {what}")));
    }
    folder
}

/// A folder with the Node client and what it needs.
pub fn node_client() -> PathBuf {
    needs::one_of(&["python3"], "apt-get install python3");
    // Node looks for packages beside the file that imports them, so the client is copied there.
    let folder = node_with("client-node", &["redis", "structured-headers"]);
    let lock = File::create(folder.with_extension("lock")).expect("a file");
    lock.lock().expect("a lock");
    copied(&folder.join("package.json"), b"{\"type\":\"module\"}");
    for file in std::fs::read_dir("clients/node").expect("the client").map(|file| file.expect("a file").path()) {
        if file.extension().is_some_and(|ending| ending == "js") {
            let name = file.file_name().expect("a name");
            copied(&folder.join(name), &std::fs::read(&file).expect("a file"));
        }
    }
    folder
}

fn the_node_client_does_what_a_client_must() {
    let folder = node_client();
    let adapter = folder.join("conformance.js");
    conforms(&["node", adapter.to_str().expect("a path")]);
}

/// The adapters of the clients that are installed from a package registry.
pub fn adapters() -> [[String; 2]; 2] {
    let text = |path: &Path| path.to_str().expect("a path").to_owned();
    let node = node_client().join("conformance.js");
    [[text(&python_with_redis()), "clients/python/conformance.py".to_owned()], ["node".to_owned(), text(&node)]]
}

/// A client that is an example: short, to show that the protocol is enough.
fn is_short(path: &str) {
    let lines = std::fs::read_to_string(path).expect("a file").lines().count();
    assert!(lines <= 200, "{path} has {lines} lines");
}

fn a_client_in_go_does_what_a_client_must() {
    let library = "apt-get install golang-go golang-github-gomodule-redigo-dev";
    needs::one_of(&["go"], library);
    needs::one_of(&["python3"], "apt-get install python3");
    is_short("examples/go/dripd.go");
    let folder = kept("client-go");
    let adapter = folder.join("adapter");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&adapter).arg(".").current_dir("examples/go");
    // Where Debian's packages put what they bring; no module is fetched.
    build.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode").env("GOCACHE", folder.join("cache"));
    let (code, out, err) = said(&build.output().expect("it runs"));
    if err.contains("cannot find package") {
        needs::missing("the Redis client redigo", library);
    }
    assert_eq!(code, 0, "{out}{err}");
    conforms(&[adapter.to_str().expect("a path")]);
}

fn a_client_in_ruby_does_what_a_client_must() {
    needs::one_of(&["python3"], "apt-get install python3");
    is_short("examples/ruby/dripd.rb");
    if !runs(Command::new("ruby").args(["-rredis", "-e", ""])) {
        needs::missing("Ruby with its Redis client", "apt-get install ruby-redis");
    }
    conforms(&["ruby", "-w", "examples/ruby/conformance.rb"]);
}

/// What a client says when it has tried the table that the Rust reader of `dripd work` is tried with too.
fn reads_the_table(command: &mut Command) {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/limit-headers.json");
    let (code, out, err) = said(&command.arg(table).output().expect("it runs"));
    assert!(code == 0 && out.ends_with(" cases\n"), "{out}{err}");
}

fn the_clients_read_the_headers_of_limits_as_the_table_says() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let mut python = Command::new(python_with_redis());
    python.arg(client.join("limits_check.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    reads_the_table(&mut python);
    reads_the_table(Command::new("node").arg(node_client().join("limits_check.js")));
}

/// A program that works on one job, whose answer has headers that nobody understands.
fn counts_what_it_cannot_read(command: &mut Command, log: &str) {
    let server = Server::start(&[]);
    let home = server.home("");
    let _daemon = Daemon::start(home.path());
    let (code, out, err) = said(&command.env("REDIS_URL", server.url()).output().expect("it runs"));
    assert_eq!((code, out.as_str()), (0, "2 unread\n"), "{err}");
    let line = format!(
        "{log}a header about a limit cannot be understood: it is passed over (1 times): x-ratelimit-reset: soon\n"
    );
    assert_eq!(err, line, "at once, and then once a minute");
}

fn the_clients_count_and_log_headers_that_they_cannot_read() {
    let python = r#"
import os
from dripd import Drip
drip = Drip(os.environ["REDIS_URL"])
def run(job):
    for _ in range(2): job.limits({"X-RateLimit-Remaining": "5", "X-RateLimit-Reset": "soon"})
    drip.stop()
drip.push("a", b"x")
drip.work(run, signals=False)
print(f"{drip.unread_headers} unread")"#;
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let mut command = Command::new(python_with_redis());
    command.args(["-c", python]).env("PYTHONPATH", client).env("PYTHONDONTWRITEBYTECODE", "1");
    counts_what_it_cannot_read(&mut command, "");
    let node = r"
import { Drip } from './index.js';
const drip = new Drip(process.env.REDIS_URL);
await drip.push('a', 'x');
await drip.work((job) => {
  for (let n = 0; n < 2; n += 1) job.limits(new Headers({ 'X-RateLimit-Remaining': '5', 'X-RateLimit-Reset': 'soon' }));
  drip.stop();
}, { signals: false });
await drip.close();
console.log(`${drip.unreadHeaders} unread`);
";
    let program = node_client().join("unread.js");
    std::fs::write(&program, node).expect("written");
    counts_what_it_cannot_read(Command::new("node").arg(program), "dripd: ");
}

tests! {
    a_client_in_go_does_what_a_client_must,
    a_client_in_ruby_does_what_a_client_must,
    the_clients_count_and_log_headers_that_they_cannot_read,
    the_clients_read_the_headers_of_limits_as_the_table_says,
    the_python_client_does_what_a_client_must,
    the_python_client_finds_the_partitions_of_buckets_and_works_in_all_of_them,
    the_node_client_finds_the_partitions_of_buckets_and_works_in_all_of_them,
    the_node_client_does_what_a_client_must,
}
