//! Where a server is and how to log in there; which keys are used on it is a [`Partition`](super::Partition)'s business.

use std::path::Path;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{IntoConnectionInfo, ProtocolVersion};

use crate::config::{BadConfig, RedisSettings, hide_password};

/// Where Redis is and how to log in.
#[derive(Debug, Clone)]
pub struct Address {
    pub(super) info: redis::ConnectionInfo,
    shown: String,
}

impl Address {
    /// The Redis that the configuration names; without a URL, the loopback port of the built-in one.
    ///
    /// # Errors
    ///
    /// When the URL or the password file is of no use.
    pub fn of(settings: &RedisSettings) -> Result<Self, BadConfig> {
        let built_in = format!("redis://127.0.0.1:{}", settings.port);
        Self::new(settings.url.as_deref().unwrap_or(&built_in), settings)
    }

    /// The built-in Redis by its socket.
    ///
    /// # Errors
    ///
    /// When the path is of no use as a URL.
    pub fn of_socket(path: &Path) -> Result<Self, BadConfig> {
        let addr = redis::ConnectionAddr::Unix(path.to_owned());
        let info = addr.into_connection_info().map_err(|why| BadConfig::one("redis socket", why.to_string()))?;
        let shown = path.display().to_string();
        Ok(Self { info: with_protocol(info), shown })
    }

    fn new(url: &str, settings: &RedisSettings) -> Result<Self, BadConfig> {
        let shown = hide_password(url);
        let mut info =
            url.into_connection_info().map_err(|why| BadConfig::one("redis.url", format!("{shown}: {why}")))?;
        let keep_alive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(3);
        info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keep_alive));
        if let Some(path) = &settings.password_file {
            let password = std::fs::read_to_string(path).map_err(|why| {
                BadConfig::one("redis.password_file", format!("{} cannot be read: {why}", path.display()))
            })?;
            let login = info.redis_settings().clone().set_password(password.trim_end_matches(['\r', '\n']));
            info = info.set_redis_settings(login);
        }
        Ok(Self { info: with_protocol(info), shown })
    }

    /// As it may be shown: without a password.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

fn with_protocol(info: redis::ConnectionInfo) -> redis::ConnectionInfo {
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("dripd", env!("CARGO_PKG_VERSION"));
    info.set_redis_settings(settings)
}
