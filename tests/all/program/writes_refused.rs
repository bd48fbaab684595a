//! While Redis refuses writes, everybody says so, and why.

use std::path::Path;

use redis::Connection;

use super::said;
use crate::door::Door;
use crate::rig::{Server, eventually};

fn set(redis: &mut Connection, setting: &str, value: &str) {
    let _: String = redis::cmd("CONFIG").arg("SET").arg(setting).arg(value).query(redis).expect("set");
}

/// Redis refuses writes by `break_it`, and takes them again by `mend_it`: what is said meanwhile has `why` in it.
#[track_caller]
fn is_said(why: &str, pushes_only: bool, break_it: impl Fn(&mut Connection), mend_it: impl Fn(&mut Connection)) {
    let server = Server::start(&[]);
    let door = Door::on(&server, "[defaults]\nrate = '1/h'\n");
    let shell = &door.shell;
    let mut redis = server.connect();
    shell.must_run(&["push", "acme", "one"]);
    shell.must_run(&["push", "acme", "two"]);
    assert_eq!(door.ask("GET /readyz", &[], b"").status, 200);
    break_it(&mut redis);
    let file = shell.file("jobs", "three\n");
    for args in
        [&["push", "acme", "three"][..], &["push", "acme", "three", "--id", "3"], &["push", "acme", "--file", &file]]
    {
        let (code, out, err) = shell.run(args);
        assert!(code == 75 && out.is_empty() && err.contains(why), "{args:?}: {code} {out}{err}");
    }
    let answer = door.push("acme", b"three");
    assert_eq!(answer.status, 503, "{answer:?}");
    let (code, out, _) = shell.run(&["status"]);
    let line = out.lines().find(|line| line.starts_with("REFUSED")).unwrap_or_else(|| panic!("{out}"));
    assert_eq!(code, 75, "{out}");
    assert_eq!(line.contains("nothing leaves"), !pushes_only, "{out}");
    assert!(!out.contains("NONE RUNS") && line.contains("nobody can push"), "{out}");
    assert!(out.replace("\n            ", " ").contains(why), "{out}");
    assert_eq!(shell.run(&["status", "acme"]).0, 75);
    let said_by = shell.must_run(&["explain", "acme"]);
    assert!(said_by.contains(why) && !said_by.contains("no daemon runs"), "{said_by}");
    eventually("it is not ready", || door.ask("GET /readyz", &[], b"").status == 503);
    eventually("and says why", || String::from_utf8_lossy(&door.ask("GET /readyz", &[], b"").body).contains(why));
    let waits = [
        shell.spawn(&["push", "acme", "four", "--wait"]),
        shell.spawn(&["push", "acme", "five", "--id", "5", "--wait"]),
        shell.spawn(&["push", "acme", "--file", &file, "--wait"]),
    ];
    mend_it(&mut redis);
    for child in waits {
        let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
        assert_eq!(code, 0, "{err}");
    }
    eventually("it is ready", || door.ask("GET /readyz", &[], b"").status == 200);
    eventually("all is well", || shell.run(&["status"]).0 == 0);
}

#[test]
fn a_full_redis_is_named_by_all_who_meet_it_and_nobody_gives_up_waiting() {
    is_said("redis is full", true, |redis| set(redis, "maxmemory", "1"), |redis| set(redis, "maxmemory", "0"));
}

#[test]
fn a_redis_without_its_replicas_is_named_by_all_who_meet_it_and_nobody_gives_up_waiting() {
    let replicas = |n: &'static str| move |redis: &mut Connection| set(redis, "min-replicas-to-write", n);
    is_said("redis takes no writes without its replicas", false, replicas("1"), replicas("0"));
}

#[test]
fn a_redis_that_cannot_save_is_named_by_all_who_meet_it_and_nobody_gives_up_waiting() {
    let in_the_way = |redis: &mut Connection| {
        let (_, dir): (String, String) =
            redis::cmd("CONFIG").arg("GET").arg("dir").query(redis).expect("its directory");
        Path::new(&dir).join("dump.rdb")
    };
    let saved = |redis: &mut Connection, status: &str| {
        let _: redis::Value = redis::cmd("BGSAVE").query(redis).expect("begun");
        eventually("it tried to save", || {
            let info: String = redis::cmd("INFO").arg("persistence").query(redis).expect("INFO");
            info.contains("rdb_bgsave_in_progress:0") && info.contains(&format!("rdb_last_bgsave_status:{status}"))
        });
    };
    let break_it = |redis: &mut Connection| {
        set(redis, "save", "3600 100000");
        std::fs::create_dir(in_the_way(redis)).expect("a directory with the name of the file");
        saved(redis, "err");
    };
    let mend_it = |redis: &mut Connection| {
        std::fs::remove_dir(in_the_way(redis)).expect("removed");
        saved(redis, "ok");
    };
    is_said("redis takes no writes while it cannot save its data", false, break_it, mend_it);
}
