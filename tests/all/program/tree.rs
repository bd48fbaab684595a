//! Faults in the middle of a saturated tree: daemons that are killed, a flush, reloads that move buckets between budgets, and budgets
//! that are removed. Nobody is stuck, nothing is lost, and every rate holds, checked from the stream alone.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use crate::program::daemon::home;
use crate::rig::{Case, Daemon, Entry, MS, Server, dripd, eventually, server};
use crate::shell::configure;

/// Three accounts with three senders each: 40/s for all of them, 20/s an account, 15/s a sender. So the tree is always saturated.
const TREE: &str = "[defaults]\nrate = '15/s'\ncapacity = 10000\n[[budget]]\nmatch = 'p'\nrate = '40/s'\n\
                    [[budget]]\nmatch = 'p:*'\nrate = '20/s'\nwithin = 'p'\n[[bucket]]\nmatch = 'p:*:*'\nwithin = 'p:{1}'\n";
const BUCKETS: [&str; 9] = ["p:a:1", "p:a:2", "p:a:3", "p:b:1", "p:b:2", "p:b:3", "p:c:1", "p:c:2", "p:c:3"];

/// What a node may: the interval, and the most lateness that it makes up for, in microseconds.
type Pace = (u64, u64);
const SENDER: Pace = (66_667, 100 * MS);
const ACCOUNT: Pace = (50_000, 50 * MS);
const ROOT: Pace = (25_000, 20 * MS);

/// Promise 1 for the entries that a test picks: no window lets out more than it may.
#[track_caller]
fn keeps(what: &str, entries: &[Entry], is_of_it: impl Fn(&Entry) -> bool, (interval, catch_up): Pace) -> usize {
    let at: Vec<u64> = entries.iter().filter(|entry| is_of_it(entry)).map(|entry| entry.number("at_us")).collect();
    let mut latest = i64::MIN;
    for (n, at) in at.iter().enumerate() {
        let ahead = *at as i64 - n as i64 * interval as i64;
        latest = latest.max(ahead);
        assert!(
            latest - ahead <= catch_up as i64 + 1,
            "{what}: job {n} at {at} comes {} us too early",
            latest - ahead - catch_up as i64
        );
    }
    at.len()
}

/// Every node of the tree keeps its pace.
fn all_keep(entries: &[Entry]) {
    keeps("p", entries, |entry| entry.text("bucket").starts_with("p:"), ROOT);
    for account in ["p:a", "p:b", "p:c"] {
        keeps(account, entries, |entry| entry.text("bucket").starts_with(account), ACCOUNT);
    }
    for bucket in BUCKETS {
        keeps(bucket, entries, |entry| entry.text("bucket") == bucket, SENDER);
    }
}

/// Nothing stands in two places or in none; what is on its way at this moment has a while to arrive.
fn audit(case: &mut Case) {
    let mut wrong = Vec::new();
    eventually("the audit finds nothing", || {
        wrong = case.fcall::<Vec<String>>("drip__audit", &["policy"], &[""]);
        if !wrong.is_empty() {
            println!("{wrong:?}");
        }
        wrong.is_empty()
    });
}

fn fill(case: &mut Case, jobs: usize) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for bucket in BUCKETS {
        let jobs: Vec<String> = (0..jobs).map(|n| format!("{bucket}#{n}")).collect();
        case.lpush(bucket, &jobs.iter().map(String::as_str).collect::<Vec<_>>());
        all.extend(jobs);
    }
    all
}

/// Wait until everything has left, while something is done again and again. Each job left once, those of a bucket in their order.
fn all_leave(case: &mut Case, jobs: &BTreeSet<String>, mut meanwhile: impl FnMut()) -> Vec<Entry> {
    let ready = case.key("ready");
    eventually("all have left", || {
        meanwhile();
        case.cmd::<usize>(&["XLEN", &ready]) == jobs.len()
    });
    let entries = case.stream("ready");
    let left: BTreeSet<String> = entries.iter().map(|entry| entry.text("job")).collect();
    assert_eq!(left, *jobs);
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for entry in &entries {
        let job = entry.text("job");
        let (bucket, n) = job.split_once('#').expect("a number");
        let (n, expected) = (n.parse::<usize>().expect("a number"), last.entry(bucket.to_owned()).or_default());
        assert_eq!(n, *expected, "{bucket}");
        *expected += 1;
    }
    entries
}

