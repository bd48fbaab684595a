//! The reasons for which jobs wait: a word for programs, and a sentence for people.

use serde::Serialize;

use crate::store::explain::Level;

/// Something that keeps jobs from leaving, or from coming in, or that surprises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// A key holds something else than it should.
    WrongType,
    /// Nothing waits.
    Empty,
    /// An operator stopped what leaves.
    Paused,
    /// Redis takes no writes.
    NoWrites,
    /// No daemon is alive.
    NoDaemon,
    /// Only failed jobs wait, and their back-off runs.
    BackingOff,
    /// Only delayed jobs wait, or the first of them comes before any failed job.
    Delayed,
    /// The other side asked for a pause.
    Slow,
    /// The other side says that no more, or not so soon, are let through.
    Told,
    /// As many have left as may in a window of the calendar.
    Quota,
    /// Its last turn failed, and it is tried again.
    Parked,
    /// The rate.
    Rate,
    /// Its budgets cannot be found.
    Refused,
    /// As many jobs are in flight as may be.
    Slot,
    /// Its share of a budget above it.
    Share,
    /// The route is full: workers are away.
    Held,
    /// Nothing: the next job is due.
    Due,
    /// An operator stopped what comes in.
    Closed,
    /// No place is free.
    Full,
    /// It holds more than its capacity, which was lowered.
    Lowered,
    /// A change of policies has not reached every bucket.
    Spreading,
    /// The file at hand is not what is obeyed.
    AnotherFile,
    /// No record is stored.
    NoRecord,
}

impl Binding {
    /// The word for programs, as in JSON.
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| Some(word.as_str()?.to_owned())).unwrap_or_default()
    }
}

/// A binding with the sentence that explains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The binding.
    pub binding: Binding,
    /// The sentence; empty where the sentence of another reason says it already.
    pub words: String,
    /// The kind and the name of the level of the chain that the reason is about; `None`: the bucket.
    pub at: Option<(String, String)>,
}

impl Reason {
    /// A reason about the bucket.
    pub(super) fn new(binding: Binding, words: String) -> Self {
        Self { binding, words, at: None }
    }

    /// A reason about a level of the chain.
    pub(super) fn about(level: &Level, binding: Binding, words: String) -> Self {
        Self { binding, words, at: Some((level.kind.clone(), level.name.clone())) }
    }
}
