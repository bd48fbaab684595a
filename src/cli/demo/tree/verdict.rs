//! The verdict: the provider's rate, the shares, the flood, the 429, and that nothing is lost.

use std::time::Duration;

use super::seen::{Seen, waited_us};
use super::{CATCH_UP_US, FLOODED, MODEST, PROVIDER_RATE};
use crate::cli::demo::bucket::Bucket;
use crate::cli::demo::probe::Stalls;
use crate::cli::demo::report::{Report, Verdict};
use crate::cli::demo::window::broken_window;
use crate::words::rate::Rate;

/// How long the first shares, and those after a pause, take to settle.
const SETTLES_US: u64 = 500_000;

/// How far a share may be off, in parts of it, and in jobs besides: a count has an edge at both ends.
const SHARE_OFF: f64 = 0.03;
const SHARE_OFF_JOBS: f64 = 2.0;

/// A job of the account that asks for less than its share may wait for one job of each of the others, which is two intervals of the
/// provider, and for the machine.
const MODEST_WAITS: Duration = Duration::from_millis(150);

/// What a job may have been under way when Redis was told to stop, and how late the first one after the pause may be.
const UNDER_WAY_US: u64 = 20_000;
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
        Some((from, until)) => vec![(begins, from.saturating_sub(UNDER_WAY_US)), (until + SETTLES_US, end)],
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
    Verdict { promise: "shares", found: format!("{} a second", found.join(", ")), broken }
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
    verdict(format!("{name} waits {before_ms:.0}, then {after_ms:.0} ms"), broken)
}

/// Nothing leaves before the provider said, and then it goes on at once.
fn slow_down(seen: &Seen, stalled: Duration) -> Verdict {
    let verdict = |found: String, broken| Verdict { promise: "429", found, broken };
    let Some((from, until)) = seen.closed_us() else {
        return verdict("there was none".to_owned(), vec!["the demo ended before it".to_owned()]);
    };
    let mut broken = Vec::new();
    // The pause began when Redis was told, which was a moment before this was known.
    let early = seen.left_between(from + UNDER_WAY_US, until.saturating_sub(UNDER_WAY_US));
    if early > 0 {
        broken.push(format!("{early} jobs left before they should"));
    }
    let first = seen.accounts.iter().filter_map(|account| {
        account.taken_between(until.saturating_sub(UNDER_WAY_US), u64::MAX).first().map(|job| job.at_us)
    });
    let late = first.min().map(|at| at.saturating_sub(until));
    match late {
        Some(us) if u128::from(us) <= (GOES_ON_WITHIN + stalled).as_micros() => {}
        Some(us) => broken.push(format!("the first job after it came {} ms late", us / 1_000)),
        None => broken.push("nothing left after it".to_owned()),
    }
    let late = late.map_or("never".to_owned(), |us| format!("{:.1} ms late", us as f64 / 1e3));
    verdict(format!("{early} left early, then {late}"), broken)
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
