//! Dead letters: which ones are meant, how many those are, and what is done with them.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::moment::Moment;
use crate::store::change::Author;
use crate::store::dead::{Act, Changed, Command, Filter, LONGEST_GLOB, Letter, PAGE_MOST};
use crate::store::{Store, StoreError, Whole};
use crate::words::bucket::BucketName;
use crate::words::entry::EntryId;
use crate::words::glob;
use crate::worker::identity;

/// Which dead letters: those that all of it finds; without any of it, all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of buckets whose names a glob matches.
    pub bucket: Option<String>,
    /// Given up for a reason that a glob matches.
    pub reason: Option<String>,
    /// One job.
    pub id: Option<Id>,
    /// That died before a time.
    pub before: Option<Moment>,
}

/// How a job is named: by an id in a stream, and for one that is known outside of it the digest of its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    /// The id in a stream: that of an entry, or one that a producer gave.
    pub entry: String,
    /// The whole identity.
    pub known_as: Option<String>,
}

impl std::str::FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write 1750000000000-0, or with the digest of its bucket 1750000000000-0-822b33ad87c148a0, or the id that its \
                             producer gave it, 1 to 200 bytes of ! to ~";
        let is_digest = |digest: &str| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (entry, known_as) = match text.rsplit_once('-') {
            Some((entry, digest)) if is_digest(digest) && (entry.contains('-') || text.parse::<EntryId>().is_err()) => {
                (entry, Some(text.to_owned()))
            }
            _ => (text, None),
        };
        let is_id = (1..=200).contains(&entry.len()) && entry.bytes().all(|byte| byte.is_ascii_graphic());
        if is_id { Ok(Self { entry: entry.to_owned(), known_as }) } else { Err(WRONG) }
    }
}

/// A glob that the functions take. An empty one would match nothing, and is more likely a variable without a value.
///
/// # Errors
///
/// What is wrong with it.
pub fn short_glob(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; leave the option out for all".to_owned());
    }
    if text.len() > LONGEST_GLOB {
        return Err(format!("it has {} bytes; {LONGEST_GLOB} are allowed", text.len()));
    }
    Ok(text.to_owned())
}

impl Wanted {
    /// The filter that it stands for; `None` where nothing can be found.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn filter(&self, store: &mut Whole) -> Result<Option<Filter>, StoreError> {
        let mut filter = Filter {
            bucket: self.bucket.clone(),
            reason: self.reason.clone(),
            id: self.id.as_ref().map(|id| id.entry.clone()),
            ..Filter::default()
        };
        if let Some(before) = self.before {
            let now_ms = if let Moment::Ago(_) = before { store.time_ms().await? } else { 0 };
            filter.upto = Some(EntryId::before(before.ms(now_ms)));
        }
        let Some(known_as) = self.id.as_ref().and_then(|id| id.known_as.as_deref()) else { return Ok(Some(filter)) };
        let Some(bucket) = bucket_of(store, &filter, known_as).await? else { return Ok(None) };
        filter.bucket = Some(glob::of_name(bucket.as_str()));
        Ok(Some(filter))
    }

    /// In words, for the event.
    #[must_use]
    pub fn in_words(&self) -> String {
        let id = self.id.as_ref().map(|id| id.known_as.clone().unwrap_or_else(|| id.entry.clone()));
        let bucket = self.bucket.as_ref().map(|glob| format!(" of {glob}"));
        let reason = self.reason.as_ref().map(|glob| format!(" with reason {glob}"));
        [bucket, reason, id.map(|id| format!(" with id {id}"))].into_iter().flatten().collect()
    }
}

/// The bucket of the job that is known outside of its stream by this identity.
async fn bucket_of(store: &mut Whole, filter: &Filter, known_as: &str) -> Result<Option<BucketName>, StoreError> {
    let mut filter = filter.clone();
    loop {
        let page = store.dead_page(&filter, PAGE_MOST).await?;
        for letter in page.letters {
            let bucket = letter.field("bucket").and_then(|name| BucketName::parse(name).ok());
            let id = letter.field("id").map(String::from_utf8_lossy);
            if let (Some(bucket), Some(id)) = (bucket, id)
                && identity(&id, &bucket).eq_ignore_ascii_case(known_as)
            {
                return Ok(Some(bucket));
            }
        }
        let Some(next) = page.next else { return Ok(None) };
        filter.after = Some(next);
    }
}

