//! The connection to Redis: its place (a URL, sentinels, the nodes of a cluster, or none: then dripd runs the built-in
//! Redis), its login and its TLS.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rustls::pki_types::ServerName;

use super::environment::Environment;
use super::keys::{self, Key};
use super::redis_url::{asks_for_tls, hide_password, holds_password, names_user, not_a_url};
use super::section::{Problems, Section};

/// The place of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// No place is named: dripd runs the built-in Redis.
    BuiltIn,
    /// The server at a URL.
    Url(String),
    /// The primary that sentinels name.
    Sentinels(SentinelSettings),
    /// The primaries of a cluster, which any of these nodes names.
    Cluster(Vec<Node>),
}

impl Place {
    /// The key of the configuration that names this place.
    pub(super) fn key(&self) -> &'static str {
        match self {
            Self::BuiltIn | Self::Url(_) => "redis.url",
            Self::Sentinels(_) => "redis.sentinel",
            Self::Cluster(_) => "redis.cluster",
        }
    }
}

/// The sentinels, and the name of what they watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelSettings {
    /// Their addresses.
    pub nodes: Vec<Node>,
    /// The name by which they know the primary and its replicas.
    pub master: String,
    /// The user that dripd logs in to them as.
    pub user: Option<String>,
    /// The file that holds the password for them.
    pub password_file: Option<PathBuf>,
}

/// The certificates and the server name for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The file of the CAs that sign servers' certificates; none: the CAs that this system trusts.
    pub ca: Option<PathBuf>,
    /// The files of this client's certificate and its key, for servers that ask for one.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that servers' certificates must be for; none: the name or address by which each server is reached.
    pub server_name: Option<String>,
}

