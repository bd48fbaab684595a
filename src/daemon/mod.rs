//! The daemon: the only part that knows all others. It runs from the start of the process to its end, and serves Redis in sessions.
//!
//! A session lasts from a connection to its loss. All state is in Redis, so the next session begins from nothing. `session` has its
//! course, `start` the list of loops, `primaries` the servers of a cluster, `reload` the reading of the configuration, `stop` the end.

mod http_server;
mod inbox;
mod primaries;
mod ready;
mod reload;
mod said;
mod session;
mod start;
mod stop;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::connection::Place;
use crate::config::{BadConfig, Config, Environment};
use crate::http::{BadListener, HttpServer};
use crate::loops::heartbeat::Identity;
use crate::loops::progress::Progress;
use crate::store::acl::Role;
use crate::store::{Address, Layout, StoreError};
use crate::system::built_in_redis::{BuiltInRedis, BuiltInRedisError};
use crate::system::systemd;

use inbox::{Command, Inbox};
use primaries::Primaries;
use ready::{Connection, PreparedServer};
use reload::{Next, Reloads};
use said::Said;
use stop::Ending;

/// How long Redis may be of no use at the start before the daemon gives up.
const FIRST_USE_WITHIN: Duration = Duration::from_secs(30);

/// The wait between two attempts to connect: at the start, and at most.
const RETRY_AT_START: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(2);

/// The first wait after a connection that served was lost; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The wait while Redis loads its data: a server tells only who asks that it is done.
const LOADING_POLL: Duration = Duration::from_millis(50);

/// A session shorter than this does not count as a success: what ended it may end the next one as soon.
const SERVED_WELL: Duration = Duration::from_secs(5);

/// How often the watchdog is told that a daemon without Redis is not stuck.
const WATCHDOG_EVERY: Duration = Duration::from_millis(500);

/// Why the daemon ended on its own.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is of no use.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// There is no built-in Redis.
    #[error(transparent)]
    BuiltInRedis(#[from] BuiltInRedisError),
    /// Redis could not be used once.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The HTTP server cannot be opened.
    #[error(transparent)]
    Http(#[from] BadListener),
    /// The system does not give what every daemon needs.
    #[error("cannot {what}: {why}")]
    System {
        /// The action, as the end of "cannot".
        what: &'static str,
        /// The error of the system.
        why: std::io::Error,
    },
}

/// Whether a daemon serves anything: in this session, or in one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    NotYet,
    Before,
    Now,
}

/// A daemon, and all that outlives its connections to Redis.
pub struct Daemon {
    /// The configuration file that the command line names.
    named: Option<PathBuf>,
    environment: Environment,
    /// The configuration that the daemon obeys.
    config: Config,
    /// A configuration that was read since and comes into force when its record is stored.
    next: Option<Arc<Next>>,
    address: Address,
    layout: Layout,
    identity: Identity,
    /// The built-in Redis, where this daemon uses it.
    built_in: Option<BuiltInRedis>,
    inbox: Inbox,
    /// The HTTP server, if there is one.
    http: Option<HttpServer>,
    progress: Arc<Progress>,
    said: Said,
    serves: Serves,
    /// The record is to replace the one in force: at the start, and while a reload is not through.
    must_store_record: bool,
    /// Set once the daemon was told to stop.
    ending: Option<Ending>,
}

/// The end of a task of a session.
enum Ended {
    /// A loop was stopped, or failed. It belongs to one server of a cluster, by the number of its connection, or to all partitions.
    Loop(&'static str, Option<u64>, Result<(), StoreError>),
    /// A server of a cluster was made ready, or could not be.
    Ready { connection_id: u64, prepared: Result<Box<PreparedServer>, StoreError> },
    /// Servers that could not be served are to be tried again now.
    Again,
    /// The record in force was compared with that of a configuration, which was this daemon's own then.
    Record(Box<Config>, Result<bool, StoreError>),
    /// A reload came to its end.
    Reload(Result<(), StoreError>),
}

/// The end of a session.
enum End {
    Stop,
    Lost(StoreError),
}

/// A session of a daemon, and all that ends with its connection to Redis.
struct Session<'d> {
    daemon: &'d mut Daemon,
    connection: Connection,
    /// The loops, and whatever else runs beside them.
    tasks: JoinSet<Ended>,
    /// Stops all loops.
    stop: CancellationToken,
    /// The servers of a cluster.
    primaries: Primaries,
    reloads: Reloads,
}

