//! Keys that the environment sets, over those of the file: `DRIPD_LIMITS_MAX_READY=500` is `max_ready` of `[limits]`, and
//! `DRIPD_BUCKET_2_RATE=5/s` is `rate` of the second `[[bucket]]`. What may be written is what the file may say, with the same errors.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use super::environment::PREFIX;
use super::keys::{self, Allowed, Key};
use super::schema::{self, ENTRIES, SECTIONS};
use super::section::Problems;
use crate::model::source::{Part, Source};

/// The variable of `redis.url` is read by [`super::connection`]: the file holds no password where the variable does.
const REDIS_URL: &str = "DRIPD_REDIS_URL";

/// A part of the way to a key: a table, or one of its numbered entries, from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Table(&'static str),
    Entry(&'static str, usize),
}

/// The place of a key in the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    way: Vec<Step>,
    key: &'static str,
}

/// As error messages write it: `bucket[2].rate`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.way {
            match step {
                Step::Table(name) => write!(f, "{name}.")?,
                Step::Entry(name, n) => write!(f, "{name}[{n}].")?,
            }
        }
        f.write_str(self.key)
    }
}

/// A variable that sets a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    /// The name of the variable.
    pub variable: String,
    /// The key, as error messages write it.
    pub key: String,
    place: Place,
}

/// Put what variables say into the table of a file. Replies which did.
pub(super) fn apply(file: &mut Table, variables: &BTreeMap<String, String>, problems: &mut Problems) -> Vec<Override> {
    let mut found = Vec::new();
    for (variable, text) in variables.iter().filter(|(name, text)| *name != REDIS_URL && !is_of_a_service(name, text)) {
        match resolve(variable) {
            Ok(Some((place, key))) => found.push((place, key, variable, text)),
            Ok(None) => {} // it is about something else
            Err(why) => problems.add(format!("${variable}: {why}")),
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0)); // the tenth entry comes after the second
    let mut overrides = Vec::new();
    for (place, key, variable, text) in found {
        if text.contains(char::REPLACEMENT_CHARACTER) {
            problems.add(format!("${variable}: it is no UTF-8"));
            continue;
        }
        match table_at(file, &place.way) {
            Ok(Some(table)) => {
                table.insert(place.key.to_owned(), value_of(key, text));
                overrides.push(Override { variable: variable.clone(), key: place.to_string(), place });
            }
            Ok(None) => {} // the file has something else there, and hears of it
            Err(why) => problems.add(format!("${variable}: {why}")),
        }
    }
    overrides
}

/// Whether Kubernetes made a variable, for a service that is called `dripd-redis` or the like.
fn is_of_a_service(variable: &str, text: &str) -> bool {
    let is_link = |name: &str| {
        let of_port = name.rsplit_once("_PORT_").map(|(_, port)| port.trim_start_matches(|c: char| c.is_ascii_digit()));
        of_port.is_some_and(|rest| ["_TCP", "_UDP"].iter().any(|protocol| rest.starts_with(protocol)))
    };
    let is_url = text.starts_with("tcp://") || text.starts_with("udp://");
    variable.contains("_SERVICE_HOST")
        || variable.contains("_SERVICE_PORT")
        || is_link(variable)
        || variable.ends_with("_PORT") && is_url
}

/// Note in the source of a record which keys come from variables.
pub(super) fn note(source: &mut Source, overrides: &[Override]) {
    let set = |part: &mut Part, key: &str, variable: &str| {
        part.variables.insert(key.to_owned(), variable.to_owned());
    };
    for Override { place, variable, .. } in overrides {
        // Of a table such as `backoff` the whole is shown.
        let key = place.way.get(1).map_or(place.key, |step| match step {
            Step::Table(name) | Step::Entry(name, _) => name,
        });
        match &place.way[0] {
            Step::Table("defaults") => set(&mut source.defaults, key, variable),
            Step::Table("limits") => set(&mut source.limits, key, variable),
            Step::Entry(name, n) => {
                let parts = match *name {
                    "bucket" => &mut source.buckets,
                    "budget" => &mut source.budgets,
                    _ => continue,
                };
                if parts.len() < *n {
                    parts.resize_with(*n, Part::default);
                }
                set(&mut parts[n - 1], key, variable);
            }
            Step::Table(_) => {}
        }
    }
}

