//! The walk: every bucket that waits is passed by, what is told of each, what stays behind the floors, who rejects most, and the
//! ranking that is kept. What is counted and kept is that of eight prefixes at most, so such tests have a server of their own.

use std::collections::{HashMap, HashSet};

use redis::{FromRedisValue, Value};

use crate::rig::{Case, MS, S, Server, T0, eventually};

/// Where nothing is left out, and the floors that let nothing pass.
const ALL: [&str; 4] = ["0", "-1", "0", "0"];
const NONE: [&str; 4] = ["10000000", "100000000000000", "100000000000000", "100000000000000"];

/// What is told of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    bucket: String,
    place: String,
    depth: u64,
    capacity: u64,
    rate: (u64, u64),
    due_in_us: u64,
    empty_in_ms: u64,
    late_us: u64,
    rejected: u64,
}

/// A page: where it goes on, how many were passed, the rows by place and those by what they rejected.
struct Page {
    next: Option<(String, String)>,
    passed: u64,
    rows: Vec<Row>,
    rejecting: Vec<Row>,
}

fn get<T: FromRedisValue>(value: &Value) -> T {
    T::from_redis_value_ref(value).unwrap_or_else(|why| panic!("{value:?}: {why}"))
}

fn rows(value: &Value) -> Vec<Row> {
    let values: Vec<Value> = get(value);
    let row = |v: &[Value]| Row {
        bucket: get(&v[0]),
        place: get(&v[1]),
        depth: get(&v[3]),
        capacity: get(&v[4]),
        rate: (get(&v[5]), get(&v[6])),
        due_in_us: get(&v[7]),
        empty_in_ms: get(&v[8]),
        late_us: get(&v[9]),
        rejected: get(&v[10]),
    };
    values.chunks(11).map(row).collect()
}

fn page(case: &mut Case, now: u64, at: &(String, String), most: u64, floors: [&str; 4]) -> Page {
    let mut args = vec![now.to_string(), at.0.clone(), at.1.clone(), most.to_string()];
    args.extend(floors.map(str::to_owned));
    let reply: Vec<Value> = case.fcall("drip__walk", &["policy"], &args);
    let (place, cursor): (String, String) = (get(&reply[0]), get(&reply[1]));
    assert_eq!(get::<String>(&reply[2]), now.to_string());
    Page {
        next: (!place.is_empty()).then_some((place, cursor)),
        passed: get(&reply[3]),
        rows: rows(&reply[4]),
        rejecting: rows(&reply[5]),
    }
}

/// A whole walk: how many buckets it passed, and both kinds of rows by bucket.
fn walk(case: &mut Case, now: u64, floors: [&str; 4]) -> (u64, HashMap<String, Row>, HashMap<String, Row>) {
    let (mut passed, mut found, mut rejecting) = (0, HashMap::new(), HashMap::new());
    let mut at = Some((String::new(), String::new()));
    while let Some(from) = at {
        let page = page(case, now, &from, 50, floors);
        passed += page.passed;
        found.extend(page.rows.into_iter().map(|row| (row.bucket.clone(), row)));
        rejecting.extend(page.rejecting.into_iter().map(|row| (row.bucket.clone(), row)));
        at = page.next;
    }
    (passed, found, rejecting)
}

fn set(case: &mut Case, now: u64, name: &str, key: &str) {
    let change = format!(
        r#"{{"match":"{name}","is_glob":false,"set":{{"{key}":{{"text":"","policy":{{}}}}}},"by":"me","user":"default"}}"#
    );
    let told: Vec<Value> = case.fcall("drip__set", &["policy"], &[now.to_string(), change]);
    assert_eq!(told[0], Value::Int(1));
}

