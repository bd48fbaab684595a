//! `dripd dead retry` and `dripd dead drop`: count the letters, ask, and change them in bounded calls.

use std::time::Duration;

use clap::Args;

use super::super::change::{by, confirm};
use super::super::{Exit, Failure, connect, say, say_err, say_json};
use crate::cli::args::whole;
use crate::config::Config;
use crate::model::counted::counted;
use crate::model::duration::{about, show_per_period};
use crate::model::escape::escaped;
use crate::operate::dead::{DeadRequest, Found, Interrupted, Obstacle};
use crate::operate::dead_filter::DeadFilter;
use crate::store::dead::{Act, CountedBucket};

/// The most buckets for which the time that they will be busy is shown.
const BUCKETS_SHOWN: usize = 10;

/// Put dead letters back, or drop them.
#[derive(Debug, Args)]
pub(super) struct Change {
    #[command(flatten)]
    filter: DeadFilter,
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
        let request = DeadRequest { act, filter: self.filter, limit: self.limit, up_to: None };
        let found = request.count(&mut store).await?;
        if found.affected(act) > 0 {
            let letters = counted(found.affected(act), "dead letter", "dead letters");
            say_before(act, &found, &letters);
            let question = match act {
                Act::Retry => format!("Put {letters} back?"),
                Act::Drop => format!("Delete {letters} for good?"),
            };
            confirm(&question, self.yes)?;
            if !self.yes {
                store = connect(config).await?; // the question may have outlived the connection
            }
        }
        let mut changed = request.run(&mut store, &found, &by()).await.map_err(|Interrupted { why, done }| {
            let done = counted(done, "dead letter", "dead letters");
            Failure::from(why).adding(&format!("; {done} were done by then: run it again for the rest"))
        })?;
        let obstacle = changed.why.take(); // the error below reports it
        if self.json {
            say_json(&changed);
        } else {
            say(&changed.describe());
        }
        if changed.put_back.is_some_and(|done| done > 0)
            && store.authority().daemons().await.is_ok_and(|daemons| daemons.is_empty())
        {
            say_err("dripd dead: no daemon runs, so nothing leaves a bucket: start one with `dripd run`");
        }
        let Some(Obstacle { key, why }) = obstacle else { return Ok(Exit::Done) };
        let kept = counted(changed.kept, "dead letter", "dead letters");
        Err(Failure::new(Exit::Failed, format!("{kept} could not be put back: {}: {why}", escaped(key.as_bytes()))))
    }
}

/// Tell what would be done, and how long the buckets would be busy with it.
fn say_before(act: Act, found: &Found, count: &str) {
    if act == Act::Drop {
        let malformed = if found.malformed > 0 { format!(", {} malformed,", found.malformed) } else { String::new() };
        return say_err(&format!("{count}{malformed} would be deleted, and their jobs with them"));
    }
    let of = counted(found.buckets.len() as u64, "bucket", "buckets");
    say_err(&format!("{count} of {of} would go back, ahead of what waits there:"));
    let mut buckets: Vec<(&String, &CountedBucket)> = found.buckets.iter().collect();
    buckets.sort_by_key(|(name, one)| (std::cmp::Reverse(one.busy()), *name));
    for (name, one) in buckets.iter().take(BUCKETS_SHOWN) {
        let rate = show_per_period(one.count, one.period);
        let (name, busy) = (escaped(name.as_bytes()), roughly(one.busy()));
        say_err(&format!("  {name}: {} at {rate}, busy with them for {busy}", one.letters));
    }
    if let Some((_, next)) = buckets.get(BUCKETS_SHOWN) {
        let more = buckets.len() - BUCKETS_SHOWN;
        say_err(&format!("  and {more} more, none of them for more than {}", roughly(next.busy())));
    }
}

/// A duration in rough units.
fn roughly(time: Duration) -> String {
    if time < Duration::from_secs(1) { "less than 1s".to_owned() } else { about(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_busy_for_an_interval_a_letter() {
        let busy =
            |letters, count, period| roughly(CountedBucket { bucket: String::new(), letters, count, period }.busy());
        assert_eq!(busy(50, 10, Duration::from_secs(1)), "5s");
        assert_eq!(busy(3_000, 1, Duration::from_secs(1)), "50m");
        assert_eq!(busy(1, 50_000_000, Duration::from_secs(50)), "less than 1s");
        assert_eq!(busy(10_000_000, 1, Duration::from_secs(366 * 86_400)), "3660000000d");
    }
}
