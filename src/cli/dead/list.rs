//! `dripd dead list`: the letters of the dead stream, as text or as JSON, safe to show whatever their bytes are.

use std::io::{ErrorKind, Write as _};
use std::ops::ControlFlow;

use clap::Args;

use super::super::{Exit, Failure, connect, say_err};
use crate::cli::args::whole;
use crate::config::Config;
use crate::model::entry::EntryId;
use crate::model::escape::{escaped, escaped_json, excerpt};
use crate::operate::dead::{DeadListRequest, Listed};
use crate::operate::dead_filter::{DeadFilter, known_as};
use crate::operate::letter::{DeadLetter, others};
use crate::operate::moment::rfc3339;
use crate::store::dead::Letter;

/// The most bytes of a job that people are shown, and of any other field.
const JOB_SHOWN: usize = 300;
const TEXT_SHOWN: usize = 1_000;

/// Show dead letters, the oldest first.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    filter: DeadFilter,
    /// How many at most
    #[arg(long, value_name = "N", default_value = "100", value_parser = whole::<u64>(1, u64::MAX))]
    limit: u64,
    /// Only what comes after this entry: the next page
    #[arg(long, value_name = "ENTRY")]
    after: Option<EntryId>,
    /// As JSON, an object a line, with whole jobs
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        let mut store = connect(config).await?;
        let request = DeadListRequest { filter: self.filter, after: self.after, limit: self.limit, calls: None };
        let mut is_closed = false;
        let show = |letter: &Letter| {
            let text = if self.json { as_json(letter) + "\n" } else { in_words(letter) };
            match write(&text) {
                Err(why) if why.kind() == ErrorKind::BrokenPipe => is_closed = true, // the reader has seen enough
                written => written?,
            }
            Ok::<_, Failure>(if is_closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        match request.run(&mut store, show).await? {
            _ if is_closed => {}
            Listed { last: None, .. } => say_err("no dead letter is found"),
            Listed { last: Some(last), has_more: true } => say_err(&format!("more: --after {last}")),
            Listed { .. } => {}
        }
        Ok(Exit::Done)
    }
}

/// A letter as one line of JSON, in which every character is escaped that a terminal or a reader could misread.
fn as_json(letter: &Letter) -> String {
    escaped_json(&serde_json::to_string(&DeadLetter::of(letter)).expect("texts and numbers"))
}

fn write(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// A letter as text for people: its entry, time and bucket, why it died, its job, and fields that dripd does not write.
fn in_words(letter: &Letter) -> String {
    let text = |name: &str| letter.field(name).map(|bytes| excerpt(bytes, TEXT_SHOWN));
    let at = rfc3339(letter.entry.ms).unwrap_or_else(|| "at no known time".to_owned());
    let bucket = text("bucket").unwrap_or_else(|| "(no bucket)".to_owned());
    let id = known_as(letter).or_else(|| text("id")).map(|id| format!(", id {id}")).unwrap_or_default();
    let attempt = text("attempt").unwrap_or_else(|| "?".to_owned());
    let reason = text("reason").unwrap_or_else(|| "no reason".to_owned());
    let malformed = if letter.malformed { "MALFORMED, it cannot go back; " } else { "" };
    let mut out = format!("{}  {at}  {bucket}\n    {malformed}attempt {attempt}{id}: {reason}\n", letter.entry);
    let job = letter.field("job").map(|job| excerpt(job, JOB_SHOWN));
    out += &format!("    {}\n", job.unwrap_or_else(|| "(no job)".to_owned()));
    for (name, value) in others(letter) {
        out += &format!("    {}: {}\n", escaped(name), excerpt(value, JOB_SHOWN));
    }
    out
}
