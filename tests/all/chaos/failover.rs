//! A primary, its replica and three sentinels, how a client finds the primary, and failovers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use redis::{Connection, RedisResult, Value};

use super::cast::{Shared, Way, now_us};
use super::server::{Redis, connect};
use super::stage::Stage;
use crate::rig::{Server, eventually};

/// The replica, and the sentinels that watch both. They end with the value.
pub struct Watched {
    pub replica: Redis,
    sentinels: Vec<Server>,
}

impl Watched {
    pub fn of(primary: &Redis) -> Self {
        let mut replica = Redis::new();
        replica.start_with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
        eventually("the replica has all", || says(&replica, "replication", "master_link_status:up"));
        let lines = format!(
            "sentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 5000\n",
            primary.port
        );
        let watched = Self { replica, sentinels: (0..3).map(|_| Server::sentinel(&lines)).collect() };
        watched.wait_until_whole(primary.port);
        watched
    }

    /// What names them in a configuration.
    pub fn toml(&self) -> String {
        let nodes: Vec<String> = self.sentinels.iter().map(|one| format!("'127.0.0.1:{}'", one.port)).collect();
        format!("sentinel = {{ nodes = [{}], master = 'mymaster' }}", nodes.join(", "))
    }

    pub fn way(&self) -> Way {
        let sentinels = self.sentinels.iter().map(|one| one.port).collect();
        Way::Sentinels(Primaries { sentinels, seen: Mutex::default() })
    }

    /// Wait until all sentinels name this one and know that all is well.
    fn wait_until_whole(&self, primary: u16) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know all", || {
                let info: RedisResult<String> = redis::cmd("INFO").arg("sentinel").query(&mut sentinel.connect());
                let is_well =
                    info.is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=1,sentinels=3"));
                is_well && named_by(sentinel.port).is_ok_and(|named| named == primary)
            });
        }
    }
}

fn says(redis: &Redis, section: &str, what: &str) -> bool {
    redis.info(section).is_ok_and(|info| info.contains(what))
}

/// The primaries that there have been, as clients of sentinels find them.
pub struct Primaries {
    sentinels: Vec<u16>,
    /// Each promotion gives the history of a primary another name. With its port.
    seen: Mutex<Vec<(String, u16)>>,
}

impl Primaries {
    pub fn connect(&self) -> RedisResult<(Connection, usize)> {
        let nobody = || (redis::ErrorKind::Io, "no primary").into();
        self.sentinels.iter().find_map(|sentinel| self.ask(*sentinel).ok()).ok_or_else(nobody)
    }

    /// Whether the sentinels still name it: one that was replaced while it ran goes on answering for some seconds.
    pub fn is_still(&self, primary: usize) -> bool {
        let port = self.seen.lock().expect("no panic")[primary].1;
        self.sentinels.iter().find_map(|sentinel| named_by(*sentinel).ok()).is_none_or(|named| named == port)
    }

    fn ask(&self, sentinel: u16) -> RedisResult<(Connection, usize)> {
        let port = named_by(sentinel)?;
        let mut server = connect(port)?;
        let info: String = redis::cmd("INFO").arg("replication").query(&mut server)?;
        let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        if of("role:") != "master" {
            return Err((redis::ErrorKind::Io, "no primary").into());
        }
        let name = of("master_replid:");
        let mut seen = self.seen.lock().expect("no panic");
        let number = seen.iter().position(|(one, _)| *one == name).unwrap_or_else(|| {
            seen.push((name, port));
            seen.len() - 1
        });
        Ok((server, number))
    }
}

/// The port of the primary that a sentinel names.
fn named_by(sentinel: u16) -> RedisResult<u16> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
    ask.query::<(String, u16)>(&mut connect(sentinel)?).map(|(_, port)| port)
}

/// Up to when each primary's replica is known to have got everything: write something again and again, and wait until the replica has it.
#[derive(Default)]
pub struct Kept(Mutex<Vec<u64>>);

impl Kept {
    pub fn watch(&self, shared: &Shared) {
        while shared.working.load(Ordering::Relaxed) {
            if let Ok((mut server, primary)) = shared.way.connect() {
                while shared.working.load(Ordering::Relaxed) && matches!(self.note(&mut server, primary), Ok(true)) {
                    sleep(Duration::from_millis(2));
                }
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Replies whether the replica has got everything.
    fn note(&self, server: &mut Connection, primary: usize) -> RedisResult<bool> {
        let before = now_us();
        redis::cmd("SET").arg("witness").arg(before).exec(server)?;
        let replicas: i64 = redis::cmd("WAIT").arg(1).arg(50).query(server)?;
        let mut kept = self.0.lock().expect("no panic");
        let missing = (primary + 1).saturating_sub(kept.len());
        kept.extend(std::iter::repeat_n(0, missing));
        if replicas > 0 {
            kept[primary] = before;
        }
        Ok(replicas > 0)
    }

    /// The same for all primaries that have a successor.
    pub fn until_us(&self, shared: &Shared) -> Vec<u64> {
        let Way::Sentinels(primaries) = &shared.way else { return Vec::new() };
        let mut kept = self.0.lock().expect("no panic").clone();
        kept.resize(primaries.seen.lock().expect("no panic").len() - 1, 0);
        kept
    }
}

/// What is different on a stage with sentinels.
pub fn watch(shared: &Arc<Shared>, kept: &Arc<Kept>) -> std::thread::JoinHandle<()> {
    let (shared, kept) = (Arc::clone(shared), Arc::clone(kept));
    std::thread::spawn(move || kept.watch(&shared))
}

/// An operator asks for a failover; the old primary becomes the replica.
pub fn ask_for_a_failover(stage: &mut Stage) {
    let watched = stage.watched.as_mut().expect("a stage with sentinels");
    let said: Value = redis::cmd("SENTINEL")
        .arg("FAILOVER")
        .arg("mymaster")
        .query(&mut watched.sentinels[2].connect())
        .expect("it begins");
    assert_eq!(said, Value::Okay);
    take_over(&mut stage.redis, watched);
}

/// The primary is killed, and comes back as a replica of the new one.
pub fn kill_the_primary(stage: &mut Stage) {
    let watched = stage.watched.as_mut().expect("a stage with sentinels");
    stage.redis.kill();
    eventually("the replica is promoted", || says(&watched.replica, "replication", "role:master"));
    std::thread::sleep(Duration::from_millis(500));
    stage.redis.start_with(&["--replicaof", "127.0.0.1", &watched.replica.port.to_string()]);
    take_over(&mut stage.redis, watched);
}

/// Wait until the replica is the primary and the other one its replica, and all sentinels know; then each is called what it is.
fn take_over(redis: &mut Redis, watched: &mut Watched) {
    std::mem::swap(redis, &mut watched.replica);
    eventually("the replica is promoted", || says(redis, "replication", "role:master"));
    eventually("the old primary has all", || says(&watched.replica, "replication", "master_link_status:up"));
    watched.wait_until_whole(redis.port);
}
