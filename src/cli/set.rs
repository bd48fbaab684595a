//! `dripd set` and `dripd unset`: keys of a policy at run time, over what the file says.

use clap::Args;

use super::change::{For, Target, make};
use super::{Exit, Failure, connect, moment, say};
use crate::config::{Config, settings};
use crate::store::change::{Change, Other, SetTo, Told};

/// Set keys of the policy of a bucket, or of all that match a glob, over what the file says.
#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    target: Target,
    /// What to set: rate=5/s, capacity=100, lease=2m, or any other key of [[bucket]]
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
    /// Which keys [default: all, but not a pause or a closure: those end with `resume` and `open`]
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
}

fn usage(why: &impl ToString) -> Failure {
    Failure::new(Exit::Usage, why.to_string())
}

impl Set {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let given = settings::parse(&self.keys).map_err(|why| usage(&why))?;
        self.target.is_glob()?;
        self.target.confirm(&format!(
            "{:?} means every bucket: set {} for all of them?",
            self.target.pattern,
            self.keys.join(" ")
        ))?;
        let mut store = connect(config).await?;
        let mut change = self.target.change(&mut store, "set").await?;
        change.for_us = self.lasts.micros();
        change.set = given.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
        change.asks = Some("others");
        show(&change, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

impl Unset {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let keys = settings::parse_keys(&self.keys).map_err(|why| usage(&why))?;
        self.target.is_glob()?;
        self.target
            .confirm(&format!("{:?} means every bucket: take back what was set under it?", self.target.pattern))?;
        let mut store = connect(config).await?;
        let mut change = self.target.change(&mut store, "unset").await?;
        (change.unset_all, change.unset) = (keys.is_empty(), keys);
        change.asks = Some("others");
        show(&change, make(&mut store, &change).await?);
        Ok(Exit::Done)
    }
}

/// What changed, a line a key, with what is in force where that is another value.
fn show(change: &Change, told: Told) {
    let pattern = &change.pattern;
    let Told::Done { keys, others, .. } = told else { return say(&format!("{pattern}: nothing of that was set")) };
    for (key, before, after) in keys {
        let before = or_file(&before);
        let line = match (change.set.get(&key), others.get(&key)) {
            (Some(set), Some(over)) if change.for_us.is_none() => {
                format!("{} is set, but {} lies over it{}", set.text, over.text, until(over))
            }
            (Some(_), Some(timed)) => format!("{after}{} (before: {before})", until(timed)),
            (None, Some(other)) => {
                format!("{}, set for {:?}{} (before: {before})", other.text, other.pattern, until(other))
            }
            (_, None) => format!("{} (before: {before})", or_file(&after)),
        };
        say(&format!("{pattern}: {key} = {line}"));
    }
}

fn or_file(text: &str) -> &str {
    if text.is_empty() { "as in the file" } else { text }
}

/// Until when a timed value holds.
fn until(other: &Other) -> String {
    other.till.as_deref().map_or_else(String::new, |till| format!(" until {}", moment::of_micros(till)))
}
