//! Making a server ready: the library is loaded, a record is in force, and the queues that wait are looked at.

use std::sync::Arc;

use tracing::{debug, info};

use crate::config::Config;
use crate::loops::progress::Progress;
use crate::store::partition::AUTHORITY;
use crate::store::primary::Primary;
use crate::store::record::Put;
use crate::store::server::Server;
use crate::store::wake::Invalidations;
use crate::store::{Partitions, StoreError};

/// How many names go with one call.
const NAMES_PER_CALL: usize = 100;

/// The connection of a session. Each task of the session works on a clone.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) partitions: Partitions,
    /// The changes that Redis reports over this connection.
    pub(super) invalidations: Arc<Invalidations>,
    pub(super) progress: Arc<Progress>,
}

/// A server that is ready to be served.
pub(super) struct PreparedServer {
    pub(super) primary: Primary,
    /// Its version and what it lacks; none if it was known before.
    pub(super) server: Option<Server>,
    /// Whether the record in force is this daemon's own; none if the server could not tell, for it has not the authority.
    pub(super) is_current: Option<bool>,
    /// The record was to be put into force, and the authority is on the move: it is left out.
    pub(super) record_deferred: bool,
}

impl Connection {
    /// Make a server ready. Where it has the authority, see that a record is in force in every partition: that of `config` if
    /// `must_store_record`, else any.
    pub(super) async fn prepare(
        mut self,
        mut primary: Primary,
        is_new: bool,
        config: Config,
        must_store_record: bool,
    ) -> Result<PreparedServer, StoreError> {
        let server = if is_new {
            Some(primary.prepare(&self.invalidations).await?)
        } else {
            primary.check_types().await?;
            None
        };
        let (mut is_current, mut record_deferred) = (None, false);
        if primary.has_authority() {
            match self.ensure_record(&config, must_store_record).await {
                // The other partitions of the server do not wait for the authority. With no record to store they keep the one in force.
                Err(why) if why.is_migrating() => record_deferred = must_store_record,
                checked => is_current = Some(checked?),
            }
        }
        if record_deferred {
            primary = primary.only(|number| number != AUTHORITY);
        }
        self.note_last_changes(&primary).await?;
        self.drain_once(&primary).await?;
        Ok(PreparedServer { primary, server, is_current, record_deferred })
    }

    /// Note the last change that was made in each partition of a server: the log tells of those that follow.
    async fn note_last_changes(&self, primary: &Primary) -> Result<(), StoreError> {
        for mut store in primary.each() {
            match store.last_event().await {
                Err(why) if why.is_retryable() => {} // the log begins when that partition can be asked
                last => self.progress.begin_log(store.keys().number(), last?),
            }
        }
        Ok(())
    }

    /// Let out what has become due in each partition of a server, before its pacers begin.
    async fn drain_once(&self, primary: &Primary) -> Result<(), StoreError> {
        for mut store in primary.each() {
            match store.drain(&[]).await {
                Err(why) if why.is_retryable() => {} // its pacer asks again
                drained => self.progress.count(&drained?),
            }
        }
        Ok(())
    }

    /// See that a record is in force in every partition. Replies whether it is that of `config`.
    async fn ensure_record(&mut self, config: &Config, must_store_record: bool) -> Result<bool, StoreError> {
        self.partitions.check_partitioning().await?;
        let (record, mut authority) = (&config.record, self.partitions.authority());
        let mut is_current = authority.has_record(record).await?;
        while is_current.is_none() {
            // Before any queue is looked at: the built-in defaults may cut a queue where this record would not.
            self.partitions.put_record(record, &config.record_source, true).await?;
            is_current = authority.has_record(record).await?;
        }
        self.replicate().await?;
        if must_store_record {
            if is_current == Some(false) {
                // An authority on the move can be read and takes no writes: this call fails then, and all that follows is for later.
                self.progress.count(&authority.drain(&[]).await?);
                self.look_at_all().await?;
            }
            self.store_record(config, || {}).await?;
            is_current = Some(true);
        }
        Ok(is_current == Some(true))
    }

    /// Put a record into force in every partition. A change that still spreads is helped to its end first. `is_stored` is
    /// called as soon as it holds at the authority: whatever follows, it is in force.
    pub(super) async fn store_record(&mut self, config: &Config, is_stored: impl FnOnce()) -> Result<(), StoreError> {
        while self.partitions.put_record(&config.record, &config.record_source, false).await? == Put::Busy {
            self.progress.count(&self.partitions.authority().drain(&[]).await?);
        }
        is_stored();
        self.replicate().await
    }

    /// Bring every partition the settings and the record that it lacks, and help those that are busy with an earlier change.
    async fn replicate(&mut self) -> Result<(), StoreError> {
        loop {
            let busy = self.partitions.replicate().await?.busy;
            if busy.is_empty() {
                return Ok(());
            }
            for number in busy {
                match self.partitions.at(number).drain(&[]).await {
                    Err(why) if self.partitions.tolerates(&why) => {} // the replicator brings it when the partition is back
                    drained => self.progress.count(&drained?),
                }
            }
        }
    }

    /// Look at every queue once, by the record that is in force, before another one is stored: jobs that were pushed before a change
    /// are judged by the old record.
    pub(super) async fn look_at_all(&mut self) -> Result<(), StoreError> {
        for primary in self.partitions.primaries() {
            match self.look_at_queues_of(primary).await {
                Err(why) if self.partitions.tolerates(&why) => {
                    debug!(%why, "the queues of a server are not looked at");
                }
                looked => looked?,
            }
        }
        Ok(())
    }

    async fn look_at_queues_of(&self, mut primary: Primary) -> Result<(), StoreError> {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = primary.scan_queues(at).await?;
            for (mut store, queues) in primary.sorted(page.queues).by_partition {
                let names: Vec<Arc<str>> = queues.iter().filter_map(|key| store.bucket_of(key)).collect();
                let mut rest = &names[..];
                while !rest.is_empty() {
                    let drained = match store.drain(&rest[..rest.len().min(NAMES_PER_CALL)]).await {
                        Err(why) if why.is_retryable() => break,
                        drained => drained?,
                    };
                    self.progress.count(&drained);
                    if drained.record.is_none() {
                        return Ok(()); // somebody flushed Redis: there is nothing to judge by
                    }
                    rest = &rest[drained.looked.min(rest.len())..];
                }
            }
            cursor = page.next;
        }
        Ok(())
    }

    /// Whether the record in force is that of `config`. Where none is stored it is stored now: somebody flushed Redis, and without a
    /// record the built-in defaults would hold.
    pub(super) async fn check_record(&mut self, config: &Config, is_built_in: bool) -> Result<bool, StoreError> {
        let mut store = self.partitions.authority();
        loop {
            if let Some(is_current) = store.has_record(&config.record).await? {
                if is_built_in {
                    store.bound_arguments().await?;
                }
                return Ok(is_current);
            }
            info!("no policy record is stored: storing it again");
            self.partitions.put_record(&config.record, &config.record_source, true).await?;
        }
    }
}
