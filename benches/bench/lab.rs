//! The servers and daemons that are measured: each a process of its own, a server configured as `dripd run` configures its
//! built-in Redis, in a throw-away directory. A shell stands between each of them and the bench and waits for the end of its
//! input, so that they end with the bench, however that ends.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dripd::config::connection::Place;
use dripd::config::{Fsync, RedisSettings, without_variables};
use dripd::model::partitioning::Partitioning;
use dripd::store::{Layout, Partition};
use dripd::system::built_in_redis;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::measure::Cost;
use super::wire::Wire;

/// How long a server or a daemon may take until it serves.
const SERVES_WITHIN: Duration = Duration::from_secs(20);

/// The program that is measured: cargo builds it together with the bench, with the same profile.
pub(super) const DRIPD: &str = env!("CARGO_BIN_EXE_dripd");

/// How the names of the throw-away directories of this process begin.
pub(super) fn home_prefix() -> String {
    format!("dripd-bench-{}-", std::process::id())
}

/// A port that nobody listens on now. It is below those that the system hands out by itself: a connection of somebody else cannot take it
/// before the server that it is for does.
pub(super) fn free_port() -> io::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let free = std::iter::repeat_with(|| fastrand::u16(30_000..32_700)).take(10_000).find(is_free);
    free.ok_or_else(|| io::Error::other("no port is free"))
}

/// A process under measurement.
struct Guarded {
    shell: Child,
    pid: Pid,
}

impl Guarded {
    /// Start a program; its standard error goes to `log`. When it ends, it gets `signal`, and `home` is removed.
    fn start(program: &Path, args: &[&str], log: &Path, signal: &str, home: Option<&Path>) -> io::Result<Self> {
        let script = r#"signal=$1 home=$2 log=$3; shift 3
            "$@" >/dev/null 2>"$log" & pid=$!; echo $pid
            read -r _; kill -$signal $pid; wait $pid; [ -z "$home" ] || rm -rf "$home""#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", signal]).arg(home.unwrap_or(Path::new(""))).arg(log).arg(program).args(args);
        without_variables(&mut command)
            .env_remove("STATE_DIRECTORY")
            .env("RUNTIME_DIRECTORY", log.with_extension("run"));
        std::os::unix::process::CommandExt::process_group(&mut command, 0); // Ctrl-C is for the bench
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other(format!("{} did not start", program.display())))?;
        Ok(Self { shell, pid })
    }

    /// Processor time so far, in microseconds, of the threads that still run: schedstat counts nanoseconds, stat only ticks.
    fn cpu_us(&self) -> io::Result<f64> {
        let mut ns = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero()))? {
            let schedstat = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            ns += schedstat.split_whitespace().next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
        if ns == 0 {
            return Err(io::Error::other(
                "this kernel does not count processor time in /proc/<pid>/task/<tid>/schedstat",
            ));
        }
        Ok(ns as f64 / 1e3)
    }

    fn proc(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid.as_raw_nonzero()))
    }

    /// Resident memory now and at most so far, in megabytes.
    fn memory(&self) -> io::Result<(f64, f64)> {
        let status = self.proc("status")?;
        let line = |name: &str| -> Option<f64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        Ok((line("VmRSS:").unwrap_or(0.0) / 1024.0, line("VmHWM:").unwrap_or(0.0) / 1024.0))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::CONT); // one that a suite left frozen, for it broke off, could not end
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A Redis of the bench.
pub(super) struct Server {
    // The daemons of a server are dropped before it: whoever holds both declares the daemon first.
    process: Guarded,
    /// Its loopback port.
    pub(super) port: u16,
    home: PathBuf,
    daemons: std::cell::Cell<u32>,
}

