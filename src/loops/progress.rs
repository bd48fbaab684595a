//! What the pacer last did: for the watchdog, the status line and the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::store::beat::Alive;
use crate::store::change::EventsAt;
use crate::store::partition::AUTHORITY;
use crate::store::reply::Drained;

/// How long a call may take beyond its time limit, or a sleep beyond its end, before the pacer counts as stuck.
const SLACK: Duration = Duration::from_secs(10);

/// The pacer's last steps, shared with whoever reports them.
#[derive(Debug, Default)]
pub struct Progress {
    inner: Mutex<Inner>,
    /// A call found another record in force than the one before it, or none at all.
    pub record_changed: Notify,
    /// Grows whenever partitions begin to be served. They may lack what is set, and do not know who is alive: their server may have been made
    /// ready after the others.
    pub partitions_begun: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The pacer of each partition, by number.
    pacers: BTreeMap<u8, Running>,
    /// How many pacers began.
    begun: u64,
    figures: Figures,
    /// The latest job since each [`Reader`] asked.
    latest: [Duration; 2],
    /// The id of the record that the last call found, empty where none is stored; `None`: no call has looked yet.
    record: Option<String>,
    /// Whether that is this daemon's own.
    obeys_own: bool,
    /// Which daemons serve each partition, by number.
    alive: BTreeMap<u8, Alive>,
    /// The partitions in which another daemon comes first, and does the work.
    stands_by: BTreeSet<u8>,
    /// The last changes that the log told of; `None`: no look at them yet.
    told: Option<EventsAt>,
    /// How often a connection was made that serves.
    sessions: u64,
}

/// A pacer that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// No other one has this number.
    id: u64,
    /// By when it should have moved.
    expected_by: Instant,
}

/// What one pacer tells of its steps. It counts until the pacer is said to have left its partition, also where a call of it is still under way
/// then.
#[derive(Debug)]
pub struct Steps {
    progress: Arc<Progress>,
    number: u8,
    id: u64,
}

impl Steps {
    /// A call is made.
    pub fn calling(&self) {
        self.expect_within(Duration::ZERO);
    }

    /// A call is back, and the pacer sleeps.
    pub fn drained(&self, drained: &Drained, nap: Duration) {
        self.progress.count(drained);
        if self.expect_within(nap) && self.number == AUTHORITY {
            self.progress.found_record(drained.record.as_deref().unwrap_or_default());
        } // the record of the others is brought from there
    }

    /// A call found that the partition stands still, and the pacer sleeps.
    pub fn stands_still(&self, nap: Duration) {
        self.expect_within(nap);
    }

    /// The pacer moves after so long, and a little. Replies whether it counts.
    fn expect_within(&self, nap: Duration) -> bool {
        let mut inner = self.progress.inner();
        let own = inner.pacers.get_mut(&self.number).filter(|running| running.id == self.id);
        own.map(|running| running.expected_by = Instant::now() + nap + SLACK).is_some()
    }
}

/// What the pacer did since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Calls made.
    pub calls: u64,
    /// Jobs that left their buckets.
    pub dispatched: u64,
    /// Jobs that were cut or too large.
    pub rejected: u64,
    /// The lateness of the latest job since the same reader last asked.
    pub latest: Duration,
}

/// Who reads the figures; each has a latest job of its own, so that none empties what another one reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The status line that systemd is told.
    StatusLine,
    /// USR1, in the log.
    Log,
}

impl Progress {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A pacer of a partition begins; one before it counts no more.
    #[must_use]
    pub fn begins(self: &Arc<Self>, number: u8) -> Steps {
        let mut inner = self.inner();
        inner.begun += 1;
        let id = inner.begun;
        inner.pacers.insert(number, Running { id, expected_by: Instant::now() + SLACK });
        Steps { progress: Arc::clone(self), number, id }
    }

    /// A call at the authority found this record in force; empty where none is stored.
    fn found_record(&self, found: &str) {
        let mut inner = self.inner();
        if inner.record.as_deref() != Some(found) {
            inner.record = Some(found.to_owned());
            self.record_changed.notify_one();
        }
    }

    /// The pacer of a partition ends, and counts no more; another one may begin.
    pub fn left(&self, number: u8) {
        let mut inner = self.inner();
        inner.pacers.remove(&number);
        if number == AUTHORITY {
            inner.record = None;
        }
    }

    /// Count what a call did.
    pub fn count(&self, drained: &Drained) {
        let mut inner = self.inner();
        let figures = &mut inner.figures;
        figures.calls += 1;
        figures.dispatched += drained.dispatched;
        figures.rejected += drained.rejected;
        for latest in &mut inner.latest {
            *latest = drained.latest.max(*latest);
        }
    }

    /// A connection serves.
    pub fn serving(&self) {
        self.inner().sessions += 1;
    }

