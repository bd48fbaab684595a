//! Jobs that have left their queue, as the model knows them.

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retry {
    pub(super) ends: u64,
    pub(super) member: String,
    pub(super) delay: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ready {
    pub(super) id: String,
    pub(super) route: String,
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) attempt: u64,
    pub(super) kept: u64,
    pub(super) due: u64,
    pub(super) at: u64,
    pub(super) lease_ms: u64,
    pub(super) first: Option<String>,
    pub(super) taken_ms: Option<u64>,
}
