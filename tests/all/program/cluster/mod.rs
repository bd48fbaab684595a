//! A Redis Cluster: three primaries, each with a replica. Every door and command, a slot on the move, a primary that dies, comes and goes.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{Connection, FromRedisValue, Value};

use super::Shell;
use crate::cluster::{Move, PRIMARIES, ask, form, options, reach, slot_of};
use crate::rig::{Case, Daemon, Server, eventually, signal, test_config};

mod authority;
mod doors;
mod failover;
mod sessions;
mod slots;

/// How many partitions the systems of these tests have.
const PARTITIONS: u8 = 16;

/// A cluster, and a directory in which commands find their way to it.
struct Cluster {
    /// The primaries, as they were at the beginning, then the replica of each.
    servers: Vec<Server>,
    shell: Shell,
}

/// A server of a cluster that does not exist yet.
fn node(full_coverage: &str) -> Server {
    let options = options(full_coverage);
    Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Cluster {
    /// `toml` goes on within `[redis]`.
    fn start(replicas: bool, full_coverage: &str, toml: &str) -> Self {
        let count = if replicas { 2 * PRIMARIES } else { PRIMARIES };
        let servers: Vec<Server> = (0..count).map(|_| node(full_coverage)).collect();
        // Where a busy machine stands still for a second or two no replica is to take the place of a primary that is alive.
        form(&servers.iter().map(|server| server.port).collect::<Vec<_>>(), Duration::from_secs(3));
        let case = Case { redis: servers[0].connect(), prefix: "drip".to_owned() };
        let shell = Shell { case, home: tempfile::tempdir().expect("a directory") };
        let cluster = Self { servers, shell };
        cluster.configure(toml);
        cluster
    }

    fn configure(&self, toml: &str) {
        let nodes: Vec<String> = self.servers.iter().map(|server| format!("'127.0.0.1:{}'", server.port)).collect();
        let nodes = nodes.join(", ");
        let text = format!("[redis]\ncluster = [{nodes}]\npartitions = {PARTITIONS}\n{toml}");
        self.shell.file("config.toml", &test_config(&text));
    }

    fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port).collect()
    }

    fn daemon(&self) -> Daemon {
        Daemon::start(self.shell.home())
    }

    /// A daemon that serves every primary: it says that it serves as soon as the first of them is ready.
    fn daemon_of_all(&self) -> Daemon {
        let (daemon, primaries) = (self.daemon(), &self.servers[..usize::from(PRIMARIES)]);
        eventually("all are served", || primaries.iter().all(|one| failover::sessions(&daemon.log(), one.port) == 1));
        daemon
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        self.shell.must_run(args)
    }

    #[track_caller]
    fn status(&self) -> serde_json::Value {
        let (_, out, err) = self.shell.run(&["status", "--json"]);
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("no JSON: {out}{err}"))
    }

    fn number_of(&self, bucket: &str) -> u8 {
        self.run(&["partition", bucket]).trim_end().parse().expect("a number")
    }

    fn queue(&self, bucket: &str) -> String {
        self.run(&["partition", "--key", bucket]).trim_end().to_owned()
    }

    /// A bucket for each partition, by number.
    fn a_bucket_each(&self) -> Vec<String> {
        let mut found = BTreeMap::new();
        for n in 0.. {
            let name = format!("tenant-{n}");
            found.entry(self.number_of(&name)).or_insert(name);
            if found.len() == usize::from(PARTITIONS) {
                break;
            }
        }
        found.into_values().collect()
    }

    /// Whether the record has come to every partition.
    fn all_have_the_record(&self) -> bool {
        (0..PARTITIONS).all(|number| self.redis(number, &["HEXISTS", &format!("drip:policy:{{{number}}}"), "record"]))
    }

    /// The slot of a partition.
    fn slot(&self, number: u8) -> u16 {
        slot_of(self.servers[0].port, &number.to_string())
    }

    /// The server that has the slot of a partition now, as a server that is alive says.
    fn home(&self, number: u8) -> &Server {
        let slot = i64::from(self.slot(number));
        let mut port = 0;
        eventually("somebody has the slot", || {
            let alive = self.servers.iter().rev().find_map(|server| reach(server.port, Duration::from_millis(300)));
            let Some(mut alive) = alive else { return false };
            let slots: Vec<(i64, i64, Vec<Value>)> = slots_of(&mut alive);
            let home = slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            port = home.map_or(0, |(.., server)| u16::from_redis_value_ref(&server[1]).expect("a port"));
            port != 0
        });
        self.servers.iter().find(|server| server.port == port).expect("one of ours")
    }

    /// The slot of a partition begins to go from one server to another.
    fn begin_move(&self, number: u8, from: &Server, to: &Server) -> Move {
        Move::begin(&self.ports(), self.slot(number), from.port, to.port)
    }

    /// A command on the server that has a partition.
    #[track_caller]
    fn redis<T: FromRedisValue>(&self, number: u8, words: &[&str]) -> T {
        ask(&mut self.home(number).connect(), words)
    }

    /// The partitions that a server has now.
    fn partitions_of(&self, server: &Server) -> Vec<u8> {
        (0..PARTITIONS).filter(|number| self.home(*number).port == server.port).collect()
    }
}

/// Kill a server at once.
fn kill(server: &Server) {
    signal(server.pid(), "KILL");
}

/// First slot, last slot, the primary.
fn slots_of(server: &mut Connection) -> Vec<(i64, i64, Vec<Value>)> {
    let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER").arg("SLOTS").query(server).unwrap_or_default();
    let range = |range: Vec<Value>| {
        let number = |at: usize| i64::from_redis_value_ref(&range[at]).expect("a slot");
        (number(0), number(1), Vec::<Value>::from_redis_value_ref(&range[2]).expect("a server"))
    };
    ranges.into_iter().map(range).collect()
}
