//! Making a server ready: the built-in one runs, a connection, the library, the record in force, what waits in the queues.

use std::sync::Arc;

use tracing::{debug, info};

use super::{BEAT, Daemon, next_request};
use crate::config::Config;
use crate::loops::progress::Progress;
use crate::store::ops::Put;
use crate::store::partition::AUTHORITY;
use crate::store::primary::Primary;
use crate::store::server::Server;
use crate::store::wake::Reports;
use crate::store::{StoreError, Whole};
use crate::system::built_in_redis::BuiltInRedisError;
use crate::system::signals::Signal;

/// How many names go with one call.
const NAMES: usize = 100;

impl Daemon {
    /// Do something that may take long while Redis is away: signals and requests are heard, and systemd is told that nothing
    /// is stuck. `None` when told to stop meanwhile.
    pub(super) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut beat = tokio::time::interval(BEAT);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                _ = beat.tick() => self.tell_that_it_waits(),
                signal = self.signals.next() => match signal {
                    Signal::Stop => {
                        self.begin_to_end();
                        return None;
                    }
                    Signal::Status => info!(redis = self.address.shown(), "waiting for redis"),
                    Signal::Reload => self.reload_while_away(None).await,
                },
                request = next_request(self.control.as_mut()) => self.reload_while_away(Some(request)).await,
            }
        }
    }

    /// See that the built-in Redis runs, where this daemon uses it. `None` when told to stop meanwhile.
    pub(super) async fn ensure_built_in(&mut self) -> Option<Result<(), BuiltInRedisError>> {
        let Some(mut built_in) = self.built_in.take() else { return Some(Ok(())) };
        let ensured = self.meanwhile(built_in.ensure()).await;
        self.built_in = Some(built_in);
        ensured
    }

    /// Connect, and make the servers ready, which may take a while over many queues; `None` when told to stop meanwhile. Those of a cluster are
    /// made ready one by one, while others serve.
    pub(super) async fn make_ready(&mut self) -> Result<Option<(Whole, Option<Made>)>, StoreError> {
        loop {
            let (address, layout) = (self.address.clone(), self.layout.clone());
            let reports = Arc::clone(&self.reports);
            let connecting = async move { Whole::connect_tracking(&address, &layout, &reports).await };
            let Some(whole) = self.meanwhile(Box::pin(connecting)).await else { return Ok(None) };
            let whole = whole?;
            if whole.is_cluster() {
                return Ok(Some((whole, None)));
            }
            let put = std::mem::take(&mut self.must_put);
            let primary = whole.primaries().remove(0);
            let making = make_ready(
                whole.clone(),
                primary,
                true,
                Arc::clone(&self.reports),
                Arc::clone(&self.progress),
                self.config.clone(),
                put,
            );
            let made = self.meanwhile(Box::pin(making)).await;
            self.must_put |= put && !matches!(made, Some(Ok(_)));
            let Some(made) = made else { return Ok(None) };
            let made = made?;
            if let Some(server) = &made.server {
                self.warn_about(server);
            }
            if !self.must_put {
                self.say_whose_record(made.is_own == Some(true));
                return Ok(Some((whole, Some(made))));
            }
        }
    }
}

/// A server that is ready to be served.
pub(super) struct Made {
    pub(super) primary: Primary,
    /// What is worth saying of it, where it is new.
    pub(super) server: Option<Server>,
    /// Whether the record in force is this daemon's own, as far as the server could tell: one that has the authority.
    pub(super) is_own: Option<bool>,
    /// The record was to be put into force, and the authority is on the move: it is left out.
    pub(super) puts_later: bool,
}

/// Make a server ready; where it has the authority, see that a record is in force, in every partition: that of `config` where it is to be
/// `put`, else any.
pub(super) async fn make_ready(
    mut whole: Whole,
    mut primary: Primary,
    is_new: bool,
    reports: Arc<Reports>,
    progress: Arc<Progress>,
    config: Config,
    must_put: bool,
) -> Result<Made, StoreError> {
    let server = if is_new {
        Some(primary.prepare(&reports).await?)
    } else {
        primary.check_types().await?;
        None
    };
    let (mut is_own, mut puts_later) = (None, false);
    if primary.has_authority() {
        match settle(&mut whole, &progress, &config, must_put).await {
            // The other partitions of the server do not wait for it. Without a record to put it goes on with the one that it has.
            Err(why) if why.is_on_the_move() => puts_later = must_put,
            settled => is_own = Some(settled?),
        }
    }
    if puts_later {
        primary = primary.only(|number| number != AUTHORITY);
    }
    drain_once(&primary, &progress).await?;
    Ok(Made { primary, server, is_own, puts_later })
}

