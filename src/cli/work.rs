//! `dripd work`.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::args::{http_url, time, whole};
use super::log::Log;
use super::{Exit, Failure, connect};
use crate::config::{BadConfig, Config, exposed};
use crate::model::bucket::BucketName;
use crate::model::partitioning;
use crate::model::route::Route;
use crate::operate::target::one_name;
use crate::store::acl::Role;
use crate::store::{Address, Layout};
use crate::system::signals::{Signal, Signals};
use crate::worker::{Exec, Http, Print, Runner, Signer, Spans, Worker, header, headers_in};

/// How long a POST may take unless `--timeout` says otherwise.
const HTTP_LIMIT: Duration = Duration::from_secs(60);

/// From a stop until the last spans of a worker are sent: the rest of its five seconds is for its end.
const STOP_WITHIN: Duration = Duration::from_millis(4_700);

/// For how long spans may be sent at the end at least, and at most.
const FLUSH_WITHIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Take jobs and run them.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("how").required(true).args(["exec", "http", "print"])))]
pub(super) struct Work {
    /// Run a command for each job: the job on standard input, `DRIPD_BUCKET`, `DRIPD_ATTEMPT`, `DRIPD_ID`,
    /// `DRIPD_COST`, `DRIPD_DEADLINE_US` and `DRIPD_HEADER_<NAME>` in the environment; exit code 0 done, 65 dead, 75 throttled, anything else failed. Comes last: what follows is the command's. One
    /// word with white space in it is a line for sh
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    exec: Option<Vec<OsString>>,
    /// Post each job, with Drip-Bucket, Drip-Attempt, Drip-Id, its headers as Drip-H-<name> (traceparent, tracestate and content-type as
    /// such) and, unless --header says another, a Content-Type:
    /// application/json where the job is JSON, else text/plain or application/octet-stream. 2xx done; 429 and 503
    /// throttled, until when Retry-After, retry-after-ms or x-ratelimit-reset-* say; 408, 409 and 425 failed; other 4xx
    /// dead; anything else failed
    #[arg(long, value_name = "URL", value_parser = http_url)]
    http: Option<Url>,
    /// A header of every post; as often as needed. Everybody on this machine can see the command line: passwords belong into
    /// --header-file
    #[arg(long, value_name = "'NAME: VALUE'", conflicts_with_all = ["exec", "print"], value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The headers of this file too, a line each: Name: value; as often as needed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["exec", "print"])]
    header_file: Vec<PathBuf>,
    /// Sign every post as Standard Webhooks has it (webhook-id, webhook-timestamp, webhook-signature) with the secrets of
    /// this file, a line each: whsec_ and the base64 of 24 to 64 bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["exec", "print"])]
    secret_file: Option<PathBuf>,
    /// A job that is throttled slows down this budget above its bucket, and so all that is below it [default: the bucket]
    #[arg(long, value_name = "NAME", conflicts_with = "print", value_parser = one_name)]
    throttle_budget: Option<BucketName>,
    /// What the answers to --http say about the limits of the other side is about this budget above a job's bucket [default: the
    /// bucket]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["exec", "print"], value_parser = one_name)]
    told_in: Option<BucketName>,
    /// Write each job to standard output, a line each
    #[arg(long)]
    print: bool,
    /// How many jobs at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u16>(1, 1_000))]
    concurrency: u16,
    /// Take from these partitions only, as in 0-7 or 3 [default: all]
    #[arg(long, value_name = "FROM-TO", value_parser = partitions)]
    partitions: Option<RangeInclusive<u8>>,
    /// The ready stream to take from
    #[arg(long, value_name = "ROUTE", default_value = "default", value_parser = Route::parse)]
    route: Route,
    /// End a run that takes longer, as in 30s: the job has failed [default: none for --exec, 60s for --http]
    #[arg(long, value_name = "DURATION", value_parser = time)]
    timeout: Option<Duration>,
    /// A command that is ended, by --timeout or because the worker stops, gets TERM, and KILL after this time
    #[arg(long, value_name = "DURATION", default_value = "1s", conflicts_with_all = ["http", "print"], value_parser = time)]
    grace: Duration,
    #[command(flatten)]
    log: Log,
}

