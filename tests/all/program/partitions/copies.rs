//! What is set, and the record, in all partitions: the authority numbers each change, and every other partition comes to have it.

use std::fs;

use super::System;
use crate::program::Stopped;
use crate::rig::eventually;

/// The keys that hold what is set, and what was when.
const SET: [&str; 6] = ["policy", "settings", "globs", "ends", "changed", "unset"];

impl System {
    fn capacity(&self, bucket: &str) -> u64 {
        self.status(&[bucket])["capacity"].as_u64().expect("a number")
    }

    /// The number of the last change that each partition has.
    fn numbers(&self) -> Vec<String> {
        (0..super::PARTITIONS).map(|n| self.redis(&["HGET", &format!("drip:policy:{{{n}}}"), "number"])).collect()
    }

    /// What the authority has, as a replica of its server would.
    fn copy_of_authority(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let dump = |key: String| {
            let bytes = self.redis(&["DUMP", &key]);
            (key, bytes)
        };
        SET.map(|key| dump(format!("drip:{key}:{{0}}"))).into()
    }

    /// That replica has taken its place.
    fn promote(&self, copy: &[(String, Option<Vec<u8>>)]) {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (key, bytes) in copy {
            pipe.cmd("DEL").arg(key).ignore();
            if let Some(bytes) = bytes {
                pipe.cmd("RESTORE").arg(key).arg(0).arg(bytes).ignore();
            }
        }
        pipe.exec(&mut self.server.connect()).expect("done");
    }

    fn are_level(&self) -> bool {
        let numbers = self.numbers();
        numbers.iter().all(|number| *number == numbers[0])
    }
}

