//! Daemons: what each says of itself while it serves, and which of them are alive.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::client::Store;
use super::connection::{StoreError, Text};
use super::keys::Layout;
use super::library::is_missing_function;
use super::partitions::primary::Primary;
use super::reply::count;

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

/// A heartbeat: a daemon tells of itself while it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
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
    /// How many of them come before this one (`loops/ranking`).
    pub before: usize,
    /// Another number than before when something was rejected since.
    pub rejections: u64,
    /// When the last of those that come before this one told that it is alive.
    pub last_heartbeat: Option<Instant>,
}

/// A daemon that is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct DaemonStatus {
    /// The name of its machine.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// When it was started, seconds since the epoch.
    pub since: u64,
    /// Whether the record in force is that of its configuration.
    pub has_record: bool,
    /// How it notices a push; `None`: it is of an older version, which does not say.
    pub wake_up: Option<WakeUp>,
    /// How long ago it last said so, in milliseconds.
    pub age_ms: u64,
}

/// A daemon that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name, the same in all partitions.
    pub id: String,
    /// When it last told so.
    pub at: Instant,
    /// Whether it shows by a subscription that it is connected.
    pub shows_presence: bool,
}

/// A daemon as the functions tell of it: id, what it says of itself, and how many milliseconds ago.
type Said = (Text, Text, i64);

impl Store {
    /// Say that a daemon is alive. It counts for 15 seconds.
    pub async fn send_heartbeat(&mut self, id: &str, heartbeat: &Heartbeat) -> Result<Alive, StoreError> {
        let json = serde_json::to_string(heartbeat).expect("a heartbeat is text and numbers");
        self.call_function("drip__beat", &[self.keys().daemons()], ("", id, json)).await?.decode_with(alive)
    }

    /// The daemons that are alive, and when each told so.
    pub async fn peers(&mut self) -> Result<Vec<Peer>, StoreError> {
        let reply = self.call_read_only("drip__daemons", &[self.keys().daemons()], "").await?;
        let now = Instant::now();
        let one = |(Text(id), Text(json), age_ms): Said| {
            let heartbeat: Option<Heartbeat> = serde_json::from_str(&json).ok();
            let at = now.checked_sub(Duration::from_millis(count(age_ms)?)).unwrap_or(now);
            Some(Peer { id, at, shows_presence: heartbeat.is_some_and(|heartbeat| heartbeat.shows_presence) })
        };
        Ok(reply.decode::<Vec<Said>>()?.into_iter().filter_map(one).collect())
    }

    /// The daemons that are alive, by host and process. A library that does not know them yet counts as none: it is an older
    /// one, and the first daemon of this version replaces it.
    pub async fn daemons(&mut self) -> Result<Vec<DaemonStatus>, StoreError> {
        let mut command = redis::cmd("FCALL_RO");
        command.arg("drip__daemons").arg(1).arg(self.keys().daemons()).arg("");
        let reply = match self.call("drip__daemons", &command).await {
            Err(StoreError::Refused { message, .. }) if is_missing_function(&message) => return Ok(Vec::new()),
            other => other?,
        };
        // One that only a newer version can read is passed over.
        let daemon = |(_, Text(json), age_ms): Said| {
            let Heartbeat { host, pid, version, since, has_record, wake_up, shows_presence: _ } =
                serde_json::from_str(&json).ok()?;
            Some(DaemonStatus { host, pid, version, since, has_record, wake_up, age_ms: count(age_ms)? })
        };
        let mut daemons: Vec<_> = reply.decode::<Vec<Said>>()?.into_iter().filter_map(daemon).collect();
        daemons.sort_by(|a, b| (&a.host, a.pid).cmp(&(&b.host, b.pid)));
        Ok(daemons)
    }

    /// Subscribe to a channel of this daemon's own: for as long as the connection is there it has a subscriber. Replies whether that is
    /// allowed.
    pub async fn show_presence(&mut self, layout: &Layout, id: &str) -> Result<bool, StoreError> {
        let channel = layout.alive(id);
        match self.call("SUBSCRIBE", redis::cmd("SUBSCRIBE").arg(channel)).await {
            Err(StoreError::Refused { .. }) => Ok(false),
            shown => shown.map(|_| true),
        }
    }

    /// Which of some daemons are connected, of those that show their presence.
    async fn present(&mut self, layout: &Layout, ids: &[String]) -> Result<Vec<String>, StoreError> {
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
    pub async fn withdraw_heartbeat(&mut self, id: &str) -> Result<(), StoreError> {
        self.call_function("drip__beat", &[self.keys().daemons()], ("", id, "")).await.map(drop)
    }
}

impl Primary {
    /// Which of some daemons are connected to it, of those that show their presence.
    pub async fn present(&mut self, ids: &[String]) -> Result<Vec<String>, StoreError> {
        self.any.present(&self.layout, ids).await
    }
}

fn alive((daemons, before, rejections): (i64, i64, i64)) -> Option<Alive> {
    let (daemons, before) = (usize::try_from(daemons).ok()?, usize::try_from(before).ok()?);
    Some(Alive { daemons, before, rejections: count(rejections)?, last_heartbeat: None })
}
