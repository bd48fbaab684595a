//! The whole of a system: a [`Store`] for each partition, and what is asked of all of them. What concerns one bucket or budget goes to the
//! store of its partition (`of`), what is set goes to the authority (`copy` carries it on), and what is counted is added up in the files
//! that count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::try_join_all;
use redis::{PushInfo, PushKind, RedisResult};

use super::connect::OnPush;
use super::partition::{AUTHORITY, Layout, QueueKey};
use super::view::{Scanned, Standing};
use super::wake::Reports;
use super::{ANSWER_WITHIN, Address, Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::cut::Cut;
use crate::words::glob::Glob;

/// The queues of a page of a scan.
pub struct Sorted {
    /// Those of buckets, by partition.
    pub by_partition: Vec<(Store, Vec<Vec<u8>>)>,
    /// Those that are no bucket's, or lie elsewhere than it lives.
    pub alone: Vec<Vec<u8>>,
}

/// A connection to every partition of a system. Clones share it.
#[derive(Debug, Clone)]
pub struct Whole {
    layout: Arc<Layout>,
    /// By number.
    stores: Arc<[Store]>,
}

impl Whole {
    /// Connect for calls.
    ///
    /// # Errors
    ///
    /// As [`Store::connect`]; [`StoreError::OtherCut`] where what is stored is cut in another way.
    pub async fn connect(address: &Address, layout: &Layout) -> Result<Self, StoreError> {
        Self::connect_with(address, layout, Arc::new(|_| {})).await
    }

    /// Connect for a daemon: what Redis reports goes to `reports`.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub async fn connect_tracking(
        address: &Address,
        layout: &Layout,
        reports: &Arc<Reports>,
    ) -> Result<Self, StoreError> {
        let reports = Arc::clone(reports);
        Self::connect_with(address, layout, Arc::new(move |push| reports.on_push(push))).await
    }

    /// Connect for calls; `closed` tells when the connection has ended.
    pub(super) async fn connect_noting_its_end(
        address: &Address,
        layout: &Layout,
        closed: &Arc<AtomicBool>,
    ) -> Result<Self, StoreError> {
        let closed = Arc::clone(closed);
        let on_push = move |push: &PushInfo| {
            if push.kind == PushKind::Disconnection {
                closed.store(true, Ordering::Relaxed);
            }
        };
        Self::connect_with(address, layout, Arc::new(on_push)).await
    }

    async fn connect_with(address: &Address, layout: &Layout, on_push: OnPush) -> Result<Self, StoreError> {
        let first = Store::connect_with(address, &layout.authority(), ANSWER_WITHIN, on_push).await?;
        let stores = layout.all().map(|partition| first.at(partition)).collect();
        let mut whole = Self { layout: Arc::new(layout.clone()), stores };
        whole.check_cut().await?;
        Ok(whole)
    }

    /// Refuse a system that is cut in another way than the configuration says. Who may not ask is not told.
    async fn check_cut(&mut self) -> Result<(), StoreError> {
        let [whole, cut] = self.layout.records();
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGET").arg(whole).arg("id").cmd("HGET").arg(cut).arg("cut");
        let mut store = self.authority();
        let replies: Vec<RedisResult<Option<String>>> = pipeline
            .ignore_errors()
            .query_async(store.calls())
            .await
            .map_err(|why| StoreError::of_call(store.shown(), "HGET", &why))?;
        let mut replies = replies.into_iter().map(|reply| reply.ok().flatten());
        let (is_whole, cut) = (replies.next().flatten().is_some(), replies.next().flatten());
        let cut = cut.and_then(|text| {
            let (partitions, by) = text.split_once(' ')?;
            Some(Cut { partitions: partitions.parse().ok()?, by: by.parse().ok()? })
        });
        let stored = cut.or_else(|| is_whole.then(Cut::default));
        let ours = self.layout.cut();
        match stored {
            Some(stored) if stored != ours => {
                Err(StoreError::OtherCut { address: store.shown().to_owned(), stored, ours })
            }
            _ => Ok(()),
        }
    }

    /// The server that it leads to, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.stores[usize::from(AUTHORITY)].shown()
    }

    /// How the system is cut.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The partition in which a bucket, or a budget, of this name lives.
    #[must_use]
    pub fn of(&self, name: &BucketName) -> Store {
        self.at(self.layout.number_of(name))
    }

    /// The same of a name as it is stored.
    #[must_use]
    pub fn of_stored(&self, stored: &str) -> Store {
        self.at(self.layout.number_of_subject(stored))
    }

    /// The partition of a number.
    #[must_use]
    pub fn at(&self, number: u8) -> Store {
        self.stores[usize::from(number)].clone()
    }

    /// The partition that says what holds in all of them: the record, and what is set.
    #[must_use]
    pub fn authority(&self) -> Store {
        self.at(AUTHORITY)
    }

    /// All of them, by number.
    pub fn each(&self) -> impl Iterator<Item = Store> {
        self.stores.iter().cloned()
    }

    /// The partitions that a pattern may be about: that of a name or a budget, or all where it is a glob.
    pub(super) fn about(&self, stored: &str, is_glob: bool) -> Vec<Store> {
        if is_glob { self.each().collect() } else { vec![self.of_stored(stored)] }
    }

    /// The same call in every partition, side by side; the replies by number.
    pub(super) async fn all<T, F>(&self, call: impl Fn(Store) -> F) -> Result<Vec<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        try_join_all(self.each().map(call)).await
    }

    /// The same for some names, each in its partition; the replies by name, in their order.
    pub(super) async fn by_name<T, F>(
        &self,
        names: &[String],
        call: impl Fn(Store, Vec<String>) -> F,
    ) -> Result<Vec<(u8, Vec<String>, T)>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut lists = vec![Vec::new(); self.stores.len()];
        for name in names {
            lists[usize::from(self.layout.number_of_subject(name))].push(name.clone());
        }
        let calls = self.each().zip(lists).map(|(store, names)| {
            let (number, told) = (store.keys().number(), call(store, names.clone()));
            async move { Ok((number, names, told.await?)) }
        });
        try_join_all(calls).await
    }

    /// A page of a scan over every key, of which those of queues are replied, of whatever partition.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn scan_queues(&mut self, cursor: u64) -> Result<Scanned, StoreError> {
        let pattern = self.layout.queue_pattern();
        self.authority().scan_queues(cursor, &pattern).await
    }

    /// For each partition a number that has grown when something may happen there earlier than the daemons know.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn wakes(&mut self) -> Result<Vec<u64>, StoreError> {
        self.all(async |mut store: Store| store.wakes().await).await
    }

    /// The queues of a page by their partition.
    #[must_use]
    pub fn sorted(&self, queues: Vec<Vec<u8>>) -> Sorted {
        let (mut lists, mut alone) = (vec![Vec::new(); self.stores.len()], Vec::new());
        for key in queues {
            match self.layout.read_queue(&key) {
                QueueKey::Of(number, _) => lists[usize::from(number)].push(key),
                QueueKey::Misplaced { .. } | QueueKey::NoBucket(_) => alone.push(key),
            }
        }
        let by_partition = self.each().zip(lists).filter(|(_, queues)| !queues.is_empty()).collect();
        Sorted { by_partition, alone }
    }

    /// Those of some queues whose buckets neither wait for their due nor are paused, and those that are left alone.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn unscheduled(&mut self, queues: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, StoreError> {
        let Sorted { by_partition, alone: mut found } = self.sorted(queues);
        for (mut store, queues) in by_partition {
            found.extend(store.unscheduled(queues).await?);
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
            let standing = store.standing(&queues).await?;
            found.extend(queues.into_iter().zip(standing));
        }
        Ok(found)
    }

    /// Look at the queue of each bucket that a glob matches, and let out nothing: what was pushed by now is judged by what holds now.
    /// Where no record is stored nothing is done.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn look_at_all(&mut self, glob: &Glob) -> Result<(), StoreError> {
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.scan_queues(at).await?;
            for (mut store, mut queues) in self.sorted(page.queues).by_partition {
                queues.retain(|key| store.bucket_of(key).is_some_and(|bucket| glob.matches(bucket.as_bytes())));
                store.look_at(&queues).await?;
            }
            cursor = page.next;
        }
        Ok(())
    }
}
