//! `dripd dead list`: what the dead stream holds, for a person or as JSON, safe to show whatever the bytes are.

use std::io::{ErrorKind, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::Serialize;

use super::super::moment::rfc3339;
use super::super::{Exit, Failure, connect, say_err};
use super::Which;
use crate::cli::args::whole;
use crate::config::Config;
use crate::store::dead::Letter;
use crate::words::bucket::BucketName;
use crate::words::entry::EntryId;
use crate::words::shown::{excerpt, shown, shown_json};
use crate::worker::identity;

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
        if let Some(mut filter) = self.which.filter(&mut store).await? {
            filter.after = self.after;
            loop {
                // One more than is shown tells whether there is another page.
                let page = store.dead_page(&filter, left.saturating_add(1)).await?;
                for letter in &page.letters {
                    if left == 0 {
                        let last: Option<EntryId> = last;
                        say_err(&format!("more: --after {}", last.expect("one was shown")));
                        return Ok(Exit::Done);
                    }
                    match write(&if self.json { as_json(letter) } else { in_words(letter) }) {
                        Err(why) if why.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Done), // enough was read
                        other => other?,
                    }
                    (left, last) = (left - 1, Some(letter.entry));
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

/// What a job is called outside of its stream.
fn known_as(letter: &Letter) -> Option<String> {
    let bucket = BucketName::parse(letter.field("bucket")?).ok()?;
    let id: EntryId = std::str::from_utf8(letter.field("id")?).ok()?.parse().ok()?;
    Some(identity(&id.to_string(), &bucket))
}

/// The fields that no dead letter of dripd's has.
fn others(letter: &Letter) -> impl Iterator<Item = (&[u8], &[u8])> {
    let is_ours = |name: &[u8]| [b"bucket".as_slice(), b"job", b"attempt", b"id", b"reason"].contains(&name);
    let others = letter.fields.iter().filter(move |(name, _)| !is_ours(name));
    others.map(|(name, value)| (name.as_slice(), value.as_slice()))
}

/// Bytes in JSON: as text where they are UTF-8, else in base64 in another member.
struct Text(Option<String>, Option<String>);

impl Text {
    fn of(bytes: Option<&[u8]>) -> Self {
        match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
            None => Self(None, None),
            Some(Ok(text)) => Self(Some(text.to_owned()), None),
            Some(Err(bytes)) => Self(None, Some(STANDARD.encode(bytes))),
        }
    }
}

#[derive(Serialize)]
struct Object {
    entry: String,
    at: Option<String>,
    malformed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_base64: Option<String>,
    attempt: Option<u64>,
    id: Option<String>,
    identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_base64: Option<String>,
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<Other>,
}

#[derive(Serialize)]
struct Other {
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

fn as_json(letter: &Letter) -> String {
    let text = |name: &str| letter.field(name).and_then(|bytes| std::str::from_utf8(bytes).ok());
    let Text(bucket, bucket_base64) = Text::of(letter.field("bucket"));
    let Text(reason, reason_base64) = Text::of(letter.field("reason"));
    let Text(job, job_base64) = Text::of(letter.field("job"));
    let other = |(name, value): (&[u8], &[u8])| {
        let (Text(field, field_base64), Text(value, value_base64)) = (Text::of(Some(name)), Text::of(Some(value)));
        Other { field, field_base64, value, value_base64 }
    };
    let object = Object {
        entry: letter.entry.to_string(),
        at: rfc3339(letter.entry.ms),
        malformed: letter.malformed,
        bucket,
        bucket_base64,
        attempt: text("attempt").and_then(|n| n.parse().ok()),
        id: text("id").map(str::to_owned),
        identity: known_as(letter),
        reason,
        reason_base64,
        job,
        job_base64,
        bytes: letter.field("job").map(<[u8]>::len),
        others: others(letter).map(other).collect(),
    };
    shown_json(&serde_json::to_string(&object).expect("texts and numbers")) + "\n"
}
