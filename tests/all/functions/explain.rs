//! `drip__explain`, and what `dripd explain` makes of it: the words of each case, with the clock in hand.

use dripd::explain::{Explanation, File, LocalTime};
use dripd::store::explain::Facts;
use jiff::tz::TimeZone;
use serde_json::{Value as Json, json};

use crate::rig::{Case, S, rand_u64};

/// 08:00 in UTC.
pub const T0: u64 = 1_800_000_000_000_000;

fn facts(case: &mut Case, now: u64, bucket: &str) -> Facts {
    let reply = case.fcall("drip__explain", &[&format!("queue:{bucket}")], &[now.to_string()]);
    Facts::read(reply).expect("facts")
}

pub fn explain_with(case: &mut Case, now: u64, bucket: &str, is_in_force: Option<bool>) -> Explanation {
    let file = File { name: "/home/me/config.toml".to_owned(), is_in_force };
    Explanation::of(&facts(case, now, bucket), file, &LocalTime::of(now, TimeZone::UTC))
}

/// What is said in the end: the last line is what binds.
pub fn says(case: &mut Case, now: u64, bucket: &str) -> Vec<String> {
    explain_with(case, now, bucket, Some(true)).says().to_vec()
}

pub fn json_of(case: &mut Case, now: u64, bucket: &str) -> Json {
    serde_json::to_value(explain_with(case, now, bucket, Some(true))).expect("JSON")
}

/// A daemon says that it is alive.
pub fn beat(case: &mut Case, now: u64) {
    let _: Vec<i64> = case.fcall("drip__beat", &["daemons"], &[now.to_string(), "d".to_owned(), "{}".to_owned()]);
}

pub fn stop(case: &mut Case, now: u64, key: &str, name: &str, for_us: Option<u64>, reason: &str) {
    let mut c = json!({
        "what": key, "match": name, "is_glob": name.contains('*'), "by": "root@web1", "user": "default",
        "set": { key: { "text": "yes", "policy": {} } },
    });
    if let Some(us) = for_us {
        c["for_us"] = json!(us);
    }
    if !reason.is_empty() {
        c["reason"] = json!(reason);
    }
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), c.to_string()]);
    assert_eq!(told.0, 1);
}

fn set(case: &mut Case, now: u64, name: &str, key: &str, text: &str, policy: &Json, for_us: Option<u64>) {
    let mut c = json!({
        "match": name, "is_glob": name.contains('*'), "by": "ann@web2", "reason": "carrier down",
        "set": { key: { "text": text, "policy": policy } },
    });
    if let Some(us) = for_us {
        c["for_us"] = json!(us);
    }
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[now.to_string(), c.to_string()]);
    assert_eq!(told.0, 1);
}

/// Put a configuration into force that stands in a file.
pub fn configure(case: &mut Case, now: u64, toml: &str) {
    let environment = dripd::config::Environment { host: "web1".to_owned(), ..Default::default() };
    let config = dripd::config::Config::parse(toml, Some("/etc/dripd/config.toml".into()), &environment).expect("good");
    let source = serde_json::to_string(&config.record_source).expect("JSON");
    let args = [now.to_string(), format!("{:016x}", rand_u64()), config.record.to_json(), "replace".to_owned(), source];
    let _: i64 = case.fcall("drip__policy", &["policy"], &args);
}

#[test]
fn at_its_rate() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    beat(&mut case, T0);
    case.push_at(T0, "acme", &["1", "2"]);
    assert_eq!(says(&mut case, T0, "acme"), ["the next job leaves now: nothing holds acme back"]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    let now = T0 + 6_800_000;
    beat(&mut case, now);
    assert_eq!(says(&mut case, now, "acme"), ["the next job leaves in 3.2 s: acme is at its rate"]);
    let now = T0 + 14 * S;
    beat(&mut case, now);
    assert_eq!(says(&mut case, now, "acme"), ["the next job has been due for 4.0 s: the daemons are behind with acme"]);
}