#[test]
fn a_row_says_how_full_how_late_and_how_long_until_it_is_empty_as_the_doors_do() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\ncapacity = 50\n[limits]\nmax_ready = 1\n[[bucket]]\nmatch = 'h*'\nroute = 'full'\n\
         [[bucket]]\nmatch = 'slow'\nrate = '1/m'\n",
    );
    assert_eq!(case.push_at(T0, "h1", &["x"])[0], 1);
    assert_eq!(case.settle_at(T0).dispatched, 1, "route full takes one job");
    let t = T0 + S;
    case.push_at(t, "h2", &["1", "2", "3"]);
    case.settle_at(t);
    let eta = case.push_at(t, "slow", &["1", "2", "3"])[4];
    assert_eq!(case.settle_at(t).dispatched, 1);
    set(&mut case, t, "stopped", "pause");
    case.push_at(t, "stopped", &["1", "2"]);
    let (passed, rows, rejecting) = walk(&mut case, t + 500 * MS, ALL);
    assert_eq!((passed, rows.len(), rejecting.len()), (3, 3, 0), "one that has no work is not passed");
    let row = |bucket: &str, place: &str, depth, rate, due_in_us, empty_in_ms| Row {
        bucket: bucket.to_owned(),
        place: place.to_owned(),
        depth,
        capacity: 50,
        rate,
        due_in_us,
        empty_in_ms,
        late_us: 0,
        rejected: 0,
    };
    assert_eq!(eta, 120_000, "of three jobs the last leaves two minutes after the first");
    assert_eq!(rows["slow"], row("slow", "due", 2, (1, 60 * S), 60 * S - 500 * MS, 119_500));
    assert_eq!(rows["h2"], row("h2", "held", 3, (10, S), 0, 200), "as if its route had room now");
    assert_eq!(rows["stopped"], row("stopped", "paused", 2, (10, S), 0, 100), "as if it went on now");
    let late = &walk(&mut case, t + 61 * S, ALL).1["slow"];
    assert_eq!((late.late_us, late.due_in_us), (S, 0));
    assert_eq!(late.empty_in_ms, case.peek_at(t + 61 * S, "slow")[4] as u64 + 59_000, "the second: 59 s from now");
    let ahead = &walk(&mut case, t - 3_600 * S, ALL).1["slow"];
    assert_eq!(ahead.due_in_us, 60 * S, "after the clock stepped back no due is further ahead than an interval");
}

/// The due of a bucket from now on, the time until it is empty, and how late it is, as the walk passes it.
fn held(case: &mut Case, now: u64, bucket: &str) -> (u64, u64, u64) {
    let row = walk(case, now, ALL).1.remove(bucket).expect("it has work");
    (row.due_in_us, row.empty_in_ms, row.late_us)
}

#[test]
fn what_puts_a_bucket_off_for_hours_counts_in_its_due_and_in_the_time_until_it_is_empty() {
    const H: u64 = 3_600 * S;
    let fields = |now: u64, how: &[&str]| -> Vec<String> {
        [now.to_string()].into_iter().chain(how.iter().map(|word| (*word).to_owned())).collect()
    };
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\n[[budget]]\nmatch = 'top'\nrate = '1000/s'\n[[bucket]]\nmatch = 'below:*'\nwithin = 'top'\n\
         [[bucket]]\nmatch = 'quota'\nquota = '2/d'\n[[bucket]]\nmatch = 'jobs'\njob_rate = '1/h'\n\
         [[bucket]]\nmatch = 'cost'\nrate = '1/s'\ncost_max = 10000\n",
    );
    let jobs = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];
    for bucket in ["slow", "told", "quota", "jobs", "below:a"] {
        case.push_at(T0, bucket, &jobs);
    }
    case.submit_at(T0, "cost", "dear", &["COST", "7200"]);
    case.submit_at(T0, "cost", "next", &[]);
    let t = T0 + S;
    for at in 0..=10 {
        case.settle_at(T0 + at * S / 10);
    }
    case.push_at(t, "slow", &jobs);
    case.push_at(t, "told", &jobs);
    case.push_at(t, "below:a", &jobs);
    case.settle_at(t);
    let day_us = 86_400 * S;
    let quota_us = day_us - t % day_us;
    let (due, empty, late) = held(&mut case, t, "quota");
    assert_eq!((due, empty, late), (quota_us, quota_us.div_ceil(1_000) + 800, 0), "nine jobs from midnight on");
    assert_eq!(held(&mut case, t, "cost"), (7_200 * S - S, 7_199_000, 0), "the last job took two hours of the rate");
    assert_eq!(held(&mut case, t, "jobs"), (H - S, 3_599_000 + 9 * 3_600_000, 0));
    let slowed: (i64, i64) = case.fcall("drip__slow", &["queue:slow"], &fields(t, &["PAUSE", "14400000"]));
    assert_eq!(slowed.0, 3_600_000, "slow.cap allows an hour");
    let depth = walk(&mut case, t, ALL).1["slow"].depth;
    let last_ms = |depth: u64| (depth - 1) * 100;
    assert_eq!(held(&mut case, t + S, "slow"), (H - S, 3_599_000 + last_ms(depth), 0));
    assert_eq!(case.fcall::<i64>("drip__told", &["queue:told"], &fields(t, &["0", "7200000"])), 1);
    let depth = walk(&mut case, t, ALL).1["told"].depth;
    assert_eq!(held(&mut case, t + S, "told"), (2 * H - S, 7_199_000 + last_ms(depth), 0));
    let _: (i64, i64) = case.fcall("drip__slow", &["queue:below:a"], &fields(t, &["PAUSE", "3600000", "IN", "top"]));
    case.settle_at(t + S);
    let row = walk(&mut case, t + S, ALL).1.remove("below:a").expect("it has work");
    assert_eq!((row.place.as_str(), row.due_in_us), ("share", H - S), "the budget above it is slowed down");
    assert_eq!(row.empty_in_ms, 3_599_000 + last_ms(row.depth));
    // All of it is what the rows of `dripd top` say too, which are asked for by name.
    for bucket in ["slow", "told", "quota", "cost", "jobs"] {
        let args = [(t + S).to_string(), bucket.to_owned()];
        let reply: Vec<Value> = case.fcall("drip__rows", &["policy"], &args);
        let (now, walked) = (&rows(&reply[1])[0], held(&mut case, t + S, bucket));
        assert_eq!((now.due_in_us, now.empty_in_ms, now.late_us), walked, "{bucket}");
    }
    assert!(walk(&mut case, t + S, [NONE[0], "3000000", NONE[2], "0"]).1.contains_key("slow"), "and it ranks by that");
}

