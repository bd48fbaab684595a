//! Users of Redis with the rights that `dripd acl` prints: each does all the work of its role, and nothing that belongs to another.

use std::collections::HashMap;
use std::process::Command;

use redis::{Connection, Value};
use serde_json::json;

use super::http::{Door, TOKENS};
use super::terminal::Terminal;
use super::{Shell, Work};
use crate::rig::{Case, Daemon, Server, dripd, eventually};
use crate::roles::refused;

pub const ROLES: [&str; 6] = ["producer", "submitter", "worker", "operator", "observer", "daemon"];

/// The prefix is one that is a pattern when it is not escaped.
const PREFIX: &str = "a*b?[c]";

/// The ready window is wide: on a busy machine the first jobs may lie there for long, with nobody who takes them, and the others must follow.
const TOML: &str = "[[budget]]\nmatch = 'sms'\nrate = '1000/s'\nconcurrency = 50\n\
                    [[bucket]]\nmatch = 'sms:*'\nwithin = 'sms'\nrate = '1000/s'\nconcurrency = 5\nquota = '100000/d'\n\
                    [[bucket]]\nmatch = 'gated'\nadmit = [{ limiter = 'sliding-window', limit = 2, period = '60s' }]\n\
                    [[bucket]]\nmatch = 'slow'\nrate = '1/h'\ncapacity = 4\n\
                    [[bucket]]\nmatch = 'fails'\nattempts = 1\nrate = '1000/s'\n\
                    [defaults]\nrate = '100/s'\n[limits]\nready_window = '1h'\n";

/// A server with a user for each role, as `dripd acl` prints it.
pub struct House {
    pub server: Server,
    prefix: &'static str,
}

impl House {
    pub fn build(prefix: &'static str) -> Self {
        let server = Server::start(&["--appendonly", "yes"]);
        let house = Self { server, prefix };
        for role in ROLES {
            house.let_in(role, "");
        }
        house
    }

    /// Run what `dripd acl` prints, with a password; `path` is what the URL ends with.
    fn let_in(&self, role: &str, path: &str) {
        let shell = self.shell_at(role, path);
        let (code, line, err) = shell.run(&["acl", role]);
        assert_eq!((code, err.as_str()), (0, ""), "{line}");
        let words = line.trim_end().replace(">PASSWORD", ">secret");
        assert_eq!(words.lines().count(), 1, "{words}");
        let mut words = words.split(' ');
        let command = words.next().expect("ACL");
        redis::cmd(command).arg(words.collect::<Vec<_>>()).exec(&mut self.server.connect()).expect("a user");
    }

    fn url(&self, role: &str) -> String {
        format!("redis://{role}:secret@127.0.0.1:{}", self.server.port)
    }

    /// A client of that role.
    pub fn client(&self, role: &str) -> Connection {
        redis::Client::open(self.url(role)).and_then(|client| client.get_connection()).expect("it logs in")
    }

    /// A directory for the commands of that role.
    pub fn shell(&self, role: &str) -> Shell {
        self.shell_at(role, "")
    }

    fn shell_at(&self, role: &str, path: &str) -> Shell {
        let case = Case { redis: self.server.connect(), prefix: self.prefix.to_owned() };
        let shell = Shell { case, home: tempfile::tempdir().expect("a directory") };
        for name in ["ops", "eyes", "billing"] {
            shell.file(name, &format!("{name}-secret\n")); // the tokens
        }
        let head = format!("[redis]\nurl = '{}{path}'\nprefix = '{}'\n", self.url(role), self.prefix);
        shell.file("config.toml", &format!("{head}{TOML}[http]\nlisten = '127.0.0.1:0'\n{TOKENS}"));
        shell
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    /// A daemon of that role, with its HTTP server.
    pub fn door(&self) -> Door {
        Door::of(self.shell("daemon"))
    }

    /// Nothing was refused to anybody.
    #[track_caller]
    fn all_was_allowed(&self) {
        let refused = refused(&mut self.server.connect(), "");
        // Clients say who they are, where the server knows that, and a worker that stops takes its name off its group: without the right
        // to do so they go on. Nobody is to have the right to delete a consumer, for what it holds would be lost.
        let goes_on = ["client|setinfo", "xgroup|delconsumer"];
        let refused: Vec<_> = refused.into_iter().filter(|line| !goes_on.iter().any(|it| line.ends_with(it))).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    }
}

/// Run a command that does what is asked. Replies what it prints.
#[track_caller]
pub fn done(shell: &Shell, args: &[&str]) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    out
}

