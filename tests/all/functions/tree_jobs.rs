//! The reference model of `tree_model`: jobs, as they wait and as they have left.

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) body: String,
    pub(super) cost: u64,
    pub(super) deadline: Option<u64>,
    /// When it could leave at the earliest, as it was answered at the accept.
    pub(super) eta: u64,
    /// Somebody took it back.
    pub(super) is_cancelled: bool,
}

impl Job {
    pub(super) fn plain(body: &str) -> Self {
        Self { body: body.into(), cost: 1, deadline: None, eta: 0, is_cancelled: false }
    }

    /// Whether its deadline is over.
    pub(super) fn is_late(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline < now)
    }
}

/// A job that left its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) cost: u64,
    /// What its bucket was charged.
    pub(super) charged: u64,
    pub(super) due: u64,
    pub(super) at: u64,
    /// Which try it is, and how often it was given back.
    pub(super) attempt: u64,
    pub(super) kept: u64,
    pub(super) deadline: Option<u64>,
}
