//! `dripd push --file`: a job a line, of any number and any size.

use std::io::Write as _;
use std::time::Duration;

use super::{Shell, proc};
use crate::rig::{Daemon, eventually};

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
    let mut shell = Shell::new("[defaults]\nrate = '100/s'\ncapacity = 10\n");
    let _daemon = Daemon::start(shell.home());
    let file = shell.file("jobs", &format!("{}\n", "x".repeat(1_000)).repeat(200));
    let key = shell.case.key("ready");
    let mut child = shell.spawn(&["push", "b", "--file", &file, "--wait"]);
    let pid = child.id();
    let mut written = 0;
    while child.try_wait().expect("a status").is_none() {
        written = written.max(proc(pid, "io", "wchar:").unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
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
