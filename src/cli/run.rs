//! `dripd run`.

use std::path::PathBuf;

use super::{Exit, Failure, log_to_stderr};
use crate::config::{Config, Environment};
use crate::daemon::Daemon;

pub(super) async fn run(named: Option<PathBuf>, environment: Environment, config: Config) -> Result<Exit, Failure> {
    log_to_stderr();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = config.source(), "starting");
    Daemon::run(named, environment, config).await?;
    tracing::info!("stopped");
    Ok(Exit::Done)
}
