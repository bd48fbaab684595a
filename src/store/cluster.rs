//! A cluster: its map, which says which primary has which key slots, and how it is asked for.
//!
//! Any node tells it, and any of them may be behind the others. So each answer comes with the epoch of the cluster, which grows with each
//! failover and each slot that moves, and an answer of an earlier epoch than the one that is known is taken only where no node has a
//! better one.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, PushInfo, RedisError, Value};
use tokio::time::timeout;

use super::Address;
use super::connect::{self, OnPush};
use crate::config::connection::Node;

/// How long a node may take for the map. Another one may know it as well.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The nodes of an address, and the newest map that any of them told.
#[derive(Debug)]
pub(super) struct Cluster {
    seeds: Vec<Node>,
    newest: Mutex<Option<Arc<Map>>>,
}

/// Which primary has which key slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Map {
    epoch: u64,
    /// The first slot of a range, the last one, and who has them.
    ranges: Vec<(u16, u16, Node)>,
    /// Every node that it names, replicas too: each can be asked for the next one.
    nodes: BTreeSet<Node>,
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
    pub(super) fn home(&self, slot: u16) -> Option<&Node> {
        self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(.., node)| node)
    }

    /// Who has any.
    pub(super) fn primaries(&self) -> BTreeSet<&Node> {
        self.ranges.iter().map(|(.., node)| node).collect()
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Node>) -> Self {
        Self { seeds, newest: Mutex::default() }
    }

    /// The newest map so far.
    pub(super) fn newest(&self) -> Option<Arc<Map>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ask for the map: on connections that are there, all at once, and where none of them tells it, on new ones.
    ///
    /// # Errors
    ///
    /// Why no node told it: all that were tried.
    pub(super) async fn ask(
        &self,
        address: &Address,
        open: Vec<(Node, MultiplexedConnection)>,
    ) -> Result<Arc<Map>, String> {
        let known = self.newest();
        let (epoch, nodes) = known.as_ref().map_or((0, BTreeSet::new()), |map| (map.epoch, map.nodes.clone()));
        let (mut older, mut whys) = (None, Vec::new());
        let asked = open.into_iter().map(|(node, mut calls)| async move {
            let told = timeout(ANSWER_WITHIN, tell(&node, &mut calls)).await;
            (node, told.unwrap_or_else(|_| Err(format!("it did not answer within {ANSWER_WITHIN:?}"))))
        });
        if let Some(map) = first_good(asked.collect(), epoch, &mut older, &mut Vec::new()).await {
            return Ok(self.keep(map));
        }
        let nodes: BTreeSet<Node> = self.seeds.iter().cloned().chain(nodes).collect();
        let asked = nodes.into_iter().map(|node| async {
            let told = async {
                let no_push: OnPush = Arc::new(|_: &PushInfo| {});
                let (mut calls, _driver) = connect::to_node(address, &node, ANSWER_WITHIN, &no_push).await?;
                tell(&node, &mut calls).await
            };
            let told = told.await;
            (node, told)
        });
        if let Some(map) = first_good(asked.collect(), epoch, &mut older, &mut whys).await {
            return Ok(self.keep(map));
        }
        older.map(|map| self.keep(map)).ok_or_else(|| whys.join("; "))
    }

    fn keep(&self, map: Map) -> Arc<Map> {
        let map = Arc::new(map);
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&map));
        map
    }
}

/// The first answer that is not older than what is known. The newest of the others is kept, and why there is none.
async fn first_good(
    mut asked: FuturesUnordered<impl Future<Output = (Node, Result<Map, String>)>>,
    epoch: u64,
    older: &mut Option<Map>,
    whys: &mut Vec<String>,
) -> Option<Map> {
    while let Some((node, told)) = asked.next().await {
        match told {
            Ok(map) if map.epoch >= epoch => return Some(map),
            Ok(map) if older.as_ref().is_none_or(|older| older.epoch < map.epoch) => *older = Some(map),
            Ok(_) => {}
            Err(why) => whys.push(format!("{node}: {why}")),
        }
    }
    None
}

/// What one node says.
async fn tell(asked: &Node, calls: &mut MultiplexedConnection) -> Result<Map, String> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
    let (info, slots): (Value, Value) = pipeline.query_async(calls).await.map_err(|why| refused(&why))?;
    let info = match info {
        Value::VerbatimString { text, .. } => text,
        other => String::from_redis_value(other).unwrap_or_default(),
    };
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or_default();
    map(asked, epoch, &slots)
        .ok_or_else(|| format!("its CLUSTER SLOTS means nothing to this version of dripd: {slots:?}"))
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
        ranges.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, primary));
    }
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
        assert_eq!((map.home(0), map.home(99)), (Some(&at("asked", 1)), Some(&at("asked", 1))));
        assert_eq!((map.home(100), map.home(101)), (Some(&at("asked", 2)), None));
        assert_eq!(map.home(300), Some(&at("10.0.0.3", 3)));
        assert_eq!(map.primaries().len(), 3);
        assert!(map.nodes.contains(&at("h", 4)) && map.nodes.contains(&at("asked", 9)));
        assert_eq!(super::map(&at("asked", 9), 7, &bulk("?")), None);
    }
}
