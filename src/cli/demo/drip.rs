//! The main job: three buckets at different rates, bursts of plain pushes, and workers that take what has dripped out. Halfway one of
//! two daemons is killed with kill -9, and before that all workers stop for three seconds in the middle of the load and come back.

use std::time::Duration;

use ratatui::style::Stylize as _;
use ratatui::text::Line;

use super::Script;
use super::bucket::{Bucket, Taken};
use super::picture::{BAD, Look, OUT, PUSHED, Row, WAITING};
use super::plan::{Event, Plan};
use super::seen::Seen;
use super::verdict::{self, Verdict, broken_window, of_each};
use crate::model::ready_window::ReadyWindow;

pub(super) static SCRIPT: Script = Script { plan: PLAN, look: Look { rows, fill }, figures, verdicts };

const PLAN: Plan = Plan {
    title: "dripd demo: bursts go in, a steady drip comes out",
    starting: "Starting two daemons and a Redis, which end with the demo.",
    legend: "for each bucket: jobs out a second, how many wait of how many may, -rejected",
    daemons: 2,
    // Each holds four seconds of jobs, and none becomes empty before the last burst: the pace out has no reason to change.
    buckets: &[("mail", "2/s", 8), ("sms", "20/s", 80), ("webhook", "200/s", 800)],
    budget: None,
    catch_up: Duration::from_millis(20), // what holds where none is written
    pushed_by,
    events: &[
        (3_500, Event::WorkersLeave, "all workers stop for three seconds: what is due waits in its bucket"),
        (6_500, Event::WorkersReturn, "the workers are back: each bucket goes on at its rate, with no burst"),
        (KILL_AT_MS, Event::Kill, "daemon 1 (process {process}) was killed with kill -9; daemon 2 goes on"),
    ],
    captions: &[
        (
            0,
            "Producers push in bursts. Jobs come out one by one, at the rate that was set.",
            "A push is a plain LPUSH. Jobs wait in the bucket, a list in Redis.",
        ),
        (
            2_500,
            "A full bucket rejects the newest jobs; the reply to the push says how many.",
            "What comes out does not change, whatever goes in.",
        ),
        (
            3_500,
            "All workers have stopped for three seconds. What is due waits in its bucket.",
            "Only what left within the last quarter of a second lies ready for them.",
        ),
        (
            6_500,
            "The workers are back. Each bucket goes on at its rate, with no burst.",
            "Nobody behind the workers is called faster than its rate.",
        ),
        (
            8_000,
            "In {countdown} s daemon 1 is killed with kill -9. Watch what comes out.",
            "Daemon 2 does the same work at the same time; neither of them leads.",
        ),
        (
            KILL_AT_MS,
            "Daemon 1 is dead, daemon 2 goes on. Longest pause since then: {pause}.",
            "A webhook job leaves every 5 ms. A pause 100 ms longer fails the demo.",
        ),
        (
            13_500,
            "Daemon 1 is dead, daemon 2 goes on. Longest pause since then: {pause}.",
            "There are no more pushes. The buckets become empty at the same pace.",
        ),
    ],
    lasts_ms: 17_600,
    ends_by_ms: 20_000,
};

const KILL_AT_MS: u64 = 10_000;

/// When so many jobs are pushed into each bucket; none while the workers are away.
const PUSHES: [&[(u64, u64)]; 3] = [
    &[(100, 10), (3_200, 6), (8_600, 6), (11_300, 5), (13_500, 7)],
    &[(300, 100), (1_900, 40), (7_900, 90), (9_600, 40), (11_100, 60), (13_300, 60)],
    &[(0, 1_000), (2_300, 300), (7_200, 700), (9_300, 500), (11_500, 650), (13_400, 600)],
];

/// The bucket with the highest rate: a pause is seen in it first.
const FASTEST: usize = 2;

/// How long a push may stay over capacity while a daemon runs (promise 2), beside what the machine itself stood still.
const CUT_WITHIN: Duration = Duration::from_millis(50);

