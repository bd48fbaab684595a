//! The plan of a demo: its buckets, what is pushed into them, what happens when, and what is said of it.

use std::time::Duration;

/// What a demo does by the clock. Every time is in milliseconds after its start.
pub(super) struct Plan {
    /// The command, a colon, and what is shown.
    pub(super) title: &'static str,
    /// What is said while it starts.
    pub(super) starting: &'static str,
    /// How to read the plain lines.
    pub(super) legend: &'static str,
    pub(super) daemons: usize,
    /// Name, rate and capacity of each bucket.
    pub(super) buckets: &'static [(&'static str, &'static str, u32)],
    /// Name and rate of a budget above all buckets.
    pub(super) budget: Option<(&'static str, &'static str)>,
    pub(super) catch_up: Duration,
    /// How many jobs should have been pushed into a bucket by some time.
    pub(super) pushed_by: fn(usize, u64) -> u64,
    /// What happens, and the line that says so.
    pub(super) events: &'static [(u64, Event, &'static str)],
    /// What stands below the picture from some time on: a sentence of at most 78 letters, and one that is left out in little room.
    pub(super) captions: &'static [(u64, &'static str, &'static str)],
    /// When it should be over, and when it is over at the latest, unless the machine is too busy.
    pub(super) lasts_ms: u64,
    pub(super) ends_by_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// All workers stop taking jobs.
    WorkersLeave,
    WorkersReturn,
    /// The first daemon is killed.
    Kill,
    /// A flood is pushed, as planned.
    Flood,
    /// The provider behind the budget refuses the next job, and says for how many seconds it is not to be asked.
    Refuse(u64),
    /// Nothing leaves any more, so that what is under way arrives and the rest waits.
    Close,
}

impl Plan {
    /// The policies of its budget and buckets, as a configuration. The catch-up is written, so that the demo knows what it may hold the
    /// rates to.
    pub(super) fn policies(&self) -> String {
        let catch_up = self.catch_up.as_millis();
        let node = |kind, name, rate| {
            format!("[[{kind}]]\nmatch = \"{name}\"\nrate = \"{rate}\"\ncatch_up = \"{catch_up}ms\"\n")
        };
        let mut toml = self.budget.map_or_else(String::new, |(name, rate)| node("budget", name, rate));
        for (name, rate, capacity) in self.buckets {
            toml += &format!("{}capacity = {capacity}\n", node("bucket", name, rate));
            toml += &self.budget.map_or_else(String::new, |(budget, _)| format!("within = \"{budget}\"\n"));
        }
        toml
    }
}
