//! Where a server is, or who knows it, and how to log in there: what `connect` goes by. Which keys are used on it is
//! `keys::partition`'s business.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo as _};

use super::cluster::Cluster;
use super::login::{Login, Password};
use super::sentinel::Sentinels;
use super::tls;
use crate::config::connection::{Node, Place, TlsSettings};
use crate::config::{BadConfig, RedisSettings, asks_for_tls, hide_password};

/// The longest wait between two looks for a new primary: sentinels, or a cluster, may name it at any moment.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Where Redis is and how to log in.
#[derive(Debug, Clone)]
pub struct Address {
    pub(in crate::store) at: At,
    pub(super) login: Login,
    pub(super) tls: Option<TlsSettings>,
    redacted: String,
}

/// Where a server is, or who knows it.
#[derive(Debug, Clone)]
pub(in crate::store) enum At {
    Node(Node),
    Socket(PathBuf),
    Sentinels(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl Address {
    /// The Redis that the configuration names; without one, the loopback port of the built-in one.
    ///
    /// # Errors
    ///
    /// When the URL, or a file that is read at every connect, is of no use: every problem at once.
    pub fn of(settings: &RedisSettings) -> Result<Self, BadConfig> {
        let address = match &settings.place {
            Place::BuiltIn => Self::of_url(&format!("redis://127.0.0.1:{}", settings.port), settings)?,
            Place::Url(url) => Self::of_url(url, settings)?,
            Place::Sentinels(sentinels) => {
                let login = Login {
                    user: sentinels.user.clone(),
                    password: Password::in_file(sentinels.password_file.as_ref()),
                    database: 0,
                };
                let sentinels = Sentinels::new(sentinels, login, settings.tls.clone());
                let redacted = sentinels.to_string();
                Self::of_several(At::Sentinels(Arc::new(sentinels)), settings, redacted)
            }
            Place::Cluster(nodes) => {
                let cluster = Cluster::new(nodes.clone(), login_of(settings), settings.tls.clone());
                let redacted = cluster.to_string();
                Self::of_several(At::Cluster(Arc::new(cluster)), settings, redacted)
            }
        };
        match address.problems() {
            problems if problems.is_empty() => Ok(address),
            problems => Err(BadConfig::all("redis", problems)),
        }
    }

    /// Servers of which others tell: no URL says how to log in.
    fn of_several(at: At, settings: &RedisSettings, redacted: String) -> Self {
        Self { at, login: login_of(settings), tls: settings.tls.clone(), redacted }
    }

    /// The built-in Redis by its socket.
    pub fn of_socket(path: &Path) -> Self {
        let login = Login { user: None, password: Password::None, database: 0 };
        Self { at: At::Socket(path.to_owned()), login, tls: None, redacted: path.display().to_string() }
    }

    fn of_url(url: &str, settings: &RedisSettings) -> Result<Self, BadConfig> {
        let redacted = hide_password(url);
        let info = read_url(url).map_err(|why| BadConfig::one("redis.url", format!("{redacted}: {why}")))?;
        let at = match info.addr() {
            ConnectionAddr::Tcp(host, port) => At::Node(Node { host: host.clone(), port: *port }),
            ConnectionAddr::Unix(path) => At::Socket(path.clone()),
            _ => return Err(BadConfig::one("redis.url", format!("{redacted}: it names neither a host nor a socket"))),
        };
        let written = info.redis_settings();
        let login = Login {
            user: settings.user.clone().or_else(|| written.username().map(str::to_owned)),
            password: match (&settings.password_file, written.password()) {
                (Some(path), _) => Password::File(path.clone()),
                (None, Some(password)) => Password::Written(password.to_owned()),
                (None, None) => Password::None,
            },
            database: written.db(),
        };
        let tls = asks_for_tls(url).then(|| settings.tls.clone().unwrap_or_default());
        Ok(Self { at, login, tls, redacted })
    }

    /// Problems with the files that are read at every connect.
    fn problems(&self) -> Vec<String> {
        let of_sentinels = match &self.at {
            At::Sentinels(sentinels) => sentinels.login.password.read().err(),
            At::Node(_) | At::Socket(_) | At::Cluster(_) => None,
        };
        let password = self.login.password.read().err().map(|why| format!("redis.password_file: {why}"));
        let of_sentinels = of_sentinels.map(|why| format!("redis.sentinel.password_file: {why}"));
        let tls = self.tls.as_ref().and_then(|settings| tls::read(settings).err());
        password.into_iter().chain(of_sentinels).chain(tls).collect()
    }

    /// As it may be shown: without a password.
    pub fn redacted(&self) -> &str {
        &self.redacted
    }

    /// The longest wait before another attempt to connect, where `usual` is that for one server.
    pub fn longest_pause(&self, usual: Duration) -> Duration {
        match &self.at {
            At::Sentinels(_) | At::Cluster(_) => usual.min(LOOK_AGAIN),
            At::Node(_) | At::Socket(_) => usual,
        }
    }
}

/// The login where no URL says how.
fn login_of(settings: &RedisSettings) -> Login {
    let password = Password::in_file(settings.password_file.as_ref());
    Login { user: settings.user.clone(), password, database: 0 }
}

/// Read a URL. The redis crate does it, without TLS: that is made here (`tls`).
pub(super) fn read_url(url: &str) -> redis::RedisResult<redis::ConnectionInfo> {
    let clear = url.replacen("rediss://", "redis://", 1).replacen("valkeys://", "valkey://", 1);
    clear.as_str().into_connection_info()
}