/// How much longer than its interval a pause may be when a daemon is killed, beside what the machine itself stood still: a
/// person does not see it.
const PAUSE_WITHIN: Duration = Duration::from_millis(100);

/// For so long after the kill every pause is looked at, and for at least so long there must be jobs.
const LOOKS_FOR_US: u64 = 2_000_000;
const LEAST_LOOK_US: u64 = 500_000;

/// For how long after the workers were sent away one of them may still get what it has asked for.
const LEAVES_WITHIN_US: u64 = 500_000;

fn pushed_by(bucket: usize, ms: u64) -> u64 {
    PUSHES[bucket].iter().filter(|(at_ms, _)| *at_ms <= ms).map(|(_, jobs)| jobs).sum()
}

fn rows(seen: &Seen, shown_us: u64) -> Vec<Row<'_>> {
    seen.buckets.iter().map(|bucket| row(bucket, shown_us)).collect()
}

fn row(bucket: &Bucket, shown_us: u64) -> Row<'_> {
    let (rate, capacity, rejected, jobs_out) = (bucket.rate, bucket.capacity, bucket.rejected, bucket.taken.len());
    let (pace, out) = match bucket.rate_at(shown_us) {
        Some(_) if jobs_out == bucket.accepted.len() => {
            ("empty".to_owned(), Line::from(format!("empty: all {jobs_out} are out")).fg(OUT))
        }
        Some(pace) => {
            let pace = format!("{pace:.1}/s");
            (pace.clone(), Line::from(vec![pace.fg(OUT).bold(), format!(" ({rate} set)").into()]))
        }
        None => ("-".to_owned(), Line::from("nothing yet").dim()),
    };
    let waiting = format!("{} of {capacity}", bucket.depth.min(capacity));
    let pushed =
        vec![format!("{} pushed", bucket.pushed()).fg(PUSHED), ", ".into(), format!("{rejected} rejected").fg(BAD)];
    Row {
        bucket,
        cell: format!("{pace:<8}{waiting} -{rejected}"),
        head: Line::from(format!("rate {rate}, room for {capacity} ")),
        figures: Some([Line::from(pushed), Line::from(waiting).fg(WAITING).centered(), out]),
    }
}

fn fill(seen: &Seen, words: &str) -> String {
    let pause = seen.when(Event::Kill).and_then(|at| pause_since_kill_us(&seen.buckets[FASTEST], at, seen.shown_us()));
    let pause = pause.map_or("not known yet".to_owned(), |us| format!("{:.1} ms", us as f64 / 1e3));
    let countdown = format!("{:.0}", KILL_AT_MS.saturating_sub(seen.shown_ms()) as f64 / 1e3);
    let process = seen.processes.first().map_or_else(String::new, u32::to_string);
    words.replace("{pause}", &pause).replace("{countdown}", &countdown).replace("{process}", &process)
}

/// The longest pause of a bucket since the kill, as far as there were jobs that could leave; up to some moment.
fn pause_since_kill_us(bucket: &Bucket, killed_us: u64, until_us: u64) -> Option<u64> {
    let to_us = until_us.min(killed_us + LOOKS_FOR_US.min(bucket.depth_at_kill * bucket.interval_us()));
    (to_us > killed_us).then(|| bucket.longest_pause_us(killed_us, to_us))
}

/// Between which moments the workers were away.
fn away(seen: &Seen) -> Option<(u64, u64)> {
    Some((seen.when(Event::WorkersLeave)?, seen.when(Event::WorkersReturn)?))
}

fn figures(seen: &Seen) -> String {
    let figures = |b: &Bucket| {
        let (name, set, rate_out) = (b.name.as_str(), b.rate, b.rate_out(away(seen)));
        let (pushed, rejected, out) = (b.pushed(), b.rejected, b.taken.len());
        let (half, most) = (b.late_ms(0.5), b.late_ms(0.99));
        format!("{name}: {rate_out:.2}/s out, {set} set\n")
            + &format!("    {pushed} pushed, {rejected} rejected, {out} out\n")
            + &format!("    late: p50 {half:.2}, p99 {most:.2} ms\n")
    };
    seen.buckets.iter().map(figures).collect()
}

