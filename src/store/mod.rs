//! Redis: the only place that names a key, a function or the redis crate.
//!
//! `connect` makes a connection that is good for use or says why not; a lost one is never mended here: whoever owns the
//! loops drops the store and connects anew. `ops` holds the calls that change something, `view` those that only read,
//! `reply` turns answers into names, `wake` keeps what Redis reports, `library` is the Lua source.

mod admin;
mod error;
pub mod keys;
pub mod library;
pub mod link;
pub mod ops;
mod record;
pub mod reply;
pub mod view;
pub mod wake;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Cmd, IntoConnectionInfo, ProtocolVersion, ToRedisArgs, Value};

pub use error::StoreError;
use keys::Keys;
use wake::Hints;

use crate::config::{BadConfig, RedisSettings, hide_password};

/// How long an answer may take: an append to a slow disk may stall for two seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// Where Redis is and how to log in.
#[derive(Debug, Clone)]
pub struct Address {
    info: redis::ConnectionInfo,
    shown: String,
    keys: Keys,
}

impl Address {
    /// The Redis that the configuration names; without a URL, the loopback port of dripd's own.
    ///
    /// # Errors
    ///
    /// When the URL or the password file is of no use.
    pub fn of(settings: &RedisSettings) -> Result<Self, BadConfig> {
        let own = format!("redis://127.0.0.1:{}", settings.port);
        Self::new(settings.url.as_deref().unwrap_or(&own), settings)
    }

    /// The own Redis by its socket.
    ///
    /// # Errors
    ///
    /// When the path is of no use as a URL.
    pub fn of_socket(path: &Path, settings: &RedisSettings) -> Result<Self, BadConfig> {
        let addr = redis::ConnectionAddr::Unix(path.to_owned());
        let info = addr.into_connection_info().map_err(|why| BadConfig::one("redis socket", why.to_string()))?;
        let shown = path.display().to_string();
        Ok(Self { info: with_protocol(info), shown, keys: Keys::new(&settings.prefix) })
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
        Ok(Self { info: with_protocol(info), shown, keys: Keys::new(&settings.prefix) })
    }

    /// As it may be shown: without a password.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The keys under this address' prefix.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
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

/// A connection to Redis that speaks dripd's functions.
#[derive(Debug, Clone)]
pub struct Store {
    connection: MultiplexedConnection,
    address: Arc<Address>,
}

/// What is worth saying of a server that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// Its version, as it says it.
    pub version: String,
    /// What it lacks: each a sentence with the way out.
    pub warnings: Vec<String>,
    /// Whether Redis reports changed queues; otherwise they are looked for.
    pub tracking: bool,
}

