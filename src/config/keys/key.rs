//! A key of the configuration, and what may be written for it.

use std::fmt;
use std::time::Duration;

use crate::model::duration;

/// A key of a section.
#[derive(Debug)]
pub struct Key {
    /// The name, as it is written.
    pub name: &'static str,
    /// The value that applies where the key is not written, as TOML; empty: there is no default.
    pub default: &'static str,
    /// The values that are allowed.
    pub allowed: Allowed,
    /// The purpose, in a sentence or two.
    pub about: &'static str,
}

impl Key {
    /// Whether the key must be written: its purpose says so.
    pub fn is_required(&self) -> bool {
        self.about.ends_with("It must be there.")
    }

    /// The default as JSON; `None`: there is none.
    pub fn default_value(&self) -> Option<serde_json::Value> {
        let table = format!("it = {}", self.default).parse::<toml::Table>().ok()?;
        serde_json::to_value(table.get("it")?).ok()
    }

    /// The examples that the sentence of its allowed values has, as in "20ms".
    pub fn examples(&self) -> Vec<String> {
        let Allowed::Words(hint) = self.allowed else { return Vec::new() };
        let Some((_, examples)) = hint.split_once("as in \"").or_else(|| hint.split_once("such as \"")) else {
            return Vec::new();
        };
        examples.split('"').step_by(2).take(1).map(str::to_owned).collect()
    }
}

/// The values that a key allows.
#[derive(Debug)]
pub enum Allowed {
    /// A whole number within bounds.
    Number(u64, u64),
    /// A duration within bounds.
    Duration(Duration, Duration),
    /// Values that a sentence describes.
    Words(&'static str),
    /// A table with keys of its own.
    Table(&'static [Key]),
}

/// Display the allowed values, as error messages say them.
impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(least, most) => write!(f, "write a whole number, {least} to {most}"),
            Self::Duration(least, most) => write!(
                f,
                "write a whole number and a unit (us ms s m h d), as in \"20ms\": {} to {}",
                duration::show(*least),
                duration::show(*most)
            ),
            Self::Words(words) => f.write_str(words),
            Self::Table(_) => f.write_str("write a table"),
        }
    }
}

/// A key of a table.
pub(super) const fn key(name: &'static str, default: &'static str, allowed: Allowed, about: &'static str) -> Key {
    Key { name, default, allowed, about }
}

/// A key without a default; `hint` describes the allowed values.
pub(super) const fn text(name: &'static str, hint: &'static str, about: &'static str) -> Key {
    key(name, "", Allowed::Words(hint), about)
}
