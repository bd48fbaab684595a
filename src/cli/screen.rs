//! A whole terminal as a screen: taken when a command begins to draw, given back as it was however the command ends.

use std::io::IsTerminal as _;

use crossterm::event::{Event, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use ratatui::{DefaultTerminal, Frame};

/// The terminal while a command draws on it. It is given back when this is dropped.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Take the terminal. `None` where there is none that can be drawn on, or where the user wants plain lines: a pipe,
    /// `TERM=dumb`, `NO_COLOR`.
    pub(super) fn open() -> Option<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let can_draw = set("TERM").is_some_and(|term| term != "dumb") && set("NO_COLOR").is_none();
        if !can_draw || !std::io::stdout().is_terminal() {
            return None;
        }
        // It fails where no keys can be read, for one. It may have done a part of its work by then.
        ratatui::try_init().inspect_err(|_| ratatui::restore()).ok().map(Self)
    }

    /// Draw a picture of the size that the terminal has now; only what has changed is written.
    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame)) -> std::io::Result<()> {
        self.0.draw(picture).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        ratatui::restore();
    }
}

/// What is typed while a command draws: the terminal makes no signals then.
pub(super) struct Keys(EventStream);

impl Keys {
    pub(super) fn listen() -> Self {
        Self(EventStream::new())
    }

    /// Wait for Ctrl-C or `q`.
    pub(super) async fn quit(&mut self) {
        while let Some(event) = self.0.next().await {
            let Ok(Event::Key(key)) = event else { continue };
            let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if key.kind == KeyEventKind::Press && (interrupts || key.code == KeyCode::Char('q')) {
                return;
            }
        }
        std::future::pending::<()>().await; // no more keys; a signal still ends the command
    }
}
