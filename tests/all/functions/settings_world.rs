//! The real thing beside the reference of `settings_table`, and what must be true after each step whatever the functions did:
//! of jobs, of the pace, of pauses and of places. Nothing here predicts what a call does; it judges what one has done.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use dripd::store::change::Change;
use redis::Value;

use super::model::stream;
use super::settings_seen::Seen;
use super::settings_table::{InForce, Table};
use crate::rig::{self, Case, MS, S, Server};

pub(super) const BUCKETS: [&str; 5] = ["a1", "a2", "b1", "ab", "c"];

pub(super) const ROUTES: [&str; 2] = ["default", "mail"];

/// The configurations that a sequence changes between. Small batches leave a change half spread for long.
pub(super) const RECORDS: [&str; 3] = [
    "[defaults]\nrate = '10/s'\ncapacity = 4\nattempts = 3\nbackoff = { initial = '300ms', max = '1s' }\n",
    "[defaults]\nrate = '3/s'\ncapacity = 2\ncatch_up = '0s'\nattempts = 9\n[[bucket]]\nmatch = 'a*'\nrate = '1/10s'\ncapacity = 6\n\
     [[bucket]]\nmatch = 'c'\nroute = 'mail'\noverflow = 'drop-oldest'\ncapacity = 3\n[limits]\nmax_ready = 4\nbatch = 2\n",
    "[defaults]\nrate = '1/d'\ncapacity = 6\ncatch_up = '1s'\n[[bucket]]\nmatch = '*1'\nrate = '50/s'\n[limits]\nmax_ready = 3\nbatch = 3\n",
];

/// How far a due may be off: each change of the rate may cost a part of a microsecond.
pub(super) const OFF_US: u64 = 20;

macro_rules! ensure {
    ($is_so:expr, $($why:tt)+) => {
        if !$is_so { return Err(format!($($why)+)); }
    };
}

/// A server whose small sets are scanned a few names at a time, as large ones are.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Server::start(&["--zset-max-listpack-entries", "0"]);
        rig::load_library(&mut server.connect());
        server
    })
}

/// What is known of a bucket from what it did.
#[derive(Debug, Clone)]
pub(super) struct Track {
    /// Its next job is due an interval after this; two values, for the clock may have stepped back.
    pub(super) base: Option<(u64, u64)>,
    /// It was idle, past its due, and forgotten: its next job may leave at once.
    pub(super) is_free: bool,
    /// Jobs that a look left in its queue: so many are surely kept, and may be; and whether there was a plain push since.
    pub(super) looked: (usize, usize),
    pub(super) is_unlooked: bool,
    /// The smallest and the largest capacity in force since then, and whether it stood somewhere at each change.
    pub(super) caps: (usize, usize),
    pub(super) stood: bool,
    /// When it last went on after it was paused or held.
    pub(super) went_on: u64,
}

pub(super) struct World {
    pub(super) case: Case,
    pub(super) table: Table,
    pub(super) now: u64,
    /// The latest time of all, for the clock may step back.
    pub(super) latest: u64,
    pub(super) seen: Seen,
    pub(super) tracks: Vec<Track>,
    pub(super) pushed: u64,
    /// Jobs that a bucket took in, or that were pushed plainly.
    pub(super) jobs: BTreeSet<String>,
    pub(super) done: BTreeSet<String>,
    pub(super) rejected: BTreeSet<String>,
    pub(super) taken: BTreeSet<(usize, String)>,
    /// Whether all buckets are peeked at after a step.
    pub(super) peeks: bool,
}

/// What a step did, as far as the judge must know.
#[derive(Default)]
pub(super) struct Did {
    /// Buckets that were surely looked at.
    pub(super) looked: BTreeSet<usize>,
    /// Jobs that were pushed, by bucket.
    pub(super) pushed: Option<(usize, Vec<String>)>,
    /// Drained until nothing moved any more: the wait.
    pub(super) settled: Option<i64>,
}

impl Did {
    pub(super) fn pushed_to(&self, b: usize) -> &[String] {
        self.pushed.as_ref().filter(|(of, _)| *of == b).map_or(&[], |(_, jobs)| jobs)
    }
}

