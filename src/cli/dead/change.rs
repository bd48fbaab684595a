//! `dripd dead retry` and `dripd dead drop`: what is counted first, asked about, and then done in bounded calls.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::super::change::{author, confirm};
use super::super::{Exit, Failure, connect, say, say_err};
use super::Which;
use crate::cli::args::whole;
use crate::config::Config;
use crate::store::dead::{Act, Changed, Command, Filter};
use crate::store::{Store, StoreError};
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

/// What was found before anything is done.
#[derive(Default)]
struct Found {
    letters: u64,
    malformed: u64,
    /// How many of each bucket, and the time in which it lets one out.
    buckets: HashMap<String, Backlog>,
}

struct Backlog {
    letters: u64,
    count: u32,
    period: Duration,
}

impl Found {
    /// How many of them would be changed: what is malformed cannot go back.
    fn affected(&self, act: Act) -> u64 {
        match act {
            Act::Retry => self.letters,
            Act::Drop => self.letters + self.malformed,
        }
    }
}

impl Backlog {
    /// For how long the bucket will be busy with them.
    fn busy(&self) -> Duration {
        self.period.mul_f64(self.letters as f64 / f64::from(self.count))
    }
}

/// What was done in the end.
#[derive(Default)]
struct Outcome {
    done: u64,
    malformed: u64,
    kept: u64,
    left: u64,
    why: Option<(String, String)>,
}

impl Change {
    pub(super) async fn run(self, act: Act, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let mut filter = self.which.filter(&mut store).await?;
        let found = match &mut filter {
            Some(filter) => self.count(act, &mut store, filter).await?,
            None => Found::default(),
        };
        let (Some(filter), true) = (filter, found.affected(act) > 0) else {
            let left = store.dead_length().await?;
            let outcome = Outcome { malformed: found.malformed, left, ..Outcome::default() };
            self.say_outcome(act, 0, &outcome);
            return Ok(Exit::Done);
        };
        let count = letters(found.affected(act));
        say_before(act, &found, &count);
        let question = match act {
            Act::Retry => format!("Put {count} back?"),
            Act::Drop => format!("Delete {count} for good?"),
        };
        confirm(&question, self.yes)?;
        if !self.yes {
            store = connect(config).await?; // the question may have outlived the connection
        }
        let author = author(&mut store).await;
        let before = format!("{count}{}", self.which.in_words());
        let mut command = Command::new(act, filter, self.limit, author, before);
        command.label = self.which.bucket.clone().unwrap_or_default();
        let outcome = run(&mut store, &mut command).await?;
        self.say_outcome(act, found.affected(act), &outcome);
        if act == Act::Retry && outcome.done > 0 && store.daemons().await.is_ok_and(|daemons| daemons.is_empty()) {
            say_err("dripd dead: no daemon runs, so nothing leaves a bucket: start one with `dripd run`");
        }
        let Some((key, why)) = outcome.why else { return Ok(Exit::Done) };
        let kept = letters(outcome.kept);
        Err(Failure::new(Exit::Failed, format!("{kept} could not be put back: {}: {why}", shown(key.as_bytes()))))
    }

    /// Count what the filter finds, by bucket, and end the filter with the newest entry that there is now.
    async fn count(&self, act: Act, store: &mut Store, filter: &mut Filter) -> Result<Found, StoreError> {
        let (mut found, mut at) = (Found::default(), filter.clone());
        loop {
            let most = self.limit.map(|limit| limit - found.affected(act));
            let part = store.dead_count(&at, most, act == Act::Drop).await?;
            found.malformed += part.malformed;
            for one in part.buckets {
                found.letters += one.letters;
                let fresh = Backlog { letters: 0, count: one.count, period: one.period };
                found.buckets.entry(one.bucket).or_insert(fresh).letters += one.letters;
            }
            (filter.upto, at.upto) = (Some(part.upto), Some(part.upto));
            let is_enough = self.limit.is_some_and(|limit| found.affected(act) >= limit);
            let Some(next) = part.next.filter(|_| !is_enough) else { return Ok(found) };
            at.after = Some(next);
        }
    }

    /// What was done, or that there was nothing to do.
    fn say_outcome(&self, act: Act, matched: u64, outcome: &Outcome) {
        let Outcome { done, malformed, kept, left, .. } = outcome;
        let gone = matched.saturating_sub(done + kept);
        if self.json {
            let verb = if act == Act::Retry { "put_back" } else { "dropped" };
            let object = json!({ "matched": matched, verb: done, "gone": gone, "kept": kept, "malformed": malformed, "left": left });
            return say(&object.to_string());
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

/// All calls of a command.
async fn run(store: &mut Store, command: &mut Command) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    loop {
        let Changed { goes_on, malformed, kept, left, why } = match store.dead_change(command).await {
            Ok(changed) => changed,
            Err(why) => {
                let done = letters(command.done);
                return Err(
                    Failure::from(why).adding(&format!("; {done} were done by then: run it again for the rest"))
                );
            }
        };
        outcome.malformed += malformed;
        outcome.kept += kept;
        outcome.why = outcome.why.or(why);
        if !goes_on {
            return Ok(Outcome { done: command.done, left, ..outcome });
        }
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
