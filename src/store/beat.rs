//! Daemons: what each says of itself while it serves, and which of them are alive.

use std::time::{Duration, Instant};

use redis::Value;
use serde::{Deserialize, Serialize};

use super::reply::{count, list, number, text, unexpected};
use super::status::DaemonStatus;
use super::{Layout, Store, StoreError};

/// How a daemon notices a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
    /// Whether it shows by a subscription that it is connected, where daemons share partitions: that ends when it is killed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shows_presence: bool,
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
    /// Whether it shows by a subscription that it is connected.
    pub shows_presence: bool,
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

    /// Subscribe to a channel of this daemon's own: for as long as the connection is there it has a subscriber. Replies whether that is
    /// allowed.
    ///
    /// # Errors
    ///
    /// As any call.
    pub async fn show_presence(&mut self, layout: &Layout, id: &str) -> Result<bool, StoreError> {
        let channel = layout.alive(id);
        match self.call("SUBSCRIBE", redis::cmd("SUBSCRIBE").arg(channel)).await {
            Err(StoreError::Refused { .. }) => Ok(false),
            shown => shown.map(|_| true),
        }
    }

    /// Which of some daemons are connected, of those that show their presence.
    pub(super) async fn present(&mut self, layout: &Layout, ids: &[String]) -> Result<Vec<String>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("PUBSUB");
        command.arg("NUMSUB");
        for id in ids {
            command.arg(layout.alive(id));
        }
        let counts: Vec<(String, u64)> = self.read("PUBSUB NUMSUB", &command).await?;
        Ok(ids.iter().zip(counts).filter(|(_, (_, subscribers))| *subscribers > 0).map(|(id, _)| id.clone()).collect())
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
        let Beat { host, pid, version, since, has_record, wake_up, shows_presence: _ } =
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
        Some(Beaten { id: text(id)?, at, shows_presence: beat.is_some_and(|beat| beat.shows_presence) })
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
