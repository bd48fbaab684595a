//! `dripd set` and `dripd unset`: keys of a policy at run time, over what the file says.

use clap::Args;

use super::change::{For, Kind, Target, make};
use super::{Exit, Failure, connect, say};
use crate::config::{Config, settings};
use crate::operate::moment;
use crate::store::change::{Change, Other, SetTo, Told};
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
    Failure::of_lines(Exit::Usage, why.to_string())
}

impl Set {
    pub(super) fn tried(&self) -> String {
        format!("set {} for {}", self.keys.join(" "), self.target.named(&self.kind))
    }

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
        change.asks = Some("others");
        show(&change, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

impl Unset {
    pub(super) fn tried(&self) -> String {
        let what = if self.keys.is_empty() { "what is set".to_owned() } else { self.keys.join(" ") };
        format!("take back {what} for {}", self.target.named(&self.kind))
    }

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
        change.asks = Some("others");
        show(&change, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

/// What changed, a line a key, with what is in force where that is another value.
fn show(change: &Change, told: Told) {
    let subject = Subject::of_stored(&change.pattern);
    let Told::Done { keys, others, .. } = told else { return say(&format!("{subject}: nothing of that was set")) };
    for (key, before, after) in keys {
        let before = or_file(&before);
        let line = match (change.set.get(&key), others.get(&key)) {
            (Some(set), Some(over)) if change.for_us.is_none() => {
                format!("{} is set, but {} lies over it{}", set.text, over.text, until(over))
            }
            (Some(_), Some(timed)) => format!("{after}{} (before: {before})", until(timed)),
            (None, Some(other)) => {
                format!(
                    "{}, set for {}{} (before: {before})",
                    other.text,
                    Subject::of_stored(&other.pattern).quoted(),
                    until(other)
                )
            }
            (_, None) => format!("{} (before: {before})", or_file(&after)),
        };
        say(&format!("{subject}: {key} = {line}"));
    }
}

fn or_file(text: &str) -> &str {
    if text.is_empty() { "as in the file" } else { text }
}

/// Until when a timed value holds.
fn until(other: &Other) -> String {
    other.till.as_deref().map_or_else(String::new, |till| format!(" until {}", moment::of_micros(till)))
}
