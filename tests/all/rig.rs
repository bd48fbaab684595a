//! The rig: a real Redis for the whole run, and a prefix of its own for each case.
//!
//! To run the tests on another server than the first one on the PATH, name it:
//! `DRIPD_TEST_SERVER=/opt/valkey/bin/valkey-server cargo test`. The daemons under test take it as their built-in Redis too.
//! The tests pass on Redis 7.0 and newer and are meant to pass on Valkey 8 and newer. On Valkey 8.0.1 those of the functions, of partitions
//! and of clusters were run.
//!
//! A test asserts order, counts, exact arithmetic on the clock that it passes in, and lower bounds of time. Where it must
//! guard a speed it compares with a floor measured in the same second, as a ratio with room, and repeats before it fails.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dripd::model::ready_window::ReadyWindow;
use redis::{Connection, FromRedisValue, RedisError, ToRedisArgs, Value};

/// A moment to count from in tests that hold the clock: some day in 2025, in microseconds.
pub const T0: u64 = 1_750_000_000_000_000;
pub const MS: u64 = 1_000;
pub const S: u64 = 1_000_000;

/// A configuration for a daemon in a test. Unless it says something else, it opens no HTTP server, for the default port is one for all daemons of a
/// machine, and its ready window is off, for most claims are about what leaves buckets, with nobody who takes it.
pub fn test_config(toml: &str) -> String {
    let mut text = toml.to_owned();
    if !text.contains("ready_window") {
        let off = "ready_window = 'off'\n";
        text = match text.split_once("[limits]\n") {
            Some((before, after)) => format!("{before}[limits]\n{off}{after}"),
            None => format!("{text}\n[limits]\n{off}"),
        };
    }
    without_door(&text)
}

/// A configuration as users have it, but that it opens no HTTP server unless it says where.
pub fn without_door(toml: &str) -> String {
    if toml.contains("[http]") { toml.to_owned() } else { format!("{toml}\n[http]\nlisten = ''\n") }
}

/// Send a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().expect("kill runs");
    assert!(done.success(), "kill -{name} {pid}");
}

/// A port that nobody listens on now, and never the same one twice soon. It is below those that the system hands out by itself: a connection
/// of somebody else cannot take it before the server that it is for does, and above 10080, which browsers refuse. The first one differs from run
/// to run.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_100;
    const COUNT: u16 = 19_900;
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = || FIRST + (next.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT)) as u16;
    std::iter::repeat_with(port).take(usize::from(COUNT)).find(is_free).expect("a free port")
}

/// The server program of this run: what `$DRIPD_TEST_SERVER` names, else the first `valkey-server` or `redis-server` of 7.0 or
/// newer on the PATH, as the product finds it.
pub fn server_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(named) = std::env::var_os("DRIPD_TEST_SERVER") {
            return PathBuf::from(named);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let find = |name: &str| {
            let programs = std::env::split_paths(&path).map(|dir| dir.join(name)).filter(|program| program.is_file());
            programs.into_iter().find(|program| major(program) >= 7)
        };
        ["valkey-server", "redis-server"]
            .into_iter()
            .find_map(find)
            .expect("a server of 7.0 or newer: run `make setup`")
    })
}

/// A PATH on which the product finds [`server_program`] first.
fn path_to_server() -> &'static OsStr {
    static PATH: OnceLock<OsString> = OnceLock::new();
    PATH.get_or_init(|| {
        let name = server_program().display().to_string().replace('/', "_");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).expect("a directory");
        let link = dir.join("valkey-server"); // the name that is looked for first
        if !link.exists() {
            std::os::unix::fs::symlink(server_program(), link).expect("a link");
        }
        let rest = std::env::var_os("PATH").unwrap_or_default();
        std::env::join_paths(std::iter::once(dir).chain(std::env::split_paths(&rest))).expect("a PATH")
    })
}

