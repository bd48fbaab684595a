//! The demo in plain lines, one a second: for a pipe, a terminal without control sequences, and whoever wants no colours.

use super::seen::Seen;
use crate::cli::demo::bucket::{Bucket, Pace};
use crate::cli::{say, say_all};

pub(super) struct Lines {
    /// The second that is told next.
    next: u64,
    told_kill: bool,
    told_away: bool,
    told_back: bool,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { next: 0, told_kill: false, told_away: false, told_back: false }
    }

    pub(super) fn show(&mut self, seen: &Seen) {
        if seen.running.is_empty() {
            say("dripd demo: bursts go in, a steady drip comes out; it takes 18 seconds");
            say("starting two daemons and a Redis, which end with the demo");
            return;
        }
        if self.next == 0 {
            say_all("for each bucket: jobs out a second, and how many wait of how many may\n");
            let heads: Vec<_> =
                seen.buckets.iter().map(|b| format!("{:<19}", format!("{} {}", b.name.as_str(), b.rate))).collect();
            say(&format!("seconds   {} rejected", heads.join(" ")));
        }
        if seen.away.is_some() && !self.told_away {
            self.told_away = true;
            say("          all workers stop for three seconds: what is due waits in its bucket");
        }
        if seen.pause().is_some() && !self.told_back {
            self.told_back = true;
            say("          the workers are back: each bucket goes on at its rate, with no burst");
        }
        if let Some(kill) = seen.killed.as_ref().filter(|_| !self.told_kill) {
            self.told_kill = true;
            say(&format!("          daemon 1 (process {}) was killed with kill -9; daemon 2 goes on", kill.process));
        }
        let shown = Seen::shown_us();
        let second = shown.saturating_sub(seen.start_us) / 1_000_000;
        if second >= self.next {
            self.next = second + 1;
            let cells: Vec<_> = seen.buckets.iter().map(|bucket| cell(bucket, shown)).collect();
            say(&format!("{second:>7}   {} {:>8}", cells.join(" "), seen.rejected()));
        }
    }
}

fn cell(bucket: &Bucket, shown: u64) -> String {
    let pace = match bucket.pace(shown) {
        Pace::Starting => "-".to_owned(),
        Pace::Rate(rate) => format!("{rate:.1}/s"),
        Pace::Empty => "empty".to_owned(),
    };
    format!("{:<19}", format!("{pace:<8}{} of {}", bucket.depth, bucket.capacity))
}
