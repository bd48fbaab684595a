//! The policy record in force: putting one there, and what it says to whoever must know it.

use serde::Deserialize;

use crate::model::policy::{Limits, Record};
use crate::model::source::Source;
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;

/// The part of a stored record that is read here.
#[derive(Deserialize)]
struct Stored {
    limits: StoredLimits,
}

#[derive(Deserialize)]
struct StoredLimits {
    max_job_bytes: u64,
}

/// The outcome of [`Partitions::put_record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The record is in force now.
    Stored,
    /// The record was in force already, or another is and this one was only to be stored where none is.
    Kept,
    /// Another change still spreads: drain, and try again.
    Busy,
}

impl Partitions {
    /// Put a policy record into force, or only where none is stored, and say where it comes from: at the authority, see [`Self::replicate`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] when a route's key holds something else.
    pub async fn put_record(
        &mut self,
        record: &Record,
        source: &Source,
        only_if_missing: bool,
    ) -> Result<Put, StoreError> {
        let mut authority = self.authority();
        let id = format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
        let mode = if only_if_missing { "if-missing" } else { "replace" };
        let source = serde_json::to_string(source).expect("a source is text and numbers");
        let args = ("", id, record.to_json(), mode, source);
        let put = |what: i64| match what {
            1 => Some(Put::Stored),
            0 => Some(Put::Kept),
            -1 => Some(Put::Busy),
            _ => None,
        };
        authority.call_function("drip__policy", &[authority.keys().policy()], args).await?.decode_with(put)
    }
}

impl Store {
    /// The largest job that the functions take now: by the record in force, which need not be that of the file at hand.
    ///
    /// # Errors
    ///
    /// As any call; [`StoreError::Reply`] when the record cannot be read.
    pub async fn max_job_bytes(&mut self) -> Result<u64, StoreError> {
        // The functions obey their built-in defaults where no record is stored.
        let Some(json) = self.stored_record().await? else { return Ok(Limits::default().max_job_bytes) };
        let stored: Stored = serde_json::from_slice(&json)
            .map_err(|why| StoreError::Reply { call: "HGET", reply: format!("the record cannot be read: {why}") })?;
        Ok(stored.limits.max_job_bytes)
    }

    /// Have the server refuse arguments that no job can be: over twice the largest job of the record in force, and over 1 MiB. For
    /// a server that is dripd's own. The record itself, and where it
    /// comes from, must still fit when they grow.
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

    /// Whether the record in force is `record`; `None` when none is stored.
    pub async fn has_record(&mut self, record: &Record) -> Result<Option<bool>, StoreError> {
        Ok(self.stored_record().await?.map(|json| json == record.to_json().as_bytes()))
    }

    async fn stored_record(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        self.read("HGET", redis::cmd("HGET").arg(self.keys().policy()).arg("record")).await
    }
}
