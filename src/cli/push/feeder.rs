//! Pushing the lines of a file. The lines that are read and not yet decided are bounded: with `--wait` a full bucket
//! slows the reading down, and a pipe of any length needs no more memory. Lines of several buckets wait side by side,
//! so a later line may be decided before an earlier one; `undecided` tells at any time from which line on a push would
//! have to continue.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::absence::{Absence, LOOK_EVERY};
use super::backoff::Backoff;
use super::fields::Fields;
use super::lines::{Line, Lines};
use super::refused::Refused;
use crate::cli::{Exit, Failure, connect, say_err};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::model::escape::byte_order_mark;
use crate::store::acl::Role;
use crate::store::jobs::push::{MOVING_RETRY, Pushed};
use crate::store::submit::{Options, SUBMITS_MOST};
use crate::store::{Partitions, StoreError};

/// The most lines, and about the most bytes of them, that may be read and not yet decided.
const MOST_LINES: usize = 1_000;
const MOST_BYTES: usize = 4 * 1_048_576;

/// The most skipped lines that are reported one by one.
const MOST_NAMED: u64 = 20;

/// The outcomes of the lines that are decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Lines that are in a bucket.
    pub(super) accepted: u64,
    /// Accepted lines whose id had been accepted before.
    pub(super) known: u64,
    /// Lines whose bucket had no room.
    pub(super) rejected: u64,
    /// Lines of which no job can be made.
    pub(super) skipped: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} accepted", self.accepted)?;
        if self.known > 0 {
            write!(f, " ({} of them before)", self.known)?;
        }
        write!(f, ", {} rejected, {} skipped", self.rejected, self.skipped)
    }
}

/// The error that ended the feeding.
pub(super) enum Trouble {
    /// The input cannot be read any further.
    Read(std::io::Error),
    /// A call failed: the lines, and the reason.
    Push(Failure),
}

impl Trouble {
    /// The error as a failure of the command.
    pub(super) fn of_file(self, path: &Path) -> Failure {
        match self {
            Self::Read(why) => Failure::new(Exit::Failed, format!("cannot read {}: {why}", path.display())),
            Self::Push(why) => why,
        }
    }
}

/// A line that waits for its push.
struct Waiting {
    number: u64,
    /// The number of lines that began to wait before this one.
    before: u64,
    job: Vec<u8>,
    /// The options of the job; boxed, because most lines have none.
    options: Option<Box<Options>>,
}

/// The outcome of a call. The first `accepted` of its lines went in; `retry_after` is how long the rest of them waits,
/// and `None` if all went in.
struct PushOutcome {
    accepted: usize,
    retry_after: Option<Duration>,
    /// Whether the job would not leave before its deadline: waiting makes that no better.
    is_late: bool,
    /// Whether the bucket itself has no room, and not only a gate before it.
    is_full: bool,
}

impl PushOutcome {
    fn new(accepted: usize, retry_after: Option<Duration>) -> Self {
        Self { accepted, retry_after, is_late: false, is_full: false }
    }
}

/// The lines of one bucket that wait.
struct Queue {
    lines: VecDeque<Waiting>,
    not_before: Option<Instant>,
    /// The number of lines that go with the next push.
    window: usize,
    backoff: Backoff,
    /// Whether the last push found the bucket full.
    is_full: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let (lines, backoff) = (VecDeque::new(), Backoff::default());
        Self { lines, not_before: None, window: MOST_LINES, backoff, is_full: false }
    }
}

/// Pushes lines and counts their outcomes.
pub(super) struct Feeder {
    config: Config,
    store: Partitions,
    wait: bool,
    /// The file for lines whose bucket had no room.
    to: Option<Refused>,
    queues: BTreeMap<BucketName, Queue>,
    /// The lines that wait, their bytes, and the lines that ever began to wait.
    lines: usize,
    bytes: usize,
    begun: u64,
    tally: Tally,
    /// The numbers of lines that were pushed and not accepted, kept while earlier lines may wait.
    refused: Vec<u64>,
    bar: ProgressBar,
    absence: Absence,
}

