//! Copies: what is set, and the record, are brought from the authority into every partition that lacks some of it: when partitions
//! begin to be served, and once a second, for a command may have ended half way, and a server may have lost what it had.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::store::partition::AUTHORITY;
use crate::store::{StoreError, Whole};

/// How often the numbers are compared: by the daemon that comes first in the partition which says what holds, and by the others.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_STANDING_BY: Duration = Duration::from_secs(5);

/// The loop that compares and carries.
pub struct Copies {
    whole: Whole,
    progress: Arc<Progress>,
    /// The log says that something cannot be brought.
    refused: bool,
}

impl Copies {
    /// Over one connection.
    #[must_use]
    pub fn new(whole: Whole, progress: Arc<Progress>) -> Self {
        Self { whole, progress, refused: false }
    }

    /// Compare and carry until stopped; one partition needs no copies.
    ///
    /// # Errors
    ///
    /// The first call that is lost; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        if self.whole.layout().cut().is_whole() {
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
        if self.progress.alive(AUTHORITY).before == 0 { EVERY } else { EVERY_STANDING_BY }
    }

    /// One look. Partitions that are busy take what they lack at one of the next.
    async fn step(&mut self) -> Result<(), StoreError> {
        match self.whole.carry().await {
            Err(why) if self.whole.goes_on_without(&why) => {
                debug!(%why, "nothing can be brought while the authority is away");
            }
            Err(why @ StoreError::Refused { .. }) => {
                if !self.refused {
                    warn!(%why, "what is set cannot be brought into all partitions");
                }
                self.refused = true;
            }
            carried => {
                let busy = carried?.busy;
                if !busy.is_empty() {
                    debug!(?busy, "partitions wait with a change for one that still spreads");
                }
                self.refused = false;
            }
        }
        Ok(())
    }
}