impl Server {
    /// Start one, as dripd starts its own: append-only file, fsync every second.
    pub(super) fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// The same with more options.
    pub(super) fn start_with(more: &[&str]) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let program = runtime.block_on(built_in_redis::find_program()).map_err(io::Error::other)?;
        let home = tempfile::Builder::new().prefix(&home_prefix()).tempdir()?.keep();
        let port = free_port()?;
        let settings = RedisSettings {
            place: Place::BuiltIn,
            user: None,
            password_file: None,
            tls: None,
            file_holds_password: false,
            prefix: "drip".to_owned(),
            partitioning: Partitioning::default(),
            data_dir: home.clone(),
            port,
            fsync: Fsync::EverySecond,
        };
        let conf = built_in_redis::write_conf(&settings)?;
        let conf =
            conf.to_str().ok_or_else(|| io::Error::other("the temporary directory has a name that is no text"))?;
        // A rewrite of the append-only file forks in the middle of a sample; how often depends on what ran before.
        let args = [&[conf, "--auto-aof-rewrite-percentage", "0"], more].concat();
        let process = Guarded::start(&program, &args, &home.join("redis.log"), "KILL", Some(&home))?;
        let server = Self { process, port, home, daemons: std::cell::Cell::new(0) };
        wait_for("redis", || Ok(server.wire().and_then(|mut wire| wire.call(&["PING"])).is_ok()))?;
        Ok(server)
    }

    /// A new connection.
    pub(super) fn wire(&self) -> io::Result<Wire> {
        Wire::open(self.port)
    }

    /// Start a daemon with these policies, and wait until it serves.
    pub(super) fn daemon(&self, policies: &str) -> io::Result<Daemon> {
        let daemon = self.daemon_at(&format!("unix://{}", self.home.join("redis.sock").display()), policies)?;
        daemon.wait_until_it_serves()?;
        Ok(daemon)
    }

    /// Start a daemon that reaches Redis at `url`; it does not serve yet.
    pub(super) fn daemon_at(&self, url: &str, policies: &str) -> io::Result<Daemon> {
        self.daemon_of(&format!("url = {url:?}"), policies)
    }

    /// The same of any system that this server belongs to; `redis` goes into `[redis]`.
    pub(super) fn daemon_of(&self, redis: &str, policies: &str) -> io::Result<Daemon> {
        let n = self.daemons.get();
        self.daemons.set(n + 1);
        let (config, log) = (self.home.join(format!("{n}.toml")), self.home.join(format!("{n}.log")));
        // The default port is one for all daemons of a machine.
        let http = if policies.contains("[http]") { "" } else { "[http]\nlisten = \"\"\n" };
        // Most suites measure what leaves buckets, with nobody who takes it.
        let off = if policies.contains("ready_window") { "" } else { "ready_window = \"off\"\n" };
        let limits = format!("[limits]\nmax_ready = 10000000\n{off}");
        fs::write(&config, format!("[redis]\n{redis}\n{http}{limits}{policies}"))?;
        let args = ["--config", config.to_str().expect("the home is a text"), "run"];
        Ok(Daemon { process: Guarded::start(Path::new(DRIPD), &args, &log, "TERM", None)?, log, config })
    }

    /// The same, by the socket.
    pub(super) fn begin_daemon(&self, policies: &str) -> io::Result<Daemon> {
        self.daemon_at(&format!("unix://{}", self.home.join("redis.sock").display()), policies)
    }

    /// Resident memory of Redis now, in megabytes.
    pub(super) fn memory(&self) -> io::Result<f64> {
        self.process.memory().map(|(now, _)| now)
    }

    /// Put policies into force, with no daemon running afterwards.
    pub(super) fn record(&self, policies: &str) -> io::Result<()> {
        self.daemon(policies).map(drop)
    }
}

/// Processor time of a server and of its daemons so far.
pub(super) fn spent(server: &Server, daemons: &[Daemon]) -> io::Result<Cost> {
    let of_daemons: io::Result<Vec<f64>> = daemons.iter().map(|daemon| daemon.process.cpu_us()).collect();
    Ok(Cost { redis_us: server.process.cpu_us()?, daemon_us: of_daemons?.iter().sum() })
}

/// A core of its own for the load, and another for the servers, as on separate machines; until it is dropped. A round trip takes
/// twice as long from core to core as within one, and the kernel moves processes between samples.
pub(super) struct Apart(CpuSet);

