//! Redis: the only place that names a key, a function or the redis crate.
//!
//! A [`Store`] is a connection to the server at an [`Address`], for the keys of one [`Partition`]; a [`Whole`] is one for each partition of
//! a system, and asks or tells all of them what concerns all (`partition` says which keys those are, `whole` what is asked of all, `copy`
//! how what is set in one comes into the others). `connect` makes a connection that is
//! good for use or says why not; a lost one is never mended here: whoever owns the loops drops the store and connects anew. How that is
//! done, with `tls`, `sentinel` and `cluster`, is the file `connect`; of a cluster `table` keeps a connection to each primary, and says which
//! partitions are away, and `still` which of them stood still.
//! `acl` lists what each role may, `server` says what the server is and lacks, `library` is the Lua source and how it is loaded, `ops` holds the calls that
//! change something, `submit` those about jobs with options, `view` those that only read, `status` how all stands, `walk` and `top` which buckets come first, `rows` how some of them stand now, `front` what a bucket's page shows besides, `purge` and
//! `dead` what operators do with jobs, `change` what they set, `reply` turns answers into names, `beat` says which daemons are alive, `wake` keeps what Redis reports.

pub mod acl;
mod address;
pub mod beat;
pub mod change;
mod cluster;
mod connect;
pub mod copy;
pub mod dead;
mod error;
pub mod explain;
pub mod figures;
pub mod front;
pub mod keys;
pub mod library;
pub mod link;
pub mod note;
pub mod ops;
pub mod partition;
pub mod primary;
pub mod purge;
mod record;
pub mod reply;
pub mod routes;
pub mod rows;
mod sentinel;
pub mod server;
pub mod settings;
pub mod status;
mod still;
pub mod submit;
mod table;
pub mod timing;
mod tls;
pub mod top;
pub mod view;
pub mod wake;
pub mod walk;
pub mod what_if;
mod whole;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, ToRedisArgs, Value};

pub use address::Address;
use address::At;
use connect::OnPush;
pub use error::StoreError;
use library::is_missing_function;
pub use partition::{Layout, Partition};
use table::{Reach, Table};
pub use whole::Whole;

/// How long an answer may take: an append to a slow disk may stall for two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What a server of a cluster answers that has not got the slot of a key.
const MOVED: &str = "MOVED";

/// A connection to Redis that speaks dripd's functions.
#[derive(Debug, Clone)]
pub struct Store {
    reach: Reach,
    partition: Arc<Partition>,
    /// Of a cluster: who knows where the calls go when they came to the wrong server.
    home: Weak<Table>,
}

impl Store {
    /// Connect for calls.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] or [`StoreError::Loading`], with the reason and the way out.
    pub async fn connect(address: &Address, partition: &Partition) -> Result<Self, StoreError> {
        Self::connect_blocking(address, partition, Duration::ZERO).await
    }