#[test]
fn every_role_does_all_of_its_work() {
    let house = House::build(PREFIX);
    let door = house.door();
    let mut admin = house.server.connect();
    let mut length = |key: &str| redis::cmd("XLEN").arg(house.key(key)).query::<u64>(&mut admin).expect("XLEN");

    // A producer, with any client.
    let mut producer = house.client("producer");
    let queue = |bucket: &str| house.key(&format!("queue:{bucket}"));
    for (bucket, jobs) in [("slow", 6), ("sms:acme:1", 3), ("fails", 2)] {
        let jobs: Vec<String> = (1..=jobs).map(|n| format!("{bucket} {n}")).collect();
        redis::cmd("LPUSH").arg(queue(bucket)).arg(&jobs).exec(&mut producer).expect("LPUSH");
    }
    let waiting: u64 = redis::cmd("LLEN").arg(queue("slow")).query(&mut producer).expect("LLEN");
    assert!(waiting >= 3, "{waiting}");
    eventually("the daemon dispatches and cuts", || length("ready") >= 6 && length("rejected") >= 1);

    // A submitter, with the commands and with any client.
    let submitter = house.shell("submitter");
    done(&submitter, &["push", "sms:acme:2", "hello"]);
    done(&submitter, &["push", "gated", "hello"]);
    let (code, _, err) = submitter.pipe(&["push", "slow", "--file", "-"], b"1\n2\n3\n4\n5\n");
    assert_eq!(code, 75, "{err}");
    for limiter in ["fixed-window", "sliding-window", "sliding-counter", "token-bucket", "leaky-meter", "throttle"] {
        done(&submitter, &["limit", limiter, &format!("limit:{limiter}"), "5/60s"]);
    }
    let mut client = house.client("submitter");
    for (function, command) in [("drip_push", "FCALL"), ("drip_peek", "FCALL_RO")] {
        let jobs = if command == "FCALL" { &["x"][..] } else { &[] };
        let reply: Vec<i64> = redis::cmd(command)
            .arg(function)
            .arg(1)
            .arg(queue("sms:acme:3"))
            .arg(jobs)
            .query(&mut client)
            .expect("five numbers");
        assert_eq!(reply.len(), 5);
    }

    // A worker, ready-made and with any client: done, failed, turned away, renewed.
    let worker = house.shell("worker");
    let script = "case $DRIPD_BUCKET in fails) exit 1;; sms:acme:1) exit 75;; *) cat;; esac";
    let mut work = Work::start(&worker, &["--concurrency", "4", "--exec", script]);
    eventually("what fails is dead", || length("dead") == 2);
    eventually("the others are done, and what was turned away comes again", || {
        work.log().matches("throttled").count() >= 1
    });
    work.signal("TERM");
    assert!(work.child.wait().expect("it ends").success(), "{}", work.log());
    foreign_worker(&house, &mut producer);

    look_as(&house, "observer");
    operate(&house);
    over_http(&door);
    look_as(&house, "operator");
    house.all_was_allowed();
}

/// What `XREADGROUP` replies: streams, their entries, and the fields of these.
type Taken = Option<Vec<(String, Vec<(String, HashMap<String, String>)>)>>;

