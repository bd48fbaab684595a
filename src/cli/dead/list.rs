//! `dripd dead list`: what the dead stream holds, for a person or as JSON, safe to show whatever the bytes are.

use std::io::{ErrorKind, Write as _};

use clap::Args;

use super::super::{Exit, Failure, connect, say_err};
use super::Which;
use crate::cli::args::whole;
use crate::config::Config;
use crate::operate::dead::{known_as, others};
use crate::operate::letter::as_json;
use crate::operate::moment::rfc3339;
use crate::store::dead::Letter;
use crate::words::entry::EntryId;
use crate::words::shown::{excerpt, shown};

/// How much of a job people see, in bytes, and of anything else.
const JOB_SHOWN: usize = 300;
const TEXT_SHOWN: usize = 1_000;

/// Show dead letters, the oldest first.
#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    which: Which,
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
        let (mut left, mut last) = (self.limit, None);
        if let Some(mut filter) = self.which.wanted().filter(&mut store).await? {
            filter.after = self.after;
            loop {
                // One more than is shown tells whether there is another page.
                let page = store.dead_page(&filter, left.saturating_add(1)).await?;
                for letter in &page.letters {
                    // Letters of several partitions may have one id: they stand on one page.
                    if left == 0 && last != Some(letter.entry) {
                        let last: Option<EntryId> = last;
                        say_err(&format!("more: --after {}", last.expect("one was shown")));
                        return Ok(Exit::Done);
                    }
                    match write(&if self.json { as_json(letter) + "\n" } else { in_words(letter) }) {
                        Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Done), // enough was read
                        other => other?,
                    }
                    (left, last) = (left.saturating_sub(1), Some(letter.entry));
                }
                let Some(next) = page.next else { break };
                filter.after = Some(next);
            }
        }
        if last.is_none() {
            say_err("no dead letter is found");
        }
        Ok(Exit::Done)
    }
}

fn write(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// A dead letter for people: what it is, why it is here, its job, and, of one that holds none, whatever else it has.
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
        out += &format!("    {}: {}\n", shown(name), excerpt(value, JOB_SHOWN));
    }
    out
}
