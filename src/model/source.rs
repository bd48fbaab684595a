//! Where a record comes from: the machine, the file, and the line of each of its parts. It lies beside the record, not in it:
//! daemons compare records, and the same policies on another machine, or a few lines further down, are the same record.

use serde::{Deserialize, Serialize};

/// Where a record comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The machine of the daemon that put it into force.
    pub host: String,
    /// The file; none: the built-in defaults.
    pub path: Option<String>,
    /// `[defaults]`
    #[serde(default)]
    pub defaults: Part,
    /// The entries of `[[bucket]]`, in the order of the record's.
    #[serde(default)]
    pub buckets: Vec<Part>,
    /// The entries of `[[budget]]`, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Part>,
    /// `[limits]`
    #[serde(default)]
    pub limits: Part,
}

/// A section of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The line on which it begins, the first one is 1; none: it is not in the file.
    pub line: Option<u32>,
    /// The keys that it names; of what it does not name the next section, or the built-in default, holds.
    #[serde(default)]
    pub keys: Vec<String>,
}

impl Part {
    /// Whether this section says what holds for a key.
    pub fn names(&self, key: &str) -> bool {
        self.keys.iter().any(|named| named == key)
    }
}
