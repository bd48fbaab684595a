//! A cluster: its map, which says which primary has which key slots, and how it is asked for.
//!
//! Any node tells the map, and any of them may be behind the others. So each answer comes with the epoch of the cluster, which grows with each
//! failover and with most slots that move, and an answer of an earlier epoch than the one that is known is taken only where no node has a
//! better one. Nodes of one epoch may still differ: then a slot is where a node says of itself that it has it. While nothing moves one node
//! is asked, each time another one; all of them are when it says something new, or when a call came to the wrong server.
//!
//! The slots themselves can be a long list: where they were dealt out one by one, a server needs 4 ms to write it, and a daemon more than
//! that to read it. So a node is asked for its state first, a few numbers, and for the slots when those changed, or five seconds later; one
//! second while a partition is away.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, PushInfo, RedisError, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::login::Login;
use super::peer::{self, OnPush};
use crate::config::connection::{Node, TlsSettings};
use crate::model::partitioning::SLOTS;

/// How long a node may take for the map, with a connection that is there and with a new one; and how much longer than the first one the
/// others may take, which may know better.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
const ANSWER_ANEW_WITHIN: Duration = Duration::from_secs(3);
const OTHERS_WITHIN: Duration = Duration::from_millis(250);

/// How long what a node said of the slots stands while its state is the same: a slot may move without a new epoch; and while a partition is
/// away, for its server may come back under another address.
const STANDS_FOR: Duration = Duration::from_secs(5);
const STANDS_FOR_WHILE_AWAY: Duration = Duration::from_secs(1);

/// Counters of a node for its own messages: no part of the state of the cluster.
const COUNTED: [&str; 2] = ["cluster_stats_", "total_cluster_links_"];

/// The nodes of an address, and the newest map that any of them told.
#[derive(Debug)]
pub(in crate::store) struct Cluster {
    seeds: Vec<Node>,
    login: Login,
    tls: Option<TlsSettings>,
    newest: Mutex<Option<Arc<Map>>>,
    /// The last report of each node.
    cached: Mutex<BTreeMap<Node, CachedReport>>,
    /// Whose turn it is to be asked while nothing moves.
    turn: AtomicUsize,
}

/// Which primary has which key slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Map {
    epoch: u64,
    /// The first slot of a range, the last one, and who has them.
    ranges: Vec<(u16, u16, Node)>,
    /// Every node that it names, replicas too: each can be asked for the next one.
    nodes: BTreeSet<Node>,
}

/// The report of one node.
#[derive(Debug, Clone)]
struct NodeReport {
    by: Node,
    /// The epoch of what it says of itself; that of the cluster is in the map.
    own_epoch: u64,
    map: Arc<Map>,
}

/// A report of a node, and the state of the cluster that it came with.
#[derive(Debug)]
struct CachedReport {
    at: Instant,
    state: String,
    report: NodeReport,
}

/// As errors name it.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.seeds.iter().map(Node::to_string).collect();
        write!(f, "the cluster of {}", nodes.join(", "))
    }
}

