//! The HTTP server: the commands, the dashboard, metrics and health over HTTP.
//!
//! The server runs in a thread of its own with connections of its own, so that it never keeps the pacer waiting. It
//! outlives the daemon's connection to Redis. A request goes `serve` (a connection) → `auth` (the caller) → its file
//! here → `operate` or `Store`. `feed` asks Redis once a second for the listeners of `events`; `pages` has the files
//! that a browser loads.
//!
//! No request may end the daemon: a release build aborts where anything panics, and the pacer ends with it. So there is
//! no `expect` and no indexing here, and an impossible state is answered with 500.
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
mod memory;
pub mod metric;
mod metrics;
mod mutations;
mod pages;
mod problem;
mod push;
mod queries;
mod reach;
mod resource_path;
mod route;
mod routes;
mod serve;
mod state;
mod stream;
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

/// How long the threads of the runtime may take to end after the last request.
const SHUT_DOWN_WITHIN: Duration = Duration::from_millis(100);

/// The running server. It ends with [`Self::close`].
pub struct HttpServer {
    state: Arc<AppState>,
    /// The addresses at which other machines can reach the server; `None`: they cannot.
    reached_at: Option<String>,
    stop: CancellationToken,
    /// The time until which requests in flight may finish, set when the server stops.
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
            info!(listen = listeners.to_string(), "the HTTP server listens");
            if let Err(why) = runtime.block_on(serve::serve(listeners, served, stopped, &until)) {
                error!(%why, "the HTTP server is closed: its sockets cannot be used");
            }
            runtime.shutdown_timeout(SHUT_DOWN_WITHIN);
            let _ = end.send(());
        })?;
        Ok(Self { state, reached_at, stop, ends, ended })
    }

    /// Check that these tokens are enough for the addresses at which this server listens.
    ///
    /// # Errors
    ///
    /// No token is configured, and other machines can reach the server: systemd may have passed such a socket.
    pub fn may_reload(&self, access: &AccessPolicy, source: &str) -> Result<(), BadConfig> {
        match &self.reached_at {
            Some(listen) if !access.has_tokens() => {
                Err(BadConfig::one(source, format!("http.token: {}", open_to_all(listen))))
            }
            _ => Ok(()),
        }
    }

    /// What makes the server use another configuration and other tokens, from the moment when it is called.
    pub fn switch_to(&self, config: Config, access: AccessPolicy) -> impl FnOnce() + Send + use<> {
        let (state, stop) = (Arc::clone(&self.state), self.stop.clone());
        move || state.reload(config, access, &stop)
    }

    /// Accept no more connections, let requests in flight finish until `until`, and end.
    pub async fn close(self, until: Instant) {
        let _ = self.ends.set(until.checked_sub(SHUT_DOWN_WITHIN).unwrap_or(until));
        self.stop.cancel();
        // A thread that does not end in time ends with the process.
        let _ = tokio::time::timeout_at((until + SHUT_DOWN_WITHIN).into(), self.ended).await;
    }
}
