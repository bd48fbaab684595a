//! Two daemons serve one Redis, and one of them is killed: that costs little, whichever it is.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::program::daemon::home;
use crate::rig::{Case, Daemon, eventually, in_one_of_three, in_time};

/// How late jobs may leave around a kill: those that were scheduled, 99 of 100, and one whose push wakes an idle bucket.
const SCHEDULED: Duration = Duration::from_millis(50);
const WOKEN: Duration = Duration::from_millis(600);

/// What the machine may add to the latter on two busy cores: it is one job, where of the former there are thousands.
const SLACK: Duration = Duration::from_millis(200);

const TOML: &str = "[defaults]\nrate = '20/s'\ncapacity = 5000\n[limits]\nready_window = 'off'\nmax_ready = 1000000\n";
const BUCKETS: usize = 100;

/// Start another daemon, and wait until both know of each other: each has told that it is alive since both were.
fn start_another(case: &mut Case, dir: &Path, of: usize) -> Daemon {
    let daemon = Daemon::start(dir);
    let mut ages = || -> Vec<u128> {
        let all: Vec<(String, String, u64)> = case.fcall("drip__daemons", &["daemons"], &[""]);
        all.into_iter().map(|(_, _, age_ms)| age_ms.into()).collect()
    };
    eventually("all are alive", || ages().len() >= of);
    let since = Instant::now();
    eventually("each has told so since", || {
        ages().into_iter().filter(|age| *age < since.elapsed().as_millis()).count() >= of
    });
    daemon
}

/// How late the entries of the ready stream after the first so many were, the latest first.
fn lateness(case: &mut Case, after: usize) -> Vec<Duration> {
    let late = |entry: &crate::rig::Entry| Duration::from_micros(entry.number("at_us") - entry.number("due_us"));
    let mut all: Vec<_> = case.stream("ready").iter().skip(after).map(late).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

fn left(case: &mut Case) -> usize {
    let ready = case.key("ready");
    case.cmd(&["XLEN", &ready])
}

/// Kill the older, or the younger, of two daemons in turns; another one starts in its place.
fn kill_in_turns(mut then: impl FnMut(&mut Case, &str) -> Result<(), String>) -> Result<(), String> {
    let mut case = Case::new();
    let home = home(&case, TOML);
    let mut both = vec![Daemon::start(home.path())];
    both.push(start_another(&mut case, home.path(), 2));
    for (n, which) in ["the older", "the younger", "the older", "the younger"].into_iter().enumerate() {
        if both.len() < 2 {
            // The killed one counts for alive for a while: with it there are three.
            both.push(start_another(&mut case, home.path(), 2));
        }
        both.remove(n % 2).kill();
        then(&mut case, which)?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_delays_scheduled_jobs_by_little() {
    in_one_of_three(|| {
        let mut begun = false;
        kill_in_turns(|case, which| {
            if !begun {
                for n in 0..BUCKETS {
                    case.lpush(&format!("b{n}"), &vec!["x"; 5_000]);
                }
            }
            begun = true;
            let before = left(case);
            eventually("2,000 more have left", || left(case) >= before + 2_000);
            let late = lateness(case, before);
            println!("{which}: p99 {:?}, p50 {:?}, latest {:?}", late[late.len() / 100], late[late.len() / 2], late[0]);
            in_time(&format!("{which} was killed, 99 of 100 jobs"), late[late.len() / 100], SCHEDULED)
        })
    });
}

#[test]
fn a_daemon_that_is_killed_delays_a_push_that_wakes_a_bucket_by_little() {
    in_one_of_three(|| {
        let mut pushed = 0;
        kill_in_turns(|case, which| {
            let since = Instant::now();
            pushed += 1;
            case.lpush(&format!("idle{pushed}"), &["x"]);
            eventually("it has left", || left(case) == pushed);
            println!("{which}: {:?}", since.elapsed());
            in_time(&format!("{which} was killed, a push"), since.elapsed(), WOKEN + SLACK)
        })
    });
}
