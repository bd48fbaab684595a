//! `dripd push`: one job, or a job a line of a file or a pipe. What is read and not yet accepted is bounded, so with
//! `--wait` a full bucket slows the reading down and a pipe of any length needs no more memory.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::mpsc;

use super::{Exit, Failure, connect, say, say_err};
use crate::config::Config;
use crate::store::reply::Pushed;
use crate::store::{Store, StoreError};
use crate::words::bucket::BucketName;

/// How many lines, and about how many bytes of them, may be read and not yet accepted.
const MOST_LINES: usize = 1_000;
const MOST_BYTES: usize = 4 * 1_048_576;

/// Lines that wait between the reading and the pushing.
const READ_AHEAD: usize = 64;

/// How many skipped lines are named one by one.
const MOST_NAMED: u64 = 20;

/// Put jobs into buckets.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["job", "file"])))]
#[command(
    after_help = "Exit codes: 0 all accepted, 1 failed or outcome unknown, 69 no Redis, 75 some rejected: try later"
)]
pub(super) struct Push {
    /// The bucket
    #[arg(required_unless_present = "bucket_from", conflicts_with = "bucket_from")]
    bucket: Option<BucketName>,
    /// The job
    #[arg(conflicts_with_all = ["file", "bucket_from"])]
    job: Option<OsString>,
    /// A file with one job a line; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Take the bucket of each JSON line from this field, as in .tenant or .to.region
    #[arg(long, value_name = ".FIELD", requires = "file")]
    bucket_from: Option<Field>,
    /// Wait for room instead of giving up
    #[arg(long)]
    wait: bool,
}

/// A way into a JSON object: `.a.b`.
#[derive(Debug, Clone)]
struct Field(Vec<String>);

impl FromStr for Field {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names: Vec<String> = text.strip_prefix('.').unwrap_or_default().split('.').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) { Err("write .field or .field.field") } else { Ok(Self(names)) }
    }
}

impl Field {
    /// The bucket that a line names: a string or a whole number.
    fn bucket(&self, line: &[u8]) -> Result<BucketName, String> {
        let json: serde_json::Value = serde_json::from_slice(line).map_err(|why| format!("is no JSON: {why}"))?;
        let value = self.0.iter().try_fold(&json, |value, name| value.get(name));
        let text = match value {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(serde_json::Value::Number(n)) if n.is_i64() || n.is_u64() => n.to_string(),
            Some(_) => return Err(format!(".{} is neither a string nor a whole number", self.0.join("."))),
            None => return Err(format!("has no .{}", self.0.join("."))),
        };
        text.parse().map_err(|why| format!("{why}"))
    }
}

impl Push {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        match (self.bucket, self.job, self.file) {
            (Some(bucket), Some(job), _) => push_one(config, &bucket, job.into_vec(), self.wait).await,
            (bucket, _, Some(file)) => {
                let from =
                    bucket.map_or_else(|| Source::Field(self.bucket_from.expect("clap asks for one")), Source::Bucket);
                push_file(connect(config).await?, &from, &file, self.wait).await
            }
            _ => Err(Failure::new(Exit::Failed, "nothing to push")),
        }
    }
}

async fn push_one(config: &Config, bucket: &BucketName, job: Vec<u8>, wait: bool) -> Result<Exit, Failure> {
    let jobs = [job];
    loop {
        // Anew after each sleep: what lies between may have closed a connection that was idle for so long.
        let mut store = connect(config).await?;
        let pushed = store.push(bucket, &jobs).await?;
        let Some(retry_after) = pushed.retry_after else {
            let eta = pushed.eta.unwrap_or_default().as_millis();
            say(&format!("accepted: {} of {} waiting, due in {eta} ms", pushed.depth, pushed.capacity));
            return Ok(Exit::Done);
        };
        if !wait {
            let (depth, capacity, ms) = (pushed.depth, pushed.capacity, retry_after.as_millis());
            let gates = store.bucket_status(bucket).await.map(|status| status.gates).unwrap_or_default();
            let closed = gates.iter().find(|gate| gate.remaining == 0);
            let why = closed.map_or_else(|| "is full".to_owned(), |gate| format!("is limited by its {}", gate.limiter));
            let message = format!("{bucket} {why}, {depth} of {capacity}: try again in {ms} ms, or use --wait");
            return Err(Failure::new(Exit::Rejected, message));
        }
        tokio::time::sleep(retry_after).await;
    }
}

