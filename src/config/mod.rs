//! Configuration: from the text that the operator wrote to its meaning, or every problem at once.

pub mod connection;
mod environment;
pub mod http;
pub mod keys;
mod lines;
mod nodes;
mod overrides;
mod policies;
mod redis_url;
mod routes;
pub mod schema;
mod section;
mod server;
pub mod settings;
mod tree;
mod trust;

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use connection::Place;
pub use environment::{Environment, variable, without_variables};
use http::{HttpSettings, http_settings};
use nodes::read_budget_entry;
pub use overrides::Override;
use policies::{check_order, read_limits, read_policy};
pub use redis_url::{asks_for_tls, hide_password};
use routes::{read_routes, refuse_unfit, unfit_keys};
use section::{Problems, Section};
use server::redis_settings;
pub use server::{Fsync, RedisSettings};
pub use trust::exposed;

use crate::model::escape;
use crate::model::expectation::Expectation;
use crate::model::glob::{self, Kind};
use crate::model::policy::{Matched, Policy, Record};
use crate::model::source::Source;

/// The most entries of a section whose globs are neither a name nor a plain prefix.
const MOST_PATTERNS: usize = 100;

/// The most warnings of one kind that are listed one by one.
const MOST_NAMED: usize = 20;

/// Everything that a configuration file and the environment say.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file that it was read from; none: the built-in defaults.
    pub path: Option<PathBuf>,
    /// How to reach Redis, or how to run the built-in one.
    pub redis: RedisSettings,
    /// The settings of the HTTP server.
    pub http: HttpSettings,
    /// The record that the functions obey.
    pub record: Record,
    /// The line in the file on which each part of the record begins.
    pub record_source: Source,
    /// What must come out of a simulation.
    pub expected: Vec<Expectation>,
    /// The variables of the environment that set keys.
    pub overrides: Vec<Override>,
    /// The directory of systemd's credentials, which the service alone can read.
    credentials: Option<PathBuf>,
}

/// A configuration that cannot be used: its source and all its problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadConfig {
    source: String,
    problems: Vec<String>,
}

impl BadConfig {
    /// A configuration that is refused for one reason.
    pub fn one(source: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { source: source.into(), problems: vec![problem.into()] }
    }

    /// A configuration that is refused for these reasons.
    pub fn all(source: impl Into<String>, problems: Vec<String>) -> Self {
        Self { source: source.into(), problems }
    }

    /// A file that is not used at all: one line says why.
    fn unused(path: &Path, why: &str) -> Self {
        Self { source: format!("{} is not used: {why}", path.display()), problems: Vec::new() }
    }

    /// This error with another source.
    pub fn of(self, source: impl Into<String>) -> Self {
        Self { source: source.into(), ..self }
    }
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.problems.len();
        f.write_str(&escape::line(&self.source))?;
        match n {
            0 => {}
            1 => f.write_str(": 1 problem")?,
            n => write!(f, ": {n} problems")?,
        }
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {}", escape::lines(problem)))
    }
}

impl std::error::Error for BadConfig {}

/// The text of the configuration file and its path: of the one that is named, else of the first that is found; empty if none is.
fn read_file(named: Option<&Path>, environment: &Environment) -> Result<(String, Option<PathBuf>), BadConfig> {
    let named = named.or(environment.config.as_deref());
    let searched = [Path::new("config.toml"), Path::new("/etc/dripd/config.toml")];
    // A file that cannot be examined counts as found: an error is better than running on the defaults beside it.
    let path = named.or_else(|| searched.into_iter().find(|path| path.try_exists().unwrap_or(true)));
    let Some(path) = path else { return Ok((String::new(), None)) };
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let read = match named {
        Some(_) => std::fs::read_to_string(&path),
        None => trust::read_found(&path).map_err(|why| BadConfig::unused(&path, &why))?,
    };
    let text = read.map_err(|why| BadConfig::one(path.display().to_string(), format!("cannot be read: {why}")))?;
    Ok((text, Some(path)))
}