    /// How often one did that came after another.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.inner().sessions.saturating_sub(1)
    }

    /// No pacer runs: the daemon waits for Redis.
    pub fn waiting_for_redis(&self) {
        let mut inner = self.inner();
        (inner.pacers, inner.record) = (BTreeMap::new(), None);
    }

    /// Whether the record in force is that of this daemon's configuration, as whoever compared them found.
    pub fn set_obeys_own_record(&self, obeys_own: bool) {
        self.inner().obeys_own = obeys_own;
    }

    /// What was last said of that.
    #[must_use]
    pub fn obeys_own_record(&self) -> bool {
        self.inner().obeys_own
    }

    /// Which daemons serve a partition, as the last heartbeat was told.
    pub fn set_alive(&self, number: u8, alive: Alive) {
        self.inner().alive.insert(number, alive);
    }

    /// What was last said of that.
    #[must_use]
    pub fn alive(&self, number: u8) -> Alive {
        self.inner().alive.get(&number).copied().unwrap_or_default()
    }

    /// The pacer of a partition leaves the work to another daemon, or does not any more.
    pub fn set_stands_by(&self, number: u8, stands_by: bool) {
        let mut inner = self.inner();
        if stands_by {
            inner.stands_by.insert(number)
        } else {
            inner.stands_by.remove(&number)
        };
    }

    /// What was last said of that.
    #[must_use]
    pub fn stands_by(&self, number: u8) -> bool {
        self.inner().stands_by.contains(&number)
    }

    /// A number that is another one when something was rejected since, in any partition.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.inner().alive.values().fold(0, |sum, alive| sum.wrapping_add(alive.rejections))
    }

    /// Up to where the log told of changes.
    #[must_use]
    pub fn told(&self) -> Option<EventsAt> {
        self.inner().told.clone()
    }

    /// It told of the changes up to here.
    pub fn set_told(&self, at: EventsAt) {
        self.inner().told = Some(at);
    }

    /// Whether the pacer of any partition should have moved by now and has not.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let now = Instant::now();
        self.inner().pacers.values().any(|pacer| now > pacer.expected_by)
    }

    /// How many partitions have a pacer that runs, and moves.
    #[must_use]
    pub fn served(&self) -> usize {
        let now = Instant::now();
        self.inner().pacers.values().filter(|pacer| now <= pacer.expected_by).count()
    }

    /// Whether at least one partition is served.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.served() > 0
    }

    /// The figures so far; the lateness starts anew for this reader.
    #[must_use]
    pub fn figures(&self, reader: Reader) -> Figures {
        let mut inner = self.inner();
        let latest = std::mem::take(&mut inner.latest[reader as usize]);
        Figures { latest, ..inner.figures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(late_ms: u64, record: Option<&str>) -> Drained {
        Drained {
            wait: None,
            dispatched: 1,
            rejected: 0,
            latest: Duration::from_millis(late_ms),
            record: record.map(str::to_owned),
            spreading: false,
            notes: Vec::new(),
            looked: 0,
        }
    }

    #[test]
    fn the_status_line_does_not_empty_what_the_log_reports() {
        let progress = Progress::default();
        progress.count(&drained(7, None));
        assert_eq!(progress.figures(Reader::StatusLine).latest, Duration::from_millis(7));
        assert_eq!(progress.figures(Reader::StatusLine).latest, Duration::ZERO, "it starts anew");
        progress.count(&drained(3, None));
        let figures = progress.figures(Reader::Log);
        assert_eq!((figures.latest, figures.dispatched), (Duration::from_millis(7), 2));
        assert_eq!(progress.figures(Reader::StatusLine).latest, Duration::from_millis(3));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_record_is_told_once() {
        let progress = Arc::new(Progress::default());
        let steps = progress.begins(AUTHORITY);
        let is_told = async || {
            let told = progress.record_changed.notified();
            tokio::time::timeout(Duration::from_millis(5), told).await.is_ok()
        };
        for (record, told) in [(Some("a"), true), (Some("a"), false), (None, true), (None, false), (Some("b"), true)] {
            steps.drained(&drained(0, record), Duration::ZERO);
            assert_eq!(is_told().await, told, "{record:?}");
        }
    }

    #[test]
    fn what_a_pacer_tells_that_has_left_its_partition_counts_no_more() {
        let progress = Arc::new(Progress::default());
        let one = progress.begins(3);
        assert_eq!(progress.served(), 1);
        progress.left(3);
        // Its last call comes back, of whatever kind.
        one.calling();
        one.stands_still(Duration::ZERO);
        one.drained(&drained(0, None), Duration::ZERO);
        assert_eq!((progress.served(), progress.figures(Reader::Log).dispatched), (0, 1), "what it did is counted");
        let other = progress.begins(3);
        let before = progress.inner().pacers[&3].expected_by;
        one.stands_still(Duration::from_secs(30));
        assert_eq!(progress.inner().pacers[&3].expected_by, before, "nor for the one that came after it");
        other.stands_still(Duration::from_secs(30));
        assert!(progress.inner().pacers[&3].expected_by > before);
    }
}
