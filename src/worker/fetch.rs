//! Fetching: a worker's free slots wait for jobs in its partitions.
//!
//! A read serves one partition. As many reads are under way as there are free slots, or partitions where those are fewer. Each read has a
//! connection of its own, and may take as many jobs as slots are reserved for it. When a read is over, the partition that waited longest
//! is the next one. While any partition has jobs, no read waits in a partition that has none.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::model::route::Route;
use crate::store::acl::Role;
use crate::store::jobs::work::Job as Entry;
use crate::store::{Address, Layout, Store, StoreError};

/// How long one read waits for jobs. A stop has to wait for it: a read that is given up may still take a job.
pub(super) const BLOCK: Duration = Duration::from_secs(1);

/// How long one read waits where other partitions may have to wait for it.
const BLOCK_OF_MANY: Duration = Duration::from_millis(100);

/// The wait before a connection is made again: the first one, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The errors of a read whose stream was made anew, or has moved to another server of a cluster. The worker looks where it is, and goes on.
const TRANSIENT_CODES: [&str; 2] = ["NOGROUP", "UNBLOCKED"];

/// Settings of all reads of a worker.
struct Shared {
    address: Address,
    layout: Layout,
    route: Route,
    name: String,
    block: Duration,
    stop: CancellationToken,
}

/// What a read brought.
pub(super) struct Fetched {
    /// Its partition.
    pub(super) number: u8,
    /// When it began.
    pub(super) began: SystemTime,
    /// The jobs, if any.
    pub(super) entries: Vec<Entry>,
}

/// A read that came back, or a partition that was looked for.
struct Done {
    fetched: Fetched,
    /// The slots that were reserved for it.
    slots: usize,
    /// The connection. None: it was lost, or could not be made.
    reader: Option<Store>,
    /// How long to wait before the partition is looked for again. None: it can be read.
    pause: Option<Duration>,
}

/// The reads of a worker.
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    /// Partitions in which no read is under way, the one that waited longest first.
    waiting: VecDeque<u8>,
    spare: Vec<Store>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// How many slots are reserved for the reads under way.
    reserved: usize,
    /// How many reads in a row got nothing. Before a whole round got nothing no read waits for jobs: there may be some elsewhere.
    empty_reads: usize,
}

impl Fetcher {
    /// Connect, and open the route in each of these partitions. At least one of them must answer.
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
        let (waiting, spare) = (VecDeque::new(), Vec::new());
        let mut fetcher =
            Self { shared, waiting, spare, under_way: FuturesUnordered::new(), reserved: 0, empty_reads: 0 };
        let mut first = None;
        for number in numbers {
            let opened = match fetcher.spare_for(*number) {
                Some(reader) => Ok(reader),
                None => fetcher.shared.connect(*number).await,
            };
            let opened = match opened {
                Ok(reader) => fetcher.shared.open_route(reader).await,
                Err(why) => Err(why),
            };
            match opened {
                Ok(reader) => {
                    fetcher.spare.push(reader);
                    fetcher.waiting.push_back(*number);
                }
                Err(why @ (StoreError::Away { .. } | StoreError::Lost { .. })) => {
                    warn!(why = why.on_record(Role::Worker), "cannot take jobs of a partition, trying again");
                    fetcher.look_for(*number, FIRST_PAUSE);
                    first = first.or(Some(why));
                }
                Err(why) if why.is_retryable() || why.refuses_writes() => {
                    if why.refuses_writes() {
                        warn!(why = why.on_record(Role::Worker), "cannot take jobs, trying again");
                    }
                    fetcher.look_for(*number, FIRST_PAUSE);
                    first = first.or(Some(why));
                }
                Err(why) => return Err(why),
            }
        }
        match first {
            // A Redis that refuses writes is waited for, as one that does so later.
            Some(why) if fetcher.waiting.is_empty() && !why.refuses_writes() => Err(why),
            _ => Ok(fetcher),
        }
    }

    /// Let this many free slots wait for jobs, less those that do already.
    pub(super) fn begin(&mut self, free: usize) {
        let mut free = free.saturating_sub(self.reserved);
        while free > 0 {
            let share = free.div_ceil(self.waiting.len().max(1));
            let Some(number) = self.waiting.pop_front() else { return };
            let reader = self.spare_for(number);
            let has_waited = self.empty_reads > self.waiting.len() + self.under_way.len();
            let block = has_waited.then_some(self.shared.block);
            self.under_way.push(Box::pin(read(Arc::clone(&self.shared), reader, number, share, block)));
            (self.reserved, free) = (self.reserved + share, free - share);
        }
    }

    /// A connection that is not in use and leads to the server of a partition.
    fn spare_for(&mut self, number: u8) -> Option<Store> {
        let partition = self.shared.layout.partition(number);
        let at = self.spare.iter().position(|reader| reader.leads_to(&self.shared.address, &partition))?;
        Some(self.spare.swap_remove(at).at(partition))
    }

    /// Look for a partition, after a while. The search takes no slot from partitions that can be read.
    fn look_for(&mut self, number: u8, pause: Duration) {
        self.under_way.push(Box::pin(look_for(Arc::clone(&self.shared), number, pause)));
    }

    /// Wait for the next read that comes back. `None`: none is under way.
    pub(super) async fn next(&mut self) -> Option<Fetched> {
        let Done { fetched, slots, reader, pause } = self.under_way.next().await?;
        let Fetched { number, ref entries, .. } = fetched;
        self.reserved -= slots;
        self.empty_reads = if entries.is_empty() { self.empty_reads.saturating_add(1) } else { 0 };
        self.spare.extend(reader);
        match pause {
            None => self.waiting.push_back(number),
            Some(_) if self.shared.stop.is_cancelled() => {}
            Some(pause) => self.look_for(number, pause),
        }
        Some(fetched)
    }
}

