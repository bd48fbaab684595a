//! Slow-downs: the other side asks for a pause. What is one incident, how long it lasts, who leaves first afterwards, what it does to
//! budgets and to rates, and what is told of it.

use crate::rig::{Case, Entry, MS, S, Server, T0};

use super::flow::{ack_at, at, audit, fail_at, held_ms, jobs, left, run, set_at, slow_at, slow_downs, text, unset_at};

/// A bucket of 10/s that has let `n` jobs out, all with workers, and holds more.
fn busy(toml: &str, n: usize) -> (Case, Vec<Entry>) {
    let mut case = Case::with(toml);
    case.push_at(
        T0,
        "a",
        &(0..100).map(|n| n.to_string()).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(),
    );
    run(&mut case, T0, T0 + (n as u64 - 1) * 100 * MS);
    let taken = case.take("ready", 100);
    assert_eq!(taken.len(), n);
    (case, taken)
}

const PLAIN: &str = "[defaults]\nrate = '10/s'\n";

#[test]
fn ten_workers_at_one_closed_door_are_one_slow_down() {
    crate::roles::as_roles();
    let (mut case, taken) = busy(PLAIN, 10);
    let now = at(1, 0);
    for entry in &taken {
        assert_eq!(fail_at(&mut case, now, entry, &["THROTTLED"]), 1);
    }
    let told = slow_downs(&mut case, now);
    assert_eq!((told.len(), told[0].0.as_str(), &told[0].1["text"]), (1, "a", &"1 incident".into()));
    let held = held_ms(&mut case, now, "a");
    assert!((1_000..=1_100).contains(&held), "the first one lasts 1 s and up to a tenth: {held} ms");
    run(&mut case, now, at(4, 0));
    let all = case.stream("ready");
    assert_eq!(all[0].number("at_us").div_ceil(MS), (now / MS) + held);
    let mut ids: Vec<String> = taken.iter().map(|entry| entry.id.clone()).collect();
    let again: Vec<String> = all[..10].iter().map(|entry| entry.text("id")).collect();
    assert_eq!(again, ids, "those that were turned away leave first, in the order of their first dispatch");
    ids.reverse();
    assert!(
        all[..10].iter().all(|entry| entry.text("attempt") == "1" && entry.text("kept") == "1"),
        "and it does not count"
    );
    assert!(
        all.windows(2).all(|pair| pair[1].number("at_us") - pair[0].number("at_us") == 100 * MS),
        "one an interval"
    );
    assert!(all.iter().all(|entry| entry.number("at_us") == entry.number("due_us")), "the slow-down is no lateness");
}

#[test]
fn those_that_were_turned_away_leave_in_their_order_whoever_was_told_first() {
    let (mut case, mut taken) = busy(PLAIN, 12);
    let ids: Vec<String> = taken.iter().map(|entry| entry.id.clone()).collect();
    let now = at(1, 100);
    let other = taken.remove(3);
    assert_eq!(fail_at(&mut case, now, &other, &["KEEP", "RETRY_IN", "0"]), 1);
    taken.reverse();
    for entry in &taken {
        fail_at(&mut case, now, entry, &["THROTTLED", "RETRY_AFTER", "700"]);
    }
    run(&mut case, now, at(3, 100));
    let mut wanted: Vec<String> = ids;
    let third = wanted.remove(3);
    wanted.push(third);
    let again: Vec<String> = case.stream("ready")[..12].iter().map(|entry| entry.text("id")).collect();
    assert_eq!(again, wanted);
}

#[test]
fn the_ids_that_producers_gave_say_nothing_of_that_order() {
    let mut case = Case::with(PLAIN);
    for id in ["20", "3", "100"] {
        assert_eq!(case.submit_at(T0, "a", "x", &["ID", id]).five[0], 1);
    }
    run(&mut case, T0, at(0, 200));
    for entry in case.take("ready", 3) {
        fail_at(&mut case, at(0, 300), &entry, &["THROTTLED", "RETRY_AFTER", "700"]);
    }
    run(&mut case, at(0, 300), at(2, 0));
    let again: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("id")).collect();
    assert_eq!(again, ["20", "3", "100"]);
}

