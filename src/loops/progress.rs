//! What the pacer last did: for the watchdog, the status line and the log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::store::reply::{Alive, Drained};

/// How long a call may take beyond its time limit, or a sleep beyond its end, before the pacer counts as stuck.
const SLACK: Duration = Duration::from_secs(10);

/// The pacer's last steps, shared with whoever reports them.
#[derive(Debug, Default)]
pub struct Progress {
    inner: Mutex<Inner>,
    /// A call found another record in force than the one before it, or none at all.
    pub record_changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    expected_by: Option<Instant>,
    figures: Figures,
    /// The latest job since each [`Reader`] asked.
    latest: [Duration; 2],
    /// The id of the record that the last call found, empty where none is stored; `None`: no call has looked yet.
    record: Option<String>,
    /// Whether that is this daemon's own.
    obeys_own: bool,
    /// Which daemons serve here.
    alive: Alive,
    /// The last change that the log told of; `None`: no look at them yet.
    told: Option<String>,
    /// How often a connection was made that serves.
    sessions: u64,
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

    /// The pacer makes a call.
    pub fn calling(&self) {
        self.inner().expected_by = Some(Instant::now() + SLACK);
    }

    /// A call is back, and the pacer sleeps.
    pub fn drained(&self, drained: &Drained, nap: Duration) {
        self.inner().expected_by = Some(Instant::now() + nap + SLACK);
        self.count(drained);
        let mut inner = self.inner();
        let found = drained.record.as_deref().unwrap_or_default();
        if inner.record.as_deref() != Some(found) {
            inner.record = Some(found.to_owned());
            self.record_changed.notify_one();
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
        (inner.expected_by, inner.record) = (None, None);
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

    /// Which daemons serve here, as the last heartbeat was told.
    pub fn set_alive(&self, alive: Alive) {
        self.inner().alive = alive;
    }

    /// What was last said of that.
    #[must_use]
    pub fn alive(&self) -> Alive {
        self.inner().alive
    }

    /// The id of the last change that the log told of.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        self.inner().told.clone()
    }

    /// It told of the changes up to this one.
    pub fn set_told(&self, id: String) {
        self.inner().told = Some(id);
    }

    /// Whether the pacer should have moved by now and has not.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.inner().expected_by.is_some_and(|by| Instant::now() > by)
    }

    /// Whether a pacer runs, and moves.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.inner().expected_by.is_some_and(|by| Instant::now() <= by)
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
        let progress = Progress::default();
        let is_told = async || {
            let told = progress.record_changed.notified();
            tokio::time::timeout(Duration::from_millis(5), told).await.is_ok()
        };
        for (record, told) in [(Some("a"), true), (Some("a"), false), (None, true), (None, false), (Some("b"), true)] {
            progress.drained(&drained(0, record), Duration::ZERO);
            assert_eq!(is_told().await, told, "{record:?}");
        }
    }
}
