//! The walk: it passes all buckets by, for the ranking that `dripd status` shows. The oldest daemon does it for all, on a connection
//! of its own, a page at a time, and leaves Redis forty-nine times as long to others as a page took: a fiftieth of its time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::loops::progress::Progress;
use crate::store::partition::AUTHORITY;
use crate::store::wake::Reports;
use crate::store::walk::{At, Ranking};
use crate::store::{Address, Layout, Store, StoreError, Whole};

/// For each second that the walk takes, so many are left to others.
const LEAVE: u32 = 49;

/// How many buckets make a page. A call of others that comes meanwhile waits for its end, which is a quarter of a millisecond or so;
/// with fewer, what each call costs by itself would weigh more than they do.
const MOST: u64 = 64;

/// A page that costs more than this is made smaller, for each name is compared with many globs: down to so many.
const PAGE: Duration = Duration::from_millis(2);
const FEWEST: u64 = 8;

/// The longest that a page is taken to have cost: what took longer was spent waiting for the processor.
const DEAREST: Duration = Duration::from_millis(20);

/// How long after a bucket has changed a walk begins: what changes together is seen by one walk.
const SOON: Duration = Duration::from_secs(1);

/// How often it walks though no bucket changes, for what is shown is not to be forgotten; and where buckets have rejected, for that
/// is to be forgotten.
const AT_LEAST: Duration = Duration::from_secs(3_600);
const AT_LEAST_REJECTING: Duration = Duration::from_secs(600);

/// The same where a partition could not be reached.
const AT_LEAST_MISSING: Duration = Duration::from_secs(10);

/// How often a daemon looks whether it is the oldest now.
const TURN: Duration = Duration::from_secs(1);

/// The wait after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// What Redis needs to read a call and to write its reply, which the time of the function does not hold.
const CALL: Duration = Duration::from_micros(20);

/// The loop that ranks the buckets.
pub struct Walk {
    address: Address,
    layout: Layout,
    reports: Arc<Reports>,
    progress: Arc<Progress>,
    pace: Pace,
    /// The log says that Redis refuses it.
    refused: bool,
}

/// How many buckets make a page.
#[derive(Debug, Clone, Copy)]
struct Pace {
    buckets: u64,
}

impl Pace {
    /// A page cost Redis so much time. Replies how long to rest.
    fn took(&mut self, cost: Duration) -> Duration {
        let cost = (cost + CALL).min(DEAREST);
        if cost > PAGE {
            self.buckets = (self.buckets * 3 / 4).max(FEWEST);
        } else if cost < PAGE / 2 {
            self.buckets = (self.buckets + 4).min(MOST);
        }
        cost * LEAVE
    }
}

impl Walk {
    /// A walk over a connection of its own, which is made when it is this daemon's turn.
    #[must_use]
    pub fn new(address: Address, layout: Layout, reports: Arc<Reports>, progress: Arc<Progress>) -> Self {
        Self { address, layout, reports, progress, pace: Pace { buckets: MOST }, refused: false }
    }

    /// Walk again and again until stopped, as long as no older daemon is alive. It has a thread of its own: to sort and to write a
    /// thousand rows takes a millisecond, for which no job should wait.
    ///
    /// # Errors
    ///
    /// None: nothing depends on it, and what goes wrong is tried again.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        let runtime = tokio::runtime::Handle::current();
        let thread = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! { () = stop.cancelled() => {}, () = self.walk_for_ever() => {} }
            });
        });
        thread.await.expect("a walk does not panic");
        Ok(())
    }

    async fn walk_for_ever(&mut self) {
        loop {
            if !self.has_turn() {
                tokio::time::sleep(TURN).await;
                continue;
            }
            if let Err(why) = self.while_it_has_turn().await {
                self.say(&why);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Whether this is the oldest daemon alive.
    fn has_turn(&self) -> bool {
        let alive = self.progress.alive(AUTHORITY);
        alive.daemons > 0 && alive.before == 0
    }

    async fn while_it_has_turn(&mut self) -> Result<(), StoreError> {
        let whole = Whole::connect(&self.address, &self.layout).await?;
        loop {
            let (began, rejections) = (Instant::now(), self.progress.rejections());
            let again_after = self.walk_all(&whole).await?;
            if !self.wait_for_news(began + again_after, rejections).await {
                return Ok(());
            }
        }
    }

    /// Wait until a walk would find something new, or until a time. Replies whether it is still this daemon's turn.
    async fn wait_for_news(&self, until: Instant, rejections: u64) -> bool {
        loop {
            tokio::select! {
                () = self.reports.moved.notified() => break,
                () = tokio::time::sleep(TURN) => {
                    if !self.has_turn() {
                        return false;
                    }
                    if Instant::now() >= until || self.progress.rejections() != rejections {
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(SOON).await;
        self.has_turn()
    }

    /// A walk of each partition, one after the other. Replies after how long, from the beginning, there should be another one though
    /// nothing has changed.
    async fn walk_all(&mut self, whole: &Whole) -> Result<Duration, StoreError> {
        // What has changed by now is seen by this walk.
        tokio::select! { biased; () = self.reports.moved.notified() => {}, () = std::future::ready(()) => {} }
        let mut again_after = AT_LEAST;
        for mut store in whole.each() {
            again_after = match self.walk(&mut store).await {
                Err(why) if whole.goes_on_without(&why) => again_after.min(AT_LEAST_MISSING),
                walked => again_after.min(walked?),
            };
        }
        Ok(again_after)
    }

    /// One walk, from its beginning to its end.
    async fn walk(&mut self, store: &mut Store) -> Result<Duration, StoreError> {
        let began = Instant::now();
        let (mut ranking, mut at) = (Ranking::default(), At::default());
        loop {
            let page = store.walk(&at, self.pace.buckets, &ranking).await?;
            let (rest, next) = (self.pace.took(page.cost), page.next.clone());
            ranking.add(page);
            tokio::time::sleep(rest).await;
            if !self.has_turn() {
                return Ok(Duration::ZERO);
            }
            let Some(next) = next else { break };
            at = next;
        }
        debug!(buckets = ranking.passed(), took = ?began.elapsed(), "walked");
        let again_after = if ranking.has_rejecting() { AT_LEAST_REJECTING } else { AT_LEAST };
        let cost = store.keep_ranking(ranking, began.elapsed()).await?;
        tokio::time::sleep(cost.min(DEAREST) * LEAVE).await;
        Ok(again_after)
    }

    /// Say why it does not walk: once, where Redis refuses it. A lost connection is told by others.
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
        let mut pace = Pace { buckets: MOST };
        let mut pages = |us_a_bucket: u64| {
            for _ in 0..100 {
                let cost = Duration::from_micros(us_a_bucket * pace.buckets);
                assert_eq!(pace.took(cost), (cost + CALL) * 49);
            }
            pace.buckets
        };
        assert_eq!(pages(5), MOST);
        assert_eq!(pages(300), FEWEST, "a hundred globs");
        let some = pages(50);
        assert!((20..=40).contains(&some), "between one and two milliseconds: {some}");
        assert_eq!(pages(5), MOST);
        assert_eq!(pace.took(Duration::from_secs(4)), DEAREST * 49, "it waited for the processor");
    }
}
