//! Calls that only read.

use redis::Value;

use super::reply::unexpected;
use super::{Store, StoreError};
use crate::policy::Record;

/// A page of a scan over the queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Where the scan goes on; `None` when it is over.
    pub next: Option<u64>,
    /// The keys of the queues found.
    pub queues: Vec<Vec<u8>>,
}

impl Store {
    /// A page of a scan over every key, of which those of queues are replied.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn scan_queues(&mut self, cursor: u64) -> Result<Scanned, StoreError> {
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(self.keys().queue_pattern()).arg("COUNT").arg(1_000);
        let reply = self.call("SCAN", &command).await?;
        let (next, queues): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|why| StoreError::Reply { call: "SCAN", reply: why.to_string() })?;
        Ok(Scanned { next: (next != 0).then_some(next), queues })
    }

    /// Whether the record in force is `record`; `None` when none is stored.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn has_record(&mut self, record: &Record) -> Result<Option<bool>, StoreError> {
        let reply = self.call("HGET", redis::cmd("HGET").arg(self.keys().policy()).arg("record")).await?;
        match reply {
            Value::Nil => Ok(None),
            Value::BulkString(json) => Ok(Some(json == record.to_json().as_bytes())),
            other => Err(unexpected("HGET", &other)),
        }
    }
}
