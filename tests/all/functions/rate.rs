//! Promise 1 with the clock passed in: every rate keeps its long-run mean, and no window holds more than it may.

use crate::rig::{Case, MS, S, T0};

/// When jobs left a bucket of `rate`, drained whenever it is due and `late` microseconds later.
fn departures(rate: &str, more: &str, n: usize, start: u64, late: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut case = Case::with(&format!(
        "[defaults]\nrate = '{rate}'\ncapacity = 100000\n{more}[limits]\nmax_ready = 1000000\nbatch = 1000\n"
    ));
    case.settle_at(start);
    let jobs = vec!["x"; 1_000];
    for _ in 0..n.div_ceil(1_000) {
        case.push_at(start, "b", &jobs);
    }
    let (mut now, mut left) = (start, Vec::new());
    for step in 0.. {
        let drained = case.settle_at(now);
        left.extend(std::iter::repeat_n(now, drained.dispatched as usize));
        if left.len() >= n {
            break;
        }
        assert!(drained.wait_us > 0, "something waits: {drained:?}");
        now += drained.wait_us as u64 + late(step);
    }
    left.truncate(n);
    left
}

/// No window of `times` holds more than `1 + (W + catch_up) / interval` jobs, to within a microsecond.
#[track_caller]
fn check_windows(times: &[u64], period_us: u64, count: u64, catch_up: u64) {
    for (i, from) in times.iter().enumerate() {
        for (j, to) in times.iter().enumerate().skip(i).take(2_000) {
            let (jobs, width) = ((j - i + 1) as u128, u128::from(to - from + catch_up + 1));
            let most = 1 + width * u128::from(count) / u128::from(period_us);
            assert!(jobs <= most, "{jobs} jobs from {from} to {to}, {most} may leave");
        }
    }
}

const RATES: [(&str, u64, u64); 12] = [
    ("1/d", 86_400 * S, 1),
    ("50/d", 86_400 * S, 50),
    ("7/h", 3_600 * S, 7),
    ("1/10s", 10 * S, 1),
    ("1/500ms", 500 * MS, 1),
    ("3/s", S, 3),
    ("30/60s", 60 * S, 30),
    ("333/s", S, 333),
    ("1046/s", S, 1_046),
    ("9000/s", S, 9_000),
    ("10000/s", S, 10_000),
    ("999983/s", S, 999_983),
];

#[test]
fn the_mean_interval_is_period_over_count_to_the_microsecond() {
    for (rate, period, count) in RATES {
        for start in [T0, T0 + 1, T0 + 123_457] {
            let n = 800;
            let left = departures(rate, "catch_up = '1s'\n", n, start, |_| 0);
            let exact = (n as u128 - 1) * u128::from(period) / u128::from(count);
            let took = u128::from(left[n - 1] - left[0]);
            assert!(took.abs_diff(exact) <= 1, "{rate}: {took} us, {exact} are exact");
            check_windows(&left, period, count, 1);
        }
    }
}

#[test]
fn lateness_below_catch_up_does_not_slow_the_long_run_and_no_window_breaks_the_bound() {
    for (rate, period, count) in RATES {
        let n = 600;
        let interval = period / count;
        let late = |step: usize| (step as u64 * 7_919) % interval.clamp(2, 15 * MS);
        let left = departures(rate, "", n, T0, late);
        let exact = (n as u128 - 1) * u128::from(period) / u128::from(count);
        let took = u128::from(left[n - 1] - left[0]);
        assert!(took.abs_diff(exact) <= 15_000, "{rate}: {took} us, {exact} are exact");
        check_windows(&left, period, count, 20 * MS);
    }
}

#[test]
fn a_stall_longer_than_catch_up_is_lost_and_not_made_up() {
    let left = departures("100/s", "", 40, T0, |step| if step == 9 { 500 * MS } else { 0 });
    check_windows(&left, S, 100, 20 * MS);
    assert_eq!(left[9] - left[0], 90 * MS);
    let (after, before) = (left.iter().filter(|t| **t == left[10]).count(), left[9]);
    assert_eq!((after, left[10] - before), (3, 510 * MS), "20 ms of it are two intervals");
}

#[test]
fn without_catch_up_the_spacing_is_strict() {
    let left = departures("100/s", "catch_up = '0s'\n", 30, T0, |step| (step as u64 % 3) * 4 * MS);
    check_windows(&left, S, 100, 0);
    assert!(left.windows(2).all(|pair| pair[1] - pair[0] >= 10 * MS));
}

#[test]
fn idle_time_earns_no_credit() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n");
    case.push_at(T0, "b", &["a"]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    for idle in [150 * MS, 30 * S, 3_600 * S] {
        let now = T0 + 10_000 * S + idle;
        case.push_at(now, "b", &["b", "c", "d"]);
        assert_eq!(case.settle_at(now).dispatched, 1, "after {idle} us");
        assert_eq!(case.due("b"), Some(now + 100 * MS));
        case.settle_at(now + 100 * MS);
        case.settle_at(now + 200 * MS);
        case.settle_at(now + 300 * MS);
        assert_eq!(case.due("b"), None);
    }
}

#[test]
fn a_rate_above_the_tick_lets_several_out_in_one_call() {
    let mut case = Case::with("[defaults]\nrate = '10000/s'\ncapacity = 2000\n[limits]\nbatch = 1000\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 1_000]);
    assert_eq!(case.drain_at(T0).dispatched, 1);
    assert_eq!(case.drain_at(T0 + 5 * MS).dispatched, 50);
    assert_eq!(case.due("b"), Some(T0 + 5 * MS + 100));
}
