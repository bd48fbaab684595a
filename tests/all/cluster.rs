//! The nodes of a Redis Cluster, by their ports: how they become one, who has which slot, and how a slot goes from one to another.

use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, Value};

use crate::program::Stopped;
use crate::rig::{eventually, free_port};

/// How many key slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// How many primaries the clusters of these tests begin with.
pub const PRIMARIES: u16 = 3;

/// After how long without a word a node without replicas is taken for dead: not soon, for a busy machine may stand still
/// for seconds, and then the nodes would lose each other.
const PATIENCE: Duration = Duration::from_secs(5);

/// What makes a server a node. Its bus has a port that nobody listened on a moment ago.
pub fn options(full_coverage: &str) -> Vec<String> {
    let bus = free_port().to_string();
    let options = [
        ["--cluster-enabled", "yes"],
        ["--cluster-port", &bus],
        ["--cluster-node-timeout", &PATIENCE.as_millis().to_string()],
        ["--cluster-require-full-coverage", full_coverage],
        ["--cluster-allow-replica-migration", "no"],
        ["--repl-diskless-sync-delay", "0"],
    ];
    options.as_flattened().iter().map(ToString::to_string).collect()
}

/// A connection to a node that is alive.
pub fn node(port: u16) -> Connection {
    reach(port, Duration::from_secs(20)).expect("it answers") // two cores may be very busy
}

/// A connection to a node that may be alive.
pub fn reach(port: u16, within: Duration) -> Option<Connection> {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).ok()?.get_connection_with_timeout(within).ok()
}

pub fn ask<T: FromRedisValue>(node: &mut Connection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(node).unwrap_or_else(|why| panic!("{words:?}: {why}"))
}

pub fn id_of(port: u16) -> String {
    ask(&mut node(port), &["CLUSTER", "MYID"])
}

/// The slot of a key.
pub fn slot_of(port: u16, key: &str) -> u16 {
    ask(&mut node(port), &["CLUSTER", "KEYSLOT", key])
}

/// Whether a node thinks that all is well: it knows every other one by a connection of its own, and who has each slot. A cluster that need
/// not cover all slots calls itself well before that, and a node that was only told of another one may forget it.
fn is_well(port: u16, nodes: usize) -> bool {
    let (info, known): (String, String) =
        (ask(&mut node(port), &["CLUSTER", "INFO"]), ask(&mut node(port), &["CLUSTER", "NODES"]));
    let says = |what: String| info.contains(&format!("{what}\r"));
    let met = known.lines().count() == nodes && !known.contains("handshake");
    met && says("cluster_state:ok".to_owned()) && says(format!("cluster_slots_assigned:{SLOTS}"))
}

/// Whether a replica has all that its primary has.
pub fn is_in_step(port: u16) -> bool {
    let info: String = ask(&mut node(port), &["INFO", "replication"]);
    info.contains("master_link_status:up")
}

/// Let nodes be one cluster, wherever some of them are in it already.
pub fn join(ports: &[u16]) {
    let is_well = |port: &&u16| is_well(**port, ports.len());
    let mut met: Option<Instant> = None;
    eventually("the cluster is well", || {
        // A node forgets whom it has met if the two have not got to know each other within its patience.
        if met.is_none_or(|at| at.elapsed() > PATIENCE) {
            ports[1..].iter().filter(|port| !is_well(port)).for_each(|port| meet(*port, ports[0]));
            met = Some(Instant::now());
        }
        ports.iter().all(|port| is_well(&port))
    });
}

fn meet(new: u16, of: u16) {
    let bus: Vec<String> = ask(&mut node(of), &["CONFIG", "GET", "cluster-port"]);
    let _: Value = ask(&mut node(new), &["CLUSTER", "MEET", "127.0.0.1", &of.to_string(), &bus[1]]);
}

/// Make a cluster of nodes that know nobody: primaries with a third of the slots each, and then a replica of each, if there are more nodes.
/// A replica takes the place of a primary that said nothing for `patience`.
pub fn form(ports: &[u16], patience: Duration) {
    for (port, n) in ports.iter().zip(0..) {
        let mut redis = node(*port);
        let _: Value = ask(&mut redis, &["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        if n < PRIMARIES {
            let first = SLOTS / PRIMARIES * n;
            let last = if n == PRIMARIES - 1 { SLOTS - 1 } else { SLOTS / PRIMARIES * (n + 1) - 1 };
            let _: Value = ask(&mut redis, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
    }
    join(ports);
    let replicas = &ports[usize::from(PRIMARIES)..];
    for (replica, primary) in replicas.iter().zip(ports) {
        let _: Value = ask(&mut node(*replica), &["CLUSTER", "REPLICATE", &id_of(*primary)]);
    }
    eventually("the replicas have all", || replicas.iter().all(|replica| is_in_step(*replica)));
    if !replicas.is_empty() {
        let patience = patience.as_millis().to_string();
        for port in ports {
            let _: Value = ask(&mut node(*port), &["CONFIG", "SET", "cluster-node-timeout", &patience]);
        }
    }
}

/// A slot on its way from one node to another.
pub struct Move {
    primaries: Vec<u16>,
    slot: String,
    from: u16,
    to: u16,
    /// The id of the node that it goes to.
    target: String,
}

impl Move {
    /// The slot is on its way; no key is yet.
    pub fn begin(primaries: &[u16], slot: u16, from: u16, to: u16) -> Self {
        let (slot, target) = (slot.to_string(), id_of(to));
        let _: Value = ask(&mut node(to), &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id_of(from)]);
        let _: Value = ask(&mut node(from), &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        Self { primaries: primaries.to_vec(), slot, from, to, target }
    }

    /// The keys of the slot that a node has.
    pub fn keys(&self, port: u16) -> Vec<String> {
        ask(&mut node(port), &["CLUSTER", "GETKEYSINSLOT", &self.slot, "10000"])
    }

    /// So many keys go over.
    pub fn carry(&self, most: usize) {
        let mut from = node(self.from);
        for key in self.keys(self.from).iter().take(most) {
            let _: Value = ask(&mut from, &["MIGRATE", "127.0.0.1", &self.to.to_string(), key, "0", "5000"]);
        }
    }

    /// All of them, and everybody is told.
    pub fn finish(self) {
        self.tell_target();
        self.tell_others();
    }

    /// The same; the node that has it now, of this process, hangs from then on.
    pub fn finish_and_stop(self, pid: u32) -> Stopped {
        self.tell_target();
        let stopped = Stopped::stop(pid);
        self.tell_others();
        stopped
    }

    /// All keys go over, and the target is told that the slot is its own.
    fn tell_target(&self) {
        while !self.keys(self.from).is_empty() {
            self.carry(usize::MAX);
        }
        let _: Value = ask(&mut node(self.to), &["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.target]);
    }

    fn tell_others(&self) {
        let rest = self.primaries.iter().filter(|port| ![self.to, self.from].contains(port));
        for port in [&self.from].into_iter().chain(rest) {
            let _: Value = ask(&mut node(*port), &["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.target]);
        }
    }
}
