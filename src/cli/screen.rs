//! The whole terminal as a screen: taken when a command begins to draw, restored however the command ends.

use std::io::IsTerminal as _;

use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use futures_util::StreamExt as _;
use ratatui::{DefaultTerminal, Frame};

use crate::config::variable;

/// Whether the user wants colours.
pub(super) fn has_colors() -> bool {
    variable("NO_COLOR").is_none()
}

/// The terminal while a command draws on it. Dropping this restores the terminal.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Take the terminal. `None` where it cannot be drawn on (a pipe, `TERM=dumb`), or where the user wants plain lines
    /// (`NO_COLOR`).
    pub(super) fn open() -> Option<Self> {
        if has_colors() { Self::open_with_keys() } else { None }
    }

    /// Whether there is a terminal that can be drawn on.
    pub(super) fn can_open() -> bool {
        variable("TERM").is_some_and(|term| term != "dumb") && std::io::stdout().is_terminal()
    }

    /// Take the terminal for a command that needs it: with `NO_COLOR` the command draws without colours.
    pub(super) fn open_with_keys() -> Option<Self> {
        if !Self::can_open() {
            return None;
        }
        // The call fails where no keys can be read, for example. By then it may have changed the terminal, which is
        // undone.
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

/// The keys that are typed while a command draws: in that mode the terminal sends no signals.
pub(super) struct Keys(EventStream);

/// An event of the terminal.
pub(super) enum Typed {
    Key(KeyEvent),
    /// Any other event, such as a new size.
    Other,
}

/// Whether a key is Ctrl-C.
pub(super) fn interrupts(key: &KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

impl Keys {
    pub(super) fn listen() -> Self {
        Self(EventStream::new())
    }

    /// Wait for Ctrl-C or `q`.
    pub(super) async fn quit(&mut self) {
        while let Some(typed) = self.next().await {
            if matches!(typed, Typed::Key(key) if interrupts(&key) || key.code == KeyCode::Char('q')) {
                return;
            }
        }
        std::future::pending::<()>().await; // no more keys; a signal still ends the command
    }

    /// Wait for the next event; `None`: the terminal is gone.
    pub(super) async fn next(&mut self) -> Option<Typed> {
        match self.0.next().await? {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => Some(Typed::Key(key)),
            Ok(_) => Some(Typed::Other),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Command;

    use ratatui::text::Line;
    use rustix::termios::tcgetattr;

    use super::*;

    #[test]
    #[ignore = "it needs a terminal of its own: the test below runs it in one"]
    fn it_draws_and_then_a_fault_in_drawing_panics() {
        let mut screen = Screen::open_with_keys().expect("a terminal");
        screen.draw(|frame| frame.render_widget(Line::from("picture"), frame.area())).expect("drawn");
        let _ = screen.draw(|_| panic!("a fault in drawing"));
    }

    #[test]
    fn a_panic_in_drawing_leaves_the_terminal_as_it_was() {
        let (mut pty, pts) = pty_process::blocking::open().expect("a pseudo-terminal");
        pty.resize(pty_process::Size::new(24, 80)).expect("a size");
        let before = tcgetattr(&pty).expect("its settings");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let name = "cli::screen::tests::it_draws_and_then_a_fault_in_drawing_panics";
        command.args(["--exact", name, "--ignored", "--nocapture"]).env("TERM", "xterm-256color");
        let mut child = pty_process::blocking::Command::from(command).spawn(pts).expect("it runs");
        let (mut bytes, mut buffer) = (Vec::new(), [0; 8_192]);
        while let Ok(n @ 1..) = pty.read(&mut buffer) {
            bytes.extend(&buffer[..n]); // reading fails when nobody has the terminal any more
        }
        assert_eq!(child.wait().expect("it ends").code(), Some(101), "a test that failed");
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.rfind(what).unwrap_or_else(|| panic!("no {what:?} in {text:?}"));
        // The screen was taken, drawn on, and given back with its cursor. Only then comes the message of the panic,
        // which can be read there.
        assert!(at("\u{1b}[?1049h") < at("picture") && at("picture") < at("\u{1b}[?1049l"), "{text:?}");
        assert!(text.find("\u{1b}[?1049l") < text.find("a fault in drawing"), "{text:?}");
        assert!(at("\u{1b}[?25l") < at("\u{1b}[?25h"), "{text:?}");
        let after = tcgetattr(&pty).expect("its settings");
        assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
    }
}
