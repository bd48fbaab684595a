//! `dripd push --file`: a job a line, of any number and any size.

use std::io::Write as _;
use std::time::Duration;

use super::{Shell, proc, said, signal};
use crate::rig::{Daemon, Server, eventually};
use crate::shell::configure;

/// More memory than a push ever needs, in KiB, and far less than the input of the tests that look at it.
const MOST_MEMORY: u64 = 48 * 1_024;

#[test]
fn push_takes_a_job_a_line_and_the_bucket_from_a_field() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let file = shell.file(
        "jobs.ndjson",
        "{\"tenant\":\"a\",\"n\":1}\n\n{\"tenant\":7}\n{\"tenant\":1.5}\nno json\n{\"other\":1}\n{\"tenant\":\"x{y\"}\n{\"tenant\":\"a\",\"n\":2}",
    );
    let (code, _, err) = shell.run(&["push", "--file", &file, "--bucket-from", ".tenant"]);
    assert_eq!(code, 1);
    for line in [
        "line 4 .tenant is neither",
        "line 5 is no JSON",
        "line 6 has no .tenant",
        "line 7",
        "3 accepted, 0 rejected, 4 skipped",
    ] {
        assert!(err.contains(line), "{line} is not in\n{err}");
    }
    assert_eq!(shell.case.waiting("a"), ["{\"tenant\":\"a\",\"n\":1}", "{\"tenant\":\"a\",\"n\":2}"]);
    assert_eq!(shell.case.waiting("7").len(), 1);
    let nested = shell.file("nested.ndjson", "{\"to\":{\"region\":\"eu\"}}\n");
    assert_eq!(shell.run(&["push", "--file", &nested, "--bucket-from", ".to.region"]).0, 0);
    assert_eq!(shell.case.waiting("eu").len(), 1);
}

#[test]
fn push_counts_what_was_rejected_and_names_what_is_too_large() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 3\n[limits]\nmax_job_bytes = 10\n");
    let (code, _, err) = shell.pipe(&["push", "b", "--file", "-"], b"1\r\n\xff\x00\n3\n4\n5\n");
    assert_eq!((code, err.as_str()), (75, "3 accepted, 2 rejected, 0 skipped\n"));
    let queue = shell.case.queue("b");
    let jobs: Vec<Vec<u8>> = shell.case.cmd(&["LRANGE", &queue, "0", "-1"]);
    assert_eq!(jobs, [b"3".to_vec(), b"\xff\x00".to_vec(), b"1\r".to_vec()]);
    let (code, _, err) = shell.pipe(&["push", "c", "--file", "-"], b"small\nmuch too large\nfits\n");
    assert_eq!(code, 1);
    assert!(
        err.contains("line 2 is too large, 14 bytes") && err.contains("2 accepted, 0 rejected, 1 skipped"),
        "{err}"
    );
    assert_eq!(shell.case.waiting("c"), ["small", "fits"]);
}

