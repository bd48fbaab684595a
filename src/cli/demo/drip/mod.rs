//! The main job: three buckets at different rates, bursts of plain pushes, and workers that take what has dripped out. Halfway one of
//! two daemons is killed with kill -9, and before that all workers stop for three seconds in the middle of the load and come back.

mod lines;
mod picture;
mod seen;
mod verdict;

use std::time::{Duration, Instant};

use self::lines::Lines;
use self::seen::{Kill, Seen};
use super::bucket::now_us;
use super::load::Load;
use super::probe::Probe;
use super::report::Report;
use super::stage::Stage;
use super::{View, ticks};
use crate::cli::Failure;

/// A bucket of the demo, and what is pushed into it.
struct Planned {
    name: &'static str,
    rate: &'static str,
    capacity: u32,
    /// When, in milliseconds after the start, and how many jobs.
    pushes: &'static [(u64, u64)],
}

/// Each holds four seconds of jobs, and none becomes empty before the last burst: the pace out has no reason to change.
const BUCKETS: [Planned; 3] = [
    Planned {
        name: "mail",
        rate: "2/s",
        capacity: 8,
        pushes: &[(100, 10), (3_200, 6), (8_600, 6), (11_300, 5), (13_500, 7)],
    },
    Planned {
        name: "sms",
        rate: "20/s",
        capacity: 80,
        pushes: &[(300, 100), (1_900, 40), (7_900, 90), (9_600, 40), (11_100, 60), (13_300, 60)],
    },
    Planned {
        name: "webhook",
        rate: "200/s",
        capacity: 800,
        pushes: &[(0, 1_000), (2_300, 300), (7_200, 700), (9_300, 500), (11_500, 650), (13_400, 600)],
    },
];

/// When the workers stop, and when they come back. Nothing is pushed meanwhile.
const AWAY_FROM: Duration = Duration::from_millis(3_500);
const AWAY_UNTIL: Duration = Duration::from_millis(6_500);

/// When the first daemon is killed.
const KILL_AT: Duration = Duration::from_secs(10);

/// When all should be out, and when the demo ends whatever happens.
const LASTS: Duration = Duration::from_millis(17_600);
const ENDS_AT: Duration = Duration::from_secs(20);

/// When the last burst comes.
fn last_push() -> Duration {
    let times = BUCKETS.iter().flat_map(|bucket| bucket.pushes).map(|(ms, _)| *ms);
    Duration::from_millis(times.max().unwrap_or_default())
}

/// The policies of the buckets.
pub(super) fn policies() -> String {
    let policy = |planned: &Planned| {
        let Planned { name, rate, capacity, .. } = planned;
        format!("[[bucket]]\nmatch = \"{name}\"\nrate = \"{rate}\"\ncapacity = {capacity}\n")
    };
    BUCKETS.iter().map(policy).collect()
}

/// The course of the demo: the plan by the clock, and what comes of it.
pub(super) async fn play(stage: &mut Stage, view: &mut View) -> Result<Report, Failure> {
    let (mut seen, mut lines) = (Seen::new(&BUCKETS), Lines::new());
    let mut show = |seen: &Seen| view.show(|frame| picture::draw(frame, seen), || lines.show(seen));
    show(&seen)?;
    let store = stage.start(2).await?;
    let mut load = Load::start(stage, store);
    let probe = Probe::start()?;
    seen.running = stage.processes();
    seen.start_us = now_us();
    let start = Instant::now();
    let mut plan: Vec<_> = BUCKETS.iter().map(|planned| planned.pushes.iter().peekable()).collect();
    let mut tick = ticks();
    loop {
        tokio::select! {
            told = load.next() => drop(told?.note(&mut seen.buckets)),
            _ = tick.tick() => {
                while let Some(told) = load.at_hand() {
                    told.note(&mut seen.buckets);
                }
                for (bucket, plan) in seen.buckets.iter_mut().zip(&mut plan) {
                    while let Some((_, jobs)) = plan.next_if(|(ms, _)| start.elapsed() >= Duration::from_millis(*ms)) {
                        load.push(bucket, *jobs).await?;
                    }
                }
                load.watch(&mut seen.buckets).await?;
                if seen.away.is_none() && start.elapsed() >= AWAY_FROM {
                    load.send_away(true);
                    seen.away = Some((now_us(), None));
                }
                if let Some((_, back @ None)) = &mut seen.away && start.elapsed() >= AWAY_UNTIL {
                    *back = Some(now_us());
                    load.send_away(false);
                }
                if seen.killed.is_none() && start.elapsed() >= KILL_AT {
                    let depths = seen.buckets.iter().map(|bucket| bucket.depth).collect();
                    let (at_us, process) = (now_us(), seen.running[0].1);
                    stage.kill_first()?;
                    seen.killed = Some(Kill { at_us, process, depths });
                    seen.running = stage.processes();
                }
                stage.check()?;
                show(&seen)?;
                let pushed = plan.iter_mut().all(|plan| plan.peek().is_none());
                if (pushed && seen.all_is_out()) || start.elapsed() >= ENDS_AT { break }
            }
        }
    }
    let took = start.elapsed();
    let recorded = load.end(&mut seen.buckets).await?;
    Ok(verdict::report(&seen, &recorded, &probe.end(), took))
}
