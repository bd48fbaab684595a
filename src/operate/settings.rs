//! What is set at run time, a row a value.

use serde_json::json;

use super::moment::of_micros;
use crate::store::settings::{Settings, Stands};
use crate::words::subject::Subject;

/// A value that is set, with all that is known of it.
pub struct Row<'a> {
    /// For what.
    pub subject: Subject<'a>,
    /// Whether it is a glob.
    pub is_glob: bool,
    /// Which key.
    pub key: &'a str,
    /// The value, since when, by whom and why.
    pub stands: &'a Stands,
}

/// The rows of one name or glob: of each key what ends by itself first, for it lies over the other.
pub fn rows(one: &Settings) -> impl Iterator<Item = Row<'_>> {
    one.keys.iter().flat_map(move |(key, lies)| {
        let stands = lies.timed.iter().chain(&lies.lasting);
        stands.map(move |stands| Row { subject: Subject::of_stored(&one.pattern), is_glob: one.is_glob, key, stands })
    })
}

/// As a list of objects, times in RFC 3339.
#[must_use]
pub fn as_json(rows: &[Row]) -> serde_json::Value {
    let one = |row: &Row| {
        json!({
            "match": row.subject.pattern, "budget": row.subject.is_budget, "glob": row.is_glob, "key": row.key,
            "value": row.stands.text, "since": of_micros(&row.stands.since),
            "until": row.stands.till.as_deref().map(of_micros), "by": row.stands.by, "user": row.stands.user,
            "reason": row.stands.reason,
        })
    };
    rows.iter().map(one).collect()
}
