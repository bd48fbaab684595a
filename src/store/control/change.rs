//! Changes that operators make at run time: settings, pauses, closures, slow-downs; and the log of those changes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::entry::EntryId;
use crate::store::client::Store;
use crate::store::connection::{StoreError, Text};
use crate::store::jobs::work::LimitReport;
use crate::store::partitions::Partitions;
use crate::store::reply::{Reply, given};

/// A value that a key is set to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetTo {
    /// The value as an operator writes it.
    pub text: String,
    /// The fields of a policy that it stands for.
    pub policy: serde_json::Value,
}

/// A change of what is set for a name or a glob.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Which command it is: `set`, `unset`, `pause`, `resume`, `close` or `open`.
    pub what: &'static str,
    /// The name of a bucket, or a glob; of budgets in braces (`model::subject`).
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whether it is a glob.
    pub is_glob: bool,
    /// Keys that are set.
    pub set: BTreeMap<String, SetTo>,
    /// Keys that are taken back.
    pub unset: Vec<String>,
    /// All keys are taken back, `pause` and `close` aside.
    pub unset_all: bool,
    /// For how long, in microseconds; absent: until it is taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_us: Option<u64>,
    /// Who asks for it: user@host.
    pub by: String,
    /// Who Redis says the caller is.
    pub user: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `paused` or `closed`: what `stopped_by` of [`ChangeOutcome`] says; or `others`, to be told those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<&'static str>,
}

impl Change {
    /// Whether buckets may have less room by it.
    pub fn may_cut(&self) -> bool {
        let sets = |key: &str| self.set.contains_key(key) || self.unset.iter().any(|unset| unset == key);
        self.unset_all || sets("capacity") || self.set.contains_key("close")
    }
}

/// A value that is in force in place of one that was set or taken back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Other {
    /// The value as an operator writes it.
    pub text: String,
    /// The name or glob that it is set for.
    #[serde(rename = "match")]
    pub pattern: String,
    /// When it ends by itself: microseconds since the epoch on the server's clock, as text.
    pub till: Option<String>,
}

/// A change of what holds one bucket or budget: a slow-down, or a told limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeChange<W> {
    /// The bucket, or, in braces, the budget.
    pub node: String,
    /// A budget above the bucket that is changed in its place.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// What is changed.
    #[serde(flatten)]
    pub what: W,
    /// Who asks for it: user@host.
    pub by: String,
    /// Who Redis says the caller is.
    pub user: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A slow-down that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SlowDown {
    /// For how long; none: it goes on now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<u64>,
}

/// How much more the other side lets through; none: forget what was told.
pub type TellLimit = Option<LimitReport>;

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// The change is in force.
    Done {
        /// Each key with its value before and after; empty where nothing is set.
        keys: Vec<(String, String, String)>,
        /// The name or glob that pauses, or closes, the bucket now, or all buckets of the glob.
        stopped_by: Option<String>,
        /// By key, what is in force in place of the lasting value that was changed.
        others: BTreeMap<String, Other>,
    },
    /// Nothing of that was set.
    Nothing {
        /// The name or glob that pauses, or closes, the bucket now.
        stopped_by: Option<String>,
    },
    /// Another change of globs, or of the configuration, still spreads.
    Busy,
}

/// Jobs that a pause does not hold any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = JobsOut)]
pub struct Out {
    /// In ready streams.
    pub ready: u64,
    /// In the hands of workers.
    pub with_workers: u64,
}

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// As the caller says: user@host.
    pub by: String,
    /// As Redis says; empty where it does not say.
    pub user: String,
}

/// A change that was made at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The id of its entry.
    pub id: String,
    /// `what`, `match`, `before`, `after`, `by`, `user`, `reason`, as far as they are known.
    pub fields: BTreeMap<String, String>,
}

impl Partitions {
    /// Set or take back keys of a name or a glob, at the authority: [`Self::replicate`] takes it into the other partitions.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `TOOMANY` when too many are set, `WRONGTYPE` when a route has no stream.
    pub async fn change(&mut self, change: &Change) -> Result<ChangeOutcome, StoreError> {
        let mut authority = self.authority();
        let json = serde_json::to_string(change).expect("a change is text and numbers");
        let reply = authority.call_function("drip__set", &[authority.keys().policy()], ("", json)).await?;
        reply.decode_with(|parts| outcome_of(parts, change.asks == Some("others")))
    }

