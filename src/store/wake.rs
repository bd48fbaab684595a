//! Wake-ups: what Redis reports of changed keys, kept until the pacer or the reaper has looked.
//!
//! A plain `LPUSH` runs no code of ours, so Redis is asked to report every change under our prefixes
//! (`CLIENT TRACKING ... BCAST`). A report may stand for a write of the daemon and one of a producer at once, so none is
//! ever dropped: the names wait in a bounded set, each is handed out at most twice in five milliseconds, and when the set is full one
//! full reconcile stands for what did not fit.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tracing::warn;

use super::Partition;
use crate::words::bucket::BucketName;

/// How long a bucket is left alone after a look.
const QUIET: Duration = Duration::from_millis(5);

/// The most names kept; one more asks for a reconcile.
const MOST: usize = 65_536;

/// While more than this many wait, a reconcile waits too.
const ENOUGH: usize = 8_192;

/// How often a bad name is logged.
const BAD_NAME_LOG: Duration = Duration::from_secs(60);

/// What woke, until somebody looked.
#[derive(Debug)]
pub struct Hints {
    names: Mutex<Names>,
    keys: Partition,
    /// A queue changed: there is a name to look at, or a moment when there will be one.
    pub queues: Notify,
    /// A due changed in another way: by the end of a back-off, or by a policy.
    pub dues: Notify,
    /// A ready stream changed.
    pub ready: Notify,
    /// Names were lost: look at every queue.
    pub lost: Notify,
    /// The connection is gone.
    pub disconnected: Notify,
    /// There is room for the names of a reconcile.
    room: Notify,
}

/// Where a name stands. A look may write, and that write is reported too, so after a look a name is quiet: what is
/// reported meanwhile leads to one more look when the quiet is over. That one makes no quiet of its own, or the echo of a
/// dispatch would delay the next push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It waits to be handed out, and is quiet afterwards.
    Waiting,
    /// It waits after a quiet time, and is forgotten when handed out.
    Trailing,
    /// It was handed out less than [`QUIET`] ago.
    Quiet,
    /// The same, and was reported since.
    Reported,
}

#[derive(Debug, Default)]
struct Names {
    known: HashMap<Arc<str>, State>,
    /// Those that may be handed out.
    waiting: VecDeque<Arc<str>>,
    /// The quiet ones, the oldest first.
    quiet: VecDeque<(Instant, Arc<str>)>,
    /// How many of the quiet ones were reported.
    reported: usize,
    bad: u64,
    bad_logged: Option<Instant>,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    /// The pacer must learn of it: there is a name to hand out, or a moment when there will be one.
    News,
    /// It was known.
    Known,
    /// There is no room for it.
    Full,
}

impl Names {
    fn add(&mut self, name: &str) -> Added {
        if let Some(state) = self.known.get_mut(name) {
            if *state != State::Quiet {
                return Added::Known;
            }
            *state = State::Reported;
            self.reported += 1;
            return if self.reported == 1 { Added::News } else { Added::Known };
        }
        if self.known.len() >= MOST {
            return Added::Full;
        }
        let name: Arc<str> = name.into();
        self.known.insert(Arc::clone(&name), State::Waiting);
        self.waiting.push_back(name);
        Added::News
    }

    fn end_quiet(&mut self, now: Instant) {
        while self.quiet.front().is_some_and(|(since, _)| now.duration_since(*since) >= QUIET) {
            let (_, name) = self.quiet.pop_front().expect("there is a front");
            if self.known.get(&name) == Some(&State::Reported) {
                self.reported -= 1;
                self.known.insert(Arc::clone(&name), State::Trailing);
                self.waiting.push_back(name);
            } else if self.known.get(&name) == Some(&State::Quiet) {
                self.known.remove(&name);
            }
        }
        if self.known.is_empty() && self.known.capacity() > 4_096 {
            *self = Self { bad: self.bad, bad_logged: self.bad_logged, ..Self::default() }; // a burst is over
        }
    }

    fn take(&mut self, most: usize, now: Instant) -> Vec<Arc<str>> {
        self.end_quiet(now);
        let n = most.min(self.waiting.len());
        let taken: Vec<_> = self.waiting.drain(..n).collect();
        for name in &taken {
            if self.known.remove(name) == Some(State::Waiting) {
                self.known.insert(Arc::clone(name), State::Quiet);
                self.quiet.push_back((now, Arc::clone(name)));
            }
        }
        taken
    }

    /// They were handed out and not looked at, so there is nothing to be quiet about: they are the next ones.
    fn put_back(&mut self, names: &[Arc<str>]) {
        for name in names.iter().rev() {
            match self.known.insert(Arc::clone(name), State::Waiting) {
                Some(State::Waiting | State::Trailing) => continue, // its place is kept
                Some(State::Reported) => self.reported -= 1,
                Some(State::Quiet) | None => {}
            }
            self.waiting.push_front(Arc::clone(name));
        }
    }

    fn next_at(&self) -> Option<Instant> {
        if !self.waiting.is_empty() {
            return Some(Instant::now());
        }
        self.quiet.front().filter(|_| self.reported > 0).map(|(since, _)| *since + QUIET)
    }
}

