//! Reaping: jobs whose lease has ended are taken back, finished entries are deleted, and slots that nobody holds are freed.

use std::time::Duration;

use super::note::{FlatNote, Note};
use crate::store::client::Store;
use crate::store::connection::{StoreError, Text};
use crate::store::reply::{count, wait};

/// The result of a part of a reaping pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Where the pass goes on; `None` when it is over.
    pub next: Option<(String, String)>,
    /// The time until the next lease may end, of the entries seen.
    pub left: Option<Duration>,
    /// Jobs taken back.
    pub taken_back: u64,
    /// Finished entries deleted.
    pub removed: u64,
    /// Entries in the streams seen.
    pub live: u64,
    /// The length of the dead stream.
    pub dead: u64,
    /// Notes for the log.
    pub notes: Vec<Note>,
    /// Whether entries hold slots.
    pub holds_slots: bool,
    /// Whether keys may have a time to live, which [`Store::keep_keys`] takes away. Only the first part of a pass says so.
    pub keys_may_end: bool,
}

/// The result of a part of a pass over the slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimedSlots {
    /// The time until the next part; `None` when no entry holds a slot.
    pub wait: Option<Duration>,
    /// Entries that held a slot and were in flight no more.
    pub freed: u64,
    /// Notes for the log.
    pub notes: Vec<Note>,
}

impl Store {
    /// A part of a reaping pass: from its beginning, or from where the part before ended.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn reap(&mut self, take_back: bool, from: Option<(String, String)>) -> Result<Reaped, StoreError> {
        let (route, id) = from.unwrap_or_default();
        self.call_function("drip__reap", &[self.keys().policy()], ("", take_back, route, id))
            .await?
            .first(10)
            .decode_with(reaped)
    }

    /// A part of a pass over the entries that hold slots: those that are in flight no more are freed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn reclaim_slots(&mut self) -> Result<ReclaimedSlots, StoreError> {
        self.call_function("drip__heal", &[self.keys().policy()], "").await?.decode_with(reclaimed_slots)
    }

    /// A part of a pass over the keys of dripd: those with a time to live lose it. Replies whether there is more, and notes that name them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn keep_keys(&mut self) -> Result<(bool, Vec<Note>), StoreError> {
        let reply = self.call_function("drip__keep", &[self.keys().policy()], "").await?;
        let (more, notes): (i64, Vec<FlatNote>) = reply.decode()?;
        Ok((more == 1, Note::all(notes)))
    }
}

/// The route and the entry at which the pass goes on, five numbers, the notes, and whether entries hold slots and keys may end.
type ReapReply = (Text, Text, i64, i64, i64, i64, i64, Vec<FlatNote>, i64, i64);

fn reaped(
    (Text(route), Text(id), left, taken_back, removed, live, dead, notes, holds_slots, keys_may_end): ReapReply,
) -> Option<Reaped> {
    Some(Reaped {
        next: (!route.is_empty()).then_some((route, id)),
        left: wait(left, Duration::from_millis),
        taken_back: count(taken_back)?,
        removed: count(removed)?,
        live: count(live)?,
        dead: count(dead)?,
        notes: Note::all(notes),
        holds_slots: holds_slots == 1,
        keys_may_end: keys_may_end == 1,
    })
}

fn reclaimed_slots((wait_ms, freed, notes): (i64, i64, Vec<FlatNote>)) -> Option<ReclaimedSlots> {
    Some(ReclaimedSlots { wait: wait(wait_ms, Duration::from_millis), freed: count(freed)?, notes: Note::all(notes) })
}
