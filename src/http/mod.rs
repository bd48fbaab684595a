//! The HTTP door: what the commands can do, for whoever speaks HTTP.
//!
//! It runs in a thread of its own with connections of its own, so that nothing it does keeps the pacer waiting, and outlives the
//! daemon's connection to Redis. A request goes `serve` (a connection) → `who` (who asks) → its file here → `Store`.
//! `feed` looks once a second for whoever listens to `events`; `pages` is what a browser loads.
//!
//! Nothing that is asked here may end the daemon: a release aborts where anything panics, and the pacer with it. So there is no `expect`
//! and no index here, and what cannot be is an answer with 500.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::unwrap_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod act;
mod ask;
mod at;
mod body;
mod buckets;
mod budgets;
mod changed;
mod connection;
mod dead;
mod document;
mod events;
mod families;
mod feed;
mod health;
mod jobs;
mod listen;
mod metrics;
mod pages;
mod problem;
mod push;
mod routes;
mod serve;
mod submit;
mod who;

use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use listen::{BadListener, Listeners};
pub use who::Keys;

use crate::config::http::open_to_all;
use crate::config::{BadConfig, Config};
use crate::loops::progress::Progress;
use crate::store::change::Author;
use crate::store::link::{Link, OfStore};
use crate::store::{Address, Layout, StoreError, Whole};
use problem::Problem;
use who::Caller;

/// How long the threads of the runtime may take to end, after the requests.
const SHUT_DOWN_WITHIN: Duration = Duration::from_millis(100);

/// What the requests share.
struct Door {
    /// The connection for calls.
    link: Link,
    /// What is in force, of this daemon's own file; it changes with each reload.
    config: RwLock<Arc<Config>>,
    keys: RwLock<Arc<Keys>>,
    progress: Arc<Progress>,
    /// What the last scrape told.
    before: metrics::Before,
    /// The name of this machine.
    host: String,
    /// What is going on, for whoever listens.
    feed: feed::Feed,
    /// Cancelled when the configuration in force here is another one, or the door closes; then it is a new one.
    until_reload: RwLock<CancellationToken>,
    /// How fast jobs pass through budgets.
    passing: budgets::Passing,
}

impl Door {
    /// What is cancelled when tokens may mean something else, and when the door closes.
    fn ends_with_reload(&self) -> CancellationToken {
        self.until_reload.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Make a call, once.
    async fn call<T, E, F>(&self, call: impl FnOnce(Whole) -> F) -> Result<T, E>
    where
        E: From<StoreError> + OfStore,
        F: Future<Output = Result<T, E>>,
    {
        self.link.once(call).await
    }

    /// Make a call that changes nothing: where its answer is lost there is nothing to be unsure of.
    async fn ask<T, F>(&self, call: impl FnOnce(Whole) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.call(call).await.map_err(Problem::of_question)
    }

    /// Who does what a caller asks for, as events name it: the token, and this daemon's own machine.
    async fn author(&self, store: &mut Whole, caller: &Caller) -> Author {
        Author { by: format!("{}@{} over HTTP", caller.name(), self.host), user: store.whoami().await }
    }
}

/// The running door. It closes with [`Self::close`].
pub struct Open {
    door: Arc<Door>,
    /// What it listens on, where others reach it.
    reached_at: Option<String>,
    stop: CancellationToken,
    /// Until when requests in hand may finish, once it is known.
    ends: Arc<OnceLock<Instant>>,
    ended: oneshot::Receiver<()>,
}

impl Open {
    /// Open the door in a thread of its own. It needs no Redis yet.
    ///
    /// # Errors
    ///
    /// When the system has no thread left.
    pub fn new(
        listeners: Listeners,
        config: Config,
        keys: Keys,
        address: Address,
        progress: Arc<Progress>,
        host: String,
    ) -> std::io::Result<Self> {
        let layout = Layout::of(&config.redis);
        let (stop, (end, ended)) = (CancellationToken::new(), oneshot::channel());
        let door = Arc::new(Door {
            link: Link::new(address, layout),
            config: RwLock::new(Arc::new(config)),
            keys: RwLock::new(Arc::new(keys)),
            progress,
            before: metrics::Before::default(),
            host,
            feed: feed::Feed::new(),
            until_reload: RwLock::new(stop.child_token()),
            passing: budgets::Passing::default(),
        });
        let reached_at = listeners.are_open_to_all().then(|| listeners.to_string());
        let (inside, stopped, ends) = (Arc::clone(&door), stop.clone(), Arc::<OnceLock<Instant>>::default());
        let until = Arc::clone(&ends);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            info!(listen = listeners.to_string(), "the HTTP door is open");
            if let Err(why) = runtime.block_on(serve::serve(listeners, inside, stopped, &until)) {
                error!(%why, "the HTTP door is closed: its sockets cannot be used");
            }
            runtime.shutdown_timeout(SHUT_DOWN_WITHIN);
            let _ = end.send(());
        })?;
        Ok(Self { door, reached_at, stop, ends, ended })
    }

    /// Whether these tokens are enough for where this door listens.
    ///
    /// # Errors
    ///
    /// None is named, and others reach the door: systemd may have passed such a socket.
    pub fn may_reload(&self, keys: &Keys, source: &str) -> Result<(), BadConfig> {
        match &self.reached_at {
            Some(listen) if !keys.has_tokens() => {
                Err(BadConfig::one(source, format!("http.token: {}", open_to_all(listen))))
            }
            _ => Ok(()),
        }
    }

    /// From now on this configuration holds.
    pub fn reload(&self, config: Config, keys: Keys) {
        *self.door.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        *self.door.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        let next = self.stop.child_token();
        let mut until = self.door.until_reload.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *until, next).cancel();
    }

    /// Take no more connections, let requests in hand finish until then, and end.
    pub async fn close(self, until: Instant) {
        let _ = self.ends.set(until.checked_sub(SHUT_DOWN_WITHIN).unwrap_or(until));
        self.stop.cancel();
        // Whatever its thread does: it ends with the process.
        let _ = tokio::time::timeout_at((until + SHUT_DOWN_WITHIN).into(), self.ended).await;
    }
}
