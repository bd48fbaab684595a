//! `dripd purge`: throw away what waits in a bucket.

use clap::Args;

use super::change::{author, confirm};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::store::purge::What;
use crate::words::bucket::BucketName;
use crate::words::shown::shown;

/// Throw away what waits in a bucket.
#[derive(Debug, Args)]
pub(super) struct Purge {
    /// Which one
    bucket: BucketName,
    /// Jobs that failed and wait for another try, too
    #[arg(long)]
    retries: bool,
    /// Jobs that wait for their time, too
    #[arg(long)]
    delayed: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

fn jobs(n: u64) -> String {
    if n == 1 { "1 job".to_owned() } else { format!("{n} jobs") }
}

fn retries(n: u64) -> String {
    if n == 1 { "1 retry".to_owned() } else { format!("{n} retries") }
}

impl Purge {
    pub(super) fn tried(&self) -> String {
        format!("purge {}", self.bucket)
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let (mut store, name) = (connect(config).await?, shown(self.bucket.as_str().as_bytes()));
        let found = store.of(&self.bucket).bucket_status(&self.bucket).await?;
        if found.depth == 0 && (found.retries == 0 || !self.retries) && !self.delayed {
            let rest = match found.retries {
                0 => String::new(),
                1 => "; 1 retry waits for its next try (--retries purges it)".to_owned(),
                n => format!("; {n} retries wait for their next try (--retries purges them)"),
            };
            say(&format!("{name}: no job waits{rest}"));
            return Ok(Exit::Done);
        }
        let what = if self.retries {
            format!("{} and {}", jobs(found.depth), retries(found.retries))
        } else {
            jobs(found.depth)
        };
        let and_delayed = if self.delayed { ", besides its delayed jobs" } else { "" };
        confirm(&format!("{name} holds {what}{and_delayed}. Throw them away for good?"), self.yes)?;
        if !self.yes {
            store = connect(config).await?; // the question may have outlived the connection
        }
        let author = author(&mut store).await;
        let asked = What::Queue { retries: self.retries, delayed: self.delayed };
        let gone = store.of(&self.bucket).purge(&self.bucket, asked, &author).await?;
        let mut what = if self.retries {
            format!("{} and {} thrown away", jobs(gone.jobs), retries(gone.retries))
        } else {
            format!("{} thrown away", jobs(gone.jobs))
        };
        if self.delayed {
            what = format!("{what}, {} delayed", gone.delayed);
        }
        let cut = match gone.cut {
            0 => String::new(),
            n => format!("; {} had come over its capacity and are counted as rejected", jobs(n)),
        };
        say(&format!("{name}: {what}, 0 jobs and {} left{cut}", retries(gone.retries_left)));
        Ok(Exit::Done)
    }
}
