//! The whole of a system: a [`Store`] for each partition, and what is asked of all of them. What concerns one bucket or budget goes to the
//! store of its partition (`of`), what is set goes to the authority (`copy` carries it on), and what is counted is added up in the files
//! that count it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use futures_util::future::{join_all, try_join_all};
use redis::{PushInfo, PushKind, RedisResult};
use tokio::sync::watch;

use super::address::At;
use super::connect::OnPush;
use super::partition::{AUTHORITY, Layout};
use super::primary::Primary;
use super::table::{Reach, Table};
use super::wake::Reports;
use super::{ANSWER_WITHIN, Address, Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::cut::{self, Cut};
use crate::words::glob::Glob;

/// A connection to every partition of a system. Clones share it.
#[derive(Debug, Clone)]
pub struct Whole {
    layout: Arc<Layout>,
    table: Arc<Table>,
    /// Where it is, as it may be shown.
    shown: Arc<str>,
    /// The partitions that calls on all of them passed over, and why.
    missed: Arc<Mutex<BTreeMap<u8, StoreError>>>,
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
        let layout = Arc::new(layout.clone());
        let (table, shown) = if let At::Cluster(cluster) = &address.at {
            (Table::live(address, cluster, &layout, on_push).await?, address.shown().into())
        } else {
            let first = Store::connect_with(address, &layout.authority(), ANSWER_WITHIN, on_push).await?;
            (Table::fixed(layout.all().map(|partition| first.at(partition)).collect()), first.shown().into())
        };
        let whole = Self { layout, table, shown, missed: Arc::default() };
        whole.check_cut().await?;
        Ok(whole)
    }

    /// Refuse a system that is cut in another way than the configuration says. Every partition has that with its record, so where the authority
    /// is away another one tells. Who may not ask is not told.
    ///
    /// # Errors
    ///
    /// [`StoreError::OtherCut`].
    pub async fn check_cut(&self) -> Result<(), StoreError> {
        for store in self.each() {
            let stored = match self.cut_in(store.clone()).await {
                Err(why) if self.goes_on_without(&why) => continue,
                stored => stored?,
            };
            let (address, ours) = (store.shown().to_owned(), self.layout.cut());
            match stored {
                Some(stored) if stored == ours => return Ok(()),
                Some(stored) => return Err(StoreError::OtherCut { address, stored, ours }),
                None if self.is_cluster() => {} // others may have it
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// How the system is cut, as a partition has it. On one server it is asked of the authority, and a system of one partition is seen too.
    async fn cut_in(&self, mut store: Store) -> Result<Option<Cut>, StoreError> {
        let [whole, authority] = self.layout.records();
        let mut pipeline = redis::pipe();
        if self.is_cluster() {
            pipeline.cmd("HGET").arg(store.keys().policy()).arg("cut");
        } else {
            pipeline.cmd("HGET").arg(authority).arg("cut").cmd("HGET").arg(whole).arg("id");
        }
        let replies: Vec<RedisResult<Option<String>>> = store.call_all("HGET", pipeline.ignore_errors()).await?;
        let mut told = Vec::new();
        for reply in replies {
            match reply.map_err(|why| StoreError::of_call(store.shown(), "HGET", &why)) {
                Err(why) if why.stands_still() => return Err(why), // that is no answer
                reply => told.push(reply.ok().flatten()),
            }
        }
        let cut = told.first().cloned().flatten().and_then(|text| {
            let (partitions, by) = text.split_once(' ')?;
            Some(Cut { partitions: partitions.parse().ok()?, by: by.parse().ok()? })
        });
        let is_whole = told.get(1).is_some_and(Option::is_some);
        Ok(cut.or_else(|| is_whole.then(Cut::default)))
    }

    /// The server that it leads to, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether its partitions live on several servers, and may move from one to another.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.table.is_live()
    }

    /// Of a cluster: tells when a partition has come to another place, or is away, or back.
    #[must_use]
    pub fn changes_of_place(&self) -> Option<watch::Receiver<u64>> {
        self.table.changes()
    }

    /// Let calls wait until then for a partition of a cluster that is away.
    #[must_use]
    pub fn patient(self, until: Instant) -> Self {
        self.table.be_patient(until);
        self
    }

    /// A connection to a server of a cluster is of no use any more: another one is made in its place.
    pub fn give_up(&self, line: u64) {
        self.table.give_up(line);
    }

    /// Of a cluster: ask all nodes who has which partition now, and wait for that.
    pub(super) async fn look_anew(&self) {
        if self.is_cluster() {
            self.table.looked_anew().await;
        }
    }

    /// The servers that can be reached, each with its partitions.
    #[must_use]
    pub fn primaries(&self) -> Vec<Primary> {
        let all = self.table.all();
        if !self.is_cluster() {
            return vec![Primary::new(&self.layout, all[usize::from(AUTHORITY)].clone(), all.to_vec())];
        }
        let connections = self.table.connections();
        let primaries = connections.into_iter().map(|connection| {
            let line = connection.line();
            let stores = all.iter().filter(|store| store.line() == line).cloned().collect();
            let any = Store::of_table(Reach::Here(connection), self.layout.authority(), &Weak::new());
            Primary::new(&self.layout, any, stores)
        });
        primaries.collect()
    }

    /// The server that has a key which is none of dripd's.
    #[must_use]
    pub fn of_key(&self, key: &[u8]) -> Store {
        if self.is_cluster() {
            let reach = self.table.reach(cut::key_slot(key));
            Store::of_table(reach, self.layout.authority(), &Arc::downgrade(&self.table))
        } else {
            self.authority()
        }
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
        self.table.at(number)
    }

    /// The partition that says what holds in all of them: the record, and what is set.
    #[must_use]
    pub fn authority(&self) -> Store {
        self.at(AUTHORITY)
    }

    /// The authority, or where that is away any partition that is not: for what all of them have.
    #[must_use]
    pub fn any(&self) -> Store {
        let all = self.table.all();
        all.iter().find(|store| store.is_here()).unwrap_or(&all[usize::from(AUTHORITY)]).clone()
    }

    /// All of them, by number.
    pub fn each(&self) -> impl Iterator<Item = Store> + use<> {
        let all = self.table.all();
        (0..all.len()).map(move |at| all[at].clone())
    }

    /// Whether an error concerns one server of several, or a partition that stands still, and the others go on.
    #[must_use]
    pub fn goes_on_without(&self, why: &StoreError) -> bool {
        self.is_cluster() && (why.stands_still() || why.is_unusable() || matches!(why, StoreError::Lost { .. }))
    }

    /// The same of a call that all partitions are asked; it is kept which one was passed over.
    pub fn passes_over(&self, number: u8, why: &StoreError) -> bool {
        let passes = self.goes_on_without(why);
        if passes {
            self.missed.lock().unwrap_or_else(PoisonError::into_inner).insert(number, why.clone());
        }
        passes
    }

    /// The same, of which no partition was passed over so far.
    pub(super) fn missing_none(&self) -> Self {
        Self { missed: Arc::default(), ..self.clone() }
    }

    /// What was passed over there was passed over here.
    pub(super) fn also_missing(&self, there: &Self) {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).extend(there.missed());
    }

    /// Which partitions were passed over so far, and why.
    #[must_use]
    pub fn missed(&self) -> BTreeMap<u8, StoreError> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The partitions that a pattern may be about: that of a name or a budget, or all where it is a glob.
    pub(super) fn about(&self, stored: &str, is_glob: bool) -> Vec<Store> {
        if is_glob { self.each().collect() } else { vec![self.of_stored(stored)] }
    }

    /// The same call in every partition, side by side; the replies by number, of those that can be reached: of one at least.
    pub(super) async fn all<T, F>(&self, call: impl Fn(Store) -> F) -> Result<Vec<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        Ok(self.reached(call).await?.into_iter().map(|(_, reply)| reply).collect())
    }

    /// The same with their numbers.
    pub(super) async fn reached<T, F>(&self, call: impl Fn(Store) -> F) -> Result<Vec<(u8, T)>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        if !self.is_cluster() {
            let replies = try_join_all(self.each().map(call)).await?;
            return Ok((0..).zip(replies).collect());
        }
        let (mut told, mut first) = (Vec::new(), None);
        for (number, reply) in (0..).zip(join_all(self.each().map(call)).await) {
            match reply {
                Ok(reply) => told.push((number, reply)),
                Err(why) if self.passes_over(number, &why) => first = first.or(Some(why)),
                Err(why) => return Err(why),
            }
        }
        match first {
            Some(why) if told.is_empty() => Err(why),
            _ => Ok(told),
        }
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
        let mut lists = vec![Vec::new(); usize::from(self.layout.cut().partitions)];
        for name in names {
            lists[usize::from(self.layout.number_of_subject(name))].push(name.clone());
        }
        let call = |store: Store| {
            let names = lists[usize::from(store.keys().number())].clone();
            let told = call(store, names.clone());
            async move { Ok((names, told.await?)) }
        };
        let told = self.reached(call).await?;
        Ok(told.into_iter().map(|(number, (names, reply))| (number, names, reply)).collect())
    }

    /// Look at the queue of each bucket that a glob matches, and let out nothing: what was pushed by now is judged by what holds now.
    /// Where no record is stored nothing is done.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn look_at_all(&mut self, glob: &Glob) -> Result<(), StoreError> {
        for mut primary in self.primaries() {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = match primary.scan_queues(at).await {
                    Err(why) if self.goes_on_without(&why) => break, // its partitions are passed over
                    page => page?,
                };
                for (mut store, mut queues) in primary.sorted(page.queues).by_partition {
                    queues.retain(|key| store.bucket_of(key).is_some_and(|bucket| glob.matches(bucket.as_bytes())));
                    match store.look_at(&queues).await {
                        Err(why) if self.passes_over(store.keys().number(), &why) => {}
                        looked => looked?,
                    }
                }
                cursor = page.next;
            }
        }
        Ok(())
    }
}
