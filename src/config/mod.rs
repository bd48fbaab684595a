//! Configuration: from what the operator wrote to what it means, or every problem at once.

mod section;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use section::{Problems, Section};

use crate::duration;
use crate::limiter::{Kind, Limiter};
use crate::policy::{Limits, Matched, Overflow, Policy, Rate, Record, Route};

/// How many gates a policy may have: each costs a read in every push.
const MOST_GATES: usize = 8;

/// Where the own Redis listens unless `redis.port` says otherwise.
pub const OWN_PORT: u16 = 7379;

/// Everything that a configuration file and the environment say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file it was read from; none for the built-in defaults.
    pub path: Option<PathBuf>,
    /// How to reach Redis, or how to run an own one.
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
    /// Where the own Redis keeps its data.
    pub data_dir: PathBuf,
    /// The loopback port of the own Redis.
    pub port: u16,
    /// When the own Redis makes a write durable.
    pub fsync: Fsync,
}

/// The own Redis' `appendfsync`.
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
            "{}.password_file: without redis.url dripd runs a Redis of its own, which has no password; name a url or remove it",
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
        port: port.unwrap_or(OWN_PORT),
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

fn read_policy(section: &mut Section, base: &Policy, problems: &mut Problems) -> Policy {
    let rate = section.optional("rate", Rate::HINT, |v| Rate::parse(v.as_str()?).ok(), problems);
    let capacity = section.number("capacity", 1, 10_000_000, problems);
    let lease = section.duration("lease", Duration::from_secs(1), Duration::from_secs(7 * 86_400), problems);
    let attempts = section.number("attempts", 1, 1_000, problems);
    let (mut backoff_initial, mut backoff_max) = (base.backoff_initial, base.backoff_max);
    let mut backoff = section.section("backoff", problems);
    let year = Duration::from_secs(366 * 86_400);
    backoff_initial = backoff.duration("initial", Duration::ZERO, year, problems).unwrap_or(backoff_initial);
    backoff_max = backoff.duration("max", Duration::ZERO, year, problems).unwrap_or(backoff_max);
    let backoff_name = backoff.name().to_owned();
    backoff.finish(problems);
    if backoff_initial > backoff_max {
        let (initial, max) = (duration::show(backoff_initial), duration::show(backoff_max));
        problems.add(format!("{backoff_name}: initial, {initial}, is longer than max, {max}"));
        (backoff_initial, backoff_max) = (base.backoff_initial, base.backoff_max); // named once, not in each entry
    }
    let overflow = |v: &toml::Value| match v.as_str()? {
        "reject" => Some(Overflow::Reject),
        "drop-oldest" => Some(Overflow::DropOldest),
        _ => None,
    };
    let overflow = section.optional("overflow", "\"reject\" or \"drop-oldest\"", overflow, problems);
    let route = section.optional("route", Route::HINT, |v| Route::parse(v.as_str()?).ok(), problems);
    let catch_up = section.duration("catch_up", Duration::ZERO, Duration::from_secs(1), problems);
    let admit = read_gates(section, problems);
    Policy {
        rate: rate.unwrap_or(base.rate),
        capacity: capacity.map_or(base.capacity, |n| u32::try_from(n).expect("at most 10,000,000")),
        lease: lease.unwrap_or(base.lease),
        attempts: attempts.map_or(base.attempts, |n| u32::try_from(n).expect("at most 1,000")),
        backoff_initial,
        backoff_max,
        overflow: overflow.unwrap_or(base.overflow),
        route: route.unwrap_or_else(|| base.route.clone()),
        catch_up: catch_up.unwrap_or(base.catch_up),
        admit: admit.unwrap_or_else(|| base.admit.clone()),
    }
}

/// The gates of a policy, `admit`: one table or a list of them; an empty list takes away those of `[defaults]`.
fn read_gates(section: &mut Section, problems: &mut Problems) -> Option<Vec<Limiter>> {
    let gates = section.one_or_more("admit", problems)?;
    if gates.len() > MOST_GATES {
        problems.add(format!("{}.admit: {} gates; at most {MOST_GATES}", section.name(), gates.len()));
    }
    Some(gates.into_iter().filter_map(|gate| read_gate(gate, problems)).collect())
}