#[test]
fn what_is_set_for_a_glob_holds_in_every_partition_when_the_command_returns() {
    let system = System::new("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    system.run(&["set", "tenant-*", "capacity=7"]);
    for bucket in &buckets {
        assert_eq!(system.capacity(bucket), 7, "{bucket}");
    }
    assert!(system.are_level(), "{:?}", system.numbers());
    let settings = system.run(&["settings"]);
    assert_eq!(settings.matches("capacity = 7").count(), 1, "it is set once, in all of them\n{settings}");
    system.run(&["set", &buckets[5], "capacity=3", "--for", "1h"]);
    assert_eq!((system.capacity(&buckets[5]), system.capacity(&buckets[4])), (3, 7), "a name lies over a glob");
    system.run(&["unset", &buckets[5]]);
    assert_eq!(system.capacity(&buckets[5]), 7);
    system.run(&["pause", "*", "--yes"]);
    for bucket in &buckets {
        system.run(&["push", bucket, "x"]);
    }
    assert_eq!(system.status(&[])["paused"], super::PARTITIONS);
    system.run(&["resume", "*", "--yes"]);
    eventually("all go on", || system.status(&[])["counters"]["dispatched"] == super::PARTITIONS);
    system.run(&["unset", "tenant-*"]);
    assert_eq!(system.capacity(&buckets[6]), 10);
}

#[test]
fn a_setting_that_ends_by_itself_ends_in_every_partition_and_what_waited_goes_on() {
    let system = System::new("[defaults]\nrate = '1000/s'\n");
    let _daemon = system.daemon();
    system.run(&["pause", "tenant-*", "--for", "2s"]);
    for bucket in system.a_bucket_each() {
        system.run(&["push", &bucket, "x"]);
    }
    eventually("all have left", || system.status(&[])["counters"]["dispatched"] == super::PARTITIONS);
    assert!(system.run(&["settings"]).contains("nothing is set"));
}

#[test]
fn a_command_that_ended_half_way_is_carried_on_by_a_daemon() {
    let system = System::new("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    // What `set` does first, and nothing of what it does then.
    for (pattern, is_glob) in [("tenant-*", true), (buckets[7].as_str(), false)] {
        let capacity = if is_glob { 6 } else { 5 };
        let change = format!(
            r#"{{"what":"set","match":"{pattern}","is_glob":{is_glob},"set":{{"capacity":{{"text":"{capacity}","policy":{{"capacity":{capacity}}}}}}},"by":"t","user":"t"}}"#
        );
        let _: redis::Value = system.redis(&["FCALL", "drip__set", "1", "drip:policy:{0}", "", &change]);
    }
    eventually("every partition has it", || {
        buckets[..7].iter().all(|bucket| system.capacity(bucket) == 6)
            && system.capacity(&buckets[7]) == 5
            && system.are_level()
    });
}

#[test]
fn a_partition_that_lost_all_it_had_is_brought_it_again_and_what_the_authority_lost_is_gone() {
    let system = System::new("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    system.run(&["set", "tenant-*", "capacity=6"]);
    system.run(&["set", &buckets[3], "capacity=4"]);
    let lost = |n: u8| {
        // All of it at once, or the daemon would bring something again before the rest is gone.
        let keys = SET.map(|key| format!("drip:{key}:{{{n}}}"));
        let _: u64 = system.redis(&[&["DEL"], &keys.each_ref().map(String::as_str)[..]].concat());
    };
    lost(3);
    eventually("it is there again", || system.capacity(&buckets[3]) == 4);
    system.run(&["unset", &buckets[3]]);
    assert_eq!(system.capacity(&buckets[3]), 6);
    lost(0);
    eventually("the authority has the record of the daemon, and nothing is set", || {
        buckets.iter().all(|bucket| system.capacity(bucket) == 10)
    });
    system.run(&["set", "*", "capacity=8", "--yes"]);
    assert!(buckets.iter().all(|bucket| system.capacity(bucket) == 8));
}

#[test]
fn what_was_unset_while_a_partition_lagged_is_not_set_there_for_ever() {
    let system = System::new("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let bucket = &system.a_bucket_each()[2];
    system.run(&["set", bucket, "capacity=4"]);
    assert_eq!(system.capacity(bucket), 4);
    // As if more names had been unset since than are remembered: that of this one is not told any more, and the partition lags.
    let number: String = system.redis(&["HGET", "drip:policy:{0}", "number"]);
    let mut redis = system.server.connect();
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("HDEL").arg("drip:settings:{0}").arg(bucket).ignore();
    pipe.cmd("ZREM").arg("drip:changed:{0}").arg(bucket).ignore();
    let next = number.parse::<u64>().expect("a number") + 1;
    pipe.cmd("HSET").arg("drip:policy:{0}").arg("number").arg(next).arg("floor").arg(next).ignore();
    pipe.exec(&mut redis).expect("done");
    eventually("it is gone", || system.capacity(bucket) == 10 && system.are_level());
}

#[test]
fn a_reload_is_live_in_every_partition_and_two_of_them_end_with_one_and_the_same_record() {
    let system = System::new("[defaults]\nrate = '1/h'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    let path = system.shell.home().join("config.toml");
    let text = fs::read_to_string(&path).expect("a file");
    fs::write(&path, text.replace("capacity = 10", "capacity = 20")).expect("written");
    assert!(system.run(&["reload"]).contains("live"));
    assert!(buckets.iter().all(|bucket| system.capacity(bucket) == 20));
    // Another daemon with another file, and both reload at the same time.
    let other = super::shell_at(
        &system.server,
        "partitions = 8\n[http]\nlisten = ''\n[defaults]\nrate = '1/h'\ncapacity = 30\n",
    );
    let second = crate::rig::Daemon::start(other.home());
    let reloads = [system.shell.spawn(&["reload"]), other.spawn(&["reload"])];
    for reload in reloads {
        assert!(reload.wait_with_output().expect("it ends").status.success());
    }
    let id = |n: u8| -> String { system.redis(&["HGET", &format!("drip:policy:{{{n}}}"), "id"]) };
    eventually("one record is in force everywhere", || {
        (0..super::PARTITIONS).all(|n| id(n) == id(0)) && system.are_level()
    });
    let one = system.capacity(&buckets[0]);
    assert!(one == 20 || one == 30);
    assert!(buckets.iter().all(|bucket| system.capacity(bucket) == one));
    drop(second);
}

#[test]
fn when_the_authority_has_lost_its_data_what_was_set_is_taken_back_everywhere() {
    let system = System::new("[defaults]\nrate = '1000/s'\ncapacity = 10\n");
    let _daemon = system.daemon();
    let buckets = system.a_bucket_each();
    system.run(&["pause", "tenant-*", "--yes"]);
    system.run(&["set", &buckets[5], "capacity=3"]);
    let mut lost: Vec<String> = system.redis(&["KEYS", "drip:*:{0}*"]);
    assert!(lost.len() > 3, "{lost:?}");
    lost.insert(0, "DEL".to_owned());
    let _: i64 = system.redis(&lost.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("the record is back, and every partition has the same", || {
        system.redis::<bool>(&["EXISTS", "drip:policy:{0}"]) && system.are_level()
    });
    eventually("nothing is set any more", || system.capacity(&buckets[5]) == 10);
    for bucket in &buckets {
        system.run(&["push", bucket, "x"]);
    }
    eventually("nothing is paused any more", || system.status(&[])["routes"][0]["undelivered"] == super::PARTITIONS);
}

#[test]
fn what_a_promoted_authority_lacks_is_taken_back_everywhere_and_what_it_has_is_in_force_all_the_while() {
    // The daemons compare, or somebody sets something before they do.
    for is_set_before in [false, true] {
        let system = System::new("[defaults]\nrate = '1000/s'\ncapacity = 10\n");
        let daemon = system.daemon();
        let buckets = system.a_bucket_each();
        system.run(&["pause", &buckets[2]]);
        system.run(&["pause", "held-*"]);
        let paused: Vec<String> = (0..20).map(|n| format!("held-{n}")).chain([buckets[2].clone()]).collect();
        for bucket in &paused {
            system.run(&["push", bucket, "x"]);
        }
        system.run(&["set", &buckets[4], "capacity=4"]);
        let copy = system.copy_of_authority();
        system.run(&["set", &buckets[5], "capacity=3"]);
        system.run(&["unset", &buckets[4]]);
        system.run(&["set", "other-*", "capacity=7"]);
        assert_eq!(
            (system.capacity(&buckets[5]), system.capacity(&buckets[4]), system.capacity("other-1")),
            (3, 10, 7)
        );

        let stopped = Stopped::stop(daemon.child.id());
        system.promote(&copy);
        if is_set_before {
            system.run(&["set", &buckets[6], "capacity=6"]);
        }
        drop(stopped);
        eventually("it is the same in all partitions", || {
            let found = [&buckets[5], &buckets[4], "other-1"].map(|bucket| system.capacity(bucket));
            found == [10, 4, 10] && system.are_level()
        });
        assert_eq!(system.capacity(&buckets[6]), if is_set_before { 6 } else { 10 });
        let globs = |n: u8| -> String { system.redis(&["GET", &format!("drip:globs:{{{n}}}")]) };
        assert!((0..super::PARTITIONS).all(|n| !globs(n).contains("other-")), "globs too");
        let status = system.status(&[]);
        assert_eq!(
            status["counters"]["dispatched"].as_u64().unwrap_or(0),
            0,
            "what is paused was paused all the while"
        );
        assert_eq!(status["paused"], paused.len());
        assert!(system.run(&["settings"]).contains("held-*"));
        system.run(&["resume", "held-*"]);
        system.run(&["resume", &buckets[2]]);
        eventually("all go on", || system.status(&[])["counters"]["dispatched"] == paused.len());
    }
}
