//! What the record in force says, for commands that must know it before they push.

use redis::Value;
use serde::Deserialize;

use super::reply::unexpected;
use super::{Store, StoreError};
use crate::words::policy::Limits;

/// The part of a stored record that is read here.
#[derive(Deserialize)]
struct Stored {
    limits: StoredLimits,
}

#[derive(Deserialize)]
struct StoredLimits {
    max_job_bytes: u64,
}

impl Store {
    /// The largest job that the functions take now: by the record in force, which need not be that of the file at hand.
    ///
    /// # Errors
    ///
    /// As any call; [`StoreError::Reply`] when the record cannot be read.
    pub async fn max_job_bytes(&mut self) -> Result<u64, StoreError> {
        let reply = self.call("HGET", redis::cmd("HGET").arg(self.keys().policy()).arg("record")).await?;
        let Value::BulkString(json) = &reply else {
            // The functions obey their built-in defaults where no record is stored.
            let built_in = (reply == Value::Nil).then(|| Limits::default().max_job_bytes);
            return built_in.ok_or_else(|| unexpected("HGET", &reply));
        };
        let stored: Stored = serde_json::from_slice(json)
            .map_err(|why| StoreError::Reply { call: "HGET", reply: format!("the record cannot be read: {why}") })?;
        Ok(stored.limits.max_job_bytes)
    }

    /// Have the server refuse arguments that no job can be: over twice the largest job of the record in force, and over 1 MiB. For
    /// a server that is dripd's own. The record itself, and where it
    /// comes from, must still fit when they grow.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn bound_arguments(&mut self) -> Result<(), StoreError> {
        let mut most = (2 * self.max_job_bytes().await?).max(1_048_576);
        for field in ["record", "source"] {
            let stored: u64 = self.read("HSTRLEN", redis::cmd("HSTRLEN").arg(self.keys().policy()).arg(field)).await?;
            most = most.max(2 * stored);
        }
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("proto-max-bulk-len").arg(most);
        self.call("CONFIG SET", &command).await.map(drop)
    }
}
