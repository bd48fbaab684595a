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
        assert!(now_there.1 <= CAPACITY as i64 + 1, "{now_there:?} after {n}");
    }
    let bytes: i64 = case.cmd(&["MEMORY", "USAGE", &ids, "SAMPLES", "0"]);
    let there: i64 = case.cmd(&["ZCARD", &ids]);
    eprintln!("at most {most:?} ids and lines of jobs; {} bytes for each of {there} ids", bytes / there);
    assert!(bytes / there < 150, "{bytes} bytes for {there} ids");
    let oldest: Vec<String> = case.cmd(&["ZRANGE", &ids, "0", "0"]);
    assert!(oldest[0].as_str() > "id-002400", "what was accepted 2 s ago and more is forgotten: {oldest:?}");
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
    let (jobs, week) = (case.key("jobs:b"), 8 * 86_400 * S);
    assert_eq!(case.cmd::<i64>(&["HLEN", &jobs]), 18);
    for n in 0..200 {
        case.submit_at(T0 + week + n * S, "b", "x", &[]);
        case.settle_at(T0 + week + n * S);
    }
    let known: Vec<String> = case.cmd(&["HKEYS", &jobs]);
    assert!(known.len() <= 21, "{known:?}");
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
    assert_eq!(again(&mut case, T0 + 10 * S - 1), "duplicate");
    assert_eq!(again(&mut case, T0 + 10 * S), "queued", "its time is over, whatever became of the first job");
    case.settle_at(T0 + 10 * S);
    case.settle_at(T0 + 14 * S);
    let jobs = case.jobs("ready");
    assert_eq!(jobs.iter().filter(|job| *job == "again").count(), 1, "{jobs:?}");
    assert_eq!(jobs.last().expect("it left"), "first", "{jobs:?}");
}

#[test]
fn a_cancellation_that_is_repeated_says_the_same_and_of_what_never_left_that_it_will_not() {
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
    for (id, told) in [("gone", 1), ("late", 1), ("purged", 1), ("runs", 2), ("nobody", 0)] {
        assert_eq!(case.cancel_at(T0 + 8 * S, "b", id), told, "{id}");
        let state = if told == 0 { "unknown" } else { "left" };
        assert_eq!(case.find_at(T0 + 8 * S, "b", id), (state.into(), -1, 0), "{id}");
    }
    assert_eq!(case.submit_at(T0 + 8 * S, "b", "gone", &["ID", "gone"]).verdict, "duplicate", "it stays remembered");
    assert_eq!(fail_at(&mut case, T0 + 8 * S, &[]), 1);
    assert_eq!(case.cancel_at(T0 + 8 * S, "b", "runs"), 1, "while it backs off");
    case.settle_at(T0 + 11 * S);
    assert_eq!(case.cancel_at(T0 + 12 * S, "b", "runs"), 1, "it ran once, and will not again");
    assert_eq!(case.cancel_at(T0 + 3_601 * S, "b", "runs"), 0, "it is forgotten");
    assert_eq!(case.submit_at(T0 + 3_601 * S, "b", "gone", &["ID", "gone"]).verdict, "queued");
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
