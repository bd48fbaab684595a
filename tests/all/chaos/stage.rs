//! The stage of a history: a Redis that can be killed and comes back with its data, two daemons, producers and workers that never give up, and
//! what they note.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Connection, RedisResult, Value};

use super::history::{Answer, Entry, Held, History, Node, Push, UNNOTICED_US};
use crate::rig::{Daemon, eventually, free_port, server_program, without_door};

/// The buckets and what is promised of each: one that is rarely full, one that is full at once, two that share a budget, and one with slots.
const BUCKETS: [&str; 5] = ["fast", "slow", "a:1", "a:2", "slots"];
const CAPACITIES: [i64; 5] = [200, 30, 40, 40, 100];
const TOML: &str = "[defaults]\nrate = '300/s'\ncapacity = 200\nlease = '2s'\nattempts = 50\nbackoff = { initial = '50ms', max = '200ms' }\n\
    [[budget]]\nmatch = 'a'\nrate = '60/s'\n\
    [[bucket]]\nmatch = 'slow'\nrate = '20/s'\ncapacity = 30\n\
    [[bucket]]\nmatch = 'a:*'\nrate = '50/s'\ncapacity = 40\nwithin = 'a'\n\
    [[bucket]]\nmatch = 'slots'\nrate = '200/s'\ncapacity = 100\nconcurrency = 3\n";
const CATCH_UP_US: u64 = 20_000;
/// Inside a budget a bucket makes up for the longest of 20 ms, its own interval and two of its budget.
const CATCH_UP_BELOW_US: u64 = 2 * 1_000_000 / 60 + 1;

const PRODUCERS: usize = 4;
const WORKERS: usize = 3;

/// How long one of them waits before it connects again.
const PAUSE: Duration = Duration::from_millis(20);

pub fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()).expect("in range")
}

/// A Redis at one port and with one directory, however often it is killed. It ends with the value, and with the test program.
pub struct Redis {
    home: tempfile::TempDir,
    pub port: u16,
    shell: Option<Child>,
}

impl Redis {
    fn new() -> Self {
        let mut redis = Self { home: tempfile::tempdir().expect("a directory"), port: free_port(), shell: None };
        redis.start();
        redis
    }

    /// Start it. What it has answered is on the disk, so that a kill loses nothing.
    pub fn start(&mut self) {
        let script = r#"trap : INT TERM HUP; "$@" & pid=$!; read -r _; kill -9 $pid; wait"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(server_program()).arg("--dir").arg(self.home.path());
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--logfile", "redis.log"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes"]);
        command.args(["--busy-reply-threshold", "200", "--maxmemory-policy", "noeviction"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.shell = Some(child.expect("sh runs"));
        eventually("redis answers", || self.connect().is_ok());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }

    pub fn connect(&self) -> RedisResult<Connection> {
        connect(self.port)
    }

    pub fn pid(&self) -> u32 {
        let info: String =
            redis::cmd("INFO").arg("server").query(&mut self.connect().expect("it answers")).expect("INFO");
        info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a pid").trim().parse().expect("a number")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn connect(port: u16) -> RedisResult<Connection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(3)))?;
    redis::cmd("PING").query::<String>(&mut { connection }).and_then(|_| {
        let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(3)))?;
        Ok(connection)
    })
}

/// What all of them share.
struct Shared {
    port: u16,
    pushing: AtomicBool,
    working: AtomicBool,
    next_job: AtomicU64,
    /// Workers that are to die with what they have in hand.
    deaths: AtomicUsize,
    pushes: Mutex<Vec<Push>>,
    entries: Mutex<Vec<Entry>>,
    held: Mutex<Vec<Held>>,
    stalls: Mutex<Vec<(u64, u64)>>,
}

pub struct Stage {
    pub redis: Redis,
    pub daemons: Vec<Daemon>,
    home: tempfile::TempDir,
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    watch: Option<JoinHandle<()>>,
    /// When all that was stored was lost.
    pub lost_all_us: Vec<u64>,
}

