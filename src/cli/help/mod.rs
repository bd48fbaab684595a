//! Notes at the end of every help: further text, examples and exit codes. The helps and the man pages are made from one
//! table, split by kind of command. A new command gets an entry here; a test asks for it.

mod control;
mod jobs;
mod system;

use std::collections::BTreeMap;

/// The notes of one command.
pub(super) struct Notes {
    /// The command, as it is written after `dripd`; the program itself is `dripd`.
    pub(super) name: &'static str,
    /// Further text of the help; empty: none.
    pub(super) about: &'static str,
    /// The examples: what each is for, and its command lines.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// Exit codes that are not in [`USUAL`], or mean something else here.
    exits: &'static [(u8, &'static str)],
    /// Exit codes of [`USUAL`] that the command never has.
    without: &'static [u8],
    /// Sections that only the man page has: a heading, and terms with their meanings.
    pub(super) more: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

impl Notes {
    /// The notes of a command, by its name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        [system::NOTES, jobs::NOTES, control::NOTES].into_iter().flatten().find(|notes| notes.name == name)
    }

    /// The end of the help: further text, examples and exit codes.
    pub(super) fn text(&self) -> String {
        let mut text = if self.about.is_empty() { String::new() } else { format!("{}\n\n", self.about) };
        text += &self.ending();
        text
    }

    /// The exit codes and their meanings here, in order.
    pub(super) fn exits(&self) -> BTreeMap<u8, &'static str> {
        let usual = USUAL.iter().filter(|(code, _)| !self.without.contains(code));
        usual.chain(self.exits).copied().collect()
    }

    /// The examples and the exit codes.
    pub(super) fn ending(&self) -> String {
        let mut text = "Examples:\n".to_owned();
        for (purpose, lines) in self.examples {
            text += &format!("  {purpose}:\n");
            lines.lines().for_each(|line| text += &format!("      {line}\n"));
        }
        text += "\nExit codes:\n";
        for (code, meaning) in self.exits() {
            text += &format!("  {code:<4} {meaning}\n");
        }
        text
    }
}

/// The exit codes of most commands.
const USUAL: [(u8, &str); 5] = [
    (0, "done"),
    (1, "failed"),
    (2, "the command line is wrong"),
    (69, "Redis cannot be used: away, password refused, too old, a wrong key"),
    (78, "the configuration is bad; every problem is named"),
];

/// An empty entry, from which others take the fields that they leave out.
const NONE: Notes = Notes { name: "", about: "", examples: &[], exits: &[], without: &[], more: &[] };
