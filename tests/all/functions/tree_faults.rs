//! Faults in the middle of a tree: a clock that steps back while children wait for a share, a damaged key below a busy budget. Each
//! is a sequence that went wrong once.

use serde_json::json;

use super::flow::{ack_at, audit, jobs, left, run, set_at, unset_at};
use super::slots::heal;
use crate::rig::{Case, MS, S, Server, T0};

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

/// Braces as in a hash tag: the name of such a queue is the id of the budget.
#[test]
fn a_list_with_the_name_of_a_budget_stops_neither_the_budget_nor_what_is_below_it() {
    let mut case =
        Case::with("[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[bucket]]\nmatch = 'a*'\nwithin = 'p'\nrate = '1000/s'\n");
    case.lpush("{p}", &["astray"]);
    case.push_at(T0, "a1", &["1", "2", "3"]);
    case.push_at(T0, "a2", &["1", "2", "3"]);
    for n in 0..6 {
        let now = T0 + n * 100 * MS;
        case.settle_at(now);
        assert_eq!(case.stream("ready").len() as u64, n + 1, "one in 100 ms");
        audit(&mut case);
    }
    let astray = case.queue("{p}");
    assert_eq!(case.cmd::<u64>(&["LLEN", &astray]), 1, "nobody touches it");
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

/// What is stored of a budget is lost while it waits for its share.
#[test]
fn a_budget_of_which_the_line_is_lost_has_its_turn_where_it_is_found() {
    let mut case = Case::with(
        "[limits]\nmax_ready = 100000\n[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[budget]]\nmatch = 'c'\nrate = '100/s'\nwithin = 'p'\n\
         [[bucket]]\nmatch = 'a*'\nwithin = 'c'\nrate = '1000/s'\n[[bucket]]\nmatch = 'b*'\nwithin = 'p'\nrate = '1000/s'\n",
    );
    let mut now = T0;
    for bucket in ["a1", "a2", "b1"] {
        case.push_at(now, bucket, &["x"; 10]);
    }
    case.settle_at(now);
    let (budgets, waits) = (case.key("budgets"), case.key("wait:p{default}"));
    for lost in [true, false] {
        for _ in 0..6 {
            now += 100 * MS;
            case.settle_at(now);
        }
        assert!(case.cmd::<u64>(&["ZCARD", &waits]) > 1, "{{c}} waits for its share beside b1");
        let _: i64 =
            if lost { case.cmd(&["HDEL", &budgets, "{c}"]) } else { case.cmd(&["HSET", &budgets, "{c}", "garbage"]) };
        now += 300 * MS; // nothing is believed any more
        for _ in 0..8 {
            let reply: Vec<redis::Value> = case.fcall("drip__drain", &["schedule"], &[now.to_string()]);
            let notes: Vec<String> = redis::from_redis_value_ref(&reply[6]).expect("texts");
            assert_eq!(notes, Vec::<String>::new());
            now += 50 * MS;
        }
        case.settle_at(now);
        audit(&mut case);
    }
    run(&mut case, now, now + 10 * S);
    assert_eq!(case.jobs("ready").len(), 30, "each job has left");
}

/// What one server has another has now, as after a failover: nothing but its keys.
pub(super) fn replicate(from: &mut Case, to: &mut Case) {
    for key in to.keys() {
        let key = to.key(&key);
        let _: u64 = to.cmd(&["DEL", &key]);
    }
    for key in from.keys() {
        let key = from.key(&key);
        let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut from.redis).expect("DUMP");
        redis::cmd("RESTORE").arg(&key).arg(0).arg(value).exec(&mut to.redis).expect("RESTORE");
    }
}

#[test]
fn a_server_that_was_a_replica_for_a_while_believes_nothing_of_what_it_remembers() {
    let toml = "[[budget]]\nmatch = 'p'\nrate = '1/10s'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'a'\nrate = '1000/s'\nwithin = 'p'\n\
                [[bucket]]\nmatch = 'plain'\nrate = '1000/s'\n";
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let (mut first, mut second) = (Case::on(&first, toml), Case::on(&second, toml));
    first.push_at(T0, "a", &jobs(1));
    first.settle_at(T0);
    replicate(&mut first, &mut second);
    second.push_at(T0 + 15 * S, "a", &jobs(1));
    second.settle_at(T0 + 15 * S);
    assert_eq!(left(&mut second, "a"), [0, 15 * S]);
    replicate(&mut second, &mut first);
    // The first call that it gets then has nothing to do with the tree.
    first.push_at(T0 + 17 * S, "plain", &["x"]);
    first.settle_at(T0 + 17 * S);
    first.push_at(T0 + 17 * S + MS, "a", &jobs(1));
    first.settle_at(T0 + 17 * S + MS);
    first.settle_at(T0 + 25 * S);
    assert_eq!(left(&mut first, "a"), [0, 15 * S, 25 * S], "ten seconds apart");
    audit(&mut first);
}

