//! Sockets and connections: who may come in, how many, and for how long they may do nothing.

use std::collections::HashMap;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use futures_util::future::{BoxFuture, LocalBoxFuture, join_all};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use listenfd::ListenFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::who::Came;
use super::{Door, feed, routes};
use crate::config::http::{HttpSettings, Listen, is_loopback, open_to_all};

/// How many connections there may be at a time.
const CONNECTIONS: usize = 1_024;

/// How long the head of a request may take.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long requests in hand may take to finish when the door closes.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The wait before another try to accept, where the system has no file descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Why the door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BadListener {
    /// The address is taken, or the system does not give it.
    #[error("http.listen: cannot listen on {listen}: {why}")]
    Taken {
        /// Where.
        listen: String,
        /// What the system says, and the way out.
        why: String,
    },
    /// Anybody could push.
    #[error("the socket that systemd passes: {0}")]
    OpenToAll(String),
}

/// A socket that listens.
enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// The sockets of the door.
pub struct Listeners {
    all: Vec<Listener>,
    /// A socket that is removed in the end: systemd's own are not.
    made: Option<PathBuf>,
    shown: Vec<String>,
}

impl fmt::Display for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown.join(", "))
    }
}

impl Listeners {
    /// The sockets that systemd passes, else what the configuration names; `None` where there is no door.
    ///
    /// # Errors
    ///
    /// When it cannot listen there, or would be open to all without a token.
    pub fn open(settings: &HttpSettings, has_tokens: bool) -> Result<Option<Self>, BadListener> {
        let passed = Self::passed();
        if !passed.all.is_empty() {
            let is_open = passed.all.iter().any(|listener| !listener.is_local());
            if is_open && !has_tokens {
                return Err(BadListener::OpenToAll(open_to_all(&passed)));
            }
            return Ok(Some(passed));
        }
        let taken = |why: std::io::Error| {
            let way_out = if why.kind() == ErrorKind::AddrInUse { "; another process listens there" } else { "" };
            BadListener::Taken { listen: settings.listen.to_string(), why: format!("{why}{way_out}") }
        };
        let (listener, made) = match &settings.listen {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => (Listener::Tcp(std::net::TcpListener::bind(address).map_err(taken)?), None),
            Listen::Unix(path) => (Listener::Unix(bind_path(path).map_err(taken)?), Some(path.clone())),
        };
        let shown = vec![match &listener {
            Listener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| settings.listen.to_string(), |at| at.to_string())
            }
            Listener::Unix(_) => settings.listen.to_string(),
        }];
        Ok(Some(Self { all: vec![listener], made, shown }))
    }

    fn passed() -> Self {
        let (mut passed, mut found) = (ListenFd::from_env(), Self { all: Vec::new(), made: None, shown: Vec::new() });
        for at in 0..passed.len() {
            if let Ok(Some(listener)) = passed.take_tcp_listener(at) {
                let at = listener.local_addr().map_or_else(|_| "a TCP socket".to_owned(), |at| at.to_string());
                found.shown.push(format!("{at} (from systemd)"));
                found.all.push(Listener::Tcp(listener));
            } else if let Ok(Some(listener)) = passed.take_unix_listener(at) {
                found.shown.push("a Unix socket (from systemd)".to_owned());
                found.all.push(Listener::Unix(listener));
            } else {
                warn!(at, "systemd passes a socket that is no listener of a stream: it is not used");
            }
        }
        found
    }
}

impl Listener {
    fn is_local(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| is_loopback(at.ip())),
            Self::Unix(_) => true,
        }
    }
}

/// A socket in the file system, for its owner and its group. One that nobody listens on any more is left over and removed.
fn bind_path(path: &Path) -> std::io::Result<std::os::unix::net::UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket
        && let Err(why) = std::os::unix::net::UnixStream::connect(path)
        && why.kind() == ErrorKind::ConnectionRefused
    {
        std::fs::remove_file(path)?;
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Serve until stopped.
pub(super) async fn serve(listeners: Listeners, door: Arc<Door>, stop: CancellationToken) -> std::io::Result<()> {
    let (router, connections) = (routes::router(&door), Arc::new(Connections::default()));
    let mut accepting: Vec<LocalBoxFuture<'static, ()>> = vec![Box::pin(feed::run(Arc::clone(&door), stop.clone()))];
    for listener in listeners.all {
        let serves = Serves {
            came: Came { is_local: listener.is_local() },
            router: router.clone(),
            connections: Arc::clone(&connections),
            stop: stop.clone(),
        };
        match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                accepting.push(Box::pin(async move {
                    let accept = async || {
                        let (stream, _) = listener.accept().await?;
                        let _ = stream.set_nodelay(true);
                        Ok(stream)
                    };
                    serves.accept(accept).await;
                }));
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                accepting.push(Box::pin(async move { serves.accept(async || Ok(listener.accept().await?.0)).await }));
            }
        }
    }
    join_all(accepting).await;
    if let Some(path) = listeners.made {
        let _ = std::fs::remove_file(path);
    }
    if tokio::time::timeout(FINISH_WITHIN, connections.all_have_ended()).await.is_err() {
        warn!("requests in hand did not finish in time");
    }
    Ok(())
}

