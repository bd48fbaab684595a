//! `dripd dead retry` and `dripd dead drop`: what is counted first, asked about, and then done in bounded calls.

use std::time::Duration;

use clap::Args;

use super::super::change::{author, confirm};
use super::super::{Exit, Failure, connect, say, say_err, say_json};
use super::Which;
use crate::cli::args::whole;
use crate::config::Config;
use crate::operate::dead::{Backlog, Found, Order, Outcome, count, outcome_as_json, run};
use crate::store::dead::Act;
use crate::words::duration::{about, show_per_period};
use crate::words::shown::shown;

/// Of how many buckets it is said for how long they will be busy.
const BUCKETS_SHOWN: usize = 10;

/// Put dead letters back, or drop them.
#[derive(Debug, Args)]
pub(super) struct Change {
    #[command(flatten)]
    which: Which,
    /// The oldest N of them at most [default: all]
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, u64::MAX))]
    limit: Option<u64>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// What was done, as JSON
    #[arg(long)]
    json: bool,
}

impl Change {
    pub(super) async fn run(self, act: Act, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let wanted = self.which.wanted();
        let filter = wanted.filter(&mut store).await?;
        let found = match &filter {
            Some(filter) => count(&mut store, act, filter, self.limit).await?,
            None => Found::default(),
        };
        if found.affected(act) == 0 {
            let left = store.dead_length().await?;
            let outcome = Outcome { malformed: found.malformed, left, ..Outcome::default() };
            self.say_outcome(act, 0, &outcome);
            return Ok(Exit::Done);
        }
        let how_many = letters(found.affected(act));
        say_before(act, &found, &how_many);
        let question = match act {
            Act::Retry => format!("Put {how_many} back?"),
            Act::Drop => format!("Delete {how_many} for good?"),
        };
        confirm(&question, self.yes)?;
        if !self.yes {
            store = connect(config).await?; // the question may have outlived the connection
        }
        let author = author(&mut store).await;
        let before = format!("{how_many}{}", wanted.in_words());
        let order = Order { act, author, before, label: self.which.bucket.clone().unwrap_or_default() };
        let mut done = 0;
        let outcome = run(&mut store, &found, &order, &mut done).await.map_err(|why| {
            let done = letters(done);
            Failure::from(why).adding(&format!("; {done} were done by then: run it again for the rest"))
        })?;
        self.say_outcome(act, found.affected(act), &outcome);
        if act == Act::Retry
            && outcome.done > 0
            && store.authority().daemons().await.is_ok_and(|daemons| daemons.is_empty())
        {
            say_err("dripd dead: no daemon runs, so nothing leaves a bucket: start one with `dripd run`");
        }
        let Some((key, why)) = outcome.why else { return Ok(Exit::Done) };
        let kept = letters(outcome.kept);
        Err(Failure::new(Exit::Failed, format!("{kept} could not be put back: {}: {why}", shown(key.as_bytes()))))
    }

    /// What was done, or that there was nothing to do.
    fn say_outcome(&self, act: Act, matched: u64, outcome: &Outcome) {
        let Outcome { done, malformed, kept, left, .. } = outcome;
        let gone = matched.saturating_sub(done + kept);
        if self.json {
            return say_json(&outcome_as_json(act, matched, outcome));
        }
        let mut line = match (act, matched) {
            (_, 0) => "nothing to do".to_owned(),
            (Act::Retry, _) => format!("{} put back", letters(*done)),
            (Act::Drop, _) => format!("{} dropped", letters(*done)),
        };
        if gone > 0 {
            line += &format!(", {gone} had gone by then");
        }
        if *malformed > 0 {
            line += &format!(", {malformed} malformed left alone (`dripd dead drop` deletes them)");
        }
        say(&format!("{line}; {} in all now", letters(*left)));
    }
}

/// What would be done, and for how long the buckets would be busy with it.
fn say_before(act: Act, found: &Found, count: &str) {
    if act == Act::Drop {
        let malformed = if found.malformed > 0 { format!(", {} malformed,", found.malformed) } else { String::new() };
        return say_err(&format!("{count}{malformed} would be deleted, and their jobs with them"));
    }
    let of = if found.buckets.len() == 1 { "1 bucket".to_owned() } else { format!("{} buckets", found.buckets.len()) };
    say_err(&format!("{count} of {of} would go back, ahead of what waits there:"));
    let mut buckets: Vec<(&String, &Backlog)> = found.buckets.iter().collect();
    buckets.sort_by_key(|(name, one)| (std::cmp::Reverse(one.busy()), *name));
    for (name, one) in buckets.iter().take(BUCKETS_SHOWN) {
        let rate = show_per_period(one.count, one.period);
        let (name, busy) = (shown(name.as_bytes()), roughly(one.busy()));
        say_err(&format!("  {name}: {} at {rate}, busy with them for {busy}", one.letters));
    }
    if let Some((_, next)) = buckets.get(BUCKETS_SHOWN) {
        let more = buckets.len() - BUCKETS_SHOWN;
        say_err(&format!("  and {more} more, none of them for more than {}", roughly(next.busy())));
    }
}

/// A time that nobody needs to know exactly.
fn roughly(time: Duration) -> String {
    if time < Duration::from_secs(1) { "less than 1s".to_owned() } else { about(time) }
}

fn letters(n: u64) -> String {
    if n == 1 { "1 dead letter".to_owned() } else { format!("{n} dead letters") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_busy_for_an_interval_a_letter() {
        let busy = |letters, count, period| roughly(Backlog { letters, count, period }.busy());
        assert_eq!(busy(50, 10, Duration::from_secs(1)), "5s");
        assert_eq!(busy(3_000, 1, Duration::from_secs(1)), "50m");
        assert_eq!(busy(1, 50_000_000, Duration::from_secs(50)), "less than 1s");
        assert_eq!(busy(10_000_000, 1, Duration::from_secs(366 * 86_400)), "3660000000d");
    }
}
