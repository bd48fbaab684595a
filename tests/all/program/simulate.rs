//! `dripd simulate`: what it says is what the functions do, and what a live daemon does.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Shell, said};
use crate::program::daemon::home;
use crate::rig::{Case, Daemon, eventually, server, signal};

/// Simulate, and read the JSON of it.
fn simulate(shell: &Shell, args: &[&str]) -> Value {
    let (code, out, err) = shell.run(&[&["simulate", "--json"], args].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    serde_json::from_str(&out).expect("JSON")
}

/// The figures of a group.
fn group<'a>(said: &'a Value, name: &str) -> &'a Value {
    let groups = said["report"]["groups"].as_array().expect("groups");
    groups.iter().find(|group| group["match"] == name).unwrap_or_else(|| panic!("no {name} in {said}"))
}

fn number(group: &Value, key: &str) -> f64 {
    group[key].as_f64().unwrap_or_else(|| panic!("no {key} in {group}"))
}

#[test]
fn the_same_seed_gives_the_same_answer_to_the_byte() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\nwithin = 'all'\n[[budget]]\nmatch = 'all'\nrate = '60/s'\n");
    let args = |seed| {
        ["simulate", "--json", "--for", "40s", "--seed", seed, "--workers", "10x100ms, exponential", "--load"]
            .into_iter()
            .chain(["a*: 20 buckets, 4/s, poisson, fail 5%, throttle 0.2% for 2s, cost 1 to 3, deadline 20s"])
            .collect::<Vec<_>>()
    };
    let first = shell.run(&args("7"));
    assert_eq!(first.0, 0, "{first:?}");
    assert_eq!(shell.run(&args("7")).1, first.1);
    assert_ne!(shell.run(&args("8")).1, first.1, "another seed is other traffic");
}

#[test]
fn costs_that_workers_correct_come_true() {
    let shell = Shell::new("[defaults]\nrate = '90000/m'\ncapacity = 100000\n");
    for (load, real) in [("cost 300 real 120", 120.0), ("cost 200 to 400 real 40%", 120.0)] {
        let said = simulate(&shell, &["--load", &format!("llm: 20/s, {load}"), "--workers", "60x2s", "--for", "5m"]);
        let llm = group(&said, "llm");
        assert!((0.96..=1.01).contains(&number(llm, "use")), "{llm}");
        assert!((number(llm, "per_second") * real / 1_500.0 - number(llm, "use")).abs() < 0.02, "{llm}");
    }
    let (code, _, err) = shell.run(&["simulate", "--load", "llm: 20/s, cost 300 real much", "--for", "5m"]);
    assert!(code == 2 && err.contains("real N"), "{code} {err}");
}

#[test]
fn the_figures_are_what_follows_from_rate_capacity_cost_deadline_and_workers() {
    let shell = Shell::new(
        "[defaults]\nrate = '10/s'\ncapacity = 100\n[[bucket]]\nmatch = 'slow'\nrate = '1/s'\ncapacity = 1000\n\
         [[bucket]]\nmatch = 'list'\nroute = 'sidekiq'\n[[route]]\nname = 'sidekiq'\nto = 'queue:default'\n",
    );
    // Twice what the rate allows: 100 seconds fill the places, and the rest is refused.
    let said = simulate(&shell, &["--load", "full: 20/s", "--for", "100s"]);
    let full = group(&said, "full");
    assert!((1_999.0..=2_000.0).contains(&number(full, "pushed")), "{full}");
    assert!((number(full, "per_second") - 10.0).abs() < 0.05 && (number(full, "use") - 1.0).abs() < 0.01, "{full}");
    assert!((99.0..=100.0).contains(&number(full, "waiting")), "{full}");
    let out = 100.0 * number(full, "per_second");
    let left = number(full, "pushed") - number(full, "rejected") - number(full, "waiting");
    assert!((left - out).abs() < 0.5, "each is somewhere: {full}");
    assert!((number(&full["wait_ms"], "max") - 10_000.0).abs() < 200.0, "a hundred places at 10/s: {full}");
    assert_eq!(full["bound"][0]["by"], "rate");

    // A cost of ten is ten slots of the rate.
    let said = simulate(&shell, &["--load", "dear: 2/s, cost 10", "--for", "60s"]);
    let dear = group(&said, "dear");
    assert!((number(dear, "per_second") - 1.0).abs() < 0.05 && (number(dear, "use") - 1.0).abs() < 0.03, "{dear}");

    // Whoever may wait for five seconds does so, or is late.
    let said = simulate(&shell, &["--load", "slow: 2/s, deadline 5s", "--for", "60s"]);
    let slow = group(&said, "slow");
    assert!(number(&slow["wait_ms"], "max") <= 5_001.0 && number(slow, "late") > 40.0, "{slow}");
    assert!((number(slow, "per_second") - 1.0).abs() < 0.05, "{slow}");

    // Workers that are away for ten seconds.
    let workers = ["--workers", "2x100ms, away 10s to 20s"];
    let said = simulate(&shell, &[&["--load", "b*: 10 buckets, 1/s", "--for", "30s"], &workers[..]].concat());
    let away = group(&said, "b*");
    assert!((9_500.0..=10_600.0).contains(&number(&away["wait_ms"], "max")), "{away}");
    assert!(away["bound"].to_string().contains("workers"), "{away}");

    // One worker with 200 ms a job takes five a second; jobs that are forwarded are taken from their list.
    let said = simulate(&shell, &["--load", "list: 8/s", "--for", "60s", "--workers", "1x200ms"]);
    let list = group(&said, "list");
    assert!((number(list, "per_second") - 5.0).abs() < 0.1, "{list}");
}

