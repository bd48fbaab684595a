//! `dripd set` and `dripd unset`: override keys of a policy at run time, and return to the file.

use clap::Args;

use super::change::{KindArgs, TargetArgs, TimeArgs, by};
use super::{Exit, Failure, connect, say};
use crate::config::{BadConfig, Config, settings};
use crate::operate::set::{SetRequest, UnsetRequest};

/// Set keys of the policy of a bucket, or of all that match a glob, over what the file says.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    kind: KindArgs,
    /// What to set: rate=5/s, capacity=100, lease=2m, or any other key of [[bucket]]; with --budget of [[budget]]
    #[arg(required = true, value_name = "KEY=VALUE")]
    keys: Vec<String>,
    #[command(flatten)]
    lasts: TimeArgs,
}

/// Take keys that were set back to what the file says.
#[derive(Debug, Args)]
pub(super) struct Unset {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    kind: KindArgs,
    /// Which keys [default: all, but not a pause or a closure: those end with `resume` and `open`]
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
}

fn usage(why: &BadConfig) -> Failure {
    Failure::of_lines(Exit::Usage, why.to_string())
}

impl Set {
    pub(super) fn action(&self) -> String {
        format!("set {} for {}", self.keys.join(" "), self.target.subject(self.kind.budget))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let subject = self.target.subject(self.kind.budget);
        let keys = self.keys.join(" ");
        let values = settings::parse(&self.keys, &subject).map_err(|why| usage(&why))?;
        let question = format!("set {keys} for all of them?");
        let target = self.target.confirmed(self.kind.budget, &question)?;
        let request = SetRequest { target, values, lasts: self.lasts.lasts, reason: self.target.reason };
        let changed = request.run(&mut connect(config).await?, &by()).await?;
        request.describe(&changed).iter().for_each(|line| say(line));
        Ok(Exit::Done)
    }
}

impl Unset {
    pub(super) fn action(&self) -> String {
        let what = if self.keys.is_empty() { "what is set".to_owned() } else { self.keys.join(" ") };
        format!("take back {what} for {}", self.target.subject(self.kind.budget))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let is_budget = self.kind.budget;
        let keys = settings::parse_keys(&self.keys, is_budget).map_err(|why| usage(&why))?;
        let target = self.target.confirmed(is_budget, "take back what was set under it?")?;
        let request = UnsetRequest { target, keys, reason: self.target.reason };
        let changed = request.run(&mut connect(config).await?, &by()).await?;
        request.describe(&changed).iter().for_each(|line| say(line));
        Ok(Exit::Done)
    }
}
