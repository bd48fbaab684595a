//! Limiters as the gates of a bucket: `drip_push` lets in what places and gates allow, and charges each gate exactly that.

use proptest::prelude::*;

use crate::rig::{Case, MS, S, T0};

fn jobs(n: usize) -> Vec<&'static str> {
    vec!["x"; n]
}

#[test]
fn a_push_lets_in_what_the_gate_allows_and_says_when_it_opens_again() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/s'\ncapacity = 100\nadmit = { limiter = 'sliding-window', limit = 5, period = '60s' }\n",
    );
    assert_eq!(case.push_at(T0, "b", &jobs(3)), [3, 3, 100, -1, 2_000]);
    assert_eq!(
        case.push_at(T0 + S, "b", &jobs(4)),
        [2, 5, 100, 59_000, 3_000],
        "one place is free a minute after the first"
    );
    assert_eq!(case.push_at(T0 + S, "b", &jobs(1)), [0, 5, 100, 59_000, -1]);
    assert_eq!(case.push_at(T0 + 60 * S, "b", &jobs(9)), [3, 8, 100, 1_000, 0]);
    assert_eq!(case.push_at(T0, "other", &jobs(9))[0], 5, "each bucket has its own gate");
    assert_eq!(case.peek_at(T0 + 60 * S, "b")[..4], [0, 8, 100, -1], "a peek asks no gate");
}

#[test]
fn the_tightest_of_places_and_gates_decides_and_every_gate_is_charged_exactly_that() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/h'\ncapacity = 6\nadmit = [{ limiter = 'token-bucket', capacity = 9, count = 1, period = '10s' }, \
         { limiter = 'fixed-window', limit = 4, period = '30s' }]\n",
    );
    assert_eq!(case.push_at(T0, "b", &jobs(9)), [4, 4, 6, 30_000, 10_800_000], "the window is the tightest");
    assert_eq!(
        case.push_at(T0 + 30 * S, "b", &jobs(9)),
        [2, 6, 6, 1_000, 17_970_000],
        "now the places are, and no daemon runs"
    );
    let left: Vec<i64> = ["token-bucket:1", "fixed-window:1"]
        .iter()
        .zip(["drip__token_bucket", "drip__fixed_window"])
        .map(|(gate, function)| {
            let args: &[&str] =
                if function.ends_with("bucket") { &["9", "1", "10000", "0"] } else { &["4", "30000", "0"] };
            let now = (T0 + 30 * S).to_string();
            let args: Vec<_> = std::iter::once(now.as_str()).chain(args.iter().copied()).collect();
            case.fcall::<Vec<i64>>(function, &[&format!("gate:{gate}:b")], &args)[2]
        })
        .collect();
    assert_eq!(left, [9 - 4 + 3 - 2, 4 - 2]);
    assert_eq!(case.push_at(T0 + 30 * S, "b", &jobs(1)), [0, 6, 6, 1_000, -1], "a full queue charges no gate");
    case.settle_at(T0 + 30 * S);
    assert_eq!(case.push_at(T0 + 31 * S, "b", &jobs(1))[0], 1);
}

#[test]
fn the_longest_wait_is_the_one_that_is_told() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/m'\ncapacity = 2\nadmit = [{ limiter = 'throttle', max_burst = 1, count = 1, period = '1h' }]\n",
    );
    assert_eq!(case.push_at(T0, "b", &jobs(2)), [2, 2, 2, -1, 60_000]);
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.push_at(T0 + 1_500, "b", &jobs(1)), [0, 1, 2, 3_599_999, -1], "in milliseconds, not in seconds");
    case.push_at(T0 + 3_600 * S, "b", &jobs(1));
    assert_eq!(
        case.push_at(T0 + 3_600 * S, "b", &jobs(1)),
        [0, 2, 2, 3_600_000, -1],
        "both are closed: the gate for longer"
    );
}

#[test]
fn with_drop_oldest_only_the_gates_reject() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/h'\ncapacity = 2\noverflow = 'drop-oldest'\nadmit = { limiter = 'leaky-meter', capacity = 3, count = 1, period = '1m' }\n",
    );
    assert_eq!(case.push_at(T0, "b", &["a", "b", "c", "d"])[..4], [3, 2, 2, 60_000]);
    assert_eq!(case.waiting("b"), ["b", "c"]);
    assert_eq!(case.jobs("rejected"), ["a"]);
}

#[test]
fn a_plain_push_passes_no_gate() {
    let mut case =
        Case::with("[defaults]\nrate = '1/h'\nadmit = { limiter = 'fixed-window', limit = 1, period = '1h' }\n");
    assert_eq!(case.lpush("b", &["a", "b", "c"]), 3);
    case.wake_at(T0, &["b"]);
    assert_eq!(case.push_at(T0, "b", &jobs(2))[..2], [1, 3], "nor does it charge one");
}

