//! The daemon: the only part that knows all others. It finds Redis, makes it ready (`ready`), runs the loops, reads its
//! configuration again when told to (`reload`), and when the connection is lost drops everything and begins again. All
//! state is in Redis, so there is nothing to mend.

mod door;
mod primaries;
mod ready;
mod reload;
mod start;
mod stop;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::config::connection::Place;
use crate::config::{BadConfig, Config, Environment};
use crate::http::{self, BadListener};
use crate::loops::heartbeat::Identity;
use crate::loops::progress::{Progress, Reader};
use crate::store::acl::Role;
use crate::store::server::Server;
use crate::store::wake::Reports;
use crate::store::{Address, Layout, StoreError, Whole};
use crate::system::built_in_redis::{BuiltInRedis, BuiltInRedisError};
use crate::system::control::{Control, Request};
use crate::system::signals::{Signal, Signals};
use crate::system::systemd;

use primaries::Primaries;
use ready::{Made, settle_record};
use reload::Reloads;
use stop::{Ending, LOOPS_WITHIN};

/// How long Redis may be of no use at the start before the daemon gives up.
const FIRST_USE_WITHIN: Duration = Duration::from_secs(30);

/// The wait between two attempts: at the start, and at most.
const RETRY_AT_START: Duration = Duration::from_secs(1);
const RETRY_AT_MOST: Duration = Duration::from_secs(2);

/// The first wait after a connection that served was lost; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The wait while Redis loads its data: it says when it is done only to who asks.
const LOADING_POLL: Duration = Duration::from_millis(50);

/// A session shorter than this does not count as a success: what ended it may end the next one as soon.
const SERVED_WELL: Duration = Duration::from_secs(5);

/// How often the watchdog is told that a daemon without Redis is not stuck.
const BEAT: Duration = Duration::from_millis(500);

/// How often the log says why there is no Redis while the reason stays the same.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How often the status line is told to systemd.
const STATUS_EVERY: Duration = Duration::from_secs(5);

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
    /// The HTTP door cannot be opened.
    #[error(transparent)]
    Http(#[from] BadListener),
    /// The system does not give what every daemon needs.
    #[error("cannot {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        why: std::io::Error,
    },
}

/// What a task of a session ended with.
enum Ended {
    /// A loop was stopped, or failed: one of a server of a cluster, by the number of its connection, or of the whole.
    Loop(&'static str, Option<u64>, Result<(), StoreError>),
    /// A server of a cluster was made ready, or could not be.
    Ready { line: u64, made: Result<Box<Made>, StoreError> },
    /// It is time to try again those that could not be served.
    Again,
    /// The record in force was compared with that of a configuration, which was this daemon's own then.
    Record(Box<Config>, Result<bool, StoreError>),
    /// A reload came to its end.
    Reload(Result<(), StoreError>),
}

/// What a session ended with.
enum End {
    Stop,
    Lost(StoreError),
}

/// Whether a daemon serves anything: in this session, or in one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    NotYet,
    Before,
    Now,
}

/// A daemon and what it needs to begin again.
pub struct Daemon {
    named: Option<PathBuf>,
    environment: Environment,
    config: Config,
    address: Address,
    layout: Layout,
    reports: Arc<Reports>,
    progress: Arc<Progress>,
    built_in: Option<BuiltInRedis>,
    identity: Identity,
    signals: Signals,
    control: Option<Control>,
    /// The HTTP door, if there is one.
    door: Option<http::Open>,
    /// The record must replace the one in force: at the start, and while a reload is not through.
    must_put: bool,
    reloads: Reloads,
    serves: Serves,
    warned: Vec<String>,
    /// Whether the log says that another daemon's record is in force.
    obeys_another: bool,
    /// Why there is no Redis, and when that was last said.
    waited_for: Option<(String, Instant)>,
    /// It was told to stop.
    ending: Option<Ending>,
}

