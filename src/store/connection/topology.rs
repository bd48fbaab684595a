//! The topology: where the calls of each partition go. On one server that never changes. On a cluster a task keeps it true: it asks for the
//! map, connects to every primary that the map names, and replaces connections that were lost. A partition whose server cannot be reached is
//! away, and calls on it say so. The task looks again every second, and at once when a connection was lost or a call came to the wrong server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{PushInfo, PushKind};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::address::Address;
use super::cluster::{Cluster, Map};
use super::connect::{self, Connection, LOST, NodeConnection};
use super::error::StoreError;
use super::migrations::Migrations;
use super::peer::{LOADING, OnPush};
use crate::config::connection::Node;
use crate::model::partitioning;

/// How long an answer may take: an append to a slow disk may stall for two seconds.
pub(in crate::store) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The wait between two looks at the map: while all is there, and while something is away.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How long a call that came to the wrong server waits for the right one.
const FOUND_WITHIN: Duration = Duration::from_secs(3);

/// Where the calls of a store go.
#[derive(Debug, Clone)]
pub(in crate::store) enum Access {
    Connected(Connection),
    Unavailable(Arc<Unavailable>),
}

/// Why there is no server.
#[derive(Debug)]
pub(in crate::store) struct Unavailable {
    pub(in crate::store) node: String,
    pub(in crate::store) why: String,
}

impl Access {
    fn unavailable(node: &str, why: impl Into<String>) -> Self {
        Self::Unavailable(Arc::new(Unavailable { node: node.to_owned(), why: why.into() }))
    }

    /// Whether both lead to the same place, or say the same of why they do not.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Connected(one), Self::Connected(other)) => one.connection_id() == other.connection_id(),
            (Self::Unavailable(one), Self::Unavailable(other)) => one.why == other.why && one.node == other.node,
            _ => false,
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Connected(connection) if connection.is_lost())
    }
}

/// The map of a cluster and its servers at a moment.
#[derive(Debug, Default)]
struct State {
    map: Option<Arc<Map>>,
    servers: BTreeMap<Node, Access>,
}

/// Where the calls of each partition of a system go.
pub(in crate::store) struct Topology {
    /// By the number of the partition.
    accesses: RwLock<Arc<[Access]>>,
    live: Option<Live>,
}

/// The part that keeps the ways into a cluster true.
struct Live {
    address: Address,
    cluster: Arc<Cluster>,
    /// The key slot of each partition, by number.
    slots: Vec<u16>,
    on_push: OnPush,
    state: RwLock<State>,
    look: Arc<Notify>,
    /// A call came to the wrong server: all nodes are to be asked.
    moved: AtomicBool,
    /// How many looks began.
    begun: AtomicU64,
    /// The last look that is over.
    done: watch::Sender<u64>,
    /// Grows with each change.
    changed: watch::Sender<u64>,
    /// Until then a call waits for a partition that is away.
    patience: OnceLock<Instant>,
    /// The partitions whose slot was on the move.
    migrations: Migrations,
    _task: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology").field("accesses", &self.all()).finish_non_exhaustive()
    }
}

impl Topology {
    /// All on one server.
    pub(in crate::store) fn fixed(access: Access, partitions: u8) -> Arc<Self> {
        let accesses = vec![access; usize::from(partitions)].into();
        Arc::new(Self { accesses: RwLock::new(accesses), live: None })
    }

    /// On the primaries of a cluster, of which one at least answers.
    pub(in crate::store) async fn live(
        address: &Address,
        cluster: &Arc<Cluster>,
        partitions: u8,
        on_push: OnPush,
    ) -> Result<Arc<Self>, StoreError> {
        let topology = Arc::new_cyclic(|topology: &Weak<Self>| {
            let look = Arc::new(Notify::new());
            let task = AbortOnDropHandle::new(tokio::spawn(keep(Weak::clone(topology), Arc::clone(&look))));
            let nobody = Access::unavailable(address.redacted(), "it was not asked yet");
            let accesses = vec![nobody; usize::from(partitions)].into();
            let live = Live {
                address: address.clone(),
                cluster: Arc::clone(cluster),
                slots: (0..partitions).map(slot_of).collect(),
                on_push,
                state: RwLock::default(),
                look,
                moved: AtomicBool::new(false),
                begun: AtomicU64::new(0),
                done: watch::Sender::new(0),
                changed: watch::Sender::new(0),
                patience: OnceLock::new(),
                migrations: Migrations::default(),
                _task: task,
            };
            Self { accesses: RwLock::new(accesses), live: Some(live) }
        });
        let (address, unusable) = (address.redacted().to_owned(), |why| {
            let address = address.redacted().to_owned();
            StoreError::Unusable { address, why }
        });
        topology.look().await.map_err(unusable)?;
        topology.live_part().look.notify_one();
        let servers: Vec<Access> = topology.state().servers.values().cloned().collect();
        if servers.iter().any(|server| matches!(server, Access::Connected(_))) {
            return Ok(topology);
        }
        let whys = servers.iter().filter_map(|server| match server {
            Access::Unavailable(unavailable) => Some(format!("{}: {}", unavailable.node, unavailable.why)),
            Access::Connected(_) => None,
        });
        let whys: Vec<String> = whys.collect();
        let why = if whys.is_empty() {
            "no node of it has any key slots; CLUSTER ADDSLOTS gives them out".to_owned()
        } else {
            whys.join("; ")
        };
        if !whys.is_empty() && whys.iter().all(|why| why.ends_with(LOADING)) {
            return Err(StoreError::Loading { address });
        }
        Err(unusable(why))
    }

