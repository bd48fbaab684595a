//! The servers of a cluster: each is made ready, served and lost by itself. When a server is lost only its loops end; when a partition
//! moves to another server its loops follow it. The topology of the store says which server has which partition.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ready::PreparedServer;
use super::reload::Next;
use super::said::LastReason;
use super::{End, Ended, Session};
use crate::model::partitioning::ranges;
use crate::store::acl::Role;
use crate::store::partition::AUTHORITY;
use crate::store::primary::Primary;
use crate::store::{Partitions, StoreError};

/// The wait before a server that could not be served is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The warning while the record waits for the authority.
const AUTHORITY_MOVES: &str = "partition 0 is on the move to another server: it is served, and the configuration of this daemon comes into force, when it \
                               has arrived; until then the other partitions go on with the configuration that they have, and where there is none yet nothing leaves them";

/// The servers of a cluster that are served, or are being made ready.
#[derive(Default)]
pub(super) struct Primaries {
    /// By the number of their connections.
    known: HashMap<u64, Serving>,
    /// When serving a server failed: the next attempt waits a little.
    failed: HashMap<String, Instant>,
    /// Why the log says that a server is not served.
    said: HashMap<String, LastReason>,
    /// Whether `follow` has run once.
    has_begun: bool,
}

impl Primaries {
    /// Whether a server that is being made ready was to put the record into force.
    pub(super) fn stores_record(&self) -> bool {
        self.known.values().any(|serving| serving.stores_record)
    }

    /// Whether serving a server failed a moment ago.
    fn rests(&self, shown: &str) -> bool {
        self.failed.get(shown).is_some_and(|at| at.elapsed() < RETRY_DELAY)
    }

    /// Whether a reason is to be said of a server now. The caller says it then.
    fn is_news(&mut self, shown: &str, why: &str) -> bool {
        self.said.entry(shown.to_owned()).or_default().is_news(why)
    }
}

/// One server. Its connection ends with it, so a reply that comes back late is never taken for that of another session.
struct Serving {
    shown: String,
    /// Ends all its loops.
    stop: CancellationToken,
    /// Ends the loops of each of its partitions.
    partitions: BTreeMap<u8, CancellationToken>,
    reconciler: CancellationToken,
    /// The server, or partitions that came to it, are being made ready.
    is_busy: bool,
    /// The record is put into force meanwhile.
    stores_record: bool,
    /// With it a configuration that was read since the last one; `None`: the daemon's own.
    next: Option<Arc<Next>>,
    /// The authority was on the move: until then it is not asked again.
    authority_rests: Option<Instant>,
    /// Whether Redis reports changes; none before the server was made ready.
    tracking: Option<bool>,
}

