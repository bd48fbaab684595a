//! `dripd explain` and `dripd what-if`: why a bucket waits, and what a change or a push would do.

use clap::Args;

use super::args::whole;
use super::change::KindArgs;
use super::{Exit, Failure, connect, show};
use crate::config::{Config, settings};
use crate::model::bucket::BucketName;
use crate::model::escape::line;
use crate::model::subject::Subject;
use crate::operate::explain::{explain_bucket, explain_budget};
use crate::operate::target::one_name;
use crate::operate::what_if::{PUSH_MOST, WhatIfRequest};

/// Say why a bucket waits.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Which bucket, or which budget
    #[arg(value_name = "NAME", value_parser = one_name)]
    bucket: BucketName,
    #[command(flatten)]
    kind: KindArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Say what a change or a push would do to the jobs that wait.
#[derive(Debug, Args)]
pub(super) struct WhatIf {
    /// Which bucket
    #[arg(value_parser = one_name)]
    bucket: BucketName,
    /// What would be set, as with `dripd set`
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    /// How many jobs would be pushed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(0, PUSH_MOST))]
    push: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Explain {
    pub(super) fn action(&self) -> String {
        format!("explain {}", Subject { is_budget: self.kind.budget, pattern: self.bucket.as_str() })
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let store = connect(config).await?;
        if self.kind.budget {
            let explanation = explain_budget(&store, &self.bucket).await?;
            show(self.json, &explanation, || explanation.text());
            return Ok(Exit::Done);
        }
        let explanation = explain_bucket(&store, &self.bucket, config).await?;
        show(self.json, &explanation, || explanation.text());
        Ok(Exit::Done)
    }
}

impl WhatIf {
    pub(super) fn action(&self) -> String {
        format!("say what would become of {}", self.bucket)
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let subject = Subject { is_budget: false, pattern: self.bucket.as_str() };
        let values =
            settings::parse(&self.keys, &subject).map_err(|why| Failure::of_lines(Exit::Usage, why.to_string()))?;
        let request = WhatIfRequest { bucket: self.bucket, values, push: self.push };
        let forecast = request.run(&connect(config).await?).await?;
        show(self.json, &forecast, || {
            let keys: Vec<String> = self.keys.iter().map(|key| line(key).into_owned()).collect();
            forecast.text(&keys)
        });
        Ok(Exit::Done)
    }
}
