//! What one call may cost, whatever somebody else chose: the steps of globs, and how many systems one server remembers.

use redis::Value;

use crate::rig::{Case, S, Server, T0};

/// The glob that takes the most steps that a thousand bytes allow: at each place of a text of `a`, 198 classes fit and the
/// byte behind them does not.
fn worst() -> String {
    format!("*{}1*", "[a-z]".repeat(198))
}

/// The steps of a call, at most, and those of the worst glob for a text of a thousand bytes: 991 items, five bytes each for
/// a class and one for the byte, and the two empty ends.
const STEPS_MOST: u64 = 2_000_000;
const STEPS: u64 = 991 * 1_000;

/// The best of some times of a call, in microseconds as the server counts them.
fn best_us(case: &mut Case, call: &dyn Fn(&mut Case)) -> u64 {
    let spent = |case: &mut Case| -> u64 {
        let info: String = case.cmd(&["INFO", "commandstats"]);
        let of = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
            line.split(',').find_map(|part| part.strip_prefix("usec=")).and_then(|us| us.parse::<u64>().ok())
        };
        of("fcall").unwrap_or(0) + of("fcall_ro").unwrap_or(0) + of("eval").unwrap_or(0)
    };
    let time = |_| {
        let before = spent(case);
        call(case);
        spent(case) - before
    };
    (0..5).map(time).min().expect("some")
}

#[test]
fn a_page_of_dead_letters_ends_when_it_has_compared_enough_and_the_next_one_goes_on() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "");
    let (dead, reason) = (case.key("dead"), "a".repeat(1_000));
    let mut pipe = redis::pipe();
    for n in 1..=1_000 {
        let id = format!("{n}-0");
        pipe.cmd("XADD")
            .arg(&dead)
            .arg(id)
            .arg(&["bucket", "b", "job", "x", "attempt", "1", "reason", &reason])
            .ignore();
    }
    pipe.query::<()>(&mut case.redis).expect("added");
    let list = |case: &mut Case, after: &str, reason: &str| -> (String, usize) {
        let args = ["", after, "", "", reason, "", ""];
        let (on, letters): (String, Vec<Value>) = case.fcall("drip__dead_list", &["dead"], &args);
        (on, letters.len())
    };
    let a_call = STEPS_MOST.div_ceil(STEPS);
    assert_eq!(list(&mut case, "", &worst()), (format!("{a_call}-0"), 0), "three letters, and then the next call");
    assert_eq!(list(&mut case, "990-0", &worst()), (format!("{}-0", 990 + a_call), 0));
    assert_eq!(list(&mut case, "999-0", &worst()), (String::new(), 0), "the end is the end");
    assert_eq!(list(&mut case, "", "*a*"), ("400-0".to_owned(), 400), "a usual one is compared with four batches");
    assert_eq!(list(&mut case, "", "*b*"), ("400-0".to_owned(), 0));
    // A floor from the same second: so many turns of an empty loop as a call may make steps.
    let floor = best_us(&mut case, &|case| {
        let turns = format!("for _ = 1, {STEPS_MOST} do end");
        let _: Value = case.cmd(&["EVAL", &turns, "0"]);
    });
    let many_stars = format!("{}1", "a*".repeat(499));
    for glob in [worst(), format!("*{}1*", "[!-~]".repeat(198)), format!("*{}1*", "?".repeat(490)), many_stars] {
        for args in [["", "", "", "", &glob, "", ""], ["", "", "", &glob, &glob, "", ""]] {
            let took = best_us(&mut case, &|case| {
                let _: Value = case.fcall("drip__dead_list", &["dead"], &args);
            });
            assert!(took < 10 * floor.max(1_000), "{glob}: {took} us, and the floor is {floor}");
        }
    }
}

#[test]
fn a_reason_is_compared_as_far_as_the_functions_write_one() {
    let mut case = Case::with("");
    let dead = case.key("dead");
    for (id, reason) in [("1-0", format!("{}b", "a".repeat(999))), ("2-0", format!("{}b", "a".repeat(1_000)))] {
        let _: String = case.cmd(&["XADD", &dead, id, "bucket", "b", "job", "x", "attempt", "1", "reason", &reason]);
    }
    let args = ["", "", "", "", "*b", "", ""];
    let (_, letters): (String, Vec<(String, i64, Value)>) = case.fcall("drip__dead_list", &["dead"], &args);
    assert_eq!(letters.iter().map(|letter| letter.0.as_str()).collect::<Vec<_>>(), ["1-0"]);
}

#[test]
fn a_count_of_what_a_glob_matches_takes_small_pages_where_it_takes_many_steps_and_counts_each_once() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n[limits]\nbatch = 1000\n");
    for n in 0..600 {
        case.push_at(T0, &format!("{}{n:03}", "a".repeat(197)), &["1", "2"]);
    }
    case.settle_at(T0);
    let mut count = |glob: &str, what: &str| {
        let (mut cursor, mut met, mut calls) = (String::new(), 0, 0);
        loop {
            let now = (T0 + S).to_string();
            let args = [now.as_str(), glob, "1", what, cursor.as_str()];
            let page: (String, u64, u64, u64) = case.fcall("drip__met", &["policy"], &args);
            (met, calls) = (met + page.1 + page.2, calls + 1);
            if page.0.is_empty() {
                return (met, calls);
            }
            cursor = page.0;
        }
    };
    assert_eq!(count("*a*", "buckets"), (600, 1));
    assert_eq!(count("*a*", "jobs").0, 600);
    // 100 classes of a hundred items: 198,200 steps for a name, and ten names a call.
    let dear = format!("*{}*", "[a-z]".repeat(190));
    let (met, calls) = count(&dear, "buckets");
    assert_eq!(met, 600);
    assert!((10..=600).contains(&calls), "{calls} calls");
    let (met, calls) = count(&dear, "jobs");
    assert!(met == 600 && calls >= 50, "{met} in {calls} calls");
    let long = "a".repeat(1_003);
    assert_eq!(case.refusal("drip__met", &["policy"], &["", long.as_str(), "1", "buckets", ""]), "BADARG");
}

