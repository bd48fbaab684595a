//! The heartbeat: says in every partition that this daemon is alive, so that a command can say when no daemon is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::loops::progress::Progress;
use crate::loops::ranking::rank;
use crate::store::acl::Role;
use crate::store::heartbeat::{Alive, Heartbeat, Peer, WakeUp};
use crate::store::primary::Primary;
use crate::store::{Partitions, Store, StoreError};
use crate::system::processes::{host, unique_name};

/// The time between two heartbeats. A heartbeat counts for three times as long.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// How often this daemon looks, between two heartbeats, whether the other daemons are still connected: a daemon that was killed is
/// not, at once. Only where there are other daemons.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// After so long no heartbeat of a daemon that is gone is in Redis any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// The name of a daemon, from its start to its end, whatever happens to its connections.
#[derive(Debug, Clone)]
pub struct Identity {
    id: String,
    host: String,
    since: u64,
}

impl Identity {
    /// This process, started now.
    pub fn of_this_process() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id: unique_name(), host: host(), since }
    }
}

/// The loop that sends the heartbeats.
pub struct HeartbeatLoop {
    partitions: Partitions,
    identity: Identity,
    progress: Arc<Progress>,
    wake_up: WakeUp,
    /// The log says that Redis refuses the heartbeat.
    refused: bool,
    /// The daemons that are alive in each partition, by its number; nothing where this one is alone.
    peers: BTreeMap<u8, Vec<Peer>>,
    /// When the connections of other daemons were found to have ended, by partition and name. Their heartbeats stay in Redis for a while.
    gone: BTreeMap<(u8, String), StdInstant>,
}

impl HeartbeatLoop {
    /// A heartbeat over one connection. `tracking`: Redis reports changed queues on it.
    pub fn new(partitions: Partitions, identity: Identity, progress: Arc<Progress>, tracking: bool) -> Self {
        let wake_up = if tracking { WakeUp::Tracking } else { WakeUp::Polling };
        Self { partitions, identity, progress, wake_up, refused: false, peers: BTreeMap::new(), gone: BTreeMap::new() }
    }

