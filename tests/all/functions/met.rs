//! `drip__met`: how many buckets with work a name or a glob meets, of buckets or of budgets, and how many of their jobs are out.

use crate::rig::{Case, S, T0};

type Page = (String, u64, u64, u64);

/// All pages of a count: buckets, ready jobs, jobs with workers; and how many calls that took.
fn met(case: &mut Case, now: u64, pattern: &str, what: &str) -> ((u64, u64, u64), usize) {
    let (now, is_glob) = (now.to_string(), if pattern.contains('*') { "1" } else { "0" });
    let (mut cursor, mut sums, mut calls) = (String::new(), (0, 0, 0), 0);
    loop {
        let page: Page = case.fcall("drip__met", &["policy"], &[now.as_str(), pattern, is_glob, what, &cursor]);
        sums = (sums.0 + page.1, sums.1 + page.2, sums.2 + page.3);
        calls += 1;
        if page.0.is_empty() {
            return (sums, calls);
        }
        cursor = page.0;
    }
}

fn buckets(case: &mut Case, now: u64, pattern: &str) -> u64 {
    met(case, now, pattern, "buckets").0.0
}

const TOML: &str = "[defaults]\nrate = '1/s'\n[limits]\nbatch = 20\n[[budget]]\nmatch = 'p'\nrate = '1000/s'\n\
                    [[budget]]\nmatch = 'p:*'\nrate = '10/s'\nwithin = 'p'\n\
                    [[bucket]]\nmatch = 'p:*:*'\nwithin = 'p:{1}'\n[[bucket]]\nmatch = 'lost'\nwithin = 'p'\n";

#[test]
fn each_bucket_with_work_counts_once_wherever_it_waits_and_a_budget_meets_all_below_it() {
    let mut case = Case::with(TOML);
    let of = |account: char, n: u64| format!("p:{account}:{n}");
    for (account, n) in [('a', 600), ('b', 100)] {
        for n in 0..n {
            case.push_at(T0, &of(account, n), &["1", "2"]);
        }
    }
    case.push_at(T0, "other", &["1", "2"]);
    // Some leave, and their buckets wait for their own next due; the others wait for their shares.
    for at in 0..5 {
        case.settle_at(T0 + at * S / 10);
    }
    let (now, waiting, schedule) = (T0 + S / 2, case.key("waiting"), case.key("schedule"));
    assert!(case.cmd::<i64>(&["HLEN", &waiting]) > 600 && case.cmd::<i64>(&["ZCARD", &schedule]) > 5);
    assert_eq!(buckets(&mut case, now, "{p:a}"), 600);
    assert_eq!(buckets(&mut case, now, "{p:b}"), 100);
    assert_eq!(buckets(&mut case, now, "{p}"), 700, "two levels below it");
    assert_eq!(buckets(&mut case, now, "{p:*}"), 700);
    assert_eq!(buckets(&mut case, now, "{*b}"), 100);
    assert_eq!(buckets(&mut case, now, "{nothing}"), 0);
    assert_eq!(buckets(&mut case, now, "p:a:*"), 600, "a glob of buckets counts those that wait for their shares too");
    assert_eq!(buckets(&mut case, now, "*"), 701);
    let calls = met(&mut case, now, "{p}", "buckets").1;
    assert!((15..=80).contains(&calls), "a batch or so a call: {calls}");

    let out = case.stream("ready").len() as u64 - 1;
    let (jobs, _) = met(&mut case, now, "{p}", "jobs");
    assert_eq!(jobs, (0, out, 0));
    let taken = case.take("ready", 7).iter().filter(|entry| entry.text("bucket") != "other").count() as u64;
    let (jobs, _) = met(&mut case, now, "{p}", "jobs");
    assert_eq!(jobs, (0, out - taken, taken));
    let (a, b) = (met(&mut case, now, "{p:a}", "jobs").0, met(&mut case, now, "{p:b}", "jobs").0);
    assert_eq!((a.1 + b.1, a.2 + b.2), (out - taken, taken));
    assert!(a.1 > 0 && b.1 > 0);
}

#[test]
fn what_is_set_for_a_bucket_decides_below_which_budget_it_is() {
    let mut case = Case::with(TOML);
    for bucket in ["x", "y", "p:a:1"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    case.settle_at(T0);
    assert_eq!(buckets(&mut case, T0, "{p}"), 1);
    let set = serde_json::json!({ "match": "x", "set": { "within": { "text": "p", "policy": { "within": "p" } } } });
    let told: (i64, Vec<String>, String) = case.fcall("drip__set", &["policy"], &[T0.to_string(), set.to_string()]);
    assert_eq!(told.0, 1);
    assert_eq!((buckets(&mut case, T0, "{p}"), buckets(&mut case, T0, "{p:*}")), (2, 1));
}

#[test]
fn a_bucket_whose_chain_cannot_be_resolved_is_below_the_budgets_that_are_there() {
    let mut case = Case::with(TOML);
    for bucket in ["lost", "p:a:1"] {
        case.push_at(T0, bucket, &["1", "2"]);
    }
    case.settle_at(T0);
    // A newer record in which one budget is within another that nothing matches, as templates can end.
    let json = crate::rig::record(TOML).replace("\"within\":\"p:{1}\"", "\"within\":\"q:{1}\"");
    assert!(json.contains("q:{1}"));
    let stored: i64 = case.fcall("drip__policy", &["policy"], &[&T0.to_string(), "0123456789abcde2", &json, "replace"]);
    assert_eq!(stored, 1);
    case.settle_at(T0);
    assert_eq!(buckets(&mut case, T0, "p:*"), 1, "it waits in the place of those that are refused");
    assert_eq!((buckets(&mut case, T0, "{p}"), buckets(&mut case, T0, "{q:a}")), (1, 1));
}
