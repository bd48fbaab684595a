//! The verdict: the provider's rate, the shares, the flood, the 429, and that nothing is lost.

use std::time::Duration;

use super::seen::{Seen, waited_us};
use super::{CATCH_UP_US, FLOODED, MODEST, PROVIDER_RATE};
use crate::cli::demo::bucket::Bucket;
use crate::cli::demo::probe::Stalls;
use crate::cli::demo::report::{Report, Verdict};
use crate::cli::demo::window::broken_window;
use crate::model::rate::Rate;

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

/// What became of each promise, and the figures.
pub(super) fn report(seen: &Seen, stalls: &Stalls, took: Duration) -> Report {
    let (stalled, mut figures) = (stalls.longest_of_all(), String::new());
    for account in &seen.accounts {
        let (pushed, out) = (account.pushed, account.taken.len());
        figures += &format!("{}: {pushed} pushed, {out} out, {} wait\n", account.name.as_str(), account.depth);
    }
    let verdicts = vec![rate(seen), shares(seen), flood(seen, stalled), slow_down(seen, stalled), nothing_lost(seen)];
    Report { took, stalled, figures, verdicts }
}

fn provider_rate() -> Rate {
    Rate::parse(PROVIDER_RATE).expect("a good rate")
}

/// Promise 1, of the provider and of each account: the job that was refused left, too.
fn rate(seen: &Seen) -> Verdict {
    let refused = |account: Option<&Bucket>| -> Option<u64> {
        let (name, refused) = seen.refused.as_ref()?;
        account.is_none_or(|account| account.name == *name).then_some(refused.left_us)
    };
    let mut broken = Vec::new();
    let mut check = |name: &str, mut times: Vec<u64>, rate| {
        times.sort_unstable();
        if let Some(width) = broken_window(&times, rate, CATCH_UP_US) {
            broken.push(format!("{name}: too many jobs left within {:.3} ms", width as f64 / 1e3));
        }
    };
    let of = |account: &Bucket| account.taken.iter().map(|job| job.at_us).collect::<Vec<_>>();
    check("provider", seen.accounts.iter().flat_map(of).chain(refused(None)).collect(), provider_rate());
    for account in &seen.accounts {
        check(account.name.as_str(), of(account).into_iter().chain(refused(Some(account))).collect(), account.rate);
    }
    let found = if broken.is_empty() { "nobody was too fast" } else { "somebody was too fast" };
    Verdict { promise: "rate", found: found.to_owned(), broken }
}