/// What serves the connections of one listener.
struct Serves {
    came: Came,
    router: Router,
    connections: Arc<Connections>,
    stop: CancellationToken,
}

impl Serves {
    async fn accept<S>(self, mut accept: impl AsyncFnMut() -> std::io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.connections.has_room() => {}
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = accept() => match accepted {
                    Ok(stream) => self.start(stream),
                    Err(why) if is_of_one_connection(&why) => debug!(%why, "a connection ended before it was taken"),
                    Err(why) => {
                        warn!(%why, "no connection can be taken");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
    }

    fn start<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (came, stop) = (self.came, self.stop.clone());
        let kept = self.connections.add();
        let service =
            Counted { inner: TowerToHyperService::new(self.router.clone()), state: Arc::clone(&kept.state), came };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let mut is_ending = false;
            loop {
                tokio::select! {
                    ended = &mut connection => {
                        if let Err(why) = ended { debug!(%why, "a connection ended") }
                        break;
                    }
                    () = kept.state.close.notified() => break,
                    () = stop.cancelled(), if !is_ending => {
                        is_ending = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
            drop(kept);
        });
    }
}

/// What concerns one connection that was not taken yet, and not the socket.
fn is_of_one_connection(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// What is known of a connection.
struct State {
    requests: AtomicUsize,
    idle_since: Mutex<Instant>,
    close: Notify,
}

/// The connection that a request came by, for one whose answer does not end by itself.
#[derive(Clone)]
pub(super) struct Connection(Arc<State>);

impl Connection {
    /// Close it, whatever is under way.
    pub(super) fn close(&self) {
        self.0.close.notify_one();
    }
}

/// The connections that there are.
#[derive(Default)]
struct Connections {
    all: Mutex<HashMap<u64, Arc<State>>>,
    count: AtomicUsize,
    ended: Notify,
    number: std::sync::atomic::AtomicU64,
}

/// A connection; it is one less when this goes.
struct Kept {
    number: u64,
    state: Arc<State>,
    connections: Arc<Connections>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.connections.all().remove(&self.number);
        self.connections.count.fetch_sub(1, Ordering::Relaxed);
        self.connections.ended.notify_waiters();
    }
}

impl Connections {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<State>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>) -> Kept {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(State {
            requests: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            close: Notify::new(),
        });
        self.all().insert(number, Arc::clone(&state));
        self.count.fetch_add(1, Ordering::Relaxed);
        Kept { number, state, connections: Arc::clone(self) }
    }

    /// Wait until there may be one more. Where there are as many as may be, the one that has been idle for longest is closed.
    async fn has_room(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count.load(Ordering::Relaxed) < CONNECTIONS {
                return;
            }
            self.close_idlest();
            ended.await;
        }
    }

    fn close_idlest(&self) {
        let all = self.all();
        let idle = all.values().filter(|state| state.requests.load(Ordering::Relaxed) == 0);
        let since = |state: &&Arc<State>| *state.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = idle.min_by_key(since) {
            state.close.notify_one();
        }
    }

    async fn all_have_ended(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count.load(Ordering::Relaxed) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A service that counts the requests in hand of its connection, until their answers are on their way whole.
struct Counted {
    inner: TowerToHyperService<Router>,
    state: Arc<State>,
    came: Came,
}

/// A request in hand.
pub(super) struct InHand(Arc<State>);

impl InHand {
    fn new(state: &Arc<State>) -> Self {
        state.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service<hyper::Request<hyper::body::Incoming>> for Counted {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, mut request: hyper::Request<hyper::body::Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.came);
        request.extensions_mut().insert(Connection(Arc::clone(&self.state)));
        let (in_hand, answer) = (InHand::new(&self.state), self.inner.call(request));
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Body::new(super::body::Holding::new(body, in_hand))))
        })
    }
}
