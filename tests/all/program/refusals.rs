//! What a user is told when a call is refused: what was tried, in the words of the command line, why, and the way out. No name of a
//! function is among it.

use super::Shell;
use crate::rig::Server;

const TREE: &str = "[[budget]]\nmatch = 'twilio'\nrate = '5/s'\n[[bucket]]\nmatch = 'sms:*'\nwithin = 'twilio'\n";

/// Run something that is refused. Replies what is said, without the name of the command.
#[track_caller]
fn refused(shell: &Shell, args: &[&str], exit: i32) -> String {
    let (code, out, err) = shell.run(args);
    assert_eq!((code, out.as_str()), (exit, ""), "{args:?}: {err}");
    for internal in ["drip__", "BADARG", "WRONGTYPE", "was refused", "user_function"] {
        assert!(!err.contains(internal), "{args:?}: {internal} in {err}");
    }
    let head = format!("dripd {}: ", args[0]);
    let line = err.strip_prefix(&head).and_then(|line| line.strip_suffix('\n')).expect("a line").to_owned();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn a_refusal_says_what_was_tried_in_the_words_of_the_user_why_and_the_way_out() {
    let shell = Shell::new(TREE);
    let unknown = "no [[budget]] of the configuration in force matches twili; \
                   `dripd check` lists those of a file, and `dripd reload` puts it into force";
    for (args, tried) in [
        (&["set", "twili", "rate=5/s", "weight=2", "--budget"][..], "set rate=5/s weight=2 for budget twili"),
        (&["pause", "twili", "--budget"], "pause budget twili"),
        (&["slow", "twili", "5s", "--budget"], "slow down budget twili"),
        (&["slow", "twili", "clear", "--budget"], "end the slow-down of budget twili"),
        (&["explain", "twili", "--budget"], "explain budget twili"),
    ] {
        assert_eq!(refused(&shell, args, 1), format!("cannot {tried}: {unknown}"));
    }
    assert_eq!(
        refused(&shell, &["slow", "mail", "5s", "--in", "twilio"], 1),
        "cannot slow down budget twilio above mail: \"twilio\" is no budget above mail; `dripd explain` lists those that are"
    );
    assert_eq!(
        refused(&shell, &["set", "mail", "within=other"], 1),
        "cannot set within=other for mail: nothing could leave mail: no [[budget]] matches other; \
         `dripd check` lists the budgets of a file"
    );
    assert!(shell.run(&["unset", "twili", "--budget"]).1.contains("nothing of that was set"));
}

#[test]
fn keys_that_hold_something_else_are_named_by_every_command_that_meets_them() {
    let mut shell = Shell::new(TREE);
    let holds = |key: &str, wanted: &str| format!("{key} holds a string and must hold a {wanted}: rename or delete it");
    let (queue, retry, stream) = (shell.case.queue("b"), shell.case.key("retry:c"), shell.case.key("ready:other"));
    for key in [&queue, &retry, &stream] {
        let _: String = shell.case.cmd(&["SET", key, "x"]);
    }
    shell.case.lpush("c", &["1"]);
    for (args, tried, why) in [
        (&["purge", "b", "--yes"][..], "purge b", holds(&queue, "list")),
        (&["purge", "c", "--yes"], "purge c", holds(&retry, "sorted set")),
        (&["what-if", "b"], "say what would become of b", holds(&queue, "list")),
        (&["push", "b", "x"], "push to b", holds(&queue, "list")),
        (&["set", "a", "route=other"], "set route=other for a", holds(&stream, "stream")),
    ] {
        assert_eq!(refused(&shell, args, 69), format!("cannot {tried}: {why}"));
    }
    // What Redis itself says of a key does not name it.
    let settings = shell.case.key("settings");
    let _: String = shell.case.cmd(&["SET", &settings, "x"]);
    for (args, tried) in [
        (&["set", "a", "rate=5/s"][..], "set rate=5/s for a"),
        (&["unset", "a"], "take back what is set for a"),
        (&["unset", "a", "rate", "lease"], "take back rate lease for a"),
        (&["pause", "a"], "pause a"),
        (&["resume", "a"], "resume a"),
        (&["close", "a"], "close a"),
        (&["open", "a"], "open a"),
        (&["what-if", "a", "rate=5/s"], "say what would become of a"),
    ] {
        assert_eq!(refused(&shell, args, 69), format!("cannot {tried}: {}", holds(&settings, "hash")));
    }
}

#[test]
fn a_redis_that_refuses_says_what_is_wrong_with_it_and_the_log_keeps_the_name_of_the_call() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, TREE);
    let mut admin = server.connect();
    let rights = ["SETUSER", "poor", "on", ">x", "~*", "&*", "+@all", "-fcall"];
    redis::cmd("ACL").arg(&rights).exec(&mut admin).expect("a user");
    let text = std::fs::read_to_string(shell.home().join("config.toml")).expect("a configuration");
    let poor = text.replace("redis://", "redis://poor:x@");
    std::fs::write(shell.home().join("poor.toml"), poor).expect("written");
    let (code, _, err) = shell.run(&["--config", "poor.toml", "pause", "a"]);
    let why = "redis does not allow that to the user that dripd logs in as (";
    assert_eq!(code, 1, "{err}");
    assert!(err.starts_with(&format!("dripd pause: cannot pause a: {why}")) && err.contains("fcall"), "{err}");

    let _: () = shell.case.cmd(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let (code, _, err) = shell.run(&["push", "a", "x"]);
    assert_eq!(
        (code, err.as_str()),
        (75, "dripd push: cannot push to a: redis is full; free memory or raise its maxmemory\n")
    );
    let _: () = shell.case.cmd(&["CONFIG", "SET", "maxmemory", "0"]);

    let mut work = shell.command(&["--config", "poor.toml", "work", "--print", "--log-format", "json"]);
    let output = work.output().expect("it ends");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let record = log.lines().find(|line| line.contains("\"failed\"")).unwrap_or_else(|| panic!("no failure in {log}"));
    assert!(record.contains("drip__route was refused: NOPERM"), "{record}");
}
