//! Connections: how many there may be, how long they may be idle, and how they end.
//!
//! hyper's own limit for heads is not used: it runs from the end of the previous request, and so closes connections
//! which a client keeps for later. Here the time of a head runs from its first byte.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior};

use super::memory::{Pressure, ROOM_WITHIN};

/// The most connections at a time.
const CONNECTIONS: usize = 1_024;

/// How many of them have no request that is served: there health is asked for, and the others are told to come later.
/// So a probe is answered though all requests that there may be stand still.
const SPARE: usize = 64;

/// The file descriptors that are left to the rest of the daemon.
const DESCRIPTORS_LEFT: u64 = 128;

/// How long the head of a request may take, and how long a new connection may send nothing.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may keep a connection without a request.
const IDLE_AT_MOST: Duration = Duration::from_secs(75);

/// How long an answer may wait for a client that reads nothing of it.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// The same for a stream of events, which a listener reads as it comes.
const EVENT_TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// How long an answer may wait for such a client when others need its connection, or its memory.
const STALLED_IN_THE_WAY: Duration = Duration::from_millis(500);

/// How often overdue connections are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Of requests that were answered before they were read, all connections together read one piece per interval, so that
/// endless bodies take no time from the pacer.
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
    /// Whether its answer is a stream of events.
    is_stream: AtomicBool,
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

    /// The answer is a stream of events.
    pub(super) fn is_stream(&self) {
        self.0.is_stream.store(true, Ordering::Relaxed);
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

    pub(super) fn bytes_came(&self) {
        if !self.has_request() {
            self.since().head.get_or_insert_with(Instant::now);
        }
    }

    pub(super) fn answer_waits(&self) {
        self.since().stalled.get_or_insert_with(Instant::now);
    }

    pub(super) fn answer_was_taken(&self) {
        let mut since = self.since();
        (since.stalled, since.idle) = (None, Instant::now());
    }

    /// Whether the connection is to be closed. `is_in_the_way`: others wait for memory, or for a place.
    fn is_overdue(&self, now: Instant, is_in_the_way: bool) -> bool {
        let since = self.since();
        let taken_within = match (is_in_the_way, self.is_stream.load(Ordering::Relaxed)) {
            (true, _) => STALLED_IN_THE_WAY,
            (false, true) => EVENT_TAKEN_WITHIN,
            (false, false) => TAKEN_WITHIN,
        };
        let past = |at: Option<Instant>, most: Duration| at.is_some_and(|at| now.saturating_duration_since(at) >= most);
        let does_nothing = past(since.head, HEAD_WITHIN) || past(Some(since.idle), IDLE_AT_MOST);
        past(since.stalled, taken_within) || (does_nothing && !self.has_request())
    }

    /// Wait until this connection must be closed: it is overdue, or has to make room.
    pub(super) async fn closed(&self) {
        loop {
            self.close.notified().await;
            // A request may have arrived since the decision.
            let is_cut = self.is_cut.load(Ordering::Relaxed);
            if is_cut || !self.has_request() || self.is_overdue(Instant::now(), false) {
                return;
            }
        }
    }
}

/// A request that is in flight until this value is dropped.
pub(super) struct InFlight {
    state: Arc<ConnectionState>,
    /// Its place among those that are served at a time, once it has one.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

impl InFlight {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.requests.fetch_add(1, Ordering::Relaxed);
        state.since().head = None;
        Self { state: Arc::clone(state), place: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.since().idle = Instant::now();
        self.state.requests.fetch_sub(1, Ordering::Relaxed);
        self.state.changed.notify_waiters();
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
    /// The places of requests that are served at a time.
    places: Arc<Semaphore>,
    /// Notified when those that wait for a place are to give way.
    crowded: Notify,
    pressure: Arc<Pressure>,
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
    pub(super) fn new(pressure: Arc<Pressure>) -> Self {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = usize::try_from(descriptors.saturating_sub(DESCRIPTORS_LEFT)).unwrap_or(usize::MAX);
        let mut unread = tokio::time::interval(UNREAD_EVERY);
        unread.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let most = CONNECTIONS.min(room).max(1);
        Self {
            all: Mutex::default(),
            most,
            places: Arc::new(Semaphore::new(most.saturating_sub(SPARE).max(most.div_ceil(2)))),
            crowded: Notify::new(),
            pressure,
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
            is_stream: AtomicBool::new(false),
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
            if !self.close_one() {
                self.crowded.notify_waiters();
            }
            // The thread gives up its core: the flooding client shall wait, not what shares the core, the pacer and
            // Redis.
            rustix::thread::sched_yield();
            // The wait ends after a while too, because time alone can make a connection closable.
            let _ = tokio::time::timeout(LOOK_EVERY, changed).await;
        }
    }

    /// A place among the requests that are served at a time. `None`: there is none for a while, or the connections of
    /// those that wait are needed.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        let _waits = self.pressure.wait();
        tokio::select! {
            place = Arc::clone(&self.places).acquire_owned() => place.ok(),
            () = self.crowded.notified() => None,
            () = tokio::time::sleep(ROOM_WITHIN) => None,
        }
    }

    /// Close the connection that has been without a request for longest. If each has one, close that whose client has
    /// read nothing of its answer for longest, if that is at least half a second. Replies whether there was one.
    pub(super) fn close_one(&self) -> bool {
        let mut all = self.all();
        if let Some(state) = all.idlest() {
            state.close.notify_one();
            return true;
        }
        let stalled = all.states.values().filter_map(|state| state.since().stalled.map(|since| (since, state)));
        if let Some((since, state)) = stalled.min_by_key(|(since, _)| *since)
            && since.elapsed() >= STALLED_IN_THE_WAY
        {
            state.cut();
            return true;
        }
        false
    }

    /// Close overdue connections, for ever. Without connections this sleeps.
    pub(super) async fn close_overdue(&self) {
        loop {
            let changed = self.changed.notified();
            if self.all().states.is_empty() {
                changed.await;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            let (now, is_in_the_way) = (Instant::now(), self.pressure.is_on());
            for state in self.all().states.values() {
                match (state.is_overdue(now, false), state.is_overdue(now, is_in_the_way)) {
                    (true, _) => state.close.notify_one(),
                    (false, true) => state.cut(), // it is not overdue, but others need what it holds
                    (false, false) => {}
                }
            }
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
    pub(super) async fn unread(&self) {
        self.connections.unread.lock().await.tick().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_idlest_makes_room_and_what_asked_meanwhile_or_has_a_request_is_not_the_idlest() {
        let connections = Arc::new(Connections::new(Arc::default()));
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
