//! The feed: one task asks Redis for figures once a second, informs all listeners, and remembers the last quarter of an
//! hour.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::broadcast::{self, Receiver, Sender};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use crate::model::subject::Subject;
use crate::store::change::{Event, EventsAt};
use crate::store::figures::Figures;
use crate::store::link::Link;
use crate::store::status::Lateness;
use crate::store::{Partitions, StoreError};

/// How often Redis is asked, also while nobody listens: it is one short call, and lets charts begin with the past.
const EVERY: Duration = Duration::from_secs(1);

/// How many seconds are remembered.
const SECONDS: usize = 900;

/// How many changes are remembered while somebody listens, and how many new ones are read at a time.
const CHANGES: usize = 200;

/// The most listeners at a time.
const LISTENERS: usize = 64;

/// How many events a listener that does not read may fall behind before its stream ends.
const BEHIND: usize = 64;

/// How long streams may take to end by themselves when the server stops.
const END_WITHIN: Duration = Duration::from_millis(300);

#[derive(Default)]
struct Past {
    /// The seconds, the oldest first.
    seconds: VecDeque<Second>,
    /// The changes, the oldest first. They are read while somebody listens, and forgotten when nobody does.
    changes: VecDeque<Event>,
    /// The position of the last change that was sent; `None`: none was read yet.
    told: Option<EventsAt>,
    /// The error with which Redis does not answer; `None`: it answers.
    lost: Option<String>,
    /// The listeners, each with its number and its connection.
    listeners: Vec<(u64, Connection)>,
    number: u64,
}

/// The memory of the task, and its channel to the listeners.
pub(super) struct Feed {
    past: Mutex<Past>,
    news: Sender<Arc<str>>,
}

/// The figures of the time between two answers of Redis.
#[derive(Debug, Clone, PartialEq)]
struct Second {
    at_ms: u64,
    dispatched_per_s: f64,
    rejected_per_s: f64,
    lateness: Option<Lateness>,
    waiting: u64,
}

impl Second {
    fn between(before: &Figures, after: &Figures) -> Self {
        let seconds = after.at_us.saturating_sub(before.at_us).max(1) as f64 / 1e6;
        let per_s = |before: u64, after: u64| (after.saturating_sub(before) as f64 / seconds * 10.0).round() / 10.0;
        Self {
            at_ms: after.at_us / 1_000,
            dispatched_per_s: per_s(before.counter("dispatched"), after.counter("dispatched")),
            rejected_per_s: per_s(before.rejected(), after.rejected()),
            lateness: Lateness::between(&before.lates(), &after.lates()),
            waiting: after.buckets_waiting(),
        }
    }

    /// A row of the event `history`, which names the columns.
    fn row(&self) -> Value {
        let late = |of: fn(Lateness) -> u64| self.lateness.map(of);
        json!([
            self.at_ms,
            self.dispatched_per_s,
            self.rejected_per_s,
            late(|l| l.p50_us),
            late(|l| l.p99_us),
            self.waiting
        ])
    }
}

/// An event in the format of server-sent events.
fn event(name: &str, data: &Value) -> Arc<str> {
    let mut text = String::new();
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
    text.into()
}

fn totals_event(second: &Second, now: &Figures) -> Arc<str> {
    let place = |name: &str| now.waiting.get(name).copied().unwrap_or(0);
    let data = json!({
        "at_ms": second.at_ms, "dispatched_per_s": second.dispatched_per_s, "rejected_per_s": second.rejected_per_s,
        "late_p50_us": second.lateness.map(|l| l.p50_us), "late_p99_us": second.lateness.map(|l| l.p99_us),
        "dispatched": now.counter("dispatched"), "rejected": now.rejected(), "waiting": second.waiting, "due": place("due"),
        "share": place("share"), "slots": place("slots"), "held": place("held"), "paused": place("paused"),
        "refused": place("refused"), "retrying": place("retrying"), "delayed": now.count("delayed"), "dead": now.count("dead"), "daemons": now.count("daemons"),
    });
    event("totals", &data)
}

fn changes_event<'a>(changes: impl Iterator<Item = &'a Event>) -> Arc<str> {
    let one = |change: &Event| {
        let field = |name: &str| change.fields.get(name);
        let at_ms: Option<u64> = change.id.split('-').next().and_then(|ms| ms.parse().ok());
        let subject = field("match").map(|stored| Subject::of_stored(stored));
        json!({
            "id": change.id, "at_ms": at_ms, "what": field("what"), "match": subject.as_ref().map(|of| of.pattern),
            "budget": subject.as_ref().is_some_and(|of| of.is_budget), "before": field("before"),
            "after": field("after"), "by": field("by"), "user": field("user"), "reason": field("reason"),
        })
    };
    event("changes", &changes.map(one).collect())
}

fn redis_event(lost: Option<&String>) -> Arc<str> {
    event("redis", &json!({ "up": lost.is_none(), "why": lost }))
}

