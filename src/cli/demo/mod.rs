//! `dripd demo`: the main job before your eyes, and `dripd demo tree`: budgets. Daemons and a Redis in a throw-away directory, plain
//! pushes, and workers that take what has dripped out. A demo measures what is promised from the outside and fails when a promise
//! was broken.
//!
//! A demo is a script: `drip` and `tree` are the two, each with its `plan`. This file plays it: on a `stage` (the daemons), with a `load`
//! (producers and workers). What is seen is kept in `seen`, a `bucket` each, shown as a `picture` or as `lines`, and judged by `verdict`.

mod bucket;
mod drip;
mod lines;
mod load;
mod picture;
mod plan;
mod probe;
mod seen;
mod stage;
mod tree;
mod verdict;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tokio::time::MissedTickBehavior;

use self::bucket::now_us;
use self::lines::Lines;
use self::load::Load;
use self::picture::Look;
use self::plan::{Event, Plan};
use self::probe::Probe;
use self::seen::Seen;
use self::stage::Stage;
use self::verdict::{Report, Verdict};
use super::screen::{Keys, Screen};
use super::{Exit, Failure, print};
use crate::system::signals::{Signal, Signals};

const TICK: Duration = Duration::from_millis(100);

/// For how long a busy machine may take longer than planned: what waits then is not lost.
const LONGER_AT_MOST: Duration = Duration::from_secs(20);

/// A demo: what happens, how it is shown, what was measured, and what became of each promise.
struct Script {
    plan: Plan,
    look: Look,
    figures: fn(&Seen) -> String,
    verdicts: fn(&Seen) -> Vec<Verdict>,
}

/// Show the main job: bursts in, a steady drip out.
#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(subcommand)]
    kind: Option<Kind>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Kind {
    /// Show budgets: a provider that three accounts share, a flood in one of them, a 429
    Tree,
}

impl Demo {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let script = self.kind.map_or(&drip::SCRIPT, |Kind::Tree| &tree::SCRIPT);
        let mut signals = Signals::listen()?;
        let mut stage = Stage::new(&script.plan.policies())?;
        let mut screen = Screen::open();
        let mut keys = screen.as_ref().map(|_| Keys::listen());
        let quit = async {
            match &mut keys {
                Some(keys) => keys.quit().await,
                None => std::future::pending().await,
            }
        };
        let interrupted = || Err(Failure::new(Exit::Interrupted, "interrupted"));
        let report = tokio::select! {
            report = play(script, &mut stage, screen.as_mut()) => report,
            () = async { while signals.next().await == Signal::Status {} } => interrupted(),
            () = quit => interrupted(),
        };
        // First the terminal, then the daemons: they may take a moment, and whoever presses Ctrl-C again means it.
        let colored = screen.is_some();
        drop((screen, keys));
        let report = report?;
        print(format!("{}\n", report.text(colored)).as_bytes())?; // its own words, in colours
        match report.broken() {
            None => Ok(Exit::Done),
            Some(broken) => Err(Failure::new(Exit::Failed, broken)),
        }
    }
}

/// Play a script by the clock: push what is planned, let its events happen, and show it, until all is out or settled.
async fn play(script: &'static Script, stage: &mut Stage, mut screen: Option<&mut Screen>) -> Result<Report, Failure> {
    let Script { plan, look, figures, verdicts } = script;
    let (mut seen, mut lines) = (Seen::new(plan), Lines::default());
    let mut show = |seen: &Seen| {
        if let Some(screen) = &mut screen {
            return screen.draw(|frame| picture::draw(frame, seen, look));
        }
        lines.show(seen, look);
        Ok(())
    };
    show(&seen)?;
    let store = stage.start(plan.daemons).await?;
    let mut load = Load::start(stage, store);
    let probe = Probe::start()?;
    (seen.start_us, seen.processes) = (now_us(), stage.processes());
    let (start, mut tick) = (Instant::now(), tokio::time::interval(TICK));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay); // a busy machine gets fewer pictures, not a queue of them
    while !seen.is_over() && start.elapsed() < Duration::from_millis(plan.ends_by_ms) + LONGER_AT_MOST {
        tokio::select! {
            biased; // what workers told comes first
            event = load.next() => seen.note(&event?),
            _ = tick.tick() => {
                let after_ms = start.elapsed().as_millis() as u64;
                for (n, bucket) in seen.buckets.iter_mut().enumerate() {
                    load.push(bucket, (plan.pushed_by)(n, after_ms) - bucket.pushed()).await?;
                }
                load.watch(&mut seen.buckets).await?;
                while let Some((_, event, _)) = plan.events.get(seen.came_us.len()).filter(|(at, ..)| *at <= after_ms) {
                    seen.came_us.push(now_us());
                    happen(*event, &mut seen, &mut load, stage).await?;
                }
                stage.check()?;
                show(&seen)?;
            }
        }
    }
    let took = start.elapsed();
    seen.stalls = probe.end();
    load.end(&mut seen).await?;
    Ok(Report { took, stalled: seen.stalls.longest_of_all(), figures: figures(&seen), verdicts: verdicts(&seen) })
}

async fn happen(event: Event, seen: &mut Seen, load: &mut Load, stage: &mut Stage) -> Result<(), Failure> {
    match event {
        Event::WorkersLeave => load.send_away(true),
        Event::WorkersReturn => load.send_away(false),
        Event::Kill => {
            seen.buckets.iter_mut().for_each(|bucket| bucket.depth_at_kill = bucket.depth);
            stage.kill_first()?;
        }
        Event::Flood => {} // pushed_by knows of it
        Event::Refuse(seconds) => load.refuse(seen.budget.as_ref(), Duration::from_secs(seconds)),
        Event::Close => {
            load.close(seen.budget.as_ref()).await?;
            load.watch(&mut seen.buckets).await?; // what waits now stays
        }
    }
    Ok(())
}
