//! `dead`: list dead letters, count them, and put them back or drop them.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::dead_filter::DeadFilter;
use crate::model::counted::counted;
use crate::model::entry::EntryId;
use crate::store::change::Author;
use crate::store::dead::{Act, Changed, Command, CountedBucket, Filter, Letter};
use crate::store::link::OfStore;
use crate::store::{Partitions, Store, StoreError};

/// List dead letters, the oldest first.
#[derive(Debug, Clone)]
pub struct DeadListRequest {
    /// The filter of the letters.
    pub filter: DeadFilter,
    /// Only letters after this entry.
    pub after: Option<EntryId>,
    /// The most letters to show.
    pub limit: u64,
    /// The most calls to look for them: then the page ends early, and the next one goes on there. `None`: as many as it
    /// takes.
    pub calls: Option<u32>,
}

/// Put dead letters back, or drop them.
#[derive(Debug, Clone)]
pub struct DeadRequest {
    /// A retry or a drop.
    pub act: Act,
    /// The filter of the letters.
    pub filter: DeadFilter,
    /// Only the oldest letters, this many; without it all.
    pub limit: Option<u64>,
    /// No letter that is newer than this entry.
    pub up_to: Option<EntryId>,
}

/// The letters that a request finds, counted before anything is changed.
#[derive(Debug, Default)]
pub struct Found {
    /// The number of letters that hold a job.
    pub letters: u64,
    /// The number of entries that are no letters of dripd's.
    pub malformed: u64,
    /// By bucket, the number of letters and the rate at which it lets them out.
    pub buckets: HashMap<String, CountedBucket>,
    /// The letters that were found, by partition.
    parts: Vec<Part>,
}

/// The letters that were found in one partition.
#[derive(Debug)]
struct Part {
    number: u8,
    filter: Filter,
    most: Option<u64>,
}

impl Found {
    /// The number of letters that the change would affect. Malformed ones can be dropped, but not put back.
    pub fn affected(&self, act: Act) -> u64 {
        match act {
            Act::Retry => self.letters,
            Act::Drop => self.letters + self.malformed,
        }
    }

    /// The newest entry that was looked at; `None` where nothing was found.
    fn up_to(&self) -> Option<EntryId> {
        self.parts.iter().filter_map(|part| part.filter.upto).max()
    }
}

/// What a change would be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeadCounted {
    /// How many were found.
    matched: u64,
    /// How many are no dead letters, and cannot go back.
    malformed: u64,
    /// How many dead letters there are.
    left: u64,
    /// By bucket.
    buckets: BTreeMap<String, Busy>,
    /// The newest that was counted: the `up_to` of the change.
    up_to: Option<String>,
}

/// For how long a bucket would be busy with what is put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
struct Busy {
    /// How many letters.
    letters: u64,
    /// For how long, at its rate.
    busy_ms: u64,
}

/// What was done with dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeadChanged {
    /// How many were found.
    pub matched: u64,
    /// Of a retry: how many went back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_back: Option<u64>,
    /// Of a drop: how many are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// How many somebody else took meanwhile.
    pub gone: u64,
    /// How many stay, because they cannot go back now.
    pub kept: u64,
    /// How many are no dead letters, and cannot go back.
    pub malformed: u64,
    /// How many dead letters there are now.
    pub left: u64,
    /// Why some stay: the key, and what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub why: Option<Obstacle>,
}

/// A key through which letters could not be put back, and the error that Redis replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The key.
    pub key: String,
    /// The error that Redis replied.
    pub why: String,
}

impl Serialize for Obstacle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}: {}", self.key, self.why))
    }
}

/// The error of a change that ended in the middle.
#[derive(Debug)]
pub struct Interrupted {
    /// The error of the call that failed.
    pub why: StoreError,
    /// The number of letters that were changed before.
    pub done: u64,
}

impl From<StoreError> for Interrupted {
    fn from(why: StoreError) -> Self {
        Self { why, done: 0 }
    }
}

impl OfStore for Interrupted {
    fn of_store(&self) -> Option<&StoreError> {
        Some(&self.why)
    }
}

/// The end of a page of letters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listed {
    /// The last entry that was shown, or up to which was looked in vain.
    pub last: Option<EntryId>,
    /// Whether more letters follow.
    pub has_more: bool,
}

