//! Told limits from outside, where several daemons and workers serve one Redis.

use super::work_http::Hook;
use super::{Shell, Work};
use crate::rig::{Daemon, eventually};

const TREE: &str = "[defaults]\nrate = '1000/s'\n[limits]\nready_window = 'off'\n[[budget]]\nmatch = 'api'\ntold = 'stop'\n\
                    [[bucket]]\nmatch = 'a:*'\nwithin = 'api'\n";

fn jobs(n: usize) -> Vec<String> {
    (0..n).map(|n| n.to_string()).collect()
}

/// Push jobs into a bucket to which no limit was told, and wait until they have left: whoever dispatches had its turns meanwhile.
fn others_pass(shell: &mut Shell, rounds: usize) {
    for n in 0..rounds {
        let name = format!("other-{n}");
        shell.case.lpush(&name, &["x"; 20]);
        eventually("they leave", || shell.case.waiting_is_empty(&name));
    }
}

/// The jobs of some buckets that have left.
fn left(shell: &mut Shell, prefix: &str) -> usize {
    shell.case.stream("ready").iter().filter(|entry| entry.text("bucket").starts_with(prefix)).count()
}

#[test]
fn what_is_told_holds_for_all_daemons_and_when_one_of_them_is_killed() {
    let mut shell = Shell::new(TREE);
    let (mut first, _second) = (Daemon::start(shell.home()), Daemon::start(shell.home()));
    assert_eq!(
        shell.must_run(&["told", "b", "3", "1h"]),
        "b: 3 more jobs until its limit resets in 60 m; no job waits in a bucket of this name\n"
    );
    assert_eq!(
        shell.must_run(&["told", "api", "4", "1h", "--budget"]),
        "budget api: 4 more jobs until its limit resets in 60 m\n"
    );
    let list = jobs(30);
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    for bucket in ["b", "a:1", "a:2"] {
        shell.case.lpush(bucket, &list);
    }
    others_pass(&mut shell, 5);
    assert_eq!((left(&mut shell, "b"), left(&mut shell, "a:")), (3, 4));
    first.kill();
    others_pass(&mut shell, 5);
    assert_eq!((left(&mut shell, "b"), left(&mut shell, "a:")), (3, 4), "it is kept in Redis");
    let _third = Daemon::start(shell.home());
    assert_eq!(shell.must_run(&["told", "a:1", "9", "1h", "--in", "api"]), {
        "budget api: it changes nothing: less was told before, its reset has passed, or told = \"off\"\n"
    });
    shell.must_run(&["told", "a:1", "clear", "--in", "api"]);
    eventually("all leave below the budget", || left(&mut shell, "a:") == 60);
    assert_eq!(left(&mut shell, "b"), 3, "and of the bucket none");
    shell.must_run(&["told", "b", "clear"]);
    eventually("all leave", || left(&mut shell, "b") == 30);
}

#[test]
fn what_one_worker_reads_of_a_limit_stops_what_the_workers_of_all_daemons_get() {
    let mut shell = Shell::new(TREE);
    let _daemons = (Daemon::start(shell.home()), Daemon::start(shell.home()));
    let hook = Hook::start(|job, _| match job {
        "last" => "200 Fine\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 3600\r\nX-RateLimit-Limit: 50",
        _ => "200 Fine",
    });
    let args = ["--http", &hook.url, "--told-in", "api"];
    let _workers = (Work::start(&shell, &args), Work::start(&shell, &args));
    shell.case.lpush("a:1", &["last"]);
    hook.take(1);
    eventually("it is passed on", || shell.run(&["explain", "a:2"]).1.contains("of 50 jobs are left"));
    shell.case.lpush("a:2", &["waits"]);
    shell.case.lpush("a:1", &["waits too"]);
    shell.case.lpush("b", &["1", "2", "3"]);
    let posts: Vec<String> = hook.take(3).into_iter().map(|post| String::from_utf8(post.job).expect("text")).collect();
    assert!(posts.iter().all(|job| !job.contains("wait")), "{posts:?}");
    assert_eq!((shell.case.waiting("a:1").len(), shell.case.waiting("a:2").len()), (1, 1));
}
