//! The heartbeat: says in every partition that this daemon is alive, so that whoever waits can be told when none is.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::loops::share;
use crate::store::beat::Alive;
use crate::store::beat::{Beat, WakeUp};
use crate::store::{Store, StoreError, Whole};

/// The time between two beats; one counts for three times as long.
const BEAT_EVERY: Duration = Duration::from_secs(5);

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
}

impl Heartbeat {
    /// A heartbeat over one connection; `tracking`: on that Redis reports changed queues.
    #[must_use]
    pub fn new(whole: Whole, identity: Identity, progress: Arc<Progress>, tracking: bool) -> Self {
        let wake_up = if tracking { WakeUp::Tracking } else { WakeUp::Polling };
        Self { whole, identity, progress, wake_up, refused: false }
    }

    /// Beat at once and then every five seconds; when stopped, say so.
    ///
    /// # Errors
    ///
    /// The first call that is lost; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                beaten = self.step() => beaten?,
            }
            tokio::select! { () = stop.cancelled() => break, () = tokio::time::sleep(BEAT_EVERY) => {} }
        }
        let stop_in = async |mut store: Store| store.stop_beating(&self.identity.id).await;
        for why in join_all(self.whole.each().map(stop_in)).await.into_iter().filter_map(Result::err) {
            debug!(%why, "the last beat is over in 15 s");
        }
        Ok(())
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
        };
        let beat_in = async |mut store: Store| {
            let alive = self.beat_in(&mut store, &beat).await;
            if let Ok(alive) = alive {
                self.progress.set_alive(store.keys().number(), alive);
            }
            alive
        };
        for alive in join_all(self.whole.each().map(beat_in)).await {
            match alive {
                Ok(_) => {}
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

    /// One beat in a partition. Replies who is alive there; where there are several partitions, who of them comes first.
    async fn beat_in(&self, store: &mut Store, beat: &Beat) -> Result<Alive, StoreError> {
        let mut alive = store.beat(&self.identity.id, beat).await?;
        if !store.keys().is_whole() {
            (alive.before, alive.beaten) =
                share::rank(store.keys().number(), &self.identity.id, &store.beaten().await?);
        }
        Ok(alive)
    }
}
