//! The stage of a history: a Redis that can be killed and comes back with its data, two daemons, and a cast of producers and workers. What a
//! fault needs besides is in its setting.

use std::path::Path;

use super::cast::{Cast, Names};
use super::clock::Clock;
use super::disk::Disk;
use super::failover::Watched;
use super::history::{History, Node};
use super::line::Way;
use super::nodes::Nodes;
use super::proxy::Proxy;
use super::server::Redis;
use crate::rig::{Daemon, eventually, test_config};

/// The buckets and what is promised of each: one that is rarely full, one that is full at once, two that share a budget, and one with slots.
pub const BUCKETS: [&str; 5] = ["fast", "slow", "a:1", "a:2", "slots"];
/// Few wait for slots, so that a run ends soon: a slot that a plain `XACK` leaves is free some time later.
pub const CAPACITIES: [i64; 5] = [200, 30, 40, 40, 20];
const DEFAULTS: &str = "[defaults]\nrate = '300/s'\ncapacity = 200\nlease = '2s'\nattempts = 50\n\
    backoff = { initial = '50ms', max = '200ms' }\n[limits]\nready_window = '250ms'\n";
pub const LEASE_US: u64 = 2_000_000;
pub const READY_WINDOW_US: u64 = 250_000;
const CATCH_UP_US: u64 = 20_000;
/// Inside a budget a bucket makes up for the longest of 20 ms, its own interval and two of its budget.
const CATCH_UP_BELOW_US: u64 = 2 * 1_000_000 / 60 + 1;

/// Producers and workers, where there is one cast, and in each of several.
const CROWD: (usize, usize) = (4, 3);
const SMALL_CROWD: (usize, usize) = (2, 2);

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
    /// Three primaries with a replica each, and a cast in one partition of each primary.
    Cluster,
}

pub struct Stage {
    pub daemons: Vec<Daemon>,
    /// The only one, or the primary. It is not started where there is a cluster.
    pub redis: Redis,
    pub disk: Option<Disk>,
    pub clock: Option<Clock>,
    pub proxy: Option<Proxy>,
    pub watched: Option<Watched>,
    /// One, or one in each of several partitions.
    casts: Vec<Cast>,
    pub nodes: Option<Nodes>,
    home: tempfile::TempDir,
    /// When all that was stored was lost.
    pub lost_all_us: Vec<u64>,
    /// Between which moments the server's clock was stepped.
    pub steps_us: Vec<(u64, u64)>,
    /// Each primary gave its successor all that it had: nothing may be missing there.
    pub hands_over: bool,
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
        if setting != Setting::Cluster {
            redis.start();
        }
        let nodes = (setting == Setting::Cluster).then(Nodes::start);
        let proxy = (setting == Setting::Proxy).then(|| Proxy::to(redis.port));
        let watched = (setting == Setting::Sentinels).then(|| Watched::of(&redis));
        let port = proxy.as_ref().map_or(redis.port, |proxy| proxy.port);
        let reach = || format!("url = 'redis://127.0.0.1:{port}'");
        let mut reach = watched.as_ref().map(Watched::toml).or(nodes.as_ref().map(Nodes::toml)).unwrap_or_else(reach);
        if setting == Setting::Password {
            set_password(&redis, home.path(), "the first one");
            reach += "\nuser = 'drip'\npassword_file = 'password'";
        }
        let ways = match (&watched, &nodes) {
            (Some(watched), _) => vec![(watched.way(), Names::default())],
            (_, Some(nodes)) => nodes.ways(),
            _ => vec![(Way::Port(redis.port), Names::default())],
        };
        let buckets: String = ways.iter().map(|(_, names)| toml(&names.root)).collect();
        let toml = test_config(&format!("[redis]\n{reach}\n{DEFAULTS}{buckets}"));
        std::fs::write(home.path().join("config.toml"), toml).expect("written");
        let daemons = (0..2).map(|_| Daemon::start(home.path())).collect();
        for (way, names) in &ways {
            eventually("the partition has its policies", || is_ready(way, names).unwrap_or(false));
        }
        let crowd = if ways.len() > 1 { SMALL_CROWD } else { CROWD };
        let casts = ways.into_iter().map(|(way, names)| Cast::start(way, names, setting == Setting::Clock, crowd));
        Ok(Self {
            daemons,
            redis,
            disk,
            clock,
            proxy,
            watched,
            casts: casts.collect(),
            nodes,
            home,
            lost_all_us: Vec::new(),
            steps_us: Vec::new(),
            hands_over: false,
        })
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// One of the workers dies with what it has in hand, as soon as it has something.
    pub fn kill_a_worker(&self) {
        self.casts[0].kill_a_worker();
    }

    /// Redis takes another password alone from now on, and the daemons find it where they found the last one.
    pub fn set_password(&self, password: &str) {
        set_password(&self.redis, self.home(), password);
    }

    /// How often a client asked elsewhere because a node of a cluster said so.
    pub fn asked(&self) -> usize {
        self.casts.iter().map(Cast::asked).sum()
    }

    /// Wait until so many jobs more have left, in each partition.
    pub fn go_on(&self, jobs: usize) {
        for cast in &self.casts {
            let before = cast.delivered();
            eventually("jobs leave", || cast.delivered() > before + jobs);
        }
    }

    /// End the load, wait until all that waits has left and is finished, and reply what happened in each partition.
    pub fn close(mut self) -> Vec<History> {
        self.casts.iter().for_each(Cast::end_load);
        let histories: Vec<History> = self.casts.iter_mut().map(Cast::close).collect();
        if let Some(nodes) = &self.nodes {
            assert_eq!(nodes.asked(), self.asked(), "a daemon asked elsewhere, as dripd never does");
        }
        let with_faults = |history: History| History {
            lost_all_us: self.lost_all_us.clone(),
            steps_us: self.steps_us.clone(),
            kept_until_us: if self.hands_over { Vec::new() } else { history.kept_until_us },
            ..history
        };
        histories.into_iter().map(with_faults).collect()
    }
}

/// What is configured of the buckets that begin so.
fn toml(root: &str) -> String {
    format!(
        "[[budget]]\nmatch = '{root}a'\nrate = '60/s'\n\
         [[bucket]]\nmatch = '{root}slow'\nrate = '20/s'\ncapacity = 30\n\
         [[bucket]]\nmatch = '{root}a:*'\nrate = '50/s'\ncapacity = 40\nwithin = '{root}a'\n\
         [[bucket]]\nmatch = '{root}slots'\nrate = '200/s'\ncapacity = 20\nconcurrency = 3\n"
    )
}

/// Whether a partition has the policies of its buckets: until then it would go by the defaults.
fn is_ready(way: &Way, names: &Names) -> redis::RedisResult<bool> {
    redis::cmd("HEXISTS").arg(names.key("policy")).arg("record").query(&mut way.connect()?.0)
}

/// A password for the user of the daemons, in Redis and in their file.
fn set_password(redis: &Redis, home: &Path, password: &str) {
    let words = ["SETUSER", "drip", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
    redis::cmd("ACL").arg(&words).exec(&mut redis.connect().expect("it answers")).expect("a user");
    std::fs::write(home.join("password"), format!("{password}\n")).expect("written");
}

/// What is promised of the buckets of a cast.
pub fn nodes() -> Vec<Node> {
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
