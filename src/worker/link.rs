//! The worker's second connection: calls that are made again until they are answered.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::warn;

use crate::store::ops::Fail;
use crate::store::reply::Failed;
use crate::store::{Address, Partition, Store, StoreError};
use crate::words::policy::Route;

const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection that is made when it is needed, and again when it was lost.
pub(super) struct Link {
    address: Address,
    partition: Partition,
    store: Mutex<Option<Store>>,
}

impl Link {
    pub(super) fn new(address: Address, partition: Partition) -> Self {
        Self { address, partition, store: Mutex::new(None) }
    }

    /// A connection; clones share it.
    async fn store(&self) -> Result<Store, StoreError> {
        let mut kept = self.store.lock().await;
        if let Some(store) = &*kept {
            return Ok(store.clone());
        }
        let store = Store::connect(&self.address, &self.partition).await?;
        *kept = Some(store.clone());
        Ok(store)
    }

    /// Make a call until Redis answers it. An error that Redis itself gave is logged, and is the end of it: `None`.
    async fn until_answered<T, F>(&self, call: impl Fn(Store) -> F) -> Option<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = PAUSE;
        loop {
            let answer = match self.store().await {
                Ok(store) => call(store).await,
                Err(why) => Err(why),
            };
            match answer {
                Ok(answer) => return Some(answer),
                // What passes: a script that runs too long, a disk that is full, replicas that lag.
                Err(StoreError::Refused { code, .. }) if matches!(code.as_str(), "BUSY" | "MISCONF" | "NOREPLICAS") => {
                    sleep(LONGEST_PAUSE).await;
                }
                Err(why @ (StoreError::Refused { .. } | StoreError::Reply { .. })) => {
                    warn!(%why, "redis does not do it");
                    return None;
                }
                Err(_) => {
                    *self.store.lock().await = None;
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Whether the lease was renewed. What Redis refuses counts as renewed: only its word that the job is gone ends it.
    pub(super) async fn renew(&self, route: &Route, worker: &str, entry: &str) -> bool {
        self.until_answered(|mut store| async move { store.renew(route, worker, entry).await }).await.unwrap_or(true)
    }

    /// Whether the job was still this worker's.
    pub(super) async fn ack(&self, route: &Route, entry: &str) -> bool {
        self.until_answered(|mut store| async move { store.ack(route, entry).await }).await.unwrap_or(false)
    }

    pub(super) async fn fail(&self, route: &Route, entry: &str, fail: &Fail) -> Option<Failed> {
        self.until_answered(|mut store| async move { store.fail(route, entry, fail).await }).await
    }

    /// Take this worker's name off the group, which it holds nothing of any more.
    pub(super) async fn leave(&self, route: &Route, worker: &str) {
        self.until_answered(|mut store| async move { store.leave(route, worker).await }).await;
    }
}
