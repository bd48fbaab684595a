//! The verdict of the demo: which promises were kept, from what producers were told and what workers got, and the figures.

use std::collections::BTreeMap;
use std::time::Duration;

use super::seen::{Kill, Seen};
use crate::cli::demo::bucket::{Bucket, Taken};
use crate::cli::demo::probe::Stalls;
use crate::cli::demo::report::{Report, Verdict};
use crate::cli::demo::window::{broken_in_hand, broken_window};
use crate::model::policy::Policy;
use crate::model::ready_window::ReadyWindow;

/// How long a push may stay over capacity while a daemon runs (promise 2), beside what the machine itself stood still.
const CUT_WITHIN: Duration = Duration::from_millis(50);

/// How much longer than its interval a pause may be when a daemon is killed, beside what the machine itself stood still: a
/// person does not see it.
pub(super) const PAUSE_WITHIN: Duration = Duration::from_millis(100);

/// For so long after the kill every pause is looked at, and for at least so long there must be jobs.
const LOOKS_FOR_US: u64 = 2_000_000;
const LEAST_LOOK_US: u64 = 500_000;

/// The longest pause of a bucket since the kill, as far as there were jobs that could leave; up to some moment.
pub(super) fn pause_since_kill_us(bucket: &Bucket, kill: &Kill, depth: u64, until_us: u64) -> Option<u64> {
    let jobs_for_us = depth * bucket.interval_us();
    let to_us = until_us.min(kill.at_us + LOOKS_FOR_US.min(jobs_for_us));
    (to_us > kill.at_us).then(|| bucket.longest_pause_us(kill.at_us, to_us))
}

