//! A connection that comes back: made when it is needed, and again when it was lost. For calls that may be made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::Partitions;
use crate::store::connection::{Address, StoreError};
use crate::store::keys::Layout;

/// The wait before a call is made again: the first one, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The wait where a partition cannot answer yet: its slot is on the move, or its cluster takes no calls.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A connection that is made when it is needed, and again when it was lost. Callers share it.
pub struct Link {
    address: Address,
    layout: Layout,
    kept: Mutex<Kept>,
}

/// The connection, if there is one, and how many were made up to it.
#[derive(Default)]
struct Kept {
    store: Option<Partitions>,
    made: u64,
    /// Whether Redis, or the way to it, ended that one.
    closed: Arc<AtomicBool>,
    /// Why the last attempt failed, and when: those who waited for it share that.
    failed: Option<(Instant, StoreError)>,
}

/// An error that may be one of the store.
pub trait OfStore {
    /// The error of the store, if it is one.
    fn of_store(&self) -> Option<&StoreError>;
}

impl OfStore for StoreError {
    fn of_store(&self) -> Option<&StoreError> {
        Some(self)
    }
}

impl Link {
    /// A link to an address, for a system; nothing is connected yet.
    pub fn new(address: Address, layout: Layout) -> Self {
        Self { address, layout, kept: Mutex::default() }
    }

    /// A connection and its number; clones share it.
    async fn store(&self) -> Result<(Partitions, u64), StoreError> {
        let asked = Instant::now();
        let mut kept = self.kept.lock().await;
        if let Some(store) = kept.store.as_ref().filter(|_| !kept.closed.load(Ordering::Relaxed)) {
            return Ok((store.clone(), kept.made));
        }
        kept.store = None;
        if let Some((_, why)) = kept.failed.as_ref().filter(|(at, _)| *at > asked) {
            return Err(why.clone());
        }
        let closed = Arc::new(AtomicBool::new(false));
        match Partitions::connect_noting_its_end(&self.address, &self.layout, &closed).await {
            Ok(store) => {
                *kept = Kept { store: Some(store.clone()), made: kept.made + 1, closed, failed: None };
                Ok((store, kept.made))
            }
            Err(why) => {
                kept.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Make a call once. One that was lost is never repeated here: it may have run. An error may be one of the caller's own, as long as it
    /// tells what the store said.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] and [`StoreError::Loading`]: nothing was sent. [`StoreError::Lost`]: whether it ran is not known.
    pub async fn once<T, E, F>(&self, call: impl FnOnce(Partitions) -> F) -> Result<T, E>
    where
        E: From<StoreError> + OfStore,
        F: Future<Output = Result<T, E>>,
    {
        let (store, number) = self.store().await?;
        let answer = call(store).await;
        // Other errors say nothing of the connection.
        if let Err(why) = &answer
            && let Some(StoreError::Lost { .. } | StoreError::Unusable { .. }) = why.of_store()
        {
            self.forget(number).await; // (of a cluster one server was lost, and the others go on)
        }
        answer
    }

    /// A connection was lost. Another one that has taken its place meanwhile stays.
    async fn forget(&self, number: u64) {
        let mut kept = self.kept.lock().await;
        if kept.made == number && !kept.store.as_ref().is_some_and(Partitions::is_cluster) {
            kept.store = None;
        }
    }

    /// Make a call until Redis answers it: only one that is safe to repeat, for it may have run when its answer is lost.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] or [`StoreError::Reply`]: Redis itself said so.
    pub async fn until_answered<T, F>(&self, call: impl Fn(Partitions) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = PAUSE;
        loop {
            let (answer, number) = match self.store().await {
                Ok((store, number)) => (call(store).await, Some(number)),
                Err(why) => (Err(why), None),
            };
            match answer {
                Ok(answer) => return Ok(answer),
                // A slot is moved, or a primary has no successor yet: both pass.
                Err(why) if why.is_retryable() => sleep(RETRY_DELAY).await,
                // And: a script that runs too long, a disk that is full, replicas that lag.
                Err(StoreError::Refused { code, .. }) if matches!(code.as_str(), "BUSY" | "MISCONF" | "NOREPLICAS") => {
                    sleep(LONGEST_PAUSE).await;
                }
                Err(
                    why @ (StoreError::Refused { .. }
                    | StoreError::Reply { .. }
                    | StoreError::PartitioningMismatch { .. }),
                ) => {
                    return Err(why);
                }
                Err(_) => {
                    if let Some(number) = number {
                        self.forget(number).await;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(self.address.longest_pause(LONGEST_PAUSE));
                }
            }
        }
    }
}
