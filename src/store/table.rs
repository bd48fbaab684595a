//! Where the calls of each partition go. On one server that never changes. On a cluster a task keeps it true: it asks for the map, connects
//! to every primary that the map names, and replaces what leads nowhere any more; a partition whose server cannot be reached is away, and
//! calls on it say so. It looks again every second, and at once when a connection was lost or a call came to the wrong server.

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

use super::cluster::{Cluster, Map};
use super::connect::{self, Connection, LOADING, OnPush};
use super::partition::{Layout, Partition};
use super::still::Still;
use super::{ANSWER_WITHIN, Address, Store, StoreError};
use crate::config::connection::Node;
use crate::words::cut;

/// The wait between two looks at the map: while all is there, and while something is away.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How long a call that came to the wrong server waits for the right one.
const FOUND_WITHIN: Duration = Duration::from_secs(3);

/// What is said of a server whose connection broke, until it is known what became of it.
pub(super) const LOST: &str = "the connection was lost";

/// Where the calls of a store go.
#[derive(Debug, Clone)]
pub(super) enum Reach {
    Here(Connection),
    Away(Arc<Away>),
}

/// Why there is no server.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) node: String,
    pub(super) why: String,
}

impl Reach {
    fn away(node: &str, why: impl Into<String>) -> Self {
        Self::Away(Arc::new(Away { node: node.to_owned(), why: why.into() }))
    }

    /// Whether both lead to the same place, or say the same of why they do not.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Here(one), Self::Here(other)) => one.line() == other.line(),
            (Self::Away(one), Self::Away(other)) => one.why == other.why && one.node == other.node,
            _ => false,
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Here(connection) if connection.line.as_ref().is_some_and(|line| line.is_lost()))
    }
}

/// A connection to one of a cluster's servers.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) node: Node,
    /// No other connection of this process has this number.
    pub(super) number: u64,
    lost: AtomicBool,
    look: Arc<Notify>,
}

impl Line {
    fn new(node: Node, look: Arc<Notify>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Self { node, number, lost: AtomicBool::new(false), look }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// It is of no use any more.
    pub(super) fn give_up(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }
}

/// What leads where at a moment.
#[derive(Debug, Default)]
struct State {
    map: Option<Arc<Map>>,
    lines: BTreeMap<Node, Reach>,
}

/// The stores of a system, by number.
pub(super) struct Table {
    stores: RwLock<Arc<[Store]>>,
    live: Option<Live>,
}

/// What keeps those of a cluster true.
struct Live {
    address: Address,
    cluster: Arc<Cluster>,
    layout: Arc<Layout>,
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
    /// The partitions that stood still.
    still: Still,
    _task: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("stores", &self.all()).finish_non_exhaustive()
    }
}

impl Table {
    /// All on one server.
    pub(super) fn fixed(stores: Arc<[Store]>) -> Arc<Self> {
        Arc::new(Self { stores: RwLock::new(stores), live: None })
    }

