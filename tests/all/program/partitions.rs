//! A system that is cut into several partitions, on one Redis: every door, every command, and what is set in all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use redis::Value;

use super::{Shell, Work};
use crate::rig::{Case, Daemon, Server, eventually, free_port, test_config};

mod copies;
mod recipe;
mod refusals;
mod rights;
mod sharing;
mod told;

/// How many partitions the systems of these tests have, unless they say otherwise.
const PARTITIONS: u8 = 8;

/// A system of several partitions on a server of its own.
struct System {
    server: Server,
    shell: Shell,
}

impl System {
    /// `toml` goes on within `[redis]`.
    fn new(toml: &str) -> Self {
        Self::with_door(&test_config(toml))
    }

    fn with_door(toml: &str) -> Self {
        let server = Server::start(&[]);
        let shell = shell_at(&server, &format!("partitions = {PARTITIONS}\n{toml}"));
        Self { server, shell }
    }

    fn daemon(&self) -> Daemon {
        Daemon::start(self.shell.home())
    }

    /// Run a command that must do it; replies what it printed.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        self.shell.must_run(args)
    }

    #[track_caller]
    fn status(&self, args: &[&str]) -> serde_json::Value {
        let out = self.run(&[&["status", "--json"], args].concat());
        serde_json::from_str(&out).expect("JSON")
    }

    fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut self.server.connect())
            .unwrap_or_else(|why| panic!("{words:?}: {why}"))
    }

    /// The key of a bucket's queue, as the program says it.
    fn queue(&self, bucket: &str) -> String {
        self.run(&["partition", "--key", bucket]).trim_end().to_owned()
    }

    fn number_of(&self, bucket: &str) -> u8 {
        self.run(&["partition", bucket]).trim_end().parse().expect("a number")
    }

    /// A bucket for each partition, by number.
    fn a_bucket_each(&self) -> Vec<String> {
        let mut found = BTreeMap::new();
        for n in 0.. {
            let name = format!("tenant-{n}");
            found.entry(self.number_of(&name)).or_insert(name);
            if found.len() == usize::from(PARTITIONS) {
                break;
            }
        }
        found.into_values().collect()
    }
}

fn shell_at(server: &Server, toml: &str) -> Shell {
    let case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    let shell = Shell { case, home: tempfile::tempdir().expect("a directory") };
    shell.file("config.toml", &format!("[redis]\nurl = '{}'\n{toml}", server.url()));
    shell
}

