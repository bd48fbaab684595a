//! `dripd slow`: do what the other side of a bucket or a budget asks for, before a worker is told, or end that.

use std::time::Duration;

use clap::Args;

use super::change::{author, positive};
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::store::change::{Author, SlowDown};
use crate::words::bucket::BucketName;
use crate::words::duration;
use crate::words::subject::Subject;

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
    #[arg(long, value_name = "TEXT")]
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
    positive(text).map(HowLong::For).map_err(|why| format!("{why}; or clear"))
}

impl Slow {
    /// What is slowed down.
    fn slowed(&self) -> Subject<'_> {
        match &self.within {
            Some(budget) => Subject { is_budget: true, pattern: budget.as_str() },
            None => Subject { is_budget: self.budget, pattern: self.name.as_str() },
        }
    }

    pub(super) fn tried(&self) -> String {
        let above = self.within.as_ref().map_or_else(String::new, |_| format!(" above {}", self.name));
        match self.how_long {
            HowLong::Clear => format!("end the slow-down of {}{above}", self.slowed()),
            HowLong::For(_) => format!("slow down {}{above}", self.slowed()),
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let Author { by, user } = author(&mut store).await;
        let named = Subject { is_budget: self.budget, pattern: self.name.as_str() };
        let asked = match self.how_long {
            HowLong::Clear => None,
            HowLong::For(asked) => Some(asked),
        };
        let slow_down = SlowDown {
            node: named.stored(),
            within: self.within.as_ref().map(|budget| budget.as_str().to_owned()),
            ms: asked.map(|asked| u64::try_from(asked.as_millis()).expect("at most 366 days")),
            by,
            user,
            reason: self.reason.clone(),
        };
        let goes_on = store.slow(&slow_down).await?;
        say(&said(&self.slowed(), asked, goes_on));
        Ok(Exit::Done)
    }
}

/// What became of it: a slow-down is only ever extended, and lasts no longer than its policy allows.
fn said(slowed: &Subject, asked: Option<Duration>, goes_on: Duration) -> String {
    let Some(asked) = asked else { return format!("{slowed}: slowed down no more") };
    let why = if goes_on < asked {
        "; slow.cap allows no more"
    } else if goes_on > asked + Duration::from_millis(1) {
        "; the slow-down in force lasts longer"
    } else {
        ""
    };
    format!("{slowed}: goes on in {}{why}", duration::say(goes_on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_tells_of_what_was_not_done_as_asked() {
        let (seconds, subject) = (Duration::from_secs, Subject::of_stored("{twilio}"));
        let of = |asked, goes_on| said(&subject, Some(seconds(asked)), seconds(goes_on));
        assert_eq!(of(30, 30), "budget twilio: goes on in 30.0 s");
        assert_eq!(of(7_200, 3_600), "budget twilio: goes on in 60 m; slow.cap allows no more");
        assert_eq!(of(30, 45), "budget twilio: goes on in 45.0 s; the slow-down in force lasts longer");
        assert_eq!(said(&Subject::of_stored("acme"), None, Duration::ZERO), "acme: slowed down no more");
    }

    #[test]
    fn it_lasts_for_a_duration_or_is_cleared() {
        assert_eq!(how_long("clear"), Ok(HowLong::Clear));
        assert_eq!(how_long("90s"), Ok(HowLong::For(Duration::from_secs(90))));
        for bad in ["", "0s", "10us", "367d", "soon", "Clear"] {
            assert!(how_long(bad).expect_err(bad).ends_with("; or clear"), "{bad}");
        }
    }
}
