//! Budgets: a provider that takes 60 jobs a second, and three accounts that share it. Two of them want more than there is; into one of
//! these a flood is pushed; then the provider answers 429 and everybody waits.

mod lines;
mod picture;
mod seen;
mod verdict;

use std::time::{Duration, Instant};

use self::lines::Lines;
use self::seen::Seen;
use super::bucket::{Bucket, now_us};
use super::load::Load;
use super::probe::Probe;
use super::report::Report;
use super::stage::Stage;
use super::{View, ticks};
use crate::cli::Failure;
use crate::model::bucket::BucketName;
use crate::store::jobs::work::Throttled;

/// What is in force. The catch-up is said, so that the demo knows what it may hold the rates to.
pub(super) const POLICIES: &str = r#"
[[budget]]
match = "provider"
rate = "60/s"
catch_up = "50ms"
[[bucket]]
match = "*"
rate = "50/s"
capacity = 5000
catch_up = "50ms"
within = "provider"
"#;

/// The rate of the provider, and what each account may do for itself, as in [`POLICIES`].
const PROVIDER_RATE: &str = "60/s";
const ACCOUNT_RATE: &str = "50/s";
const CATCH_UP_US: u64 = 50_000;
const CAPACITY: u32 = 5_000;

/// An account, and how many jobs a second are pushed into it. Together they want more than the provider takes.
const ACCOUNTS: [(&str, u32); 3] = [("acme", 30), ("birch", 30), ("cedar", 10)];

/// The account that gets the flood, and the one that asks for less than its share.
const FLOODED: usize = 0;
const MODEST: usize = 2;

const FLOOD: u64 = 1_000;
const FLOOD_AT: Duration = Duration::from_secs(4);

/// When the provider refuses a job, and what it says of when to come back.
const REFUSES_AT: Duration = Duration::from_secs(8);
const RETRY_AFTER: Duration = Duration::from_secs(2);

const LASTS: Duration = Duration::from_secs(14);

/// At the end the provider is closed for so long, and what is under way then may take this time to arrive.
const SETTLES_IN: Duration = Duration::from_secs(3);

/// So many jobs are pushed into an account at the start, so that two of them have more than they may from the first moment.
const AT_FIRST: u64 = 20;

/// How many jobs should have been pushed into an account after some time.
fn planned(account: usize, after: Duration) -> u64 {
    let steadily = (f64::from(ACCOUNTS[account].1) * after.as_secs_f64()) as u64;
    let at_first = if account == MODEST { 1 } else { AT_FIRST };
    let flood = if account == FLOODED && after >= FLOOD_AT { FLOOD } else { 0 };
    at_first + steadily + flood
}

/// The course of the demo: the plan by the clock, and what comes of it.
pub(super) async fn play(stage: &mut Stage, view: &mut View) -> Result<Report, Failure> {
    let (mut seen, mut lines) = (Seen::new(), Lines::new());
    let mut show = |seen: &Seen| view.show(|frame| picture::draw(frame, seen), || lines.show(seen));
    show(&seen)?;
    let store = stage.start(1).await?;
    let mut load = Load::start(stage, store);
    let probe = Probe::start()?;
    (seen.start_us, seen.has_begun) = (now_us(), true);
    let provider: BucketName = "provider".parse().expect("a good name");
    let (start, mut tick, mut has_refused, mut has_closed) = (Instant::now(), ticks(), false, false);
    loop {
        tokio::select! {
            told = load.next() => seen.note(told?),
            _ = tick.tick() => {
                while let Some(told) = load.at_hand() {
                    seen.note(told);
                }
                let after = start.elapsed().min(LASTS);
                for (n, account) in seen.accounts.iter_mut().enumerate() {
                    let jobs = planned(n, after) - account.pushed;
                    if jobs > 0 {
                        load.push(account, jobs).await?;
                    }
                }
                if after >= FLOOD_AT {
                    seen.flood_us.get_or_insert_with(now_us);
                }
                if after >= REFUSES_AT && !has_refused {
                    has_refused = true;
                    load.refuse(Throttled { retry_after: Some(RETRY_AFTER), budget: Some(provider.clone()) });
                }
                if after >= LASTS && !has_closed {
                    has_closed = true;
                    load.close(&provider, 2 * SETTLES_IN).await?;
                }
                load.watch(&mut seen.accounts).await?;
                stage.check()?;
                show(&seen)?;
                // The flood waits on: what counts is that each job is out or waits, and none is under way between the two.
                let is_settled = seen.accounts.iter().all(Bucket::is_settled);
                if has_closed && (is_settled || start.elapsed() >= LASTS + SETTLES_IN) { break }
            }
        }
    }
    Ok(verdict::report(&seen, &probe.end(), start.elapsed()))
}
