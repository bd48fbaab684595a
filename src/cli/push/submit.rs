//! Pushing a single job with options.

use super::turned_down;
use super::waiter::Waiter;
use crate::cli::{Exit, Failure, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::duration::in_ms;
use crate::store::submit::{Options, Submitted};
use crate::system::signals::Signals;

/// Submit one job. With `wait`, wait for room in a full bucket, and for a gate. A job that would be late is refused all
/// the same.
pub(super) async fn one(
    config: &Config,
    bucket: &BucketName,
    job: &[u8],
    options: &Options,
    wait: bool,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let mut waiter = Waiter::new(config, signals);
    loop {
        let submitted = match waiter.store().await?.of(bucket).submit(bucket, job, options).await {
            Err(why) if wait && why.passes() => {
                waiter.until_it_passes(&why).await?;
                continue;
            }
            submitted => submitted?,
        };
        if submitted.is_accepted {
            say(&accepted(&submitted));
            return Ok(Exit::Done);
        }
        if !wait || submitted.verdict == "late" {
            return Err(refused(bucket, &submitted));
        }
        let retry_after = submitted.retry_after.unwrap_or_default();
        waiter.for_room(bucket, retry_after, submitted.verdict == "full").await?;
    }
}

fn accepted(submitted: &Submitted) -> String {
    let Submitted { depth, capacity, verdict, id, .. } = submitted;
    let when =
        submitted.eta.map_or_else(|| ", it has left".to_owned(), |eta| format!(", due in {}", in_ms(eta.as_millis())));
    format!("{verdict}: {depth} of {capacity} waiting{when}, id {id}")
}

fn refused(bucket: &BucketName, submitted: &Submitted) -> Failure {
    let Submitted { depth, capacity, by, .. } = submitted;
    let retry_after = submitted.retry_after.unwrap_or_default();
    if submitted.verdict == "late" {
        let wait = in_ms(retry_after.as_millis());
        let message = format!(
            "{bucket} could not let it out in time, {by} is too far behind: try again in {wait}, or give it a longer --ttl"
        );
        return Failure::new(Exit::Rejected, message);
    }
    let gate = (submitted.verdict == "gated").then_some(by.as_str());
    turned_down(bucket, *depth, *capacity, gate, retry_after)
}
