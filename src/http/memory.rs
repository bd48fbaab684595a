//! Memory: one bound for all bodies and answers that are held at a time.
//!
//! A request takes room for its body before a byte of it is read, and gives it back when the last byte of its answer was
//! handed to the system. Whoever finds no room waits, and is refused after a while. While somebody waits, bodies that
//! are slow in coming and answers that nobody takes have less time: see [`Pressure`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use http_body_util::BodyExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;

/// How long a request waits for room, or for its turn among as many as are served at a time.
pub(super) const ROOM_WITHIN: Duration = Duration::from_secs(5);

/// How long a body may take to arrive where others wait for what it holds.
const IN_THE_WAY: Duration = Duration::from_secs(5);

/// What a request and a small answer take.
pub(super) const SMALL: usize = 4 * 1_024;

/// The problem of a request for which there is no room. Nothing of it was done.
pub(super) fn busy(what: &str) -> Problem {
    let detail = format!("{what}; nothing was changed");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after_ms(1_000)
}

/// Whether requests wait for what others hold.
#[derive(Default)]
pub(super) struct Pressure {
    waiting: AtomicUsize,
    began: Notify,
}

/// A request that waits, until this value is dropped.
pub(super) struct Waits<'a>(&'a Pressure);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pressure {
    /// Begin to wait.
    pub(super) fn wait(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.began.notify_waiters();
        Waits(self)
    }

    /// Whether somebody waits now.
    pub(super) fn is_on(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Wait until somebody else waits.
    async fn is_felt(&self) {
        loop {
            let began = self.began.notified();
            if self.is_on() {
                return;
            }
            began.await;
        }
    }
}

/// The bound, and what is left of it.
pub(super) struct Memory {
    left: Arc<Semaphore>,
    /// The most that one request may hold. The rest is for those that hold little and for long, as streams do.
    largest: usize,
    pub(super) pressure: Arc<Pressure>,
}

impl Memory {
    /// At most so many bytes, of which one request may hold `largest`.
    pub(super) fn new(most: usize, largest: usize) -> Self {
        Self { left: Arc::new(Semaphore::new(most)), largest, pressure: Arc::default() }
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        if let Some(taken) = self.try_take(bytes) {
            return Ok(taken);
        }
        let _waits = self.pressure.wait();
        let taken = Arc::clone(&self.left).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        match tokio::time::timeout(ROOM_WITHIN, taken).await {
            Ok(Ok(taken)) => Ok(taken),
            _ => Err(busy("other requests hold all the memory that http.memory allows")),
        }
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.left).try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX)).ok()
    }

    /// Room for a request.
    ///
    /// # Errors
    ///
    /// There is none for [`ROOM_WITHIN`].
    pub(super) async fn room(self: &Arc<Self>, bytes: usize) -> Result<Arc<Room>, Problem> {
        let held = Mutex::new(self.take(bytes.min(self.largest)).await?);
        Ok(Arc::new(Room { memory: Arc::clone(self), held }))
    }
}

/// The room of a request. It is given back when the last part of the answer is dropped.
pub(super) struct Room {
    memory: Arc<Memory>,
    held: Mutex<OwnedSemaphorePermit>,
}

impl Room {
    fn held(&self) -> MutexGuard<'_, OwnedSemaphorePermit> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest body or answer for which there can be room.
    pub(super) fn largest(&self) -> usize {
        self.memory.largest
    }

    /// How much is missing to hold so much.
    fn missing(&self, bytes: usize) -> usize {
        bytes.min(self.memory.largest).saturating_sub(self.held().num_permits())
    }

    /// Hold at least so much; wait for it where there is none.
    ///
    /// # Errors
    ///
    /// There is none for [`ROOM_WITHIN`].
    pub(super) async fn at_least(&self, bytes: usize) -> Result<(), Problem> {
        let missing = self.missing(bytes);
        if missing > 0 {
            let more = self.memory.take(missing).await?;
            self.held().merge(more);
        }
        Ok(())
    }

    /// Hold no more than so much.
    pub(super) fn at_most(&self, bytes: usize) {
        let mut held = self.held();
        let surplus = held.num_permits().saturating_sub(bytes);
        drop(held.split(surplus));
    }