impl Session<'_> {
    /// Begin, change and end the loops of servers, so that each partition is served where it is now.
    pub(super) fn follow(&mut self) {
        if !std::mem::replace(&mut self.primaries.has_begun, true) {
            say_who_is_away(&self.connection.partitions);
        }
        let now = self.connection.partitions.primaries();
        let is_there = |connection_id: &u64| now.iter().any(|primary| primary.connection_id() == *connection_id);
        let gone: Vec<u64> = self.primaries.known.keys().filter(|id| !is_there(id)).copied().collect();
        for connection_id in gone {
            self.end_primary(connection_id, None);
        }
        for primary in now {
            self.follow_primary(&primary);
        }
    }

    /// End the loops of partitions that have left a server, and make ready those that have come to it.
    fn follow_primary(&mut self, primary: &Primary) {
        let (connection_id, numbers) = (primary.connection_id(), primary.numbers());
        if !self.primaries.known.contains_key(&connection_id) && self.primaries.rests(primary.redacted()) {
            return; // `retry_soon` looks again in a moment
        }
        let serving = self.primaries.known.entry(connection_id);
        let serving = serving.or_insert_with(|| Serving::new(primary.redacted(), &self.stop));
        let gone: Vec<u8> = serving.partitions.keys().filter(|number| !numbers.contains(number)).copied().collect();
        for number in &gone {
            serving.partitions.remove(number).expect("one of them").cancel();
            self.connection.progress.left(*number);
        }
        say_where(&serving.shown, &gone, &self.connection.partitions);
        let is_new = serving.tracking.is_none();
        let rests = serving.authority_rests.is_some_and(|until| Instant::now() < until);
        let stays = |number| serving.partitions.contains_key(&number) || rests && number == AUTHORITY;
        let added = primary.only(|number| !stays(number));
        // A server that is being made ready takes the partitions that have come to it meanwhile afterwards.
        if serving.is_busy || (!is_new && added.numbers().is_empty()) {
            return;
        }
        serving.is_busy = true;
        for number in added.numbers() {
            serving.partitions.insert(number, serving.stop.child_token());
        }
        serving.stores_record = added.has_authority() && std::mem::take(&mut self.daemon.must_store_record);
        serving.next = self.daemon.next.clone().filter(|_| serving.stores_record);
        let config = serving.next.as_ref().map_or(&self.daemon.config, |next| &next.config).clone();
        let connection = self.connection.clone();
        let preparing = connection.prepare(added, is_new, config, serving.stores_record);
        self.tasks.spawn(async move { Ended::Ready { connection_id, prepared: preparing.await.map(Box::new) } });
    }

    /// A server was made ready, or could not be.
    pub(super) fn primary_ready(
        &mut self,
        connection_id: u64,
        prepared: Result<Box<PreparedServer>, StoreError>,
    ) -> Option<End> {
        let prepared = match prepared {
            Ok(prepared) => *prepared,
            Err(why) => return self.primary_failed(connection_id, why),
        };
        if let Some(server) = &prepared.server {
            self.daemon.said.warn_about(server, &self.daemon.address);
        }
        if let Some(is_current) = prepared.is_current.filter(|_| !self.daemon.must_store_record) {
            self.daemon.obeys_own_record(is_current);
        }
        let serving = self.primaries.known.get_mut(&connection_id)?; // it was lost meanwhile
        let (stores_record, shown) = (std::mem::take(&mut serving.stores_record), serving.shown.clone());
        if let Some(next) = serving.next.take().filter(|_| !prepared.record_deferred) {
            self.daemon.obey(&next);
        }
        if prepared.record_deferred {
            self.daemon.must_store_record |= stores_record;
            serving.wait_for_authority();
            self.retry_soon();
            if self.primaries.is_news(&shown, AUTHORITY_MOVES) {
                warn!(redis = shown, "{AUTHORITY_MOVES}");
            }
        } else if self.primaries.said.remove(&shown).is_some() {
            self.connection.progress.serving(); // once more
        }
        let serving = self.primaries.known.get_mut(&connection_id)?;
        if prepared.record_deferred && prepared.primary.numbers().is_empty() && serving.tracking.is_some() {
            serving.is_busy = false;
            return None; // only the authority was to be made ready, and nothing has changed
        }
        let tracking = prepared.server.as_ref().map_or(serving.tracking.unwrap_or(true), |server| server.tracking);
        (serving.tracking, serving.is_busy) = (Some(tracking), false);
        serving.reconciler.cancel();
        serving.reconciler = serving.stop.child_token();
        let (ends, reconciler) = (serving.partitions.clone(), serving.reconciler.clone());
        for store in prepared.primary.each() {
            let Some(stop) = ends.get(&store.keys().number()) else { continue };
            if let Err(why) = self.start_partition(store, Some(connection_id), stop) {
                return Some(End::Lost(why));
            }
        }
        let mut now = self.connection.partitions.primaries().into_iter();
        if let Some(all) = now.find(|primary| primary.connection_id() == connection_id) {
            let all = all.only(|number| ends.contains_key(&number));
            let numbers = all.numbers();
            if !numbers.is_empty() {
                info!(redis = shown, partitions = ranges(&numbers), tracking, "serving a server of the cluster");
                self.start_reconciler(all, Some(connection_id), tracking, &reconciler);
            }
        }
        self.connection.progress.partitions_begun.send_modify(|n| *n += 1);
        if !prepared.primary.numbers().is_empty() {
            self.has_begun_to_serve(prepared.server.as_ref(), tracking);
        }
        self.follow();
        None
    }

    /// A server could not be made ready, or a loop of it failed: all its loops end, and begin anew.
    pub(super) fn primary_failed(&mut self, connection_id: u64, why: StoreError) -> Option<End> {
        if let StoreError::PartitioningMismatch { .. } = why {
            return Some(End::Lost(why)); // waiting does not mend it
        }
        self.end_primary(connection_id, Some(&why));
        self.connection.partitions.give_up(connection_id);
        self.retry_soon();
        None
    }

    /// End the loops of a server. The log says so when the reason is new, or was said a minute ago.
    fn end_primary(&mut self, connection_id: u64, why: Option<&StoreError>) {
        let partitions = &self.connection.partitions;
        let Some(serving) = self.primaries.known.remove(&connection_id) else { return };
        serving.stop.cancel();
        serving.reconciler.cancel();
        self.daemon.must_store_record |= serving.stores_record;
        let numbers: Vec<u8> = serving.partitions.into_keys().collect();
        for number in &numbers {
            self.connection.progress.left(*number);
        }
        let absent = || numbers.iter().find_map(|number| partitions.at(*number).unavailable_reason());
        let why = match (why, absent()) {
            (Some(StoreError::Lost { .. } | StoreError::Away { .. }) | None, Some(StoreError::Away { why, .. })) => why,
            (Some(why), _) => {
                self.primaries.failed.insert(serving.shown.clone(), Instant::now());
                why.on_record(Role::Daemon)
            }
            (None, _) => {
                say_where(&serving.shown, &numbers, partitions);
                info!(redis = serving.shown, "the session with a server of the cluster ended");
                return;
            }
        };
        if self.primaries.is_news(&serving.shown, &why) {
            warn!(
                redis = serving.shown,
                partitions = ranges(&numbers),
                why,
                "a server of the cluster is not served now; the others are"
            );
        }
    }

    /// Look again in a moment for servers that are not served.
    fn retry_soon(&mut self) {
        self.tasks.spawn(async {
            tokio::time::sleep(RETRY_DELAY).await;
            Ended::Again
        });
    }
}