impl Stage {
    /// Everybody is there, and the load is on.
    pub fn open() -> Self {
        let redis = Redis::new();
        let home = tempfile::tempdir().expect("a directory");
        let toml = without_door(&format!("[redis]\nurl = 'redis://127.0.0.1:{}'\n{TOML}", redis.port));
        std::fs::write(home.path().join("config.toml"), toml).expect("written");
        let daemons = (0..2).map(|_| Daemon::start(home.path())).collect();
        let shared = Arc::new(Shared {
            port: redis.port,
            pushing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            next_job: AtomicU64::new(0),
            deaths: AtomicUsize::new(0),
            pushes: Mutex::default(),
            entries: Mutex::default(),
            held: Mutex::default(),
            stalls: Mutex::default(),
        });
        let producers = (0..PRODUCERS).map(|n| start(&shared, move |shared| produce(shared, n))).collect();
        let workers = (0..WORKERS).map(|n| start(&shared, move |shared| work(shared, n))).collect();
        let watch = Some(start(&shared, watch));
        Self { redis, daemons, home, shared, producers, workers, watch, lost_all_us: Vec::new() }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// How many jobs have been in a worker's hands.
    pub fn delivered(&self) -> usize {
        self.shared.entries.lock().expect("no panic").len()
    }

    /// One of the workers dies with what it has in hand, as soon as it has something.
    pub fn kill_a_worker(&self) {
        self.shared.deaths.fetch_add(1, Ordering::Relaxed);
    }

    /// End the load, wait until all that waits has left and is finished, and reply what happened.
    pub fn close(mut self) -> History {
        self.shared.pushing.store(false, Ordering::Relaxed);
        self.producers.drain(..).for_each(|producer| producer.join().expect("no panic"));
        let since = Instant::now();
        while !self.is_quiet() {
            assert!(since.elapsed() < Duration::from_secs(90), "something is stuck: {}", self.daemons[0].log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.shared.working.store(false, Ordering::Relaxed);
        self.workers.drain(..).for_each(|worker| worker.join().expect("no panic"));
        self.watch.take().expect("it runs").join().expect("no panic");
        let pushes = std::mem::take(&mut *self.shared.pushes.lock().expect("no panic"));
        let stalls = std::mem::take(&mut *self.shared.stalls.lock().expect("no panic"));
        let mut entries = std::mem::take(&mut *self.shared.entries.lock().expect("no panic"));
        entries.sort_by_key(|entry| entry.at);
        let held = std::mem::take(&mut *self.shared.held.lock().expect("no panic"));
        History { nodes: nodes(), pushes, entries, held, stalls, lost_all_us: self.lost_all_us.clone() }
    }

    /// Nothing waits, nothing is tried again, nothing is in anybody's hands.
    fn is_quiet(&self) -> bool {
        let Ok(mut redis) = self.redis.connect() else { return false };
        let mut number = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<u64>(&mut redis).unwrap_or(1);
        let queues: u64 = BUCKETS.iter().map(|bucket| number(&["LLEN", &format!("drip:queue:{bucket}")])).sum();
        let retries: u64 = BUCKETS.iter().map(|bucket| number(&["ZCARD", &format!("drip:retry:{bucket}")])).sum();
        let pending =
            redis::cmd("XINFO").arg("GROUPS").arg("drip:ready").query::<Vec<HashMap<String, Value>>>(&mut redis);
        let is_zero = |of: &HashMap<String, Value>, name: &str| matches!(of.get(name), Some(Value::Int(0)));
        let is_taken = pending.is_ok_and(|groups| groups.iter().all(|of| is_zero(of, "pending") && is_zero(of, "lag")));
        queues + retries == 0 && is_taken
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shared.pushing.store(false, Ordering::Relaxed);
        self.shared.working.store(false, Ordering::Relaxed);
    }
}

fn nodes() -> Vec<Node> {
    let node = |name: &str, count, parent: Option<usize>, slots| Node {
        name: name.to_owned(),
        count,
        period_us: 1_000_000,
        catch_up_us: if parent.is_some() { CATCH_UP_BELOW_US } else { CATCH_UP_US },
        slots,
        parent,
    };
    vec![
        node("fast", 300, None, None),
        node("slow", 20, None, None),
        node("a:1", 50, Some(5), None),
        node("a:2", 50, Some(5), None),
        node("slots", 200, None, Some(3)),
        node("a", 60, None, None),
    ]
}

fn start(shared: &Arc<Shared>, run: impl FnOnce(&Shared) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

/// A connection that is made anew whenever it was lost.
struct Line {
    port: u16,
    connection: Option<Connection>,
}

impl Line {
    fn query<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        if self.connection.is_none() {
            self.connection = connect(self.port).ok();
        }
        let Some(connection) = self.connection.as_mut() else {
            std::thread::sleep(PAUSE);
            return Err((redis::ErrorKind::Io, "no connection").into());
        };
        let answer = command.query(connection);
        // What the server refused leaves the connection as it was; anything else may have left half an answer in it.
        if let Err(why) = &answer
            && (why.is_io_error() || why.is_timeout() || why.code().is_none())
        {
            self.connection = None;
        }
        answer
    }
}

/// Push one job after the other into any of the buckets, in turns by a plain push and by the function.
fn produce(shared: &Shared, n: usize) {
    let mut line = Line { port: shared.port, connection: None };
    let mut turn = n;
    while shared.pushing.load(Ordering::Relaxed) {
        turn += 1;
        let bucket = usize::try_from(crate::rig::rand_u64() % 5).expect("small");
        let job = format!("j{}", shared.next_job.fetch_add(1, Ordering::Relaxed));
        let key = format!("drip:queue:{}", BUCKETS[bucket]);
        let sent_us = now_us();
        let answer = if turn.is_multiple_of(2) {
            let said: RedisResult<i64> = line.query(redis::cmd("LPUSH").arg(&key).arg(&job));
            said.ok().map(|length| length <= CAPACITIES[bucket])
        } else {
            let said: RedisResult<Vec<i64>> =
                line.query(redis::cmd("FCALL").arg("drip_push").arg(1).arg(&key).arg(&job));
            said.ok().map(|said| said[0] == 1)
        };
        let answer = match answer {
            Some(true) => Answer::Accepted,
            Some(false) => Answer::Rejected,
            None => Answer::Unknown,
        };
        shared.pushes.lock().expect("no panic").push(Push { job, bucket, sent_us, answered_us: now_us(), answer });
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Ask the server for its time again and again: between two answers that lie far apart it may have stood still.
fn watch(shared: &Shared) {
    let mut line = Line { port: shared.port, connection: None };
    let mut last = now_us();
    while shared.working.load(Ordering::Relaxed) {
        let _: RedisResult<(u64, u64)> = line.query(&redis::cmd("TIME"));
        let now = now_us();
        if now > last + UNNOTICED_US {
            shared.stalls.lock().expect("no panic").push((last, now));
        }
        last = now;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a read of a stream is answered.
type Read = Option<Vec<(String, Vec<(String, HashMap<String, String>)>)>>;

/// Take jobs, hold each for a moment, and finish it in one of the ways that there are. A tenth fails.
fn work(shared: &Shared, n: usize) {
    let mut line = Line { port: shared.port, connection: None };
    let (mut name, mut turn) = (format!("w{n}"), 0_u64);
    while shared.working.load(Ordering::Relaxed) {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg(&name).arg("COUNT").arg(4).arg("BLOCK").arg(100);
        read.arg("STREAMS").arg("drip:ready").arg(">");
        let Ok(reply) = line.query::<Read>(&read) else {
            std::thread::sleep(PAUSE); // there may be no group yet
            continue;
        };
        let entries: Vec<_> = reply.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
        let at_of: Vec<u64> = entries.iter().map(|(id, fields)| note(shared, id, fields)).collect();
        let take = |deaths: usize| deaths.checked_sub(1);
        if !entries.is_empty() && shared.deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            let of = at_of.into_iter().map(|at| Held { at, given_us: None, acked_us: None });
            shared.held.lock().expect("no panic").extend(of);
            name.push('x'); // another one takes its place
            line.connection = None;
            continue;
        }
        for ((id, _), at) in entries.iter().zip(at_of) {
            turn += 1;
            std::thread::sleep(Duration::from_micros(500));
            let given_us = now_us();
            let (is_ack, command) = match turn % 10 {
                0 => (false, fcall("drip_fail", id)),
                n if n % 2 == 0 => (true, fcall("drip_ack", id)),
                _ => (true, redis::cmd("XACK").arg("drip:ready").arg("workers").arg(id).clone()),
            };
            let said: RedisResult<i64> = line.query(&command);
            let acked_us = said.ok().filter(|said| is_ack && *said == 1).map(|_| now_us());
            shared.held.lock().expect("no panic").push(Held { at, given_us: Some(given_us), acked_us });
        }
    }
}

fn fcall(name: &str, id: &str) -> redis::Cmd {
    redis::cmd("FCALL").arg(name).arg(1).arg("drip:ready").arg(id).clone()
}

/// Note an entry. Replies its number.
fn note(shared: &Shared, id: &str, fields: &HashMap<String, String>) -> u64 {
    let (ms, seq) = id.split_once('-').expect("an id");
    let (ms, seq): (u64, u64) = (ms.parse().expect("a number"), seq.parse().expect("a number"));
    let bucket = BUCKETS.iter().position(|bucket| *bucket == fields["bucket"]).expect("one of them");
    let attempt = fields["attempt"].parse().expect("a number");
    let at = (ms << 20) + seq;
    let entry = Entry { at, left_us: ms * 1_000, job: fields["job"].clone(), bucket, attempt };
    shared.entries.lock().expect("no panic").push(entry);
    at
}
