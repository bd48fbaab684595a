//! Quotas: at most so many in each window of the calendar, for buckets and for budgets, also where counts change or the clock steps.

use proptest::prelude::*;
use serde_json::json;

use super::flow::{ack_at, at, audit, fail_at, jobs, left, run, set_at, unset_at};
use crate::rig::{Case, MS, S, Server, T0};

/// Where the next window of a minute begins: T0 is 40 s into one.
const MINUTE: u64 = 20;

fn quota(count: u64, period_us: u64) -> String {
    json!({ "quotas": [{ "count": count, "period_us": period_us, "offset_us": 0 }] }).to_string()
}

#[test]
fn what_is_over_a_quota_waits_for_the_next_window_and_then_goes_on_at_its_rate() {
    let mut case = Case::with("[[bucket]]\nmatch = 'a'\nrate = '10/s'\nquota = '3/m'\n");
    case.push_at(T0, "a", &jobs(7));
    run(&mut case, T0, at(90, 0));
    let seconds: Vec<u64> = left(&mut case, "a").into_iter().map(|us| us / MS).collect();
    let first = MINUTE * 1_000;
    assert_eq!(seconds, [0, 100, 200, first, first + 100, first + 200, first + 60_000]);
    let late: Vec<u64> =
        case.stream("ready").iter().map(|entry| entry.number("at_us") - entry.number("due_us")).collect();
    assert_eq!(late, [0; 7], "a wait for a window is no lateness");
}

#[test]
fn windows_are_those_of_a_time_zone_and_the_smallest_of_several_quotas_binds() {
    // T0 is 15:06:40 in UTC and 07:06:40 at -08:00.
    let mut case =
        Case::with("[[bucket]]\nmatch = 'a'\nrate = '10/s'\ncatch_up = '0s'\nquota = ['2/h', '5/d@-08:00']\n");
    case.push_at(T0, "a", &jobs(8));
    run(&mut case, T0, at(86_400, 0));
    let hours = |n: u64| (3_600 - 400) + n * 3_600; // 16:00 UTC and so on
    let seconds: Vec<u64> = left(&mut case, "a").into_iter().map(|us| us / S).collect();
    let midnight = hours(16); // 08:00 in UTC
    assert_eq!(seconds, [0, 0, hours(0), hours(0), hours(1), midnight, midnight, midnight + 3_600]);
}

#[test]
fn a_quota_of_a_budget_is_shared_and_what_waited_for_it_earned_nothing() {
    crate::roles::as_roles();
    let toml = "[[budget]]\nmatch = 'p'\nquota = '6/m'\n[[bucket]]\nmatch = '*'\nrate = '1/10s'\nwithin = 'p'\n";
    let server = Server::start(&[]);
    let mut case = Case::on(&server, toml);
    for bucket in ["a", "b", "c", "d"] {
        case.push_at(T0, bucket, &jobs(4));
    }
    run(&mut case, T0, at(300, 0));
    let all = left(&mut case, "");
    assert_eq!(all.len(), 16);
    for window in 0..3 {
        let from = if window == 0 { 0 } else { (MINUTE + 60 * (window - 1)) * S };
        let of_it = all.iter().filter(|us| (from..(MINUTE + 60 * window) * S).contains(us)).count();
        assert_eq!(of_it, if window == 2 { 4 } else { 6 }, "window {window}: {all:?}");
    }
    for bucket in ["a", "b", "c", "d"] {
        let own = left(&mut case, bucket);
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 10 * S), "{bucket} made up for its wait: {own:?}");
    }
    // When the last window is over too, nothing is left of it.
    case.settle_at(at(400, 0));
    let settled = ["policy", "ready", "routes", "stats", "wake"];
    let rest: Vec<String> = case.keys().into_iter().filter(|key| !settled.contains(&key.as_str())).collect();
    assert_eq!(rest, Vec::<String>::new());
}

#[test]
fn what_a_window_counted_is_kept_until_its_end_and_no_longer() {
    let server = Server::start(&[]);
    let mut case = Case::on(&server, "[[bucket]]\nmatch = '*'\nrate = '10/s'\nquota = '5/m'\n");
    case.push_at(T0, "a", &jobs(1));
    run(&mut case, T0, at(MINUTE - 1, 0));
    assert!(case.keys().contains(&"windows".to_owned()), "one of five is used");
    case.settle_at(at(MINUTE, 0));
    assert!(
        !case.keys().contains(&"windows".to_owned()) && !case.keys().contains(&"over".to_owned()),
        "{:?}",
        case.keys()
    );
    let policy = case.key("policy");
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "brakes"]), None, "and nobody looks for it any more");
}

