//! The heartbeat: says in every partition that this daemon is alive, so that whoever waits can be told when none is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::loops::share;
use crate::store::beat::{Alive, Beat, Beaten, WakeUp};
use crate::store::primary::Primary;
use crate::store::{Store, StoreError, Whole};

/// The time between two beats; one counts for three times as long.
const BEAT_EVERY: Duration = Duration::from_secs(5);

/// How often it looks, between two beats, whether the other daemons are still connected: one that was killed is not, at once. Only where daemons share partitions.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Who beats: the same from the start of a daemon to its end, whatever happens to its connections.
#[derive(Debug, Clone)]
pub struct Identity {
    id: String,
    host: String,
    since: u64,
}

impl Identity {
    /// This process, started now.
    #[must_use]
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // Containers may share both the host's name and the process id.
        let id = format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { id, host, since }
    }
}

/// The loop that beats.
pub struct Heartbeat {
    whole: Whole,
    identity: Identity,
    progress: Arc<Progress>,
    wake_up: WakeUp,
    /// The log says that Redis refuses it.
    refused: bool,
    /// Who is alive, where there are several partitions, by number.
    peers: BTreeMap<u8, Vec<Beaten>>,
}

impl Heartbeat {
    /// A heartbeat over one connection; `tracking`: on that Redis reports changed queues.
    #[must_use]
    pub fn new(whole: Whole, identity: Identity, progress: Arc<Progress>, tracking: bool) -> Self {
        let wake_up = if tracking { WakeUp::Tracking } else { WakeUp::Polling };
        Self { whole, identity, progress, wake_up, refused: false, peers: BTreeMap::new() }
    }

    /// Beat at once, when partitions begin to be served, and then every five seconds; when stopped, say so.
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
                beaten = self.step() => beaten?,
            }
            tokio::select! {
                () = stop.cancelled() => break,
                _ = begun.changed() => {} // `progress` has the other end
                watched = self.watch() => watched?,
            }
        }
        let stop_in = async |mut store: Store| store.stop_beating(&self.identity.id).await;
        for why in join_all(self.whole.each().map(stop_in)).await.into_iter().filter_map(Result::err) {
            debug!(%why, "the last beat is over in 15 s");
        }
        Ok(())
    }

    /// Wait for the next beat. Meanwhile a daemon whose connection has ended is taken for dead, on the servers where it has.
    async fn watch(&mut self) -> Result<(), StoreError> {
        let next = Instant::now() + BEAT_EVERY;
        while Instant::now() < next {
            if self.peers.values().all(|peers| peers.iter().all(|peer| peer.id == self.identity.id)) {
                sleep_until(next).await;
                continue;
            }
            sleep(WATCH_EVERY).await;
            let looks = self.whole.primaries().into_iter().map(|primary| self.look_at(primary));
            for (numbers, present) in join_all(looks).await {
                match present {
                    Err(why) if self.whole.goes_on_without(&why) || matches!(why, StoreError::Refused { .. }) => {
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

    /// What a server has told of those who are connected to it.
    fn take_in(&mut self, numbers: &[u8], present: Option<&[String]>) {
        let Some(present) = present else { return };
        for number in numbers {
            let Some(peers) = self.peers.get_mut(number) else { continue };
            let before = peers.len();
            peers.retain(|peer| !peer.shows_presence || present.contains(&peer.id));
            if peers.len() < before {
                debug!(partition = number, "a daemon is gone");
                let (rank, beaten) = share::rank(*number, &self.identity.id, peers);
                self.progress.set_alive(*number, Alive { before: rank, beaten, ..self.progress.alive(*number) });
            }
        }
    }

    /// One beat in each partition, side by side: a server that hangs delays none of the others. What Redis refuses is no reason to stop serving.
    async fn step(&mut self) -> Result<(), StoreError> {
        let beat = Beat {
            host: self.identity.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since: self.identity.since,
            has_record: self.progress.obeys_own_record(),
            wake_up: Some(self.wake_up),
            shows_presence: false,
        };
        let beat_in = async |mut store: Store| {
            let number = store.keys().number();
            let beaten = self.beat_in(&mut store, &beat).await;
            if let Ok((alive, _)) = beaten {
                self.progress.set_alive(number, alive);
            }
            (number, beaten)
        };
        for (number, beaten) in join_all(self.whole.each().map(beat_in)).await {
            match beaten {
                Ok((_, peers)) => drop(self.peers.insert(number, peers)),
                Err(why) if self.whole.goes_on_without(&why) => debug!(%why, "no beat there now"),
                Err(why @ StoreError::Refused { .. }) => {
                    if !self.refused {
                        warn!(%why, "cannot say that this daemon is alive: `dripd status` does not list it");
                    }
                    self.refused = true;
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// One beat in a partition. Replies who is alive there; where there are several partitions, who of them comes first, and who they are.
    async fn beat_in(&self, store: &mut Store, beat: &Beat) -> Result<(Alive, Vec<Beaten>), StoreError> {
        if store.keys().is_whole() {
            return Ok((store.beat(&self.identity.id, beat).await?, Vec::new()));
        }
        let shows_presence = store.show_presence(self.whole.layout(), &self.identity.id).await?;
        let beat = Beat { shows_presence, ..beat.clone() };
        let mut alive = store.beat(&self.identity.id, &beat).await?;
        let peers = store.beaten().await?;
        (alive.before, alive.beaten) = share::rank(store.keys().number(), &self.identity.id, &peers);
        Ok((alive, peers))
    }
}
