//! Several daemons share the partitions of a system: each serves its own, and the others step in for one that is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{PARTITIONS, System};
use crate::rig::{Daemon, eventually, in_one_of_three, in_time};

/// How late a job may leave whose daemon was killed.
const AT_MOST: Duration = Duration::from_millis(600);

/// What the machine may add on two busy cores.
const SLACK: Duration = Duration::from_millis(400);

/// An id, and names and values.
type Entry = (String, Vec<String>);

/// Daemons that all know of each other.
fn daemons(system: &System, n: usize) -> Vec<Daemon> {
    let daemons = (0..n).map(|_| system.daemon()).collect();
    eventually("all serve", || system.status(&[])["daemons"].as_array().map(Vec::len) == Some(n));
    // Those that came first learn of the later ones with their next beat: then each partition is served by one.
    eventually("each partition has one daemon", || {
        let before = calls(system);
        std::thread::sleep(Duration::from_secs(1));
        let made = calls(system) - before;
        // Four looks a second of each but the first, and now and then one of the first.
        made <= 5 * u64::from(PARTITIONS) * u64::try_from(n - 1).expect("few")
    });
    daemons
}

/// How many calls for what is due were made so far.
fn calls(system: &System) -> u64 {
    let info: String = system.redis(&["INFO", "commandstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls=")).expect("the line of FCALL");
    line.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number")
}

/// The latest of the entries of all partitions after some ids, by their own times.
fn latest(system: &System, after: &[String]) -> Duration {
    let late = |number: u8| {
        let (key, from) = (ready(number), format!("({}", after[usize::from(number)]));
        let entries: Vec<(String, BTreeMap<String, String>)> = system.redis(&["XRANGE", &key, &from, "+"]);
        let us = |entry: &BTreeMap<String, String>, field: &str| entry[field].parse::<u64>().expect("microseconds");
        entries.iter().map(|(_, entry)| us(entry, "at_us") - us(entry, "due_us")).max().unwrap_or(0)
    };
    Duration::from_micros((0..PARTITIONS).map(late).max().expect("some"))
}

fn ready(number: u8) -> String {
    format!("drip:ready:{{{number}}}")
}

fn last_ids(system: &System) -> Vec<String> {
    (0..PARTITIONS)
        .map(|number| {
            let last: Vec<(String, BTreeMap<String, String>)> =
                system.redis(&["XREVRANGE", &ready(number), "+", "-", "COUNT", "1"]);
            last.first().map_or_else(|| "0-0".to_owned(), |(id, _)| id.clone())
        })
        .collect()
}

/// How many jobs have left each partition.
fn lengths(system: &System) -> Vec<u64> {
    (0..PARTITIONS).map(|number| system.redis(&["XLEN", &ready(number)])).collect()
}

fn length(system: &System) -> u64 {
    lengths(system).iter().sum()
}

#[test]
fn a_daemon_that_hangs_or_is_killed_costs_its_partitions_little_time() {
    in_one_of_three(hang_and_kill);
}

fn hang_and_kill() -> Result<(), String> {
    let system = System::new("[defaults]\nrate = '20/s'\ncapacity = 1000\n");
    let mut all = daemons(&system, 3);
    let buckets = system.a_bucket_each();
    // Of each partition one bucket has work at hand, so that its dues are missed; in turns all daemons but one are killed.
    for bucket in &buckets {
        let key = system.queue(bucket);
        let jobs: Vec<String> = (0..900).map(|n| n.to_string()).collect();
        let mut push = vec!["LPUSH", &key];
        push.extend(jobs.iter().map(String::as_str));
        let _: i64 = system.redis(&push);
    }
    eventually("jobs leave", || length(&system) > 40);
    // One that hangs is still connected: that it does not work is all there is to see.
    let before = last_ids(&system);
    let left = lengths(&system);
    all[0].signal("STOP");
    eventually("jobs leave every partition", || lengths(&system).iter().zip(&left).all(|(now, left)| *now > left + 20));
    in_time("one hangs, the latest was late", latest(&system, &before), AT_MOST + SLACK)?;
    while all.len() > 1 {
        let before = last_ids(&system);
        all.remove(0).kill();
        let left = length(&system);
        eventually("they go on", || length(&system) > left + 200);
        let what = format!("with {} left the latest was late", all.len());
        in_time(&what, latest(&system, &before), AT_MOST + SLACK)?;
    }
    Ok(())
}

#[test]
fn a_plain_push_to_a_bucket_at_rest_is_found_when_its_daemon_was_killed() {
    in_one_of_three(kill_and_push);
}

fn kill_and_push() -> Result<(), String> {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let mut all = daemons(&system, 2);
    let buckets = system.a_bucket_each();
    all.remove(0).kill();
    for bucket in &buckets {
        let _: i64 = system.redis(&["LPUSH", &system.queue(bucket), "x"]);
    }
    let pushed = Instant::now();
    eventually("all have left", || length(&system) == u64::from(PARTITIONS));
    in_time("all have left after", pushed.elapsed(), AT_MOST + SLACK)
}