/// What has become due in each partition of a server, before its pacers begin.
pub(super) async fn drain_once(primary: &Primary, progress: &Progress) -> Result<(), StoreError> {
    for mut store in primary.each() {
        match store.drain(&[]).await {
            Err(why) if why.stands_still() => {} // its pacer asks again
            drained => progress.count(&drained?),
        }
    }
    Ok(())
}

/// See that a record is in force in every partition. Replies whether it is that of `config`.
async fn settle(whole: &mut Whole, progress: &Progress, config: &Config, must_put: bool) -> Result<bool, StoreError> {
    whole.check_cut().await?;
    let (record, mut authority) = (&config.record, whole.authority());
    let mut is_own = authority.has_record(record).await?;
    while is_own.is_none() {
        // Before any queue is looked at: by the built-in defaults it may be cut where this record would not.
        whole.put_record(record, &config.record_source, true).await?;
        is_own = authority.has_record(record).await?;
    }
    carry(whole, progress).await?;
    if must_put {
        if is_own == Some(false) {
            // While the authority is on the move it can be read, and takes nothing: then all that is for later.
            progress.count(&authority.drain(&[]).await?);
            look_at_all(whole, progress).await?;
        }
        put(whole, config, progress).await?;
        is_own = Some(true);
    }
    Ok(is_own == Some(true))
}

/// Put a record into force in every partition; where another change still spreads, help it to its end first.
pub(super) async fn put(whole: &mut Whole, config: &Config, progress: &Progress) -> Result<(), StoreError> {
    while whole.put_record(&config.record, &config.record_source, false).await? == Put::Busy {
        progress.count(&whole.authority().drain(&[]).await?);
    }
    carry(whole, progress).await
}

/// Bring every partition what it lacks, and help those that are busy.
async fn carry(whole: &mut Whole, progress: &Progress) -> Result<(), StoreError> {
    loop {
        let busy = whole.carry().await?.busy;
        if busy.is_empty() {
            return Ok(());
        }
        for number in busy {
            match whole.at(number).drain(&[]).await {
                Err(why) if whole.goes_on_without(&why) => {} // it is brought there when it is back
                drained => progress.count(&drained?),
            }
        }
    }
}

/// Look at every queue once, by the record that is in force: before another one is stored, for what was pushed by then is
/// judged by what held then.
pub(super) async fn look_at_all(whole: &mut Whole, progress: &Progress) -> Result<(), StoreError> {
    for primary in whole.primaries() {
        match look_at_queues_of(primary, progress).await {
            Err(why) if whole.goes_on_without(&why) => debug!(%why, "the queues of a server are not looked at"),
            looked => looked?,
        }
    }
    Ok(())
}

async fn look_at_queues_of(mut primary: Primary, progress: &Progress) -> Result<(), StoreError> {
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = primary.scan_queues(at).await?;
        for (mut store, queues) in primary.sorted(page.queues).by_partition {
            let names: Vec<Arc<str>> = queues.iter().filter_map(|key| store.bucket_of(key)).collect();
            let mut rest = &names[..];
            while !rest.is_empty() {
                let drained = match store.drain(&rest[..rest.len().min(NAMES)]).await {
                    Err(why) if why.stands_still() => break,
                    drained => drained?,
                };
                progress.count(&drained);
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

/// Whether the record in force is that of `config`; where none is stored it is stored now. (Somebody flushed Redis: without a record
/// the built-in defaults would hold.)
pub(super) async fn settle_record(mut whole: Whole, config: &Config, is_built_in: bool) -> Result<bool, StoreError> {
    let mut store = whole.authority();
    loop {
        if let Some(is_own) = store.has_record(&config.record).await? {
            if is_built_in {
                store.bound_arguments().await?;
            }
            return Ok(is_own);
        }
        info!("no policy record is stored: storing it again");
        whole.put_record(&config.record, &config.record_source, true).await?;
    }
}
