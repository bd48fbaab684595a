//! The built-in Redis: with no `redis.url`, dripd runs a server itself, with its data in a directory.
//!
//! A lock in the directory decides who supervises it. The supervisor starts the server in a process group of its own,
//! starts it again when it died, and stops it last. A server that a crash left behind is adopted: it answers on the
//! socket in the directory and was started from the `redis.conf` there. Whoever does not get the lock is a guest, uses
//! the server and never stops it, and becomes the supervisor when the lock is free.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tracing::{info, warn};

use crate::config::{BadConfig, RedisSettings};
use crate::store::{Address, Partition, Store, StoreError};

/// The programs that may serve, the best first.
const PROGRAMS: [&str; 2] = ["valkey-server", "redis-server"];

/// How long a server may take until it answers; loading its data does not count.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// How long a server may take to stop.
const STOPS_WITHIN: Duration = Duration::from_millis(3_500);

/// A path of a socket may not be longer; beyond it, the port has to do.
const LONGEST_SOCKET: usize = 100;

/// Why there is no built-in Redis. Each says the way out.
#[derive(Debug, thiserror::Error)]
pub enum BuiltInRedisError {
    /// The directory is of no use.
    #[error("cannot use the data directory {path}: {why}; set redis.data_dir to a directory that dripd may write to")]
    Directory {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// No program to run.
    #[error(
        "no redis to run: {found}; install one (apt install redis-server, dnf install valkey, apk add redis, \
         brew install redis) or set redis.url"
    )]
    NoServer {
        /// What was found instead.
        found: String,
    },
    /// The port is not free.
    #[error("cannot start redis: 127.0.0.1:{port} is taken by {by}; stop it, set redis.port, or use it with redis.url")]
    PortTaken {
        /// Which one.
        port: u16,
        /// By whom, as far as it says.
        by: String,
    },
    /// It ended before it answered.
    #[error("cannot start redis: {program} ended with {status}; {log} says: {tail}")]
    Ended {
        /// What was run.
        program: PathBuf,
        /// How it ended.
        status: String,
        /// Where it logs.
        log: PathBuf,
        /// The last lines of that.
        tail: String,
    },
    /// It does not answer.
    #[error("redis in {path} does not answer: {why}")]
    Silent {
        /// The data directory.
        path: PathBuf,
        /// What a connection says.
        why: StoreError,
    },
    /// The address is of no use.
    #[error(transparent)]
    Address(#[from] BadConfig),
}

/// What this process is to the built-in Redis.
#[derive(Debug)]
enum Role {
    /// It holds the lock, and the server's process where it started it itself.
    Supervisor { lock: File, child: Option<Child> },
    /// Another process holds the lock.
    Guest,
}

/// A Redis that dripd runs itself.
#[derive(Debug)]
pub struct BuiltInRedis {
    settings: RedisSettings,
    address: Address,
    role: Role,
}

impl BuiltInRedis {
    /// Take the data directory, and run or find its server.
    ///
    /// # Errors
    ///
    /// Each names what is in the way and the way out.
    pub async fn start(settings: &RedisSettings) -> Result<Self, BuiltInRedisError> {
        let dir = &settings.data_dir;
        let unusable = |why| BuiltInRedisError::Directory { path: dir.clone(), why };
        if !dir.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
        }
        let socket = socket_path(dir);
        let address = if fits_socket(&socket) { Address::of_socket(&socket)? } else { Address::of(settings)? };
        let mut built_in = Self { settings: settings.clone(), address, role: Role::Guest };
        built_in.ensure().await?;
        if matches!(built_in.role, Role::Guest) {
            info!(path = %dir.display(), "another dripd supervises redis in this directory; serving beside it");
        }
        Ok(built_in)
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    async fn connect(&self) -> Result<Store, StoreError> {
        Store::connect(&self.address, &Partition::of(&self.settings)).await
    }

    /// See that the server runs: become the supervisor where there is none, start it when it died.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn ensure(&mut self) -> Result<(), BuiltInRedisError> {
        if matches!(self.role, Role::Guest) {
            let Some(lock) = self.lock()? else { return Ok(()) };
            self.role = Role::Supervisor { lock, child: None };
        }
        let Role::Supervisor { child, .. } = &mut self.role else { return Ok(()) };
        if let Some(running) = child {
            match running.try_wait() {
                Ok(None) => return Ok(()),
                Ok(Some(status)) => warn!(%status, "redis ended; starting it again"),
                Err(why) => warn!(%why, "redis cannot be watched; starting it again"),
            }
            *child = None;
        } else if self.is_ours().await {
            return Ok(());
        }
        let started = self.spawn().await?;
        if let Role::Supervisor { child, .. } = &mut self.role {
            *child = Some(started);
        }
        Ok(())
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