impl World {
    pub(super) fn new() -> Self {
        let mut case = Case { redis: server().connect(), prefix: format!("t{:016x}", rig::rand_u64()) };
        let (now, json) = (rig::T0, rig::record(RECORDS[0]));
        assert_eq!(case.configure_at(&now.to_string(), RECORDS[0]), 1);
        let _: i64 = case.fcall("drip__route", &["ready:mail"], &[""]);
        let track = Track {
            base: None,
            is_free: false,
            looked: (0, 0),
            is_unlooked: false,
            caps: (4, 4),
            stood: true,
            went_on: 0,
        };
        let tracks = vec![track; BUCKETS.len()];
        let mut world = Self {
            case,
            table: Table::new(&json),
            now,
            latest: now,
            seen: Seen::default(),
            tracks,
            pushed: 0,
            jobs: BTreeSet::new(),
            done: BTreeSet::new(),
            rejected: BTreeSet::new(),
            taken: BTreeSet::new(),
            peeks: true,
        };
        world.seen = Seen::read(&mut world.case, now, false);
        world
    }

    pub(super) fn in_force(&self, b: usize) -> InForce {
        self.table.in_force(BUCKETS[b], self.now)
    }

    // ---- steps ----

    pub(super) fn change(&mut self, change: &Change) -> Result<(), String> {
        let json = serde_json::to_string(&Change { asks: Some("paused"), ..change.clone() }).expect("JSON");
        let args = [self.now.to_string(), json];
        let mut told: (i64, Vec<String>, String) = self.case.fcall("drip__set", &["policy"], &args);
        if told.0 == -1 {
            ensure!(change.is_glob, "a name is never busy");
            self.settle()?;
            told = self.case.fcall("drip__set", &["policy"], &args);
        }
        let expect = self.table.apply(self.now, change);
        ensure!(told.1 == expect, "told {told:?} instead of {expect:?}");
        ensure!(told.0 == i64::from(!expect.is_empty()), "told {told:?}");
        let named = BUCKETS.iter().position(|bucket| *bucket == change.pattern);
        if let Some(b) = named {
            let by = self.in_force(b).paused.unwrap_or_default();
            ensure!(told.2 == by, "{:?} pauses it, not {by:?}", told.2);
        }
        let looked = named.filter(|_| told.0 == 1).into_iter().collect();
        self.judge(&Did { looked, ..Did::default() })?;
        self.listed()
    }

    /// What is listed is what was set and is not over.
    fn listed(&mut self) -> Result<(), String> {
        let (mut cursor, mut found) = (String::new(), Vec::new());
        loop {
            let reply: Vec<Value> =
                self.case.fcall("drip__settings", &["policy"], &[self.now.to_string(), cursor.clone()]);
            let texts: Vec<String> = reply.into_iter().map(|v| redis::from_redis_value(v).expect("a text")).collect();
            for entry in texts[2..].chunks(3) {
                let json: serde_json::Value = serde_json::from_str(&entry[2]).expect("an entry");
                for (key, lies) in json["keys"].as_object().expect("keys") {
                    let lasting = lies["lasting"]["text"].as_str().map(str::to_owned);
                    let till = lies["timed"]["till"].as_str().and_then(|till| till.parse::<u64>().ok());
                    let timed = lies["timed"]["text"].as_str().filter(|_| till.is_some_and(|till| self.now < till));
                    if lasting.is_some() || timed.is_some() {
                        found.push((entry[0].clone(), key.clone(), lasting, timed.map(str::to_owned)));
                    }
                }
            }
            cursor.clone_from(&texts[0]);
            if cursor.is_empty() {
                break;
            }
        }
        found.sort();
        found.dedup(); // a scan may tell of one twice
        let expect = self.table.listed(self.now);
        ensure!(found == expect, "listed {found:?} instead of {expect:?}");
        Ok(())
    }

    fn new_jobs(&mut self, b: usize, n: usize) -> Vec<String> {
        self.pushed += n as u64;
        (self.pushed - n as u64..self.pushed).map(|n| format!("{}-{n}", BUCKETS[b])).collect()
    }

    pub(super) fn push(&mut self, b: usize, n: usize) -> Result<(), String> {
        let mut jobs = self.new_jobs(b, n);
        let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let [accepted, depth, capacity, retry_ms, eta_ms] = self.case.push_at(self.now, BUCKETS[b], &refs);
        let InForce { policy, .. } = self.in_force(b);
        ensure!(capacity == policy.capacity as i64, "capacity {capacity} instead of {}", policy.capacity);
        let before = depth - accepted;
        let room = if policy.drop_oldest { n as i64 } else { (capacity - before).clamp(0, n as i64) };
        ensure!(accepted == room, "{accepted} of {n} accepted instead of {room}, {depth} deep");
        ensure!((retry_ms == -1) == (accepted == n as i64), "retry after {retry_ms}");
        ensure!((eta_ms == -1) == (accepted == 0), "eta {eta_ms}");
        jobs.truncate(accepted as usize);
        self.jobs.extend(jobs.iter().cloned());
        let now_deep = self.case.waiting(BUCKETS[b]).len() as i64;
        ensure!(depth == now_deep, "depth {depth} instead of {now_deep}");
        let looked = BTreeSet::from([b]);
        self.judge(&Did { looked, pushed: Some((b, jobs)), settled: None })
    }