/// Where the bucket of a line comes from.
enum Source {
    Bucket(BucketName),
    Field(Field),
}

struct Line {
    number: u64,
    job: Vec<u8>,
}

/// The lines of one bucket that are read and not yet accepted.
struct Waiting {
    lines: VecDeque<Line>,
    not_before: Option<Instant>,
    /// How many of them go with the next push.
    window: usize,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { lines: VecDeque::new(), not_before: None, window: MOST_LINES }
    }
}

struct Feeder {
    store: Store,
    wait: bool,
    buckets: BTreeMap<BucketName, Waiting>,
    lines: usize,
    bytes: usize,
    accepted: u64,
    rejected: u64,
    skipped: u64,
    bar: ProgressBar,
}

async fn push_file(store: Store, from: &Source, path: &Path, wait: bool) -> Result<Exit, Failure> {
    let (input, size): (Box<dyn AsyncRead + Unpin>, _) = if path == Path::new("-") {
        (Box::new(tokio::io::stdin()), None)
    } else {
        let cannot = |why| Failure::new(Exit::Failed, format!("cannot read {}: {why}", path.display()));
        let file = tokio::fs::File::open(path).await.map_err(cannot)?;
        let size = file.metadata().await.map_err(cannot)?.len();
        (Box::new(file), Some(size))
    };
    let bar = progress_bar(size);
    let mut feeder =
        Feeder { store, wait, buckets: BTreeMap::new(), lines: 0, bytes: 0, accepted: 0, rejected: 0, skipped: 0, bar };
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let bar = feeder.bar.clone();
    let reading = read_lines(input, sender, bar);
    let feeding = feeder.feed(receiver, from);
    let (read, fed) = tokio::join!(reading, feeding);
    feeder.bar.finish_and_clear();
    let told = |rest: String| {
        let (accepted, rejected, skipped) = (feeder.accepted, feeder.rejected, feeder.skipped);
        Failure::new(
            Exit::Failed,
            format!("{rest}; {accepted} accepted, {rejected} rejected, {skipped} skipped before that"),
        )
    };
    fed.map_err(told)?;
    read.map_err(|why| told(format!("cannot read {}: {why}", path.display())))?;
    say_err(&format!("{} accepted, {} rejected, {} skipped", feeder.accepted, feeder.rejected, feeder.skipped));
    Ok(match (feeder.skipped, feeder.rejected) {
        (0, 0) => Exit::Done,
        (0, _) => Exit::Rejected,
        _ => Exit::Failed,
    })
}

/// A bar on a terminal, over the bytes of a file; nothing elsewhere.
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

/// Read lines until the end, as fast as they are taken. A line ends at `\n`; the last needs none; empty ones are skipped.
async fn read_lines(
    input: Box<dyn AsyncRead + Unpin>,
    sender: mpsc::Sender<Line>,
    bar: ProgressBar,
) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(65_536, input);
    for number in 1.. {
        let mut job = Vec::new();
        let n = reader.read_until(b'\n', &mut job).await?;
        if n == 0 {
            break;
        }
        bar.inc(n as u64);
        if job.last() == Some(&b'\n') {
            job.pop();
        }
        if !job.is_empty() && sender.send(Line { number, job }).await.is_err() {
            break;
        }
    }
    Ok(())
}

