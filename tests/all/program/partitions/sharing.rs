//! Several daemons share the partitions of a system: each serves its own, and the others step in for one that is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{PARTITIONS, System};
use crate::rig::{Daemon, eventually};

/// How late a job may leave whose daemon was killed.
const AT_MOST: Duration = Duration::from_millis(600);

/// What the machine may add on two busy cores.
const SLACK: Duration = Duration::from_millis(400);

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

fn length(system: &System) -> u64 {
    (0..PARTITIONS).map(|number| system.redis::<u64>(&["XLEN", &ready(number)])).sum()
}

#[test]
fn a_killed_daemon_costs_its_partitions_little_time_and_a_partition_at_rest_costs_few_calls() {
    let system = System::new("[defaults]\nrate = '20/s'\ncapacity = 1000\n");
    let mut all = daemons(&system, 3);
    let buckets = system.a_bucket_each();
    // Of each partition one bucket has work at hand, so that its dues are missed; in turns all daemons but one are killed.
    for bucket in &buckets {
        let key = system.queue(bucket);
        let jobs: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        let mut push = vec!["LPUSH", &key];
        push.extend(jobs.iter().map(String::as_str));
        let _: i64 = system.redis(&push);
    }
    eventually("jobs leave", || length(&system) > 40);
    while all.len() > 1 {
        let before = last_ids(&system);
        all.remove(0).kill();
        let left = length(&system);
        eventually("they go on", || length(&system) > left + 200);
        let latest = latest(&system, &before);
        assert!(latest < AT_MOST + SLACK, "with {} left the latest was {latest:?} late", all.len());
    }
    let log = all[0].log();
    assert!(log.contains("jobs of a partition were late: serving it too"), "{log}");
}

#[test]
fn a_plain_push_to_a_bucket_at_rest_is_found_when_its_daemon_was_killed() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let mut all = daemons(&system, 2);
    let buckets = system.a_bucket_each();
    all.remove(0).kill();
    for bucket in &buckets {
        let _: i64 = system.redis(&["LPUSH", &system.queue(bucket), "x"]);
    }
    let pushed = Instant::now();
    eventually("all have left", || length(&system) == u64::from(PARTITIONS));
    let took = pushed.elapsed();
    assert!(took < AT_MOST + SLACK, "{took:?}");
}

#[test]
fn daemons_that_join_and_die_at_random_keep_the_order_and_the_rate_of_every_bucket() {
    const JOBS: usize = 600;
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
