//! The progress of the pacers: for the watchdog, the status line, the log, and the other loops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::store::change::EventsAt;
use crate::store::heartbeat::Alive;
use crate::store::jobs::drain::Drained;
use crate::store::partition::AUTHORITY;

/// How long a call may take beyond its time limit, or a sleep beyond its end, before the pacer counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// The pacer's last steps, shared with whoever reports them.
#[derive(Debug, Default)]
pub struct Progress {
    inner: Mutex<Inner>,
    /// A call found another record in force than the one before it, or none at all.
    pub record_changed: Notify,
    /// Grows whenever partitions begin to be served. Their server may have been made ready after the others, so they may lack settings and
    /// heartbeats.
    pub partitions_begun: watch::Sender<u64>,
    /// Grows whenever other daemons than before come before this one in a partition.
    pub ranks_changed: watch::Sender<u64>,
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
    /// The id of the record that the last call found, empty where none is stored. `None`: no call has looked yet.
    record: Option<String>,
    /// Whether the record in force is this daemon's own.
    obeys_own: bool,
    /// Which daemons serve each partition, by number.
    alive: BTreeMap<u8, Alive>,
    /// The partitions in which another daemon comes first, and does the work.
    standby: BTreeSet<u8>,
    /// The last changes that the log told of.
    logged: EventsAt,
    /// How often a connection was made that serves.
    sessions: u64,
    /// Why Redis takes no writes now, in words.
    refusal: Option<String>,
}

/// A pacer that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// No other one has this number.
    id: u64,
    /// By when it should have moved.
    expected_by: Instant,
}

/// The end of one pacer, on which it tells of its steps. Its steps count until the pacer has left its partition, also where a call of it
/// is still under way then.
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
        } // the other partitions copy partition 0's record
    }

    /// A call can be answered only later, and the pacer sleeps.
    pub fn retries_after(&self, nap: Duration) {
        self.expect_within(nap);
    }

    /// The pacer moves within this nap and a little more. Replies whether its steps still count.
    fn expect_within(&self, nap: Duration) -> bool {
        let mut inner = self.progress.inner();
        let own = inner.pacers.get_mut(&self.number).filter(|running| running.id == self.id);
        own.map(|running| running.expected_by = Instant::now() + nap + STUCK_AFTER).is_some()
    }
}

/// The work of the pacers since the start of the daemon, in numbers.
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

/// A reader of the figures. Each has a latest job of its own, so that no reader empties what another one reports.
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

    /// A pacer of a partition begins. The steps of the one before it count no more.
    pub fn begins(self: &Arc<Self>, number: u8) -> Steps {
        let mut inner = self.inner();
        inner.begun += 1;
        let id = inner.begun;
        inner.pacers.insert(number, Running { id, expected_by: Instant::now() + STUCK_AFTER });
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

    /// The pacer of a partition ends, and its steps count no more. Another one may begin.
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

    /// How many connections served after the first one.
    pub fn reconnects(&self) -> u64 {
        self.inner().sessions.saturating_sub(1)
    }

    /// Note why Redis takes no writes now. Replies whether that is news.
    pub fn set_refusal(&self, refusal: Option<String>) -> bool {
        let mut inner = self.inner();
        let is_news = inner.refusal != refusal;
        inner.refusal = refusal;
        is_news
    }

    /// Why Redis takes no writes now; `None`: it does, as far as is known.
    pub fn refusal(&self) -> Option<String> {
        self.inner().refusal.clone()
    }

    /// No pacer runs: the daemon waits for Redis.
    pub fn waiting_for_redis(&self) {
        let mut inner = self.inner();
        (inner.pacers, inner.record) = (BTreeMap::new(), None);
    }

    /// The record in force was compared with that of this daemon's configuration.
    pub fn set_obeys_own_record(&self, obeys_own: bool) {
        self.inner().obeys_own = obeys_own;
    }

    /// Whether the record in force is that of this daemon's configuration.
    pub fn obeys_own_record(&self) -> bool {
        self.inner().obeys_own
    }

    /// A heartbeat was answered which daemons serve a partition.
    pub fn set_alive(&self, number: u8, alive: Alive) {
        let known = self.inner().alive.insert(number, alive).unwrap_or_default();
        if known.before != alive.before {
            self.ranks_changed.send_modify(|times| *times += 1);
        }
    }

    /// Which daemons serve a partition, by the last heartbeat.
    pub fn alive(&self, number: u8) -> Alive {
        self.inner().alive.get(&number).copied().unwrap_or_default()
    }

    /// The pacer of a partition leaves the work to another daemon, or does not any more.
    pub fn set_standby(&self, number: u8, is_standby: bool) {
        let mut inner = self.inner();
        if is_standby {
            inner.standby.insert(number)
        } else {
            inner.standby.remove(&number)
        };
    }

    /// Whether the pacer of a partition leaves the work to another daemon.
    pub fn is_standby(&self, number: u8) -> bool {
        self.inner().standby.contains(&number)
    }

    /// A number that changes whenever jobs are rejected, in any partition.
    pub fn rejections(&self) -> u64 {
        self.inner().alive.values().fold(0, |sum, alive| sum.wrapping_add(alive.rejections))
    }

    /// Up to where the log told of changes.
    pub fn logged(&self) -> EventsAt {
        self.inner().logged.clone()
    }

    /// The log told of the changes up to here.
    pub fn set_logged(&self, at: EventsAt) {
        self.inner().logged.go_on(at);
    }

    /// The log tells of the changes of a partition that follow the one of this id, unless it told of some before.
    pub fn begin_log(&self, number: u8, id: String) {
        self.inner().logged.begin(number, id);
    }

    /// Whether a pacer should have moved by now and has not.
    pub fn is_stuck(&self) -> bool {
        let now = Instant::now();
        self.inner().pacers.values().any(|pacer| now > pacer.expected_by)
    }

    /// How many partitions have a pacer that moves.
    pub fn served(&self) -> usize {
        let now = Instant::now();
        self.inner().pacers.values().filter(|pacer| now <= pacer.expected_by).count()
    }

    /// Whether at least one partition is served.
    pub fn is_serving(&self) -> bool {
        self.served() > 0
    }

    /// The figures so far; the lateness starts anew for this reader.
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
        one.retries_after(Duration::ZERO);
        one.drained(&drained(0, None), Duration::ZERO);
        assert_eq!((progress.served(), progress.figures(Reader::Log).dispatched), (0, 1), "what it did is counted");
        let other = progress.begins(3);
        let before = progress.inner().pacers[&3].expected_by;
        one.retries_after(Duration::from_secs(30));
        assert_eq!(progress.inner().pacers[&3].expected_by, before, "nor for the one that came after it");
        other.retries_after(Duration::from_secs(30));
        assert!(progress.inner().pacers[&3].expected_by > before);
    }
}
