//! The HTTP server: the commands, the dashboard, metrics and health over HTTP.
//!
//! It runs in a thread of its own with connections of its own, so that nothing it does keeps the pacer waiting, and outlives the
//! daemon's connection to Redis. A request goes `serve` (a connection) → `auth` (who asks) → its file here → `operate` or `Store`.
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

mod auth;
mod body;
mod buckets;
mod budgets;
mod connection;
mod context;
mod dead;
mod document;
mod events;
mod fallback;
mod families;
mod feed;
mod health;
mod jobs;
mod last_scrape;
mod listen;
mod metrics;
mod mutations;
mod pages;
mod problem;
mod push;
mod queries;
mod resource_path;
mod route;
mod routes;
mod serve;
mod state;
mod submit;
mod throughput;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use auth::AccessPolicy;
pub use listen::{BadListener, Listeners};

use crate::config::http::open_to_all;
use crate::config::{BadConfig, Config};
use crate::loops::progress::Progress;
use crate::store::Address;
use state::AppState;

/// How long the threads of the runtime may take to end after the requests.
const SHUT_DOWN_WITHIN: Duration = Duration::from_millis(100);

/// The running server. It ends with [`Self::close`].
pub struct HttpServer {
    state: Arc<AppState>,
    /// The addresses at which other machines reach it, if they do.
    reached_at: Option<String>,
    stop: CancellationToken,
    /// Until when requests in flight may finish, once it is known.
    ends: Arc<OnceLock<Instant>>,
    ended: oneshot::Receiver<()>,
}

impl HttpServer {
    /// Start the server in a thread of its own. It needs no Redis yet.
    ///
    /// # Errors
    ///
    /// When the system has no thread left.
    pub fn start(
        listeners: Listeners,
        config: Config,
        access: AccessPolicy,
        address: Address,
        progress: Arc<Progress>,
        host: String,
    ) -> std::io::Result<Self> {
        let (stop, (end, ended)) = (CancellationToken::new(), oneshot::channel());
        let state = Arc::new(AppState::new(config, access, address, progress, host, &stop));
        let reached_at = listeners.are_open_to_all().then(|| listeners.to_string());
        let (served, stopped, ends) = (Arc::clone(&state), stop.clone(), Arc::<OnceLock<Instant>>::default());
        let until = Arc::clone(&ends);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            info!(listen = listeners.to_string(), "the HTTP door is open");
            if let Err(why) = runtime.block_on(serve::serve(listeners, served, stopped, &until)) {
                error!(%why, "the HTTP door is closed: its sockets cannot be used");
            }
            runtime.shutdown_timeout(SHUT_DOWN_WITHIN);
            let _ = end.send(());
        })?;
        Ok(Self { state, reached_at, stop, ends, ended })
    }

    /// Whether these tokens are enough for where this server listens.
    ///
    /// # Errors
    ///
    /// None is named, and other machines reach the server: systemd may have passed such a socket.
    pub fn may_reload(&self, access: &AccessPolicy, source: &str) -> Result<(), BadConfig> {
        match &self.reached_at {
            Some(listen) if !access.has_tokens() => {
                Err(BadConfig::one(source, format!("http.token: {}", open_to_all(listen))))
            }
            _ => Ok(()),
        }
    }

    /// From now on this configuration holds.
    pub fn reload(&self, config: Config, access: AccessPolicy) {
        self.state.reload(config, access, &self.stop);
    }

    /// Take no more connections, let requests in flight finish until then, and end.
    pub async fn close(self, until: Instant) {
        let _ = self.ends.set(until.checked_sub(SHUT_DOWN_WITHIN).unwrap_or(until));
        self.stop.cancel();
        // Whatever its thread does: it ends with the process.
        let _ = tokio::time::timeout_at((until + SHUT_DOWN_WITHIN).into(), self.ended).await;
    }
}
