//! Budgets: a provider that takes 60 jobs a second, and three accounts that share it. Two of them want more than there is; into one of
//! these a flood is pushed; then the provider answers 429 and everybody waits.

use std::time::Duration;

use ratatui::style::Stylize as _;
use ratatui::text::Line;

use super::Script;
use super::bucket::{Bucket, Taken};
use super::picture::{Look, OUT, Row, WAITING};
use super::plan::{Event, Plan};
use super::seen::Seen;
use super::verdict::{self, Verdict, of_each};

pub(super) static SCRIPT: Script =
    Script { plan: PLAN, look: Look { rows, fill: |_, words| words.to_owned() }, figures, verdicts };

const PLAN: Plan = Plan {
    title: "dripd demo tree: three accounts share a provider",
    starting: "Starting a daemon and a Redis, which end with the demo.",
    legend: "acme and birch push 30 jobs a second, cedar 10; for the provider and each:\n\
             jobs out a second, jobs that wait, and the longest wait of those that left",
    daemons: 1,
    buckets: &[("acme", "50/s", 5_000), ("birch", "50/s", 5_000), ("cedar", "50/s", 5_000)],
    budget: Some(("provider", "60/s")),
    catch_up: Duration::from_millis(50),
    pushed_by,
    events: &[
        (FLOOD_AT_MS, Event::Flood, "1000 jobs at once are pushed for acme"),
        (8_000, Event::Refuse(RETRY_AFTER_S), "the provider answers 429 to a job, Retry-After: 2"),
        (LASTS_MS, Event::Close, "the provider takes nothing more: what still waits stays in its bucket"),
    ],
    captions: &[
        (
            0,
            "Together they want more than the provider takes, so it is shared fairly.",
            "Who asks for less than its share gets it at once; the others share the rest.",
        ),
        (
            FLOOD_AT_MS,
            "1000 jobs at once for acme: they wait their turn, the others keep theirs.",
            "A flood costs nobody but the one who pushed it.",
        ),
        (
            8_000,
            "The provider answered 429, Retry-After: 2. Nobody asks it before that.",
            "One answer, one pause, for every worker and every account under it.",
        ),
        (
            10_100,
            "The pause is over: it goes on at the same pace, without a burst.",
            "The job that was refused went out first, and its attempt did not count.",
        ),
    ],
    lasts_ms: LASTS_MS,
    ends_by_ms: LASTS_MS + 3_000,
};

const LASTS_MS: u64 = 14_000;

/// How many jobs a second are pushed into each account, and how many at the start, so that two of them have more than they may from the
/// first moment. Together they want more than the provider takes.
const PUSHED: [u64; 3] = [30, 30, 10];
const AT_FIRST: [u64; 3] = [20, 20, 1];

/// The account that gets the flood, and the one that asks for less than its share.
const FLOODED: usize = 0;
const MODEST: usize = 2;

const FLOOD: u64 = 1_000;
const FLOOD_AT_MS: u64 = 4_000;

/// What the provider says of when to come back, in seconds.
const RETRY_AFTER_S: u64 = 2;

/// How long the first shares, and those after a pause, take to settle.
const SETTLES_US: u64 = 500_000;

/// How far a share may be off, in parts of it, and in jobs besides: a count has an edge at both ends.
const SHARE_OFF: f64 = 0.03;
const SHARE_OFF_JOBS: f64 = 2.0;

/// A job of the account that asks for less than its share may wait for one job of each of the others, which is two intervals of the
/// provider, and for the machine, which may be busy. Behind the flood it would wait for sixteen seconds.
const MODEST_WAITS: Duration = Duration::from_millis(500);

/// What Redis may take to hear that it is to stop: the shares are measured up to then.
const TOLD_WITHIN_US: u64 = 20_000;

/// An entry names the millisecond in which it was made, rounded down.
const ID_US: u64 = 1_000;

/// How late the first job after the pause may be.
const GOES_ON_WITHIN: Duration = Duration::from_millis(100);

fn pushed_by(account: usize, ms: u64) -> u64 {
    let flood = if account == FLOODED && ms >= FLOOD_AT_MS { FLOOD } else { 0 };
    AT_FIRST[account] + PUSHED[account] * ms.min(LASTS_MS) / 1_000 + flood
}

fn rows(seen: &Seen, shown_us: u64) -> Vec<Row<'_>> {
    let provider = provider(seen);
    let depth = seen.buckets.iter().map(|account| account.depth).sum();
    let mut rows = vec![row(provider, depth, shown_us, format!("; it takes {}", provider.rate))];
    for (account, pushed) in seen.buckets.iter().zip(PUSHED) {
        rows.push(row(account, account.depth, shown_us, format!("; {pushed}/s are pushed")));
    }
    rows
}

