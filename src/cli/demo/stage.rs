//! The stage of a demo: a throw-away directory, and daemons on one built-in Redis in it.

use std::net::TcpListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{Exit, Failure};
use crate::config::{Config, Environment, without_variables};
use crate::store::{Address, Layout, Store};

/// How long a daemon may take until it serves.
const SERVES_WITHIN: Duration = Duration::from_secs(20);

/// A daemon of the demo.
struct Daemon {
    number: usize,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn send(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// A port that nobody listens on. It is below those that the system hands out by itself, so that no connection of somebody
/// else takes it before Redis does.
fn free_port() -> Option<u16> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(30_000..32_700)).take(10_000).find(is_free)
}

/// The daemons and their directory. Both end with this value.
pub(super) struct Stage {
    /// Those that run.
    daemons: Vec<Daemon>,
    path: PathBuf,
    pub(super) config: Config,
    pub(super) address: Address,
    home: tempfile::TempDir,
}

impl Stage {
    /// Choose a directory and a port, for these policies. Nothing runs yet.
    pub(super) fn new(policies: &str) -> Result<Self, Failure> {
        let home = tempfile::tempdir()?;
        let port = free_port()
            .ok_or_else(|| Failure::new(Exit::Failed, "no port of 30000 to 32700 is free for the demo's Redis"))?;
        let data = home.path().join("data").display().to_string();
        let toml = format!("[redis]\nport = {port}\ndata_dir = {data:?}\n[http]\nlisten = \"\"\n{policies}");
        let path = home.path().join("config.toml");
        std::fs::write(&path, &toml)?;
        let config = Config::parse(&toml, Some(path.clone()), &Environment::default())?;
        let address = Address::of(&config.redis)?;
        Ok(Self { daemons: Vec::new(), path, config, address, home })
    }

    /// Start so many daemons, one after the other: the first one runs Redis, the others find it.
    pub(super) async fn start(&mut self, daemons: usize) -> Result<Store, Failure> {
        self.spawn()?;
        let mut store = self.wait_for_all().await?;
        while self.daemons.len() < daemons {
            self.spawn()?;
            store = self.wait_for_all().await?;
        }
        Ok(store)
    }

    fn spawn(&mut self) -> Result<(), Failure> {
        let (home, number) = (self.home.path(), self.daemons.len() + 1);
        let log = home.join(format!("daemon-{number}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--config").arg(&self.path).arg("run").current_dir(home);
        without_variables(&mut command).env_remove("STATE_DIRECTORY");
        command.env("RUNTIME_DIRECTORY", home.join(format!("run-{number}")));
        command.process_group(0); // Ctrl-C is for the demo: it stops the daemons
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
        self.daemons.push(Daemon { number, child: command.spawn()?, log });
        Ok(())
    }

    /// Wait until every daemon that was started says in Redis that it serves.
    async fn wait_for_all(&mut self) -> Result<Store, Failure> {
        let (since, partition) = (Instant::now(), Layout::of(&self.config.redis).authority());
        while since.elapsed() <= SERVES_WITHIN {
            self.check()?;
            if let Ok(mut store) = Store::connect(&self.address, &partition).await
                && let Ok(alive) = store.daemons().await
                && alive.iter().filter(|daemon| daemon.has_record).count() == self.daemons.len()
            {
                return Ok(store);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let why = format!("a daemon does not serve after {} s", SERVES_WITHIN.as_secs());
        Err(Failure::new(Exit::Failed, why))
    }

    /// That every daemon goes on, save the one that the demo killed: else what it said last.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for Daemon { number, child, log } in &mut self.daemons {
            if let Some(status) = child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let said = said.lines().last().unwrap_or("nothing");
                let exit = if status.code() == Some(69) { Exit::Unavailable } else { Exit::Failed };
                return Err(Failure::new(exit, format!("daemon {number} ended: {said}")));
            }
        }
        Ok(())
    }

    /// The processes of the daemons that run.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.daemons.iter().map(|daemon| daemon.child.id()).collect()
    }

    /// Kill the first daemon, which is the one that runs Redis, as `kill -9` does: it can do nothing about it.
    pub(super) fn kill_first(&mut self) -> Result<(), Failure> {
        let mut daemon = self.daemons.remove(0);
        daemon.send(Signal::KILL);
        match daemon.child.wait()?.signal() {
            Some(9) => Ok(()),
            _ => Err(Failure::new(Exit::Failed, "daemon 1 ended before it was killed")),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Whichever of them supervises Redis by now stops it.
        self.daemons.iter().for_each(|daemon| daemon.send(Signal::TERM));
        for daemon in &mut self.daemons {
            let _ = daemon.child.wait();
        }
    }
}
