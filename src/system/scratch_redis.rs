//! A Redis that is thrown away: it keeps nothing on disk, listens on a socket in a directory of its own, and ends with
//! this process, however that ends.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::built_in_redis::{BuiltInRedisError, find_program};
use crate::store::{Address, Partition, Store, StoreError};

/// How long it may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// A shell stands between: it reads from this process, and when that has ended it ends the server and removes the
/// directory. So nothing stays behind, whatever kills this process.
const SCRIPT: &str = r#"home=$1; shift; "$@" & server=$!; read -r _; kill "$server"; wait "$server"; rm -rf "$home""#;

/// Why there is none. Each error says the way out.
#[derive(Debug, thiserror::Error)]
pub enum ScratchRedisError {
    /// No directory can be made.
    #[error("cannot make a directory for the throw-away Redis in {path}: {why}; let TMPDIR name one")]
    Directory {
        /// Where.
        path: std::path::PathBuf,
        /// The error of the system.
        why: std::io::Error,
    },
    /// No suitable server program was found.
    #[error("no redis to run: {found}; install one (apt install redis-server, dnf install valkey, apk add redis)")]
    NoServer {
        /// What was found instead.
        found: String,
    },
    /// It does not answer.
    #[error("the throw-away Redis does not answer: {why}")]
    Silent {
        /// The error of a connection.
        why: StoreError,
    },
}

/// A running server; its directory is removed when it ends.
#[derive(Debug)]
pub struct ScratchRedis {
    shell: Child,
}

impl ScratchRedis {
    /// Start a server, and connect to it for the keys of a partition.
    ///
    /// # Errors
    ///
    /// There is no program to run, or it does not answer.
    pub async fn start(partition: &Partition) -> Result<(Self, Store), ScratchRedisError> {
        let program = find_program().await.map_err(|why| match why {
            BuiltInRedisError::NoServer { found } => ScratchRedisError::NoServer { found },
            other => ScratchRedisError::NoServer { found: other.to_string() },
        })?;
        let no_directory = |why| ScratchRedisError::Directory { path: std::env::temp_dir(), why };
        let home = tempfile::Builder::new().prefix("dripd-scratch-").tempdir().map_err(no_directory)?;
        let socket = home.path().join("redis.sock");
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(home.path()).arg(&program);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        // Small nodes and no histograms of its commands make what only simulations do a little faster.
        command.args(["--stream-node-max-entries", "8", "--latency-tracking", "no"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0); // Ctrl-C is for this process
        let no_server = |why| ScratchRedisError::NoServer { found: format!("sh does not run: {why}") };
        let scratch = Self { shell: command.spawn().map_err(no_server)? };
        let _ = home.keep(); // the shell removes it
        let since = Instant::now();
        loop {
            match Store::connect(&Address::of_socket(&socket), partition).await {
                Ok(store) => return Ok((scratch, store)),
                Err(why) if since.elapsed() > ANSWERS_WITHIN => return Err(ScratchRedisError::Silent { why }),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for ScratchRedis {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