#[test]
fn failures_are_tried_again_and_a_throttled_bucket_slows_down() {
    let shell = Shell::new("[defaults]\nrate = '20/s'\nattempts = 2\nbackoff = { initial = '1s' }\n");
    let said = simulate(&shell, &["--load", "a: 5/s, fail 50%", "--for", "200s"]);
    let (failed, dead) = (number(&said["report"], "failed"), number(group(&said, "a"), "dead"));
    assert!((650.0..850.0).contains(&failed), "half of 1,000, and half of those again: {failed}");
    assert!((200.0..300.0).contains(&dead), "a quarter of 1,000: {dead}");

    let said = simulate(&shell, &["--load", "a: 5/s, throttle 2% for 3s", "--for", "200s"]);
    let throttled = number(&said["report"], "throttled");
    assert!((10.0..40.0).contains(&throttled), "{throttled}");
    let waits = &group(&said, "a")["wait_ms"];
    assert!((2_500.0..12_000.0).contains(&number(waits, "max")), "some come in the middle of a slow-down: {waits}");
    assert!(number(waits, "p50") < 1_000.0, "{waits}");
}

#[test]
fn a_change_stands_beside_what_it_changes_and_a_plot_shows_both() {
    let shell = Shell::new("[defaults]\nrate = '10/s'\n");
    let old = shell.file("old.toml", "[defaults]\nrate = '5/s'\n");
    let plot = shell.file("plot.svg", "");
    let args = ["--against", &old, "--plot", &plot, "--load", "sms:*: 10 buckets, 4/s, bursts of 40", "--for", "2m"];
    let (code, out, _) = shell.run(&[&["simulate"], &args[..]].concat());
    assert_eq!(code, 0);
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let lines: Vec<&str> =
        out.lines().filter(|line| line.starts_with("sms:*") || line.starts_with("  against")).collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(lines[0].contains("3.9s") && lines[1].contains("7.8s"), "the last of forty, at 10/s and at 5/s: {out}");
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert!(
        svg.starts_with("<svg") && svg.contains("prefers-color-scheme: dark") && svg.contains("line before"),
        "{svg}"
    );
}

#[test]
fn what_is_expected_is_judged_by_the_exit_code_and_said() {
    let shell = Shell::new(
        "[defaults]\nrate = '10/s'\nwithin = 'all'\n[[budget]]\nmatch = 'all'\nrate = '15/s'\n\
         [[expect]]\nassert = 'sms:* wait.p99 < 30s'\n[[expect]]\nassert = 'budget all use >= 90%'\n",
    );
    let load = ["simulate", "--for", "1m", "--load", "sms:*: 2 buckets, 10/s"];
    let (code, out, err) = shell.run(&load);
    assert_eq!(code, 0, "{err}");
    assert!(out.ends_with("\n2 of 2 as expected\n"), "{out}");
    let more = ["--assert", "sms:* rejected <= 0", "--assert", "sms:* wait.p95 < 1s", "--assert", "sms:1 rate > 9/s"];
    let (code, out, err) = shell.run(&[&load[..], &more].concat());
    assert_eq!(code, 1);
    assert!(out.ends_with("\n3 of 5 as expected\n"), "{out}");
    let said: Vec<&str> = err.lines().filter(|line| line.contains("not as expected")).collect();
    assert!(said[0].starts_with("dripd simulate: not as expected: sms:* wait.p95 < 1s: it is 1"), "{err}");
    assert!(said[1].starts_with("dripd simulate: not as expected: sms:1 rate > 9/s: it is 7."), "{err}");
    let (code, _, err) = shell.run(&[&load[..], &["--assert", "smss:* rejected <= 0"]].concat());
    assert_eq!(code, 1, "a name that is written wrong must not pass");
    assert!(err.contains("nothing was pushed there; figures are known of sms:*, budget all"), "{err}");
    let shell = Shell::new("[defaults]\nrate = '1/h'\ncapacity = 993\n");
    let trace = shell.file("t.jsonl", "{\"at_ms\":0,\"bucket\":\"a\",\"jobs\":1000}\n");
    for (expected, code) in [("* rejected <= 0.7%", 0), ("* rejected < 0.7%", 1)] {
        let args = ["simulate", "--for", "1s", "--trace", &trace, "--assert", expected];
        assert_eq!(shell.run(&args).0, code, "seven of a thousand: {expected}");
    }
}

