//! `dripd dead`: jobs that were given up: look at them, put them back through their buckets, or drop them.

mod change;
mod list;

use clap::{Args, Subcommand};

use super::moment::Moment;
use super::{Exit, Failure};
use crate::config::Config;
use crate::store::dead::{Filter, LONGEST_GLOB, PAGE_MOST};
use crate::store::{Store, StoreError};
use crate::words::bucket::BucketName;
use crate::words::entry::EntryId;
use crate::words::glob;
use crate::worker::identity;

/// Look at jobs that were given up, put them back, or drop them.
#[derive(Debug, Args)]
pub(super) struct Dead {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show them, the oldest first
    List(list::List),
    /// Put them back through their buckets, ahead of what waits there, at the buckets' rates
    Retry(change::Change),
    /// Delete them for good
    Drop(change::Change),
}

/// Which dead letters: those that all of it finds; without any of it, all.
#[derive(Debug, Args)]
struct Which {
    /// Of buckets whose names this matches: sms:*
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    bucket: Option<String>,
    /// Given up for a reason that this matches: 'http 5*'
    #[arg(long, value_name = "GLOB", value_parser = short_glob)]
    reason: Option<String>,
    /// One job: its id as workers and logs know it, its id in the streams, or its entry here
    #[arg(long, value_name = "ID")]
    id: Option<Id>,
    /// That died before a time, as in 2026-05-01T12:00:00Z, or so long ago, as in 2h
    #[arg(long, value_name = "T")]
    before: Option<Moment>,
}

/// How a job is named: by an id in a stream, and for one that is known outside of it the digest of its bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Id {
    entry: EntryId,
    known_as: Option<String>,
}

impl std::str::FromStr for Id {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write 1750000000000-0, or with the digest of its bucket 1750000000000-0-822b33ad87c148a0";
        let is_digest = |digest: &str| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (entry, known_as) = match text.rsplit_once('-') {
            Some((entry, digest)) if is_digest(digest) && entry.contains('-') => (entry, Some(text.to_owned())),
            _ => (text, None),
        };
        Ok(Self { entry: entry.parse().map_err(|_| WRONG)?, known_as })
    }
}

/// A glob that the functions take. An empty one would match nothing, and is more likely a variable without a value.
fn short_glob(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; leave the option out for all".to_owned());
    }
    if text.len() > LONGEST_GLOB {
        return Err(format!("it has {} bytes; {LONGEST_GLOB} are allowed", text.len()));
    }
    Ok(text.to_owned())
}

impl Which {
    /// The filter that it stands for; `None` where nothing can be found.
    async fn filter(&self, store: &mut Store) -> Result<Option<Filter>, StoreError> {
        let mut filter = Filter {
            bucket: self.bucket.clone(),
            reason: self.reason.clone(),
            id: self.id.as_ref().map(|id| id.entry),
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
    fn in_words(&self) -> String {
        let id = self.id.as_ref().map(|id| id.known_as.clone().unwrap_or_else(|| id.entry.to_string()));
        let bucket = self.bucket.as_ref().map(|glob| format!(" of {glob}"));
        let reason = self.reason.as_ref().map(|glob| format!(" with reason {glob}"));
        [bucket, reason, id.map(|id| format!(" with id {id}"))].into_iter().flatten().collect()
    }
}

/// The bucket of the job that is known outside of its stream by this identity.
async fn bucket_of(store: &mut Store, filter: &Filter, known_as: &str) -> Result<Option<BucketName>, StoreError> {
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

impl Dead {
    pub(super) fn tried(&self) -> &'static str {
        match self.what {
            What::List(_) => "list dead letters",
            What::Retry(_) => "put dead letters back",
            What::Drop(_) => "delete dead letters",
        }
    }

    pub(super) async fn run(self, config: &Config) -> Result<Exit, Failure> {
        use crate::store::dead::Act;
        match self.what {
            What::List(list) => list.run(config).await,
            What::Retry(change) => change.run(Act::Retry, config).await,
            What::Drop(change) => change.run(Act::Drop, config).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_an_id_in_a_stream_or_by_its_identity_outside() {
        let entry = EntryId { ms: 1_750_000_000_000, seq: 7 };
        assert_eq!("1750000000000-7".parse(), Ok(Id { entry, known_as: None }));
        let outside = "1750000000000-7-822b33ad87c148a0";
        assert_eq!(outside.parse(), Ok(Id { entry, known_as: Some(outside.to_owned()) }));
        // 16 digits behind one dash are a number, however much they look like a digest.
        let long = EntryId { ms: 1, seq: 1_234_567_890_123_456 };
        assert_eq!("1-1234567890123456".parse(), Ok(Id { entry: long, known_as: None }));
        for bad in ["", "x", "1750000000000", "1-2-3", "1-2-822b33ad87c148ag"] {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
    }
}
