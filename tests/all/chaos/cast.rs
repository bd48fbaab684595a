//! Who is busy on the stage: producers and workers that never give up, whoever watches the server, and what they all note.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Connection, RedisResult};

use super::failover::Primaries;
use super::history::{Answer, End, Entry, Held, Push, UNNOTICED_US};
use super::server::connect;
use super::stage::{BUCKETS, CAPACITIES};

/// How long one of them waits before it connects again.
const PAUSE: Duration = Duration::from_millis(20);

/// How often sentinels are asked whether the primary is still the same.
const ASK_AGAIN: Duration = Duration::from_millis(100);

pub fn now_us() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()).expect("in range")
}

/// How they find the server.
pub enum Way {
    Port(u16),
    Sentinels(Primaries),
}

impl Way {
    /// A connection, and the number of the primary that it is to.
    pub fn connect(&self) -> RedisResult<(Connection, usize)> {
        match self {
            Self::Port(port) => Ok((connect(*port)?, 0)),
            Self::Sentinels(primaries) => primaries.connect(),
        }
    }
}

/// What all of them share.
pub struct Shared {
    pub way: Way,
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
    pub stalls: Mutex<Vec<(u64, u64)>>,
    /// The number of the last entry there was, and between which moments that was so: noted where ids tell no time.
    pub tops: Mutex<Vec<(u64, u64, u64)>>,
}

impl Shared {
    pub fn new(way: Way, ids_tell_no_time: bool) -> Self {
        Self {
            way,
            ids_tell_no_time,
            pushing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            next_job: AtomicU64::new(0),
            deaths: AtomicUsize::new(0),
            pushes: Mutex::default(),
            entries: Mutex::default(),
            held: Mutex::default(),
            stalls: Mutex::default(),
            tops: Mutex::default(),
        }
    }
}

pub fn start(shared: &Arc<Shared>, run: impl FnOnce(&Shared) + Send + 'static) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || run(&shared))
}

/// A connection that is made anew whenever it was lost, and the number of the primary that it is to.
struct Line<'a> {
    way: &'a Way,
    connection: Option<Connection>,
    primary: usize,
    /// When sentinels were asked last whether it is the right one.
    asked: Instant,
}

impl<'a> Line<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { way: &shared.way, connection: None, primary: 0, asked: Instant::now() }
    }

    /// Whether the primary is another one now, or will be.
    fn is_lost(&mut self) -> bool {
        let Way::Sentinels(primaries) = self.way else { return false };
        if self.connection.is_some() && self.asked.elapsed() > ASK_AGAIN {
            self.asked = Instant::now();
            if !primaries.is_still(self.primary) {
                self.connection = None;
            }
        }
        self.connection.is_none()
    }

    fn query<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        let _ = self.is_lost();
        if self.connection.is_none()
            && let Ok((connection, primary)) = self.way.connect()
        {
            (self.connection, self.primary) = (Some(connection), primary);
        }
        let Some(connection) = self.connection.as_mut() else {
            std::thread::sleep(PAUSE);
            return Err((redis::ErrorKind::Io, "no connection").into());
        };
        let answer = command.query(connection);
        // What the server refused leaves the connection as it was, if it is still the right server; anything else may have left half an
        // answer in it.
        if let Err(why) = &answer
            && (why.is_io_error() || why.is_timeout() || why.code().is_none_or(|code| code == "READONLY"))
        {
            self.connection = None;
        }
        answer
    }
}

