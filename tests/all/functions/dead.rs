//! Dead letters: looked at by page and by filter, put back through their buckets, dropped; each exactly once.

use std::collections::BTreeMap;

use crate::rig::{Case, Entry, MS, S, T0};

const CONFIG: &str = "[defaults]\nrate = '10/s'\ncatch_up = '0s'\n[[bucket]]\nmatch = 'slow'\nrate = '1/10s'\n";

/// The first arguments of each of the functions.
#[derive(Default, Clone)]
struct Filter {
    after: String,
    upto: String,
    bucket: String,
    reason: String,
    id: String,
}

impl Filter {
    fn args(&self, now: u64) -> Vec<String> {
        let Self { after, upto, bucket, reason, id } = self.clone();
        vec![now.to_string(), after, upto, bucket, reason, id]
    }
}

fn bucket(glob: &str) -> Filter {
    Filter { bucket: glob.into(), ..Filter::default() }
}

/// What a retry or a drop replies.
#[derive(Debug, PartialEq)]
struct Changed {
    on: String,
    n: i64,
    malformed: i64,
    kept: i64,
    left: i64,
    event: String,
}

/// A command of an operator: calls with one filter, one event and one count.
struct Command {
    name: &'static str,
    filter: Filter,
    most: Option<i64>,
    event: String,
    done: i64,
}

impl Command {
    fn new(name: &'static str, filter: Filter) -> Self {
        Self { name, filter, most: None, event: String::new(), done: 0 }
    }

    /// The next call of it.
    fn call(&mut self, case: &mut Case, now: u64) -> Changed {
        let mut args = self.filter.args(now);
        let most = self.most.map(|most| (most - self.done).to_string()).unwrap_or_default();
        args.extend([most, "ada@web1".into(), "default".into(), self.filter.bucket.clone(), "all of them".into()]);
        args.extend([self.event.clone(), self.done.to_string()]);
        let (on, n, malformed, kept, left, event, _): (_, _, _, _, _, _, Vec<String>) =
            case.fcall(self.name, &["dead"], &args);
        let reply = Changed { on, n, malformed, kept, left, event };
        (self.filter.after, self.event) = (reply.on.clone(), reply.event.clone());
        self.done += reply.n;
        reply
    }

    /// All of its calls, each a moment after the one before. Replies what was changed, and what was malformed.
    fn run(mut self, case: &mut Case, now: u64) -> (i64, i64) {
        let mut malformed = 0;
        for n in 0..100_000 {
            let reply = self.call(case, now + n * MS);
            malformed += reply.malformed;
            if reply.on.is_empty() || self.most == Some(self.done) {
                return (self.done, malformed);
            }
        }
        panic!("a command that does not end");
    }
}

fn retry_all(case: &mut Case, now: u64, filter: Filter) -> (i64, i64) {
    Command::new("drip__dead_retry", filter).run(case, now)
}

fn drop_all(case: &mut Case, now: u64, filter: Filter) -> (i64, i64) {
    Command::new("drip__dead_drop", filter).run(case, now)
}

/// An entry of the dead stream, as the functions write it. Replies its id.
fn bury(case: &mut Case, bucket: &str, job: &str, reason: &str) -> String {
    let (dead, id) = (case.key("dead"), format!("1700000000000-{}", job.len()));
    case.cmd(&["XADD", &dead, "*", "bucket", bucket, "job", job, "attempt", "5", "id", &id, "reason", reason])
}

/// Pages of a list, each of at most `most`: the entries with what is said of them.
fn pages(case: &mut Case, mut filter: Filter, most: usize) -> Vec<Vec<(String, bool)>> {
    let mut pages = Vec::new();
    loop {
        let mut args = filter.args(T0);
        args.push(most.to_string());
        let (on, list): (String, Vec<(String, i64, Vec<String>)>) = case.fcall("drip__dead_list", &["dead"], &args);
        assert!(list.len() <= most);
        pages.push(list.into_iter().map(|(id, malformed, _)| (id, malformed == 1)).collect());
        if on.is_empty() {
            return pages;
        }
        filter.after = on;
    }
}

fn listed(case: &mut Case, filter: Filter) -> Vec<String> {
    pages(case, filter, 1_000).concat().into_iter().map(|(id, _)| id).collect()
}

/// A bucket, how many of it are dead, and its rate: count and period.
type Backlog = (String, i64, i64, i64);

