//! A [`Store`]: a connection to a server, for the keys of one partition, and the way in which a command is sent on it. A call that came to the wrong
//! server of a cluster is sent again to the right one, for it did nothing; no other call is repeated here.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError};

use super::connection::{
    self, ANSWER_WITHIN, Access, Address, At, OnPush, StoreError, Topology, owner_as_told_by, slot_of, timing,
};
use super::keys::Partition;
use super::reply::Reply;

/// The code with which a server of a cluster answers when another server has the slot.
const MOVED: &str = "MOVED";

/// A connection to Redis that speaks dripd's functions.
#[derive(Debug, Clone)]
pub struct Store {
    access: Access,
    partition: Arc<Partition>,
    /// Of a cluster: who knows where the calls go when they came to the wrong server.
    pub(super) topology: Weak<Topology>,
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

    pub(super) async fn connect_with(
        address: &Address,
        partition: &Partition,
        answer_within: Duration,
        on_push: OnPush,
    ) -> Result<Self, StoreError> {
        // Boxed: what TLS needs for its first words is large, and lies in the future of whoever connects.
        let mut connection = match &address.at {
            At::Cluster(cluster) => {
                Box::pin(connection::open(address, cluster, partition.number(), answer_within, &on_push)).await?
            }
            _ => Box::pin(connection::connect(address, answer_within, &on_push)).await?,
        };
        connection.check_version().await?;
        Ok(Self::with_access(Access::Connected(connection), Arc::new(partition.clone()), Weak::new()))
    }

    /// A partition, and the way to it.
    pub(super) fn with_access(access: Access, partition: Arc<Partition>, topology: Weak<Topology>) -> Self {
        Self { access, partition, topology }
    }

    /// A store on this connection for the keys of another partition.
    pub fn at(&self, partition: Partition) -> Self {
        Self::with_access(self.access.clone(), Arc::new(partition), self.topology.clone())
    }