/// What became of each promise, and the figures.
pub(super) fn report(seen: &Seen, recorded: &BTreeMap<String, u64>, stalls: &Stalls, took: Duration) -> Report {
    let (stalled, mut figures) = (stalls.longest_of_all(), String::new());
    for b in &seen.buckets {
        let (name, set) = (b.name.as_str(), b.rate.to_string());
        figures += &format!("{name}: {:.2}/s out, {set} set\n", b.rate_out(seen.pause()));
        figures += &format!("    {} pushed, {} rejected, {} out\n", b.pushed, b.rejected, b.taken.len());
        figures += &format!("    late: p50 {:.2}, p99 {:.2} ms\n", b.late_ms(0.5), b.late_ms(0.99));
    }
    let (bound, kill) = (bound(seen, recorded, stalled), kill(seen, stalls));
    Report {
        took,
        stalled,
        figures,
        verdicts: vec![rate(seen), in_hand(seen), bound, order(seen), nothing_lost(seen), kill],
    }
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

/// Promise 1: in every window of length W at most `1 + (W + catch_up) / interval` jobs leave.
fn rate(seen: &Seen) -> Verdict {
    let catch_up_us = micros(Policy::default().catch_up);
    let mut broken = Vec::new();
    for bucket in &seen.buckets {
        let times: Vec<u64> = bucket.taken.iter().map(|job| job.at_us).collect();
        if let Some(width) = broken_window(&times, bucket.rate, catch_up_us) {
            broken.push(format!("{}: too many jobs left within {:.3} ms", bucket.name.as_str(), ms(width)));
        }
    }
    let found = if broken.is_empty() { "no bucket was too fast" } else { "a bucket was too fast" };
    Verdict { promise: "rate", found: found.to_owned(), broken }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Promise 1 where workers take jobs: after some seconds without workers, no bucket's jobs are taken faster than its rate allows.
fn in_hand(seen: &Seen) -> Verdict {
    let verdict = |found: &str, broken| Verdict { promise: "in hand", found: found.to_owned(), broken };
    let Some((from, to)) = seen.pause() else {
        return verdict("no worker was away", vec!["the demo ended before it".to_owned()]);
    };
    let window_us = ReadyWindow::default().duration().map_or(0, micros);
    let mut broken = Vec::new();
    for bucket in &seen.buckets {
        let mut given: Vec<(u64, u64)> = bucket.taken.iter().map(Taken::given_us).collect();
        given.sort_unstable();
        if broken_in_hand(&given, bucket.rate, micros(Policy::default().catch_up), window_us).is_some() {
            broken.push(format!("{}: workers were given too many jobs at once", bucket.name.as_str()));
        }
        if given.iter().any(|(first, _)| (from + 500_000..to).contains(first)) {
            broken.push(format!("{}: a worker took a job while all were away", bucket.name.as_str()));
        }
    }
    verdict(if broken.is_empty() { "no burst after 3 s away" } else { "a burst" }, broken)
}

/// Promise 2: what is over capacity is cut, and whoever pushed it was told.
fn bound(seen: &Seen, recorded: &BTreeMap<String, u64>, stalled: Duration) -> Verdict {
    let mut broken = Vec::new();
    for bucket in &seen.buckets {
        let name = bucket.name.as_str();
        if bucket.longest_over > CUT_WITHIN + stalled {
            broken.push(format!("{name}: over capacity for {} ms", bucket.longest_over.as_millis()));
        }
        let recorded = recorded.get(name).copied().unwrap_or(0);
        if recorded != bucket.rejected {
            broken.push(format!("{name}: {} told rejected, {recorded} recorded", bucket.rejected));
        }
    }
    let longest = seen.buckets.iter().map(|bucket| bucket.longest_over).max().unwrap_or_default();
    Verdict { promise: "bound", found: format!("over for at most {:.1} ms", longest.as_secs_f64() * 1e3), broken }
}

/// Promise 3: first in, first out.
fn order(seen: &Seen) -> Verdict {
    let mut broken = Vec::new();
    for bucket in &seen.buckets {
        let mut by_time: Vec<&Taken> = bucket.taken.iter().collect();
        by_time.sort_by_key(|job| (job.at_us, job.due_us));
        if !by_time.windows(2).all(|pair| pair[0].number < pair[1].number) {
            broken.push(format!("{}: a job overtook another", bucket.name.as_str()));
        }
    }
    let found = if broken.is_empty() { "first in, first out" } else { "a job overtook another" };
    Verdict { promise: "order", found: found.to_owned(), broken }
}

/// Promise 4: every accepted job is out, or still waits where the demo was too slow to see its end.
fn nothing_lost(seen: &Seen) -> Verdict {
    let mut broken = Vec::new();
    for bucket in &seen.buckets {
        let (accepted, out) = (bucket.accepted.len(), bucket.taken.len());
        let mut took: Vec<u64> = bucket.taken.iter().map(|job| job.number).collect();
        took.sort_unstable();
        if bucket.accepted.get(..out) != Some(&took[..]) || (accepted - out) as u64 != bucket.depth {
            let name = bucket.name.as_str();
            broken.push(format!("{name}: {accepted} accepted, {out} out, {} wait", bucket.depth));
        }
    }
    let (accepted, out) =
        seen.buckets.iter().fold((0, 0), |(a, o), bucket| (a + bucket.accepted.len(), o + bucket.taken.len()));
    Verdict { promise: "nothing lost", found: format!("{out} of {accepted}"), broken }
}

/// One daemon less changes nothing.
fn kill(seen: &Seen, stalls: &Stalls) -> Verdict {
    let verdict = |found: String, broken| Verdict { promise: "kill -9", found, broken };
    let Some(kill) = &seen.killed else {
        return verdict("nothing was killed".to_owned(), vec!["the demo ended before it".to_owned()]);
    };
    let allowed = PAUSE_WITHIN + stalls.longest(kill.at_us, kill.at_us + LOOKS_FOR_US);
    let (mut broken, mut longest_extra) = (Vec::new(), 0);
    for (bucket, depth) in seen.buckets.iter().zip(&kill.depths) {
        let (name, interval) = (bucket.name.as_str(), bucket.interval_us());
        match pause_since_kill_us(bucket, kill, *depth, u64::MAX) {
            Some(pause) if depth * interval >= LEAST_LOOK_US => {
                let extra = pause.saturating_sub(interval);
                longest_extra = longest_extra.max(extra);
                if u128::from(extra) > allowed.as_micros() {
                    broken.push(format!("{name}: no job for {:.1} ms", ms(pause)));
                }
            }
            _ => broken.push(format!("{name}: nothing waited in it, so nothing was measured")),
        }
    }
    verdict(format!("delay at most {:.1} ms", ms(longest_extra)), broken)
}

#[cfg(test)]
mod tests {
    use super::super::Planned;
    use super::*;

    const PLANNED: [Planned; 1] = [Planned { name: "b", rate: "5/s", capacity: 10, pushes: &[] }];

    /// Five a second: a push of twelve, of which two are rejected, and a kill after the first job.
    fn seen() -> Seen {
        let mut seen = Seen::new(&PLANNED);
        let b = &mut seen.buckets[0];
        b.pushed(1_000_000, 12, 12);
        b.taken.extend((0..10).map(|n| {
            let at_us = 1_000_000 + 200_000 * n;
            Taken { number: n, due_us: at_us, at_us, handed_us: (at_us, at_us) }
        }));
        seen.away = Some((5_000_000, Some(8_000_000)));
        seen.killed = Some(Kill { at_us: 1_100_000, process: 1, depths: vec![9] });
        seen
    }

    fn broken(seen: &Seen, recorded: u64) -> Option<String> {
        report(seen, &BTreeMap::from([("b".to_owned(), recorded)]), &Stalls::default(), Duration::from_secs(2)).broken()
    }

    #[test]
    fn promises_that_were_kept_are_said_in_lines_of_forty_columns() {
        let report =
            report(&seen(), &BTreeMap::from([("b".to_owned(), 2)]), &Stalls::default(), Duration::from_secs(2));
        assert_eq!(report.broken(), None);
        let text = report.text(false);
        assert!(text.contains("b: 5.00/s out, 5/s set") && text.contains("all promises kept"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn each_broken_promise_is_found() {
        assert_eq!(broken(&seen(), 1).as_deref(), Some("broken: bound: b: 2 told rejected, 1 recorded"));
        let mut fast = seen();
        fast.buckets[0].taken[1].at_us -= 20_002;
        assert_eq!(broken(&fast, 2).as_deref(), Some("broken: rate: b: too many jobs left within 179.998 ms"));
        let mut burst = seen();
        burst.buckets[0].taken.iter_mut().for_each(|job| job.handed_us = (8_000_000, 8_001_000));
        let why = "broken: in hand: b: workers were given too many jobs at once";
        assert_eq!(broken(&burst, 2).as_deref(), Some(why), "ten at once, and 2 + 1 may be");
        let mut not_away = seen();
        not_away.away = Some((5_000_000, None));
        assert_eq!(broken(&not_away, 2).as_deref(), Some("broken: in hand: the demo ended before it"));
        let mut lost = seen();
        lost.buckets[0].taken.remove(9);
        assert_eq!(broken(&lost, 2).as_deref(), Some("broken: nothing lost: b: 10 accepted, 9 out, 0 wait"));
        let mut twice = seen();
        twice.buckets[0].taken[9].number = 8;
        let twice = broken(&twice, 2).expect("a job came twice");
        assert!(twice.contains("order: b") && twice.contains("nothing lost: b"), "{twice}");
        let mut over = seen();
        over.buckets[0].longest_over = Duration::from_millis(51);
        assert_eq!(broken(&over, 2).as_deref(), Some("broken: bound: b: over capacity for 51 ms"));
    }

    #[test]
    fn a_pause_after_the_kill_is_found_wherever_it_is_and_nothing_waiting_is_no_excuse() {
        let mut late = seen();
        late.buckets[0].taken[3..].iter_mut().for_each(|job| job.at_us += 101_000);
        assert_eq!(broken(&late, 2).as_deref(), Some("broken: kill -9: b: no job for 301.0 ms"));
        let mut at_once = seen();
        at_once.buckets[0].taken[1..].iter_mut().for_each(|job| job.at_us += 500_000);
        assert_eq!(broken(&at_once, 2).as_deref(), Some("broken: kill -9: b: no job for 700.0 ms"));
        let mut empty = seen();
        empty.killed.as_mut().expect("it was killed").depths[0] = 1;
        let why = "broken: kill -9: b: nothing waited in it, so nothing was measured";
        assert_eq!(broken(&empty, 2).as_deref(), Some(why));
        let mut none = seen();
        none.killed = None;
        assert_eq!(broken(&none, 2).as_deref(), Some("broken: kill -9: the demo ended before it"));
    }
}
