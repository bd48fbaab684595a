//! Reading: a worker's free slots wait for jobs in its partitions.
//!
//! A read serves one partition. As many are under way as there are free slots, or partitions where those are fewer; each has a connection
//! of its own, and may take as many jobs as it was given slots. One that got nothing makes way: the partition that waited longest is
//! the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::store::acl::Role;
use crate::store::reply::Job as Entry;
use crate::store::{Address, Layout, Store, StoreError};
use crate::words::policy::Route;

/// How long one read waits for jobs. A stop has to wait for it: a read that is given up may still take a job.
pub(super) const BLOCK: Duration = Duration::from_secs(1);

/// The same where others may have to wait for this one.
const BLOCK_OF_MANY: Duration = Duration::from_millis(100);

/// The wait before a connection is made again: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What all reads of a worker share.
struct Shared {
    address: Address,
    layout: Layout,
    route: Route,
    name: String,
    block: Duration,
    stop: CancellationToken,
}

/// A connection for reads.
struct Reader {
    /// None: it is to be made.
    store: Option<Store>,
    pause: Duration,
}

/// A read that came back.
struct Done {
    reader: Reader,
    number: u8,
    slots: usize,
    entries: Vec<Entry>,
}

/// The reads of a worker.
pub(super) struct Reads {
    shared: Arc<Shared>,
    /// Partitions in which no read is under way, the one that waited longest first.
    waiting: VecDeque<u8>,
    spare: Vec<Reader>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// How many slots the reads under way were given.
    given: usize,
}

impl Reads {
    /// Connect, and open the route in each of these partitions.
    pub(super) async fn open(
        address: Address,
        layout: Layout,
        numbers: &[u8],
        route: Route,
        name: String,
        stop: CancellationToken,
    ) -> Result<Self, StoreError> {
        let block = if numbers.len() > 1 { BLOCK_OF_MANY } else { BLOCK };
        let shared = Arc::new(Shared { address, layout, route, name, block, stop });
        let mut reader = Reader { store: None, pause: FIRST_PAUSE };
        for number in numbers {
            let mut store = match reader.store.take() {
                Some(store) => store.at(shared.layout.partition(*number)),
                None => shared.connect(*number).await?,
            };
            store.open_route(&shared.route).await?;
            reader.store = Some(store);
        }
        let (waiting, spare) = (numbers.iter().copied().collect(), vec![reader]);
        Ok(Self { shared, waiting, spare, under_way: FuturesUnordered::new(), given: 0 })
    }

    /// Have so many slots wait for jobs, less those that do already.
    pub(super) fn begin(&mut self, free: usize) {
        let mut free = free.saturating_sub(self.given);
        while free > 0 {
            let share = free.div_ceil(self.waiting.len().max(1));
            let Some(number) = self.waiting.pop_front() else { return };
            let reader = self.spare.pop().unwrap_or(Reader { store: None, pause: FIRST_PAUSE });
            self.under_way.push(Box::pin(read(Arc::clone(&self.shared), reader, number, share)));
            (self.given, free) = (self.given + share, free - share);
        }
    }

    /// What the next read brought: the number of its partition, and jobs, if any. `None`: no read is under way.
    pub(super) async fn next(&mut self) -> Option<(u8, Vec<Entry>)> {
        let Done { reader, number, slots, entries } = self.under_way.next().await?;
        self.given -= slots;
        self.spare.push(reader);
        self.waiting.push_back(number);
        Some((number, entries))
    }
}

async fn read(shared: Arc<Shared>, mut reader: Reader, number: u8, slots: usize) -> Done {
    let mut entries = Vec::new();
    match shared.take(&mut reader, number, slots).await {
        Ok(taken) => (entries, reader.pause) = (taken, FIRST_PAUSE),
        Err(why) => {
            if why.code() != Some("NOGROUP") {
                warn!(why = why.on_record(Role::Worker), "cannot take jobs, trying again");
            }
            tokio::select! {
                () = shared.stop.cancelled() => {}
                () = shared.mend(&mut reader, number) => {}
            }
        }
    }
    Done { reader, number, slots, entries }
}

impl Shared {
    async fn connect(&self, number: u8) -> Result<Store, StoreError> {
        Store::connect_blocking(&self.address, &self.layout.partition(number), self.block).await
    }

    async fn take(&self, reader: &mut Reader, number: u8, most: usize) -> Result<Vec<Entry>, StoreError> {
        let mut store = match reader.store.take() {
            Some(store) if store.keys().number() == number => store,
            Some(store) => store.at(self.layout.partition(number)),
            None => self.connect(number).await?,
        };
        let taken = store.take(&self.route, &self.name, most, self.block).await;
        reader.store = Some(store);
        taken
    }

    /// Connect anew, and open the route anew.
    async fn mend(&self, reader: &mut Reader, number: u8) {
        loop {
            sleep(reader.pause.mul_f64(0.5 + fastrand::f64())).await;
            reader.pause = (reader.pause * 2).min(self.address.longest_pause(LONGEST_PAUSE));
            let again = async {
                let mut store = self.connect(number).await?;
                store.open_route(&self.route).await?;
                Ok::<_, StoreError>(store)
            };
            match again.await {
                Ok(store) => {
                    reader.store = Some(store);
                    return;
                }
                Err(why) => debug!(%why, "redis cannot be used"),
            }
        }
    }
}
