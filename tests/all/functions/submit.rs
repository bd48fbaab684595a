//! Submitted jobs: the verdicts, the ids that are remembered, what is stored, and what a worker gets.

use redis::Value;

use crate::rig::{Case, MS, S, T0};

const SLOW: &str = "[defaults]\nrate = '1/s'\ncapacity = 3\n";

fn verdict(case: &mut Case, now: u64, job: &str, options: &[&str]) -> (String, [i64; 5]) {
    let reply = case.submit_at(now, "b", job, options);
    (reply.verdict, reply.five)
}

fn fail_at(case: &mut Case, now: u64, entry: &str, options: &[&str]) -> i64 {
    let now = now.to_string();
    let args: Vec<&str> = [now.as_str(), entry].into_iter().chain(options.iter().copied()).collect();
    case.fcall("drip__fail", &["ready"], &args)
}

#[test]
fn a_submit_without_options_replies_what_a_push_does_and_leaves_in_turn_with_plain_jobs() {
    let mut case = Case::with(SLOW);
    case.settle_at(T0);
    let first = case.submit_at(T0, "b", "1", &[]);
    assert_eq!((first.five, first.verdict.as_str()), ([1, 1, 3, -1, 0], "queued"));
    assert_eq!((first.expected_ms, first.by.as_str()), (0, "b"));
    assert_eq!(case.push_at(T0, "b", &["2"]), [1, 2, 3, -1, 1_000]);
    let third = case.submit_at(T0, "b", "3", &[]);
    assert_eq!((third.five, third.verdict.as_str()), ([1, 3, 3, -1, 2_000], "queued"));
    assert_ne!(first.id, third.id, "made up");
    let full = case.submit_at(T0, "b", "4", &[]);
    assert_eq!((full.five, full.verdict.as_str(), full.id.as_str()), ([0, 3, 3, 1, -1], "full", ""));
    for n in 0..3 {
        assert_eq!(case.settle_at(T0 + n * S).dispatched, 1);
    }
    assert_eq!(case.jobs("ready"), ["1", "2", "3"]);
    let seen = case.stream("ready");
    assert_eq!((seen[0].text("id"), seen[2].text("id")), (first.id, third.id));
    assert!(!seen[1].fields.contains_key("id"), "a plain job has none of its own yet");
    assert!(!seen[0].fields.contains_key("cost") && !seen[0].fields.contains_key("deadline_us"));
}

#[test]
fn whatever_bytes_a_job_has_the_worker_gets_them_and_its_headers() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    let queue = case.queue("b");
    let jobs: [&[u8]; 5] = [b"", b"\n\n", b"1 0 x\n\n", &[0, 255, 254, 10], b"a:b\n"];
    for (n, job) in jobs.iter().enumerate() {
        let mut call = redis::cmd("FCALL");
        call.arg("drip__submit").arg(1).arg(&queue).arg(T0).arg(*job);
        call.arg("HEADER").arg("traceparent").arg(format!("00-{n}: \"x\"")).arg("HEADER").arg("x-empty").arg("");
        let _: Value = call.query(&mut case.redis).expect("accepted");
    }
    for n in 0..5 {
        case.settle_at(T0 + n * MS);
    }
    let seen = case.stream("ready");
    assert_eq!(seen.iter().map(|entry| entry.fields["job"].as_slice()).collect::<Vec<_>>(), jobs);
    for (n, entry) in seen.iter().enumerate() {
        assert_eq!((entry.text("h:traceparent"), entry.text("h:x-empty")), (format!("00-{n}: \"x\""), String::new()));
    }
}

#[test]
fn a_second_push_of_an_id_is_a_duplicate_for_as_long_as_it_is_remembered() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 100\ndedup = '10s'\n");
    case.settle_at(T0);
    assert_eq!(verdict(&mut case, T0, "1", &["ID", "a"]), ("queued".into(), [1, 1, 100, -1, 0]));
    assert_eq!(verdict(&mut case, T0, "2", &["ID", "b"]), ("queued".into(), [1, 2, 100, -1, 1_000]));
    assert_eq!(verdict(&mut case, T0, "other", &["ID", "b"]), ("duplicate".into(), [1, 2, 100, -1, 1_000]));
    assert_eq!(verdict(&mut case, T0 + 400 * MS, "2", &["ID", "b"]), ("duplicate".into(), [1, 2, 100, -1, 600]));
    case.settle_at(T0 + 400 * MS);
    case.settle_at(T0 + 2 * S);
    assert_eq!(verdict(&mut case, T0 + 3 * S, "2", &["ID", "b"]), ("duplicate".into(), [1, 0, 100, -1, -1]));
    assert_eq!(verdict(&mut case, T0 + 10 * S - 1, "2", &["ID", "b"]).0, "duplicate", "never extended");
    assert_eq!(verdict(&mut case, T0 + 10 * S, "2", &["ID", "b"]).0, "queued");
    case.settle_at(T0 + 12 * S);
    assert_eq!(case.jobs("ready"), ["1", "2", "2"]);
    let again = case.submit_at(T0 + 12 * S, "b2", "1", &["ID", "a"]);
    assert_eq!(again.verdict, "queued", "of another bucket it is another one");
}

