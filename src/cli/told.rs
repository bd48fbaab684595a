//! `dripd told`: say how much more the other side lets through, where no worker does; or forget what was said.

use std::time::Duration;

use clap::Args;

use super::change::{NodeArgs, by};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::model::node::Units;
use crate::operate::bounds;
use crate::store::jobs::work::{LIMIT_MOST, LimitReport};

/// Say how much more the other side lets through, or forget that.
#[derive(Debug, Args)]
#[command(mut_arg("within", |arg| arg.help("It is about this budget above the bucket")))]
#[command(mut_arg("reason", |arg| arg.help("Why, for whoever reads the events later")))]
pub(super) struct Told {
    /// How much more is let through until the reset, or `clear`: forget what was told
    #[arg(index = 2, value_name = "REMAINING|clear", value_parser = remaining)]
    remaining: Remaining,
    /// How long it is until the limit resets, as in 30s
    #[arg(index = 3, value_name = "DURATION", value_parser = bounds::time)]
    reset: Option<Duration>,
    /// How much is let through after the reset
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LIMIT_MOST))]
    limit: Option<u64>,
    /// What is counted: jobs, or what they cost
    #[arg(long, value_name = "UNITS", default_value = "job", value_parser = units)]
    units: Units,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Clear,
    Left(u64),
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
        let about = self.node.about();
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
                resets_at_ms: None,
                limit: self.limit,
                units: self.units,
            }),
            (Remaining::Clear, Some(_)) => return Err(wrong("clear goes with no DURATION")),
            (Remaining::Left(_), None) => return Err(wrong("say how long it is until the reset, as in 30s")),
        };
        let request = self.node.request(report);
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
