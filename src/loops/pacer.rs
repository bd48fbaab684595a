//! The pacer: asks Redis what is due, sleeps for as long as it is told, and looks at once at queues that changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::loops::notes::Notes;
use crate::loops::progress::Progress;
use crate::store::reply::Drained;
use crate::store::wake::Hints;
use crate::store::{Store, StoreError};
use crate::system::timer::Timer;

/// The longest sleep: the safety net behind the wake-ups.
const LONGEST_NAP: Duration = Duration::from_secs(10);

/// How many names may go with a call, however few or many jobs left with the last one.
const FEWEST_NAMES: usize = 100;
const MOST_NAMES: usize = 500;

/// In so long, at most two calls look at names, unless the names fill them. An idle bucket is looked at as soon as it is reported;
/// under a flood, one call stands for what would be thousands.
const GATHER: Duration = Duration::from_millis(1);

/// How many calls are under way while more is due: Redis has the next one before the reply to the last is read.
const CALLS: usize = 2;

/// The loop that lets jobs out of their buckets.
pub struct Pacer {
    store: Store,
    hints: Arc<Hints>,
    progress: Arc<Progress>,
    timer: Timer,
    /// When the next bucket is due, as the last reply has it.
    due: Instant,
    /// When the last two calls were made that took names along.
    looked: [Instant; 2],
    /// How many names go with the next call: more than jobs left with the last one, for each of them brings its bucket back.
    names: usize,
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
        Ok(Self {
            store,
            hints,
            progress,
            timer,
            due: now,
            looked: [now; 2],
            names: FEWEST_NAMES,
            notes: Notes::default(),
        })
    }

    /// Drain until stopped; the calls in hand are finished.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            self.step(&stop).await?;
            loop {
                let waiting = self.hints.is_waiting(1); // read before the nap: a name that comes in between is listened for
                let nap = self.nap();
                if nap.is_zero() && !stop.is_cancelled() {
                    break;
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    () = self.hints.dues.notified() => break,
                    () = self.hints.queues.notified(), if !waiting => {}
                    () = self.timer.sleep(nap) => {}
                }
            }
        }
    }

    /// Call until nothing more is due.
    async fn step(&mut self, stop: &CancellationToken) -> Result<(), StoreError> {
        let mut calls = FuturesOrdered::new();
        calls.push_back(tokio::spawn(self.call()));
        while let Some(called) = calls.next().await {
            let (woken, drained) = called.expect("a call does not panic");
            self.take_in(&woken, &drained?);
            while self.nap().is_zero() && calls.len() < CALLS && !stop.is_cancelled() {
                calls.push_back(tokio::spawn(self.call()));
                // It is written before the next reply is looked at: two calls written together would be answered together, and
                // Redis would have nothing to do in between.
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// One call, with the names that wait for a look.
    fn call(&mut self) -> impl Future<Output = Called> + use<> {
        let woken = self.hints.take(self.names);
        if !woken.is_empty() {
            self.looked = [self.looked[1], Instant::now()];
        }
        self.progress.calling();
        let mut store = self.store.clone();
        async move {
            let drained = store.drain(&woken).await;
            (woken, drained)
        }
    }

    fn take_in(&mut self, woken: &[Arc<str>], drained: &Drained) {
        self.hints.put_back(woken.get(drained.looked..).unwrap_or_default());
        let left = usize::try_from(drained.dispatched).unwrap_or(MOST_NAMES);
        self.names = (left + left / 2).clamp(FEWEST_NAMES, MOST_NAMES);
        self.notes.say(&drained.notes);
        debug!(woken = woken.len(), dispatched = drained.dispatched, rejected = drained.rejected, wait = ?drained.wait, "drained");
        self.due = Instant::now() + drained.wait.unwrap_or(LONGEST_NAP).min(LONGEST_NAP);
        self.progress.drained(drained, self.nap());
    }

    /// How long to sleep unless woken: until a bucket is due or names are to be looked at.
    fn nap(&self) -> Duration {
        let look = self
            .hints
            .next_at()
            .map(|at| if self.hints.is_waiting(self.names) { at } else { at.max(self.looked[0] + GATHER) });
        look.map_or(self.due, |at| at.min(self.due)).saturating_duration_since(Instant::now())
    }
}