#[test]
fn empty() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    beat(&mut case, T0);
    assert_eq!(says(&mut case, T0, "acme"), ["nothing waits: acme is empty; a job that comes now leaves at once"]);
    case.push_at(T0, "acme", &["1"]);
    case.drain_at(T0);
    let words = "nothing waits: acme is empty; a job that comes now leaves in 9.0 s";
    assert_eq!(says(&mut case, T0 + S, "acme"), [words]);
    stop(&mut case, T0, "close", "acme", None, "");
    let words = "nothing waits: acme is empty; it takes nothing in: closed by root@web1 08:00";
    assert_eq!(says(&mut case, T0 + S, "acme"), [words]);
}

#[test]
fn no_daemon_runs() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    let words = "nothing leaves: no daemon runs; start one with `dripd run`";
    assert_eq!(says(&mut case, T0, "acme"), [words, "nothing waits: acme is empty"]);
    case.push_at(T0, "acme", &["1", "2"]);
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    beat(&mut case, T0);
    assert_eq!(says(&mut case, T0 + 15 * S, "acme"), [words], "the last word of a daemon counts for so long");
}

#[test]
fn paused() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    beat(&mut case, T0);
    case.push_at(T0, "acme", &["1", "2"]);
    stop(&mut case, T0, "pause", "acme", None, "");
    let words = "nothing leaves until `dripd resume acme`: acme is paused by root@web1 08:00";
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    stop(&mut case, T0 + 60 * S, "pause", "acme", Some(1_800 * S), "carrier down");
    let words = "nothing leaves until 08:31: acme is paused by root@web1 08:01 \"carrier down\"";
    assert_eq!(says(&mut case, T0 + 60 * S, "acme")[1..], [words]);
    stop(&mut case, T0, "pause", "b*", None, "night\nwork");
    case.push_at(T0, "b1", &["1"]);
    let words = "nothing leaves until `dripd resume 'b*'`: b1 is paused for \"b*\" by root@web1 08:00 \"night\\nwork\"";
    assert_eq!(says(&mut case, T0, "b1").last().map(String::as_str), Some(words));
    beat(&mut case, T0 + 86_400 * S);
    let words = "nothing leaves until `dripd resume 'b*'`: b1 is paused for \"b*\" by root@web1 2027-01-15 08:00 \"night\\nwork\"";
    assert_eq!(says(&mut case, T0 + 86_400 * S, "b1").last().map(String::as_str), Some(words));
}

#[test]
fn closed() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\n");
    beat(&mut case, T0);
    case.push_at(T0, "acme", &["1", "2"]);
    case.drain_at(T0);
    stop(&mut case, T0, "close", "acme", Some(600 * S), "moving out");
    let words = "the next job leaves in 10.0 s: acme is at its rate; it takes nothing in: closed by root@web1 08:00 \"moving out\" until 08:10";
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    let told = json_of(&mut case, T0, "acme");
    assert_eq!((&told["binds"], &told["also"]), (&json!("rate"), &json!(["closed"])));
    assert_eq!(told["chain"][0]["closed"]["until"], "2027-01-15T08:10:00Z");
    let capacity = &told["chain"][0]["policy"][1];
    assert_eq!((&capacity["key"], &capacity["value"]), (&json!("capacity"), &json!("0")));
    assert_eq!(capacity["said"], "closed by root@web1 08:00 \"moving out\" until 08:10");
}

#[test]
fn full() {
    let mut case =
        Case::with("[defaults]\nrate = '1/10s'\ncapacity = 3\n[[bucket]]\nmatch = 'd'\noverflow = 'drop-oldest'\n");
    beat(&mut case, T0);
    for bucket in ["acme", "d"] {
        case.push_at(T0, bucket, &["1", "2", "3"]);
    }
    case.drain_at(T0);
    for bucket in ["acme", "d"] {
        case.push_at(T0, bucket, &["4"]);
    }
    let words = "the next job leaves in 10.0 s: acme is at its rate; it is full, 3 of 3: a push is rejected";
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    let words = "the next job leaves in 10.0 s: d is at its rate; it is full, 3 of 3: each push drops the oldest";
    assert_eq!(says(&mut case, T0, "d"), [words]);
    set(&mut case, T0, "acme", "capacity", "2", &json!({ "capacity": 2 }), None);
    assert_eq!(
        says(&mut case, T0, "acme"),
        [
            "acme keeps 3 though its capacity is 2: lowering it threw nothing out",
            "the next job leaves in 10.0 s: acme is at its rate; it is full, 3 of 2: a push is rejected",
        ]
    );
}