    /// Whether a server left behind by a crash answers: started from the `redis.conf` of this directory.
    async fn is_ours(&self) -> bool {
        let conf = self.settings.data_dir.join("redis.conf");
        loop {
            match self.connect().await {
                Err(StoreError::Loading { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(_) => return false,
                Ok(mut store) => {
                    let ours = store.config_file().await.is_ok_and(|file| same_file(Path::new(&file), &conf));
                    if ours {
                        info!("adopted the redis that was left in the data directory");
                        if let Err(why) = store.set_fsync(self.settings.fsync).await {
                            warn!(%why, "redis keeps its old fsync");
                        }
                    }
                    return ours;
                }
            }
        }
    }

    async fn spawn(&self) -> Result<Child, BuiltInRedisError> {
        let program = find_program().await?;
        self.check_port().await?;
        let dir = &self.settings.data_dir;
        let unusable = |why| BuiltInRedisError::Directory { path: dir.clone(), why };
        let conf = write_conf(&self.settings).map_err(unusable)?;
        let log_path = dir.join("redis.log");
        let log = || OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
        let mut command = Command::new(&program);
        command.arg(conf).stdin(Stdio::null());
        command.stdout(log().map_err(unusable)?).stderr(log().map_err(unusable)?);
        std::os::unix::process::CommandExt::process_group(&mut command, 0); // Ctrl-C is for dripd: it stops redis last
        let mut child = command.spawn().map_err(|why| BuiltInRedisError::NoServer {
            found: format!("{} does not run: {why}", program.display()),
        })?;
        let since = Instant::now();
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                let (status, tail) = (status.to_string(), tail(&log_path));
                return Err(BuiltInRedisError::Ended { program, status, log: log_path, tail });
            }
            match self.connect().await {
                Ok(_) | Err(StoreError::Loading { .. }) => break,
                Err(why) if since.elapsed() > ANSWERS_WITHIN => {
                    let _ = child.kill();
                    return Err(BuiltInRedisError::Silent { path: dir.clone(), why });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        info!(program = %program.display(), pid = child.id(), path = %dir.display(), port = self.settings.port, "started redis");
        Ok(child)
    }

    async fn check_port(&self) -> Result<(), BuiltInRedisError> {
        let port = self.settings.port;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(());
        }
        let by = match Store::connect(&Address::of(&self.settings)?, &Partition::of(&self.settings)).await {
            Ok(mut store) => match store.config_file().await {
                Ok(file) if !file.is_empty() => format!("the redis of {file}"),
                _ => "another redis".to_owned(),
            },
            Err(_) => "another program".to_owned(),
        };
        Err(BuiltInRedisError::PortTaken { port, by })
    }

    /// Stop the server, if it is this process that supervises it. What cannot be stopped in time is left to be adopted.
    pub async fn stop(self) {
        // A guest whose supervisor is gone is the last one here.
        let orphaned = if matches!(self.role, Role::Guest) { self.lock().ok().flatten() } else { None };
        let (child, _held) = match (self.role, orphaned) {
            (Role::Supervisor { child, lock }, _) => (child, lock),
            (Role::Guest, Some(lock)) => (None, lock),
            (Role::Guest, None) => return,
        };
        let Some(pid) = Store::connect(&self.address, &Partition::of(&self.settings)).await.ok() else {
            if let Some(mut child) = child {
                let _ = child.kill(); // it does not answer, so there is nothing to be lost in asking
                let _ = child.wait();
            }
            return;
        };
        let mut store = pid;
        let pid = store.process_id().await.ok().and_then(Pid::from_raw);
        drop(store);
        let Some(pid) = pid else { return };
        let _ = kill_process(pid, Signal::TERM); // as SHUTDOWN: flush, fsync, exit
        let (since, mut child) = (Instant::now(), child);
        while since.elapsed() < STOPS_WITHIN {
            let gone = match &mut child {
                Some(child) => matches!(child.try_wait(), Ok(Some(_))),
                None => test_kill_process(pid).is_err(),
            };
            if gone {
                info!("stopped redis");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        warn!(pid = pid.as_raw_nonzero().get(), "redis still stops; the next start will adopt it if it does not");
    }
}

/// Write the `redis.conf` of a server with these settings into its data directory. Replies where it is.
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

/// The first program on the PATH that is 7.0 or newer.
///
/// # Errors
///
/// [`BuiltInRedisError::NoServer`] with what was found instead.
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

/// The end of a log, on one line.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}