/// The times in which everybody could go and two accounts wanted more than there was: before the provider refused, and after.
fn saturated(seen: &Seen) -> Vec<(u64, u64)> {
    let last = seen.accounts.iter().filter_map(|account| account.taken.last()).map(|job| job.at_us).max();
    let (begins, end) = (seen.start_us + SETTLES_US, last.unwrap_or(seen.start_us));
    let times = match seen.closed_us() {
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
    let each: Vec<f64> = seen.accounts.iter().map(jobs).collect();
    let (all, asked) = (each.iter().sum::<f64>(), each[MODEST]);
    let expected = provider_rate().per_second() * seconds;
    let is_off =
        |jobs: f64, expected: f64| (jobs - expected).abs() > expected * SHARE_OFF + SHARE_OFF_JOBS * times.len() as f64;
    let mut broken = Vec::new();
    if is_off(all, expected) {
        broken.push(format!("the provider took {all} jobs instead of {expected:.0}"));
    }
    for (n, account) in seen.accounts.iter().enumerate().filter(|(n, _)| *n != MODEST) {
        let share = (all - asked) / (seen.accounts.len() - 1) as f64;
        if is_off(each[n], share) {
            broken.push(format!("{}: {} jobs instead of {share:.0}", account.name.as_str(), each[n]));
        }
    }
    let found: Vec<_> = each.iter().map(|jobs| format!("{:.1}", jobs / seconds.max(1e-9))).collect();
    Verdict { promise: "shares", found: format!("{}/s", found.join(", ")), broken }
}

/// The longest wait of an account's jobs that were pushed in some time, in microseconds.
fn longest_wait(account: &Bucket, from_us: u64, to_us: u64) -> Option<u64> {
    let pushed_then = |number| account.pushed_us(number).is_some_and(|at| (from_us..to_us).contains(&at));
    account.taken.iter().filter(|job| pushed_then(job.number)).filter_map(|job| waited_us(account, job)).max()
}

/// Who asks for less than its share does not wait longer for somebody else's flood.
fn flood(seen: &Seen, stalled: Duration) -> Verdict {
    let (modest, flooded) = (&seen.accounts[MODEST], &seen.accounts[FLOODED]);
    let verdict = |found: String, broken| Verdict { promise: "flood", found, broken };
    let until = seen.closed_us().map_or(u64::MAX, |(from, _)| from.saturating_sub(2 * SETTLES_US));
    let measured = seen.flood_us.and_then(|at| {
        let before = longest_wait(modest, seen.start_us + SETTLES_US, at)?;
        Some((before, longest_wait(modest, at, until)?))
    });
    let Some((before, after)) = measured else {
        return verdict("there was none".to_owned(), vec!["the demo ended before it".to_owned()]);
    };
    let name = modest.name.as_str();
    let (before_ms, after_ms) = (before as f64 / 1e3, after as f64 / 1e3);
    let mut broken = Vec::new();
    if u128::from(after) > (MODEST_WAITS + stalled).as_micros() {
        broken.push(format!("{name} waited {after_ms:.0} ms while {} was flooded", flooded.name.as_str()));
    }
    verdict(format!("{name} waits {before_ms:.0}, {after_ms:.0} ms"), broken)
}

/// Nothing leaves before the provider said, and then it goes on at once.
fn slow_down(seen: &Seen, stalled: Duration) -> Verdict {
    let verdict = |found: String, broken| Verdict { promise: "429", found, broken };
    let (Some((from, until)), Some(open)) = (seen.closed_us(), seen.open_us()) else {
        return verdict("there was none".to_owned(), vec!["the demo ended before it".to_owned()]);
    };
    let mut broken = Vec::new();
    let early = seen.left_between(from + ID_US, until.saturating_sub(ID_US));
    if early > 0 {
        broken.push(format!("{early} jobs left before they should"));
    }
    let first = seen.accounts.iter().filter_map(|account| {
        account.taken_between(until.saturating_sub(ID_US), u64::MAX).first().map(|job| job.at_us)
    });
    let late = first.min().map(|at| at.saturating_sub(open));
    match late {
        Some(us) if u128::from(us) <= (GOES_ON_WITHIN + stalled).as_micros() => {}
        Some(us) => broken.push(format!("the first job after it came {} ms late", us / 1_000)),
        None => broken.push("nothing left after it".to_owned()),
    }
    let late = late.map_or("never".to_owned(), |us| format!("{:.1} ms late", us as f64 / 1e3));
    verdict(format!("{early} early, then {late}"), broken)
}

/// Every accepted job is out, once, or waits.
fn nothing_lost(seen: &Seen) -> Verdict {
    let (mut broken, mut accepted, mut out) = (Vec::new(), 0, 0);
    for account in &seen.accounts {
        let mut took: Vec<u64> = account.taken.iter().map(|job| job.number).collect();
        took.sort_unstable();
        took.dedup();
        if took.len() != account.taken.len() || !account.is_settled() {
            let (name, out) = (account.name.as_str(), account.taken.len());
            broken.push(format!("{name}: {} accepted, {out} out, {} wait", account.accepted.len(), account.depth));
        }
        (accepted, out) = (accepted + account.accepted.len(), out + account.taken.len());
    }
    Verdict { promise: "nothing lost", found: format!("{out} of {accepted} out"), broken }
}

#[cfg(test)]
mod tests {
    use super::super::{ACCOUNTS, FLOOD, RETRY_AFTER};
    use super::*;
    use crate::cli::demo::bucket::Taken;
    use crate::cli::demo::load::Refused;

    const S: u64 = 1_000_000;

    /// Twelve seconds: a flood at 4 s, a 429 at 8 s. Of twelve slots of the provider five are the flooded account's, five another's, and
    /// two belong to the one that asks for less.
    fn seen() -> Seen {
        let mut seen = Seen::new();
        seen.start_us = S;
        (seen.flood_us, seen.has_begun) = (Some(5 * S), true);
        for account in &mut seen.accounts {
            account.pushed(S, 400, 400);
        }
        seen.accounts[FLOODED].pushed(5 * S, FLOOD, 400 + FLOOD);
        let until = 9 * S + RETRY_AFTER.as_micros() as u64;
        let refused = Refused { left_us: 9 * S - 1_000, told_us: (9 * S, 9 * S) };
        seen.refused = Some((seen.accounts[0].name.clone(), refused));
        let (mut at_us, mut n) = (S, 0);
        while at_us < 14 * S {
            let account = &mut seen.accounts[[0, 1, 0, 1, 0, 1, 2, 0, 1, 0, 1, 2][n % 12]];
            let number = account.taken.len() as u64;
            account.taken.push(Taken { number, due_us: at_us, at_us, handed_us: (at_us, at_us) });
            (at_us, n) = (at_us + 16_667, n + 1);
            if (9 * S - 20_000..until).contains(&at_us) {
                at_us = until;
            }
        }
        // Who asks for less than its share pushes each job a moment before it leaves.
        let modest = &mut seen.accounts[MODEST];
        let times: Vec<u64> = modest.taken.iter().map(|job| job.at_us).collect();
        *modest = Bucket::new(ACCOUNTS[MODEST].0, "50/s", 5_000);
        for (n, at_us) in times.iter().enumerate() {
            modest.pushed(at_us - 30_000, 1, 1);
            modest.taken.push(Taken { number: n as u64, due_us: *at_us, at_us: *at_us, handed_us: (*at_us, *at_us) });
        }
        for account in &mut seen.accounts {
            account.depth = account.accepted.len() as u64 - account.taken.len() as u64;
        }
        seen
    }

    fn broken(seen: &Seen) -> Option<String> {
        report(seen, &Stalls::default(), Duration::from_secs(13)).broken()
    }

    #[test]
    fn promises_that_were_kept_are_said_in_lines_of_forty_columns() {
        let report = report(&seen(), &Stalls::default(), Duration::from_secs(13));
        assert_eq!(report.broken(), None);
        let text = report.text(false);
        assert!(text.contains("shares: 25.0, 25.") && text.contains("all promises kept"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn each_broken_promise_is_found() {
        let is = |seen: &Seen, what: &str| {
            let broken = broken(seen).expect("a promise was broken");
            assert!(broken.contains(what), "{what}: {broken}");
        };
        let mut fast = seen();
        let jobs: Vec<Taken> = fast.accounts[1].taken[60..70].to_vec();
        fast.accounts[1].taken[60..70].iter_mut().for_each(|job| job.at_us = jobs[0].at_us);
        is(&fast, "rate: provider: too many jobs left within");
        let mut unfair = seen();
        let moved: Vec<Taken> = unfair.accounts[1].taken.drain(100..130).collect();
        unfair.accounts[0].taken.extend(moved);
        unfair.accounts[0].taken.sort_by_key(|job| job.at_us);
        is(&unfair, "shares: acme: ");
        let mut lazy = seen();
        lazy.accounts.iter_mut().for_each(|account| account.taken.retain(|job| job.number % 10 > 0));
        is(&lazy, "shares: the provider took ");
        let mut flooded = seen();
        flooded.accounts[MODEST].pushes[50].at_us -= 500_000;
        is(&flooded, "flood: cedar waited 530 ms while acme was flooded");
        let mut early = seen();
        early.accounts[1].taken.iter_mut().find(|job| job.at_us > 10 * S).expect("one").at_us = 10 * S;
        is(&early, "429: 1 jobs left before they should");
        let mut late = seen();
        late.accounts
            .iter_mut()
            .flat_map(|account| &mut account.taken)
            .filter(|job| job.at_us > 10 * S)
            .for_each(|job| job.at_us += 101_000);
        is(&late, "429: the first job after it came 101 ms late");
        let mut lost = seen();
        lost.accounts[0].taken.pop();
        is(&lost, "nothing lost: acme: ");
        let mut none = seen();
        (none.refused, none.flood_us) = (None, None);
        is(&none, "429: the demo ended before it");
        is(&none, "flood: the demo ended before it");
    }
}