impl Config {
    /// Find the file (`--config`, `$DRIPD_CONFIG`, `./config.toml`, `/etc/dripd/config.toml`, else the built-in
    /// defaults), read it and check it whole.
    ///
    /// # Errors
    ///
    /// All problems of the file at once, or why it cannot be read, or is not used: nobody named it, and a stranger may have written it.
    pub fn load(named: Option<&Path>, environment: &Environment) -> Result<Self, BadConfig> {
        let (text, path) = read_file(named, environment)?;
        Self::parse(&text, path, environment)
    }

    /// Where the HTTP server listens, by the file that [`Config::load`] takes and the environment, whatever else is wrong with them: a
    /// daemon goes on with the file that it read when it started.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn http_listen(named: Option<&Path>, environment: &Environment) -> Result<http::Listen, BadConfig> {
        let (text, _) = read_file(named, environment)?;
        let mut table = text.parse::<toml::Table>().unwrap_or_default();
        let mut ignored = Problems::default();
        overrides::apply(&mut table, &environment.variables, &mut ignored);
        let mut section = Section::new("", table, &[]).section("http", &[keys::HTTP], &mut ignored);
        Ok(http_settings(&mut section, environment, &mut ignored).listen)
    }

    /// Check the text of a configuration.
    ///
    /// # Errors
    ///
    /// All problems at once.
    pub fn parse(text: &str, path: Option<PathBuf>, environment: &Environment) -> Result<Self, BadConfig> {
        let source = path.as_ref().map_or_else(|| "built-in defaults".to_owned(), |path| path.display().to_string());
        // The line itself is not shown: it may hold a password.
        let no_toml = |why: toml::de::Error| {
            let at = why.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            BadConfig::one(source.clone(), format!("is no TOML: line {line}: {}", why.message().replace('\n', "; ")))
        };
        let mut table = text.parse::<toml::Table>().map_err(no_toml)?;
        let mut problems = Problems::default();
        let overrides = overrides::apply(&mut table, &environment.variables, &mut problems);
        let mut root = Section::new("", table, &[]);
        let redis =
            redis_settings(&mut root.section("redis", &[keys::REDIS], &mut problems), environment, &mut problems);
        let http = http_settings(&mut root.section("http", &[keys::HTTP], &mut problems), environment, &mut problems);
        let (routes, ready_windows) = read_routes(&mut root, &redis, &mut problems);
        let mut defaults = root.section("defaults", &[keys::POLICY], &mut problems);
        let mut default_policy = read_policy(&mut defaults, &Policy::default(), &mut problems);
        check_order("defaults", &mut default_policy, &mut problems);
        defaults.finish(&mut problems);
        let limits = read_limits(&mut root.section("limits", &[keys::LIMITS], &mut problems), &mut problems);
        let budgets = root.sections("budget", &[keys::BUDGET_MATCH, keys::BUDGET], &mut problems);
        let budgets = budgets.into_iter().map(|mut entry| {
            let (glob, policy) = read_budget_entry(&mut entry, &mut problems);
            Some(Matched { glob: glob?, policy })
        });
        let (budgets, all_budgets) = those_with_a_match(budgets.collect());
        let buckets = root.sections("bucket", &[keys::BUCKET, keys::POLICY], &mut problems);
        let buckets = buckets.into_iter().map(|mut entry| {
            let glob = entry.must_read("match", |v| v.as_str().map(str::to_owned), &mut problems);
            let unfit = unfit_keys(&entry);
            let mut policy = read_policy(&mut entry, &default_policy, &mut problems);
            if let Some(forward) = routes.iter().find(|forward| forward.name == policy.route) {
                refuse_unfit(entry.name(), &unfit, forward, &mut problems);
            } else {
                check_order(entry.name(), &mut policy, &mut problems);
            }
            entry.finish(&mut problems);
            Some(Matched { glob: glob?, policy })
        });
        let (buckets, all_buckets) = those_with_a_match(buckets.collect());
        let expected = root.sections("expect", &[keys::EXPECT], &mut problems).into_iter().filter_map(|mut entry| {
            let read = entry.must_read("assert", |value| value.as_str()?.parse().ok(), &mut problems);
            entry.finish(&mut problems);
            read
        });
        let expected = expected.collect();
        root.finish(&mut problems);
        check_patterns("bucket", &buckets, &mut problems);
        check_patterns("budget", &budgets, &mut problems);
        let record = Record {
            defaults: default_policy,
            buckets,
            budgets,
            routes,
            ready_windows,
            limits,
            partitioning: redis.partitioning,
        };
        if all_budgets && all_buckets {
            tree::check_partitions(&record, &mut problems);
            tree::check(&record, &mut problems); // entries are told by position, so all are needed
        }
        if problems.is_empty() {
            let mut record_source = lines::source_of(text, path.as_deref(), &environment.host);
            overrides::note(&mut record_source, &overrides);
            let credentials = environment.credentials_directory.clone();
            Ok(Self { path, redis, http, record, record_source, expected, overrides, credentials })
        } else {
            let problems = problems.into_list();
            let problems = problems.iter().map(|problem| overrides::name(problem, &overrides)).collect();
            Err(BadConfig { source, problems })
        }
    }

    /// Settings that are allowed and hardly meant, each as a sentence for the author of the file.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.shows_password().into_iter().collect();
        warnings.extend(self.http.warning(self.record.limits.max_job_bytes));
        warnings.extend(self.exposed_logins());
        let tokens = self.http.tokens.iter().map(|token| &token.file);
        warnings.extend(trust::warnings(tokens, std::iter::empty(), self.credentials.as_deref()));
        warnings.extend(never_used("bucket", &self.record.buckets));
        warnings.extend(never_used("budget", &self.record.budgets));
        warnings.extend(tree::cost_warnings(&self.record).into_iter().take(MOST_NAMED));
        let rates = tree::warnings(&self.record);
        let routes = routes::warnings(&self.record);
        warnings.extend(routes.iter().take(MOST_NAMED).cloned());
        if routes.len() > MOST_NAMED {
            warnings.push(format!("{} more warnings are about routes", routes.len() - MOST_NAMED));
        }
        warnings.extend(rates.iter().take(MOST_NAMED).cloned());
        if rates.len() > MOST_NAMED {
            warnings.push(format!("{} more rates are above that of the budget above", rates.len() - MOST_NAMED));
        }
        warnings
    }

    /// The warning that everybody on this machine can read a password in the file, if that is so.
    fn shows_password(&self) -> Option<String> {
        let path = self.path.as_ref().filter(|_| self.redis.file_holds_password)?;
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        let (shown, way_out) = (path.display(), "put it into a file of its own (redis.password_file), or chmod o-r");
        (mode & 0o004 != 0).then(|| format!("redis.url holds a password, and everybody can read {shown}: {way_out}"))
    }

    /// Warnings about the files of its logins to Redis: others may read or write a secret, or write what is believed.
    pub fn exposed_logins(&self) -> Vec<String> {
        let (redis, tls) = (&self.redis, self.redis.tls.as_ref());
        let of_sentinels = match &redis.place {
            Place::Sentinels(sentinels) => sentinels.password_file.as_ref(),
            Place::BuiltIn | Place::Url(_) | Place::Cluster(_) => None,
        };
        let client = tls.and_then(|tls| tls.client.as_ref());
        let secrets = redis.password_file.iter().chain(of_sentinels).chain(client.map(|(_, key)| key));
        let certificates = client.map(|(cert, _)| cert).into_iter().chain(tls.and_then(|tls| tls.ca.as_ref()));
        trust::warnings(secrets, self.path.iter().chain(certificates), self.credentials.as_deref())
    }

    /// The name of this configuration: its file, or, without one, the Redis that it is for.
    pub fn source(&self) -> String {
        match (&self.path, &self.redis.place) {
            (Some(path), _) => path.display().to_string(),
            (None, Place::Url(url)) => format!("built-in defaults for {}", hide_password(url)),
            (None, Place::Cluster(nodes)) => format!("built-in defaults for the cluster of {}", nodes[0]),
            (None, Place::Sentinels(sentinels)) => format!("built-in defaults for {}", sentinels.master),
            (None, Place::BuiltIn) => format!("built-in defaults for {}", self.redis.data_dir.display()),
        }
    }

    /// The refusal of a reload that changes what a running daemon cannot change; `None` if `new` differs in nothing of
    /// that kind.
    pub fn needs_restart(&self, new: &Self) -> Option<BadConfig> {
        let (old, changed) = (&self.redis, &new.redis);
        let keys = [
            (old.place.key(), old.place != changed.place),
            ("redis.tls", old.tls != changed.tls),
            ("redis.user", old.user != changed.user),
            ("redis.password_file", old.password_file != changed.password_file),
            ("redis.prefix", old.prefix != changed.prefix),
            ("redis.partitions", old.partitioning.partitions != changed.partitioning.partitions),
            ("redis.partition_by", old.partitioning.by != changed.partitioning.by),
            ("redis.data_dir", old.data_dir != changed.data_dir),
            ("redis.port", old.port != changed.port),
            ("redis.fsync", old.fsync != changed.fsync),
            ("http.listen", self.http.listen != new.http.listen),
            ("http.memory", self.http.memory != new.http.memory),
        ];
        let problems: Vec<_> = keys
            .into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| format!("{key}: a change needs a restart of dripd; nothing was reloaded"))
            .collect();
        let source =
            new.path.as_ref().map_or_else(|| "built-in defaults".to_owned(), |path| path.display().to_string());
        (!problems.is_empty()).then_some(BadConfig { source, problems })
    }
}

