//! Settings at run time: `key=value` words or a table, checked by the same code as the file.

use serde_json::{Map, Value as Json};

use super::nodes::read_budget;
use super::policies::{check_order, read_policy};
use super::section::{Problems, Section};
use super::{BadConfig, keys as tables, tree};
use crate::model::node::Budget;
use crate::model::policy::Policy;
use crate::model::rate::Rate;
use crate::model::subject::Subject;

/// The keys that can be set, each with the fields of a stored policy that it stands for.
const KEYS: &[(&str, &[&str])] = &[
    ("rate", &["count", "period_us"]),
    ("capacity", &["capacity"]),
    ("lease", &["lease_ms"]),
    ("attempts", &["attempts"]),
    ("backoff", &["backoff_initial_us", "backoff_max_us"]),
    ("overflow", &["overflow"]),
    ("route", &["route"]),
    ("catch_up", &["catch_up_us", "catch_up_set"]),
    ("admit", &["admit"]),
    ("within", &["within"]),
    ("weight", &["weight"]),
    ("quota", &["quotas"]),
    ("concurrency", &["concurrency"]),
    ("ordered", &["ordered"]),
    ("slow", &["slow"]),
    ("job_rate", &["job_count", "job_period_us"]),
    ("told", &["told"]),
    ("dedup", &["dedup_us"]),
    ("ttl", &["ttl_us"]),
    ("cost_max", &["cost_max"]),
];

/// A key with the value that it is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as in `[[bucket]]`.
    pub key: String,
    /// The value as TOML.
    pub text: String,
    /// The fields of a stored policy that it stands for, as the functions read them.
    pub policy: Json,
}

/// The keys that can be set for a bucket, or for a budget.
pub fn keys(is_budget: bool) -> impl Iterator<Item = &'static str> {
    let is_allowed = move |key: &&str| !is_budget || tables::BUDGET.iter().any(|own| own.name == *key);
    KEYS.iter().map(|(key, _)| *key).filter(is_allowed)
}