#[test]
fn at_most_capacity_and_what_leaves_in_the_time_is_remembered_the_oldest_is_forgotten_first() {
    let mut case = Case::with("[defaults]\nrate = '2/s'\ncapacity = 3\ndedup = '2s'\n");
    for n in 0..20_u64 {
        let now = T0 + n * 500 * MS / 4;
        case.submit_at(now, "b", "x", &["ID", &format!("id{n}")]);
        case.settle_at(now);
    }
    let ids = case.key("ids:b");
    assert!(case.cmd::<i64>(&["ZCARD", &ids]) <= 3 + 4);
    assert!(case.cmd::<i64>(&["PTTL", &ids]) > 0, "it expires");
}

#[test]
fn a_refused_submit_leaves_no_trace() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\ncapacity = 1\nadmit = { limiter = 'fixed-window', limit = 2, period = '1h' }\n",
    );
    case.settle_at(T0);
    assert_eq!(verdict(&mut case, T0, "1", &["ID", "a"]).0, "queued");
    let before = case.keys();
    assert_eq!(verdict(&mut case, T0, "2", &["ID", "b"]), ("full".into(), [0, 1, 1, 1, -1]));
    assert_eq!(verdict(&mut case, T0, "2", &["ID", "c", "DELAY", "5000"]).0, "delayed", "of another bound");
    assert_eq!(case.find_at(T0, "b", "b"), ("unknown".into(), -1, 0));
    case.settle_at(T0);
    let gated = case.submit_at(T0, "b", "2", &["ID", "b"]);
    assert_eq!((gated.verdict.as_str(), gated.by.as_str()), ("gated", "fixed-window"));
    assert!(gated.five[3] > 0 && gated.five[4] == -1, "{gated:?}");
    assert_eq!(case.find_at(T0, "b", "b"), ("unknown".into(), -1, 0));
    assert!(before.iter().any(|key| key == "jobs:b"), "{before:?}");
}

#[test]
fn an_option_that_is_unknown_doubled_or_malformed_is_refused_by_name_and_changes_nothing() {
    let mut case = Case::with(SLOW);
    let long = "x".repeat(201);
    let heavy = "v".repeat(1_020);
    let too_many: Vec<String> = (0..9).flat_map(|n| ["HEADER".into(), format!("h{n}"), "v".into()]).collect();
    let too_many: Vec<&str> = too_many.iter().map(String::as_str).collect();
    let bad: Vec<(Vec<&str>, &str)> = vec![
        (vec!["PRIORITY", "1"], "PRIORITY"),
        (vec!["ID"], "ID"),
        (vec!["ID", ""], "ID"),
        (vec!["ID", "a b"], "ID"),
        (vec!["ID", &long], "ID"),
        (vec!["ID", "a", "id", "a"], "ID is given twice"),
        (vec!["DELAY", "-1"], "DELAY"),
        (vec!["DELAY", "1e3"], "DELAY"),
        (vec!["DELAY", "31622400001"], "DELAY"),
        (vec!["DELAY", "1", "AT", "1750000000000"], "AT and DELAY"),
        (vec!["AT", "1750000000000", "DELAY", "1"], "DELAY and AT"),
        (vec!["AT", "9999999999999"], "AT is more than 366 days ahead"),
        (vec!["AT", "0"], "are these seconds?"),
        (
            vec!["AT", "1750000000"],
            "AT needs milliseconds since 1970, and 1750000000 of them are long ago: are these seconds?",
        ),
        (vec!["AT", "99999999999"], "are these seconds?"),
        (vec!["TTL", "0"], "TTL"),
        (vec!["TTL", "5s"], "TTL"),
        (vec!["COST", "0"], "COST"),
        (vec!["COST", "100001"], "COST"),
        (vec!["HEADER", "a"], "HEADER"),
        (vec!["HEADER", "A", "b"], "HEADER"),
        (vec!["HEADER", "", "b"], "HEADER"),
        (vec!["HEADER", "a", "line\n"], "HEADER"),
        (vec!["HEADER", "a", "1", "HEADER", "a", "2"], "HEADER a is given twice"),
        (vec!["HEADER", "name", &heavy, "HEADER", "x", "y"], "HEADER"),
        (too_many, "HEADER"),
    ];
    assert_eq!(case.submit_at(T0, "c", "job", &["AT", "100000000000"]).verdict, "queued", "1973 is the past");
    let before = case.keys();
    for (options, named) in bad {
        let now = T0.to_string();
        let args: Vec<&str> = [now.as_str(), "job"].into_iter().chain(options.iter().copied()).collect();
        let why = case.try_fcall::<Value>("drip__submit", &["queue:b"], &args).expect_err("refused");
        assert_eq!(why.code(), Some("BADARG"), "{options:?}");
        assert!(why.detail().unwrap_or_default().contains(named), "{options:?}: {why}");
    }
    assert_eq!(case.refusal("drip__submit", &["queue:b"], &[T0.to_string()]), "BADARG", "no job");
    assert_eq!(case.refusal("drip__submit", &["nothing:b"], &[T0.to_string().as_str(), "job"]), "BADBUCKET");
    for name in ["drip__find", "drip__cancel"] {
        for args in [vec![], vec!["a", "b"], vec![""], vec!["a b"]] {
            let now = T0.to_string();
            let args: Vec<&str> = [now.as_str()].into_iter().chain(args).collect();
            assert_eq!(case.refusal(name, &["queue:b"], &args), "BADARG", "{name} {args:?}");
        }
    }
    assert_eq!(case.keys(), before);
}