impl Daemon {
    /// Run until stopped by a signal.
    ///
    /// # Errors
    ///
    /// When the daemon could not begin to serve. Once it has served it ends only when told to.
    pub async fn run(named: Option<PathBuf>, environment: Environment, config: Config) -> Result<(), DaemonError> {
        let inbox = Inbox::open()?;
        let is_built_in = config.redis.place == Place::BuiltIn;
        let built_in = if is_built_in { Some(BuiltInRedis::open(&config.redis)?) } else { None };
        let address = match &built_in {
            Some(built_in) => built_in.address().clone(),
            None => Address::of(&config.redis)?,
        };
        warn_of(&config);
        let progress = Arc::new(Progress::default());
        let http = http_server::open(&config, &address, &progress, &environment)?;
        let mut daemon = Self {
            named,
            environment,
            layout: Layout::of(&config.redis),
            config,
            next: None,
            address,
            identity: Identity::of_this_process(),
            built_in,
            inbox,
            http,
            progress,
            said: Said::default(),
            serves: Serves::NotYet,
            must_store_record: true,
            ending: None,
        };
        let ended = daemon.serve_until_stopped().await;
        daemon.close().await;
        ended
    }

    /// One session after the other, with a growing pause in between.
    async fn serve_until_stopped(&mut self) -> Result<(), DaemonError> {
        match self.ensure_built_in().await {
            Some(ensured) => ensured?,
            None => return Ok(()),
        }
        let mut patience = FIRST_USE_WITHIN;
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let why = match self.session().await {
                Ok(End::Stop) => return Ok(()),
                Ok(End::Lost(why)) => {
                    if began.elapsed() >= SERVED_WELL {
                        pause = FIRST_PAUSE;
                    }
                    why
                }
                Err(why) => why,
            };
            if let StoreError::PartitioningMismatch { .. } = why {
                return Err(why.into()); // waiting does not mend it
            }
            self.waits_for_redis(&why);
            let is_loading = matches!(why, StoreError::Loading { .. });
            let wait = match (is_loading, self.has_served()) {
                (true, _) => LOADING_POLL,
                (false, true) => pause.mul_f64(0.5 + fastrand::f64()),
                (false, false) => RETRY_AT_START,
            };
            if !is_loading {
                pause = (pause * 2).min(self.address.longest_pause(RETRY_AT_MOST));
                patience = patience.saturating_sub(began.elapsed());
                if !self.has_served() && patience.is_zero() {
                    return Err(why.into());
                }
                patience = patience.saturating_sub(wait);
            }
            if self.meanwhile(tokio::time::sleep(wait)).await.is_none() {
                return Ok(());
            }
            match self.ensure_built_in().await {
                Some(Ok(())) => {}
                Some(Err(why)) => error!(%why, "the built-in redis does not run"),
                None => return Ok(()),
            }
        }
    }

    /// Connect, make ready, serve.
    async fn session(&mut self) -> Result<End, StoreError> {
        if self.serves == Serves::Now {
            self.serves = Serves::Before;
        }
        match Session::open(self).await? {
            Some((session, prepared)) => session.run(prepared).await,
            None => Ok(End::Stop),
        }
    }

    /// There is no Redis: the status always says why, and the log when the reason is new or was said a minute ago.
    fn waits_for_redis(&mut self, why: &StoreError) {
        self.progress.waiting_for_redis();
        self.progress.set_refusal(why.refuses_writes().then(|| why.in_words(Role::Daemon)));
        let text = why.on_record(Role::Daemon);
        systemd::status(&format!("waiting for redis: {text}"));
        self.said.waits_for_redis(why, &text, &self.address);
    }

    /// Whether this daemon has served once.
    fn has_served(&self) -> bool {
        self.serves != Serves::NotYet
    }

    /// Note whose record is in force. The log says when that changes.
    fn obeys_own_record(&mut self, is_own: bool) {
        self.progress.set_obeys_own_record(is_own);
        self.said.whose_record(is_own);
    }

    /// Do something that may take long while Redis is away: commands are heard, and systemd is told that nothing is stuck.
    /// `None` when told to stop meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut beat = tokio::time::interval(WATCHDOG_EVERY);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                _ = beat.tick() => self.tell_that_it_waits(),
                command = self.inbox.next() => match command {
                    Command::Stop => {
                        self.begin_to_end();
                        return None;
                    }
                    Command::Status => info!(redis = self.address.redacted(), "waiting for redis"),
                    Command::Reload(request) => self.reload_while_away(request).await,
                },
            }
        }
    }

    /// Redis is away, or being made ready: nothing is stuck, and a start may take longer.
    fn tell_that_it_waits(&self) {
        systemd::watchdog();
        if !self.has_served() {
            systemd::still_starting(Duration::from_secs(30));
        }
    }

    /// See that the built-in Redis runs, where this daemon uses it. `None` when told to stop meanwhile.
    async fn ensure_built_in(&mut self) -> Option<Result<(), BuiltInRedisError>> {
        let Some(mut built_in) = self.built_in.take() else { return Some(Ok(())) };
        let ensured = self.meanwhile(built_in.ensure()).await;
        self.built_in = Some(built_in);
        ensured
    }
}

/// Warn of settings that are allowed and hardly meant.
fn warn_of(config: &Config) {
    for warning in config.warnings() {
        warn!("{warning}");
    }
}
