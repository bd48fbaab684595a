//! The suites, and what they share.

mod cluster;
mod delayed;
mod dispatch;
mod drain;
mod fill;
mod http;
mod idle;
mod in_redis;
mod limiters;
mod memory;
mod neighbours;
mod pace;
mod peers;
mod profile;
mod push;
mod scale;
mod settings;
mod simulate;
mod soak;
mod taken;
mod tls;
mod tree;
mod wake;
mod window;
mod work;

use std::io;

use super::Suite;
use super::report::Report;
use super::{lab, measure, proxy, report, wire}; // so that a suite finds them in its parent

/// A job as most are: 100 bytes.
pub(super) const JOB: &str =
    "....................................................................................................";

/// Functions that make the calls of dripd's and do nothing else.
pub(super) const FLOORS: &str = include_str!("../floor.lua");

/// A bucket that never lets a second job out while it is measured, and never is full.
pub(super) const SLOW: &str = "[defaults]\nrate = \"1/h\"\ncapacity = 10000000\n";

/// Rates so high that only the calls bound them.
pub(super) const FAST: &str = "[defaults]\nrate = \"1000000/s\"\ncapacity = 10000000\ncatch_up = \"1s\"\n";

/// A run of the bench.
pub(super) struct Bench {
    /// What was found so far.
    pub(super) report: Report,
    /// How long the soak lasts.
    pub(super) minutes: u32,
}

impl Bench {
    /// Run one suite.
    pub(super) fn run(&mut self, suite: Suite) -> io::Result<()> {
        match suite {
            Suite::Push => push::run(&mut self.report),
            Suite::Wake => wake::run(&mut self.report),
            Suite::Pace => pace::run(&mut self.report),
            Suite::Drain => drain::run(&mut self.report),
            Suite::Dispatch => dispatch::run(&mut self.report),
            Suite::Profile => profile::run(&mut self.report),
            Suite::Work => work::run(&mut self.report),
            Suite::Memory => memory::run(&mut self.report),
            Suite::Idle => idle::run(&mut self.report),
            Suite::Neighbours => neighbours::run(&mut self.report),
            Suite::Scale => scale::run(&mut self.report),
            Suite::Cluster => cluster::run(&mut self.report),
            Suite::Settings => settings::run(&mut self.report),
            Suite::Tree => tree::run(&mut self.report),
            Suite::Delayed => delayed::run(&mut self.report),
            Suite::Http => http::run(&mut self.report),
            Suite::Window => window::run(&mut self.report),
            Suite::Simulate => simulate::run(&mut self.report),
            Suite::Tls => tls::run(&mut self.report),
            Suite::Limiters => limiters::run(&mut self.report),
            Suite::Soak => soak::run(&mut self.report, self.minutes),
            Suite::Peers => peers::run(&mut self.report),
        }
    }
}