#[test]
fn the_size_of_the_body_alone_counts() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n[limits]\nmax_job_bytes = 10\n");
    let header = "v".repeat(500);
    let good = ["HEADER", "h", header.as_str()];
    assert_eq!(case.submit_at(T0, "b", "0123456789", &good).verdict, "queued");
    let args = [T0.to_string(), "01234567890".into()];
    assert_eq!(case.refusal("drip__submit", &["queue:b"], &args), "TOOLARGE");
    case.settle_at(T0);
    assert_eq!(case.jobs("ready"), ["0123456789"]);
    assert_eq!(case.submit_at(T0 + S, "b", "0123456789", &good).verdict, "queued");
    case.configure("[defaults]\nrate = '1000/s'\n[limits]\nmax_job_bytes = 9\n");
    case.settle_at(T0 + S);
    let rejected = case.stream("rejected");
    assert_eq!((rejected[0].text("job"), rejected[0].text("reason")), ("0123456789".into(), "too_large".into()));
}

#[test]
fn what_is_cut_or_dropped_shows_the_body_and_only_what_is_dropped_is_forgotten() {
    let mut case = Case::with(SLOW);
    case.settle_at(T0);
    case.lpush("b", &["1", "2"]);
    case.submit_at(T0, "b", "three", &["ID", "c"]);
    case.lpush("b", &["4"]);
    case.wake_at(T0 + 1, &["b"]);
    assert_eq!(case.jobs("rejected"), ["4"]);
    case.configure_at(&(T0 + 2).to_string(), "[defaults]\nrate = '1/s'\ncapacity = 2\noverflow = 'drop-oldest'\n");
    case.settle_at(T0 + 2);
    let queue = case.queue("b");
    assert_eq!(case.cmd::<i64>(&["LLEN", &queue]), 2, "2 and three");
    case.push_at(T0 + 3, "b", &["5", "6"]);
    let rejected = case.stream("rejected");
    assert_eq!(rejected.iter().map(|one| one.text("job")).collect::<Vec<_>>(), ["4", "2", "three"]);
    assert_eq!(rejected[2].text("reason"), "dropped");
    assert_eq!(case.find_at(T0 + 3, "b", "c"), ("unknown".into(), -1, 0));
    assert_eq!(case.submit_at(T0 + 3, "b", "three", &["ID", "c"]).verdict, "queued");
}

