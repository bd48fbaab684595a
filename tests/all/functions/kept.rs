//! What is stored of a job between its tries, and for how long: giving back, formats, leases and clocks.

use redis::Value;

use crate::rig::{Case, Entry, MS, S, Server, T0, eventually};

fn fail_at(case: &mut Case, now: u64, id: &str, options: &[&str]) -> i64 {
    let now = now.to_string();
    let args: Vec<&str> = [now.as_str(), id].into_iter().chain(options.iter().copied()).collect();
    case.fcall("drip__fail", &["ready"], &args)
}

fn take_one(case: &mut Case, now: u64) -> Entry {
    assert_eq!(case.settle_at(now).dispatched, 1, "at {now}");
    case.take("ready", 1).remove(0)
}

#[test]
fn a_job_may_be_given_back_20_times_and_each_further_time_counts_as_an_attempt() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\nattempts = 3\nbackoff = { initial = '1s', max = '1s' }\n");
    case.push_at(T0, "b", &["poison"]);
    let mut now = T0;
    for kept in 0..=20 {
        let entry = take_one(&mut case, now);
        assert_eq!(entry.fields.contains_key("kept"), kept > 0, "absent at 0");
        assert_eq!((entry.number("attempt"), kept == 0 || entry.number("kept") == kept), (1, true));
        assert_eq!(fail_at(&mut case, now, &entry.id, &["KEEP"]), 1);
        now += S;
    }
    for attempt in [2, 3] {
        let entry = take_one(&mut case, now);
        assert_eq!((entry.number("attempt"), entry.number("kept")), (attempt, 19 + attempt));
        let outcome = fail_at(&mut case, now, &entry.id, &["KEEP", "REASON", "HTTP 503"]);
        assert_eq!(outcome, if attempt == 3 { 2 } else { 1 });
        now += S;
    }
    let dead = case.stream("dead").remove(0);
    assert_eq!(
        (dead.text("job"), dead.text("attempt"), dead.text("reason")),
        ("poison".into(), "3".into(), "HTTP 503".into())
    );
}

#[test]
fn a_job_that_is_given_back_without_a_time_waits_the_back_off_and_lets_the_others_pass() {
    let mut case =
        Case::with("[defaults]\nrate = '1000/s'\nbackoff = { initial = '5s', max = '1m' }\n[limits]\nbatch = 1000\n");
    case.push_at(T0, "b", &["poison", "1", "2", "3"]);
    let entry = take_one(&mut case, T0);
    assert_eq!(fail_at(&mut case, T0, &entry.id, &["KEEP"]), 1);
    for n in 1..=3 {
        assert_eq!(case.settle_at(T0 + n * MS).dispatched, 1);
    }
    assert_eq!(case.settle_at(T0 + 5 * S - MS).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 5 * S).dispatched, 1);
}

#[test]
fn retries_of_the_version_before_are_read_and_those_of_a_newer_one_are_left_alone_and_told() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    case.settle_at(T0);
    let (retry, index) = (case.key("retry:b"), case.key("retries"));
    let old = "1750000000000-0 default 1000000 2 1740000000000-5 an old job";
    let newer = "5 1750000000000-1 something else that we cannot know";
    for text in [old, newer] {
        let _: i64 = case.cmd(&["ZADD", &retry, &T0.to_string(), text]);
    }
    let _: i64 = case.cmd(&["ZADD", &index, &T0.to_string(), "b"]);
    let reply: Vec<Value> = case.fcall("drip__drain", &["schedule"], &[T0.to_string()]);
    let notes: Vec<String> = redis::from_redis_value(reply[6].clone()).expect("texts");
    let seen = case.stream("ready");
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0].text("job"), seen[0].number("attempt"), seen[0].text("id")),
        ("an old job".into(), 2, "1740000000000-5".into())
    );
    case.settle_at(T0 + S);
    let more: Vec<Value> = case.fcall("drip__drain", &["schedule"], &[(T0 + 61 * S).to_string()]);
    let more: Vec<String> = redis::from_redis_value(more[6].clone()).expect("texts");
    assert!(notes.iter().chain(&more).any(|text| text == "newer"), "{notes:?} {more:?}");
    let left: Vec<String> = case.cmd(&["ZRANGE", &retry, "0", "-1"]);
    assert_eq!(left, [newer], "its bytes are as they were");
    assert!(case.stream("dead").is_empty());
}

#[test]
fn a_failed_job_that_may_go_earlier_than_anybody_knows_writes_the_wake_key_and_no_other_does() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\nbackoff = { initial = '5s', max = '1m' }\n");
    case.push_at(T0, "b", &["1", "2", "3"]);
    for n in 0..3 {
        case.settle_at(T0 + n * MS);
    }
    let taken = case.take("ready", 3);
    let wake = case.key("wake");
    let wrote = |case: &mut Case| case.cmd::<i64>(&["DEL", &wake]) == 1;
    assert_eq!(fail_at(&mut case, T0 + S, &taken[0].id, &[]), 1);
    assert!(wrote(&mut case), "the first back-off to end");
    assert_eq!(fail_at(&mut case, T0 + 2 * S, &taken[1].id, &[]), 1);
    assert!(!wrote(&mut case), "it ends after the first");
    assert_eq!(fail_at(&mut case, T0 + 3 * S, &taken[2].id, &["RETRY_IN", "0"]), 1);
    assert!(wrote(&mut case), "at once");
}

/// The checksum of Redis' dumps: CRC-64 with the polynomial of Jones, reflected.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u64::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x95ac_9329_ac4b_c9b5 } else { 0 })
    })
}