/// What was found before anything is done.
#[derive(Default)]
pub struct Found {
    /// Letters that hold a job.
    pub letters: u64,
    /// Others.
    pub malformed: u64,
    /// How many of each bucket, and the time in which it lets one out.
    pub buckets: HashMap<String, Backlog>,
    /// Those that a change is about.
    parts: Vec<Part>,
}

/// What was found in one partition.
struct Part {
    number: u8,
    filter: Filter,
    most: Option<u64>,
}

/// What is to be done with what was found, and what its event says.
pub struct Order {
    /// What is done.
    pub act: Act,
    /// Who does it.
    pub author: Author,
    /// How it was before, in words.
    pub before: String,
    /// What the event calls them.
    pub label: String,
}

/// The letters of a bucket, and its rate.
pub struct Backlog {
    /// How many letters.
    pub letters: u64,
    /// Jobs in a period.
    pub count: u32,
    /// The length of a period.
    pub period: Duration,
}

impl Found {
    /// How many of them would be changed: what is malformed cannot go back.
    #[must_use]
    pub fn affected(&self, act: Act) -> u64 {
        match act {
            Act::Retry => self.letters,
            Act::Drop => self.letters + self.malformed,
        }
    }

    /// The last entry that was looked at; nothing where nothing was found.
    #[must_use]
    pub fn upto(&self) -> Option<EntryId> {
        self.parts.iter().filter_map(|part| part.filter.upto).max()
    }
}

