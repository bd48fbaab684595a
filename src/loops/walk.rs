//! The walk: it goes over all buckets, for the ranking that `dripd status` shows. One daemon walks for all, on a connection of
//! its own, a page at a time. After a page it leaves Redis to others for forty-nine times as long: the walk takes a fiftieth of the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::store::partition::AUTHORITY;
use crate::store::wake::Invalidations;
use crate::store::walk::{At, Ranking};
use crate::store::{Address, Layout, Partitions, Store, StoreError};

/// How many seconds are left to others for each second of the walk.
const IDLE_FACTOR: u32 = 49;

/// The most buckets of a page. A call of others that comes meanwhile waits for the end of the page, some quarter of a millisecond. In
/// smaller pages the fixed cost of a call would outweigh that of the buckets.
const MAX_PAGE: u64 = 64;

/// A page that costs more makes the next one smaller, for each name may be compared with many globs; and the fewest buckets of a page.
const MAX_PAGE_COST: Duration = Duration::from_millis(2);
const MIN_PAGE: u64 = 8;

/// The highest cost of a page that counts. A page that took longer waited for the processor.
const MAX_COUNTED_COST: Duration = Duration::from_millis(20);

/// How long after a change a walk begins, so that one walk sees what changes together.
const SETTLE_DELAY: Duration = Duration::from_secs(1);

/// How often a walk is made though no bucket changes: before the ranking expires; and where buckets have rejected, so that rejections are
/// forgotten in time.
const WALK_EVERY: Duration = Duration::from_secs(3_600);
const WALK_EVERY_REJECTING: Duration = Duration::from_secs(600);

/// How soon a walk is made again where a partition could not be reached.
const WALK_EVERY_INCOMPLETE: Duration = Duration::from_secs(10);

/// How often a daemon looks whether it has become the oldest.
const LEADER_CHECK_EVERY: Duration = Duration::from_secs(1);

/// The wait after an error.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The time that Redis needs to read a call and to write its reply, beside the time of the function.
const CALL_OVERHEAD: Duration = Duration::from_micros(20);

/// The loop that ranks the buckets.
pub struct Walk {
    address: Address,
    layout: Layout,
    invalidations: Arc<Invalidations>,
    progress: Arc<Progress>,
    pace: Pace,
    /// The log says that Redis refuses the walk.
    refused: bool,
}

/// How many buckets make a page.
#[derive(Debug, Clone, Copy)]
struct Pace {
    buckets: u64,
}

impl Pace {
    /// A page cost Redis this much time. Replies how long to rest.
    fn took(&mut self, cost: Duration) -> Duration {
        let cost = (cost + CALL_OVERHEAD).min(MAX_COUNTED_COST);
        if cost > MAX_PAGE_COST {
            self.buckets = (self.buckets * 3 / 4).max(MIN_PAGE);
        } else if cost < MAX_PAGE_COST / 2 {
            self.buckets = (self.buckets + 4).min(MAX_PAGE);
        }
        cost * IDLE_FACTOR
    }
}

impl Walk {
    /// A walk. It connects when this daemon is the oldest.
    pub fn new(address: Address, layout: Layout, invalidations: Arc<Invalidations>, progress: Arc<Progress>) -> Self {
        Self { address, layout, invalidations, progress, pace: Pace { buckets: MAX_PAGE }, refused: false }
    }

