//! The course of a session: connect, start, serve, end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::inbox::Command;
use super::primaries::Primaries;
use super::ready::{Connection, PreparedServer};
use super::reload::Reloads;
use super::{Daemon, End, Ended, Session};
use crate::loops::progress::Reader;
use crate::store::wake::Invalidations;
use crate::store::{Partitions, StoreError};
use crate::system::systemd;

/// How often the status line is told to systemd.
const STATUS_EVERY: Duration = Duration::from_secs(5);

impl<'d> Session<'d> {
    /// Connect, and make the server ready, which may take a while over many queues. `None` when told to stop meanwhile. The servers of
    /// a cluster are made ready one by one, while others serve.
    pub(super) async fn open(daemon: &'d mut Daemon) -> Result<Option<(Self, Option<PreparedServer>)>, StoreError> {
        let invalidations = Arc::new(Invalidations::new(daemon.layout.clone()));
        loop {
            let (address, layout, reports) =
                (daemon.address.clone(), daemon.layout.clone(), Arc::clone(&invalidations));
            let connecting = async move { Partitions::connect_tracking(&address, &layout, &reports).await };
            let Some(partitions) = daemon.meanwhile(Box::pin(connecting)).await else { return Ok(None) };
            let (invalidations, progress) = (Arc::clone(&invalidations), Arc::clone(&daemon.progress));
            let connection = Connection { partitions: partitions?, invalidations, progress };
            if connection.partitions.is_cluster() {
                return Ok(Some((Self::new(daemon, connection), None)));
            }
            let stores_record = std::mem::take(&mut daemon.must_store_record);
            let primary = connection.partitions.primaries().remove(0);
            let (config, next) = (daemon.config_to_store(), daemon.next.clone());
            let preparing = connection.clone().prepare(primary, true, config, stores_record);
            let prepared = daemon.meanwhile(Box::pin(preparing)).await;
            daemon.must_store_record |= stores_record && !matches!(prepared, Some(Ok(_)));
            let Some(prepared) = prepared else { return Ok(None) };
            let prepared = prepared?;
            if let Some(next) = next.filter(|_| stores_record) {
                daemon.obey(&next);
            }
            if let Some(server) = &prepared.server {
                daemon.said.warn_about(server, &daemon.address);
            }
            if !daemon.must_store_record {
                daemon.obeys_own_record(prepared.is_current == Some(true));
                return Ok(Some((Self::new(daemon, connection), Some(prepared))));
            } // the configuration was read again meanwhile
        }
    }

    fn new(daemon: &'d mut Daemon, connection: Connection) -> Self {
        let (tasks, stop) = (JoinSet::new(), CancellationToken::new());
        Self { daemon, connection, tasks, stop, primaries: Primaries::default(), reloads: Reloads::default() }
    }

    /// Start the loops, serve, end the loops.
    pub(super) async fn run(mut self, prepared: Option<PreparedServer>) -> Result<End, StoreError> {
        self.start(prepared)?;
        let end = self.serve().await;
        self.close(&end).await;
        Ok(end)
    }

    /// Serve until a loop fails, the connection ends, or a signal stops the daemon.
    async fn serve(&mut self) -> End {
        let watchdog = systemd::watchdog_every();
        let mut beat = tokio::time::interval(watchdog.unwrap_or(STATUS_EVERY).min(STATUS_EVERY));
        let mut told = Instant::now().checked_sub(STATUS_EVERY);
        let mut topology = self.connection.partitions.topology_changes();
        if self.connection.partitions.is_cluster() {
            self.follow();
        }
        loop {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => if let Some(end) = self.task_ended(ended).await { return end },
                () = topology_changed(topology.as_mut()) => self.follow(),
                () = self.connection.invalidations.disconnected.notified() => {
                    let (address, why) = (self.daemon.address.redacted().to_owned(), "the connection was closed".to_owned());
                    return End::Lost(StoreError::Lost { address, call: "serving", why });
                }
                () = self.connection.progress.record_changed.notified() => self.check_record(),
                command = self.daemon.inbox.next() => match command {
                    Command::Stop => return self.daemon.begin_to_end(),
                    Command::Status => self.log_status(),
                    Command::Reload(request) => self.reload(request).await,
                },
                _ = beat.tick() => {
                    if watchdog.is_some() && !self.connection.progress.is_stuck() {
                        systemd::watchdog();
                    }
                    self.reloads.answer_overdue().await;
                    if told.is_none_or(|at| at.elapsed() >= STATUS_EVERY) {
                        told = Some(Instant::now());
                        systemd::status(&self.status_line());
                    }
                }
            }
        }
    }

    /// A task has ended. Replies the end of the session where that follows from it.
    async fn task_ended(&mut self, ended: Result<Ended, JoinError>) -> Option<End> {
        // A task panics only where a panic unwinds, as in tests: a release aborts at once.
        match ended.unwrap_or_else(|broken| std::panic::resume_unwind(broken.into_panic())) {
            Ended::Loop(_, _, Ok(())) => {}
            Ended::Loop(name, Some(connection_id), Err(why)) => {
                debug!(name, %why, "a loop of a server ended");
                return self.primary_failed(connection_id, why);
            }
            Ended::Loop(name, None, Err(why)) => {
                warn!(name, %why, "a loop ended");
                return Some(End::Lost(why));
            }
            Ended::Ready { connection_id, prepared } => return self.primary_ready(connection_id, prepared),
            Ended::Again => self.follow(),
            Ended::Reload(ended) => return self.end_reload(ended).await,
            Ended::Record(_, Err(why)) if self.connection.partitions.tolerates(&why) => {
                debug!(%why, "the authority is away");
            }
            Ended::Record(_, Err(why)) => return Some(End::Lost(why)),
            Ended::Record(compared, Ok(is_current)) => {
                // A reload that came meanwhile says itself whose record is in force.
                if !self.reloads.is_busy() && compared.record == self.daemon.config.record {
                    self.daemon.obeys_own_record(is_current);
                }
            }
        }
        None
    }

    /// Another record came into force: compare it with that of the configuration.
    fn check_record(&mut self) {
        let (mut connection, config) = (self.connection.clone(), Box::new(self.daemon.config.clone()));
        let is_built_in = self.daemon.built_in.is_some();
        self.tasks.spawn(async move {
            let checked = connection.check_record(&config, is_built_in).await;
            Ended::Record(config, checked)
        });
    }

    fn status_line(&self) -> String {
        let figures = self.connection.progress.figures(Reader::StatusLine);
        format!(
            "serving {}: {} jobs dispatched, {} rejected, latest {:.1} ms late",
            self.daemon.address.redacted(),
            figures.dispatched,
            figures.rejected,
            figures.latest.as_secs_f64() * 1e3
        )
    }

    fn log_status(&self) {
        let figures = self.connection.progress.figures(Reader::Log);
        let (dispatched, rejected, calls) = (figures.dispatched, figures.rejected, figures.calls);
        let (latest, bad_names) = (figures.latest, self.connection.invalidations.bad_names());
        info!(redis = self.daemon.address.redacted(), dispatched, rejected, calls, ?latest, bad_names, "status");
    }
}

/// The next change of where partitions are, or never where there is one server.
async fn topology_changed(topology: Option<&mut watch::Receiver<u64>>) {
    match topology {
        Some(topology) => topology.changed().await.expect("the client of all partitions keeps the other end"),
        None => std::future::pending().await,
    }
}
