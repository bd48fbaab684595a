//! What an operator sets at run time: `key=value` words, checked by the same code as the file.

use serde_json::{Map, Value as Json};

use super::BadConfig;
use super::policies::read_policy;
use super::section::{Problems, Section};
use crate::words::policy::Policy;

/// A key, and the fields of a stored policy that it stands for.
const KEYS: &[(&str, &[&str])] = &[
    ("rate", &["count", "period_us"]),
    ("capacity", &["capacity"]),
    ("lease", &["lease_ms"]),
    ("attempts", &["attempts"]),
    ("backoff", &["backoff_initial_us", "backoff_max_us"]),
    ("overflow", &["overflow"]),
    ("route", &["route"]),
    ("catch_up", &["catch_up_us"]),
    ("admit", &["admit"]),
];

/// One key that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in `[[bucket]]`.
    pub key: String,
    /// The value as TOML.
    pub text: String,
    /// The fields of a policy that it stands for, as the functions read them.
    pub policy: Json,
}

/// The keys that can be set.
pub fn keys() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|(key, _)| *key)
}

/// The value of a word: as TOML, where quotes may be left out for plain text.
fn value_of(text: &str) -> toml::Value {
    let as_toml = |text: &str| format!("value = {text}").parse::<toml::Table>().ok()?.remove("value");
    as_toml(text).unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Read `key=value` words.
///
/// # Errors
///
/// Every problem at once: words without a `=`, keys that do not exist, values that are not allowed, a key that is given twice.
pub fn parse(words: &[String]) -> Result<Vec<Setting>, BadConfig> {
    let (mut problems, mut table) = (Problems::default(), toml::Table::new());
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            problems.add(format!("{word:?} has no =; write key=value, as in rate=5/s"));
            continue;
        };
        if table.insert(key.trim().to_owned(), value_of(value.trim())).is_some() {
            problems.add(format!("{key} is given twice"));
        }
    }
    let given = table.clone();
    let mut section = Section::new("", table, &[super::keys::POLICY]);
    let policy = read_policy(&mut section, &Policy::default(), &mut problems);
    section.finish(&mut problems);
    if !problems.is_empty() {
        return Err(BadConfig { source: "what is to be set".to_owned(), problems: problems.into_list() });
    }
    let stored = serde_json::to_value(&policy).expect("a policy is text and numbers");
    Ok(given.iter().map(|(key, value)| setting(key, value, &stored)).collect())
}

fn setting(key: &str, value: &toml::Value, stored: &Json) -> Setting {
    let (_, fields) = KEYS.iter().find(|(known, _)| *known == key).expect("read_policy knows no other key");
    let is_given = |field: &str| match (key, value.as_table()) {
        ("backoff", Some(parts)) => parts.keys().any(|part| field == format!("backoff_{part}_us")),
        _ => true,
    };
    let given = fields.iter().filter(|field| is_given(field));
    let policy: Map<String, Json> = given.map(|field| ((*field).to_owned(), stored[*field].clone())).collect();
    Setting { key: key.to_owned(), text: value.to_string(), policy: Json::Object(policy) }
}

/// Read the names of keys that are to be taken back.
///
/// # Errors
///
/// Every word that is no key, at once.
pub fn parse_keys(words: &[String]) -> Result<Vec<String>, BadConfig> {
    let unknown = words.iter().filter(|word| keys().all(|key| key != word.as_str()));
    let known = keys().collect::<Vec<_>>().join(", ");
    let problems: Vec<_> = unknown.map(|word| format!("{word:?} is no key; write some of {known}")).collect();
    if problems.is_empty() {
        Ok(words.to_vec())
    } else {
        Err(BadConfig { source: "what is to be unset".to_owned(), problems })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn values_are_toml_and_quotes_may_be_left_out() {
        let given =
            ["rate=5/s", "capacity=7", "lease = \"2m\"", "backoff={ initial = '2s' }", "admit=[]", "route='mail'"];
        let mut settings = parse(&words(&given)).expect("good");
        settings.sort_by(|a, b| a.key.cmp(&b.key));
        let shown: Vec<_> = settings.iter().map(|s| (s.key.as_str(), s.text.as_str(), s.policy.clone())).collect();
        assert_eq!(
            shown,
            [
                ("admit", "[]", json!({ "admit": [] })),
                ("backoff", "{ initial = \"2s\" }", json!({ "backoff_initial_us": 2_000_000 })),
                ("capacity", "7", json!({ "capacity": 7 })),
                ("lease", "\"2m\"", json!({ "lease_ms": 120_000 })),
                ("rate", "\"5/s\"", json!({ "count": 5, "period_us": 1_000_000 })),
                ("route", "\"mail\"", json!({ "route": "mail" })),
            ]
        );
    }

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let given = ["rate=5/sec", "capcity=3", "capacity=0", "lease", "attempts=2", "attempts=3", "quota=1/d"];
        let shown = parse(&words(&given)).expect_err("most of it is wrong").to_string();
        for part in [
            "what is to be set: 6 problems",
            "rate: \"5/sec\" is not allowed",
            "capcity: unknown key; did you mean capacity?",
            "capacity: 0 is not allowed",
            "\"lease\" has no =",
            "attempts is given twice",
            "quota is not in this version",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(
            parse_keys(&words(&["rate", "rat"])).expect_err("one is none").to_string().contains("\"rat\" is no key")
        );
    }

    #[test]
    fn every_key_of_a_policy_can_be_set() {
        let stored = serde_json::to_value(Policy::default()).expect("json");
        let mut fields: Vec<&str> = KEYS.iter().flat_map(|(_, fields)| fields.iter().copied()).collect();
        let mut all: Vec<&str> = stored.as_object().expect("a table").keys().map(String::as_str).collect();
        fields.sort_unstable();
        all.sort_unstable();
        assert_eq!(fields, all);
    }
}
