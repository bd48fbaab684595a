//! The ids of submitted jobs: for how long they are remembered, how many, and what a cancellation is told of them.

use redis::Value;

use crate::rig::{Case, MS, S, T0};

fn fail_at(case: &mut Case, now: u64, options: &[&str]) -> i64 {
    let (now, entry) = (now.to_string(), case.take("ready", 1).remove(0).id);
    let args: Vec<&str> = [now.as_str(), entry.as_str()].into_iter().chain(options.iter().copied()).collect();
    case.fcall("drip__fail", &["ready"], &args)
}

#[test]
fn a_long_loop_of_drops_and_cancellations_remembers_no_more_than_its_bound_and_forgets_the_oldest_first() {
    const CAPACITY: u64 = 30;
    const MOST: i64 = 30 + 200; // and dedup / interval
    let mut case = Case::with(
        "[defaults]\nrate = '100/s'\ncapacity = 30\ndedup = '2s'\noverflow = 'drop-oldest'\ncatch_up = '0s'\n",
    );
    case.settle_at(T0);
    let (ids, jobs) = (case.key("ids:b"), case.key("jobs:b"));
    let mut most = (0, 0);
    for n in 0..3_000_u64 {
        let now = T0 + n * 4 * MS; // two and a half times what may leave
        let reply = case.submit_at(now, "b", "a job", &["ID", &format!("id-{n:06}")]);
        assert_eq!(reply.verdict, "queued");
        if n % 3 == 0 {
            assert_eq!(case.cancel_at(now, "b", &format!("id-{n:06}")), 1);
        }
        if n % 5 == 0 {
            case.settle_at(now);
        }
        let now_there = (case.cmd::<i64>(&["ZCARD", &ids]), case.cmd::<i64>(&["HLEN", &jobs]));
        most = (most.0.max(now_there.0), most.1.max(now_there.1));
        assert!(now_there.0 <= MOST, "{now_there:?} after {n}");
        // A line of each that waits, a mark of each that is cancelled, and one more.
        assert!(now_there.1 <= 2 * CAPACITY as i64 + 1, "{now_there:?} after {n}");
    }
    let bytes: i64 = case.cmd(&["MEMORY", "USAGE", &ids, "SAMPLES", "0"]);
    let there: i64 = case.cmd(&["ZCARD", &ids]);
    eprintln!("at most {most:?} ids and lines of jobs; {} bytes for each of {there} ids", bytes / there);
    assert!(bytes / there < 150, "{bytes} bytes for {there} ids");
    let oldest: Vec<String> = case.cmd(&["ZRANGE", &ids, "0", "0"]);
    assert!(oldest[0].as_str() > "id-002300", "what was accepted 2 s ago and more is forgotten: {oldest:?}");
    let ttl: i64 = case.cmd(&["PTTL", &ids]);
    assert!((1..=2_000).contains(&ttl), "the set expires with its youngest: {ttl}");
    for n in 0..=CAPACITY {
        case.settle_at(T0 + 60 * S + n * 10 * MS);
    }
    assert_eq!(case.cmd::<i64>(&["EXISTS", &jobs]), 0, "of a job that has left nothing else is known");
}

#[test]
fn cancelled_jobs_that_were_dropped_in_great_numbers_are_forgotten_in_the_end() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\ncapacity = 20\ndedup = '2s'\noverflow = 'drop-oldest'\n[limits]\nbatch = 2\n",
    );
    case.settle_at(T0);
    for n in 0..20 {
        case.submit_at(T0, "b", "x", &["ID", &format!("old-{n}")]);
        assert_eq!(case.cancel_at(T0, "b", &format!("old-{n}")), 1);
    }
    let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(case.push_at(T0, "b", &many)[0], 20, "they drop all of them, of which two are read");
    let jobs = case.key("jobs:b");
    assert!(case.cmd::<i64>(&["HLEN", &jobs]) > 20, "lines of jobs that were not read stay");
    for n in 0..20 {
        let id = format!("old-{n}");
        assert_eq!(case.find_at(T0, "b", &id), ("unknown".into(), -1, 0), "{id} is free all the same");
    }
    for n in 1..200 {
        case.submit_at(T0 + n * S, "b", "x", &[]);
        case.settle_at(T0 + n * S);
    }
    let known: Vec<String> = case.cmd(&["HKEYS", &jobs]);
    assert!(known.len() <= 22, "they are dropped in time: {known:?}");
    for n in 0..30 {
        case.settle_at(T0 + (200 + n) * S);
    }
    assert_eq!(case.cmd::<i64>(&["EXISTS", &jobs]), 0, "nothing waits");
}