#[test]
fn push_wait_streams_a_million_lines_through_a_small_bucket_without_growing() {
    let shell = Shell::new(
        "[defaults]\nrate = '1000000/s'\ncapacity = 500\ncatch_up = '1s'\n[limits]\nbatch = 1000\nmax_ready = 10000000\n",
    );
    let _daemon = Daemon::start(shell.home());
    eventually("the daemon has said that it runs", || !shell.must_run(&["status"]).contains("NONE RUNS"));
    let mut child = shell.spawn(&["push", "b", "--file", "-", "--wait"]);
    let (mut stdin, pid) = (child.stdin.take().expect("piped"), child.id());
    let feeder = std::thread::spawn(move || {
        let mut text = String::with_capacity(8_000_000);
        (0..1_000_000).for_each(|n| text += &format!("{n}\n"));
        stdin.write_all(text.as_bytes())
    });
    let (mut case, mut deepest, mut peak) = (shell.case, 0, 0);
    let queue = case.queue("b");
    while child.try_wait().expect("a status").is_none() {
        deepest = deepest.max(case.cmd::<i64>(&["LLEN", &queue]));
        peak = peak.max(proc(pid, "status", "VmHWM:").unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    feeder.join().expect("fed").expect("all of it");
    assert_eq!(child.wait_with_output().expect("ended").stderr, b"1000000 accepted, 0 rejected, 0 skipped\n");
    let ready = case.key("ready");
    eventually("all have left", || case.cmd::<u64>(&["XLEN", &ready]) == 1_000_000);
    println!("deepest {deepest}, peak {peak} KiB");
    assert!((1..=500).contains(&deepest) && (1..60_000).contains(&peak), "deepest {deepest}, peak {peak} KiB");
    let last: Vec<(String, Vec<(String, String)>)> = case.cmd(&["XREVRANGE", &ready, "+", "-", "COUNT", "1"]);
    assert!(last[0].1.contains(&("job".to_owned(), "999999".to_owned())));
    let _: i64 = case.cmd(&["DEL", &ready]);
}

#[test]
fn push_wait_does_not_send_again_and_again_what_cannot_go_in() {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\ncapacity = 10\n");
    let _daemon = Daemon::start(shell.home());
    let file = shell.file("jobs", &format!("{}\n", "x".repeat(1_000)).repeat(200));
    let key = shell.case.key("ready");
    let child = shell.spawn(&["push", "b", "--file", &file, "--wait"]);
    // Its end is not taken yet, so that its figures, the last ones, can be read.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), ended).expect("it ends");
    let written = proc(child.id(), "io", "wchar:").expect("its figures");
    eventually("all have left", || shell.case.cmd::<u64>(&["XLEN", &key]) == 200);
    println!("{written} bytes were written for 200,000 of jobs");
    assert!((190_000..1_000_000).contains(&written), "{written} bytes for 200,000 of jobs");
}

#[test]
fn push_wait_lets_a_trickle_through_line_by_line() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let mut child = shell.spawn(&["push", "b", "--file", "-", "--wait"]);
    let mut stdin = child.stdin.take().expect("piped");
    for n in 1..=3 {
        writeln!(stdin, "{n}").expect("written");
        eventually("it is there, though the pipe is open", || shell.case.waiting("b").len() == n);
    }
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn lines_that_are_too_large_are_named_and_skipped_without_being_kept() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n");
    let mut child = shell.spawn(&["push", "b", "--file", "-"]);
    let (mut stdin, pid) = (child.stdin.take().expect("piped"), child.id());
    let large = [vec![b'x'; 10_000_000], b"\n".to_vec()].concat();
    for n in 1..=12 {
        stdin.write_all(&large).expect("read");
        writeln!(stdin, "{n}").expect("read");
    }
    eventually("the last line is pushed", || shell.case.waiting("b").len() == 12);
    let peak = proc(pid, "status", "VmHWM:").expect("it still reads");
    assert!(peak < MOST_MEMORY, "{peak} KiB for 12 lines of 10 MB");
    drop(stdin);
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, 1, "{err}");
    for line in ["line 1 is too large, 10000000 bytes: see limits.max_job_bytes; skipped", "line 23 is too large"] {
        assert!(err.contains(line), "{line} is not in\n{err}");
    }
    assert!(err.ends_with("12 accepted, 0 rejected, 12 skipped\n"), "{err}");
    assert_eq!(shell.case.waiting("b").join(" "), "1 2 3 4 5 6 7 8 9 10 11 12");
}

#[test]
fn a_line_without_an_end_needs_no_memory_and_can_be_interrupted() {
    let mut shell = Shell::new("");
    let child = shell.spawn(&["push", "b", "--file", "/dev/zero"]);
    let pid = child.id();
    eventually("it reads a lot", || proc(pid, "io", "rchar:").expect("it runs") > 256 * 1_048_576);
    let peak = proc(pid, "status", "VmHWM:").expect("it still reads");
    assert!(peak < MOST_MEMORY, "{peak} KiB");
    signal(pid, "INT");
    let said = said(&child.wait_with_output().expect("it ends"));
    let message = "dripd push: interrupted: 0 accepted, 0 rejected, 0 skipped; go on with --from-line 1\n";
    assert_eq!(said, (130, String::new(), message.to_owned()));
    assert_eq!(shell.case.waiting("b"), [""; 0]);
}

#[test]
fn the_record_in_force_says_what_is_too_large_and_not_the_file_at_hand() {
    let small = "[limits]\nmax_job_bytes = 10\n";
    let mut shell = Shell::new(small);
    configure(shell.home(), &shell.case, "");
    let (code, _, err) = shell.pipe(&["push", "b", "--file", "-"], b"much too large\nfits\n");
    assert!(code == 1 && err.starts_with("line 1 is too large, 14 bytes"), "{code} {err}");
    assert_eq!(shell.case.waiting("b"), ["fits"]);
    let mut shell = Shell::new("");
    configure(shell.home(), &shell.case, small);
    let (code, _, err) = shell.pipe(&["push", "b", "--file", "-"], b"not too large any more\n");
    assert_eq!((code, err.as_str()), (0, "1 accepted, 0 rejected, 0 skipped\n"));
    assert_eq!(shell.case.waiting("b").len(), 1);
}