/// A problem of a key that a variable sets names the variable.
pub(super) fn name(problem: &str, overrides: &[Override]) -> String {
    let of_key = |one: &&Override| problem.strip_prefix(&one.key).is_some_and(|rest| rest.starts_with([':', '.', '[']));
    let found = overrides.iter().find(of_key);
    found.map_or_else(|| problem.to_owned(), |one| format!("${}{}", one.variable, &problem[one.key.len()..]))
}

/// The table at the end of a way, made where it is missing; `None`: something else is there.
fn table_at<'a>(file: &'a mut Table, way: &[Step]) -> Result<Option<&'a mut Table>, String> {
    let mut table = file;
    for step in way {
        let value = match *step {
            Step::Table(name) => table.entry(name).or_insert_with(|| Value::Table(Table::new())),
            Step::Entry(name, n) => {
                let Value::Array(entries) = table.entry(name).or_insert_with(|| Value::Array(Vec::new())) else {
                    return Ok(None);
                };
                if n == entries.len() + 1 {
                    entries.push(Value::Table(Table::new()));
                }
                let (has, missing) = (entries.len(), format!("there is no {name}[{}] before it", n - 1));
                entries.get_mut(n - 1).ok_or_else(|| format!("{missing}; number it {}", has + 1))?
            }
        };
        match value {
            Value::Table(below) => table = below,
            _ => return Ok(None),
        }
    }
    Ok(Some(table))
}

/// The value that a text is. In quotes it is read as in the file, so that `""` is the empty text. Otherwise a key that takes nothing but
/// texts takes it as it is, and for another one it is read as in the file too.
fn value_of(key: &Key, text: &str) -> Value {
    let text = text.trim_end_matches(['\n', '\r']); // as whoever reads a file into it leaves there
    let as_text = || Value::String(text.to_owned());
    let takes_text_only = serde_json::to_value(schema::value(key)).is_ok_and(|schema| schema["type"] == "string");
    if takes_text_only && !text.starts_with(['"', '\'']) {
        return as_text();
    }
    let table = format!("it = {text}").parse::<Table>().ok().filter(|table| table.len() == 1);
    table.and_then(|mut table| table.remove("it")).unwrap_or_else(as_text)
}

/// The key that a variable sets; `None`: it begins with no section of the file.
fn resolve(variable: &str) -> Result<Option<(Place, &'static Key)>, String> {
    let Some(name) = variable.strip_prefix(PREFIX) else { return Ok(None) };
    let below = |section: &str| name.strip_prefix(&section.to_ascii_uppercase())?.strip_prefix('_');
    if let Some(rest) = below("http").and_then(|rest| rest.strip_prefix("TOKEN_")) {
        return in_entry(rest, vec![Step::Table("http")], "token", &[keys::HTTP_TOKEN]).map(Some);
    }
    for (section, tables) in SECTIONS {
        if let Some(rest) = below(section) {
            return in_tables(rest, vec![Step::Table(section)], tables).map(Some);
        }
    }
    for (section, tables) in ENTRIES {
        if let Some(rest) = below(section) {
            return in_entry(rest, Vec::new(), section, tables).map(Some);
        }
    }
    Ok(None)
}

/// `2_RATE`: the number of an entry, and a key of it.
fn in_entry(
    rest: &str,
    mut way: Vec<Step>,
    section: &'static str,
    tables: &'static [&'static [Key]],
) -> Result<(Place, &'static Key), String> {
    let is_number = |(n, _): &(&str, &str)| n.starts_with(|c: char| ('1'..='9').contains(&c));
    let numbered = rest.split_once('_').filter(is_number).and_then(|(n, rest)| Some((n.parse().ok()?, rest)));
    let Some((n, rest)) = numbered else {
        let above = if way.is_empty() { "" } else { "HTTP_" };
        let upper = section.to_ascii_uppercase();
        let example = format!("{PREFIX}{above}{upper}_1_{}", upper_name(&tables[0][0]));
        return Err(format!("say which {section}, from 1, as in {example}"));
    };
    way.push(Step::Entry(section, n));
    in_tables(rest, way, tables)
}

fn upper_name(key: &Key) -> String {
    key.name.to_ascii_uppercase()
}

/// A key of one of these tables, or of a table below it.
fn in_tables(
    rest: &str,
    mut way: Vec<Step>,
    tables: &'static [&'static [Key]],
) -> Result<(Place, &'static Key), String> {
    let keys = || tables.iter().copied().flatten();
    if let Some(key) = keys().find(|key| upper_name(key) == rest) {
        return Ok((Place { way, key: key.name }, key));
    }
    for key in keys() {
        let below = rest.strip_prefix(&upper_name(key)).and_then(|rest| rest.strip_prefix('_'));
        if let (Some(rest), Allowed::Table(of_it)) = (below, &key.allowed) {
            way.push(Step::Table(key.name));
            let known = of_it.iter().find(|key| upper_name(key) == rest);
            return known.map(|key| (Place { way, key: key.name }, key)).ok_or_else(|| unknown(rest, of_it.iter()));
        }
    }
    Err(unknown(rest, keys()))
}