impl Feeder {
    pub(super) fn new(config: &Config, store: Partitions, wait: bool, to: Option<Refused>, bar: ProgressBar) -> Self {
        let (config, queues, tally, refused) = (config.clone(), BTreeMap::new(), Tally::default(), Vec::new());
        let absence = Absence::default();
        Self { config, store, wait, to, queues, lines: 0, bytes: 0, begun: 0, tally, refused, bar, absence }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// The first line that is not decided, and how many lines after it are accepted already. `unread` is the first line
    /// that was not read.
    pub(super) fn undecided(&self, unread: u64) -> (u64, u64) {
        let first = self.queues.values().filter_map(|queue| queue.lines.front()).min_by_key(|line| line.number);
        let (number, before) = first.map_or((unread, self.begun), |line| (line.number, line.before));
        let decided_after = self.begun - before - self.lines as u64;
        let refused_after = self.refused.iter().filter(|refused| **refused > number).count() as u64;
        (number, decided_after - refused_after)
    }

    /// Push lines until the input ends, or until stopped: then the call in progress is finished. Returns whether the
    /// input ended.
    pub(super) async fn feed(
        &mut self,
        lines: &mut Lines,
        fields: &Fields,
        stop: &CancellationToken,
    ) -> Result<bool, Trouble> {
        let mut input = Ok(true);
        loop {
            while matches!(input, Ok(true)) && self.has_room() {
                let Some(line) = lines.next().now_or_never() else { break };
                input = self.take(line, fields);
            }
            let pause = self.flush(stop).await.map_err(Trouble::Push)?;
            let (is_open, waits) = (matches!(input, Ok(true)), self.lines > 0);
            if !is_open && !waits {
                return input.map(|_| true).map_err(Trouble::Read); // lines read before an error were pushed first
            }
            if waits && let Some(line) = self.absence.look(&mut self.store).await {
                self.bar.suspend(|| say_err(line));
            }
            let pause = tokio::time::sleep(pause.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(false),
                line = lines.next(), if is_open && self.has_room() => input = self.take(line, fields),
                () = pause, if waits => {}
            }
        }
    }

    /// Take a line that was read. Returns whether there may be more.
    fn take(&mut self, line: std::io::Result<Option<Line>>, fields: &Fields) -> std::io::Result<bool> {
        match line? {
            Some(line) => self.add(line, fields),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn has_room(&self) -> bool {
        self.lines < MOST_LINES && self.bytes < MOST_BYTES
    }

    fn add(&mut self, line: Line, fields: &Fields) {
        let (number, job) = match line {
            Line::Job(number, job) => (number, job),
            Line::TooLarge(number, bytes) => return self.skip_too_large(number, bytes),
        };
        match fields.of(&job) {
            Ok((bucket, options)) => {
                if let Some(mark) = byte_order_mark(&job).filter(|_| number == 1) {
                    self.bar.suspend(|| say_err(&format!("line 1, its job with it, begins with {mark}")));
                }
                self.lines += 1;
                self.bytes += job.len();
                let options = options.is_any().then(|| Box::new(options));
                let waiting = Waiting { number, before: self.begun, job, options };
                self.queues.entry(bucket).or_default().lines.push_back(waiting);
                self.begun += 1;
            }
            Err(why) => self.skip(number, &why),
        }
    }

    fn skip_too_large(&mut self, number: u64, bytes: u64) {
        self.skip(number, &format!("is too large, {bytes} bytes: see limits.max_job_bytes"));
    }

    fn skip(&mut self, number: u64, why: &str) {
        self.tally.skipped += 1;
        if self.tally.skipped <= MOST_NAMED {
            self.bar.suspend(|| say_err(&format!("line {number} {why}; skipped")));
        }
    }

    /// Push the lines that may be pushed now. Returns how long until more may be; `None` when nothing waits.
    async fn flush(&mut self, stop: &CancellationToken) -> Result<Option<Duration>, Failure> {
        let now = Instant::now();
        let ready = |queue: &Queue| queue.not_before.is_none_or(|at| at <= now);
        let names: Vec<_> =
            self.queues.iter().filter(|(_, queue)| ready(queue)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(mut queue) = self.queues.remove(&name) else { continue };
            let pushed = self.push_queue(&name, &mut queue, stop).await;
            if !queue.lines.is_empty() {
                self.queues.insert(name, queue); // also after a failure: they are undecided
            }
            pushed?;
        }
        if self.lines == 0 {
            self.refused.clear(); // every line that was read is decided
        }
        self.bar.set_message(format!("{} accepted, {} rejected", self.tally.accepted, self.tally.rejected));
        let next = self.queues.values().filter_map(|queue| queue.not_before).min();
        Ok(next.map(|at| at.saturating_duration_since(Instant::now())))
    }

    /// Push lines of one bucket until none is left, the bucket is full, or the push is stopped. With `--wait` a full
    /// bucket makes the next push small, and each push that goes in whole doubles the next one: lines that cannot go in
    /// are not sent again and again.
    async fn push_queue(
        &mut self,
        bucket: &BucketName,
        queue: &mut Queue,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        queue.not_before = None;
        if queue.is_full && queue.backoff.is_long() {
            // A push would be counted as rejected. What a look cannot tell the push finds out.
            if let Ok(Pushed { retry_after: Some(wait), .. }) = self.store.of(bucket).peek(bucket).await {
                queue.not_before = Some(Instant::now() + queue.backoff.after(wait));
            }
        }
        while !queue.lines.is_empty() && queue.not_before.is_none() && !stop.is_cancelled() {
            // Either all lines have options, or none has.
            if queue.lines.front().is_some_and(|line| line.options.is_some()) {
                self.submit_queue(bucket, queue).await?;
                continue;
            }
            let n = queue.window.min(queue.lines.len());
            let jobs: Vec<Vec<u8>> = queue.lines.iter().take(n).map(|line| line.job.clone()).collect();
            match self.push(bucket, &jobs, queue).await? {
                Some(outcome) => self.settle(queue, n, &outcome)?,
                None if n == 1 => {
                    let number = queue.lines.front().map_or(0, |line| line.number);
                    self.refuse_front(queue, 1);
                    self.skip_too_large(number, jobs[0].len() as u64);
                }
                None => queue.window = 1, // a job is too large: find out which
            }
        }
        Ok(())
    }

    /// Make one call; `None` when a job is too large, by a record that was stored after this push began.
    async fn push(
        &mut self,
        bucket: &BucketName,
        jobs: &[Vec<u8>],
        queue: &Queue,
    ) -> Result<Option<PushOutcome>, Failure> {
        match self.store.of(bucket).push(bucket, jobs).await {
            Ok(all) => {
                let is_full = all.depth >= all.capacity;
                Ok(Some(PushOutcome { is_full, ..PushOutcome::new(all.accepted, all.retry_after) }))
            }
            Err(StoreError::Refused { code, .. }) if code == "TOOLARGE" => Ok(None),
            Err(why) if self.wait && why.passes() => Ok(Some(self.until_it_passes(&why).await)),
            Err(why) => Err(failed(queue, jobs.len(), &why)),
        }
    }

    /// The outcome of a push that Redis refused for now.
    async fn until_it_passes(&mut self, why: &StoreError) -> PushOutcome {
        if let Some(line) = self.absence.refused(why) {
            self.bar.suspend(|| say_err(&line));
        }
        if why.is_unusable()
            && let Ok(store) = connect(&self.config).await
        {
            self.store = store; // another server may have become the primary
        }
        PushOutcome::new(0, Some(MOVING_RETRY))
    }

    /// Submit the first lines of a bucket in one call. Each is judged separately; with `--wait` the lines after one
    /// that finds no room are not looked at, so that no later line goes before it.
    async fn submit_queue(&mut self, bucket: &BucketName, queue: &mut Queue) -> Result<(), Failure> {
        let n = queue.window.min(queue.lines.len()).min(SUBMITS_MOST);
        let asked = queue.lines.iter().take(n);
        let jobs: Vec<(&[u8], &Options)> =
            asked.filter_map(|line| Some((line.job.as_slice(), line.options.as_deref()?))).collect();
        let all = match self.store.of(bucket).submit_all(bucket, &jobs, self.wait).await {
            Ok(all) => all,
            Err(why) if self.wait && why.passes() => {
                let outcome = self.until_it_passes(&why).await;
                return self.settle(queue, 1, &outcome);
            }
            Err(why) => return Err(failed(queue, n, &why)),
        };
        for outcome in all {
            match outcome {
                Ok(submitted) => {
                    self.tally.known += u64::from(submitted.verdict == "duplicate");
                    let outcome = PushOutcome::new(usize::from(submitted.is_accepted), submitted.retry_after);
                    let (is_late, is_full) = (submitted.verdict == "late", submitted.verdict == "full");
                    self.settle(queue, 1, &PushOutcome { is_late, is_full, ..outcome })?;
                }
                Err(StoreError::Refused { code, .. }) if code == "TOOLARGE" => {
                    let (number, bytes) = queue.lines.front().map_or((0, 0), |line| (line.number, line.job.len()));
                    self.refuse_front(queue, 1);
                    self.skip_too_large(number, bytes as u64);
                }
                Err(why) if self.wait && why.passes() => {
                    let outcome = self.until_it_passes(&why).await;
                    return self.settle(queue, 1, &outcome);
                }
                Err(why) => return Err(failed(queue, 1, &why)),
            }
        }
        Ok(())
    }

    /// Count the outcome of a call for the first `n` lines; the lines that did not go in wait, or are rejected.
    fn settle(&mut self, queue: &mut Queue, n: usize, outcome: &PushOutcome) -> Result<(), Failure> {
        self.drop_front(queue, outcome.accepted);
        self.tally.accepted += outcome.accepted as u64;
        if outcome.accepted > 0 {
            queue.backoff.reset();
        }
        queue.is_full = outcome.is_full;
        match outcome.retry_after {
            Some(retry_after) if self.wait && !outcome.is_late => {
                queue.not_before = Some(Instant::now() + queue.backoff.after(retry_after));
                queue.window = outcome.accepted.clamp(1, MOST_LINES);
            }
            Some(_) => {
                let rejected = n - outcome.accepted;
                if let Some(to) = &mut self.to {
                    let lines = queue.lines.iter().take(rejected).map(|line| line.job.as_slice());
                    to.add(lines).map_err(|why| Failure::new(Exit::Failed, why))?;
                }
                self.refuse_front(queue, rejected);
                self.tally.rejected += rejected as u64;
            }
            None => queue.window = (queue.window * 2).min(MOST_LINES),
        }
        Ok(())
    }

    /// Drop lines that were pushed and not accepted, and note their numbers.
    fn refuse_front(&mut self, queue: &mut Queue, n: usize) {
        self.refused.extend(queue.lines.iter().take(n).map(|line| line.number));
        self.drop_front(queue, n);
    }

    fn drop_front(&mut self, queue: &mut Queue, n: usize) {
        for line in queue.lines.drain(..n) {
            self.lines -= 1;
            self.bytes -= line.job.len();
        }
    }
}

/// The message that the first `n` lines of a bucket could not be pushed.
fn failed(queue: &Queue, n: usize, why: &StoreError) -> Failure {
    let number = |at: usize| queue.lines.get(at).map_or(0, |line| line.number);
    let (first, last) = (number(0), number(n - 1));
    let lines = if first == last { format!("line {first}") } else { format!("lines {first} to {last}") };
    let what = if matches!(why, StoreError::Lost { .. }) { "the outcome is unknown" } else { "not pushed" };
    let exit = if why.passes() { Exit::Rejected } else { Exit::Failed };
    Failure::new(exit, format!("{lines}: {what}: {}", why.in_words(Role::Submitter)))
}
