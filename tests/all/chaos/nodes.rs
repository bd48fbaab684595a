//! A Redis Cluster: three primaries with a replica each, where a slot is, and what happens to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use redis::{Connection, Value};

use super::cast::Names;
use super::faults::pause;
use super::line::Way;
use super::primaries::Primaries;
use super::server::Redis;
use super::stage::Stage;
use crate::cluster::{Move, PRIMARIES, SLOTS, ask, form, node, options, reach, slot_of};
use crate::program::Stopped;
use crate::rig::eventually;

const PARTITIONS: u16 = 16;

/// A primary and its replica, as they are now.
struct Shard {
    primary: Redis,
    replica: Redis,
}

impl Shard {
    /// Wait until the replica is the primary, and the other one its replica; then each is called what it is.
    fn take_over(&mut self) {
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.primary.wait_for_office(&self.replica);
    }
}

/// A partition that a cast is in.
struct Partition {
    number: u16,
    /// A name that lives there.
    name: String,
    slot: u16,
}

/// All nodes. They end with the value.
pub struct Nodes {
    shards: Vec<Shard>,
    /// One of each primary, as they were at the beginning.
    partitions: Vec<Partition>,
    map: Arc<Map>,
    looker: Option<JoinHandle<()>>,
    /// How many faults were made: each one meets the next primary.
    turn: usize,
}

impl Nodes {
    pub fn start() -> Self {
        let start = |_| {
            let mut redis = Redis::new();
            // The data of a node that is killed is of no use to anybody.
            (redis.options, redis.fsync) = (options("no"), "everysec");
            redis.start();
            redis
        };
        let mut servers: Vec<Redis> = (0..2 * PRIMARIES).map(start).collect();
        let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
        form(&ports, Duration::from_secs(1));
        let partitions = partitions(ports[0]);
        let replicas = servers.split_off(usize::from(PRIMARIES));
        let shards = servers.into_iter().zip(replicas).map(|(primary, replica)| Shard { primary, replica }).collect();
        let map = Arc::new(Map { ports, homes: Mutex::default(), is_over: AtomicBool::new(false) });
        let shared = Arc::clone(&map);
        let looker = Some(std::thread::spawn(move || shared.look()));
        eventually("every slot has its home", || partitions.iter().all(|one| map.home(one.slot).is_some()));
        Self { shards, partitions, map, looker, turn: 0 }
    }

    /// What names them in a configuration.
    pub fn toml(&self) -> String {
        let nodes: Vec<String> = self.map.ports.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
        format!("cluster = [{}]\npartitions = {PARTITIONS}\npartition_by = 1", nodes.join(", "))
    }

    /// How the casts find their primaries, and what is theirs.
    pub fn ways(&self) -> Vec<(Way, Names)> {
        let way = |one: &Partition| {
            let (map, slot) = (Arc::clone(&self.map), one.slot);
            (Way::Primaries(Primaries::new(move || map.home(slot))), Names::in_partition(one.number, &one.name))
        };
        self.partitions.iter().map(way).collect()
    }

    /// How often a node was asked because another one had said so.
    pub fn asked(&self) -> usize {
        let of = |shard: &Shard| {
            let calls = |redis: &Redis| {
                let info = redis.info("commandstats").expect("it answers");
                let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_asking:calls="));
                line.and_then(|line| line.split(',').next()?.parse::<usize>().ok()).unwrap_or(0)
            };
            calls(&shard.primary) + calls(&shard.replica)
        };
        self.shards.iter().map(of).sum()
    }

    fn next_turn(&mut self) -> usize {
        self.turn += 1;
        self.turn % self.shards.len()
    }

    fn next_shard(&mut self) -> &mut Shard {
        let turn = self.next_turn();
        &mut self.shards[turn]
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.map.is_over.store(true, Ordering::Relaxed);
        let _ = self.looker.take().expect("it runs").join();
    }
}

/// A partition in each third of the slots.
fn partitions(port: u16) -> Vec<Partition> {
    let mut found = BTreeMap::new();
    for n in 0.. {
        let name = format!("t{n}");
        let number = slot_of(port, &name) % PARTITIONS;
        let slot = slot_of(port, &number.to_string());
        found.entry((slot / (SLOTS / PRIMARIES)).min(PRIMARIES - 1)).or_insert(Partition { number, name, slot });
        if found.len() == usize::from(PRIMARIES) {
            break;
        }
    }
    found.into_values().collect()
}

