//! `dripd pause`, `resume`, `close` and `open`: stop what comes out of a bucket, or what goes in.

use clap::Args;

use super::change::{For, Target, make};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::store::Store;
use crate::store::change::{Change, Out, SetTo, Told};
use crate::words::shown::shell;

/// Stop a bucket, or all that match a glob.
#[derive(Debug, Args)]
pub(super) struct Stop {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    lasts: For,
}

/// Let it go on.
#[derive(Debug, Args)]
pub(super) struct Go {
    #[command(flatten)]
    target: Target,
}

/// Which way a bucket is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Nothing leaves it.
    Out,
    /// Nothing goes in.
    In,
}

impl Way {
    fn key(self) -> &'static str {
        if self == Self::Out { "pause" } else { "close" }
    }

    fn state(self) -> &'static str {
        if self == Self::Out { "paused" } else { "closed" }
    }

    fn back(self) -> &'static str {
        if self == Self::Out { "resume" } else { "open" }
    }
}

impl Stop {
    pub(super) async fn run(self, config: &Config, way: Way) -> Result<Exit, Failure> {
        self.target.is_glob()?;
        self.target.confirm(&format!("{:?} means every bucket: {} all of them?", self.target.pattern, way.key()))?;
        let mut store = connect(config).await?;
        let mut change = self.target.change(&mut store, way.key()).await?;
        change.for_us = self.lasts.micros();
        let to = SetTo { text: "yes".to_owned(), policy: serde_json::json!({}) };
        change.set.insert(way.key().to_owned(), to);
        let met = if change.is_glob { Some(store.buckets_met(&change.pattern, true).await?) } else { None };
        make(&mut store, &change).await?;
        say(&stopped(&mut store, &change, met, way).await);
        Ok(Exit::Done)
    }
}

/// What was stopped, how many buckets a glob met; and, of a pause, which jobs it cannot call back.
async fn stopped(store: &mut Store, change: &Change, met: Option<u64>, way: Way) -> String {
    let mut line = format!("{}: {}", change.pattern, way.state());
    if let Some(buckets) = met {
        line += &format!("; {} with work now", plural(buckets, "bucket"));
    }
    if way == Way::Out {
        line += &match store.jobs_out(&change.pattern, change.is_glob).await {
            Ok(jobs) => out_already(jobs),
            Err(why) => format!("; how many of their jobs are out is not known: {why}"),
        };
    }
    line
}

fn out_already(jobs: Out) -> String {
    let out = jobs.ready + jobs.with_workers;
    if out == 0 {
        return "; none of their jobs is out".to_owned();
    }
    let verb = if out == 1 { "is" } else { "are" };
    format!(
        "; {} {verb} out already and not called back: {} ready, {} with workers",
        plural(out, "job"),
        jobs.ready,
        jobs.with_workers
    )
}

fn plural(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

impl Go {
    pub(super) async fn run(self, config: &Config, way: Way) -> Result<Exit, Failure> {
        self.target.is_glob()?;
        self.target.confirm(&format!(
            "{:?} is every bucket: {} what was {} under it?",
            self.target.pattern,
            way.back(),
            way.state()
        ))?;
        let mut store = connect(config).await?;
        let mut change = self.target.change(&mut store, way.back()).await?;
        (change.unset, change.asks) = (vec![way.key().to_owned()], Some(way.state()));
        let (pattern, state) = (&change.pattern, way.state());
        let told = make(&mut store, &change).await?;
        let (done, other) = match told {
            Told::Done { stopped_by, .. } => (true, stopped_by),
            Told::Nothing { stopped_by } => (false, stopped_by),
            Told::Busy => unreachable!("make waits for it"),
        };
        let line = match (done, other) {
            (true, None) => {
                say(&format!("{pattern}: {state} no more"));
                return Ok(Exit::Done);
            }
            (true, Some(by)) => format!(
                "{pattern}: its own is taken away, but {by:?} still has it {state}; `dripd {} {}`",
                way.back(),
                shell(&by)
            ),
            (false, Some(by)) => {
                format!(
                    "nothing is {state} under {pattern:?}; {by:?} has it {state}: `dripd {} {}`",
                    way.back(),
                    shell(&by)
                )
            }
            (false, None) => format!("nothing is {state} under {pattern:?}; `dripd settings` lists what is"),
        };
        Err(Failure::new(Exit::Failed, line))
    }
}
