//! The start list: which loops run for a partition, for a server, and for all partitions.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::ready::{Connection, PreparedServer};
use super::{Ended, Serves, Session};
use crate::loops::changes::Changes;
use crate::loops::heartbeat::HeartbeatLoop;
use crate::loops::pacer::Pacer;
use crate::loops::reaper::Reaper;
use crate::loops::reconciler::Reconciler;
use crate::loops::replicator::SettingsReplicator;
use crate::loops::walk::Walk;
use crate::store::primary::Primary;
use crate::store::server::Server;
use crate::store::{Store, StoreError};
use crate::system::systemd;

impl Session<'_> {
    /// Start the loops of all partitions, and those of the server where there is one. The loops of a cluster's servers start as each
    /// server is made ready.
    pub(super) fn start(&mut self, prepared: Option<PreparedServer>) -> Result<(), StoreError> {
        let Some(PreparedServer { primary, server, .. }) = prepared else {
            self.start_shared(true);
            return Ok(());
        };
        let (tracking, stop) = (server.as_ref().is_none_or(|server| server.tracking), self.stop.clone());
        self.start_shared(tracking);
        for store in primary.each() {
            self.start_partition(store, None, &stop)?;
        }
        self.start_reconciler(primary, None, tracking, &stop);
        self.has_begun_to_serve(server.as_ref(), tracking);
        Ok(())
    }

    /// The loops of all partitions. `tracking`: Redis reports changed queues.
    fn start_shared(&mut self, tracking: bool) {
        let Connection { partitions, invalidations, progress } = self.connection.clone();
        let (stop, identity) = (self.stop.clone(), self.daemon.identity.clone());
        let (address, layout) = (self.daemon.address.clone(), self.daemon.layout.clone());
        let heartbeat = HeartbeatLoop::new(partitions.clone(), identity, Arc::clone(&progress), tracking);
        let changes = Changes::new(partitions.clone(), Arc::clone(&invalidations), Arc::clone(&progress));
        let replicator = SettingsReplicator::new(partitions, Arc::clone(&progress));
        let walk = Walk::new(address, layout, invalidations, progress);
        self.spawn("heartbeat", None, heartbeat.run(stop.clone()));
        self.spawn("changes", None, changes.run(stop.clone()));
        self.spawn("walk", None, walk.run(stop.clone()));
        self.spawn("copies", None, replicator.run(stop));
    }

    /// The loops of a partition. They end in any order, none feeds another. `connection_id` is that of the server in a cluster.
    pub(super) fn start_partition(
        &mut self,
        store: Store,
        connection_id: Option<u64>,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let wake_queue = Arc::clone(self.connection.invalidations.of(store.keys().number()));
        wake_queue.reset();
        let progress = || Arc::clone(&self.connection.progress);
        let pacer = Pacer::new(store.clone(), Arc::clone(&wake_queue), progress()).map_err(|why| {
            let address = self.daemon.address.redacted().to_owned();
            StoreError::Unusable { address, why: format!("no timer: {why}") }
        })?;
        let reaper = Reaper::new(store, wake_queue, progress());
        self.spawn("pacer", connection_id, pacer.run(stop.clone()));
        self.spawn("reaper", connection_id, reaper.run(stop.clone()));
        Ok(())
    }

    /// The loop of a server.
    pub(super) fn start_reconciler(
        &mut self,
        primary: Primary,
        connection_id: Option<u64>,
        tracking: bool,
        stop: &CancellationToken,
    ) {
        let reconciler = Reconciler::new(primary, Arc::clone(&self.connection.invalidations), tracking);
        self.spawn("reconciler", connection_id, reconciler.run(stop.clone()));
    }

    fn spawn(
        &mut self,
        name: &'static str,
        connection_id: Option<u64>,
        run: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { Ended::Loop(name, connection_id, run.await) });
    }

    /// A server is served: say so the first time, and when none was served before it.
    pub(super) fn has_begun_to_serve(&mut self, server: Option<&Server>, tracking: bool) {
        if std::mem::replace(&mut self.daemon.serves, Serves::Now) == Serves::Now {
            return;
        }
        let version = server.map_or("", |server| &server.version);
        self.connection.progress.serving();
        self.daemon.said.serves();
        info!(redis = self.connection.partitions.redacted(), version, tracking, "serving");
        systemd::ready();
    }
}