#[test]
fn a_retry_counts_too() {
    let mut case = Case::with("[[bucket]]\nmatch = 'a'\nrate = '10/s'\nquota = '2/m'\n");
    case.push_at(T0, "a", &["1", "2"]);
    case.settle_at(T0);
    let first = case.take("ready", 1).remove(0);
    assert_eq!(fail_at(&mut case, T0, &first, &["RETRY_IN", "0"]), 1);
    run(&mut case, T0, at(MINUTE, 0));
    assert_eq!(case.jobs("ready"), ["1", "2"], "the retry used up what was left");
    assert_eq!(left(&mut case, "a"), [100 * MS, MINUTE * S]);
}

#[test]
fn a_changed_count_goes_on_from_what_was_used() {
    let mut case = Case::with("[[bucket]]\nmatch = 'a'\nrate = '10/s'\nquota = '3/m'\n");
    case.push_at(T0, "a", &jobs(20));
    run(&mut case, T0, at(1, 0));
    assert_eq!(left(&mut case, "a").len(), 3);
    set_at(&mut case, at(1, 0), "a", "quota", &quota(5, 60 * S));
    run(&mut case, at(1, 0), at(2, 0));
    assert_eq!(left(&mut case, "a")[3..], [S, S + 100 * MS], "two more, from when it was raised");
    set_at(&mut case, at(2, 0), "a", "quota", &quota(4, 60 * S));
    run(&mut case, at(2, 0), at(3, 0));
    assert_eq!(left(&mut case, "a").len(), 5, "five of four are used");
    set_at(&mut case, at(3, 0), "a", "quota", r#"{"quotas":[]}"#);
    run(&mut case, at(3, 0), at(3, 250));
    assert_eq!(left(&mut case, "a")[5..], [3 * S, 3 * S + 100 * MS, 3 * S + 200 * MS], "none at all");
    unset_at(&mut case, at(3, 250), "a", "quota");
    run(&mut case, at(3, 250), at(MINUTE + 1, 0));
    assert_eq!(
        left(&mut case, "a")[8..],
        [MINUTE * S, MINUTE * S + 100 * MS, MINUTE * S + 200 * MS],
        "the file holds again"
    );
}

#[test]
fn a_changed_count_of_a_budget_wakes_what_waits_below_it() {
    let toml = "[[budget]]\nmatch = 'top'\nrate = '100/s'\n[[budget]]\nmatch = 'p'\nquota = '2/m'\nwithin = 'top'\n\
                [[bucket]]\nmatch = '*'\nrate = '10/s'\nwithin = 'p'\n";
    let mut case = Case::with(toml);
    case.push_at(T0, "a", &jobs(9));
    run(&mut case, T0, at(5, 0));
    assert_eq!(left(&mut case, "a").len(), 2);
    let wake = case.key("wake");
    let before: Option<u64> = case.cmd(&["GET", &wake]);
    set_at(&mut case, at(5, 0), "{p}", "quota", &quota(4, 60 * S));
    assert!(case.cmd::<Option<u64>>(&["GET", &wake]) > before, "the daemons hear of it");
    run(&mut case, at(5, 0), at(6, 0));
    assert_eq!(left(&mut case, "a")[2..], [5 * S, 5 * S + 100 * MS]);
    set_at(&mut case, at(6, 0), "{p}", "quota", r#"{"quotas":[],"count":5,"period_us":1000000}"#);
    run(&mut case, at(6, 0), at(6, 450));
    assert_eq!(left(&mut case, "a")[4..], [6 * S, 6 * S + 200 * MS, 6 * S + 400 * MS]);
}

#[test]
fn the_doors_reckon_with_the_end_of_a_window() {
    let toml = "[[budget]]\nmatch = 'p'\nquota = '1/m'\n[[bucket]]\nmatch = 'own'\nrate = '10/s'\ncapacity = 2\nquota = '1/m'\n\
                [[bucket]]\nmatch = 'below'\nrate = '10/s'\ncapacity = 2\nwithin = 'p'\n";
    let mut case = Case::with(toml);
    for bucket in ["own", "below"] {
        case.push_at(T0, bucket, &jobs(2));
        case.settle_at(T0);
        let left_ms = MINUTE as i64 * 1_000 - 500;
        assert_eq!(case.peek_at(at(0, 500), bucket), [0, 1, 2, -1, left_ms], "{bucket}");
        let second = if bucket == "own" { left_ms + 100 } else { left_ms };
        assert_eq!(case.push_at(at(0, 500), bucket, &["y"])[4], second.max(left_ms), "{bucket}");
        assert_eq!(case.push_at(at(0, 500), bucket, &["z"])[..4], [0, 2, 2, left_ms], "{bucket}");
    }
}

#[test]
fn a_clock_that_steps_back_waits_for_the_stored_window_unless_that_is_far_ahead() {
    let mut case = Case::with("[[bucket]]\nmatch = '*'\nrate = '10/s'\nquota = '2/m'\n");
    case.push_at(T0, "a", &jobs(9));
    run(&mut case, T0, at(1, 0));
    run(&mut case, T0 - 30 * S, at(MINUTE - 1, 0));
    assert_eq!(left(&mut case, "a").len(), 2, "the window that was begun goes on");
    run(&mut case, at(MINUTE - 1, 0), at(MINUTE, 50));
    assert_eq!(left(&mut case, "a")[2..], [MINUTE * S]);
    // From there two hours back: what was counted lies more than a minute ahead.
    let back = T0 - 7_200 * S;
    run(&mut case, back, back + S);
    let all: Vec<u64> = case.stream("ready").iter().map(|entry| entry.number("at_us")).collect();
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(all[3] <= back + 200 * MS, "{all:?}");
}

#[test]
fn a_clock_that_steps_forward_begins_the_window_that_it_finds() {
    let mut case =
        Case::with("[[budget]]\nmatch = 'p'\nquota = '2/m'\n[[bucket]]\nmatch = '*'\nrate = '10/s'\nwithin = 'p'\n");
    case.push_at(T0, "a", &jobs(9));
    run(&mut case, T0, at(1, 0));
    run(&mut case, at(3_600, 0), at(3_601, 0));
    assert_eq!(left(&mut case, "a")[2..], [3_600 * S, 3_600 * S], "two in a new window, late by an interval or more");
}

/// What a test does with one bucket.
#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Pass(u64),
    Count(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6_usize).prop_map(Step::Push),
        prop_oneof![Just(1_u64), 50..3_000_u64, 3_000..40_000_u64].prop_map(|ms| Step::Pass(ms * MS)),
        (1..8_u64).prop_map(Step::Count),
    ]
}

