//! The bench: speed and accuracy of dripd, measured from outside as any user would, each figure next to its theoretical limit.
//! `make bench` runs it; it is no part of the shipped program, only a user of the crate and of the binary.
//!
//! Redis, the daemon and the load are processes of their own (`lab`). Ratios come from interleaved pairs
//! (`measure`): absolute figures mean little on a shared machine. A suite a file; what they find goes into one `report`.
//!
//! A bench with its own `main` has no test harness. So `tests/all/bench.rs` includes this file as a module, and the tests in
//! `tests.rs` run with `cargo test`. That is why no path here begins with `crate::`.

mod lab;
mod measure;
mod plots;
mod proxy;
mod report;
mod suites;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use report::{Plotted, Report};
use suites::Bench;

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// Pushes, plain and atomic, with and without the daemon
    Push,
    /// From a push into an idle bucket to a blocked worker
    Wake,
    /// Lateness and spacing of every dispatch, and the rates achieved
    Pace,
    /// Dispatches a second when everything is due at once
    Drain,
    /// What a dispatch costs inside of Redis
    Dispatch,
    /// Where the time of a job goes in Redis
    Profile,
    /// From push to acknowledgement
    Work,
    /// The ready window beside none
    Window,
    /// Bytes a bucket, and the daemon's own
    Memory,
    /// What an idle daemon costs
    Idle,
    /// How a bucket fares beside a busy one
    Neighbours,
    /// Several daemons, and a network between them and Redis
    Scale,
    /// What partitions and a Redis Cluster cost
    Cluster,
    /// What settings for some buckets cost the others
    Settings,
    /// What budgets, quotas and slots cost a job, and buckets outside of them
    Tree,
    /// A million delayed jobs: memory, submits, dispatches, and what others notice
    Delayed,
    /// Pushes over HTTP, and what the door under attack costs the pacer
    Http,
    /// What TLS to Redis costs a push
    Tls,
    /// Calls a second of each limiter
    Limiters,
    /// How fast `dripd simulate` is
    Simulate,
    /// All sorts of load for a long time: what grows, and what drifts (only when named)
    Soak,
    /// The same work on other tools (only when named: they must be installed)
    Peers,
}

/// Measure speed and accuracy of dripd, next to the theoretical limit.
#[derive(Debug, Parser)]
#[command(
    name = "bench",
    bin_name = "cargo bench --bench bench --",
    after_help = "Rows appear on standard error as they are measured, the table on standard output at the end; \
                  all suites take an hour.\n\nExit codes: 0 measured, 1 a part failed, 2 usage"
)]
struct Cli {
    #[arg(help = "What to measure [default: all but soak and peers]")]
    suites: Vec<Suite>,
    /// How long the soak lasts
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(3..))]
    minutes: u32,
    /// Write the figures to a file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw plots into a directory (lateness, spacing, drain, profile, peers: those for which there are figures)
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Draw the plots of figures that --json wrote, and measure nothing
    #[arg(long, value_name = "FILE", requires = "plots", conflicts_with_all = ["suites", "json"])]
    from: Vec<PathBuf>,
    #[arg(long = "bench", hide = true, help = "What cargo adds to the arguments of every bench")]
    _bench: bool,
}

impl Cli {
    /// Run the suites, all but the peers when none is named. Replies the table, and how many suites failed: what the others found is
    /// told and written.
    fn run(&self) -> io::Result<(String, usize)> {
        if let (false, Some(directory)) = (self.from.is_empty(), &self.plots) {
            let plotted = Plotted::read(&self.from)?;
            plots::draw(&plotted.points, &plotted.compared, directory)?;
            return Ok((String::new(), 0));
        }
        let own = |suite: &&Suite| !matches!(suite, Suite::Soak | Suite::Peers);
        let all: Vec<Suite> = <Suite as clap::ValueEnum>::value_variants().iter().filter(own).copied().collect();
        let (mut bench, mut failed) = (Bench { report: Report::new(), minutes: self.minutes }, 0);
        for suite in if self.suites.is_empty() { &all } else { &self.suites } {
            if let Err(why) = bench.run(*suite) {
                eprintln!("bench: {suite:?}: {why}");
                failed += 1;
            }
        }
        bench.report.finish();
        if let Some(path) = &self.json {
            std::fs::write(path, bench.report.json()?)?;
        }
        if let Some(directory) = &self.plots {
            plots::draw(&bench.report.points, &bench.report.compared, directory)?;
        }
        Ok((bench.report.table(), failed))
    }
}

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok((table, failed)) => {
            println!("{}", table.trim_end());
            if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}
