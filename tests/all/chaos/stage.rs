//! The stage of a history: a Redis that can be killed and comes back with its data, two daemons, and a cast of producers and workers. What a
//! fault needs besides is in its setting.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::Value;

use super::cast::{Shared, Way, produce, start, watch, work};
use super::clock::Clock;
use super::disk::Disk;
use super::failover::{Kept, Watched};
use super::history::{Entry, History, Node};
use super::proxy::Proxy;
use super::server::Redis;
use crate::rig::{Daemon, without_door};

/// The buckets and what is promised of each: one that is rarely full, one that is full at once, two that share a budget, and one with slots.
pub const BUCKETS: [&str; 5] = ["fast", "slow", "a:1", "a:2", "slots"];
pub const CAPACITIES: [i64; 5] = [200, 30, 40, 40, 100];
const TOML: &str = "[defaults]\nrate = '300/s'\ncapacity = 200\nlease = '2s'\nattempts = 50\nbackoff = { initial = '50ms', max = '200ms' }\n\
    [[budget]]\nmatch = 'a'\nrate = '60/s'\n\
    [[bucket]]\nmatch = 'slow'\nrate = '20/s'\ncapacity = 30\n\
    [[bucket]]\nmatch = 'a:*'\nrate = '50/s'\ncapacity = 40\nwithin = 'a'\n\
    [[bucket]]\nmatch = 'slots'\nrate = '200/s'\ncapacity = 100\nconcurrency = 3\n";
const LEASE_US: u64 = 2_000_000;
const CATCH_UP_US: u64 = 20_000;
/// Inside a budget a bucket makes up for the longest of 20 ms, its own interval and two of its budget.
const CATCH_UP_BELOW_US: u64 = 2 * 1_000_000 / 60 + 1;

const PRODUCERS: usize = 4;
const WORKERS: usize = 3;

/// What stands on a stage besides Redis, daemons, producers and workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    Plain,
    /// A disk for Redis's data that can be filled, and when a write is on it.
    Disk(&'static str),
    /// A clock for Redis that can be stepped.
    Clock,
    /// A proxy between the daemons and Redis.
    Proxy,
    /// The daemons log in with a password from a file.
    Password,
    /// A replica and three sentinels.
    Sentinels,
}

pub struct Stage {
    pub daemons: Vec<Daemon>,
    pub redis: Redis,
    pub disk: Option<Disk>,
    pub clock: Option<Clock>,
    pub proxy: Option<Proxy>,
    pub watched: Option<Watched>,
    home: tempfile::TempDir,
    shared: Arc<Shared>,
    kept: Arc<Kept>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
    /// When all that was stored was lost.
    pub lost_all_us: Vec<u64>,
    /// Between which moments the server's clock was stepped.
    pub steps_us: Vec<(u64, u64)>,
}