/// The major version of a server program; 0 when it is none.
fn major(program: &Path) -> u32 {
    let Ok(output) = Command::new(program).arg("--version").output() else { return 0 };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A server that ends with the value, and also when the test program ends without dropping it, as it does with a static: a
/// shell between the two waits for the end of its standard input, kills the server and removes its directory.
pub struct Server {
    shell: Child,
    pub port: u16,
    _home: tempfile::TempDir,
}

impl Server {
    pub fn start(options: &[&str]) -> Self {
        let (home, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let (port_is, dir) = (port.to_string(), home.path().to_str().expect("text").to_owned());
        let own = ["--port", &port_is, "--bind", "127.0.0.1", "--dir", &dir];
        let more = ["--save", "", "--logfile", "redis.log", "--maxmemory-policy", "noeviction"];
        Self::launch(home, port, &[&own[..], &more, options].concat())
    }

    /// A sentinel with these lines in its configuration, which it writes to.
    pub fn sentinel(lines: &str) -> Self {
        let (home, port) = (tempfile::tempdir().expect("a directory"), free_port());
        let (file, dir) = (home.path().join("sentinel.conf"), home.path().display());
        let own = format!("port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile sentinel.log\n");
        std::fs::write(&file, own + lines).expect("written");
        Self::launch(home, port, &[file.to_str().expect("text"), "--sentinel"])
    }

    fn launch(home: tempfile::TempDir, port: u16, args: &[&str]) -> Self {
        let script =
            r#"trap : INT TERM HUP; home=$1; shift; "$@" & pid=$!; read -r _; kill -9 $pid; wait; rm -rf "$home""#;
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(home.path())
            .arg(server_program())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh runs");
        let server = Self { shell, port, _home: home };
        eventually("redis answers", || server.try_connect(Duration::from_secs(2)).is_some());
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        let info: String = redis::cmd("INFO").arg("server").query(&mut self.connect()).expect("INFO");
        info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a pid").trim().parse().expect("a number")
    }

    /// A directory with a configuration for this server.
    pub fn home(&self, toml: &str) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("a directory");
        let text = format!("[redis]\nurl = '{}'\n{toml}", self.url());
        std::fs::write(home.path().join("config.toml"), test_config(&text)).expect("written");
        home
    }

    fn try_connect(&self, within: Duration) -> Option<Connection> {
        let client = redis::Client::open(self.url()).expect("a good url");
        client.get_connection_with_timeout(within).ok()
    }

    pub fn connect(&self) -> Connection {
        let mut made = None; // two cores may be very busy, and a replica that takes a copy refuses whoever comes
        eventually("redis answers", || {
            made = self.try_connect(Duration::from_secs(20));
            made.is_some()
        });
        made.expect("it answered")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The server of this run.
pub fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Server::start(&["--appendonly", "yes", "--appendfsync", "no"]);
        load_source(&mut server.connect(), dripd::store::library::source());
        server
    })
}

/// Load the library into a server of one's own. What the functions remember between calls is forgotten, and the tests that share
/// `server()` rely on it.
pub fn load_library(connection: &mut Connection) {
    let (_, port): (String, u16) = redis::cmd("CONFIG").arg("GET").arg("port").query(connection).expect("its port");
    assert_ne!(port, server().port, "the server of all tests");
    load_source(connection, dripd::store::library::source());
    crate::twin::reload();
}

/// A line of the library, and what is loaded in its place: `mutants` breaks a rule so.
pub const LINE: &str = "DRIPD_TEST_LINE";
pub const BROKEN: &str = "DRIPD_TEST_BROKEN";

/// Load a library.
pub fn load_source(connection: &mut Connection, source: &str) {
    let broken = match (std::env::var(LINE), std::env::var(BROKEN)) {
        (Ok(line), Ok(broken)) => source.replace(&line, &broken),
        _ => source.to_owned(),
    };
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg("REPLACE").arg(broken);
    load.query::<String>(connection).expect("the library loads");
}

/// Wait until something is so; for things that happen in another process.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        // Long enough for a machine that does much else; only what never comes is waited for in vain.
        assert!(since.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What is promised of time holds in one of three systems: on a machine that is busy with other things it may take longer once.
#[track_caller]
pub fn in_one_of_three(system: impl Fn() -> Result<(), String>) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        match system() {
            Ok(()) => return,
            Err(why) => seen.push(why),
        }
    }
    panic!("{}", seen.join("\n"));
}

