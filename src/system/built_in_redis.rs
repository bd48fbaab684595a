//! The built-in Redis: with no `redis.url`, dripd runs a server itself, with its data in a directory.
//!
//! A lock in the directory decides which daemon supervises it. The supervisor starts the server in a process group of
//! its own, starts it again when it died, and stops it last. A server that a crash left behind is adopted: it answers
//! on the socket in the directory and was started from the `redis.conf` there. A daemon that does not get the lock is a
//! guest: it uses the server and never stops it, and becomes the supervisor when the lock is free.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tracing::{info, warn};

use crate::config::{BadConfig, RedisSettings};
use crate::store::{Address, Layout, Store, StoreError};

/// The programs that may serve, the best first.
const PROGRAMS: [&str; 2] = ["valkey-server", "redis-server"];

/// How long a server may take until it answers; loading its data does not count.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// How long a server may take to stop, and to say which process it is, if the daemon has so much time left.
const STOPS_WITHIN: Duration = Duration::from_millis(2_500);
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// The longest path of a socket. Where the path is longer, the daemon uses the port.
const LONGEST_SOCKET: usize = 100;

/// Why there is no built-in Redis. Each error says the way out.
#[derive(Debug, thiserror::Error)]
pub enum BuiltInRedisError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}: {why}; set redis.data_dir to a directory that dripd may write to")]
    Directory {
        /// The directory, or the lock file in it.
        path: PathBuf,
        /// The error of the system.
        why: std::io::Error,
    },
    /// No suitable server program was found.
    #[error(
        "no redis to run: {found}; install one (apt install redis-server, dnf install valkey, apk add redis, \
         brew install redis) or set redis.url"
    )]
    NoServer {
        /// The programs that were found instead, or none.
        found: String,
    },
    /// The port is not free.
    #[error("cannot start redis: 127.0.0.1:{port} is taken by {by}; stop it, set redis.port, or use it with redis.url")]
    PortTaken {
        /// The port.
        port: u16,
        /// The program that holds the port, as far as it can be told.
        by: String,
    },
    /// The server ended before it answered.
    #[error("cannot start redis: {program} ended with {status}; {log} says: {tail}")]
    Ended {
        /// The program.
        program: PathBuf,
        /// The exit status.
        status: String,
        /// The log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// The server does not answer.
    #[error("redis in {path} does not answer: {why}")]
    Silent {
        /// The data directory.
        path: PathBuf,
        /// The error of a connection.
        why: StoreError,
    },
    /// The address is invalid.
    #[error(transparent)]
    Address(#[from] BadConfig),
}

/// The role of this process.
#[derive(Debug)]
enum Role {
    /// This process holds the lock.
    Supervisor { lock: File, server: Option<Running> },
    /// Another process holds the lock.
    Guest,
}

/// The server's process, and, where this process started it, the handle to it.
#[derive(Debug)]
struct Running {
    pid: Pid,
    child: Option<Child>,
}

impl Running {
    fn is_gone(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => test_kill_process(self.pid).is_err(),
        }
    }
}

/// A Redis that dripd runs itself.
#[derive(Debug)]
pub struct BuiltInRedis {
    settings: RedisSettings,
    address: Address,
    role: Role,
}