/// Of the provider or an account: what left in the last second, and how many wait.
fn row(bucket: &Bucket, depth: u64, shown_us: u64, more: String) -> Row<'_> {
    let jobs = bucket.taken_between(shown_us - 1_000_000, shown_us);
    let (out, wait) = (jobs.len(), longest_wait_us(bucket, jobs).map(|us| format!("{:.2} s", us as f64 / 1e6)));
    let mut head = vec![format!("{out}/s out").bold().fg(OUT), format!(", {depth} wait").fg(WAITING), more.into()];
    head.extend(wait.as_ref().map(|wait| format!(", they wait up to {wait}").into()));
    let cell = format!("{out}/s {depth} {}", wait.unwrap_or_default());
    Row { bucket, cell, head: Line::from(head), figures: None }
}

/// The longest wait of some jobs of an account.
fn longest_wait_us<'a>(account: &Bucket, jobs: impl IntoIterator<Item = &'a Taken>) -> Option<u64> {
    jobs.into_iter().filter_map(|job| account.waited_us(job)).max()
}

fn figures(seen: &Seen) -> String {
    let figures = |account: &Bucket| {
        let (name, out) = (account.name.as_str(), account.taken.len());
        format!("{name}: {} pushed, {out} out, {} wait\n", account.pushed(), account.depth)
    };
    seen.buckets.iter().map(figures).collect()
}

fn verdicts(seen: &Seen) -> Vec<Verdict> {
    vec![verdict::rate(seen), shares(seen), flood(seen), slow_down(seen), verdict::nothing_lost(seen)]
}

fn provider(seen: &Seen) -> &Bucket {
    seen.budget.as_ref().expect("the plan has one")
}

/// From when to when nothing may leave, because the provider said so: what is sure of it.
fn closed_us(seen: &Seen) -> Option<(u64, u64)> {
    let (asked, answered) = provider(seen).refused.first()?.asked_us;
    Some((answered, asked + RETRY_AFTER_S * 1_000_000))
}

/// The times in which everybody could go and two accounts wanted more than there was: before the provider refused, and after.
fn saturated(seen: &Seen) -> Vec<(u64, u64)> {
    let begins = seen.start_us + SETTLES_US;
    let end = provider(seen).taken.last().map_or(seen.start_us, |job| job.at_us);
    let times = match closed_us(seen) {
        None => vec![(begins, end)],
        Some((from, until)) => vec![(begins, from.saturating_sub(TOLD_WITHIN_US)), (until + SETTLES_US, end)],
    };
    times.into_iter().filter(|(from, to)| from < to).collect()
}

/// Equal shares for those who want more than there is, all that it asks for to the other, and the provider never idle.
fn shares(seen: &Seen) -> Verdict {
    let times = saturated(seen);
    let seconds: f64 = times.iter().map(|(from, to)| (to - from) as f64 / 1e6).sum();
    let jobs =
        |account: &Bucket| times.iter().map(|(from, to)| account.taken_between(*from, *to).len() as f64).sum::<f64>();
    let stalled = provider(seen).rate.per_second() * seen.stalls.delay_of_all().as_secs_f64();
    let may_be_off = |expected: f64| expected * SHARE_OFF + SHARE_OFF_JOBS * times.len() as f64 + stalled;
    let is_off = |jobs: f64, expected: f64| (jobs - expected).abs() > may_be_off(expected);
    let (all, expected) = (jobs(provider(seen)), provider(seen).rate.per_second() * seconds);
    let share = (all - jobs(&seen.buckets[MODEST])) / 2.0;
    let mut broken = of_each(&seen.buckets[..MODEST], |account| {
        is_off(jobs(account), share).then(|| format!("{} jobs instead of {share:.0}", jobs(account)))
    });
    if is_off(all, expected) {
        broken.push(format!("the provider took {all} jobs instead of {expected:.0}"));
    }
    let found: Vec<_> =
        seen.buckets.iter().map(|account| format!("{:.1}", jobs(account) / seconds.max(1e-9))).collect();
    Verdict::new("shares", format!("{}/s", found.join(", ")), broken)
}

/// Who asks for less than its share does not wait longer for somebody else's flood.
fn flood(seen: &Seen) -> Verdict {
    let (modest, flooded) = (&seen.buckets[MODEST], &seen.buckets[FLOODED]);
    let until = closed_us(seen).map_or(u64::MAX, |(from, _)| from.saturating_sub(2 * SETTLES_US));
    // Of the jobs that were pushed in some time.
    let longest = |from: u64, to: u64| {
        let pushed_us = |job: &Taken| modest.waited_us(job).map_or(0, |waited| job.at_us - waited);
        longest_wait_us(modest, modest.taken.iter().filter(|job| (from..to).contains(&pushed_us(job))))
    };
    let measured =
        seen.when(Event::Flood).and_then(|at| Some((longest(seen.start_us + SETTLES_US, at)?, longest(at, until)?)));
    let Some((before, after)) = measured else { return Verdict::missing("flood", "there was none") };
    let (name, before_ms, after_ms) = (modest.name.as_str(), before as f64 / 1e3, after as f64 / 1e3);
    let mut broken = Vec::new();
    if u128::from(after) > (MODEST_WAITS + seen.stalls.delay_of_all()).as_micros() {
        broken.push(format!("{name} waited {after_ms:.0} ms while {} was flooded", flooded.name.as_str()));
    }
    Verdict::new("flood", format!("{name} waits {before_ms:.0}, {after_ms:.0} ms"), broken)
}

