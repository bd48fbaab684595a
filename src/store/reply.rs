//! What the functions reply, decoded once into names.

use std::time::Duration;

use redis::Value;

use super::StoreError;
use super::note::{Note, NoteKind};
use crate::words::bucket::BucketName;

/// What a drain or a wake did.
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
    /// What should be logged.
    pub notes: Vec<Note>,
    /// How many of the queues of a wake were looked at, the rest is for the next call; 0 of a drain, and of a wake that was spent
    /// before, on what settings that ended had left behind.
    pub looked: usize,
}

/// What a part of a reaping pass did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Where the pass goes on; `None` when it is over.
    pub next: Option<(String, String)>,
    /// The time until the next lease may end, of the entries seen.
    pub left: Option<Duration>,
    /// Jobs taken back.
    pub taken_back: u64,
    /// Finished entries deleted.
    pub removed: u64,
    /// Entries in the streams seen.
    pub live: u64,
    /// The length of the dead stream.
    pub dead: u64,
    /// What should be logged.
    pub notes: Vec<Note>,
    /// Whether entries hold slots.
    pub holds_slots: bool,
}

/// What a part of a pass over the slots did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healed {
    /// The time until the next part; `None` when no entry holds a slot.
    pub wait: Option<Duration>,
    /// Entries that held a slot and were in flight no more.
    pub freed: u64,
    /// What should be logged.
    pub notes: Vec<Note>,
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// How many of the jobs went in: the first ones.
    pub accepted: usize,
    /// Jobs waiting now.
    pub depth: u64,
    /// Of this bucket.
    pub capacity: u64,
    /// Until one place is expected to be free; `None` when all went in.
    pub retry_after: Option<Duration>,
    /// Until the last accepted job is due; `None` when none went in.
    pub eta: Option<Duration>,
}

impl Pushed {
    /// What becomes of a push that came while its partition stood still, for whoever waits: nothing went in yet.
    #[must_use]
    pub fn nothing_yet() -> Self {
        Self { accepted: 0, depth: 0, capacity: 0, retry_after: Some(Duration::from_secs(1)), eta: None }
    }
}

/// What a limiter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call was refused.
    pub limited: bool,
    /// The limit, the capacity, or the burst and one.
    pub limit: u64,
    /// The largest quantity that would pass now.
    pub remaining: u64,
    /// Until the same call passes, if nobody else calls; `None` when it passed, or never will.
    pub retry_after: Option<Duration>,
    /// Until the key carries no information.
    pub reset_after: Duration,
}

/// What became of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// It waits for its next try.
    Retried,
    /// It is in the dead stream.
    Dead,
    /// It was not this worker's any more.
    NotPending,
}

/// A job as a worker takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The entry to acknowledge.
    pub entry: String,
    /// The stable identity: the entry of the first dispatch.
    pub id: String,
    /// The bucket it came from; `None` when the entry is malformed.
    pub bucket: Option<BucketName>,
    /// The bytes that the producer pushed; `None` when the entry is malformed.
    pub body: Option<Vec<u8>>,
    /// 1 for the first try.
    pub attempt: u64,
    /// When it was due, microseconds since the epoch.
    pub due_us: u64,
    /// When it left its bucket, microseconds since the epoch.
    pub at_us: u64,
    /// How long it may be held.
    pub lease: Duration,
    /// How many slots of each rate it took.
    pub cost: u64,
    /// When it should have left at the latest, microseconds since the epoch.
    pub deadline_us: Option<u64>,
    /// The headers that the producer gave: names of a-z, 0-9 and -, values of plain characters.
    pub headers: Vec<(String, String)>,
}

pub(super) fn unexpected(call: &'static str, reply: &Value) -> StoreError {
    let shown: String = format!("{reply:?}").chars().take(200).collect();
    StoreError::Reply { call, reply: shown }
}

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

pub(super) fn number(value: &Value) -> Option<i64> {
    if let Value::Int(n) = value { Some(*n) } else { None }
}

pub(super) fn count(value: &Value) -> Option<u64> {
    number(value).and_then(|n| u64::try_from(n).ok())
}

pub(super) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) | Value::Set(items) => Some(items),
        _ => None,
    }
}

/// A flat list, four texts a note.
fn notes(value: &Value) -> Option<Vec<Note>> {
    let texts = list(value)?.iter().map(text).collect::<Option<Vec<_>>>()?;
    let (notes, []) = texts.as_chunks::<4>() else { return None };
    notes
        .iter()
        .map(|[kind, subject, detail, count]| {
            Some(Note {
                kind: NoteKind::parse(kind),
                subject: subject.clone(),
                detail: detail.clone(),
                count: count.parse().ok()?,
            })
        })
        .collect()
}

