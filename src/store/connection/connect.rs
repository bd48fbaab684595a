//! How a connection is made, from what the operator named to a server that may be used:
//!
//! - which server: the one that is named, the primary that a sentinel names (`sentinel`), or one of a cluster's (`topology` knows which);
//! - a stream: TCP with keep-alive, or a Unix socket; TLS on it where that is asked for (`tls`);
//! - a login: HELLO 3 AUTH, with the user and the password of `address`;
//! - its role: what a sentinel or a cluster named must call itself a master.
//!
//! Passwords, certificates and keys are read from their files each time, so that new ones need no restart; a connection that is there
//! already does not notice them. It ends with its last clone, or when sentinels name another primary: it is cut then, as if the server
//! had ended it, for whoever uses a lost connection asks anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::address::{Address, At};
use super::error::StoreError;
use super::peer::{self, CONNECT_TO_PRIMARY_WITHIN, Failed, OnPush, Peer, Place};
use super::sentinel::{Found, Sentinels};
use super::text::Text;
use super::timing;
use crate::config::connection::Node;

/// How long it may take until a server can be used that the configuration names.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The reason given while a connection is lost and the next look is still to come.
pub(in crate::store) const LOST: &str = "the connection was lost";

/// A connection, and the server that it leads to.
#[derive(Debug, Clone)]
pub(in crate::store) struct Connection {
    pub(in crate::store) calls: MultiplexedConnection,
    /// The server, as it may be shown.
    pub(in crate::store) at: Arc<str>,
    /// Of a cluster: to which server.
    pub(in crate::store) cluster_node: Option<Arc<NodeConnection>>,
    /// The tasks that move its bytes and watch the sentinels: they end with the last clone.
    _tasks: Arc<[AbortOnDropHandle<()>]>,
}

/// A connection to one of a cluster's servers.
#[derive(Debug)]
pub(in crate::store) struct NodeConnection {
    pub(in crate::store) node: Node,
    /// No other connection of this process has this id.
    pub(super) id: u64,
    lost: AtomicBool,
    look: Arc<Notify>,
}

impl NodeConnection {
    pub(super) fn new(node: Node, look: Arc<Notify>) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self { node, id, lost: AtomicBool::new(false), look }
    }

    pub(in crate::store) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Give the connection up: another one is made in its place.
    pub(in crate::store) fn give_up(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }
}

impl Connection {
    /// The id of the connection, of a cluster.
    pub(in crate::store) fn connection_id(&self) -> Option<u64> {
        self.cluster_node.as_ref().map(|node_connection| node_connection.id)
    }

    /// Of a cluster: whether the connection broke or hangs.
    pub(in crate::store) fn is_lost(&self) -> bool {
        self.cluster_node.as_ref().is_some_and(|node_connection| node_connection.is_lost())
    }

    /// Of a cluster: another connection is to be made in place of this one.
    pub(in crate::store) fn give_up(&self) {
        if let Some(node_connection) = &self.cluster_node {
            node_connection.give_up();
        }
    }

    /// Refuse a server that is too old, a sentinel, and a node of a cluster that was named as a server of its own.
    pub(in crate::store) async fn check_version(&mut self) -> Result<(), StoreError> {
        let began = Instant::now();
        let info: Result<Text, _> = redis::cmd("INFO").arg("server").query_async(&mut self.calls).await;
        timing::took("INFO", began.elapsed());
        let Text(info) = info.map_err(|why| StoreError::of_call(&self.at, "INFO", &why))?;
        let is_one_of = |modes: [&str; 2]| info.lines().any(|line| modes.contains(&line));
        let unusable = |why: String| Err(StoreError::Unusable { address: self.at.to_string(), why });
        if is_one_of(["redis_mode:sentinel", "server_mode:sentinel"]) {
            return unusable("it is a sentinel; name it in redis.sentinel.nodes, in place of redis.url".to_owned());
        }
        if self.cluster_node.is_none() && is_one_of(["redis_mode:cluster", "server_mode:cluster"]) {
            let way_out = "name it in redis.cluster, in place of redis.url, with redis.partitions beside it";
            return unusable(format!("it is a node of a cluster; {way_out}"));
        }
        let version = version_in(&info);
        let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if major >= 7 { Ok(()) } else { unusable(format!("server is {version}, 7.0 or newer is needed")) }
    }
}

/// The version in what a server says of itself.
pub(in crate::store) fn version_in(info: &str) -> String {
    let find = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    find("valkey_version:").or_else(|| find("redis_version:")).unwrap_or_else(|| "unknown".to_owned())
}

