//! The reaper: takes back jobs whose workers fell silent, deletes the entries of those that are done, and frees slots that nobody freed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::loops::notes::Notes;
use crate::loops::progress::Progress;
use crate::store::wake::Hints;
use crate::store::{Store, StoreError};

/// The time between the beginnings of two passes while there are entries, where a pass takes at most a hundredth of it. What somebody did to a stream or
/// its group holds nothing up for over a second; the shortest lease is a second, so none ends unseen.
const PASS_EVERY: Duration = Duration::from_millis(750);

/// The time between two passes at most, however long they take, and that of a daemon that stands by.
const PASS_AT_MOST: Duration = Duration::from_secs(5);

/// The time between two passes over the slots, at most: the function says when there is nothing to do yet.
const HEAL_EVERY: Duration = Duration::from_millis(750);

/// The time between two passes while the streams are empty, unless the pacer does something.
const IDLE: Duration = Duration::from_secs(10);

/// Nothing is taken back for this long after a connection was made: workers may have been cut off too.
const GRACE: Duration = Duration::from_secs(10);

/// How long to wait where the partition stands still: its slot is on the move, or its cluster takes no calls.
const STANDS_STILL: Duration = Duration::from_millis(100);

/// From this many dead jobs on, somebody should look at them.
const MANY_DEAD: u64 = 100_000;

/// The loop over the dispatched jobs.
pub struct Reaper {
    store: Store,
    hints: Arc<Hints>,
    progress: Arc<Progress>,
    since: Instant,
    warned: Option<Instant>,
    notes: Notes,
}

impl Reaper {
    /// A reaper over one connection, made now.
    #[must_use]
    pub fn new(store: Store, hints: Arc<Hints>, progress: Arc<Progress>) -> Self {
        Self { store, hints, progress, since: Instant::now(), warned: None, notes: Notes::default() }
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

    /// Wait until the next pass is to begin. Meanwhile the slots are healed, where entries hold any: there may be some again when the
    /// pacer did something.
    async fn rest(
        &mut self,
        began: tokio::time::Instant,
        pause: Duration,
        holds_slots: bool,
    ) -> Result<(), StoreError> {
        let (mut until, mut heals_at) = (began + pause, (holds_slots && !self.stands_by()).then_some(began));
        let mut healed = began;
        loop {
            tokio::select! {
                () = self.hints.ready.notified(), if heals_at.is_none() => {
                    if pause == IDLE {
                        until = began + PASS_EVERY;
                    }
                    heals_at = Some(healed + HEAL_EVERY);
                    continue;
                }
                () = tokio::time::sleep_until(heals_at.map_or(until, |at| at.min(until))) => {}
            }
            healed = tokio::time::Instant::now();
            if healed >= until {
                return Ok(());
            }
            heals_at = self.heal().await?.map(|wait| healed + wait.min(HEAL_EVERY));
        }
    }

    /// One pass over the entries that hold slots, in bounded calls. Replies when the next one is to begin; `None`: no entry holds one.
    async fn heal(&mut self) -> Result<Option<Duration>, StoreError> {
        loop {
            let healed = match self.store.heal().await {
                Err(why) if why.stands_still() => return Ok(Some(STANDS_STILL)),
                healed => healed?,
            };
            if healed.freed > 0 {
                info!(jobs = healed.freed, "freed the slots of jobs that are in flight no more");
            }
            self.notes.say(&healed.notes);
            if healed.wait != Some(Duration::ZERO) {
                return Ok(healed.wait);
            }
        }
    }

    /// One pass over every route, in bounded calls. Replies when the next one is to begin, after this one began, and whether entries
    /// hold slots.
    async fn pass(&mut self) -> Result<(Duration, bool), StoreError> {
        let (began, mut from, mut left, mut live) = (Instant::now(), None, PASS_AT_MOST, 0);
        loop {
            let take_back = self.since.elapsed() >= GRACE;
            let reaped = match self.store.reap(take_back, from).await {
                Err(why) if why.stands_still() => return Ok((STANDS_STILL, true)),
                reaped => reaped?,
            };
            if reaped.taken_back > 0 {
                info!(jobs = reaped.taken_back, "took back jobs whose lease ran out");
            }
            debug!(removed = reaped.removed, live = reaped.live, "reaped");
            self.notes.say(&reaped.notes);
            self.warn_of_many(reaped.dead);
            live += reaped.live;
            left = reaped.left.map_or(left, |of_part| left.min(of_part));
            if reaped.next.is_none() {
                let left = if take_back { left } else { PASS_EVERY }; // the grace may end at any time
                let pause = match live {
                    0 => IDLE,
                    _ if self.stands_by() => left.max(PASS_AT_MOST),
                    _ => left.min(100 * began.elapsed()).max(PASS_EVERY),
                };
                return Ok((pause, reaped.holds_slots));
            }
            from = reaped.next;
        }
    }

    /// Whether another daemon does the work here. Its passes are enough; those of this one are for the case that it makes none.
    fn stands_by(&self) -> bool {
        self.progress.stands_by(self.store.keys().number())
    }

    fn warn_of_many(&mut self, dead: u64) {
        if dead >= MANY_DEAD && self.warned.is_none_or(|at| at.elapsed() >= Duration::from_secs(60)) {
            self.warned = Some(Instant::now());
            warn!(dead, "the dead stream is long: look at its jobs and delete what nobody needs");
        }
    }
}