impl BuiltInRedis {
    /// Take the data directory; [`Self::ensure`] runs or finds its server.
    ///
    /// # Errors
    ///
    /// When the directory cannot be created or locked, or the address is invalid.
    pub fn open(settings: &RedisSettings) -> Result<Self, BuiltInRedisError> {
        let dir = &settings.data_dir;
        let unusable = |why| BuiltInRedisError::Directory { path: dir.clone(), why };
        if !dir.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
        }
        let socket = socket_path(dir);
        let address = if fits_socket(&socket) { Address::of_socket(&socket) } else { Address::of(settings)? };
        let mut built_in = Self { settings: settings.clone(), address, role: Role::Guest };
        if !built_in.become_supervisor()? {
            info!(path = %dir.display(), "another dripd supervises redis in this directory; serving beside it");
        }
        Ok(built_in)
    }

    /// The address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    async fn connect(&self) -> Result<Store, StoreError> {
        Store::connect(&self.address, &Layout::of(&self.settings).authority()).await
    }

    /// Become the supervisor if there is none. Replies whether this process is the supervisor.
    fn become_supervisor(&mut self) -> Result<bool, BuiltInRedisError> {
        if matches!(self.role, Role::Guest)
            && let Some(lock) = self.lock()?
        {
            self.role = Role::Supervisor { lock, server: None };
        }
        Ok(matches!(self.role, Role::Supervisor { .. }))
    }

    /// See that the server runs: become the supervisor if there is none, adopt a server that was left behind, start one
    /// if there is none. This may take long, and the caller may give up at any moment.
    ///
    /// # Errors
    ///
    /// Each names what is in the way and the way out.
    pub async fn ensure(&mut self) -> Result<(), BuiltInRedisError> {
        if !self.become_supervisor()? {
            return Ok(());
        }
        let Role::Supervisor { server, .. } = &mut self.role else { return Ok(()) };
        if let Some(running) = server {
            if !running.is_gone() {
                return Ok(());
            }
            warn!(pid = running.pid.as_raw_nonzero().get(), "redis ended; starting it again");
            *server = None;
        }
        if let Some(pid) = self.find_left_behind().await? {
            self.set_running(Running { pid, child: None });
            return Ok(());
        }
        self.spawn().await
    }

    fn set_running(&mut self, running: Running) {
        if let Role::Supervisor { server, .. } = &mut self.role {
            *server = Some(running);
        }
    }

    fn lock(&self) -> Result<Option<File>, BuiltInRedisError> {
        let path = self.settings.data_dir.join("dripd.lock");
        let unusable = |why| BuiltInRedisError::Directory { path: path.clone(), why };
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(why)) => Err(unusable(why)),
        }
    }

    /// Find a server that a crash left behind: it was started from the `redis.conf` of this directory. If a server
    /// listens on the socket here and does not answer, this call waits for it: it may hang, or load its data.
    async fn find_left_behind(&self) -> Result<Option<Pid>, BuiltInRedisError> {
        let (conf, since) = (self.settings.data_dir.join("redis.conf"), Instant::now());
        let adopt = async |mut store: Store| -> Result<Option<Pid>, StoreError> {
            if !same_file(Path::new(&store.config_file().await?), &conf) {
                return Ok(None);
            }
            let pid = Pid::from_raw(store.process_id().await?);
            info!("adopted the redis that was left in the data directory");
            if let Err(why) = store.set_fsync(self.settings.fsync).await {
                warn!(%why, "redis keeps its old fsync");
            }
            Ok(pid)
        };
        loop {
            let found = match self.connect().await {
                Ok(store) => adopt(store).await,
                Err(why) => Err(why),
            };
            match found {
                Ok(pid) => return Ok(pid),
                Err(StoreError::Loading { .. }) => {}
                Err(_) if !self.is_listened_to() => return Ok(None),
                Err(why) if since.elapsed() > ANSWERS_WITHIN => {
                    return Err(BuiltInRedisError::Silent { path: self.settings.data_dir.clone(), why });
                }
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether a server listens on the socket of this directory. Only a server of this directory would.
    fn is_listened_to(&self) -> bool {
        let socket = socket_path(&self.settings.data_dir);
        fits_socket(&socket) && std::os::unix::net::UnixStream::connect(socket).is_ok()
    }

    /// Start the server and wait until it answers; the answer that it is loading its data is enough.
    async fn spawn(&mut self) -> Result<(), BuiltInRedisError> {
        let program = find_program().await?;
        self.check_port().await?;
        let dir = self.settings.data_dir.clone();
        let unusable = |why| BuiltInRedisError::Directory { path: dir.clone(), why };
        let conf = write_conf(&self.settings).map_err(unusable)?;
        let log_path = dir.join("redis.log");
        let log = || OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
        let mut command = Command::new(&program);
        command.arg(conf).stdin(Stdio::null());
        command.stdout(log().map_err(unusable)?).stderr(log().map_err(unusable)?);
        std::os::unix::process::CommandExt::process_group(&mut command, 0); // keeps Ctrl-C from redis; dripd stops it
        let child = command.spawn().map_err(|why| BuiltInRedisError::NoServer {
            found: format!("{} does not run: {why}", program.display()),
        })?;
        let pid = Pid::from_child(&child);
        // The process is recorded before it answers, so that a daemon which gives up waiting can still stop it.
        self.set_running(Running { pid, child: Some(child) });
        let since = Instant::now();
        loop {
            match self.connect().await {
                Ok(_) | Err(StoreError::Loading { .. }) => break,
                Err(why) => {
                    if let Some(status) = self.ended() {
                        let (status, tail) = (status.to_string(), tail(&log_path));
                        return Err(BuiltInRedisError::Ended { program, status, log: log_path, tail });
                    }
                    if since.elapsed() > ANSWERS_WITHIN {
                        return Err(BuiltInRedisError::Silent { path: dir, why });
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        let pid = pid.as_raw_nonzero().get();
        info!(program = %program.display(), pid, path = %dir.display(), port = self.settings.port, "started redis");
        Ok(())
    }

    /// The exit status of the server that this process started, if it has ended. The server is then forgotten.
    fn ended(&mut self) -> Option<ExitStatus> {
        let Role::Supervisor { server, .. } = &mut self.role else { return None };
        let status = server.as_mut()?.child.as_mut()?.try_wait().ok().flatten()?;
        *server = None;
        Some(status)
    }

    async fn check_port(&self) -> Result<(), BuiltInRedisError> {
        let port = self.settings.port;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(());
        }
        let by = match Store::connect(&Address::of(&self.settings)?, &Layout::of(&self.settings).authority()).await {
            Ok(mut store) => match store.config_file().await {
                Ok(file) if !file.is_empty() => format!("the redis of {file}"),
                _ => "another redis".to_owned(),
            },
            Err(_) => "another program".to_owned(),
        };
        Err(BuiltInRedisError::PortTaken { port, by })
    }

    /// Stop the server if this process supervises it: the server flushes, fsyncs and exits. A server that hangs is told
    /// to stop and not waited for: it stops when it can, or the next start adopts it. Returns by `until`.
    pub async fn stop(self, until: Instant) {
        let (mut running, _held) = match self.role {
            Role::Supervisor { server: Some(running), lock } => (running, lock),
            Role::Supervisor { server: None, .. } => return,
            Role::Guest => {
                // A guest that gets the lock has lost its supervisor, and stops the server in its place.
                let Ok(Some(lock)) = self.lock() else { return };
                let asked = async { self.connect().await?.process_id().await };
                let asked_until = until.min(Instant::now() + ASKED_WITHIN);
                let Ok(Ok(pid)) = tokio::time::timeout_at(asked_until.into(), asked).await else { return };
                let Some(pid) = Pid::from_raw(pid) else { return };
                (Running { pid, child: None }, lock)
            }
        };
        let _ = kill_process(running.pid, Signal::TERM); // acts as SHUTDOWN
        let until = until.min(Instant::now() + STOPS_WITHIN);
        while Instant::now() < until {
            if running.is_gone() {
                info!("stopped redis");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let pid = running.pid.as_raw_nonzero().get();
        warn!(pid, "redis still stops; the next start will adopt it if it does not");
    }
}

/// Write the `redis.conf` of a server with these settings into its data directory and return its path.
///
/// # Errors
///
/// When the directory is missing or not writable.
pub fn write_conf(settings: &RedisSettings) -> std::io::Result<PathBuf> {
    let dir = &settings.data_dir;
    let socket = socket_path(dir);
    let quoted = |path: &Path| format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""));
    let mut conf = format!(
        "# Written by dripd at every start.\n\
         bind 127.0.0.1\nport {}\ndir {}\ndaemonize no\nappendonly yes\nappendfsync {}\nsave \"\"\n\
         maxmemory-policy noeviction\nloglevel notice\nlogfile \"\"\nalways-show-logo no\n",
        settings.port,
        quoted(dir),
        settings.fsync.as_str(),
    );
    if fits_socket(&socket) {
        conf += &format!("unixsocket {}\nunixsocketperm 600\n", quoted(&socket));
    }
    let path = dir.join("redis.conf");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(conf.as_bytes())?;
    Ok(path)
}

fn socket_path(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

fn fits_socket(path: &Path) -> bool {
    path.as_os_str().len() <= LONGEST_SOCKET
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// The first server program on the PATH whose version is 7.0 or newer.
///
/// # Errors
///
/// [`BuiltInRedisError::NoServer`] with the programs that were found instead.
pub async fn find_program() -> Result<PathBuf, BuiltInRedisError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = Vec::new();
    for name in PROGRAMS {
        for program in std::env::split_paths(&path).map(|dir| dir.join(name)).filter(|program| program.is_file()) {
            let output = tokio::process::Command::new(&program).arg("--version").output().await;
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("unknown");
            if version.split('.').next().and_then(|n| n.parse::<u32>().ok()).is_some_and(|major| major >= 7) {
                return Ok(program);
            }
            found.push(format!("{} is {version}, 7.0 or newer is needed", program.display()));
        }
    }
    if found.is_empty() {
        found.push("neither valkey-server nor redis-server is on the PATH".to_owned());
    }
    Err(BuiltInRedisError::NoServer { found: found.join("; ") })
}

/// The last three lines of a log that are not blank, joined into one.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}