#[test]
fn what_exceeds_no_floor_is_passed_and_not_told() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[[bucket]]\nmatch = 'slow'\nrate = '1/h'\n");
    for (bucket, jobs) in [("one", 1), ("five", 5), ("slow", 2)] {
        case.push_at(T0, bucket, &vec!["x"; jobs]);
    }
    let mut told = |floors: [&str; 4]| {
        let (passed, rows, _) = walk(&mut case, T0 + 2 * S, floors);
        assert_eq!(passed, 3);
        let mut names: Vec<String> = rows.into_keys().collect();
        names.sort();
        names
    };
    let (depth, empty, late) = (NONE[0], NONE[1], NONE[2]);
    assert_eq!(told(ALL), ["five", "one", "slow"]);
    assert_eq!(told(NONE), [""; 0]);
    assert_eq!(told(["2", empty, late, "0"]), ["five"]);
    assert_eq!(told(["1", empty, late, "0"]), ["five", "slow"]);
    assert_eq!(told([depth, "3000", late, "0"]), ["slow"], "an hour less two seconds");
    assert_eq!(told([depth, empty, "1999999", "0"]), ["five", "one", "slow"], "all have been due for two seconds");
    assert_eq!(told([depth, empty, "2000000", "0"]), [""; 0]);
}

#[test]
fn each_bucket_that_stands_where_it_is_is_passed_whatever_moves_meanwhile() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\n[limits]\nbatch = 1000\n");
    let name = |kind: &str, n: usize| format!("{kind}{n:04}");
    for n in 0..2_000 {
        case.lpush(&name("stays", n), &["1", "2"]);
        case.lpush(&name("goes", n), &["1"]);
    }
    let keys: Vec<String> =
        (0..4_000).map(|n| if n < 2_000 { name("stays", n) } else { name("goes", n - 2_000) }).collect();
    for part in keys.chunks(500) {
        case.wake_at(T0, &part.iter().map(String::as_str).collect::<Vec<_>>());
    }
    case.settle_at(T0);
    let (schedule, mut seen, mut round) = (case.key("schedule"), HashSet::new(), 0_usize);
    let mut at = Some((String::new(), String::new()));
    while let Some(from) = at {
        let page = page(&mut case, T0 + S, &from, 50, ALL);
        assert!(page.passed <= 200, "a page is bounded: {}", page.passed);
        seen.extend(page.rows.into_iter().map(|row| row.bucket));
        at = page.next;
        // The set grows to three times its size and shrinks again: its table is made anew meanwhile, more than once.
        for n in 0..100 {
            let new = name("new", round * 100 + n);
            if round < 40 {
                case.push_at(T0 + S, &new, &["1", "2"]);
            } else {
                let _: i64 = case.cmd(&["ZREM", &schedule, &name("new", (round - 40) * 100 + n)]);
            }
        }
        round += 1;
        assert!(round < 1_000, "it comes to an end");
    }
    assert!(round > 20, "it took {round} pages");
    let missed: Vec<String> = (0..2_000).map(|n| name("stays", n)).filter(|name| !seen.contains(name)).collect();
    assert_eq!(missed, [""; 0]);
}

