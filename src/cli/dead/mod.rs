//! `dripd dead`: list the jobs that were given up, put them back through their buckets, or drop them.

mod change;
mod list;

use clap::{Args, Subcommand};

use super::{Exit, Failure};
use crate::config::Config;

/// Look at jobs that were given up, put them back, or drop them.
#[derive(Debug, Args)]
pub(super) struct Dead {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// Show them, the oldest first
    List(list::List),
    /// Put them back through their buckets, ahead of what waits there, at the buckets' rates
    Retry(change::Change),
    /// Delete them for good
    Drop(change::Change),
}

impl Dead {
    pub(super) fn action(&self) -> &'static str {
        match self.command {
            DeadCommand::List(_) => "list dead letters",
            DeadCommand::Retry(_) => "put dead letters back",
            DeadCommand::Drop(_) => "delete dead letters",
        }
    }

    /// Whether the command changes nothing.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self.command, DeadCommand::List(_))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        use crate::store::dead::Act;
        match self.command {
            DeadCommand::List(list) => list.run(config).await,
            DeadCommand::Retry(change) => change.run(Act::Retry, config).await,
            DeadCommand::Drop(change) => change.run(Act::Drop, config).await,
        }
    }
}