#[test]
fn backing_off() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\nbackoff = { initial = '30s', max = '30s' }\n");
    beat(&mut case, T0);
    case.push_at(T0, "acme", &["1", "2"]);
    case.drain_at(T0);
    let fail = |case: &mut Case, now: u64| {
        let entry = case.take("ready", 1).remove(0);
        let _: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), entry.id]);
    };
    fail(&mut case, T0);
    assert_eq!(says(&mut case, T0, "acme"), ["the next job leaves in 1.0 s: acme is at its rate"]);
    case.drain_at(T0 + S);
    let words = "the next job leaves in 29.0 s: acme is backing off, 1 failed job waits for another try";
    assert_eq!(says(&mut case, T0 + S, "acme"), [words]);
    fail(&mut case, T0 + S);
    let words = "the next job leaves in 29.0 s: acme is backing off, 2 failed jobs wait for another try";
    assert_eq!(says(&mut case, T0 + S, "acme"), [words]);
    let text = explain_with(&mut case, T0 + S, "acme", Some(true)).text();
    assert!(text.contains("\nretries   2 jobs wait for another try, the first in 29.0 s\n"), "{text}");
}

#[test]
fn held_for_workers_that_are_away() {
    let mut case = Case::with("[defaults]\nrate = '1/s'\n[limits]\nmax_ready = 2\n");
    case.push_at(T0, "acme", &["1", "2", "3", "4", "5"]);
    case.drain_at(T0);
    case.drain_at(T0 + S);
    let now = T0 + 62 * S;
    case.drain_at(T0 + 2 * S);
    beat(&mut case, now);
    let words = "held: acme waits since 08:00, and nobody takes jobs of route default: 2 jobs are ready, the oldest for 62.0 s, no leases are held";
    assert_eq!(says(&mut case, now, "acme"), [words]);
    let told = json_of(&mut case, now, "acme");
    assert_eq!(
        (&told["place"], &told["route"]["oldest_ms"], &told["overdue_ms"]),
        (&json!("held"), &json!(62_000), &json!(60_000))
    );
    case.take("ready", 1);
    case.drain_at(now);
    let now = now + S;
    case.drain_at(now);
    let words =
        "held: the workers of route default take 59/h, and 1 bucket waits for them; its turn comes in about 61.0 s";
    assert_eq!(says(&mut case, now, "acme"), [words]);
    case.push_at(now, "other", &["1"]);
    case.drain_at(now);
    let words =
        "held: the workers of route default take 59/h, and 2 buckets wait for them; its turn comes in about 2 m 2 s";
    assert_eq!(says(&mut case, now, "other"), [words]);
    set(&mut case, now, "acme", "rate", "1/h", &json!({ "count": 1, "period_us": 3_600 * S }), None);
    let said = says(&mut case, now, "acme");
    assert_eq!(
        said[0],
        "the workers of route default take 59/h, and 1 bucket waits for them: its turn comes after those"
    );
    assert_eq!(said[1], "the next job leaves in 59 m 59 s: acme is at its rate");
}

#[test]
fn a_key_of_the_wrong_type() {
    let mut case = Case::with("");
    beat(&mut case, T0);
    let queue = case.queue("acme");
    let _: String = case.cmd(&["SET", &queue, "x"]);
    let words = format!(
        "nothing goes in or out: the key {queue} holds a string, not a list; see what it is, then rename or delete it"
    );
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    let told = json_of(&mut case, T0, "acme");
    assert_eq!(told["wrong_keys"], json!([{ "key": queue, "type": "string", "wanted": "list" }]));
    let (_, ready) = (case.cmd::<i64>(&["DEL", &queue]), case.key("ready"));
    case.push_at(T0, "acme", &["1"]);
    let _: i64 = case.cmd(&["DEL", &ready]);
    let _: i64 = case.cmd(&["SADD", &ready, "x"]);
    let words =
        format!("nothing leaves: the key {ready} holds a set, not a stream; see what it is, then rename or delete it");
    assert_eq!(says(&mut case, T0, "acme"), [words]);
    let _: i64 = case.cmd(&["DEL", &ready]);
    let retry = case.key("retry:acme");
    let _: String = case.cmd(&["SET", &retry, "x"]);
    let words = format!(
        "no failed job can wait for another try: the key {retry} holds a string, not a sorted set; see what it is, then rename or delete it"
    );
    assert_eq!(says(&mut case, T0, "acme"), [words, "the next job leaves now: nothing holds acme back".to_owned()]);
}