impl Feeder {
    /// Push what comes. The error is a line for the user.
    async fn feed(&mut self, mut lines: mpsc::Receiver<Line>, from: &Source) -> Result<(), String> {
        let mut open = true;
        while open || self.lines > 0 {
            while open && self.has_room() {
                match lines.try_recv() {
                    Ok(line) => self.add(line, from),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => open = false,
                }
            }
            let pause = self.flush().await?;
            let pause = async {
                if let Some(pause) = pause { tokio::time::sleep(pause).await } else { std::future::pending().await }
            };
            let (waiting, room) = (self.lines > 0, open && self.has_room());
            tokio::select! {
                line = lines.recv(), if room => match line {
                    Some(line) => self.add(line, from),
                    None => open = false,
                },
                () = pause, if waiting => {}
                else => {}
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.lines < MOST_LINES && self.bytes < MOST_BYTES
    }

    fn add(&mut self, line: Line, from: &Source) {
        let bucket = match from {
            Source::Bucket(bucket) => Ok(bucket.clone()),
            Source::Field(field) => field.bucket(&line.job),
        };
        match bucket {
            Ok(bucket) => {
                self.lines += 1;
                self.bytes += line.job.len();
                self.buckets.entry(bucket).or_default().lines.push_back(line);
            }
            Err(why) => self.skip(line.number, &why),
        }
    }

    fn skip(&mut self, number: u64, why: &str) {
        self.skipped += 1;
        if self.skipped <= MOST_NAMED {
            self.bar.suspend(|| say_err(&format!("line {number} {why}; skipped")));
        }
    }

    /// Push what may be pushed now. Replies how long until more may be; `None` when nothing waits.
    async fn flush(&mut self) -> Result<Option<Duration>, String> {
        let now = Instant::now();
        let ready = |waiting: &Waiting| waiting.not_before.is_none_or(|at| at <= now);
        let names: Vec<_> =
            self.buckets.iter().filter(|(_, waiting)| ready(waiting)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(mut waiting) = self.buckets.remove(&name) else { continue };
            self.push_bucket(&name, &mut waiting).await?;
            if !waiting.lines.is_empty() {
                self.buckets.insert(name, waiting);
            }
        }
        self.bar.set_message(format!("{} accepted, {} rejected", self.accepted, self.rejected));
        let next = self.buckets.values().filter_map(|waiting| waiting.not_before).min();
        Ok(next.map(|at| at.saturating_duration_since(Instant::now())))
    }

    /// Push lines of one bucket until they are gone, or until it is full. With `--wait`, a full bucket makes the next push
    /// small, and each that goes in whole makes the one after it twice as large: what cannot go in is not sent again and
    /// again.
    async fn push_bucket(&mut self, bucket: &BucketName, waiting: &mut Waiting) -> Result<(), String> {
        waiting.not_before = None;
        while !waiting.lines.is_empty() && waiting.not_before.is_none() {
            let n = waiting.window.min(waiting.lines.len());
            let jobs: Vec<Vec<u8>> = waiting.lines.iter().take(n).map(|line| line.job.clone()).collect();
            match self.push(bucket, &jobs, waiting).await? {
                Some(pushed) => self.settle(waiting, n, pushed),
                None if n == 1 => {
                    let number = waiting.lines.front().map_or(0, |line| line.number);
                    self.drop_front(waiting, 1);
                    self.skip(number, &format!("is too large, {} bytes: see limits.max_job_bytes", jobs[0].len()));
                }
                None => waiting.window = 1, // one of them is too large: find out which
            }
        }
        Ok(())
    }

    /// One call; `None` when a job is too large.
    async fn push(
        &mut self,
        bucket: &BucketName,
        jobs: &[Vec<u8>],
        waiting: &Waiting,
    ) -> Result<Option<Pushed>, String> {
        let lines = || {
            let (first, last) = (
                waiting.lines.front().map_or(0, |l| l.number),
                waiting.lines.get(jobs.len() - 1).map_or(0, |l| l.number),
            );
            if first == last { format!("line {first}") } else { format!("lines {first} to {last}") }
        };
        match self.store.push(bucket, jobs).await {
            Ok(pushed) => Ok(Some(pushed)),
            Err(StoreError::Refused { code, .. }) if code == "TOOLARGE" => Ok(None),
            Err(why @ StoreError::Lost { .. }) => Err(format!("{}: the outcome is unknown: {why}", lines())),
            Err(why) => Err(format!("{}: not pushed: {why}", lines())),
        }
    }

    /// Count what a call did with the first `n` lines; the rest of them waits, or is rejected.
    fn settle(&mut self, waiting: &mut Waiting, n: usize, pushed: Pushed) {
        self.drop_front(waiting, pushed.accepted);
        self.accepted += pushed.accepted as u64;
        match pushed.retry_after {
            Some(retry_after) if self.wait => {
                waiting.not_before = Some(Instant::now() + retry_after);
                waiting.window = pushed.accepted.clamp(1, MOST_LINES);
            }
            Some(_) => {
                let rejected = n - pushed.accepted;
                self.drop_front(waiting, rejected);
                self.rejected += rejected as u64;
            }
            None => waiting.window = (waiting.window * 2).min(MOST_LINES),
        }
    }

    fn drop_front(&mut self, waiting: &mut Waiting, n: usize) {
        for line in waiting.lines.drain(..n) {
            self.lines -= 1;
            self.bytes -= line.job.len();
        }
    }
}