impl Backlog {
    /// For how long the bucket will be busy with them.
    #[must_use]
    pub fn busy(&self) -> Duration {
        let seconds = self.period.as_secs_f64() * self.letters as f64 / f64::from(self.count);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// What was done in the end.
#[derive(Default)]
pub struct Outcome {
    /// Letters that were changed.
    pub done: u64,
    /// Letters that hold no job and were left alone.
    pub malformed: u64,
    /// Letters that could not be put back.
    pub kept: u64,
    /// Letters in the stream now.
    pub left: u64,
    /// Why some could not be put back: a key, and what Redis said of it.
    pub why: Option<(String, String)>,
}

/// Count what the filter finds, by bucket, partition by partition, and end each part with the last entry that was looked at: what is
/// changed afterwards is then no other than what was counted.
///
/// # Errors
///
/// As any call.
pub async fn count(store: &mut Whole, act: Act, filter: &Filter, limit: Option<u64>) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for mut one in store.each() {
        let mut part = Part { number: one.keys().number(), filter: filter.clone(), most: None };
        let (before, malformed) = (found.affected(act), found.malformed);
        if limit == Some(before) {
            break;
        }
        match count_part(&mut one, act, &mut part.filter, limit, &mut found).await {
            Err(why) if store.passes_over(part.number, &why) => continue,
            counted => counted?,
        }
        part.most = limit.map(|_| found.affected(act) - before);
        if found.affected(act) > before || found.malformed > malformed {
            found.parts.push(part);
        }
    }
    Ok(found)
}

async fn count_part(
    store: &mut Store,
    act: Act,
    filter: &mut Filter,
    limit: Option<u64>,
    found: &mut Found,
) -> Result<(), StoreError> {
    let mut at = filter.clone();
    loop {
        let most = limit.map(|limit| limit - found.affected(act));
        let part = store.dead_count(&at, most, act == Act::Drop).await?;
        found.malformed += part.malformed;
        for one in part.buckets {
            found.letters += one.letters;
            let fresh = Backlog { letters: 0, count: one.count, period: one.period };
            found.buckets.entry(one.bucket).or_insert(fresh).letters += one.letters;
        }
        let is_enough = limit.is_some_and(|limit| found.affected(act) >= limit);
        at.upto = Some(part.upto);
        filter.upto = part.next.filter(|_| is_enough).or(at.upto);
        let Some(next) = part.next.filter(|_| !is_enough) else { return Ok(()) };
        at.after = Some(next);
    }
}

/// Change what was found, in as many calls as it takes. `done` says how many were done, also when a call fails.
///
/// # Errors
///
/// What a call met.
pub async fn run(store: &mut Whole, found: &Found, order: &Order, done: &mut u64) -> Result<Outcome, StoreError> {
    let mut outcome = Outcome::default();
    for part in &found.parts {
        let (filter, author) = (part.filter.clone(), order.author.clone());
        let mut command = Command::new(order.act, filter, part.most, author, order.before.clone());
        order.label.clone_into(&mut command.label);
        let (mut one, before) = (store.at(part.number), *done);
        loop {
            let changed = one.dead_change(&mut command).await;
            *done = before + command.done;
            let Changed { goes_on, malformed, kept, why } = changed?;
            outcome.malformed += malformed;
            outcome.kept += kept;
            outcome.why = outcome.why.or(why);
            if !goes_on {
                break;
            }
        }
    }
    Ok(Outcome { done: *done, left: store.dead_length().await?, ..outcome })
}

/// What was done, of so many that were found before.
#[must_use]
pub fn outcome_as_json(act: Act, matched: u64, outcome: &Outcome) -> serde_json::Value {
    json!(Said::of(act, matched, outcome))
}

/// What was done with dead letters.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = DeadChanged)]
pub struct Said {
    /// How many were found.
    matched: u64,
    /// Of a retry: how many went back.
    #[serde(skip_serializing_if = "Option::is_none")]
    put_back: Option<u64>,
    /// Of a drop: how many are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u64>,
    /// How many somebody else took meanwhile.
    gone: u64,
    /// How many stay, because they cannot go back now.
    kept: u64,
    /// How many are no dead letters, and cannot go back.
    malformed: u64,
    /// How many dead letters there are now.
    left: u64,
    /// Why some stay: the key, and what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl Said {
    /// What was done, of so many that were found before; without why.
    #[must_use]
    pub fn of(act: Act, matched: u64, outcome: &Outcome) -> Self {
        let &Outcome { done, malformed, kept, left, .. } = outcome;
        let (put_back, dropped) = if act == Act::Retry { (Some(done), None) } else { (None, Some(done)) };
        let gone = matched.saturating_sub(done + kept);
        Self { matched, put_back, dropped, gone, kept, malformed, left, why: None }
    }
}

/// What a job is called outside of its stream.
#[must_use]
pub fn known_as(letter: &Letter) -> Option<String> {
    let bucket = BucketName::parse(letter.field("bucket")?).ok()?;
    let id: Id = std::str::from_utf8(letter.field("id")?).ok().filter(|id| !id.is_empty())?.parse().ok()?;
    Some(identity(id.known_as.as_deref().unwrap_or(&id.entry), &bucket))
}

/// The fields that no dead letter of dripd's has.
pub fn others(letter: &Letter) -> impl Iterator<Item = (&[u8], &[u8])> {
    let is_ours = |name: &[u8]| [b"bucket".as_slice(), b"job", b"attempt", b"id", b"reason"].contains(&name);
    let others = letter.fields.iter().filter(move |(name, _)| !is_ours(name));
    others.map(|(name, value)| (name.as_slice(), value.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_letters_there_are_it_is_said_for_how_long_they_last() {
        let busy = |letters, count, secs| Backlog { letters, count, period: Duration::from_secs(secs) }.busy();
        assert_eq!(busy(30, 10, 1), Duration::from_secs(3));
        assert_eq!(
            (busy(u64::MAX, 1, 31_622_400), busy(1, 0, 1), busy(0, 0, 0)),
            (Duration::MAX, Duration::MAX, Duration::MAX)
        );
    }

    #[test]
    fn a_job_is_named_by_an_id_in_a_stream_or_by_its_identity_outside() {
        let entry = "1750000000000-7".to_owned();
        assert_eq!("1750000000000-7".parse(), Ok(Id { entry: entry.clone(), known_as: None }));
        let outside = "1750000000000-7-822b33ad87c148a0";
        assert_eq!(outside.parse(), Ok(Id { entry, known_as: Some(outside.to_owned()) }));
        // 16 digits behind one dash are a number, however much they look like a digest.
        let long = "1-1234567890123456".to_owned();
        assert_eq!(long.parse(), Ok(Id { entry: long.clone(), known_as: None }));
        let given = "order-7-822b33ad87c148a0".to_owned();
        assert_eq!(given.parse(), Ok(Id { entry: "order-7".to_owned(), known_as: Some(given.clone()) }));
        assert_eq!("order-7".parse(), Ok(Id { entry: "order-7".to_owned(), known_as: None }));
        for bad in ["", "a b", "caf\u{e9}", "x\n"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }
}