    /// Connect for blocking reads of at most `block`.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub async fn connect_blocking(
        address: &Address,
        partition: &Partition,
        block: Duration,
    ) -> Result<Self, StoreError> {
        Self::connect_with(address, partition, block + ANSWER_WITHIN, Arc::new(|_| {})).await
    }

    async fn connect_with(
        address: &Address,
        partition: &Partition,
        answer_within: Duration,
        on_push: OnPush,
    ) -> Result<Self, StoreError> {
        // Boxed: what TLS needs for its first words is large, and lies in the future of whoever connects.
        let connection = match &address.at {
            At::Cluster(cluster) => Box::pin(table::open(address, cluster, partition, answer_within, &on_push)).await?,
            _ => Box::pin(connect::connect(address, answer_within, &on_push)).await?,
        };
        let mut store = Self::of_table(Reach::Here(connection), partition.clone(), &Weak::new());
        store.check_version().await?;
        Ok(store)
    }

    /// A partition, and the way to it.
    fn of_table(reach: Reach, partition: Partition, home: &Weak<Table>) -> Self {
        Self { reach, partition: Arc::new(partition), home: Weak::clone(home) }
    }

    /// The same connection for the keys of another partition.
    #[must_use]
    pub fn at(&self, partition: Partition) -> Self {
        Self::of_table(self.reach.clone(), partition, &self.home)
    }

    fn unusable(&self, why: String) -> StoreError {
        StoreError::Unusable { address: self.shown().to_owned(), why }
    }

    /// The server that it leads to, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        match &self.reach {
            Reach::Here(connection) => &connection.at,
            Reach::Away(away) => &away.node,
        }
    }

    /// What calls are made on.
    fn calls(&mut self) -> Result<&mut MultiplexedConnection, StoreError> {
        match &mut self.reach {
            Reach::Here(connection) if connection.line.as_ref().is_some_and(|line| line.is_lost()) => {
                let (partition, node) = (self.partition.number(), connection.at.to_string());
                Err(StoreError::Away { partition, node, why: table::LOST.to_owned() })
            }
            Reach::Here(connection) => Ok(&mut connection.calls),
            Reach::Away(away) => {
                let (partition, node, why) = (self.partition.number(), away.node.clone(), away.why.clone());
                Err(StoreError::Away { partition, node, why })
            }
        }
    }

    /// The keys that it uses.
    #[must_use]
    pub fn keys(&self) -> &Partition {
        &self.partition
    }

    async fn call(&mut self, name: &'static str, command: &Cmd) -> Result<Value, StoreError> {
        self.come_back().await;
        let began = Instant::now();
        let answer = command.query_async(self.calls()?).await;
        timing::took(name, began.elapsed());
        let why = match answer {
            Ok(reply) => return Ok(reply),
            Err(why) => StoreError::of_call(self.shown(), name, &why),
        };
        if !self.goes_elsewhere(&why).await {
            return Err(why);
        }
        let answer = command.query_async(self.calls()?).await;
        answer.map_err(|why| StoreError::of_call(self.shown(), name, &why))
    }

    /// The same of several commands in one round trip, all of them for one partition.
    async fn call_all<T: FromRedisValue>(&mut self, name: &'static str, pipeline: &Pipeline) -> Result<T, StoreError> {
        self.come_back().await;
        let why = match pipeline.query_async(self.calls()?).await {
            Ok(reply) => return Ok(reply),
            Err(why) => StoreError::of_call(self.shown(), name, &why),
        };
        if !self.goes_elsewhere(&why).await {
            return Err(why);
        }
        let answer = pipeline.query_async(self.calls()?).await;
        answer.map_err(|why| StoreError::of_call(self.shown(), name, &why))
    }

    /// Where the partition is away, wait for a server, for as long as whoever connected has patience.
    async fn come_back(&mut self) {
        if let Err(StoreError::Away { .. }) = self.calls()
            && let Some(table) = self.home.upgrade()
        {
            self.reach = table.come_back(table::slot_of(&self.partition)).await;
        }
    }

    /// In a cluster a connection that broke or hangs is given up: another one is made in its place.
    fn note(&self, why: &StoreError) {
        if let (StoreError::Lost { .. }, Reach::Here(connection)) = (why, &self.reach)
            && let Some(line) = &connection.line
        {
            line.give_up();
        }
    }

    /// After a call that failed: whether it came to the wrong server of a cluster, where it did nothing, and the right one is known now.
    async fn goes_elsewhere(&mut self, why: &StoreError) -> bool {
        self.note(why);
        if why.code() != Some(MOVED) {
            return false;
        }
        let Some(slot) = why.slot() else { return false };
        let Some(table) = self.home.upgrade() else { return false };
        let was = self.line();
        // Where the right one cannot be used the call stays refused, and the next one comes here again.
        if table.looked_anew().await
            && let there @ Reach::Here(_) = table.reach(slot)
        {
            self.reach = there;
        }
        self.line() != was
    }

    /// The number of its connection, of a cluster.
    fn line(&self) -> Option<u64> {
        match &self.reach {
            Reach::Here(connection) => connection.line(),
            Reach::Away(_) => None,
        }
    }

    /// Whether a partition of the system at an address is on the server of this connection, as far as is known.
    #[must_use]
    pub fn leads_to(&self, address: &Address, partition: &Partition) -> bool {
        match (&address.at, &self.reach) {
            (At::Cluster(cluster), Reach::Here(connection)) => {
                let slot = table::slot_of(partition);
                let node = connection.line.as_ref().map(|line| &line.node);
                cluster.newest().is_some_and(|map| map.home(slot) == node)
            }
            _ => true,
        }
    }

    /// Whether its server says as well that another partition is where that leads. Of a primary that was replaced and has not heard of it, the
    /// servers to which its successor's changes have come know better.
    async fn agrees_on(&mut self, other: &mut Self) -> bool {
        let (Reach::Here(here), Reach::Here(there)) = (&self.reach, &other.reach) else { return false };
        let (Some(here), Some(there)) = (&here.line, &there.line) else { return true }; // there is one server only
        let (node, there, slot) = (here.node.clone(), there.node.clone(), table::slot_of(&other.partition));
        let Ok(calls) = self.calls() else { return false };
        let Some(home) = cluster::home_as_told_by(&node, calls, slot).await else { return false };
        if home == there {
            return true;
        }
        // Nodes may name it otherwise than the one did by which it was found: then it is what that one says of itself.
        let Ok(calls) = other.calls() else { return false };
        cluster::home_as_told_by(&there, calls, slot).await.is_some_and(|itself| itself == home)
    }

    /// Why there is no server for it, where that is so.
    #[must_use]
    pub fn absence(&self) -> Option<StoreError> {
        self.clone().calls().err()
    }

    /// Whether there is a server for it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        matches!(self.reach, Reach::Here(_))
    }

    /// The same, with the reply decoded.
    async fn read<T: redis::FromRedisValue>(
        &mut self,
        name: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let reply = self.call(name, command).await?;
        redis::from_redis_value(reply).map_err(|why| StoreError::Reply { call: name, reply: why.to_string() })
    }

    /// Call a function. Where the library is gone (`FUNCTION FLUSH`, an empty replica) it is loaded and the call made
    /// once more: a function that was not found has done nothing. Where it met a key of another type, which Redis does not name,
    /// that is looked for.
    async fn function(
        &mut self,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: &[&[u8]],
    ) -> Result<Value, StoreError> {
        self.function_by("FCALL", name, keys, args).await
    }

    /// The same for a function that writes nothing: it may be called by a user who may only read.
    async fn reading(
        &mut self,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: &[&[u8]],
    ) -> Result<Value, StoreError> {
        self.function_by("FCALL_RO", name, keys, args).await
    }

    async fn function_by(
        &mut self,
        command: &str,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: &[&[u8]],
    ) -> Result<Value, StoreError> {
        let mut command = redis::cmd(command);
        command.arg(name).arg(keys.len()).arg(keys).arg(args);
        match self.call(name, &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => {
                self.load_library(&library::CURRENT).await?;
                self.call(name, &command).await
            }
            Err(StoreError::Refused { call, code, message }) if code == "WRONGTYPE" => {
                // Who may not ask for types is told what Redis says.
                let wrong = if error::names_no_key(&message) { self.wrong_key().await.ok().flatten() } else { None };
                let message = wrong.map_or(message, |(key, found, wanted)| {
                    format!("{key} holds a {found} and must hold a {wanted}: rename or delete it")
                });
                Err(StoreError::Refused { call, code, message })
            }
            other => other,
        }
    }
}
