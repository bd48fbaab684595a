//! What users with the rights that `dripd acl` prints are refused: all that belongs to another role, and how a command says so.

use redis::{Connection, Value};
use serde_json::json;

use super::Shell;
use super::acl::{House, ROLES, done};
use super::terminal::Terminal;
use crate::rig::{Daemon, eventually, load_library};

#[test]
fn no_role_does_the_work_of_another() {
    let house = House::build("drip");
    let _daemon = Daemon::start(house.shell("daemon").home());
    let mut admin = house.server.connect();
    for key in ["queue:a", "queue:b"] {
        redis::cmd("LPUSH").arg(house.key(key)).arg("job").exec(&mut admin).expect("LPUSH");
    }
    redis::cmd("SET").arg("other").arg("x").exec(&mut admin).expect("SET");
    // Of another program, of another dripd, and of the server itself: nobody.
    let nobody = [
        "GET other",
        "SET other x",
        "DEL other",
        "LPUSH other:queue:a x",
        "XADD other:ready * job x",
        "LPUSH dripx:queue:a x",
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "CONFIG GET *",
        "CONFIG SET appendonly no",
        "ACL LIST",
        "ACL SETUSER me on",
        "SHUTDOWN",
        "MONITOR",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
        "EVAL 1 0",
        "SCRIPT FLUSH",
        "FUNCTION FLUSH",
        "FUNCTION DELETE dripd",
        "FUNCTION DUMP",
        "REPLICAOF no one",
        "MIGRATE h 1 k 0 1",
        "SAVE",
        "SWAPDB 0 1",
        "SELECT 1",
        "RPUSH drip:queue:a x",
        "LINSERT drip:queue:a BEFORE job x",
        "LSET drip:queue:a 0 x",
        "LRANGE drip:queue:a 0 -1",
        "RENAME drip:queue:a drip:queue:b",
        "EXPIRE drip:queue:a 1",
        "DUMP drip:queue:a",
        "SORT drip:queue:a",
        "XGROUP DESTROY drip:ready workers",
        "SUBSCRIBE news",
        "PUBLISH news x",
        "FCALL drip_fixed_window 1 other 1 1000",
    ];
    // What some may, and who.
    let some: &[(&str, &[&str])] = &[
        ("LPUSH drip:queue:a x", &["producer", "submitter", "daemon"]),
        ("RPOP drip:queue:none", &["daemon"]),
        ("LINDEX drip:queue:a 0", &["submitter", "worker", "operator", "observer", "daemon"]),
        ("FCALL drip_push 1 drip:queue:a x", &["submitter", "daemon"]),
        ("FCALL drip_submit_all 1 drip:queue:a 0", &["submitter", "daemon"]),
        ("FCALL drip__submit_all 1 drip:queue:a 1 0", &["daemon"]), // at a time of one's own
        ("FCALL_RO drip_peek 1 drip:queue:a", &["submitter", "operator", "observer", "daemon"]),
        ("FCALL drip_fixed_window 1 limit:a 1 1000", &["submitter", "daemon"]),
        ("XREADGROUP GROUP workers w COUNT 1 STREAMS drip:ready 0", &["worker"]),
        ("FCALL drip_ack 1 drip:ready 1-1", &["worker", "daemon"]),
        ("FCALL drip_fail 1 drip:ready 1-1", &["worker", "daemon"]),
        ("FCALL drip_slow 1 drip:queue:a CLEAR", &["worker", "daemon"]),
        ("FCALL drip_told 1 drip:queue:a CLEAR", &["worker", "daemon"]),
        ("XADD drip:ready * job x", &["daemon"]),
        // Repairs of the reaper: in the hands of a worker they would lose jobs.
        ("XGROUP DELCONSUMER drip:ready workers nobody", &["daemon"]),
        ("XGROUP SETID drip:ready workers 0", &["daemon"]),
        ("PERSIST drip:queue:a", &["daemon"]),
        ("XDEL drip:dead 1-1", &["operator", "daemon"]),
        ("FCALL_RO drip__explain 1 drip:queue:a ", &["operator", "observer", "daemon"]),
        ("FCALL drip__explain 1 drip:queue:a ", &["daemon"]),
        ("FCALL_RO drip__front 1 drip:queue:a  1 1", &["operator", "observer", "daemon"]),
        ("FCALL drip__set 1 drip:policy  {}", &["operator", "daemon"]),
        ("FCALL drip__purge 1 drip:queue:none  0 me me", &["operator", "daemon"]),
        ("FCALL drip__dead_drop 1 drip:dead", &["operator", "daemon"]),
        ("FCALL drip__drain 1 drip:schedule ", &["daemon"]),
        ("FCALL drip__policy 1 drip:policy", &["daemon"]),
        ("FCALL drip__reap 1 drip:policy  0  ", &["daemon"]),
        ("FUNCTION LOAD x", &["daemon"]),
        ("HGETALL drip:stats", &["operator", "observer", "daemon"]),
        ("HSET drip:policy x y", &["submitter", "worker", "operator", "daemon"]), // what a function writes its caller may write
        ("SCAN 0", &["operator", "daemon"]),
        ("INFO", &["submitter", "worker", "operator", "observer", "daemon"]),
    ];
    for role in ROLES {
        let mut client = house.client(role);
        let mut is_refused = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let reply = redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut client);
            reply.is_err_and(|why| why.code() == Some("NOPERM"))
        };
        for line in nobody {
            assert!(is_refused(line), "{role}: {line}");
        }
        for (line, may) in some {
            assert_eq!(is_refused(line), !may.contains(&role), "{role}: {line}");
        }
    }
    let kept: Vec<String> = redis::cmd("LRANGE").arg("drip:queue:b").arg(0).arg(-1).query(&mut admin).expect("LRANGE");
    assert!(kept.is_empty() || kept == ["job"], "{kept:?}");
}