#[test]
fn an_id_is_a_duplicate_while_its_job_backs_off_is_dead_and_lives_again_and_not_beyond_its_time() {
    let mut case = Case::with(
        "[defaults]\nrate = '100/s'\ndedup = '10s'\nattempts = 2\nbackoff = { initial = '1s', max = '1s' }\n",
    );
    case.settle_at(T0);
    let again = |case: &mut Case, now: u64| case.submit_at(now, "b", "again", &["ID", "a"]).verdict;
    case.submit_at(T0, "b", "first", &["ID", "a"]);
    case.settle_at(T0);
    assert_eq!(again(&mut case, T0), "duplicate", "it is with a worker");
    assert_eq!(fail_at(&mut case, T0, &[]), 1);
    assert_eq!(again(&mut case, T0), "duplicate", "it backs off");
    case.settle_at(T0 + S);
    assert_eq!(fail_at(&mut case, T0 + S, &[]), 2);
    assert_eq!(again(&mut case, T0 + 2 * S), "duplicate", "it is dead");
    assert_eq!(case.cancel_at(T0 + 2 * S, "b", "a"), 2);
    let now = (T0 + 2 * S).to_string();
    let args = [now.as_str(), "", "", "", "", "a", "", "me", "", "all", ""];
    let told: Vec<Value> = case.fcall("drip__dead_retry", &["dead"], &args);
    assert_eq!(told[1], Value::Int(1), "putting it back asks for no id");
    assert_eq!(again(&mut case, T0 + 2 * S), "duplicate", "it lives again");
    case.settle_at(T0 + 2 * S);
    assert_eq!(fail_at(&mut case, T0 + 9 * S, &["RETRY_IN", "5000"]), 1);
    assert_eq!(again(&mut case, T0 + 12 * S), "duplicate", "it backs off, whatever `dedup` says");
    assert_eq!(case.find_at(T0 + 12 * S, "b", "a"), ("retrying".into(), 2_000, 2));
    case.settle_at(T0 + 14 * S);
    assert_eq!(again(&mut case, T0 + 14 * S), "queued", "it has left, and its time is over");
    case.settle_at(T0 + 15 * S);
    assert_eq!(case.jobs("ready"), ["first", "again"]);
}

#[test]
fn a_cancellation_that_is_repeated_says_the_same_and_what_was_taken_away_frees_its_id() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ndedup = '1h'\nbackoff = { initial = '2s', max = '2s' }\n");
    case.settle_at(T0);
    for (id, options) in [("gone", ["DELAY", "1"]), ("late", ["TTL", "5000"]), ("purged", ["DELAY", "9000"])] {
        let reply = case.submit_at(T0, "b", id, &[&["ID", id], &options[..]].concat());
        assert_eq!(reply.five[0], 1, "{reply:?}");
    }
    assert_eq!((case.cancel_at(T0, "b", "gone"), case.cancel_at(T0, "b", "gone")), (1, 1));
    case.submit_at(T0, "b", "runs", &["ID", "runs"]);
    case.settle_at(T0 + 6 * S); // "late" is first, and too late
    assert_eq!(case.jobs("ready"), ["runs"]);
    let args = [(T0 + 7 * S).to_string().as_str(), "0", "me", "", "", "only"].map(str::to_owned);
    let _: Vec<i64> = case.fcall("drip__purge", &["queue:b"], &args);
    for (id, told) in [("gone", 0), ("late", 0), ("purged", 0), ("runs", 2), ("nobody", 0)] {
        assert_eq!(case.cancel_at(T0 + 8 * S, "b", id), told, "{id}");
        let state = if told == 0 { "unknown" } else { "left" };
        assert_eq!(case.find_at(T0 + 8 * S, "b", id), (state.into(), -1, 0), "{id}");
    }
    for id in ["gone", "late", "purged"] {
        let reply = case.submit_at(T0 + 8 * S, "b", id, &["ID", id, "DELAY", "60000"]);
        assert_eq!(reply.verdict, "delayed", "what was taken away without having run frees its id: {id}");
    }
    assert_eq!(fail_at(&mut case, T0 + 8 * S, &[]), 1);
    assert_eq!(case.cancel_at(T0 + 8 * S, "b", "runs"), 1, "while it backs off");
    assert_eq!(case.cancel_at(T0 + 8 * S, "b", "runs"), 1, "once more");
    case.settle_at(T0 + 11 * S);
    assert_eq!(case.cancel_at(T0 + 12 * S, "b", "runs"), 2, "it was dropped, and had left before");
    assert_eq!(case.submit_at(T0 + 12 * S, "b", "runs", &["ID", "runs"]).verdict, "duplicate");
    assert_eq!(
        case.submit_at(T0 + 3_600 * S, "b", "runs", &["ID", "runs"]).verdict,
        "queued",
        "an hour after its accept"
    );
}