#[test]
fn a_slow_down_is_only_extended_and_no_longer_than_its_cap() {
    let (mut case, taken) = busy("[defaults]\nrate = '10/s'\nslow = { cap = '30s' }\n", 5);
    let now = at(1, 0);
    for (how, ms) in [("20000", 20_000), ("5000", 20_000), ("25000", 25_000), ("99000", 30_000), ("0", 30_000)] {
        let entry =
            &taken[["20000", "5000", "25000", "99000", "0"].iter().position(|one| *one == how).expect("it is one")];
        fail_at(&mut case, now, entry, &["THROTTLED", "RETRY_AFTER", how]);
        assert_eq!(held_ms(&mut case, now, "a"), ms, "{how}");
    }
    assert_eq!(slow_at(&mut case, now, "a", &["PAUSE", "10"]), (30_000, 1));
    assert_eq!(
        slow_at(&mut case, now + 20 * S, "a", &["PAUSE", "99000"]),
        (30_000, 1),
        "it ends no later than so long from now"
    );
    assert_eq!(slow_at(&mut case, now + 20 * S, "a", &["CLEAR"]), (0, 0));
    run(&mut case, now + 20 * S, now + 20 * S);
    assert_eq!(case.stream("ready").len(), 1, "it goes on now, with one job: the wait earned nothing");
}

#[test]
fn each_incident_lasts_twice_as_long_up_to_the_longest_with_a_jitter_that_can_be_reckoned() {
    let lengths = || {
        let mut case = Case::with("[defaults]\nrate = '1000/s'\nslow = { initial = '2s', max = '20s' }\n");
        case.push_at(T0, "a", &jobs(50));
        let (mut now, mut list) = (T0, Vec::new());
        for _ in 0..7 {
            case.settle_at(now);
            let entry = case.take("ready", 1).remove(0);
            assert_eq!(entry.number("at_us"), now);
            fail_at(&mut case, now, &entry, &["THROTTLED"]); // it left at the end of the last one, so it is a new incident
            list.push(held_ms(&mut case, now, "a") * MS);
            now = case.due("a").expect("it waits");
        }
        list
    };
    let list = lengths();
    for (length, seconds) in list.iter().zip([2, 4, 8, 16, 20, 20, 20]) {
        assert!((seconds * S..=seconds * S * 11 / 10 + MS).contains(length), "{length} for {seconds} s");
    }
    assert_eq!(lengths(), list, "the jitter comes from the time and the name");
    assert_ne!(list[4], list[5], "and is another one each time");
}

#[test]
fn an_incident_is_forgotten_with_an_acknowledged_job_or_after_the_longest_pause() {
    let (mut case, taken) = busy("[defaults]\nrate = '10/s'\nslow = { initial = '1s', max = '60s' }\n", 3);
    let now = at(1, 0);
    fail_at(&mut case, now, &taken[0], &["THROTTLED"]);
    ack_at(&mut case, now + MS, &taken[1..2]); // it left before the slow-down
    run(&mut case, now + MS, at(3, 0));
    let after = case.take("ready", 100);
    fail_at(&mut case, at(3, 0), &taken[2], &["THROTTLED"]);
    assert_eq!(slow_downs(&mut case, at(3, 0)), [], "one that left before a slow-down that is over belongs to that");
    fail_at(&mut case, at(3, 0), &after[0], &["THROTTLED"]);
    assert_eq!(text(&mut case, at(3, 0)), "2 incidents");
    run(&mut case, at(3, 0), at(8, 0));
    let after = case.take("ready", 100);
    ack_at(&mut case, at(8, 0), &after[..1]); // it left after the slow-down
    fail_at(&mut case, at(8, 0), &after[1], &["THROTTLED", "RETRY_AFTER", "5000"]);
    assert_eq!(text(&mut case, at(8, 0)), "1 incident");
    run(&mut case, at(13, 0), at(13, 0));
    let after = case.take("ready", 1);
    fail_at(&mut case, at(72, 900), &after[0], &["THROTTLED"]);
    assert_eq!(text(&mut case, at(72, 900)), "2 incidents");
    run(&mut case, at(75, 0), at(75, 0));
    let after = case.take("ready", 1);
    fail_at(&mut case, at(136, 0), &after[0], &["THROTTLED"]);
    assert_eq!(text(&mut case, at(136, 0)), "1 incident", "a minute after its end");
}

