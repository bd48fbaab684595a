//! All partitions of a system: a [`Store`] for each, and calls on all of them. A call on one bucket or budget goes to the store of its
//! partition (`of`), settings go to the authority (`control::replication` brings them to the others), and the files of `view`
//! add up what each partition counts.

pub mod link;
pub mod primary;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use futures_util::future::{join_all, try_join_all};
use redis::{PushInfo, PushKind, RedisResult};
use tokio::sync::watch;

use super::client::Store;
use super::connection::{ANSWER_WITHIN, Access, Address, At, OnPush, StoreError, Topology};
use super::keys::partition::AUTHORITY;
use super::keys::{Layout, Partition};
use super::wake::Invalidations;
use crate::model::bucket::BucketName;
use crate::model::partitioning::{self, Partitioning};

/// A connection to every partition of a system. Clones share it.
#[derive(Debug, Clone)]
pub struct Partitions {
    layout: Arc<Layout>,
    /// By the number of the partition.
    keys: Arc<[Arc<Partition>]>,
    topology: Arc<Topology>,
    /// Where it is, as it may be shown.
    redacted: Arc<str>,
    /// The partitions that calls on all of them skipped, and why.
    skipped: Arc<Mutex<BTreeMap<u8, StoreError>>>,
}

impl Partitions {
    /// Connect for calls.
    ///
    /// # Errors
    ///
    /// As [`Store::connect`]; [`StoreError::PartitioningMismatch`] where what is stored has another partitioning.
    pub async fn connect(address: &Address, layout: &Layout) -> Result<Self, StoreError> {
        Self::connect_with(address, layout, Arc::new(|_| {})).await
    }

