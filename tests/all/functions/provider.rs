//! A provider that takes 100 jobs in any second and 1,000 in any ten, and turns away what is more, with or without saying when to come
//! back. The clock is passed in: it is a simulation of the provider, on the real functions.

use std::collections::VecDeque;

use crate::rig::{Case, Entry, MS, S, T0};

use super::flow::audit;

/// How long a job takes to the provider, and its answer back.
const WAY: u64 = 30 * MS;

const SECONDS: u64 = 240;

/// What it takes: so many in so long, whichever way one looks.
const LIMITS: [(usize, u64); 2] = [(100, S), (1_000, 10 * S)];

/// What became of the jobs.
#[derive(Debug, Default)]
struct Provider {
    /// When those came that were taken, the last thousand.
    taken: VecDeque<u64>,
    accepted: u64,
    refused: u64,
}

impl Provider {
    /// `Err` is for how long the door is closed.
    fn asked(&mut self, now: u64) -> Result<(), u64> {
        let opens = |(most, period): (usize, u64)| {
            let oldest = self.taken.len().checked_sub(most).map(|n| self.taken[n])?;
            (oldest + period > now).then(|| oldest + period - now)
        };
        if let Some(wait) = LIMITS.into_iter().filter_map(opens).max() {
            self.refused += 1;
            return Err(wait);
        }
        self.accepted += 1;
        self.taken.push_back(now);
        if self.taken.len() > 1_000 {
            self.taken.pop_front();
        }
        Ok(())
    }
}

/// Keep a bucket of this rate full, with as many workers as it takes, for some minutes. `says` makes the Retry-After of how long the
/// door is closed.
fn simulate(rate: &str, slow: &str, says: fn(u64) -> Option<u64>) -> Provider {
    let mut case = Case::with(&format!(
        "[defaults]\nrate = '{rate}'\ncapacity = 100000\nslow = {slow}\n[limits]\nmax_ready = 100000\n"
    ));
    let (mut provider, mut now, end) = (Provider::default(), T0, T0 + SECONDS * S);
    let (mut coming, mut answers) = (VecDeque::<(u64, Entry)>::new(), VecDeque::new());
    let (mut next_due, mut done) = (T0, Vec::new());
    let mut filled = 0;
    while now < end {
        if filled < 2_000 {
            case.push_at(now, "a", &["x"; 1_000]);
            filled += 1_000;
        }
        if now >= next_due {
            let drained = case.settle_at(now);
            next_due = if drained.wait_us < 0 { end } else { now + drained.wait_us as u64 };
            if drained.dispatched > 0 {
                filled -= drained.dispatched;
                coming.extend(case.take("ready", 1_000).into_iter().map(|entry| (now + WAY, entry)));
            }
        }
        while coming.front().is_some_and(|(at, _)| *at <= now) {
            let (at, entry) = coming.pop_front().expect("there is one");
            answers.push_back((at + WAY, entry, provider.asked(at)));
        }
        while answers.front().is_some_and(|(at, ..)| *at <= now) {
            let (at, entry, answer) = answers.pop_front().expect("there is one");
            match answer {
                Ok(()) => done.push(entry.id),
                Err(wait) => {
                    let mut args = vec![at.to_string(), entry.id, "THROTTLED".to_owned()];
                    if let Some(ms) = says(wait) {
                        args.extend(["RETRY_AFTER".to_owned(), ms.to_string()]);
                    }
                    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
                    filled += 1;
                    next_due = now; // the wake key was written
                }
            }
        }
        if done.len() >= 50 {
            let args: Vec<String> = [now.to_string()].into_iter().chain(done.drain(..)).collect();
            case.fcall::<i64>("drip__ack", &["ready"], &args);
        }
        let events = [coming.front().map(|one| one.0), answers.front().map(|one| one.0), Some(next_due)];
        now = events.into_iter().flatten().min().expect("the end is one").max(now);
    }
    audit(&mut case);
    provider
}

const IN_WHOLE_SECONDS: fn(u64) -> Option<u64> = |wait| Some(wait.div_ceil(S) * 1_000);
const SILENT: fn(u64) -> Option<u64> = |_| None;

#[test]
fn at_the_right_rate_nothing_is_turned_away() {
    let provider = simulate("100/s", "{}", SILENT);
    assert_eq!(provider.refused, 0);
    assert!(provider.accepted >= SECONDS * 100 - 10, "{}", provider.accepted);
}

#[track_caller]
fn check(provider: &Provider) {
    let (accepted, refused) = (provider.accepted as f64, provider.refused as f64);
    let (share, throughput) = (refused / (accepted + refused), accepted / (SECONDS * 100) as f64);
    let told = format!("{:.2} % refused, {:.1} % of what is allowed", share * 100.0, throughput * 100.0);
    println!("{told}");
    assert!(share < 0.01 && throughput > 0.9, "{told}");
}

#[test]
fn an_adaptive_rate_that_is_set_too_high_finds_what_is_allowed_where_nobody_says_it() {
    check(&simulate("120/s", "{ adaptive = true }", SILENT));
}

#[test]
fn it_finds_it_where_retry_after_says_when_to_come_back() {
    check(&simulate("120/s", "{ adaptive = true }", IN_WHOLE_SECONDS));
}