#[test]
fn no_expectation_passes_because_nothing_got_through() {
    let shell = Shell::new(
        "[defaults]\nrate = '1/h'\ncapacity = 1000\n[[bucket]]\nmatch = 'tiny'\ncapacity = 1\n\
                            [[bucket]]\nmatch = 'quick'\nrate = '10/s'\n",
    );
    for (load, more, expected, said) in [
        ("a: 2/s", &[][..], "a wait.p99 < 30s", "it is 5"),
        ("a: 2/s", &["--workers", "1x1s, away 0s to 1h"], "a wait.p50 < 1s", "it is "),
        ("quick: 2/s, throttle 100% for 5s, until 1s", &[], "quick waiting <= 0", "it is "),
        ("quick: 2/s, throttle 100% for 5s, until 1s", &[], "quick fairness > 99%", "it is "),
        ("a: 2/s, delay 1h", &[], "a fairness > 99%", "it is not known: no job got through"),
        ("a: 2/s", &[], "a use < 50%", "it is "),
        ("tiny: 2/s, deadline 1s", &["--workers", "1x1s, away 0s to 1h"], "tiny late <= 0", "it is "),
    ] {
        let args = ["simulate", "--for", "1m", "--load", load, "--assert", expected];
        let (code, _, err) = shell.run(&[&args[..], more].concat());
        assert_eq!(code, 1, "{load}: {expected}: {err}");
        assert!(err.contains(&format!("not as expected: {expected}: {said}")), "{load}: {err}");
    }
    let (code, _, err) = shell.run(&["simulate", "--for", "1m", "--load", "a: 2/s", "--assert", "a use < 50"]);
    assert_eq!(code, 2, "50 is no share: {err}");
    let (code, _, err) = shell.run(&["simulate", "--for", "1m", "--load", "a: 2/s, from 1h"]);
    assert_eq!(code, 2);
    assert!(err.contains("nothing is pushed in this time"), "{err}");
}

#[test]
fn each_try_takes_of_the_rate_and_a_job_is_late_wherever_it_waited_too_long() {
    let shell = Shell::new(
        "[defaults]\nrate = '10/s'\nbackoff = { initial = '1s', max = '2s' }\n[[bucket]]\nmatch = 'b'\nattempts = 100\n",
    );
    let said = simulate(&shell, &["--load", "a: 9/s, fail 100%", "--for", "2m"]);
    let a = group(&said, "a");
    assert!(number(a, "use") > 0.95 && number(a, "per_second") > 9.5, "all tries take of the rate: {a}");
    let plot = shell.file("plot.svg", "");
    let load = ["--load", "b: 1/s, fail 100%, until 10s", "--for", "100s", "--plot", plot.as_str()];
    let said = simulate(&shell, &load);
    let b = group(&said, "b");
    assert_eq!((&b["waiting"], &b["retrying"]), (&0.into(), &b["accepted"]), "all wait for another try: {b}");
    assert_eq!(b["bound"][0]["by"], "backing-off", "and that is seen: {b}");
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert!(svg.contains("\n10\n") || svg.contains(">10<"), "ten wait at once: {svg}");
    // A job leaves its bucket in time, and lies ready until its deadline is over.
    let said = simulate(&shell, &["--load", "a: 1/s, deadline 500ms", "--workers", "1x2s", "--for", "1m"]);
    let a = group(&said, "a");
    assert!(number(a, "late") > 25.0, "of the thirty that are taken: {a}");
}

#[test]
fn what_is_pushed_into_full_buckets_names_with_brackets_and_bursts_of_any_cost_is_counted_as_it_is() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\ncapacity = 30\noverflow = 'drop-oldest'\n");
    // Six bursts into each bucket, of which twenty jobs are pushed out each time; then the bucket drains.
    let said = simulate(&shell, &["--for", "5m", "--load", "sms:*: 20 buckets, 1/s, bursts of 50, until 290s"]);
    let sms = group(&said, "sms:*");
    let bursts = number(sms, "pushed") / 50.0;
    assert!((110.0..=120.0).contains(&bursts), "{sms}");
    assert_eq!((number(sms, "taken"), number(sms, "pushed_out")), (30.0 * bursts, 20.0 * bursts), "{sms}");
    // A burst comes, and what it pushes out goes, at one moment.
    let plot = shell.file("plot.svg", "");
    simulate(&shell, &["--for", "1m", "--load", "a: 5/s, bursts of 50", "--plot", &plot]);
    let svg = std::fs::read_to_string(plot).expect("a plot");
    let has = |label: &str| svg.contains(&format!(">{label}<")) || svg.contains(&format!("\n{label}\n"));
    assert!(has("30") && !has("50"), "no more than its capacity waits: {svg}");
    let said = simulate(&shell, &["--for", "1m", "--load", "a[b]: 1/s", "--load", "ab: 4/s"]);
    assert!((59.0..=60.0).contains(&number(group(&said, "a\\[b\\]"), "pushed")), "{said}");
    let said = simulate(&shell, &["--for", "1m", "--load", "a*: 20 buckets, 4/s, bursts of 20, cost 1 to 3"]);
    let a = group(&said, "a*");
    assert!((1.8..2.2).contains(&(number(a, "units") / number(a, "tries"))), "each job has a cost of its own: {a}");
    let said = simulate(&shell, &["--for", "1m", "--load", "a: 4/s, throttle 20%"]);
    assert!(said["report"]["throttled"].as_f64() > Some(5.0), "the function says for how long: {said}");
}

#[test]
fn what_bound_is_asked_between_round_times_and_use_is_at_most_the_whole() {
    let shell = Shell::new(
        "[defaults]\nrate = '10/s'\ncapacity = 100000\n[[bucket]]\nmatch = 'rare'\nrate = '1/h'\ncost_max = 3\n",
    );
    let day = shell.file("day.jsonl", "{\"at_ms\":0,\"bucket\":\"sms:1\",\"jobs\":20000}\n");
    for lasts in ["1m", "10m"] {
        let said = simulate(&shell, &["--trace", &day, "--for", lasts]);
        let bound = &group(&said, "*")["bound"];
        assert_eq!(bound[0]["by"], "rate", "{bound}");
        assert!(number(&bound[0], "share") > 0.97, "for 0.25 of 100 ms the next job is due: {bound}");
    }
    let said = simulate(&shell, &["--load", "rare: 1/m, cost 3", "--for", "2m"]);
    let rare = group(&said, "rare");
    assert!((0.5..=1.0).contains(&number(rare, "use")), "from the first one on, a job that takes three hours: {rare}");
    let said = simulate(&shell, &["--load", "a: 30/s, cost 1 to 50, until 30s", "--for", "60s"]);
    let a = group(&said, "a");
    assert!((number(a, "use") - 1.0).abs() < 0.005, "of costs of every size: {a}");
}

