//! Accepting connections and serving them, until the server stops.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse as _;
use futures_util::future::{BoxFuture, LocalBoxFuture, join_all};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::auth::ListenerInfo;
use super::body::{RequestBody, ResponseBody};
use super::connection::{Connection, ConnectionState, Connections, InFlight};
use super::health::is_health;
use super::listen::{Listener, Listeners, bound_buffers, bound_unsent};
use super::memory::busy;
use super::routes;
use super::state::AppState;
use super::stream::MonitoredStream;

/// How long a connection is still read when the server stops: requests that were sent before the client knew are
/// served.
const LAST_CALL: Duration = Duration::from_millis(100);

/// The wait before another try to accept, where the system has no file descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The bytes of a connection that are read ahead; a head that is much longer is refused.
const READ_AHEAD: usize = 16 * 1_024;

/// Serve until stopped. Requests that are in flight then may finish until `ends`.
pub(super) async fn serve(
    listeners: Listeners,
    state: Arc<AppState>,
    stop: CancellationToken,
    ends: &OnceLock<Instant>,
) -> std::io::Result<()> {
    let connections = Arc::new(Connections::new(Arc::clone(&state.memory.pressure)));
    let router = routes::router(&state);
    let stopped = stop.clone();
    let feed = async move { state.feed.run(&state.link, &stopped).await };
    let mut accepting: Vec<LocalBoxFuture<'static, ()>> = vec![Box::pin(feed)];
    let (all, made) = listeners.into_parts();
    for listener in all {
        let serves = Serves {
            listener_info: ListenerInfo { is_local: listener.is_local() },
            router: router.clone(),
            connections: Arc::clone(&connections),
            stop: stop.clone(),
        };
        match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                bound_buffers(&listener)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                accepting.push(Box::pin(async move {
                    let accept = async || {
                        let (stream, _) = listener.accept().await?;
                        let _ = stream.set_nodelay(true);
                        bound_unsent(&stream);
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
    let gone = async {
        stop.cancelled().await;
        // The socket file is removed at once when the server stops: from here on another daemon may make its own there.
        drop(made);
    };
    let serving = async {
        tokio::join!(join_all(accepting), gone);
        connections.all_have_ended().await;
    };
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep_until(ends.get().copied().unwrap_or_else(Instant::now).into()).await;
    };
    tokio::select! {
        () = serving => {}
        () = overdue => warn!("requests in hand did not finish in time"),
        () = connections.close_overdue() => {}
    }
    Ok(())
}

/// A server for the connections of one listener.
struct Serves {
    listener_info: ListenerInfo,
    router: Router,
    connections: Arc<Connections>,
    stop: CancellationToken,
}

impl Serves {
    async fn accept<S>(self, mut accept: impl AsyncFnMut() -> std::io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The error that was logged last: an error may stay for long, and is logged once.
        let mut told = None;
        loop {
            let stream = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = accept() => match accepted {
                    Ok(stream) => {
                        told = None;
                        stream
                    }
                    Err(why) if is_of_one_connection(&why) => {
                        debug!(%why, "a connection ended before it was taken");
                        continue;
                    }
                    Err(why) => {
                        if told.replace(why.kind()) != Some(why.kind()) {
                            warn!(%why, "no connection can be taken");
                        }
                        if [Errno::MFILE, Errno::NFILE].into_iter().any(|no| why.raw_os_error() == Some(no.raw_os_error())) {
                            self.connections.close_one();
                        }
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                        continue;
                    }
                },
            };
            tokio::select! {
                biased;
                () = self.connections.room() => self.start(stream),
                () = self.stop.cancelled() => return,
            }
        }
    }

    fn start<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (listener_info, stop) = (self.listener_info, self.stop.clone());
        let guard = self.connections.add();
        let state = Arc::clone(&guard.state);
        let service = Counted {
            inner: TowerToHyperService::new(self.router.clone()),
            state: Arc::clone(&state),
            connections: Arc::clone(&self.connections),
            listener_info,
            stop: stop.clone(),
        };
        let stream = TokioIo::new(MonitoredStream::new(stream, Arc::clone(&state)));
        let mut connection = http1::Builder::new()
            .header_read_timeout(None) // `connection` limits the head itself
            .max_buf_size(READ_AHEAD)
            .max_header_size(READ_AHEAD)
            // A client may close its sending side after its request. Without this it would get no answer: its request
            // would be dropped.
            .half_close(true)
            .serve_connection(stream, service);
        tokio::spawn(async move {
            let last_call = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_CALL).await;
            };
            let (mut last_call, mut closed) = (std::pin::pin!(last_call), std::pin::pin!(state.closed()));
            let mut is_ending = false;
            loop {
                tokio::select! {
                    biased;
                    ended = poll_fn(|context| connection.poll_without_shutdown(context)) => {
                        if let Err(why) = &ended {
                            debug!(%why, "a connection ended");
                        }
                        let is_left = state.is_unread.load(Ordering::Relaxed) || ended.is_err_and(|why| why.is_parse());
                        let stream = connection.into_parts().io.into_inner();
                        if is_left {
                            tokio::select! {
                                () = stream.end(&guard) => {}
                                () = &mut closed => {}
                            }
                        }
                        break;
                    }
                    () = &mut closed => break,
                    () = &mut last_call, if !is_ending => {
                        is_ending = true;
                        Pin::new(&mut connection).graceful_shutdown();
                    }
                }
            }
            drop(guard);
        });
    }
}

/// Whether an error concerns a single connection that was not accepted yet, and not the socket.
fn is_of_one_connection(why: &std::io::Error) -> bool {
    matches!(why.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused)
}

/// A service that counts the requests in flight of its connection, until the last part of each answer is handed over to
/// be sent.
struct Counted {
    inner: TowerToHyperService<Router>,
    state: Arc<ConnectionState>,
    connections: Arc<Connections>,
    listener_info: ListenerInfo,
    stop: CancellationToken,
}

impl Service<hyper::Request<hyper::body::Incoming>> for Counted {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: hyper::Request<hyper::body::Incoming>) -> Self::Future {
        let mut in_flight = InFlight::new(&self.state);
        let needs_place = !is_health(request.uri().path());
        let mut request = request.map(|body| Body::new(RequestBody::new(body, Arc::clone(&self.state))));
        request.extensions_mut().insert(self.listener_info);
        request.extensions_mut().insert(Connection::of(&self.state));
        // A call does nothing before it is awaited.
        let (answer, stop, connections) = (self.inner.call(request), self.stop.clone(), Arc::clone(&self.connections));
        Box::pin(async move {
            if needs_place {
                in_flight.place = connections.place().await;
            }
            let is_refused = needs_place && in_flight.place.is_none();
            let mut response =
                if is_refused { busy("too many other requests are served").into_response() } else { answer.await? };
            if is_refused || stop.is_cancelled() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Body::new(ResponseBody::new(body, in_flight))))
        })
    }
}
