//! A limit of what is in flight that comes while jobs are out: they count, whatever adds it, and nothing leaves before they are counted.

use redis::Value;

use super::explain::{beat, says};
use super::slots::{ack, audit, change, heal, set_slots, start};
use crate::rig::{Case, MS, S, Server, load_library};

const FAST: &str = "[defaults]\nrate = '1000/s'\n[limits]\nmax_ready = 100000\n";
const TREE: &str = "[defaults]\nrate = '1000/s'\n[limits]\nmax_ready = 100000\n[[budget]]\nmatch = 'p'\nrate = '10000/s'\n\
                    [[bucket]]\nmatch = 'a*'\nwithin = 'p'\n[[bucket]]\nmatch = 'b*'\nwithin = 'p'\nroute = 'two'\n";

/// So many jobs of a bucket leave, one after the other.
fn out(case: &mut Case, mut now: u64, bucket: &str, n: usize) -> u64 {
    let before = all(case);
    for _ in 0..n {
        case.push_at(now, bucket, &["x"]);
        case.settle_at(now);
        now += MS;
    }
    assert_eq!(all(case) - before, n);
    now
}

fn all(case: &mut Case) -> usize {
    case.stream("ready").len() + case.stream("ready:two").len()
}

/// `of` jobs wait in a bucket. They leave one by one as jobs in flight are finished, once no more than the limit are out.
#[track_caller]
fn only_what_is_free_leaves(case: &mut Case, mut now: u64, bucket: &str, limit: usize) {
    case.push_at(now, bucket, &["y", "y", "y"]);
    let mut in_flight = all(case);
    assert!(in_flight > limit, "more are out than may be");
    let mut hand: Vec<(&str, crate::rig::Entry)> = Vec::new();
    for stream in ["ready", "ready:two"] {
        if case.cmd::<i64>(&["EXISTS", &case.key(stream).clone()]) == 1 {
            hand.extend(case.take(stream, 100).into_iter().map(|entry| (stream, entry)));
        }
    }
    while in_flight >= limit {
        now += 10 * MS;
        case.settle_at(now);
        assert_eq!(all(case), in_flight, "{bucket}: {in_flight} are out, and {limit} may be");
        let (stream, entry) = hand.pop().expect("one of them");
        assert_eq!(ack(case, now, stream, &[&entry]), 1);
        in_flight -= 1;
    }
    now += 10 * MS;
    case.settle_at(now);
    assert_eq!(all(case), limit, "{bucket}: as many as may");
    audit(case, now);
}

