//! Calls that a supervisor of the own Redis makes.

use redis::Value;

use super::reply::unexpected;
use super::{Store, StoreError};
use crate::config::Fsync;

impl Store {
    /// The configuration file that the server was started from; empty when from none.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn config_file(&mut self) -> Result<String, StoreError> {
        self.server_field("config_file:").await
    }

    /// The server's process.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn process_id(&mut self) -> Result<i32, StoreError> {
        let text = self.server_field("process_id:").await?;
        text.parse().map_err(|_| unexpected("INFO", &Value::SimpleString(text)))
    }

    async fn server_field(&mut self, name: &str) -> Result<String, StoreError> {
        let info = self.info("server").await?;
        Ok(info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned())
    }

    /// When the server makes a write durable.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn set_fsync(&mut self, fsync: Fsync) -> Result<(), StoreError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("appendfsync").arg(fsync.as_str());
        self.call("CONFIG SET", &command).await.map(drop)
    }
}
