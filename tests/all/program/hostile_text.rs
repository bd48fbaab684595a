//! Text of strangers at every door of the command line: reasons, names of workers, buckets, jobs and ids that would command a terminal, hide
//! something, or turn the line round. Nothing of that is shown as it is; JSON and TOML say the same in escapes.

use std::process::Stdio;

use serde_json::Value as Json;

use super::terminal::Terminal;
use super::{Shell, Work};
use crate::rig::{Daemon, Server, eventually};

/// What clears the screen, sets its title, hides, turns the line round, and begins lines of its own.
const HOSTILE: &str = "boo\u{1b}[2J\u{1b}]0;pwn\u{7}\u{9b}31m\u{7f}\u{202e}\u{200b}\u{ad}\u{2028}\u{2029}\u{feff}\u{2066}\u{61c}\u{200f}\u{3164}\
                       \u{2063}\u{e0041}\u{2800}\n  since 1970 by root\r\u{8}";

/// A part of it without white space, for what would be taken for several lines or words.
const SHORT: &str = "boo\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{200b}";

/// The same as far as a name may be like that.
const NAME: &str = "a\u{202e}b\u{200b}c\u{2028}d\u{ad}e\u{feff}f\u{2067}g\u{3164}h";

/// Characters that nobody sees, or that change how others are read.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

#[track_caller]
fn is_safe(what: &str, text: &str) {
    let found: Vec<char> = text.chars().filter(|c| *c != '\n' && c.is_control() || is_hidden(*c)).collect();
    assert!(found.is_empty(), "{what} shows {found:?}: {text:?}");
    assert!(
        !text.lines().any(|line| line.starts_with("  since 1970 by root")),
        "{what} has a line of a stranger: {text}"
    );
}

/// What a command shows, whatever its exit code.
#[track_caller]
fn shows(shell: &Shell, args: &[&str]) -> String {
    let output = shell.command(args).env("SUDO_USER", HOSTILE).stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    is_safe(&format!("{args:?}"), &out);
    is_safe(&format!("{args:?}, as an error,"), &err);
    out + &err
}

#[track_caller]
fn json(shell: &Shell, args: &[&str]) -> Json {
    let text = shows(shell, args);
    serde_json::from_str(text.lines().next().unwrap_or_default())
        .unwrap_or_else(|why| panic!("{args:?}: {why}: {text}"))
}

/// A budget whose name may be hostile, too.
const BESET: &str = "[defaults]\nrate = '1/h'\n[[budget]]\nmatch = 'it*'\nrate = '1/s'\n";

/// Hostile settings, an entry in hand of a hostile worker, a dead letter, buckets with hostile names.
fn beset(shell: &mut Shell) -> Daemon {
    let daemon = Daemon::start(shell.home());
    for (args, said) in [
        (&["pause", "ok", "--reason", HOSTILE][..], "ok: paused"),
        (&["pause", NAME, "--reason", HOSTILE], ": paused"),
        (&["set", "*'\"\u{202e}*", "rate=5/s", "within=\"it's\u{202e}\\\\\"", "--reason", HOSTILE], "rate = \"5/s\""),
        (&["set", NAME, "capacity=7"], "capacity = 7"),
    ] {
        let shown = shows(shell, args);
        assert!(shown.contains(said), "{shown}");
    }
    shell.case.lpush(NAME, &[HOSTILE; 9]);
    let (ready, dead) = (shell.case.key("ready"), shell.case.key("dead"));
    let entry = [
        "bucket", NAME, "job", HOSTILE, "attempt", "1", "id", HOSTILE, "h:x", HOSTILE, HOSTILE, HOSTILE, "reason",
        HOSTILE,
    ];
    let entry =
        |key: &str| -> Vec<String> { ["XADD", key, "*"].iter().chain(&entry).map(ToString::to_string).collect() };
    for key in [&dead, &ready] {
        let words = entry(key);
        let _: String = shell.case.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let words = ["XREADGROUP", "GROUP", "workers", HOSTILE, "COUNT", "1", "STREAMS", &ready, ">"];
    let _: redis::Value = shell.case.cmd(&words);
    daemon
}

#[test]
fn nothing_that_a_stranger_wrote_commands_a_terminal_at_any_command() {
    let server = Server::start(&["--appendonly", "yes"]);
    let mut shell = Shell::on(&server, BESET);
    let daemon = beset(&mut shell);
    let settings = shows(&shell, &["settings"]);
    assert!(settings.contains(r"because boo\u{1b}[2J\u{1b}]0;pwn\u{7}\u{9b}31m"), "{settings}");
    eventually("the ranking is there", || shows(&shell, &["status"]).contains("of 1 bucket"));
    for args in [
        &["explain", NAME][..],
        &["explain", "ok"],
        &["status", NAME],
        &["dead", "list"],
        &["dead", "list", "--reason", HOSTILE],
        &["job", "find", NAME, HOSTILE],
        &["job", "cancel", NAME, HOSTILE],
        &["what-if", NAME, "rate=1/s", "--push", "3"],
        &["what-if", NAME, &format!("rate={SHORT}")],
        &["limit", "fixed-window", HOSTILE, "1/h"],
        &["limit", "fixed-window", HOSTILE, "1/h"],
        &["limit", HOSTILE, "k", "1/h"],
        &["push", NAME, "x"],
        &["push", HOSTILE, "x"],
        &["purge", NAME, "--yes"],
        &["slow", NAME, "30s", "--reason", HOSTILE],
        &["resume", NAME],
        &["resume", NAME],
        &["close", NAME],
        &["open", NAME],
        &["unset", NAME],
        &["set", NAME, SHORT],
        &["set", NAME, &format!("route={SHORT}")],
        &["set", HOSTILE, "rate=1/s"],
        &["set", "\u{202e}", "rate=1/s"],
        &["partition", NAME],
        &["partition", HOSTILE],
        &["settings", HOSTILE],
        &["dead", "retry", "--reason", HOSTILE, "--dry-run"],
        &["dead", "drop", "--bucket", NAME, "--yes"],
        &[HOSTILE],
        &["status", HOSTILE],
        &["work", "--exec", SHORT],
        &["--config", HOSTILE, "status"],
        &["top", "--match", HOSTILE],
    ] {
        shows(&shell, args);
    }
    let log = daemon.log();
    is_safe("the daemon's log", &log);
}

#[test]
fn json_and_toml_hold_every_character_of_a_stranger_in_escapes() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, BESET);
    let _daemon = beset(&mut shell);
    let settings = json(&shell, &["settings", "--json"]);
    let of = |pattern: &str| {
        let found = settings.as_array().expect("a list").iter().find(|row| row["match"] == pattern);
        found.unwrap_or_else(|| panic!("no {pattern:?} in {settings}")).clone()
    };
    assert_eq!(of("ok")["reason"], HOSTILE);
    assert_eq!(of(NAME)["reason"].as_str().or(Some(HOSTILE)), Some(HOSTILE));
    let toml = shows(&shell, &["settings", "--toml"]).parse::<toml::Table>().expect("TOML");
    let entries: Vec<_> = toml["bucket"].as_array().expect("entries").iter().collect();
    let entry = |pattern: &str| entries.iter().find(|entry| entry["match"].as_str() == Some(pattern)).expect(pattern);
    assert_eq!(entry(NAME)["capacity"].as_integer(), Some(7));
    assert_eq!(entry("*'\"\u{202e}*")["within"].as_str(), Some("it's\u{202e}\\"));
    assert_eq!(json(&shell, &["explain", NAME, "--json"])["bucket"], NAME);
    assert_eq!(json(&shell, &["status", NAME, "--json"])["bucket"], NAME);
    assert_eq!(json(&shell, &["job", "find", NAME, "id", "--json"])["bucket"], NAME);
    assert_eq!(json(&shell, &["dead", "list", "--json"])["reason"], HOSTILE);
    json(&shell, &["status", "--json"]);
    json(&shell, &["what-if", NAME, "--json"]);
}