fn verdicts(seen: &Seen) -> Vec<Verdict> {
    vec![verdict::rate(seen), in_hand(seen), bound(seen), order(seen), verdict::nothing_lost(seen), kill(seen)]
}

/// Promise 1 where workers take jobs: after some seconds without workers, no bucket's jobs are taken faster than its rate allows. In
/// every window of length W at most `2 + (ready_window + catch_up) / interval + (W + catch_up) / interval` are.
fn in_hand(seen: &Seen) -> Verdict {
    let Some((from, to)) = away(seen) else { return Verdict::missing("in hand", "no worker was away") };
    let ready = ReadyWindow::default().duration().unwrap_or_default() + seen.plan.catch_up;
    // Not before it had left its bucket.
    let given = |job: &Taken| (job.asked_us.0.max(job.at_us), job.asked_us.1.max(job.at_us));
    let broken = of_each(&seen.buckets, |bucket| {
        let mut given: Vec<(u64, u64)> = bucket.taken.iter().map(given).collect();
        given.sort_unstable();
        let burst = 1 + ready.as_micros() as u64 / bucket.interval_us();
        let is_burst = broken_window(&given, bucket.rate, burst, seen.plan.catch_up).is_some();
        let is_taken = given.iter().any(|(first, _)| (from + LEAVES_WITHIN_US..to).contains(first));
        match (is_burst, is_taken) {
            (true, _) => Some("workers were given too many jobs at once".to_owned()),
            (_, true) => Some("a worker took a job while all were away".to_owned()),
            _ => None,
        }
    });
    Verdict::new("in hand", if broken.is_empty() { "no burst after 3 s away" } else { "a burst" }, broken)
}

/// Promise 2: what is over capacity is cut, and whoever pushed it was told.
fn bound(seen: &Seen) -> Verdict {
    let allowed = CUT_WITHIN + seen.stalls.delay_of_all();
    let mut broken = of_each(&seen.buckets, |bucket| {
        let ms = bucket.longest_over.as_millis();
        (bucket.longest_over > allowed).then(|| format!("over capacity for {ms} ms"))
    });
    broken.extend(of_each(&seen.buckets, |bucket| {
        let recorded = seen.recorded.get(bucket.name.as_str()).copied().unwrap_or(0);
        (recorded != bucket.rejected).then(|| format!("{} told rejected, {recorded} recorded", bucket.rejected))
    }));
    let longest = seen.buckets.iter().map(|bucket| bucket.longest_over).max().unwrap_or_default();
    Verdict::new("bound", format!("over for at most {:.1} ms", longest.as_secs_f64() * 1e3), broken)
}

/// Promise 3: first in, first out.
fn order(seen: &Seen) -> Verdict {
    let broken = of_each(&seen.buckets, |bucket| {
        let mut by_time: Vec<&Taken> = bucket.taken.iter().collect();
        by_time.sort_by_key(|job| (job.at_us, job.due_us));
        let is_in_order = by_time.windows(2).all(|pair| pair[0].number < pair[1].number);
        (!is_in_order).then(|| "a job overtook another".to_owned())
    });
    Verdict::new("order", if broken.is_empty() { "first in, first out" } else { "a job overtook another" }, broken)
}

/// One daemon less changes nothing.
fn kill(seen: &Seen) -> Verdict {
    let Some(killed_us) = seen.when(Event::Kill) else { return Verdict::missing("kill -9", "nothing was killed") };
    let allowed_us = (PAUSE_WITHIN + seen.stalls.delay(killed_us, killed_us + LOOKS_FOR_US)).as_micros() as u64;
    let pause_us = |bucket: &Bucket| pause_since_kill_us(bucket, killed_us, u64::MAX);
    let broken = of_each(&seen.buckets, |bucket| match pause_us(bucket) {
        Some(pause) if bucket.depth_at_kill * bucket.interval_us() >= LEAST_LOOK_US => {
            let is_late = pause > bucket.interval_us() + allowed_us;
            is_late.then(|| format!("no job for {:.1} ms", pause as f64 / 1e3))
        }
        _ => Some("nothing waited in it, so nothing was measured".to_owned()),
    });
    let delay_us = |bucket: &Bucket| Some(pause_us(bucket)?.saturating_sub(bucket.interval_us()));
    let longest = seen.buckets.iter().filter_map(delay_us).max().unwrap_or(0);
    Verdict::new("kill -9", format!("delay at most {:.1} ms", longest as f64 / 1e3), broken)
}