    /// Wait until a body that is still arriving is in the way of others.
    pub(super) async fn is_in_the_way(&self) -> Duration {
        tokio::time::sleep(IN_THE_WAY).await;
        self.memory.pressure.is_felt().await;
        IN_THE_WAY
    }

    /// Keep the room for as long as the answer is not sent. An answer that turns out larger than its room waits for
    /// more, where nothing was changed; one about a change is sent all the same.
    pub(super) async fn keep(self: Arc<Self>, answer: Response, changed: bool) -> Response {
        let (head, body) = answer.into_parts();
        if body.size_hint().exact().is_none() {
            let body = unfold((body.into_data_stream(), self), |(mut body, room)| async move {
                body.next().await.map(|piece| (piece, (body, room)))
            });
            return Response::from_parts(head, Body::from_stream(body));
        }
        let Ok(whole) = body.collect().await else {
            return Problem::internal("the answer cannot be read").into_response();
        };
        let bytes = whole.to_bytes();
        if changed {
            if let Some(more) = self.memory.try_take(self.missing(bytes.len())) {
                self.held().merge(more);
            }
        } else if let Err(problem) = self.at_least(bytes.len()).await {
            return problem.into_response();
        }
        self.at_most(bytes.len());
        let body =
            if bytes.is_empty() { Body::empty() } else { Body::from(Bytes::from_owner(Kept { bytes, _room: self })) };
        Response::from_parts(head, body)
    }
}

/// The bytes of an answer, with the room that they take. hyper drops them when the last one is written.
struct Kept {
    bytes: Bytes,
    _room: Arc<Room>,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const MIB: usize = 1_048_576;

    #[tokio::test(start_paused = true)]
    async fn whoever_finds_no_room_waits_and_is_refused_after_five_seconds() {
        let memory = Arc::new(Memory::new(16 * MIB, 14 * MIB));
        let first = memory.room(10 * MIB).await.expect("all of it is free");
        let second = memory.room(SMALL).await.expect("there is room for a small one");
        assert!(!memory.pressure.is_on());
        let since = tokio::time::Instant::now();
        let mut waits = Box::pin(second.at_least(10 * MIB));
        assert!(waits.as_mut().now_or_never().is_none() && memory.pressure.is_on(), "it waits");
        first.at_most(5 * MIB);
        waits.await.expect("now there is room");
        assert!(!memory.pressure.is_on());
        let refused = first.at_least(10 * MIB).await.expect_err("the second has it").into_response();
        assert_eq!(
            (refused.status(), refused.headers()["retry-after"].as_bytes()),
            (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..])
        );
        assert_eq!(since.elapsed(), ROOM_WITHIN);
        drop((first, second));
        assert_eq!(memory.left.available_permits(), 16 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_what_it_is_long_until_its_last_byte_is_dropped() {
        let memory = Arc::new(Memory::new(16 * MIB, 14 * MIB));
        let room = memory.room(2 * MIB).await.expect("room");
        let answer = room.keep(Body::from(vec![b'x'; 3 * MIB]).into_response(), false).await;
        assert_eq!(memory.left.available_permits(), 13 * MIB);
        let mut bytes = answer.into_body().collect().await.expect("it is there").to_bytes();
        drop(bytes.split_to(3 * MIB - 1));
        assert_eq!(memory.left.available_permits(), 13 * MIB);
        drop(bytes);
        assert_eq!(memory.left.available_permits(), 16 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_in_the_way_after_five_seconds_and_only_while_somebody_waits() {
        let memory = Arc::new(Memory::new(16 * MIB, 14 * MIB));
        let room = memory.room(14 * MIB).await.expect("room");
        let since = tokio::time::Instant::now();
        let mut way = Box::pin(room.is_in_the_way());
        assert!(tokio::time::timeout(Duration::from_secs(20), &mut way).await.is_err(), "nobody waits");
        let waits = memory.pressure.wait();
        assert!(way.now_or_never().is_some());
        assert_eq!(tokio::time::timeout(Duration::from_secs(20), room.is_in_the_way()).await, Ok(IN_THE_WAY));
        drop(waits);
        assert_eq!(since.elapsed(), Duration::from_secs(25));
    }
}