/// How late something was, where that is too late.
pub fn in_time(what: &str, late: Duration, most: Duration) -> Result<(), String> {
    if late < most { Ok(()) } else { Err(format!("{what}: {late:?}")) }
}

/// The tag of a partition, where the functions are tried with one: `$DRIPD_TEST_PARTITION` holds its number.
pub fn partition() -> Option<&'static str> {
    static TAG: OnceLock<Option<String>> = OnceLock::new();
    TAG.get_or_init(|| std::env::var("DRIPD_TEST_PARTITION").ok().map(|number| format!("{{{number}}}"))).as_deref()
}

/// A prefix of its own on the shared server.
pub struct Case {
    pub redis: Connection,
    pub prefix: String,
}

/// Entries as redis replies them.
type Entries = Vec<(String, Vec<(String, Vec<u8>)>)>;

/// What a drain replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    pub wait_us: i64,
    pub dispatched: i64,
    pub rejected: i64,
}

/// What a submit replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Accepted, depth, capacity, `retry_after_ms`, `eta_ms`.
    pub five: [i64; 5],
    pub verdict: String,
    pub id: String,
    pub expected_ms: i64,
    pub by: String,
}

/// An entry of a stream: its id and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub fields: HashMap<String, Vec<u8>>,
}

impl Entry {
    pub fn text(&self, field: &str) -> String {
        String::from_utf8_lossy(self.fields.get(field).unwrap_or_else(|| panic!("no {field} in {self:?}"))).into_owned()
    }

    pub fn number(&self, field: &str) -> u64 {
        self.text(field).parse().expect("a number")
    }
}

impl Case {
    /// A case under the built-in defaults.
    pub fn new() -> Self {
        Self::with("")
    }

