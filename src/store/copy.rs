//! What is set, and the record, in every partition. The authority counts each change of them; whatever lags behind is brought what it
//! lacks, by daemons once a second and by the commands that change something.

use std::time::{Duration, Instant};

use redis::FromRedisValue as _;
use tracing::warn;

use super::ops::Put;
use super::reply::unexpected;
use super::{Store, StoreError, Whole};
use crate::words::policy::Record;
use crate::words::source::Source;

/// The wait for a change that still spreads in a partition.
const WHILE_IT_SPREADS: Duration = Duration::from_millis(20);

/// How much one call takes back, and how much of that the log names.
const TAKEN_BACK: usize = 100;
const SHOWN: usize = 5;

/// What stands for all globs that are set.
const GLOBS: &[u8] = b"{globs";

/// Changes of the authority, as one call tells them.
struct Changes {
    /// The number of the last one there is.
    last: u64,
    /// What was unset up to this number may be told no more, or was lost.
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
        let (last, _) = authority.stands_at().await?;
        let bring_one = async |mut store: Store| {
            let is_level = store.stands_at().await?.0 == last;
            if is_level || store.keys().is_authority() {
                return Ok(Brought::default());
            }
            self.bring(store).await
        };
        let brought = self.all(bring_one).await?;
        if brought.iter().any(|one| one.was_ahead) {
            warn!(
                "partition 0 has lost the last changes of what is set: the others take over what it has; look at `dripd settings`"
            );
        }
        Ok(Carried { busy: brought.into_iter().filter_map(|one| one.busy).collect() })
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

/// What came of one partition.
#[derive(Default)]
struct Brought {
    /// Its number, where an earlier change keeps it busy.
    busy: Option<u8>,
    /// It had a change that the authority has lost.
    was_ahead: bool,
}

impl Whole {
    /// Bring one partition what it lacks.
    async fn bring(&self, mut store: Store) -> Result<Brought, StoreError> {
        let (mut authority, mut brought, mut is_sure) = (self.authority(), Brought::default(), false);
        loop {
            let (has, began_at) = store.stands_at().await?;
            let changes = authority.changes_after(has).await?;
            if has == changes.last {
                return Ok(brought);
            }
            // The authority may have lost a change that came as far as here: what it has now holds.
            let is_ahead = has > changes.last;
            if is_ahead && !is_sure {
                // Or it was replaced, and nobody has told it yet: then its successor has counted that change.
                if !store.agrees_on(&mut authority).await {
                    self.look_anew().await;
                    return Ok(brought);
                }
                is_sure = true;
                continue; // what was read before it was asked says nothing
            }
            brought.was_ahead |= is_ahead;
            let is_busy = if is_ahead || (has > 0 && has < changes.floor && began_at != changes.floor) {
                begin_anew(&mut authority, &mut store, has, &changes).await?
            } else {
                store.take_changes(has, &changes).await?
            };
            if is_busy {
                brought.busy = Some(store.keys().number());
                return Ok(brought);
            }
        }
    }
}

/// Take back in a partition what the authority does not have set; it is told all the rest again, from the first change on. What is set in
/// both stays in force meanwhile. Replies whether an earlier change keeps it busy.
async fn begin_anew(
    authority: &mut Store,
    store: &mut Store,
    mut has: u64,
    changes: &Changes,
) -> Result<bool, StoreError> {
    let gone = store.not_set_in(authority).await?;
    if !gone.is_empty() {
        let (partition, count) = (store.keys().number(), gone.len());
        let first: Vec<_> = gone.iter().take(SHOWN).map(|what| String::from_utf8_lossy(what)).collect();
        warn!(partition, count, first = first.join(" "), "what is set here and not in partition 0 is taken back");
    }
    let mut pages: Vec<&[Vec<u8>]> = gone.chunks(TAKEN_BACK).collect();
    if pages.is_empty() {
        pages.push(&[]);
    }
    for (n, page) in pages.iter().enumerate() {
        let mut list = Vec::new();
        for (what, number) in page.iter().zip(has + 1..) {
            list.extend([number.to_string().into_bytes(), what.clone(), Vec::new(), Vec::new(), Vec::new()]);
        }
        let upto = if n + 1 == pages.len() { 0 } else { has + page.len() as u64 };
        let back = Changes { last: changes.last, floor: changes.floor, upto, list };
        if store.take_changes(has, &back).await? {
            return Ok(true);
        }
        has = upto;
    }
    Ok(false)
}

impl Store {
    /// Up to which change it has all, and the floor of the authority when it began to take them.
    async fn stands_at(&mut self) -> Result<(u64, u64), StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(self.keys().policy()).arg("number").arg("began_at");
        let (number, began_at): (Option<u64>, Option<u64>) = self.read("HMGET", &command).await?;
        Ok((number.unwrap_or(0), began_at.unwrap_or(0)))
    }

    /// What is set here and not there: names, budgets, and globs in one.
    async fn not_set_in(&mut self, authority: &mut Self) -> Result<Vec<Vec<u8>>, StoreError> {
        let (mut gone, mut cursor) = (Vec::new(), 0_u64);
        loop {
            let mut page = redis::cmd("HSCAN");
            page.arg(self.keys().settings()).arg(cursor).arg("COUNT").arg(TAKEN_BACK);
            let (next, pairs): (u64, Vec<(Vec<u8>, redis::Value)>) = self.read("HSCAN", &page).await?;
            if !pairs.is_empty() {
                let mut there = redis::cmd("HMGET");
                there.arg(authority.keys().settings());
                for (what, _) in &pairs {
                    there.arg(what);
                }
                let found: Vec<Option<redis::Value>> = authority.read("HMGET", &there).await?;
                gone.extend(
                    pairs.into_iter().zip(found).filter(|(_, there)| there.is_none()).map(|((what, _), _)| what),
                );
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let has_globs = async |store: &mut Self| -> Result<bool, StoreError> {
            store.read("EXISTS", redis::cmd("EXISTS").arg(store.keys().globs())).await
        };
        if has_globs(self).await? && !has_globs(authority).await? {
            gone.push(GLOBS.to_vec());
        }
        Ok(gone)
    }

    async fn changes_after(&mut self, number: u64) -> Result<Changes, StoreError> {
        let number = number.to_string();
        let reply =
            self.reading("drip__changed", &[self.keys().policy()], &[b"".as_slice(), number.as_bytes()]).await?;
        let shown = unexpected("drip__changed", &reply);
        let (newest, floor, upto, list) = redis::from_redis_value(reply).map_err(|_| shown)?;
        Ok(Changes { last: newest, floor, upto, list })
    }

    /// Take some in. Replies whether an earlier change keeps it busy. (Where somebody else was here nothing is taken.)
    async fn take_changes(&mut self, after: u64, changes: &Changes) -> Result<bool, StoreError> {
        let head = [after, changes.floor, changes.upto].map(|number| number.to_string());
        let mut args = vec![b"".as_slice()];
        args.extend(head.iter().map(String::as_bytes));
        args.extend(changes.list.iter().map(Vec::as_slice));
        let reply = self.function("drip__copy", &[self.keys().policy()], &args).await?;
        let (_, busy) = <(u64, u8)>::from_redis_value_ref(&reply).map_err(|_| unexpected("drip__copy", &reply))?;
        Ok(busy == 1)
    }
}
