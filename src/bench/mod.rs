//! `dripd bench`: what dripd costs and how true its pace is, measured from outside like any user would, each figure beside
//! what it cannot be better than.
//!
//! Redis, the daemon and the load are processes of their own ([`lab`]). Ratios come from interleaved pairs
//! ([`measure`]): absolute figures mean little on a shared machine. A suite a file; what they find goes into one
//! [`report`]. All of this is behind the feature `bench`: a daemon that serves carries none of it.

mod lab;
mod measure;
mod proxy;
mod report;
mod suites;
mod wire;

use std::io;
use std::path::PathBuf;

use report::Report;
use suites::Bench;

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// Pushes, plain and atomic, with and without the daemon
    Push,
    /// From a push into an idle bucket to a blocked worker
    Wake,
    /// Lateness and spacing of every dispatch, and the rates achieved
    Pace,
    /// Dispatches a second when everything is due at once
    Drain,
    /// From push to acknowledgement
    Work,
    /// Bytes a bucket, and the daemon's own
    Memory,
    /// What an idle daemon costs
    Idle,
    /// How a bucket fares beside a busy one
    Neighbours,
    /// Several daemons, and a network between them and Redis
    Scale,
}

/// Run suites, all of them when none is named, and print the table. Replies it as JSON.
///
/// # Errors
///
/// When no Redis can be started, or one of the parts fails.
pub fn run(suites: &[Suite], json: Option<&PathBuf>) -> io::Result<String> {
    let all = <Suite as clap::ValueEnum>::value_variants();
    let mut bench = Bench { report: Report::new() };
    for suite in if suites.is_empty() { all } else { suites } {
        bench.run(*suite)?;
    }
    bench.report.finish();
    if let Some(path) = json {
        std::fs::write(path, bench.report.json()?)?;
    }
    Ok(bench.report.table())
}