    pub(super) fn push_plainly(&mut self, b: usize, n: usize) -> Result<(), String> {
        let jobs = self.new_jobs(b, n);
        let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        self.case.lpush(BUCKETS[b], &refs);
        self.jobs.extend(jobs.iter().cloned());
        self.tracks[b].is_unlooked = true;
        self.judge(&Did { pushed: Some((b, jobs)), ..Did::default() })
    }

    pub(super) fn wake(&mut self, which: &[usize]) -> Result<(), String> {
        let which: BTreeSet<usize> = which.iter().copied().collect();
        let mut left: Vec<String> = which.iter().map(|b| format!("queue:{}", BUCKETS[*b])).collect();
        while !left.is_empty() {
            let keys: Vec<&str> = left.iter().map(String::as_str).collect();
            let reply: Vec<Value> = self.case.fcall("drip__wake", &keys, &[self.now.to_string()]);
            let (Value::Int(rejected), Value::Int(looked)) = (&reply[2], &reply[7]) else {
                return Err(format!("{reply:?}"));
            };
            // A call may be spent before its first look: on jobs that it rejected, for a setting of their bucket had ended.
            ensure!(*looked > 0 || *rejected > 0, "no queue was looked at, and nothing else was done");
            left.drain(..*looked as usize);
        }
        // A queue that is empty, or as a dispatch left it, needs no look: a change that spreads has not reached its bucket by that.
        let needs_look = |b: &usize| !self.seen.queues[*b].is_empty() && self.tracks[*b].is_unlooked;
        let looked = which.iter().copied().filter(needs_look).collect();
        self.judge(&Did { looked, ..Did::default() })?;
        for b in which {
            let (queue, stands) = (&self.seen.queues[b], self.seen.stands(b, self.now));
            ensure!(queue.is_empty() || stands, "{} has jobs and stands nowhere after its wake", BUCKETS[b]);
        }
        Ok(())
    }

    pub(super) fn drain(&mut self) -> Result<(), String> {
        self.case.drain_at(self.now);
        self.judge(&Did::default())
    }

