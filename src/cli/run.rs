//! `dripd run`.

use std::path::PathBuf;

use clap::Args;

use super::log::Log;
use super::{Exit, Failure};
use crate::config::{BadConfig, Config, Environment};
use crate::daemon::Daemon;
use crate::store::acl::Role;

/// The action of this command, for messages.
pub(super) const ACTION: &str = "run";

/// Run the daemon.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    log: Log,
}

impl Run {
    pub(super) async fn run(
        self,
        named: Option<PathBuf>,
        environment: Environment,
        load: impl FnOnce() -> Result<Config, BadConfig>,
    ) -> Result<Exit, Failure> {
        let log = self.log.start();
        let serve = async {
            let config = load()?;
            tracing::info!(version = env!("CARGO_PKG_VERSION"), config = config.source(), "starting");
            Daemon::run(named, environment, config).await?;
            tracing::info!("stopped");
            Ok(Exit::Done)
        };
        log.end(ACTION, Role::Daemon, serve.await)
    }
}
