//! The pacer: asks Redis what is due, sleeps for as long as it is told, and looks at once at queues that changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::loops::notes::Notes;
use crate::loops::progress::{Progress, Steps};
use crate::loops::share::{LOOK_EVERY, Neglect};
use crate::loops::turn::{STAND_BACK, Turn};
use crate::store::reply::Drained;
use crate::store::wake::Hints;
use crate::store::{Store, StoreError};
use crate::system::timer::Timer;

/// The longest sleep: the safety net behind the wake-ups.
const LONGEST_NAP: Duration = Duration::from_secs(30);

/// How long to wait where the partition stands still: its slot is on the move, or its cluster takes no calls.
const STANDS_STILL: Duration = Duration::from_millis(100);

/// How long to wait where no record is stored, for nothing is looked at without one: at first, and at most. A daemon stores its own at once,
/// but in a partition only when the one that says what holds can be reached.
const RECORD_SOON: Duration = Duration::from_millis(5);
const RECORD_LATER: Duration = Duration::from_secs(1);

/// How many names may go with a call, however few or many jobs left with the last one.
const FEWEST_NAMES: usize = 100;
const MOST_NAMES: usize = 500;

/// How many calls are under way while more is due: Redis has the next one before the reply to the last is read.
const CALLS: usize = 2;

/// How many names make a call of their own, for a daemon that stands back.
const STANDING_BACK_NAMES: usize = MOST_NAMES;

/// How often calls take names along: `burst` at once, then one in `every`. A call that the names fill does not wait. So a queue is
/// looked at as soon as it is reported, and under load one call stands for many.
#[derive(Debug, Clone, Copy)]
struct Pace {
    every: Duration,
    burst: u32,
}

const AT_ONCE: Pace = Pace { every: Duration::from_micros(500), burst: 8 };
const STANDING_BACK: Pace = Pace { every: STAND_BACK, burst: 1 };

/// The loop that lets jobs out of their buckets.
pub struct Pacer {
    store: Store,
    hints: Arc<Hints>,
    progress: Arc<Progress>,
    steps: Steps,
    timer: Timer,
    /// When the next bucket is due, as the last reply has it.
    due: Instant,
    /// No call before that: the partition stood still.
    still: Instant,
    /// How long to wait for a record when the next call finds none.
    record_in: Duration,
    /// When the calls that took names along so far will have been paid for, one `every` each.
    paid: Instant,
    /// How many names go with the next call: more than jobs left with the last one, for each of them brings its bucket back; and
    /// no more than it looked at, where it had no room for all.
    names: usize,
    /// The last call had no room for all of its names: the next one goes at once.
    left_over: bool,
    /// Whether it leaves the work to another daemon.
    turn: Turn,
    /// While it stands by: the buckets that may be neglected.
    neglect: Neglect,
    notes: Notes,
}

/// A call that came back: the names that went with it, and the reply.
type Called = (Vec<Arc<str>>, Result<Drained, StoreError>);

impl Pacer {
    /// A pacer over one connection.
    ///
    /// # Errors
    ///
    /// When the kernel gives no timer.
    pub fn new(store: Store, hints: Arc<Hints>, progress: Arc<Progress>) -> std::io::Result<Self> {
        let (timer, now) = (Timer::new()?, Instant::now());
        let (turn, notes) = (Turn::of(store.keys()), Notes::default());
        let steps = progress.begins(store.keys().number());
        Ok(Self {
            store,
            hints,
            progress,
            steps,
            timer,
            due: now,
            still: now,
            record_in: RECORD_SOON,
            paid: now,
            names: FEWEST_NAMES,
            left_over: false,
            turn,
            neglect: Neglect::default(),
            notes,
        })
    }

