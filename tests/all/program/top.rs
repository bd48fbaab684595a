//! The ranking of the buckets, as `dripd status` shows it, and the walk behind it from outside: who walks, how much of Redis' time it takes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use unicode_width::UnicodeWidthStr as _;

use super::standby::all_tell;
use super::{Shell, said};
use crate::rig::{Case, Daemon, Server, dripd, eventually, test_config};

fn status(shell: &Shell) -> Json {
    let (code, out, err) = shell.run(&["status", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).expect("JSON")
}

/// The names of the rows of an order, and a figure of each.
fn ranked(status: &Json, order: &str, figure: &str) -> Vec<(String, u64)> {
    let rows = status["top"][order].as_array().map(Vec::as_slice).unwrap_or_default();
    let row =
        |row: &Json| (row["bucket"].as_str().expect("a name").to_owned(), row[figure].as_u64().expect("a number"));
    rows.iter().map(row).collect()
}

/// Buckets with many jobs, with few, and one that rejects.
fn three_buckets(case: &mut Case) {
    case.lpush("many", &vec!["x"; 41]);
    case.lpush("few", &["x"; 4]);
    case.lpush("wide 短信 \u{202e}rtl", &vec!["x"; 60]);
}

/// A rate of one in 61 minutes: after how long a bucket is empty is then not near a whole hour, and so reads the same when the walk comes in
/// the millisecond of the dispatch and when it comes a second later.
const THREE: &str = "[defaults]\nrate = '1/61m'\ncapacity = 50\n[[bucket]]\nmatch = 'few'\nrate = '30/h'\n";

#[test]
fn the_fullest_buckets_and_those_that_reject_are_shown_with_the_age_of_that_in_80_columns() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, THREE);
    let (_, out, _) = shell.run(&["status"]);
    assert!(out.contains("fullest     not known: no daemon runs\n"), "{out}");
    assert_eq!(status(&shell)["top"], Json::Null);
    let _daemon = Daemon::start(shell.home());
    three_buckets(&mut shell.case);
    let expected = [("wide 短信 \u{202e}rtl", 49), ("many", 40), ("few", 3)];
    let expected: Vec<(String, u64)> = expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    eventually("the walk has found them", || {
        let status = status(&shell);
        ranked(&status, "fullest", "depth").starts_with(&expected[..2])
            && !ranked(&status, "rejecting", "depth").is_empty()
    });
    let found = status(&shell);
    assert_eq!(ranked(&found, "fullest", "depth")[2].0, "few");
    assert_eq!(ranked(&found, "rejecting", "rejected"), [(expected[0].0.clone(), 10)]);
    assert_eq!(found["top"]["buckets"], 3);
    assert!(
        found["top"]["fullest"][1]["empty_in_ms"].as_u64() > Some(39 * 3_600_000),
        "forty jobs at one in 61 minutes"
    );
    assert_eq!(found["daemons"][0]["wake_up"], "tracking");
    let age = found["top"]["age_ms"].as_u64().expect("an age");
    std::thread::sleep(Duration::from_millis(300));
    let (_, text, _) = shell.run(&["status"]);
    let later = status(&shell);
    let same_walk = later["top"]["as_of_us"] == found["top"]["as_of_us"];
    assert!(!same_walk || later["top"]["age_ms"].as_u64() >= Some(age + 300), "it grows older");
    for part in [
        "wake-up by tracking\n",
        "fullest     of 3 buckets with work, ",
        "     depth capacity empty in  rate      waits  bucket\n        49       50     2d1h  1/61m     due    wide",
        "\n        40       50    1d16h  1/61m     due    many\n",
        "30/h      due    few\n",
        "rejecting   about so many jobs in the last 10 to 20 minutes, ",
        "  rejected    depth capacity  rate      waits  bucket\n        10       49       50  1/61m     due    wide 短信 \\u{202e}rtl\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(text.matches(" ago\n").count() == 2, "{text}");
    // What is one word stays whole: the path of the configuration.
    let is_narrow = |line: &str| line.width() <= 80 || line.split_whitespace().count() == 1;
    assert!(text.lines().all(is_narrow), "{text}");
}

/// The members of some JSON, as the page writes them: `a.b`, `a[].b`. What is in an object of any names is left out.
fn members(json: &Json, name: &str, into: &mut BTreeSet<String>) {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match json {
        Json::Object(object) if name != "counters" => {
            if !name.is_empty() && !name.ends_with("[]") {
                into.insert(name.to_owned());
            }
            object.iter().for_each(|(key, value)| members(value, &below(key), into));
        }
        Json::Array(list) => list.iter().for_each(|one| members(one, &format!("{name}[]"), into)),
        _ => drop(into.insert(name.to_owned())),
    }
}