#[test]
fn a_worker_s_own_log_shows_nothing_of_a_job_as_it_is() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\nattempts = 1\n");
    let _daemon = Daemon::start(shell.home());
    let ready = shell.case.key("ready");
    let mut ended = Vec::new();
    for format in ["text", "json"] {
        let work = Work::start(&shell, &["--log-format", format, "--route", "default", "--exec", "exit 3"]);
        let words =
            ["XADD", &ready, "*", "bucket", NAME, "job", HOSTILE, "attempt", "1", "id", HOSTILE, "lease_ms", "9000"];
        let _: String = shell.case.cmd(&words);
        eventually("it is given up", || work.log().contains("in the dead stream"));
        let log = work.log();
        is_safe(&format!("the worker's log as {format}"), &log);
        assert!(log.contains("boo"), "the id is there: {log}");
        if format == "json" {
            let lines: Vec<Json> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
            let failed = lines.iter().find(|line| line["bucket"] == NAME).expect("a line about it");
            assert!(failed["id"].as_str().is_some_and(|id| id.starts_with(HOSTILE)), "{failed}");
        }
        ended.push(work.stop());
    }
}

#[test]
fn a_job_that_is_printed_at_a_terminal_cannot_command_it() {
    let mut shell = Shell::new("[defaults]\nrate = '1000/s'\n");
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("b", &[HOSTILE]);
    let mut command = shell.command(&["work", "--print"]);
    command.env("TERM", "xterm-256color").env("RUST_LOG", "off");
    let terminal = Terminal::start(command, 200, 24);
    eventually("it is printed", || terminal.text().contains("root"));
    is_safe("work --print", &terminal.bytes().replace("\r\n", "\n"));
}

#[test]
fn top_shows_nothing_of_a_stranger_as_it_is() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, BESET);
    let _daemon = beset(&mut shell);
    let mut command = shell.command(&["top"]);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env("SUDO_USER", HOSTILE);
    let terminal = Terminal::start(command, 160, 40);
    eventually("the row is there", || terminal.text().contains(r"a\u{202e}b\u{200b}c"));
    terminal.type_keys("p");
    eventually("it asks who", || terminal.text().contains("[y/N]"));
    terminal.type_keys("n\r");
    eventually("it is explained", || terminal.text().contains("Esc back") && terminal.text().contains("is paused"));
    terminal.type_keys("\u{1b}");
    eventually("the table is back", || terminal.text().contains("? help"));
    terminal.type_keys("/x\u{202e}y");
    eventually("the filter is shown", || terminal.text().contains(r"x\u{202e}y"));
    let (text, bytes) = (terminal.text(), terminal.bytes());
    is_safe("top", &text);
    let hidden: Vec<char> = bytes.chars().filter(|c| is_hidden(*c) || ('\u{7f}'..='\u{9f}').contains(c)).collect();
    assert!(hidden.is_empty() && !bytes.contains("\u{1b}]"), "{hidden:?} {text}");
}
