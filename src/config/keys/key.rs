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