#[test]
fn jobs_that_wait_beyond_their_deadline_at_the_end_are_late_and_a_plot_says_where_nobody_took_one() {
    let shell = Shell::new("[defaults]\nrate = '10/s'\nwithin = 'p'\n[[budget]]\nmatch = 'p'\nconcurrency = 1\n");
    let load = "a*: 100 buckets, 1/m, deadline 5s, until 20s";
    let said = simulate(&shell, &["--for", "45s", "--load", load, "--workers", "10x50s"]);
    let a = group(&said, "a*");
    assert_eq!((&a["taken"], &a["waiting"]), (&1.into(), &0.into()), "{a}");
    assert_eq!(a["late"].as_u64().map(|late| late + 1), a["pushed"].as_u64(), "{a}");
    let delayed = simulate(&shell, &["--for", "20s", "--load", "d: 1/s, delay 1h, deadline 2h"]);
    assert_eq!(group(&delayed, "d")["late"], 0, "their time is still to come");
    let away = shell.file("away.jsonl", "{\"at_ms\":0,\"bucket\":\"a\",\"ttl_ms\":1000}\n");
    let plot = shell.file("plot.svg", "");
    let args = ["--trace", &away, "--for", "1m", "--workers", "1x1s, away 0s to 2m", "--plot", &plot];
    assert_eq!(group(&simulate(&shell, &args), "*")["late"], 1, "it lies ready, and its deadline is over");
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert_eq!(svg.matches("no worker took a job").count(), 2, "of the bucket and of the budget: {svg}");
}

/// A bucket that a change does not touch has the same failures and services under both configurations.
#[test]
fn what_happens_to_a_job_by_chance_depends_on_nothing_else() {
    let with = |rate| {
        format!("[[bucket]]\nmatch = 'a'\nrate = '{rate}'\n[[bucket]]\nmatch = 'b'\nrate = '10/s'\nattempts = 2\n")
    };
    let shell = Shell::new(&with("5/s"));
    let other = shell.file("other.toml", &with("6/s"));
    let args =
        ["--load", "a: 8/s, fail 10%", "--load", "b: 1/s, fail 20%, throttle 2%", "--for", "1m", "--against", &other];
    let said = simulate(&shell, &[&args[..], &["--workers", "20x100ms, exponential"]].concat());
    let against = said["against"]["groups"].as_array().expect("groups");
    let b = against.iter().find(|group| group["match"] == "b").expect("b");
    assert_eq!(group(&said, "b"), b);
    assert!(number(b, "tries") > number(b, "taken"), "some failed: {b}");
    assert_ne!(group(&said, "a")["taken"], against[0]["taken"]);
}

/// The tries of a job are independent of each other, and services of those before.
#[test]
fn what_happens_by_chance_has_the_shares_and_waits_of_the_textbook() {
    let shell = Shell::new(
        "[defaults]\nrate = '1000/s'\ncapacity = 100000\nattempts = 3\nbackoff = { initial = '100ms', max = '1s' }\n",
    );
    let said = simulate(&shell, &["--load", "a: 100/s, fail 50%, until 50s", "--for", "1m"]);
    let dead = number(group(&said, "a"), "dead");
    assert!((525.0..725.0).contains(&dead), "an eighth of 5,000: {dead}");
    let said = simulate(&shell, &["--load", "a: 100/s, fail 20%, throttle 20% for 10ms, until 50s", "--for", "1m"]);
    let (failed, throttled) = (number(&said["report"], "failed"), number(&said["report"], "throttled"));
    let tries = number(group(&said, "a"), "tries");
    assert!((throttled / tries - 0.2).abs() < 0.025 && (failed / tries - 0.16).abs() < 0.025, "{said}");
    // M/M/1 at 80 %: a wait is longer than t with the probability 0.8 exp(-10 t).
    let said = simulate(&shell, &["--load", "a: 40/s, poisson", "--workers", "1x20ms, exponential", "--for", "20m"]);
    let wait = &group(&said, "a")["wait_ms"];
    assert!((42.0..53.0).contains(&number(wait, "p50")), "47 ms: {wait}");
    assert!((240.0..320.0).contains(&number(wait, "p95")), "277 ms: {wait}");
}