impl Hints {
    /// An empty set for the queues of `keys`.
    #[must_use]
    pub fn new(keys: Partition) -> Self {
        Self {
            names: Mutex::default(),
            keys,
            queues: Notify::new(),
            dues: Notify::new(),
            ready: Notify::new(),
            lost: Notify::new(),
            disconnected: Notify::new(),
            room: Notify::new(),
        }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What every key that should be reported begins with.
    pub(super) fn prefixes(&self) -> [String; 3] {
        [self.keys.queues().to_owned(), self.keys.readies(), self.keys.retries()]
    }

    /// Take in what Redis pushed.
    pub(super) fn on_push(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Disconnection => self.disconnected.notify_one(),
            PushKind::Invalidate => match push.data.first() {
                Some(Value::Array(keys)) => {
                    for key in keys {
                        if let Value::BulkString(key) = key {
                            self.on_key(key);
                        }
                    }
                }
                _ => self.lost.notify_one(), // the whole database was flushed
            },
            _ => {}
        }
    }

    fn on_key(&self, key: &[u8]) {
        if key.starts_with(self.keys.queues().as_bytes()) {
            self.add_queue(key);
        } else if key.starts_with(self.keys.retries().as_bytes()) {
            self.dues.notify_one();
        } else {
            self.ready.notify_one();
        }
    }

    /// A queue changed, or was found by a scan. A key that names no bucket is counted, and logged once a minute.
    pub fn add_queue(&self, key: &[u8]) {
        let name = key.strip_prefix(self.keys.queues().as_bytes()).unwrap_or_default();
        let mut names = self.names();
        match BucketName::parse(name) {
            Ok(name) => match names.add(name.as_str()) {
                Added::News => self.queues.notify_one(),
                Added::Known => {}
                Added::Full => self.lost.notify_one(),
            },
            Err(why) => {
                names.bad += 1;
                if names.bad_logged.is_none_or(|at| at.elapsed() >= BAD_NAME_LOG) {
                    names.bad_logged = Some(Instant::now());
                    warn!(example = %why, seen = names.bad, "a queue is left alone: its name is no bucket");
                }
            }
        }
    }

    /// Wait until a scan may add more names.
    pub async fn wait_for_room(&self) {
        while self.names().waiting.len() > ENOUGH {
            self.room.notified().await;
        }
    }

    /// Up to `most` names that may be looked at now.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<Arc<str>> {
        let mut names = self.names();
        let taken = names.take(most, Instant::now());
        if names.waiting.len() <= ENOUGH {
            self.room.notify_waiters();
        }
        taken
    }

    /// Names that a call had no room for: they were handed out, and are to be handed out again, before all others.
    pub fn put_back(&self, names: &[Arc<str>]) {
        self.names().put_back(names);
    }

    /// Whether so many names may be looked at now.
    #[must_use]
    pub fn is_waiting(&self, names: usize) -> bool {
        self.names().waiting.len() >= names
    }

    /// When the next name may be looked at; `None` when none waits.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.names().next_at()
    }

    /// How many names were no bucket so far.
    #[must_use]
    pub fn bad_names(&self) -> u64 {
        self.names().bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_put_back_is_handed_out_at_once_and_first() {
        let (mut names, start) = (Names::default(), Instant::now());
        for name in ["a", "b", "c", "d"] {
            names.add(name);
        }
        let taken = names.take(3, start);
        assert_eq!(names.add("c"), Added::News, "reported in the meantime");
        names.put_back(&taken[1..]);
        assert_eq!(names.take(10, start).join(" "), "b c d");
        assert_eq!((names.reported, names.next_at()), (0, None));
        names.put_back(&["d".into()]);
        let later = start + QUIET;
        names.end_quiet(later);
        assert_eq!(names.take(10, later).join(" "), "d", "the end of its first quiet time does not forget it");
    }

    #[test]
    fn a_name_is_handed_out_at_once_and_again_when_the_quiet_is_over() {
        let (mut names, start) = (Names::default(), Instant::now());
        assert_eq!(names.add("a"), Added::News);
        assert_eq!(names.add("a"), Added::Known);
        assert_eq!(names.take(10, start).len(), 1);
        assert_eq!(names.add("a"), Added::News, "reported while quiet: the pacer must know when to look");
        assert!(names.take(10, start + QUIET / 2).is_empty());
        assert_eq!(names.take(10, start + QUIET).len(), 1, "not dropped");
        assert!(names.known.is_empty(), "nothing is kept of it");
        assert_eq!(names.add("a"), Added::News);
        assert_eq!(names.take(10, start + QUIET).len(), 1, "an echo does not delay the next push");
    }

    #[test]
    fn a_full_set_asks_for_a_reconcile_and_gives_its_memory_back() {
        let (mut names, start) = (Names::default(), Instant::now());
        for n in 0..MOST {
            assert_eq!(names.add(&n.to_string()), Added::News);
        }
        assert_eq!(names.add("one more"), Added::Full);
        assert_eq!(names.take(MOST, start).len(), MOST);
        assert!(names.take(1, start + QUIET).is_empty());
        assert_eq!(names.known.capacity(), 0);
    }
}