fn read_gate(mut gate: Section, problems: &mut Problems) -> Option<Limiter> {
    let kinds = format!("write one of {}", Kind::ALL.map(Kind::as_str).join(", "));
    let Some(kind) = gate.required("limiter", &kinds, |v| v.as_str()?.parse::<Kind>().ok(), problems) else {
        return None; // which other keys belong there is not known
    };
    let count_name = if kind.size_name().is_some() { "count" } else { "limit" };
    let (least, most) = kind.counts().into_inner();
    let count = gate.whole(count_name, least, most, problems);
    let size = kind.size_name().map(|name| {
        let (least, most) = kind.sizes().into_inner();
        gate.whole(name, least, most, problems)
    });
    let period = |v: &toml::Value| duration::parse(v.as_str()?).filter(|period| kind.takes(*period));
    let period = gate.required("period", &format!("write {}, as in \"60s\"", kind.period_hint()), period, problems);
    let is_aligned = kind == Kind::FixedWindow
        && gate.optional("aligned", "write true or false", toml::Value::as_bool, problems) == Some(true);
    let name = gate.name().to_owned();
    gate.finish(problems);
    let size = match size {
        Some(size) => Some(size?),
        None => None,
    };
    let limiter = Limiter::new(kind, count?, period?, size);
    match limiter.and_then(|limiter| if is_aligned { limiter.aligned() } else { Ok(limiter) }) {
        Ok(limiter) => Some(limiter),
        Err(why) => {
            problems.add(format!("{name}: {why}"));
            None
        }
    }
}

fn read_limits(section: &mut Section, problems: &mut Problems) -> Limits {
    let base = Limits::default();
    let limits = Limits {
        max_job_bytes: section.number("max_job_bytes", 1, 512 * 1_048_576, problems).unwrap_or(base.max_job_bytes),
        rejected_keep: section.number("rejected_keep", 0, 10_000_000, problems).unwrap_or(base.rejected_keep),
        max_ready: section.number("max_ready", 1, 10_000_000, problems).unwrap_or(base.max_ready),
        batch: section.number("batch", 1, 1_000, problems).unwrap_or(base.batch),
    };
    section.finish(problems);
    limits
}

#[cfg(test)]
mod tests {
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
    fn a_gate_is_a_limiter_with_its_own_numbers() {
        let text = "[defaults]\nadmit = { limiter = 'sliding-window', limit = 5, period = '60s' }\n\
                    [[bucket]]\nmatch = 'a'\n[[bucket]]\nmatch = 'b'\nadmit = []\n[[bucket]]\nmatch = 'c'\n\
                    admit = [{ limiter = 'throttle', max_burst = 4, count = 1, period = '1s' }, \
                             { limiter = 'fixed-window', limit = 9, period = '1d', aligned = true }]\n";
        let record = parse(text).expect("good").record;
        let shown = |policy: &Policy| policy.admit.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert_eq!(shown(&record.buckets[0].policy), "sliding-window 5/m");
        assert_eq!(shown(&record.buckets[1].policy), "");
        assert_eq!(shown(&record.buckets[2].policy), "throttle 1/s max_burst 4, fixed-window 9/d aligned");
    }

    #[test]
    fn what_is_wrong_with_a_gate_is_named() {
        let text = "[defaults]\nadmit = [{ limiter = 'sliding-window', limit = 10001, period = '60s' }, { limiter = 'leaky' }, \
                    { limiter = 'token-bucket', capacity = 1, period = '1500us' }, { limiter = 'throttle', limit = 3 }]\n\
                    [[bucket]]\nmatch = 'x'\nadmit = 5\n[[bucket]]\nmatch = 'y'\n\
                    admit = { limiter = 'throttle', max_burst = 1, count = 1, period = '1500ms' }\n";
        let shown = parse(text).expect_err("all of it is wrong").to_string();
        for part in [
            "config.toml: 10 problems",
            "defaults.admit[1].limit: 10001 is not allowed; write a whole number, 1 to 10000",
            "defaults.admit[2].limiter: \"leaky\" is not allowed; write one of fixed-window,",
            "defaults.admit[3].count: missing",
            "defaults.admit[4].max_burst: missing",
            "defaults.admit[4].count: missing",
            "defaults.admit[4].period: missing",
            "defaults.admit[4].limit: unknown key",
            "bucket[1].admit: 5 is not allowed; write a table, or a list of tables",
            "defaults.admit[3].period: \"1500us\" is not allowed; write whole milliseconds, 1ms to 366d, as in \"60s\"",
            "bucket[2].admit.period: \"1500ms\" is not allowed; write whole seconds, 1s to 366d",
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