fn partitions(text: &str) -> Result<RangeInclusive<u8>, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse().ok().filter(|number| *number < partitioning::MAX_PARTITIONS);
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    range.map(|(first, last)| first..=last).ok_or("write two numbers of partitions, as in 0-7, or one")
}

impl Work {
    pub(super) fn action(&self) -> String {
        format!("take jobs of route {}", self.route.as_str())
    }

    pub(super) async fn run(self, load: impl FnOnce() -> Result<Config, BadConfig>) -> Result<Exit, Failure> {
        let (log, action) = (self.log.start(), self.action());
        let done = async { self.work(&load()?).await };
        log.end(&action, Role::Worker, done.await)
    }

    async fn work(self, config: &Config) -> Result<Exit, Failure> {
        let cannot =
            |what: &str, why: &dyn std::fmt::Display| Failure::new(Exit::Failed, format!("cannot {what}: {why}"));
        let mut signals = Signals::listen().map_err(|why| cannot("listen for signals", &why))?;
        let (stop, closed) = (CancellationToken::new(), CancellationToken::new());
        let failed = |why| Failure::new(Exit::Failed, why);
        let runner = match (self.exec, self.http) {
            (Some(command), _) => Runner::Exec(Exec::new(command, self.timeout, self.grace).map_err(failed)?),
            (None, Some(url)) => {
                let signer = self.secret_file.as_deref().map(Signer::read).transpose();
                let signer = signer.map_err(failed)?;
                let mut headers = self.header;
                for file in &self.header_file {
                    headers.extend(headers_in(file).map_err(failed)?);
                }
                let http = Http::new(url, self.timeout.unwrap_or(HTTP_LIMIT), headers, signer);
                Runner::Http(http.map_err(|why| cannot("speak HTTP", &why))?)
            }
            (None, None) => Runner::Print(Print::new(closed.clone())),
        };
        let given = self.header_file.iter().chain(&self.secret_file).filter_map(|file| exposed(file));
        for warning in given.chain(config.exposed_logins()) {
            warn!("{warning}");
        }
        let (address, layout) = (Address::of(&config.redis)?, Layout::of(&config.redis));
        let cut = layout.partitioning();
        if let Some(last) = self.partitions.as_ref().map(RangeInclusive::end).filter(|last| **last >= cut.partitions) {
            let why = format!("there is no partition {last}: the last one is {}", cut.partitions - 1);
            return Err(Failure::new(Exit::Usage, why));
        }
        drop(connect(config).await?);
        let spans =
            Spans::from_environment().map_err(|why| Failure::new(Exit::Usage, format!("cannot send spans: {why}")))?;
        let worker = Worker::new(address, layout, self.route, usize::from(self.concurrency), runner);
        let worker = worker.slowing(self.throttle_budget).told_in(self.told_in).from(self.partitions);
        let mut working = std::pin::pin!(worker.traced(spans.clone()).run(stop.clone()));
        let mut stopped = None;
        loop {
            tokio::select! {
                done = &mut working => {
                    if let Some(spans) = spans {
                        let [least, most] = FLUSH_WITHIN;
                        let elapsed = stopped.as_ref().map_or(Duration::ZERO, Instant::elapsed);
                        spans.flush(STOP_WITHIN.saturating_sub(elapsed).clamp(least, most));
                    }
                    done?;
                    return if closed.is_cancelled() { Err(Failure::new(Exit::Failed, "standard output is closed")) } else { Ok(Exit::Done) };
                }
                signal = signals.next() => if signal != Signal::Status {
                    stopped.get_or_insert_with(Instant::now);
                    stop.cancel();
                },
                () = closed.cancelled(), if !stop.is_cancelled() => stop.cancel(),
            }
        }
    }
}
