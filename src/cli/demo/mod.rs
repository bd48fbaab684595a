//! `dripd demo`: the main job before your eyes, and `dripd demo tree`: budgets. Daemons and a Redis in a throw-away directory, plain
//! pushes, and workers that take what has dripped out. A demo measures what is promised from the outside and fails when a promise
//! was broken.
//!
//! A demo a folder: its course, what is seen, how it is shown, the verdict. What they share: the load, the stage (the daemons), a
//! bucket as it is seen from outside, the report.

mod bucket;
mod drip;
mod frame;
mod load;
mod probe;
mod report;
mod stage;
mod tree;
mod window;

use std::time::Duration;

use clap::{Args, Subcommand};
use ratatui::Frame;
use tokio::time::{Interval, MissedTickBehavior};

use self::stage::Stage;
use super::screen::{Keys, Screen};
use super::{Exit, Failure, print};
use crate::system::signals::{Signal, Signals};

const TICK: Duration = Duration::from_millis(100);

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

/// How it is shown.
enum View {
    Screen(Screen),
    /// In plain lines: for a pipe, a terminal without control sequences, and whoever wants no colours.
    Lines,
}

impl View {
    fn show(&mut self, picture: impl FnOnce(&mut Frame), lines: impl FnOnce()) -> std::io::Result<()> {
        match self {
            Self::Screen(screen) => screen.draw(picture),
            Self::Lines => {
                lines();
                Ok(())
            }
        }
    }
}

/// When there is something to do, and a picture to draw.
fn ticks() -> Interval {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay); // a busy machine gets fewer pictures, not a queue of them
    tick
}

impl Demo {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let policies = self.kind.map_or_else(drip::policies, |Kind::Tree| tree::POLICIES.to_owned());
        let mut stage = Stage::new(&policies)?;
        let mut view = Screen::open().map_or(View::Lines, View::Screen);
        let mut keys = matches!(view, View::Screen(_)).then(Keys::listen);
        let quit = async {
            match &mut keys {
                Some(keys) => keys.quit().await,
                None => std::future::pending().await,
            }
        };
        let course = async {
            match self.kind {
                None => drip::play(&mut stage, &mut view).await,
                Some(Kind::Tree) => tree::play(&mut stage, &mut view).await,
            }
        };
        let interrupted = || Err(Failure::new(Exit::Interrupted, "interrupted"));
        let told = tokio::select! {
            told = course => told,
            () = async { while signals.next().await == Signal::Status {} } => interrupted(),
            () = quit => interrupted(),
        };
        // First the terminal, then the daemons: they may take a moment, and whoever presses Ctrl-C again means it.
        let colored = matches!(view, View::Screen(_));
        drop((view, keys));
        let report = told?;
        print(format!("{}\n", report.text(colored)).as_bytes())?; // its own words, in colours
        match report.broken() {
            None => Ok(Exit::Done),
            Some(broken) => Err(Failure::new(Exit::Failed, broken)),
        }
    }
}
