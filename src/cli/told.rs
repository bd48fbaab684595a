//! `dripd told`: say how much more the other side lets through, where no worker does; or forget what was said.

use std::time::Duration;

use clap::Args;

use super::change::by;
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::node::Units;
use crate::model::subject::Subject;
use crate::operate::bounds;
use crate::operate::target::Target;
use crate::operate::told::ToldRequest;
use crate::store::jobs::work::{LIMIT_MOST, LimitReport};

/// Say how much more the other side lets through, or forget that.
#[derive(Debug, Args)]
pub(super) struct Told {
    /// The name of a bucket
    #[arg(value_parser = name)]
    name: BucketName,
    /// How much more is let through until the reset, or `clear`: forget what was told
    #[arg(value_name = "REMAINING|clear", value_parser = remaining)]
    remaining: Remaining,
    /// How long it is until the limit resets, as in 30s
    #[arg(value_name = "DURATION", value_parser = bounds::time)]
    reset: Option<Duration>,
    /// How much is let through after the reset
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LIMIT_MOST))]
    limit: Option<u64>,
    /// What is counted: jobs, or what they cost
    #[arg(long, value_name = "UNITS", default_value = "job", value_parser = units)]
    units: Units,
    /// It is about this budget above the bucket
    #[arg(long = "in", value_name = "BUDGET", value_parser = name)]
    within: Option<BucketName>,
    /// The name means a budget, not a bucket
    #[arg(long, conflicts_with = "within")]
    budget: bool,
    /// Why, for whoever reads the events later
    #[arg(long, value_name = "TEXT", value_parser = bounds::reason)]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Clear,
    Left(u64),
}

fn name(text: &str) -> Result<BucketName, String> {
    BucketName::parse(text.as_bytes()).map_err(|why| why.to_string())
}

fn remaining(text: &str) -> Result<Remaining, String> {
    if text == "clear" {
        return Ok(Remaining::Clear);
    }
    let number = text.parse().ok().filter(|number| *number <= LIMIT_MOST);
    number.map(Remaining::Left).ok_or_else(|| format!("write a whole number, 0 to {LIMIT_MOST}, or clear"))
}

fn units(text: &str) -> Result<Units, String> {
    Units::parse(text).ok_or_else(|| "write job or cost".to_owned())
}

impl Told {
    pub(super) fn action(&self) -> String {
        let target = Subject { is_budget: self.budget, pattern: self.name.as_str() };
        let about = match &self.within {
            Some(budget) => format!("{} above {}", Subject { is_budget: true, pattern: budget.as_str() }, self.name),
            None => target.to_string(),
        };
        match self.remaining {
            Remaining::Clear => format!("forget what was told about {about}"),
            Remaining::Left(_) => format!("tell the limit of {about}"),
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let report = match (self.remaining, self.reset) {
            (Remaining::Clear, None) => None,
            (Remaining::Left(remaining), Some(reset)) => Some(LimitReport {
                remaining,
                reset_ms: u64::try_from(reset.as_millis()).unwrap_or(u64::MAX),
                limit: self.limit,
                units: self.units,
            }),
            (Remaining::Clear, Some(_)) => return Err(wrong("clear goes with no DURATION")),
            (Remaining::Left(_), None) => return Err(wrong("say how long it is until the reset, as in 30s")),
        };
        let target = Target::named(self.budget, &self.name);
        let request = ToldRequest { target, report, within: self.within, reason: self.reason };
        let taken = request.run(&mut connect(config).await?, &by()).await?;
        say(&request.describe(&taken));
        Ok(Exit::Done)
    }
}

fn wrong(why: &str) -> Failure {
    Failure::new(Exit::Usage, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_is_a_number_or_is_forgotten() {
        assert_eq!(remaining("clear"), Ok(Remaining::Clear));
        assert_eq!(remaining("0"), Ok(Remaining::Left(0)));
        for bad in ["", "-1", "1.5", "1000000001", "Clear"] {
            assert!(remaining(bad).expect_err(bad).ends_with("or clear"), "{bad}");
        }
    }
}
