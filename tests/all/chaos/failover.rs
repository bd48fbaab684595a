//! A primary, its replica and three sentinels, and failovers.

use redis::{RedisResult, Value};

use super::line::Way;
use super::primaries::Primaries;
use super::server::{Redis, connect};
use super::stage::Stage;
use crate::cluster::ask;
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
        eventually("the replica has all", || replica.says("replication", "master_link_status:up"));
        // On a busy machine a shorter time makes them replace a primary that is well.
        let lines = format!(
            "sentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 2000\nsentinel failover-timeout mymaster 5000\n",
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
        let sentinels: Vec<u16> = self.sentinels.iter().map(|one| one.port).collect();
        Way::Primaries(Primaries::new(move || sentinels.iter().find_map(|one| named_by(*one).ok())))
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

/// The port of the primary that a sentinel names.
fn named_by(sentinel: u16) -> RedisResult<u16> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg("mymaster");
    ask.query::<(String, u16)>(&mut connect(sentinel)?).map(|(_, port)| port)
}

/// An operator asks for a failover; the old primary becomes the replica.
pub fn ask_for_a_failover(stage: &mut Stage) {
    let watched = stage.watched.as_mut().expect("a stage with sentinels");
    let said: Value = ask(&mut watched.sentinels[2].connect(), &["SENTINEL", "FAILOVER", "mymaster"]);
    assert_eq!(said, Value::Okay);
    take_over(&mut stage.redis, watched);
}

/// The primary is killed, and comes back as a replica of the new one.
pub fn kill_the_primary(stage: &mut Stage) {
    let watched = stage.watched.as_mut().expect("a stage with sentinels");
    stage.redis.kill();
    eventually("the replica is promoted", || watched.replica.says("replication", "role:master"));
    super::faults::pause(500);
    stage.redis.start_with(&["--replicaof", "127.0.0.1", &watched.replica.port.to_string()]);
    take_over(&mut stage.redis, watched);
}

/// Wait until the replica is the primary and the other one its replica, and all sentinels know; then each is called what it is.
fn take_over(redis: &mut Redis, watched: &mut Watched) {
    std::mem::swap(redis, &mut watched.replica);
    redis.wait_for_office(&watched.replica);
    watched.wait_until_whole(redis.port);
}