#[test]
fn a_command_that_its_user_may_not_run_says_which_role_may() {
    let house = House::build("drip");
    let observer = house.shell("observer");
    let _daemon = Daemon::start(house.shell("daemon").home());
    let mut admin = house.server.connect();
    redis::cmd("LPUSH").arg("drip:queue:slow").arg(&["1", "2", "3"]).exec(&mut admin).expect("LPUSH");
    let refused = |shell: &Shell, args: &[&str]| {
        let (code, out, err) = shell.run(args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(!err.contains("user_function") && !err.contains("NOPERM"), "{err}");
        err
    };
    for (shell, args, tried, role) in [
        (&observer, &["pause", "a"][..], "cannot pause a: ", "operator"),
        (&observer, &["set", "a", "rate=5/s"], "cannot set rate=5/s for a: ", "operator"),
        (&observer, &["purge", "slow", "--yes"], "cannot purge slow: ", "operator"),
        (&observer, &["push", "a", "x"], "cannot push to a: ", "submitter"),
        (&observer, &["limit", "throttle", "limit:a", "5/60s"], "cannot ask the throttle limit:a: ", "submitter"),
        (&observer, &["work", "--print"], "cannot take jobs of route default: ", "worker"),
        (
            &house.shell("submitter"),
            &["limit", "throttle", "login:a", "5/60s"],
            "cannot ask the throttle login:a: ",
            "submitter",
        ),
        (&house.shell("producer"), &["status"], "cannot say how all stands: ", "observer"),
        (&house.shell("worker"), &["explain", "a"], "cannot explain a: ", "observer"),
        (&house.shell("worker"), &["dead", "list"], "cannot list dead letters: ", "observer"),
    ] {
        let err = refused(shell, args);
        assert!(
            err.contains(&format!(": {tried}redis does not allow that to the user that dripd logs in as (")),
            "{args:?}: {err}"
        );
        assert!(err.ends_with(&format!("; `dripd acl {role}` prints the rights that it takes\n")), "{args:?}: {err}");
    }
    // So does `top`.
    let mut top = observer.command(&["top", "--match", "slow"]);
    top.env("TERM", "xterm-256color");
    let terminal = Terminal::start(top, 200, 24);
    eventually("it is ranked", || terminal.text().contains("1 of 1"));
    terminal.type_keys("py");
    eventually("it says who may pause", || terminal.text().contains("`dripd acl operator` prints the rights"));
    // A right that only a command within a function lacks is told in the same words.
    let rights = ["SETUSER", "half", "on", ">secret", "+info", "+acl|whoami", "~drip:*", "+fcall", "+fcall_ro"];
    redis::cmd("ACL").arg(&rights).exec(&mut admin).expect("a user");
    let err = refused(&house.shell("half"), &["pause", "a"]);
    assert!(err.contains("cannot pause a: redis does not allow that") && err.contains("`dripd acl operator`"), "{err}");
}

#[test]
fn what_the_daemon_may_not_do_for_a_request_is_told_over_http() {
    let house = House::build("drip");
    let door = house.door();
    let (error, detail) = door.operate("POST /v1/limit/fixed-window/login:a", &json!({ "rate": "5/s" })).problem(502);
    assert_eq!(error, "refused");
    assert!(detail.ends_with("; `dripd acl daemon` prints the rights that it takes"), "{detail}");
}

#[test]
fn a_daemon_without_its_rights_and_commands_without_a_library_say_the_way_out() {
    let house = House::build("drip");
    let (code, _, err) = house.shell("observer").run(&["explain", "a"]);
    assert_eq!(code, 69, "{err}");
    assert!(
        err.contains("its function library is not loaded") && err.contains("start a daemon (`dripd run`)"),
        "{err}"
    );
    let shell = house.shell("worker");
    let daemon = Daemon::spawn(shell.home());
    eventually("it says what it lacks", || daemon.log().contains("`dripd acl daemon` prints"));
}

#[test]
fn a_right_that_a_daemon_lacks_is_not_taken_for_a_fault_of_the_stream() {
    let house = House::build("drip");
    let shell = house.shell("daemon");
    let (_, line, _) = shell.run(&["acl", "daemon"]);
    let mut admin = house.server.connect();
    let mut without = |right: &str| {
        let line = line.trim_end().replace(">PASSWORD", ">secret").replace(&format!(" +{right} "), " ");
        let words: Vec<&str> = line.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut admin).expect("a user");
    };
    without("xadd");
    let daemon = Daemon::start(shell.home());
    redis::cmd("LPUSH").arg("drip:queue:slow").arg("x").exec(&mut house.server.connect()).expect("LPUSH");
    let advice = "`dripd acl daemon` prints the rights that its user needs";
    eventually("it says what it lacks", || daemon.log().contains(advice));
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains(advice)).expect("a line");
    assert!(line.contains("dripd may not use it") && line.contains("drip:ready"), "{line}");
    assert!(!log.contains("the stream's type"), "{log}");
    drop(daemon);
    // Several commands in one round trip: the words are those of one.
    without("type");
    let daemon = Daemon::spawn(shell.home());
    eventually("it says what it lacks", || daemon.log().contains("`dripd acl daemon` prints"));
    let log = daemon.log();
    assert!(log.contains("'type' command") && !log.contains("Pipeline") && !log.contains("Index"), "{log}");
}