/// Nothing leaves before the provider said, and then it goes on at once.
fn slow_down(seen: &Seen) -> Verdict {
    let Some((from, until)) = closed_us(seen) else { return Verdict::missing("429", "there was none") };
    let (provider, allowed) = (provider(seen), GOES_ON_WITHIN + seen.stalls.delay_of_all());
    let mut broken = Vec::new();
    let early = provider.taken_between(from + ID_US, until - ID_US).len();
    if early > 0 {
        broken.push(format!("{early} jobs left before they should"));
    }
    let first = provider.taken_between(until - ID_US, u64::MAX).first();
    // The refusal itself may have taken a while.
    let late = first.map(|job| job.at_us.saturating_sub(from + RETRY_AFTER_S * 1_000_000));
    match late {
        Some(us) if u128::from(us) <= allowed.as_micros() => {}
        Some(us) => broken.push(format!("the first job after it came {} ms late", us / 1_000)),
        None => broken.push("nothing left after it".to_owned()),
    }
    let late = late.map_or("never".to_owned(), |us| format!("{:.1} ms late", us as f64 / 1e3));
    Verdict::new("429", format!("{early} early, then {late}"), broken)
}

#[cfg(test)]
mod tests {
    use super::super::bucket::tests::took;
    use super::super::seen::WorkerEvent;
    use super::super::verdict::tests::{assert_broken, text_of_kept};
    use super::*;

    const S: u64 = 1_000_000;

    /// Twelve seconds: a flood at 4 s, a 429 at 8 s. Of twelve slots of the provider five are the flooded account's, five another's, and
    /// two belong to the one that asks for less: it pushes each job a moment before it leaves. A change is made to each job.
    fn seen(change: impl Fn(&mut Taken)) -> Seen {
        let mut seen = Seen::new(&SCRIPT.plan);
        (seen.start_us, seen.came_us) = (S, vec![5 * S, 9 * S]);
        seen.buckets[..MODEST].iter_mut().for_each(|account| account.note_push(S, 1_400, 1_400));
        let refused = Taken { asked_us: (9 * S, 9 * S), ..took(0, 9 * S - 1_000) };
        seen.note(&WorkerEvent { bucket: seen.buckets[0].name.clone(), job: refused, is_refused: true });
        for n in 0..660 {
            let account = [0, 1, 0, 1, 0, 1, 2, 0, 1, 0, 1, 2][n % 12];
            let at_us = S + n as u64 * 16_667;
            let at_us = if at_us < 9 * S - 20_000 { at_us } else { at_us + 2 * S + 20_000 };
            if account == MODEST {
                seen.buckets[MODEST].note_push(at_us - 30_000, 1, 1);
            }
            let mut job = took(seen.buckets[account].taken.len() as u64, at_us);
            change(&mut job);
            seen.note(&WorkerEvent { bucket: seen.buckets[account].name.clone(), job, is_refused: false });
        }
        for account in &mut seen.buckets {
            account.depth = account.accepted.len() as u64 - account.taken.len() as u64;
        }
        seen
    }

    #[test]
    fn promises_that_were_kept_are_said_in_lines_of_forty_columns() {
        let seen = seen(|_| {});
        let text = text_of_kept(figures(&seen), verdicts(&seen));
        assert!(text.contains("shares: 24.9, 25.0, 10.1/s"), "{text}");
    }

    #[test]
    fn each_broken_promise_is_found() {
        let check = |change: fn(&mut Taken), what: &str| assert_broken(verdicts(&seen(change)), what);
        check(|job| job.at_us -= (job.at_us % S).saturating_sub(900_000), "rate: provider: too many jobs left within");
        check(|job| job.at_us -= if job.at_us > 11_100_000 { S } else { 0 }, "jobs left before they should");
        check(|job| job.at_us += if job.at_us > 10 * S { 120_000 } else { 0 }, "429: the first job after it came 1");
        let check = |change: fn(&mut Seen), what: &str| {
            let mut seen = seen(|_| {});
            change(&mut seen);
            assert_broken(verdicts(&seen), what);
        };
        check(|seen| drop(seen.buckets[1].taken.drain(100..130)), "shares: birch: ");
        check(
            |seen| drop(seen.budget.as_mut().expect("it has one").taken.drain(100..200)),
            "shares: the provider took ",
        );
        check(
            |seen| seen.buckets[MODEST].pushes[50].at_us -= 500_000,
            "flood: cedar waited 530 ms while acme was flooded",
        );
        check(|seen| seen.buckets[0].depth -= 1, "nothing lost: acme: ");
        check(|seen| seen.came_us.clear(), "flood: the demo ended before it");
        check(|seen| seen.budget.as_mut().expect("it has one").refused.clear(), "429: the demo ended before it");
    }
}