/// Reload, and wait until it is live.
fn reload(home: &std::path::Path) {
    let mut command = dripd();
    command.arg("reload").current_dir(home).env("RUNTIME_DIRECTORY", home.join("run"));
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn daemons_that_are_killed_in_a_saturated_tree_keep_every_rate_and_lose_nothing() {
    let mut case = Case::bare();
    let home = home(&case, TREE);
    let mut daemons: Vec<Daemon> = (0..3).map(|_| Daemon::start(home.path())).collect();
    let jobs = fill(&mut case, 30);
    let mut round = 0;
    let entries = all_leave(&mut case, &jobs, || {
        daemons[round % 3].kill();
        daemons[round % 3] = Daemon::spawn(home.path());
        round += 1;
        std::thread::sleep(Duration::from_millis(60)); // one of the three is always away
    });
    all_keep(&entries);
    audit(&mut case);
}

#[test]
fn after_a_flush_a_tree_begins_anew() {
    let server = Server::start(&[]);
    let home = server.home(TREE);
    let _daemons = [Daemon::start(home.path()), Daemon::start(home.path())];
    let mut case = Case { redis: server.connect(), prefix: "drip".to_owned() };
    for _ in 0..3 {
        let _: String = case.cmd(&["FLUSHALL"]);
        let jobs = fill(&mut case, 6);
        let entries = all_leave(&mut case, &jobs, || {});
        all_keep(&entries);
        audit(&mut case);
        // In the middle of it, too: the daemons know of budgets that are gone.
        fill(&mut case, 6);
        let ready = case.key("ready");
        eventually("some have left", || case.cmd::<usize>(&["XLEN", &ready]) > jobs.len() + 5);
    }
}

#[test]
fn reloads_that_move_buckets_between_budgets_under_load_stop_nobody() {
    let mut case = Case::bare();
    // Each account's senders stand below their own account, or all below the first one, or right below the root.
    let tree = |within: &str| TREE.replace("p:{1}", within);
    let home = home(&case, TREE);
    let _daemons = [Daemon::start(home.path()), Daemon::start(home.path())];
    let jobs = fill(&mut case, 30);
    let same = Case { redis: server().connect(), prefix: case.prefix.clone() };
    let turns = ["p:a", "p", "p:{1}", "p:b", "p:{1}"];
    let mut round = 0;
    let entries = all_leave(&mut case, &jobs, || {
        configure(home.path(), &same, &tree(turns[round % turns.len()]));
        reload(home.path());
        round += 1;
        std::thread::sleep(Duration::from_millis(100)); // some leave between two reloads
    });
    assert!(round > 3, "{round} reloads");
    keeps("p", &entries, |_| true, ROOT);
    for bucket in BUCKETS {
        keeps(bucket, &entries, |entry| entry.text("bucket") == bucket, SENDER);
    }
    audit(&mut case);
}

#[test]
fn a_budget_that_is_removed_while_children_wait_in_it_leaves_nobody_behind() {
    let mut case = Case::bare();
    let home = home(&case, TREE);
    let _daemons = [Daemon::start(home.path()), Daemon::start(home.path())];
    let jobs = fill(&mut case, 40);
    let ready = case.key("ready");
    eventually("some have left", || case.cmd::<usize>(&["XLEN", &ready]) > 20);
    // The accounts are gone, and then the root too; at the end each bucket has its own pace only.
    let without = TREE.replace("[[budget]]\nmatch = 'p:*'\nrate = '20/s'\nwithin = 'p'\n", "").replace("p:{1}", "p");
    assert_eq!(without.matches("[[budget]]").count(), 1);
    for toml in [without.as_str(), "[defaults]\nrate = '15/s'\ncapacity = 10000\n"] {
        configure(home.path(), &case, toml);
        reload(home.path());
        audit(&mut case);
        let before = case.cmd::<usize>(&["XLEN", &ready]);
        let more = jobs.len().min(before + 11);
        eventually("some more leave", || case.cmd::<usize>(&["XLEN", &ready]) >= more);
    }
    let entries = all_leave(&mut case, &jobs, || {});
    for bucket in BUCKETS {
        keeps(bucket, &entries, |entry| entry.text("bucket") == bucket, SENDER);
    }
    audit(&mut case);
    let known = ["policy", "ready", "routes", "stats", "wake", "daemons", "events"];
    eventually("nothing of the budgets is left", || case.keys().iter().all(|key| known.contains(&key.as_str())));
}

#[test]
fn a_bucket_whose_budget_is_missing_is_named_in_the_log_with_the_way_out_and_a_reload_lets_it_go_on() {
    let mut case = Case::bare();
    let toml =
        "[[budget]]\nmatch = 'p:a*'\nrate = '100/s'\n[[bucket]]\nmatch = 'p:*:*'\nrate = '100/s'\nwithin = 'p:{1}'\n";
    let home = home(&case, toml);
    let daemon = Daemon::start(home.path());
    case.lpush("p:b:1", &["1"]);
    eventually("it is named", || daemon.log().contains("p:b:1"));
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("p:b:1")).expect("it is there");
    assert!(line.contains("no [[budget]] matches p:b") && line.contains("add a [[budget]] that matches"), "{line}");
    assert_eq!(case.waiting("p:b:1"), ["1"], "its job stays");
    configure(home.path(), &case, &toml.replace("p:a*", "p:*"));
    daemon.signal("HUP");
    eventually("it leaves", || case.jobs("ready") == ["1"]);
}
