//! `dripd slow`: slow a bucket or a budget down by hand, before its other side tells a worker to wait; or end a
//! slow-down.

use std::time::Duration;

use clap::Args;

use super::change::by;
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::subject::Subject;
use crate::operate::bounds;
use crate::operate::slow::SlowRequest;
use crate::operate::target::Target;

/// Slow down a bucket or a budget for a while, or end that.
#[derive(Debug, Args)]
pub(super) struct Slow {
    /// The name of a bucket
    #[arg(value_parser = name)]
    name: BucketName,
    /// For how long, as in 30s, or `clear`: it goes on now, at its full rate
    #[arg(value_name = "DURATION|clear", value_parser = how_long)]
    how_long: HowLong,
    /// Slow down this budget above the bucket, and so all that is below it
    #[arg(long = "in", value_name = "BUDGET", value_parser = name)]
    within: Option<BucketName>,
    /// The name means a budget, not a bucket
    #[arg(long, conflicts_with = "within")]
    budget: bool,
    /// Why, for whoever reads `dripd settings` later
    #[arg(long, value_name = "TEXT", value_parser = bounds::reason)]
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HowLong {
    Clear,
    For(Duration),
}

fn name(text: &str) -> Result<BucketName, String> {
    BucketName::parse(text.as_bytes()).map_err(|why| why.to_string())
}

fn how_long(text: &str) -> Result<HowLong, String> {
    if text == "clear" {
        return Ok(HowLong::Clear);
    }
    bounds::time(text).map(HowLong::For).map_err(|why| format!("{why}; or clear"))
}

impl Slow {
    pub(super) fn action(&self) -> String {
        let target = Subject { is_budget: self.budget, pattern: self.name.as_str() };
        let slowed = match &self.within {
            Some(budget) => format!("{} above {}", Subject { is_budget: true, pattern: budget.as_str() }, self.name),
            None => target.to_string(),
        };
        match self.how_long {
            HowLong::Clear => format!("end the slow-down of {slowed}"),
            HowLong::For(_) => format!("slow down {slowed}"),
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let lasts = match self.how_long {
            HowLong::Clear => None,
            HowLong::For(lasts) => Some(lasts),
        };
        let target = Target::named(self.budget, &self.name);
        let request = SlowRequest { target, lasts, within: self.within, reason: self.reason };
        let slowed = request.run(&mut connect(config).await?, &by()).await?;
        say(&request.describe(&slowed));
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_for_a_duration_or_is_cleared() {
        assert_eq!(how_long("clear"), Ok(HowLong::Clear));
        assert_eq!(how_long("90s"), Ok(HowLong::For(Duration::from_secs(90))));
        for bad in ["", "0s", "10us", "367d", "soon", "Clear"] {
            assert!(how_long(bad).expect_err(bad).ends_with("; or clear"), "{bad}");
        }
    }
}