    /// Walk again and again until stopped, while no older daemon is alive. The walk has a thread of its own: to sort and to write a
    /// thousand rows takes a millisecond, and no job should wait for that.
    ///
    /// # Errors
    ///
    /// None: nothing depends on the walk, and after an error it is tried again.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        let runtime = tokio::runtime::Handle::current();
        let thread = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! { () = stop.cancelled() => {}, () = self.run_loop() => {} }
            });
        });
        thread.await.expect("a walk does not panic");
        Ok(())
    }

    async fn run_loop(&mut self) {
        loop {
            if !self.is_leader() {
                tokio::time::sleep(LEADER_CHECK_EVERY).await;
                continue;
            }
            if let Err(why) = self.while_leader().await {
                self.say(&why);
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// Whether this daemon comes before all others (`loops/ranking`).
    fn is_leader(&self) -> bool {
        let alive = self.progress.alive(AUTHORITY);
        alive.daemons > 0 && alive.before == 0
    }

    async fn while_leader(&mut self) -> Result<(), StoreError> {
        let partitions = Partitions::connect(&self.address, &self.layout).await?;
        loop {
            let (began, rejections) = (Instant::now(), self.progress.rejections());
            let again_after = self.walk_all(&partitions).await?;
            if !self.wait_for_news(began + again_after, rejections).await {
                return Ok(());
            }
        }
    }

    /// Wait until a walk would find something new, or until a time. Replies whether this daemon is still the oldest.
    async fn wait_for_news(&self, until: Instant, rejections: u64) -> bool {
        loop {
            tokio::select! {
                () = self.invalidations.dirty.notified() => break,
                () = tokio::time::sleep(LEADER_CHECK_EVERY) => {
                    if !self.is_leader() {
                        return false;
                    }
                    if Instant::now() >= until || self.progress.rejections() != rejections {
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(SETTLE_DELAY).await;
        self.is_leader()
    }

    /// Walk over each partition, one after the other. Replies how long after the beginning the next walk is due though nothing changes.
    async fn walk_all(&mut self, partitions: &Partitions) -> Result<Duration, StoreError> {
        // This walk sees all changes up to now.
        tokio::select! { biased; () = self.invalidations.dirty.notified() => {}, () = std::future::ready(()) => {} }
        let mut again_after = WALK_EVERY;
        for mut store in partitions.each() {
            again_after = match self.walk(&mut store).await {
                Err(why) if partitions.tolerates(&why) => again_after.min(WALK_EVERY_INCOMPLETE),
                walked => again_after.min(walked?),
            };
        }
        Ok(again_after)
    }

    /// Walk once over a partition.
    async fn walk(&mut self, store: &mut Store) -> Result<Duration, StoreError> {
        let began = Instant::now();
        let (mut ranking, mut at) = (Ranking::default(), At::default());
        loop {
            let page = store.walk(&at, self.pace.buckets, &ranking).await?;
            let (rest, next) = (self.pace.took(page.cost), page.next.clone());
            ranking.add(page);
            tokio::time::sleep(rest).await;
            if !self.is_leader() {
                return Ok(Duration::ZERO);
            }
            let Some(next) = next else { break };
            at = next;
        }
        debug!(buckets = ranking.passed(), took = ?began.elapsed(), "walked");
        let again_after = if ranking.has_rejecting() { WALK_EVERY_REJECTING } else { WALK_EVERY };
        let cost = store.keep_ranking(ranking, began.elapsed()).await?;
        tokio::time::sleep(cost.min(MAX_COUNTED_COST) * IDLE_FACTOR).await;
        Ok(again_after)
    }

    /// Say why the walk failed: once, where Redis refuses it. Other loops tell of a lost connection.
    fn say(&mut self, why: &StoreError) {
        let is_refused = matches!(why, StoreError::Refused { .. });
        if is_refused && !self.refused {
            warn!(%why, "cannot rank the buckets: `dripd status` does not show which are fullest");
        } else {
            debug!(%why, "the walk is tried again");
        }
        self.refused |= is_refused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_smaller_while_it_is_dear_and_the_rest_follows_what_it_cost() {
        let mut pace = Pace { buckets: MAX_PAGE };
        let mut pages = |us_a_bucket: u64| {
            for _ in 0..100 {
                let cost = Duration::from_micros(us_a_bucket * pace.buckets);
                assert_eq!(pace.took(cost), (cost + CALL_OVERHEAD) * 49);
            }
            pace.buckets
        };
        assert_eq!(pages(5), MAX_PAGE);
        assert_eq!(pages(300), MIN_PAGE, "a hundred globs");
        let some = pages(50);
        assert!((20..=40).contains(&some), "between one and two milliseconds: {some}");
        assert_eq!(pages(5), MAX_PAGE);
        assert_eq!(pace.took(Duration::from_secs(4)), MAX_COUNTED_COST * 49, "it waited for the processor");
    }
}