/// The value in a word: TOML, where quotes may be left out for plain text.
fn value_of(text: &str) -> toml::Value {
    let as_toml = |text: &str| format!("value = {text}").parse::<toml::Table>().ok()?.remove("value");
    as_toml(text).unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Read `key=value` words about a bucket or a budget.
///
/// # Errors
///
/// Every problem at once: words without a `=`, keys that do not exist, values that are not allowed, a key that is given
/// twice.
pub fn parse(words: &[String], subject: &Subject) -> Result<Vec<Setting>, BadConfig> {
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
    check(table, problems, subject)
}

/// Read keys and values about a bucket or a budget.
///
/// # Errors
///
/// Every problem at once: keys that do not exist, values that are not allowed.
pub fn of_table(table: toml::Table, subject: &Subject) -> Result<Vec<Setting>, BadConfig> {
    check(table, Problems::default(), subject)
}

fn check(table: toml::Table, mut problems: Problems, subject: &Subject) -> Result<Vec<Setting>, BadConfig> {
    let given = table.clone();
    let policy = if subject.is_budget { of_budget(table, &mut problems) } else { of_bucket(table, &mut problems) };
    let missing = policy.node.within.as_ref().and_then(|parent| tree::stars_missing(parent, Some(subject.pattern)));
    if let Some(why) = missing {
        problems.add(format!("within: {why}"));
    }
    if !problems.is_empty() {
        return Err(BadConfig { source: "what is to be set".to_owned(), problems: problems.into_list() });
    }
    let stored = serde_json::to_value(&policy).expect("a policy is text and numbers");
    Ok(given.iter().map(|(key, value)| setting(key, value, &stored)).collect())
}

/// Read keys of a bucket into a policy. The fields of keys that are not given are not used. Without a rate, `catch_up`
/// may be as long as any rate allows.
fn of_bucket(table: toml::Table, problems: &mut Problems) -> Policy {
    let orders = table.contains_key("ordered") && table.contains_key("concurrency");
    let slowest = Rate::new(1, tables::LONGEST_CATCH_UP).expect("a job in 366 days");
    let mut section = Section::new("", table, &[tables::POLICY]);
    let mut policy = read_policy(&mut section, &Policy { rate: slowest, ..Policy::default() }, problems);
    section.finish(problems);
    if orders {
        check_order("ordered", &mut policy, problems);
    }
    policy
}

/// Read keys of a budget into the fields of a policy.
fn of_budget(table: toml::Table, problems: &mut Problems) -> Policy {
    let mut section = Section::new("", table, &[tables::BUDGET]);
    let Budget { rate, catch_up, node } = read_budget(&mut section, tables::LONGEST_CATCH_UP, problems);
    section.finish(problems);
    let default = Policy::default();
    Policy {
        rate: rate.unwrap_or(default.rate),
        catch_up: catch_up.unwrap_or(default.catch_up),
        is_catch_up_set: catch_up.is_some(),
        node,
        ..default
    }
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

/// Read the names of keys that are to be unset.
///
/// # Errors
///
/// Every word that is no key, at once.
pub fn parse_keys(words: &[String], is_budget: bool) -> Result<Vec<String>, BadConfig> {
    let unknown = words.iter().filter(|word| keys(is_budget).all(|key| key != word.as_str()));
    let known = keys(is_budget).collect::<Vec<_>>().join(", ");
    let what = if is_budget { "key of a budget" } else { "key" };
    let problems: Vec<_> = unknown.map(|word| format!("{word:?} is no {what}; write some of {known}")).collect();
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

    const ACME: Subject = Subject { is_budget: false, pattern: "acme" };
    const TWILIO: Subject = Subject { is_budget: true, pattern: "twilio:*" };

    fn shown(given: &[&str], subject: &Subject) -> Vec<(String, String, Json)> {
        let mut settings = parse(&words(given), subject).expect("good");
        settings.sort_by(|a, b| a.key.cmp(&b.key));
        settings.into_iter().map(|setting| (setting.key, setting.text, setting.policy)).collect()
    }

    fn expect(list: &[(&str, &str, Json)]) -> Vec<(String, String, Json)> {
        list.iter().map(|(key, text, policy)| ((*key).to_owned(), (*text).to_owned(), policy.clone())).collect()
    }

    #[test]
    fn values_are_toml_and_quotes_may_be_left_out() {
        let given =
            ["rate=5/s", "capacity=7", "lease = \"2m\"", "backoff={ initial = '2s' }", "admit=[]", "route='mail'"];
        assert_eq!(
            shown(&given, &ACME),
            expect(&[
                ("admit", "[]", json!({ "admit": [] })),
                ("backoff", "{ initial = \"2s\" }", json!({ "backoff_initial_us": 2_000_000 })),
                ("capacity", "7", json!({ "capacity": 7 })),
                ("lease", "\"2m\"", json!({ "lease_ms": 120_000 })),
                ("rate", "\"5/s\"", json!({ "count": 5, "period_us": 1_000_000 })),
                ("route", "\"mail\"", json!({ "route": "mail" })),
            ])
        );
    }

    #[test]
    fn the_keys_of_a_tree_are_set_for_buckets_and_budgets_alike() {
        let given = [
            "within=twilio",
            "weight=3",
            "concurrency=5",
            "quota=1000/d",
            "slow={ initial = '2s', adaptive = true }",
            "catch_up=1h",
        ];
        let mut expected = expect(&[
            ("catch_up", "\"1h\"", json!({ "catch_up_us": 3_600_000_000_u64, "catch_up_set": true })),
            ("concurrency", "5", json!({ "concurrency": 5 })),
            (
                "quota",
                "\"1000/d\"",
                json!({ "quotas": [{ "count": 1000, "period_us": 86_400_000_000_u64, "offset_us": 0 }] }),
            ),
            (
                "slow",
                "{ adaptive = true, initial = \"2s\" }",
                json!({ "slow": { "initial_us": 2_000_000, "max_us": 600_000_000, "cap_us": 3_600_000_000_u64, "adaptive": true } }),
            ),
            ("weight", "3", json!({ "weight": 3 })),
            ("within", "\"twilio\"", json!({ "within": "twilio" })),
        ]);
        assert_eq!(shown(&given, &TWILIO), expected);
        assert_eq!(shown(&given, &ACME), expected);
        expected = expect(&[
            ("concurrency", "1", json!({ "concurrency": 1 })),
            ("ordered", "true", json!({ "ordered": true })),
        ]);
        assert_eq!(shown(&["ordered=true", "concurrency=1"], &ACME), expected);
        let taken = expect(&[
            ("concurrency", "\"none\"", json!({ "concurrency": 0 })),
            ("quota", "[]", json!({ "quotas": [] })),
            ("within", "\"\"", json!({ "within": "" })),
        ]);
        for subject in [ACME, TWILIO] {
            assert_eq!(shown(&["within=", "quota=[]", "concurrency=none"], &subject), taken);
        }
        assert_eq!(
            shown(&["within='up:{1}'"], &TWILIO),
            expect(&[("within", "\"up:{1}\"", json!({ "within": "up:{1}" }))])
        );
    }

    #[test]
    fn what_a_budget_does_not_have_is_refused_by_name() {
        let given = [
            "capacity=5",
            "ordered=true",
            "ttl=5s",
            "job_rate=5/s",
            "within=a:{2}",
            "rate=1/s",
            "catch_up=2s",
            "weihgt=1",
        ];
        let shown = parse(&words(&given), &TWILIO).expect_err("most of it is wrong").to_string();
        let own = "write some of within, rate, quota, concurrency, weight, catch_up, slow, job_rate, told";
        let expected = [
            "what is to be set: 6 problems".to_owned(),
            format!("  capacity: a budget has no capacity, only buckets have; {own}"),
            format!("  ordered: a budget has no ordered, only buckets have; {own}"),
            format!("  ttl: a budget has no ttl, only buckets have; {own}"),
            format!("  catch_up: \"2s\" is not allowed; {}", tables::CATCH_UP_HINT),
            "  weihgt: unknown key; did you mean weight?".to_owned(),
            "  within: \"a:{2}\" has {2}, but \"twilio:*\" has only one *; write {1}".to_owned(),
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        let shown = parse_keys(&words(&["rate", "lease"]), true).expect_err("one is none").to_string();
        let expected = "what is to be unset: 1 problem\n  \"lease\" is no key of a budget; write some of rate, catch_up, within, weight, quota, \
                        concurrency, slow, job_rate, told";
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_order_without_a_concurrency_of_1_is_refused_where_both_are_set() {
        let shown =
            parse(&words(&["ordered=true", "concurrency=2"]), &ACME).expect_err("it cannot be kept").to_string();
        assert!(shown.contains("\n  ordered: ordered = true needs concurrency = 1"), "{shown}");
        assert!(parse(&words(&["ordered=true"]), &ACME).is_ok(), "the file may have the other one");
    }

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let given = ["rate=5/sec", "capcity=3", "capacity=0", "lease", "attempts=2", "attempts=3", "ttl=1us"];
        let shown = parse(&words(&given), &ACME).expect_err("most of it is wrong").to_string();
        for part in [
            "what is to be set: 6 problems",
            "rate: \"5/sec\" is not allowed",
            "capcity: unknown key; did you mean capacity?",
            "capacity: 0 is not allowed",
            "\"lease\" has no =",
            "attempts is given twice",
            "ttl: \"1us\" is not allowed",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(
            parse_keys(&words(&["rate", "rat"]), false)
                .expect_err("one is none")
                .to_string()
                .contains("\"rat\" is no key")
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
