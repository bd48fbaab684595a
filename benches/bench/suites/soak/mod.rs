//! soak: all sorts of load for a long time, beside which builds may run: pushes by three doors, limiters, budgets, a quota, slots, workers that
//! finish, fail, throttle and forget, settings, reloads, and whoever looks at all that. Memory must not grow, and no rate may drift.

mod course;
mod operator;
mod producers;
mod seen;
mod workers;

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::lab::{Daemon, Server, keys, wait_for};
use super::measure::Over;
use super::report::{Bound, Report, Row};
use super::wire::{Wire, parts};
use super::{lab, measure, report, wire};

use course::Course;
use seen::Seen;

/// Who is there. The first line belongs to `[limits]`, after which the policies stand.
const POLICIES: &str = r#"rejected_keep = 2000
[http]
listen = "127.0.0.1:0"
[defaults]
rate = "10/s"
capacity = 50
lease = "2s"
attempts = 20
backoff = { initial = "100ms", max = "2s" }
[[bucket]]
match = "exact:*"
catch_up = "1s"
[[bucket]]
match = "once:*"
rate = "1/s"
[[bucket]]
match = "work:*"
rate = "2/s"
route = "work"
[[bucket]]
match = "changing:*"
rate = "5/s"
[[bucket]]
match = "slots:*"
rate = "40/s"
concurrency = 2
[[bucket]]
match = "throttled:*"
rate = "5/s"
slow = { initial = "200ms", max = "2s" }
[[bucket]]
match = "gated:*"
admit = { limiter = "token-bucket", capacity = 20, count = 5, period = "1s" }
[[bucket]]
match = "quota:*"
quota = "120/m"
[[bucket]]
match = "dropped:*"
rate = "2/s"
[[budget]]
match = "tree"
rate = "40/s"
catch_up = "1s"
[[budget]]
match = "tree:*"
rate = "25/s"
within = "tree"
concurrency = 100
[[bucket]]
match = "tree:*:*"
rate = "15/s"
within = "tree:{1}"
"#;

/// What a reload changes, and into what.
const RELOADED: [&str; 2] = ["match = \"changing:*\"\nrate = \"5/s\"", "match = \"changing:*\"\nrate = \"7/s\""];

/// How many parts the time has. In the first [`WARMS_UP`] of them stores fill up to their bounds.
const PARTS: usize = 12;
const WARMS_UP: usize = 2;

/// A job as long as [`super::JOB`] that begins with its number, by which it is known; 0 is none.
fn job(number: u64) -> String {
    format!("{number:<100}")
}

/// What became of the jobs.
#[derive(Default)]
struct Books {
    /// Of each job that is not done: +1 once it was accepted, −1 once it was finished.
    open: Mutex<HashMap<u64, i8>>,
    accepted: AtomicU64,
    rejected: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    dead: AtomicU64,
    forgotten: AtomicU64,
    throttled: AtomicU64,
}

impl Books {
    fn note(&self, number: u64, by: i8) {
        if number > 0 {
            let mut open = self.open.lock().expect("no panic");
            let sum = open.remove(&number).unwrap_or(0) + by;
            if sum != 0 {
                open.insert(number, sum);
            }
        }
    }

