//! `dripd demo`: the main job before your eyes. Two daemons and a Redis in a throw-away directory, three buckets at
//! different rates, bursts of plain pushes, and workers that take what has dripped out. Halfway one daemon is killed with
//! kill -9. The demo measures what is promised from the outside and fails when a promise was broken.
//!
//! A file a job: the load, the stage (the daemons), what is seen, how it is shown, the verdict.

mod lines;
mod load;
mod picture;
mod probe;
mod seen;
mod stage;
mod verdict;

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::MissedTickBehavior;

use self::lines::Lines;
use self::load::Load;
use self::probe::Probe;
use self::seen::{Kill, Seen, now_us};
use self::stage::Stage;
use super::screen::{Keys, Screen};
use super::{Exit, Failure, say};
use crate::system::signals::{Signal, Signals};

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
        pushes: &[(100, 10), (3_200, 6), (5_600, 6), (8_300, 5), (10_500, 7)],
    },
    Planned {
        name: "sms",
        rate: "20/s",
        capacity: 80,
        pushes: &[(300, 100), (1_900, 40), (4_900, 90), (6_600, 40), (8_100, 60), (10_300, 60)],
    },
    Planned {
        name: "webhook",
        rate: "200/s",
        capacity: 800,
        pushes: &[(0, 1_000), (2_300, 300), (4_200, 700), (6_300, 500), (8_500, 650), (10_400, 600)],
    },
];

/// When the first daemon is killed.
const KILL_AT: Duration = Duration::from_secs(7);

/// When all should be out, and when the demo ends whatever happens.
const LASTS: Duration = Duration::from_millis(14_600);
const ENDS_AT: Duration = Duration::from_secs(17);

const TICK: Duration = Duration::from_millis(100);

/// Show the main job: bursts in, a steady drip out.
#[derive(Debug, Args)]
pub(super) struct Demo {}

/// When the last burst comes.
fn last_push() -> Duration {
    let times = BUCKETS.iter().flat_map(|bucket| bucket.pushes).map(|(ms, _)| *ms);
    Duration::from_millis(times.max().unwrap_or_default())
}

/// How it is shown.
enum View {
    Screen(Screen),
    Lines(Lines),
}

impl View {
    fn show(&mut self, seen: &Seen) -> std::io::Result<()> {
        match self {
            Self::Screen(screen) => screen.draw(|frame| picture::draw(frame, seen)),
            Self::Lines(lines) => {
                lines.show(seen);
                Ok(())
            }
        }
    }
}

impl Demo {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let mut stage = Stage::new()?;
        let mut view = Screen::open().map_or_else(|| View::Lines(Lines::new()), View::Screen);
        let mut keys = matches!(view, View::Screen(_)).then(Keys::listen);
        let quit = async {
            match &mut keys {
                Some(keys) => keys.quit().await,
                None => std::future::pending().await,
            }
        };
        let interrupted = || Err(Failure::new(Exit::Interrupted, "interrupted"));
        let told = tokio::select! {
            told = play(&mut stage, &mut view) => told,
            () = async { while signals.next().await == Signal::Status {} } => interrupted(),
            () = quit => interrupted(),
        };
        // First the terminal, then the daemons: they may take a moment, and whoever presses Ctrl-C again means it.
        let colored = matches!(view, View::Screen(_));
        drop((view, keys));
        let report = told?;
        say(&report.text(colored));
        match report.broken() {
            None => Ok(Exit::Done),
            Some(broken) => Err(Failure::new(Exit::Failed, broken)),
        }
    }
}

/// The course of the demo: the plan by the clock, and what comes of it.
async fn play(stage: &mut Stage, view: &mut View) -> Result<verdict::Report, Failure> {
    let mut seen = Seen::new(&BUCKETS);
    view.show(&seen)?;
    let store = stage.start().await?;
    let mut load = Load::start(stage, store);
    let probe = Probe::start()?;
    seen.running = stage.processes();
    seen.start_us = now_us();
    let start = Instant::now();
    let mut plan: Vec<_> = BUCKETS.iter().map(|planned| planned.pushes.iter().peekable()).collect();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay); // a busy machine gets fewer pictures, not a queue of them
    loop {
        tokio::select! {
            taken = load.next() => {
                let (bucket, job) = taken?;
                seen.took(&bucket, job);
            }
            _ = tick.tick() => {
                while let Some((bucket, job)) = load.at_hand() {
                    seen.took(&bucket, job);
                }
                for (bucket, plan) in seen.buckets.iter_mut().zip(&mut plan) {
                    while let Some((_, jobs)) = plan.next_if(|(ms, _)| start.elapsed() >= Duration::from_millis(*ms)) {
                        load.push(bucket, *jobs).await?;
                    }
                }
                load.watch(&mut seen).await?;
                if seen.killed.is_none() && start.elapsed() >= KILL_AT {
                    let depths = seen.buckets.iter().map(|bucket| bucket.depth).collect();
                    let (at_us, process) = (now_us(), seen.running[0].1);
                    stage.kill_first()?;
                    seen.killed = Some(Kill { at_us, process, depths });
                    seen.running = stage.processes();
                }
                stage.check()?;
                view.show(&seen)?;
                let pushed = plan.iter_mut().all(|plan| plan.peek().is_none());
                if (pushed && seen.all_is_out()) || start.elapsed() >= ENDS_AT { break }
            }
        }
    }
    let took = start.elapsed();
    let recorded = load.end(&mut seen).await?;
    Ok(verdict::Report::new(seen, &recorded, &probe.end(), took))
}