#[test]
fn a_glob_that_every_lookup_would_pay_for_cannot_be_set_and_one_that_was_set_can_be_taken_back() {
    let mut case = Case::with("");
    let change = |glob: &str, what: &str| {
        format!(r#"{{"what":"set","match":"{glob}","is_glob":true,{what},"by":"me","user":"default"}}"#)
    };
    let set = r#""set":{"pause":{"text":"yes","policy":{}}}"#;
    for dear in [worst(), format!("*{}*", "?".repeat(120)), format!("*[{}]*", "ac".repeat(60)), "a".repeat(1_002) + "*"]
    {
        assert_eq!(case.refusal("drip__set", &["policy"], &["", &change(&dear, set)]), "BADARG", "{dear}");
        let undone: (i64, Vec<String>, String) =
            case.fcall("drip__set", &["policy"], &["", &change(&dear, r#""unset":["pause"]"#)]);
        assert_eq!(undone.0, 0);
    }
    for usual in ["sms:*", "*:[a-f]?[0-9]*:x", "*", &format!("{}*", "a".repeat(190)), &"\\\\*".repeat(200)] {
        let done: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &["", &change(usual, set)]);
        assert_eq!(done.0, 1, "{usual}");
    }
}

/// How often a hash was read by `HGET`: a record is, when it is decoded.
fn reads(case: &mut Case) -> u64 {
    let info: String = case.cmd(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_hget:")).unwrap_or_default();
    line.split([':', ',']).find_map(|part| part.strip_prefix("calls=")).map_or(0, |n| n.parse().expect("a number"))
}

#[test]
fn sixty_four_systems_on_one_server_decode_their_records_once() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "");
    let entry = |n: u32| format!("[[bucket]]\nmatch = 'c{n}:*'\nrate = '{}/s'\n", n % 50 + 1);
    let entries = (0..1_000).map(entry).collect::<Vec<_>>().concat();
    let record = crate::rig::record(&entries);
    let each = |case: &mut Case, of: &dyn Fn(&mut Case)| {
        for n in 0..64 {
            case.prefix = format!("p{n}");
            of(case);
        }
    };
    each(&mut case, &|case| {
        let id = format!("id-of-{}", case.prefix);
        assert_eq!(case.fcall::<i64>("drip__policy", &["policy"], &["", id.as_str(), &record, "replace"]), 1);
    });
    let push = |case: &mut Case| assert_eq!(case.push_at(T0, "c7:x", &["x"])[0], 1);
    each(&mut case, &push);
    let before = reads(&mut case);
    each(&mut case, &push);
    let of_all = reads(&mut case) - before;
    let before = reads(&mut case);
    case.prefix = "p0".to_owned();
    (0..64).for_each(|_| push(&mut case));
    assert_eq!(of_all, reads(&mut case) - before, "as many reads as the pushes of one system make");
}

#[test]
fn records_are_kept_up_to_some_bytes_and_the_one_that_was_used_longest_ago_goes_first() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "");
    let record = crate::rig::record("");
    // Five megabytes each: three of them are kept.
    let padded = format!("{{\"pad\":\"{}\",{}", "x".repeat(5_000_000), &record[1..]);
    for n in 0..5 {
        let _: i64 = case.cmd(&["HSET", &format!("l{n}:policy"), "id", &format!("large-{n}"), "record", &padded]);
    }
    let misses = |case: &mut Case, now: u64, which: &[usize]| -> Vec<u64> {
        let one = |n: &usize| {
            case.prefix = format!("l{n}");
            let before = reads(case);
            case.peek_at(now, "a");
            reads(case) - before - 1 // a peek reads an allowance
        };
        which.iter().map(one).collect()
    };
    assert_eq!(misses(&mut case, T0, &[0]), [1]);
    assert_eq!(misses(&mut case, T0 + 1, &[1]), [1]);
    assert_eq!(misses(&mut case, T0 + 2, &[2]), [1]);
    assert_eq!(misses(&mut case, T0 + 3, &[0, 1, 2]), [0, 0, 0], "all are kept");
    assert_eq!(misses(&mut case, T0 + 4, &[0, 2]), [0, 0]);
    assert_eq!(misses(&mut case, T0 + 5, &[3]), [1], "and 1, which was used longest ago, goes");
    assert_eq!(misses(&mut case, T0 + 6, &[0, 2, 3]), [0, 0, 0]);
    assert_eq!(misses(&mut case, T0 + 7, &[1]), [1]);
    assert_eq!(misses(&mut case, T0 + 600 * S, &[1]), [0]);
    assert_eq!(misses(&mut case, T0 + 1_000 * S, &[4]), [1]);
    assert_eq!(misses(&mut case, T0 + 1_000 * S, &[1, 3]), [0, 0], "2 went");
}