impl Map {
    /// Who has a slot; nobody may.
    pub(in crate::store) fn owner(&self, slot: u16) -> Option<&Node> {
        self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(.., node)| node)
    }

    /// Who has any.
    pub(super) fn primaries(&self) -> BTreeSet<&Node> {
        self.ranges.iter().map(|(.., node)| node).collect()
    }

    /// Whether both say the same of every slot, at the same epoch.
    fn agrees_with(&self, other: &Self) -> bool {
        (self.epoch, &self.ranges) == (other.epoch, &other.ranges)
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Node>, login: Login, tls: Option<TlsSettings>) -> Self {
        let (newest, cached, turn) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Self { seeds, login, tls, newest, cached, turn }
    }

    /// The newest map so far.
    pub(in crate::store) fn newest(&self) -> Option<Arc<Map>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ask for the map: on connections that are there, and where none of them tells a good one, on new ones to all nodes. While it is `calm` one
    /// of them is asked, and if that one says what is known, so be it. `moved`: a call came to the wrong server, so the nodes are
    /// asked for the slots whatever their state is.
    ///
    /// # Errors
    ///
    /// Why no node told it: all that were tried.
    pub(super) async fn ask(
        &self,
        mut open: Vec<(Node, MultiplexedConnection)>,
        calm: bool,
        moved: bool,
    ) -> Result<Arc<Map>, String> {
        if moved {
            self.cached().clear();
        }
        let known = self.newest();
        if let (true, Some(known), false) = (calm, &known, open.is_empty()) {
            let at = self.turn.fetch_add(1, Ordering::Relaxed) % open.len();
            let (node, calls) = &mut open[at];
            if let Ok(Ok(report)) = timeout(ANSWER_WITHIN, self.ask_node(node, calls, STANDS_FOR)).await
                && report.map.agrees_with(known)
            {
                return Ok(Arc::clone(known));
            }
        }
        let (mut report, mut whys) = (Vec::new(), Vec::new());
        let asked = open.into_iter().map(|(node, mut calls)| async move {
            let report = self.ask_node(&node, &mut calls, STANDS_FOR_WHILE_AWAY).await;
            (node, report)
        });
        collect(asked.collect(), ANSWER_WITHIN, known.is_none(), &mut report, &mut whys).await;
        let is_good = |report: &[NodeReport]| {
            report.iter().any(|one| known.as_ref().is_none_or(|map| one.map.epoch >= map.epoch))
        };
        if !is_good(&report) {
            whys.clear(); // all of them are asked again
            let nodes = known.iter().flat_map(|map| map.nodes.iter().cloned());
            let nodes: BTreeSet<Node> = self.seeds.iter().cloned().chain(nodes).collect();
            let asked = nodes.into_iter().map(|node| async {
                let report = async {
                    let no_push: OnPush = Arc::new(|_: &PushInfo| {});
                    let (login, tls) = (&self.login, self.tls.as_ref());
                    let (mut calls, _driver) = peer::to_node(&node, login, tls, ANSWER_WITHIN, &no_push).await?;
                    self.ask_node(&node, &mut calls, STANDS_FOR_WHILE_AWAY).await
                };
                let report = report.await;
                (node, report)
            });
            collect(asked.collect(), ANSWER_ANEW_WITHIN, known.is_none(), &mut report, &mut whys).await;
        }
        let map = agreed(report, known.as_deref()).ok_or_else(|| whys.join("; "))?;
        Ok(self.keep(known.as_ref(), map))
    }

    fn cached(&self) -> MutexGuard<'_, BTreeMap<Node, CachedReport>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ask a node for a report, or take its last one where that still stands.
    /// The state is asked for before the slots, so that a change between the two is seen the next time.
    async fn ask_node(
        &self,
        asked: &Node,
        calls: &mut MultiplexedConnection,
        stands_for: Duration,
    ) -> Result<NodeReport, String> {
        let info = info(calls).await?;
        let state = state(&info);
        let stands = |cached: &&CachedReport| cached.state == state && cached.at.elapsed() < stands_for;
        if let Some(report) = self.cached().get(asked).filter(stands).map(|cached| cached.report.clone()) {
            return Ok(report);
        }
        let at = Instant::now();
        let report = slots(asked, calls, &info).await?;
        self.cached().insert(asked.clone(), CachedReport { at, state, report: report.clone() });
        Ok(report)
    }

    /// Take a map that was made while another one was known. One that was taken meanwhile is never replaced by an older one.
    fn keep(&self, known: Option<&Arc<Map>>, map: Map) -> Arc<Map> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = &*newest {
            let is_other = known.is_none_or(|known| !Arc::ptr_eq(known, now));
            if *now.as_ref() == map || is_other && now.epoch > map.epoch {
                return Arc::clone(now);
            }
        }
        let map = Arc::new(map);
        *newest = Some(Arc::clone(&map));
        map
    }
}

/// Collect the reports of nodes, and why some have none: the `first` report, or all that come in time.
async fn collect(
    mut asked: FuturesUnordered<impl Future<Output = (Node, Result<NodeReport, String>)>>,
    within: Duration,
    first: bool,
    report: &mut Vec<NodeReport>,
    whys: &mut Vec<String>,
) {
    let (mut until, mut has_one) = (Instant::now() + within, false);
    while let Ok(Some((node, answer))) = timeout_at(until, asked.next()).await {
        match answer {
            Ok(answer) => {
                report.push(answer);
                if first {
                    return;
                }
                if !std::mem::replace(&mut has_one, true) {
                    until = until.min(Instant::now() + OTHERS_WITHIN);
                }
            }
            Err(why) => whys.push(format!("{node}: {why}")),
        }
    }
    if report.is_empty() && !asked.is_empty() {
        whys.push(format!("{} of its nodes did not answer within {within:?}", asked.len()));
    }
}