/// What binds a bucket is asked however many others wait.
/// Each job that was taken is done, in the hands of a worker, waits for another try, or is dead.
#[test]
fn a_job_that_dies_is_counted_whatever_it_dies_of() {
    let shell = Shell::new(
        "[[bucket]]\nmatch = 'quick'\nrate = '10/s'\n[[bucket]]\nmatch = 'slow'\nrate = '1/4s'\n\
         [[bucket]]\nmatch = 'once'\nrate = '10/s'\nattempts = 1\nslow = { initial = '10ms', max = '10ms', cap = '10ms' }\n",
    );
    let books = |load: &str, of: &str| {
        let said = simulate(&shell, &["--for", "10m", "--load", load]);
        let it = group(&said, of).clone();
        let tried = |key: &str| said["report"][key].as_f64().expect("a number");
        let undone = number(&it, "taken") - (number(&it, "tries") - tried("failed") - tried("throttled"));
        let known = number(&it, "dead") + number(&it, "retrying");
        assert!((undone - known).abs() < 0.5, "{undone} and {known}: {said}");
        it
    };
    let quick = books("quick: 5/s, deadline 2s, throttle 20%", "quick");
    assert!(number(&quick, "dead") > 100.0, "slowed down beyond their deadlines: {quick}");
    let slow = books("slow: 1/8s, deadline 3s, fail 100%", "slow");
    assert!(number(&slow, "dead") >= 73.0, "no second try comes in time: {slow}");
    let once = books("once: 1/s, throttle 90% for 10ms", "once");
    assert!((20.0..120.0).contains(&number(&once, "dead")), "some 0.9^21 of 600: {once}");
    let (_, out, _) = shell.run(&["simulate", "--for", "1m", "--load", "slow: 1/8s, deadline 3s, fail 100%"]);
    assert!(out.contains(" dead ") && out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn what_bound_is_known_of_each_load() {
    let shell = Shell::new("[[bucket]]\nmatch = 'a*'\nrate = '1/10s'\n[[bucket]]\nmatch = 'b'\nrate = '1/s'\n");
    let load = ["--load", "b: 5/m, bursts of 10", "--load", "a*: 1000 buckets, 1/5s", "--for", "2m"];
    let said = simulate(&shell, &load);
    assert_eq!(group(&said, "b")["bound"][0]["by"], "rate", "{said}");
    assert_eq!(group(&said, "b")["bound"], group(&simulate(&shell, &[&load[..2], &load[4..]].concat()), "b")["bound"]);
}

#[test]
fn use_depth_and_workers_are_what_the_page_says_in_short_runs_between_slots_and_for_other_routes() {
    let shell = Shell::new(
        "[[bucket]]\nmatch = 'j'\nrate = '1000/s'\njob_rate = '5/s'\n\
         [[bucket]]\nmatch = 'h*'\nrate = '1/h'\n[[bucket]]\nmatch = 'mail'\nroute = 'mail'\nrate = '5/s'\n\
         [[bucket]]\nmatch = '*'\nrate = '1/s'\n",
    );
    let said = simulate(&shell, &["--load", "h*: 50 buckets, 1/h", "--for", "1h"]);
    let h = group(&said, "h*");
    let (used, taken) = (number(h, "use"), number(h, "taken") / 50.0);
    assert!((0.3 * taken..0.7 * taken).contains(&used), "each pays for an hour, half of it after the end: {h}");
    let said = simulate(&shell, &["--load", "j: 10/s, cost 3", "--for", "1m"]);
    assert!((number(group(&said, "j"), "use") - 1.0).abs() < 0.01, "job_rate binds: {said}");
    let plot = shell.file("plot.svg", "");
    simulate(&shell, &["--load", "a: 60/h, bursts of 10", "--for", "1h", "--seed", "2", "--plot", &plot]);
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert!(svg.contains("\n10\n") || svg.contains(">10<"), "ten jobs come at once, between two slots: {svg}");
    let said = simulate(&shell, &["--load", "mail: 8/s", "--load", "b: 1/m", "--for", "2m", "--workers", "mail: 1x1s"]);
    assert_eq!((&group(&said, "b")["waiting"], &group(&said, "mail")["taken"]), (&0.into(), &120.into()), "{said}");
}

#[test]
fn a_job_of_a_route_that_forwards_is_late_where_it_is_taken_late_and_what_cannot_happen_there_is_said() {
    let shell = Shell::new(
        "[defaults]\nrate = '10/s'\n[[route]]\nname = 'fw'\nto = 'queue:x'\n[[bucket]]\nmatch = 'f:*'\nroute = 'fw'\n",
    );
    let late = |name: &str| {
        let loads = [1, 2].map(|n| format!("{name}:{n}: 1/10s, deadline 1s"));
        let args = ["--load", &loads[0], "--load", &loads[1], "--workers", "1x5s", "--for", "20s"];
        let said = simulate(&shell, &args);
        [1, 2].map(|n| number(group(&said, &format!("{name}:{n}")), "late")).iter().sum::<f64>()
    };
    assert_eq!((late("a"), late("f")), (2.0, 2.0), "two waited for nearly four seconds");
    let (_, _, err) = shell.run(&["simulate", "--load", "f:1: 4/s, throttle 100% for 5s", "--for", "5s"]);
    assert!(err.contains("route fw forwards its jobs: that they fail, or are throttled, is not simulated"), "{err}");
}

#[test]
fn a_plot_has_every_row_and_ends_with_what_still_waits() {
    let shell = Shell::new("[[bucket]]\nmatch = 'a:*'\nrate = '1/s'\n");
    let plot = shell.file("plot.svg", "");
    let drawn = |args: &[&str]| {
        simulate(&shell, &[args, &["--plot", &plot]].concat());
        std::fs::read_to_string(&plot).expect("a plot")
    };
    let loads = [1, 2, 3, 4, 5].map(|n| format!("a:{n}: 1/s"));
    let mut args = vec!["--for", "10s", "--load", "a:6: 9/s"];
    args.extend(loads.iter().flat_map(|load| ["--load", load.as_str()]));
    let svg = drawn(&args);
    assert!((1..=6).all(|n| svg.contains(&format!("a:{n}: wait"))), "{svg}");
    // Nobody takes a job any more after ten seconds: the last place is how long they have waited by then.
    let svg = drawn(&["--for", "1m", "--load", "a:1: 1/s", "--workers", "1x1ms, away 10s to 2m"]);
    assert!(svg.lines().any(|line| line.starts_with("49.") && line.ends_with('s')), "{svg}");
}

#[test]
fn files_with_different_routes_are_compared() {
    let shell = Shell::new("[[bucket]]\nmatch = 'a:*'\nroute = 'own'\n");
    let other = shell.file("other.toml", "[defaults]\nrate = '5/s'\n");
    let said = |route: &str| {
        let workers = format!("{route}: 1x100ms");
        shell.run(&["simulate", "--load", "a:1: 2/s", "--for", "10s", "--against", &other, "--workers", &workers])
    };
    assert_eq!(said("own").0, 0);
    let (code, _, err) = said("owm");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("nobody works on route owm: no policy names it; the routes are default, own"), "{err}");
}

#[test]
fn whatever_ends_a_simulation_leaves_no_server_and_no_directory_behind() {
    for signal_name in ["INT", "TERM", "KILL"] {
        let shell = Shell::new("");
        let home = shell.home().join("tmp");
        std::fs::create_dir(&home).expect("a directory");
        let mut command = shell.command(&["simulate", "--for", "30d", "--load", "b*: 100 buckets, 5/s"]);
        command.env("TMPDIR", &home).stderr(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it runs");
        let sockets = || {
            let homes = std::fs::read_dir(&home).expect("a directory").flatten();
            homes.filter(|entry| entry.path().join("redis.sock").exists()).count()
        };
        eventually("its server runs", || sockets() == 1);
        signal(child.id(), signal_name);
        let status = child.wait().expect("it ends");
        if signal_name != "KILL" {
            assert_eq!(status.code(), Some(130), "{signal_name}");
        }
        eventually("all is gone", || std::fs::read_dir(&home).expect("a directory").count() == 0);
    }
}

#[test]
fn a_stream_without_end_is_read_no_further_than_it_is_needed_and_a_result_that_cannot_be_written_is_a_failure() {
    let shell = Shell::new("");
    let endless = |line: &str, more: &str| {
        let script = format!("yes '{line}' | \"$0\" simulate --trace - {more}");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_dripd")).current_dir(shell.home());
        said(&command.output().expect("it runs"))
    };
    let (code, _, err) = endless("no trace", "--for 10s");
    assert_eq!(code, 2);
    assert!(err.contains("line 1 of the trace: "), "{err}");
    let script = "i=0; while :; do i=$((i+1)); echo \"{\\\"at_ms\\\":${i}000,\\\"bucket\\\":\\\"a\\\"}\"; done | \"$0\" simulate --json --trace - --for 20s";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_dripd")).current_dir(shell.home());
    let (code, out, err) = said(&command.output().expect("it runs"));
    assert_eq!(code, 0, "{err}");
    assert_eq!(group(&serde_json::from_str(&out).expect("JSON"), "*")["pushed"], 21, "{out}");
    for json in [&["--json"][..], &[]] {
        let mut command = shell.command(&[&["simulate", "--for", "5s", "--load", "a: 1/s"], json].concat());
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let (code, _, err) = said(&command.stdout(full).output().expect("it runs"));
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("cannot write to standard output"), "{err}");
    }
}

#[test]
fn bad_input_gets_one_line_and_the_way_out() {
    let shell = Shell::new("");
    let backwards = shell.file("b.jsonl", "{\"at_ms\":5,\"bucket\":\"a\"}\n{\"at_ms\":4,\"bucket\":\"a\"}\n");
    let unknown = shell.file("u.jsonl", "{\"at_ms\":5,\"buket\":\"a\"}\n");
    let list = shell.file("i.jsonl", "[0,\"a\",7]\n");
    let empty = shell.file("e.jsonl", "\n");
    let long = shell.file("l.jsonl", "{\"at_ms\":0,\"bucket\":\"a\"}\n{\"at_ms\":9999999999999,\"bucket\":\"a\"}\n");
    let dear = shell.file("d.jsonl", "{\"at_ms\":5,\"bucket\":\"a\",\"cost\":0}\n");
    let orphans =
        shell.file("o.toml", "[[bucket]]\nmatch = '*'\nwithin = 'b:{1}'\n[[budget]]\nmatch = 'b:a'\nrate = '1/s'\n");
    let load = ["--for", "10s", "--load", "a: 1/s"];
    for (args, exit, said) in [
        (&["--load", "a: 1/s"][..], 2, "the traffic of --load never ends: say for how long, as in --for 1h"),
        (
            &["--trace", &backwards],
            2,
            "line 2 of the trace: at_ms 4 is earlier than the line before; sort the lines by at_ms",
        ),
        (&["--trace", &unknown], 2, "line 1 of the trace: unknown field `buket`"),
        (&["--trace", &list], 2, "line 1 of the trace: it is no object; "),
        (&["--trace", &empty], 2, "holds no line"),
        (&["--trace", "nowhere"], 2, "cannot read the trace nowhere: No such file"),
        (&["--for", "1s"], 2, "required arguments were not provided:\n  --load <TRAFFIC>"),
        (&["--for", "1s", "--load", "a*: 1/s, sometimes"], 2, "\"sometimes\" is not understood: write NAME: "),
        (&["--for", "1s", "--load", "a: 3 buckets, 1/s"], 2, "the name of several buckets needs one *"),
        (&["--for", "1s", "--load", "a: 3 buckets"], 2, "it has no rate"),
        (&["--for", "1s", "--load", "a: 1/s, 2/s"], 2, "\"2/s\" is a second rate: leave one out"),
        (&["--for", "1s", "--trace", &dear], 2, "line 1 of the trace: cost must be a whole number, 1 to 100000"),
        (&["--for", "1s", "--load", "a: 1/s, from 5s, until 4s"], 2, "it ends before it begins"),
        (&["--for", "1s", "--load", "a: 1/s, throttle 10% for 999us"], 2, "the first three of whole milliseconds"),
        (&["--for", "1s", "--load", "a: 1/s, deadline 1990us"], 2, "\"deadline 1990us\" is not understood"),
        (&["--for", "1s", "--load", "a: 1/s, delay 500us"], 2, "\"delay 500us\" is not understood"),
        (&[&load[..], &["--workers", "many"]].concat(), 2, "write [ROUTE: ]COUNTxTIME"),
        (
            &[&load[..], &["--workers", "mail: 1x1s"]].concat(),
            2,
            "nobody works on route mail: no policy names it; the routes are default",
        ),
        (&[&load[..], &["--assert", "a wait < 1s"]].concat(), 2, "\"wait\" is no figure: write PATTERN FIGURE"),
        (&[&load[..], &["--assert", "a wait.p99 < 1/s"]].concat(), 2, "\"1/s\" is no value of wait.p99"),
        (&["--trace", &dear, "--plot", &dear], 2, "--plot would replace "),
        (&["--trace", &long], 2, "the trace lasts longer than 366d"),
        (&[&load[..], &["--against", "nowhere.toml"]].concat(), 78, "cannot be read"),
        (&["--for", "10s", "--load", "c: 1/s", "--config", &orphans], 2, "bucket c refuses"),
    ] {
        let (code, out, err) = shell.run(&[&["simulate"], args].concat());
        assert_eq!((code, out.as_str()), (exit, ""), "{args:?}: {err}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
    let (code, _, err) = shell.run(&["check", &shell.file("x.toml", "[[expect]]\nassert = 'soon'\n")]);
    assert_eq!(code, 78);
    assert!(err.contains("expect[1].assert: \"soon\" is not allowed; write PATTERN FIGURE"), "{err}");
}

/// What a live system did with a trace, by the clock of its server.
struct Live {
    /// When each burst came, in microseconds.
    pushed: Vec<(u64, String, usize)>,
    /// How long each job waited until it was due, and the same without the time by which jobs before it in its bucket left late.
    waits_ms: [Vec<f64>; 2],
}

/// The value below which such a share of some values lies.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

/// Bursts into ten buckets for so many seconds: when, the bucket, and how many jobs.
fn bursts(seconds: u64) -> Vec<(u64, String, usize)> {
    let mut pushes: Vec<_> = (0..10u64)
        .flat_map(|n| {
            (0..).map(move |k| (n * 370 + k * 4_000, n)).take_while(|(at_ms, _)| *at_ms < seconds * 1_000 - 3_000)
        })
        .map(|(at_ms, n)| (at_ms, format!("b{n}"), 30))
        .collect();
    pushes.sort();
    pushes
}

/// Nothing that is late is made up, so that each job is due one interval after the one before it left, however late a busy machine lets that
/// leave; no budget delays one bucket for what was late in others, and nothing is held for workers that are slow.
const LIVE: &str = "[defaults]\nrate = '12/s'\ncatch_up = '0s'\n[limits]\nmax_ready = 100000\nready_window = '1h'\n";
const SERVICE: Duration = Duration::from_millis(100);

/// Entries of a stream: their ids and fields.
type Entries = Vec<(String, HashMap<String, String>)>;

/// Play a trace on a live daemon with so many real workers, until all of it is done.
fn live(pushes: &[(u64, String, usize)], workers: usize) -> Live {
    let mut case = Case::bare();
    let home = home(&case, LIVE);
    let _daemon = Daemon::start(home.path());
    let (dues, began) = (Mutex::new(Vec::new()), Instant::now());
    let (ready, all) = (case.key("ready"), pushes.iter().map(|(_, _, jobs)| jobs).sum::<usize>());
    let mut sent = Vec::new();
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (dues, ready) = (&dues, &ready);
            scope.spawn(move || {
                let (mut redis, name) = (server().connect(), format!("w{worker}"));
                let mut read = redis::cmd("XREADGROUP");
                read.arg("GROUP").arg("workers").arg(name).arg("COUNT").arg(1).arg("BLOCK").arg(100);
                read.arg("STREAMS").arg(ready).arg(">");
                while dues.lock().expect("no thread panics").len() < all {
                    let reply: Option<Vec<(String, Entries)>> = read.query(&mut redis).expect("a reply");
                    let Some((id, fields)) = reply.and_then(|mut reply| reply.pop()?.1.pop()) else { continue };
                    let number = |field: &str| fields[field].parse::<u64>().expect("a number");
                    let job = (number("job") as usize, number("due_us"), number("at_us"));
                    dues.lock().expect("no thread panics").push(job);
                    std::thread::sleep(SERVICE);
                    let done = redis::cmd("FCALL").arg("drip_ack").arg(1).arg(ready).arg(&id).query::<i64>(&mut redis);
                    assert_eq!(done, Ok(1));
                }
            });
        }
        for (burst, (at_ms, bucket, jobs)) in pushes.iter().enumerate() {
            std::thread::sleep((began + Duration::from_millis(*at_ms)).saturating_duration_since(Instant::now()));
            let (queue, jobs) = (case.queue(bucket), vec![burst.to_string(); *jobs]);
            let mut both = redis::pipe(); // the time of the server at which it is sent
            both.atomic().cmd("TIME").cmd("FCALL").arg("drip_push").arg(1).arg(queue).arg(&jobs);
            let ((seconds, micros), _): ((u64, u64), redis::Value) = both.query(&mut case.redis).expect("sent");
            sent.push((seconds * 1_000_000 + micros, bucket.clone(), jobs.len()));
        }
    });
    let mut dues = dues.into_inner().expect("no thread panics");
    dues.sort_by_key(|(_, due_us, _)| *due_us);
    let (mut late_us, mut waits_ms) = (HashMap::<&str, u64>::new(), [Vec::new(), Vec::new()]);
    for (burst, due_us, at_us) in &dues {
        let (pushed_us, bucket, _) = &sent[*burst];
        let late = late_us.entry(bucket).or_default();
        let wait = *due_us as f64 - *pushed_us as f64;
        waits_ms[0].push(wait / 1e3);
        waits_ms[1].push((wait - *late as f64) / 1e3);
        *late += at_us - due_us;
    }
    Live { pushed: sent, waits_ms }
}