    /// A case without a record: no daemon ever ran.
    pub fn bare() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let prefix = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { redis: crate::twin::connect().unwrap_or_else(|| server().connect()), prefix }
    }

    /// A case under a configuration in the words of `config.toml`.
    pub fn with(toml: &str) -> Self {
        let mut case = Self::bare();
        assert_eq!(case.configure(toml), 1, "stored");
        case
    }

    /// The same on a server of its own.
    pub fn on(server: &Server, toml: &str) -> Self {
        let mut case = Self { redis: server.connect(), prefix: "t".to_owned() };
        load_library(&mut case.redis);
        assert_eq!(case.configure(toml), 1, "stored");
        case
    }

    /// Another space on the server of this one.
    pub fn beside(server: &Server, prefix: &str, toml: &str) -> Self {
        let mut case = Self { redis: server.connect(), prefix: prefix.to_owned() };
        assert_eq!(case.configure(toml), 1, "stored");
        case
    }

    /// Put a configuration into force, as a daemon would.
    pub fn configure(&mut self, toml: &str) -> i64 {
        self.configure_at("", toml)
    }

    /// The same at a time.
    pub fn configure_at(&mut self, now: &str, toml: &str) -> i64 {
        let json = record(toml);
        let id = format!("{:016x}", rand_u64());
        self.fcall("drip__policy", &["policy"], &[now, &id, &json, "replace"])
    }

    pub fn key(&self, name: &str) -> String {
        match partition() {
            None => format!("{}:{name}", self.prefix),
            Some(tag) => {
                let (word, rest) = name.split_once(':').map_or((name, None), |(word, rest)| (word, Some(rest)));
                let rest = rest.map(|rest| format!(":{rest}")).unwrap_or_default();
                format!("{}:{word}:{tag}{rest}", self.prefix)
            }
        }
    }

    pub fn queue(&self, bucket: &str) -> String {
        self.key(&format!("queue:{bucket}"))
    }

    #[track_caller]
    pub fn cmd<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        self.try_cmd(words).unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    pub fn try_cmd<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, RedisError> {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        self.send(&cmd)
    }

    fn send<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, RedisError> {
        let reply = command.query::<Value>(&mut self.redis);
        crate::twin::also(&mut self.redis, &self.prefix, command, reply.as_ref());
        redis::from_redis_value(reply?).map_err(RedisError::from)
    }

    /// Call a function; keys are given without their prefix.
    #[track_caller]
    pub fn fcall<T: FromRedisValue>(&mut self, name: &str, keys: &[&str], args: &[impl ToRedisArgs]) -> T {
        self.try_fcall(name, keys, args).unwrap_or_else(|why| panic!("{name} {keys:?}: {why}"))
    }

    pub fn try_fcall<T: FromRedisValue>(
        &mut self,
        name: &str,
        keys: &[&str],
        args: &[impl ToRedisArgs],
    ) -> Result<T, RedisError> {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
        let mut cmd = redis::cmd("FCALL");
        cmd.arg(name).arg(keys.len()).arg(keys).arg(args);
        let reply = crate::roles::call(&mut self.redis, &self.prefix, name, &cmd);
        crate::twin::also(&mut self.redis, &self.prefix, &cmd, reply.as_ref());
        redis::from_redis_value(reply?).map_err(RedisError::from)
    }

    /// The code of the error that a call is refused with.
    #[track_caller]
    pub fn refusal(&mut self, name: &str, keys: &[&str], args: &[impl ToRedisArgs]) -> String {
        match self.try_fcall::<Value>(name, keys, args) {
            Ok(reply) => panic!("{name} {keys:?} was not refused: {reply:?}"),
            Err(why) => why.code().unwrap_or("none").to_owned(),
        }
    }

    /// A plain push.
    pub fn lpush(&mut self, bucket: &str, jobs: &[&str]) -> i64 {
        let queue = self.queue(bucket);
        self.send(redis::cmd("LPUSH").arg(queue).arg(jobs)).expect("LPUSH")
    }

    /// An atomic push at a time.
    pub fn push_at(&mut self, now: u64, bucket: &str, jobs: &[&str]) -> [i64; 5] {
        let mut args = vec![now.to_string()];
        args.extend(jobs.iter().map(|job| (*job).to_owned()));
        let reply: Vec<i64> = self.fcall("drip__push", &[&format!("queue:{bucket}")], &args);
        reply.try_into().expect("five integers")
    }

    /// A submit at a time, with its options.
    pub fn submit_at(&mut self, now: u64, bucket: &str, job: &str, options: &[&str]) -> Submitted {
        let now = now.to_string();
        let args: Vec<&str> = [now.as_str(), job].into_iter().chain(options.iter().copied()).collect();
        let reply: (i64, i64, i64, i64, i64, String, String, i64, String) =
            self.fcall("drip__submit", &[&format!("queue:{bucket}")], &args);
        Submitted {
            five: [reply.0, reply.1, reply.2, reply.3, reply.4],
            verdict: reply.5,
            id: reply.6,
            expected_ms: reply.7,
            by: reply.8,
        }
    }

    /// What is known of a submitted job at a time: state, `eta_ms`, attempt.
    pub fn find_at(&mut self, now: u64, bucket: &str, id: &str) -> (String, i64, i64) {
        self.fcall("drip__find", &[&format!("queue:{bucket}")], &[now.to_string().as_str(), id])
    }

    pub fn cancel_at(&mut self, now: u64, bucket: &str, id: &str) -> i64 {
        self.fcall("drip__cancel", &[&format!("queue:{bucket}")], &[now.to_string().as_str(), id])
    }

    pub fn peek_at(&mut self, now: u64, bucket: &str) -> [i64; 5] {
        let reply: Vec<i64> = self.fcall("drip__peek", &[&format!("queue:{bucket}")], &[now.to_string()]);
        reply.try_into().expect("five integers")
    }

    /// One drain at a time.
    pub fn drain_at(&mut self, now: u64) -> Drained {
        let reply: Vec<Value> = self.fcall("drip__drain", &["schedule"], &[now.to_string()]);
        drained(&reply)
    }

    /// One wake of some buckets at a time.
    pub fn wake_at(&mut self, now: u64, buckets: &[&str]) -> Drained {
        self.wake_some_at(now, buckets).0
    }

    /// The same, and at how many of these queues the call has looked.
    pub fn wake_some_at(&mut self, now: u64, buckets: &[&str]) -> (Drained, usize) {
        let keys: Vec<_> = buckets.iter().map(|bucket| format!("queue:{bucket}")).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let reply: Vec<Value> = self.fcall("drip__wake", &keys, &[now.to_string()]);
        let looked: usize = redis::from_redis_value(reply[7].clone()).expect("a number");
        (drained(&reply), looked)
    }

    /// Drains at a time until nothing more is to be done then; all of it added up.
    pub fn settle_at(&mut self, now: u64) -> Drained {
        const MOST: usize = 10_000;
        let (mut sum, mut calls) = (self.drain_at(now), 1);
        while sum.wait_us == 0 {
            calls += 1;
            assert!(calls < MOST, "after {MOST} drains at {now} there is still something to be done");
            let more = self.drain_at(now);
            sum = Drained {
                wait_us: more.wait_us,
                dispatched: sum.dispatched + more.dispatched,
                rejected: sum.rejected + more.rejected,
            };
        }
        sum
    }

    pub fn stream(&mut self, name: &str) -> Vec<Entry> {
        let key = self.key(name);
        let reply: Entries = self.send(redis::cmd("XRANGE").arg(key).arg("-").arg("+")).expect("XRANGE");
        reply.into_iter().map(|(id, fields)| Entry { id, fields: fields.into_iter().collect() }).collect()
    }

    /// The jobs of a stream, in order.
    pub fn jobs(&mut self, stream: &str) -> Vec<String> {
        self.stream(stream).iter().map(|entry| entry.text("job")).collect()
    }

    /// The waiting jobs of a bucket, the next to leave first.
    pub fn waiting(&mut self, bucket: &str) -> Vec<String> {
        let queue = self.queue(bucket);
        let mut jobs: Vec<String> = self.cmd(&["LRANGE", &queue, "0", "-1"]);
        jobs.reverse();
        jobs
    }

    pub fn waiting_is_empty(&mut self, bucket: &str) -> bool {
        let queue = self.queue(bucket);
        self.cmd::<i64>(&["LLEN", &queue]) == 0
    }

    /// The buckets that are held for a route, in the order of their turns, with their dues.
    pub fn held(&mut self, route: &str) -> Vec<(String, u64)> {
        let key = self.key(&held_key(route));
        let members: Vec<String> = self.cmd(&["ZRANGE", &key, "0", "-1"]);
        members.iter().map(|member| held(member)).collect()
    }

    /// How the routes stand, as `drip__routes` tells it.
    pub fn routes(&mut self, now: u64) -> Vec<RouteNow> {
        let key = self.key("policy");
        let reply: (u64, Vec<FlatRoute>) = self.cmd(&["FCALL_RO", "drip__routes", "1", &key, &now.to_string()]);
        let route = |(route, (to, wrong, wanted), undelivered, age_us, _, limit, held, pending, _, taken, recently): FlatRoute| RouteNow {
            route,
            to,
            wrong,
            wanted,
            undelivered,
            age_us,
            limit,
            held,
            pending,
            taken,
            recently,
        };
        reply.1.into_iter().map(route).collect()
    }

    /// When a bucket may let its next job out: on the schedule, or at rest.
    pub fn due(&mut self, bucket: &str) -> Option<u64> {
        let (schedule, rest) = (self.key("schedule"), self.key("rest"));
        let mut score = |key: &str| self.cmd::<Option<f64>>(&["ZSCORE", key, bucket]);
        let (scheduled, resting) = (score(&schedule), score(&rest));
        assert!(scheduled.is_none() || resting.is_none(), "{bucket} stands in one place");
        scheduled.or(resting).map(|due| due as u64)
    }

    /// Deliver up to `most` entries of a ready stream to a worker.
    pub fn take(&mut self, stream: &str, most: usize) -> Vec<Entry> {
        let (key, most) = (self.key(stream), most.to_string());
        let words = ["XREADGROUP", "GROUP", "workers", "w", "COUNT", &most, "STREAMS", &key, ">"];
        let reply: Option<Vec<(String, Entries)>> = self.cmd(&words);
        let entries = reply.and_then(|mut streams| streams.pop()).map(|(_, entries)| entries).unwrap_or_default();
        entries.into_iter().map(|(id, fields)| Entry { id, fields: fields.into_iter().collect() }).collect()
    }

    /// Every key of this case.
    pub fn keys(&mut self) -> Vec<String> {
        let pattern = format!("{}:*", self.prefix);
        let keys: Vec<String> = self.cmd(&["KEYS", &pattern]);
        let head = self.prefix.len() + 1;
        let tag = partition().map(|tag| format!(":{tag}")).unwrap_or_default();
        let bare = |key: String| {
            assert!(key.contains(&tag), "{key} is of another partition");
            key[head..].replacen(&tag, "", 1)
        };
        let mut keys: Vec<String> = keys.into_iter().map(bare).collect();
        keys.sort();
        keys
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        crate::roles::check(&mut self.redis, &self.prefix);
    }
}

