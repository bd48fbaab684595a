//! `settings`: the values that are set at run time, one row each.

use serde::Serialize;
use utoipa::ToSchema;

use super::moment::of_micros;
use crate::model::glob::Glob;
use crate::model::subject::Subject;
use crate::store::settings::{Settings, Stands};

/// A value that is set, with everything that is known of it.
pub struct Row<'a> {
    /// The buckets or budgets to which it applies.
    pub subject: Subject<'a>,
    /// Whether it is a glob.
    pub is_glob: bool,
    /// The key.
    pub key: &'a str,
    /// The value, since when, by whom and why.
    pub stands: &'a Stands,
}

/// The rows of one name or glob. Of each key the value that ends by itself comes first: it overrides the other.
pub fn rows(one: &Settings) -> impl Iterator<Item = Row<'_>> {
    one.keys.iter().flat_map(move |(key, lies)| {
        let stands = lies.timed.iter().chain(&lies.lasting);
        stands.map(move |stands| Row { subject: Subject::of_stored(&one.pattern), is_glob: one.is_glob, key, stands })
    })
}

/// A value that is set, for programs; times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SetValue {
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

impl From<Row<'_>> for SetValue {
    fn from(row: Row) -> Self {
        Self {
            pattern: row.subject.pattern.to_owned(),
            budget: row.subject.is_budget,
            glob: row.is_glob,
            key: row.key.to_owned(),
            value: row.stands.text.clone(),
            since: of_micros(&row.stands.since),
            until: row.stands.till.as_deref().map(of_micros),
            by: row.stands.by.clone(),
            user: row.stands.user.clone(),
            reason: row.stands.reason.clone(),
        }
    }
}

/// Whether `only` matches the pattern of a stored name or glob, of buckets or of budgets; without `only` all match.
pub fn is_matched(only: Option<&Glob>, stored: &str) -> bool {
    only.is_none_or(|only| only.matches(Subject::of_stored(stored).pattern.as_bytes()))
}
