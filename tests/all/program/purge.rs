//! `dripd purge`, and how commands ask before they do what cannot be taken back.

use super::{Shell, at_a_terminal};
use crate::rig::{Daemon, eventually, server};

const SLOW: &str = "[defaults]\nrate = '1/h'\ncapacity = 5\n";

#[test]
fn purge_asks_first_naming_the_count_and_says_how_many_it_held() {
    let mut shell = Shell::new(SLOW);
    shell.case.lpush("b", &["1", "2", "3"]);
    shell.case.lpush("other", &["1"]);
    let question = "b holds 3 jobs. Throw them away for good? [y/N] ";
    for answer in ["\n", "n\n", "yes please\n", "\x04"] {
        let (code, out, err) = at_a_terminal(&shell, &["purge", "b"], answer);
        let said = format!("{question}dripd purge: nothing was changed\n");
        assert_eq!((code, out.as_str(), err), (1, "", said), "{answer:?}");
    }
    assert_eq!(shell.case.waiting("b").len(), 3);
    let (code, out, err) = at_a_terminal(&shell, &["purge", "b"], "Y\n");
    assert_eq!((code, err.as_str()), (0, question));
    assert_eq!(out, "b: 3 jobs thrown away, 0 jobs and 0 retries left\n");
    assert!(shell.case.waiting_is_empty("b") && !shell.case.waiting_is_empty("other"));
    assert_eq!(shell.run(&["purge", "b"]), (0, "b: no job waits\n".to_owned(), String::new()), "and asks no more");
    let event = shell.case.stream("events").remove(0);
    assert_eq!(
        (event.text("what"), event.text("match"), event.text("user")),
        ("purge".into(), "b".into(), "default".into())
    );
    let by = event.text("by");
    assert!(by.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()), "{by}");
}

#[test]
fn without_a_terminal_purge_needs_yes() {
    let mut shell = Shell::new(SLOW);
    shell.case.lpush("b", &["1", "2"]);
    let (code, out, err) = shell.run(&["purge", "b"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(
        err,
        "dripd purge: b holds 2 jobs. Throw them away for good? There is no terminal to ask at; add --yes if it is meant\n"
    );
    let (code, _, err) = shell.pipe(&["purge", "b"], b"y\n");
    assert_eq!(code, 2, "a pipe is nobody who could be asked: {err}");
    assert_eq!(shell.case.waiting("b"), ["1", "2"]);
    let done = (0, "b: 2 jobs thrown away, 0 jobs and 0 retries left\n".to_owned(), String::new());
    assert_eq!(shell.run(&["purge", "b", "--yes"]), done);
    for args in [&["purge"][..], &["purge", "a{b", "--yes"], &["purge", "a", "b"], &["purge", "b", "--delayed"]] {
        assert_eq!(shell.run(args).0, 2, "{args:?}");
    }
}

#[test]
fn purge_leaves_retries_alone_unless_it_is_told_otherwise() {
    let mut shell =
        Shell::new("[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'b'\nbackoff = { initial = '1h', max = '1h' }\n");
    assert_eq!(shell.run(&["push", "b", "fails"]).0, 0);
    let _: Vec<redis::Value> = shell.case.fcall("drip__drain", &["schedule"], &[""]);
    let taken = shell.case.take("ready", 1).remove(0);
    assert_eq!(shell.case.fcall::<i64>("drip_fail", &["ready"], &[taken.id]), 1);
    let (_, out, _) = shell.run(&["purge", "b", "--yes"]);
    assert_eq!(out, "b: no job waits; 1 retry waits for its next try (--retries purges it)\n");
    shell.case.lpush("b", &["1", "2"]);
    let (_, out, _) = shell.run(&["purge", "b", "--yes"]);
    assert_eq!(out, "b: 2 jobs thrown away, 0 jobs and 1 retry left\n");
    let (code, _, err) = shell.run(&["purge", "b", "--retries"]);
    assert_eq!(code, 2);
    assert!(err.contains("b holds 0 jobs and 1 retry. Throw them away for good? There is no terminal"), "{err}");
    let (_, out, _) = shell.run(&["purge", "b", "--retries", "--yes"]);
    assert_eq!(out, "b: 0 jobs and 1 retry thrown away, 0 jobs and 0 retries left\n");
    assert!(!shell.case.keys().iter().any(|key| key.starts_with("retr")), "{:?}", shell.case.keys());
}

#[test]
fn purge_says_what_was_rejected_and_refuses_what_is_no_queue() {
    let mut shell = Shell::new(SLOW);
    shell.case.lpush("b", &["1", "2", "3", "4", "5", "6", "7"]);
    let (_, out, _) = shell.run(&["purge", "b", "--yes"]);
    let cut = "2 jobs had come over its capacity and are counted as rejected";
    assert_eq!(out, format!("b: 5 jobs thrown away, 0 jobs and 0 retries left; {cut}\n"));
    assert_eq!(shell.case.jobs("rejected"), ["6", "7"]);
    let queue = shell.case.queue("set");
    let _: i64 = shell.case.cmd(&["SADD", &queue, "x"]);
    let (code, _, err) = shell.run(&["purge", "set", "--yes"]);
    assert_eq!((code, err.lines().count()), (69, 1), "{err}");
    assert_eq!(
        err,
        format!("dripd purge: cannot purge set: {queue} holds a set and must hold a list: rename or delete it\n")
    );
    let (_, out, _) = shell.run(&["purge", "\u{202e}b", "--yes"]);
    assert_eq!(out, "\\u{202e}b: no job waits\n");
}

#[test]
fn what_comes_while_it_is_purged_is_purged_dispatched_or_waits() {
    let mut shell = Shell::new("[defaults]\nrate = '500/s'\ncapacity = 100000\n");
    let _daemon = Daemon::start(shell.home());
    let (queue, mut producer) = (shell.case.queue("b"), server().connect());
    let pushed = std::thread::spawn(move || {
        for n in 0..4_000 {
            let _: i64 = redis::cmd("LPUSH").arg(&queue).arg(n).query(&mut producer).expect("LPUSH");
        }
    });
    let mut purged = 0;
    while !pushed.is_finished() || purged == 0 {
        let (code, out, err) = shell.run(&["purge", "b", "--yes"]);
        assert_eq!(code, 0, "{err}");
        let held = out.strip_prefix("b: ").and_then(|out| out.split_once(" job")).expect("a line").0;
        purged += held.parse::<usize>().unwrap_or(0); // "no job waits"
    }
    pushed.join().expect("all pushed");
    eventually("the rest leaves", || shell.case.waiting_is_empty("b"));
    let mut left: Vec<usize> = shell.case.jobs("ready").iter().map(|job| job.parse().expect("a number")).collect();
    assert_eq!(purged + left.len(), 4_000);
    left.dedup();
    assert!(left.is_sorted() && purged + left.len() == 4_000, "each once, and in order");
}
