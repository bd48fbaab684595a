//! The end of a demo: which promises were kept, and the figures. Here are the checks that both demos make.

use std::time::Duration;

use crossterm::style::Stylize as _;

use super::bucket::Bucket;
use super::seen::Seen;
use crate::model::rate::Rate;

/// A machine that stood still for longer than this is said to have done so.
const STALL_SAID: Duration = Duration::from_millis(20);

/// What became of one promise.
pub(super) struct Verdict {
    promise: &'static str,
    /// What was measured.
    found: String,
    /// In which way it was broken; empty when it was kept.
    broken: Vec<String>,
}

impl Verdict {
    pub(super) fn new(promise: &'static str, found: impl Into<String>, broken: Vec<String>) -> Self {
        Self { promise, found: found.into(), broken }
    }

    /// Of what the promise is about there was nothing.
    pub(super) fn missing(promise: &'static str, found: &str) -> Self {
        Self::new(promise, found, vec!["the demo ended before it".to_owned()])
    }
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

/// Look at each bucket for the ways in which it breaks a promise, and say its name with each.
pub(super) fn of_each(buckets: &[Bucket], broken: impl Fn(&Bucket) -> Option<String>) -> Vec<String> {
    buckets.iter().filter_map(|bucket| Some(format!("{}: {}", bucket.name.as_str(), broken(bucket)?))).collect()
}

/// The width of a window that holds too many jobs, to within a microsecond: more than `1 + burst + (width + catch_up) / interval`. Of
/// each job it is known between which two moments it came; the list is in the order of the first ones.
///
/// From job i to job j there are `j - i + 1` jobs; that is too many when `(j - i) × period > burst × period + (width + catch_up + 1) ×
/// count`. So j is compared with that i before it whose `i × period - at × count` is the least, and one walk finds any such window.
pub(super) fn broken_window(times: &[(u64, u64)], rate: Rate, burst: u64, catch_up: Duration) -> Option<u64> {
    let (count, period) = (i128::from(rate.count()), rate.period().as_micros() as i128);
    let allowed = i128::from(burst) * period + (catch_up.as_micros() as i128 + 1) * count;
    let (mut least, mut from, mut latest) = (i128::MAX, 0, 0);
    for (n, (first, last)) in times.iter().enumerate() {
        let jobs = n as i128 * period;
        latest = latest.max(*last);
        if jobs - i128::from(*first) * count < least {
            (least, from) = (jobs - i128::from(*first) * count, *first);
        }
        if jobs - i128::from(latest) * count - least > allowed {
            return Some(latest - from);
        }
    }
    None
}

/// In every window of length W at most `1 + (W + catch_up) / interval` jobs leave, also of the budget. A job that was refused left, too.
pub(super) fn rate(seen: &Seen) -> Verdict {
    let too_fast = |bucket: &Bucket| {
        let mut times: Vec<_> = bucket.taken.iter().chain(&bucket.refused).map(|job| (job.at_us, job.at_us)).collect();
        times.sort_unstable();
        let width = broken_window(&times, bucket.rate, 0, seen.plan.catch_up)?;
        Some(format!("too many jobs left within {:.3} ms", width as f64 / 1e3))
    };
    let mut broken = of_each(seen.budget.as_slice(), too_fast);
    broken.extend(of_each(&seen.buckets, too_fast));
    Verdict::new("rate", if broken.is_empty() { "nobody was too fast" } else { "somebody was too fast" }, broken)
}

/// Every accepted job is out, once and after those before it, or waits.
pub(super) fn nothing_lost(seen: &Seen) -> Verdict {
    let broken = of_each(&seen.buckets, |bucket| {
        let (accepted, out) = (bucket.accepted.len(), bucket.taken.len());
        let mut took: Vec<u64> = bucket.taken.iter().map(|job| job.number).collect();
        took.sort_unstable();
        let is_lost = !bucket.accepted.starts_with(&took) || !bucket.is_settled();
        is_lost.then(|| format!("{accepted} accepted, {out} out, {} wait", bucket.depth))
    });
    let sum = |count: fn(&Bucket) -> usize| seen.buckets.iter().map(count).sum::<usize>();
    let (out, accepted) = (sum(|bucket| bucket.taken.len()), sum(|bucket| bucket.accepted.len()));
    Verdict::new("nothing lost", format!("{out} of {accepted} out"), broken)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn report(figures: String, verdicts: Vec<Verdict>) -> Report {
        Report { took: Duration::from_secs(2), stalled: Duration::ZERO, figures, verdicts }
    }

    /// Check that a promise was broken in this way.
    pub(in crate::cli::demo) fn assert_broken(verdicts: Vec<Verdict>, what: &str) {
        let broken = report(String::new(), verdicts).broken().expect("a promise was broken");
        assert!(broken.contains(what), "{what}: {broken}");
    }

    /// Check that all was kept, and that the lines fit; replies them.
    pub(in crate::cli::demo) fn text_of_kept(figures: String, verdicts: Vec<Verdict>) -> String {
        let report = report(figures, verdicts);
        assert_eq!(report.broken(), None);
        let text = report.text(false);
        assert!(text.contains("all promises kept") && text.lines().all(|line| line.chars().count() <= 40), "{text}");
        text
    }

    #[test]
    fn a_window_may_hold_what_rate_burst_and_catch_up_allow_and_not_one_job_more() {
        let broken = |times: &[(u64, u64)], burst| {
            broken_window(times, Rate::parse("10/s").expect("a rate"), burst, Duration::from_millis(20))
        };
        let exact = |times: &[u64]| broken(&times.iter().map(|at| (*at, *at)).collect::<Vec<_>>(), 0);
        assert_eq!(exact(&[0, 80_000, 180_000]), None);
        assert_eq!(exact(&[0, 79_999, 180_000]), None, "to within a microsecond");
        assert_eq!(exact(&[0, 79_998]), Some(79_998));
        assert_eq!(exact(&[0, 100_000, 200_000, 250_000, 350_000]), Some(250_000));
        assert_eq!((broken(&[(0, 1_000); 4], 3), broken(&[(0, 1_000); 5], 3)), (None, Some(1_000)));
    }
}
