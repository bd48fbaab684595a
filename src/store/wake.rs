//! Wake-ups: reports of Redis about changed keys, kept until the pacer of their partition has looked.
//!
//! A plain `LPUSH` runs no code of ours, so Redis is asked to report every change of a queue and of the key `<prefix>:wake`
//! (`CLIENT TRACKING ... BCAST`). [`Invalidations`] takes in the reports on one connection, and hands each to the [`WakeQueue`] of its partition.
//! A report may stand for a write of the daemon and one of a producer at once, so none is
//! ever dropped: the names wait in a bounded set, and when the set is full one full reconcile stands for the rest. A name
//! that is reported while a call with it is under way waits for the end of that call, and for nothing else.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::connection::timing;
use super::keys::Layout;
use super::keys::partition::QueueKey;
use crate::model::bucket::BucketName;

/// The most names kept; one more asks for a reconcile.
const MAX_NAMES: usize = 65_536;

/// While more than this many wait, a reconcile waits too.
const SCAN_RESUMES_AT: usize = 8_192;

/// How often a bad name is logged.
const BAD_NAME_LOG: Duration = Duration::from_secs(60);

/// Reports of one server, for all partitions that it has.
#[derive(Debug)]
pub struct Invalidations {
    layout: Layout,
    wake_queues: Vec<Arc<WakeQueue>>,
    bad: Mutex<Bad>,
    /// Somewhere a function wrote the wake key: operators may have changed something.
    pub changes: Arc<Notify>,
    /// Buckets of any partition are not as the walk found them.
    pub dirty: Arc<Notify>,
    /// Grows when names were lost: look at every queue.
    pub lost: Arc<watch::Sender<u64>>,
    /// The connection is gone.
    pub disconnected: Notify,
}

/// Queues that are left alone.
#[derive(Debug, Default)]
struct Bad {
    seen: u64,
    logged: Option<Instant>,
}

/// Buckets of one partition that changed, until somebody looked.
#[derive(Debug)]
pub struct WakeQueue {
    names: Mutex<Names>,
    /// A queue changed: there is a name to look at.
    pub queues: Notify,
    /// Something may happen earlier than the last reply said: a function wrote the wake key.
    pub wake_pacer: Notify,
    /// A function wrote the wake key: operators may have changed something.
    changes: Arc<Notify>,
    /// The pacer made a call that looked at queues or let jobs out, so there may be work for the reaper.
    pub ready: Notify,
    /// The pacer made such a call, or an operator changed something: buckets are not as the walk found them.
    pub dirty: Arc<Notify>,
    lost: Arc<watch::Sender<u64>>,
    /// There is room for the names of a reconcile.
    room: Notify,
}

/// Where a name stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The name waits to be handed out.
    Waiting,
    /// A call with it is under way.
    UnderWay,
    /// A call with the name is under way, and it was reported since: it waits again when the call is over.
    Reported,
}

#[derive(Debug, Default)]
struct Names {
    known: HashMap<Arc<str>, State>,
    /// Names that wait, in order.
    waiting: VecDeque<Arc<str>>,
}

/// The result of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    /// There is a name to hand out.
    News,
    /// The name was known, or waits for the end of a call.
    Known,
    /// There is no room for it.
    Full,
}

impl Names {
    fn add(&mut self, name: &str) -> Added {
        if let Some(state) = self.known.get_mut(name) {
            if *state == State::UnderWay {
                *state = State::Reported;
            }
            return Added::Known;
        }
        if self.known.len() >= MAX_NAMES {
            return Added::Full;
        }
        let name: Arc<str> = name.into();
        self.known.insert(Arc::clone(&name), State::Waiting);
        self.waiting.push_back(name);
        Added::News
    }

    fn take(&mut self, most: usize) -> Vec<Arc<str>> {
        let n = most.min(self.waiting.len());
        let taken: Vec<_> = self.waiting.drain(..n).collect();
        for name in &taken {
            if let Some(state) = self.known.get_mut(name) {
                *state = State::UnderWay;
            }
        }
        taken
    }

