//! What is set, and the record, in every partition. The authority counts each change of them; whatever lags behind is brought what it
//! lacks, by daemons once a second and by the commands that change something.

use std::time::{Duration, Instant};

use redis::FromRedisValue as _;

use super::ops::Put;
use super::reply::unexpected;
use super::{Store, StoreError, Whole};
use crate::words::policy::Record;
use crate::words::source::Source;

/// The wait for a change that still spreads in a partition.
const WHILE_IT_SPREADS: Duration = Duration::from_millis(20);

/// Changes of the authority, as one call tells them.
struct Changes {
    /// The number of the last one there is.
    last: u64,
    /// What was unset up to this number may be told no more.
    floor: u64,
    /// Up to this number all are told.
    upto: u64,
    /// Number, what, and three texts of each.
    list: Vec<Vec<u8>>,
}

/// What is stored, and whether every partition has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// The numbers of those that an earlier change still keeps busy: they take it when that is over.
    pub busy: Vec<u8>,
}

impl Whole {
    /// Bring every partition what the authority has and it lacks.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn carry(&mut self) -> Result<Carried, StoreError> {
        if self.layout().cut().is_whole() {
            return Ok(Carried { busy: Vec::new() });
        }
        let mut authority = self.authority();
        let last = authority.number().await?;
        let bring_one = async |mut store: Store| {
            let number = store.number().await?;
            if store.keys().is_authority() || number == last {
                Ok(None)
            } else {
                bring(self.authority(), store, number).await
            }
        };
        Ok(Carried { busy: self.all(bring_one).await?.into_iter().flatten().collect() })
    }

    /// The same, and wait for those that are busy, for a while.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn carry_within(&mut self, time: Duration) -> Result<Carried, StoreError> {
        let since = Instant::now();
        loop {
            let carried = self.carry().await?;
            if carried.busy.is_empty() || since.elapsed() >= time {
                return Ok(carried);
            }
            tokio::time::sleep(WHILE_IT_SPREADS).await;
        }
    }

    /// Put a policy record into force, or only where none is stored, and say where it comes from: at the authority, see [`Self::carry`].
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
        self.authority().put_record(record, source, only_if_missing).await
    }
}

/// Bring one partition what it lacks. Replies its number where an earlier change keeps it busy.
async fn bring(mut authority: Store, mut store: Store, mut has: u64) -> Result<Option<u8>, StoreError> {
    loop {
        let mut changes = authority.changes_after(has).await?;
        if has == changes.last {
            return Ok(None);
        }
        if has > changes.last {
            // The authority has lost a change that came as far as here: all is taken back, and what it has now holds.
            changes.floor = has + 1;
        }
        let (number, is_busy) = store.take_changes(has, &changes).await?;
        if is_busy {
            return Ok(Some(store.keys().number()));
        }
        has = number;
    }
}

impl Store {
    /// Up to which change it has all.
    async fn number(&mut self) -> Result<u64, StoreError> {
        let number: Option<u64> = self.read("HGET", redis::cmd("HGET").arg(self.keys().policy()).arg("number")).await?;
        Ok(number.unwrap_or(0))
    }

    async fn changes_after(&mut self, number: u64) -> Result<Changes, StoreError> {
        let number = number.to_string();
        let reply =
            self.reading("drip__changed", &[self.keys().policy()], &[b"".as_slice(), number.as_bytes()]).await?;
        let shown = unexpected("drip__changed", &reply);
        let (newest, floor, upto, list) = redis::from_redis_value(reply).map_err(|_| shown)?;
        Ok(Changes { last: newest, floor, upto, list })
    }

    async fn take_changes(&mut self, after: u64, changes: &Changes) -> Result<(u64, bool), StoreError> {
        let head = [after, changes.floor, changes.upto].map(|number| number.to_string());
        let mut args = vec![b"".as_slice()];
        args.extend(head.iter().map(String::as_bytes));
        args.extend(changes.list.iter().map(Vec::as_slice));
        let reply = self.function("drip__copy", &[self.keys().policy()], &args).await?;
        let (number, busy) = <(u64, u8)>::from_redis_value_ref(&reply).map_err(|_| unexpected("drip__copy", &reply))?;
        Ok((number, busy == 1))
    }
}