    /// The way to its server.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    pub(super) fn unusable(&self, why: String) -> StoreError {
        StoreError::Unusable { address: self.redacted().to_owned(), why }
    }

    /// The server that it leads to, as it may be shown.
    pub fn redacted(&self) -> &str {
        match &self.access {
            Access::Connected(connection) => &connection.at,
            Access::Unavailable(unavailable) => &unavailable.node,
        }
    }

    /// The connection for calls, or why there is none.
    fn calls(&mut self) -> Result<&mut MultiplexedConnection, StoreError> {
        match &mut self.access {
            Access::Connected(connection) if connection.is_lost() => {
                let (partition, node) = (self.partition.number(), connection.at.to_string());
                Err(StoreError::Away { partition, node, why: connection::LOST.to_owned() })
            }
            Access::Connected(connection) => Ok(&mut connection.calls),
            Access::Unavailable(unavailable) => {
                let (partition, node, why) =
                    (self.partition.number(), unavailable.node.clone(), unavailable.why.clone());
                Err(StoreError::Away { partition, node, why })
            }
        }
    }

    /// The keys that it uses.
    pub fn keys(&self) -> &Partition {
        &self.partition
    }

    pub(super) async fn call(&mut self, name: &'static str, command: &Cmd) -> Result<Reply, StoreError> {
        self.await_available().await;
        let began = Instant::now();
        let answer = command.query_async(self.calls()?).await;
        timing::took(name, began.elapsed());
        let value = match answer {
            Ok(value) => value,
            Err(why) => {
                self.redirected(name, &why).await?;
                let answer = command.query_async(self.calls()?).await;
                answer.map_err(|why| StoreError::of_call(self.redacted(), name, &why))?
            }
        };
        Ok(Reply { call: name, value })
    }

    /// Send several commands, all of them for one partition, in one round trip.
    pub(super) async fn call_pipeline<T: FromRedisValue>(
        &mut self,
        name: &'static str,
        pipeline: &Pipeline,
    ) -> Result<T, StoreError> {
        self.await_available().await;
        match pipeline.query_async(self.calls()?).await {
            Ok(replies) => Ok(replies),
            Err(why) => {
                self.redirected(name, &why).await?;
                let answer = pipeline.query_async(self.calls()?).await;
                answer.map_err(|why| StoreError::of_call(self.redacted(), name, &why))
            }
        }
    }

    /// Where the partition is away, wait for a server, for as long as whoever connected has patience.
    async fn await_available(&mut self) {
        if let Err(StoreError::Away { .. }) = self.calls()
            && let Some(topology) = self.topology.upgrade()
        {
            self.access = topology.await_available(slot_of(self.partition.number())).await;
        }
    }

    /// After a call that failed: follow it where it came to the wrong server of a cluster, did nothing there, and the right one is known
    /// now. In a cluster a connection that broke or hangs is given up: another one is made in its place.
    async fn redirected(&mut self, name: &'static str, why: &RedisError) -> Result<(), StoreError> {
        let why = StoreError::of_call(self.redacted(), name, why);
        if let (StoreError::Lost { .. }, Access::Connected(connection)) = (&why, &self.access) {
            connection.give_up();
        }
        if why.code() == Some(MOVED)
            && let Some(slot) = why.slot()
            && let Some(topology) = self.topology.upgrade()
        {
            let was = self.connection_id();
            // Where the right one cannot be used the call stays refused, and the next one comes here again.
            if topology.await_refresh().await
                && let there @ Access::Connected(_) = topology.access(slot)
            {
                self.access = there;
            }
            if self.connection_id() != was {
                return Ok(());
            }
        }
        Err(why)
    }

    /// The id of its connection, of a cluster.
    pub(super) fn connection_id(&self) -> Option<u64> {
        match &self.access {
            Access::Connected(connection) => connection.connection_id(),
            Access::Unavailable(_) => None,
        }
    }

    /// Whether a partition of the system at an address is on the server of this connection, as far as is known.
    pub fn leads_to(&self, address: &Address, partition: &Partition) -> bool {
        match (&address.at, &self.access) {
            (At::Cluster(cluster), Access::Connected(connection)) => {
                let slot = slot_of(partition.number());
                let node = connection.cluster_node.as_ref().map(|node_connection| &node_connection.node);
                cluster.newest().is_some_and(|map| map.owner(slot) == node)
            }
            _ => true,
        }
    }

    /// Whether its server says as well that another partition is where that leads. Of a primary that was replaced and has not heard of it, the
    /// servers to which its successor's changes have come know better.
    pub(super) async fn agrees_on(&mut self, other: &mut Self) -> bool {
        let (Access::Connected(ours), Access::Connected(theirs)) = (&self.access, &other.access) else { return false };
        let (Some(ours), Some(theirs)) = (&ours.cluster_node, &theirs.cluster_node) else { return true }; // there is one server only
        let (node, there, slot) = (ours.node.clone(), theirs.node.clone(), slot_of(other.partition.number()));
        let Ok(calls) = self.calls() else { return false };
        let Some(owner) = owner_as_told_by(&node, calls, slot).await else { return false };
        if owner == there {
            return true;
        }
        // Nodes may name it otherwise than the one did by which it was found: then it is what that one says of itself.
        let Ok(calls) = other.calls() else { return false };
        owner_as_told_by(&there, calls, slot).await.is_some_and(|itself| itself == owner)
    }

    /// Why there is no server for it, where that is so.
    pub fn unavailable_reason(&self) -> Option<StoreError> {
        self.clone().calls().err()
    }

    /// Whether there is a server for it.
    pub fn is_available(&self) -> bool {
        matches!(self.access, Access::Connected(_))
    }

    /// Send a command, and decode its reply.
    pub(super) async fn read<T: FromRedisValue>(&mut self, name: &'static str, command: &Cmd) -> Result<T, StoreError> {
        self.call(name, command).await?.decode()
    }
}
