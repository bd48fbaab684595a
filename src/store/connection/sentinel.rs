//! Sentinels: they know which server is the primary, and say when it is another one.
//!
//! Any of them may be behind the others. So each answer comes with the number of the failover that made it so (`config-epoch`), and a
//! connection is given up only for an answer with a higher one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::login::Login;
use super::peer::{Failed, OnPush, Peer, Place};
use crate::config::connection::{Node, SentinelSettings, TlsSettings};

/// How long a sentinel may take for an answer. The next one may know more.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The wait before a sentinel that is away is asked again whether it saw another primary.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Messages of sentinels when there is another primary: of the one that made it so at once, and of all when the failover is over, which
/// may be long after where there are many replicas.
const NEWS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The sentinels of an address.
#[derive(Debug)]
pub(in crate::store) struct Sentinels {
    nodes: Vec<Node>,
    master: String,
    pub(super) login: Login,
    tls: Option<TlsSettings>,
    /// The one that is asked first: it was right the last time.
    first: AtomicUsize,
}

/// The primary that a sentinel names.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) node: Node,
    /// The failover that made it the primary: the newer, the higher.
    epoch: u64,
}

/// As errors name them.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(Node::to_string).collect();
        write!(f, "{} of Sentinel ({})", self.master, nodes.join(", "))
    }
}

/// Why a question was refused, and the way out.
fn refused(why: &RedisError) -> String {
    if why.code() == Some("NOPERM") {
        return format!("{why}; give the user of redis.sentinel.user that right, with ACL SETUSER on the sentinel");
    }
    if why.to_string().contains("unknown command") {
        return "it is no sentinel; name the port of a sentinel in redis.sentinel.nodes, mostly 26379".to_owned();
    }
    why.to_string()
}

impl Sentinels {
    pub(super) fn new(settings: &SentinelSettings, login: Login, tls: Option<TlsSettings>) -> Self {
        let (nodes, master) = (settings.nodes.clone(), settings.master.clone());
        Self { nodes, master, login, tls, first: AtomicUsize::new(0) }
    }

    /// The name of the primary.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// Each of them once, in the order in which they are asked.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, n) = (self.first.load(Ordering::Relaxed), self.nodes.len());
        (0..n).map(move |i| (first + i) % n)
    }

    /// This one was right.
    pub(super) fn found_by(&self, which: usize) {
        self.first.store(which, Ordering::Relaxed);
    }

    /// Ask one of them for the primary.
    pub(super) async fn ask(&self, which: usize) -> Result<Found, String> {
        let (mut calls, _driver) = self.open(which, &(Arc::new(|_: &PushInfo| {}) as OnPush)).await?;
        self.primary(&mut calls).await.map_err(|why| format!("sentinel {}: {why}", self.nodes[which]))
    }

    async fn open(
        &self,
        which: usize,
        on_push: &OnPush,
    ) -> Result<(MultiplexedConnection, AbortOnDropHandle<()>), String> {
        let (place, tls) = (Place::Node(&self.nodes[which]), self.tls.as_ref());
        let (named_in, password_in) = ("redis.sentinel.nodes", "redis.sentinel.password_file");
        let peer = Peer { place, login: &self.login, tls, named_in, password_in };
        peer.open(ANSWER_WITHIN, ANSWER_WITHIN, on_push).await.map_err(|why| match why {
            Failed::Loading => format!("sentinel {}: it is loading its data: is that a sentinel?", self.nodes[which]),
            Failed::For(why) => format!("sentinel {}: {why}", self.nodes[which]),
        })
    }

    async fn primary(&self, calls: &mut MultiplexedConnection) -> Result<Found, String> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let address: Option<(String, u16)> = ask.query_async(calls).await.map_err(|why| refused(&why))?;
        let Some((host, port)) = address else {
            return Err(format!("it watches no {:?}; is redis.sentinel.master right?", self.master));
        };
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("MASTER").arg(&self.master);
        let more: HashMap<String, String> = ask.query_async(calls).await.map_err(|why| refused(&why))?;
        let epoch = more.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
        Ok(Found { node: Node { host, port }, epoch })
    }

    /// Wait until one of them knows of a newer primary than the one in use. That one is asked first from then on.
    pub(super) async fn until_another(&self, used: &Found) {
        let mut listening: FuturesUnordered<_> =
            (0..self.nodes.len()).map(|which| self.until_this_one_says_so(which, used)).collect();
        if let Some(which) = listening.next().await {
            self.found_by(which);
        }
    }

    async fn until_this_one_says_so(&self, which: usize, used: &Found) -> usize {
        loop {
            // A sentinel that is away says nothing; others do.
            if self.hears_of_another(which, used).await.is_ok() {
                return which;
            }
            sleep(LISTEN_AGAIN).await;
        }
    }

    /// Listen to one of them until it knows of another primary, or cannot be heard any more.
    async fn hears_of_another(&self, which: usize, used: &Found) -> Result<(), String> {
        let (news, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (heard, ended) = (Arc::clone(&news), Arc::clone(&gone));
        let on_push: OnPush = Arc::new(move |push| match push.kind {
            PushKind::Message => heard.notify_one(),
            PushKind::Disconnection => ended.notify_one(),
            _ => {}
        });
        let (mut calls, _driver) = self.open(which, &on_push).await?;
        calls.subscribe(&NEWS[..]).await.map_err(|why| why.to_string())?;
        loop {
            // Ask for the primary also at the beginning: it may have changed before anybody listened.
            let found = self.primary(&mut calls).await?;
            if found.epoch > used.epoch && found.node != used.node {
                return Ok(());
            }
            tokio::select! {
                () = news.notified() => {}
                () = gone.notified() => return Err("it ended the connection".to_owned()),
            }
        }
    }
}
