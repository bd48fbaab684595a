//! The recipe for another number of partitions, as docs/partitions.md has it: the new system beside the old one, paused until that is empty.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::{Shell, shell_at};
use crate::rig::{Daemon, Server, eventually};

const JOBS: usize = 100_000;
const BUCKETS: usize = 50;
const INTERVAL_US: i64 = 1_000;
const CATCH_UP_US: i64 = 20_000;

/// A job as a worker met it: its bucket, its number, and when it had left.
type Met = (String, usize, i64);

/// What a read brings: of each stream its entries, with their fields.
type Read = Option<Vec<(String, Vec<(String, HashMap<String, String>)>)>>;

/// A worker of streams of one prefix: as fast as can be, so that only the rate counts.
fn worker(server: &Server, streams: Vec<String>, stop: &Arc<AtomicBool>) -> JoinHandle<Vec<Met>> {
    let (mut redis, stop) = (server.connect(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut met = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            for stream in &streams {
                let mut read = redis::cmd("XREADGROUP");
                read.arg(&["GROUP", "workers", "w", "COUNT", "1000", "BLOCK", "5", "STREAMS", stream, ">"]);
                let reply: Read = read.query(&mut redis).expect("XREADGROUP");
                let Some((_, entries)) = reply.and_then(|mut streams| streams.pop()) else { continue };
                let mut ack = redis::cmd("XACK");
                ack.arg(stream).arg("workers");
                for (id, fields) in &entries {
                    let (job, at_us) =
                        (fields["job"].parse().expect("a number"), fields["at_us"].parse().expect("a time"));
                    met.push((fields["bucket"].clone(), job, at_us));
                    ack.arg(id);
                }
                ack.exec(&mut redis).expect("XACK");
            }
        }
        met
    })
}

/// Push jobs plainly, a slice for each bucket in turn.
fn push(shell: &Shell, server: &Server, from: usize, to: usize) {
    let mut redis = server.connect();
    let queues: Vec<String> =
        (0..BUCKETS).map(|n| shell.run(&["partition", "--key", &format!("b{n}")]).1.trim_end().to_owned()).collect();
    for job in (from..to).step_by(BUCKETS * 20) {
        let mut pipe = redis::pipe();
        for (n, queue) in queues.iter().enumerate() {
            let jobs: Vec<usize> = (0..20).map(|k| job + k * BUCKETS + n).filter(|job| *job < to).collect();
            pipe.cmd("LPUSH").arg(queue).arg(jobs).ignore();
        }
        pipe.exec(&mut redis).expect("pushed");
    }
}

fn status(shell: &Shell) -> serde_json::Value {
    let (code, out, err) = shell.run(&["status", "--json"]);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("JSON")
}

/// A bucket that was resumed is paused, and scheduled afterwards, while that still spreads.
fn is_empty(status: &serde_json::Value) -> bool {
    let routes = status["routes"].as_array().expect("routes");
    let nothing = |value: &serde_json::Value| *value == 0;
    status["spreading"] == false
        && nothing(&status["paused"])
        && nothing(&status["scheduled"])
        && nothing(&status["retrying"])
        && routes
            .iter()
            .all(|route| nothing(&route["undelivered"]) && nothing(&route["pending"]) && nothing(&route["held"]))
}

/// Wait until a system is empty: on a busy machine for as long as jobs leave it.
fn wait_until_empty(what: &str, shell: &Shell) {
    let left = |status: &serde_json::Value| status["counters"]["dispatched"].as_u64().unwrap_or(0);
    let mut now = status(shell);
    while !is_empty(&now) {
        let before = left(&now);
        eventually(what, || {
            now = status(shell);
            is_empty(&now) || left(&now) > before
        });
    }
}

#[test]
fn the_recipe_for_another_number_of_partitions_loses_no_job_and_exceeds_no_rate() {
    let server = Server::start(&[]);
    let policy = "[http]\nlisten = ''\n[defaults]\nrate = '1000/s'\ncapacity = 100000\n";
    let old = shell_at(&server, &format!("prefix = 'old'\n{policy}"));
    let new = shell_at(&server, &format!("prefix = 'new'\npartitions = 8\n{policy}"));
    let _old_daemon = Daemon::start(old.home());
    let stop = Arc::new(AtomicBool::new(false));
    let streams: Vec<String> =
        std::iter::once("old:ready".to_owned()).chain((0..8).map(|n| format!("new:ready:{{{n}}}"))).collect();
    push(&old, &server, 0, JOBS / 2);

    let _new_daemon = Daemon::start(new.home());
    let workers = worker(&server, streams, &stop);
    assert_eq!(new.run(&["pause", "*", "--yes"]).0, 0);
    push(&new, &server, JOBS / 2, JOBS);
    wait_until_empty("nothing waits, is ready or in flight in the old system", &old);
    assert_eq!(new.run(&["resume", "*", "--yes"]).0, 0);
    wait_until_empty("nor in the new one", &new);
    stop.store(true, Ordering::Relaxed);
    let met = workers.join().expect("it ends");

    assert_eq!(met.len(), JOBS, "none lost, none twice");
    let mut buckets: HashMap<String, Vec<(i64, usize)>> = HashMap::new();
    for (bucket, job, at) in met {
        buckets.entry(bucket).or_default().push((at, job));
    }
    for (bucket, mut jobs) in buckets {
        jobs.sort_unstable();
        assert!(jobs.windows(2).all(|two| two[0].1 < two[1].1), "{bucket}: in the order in which they were pushed");
        // In every window W at most 1 + (W + catch_up) / interval: as the furthest that any start of a window is behind.
        let mut earliest = i64::MAX;
        for (n, (at, _)) in (0..).zip(&jobs) {
            let behind = at - n * INTERVAL_US;
            assert!(earliest == i64::MAX || earliest - behind <= CATCH_UP_US + 1, "{bucket}: too many at job {n}");
            earliest = if earliest == i64::MAX { behind } else { earliest.max(behind) };
        }
    }
}
