//! `set` and `unset`: override keys of a policy at run time, and return to the file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::change::{ChangeError, apply, draft};
use super::changed::Changed;
use super::target::Target;
use crate::config::settings::{self, Setting};
use crate::model::subject::Subject;
use crate::store::Partitions;
use crate::store::change::{Change, SetTo};

/// Set keys of a policy.
#[derive(Debug, Clone)]
pub struct SetRequest {
    /// The buckets or budgets.
    pub target: Target,
    /// The keys and their values.
    pub values: Vec<Setting>,
    /// How long they apply; without it until somebody unsets them.
    pub lasts: Option<Duration>,
    /// The reason that the operator gave, if any.
    pub reason: Option<String>,
}

/// Return keys to the values of the file.
#[derive(Debug, Clone)]
pub struct UnsetRequest {
    /// The buckets or budgets.
    pub target: Target,
    /// The keys; an empty list stands for all but a pause and a closure.
    pub keys: Vec<String>,
    /// The reason that the operator gave, if any.
    pub reason: Option<String>,
}

impl SetRequest {
    /// Set the keys, in the name of `by`.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: nothing was changed, or not everywhere.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Changed, ChangeError> {
        let change = Change {
            set: stored(&self.values),
            for_us: self.lasts.map(|lasts| u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX)),
            asks: Some("others"),
            ..draft(store, "set", &self.target, by, self.reason.as_ref()).await
        };
        apply(store, &change).await
    }

    /// The outcome for people, a line a key.
    pub fn describe(&self, changed: &Changed) -> Vec<String> {
        let given = self.values.iter().map(|one| (one.key.as_str(), one.text.as_str())).collect();
        changed.describe(&given, self.lasts.is_some())
    }
}

impl UnsetRequest {
    /// Unset the keys, in the name of `by`.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: nothing was changed, or not everywhere.
    pub async fn run(&self, store: &mut Partitions, by: &str) -> Result<Changed, ChangeError> {
        let change = Change {
            unset: self.keys.clone(),
            unset_all: self.keys.is_empty(),
            asks: Some("others"),
            ..draft(store, "unset", &self.target, by, self.reason.as_ref()).await
        };
        apply(store, &change).await
    }

    /// The outcome for people, a line a key.
    pub fn describe(&self, changed: &Changed) -> Vec<String> {
        changed.describe(&BTreeMap::new(), false)
    }
}

/// Settings in the form that the functions take.
pub(super) fn stored(values: &[Setting]) -> BTreeMap<String, SetTo> {
    let value = |one: &Setting| (one.key.clone(), SetTo { text: one.text.clone(), policy: one.policy.clone() });
    values.iter().map(value).collect()
}

/// Read keys and values from a JSON object, with the same checks as the file.
///
/// # Errors
///
/// The first key that cannot be a key or whose value holds a null; otherwise all problems at once.
pub fn values_of_json(given: &Map<String, Json>, subject: &Subject) -> Result<Vec<Setting>, String> {
    let is_key = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let entry = |(key, value): (&String, &Json)| match as_toml(value) {
        _ if !is_key(key) => Err(format!("{key:?} is not a key of a policy")),
        Some(value) => Ok((key.clone(), value)),
        None => Err(format!("{key}: null sets nothing; DELETE …/settings/{key} takes it back to the file")),
    };
    let table = given.iter().map(entry).collect::<Result<toml::Table, _>>()?;
    settings::of_table(table, subject).map_err(|why| why.to_string())
}

/// A JSON value as a TOML value; `None` if it holds a null. An integer that TOML cannot hold becomes a text, which keys
/// of numbers refuse.
fn as_toml(value: &Json) -> Option<toml::Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(yes) => toml::Value::Boolean(*yes),
        Json::String(text) => toml::Value::String(text.clone()),
        Json::Number(number) if number.is_f64() => toml::Value::Float(number.as_f64()?),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| toml::Value::String(number.to_string()), toml::Value::Integer)
        }
        Json::Array(all) => toml::Value::Array(all.iter().map(as_toml).collect::<Option<_>>()?),
        Json::Object(all) => {
            let members = all.iter().map(|(key, value)| Some((key.clone(), as_toml(value)?)));
            toml::Value::Table(members.collect::<Option<_>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ACME: Subject = Subject { is_budget: false, pattern: "acme" };

    fn read(json: &Json) -> Result<Vec<(String, String)>, String> {
        let values = values_of_json(json.as_object().expect("an object"), &ACME)?;
        Ok(values.into_iter().map(|one| (one.key, one.text)).collect())
    }

    #[test]
    fn a_json_object_means_what_the_words_of_the_command_mean() {
        let given = json!({
            "rate": "5/s", "capacity": 100, "ordered": true, "within": "a \"b\"",
            "backoff": { "initial": "1s", "max": "10m" }, "quota": ["1000/d", "5/h"],
        });
        let words = [
            "rate=5/s",
            "capacity=100",
            "ordered=true",
            "within=\"a \\\"b\\\"\"",
            "backoff={ initial = '1s', max = '10m' }",
            "quota=['1000/d', '5/h']",
        ];
        let mut expected = settings::parse(&words.map(str::to_owned), &ACME).expect("good");
        let mut values = values_of_json(given.as_object().expect("an object"), &ACME).expect("good");
        values.sort_by(|a, b| a.key.cmp(&b.key));
        expected.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(values, expected);
    }

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let why = read(&json!({ "rate": "5/sec", "capcity": 3, "capacity": 1.5 })).expect_err("all of it is wrong");
        for part in [
            "what is to be set: 3 problems",
            "rate: \"5/sec\" is not allowed",
            "capcity: unknown key; did you mean capacity?",
            "capacity: 1.5 is not allowed",
        ] {
            assert!(why.contains(part), "{part} is not in\n{why}");
        }
        let large = read(&json!({ "capacity": u64::MAX })).expect_err("it is too large");
        assert!(large.contains("capacity: \"18446744073709551615\" is not allowed"), "{large}");
    }

    #[test]
    fn a_null_and_what_can_be_no_key_are_refused_with_the_way_out() {
        let null = "quota: null sets nothing; DELETE …/settings/quota takes it back to the file";
        assert_eq!(read(&json!({ "quota": [1, null] })), Err(null.to_owned()));
        assert_eq!(read(&json!({ "a=b": 1 })), Err("\"a=b\" is not a key of a policy".to_owned()));
    }
}
