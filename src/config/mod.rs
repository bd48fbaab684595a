//! Configuration: from what the operator wrote to what it means, or every problem at once.

mod policies;
mod section;

use std::fmt;
use std::path::{Path, PathBuf};

use policies::{read_limits, read_policy};
use section::{Problems, Section};

use crate::words::policy::{Matched, Policy, Record};

/// Where the built-in Redis listens unless `redis.port` says otherwise.
pub const BUILT_IN_PORT: u16 = 7379;

/// Everything that a configuration file and the environment say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file it was read from; none for the built-in defaults.
    pub path: Option<PathBuf>,
    /// How to reach Redis, or how to run the built-in one.
    pub redis: RedisSettings,
    /// What the functions obey.
    pub record: Record,
}

/// The `[redis]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where Redis is; none: dripd runs its own.
    pub url: Option<String>,
    /// A file that holds the password.
    pub password_file: Option<PathBuf>,
    /// What every key begins with.
    pub prefix: String,
    /// Where the built-in Redis keeps its data.
    pub data_dir: PathBuf,
    /// The loopback port of the built-in Redis.
    pub port: u16,
    /// When the built-in Redis makes a write durable.
    pub fsync: Fsync,
}

/// The built-in Redis' `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Once a second: a crash of Redis may undo the last two.
    EverySecond,
    /// Before each reply.
    Always,
}

impl Fsync {
    /// As `redis.conf` spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

/// A configuration that cannot be used: where it came from and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadConfig {
    source: String,
    problems: Vec<String>,
}

