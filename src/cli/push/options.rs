//! The options of a single job: `--id`, `--delay`, `--at`, `--ttl`, `--cost`, `--header`.

use std::time::Duration;

use clap::Args;

use crate::cli::args::whole;
use crate::model::duration;
use crate::operate::moment::Moment;
use crate::store::submit::{Options, Start};

/// Options of a single job.
#[derive(Debug, Args)]
pub(super) struct JobOptions {
    /// Its id, 1 to 200 bytes of ! to ~: while it waits, and for as long as `dedup` says, a second push with the same id changes nothing
    #[arg(long, value_name = "ID", group = "which", conflicts_with_all = ["file", "bucket_from"])]
    id: Option<String>,
    /// Where a job with this id waits, take its place: other bytes, cost, headers and deadline, and a delayed one waits for the new time
    #[arg(long, requires = "which")]
    replace: bool,
    /// Let it wait for so long first, as in 90s
    #[arg(long, value_name = "TIME", conflicts_with_all = ["file", "bucket_from", "at"], value_parser = time)]
    delay: Option<Duration>,
    /// Let it wait until then, as in 2026-05-01T12:00:00Z
    #[arg(long, value_name = "WHEN", conflicts_with_all = ["file", "bucket_from"], value_parser = moment)]
    at: Option<u64>,
    /// Give it up when it has not left after so long, as in 30s
    #[arg(long, value_name = "TIME", conflicts_with_all = ["file", "bucket_from"], value_parser = time)]
    ttl: Option<Duration>,
    /// How many slots of each rate it takes, 1 to 100000 [default: 1]
    #[arg(long, value_name = "N", conflicts_with_all = ["file", "bucket_from"], value_parser = whole::<u64>(1, 100_000))]
    cost: Option<u64>,
    /// A field for the worker, as in 'traceparent: 00-abc'; may be given 8 times
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with_all = ["file", "bucket_from"], value_parser = header)]
    headers: Vec<(String, String)>,
}

fn time(text: &str) -> Result<Duration, &'static str> {
    let longest = Duration::from_secs(366 * 86_400);
    let fits = |time: &Duration| *time <= longest && time.subsec_nanos().is_multiple_of(1_000_000);
    duration::parse(text).filter(fits).ok_or("write a whole number and a unit (ms s m h d), as in 30s, at most 366d")
}

fn moment(text: &str) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(Moment::At(ms)) => Ok(ms),
        _ => Err("write a time, as in 2026-05-01T12:00:00Z"),
    }
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("write name: value")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

impl JobOptions {
    /// Whether a job of a file takes the place of one with its id.
    pub(super) fn replaces(&self) -> bool {
        self.replace
    }

    pub(super) fn options(self) -> Options {
        let start = self.delay.map(Start::In).or(self.at.map(Start::At));
        Options { id: self.id, replaces: self.replace, start, ttl: self.ttl, cost: self.cost, headers: self.headers }
    }
}
