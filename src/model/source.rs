//! The source of a record: the machine, the file, and the line of each part. The source is stored beside the record,
//! not in it: daemons compare records, and the same policies on another machine, or a few lines further down, are the
//! same record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The machine, the file and the lines that a record was read from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The host name of the machine whose daemon put the record into force.
    pub host: String,
    /// The path of the file; none: the built-in defaults.
    pub path: Option<String>,
    /// `[defaults]`
    #[serde(default)]
    pub defaults: Part,
    /// The `[[bucket]]` entries, in the order of the record.
    #[serde(default)]
    pub buckets: Vec<Part>,
    /// The `[[budget]]` entries, in the order of the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Part>,
    /// `[limits]`
    #[serde(default)]
    pub limits: Part,
}

impl Source {
    /// The names of all variables of the environment that set something.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let parts = [&self.defaults, &self.limits].into_iter().chain(&self.buckets).chain(&self.budgets);
        parts.flat_map(|part| part.variables.values()).map(String::as_str)
    }
}

/// A section of the file, and the keys that it sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The line on which the section begins, from 1; none: the file has no such section.
    pub line: Option<u32>,
    /// The keys that the section sets. For any other key the next section applies, or the built-in default.
    #[serde(default)]
    pub keys: Vec<String>,
    /// The keys that variables of the environment set, over those of the file, each with the name of its variable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
}

impl Part {
    /// Whether the section, or a variable for it, sets a key.
    pub fn names(&self, key: &str) -> bool {
        self.variables.contains_key(key) || self.keys.iter().any(|named| named == key)
    }
}