/// What a worker in any language calls.
fn foreign_worker(house: &House, producer: &mut Connection) {
    let mut worker = house.client("worker");
    let (ready, queue) = (house.key("ready"), house.key("queue:mine"));
    redis::cmd("LPUSH").arg(&queue).arg(&["a", "b", "c"]).exec(producer).expect("LPUSH");
    let mut take = || loop {
        let words = ["GROUP", "workers", "me", "COUNT", "1", "BLOCK", "20000", "STREAMS", &ready, ">"];
        let taken: Taken = redis::cmd("XREADGROUP").arg(&words).query(&mut worker).expect("XREADGROUP");
        let (entry, fields) = taken.expect("a job within 20 s").remove(0).1.remove(0);
        if fields["bucket"] == "mine" {
            return entry;
        }
        let _: i64 =
            redis::cmd("FCALL").arg("drip_ack").arg(1).arg(&ready).arg(entry).query(&mut worker).expect("drip_ack");
    };
    let (first, second, third) = (take(), take(), take());
    let call = |worker: &mut Connection, words: &[&str]| -> Value {
        redis::cmd(words[0]).arg(&words[1..]).query(worker).unwrap_or_else(|why| panic!("{words:?}: {why}"))
    };
    let claimed = call(&mut worker, &["XCLAIM", &ready, "workers", "me", "0", &first, "JUSTID"]);
    assert_eq!(claimed, Value::Array(vec![Value::BulkString(first.clone().into_bytes())]));
    assert_eq!(call(&mut worker, &["XACK", &ready, "workers", &first]), Value::Int(1));
    assert_eq!(call(&mut worker, &["FCALL", "drip_ack", "1", &ready, &second]), Value::Int(1));
    assert_eq!(
        call(&mut worker, &["FCALL", "drip_fail", "1", &ready, &third, "THROTTLED", "RETRY_AFTER", "1"]),
        Value::Int(1)
    );
    call(&mut worker, &["FCALL", "drip_slow", "1", &queue, "PAUSE", "5"]);
    call(&mut worker, &["FCALL", "drip_slow", "1", &queue, "CLEAR"]);
    call(&mut worker, &["FCALL", "drip_told", "1", &queue, "100", "5", "LIMIT", "100"]);
    call(&mut worker, &["FCALL", "drip_told", "1", &queue, "CLEAR"]);
}

/// Everything that only reads.
fn look_as(house: &House, role: &str) {
    let shell = house.shell(role);
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["status", "slow"],
        &["status", "gated"],
        &["explain", "slow"],
        &["explain", "sms:acme:1"],
        &["explain", "sms", "--budget"],
        &["what-if", "slow", "rate=5/s"],
        &["what-if", "sms:acme:1", "--push", "5"],
        &["settings"],
        &["settings", "--toml"],
        &["dead", "list"],
        &["dead", "list", "--bucket", "fail*", "--json"],
        &["check"],
    ] {
        done(&shell, args);
    }
    let mut top = shell.command(&["top"]);
    top.env("TERM", "xterm-256color");
    let terminal = Terminal::start(top, 100, 24);
    eventually("`top` has its figures", || terminal.text().contains("1 daemon"));
    assert!(!terminal.text().contains("not allow"), "{}", terminal.text());
    // What it asks for a bucket that is chosen, and what the dashboard asks.
    let mut client = house.client(role);
    for (function, key, args) in [
        ("drip__rows", "policy", &["", "slow", "sms:acme:1"][..]),
        ("drip__budget_rows", "policy", &["", "sms"]),
        ("drip__top", "policy", &["", "1", "depth"]),
        ("drip__figures", "policy", &[""]),
        ("drip__front", "queue:slow", &["", "10", "100"]),
        ("drip__drips", "queue:slow", &[""]),
        ("drip__daemons", "daemons", &[""]),
    ] {
        let call =
            redis::cmd("FCALL_RO").arg(function).arg(1).arg(house.key(key)).arg(args).query::<Value>(&mut client);
        call.unwrap_or_else(|why| panic!("{role} {function}: {why}"));
    }
}

/// Everything that an operator changes.
fn operate(house: &House) {
    let shell = house.shell("operator");
    for args in [
        &["set", "slow", "rate=2/h", "capacity=2", "--for", "10m", "--reason", "why"][..],
        &["set", "slow", "route=other"],
        &["unset", "slow", "route"],
        &["set", "sms", "rate=2000/s", "--budget"],
        &["unset", "sms", "--budget"],
        &["pause", "slow"],
        &["resume", "slow"],
        &["close", "slow"],
        &["open", "slow"],
        &["slow", "sms:acme:1", "5s"],
        &["slow", "sms:acme:1", "clear"],
        &["slow", "sms", "1s", "--budget"],
        &["slow", "sms", "clear", "--budget"],
        &["told", "sms:acme:1", "0", "5s", "--limit", "100"],
        &["told", "sms", "9", "1s", "--budget"],
        &["told", "sms", "clear", "--budget"],
        &["told", "sms:acme:1", "clear"],
        &["pause", "sms", "--budget"],
        &["resume", "sms", "--budget"],
        &["dead", "retry", "--limit", "1", "--yes"],
        &["dead", "drop", "--yes"],
        &["purge", "slow", "--retries", "--yes"],
        &["purge", "fails", "--retries", "--yes"],
    ] {
        done(&shell, args);
    }
    // Globs: a change that spreads must be over before the next one.
    for args in [
        &["set", "sm*", "capacity=3"][..],
        &["close", "slo*"],
        &["open", "slo*"],
        &["pause", "sms:*"],
        &["resume", "sms:*"],
        &["unset", "sm*"],
    ] {
        eventually("no other change spreads", || {
            let (code, out, err) = shell.run(args);
            assert!(code == 0 || err.contains("spread"), "{args:?}: {out}{err}");
            code == 0
        });
    }
}

