//! `dripd run`.

use std::io::IsTerminal;
use std::path::PathBuf;

use tracing_subscriber::EnvFilter;

use super::{Exit, Failure};
use crate::config::{Config, Environment};
use crate::daemon::Daemon;

pub(super) async fn run(named: Option<PathBuf>, environment: Environment, config: Config) -> Result<Exit, Failure> {
    log_to_stderr();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = config.source(), "starting");
    Daemon::run(named, environment, config).await?;
    tracing::info!("stopped");
    Ok(Exit::Done)
}

/// Log to standard error: `RUST_LOG` chooses how much; the journal keeps its own time.
fn log_to_stderr() {
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let builder = builder.with_ansi(std::io::stderr().is_terminal());
    if std::env::var_os("JOURNAL_STREAM").is_some() { builder.without_time().init() } else { builder.init() }
}
