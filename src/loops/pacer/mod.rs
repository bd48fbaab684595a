//! The pacer: asks Redis what is due, sleeps for as long as the reply says, and looks at once at queues that changed.
//!
//! Each partition has one. A pacer calls until nothing more is due, and sleeps until something is. Where another daemon serves the
//! partition the pacer calls a little later than that one, and finds nothing (`standby`). `drainer` makes the calls, `schedule` says
//! when the next one is made.

mod drainer;
mod schedule;
mod standby;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::loops::progress::Progress;
use crate::store::wake::WakeQueue;
use crate::store::{Store, StoreError};
use crate::system::timer::Timer;

use drainer::{Called, Drainer};
use standby::Standby;

/// How many calls are under way while more is due: Redis has the next one before the reply to the last is read.
const CALLS: usize = 2;

/// The loop that lets jobs out of their buckets.
pub struct Pacer {
    drainer: Drainer,
    /// Whether this daemon serves the partition, or leaves it to another one.
    standby: Standby,
    /// Tells when daemons came or went.
    ranked: watch::Receiver<u64>,
    timer: Timer,
}

impl Pacer {
    /// A pacer over one connection.
    ///
    /// # Errors
    ///
    /// When the kernel gives no timer.
    pub fn new(store: Store, wake_queue: Arc<WakeQueue>, progress: Arc<Progress>) -> std::io::Result<Self> {
        let ranked = progress.ranks_changed.subscribe();
        let drainer = Drainer::new(store, wake_queue, progress);
        Ok(Self { drainer, standby: Standby::new(Instant::now()), ranked, timer: Timer::new()? })
    }

    /// Drain until stopped; the calls in hand are finished.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            if self.standby.is_standby() {
                match self.standby.look(&mut self.drainer).await {
                    Err(why) if why.is_retryable() => self.drainer.retry_later(&[]),
                    looked => looked?,
                }
            }
            if !self.drainer.is_standby() {
                self.step(&stop).await?;
            }
            if self.sleep(&stop).await.is_break() {
                return Ok(());
            }
        }
    }

    /// Call until nothing more is due.
    async fn step(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut calls: FuturesOrdered<BoxFuture<'static, Called>> = FuturesOrdered::new();
        calls.push_back(Box::pin(self.drainer.call()));
        while let Some((woken, drained)) = calls.next().await {
            match drained {
                Err(why) if why.is_retryable() => self.drainer.retry_later(&woken),
                drained => {
                    let drained = drained?;
                    self.standby.called(&drained, self.drainer.alive());
                    self.drainer.take_in(&woken, &drained, self.standby.role());
                }
            }
            while self.drainer.nap().is_zero() && calls.len() < CALLS && !stop.is_cancelled() {
                // As a task of its own, the call is written before the next reply is looked at: two calls written together would be
                // answered together, and Redis would have nothing to do in between.
                let call = tokio::spawn(self.drainer.call());
                calls.push_back(Box::pin(async { call.await.expect("a call does not panic") }));
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Sleep until the next call is to be made. Breaks when stopped.
    async fn sleep(&mut self, stop: &CancellationToken) -> ControlFlow<()> {
        let wake_queue = Arc::clone(&self.drainer.wake_queue);
        loop {
            // Read before the nap, so that a name added in between wakes this task.
            let waiting = wake_queue.waiting() > 0;
            if waiting && self.drainer.is_standby() {
                self.drainer.may_be_due();
            }
            let nap = self.drainer.nap();
            if stop.is_cancelled() {
                return ControlFlow::Break(());
            }
            if nap.is_zero() {
                return ControlFlow::Continue(());
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return ControlFlow::Break(()),
                () = wake_queue.wake_pacer.notified() => self.drainer.may_be_due(),
                () = wake_queue.queues.notified(), if !waiting => {}
                _ = self.ranked.changed() => return ControlFlow::Continue(()), // `progress` has the other end
                () = self.timer.sleep(nap) => {}
            }
        }
    }
}