    /// Of a cluster: they change.
    pub(in crate::store) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// By the number of the partition.
    pub(in crate::store) fn all(&self) -> Arc<[Access]> {
        Arc::clone(&self.accesses.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::store) fn at(&self, number: u8) -> Access {
        self.accesses.read().unwrap_or_else(PoisonError::into_inner)[usize::from(number)].clone()
    }

    /// Of a cluster: the migrations of its partitions.
    pub(in crate::store) fn migrations(&self) -> Option<&Migrations> {
        self.live.as_ref().map(|live| &live.migrations)
    }

    fn live_part(&self) -> &Live {
        self.live.as_ref().expect("asked of a cluster only")
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.live_part().state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to whoever has a slot.
    pub(in crate::store) fn access(&self, slot: u16) -> Access {
        let (state, address) = (self.state(), self.live_part().address.redacted());
        state.access(slot, address)
    }

    /// Let calls wait until then for a partition that is away.
    pub(in crate::store) fn be_patient(&self, until: Instant) {
        if let Some(live) = &self.live {
            let _ = live.patience.set(until);
        }
    }

    /// The way to whoever has a slot, as soon as there is one that can be used; the last word after as much patience as there is.
    pub(in crate::store) async fn await_available(&self, slot: u16) -> Access {
        let live = self.live_part();
        let Some(until) = live.patience.get() else { return self.access(slot) };
        let mut changed = live.changed.subscribe();
        let is_back = async {
            while !matches!(self.access(slot), Access::Connected(_)) || self.access(slot).is_lost() {
                changed.changed().await.expect("this topology has the other end");
            }
        };
        let _ = timeout_at((*until).into(), is_back).await;
        self.access(slot)
    }

    /// A number that grows with each change.
    pub(in crate::store) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.live.as_ref().map(|live| live.changed.subscribe())
    }

    /// Every connection that can be used.
    pub(in crate::store) fn connections(&self) -> Vec<Connection> {
        self.state().servers.values().filter(|access| !access.is_lost()).filter_map(connected).cloned().collect()
    }

    /// The connection of an id is of no use any more.
    pub(in crate::store) fn give_up(&self, id: u64) {
        self.connections().iter().filter(|one| one.connection_id() == Some(id)).for_each(Connection::give_up);
    }

    /// A call came to the wrong server: wait until somebody has looked since. Replies whether that came to an end.
    pub(in crate::store) async fn await_refresh(&self) -> bool {
        let live = self.live_part();
        let (mut done, wanted) = (live.done.subscribe(), live.begun.load(Ordering::Relaxed) + 1);
        live.moved.store(true, Ordering::Relaxed);
        live.look.notify_one();
        timeout(FOUND_WITHIN, done.wait_for(|done| *done >= wanted)).await.is_ok()
    }

    /// Whether every partition has a server.
    fn is_complete(&self) -> bool {
        self.all().iter().all(|access| matches!(access, Access::Connected(_)))
    }

    /// One look: the map, connections to all primaries, and what follows for each partition.
    async fn look(self: &Arc<Self>) -> Result<(), String> {
        let live = self.live_part();
        let number = live.begun.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(|state| {
            for (node, access) in state.servers.iter_mut().filter(|(_, access)| access.is_lost()) {
                *access = Access::unavailable(&node.to_string(), LOST);
            }
        });
        let open =
            self.connections().into_iter().filter_map(|one| Some((one.cluster_node.as_ref()?.node.clone(), one.calls)));
        let moved = live.moved.swap(false, Ordering::Relaxed);
        let calm = !moved && self.is_complete();
        let asked = live.cluster.ask(open.collect(), calm, moved).await;
        let known = live.cluster.newest();
        if let Some(map) = known {
            let missing = {
                let state = self.state();
                let is_there =
                    |node: &Node| state.servers.get(node).is_some_and(|access| matches!(access, Access::Connected(_)));
                map.primaries().into_iter().filter(|node| !is_there(node)).cloned().collect::<Vec<Node>>()
            };
            let made = join_all(missing.into_iter().map(|node| live.connect(node))).await;
            self.put(|state| {
                state.servers.extend(made);
                state.servers.retain(|node, _| map.primaries().contains(node));
                state.map = Some(Arc::clone(&map));
            });
        }
        live.done.send_replace(number);
        asked.map(drop)
    }

    /// Change what leads where, and with it where the calls of each partition go.
    fn put(self: &Arc<Self>, change: impl FnOnce(&mut State)) {
        let live = self.live_part();
        let mut state = live.state.write().unwrap_or_else(PoisonError::into_inner);
        let servers = |state: &State| state.servers.clone();
        let before = servers(&state);
        change(&mut state);
        let is_as_it_was = before.len() == state.servers.len()
            && before.iter().all(|(node, access)| state.servers.get(node).is_some_and(|now| now.is_like(access)));
        let mut accesses = self.accesses.write().unwrap_or_else(PoisonError::into_inner);
        let made = live.slots.iter().map(|slot| state.access(*slot, live.address.redacted()));
        let made: Arc<[Access]> = made.collect();
        let same = made.iter().zip(accesses.iter()).all(|(now, before)| now.is_like(before));
        if !(same && is_as_it_was) {
            *accesses = made;
            drop((accesses, state));
            live.changed.send_modify(|n| *n += 1);
        }
    }
}

impl State {
    fn access(&self, slot: u16, cluster: &str) -> Access {
        let owner = self.map.as_ref().and_then(|map| map.owner(slot));
        match owner {
            None if self.map.is_none() => Access::unavailable(cluster, "no node told who has its key slot"),
            None => Access::unavailable(cluster, nobody_has(slot)),
            Some(node) => match self.servers.get(node) {
                Some(access) => access.clone(),
                None => Access::unavailable(&node.to_string(), "it is not connected yet"),
            },
        }
    }
}

impl Live {
    async fn connect(&self, node: Node) -> (Node, Access) {
        let node_connection = Arc::new(NodeConnection::new(node.clone(), Arc::clone(&self.look)));
        let (told, its) = (Arc::clone(&self.on_push), Arc::clone(&node_connection));
        let on_push: OnPush = Arc::new(move |push: &PushInfo| {
            if push.kind == PushKind::Disconnection {
                its.give_up();
            } else {
                told(push);
            }
        });
        let made = async {
            let made = connect::to_primary_of_cluster(&self.address, node_connection, ANSWER_WITHIN, &on_push).await;
            let mut made = made?;
            made.check_version().await.map_err(|why| match why {
                StoreError::Unusable { why, .. } => why,
                why => why.to_string(),
            })?;
            Ok::<_, String>(made)
        };
        let access = match made.await {
            Ok(connection) => Access::Connected(connection),
            Err(why) => Access::unavailable(&node.to_string(), why),
        };
        (node, access)
    }
}

/// A connection of one's own to the server that has a partition now.
pub(in crate::store) async fn open(
    address: &Address,
    cluster: &Cluster,
    partition: u8,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let away = |node: &str, why| StoreError::Away { partition, node: node.to_owned(), why };
    let map = cluster.ask(Vec::new(), false, true).await.map_err(|why| away(address.redacted(), why))?;
    let slot = slot_of(partition);
    let node = map.owner(slot).ok_or_else(|| away(address.redacted(), nobody_has(slot)))?;
    let node_connection = Arc::new(NodeConnection::new(node.clone(), Arc::default()));
    let opened = connect::to_primary_of_cluster(address, node_connection, answer_within, on_push).await;
    opened.map_err(|why| away(&node.to_string(), why))
}

/// Why a slot leads nowhere.
fn nobody_has(slot: u16) -> String {
    format!("no server has its key slot {slot}; CLUSTER ADDSLOTS gives it to one")
}

fn connected(access: &Access) -> Option<&Connection> {
    match access {
        Access::Connected(connection) => Some(connection),
        Access::Unavailable(_) => None,
    }
}

/// The key slot of a partition.
pub(in crate::store) fn slot_of(partition: u8) -> u16 {
    partitioning::slot(partition.to_string().as_bytes())
}

/// Look again and again, as long as somebody uses the topology.
async fn keep(topology: Weak<Topology>, look: Arc<Notify>) {
    look.notified().await; // the first one is made by whoever connects
    loop {
        let wait = {
            let Some(topology) = topology.upgrade() else { return };
            if let Err(why) = topology.look().await {
                debug!(why, "no node of the cluster tells who has which slots");
            }
            if topology.is_complete() { LOOK_EVERY } else { LOOK_AGAIN }
        };
        tokio::select! { () = look.notified() => {}, () = sleep(wait) => {} }
    }
}