fn drained(reply: &[Value]) -> Drained {
    let n = |i: usize| match reply[i] {
        Value::Int(n) => n,
        ref other => panic!("{other:?} is no number"),
    };
    Drained { wait_us: n(0), dispatched: n(1), rejected: n(2) }
}

/// The key of the buckets that are held for a route, behind the prefix, and a member of it: a bucket and its due.
pub fn held_key(route: &str) -> String {
    format!("wait:{{{route}}}")
}

pub fn held(member: &str) -> (String, u64) {
    (member[16..].to_owned(), member[..16].parse().expect("a due"))
}

type FlatRoute = (String, (String, String, String), u64, u64, u64, u64, u64, u64, u64, u64, (u64, u64));

/// How a route stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteNow {
    pub route: String,
    pub to: String,
    pub wrong: String,
    pub wanted: String,
    pub undelivered: u64,
    pub age_us: u64,
    pub limit: u64,
    pub held: u64,
    pub pending: u64,
    pub taken: u64,
    /// So many jobs were taken of late, in so many microseconds.
    pub recently: (u64, u64),
}

/// A configuration as it is stored. Its ready window is off unless it says something else: most claims are about what leaves buckets, with nobody
/// who takes it.
pub fn record(toml: &str) -> String {
    let config = dripd::config::Config::parse(toml, None, &dripd::config::Environment::default());
    let mut record = config.unwrap_or_else(|why| panic!("{why}")).record;
    if !toml.contains("ready_window") {
        record.limits.ready_window = ReadyWindow::OFF;
    }
    record.to_json()
}

