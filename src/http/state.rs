//! The state that all requests share.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::auth::{AccessPolicy, Caller};
use super::feed::Feed;
use super::last_scrape::LastScrape;
use super::memory::Memory;
use super::problem::Problem;
use super::throughput::Throughput;
use crate::config::Config;
use crate::loops::progress::Progress;
use crate::store::link::{Link, OfStore};
use crate::store::{Address, Layout, Partitions, StoreError};

/// The state that all requests share.
pub(super) struct AppState {
    /// The connection for calls.
    pub(super) link: Link,
    /// The configuration of this daemon's own file; it changes with each reload.
    config: RwLock<Arc<Config>>,
    access: RwLock<Arc<AccessPolicy>>,
    pub(super) progress: Arc<Progress>,
    pub(super) last_scrape: LastScrape,
    /// The name of this machine.
    host: String,
    pub(super) feed: Arc<Feed>,
    /// Cancelled at each reload, which makes a new one, and at the end.
    until_reload: RwLock<CancellationToken>,
    pub(super) throughput: Throughput,
    pub(super) memory: Arc<Memory>,
    /// The turn of a large push: on its way to Redis it is held several times over.
    large: Semaphore,
}

/// From how many bytes on a push is large.
const LARGE: usize = 256 * 1_024;

impl AppState {
    /// The state of a server that has just started. `stop` ends what must not outlive it.
    pub(super) fn new(
        config: Config,
        access: AccessPolicy,
        address: Address,
        progress: Arc<Progress>,
        host: String,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            link: Link::new(address, Layout::of(&config.redis)),
            memory: Arc::new(Memory::new(config.http.memory, config.http.largest())),
            large: Semaphore::new(1),
            config: RwLock::new(Arc::new(config)),
            access: RwLock::new(Arc::new(access)),
            progress,
            last_scrape: LastScrape::default(),
            host,
            feed: Arc::new(Feed::new()),
            until_reload: RwLock::new(stop.child_token()),
            throughput: Throughput::default(),
        }
    }

    /// Use another configuration and other tokens. Streams of events end, because their tokens may permit something
    /// else now.
    pub(super) fn reload(&self, config: Config, access: AccessPolicy, stop: &CancellationToken) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
        let mut until = self.until_reload.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *until, stop.child_token()).cancel();
    }

    /// A token that is cancelled with the next reload, and at the end.
    pub(super) fn until_reload(&self) -> CancellationToken {
        self.until_reload.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration of this daemon.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The tokens and the host names of this server.
    pub(super) fn access(&self) -> Arc<AccessPolicy> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wait for the turn of a push of so many bytes. Large ones go to Redis one after the other.
    pub(super) async fn turn_of(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        if bytes > LARGE { self.large.acquire().await.ok() } else { None }
    }

    /// Make a call, once: it is never repeated.
    pub(super) async fn call<T, E, F>(&self, call: impl FnOnce(Partitions) -> F) -> Result<T, E>
    where
        E: From<StoreError> + OfStore,
        F: Future<Output = Result<T, E>>,
    {
        self.link.once(call).await
    }

    /// Make a call that changes nothing, so that a lost answer leaves nothing in doubt.
    pub(super) async fn query<T, F>(&self, call: impl FnOnce(Partitions) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.call(call).await.map_err(Problem::of_question)
    }

    /// The name of a caller in events about a change: its token, and this daemon's own machine.
    pub(super) fn by(&self, caller: &Caller) -> String {
        format!("{}@{} over HTTP", caller.name(), self.host)
    }
}