fn unknown<'a>(rest: &str, keys: impl Iterator<Item = &'a Key>) -> String {
    let names: Vec<String> = keys.map(upper_name).collect();
    let distance = |name: &String| strsim::damerau_levenshtein(name, rest);
    match names.iter().min_by_key(|name| distance(name)).filter(|name| distance(name) <= 2) {
        Some(near) => format!("{rest} is an unknown key; did you mean {near}?"),
        None => format!("{rest} is an unknown key; write one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::config::{Config, Environment};

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let environment = Environment { variables, ..Environment::default() };
        Config::parse(text, Some(PathBuf::from("config.toml")), &environment).map_err(|why| why.to_string())
    }

    #[test]
    fn variables_say_what_a_file_would_say_and_win_over_it() {
        let text = "[redis]\nprefix = 'q'\npartitions = 4\n[http]\nlisten = ''\nhosts = ['a.example', 'b.example']\n\
                    [[http.token]]\nname = '7'\nfile = 'f'\nmay = 'read'\n\
                    [defaults]\nrate = '5/s'\nordered = true\nconcurrency = 1\nbackoff = { initial = '2s' }\n[limits]\nmax_ready = 500\n\
                    [[budget]]\nmatch = 'p'\nrate = '9/s'\nquota = ['5/h', '9/d']\n[[route]]\nname = 'r'\nready_window = 'off'\n";
        let entry = |n: usize| format!("[[bucket]]\nmatch = 'b{n}'\ncapacity = {n}\n");
        let entries = (1..=10).map(entry).collect::<Vec<_>>().concat();
        let named: Vec<[String; 2]> = (1..=10)
            .flat_map(|n| {
                [
                    [format!("DRIPD_BUCKET_{n}_MATCH"), format!("b{n}")],
                    [format!("DRIPD_BUCKET_{n}_CAPACITY"), n.to_string()],
                ]
            })
            .collect();
        let variables = [
            ("DRIPD_REDIS_PREFIX", "'q'"),
            ("DRIPD_REDIS_PARTITIONS", "4\n"),
            ("DRIPD_HTTP_HOSTS", "['a.example', \"b.example\"]"),
            ("DRIPD_HTTP_LISTEN", "\"\""),
            ("DRIPD_HTTP_TOKEN_1_NAME", "7"),
            ("DRIPD_HTTP_TOKEN_1_FILE", "f"),
            ("DRIPD_HTTP_TOKEN_1_MAY", "read"),
            ("DRIPD_DEFAULTS_RATE", "5/s"),
            ("DRIPD_DEFAULTS_ORDERED", "true"),
            ("DRIPD_DEFAULTS_CONCURRENCY", "1"),
            ("DRIPD_DEFAULTS_BACKOFF_INITIAL", "2s"),
            ("DRIPD_LIMITS_MAX_READY", "500"),
            ("DRIPD_BUDGET_1_MATCH", "p"),
            ("DRIPD_BUDGET_1_RATE", "9/s"),
            ("DRIPD_BUDGET_1_QUOTA", "['5/h', '9/d']"),
            ("DRIPD_ROUTE_1_NAME", "r"),
            ("DRIPD_ROUTE_1_READY_WINDOW", "off"),
            // Those of `dripd work --exec`, and of anybody else, are about something else.
            ("DRIPD_BUCKET", "acme"),
            ("DRIPD_LIMIT", "5"),
            // As is what Kubernetes says of services that are called dripd-http and dripd-redis.
            ("DRIPD_REDIS_PORT", "tcp://10.0.0.11:6379"),
            ("DRIPD_REDIS_PORT_6379_TCP", "tcp://10.0.0.11:6379"),
            ("DRIPD_REDIS_PORT_6379_TCP_ADDR", "10.0.0.11"),
            ("DRIPD_HTTP_SERVICE_HOST", "10.0.0.12"),
            ("DRIPD_HTTP_SERVICE_PORT_METRICS", "7380"),
        ];
        let all: Vec<(&str, &str)> =
            variables.into_iter().chain(named.iter().map(|[name, value]| (name.as_str(), value.as_str()))).collect();
        let written = read(&format!("{text}{entries}"), &[]).expect("good");
        for file in ["", "[redis]\nprefix = 'other'\n[defaults]\nrate = '1/s'\nbackoff = { initial = '9s' }\n"] {
            let set = read(file, &all).expect("good");
            assert_eq!(
                (&set.redis, &set.http, &set.record),
                (&written.redis, &written.http, &written.record),
                "{file}"
            );
            assert_eq!(set.overrides.len(), all.len() - 7);
        }
        let second = read("[[bucket]]\nmatch = 'a'\n[[bucket]]\nmatch = 'b'\n", &[("DRIPD_BUCKET_2_RATE", "3/s")]);
        let record = second.expect("good").record;
        assert_eq!(
            record.buckets.iter().map(|entry| entry.policy.rate.to_string()).collect::<Vec<_>>(),
            ["10/s", "3/s"]
        );
    }

    #[test]
    fn what_is_wrong_is_said_of_the_variable_as_of_the_file() {
        for (variable, value, said) in [
            ("DRIPD_DEFAULTS_RATE", "5/sec", "$DRIPD_DEFAULTS_RATE: \"5/sec\" is not allowed; write count/period"),
            (
                "DRIPD_LIMITS_MAX_READY",
                "many",
                "$DRIPD_LIMITS_MAX_READY: \"many\" is not allowed; write a whole number",
            ),
            (
                "DRIPD_LIMITS_MAX_RAEDY",
                "5",
                "$DRIPD_LIMITS_MAX_RAEDY: MAX_RAEDY is an unknown key; did you mean MAX_READY?",
            ),
            ("DRIPD_REDIS_TLS_KEYS", "f", "$DRIPD_REDIS_TLS_KEYS: KEYS is an unknown key; did you mean KEY?"),
            ("DRIPD_BUCKET_RATE", "5/s", "$DRIPD_BUCKET_RATE: say which bucket, from 1, as in DRIPD_BUCKET_1_MATCH"),
            ("DRIPD_BUCKET_0_RATE", "5/s", "$DRIPD_BUCKET_0_RATE: say which bucket"),
            ("DRIPD_BUCKET_01_RATE", "5/s", "$DRIPD_BUCKET_01_RATE: say which bucket"),
            ("DRIPD_HTTP_TOKEN_FILE", "f", "say which token, from 1, as in DRIPD_HTTP_TOKEN_1_NAME"),
            ("DRIPD_REDIS_PREFIX", "a\u{fffd}", "$DRIPD_REDIS_PREFIX: it is no UTF-8"),
            ("DRIPD_DEFAULTS_BACKOFF", "{ initial = '5x' }", "$DRIPD_DEFAULTS_BACKOFF.initial: \"5x\" is not allowed"),
            ("DRIPD_BUCKET_3_MATCH", "a", "$DRIPD_BUCKET_3_MATCH: there is no bucket[2] before it; number it 1"),
            ("DRIPD_BUCKET_1_RATE", "5/s", "bucket[1].match: missing"),
            ("DRIPD_DEFAULTS_RATE", "1/s\nlease = '1s'", "$DRIPD_DEFAULTS_RATE: "),
            ("DRIPD_LIMITS_BATCH", "5\nmax_ready = 7", "$DRIPD_LIMITS_BATCH: "),
        ] {
            let why = read("", &[(variable, value)]).expect_err(variable);
            assert!(why.contains(said), "{variable}: {why}");
        }
    }

    #[test]
    fn the_source_says_which_keys_a_variable_set() {
        let variables =
            [("DRIPD_DEFAULTS_SLOW_MAX", "5m"), ("DRIPD_BUCKET_1_RATE", "3/s"), ("DRIPD_LIMITS_BATCH", "7")];
        let source =
            read("[[bucket]]\nmatch = 'a'\nrate = '1/s'\ncapacity = 5\n", &variables).expect("good").record_source;
        let of = |part: &crate::model::source::Part, key: &str| part.variables.get(key).cloned();
        assert_eq!(of(&source.defaults, "slow").as_deref(), Some("DRIPD_DEFAULTS_SLOW_MAX"));
        assert_eq!(of(&source.buckets[0], "rate").as_deref(), Some("DRIPD_BUCKET_1_RATE"));
        assert_eq!(of(&source.buckets[0], "capacity"), None);
        assert_eq!(of(&source.limits, "batch").as_deref(), Some("DRIPD_LIMITS_BATCH"));
    }
}