#[test]
fn a_job_that_has_run_keeps_its_id_when_its_retry_is_purged() {
    for all in ["0", "1"] {
        let mut case =
            Case::with("[defaults]\nrate = '10/s'\ndedup = '1h'\nbackoff = { initial = '1m', max = '1m' }\n");
        for id in ["runs", "failed"] {
            case.submit_at(T0, "b", id, &["ID", id]);
        }
        case.settle_at(T0);
        case.settle_at(T0 + S);
        for entry in case.take("ready", 2) {
            let args = [(T0 + S).to_string(), entry.id];
            assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
        }
        case.submit_at(T0 + S, "b", "waits", &["ID", "waits", "DELAY", "60000"]);
        let args = [(T0 + 2 * S).to_string().as_str(), "1", "me", "", "", all].map(str::to_owned);
        let gone: Vec<i64> = case.fcall("drip__purge", &["queue:b"], &args);
        assert_eq!(gone[1], 2, "{gone:?}");
        for (id, verdict) in
            [("runs", "duplicate"), ("failed", "duplicate"), ("waits", if all == "1" { "queued" } else { "duplicate" })]
        {
            assert_eq!(case.submit_at(T0 + 3 * S, "b", id, &["ID", id]).verdict, verdict, "{id}, {all}");
        }
    }
}

#[test]
fn jobs_that_are_submitted_together_are_judged_one_by_one_up_to_the_first_without_room() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 2\n[limits]\nmax_job_bytes = 5\n");
    case.settle_at(T0);
    let all = |case: &mut Case, stops: &str, jobs: &[&[&str]]| -> Vec<Vec<Value>> {
        let (now, counts) = (T0.to_string(), jobs.iter().map(|words| words.len().to_string()).collect::<Vec<_>>());
        let mut args = vec![now.as_str(), stops];
        for (count, words) in counts.iter().zip(jobs) {
            args.push(count);
            args.extend(*words);
        }
        case.fcall("drip__submit_all", &["queue:b"], &args)
    };
    let verdicts = |told: &[Vec<Value>]| -> Vec<String> {
        told.iter().map(|one| redis::from_redis_value(one[one.len().min(6) - 1].clone()).expect("a text")).collect()
    };
    let jobs: [&[&str]; 4] = [&["1", "ID", "a"], &["1", "ID", "a"], &["2", "COST", "3", "ID", "b"], &["3", "ID", "c"]];
    let told = all(&mut case, "1", &[&jobs[..], &[&["4", "ID", "a"]]].concat());
    assert_eq!(verdicts(&told), ["queued", "duplicate", "queued", "full"], "it stops there");
    let told =
        all(&mut case, "0", &[&["3", "ID", "c"], &["1", "ID", "a"], &["too large", "ID", "d"], &["1", "ID", "a"]]);
    let said = verdicts(&told);
    assert_eq!(said[..2], ["full", "duplicate"]);
    assert!(said.len() == 3 && said[2].starts_with("TOOLARGE the job has 9 bytes"), "{said:?}");
    assert_eq!(all(&mut case, "0", &[]), Vec::<Vec<Value>>::new());
    let words: Vec<&str> = ["1"].into_iter().chain(["HEADER", "a", "b"].repeat(4_000)).collect();
    assert_eq!(verdicts(&all(&mut case, "0", &[&words])), ["BADARG HEADER a is given twice"]);
    for bad in [vec!["0"], vec!["x", "1"], vec!["2", "1"], vec!["1"]] {
        let now = T0.to_string();
        let args: Vec<&str> = [now.as_str(), "0"].into_iter().chain(bad).collect();
        assert_eq!(case.refusal("drip__submit_all", &["queue:b"], &args), "BADARG");
    }
    let many: Vec<&[&str]> = vec![&["1"]; 101];
    let counts: Vec<&str> = many.iter().flat_map(|words| ["1", words[0]]).collect();
    let now = T0.to_string();
    let args: Vec<&str> = [now.as_str(), "0"].into_iter().chain(counts).collect();
    assert_eq!(case.refusal("drip__submit_all", &["queue:b"], &args), "TOOMANY");
}