/// How long the clock steps back.
const HOUR: u64 = 3_600 * S;

/// Time passes from due to due, and a worker is done at once with whatever leaves. Replies when each job left.
fn works(case: &mut Case, mut now: u64, until: u64) -> Vec<u64> {
    let mut left = Vec::new();
    while now <= until {
        let wait = case.settle_at(now).wait_us;
        let taken = case.take("ready", 100);
        left.extend(taken.iter().map(|entry| entry.number("at_us")));
        if !taken.is_empty() {
            ack_at(case, now, &taken);
            continue;
        }
        now = if wait < 0 { until + 1 } else { now + wait as u64 };
    }
    left
}

/// A budget that paces, one that has a slot, and both.
const BUDGETS: [&str; 3] =
    ["rate = '1/s'\ncatch_up = '0s'", "concurrency = 1", "rate = '1/s'\ncatch_up = '0s'\nconcurrency = 1"];

#[test]
fn a_server_whose_clock_stepped_back_before_another_took_over_believes_nothing_from_before() {
    for (budget, meanwhile) in BUDGETS.iter().flat_map(|budget| ["a push", "a look", "nothing"].map(|it| (budget, it)))
    {
        let toml =
            format!("[[budget]]\nmatch = 'p'\n{budget}\n[[bucket]]\nmatch = 'a*'\nwithin = 'p'\nrate = '1000/s'\n");
        let servers = [Server::start(&[]), Server::start(&[])];
        let [mut first, mut second] = [0, 1].map(|n| Case::on(&servers[n], &toml));
        let began = T0 + 2 * HOUR;
        first.push_at(began, "a1", &jobs(3));
        assert_eq!(first.settle_at(began).dispatched, 1, "and two wait for the budget");
        let back = began - HOUR;
        match meanwhile {
            "a push" => drop(first.push_at(back, "a2", &["x"])),
            "a look" => drop(first.peek_at(back, "a1")),
            _ => {}
        }
        replicate(&mut first, &mut second);
        works(&mut second, back, back + 20 * S);
        assert!(second.waiting_is_empty("a1"), "{budget}: all of it has left");
        replicate(&mut second, &mut first);
        let now = back + 60 * S;
        first.push_at(now, "a1", &["y"]);
        first.push_at(now, "a2", &["z"]);
        let left = works(&mut first, now, now + 10 * S);
        let apart = if budget.contains("rate") { S } else { 0 };
        assert_eq!(left, [now, now + apart], "{budget}, {meanwhile}");
        audit(&mut first);
    }
}

/// Two levels of budgets, and jobs at all of them: {p} is scheduled, {c} and b1 wait for it, a1 and a2 wait for {c}.
fn two_levels() -> (Case, u64) {
    let mut case = Case::with(
        "[limits]\nmax_ready = 100000\n[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[budget]]\nmatch = 'c'\nrate = '100/s'\nwithin = 'p'\n\
         [[bucket]]\nmatch = 'a*'\nwithin = 'c'\nrate = '1000/s'\n[[bucket]]\nmatch = 'b*'\nwithin = 'p'\nrate = '1000/s'\n",
    );
    for bucket in ["a1", "a2", "b1"] {
        case.push_at(T0, bucket, &["x"; 10]);
    }
    case.settle_at(T0);
    (case, T0)
}