/// Push one job after the other into any of the buckets, in turns by a plain push and by the function.
pub fn produce(shared: &Shared, n: usize) {
    let mut line = Line::new(shared);
    let mut turn = n;
    while shared.pushing.load(Ordering::Relaxed) {
        turn += 1;
        let bucket = usize::try_from(crate::rig::rand_u64() % 5).expect("small");
        let job = format!("j{}", shared.next_job.fetch_add(1, Ordering::Relaxed));
        let key = format!("drip:queue:{}", BUCKETS[bucket]);
        let sent_us = now_us();
        let answer = if turn.is_multiple_of(2) {
            let said: RedisResult<i64> = line.query(redis::cmd("LPUSH").arg(&key).arg(&job));
            said.ok().map(|length| length <= CAPACITIES[bucket])
        } else {
            let said: RedisResult<Vec<i64>> =
                line.query(redis::cmd("FCALL").arg("drip_push").arg(1).arg(&key).arg(&job));
            said.ok().map(|said| said[0] == 1)
        };
        let answer = match answer {
            Some(true) => Answer::Accepted,
            Some(false) => Answer::Rejected,
            None => Answer::Unknown,
        };
        let push = Push { job, bucket, sent_us, answered_us: now_us(), answer, primary: line.primary };
        shared.pushes.lock().expect("no panic").push(push);
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// Ask the server something again and again: between two answers that lie far apart it may have stood still. Where ids tell no time it is
/// asked how far the stream has come.
pub fn watch(shared: &Shared) {
    let mut line = Line::new(shared);
    let mut last = now_us();
    let mut question = redis::cmd(if shared.ids_tell_no_time { "XINFO" } else { "TIME" });
    if shared.ids_tell_no_time {
        question.arg("STREAM").arg("drip:ready");
    }
    while shared.working.load(Ordering::Relaxed) {
        let sent = now_us();
        let answer: RedisResult<redis::Value> = line.query(&question);
        let now = now_us();
        let is_answered = answer.is_ok();
        if let Ok(answer) = answer
            && shared.ids_tell_no_time
            && let Ok(stream) = redis::from_redis_value::<HashMap<String, redis::Value>>(answer)
        {
            let id: String = redis::from_redis_value_ref(&stream["last-generated-id"]).expect("an id");
            shared.tops.lock().expect("no panic").push((number_of(&id), sent, now));
        }
        if is_answered {
            if now > last + UNNOTICED_US {
                shared.stalls.lock().expect("no panic").push((last, now));
            }
            last = now;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a read of a stream is answered.
type Read = Option<Vec<(String, Vec<(String, HashMap<String, String>)>)>>;

/// Take jobs, hold each for a moment, and finish it in one of the ways that there are. A tenth fails.
pub fn work(shared: &Shared, n: usize) {
    let mut line = Line::new(shared);
    let (mut name, mut turn) = (format!("w{n}"), 0_u64);
    while shared.working.load(Ordering::Relaxed) {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg(&name).arg("COUNT").arg(4).arg("BLOCK").arg(100);
        read.arg("STREAMS").arg("drip:ready").arg(">");
        let Ok(reply) = line.query::<Read>(&read) else {
            std::thread::sleep(PAUSE); // there may be no group yet
            continue;
        };
        let from = line.primary;
        let entries: Vec<_> = reply.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
        let at_of: Vec<u64> = entries.iter().map(|(id, fields)| note(shared, from, id, fields)).collect();
        let dropped = |at| Held { at, end: End::Dropped, given_us: None, acked_us: None, primary: from };
        let take = |deaths: usize| deaths.checked_sub(1);
        if !entries.is_empty() && shared.deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            shared.held.lock().expect("no panic").extend(at_of.into_iter().map(dropped));
            name.push('x'); // another one takes its place
            line.connection = None;
            continue;
        }
        for ((id, _), at) in entries.iter().zip(at_of) {
            turn += 1;
            std::thread::sleep(Duration::from_micros(500));
            let given_us = now_us();
            let (end, command) = match turn % 10 {
                0 => (End::Failed, fcall("drip_fail", id)),
                n if n % 2 == 0 => (End::Acked, fcall("drip_ack", id)),
                _ => (End::Acked, redis::cmd("XACK").arg("drip:ready").arg("workers").arg(id).clone()),
            };
            if line.is_lost() {
                // Another primary may know another job by this id.
                shared.held.lock().expect("no panic").push(dropped(at));
                continue;
            }
            let said: RedisResult<i64> = line.query(&command);
            let acked_us = said.ok().filter(|said| end == End::Acked && *said == 1).map(|_| now_us());
            let held = Held { at, end, given_us: Some(given_us), acked_us, primary: line.primary };
            shared.held.lock().expect("no panic").push(held);
        }
    }
}

fn fcall(name: &str, id: &str) -> redis::Cmd {
    redis::cmd("FCALL").arg(name).arg(1).arg("drip:ready").arg(id).clone()
}

/// The number of an id: they grow alike.
fn number_of(id: &str) -> u64 {
    let (ms, seq) = id.split_once('-').expect("an id");
    let (ms, seq): (u64, u64) = (ms.parse().expect("a number"), seq.parse().expect("a number"));
    assert!(seq < 1 << 17, "{id}");
    ((ms << 17) + seq) << 4
}

/// Note an entry. Replies its number: one primary may know by an id another entry than the one before it.
fn note(shared: &Shared, primary: usize, id: &str, fields: &HashMap<String, String>) -> u64 {
    let mut entries = shared.entries.lock().expect("no panic");
    let number = number_of(id);
    let is_same =
        |entry: &&mut Entry| entry.at & !15 == number && entry.job == fields["job"] && entry.primary != primary;
    if primary > 0
        && let Some(known) = entries.iter_mut().rev().find(is_same)
    {
        known.is_kept = true;
        return known.at;
    }
    let bucket = BUCKETS.iter().position(|bucket| *bucket == fields["bucket"]).expect("one of them");
    let attempt = fields["attempt"].parse().expect("a number");
    let at = number + u64::try_from(primary).expect("small");
    let left_us = (number >> 21) * 1_000;
    let job = fields["job"].clone();
    entries.push(Entry { at, left_us, early_us: left_us, job, bucket, attempt, primary, is_kept: false });
    at
}
