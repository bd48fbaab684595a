//! The `[redis]` section: where Redis is, or how to run the built-in one.

use std::path::PathBuf;

use super::Environment;
use super::keys::{self, URL_HINT};
use super::section::{Problems, Section};

/// What a prefix looks like, for error messages.
pub(super) const PREFIX_HINT: &str = "a text without \":queue:\", braces, white space or control characters that ends in neither \":ready\" nor \":queue\"";

/// Where the built-in Redis listens unless `redis.port` says otherwise.
pub const BUILT_IN_PORT: u16 = 7379;

/// The `[redis]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where Redis is; none: dripd runs the built-in one.
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

/// Read the section, and what the environment says about it.
pub(super) fn redis_settings(
    section: &mut Section,
    environment: &Environment,
    problems: &mut Problems,
) -> RedisSettings {
    section.absent(keys::REDIS_TO_COME, problems);
    let text = |v: &toml::Value| v.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // Read as text here and judged below: what asks for TLS is a Redis URL, only not for this version.
    let is_text = |v: &toml::Value| v.as_str().map(str::to_owned);
    let url = section.read("url", is_text, problems).filter(|url| !url.is_empty());
    let named = [(format!("{}.url", section.name()), &url), ("$DRIPD_REDIS_URL".to_owned(), &environment.redis_url)];
    for (name, url) in named {
        if let Some(why) = url.as_deref().and_then(not_a_url) {
            problems.add(format!("{name}: {:?} {why}", hide_password(url.as_deref().unwrap_or_default())));
        }
    }
    let credential = environment.credentials_directory.as_ref().map(|dir| dir.join("redis-password"));
    let password_file = section.read("password_file", text, problems).map(PathBuf::from);
    let prefix = section.read("prefix", |v| text(v).filter(|prefix| is_prefix(prefix)), problems);
    let data_dir = section.read("data_dir", text, problems).map(PathBuf::from);
    let port = |v: &toml::Value| v.as_integer().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let port = section.read("port", port, problems);
    let fsync = |v: &toml::Value| match v.as_str()? {
        "everysec" => Some(Fsync::EverySecond),
        "always" => Some(Fsync::Always),
        _ => None,
    };
    let fsync = section.read("fsync", fsync, problems);
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

/// Why a text is no URL for this version, and what would be one.
fn not_a_url(url: &str) -> Option<String> {
    let is_one_of = |schemes: &[&str]| schemes.iter().any(|scheme| url.starts_with(scheme));
    if is_one_of(&["redis://", "valkey://", "unix://", "redis+unix://"]) {
        return None;
    }
    if is_one_of(&["rediss://", "valkeys://"]) {
        return Some(format!("asks for TLS: TLS is not in this version; {URL_HINT}"));
    }
    Some(format!("is not a Redis URL; {URL_HINT}"))
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
    use super::*;
    use crate::config::Config;

    fn refusal(text: &str, environment: &Environment) -> String {
        let read = Config::parse(text, Some(PathBuf::from("config.toml")), environment);
        read.expect_err("it is wrong").to_string()
    }

    #[test]
    fn a_url_with_tls_is_refused_as_what_it_is() {
        for url in ["rediss://user:secret@host:6380", "rediss://host/#insecure", "valkeys://host"] {
            let said = refusal(&format!("[redis]\nurl = '{url}'\n"), &Environment::default());
            assert!(said.contains("redis.url: \"") && said.contains("TLS is not in this version"), "{said}");
            assert!(!said.contains("secret") && !said.contains("not a Redis URL"), "{said}");
            let environment = Environment { redis_url: Some(url.to_owned()), ..Environment::default() };
            let said = refusal("", &environment);
            assert!(said.contains("$DRIPD_REDIS_URL: \"") && said.contains("TLS is not in this version"), "{said}");
        }
        let said = refusal("[redis]\nurl = 'http://x'\n", &Environment::default());
        assert!(said.contains("redis.url: \"http://x\" is not a Redis URL; write redis://"), "{said}");
    }

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(hide_password("redis://user:se@cret@host:1/0"), "redis://user:***@host:1/0");
        assert_eq!(hide_password("redis://host:1"), "redis://host:1");
        assert_eq!(hide_password(":secret@host:1"), ":***@host:1");
        assert_eq!(hide_password("unix:///run/redis.sock?pass=secret"), "unix:///run/redis.sock?***");
        let cut_off = refusal("[redis]\nurl = \"redis://:secret@host\n", &Environment::default());
        assert!(!cut_off.contains("secret") && cut_off.contains("line 2"), "{cut_off}");
    }
}