impl Apart {
    /// Put the calling thread and some servers on different cores; where there is only one, nothing is changed.
    pub(super) fn of(servers: &[&Server]) -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        if let (Some(first), Some(second)) = (cores.next(), cores.next()) {
            let only = |core| {
                let mut set = CpuSet::new();
                set.set(core);
                set
            };
            for server in servers {
                sched_setaffinity(Some(server.process.pid), &only(first))?;
            }
            sched_setaffinity(None, &only(second))?;
        }
        Ok(Self(allowed))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// A `dripd run` of the bench, or another command that goes on until it is ended.
pub(super) struct Daemon {
    process: Guarded,
    log: PathBuf,
    config: PathBuf,
}

impl Daemon {
    /// Wait until it says that it serves.
    pub(super) fn wait_until_it_serves(&self) -> io::Result<()> {
        self.wait_until_it_says("serving", 1)
    }

    /// Wait until its log has some words so many times.
    pub(super) fn wait_until_it_says(&self, words: &str, times: usize) -> io::Result<()> {
        let since = Instant::now();
        loop {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            if said.matches(words).count() >= times {
                return Ok(());
            }
            if since.elapsed() > SERVES_WITHIN {
                return Err(io::Error::other(format!("the daemon does not say {words:?}; it said: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Where its HTTP server is, which chose a port.
    pub(super) fn http_port(&self) -> io::Result<u16> {
        let said = fs::read_to_string(&self.log)?;
        let port =
            said.lines().find(|line| line.contains("the HTTP server listens")).and_then(|line| line.rsplit(':').next());
        let port = port.and_then(|port| port.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok());
        port.ok_or_else(|| io::Error::other(format!("the daemon opened no door; it said: {}", said.trim())))
    }

    /// Hold it still, as if it were not there, or let it go on.
    pub(super) fn freeze(&self, still: bool) -> io::Result<()> {
        Ok(kill_process(self.process.pid, if still { Signal::STOP } else { Signal::CONT })?)
    }

    /// Another command of dripd's, with the configuration of this daemon.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(DRIPD);
        command.arg("--config").arg(&self.config).args(args);
        without_variables(&mut command).env("RUNTIME_DIRECTORY", self.log.with_extension("run"));
        command
    }

    /// Another command of dripd's that goes on until it is dropped, such as `work`.
    pub(super) fn beside(&self, args: &[&str]) -> io::Result<Self> {
        let (config, log) = (self.config.clone(), self.log.with_extension("beside.log"));
        let args = [&["--config", config.to_str().expect("the home is a text")], args].concat();
        Ok(Self { process: Guarded::start(Path::new(DRIPD), &args, &log, "TERM", None)?, log, config })
    }

    /// Put something else in the place of a text of the configuration; a reload finds it.
    pub(super) fn rewrite(&self, old: &str, new: &str) -> io::Result<()> {
        fs::write(&self.config, fs::read_to_string(&self.config)?.replace(old, new))
    }

    /// How many descriptors it has open.
    pub(super) fn descriptors(&self) -> io::Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.process.pid.as_raw_nonzero()))?.count())
    }

    /// Processor time so far, in ticks of 10 ms.
    pub(super) fn ticks(&self) -> io::Result<u64> {
        let stat = self.process.proc("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |n: usize| fields.get(n).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Ok(field(11) + field(12)) // utime and stime are the 14th and 15th of proc(5), the first two are cut off
    }

    /// Resident memory now and at most so far, in megabytes.
    pub(super) fn memory(&self) -> io::Result<(f64, f64)> {
        self.process.memory()
    }
}

/// Wait until something is so in another process.
pub(super) fn wait_for(what: &str, mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let since = Instant::now();
    while !is_so()? {
        if since.elapsed() > 6 * SERVES_WITHIN {
            return Err(io::Error::other(format!("waited in vain for {what}")));
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(())
}

/// Wait for the end of the walk over what has changed, which ranks the buckets: it takes a fiftieth of Redis' time.
pub(super) fn wait_for_quiet(wire: &mut Wire) -> io::Result<()> {
    let mut calls = 0.0;
    for _ in 0..300 {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut calls, wire.info("stats", "total_commands_processed")?);
        if calls - before <= 4.0 {
            return Ok(());
        }
    }
    Err(io::Error::other("Redis is not quiet after five minutes"))
}

/// The keys that the bench uses, as any producer and worker would.
pub(super) fn keys() -> Partition {
    Layout::new("drip", Partitioning::default()).authority()
}

/// The queue of a bucket.
pub(super) fn queue(bucket: &str) -> String {
    format!("{}{bucket}", keys().queues())
}