impl Store {
    /// Connect for calls.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] or [`StoreError::Loading`], with the reason and the way out.
    pub async fn connect(address: &Address) -> Result<Self, StoreError> {
        Self::connect_with(address, AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN))).await
    }

    /// Connect for blocking reads of at most `block`.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub async fn connect_blocking(address: &Address, block: Duration) -> Result<Self, StoreError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(block + ANSWER_WITHIN));
        Self::connect_with(address, config).await
    }

    /// Connect for a daemon: what Redis reports goes to `hints`.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub async fn connect_tracking(address: &Address, hints: &Arc<Hints>) -> Result<Self, StoreError> {
        let hints = Arc::clone(hints);
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN)).set_push_sender(
            move |push: redis::PushInfo| {
                hints.on_push(&push);
                Ok::<(), redis::aio::SendError>(())
            },
        );
        Self::connect_with(address, config).await
    }

    async fn connect_with(address: &Address, config: AsyncConnectionConfig) -> Result<Self, StoreError> {
        let config = config.set_connection_timeout(Some(CONNECT_WITHIN));
        let failed = |why: &redis::RedisError| StoreError::of_connect(&address.shown, why);
        let client = redis::Client::open(address.info.clone()).map_err(|why| failed(&why))?;
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(|why| failed(&why))?;
        let mut store = Self { connection, address: Arc::new(address.clone()) };
        store.check_version().await?;
        Ok(store)
    }

    async fn check_version(&mut self) -> Result<(), StoreError> {
        let version = self.version().await?;
        let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if major >= 7 {
            return Ok(());
        }
        Err(self.unusable(format!("server is {version}, 7.0 or newer is needed")))
    }

    async fn version(&mut self) -> Result<String, StoreError> {
        let info = self.info("server").await?;
        let find = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Ok(find("valkey_version:").or_else(|| find("redis_version:")).unwrap_or_else(|| "unknown".to_owned()))
    }

    async fn info(&mut self, section: &str) -> Result<String, StoreError> {
        match self.call("INFO", redis::cmd("INFO").arg(section)).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::VerbatimString { text, .. } => Ok(text),
            other => Err(reply::unexpected("INFO", &other)),
        }
    }

    fn unusable(&self, why: String) -> StoreError {
        StoreError::Unusable { address: self.address.shown.clone(), why }
    }

    /// Where this store is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn keys(&self) -> &Keys {
        &self.address.keys
    }

    /// Make the server ready for a daemon: check what it lacks and the types of our keys, load the library, turn the
    /// reports on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unusable`] when a key of ours has the wrong type or the library cannot be loaded.
    pub async fn prepare(&mut self, hints: &Hints) -> Result<Server, StoreError> {
        let (version, warnings) = (self.version().await?, self.lacks().await?);
        let mut server = Server { version, warnings, tracking: false };
        self.check_types().await?;
        self.load_library().await?;
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("BCAST");
        for prefix in hints.prefixes() {
            tracking.arg("PREFIX").arg(prefix);
        }
        match self.call("CLIENT TRACKING", &tracking).await {
            Ok(_) => server.tracking = true,
            Err(StoreError::Refused { code, message, .. }) => {
                server.warnings.push(format!("CLIENT TRACKING is not available ({code} {message}): queues are polled"));
            }
            Err(other) => return Err(other),
        }
        Ok(server)
    }

    /// What the server lacks to keep the promises: each a sentence with the way out.
    async fn lacks(&mut self) -> Result<Vec<String>, StoreError> {
        let (persistence, memory) = (self.info("persistence").await?, self.info("memory").await?);
        let says = |info: &str, line: &str| info.lines().any(|have| have == line);
        let mut lacks = Vec::new();
        if !says(&persistence, "aof_enabled:1") {
            lacks.push(
                "appendonly is off: a crash of Redis loses accepted jobs; set appendonly yes in redis.conf".to_owned(),
            );
        }
        if !says(&memory, "maxmemory_policy:noeviction") {
            lacks.push(
                "maxmemory-policy is not noeviction: Redis may throw jobs away; set maxmemory-policy noeviction"
                    .to_owned(),
            );
        }
        Ok(lacks)
    }

    async fn check_types(&mut self) -> Result<(), StoreError> {
        let typed = self.keys().typed();
        let mut pipeline = redis::pipe();
        for (key, _) in &typed {
            pipeline.cmd("TYPE").arg(key);
        }
        let found: Vec<String> = pipeline
            .query_async(&mut self.connection)
            .await
            .map_err(|why| StoreError::of_call(&self.address.shown, "TYPE", &why))?;
        for ((key, wanted), found) in typed.iter().zip(&found) {
            if found != wanted && found != "none" {
                return Err(self.unusable(format!(
                    "key {key} is a {found} and must be a {wanted}: rename or delete it, or choose another redis.prefix"
                )));
            }
        }
        Ok(())
    }

    /// Load the library when it is missing or older, never over a newer one. When memory is full an older compatible
    /// one goes on.
    async fn load_library(&mut self) -> Result<(), StoreError> {
        let loaded = match self.call("drip__version", redis::cmd("FCALL_RO").arg("drip__version").arg(0)).await {
            Ok(Value::Int(version)) => Some(version),
            Ok(other) => return Err(reply::unexpected("drip__version", &other)),
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => None,
            Err(other) => return Err(other),
        };
        if loaded.is_some_and(|version| version >= library::VERSION) {
            return Ok(());
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(library::SOURCE);
        match (self.call("FUNCTION LOAD", &load).await, loaded) {
            (Ok(_), _) => Ok(()),
            (Err(StoreError::Refused { code, .. }), Some(version))
                if code == "OOM" && version >= library::OLDEST_COMPATIBLE =>
            {
                tracing::warn!(version, wanted = library::VERSION, "redis is full: its older function library goes on");
                Ok(())
            }
            (Err(StoreError::Refused { code, message, .. }), _) => {
                Err(self.unusable(format!("the function library cannot be loaded: {code} {message}")))
            }
            (Err(other), _) => Err(other),
        }
    }

    async fn call(&mut self, name: &'static str, command: &Cmd) -> Result<Value, StoreError> {
        let address = &self.address;
        command.query_async(&mut self.connection).await.map_err(|why| StoreError::of_call(&address.shown, name, &why))
    }

    /// Call a function. Where the library is gone (`FUNCTION FLUSH`, an empty replica) it is loaded and the call made
    /// once more: a function that was not found has done nothing.
    async fn function(
        &mut self,
        name: &'static str,
        keys: &[impl ToRedisArgs],
        args: &[&[u8]],
    ) -> Result<Value, StoreError> {
        let mut command = redis::cmd("FCALL");
        command.arg(name).arg(keys.len()).arg(keys).arg(args);
        match self.call(name, &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => {
                self.load_library().await?;
                self.call(name, &command).await
            }
            other => other,
        }
    }
}

fn is_missing_function(message: &str) -> bool {
    message.contains("unction not found")
}
