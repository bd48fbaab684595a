//! `dripd bench`: what dripd costs and how true its pace is, measured from outside like any user would, each figure beside
//! what it cannot be better than.
//!
//! Redis, the daemon and the load are processes of their own (`lab`). Ratios come from interleaved pairs
//! (`measure`): absolute figures mean little on a shared machine. A suite a file; what they find goes into one
//! `report`. All of this is behind the feature `bench`: a daemon that serves carries none of it.

mod lab;
mod measure;
mod plots;
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
    /// The same work on other tools (only when named: they must be installed)
    Peers,
}

/// What to do with what was found.
#[derive(Debug, Default, clap::Args)]
pub struct Output {
    /// Write the figures to a file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw plots into a directory
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
}

/// Run suites, all but the peers when none is named. Replies the table.
///
/// # Errors
///
/// When no Redis can be started, or one of the parts fails.
pub fn run(suites: &[Suite], output: &Output) -> io::Result<String> {
    let own = |suite: &&Suite| **suite != Suite::Peers;
    let all: Vec<Suite> = <Suite as clap::ValueEnum>::value_variants().iter().filter(own).copied().collect();
    let mut bench = Bench { report: Report::new() };
    for suite in if suites.is_empty() { &all } else { suites } {
        bench.run(*suite)?;
    }
    bench.report.finish();
    if let Some(path) = &output.json {
        std::fs::write(path, bench.report.json()?)?;
    }
    if let Some(directory) = &output.plots {
        plots::draw(&bench.report.points, directory)?;
    }
    Ok(bench.report.table())
}
