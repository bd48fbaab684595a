//! The outcome of commands that change settings.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::moment::of_micros;
use crate::model::subject::Subject;
use crate::store::change::{Change, ChangeOutcome, Other, Out};

/// What became of a change of settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Changed {
    /// The name or the glob.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whether it is about budgets.
    pub budget: bool,
    /// Whether it is a glob.
    pub glob: bool,
    /// Whether anything was changed: not where nothing of it was set.
    pub done: bool,
    /// The keys, each before and after.
    pub keys: Vec<KeyChange>,
    /// Keys for which something else holds: what is set for a name lies over what is set for a glob.
    pub in_force_instead: BTreeMap<String, InForce>,
    /// The name or glob that pauses, or closes, it now.
    #[serde(serialize_with = "pattern_of")]
    pub stopped_by: Option<String>,
    /// Of a pause of buckets: jobs that have left already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs_out: Option<Out>,
    /// That no job waits in a bucket of this name, which may be misspelt; or that it is a glob which does not match the
    /// bucket of this very name, and how that one is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A key that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyChange {
    /// Which one; `pause` and `close` too.
    pub key: String,
    /// What was set before, as the file would have it; empty: nothing.
    pub before: String,
    /// What is set now; empty: nothing.
    pub after: String,
}

/// What holds instead of what was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct InForce {
    /// The value.
    pub value: String,
    /// The name or the glob for which it is set.
    #[serde(rename = "match", serialize_with = "pattern_of_stored")]
    pub pattern: String,
    /// When it ends by itself, RFC 3339.
    pub until: Option<String>,
}

/// Serialize a stored subject without the braces of budgets: the field `budget` tells its kind.
fn pattern_of_stored<S: Serializer>(stored: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(Subject::of_stored(stored).pattern)
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn pattern_of<S: Serializer>(stored: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    stored.as_deref().map(|stored| Subject::of_stored(stored).pattern).serialize(serializer)
}

impl InForce {
    fn of(other: Other) -> Self {
        Self { value: other.text, pattern: other.pattern, until: other.till.as_deref().map(of_micros) }
    }

    /// ` until …` if it ends by itself, otherwise nothing.
    fn until_in_words(&self) -> String {
        self.until.as_ref().map_or_else(String::new, |until| format!(" until {until}"))
    }
}

impl Changed {
    /// The outcome of a change; `None`: another change still spreads, and nothing was done.
    pub(super) fn of(change: &Change, told: ChangeOutcome) -> Option<Self> {
        let (done, keys, stopped_by, others) = match told {
            ChangeOutcome::Done { keys, stopped_by, others } => (true, keys, stopped_by, others),
            ChangeOutcome::Nothing { stopped_by } => (false, Vec::new(), stopped_by, BTreeMap::new()),
            ChangeOutcome::Busy => return None,
        };
        let subject = Subject::of_stored(&change.pattern);
        Some(Self {
            pattern: subject.pattern.to_owned(),
            budget: subject.is_budget,
            glob: change.is_glob,
            done,
            keys: keys.into_iter().map(|(key, before, after)| KeyChange { key, before, after }).collect(),
            in_force_instead: others.into_iter().map(|(key, other)| (key, InForce::of(other))).collect(),
            stopped_by,
            jobs_out: None,
            note: None,
        })
    }

    /// The name or the glob, and whether it is of budgets.
    pub fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.budget, pattern: &self.pattern }
    }

    /// One line for each key, for people: the value that is in force now, and the value before. `given` holds the
    /// values that were set, by key; `is_timed` says whether they end by themselves.
    pub(super) fn describe(&self, given: &BTreeMap<&str, &str>, is_timed: bool) -> Vec<String> {
        let subject = self.subject();
        if !self.done {
            let note = self.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            return vec![format!("{subject}: nothing of that was set{note}")];
        }
        let describe = |change: &KeyChange| {
            let KeyChange { key, before, after } = change;
            let (before, other) = (or_file(before), self.in_force_instead.get(key));
            let value = match (given.get(key.as_str()), other) {
                (Some(set), Some(over)) if !is_timed => {
                    format!("{set} is set, but {} lies over it{}", over.value, over.until_in_words())
                }
                (Some(_), Some(timed)) => format!("{after}{} (before: {before})", timed.until_in_words()),
                (None, Some(other)) => {
                    let (of, until) = (Subject::of_stored(&other.pattern).quoted(), other.until_in_words());
                    format!("{}, set for {of}{until} (before: {before})", other.value)
                }
                (_, None) => format!("{} (before: {before})", or_file(after)),
            };
            format!("{subject}: {key} = {value}")
        };
        let mut lines: Vec<String> = self.keys.iter().map(describe).collect();
        if let (Some(last), Some(note)) = (lines.last_mut(), &self.note) {
            *last += &format!("; {note}");
        }
        lines
    }
}

fn or_file(text: &str) -> &str {
    if text.is_empty() { "as in the file" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(others: &[(&str, &str, &str, Option<&str>)]) -> Changed {
        let change = Change { pattern: "{twilio}".to_owned(), ..Change::default() };
        let keys = vec![("rate".to_owned(), String::new(), "\"5/s\"".to_owned())];
        let other = |(key, text, pattern, till): &(&str, &str, &str, Option<&str>)| {
            let (text, pattern, till) = ((*text).to_owned(), (*pattern).to_owned(), till.map(str::to_owned));
            ((*key).to_owned(), Other { text, pattern, till })
        };
        let others = others.iter().map(other).collect();
        Changed::of(&change, ChangeOutcome::Done { keys, stopped_by: Some("{tw*}".to_owned()), others })
            .expect("it is done")
    }

    #[test]
    fn stored_subjects_are_serialised_without_braces() {
        let json = serde_json::to_value(changed(&[("rate", "1", "{tw*}", None)])).expect("JSON");
        assert_eq!((&json["match"], &json["budget"]), (&"twilio".into(), &true.into()));
        assert_eq!((&json["stopped_by"], &json["in_force_instead"]["rate"]["match"]), (&"tw*".into(), &"tw*".into()));
        assert_eq!(json.get("jobs_out"), None);
    }

    #[test]
    fn a_line_says_what_is_in_force_and_what_was_before() {
        let (set, timed) = (BTreeMap::from([("rate", "\"5/s\"")]), ("rate", "\"1/s\"", "{tw*}", Some("1000000")));
        let line =
            |changed: &Changed, given: &BTreeMap<&str, &str>, is_timed| changed.describe(given, is_timed).remove(0);
        assert_eq!(line(&changed(&[]), &set, false), "budget twilio: rate = \"5/s\" (before: as in the file)");
        let until = "until 1970-01-01T00:00:01Z";
        assert_eq!(
            line(&changed(&[timed]), &set, false),
            format!("budget twilio: rate = \"5/s\" is set, but \"1/s\" lies over it {until}")
        );
        assert_eq!(
            line(&changed(&[timed]), &set, true),
            format!("budget twilio: rate = \"5/s\" {until} (before: as in the file)")
        );
        assert_eq!(
            line(&changed(&[timed]), &BTreeMap::new(), false),
            format!("budget twilio: rate = \"1/s\", set for budget \"tw*\" {until} (before: as in the file)")
        );
        let nothing = Changed { done: false, ..changed(&[]) };
        assert_eq!(nothing.describe(&set, false), ["budget twilio: nothing of that was set"]);
    }
}