    /// Connect for a daemon: what Redis reports goes to `invalidations`.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub async fn connect_tracking(
        address: &Address,
        layout: &Layout,
        invalidations: &Arc<Invalidations>,
    ) -> Result<Self, StoreError> {
        let invalidations = Arc::clone(invalidations);
        Self::connect_with(address, layout, Arc::new(move |push| invalidations.on_push(push))).await
    }

    /// Connect for calls; `closed` tells when the connection has ended.
    pub(in crate::store) async fn connect_noting_its_end(
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
        let number_of_partitions = layout.partitioning().partitions;
        let (topology, redacted) = if let At::Cluster(cluster) = &address.at {
            (Topology::live(address, cluster, number_of_partitions, on_push).await?, address.redacted().into())
        } else {
            let first = Store::connect_with(address, &layout.authority(), ANSWER_WITHIN, on_push).await?;
            (Topology::fixed(first.access().clone(), number_of_partitions), first.redacted().into())
        };
        let (layout, keys) = (Arc::new(layout.clone()), layout.all().map(Arc::new).collect());
        let partitions = Self { layout, keys, topology, redacted, skipped: Arc::default() };
        partitions.check_partitioning().await?;
        Ok(partitions)
    }

    /// Refuse a system with another partitioning than the configuration says. Every partition has that with its record, so where the authority
    /// is away another one tells. Who may not ask is not told.
    ///
    /// # Errors
    ///
    /// [`StoreError::PartitioningMismatch`].
    pub async fn check_partitioning(&self) -> Result<(), StoreError> {
        for store in self.each() {
            let stored = match self.partitioning_in(store.clone()).await {
                Err(why) if self.tolerates(&why) => continue,
                stored => stored?,
            };
            let (address, ours) = (store.redacted().to_owned(), self.layout.partitioning());
            match stored {
                Some(stored) if stored == ours => return Ok(()),
                Some(stored) => return Err(StoreError::PartitioningMismatch { address, stored, ours }),
                None if self.is_cluster() => {} // others may have it
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The partitioning of the system, as a partition has it.
    /// On one server the authority is asked, and the record of a system of one partition is looked for too.
    async fn partitioning_in(&self, mut store: Store) -> Result<Option<Partitioning>, StoreError> {
        let [partitions, authority] = self.layout.records();
        let mut pipeline = redis::pipe();
        if self.is_cluster() {
            pipeline.cmd("HGET").arg(store.keys().policy()).arg("cut");
        } else {
            pipeline.cmd("HGET").arg(authority).arg("cut").cmd("HGET").arg(partitions).arg("id");
        }
        let replies: Vec<RedisResult<Option<String>>> = store.call_pipeline("HGET", pipeline.ignore_errors()).await?;
        let mut answers = Vec::new();
        for reply in replies {
            match reply.map_err(|why| StoreError::of_call(store.redacted(), "HGET", &why)) {
                Err(why) if why.is_retryable() => return Err(why), // that is no answer
                reply => answers.push(reply.ok().flatten()),
            }
        }
        let partitioning = answers.first().cloned().flatten().and_then(|text| {
            let (partitions, by) = text.split_once(' ')?;
            Some(Partitioning { partitions: partitions.parse().ok()?, by: by.parse().ok()? })
        });
        let is_whole = answers.get(1).is_some_and(Option::is_some);
        Ok(partitioning.or_else(|| is_whole.then(Partitioning::default)))
    }

    /// The server that it leads to, as it may be shown.
    pub fn redacted(&self) -> &str {
        &self.redacted
    }

    /// Whether its partitions live on several servers, and may move from one to another.
    pub fn is_cluster(&self) -> bool {
        self.topology.is_live()
    }

    /// Of a cluster: tells when a partition has come to another place, or is away, or back.
    pub fn topology_changes(&self) -> Option<watch::Receiver<u64>> {
        self.topology.changes()
    }

    /// Let calls wait until then for a partition of a cluster that is away.
    pub fn patient(self, until: Instant) -> Self {
        self.topology.be_patient(until);
        self
    }

    /// A connection to a server of a cluster is of no use any more: another one is made in its place.
    pub fn give_up(&self, connection_id: u64) {
        self.topology.give_up(connection_id);
    }

    /// Of a cluster: ask all nodes who has which partition now, and wait for that.
    pub(in crate::store) async fn refresh_topology(&self) {
        if self.is_cluster() {
            self.topology.await_refresh().await;
        }
    }

    /// The server that has a key which is none of dripd's.
    pub fn of_key(&self, key: &[u8]) -> Store {
        if self.is_cluster() {
            self.store(AUTHORITY, self.topology.access(partitioning::key_slot(key)))
        } else {
            self.authority()
        }
    }

    /// The partitioning of the system.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The partition in which a bucket, or a budget, of this name lives.
    pub fn of(&self, name: &BucketName) -> Store {
        self.at(self.layout.number_of(name))
    }

    /// The partition in which a name as it is stored lives.
    pub fn of_stored(&self, stored: &str) -> Store {
        self.at(self.layout.number_of_subject(stored))
    }

    /// The partition of a number.
    pub fn at(&self, number: u8) -> Store {
        self.store(number, self.topology.at(number))
    }

    fn store(&self, number: u8, access: Access) -> Store {
        // Only in a cluster there is another server to which a call could go.
        let topology = if self.is_cluster() { Arc::downgrade(&self.topology) } else { Weak::new() };
        Store::with_access(access, self.keys_of(number), topology)
    }

    fn keys_of(&self, number: u8) -> Arc<Partition> {
        Arc::clone(&self.keys[usize::from(number)])
    }

    /// The partition that says what holds in all of them: the record, and what is set.
    pub fn authority(&self) -> Store {
        self.at(AUTHORITY)
    }

    /// The authority, or where that is away any partition that is not: for what all of them have.
    pub fn any(&self) -> Store {
        self.each().find(Store::is_available).unwrap_or_else(|| self.authority())
    }

    /// All of them, by number.
    pub fn each(&self) -> impl Iterator<Item = Store> + use<> {
        let (this, accesses) = (self.clone(), self.topology.all());
        (0..).zip(0..accesses.len()).map(move |(number, at)| this.store(number, accesses[at].clone()))
    }

    /// Whether an error concerns one server of several, or one partition, and the others can be served.
    pub fn tolerates(&self, why: &StoreError) -> bool {
        self.is_cluster() && (why.is_retryable() || why.is_unusable() || matches!(why, StoreError::Lost { .. }))
    }

    /// Whether a call on all partitions goes on without the one of this number; that one is recorded as skipped.
    pub fn record_skipped(&self, number: u8, why: &StoreError) -> bool {
        let is_skipped = self.tolerates(why);
        if is_skipped {
            self.skipped.lock().unwrap_or_else(PoisonError::into_inner).insert(number, why.clone());
        }
        is_skipped
    }

    /// A copy with an empty list of skipped partitions.
    pub(in crate::store) fn with_none_skipped(&self) -> Self {
        Self { skipped: Arc::default(), ..self.clone() }
    }

    /// Take over the skipped partitions of a copy.
    pub(in crate::store) fn add_skipped(&self, there: &Self) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).extend(there.skipped());
    }

    /// Which partitions were skipped so far, and why.
    pub fn skipped(&self) -> BTreeMap<u8, StoreError> {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The partitions that a pattern may be about: that of a name or a budget, or all where it is a glob.
    pub(in crate::store) fn about(&self, stored: &str, is_glob: bool) -> Vec<Store> {
        if is_glob { self.each().collect() } else { vec![self.of_stored(stored)] }
    }

    /// Make a call in every partition at once. Replies by number, of the partitions that can be reached: one at least.
    pub(in crate::store) async fn all<T, F>(&self, call: impl Fn(Store) -> F) -> Result<Vec<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        Ok(self.reached(call).await?.into_iter().map(|(_, reply)| reply).collect())
    }

    /// Make a call in every partition at once. Replies with the numbers of the partitions.
    pub(in crate::store) async fn reached<T, F>(&self, call: impl Fn(Store) -> F) -> Result<Vec<(u8, T)>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        if !self.is_cluster() {
            let replies = try_join_all(self.each().map(call)).await?;
            return Ok((0..).zip(replies).collect());
        }
        let (mut answers, mut first) = (Vec::new(), None);
        for (number, reply) in (0..).zip(join_all(self.each().map(call)).await) {
            match reply {
                Ok(reply) => answers.push((number, reply)),
                Err(why) if self.record_skipped(number, &why) => first = first.or(Some(why)),
                Err(why) => return Err(why),
            }
        }
        match first {
            Some(why) if answers.is_empty() => Err(why),
            _ => Ok(answers),
        }
    }

    /// Make a call in every partition with those of some names that live there. Replies with the number and the names.
    pub(in crate::store) async fn by_name<T, F>(
        &self,
        names: &[String],
        call: impl Fn(Store, Vec<String>) -> F,
    ) -> Result<Vec<(u8, Vec<String>, T)>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut lists = vec![Vec::new(); usize::from(self.layout.partitioning().partitions)];
        for name in names {
            lists[usize::from(self.layout.number_of_subject(name))].push(name.clone());
        }
        let call = |store: Store| {
            let names = lists[usize::from(store.keys().number())].clone();
            let answers = call(store, names.clone());
            async move { Ok((names, answers.await?)) }
        };
        let answers = self.reached(call).await?;
        Ok(answers.into_iter().map(|(number, (names, reply))| (number, names, reply)).collect())
    }
}