/// The members that a table of the page names.
fn documented(table: &str) -> BTreeSet<String> {
    let page = std::fs::read_to_string("docs/status.md").expect("the page");
    let (_, rest) = page.split_once(&format!("<!-- {table} -->\n")).expect("the table begins");
    let (rows, _) = rest.split_once("<!-- end -->").expect("and ends");
    rows.lines().skip(2).map(|row| row.split('`').nth(1).expect("a name").to_owned()).collect()
}

#[test]
fn every_member_of_the_json_stands_on_the_page_and_the_other_way_round() {
    let toml =
        "[defaults]\nrate = '1/h'\ncapacity = 2\nadmit = { limiter = 'fixed-window', limit = 9, period = '1h' }\n";
    let server = Server::start(&[]); // it lacks something: there is a warning
    let mut shell = Shell::on(&server, toml);
    let _daemon = Daemon::start(shell.home());
    shell.case.lpush("b", &["1", "2", "3", "4"]);
    let policy = shell.case.key("policy");
    let source = r#"{"host":"web1","path":"/etc/dripd/config.toml","defaults":{"line":3}}"#;
    let _: i64 = shell.case.cmd(&["HSET", &policy, "source", source]);
    eventually("the walk has found it", || !ranked(&status(&shell), "rejecting", "rejected").is_empty());
    let mut all = status(&shell);
    assert_eq!(all["record_source"]["host"], "web1");
    assert!(shell.run(&["status"]).1.contains("from        /etc/dripd/config.toml on web1\n"));
    let row = all["top"]["rejecting"][0].clone();
    for order in ["fullest", "rejecting"] {
        assert_eq!(all["top"][order][0]["bucket"], "b");
        all["top"][order] = serde_json::json!(["a row"]); // rows have a table of their own
    }
    let (_, out, _) = shell.run(&["status", "b", "--json"]);
    let bucket = serde_json::from_str(&out).expect("JSON");
    for (table, json) in [("status", all), ("row", row), ("bucket", bucket)] {
        let mut found = BTreeSet::new();
        members(&json, "", &mut found);
        if table == "status" {
            // A cluster, a Redis that refuses writes, and routes that forward or hold buckets, have tests of their own.
            found.extend(
                [
                    "away",
                    "refuses_writes",
                    "refuses_writes.pushes_only",
                    "refuses_writes.why",
                    "routes[].to",
                    "routes[].wrong",
                    "routes[].says",
                ]
                .map(str::to_owned),
            );
        }
        assert_eq!(found, documented(table), "{table}: {json}");
    }
}

/// When the last ranking was begun, on the server's clock; 0: there is none.
fn as_of(case: &mut Case) -> u64 {
    let top: Vec<redis::Value> = case.fcall("drip__top", &["policy"], &["", "0"]);
    top.first().map_or(0, |at| redis::from_redis_value_ref(at).expect("a time"))
}

#[test]
fn one_of_two_daemons_walks_and_when_it_is_killed_the_other_one_does() {
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n");
    let mut first = Daemon::start(shell.home());
    shell.case.lpush("b", &["1", "2"]);
    eventually("the first one walks", || as_of(&mut shell.case) > 0);
    let second = Daemon::start(shell.home());
    let living = |shell: &Shell| status(shell)["daemons"].as_array().map_or(0, Vec::len);
    eventually("both are alive", || living(&shell) == 2);
    for _ in 0..2 {
        all_tell(&mut shell.case, 2); // each has heard of the other
    }
    // A page is followed by a look at the clock: that is the last command of whoever walks, on a connection of its own.
    let walkers = |case: &mut Case| {
        let list: String = case.cmd(&["CLIENT", "LIST"]);
        list.lines().filter(|line| line.contains(" cmd=time ")).count()
    };
    // Between two pages it may have asked for something else.
    let walks_alone = |case: &mut Case| {
        eventually("one walks", || {
            let all = walkers(case);
            assert!(all <= 1, "the other one walks too");
            all == 1
        });
    };
    let mut news = 0;
    let mut walks_again = |case: &mut Case, what: &str| {
        let before = as_of(case);
        eventually(what, || {
            news += 1;
            if news % 200 == 0 {
                case.lpush(&format!("n{news}"), &["1", "2"]); // in case one fell into the walk itself
            }
            as_of(case) > before
        });
    };
    for _ in 0..3 {
        walks_again(&mut shell.case, "it walks when something has changed");
        walks_alone(&mut shell.case);
    }
    first.kill();
    let killed = Instant::now();
    eventually("the first one counts no more", || living(&shell) == 1);
    walks_again(&mut shell.case, "the second one walks");
    println!("walked again {:?} after the kill", killed.elapsed());
    walks_alone(&mut shell.case);
    assert!(!second.log().contains("WARN cannot rank"), "{}", second.log());
}