#[test]
fn a_push_that_is_interrupted_says_from_which_line_to_go_on() {
    for name in ["INT", "TERM"] {
        let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 3\n");
        let mut child = shell.spawn(&["push", "b", "--file", "-", "--wait"]);
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(b"one\n\ntwo\nthree\nfour\nfive\nsi").expect("read");
        eventually("it is full", || shell.case.waiting("b").len() == 3);
        signal(child.id(), name);
        let (code, _, err) = said(&child.wait_with_output().expect("it ends, though the pipe is open"));
        drop(stdin);
        let message = "dripd push: interrupted: 3 accepted, 0 rejected, 0 skipped; go on with --from-line 5\n";
        assert!(code == 130 && err.ends_with(message), "{name}: {code} {err}");
        assert_eq!(shell.case.waiting("b"), ["one", "two", "three"]);
    }
}

#[test]
fn where_lines_of_several_buckets_wait_the_first_of_them_is_the_one_to_go_on_from() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 2\n[[bucket]]\nmatch = 'wide'\ncapacity = 100\n");
    let mut child = shell.spawn(&["push", "--file", "-", "--bucket-from", ".t", "--wait"]);
    let mut stdin = child.stdin.take().expect("piped");
    let mut text = String::new();
    for to in ["wide", "a", "b", "a", "a", "b", "?", "wide", "b", "", "wide", "a", "wide"] {
        match to {
            "" => text += "\n",
            "?" => text += "no json\n",
            to => text += &format!("{{\"t\":\"{to}\"}}\n"),
        }
    }
    stdin.write_all(text.as_bytes()).expect("read");
    let mut waiting = |bucket: &str| shell.case.waiting(bucket).len();
    eventually("all that fits is in", || (waiting("wide"), waiting("a"), waiting("b")) == (4, 2, 2));
    signal(child.id(), "INT");
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    drop(stdin);
    // Lines 5, 9 and 12 wait; of those after line 5 the 6th, 8th, 11th and 13th are in.
    let message = "dripd push: interrupted: 8 accepted, 0 rejected, 1 skipped; go on with --from-line 5; \
                   4 lines after it are accepted already\n";
    assert_eq!(code, 130, "{err}");
    assert!(err.starts_with("line 7 is no JSON") && err.ends_with(message), "{err}");
}

#[test]
fn an_interrupted_push_finishes_the_call_in_hand() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 100000\n");
    let file = shell.file("jobs", &"job\n".repeat(50_000));
    let _: String = shell.case.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let child = shell.spawn(&["push", "b", "--file", &file]);
    eventually("the call is made", || shell.case.cmd::<String>(&["CLIENT", "LIST"]).contains("cmd=fcall"));
    signal(child.id(), "INT");
    let _: String = shell.case.cmd(&["CLIENT", "UNPAUSE"]);
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    // The signal may be seen some calls later than the answer.
    let queue = shell.case.queue("b");
    let n: u64 = shell.case.cmd(&["LLEN", &queue]);
    let message =
        format!("dripd push: interrupted: {n} accepted, 0 rejected, 0 skipped; go on with --from-line {}\n", n + 1);
    assert_eq!((code, err), (130, message));
    assert!((1_000..50_000).contains(&n), "at least the call in hand, and not all: {n}");
}

#[test]
fn rejected_lines_are_kept_in_a_file_each_as_it_was() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 2\n[limits]\nmax_job_bytes = 10\n");
    let (file, kept) = (shell.file("jobs", ""), shell.file("kept", "from an earlier push\n"));
    let lines = b"1\n2\n\n3\r\nmuch too large\n\xff\x00\n  5\nlast";
    std::fs::write(&file, lines).expect("written");
    let (code, _, err) = shell.run(&["push", "b", "--file", &file, "--rejected", &kept]);
    assert_eq!(code, 1, "a line was skipped: {err}");
    assert!(err.ends_with("2 accepted, 4 rejected, 1 skipped\n"), "{err}");
    assert_eq!(std::fs::read(&kept).expect("a file"), b"3\r\n\xff\x00\n  5\nlast\n", "without what was skipped");
    let (code, _, err) = shell.run(&["push", "c", "--file", &kept, "--rejected", &file]);
    assert_eq!((code, err.as_str()), (75, "2 accepted, 2 rejected, 0 skipped\n"));
    assert_eq!(std::fs::read(&file).expect("a file"), b"  5\nlast\n", "it begins anew");
    let (code, _, err) = shell.run(&["push", "d", "--file", &file, "--rejected", &kept]);
    assert_eq!((code, err.as_str()), (0, "2 accepted, 0 rejected, 0 skipped\n"));
    assert_eq!(std::fs::read(&kept).expect("a file"), b"", "nothing was rejected");
    assert_eq!(
        (shell.case.waiting("b").len(), shell.case.waiting("d")),
        (2, vec!["  5".to_owned(), "last".to_owned()])
    );
}

