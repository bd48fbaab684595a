//! Nothing sleeps on: what ends a wait, for an operator, a slot, a slow-down or a rate, is followed by a dispatch at once, by whichever
//! daemon is awake. Each act is made on a connection that is no daemon's, while the daemons sleep.

use std::time::{Duration, Instant};

use dripd::model::subject::Subject;
use dripd::store::explain::{Facts, Level};
use serde_json::{Value as Json, json};

use crate::program::daemon::{bare_relay, home, median};
use crate::rig::{Case, Daemon, eventually, signal};

/// How often each act is made, and how often that is tried on a machine that is busy.
const TURNS: usize = 21;
const TRIES: usize = 4;

/// What is promised on an idle machine; what is allowed on any, against the time from a bare `LPUSH` to a blocked `BRPOP` there and then
/// (a change of a glob takes some calls); and the most. Without the wake it takes as long as the daemons sleep: hundreds of milliseconds
/// where the slots are looked through, and else half a minute.
const PROMISED: Duration = Duration::from_millis(5);
const RATIO: u32 = 100;
const MOST: Duration = Duration::from_millis(200);

/// What is promised where one of two daemons hears nothing: the other one calls a little later than that one would.
const ONE_DEAF: Duration = Duration::from_millis(50);

/// Buckets by themselves and below budgets, each slow, or with few slots, until something is set.
const TOML: &str = "[defaults]\nrate = '1000/s'\ncapacity = 10000\n[[budget]]\nmatch = 'b'\nrate = '1000/s'\n\
                    [[budget]]\nmatch = 'b:slow'\nrate = '1/h'\nwithin = 'b'\ncatch_up = '0s'\n\
                    [[budget]]\nmatch = 'b:slots'\nconcurrency = 1\nwithin = 'b'\n\
                    [[bucket]]\nmatch = 'own:slow'\nrate = '1/h'\n[[bucket]]\nmatch = 'own:slots'\nconcurrency = 1\n\
                    [[bucket]]\nmatch = 'in:slow'\nwithin = 'b:slow'\n[[bucket]]\nmatch = 'in:slots'\nwithin = 'b:slots'\n\
                    [[bucket]]\nmatch = 'in'\nwithin = 'b'\n";