impl BadConfig {
    /// A configuration that is refused for one reason.
    #[must_use]
    pub fn one(source: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { source: source.into(), problems: vec![problem.into()] }
    }
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.problems.len();
        write!(f, "{}: {n} problem{}", self.source, if n == 1 { "" } else { "s" })?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for BadConfig {}

/// The environment variables that configuration reads, taken once at the edge.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `$DRIPD_CONFIG`
    pub config: Option<PathBuf>,
    /// `$DRIPD_REDIS_URL`
    pub redis_url: Option<String>,
    /// `$STATE_DIRECTORY`, set by systemd
    pub state_directory: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`, set by systemd
    pub credentials_directory: Option<PathBuf>,
}

impl Environment {
    /// Read the environment of this process. An empty variable counts as none.
    #[must_use]
    pub fn read() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            config: path("DRIPD_CONFIG"),
            redis_url: std::env::var("DRIPD_REDIS_URL").ok().filter(|url| !url.is_empty()),
            state_directory: path("STATE_DIRECTORY"),
            credentials_directory: path("CREDENTIALS_DIRECTORY"),
        }
    }
}

impl Config {
    /// Find the file (`--config`, `$DRIPD_CONFIG`, `./config.toml`, `/etc/dripd/config.toml`, else the built-in defaults),
    /// read it and check it whole.
    ///
    /// # Errors
    ///
    /// Every problem of the file at once, or why it cannot be read.
    pub fn load(named: Option<&Path>, environment: &Environment) -> Result<Self, BadConfig> {
        let named = named.or(environment.config.as_deref());
        let searched = [Path::new("config.toml"), Path::new("/etc/dripd/config.toml")];
        // One that cannot be looked at counts as found: to run on the defaults beside it would be worse than to say so.
        let path = named.or_else(|| searched.into_iter().find(|path| path.try_exists().unwrap_or(true)));
        let Some(path) = path else { return Self::parse("", None, environment) };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = std::fs::read_to_string(&path)
            .map_err(|why| BadConfig::one(path.display().to_string(), format!("cannot be read: {why}")))?;
        Self::parse(&text, Some(path), environment)
    }

    /// Check the text of a configuration.
    ///
    /// # Errors
    ///
    /// Every problem at once.
    pub fn parse(text: &str, path: Option<PathBuf>, environment: &Environment) -> Result<Self, BadConfig> {
        let source = path.as_ref().map_or_else(|| "built-in defaults".to_owned(), |path| path.display().to_string());
        // The line itself is not shown: it may hold a password.
        let no_toml = |why: toml::de::Error| {
            let at = why.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            BadConfig::one(source.clone(), format!("is no TOML: line {line}: {}", why.message().replace('\n', "; ")))
        };
        let table = text.parse::<toml::Table>().map_err(no_toml)?;
        let mut problems = Problems::default();
        let mut root = Section::new("", table);
        let redis = redis_settings(&mut root.section("redis", &mut problems), environment, &mut problems);
        {
            let missing = "http";
            root.section(missing, &mut problems).missing(&["listen", "token_file"], &mut problems);
        }
        let mut defaults = root.section("defaults", &mut problems);
        let default_policy = read_policy(&mut defaults, &Policy::default(), &mut problems);
        defaults.finish(&mut problems);
        let limits = read_limits(&mut root.section("limits", &mut problems), &mut problems);
        let buckets = root
            .sections("bucket", &mut problems)
            .into_iter()
            .filter_map(|mut entry| {
                let glob = entry.required(
                    "match",
                    "write a glob such as \"sms:*\"",
                    |v| v.as_str().map(str::to_owned),
                    &mut problems,
                );
                let policy = read_policy(&mut entry, &default_policy, &mut problems);
                entry.finish(&mut problems);
                glob.map(|glob| Matched { glob, policy })
            })
            .collect();
        root.finish(&mut problems);
        if problems.is_empty() {
            Ok(Self { path, redis, record: Record { defaults: default_policy, buckets, limits } })
        } else {
            Err(BadConfig { source, problems: problems.into_list() })
        }
    }

    /// What this configuration is known by: its file, or, without one, the Redis it is for.
    #[must_use]
    pub fn source(&self) -> String {
        match (&self.path, &self.redis.url) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(url)) => format!("built-in defaults for {}", hide_password(url)),
            (None, None) => format!("built-in defaults for {}", self.redis.data_dir.display()),
        }
    }

    /// What a running daemon cannot change: `None` when `new` differs in nothing of that kind, else the refusal.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Option<BadConfig> {
        let (old, changed) = (&self.redis, &new.redis);
        let keys = [
            ("redis.url", old.url != changed.url),
            ("redis.password_file", old.password_file != changed.password_file),
            ("redis.prefix", old.prefix != changed.prefix),
            ("redis.data_dir", old.data_dir != changed.data_dir),
            ("redis.port", old.port != changed.port),
            ("redis.fsync", old.fsync != changed.fsync),
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

fn redis_settings(section: &mut Section, environment: &Environment, problems: &mut Problems) -> RedisSettings {
    section.absent(&["partitions", "cluster", "sentinel", "tls"], problems);
    let text = |v: &toml::Value| v.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let url_hint = "redis://[user:password@]host[:port][/db] or unix:///path/to/redis.sock";
    let url = section.optional(
        "url",
        url_hint,
        |v| v.as_str().filter(|url| url.is_empty() || is_url(url)).map(str::to_owned),
        problems,
    );
    let url = url.filter(|url| !url.is_empty());
    if let Some(url) = environment.redis_url.as_ref().filter(|url| !is_url(url)) {
        problems.add(format!("$DRIPD_REDIS_URL: {:?} is not a Redis URL; write {url_hint}", hide_password(url)));
    }
    let credential = environment.credentials_directory.as_ref().map(|dir| dir.join("redis-password"));
    let password_file = section.optional("password_file", "the path of a file", text, problems).map(PathBuf::from);
    let prefix_hint = "a text without \":queue:\", braces, white space or control characters that ends in neither \":ready\" nor \":queue\"";
    let prefix = section.optional("prefix", prefix_hint, |v| text(v).filter(|prefix| is_prefix(prefix)), problems);
    let data_dir = section.optional("data_dir", "the path of a directory", text, problems).map(PathBuf::from);
    let port = section.optional(
        "port",
        "a port, 1 to 65535",
        |v| v.as_integer().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0),
        problems,
    );
    let fsync = |v: &toml::Value| match v.as_str()? {
        "everysec" => Some(Fsync::EverySecond),
        "always" => Some(Fsync::Always),
        _ => None,
    };
    let fsync = section.optional("fsync", "\"everysec\" or \"always\"", fsync, problems);
    section.finish(problems);
    if password_file.is_some() && url.is_none() && environment.redis_url.is_none() {
        problems.add(format!(
            "{}.password_file: without redis.url dripd runs its built-in Redis, which has no password; name a url or remove it",
            section.name()
        ));
    }
    let data_dir =
        data_dir.or_else(|| environment.state_directory.clone()).unwrap_or_else(|| PathBuf::from("dripd-data"));
    RedisSettings {
        url: environment.redis_url.clone().or(url),
        password_file: password_file.or_else(|| credential.filter(|path| path.exists())),
        prefix: prefix.unwrap_or_else(|| "drip".to_owned()),
        data_dir: std::path::absolute(&data_dir).unwrap_or(data_dir),
        port: port.unwrap_or(BUILT_IN_PORT),
        fsync: fsync.unwrap_or(Fsync::EverySecond),
    }
}

fn is_url(url: &str) -> bool {
    ["redis://", "valkey://", "unix://", "redis+unix://"].iter().any(|scheme| url.starts_with(scheme))
}

fn is_prefix(prefix: &str) -> bool {
    !prefix.contains(":queue:")
        && !prefix.ends_with(":ready")
        && !prefix.ends_with(":queue")
        && !prefix.contains(|c: char| c.is_control() || c.is_whitespace() || c == '{' || c == '}')
}

/// A URL as it may be shown: without its password.
#[must_use]
pub fn hide_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (&url[..scheme.len() + 3], rest));
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?***")); // it may hold a password
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}{user}:***@{host}{query}")
        }
        None => format!("{scheme}{rest}{query}"),
    }
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
                    [redis]\npartitions = 4\nurl = 'http://x'\n[http]\nlisten = '127.0.0.1:1'\n[[bucket]]\ncapacity = 0\n";
        let shown = parse(text).expect_err("all of it is wrong").to_string();
        for part in [
            "config.toml: 9 problems",
            "defaults.rate: \"5/sec\"",
            "defaults.capcity: unknown key; did you mean capacity?",
            "defaults.lease: \"0s\"",
            "defaults.backoff: initial, 1h, is longer than max, 1s",
            "redis.partitions is not in this version",
            "redis.url: \"http://x\"",
            "http.listen is not in this version",
            "bucket[1].match: missing",
            "bucket[1].capacity: 0",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(hide_password("redis://user:se@cret@host:1/0"), "redis://user:***@host:1/0");
        assert_eq!(hide_password("redis://host:1"), "redis://host:1");
        assert_eq!(hide_password(":secret@host:1"), ":***@host:1");
        assert_eq!(hide_password("unix:///run/redis.sock?pass=secret"), "unix:///run/redis.sock?***");
        let cut_off = parse("[redis]\nurl = \"redis://:secret@host\n").expect_err("no TOML").to_string();
        assert!(!cut_off.contains("secret") && cut_off.contains("line 2"), "{cut_off}");
    }
}