#[test]
fn a_file_that_cannot_take_what_is_rejected_stops_the_push_and_loses_no_line() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 2\n");
    let file = shell.file("jobs", "1\n2\n3\n4\n");
    let link = shell.home().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    for (to, why) in
        [(link.to_str().expect("a path"), "it is the file that is read"), ("no/such/dir", "cannot write no/such/dir: ")]
    {
        let (code, _, err) = shell.run(&["push", "b", "--file", &file, "--rejected", to]);
        assert!(code == 1 && err.contains(why), "{code} {err}");
        assert!(shell.case.waiting_is_empty("b"), "nothing was pushed");
    }
    assert_eq!(std::fs::read(&file).expect("a file"), b"1\n2\n3\n4\n");
    let (code, _, err) = shell.run(&["push", "b", "--file", &file, "--rejected", "/dev/full"]);
    let expected = "dripd push: cannot write /dev/full: No space left on device (os error 28); \
                    2 accepted, 0 rejected, 0 skipped before that; go on with --from-line 3\n";
    assert_eq!((code, err.as_str()), (1, expected));
    let (code, _, err) = shell.run(&["push", "c", "--file", &file, "--from-line", "3"]);
    assert_eq!((code, err.as_str()), (0, "2 accepted, 0 rejected, 0 skipped\n"));
    assert_eq!(shell.case.waiting("c"), ["3", "4"]);
}

#[test]
fn an_interrupted_push_goes_on_where_it_says_and_pushes_each_line_once() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 3\n[[bucket]]\nmatch = 'rest'\ncapacity = 2\n");
    let (file, kept) = (shell.file("jobs", "1\n\n2\n3\n4\n\n5\n6\n7\n"), shell.file("kept", "before\n"));
    let child = shell.spawn(&["push", "b", "--file", &file, "--wait"]);
    eventually("it is full", || shell.case.waiting("b").len() == 3);
    signal(child.id(), "INT");
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    assert!(code == 130 && err.ends_with("go on with --from-line 5\n"), "{code} {err}");
    let (code, _, err) = shell.run(&["push", "rest", "--file", &file, "--from-line", "5", "--rejected", &kept]);
    assert_eq!((code, err.as_str()), (75, "2 accepted, 2 rejected, 0 skipped\n"));
    assert_eq!(
        (shell.case.waiting("b").join(" "), shell.case.waiting("rest").join(" ")),
        ("1 2 3".into(), "4 5".into())
    );
    assert_eq!(std::fs::read(&kept).expect("a file"), b"before\n6\n7\n", "it goes on, too");
    for bad in ["0", "x", "-1"] {
        let (code, _, err) = shell.run(&["push", "b", "--file", &file, "--from-line", bad]);
        assert!(code == 2 && (bad == "-1" || err.contains("write a whole number, 1 or more")), "{bad}: {code} {err}");
    }
    assert_eq!(shell.run(&["push", "b", "x", "--from-line", "2"]).0, 2, "it is for --file");
}

#[test]
fn a_push_whose_redis_goes_away_says_where_to_go_on() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n");
    let mut child = shell.spawn(&["push", "b", "--file", "-"]);
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"1\n2\n").expect("read");
    eventually("they are in", || shell.case.waiting("b").len() == 2);
    let _: String = shell.case.cmd(&["PING"]); // Redis answers it after it has written the answers before
    drop(server);
    stdin.write_all(b"3\n4\n").expect("read");
    drop(stdin);
    let (code, _, err) = said(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, 1, "{err}");
    assert!(err.ends_with("; 2 accepted, 0 rejected, 0 skipped before that; go on with --from-line 3\n"), "{err}");
}
