//! Where Redis does not report changed queues: they are polled, at a bounded price.

use std::time::{Duration, Instant};

use crate::rig::{Case, Daemon, Server, eventually, test_config};

/// A server whose user for the daemon may do everything but ask for reports, and a case of another one on it.
fn without_tracking(toml: &str) -> (Server, tempfile::TempDir, Case) {
    let server = Server::start(&[]);
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    let acl = ["ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"];
    let _: String = case.cmd(&acl);
    let home = tempfile::tempdir().expect("a directory");
    let text = format!("[redis]\nurl = 'redis://limited:pw@127.0.0.1:{}'\n{toml}", server.port);
    std::fs::write(home.path().join("config.toml"), test_config(&text)).expect("written");
    (server, home, case)
}

/// A figure of one section of INFO, behind its name.
fn figure(case: &mut Case, section: &str, name: &str) -> f64 {
    let info: String = case.cmd(&["INFO", section]);
    let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    let end = line.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(line.len());
    line[..end].parse().expect("a number")
}

fn calls(case: &mut Case, command: &str) -> f64 {
    figure(case, "commandstats", &format!("cmdstat_{command}:calls="))
}

#[test]
fn without_tracking_queues_are_polled_and_the_log_says_so() {
    let (_server, home, mut case) = without_tracking("[defaults]\nrate = '1000/s'\n");
    let daemon = Daemon::start(home.path());
    assert!(daemon.log().contains("queues are polled"), "{}", daemon.log());
    for round in 1..=3 {
        case.lpush("b", &["1"]); // as long as it was when it was last seen, and not scheduled any more
        eventually("it leaves", || case.stream("ready").len() == round);
    }
}

#[test]
fn a_poll_of_few_queues_comes_some_fifty_times_a_second_and_finds_what_is_over_its_capacity() {
    let (_server, home, mut case) = without_tracking("[defaults]\nrate = '1/h'\ncapacity = 3\n");
    let _daemon = Daemon::start(home.path());
    case.lpush("b", &["1", "2"]);
    eventually("the first leaves", || case.stream("ready").len() == 1);
    case.lpush("b", &["3", "4", "5"]);
    eventually("a scheduled queue that grew is cut", || case.waiting("b").len() == 3);
    let tries: Vec<(f64, f64)> = (0..5)
        .map(|_| {
            // The time begins before the first count and ends after the last one.
            let (since, before, mut floor) = (Instant::now(), calls(&mut case, "scan"), 0.0);
            while since.elapsed() < Duration::from_secs(1) {
                // What 20 ms and two round trips come to on this machine now.
                std::thread::sleep(Duration::from_millis(20));
                let _: (String, String) = (case.cmd(&["PING"]), case.cmd(&["PING"]));
                floor += 1.0;
            }
            ((calls(&mut case, "scan") - before) / since.elapsed().as_secs_f64(), floor)
        })
        .collect();
    println!("polls a second, and naps: {tries:?}");
    assert!(tries.iter().all(|(polls, _)| *polls <= 51.0), "never more often than every 20 ms: {tries:?}");
    assert!(tries.iter().any(|(polls, naps)| *polls >= naps / 3.0), "{tries:?}");
}

#[test]
fn thousands_of_idle_queues_that_are_polled_cost_no_core() {
    let (_server, home, mut case) = without_tracking("[defaults]\nrate = '1/h'\n");
    let mut pipe = redis::pipe();
    for n in 0..3_000 {
        pipe.cmd("LPUSH").arg(case.queue(&format!("b{n}"))).arg(&["now", "in an hour"]).ignore();
    }
    pipe.exec(&mut case.redis).expect("pushed");
    let _daemon = Daemon::start(home.path());
    let schedule = case.key("schedule");
    eventually("all are scheduled", || case.cmd::<u64>(&["ZCARD", &schedule]) == 3_000);
    let ready = case.key("ready");
    eventually("the first jobs have left", || case.cmd::<u64>(&["XLEN", &ready]) == 3_000);
    // A queue is news to the first round that sees it as it is; the second one finds nothing new.
    let settled = calls(&mut case, "scan") + 15.0; // three rounds of four pages, and some
    eventually("rounds have seen them as they are", || calls(&mut case, "scan") >= settled);
    let cpu = |case: &mut Case| figure(case, "cpu", "used_cpu_user:") + figure(case, "cpu", "used_cpu_sys:");
    // On a busy machine the walk over what was pushed may still go on: the best of some windows counts.
    let mut windows = Vec::new();
    let is_idle = |&(share, functions): &(f64, f64)| share < 0.1 && functions < 10.0;
    while windows.len() < 5 && !windows.last().is_some_and(is_idle) {
        let (since, used, functions) = (Instant::now(), cpu(&mut case), calls(&mut case, "fcall"));
        std::thread::sleep(Duration::from_secs(4));
        let took = since.elapsed().as_secs_f64();
        windows.push(((cpu(&mut case) - used) / took, (calls(&mut case, "fcall") - functions) / took));
    }
    println!("how busy Redis was, and calls of functions a second: {windows:?}");
    assert!(windows.last().is_some_and(is_idle), "busy Redis, calls of functions a second: {windows:?}");
}

#[test]
fn a_retry_that_ends_early_is_found_though_nothing_is_reported() {
    let (_server, home, mut case) = without_tracking("[defaults]\nrate = '1000/s'\n");
    let _daemon = Daemon::start(home.path());
    case.lpush("b", &["1"]);
    eventually("it leaves", || case.stream("ready").len() == 1);
    let entry = case.take("ready", 1).remove(0);
    let args = [entry.id.as_str(), "RETRY_IN", "100"];
    assert_eq!(case.fcall::<i64>("drip_fail", &["ready"], &args), 1);
    eventually("it leaves again", || case.jobs("ready") == ["1"] && case.stream("ready")[0].number("attempt") == 2);
}
