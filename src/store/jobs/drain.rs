//! Draining: what is due leaves its bucket, and queues that changed are looked at.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue as _, Value};

use super::note::{FlatNote, Note};
use crate::model::glob::Glob;
use crate::store::client::Store;
use crate::store::connection::{Migrations, StoreError, Text};
use crate::store::partitions::Partitions;
use crate::store::reply::{Reply, count, given, wait};

/// How many queues one call looks at.
const NAMES_PER_CALL: usize = 500;

/// The result of a drain or a wake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// How long to sleep before the next one; `None`: until woken.
    pub wait: Option<Duration>,
    /// How many jobs left their buckets.
    pub dispatched: u64,
    /// How many were cut or too large.
    pub rejected: u64,
    /// The lateness of the latest job.
    pub latest: Duration,
    /// The id of the policy record in force; `None`: none is stored.
    pub record: Option<String>,
    /// Whether a change of policy still spreads.
    pub spreading: bool,
    /// Notes for the log.
    pub notes: Vec<Note>,
    /// How many of the queues of a wake were looked at, the rest is for the next call; 0 of a drain, and of a wake that was spent
    /// before, on what settings that ended had left behind.
    pub looked: usize,
}

impl Store {
    /// Look at queues that changed, if any, and let out what is due. Where no record is stored nothing is done, and the reply says
    /// so: the built-in defaults are not this daemon's.
    ///
    /// # Errors
    ///
    /// [`StoreError::Lost`]: the call is safe to repeat.
    pub async fn drain(&mut self, woken: &[Arc<str>]) -> Result<Drained, StoreError> {
        let drained = self.drain_with(woken, self.resumed_ago_us()).await;
        self.note_migration(&drained);
        drained
    }

    async fn drain_with(&mut self, woken: &[Arc<str>], resumed_ago_us: Option<u128>) -> Result<Drained, StoreError> {
        let args = ("", 1, resumed_ago_us);
        if woken.is_empty() {
            let reply = self.call_function("drip__drain", &[self.keys().schedule()], args).await?;
            return reply.first(7).decode_with(drained);
        }
        let queues: Vec<String> = woken.iter().map(|name| format!("{}{name}", self.keys().queues())).collect();
        let reply = self.call_function("drip__wake", &queues, args).await?;
        wake_reply(reply)
    }

    /// Look at some queues, and let out nothing. Where no record is stored nothing is done.
    pub(in crate::store) async fn look_at(&mut self, queues: &[Vec<u8>]) -> Result<(), StoreError> {
        let mut rest = queues;
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(NAMES_PER_CALL)];
            let reply = self.call_function("drip__wake", some, ("", "look")).await?;
            let drained = wake_reply(reply)?;
            if drained.record.is_none() {
                return Ok(());
            }
            rest = &rest[drained.looked.min(rest.len())..];
        }
        Ok(())
    }

    /// How long ago its partition was last seen on the move, in microseconds, as the functions take it.
    fn resumed_ago_us(&self) -> Option<u128> {
        let topology = self.topology.upgrade()?;
        let ago = topology.migrations()?.ago(self.keys().number())?;
        Some(ago.as_micros())
    }

    /// A drain of its partition came back.
    fn note_migration(&self, drained: &Result<Drained, StoreError>) {
        if let Some(topology) = self.topology.upgrade()
            && let Some(migrations) = topology.migrations()
        {
            note(migrations, self.keys().number(), drained);
        }
    }
}

/// Note whether a partition is on the move, and when no job waits any more that is late because it was.
fn note(migrations: &Migrations, number: u8, drained: &Result<Drained, StoreError>) {
    match drained {
        Err(why) if why.is_migrating() => migrations.note(number),
        Ok(drained) if drained.record.is_some() && drained.wait != Some(Duration::ZERO) => migrations.end(number),
        _ => {}
    }
}

impl Partitions {
    /// Look at the queue of each bucket that a glob matches, and let out nothing: what was pushed by now is judged by what holds now.
    /// Where no record is stored nothing is done.
    pub async fn look_at_all(&mut self, glob: &Glob) -> Result<(), StoreError> {
        for mut primary in self.primaries() {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = match primary.scan_queues(at).await {
                    Err(why) if self.tolerates(&why) => break, // its partitions are skipped
                    page => page?,
                };
                for (mut store, mut queues) in primary.sorted(page.queues).by_partition {
                    queues.retain(|key| store.bucket_of(key).is_some_and(|bucket| glob.matches(bucket.as_bytes())));
                    match store.look_at(&queues).await {
                        Err(why) if self.record_skipped(store.keys().number(), &why) => {}
                        looked => looked?,
                    }
                }
                cursor = page.next;
            }
        }
        Ok(())
    }
}

