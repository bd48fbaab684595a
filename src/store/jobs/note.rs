//! Notes: things that the functions met and left alone, for the log.

use serde::Deserialize;

use crate::store::connection::{Text, is_forbidden};
use crate::store::reply::named;

/// Something that a function met and left alone: one of its kind, with their number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Note {
    /// Of which kind.
    pub kind: NoteKind,
    /// The key, the stream or the entry.
    pub subject: String,
    /// The error, where there was one.
    pub detail: String,
    /// How many of the kind the call met.
    pub count: u64,
}

/// The subject of a note; each kind has advice of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoteKind {
    /// A queue's name is no bucket.
    BadName,
    /// A key of dripd's, or a queue, is of another type.
    WrongType,
    /// A stream does not take an entry.
    Refused,
    /// A bucket's turn raised an error.
    Raised,
    /// An entry was deleted while a worker held it.
    Vanished,
    /// The list of a route may not be searched for jobs.
    NotSearched,
    /// The group of a route was moved past entries that no worker had read.
    Skipped,
    /// A key of dripd had a time to live, which was taken away.
    Expires,
    /// The queue of a bucket with work is gone.
    Emptied,
    /// Something was stored by a newer version.
    Newer,
    /// A bucket lets nothing out: its budgets cannot be found.
    NoBudget,
    /// A kind that only a newer library knows.
    #[serde(untagged)]
    Other(String),
}

/// A note as the functions reply it: kind, subject, detail, and how many.
pub(super) type FlatNote = (Text, Text, Text, u64);

impl Note {
    pub(super) fn all(flat: Vec<FlatNote>) -> Vec<Self> {
        flat.into_iter().filter_map(named).collect()
    }

    /// Whether the user of the connection lacks a right: then nothing is wrong with the key.
    pub fn is_about_rights(&self) -> bool {
        is_forbidden(&self.detail)
    }
}
