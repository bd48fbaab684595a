//! Limits of what is in flight that change while jobs are out, what a flood of acks costs, and keys that somebody overwrote.

use super::slots::{ack, audit, busy, change, fail, heal, heal_all, set_slots, start, wakes};
use crate::rig::{Case, MS, S, Server};

#[test]
fn a_limit_that_is_lowered_lets_run_what_runs_and_one_that_is_raised_wakes_at_once() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nconcurrency = 4\n[[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'p'\n",
    );
    let now = start(&mut case);
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    for bucket in names {
        case.push_at(now, bucket, &["1"]);
    }
    assert_eq!(case.settle_at(now).dispatched, 4);
    let taken = case.take("ready", 10);
    set_slots(&mut case, now, "{p}", 2);
    audit(&mut case, now);
    assert_eq!(ack(&mut case, now, "ready", &[&taken[0], &taken[1]]), 2);
    assert_eq!(case.settle_at(now).dispatched, 0, "two run, and no more may");
    assert_eq!(ack(&mut case, now, "ready", &[&taken[2]]), 1);
    assert_eq!(case.settle_at(now).dispatched, 1);
    let said = wakes(&mut case);
    set_slots(&mut case, now, "{p*}", 3);
    set_slots(&mut case, now, "{p}", 3);
    assert!(wakes(&mut case) > said);
    assert_eq!(case.settle_at(now).dispatched, 1);
    audit(&mut case, now);
    // By a reload, with the settings gone.
    change(&mut case, now, "{p}", "{}", r#"["concurrency"]"#);
    change(&mut case, now, "{p*}", "{}", r#"["concurrency"]"#);
    case.settle_at(now);
    audit(&mut case, now);
    assert_eq!(case.stream("ready").len(), 4, "four again");
    case.push_at(now, "h", &["1"]);
    case.settle_at(now);
    assert_eq!(
        case.configure_at(
            &now.to_string(),
            "[[budget]]\nmatch = 'p'\nrate = '1000/s'\n[[bucket]]\nmatch = '*'\nwithin = 'p'\n"
        ),
        1
    );
    case.settle_at(now);
    case.settle_at(now + S);
    assert_eq!(case.stream("ready").len(), 5, "there is no limit any more");
    audit(&mut case, now + S);
}

#[test]
fn a_slot_is_freed_where_it_was_taken_whatever_the_bucket_stands_under_by_then() {
    let toml = |within: &str| {
        format!(
            "[[budget]]\nmatch = 'p'\nconcurrency = 1\n[[budget]]\nmatch = 'q'\nconcurrency = 1\n\
             [[bucket]]\nmatch = 'a'\nrate = '1000/s'\nwithin = '{within}'\n[[bucket]]\nmatch = 'b'\nwithin = 'p'\n"
        )
    };
    let mut case = Case::with(&toml("p"));
    let now = start(&mut case);
    case.push_at(now, "a", &["a1", "a2", "a3"]);
    case.settle_at(now);
    case.push_at(now, "b", &["b1"]);
    case.settle_at(now);
    assert_eq!(case.jobs("ready"), ["a1"]);
    let moved = r#"{"within":{"text":"q","policy":{"within":"q"}}}"#;
    change(&mut case, now, "a", moved, "[]");
    audit(&mut case, now);
    case.settle_at(now + 10 * MS);
    assert_eq!(case.jobs("ready"), ["a1", "a2"], "q has a slot free, p has none");
    let taken = case.take("ready", 10);
    ack(&mut case, now, "ready", &[&taken[0]]);
    case.settle_at(now + 20 * MS);
    assert_eq!(case.jobs("ready"), ["a2", "b1"]);
    // The same by a reload, and back.
    assert_eq!(case.configure_at(&(now + 20 * MS).to_string(), &toml("q")), 1);
    change(&mut case, now + 20 * MS, "a", "{}", r#"["within"]"#);
    case.settle_at(now + 20 * MS);
    ack(&mut case, now + 20 * MS, "ready", &[&taken[1]]);
    case.settle_at(now + 30 * MS);
    assert_eq!(case.jobs("ready"), ["b1", "a3"]);
    audit(&mut case, now + 30 * MS);
}

#[test]
fn what_waits_for_a_slot_goes_when_the_limit_is_not_there_any_more_and_leaves_no_key() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[[bucket]]\nmatch = 'a'\nconcurrency = 1\nrate = '1000/s'\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2", "3"]);
    case.settle_at(now + 10 * MS);
    assert_eq!(case.peek_at(now + 10 * MS, "a")[4], 0, "a slot is reckoned as if it were free now");
    assert_eq!(case.configure_at(&(now + 10 * MS).to_string(), "[defaults]\nrate = '1000/s'\n"), 1);
    case.settle_at(now + 20 * MS);
    case.settle_at(now + 30 * MS);
    assert_eq!(case.jobs("ready"), ["1", "2", "3"]);
    let taken = case.take("ready", 10);
    ack(&mut case, now, "ready", &taken.iter().collect::<Vec<_>>());
    let now = heal_all(&mut case, now);
    case.settle_at(now + 20 * S);
    audit(&mut case, now);
    let known = ["policy", "ready", "routes", "stats", "wake"];
    let left: Vec<String> = case.keys().into_iter().filter(|key| !known.contains(&key.as_str())).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_flood_of_acks_is_one_wake_and_its_cost_does_not_grow_with_what_waits() {
    let server = Server::start(&[]);
    let mut case = Case::on(
        &server,
        "[limits]\nbatch = 1000\n[[budget]]\nmatch = 'p'\nconcurrency = 500\n[[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'p'\n",
    );
    let mut costs = Vec::new();
    let mut now = start(&mut case);
    for waiting in [1_500, 5_000] {
        let mut pipe = redis::pipe();
        for n in 0..waiting {
            pipe.cmd("FCALL")
                .arg("drip__push")
                .arg(1)
                .arg(case.queue(&format!("b{n}")))
                .arg(now.to_string())
                .arg("x")
                .ignore();
        }
        pipe.exec(&mut case.redis).expect("pushed");
        case.settle_at(now);
        assert_eq!(case.stream("ready").len(), 500);
        let taken = case.take("ready", 1_000);
        let (said, before) = (wakes(&mut case), commands(&mut case));
        assert_eq!(ack(&mut case, now, "ready", &taken.iter().collect::<Vec<_>>()), 500);
        costs.push(commands(&mut case) - before);
        assert_eq!(wakes(&mut case), said + 1, "five hundred slots and one wake");
        case.settle_at(now);
        let one = case.take("ready", 1);
        let before = commands(&mut case);
        ack(&mut case, now, "ready", &[&one[0]]);
        costs.push(commands(&mut case) - before);
        while !case.stream("ready").is_empty() {
            let rest = case.take("ready", 1_000);
            if !rest.is_empty() {
                ack(&mut case, now, "ready", &rest.iter().collect::<Vec<_>>());
            }
            now += 10 * MS;
            case.settle_at(now);
        }
        now += S;
    }
    assert_eq!(costs[..2], costs[2..], "commands for 500 at once and for one, with few and with many that wait");
    assert!(costs[1] <= 20, "{costs:?}");
}

/// How many commands the server has run, those of functions too.
fn commands(case: &mut Case) -> i64 {
    let info: String = case.cmd(&["INFO", "commandstats"]);
    let calls = info.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<i64>().ok());
    calls.sum::<i64>()
}

#[test]
fn a_bucket_without_limits_pays_nothing_for_those_of_others() {
    let count = |toml: &str| {
        let server = Server::start(&[]);
        let mut case = Case::on(&server, toml);
        let now = start(&mut case);
        case.push_at(now, "plain", &["1", "2"]);
        case.settle_at(now);
        let before = commands(&mut case);
        case.push_at(now + S, "plain", &["3"]);
        assert_eq!(case.settle_at(now + S).dispatched, 1);
        commands(&mut case) - before
    };
    let limited = "[[budget]]\nmatch = 'p'\nconcurrency = 1\n[[bucket]]\nmatch = 'a'\nwithin = 'p'\nconcurrency = 1\n[[bucket]]\n\
                   match = 'plain'\nrate = '1/s'\n";
    let alone = "[[bucket]]\nmatch = 'plain'\nrate = '1/s'\n";
    assert_eq!(count(limited), count(alone));
}

#[test]
fn while_a_key_of_the_slots_holds_something_else_nothing_leaves_and_nothing_is_lost() {
    for name in ["slots", "inflight", "full"] {
        let (mut case, mut now, taken) = busy();
        let key = case.key(name);
        let _: i64 = case.cmd(&["DEL", &key]);
        let _: String = case.cmd(&["SET", &key, "something else"]);
        case.wake_at(now, &["a", "b"]);
        for _ in 0..40 {
            heal(&mut case, now);
            case.settle_at(now);
            now += 100 * MS;
        }
        assert_eq!(case.stream("ready").len(), 3, "{name}: nothing leaves");
        assert_eq!(case.waiting("a").len() + case.waiting("b").len(), 4, "{name}: nothing is lost");
        let _: i64 = case.cmd(&["DEL", &key]);
        now = heal_all(&mut case, now + 2 * S);
        let mut done = ack(&mut case, now, "ready", &taken.iter().collect::<Vec<_>>());
        for _ in 0..60 {
            case.settle_at(now);
            for entry in case.take("ready", 10) {
                done += ack(&mut case, now, "ready", &[&entry]);
            }
            now += 100 * MS;
            heal(&mut case, now);
        }
        assert_eq!(done, 7, "{name}: it goes on when the key is gone");
        audit(&mut case, now);
    }
}

#[test]
fn a_bucket_that_a_change_leaves_without_a_free_slot_waits_for_one_before_it_is_due() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\nconcurrency = 3\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2", "3"]);
    case.settle_at(now);
    case.settle_at(now + 10 * S);
    assert_eq!(case.stream("ready").len(), 2);
    assert_eq!(case.configure_at(&(now + 10 * S).to_string(), "[defaults]\nrate = '1/10s'\nconcurrency = 2\n"), 1);
    case.settle_at(now + 11 * S);
    let (schedule, full) = (case.key("schedule"), case.key("full"));
    let dues = [schedule, full].map(|key| case.cmd::<Option<u64>>(&["ZSCORE", &key, "a"]));
    assert_eq!(dues, [None, Some(now + 20 * S)]);
    audit(&mut case, now + 11 * S);
}

#[test]
fn a_slow_down_that_frees_a_slot_re_anchors_a_due_once() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\nconcurrency = 1\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2"]);
    case.settle_at(now);
    let entry = case.take("ready", 1).remove(0);
    let later = (now + 5 * MS).to_string();
    assert_eq!(case.configure_at(&later, "[defaults]\nrate = '1/s'\nconcurrency = 1\n"), 1);
    let args = [later.as_str(), &entry.id, "THROTTLED", "RETRY_AFTER", "3000"];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    let args = [(now + 6 * MS).to_string(), "CLEAR".into()];
    let _: (u64, u64) = case.fcall("drip__slow", &["queue:a"], &args);
    assert_eq!(case.due("a"), Some(now + S), "the last job, and an interval");
}

