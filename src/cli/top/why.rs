//! Why something waits, in as few words as a column has room for. `explain` has the whole sentence.

use std::time::Duration;

use ratatui::style::Color;

use crate::cli::columns;
use crate::model::duration::rough;
use crate::store::snapshots::{BucketSnapshot, BudgetSnapshot, Cause, Why};

/// The lateness above which a job is called late, in microseconds.
const LATE_US: u64 = 1_000_000;

/// The wait above which its length is shown, in microseconds.
const LONG_US: u64 = 2_000_000;

/// A few words, and their colour.
pub(super) type Few = (String, Option<Color>);

fn us(us: u64) -> String {
    rough(Duration::from_micros(us))
}

fn about(word: &str, of: &str, name: &str) -> String {
    if name.is_empty() { word.to_owned() } else { format!("{word}{of}{}", columns::name(name, 40)) }
}

/// The reason why a node waits. `own` is the node's name; `due_in_us` is how long until its next job may leave, and
/// `late_us` for how long that has been due.
fn few(why: &Why, own: &str, due_in_us: u64, late_us: u64) -> Few {
    let timed = |word: &str| if due_in_us > LONG_US { format!("{word} {}", us(due_in_us)) } else { word.to_owned() };
    let plain = |text: String| (text, None);
    let of = &why.about;
    match why.cause() {
        Ok(Cause::WrongType) => (about("WRONG TYPE", ": a ", of), Some(Color::Red)),
        Ok(Cause::Refused) => ("REFUSED".to_owned(), Some(Color::Red)),
        Ok(Cause::Paused) if of == own => ("paused".to_owned(), Some(Color::Magenta)),
        Ok(Cause::Paused) => (about("paused", " by ", of), Some(Color::Magenta)),
        Ok(Cause::PausedAbove) => (format!("{} paused", columns::name(of, 40)), Some(Color::Magenta)),
        Ok(Cause::Slots) => (about("slots", " ", of), Some(Color::Yellow)),
        Ok(Cause::Slow) => (timed("slowed"), Some(Color::Yellow)),
        Ok(Cause::Slowed) => (format!("at {of} % rate"), Some(Color::Yellow)),
        Ok(Cause::Told) => (timed(&about("told", ": ", of)), Some(Color::Yellow)),
        Ok(Cause::Quota) => (timed("quota"), Some(Color::Yellow)),
        Ok(Cause::Rate) => plain(if due_in_us > LONG_US { timed("rate, in") } else { "at its rate".to_owned() }),
        Ok(Cause::Share) => plain(about("share", " of ", of)),
        Ok(Cause::Held) => (about("workers", ": ", of), Some(Color::Red)),
        Ok(Cause::BackingOff) => (timed("backs off"), Some(Color::Yellow)),
        Ok(Cause::Delayed) => plain(timed("delayed")),
        Ok(Cause::Due) if late_us > LATE_US => (format!("late {}", us(late_us)), Some(Color::Red)),
        Ok(Cause::Due) => plain("at its rate".to_owned()), // its due came since the last answer
        Ok(Cause::Empty) => plain("empty".to_owned()),
        Err(word) => plain(word.to_owned()),
    }
}

/// Whether a wait ends only where a daemon runs.
fn is_the_daemons_part(why: &Why) -> bool {
    use Cause::{BackingOff, Delayed, Due, Quota, Rate, Share, Slow, Slowed, Told};
    matches!(why.cause(), Ok(Rate | Share | Due | BackingOff | Delayed | Slow | Slowed | Told | Quota))
}

/// The reason why a bucket waits. Without a daemon, that is the reason for every wait that a daemon ends.
pub(super) fn of_bucket(bucket: &BucketSnapshot, has_daemon: bool) -> Few {
    let row = &bucket.row;
    let (mut text, mut color) = few(&bucket.why, &row.bucket, row.due_in_us, row.late_us);
    if !has_daemon && is_the_daemons_part(&bucket.why) {
        (text, color) = ("no daemon".to_owned(), Some(Color::Red));
    }
    if bucket.closed_by.is_some() {
        text = format!("closed, {text}");
    } else if row.capacity > 0 && row.depth >= row.capacity {
        let text_of_rate = matches!(bucket.why.cause(), Ok(Cause::Rate | Cause::Due)) && has_daemon;
        text = if text_of_rate { "full, at rate".to_owned() } else { format!("full, {text}") };
        color = color.or(Some(Color::Red));
    }
    (text, color)
}

/// The reason why what is below a budget waits.
pub(super) fn of_budget(budget: &BudgetSnapshot, has_daemon: bool) -> Few {
    if !has_daemon && is_the_daemons_part(&budget.why) {
        return ("no daemon".to_owned(), Some(Color::Red));
    }
    if budget.why.cause() == Ok(Cause::Empty) {
        return ("nothing waits".to_owned(), None);
    }
    few(&budget.why, &budget.budget, budget.due_in_us, 0)
}
