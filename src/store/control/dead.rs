//! Dead letters: looked at by page, counted, put back and dropped, in bounded calls that say where the next one goes on.

use std::time::Duration;

use redis::ToRedisArgs;

use super::change::Author;
use crate::model::entry::{BadEntryId, EntryId};
use crate::store::client::Store;
use crate::store::connection::StoreError;
use crate::store::partitions::Partitions;
use crate::store::reply::Reply;

/// How many entries one page holds at most.
pub const PAGE_MOST: u64 = 1_000;

/// The longest glob, in bytes.
pub const LONGEST_GLOB: usize = 1_000;

/// Which dead letters: those that all of it finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only letters after this one.
    pub after: Option<EntryId>,
    /// Only letters up to this one.
    pub upto: Option<EntryId>,
    /// Only letters of buckets that a glob matches.
    pub bucket: Option<String>,
    /// Only letters with a reason that a glob matches.
    pub reason: Option<String>,
    /// Only the letter with this identity in its bucket, or this entry.
    pub id: Option<String>,
}

/// A dead letter: an entry of the stream as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Which one; the time in it is when the job died.
    pub entry: EntryId,
    /// Whether it holds no job that could go back.
    pub malformed: bool,
    /// Its fields and what they say.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where it goes on; `None` at the end.
    pub next: Option<EntryId>,
    /// The letters, oldest first.
    pub letters: Vec<Letter>,
}

/// The result of a part of a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// Where it goes on; `None` at the end.
    pub next: Option<EntryId>,
    /// The last entry that it is about.
    pub upto: EntryId,
    /// Letters that hold no job that could go back.
    pub malformed: u64,
    /// The others by bucket.
    pub buckets: Vec<CountedBucket>,
}

/// The dead letters of a bucket, and its rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedBucket {
    /// Its name.
    pub bucket: String,
    /// How many.
    pub letters: u64,
    /// Jobs in a period.
    pub count: u32,
    /// The length of a period.
    pub period: Duration,
}

/// An action on dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Put them back through their buckets.
    Retry,
    /// Delete them.
    Drop,
}

/// A command that changes dead letters, in as many calls as it takes; one event tells of all of them.
#[derive(Debug, Clone)]
pub struct Command {
    /// The action.
    pub act: Act,
    /// The letters; `after` moves on with each call.
    pub filter: Filter,
    /// How many more letters at most; `None`: all.
    pub most: Option<u64>,
    /// Who does it.
    pub author: Author,
    /// How it was before, in words.
    pub before: String,
    /// The name of the letters in the event: the glob of their buckets, or nothing.
    pub label: String,
    /// How many were changed so far.
    pub done: u64,
    /// Its event, if one was written.
    event: String,
}

/// The result of one call of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Whether another call has something to do.
    pub goes_on: bool,
    /// Letters that hold no job and were left alone.
    pub malformed: u64,
    /// Letters that could not be put back.
    pub kept: u64,
    /// Why some could not be put back: a key, and what Redis said of it.
    pub why: Option<(String, String)>,
}