async fn read(shared: Arc<Shared>, reader: Option<Store>, number: u8, slots: usize, block: Option<Duration>) -> Done {
    let began = SystemTime::now();
    let fetched = |entries| Fetched { number, began, entries };
    match shared.take(reader, number, slots, block).await {
        Ok((entries, reader)) => Done { fetched: fetched(entries), slots, reader: Some(reader), pause: None },
        Err(why) => {
            if !(why.code().is_some_and(|code| TRANSIENT_CODES.contains(&code)) || why.is_retryable()) {
                warn!(why = why.on_record(Role::Worker), partition = number, "cannot take jobs, trying again");
            }
            Done { fetched: fetched(Vec::new()), slots, reader: None, pause: Some(FIRST_PAUSE) }
        }
    }
}

/// Connect anew, wherever the partition is now, and open the route anew.
async fn look_for(shared: Arc<Shared>, number: u8, pause: Duration) -> Done {
    let found = async {
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        shared.open_route(shared.connect(number).await?).await
    };
    let (reader, pause) = tokio::select! {
        () = shared.stop.cancelled() => (None, Some(pause)),
        found = found => match found {
            Ok(reader) => (Some(reader), None),
            Err(why) => {
                debug!(%why, "redis cannot be used");
                (None, Some((pause * 2).min(shared.address.longest_pause(LONGEST_PAUSE))))
            }
        },
    };
    let fetched = Fetched { number, began: SystemTime::now(), entries: Vec::new() };
    Done { fetched, slots: 0, reader, pause }
}

impl Shared {
    async fn connect(&self, number: u8) -> Result<Store, StoreError> {
        Store::connect_blocking(&self.address, &self.layout.partition(number), self.block).await
    }

    async fn open_route(&self, mut reader: Store) -> Result<Store, StoreError> {
        reader.open_route(&self.route).await?;
        Ok(reader)
    }

    async fn take(
        &self,
        reader: Option<Store>,
        number: u8,
        most: usize,
        block: Option<Duration>,
    ) -> Result<(Vec<Entry>, Store), StoreError> {
        let mut reader = match reader {
            Some(reader) => reader,
            None => self.connect(number).await?,
        };
        let taken = reader.take(&self.route, &self.name, most, block).await?;
        Ok((taken, reader))
    }
}
