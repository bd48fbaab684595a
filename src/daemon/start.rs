//! The start list: which loops run for a partition, for a server, and for the whole.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Daemon, Ended};
use crate::loops::changes::Changes;
use crate::loops::copies::Copies;
use crate::loops::heartbeat::Heartbeat;
use crate::loops::pacer::Pacer;
use crate::loops::reaper::Reaper;
use crate::loops::reconciler::Reconciler;
use crate::loops::walk::Walk;
use crate::store::primary::Primary;
use crate::store::{Store, StoreError, Whole};

impl Daemon {
    /// The start list of a partition: they end in any order, none feeds another. `line` is the connection, where the server is one of several.
    pub(super) fn start_partition(
        &self,
        tasks: &mut JoinSet<Ended>,
        store: Store,
        line: Option<u64>,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let hints = self.reports.of(store.keys().number());
        hints.start_over();
        let pacer = Pacer::new(store.clone(), Arc::clone(hints), Arc::clone(&self.progress)).map_err(|why| {
            StoreError::Unusable { address: self.address.shown().to_owned(), why: format!("no timer: {why}") }
        })?;
        let reaper = Reaper::new(store, Arc::clone(hints), Arc::clone(&self.progress));
        spawn(tasks, "pacer", line, Box::pin(pacer.run(stop.clone())));
        spawn(tasks, "reaper", line, Box::pin(reaper.run(stop.clone())));
        Ok(())
    }

    /// That of a server.
    pub(super) fn start_reconciler(
        &self,
        tasks: &mut JoinSet<Ended>,
        primary: Primary,
        line: Option<u64>,
        tracking: bool,
        stop: &CancellationToken,
    ) {
        let reconciler = Reconciler::new(primary, Arc::clone(&self.reports), tracking);
        spawn(tasks, "reconciler", line, Box::pin(reconciler.run(stop.clone())));
    }

    /// And that of the whole.
    pub(super) fn start(&self, tasks: &mut JoinSet<Ended>, whole: &Whole, tracking: bool, stop: &CancellationToken) {
        let shared = || (whole.clone(), Arc::clone(&self.reports), Arc::clone(&self.progress));
        let (all, _, progress) = shared();
        let heartbeat = Heartbeat::new(all, self.identity.clone(), progress, tracking);
        let (all, reports, progress) = shared();
        let changes = Changes::new(all, reports, progress);
        let (all, reports, progress) = shared();
        let walk = Walk::new(self.address.clone(), self.layout.clone(), reports, progress);
        spawn(tasks, "heartbeat", None, Box::pin(heartbeat.run(stop.clone())));
        spawn(tasks, "changes", None, Box::pin(changes.run(stop.clone())));
        spawn(tasks, "walk", None, Box::pin(walk.run(stop.clone())));
        spawn(tasks, "copies", None, Box::pin(Copies::new(all, Arc::clone(&self.progress)).run(stop.clone())));
    }
}

/// A task of a session.
fn spawn(
    tasks: &mut JoinSet<Ended>,
    name: &'static str,
    line: Option<u64>,
    run: BoxFuture<'static, Result<(), StoreError>>,
) {
    tasks.spawn(async move { Ended::Loop(name, line, run.await) });
}
