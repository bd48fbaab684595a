//! The end of a demo: which promises were kept, and the figures.

use std::time::Duration;

use crossterm::style::Stylize as _;

/// A machine that stood still for longer than this is said to have done so.
const STALL_SAID: Duration = Duration::from_millis(20);

/// What became of one promise.
pub(super) struct Verdict {
    pub(super) promise: &'static str,
    /// What was measured.
    pub(super) found: String,
    /// In which way it was broken; empty when it was kept.
    pub(super) broken: Vec<String>,
}

/// All of them.
pub(super) struct Report {
    pub(super) took: Duration,
    /// For how long the machine stood still, at most.
    pub(super) stalled: Duration,
    /// What was measured besides, in lines.
    pub(super) figures: String,
    pub(super) verdicts: Vec<Verdict>,
}

impl Report {
    /// Every way in which a promise was broken, in one line.
    pub(super) fn broken(&self) -> Option<String> {
        let all: Vec<_> =
            self.verdicts.iter().flat_map(|v| v.broken.iter().map(|b| format!("{}: {b}", v.promise))).collect();
        (!all.is_empty()).then(|| format!("broken: {}", all.join("; ")))
    }

    /// Figures and verdicts, in lines of at most 40 columns: the smallest terminal that a demo is for.
    pub(super) fn text(&self, colored: bool) -> String {
        let mut text = format!("measured over {:.1} s:\n\n{}\n", self.took.as_secs_f64(), self.figures);
        for Verdict { promise, found, broken } in &self.verdicts {
            let word = if broken.is_empty() { "kept    ".green() } else { "BROKEN  ".red() };
            let word = if colored { word.to_string() } else { word.content().to_string() };
            text += &format!("{word}{promise}: {found}\n");
        }
        if self.stalled >= STALL_SAID {
            text += &format!("        (machine stood still {} ms)\n", self.stalled.as_millis());
        }
        if self.broken().is_none() {
            text += "\nall promises kept, measured from outside";
        }
        text
    }
}
