//! What is set at run time, a row a value.

use serde::Serialize;
use utoipa::ToSchema;

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

/// The same for machines, times in RFC 3339.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SetValue)]
pub struct Said {
    /// For which name or glob.
    #[serde(rename = "match")]
    pattern: String,
    /// Whether that is of budgets.
    budget: bool,
    /// Whether it is a glob.
    glob: bool,
    /// Which key; `pause` and `close` too.
    key: String,
    /// The value, as an operator writes it; empty for a pause or a closure.
    value: String,
    /// Since when.
    since: String,
    /// When it ends by itself.
    until: Option<String>,
    /// user@host, or who came over HTTP.
    by: String,
    /// Who Redis says that was.
    user: String,
    /// Why.
    reason: Option<String>,
}

impl Row<'_> {
    /// For machines.
    #[must_use]
    pub fn said(&self) -> Said {
        Said {
            pattern: self.subject.pattern.to_owned(),
            budget: self.subject.is_budget,
            glob: self.is_glob,
            key: self.key.to_owned(),
            value: self.stands.text.clone(),
            since: of_micros(&self.stands.since),
            until: self.stands.till.as_deref().map(of_micros),
            by: self.stands.by.clone(),
            user: self.stands.user.clone(),
            reason: self.stands.reason.clone(),
        }
    }
}

/// As a list of objects.
#[must_use]
pub fn as_json(rows: &[Row]) -> serde_json::Value {
    rows.iter().map(|row| serde_json::json!(row.said())).collect()
}
