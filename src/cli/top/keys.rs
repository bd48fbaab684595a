//! The effects of keys.

use crossterm::event::{KeyCode, KeyEvent};

use super::feed::Deed;
use super::view::{Mode, Only, View};
use crate::cli::screen::interrupts;
use crate::store::top::By;

/// The effect of a key.
pub(super) enum Next {
    Stay,
    /// A deed is to be done.
    Do(Deed),
    /// The command ends.
    End,
}

/// The keys and their effects in few words, for the help.
pub(super) const KEYS: [(&str, &str); 14] = [
    ("q, Esc, Ctrl-C", "end"),
    ("↑ ↓, k j", "the row above, below"),
    ("PgUp PgDn, Home End", "a page up, down; the first, the last"),
    ("e", "first those that take longest to be empty"),
    ("d", "first those in which most jobs wait"),
    ("r", "first those that reject most, in the last 10 to 20 minutes"),
    ("l", "first those whose next job is latest"),
    ("s", "the next order"),
    ("/", "filter: a glob, or a part of the name; nothing: all"),
    ("Space", "freeze: the picture stays as it is; again: go on"),
    ("p", "pause the selected one, or resume it; asks first"),
    ("Enter", "why it waits, whole: `dripd explain`"),
    ("b", "budgets, and back to buckets"),
    ("?", "this help"),
];

impl View {
    /// Handle a key that was pressed.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if interrupts(&key) {
            return Next::End;
        }
        match std::mem::replace(&mut self.mode, Mode::Table) {
            Mode::Table => return self.press_in_table(key),
            Mode::Filter(text) => self.press_in_filter(text, key),
            Mode::Confirm(deed) => {
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    return Next::Do(deed);
                }
            }
            Mode::Explain(above) => self.mode = scrolled(above, self.page(), key).map_or(Mode::Table, Mode::Explain),
            Mode::Help(above) => self.mode = scrolled(above, self.page(), key).map_or(Mode::Table, Mode::Help),
        }
        Next::Stay
    }

    fn press_in_table(&mut self, key: KeyEvent) -> Next {
        let page = self.page();
        self.forget_told();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            KeyCode::Char('e') => self.sort_by(By::Empty),
            KeyCode::Char('d') => self.sort_by(By::Depth),
            KeyCode::Char('r') => self.sort_by(By::Rejected),
            KeyCode::Char('l') => self.sort_by(By::Late),
            KeyCode::Char('s') => {
                let at = By::ALL.iter().position(|by| *by == self.order());
                self.sort_by(By::ALL[at.map_or(0, |at| (at + 1) % By::ALL.len())]);
            }
            KeyCode::Char('b') => self.turn_to_budgets(!self.is_of_budgets()),
            KeyCode::Char('/') => self.mode = Mode::Filter(String::new()),
            KeyCode::Char(' ') => {
                self.frozen = if self.frozen.is_some() { None } else { Some(std::time::Instant::now()) };
            }
            KeyCode::Char('p') => {
                if let Some(name) = self.selected() {
                    let (name, is_budget) = (name.to_owned(), self.is_of_budgets());
                    let resumes = self.is_paused(&name);
                    self.mode = Mode::Confirm(Deed { name, is_budget, resumes });
                }
            }
            KeyCode::Enter if self.selected().is_some() => self.mode = Mode::Explain(0),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help(0),
            _ => {}
        }
        Next::Stay
    }

    fn press_in_filter(&mut self, mut text: String, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => return self.filter(Only::typed(&text)),
            KeyCode::Esc => return,
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) => text.push(c),
            _ => {}
        }
        self.mode = Mode::Filter(text);
    }
}

/// The number of lines of a text above the edge after a key; `None`: the text is closed.
fn scrolled(above: usize, page: isize, key: KeyEvent) -> Option<usize> {
    let by = match key.code {
        KeyCode::Char('q' | '?' | ' ') | KeyCode::Esc | KeyCode::Enter => return None,
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -page,
        KeyCode::PageDown => page,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        _ => 0,
    };
    Some(above.saturating_add_signed(by))
}