    /// On the primaries of a cluster, of which one at least answers.
    pub(super) async fn live(
        address: &Address,
        cluster: &Arc<Cluster>,
        layout: &Arc<Layout>,
        on_push: OnPush,
    ) -> Result<Arc<Self>, StoreError> {
        let table = Arc::new_cyclic(|table: &Weak<Self>| {
            let look = Arc::new(Notify::new());
            let task = AbortOnDropHandle::new(tokio::spawn(keep(Weak::clone(table), Arc::clone(&look))));
            let nobody = Reach::away(address.shown(), "it was not asked yet");
            let stores = layout.all().map(|partition| Store::of_table(nobody.clone(), partition, table));
            let live = Live {
                address: address.clone(),
                cluster: Arc::clone(cluster),
                layout: Arc::clone(layout),
                on_push,
                state: RwLock::default(),
                look,
                moved: AtomicBool::new(false),
                begun: AtomicU64::new(0),
                done: watch::Sender::new(0),
                changed: watch::Sender::new(0),
                patience: OnceLock::new(),
                still: Still::default(),
                _task: task,
            };
            Self { stores: RwLock::new(stores.collect()), live: Some(live) }
        });
        let (address, unusable) = (address.shown().to_owned(), |why| {
            let address = address.shown().to_owned();
            StoreError::Unusable { address, why }
        });
        table.look().await.map_err(unusable)?;
        table.live_part().look.notify_one();
        let lines: Vec<Reach> = table.state().lines.values().cloned().collect();
        if lines.iter().any(|line| matches!(line, Reach::Here(_))) {
            return Ok(table);
        }
        let whys = lines.iter().filter_map(|line| match line {
            Reach::Away(away) => Some(format!("{}: {}", away.node, away.why)),
            Reach::Here(_) => None,
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
    pub(super) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    pub(super) fn all(&self) -> Arc<[Store]> {
        Arc::clone(&self.stores.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn at(&self, number: u8) -> Store {
        self.stores.read().unwrap_or_else(PoisonError::into_inner)[usize::from(number)].clone()
    }

    /// Of a cluster: the partitions that stood still.
    pub(super) fn still(&self) -> Option<&Still> {
        self.live.as_ref().map(|live| &live.still)
    }

    fn live_part(&self) -> &Live {
        self.live.as_ref().expect("asked of a cluster only")
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.live_part().state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to whoever has a slot.
    pub(super) fn reach(&self, slot: u16) -> Reach {
        let (state, address) = (self.state(), self.live_part().address.shown());
        state.reach(slot, address)
    }

    /// Let calls wait until then for a partition that is away.
    pub(super) fn be_patient(&self, until: Instant) {
        if let Some(live) = &self.live {
            let _ = live.patience.set(until);
        }
    }

    /// The way to whoever has a slot, as soon as there is one that can be used; the last word after as much patience as there is.
    pub(super) async fn come_back(&self, slot: u16) -> Reach {
        let live = self.live_part();
        let Some(until) = live.patience.get() else { return self.reach(slot) };
        let mut changed = live.changed.subscribe();
        let is_back = async {
            while !matches!(self.reach(slot), Reach::Here(_)) || self.reach(slot).is_lost() {
                changed.changed().await.expect("this table has the other end");
            }
        };
        let _ = timeout_at((*until).into(), is_back).await;
        self.reach(slot)
    }

    /// A number that grows with each change.
    pub(super) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.live.as_ref().map(|live| live.changed.subscribe())
    }

    /// Every connection that can be used.
    pub(super) fn connections(&self) -> Vec<Connection> {
        self.state().lines.values().filter(|reach| !reach.is_lost()).filter_map(here).cloned().collect()
    }

    /// The connection of a number is of no use any more.
    pub(super) fn give_up(&self, number: u64) {
        for connection in self.connections() {
            connection.line.iter().filter(|line| line.number == number).for_each(|line| line.give_up());
        }
    }

    /// A call came to the wrong server: wait until somebody has looked since. Replies whether that came to an end.
    pub(super) async fn looked_anew(&self) -> bool {
        let live = self.live_part();
        let (mut done, wanted) = (live.done.subscribe(), live.begun.load(Ordering::Relaxed) + 1);
        live.moved.store(true, Ordering::Relaxed);
        live.look.notify_one();
        timeout(FOUND_WITHIN, done.wait_for(|done| *done >= wanted)).await.is_ok()
    }

    /// Whether every partition has a server.
    fn is_whole(&self) -> bool {
        self.all().iter().all(|store| matches!(store.reach, Reach::Here(_)))
    }

    /// One look: the map, connections to all primaries, and what follows for each partition.
    async fn look(self: &Arc<Self>) -> Result<(), String> {
        let live = self.live_part();
        let number = live.begun.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(|state| {
            for (node, reach) in state.lines.iter_mut().filter(|(_, reach)| reach.is_lost()) {
                *reach = Reach::away(&node.to_string(), LOST);
            }
        });
        let open = self.connections().into_iter().filter_map(|one| Some((one.line.as_ref()?.node.clone(), one.calls)));
        let moved = live.moved.swap(false, Ordering::Relaxed);
        let calm = !moved && self.is_whole();
        let asked = live.cluster.ask(&live.address, open.collect(), calm, moved).await;
        let known = live.cluster.newest();
        if let Some(map) = known {
            let missing = {
                let state = self.state();
                let is_there = |node: &Node| state.lines.get(node).is_some_and(|reach| matches!(reach, Reach::Here(_)));
                map.primaries().into_iter().filter(|node| !is_there(node)).cloned().collect::<Vec<Node>>()
            };
            let made = join_all(missing.into_iter().map(|node| live.connect(node))).await;
            self.put(|state| {
                state.lines.extend(made);
                state.lines.retain(|node, _| map.primaries().contains(node));
                state.map = Some(Arc::clone(&map));
            });
        }
        live.done.send_replace(number);
        asked.map(drop)
    }

    /// Change what leads where; the stores follow.
    fn put(self: &Arc<Self>, change: impl FnOnce(&mut State)) {
        let live = self.live_part();
        let mut state = live.state.write().unwrap_or_else(PoisonError::into_inner);
        let lines = |state: &State| state.lines.clone();
        let before = lines(&state);
        change(&mut state);
        let is_as_it_was = before.len() == state.lines.len()
            && before.iter().all(|(node, reach)| state.lines.get(node).is_some_and(|now| now.is_like(reach)));
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        let home = Arc::downgrade(self);
        let made = live.layout.all().map(|partition| {
            let reach = state.reach(slot_of(&partition), live.address.shown());
            Store::of_table(reach, partition, &home)
        });
        let made: Arc<[Store]> = made.collect();
        let same = made.iter().zip(stores.iter()).all(|(now, before)| now.reach.is_like(&before.reach));
        if !(same && is_as_it_was) {
            *stores = made;
            drop((stores, state));
            live.changed.send_modify(|n| *n += 1);
        }
    }
}

impl State {
    fn reach(&self, slot: u16, cluster: &str) -> Reach {
        let home = self.map.as_ref().and_then(|map| map.home(slot));
        match home {
            None if self.map.is_none() => Reach::away(cluster, "no node told who has its key slot"),
            None => Reach::away(cluster, nobody_has(slot)),
            Some(node) => match self.lines.get(node) {
                Some(reach) => reach.clone(),
                None => Reach::away(&node.to_string(), "it is not connected yet"),
            },
        }
    }
}

impl Live {
    async fn connect(&self, node: Node) -> (Node, Reach) {
        let line = Arc::new(Line::new(node.clone(), Arc::clone(&self.look)));
        let (told, its) = (Arc::clone(&self.on_push), Arc::clone(&line));
        let on_push: OnPush = Arc::new(move |push: &PushInfo| {
            if push.kind == PushKind::Disconnection {
                its.give_up();
            } else {
                told(push);
            }
        });
        let made = async {
            let made = connect::to_primary_of_cluster(&self.address, line, ANSWER_WITHIN, &on_push).await?;
            Store::of_table(Reach::Here(made.clone()), self.layout.authority(), &Weak::new())
                .check_version()
                .await
                .map_err(|why| match why {
                    StoreError::Unusable { why, .. } => why,
                    why => why.to_string(),
                })?;
            Ok::<_, String>(made)
        };
        let reach = match made.await {
            Ok(connection) => Reach::Here(connection),
            Err(why) => Reach::away(&node.to_string(), why),
        };
        (node, reach)
    }
}

/// A connection of one's own to the server that has a partition now.
pub(super) async fn open(
    address: &Address,
    cluster: &Cluster,
    partition: &Partition,
    answer_within: Duration,
    on_push: &OnPush,
) -> Result<Connection, StoreError> {
    let number = partition.number();
    let away = |node: &str, why| StoreError::Away { partition: number, node: node.to_owned(), why };
    let map = cluster.ask(address, Vec::new(), false, true).await.map_err(|why| away(address.shown(), why))?;
    let slot = slot_of(partition);
    let node = map.home(slot).ok_or_else(|| away(address.shown(), nobody_has(slot)))?;
    let line = Arc::new(Line::new(node.clone(), Arc::default()));
    let opened = connect::to_primary_of_cluster(address, line, answer_within, on_push).await;
    opened.map_err(|why| away(&node.to_string(), why))
}

/// Why a slot leads nowhere.
fn nobody_has(slot: u16) -> String {
    format!("no server has its key slot {slot}; CLUSTER ADDSLOTS gives it to one")
}

fn here(reach: &Reach) -> Option<&Connection> {
    match reach {
        Reach::Here(connection) => Some(connection),
        Reach::Away(_) => None,
    }
}

/// The key slot of a partition.
pub(super) fn slot_of(partition: &Partition) -> u16 {
    cut::slot(partition.number().to_string().as_bytes())
}

/// Look again and again, as long as somebody uses the table.
async fn keep(table: Weak<Table>, look: Arc<Notify>) {
    look.notified().await; // the first one is made by whoever connects
    loop {
        let wait = {
            let Some(table) = table.upgrade() else { return };
            if let Err(why) = table.look().await {
                debug!(why, "no node of the cluster tells who has which slots");
            }
            if table.is_whole() { LOOK_EVERY } else { LOOK_AGAIN }
        };
        tokio::select! { () = look.notified() => {}, () = sleep(wait) => {} }
    }
}
