//! What is measured: against what the streams say, by the tools of Prometheus, and at what cost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::rig::{Case, Daemon, Server, dripd, eventually, free_port};

/// The text that a door answers with.
fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the door is open");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}\n{body}");
    body.to_owned()
}

/// The samples, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

struct Scraped {
    server: Server,
    home: tempfile::TempDir,
    _daemon: Daemon,
    port: u16,
}

impl Scraped {
    fn start(policies: &str) -> Self {
        let (server, port) = (Server::start(&[]), free_port());
        let home = server.home(&format!("{policies}\n[http]\nlisten = '127.0.0.1:{port}'\n"));
        let daemon = Daemon::start(home.path());
        Self { server, home, _daemon: daemon, port }
    }

    fn case(&self) -> Case {
        Case { redis: self.server.connect(), prefix: "drip".to_owned() }
    }

    fn samples(&self) -> BTreeMap<String, f64> {
        samples(&get(self.port, "/metrics"))
    }

    /// The samples of a family that counts, by the value of its one label.
    fn counts(&self, family: &str) -> BTreeMap<String, u64> {
        let of = |(name, value): (String, f64)| {
            let (_, value_of) = name.strip_prefix(family)?.strip_prefix('{')?.split_once("=\"")?;
            Some((value_of.trim_end_matches("\"}").to_owned(), value as u64))
        };
        self.samples().into_iter().filter_map(of).collect()
    }
}

/// Something of everything that is counted or measured happens.
const BUSY: &str = "[defaults]\nrate = '1000000/s'\ncapacity = 1000\nattempts = 2\nbackoff = { initial = '1h', max = '1h' }\n\
                    [limits]\nmax_job_bytes = 1000\nmax_ready = 1000000\nready_window = 'off'\n\
                    [[budget]]\nmatch = 'prov:*'\nrate = '10/s'\nconcurrency = 5\n\
                    [[bucket]]\nmatch = 'mail:*'\nwithin = 'prov:{1}'\nroute = 'mail'\n\
                    [[bucket]]\nmatch = 'drops'\nrate = '1/h'\ncapacity = 2\noverflow = 'drop-oldest'\n\
                    [[bucket]]\nmatch = 'slowly'\nrate = '1/h'\n";

