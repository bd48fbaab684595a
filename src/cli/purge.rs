//! `dripd purge`: throw away the jobs that wait in a bucket.

use clap::Args;

use super::change::{by, confirm};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::counted::counted;
use crate::model::escape::escaped;
use crate::operate::purge::{PurgeOptions, PurgeRequest};
use crate::operate::target::one_name;

/// Throw away what waits in a bucket.
#[derive(Debug, Args)]
pub(super) struct Purge {
    /// Which one
    #[arg(value_parser = one_name)]
    bucket: BucketName,
    #[command(flatten)]
    options: PurgeOptions,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Purge {
    pub(super) fn action(&self) -> String {
        format!("purge {}", self.bucket)
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let (mut store, name) = (connect(config).await?, escaped(self.bucket.as_str().as_bytes()));
        let found = store.of(&self.bucket).bucket_status(&self.bucket).await?;
        if found.depth == 0 && (found.retries == 0 || !self.options.retries) && !self.options.delayed {
            let rest = match found.retries {
                0 => String::new(),
                1 => "; 1 retry waits for its next try (--retries purges it)".to_owned(),
                n => format!("; {n} retries wait for their next try (--retries purges them)"),
            };
            say(&format!("{name}: no job waits{rest}"));
            return Ok(Exit::Done);
        }
        let and_retries = if self.options.retries {
            format!(" and {}", counted(found.retries, "retry", "retries"))
        } else {
            String::new()
        };
        let and_delayed = if self.options.delayed { ", besides its delayed jobs" } else { "" };
        let held = counted(found.depth, "job", "jobs");
        confirm(&format!("{name} holds {held}{and_retries}{and_delayed}. Throw them away for good?"), self.yes)?;
        if !self.yes {
            store = connect(config).await?; // the question may have outlived the connection
        }
        let request = PurgeRequest { bucket: self.bucket, what: self.options.into() };
        let gone = request.run(&mut store, &by()).await?;
        say(&request.describe(&gone));
        Ok(Exit::Done)
    }
}
