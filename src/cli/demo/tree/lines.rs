//! The demo in plain lines, one a second.

use super::seen::{Seen, wait_ms};
use super::{FLOOD, RETRY_AFTER};
use crate::cli::{say, say_all};

pub(super) struct Lines {
    /// What was told: the second, the head of the table, the flood, the refusal.
    second: u64,
    has_head: bool,
    has_flood: bool,
    has_refusal: bool,
}

impl Lines {
    pub(super) fn new() -> Self {
        Self { second: 0, has_head: false, has_flood: false, has_refusal: false }
    }

    pub(super) fn show(&mut self, seen: &Seen) {
        if !seen.has_begun {
            say("dripd demo tree: a provider takes 60 jobs a second, three accounts share it");
            say("starting a daemon and a Redis, which end with the demo");
            return;
        }
        if !self.has_head {
            self.has_head = true;
            say("each account may do 50/s for itself; acme and birch push 30/s, cedar 10/s");
            say_all("jobs out a second, jobs that wait, and the longest wait of those that left\n");
            let heads: Vec<_> = seen.accounts.iter().map(|account| format!("{:<18}", account.name.as_str())).collect();
            say(format!("second  all     {}", heads.join("   ")).trim_end());
        }
        if seen.flood_us.is_some() && !self.has_flood {
            self.has_flood = true;
            say(&format!("        {FLOOD} jobs at once are pushed for acme"));
        }
        if let (Some((account, _)), false) = (&seen.refused, self.has_refusal) {
            self.has_refusal = true;
            let (account, after) = (account.as_str(), RETRY_AFTER.as_secs());
            say(&format!("        the provider answers 429 to a job of {account}, Retry-After: {after}"));
        }
        let now = seen.shown_us().saturating_sub(seen.start_us) / 1_000_000;
        if now > self.second {
            // The seconds that ended since the last line.
            let to_us = seen.start_us + now * 1_000_000;
            let cells = seen.accounts.iter().map(|account| {
                let out = account.taken_between(to_us - 1_000_000, to_us).len();
                let wait = wait_ms(account, to_us).map_or("-".to_owned(), |ms| format!("{:.2} s", ms / 1e3));
                format!("{:<18}", format!("{out}/s {} {wait}", account.depth))
            });
            let (all, cells) = (seen.left_between(to_us - 1_000_000, to_us), cells.collect::<Vec<_>>().join("   "));
            say(format!("{now:>6}  {:<8}{cells}", format!("{all}/s")).trim_end());
            self.second = now;
        }
    }
}
