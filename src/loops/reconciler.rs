//! Reconcile: the safety net behind the wake-ups. It scans for queues, all of them at the start, after names were lost
//! and where Redis does not report changes, and slowly in between, and hands their names to the pacer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::store::wake::Hints;
use crate::store::{Store, StoreError};

/// The time between two pages of the slow scan.
const SLOWLY: Duration = Duration::from_secs(10);

/// The time between two scans where Redis does not report changes.
const POLL: Duration = Duration::from_millis(20);

/// The loop that looks for queues.
pub struct Reconciler {
    store: Store,
    hints: Arc<Hints>,
    tracking: bool,
    cursor: u64,
}

impl Reconciler {
    /// A reconcile over one connection; without `tracking` it is the only way to find a push.
    #[must_use]
    pub fn new(store: Store, hints: Arc<Hints>, tracking: bool) -> Self {
        Self { store, hints, tracking, cursor: 0 }
    }

    /// Look for queues until stopped.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        tokio::select! { () = stop.cancelled() => Ok(()), done = self.scan_for_ever() => done }
    }

    async fn scan_for_ever(&mut self) -> Result<(), StoreError> {
        self.scan_all().await?;
        loop {
            let pause = if self.tracking { SLOWLY } else { POLL };
            tokio::select! {
                () = self.hints.lost.notified() => {
                    info!("wake-ups were lost: looking at every queue");
                    self.scan_all().await?;
                }
                () = tokio::time::sleep(pause) => {
                    if self.tracking { self.look_slowly().await?; } else { self.scan_all().await?; }
                }
            }
        }
    }

    async fn scan_all(&mut self) -> Result<(), StoreError> {
        self.cursor = 0;
        while self.page().await? {}
        Ok(())
    }

    /// One page. Replies whether there is more.
    async fn page(&mut self) -> Result<bool, StoreError> {
        let page = self.store.scan_queues(self.cursor).await?;
        self.hand_over(&page.queues).await;
        self.cursor = page.next.unwrap_or(0);
        Ok(page.next.is_some())
    }

    /// One page of the slow scan, for what no report told: a queue that is not scheduled. One that is has its turn, and is cut
    /// then at the latest; to look at each of them would keep Redis busy for nothing.
    async fn look_slowly(&mut self) -> Result<(), StoreError> {
        let page = self.store.scan_queues(self.cursor).await?;
        let forgotten = self.store.unscheduled(page.queues).await?;
        self.hand_over(&forgotten).await;
        self.cursor = page.next.unwrap_or(0);
        Ok(())
    }

    async fn hand_over(&mut self, queues: &[Vec<u8>]) {
        for queue in queues {
            self.hints.wait_for_room().await;
            self.hints.add_queue(queue);
        }
    }
}