#[test]
fn a_slow_down_leaves_nothing_when_it_is_forgotten() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '10/s'\nslow = { max = '10s' }\n");
    slow_at(&mut case, T0, "idle", &["PAUSE", "5000", "REASON", "it said so"]);
    let policy = case.key("policy");
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "brakes"]).as_deref(), Some("s"));
    case.lpush("idle", &["x"]);
    case.wake_at(at(1, 0), &["idle"]);
    audit(&mut case);
    assert_eq!(case.stream("ready").len(), 0, "a bucket that was idle is slowed down too");
    run(&mut case, at(1, 0), at(5, 0));
    assert_eq!(left(&mut case, "idle"), [5 * S]);
    case.settle_at(at(14, 999));
    assert!(case.keys().contains(&"slow".to_owned()));
    case.settle_at(at(15, 0));
    let settled = ["events", "policy", "ready", "routes", "stats", "wake"];
    let rest: Vec<String> = case.keys().into_iter().filter(|key| !settled.contains(&key.as_str())).collect();
    assert_eq!(rest, Vec::<String>::new());
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "brakes"]), None, "and nobody looks for it any more");
}

const TREE: &str = "[[budget]]\nmatch = 'p'\nrate = '100/s'\n[[budget]]\nmatch = 'p:*'\nconcurrency = 1000\nwithin = 'p'\n\
                    [[bucket]]\nmatch = 'p:*:*'\nrate = '1/h'\nwithin = 'p:{1}'\n[defaults]\nrate = '10/s'\n";

#[test]
fn a_slow_down_of_a_budget_earns_no_child_a_second_job() {
    for (id, slowed) in [("p", "p"), ("p:a", "p:a")] {
        let mut case = Case::with(TREE);
        for n in 0..30 {
            case.push_at(T0, &format!("p:a:{n}"), &jobs(3));
        }
        run(&mut case, T0, T0);
        let first = case.take("ready", 1).remove(0);
        let before = case.stream("ready").len();
        let retry_after = (3_600 * S / MS).to_string();
        assert_eq!(fail_at(&mut case, T0, &first, &["THROTTLED", "IN", slowed, "RETRY_AFTER", &retry_after]), 1);
        let before = if case.stream("ready").len() == before - 1 { before - 1 } else { before };
        run(&mut case, T0, at(3_599, 999));
        assert_eq!(case.stream("ready").len(), before, "{id} lets nothing out");
        run(&mut case, at(3_600, 0), at(3_620, 0));
        let after = case.stream("ready").split_off(before);
        let mut names: Vec<String> = after.iter().map(|entry| entry.text("bucket")).collect();
        let count = names.len();
        assert_eq!(after[0].text("bucket"), first.text("bucket"), "the one that was turned away may go as well as any");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "one by one: {names:?}");
        assert_eq!(count, 30, "{id}");
        assert!(after.iter().all(|entry| entry.number("due_us") >= at(3_600, 0)), "the slow-down is no lateness");
    }
}

#[test]
fn only_a_budget_above_the_bucket_can_be_named() {
    let mut case = Case::with(TREE);
    case.push_at(T0, "p:a:1", &["x"]);
    case.settle_at(T0);
    let entry = case.take("ready", 1).remove(0);
    for budget in ["p:b", "q", "p:a:1", ""] {
        let args = [T0.to_string(), entry.id.clone(), "THROTTLED".into(), "IN".into(), budget.into()];
        assert_eq!(case.refusal("drip__fail", &["ready"], &args), "BADARG", "{budget}");
        let args = [T0.to_string(), "PAUSE".into(), "5".into(), "IN".into(), budget.into()];
        assert_eq!(case.refusal("drip__slow", &["queue:p:a:1"], &args), "BADARG", "{budget}");
    }
    assert!(
        !case.keys().contains(&"slow".to_owned()) && !case.keys().contains(&"events".to_owned()),
        "nothing was changed"
    );
    assert_eq!(case.cmd::<Vec<redis::Value>>(&["XPENDING", &case.key("ready"), "workers", "-", "+", "9"]).len(), 1);
    assert_eq!(slow_at(&mut case, T0, "p:a:1", &["PAUSE", "500", "IN", "p"]), (500, 0));
    assert_eq!(slow_at(&mut case, T0, "p:b:1", &["PAUSE", "500", "IN", "p:b"]), (500, 0));
}