    /// Slow down a bucket or a budget, or end that, where it lives. Replies when it goes on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] with `BADARG` where there is no such budget, or not above the bucket.
    pub async fn slow(&mut self, slow_down: &NodeChange<SlowDown>) -> Result<Duration, StoreError> {
        self.of_stored(&slow_down.node).slow(slow_down).await
    }

    /// Say how much more the other side of a bucket or a budget lets through, or forget that, where it lives. Replies whether
    /// that changes anything.
    ///
    /// # Errors
    ///
    /// As [`Self::slow`].
    pub async fn tell_limit(&mut self, tell: &NodeChange<TellLimit>) -> Result<bool, StoreError> {
        self.of_stored(&tell.node).tell_limit(tell).await
    }

    /// How many buckets that are not idle a name or a glob meets, or, of one of budgets, are below those. It is asked for before a change:
    /// while one spreads, buckets move from place to place, and some would be counted twice or not at all.
    pub async fn buckets_met(&mut self, pattern: &str, is_glob: bool) -> Result<u64, StoreError> {
        Ok(self.count(pattern, is_glob, "buckets").await?.0)
    }

    /// How many jobs of the buckets that a name or a glob meets, likewise, are out already.
    pub async fn jobs_out(&mut self, pattern: &str, is_glob: bool) -> Result<Out, StoreError> {
        let (_, ready, with_workers) = self.count(pattern, is_glob, "jobs").await?;
        Ok(Out { ready, with_workers })
    }

    async fn count(&mut self, pattern: &str, is_glob: bool, what: &str) -> Result<(u64, u64, u64), StoreError> {
        let mut sums = (0, 0, 0);
        for mut store in self.about(pattern, is_glob) {
            let more = match store.count(pattern, is_glob, what).await {
                Err(why) if is_glob && self.record_skipped(store.keys().number(), &why) => continue,
                more => more?,
            };
            sums = (sums.0 + more.0, sums.1 + more.1, sums.2 + more.2);
        }
        Ok(sums)
    }

    /// Changes that were made since, at most so many of each partition, by their time; `at` moves on.
    pub async fn events_after(&mut self, at: &mut EventsAt, most: usize) -> Result<Vec<Event>, StoreError> {
        let after = &*at;
        let call = async |mut store: Store| match after.0.get(usize::from(store.keys().number())) {
            Some(Some(id)) => Ok((Vec::new(), store.events_after(id, most).await?)),
            _ => Ok((store.last_events(1).await?, Vec::new())),
        };
        let parts = self.reached(call).await?;
        at.0.resize(usize::from(self.layout().partitioning().partitions), None);
        for (number, (before, events)) in &parts {
            let at = &mut at.0[usize::from(*number)];
            let last = events.last().or(before.last()).map(|event| event.id.clone());
            *at = last.or(at.take()).or_else(|| Some(BEFORE_ALL.to_owned()));
        }
        Ok(by_time(parts.into_iter().map(|(_, (_, events))| events).collect()))
    }

    /// The last changes that were made, at most so many, the oldest first, and where a look goes on behind them.
    pub async fn last_events(&mut self, most: usize) -> Result<(Vec<Event>, EventsAt), StoreError> {
        let parts = self.reached(async |mut store: Store| store.last_events(most).await).await?;
        let mut at = EventsAt(vec![None; usize::from(self.layout().partitioning().partitions)]);
        for (number, events) in &parts {
            let last = events.last().map_or(BEFORE_ALL, |event| event.id.as_str());
            at.0[usize::from(*number)] = Some(last.to_owned());
        }
        let mut events = by_time(parts.into_iter().map(|(_, events)| events).collect());
        events.drain(..events.len().saturating_sub(most));
        Ok((events, at))
    }

    /// Who Redis says that this is; empty where it does not tell.
    pub async fn whoami(&mut self) -> String {
        self.any().whoami().await
    }
}

/// Up to which change of each partition one has looked; one that could not be reached so far begins when it can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventsAt(Vec<Option<String>>);

impl EventsAt {
    /// Begin behind this change of a partition, unless one has looked there before.
    pub fn begin(&mut self, number: u8, id: String) {
        let number = usize::from(number);
        self.0.resize(self.0.len().max(number + 1), None);
        self.0[number].get_or_insert(id);
    }

    /// Take over how far another one has looked, of each partition that it has looked at.
    pub fn go_on(&mut self, other: Self) {
        self.0.resize(self.0.len().max(other.0.len()), None);
        for (at, other) in self.0.iter_mut().zip(other.0) {
            *at = other.or(at.take());
        }
    }
}

/// The id before that of any change.
const BEFORE_ALL: &str = "0-0";