/// What goes over HTTP is done as the daemon.
fn over_http(door: &Door) {
    let ask = |request: &str, words| door.operate(request, &words);
    assert_eq!(ask("POST /v1/buckets/web/pause", json!({})).status, 200);
    assert_eq!(ask("PATCH /v1/buckets/web/settings", json!({ "rate": "5/s" })).status, 200);
    assert_eq!(ask("POST /v1/buckets/web/jobs", json!("job")).status, 202);
    assert_eq!(ask("POST /v1/buckets/web/purge", json!(null)).status, 200);
    assert_eq!(ask("POST /v1/limit/fixed-window/limit:web", json!({ "rate": "5/s" })).status, 200);
    for target in [
        "/v1/status",
        "/v1/buckets",
        "/v1/buckets/slow",
        "/v1/settings",
        "/v1/dead",
        "/metrics",
        "/metrics/buckets?match=*",
    ] {
        assert_eq!(ask(&format!("GET {target}"), json!(null)).status, 200, "{target}");
    }
}

#[test]
fn a_database_in_the_url_is_part_of_the_rights() {
    let house = House::build("drip");
    for role in ROLES {
        house.let_in(role, "/3");
    }
    let _daemon = Daemon::start(house.shell_at("daemon", "/3").home());
    done(&house.shell_at("submitter", "/3"), &["push", "a", "x"]);
    let mut producer = house.client("producer");
    let mut select = |database: &str| redis::cmd("SELECT").arg(database).exec(&mut producer);
    select("3").expect("the database of the URL");
    assert_eq!(select("4").expect_err("another one").code(), Some("NOPERM"));
    let (code, _, err) = house.shell_at("observer", "/4").run(&["status"]);
    assert!(code == 69 && err.contains("it refuses database 4 (") && err.contains("`dripd acl` prints that"), "{err}");
}

#[test]
fn what_is_printed_is_also_a_line_of_a_file_of_users() {
    let home = tempfile::tempdir().expect("a directory");
    let lines: Vec<String> = ROLES
        .iter()
        .map(|role| {
            let output = dripd().args(["acl", role, "--user", &format!("my-{role}")]).current_dir(home.path()).output();
            let line = String::from_utf8(output.expect("it runs").stdout).expect("text");
            line.replace("ACL SETUSER", "user").replace(">PASSWORD", ">secret")
        })
        .collect();
    let file = home.path().join("users.acl");
    std::fs::write(&file, format!("user default on nopass ~* &* +@all\n{}", lines.concat())).expect("written");
    let server = Server::start(&["--aclfile", file.to_str().expect("a path")]);
    let names: Vec<String> = redis::cmd("ACL").arg("USERS").query(&mut server.connect()).expect("ACL USERS");
    for role in ROLES {
        assert!(names.contains(&format!("my-{role}")), "{role} of {names:?}");
    }
}

#[test]
fn the_example_of_the_help_makes_a_user_whose_password_stands_in_no_process_list() {
    let cli = which_cli();
    let house = House::build("drip");
    let shell = house.shell("operator");
    shell.file("pw", "s3cret/&\n");
    let help = done(&shell, &["acl", "--help"]);
    let example = help.split_once("hash=").expect("an example").1.split("\n\n").next().expect("a paragraph");
    let example = format!("hash={example}");
    let dripd = env!("CARGO_BIN_EXE_dripd");
    let script = example
        .replace("dripd acl", &format!("'{dripd}' acl"))
        .replace("redis-cli", &format!("{cli} -p {}", house.server.port));
    let output = Command::new("sh").args(["-c", &script]).current_dir(shell.home()).output().expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n", "{script}");
    let mut admin = house.server.connect();
    redis::cmd("AUTH").arg("billing").arg("s3cret/&").exec(&mut admin).expect("it logs in");
}

/// The command line of a server that is installed.
fn which_cli() -> &'static str {
    let runs = |name: &str| Command::new(name).arg("--version").output().is_ok();
    ["redis-cli", "valkey-cli"]
        .into_iter()
        .find(|name| runs(name))
        .expect("redis-cli or valkey-cli on the PATH: apt-get install redis-tools")
}
