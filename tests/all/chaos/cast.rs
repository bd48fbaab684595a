//! Who is busy on the stage: the producers and workers of one partition, who watches it, what they share, and what they noted at the end.
//! Where nothing is cut the only one is all there is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

use super::history::{Entry, Held, History, Push, stalls};
use super::line::Way;
use super::players::{produce, watch, work};
use super::primaries::Kept;
use super::stage::{BUCKETS, LEASE_US, READY_WINDOW_US, nodes};

pub fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()).expect("in range")
}

/// How the keys and the buckets of a cast are named.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// How each bucket begins, so that it lives in the partition.
    pub root: String,
    /// What its keys have behind their first word.
    pub tag: String,
}

impl Names {
    /// The names in a partition, of which a bucket's first part says that it lives there.
    pub fn in_partition(number: u16, first_part: &str) -> Self {
        Self { root: format!("{first_part}:"), tag: format!(":{{{number}}}") }
    }

    pub fn key(&self, word: &str) -> String {
        format!("drip:{word}{}", self.tag)
    }

    pub fn bucket(&self, bucket: usize) -> String {
        format!("{}{}", self.root, BUCKETS[bucket])
    }

    pub fn of_bucket(&self, word: &str, bucket: usize) -> String {
        format!("{}:{}", self.key(word), self.bucket(bucket))
    }
}

/// What all of them share.
pub struct Shared {
    pub way: Way,
    pub names: Names,
    /// Whether the ids of entries tell no time, because the server's clock is wrong.
    pub ids_tell_no_time: bool,
    pub pushing: AtomicBool,
    pub working: AtomicBool,
    pub next_job: AtomicU64,
    /// Workers that are to die with what they have in hand.
    pub deaths: AtomicUsize,
    pub pushes: Mutex<Vec<Push>>,
    pub entries: Mutex<Vec<Entry>>,
    pub held: Mutex<Vec<Held>>,
    /// When the server was asked something again and again, and when it answered.
    pub questions: Mutex<Vec<(u64, u64)>>,
    /// The number of the last entry there was, and between which moments that was so: noted where ids tell no time.
    pub tops: Mutex<Vec<(u64, u64, u64)>>,
}

pub struct Cast {
    shared: Arc<Shared>,
    kept: Arc<Kept>,
    producers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
}

impl Cast {
    /// So many producers and workers begin.
    pub fn start(way: Way, names: Names, ids_tell_no_time: bool, (producers, workers): (usize, usize)) -> Self {
        let shared = Arc::new(Shared {
            way,
            names,
            ids_tell_no_time,
            pushing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            next_job: AtomicU64::new(0),
            deaths: AtomicUsize::new(0),
            pushes: Mutex::default(),
            entries: Mutex::default(),
            held: Mutex::default(),
            questions: Mutex::default(),
            tops: Mutex::default(),
        });
        let kept = Arc::<Kept>::default();
        let mut watchers = vec![start(&shared, watch)];
        if matches!(shared.way, Way::Primaries(_)) {
            let kept = Arc::clone(&kept);
            watchers.push(start(&shared, move |shared| kept.watch(shared)));
        }
        let producers = (0..producers).map(|n| start(&shared, move |shared| produce(shared, n))).collect();
        let workers = (0..workers).map(|n| start(&shared, move |shared| work(shared, n))).collect();
        Self { shared, kept, producers, workers, watchers }
    }

    /// How many jobs have been in a worker's hands.
    pub fn delivered(&self) -> usize {
        self.shared.entries.lock().expect("no panic").len()
    }

    /// How often somebody asked elsewhere because a node said so.
    pub fn asked(&self) -> usize {
        self.shared.way.asked()
    }

    /// One of the workers dies with what it has in hand, as soon as it has something.
    pub fn kill_a_worker(&self) {
        self.shared.deaths.fetch_add(1, Ordering::Relaxed);
    }

    pub fn end_load(&self) {
        self.shared.pushing.store(false, Ordering::Relaxed);
    }