#[test]
fn another_file_in_force() {
    let mut case = Case::bare();
    beat(&mut case, T0);
    let last_but_one = |case: &mut Case| explain_with(case, T0, "acme", Some(false)).says()[0].clone();
    let none = explain_with(&mut case, T0, "acme", None).says()[0].clone();
    assert_eq!(none, "no policies are stored: pushes by function are refused until a daemon runs");
    assert_eq!(case.configure(""), 1);
    assert_eq!(
        last_but_one(&mut case),
        "another file is in force than /home/me/config.toml; a daemon that reads yours puts it in force by starting or `dripd reload`"
    );
    configure(&mut case, T0, "[defaults]\ncapacity = 3\n");
    assert_eq!(
        last_but_one(&mut case),
        "another file is in force than /home/me/config.toml, that of web1:/etc/dripd/config.toml; a daemon that reads yours puts it in force by starting or `dripd reload`"
    );
}

#[test]
fn several_things_at_once_are_all_said_and_the_first_to_bind_comes_last() {
    let mut case = Case::with("[defaults]\nrate = '1/10s'\ncapacity = 2\n[limits]\nmax_ready = 1\n");
    case.push_at(T0, "acme", &["1", "2"]);
    case.drain_at(T0);
    case.push_at(T0, "acme", &["3"]);
    stop(&mut case, T0, "pause", "acme", None, "");
    let said = explain_with(&mut case, T0, "acme", Some(false));
    assert_eq!(
        said.says(),
        [
            "another file is in force than /home/me/config.toml; a daemon that reads yours puts it in force by starting or `dripd reload`",
            "nobody takes jobs of route default: 1 job is ready, no leases are held",
            "nothing leaves: no daemon runs; start one with `dripd run`",
            "nothing leaves until `dripd resume acme`: acme is paused by root@web1 08:00; it is full, 2 of 2: a push is rejected",
        ]
    );
    let told = serde_json::to_value(said).expect("JSON");
    assert_eq!(told["also"], json!(["no-daemon", "held", "full", "another-file"]));
}

