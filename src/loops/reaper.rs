//! The reaper: takes back jobs whose workers fell silent, and deletes the entries of those that are done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::loops::notes::Notes;
use crate::store::wake::Hints;
use crate::store::{Store, StoreError};

/// The time between two passes while there are entries. The shortest lease is as long, so none ends unseen.
const PASS_EVERY: Duration = Duration::from_secs(1);

/// The time between two passes while the streams are empty; a change in one wakes.
const IDLE: Duration = Duration::from_secs(10);

/// Nothing is taken back for this long after a connection was made: workers may have been cut off too.
const GRACE: Duration = Duration::from_secs(10);

/// From this many dead jobs on, somebody should look at them.
const MANY_DEAD: u64 = 100_000;

/// The loop over the dispatched jobs.
pub struct Reaper {
    store: Store,
    hints: Arc<Hints>,
    since: Instant,
    warned: Option<Instant>,
    notes: Notes,
}

impl Reaper {
    /// A reaper over one connection, made now.
    #[must_use]
    pub fn new(store: Store, hints: Arc<Hints>) -> Self {
        Self { store, hints, since: Instant::now(), warned: None, notes: Notes::default() }
    }

    /// Reap until stopped.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let nap = self.step().await?;
            let idle = async {
                if nap == IDLE {
                    tokio::select! { () = self.hints.ready.notified() => {}, () = tokio::time::sleep(IDLE) => {} }
                    tokio::time::sleep(PASS_EVERY).await;
                } else {
                    tokio::time::sleep(nap).await;
                }
            };
            tokio::select! { () = stop.cancelled() => return Ok(()), () = idle => {} }
        }
    }

    /// One pass over every route. Replies how long to sleep.
    async fn step(&mut self) -> Result<Duration, StoreError> {
        let (mut from, mut nap, mut live) = (None, PASS_EVERY, 0);
        loop {
            let take_back = self.since.elapsed() >= GRACE;
            let reaped = self.store.reap(take_back, from).await?;
            if reaped.taken_back > 0 {
                info!(jobs = reaped.taken_back, "took back jobs whose lease ran out");
            }
            debug!(removed = reaped.removed, live = reaped.live, "reaped");
            self.notes.say(&reaped.notes);
            self.warn_of_many(reaped.dead);
            live += reaped.live;
            nap = reaped.left.map_or(nap, |left| nap.min(left));
            if reaped.next.is_none() {
                return Ok(if live == 0 { IDLE } else { nap.max(Duration::from_millis(1)) });
            }
            from = reaped.next;
        }
    }

    fn warn_of_many(&mut self, dead: u64) {
        if dead >= MANY_DEAD && self.warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            self.warned = Some(Instant::now());
            warn!(dead, "the dead stream is long: look at its jobs and delete what nobody needs");
        }
    }
}