/// What a count replies, by bucket, and how many are malformed.
fn counted(case: &mut Case, mut filter: Filter, most: &str, with_malformed: &str) -> (BTreeMap<String, i64>, i64) {
    let (mut all, mut malformed) = (BTreeMap::new(), 0);
    loop {
        let mut args = filter.args(T0);
        args.extend([most.to_owned(), with_malformed.to_owned()]);
        let (on, upto, bad, list): (String, String, i64, Vec<Backlog>) =
            case.fcall("drip__dead_count", &["dead"], &args);
        malformed += bad;
        for (name, n, count, period_us) in list {
            assert_eq!((count, period_us), if name == "slow" { (1, 10_000_000) } else { (10, 1_000_000) });
            *all.entry(name).or_default() += n;
        }
        if on.is_empty() || !most.is_empty() {
            return (all, malformed);
        }
        (filter.after, filter.upto) = (on, upto);
    }
}

/// The bodies of a bucket's retries, in the order in which they leave.
fn retries(case: &mut Case, bucket: &str) -> Vec<String> {
    let key = case.key(&format!("retry:{bucket}"));
    let members: Vec<String> = case.cmd(&["ZRANGE", &key, "0", "-1"]);
    members.iter().map(|member| member.splitn(8, ' ').nth(7).expect("a body").to_owned()).collect()
}

#[test]
fn a_dead_job_goes_back_with_its_bytes_and_its_identity_and_attempt_1() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nattempts = 3\nbackoff = { initial = '1s', max = '1s' }\n");
    case.push_at(T0, "b", &["a job\0 with any bytes"]);
    let (mut now, mut first) = (T0, String::new());
    for attempt in 1..=3 {
        case.settle_at(now);
        let taken = case.take("ready", 1).remove(0);
        assert_eq!(taken.number("attempt"), attempt);
        if attempt == 1 {
            first.clone_from(&taken.id);
        }
        let outcome: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), taken.id]);
        assert_eq!(outcome, if attempt < 3 { 1 } else { 2 });
        now += S;
    }
    case.push_at(now, "b", &["waits"]);
    let wakes = case.key("wake");
    let before: Option<i64> = case.cmd(&["GET", &wakes]);
    assert_eq!(retry_all(&mut case, now, Filter::default()), (1, 0));
    assert_eq!(case.stream("dead"), []);
    assert!(case.cmd::<Option<i64>>(&["GET", &wakes]) > before, "the daemons hear of it");
    assert_eq!(case.settle_at(now).dispatched, 1, "its back-off has ended, and it takes a slot");
    let again = case.take("ready", 1).remove(0);
    assert_eq!((again.text("job"), again.text("bucket")), ("a job\0 with any bytes".into(), "b".into()));
    assert_eq!((again.number("attempt"), again.text("id")), (1, first.clone()));
    assert!(!again.fields.contains_key("kept"));
    assert_eq!(case.settle_at(now + S - 1).dispatched, 0, "the rate holds");
    assert_eq!(case.settle_at(now + S).dispatched, 1);
    assert_eq!(case.jobs("ready")[1..], ["waits"], "it went ahead of the queue");

    // It dies again, and is the same job still.
    let args = [now.to_string(), again.id, "DEAD".into()];
    assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 2);
    assert_eq!((case.stream("dead")[0].text("id"), case.stream("dead")[0].number("attempt")), (first, 1));
}

#[test]
fn what_goes_back_needs_no_other_work_and_uses_no_memory_afterwards() {
    let mut case = Case::with(CONFIG);
    for job in ["1", "2", "3"] {
        bury(&mut case, "b", job, "failed");
    }
    assert_eq!(retry_all(&mut case, T0, Filter::default()), (3, 0));
    assert_eq!(retries(&mut case, "b"), ["1", "2", "3"]);
    for n in 0..3 {
        assert_eq!(case.settle_at(T0 + n * 100 * MS).dispatched, 1);
    }
    assert_eq!(case.jobs("ready"), ["1", "2", "3"], "in the order in which they died");
    case.settle_at(T0 + 10 * S);
    let left = case.keys();
    assert!(left.iter().all(|key| !["retr", "rest", "sched"].iter().any(|word| key.starts_with(word))), "{left:?}");
}