#[test]
fn a_lease_begins_anew_when_the_clock_stepped_back_behind_its_delivery() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nlease = '1s'\n");
    case.push_at(T0, "b", &["1"]);
    take_one(&mut case, T0);
    // A stream as it is after the clock went back by an hour: its delivery lies an hour ahead.
    let key = case.key("ready");
    let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
    let mut dump: Vec<u8> = case.cmd(&["DUMP", &key]);
    let recent = (seconds - 60) * 1_000..(seconds + 60) * 1_000;
    for at in 0..dump.len() - 18 {
        let time = u64::from_le_bytes(dump[at..at + 8].try_into().expect("eight bytes"));
        if recent.contains(&time) {
            dump[at..at + 8].copy_from_slice(&(time + 3_600_000).to_le_bytes());
        }
    }
    let end = dump.len() - 8;
    let crc = crc64(&dump[..end]);
    dump[end..].copy_from_slice(&crc.to_le_bytes());
    redis::cmd("RESTORE").arg(&key).arg(0).arg(dump).arg("REPLACE").exec(&mut case.redis).expect("RESTORE");
    let reap = |case: &mut Case| -> i64 {
        let reply: Vec<Value> = case.fcall("drip__reap", &["policy"], &["", "1", "", ""]);
        redis::from_redis_value(reply[3].clone()).expect("a number")
    };
    assert_eq!(reap(&mut case), 0);
    eventually("it is taken back", || reap(&mut case) == 1);
}

#[test]
fn a_pass_over_many_pending_entries_does_not_read_their_jobs_again() {
    const JOBS: usize = 12_000;
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[defaults]\nrate = '1/s'\nlease = '1h'\n[limits]\nbatch = 1000\n");
    let key = case.key("ready");
    let mut pipe = redis::pipe();
    for n in 0..JOBS {
        pipe.cmd("XADD")
            .arg(&key)
            .arg("*")
            .arg(&["bucket", "b", "job", "x", "lease_ms", "3600000"])
            .arg("n")
            .arg(n)
            .ignore();
    }
    pipe.exec(&mut case.redis).expect("added");
    assert_eq!(case.take("ready", JOBS).len(), JOBS);
    let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
    let now = ((seconds + 5) * S).to_string();
    let mut reads = || -> u64 {
        let _: String = case.cmd(&["CONFIG", "RESETSTAT"]);
        let (mut route, mut id) = (String::new(), String::new());
        loop {
            let reply: Vec<Value> = case.fcall("drip__reap", &["policy"], &[now.as_str(), "1", &route, &id]);
            let text = |n: usize| redis::from_redis_value::<String>(reply[n].clone()).expect("text");
            (route, id) = (text(0), text(1));
            if route.is_empty() {
                break;
            }
        }
        let info: String = case.cmd(&["INFO", "commandstats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_xrange:calls="));
        line.map_or(0, |line| line.split(',').next().expect("a number").parse().expect("a number"))
    };
    let first = reads();
    assert!(first >= JOBS as u64, "{first}");
    let second = reads();
    assert!(second < 200, "{second} reads in the second pass");
}

#[test]
fn a_refused_push_leaves_a_bucket_on_the_schedule_whose_retry_waits_for_its_due() {
    let mut case =
        Case::with("[defaults]\nrate = '1/10s'\nadmit = { limiter = 'fixed-window', limit = 1, period = '1h' }\n");
    case.push_at(T0, "b", &["1"]);
    let entry = take_one(&mut case, T0);
    assert_eq!(fail_at(&mut case, T0, &entry.id, &["RETRY_IN", "1000"]), 1);
    case.settle_at(T0 + 2 * S);
    assert_eq!(case.push_at(T0 + 3 * S, "b", &["2"])[0], 0, "the gate is closed");
    assert_eq!(case.settle_at(T0 + 4 * S).wait_us, 6 * S as i64);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
}

#[test]
fn what_another_server_put_to_rest_is_seen_after_a_while_without_calls() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    case.push_at(T0, "other", &["1"]);
    case.settle_at(T0);
    case.settle_at(T0 + 10 * S);
    let (rest, due) = (case.key("rest"), (T0 + 20 * S).to_string());
    let _: i64 = case.cmd(&["ZADD", &rest, &due, "b"]);
    case.lpush("b", &["1"]);
    assert_eq!(case.wake_at(T0 + 11 * S, &["b"]).dispatched, 0, "it dispatched elsewhere a second ago");
    assert_eq!(case.settle_at(T0 + 20 * S).dispatched, 1);
}

#[test]
fn a_part_of_a_pass_takes_back_a_batch_of_jobs_however_many_routes_there_are() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\nlease = '1s'\n[limits]\nbatch = 50\n");
    for n in 0..10 {
        let (stream, routes) = (case.key(&format!("ready:r{n}")), case.key("routes"));
        let _: String = case.cmd(&["XGROUP", "CREATE", &stream, "workers", "0", "MKSTREAM"]);
        let _: i64 = case.cmd(&["SADD", &routes, &format!("r{n}")]);
        for _ in 0..30 {
            let _: String = case.cmd(&["XADD", &stream, "*", "bucket", "b", "job", "x", "lease_ms", "1000"]);
        }
        case.take(&format!("ready:r{n}"), 30);
    }
    let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
    let (now, mut route, mut id, mut all) = (((seconds + 10) * S).to_string(), String::new(), String::new(), 0);
    loop {
        let reply: Vec<Value> = case.fcall("drip__reap", &["policy"], &[now.as_str(), "1", &route, &id]);
        let text = |n: usize| redis::from_redis_value::<String>(reply[n].clone()).expect("text");
        let taken: i64 = redis::from_redis_value(reply[3].clone()).expect("a number");
        assert!(taken <= 50, "{taken} in one call");
        all += taken;
        (route, id) = (text(0), text(1));
        if route.is_empty() {
            break;
        }
    }
    assert_eq!(all, 300);
}
