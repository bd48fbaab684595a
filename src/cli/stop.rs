//! `dripd pause`, `resume`, `close` and `open`: stop what comes out of a bucket, or what goes in.

use clap::Args;

use super::change::{For, Kind, Target, make};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::store::Whole;
use crate::store::acl::Role;
use crate::store::change::{Change, Out, SetTo, Told};
use crate::words::shown::shell;
use crate::words::subject::Subject;

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

/// Let nothing out of a bucket, or of what is below a budget.
#[derive(Debug, Args)]
pub(super) struct Pause {
    #[command(flatten)]
    stop: Stop,
    #[command(flatten)]
    kind: Kind,
}

/// Let it go on, likewise.
#[derive(Debug, Args)]
pub(super) struct Resume {
    #[command(flatten)]
    go: Go,
    #[command(flatten)]
    kind: Kind,
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

impl Pause {
    pub(super) fn tried(&self) -> String {
        format!("pause {}", self.stop.target.named(&self.kind))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let target = self.stop.target.of(&self.kind);
        Stop { target, ..self.stop }.run(config, Way::Out).await
    }
}

impl Resume {
    pub(super) fn tried(&self) -> String {
        format!("resume {}", self.go.target.named(&self.kind))
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        Go { target: self.go.target.of(&self.kind) }.run(config, Way::Out).await
    }
}

impl Stop {
    pub(super) fn tried(&self, way: Way) -> String {
        format!("{} {}", way.key(), self.target.subject())
    }

    /// One name, until somebody takes that back.
    pub(super) fn of(subject: &Subject) -> Self {
        Self { target: Target::of_name(subject), lasts: For { lasts: None } }
    }

    pub(super) async fn run(self, config: &Config, way: Way) -> Result<Exit, Failure> {
        self.target.is_glob()?;
        let (pattern, kind) = (self.target.subject().pattern, self.target.subject().kind());
        self.target.confirm(&format!("{pattern:?} means every {kind}: {} all of them?", way.key()))?;
        say(&self.make(&mut connect(config).await?, way).await?);
        Ok(Exit::Done)
    }

    /// Do it. Replies what there is to say.
    pub(super) async fn make(&self, store: &mut Whole, way: Way) -> Result<String, Failure> {
        let subject = self.target.subject();
        let mut change = self.target.change(store, way.key()).await?;
        change.for_us = self.lasts.micros();
        let to = SetTo { text: "yes".to_owned(), policy: serde_json::json!({}) };
        change.set.insert(way.key().to_owned(), to);
        let met = if change.is_glob || subject.is_budget {
            Some(store.buckets_met(&change.pattern, change.is_glob).await?)
        } else {
            None
        };
        make(store, &change).await?;
        Ok(stopped(store, &change, met, way).await)
    }
}

/// What was stopped, how many buckets a glob met or are below a budget; and, of a pause, which jobs it cannot call back.
async fn stopped(store: &mut Whole, change: &Change, met: Option<u64>, way: Way) -> String {
    let subject = Subject::of_stored(&change.pattern);
    let mut line = format!("{subject}: {}", way.state());
    if let Some(buckets) = met {
        let below = if subject.is_budget { " below" } else { "" };
        line += &format!("; {}{below} with work now", plural(buckets, "bucket"));
    }
    if way == Way::Out {
        line += &match store.jobs_out(&change.pattern, change.is_glob).await {
            Ok(jobs) => out_already(jobs),
            Err(why) => format!("; how many of their jobs are out is not known: {}", why.in_words(Role::Operator)),
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
    pub(super) fn tried(&self, way: Way) -> String {
        format!("{} {}", way.back(), self.target.subject())
    }

    /// One name.
    pub(super) fn of(subject: &Subject) -> Self {
        Self { target: Target::of_name(subject) }
    }

    pub(super) async fn run(self, config: &Config, way: Way) -> Result<Exit, Failure> {
        self.target.is_glob()?;
        let (pattern, kind) = (self.target.subject().pattern, self.target.subject().kind());
        let question = format!("{pattern:?} is every {kind}: {} what was {} under it?", way.back(), way.state());
        self.target.confirm(&question)?;
        say(&self.make(&mut connect(config).await?, way).await?);
        Ok(Exit::Done)
    }

    /// Do it. Replies what there is to say.
    pub(super) async fn make(&self, store: &mut Whole, way: Way) -> Result<String, Failure> {
        let (subject, state) = (self.target.subject(), way.state());
        let mut change = self.target.change(store, way.back()).await?;
        (change.unset, change.asks) = (vec![way.key().to_owned()], Some(state));
        let told = make(store, &change).await?;
        let (done, other) = match told {
            Told::Done { stopped_by, .. } => (true, stopped_by),
            Told::Nothing { stopped_by } => (false, stopped_by),
            Told::Busy => unreachable!("make waits for it"),
        };
        let nothing = format!("nothing is {state} under {}", subject.quoted());
        let line = match (done, other.as_deref().map(Subject::of_stored)) {
            (true, None) => return Ok(format!("{subject}: {state} no more")),
            (true, Some(by)) => format!(
                "{subject}: its own is taken away, but {} still has it {state}; {}",
                by.quoted(),
                command(way, &by)
            ),
            (false, Some(by)) => format!("{nothing}; {} has it {state}: {}", by.quoted(), command(way, &by)),
            (false, None) => format!("{nothing}; `dripd settings` lists what is"),
        };
        Err(Failure::new(Exit::Failed, line))
    }
}

/// What would let it go on.
fn command(way: Way, by: &Subject) -> String {
    let flag = if by.is_budget { " --budget" } else { "" };
    format!("`dripd {}{flag} {}`", way.back(), shell(by.pattern))
}