#[test]
fn jobs_that_died_in_one_millisecond_go_back_in_their_order() {
    let mut case = Case::with(CONFIG);
    let dead = case.key("dead");
    for n in 0..30 {
        let (id, job) = (format!("1750000000000-{n}"), n.to_string());
        let _: String = case.cmd(&["XADD", &dead, &id, "bucket", "b", "job", &job, "attempt", "5", "id", "1-1"]);
    }
    retry_all(&mut case, T0, Filter::default());
    assert_eq!(retries(&mut case, "b"), (0..30).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_retry_of_dead_jobs_waits_for_nobody_but_its_bucket() {
    let mut case = Case::with(CONFIG);
    case.push_at(T0, "slow", &["1", "2"]);
    case.push_at(T0, "b", &["1"]);
    case.settle_at(T0);
    bury(&mut case, "slow", "dead", "failed");
    bury(&mut case, "b", "dead", "failed");
    let both = [("b".to_owned(), 1), ("slow".to_owned(), 1)].into();
    assert_eq!(counted(&mut case, Filter::default(), "", "0"), (both, 0));
    assert_eq!(retry_all(&mut case, T0 + S, Filter::default()), (2, 0));
    assert_eq!(case.settle_at(T0 + S).dispatched, 1);
    assert_eq!(case.settle_at(T0 + 10 * S - 1).dispatched, 0);
    assert_eq!(case.settle_at(T0 + 10 * S).dispatched, 1);
    assert_eq!(case.jobs("ready")[2..], ["dead", "dead"]);
    assert_eq!(case.waiting("slow"), ["2"]);
}

#[test]
fn every_filter_finds_what_it_says_and_all_of_them_together() {
    let mut case = Case::with(CONFIG);
    let ids: Vec<String> = [
        ("sms:a", "1", "http 500"),
        ("sms:b", "22", "http 404"),
        ("mail", "333", "lease expired"),
        ("sms:a", "4444", "[x]"),
    ]
    .into_iter()
    .map(|(bucket, job, reason)| bury(&mut case, bucket, job, reason))
    .collect();
    let find = |case: &mut Case, filter: Filter| -> Vec<usize> {
        let found = listed(case, filter);
        found.iter().map(|id| ids.iter().position(|one| one == id).expect("one of them") + 1).collect()
    };
    let any = Filter::default;
    for (filter, expect) in [
        (any(), &[1, 2, 3, 4][..]),
        (bucket("sms:*"), &[1, 2, 4]),
        (bucket("sms:a"), &[1, 4]),
        (bucket("[^s]*"), &[3]),
        (bucket("nobody"), &[]),
        (Filter { reason: "http *".into(), ..any() }, &[1, 2]),
        (Filter { reason: "lease expired".into(), ..any() }, &[3]),
        (Filter { reason: r"\[x]".into(), ..any() }, &[4]),
        (Filter { id: "1700000000000-2".into(), ..any() }, &[2]),
        (Filter { id: ids[2].clone(), ..any() }, &[3]),
        (Filter { upto: ids[1].clone(), ..any() }, &[1, 2]),
        (Filter { after: ids[1].clone(), ..any() }, &[3, 4]),
        (Filter { after: ids[0].clone(), upto: ids[2].clone(), ..bucket("s*") }, &[2]),
        (Filter { reason: "http 5??".into(), id: "1700000000000-1".into(), ..bucket("sms:?") }, &[1]),
        (Filter { reason: "http 5??".into(), id: "1700000000000-2".into(), ..bucket("sms:?") }, &[]),
    ] {
        assert_eq!(find(&mut case, filter), expect);
    }
    assert_eq!(counted(&mut case, bucket("sms:*"), "", "0"), ([("sms:a".into(), 2), ("sms:b".into(), 1)].into(), 0));
    let (filter, before) = (Filter { reason: "http *".into(), ..any() }, case.stream("dead"));
    assert_eq!(retry_all(&mut case, T0, Filter { upto: ids[0].clone(), ..filter.clone() }), (1, 0));
    assert_eq!(drop_all(&mut case, T0, filter), (1, 0));
    assert_eq!(case.stream("dead"), before[2..], "what was not found is as it was");
    assert_eq!((retries(&mut case, "sms:a"), retries(&mut case, "sms:b")), (vec!["1".to_owned()], vec![]));
}

#[test]
fn a_list_pages_through_any_number_of_jobs_each_once_and_in_order() {
    let mut case = Case::with(CONFIG);
    let dead = case.key("dead");
    let mut pipeline = redis::pipe();
    for n in 0..2_500 {
        let bucket = if n % 100 == 0 { "rare" } else { "b" };
        pipeline.cmd("XADD").arg(&dead).arg("*").arg(&["bucket", bucket, "job", "x", "attempt", "5", "id", "1-1"]);
    }
    let ids: Vec<String> = pipeline.query(&mut case.redis).expect("XADD");
    for most in [1, 7, 100, 1_000] {
        let filter = if most == 1 { bucket("rare") } else { Filter::default() };
        let pages = pages(&mut case, filter, most);
        let all: Vec<String> = pages.concat().into_iter().map(|(id, _)| id).collect();
        let expect: Vec<String> = ids.iter().step_by(if most == 1 { 100 } else { 1 }).cloned().collect();
        assert_eq!(all, expect, "by {most}");
    }
    assert_eq!(pages(&mut case, bucket("nobody"), 1).len(), 7, "a call looks at 400 entries, whatever it finds");
    let (found, malformed) = counted(&mut case, Filter::default(), "", "0");
    assert_eq!((found["b"], found["rare"], malformed), (2_475, 25, 0));
    assert_eq!(counted(&mut case, bucket("b"), "150", "0").0["b"], 150);

    // What dies while a command runs is none of its jobs: it stops with the newest entry that it counted.
    let filter = Filter { upto: ids[2_499].clone(), ..Filter::default() };
    let (mut command, mut calls) = (Command::new("drip__dead_retry", filter), 0);
    loop {
        let reply = command.call(&mut case, T0 + calls * MS);
        assert!(reply.n <= 100, "a batch a call");
        calls += 1;
        if reply.on.is_empty() {
            break;
        }
        bury(&mut case, "late", "y", "failed");
    }
    assert_eq!((command.done, calls), (2_500, 26));
    assert_eq!(case.stream("dead").len(), 25);
    assert_eq!((retries(&mut case, "b").len(), retries(&mut case, "rare").len()), (2_475, 25));
    assert_eq!(retries(&mut case, "late"), [""; 0]);
}

#[test]
fn two_operators_at_the_same_time_put_each_job_back_once() {
    crate::roles::as_roles();
    let mut case = Case::with(&format!("{CONFIG}[limits]\nbatch = 7\n"));
    for n in 0..100 {
        bury(&mut case, "b", &n.to_string(), "failed");
    }
    let mut commands = [(); 2].map(|()| Command::new("drip__dead_retry", Filter::default()));
    let (mut open, mut turn) = ([true; 2], 0);
    while open.iter().any(|one| *one) {
        // Not in strict turns: the second one makes two calls for each of the first.
        let who = usize::from(turn % 3 > 0);
        turn += 1;
        if open[who] {
            open[who] = !commands[who].call(&mut case, T0 + turn * MS).on.is_empty();
        }
    }
    assert_eq!(commands[0].done + commands[1].done, 100);
    assert!(commands.iter().all(|command| command.done > 0), "both of them did something");
    let mut jobs = retries(&mut case, "b");
    jobs.sort_by_key(|job| job.parse::<u64>().expect("a number"));
    assert_eq!(jobs, (0..100).map(|n| n.to_string()).collect::<Vec<_>>(), "each of them once");
    assert_eq!(case.stream("dead"), []);
    let told: Vec<String> = case.stream("events").iter().map(|event| event.text("after")).collect();
    assert_eq!(told.len(), 2, "a command is one event: {told:?}");

    // One drops what the other one puts back: each job has one fate.
    for n in 0..50 {
        bury(&mut case, "c", &n.to_string(), "failed");
    }
    let mut put_back = Command::new("drip__dead_retry", Filter::default());
    let mut dropped = Command::new("drip__dead_drop", Filter::default());
    while !put_back.call(&mut case, T0 + S).on.is_empty() {
        dropped.call(&mut case, T0 + S);
    }
    assert_eq!(put_back.done + dropped.done, 50);
    assert_eq!(retries(&mut case, "c").len() as i64, put_back.done);
}

#[test]
fn a_limit_is_the_number_of_jobs_of_the_whole_command() {
    let mut case = Case::with(&format!("{CONFIG}[limits]\nbatch = 4\n"));
    for n in 0..20 {
        bury(&mut case, "b", &n.to_string(), "failed");
    }
    let ten = |name| Command { most: Some(10), ..Command::new(name, Filter::default()) };
    assert_eq!(ten("drip__dead_retry").run(&mut case, T0), (10, 0));
    assert_eq!(retries(&mut case, "b"), (0..10).map(|n| n.to_string()).collect::<Vec<_>>(), "the oldest ones");
    assert_eq!(ten("drip__dead_drop").run(&mut case, T0), (10, 0));
    assert_eq!((case.stream("dead").len(), retries(&mut case, "b").len()), (0, 10));
}

#[test]
fn malformed_entries_are_listed_and_dropped_but_never_put_back() {
    let mut case = Case::with(CONFIG);
    let dead = case.key("dead");
    let mut add = |fields: &[&str]| -> String {
        let words: Vec<&str> = ["XADD", &dead, "*"].iter().chain(fields).copied().collect();
        case.cmd(&words)
    };
    let malformed = [
        add(&["bucket", "", "job", "x", "attempt", "1", "id", "1-1", "reason", "malformed"]),
        add(&["bucket", "a{b", "job", "x", "attempt", "1", "id", "1-1", "reason", "failed"]),
        add(&["bucket", "b", "job", "", "attempt", "1", "id", "1-1", "reason", "malformed", "color", "red"]),
        add(&["bucket", "b", "job", "x", "attempt", "1", "id", "0-0", "reason", "malformed"]),
        add(&["bucket", "b", "job", "x", "attempt", "many", "id", "1-1", "reason", "malformed"]),
        add(&["bucket", "b", "job", "x", "attempt", "1", "id", "no id", "reason", "failed"]),
        add(&["something", "else"]),
    ];
    // Of a worker that gives an odd reason, and of somebody who wrote no id: they are jobs.
    let good = [
        add(&["bucket", "b", "job", "y", "attempt", "2", "id", "1-1", "reason", "malformed"]),
        add(&["bucket", "b", "job", "", "attempt", "2", "id", "1-2", "reason", "failed"]),
        add(&["bucket", "b", "job", "z"]),
    ];
    let expect: Vec<(String, bool)> =
        malformed.iter().map(|id| (id.clone(), true)).chain(good.iter().map(|id| (id.clone(), false))).collect();
    assert_eq!(pages(&mut case, Filter::default(), 1_000).concat(), expect);
    assert_eq!(counted(&mut case, Filter::default(), "", "0"), ([("b".into(), 3)].into(), 7));
    assert_eq!(counted(&mut case, Filter::default(), "2", "1"), ([].into(), 2));
    assert_eq!(retry_all(&mut case, T0, Filter::default()), (3, 7));
    assert_eq!(retries(&mut case, "b"), ["y", "", "z"]);
    for _ in 0..3 {
        case.settle_at(T0 + S);
    }
    case.settle_at(T0 + 2 * S);
    case.settle_at(T0 + 3 * S);
    let ids: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("id")).collect();
    assert_eq!(ids, ["1-1", "1-2", &good[2]], "who has no identity is known by its entry here");
    assert_eq!(drop_all(&mut case, T0, bucket("b")), (4, 0));
    assert_eq!(drop_all(&mut case, T0, Filter::default()), (3, 0));
    assert_eq!(case.stream("dead"), []);
}

#[test]
fn a_bucket_that_takes_no_retry_keeps_its_dead_jobs_and_the_others_go() {
    let mut case = Case::with(CONFIG);
    let broken = case.key("retry:broken");
    let _: () = case.cmd(&["SET", &broken, "x"]);
    for bucket in ["a", "broken", "c"] {
        bury(&mut case, bucket, "1", "failed");
    }
    let mut args = Filter::default().args(T0);
    args.extend(["", "ada@web1", "default", "", "3 dead", "", "0"].map(str::to_owned));
    let (on, changed, malformed, kept, left, _, notes): (String, i64, i64, i64, i64, String, Vec<String>) =
        case.fcall("drip__dead_retry", &["dead"], &args);
    assert_eq!((on.as_str(), changed, malformed, kept, left), ("", 2, 0, 1, 1));
    assert_eq!((notes[0].as_str(), notes[1].as_str()), ("refused", broken.as_str()));
    assert_eq!(case.stream("dead")[0].text("bucket"), "broken");
    let _: i64 = case.cmd(&["DEL", &broken]);
    assert_eq!(retry_all(&mut case, T0, Filter::default()), (1, 0));
    assert_eq!(case.settle_at(T0).dispatched, 3);
}

#[test]
fn no_call_reads_more_than_one_mebibyte_or_one_job() {
    let mut case = Case::with(CONFIG);
    let large = "x".repeat(400_000);
    for _ in 0..7 {
        bury(&mut case, "b", &large, "failed");
    }
    let sizes: Vec<usize> = pages(&mut case, Filter::default(), 1_000).iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 3, 1]);
    let mut command = Command::new("drip__dead_retry", Filter::default());
    assert_eq!(command.call(&mut case, T0).n, 3);
    let mut command = Command::new("drip__dead_drop", Filter::default());
    assert_eq!([command.call(&mut case, T0).n, command.call(&mut case, T0).n], [3, 1]);
}

