//! What every help ends with: what else there is to say, examples and exit codes. One table, by kind of command, from which the
//! helps and the man pages are made. A new command gets an entry here (a test asks for it).

mod control;
mod jobs;
mod system;

/// The notes of one command.
pub(super) struct Notes {
    /// The command, as it is written after `dripd`; the program itself is `dripd`.
    pub(super) name: &'static str,
    /// What the help says besides; empty for nothing.
    pub(super) about: &'static str,
    /// What for, and the command lines.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// Exit codes and what they mean here.
    pub(super) exits: &'static [(u8, &'static str)],
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

    /// Examples and exit codes.
    pub(super) fn ending(&self) -> String {
        let mut text = "Examples:\n".to_owned();
        for (purpose, lines) in self.examples {
            text += &format!("  {purpose}:\n");
            lines.lines().for_each(|line| text += &format!("      {line}\n"));
        }
        text += "\nExit codes:\n";
        for (code, meaning) in self.exits {
            text += &format!("  {code:<4} {meaning}\n");
        }
        text
    }
}

const DONE: (u8, &str) = (0, "done");
const FAILED: (u8, &str) = (1, "failed");
const USAGE: (u8, &str) = (2, "the command line is wrong");
const NO_REDIS: (u8, &str) = (69, "Redis cannot be used: away, password refused, too old, a wrong key");
const BAD_CONFIG: (u8, &str) = (78, "the configuration is bad; every problem is named");

/// What an entry leaves out.
const NONE: Notes = Notes { name: "", about: "", examples: &[], exits: &[], more: &[] };