    fn pushed(&self, number: u64, is_accepted: bool) {
        if is_accepted {
            self.accepted.fetch_add(1, Ordering::Relaxed);
            self.note(number, 1);
        } else {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn finished(&self, number: u64) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.note(number, -1);
    }
}

pub(super) fn run(report: &mut Report, minutes: u32) -> io::Result<()> {
    // As a daemon configures its own: it rewrites the append-only file when it has doubled.
    let server = Server::start_with(&["--auto-aof-rewrite-percentage", "100"])?;
    let daemon = server.daemon(POLICIES)?;
    let worker = daemon.beside(&["work", "--route", "work", "--concurrency", "2", "--exec", "true"])?;
    let lasts = Duration::from_secs(60) * minutes;
    let (books, seen, pushing, working) = (Books::default(), Seen::new(), Over::default(), Over::default());
    let mut course = Course::new();
    std::thread::scope(|scope| {
        let (books, seen, pushing, working, daemon) = (&books, &seen, &pushing, &working, &daemon);
        let _work_ends = working.when_dropped();
        let push_ends = pushing.when_dropped();
        let mut others = Vec::new();
        let wires = || server.wire();
        let wire = wires()?;
        others.push(scope.spawn(move || producers::plain(wire, books, pushing)));
        let wire = wires()?;
        others.push(scope.spawn(move || producers::atomic(wire, books, pushing)));
        others.push(scope.spawn(move || producers::http(daemon, books, pushing)));
        others.push(scope.spawn(move || producers::listen(daemon, pushing)));
        others.push(scope.spawn(move || operator::run(daemon, pushing)));
        for n in 0..workers::WORKERS {
            let wire = wires()?;
            others.push(scope.spawn(move || workers::work(wire, n, books, seen, working)));
        }
        let broke_off = || others.iter().any(std::thread::ScopedJoinHandle::is_finished);
        course.follow(report, lasts, &mut wires()?, &server, daemon, &worker, books, &broke_off)?;
        let broke_off = broke_off();
        drop(push_ends);
        let emptied = if broke_off { Ok(()) } else { emptied(&server, daemon) };
        working.set();
        for other in others {
            other.join().map_err(|_| io::Error::other("a part of the load broke off"))??;
        }
        emptied
    })?;
    course.judge(report);
    seen.judge(report, course.whole_minutes());
    judge_the_rest(report, &books, &server)
}

/// Wait until all that waits has left and is finished. What is dead is put back until none is dead any more.
fn emptied(server: &Server, daemon: &Daemon) -> io::Result<()> {
    let mut wire = server.wire()?;
    wait_for("the end of all jobs", || {
        operator::call(daemon, &["dead", "drop", "--bucket", "dropped:*", "--yes"], &[0])?;
        operator::call(daemon, &["dead", "retry", "--yes"], &[0])?;
        std::thread::sleep(Duration::from_millis(500));
        let mut left = wire.int(&["ZCARD", &keys().schedule()])?;
        for stream in workers::streams() {
            left += wire.int(&["XLEN", &stream])?;
        }
        for key in parts(&wire.call(&["KEYS", "drip:*"])?) {
            let key = super::wire::text(key).unwrap_or_default();
            left += i64::from(key.starts_with("drip:queue:") || key.starts_with("drip:retry:"));
        }
        Ok(left + wire.int(&["XLEN", "drip:dead"])? == 0)
    })
}

/// Whether each accepted job was finished, once; and what dripd itself finds wrong when all is done.
fn judge_the_rest(report: &mut Report, books: &Books, server: &Server) -> io::Result<()> {
    let open = books.open.lock().expect("no panic");
    let (lost, twice) = (open.values().filter(|sum| **sum > 0).count(), open.values().filter(|sum| **sum < 0).count());
    let mut add = |what: &str, found: usize| {
        report.add(Row::new("soak", what, found as f64, "").value_goal(Bound::AtMost(0.0)));
    };
    add("jobs that were accepted and never finished", lost);
    add("jobs that were finished twice, or without having been accepted", twice);
    let mut wire = server.wire()?;
    let wrong = wire.call(&["FCALL", "drip__audit", "1", "drip:policy"])?;
    for sentence in parts(&wrong) {
        eprintln!("bench: audit: {sentence:?}");
    }
    add("what drip__audit finds wrong when all is done", parts(&wrong).len());
    report.add(Row::new("soak", "keys of dripd when all is done", dripds_keys(&mut wire)? as f64, ""));
    Ok(())
}

/// How many keys of dripd there are, without those of limiters.
fn dripds_keys(wire: &mut Wire) -> io::Result<usize> {
    Ok(parts(&wire.call(&["KEYS", "drip:*"])?).len())
}
