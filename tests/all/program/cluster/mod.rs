//! A Redis Cluster: three primaries, each with a replica. Every door and command, a slot on the move, a primary that dies, comes and goes.

use std::collections::BTreeMap;
use std::net::TcpListener;

use redis::{Connection, FromRedisValue, Value};

use super::Shell;
use crate::rig::{Case, Daemon, Server, eventually, signal, without_door};

mod doors;
mod failover;
mod sessions;
mod slots;

/// How many partitions the systems of these tests have.
const PARTITIONS: u8 = 16;

/// How many key slots a cluster has.
const SLOTS: u16 = 16_384;

/// A cluster, and a directory in which commands find their way to it.
struct Cluster {
    /// The primaries, as they were at the beginning, then the replica of each.
    servers: Vec<Server>,
    shell: Shell,
}

/// A server of a cluster that does not exist yet. Its bus has a port that nobody listened on a moment ago.
fn node(full_coverage: &str) -> Server {
    let bus = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a free port").port().to_string();
    Server::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "1000",
        "--cluster-require-full-coverage",
        full_coverage,
        "--cluster-allow-replica-migration",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ])
}

fn ask<T: FromRedisValue>(server: &mut Connection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(server).unwrap_or_else(|why| panic!("{words:?}: {why}"))
}

fn id_of(server: &Server) -> String {
    ask(&mut server.connect(), &["CLUSTER", "MYID"])
}

/// Whether a server thinks that all is well.
fn is_well(server: &Server, nodes: usize) -> bool {
    let info: String = ask(&mut server.connect(), &["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{nodes}\r"))
}

/// Let a server join the others.
fn meet(new: &Server, of: &Server) {
    let bus: Vec<String> = ask(&mut of.connect(), &["CONFIG", "GET", "cluster-port"]);
    let _: Value = ask(&mut new.connect(), &["CLUSTER", "MEET", "127.0.0.1", &of.port.to_string(), &bus[1]]);
}

impl Cluster {
    /// `toml` goes on within `[redis]`.
    fn start(replicas: bool, full_coverage: &str, toml: &str) -> Self {
        let count: u16 = if replicas { 6 } else { 3 };
        let servers: Vec<Server> = (0..count).map(|_| node(full_coverage)).collect();
        for (server, n) in servers.iter().zip(0_u16..) {
            let mut redis = server.connect();
            let _: Value = ask(&mut redis, &["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
            if n < 3 {
                let (first, last) = (SLOTS / 3 * n, if n == 2 { SLOTS - 1 } else { SLOTS / 3 * (n + 1) - 1 });
                let _: Value = ask(&mut redis, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            }
            if n > 0 {
                meet(server, &servers[0]);
            }
        }
        eventually("the cluster is well", || servers.iter().all(|server| is_well(server, servers.len())));
        for (replica, primary) in servers.iter().skip(3).zip(&servers) {
            let _: Value = ask(&mut replica.connect(), &["CLUSTER", "REPLICATE", &id_of(primary)]);
        }
        for replica in servers.iter().skip(3) {
            eventually("the replicas have all", || {
                let info: String = ask(&mut replica.connect(), &["INFO", "replication"]);
                info.contains("master_link_status:up")
            });
        }
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
        self.shell.file("config.toml", &without_door(&text));
    }

    fn daemon(&self) -> Daemon {
        Daemon::start(self.shell.home())
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

    /// The slot of a partition.
    fn slot(&self, number: u8) -> u16 {
        ask(&mut self.servers[0].connect(), &["CLUSTER", "KEYSLOT", &number.to_string()])
    }

    /// The server that has the slot of a partition now, as a server that is alive says.
    fn home(&self, number: u8) -> &Server {
        let slot = i64::from(self.slot(number));
        let mut port = 0;
        eventually("somebody has the slot", || {
            let alive = self.servers.iter().rev().find_map(reach);
            let Some(mut alive) = alive else { return false };
            let slots: Vec<(i64, i64, Vec<Value>)> = slots_of(&mut alive);
            let home = slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            port = home.map_or(0, |(.., server)| u16::from_redis_value_ref(&server[1]).expect("a port"));
            port != 0
        });
        self.servers.iter().find(|server| server.port == port).expect("one of ours")
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

/// A connection to a server that is alive.
fn reach(server: &Server) -> Option<Connection> {
    redis::Client::open(server.url()).ok()?.get_connection_with_timeout(std::time::Duration::from_millis(300)).ok()
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
