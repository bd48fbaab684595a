//! Notes: keys and entries that the functions left alone, in the log: one line a kind a minute, with advice that fits the kind. A kind
//! that comes with every call must not fill the log, and must not hide another one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::warn;

use crate::store::note::{Note, NoteKind};

/// How often the log tells of one kind.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// How many kinds and keys are remembered.
const SLOTS_MOST: usize = 10_000;

/// The kinds that the log has told of.
#[derive(Debug, Default)]
pub struct Notes {
    slots: BTreeMap<(NoteKind, String), Slot>,
}

#[derive(Debug)]
struct Slot {
    said: Instant,
    /// How many notes came since and were not said.
    left_out: u64,
}

impl Notes {
    /// Say the notes of a call, as far as they are due.
    pub fn say(&mut self, notes: &[Note]) {
        for note in notes {
            if let Some(met) = self.take(note, Instant::now()) {
                let Note { kind, subject, detail, .. } = note;
                let (what, advice) = if note.is_about_rights() { NO_RIGHT } else { words(kind) };
                warn!(subject, detail, met, "{what}: {advice}");
            }
        }
    }

    /// How many notes of this kind came since the kind was last said, with this one. `None` when the kind is not due.
    fn take(&mut self, note: &Note, now: Instant) -> Option<u64> {
        // Jobs may be lost with these keys, so each is said by its name.
        let is_by_key = matches!(note.kind, NoteKind::Expires | NoteKind::Emptied);
        let subject = if is_by_key { note.subject.clone() } else { String::new() };
        let kind = (note.kind.clone(), subject);
        let Some(slot) = self.slots.get_mut(&kind) else {
            if self.slots.len() >= SLOTS_MOST {
                self.slots.clear();
            }
            self.slots.insert(kind, Slot { said: now, left_out: 0 });
            return Some(note.count);
        };
        slot.left_out += note.count;
        if now.duration_since(slot.said) < SAY_EVERY {
            return None;
        }
        slot.said = now;
        Some(std::mem::take(&mut slot.left_out))
    }
}

/// The words where the user that the daemon logs in as lacks a right: then nothing is wrong with the key.
const NO_RIGHT: (&str, &str) =
    ("a key is left alone, dripd may not use it", "`dripd acl daemon` prints the rights that its user needs");

/// A kind in words, and the advice.
fn words(kind: &NoteKind) -> (&str, &'static str) {
    match kind {
        NoteKind::BadName => (
            "a queue is left alone, its name is no bucket",
            "rename it; a bucket has 1 to 200 bytes of UTF-8 without control characters and braces",
        ),
        NoteKind::WrongType => ("a key is left alone, it is of another type than it must be", "rename or delete it"),
        NoteKind::Refused => (
            "a stream does not take an entry",
            "the jobs stay in their buckets; read the error, and look at the stream's type and last id",
        ),
        NoteKind::Raised => (
            "the turn of a bucket failed",
            "its jobs stay and it is tried again; look at the types of the keys of this bucket",
        ),
        NoteKind::Vanished => (
            "an entry was deleted while a worker held it",
            "nothing of it is left to take back; a worker finishes a job by acknowledging it, never with XDEL or XTRIM",
        ),
        NoteKind::NotSearched => (
            "a list may not be searched",
            "where others push into it too nobody knows how old its jobs are, and only max_ready holds buckets back; \
             print the rights of `dripd acl` anew",
        ),
        NoteKind::Skipped => (
            "the group `workers` of a ready stream was moved past jobs that no worker had read",
            "they went back into their buckets; do not use XGROUP SETID on ready streams",
        ),
        NoteKind::Expires => (
            "a key of dripd had a time to live, which was taken away: its jobs would have been deleted with it",
            "find out who uses EXPIRE on the keys of this prefix",
        ),
        NoteKind::Emptied => (
            "the queue of a bucket was empty at its turn, though it had jobs: they are gone without dripd",
            "look for DEL, EXPIRE, RPOP and the like on this key, and for a Redis that evicts",
        ),
        NoteKind::NoBudget => (
            "a bucket lets nothing out, its budgets cannot be found",
            "its jobs stay; add a [[budget]] that matches, or change `within`, and reload",
        ),
        NoteKind::Newer => ("something that a newer version stored is left alone", "update this dripd"),
        NoteKind::Other(kind) => (kind, "a newer function library says so; update this dripd to learn more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(kind: NoteKind, count: u64) -> Note {
        Note { kind, subject: "x".to_owned(), detail: String::new(), count }
    }

    #[test]
    fn each_kind_is_said_once_a_minute_with_the_count_of_what_was_left_out() {
        let (mut notes, start) = (Notes::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(notes.take(&note(NoteKind::BadName, 2), start), Some(2));
        assert_eq!(notes.take(&note(NoteKind::Refused, 1), after(1)), Some(1), "another kind is not hidden by it");
        assert_eq!(notes.take(&note(NoteKind::BadName, 3), after(30)), None);
        assert_eq!(notes.take(&note(NoteKind::BadName, 4), after(59)), None);
        assert_eq!(notes.take(&note(NoteKind::BadName, 1), after(60)), Some(8), "with those that were left out");
        assert_eq!(notes.take(&note(NoteKind::BadName, 1), after(61)), None);
        assert_eq!(notes.take(&note(NoteKind::Refused, 1), after(61)), Some(1));
    }

    #[test]
    fn each_key_that_jobs_may_be_lost_with_is_said_by_its_name() {
        let (mut notes, start) = (Notes::default(), Instant::now());
        let of = |key: &str| Note { subject: key.to_owned(), ..note(NoteKind::Expires, 1) };
        assert_eq!((notes.take(&of("a"), start), notes.take(&of("b"), start)), (Some(1), Some(1)));
        assert_eq!(notes.take(&of("a"), start), None);
    }

    #[test]
    fn the_advice_fits_the_kind() {
        assert!(words(&NoteKind::WrongType).1.contains("rename or delete"));
        let about = |detail: &str| Note { detail: detail.to_owned(), ..note(NoteKind::Refused, 1) }.is_about_rights();
        // What Redis 7.0, Redis 7.2 and later, and Valkey say of a command within a function.
        assert!(about("ERR The user executing the script can't run this command or subcommand script: a_call"));
        assert!(about("NOPERM User daemon has no permissions to run the 'xadd' command"));
        assert!(about("ERR ACL failure in script: User daemon has no permissions to run the 'xadd' command"));
        assert!(!about("WRONGTYPE Operation against a key") && !about("ERR The ID specified in XADD"));
        assert!(!words(&NoteKind::Vanished).1.contains("rename"));
        assert!(words(&NoteKind::Newer).1.contains("update"));
        assert_eq!(words(&NoteKind::Other("odd".to_owned())).0, "odd");
    }
}