/// Connect to what the map of a cluster calls a primary, and see that it is one.
pub(super) async fn to_primary_of_cluster(
    address: &Address,
    node_connection: Arc<NodeConnection>,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, String> {
    let (mut calls, driver) =
        peer::to_node(&node_connection.node, &address.login, address.tls.as_ref(), answer_within, on_push).await?;
    must_be_master(&mut calls).await.map_err(Failed::in_words)?;
    let at = node_connection.node.to_string().into();
    Ok(Connection { calls, at, cluster_node: Some(node_connection), _tasks: Arc::new([driver]) })
}

/// Connect to the server of an address that is no cluster, for calls that are answered within a time.
pub(in crate::store) async fn connect(
    address: &Address,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let place = match &address.at {
        At::Node(node) => Place::Node(node),
        At::Socket(path) => Place::Socket(path),
        At::Sentinels(sentinels) => return to_primary(address, sentinels, answer_within, on_push).await,
        At::Cluster(_) => {
            let why = "a cluster has no server for all keys".to_owned();
            return Err(unusable(Failed::For(why), address));
        }
    };
    let (named_in, password_in) = ("redis.url", "redis.password_file");
    let peer = Peer { place, login: &address.login, tls: address.tls.as_ref(), named_in, password_in };
    let opened = peer.open(CONNECT_WITHIN, answer_within, on_push).await;
    let (calls, driver) = opened.map_err(|why| unusable(why, address))?;
    Ok(Connection { calls, at: address.redacted().into(), cluster_node: None, _tasks: Arc::new([driver]) })
}

/// Ask the sentinels in turn until one names a server that calls itself a master, and connect to that.
async fn to_primary(
    address: &Address,
    sentinels: &Arc<Sentinels>,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let (mut tried, mut whys): (Vec<Node>, Vec<String>) = (Vec::new(), Vec::new());
    for which in sentinels.in_turn() {
        let found = match sentinels.ask(which).await {
            Ok(found) if tried.contains(&found.node) => continue,
            Ok(found) => found,
            Err(why) => {
                whys.push(why);
                continue;
            }
        };
        let (place, tls) = (Place::Node(&found.node), address.tls.as_ref());
        let (named_in, password_in) = ("redis.sentinel", "redis.password_file");
        let peer = Peer { place, login: &address.login, tls, named_in, password_in };
        let opened = async {
            let (mut calls, driver) = peer.open(CONNECT_TO_PRIMARY_WITHIN, answer_within, on_push).await?;
            must_be_master(&mut calls).await?;
            Ok((calls, driver))
        };
        match opened.await {
            Ok((calls, driver)) => {
                sentinels.found_by(which);
                let at = format!("{} ({} of Sentinel)", found.node, sentinels.master()).into();
                let watch = watch(Arc::clone(sentinels), found, &driver, on_push);
                return Ok(Connection { calls, at, cluster_node: None, _tasks: Arc::new([watch, driver]) });
            }
            Err(Failed::Loading) => whys.push(format!("{} is loading its data", found.node)),
            Err(Failed::For(why)) => whys.push(format!("{}: {why}", found.node)),
        }
        tried.push(found.node);
    }
    Err(unusable(Failed::For(whys.join("; ")), address))
}

/// Cut a connection when a sentinel names another primary than the one that it leads to.
fn watch(
    sentinels: Arc<Sentinels>,
    used: Found,
    driver: &AbortOnDropHandle<()>,
    on_push: &OnPush,
) -> AbortOnDropHandle<()> {
    let (driver, on_push) = (driver.abort_handle(), Arc::clone(on_push));
    AbortOnDropHandle::new(tokio::spawn(async move {
        sentinels.until_another(&used).await;
        driver.abort();
        on_push(&PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
    }))
}

async fn must_be_master(calls: &mut MultiplexedConnection) -> Result<(), Failed> {
    let role: Result<Vec<Value>, _> = redis::cmd("ROLE").query_async(calls).await;
    match role {
        Ok(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            Some(Value::BulkString(role)) => {
                Err(Failed::For(format!("it calls itself a {}, not a master", String::from_utf8_lossy(role))))
            }
            other => Err(Failed::For(format!("it answers ROLE with {other:?}"))),
        },
        Err(why) if why.code() == Some("NOPERM") => Err(Failed::For(
            "with Sentinel, and in a cluster, the user that dripd logs in as must be allowed to call ROLE: ACL SETUSER … +role".to_owned(),
        )),
        Err(why) => Err(Failed::For(format!("it does not answer ROLE: {why}"))),
    }
}

/// The error of an address whose server, or servers, cannot be used.
fn unusable(why: Failed, address: &Address) -> StoreError {
    let address = address.redacted().to_owned();
    match why {
        Failed::Loading => StoreError::Loading { address },
        Failed::For(why) => StoreError::Unusable { address, why },
    }
}
