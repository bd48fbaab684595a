//! Whether a report meets what is expected of it.

use std::fmt;
use std::time::Duration;

use super::report::{Figures, Report, Wait};
use crate::model::duration::rough;
use crate::model::expectation::{Compare, Expectation, Figure, Value};

/// An expectation that was not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// As it was written.
    pub text: String,
    /// What was found instead.
    pub found: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: it is {}", self.text, self.found)
    }
}

/// A figure as a number, in seconds for a time, and as people read it; `None`: it is not known.
fn found(figure: Figure, figures: &Figures) -> Option<(f64, String)> {
    let time = |of: fn(&Wait) -> Duration| figures.wait.as_ref().map(of).map(|time| (time.as_secs_f64(), rough(time)));
    let jobs = |n: u64| Some((n as f64, n.to_string()));
    match figure {
        Figure::WaitP50 => time(|wait| wait.p50),
        Figure::WaitP95 => time(|wait| wait.p95),
        Figure::WaitP99 => time(|wait| wait.p99),
        Figure::WaitMax => time(|wait| wait.max),
        Figure::Pushed => jobs(figures.counts.pushed),
        Figure::Accepted => jobs(figures.counts.accepted),
        Figure::Rejected => jobs(figures.counts.rejected + figures.counts.pushed_out),
        Figure::Late => jobs(figures.counts.late),
        Figure::Dead => jobs(figures.counts.dead),
        Figure::Waiting => jobs(figures.counts.waiting + figures.counts.retrying),
        Figure::Rate => Some((figures.per_second, format!("{:.2}/s", figures.per_second))),
        Figure::Use => figures.used.map(|used| (used, format!("{:.1}%", 100.0 * used))),
        Figure::Fairness => figures.fairness.map(|index| (index, format!("{index:.3}"))),
    }
}

/// Judge a report. A group without traffic meets nothing: an expectation about a name that is written wrong must not
/// pass.
///
/// # Errors
///
/// It is not met: what was found instead.
pub fn judge(expected: &Expectation, report: &Report) -> Result<(), Failed> {
    let failed = |found: String| Failed { text: expected.text.clone(), found };
    let Some(figures) = report.of_group(&expected.name, expected.is_budget) else {
        return Err(failed(format!("not known: nothing was pushed there; figures are known of {}", report.names())));
    };
    let Some((found, shown)) = found(expected.figure, figures) else {
        let why = match expected.figure {
            Figure::Use => "there is no rate",
            Figure::Fairness => "no job got through",
            _ => "no job was taken, and none waits",
        };
        return Err(failed(format!("not known: {why}")));
    };
    let (found, wanted, shown) = match expected.value {
        // What looks the same and is not is shown to the microsecond.
        Value::Time(time) if shown == rough(time) => (found, time.as_secs_f64(), format!("{found:.6}s")),
        Value::Time(time) => (found, time.as_secs_f64(), shown),
        Value::Number(number) => (found, number, shown),
        // Seven of a thousand are 0.7% to the last bit: what is divided is a whole number.
        Value::Percent(percent) => {
            let found = 100.0 * found / figures.counts.pushed as f64;
            (found, percent, format!("{found:.2}%"))
        }
    };
    let is_met = match expected.compare {
        Compare::Less => found < wanted,
        Compare::AtMost => found <= wanted,
        Compare::More => found > wanted,
        Compare::AtLeast => found >= wanted,
    };
    if is_met { Ok(()) } else { Err(failed(shown)) }
}