    /// A call with these names is over, and has looked at the first so many of them. The others are the next ones.
    fn complete(&mut self, names: &[Arc<str>], looked: usize) {
        let looked = looked.min(names.len());
        for name in &names[..looked] {
            if self.known.get(name) == Some(&State::Reported) {
                self.known.insert(Arc::clone(name), State::Waiting);
                self.waiting.push_back(Arc::clone(name));
            } else {
                self.known.remove(name);
            }
        }
        for name in names[looked..].iter().rev() {
            self.known.insert(Arc::clone(name), State::Waiting);
            self.waiting.push_front(Arc::clone(name));
        }
        if self.known.is_empty() && self.known.capacity() > 4_096 {
            *self = Self::default(); // a burst is over
        }
    }
}

impl Invalidations {
    /// Nothing yet, of any partition of a system.
    pub fn new(layout: Layout) -> Self {
        let (changes, dirty, lost) = (Arc::default(), Arc::default(), Arc::new(watch::Sender::new(0)));
        let wake_queues = layout.all().map(|_| Arc::new(WakeQueue::new(&changes, &dirty, &lost))).collect();
        Self { layout, wake_queues, bad: Mutex::default(), changes, dirty, lost, disconnected: Notify::new() }
    }

    /// The wake queue of a partition.
    pub fn of(&self, number: u8) -> &Arc<WakeQueue> {
        &self.wake_queues[usize::from(number)]
    }

    /// The prefixes of all keys that should be reported.
    pub(super) fn prefixes(&self) -> [String; 2] {
        self.layout.reported()
    }

    /// Take in what Redis pushed.
    pub(super) fn on_push(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Disconnection => self.disconnected.notify_one(),
            PushKind::Invalidate => match push.data.first() {
                Some(Value::Array(keys)) => {
                    for key in keys {
                        if let Value::BulkString(key) = key {
                            timing::WAKES_BY_TRACKING.fetch_add(1, Ordering::Relaxed);
                            self.on_key(key);
                        }
                    }
                }
                _ => self.lost.send_modify(|times| *times += 1), // the whole database was flushed
            },
            _ => {}
        }
    }

    fn on_key(&self, key: &[u8]) {
        if key.starts_with(self.layout.queues().as_bytes()) {
            if let Some((number, bucket)) = self.read(key) {
                self.of(number).add(&bucket);
            }
        } else if let Some(wake_queue) = self.wake_queues.get(usize::from(self.layout.number_in(key))) {
            wake_queue.wake_key_written();
        }
    }

    /// The bucket whose queue changed, or was found by a scan, and the number of its partition. A queue that is none of ours, or lies where
    /// its bucket does not live, is left alone: counted, and logged once a minute.
    pub fn read(&self, key: &[u8]) -> Option<(u8, BucketName)> {
        let found = match self.layout.read_queue(key) {
            QueueKey::Of(number, bucket) => return Some((number, bucket)),
            other => other,
        };
        let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        bad.seen += 1;
        if bad.logged.is_none_or(|at| at.elapsed() >= BAD_NAME_LOG) {
            bad.logged = Some(Instant::now());
            let seen = bad.seen;
            match found {
                QueueKey::Misplaced { key, right } => {
                    warn!(
                        key,
                        right,
                        seen,
                        "a queue is left alone: its bucket lives in another partition, push to the right key"
                    );
                }
                QueueKey::NoBucket(why) => warn!(example = why, seen, "a queue is left alone: its name is no bucket"),
                QueueKey::Of(..) => {}
            }
        }
        None
    }

    /// How many queues were left alone so far.
    pub fn bad_names(&self) -> u64 {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).seen
    }
}