#[test]
fn a_job_that_asks_for_nothing_gets_the_deadline_that_its_bucket_asks_for_and_no_other_pays_for_that() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n");
    case.settle_at(T0);
    let post = |case: &mut Case, job: &str| -> Vec<Value> {
        case.fcall("drip__post", &["queue:b"], &[T0.to_string().as_str(), job])
    };
    assert_eq!(post(&mut case, "plain"), [1, 1, 1000, -1, 0].map(Value::Int));
    let json = r#"{"match":"b","what":"set","set":{"ttl":{"text":"5s","policy":{"ttl_us":5000000}}}}"#;
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), json]);
    assert_eq!(told.0, 1);
    let reply = post(&mut case, "with a deadline");
    assert_eq!((reply.len(), &reply[1], &reply[3]), (9, &Value::Int(2), &Value::Int(-1)));
    case.settle_at(T0);
    case.settle_at(T0 + 6 * S);
    assert_eq!(case.jobs("ready"), ["plain"]);
    assert_eq!(case.stream("rejected")[0].text("reason"), "expired");
}

#[test]
fn an_id_is_taken_until_its_job_has_left_whatever_dedup_says() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 100\ndedup = '1s'\n");
    case.settle_at(T0);
    let again = |case: &mut Case, now: u64, id: &str| {
        let reply = case.submit_at(now, "b", "again", &["ID", id]);
        (reply.verdict, reply.five[4])
    };
    case.submit_at(T0, "b", "delayed", &["ID", "delayed", "DELAY", "4000"]);
    for n in 0..3 {
        case.submit_at(T0, "b", &n.to_string(), &["ID", &n.to_string()]);
    }
    let json = r#"{"match":"b","what":"pause","set":{"pause":{"text":"","policy":{}}}}"#;
    let _: Vec<Value> = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), json]);
    let month = T0 + 30 * 86_400 * S;
    for id in ["delayed", "0", "2"] {
        assert_eq!(again(&mut case, T0 + 3 * S, id).0, "duplicate", "{id}");
        assert_eq!(again(&mut case, month, id), ("duplicate".into(), 0), "{id} waits for a month already");
    }
    assert_eq!(case.cancel_at(month, "b", "1"), 1);
    let json = r#"{"match":"b","what":"unset","unset":["pause"]}"#;
    let _: Vec<Value> = case.fcall("drip__set", &["policy"], &[month.to_string().as_str(), json]);
    for n in 0..10 {
        case.settle_at(month + n * S);
    }
    assert_eq!(case.jobs("ready"), ["delayed", "0", "2"], "what was cancelled did not leave");
    assert_eq!(again(&mut case, month + 10 * S, "delayed").0, "queued", "it has left, and `dedup` is over");
}

#[test]
fn a_cancel_is_of_one_job_and_another_one_with_its_id_leaves() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\ndedup = '1s'\n");
    case.settle_at(T0);
    for (n, delay) in [(0, "4000"), (1, "4000"), (2, "9000"), (3, "5000")] {
        let reply = case.submit_at(T0 + n * 1_500 * MS, "b", &n.to_string(), &["ID", "r", "DELAY", delay]);
        assert_eq!(reply.verdict, "delayed", "{n}");
        assert_eq!(case.find_at(T0 + n * 1_500 * MS, "b", "r").0, "delayed");
        if n < 3 {
            assert_eq!(case.cancel_at(T0 + n * 1_500 * MS, "b", "r"), 1);
            assert_eq!(case.find_at(T0 + n * 1_500 * MS, "b", "r").0, "unknown");
        }
    }
    // At one moment too: the clock may tell two of them the same.
    for n in 0..3 {
        assert_eq!(case.submit_at(T0 + 5 * S, "b", &format!("same {n}"), &["ID", "same"]).verdict, "queued", "{n}");
        if n < 2 {
            assert_eq!(case.cancel_at(T0 + 5 * S, "b", "same"), 1);
        }
    }
    for n in 5..20 {
        case.settle_at(T0 + n * S);
    }
    assert_eq!(case.jobs("ready"), ["same 2", "3"]);
    let jobs = case.key("jobs:b");
    assert_eq!(case.cmd::<i64>(&["EXISTS", &jobs]), 0);
}

