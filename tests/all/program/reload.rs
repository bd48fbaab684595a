//! Reading the configuration again: in which order, what survives a lost connection, what is answered, and which record
//! is in force.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::http::{BILLING, Door, EYES, OPS, TOKENS};
use super::said;
use crate::program::daemon::home;
use crate::rig::{Case, Daemon, Server, dripd, eventually, signal, test_config};
use crate::shell::configure;

/// The capacity that a daemon's functions hold a bucket to.
fn capacity(case: &mut Case) -> i64 {
    case.fcall::<Vec<i64>>("drip_peek", &["queue:some"], &[] as &[&str])[2]
}

/// Buckets that are scheduled for an hour: a change of policy has to reach each of them.
fn schedule(case: &mut Case, buckets: usize) {
    let mut pipe = redis::pipe();
    for n in 0..buckets {
        pipe.cmd("LPUSH").arg(case.queue(&format!("b{n}"))).arg(&["now", "in an hour"]).ignore();
    }
    pipe.exec(&mut case.redis).expect("pushed");
    let schedule = case.key("schedule");
    eventually("they are scheduled", || case.cmd::<usize>(&["ZCARD", &schedule]) == buckets);
    let ready = case.key("ready");
    eventually("the first jobs have left", || case.cmd::<usize>(&["XLEN", &ready]) == buckets);
}