#[test]
fn after_100_000_jobs_the_figures_are_those_of_the_streams() {
    let scraped = Scraped::start(BUSY);
    let mut case = scraped.case();
    let jobs: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    for n in 0..198 {
        case.lpush(&format!("bulk:{n}"), &jobs);
    }
    for n in 0..2 {
        let reply: Vec<i64> = case.fcall("drip_push", &[&format!("queue:atomic:{n}")], &jobs);
        assert_eq!(reply[0], 500);
    }
    let left: u64 = 100_000;
    for part in 1..=10 {
        eventually("a tenth has left", || case.cmd::<u64>(&["XLEN", "drip:ready"]) >= left / 10 * part);
    }
    // A plain push above its capacity, a large job, one that drops, an atomic push.
    let many: Vec<&str> = std::iter::repeat_n("x", 5).collect();
    case.lpush("drops", &many);
    case.lpush("slowly", &vec!["x"; 1_010]);
    let full: Vec<i64> = case.fcall("drip_push", &["queue:tight"], &vec!["x"; 1_000]);
    assert_eq!(full[0], 1_000);
    eventually("those have left", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == left + 1_000 + 2);
    let large = "y".repeat(2_000);
    case.lpush("large", &[&large]);
    eventually("the large one is out", || case.cmd::<u64>(&["LLEN", "drip:queue:large"]) == 0);
    // What becomes of some of them.
    let mut done = BTreeMap::from([("ack", 0_u64), ("retry", 0), ("dead", 0), ("kept", 0), ("throttled", 0)]);
    let mut count = |what: &'static str, n: u64| *done.entry(what).or_default() += n;
    let entries = case.take("ready", 1_000);
    assert_eq!(entries.len(), 1_000);
    let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(case.fcall::<u64>("drip_ack", &["ready"], &ids[..900]), 900);
    let plain: Vec<&str> = ["XACK", "drip:ready", "workers"].into_iter().chain(ids[900..950].iter().copied()).collect();
    assert_eq!(case.cmd::<u64>(&plain), 50);
    count("ack", 950);
    for (range, options, what) in [
        (950..960, &["REASON", "r"][..], "retry"),
        (960..970, &["DEAD"], "dead"),
        (970..980, &["KEEP"], "kept"),
        (980..983, &["THROTTLED", "RETRY_AFTER", "60000"], "throttled"),
    ] {
        for id in &ids[range] {
            let args: Vec<&str> = std::iter::once(*id).chain(options.iter().copied()).collect();
            let outcome: i64 = case.fcall("drip_fail", &["ready"], &args);
            assert_eq!(outcome, if what == "dead" { 2 } else { 1 });
            count(what, 1);
        }
    }
    eventually("the reaper has deleted what was acknowledged plainly", || {
        case.cmd::<u64>(&["XLEN", "drip:ready"]) == left + 1_000 + 2 - 983
    });
    let found = scraped.samples();
    let figure = |name: &str| *found.get(name).unwrap_or_else(|| panic!("no {name} in {found:#?}")) as u64;
    for (outcome, n) in &done {
        assert_eq!(figure(&format!("dripd_jobs_finished_total{{outcome=\"{outcome}\"}}")), *n, "{outcome}");
    }
    assert_eq!(figure("dripd_jobs_dispatched_total{route=\"default\"}"), left + 1_002);
    assert_eq!(figure("dripd_lateness_seconds_count"), left + 1_002);
    assert_eq!(figure("dripd_jobs_pushed_atomically_total{verdict=\"accepted\"}"), 2_000);
    assert_eq!(figure("dripd_in_flight{route=\"default\"}"), 17);
    assert_eq!(figure("dripd_ready_undelivered{route=\"default\"}"), left + 2);
    assert_eq!(figure("dripd_dead_jobs"), case.cmd::<u64>(&["XLEN", "drip:dead"]));
    assert_eq!(figure("dripd_delayed_jobs"), 0);
    let rejected = case.stream("rejected");
    let of = |reason: &str| {
        let entries = rejected.iter().filter(|entry| entry.text("reason") == reason);
        entries.map(|entry| entry.fields.get("count").map_or(1, |_| entry.number("count"))).sum::<u64>()
    };
    assert!(of("dropped") > 0 && of("full") > 0, "something was thrown out");
    for reason in ["full", "dropped", "too_large"] {
        let name = format!("dripd_jobs_rejected_total{{reason=\"{reason}\"}}");
        assert_eq!(figure(&name), of(&reason.replace('_', " ")).max(of(reason)), "{reason}");
    }
    // The mean lateness, from the entries that are still there, within a tenth and what a microsecond is of the smallest.
    let late = |entry: &crate::rig::Entry| entry.number("at_us").saturating_sub(entry.number("due_us"));
    let rest = case.stream("ready");
    let mean = rest.iter().map(late).sum::<u64>() as f64 / rest.len() as f64 / 1e6;
    let told = found["dripd_lateness_seconds_sum"] / found["dripd_lateness_seconds_count"];
    assert!((told - mean).abs() < mean * 0.15 + 2e-6, "told {told}, from the entries {mean}");
}

#[test]
fn a_scrape_costs_redis_the_same_whatever_the_number_of_buckets() {
    let scraped = Scraped::start("[defaults]\nrate = '1/h'\n");
    let mut case = scraped.case();
    // How many calls a scrape makes. The daemon makes others meanwhile, above all while it walks through what has changed: so the least of
    // many looks is the scrape's, and one that costs more with more buckets never costs as little.
    let wanted = ["fcall", "fcall_ro", "info", "zcard", "hlen", "xlen", "hgetall", "smembers"];
    let calls = |case: &mut Case| -> u64 {
        let stats: String = case.cmd(&["INFO", "commandstats"]);
        let of = |line: &str| -> Option<u64> {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            wanted.contains(&name).then(|| rest.split(',').next()?.parse().ok())?
        };
        stats.lines().filter_map(of).sum()
    };
    let mut looks = Vec::new();
    let mut look = |case: &mut Case| {
        let before = calls(case);
        get(scraped.port, "/metrics");
        looks.push(calls(case) - before);
        *looks.last().expect("one more")
    };
    let few = (0..5).map(|_| look(&mut case)).min().expect("five looks");
    assert!(few > 1, "the look itself is one: {few}");
    for n in 0..5_000 {
        case.lpush(&format!("b:{n}"), &["x", "y"]);
    }
    eventually("all wait", || case.cmd::<u64>(&["ZCARD", "drip:schedule"]) == 5_000);
    eventually("a scrape costs the same again", || look(&mut case) <= few + 3);
}

