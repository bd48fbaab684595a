//! The calls that drain one partition, and what follows from their replies: for the names that went along, for the other loops, for
//! the log, and for the next call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use super::schedule::{RETRY_DELAY, Role, Schedule};
use crate::loops::notes::Notes;
use crate::loops::progress::{Progress, Steps};
use crate::store::heartbeat::Alive;
use crate::store::jobs::drain::Drained;
use crate::store::wake::WakeQueue;
use crate::store::{Store, StoreError};

/// A call that came back: the names that went with it, and the reply.
pub(super) type Called = (Vec<Arc<str>>, Result<Drained, StoreError>);

/// One partition, as a pacer and its standby drain it.
pub(super) struct Drainer {
    pub(super) store: Store,
    pub(super) wake_queue: Arc<WakeQueue>,
    progress: Arc<Progress>,
    steps: Steps,
    notes: Notes,
    schedule: Schedule,
}

impl Drainer {
    pub(super) fn new(store: Store, wake_queue: Arc<WakeQueue>, progress: Arc<Progress>) -> Self {
        let steps = progress.begins(store.keys().number());
        let (notes, schedule) = (Notes::default(), Schedule::new(Instant::now()));
        Self { store, wake_queue, progress, steps, notes, schedule }
    }

    pub(super) fn number(&self) -> u8 {
        self.store.keys().number()
    }

    /// Which daemons serve the partition.
    pub(super) fn alive(&self) -> Alive {
        self.progress.alive(self.number())
    }

    pub(super) fn is_standby(&self) -> bool {
        self.schedule.role == Role::Standby
    }

    /// From now on this daemon has that role in the partition. The other loops hear of it.
    pub(super) fn set_role(&mut self, role: Role) {
        self.schedule.role = role;
        self.progress.set_standby(self.number(), self.is_standby());
    }

    /// One call, with the names that wait for a look.
    pub(super) fn call(&mut self) -> impl Future<Output = Called> + use<> {
        let woken = self.wake_queue.take(self.schedule.enough_names());
        if !woken.is_empty() {
            self.schedule.took_names(Instant::now());
        }
        self.steps.calling();
        let mut store = self.store.clone();
        async move {
            let drained = store.drain(&woken).await;
            (woken, drained)
        }
    }

    /// One call without names.
    pub(super) async fn call_alone(&mut self) -> Result<Drained, StoreError> {
        self.steps.calling();
        self.store.drain(&[]).await
    }

    /// A call with these names is back, and from now on this daemon has that role.
    pub(super) fn take_in(&mut self, woken: &[Arc<str>], drained: &Drained, role: Role) {
        self.set_role(role);
        self.wake_queue.complete(woken, drained.looked);
        if drained.dispatched + drained.rejected > 0 || !woken.is_empty() {
            self.wake_queue.ready.notify_one();
            self.wake_queue.dirty.notify_one();
        }
        self.notes.say(&drained.notes);
        debug!(woken = woken.len(), dispatched = drained.dispatched, rejected = drained.rejected, wait = ?drained.wait, "drained");
        self.schedule.called(Instant::now(), woken.len(), drained);
        self.steps.drained(drained, self.nap());
    }

    /// The partition cannot answer yet. Nothing was looked at, and nothing changed: ask again soon.
    pub(super) fn retry_later(&mut self, woken: &[Arc<str>]) {
        self.wake_queue.complete(woken, 0);
        self.schedule.retry_later(Instant::now());
        self.steps.retries_after(RETRY_DELAY);
    }

    /// Something may be due now that the last reply did not know of.
    pub(super) fn may_be_due(&mut self) {
        self.schedule.may_be_due(Instant::now());
    }

    /// Call again by then.
    pub(super) fn call_by(&mut self, at: Instant) {
        self.schedule.call_by(at);
    }

    /// How long to sleep unless woken: until a bucket is due or names are to be looked at.
    pub(super) fn nap(&self) -> Duration {
        self.schedule.nap(Instant::now(), self.wake_queue.waiting())
    }
}