#[test]
fn an_id_and_headers_go_with_a_job_through_retries_and_the_dead_stream_and_back() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\nattempts = 2\nbackoff = { initial = '1s', max = '1s' }\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "x", &["ID", "order-7", "HEADER", "h", "v 1", "TTL", "3600000"]);
    case.settle_at(T0);
    assert_eq!(case.find_at(T0, "b", "order-7").0, "left");
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(fail_at(&mut case, T0, &entry.id, &["KEEP", "RETRY_IN", "10"]), 1);
    assert_eq!(case.find_at(T0, "b", "order-7"), ("retrying".into(), 10, 1));
    case.settle_at(T0 + 100 * MS);
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(fail_at(&mut case, T0 + 100 * MS, &entry.id, &[]), 1);
    assert_eq!(case.find_at(T0 + 100 * MS, "b", "order-7"), ("retrying".into(), 1_000, 2));
    case.settle_at(T0 + 1_100 * MS);
    assert_eq!(case.find_at(T0 + 2 * S, "b", "order-7").0, "left");
    let entry = case.take("ready", 1).remove(0);
    let told = |entry: &crate::rig::Entry| (entry.text("id"), entry.text("h:h"), entry.text("job"));
    assert_eq!(told(&entry), ("order-7".into(), "v 1".into(), "x".into()));
    assert_eq!((entry.text("attempt"), entry.text("kept")), ("2".into(), "1".into()));
    assert_eq!(entry.number("deadline_us"), T0 + 3_600 * S);
    assert_eq!(fail_at(&mut case, T0 + 2 * S, &entry.id, &[]), 2);
    let dead = case.stream("dead").remove(0);
    assert_eq!(told(&dead), ("order-7".into(), "v 1".into(), "x".into()));
    assert!(!dead.fields.contains_key("deadline_us"));
    let now = (T0 + 3 * S).to_string();
    let reply: Vec<Value> =
        case.fcall("drip__dead_retry", &["dead"], &[now.as_str(), "", "", "", "", "order-7", "", "me", "", "all", ""]);
    assert_eq!(reply[1], Value::Int(1));
    case.settle_at(T0 + 3 * S);
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(told(&entry), ("order-7".into(), "v 1".into(), "x".into()));
    assert_eq!(entry.text("attempt"), "1");
    assert!(!entry.fields.contains_key("deadline_us"), "a second life has none");
}

#[test]
fn a_cancelled_job_is_dropped_at_its_turn_without_a_slot() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nbackoff = { initial = '2s', max = '2s' }\n");
    case.settle_at(T0);
    for id in ["a", "b", "c", "d"] {
        case.submit_at(T0, "b", id, &["ID", id]);
    }
    case.submit_at(T0, "b", "later", &["ID", "later", "DELAY", "2500"]);
    assert_eq!((case.cancel_at(T0, "b", "b"), case.cancel_at(T0, "b", "none")), (1, 0));
    assert_eq!(case.cancel_at(T0, "b", "later"), 1);
    assert_eq!(case.find_at(T0, "b", "b").0, "unknown", "its id is free");
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.cancel_at(T0, "b", "a"), 2);
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
    assert_eq!(case.jobs("ready"), ["a", "c"], "its place and its slot are the next one's");
    let entry = case.take("ready", 1).remove(0);
    assert_eq!(fail_at(&mut case, T0 + S, &entry.id, &[]), 1);
    assert_eq!(case.cancel_at(T0 + S, "b", "a"), 1, "while it backs off");
    for n in 2..6 {
        case.settle_at(T0 + n * S);
    }
    assert_eq!(case.jobs("ready"), ["c", "d"]);
    let kept = case.keys();
    assert!(!kept.iter().any(|key| key.starts_with("jobs:") || key.starts_with("delayed:")), "{kept:?}");
}

#[test]
fn without_an_id_of_its_own_nothing_of_a_job_stays_when_it_has_left() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    let id = case.submit_at(T0, "b", "x", &[]).id;
    assert_eq!(case.find_at(T0, "b", &id), ("queued".into(), 0, 1));
    case.settle_at(T0);
    assert_eq!(case.find_at(T0, "b", &id), ("unknown".into(), -1, 0));
    let kept = case.keys();
    assert!(!kept.iter().any(|key| key.ends_with(":b")), "{kept:?}");
}

#[test]
fn nobody_can_push_what_is_taken_for_a_submitted_job() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\n");
    case.submit_at(T0, "b", "x", &["ID", "a"]);
    case.settle_at(T0);
    let fakes = ["1 1 0 a\n\nbody", "xxxxxxxxxxxxxxxx1 1 0 a\n\nbody"];
    case.lpush("b", &fakes);
    case.push_at(T0 + S, "b", &fakes);
    for n in 0..4 {
        case.settle_at(T0 + S + n * MS);
    }
    assert_eq!(case.jobs("ready")[1..], [fakes[0], fakes[1], fakes[0], fakes[1]]);
}
