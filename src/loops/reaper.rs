//! The reaper: takes back jobs whose workers fell silent, deletes the entries of those that are done, and frees slots that nobody freed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::loops::notes::Notes;
use crate::loops::progress::Progress;
use crate::store::wake::WakeQueue;
use crate::store::{Store, StoreError};

/// The time between the beginnings of two passes while there are entries, where a pass takes at most a hundredth of it. So damage to a
/// stream or its group is mended within a second. The shortest lease is a second, so none ends unseen.
const PASS_EVERY: Duration = Duration::from_millis(750);

/// The longest time between two passes, however long they take. A standby always waits so long.
const PASS_AT_MOST: Duration = Duration::from_secs(5);

/// The time between two passes over the slots, at most: the function says when there is nothing to do yet.
const RECLAIM_EVERY: Duration = Duration::from_millis(750);

/// The time between two passes while the streams are empty, unless the pacer does something.
const IDLE: Duration = Duration::from_secs(10);

/// How many parts of the pass over the keys follow one another: it goes on after the next pass over the jobs.
const KEY_PARTS: usize = 20;

/// Nothing is taken back for this long after a connection was made: workers may have been cut off too.
const GRACE: Duration = Duration::from_secs(10);

/// How long to wait before a call is repeated that the partition cannot answer yet: its slot is on the move, or its cluster takes no calls.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// From this many dead jobs on, somebody should look at them.
const MANY_DEAD: u64 = 100_000;

/// The loop over the dispatched jobs.
pub struct Reaper {
    store: Store,
    wake_queue: Arc<WakeQueue>,
    progress: Arc<Progress>,
    since: Instant,
    warned: Option<Instant>,
    notes: Notes,
}

impl Reaper {
    /// A reaper over one connection, made now.
    pub fn new(store: Store, wake_queue: Arc<WakeQueue>, progress: Arc<Progress>) -> Self {
        Self { store, wake_queue, progress, since: Instant::now(), warned: None, notes: Notes::default() }
    }

    /// Reap until stopped.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let began = tokio::time::Instant::now();
            let (pause, holds_slots) =
                tokio::select! { () = stop.cancelled() => return Ok(()), pause = self.pass() => pause? };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                done = self.rest(began, pause, holds_slots) => done?,
            }
        }
    }

    /// Wait until the next pass is to begin. Meanwhile reclaim slots that nobody freed, where entries hold any. After a step of the pacer
    /// there may be some again.
    async fn rest(
        &mut self,
        began: tokio::time::Instant,
        pause: Duration,
        holds_slots: bool,
    ) -> Result<(), StoreError> {
        let was_standby = self.is_standby();
        let (mut until, mut reclaims_at) = (began + pause, (holds_slots && !was_standby).then_some(began));
        let mut reclaimed = began;
        loop {
            tokio::select! {
                () = self.wake_queue.ready.notified(), if reclaims_at.is_none() => {
                    if pause == IDLE || was_standby && !self.is_standby() {
                        until = began + PASS_EVERY;
                    }
                    reclaims_at = Some(reclaimed + RECLAIM_EVERY);
                    continue;
                }
                () = tokio::time::sleep_until(reclaims_at.map_or(until, |at| at.min(until))) => {}
            }
            reclaimed = tokio::time::Instant::now();
            if reclaimed >= until {
                return Ok(());
            }
            reclaims_at = self.reclaim_slots().await?.map(|wait| reclaimed + wait.min(RECLAIM_EVERY));
        }
    }

    /// Go once over the entries that hold slots, in bounded calls. Replies the wait until the next pass. `None`: no entry holds a slot.
    async fn reclaim_slots(&mut self) -> Result<Option<Duration>, StoreError> {
        loop {
            let reclaimed = match self.store.reclaim_slots().await {
                Err(why) if why.is_retryable() => return Ok(Some(RETRY_DELAY)),
                reclaimed => reclaimed?,
            };
            if reclaimed.freed > 0 {
                info!(jobs = reclaimed.freed, "freed the slots of jobs that are in flight no more");
            }
            self.notes.say(&reclaimed.notes);
            if reclaimed.wait != Some(Duration::ZERO) {
                return Ok(reclaimed.wait);
            }
        }
    }

    /// Go once over every route, in bounded calls. Replies the time from the beginning of this pass to the next one, and whether entries
    /// hold slots.
    async fn pass(&mut self) -> Result<(Duration, bool), StoreError> {
        let (began, mut from, mut left, mut live) = (Instant::now(), None, PASS_AT_MOST, 0);
        loop {
            let take_back = self.since.elapsed() >= GRACE;
            let reaped = match self.store.reap(take_back, from).await {
                Err(why) if why.is_retryable() => return Ok((RETRY_DELAY, true)),
                reaped => reaped?,
            };
            if reaped.taken_back > 0 {
                info!(jobs = reaped.taken_back, "took back jobs whose lease ran out");
            }
            debug!(removed = reaped.removed, live = reaped.live, "reaped");
            self.notes.say(&reaped.notes);
            self.warn_of_many(reaped.dead);
            if reaped.keys_may_end {
                self.keep_keys().await?;
            }
            live += reaped.live;
            left = reaped.left.map_or(left, |of_part| left.min(of_part));
            if reaped.next.is_none() {
                let left = if take_back { left } else { PASS_EVERY }; // the grace may end at any time
                let pause = match live {
                    0 => IDLE,
                    _ if self.is_standby() => left.max(PASS_AT_MOST),
                    _ => left.min(100 * began.elapsed()).max(PASS_EVERY),
                };
                return Ok((pause, reaped.holds_slots));
            }
            from = reaped.next;
        }
    }

    /// Take away the times to live that somebody gave to keys of dripd.
    async fn keep_keys(&mut self) -> Result<(), StoreError> {
        for _ in 0..KEY_PARTS {
            let (more, notes) = match self.store.keep_keys().await {
                Err(why) if why.is_retryable() => return Ok(()),
                kept => kept?,
            };
            self.notes.say(&notes);
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Whether another daemon does the work in this partition. This daemon's passes are only for the case that the other one makes none.
    fn is_standby(&self) -> bool {
        self.progress.is_standby(self.store.keys().number())
    }

    fn warn_of_many(&mut self, dead: u64) {
        if dead >= MANY_DEAD && self.warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            self.warned = Some(Instant::now());
            warn!(dead, "the dead stream is long: look at its jobs and delete what nobody needs");
        }
    }
}