/// Compare a live run with the simulation of the traffic that it had.
fn compare(seconds: u64, workers: usize) {
    let mut live = live(&bursts(seconds), workers);
    let (mut trace, began_us) = (String::new(), live.pushed[0].0);
    for (at_us, bucket, jobs) in &live.pushed {
        let at_ms = (at_us - began_us) / 1_000;
        writeln!(trace, "{{\"at_ms\": {at_ms}, \"bucket\": \"{bucket}\", \"jobs\": {jobs}}}").expect("memory");
    }
    let shell = Shell::new(LIVE);
    let (trace, all) = (shell.file("trace.jsonl", &trace), format!("{workers}x{}ms", SERVICE.as_millis()));
    let lasts = format!("{}s", seconds + (live.pushed.last().expect("a burst").0 - began_us) / 1_000_000);
    let said = simulate(&shell, &["--trace", &trace, "--workers", &all, "--for", &lasts]);
    let simulated = group(&said, "*");
    let left = number(simulated, "pushed") - number(simulated, "rejected") - number(simulated, "waiting");
    let [waits, corrected] = &mut live.waits_ms;
    assert_eq!(waits.len(), left as usize, "each has left: {simulated}");
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        let (lived, on_time) = (quantile(waits, share), quantile(corrected, share));
        let simulated = number(&simulated["wait_ms"], name);
        println!("{name}: {lived} ms live, {on_time} ms but for what was late, {simulated} ms simulated");
        assert!(lived >= simulated * 0.99 - 2.0, "{name}: never sooner: {lived} ms live, {simulated} ms simulated");
        assert!(
            on_time <= simulated * 1.01 + 2.0,
            "{name}: no later than explained: {on_time} ms, {simulated} ms simulated"
        );
    }
}

