//! What every help ends with: what else there is to say, examples and exit codes. One table, by kind of command, from which the
//! helps and the man pages are made. A new command gets an entry here (a test asks for it).

mod control;
mod jobs;
mod system;

use std::collections::BTreeMap;

/// The notes of one command.
pub(super) struct Notes {
    /// The command, as it is written after `dripd`; the program itself is `dripd`.
    pub(super) name: &'static str,
    /// What the help says besides; empty for nothing.
    pub(super) about: &'static str,
    /// What for, and the command lines.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// Exit codes that mean something else here than in [`USUAL`], or are not among those.
    exits: &'static [(u8, &'static str)],
    /// Usual exit codes that it never has.
    without: &'static [u8],
    /// What only the man page has: headings, and under each terms and what they mean.
    pub(super) more: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

impl Notes {
    /// The notes of a command, by its name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        [system::NOTES, jobs::NOTES, control::NOTES].into_iter().flatten().find(|notes| notes.name == name)
    }

    /// As a help shows them, after what it says besides.
    pub(super) fn text(&self) -> String {
        let mut text = if self.about.is_empty() { String::new() } else { format!("{}\n\n", self.about) };
        text += &self.ending();
        text
    }

    /// Exit codes and what they mean here, in order.
    pub(super) fn exits(&self) -> BTreeMap<u8, &'static str> {
        let usual = USUAL.iter().filter(|(code, _)| !self.without.contains(code));
        usual.chain(self.exits).copied().collect()
    }

    /// Examples and exit codes.
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

/// What an entry leaves out.
const NONE: Notes = Notes { name: "", about: "", examples: &[], exits: &[], without: &[], more: &[] };