#[test]
fn each_number_is_shown_with_where_it_comes_from() {
    let toml = "# first line\n[limits]\nmax_ready = 500\n[defaults]\nlease = '2m'\ncapacity = 50\n\n[[bucket]]\nmatch = 'x'\n[[bucket]]\n\
                match = 'sms:*'\nrate = '5/s'\ncapacity = 50\nadmit = { limiter = 'fixed-window', limit = 3, period = '1h' }\n";
    let mut case = Case::new();
    configure(&mut case, T0, toml);
    beat(&mut case, T0);
    set(&mut case, T0, "sms:acme", "attempts", "2", &json!({ "attempts": 2 }), Some(600 * S));
    set(&mut case, T0, "sms:*", "catch_up", "\"5ms\"", &json!({ "catch_up_us": 5_000 }), None);
    case.push_at(T0, "sms:acme", &["1", "2", "3"]);
    let text = explain_with(&mut case, T0, "sms:acme", Some(true)).text();
    let expect = r#"sms:acme  5/s         web1:/etc/dripd/config.toml:10 [[bucket]] match "sms:*"

waiting   3 of 50
due       now
ready     0 of 8 on route default; 0 with workers
gate      fixed-window: 0 of 3 left, the next in 60 m
capacity  50          web1:/etc/dripd/config.toml:10 [[bucket]] match "sms:*"
lease     2m          web1:/etc/dripd/config.toml:4 [defaults]
attempts  2           set by ann@web2 08:00 "carrier down" until 08:10
backoff   1s to 10m   built-in default
overflow  reject      built-in default
route     default     built-in default
catch_up  5ms         set for "sms:*" by ann@web2 08:00 "carrier down"
admit     fixed-window 3/h
          web1:/etc/dripd/config.toml:10 [[bucket]] match "sms:*"
max_ready 500         web1:/etc/dripd/config.toml:2 [limits]
ready_window 250ms       built-in default

the next job leaves now: nothing holds sms:acme back
"#;
    assert_eq!(text, expect);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "it fits a terminal of 80 columns");
    let told = json_of(&mut case, T0, "sms:acme");
    let from = |n: usize| told["chain"][0]["policy"][n]["from"].clone();
    let file = json!({ "what": "file", "host": "web1", "path": "/etc/dripd/config.toml", "line": 10, "section": "[[bucket]]", "match": "sms:*" });
    assert_eq!((from(0), from(4)), (file, json!({ "what": "built-in" })));
    let hand = json!({
        "what": "set", "match": "sms:acme", "by": "ann@web2", "user": "", "since": "2027-01-15T08:00:00Z", "until": "2027-01-15T08:10:00Z",
        "reason": "carrier down",
    });
    assert_eq!(from(3), hand);
    // The same policies, a line further down: the record is the same, and its lines are the new ones.
    configure(&mut case, T0 + S, &format!("# a comment\n{toml}"));
    let told = json_of(&mut case, T0 + S, "x");
    assert_eq!((&told["chain"][0]["policy"][1]["from"]["line"], &told["spreading"]), (&json!(5), &json!(false)));
    // A record of which nobody knows the file.
    assert_eq!(case.configure("[defaults]\nlease = '3m'\n"), 1);
    let told = json_of(&mut case, T0 + S, "x");
    assert_eq!(told["chain"][0]["policy"][2]["said"], "the policies in force; from which file is not known");
}

#[test]
fn a_wrong_type_where_the_jobs_in_flight_are_counted() {
    let mut case = Case::with("[defaults]\nconcurrency = 2\n");
    beat(&mut case, T0);
    case.push_at(T0, "acme", &["1"]);
    let inflight = case.key("inflight");
    let _: String = case.cmd(&["SET", &inflight, "x"]);
    let told = json_of(&mut case, T0, "acme");
    assert_eq!(told["wrong_keys"], json!([{ "key": inflight, "type": "string", "wanted": "sorted set" }]));
    let words = format!(
        "nothing leaves: the key {inflight} holds a string, not a sorted set; see what it is, then rename or delete it"
    );
    assert_eq!(says(&mut case, T0, "acme")[0], words);
}

/// A daemon that does not get past a key says no more that it runs.
#[test]
fn a_wrong_type_that_no_daemon_gets_past_is_named_before_it_is_said_that_none_runs() {
    for (word, wanted) in [("rest", "sorted set"), ("routes", "set"), ("stats", "hash")] {
        let mut case = Case::with("");
        case.push_at(T0, "acme", &["1"]);
        let key = case.key(word);
        let _: redis::Value = case.cmd(&["DEL", &key]);
        let _: String = case.cmd(&["SET", &key, "x"]);
        let words = format!(
            "nothing leaves: the key {key} holds a string, not a {wanted}; see what it is, then rename or delete it"
        );
        assert_eq!(says(&mut case, T0, "acme").last(), Some(&words));
        let why = case
            .try_fcall::<redis::Value>("drip__figures", &["policy"], &[T0.to_string()])
            .expect_err(word)
            .to_string();
        assert!(why.contains(&format!("{key} holds a string and must hold a {wanted}")), "{why}");
    }
}