/// A server: the name or address of its machine, and its port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// The name or the address; an IPv6 address is without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl FromStr for Node {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, port) = text.rsplit_once(':').ok_or(())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_v6 = |host: &str| host.parse::<std::net::Ipv6Addr>().is_ok();
        let is_good = match bare {
            Some(host) => is_v6(host),
            None => is_host(host),
        };
        let port = port.parse().ok().filter(|port| *port > 0 && is_good).ok_or(())?;
        Ok(Self { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Whether a text can be the name of a machine, or an address without colons.
fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// The connection, as `[redis]` and the environment describe it.
pub(super) struct Connection {
    pub(super) place: Place,
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) tls: Option<TlsSettings>,
    /// Whether the configuration file itself holds a password, in its URL.
    pub(super) file_holds_password: bool,
}

impl Connection {
    /// Read the keys of the section, and the variables of the environment.
    pub(super) fn read(section: &mut Section, environment: &Environment, problems: &mut Problems) -> Self {
        // The URL is read as text and checked below, together with the one of the environment.
        let in_file = section.read("url", |v| v.as_str().map(str::to_owned), problems).filter(|url| !url.is_empty());
        let sentinels = sentinels(section, environment, problems);
        let cluster = section.read("cluster", nodes, problems);
        let user = section.read("user", text, problems);
        let password_file = section.read("password_file", text, problems).map(|file| environment.file(file));
        let tls = tls(section, environment, problems);
        let urls = [("redis.url", in_file.as_deref()), ("$DRIPD_REDIS_URL", environment.redis_url.as_deref())];
        for (name, url) in urls {
            if let Some((url, why)) = url.and_then(|url| Some((url, not_a_url(url)?))) {
                problems.add(format!("{name}: {:?} {why}", hide_password(url)));
            }
        }
        let url = environment.redis_url.clone().or_else(|| in_file.clone());
        let credential = environment.credential("redis-password");
        if let Some(url) = &url {
            let name = if environment.redis_url.is_some() { "$DRIPD_REDIS_URL" } else { "redis.url" };
            if names_user(url) && !holds_password(url) && password_file.is_none() && credential.is_none() {
                problems.add(format!("{name}: {NAME_ALONE}")); // the URL is not shown: the name may be a password
            }
            let shown = hide_password(url);
            for (key, _) in
                [("sentinel", sentinels.is_some()), ("cluster", cluster.is_some())].iter().filter(|one| one.1)
            {
                problems.add(format!("redis.{key}: {name} names a server too, {shown}; keep one of the two"));
            }
        }
        if sentinels.is_some() && cluster.is_some() {
            problems.add(
                "redis.cluster: redis.sentinel is there too, and a cluster needs no sentinels; keep one of the two"
                    .to_owned(),
            );
        }
        let found = Self {
            file_holds_password: in_file.as_deref().is_some_and(holds_password),
            place: match (cluster, sentinels, url) {
                (Some(nodes), ..) => Place::Cluster(nodes),
                (None, Some(sentinels), _) => Place::Sentinels(sentinels),
                (None, None, Some(url)) => Place::Url(url),
                (None, None, None) => Place::BuiltIn,
            },
            password_file: password_file.clone().or(credential),
            user,
            tls,
        };
        found.fits(password_file.is_some(), problems);
        found
    }

    /// Report keys that make no sense together.
    fn fits(&self, password_file_is_written: bool, problems: &mut Problems) {
        let mut wrong = |key: &str, why: &str| problems.add(format!("redis.{key}: {why}"));
        let written =
            [("password_file", password_file_is_written), ("user", self.user.is_some()), ("tls", self.tls.is_some())];
        match &self.place {
            Place::BuiltIn => {
                for (key, _) in written.into_iter().filter(|(_, is_written)| *is_written) {
                    wrong(
                        key,
                        "without redis.url dripd runs its built-in Redis, which has neither users nor passwords nor TLS; name a url or remove it",
                    );
                }
            }
            Place::Url(url) => {
                if self.tls.is_some() && !asks_for_tls(url) {
                    wrong(
                        "tls",
                        &format!("{} asks for no TLS; write rediss:// there, or remove this", hide_password(url)),
                    );
                }
                if self.user.is_some() && names_user(url) {
                    wrong("user", "redis.url names a user too; keep one of the two");
                }
                if self.user.is_some() && self.password_file.is_none() && !holds_password(url) {
                    wrong("user", NO_PASSWORD);
                }
            }
            Place::Sentinels(_) | Place::Cluster(_) => {
                if self.user.is_some() && self.password_file.is_none() {
                    wrong("user", NO_PASSWORD);
                }
            }
        }
    }
}

/// The problem of a user without a password: nobody can log in by name alone.
const NO_PASSWORD: &str = "a user needs a password; name its file in password_file beside it";

/// The same of a URL, whose user may be a password in the wrong place.
const NAME_ALONE: &str = "it names a user without a password, and nobody can log in by name alone; write \
                          redis://user:password@host, or name password_file beside it; a password alone stands behind a \
                          colon: redis://:password@host";

fn text(value: &toml::Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The table under `key`, if it is there and is a table.
fn table(
    key: &'static str,
    keys: &'static [&'static [Key]],
    section: &mut Section,
    problems: &mut Problems,
) -> Option<Section> {
    let (is_there, before) = (section.has(key), problems.count());
    let table = section.section(key, keys, problems);
    (is_there && problems.count() == before).then_some(table)
}

/// A list of at least one server.
fn nodes(value: &toml::Value) -> Option<Vec<Node>> {
    let nodes: Vec<Node> = value.as_array()?.iter().map(|node| node.as_str()?.parse().ok()).collect::<Option<_>>()?;
    Some(nodes).filter(|nodes| !nodes.is_empty())
}

fn sentinels(section: &mut Section, environment: &Environment, problems: &mut Problems) -> Option<SentinelSettings> {
    let mut table = table("sentinel", &[keys::REDIS_SENTINEL], section, problems)?;
    let nodes = table.must_read("nodes", nodes, problems);
    let master = table.must_read("master", text, problems);
    let user = table.read("user", text, problems);
    let password_file = table.read("password_file", text, problems).map(|file| environment.file(file));
    if user.is_some() && password_file.is_none() {
        problems.add(format!("{}: {NO_PASSWORD}", table.full("user")));
    }
    table.finish(problems);
    // A missing key is reported as a problem, so that nobody uses the empty value that replaces it here.
    let (nodes, master) = (nodes.unwrap_or_default(), master.unwrap_or_default());
    Some(SentinelSettings { nodes, master, user, password_file })
}

fn tls(section: &mut Section, environment: &Environment, problems: &mut Problems) -> Option<TlsSettings> {
    let mut table = table("tls", &[keys::REDIS_TLS], section, problems)?;
    let mut file = |key, problems: &mut Problems| table.read(key, text, problems).map(|file| environment.file(file));
    let (ca, cert, key) = (file("ca", problems), file("cert", problems), file("key", problems));
    let is_name = |v: &toml::Value| text(v).filter(|name| ServerName::try_from(name.as_str()).is_ok());
    let server_name = table.read("server_name", is_name, problems);
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (Some(_), None) => {
            problems.add(format!("{}: its key is missing; name that file in key beside it", table.full("cert")));
            None
        }
        (None, Some(_)) => {
            problems
                .add(format!("{}: its certificate is missing; name that file in cert beside it", table.full("key")));
            None
        }
        (None, None) => None,
    };
    table.finish(problems);
    Some(TlsSettings { ca, client, server_name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(redis: &str, environment: &Environment) -> Result<Config, String> {
        let text = format!("[redis]\n{redis}\n");
        Config::parse(&text, Some(PathBuf::from("config.toml")), environment).map_err(|why| why.to_string())
    }

    fn refusal(redis: &str) -> String {
        read(redis, &Environment::default()).expect_err("it is wrong")
    }

    #[test]
    fn a_server_is_a_host_and_a_port() {
        let node = |text: &str| text.parse::<Node>().map(|node| (node.host.clone(), node.port, node.to_string()));
        assert_eq!(node("10.0.0.1:26379"), Ok(("10.0.0.1".to_owned(), 26_379, "10.0.0.1:26379".to_owned())));
        assert_eq!(node("a-b.example:1"), Ok(("a-b.example".to_owned(), 1, "a-b.example:1".to_owned())));
        assert_eq!(node("[::1]:26379"), Ok(("::1".to_owned(), 26_379, "[::1]:26379".to_owned())));
        for bad in ["", "host", ":1", "host:", "host:0", "host:65536", "::1:26379", "[h]:1", "redis://h:1", "u@h:1"] {
            assert_eq!(node(bad), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn tls_without_verification_is_refused_and_no_password_is_shown() {
        for url in ["rediss://user:secret@host:6380/#insecure", "valkeys://:secret@host#x"] {
            let said = refusal(&format!("url = '{url}'"));
            assert!(said.contains("redis.url: \"") && said.contains("servers are always verified"), "{said}");
            assert!(said.contains("redis.tls.ca") && !said.contains("secret"), "{said}");
            let environment = Environment { redis_url: Some(url.to_owned()), ..Environment::default() };
            let said = read("", &environment).expect_err("there too");
            assert!(said.contains("$DRIPD_REDIS_URL: \"") && !said.contains("secret"), "{said}");
        }
        let said = refusal("url = 'http://x'");
        assert!(said.contains("redis.url: \"http://x\" is not a Redis URL; write redis://"), "{said}");
    }

    #[test]
    fn a_line_that_is_no_toml_is_not_shown() {
        let cut_off = refusal("url = \"redis://:secret@host");
        assert!(!cut_off.contains("secret") && cut_off.contains("line 2"), "{cut_off}");
    }

    #[test]
    fn a_user_without_a_password_is_refused_and_not_shown_for_it_may_be_the_password() {
        for url in ["redis://secret@host:1/0", "rediss://secret:@host", "unix:///run/redis.sock?user=secret"] {
            let said = refusal(&format!("url = '{url}'"));
            assert!(said.contains("redis.url: it names a user without a password"), "{url}: {said}");
            assert!(said.contains("redis://:password@host") && !said.contains("secret"), "{url}: {said}");
            let environment = Environment { redis_url: Some(url.to_owned()), ..Environment::default() };
            let said = read("", &environment).expect_err("there too");
            assert!(said.contains("$DRIPD_REDIS_URL: it names a user") && !said.contains("secret"), "{said}");
            let with_file = read(&format!("url = '{url}'\npassword_file = '/p'"), &Environment::default());
            assert!(with_file.is_ok(), "{url}: {with_file:?}");
        }
        for good in ["redis://u:p@host", "redis://:p@host", "unix:///r.sock?user=u&pass=p", "redis://host?user=u"] {
            assert!(read(&format!("url = '{good}'"), &Environment::default()).is_ok(), "{good}");
        }
    }

    #[test]
    fn what_makes_no_sense_together_is_named_with_the_way_out() {
        let sentinel = "sentinel = { nodes = ['a:1'], master = 'm' }";
        for (redis, expected) in [
            (
                format!("url = 'redis://h'\n{sentinel}"),
                "redis.sentinel: redis.url names a server too, redis://h; keep one",
            ),
            (
                "sentinel = { nodes = [], master = 'm' }".to_owned(),
                "redis.sentinel.nodes: [] is not allowed; write a list of",
            ),
            (
                "sentinel = { nodes = ['a'], master = 'm' }".to_owned(),
                "redis.sentinel.nodes: [\"a\"] is not allowed; write a",
            ),
            ("sentinel = { master = 'm' }".to_owned(), "redis.sentinel.nodes: missing"),
            ("sentinel = { nodes = ['a:1'] }".to_owned(), "redis.sentinel.master: missing"),
            (
                "sentinel = { nodes = ['a:1'], master = 'm', user = 'u' }".to_owned(),
                "redis.sentinel.user: a user needs a password",
            ),
            ("sentinel = 'a:1'".to_owned(), "redis.sentinel: \"a:1\" is not allowed; write a table"),
            (format!("{sentinel}\nuser = 'u'"), "redis.user: a user needs a password"),
            ("url = 'redis://h'\nuser = 'u'".to_owned(), "redis.user: a user needs a password"),
            ("url = 'redis://u:p@h'\nuser = 'v'".to_owned(), "redis.user: redis.url names a user too; keep one"),
            ("url = 'redis://h'\ntls = {}".to_owned(), "redis.tls: redis://h asks for no TLS; write rediss://"),
            ("url = 'rediss://h'\ntls = { cert = 'c' }".to_owned(), "redis.tls.cert: its key is missing"),
            ("url = 'rediss://h'\ntls = { key = 'c' }".to_owned(), "redis.tls.key: its certificate is missing"),
            (
                "url = 'rediss://h'\ntls = { server_name = 'a b' }".to_owned(),
                "redis.tls.server_name: \"a b\" is not allowed",
            ),
            ("url = 'rediss://h'\ntls = { roots = 'c' }".to_owned(), "redis.tls.roots: unknown key; write one of ca, "),
            (
                "url = 'redis://h'\npartitions = 4\ncluster = ['a:1']".to_owned(),
                "redis.cluster: redis.url names a server too, redis://h; keep one",
            ),
            (format!("{sentinel}\npartitions = 4\ncluster = ['a:1']"), "redis.cluster: redis.sentinel is there too"),
            ("partitions = 4\ncluster = ['a']".to_owned(), "redis.cluster: [\"a\"] is not allowed; write a list of"),
            ("cluster = ['a:1']".to_owned(), "redis.cluster: a cluster needs redis.partitions, 2 to 64"),
            ("partitions = 4\ncluster = ['a:1']\nuser = 'u'".to_owned(), "redis.user: a user needs a password"),
            ("tls = {}".to_owned(), "redis.tls: without redis.url dripd runs its built-in Redis"),
            ("user = 'u'".to_owned(), "redis.user: without redis.url dripd runs its built-in Redis"),
            ("password_file = 'p'".to_owned(), "redis.password_file: without redis.url dripd runs its built-in Redis"),
        ] {
            let said = refusal(&redis);
            assert!(said.contains(expected) && said.starts_with("config.toml: 1 problem\n"), "{redis}: {said}");
        }
    }

    #[test]
    fn sentinels_and_tls_are_read_and_a_plain_name_may_be_that_of_a_credential() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["sentinel", "ca.pem"] {
            std::fs::write(dir.path().join(name), "secret\n").expect("written");
        }
        let environment = Environment { credentials_directory: Some(dir.path().to_owned()), ..Environment::default() };
        let redis = "user = 'u'\npassword_file = '/p'\n\
            sentinel = { nodes = ['a:1', '[::1]:2'], master = 'm', user = 's', password_file = 'sentinel' }\n\
            tls = { ca = 'ca.pem', cert = 'c', key = '/k', server_name = 'redis.example' }";
        let redis = read(redis, &environment).expect("good").redis;
        let node = |host: &str, port| Node { host: host.to_owned(), port };
        let sentinels = SentinelSettings {
            nodes: vec![node("a", 1), node("::1", 2)],
            master: "m".to_owned(),
            user: Some("s".to_owned()),
            password_file: Some(dir.path().join("sentinel")),
        };
        let tls = TlsSettings {
            ca: Some(dir.path().join("ca.pem")),
            client: Some(("c".into(), "/k".into())),
            server_name: Some("redis.example".to_owned()),
        };
        assert_eq!((redis.place, redis.tls), (Place::Sentinels(sentinels), Some(tls)));
        assert_eq!((redis.user.as_deref(), redis.password_file), (Some("u"), Some("/p".into())));
    }
}
