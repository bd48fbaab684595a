//! `dripd set` and `dripd unset`: keys of a policy at run time, over what the file says.

use clap::Args;

use super::change::{For, Kind, Target, make};
use super::{Exit, Failure, connect, say};
use crate::config::{Config, settings};
use crate::store::change::{SetTo, Told};
use crate::words::subject::Subject;

/// Set keys of the policy of a bucket, or of all that match a glob, over what the file says.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    kind: Kind,
    /// What to set: rate=5/s, capacity=100, lease=2m, or any other key of [[bucket]]; with --budget of [[budget]]
    #[arg(required = true, value_name = "KEY=VALUE")]
    keys: Vec<String>,
    #[command(flatten)]
    lasts: For,
}

/// Take keys that were set back to what the file says.
#[derive(Debug, Args)]
pub(super) struct Unset {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    kind: Kind,
    /// Which keys [default: all, but not a pause or a closure: those end with `resume` and `open`]
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
}

fn usage(why: &impl ToString) -> Failure {
    Failure::new(Exit::Usage, why.to_string())
}

impl Set {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let target = self.target.of(&self.kind);
        let subject = target.subject();
        let given = settings::parse(&self.keys, &subject).map_err(|why| usage(&why))?;
        target.is_glob()?;
        let (pattern, kind, keys) = (subject.pattern, subject.kind(), self.keys.join(" "));
        target.confirm(&format!("{pattern:?} means every {kind}: set {keys} for all of them?"))?;
        let mut store = connect(config).await?;
        let mut change = target.change(&mut store, "set").await?;
        change.for_us = self.lasts.micros();
        change.set = given.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
        show(&subject, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

impl Unset {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let target = self.target.of(&self.kind);
        let subject = target.subject();
        let keys = settings::parse_keys(&self.keys, subject.is_budget).map_err(|why| usage(&why))?;
        target.is_glob()?;
        let (pattern, kind) = (subject.pattern, subject.kind());
        target.confirm(&format!("{pattern:?} means every {kind}: take back what was set under it?"))?;
        let mut store = connect(config).await?;
        let mut change = target.change(&mut store, "unset").await?;
        (change.unset_all, change.unset) = (keys.is_empty(), keys);
        show(&subject, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

/// What changed, a line a key.
fn show(subject: &Subject, told: Told) {
    let Told::Done { keys, .. } = told else { return say(&format!("{subject}: nothing of that was set")) };
    let or_file = |text: String| if text.is_empty() { "as in the file".to_owned() } else { text };
    for (key, before, after) in keys {
        say(&format!("{subject}: {key} = {} (before: {})", or_file(after), or_file(before)));
    }
}
