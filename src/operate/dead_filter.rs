//! Filters of dead letters, and the ids by which they name jobs.

use clap::Args;

use super::moment::Moment;
use crate::model::bucket::BucketName;
use crate::model::entry::EntryId;
use crate::model::glob;
use crate::store::dead::{Filter, LONGEST_GLOB, Letter, PAGE_MOST};
use crate::store::{Partitions, StoreError};
use crate::worker::identity;

/// A filter of dead letters: they must match all of it; an empty filter finds all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct DeadFilter {
    /// Of buckets whose names this matches: sms:*
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    pub bucket: Option<String>,
    /// Given up for a reason that this matches: 'HTTP 5*'
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    pub reason: Option<String>,
    /// One job: its id as workers and logs know it, its id in the streams, or its entry here
    #[arg(long, value_name = "ID")]
    pub id: Option<Id>,
    /// That died before a time, as in 2026-05-01T12:00:00Z, or so long ago, as in 2h
    #[arg(long, value_name = "T")]
    pub before: Option<Moment>,
}

/// The id of a job as an operator writes it: an id in a stream, or an identity outside of it, which adds the digest of
/// the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    /// The id in the stream: that of an entry, or one that a producer gave.
    pub entry: String,
    /// The whole identity, if that was given.
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

/// Check a glob for the functions. An empty one would match nothing, and is more likely a variable without a value.
///
/// # Errors
///
/// The glob is empty or too long.
pub fn short_glob(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; leave the option out for all".to_owned());
    }
    if text.len() > LONGEST_GLOB {
        return Err(format!("it has {} bytes; {LONGEST_GLOB} are allowed", text.len()));
    }
    Ok(text.to_owned())
}

impl DeadFilter {
    /// The filter as the functions take it; `None` where nothing can match.
    pub(super) async fn resolve(&self, store: &mut Partitions) -> Result<Option<Filter>, StoreError> {
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

    /// The filter in words, for the event that records the change.
    pub(super) fn describe(&self) -> String {
        let id = self.id.as_ref().map(|id| id.known_as.clone().unwrap_or_else(|| id.entry.clone()));
        let bucket = self.bucket.as_ref().map(|glob| format!(" of {glob}"));
        let reason = self.reason.as_ref().map(|glob| format!(" with reason {glob}"));
        [bucket, reason, id.map(|id| format!(" with id {id}"))].into_iter().flatten().collect()
    }
}

/// The bucket of the dead letter whose job has this identity; `None` if there is no such letter.
async fn bucket_of(store: &mut Partitions, filter: &Filter, known_as: &str) -> Result<Option<BucketName>, StoreError> {
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

/// The identity of a letter's job, by which it is known outside of its stream; `None` for a malformed letter.
pub fn known_as(letter: &Letter) -> Option<String> {
    let bucket = BucketName::parse(letter.field("bucket")?).ok()?;
    let id: Id = std::str::from_utf8(letter.field("id")?).ok().filter(|id| !id.is_empty())?.parse().ok()?;
    Some(identity(id.known_as.as_deref().unwrap_or(&id.entry), &bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_an_id_in_a_stream_or_by_its_identity_outside() {
        let entry = "1750000000000-7".to_owned();
        assert_eq!("1750000000000-7".parse(), Ok(Id { entry: entry.clone(), known_as: None }));
        let outside = "1750000000000-7-822b33ad87c148a0";
        assert_eq!(outside.parse(), Ok(Id { entry, known_as: Some(outside.to_owned()) }));
        // 16 digits after a single dash are the second number of an entry id, though they look like a digest.
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
