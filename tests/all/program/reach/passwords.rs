//! Passwords: where they may be, that a new one needs no restart, and that none is ever seen.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use redis::Value;

use super::shell;
use crate::program::{Shell, Work};
use crate::rig::{Daemon, Server, eventually};

const FAST: &str = "[defaults]\nrate = '200/s'\n";

/// A server with a user who needs a password, and a directory whose configuration names both in a file.
fn with_user(password: &str) -> (Server, Shell) {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    let rule = format!(">{password}");
    let words = ["SETUSER", "drip", "on", &rule, "~*", "&*", "+@all"];
    let _: String = redis::cmd("ACL").arg(&words).query(&mut redis).expect("ACL");
    let shell = shell(
        &server,
        &format!("url = 'redis://127.0.0.1:{}'\nuser = 'drip'\npassword_file = 'password'", server.port),
        FAST,
    );
    shell.file("password", &format!("{password}\n"));
    (server, shell)
}

/// The connections of the user, by their ids.
fn connections(shell: &mut Shell) -> Vec<String> {
    let list: String = shell.case.cmd(&["CLIENT", "LIST"]);
    let of_user = list.lines().filter(|line| line.contains(" user=drip "));
    of_user.map(|line| line.split(' ').next().expect("an id").to_owned()).collect()
}

fn everything_said(daemon: &Daemon, worker: &Work) -> String {
    let command_line = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("it runs");
    daemon.log() + &worker.log() + &command_line(daemon.child.id()) + &command_line(worker.child.id())
}

#[test]
fn a_rotated_password_needs_no_restart_and_no_word_of_it_is_seen() {
    let (_server, mut shell) = with_user("first-secret");
    let (daemon, out) = (Daemon::start(shell.home()), shell.home().join("out"));
    let worker = Work::start(&shell, &["--exec", &format!("printf '%s\\n' \"$(cat)\" >> {}", out.display())]);
    let done = || std::fs::read_to_string(&out).unwrap_or_default().lines().count();
    let mut pushed = 0;
    let mut push = |shell: &mut Shell, n: usize| {
        let jobs: Vec<String> = (pushed..pushed + n).map(|n| n.to_string()).collect();
        let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
        shell.case.lpush("a", &jobs);
        pushed += n;
        pushed
    };
    let all = push(&mut shell, 20);
    // And acknowledged, on the connection that the worker makes for that when it first needs it.
    let ready = shell.case.key("ready");
    eventually("jobs are done", || {
        let (pending, ..): (u64, Value, Value, Value) = shell.case.cmd(&["XPENDING", &ready, "workers"]);
        done() == all && pending == 0
    });

    // Redis takes the new one alone from now on. Nobody who is connected notices.
    eventually("the daemon and both ends of the worker are connected", || connections(&mut shell).len() >= 3);
    let before = connections(&mut shell);
    let _: String = shell.case.cmd(&["ACL", "SETUSER", "drip", "resetpass", ">second-secret"]);
    let all = push(&mut shell, 20);
    eventually("all are done", || done() == all);
    let after = connections(&mut shell);
    assert!(before.iter().all(|id| after.contains(id)), "on the connections that there were: {before:?} {after:?}");

    // They are lost while the file still has the old one: all wait, and say why.
    let _: i64 = shell.case.cmd(&["CLIENT", "KILL", "USER", "drip"]);
    let all = push(&mut shell, 20);
    eventually("the daemon says why it waits", || daemon.log().contains("refuses the user or the password"));
    let (code, _, err) = shell.run(&["status"]);
    assert!(code == 69 && err.contains("refuses the user or the password") && err.lines().count() == 1, "{err}");
    shell.file("password", "second-secret\n");
    eventually("all are done", || done() == all);
    let (code, status, err) = shell.run(&["status"]);
    assert_eq!(code, 0, "{err}");
    let seen = everything_said(&daemon, &worker) + &status + &err + &shell.run(&["check"]).1;
    assert!(!seen.contains("secret"), "{seen}");
    assert_eq!(worker.stop().0, Some(0));
}

#[test]
fn a_user_is_named_in_the_url_or_beside_it_and_a_credential_is_found_by_itself() {
    let (server, shell) = with_user("the-secret");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("redis-password"), "the-secret\n").expect("written");
    std::fs::write(dir.path().join("mine"), "the-secret").expect("written");
    let status = |redis: &str, credentials: Option<&Path>| {
        shell.file(
            "config.toml",
            &format!("[redis]\n{}\nprefix = 't'\n", redis.replace("PORT", &server.port.to_string())),
        );
        let mut command = shell.command(&["status"]);
        command.envs(credentials.map(|dir| ("CREDENTIALS_DIRECTORY", dir)));
        crate::program::said(&command.output().expect("it runs"))
    };
    for (redis, credentials) in [
        ("url = 'redis://drip:the-secret@127.0.0.1:PORT'", None),
        ("url = 'redis://drip@127.0.0.1:PORT'\npassword_file = 'password'", None),
        ("url = 'redis://:the-secret@127.0.0.1:PORT'\nuser = 'drip'", None),
        ("url = 'redis://127.0.0.1:PORT'\nuser = 'drip'", Some(dir.path())),
        ("url = 'redis://127.0.0.1:PORT'\nuser = 'drip'\npassword_file = 'mine'", Some(dir.path())),
    ] {
        let (code, out, err) = status(redis, credentials);
        assert_eq!(code, 0, "{redis}: {err}");
        assert!(!(out + &err).contains("secret"), "{redis}");
    }
}

#[test]
fn a_password_in_a_configuration_that_everybody_can_read_is_warned_of() {
    let (server, shell) = with_user("the-secret");
    let text = format!(
        "[redis]\nurl = 'redis://drip:the-secret@127.0.0.1:{}'\nprefix = 't'\n[http]\nlisten = ''\n",
        server.port
    );
    let file = shell.file("config.toml", &text);
    let warning = "redis.url holds a password, and everybody can read ";
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changed");
    mode(0o644);
    let (code, out, _) = shell.run(&["check"]);
    assert!(code == 0 && out.contains(&format!("\nwarning   {warning}")) && !out.contains("secret"), "{out}");
    let daemon = Daemon::start(shell.home());
    eventually("the daemon warns too", || daemon.log().contains(warning));
    mode(0o640);
    let (code, out, _) = shell.run(&["check"]);
    assert!(code == 0 && !out.contains("warning"), "{out}");
    shell.file("config.toml", &text.replace("drip:the-secret@", "drip@"));
    mode(0o644);
    let (_, out, _) = shell.run(&["check"]);
    assert!(!out.contains("warning"), "{out}");
}