#[test]
fn status_says_that_a_daemon_polls() {
    let server = Server::start(&[]);
    let mut redis = server.connect();
    let acl = ["SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-client|tracking"];
    redis::cmd("ACL").arg(&acl).exec(&mut redis).expect("a user");
    let home = tempfile::tempdir().expect("a directory");
    let text = format!("[redis]\nurl = 'redis://limited:pw@127.0.0.1:{}'\n", server.port);
    std::fs::write(home.path().join("config.toml"), test_config(&text)).expect("written");
    let _daemon = Daemon::start(home.path());
    eventually("it says so", || {
        let output = dripd().arg("status").current_dir(home.path()).output().expect("it runs");
        said(&output).1.contains("wake-up by POLLING")
    });
}

#[test]
fn a_walk_over_50000_buckets_leaves_redis_to_others() {
    const BUCKETS: usize = 50_000;
    let server = Server::start(&[]);
    let mut shell = Shell::on(&server, "[defaults]\nrate = '1/h'\n[limits]\nmax_ready = 1000000\n");
    let mut pipe = redis::pipe();
    for n in 0..BUCKETS {
        pipe.cmd("LPUSH").arg(shell.case.queue(&format!("b{n}"))).arg(&["1", "2"]).ignore();
    }
    pipe.exec(&mut shell.case.redis).expect("pushed");
    let _daemon = Daemon::start(shell.home());
    let ready = shell.case.key("ready");
    eventually("the first jobs have left", || shell.case.cmd::<usize>(&["XLEN", &ready]) == BUCKETS);
    let _: u64 = shell.case.cmd(&["XTRIM", &ready, "MAXLEN", "0"]);
    std::thread::sleep(Duration::from_secs(2)); // their echoes pass
    let figure = |case: &mut Case, section: &str, name: &str| -> f64 {
        let info: String = case.cmd(&["INFO", section]);
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        let end = line.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(line.len());
        line[..end].parse().expect("a number")
    };
    let cpu = |case: &mut Case| figure(case, "cpu", "used_cpu_user:") + figure(case, "cpu", "used_cpu_sys:");
    let looks = |case: &mut Case| figure(case, "commandstats", "cmdstat_llen:calls=");
    // What else Redis does in that time is part of it: some pushes, so that there is always something to walk for.
    let shares: Vec<f64> = (0..4)
        .map(|round| {
            let (since, used, looked) = (Instant::now(), cpu(&mut shell.case), looks(&mut shell.case));
            for n in 0..10 {
                shell.case.lpush(&format!("r{round}n{n}"), &["1", "2"]);
                std::thread::sleep(Duration::from_millis(300));
            }
            let share = (cpu(&mut shell.case) - used) / since.elapsed().as_secs_f64();
            let passed = looks(&mut shell.case) - looked;
            println!("{passed} buckets passed, redis was busy {:.2} % of the time", share * 100.0);
            assert!(passed > 300.0, "it walks all the time: {passed}");
            share
        })
        .collect();
    // Two percent are promised; the rest is for the pushes, the heartbeats, and what a processor that others use too makes of it.
    assert!(shares.iter().any(|share| *share < 0.04), "{shares:.4?}");
    let top = eventually_ranked(&mut shell.case, BUCKETS);
    assert!(top >= BUCKETS as u64, "{top}");
}

/// How many buckets the last walk passed, once one has passed them all.
fn eventually_ranked(case: &mut Case, most: usize) -> u64 {
    let since = Instant::now();
    loop {
        let top: Vec<redis::Value> = case.fcall("drip__top", &["policy"], &["", "0"]);
        let passed = top.get(3).map_or(0, |n| redis::from_redis_value_ref(n).expect("a number"));
        if passed >= most as u64 {
            return passed;
        }
        assert!(since.elapsed() < Duration::from_secs(600), "no walk over {most} buckets ends within 10 minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
}