/// The figures of all that reject at a time.
fn rejecting(case: &mut Case, now: u64) -> HashMap<String, u64> {
    walk(case, now, ALL).2.into_iter().map(|(name, row)| (name, row.rejected)).collect()
}

#[test]
fn what_was_rejected_is_counted_by_bucket_for_10_to_20_minutes() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 2\n[limits]\nmax_job_bytes = 3\n");
    assert_eq!(rejecting(&mut case, T0), HashMap::new());
    assert_eq!(case.push_at(T0, "atomic", &["1", "2", "3"])[0], 2);
    assert_eq!(case.push_at(T0, "atomic", &["4", "5"])[0], 0);
    case.lpush("plain", &["1", "2", "3", "4", "5"]);
    case.wake_at(T0, &["plain"]);
    case.lpush("large", &["12345"]);
    case.wake_at(T0, &["large"]);
    let all = |a, p, l| {
        let pairs = [("atomic", a), ("plain", p), ("large", l)];
        pairs.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.to_owned(), n)).collect::<HashMap<_, u64>>()
    };
    assert_eq!(rejecting(&mut case, T0), all(3, 3, 1));
    let row = &walk(&mut case, T0, ALL).2["large"];
    assert_eq!((row.place.as_str(), row.depth), ("idle", 0), "it rejected and has no work");
    assert_eq!(walk(&mut case, T0, ALL).1["plain"].rejected, 3, "the other orders say it too");
    let ten_minutes = 600 * S;
    assert_eq!(rejecting(&mut case, T0 + ten_minutes - 1), all(3, 3, 1));
    assert_eq!(case.push_at(T0 + ten_minutes, "atomic", &["6", "7"])[0], 1, "one has left by then");
    assert_eq!(rejecting(&mut case, T0 + ten_minutes), all(4, 3, 1), "what was before counts on");
    assert_eq!(rejecting(&mut case, T0 + 2 * ten_minutes - 1), all(4, 3, 1));
    assert_eq!(rejecting(&mut case, T0 + 2 * ten_minutes), all(1, 0, 0), "what is older than that does not");
    assert_eq!(rejecting(&mut case, T0 + 3 * ten_minutes), all(0, 0, 0));
    assert!(!case.keys().iter().any(|key| key.contains("reject") && key != "rejected"), "{:?}", case.keys());
}

#[test]
fn the_heaviest_of_a_hundred_thousand_names_are_told_in_bounded_memory_and_no_figure_is_further_off_than_promised() {
    const NAMES: u64 = 100_000;
    const KEPT: u64 = 1_500;
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 1\n");
    // A heavy one for each hundred light ones, all of them mixed; the light ones come once each.
    let heavy = |n: u64| (n.is_multiple_of(100), format!("heavy{}", n / 100 % 50));
    let mut truth: HashMap<String, u64> = HashMap::new();
    let (queue, now) = (case.key("queue:"), T0.to_string());
    let mut pipe = redis::pipe();
    let mut push = |name: String, jobs: usize, truth: &mut HashMap<String, u64>| {
        // A bucket that is full: one job fits, whatever more comes is rejected.
        pipe.cmd("FCALL")
            .arg("drip__push")
            .arg(1)
            .arg(format!("{queue}{name}"))
            .arg(&now)
            .arg(vec!["x"; jobs])
            .ignore();
        *truth.entry(name).or_default() += jobs as u64 - 1;
        if pipe.len() >= 5_000 {
            std::mem::take(&mut pipe).query::<()>(&mut case.redis).expect("pushed");
        }
    };
    for n in 0..NAMES {
        push(format!("light{n}"), 2, &mut truth);
        if let (true, name) = heavy(n) {
            push(name, 401, &mut truth);
        }
    }
    pipe.query::<()>(&mut case.redis).expect("pushed");
    // What fitted is left aside: a heavy one fits once.
    for (name, n) in &mut truth {
        if name.starts_with("heavy") {
            *n += NAMES / 100 / 50 - 1;
        }
    }
    let total: u64 = truth.values().sum();
    let told = rejecting(&mut case, T0);
    assert_eq!(told.len() as u64, KEPT, "no more names than that are kept");
    for (name, n) in &told {
        let is = truth[name];
        assert!((is..=is + total / KEPT).contains(n), "{name}: {n} told, {is} in truth, of {total}");
    }
    let missed: Vec<_> = truth.iter().filter(|(name, n)| **n > total / KEPT && !told.contains_key(*name)).collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert_eq!(told.keys().filter(|name| name.starts_with("heavy")).count(), 50);
}