#[test]
fn a_bucket_lives_in_the_partition_that_cluster_keyslot_tells() {
    let server = Server::start(&["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]);
    let mut redis = server.connect();
    let mut slot =
        |tag: &str| -> u64 { redis::cmd("CLUSTER").arg("KEYSLOT").arg(tag).query(&mut redis).expect("a slot") };
    for (partitions, by) in [(2, 0), (16, 1), (64, 2)] {
        let by_line = if by > 0 { format!("partition_by = {by}\n") } else { String::new() };
        let shell = shell_at(&server, &format!("partitions = {partitions}\n{by_line}"));
        for name in ["acme", "twilio:acme:+49", "a", "ü:ö:ä", ":", "x::y"] {
            let parts: Vec<&str> = name.split(':').collect();
            let tag = if by > 0 { parts[..parts.len().min(by)].join(":") } else { name.to_owned() };
            let (code, out, err) = shell.run(&["partition", name]);
            assert_eq!((code, out.trim_end()), (0, (slot(&tag) % partitions).to_string().as_str()), "{name}: {err}");
            let (_, key, _) = shell.run(&["partition", "--key", name]);
            assert_eq!(key.trim_end(), format!("drip:queue:{{{}}}:{name}", out.trim_end()));
        }
        let (code, out, err) = shell.run(&["partition", "--slots"]);
        assert_eq!(code, 0, "{err}");
        let slots: Vec<String> = out.lines().map(str::to_owned).collect();
        let expected: Vec<String> = (0..partitions).map(|n| format!("{n} {}", slot(&format!("{{{n}}}")))).collect();
        assert_eq!(slots, expected);
    }
    let one = shell_at(&server, "");
    assert_eq!(one.run(&["partition", "acme"]).1, "0\n");
    assert_eq!(one.run(&["partition", "--key", "acme"]).1, "drip:queue:acme\n", "one partition has no tag");
}

#[test]
fn what_is_pushed_by_every_door_drips_into_the_stream_of_its_partition_and_workers_take_all_of_it() {
    let port = free_port();
    let system = System::new(&format!("[http]\nlisten = '127.0.0.1:{port}'\n[defaults]\nrate = '1000/s'\n"));
    let _daemon = system.daemon();
    let (mut pushed, mut homes) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..24 {
        let (bucket, job) = (format!("b{n}"), |door: &str| format!("{door}-{n}"));
        let key = system.queue(&bucket);
        homes.insert(system.number_of(&bucket));
        let length: i64 = system.redis(&["LPUSH", &key, &job("plain")]);
        assert!(length >= 1);
        let accepted: Vec<i64> = system.redis(&["FCALL", "drip_push", "1", &key, &job("atomic")]);
        assert_eq!(accepted[0], 1);
        system.run(&["push", &bucket, &job("command")]);
        let url = format!("http://127.0.0.1:{port}/v1/buckets/{bucket}/jobs");
        let answer =
            std::process::Command::new("curl").args(["-sS", "--data", &job("http"), &url]).output().expect("curl");
        assert!(String::from_utf8_lossy(&answer.stdout).contains("\"accepted\":1"), "{answer:?}");
        pushed.extend(["plain", "atomic", "command", "http"].map(job));
    }
    assert!(homes.len() > 4, "they live in several partitions: {homes:?}");
    eventually("all have left", || system.status(&[])["counters"]["dispatched"] == 96);
    for (n, bucket) in system.a_bucket_each().into_iter().enumerate() {
        let key = format!("drip:ready:{{{n}}}");
        let entries: Vec<(String, BTreeMap<String, String>)> = system.redis(&["XRANGE", &key, "-", "+"]);
        assert!(entries.iter().all(|(_, fields)| usize::from(system.number_of(&fields["bucket"])) == n), "{bucket}");
    }
    let mut work = Work::start(&system.shell, &["--concurrency", "3", "--print"]);
    eventually("all are done", || {
        let status = system.status(&[]);
        status["routes"][0]["undelivered"] == 0 && status["routes"][0]["pending"] == 0
    });
    work.signal("TERM");
    let mut out = String::new();
    work.child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    let mut taken: Vec<String> = out.lines().map(str::to_owned).collect();
    taken.sort();
    assert_eq!(taken, pushed.into_iter().collect::<Vec<_>>(), "each once");
}

#[test]
fn a_worker_of_some_partitions_leaves_the_others_alone() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let _daemon = system.daemon();
    for bucket in system.a_bucket_each() {
        system.run(&["push", &bucket, "x"]);
    }
    eventually("all have left", || system.status(&[])["routes"][0]["undelivered"] == PARTITIONS);
    let work = Work::start(&system.shell, &["--partitions", "2-4", "--exec", "true"]);
    eventually("three are done", || {
        let status = system.status(&[]);
        status["routes"][0]["undelivered"] == PARTITIONS - 3 && status["routes"][0]["pending"] == 0
    });
    let (_, _, log) = work.stop();
    assert!(log.contains("fewer slots than partitions"), "{log}");
    for n in 0..PARTITIONS {
        let left: u64 = system.redis(&["XLEN", &format!("drip:ready:{{{n}}}")]);
        eventually("finished entries are gone", || {
            let left: u64 = system.redis(&["XLEN", &format!("drip:ready:{{{n}}}")]);
            left == u64::from(!(2..=4).contains(&n))
        });
        assert!(left <= 1);
    }
    let (code, _, err) = system.shell.run(&["work", "--partitions", "7-8", "--print"]);
    assert_eq!(code, 2);
    assert!(err.contains("there is no partition 8: the last one is 7"), "{err}");
}

#[test]
fn a_daemon_that_is_killed_is_missed_by_no_partition_and_an_emptied_redis_by_none_either() {
    let system = System::new("[http]\nlisten = ''\n[defaults]\nrate = '1000/s'\n");
    let (mut first, _second) = (system.daemon(), system.daemon());
    let buckets = system.a_bucket_each();
    eventually("both serve", || system.status(&[])["daemons"].as_array().map(Vec::len) == Some(2));
    let all_leave = |left: u8, what: &str| {
        for bucket in &buckets {
            let _: i64 = system.redis(&["LPUSH", &system.queue(bucket), "x"]);
        }
        eventually(what, || system.status(&[])["routes"][0]["undelivered"] == left);
    };
    all_leave(PARTITIONS, "all leave");
    first.kill();
    all_leave(2 * PARTITIONS, "the other one lets them out");
    let _: Value = system.redis(&["FLUSHALL"]);
    eventually("the record is in every partition again", || {
        (0..PARTITIONS).all(|n| system.redis::<bool>(&["EXISTS", &format!("drip:policy:{{{n}}}")]))
    });
    all_leave(PARTITIONS, "and all goes on");
}

#[test]
fn dead_letters_of_all_partitions_are_listed_by_time_paged_put_back_and_dropped() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    for bucket in &buckets {
        for n in 0..3 {
            system.run(&["push", bucket, &n.to_string()]);
        }
    }
    let work = Work::start(&system.shell, &["--concurrency", "16", "--exec", "exit 65"]);
    eventually("all are dead", || system.status(&[])["dead"] == 24);
    work.stop();

    let letters = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let all = letters(&system.run(&["dead", "list", "--json"]));
    assert_eq!(all.len(), 24);
    let times: Vec<&str> = all.iter().map(|letter| letter["at"].as_str().expect("a time")).collect();
    assert!(times.is_sorted(), "oldest first");
    // By page: none is left out and none comes twice, though letters of several partitions may have one id.
    let (mut paged, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["dead", "list", "--json", "--limit", "5"];
        args.extend(after.as_deref().map(|id| ["--after", id]).into_iter().flatten());
        let (code, out, err) = system.shell.run(&args);
        assert_eq!(code, 0, "{err}");
        paged.extend(letters(&out));
        let Some(next) = err.strip_prefix("more: --after ") else { break };
        after = Some(next.trim_end().to_owned());
    }
    assert_eq!(paged, all);

    let first = &buckets[0];
    assert!(
        system
            .run(&["dead", "retry", "--bucket", first, "--limit", "2", "--yes"])
            .starts_with("2 dead letters put back; 22 ")
    );
    eventually("they have left again", || system.status(&[])["routes"][0]["undelivered"] == 2);
    assert!(system.run(&["dead", "drop", "--limit", "5", "--yes"]).starts_with("5 dead letters dropped; 17 "));
    assert!(system.run(&["dead", "drop", "--yes"]).starts_with("17 dead letters dropped; 0 "));
}

