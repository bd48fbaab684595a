//! Reconcile: the safety net behind the wake-ups. The loop scans for queues, all of them at the start and after names were lost, and
//! slowly in between, and hands their names to the pacer. Where Redis does not report changes, polling is the only way to find a push:
//! the loop goes over all queues, page by page, and hands over those that changed.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::store::StoreError;
use crate::store::primary::Primary;
use crate::store::timing::WAKES_BY_POLL;
use crate::store::wake::Invalidations;

/// The time between two pages of the slow scan.
const SLOW_SCAN_EVERY: Duration = Duration::from_secs(10);

/// The shortest time from one poll of all queues to the next.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// How many seconds are left to others for each second of a poll: polls take a twentieth of Redis's time.
const IDLE_FACTOR: u32 = 19;

/// The highest cost of a page that counts, by itself and for each queue in it. A page that took longer waited for the processor or for
/// calls of others, which is no reason to look less often.
const MAX_PAGE_COST: Duration = Duration::from_millis(1);
const MAX_QUEUE_COST: Duration = Duration::from_micros(5);

/// The loop that looks for queues.
pub struct Reconciler {
    primary: Primary,
    invalidations: Arc<Invalidations>,
    tracking: bool,
    cursor: u64,
    seen: Seen,
    /// The counter of the wake key of each partition, at the last poll.
    wakes: Vec<u64>,
    lost: watch::Receiver<u64>,
}

/// How long each queue was when a poll saw it last: this round and the one before. Names are kept as hashes: two that fall
/// together cost one look too many or one that comes a round later.
#[derive(Default)]
struct Seen {
    hasher: RandomState,
    before: HashMap<u64, Option<u64>>,
    now: HashMap<u64, Option<u64>>,
}

impl Seen {
    /// Whether a queue is new or of another length than in the round before.
    fn is_news(&mut self, queue: &[u8], length: Option<u64>) -> bool {
        let name = self.hasher.hash_one(queue);
        self.now.insert(name, length);
        self.before.get(&name) != Some(&length)
    }

    /// A round is over.
    fn end_round(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

impl Reconciler {
    /// A reconciler of one server. Without `tracking` polling is the only way to find a push.
    pub fn new(primary: Primary, invalidations: Arc<Invalidations>, tracking: bool) -> Self {
        let lost = invalidations.lost.subscribe();
        Self { primary, invalidations, tracking, cursor: 0, seen: Seen::default(), wakes: Vec::new(), lost }
    }

    /// Look for queues until stopped.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        tokio::select! { () = stop.cancelled() => Ok(()), done = self.run_loop() => done }
    }

    async fn run_loop(&mut self) -> Result<(), StoreError> {
        while self.look_at_page().await? {}
        let mut pause = if self.tracking { SLOW_SCAN_EVERY } else { POLL_EVERY };
        let mut round = Instant::now();
        loop {
            tokio::select! {
                Ok(()) = self.lost.changed() => {
                    info!("wake-ups were lost: looking at every queue");
                    self.scan_all().await?;
                }
                () = tokio::time::sleep(pause) => if self.tracking {
                    self.look_at_page().await?;
                } else {
                    pause = self.poll().await? * IDLE_FACTOR;
                    if self.cursor == 0 {
                        pause = pause.max(POLL_EVERY.saturating_sub(round.elapsed()));
                        round = Instant::now() + pause;
                    }
                }
            }
        }
    }

    /// Poll one page, and look at the wake keys: jobs may leave earlier than the pacer knows. Replies the cost.
    ///
    /// A queue is handed over when its length changed, for it may be over its capacity, or when its bucket is not scheduled.
    /// A scheduled bucket whose queue has the same length has its turn.
    async fn poll(&mut self) -> Result<Duration, StoreError> {
        let began = Instant::now();
        let wakes = self.primary.wakes().await?;
        self.wakes.resize(wakes.len(), 0);
        for ((number, before), now) in self.primary.numbers().into_iter().zip(&mut self.wakes).zip(wakes) {
            if std::mem::replace(before, now) != now {
                self.invalidations.of(number).wake_key_written();
            }
        }
        let page = self.primary.scan_queues(self.cursor).await?;
        let standing = self.primary.standing(page.queues).await?;
        let at_most = MAX_PAGE_COST + MAX_QUEUE_COST * u32::try_from(standing.len()).unwrap_or(u32::MAX);
        let cost = began.elapsed().min(at_most);
        let mut changed = Vec::new();
        for (queue, stands) in standing {
            if self.seen.is_news(&queue, stands.length) || !stands.scheduled {
                changed.push(queue);
            }
        }
        self.hand_over(&changed).await;
        self.cursor = page.next.unwrap_or(0);
        if self.cursor == 0 {
            self.seen.end_round();
        }
        Ok(cost)
    }

    async fn scan_all(&mut self) -> Result<(), StoreError> {
        self.cursor = 0;
        while self.page().await? {}
        Ok(())
    }

    /// Hand over all queues of one page. Replies whether there is more.
    async fn page(&mut self) -> Result<bool, StoreError> {
        let page = self.primary.scan_queues(self.cursor).await?;
        self.hand_over(&page.queues).await;
        self.cursor = page.next.unwrap_or(0);
        Ok(page.next.is_some())
    }

    /// Hand over the queues of one page that are not scheduled: no report told of them. A scheduled queue has its turn, and is cut then at
    /// the latest; to look at each of those would keep Redis busy for nothing. Replies whether there is more.
    async fn look_at_page(&mut self) -> Result<bool, StoreError> {
        let page = self.primary.scan_queues(self.cursor).await?;
        let forgotten = self.primary.unscheduled(page.queues).await?;
        self.hand_over(&forgotten).await;
        self.cursor = page.next.unwrap_or(0);
        Ok(page.next.is_some())
    }

    async fn hand_over(&mut self, queues: &[Vec<u8>]) {
        for queue in queues {
            let Some((number, bucket)) = self.invalidations.read(queue) else { continue };
            let wake_queue = self.invalidations.of(number);
            wake_queue.wait_for_room().await;
            WAKES_BY_POLL.fetch_add(1, Ordering::Relaxed);
            wake_queue.add(&bucket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_news_when_it_is_new_or_of_another_length_than_a_round_ago() {
        let mut seen = Seen::default();
        assert!(seen.is_news(b"a", Some(1)) && seen.is_news(b"b", None));
        seen.end_round();
        assert!(!seen.is_news(b"a", Some(1)) && !seen.is_news(b"b", None));
        seen.end_round();
        assert!(seen.is_news(b"a", Some(2)) && !seen.is_news(b"b", None));
        seen.end_round();
        seen.end_round();
        assert!(seen.is_news(b"a", Some(2)), "it was gone for a round");
        assert_eq!(seen.before.len(), 0, "and nothing was kept of it");
    }
}