fn reload(home: &Path) -> Child {
    let mut command = dripd();
    command.arg("reload").current_dir(home).env("RUNTIME_DIRECTORY", home.join("run"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// What a reload came to: its exit code and what it said.
fn outcome(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The control socket of the only daemon of a directory.
fn control_socket(home: &Path) -> PathBuf {
    let entries = std::fs::read_dir(home.join("run")).expect("a runtime directory");
    entries.map(|entry| entry.expect("an entry").path()).find(|path| path.extension().is_some()).expect("a socket")
}

const SLOW: &str = "[defaults]\nrate = '1/h'\n";

#[test]
fn five_hups_close_together_end_with_the_last_file_in_force() {
    let mut case = Case::bare();
    let home = home(&case, SLOW);
    let mut daemon = Daemon::start(home.path());
    schedule(&mut case, 5_000);
    for round in 0..4 {
        let live = || daemon.log().matches("the configuration was reloaded and is live").count();
        let before = live();
        for n in 0..5 {
            configure(home.path(), &case, &format!("{SLOW}capacity = {}\n", 100 + 10 * round + n));
            daemon.signal("HUP");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Signals that come while one waits are one signal: between one and five are answered.
        eventually("the last file is in force", || live() > before && capacity(&mut case) == 104 + 10 * round);
    }
    daemon.stop();
    assert_eq!(capacity(&mut case), 134, "an older one overtook the last\n{}", daemon.log());
}

#[test]
fn five_reloads_close_together_end_with_the_last_file_in_force_and_all_are_told_so() {
    let mut case = Case::bare();
    let home = home(&case, SLOW);
    let daemon = Daemon::start(home.path());
    schedule(&mut case, 5_000);
    for round in 0..3 {
        let reloads: Vec<Child> = (0..5)
            .map(|n| {
                configure(home.path(), &case, &format!("{SLOW}capacity = {}\n", 100 + 10 * round + n));
                let child = reload(home.path());
                std::thread::sleep(Duration::from_millis(15)); // so that they are read in this order
                child
            })
            .collect();
        for child in reloads {
            let (code, said) = outcome(child);
            assert_eq!((code, said.as_str()), (Some(0), ""), "{}", daemon.log());
        }
        assert_eq!(capacity(&mut case), 104 + 10 * round, "round {round}\n{}", daemon.log());
    }
}

#[test]
fn a_reload_that_a_hanging_redis_cut_off_is_made_up_for() {
    let server = Server::start(&[]);
    let home = server.home("[defaults]\ncapacity = 11\n");
    let daemon = Daemon::start(home.path());
    let pid = server.pid();
    signal(pid, "STOP");
    std::thread::sleep(Duration::from_secs(2));
    std::fs::write(
        home.path().join("config.toml"),
        test_config(&format!("[redis]\nurl = '{}'\n[defaults]\ncapacity = 22\n", server.url())),
    )
    .expect("written");
    let asked = reload(home.path());
    daemon.signal("HUP");
    std::thread::sleep(Duration::from_secs(5)); // longer than an answer may take
    signal(pid, "CONT");
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    eventually("the new file is in force", || capacity(&mut case) == 22);
    let (code, said) = outcome(asked);
    assert!(!said.contains("is stored"), "it was not when this was said: {said}");
    assert!(code == Some(0) || said.contains("will be live"), "{code:?} {said}");
}

#[test]
fn what_the_drains_of_a_reload_let_out_counts_in_the_figures() {
    let mut case = Case::bare();
    let home = home(&case, "[defaults]\nrate = '50/s'\n");
    let daemon = Daemon::start(home.path());
    let mut pipe = redis::pipe();
    for n in 0..500 {
        pipe.cmd("LPUSH").arg(case.queue(&format!("b{n}"))).arg(&["x"; 20]).ignore();
    }
    pipe.exec(&mut case.redis).expect("pushed");
    let ready = case.key("ready");
    let mut round = 0;
    eventually("all have left", || {
        round += 1;
        configure(home.path(), &case, &format!("[defaults]\nrate = '50/s'\ncapacity = {}\n", 1_000 + round));
        assert_eq!(outcome(reload(home.path())).0, Some(0));
        case.cmd::<u64>(&["XLEN", &ready]) == 10_000
    });
    // It may be told to say so before it has read the reply to its last call.
    eventually(&format!("all of them are counted, after {round} reloads"), || {
        daemon.signal("USR1");
        daemon.log().contains(" dispatched=10000 ")
    });
}

#[test]
fn where_no_record_is_stored_a_daemon_stores_its_own_before_it_looks_at_any_queue() {
    let server = Server::start(&[]);
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    for _ in 0..5 {
        case.lpush("b", &["x"; 1_000]);
    }
    let home = server.home("[defaults]\nrate = '1/h'\ncapacity = 10000\n");
    let _daemon = Daemon::start(home.path());
    eventually("the first has left", || case.stream("ready").len() == 1);
    assert_eq!(case.waiting("b").len(), 4_999, "the built-in capacity is 1,000, its own 10,000");
    assert!(case.stream("rejected").is_empty());
}

#[test]
fn a_serving_daemon_says_once_when_another_replaced_its_record_and_when_its_own_is_in_force_again() {
    let mut case = Case::bare();
    let (one, two) = (home(&case, "[defaults]\ncapacity = 11\n"), home(&case, "[defaults]\ncapacity = 22\n"));
    let first = Daemon::start(one.path());
    let second = Daemon::start(two.path());
    case.lpush("b", &["x"]); // a call that finds it out
    let says = |daemon: &Daemon, part: &str| daemon.log().matches(part).count();
    eventually("the first says so", || says(&first, "its own file differs") == 1);
    assert_eq!(says(&second, "its own file differs"), 0);
    first.signal("HUP");
    eventually("its own is in force again", || says(&first, "in force again") == 1);
    case.lpush("b", &["x"]);
    eventually("now the second obeys it", || says(&second, "its own file differs") == 1);
    for _ in 0..3 {
        case.lpush("b", &["x"]);
    }
    assert_eq!((says(&first, "its own file differs"), says(&first, "in force again")), (1, 1), "once");
}

#[test]
fn a_daemon_that_cannot_be_asked_is_named_with_what_reaches_it() {
    let case = Case::bare();
    let home = home(&case, "");
    let daemon = Daemon::start(home.path());
    let pid = daemon.child.id();
    let mut elsewhere = dripd();
    elsewhere.arg("reload").current_dir(home.path()).env("RUNTIME_DIRECTORY", home.path().join("other"));
    let (code, _, err) = said(&elsewhere.output().expect("it runs"));
    assert_eq!(code, 1);
    assert!(err.starts_with("dripd reload: no dripd that can be asked from here reads "), "{err}");
    // Other tests run daemons of their own, and not all are named.
    let named = format!("process {pid} listens in another $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR: kill -HUP {pid}");
    assert!(err.contains(&named) || err.contains(" more\n"), "{err}");
    assert!(!err.contains("none runs"), "{err}");
}

#[test]
fn twenty_silent_connections_and_an_endless_line_on_the_control_socket_delay_nobody() {
    let mut case = Case::bare();
    let home = home(&case, "[defaults]\ncapacity = 11\n");
    let daemon = Daemon::start(home.path());
    let socket = control_socket(home.path());
    let silent: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&socket).expect("it listens")).collect();
    configure(home.path(), &case, "[defaults]\ncapacity = 22\n");
    let since = Instant::now();
    assert_eq!(outcome(reload(home.path())), (Some(0), String::new()));
    // One after the other they would take two seconds each.
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(capacity(&mut case), 22);
    drop(silent);

    let mut endless = UnixStream::connect(&socket).expect("it listens");
    endless.set_write_timeout(Some(Duration::from_secs(10))).expect("set");
    let (part, mut sent) = (vec![b'x'; 65_536], 0);
    while sent < 64 << 20 {
        match endless.write(&part) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    assert!(sent < 4 << 20, "{sent} bytes of one line were taken");
    assert!(matches!(endless.read(&mut [0; 16]), Ok(0) | Err(_)), "and the connection is closed");
    daemon.signal("USR1");
    eventually("the daemon goes on", || daemon.log().contains("status redis="));
}

#[test]
fn a_runtime_directory_that_others_may_write_to_is_not_used_and_the_way_out_is_said() {
    let case = Case::bare();
    let home = home(&case, SLOW);
    let run = home.path().join("run");
    std::fs::create_dir(&run).expect("a directory");
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).expect("its owner");
    let daemon = Daemon::start(home.path());
    let log = daemon.log();
    let named = format!("{} may be written to by others", run.display());
    assert!(log.contains(&named) && log.contains("chmod 700"), "{log}");
    assert_eq!(std::fs::read_dir(&run).expect("it is there").count(), 0, "no socket");
    // Nor does whoever asks trust what lies there.
    let _bait = std::os::unix::net::UnixListener::bind(run.join("1.sock")).expect("a stranger's");
    let (code, err) = outcome(reload(home.path()));
    assert!(code == Some(1) && err.contains(&named), "{code:?} {err}");
}

#[test]
fn a_daemon_that_ends_while_it_is_asked_is_passed_over() {
    let case = Case::bare();
    let home = home(&case, SLOW);
    let _daemon = Daemon::start(home.path());
    let path = home.path().join("run/1.sock");
    let ending = std::os::unix::net::UnixListener::bind(&path).expect("a directory of its own");
    let asked = reload(home.path());
    let (stream, _) = ending.accept().expect("it is asked");
    std::fs::remove_file(&path).expect("as daemons do that end");
    drop((ending, stream)); // the request was not read: the connection is reset
    let (code, err) = outcome(asked);
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

#[test]
fn a_reload_that_redis_refuses_changes_neither_tokens_nor_hosts_nor_limits() {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    let tokens = TOKENS.replacen(
        "[[http.token]]",
        "[http]\nlisten = '127.0.0.1:0'\nhosts = ['drip.example.com']\n[[http.token]]",
        1,
    );
    let door = Door::of(super::Shell::on(&server, &format!("{SLOW}{tokens}")));
    let new = ("Authorization", "Bearer new-secret");
    let stands = || {
        let of = |host: &'static str, token| door.ask("GET /v1/status", &[("Host", host), token], b"").status;
        let large = vec![b'x'; 2_000];
        let push = |body: &[u8]| door.ask("POST /v1/buckets/billing:a/jobs", &[BILLING], body).status;
        let hosts = (of("drip.example.com", EYES), of("other.example.com", EYES));
        (of("localhost", OPS), of("localhost", new), hosts, push(&large) == 413)
    };
    let old = (200, 401, (200, 421), false);
    assert_eq!(stands(), old);
    let file = door.shell.home().join("config.toml");
    let text = std::fs::read_to_string(&file).expect("read").replace("drip.example.com", "other.example.com");
    std::fs::write(&file, text.replace("[limits]\n", "[limits]\nmax_job_bytes = 1000\n")).expect("written");
    door.shell.file("ops", "new-secret\n");
    // Without this command no record can be stored; the loops that let jobs out go on.
    let allow = |redis: &mut redis::Connection, what: &str| {
        redis::cmd("ACL").arg(&["SETUSER", "default", what]).exec(redis).expect("set");
    };
    allow(&mut redis, "-hset");
    for _ in 0..2 {
        let (code, _, err) = door.shell.run(&["reload"]);
        assert!(code == 1 && err.contains("redis refused it, and all stays as it was"), "{code} {err}");
        let (is_old, is_new, hosts, _) = stands();
        assert_eq!((is_old, is_new, hosts), (old.0, old.1, old.2));
    }
    allow(&mut redis, "+hset");
    assert_eq!(stands(), old, "it does not come into force by itself either");
    assert_eq!(door.shell.run(&["reload"]).0, 0);
    assert_eq!(stands(), (401, 200, (421, 200), true));
}

#[test]
fn a_reload_without_redis_is_in_force_when_its_record_is() {
    let server = Server::start(&[]);
    let (door, redis) = (Door::on(&server, &format!("{SLOW}{TOKENS}")), server.pid());
    let new = ("Authorization", "Bearer new-secret");
    let asked = |token| door.ask("GET /openapi.json", &[token], b"").status;
    signal(redis, "STOP");
    door.shell.file("ops", "new-secret\n");
    let mut asks = door.shell.command(&["reload"]);
    let reload = asks.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    std::thread::sleep(Duration::from_millis(500)); // the file is read meanwhile
    assert_eq!((asked(OPS), asked(new)), (200, 401));
    signal(redis, "CONT");
    eventually("it is in force", || (asked(OPS), asked(new)) == (401, 200));
    reload.wait_with_output().expect("it ends");
}
