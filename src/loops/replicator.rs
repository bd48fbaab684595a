//! Replication: settings and the record are copied from the authority into every partition that lacks some of them. The loop compares
//! when partitions begin to be served, and once a second, for a command may have ended half way, and a server may have lost its data.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::store::partition::AUTHORITY;
use crate::store::{Partitions, StoreError};

/// How often the versions are compared: by the daemon that ranks first in the authority, and by the others.
const REPLICATE_EVERY: Duration = Duration::from_secs(1);
const REPLICATE_EVERY_AS_STANDBY: Duration = Duration::from_secs(5);

/// The loop that compares and replicates.
pub struct SettingsReplicator {
    partitions: Partitions,
    progress: Arc<Progress>,
    /// The log says that Redis refuses a copy.
    refused: bool,
}

impl SettingsReplicator {
    /// A replicator over one connection.
    pub fn new(partitions: Partitions, progress: Arc<Progress>) -> Self {
        Self { partitions, progress, refused: false }
    }

    /// Compare and replicate until stopped; one partition needs no replication.
    ///
    /// # Errors
    ///
    /// The first call that is lost; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        if self.partitions.layout().partitioning().is_single() {
            stop.cancelled().await;
            return Ok(());
        }
        let mut begun = self.progress.partitions_begun.subscribe();
        loop {
            tokio::select! { () = stop.cancelled() => return Ok(()), done = self.step() => done? }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = begun.changed() => {} // `progress` has the other end
                () = tokio::time::sleep(self.pause()) => {}
            }
        }
    }

    fn pause(&self) -> Duration {
        if self.progress.alive(AUTHORITY).before == 0 { REPLICATE_EVERY } else { REPLICATE_EVERY_AS_STANDBY }
    }

    /// Compare once, and copy. Partitions that are busy with an earlier change take the copy at one of the next looks.
    async fn step(&mut self) -> Result<(), StoreError> {
        match self.partitions.replicate().await {
            Err(why) if self.partitions.tolerates(&why) => {
                debug!(%why, "nothing can be brought while the authority is away");
            }
            Err(why @ StoreError::Refused { .. }) => {
                if !self.refused {
                    warn!(%why, "what is set cannot be brought into all partitions");
                }
                self.refused = true;
            }
            report => {
                let busy = report?.busy;
                if !busy.is_empty() {
                    debug!(?busy, "partitions wait with a change for one that still spreads");
                }
                self.refused = false;
            }
        }
        Ok(())
    }
}
