//! `dripd dead`: jobs that were given up: look at them, put them back through their buckets, or drop them.

mod change;
mod list;

use clap::{Args, Subcommand};

use super::{Exit, Failure};
use crate::config::Config;
use crate::operate::dead::{Id, Wanted, short_glob};
use crate::operate::moment::Moment;

/// Look at jobs that were given up, put them back, or drop them.
#[derive(Debug, Args)]
pub(super) struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show them, the oldest first
    List(list::List),
    /// Put them back through their buckets, ahead of what waits there, at the buckets' rates
    Retry(change::Change),
    /// Delete them for good
    Drop(change::Change),
}

/// Which dead letters: those that all of it finds; without any of it, all.
#[derive(Debug, Args)]
struct Which {
    /// Of buckets whose names this matches: sms:*
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    bucket: Option<String>,
    /// Given up for a reason that this matches: 'http 5*'
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    reason: Option<String>,
    /// One job: its id as workers and logs know it, its id in the streams, or its entry here
    #[arg(long, value_name = "ID")]
    id: Option<Id>,
    /// That died before a time, as in 2026-05-01T12:00:00Z, or so long ago, as in 2h
    #[arg(long, value_name = "T")]
    before: Option<Moment>,
}

impl Which {
    fn wanted(&self) -> Wanted {
        let Self { bucket, reason, id, before } = self;
        Wanted { bucket: bucket.clone(), reason: reason.clone(), id: id.clone(), before: *before }
    }
}

impl Dead {
    pub(super) fn tried(&self) -> &'static str {
        match self.what {
            What::List(_) => "list dead letters",
            What::Retry(_) => "put dead letters back",
            What::Drop(_) => "delete dead letters",
        }
    }

    /// Whether it changes nothing.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self.what, What::List(_))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        use crate::store::dead::Act;
        match self.what {
            What::List(list) => list.run(config).await,
            What::Retry(change) => change.run(Act::Retry, config).await,
            What::Drop(change) => change.run(Act::Drop, config).await,
        }
    }
}