#[test]
fn wrong_arguments_are_refused_and_change_nothing() {
    let (mut case, taken) = busy(PLAIN, 1);
    for how in [
        &["THROTTLED", "KEEP", "DEAD"][..],
        &["THROTTLED", "RETRY_IN", "5"],
        &["RETRY_AFTER", "5"],
        &["IN", "p"],
        &["THROTTLED", "RETRY_AFTER"],
        &["THROTTLED", "RETRY_AFTER", "-1"],
        &["THROTTLED", "RETRY_AFTER", "31622400001"],
        &["THROTTLED", "IN"],
    ] {
        let args: Vec<String> =
            [T0.to_string(), taken[0].id.clone()].into_iter().chain(how.iter().map(|w| (*w).to_owned())).collect();
        assert_eq!(case.refusal("drip__fail", &["ready"], &args), "BADARG", "{how:?}");
    }
    for how in [
        &[][..],
        &["PAUSE"],
        &["PAUSE", "0"],
        &["PAUSE", "x"],
        &["CLEAR", "PAUSE", "5"],
        &["PAUSE", "5", "IN"],
        &["STOP"],
    ] {
        let args: Vec<String> = [T0.to_string()].into_iter().chain(how.iter().map(|w| (*w).to_owned())).collect();
        assert_eq!(case.refusal("drip__slow", &["queue:a"], &args), "BADARG", "{how:?}");
    }
    assert_eq!(case.refusal("drip__slow", &["queue:a{b"], &[T0.to_string(), "CLEAR".into()]), "BADBUCKET");
    assert!(!case.keys().contains(&"slow".to_owned()) && !case.keys().contains(&"events".to_owned()));
}

#[test]
fn after_twenty_free_returns_each_further_one_counts() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nattempts = 2\nslow = { initial = '1s', max = '1s' }\n");
    case.push_at(T0, "a", &["x"]);
    let mut now = T0;
    let mut outcomes = Vec::new();
    for n in 0..22 {
        case.settle_at(now);
        let entry = case.take("ready", 1).remove(0);
        // Every other time it is given back without a slow-down: both are counted together.
        let how: &[&str] = if n % 2 == 0 { &["THROTTLED"] } else { &["KEEP", "RETRY_IN", "1000"] };
        outcomes.push((entry.number("attempt"), fail_at(&mut case, now, &entry, how)));
        now += 2 * S;
    }
    assert!(outcomes[..20].iter().all(|one| *one == (1, 1)), "{outcomes:?}");
    assert_eq!(outcomes[20..], [(1, 1), (2, 2)], "then they count, and its attempts are used up");
    assert_eq!(case.stream("dead").len(), 1);
}

#[test]
fn a_reason_that_is_no_text_is_told_as_text() {
    let (mut case, taken) = busy(PLAIN, 1);
    let mut cmd = redis::cmd("FCALL");
    cmd.arg("drip__fail").arg(1).arg(case.key("ready")).arg(T0).arg(&taken[0].id);
    cmd.arg("THROTTLED").arg("REASON").arg(&b"so \xff fast"[..]);
    assert_eq!(cmd.query::<i64>(&mut case.redis).expect("it is given back"), 1);
    assert_eq!(slow_downs(&mut case, T0)[0].1["reason"], "so ? fast");
    assert_eq!(case.stream("events")[0].text("reason"), "so ? fast");
}