#[test]
fn what_a_gate_refuses_or_errs_on_changes_nothing() {
    let mut case = Case::with(
        "[defaults]\nrate = '1/h'\nadmit = { limiter = 'sliding-counter', limit = 1, period = '1h' }\n\
                               [limits]\nmax_job_bytes = 3\n",
    );
    assert_eq!(case.refusal("drip__push", &["queue:b"], &[&T0.to_string(), "long job"]), "TOOLARGE");
    assert_eq!(case.keys(), ["policy", "ready", "routes", "wake"], "a refused push charges nothing");
    case.push_at(T0, "b", &jobs(1));
    let keys = case.keys();
    assert!(keys.contains(&"gate:sliding-counter:1:b".to_owned()), "{keys:?}");
    assert_eq!(case.push_at(T0, "b", &jobs(1))[0], 0);
    let gate = case.key("gate:sliding-counter:1:c");
    case.cmd::<()>(&["SET", &gate, "mine"]);
    let why =
        case.try_fcall::<Vec<i64>>("drip__push", &["queue:c"], &[&T0.to_string(), "x"]).expect_err("a foreign key");
    assert_eq!(why.code(), Some("WRONGTYPE"));
    assert!(why.to_string().contains(&gate), "{why}");
    assert_eq!(case.waiting("c").len(), 0);
}

#[test]
fn a_gate_whose_recipe_changes_starts_anew_and_one_whose_numbers_change_forgets_nothing() {
    let admit = |gate: &str| format!("[defaults]\nrate = '1/h'\nadmit = {gate}\n");
    let mut case = Case::with(&admit("{ limiter = 'fixed-window', limit = 9, period = '1h' }"));
    assert_eq!(case.push_at(T0, "b", &jobs(6))[0], 6);
    case.configure(&admit("{ limiter = 'fixed-window', limit = 8, period = '1h' }"));
    case.settle_at(T0);
    assert_eq!(case.push_at(T0, "b", &jobs(6))[0], 2);
    case.configure(&admit("{ limiter = 'sliding-window', limit = 4, period = '1h' }"));
    case.settle_at(T0);
    assert_eq!(case.push_at(T0, "b", &jobs(6))[0], 4);
    case.configure(&admit("[]"));
    case.settle_at(T0);
    assert_eq!(case.push_at(T0, "b", &jobs(6))[0], 6);
}

#[test]
fn a_gates_state_expires() {
    let mut case = Case::with(
        "[defaults]\nrate = '10000/s'\nadmit = [{ limiter = 'sliding-window', limit = 5, period = '100ms' }, \
         { limiter = 'token-bucket', capacity = 5, count = 5, period = '100ms' }]\n",
    );
    let reply: Vec<i64> = case.fcall("drip_push", &["queue:b"], &["a"]);
    assert_eq!(reply[0], 1);
    crate::rig::eventually("the gates are gone", || !case.keys().iter().any(|key| key.starts_with("gate:")));
}

#[test]
fn an_unknown_limiter_in_a_record_is_refused_and_not_passed_over() {
    let mut case = Case::new();
    let json =
        crate::rig::record("[defaults]\nadmit = { limiter = 'throttle', max_burst = 1, count = 1, period = '1s' }\n");
    for bad in [json.replace("throttle", "magic"), json.replace("\"1\",\"1\",\"1\"", "\"1\",\"0\",\"1\"")] {
        assert_ne!(bad, json);
        assert_eq!(case.refusal("drip__policy", &["policy"], &["", "an-id-of-16-byte", &bad, "replace"]), "BADARG");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Accepted is the least of the jobs given, the free places, and what either gate's own log allows; each log grows by
    /// exactly that.
    #[test]
    fn a_push_charges_what_it_lets_in(steps in prop::collection::vec((0..5_u64, 1..9_usize, any::<bool>()), 1..40)) {
        let mut case = Case::with(
            "[defaults]\nrate = '1/30s'\ncapacity = 7\nadmit = [{ limiter = 'sliding-window', limit = 8, period = '300s' }, \
             { limiter = 'token-bucket', capacity = 5, count = 3, period = '100s' }]\n",
        );
        let (mut now, mut depth, mut log) = (T0, 0_u64, Vec::<(u64, u64)>::new());
        for (wait, n, drain) in steps {
            now += [0, 1, 10 * S, 47 * S + 333 * MS, 400 * S][wait as usize];
            if drain {
                depth -= case.settle_at(now).dispatched as u64;
            }
            let in_window: u64 = log.iter().filter(|(t, _)| now < t + 300 * S).map(|(_, k)| k).sum();
            let (mut level, mut last) = (0_u64, T0);
            for (t, k) in &log {
                level = level.saturating_sub((t - last) * 3) + k * 100 * S;
                last = *t;
            }
            level = level.saturating_sub((now - last) * 3);
            let allowed = (n as u64).min(7 - depth).min(8 - in_window).min((500 * S - level) / (100 * S));
            let reply = case.push_at(now, "b", &jobs(n));
            prop_assert_eq!(reply[0] as u64, allowed, "{} jobs, {} waiting, {} in the window, level {}", n, depth, in_window, level);
            depth += allowed;
            prop_assert_eq!(reply[1] as u64, depth);
            prop_assert_eq!(reply[3] == -1, allowed == n as u64);
            if allowed > 0 {
                log.push((now, allowed));
            }
        }
    }
}