impl DeadListRequest {
    /// Show letters one by one, the oldest first. `show` may end the page early.
    ///
    /// # Errors
    ///
    /// A call to Redis fails, or `show` does.
    pub async fn run<E: From<StoreError>>(
        &self,
        store: &mut Partitions,
        mut show: impl FnMut(&Letter) -> Result<ControlFlow<()>, E>,
    ) -> Result<Listed, E> {
        let (mut left, mut last) = (self.limit, None);
        let Some(mut filter) = self.filter.resolve(store).await? else { return Ok(Listed::default()) };
        filter.after = self.after;
        for call in 1_u32.. {
            // One letter more than is shown tells whether another page follows.
            let page = store.dead_page(&filter, left.saturating_add(1)).await?;
            for letter in &page.letters {
                // Letters of several partitions may have the same id; they must be on the same page.
                if left == 0 && last != Some(letter.entry) {
                    return Ok(Listed { last, has_more: true });
                }
                left = if show(letter)?.is_break() { 0 } else { left.saturating_sub(1) };
                last = Some(letter.entry);
            }
            let Some(next) = page.next else { break };
            filter.after = Some(next);
            if self.calls == Some(call) {
                return Ok(Listed { last: Some(next), has_more: true });
            }
        }
        Ok(Listed { last, has_more: false })
    }
}

impl DeadRequest {
    /// Count the letters that the filter finds, by bucket, one partition after the other. Each part ends at the last
    /// entry that was looked at, so that a later change affects exactly the letters that were counted.
    ///
    /// # Errors
    ///
    /// A call to Redis fails.
    pub async fn count(&self, store: &mut Partitions) -> Result<Found, StoreError> {
        let (act, limit, mut found) = (self.act, self.limit, Found::default());
        let Some(mut filter) = self.filter.resolve(store).await? else { return Ok(found) };
        filter.upto = filter.upto.into_iter().chain(self.up_to).min();
        for mut one in store.each() {
            let mut part = Part { number: one.keys().number(), filter: filter.clone(), most: None };
            let (before, malformed) = (found.affected(act), found.malformed);
            if limit == Some(before) {
                break;
            }
            match self.count_part(&mut one, &mut part.filter, &mut found).await {
                Err(why) if store.record_skipped(part.number, &why) => continue,
                counted => counted?,
            }
            part.most = limit.map(|_| found.affected(act) - before);
            if found.affected(act) > before || found.malformed > malformed {
                found.parts.push(part);
            }
        }
        Ok(found)
    }

    async fn count_part(&self, store: &mut Store, filter: &mut Filter, found: &mut Found) -> Result<(), StoreError> {
        let (act, limit, mut at) = (self.act, self.limit, filter.clone());
        loop {
            let most = limit.map(|limit| limit - found.affected(act));
            let part = store.dead_count(&at, most, act == Act::Drop).await?;
            found.malformed += part.malformed;
            for one in part.buckets {
                found.letters += one.letters;
                let more = one.letters;
                found.buckets.entry(one.bucket.clone()).and_modify(|known| known.letters += more).or_insert(one);
            }
            let is_enough = limit.is_some_and(|limit| found.affected(act) >= limit);
            at.upto = Some(part.upto);
            filter.upto = part.next.filter(|_| is_enough).or(at.upto);
            let Some(next) = part.next.filter(|_| !is_enough) else { return Ok(()) };
            at.after = Some(next);
        }
    }

    /// The report of a count; nothing is changed.
    ///
    /// # Errors
    ///
    /// A call to Redis fails.
    pub async fn counted(&self, store: &mut Partitions, found: &Found) -> Result<DeadCounted, StoreError> {
        let (matched, left) = (found.affected(self.act), store.dead_length().await?);
        let busy = |(name, backlog): (&String, &CountedBucket)| {
            (name.clone(), Busy { letters: backlog.letters, busy_ms: backlog.busy().as_millis() as u64 })
        };
        Ok(DeadCounted {
            matched,
            malformed: found.malformed,
            left,
            buckets: found.buckets.iter().map(busy).collect(),
            up_to: found.up_to().filter(|_| matched > 0).map(|entry| entry.to_string()),
        })
    }