    /// Drain until stopped; the calls in hand are finished.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            if self.turn.stands_by() {
                match self.look().await {
                    Err(why) if why.stands_still() => self.stand_still(&[]),
                    looked => looked?,
                }
            }
            if !self.turn.stands_by() {
                self.step(&stop).await?;
            }
            loop {
                // Read before the nap: a name that comes in between is listened for. Who stands by listens to none.
                let (waiting, stands_by) = (self.hints.waiting() > 0, self.turn.stands_by());
                let nap = self.nap();
                if nap.is_zero() && !stop.is_cancelled() {
                    break;
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    () = self.hints.dues.notified(), if !stands_by => break,
                    () = self.hints.queues.notified(), if !stands_by && !waiting => {}
                    () = self.timer.sleep(nap) => {}
                }
            }
        }
    }

    /// Look whether jobs wait that another daemon should have let out: those whose bucket was due, and those of buckets that it neglects.
    /// They are let out all the same.
    async fn look(&mut self) -> Result<(), StoreError> {
        self.steps.calling();
        let drained = self.store.drain(&[]).await?;
        self.turn_after(&drained);
        self.take_in(&[], &drained);
        let reported = self.hints.take(usize::MAX);
        if !reported.is_empty() {
            self.hints.moved.notify_one();
        }
        let neglected = self.neglect.look(&mut self.store, &reported).await;
        self.hints.done(&reported, if neglected.is_ok() { reported.len() } else { 0 });
        let neglected = neglected?;
        let mut took = 0;
        for names in neglected.chunks(MOST_NAMES) {
            let drained = self.store.drain(names).await?;
            self.take_in(&[], &drained);
            // One that waits for a slot, or within a budget, does so still.
            took += names.len() - self.store.without_turn(names).await?.len();
        }
        if took > 0 {
            self.turn.step_in();
        }
        self.progress.set_stands_by(self.store.keys().number(), self.turn.stands_by());
        if !self.turn.stands_by() {
            if self.turn.stepped_in() {
                let partition = self.store.keys().number();
                info!(partition, neglected = took, "jobs of a partition were late: serving it too");
            }
            self.hints.done(&self.neglect.take(), 0);
            self.hints.ready.notify_one();
        }
        Ok(())
    }

    /// Call until nothing more is due.
    async fn step(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut calls: FuturesOrdered<BoxFuture<'static, Called>> = FuturesOrdered::new();
        calls.push_back(Box::pin(self.call()));
        while let Some((woken, drained)) = calls.next().await {
            match drained {
                Err(why) if why.stands_still() => self.stand_still(&woken),
                drained => {
                    let drained = drained?;
                    self.turn_after(&drained);
                    self.take_in(&woken, &drained);
                }
            }
            while self.nap().is_zero() && calls.len() < CALLS && !stop.is_cancelled() {
                // As a task of its own, it is written before the next reply is looked at: two calls written together would be
                // answered together, and Redis would have nothing to do in between.
                let call = tokio::spawn(self.call());
                calls.push_back(Box::pin(async { call.await.expect("a call does not panic") }));
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// One call, with the names that wait for a look.
    fn call(&mut self) -> impl Future<Output = Called> + use<> {
        let woken = self.hints.take(self.enough_names().max(self.names));
        if !woken.is_empty() {
            self.paid = self.paid.max(Instant::now()) + self.pace().every;
        }
        self.steps.calling();
        let mut store = self.store.clone();
        async move {
            let drained = store.drain(&woken).await;
            (woken, drained)
        }
    }

    fn turn_after(&mut self, drained: &Drained) {
        let number = self.store.keys().number();
        self.turn.called(drained, self.progress.alive(number));
        self.progress.set_stands_by(number, self.turn.stands_by());
    }

    /// Nothing was looked at, and nothing changed: ask again soon.
    fn stand_still(&mut self, woken: &[Arc<str>]) {
        self.hints.done(woken, 0);
        self.still = Instant::now() + STANDS_STILL;
        (self.due, self.left_over) = (self.still, false);
        self.steps.stands_still(STANDS_STILL);
    }

    fn take_in(&mut self, woken: &[Arc<str>], drained: &Drained) {
        self.hints.done(woken, drained.looked);
        self.left_over = drained.looked < woken.len() && drained.record.is_some();
        let left = usize::try_from(drained.dispatched).unwrap_or(MOST_NAMES);
        let names = if self.left_over { drained.looked } else { left + left / 2 };
        self.names = names.clamp(FEWEST_NAMES, MOST_NAMES);
        let did_something = drained.dispatched + drained.rejected > 0;
        if did_something || !woken.is_empty() {
            self.hints.ready.notify_one();
            self.hints.moved.notify_one();
        }
        self.notes.say(&drained.notes);
        debug!(woken = woken.len(), dispatched = drained.dispatched, rejected = drained.rejected, wait = ?drained.wait, "drained");
        self.due = Instant::now() + drained.wait.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
        if drained.record.is_none() {
            self.due = Instant::now() + self.record_in;
            self.still = self.due; // names that wait change nothing
        }
        self.record_in = if drained.record.is_none() { (self.record_in * 2).min(RECORD_LATER) } else { RECORD_SOON };
        if self.turn.stands_back() && drained.wait != Some(Duration::ZERO) {
            self.due += STAND_BACK;
        }
        if self.turn.stands_by() {
            self.due = Instant::now() + LOOK_EVERY;
        }
        self.steps.drained(drained, self.nap());
    }

    fn pace(&self) -> Pace {
        if self.turn.stands_back() { STANDING_BACK } else { AT_ONCE }
    }

    /// How many waiting names make a call at once.
    fn enough_names(&self) -> usize {
        if self.turn.stands_back() { STANDING_BACK_NAMES } else { self.names }
    }

    /// When the names that wait may go with a call; `None` when none waits.
    fn look_at(&self) -> Option<Instant> {
        let (waiting, pace) = (self.hints.waiting(), self.pace());
        match waiting {
            _ if self.turn.stands_by() => None,
            0 => None,
            n if n >= self.enough_names() || self.left_over => Some(Instant::now()),
            _ => Some(self.paid.checked_sub(pace.every * (pace.burst - 1)).unwrap_or(self.paid)),
        }
    }

    /// How long to sleep unless woken: until a bucket is due or names are to be looked at.
    fn nap(&self) -> Duration {
        let at = self.look_at().map_or(self.due, |at| at.min(self.due));
        at.max(self.still).saturating_duration_since(Instant::now())
    }
}