/// What makes a bucket wait, or lets it go on.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Set a key of a name or a glob, of a budget in braces.
    Set(&'static str, &'static str),
    /// Take a key back.
    Unset(&'static str, &'static str),
    /// Slow a node down as `dripd slow` does, or end that.
    Slow(&'static str),
    Clear(&'static str),
    /// The same by the public function: of a bucket, or of a budget above it.
    ClearOf(&'static str, Option<&'static str>),
    /// The job in hand is given back, for the other side has said to come again in an hour; `IN` a budget.
    Throttled(Option<&'static str>),
    /// The job in hand is done.
    Ack,
    /// Nothing: the bucket waits by itself, once a job has left.
    Nothing,
}

/// A bucket, what makes it wait, and what ends that.
type Row = (&'static str, Act, Act);

/// Jobs that arrive, and those that are in hand.
struct Stage {
    case: Case,
    in_hand: Vec<String>,
}

impl Stage {
    /// Wait for the next job.
    fn next(&mut self) {
        let ready = self.case.key("ready");
        let words = ["XREADGROUP", "GROUP", "workers", "w", "COUNT", "1", "BLOCK", "10000", "STREAMS", &ready, ">"];
        let reply: Vec<(String, Vec<(String, redis::Value)>)> =
            self.case.cmd::<Option<_>>(&words).expect("a job arrives within ten seconds");
        self.in_hand.push(reply[0].1[0].0.clone());
    }

    /// Take what has arrived by now, and finish all but so many.
    fn finish_all_but(&mut self, n: usize) {
        self.in_hand.extend(self.case.take("ready", 1_000).into_iter().map(|entry| entry.id));
        let done: Vec<String> = self.in_hand.drain(..self.in_hand.len().saturating_sub(n)).collect();
        for done in done.chunks(1_000) {
            let _: i64 = self.case.fcall("drip_ack", &["ready"], done);
        }
    }

    fn change(&mut self, name: &str, change: &Json) {
        let mut c = json!({ "what": "set", "match": name, "is_glob": name.contains('*'), "by": "t" });
        c.as_object_mut().expect("one").extend(change.as_object().expect("one").clone());
        let args = [String::new(), c.to_string()];
        // Another change of a glob may still spread.
        eventually("it is done", || {
            self.case.fcall::<(i64, Vec<String>, String)>("drip__set", &["policy"], &args).0 >= 0
        });
    }

    fn slow(&mut self, node: &str, ms: Option<u64>) {
        let c = json!({ "node": node, "ms": ms, "by": "t" });
        let c = if ms.is_some() { c } else { json!({ "node": node, "by": "t" }) };
        let _: (u64, u64) = self.case.fcall("drip__slow_node", &["policy"], &[String::new(), c.to_string()]);
    }

    fn make(&mut self, act: Act) {
        match act {
            Act::Set(name, "pause") => {
                self.change(name, &json!({ "set": { "pause": { "text": "yes", "policy": {} } } }));
            }
            Act::Set(name, word) => {
                let subject = Subject::of_stored(name);
                let given = dripd::config::settings::parse(&[word.to_owned()], &subject).expect("good").remove(0);
                self.change(name, &json!({ "set": { &given.key: { "text": given.text, "policy": given.policy } } }));
            }
            Act::Unset(name, key) => self.change(name, &json!({ "unset": [key] })),
            Act::Slow(node) => self.slow(node, Some(3_600_000)),
            Act::Clear(node) => self.slow(node, None),
            Act::ClearOf(bucket, within) => {
                let mut args = vec!["CLEAR"];
                args.extend(within.into_iter().flat_map(|budget| ["IN", budget]));
                let _: (u64, u64) = self.case.fcall("drip_slow", &[&format!("queue:{bucket}")], &args);
            }
            Act::Throttled(within) => {
                self.finish_all_but(0); // not the same job again and again: that would count as attempts in the end
                self.next();
                let id = self.in_hand.pop().expect("a job is in hand");
                let mut args = vec![id.as_str(), "THROTTLED", "RETRY_AFTER", "3600000"];
                args.extend(within.into_iter().flat_map(|budget| ["IN", budget]));
                assert_eq!(self.case.fcall::<i64>("drip_fail", &["ready"], &args), 1);
            }
            Act::Ack => {
                let id = self.in_hand.pop().expect("a job is in hand");
                assert_eq!(self.case.fcall::<i64>("drip_ack", &["ready"], &[&id]), 1);
            }
            Act::Nothing => {}
        }
    }

    /// Whether something keeps a bucket from going for long, and no change spreads.
    fn waits(&mut self, bucket: &str) -> bool {
        let facts: redis::Value = self.case.fcall("drip__explain", &[&format!("queue:{bucket}")], &[""]);
        let facts = Facts::read(facts).expect("facts");
        let is_stopped = |level: &Level| {
            level.paused.is_some()
                || level.slots.is_some_and(|slots| slots.taken >= slots.of)
                || level.due_us.is_some_and(|us| us > 60_000_000)
        };
        facts.levels.iter().any(is_stopped) && !facts.spreading
    }

    /// Make a bucket wait, until nothing leaves any more and the daemons sleep. At most one job stays in hand.
    fn hold(&mut self, bucket: &str, hold: Act) {
        if self.case.waiting(bucket).len() < 100 {
            self.case.lpush(bucket, &["x"; 200]);
        }
        self.make(hold);
        eventually("it waits", || {
            self.finish_all_but(1);
            std::thread::sleep(Duration::from_millis(8)); // whoever is awake looks, and sleeps again
            self.case.take("ready", 1_000).into_iter().for_each(|entry| self.in_hand.push(entry.id));
            self.in_hand.len() <= 1 && self.waits(bucket)
        });
    }

    /// How long after the reply to each of some acts the next job was there.
    fn turns(&mut self, (bucket, hold, act): Row) -> Vec<Duration> {
        let turn = |_| {
            self.hold(bucket, hold);
            self.make(act);
            let since = Instant::now();
            self.next();
            since.elapsed()
        };
        (0..TURNS).map(turn).collect()
    }

    /// A job leaves soon after the act; on a machine that is busy in one of some tries.
    fn wakes(&mut self, row: Row, daemons: &str, promised: Duration) {
        let mut tries = Vec::new();
        while tries.len() < TRIES {
            if matches!(row.1, Act::Nothing) {
                self.case.lpush(row.0, &["x"; 200]);
                self.next();
            }
            let took = median(self.turns(row));
            let bare = median((0..7).map(|_| bare_relay(&mut self.case)).collect());
            self.end(row);
            println!("{row:?}, {daemons}: {took:?}, a bare relay {bare:?}");
            if took <= promised.max(bare * RATIO).min(MOST) {
                return;
            }
            tries.push((took, bare));
        }
        panic!("{row:?}, {daemons}: medians, and those of a bare relay: {tries:?}");
    }

    /// Nothing waits and nothing is set any more.
    fn end(&mut self, (bucket, hold, act): Row) {
        let (queue, ready) = (self.case.queue(bucket), self.case.key("ready"));
        let _: i64 = self.case.cmd(&["DEL", &queue]);
        for act in [hold, act] {
            match act {
                Act::Set(name, "pause") => self.make(Act::Unset(name, "pause")),
                Act::Set(name, word) => {
                    let key = word.split('=').next().expect("a key");
                    self.change(name, &json!({ "unset": [key] }));
                }
                Act::Slow(node) | Act::Clear(node) => self.make(Act::Clear(node)),
                Act::ClearOf(..) => self.make(act),
                _ => {}
            }
        }
        eventually("nothing is in hand", || {
            self.finish_all_but(0);
            let in_flight: Vec<redis::Value> = self.case.cmd(&["XPENDING", &ready, "workers", "-", "+", "1"]);
            in_flight.is_empty() && self.case.waiting(bucket).is_empty()
        });
    }
}

/// Each row with one daemon, with two, and with two of which one hears nothing.
fn wake(rows: &[Row]) {
    let case = Case::bare();
    let home = home(&case, TOML);
    let mut stage = Stage { case, in_hand: Vec::new() };
    let older = Daemon::start(home.path());
    for row in rows {
        stage.wakes(*row, "one daemon", PROMISED);
    }
    let younger = Daemon::start(home.path());
    for row in rows {
        stage.wakes(*row, "two daemons", PROMISED);
    }
    for (deaf, what) in [(&older, "the older of two is deaf"), (&younger, "the younger of two is deaf")] {
        signal(deaf.child.id(), "STOP");
        for row in rows {
            stage.wakes(*row, what, ONE_DEAF);
        }
        signal(deaf.child.id(), "CONT");
    }
}

#[test]
fn a_resume_of_a_name_a_glob_and_a_budget_is_followed_by_a_dispatch_at_once() {
    wake(&["own", "ow*", "{b}", "{b*}"].map(|name| {
        let bucket = if name.starts_with('{') { "in" } else { "own" };
        (bucket, Act::Set(name, "pause"), Act::Unset(name, "pause"))
    }));
}

#[test]
fn a_faster_rate_of_a_bucket_and_of_a_budget_is_followed_by_a_dispatch_at_once() {
    wake(&[
        ("own:slow", Act::Unset("own:slow", "rate"), Act::Set("own:slow", "rate=1000/s")),
        ("own:slow", Act::Unset("own:sl*", "rate"), Act::Set("own:sl*", "rate=1000/s")),
        ("in:slow", Act::Unset("{b:slow}", "rate"), Act::Set("{b:slow}", "rate=1000/s")),
        ("in:slow", Act::Unset("{*:slow}", "rate"), Act::Set("{*:slow}", "rate=1000/s")),
        ("own", Act::Set("own", "rate=1/h"), Act::Unset("own", "rate")),
        ("in", Act::Set("{b}", "rate=1/h"), Act::Unset("{b}", "rate")),
    ]);
}

#[test]
fn more_slots_of_a_bucket_and_of_a_budget_and_one_that_is_freed_are_followed_by_a_dispatch_at_once() {
    wake(&[
        ("own:slots", Act::Unset("own:slots", "concurrency"), Act::Set("own:slots", "concurrency=2")),
        ("in:slots", Act::Unset("{b:slots}", "concurrency"), Act::Set("{b:slots}", "concurrency=2")),
        ("own", Act::Set("own", "concurrency=1"), Act::Unset("own", "concurrency")),
        ("in", Act::Set("{b}", "concurrency=1"), Act::Unset("{b}", "concurrency")),
        ("own:slots", Act::Nothing, Act::Ack),
        ("in:slots", Act::Nothing, Act::Ack),
    ]);
}

#[test]
fn the_end_of_a_slow_down_of_a_bucket_and_of_a_budget_is_followed_by_a_dispatch_at_once() {
    wake(&[
        ("own", Act::Slow("own"), Act::Clear("own")),
        ("in", Act::Slow("{b}"), Act::Clear("{b}")),
        ("own", Act::Throttled(None), Act::ClearOf("own", None)),
        ("in", Act::Throttled(Some("b")), Act::ClearOf("in", Some("b"))),
    ]);
}