impl Daemon {
    /// Run until stopped by a signal.
    ///
    /// # Errors
    ///
    /// When it could not begin to serve; once it has served it ends only when told to.
    pub async fn run(named: Option<PathBuf>, environment: Environment, config: Config) -> Result<(), DaemonError> {
        let signals = Signals::listen().map_err(|why| DaemonError::System { what: "listen for signals", why })?;
        let control = Control::listen()
            .inspect_err(
                |why| warn!(%why, "there is no control socket: `dripd reload` cannot reach this daemon, HUP can"),
            )
            .ok();
        let is_built_in = config.redis.place == Place::BuiltIn;
        let built_in = if is_built_in { Some(BuiltInRedis::open(&config.redis)?) } else { None };
        let address = match &built_in {
            Some(built_in) => built_in.address().clone(),
            None => Address::of(&config.redis)?,
        };
        warn_of(&config);
        let progress = Arc::new(Progress::default());
        let door = door::open(&config, &address, &progress, &environment)?;
        let layout = Layout::of(&config.redis);
        let reports = Arc::new(Reports::new(layout.clone()));
        let mut daemon = Self {
            named,
            environment,
            config,
            address,
            layout,
            reports,
            progress,
            built_in,
            identity: Identity::of_this_process(),
            signals,
            control,
            door,
            must_put: true,
            reloads: Reloads::default(),
            serves: Serves::NotYet,
            warned: Vec::new(),
            obeys_another: false,
            waited_for: None,
            ending: None,
        };
        let ended = daemon.serve_until_stopped().await;
        daemon.close().await;
        ended
    }

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
            if let StoreError::OtherCut { .. } = why {
                return Err(why.into()); // waiting does not mend it
            }
            self.progress.waiting_for_redis();
            self.say_that_it_waits(&why);
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

    /// Say why there is no Redis: in the status always, in the log when it is new or was said a minute ago. That it loads its
    /// data is no fault.
    fn say_that_it_waits(&mut self, why: &StoreError) {
        let text = why.on_record(Role::Daemon);
        systemd::status(&format!("waiting for redis: {text}"));
        let said = self.waited_for.as_ref();
        if said.is_none_or(|(said, at)| *said != text || at.elapsed() >= SAY_AGAIN) {
            if matches!(why, StoreError::Loading { .. }) {
                info!(redis = self.address.shown(), "redis is loading its data, waiting for it");
            } else {
                warn!(why = text, "redis cannot be used, trying again");
            }
            self.waited_for = Some((text, Instant::now()));
        }
    }

    /// Connect, make ready, serve.
    async fn session(&mut self) -> Result<End, StoreError> {
        self.reports = Arc::new(Reports::new(self.layout.clone()));
        if self.serves == Serves::Now {
            self.serves = Serves::Before;
        }
        let Some((whole, made)) = self.make_ready().await? else { return Ok(End::Stop) };
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let tracking = made.as_ref().and_then(|made| made.server.as_ref()).is_none_or(|server| server.tracking);
        self.start(&mut tasks, &whole, tracking, &stop);
        if let Some(made) = made {
            for store in made.primary.each() {
                self.start_partition(&mut tasks, store, None, &stop)?;
            }
            self.start_reconciler(&mut tasks, made.primary, None, tracking, &stop);
            self.has_begun_to_serve(&whole, made.server.as_ref(), tracking);
        }
        let mut primaries = Primaries::default();
        let end = self.watch(&mut primaries, &mut tasks, &whole, &stop).await;
        self.must_put |= primaries.put();
        stop.cancel();
        let finish = async { while tasks.join_next().await.is_some() {} };
        let until = self.ending.map_or_else(|| Instant::now() + LOOPS_WITHIN, Ending::of_loops).into();
        if tokio::time::timeout_at(until, finish).await.is_err() {
            warn!("a call in hand did not finish in time");
        }
        self.cut_off_reloads(matches!(end, End::Stop)).await;
        Ok(end)
    }

    /// Whether it has served once.
    fn has_served(&self) -> bool {
        self.serves != Serves::NotYet
    }

    /// Redis is away, or being made ready: nothing is stuck, and a start may take longer.
    fn tell_that_it_waits(&self) {
        systemd::watchdog();
        if !self.has_served() {
            systemd::still_starting(Duration::from_secs(30));
        }
    }