#[cfg(test)]
mod tests {
    use super::super::bucket::tests::took;
    use super::super::verdict::tests::{assert_broken, text_of_kept};
    use super::*;

    /// A push of twelve into a bucket of five a second, of which two are rejected, and a kill after the first job.
    fn seen() -> Seen {
        let mut seen = Seen::new(&SCRIPT.plan);
        let mut b = Bucket::new("b", "5/s", 10);
        b.note_push(1_000_000, 12, 12);
        b.taken.extend((0..10).map(|n| took(n, 1_000_000 + 200_000 * n)));
        b.depth_at_kill = 9;
        seen.buckets = vec![b];
        seen.came_us = vec![5_000_000, 8_000_000, 1_100_000];
        seen.recorded.insert("b".to_owned(), 2);
        seen
    }

    /// What was seen, with some change, breaks a promise in this way.
    fn check(change: impl Fn(&mut Seen, &mut [Taken]), what: &str) {
        let mut seen = seen();
        let mut taken = std::mem::take(&mut seen.buckets[0].taken);
        change(&mut seen, &mut taken);
        seen.buckets[0].taken = taken;
        assert_broken(verdicts(&seen), what);
    }

    #[test]
    fn promises_that_were_kept_are_said_in_lines_of_forty_columns() {
        let text = text_of_kept(figures(&seen()), verdicts(&seen()));
        assert!(text.contains("b: 5.00/s out, 5/s set"), "{text}");
    }

    #[test]
    fn each_broken_promise_is_found() {
        check(|_, taken| taken[1].at_us -= 20_002, "broken: rate: b: too many jobs left within 179.998 ms");
        let burst = |_: &mut Seen, taken: &mut [Taken]| {
            for job in taken {
                job.asked_us = (8_000_000, 8_001_000);
            }
        };
        check(burst, "broken: in hand: b: workers were given too many jobs at once");
        check(|seen, _| seen.came_us.truncate(1), "in hand: the demo ended before it");
        check(
            |_, taken| taken[9].asked_us = (6_000_000, 6_001_000),
            "in hand: b: a worker took a job while all were away",
        );
        check(|seen, _| seen.buckets[0].longest_over = Duration::from_millis(51), "bound: b: over capacity for 51 ms");
        check(|seen, _| seen.recorded.clear(), "broken: bound: b: 2 told rejected, 0 recorded");
        check(|_, taken| taken[9].number = 8, "order: b: a job overtook another; nothing lost: b: 10 accepted");
        check(|seen, _| seen.buckets[0].depth = 1, "broken: nothing lost: b: 10 accepted, 10 out, 1 wait");
    }

    #[test]
    fn a_pause_after_the_kill_is_found_wherever_it_is_and_nothing_waiting_is_no_excuse() {
        let late = |from: usize, us| {
            move |_: &mut Seen, taken: &mut [Taken]| {
                for job in &mut taken[from..] {
                    job.at_us += us;
                }
            }
        };
        check(late(3, 101_000), "broken: kill -9: b: no job for 301.0 ms");
        check(late(1, 500_000), "broken: kill -9: b: no job for 700.0 ms");
        check(|seen, _| seen.buckets[0].depth_at_kill = 1, "kill -9: b: nothing waited in it, so nothing was measured");
        check(|seen, _| seen.came_us.truncate(2), "broken: kill -9: the demo ended before it");
    }
}