#[test]
fn what_does_not_go_in_is_told_by_what_kept_it_out() {
    let scraped = Scraped::start(
        "[defaults]\nrate = '1/h'\ncapacity = 100\n\
         [[bucket]]\nmatch = 'gate'\nadmit = { limiter = 'fixed-window', limit = 2, period = '1h' }\n\
         [[bucket]]\nmatch = 'places'\ncapacity = 3\nadmit = { limiter = 'fixed-window', limit = 5, period = '1h' }\n\
         [[bucket]]\nmatch = 'both'\ncapacity = 5\nadmit = { limiter = 'fixed-window', limit = 3, period = '1h' }\n\
         [[bucket]]\nmatch = 'drops'\ncapacity = 2\noverflow = 'drop-oldest'\n\
         admit = { limiter = 'fixed-window', limit = 4, period = '1h' }\n",
    );
    let mut case = scraped.case();
    let mut push =
        |bucket: &str, n| case.fcall::<Vec<i64>>("drip_push", &[&format!("queue:{bucket}")], &vec!["x"; n])[0];
    assert_eq!([push("gate", 5), push("places", 10), push("both", 10), push("drops", 7)], [2, 3, 3, 4]);
    let mut close = dripd();
    let closed = close.args(["close", "shut"]).current_dir(scraped.home.path()).output().expect("it runs");
    assert!(closed.status.success(), "{closed:?}");
    assert_eq!(push("shut", 3), 0);
    case.lpush("shut", &["x", "x"]);
    eventually("the plain push is cut", || case.cmd::<u64>(&["LLEN", "drip:queue:shut"]) == 0);
    let mut submit = |options: &[&str]| {
        let args: Vec<&str> = ["x"].into_iter().chain(options.iter().copied()).collect();
        let nine: Vec<redis::Value> = case.fcall("drip_submit", &["queue:late"], &args);
        redis::from_redis_value::<String>(nine[5].clone()).expect("a verdict")
    };
    assert_eq!([submit(&["DELAY", "0"]), submit(&[]), submit(&["TTL", "1"])], ["queued", "queued", "late"]);
    eventually("it is counted", || scraped.counts("dripd_jobs_rejected_total").get("late") == Some(&1));
    let rejected = scraped.counts("dripd_jobs_rejected_total");
    // gate: 3 + 2 of the 7 of `both` + 3 of `drops`; full: 7 + 5; dropped: 4 went into 2 places.
    let expected =
        [("closed", 5), ("dropped", 2), ("expired", 0), ("full", 12), ("gate", 8), ("late", 1), ("too_large", 0)];
    assert_eq!(rejected, expected.map(|(reason, n)| (reason.to_owned(), n)).into());
    let pushed = scraped.counts("dripd_jobs_pushed_atomically_total");
    assert_eq!(pushed, [("accepted".to_owned(), 14), ("rejected".to_owned(), 3 + 7 + 7 + 3 + 3 + 1)].into());
}

#[test]
fn what_others_put_into_a_stream_is_no_job_that_was_acknowledged_or_died() {
    let scraped = Scraped::start("[defaults]\nrate = '1000/s'\n");
    let mut case = scraped.case();
    case.lpush("b", &["1", "2", "3", "4"]);
    eventually("all have left", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == 4);
    for _ in 0..2 {
        let _: String = case.cmd(&["XADD", "drip:ready", "*", "foo", "bar"]);
    }
    for entry in case.take("ready", 10) {
        let is_job = entry.fields.contains_key("job");
        let outcome: i64 = case.fcall(if is_job { "drip_ack" } else { "drip_fail" }, &["ready"], &[&entry.id]);
        assert_eq!(outcome, if is_job { 1 } else { 2 });
    }
    // And something that stands among the failed jobs of a bucket.
    for (key, member) in [("drip:retry:b", "nonsense"), ("drip:retries", "b")] {
        let _: i64 = case.cmd(&["ZADD", key, "1", member]);
    }
    case.lpush("b", &["5"]);
    eventually("it is found there", || case.cmd::<u64>(&["XLEN", "drip:dead"]) == 3);
    eventually("and the job leaves", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == 1);
    let last = case.take("ready", 1).remove(0).id;
    assert_eq!(case.fcall::<i64>("drip_ack", &["ready"], &[&last]), 1);
    let finished = scraped.counts("dripd_jobs_finished_total");
    assert_eq!((finished["ack"], finished["dead"], finished["retry"]), (5, 0, 0), "{finished:?}");
    assert_eq!(scraped.samples()["dripd_dead_jobs"] as u64, 3);
}

#[test]
fn a_lease_that_ends_is_told_apart_from_a_failure_and_the_last_one_of_a_job_is_its_death() {
    let scraped = Scraped::start(
        "[defaults]\nrate = '1000/s'\nlease = '1s'\nbackoff = { initial = '1h', max = '1h' }\n[[bucket]]\nmatch = 'once'\nattempts = 1\n",
    );
    let mut case = scraped.case();
    case.lpush("b", &["1", "2", "3"]);
    case.lpush("once", &["4"]);
    eventually("all have left", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == 4);
    let entries = case.take("ready", 4);
    let failed = entries.iter().find(|entry| entry.text("job") == "1").expect("it was taken");
    assert_eq!(case.fcall::<i64>("drip_fail", &["ready"], &[&failed.id]), 1);
    eventually("the others are taken back", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == 0);
    let expected =
        [("ack", 0), ("dead", 1), ("expired", 2), ("forwarded", 0), ("kept", 0), ("retry", 1), ("throttled", 0)];
    let expected: BTreeMap<String, u64> = expected.map(|(outcome, n)| (outcome.to_owned(), n)).into();
    assert_eq!(scraped.counts("dripd_jobs_finished_total"), expected);
}