    /// Serve until a loop fails, the connection ends, or a signal stops the daemon.
    async fn watch(
        &mut self,
        primaries: &mut Primaries,
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
        stop: &CancellationToken,
    ) -> End {
        let (reports, progress) = (Arc::clone(&self.reports), Arc::clone(&self.progress));
        let watchdog = systemd::watchdog_every();
        let mut beat = tokio::time::interval(watchdog.unwrap_or(STATUS_EVERY).min(STATUS_EVERY));
        let (mut told, mut places) = (Instant::now().checked_sub(STATUS_EVERY), whole.changes_of_place());
        if whole.is_cluster() {
            self.follow(primaries, tasks, whole, stop);
        }
        loop {
            tokio::select! {
                ended = tasks.join_next() => match ended {
                    Some(Ok(Ended::Loop(name, Some(line), Err(why)))) => {
                        debug!(name, %why, "a loop of a server ended");
                        if let Some(end) = self.primary_failed(primaries, line, why, tasks, whole) { return end }
                    }
                    Some(Ok(Ended::Ready { line, made })) => {
                        let ended = self.primary_ready(primaries, (line, made), tasks, whole, stop);
                        if let Some(end) = ended { return end }
                    }
                    Some(Ok(Ended::Again)) => self.follow(primaries, tasks, whole, stop),
                    Some(Ok(Ended::Loop(name, None, Err(why)))) => { warn!(name, %why, "a loop ended"); return End::Lost(why) }
                    Some(Ok(Ended::Loop(..))) | None => {}
                    Some(Ok(Ended::Reload(ended))) => if let Some(end) = self.end_reload(ended, tasks, whole).await { return end },
                    Some(Ok(Ended::Record(_, Err(why)))) if whole.goes_on_without(&why) => debug!(%why, "the authority is away"),
                    Some(Ok(Ended::Record(_, Err(why)))) => return End::Lost(why),
                    Some(Ok(Ended::Record(compared, Ok(is_own)))) => {
                        // A reload that came meanwhile says itself what it came to.
                        if !self.reloads.is_busy() && compared.record == self.config.record {
                            self.say_whose_record(is_own);
                        }
                    }
                    // Only where a panic unwinds, as in tests: a release aborts at once.
                    Some(Err(broken)) => std::panic::resume_unwind(broken.into_panic()),
                },
                () = another_place(places.as_mut()) => self.follow(primaries, tasks, whole, stop),
                () = reports.disconnected.notified() => {
                    let (address, why) = (self.address.shown().to_owned(), "the connection was closed".to_owned());
                    return End::Lost(StoreError::Lost { address, call: "serving", why });
                }
                () = progress.record_changed.notified() => {
                    let (whole, config) = (whole.clone(), Box::new(self.config.clone()));
                    let is_built_in = self.built_in.is_some();
                    tasks.spawn(async move {
                        let settled = settle_record(whole, &config, is_built_in).await;
                        Ended::Record(config, settled)
                    });
                }
                signal = self.signals.next() => match signal {
                    Signal::Stop => return self.begin_to_end(),
                    Signal::Status => self.log_status(),
                    Signal::Reload => self.reload(None, tasks, whole).await,
                },
                request = next_request(self.control.as_mut()) => self.reload(Some(request), tasks, whole).await,
                _ = beat.tick() => {
                    if watchdog.is_some() && !self.progress.is_stuck() {
                        systemd::watchdog();
                    }
                    self.answer_overdue().await;
                    if told.is_none_or(|at| at.elapsed() >= STATUS_EVERY) {
                        told = Some(Instant::now());
                        systemd::status(&self.status_line());
                    }
                }
            }
        }
    }

    fn status_line(&self) -> String {
        let figures = self.progress.figures(Reader::StatusLine);
        format!(
            "serving {}: {} jobs dispatched, {} rejected, latest {:.1} ms late",
            self.address.shown(),
            figures.dispatched,
            figures.rejected,
            figures.latest.as_secs_f64() * 1e3
        )
    }

    fn log_status(&self) {
        let figures = self.progress.figures(Reader::Log);
        let (dispatched, rejected, calls) = (figures.dispatched, figures.rejected, figures.calls);
        let (latest, bad_names) = (figures.latest, self.reports.bad_names());
        info!(redis = self.address.shown(), dispatched, rejected, calls, ?latest, bad_names, "status");
    }

    /// Say when another daemon's record came into force, and when this one's own is in force again.
    fn say_whose_record(&mut self, is_own: bool) {
        self.progress.set_obeys_own_record(is_own);
        if is_own && self.obeys_another {
            info!("the policies of this daemon's own file are in force again");
        }
        if !is_own && !self.obeys_another {
            warn!("another daemon's policies are in force: this daemon obeys them; its own file differs");
        }
        self.obeys_another = !is_own;
    }

    /// Say once what the server lacks.
    fn warn_about(&mut self, server: &Server) {
        for warning in &server.warnings {
            self.warn_once(warning);
        }
    }

    fn warn_once(&mut self, warning: &str) {
        if !self.warned.iter().any(|said| said == warning) {
            warn!(redis = self.address.shown(), "{warning}");
            self.warned.push(warning.to_owned());
        }
    }
}

/// The next change of where partitions are, or never, where there is one server.
async fn another_place(places: Option<&mut watch::Receiver<u64>>) {
    match places {
        Some(places) => places.changed().await.expect("the whole keeps the other end"),
        None => std::future::pending().await,
    }
}

/// Say what in a configuration is allowed, and hardly meant.
fn warn_of(config: &Config) {
    for warning in config.warnings() {
        warn!("{warning}");
    }
}

/// The next request, or never, where there is no control socket.
async fn next_request(control: Option<&mut Control>) -> Request {
    match control {
        Some(control) => control.next().await,
        None => std::future::pending().await,
    }
}