#[test]
fn what_comes_into_a_live_system_is_recorded_and_can_be_simulated() {
    let shell = Shell::new("[defaults]\nrate = '5/s'\ncapacity = 1000\n");
    let prefix = shell.case.prefix.clone();
    let mut case = Case { redis: server().connect(), prefix };
    let _daemon = Daemon::start(shell.home());
    case.lpush("backlog", &["x"; 300]);
    let mut recording = shell.spawn(&["record", "--for", "8s"]);
    let pushed = |n: usize| format!("late-{n}");
    for n in 0..4 {
        std::thread::sleep(Duration::from_secs(1)); // the producer's own pace
        case.lpush("backlog", &["x"; 10]);
        case.lpush(&pushed(n), &["x"; 60]);
    }
    let (code, out, err) = said(&recording.0.take().expect("it runs").wait_with_output().expect("it ends"));
    assert_eq!(code, 0, "{err}");
    let mut jobs = std::collections::BTreeMap::<String, u64>::new();
    for line in out.lines() {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        *jobs.entry(line["bucket"].as_str().expect("a name").to_owned()).or_default() +=
            line["jobs"].as_u64().unwrap_or(1);
    }
    assert!((305..=340).contains(&jobs["backlog"]), "{jobs:?}: but for what left before it was looked at");
    // New buckets are looked for every five seconds: what left before that is not seen, and said so.
    assert!((0..4).all(|n| (25..=60).contains(&jobs[&pushed(n)])), "{jobs:?}");
    assert!(err.contains("into 5 buckets recorded; ") && err.contains("that left in this time were seen"), "{err}");
    let trace = shell.file("trace.jsonl", &out);
    let simulated = simulate(&shell, &["--trace", &trace, "--for", "20s"]);
    assert_eq!(group(&simulated, "*")["pushed"], jobs.values().sum::<u64>());
    let (code, piped, _) = shell.pipe(&["simulate", "--json", "--trace", "-", "--for", "20s"], out.as_bytes());
    assert_eq!((code, serde_json::from_str::<Value>(&piped).expect("JSON")), (0, simulated));
}

#[test]
fn a_live_daemon_does_what_was_simulated() {
    compare(15, 40); // more than needed: a worker is slower than it says on a machine that is busy
}

#[test]
#[ignore = "it takes five minutes; run it by hand with --ignored"]
fn a_live_daemon_does_for_five_minutes_what_was_simulated() {
    compare(300, 12);
}
