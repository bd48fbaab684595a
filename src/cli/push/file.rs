//! `dripd push --file`: reading, pushing and signals side by side, and the report at the end.

use std::io::IsTerminal as _;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use super::feeder::{Feeder, Tally};
use super::lines::{Input, Lines};
use super::refused::Refused;
use super::{Order, connect_or_stop};
use crate::cli::{Exit, Failure, say_err};
use crate::config::Config;
use crate::model::counted::counted;
use crate::store::StoreError;
use crate::system::signals::Signals;

/// Push each line of a file as a job.
pub(super) async fn push(config: &Config, order: &Order, signals: &mut Signals) -> Result<Exit, Failure> {
    let store = connect_or_stop(config, signals).await?;
    let most = match store.any().max_job_bytes().await {
        Ok(most) => most,
        // A user that may push need not be allowed to read the record. A job that is too large for it is refused in any
        // case.
        Err(StoreError::Refused { .. } | StoreError::Reply { .. }) => config.record.limits.max_job_bytes,
        Err(why) => return Err(why.into()),
    };
    let (input, size) = open(&order.file).await?;
    let refused = order.rejected.as_ref().map(|path| Refused::open(path, &order.file, order.from_line.is_some()));
    let refused = refused.transpose().map_err(|why| Failure::new(Exit::Failed, why))?;
    let bar = progress_bar(size);
    let first = order.from_line.unwrap_or(1);
    let mut lines = Lines::new(input, most, first, bar.clone());
    let mut feeder = Feeder::new(config, store, order.wait, refused, bar.clone());
    let stop = CancellationToken::new();
    let fed = tokio::select! {
        fed = feeder.feed(&mut lines, &order.fields, &stop) => fed,
        () = stop_on_signal(signals, &stop) => unreachable!("it only watches"),
    };
    bar.finish_and_clear();
    let tally = feeder.tally();
    match fed {
        Err(why) => {
            let why = why.of_file(&order.file);
            let go_on = if tally == Tally::default() { String::new() } else { go_on(&feeder, &lines, first) };
            Err(why.adding(&format!("; {tally} before that{go_on}")))
        }
        Ok(true) => {
            say_err(&tally.to_string());
            Ok(match tally {
                Tally { skipped: 1.., .. } => Exit::Failed,
                Tally { rejected: 1.., .. } => Exit::Rejected,
                Tally { .. } => Exit::Done,
            })
        }
        Ok(false) => {
            Err(Failure::new(Exit::Interrupted, format!("interrupted: {tally}{}", go_on(&feeder, &lines, first))))
        }
    }
}

/// The advice where to go on: the first undecided line, and how many lines after it are in a bucket already.
fn go_on(feeder: &Feeder, lines: &Lines, first: u64) -> String {
    let (line, accepted) = feeder.undecided(lines.number().max(first));
    let after = match accepted {
        0 => String::new(),
        n => format!("; {} accepted already", counted(n, "line after it is", "lines after it are")),
    };
    format!("; go on with --from-line {line}{after}")
}

/// Turn the first INT or TERM into a stop. Never returns, so that the call in progress is finished.
async fn stop_on_signal(signals: &mut Signals, stop: &CancellationToken) {
    signals.stop().await;
    stop.cancel();
    std::future::pending::<()>().await;
}

/// Open a file and find its size; standard input has none.
async fn open(path: &Path) -> Result<(Input, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(tokio::io::stdin()), None));
    }
    let cannot = |why| Failure::new(Exit::Failed, format!("cannot read {}: {why}", path.display()));
    let file = tokio::fs::File::open(path).await.map_err(cannot)?;
    let size = file.metadata().await.map_err(cannot)?.len();
    Ok((Box::new(file), Some(size)))
}

/// A progress bar on a terminal: over the bytes of a file, or a spinner for standard input. Elsewhere it is hidden.
fn progress_bar(size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    if let Some(size) = size {
        let style = ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes}  {msg}  eta {eta}");
        ProgressBar::new(size).with_style(style.expect("a good template"))
    } else {
        let style = ProgressStyle::with_template("{spinner} {binary_bytes} read  {msg}  {elapsed}");
        ProgressBar::new_spinner().with_style(style.expect("a good template"))
    }
}