impl Serving {
    fn new(shown: &str, stop: &CancellationToken) -> Self {
        let shown = shown.to_owned();
        let (stop, reconciler) = (stop.child_token(), stop.child_token());
        Self {
            shown,
            stop,
            partitions: BTreeMap::new(),
            reconciler,
            is_busy: false,
            stores_record: false,
            next: None,
            authority_rests: None,
            tracking: None,
        }
    }

    /// The authority is on the move, so the record cannot be put into force: that is tried again in a moment.
    fn wait_for_authority(&mut self) {
        self.partitions.remove(&AUTHORITY);
        self.authority_rests = Some(Instant::now() + RETRY_DELAY);
    }
}

/// Say where partitions of a server have gone. Partitions that are away are named with the reason; those that have come back are not named.
fn say_where(redis: &str, numbers: &[u8], partitions: &Partitions) {
    let (mut moved, mut away) = (BTreeMap::<String, Vec<u8>>::new(), BTreeMap::<String, Vec<u8>>::new());
    for number in numbers {
        let store = partitions.at(*number);
        match store.unavailable_reason() {
            Some(StoreError::Away { node, why, .. }) => away.entry(format!("{node}: {why}")).or_default().push(*number),
            _ if store.redacted() == redis => {}
            _ => moved.entry(store.redacted().to_owned()).or_default().push(*number),
        }
    }
    for (to, numbers) in moved {
        info!(redis, partitions = ranges(&numbers), to, "partitions have moved to another server");
    }
    for (why, numbers) in away {
        warn!(redis, partitions = ranges(&numbers), why, "partitions have left a server and are away");
    }
}

/// Say which partitions are away when the session begins, and why. Later `say_where` names them when they leave.
fn say_who_is_away(partitions: &Partitions) {
    let mut away = BTreeMap::<(String, String), Vec<u8>>::new();
    for store in partitions.each() {
        if let Some(StoreError::Away { partition, node, why }) = store.unavailable_reason() {
            away.entry((node, why)).or_default().push(partition);
        }
    }
    for ((redis, why), numbers) in away {
        warn!(
            redis,
            partitions = ranges(&numbers),
            why,
            "partitions are away; they are served as soon as their server is there"
        );
    }
}