/// The entries whose `match` could be read, and whether those are all.
fn those_with_a_match<T>(entries: Vec<Option<Matched<T>>>) -> (Vec<Matched<T>>, bool) {
    let all = entries.iter().all(Option::is_some);
    (entries.into_iter().flatten().collect(), all)
}

fn check_patterns<T>(section: &str, entries: &[Matched<T>], problems: &mut Problems) {
    let patterns = entries.iter().filter(|entry| Kind::of(&entry.glob) == Kind::Pattern).count();
    if patterns > MOST_PATTERNS {
        problems.add(format!(
            "{section}: {patterns} entries match by a glob that is neither a name nor a plain prefix; at most \
             {MOST_PATTERNS} are allowed, for each may have to be tried; names (\"acme\") and plain prefixes (\"sms:*\") \
             are found at once, whatever their number"
        ));
    }
}

/// The warnings about entries that an earlier one hides.
fn never_used<T>(section: &str, entries: &[Matched<T>]) -> Vec<String> {
    let globs: Vec<&str> = entries.iter().map(|entry| entry.glob.as_str()).collect();
    let hidden = glob::hidden(&globs);
    let warning = |&(at, by): &(usize, usize)| {
        let (entry, first, glob, all) = (at + 1, by + 1, globs[at], globs[by]);
        format!(
            "{section}[{entry}] {glob:?} is never used: {section}[{first}] {all:?} comes first and matches all that it matches; put it before that one, or remove it"
        )
    };
    let mut warnings: Vec<_> = hidden.iter().take(MOST_NAMED).map(warning).collect();
    if hidden.len() > MOST_NAMED {
        let kind = if section == "bucket" { "" } else { " of [[budget]]" };
        warnings.push(format!("{} more entries{kind} are never used, for the same reason", hidden.len() - MOST_NAMED));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Result<Config, BadConfig> {
        Config::parse(text, Some(PathBuf::from("config.toml")), &Environment::default())
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        let config = parse("").expect("nothing is wrong with nothing");
        assert_eq!(config.record, Record::default());
        assert_eq!(config.redis.prefix, "drip");
    }

    #[test]
    fn an_entry_overrides_the_defaults_key_by_key() {
        let config =
            parse("[defaults]\ncapacity = 5\nlease = '2m'\n[[bucket]]\nmatch = 'sms:*'\nrate = '1/s'\n").expect("good");
        let sms = &config.record.buckets[0];
        assert_eq!((sms.glob.as_str(), sms.policy.capacity, sms.policy.lease), ("sms:*", 5, Duration::from_secs(120)));
        assert_eq!(sms.policy.rate.to_string(), "1/s");
    }

    #[test]
    fn every_problem_is_named_at_once_with_what_would_be_right() {
        let text = "[defaults]\nrate = '5/sec'\ncapcity = 3\nlease = '0s'\nbackoff = { initial = '1h', max = '1s' }\n\
                    [redis]\npartitions = 3\nurl = 'http://x'\n[http]\nlisten = '1'\n[[bucket]]\ncapacity = 0\n";
        let shown = parse(text).expect_err("all of it is wrong").to_string();
        for part in [
            "config.toml: 9 problems",
            "defaults.rate: \"5/sec\"",
            "defaults.capcity: unknown key; did you mean capacity?",
            "defaults.lease: \"0s\"",
            "defaults.backoff: initial, 1h, is longer than max, 1s",
            "redis.partitions: 3 is not allowed; write a power of two, 1 to 64",
            "redis.url: \"http://x\"",
            "http.listen: \"1\" is not allowed",
            "bucket[1].match: missing",
            "bucket[1].capacity: 0",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }

    #[test]
    fn of_globs_that_are_neither_names_nor_plain_prefixes_100_are_allowed() {
        let entries = |n: usize, glob: fn(usize) -> String| {
            (0..n).fold(String::new(), |text, i| text + &format!("[[bucket]]\nmatch = {:?}\n", glob(i)))
        };
        let plain = entries(300, |i| format!("name{i}")) + &entries(300, |i| format!("prefix{i}:*"));
        let patterns = |n| plain.clone() + &entries(n, |i| format!("*:{i}"));
        assert_eq!(parse(&patterns(100)).expect("100 are allowed").record.buckets.len(), 700);
        let shown = parse(&(patterns(101) + "[defaults]\nrate = 5\n")).expect_err("101 are not").to_string();
        for part in ["2 problems", "bucket: 101 entries", "at most 100 are allowed", "plain prefixes (\"sms:*\")"] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }

    #[test]
    fn an_entry_that_is_never_used_is_warned_of() {
        let warnings = |globs: &[&str]| {
            let entry = |text: String, glob: &&str| text + &format!("[[bucket]]\nmatch = {glob:?}\n");
            let text = globs.iter().fold(String::new(), entry);
            parse(&text).expect("good").warnings()
        };
        assert_eq!(warnings(&["sms:ch", "sms:*", "*"]), [""; 0]);
        let expected = "bucket[2] \"sms:ch\" is never used: bucket[1] \"sms:*\" comes first and matches all that it matches; \
                        put it before that one, or remove it";
        assert_eq!(warnings(&["sms:*", "sms:ch"]), [expected]);
        let budgets = parse("[[budget]]\nmatch = '*'\nrate = '1/s'\n[[budget]]\nmatch = 'a'\nrate = '1/s'\n")
            .expect("good")
            .warnings();
        let expected = "budget[2] \"a\" is never used: budget[1] \"*\" comes first and matches all that it matches; put it before that \
                        one, or remove it";
        assert_eq!(budgets, [expected]);
        let many = warnings(&[&["*"][..], &["a"; 30]].concat());
        assert_eq!((many.len(), many[20].as_str()), (21, "10 more entries are never used, for the same reason"));
    }
}