/// Make one map of the reports of the newest epoch. A slot is where a node says of itself that it has it, and if several
/// do, where the newest of those is. For the other slots one node is believed: one that says what is known, if there is one.
fn agreed(mut report: Vec<NodeReport>, known: Option<&Map>) -> Option<Map> {
    let epoch = report.iter().map(|one| one.map.epoch).max()?;
    report.retain(|one| one.map.epoch == epoch);
    report.sort_by(|one, other| (one.own_epoch, &one.by).cmp(&(other.own_epoch, &other.by)));
    let is_known = |one: &&NodeReport| known.is_some_and(|known| one.map.agrees_with(known));
    let believed = report.iter().find(is_known).or(report.last())?;
    let own = report.iter().flat_map(|one| one.map.ranges.iter().filter(|(.., node)| *node == one.by));
    let mut homes: Vec<Option<&Node>> = vec![None; usize::from(SLOTS)];
    for (first, last, node) in believed.map.ranges.iter().chain(own) {
        homes[usize::from(*first)..=usize::from(*last)].fill(Some(node));
    }
    let mut ranges: Vec<(u16, u16, Node)> = Vec::new();
    for (slot, node) in (0..).zip(homes) {
        let Some(node) = node else { continue };
        match ranges.last_mut() {
            Some((_, last, before)) if *last + 1 == slot && before == node => *last = slot,
            _ => ranges.push((slot, slot, node.clone())),
        }
    }
    let nodes = report.iter().flat_map(|one| one.map.nodes.iter().cloned()).collect();
    Some(Map { epoch, ranges, nodes })
}

/// Who has a slot, as one node says now; nobody may, and it may not answer.
pub(in crate::store) async fn owner_as_told_by(
    asked: &Node,
    calls: &mut MultiplexedConnection,
    slot: u16,
) -> Option<Node> {
    let report = async {
        let info = info(calls).await?;
        slots(asked, calls, &info).await
    };
    let report = timeout(ANSWER_WITHIN, report).await.ok()?.ok()?;
    report.map.owner(slot).cloned()
}

/// Ask for CLUSTER INFO.
async fn info(calls: &mut MultiplexedConnection) -> Result<String, String> {
    let info: Value = redis::cmd("CLUSTER").arg("INFO").query_async(calls).await.map_err(|why| refused(&why))?;
    Ok(match info {
        Value::VerbatimString { text, .. } => text,
        other => String::from_redis_value(other).unwrap_or_default(),
    })
}