impl Stage {
    /// Everybody is there, and the load is on. The error says what this machine lacks.
    pub fn open(setting: Setting) -> Result<Self, String> {
        let home = tempfile::tempdir().expect("a directory");
        let mut redis = Redis::new();
        let (mut disk, mut clock) = (None, None);
        match setting {
            Setting::Disk(fsync) => {
                let mounted = Disk::mount(&redis.data())?;
                (redis.through, redis.fsync) = (mounted.through(), fsync);
                disk = Some(mounted);
            }
            Setting::Clock => {
                let (made, through) = Clock::new(home.path())?;
                redis.through = through;
                clock = Some(made);
            }
            _ => {}
        }
        redis.start();
        let proxy = (setting == Setting::Proxy).then(|| Proxy::to(redis.port));
        let watched = (setting == Setting::Sentinels).then(|| Watched::of(&redis));
        let port = proxy.as_ref().map_or(redis.port, |proxy| proxy.port);
        let mut reach = watched.as_ref().map_or(format!("url = 'redis://127.0.0.1:{port}'"), Watched::toml);
        if setting == Setting::Password {
            set_password(&redis, home.path(), "the first one");
            reach += "\nuser = 'drip'\npassword_file = 'password'";
        }
        let toml = without_door(&format!("[redis]\n{reach}\n{TOML}"));
        std::fs::write(home.path().join("config.toml"), toml).expect("written");
        let daemons = (0..2).map(|_| Daemon::start(home.path())).collect();
        let way = watched.as_ref().map_or(Way::Port(redis.port), Watched::way);
        let shared = Arc::new(Shared::new(way, setting == Setting::Clock));
        let kept = Arc::<Kept>::default();
        let mut watchers = vec![start(&shared, watch)];
        if watched.is_some() {
            watchers.push(super::failover::watch(&shared, &kept));
        }
        let producers = (0..PRODUCERS).map(|n| start(&shared, move |shared| produce(shared, n))).collect();
        let workers = (0..WORKERS).map(|n| start(&shared, move |shared| work(shared, n))).collect();
        Ok(Self {
            daemons,
            redis,
            disk,
            clock,
            proxy,
            watched,
            home,
            shared,
            kept,
            producers,
            workers,
            watchers,
            lost_all_us: Vec::new(),
            steps_us: Vec::new(),
        })
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

    /// Redis takes another password alone from now on, and the daemons find it where they found the last one.
    pub fn set_password(&self, password: &str) {
        set_password(&self.redis, self.home(), password);
    }

    /// End the load, wait until all that waits has left and is finished, and reply what happened.
    pub fn close(mut self) -> History {
        self.shared.pushing.store(false, Ordering::Relaxed);
        self.producers.drain(..).for_each(|producer| producer.join().expect("no panic"));
        let since = Instant::now();
        while let Some(rest) = self.rest() {
            assert!(since.elapsed() < Duration::from_secs(90), "something is stuck: {rest}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.shared.working.store(false, Ordering::Relaxed);
        self.workers.drain(..).for_each(|worker| worker.join().expect("no panic"));
        self.watchers.drain(..).for_each(|watcher| watcher.join().expect("no panic"));
        let pushes = std::mem::take(&mut *self.shared.pushes.lock().expect("no panic"));
        let stalls = std::mem::take(&mut *self.shared.stalls.lock().expect("no panic"));
        let mut entries = std::mem::take(&mut *self.shared.entries.lock().expect("no panic"));
        entries.sort_by_key(|entry| entry.at);
        if self.shared.ids_tell_no_time {
            tell_time(&mut entries, &self.shared.tops.lock().expect("no panic"));
        }
        let held = std::mem::take(&mut *self.shared.held.lock().expect("no panic"));
        History {
            nodes: nodes(),
            pushes,
            entries,
            held,
            lease_us: LEASE_US,
            stalls,
            lost_all_us: self.lost_all_us.clone(),
            steps_us: self.steps_us.clone(),
            kept_until_us: self.kept.until_us(&self.shared),
        }
    }

    /// What waits, is tried again or is in somebody's hands, if anything is.
    fn rest(&self) -> Option<String> {
        let Ok((mut redis, _)) = self.shared.way.connect() else { return Some("no server answers".to_owned()) };
        let mut number = |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<u64>(&mut redis).unwrap_or(1);
        let queues: u64 = BUCKETS.iter().map(|bucket| number(&["LLEN", &format!("drip:queue:{bucket}")])).sum();
        let retries: u64 = BUCKETS.iter().map(|bucket| number(&["ZCARD", &format!("drip:retry:{bucket}")])).sum();
        // Of the entries that are left only these count: what is finished is deleted some time later, and the group's lag, which would tell
        // of it at once, is wrong after a failover until dripd's next pass.
        let group: redis::RedisResult<Vec<HashMap<String, Value>>> =
            redis::cmd("XINFO").arg("GROUPS").arg("drip:ready").query(&mut redis);
        let Ok([group]) = group.as_deref() else { return Some("there is no group".to_owned()) };
        let last: String = redis::from_redis_value_ref(&group["last-delivered-id"]).expect("an id");
        let pending: usize = redis::from_redis_value_ref(&group["pending"]).expect("a number");
        let mut behind = redis::cmd("XRANGE");
        behind.arg("drip:ready").arg(format!("({last}")).arg("+").arg("COUNT").arg(1);
        let ready = behind.query::<Vec<Value>>(&mut redis).map_or(1, |entries| entries.len());
        (queues + retries > 0 || ready + pending > 0)
            .then(|| format!("{queues} wait, {retries} are tried again, {ready} or more are ready, {pending} taken"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.shared.pushing.store(false, Ordering::Relaxed);
        self.shared.working.store(false, Ordering::Relaxed);
    }
}

/// A password for the user of the daemons, in Redis and in their file.
fn set_password(redis: &Redis, home: &Path, password: &str) {
    let words = ["SETUSER", "drip", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
    redis::cmd("ACL").arg(&words).exec(&mut redis.connect().expect("it answers")).expect("a user");
    std::fs::write(home.join("password"), format!("{password}\n")).expect("written");
}

/// Between which moments each entry left: after the last look at the stream without it, before the first one with it.
fn tell_time(entries: &mut [Entry], tops: &[(u64, u64, u64)]) {
    for entry in entries {
        let number = entry.at & !15;
        let first = tops.partition_point(|(top, _, _)| *top < number);
        entry.early_us = if first == 0 { 0 } else { tops[first - 1].1 };
        entry.left_us = tops.get(first).map_or(u64::MAX, |(_, _, answered_us)| *answered_us);
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