#[test]
fn a_failed_job_is_found_and_cancelled_while_it_backs_off_also_when_its_id_is_forgotten_or_made_up() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\ndedup = '1s'\nbackoff = { initial = '5s', max = '5s' }\n");
    case.settle_at(T0);
    let mut ids = vec!["given".to_owned(), "kept".to_owned()];
    case.submit_at(T0, "b", "given", &["ID", "given"]);
    case.submit_at(T0, "b", "kept", &["ID", "kept"]);
    ids.push(case.submit_at(T0, "b", "made up", &[]).id);
    for n in 0..3 {
        case.settle_at(T0 + n * 10 * MS);
    }
    let entries = case.take("ready", 3);
    for (entry, options) in entries.iter().zip([&[][..], &["KEEP", "RETRY_IN", "5000"], &[]]) {
        let args: Vec<String> = [(T0 + 2 * S).to_string(), entry.id.clone()]
            .into_iter()
            .chain(options.iter().map(|o| (*o).to_owned()))
            .collect();
        assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
    }
    for id in &ids {
        assert_eq!(case.find_at(T0 + 3 * S, "b", id).0, "retrying", "{id}");
        assert_eq!(case.cancel_at(T0 + 3 * S, "b", id), 1, "{id}");
    }
    for n in 0..10 {
        case.settle_at(T0 + (4 + n) * S);
    }
    assert_eq!(case.jobs("ready"), Vec::<String>::new());
}

#[test]
fn a_job_takes_the_place_of_one_that_waits_and_nothing_is_counted_anew() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\ncapacity = 3\nttl = '1h'\nquota = '100/h'\nbackoff = { initial = '5s', max = '5s' }\n",
    );
    case.settle_at(T0);
    case.submit_at(T0, "b", "first", &["ID", "first"]);
    case.settle_at(T0);
    for id in ["a", "b", "c"] {
        case.submit_at(T0, "b", id, &["ID", id]);
    }
    case.submit_at(T0, "b", "later", &["ID", "later", "DELAY", "60000"]);
    assert_eq!(fail_at(&mut case, T0, &[]), 1);
    let replace = |case: &mut Case, id: &str, body: &str, options: &[&str]| {
        case.submit_at(T0, "b", body, &[&["ID", id, "REPLACE"], options].concat())
    };
    let reply = replace(&mut case, "b", "b2", &["COST", "2", "HEADER", "h", "2", "TTL", "9000"]);
    assert_eq!((reply.verdict.as_str(), reply.five, reply.id.as_str()), ("replaced", [1, 3, 3, -1, 2_000], "b"));
    assert_eq!(replace(&mut case, "b", "b3", &["HEADER", "h", "3", "TTL", "9000"]).verdict, "replaced", "and again");
    assert_eq!(replace(&mut case, "first", "retry", &["HEADER", "h", "retry"]).verdict, "replaced");
    assert_eq!(replace(&mut case, "later", "sooner", &["DELAY", "2500"]).five[4], 2_500);
    assert_eq!(case.find_at(T0, "b", "later"), ("delayed".into(), 2_500, 1));
    assert_eq!(replace(&mut case, "c", "c2", &["TTL", "1"]).verdict, "replaced", "it will be late, and is not judged");
    assert_eq!(replace(&mut case, "new", "new", &[]).verdict, "full", "where there is none it is as without");
    assert_eq!(case.refusal("drip__submit", &["queue:b"], &[T0.to_string().as_str(), "x", "REPLACE"]), "BADARG");
    for n in 1..10 {
        case.settle_at(T0 + n * S);
    }
    let left: Vec<(String, String)> = case
        .stream("ready")
        .iter()
        .map(|entry| (entry.text("job"), entry.fields.get("h:h").map_or(String::new(), |_| entry.text("h:h"))))
        .collect();
    let expected = [("a", ""), ("b3", "3"), ("sooner", ""), ("retry", "retry")];
    assert_eq!(left, expected.map(|(job, header)| (job.to_owned(), header.to_owned())));
    let rejected = case.stream("rejected");
    assert_eq!(
        (rejected.len(), rejected[0].text("job"), rejected[0].text("reason")),
        (1, "c2".into(), "expired".into())
    );
    assert_eq!(replace(&mut case, "a", "a2", &[]).verdict, "duplicate", "it has left");
    let stats = case.key("stats");
    assert_eq!(case.cmd::<String>(&["HGET", &stats, "replaced"]), "5");
}