#[test]
fn a_command_is_one_event_that_says_what_became_of_it() {
    let mut case = Case::with(&format!("{CONFIG}[limits]\nbatch = 10\n"));
    for n in 0..25 {
        bury(&mut case, "b", &n.to_string(), "failed");
    }
    let mut command = Command::new("drip__dead_retry", bucket("b*"));
    let text = |event: &Entry| (event.text("what"), event.text("match"), event.text("before"), event.text("after"));
    let expect = |what: &str, after: &str| (what.to_owned(), "b*".into(), "all of them".into(), after.to_owned());
    command.call(&mut case, T0);
    assert_eq!(text(&case.stream("events")[0]), expect("dead-retry", "begun"), "if no other call comes");
    command.call(&mut case, T0 + 1);
    assert_eq!(case.stream("events").len(), 1);
    assert_eq!(command.call(&mut case, T0 + 2).on, "");
    let events = case.stream("events");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(text(&events[0]), expect("dead-retry", "25 put back"));
    assert_eq!((events[0].text("by"), events[0].text("user")), ("ada@web1".into(), "default".into()));

    bury(&mut case, "b", "x", "failed");
    assert_eq!(drop_all(&mut case, T0, bucket("b*")), (1, 0));
    assert_eq!(text(&case.stream("events")[1]), expect("dead-drop", "1 dropped"));
    assert_eq!((retry_all(&mut case, T0, Filter::default()), drop_all(&mut case, T0, bucket("*"))), ((0, 0), (0, 0)));
    assert_eq!(case.stream("events").len(), 2, "what changes nothing is no event");
}