#[test]
fn what_is_told_of_everything_is_told_of_all_partitions() {
    let port = free_port();
    let system =
        System::with_door(&format!("[http]\nlisten = '127.0.0.1:{port}'\n[defaults]\nrate = '1/h'\ncapacity = 50\n"));
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    for (n, bucket) in buckets.iter().enumerate() {
        for _ in 0..n + 2 {
            system.run(&["push", bucket, "x"]);
        }
    }
    eventually("the first job of each has left", || system.status(&[])["counters"]["dispatched"] == PARTITIONS);
    let status = system.status(&[]);
    assert_eq!((&status["partitions"], &status["scheduled"]), (&PARTITIONS.into(), &PARTITIONS.into()));
    assert_eq!(status["daemons"].as_array().map(Vec::len), Some(1), "one daemon serves all of them");
    assert_eq!(status["routes"].as_array().map(Vec::len), Some(1), "one route, whatever the number of streams");
    // A ranking may be of the moment before the last pushes.
    let fullest_first: Vec<[serde_json::Value; 2]> =
        buckets.iter().enumerate().rev().map(|(n, bucket)| [bucket.as_str().into(), (n + 1).into()]).collect();
    eventually("all are walked, and the fullest come first", || {
        let top = system.status(&[])["top"].clone();
        let of = |row: &serde_json::Value| [row["bucket"].clone(), row["depth"].clone()];
        let found = top["fullest"].as_array().map(|rows| rows.iter().map(of).collect());
        top["buckets"] == PARTITIONS && found == Some(fullest_first.clone())
    });

    let get = |path: &str| {
        let out = std::process::Command::new("curl").args(["-sS", &format!("http://127.0.0.1:{port}{path}")]).output();
        String::from_utf8_lossy(&out.expect("curl").stdout).into_owned()
    };
    let metrics = get("/metrics");
    for line in [
        "dripd_partitions{state=\"served\"} 8\n",
        "dripd_partitions{state=\"waiting\"} 0\n",
        "dripd_buckets{state=\"due\"} 8\n",
        "dripd_jobs_dispatched_total{route=\"default\"} 8\n",
        "dripd_daemons 1\n",
        "dripd_ready_undelivered{route=\"default\"} 8\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let rows: serde_json::Value = serde_json::from_str(&get("/v1/buckets?by=depth&limit=3")).expect("JSON");
    let depths: Vec<&serde_json::Value> =
        rows["rows"].as_array().expect("rows").iter().map(|row| &row["depth"]).collect();
    assert_eq!(depths, [8, 7, 6]);
    assert_eq!(get("/readyz"), "ok\n");
    let waiting = system.run(&["explain", &buckets[3]]);
    assert!(waiting.contains("waiting   4 of 50"), "{waiting}");
    assert!(system.run(&["purge", &buckets[3], "--yes"]).contains("4 jobs thrown away"));
    assert!(system.run(&["what-if", &buckets[4], "rate=1/s"]).contains("5 jobs wait"));
}

#[test]
fn budgets_hold_where_a_bucket_and_its_budgets_share_the_first_parts_of_their_names() {
    let toml = "partition_by = 1\n[[budget]]\nmatch = 'twilio-*'\nrate = '1/h'\n[[bucket]]\nmatch = 'twilio-*:*'\nwithin = 'twilio-{1}'\n\
                [[bucket]]\nmatch = 'lost:*'\nwithin = 'twilio-x'\n[defaults]\nrate = '1000/s'\n";
    let (code, _, err) = {
        let server = Server::start(&[]);
        shell_at(&server, &format!("partitions = 8\n{toml}")).run(&["check"])
    };
    assert_eq!(code, 78);
    assert!(
        err.contains("bucket[2].within: \"twilio-x\" lives in another partition than what \"lost:*\" matches"),
        "{err}"
    );
    // Seen only when the names are known: what a star stands for.
    let system = System::new(&toml.replace("'lost:*'", "'*:lost'"));
    let _daemon = system.daemon();
    for sender in ["a", "b", "c"] {
        system.run(&["push", &format!("twilio-x:{sender}"), "x"]);
        system.run(&["push", &format!("twilio-y:{sender}"), "x"]);
    }
    eventually("one of each budget has left, and the others wait for a share", || {
        let status = system.status(&[]);
        status["counters"]["dispatched"] == 2 && status["sharing"] == 4
    });
    let refused = system.shell.run(&["push", "other:lost", "x"]);
    assert_eq!(refused.0, 1);
    assert!(
        refused
            .2
            .contains("budget twilio-x lives in another partition: the first 1 parts of both names must be the same"),
        "{refused:?}"
    );
    let number = system.number_of("twilio-x:a");
    assert_eq!(system.number_of("twilio-x"), number);
    let set: Value = system.redis(&["ZCARD", &format!("drip:wait:{{{number}}}:twilio-x{{default}}")]);
    assert_eq!(set, Value::Int(2));
    assert!(system.run(&["explain", "--budget", "twilio-x"]).contains("twilio-x"));
    let line = system.run(&["pause", "--budget", "twilio-y"]);
    assert!(line.contains("2 buckets below"), "{line}");
}

#[test]
fn a_worker_with_fewer_slots_than_partitions_does_not_wait_in_empty_ones_while_others_have_jobs() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let _daemon = system.daemon();
    let bucket = &system.a_bucket_each()[3];
    let key = system.queue(bucket);
    let _: i64 = system.redis(&[vec!["LPUSH", &key], vec!["x"; 300]].concat());
    eventually("all have left", || system.status(&[])["routes"][0]["undelivered"] == 300);
    let work = Work::start(&system.shell, &["--concurrency", "1", "--print"]);
    // A tenth of a second in each of seven empty partitions would be 0.7 s a job: more than three times as long as this waits.
    eventually("all are done", || system.status(&[])["routes"][0]["undelivered"] == 0);
    work.stop();
}