#[test]
fn a_pass_puts_back_what_the_hashes_know_and_no_set_has() {
    let lost: [&[&str]; 9] = [
        &["ZREM schedule {p}"],
        &["DEL wait:p{default}"],
        &["DEL wait:c{default}"],
        &["DEL schedule", "DEL wait:p{default}", "DEL wait:c{default}"],
        &["DEL schedule", "DEL budgets"],
        &["DEL schedule", "DEL budgets", "DEL wait:c{default}"],
        &["HDEL budgets {c}", "DEL wait:p{default}"],
        &["DEL paused"],
        &["DEL paused", "DEL wait:p{default}"],
    ];
    for (lost, is_remembered) in lost.iter().flat_map(|lost| [(lost, true), (lost, false)]) {
        let (mut case, mut now) = two_levels();
        let is_paused = lost[0].contains("paused");
        if is_paused {
            set_at(&mut case, now, "{p}", "pause", "{}");
        }
        for words in *lost {
            let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            words[1] = case.key(&words[1]);
            let _: i64 = case.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
        }
        now += if is_remembered { MS } else { 300 * MS };
        case.wake_at(now, &["a1", "a2", "b1"]); // as a daemon does with all queues, from time to time
        for _ in 0..3 {
            heal(&mut case, now);
            now += 12 * S;
        }
        audit(&mut case);
        if is_paused {
            assert_eq!(case.settle_at(now).dispatched, 0, "{lost:?}: an operator paused it");
            unset_at(&mut case, now, "{p}", "pause");
        }
        run(&mut case, now, now + 5 * S);
        let out = case.stream("ready").len();
        assert_eq!(out, 30, "{lost:?}, remembered: {is_remembered}");
    }
}

#[test]
fn a_pass_over_budgets_goes_on_as_long_as_one_has_work_and_no_longer() {
    let (mut case, now) = two_levels();
    let reply: (i64, i64, redis::Value) = case.fcall("drip__heal", &["policy"], &[now.to_string()]);
    assert!(reply.0 >= 0, "there is something to look at");
    run(&mut case, now, now + 10 * S);
    let reply: (i64, i64, redis::Value) = case.fcall("drip__heal", &["policy"], &[(now + 10 * S).to_string()]);
    assert_eq!(reply.0, -1, "nothing waits, and nothing is in flight that holds a slot");
}

#[test]
fn a_call_writes_all_that_a_thousand_buckets_in_three_budgets_of_their_own_leave_behind() {
    let mut case = Case::with(
        "[defaults]\nrate = '20/s'\n[limits]\nbatch = 1000\n[[bucket]]\nmatch = 'd:*'\nwithin = 'c:{1}'\n\
         [[budget]]\nmatch = 'c:*'\nrate = '5/s'\nwithin = 'b:{1}'\n[[budget]]\nmatch = 'b:*'\nrate = '5/s'\nwithin = 'a:{1}'\n\
         [[budget]]\nmatch = 'a:*'\nrate = '5/s'\n",
    );
    let push = |case: &mut Case, at: u64| {
        for n in 0..1_000 {
            case.push_at(at, &format!("d:{n}"), &["1"]);
        }
    };
    push(&mut case, T0);
    assert_eq!(case.settle_at(T0 + MS).dispatched, 1_000, "and nothing waits any more: all four thousand rest");
    push(&mut case, T0 + 2 * MS);
    assert_eq!(case.settle_at(T0 + 100 * MS).dispatched, 0, "each of them has a budget of 5/s");
    assert_eq!(case.settle_at(T0 + 300 * MS).dispatched, 1_000);
    audit(&mut case);
}

#[test]
fn a_budget_that_comes_back_is_as_good_as_new() {
    // A parent of one job in two seconds, eight busy children, and one more that has a job each minute: its waits are alike.
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\n[[budget]]\nmatch = 'p'\nrate = '1/2s'\n[[budget]]\nmatch = 'c'\nrate = '1/s'\nwithin = 'p'\n\
         [[bucket]]\nmatch = 'x'\nwithin = 'c'\n[[bucket]]\nmatch = 'b*'\nwithin = 'p'\n",
    );
    for n in 0..8 {
        case.push_at(T0, &format!("b{n}"), &jobs(100));
    }
    let (mut now, mut waits) = (T0, Vec::new());
    for minute in 1..6 {
        super::flow::run(&mut case, now, T0 + minute * 60 * S);
        now = T0 + minute * 60 * S + 1;
        case.push_at(now, "x", &["x"]);
        super::flow::run(&mut case, now, now + 30 * S);
        waits.push((left(&mut case, "x").last().expect("it left") - minute * 60 * S) / S);
        now += 30 * S;
    }
    assert!(waits.iter().all(|wait| (15..=19).contains(wait)), "one job of each that waits, and no less: {waits:?}");
}