/// The wait, dispatched and rejected jobs, the lateness, the id of the record, whether a change spreads, and the notes.
type DrainReply = (i64, i64, i64, i64, Text, i64, Vec<FlatNote>);

fn drained((wait_us, dispatched, rejected, latest_us, Text(record), spreading, notes): DrainReply) -> Option<Drained> {
    Some(Drained {
        wait: wait(wait_us, Duration::from_micros),
        dispatched: count(dispatched)?,
        rejected: count(rejected)?,
        latest: Duration::from_micros(count(latest_us)?),
        record: given(record),
        spreading: spreading == 1,
        notes: Note::all(notes),
        looked: 0,
    })
}

/// The reply of a wake: that of a drain, and how many queues were looked at. Without that number nobody knows where to go on: a 0 in its
/// place would send the same names for ever.
fn wake_reply(reply: Reply) -> Result<Drained, StoreError> {
    let looked = match &reply.value {
        Value::Array(items) => items.get(7).and_then(|n| usize::try_from(i64::from_redis_value_ref(n).ok()?).ok()),
        _ => None,
    };
    let looked = looked.ok_or_else(|| reply.unexpected())?;
    Ok(Drained { looked, ..reply.first(7).decode_with(drained)? })
}

#[cfg(test)]
mod tests {
    use super::super::note::NoteKind;
    use super::*;

    fn refused(code: &str) -> Result<Drained, StoreError> {
        Err(StoreError::Refused { call: "drip__drain", code: code.to_owned(), message: String::new() })
    }

    fn drained_with(wait: Option<Duration>) -> Drained {
        Drained {
            wait,
            dispatched: 1,
            rejected: 0,
            latest: Duration::ZERO,
            record: Some("a".to_owned()),
            spreading: false,
            notes: Vec::new(),
            looked: 0,
        }
    }

    #[test]
    fn it_is_told_until_nothing_waits_that_was_due_while_the_partition_was_on_the_move() {
        let migrations = Migrations::default();
        for code in ["MOVED", "CLUSTERDOWN"] {
            note(&migrations, 3, &refused(code));
            assert_eq!(migrations.ago(3), None, "{code} is no move of keys");
        }
        note(&migrations, 3, &refused("TRYAGAIN"));
        note(&migrations, 3, &refused("ASK"));
        assert!(migrations.ago(3).is_some());
        assert_eq!(migrations.ago(4), None, "it is known of each");
        note(&migrations, 3, &Ok(drained_with(Some(Duration::ZERO))));
        assert!(migrations.ago(3).is_some(), "more is due");
        note(&migrations, 3, &Ok(drained_with(Some(Duration::from_millis(5)))));
        assert_eq!(migrations.ago(3), None);
    }

    fn texts(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect())
    }

    fn reply(call: &'static str, notes: Value, looked: Option<i64>) -> Reply {
        let mut items: Vec<Value> = [250, 3, 1, 40].into_iter().map(Value::Int).collect();
        items.extend([Value::BulkString(b"abc".to_vec()), Value::Int(1), notes]);
        items.extend(looked.map(Value::Int));
        Reply { call, value: Value::Array(items) }
    }

    #[test]
    fn a_drain_and_a_wake_are_decoded_into_names() {
        let notes = texts(&["wrong-type", "drip:queue:b", "", "2", "odd", "x", "why", "1"]);
        let drained = reply("drip__drain", notes.clone(), None).decode_with(drained).expect("a reply");
        assert_eq!((drained.wait, drained.dispatched), (Some(Duration::from_micros(250)), 3));
        assert_eq!((drained.record.as_deref(), drained.spreading), (Some("abc"), true));
        let (subject, detail) = ("drip:queue:b".to_owned(), String::new());
        assert_eq!(drained.notes[0], Note { kind: NoteKind::WrongType, subject, detail, count: 2 });
        assert_eq!(drained.notes[1].kind, NoteKind::Other("odd".to_owned()));
        assert_eq!(wake_reply(reply("drip__wake", notes, Some(7))).expect("a reply").looked, 7);
    }

    #[test]
    fn a_missing_number_is_an_error_and_no_zero() {
        let wake = reply("drip__wake", texts(&[]), None);
        assert!(matches!(wake_reply(wake), Err(StoreError::Reply { call: "drip__wake", .. })));
        for cut in 0..7 {
            let short = reply("drip__drain", texts(&[]), None).first(cut);
            assert!(short.decode_with(drained).is_err(), "{cut} items");
        }
        for (note, what) in [(&["refused", "x", "y"][..], "half a note"), (&["refused", "x", "y", "many"], "no number")]
        {
            assert!(reply("drip__drain", texts(note), None).decode_with(drained).is_err(), "{what}");
        }
    }
}