/// The state of the cluster: the lines of CLUSTER INFO without the counters of the node.
fn state(info: &str) -> String {
    let lines = info.lines().filter(|line| !COUNTED.iter().any(|counted| line.starts_with(counted)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Ask for CLUSTER SLOTS, after this INFO.
async fn slots(asked: &Node, calls: &mut MultiplexedConnection, info: &str) -> Result<NodeReport, String> {
    let slots: Value = redis::cmd("CLUSTER").arg("SLOTS").query_async(calls).await.map_err(|why| refused(&why))?;
    let epoch_of = |name: &str| {
        let epoch = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or_default()
    };
    let map = map(asked, epoch_of("cluster_current_epoch"), &slots)
        .ok_or_else(|| format!("its CLUSTER SLOTS means nothing to this version of dripd: {slots:?}"))?;
    Ok(NodeReport { by: asked.clone(), own_epoch: epoch_of("cluster_my_epoch"), map: Arc::new(map) })
}

fn map(asked: &Node, epoch: u64, slots: &Value) -> Option<Map> {
    let Value::Array(slots) = slots else { return None };
    let (mut ranges, mut nodes) = (Vec::new(), BTreeSet::from([asked.clone()]));
    for range in slots {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), servers @ ..] = &range[..] else { return None };
        let mut servers = servers.iter().map(|server| node(asked, server));
        let primary = servers.next()??;
        for replica in servers {
            nodes.insert(replica?);
        }
        nodes.insert(primary.clone());
        let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
        ranges.push((slot(*first)?, slot(*last)?, primary));
    }
    ranges.sort();
    Some(Map { epoch, ranges, nodes })
}

/// A server as a node names it. One without an address is where that node was asked.
fn node(asked: &Node, server: &Value) -> Option<Node> {
    let Value::Array(server) = server else { return None };
    let host = match server.first()? {
        Value::Nil => String::new(),
        host => String::from_redis_value_ref(host).ok()?,
    };
    let Value::Int(port) = server.get(1)? else { return None };
    let host = if matches!(host.as_str(), "" | "?") { asked.host.clone() } else { host };
    Some(Node { host, port: u16::try_from(*port).ok()? })
}

/// Why a question was refused, and the way out.
fn refused(why: &RedisError) -> String {
    if why.code() == Some("NOPERM") {
        let rights =
            "give the user that dripd logs in as that right, on every node: ACL SETUSER … +cluster|slots +cluster|info";
        return format!("{why}; {rights}");
    }
    if why.to_string().contains("cluster support disabled") {
        return "it is no node of a cluster; name it in redis.url, in place of redis.cluster".to_owned();
    }
    why.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::login::Password;
    use super::*;

    fn at(host: &str, port: u16) -> Node {
        Node { host: host.to_owned(), port }
    }

    #[test]
    fn a_map_says_who_has_a_slot_and_a_node_without_an_address_is_where_it_was_asked() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let server = |host: Value, port| Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Map(Vec::new())]);
        let range = |first, last, servers: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
        };
        let slots = Value::Array(vec![
            range(0, 99, vec![server(bulk(""), 1), server(bulk("h"), 4)]),
            range(100, 100, vec![server(Value::Nil, 2)]),
            range(200, 300, vec![server(bulk("10.0.0.3"), 3)]),
        ]);
        let map = map(&at("asked", 9), 7, &slots).expect("a map");
        assert_eq!((map.owner(0), map.owner(99)), (Some(&at("asked", 1)), Some(&at("asked", 1))));
        assert_eq!((map.owner(100), map.owner(101)), (Some(&at("asked", 2)), None));
        assert_eq!(map.owner(300), Some(&at("10.0.0.3", 3)));
        assert_eq!(map.primaries().len(), 3);
        assert!(map.nodes.contains(&at("h", 4)) && map.nodes.contains(&at("asked", 9)));
        assert_eq!(super::map(&at("asked", 9), 7, &bulk("?")), None);
    }

    fn says(by: u16, epoch: u64, own_epoch: u64, ranges: &[(u16, u16, u16)]) -> NodeReport {
        let ranges = ranges.iter().map(|(first, last, port)| (*first, *last, at("h", *port))).collect();
        let nodes = BTreeSet::from([at("h", by)]);
        NodeReport { by: at("h", by), own_epoch, map: Arc::new(Map { epoch, ranges, nodes }) }
    }

    #[test]
    fn where_nodes_of_one_epoch_differ_a_slot_is_where_a_node_says_that_it_has_it_whoever_answers_first() {
        // Slot 5 has gone from 1 to 2, and 3 has not heard of it.
        let moved = [(0, 4, 1), (5, 5, 2), (6, 9, 1), (10, 19, 2), (20, 29, 3)];
        let before = [(0, 9, 1), (10, 19, 2), (20, 29, 3)];
        let mut report = vec![says(3, 7, 3, &before), says(2, 7, 7, &moved), says(1, 7, 1, &moved)];
        let right = says(1, 7, 1, &moved).map;
        for known in [None, Some(says(3, 7, 3, &before).map), Some(Arc::clone(&right))] {
            for _ in 0..3 {
                report.rotate_left(1);
                assert!(agreed(report.clone(), known.as_deref()).expect("a map").agrees_with(&right));
            }
        }
        // The one that gave it away has not heard of it either: the newest of those that say so has it.
        let report = vec![says(1, 7, 1, &before), says(2, 7, 7, &moved), says(3, 7, 3, &before)];
        assert!(agreed(report, None).expect("a map").agrees_with(&right));
        // Nobody says so of itself: what is known stays, whoever answers first.
        let mut report = vec![says(1, 7, 1, &moved), says(2, 7, 2, &before), says(3, 7, 3, &before)];
        for known in [says(1, 7, 1, &moved).map, says(1, 7, 1, &before).map] {
            for _ in 0..3 {
                report.rotate_left(1);
                assert!(agreed(report.clone(), Some(&known)).expect("a map").agrees_with(&known));
            }
        }
        // One that was away, and comes back with what it had, is of an earlier epoch.
        let report = vec![says(1, 6, 1, &before), says(2, 7, 7, &moved)];
        assert!(agreed(report, None).expect("a map").agrees_with(&right));
        assert_eq!(agreed(Vec::new(), Some(&right)), None);
    }

    #[test]
    fn what_a_node_counts_of_its_messages_is_no_part_of_the_state() {
        let info = |state: &str, messages: u32, links: u32| {
            let counted =
                format!("cluster_stats_messages_sent:{messages}\r\ntotal_cluster_links_buffer_limit_exceeded:{links}");
            format!("cluster_state:{state}\r\ncluster_current_epoch:7\r\n{counted}\r\n")
        };
        assert_eq!(state(&info("ok", 1, 0)), "cluster_state:ok\ncluster_current_epoch:7");
        assert_eq!(state(&info("ok", 1, 0)), state(&info("ok", 2, 1)));
        assert_ne!(state(&info("ok", 1, 0)), state(&info("fail", 1, 0)));
    }

    #[test]
    fn a_map_that_was_asked_for_earlier_never_replaces_a_newer_one() {
        let cluster = Cluster::new(vec![at("h", 1)], Login { user: None, password: Password::None, database: 0 }, None);
        let map = |epoch| Map::clone(&says(1, epoch, epoch, &[(0, 9, 1)]).map);
        let first = cluster.keep(None, map(5));
        let second = cluster.keep(Some(&first), map(7));
        assert_eq!(cluster.keep(Some(&first), map(6)).epoch, 7, "the other one came meanwhile");
        assert_eq!(cluster.newest().expect("a map").epoch, 7);
        assert_eq!(
            cluster.keep(Some(&second), map(3)).epoch,
            3,
            "no node has a better one: a cluster that was made anew"
        );
    }
}
