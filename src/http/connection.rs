//! Connections: how many there may be, how long they may be idle, and how they end.
//!
//! hyper's own limit for heads is not used: it runs from the end of the previous request, and so closes connections
//! which a client keeps for later. Here the time of a head runs from its first byte.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Interval, MissedTickBehavior};

/// The most connections at a time.
const CONNECTIONS: usize = 1_024;

/// The file descriptors that are left to the rest of the daemon.
const DESCRIPTORS_LEFT: u64 = 128;

/// How long the head of a request may take, and how long a new connection may send nothing.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may keep a connection without a request.
const IDLE_AT_MOST: Duration = Duration::from_secs(75);

/// How long an answer may wait for a client that reads nothing of it.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// How long an answer may wait for such a client when other connections need the room.
const STALLED_IN_THE_WAY: Duration = Duration::from_secs(1);

/// How often overdue connections are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many bytes, and for how long, are read of a request that was answered before it was read. A socket that is
/// closed with unread data resets the connection, and the client may lose the answer.
const UNREAD_MOST: usize = 16 * 1_048_576;
const UNREAD_WITHIN: Duration = Duration::from_secs(2);

/// The first megabyte of unread data is read at once. After that all connections together read one piece per interval,
/// so that endless bodies take no time from the pacer.
const UNREAD_AT_ONCE: usize = 1_048_576;
const UNREAD_PIECE: usize = 32 * 1_024;
const UNREAD_EVERY: Duration = Duration::from_millis(1);

/// The times since when a connection is in a state.
struct Since {
    /// The head of a request is arriving.
    head: Option<Instant>,
    /// The last request ended, or the client last read of an answer; at first, the connection came.
    idle: Instant,
    /// The client reads nothing of an answer that waits for it.
    stalled: Option<Instant>,
}

/// The state of a connection.
pub(super) struct ConnectionState {
    requests: AtomicUsize,
    since: Mutex<Since>,
    /// Whether a request's body has not been read to its end.
    pub(super) is_unread: AtomicBool,
    close: Notify,
    /// Whether the connection is closed whatever is in progress on it.
    is_cut: AtomicBool,
    changed: Arc<Notify>,
}

/// The connection of a request, for handlers whose answers do not end by themselves.
#[derive(Clone)]
pub(super) struct Connection(Arc<ConnectionState>);

impl Connection {
    pub(super) fn of(state: &Arc<ConnectionState>) -> Self {
        Self(Arc::clone(state))
    }

    /// Close the connection, whatever is in progress.
    pub(super) fn cut(&self) {
        self.0.cut();
    }
}

impl ConnectionState {
    fn since(&self) -> MutexGuard<'_, Since> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.close.notify_one();
    }

    fn has_request(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    fn bytes_came(&self) {
        if !self.has_request() {
            self.since().head.get_or_insert_with(Instant::now);
        }
    }

    fn answer_waits(&self) {
        self.since().stalled.get_or_insert_with(Instant::now);
    }

    fn answer_was_taken(&self) {
        let mut since = self.since();
        (since.stalled, since.idle) = (None, Instant::now());
    }

    fn is_overdue(&self, now: Instant) -> bool {
        let since = self.since();
        let past = |at: Option<Instant>, most: Duration| at.is_some_and(|at| now.saturating_duration_since(at) >= most);
        let does_nothing = past(since.head, HEAD_WITHIN) || past(Some(since.idle), IDLE_AT_MOST);
        past(since.stalled, TAKEN_WITHIN) || (does_nothing && !self.has_request())
    }

    /// Wait until this connection must be closed: it is overdue, or has to make room.
    pub(super) async fn closed(&self) {
        loop {
            self.close.notified().await;
            // A request may have arrived since the decision.
            let is_cut = self.is_cut.load(Ordering::Relaxed);
            if is_cut || !self.has_request() || self.is_overdue(Instant::now()) {
                return;
            }
        }
    }
}