/// A wait as the functions reply it: −1 stands for none.
fn wait(n: i64, unit: fn(u64) -> Duration) -> Option<Duration> {
    u64::try_from(n).ok().map(unit)
}

/// What a drain replies.
pub(super) fn drained(call: &'static str, reply: &Value) -> Result<Drained, StoreError> {
    list(reply).and_then(drained_items).ok_or_else(|| unexpected(call, reply))
}

/// What a wake replies: as a drain, and how many queues were looked at. Without that number nobody knows where to go on, and
/// to take 0 for it would be to send the same names for ever.
pub(super) fn woken(call: &'static str, reply: &Value) -> Result<Drained, StoreError> {
    let decode = || {
        let items = list(reply)?;
        let looked = usize::try_from(number(items.get(7)?)?).ok()?;
        Some(Drained { looked, ..drained_items(items)? })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

fn drained_items(items: &[Value]) -> Option<Drained> {
    Some(Drained {
        wait: wait(number(items.first()?)?, Duration::from_micros),
        dispatched: count(items.get(1)?)?,
        rejected: count(items.get(2)?)?,
        latest: Duration::from_micros(count(items.get(3)?)?),
        record: Some(text(items.get(4)?)?).filter(|id| !id.is_empty()),
        spreading: count(items.get(5)?)? == 1,
        notes: notes(items.get(6)?)?,
        looked: 0,
    })
}

pub(super) fn reaped(call: &'static str, reply: &Value) -> Result<Reaped, StoreError> {
    let decode = || {
        let items = list(reply)?;
        let (route, id) = (text(items.first()?)?, text(items.get(1)?)?);
        Some(Reaped {
            next: (!route.is_empty()).then_some((route, id)),
            left: wait(number(items.get(2)?)?, Duration::from_millis),
            taken_back: count(items.get(3)?)?,
            removed: count(items.get(4)?)?,
            live: count(items.get(5)?)?,
            dead: count(items.get(6)?)?,
            notes: notes(items.get(7)?)?,
            holds_slots: count(items.get(8)?)? == 1,
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn healed(call: &'static str, reply: &Value) -> Result<Healed, StoreError> {
    let decode = || {
        let [wait_ms, freed, said] = list(reply)? else { return None };
        Some(Healed { wait: wait(number(wait_ms)?, Duration::from_millis), freed: count(freed)?, notes: notes(said)? })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn pushed(call: &'static str, reply: &Value) -> Result<Pushed, StoreError> {
    let decode = || {
        let n = list(reply)?.iter().map(number).collect::<Option<Vec<_>>>()?;
        let [accepted, depth, capacity, retry_after, eta] = n[..] else { return None };
        Some(Pushed {
            accepted: usize::try_from(accepted).ok()?,
            depth: u64::try_from(depth).ok()?,
            capacity: u64::try_from(capacity).ok()?,
            retry_after: wait(retry_after, Duration::from_millis),
            eta: wait(eta, Duration::from_millis),
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

/// The five integers of a limiter, its times in a unit.
pub(super) fn verdict(call: &'static str, reply: &Value, unit: fn(u64) -> Duration) -> Result<Verdict, StoreError> {
    let decode = || {
        let n = list(reply)?.iter().map(number).collect::<Option<Vec<_>>>()?;
        let [limited, limit, remaining, retry_after, reset_after] = n[..] else { return None };
        Some(Verdict {
            limited: limited == 1,
            limit: u64::try_from(limit).ok()?,
            remaining: u64::try_from(remaining).ok()?,
            retry_after: wait(retry_after, unit),
            reset_after: wait(reset_after, unit)?,
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}

pub(super) fn failed(call: &'static str, reply: &Value) -> Result<Failed, StoreError> {
    match number(reply) {
        Some(0) => Ok(Failed::NotPending),
        Some(1) => Ok(Failed::Retried),
        Some(2) => Ok(Failed::Dead),
        _ => Err(unexpected(call, reply)),
    }
}

/// The entries of one stream, as `XREADGROUP` replies them in either protocol; nothing is an empty list.
pub(super) fn taken(call: &'static str, reply: &Value) -> Result<Vec<Job>, StoreError> {
    let entries = match reply {
        Value::Nil => return Ok(Vec::new()),
        Value::Map(streams) => streams.first().map(|(_, entries)| entries),
        Value::Array(streams) => streams.first().and_then(list).and_then(|stream| stream.get(1)),
        _ => None,
    };
    let entries = entries.and_then(list).ok_or_else(|| unexpected(call, reply))?;
    entries.iter().map(|entry| job(entry).ok_or_else(|| unexpected(call, entry))).collect()
}

/// The least lease that there is. An entry of a stranger may say less, or nothing that can be read: who renews it as often as this needs
/// keeps it, whatever lease the bucket has.
const LEAST_LEASE: Duration = Duration::from_secs(1);

fn job(entry: &Value) -> Option<Job> {
    let [id, fields] = list(entry)? else { return None };
    let entry = text(id)?;
    let mut job = Job {
        id: entry.clone(),
        entry,
        bucket: None,
        body: None,
        attempt: 1,
        due_us: 0,
        at_us: 0,
        lease: LEAST_LEASE,
        cost: 1,
        deadline_us: None,
        headers: Vec::new(),
    };
    for pair in list(fields).unwrap_or_default().chunks_exact(2) {
        let [Value::BulkString(name), Value::BulkString(value)] = pair else { return None };
        let number = || std::str::from_utf8(value).ok()?.parse::<u64>().ok();
        match name.as_slice() {
            b"bucket" => job.bucket = BucketName::parse(value).ok(),
            b"job" => job.body = Some(value.clone()),
            b"attempt" => job.attempt = number().unwrap_or(job.attempt),
            b"due_us" => job.due_us = number().unwrap_or_default(),
            b"at_us" => job.at_us = number().unwrap_or_default(),
            b"lease_ms" => job.lease = number().map_or(LEAST_LEASE, Duration::from_millis).max(LEAST_LEASE),
            b"id" => job.id = String::from_utf8_lossy(value).into_owned(),
            b"cost" => job.cost = number().unwrap_or(job.cost),
            b"deadline_us" => job.deadline_us = number(),
            name => job.headers.extend(header(name, value)),
        }
    }
    Some(job)
}

/// A field `h:<name>`. Entries of strangers may hold anything: what is no header of ours is passed over.
fn header(field: &[u8], value: &[u8]) -> Option<(String, String)> {
    let name = field.strip_prefix(b"h:").filter(|name| !name.is_empty())?;
    let is_name = name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-');
    let is_value = value.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (is_name && is_value).then(|| (text(name), text(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_passes_on_of_an_entry_are_headers_and_nothing_else() {
        assert_eq!(header(b"h:x-1", b"a b~"), Some(("x-1".to_owned(), "a b~".to_owned())));
        for (field, value) in [
            (&b"h:"[..], &b"a"[..]),
            (b"h:X", b"a"),
            (b"h:a_b", b"a"),
            (b"x", b"a"),
            (b"h:a", b"a\nb"),
            (b"h:a", b"\xff"),
        ] {
            assert_eq!(header(field, value), None, "{field:?} {value:?}");
        }
    }

    fn texts(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec())).collect())
    }

    fn reply(notes: Value, looked: Option<i64>) -> Value {
        let mut items: Vec<Value> = [250, 3, 1, 40].into_iter().map(Value::Int).collect();
        items.extend([Value::BulkString(b"abc".to_vec()), Value::Int(1), notes]);
        items.extend(looked.map(Value::Int));
        Value::Array(items)
    }

    #[test]
    fn a_drain_and_a_wake_are_decoded_into_names() {
        let notes = texts(&["wrong-type", "drip:queue:b", "", "2", "odd", "x", "why", "1"]);
        let drained = drained("drip__drain", &reply(notes.clone(), None)).expect("a reply");
        assert_eq!((drained.wait, drained.dispatched), (Some(Duration::from_micros(250)), 3));
        assert_eq!((drained.record.as_deref(), drained.spreading), (Some("abc"), true));
        let (subject, detail) = ("drip:queue:b".to_owned(), String::new());
        assert_eq!(drained.notes[0], Note { kind: NoteKind::WrongType, subject, detail, count: 2 });
        assert_eq!(drained.notes[1].kind, NoteKind::Other("odd".to_owned()));
        assert_eq!(woken("drip__wake", &reply(notes, Some(7))).expect("a reply").looked, 7);
    }

    #[test]
    fn a_missing_number_is_an_error_and_no_zero() {
        let wake = reply(texts(&[]), None);
        assert!(matches!(woken("drip__wake", &wake), Err(StoreError::Reply { call: "drip__wake", .. })));
        for cut in 0..7 {
            let Value::Array(mut items) = reply(texts(&[]), None) else { unreachable!("a list") };
            items.truncate(cut);
            assert!(drained("drip__drain", &Value::Array(items)).is_err(), "{cut} items");
        }
        assert!(drained("drip__drain", &reply(texts(&["refused", "x", "y"]), None)).is_err(), "half a note");
        assert!(drained("drip__drain", &reply(texts(&["refused", "x", "y", "many"]), None)).is_err(), "no number");
    }
}
