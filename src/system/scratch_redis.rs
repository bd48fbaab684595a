//! A Redis that is thrown away: it keeps nothing on disk, listens on a socket in a directory of its own, and ends with
//! this value.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::built_in_redis::{BuiltInRedisError, find_program};
use crate::store::{Address, Partition, Store, StoreError};

/// How long it may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// A running server and its directory.
#[derive(Debug)]
pub struct ScratchRedis {
    server: Child,
    home: TempDir,
}

impl ScratchRedis {
    /// Start a server, and connect to it for the keys of a partition.
    ///
    /// # Errors
    ///
    /// There is no program to run, or it does not answer.
    pub async fn start(partition: &Partition) -> Result<(Self, Store), BuiltInRedisError> {
        let program = find_program().await?;
        let directory = |why| BuiltInRedisError::Directory { path: std::env::temp_dir(), why };
        let home = tempfile::tempdir().map_err(directory)?;
        let socket = home.path().join("redis.sock");
        let mut command = Command::new(&program);
        // Its process group is that of dripd: Ctrl-C ends both. Small nodes make what only simulations do a little faster.
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--stream-node-max-entries", "8"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let no_server =
            |why| BuiltInRedisError::NoServer { found: format!("{} does not run: {why}", program.display()) };
        let scratch = Self { server: command.spawn().map_err(no_server)?, home };
        let since = Instant::now();
        loop {
            match Store::connect(&Address::of_socket(&socket), partition).await {
                Ok(store) => return Ok((scratch, store)),
                Err(why) if since.elapsed() > ANSWERS_WITHIN => return Err(scratch.silent(why)),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn silent(&self, why: StoreError) -> BuiltInRedisError {
        BuiltInRedisError::Silent { path: self.home.path().to_owned(), why }
    }
}

impl Drop for ScratchRedis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