impl CountedBucket {
    /// For how long the bucket will be busy with them.
    pub fn busy(&self) -> Duration {
        let seconds = self.period.as_secs_f64() * self.letters as f64 / f64::from(self.count);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

impl Letter {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().rev().find(|(field, _)| field == name.as_bytes()).map(|(_, value)| value.as_slice())
    }
}

impl Command {
    /// A command that has done nothing yet.
    pub fn new(act: Act, filter: Filter, most: Option<u64>, author: Author, before: String) -> Self {
        let label = filter.bucket.clone().unwrap_or_default();
        Self { act, filter, most, author, before, label, done: 0, event: String::new() }
    }
}

fn texts(filter: &Filter) -> [String; 5] {
    let id = |id: Option<EntryId>| id.map(|id| id.to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    [id(filter.after), id(filter.upto), text(&filter.bucket), text(&filter.reason), text(&filter.id)]
}

/// Where something goes on: an id, or nothing.
fn next(text: &str) -> Result<Option<EntryId>, BadEntryId> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

impl Partitions {
    /// The time on the server's clock, milliseconds since the epoch.
    pub async fn time_ms(&mut self) -> Result<u64, StoreError> {
        let mut store = self.any();
        let (seconds, us): (u64, u64) = store.read("TIME", &redis::cmd("TIME")).await?;
        Ok(seconds * 1_000 + us / 1_000)
    }

    /// How many dead letters there are.
    pub async fn dead_length(&mut self) -> Result<u64, StoreError> {
        Ok(self.all(async |mut store: Store| store.dead_length().await).await?.into_iter().sum())
    }

    /// A page of the dead letters that a filter finds, oldest first: at most `most`, and [`PAGE_MOST`]. Letters of several partitions
    /// may have one id; those stand in one page.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `WRONGTYPE` where the key is no stream.
    pub async fn dead_page(&mut self, filter: &Filter, most: u64) -> Result<Page, StoreError> {
        let mut pages = self.all(async |mut store: Store| store.dead_page(filter, most).await).await?;
        if pages.len() == 1 {
            return Ok(pages.remove(0));
        }
        // Up to here all of them were looked at.
        let mut next = pages.iter().filter_map(|page| page.next).min();
        let mut letters: Vec<Letter> = pages.into_iter().flat_map(|page| page.letters).collect();
        letters.retain(|letter| next.is_none_or(|next| letter.entry <= next));
        letters.sort_by_key(|letter| letter.entry);
        let at = usize::try_from(most).unwrap_or(usize::MAX).checked_sub(1);
        if let Some(last) = at.and_then(|at| letters.get(at)).map(|letter| letter.entry) {
            let kept = letters.partition_point(|letter| letter.entry <= last);
            if kept < letters.len() {
                letters.truncate(kept);
                next = Some(last);
            }
        }
        Ok(Page { next, letters })
    }
}

impl Store {
    async fn dead_length(&mut self) -> Result<u64, StoreError> {
        self.read("XLEN", redis::cmd("XLEN").arg(self.keys().dead())).await
    }

    /// A call that looks only.
    async fn dead_look(
        &mut self,
        name: &'static str,
        filter: &Filter,
        more: impl ToRedisArgs,
    ) -> Result<Reply, StoreError> {
        self.call_read_only(name, &[self.keys().dead()], ("", &texts(filter), more)).await
    }

    async fn dead_page(&mut self, filter: &Filter, most: u64) -> Result<Page, StoreError> {
        type Parts = (String, Vec<(String, i64, Vec<(Vec<u8>, Vec<u8>)>)>);
        let reply = self.dead_look("drip__dead_list", filter, most.min(PAGE_MOST)).await?;
        reply.decode_with(|(on, letters): Parts| {
            let letter = |(id, malformed, fields): (String, i64, _)| {
                Some(Letter { entry: id.parse().ok()?, malformed: malformed == 1, fields })
            };
            let letters = letters.into_iter().map(letter).collect::<Option<_>>()?;
            Some(Page { next: next(&on).ok()?, letters })
        })
    }

    /// A part of a count of the dead letters that a filter finds, of at most `most`; the malformed ones count towards that
    /// where `with_malformed` says so.
    ///
    /// # Errors
    ///
    /// As [`Partitions::dead_page`].
    pub async fn dead_count(
        &mut self,
        filter: &Filter,
        most: Option<u64>,
        with_malformed: bool,
    ) -> Result<Counted, StoreError> {
        type Parts = (String, String, u64, Vec<(String, u64, u32, u64)>);
        let most = most.map(|most| most.to_string()).unwrap_or_default();
        let reply = self.dead_look("drip__dead_count", filter, (most, with_malformed)).await?;
        reply.decode_with(|(on, upto, malformed, buckets): Parts| {
            let bucket = |(bucket, letters, count, period_us)| {
                let period = Duration::from_micros(period_us);
                CountedBucket { bucket, letters, count, period }
            };
            let (next, upto) = (next(&on).ok()?, upto.parse().ok()?);
            Some(Counted { next, upto, malformed, buckets: buckets.into_iter().map(bucket).collect() })
        })
    }

    /// The next call of a command.
    ///
    /// # Errors
    ///
    /// As [`Partitions::dead_page`]. [`StoreError::Lost`]: it is safe to repeat, but what the lost call did is not counted.
    pub async fn dead_change(&mut self, command: &mut Command) -> Result<Changed, StoreError> {
        type Parts = (String, u64, u64, u64, u64, String, Vec<(String, String, String, u64)>);
        let name = match command.act {
            Act::Retry => "drip__dead_retry",
            Act::Drop => "drip__dead_drop",
        };
        let most = command.most.map(|most| most.to_string()).unwrap_or_default();
        let Command { author, label, before, done, event, filter, .. } = &*command;
        let args = ("", &texts(filter), most, &author.by, &author.user, label, before, event, done);
        let reply = self.call_function(name, &[self.keys().dead()], args).await?;
        let (on, changed, malformed, kept, _left, event, notes): Parts = reply.decode()?;
        let on = next(&on).map_err(|_| reply.unexpected())?;
        (command.event, command.done) = (event, command.done + changed);
        command.most = command.most.map(|most| most.saturating_sub(changed));
        command.filter.after = on.or(command.filter.after);
        let why =
            notes.into_iter().find(|(kind, ..)| kind == "refused").map(|(_, subject, detail, _)| (subject, detail));
        Ok(Changed { goes_on: on.is_some() && command.most != Some(0), malformed, kept, why })
    }
}
