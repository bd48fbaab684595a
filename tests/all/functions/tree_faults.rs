//! Faults in the middle of a tree: a clock that steps back while children wait for a share, a damaged key below a busy budget. Each
//! is a sequence that went wrong once.

use serde_json::json;

use crate::rig::{Case, MS, S, T0};

fn slow(case: &mut Case, now: u64, ms: Option<u64>) {
    let node = match ms {
        Some(ms) => json!({ "node": "{p}", "ms": ms, "by": "me@web1", "user": "default" }),
        None => json!({ "node": "{p}", "by": "me@web1", "user": "default" }),
    };
    let _: (i64, i64) = case.fcall("drip__slow_node", &["policy"], &[now.to_string(), node.to_string()]);
}

#[test]
fn a_small_step_of_the_clock_under_children_that_wait_sends_nothing_twice() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\n[[budget]]\nmatch = 'p'\nrate = '1000/s'\n[[bucket]]\nmatch = 'a*'\nwithin = 'p'\nrate = '1000/s'\n\
         [[bucket]]\nmatch = 'k*'\nconcurrency = 50\n",
    );
    let mut now = T0;
    for _ in 0..20 {
        now += 50 * MS;
        case.settle_at(now);
    }
    slow(&mut case, now, Some(5_000));
    now += 100 * MS;
    case.push_at(now, "a1", &["1"]);
    case.push_at(now, "a2", &["2"]);
    case.settle_at(now);
    now -= 600;
    slow(&mut case, now, None);
    case.settle_at(now);
    now += 3 * S;
    case.push_at(now, "k1", &["k0", "k1", "k2", "k3", "k4"]);
    case.push_at(now, "c1", &["c0", "c1", "c2", "c3", "c4"]);
    for _ in 0..100 {
        case.settle_at(now);
        now += 200 * MS;
    }
    let mut left = case.jobs("ready");
    left.sort();
    assert_eq!(left, ["1", "2", "c0", "c1", "c2", "c3", "c4", "k0", "k1", "k2", "k3", "k4"], "each once");
    let at: Vec<u64> = case
        .stream("ready")
        .iter()
        .filter(|entry| entry.text("bucket") == "c1")
        .map(|entry| entry.number("at_us"))
        .collect();
    assert!(at.windows(2).all(|two| two[1] - two[0] >= S - 200 * MS), "at its rate: {at:?}");
}

#[test]
fn a_damaged_key_below_a_busy_budget_stops_nobody_else_though_another_budget_came_to_rest() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[budget]]\nmatch = 'q'\nconcurrency = 50\n\
         [[bucket]]\nmatch = 'a*'\nwithin = 'p'\nrate = '1000/s'\n[[bucket]]\nmatch = 'b*'\nwithin = 'q'\nrate = '1000/s'\n",
    );
    let mut now = T0;
    case.push_at(now, "b1", &["x"]);
    for n in 1..6 {
        let jobs: Vec<String> = (0..5).map(|k| format!("{n}.{k}")).collect();
        case.push_at(now, &format!("a{n}"), &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for _ in 0..10 {
        case.settle_at(now);
        now += 100 * MS;
    }
    case.push_at(now, "b1", &["y"]);
    for _ in 0..5 {
        case.settle_at(now);
        now += 50 * MS;
    }
    let (retry, retries) = (case.key("retry:a5"), case.key("retries"));
    let _: String = case.cmd(&["SET", &retry, "odd"]);
    let _: i64 = case.cmd(&["ZADD", &retries, &now.to_string(), "a5"]);
    for _ in 0..60 {
        now += 50 * MS;
        case.settle_at(now);
    }
    let left = case.jobs("ready");
    for n in 1..5 {
        let of: Vec<&String> = left.iter().filter(|job| job.starts_with(&format!("{n}."))).collect();
        assert_eq!(of.len(), 5, "a{n} goes on, each job once: {left:?}");
    }
}
