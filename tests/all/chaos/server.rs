//! A Redis at one port and with one directory, however often it is killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Connection, RedisResult};

use crate::rig::{eventually, free_port, server_program};

/// It ends with the value, and with the test program.
pub struct Redis {
    home: tempfile::TempDir,
    pub port: u16,
    /// What runs the program, if it is not run as it is: its words stand before it.
    pub through: Vec<String>,
    /// When a write is on the disk.
    pub fsync: &'static str,
    /// More options, at every start.
    pub options: Vec<String>,
    shell: Option<Child>,
}

impl Redis {
    /// One that is not started yet. With `always`, what it has answered is on the disk, and a kill loses nothing.
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(home.path().join("data")).expect("a directory");
        Self { home, port: free_port(), through: Vec::new(), fsync: "always", options: Vec::new(), shell: None }
    }

    /// Where its data is.
    pub fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Start it with more options.
    pub fn start_with(&mut self, options: &[&str]) {
        let script = r#"trap : INT TERM HUP; "$@" & pid=$!; read -r _; kill -9 $pid; wait"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).args(&self.through).arg(server_program()).arg("--dir").arg(self.data());
        command.arg("--logfile").arg(self.home.path().join("redis.log"));
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", self.fsync, "--enable-debug-command", "yes"]);
        command.args(["--busy-reply-threshold", "200", "--maxmemory-policy", "noeviction"]);
        command.args(["--repl-diskless-sync-delay", "0"]).args(&self.options).args(options);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.shell = Some(child.expect("sh runs"));
        eventually("redis answers", || self.connect().is_ok());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }

    pub fn connect(&self) -> RedisResult<Connection> {
        connect(self.port)
    }

    /// What it says of itself, even if it takes no writes.
    pub fn info(&self, section: &str) -> RedisResult<String> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(3)))?;
        redis::cmd("INFO").arg(section).query(&mut connection)
    }

    /// Whether it says so.
    pub fn says(&self, section: &str, what: &str) -> bool {
        self.info(section).is_ok_and(|info| info.contains(what))
    }

    /// Wait until it is a primary, and another one its replica, with all that it has.
    pub fn wait_for_office(&self, other: &Self) {
        eventually("the replica is promoted", || self.says("replication", "role:master"));
        eventually("the old primary has all", || other.says("replication", "master_link_status:up"));
    }

    pub fn pid(&self) -> u32 {
        let info = self.info("server").expect("it answers");
        info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a pid").trim().parse().expect("a number")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A connection to a server that answers.
pub fn connect(port: u16) -> RedisResult<Connection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    connection.set_read_timeout(Some(Duration::from_secs(3)))?;
    redis::cmd("PING").query::<String>(&mut connection)?;
    Ok(connection)
}
