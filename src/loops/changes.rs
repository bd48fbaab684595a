//! Changes: this daemon's log tells of what operators change at run time: who, what, before, after and why.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::loops::progress::Progress;
use crate::model::subject::Subject;
use crate::store::wake::Invalidations;
use crate::store::{Partitions, StoreError};

/// The shortest time between two looks at the changes: the wake key, which tells of them, is written for other reasons too.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many changes one call reads.
const MAX_EVENTS: usize = 100;

/// The loop that reads the changes.
pub struct Changes {
    partitions: Partitions,
    invalidations: Arc<Invalidations>,
    progress: Arc<Progress>,
}

impl Changes {
    /// A loop over one connection.
    pub fn new(partitions: Partitions, invalidations: Arc<Invalidations>, progress: Arc<Progress>) -> Self {
        Self { partitions, invalidations, progress }
    }

    /// Tell of changes until stopped: of those since the daemon made itself ready (`daemon/ready`), or lost its last
    /// connection.
    ///
    /// # Errors
    ///
    /// The first call that fails; the connection is of no use then.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let why = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                done = self.run_loop() => match done {
                    Err(why) if self.partitions.tolerates(&why) => why,
                    done => return done,
                },
            };
            debug!(%why, "changes are looked at again");
            tokio::select! { () = stop.cancelled() => return Ok(()), () = tokio::time::sleep(LOOK_EVERY) => {} }
        }
    }

    async fn run_loop(&mut self) -> Result<(), StoreError> {
        loop {
            while self.log_page().await? >= MAX_EVENTS {}
            tokio::time::sleep(LOOK_EVERY).await;
            self.invalidations.changes.notified().await;
        }
    }

    /// Log one page of changes. Replies how many there were.
    async fn log_page(&mut self) -> Result<usize, StoreError> {
        let mut logged = self.progress.logged();
        let events = self.partitions.events_after(&mut logged, MAX_EVENTS).await?;
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
        self.progress.set_logged(logged);
        Ok(events.len())
    }
}
