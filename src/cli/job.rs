//! `dripd job`: one submitted job, by its id.

use clap::{ArgGroup, Args, Subcommand};

use super::change::{by, confirm};
use super::{Exit, Failure, connect, say, say_json};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::duration;
use crate::model::escape::escaped;
use crate::operate::purge::PurgeRequest;
use crate::operate::target::one_name;
use crate::store::purge::What as Purge;
use crate::store::submit::Cancelled;

/// Look at a submitted job, or take it back.
#[derive(Debug, Args)]
pub(super) struct Job {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Say whether it waits, and when it can leave
    Find(Find),
    /// Have it dropped when its turn comes, or drop all delayed jobs of a bucket
    Cancel(Cancel),
}

/// Say whether a job waits, and when it can leave.
#[derive(Debug, Args)]
struct Find {
    /// The bucket that it was pushed to
    #[arg(value_parser = one_name)]
    bucket: BucketName,
    /// Its id
    id: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Take a job back.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["id", "delayed"])))]
struct Cancel {
    /// The bucket that it was pushed to
    #[arg(value_parser = one_name)]
    bucket: BucketName,
    /// Its id
    id: Option<String>,
    /// All jobs that wait for their time
    #[arg(long)]
    delayed: bool,
    /// Do not ask
    #[arg(long, requires = "delayed")]
    yes: bool,
}

impl Job {
    pub(super) fn action(&self) -> String {
        match &self.command {
            JobCommand::Find(Find { bucket, id, .. }) => format!("find job {} of {bucket}", escaped(id.as_bytes())),
            JobCommand::Cancel(Cancel { bucket, id: Some(id), .. }) => {
                format!("cancel job {} of {bucket}", escaped(id.as_bytes()))
            }
            JobCommand::Cancel(Cancel { bucket, .. }) => format!("cancel the delayed jobs of {bucket}"),
        }
    }

    /// Whether the command changes nothing.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self.command, JobCommand::Find(_))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        match self.command {
            JobCommand::Find(find) => find.run(config).await,
            JobCommand::Cancel(Cancel { bucket, id: Some(id), .. }) => cancel(config, &bucket, &id).await,
            JobCommand::Cancel(Cancel { bucket, yes, .. }) => cancel_delayed(config, bucket, yes).await,
        }
    }
}

impl Find {
    async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let store = connect(config).await?;
        let found = store.of(&self.bucket).find_job(&self.bucket, &self.id).await?;
        let eta_ms = found.eta.map(|eta| u64::try_from(eta.as_millis()).unwrap_or(u64::MAX));
        if self.json {
            let json = serde_json::json!({
                "bucket": self.bucket.as_str(), "id": self.id, "state": found.state, "eta_ms": eta_ms, "attempt": found.attempt,
            });
            say_json(&json);
        } else {
            let when = eta_ms
                .map_or_else(String::new, |ms| format!(", attempt {}, due in {}", found.attempt, duration::in_ms(ms)));
            say(&format!("{}: {}{when}", escaped(self.id.as_bytes()), found.state));
        }
        Ok(if found.state == "unknown" { Exit::Failed } else { Exit::Done })
    }
}

async fn cancel(config: &Config, bucket: &BucketName, id: &str) -> Result<Exit, Failure> {
    let store = connect(config).await?;
    let outcome = store.of(bucket).cancel_job(bucket, id).await?;
    let id = escaped(id.as_bytes());
    match outcome {
        Cancelled::Yes => {
            say(&format!("{id}: cancelled; it is dropped when its turn comes"));
            Ok(Exit::Done)
        }
        Cancelled::Left => Err(Failure::new(Exit::Failed, format!("{id} has left {bucket} already"))),
        Cancelled::Unknown => Err(Failure::new(
            Exit::Failed,
            format!("{bucket} knows no job {id}: it never came, or was forgotten since"),
        )),
    }
}

async fn cancel_delayed(config: &Config, bucket: BucketName, yes: bool) -> Result<Exit, Failure> {
    confirm(&format!("Drop all delayed jobs of {bucket} for good?"), yes)?;
    let request = PurgeRequest { bucket, what: Purge::DelayedAlone };
    let gone = request.run(&mut connect(config).await?, &by()).await?;
    say(&request.describe(&gone));
    Ok(Exit::Done)
}