#[test]
fn what_may_not_be_asked_is_not_taken_for_missing_nor_remembered_so() {
    let house = House::build("drip");
    let _daemon = Daemon::start(house.shell("daemon").home());
    let operator = house.shell("operator");
    done(&operator, &["set", "a", "capacity=1"]);
    let mut admin = house.server.connect();
    // As if a newer library read a key that an older `dripd acl` did not grant.
    let (_, line, _) = operator.run(&["acl", "submitter", "--user", "old"]);
    let line = line.trim_end().replace(">PASSWORD", ">secret").replace(" ~drip:settings", "");
    let words: Vec<&str> = line.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut admin).expect("a user");
    load_library(&mut admin); // it remembers nothing
    let push = |client: &mut Connection| {
        redis::cmd("FCALL").arg("drip_push").arg(1).arg("drip:queue:a").arg(&["1", "2", "3"]).query::<Vec<i64>>(client)
    };
    push(&mut house.client("old")).expect_err("it may not see what is set");
    let verdict = push(&mut house.client("submitter")).expect("a verdict");
    assert_eq!(verdict[2], 1, "the capacity that is set: {verdict:?}");
}

#[test]
fn a_worker_takes_no_jobs_of_others_and_gives_none_back_past_dripd() {
    let house = House::build("drip");
    let mut admin = house.server.connect();
    let ready = ["XGROUP", "CREATE", "drip:ready", "workers", "0", "MKSTREAM"];
    redis::cmd(ready[0]).arg(&ready[1..]).exec(&mut admin).expect("a group");
    let (_, line, _) = house.shell("worker").run(&["acl", "worker"]);
    assert!(!line.contains("+@") && !line.contains("+xnack"), "{line}");
    let mut worker = house.client("worker");
    let mut is_refused = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let why = redis::cmd(words[0]).arg(&words[1..]).query::<Value>(&mut worker).expect_err(line);
        // What this server does not know, whoever asks, it refuses so.
        let is_unknown = redis::cmd("COMMAND").arg("INFO").arg(words[0]).query::<Vec<Value>>(&mut admin);
        let is_unknown = is_unknown.is_ok_and(|found| found == [Value::Nil]);
        let is_new = ["XNACK", "XACKDEL", "XDELEX", "XCFGSET"].contains(&words[0]);
        why.code() == Some("NOPERM") || is_new && is_unknown && why.to_string().contains("unknown command")
    };
    for line in [
        "XNACK drip:ready workers SILENT IDS 1 1-1",
        "XNACK drip:ready workers FATAL IDS 1 1-1 FORCE",
        "XAUTOCLAIM drip:ready workers w 0 0",
        "XACKDEL drip:ready workers IDS 1 1-1",
        "XDELEX drip:ready IDS 1 1-1",
        "XCFGSET drip:ready IDMP-DURATION 1",
        "XTRIM drip:ready MAXLEN 0",
        "XSETID drip:ready 1-1",
        "XADD drip:ready * job x",
        "XGROUP SETID drip:ready workers $",
        "XGROUP DESTROY drip:ready workers",
        "XGROUP DELCONSUMER drip:ready workers w",
        "XREADGROUP GROUP workers w NOACK STREAMS other >",
        "DEL drip:ready",
        "EXPIRE drip:ready 1",
    ] {
        assert!(is_refused(line), "{line}");
    }
}