#[test]
fn an_operators_pause_is_separate_and_wins() {
    crate::roles::as_roles();
    let mut case = Case::with(PLAIN);
    case.push_at(T0, "a", &jobs(5));
    slow_at(&mut case, T0, "a", &["PAUSE", "2000"]);
    set_at(&mut case, at(1, 0), "a", "pause", "{}");
    run(&mut case, at(1, 0), at(3, 0));
    assert_eq!(case.stream("ready").len(), 0);
    assert_eq!(
        held_ms(&mut case, at(1, 500), "a"),
        500,
        "the rest of the slow-down is known, the end of the pause is not"
    );
    unset_at(&mut case, at(3, 0), "a", "pause");
    run(&mut case, at(3, 0), at(3, 0));
    assert_eq!(left(&mut case, "a"), [3 * S]);
    slow_at(&mut case, at(3, 0), "a", &["PAUSE", "2000"]);
    set_at(&mut case, at(3, 10), "a", "pause", "{}");
    unset_at(&mut case, at(3, 20), "a", "pause");
    run(&mut case, at(3, 20), at(5, 0));
    assert_eq!(left(&mut case, "a"), [3 * S, 5 * S], "the end of a pause is not the end of a slow-down");
}

#[test]
fn the_due_of_a_bucket_is_kept_for_when_a_slow_down_is_cleared() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    case.push_at(T0, "a", &jobs(5));
    run(&mut case, T0, at(1, 0));
    slow_at(&mut case, at(1, 0), "a", &["PAUSE", "60000"]);
    assert_eq!(case.due("a"), Some(at(61, 0)));
    assert_eq!(slow_at(&mut case, at(4, 0), "a", &["CLEAR"]), (0, 0));
    assert_eq!(case.due("a"), Some(at(10, 0)), "an interval after the last one, as before");
    slow_at(&mut case, at(4, 0), "a", &["PAUSE", "60000"]);
    set_at(&mut case, at(5, 0), "a", "rate", r#"{"count":1,"period_us":20000000}"#);
    assert_eq!(case.due("a"), Some(at(64, 0)));
    slow_at(&mut case, at(6, 0), "a", &["CLEAR"]);
    assert_eq!(case.due("a"), Some(at(20, 0)), "and by the rate that holds by then");
    slow_at(&mut case, at(6, 0), "a", &["PAUSE", "60000"]);
    slow_at(&mut case, at(30, 0), "a", &["CLEAR"]);
    run(&mut case, at(30, 0), at(30, 0));
    assert_eq!(left(&mut case, "a"), [0, 30 * S], "a due that is over is no lateness");
}

#[test]
fn what_is_in_force_is_listed_and_each_incident_is_an_event() {
    let mut case = Case::with(TREE);
    for n in 1..4 {
        case.push_at(T0, &format!("p:a:{n}"), &["x"]);
    }
    run(&mut case, T0, at(1, 0));
    let taken = case.take("ready", 3);
    for entry in &taken {
        fail_at(&mut case, at(1, 0), entry, &["THROTTLED", "IN", "p", "RETRY_AFTER", "2500", "REASON", "HTTP 429"]);
    }
    slow_at(&mut case, at(1, 0), "b", &["PAUSE", "9000", "REASON", "they\nasked"]);
    let told = slow_downs(&mut case, at(1, 500));
    let of = |name: &str| told.iter().find(|one| one.0 == name).map(|one| one.1.clone()).expect(name);
    let (budget, bucket) = (of("{p}"), of("b"));
    assert_eq!(
        (&budget["text"], &budget["by"], &budget["reason"]),
        (&"1 incident".into(), &"worker w".into(), &"HTTP 429".into())
    );
    assert_eq!((&budget["since"], &budget["till"]), (&at(1, 0).to_string().into(), &at(3, 500).to_string().into()));
    assert_eq!((&bucket["text"], &bucket["reason"]), (&"asked for".into(), &"they\nasked".into()));
    let events = case.stream("events");
    assert_eq!(events.len(), 2, "one for the three jobs, one for the other bucket");
    let said = ["what", "match", "after", "by", "reason"].map(|field| events[0].text(field));
    assert_eq!(said, ["slow", "{p}", "for 2500ms, 1 incident", "worker w", "HTTP 429"]);
    assert_eq!(slow_downs(&mut case, at(10, 0)), [], "what is over is not in force");
}