#[test]
fn wrong_arguments_and_a_wrong_key_are_refused_by_their_code_and_change_nothing() {
    let mut case = Case::with(CONFIG);
    let dead = case.key("dead");
    bury(&mut case, "b", "x", "failed");
    let good = Filter::default();
    let long = "x".repeat(1_001);
    for name in ["drip__dead_list", "drip__dead_count", "drip__dead_retry", "drip__dead_drop"] {
        for filter in [
            Filter { after: "x".into(), ..good.clone() },
            Filter { upto: "-".into(), ..good.clone() },
            Filter { id: "no id".into(), ..good.clone() },
            Filter { bucket: long.clone(), ..good.clone() },
            Filter { reason: long.clone(), ..good.clone() },
        ] {
            assert_eq!(case.refusal(name, &["dead"], &filter.args(T0)), "BADARG", "{name}");
        }
        for most in ["0", "-1", "x"] {
            let mut args = good.args(T0);
            args.push(most.to_owned());
            assert_eq!(case.refusal(name, &["dead"], &args), "BADARG", "{name} {most}");
        }
        assert_eq!(case.refusal(name, &["rejected"], &good.args(T0)), "BADARG", "{name}");
        assert_eq!(case.refusal(name, &["dead", "dead"], &good.args(T0)), "BADARG", "{name}");
    }
    assert_eq!(case.stream("dead").len(), 1);
    let _: i64 = case.cmd(&["DEL", &dead]);
    let _: () = case.cmd(&["SET", &dead, "x"]);
    for name in ["drip__dead_list", "drip__dead_count", "drip__dead_retry", "drip__dead_drop"] {
        assert_eq!(case.refusal(name, &["dead"], &good.args(T0)), "WRONGTYPE", "{name}");
    }
    let _: i64 = case.cmd(&["DEL", &dead]);
    assert_eq!(listed(&mut case, good.clone()), [""; 0], "no dead letters at all");
    assert_eq!(counted(&mut case, good, "", "1"), ([].into(), 0));
}
