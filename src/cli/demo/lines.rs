//! A demo in plain lines, one a second: for a pipe, a terminal without control sequences, and whoever wants no colours.

use super::picture::Look;
use super::seen::Seen;
use crate::cli::{say, say_all};

/// How long it takes to start, where nothing is slow.
const STARTS_WITHIN_MS: u64 = 400;

#[derive(Default)]
pub(super) struct Lines {
    /// How many events were told, and the last second.
    events: usize,
    second: u64,
}

impl Lines {
    pub(super) fn show(&mut self, seen: &Seen, look: &Look) {
        let plan = seen.plan;
        if seen.processes.is_empty() {
            let seconds = (plan.lasts_ms + STARTS_WITHIN_MS).div_ceil(1_000);
            say(&format!("{}; it takes {seconds} seconds", plan.title));
            say(plan.starting);
            return;
        }
        for (_, _, line) in &plan.events[self.events..seen.came_us.len()] {
            say(&format!("          {}", (look.fill)(seen, line)));
        }
        self.events = seen.came_us.len();
        let second = seen.shown_ms() / 1_000;
        if second == self.second {
            return;
        }
        let rows = (look.rows)(seen, seen.shown_us());
        if self.second == 0 {
            say_all(&format!("{}\n", plan.legend));
            let names = rows.iter().map(|row| format!("{} {}", row.bucket.name.as_str(), row.bucket.rate));
            say_row("seconds", &names.collect::<Vec<_>>());
        }
        self.second = second;
        say_row(&second.to_string(), &rows.into_iter().map(|row| row.cell).collect::<Vec<_>>());
    }
}

/// A row of a table that is 80 columns wide.
fn say_row(first: &str, cells: &[String]) {
    let width = 70 / cells.len() - 1;
    let cells: Vec<_> = cells.iter().map(|cell| format!("{cell:<width$}")).collect();
    say(format!("{first:>7}   {}", cells.join(" ")).trim_end());
}