#[test]
fn jobs_in_flight_count_for_a_limit_that_is_set_for_their_bucket() {
    for is_waiting in [true, false] {
        let mut case = Case::with(FAST);
        let now = start(&mut case);
        let now = out(&mut case, now, "k", 4);
        case.take("ready", 2); // two with a worker, and two that nobody has read
        if is_waiting {
            case.push_at(now, "k", &["w"]);
        }
        set_slots(&mut case, now, "k", 2);
        case.settle_at(now + MS);
        let facts: Vec<Value> = case.fcall("drip__explain", &["queue:k"], &[(now + MS).to_string()]);
        let facts: String = redis::from_redis_value(facts[1].clone()).expect("facts");
        assert!(facts.contains(r#""taken":4"#), "all four count: {facts}");
        audit(&mut case, now + MS);
        let taken = case.take("ready", 2);
        case.settle_at(now + 20 * MS);
        assert_eq!(all(&mut case), 4);
        ack(&mut case, now + 20 * MS, "ready", &taken.iter().collect::<Vec<_>>());
        case.push_at(now + 20 * MS, "k", &["v"]);
        case.settle_at(now + 30 * MS);
        assert_eq!(all(&mut case), 2, "two are with a worker, and two may be out");
        audit(&mut case, now + 30 * MS);
    }
}

#[test]
fn jobs_in_flight_count_whatever_adds_the_limit() {
    type Adds = fn(&mut Case, u64);
    let reload: Adds = |case, now| {
        let toml = format!("{FAST}[[bucket]]\nmatch = 'k'\nconcurrency = 2\n");
        assert_eq!(case.configure_at(&now.to_string(), &toml), 1);
    };
    let defaults: Adds = |case, now| {
        let toml = "[defaults]\nrate = '1000/s'\nconcurrency = 2\n[limits]\nmax_ready = 100000\n";
        assert_eq!(case.configure_at(&now.to_string(), toml), 1);
    };
    let ways: [(&str, Adds); 4] = [
        ("a name", |case, now| set_slots(case, now, "k", 2)),
        ("a glob", |case, now| set_slots(case, now, "k*", 2)),
        ("a reload", reload),
        ("a reload of the defaults", defaults),
    ];
    for (_, adds) in ways {
        for is_waiting in [false, true] {
            let mut case = Case::with(FAST);
            let now = start(&mut case);
            let mut now = out(&mut case, now, "k", 5);
            if is_waiting {
                case.push_at(now, "k", &["y"]);
                case.push_at(now, "other", &["y"; 50]);
            } else {
                now += 20 * S;
                case.settle_at(now);
            }
            adds(&mut case, now);
            let key = case.queue("other");
            let _: i64 = case.cmd(&["DEL", &key]);
            only_what_is_free_leaves(&mut case, now, "k", 2);
        }
    }
}

#[test]
fn jobs_in_flight_count_for_a_limit_that_is_added_to_a_budget_above_them_on_whatever_route_they_are() {
    type Adds = fn(&mut Case, u64);
    let reload: Adds = |case, now| {
        let toml = TREE.replace("rate = '10000/s'\n", "rate = '10000/s'\nconcurrency = 3\n");
        assert_eq!(case.configure_at(&now.to_string(), &toml), 1);
    };
    let ways: [Adds; 3] =
        [|case, now| set_slots(case, now, "{p}", 3), |case, now| set_slots(case, now, "{p*}", 3), reload];
    for adds in ways {
        for bucket in ["a1", "a7", "b1"] {
            let mut case = Case::with(TREE);
            let now = start(&mut case);
            let now = out(&mut case, now, "a1", 3);
            let now = out(&mut case, now, "b1", 3);
            adds(&mut case, now);
            only_what_is_free_leaves(&mut case, now, bucket, 3);
        }
    }
}

#[test]
fn jobs_in_flight_count_where_a_limit_comes_back_as_a_setting_ends_or_is_taken_away() {
    let limited = format!("{FAST}[[bucket]]\nmatch = 'k*'\nconcurrency = 2\n");
    let none = r#"{"concurrency":{"text":"none","policy":{"concurrency":0}}}"#;
    for (name, is_timed) in [("k", true), ("k", false), ("k*", true), ("k*", false)] {
        let mut case = Case::with(&limited);
        let now = start(&mut case);
        let timed = if is_timed { r#","for_us":10000000"# } else { "" };
        let json = format!(
            r#"{{"what":"set","match":"{name}","is_glob":{},"set":{none}{timed},"by":"me","user":"u"}}"#,
            name.contains('*')
        );
        let _: Value = case.fcall("drip__set", &["policy"], &[now.to_string(), json]);
        case.settle_at(now);
        let mut now = out(&mut case, now, "k", 5);
        if is_timed {
            now += 10 * S;
        } else {
            change(&mut case, now, name, "{}", r#"["concurrency"]"#);
        }
        only_what_is_free_leaves(&mut case, now, "k", 2);
    }
}

/// Two thousand jobs are out. Calls read a part of them each, and other buckets are served meanwhile.
#[test]
fn many_jobs_in_flight_are_counted_in_bounded_calls_and_nothing_leaves_before_that_is_done() {
    for (name, forgets) in [("k", false), ("k*", false), ("k", true), ("k*", true)] {
        let server = Server::start(&[]);
        let mut case =
            Case::on(&server, "[defaults]\nrate = '1000000/s'\ncapacity = 5000\n[limits]\nmax_ready = 100000\n");
        let now = start(&mut case);
        for _ in 0..2 {
            case.push_at(now, "k", &["x"; 1_000]);
        }
        let mut now = now + S;
        while case.stream("ready").len() < 2_000 {
            case.settle_at(now);
            now += MS;
        }
        let taken = case.take("ready", 1_000);
        case.push_at(now, "k", &["y"; 10]);
        set_slots(&mut case, now, name, 1_990);
        beat(&mut case, now);
        let said = says(&mut case, now, "k");
        assert_eq!(
            said.last().map(String::as_str),
            Some(
                "nothing leaves for a moment: k has a new concurrency of 1990, and its jobs in flight are counted first"
            ),
            "{said:?}"
        );
        let (mut calls, mut is_forgotten) = (0, false);
        loop {
            let before = commands(&mut case);
            case.push_at(now, "other", &["z"]);
            let wait = case.drain_at(now).wait_us;
            assert!(commands(&mut case) - before < 2_500, "a call is bounded");
            let ready = case.stream("ready").into_iter().filter(|entry| entry.text("bucket") == "k").count();
            assert_eq!(ready, 2_000, "nothing of it leaves");
            calls += 1;
            if calls == 3 && forgets && !is_forgotten {
                is_forgotten = true;
                load_library(&mut case.redis);
            }
            now += MS;
            if wait != 0 {
                break;
            }
        }
        assert!(calls > 4, "{name}: {calls} calls");
        let inflight = case.key("inflight");
        assert_eq!(case.cmd::<i64>(&["ZLEXCOUNT", &inflight, "[k\n", "(k\u{b}"]), 2_000, "all of them count");
        assert!(case.stream("ready").iter().any(|entry| entry.text("bucket") == "other"), "others go on");
        ack(&mut case, now, "ready", &taken[..12].iter().collect::<Vec<_>>());
        now += 10 * MS;
        case.settle_at(now);
        let ready = case.stream("ready").into_iter().filter(|entry| entry.text("bucket") == "k").count();
        assert_eq!(ready, 1_990, "two of them");
        audit(&mut case, now);
    }
}

fn commands(case: &mut Case) -> i64 {
    let info: String = case.cmd(&["INFO", "commandstats"]);
    let calls = info.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<i64>().ok());
    calls.sum::<i64>()
}

#[test]
fn a_limit_that_only_changes_and_a_limit_of_others_are_not_counted_anew() {
    let mut case = Case::with(&format!("{FAST}[[bucket]]\nmatch = 'k'\nconcurrency = 5\n"));
    let now = start(&mut case);
    let now = out(&mut case, now, "other", 4);
    set_slots(&mut case, now, "k", 3);
    case.settle_at(now);
    let left: Vec<String> = case.keys().into_iter().filter(|key| key == "slots" || key == "uncounted").collect();
    assert_eq!(left, Vec::<String>::new(), "nothing is counted");
    set_slots(&mut case, now, "other", 3);
    case.settle_at(now);
    change(&mut case, now, "other", "{}", r#"["concurrency"]"#);
    change(&mut case, now, "k", "{}", r#"["concurrency"]"#);
    case.settle_at(now);
    heal(&mut case, now + 20 * S);
    let left: Vec<String> = case.keys().into_iter().filter(|key| key == "uncounted").collect();
    assert_eq!(left, Vec::<String>::new(), "no trace of the count is left");
    let policy = case.key("policy");
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "brakes"]), None);
    audit(&mut case, now + 20 * S);
}

#[test]
fn a_name_of_a_budget_that_a_template_makes_too_long_or_empty_lets_nothing_out_and_is_refused_by_name() {
    let long = "x".repeat(190);
    let cases = [
        ("[[bucket]]\nmatch = 't:*'\nwithin = 'account:of:{1}'\n", format!("t:{long}"), "201 bytes"),
        ("[[bucket]]\nmatch = 't:*'\nwithin = '{1}:{1}'\n", format!("t:{long}"), "381 bytes"),
        ("[[bucket]]\nmatch = 't:*'\nwithin = '{1}'\n", "t:".to_owned(), "0 bytes"),
        (
            "[[bucket]]\nmatch = 't:*'\nwithin = 'b:{1}'\n[[budget]]\nmatch = 'b:*'\nwithin = 'account:of:{1}'\nconcurrency = 1\n",
            format!("t:{long}"),
            "201 bytes",
        ),
    ];
    for (toml, bucket, bytes) in cases {
        let mut case =
            Case::with(&format!("[defaults]\nrate = '1000/s'\n{toml}[[budget]]\nmatch = '*'\nconcurrency = 1\n"));
        let now = start(&mut case);
        let args = [now.to_string(), "x".to_owned()];
        let why = case.try_fcall::<Value>("drip__push", &[&format!("queue:{bucket}")], &args);
        let why = why.expect_err("refused").to_string();
        assert!(why.contains("BADBUCKET") && why.contains(bytes), "{why}");
        let args = [now.to_string(), "x".to_owned(), "ID".to_owned(), "1".to_owned()];
        let why = case.try_fcall::<Value>("drip__submit", &[&format!("queue:{bucket}")], &args);
        assert!(why.expect_err("refused").to_string().contains("BADBUCKET"));
        case.lpush(&bucket, &["1", "2"]);
        case.wake_at(now, &[&bucket]);
        case.settle_at(now + S);
        assert_eq!(case.stream("ready").len(), 0, "nothing leaves");
        assert_eq!(case.waiting(&bucket).len(), 2, "and nothing is lost");
        beat(&mut case, now + S);
        let said = says(&mut case, now + S, &bucket);
        assert!(said.last().expect("a sentence").contains(bytes), "{said:?}");
        audit(&mut case, now + S);
    }
}

#[test]
fn a_name_of_a_budget_of_200_bytes_keeps_its_limit_whatever_the_pass_looks_at() {
    let bucket = format!("t:{}", "x".repeat(189));
    let mut case = Case::with(
        "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 't:*'\nwithin = 'account:of:{1}'\n[[budget]]\nmatch = '*'\nconcurrency = 1\n",
    );
    let now = start(&mut case);
    case.push_at(now, &bucket, &["1", "2"]);
    case.settle_at(now);
    heal(&mut case, now + 11 * S);
    case.settle_at(now + 12 * S);
    assert_eq!(case.stream("ready").len(), 1, "one at a time");
    audit(&mut case, now + 12 * S);
}