/// Which node has which slots.
struct Map {
    ports: Vec<u16>,
    /// The slots from one to another, and the node that has them, as it says itself. What became so later stands later.
    homes: Mutex<Vec<(u16, u16, u16)>>,
    is_over: AtomicBool,
}

impl Map {
    fn home(&self, slot: u16) -> Option<u16> {
        let homes = self.homes.lock().expect("no panic");
        homes.iter().rev().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(.., port)| *port)
    }

    /// Ask all nodes again and again.
    fn look(&self) {
        let mut nodes: Vec<Option<Connection>> = self.ports.iter().map(|_| None).collect();
        while !self.is_over.load(Ordering::Relaxed) {
            let mut said = Vec::new();
            for (port, node) in self.ports.iter().zip(&mut nodes) {
                let of_node = slots_of(*port, node);
                if of_node.is_none() {
                    *node = None;
                }
                said.extend(of_node.unwrap_or_default());
            }
            said.sort_unstable();
            *self.homes.lock().expect("no panic") =
                said.into_iter().map(|(_, first, last, port)| (first, last, port)).collect();
            sleep(Duration::from_millis(20));
        }
    }
}

/// Since which epoch a node has which slots, as it says itself; nothing, if it does not answer.
fn slots_of(port: u16, node: &mut Option<Connection>) -> Option<Vec<(u64, u16, u16, u16)>> {
    const PATIENCE: Duration = Duration::from_millis(200);
    if node.is_none() {
        *node = reach(port, PATIENCE);
        node.as_ref()?.set_read_timeout(Some(PATIENCE)).ok()?;
    }
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(node.as_mut()?).ok()?;
    let own = nodes.lines().find(|line| line.contains("myself,master"));
    let words: Vec<&str> = own.unwrap_or_default().split(' ').collect();
    let epoch = words.get(6).and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((epoch, first.parse().ok()?, last.parse().ok()?, port)) // a slot on the move stands in brackets
    };
    Some(words.get(8..).unwrap_or_default().iter().filter_map(range).collect())
}

fn of(stage: &mut Stage) -> &mut Nodes {
    stage.nodes.as_mut().expect("a stage with a cluster")
}

/// An operator asks for a failover: the primary takes no writes until its replica has all.
pub fn ask_for_a_failover(stage: &mut Stage) {
    stage.hands_over = true;
    let shard = of(stage).next_shard();
    let _: Value = ask(&mut node(shard.replica.port), &["CLUSTER", "FAILOVER"]);
    shard.take_over();
}

/// A primary is killed, and comes back as a replica of the new one.
pub fn kill_a_primary(stage: &mut Stage) {
    let shard = of(stage).next_shard();
    shard.primary.kill();
    eventually("the replica is promoted", || shard.replica.says("replication", "role:master"));
    pause(500);
    shard.primary.start();
    shard.take_over();
}

/// A primary hangs until its replica has taken its place, and then goes on as if it still were one.
pub fn hang_a_primary(stage: &mut Stage) {
    let shard = of(stage).next_shard();
    let stopped = Stopped::stop(shard.primary.pid());
    eventually("the replica is promoted", || shard.replica.says("replication", "role:master"));
    pause(1_000);
    drop(stopped);
    shard.take_over();
}

/// The slot of a partition goes to another primary and comes back, key by key, while it is pushed to and taken from. Half way it rests until
/// many a call was told to ask elsewhere.
pub fn move_a_slot(stage: &mut Stage) {
    let nodes = of(stage);
    let turn = nodes.next_turn();
    let slot = nodes.partitions[turn].slot;
    let ports: Vec<u16> = nodes.shards.iter().map(|shard| shard.primary.port).collect();
    let (from, to) = (ports[turn], ports[(turn + 1) % ports.len()]);
    for (from, to) in [(from, to), (to, from)] {
        let (moving, before) = (Move::begin(&ports, slot, from, to), stage.asked());
        moving.carry(moving.keys(from).len() / 2);
        eventually("clients ask elsewhere", || stage.asked() > before + 50);
        moving.finish();
        stage.go_on(50);
    }
}
