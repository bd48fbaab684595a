//! The pacer: asks Redis what is due, sleeps for as long as it is told, and looks at once at queues that changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::progress::Progress;
use crate::store::wake::Hints;
use crate::store::{Store, StoreError};
use crate::timer::Timer;

/// The longest sleep: the safety net behind the wake-ups.
const LONGEST_NAP: Duration = Duration::from_secs(10);

/// How many names go with one call.
const NAMES: usize = 100;

/// The loop that lets jobs out of their buckets.
pub struct Pacer {
    store: Store,
    hints: Arc<Hints>,
    progress: Arc<Progress>,
    timer: Timer,
    noted: Option<Instant>,
}

impl Pacer {
    /// A pacer over one connection.
    ///
    /// # Errors
    ///
    /// When the kernel gives no timer.
    pub fn new(store: Store, hints: Arc<Hints>, progress: Arc<Progress>) -> std::io::Result<Self> {
        Ok(Self { store, hints, progress, timer: Timer::new()?, noted: None })
    }

    /// Drain until stopped.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let nap = self.step().await?;
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.hints.queues.notified() => {}
                () = self.timer.sleep(nap) => {}
            }
        }
    }

    /// One call. Replies how long to sleep unless woken.
    async fn step(&mut self) -> Result<Duration, StoreError> {
        let woken = self.hints.take(NAMES);
        self.progress.calling();
        let drained = self.store.drain(&woken).await?;
        self.hints.put_back(woken.get(drained.looked..).unwrap_or_default());
        self.log(&drained.notes);
        debug!(woken = woken.len(), dispatched = drained.dispatched, rejected = drained.rejected, wait = ?drained.wait, "drained");
        let mut nap = drained.wait.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
        if let Some(at) = self.hints.next_at() {
            nap = nap.min(at.saturating_duration_since(Instant::now()));
        }
        self.progress.drained(&drained, nap);
        Ok(nap)
    }

    /// What the functions could not handle, at most once a minute.
    fn log(&mut self, notes: &[(String, String)]) {
        if notes.is_empty() || self.noted.is_some_and(|at| at.elapsed() < Duration::from_secs(60)) {
            return;
        }
        self.noted = Some(Instant::now());
        for (what, key) in notes {
            warn!(key, what, "a key is left alone: rename or delete it");
        }
    }
}
