//! The ready window from outside: a real daemon with the configuration that users have, and workers that read with plain `XREADGROUP`. The
//! times of a delivery are those of its worker: after it asked, and before it was answered.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Connection;

use super::Shell;
use crate::rig::{Daemon, MS, S, eventually, server};

/// As users have it.
const WINDOW: &str = "[limits]\nready_window = '250ms'\n";

/// A job in a hand: its bucket, its number, and between which moments it was given.
#[derive(Debug, Clone)]
struct Given {
    bucket: String,
    job: String,
    from: u64,
    to: u64,
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

type Read = Option<Vec<(String, Vec<(String, std::collections::HashMap<String, String>)>)>>;

/// Take jobs one at a time and hold each for a while, until told to stop.
fn work(mut redis: Connection, ready: &str, name: &str, holds: Duration, stop: &AtomicBool, given: &Mutex<Vec<Given>>) {
    while !stop.load(Ordering::Relaxed) {
        let from = now_us();
        let words = ["GROUP", "workers", name, "COUNT", "1", "BLOCK", "50", "STREAMS", ready, ">"];
        let read: Read = redis::cmd("XREADGROUP").arg(&words).query(&mut redis).expect("the group is there");
        let to = now_us();
        for (id, fields) in read.into_iter().flatten().flat_map(|(_, entries)| entries) {
            let left: u64 = fields["at_us"].parse().expect("a time");
            let (bucket, job) = (fields["bucket"].clone(), fields["job"].clone());
            given.lock().expect("no panic").push(Given { bucket, job, from: from.max(left), to });
            std::thread::sleep(holds);
            let done = ["drip_ack", "1", ready, &id];
            redis::cmd("FCALL").arg(&done).exec(&mut redis).expect("acknowledged");
        }
    }
}

/// What workers are given while something goes on, which may look at what they have been given by then.
fn with_workers(
    shell: &Shell,
    workers: usize,
    holds: Duration,
    meanwhile: impl FnOnce(&Mutex<Vec<Given>>),
) -> Vec<Given> {
    let (stop, given, ready) = (AtomicBool::new(false), Mutex::new(Vec::new()), shell.case.key("ready"));
    std::thread::scope(|scope| {
        for n in 0..workers {
            let (redis, ready, stop, given) = (server().connect(), &ready, &stop, &given);
            scope.spawn(move || work(redis, ready, &format!("w{n}"), holds, stop, given));
        }
        meanwhile(&given);
        stop.store(true, Ordering::Relaxed);
    });
    let mut given = given.into_inner().expect("no panic");
    given.sort_by_key(|one| one.from);
    given
}

#[test]
fn after_workers_were_away_a_bucket_reaches_their_hands_no_faster_than_promised() {
    let mut shell = Shell::new(&format!("{WINDOW}[defaults]\nrate = '10/s'\ncapacity = 100000\n"));
    let _daemon = Daemon::start(shell.home());
    let jobs: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    shell.case.lpush("a", &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("the oldest job is too old", || shell.must_run(&["explain", "a"]).contains("held: a waits since"));
    std::thread::sleep(Duration::from_secs(4)); // the time that workers are away is what this is about
    // Three seconds, in naps as long as a job takes at its rate: a machine that stands still holds up both.
    let given = with_workers(&shell, 5, Duration::ZERO, |_| {
        (0..30).for_each(|_| std::thread::sleep(Duration::from_millis(100)));
    });
    assert!(given.len() >= 20, "then it goes on at its rate: {}", given.len());
    for (i, one) in given.iter().enumerate() {
        for (j, other) in given.iter().enumerate().skip(i) {
            let (n, w) = ((j - i + 1) as u64, other.to.max(one.from) - one.from);
            let most = 2 + 270 * MS * 10 / S + (w + 20 * MS) * 10 / S;
            assert!(n <= most, "{n} in {w} us, at most {most}");
        }
    }
    let status = shell.must_run(&["status"]);
    assert!(status.contains("route       default: "), "{status}");
}

#[test]
fn beside_a_flood_every_job_of_a_quiet_bucket_is_soon_in_a_hand() {
    let mut shell = Shell::new(&format!("{WINDOW}[defaults]\nrate = '1000/s'\ncapacity = 1000000\n"));
    let _daemon = Daemon::start(shell.home());
    for _ in 0..5 {
        shell.case.lpush("flood", &["x"; 1_000]);
    }
    let mut pushed = Vec::new();
    let mut redis = server().connect();
    let queue = shell.case.queue("quiet");
    let given = with_workers(&shell, 1, Duration::from_millis(10), |given| {
        for n in 0..5 {
            std::thread::sleep(Duration::from_secs(1)); // a job a second is what this is about
            let mut push = redis::pipe();
            push.atomic().cmd("TIME").cmd("LPUSH").arg(&queue).arg(n);
            let ((seconds, micros), _): ((u64, u64), u64) = push.query(&mut redis).expect("pushed");
            pushed.push(seconds * S + micros);
        }
        let of_quiet = || given.lock().expect("no panic").iter().filter(|one| one.bucket == "quiet").count();
        let since = Instant::now();
        while of_quiet() < 5 && since.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let taken = given.len() as u64;
    let quiet: Vec<&Given> = given.iter().filter(|one| one.bucket == "quiet").collect();
    assert_eq!(quiet.len(), 5, "beside {taken} others");
    // A round of turns and what the limit holds. How long that takes depends on how busy the machine is; how many jobs it is does not.
    for one in quiet {
        let since = pushed[one.job.parse::<usize>().expect("a number")];
        let before =
            given.iter().filter(|other| other.bucket == "flood" && (since..=one.to).contains(&other.to)).count();
        assert!(before <= 40, "{before} jobs of the flood came before it, in {} us", one.to - since);
    }
    // The last worker may have made room a moment ago; then the flood is due, and held again as soon as the room is filled.
    eventually("the flood is held", || {
        shell.must_run(&["explain", "flood"]).lines().last().is_some_and(|line| line.starts_with("held: "))
    });
    let route =
        &serde_json::from_str::<serde_json::Value>(&shell.must_run(&["status", "--json"])).expect("JSON")["routes"][0];
    assert!(route["says"].as_str().is_some_and(|says| says.contains("of route default")), "{route}");
    assert!(route["held"].as_u64() >= Some(1) && route["limit"].as_u64() <= Some(100), "{route}");
}

#[test]
fn a_window_that_cannot_be_is_refused_by_every_command_with_the_way_out() {
    for (toml, says) in [
        (
            "[limits]\nready_window = '0s'\n",
            "limits.ready_window: \"0s\" is not allowed; write a whole number and a unit",
        ),
        (
            "[limits]\nready_window = '2h'\n",
            "limits.ready_window: \"2h\" is not allowed; write a whole number and a unit",
        ),
        ("[limits]\nready_window = -1\n", "limits.ready_window: -1 is not allowed; write a whole number and a unit"),
        (
            "[[budget]]\nmatch = 'b'\nrate = '1/s'\nready_window = '1s'\n",
            "budget[1].ready_window: it belongs to a route, whose workers are behind or are not; write it in [limits]",
        ),
    ] {
        let shell = Shell::new("");
        let file = shell.file("bad.toml", toml);
        let (code, _, err) = shell.run(&["check", &file]);
        assert_eq!((code, err.lines().count()), (78, 2), "{err}");
        assert!(err.contains(says), "{err}");
    }
    let shell = Shell::new("");
    let (code, _, err) = shell.run(&["set", "b", "ready_window=1s"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("ready_window: it belongs to a route"), "{err}");
}
