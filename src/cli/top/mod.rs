//! `dripd top`: the buckets that come first, as they are now, with a row each, why it waits, and keys to look closer
//! and to pause. `feed` asks Redis, `view` holds what is known and selected, `keys` handles keys, and the other files
//! draw.

mod feed;
mod header;
mod keys;
mod pace;
mod picture;
mod table;
mod view;
mod why;

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use self::feed::Feed;
use self::keys::Next;
use self::view::{Only, View};
use super::screen::{Keys, Screen, Typed};
use super::{Exit, Failure, connect};
use crate::config::Config;
use crate::store::top::By;
use crate::system::signals::{Signal, Signals};

/// How often a picture is drawn though nothing happened: ages grow.
const TICK: Duration = Duration::from_millis(500);

/// The most news, and the most deeds, that may wait.
const WAITING: usize = 16;

/// Watch the buckets that come first.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Only buckets whose names match
    #[arg(long = "match", value_name = "GLOB")]
    only: Option<String>,
    /// Which come first: those that take longest to be empty, in which most jobs wait, that reject most, or whose next job is latest
    #[arg(
        long,
        value_name = "ORDER",
        default_value = "empty",
        value_parser = PossibleValuesParser::new(By::ALL.map(By::as_str)).map(|by| by.parse::<By>().expect("one of them")),
    )]
    by: By,
    /// Budgets in place of buckets: those for whose share most wait
    #[arg(long)]
    budgets: bool,
}

impl Show {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let why = "it draws on a terminal, and there is none here; `dripd status --json` tells the same to scripts";
        if !Screen::can_open() {
            return Err(Failure::new(Exit::Usage, why));
        }
        let mut signals = Signals::listen()?;
        let store = connect(config).await?; // before the screen opens: errors are plain lines
        let mut view = View::new(self.by, self.budgets, self.only.map(Only::glob));
        let mut screen = Screen::open_with_keys().ok_or_else(|| Failure::new(Exit::Usage, why))?;
        let (wants_out, wants) = watch::channel(view.wants());
        let (deeds_out, deeds) = mpsc::channel(WAITING);
        let (news_out, mut news) = mpsc::channel(WAITING);
        let feed = Feed { config, wants, deeds, news: news_out, has: None };
        let course = async {
            let (mut keys, mut tick) = (Keys::listen(), tokio::time::interval(TICK));
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                screen.draw(|frame| picture::draw(frame, &mut view))?;
                let wants = view.wants();
                wants_out.send_if_modified(|before| {
                    let is_new = *before != wants;
                    *before = wants;
                    is_new
                });
                tokio::select! {
                    typed = keys.next() => match typed {
                        Some(Typed::Key(key)) => match view.press(key) {
                            Next::Stay => {}
                            Next::Do(deed) => _ = deeds_out.send(deed).await,
                            Next::End => return Ok(Exit::Done),
                        },
                        Some(Typed::Other) => {} // a new size, for example: draw again
                        None => return Ok(Exit::Done), // the terminal is gone
                    },
                    Some(news) = news.recv() => view.take(news),
                    _ = tick.tick() => {}
                    signal = signals.next() => if signal != Signal::Status { return Ok(Exit::Interrupted) },
                }
            }
        };
        tokio::select! {
            ended = course => ended,
            Err(why) = feed.run(store) => Err(why),
        }
    }
}