/// A bucket as it should be: an interval of 200 ms, and so many in each window of 10 s and in each of 27 s.
struct Model {
    due: u64,
    waiting: usize,
    count: u64,
    left: Vec<u64>,
}

impl Model {
    const PERIODS: [u64; 2] = [10 * S, 27 * S];

    /// When the next job may leave, from `now` on.
    fn next(&self, now: u64) -> u64 {
        let mut at = now.max(self.due);
        loop {
            let full = Self::PERIODS.into_iter().zip([self.count, 9]).find(|(period, most)| {
                let begin = at - at % period;
                self.left.iter().filter(|left| (begin..begin + period).contains(left)).count() as u64 >= *most
            });
            let Some((period, _)) = full else { return at };
            at += period - at % period;
        }
    }

    fn pass(&mut self, now: u64, until: u64) {
        while self.waiting > 0 && self.next(now) <= until {
            let at = self.next(now);
            self.left.push(at);
            (self.waiting, self.due) = (self.waiting - 1, at + 200 * MS);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn jobs_leave_when_a_simple_model_says(steps in prop::collection::vec(step(), 1..40)) {
        let toml = "[[bucket]]\nmatch = '*'\nrate = '5/s'\nquota = ['4/10s', '9/27s']\n";
        let mut case = Case::with(toml);
        let mut model = Model { due: 0, waiting: 0, count: 4, left: Vec::new() };
        let mut now = T0;
        for one in steps {
            match one {
                Step::Push(n) => {
                    case.push_at(now, "a", &jobs(n));
                    case.settle_at(now);
                    model.waiting += n;
                    model.pass(now, now);
                }
                Step::Pass(us) => {
                    run(&mut case, now, now + us);
                    model.pass(now, now + us);
                    now += us;
                }
                Step::Count(count) => {
                    let both = json!([{ "count": count, "period_us": 10 * S, "offset_us": 0 }, { "count": 9, "period_us": 27 * S, "offset_us": 0 }]);
                    set_at(&mut case, now, "a", "quota", &json!({ "quotas": both }).to_string());
                    case.settle_at(now);
                    model.count = count;
                    model.pass(now, now);
                }
            }
            let really: Vec<u64> = left(&mut case, "a").into_iter().map(|us| us + T0).collect();
            prop_assert_eq!(&really, &model.left);
        }
        let taken = case.take("ready", 1_000);
        if !taken.is_empty() { ack_at(&mut case, now, &taken); }
        audit(&mut case);
    }
}

#[test]
fn what_is_woken_and_what_is_due_in_one_call_are_charged_to_the_same_quota() {
    let bucket =
        |name: &str, more: &str| format!("[[bucket]]\nmatch = '{name}*'\nrate = '1/10s'\nwithin = 'p'\n{more}");
    let toml = ["[[budget]]\nmatch = 'p'\nquota = '5/m'\n", &bucket("a", ""), &bucket("b", "lease = '61s'\n")].concat();
    let mut case = Case::with(&toml);
    for name in ["a2", "b1"] {
        case.lpush(name, &["1", "2"]);
        case.wake_at(T0, &[name]);
    }
    case.lpush("a1", &["1"]);
    case.wake_at(at(10, 0), &["a1"]); // a1 leaves by the look, a2 and b1 by the drain after it
    case.lpush("a3", &["1"]);
    case.wake_at(at(10, 1), &["a3"]);
    assert_eq!(left(&mut case, "").len(), 5);
}