/// A listener, which counts until this value is dropped.
pub(super) struct Subscription {
    feed: Arc<Feed>,
    number: u64,
    /// The events that are sent first.
    pub(super) first: VecDeque<Arc<str>>,
    pub(super) news: Receiver<Arc<str>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.feed.past().listeners.retain(|(number, _)| *number != self.number);
    }
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { past: Mutex::default(), news: broadcast::channel(BEHIND).0 }
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listen; the first events hold everything that is remembered. `None`: there are too many listeners.
    pub(super) fn subscribe(self: &Arc<Self>, connection: Connection) -> Option<Subscription> {
        let mut past = self.past();
        if past.listeners.len() >= LISTENERS {
            return None;
        }
        let columns = ["at_ms", "dispatched_per_s", "rejected_per_s", "late_p50_us", "late_p99_us", "waiting"];
        let rows: Vec<Value> = past.seconds.iter().map(Second::row).collect();
        let mut first = VecDeque::from([event("history", &json!({ "columns": columns, "rows": rows }))]);
        if past.told.is_some() {
            first.push_back(changes_event(past.changes.iter()));
        }
        first.push_back(redis_event(past.lost.as_ref()));
        past.number += 1;
        let number = past.number;
        past.listeners.push((number, connection));
        Some(Subscription { feed: Arc::clone(self), number, first, news: self.news.subscribe() })
    }

    /// Send an event to all listeners. The caller holds the lock, so that a new listener gets each event once.
    fn tell(&self, said: Arc<str>) {
        let _ = self.news.send(said); // fails where nobody listens
    }

    fn answered(&self, second: Option<Second>, now: &Figures) {
        let mut past = self.past();
        if past.lost.take().is_some() {
            self.tell(redis_event(None));
        }
        let Some(second) = second else { return };
        self.tell(totals_event(&second, now));
        if past.seconds.len() == SECONDS {
            past.seconds.pop_front();
        }
        past.seconds.push_back(second);
    }

    fn lost(&self, why: &StoreError) {
        let (mut past, why) = (self.past(), why.to_string());
        if past.lost.as_ref() != Some(&why) {
            past.lost = Some(why);
            self.tell(redis_event(past.lost.as_ref()));
        }
    }

    /// Read the changes since the last time and send them, if somebody listens.
    async fn changes(&self, store: &mut Partitions) -> Result<(), StoreError> {
        let told = {
            let mut past = self.past();
            if past.listeners.is_empty() {
                (past.told, past.changes) = (None, VecDeque::new());
                return Ok(());
            }
            past.told.clone()
        };
        let (new, told) = match told {
            None => store.last_events(CHANGES).await?,
            Some(mut at) => (store.events_after(&mut at, CHANGES).await?, at),
        };
        let mut past = self.past();
        past.told = Some(told);
        if !new.is_empty() {
            self.tell(changes_event(new.iter()));
        }
        past.changes.extend(new);
        let too_many = past.changes.len().saturating_sub(CHANGES);
        past.changes.drain(..too_many);
        Ok(())
    }

    /// Ask once a second until stopped, and then end the streams.
    pub(super) async fn run(&self, link: &Link, stop: &CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<Figures> = None;
        let looks = async {
            loop {
                tick.tick().await;
                let look = async |mut store: Partitions| {
                    let now = store.figures().await?;
                    self.changes(&mut store).await?;
                    Ok::<_, StoreError>(now)
                };
                match link.once(look).await {
                    Ok(now) => {
                        self.answered(before.as_ref().map(|before| Second::between(before, &now)), &now);
                        before = Some(now);
                    }
                    Err(why) => {
                        self.lost(&why);
                        before = None;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = looks => {}
        }
        let since = Instant::now();
        while !self.past().listeners.is_empty() && since.elapsed() < END_WITHIN {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The remaining listeners read nothing, so their connections are cut.
        self.past().listeners.iter().for_each(|(_, connection)| connection.cut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_what_was_counted_between_two_looks() {
        let figures = |at_us, counters: &[(&str, u64)], due| Figures {
            at_us,
            counters: counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            waiting: [("due".to_owned(), due)].into(),
            ..Figures::default()
        };
        let before = figures(10_000_000, &[("dispatched", 100), ("rejected", 7), ("late:0", 100)], 0);
        let after = figures(
            12_000_000,
            &[("dispatched", 130), ("rejected", 7), ("dropped", 1), ("late:0", 100), ("late:28", 30)],
            4,
        );
        assert_eq!(Second::between(&before, &after).row(), json!([12_000, 15.0, 0.5, 152, 152, 4]));
        let emptied = figures(13_000_000, &[], 0);
        assert_eq!(
            Second::between(&after, &emptied).row(),
            json!([13_000, 0.0, 0.0, null, null, 0]),
            "somebody emptied Redis"
        );
    }
}
