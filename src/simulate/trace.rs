//! Traces: what producers sent, a line of JSON for each push, in the order of time.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::traffic::{Job, Push};
use crate::model::bucket::BucketName;

/// The most jobs of a line.
const MOST_JOBS: u64 = 1_000_000;

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
    #[error("the trace {path} holds no line")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A trace that is read line by line.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    lines: std::io::Lines<BufReader<File>>,
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
        Ok(Self { path: path.to_owned(), lines: BufReader::new(file).lines(), line: 0, first_ms: None, last_us: 0 })
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
        last.map(Duration::from_micros).ok_or_else(|| BadTrace::Empty { path: path.to_owned() })
    }

    fn push(&mut self, text: &str) -> Result<Push, String> {
        let hint =
            "a line is {\"at_ms\": 1500, \"bucket\": \"sms:1\"}, and may have jobs, id, cost, delay_ms and ttl_ms";
        let line: Line = serde_json::from_str(text).map_err(|why| format!("{why}; {hint}"))?;
        if !line.at_ms.is_finite() || !(0.0..9e15).contains(&line.at_ms) {
            return Err("at_ms must be a number of milliseconds, 0 or more".to_owned());
        }
        if !(1..=MOST_JOBS).contains(&line.jobs) {
            return Err(format!("jobs must be a whole number, 1 to {MOST_JOBS}"));
        }
        let since_first = line.at_ms - *self.first_ms.get_or_insert(line.at_ms);
        if since_first < 0.0 || ((since_first * 1e3).round() as u64) < self.last_us {
            return Err(format!("at_ms {} is earlier than the line before; sort the lines by at_ms", line.at_ms));
        }
        self.last_us = (since_first * 1e3).round() as u64;
        let bucket = BucketName::parse(line.bucket.as_bytes()).map_err(|why| why.to_string())?;
        let ms = Duration::from_millis;
        let job = Job { id: line.id, cost: line.cost, delay: line.delay_ms.map(ms), ttl: line.ttl_ms.map(ms) };
        Ok(Push { at_us: self.last_us, bucket, jobs: line.jobs, job, kind: None })
    }
}

impl Iterator for Trace {
    type Item = Result<Push, BadTrace>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let text = match self.lines.next()? {
                Ok(text) => text,
                Err(why) => return Some(Err(BadTrace::Unreadable { path: self.path.clone(), why })),
            };
            self.line += 1;
            if !text.trim().is_empty() {
                let line = self.line;
                return Some(self.push(&text).map_err(|why| BadTrace::Line { line, why }));
            }
        }
    }
}
