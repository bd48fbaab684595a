//! Pushing a single job with options.

use super::absence::Absence;
use super::{connect_or_stop, wait_for_room};
use crate::cli::{Exit, Failure, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::duration::in_ms;
use crate::store::jobs::push::MOVING_RETRY;
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
    let mut absence = Absence::default();
    loop {
        let mut store = connect_or_stop(config, signals).await?;
        let submitted = match store.of(bucket).submit(bucket, job, options).await {
            Err(why) if wait && why.is_retryable() => {
                wait_for_room(&mut store, MOVING_RETRY, &mut absence, signals).await?;
                continue;
            }
            submitted => submitted?,
        };
        if submitted.is_accepted {
            say(&accepted(&submitted));
            return Ok(Exit::Done);
        }
        let retry_after = submitted.retry_after.unwrap_or_default();
        if !wait || submitted.verdict == "late" {
            return Err(Failure::new(Exit::Rejected, refused(bucket, &submitted)));
        }
        wait_for_room(&mut store, retry_after, &mut absence, signals).await?;
    }
}

fn accepted(submitted: &Submitted) -> String {
    let Submitted { depth, capacity, verdict, id, .. } = submitted;
    let when =
        submitted.eta.map_or_else(|| ", it has left".to_owned(), |eta| format!(", due in {}", in_ms(eta.as_millis())));
    format!("{verdict}: {depth} of {capacity} waiting{when}, id {id}")
}

fn refused(bucket: &BucketName, submitted: &Submitted) -> String {
    let Submitted { depth, capacity, by, .. } = submitted;
    let wait = in_ms(submitted.retry_after.unwrap_or_default().as_millis());
    match submitted.verdict.as_str() {
        "late" => format!(
            "{bucket} could not let it out in time, {by} is too far behind: try again in {wait}, or give it a longer --ttl"
        ),
        "gated" => {
            format!("{bucket} is limited by its {by}, {depth} of {capacity}: try again in {wait}, or use --wait")
        }
        _ => format!("{bucket} is full, {depth} of {capacity}: try again in {wait}, or use --wait"),
    }
}