#[test]
fn a_rejected_atomic_push_writes_nothing_and_is_told_all_the_same() {
    let server = Server::start(&["--appendonly", "yes"]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/h'\ncapacity = 1\n");
    assert_eq!(case.push_at(T0, "b", &["x"])[0], 1);
    let figure = |case: &mut Case, section: &str, name: &str| -> u64 {
        let info: String = case.cmd(&["INFO", section]);
        info.lines().find_map(|line| line.strip_prefix(name)).expect("a line").trim().parse().expect("a number")
    };
    let news = |case: &mut Case| {
        let (_, _, news): (u64, u64, u64) = case.fcall("drip__beat", &["daemons"], &["", "me", "{}"]);
        news
    };
    let news_before = news(&mut case);
    let writes = |case: &mut Case| {
        // While Redis syncs the file, what it has to write waits in a buffer.
        eventually("all is written", || figure(case, "persistence", "aof_buffer_length:") == 0);
        (figure(case, "persistence", "rdb_changes_since_last_save:"), figure(case, "persistence", "aof_current_size:"))
    };
    let before = writes(&mut case);
    for _ in 0..1_000 {
        assert_eq!(case.push_at(T0, "b", &["y"])[0], 0);
    }
    assert_eq!(rejecting(&mut case, T0)["b"], 1_000);
    assert_eq!(writes(&mut case), before);
    assert_ne!(news(&mut case), news_before, "the daemons hear of it with their next heartbeat");
}

/// What `drip__top` replies: its age, how many buckets were passed, the parts of each order.
fn top(case: &mut Case, now: u64, most: u64, orders: &[&str]) -> Option<(u64, u64, Vec<Vec<String>>)> {
    let mut args = vec![now.to_string(), most.to_string()];
    args.extend(orders.iter().map(|&order| order.to_owned()));
    let reply: Vec<Value> = case.fcall("drip__top", &["policy"], &args);
    let (_, rest) = reply.split_first()?;
    Some((get(&rest[0]), get(&rest[2]), rest[3..].iter().map(get).collect()))
}

#[test]
fn a_ranking_is_kept_whole_with_its_age_for_a_day_and_through_a_reload() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "");
    assert_eq!(top(&mut case, T0, 9, &["depth"]), None);
    let rank = |now: u64, as_of: u64, parts: &[&str]| {
        let mut args = [now, as_of, 5 * S, 77].map(|n| n.to_string()).to_vec();
        args.extend(parts.iter().map(|&part| part.to_owned()));
        args
    };
    let args = rank(T0, T0 - 5 * S, &["depth", "[1]", "depth", "[2]", "late", "[3]"]);
    assert_eq!(case.fcall::<i64>("drip__rank", &["policy"], &args), 1);
    let texts = |parts: &[&str]| parts.iter().map(|&part| part.to_owned()).collect::<Vec<_>>();
    let found = (7 * S, 77, vec![texts(&["[3]"]), texts(&["[1]", "[2]"]), texts(&[])]);
    assert_eq!(top(&mut case, T0 + 2 * S, 9, &["late", "depth", "empty"]), Some(found));
    assert_eq!(top(&mut case, T0 + 2 * S, 1, &["depth"]), Some((7 * S, 77, vec![texts(&["[1]"])])));
    assert_eq!(case.configure_at(&T0.to_string(), "[defaults]\ncapacity = 3\n"), 1);
    assert!(top(&mut case, T0 + 3 * S, 1, &["depth"]).is_some(), "another record does not make it wrong");
    assert!(top(&mut case, T0 - 5 * S + 86_400 * S, 1, &["depth"]).is_some());
    assert_eq!(top(&mut case, T0 - 5 * S + 86_400 * S + 1, 1, &["depth"]), None);
    assert_eq!(top(&mut case, T0 - 60 * S, 1, &["depth"]).map(|top| top.0), Some(0), "the clock stepped back");
    for bad in [&["depth"][..], &["width", "[]"], &["depth", "x", "late"]] {
        assert_eq!(case.refusal("drip__rank", &["policy"], &rank(T0, T0, bad)), "BADARG", "{bad:?}");
    }
    let large = "x".repeat(200_000);
    assert_eq!(case.refusal("drip__rank", &["policy"], &rank(T0, T0, &["depth", &large])), "BADARG");
    assert_eq!(case.refusal("drip__walk", &["policy"], &["", "", "", "1001"]), "BADARG");
    assert_eq!(case.refusal("drip__walk", &["schedule"], &["", "", "", "10"]), "BADARG");
}
