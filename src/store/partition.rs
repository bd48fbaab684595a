//! Which keys: one self-contained set of them on a server. Today a server has one under each prefix.

use super::keys::queues_under;
use crate::config::RedisSettings;

/// A set of keys; their names are its methods, spelled in [`super::keys`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    prefix: String,
    /// Kept, because it is asked for with each report and each call.
    pub(super) queues: String,
}

impl Partition {
    /// The keys that the configuration names.
    #[must_use]
    pub fn of(settings: &RedisSettings) -> Self {
        Self::new(&settings.prefix)
    }

    /// The keys under `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), queues: queues_under(prefix) }
    }

    /// What every key begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}
