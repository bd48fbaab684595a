//! Changes: what operators do at run time, in this daemon's log: who, what, before, after and why.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::loops::progress::Progress;
use crate::store::wake::Reports;
use crate::store::{StoreError, Whole};
use crate::words::subject::Subject;

/// The shortest time between two looks: the key that tells of changes is written for other reasons too.
const REST: Duration = Duration::from_secs(1);

/// How many changes a look takes.
const MOST: usize = 100;

/// The loop that reads what was changed.
pub struct Changes {
    whole: Whole,
    reports: Arc<Reports>,
    progress: Arc<Progress>,
}

impl Changes {
    /// Over one connection.
    #[must_use]
    pub fn new(whole: Whole, reports: Arc<Reports>, progress: Arc<Progress>) -> Self {
        Self { whole, reports, progress }
    }

    /// Tell of changes until stopped. Those from before the start of this daemon are not told.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let why = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                done = self.tell_for_ever() => match done {
                    Err(why) if self.whole.goes_on_without(&why) => why,
                    done => return done,
                },
            };
            debug!(%why, "changes are looked at again");
            tokio::select! { () = stop.cancelled() => return Ok(()), () = tokio::time::sleep(REST) => {} }
        }
    }

    async fn tell_for_ever(&mut self) -> Result<(), StoreError> {
        if self.progress.told().is_none() {
            self.progress.set_told(self.whole.last_event().await?);
            self.reports.changes.notified().await;
        }
        loop {
            while self.tell().await? >= MOST {}
            tokio::time::sleep(REST).await;
            self.reports.changes.notified().await;
        }
    }

    /// One look. Replies how many changes it found.
    async fn tell(&mut self) -> Result<usize, StoreError> {
        let mut told = self.progress.told().unwrap_or_default();
        let events = self.whole.events_after(&mut told, MOST).await?;
        for event in &events {
            let text = |name: &str| event.fields.get(name).map(String::as_str);
            let subject = text("match").map(Subject::of_stored);
            let of = |is_budget| subject.as_ref().filter(|one| one.is_budget == is_budget).map(|one| one.pattern);
            info!(
                what = text("what"),
                r#match = of(false),
                budget = of(true),
                before = text("before"),
                after = text("after"),
                by = text("by"),
                user = text("user"),
                reason = text("reason"),
                "changed at run time"
            );
        }
        self.progress.set_told(told);
        Ok(events.len())
    }
}