#[test]
fn a_clock_that_steps_back_makes_no_slow_down_longer() {
    let toml = "[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[bucket]]\nmatch = 'b'\nrate = '10/s'\nwithin = 'p'\n[defaults]\nrate = '10/s'\n";
    let mut case = Case::with(toml);
    for (bucket, also) in [("a", &[][..]), ("b", &["IN", "p"])] {
        case.push_at(T0, bucket, &jobs(5));
        slow_at(&mut case, T0, bucket, &[&["PAUSE", "5000"], also].concat());
    }
    let back = T0 - 7_200 * S;
    run(&mut case, back, back + 6 * S);
    let mut all: Vec<(String, u64)> =
        case.stream("ready").iter().map(|e| (e.text("bucket"), e.number("at_us") - back)).collect();
    all.sort();
    for bucket in ["a", "b"] {
        let first = all.iter().find(|one| one.0 == bucket).unwrap_or_else(|| panic!("{bucket} is not out: {all:?}"));
        assert!(
            (5 * S..=5 * S + 200 * MS).contains(&first.1),
            "{bucket}: as long as it was to last, from when it was seen: {first:?}"
        );
    }
}

#[test]
fn a_slow_down_that_ended_before_anything_came_takes_nothing_from_what_a_budget_makes_up_for() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '10/s'\n[[budget]]\nmatch = 'c'\nrate = '3/s'\ncatch_up = '1s'\nwithin = 'p'\n\
         [[bucket]]\nmatch = 'a'\nrate = '100/s'\nwithin = 'c'\n[[bucket]]\nmatch = 'beside'\nrate = '100/s'\nwithin = 'p'\n",
    );
    slow_at(&mut case, T0, "a", &["PAUSE", "1000", "IN", "p"]);
    case.push_at(T0, "beside", &["x"]);
    run(&mut case, T0, at(1, 50));
    // That one waited for the end of it; the budget rests now, and nothing has waited in the one below it.
    let now = at(1, 110);
    case.push_at(now, "a", &jobs(5));
    run(&mut case, now, at(2, 0));
    let at_ms: Vec<u64> = case.stream("ready").iter().map(|entry| (entry.number("at_us") - T0) / MS).collect();
    assert_eq!(at_ms, [1_000, 1_110, 1_200, 1_300, 1_400, 1_500], "all of a second in which nothing left");
    audit(&mut case);
}

#[test]
fn what_is_forgotten_of_a_slow_down_takes_no_job_from_what_a_quota_has_counted() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '1/s'\nquota = '5/d'\nslow = { initial = '1s', max = '1s' }\n\
         [defaults]\nrate = '10/s'\nwithin = 'p'\n",
    );
    assert_eq!(case.push_at(T0, "a", &["1", "2", "3", "4", "5", "6", "7"])[0], 7);
    case.settle_at(T0);
    let first = case.take("ready", 1).remove(0);
    fail_at(&mut case, at(0, 500), &first, &["THROTTLED", "IN", "p"]);
    run(&mut case, at(0, 500), at(20, 0));
    // The first one left before it was turned away, and its entry is gone.
    assert_eq!(case.stream("ready").len() + 1, 5);
}

#[test]
fn a_budget_with_work_forgets_its_incidents_after_the_longest_pause_too() {
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p'\nrate = '100/s'\nslow = { initial = '1s', max = '3s' }\n[defaults]\nrate = '1000/s'\nwithin = 'p'\n",
    );
    let jobs: Vec<String> = (0..900).map(|n| n.to_string()).collect();
    case.push_at(T0, "a", &jobs.iter().map(String::as_str).collect::<Vec<_>>());
    case.settle_at(T0);
    let first = case.take("ready", 1).remove(0);
    fail_at(&mut case, at(0, 500), &first, &["THROTTLED", "IN", "p"]);
    let over = at(0, 500) + (held_ms(&mut case, at(0, 500), "a") + 3_000) * MS;
    run(&mut case, at(0, 500), over - 20 * MS);
    // No audit comes between these two: after one nothing is remembered of a budget.
    case.settle_at(over - 10 * MS);
    let last = case.take("ready", 900).pop().expect("some have left");
    let args = [over.to_string(), last.id, "THROTTLED".into(), "IN".into(), "p".into()];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    let again = slow_at(&mut case, over, "a", &["PAUSE", "1", "IN", "p"]);
    assert_eq!(again.1, 1, "it is the first one again");
}
