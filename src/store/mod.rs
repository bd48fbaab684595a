//! Redis: the only place that names a key, a function or the redis crate.
//!
//! A [`Store`] is a connection to the server at an [`Address`], for the keys of one [`Partition`]; a [`Whole`] is one for each partition of
//! a system, and asks or tells all of them what concerns all (`partition` says which keys those are, `whole` what is asked of all, `copy`
//! how what is set in one comes into the others). `connect` makes a connection that is
//! good for use or says why not; a lost one is never mended here: whoever owns the loops drops the store and connects anew. How that is
//! done, with `tls` and `sentinel`, is the file `connect`.
//! `acl` lists what each role may, `server` says what the server is and lacks, `library` is the Lua source and how it is loaded, `ops` holds the calls that
//! change something, `submit` those about jobs with options, `view` those that only read, `status` how all stands, `walk` and `top` which buckets come first, `rows` how some of them stand now, `front` what a bucket's page shows besides, `purge` and
//! `dead` what operators do with jobs, `change` what they set, `reply` turns answers into names, `wake` keeps what Redis reports.

pub mod acl;
mod address;
pub mod change;
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
pub mod ops;
pub mod partition;
pub mod purge;
mod record;
pub mod reply;
pub mod rows;
mod sentinel;
pub mod server;
pub mod settings;
pub mod status;
pub mod submit;
pub mod timing;
mod tls;
pub mod top;
pub mod view;
pub mod wake;
pub mod walk;
pub mod what_if;
mod whole;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ToRedisArgs, Value};

pub use address::Address;
use connect::{Connection, OnPush};
pub use error::StoreError;
use library::is_missing_function;
pub use partition::{Layout, Partition};
pub use whole::Whole;

/// How long an answer may take: an append to a slow disk may stall for two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A connection to Redis that speaks dripd's functions.
#[derive(Debug, Clone)]
pub struct Store {
    connection: Connection,
    partition: Arc<Partition>,
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
        let connection = Box::pin(connect::connect(address, answer_within, &on_push)).await?;
        let mut store = Self { connection, partition: Arc::new(partition.clone()) };
        store.check_version().await?;
        Ok(store)
    }

    /// The same connection for the keys of another partition.
    #[must_use]
    pub fn at(&self, partition: Partition) -> Self {
        Self { connection: self.connection.clone(), partition: Arc::new(partition) }
    }

    fn unusable(&self, why: String) -> StoreError {
        StoreError::Unusable { address: self.shown().to_owned(), why }
    }

    /// The server that it leads to, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.connection.at
    }

    /// What calls are made on.
    fn calls(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection.calls
    }

    /// The keys that it uses.
    #[must_use]
    pub fn keys(&self) -> &Partition {
        &self.partition
    }

    async fn call(&mut self, name: &'static str, command: &Cmd) -> Result<Value, StoreError> {
        let began = Instant::now();
        let answer = command.query_async(self.calls()).await;
        timing::took(name, began.elapsed());
        answer.map_err(|why| StoreError::of_call(self.shown(), name, &why))
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