#[test]
fn daemons_that_join_and_die_at_random_keep_the_order_and_the_rate_of_every_bucket() {
    const JOBS: usize = 1_000;
    const INTERVAL_US: u64 = 20_000;
    const MOST: usize = 5;
    // Nothing is made up, so no two jobs of a bucket may be closer than an interval.
    let system = System::new("[defaults]\nrate = '50/s'\ncatch_up = '0s'\ncapacity = 1000\n");
    let buckets = system.a_bucket_each();
    for bucket in &buckets {
        let key = system.queue(bucket);
        let jobs: Vec<String> = (0..JOBS).map(|n| n.to_string()).collect();
        let mut push = vec!["LPUSH", &key];
        push.extend(jobs.iter().map(String::as_str));
        let _: i64 = system.redis(&push);
    }
    let mut all = vec![system.daemon()];
    let total = u64::try_from(JOBS * buckets.len()).expect("few");
    let (mut kills, mut next) = (0, length(&system));
    while length(&system) < total {
        // The next act comes when some more jobs have left, so their number tells the time.
        next += fastrand::u64(100..500);
        eventually("jobs leave", || length(&system) >= next.min(total));
        if all.len() < MOST && (all.len() == 1 || fastrand::bool()) {
            all.push(system.daemon());
        } else {
            all.remove(fastrand::usize(..all.len())).kill();
            kills += 1;
        }
    }
    assert!(kills >= 3, "{kills}");
    for number in 0..PARTITIONS {
        let entries: Vec<(String, BTreeMap<String, String>)> = system.redis(&["XRANGE", &ready(number), "-", "+"]);
        let jobs: Vec<usize> = entries.iter().map(|(_, entry)| entry["job"].parse().expect("a number")).collect();
        assert_eq!(jobs, (0..JOBS).collect::<Vec<_>>(), "partition {number}: in order, each once");
        let at: Vec<u64> = entries.iter().map(|(_, entry)| entry["at_us"].parse().expect("microseconds")).collect();
        let closest = at.windows(2).map(|pair| pair[1] - pair[0]).min().expect("some");
        assert!(closest >= INTERVAL_US, "partition {number}: two jobs within {closest} us");
    }
}

#[test]
fn daemons_that_do_their_work_are_not_taken_for_dead_however_busy_their_buckets_are() {
    in_one_of_three(push_without_end);
}

fn push_without_end() -> Result<(), String> {
    let system = System::new(
        "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'slow-*'\nrate = '1/h'\n[[bucket]]\nmatch = 'one-*'\nconcurrency = 1\n",
    );
    let all = daemons(&system, 3);
    // Pushed again and again: to buckets at rest, to some that wait for their due, and to some that wait for a slot.
    let buckets: Vec<String> = (0..60).map(|n| format!("{}-{n}", ["fast", "slow", "one"][n % 3])).collect();
    let queues: Vec<String> = buckets.iter().map(|bucket| system.queue(bucket)).collect();
    let mut redis = system.server.connect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        let mut pipeline = redis::pipe();
        for queue in &queues {
            pipeline.cmd("LPUSH").arg(queue).arg("x");
        }
        pipeline.exec(&mut redis).expect("pushes");
        std::thread::sleep(Duration::from_millis(20)); // fifty pushes a second of each
    }
    for daemon in &all {
        let log = daemon.log();
        // Where this machine stalls, jobs are late for everybody to see. But none was left lying.
        let stepped_in =
            log.lines().filter(|line| line.contains("serving it too") && !line.contains("neglected=0")).count();
        if stepped_in > usize::from(PARTITIONS) / 4 {
            return Err(log);
        }
    }
    Ok(())
}

#[test]
fn slots_are_freed_soon_after_the_daemon_that_freed_them_was_killed() {
    in_one_of_three(kill_and_free);
}

fn kill_and_free() -> Result<(), String> {
    let system = System::new("[defaults]\nrate = '1000/s'\nconcurrency = 1\ncapacity = 1000\n");
    let mut all = daemons(&system, 2);
    let buckets = system.a_bucket_each();
    for bucket in &buckets {
        let key = system.queue(bucket);
        let _: i64 = system.redis(&[vec!["LPUSH", &key], vec!["x"; 500]].concat());
    }
    let mut redis = system.server.connect();
    let mut done = vec![0_u32; usize::from(PARTITIONS)];
    // A worker that acknowledges with XACK: a daemon has to notice that the slot is free.
    let mut work = |until: &dyn Fn(&[u32]) -> bool| {
        let since = Instant::now();
        while !until(&done) {
            assert!(since.elapsed() < Duration::from_secs(30), "{done:?}");
            for (number, done) in (0..PARTITIONS).zip(&mut done) {
                let key = ready(number);
                let read = ["GROUP", "workers", "me", "COUNT", "100", "STREAMS", key.as_str(), ">"];
                let taken: Vec<(String, Vec<Entry>)> = redis::cmd("XREADGROUP")
                    .arg(&read)
                    .query::<Option<_>>(&mut redis)
                    .expect("a read")
                    .unwrap_or_default();
                for (id, _) in taken.into_iter().flat_map(|(_, entries)| entries) {
                    *done +=
                        redis::cmd("XACK").arg(&key).arg("workers").arg(&id).query::<u32>(&mut redis).expect("one");
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        done.clone()
    };
    let before = work(&|done| done.iter().all(|done| *done >= 3));
    all.remove(0).kill();
    let killed = Instant::now();
    work(&|done| done.iter().zip(&before).all(|(done, before)| *done >= before + 3));
    in_time("three slots of each partition took", killed.elapsed(), Duration::from_secs(6))
}