pub fn rand_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A `dripd` that was started and ends with the value.
pub struct Daemon {
    pub child: Child,
    pub log: PathBuf,
}

/// The built binary.
pub fn dripd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dripd"));
    if std::env::var_os("DRIPD_TEST_SERVER").is_some() {
        command.env("PATH", path_to_server());
    }
    for name in ["STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    dripd::config::without_variables(&mut command);
    command
}

impl Daemon {
    /// Start a daemon in a directory that holds its `config.toml`, and wait until it serves.
    pub fn start(dir: &Path) -> Self {
        let daemon = Self::spawn(dir);
        eventually("dripd serves", || daemon.log().contains("serving redis"));
        daemon
    }

    /// Start a daemon and do not wait.
    pub fn spawn(dir: &Path) -> Self {
        Self::spawn_with(dir, &[])
    }

    /// The same with more in its environment.
    pub fn spawn_with(dir: &Path, environment: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let log = dir.join(format!("dripd-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let file = std::fs::File::create(&log).expect("a log");
        let child = dripd()
            .arg("run")
            .current_dir(dir)
            .env("RUNTIME_DIRECTORY", dir.join("run"))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("dripd runs");
        Self { child, log }
    }

    pub fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(&self.log) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Wait for its end. Replies the exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Ask it to stop, and wait. Replies the exit code and how long it took.
    pub fn stop(&mut self) -> (Option<i32>, Duration) {
        let since = Instant::now();
        self.signal("TERM");
        let status = self.child.wait().expect("it ends");
        (status.code(), since.elapsed())
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}