#[test]
fn a_bucket_at_rest_whose_delayed_job_may_leave_waits_for_a_slot_before_it_is_due() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\nconcurrency = 1\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1"]);
    case.settle_at(now);
    case.submit_at(now, "a", "2", &["DELAY", "40"]);
    case.settle_at(now + 50 * MS);
    let (schedule, full) = (case.key("schedule"), case.key("full"));
    let dues = [schedule, full].map(|key| case.cmd::<Option<u64>>(&["ZSCORE", &key, "a"]));
    assert_eq!(dues, [None, Some(now + 10 * S)]);
    let entry = case.take("ready", 1).remove(0);
    ack(&mut case, now + 60 * MS, "ready", &[&entry]);
    assert_eq!(case.due("a"), Some(now + 10 * S));
    case.settle_at(now + 10 * S);
    assert_eq!(case.jobs("ready"), ["2"]);
}

#[test]
fn a_slot_that_is_free_after_the_clock_stepped_back_lets_its_bucket_go_an_interval_from_then_at_the_latest() {
    let mut case = Case::with("[defaults]\nrate = '2/s'\nconcurrency = 1\n");
    let now = start(&mut case);
    case.push_at(now, "a", &["1", "2"]);
    assert_eq!(case.settle_at(now).dispatched, 1);
    let taken = case.take("ready", 1);
    let now = now - 100 * MS;
    assert_eq!(ack(&mut case, now, "ready", &[&taken[0]]), 1);
    assert_eq!(case.due("a"), Some(now + 500 * MS));
    audit(&mut case, now);
}

#[test]
fn who_is_turned_away_as_a_setting_of_its_bucket_has_just_ended_waits_as_long_as_its_rate_says_now() {
    for how in ["THROTTLED", "KEEP"] {
        let mut case = Case::with("[defaults]\nrate = '1/h'\nconcurrency = 1\n");
        let now = start(&mut case);
        let json = r#"{"what":"set","match":"a","is_glob":false,"set":{"rate":{"text":"x","policy":{"count":100,"period_us":1000000}}},"for_us":2000000,"by":"me","user":"u"}"#;
        let _: redis::Value = case.fcall("drip__set", &["policy"], &[&now.to_string(), json]);
        case.push_at(now, "a", &["1", "2"]);
        assert_eq!(case.settle_at(now).dispatched, 1);
        let taken = case.take("ready", 1);
        fail(&mut case, now + 3 * S, "ready", &taken[0], &[how]);
        for ms in [0, 1_000, 2_000, 3_000, 60_000] {
            case.settle_at(now + 3 * S + ms * MS);
        }
        assert!(case.stream("ready").is_empty(), "{how}: an hour after the first one");
        assert_eq!(case.settle_at(now + 3_600 * S).dispatched, 1, "{how}");
        audit(&mut case, now + 3_600 * S);
    }
}