const USED: &str = "dripd_budget_utilization_ratio{budget=\"line\"}";

#[test]
fn however_many_scrape_all_are_told_how_much_of_a_rate_is_used() {
    let scraped = Scraped::start(
        "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'b'\nwithin = 'line'\n[[budget]]\nmatch = 'line'\nrate = '20/s'\n",
    );
    let mut case = scraped.case();
    case.lpush("b", &["x"; 900]);
    eventually("it is known", || scraped.samples().contains_key(USED));
    for _ in 0..5 {
        let before: u64 = case.cmd(&["XLEN", "drip:ready"]);
        eventually("half a second's jobs have left", || case.cmd::<u64>(&["XLEN", "drip:ready"]) >= before + 10);
        let told = [(); 3].map(|()| scraped.samples()[USED]);
        let at: Vec<u64> = case.stream("ready").iter().map(|entry| entry.number("at_us")).collect();
        let last = &at[at.len().saturating_sub(200)..];
        let is = (last.len() - 1) as f64 / ((last[last.len() - 1] - last[0]) as f64 / 1e6) / 20.0;
        assert!(told.iter().all(|told| (told - is).abs() < 0.3), "told {told:?}, by the entries {is}");
    }
}

#[test]
fn of_a_budget_that_has_only_a_quota_it_is_told_how_much_of_that_is_used() {
    let scraped = Scraped::start(
        "[defaults]\nrate = '1000/s'\n[[bucket]]\nmatch = 'b'\nwithin = 'line'\n[[budget]]\nmatch = 'line'\nquota = '10/d'\n",
    );
    let mut case = scraped.case();
    case.lpush("b", &["x"; 12]);
    eventually("the quota is used up", || case.cmd::<u64>(&["XLEN", "drip:ready"]) == 10);
    assert_eq!(scraped.samples().get(USED), Some(&1.0));
}

/// The names of metrics in a text of queries.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("dripd_"));
    metrics.map(str::to_owned).collect()
}

#[test]
fn every_query_of_the_rules_and_the_dashboard_names_a_metric_that_exists() {
    let scraped = Scraped::start(BUSY);
    let mut case = scraped.case();
    case.lpush("mail:a", &vec!["x"; 50]);
    case.lpush("plain", &["x"]);
    eventually("some have left", || case.cmd::<u64>(&["XLEN", "drip:ready:mail"]) > 0);
    let entry = case.take("ready:mail", 1).remove(0).id;
    let _: i64 = case.fcall("drip_fail", &["ready:mail"], &[entry.as_str(), "THROTTLED"]);
    let mut text = String::new();
    // Which budgets have most waiting is told by the walk, and how much of them is used by two scrapes.
    eventually("budgets are told of", || {
        text = get(scraped.port, "/metrics");
        text.contains("dripd_budget_utilization_ratio{")
    });
    let known: BTreeSet<String> =
        samples(&text).into_keys().map(|name| name.split('{').next().unwrap_or_default().to_owned()).collect();
    let rules = std::fs::read_to_string("examples/monitoring/alerts.yml").expect("the rules");
    let dashboard = std::fs::read_to_string("examples/monitoring/dashboard.json").expect("the dashboard");
    let families: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // In its descriptions a text may name a family.
    let asked: BTreeSet<String> = (&names(&rules) | &names(&dashboard))
        .into_iter()
        .filter(|name| !families.contains(name.as_str()) || known.contains(name))
        .collect();
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.difference(&known).collect();
    assert!(missing.is_empty(), "nothing is called {missing:?}; there are {known:#?}");
    let unasked: Vec<_> =
        families.iter().filter(|family| !asked.iter().any(|name| name.starts_with(*family))).collect();
    assert!(unasked.is_empty(), "the dashboard shows nothing of {unasked:?}");
    let files = ["examples/kubernetes", "examples/kubernetes/chart/templates"].map(std::fs::read_dir);
    let paths = files.into_iter().flat_map(|files| files.expect("a folder")).map(|file| file.expect("a file").path());
    for path in paths.filter(|path| path.is_file()) {
        let asked = names(&std::fs::read_to_string(&path).expect("a file"));
        let missing: Vec<_> = asked.difference(&known).collect();
        assert!(missing.is_empty(), "{}: nothing is called {missing:?}", path.display());
    }
}
