//! `dripd record`: write a trace of live traffic, for `dripd simulate --trace`.

use std::io::{ErrorKind, Write as _};
use std::time::{Duration, Instant};

use clap::Args;

use super::{Exit, Failure, connect, say_err};
use crate::config::Config;
use crate::model::counted::counted;
use crate::model::escape;
use crate::operate::bounds;
use crate::simulate::Recorder;
use crate::store::Partitions;
use crate::store::snapshots::MAX_SNAPSHOTS;
use crate::store::top::{By, KEPT};
use crate::system::signals::Signals;

/// How often buckets are looked at, and how often for new ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SEARCH_EVERY: u64 = 5;

/// Write what comes into the buckets of a running system as a trace, to standard output.
#[derive(Debug, Args)]
pub(super) struct Record {
    /// For how long; otherwise until it is interrupted
    #[arg(long = "for", value_name = "DURATION", value_parser = bounds::time)]
    lasts: Option<Duration>,
}

/// The count of jobs that have left all buckets.
async fn dispatched(store: &mut Partitions) -> Result<u64, Failure> {
    Ok(store.figures().await?.counter("dispatched"))
}

impl Record {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let mut store = connect(config).await?;
        let mut recorder = Recorder::default();
        let (began, before) = (Instant::now(), dispatched(&mut store).await?);
        let (mut out, mut is_over, mut most) = (std::io::stdout(), false, 0);
        for look in 0u64.. {
            if look.is_multiple_of(SEARCH_EVERY) || recorder.names().is_empty() {
                for by in By::ALL {
                    let top = store.top(by, None, KEPT).await?;
                    most = most.max(top.as_ref().map_or(0, |top| top.buckets));
                    recorder.watch(top.into_iter().flat_map(|top| top.rows).map(|row| row.bucket));
                }
            }
            let at_ms = began.elapsed().as_millis() as u64;
            for names in recorder.names().to_vec().chunks(MAX_SNAPSHOTS) {
                let now = store.bucket_snapshots(names).await?;
                for line in recorder.note(at_ms, &now.rows) {
                    let json = serde_json::to_string(&line).expect("it is text and numbers");
                    match writeln!(out, "{}", escape::escaped_json(&json)) {
                        Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Done), // enough was seen
                        Err(why) => return Err(Failure::new(Exit::Failed, format!("cannot write the trace: {why}"))),
                        Ok(()) => {}
                    }
                }
            }
            if is_over {
                break;
            }
            let next = began + LOOK_EVERY * (look as u32 + 1);
            let end = self.lasts.map_or(next, |lasts| next.min(began + lasts));
            is_over = tokio::select! {
                () = tokio::time::sleep_until(end.into()) => self.lasts.is_some_and(|lasts| began.elapsed() >= lasts),
                () = signals.stop() => true,
            };
        }
        let all = dispatched(&mut store).await?.saturating_sub(before);
        let buckets = counted(recorder.names().len() as u64, "bucket", "buckets");
        say_err(&format!(
            "{} into {buckets} recorded; {} of {all} that left in this time were seen",
            counted(recorder.jobs, "job", "jobs"),
            recorder.left.min(all)
        ));
        if most > recorder.names().len() as u64 {
            say_err(&format!(
                "{most} buckets had work at once: those with most jobs were recorded, the others were not"
            ));
        }
        Ok(Exit::Done)
    }
}