/// A request that is in flight until this value is dropped.
pub(super) struct InFlight(Arc<ConnectionState>);

impl InFlight {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.requests.fetch_add(1, Ordering::Relaxed);
        state.since().head = None;
        Self(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.since().idle = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}

/// All connections, by number.
#[derive(Default)]
struct All {
    states: HashMap<u64, Arc<ConnectionState>>,
    /// The connections that had no request in flight when the list was made, the longest idle first, each with the time
    /// since when. Connections that became idle later have been idle for less time than all of these.
    idlest: VecDeque<(Instant, u64)>,
}

impl All {
    /// The connection that has been without a request for longest. A search through all connections at each call would
    /// help an attacker, so one search makes a list, and the next calls take from it. Only where no connection is idle
    /// does each call search.
    fn idlest(&mut self) -> Option<&Arc<ConnectionState>> {
        if self.first_of_idlest().is_none() {
            let idle = self.states.iter().filter(|(_, state)| !state.has_request());
            let mut idle: Vec<_> = idle.map(|(number, state)| (state.since().idle, *number)).collect();
            idle.sort_unstable();
            self.idlest = idle.into();
        }
        self.first_of_idlest().and_then(|number| self.states.get(&number))
    }

    /// The first connection of the list that has been idle all the time since the list was made.
    fn first_of_idlest(&mut self) -> Option<u64> {
        while let Some((since, number)) = self.idlest.front() {
            let state = self.states.get(number);
            if state.is_some_and(|state| !state.has_request() && state.since().idle == *since) {
                return Some(*number);
            }
            self.idlest.pop_front();
        }
        None
    }
}

/// The connections of the server, and how many there may be.
pub(super) struct Connections {
    all: Mutex<All>,
    most: usize,
    /// The timer for the next piece of an unread body.
    unread: tokio::sync::Mutex<Interval>,
    /// Notified when a connection comes or ends, or a request is no longer in flight.
    changed: Arc<Notify>,
    number: AtomicU64,
}

/// A connection that counts as open until this value is dropped.
pub(super) struct ConnectionGuard {
    number: u64,
    pub(super) state: Arc<ConnectionState>,
    connections: Arc<Connections>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.all().states.remove(&self.number);
        self.connections.changed.notify_waiters();
    }
}

impl Connections {
    /// The server's connections, none yet: at most `CONNECTIONS`, and no more than the process has file descriptors
    /// for. The caller must be within the runtime that serves them.
    pub(super) fn new() -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = usize::try_from(descriptors.saturating_sub(DESCRIPTORS_LEFT)).unwrap_or(usize::MAX);
        let mut unread = tokio::time::interval(UNREAD_EVERY);
        unread.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            all: Mutex::default(),
            most: CONNECTIONS.min(room).max(1),
            unread: tokio::sync::Mutex::new(unread),
            changed: Arc::default(),
            number: AtomicU64::new(0),
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>) -> ConnectionGuard {
        let (number, now) = (self.number.fetch_add(1, Ordering::Relaxed), Instant::now());
        let state = Arc::new(ConnectionState {
            requests: AtomicUsize::new(0),
            since: Mutex::new(Since { head: Some(now), idle: now, stalled: None }),
            is_unread: AtomicBool::new(false),
            close: Notify::new(),
            is_cut: AtomicBool::new(false),
            changed: Arc::clone(&self.changed),
        });
        self.all().states.insert(number, Arc::clone(&state));
        self.changed.notify_waiters();
        ConnectionGuard { number, state, connections: Arc::clone(self) }
    }

    /// Wait until there is room for one more connection. While there is none, close the one that does least.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            if self.all().states.len() < self.most {
                return;
            }
            self.close_one();
            // The thread gives up its core: the flooding client shall wait, not what shares the core, the pacer and
            // Redis.
            rustix::thread::sched_yield();
            // The wait ends after a while too, because time alone can make a connection closable.
            let _ = tokio::time::timeout(LOOK_EVERY, changed).await;
        }
    }

    /// Close the connection that has been without a request for longest. If each has one, close that whose client has
    /// read nothing of its answer for longest, if that is at least a second.
    pub(super) fn close_one(&self) {
        let mut all = self.all();
        if let Some(state) = all.idlest() {
            state.close.notify_one();
            return;
        }
        let stalled = all.states.values().filter_map(|state| state.since().stalled.map(|since| (since, state)));
        if let Some((since, state)) = stalled.min_by_key(|(since, _)| *since)
            && since.elapsed() >= STALLED_IN_THE_WAY
        {
            state.cut();
        }
    }

    /// Close overdue connections, for ever. Without connections this sleeps.
    pub(super) async fn close_overdue(&self) {
        loop {
            let changed = self.changed.notified();
            if self.all().states.is_empty() {
                changed.await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            let now = Instant::now();
            self.all().states.values().filter(|state| state.is_overdue(now)).for_each(|state| state.close.notify_one());
        }
    }

    pub(super) async fn all_have_ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.all().states.is_empty() {
                return;
            }
            changed.await;
        }
    }
}

