//! Making a server ready: connect, load the library, settle which record is in force, find what waits.

use std::sync::Arc;

use tracing::info;

use super::{BEAT, Daemon, next_request};
use crate::loops::progress::Progress;
use crate::store::ops::Put;
use crate::store::server::Server;
use crate::store::wake::Hints;
use crate::store::{Address, Partition, Store, StoreError};
use crate::system::signals::Signal;
use crate::words::policy::Record;

/// How many names go with one call.
const NAMES: usize = 100;

impl Daemon {
    /// Connect and settle the record, which may take a while over many queues; `None` when told to stop meanwhile.
    pub(super) async fn make_ready(&mut self) -> Result<Option<(Store, Server)>, StoreError> {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            let put = std::mem::take(&mut self.must_put);
            let mut ready = std::pin::pin!(make_ready(
                self.address.clone(),
                self.partition.clone(),
                Arc::clone(&self.hints),
                Arc::clone(&self.progress),
                self.config.record.clone(),
                put
            ));
            let made = loop {
                tokio::select! {
                    made = &mut ready => break made,
                    signal = self.signals.next() => match signal {
                        Signal::Stop => return Ok(None),
                        Signal::Status => info!(redis = self.address.shown(), "making ready"),
                        Signal::Reload => self.reload_while_away(None).await,
                    },
                    request = next_request(self.control.as_ref()) => self.reload_while_away(Some(request)).await,
                    _ = beat.tick() => self.tell_that_it_waits(),
                }
            };
            let (store, server, same_record) = made.inspect_err(|_| self.must_put |= put)?;
            self.warn_about(&server);
            self.say_whose_record(same_record);
            if !self.must_put {
                return Ok(Some((store, server)));
            }
        }
    }
}

/// Connect, and see that a record is in force: `record` where it is to be `put`, else any. Replies whether it is `record`.
async fn make_ready(
    address: Address,
    partition: Partition,
    hints: Arc<Hints>,
    progress: Arc<Progress>,
    record: Record,
    must_put: bool,
) -> Result<(Store, Server, bool), StoreError> {
    let mut store = Store::connect_tracking(&address, &partition, &hints).await?;
    let server = store.prepare(&hints).await?;
    let mut same = store.has_record(&record).await?;
    if must_put {
        if same != Some(true) {
            look_at_all(&mut store, &progress).await?;
        }
        put(&mut store, &record).await?;
        same = Some(true);
    } else {
        store.put_record(&record, true).await?;
    }
    store.drain(&[]).await?;
    Ok((store, server, same != Some(false)))
}

/// Put a record into force; where another change still spreads, help it to its end first.
pub(super) async fn put(store: &mut Store, record: &Record) -> Result<(), StoreError> {
    while store.put_record(record, false).await? == Put::Busy {
        store.drain(&[]).await?;
    }
    Ok(())
}

/// Look at every queue once, by the record that is in force: before another one is stored, for what was pushed by then is
/// judged by what held then.
///
/// # Errors
///
/// The first call that fails.
pub(super) async fn look_at_all(store: &mut Store, progress: &Progress) -> Result<(), StoreError> {
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = store.scan_queues(at).await?;
        let names: Vec<Arc<str>> = page.queues.iter().filter_map(|key| store.bucket_of(key)).collect();
        let mut rest = &names[..];
        while !rest.is_empty() {
            let drained = store.drain(&rest[..rest.len().min(NAMES)]).await?;
            progress.count(&drained);
            rest = &rest[drained.looked.min(rest.len())..];
        }
        cursor = page.next;
    }
    Ok(())
}