#[test]
fn to_explain_changes_nothing() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n[[bucket]]\nmatch = 'm'\nroute = 'mail'\n");
    for bucket in ["a", "m"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    case.drain_at(T0);
    let mail = case.key("ready:mail");
    let _: i64 = case.cmd(&["DEL", &mail]);
    let dump = |case: &mut Case| {
        let keys = case.keys();
        let dumps: Vec<Option<Vec<u8>>> = keys
            .iter()
            .map(|key| {
                let key = case.key(key);
                if case.cmd::<String>(&["TYPE", &key]) == "hash" {
                    // Its dump has them in another order while it grows.
                    let all: std::collections::BTreeMap<String, Vec<u8>> = case.cmd(&["HGETALL", &key]);
                    return Some(format!("{all:?}").into_bytes());
                }
                case.cmd(&["DUMP", &key])
            })
            .collect();
        (keys, dumps)
    };
    let before = dump(&mut case);
    for bucket in ["a", "m", "idle"] {
        facts(&mut case, T0 + S, bucket);
    }
    assert_eq!(dump(&mut case), before);
    assert_eq!(case.refusal("drip__explain", &["queue:a{"], &[T0.to_string()]), "BADBUCKET");
    assert_eq!(case.refusal("drip__explain", &["schedule"], &[T0.to_string()]), "BADBUCKET");
}

#[test]
fn workers_of_any_name_are_listed() {
    let mut case = Case::with("[defaults]\nrate = '100/s'\n");
    beat(&mut case, T0);
    case.push_at(T0, "a", &["1"]);
    case.drain_at(T0);
    let ready = case.key("ready");
    let mut take = redis::cmd("XREADGROUP");
    take.arg("GROUP").arg("workers").arg(b"w\xff\x1b[31m").arg("COUNT").arg(1).arg("STREAMS").arg(&ready).arg(">");
    let _: redis::Value = take.query(&mut case.redis).expect("taken");
    let text = explain_with(&mut case, T0, "a", Some(true)).text();
    assert!(text.contains("\nworker    w\u{fffd}\\u{1b}[31m: 1 lease, last heard of "), "{text}");
}

#[test]
fn what_waits_in_a_place_of_the_tree_is_told_for_what() {
    let mut case = Case::with(
        "[defaults]\nrate = '1000/s'\nbackoff = { initial = '5s', max = '5s' }\n[[budget]]\nmatch = 'p'\nconcurrency = 1\n\
         [[bucket]]\nmatch = 'own'\nconcurrency = 1\n[[bucket]]\nmatch = 'order'\nconcurrency = 1\nordered = true\n\
         [[bucket]]\nmatch = 'below'\nwithin = 'p'\n",
    );
    beat(&mut case, T0);
    for bucket in ["own", "order", "below"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    case.settle_at(T0);
    let now = T0 + S;
    case.settle_at(now);
    for entry in case.take("ready", 10) {
        if entry.text("bucket") == "order" {
            let _: i64 = case.fcall("drip__fail", &["ready"], &[now.to_string(), entry.id]);
        }
    }
    beat(&mut case, now);
    for (bucket, binds, words) in [
        ("own", "slot", "nothing leaves until a job in flight is finished: own has 1 job out, its concurrency is 1"),
        (
            "order",
            "backing-off",
            "the next job leaves in 5.0 s: order keeps the order of its jobs, and the failed one backs off",
        ),
        (
            "below",
            "slot",
            "nothing leaves until a job in flight is finished: budget p has 1 job out, its concurrency is 1",
        ),
    ] {
        assert_eq!(says(&mut case, now, bucket).last().map(String::as_str), Some(words), "{bucket}");
        assert_eq!(json_of(&mut case, now, bucket)["binds"], binds, "{bucket}");
    }
    let mut case = Case::with(
        "[[budget]]\nmatch = 'p:a*'\nrate = '10/s'\n[[bucket]]\nmatch = 'p:*:*'\nrate = '6/s'\nwithin = 'p:{1}'\n",
    );
    beat(&mut case, T0);
    case.lpush("p:b:1", &["x"]);
    case.wake_at(T0, &["p:b:1"]);
    let words = "nothing leaves p:b:1: no [[budget]] matches p:b; a reload of a configuration that has it, or `dripd set`, ends that";
    assert_eq!(says(&mut case, T0, "p:b:1"), [words]);
    assert_eq!(json_of(&mut case, T0, "p:b:1")["binds"], "refused");
}
