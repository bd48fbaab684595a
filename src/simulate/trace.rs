//! Traces: what producers sent, a line of JSON for each push, in the order of time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::traffic::{Job, Push};
use crate::model::bucket::BucketName;

/// The most jobs of a line, and its most bytes.
const MOST_JOBS: u64 = 1_000_000;
const MOST_BYTES: u64 = 65_536;

/// The longest delay and deadline, and the highest cost, as `drip_submit` takes them.
const LONGEST_MS: u64 = 366 * 86_400_000;
const MOST_COST: u64 = 100_000;

const HINT: &str =
    "a line is {\"at_ms\": 1500, \"bucket\": \"sms:1\"}, and may have jobs, id, cost, delay_ms and ttl_ms";

/// A line of a trace. Options of a job make it a submit; without any the jobs are pushed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// When: milliseconds since the first line, or since any other moment that is the same for all lines.
    pub at_ms: f64,
    /// Where to.
    pub bucket: String,
    /// How many jobs; 1 where it is left out.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub jobs: u64,
    /// The id of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// How long it waits at least, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// How long it may wait, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks so
fn is_one(jobs: &u64) -> bool {
    *jobs == 1
}

impl Line {
    /// Jobs without options.
    pub fn of(at_ms: f64, bucket: String, jobs: u64) -> Self {
        Self { at_ms, bucket, jobs, id: None, cost: None, delay_ms: None, ttl_ms: None }
    }
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadTrace {
    /// It cannot be read.
    #[error("cannot read the trace {path}: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        why: std::io::Error,
    },
    /// A line of it is wrong.
    #[error("line {line} of the trace: {why}")]
    Line {
        /// Its number, from 1 on.
        line: u64,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// There is nothing in it.
    #[error("the trace holds no line")]
    Empty,
}

/// A trace that is read line by line.
#[derive(Debug)]
pub struct Trace<R = BufReader<File>> {
    path: PathBuf,
    reader: R,
    line: u64,
    /// The time of the first line, and that of the last one that was read.
    first_ms: Option<f64>,
    last_us: u64,
}

impl Trace {
    /// Open a trace.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn open(path: &Path) -> Result<Self, BadTrace> {
        let file = File::open(path).map_err(|why| BadTrace::Unreadable { path: path.to_owned(), why })?;
        Ok(Self::new(path, BufReader::new(file)))
    }

    /// Check a whole trace: how long it lasts.
    ///
    /// # Errors
    ///
    /// The first line that cannot be used, or that there is none.
    pub fn length(path: &Path) -> Result<Duration, BadTrace> {
        let mut last = None;
        for push in Self::open(path)? {
            last = Some(push?.at_us);
        }
        last.map(Duration::from_micros).ok_or(BadTrace::Empty)
    }
}

impl<R: BufRead> Trace<R> {
    fn new(path: &Path, reader: R) -> Self {
        Self { path: path.to_owned(), reader, line: 0, first_ms: None, last_us: 0 }
    }

    /// Copy what lasts no longer than `most` to a file, as far as it can be used.
    ///
    /// # Errors
    ///
    /// The first line that cannot be used, or the file cannot be written.
    pub fn copy(from: R, to: &mut impl Write, most: Option<Duration>) -> Result<(), BadTrace> {
        let mut trace = Self::new(Path::new("-"), from);
        let unwritten = |why| BadTrace::Unreadable { path: PathBuf::from("-"), why };
        while let Some(read) = trace.next_line() {
            let (text, push) = read?;
            if most.is_some_and(|most| Duration::from_micros(push.at_us) > most) {
                break;
            }
            writeln!(to, "{text}").map_err(unwritten)?;
        }
        to.flush().map_err(unwritten)
    }

    fn push(&mut self, text: &str) -> Result<Push, String> {
        if !text.starts_with('{') {
            return Err(format!("it is no object; {HINT}"));
        }
        let line: Line = serde_json::from_str(text).map_err(|why| format!("{why}; {HINT}"))?;
        if !line.at_ms.is_finite() || !(0.0..9e15).contains(&line.at_ms) {
            return Err("at_ms must be a number of milliseconds, 0 or more".to_owned());
        }
        let within = |name: &str, value: Option<u64>, least: u64, most: u64| match value {
            Some(value) if !(least..=most).contains(&value) => {
                Err(format!("{name} must be a whole number, {least} to {most}"))
            }
            _ => Ok(()),
        };
        within("jobs", Some(line.jobs), 1, MOST_JOBS)?;
        within("cost", line.cost, 1, MOST_COST)?;
        within("delay_ms", line.delay_ms, 0, LONGEST_MS)?;
        within("ttl_ms", line.ttl_ms, 1, LONGEST_MS)?;
        let is_id = |id: &String| (1..=200).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        if line.id.as_ref().is_some_and(|id| !is_id(id)) {
            return Err("id must be 1 to 200 bytes of ! to ~".to_owned());
        }
        let since_first = line.at_ms - *self.first_ms.get_or_insert(line.at_ms);
        if since_first < 0.0 || ((since_first * 1e3).round() as u64) < self.last_us {
            return Err(format!("at_ms {} is earlier than the line before; sort the lines by at_ms", line.at_ms));
        }
        self.last_us = (since_first * 1e3).round() as u64;
        let bucket = BucketName::parse(line.bucket.as_bytes()).map_err(|why| why.to_string())?;
        let ms = Duration::from_millis;
        let job =
            Job { id: line.id, cost: line.cost, real: None, delay: line.delay_ms.map(ms), ttl: line.ttl_ms.map(ms) };
        Ok(Push { at_us: self.last_us, bucket, jobs: line.jobs, job, kind: None })
    }

    /// The next line that is not blank, and what it says.
    fn next_line(&mut self) -> Option<Result<(String, Push), BadTrace>> {
        loop {
            let mut text = Vec::new();
            self.line += 1;
            let line = self.line;
            match self.reader.by_ref().take(MOST_BYTES + 1).read_until(b'\n', &mut text) {
                Ok(0) => return None,
                Ok(_) if text.len() as u64 > MOST_BYTES => {
                    let why = format!("it has more than {MOST_BYTES} bytes; {HINT}");
                    return Some(Err(BadTrace::Line { line, why }));
                }
                Ok(_) => {}
                Err(why) => return Some(Err(BadTrace::Unreadable { path: self.path.clone(), why })),
            }
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            if !text.is_empty() {
                let push = self.push(&text).map_err(|why| BadTrace::Line { line, why });
                return Some(push.map(|push| (text, push)));
            }
        }
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Push, BadTrace>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_line()?.map(|(_, push)| push))
    }
}
