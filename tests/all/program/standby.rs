//! Two daemons serve one Redis, and one of them is killed or hangs: that costs little, whichever it is.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::program::daemon::home;
use crate::rig::{Case, Daemon, eventually, in_one_of_three, in_time, signal};

/// How late jobs may leave around a kill: those that were scheduled, 99 of 100, and one whose push wakes an idle bucket.
const SCHEDULED: Duration = Duration::from_millis(50);
const WOKEN: Duration = Duration::from_millis(600);

/// What the machine may add to the latter on two busy cores: it is one job, where of the former there are thousands.
const SLACK: Duration = Duration::from_millis(200);

/// A push that waits for no other daemon takes less.
const PROMPT: Duration = Duration::from_millis(250);

/// After so long the other daemon has told again that it is alive, and has read who else is.
const AFTER_HEARTBEAT: Duration = Duration::from_secs(6);

const TOML: &str = "[[bucket]]\nmatch = 'slow'\nrate = '1/h'\ncapacity = 5\n[defaults]\nrate = '20/s'\ncapacity = 5000\n[limits]\nready_window = 'off'\nmax_ready = 1000000\n";
const BUCKETS: usize = 100;

/// Wait until so many daemons have told since now that they are alive.
pub(super) fn all_tell(case: &mut Case, of: usize) {
    let since = Instant::now();
    eventually("each has told that it is alive", || {
        let all: Vec<(String, String, u64)> = case.fcall("drip__daemons", &["daemons"], &[""]);
        all.into_iter().filter(|(_, _, age_ms)| u128::from(*age_ms) < since.elapsed().as_millis()).count() >= of
    });
}

/// Start another daemon, and wait until both know of each other: each has told that it is alive, then that it shows its presence, and has
/// read that of the other.
fn start_another(case: &mut Case, dir: &Path) -> Daemon {
    let daemon = Daemon::start(dir);
    for _ in 0..3 {
        all_tell(case, 2);
    }
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
    let mut case = Case::bare();
    let home = home(&case, TOML);
    let mut both = vec![Daemon::start(home.path())];
    both.push(start_another(&mut case, home.path()));
    for (n, which) in ["the older", "the younger", "the older", "the younger"].into_iter().enumerate() {
        if both.len() < 2 {
            // The killed one counts for alive for a while: with it there are three.
            both.push(start_another(&mut case, home.path()));
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
        let mut round = 0;
        kill_in_turns(|case, which| {
            round += 1;
            // The heartbeat of the killed one stays for a while. Nobody waits for it again: at most a push or two on a busy machine.
            let (since, mut longest, mut late) = (Instant::now(), Duration::ZERO, Vec::new());
            while since.elapsed() < AFTER_HEARTBEAT {
                let at = since.elapsed();
                let took = push_to_idle(case, &format!("idle{round}-{}", at.as_micros()));
                if at >= WOKEN && took > PROMPT {
                    late.push((at, took));
                }
                longest = longest.max(took);
                std::thread::sleep(Duration::from_millis(50));
            }
            println!("{which}: {longest:?}, late again {late:?}");
            in_time(&format!("{which} was killed, a push"), longest, WOKEN + SLACK)?;
            if late.len() > 2 {
                return Err(format!("{which} was killed, and pushes waited again: {late:?}"));
            }
            Ok(())
        })
    });
}

/// Push to a bucket that was never used. Replies how long it took until the job left.
fn push_to_idle(case: &mut Case, name: &str) -> Duration {
    let (before, since) = (left(case), Instant::now());
    case.lpush(name, &["x"]);
    eventually("it has left", || left(case) == before + 1);
    since.elapsed()
}

#[test]
fn where_the_daemon_at_work_hangs_one_push_waits_and_another_daemon_does_all_its_work() {
    in_one_of_three(|| {
        let mut case = Case::bare();
        let home = home(&case, TOML);
        let older = Daemon::start(home.path());
        let younger = start_another(&mut case, home.path());
        push_to_idle(&mut case, "slow");
        let (queue, odd) = (case.key("queue:slow"), case.key("queue:odd"));
        let _: () = case.cmd(&["SET", &odd, "no list"]);
        let mut waited = 0;
        for (which, hung) in [("older", &older), ("younger", &younger)] {
            signal(hung.child.id(), "STOP");
            case.lpush("slow", &["x"; 20]);
            let took: Vec<_> = (0..4).map(|n| push_to_idle(&mut case, &format!("{which}{n}"))).collect();
            eventually("what is over the capacity is rejected", || {
                let length: usize = case.cmd(&["LLEN", &queue]);
                length <= 5
            });
            signal(hung.child.id(), "CONT");
            println!("the {which} hangs: {took:?}");
            let late = took.iter().filter(|took| **took > PROMPT).count();
            if late > 1 {
                return Err(format!("the {which} hung, and not only one push waited: {took:?}"));
            }
            waited += late;
            in_time(&format!("the {which} hung, a push"), took.into_iter().max().unwrap_or_default(), WOKEN + SLACK)?;
            for _ in 0..2 {
                all_tell(&mut case, 2);
            }
        }
        assert_eq!(waited, 1, "one of them was at work");
        for daemon in [&older, &younger] {
            assert!(!daemon.log().contains("redis cannot be used"), "{}", daemon.log());
        }
        Ok(())
    });
}
