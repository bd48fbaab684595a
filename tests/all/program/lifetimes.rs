//! Somebody uses `EXPIRE` on keys of dripd: a daemon takes that back, and says so by each key; what was gone before it could is said too.

use super::Shell;
use crate::rig::{Daemon, eventually};

#[test]
fn a_time_to_live_on_any_key_is_taken_away_within_seconds_said_and_counted() {
    let mut shell = Shell::new("[defaults]\nrate = '1/h'\n[[bucket]]\nmatch = 'quick'\nrate = '2/s'\n");
    let daemon = Daemon::start(shell.home());
    shell.case.lpush("slow:a", &["1", "2", "3"]);
    eventually("one has left", || shell.case.jobs("ready") == ["1"]);
    // All keys, as an operator's script does it; and a queue, which would be gone within a second.
    let keys: Vec<String> = shell.case.keys().iter().map(|key| shell.case.key(key)).collect();
    let queue = shell.case.queue("slow:a");
    for key in keys.iter().filter(|key| !key.contains("daemons")) {
        let seconds = if *key == queue { "1" } else { "20" };
        assert_eq!(shell.case.cmd::<i64>(&["EXPIRE", key, seconds]), 1, "{key}");
    }
    eventually("no key ends by itself", || {
        keys.iter().all(|key| key.contains("daemons") || shell.case.cmd::<i64>(&["TTL", key]) == -1)
    });
    assert_eq!(shell.case.waiting("slow:a").len(), 2);
    for key in keys.iter().filter(|key| !key.contains("daemons")) {
        eventually("the log names it", || daemon.log().contains(key.as_str()));
    }
    assert!(daemon.log().contains("had a time to live"), "{}", daemon.log());
    eventually("it is counted", || shell.must_run(&["status", "--json"]).contains("\"lifetimes_removed\":"));
    // What is gone is gone, and said.
    shell.case.lpush("quick", &["1", "2", "3", "4"]);
    eventually("one has left", || shell.case.jobs("ready").len() >= 2);
    let queue = shell.case.queue("quick");
    shell.case.cmd::<i64>(&["DEL", &queue]);
    eventually("its turn comes", || daemon.log().contains("though it had jobs") && daemon.log().contains(&queue));
    eventually("it is counted", || shell.must_run(&["status", "--json"]).contains("\"queues_vanished\":1"));
}