impl WakeQueue {
    fn new(changes: &Arc<Notify>, dirty: &Arc<Notify>, lost: &Arc<watch::Sender<u64>>) -> Self {
        Self {
            names: Mutex::default(),
            queues: Notify::new(),
            wake_pacer: Notify::new(),
            changes: Arc::clone(changes),
            ready: Notify::new(),
            dirty: Arc::clone(dirty),
            lost: Arc::clone(lost),
            room: Notify::new(),
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A function wrote the wake key.
    pub fn wake_key_written(&self) {
        self.wake_pacer.notify_one();
        self.changes.notify_one();
        self.dirty.notify_one();
    }

    /// The queue of a bucket changed, or was found by a scan.
    pub fn add(&self, bucket: &BucketName) {
        match self.names().add(bucket.as_str()) {
            Added::News => self.queues.notify_one(),
            Added::Known => {}
            Added::Full => self.names_lost(),
        }
    }

    /// Names were lost: every queue must be looked at.
    pub fn names_lost(&self) {
        self.lost.send_modify(|times| *times += 1);
    }

    /// Wait until a scan may add more names.
    pub async fn wait_for_room(&self) {
        while self.names().waiting.len() > SCAN_RESUMES_AT {
            self.room.notified().await;
        }
    }

    /// Up to `most` names, for a call that is made now; [`Self::complete`] must follow.
    pub fn take(&self, most: usize) -> Vec<Arc<str>> {
        let mut names = self.names();
        let taken = names.take(most);
        if names.waiting.len() <= SCAN_RESUMES_AT {
            self.room.notify_waiters();
        }
        taken
    }

    /// Another pacer begins. What its forerunner had in hand may have been lost with a connection; every queue is looked at then.
    pub fn reset(&self) {
        *self.names() = Names::default();
        self.room.notify_waiters();
    }

    /// A call with these names is over, and has looked at the first so many of them.
    pub fn complete(&self, names: &[Arc<str>], looked: usize) {
        self.names().complete(names, looked);
    }

    /// How many names wait.
    pub fn waiting(&self) -> usize {
        self.names().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_reported_while_a_call_with_it_is_under_way_waits_for_the_end_of_that_call_only() {
        let mut names = Names::default();
        assert_eq!(names.add("a"), Added::News);
        assert_eq!(names.add("a"), Added::Known);
        let taken = names.take(10);
        assert_eq!(taken.join(" "), "a");
        assert_eq!(names.add("a"), Added::Known, "the call may or may not see it");
        assert!(names.take(10).is_empty());
        names.complete(&taken, 1);
        let again = names.take(10);
        assert_eq!(again.join(" "), "a", "not dropped");
        names.complete(&again, 1);
        assert!(names.known.is_empty(), "nothing is kept of it");
        assert_eq!(names.add("a"), Added::News, "and nothing delays the next push");
    }

    #[test]
    fn names_that_a_call_had_no_room_for_are_the_next_ones() {
        let mut names = Names::default();
        for name in ["a", "b", "c", "d"] {
            names.add(name);
        }
        let taken = names.take(3);
        assert_eq!(names.add("c"), Added::Known, "reported in the meantime");
        names.complete(&taken, 1);
        let again = names.take(10);
        assert_eq!(again.join(" "), "b c d");
        assert!(names.take(10).is_empty(), "each once");
        names.complete(&again, 0);
        assert_eq!(names.take(10).join(" "), "b c d", "the call had other things to do");
    }

    #[test]
    fn a_full_set_asks_for_a_reconcile_and_gives_its_memory_back() {
        let mut names = Names::default();
        for n in 0..MAX_NAMES {
            assert_eq!(names.add(&n.to_string()), Added::News);
        }
        assert_eq!(names.add("one more"), Added::Full);
        let taken = names.take(MAX_NAMES);
        assert_eq!(taken.len(), MAX_NAMES);
        names.complete(&taken, MAX_NAMES);
        assert_eq!(names.known.capacity(), 0);
    }
}
