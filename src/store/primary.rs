//! One server, and the partitions that it has: all of them where there is one server, some of them in a cluster. What is asked of a server
//! and not of a partition is asked here: what it is and lacks, its library, and the scan over its keys.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::partition::{Layout, QueueKey};
use super::server::Server;
use super::view::{Scanned, Standing};
use super::wake::Reports;
use super::{Store, StoreError, library};

/// The queues of a page of a scan.
pub struct Sorted {
    /// Those of buckets, by partition.
    pub by_partition: Vec<(Store, Vec<Vec<u8>>)>,
    /// Those that are no bucket's, or lie elsewhere than it lives.
    pub alone: Vec<Vec<u8>>,
}

/// A server and its partitions.
#[derive(Debug, Clone)]
pub struct Primary {
    layout: Arc<Layout>,
    /// A connection to it; which keys are used on it does not matter.
    any: Store,
    /// By number.
    stores: Vec<Store>,
}

impl Primary {
    pub(super) fn new(layout: &Arc<Layout>, any: Store, stores: Vec<Store>) -> Self {
        Self { layout: Arc::clone(layout), any, stores }
    }

    /// Where it is, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.any.shown()
    }

    /// Of a cluster: the number of the connection, which no other one has.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.any.line().unwrap_or_default()
    }

    /// Its partitions, by number.
    pub fn each(&self) -> impl Iterator<Item = Store> {
        self.stores.iter().cloned()
    }

    /// Whether it has the partition that says what holds in all of them.
    #[must_use]
    pub fn has_authority(&self) -> bool {
        self.stores.iter().any(|store| store.keys().is_authority())
    }

    /// The same server with those of its partitions only that are meant.
    #[must_use]
    pub fn only(&self, is_meant: impl Fn(u8) -> bool) -> Self {
        let stores = self.each().filter(|store| is_meant(store.keys().number())).collect();
        Self { stores, ..self.clone() }
    }

    /// Make the server ready for a daemon: check what it lacks and the types of our keys, load the library, turn the
    /// reports on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] when a key of ours has the wrong type or the library cannot be loaded.
    pub async fn prepare(&mut self, reports: &Reports) -> Result<Server, StoreError> {
        let (version, warnings) = (self.any.version().await?, self.any.lacks().await?);
        let mut server = Server { version, warnings, tracking: false };
        self.check_types().await?;
        self.any.load_library(&library::CURRENT).await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("BCAST");
        for prefix in reports.prefixes() {
            tracking.arg("PREFIX").arg(prefix);
        }
        match self.any.call("CLIENT TRACKING", &tracking).await {
            Ok(_) => server.tracking = true,
            Err(StoreError::Refused { code, message, .. }) => {
                let at = self.any.line().map_or_else(String::new, |_| format!(" at {}", self.any.shown()));
                server
                    .warnings
                    .push(format!("CLIENT TRACKING is not available{at} ({code} {message}): queues are polled"));
            }
            Err(other) => return Err(other),
        }
        Ok(server)
    }

    /// What it lacks to keep the promises: each a sentence with the way out.
    pub(super) async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        self.any.lacks().await
    }

    /// What it should have to keep the promises, in a word each, and whether it lacks that.
    ///
    /// # Errors
    ///
    /// As [`Store::lacking`].
    pub async fn lacking(&mut self) -> Result<[(&'static str, bool); 2], StoreError> {
        self.any.lacking().await
    }

    /// Which of some daemons are connected to it, of those that show their presence.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn present(&mut self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        self.any.present(&self.layout, ids).await
    }

    /// Refuse a key of ours that has the wrong type.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`], with its name.
    pub async fn check_types(&mut self) -> Result<(), StoreError> {
        let check = async |mut store: Store| match store.check_types().await {
            Err(why) if why.stands_still() => Ok(()), // whoever gets the partition looks
            checked => checked,
        };
        try_join_all(self.each().map(check)).await.map(drop)
    }

    /// A page of a scan over every key, of which those of queues are replied, of whatever partition.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn scan_queues(&mut self, cursor: u64) -> Result<Scanned, StoreError> {
        let pattern = self.layout.queue_pattern();
        self.any.scan_queues(cursor, &pattern).await
    }

    /// For each partition a number that has grown when something may happen there earlier than the daemons know.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn wakes(&mut self) -> Result<Vec<u64>, StoreError> {
        let wakes = async |mut store: Store| match store.wakes().await {
            Err(why) if why.stands_still() => Ok(0), // its pacer asks again and again
            wakes => wakes,
        };
        try_join_all(self.each().map(wakes)).await
    }

    /// The numbers of its partitions.
    #[must_use]
    pub fn numbers(&self) -> Vec<u8> {
        self.stores.iter().map(|store| store.keys().number()).collect()
    }

    /// The queues of a page by their partition. Those of a partition that is on its way from or to another server are left out.
    #[must_use]
    pub fn sorted(&self, queues: Vec<Vec<u8>>) -> Sorted {
        let (mut lists, mut alone) = (vec![Vec::new(); usize::from(self.layout.cut().partitions)], Vec::new());
        for key in queues {
            match self.layout.read_queue(&key) {
                QueueKey::Of(number, _) => lists[usize::from(number)].push(key),
                QueueKey::Misplaced { .. } | QueueKey::NoBucket(_) => alone.push(key),
            }
        }
        let of = |store: Store| {
            let queues = std::mem::take(&mut lists[usize::from(store.keys().number())]);
            (!queues.is_empty()).then_some((store, queues))
        };
        Sorted { by_partition: self.each().filter_map(of).collect(), alone }
    }

    /// Those of some queues whose buckets neither wait for their due nor are paused, and those that are left alone.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn unscheduled(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        let Sorted { by_partition, alone: mut found } = self.sorted(queues);
        for (mut store, queues) in by_partition {
            match store.unscheduled(queues.clone()).await {
                Err(why) if why.stands_still() => found.extend(queues),
                unscheduled => found.extend(unscheduled?),
            }
        }
        Ok(found)
    }

    /// How things stand with some queues: each with what is known of it. One that is left alone is no news.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn standing(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<(Vec<u8>, Standing)>, StoreError> {
        let nothing = Standing { scheduled: true, length: None };
        let Sorted { by_partition, alone } = self.sorted(queues);
        let mut found: Vec<_> = alone.into_iter().map(|key| (key, nothing)).collect();
        for (mut store, queues) in by_partition {
            match store.standing(&queues).await {
                Err(why) if why.stands_still() => {}
                standing => found.extend(queues.into_iter().zip(standing?)),
            }
        }
        Ok(found)
    }
}
