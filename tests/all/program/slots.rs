//! Slots with daemons: a slot that is freed is followed by a dispatch, whoever freed it and whichever daemon hears of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::program::daemon::home;
use crate::rig::{Case, Daemon, eventually, server, signal};

/// A bucket with one slot, and a budget with one slot above another bucket.
const TOML: &str = "[defaults]\nrate = '100000/s'\ncapacity = 10000\n[[bucket]]\nmatch = 'own'\nconcurrency = 1\n\
                    [[budget]]\nmatch = 'p'\nconcurrency = 1\n[[bucket]]\nmatch = 'below'\nwithin = 'p'\n";

/// Wait for the next job. Replies its id.
fn next(case: &mut Case) -> String {
    let ready = case.key("ready");
    let words = ["XREADGROUP", "GROUP", "workers", "w", "COUNT", "1", "BLOCK", "10000", "STREAMS", &ready, ">"];
    let reply: Vec<(String, Vec<(String, redis::Value)>)> =
        case.cmd::<Option<_>>(&words).expect("a job arrives within ten seconds");
    reply[0].1[0].0.clone()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// How long a push to a blocked reader of the same connection takes at least: two calls.
fn two_calls(case: &mut Case) -> Duration {
    let since = Instant::now();
    for _ in 0..2 {
        let _: String = case.cmd(&["PING"]);
    }
    since.elapsed()
}

#[test]
fn a_worker_that_only_uses_plain_xack_has_its_slot_back_within_a_second() {
    let mut case = Case::bare();
    let home = home(&case, TOML);
    let _daemon = Daemon::start(home.path());
    let ready = case.key("ready");
    for bucket in ["own", "below"] {
        // On a machine that is busy one of some attempts must do.
        let medians: Vec<Duration> = (0..3)
            .map(|_| {
                case.lpush(bucket, &["x"; 6]);
                let mut id = next(&mut case);
                let mut waits: Vec<Duration> = (0..5)
                    .map(|_| {
                        let since = Instant::now();
                        assert_eq!(case.cmd::<i64>(&["XACK", &ready, "workers", &id]), 1);
                        id = next(&mut case);
                        since.elapsed()
                    })
                    .collect();
                assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&id]), 1);
                println!("{bucket}: {waits:?}");
                median(&mut waits)
            })
            .collect();
        assert!(medians.iter().any(|wait| *wait <= Duration::from_secs(1)), "{bucket}: {medians:?}");
    }
}

#[test]
fn a_slot_that_is_freed_is_followed_by_a_dispatch_at_once_by_whichever_daemon_is_awake() {
    let mut case = Case::bare();
    let home = home(&case, TOML);
    let daemons = [Daemon::start(home.path()), Daemon::start(home.path())];
    for bucket in ["own", "below"] {
        case.lpush(bucket, &["x"; 200]);
        let mut id = next(&mut case);
        for asleep in [None, Some(0), Some(1)] {
            if let Some(n) = asleep {
                signal(daemons[n].child.id(), "STOP");
            }
            // The slow way, the pass over the slots, takes hundreds of milliseconds.
            let ratios: Vec<f64> = (0..3)
                .map(|_| {
                    let (mut waits, mut bare) = (Vec::new(), Vec::new());
                    for _ in 0..15 {
                        bare.push(two_calls(&mut case));
                        let since = Instant::now();
                        assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&id]), 1);
                        id = next(&mut case);
                        waits.push(since.elapsed());
                    }
                    println!("{bucket}: {:?} beside {:?}", median(&mut waits), median(&mut bare));
                    median(&mut waits).as_secs_f64() / median(&mut bare).as_secs_f64()
                })
                .collect();
            if let Some(n) = asleep {
                signal(daemons[n].child.id(), "CONT");
            }
            assert!(ratios.iter().any(|ratio| *ratio < 100.0), "{bucket}, {asleep:?} asleep: {ratios:.1?}");
        }
        let _: i64 = case.fcall("drip_ack", &["ready"], &[&id]);
        let queue = case.queue(bucket);
        let _: i64 = case.cmd(&["DEL", &queue]);
    }
}

#[test]
fn more_jobs_than_there_are_slots_never_run_at_once_whichever_daemon_is_killed() {
    let mut case = Case::bare();
    let home = home(
        &case,
        "[defaults]\nrate = '100000/s'\ncapacity = 10000\nattempts = 1000\nbackoff = { initial = '1ms', max = '1ms' }\n\
         [[budget]]\nmatch = 'p'\nconcurrency = 3\n[[bucket]]\nmatch = 'a*'\nwithin = 'p'\nconcurrency = 2\n\
         [[bucket]]\nmatch = 'b*'\nwithin = 'p'\n",
    );
    let mut daemons: Vec<Daemon> = (0..3).map(|_| Daemon::start(home.path())).collect();
    for bucket in ["a1", "a2", "b1", "b2"] {
        case.lpush(bucket, &vec![bucket; 150]);
    }
    let (running, most, of_a, done, over) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for n in 0..6 {
            let mut worker = Case { redis: server().connect(), prefix: case.prefix.clone() };
            let (running, most, of_a, done, over) = (&running, &most, &of_a, &done, &over);
            scope.spawn(move || {
                let (mut rng, ready) = (fastrand::Rng::with_seed(n), worker.key("ready"));
                let me = format!("w{n}");
                let words =
                    ["XREADGROUP", "GROUP", "workers", &me, "COUNT", "1", "BLOCK", "100", "STREAMS", &ready, ">"];
                while !over.load(Ordering::Relaxed) {
                    type Reply = Option<Vec<(String, Vec<(String, Vec<String>)>)>>;
                    let Some(reply) = worker.cmd::<Reply>(&words) else { continue };
                    let (id, fields) = reply[0].1[0].clone();
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let is_a1 = fields[1] == "a1";
                    if is_a1 {
                        assert!(of_a.fetch_add(1, Ordering::SeqCst) < 2, "three of a1 run at once");
                    }
                    std::thread::sleep(Duration::from_micros(rng.u64(0..3_000)));
                    if is_a1 {
                        of_a.fetch_sub(1, Ordering::SeqCst);
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    match rng.u8(0..20) {
                        0 => assert_eq!(
                            worker.fcall::<i64>("drip_fail", &["ready"], &[id.as_str(), "KEEP", "RETRY_IN", "0"]),
                            1
                        ),
                        1..4 => assert_eq!(worker.fcall::<i64>("drip_fail", &["ready"], &[&id]), 1),
                        _ => {
                            assert_eq!(worker.fcall::<i64>("drip_ack", &["ready"], &[&id]), 1);
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        let mut round = 0;
        let since = Instant::now();
        while done.load(Ordering::SeqCst) < 600 && since.elapsed() < Duration::from_secs(60) {
            daemons[round % 3].kill();
            daemons[round % 3] = Daemon::spawn(home.path());
            round += 1;
            std::thread::sleep(Duration::from_millis(60)); // one of the three is always away
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(done.load(Ordering::SeqCst), 600);
    assert_eq!(most.load(Ordering::SeqCst), 3, "all slots were in use, and not one more");
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[""]);
    assert_eq!(wrong, Vec::<String>::new());
    let (slots, inflight) = (case.key("slots"), case.key("inflight"));
    eventually("no slot is taken", || case.cmd::<i64>(&["EXISTS", &slots, &inflight]) == 0);
}
