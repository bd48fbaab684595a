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

/// How long a stream is left alone. After that it gives way to a new listener where there is no place: its own comes
/// back, and gets all that is remembered.
const UNDISTURBED: Duration = Duration::from_secs(30);

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
    /// The listeners, the oldest first.
    listeners: Vec<Listener>,
    number: u64,
}

/// A listener to the events.
struct Listener {
    number: u64,
    connection: Connection,
    /// The name of its caller.
    caller: String,
    since: Instant,
}

impl Past {
    /// End a stream, so that a new listener has a place: the oldest one of the caller that has most of them. Some streams
    /// are read by nobody, which cannot be seen before the buffers of the network are full. Replies whether there is one.
    fn end_one(&mut self, now: Instant) -> bool {
        let of = |caller: &str| self.listeners.iter().filter(|one| one.caller == caller).count();
        let is_old = |one: &Listener| now.saturating_duration_since(one.since) >= UNDISTURBED;
        let old = self.listeners.iter().enumerate().filter(|(_, one)| is_old(one));
        let Some((at, _)) = old.min_by_key(|(_, one)| (std::cmp::Reverse(of(&one.caller)), one.since)) else {
            return false;
        };
        self.listeners.remove(at).connection.cut();
        true
    }
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
        self.feed.past().listeners.retain(|one| one.number != self.number);
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
    pub(super) fn subscribe(self: &Arc<Self>, connection: Connection, caller: &str) -> Option<Subscription> {
        let (mut past, since) = (self.past(), Instant::now());
        if past.listeners.len() >= LISTENERS && !past.end_one(since) {
            return None;
        }
        connection.is_stream();
        let columns = ["at_ms", "dispatched_per_s", "rejected_per_s", "late_p50_us", "late_p99_us", "waiting"];
        let rows: Vec<Value> = past.seconds.iter().map(Second::row).collect();
        let mut first = VecDeque::from([event("history", &json!({ "columns": columns, "rows": rows }))]);
        if past.told.is_some() {
            first.push_back(changes_event(past.changes.iter()));
        }
        first.push_back(redis_event(past.lost.as_ref()));
        past.number += 1;
        let number = past.number;
        past.listeners.push(Listener { number, connection, caller: caller.to_owned(), since });
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
        self.past().listeners.iter().for_each(|one| one.connection.cut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connection::Connections;

    #[tokio::test]
    async fn a_new_listener_takes_the_place_of_the_oldest_of_whoever_has_most() {
        let connections = Arc::new(Connections::new(Arc::default()));
        let (feed, mut open, mut guards) = (Arc::new(Feed::new()), Vec::new(), Vec::new());
        for n in 0..LISTENERS {
            let guard = connections.add();
            open.push(feed.subscribe(Connection::of(&guard.state), if n % 3 == 0 { "few" } else { "many" }));
            guards.push(guard);
        }
        let guard = connections.add();
        let subscribe = || feed.subscribe(Connection::of(&guard.state), "few");
        assert!(open.iter().all(Option::is_some) && subscribe().is_none(), "all of them came just now");
        let later = Instant::now() + UNDISTURBED;
        let mut ended = Vec::new();
        for _ in 0..22 {
            let before: Vec<u64> = feed.past().listeners.iter().map(|one| one.number).collect();
            assert!(feed.past().end_one(later));
            let left = |number: &u64| feed.past().listeners.iter().any(|one| one.number == *number);
            ended.extend(before.into_iter().filter(|number| !left(number)));
        }
        // Of 64 listeners 22 are of `few`, and 42 of `many`: they lose theirs down to as many, and then whoever is older.
        let of_many: Vec<u64> = (1..=64).filter(|number| (number - 1) % 3 != 0).take(20).collect();
        assert_eq!((&ended[..20], &ended[20..]), (&of_many[..], &[1, 32][..]));
    }

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