    /// Change the letters that were found, in the name of `by`, in as many calls as needed.
    ///
    /// # Errors
    ///
    /// The error of the call that failed, and how many letters were changed before it.
    pub async fn run(&self, store: &mut Partitions, found: &Found, by: &str) -> Result<DeadChanged, Interrupted> {
        let matched = found.affected(self.act);
        let mut changed = DeadChanged { matched, ..DeadChanged::default() };
        let mut done = 0;
        if matched == 0 {
            changed.malformed = found.malformed;
        } else {
            let author = Author { by: by.to_owned(), user: store.whoami().await };
            let before = format!("{}{}", counted(matched, "dead letter", "dead letters"), self.filter.describe());
            for part in &found.parts {
                let mut command =
                    Command::new(self.act, part.filter.clone(), part.most, author.clone(), before.clone());
                command.label = self.filter.bucket.clone().unwrap_or_default();
                let mut one = store.at(part.number);
                let result = change_part(&mut one, &mut command, &mut changed).await;
                done += command.done;
                result.map_err(|why| Interrupted { why, done })?;
            }
        }
        changed.left = store.dead_length().await.map_err(|why| Interrupted { why, done })?;
        changed.gone = matched.saturating_sub(done + changed.kept);
        *(if self.act == Act::Retry { &mut changed.put_back } else { &mut changed.dropped }) = Some(done);
        Ok(changed)
    }
}

async fn change_part(store: &mut Store, command: &mut Command, changed: &mut DeadChanged) -> Result<(), StoreError> {
    loop {
        let Changed { goes_on, malformed, kept, why } = store.dead_change(command).await?;
        changed.malformed += malformed;
        changed.kept += kept;
        changed.why = changed.why.take().or(why.map(|(key, why)| Obstacle { key, why }));
        if !goes_on {
            return Ok(());
        }
    }
}

impl DeadChanged {
    /// The outcome as a sentence for people.
    pub fn describe(&self) -> String {
        let mut line = match (self.matched, self.put_back, self.dropped) {
            (0, ..) => "nothing to do".to_owned(),
            (_, Some(done), _) => format!("{} put back", counted(done, "dead letter", "dead letters")),
            (_, None, done) => format!("{} dropped", counted(done.unwrap_or_default(), "dead letter", "dead letters")),
        };
        if self.gone > 0 {
            line += &format!(", {} had gone by then", self.gone);
        }
        if self.malformed > 0 {
            line += &format!(", {} malformed left alone (`dripd dead drop` deletes them)", self.malformed);
        }
        format!("{line}; {} in all now", counted(self.left, "dead letter", "dead letters"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn however_many_letters_there_are_it_is_said_for_how_long_they_last() {
        let busy = |letters, count, secs| {
            CountedBucket { bucket: String::new(), letters, count, period: Duration::from_secs(secs) }.busy()
        };
        assert_eq!(busy(30, 10, 1), Duration::from_secs(3));
        assert_eq!(
            (busy(u64::MAX, 1, 31_622_400), busy(1, 0, 1), busy(0, 0, 0)),
            (Duration::MAX, Duration::MAX, Duration::MAX)
        );
    }

    #[test]
    fn the_outcome_says_what_was_done_and_what_stays() {
        let obstacle = Obstacle { key: "a key".to_owned(), why: "it is a string".to_owned() };
        let nothing = DeadChanged { put_back: Some(0), malformed: 2, left: 2, ..DeadChanged::default() };
        let malformed = "2 malformed left alone (`dripd dead drop` deletes them)";
        assert_eq!(nothing.describe(), format!("nothing to do, {malformed}; 2 dead letters in all now"));
        let some = DeadChanged { matched: 3, put_back: Some(1), gone: 1, kept: 1, left: 1, ..DeadChanged::default() };
        let some = DeadChanged { why: Some(obstacle), ..some };
        assert_eq!(some.describe(), "1 dead letter put back, 1 had gone by then; 1 dead letter in all now");
        let json = serde_json::to_value(&some).expect("JSON");
        assert_eq!((&json["why"], json.get("dropped")), (&"a key: it is a string".into(), None));
        let dropped = DeadChanged { matched: 2, dropped: Some(2), ..DeadChanged::default() };
        assert_eq!(dropped.describe(), "2 dead letters dropped; 0 dead letters in all now");
    }
}
