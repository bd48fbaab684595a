//! Daemons: what each says of itself while it serves, and which of them are alive.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use redis::Value;
use serde::{Deserialize, Serialize};

use super::reply::{count, list, number, text, unexpected};
use super::status::DaemonStatus;
use super::{Store, StoreError};

/// How a daemon notices a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeUp {
    /// Redis reports it.
    Tracking,
    /// It looks at all queues again and again.
    Polling,
    /// In a way that only a newer version knows.
    #[serde(other)]
    Other,
}

/// What a daemon says of itself while it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it was started, seconds since the epoch on its machine's clock.
    pub since: u64,
    /// Whether the record in force is that of its configuration.
    pub has_record: bool,
    /// How it notices a push; an older version does not say.
    #[serde(default)]
    pub wake_up: Option<WakeUp>,
    /// The number of its connection to the server, where daemons share partitions: it ends when the daemon is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
}

/// Which daemons serve here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alive {
    /// How many there are.
    pub daemons: usize,
    /// How many of them come before this one: those that were started before it; where there are several partitions, those that a hash
    /// puts before it.
    pub before: usize,
    /// Another number than before when something was rejected since.
    pub rejections: u64,
    /// When the last of those that come before this one told that it is alive; only where there are several partitions.
    pub beaten: Option<Instant>,
}

/// A daemon that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beaten {
    /// Its name, the same in all partitions.
    pub id: String,
    /// When it last told so.
    pub at: Instant,
    /// The number of its connection, where it tells it.
    pub connection: Option<u64>,
}

impl Store {
    /// Say that a daemon is alive. It counts for 15 seconds.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn beat(&mut self, id: &str, beat: &Beat) -> Result<Alive, StoreError> {
        let json = serde_json::to_string(beat).expect("a beat is text and numbers");
        let args = [b"".as_slice(), id.as_bytes(), json.as_bytes()];
        let reply = self.function("drip__beat", &[self.keys().daemons()], &args).await?;
        alive("drip__beat", &reply)
    }

    /// The daemons that are alive, and when each told so.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn beaten(&mut self) -> Result<Vec<Beaten>, StoreError> {
        let reply = self.reading("drip__daemons", &[self.keys().daemons()], &[b""]).await?;
        beaten("drip__daemons", &reply)
    }

    /// The number that the server gave to this connection; `None` where it may not be asked.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn connection_id(&mut self) -> Result<Option<u64>, StoreError> {
        match self.read("CLIENT ID", redis::cmd("CLIENT").arg("ID")).await {
            Err(StoreError::Refused { .. }) => Ok(None),
            id => id.map(Some),
        }
    }

    /// Which of some connections are there, by their numbers.
    ///
    /// # Errors
    ///
    /// As any call.
    pub(super) async fn connected(&mut self, ids: &BTreeSet<u64>) -> Result<BTreeSet<u64>, StoreError> {
        if ids.is_empty() {
            return Ok(BTreeSet::new());
        }
        let mut command = redis::cmd("CLIENT");
        command.arg("LIST").arg("ID");
        for id in ids {
            command.arg(*id);
        }
        let list: String = self.read("CLIENT LIST", &command).await?;
        let id = |line: &str| line.strip_prefix("id=")?.split(' ').next()?.parse().ok();
        Ok(list.lines().filter_map(id).collect())
    }

    /// Say that a daemon stops.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn stop_beating(&mut self, id: &str) -> Result<(), StoreError> {
        self.function("drip__beat", &[self.keys().daemons()], &[b"", id.as_bytes(), b""]).await.map(drop)
    }
}

/// The daemons that are alive: id, what it says, and how many milliseconds ago. What none of this version says is passed over:
/// it is of a newer one.
pub(super) fn daemons(call: &'static str, reply: &Value) -> Result<Vec<DaemonStatus>, StoreError> {
    let (beats, []) = list(reply).unwrap_or_default().as_chunks::<3>() else { return Err(unexpected(call, reply)) };
    let daemon = |[_, json, age]: &[Value; 3]| {
        let Beat { host, pid, version, since, has_record, wake_up, connection: _ } =
            serde_json::from_str(&text(json)?).ok()?;
        Some(DaemonStatus { host, pid, version, since, has_record, wake_up, age_ms: count(age)? })
    };
    Ok(beats.iter().filter_map(daemon).collect())
}

/// The same list, as who is alive, whatever version says so.
pub(super) fn beaten(call: &'static str, reply: &Value) -> Result<Vec<Beaten>, StoreError> {
    let (beats, []) = list(reply).unwrap_or_default().as_chunks::<3>() else { return Err(unexpected(call, reply)) };
    let now = Instant::now();
    let one = |[id, json, age]: &[Value; 3]| {
        let beat: Option<Beat> = serde_json::from_str(&text(json)?).ok();
        let at = now.checked_sub(Duration::from_millis(count(age)?)).unwrap_or(now);
        Some(Beaten { id: text(id)?, at, connection: beat.and_then(|beat| beat.connection) })
    };
    Ok(beats.iter().filter_map(one).collect())
}

/// What a beat replies.
pub(super) fn alive(call: &'static str, reply: &Value) -> Result<Alive, StoreError> {
    let decode = || {
        let [daemons, before, rejections] = list(reply)? else { return None };
        Some(Alive {
            daemons: usize::try_from(number(daemons)?).ok()?,
            before: usize::try_from(number(before)?).ok()?,
            rejections: count(rejections)?,
            beaten: None,
        })
    };
    decode().ok_or_else(|| unexpected(call, reply))
}