impl ConnectionGuard {
    /// Wait until the next piece of unread data may be read.
    async fn unread(&self) {
        self.connections.unread.lock().await.tick().await;
    }
}

/// A stream that records when bytes arrive and leave.
pub(super) struct MonitoredStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MonitoredStream<S> {
    pub(super) fn new(stream: S, state: Arc<ConnectionState>) -> Self {
        Self { stream, state }
    }

    /// Close the sending side, and read what the client still sends, so that the client gets its answer.
    pub(super) async fn end(mut self, guard: &ConnectionGuard) {
        let read_on = async {
            self.stream.shutdown().await?;
            let (mut read, mut paid, mut buffer) = (0, UNREAD_AT_ONCE, vec![0; UNREAD_PIECE]);
            while read < UNREAD_MOST {
                match self.stream.read(&mut buffer).await? {
                    0 => break,
                    n => read += n,
                }
                if read > paid {
                    guard.unread().await;
                    paid += UNREAD_PIECE;
                }
            }
            std::io::Result::Ok(())
        };
        let _ = tokio::time::timeout(UNREAD_WITHIN, read_on).await;
    }

    fn wrote<T>(&self, polled: Poll<T>) -> Poll<T> {
        match &polled {
            Poll::Ready(_) => self.state.answer_was_taken(),
            Poll::Pending => self.state.answer_waits(),
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if buffer.filled().len() > before {
            self.state.bytes_came();
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_idlest_makes_room_and_what_asked_meanwhile_or_has_a_request_is_not_the_idlest() {
        let connections = Arc::new(Connections::new());
        let mut guard: Vec<Option<ConnectionGuard>> = (0..5).map(|_| Some(connections.add())).collect();
        let state =
            |guard: &[Option<ConnectionGuard>], n: usize| Arc::clone(&guard[n].as_ref().expect("it is there").state);
        let busy = InFlight::new(&state(&guard, 3));
        let mut made_room = Vec::new();
        for round in 0..4 {
            connections.close_one();
            // Two calls: a connection that was told to close is told again, and no other one is closed in its place.
            connections.close_one();
            let told: Vec<usize> = (0..guard.len())
                .filter(|n| {
                    guard[*n].as_ref().is_some_and(|guard| guard.state.close.notified().now_or_never().is_some())
                })
                .collect();
            assert_eq!(told.len(), 1, "{told:?}");
            made_room.push(told[0]);
            guard[told[0]] = None;
            if round == 0 {
                // Connection 1 makes a request, and is idle only since then.
                drop(InFlight::new(&state(&guard, 1)));
            }
        }
        assert_eq!(made_room, [0, 2, 4, 1]);
        connections.close_one();
        assert!(state(&guard, 3).close.notified().now_or_never().is_none(), "it has a request in flight");
        drop(busy);
    }
}