    /// End the load, wait until all that waits has left and is finished, and reply what happened.
    pub fn close(&mut self) -> History {
        self.end_load();
        self.producers.drain(..).for_each(|producer| producer.join().expect("no panic"));
        let since = Instant::now();
        while let Some(rest) = self.rest() {
            assert!(since.elapsed() < Duration::from_secs(90), "something is stuck: {rest}");
            sleep(Duration::from_millis(20));
        }
        self.shared.working.store(false, Ordering::Relaxed);
        self.workers.drain(..).for_each(|worker| worker.join().expect("no panic"));
        self.watchers.drain(..).for_each(|watcher| watcher.join().expect("no panic"));
        let pushes = std::mem::take(&mut *self.shared.pushes.lock().expect("no panic"));
        let stalls = stalls(&self.shared.questions.lock().expect("no panic"));
        let mut entries = std::mem::take(&mut *self.shared.entries.lock().expect("no panic"));
        entries.sort_by_key(|entry| entry.at);
        if self.shared.ids_tell_no_time {
            tell_time(&mut entries, &self.shared.tops.lock().expect("no panic"));
        }
        let held = std::mem::take(&mut *self.shared.held.lock().expect("no panic"));
        let kept_until_us = self.kept.until_us(&self.shared.way);
        History {
            nodes: nodes(),
            pushes,
            entries,
            held,
            lease_us: LEASE_US,
            ready_window_us: READY_WINDOW_US,
            stalls,
            kept_until_us,
            ..History::default()
        }
    }

    /// What waits, is tried again or is in somebody's hands, if anything is.
    fn rest(&self) -> Option<String> {
        let Ok((mut redis, _)) = self.shared.way.connect() else { return Some("no server answers".to_owned()) };
        let names = &self.shared.names;
        let mut sum = |command: &str, word: &str| -> u64 {
            let of = |bucket| redis::cmd(command).arg(names.of_bucket(word, bucket)).query(&mut redis).unwrap_or(1);
            (0..BUCKETS.len()).map(of).sum()
        };
        let (queues, retries) = (sum("LLEN", "queue"), sum("ZCARD", "retry"));
        // Of the entries that are left only these count: what is finished is deleted some time later, and the group's lag, which would tell
        // of it at once, is wrong after a failover until dripd's next pass.
        let ready = names.key("ready");
        let group: redis::RedisResult<Vec<HashMap<String, Value>>> =
            redis::cmd("XINFO").arg("GROUPS").arg(&ready).query(&mut redis);
        let Ok([group]) = group.as_deref() else { return Some("there is no group".to_owned()) };
        let last: String = redis::from_redis_value_ref(&group["last-delivered-id"]).expect("an id");
        let pending: usize = redis::from_redis_value_ref(&group["pending"]).expect("a number");
        let mut behind = redis::cmd("XRANGE");
        behind.arg(&ready).arg(format!("({last}")).arg("+").arg("COUNT").arg(1);
        let ready = behind.query::<Vec<Value>>(&mut redis).map_or(1, |entries| entries.len());
        (queues + retries > 0 || ready + pending > 0)
            .then(|| format!("{queues} wait, {retries} are tried again, {ready} or more are ready, {pending} taken"))
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.end_load();
        self.shared.working.store(false, Ordering::Relaxed);
    }
}

fn start(shared: &Arc<Shared>, run: impl FnOnce(&Shared) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

/// Between which moments each entry left: after the last look at the stream without it, before the first one with it.
fn tell_time(entries: &mut [Entry], tops: &[(u64, u64, u64)]) {
    for entry in entries {
        let number = entry.at & !15;
        let first = tops.partition_point(|(top, _, _)| *top < number);
        entry.early_us = if first == 0 { 0 } else { tops[first - 1].1 };
        entry.left_us = tops.get(first).map_or(u64::MAX, |(_, _, answered_us)| *answered_us);
    }
}