#[test]
fn ten_thousand_pushes_of_a_hundred_ids_make_a_hundred_jobs_with_the_last_body_each_in_its_first_place() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\ncapacity = 1000\n");
    case.settle_at(T0);
    for n in 0..100 {
        case.submit_at(T0, "b", "0", &["ID", &n.to_string()]);
    }
    let mut replaced = 0;
    for n in 1..100 {
        for id in 0..100 {
            let (now, id) = (T0 + n, id.to_string());
            let delay: &[&str] = if n % 10 == 0 { &["DELAY", "86400000"] } else { &[] };
            let reply = case.submit_at(now, "b", &n.to_string(), &[&["ID", &id, "REPLACE"], delay].concat());
            replaced += usize::from(reply.verdict == "replaced");
        }
    }
    let queue = case.queue("b");
    assert_eq!((replaced, case.cmd::<i64>(&["LLEN", &queue])), (9_900, 100));
    for n in 1..=100 {
        case.settle_at(T0 + n * S);
    }
    let left = case.stream("ready");
    let ids: Vec<String> = left.iter().map(|entry| entry.text("id")).collect();
    assert_eq!(ids, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(left.iter().all(|entry| entry.text("job") == "99"));
}

#[test]
fn one_of_many_that_wait_for_the_same_moment_gets_another_one() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\ncapacity = 5000\n");
    case.settle_at(T0);
    let at = ((T0 + 60 * S) / MS).to_string();
    for n in 0..2_000_u64 {
        case.submit_at(T0 + n / 3, "b", &n.to_string(), &["ID", &n.to_string(), "AT", &at]);
    }
    for n in [0, 1_000, 1_999] {
        let reply = case.submit_at(T0 + S, "b", "new", &["ID", &n.to_string(), "REPLACE", "DELAY", "1000"]);
        assert_eq!((reply.verdict.as_str(), reply.five[4]), ("replaced", 1_000), "{n}");
    }
    assert_eq!(case.submit_at(T0 + S, "b", "now", &["ID", "7", "REPLACE"]).five[4], 0, "without a delay: at once");
    for ms in [1_000, 2_000, 2_001, 2_002] {
        case.settle_at(T0 + ms * MS);
    }
    let mut left = case.jobs("ready");
    left.sort();
    assert_eq!(left, ["new", "new", "new", "now"]);
    let delayed = case.key("delayed:b");
    assert_eq!(case.cmd::<i64>(&["ZCARD", &delayed]), 1_996);
}

#[test]
fn a_job_that_is_too_late_to_leave_frees_its_id_before_its_turn() {
    let mut case = Case::with("[defaults]\nrate = '1/h'\ndedup = '1h'\n");
    case.settle_at(T0);
    case.submit_at(T0, "b", "first", &[]);
    case.settle_at(T0);
    let json = r#"{"match":"b","what":"pause","set":{"pause":{"text":"","policy":{}}}}"#;
    let _: Vec<Value> = case.fcall("drip__set", &["policy"], &[T0.to_string().as_str(), json]);
    case.submit_at(T0, "b", "old", &["ID", "queued", "TTL", "7200000"]);
    case.submit_at(T0, "b", "old", &["ID", "delayed", "DELAY", "1000", "TTL", "7200000"]);
    case.submit_at(T0, "b", "kept", &["ID", "kept", "TTL", "1", "REPLACE"]);
    case.submit_at(T0, "b", "kept", &["ID", "kept", "TTL", "7200000"]);
    case.submit_at(T0, "b", "kept 2", &["ID", "kept", "REPLACE", "TTL", "86400000"]);
    let late = T0 + 7_202 * S;
    for id in ["queued", "delayed"] {
        assert_eq!(
            case.submit_at(T0 + 7_199 * S, "b", "new", &["ID", id]).verdict,
            "duplicate",
            "{id} may still leave"
        );
        assert_eq!(case.find_at(late, "b", id), ("unknown".into(), -1, 0), "{id}");
        assert_eq!(case.cancel_at(late, "b", id), 0, "{id}");
        assert_eq!(case.submit_at(late, "b", "new", &["ID", id]).verdict, "queued", "{id}");
    }
    assert_eq!(case.find_at(late, "b", "kept").0, "queued", "its deadline was replaced");
    let json = r#"{"match":"b","what":"unset","unset":["pause"]}"#;
    let _: Vec<Value> = case.fcall("drip__set", &["policy"], &[late.to_string().as_str(), json]);
    for n in 0..10 {
        case.settle_at(late + n * 3_600 * S);
    }
    let mut left = case.jobs("ready");
    left.sort();
    assert_eq!(left, ["first", "kept 2", "new", "new"]);
    assert_eq!(case.jobs("rejected"), ["old", "old"]);
}
