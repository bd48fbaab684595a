//! `dripd push`: one job, or each line of a file or a pipe as a job. For a file, `lines` reads, `fields` finds the
//! bucket of each line, `feeder` pushes and counts, and `file` joins them and reports the outcome.

mod absence;
mod backoff;
mod feeder;
mod fields;
mod file;
mod lines;
mod options;
mod refused;
mod submit;
mod waiter;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use fields::{Field, Fields, Source};
use waiter::Waiter;

use super::args::whole;
use super::{Exit, Failure, connect, say};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::duration::in_ms;
use crate::store::Partitions;
use crate::system::signals::Signals;

/// Put jobs into buckets.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["job", "file"])))]
#[command(override_usage = "dripd push [OPTIONS] <BUCKET> <JOB>
       dripd push [OPTIONS] <BUCKET> --file <FILE>
       dripd push [OPTIONS] --file <FILE> --bucket-from <.FIELD>")]
pub(super) struct Push {
    /// The bucket: 1 to 200 bytes of UTF-8; it needs no declaration
    #[arg(required_unless_present = "bucket_from", conflicts_with = "bucket_from")]
    bucket: Option<BucketName>,
    /// The job: any bytes
    #[arg(conflicts_with_all = ["file", "bucket_from"])]
    job: Option<OsString>,
    /// A file with one job a line; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take the bucket of each JSON line from this field, as in .tenant or .to.region
    #[arg(long, value_name = ".FIELD", requires = "file")]
    bucket_from: Option<Field>,
    /// Take the id of each JSON line from this field: a line whose id was accepted before changes nothing, so the file can be pushed again
    #[arg(long, value_name = ".FIELD", group = "which", conflicts_with = "job")]
    id_from: Option<Field>,
    /// Take the cost of each JSON line from this field: how many slots of each rate it takes, 1 to 100000
    #[arg(long, value_name = ".FIELD", conflicts_with = "job")]
    cost_from: Option<Field>,
    /// Write the lines whose bucket had no room into this file, each as it was. It is emptied first, but not with --from-line
    #[arg(long, value_name = "FILE", conflicts_with = "job")]
    rejected: Option<PathBuf>,
    /// Begin with this line of the file, counted from 1: where an interrupted push says that it stopped
    #[arg(long, value_name = "N", conflicts_with = "job", value_parser = whole::<u64>(1, u64::MAX))]
    from_line: Option<u64>,
    /// Wait for room instead of giving up
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    asked: options::JobOptions,
}

/// The arguments of a push of a file.
struct Order {
    fields: Fields,
    file: PathBuf,
    rejected: Option<PathBuf>,
    from_line: Option<u64>,
    wait: bool,
}

impl Push {
    pub(super) fn action(&self) -> String {
        match (&self.bucket, &self.file) {
            (_, Some(file)) => format!("push the lines of {}", file.display()),
            (Some(bucket), None) => format!("push to {bucket}"),
            (None, None) => "push".to_owned(),
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        match (self.bucket, self.job, self.file) {
            (Some(bucket), Some(job), _) => {
                let options = self.asked.options();
                if options.is_any() {
                    submit::one(config, &bucket, &job.into_vec(), &options, self.wait, &mut signals).await
                } else {
                    push_one(config, &bucket, job.into_vec(), self.wait, &mut signals).await
                }
            }
            (bucket, _, Some(file)) => {
                let bucket =
                    bucket.map_or_else(|| Source::Field(self.bucket_from.expect("clap asks for one")), Source::Bucket);
                let fields = Fields { bucket, id: self.id_from, replaces: self.asked.replaces(), cost: self.cost_from };
                let order = Order { fields, file, rejected: self.rejected, from_line: self.from_line, wait: self.wait };
                file::push(config, &order, &mut signals).await
            }
            _ => Err(Failure::new(Exit::Failed, "nothing to push")),
        }
    }
}

async fn push_one(
    config: &Config,
    bucket: &BucketName,
    job: Vec<u8>,
    wait: bool,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let (jobs, mut waiter) = ([job], Waiter::new(config, signals));
    loop {
        let store = waiter.store().await?;
        let pushed = match store.of(bucket).push(bucket, &jobs).await {
            Err(why) if wait && why.passes() => {
                waiter.until_it_passes(&why).await?;
                continue;
            }
            pushed => pushed?,
        };
        let Some(retry_after) = pushed.retry_after else {
            let eta = in_ms(pushed.eta.unwrap_or_default().as_millis());
            say(&format!("accepted: {} of {} waiting, due in {eta}", pushed.depth, pushed.capacity));
            return Ok(Exit::Done);
        };
        let (depth, capacity) = (pushed.depth, pushed.capacity);
        if wait {
            waiter.for_room(bucket, retry_after, depth >= capacity).await?;
            continue;
        }
        let gates = store.of(bucket).bucket_status(bucket).await.map(|status| status.gates).unwrap_or_default();
        let gate = gates.iter().find(|gate| gate.remaining == 0).map(|gate| gate.limiter.as_str());
        return Err(turned_down(bucket, depth, capacity, gate, retry_after));
    }
}

/// The message that a job was not accepted: the bucket is closed, a gate lets nothing in, or no place is free.
fn turned_down(bucket: &BucketName, depth: u64, capacity: u64, gate: Option<&str>, retry_after: Duration) -> Failure {
    let why = match gate {
        _ if capacity == 0 => "is closed: an operator lets nothing in".to_owned(),
        Some(gate) => format!("is limited by its {gate}, {depth} of {capacity}"),
        None => format!("is full, {depth} of {capacity}"),
    };
    let wait = in_ms(retry_after.as_millis());
    Failure::new(Exit::Rejected, format!("{bucket} {why}: try again in {wait}, or use --wait"))
}

/// Connect, unless a signal comes first; nothing was pushed by then.
async fn connect_or_stop(config: &Config, signals: &mut Signals) -> Result<Partitions, Failure> {
    tokio::select! {
        store = connect(config) => store,
        () = signals.stop() => Err(nothing_accepted()),
    }
}

fn nothing_accepted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted: nothing was accepted")
}