/// The changes of several partitions, by their time.
fn by_time(parts: Vec<Vec<Event>>) -> Vec<Event> {
    let several = parts.len() > 1;
    let mut events: Vec<Event> = parts.into_iter().flatten().collect();
    if several {
        events.sort_by_key(|event| event.id.parse::<EntryId>().ok());
    }
    events
}

impl Store {
    /// Slow down a bucket or a budget of this partition.
    ///
    /// # Errors
    ///
    /// As [`Partitions::slow`].
    pub async fn slow(&mut self, slow_down: &NodeChange<SlowDown>) -> Result<Duration, StoreError> {
        let reply = self.change_node("drip__slow_node", slow_down).await?;
        let (ms, _): (u64, u64) = reply.decode()?;
        Ok(Duration::from_millis(ms))
    }

    /// The same as [`Partitions::tell_limit`], of this partition.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn tell_limit(&mut self, tell: &NodeChange<TellLimit>) -> Result<bool, StoreError> {
        let reply = self.change_node("drip__told_node", tell).await?;
        reply.decode_with(|n: i64| Some(n == 1))
    }

    async fn change_node<W: Serialize>(
        &mut self,
        name: &'static str,
        change: &NodeChange<W>,
    ) -> Result<Reply, StoreError> {
        let json = serde_json::to_string(change).expect("a change is text and numbers");
        self.call_function(name, &[self.keys().policy()], ("", json)).await
    }

    /// All pages of a count: buckets, ready jobs, jobs with workers.
    async fn count(&mut self, pattern: &str, is_glob: bool, what: &str) -> Result<(u64, u64, u64), StoreError> {
        let (mut cursor, mut sums) = (String::new(), (0, 0, 0));
        loop {
            let args = ("", pattern, is_glob, what, cursor);
            let reply = self.call_read_only("drip__met", &[self.keys().policy()], args).await?;
            let (next, buckets, ready, with_workers): (String, u64, u64, u64) = reply.decode()?;
            sums = (sums.0 + buckets, sums.1 + ready, sums.2 + with_workers);
            if next.is_empty() {
                return Ok(sums);
            }
            cursor = next;
        }
    }

    /// Changes that were made after the one of an id, at most so many.
    async fn events_after(&mut self, id: &str, most: usize) -> Result<Vec<Event>, StoreError> {
        let mut command = redis::cmd("XRANGE");
        command.arg(self.keys().events()).arg(format!("({id}")).arg("+").arg("COUNT").arg(most);
        self.events("XRANGE", &command).await
    }

    /// The id of the last change that was made.
    ///
    /// # Errors
    ///
    /// The call fails.
    pub async fn last_event(&mut self) -> Result<String, StoreError> {
        Ok(self.last_events(1).await?.pop().map_or_else(|| BEFORE_ALL.to_owned(), |event| event.id))
    }

    async fn last_events(&mut self, most: usize) -> Result<Vec<Event>, StoreError> {
        let mut command = redis::cmd("XREVRANGE");
        command.arg(self.keys().events()).arg("+").arg("-").arg("COUNT").arg(most);
        let mut last = self.events("XREVRANGE", &command).await?;
        last.reverse();
        Ok(last)
    }

    async fn events(&mut self, name: &'static str, command: &redis::Cmd) -> Result<Vec<Event>, StoreError> {
        let entries: Vec<(String, BTreeMap<String, String>)> = match self.read(name, command).await {
            Err(why) if why.code() == Some("WRONGTYPE") => Vec::new(), // nobody's dispatch fails for it
            entries => entries?,
        };
        Ok(entries.into_iter().map(|(id, fields)| Event { id, fields }).collect())
    }

    async fn whoami(&mut self) -> String {
        let name = self.read("ACL WHOAMI", redis::cmd("ACL").arg("WHOAMI")).await;
        name.map_or_else(|_| String::new(), |Text(name)| name) // it need not be allowed to ask
    }
}

/// Which outcome it is, each key with its value before and after, and the answer to what was asked.
type SetReply = (i64, Vec<(String, String, String)>, String);

fn outcome_of((state, keys, answer): SetReply, asks_others: bool) -> Option<ChangeOutcome> {
    let (others, stopped_by) = match given(answer) {
        Some(json) if asks_others => (serde_json::from_str(&json).ok()?, None),
        answer => (BTreeMap::new(), answer),
    };
    match state {
        1 => Some(ChangeOutcome::Done { keys, stopped_by, others }),
        0 => Some(ChangeOutcome::Nothing { stopped_by }),
        -1 => Some(ChangeOutcome::Busy),
        _ => None,
    }
}