    /// Send a heartbeat at once, when partitions begin to be served, and then every five seconds. Withdraw it when stopped.
    ///
    /// # Errors
    ///
    /// The first call that is lost; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        let mut begun = self.progress.partitions_begun.subscribe();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                sent = self.step() => sent?,
            }
            tokio::select! {
                () = stop.cancelled() => break,
                _ = begun.changed() => {} // `progress` has the other end
                watched = self.watch() => watched?,
            }
        }
        let stop_in = async |mut store: Store| store.withdraw_heartbeat(&self.identity.id).await;
        for why in join_all(self.partitions.each().map(stop_in)).await.into_iter().filter_map(Result::err) {
            debug!(%why, "the last heartbeat is over in 15 s");
        }
        Ok(())
    }

    /// Wait for the next heartbeat. Meanwhile a daemon whose connection has ended is taken for dead, on the servers where it has.
    async fn watch(&mut self) -> Result<(), StoreError> {
        let next = Instant::now() + HEARTBEAT_EVERY;
        while Instant::now() < next {
            if self.peers.values().all(|peers| peers.iter().all(|peer| peer.id == self.identity.id)) {
                sleep_until(next).await;
                continue;
            }
            sleep(WATCH_EVERY).await;
            let looks = self.partitions.primaries().into_iter().map(|primary| self.look_at(primary));
            for (numbers, present) in join_all(looks).await {
                match present {
                    Err(why) if self.partitions.tolerates(&why) || matches!(why, StoreError::Refused { .. }) => {
                        debug!(%why, "who is connected is not known");
                    }
                    present => self.take_in(&numbers, present?.as_deref()),
                }
            }
        }
        Ok(())
    }

    /// Which of the daemons that show their presence are connected to a server that has some partitions; `None`: it does not tell in time.
    async fn look_at(&self, mut primary: Primary) -> (Vec<u8>, Result<Option<Vec<String>>, StoreError>) {
        let numbers = primary.numbers();
        let peers = numbers.iter().filter_map(|number| self.peers.get(number)).flatten();
        let known: BTreeSet<&String> = peers.filter(|peer| peer.shows_presence).map(|peer| &peer.id).collect();
        let known: Vec<String> = known.into_iter().cloned().collect();
        let present = timeout(WATCH_EVERY, primary.present(&known)).await; // one that hangs delays none of the others
        (numbers, present.map_or(Ok(None), |present| present.map(Some)))
    }

    /// A server has said which daemons are connected to it.
    fn take_in(&mut self, numbers: &[u8], present: Option<&[String]>) {
        let Some(present) = present else { return };
        for number in numbers {
            let Some(peers) = self.peers.get_mut(number) else { continue };
            let is_gone = |peer: &mut Peer| peer.shows_presence && !present.contains(&peer.id);
            let gone: Vec<_> =
                peers.extract_if(.., is_gone).map(|peer| ((*number, peer.id), StdInstant::now())).collect();
            if !gone.is_empty() {
                self.gone.extend(gone);
                debug!(partition = number, "a daemon is gone");
                let (before, last_heartbeat) = rank(*number, &self.identity.id, peers);
                self.progress.set_alive(*number, Alive { before, last_heartbeat, ..self.progress.alive(*number) });
            }
        }
    }

    /// Send one heartbeat in each partition, side by side: a server that hangs delays none of the others. A heartbeat that Redis refuses
    /// is no reason to stop serving.
    async fn step(&mut self) -> Result<(), StoreError> {
        let heartbeat = Heartbeat {
            host: self.identity.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since: self.identity.since,
            has_record: self.progress.obeys_own_record(),
            wake_up: Some(self.wake_up),
            shows_presence: false,
        };
        let send = async |mut store: Store| {
            let number = store.keys().number();
            let sent = self.send_to(&mut store, &heartbeat).await;
            if let Ok((alive, _)) = sent {
                self.progress.set_alive(number, alive);
            }
            (number, sent)
        };
        for (number, sent) in join_all(self.partitions.each().map(send)).await {
            match sent {
                Ok((_, peers)) => {
                    self.gone.retain(|(of, _), at| *of != number || at.elapsed() < FORGOTTEN_AFTER);
                    self.peers.insert(number, peers);
                }
                Err(why) if self.partitions.tolerates(&why) => debug!(%why, "no heartbeat there now"),
                Err(why) if why.refuses_writes() && why.code().is_some() => debug!(%why, "no heartbeat there now"),
                Err(why @ StoreError::Refused { .. }) => {
                    if !self.refused {
                        warn!(%why, "cannot say that this daemon is alive: `dripd status` does not list it");
                    }
                    self.refused = true;
                }
                Err(why) => return Err(why),
            }
        }
        self.look_for_refusal().await
    }

    /// Note whether Redis takes no writes. Where it only lacks memory nothing else here would show that: jobs leave all the same.
    async fn look_for_refusal(&mut self) -> Result<(), StoreError> {
        let refusal = self.partitions.refuses_writes().await?.map(|why| why.in_words(Role::Daemon));
        if self.progress.set_refusal(refusal.clone()) {
            if let Some(why) = refusal {
                warn!(why, "redis refuses writes: nobody can push");
            } else {
                info!("redis takes writes again");
            }
        }
        Ok(())
    }

    /// Send one heartbeat in a partition. Replies how many daemons are alive there and how many of them rank before this one, and the
    /// names of all where there are others.
    async fn send_to(&self, store: &mut Store, heartbeat: &Heartbeat) -> Result<(Alive, Vec<Peer>), StoreError> {
        let is_shared = !store.keys().is_single() || self.progress.alive(store.keys().number()).daemons > 1;
        let shows_presence = is_shared && store.show_presence(self.partitions.layout(), &self.identity.id).await?;
        let heartbeat = Heartbeat { shows_presence, ..heartbeat.clone() };
        let mut alive = store.send_heartbeat(&self.identity.id, &heartbeat).await?;
        let mut peers = if alive.daemons > 1 { store.peers().await? } else { Vec::new() };
        let number = store.keys().number();
        // One that has told so again since is back.
        peers.retain(|peer| self.gone.get(&(number, peer.id.clone())).is_none_or(|at| peer.at > *at));
        (alive.before, alive.last_heartbeat) = rank(number, &self.identity.id, &peers);
        Ok((alive, peers))
    }
}
