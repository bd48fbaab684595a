//! `dripd explain` and `dripd what-if`: why a bucket waits, and what a change or a push would do.

use clap::Args;

use super::args::whole;
use super::change::Kind;
use super::{Exit, Failure, connect, say_all, say_json};
use crate::config::{Config, settings};
use crate::explain::{BudgetSaid, Explanation, File, Wall, WhatIfSaid};
use crate::store::change::{Change, SetTo};
use crate::words::bucket::BucketName;
use crate::words::shown::line;
use crate::words::subject::Subject;

/// Say why a bucket waits.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Which bucket, or which budget
    #[arg(value_name = "NAME")]
    bucket: BucketName,
    #[command(flatten)]
    kind: Kind,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Say what a change or a push would do to the jobs that wait.
#[derive(Debug, Args)]
pub(super) struct Ask {
    /// Which bucket
    bucket: BucketName,
    /// What would be set, as with `dripd set`
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// How many jobs would be pushed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0, 10_000_000))]
    push: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Explain {
    pub(super) fn tried(&self) -> String {
        format!("explain {}", Subject { is_budget: self.kind.budget, pattern: self.bucket.as_str() })
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let whole = connect(config).await?;
        if self.kind.budget {
            let facts = whole.of(&self.bucket).explain_budget(&self.bucket).await?;
            let said = BudgetSaid::of(&facts, &Wall::here(facts.now_us));
            if self.json {
                say_json(&said);
            } else {
                say_all(said.text().trim_end());
            }
            return Ok(Exit::Done);
        }
        let facts = whole.of(&self.bucket).explain(&self.bucket).await?;
        // From any directory one sees the policies of another: without a file there is nothing to compare.
        let is_in_force =
            if config.path.is_some() { whole.authority().has_record(&config.record).await? } else { None };
        let file = File { name: config.source(), is_in_force };
        let explanation = Explanation::of(&facts, file, &Wall::here(facts.now_us));
        if self.json {
            say_json(&explanation);
        } else {
            say_all(explanation.text().trim_end());
        }
        Ok(Exit::Done)
    }
}

impl Ask {
    pub(super) fn tried(&self) -> String {
        format!("say what would become of {}", self.bucket)
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let subject = Subject { is_budget: false, pattern: self.bucket.as_str() };
        let given =
            settings::parse(&self.keys, &subject).map_err(|why| Failure::of_lines(Exit::Usage, why.to_string()))?;
        let set = given.into_iter().map(|one| (one.key, SetTo { text: one.text, policy: one.policy })).collect();
        let change = Change { what: "set", pattern: self.bucket.to_string(), set, ..Change::default() };
        let what_if = connect(config).await?.of(&self.bucket).what_if(&self.bucket, &change, self.push).await?;
        let said = WhatIfSaid::of(self.bucket.as_str(), self.push, what_if);
        if self.json {
            say_json(&said);
        } else {
            let keys: Vec<String> = self.keys.iter().map(|key| line(key).into_owned()).collect();
            say_all(said.text(&keys).trim_end());
        }
        Ok(Exit::Done)
    }
}