    /// Drain until nothing moves any more: a call is bounded, and a full route is released a part at a time.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        let (mut quiet, mut calls) = (0, 0);
        let wait = loop {
            let drained = self.case.drain_at(self.now);
            quiet = if drained.dispatched == 0 && drained.wait_us != 0 { quiet + 1 } else { 0 };
            if quiet == 6 {
                break drained.wait_us;
            }
            calls += 1;
            ensure!(calls < 2_000, "it never rests");
        };
        self.judge(&Did { settled: Some(wait), ..Did::default() })
    }

    pub(super) fn take(&mut self, n: usize) -> Result<(), String> {
        for (route, name) in ROUTES.iter().enumerate() {
            let entries = self.case.take(&stream(name), n);
            self.taken.extend(entries.into_iter().map(|entry| (route, entry.id)));
        }
        self.judge(&Did::default())
    }

    pub(super) fn ack(&mut self, n: usize) -> Result<(), String> {
        let Some((route, id)) = self.taken.iter().nth(n).cloned() else { return Ok(()) };
        let entry = self.seen.ready.iter().find(|(r, entry)| *r == route && entry.id == id).expect("it is there");
        self.done.insert(entry.1.text("job"));
        ensure!(self.case.fcall::<i64>("drip_ack", &[&stream(ROUTES[route])], &[&id]) == 1, "it was pending");
        self.taken.remove(&(route, id));
        self.judge(&Did::default())
    }

    pub(super) fn fail(&mut self, n: usize, wait: Option<u64>, keep: bool) -> Result<(), String> {
        let Some((route, id)) = self.taken.iter().nth(n).cloned() else { return Ok(()) };
        let mut args = vec![self.now.to_string(), id.clone()];
        if let Some(ms) = wait {
            args.extend(["RETRY_IN".to_owned(), ms.to_string()]);
        }
        if keep {
            args.push("KEEP".to_owned());
        }
        let reply: i64 = self.case.fcall("drip__fail", &[&stream(ROUTES[route])], &args);
        ensure!(reply > 0, "it was pending");
        self.taken.remove(&(route, id));
        self.judge(&Did::default())
    }

    pub(super) fn reload(&mut self, toml: &str) -> Result<(), String> {
        if self.case.configure_at(&self.now.to_string(), toml) == -1 {
            self.settle()?;
            ensure!(self.case.configure_at(&self.now.to_string(), toml) >= 0, "busy though nothing spreads");
        }
        self.table.reload(&rig::record(toml));
        self.judge(&Did::default())
    }

    pub(super) fn advance(&mut self, us: u64) -> Result<(), String> {
        let to = self.now + us;
        // At each end in between an idle bucket may be past its due by the rate before it.
        let mut ends: Vec<u64> =
            self.table.ends.iter().copied().filter(|end| (self.now + 1..=to).contains(end)).collect();
        ends.sort_unstable();
        for end in ends {
            self.now = end - 1;
            self.free_idle_ones();
        }
        self.now = to;
        self.latest = self.latest.max(to);
        self.judge(&Did::default())
    }

    pub(super) fn go_to_end(&mut self, off: i64) -> Result<(), String> {
        let to = self.table.next_end(self.now).map_or(self.now + 10 * MS, |end| end.saturating_add_signed(off));
        self.advance(to - self.now)
    }

    /// A small step back; not over the end of a setting, for one that was found to be over may stay so or not.
    pub(super) fn step_back(&mut self, us: u64) -> Result<(), String> {
        let to = self.now - us;
        if self.table.ends.iter().any(|end| (to + 1..=self.latest).contains(end)) {
            return Ok(());
        }
        self.now = to;
        for (b, track) in self.tracks.iter_mut().enumerate() {
            // What its route holds was due before, and goes when it is let.
            let was_due = self.seen.is_in(b, |place| place.starts_with("held"));
            track.base = track.base.map(|(low, high)| (if was_due { 0 } else { low.min(to) }, high));
            track.went_on = track.went_on.min(to);
        }
        self.judge(&Did::default())
    }

    /// A server that did not make the last changes itself.
    pub(super) fn another_server(&mut self) -> Result<(), String> {
        let key = self.case.key("policy");
        let is_set: i64 = self.case.cmd(&["HEXISTS", &key, "settings"]);
        if is_set == 1 {
            let _: i64 = self.case.cmd(&["HSET", &key, "settings", &format!("other-{}", rig::rand_u64())]);
        }
        self.judge(&Did::default())
    }

    pub(super) fn load_library(&mut self) -> Result<(), String> {
        rig::load_library(&mut self.case.redis);
        self.judge(&Did::default())
    }

    /// All is taken back, time passes, everything drains, and nothing is left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        for pattern in self.table.patterns() {
            let mut all = super::settings_table::take_back(&pattern, &["pause", "close"]);
            self.change(&all)?;
            all.unset_all = true;
            self.change(&all)?;
        }
        let all: Vec<usize> = (0..BUCKETS.len()).collect();
        self.wake(&all)?;
        for _ in 0..200 {
            self.settle()?;
            self.take(100)?;
            while !self.taken.is_empty() {
                self.ack(0)?;
            }
            let is_empty = self.seen.queues.iter().all(Vec::is_empty) && self.seen.retries.iter().all(Vec::is_empty);
            if is_empty {
                break;
            }
            self.advance(86_400 * S)?;
        }
        self.settle()?;
        self.advance(2 * 86_400 * S)?;
        self.settle()?;
        ensure!(self.case.drain_at(self.now + S).wait_us == -1, "it waits for nothing");
        let mut left = self.case.keys();
        let stay = ["policy", "routes", "ready", "ready:mail", "rejected", "dead", "stats", "wake", "events"];
        left.retain(|key| !stay.contains(&key.as_str()));
        ensure!(left.is_empty(), "left: {left:?}");
        let policy = self.case.key("policy");
        let mut fields: Vec<String> = self.case.cmd(&["HKEYS", &policy]);
        fields.sort();
        let stay = ["drainer", "group:default", "group:mail", "id", "record"];
        ensure!(fields.iter().all(|field| stay.contains(&field.as_str())), "left of the policy: {fields:?}");
        let keys: Vec<String> = self.case.keys().iter().map(|key| self.case.key(key)).collect();
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        let _: i64 = self.case.cmd(&words);
        Ok(())
    }
}
