//! Shares: how the children of a saturated budget divide it, over long runs in which time passes from due to due. The figures are
//! those that simulations of the same rules gave; each child's own pace keeps it away at times.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::rig::{Case, S, T0};

/// A job that comes later: when, and into which bucket.
type Arrival = (u64, String);

/// Let so many seconds pass, from due to due, with jobs that come meanwhile. Replies when jobs left, by bucket.
fn run(case: &mut Case, seconds: u64, mut arrivals: Vec<Arrival>) -> BTreeMap<String, Vec<u64>> {
    let (mut now, until) = (T0, T0 + seconds * S);
    arrivals.sort();
    let mut arrivals = arrivals.into_iter().peekable();
    loop {
        let mut wait = 0;
        while wait == 0 {
            wait = case.drain_at(now).wait_us;
        }
        let next = if wait < 0 { until } else { now + wait as u64 };
        if let Some((at, bucket)) = arrivals.next_if(|(at, _)| *at <= next.min(until)) {
            now = now.max(at);
            assert_eq!(case.push_at(now, &bucket, &["x"])[0], 1);
        } else if next >= until {
            break;
        } else {
            now = next;
        }
    }
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[""; 0]);
    assert_eq!(wrong, Vec::<String>::new());
    let mut left: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in case.stream("ready") {
        left.entry(entry.text("bucket")).or_default().push(entry.number("at_us") - T0);
    }
    left
}

/// Fill buckets.
fn fill(case: &mut Case, buckets: impl Iterator<Item = (String, usize)>) {
    let mut pipe = redis::pipe();
    for (bucket, n) in buckets {
        let jobs = vec!["x"; n];
        for jobs in jobs.chunks(1_000) {
            pipe.cmd("FCALL").arg("drip__push").arg(1).arg(case.queue(&bucket)).arg(T0.to_string()).arg(jobs).ignore();
        }
    }
    pipe.exec(&mut case.redis).expect("pushed");
}

/// A root budget with this rate, and buckets below it: glob, rate, weight.
fn flat(root: &str, buckets: &[(&str, &str, u32)]) -> Case {
    let mut toml = format!(
        "[limits]\nmax_ready = 1000000\n[defaults]\ncapacity = 100000\n[[budget]]\nmatch = 'root'\nrate = '{root}'\n"
    );
    for (glob, rate, weight) in buckets {
        write!(toml, "[[bucket]]\nmatch = '{glob}'\nrate = '{rate}'\nweight = {weight}\nwithin = 'root'\n")
            .expect("a text");
    }
    Case::with(&toml)
}

#[track_caller]
fn near(what: &str, found: f64, expected: f64, off: f64) {
    assert!((found - expected).abs() <= off, "{what}: {found:.2} a second instead of {expected}");
}

#[test]
fn each_level_of_a_tree_is_shared_by_itself() {
    let mut case = Case::with(
        "[limits]\nmax_ready = 1000000\n[defaults]\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '50/s'\n\
         [[budget]]\nmatch = 'p:*'\nrate = '40/s'\nwithin = 'p'\n[[bucket]]\nmatch = 'p:*:*'\nrate = '6/s'\nwithin = 'p:{1}'\n",
    );
    for (account, senders, jobs) in [("a", 1_000, 6), ("b", 20, 400), ("c", 2, 400)] {
        fill(&mut case, (0..senders).map(|n| (format!("p:{account}:{n:04}"), jobs)));
    }
    let left = run(&mut case, 60, Vec::new());
    let of = |head: &str| {
        left.iter().filter(|(name, _)| name.starts_with(head)).map(|(_, at)| at.len()).sum::<usize>() as f64 / 60.0
    };
    near("a thousand senders", of("p:a:"), 19.0, 0.3);
    near("twenty senders", of("p:b:"), 19.0, 0.3);
    near("two senders, at their own pace", of("p:c:"), 12.0, 0.1);
}

/// Children with these weights, each with a pace of its own, under ten jobs in so many seconds: what each gets in that time.
#[track_caller]
fn divides(seconds: u64, weights: &[u32], own: u32, expected: &[f64]) {
    let (names, own): (Vec<String>, _) =
        ((0..weights.len()).map(|n| format!("c{n}")).collect(), format!("{own}/{seconds}s"));
    let buckets: Vec<(&str, &str, u32)> =
        names.iter().zip(weights).map(|(name, weight)| (name.as_str(), own.as_str(), *weight)).collect();
    let mut case = flat(&format!("10/{seconds}s"), &buckets);
    fill(&mut case, names.iter().map(|name| (name.clone(), 950)));
    let left = run(&mut case, 90 * seconds, Vec::new());
    for (name, expected) in names.iter().zip(expected) {
        near(&format!("{weights:?} at {own}, {name}"), left[name].len() as f64 / 90.0, *expected, 0.15);
    }
}

#[test]
fn weights_divide_a_budget_and_what_one_cannot_use_goes_to_the_others() {
    divides(1, &[3, 1], 9, &[7.5, 2.5]);
    divides(1, &[3, 1], 1_000, &[7.5, 2.5]);
    divides(1, &[10, 1, 1, 1, 1], 6, &[6.0, 1.0, 1.0, 1.0, 1.0]);
    divides(1, &[100, 1, 1], 9, &[9.0, 0.5, 0.5]);
}

#[test]
fn shares_are_the_same_where_jobs_leave_minutes_apart() {
    divides(1_000, &[3, 1], 9, &[7.5, 2.5]);
    divides(1_000, &[10, 1, 1, 1, 1], 6, &[6.0, 1.0, 1.0, 1.0, 1.0]);
    divides(1_000, &[100, 1, 1], 9, &[9.0, 0.5, 0.5]);
}

#[test]
fn a_heavy_child_beside_a_thousand_light_ones_gets_its_weight() {
    let mut case = flat("50/s", &[("f*", "6/s", 1), ("z", "6/s", 100)]);
    fill(&mut case, (0..1_000).map(|n| (format!("f{n:04}"), 12)).chain([("z".to_owned(), 700)]));
    let left = run(&mut case, 100, Vec::new());
    near("always full", left["z"].len() as f64 / 100.0, 4.55, 0.25);
    let most = left.iter().filter(|(name, _)| *name != "z").map(|(_, at)| at.len()).max();
    assert!(most <= Some(6), "a light one had {most:?} where the heavy one had 455");
}

#[test]
fn a_child_that_asks_for_little_does_not_wait_whatever_the_others_want() {
    for (flooders, weight, every, longest) in [(1_000, 100, 5_u64, 0.05), (20, 1, 5, 0.45)] {
        let mut case = flat("50/s", &[("f*", "6/s", 1), ("z", "6/s", weight)]);
        let jobs = (120 * 50 / flooders + 20).min(900);
        fill(&mut case, (0..flooders).map(|n| (format!("f{n:05}"), jobs)));
        let arrivals: Vec<Arrival> = (0..20).map(|n| (T0 + 2_500_000 + n * every * S, "z".to_owned())).collect();
        let arrived: Vec<u64> = arrivals.iter().map(|(at, _)| at - T0).collect();
        let left = run(&mut case, 120, arrivals);
        assert_eq!(left["z"].len(), arrived.len());
        let worst =
            left["z"].iter().zip(&arrived).map(|(left, arrived)| left - arrived).max().expect("some") as f64 / 1e6;
        assert!(worst <= longest, "weight {weight} beside {flooders}: one waited {worst} s");
    }
}

#[test]
fn a_flood_in_one_child_costs_another_nothing() {
    let mut waits = Vec::new();
    for flood in [100, 10_000] {
        let mut case = flat("10/s", &[("*", "10/s", 1)]);
        fill(&mut case, [("flood".to_owned(), flood)].into_iter());
        let arrivals: Vec<Arrival> = (0..8).map(|n| (T0 + 1_000_003 + n * S, "steady".to_owned())).collect();
        let arrived: Vec<u64> = arrivals.iter().map(|(at, _)| at - T0).collect();
        let left = run(&mut case, 10, arrivals);
        waits.push(left["steady"].iter().zip(&arrived).map(|(left, arrived)| left - arrived).max().expect("some"));
    }
    assert!(waits.iter().all(|wait| *wait <= 200_000), "{waits:?}");
}

#[test]
fn children_that_another_server_knew_nothing_of_are_not_counted_any_more() {
    let mut case = flat("1/s", &[("*", "1/s", 1)]);
    fill(&mut case, ["a", "b", "c"].map(|name| (name.to_owned(), 9)).into_iter());
    for second in 0..3 {
        case.drain_at(T0 + second * S);
    }
    let budgets = case.key("budgets");
    let state: String = case.cmd(&["HGET", &budgets, "{root}"]);
    let mut fields: Vec<&str> = state.split(' ').collect();
    assert_ne!(fields[2], "0", "some had their turn: {state}");
    fields[2] = "0"; // as one that began anew would have written it
    let _: i64 = case.cmd(&["HSET", &budgets, "{root}", &fields.join(" ")]);
    let left = run(&mut case, 10, Vec::new()); // it audits
    assert!(left.values().all(|at| at.len() >= 2), "{left:?}");
}

#[test]
fn endless_new_names_starve_nobody() {
    let mut case = flat("50/s", &[("z", "5/s", 100), ("*", "6/s", 1)]);
    fill(&mut case, [("z".to_owned(), 300)].into_iter());
    // One and a fifth of what the budget lets out, each with a name of its own.
    let arrivals = (0..60 * 60).map(|n| (T0 + n * S / 60, format!("u{n:06}"))).collect();
    let left = run(&mut case, 60, arrivals);
    near("at its own pace", left["z"].len() as f64 / 60.0, 5.0, 0.5);
    let mut case = flat("50/s", &[("z", "40/s", 1), ("*", "6/s", 1)]);
    fill(&mut case, [("z".to_owned(), 2_000)].into_iter());
    let arrivals = (0..60 * 60).map(|n| (T0 + n * S / 60, format!("u{n:06}"))).collect();
    let left = run(&mut case, 60, arrivals);
    assert!(left["z"].len() >= 12, "one of those that wait, and it came first: {}", left["z"].len());
}

#[test]
fn of_children_that_only_the_budget_keeps_away_none_is_two_jobs_ahead() {
    let weights = [1, 1, 2, 3, 5, 10, 50];
    let names: Vec<String> = (0..weights.len()).map(|n| format!("c{n}")).collect();
    let buckets: Vec<(&str, &str, u32)> =
        names.iter().zip(weights).map(|(name, w)| (name.as_str(), "1000/s", w)).collect();
    let mut case = flat("100/s", &[&buckets[..], &[("before*", "1000/s", 1)]].concat());
    // They come while none may go. Who comes first to a budget that is idle has left before the others begin to wait.
    fill(&mut case, (0..3).map(|n| (format!("before{n}"), 1)));
    assert_eq!(case.settle_at(T0).dispatched, 3);
    fill(&mut case, names.iter().map(|name| (name.clone(), 7_000)));
    let left = run(&mut case, 60, Vec::new());
    let mut order: Vec<(u64, usize)> =
        names.iter().enumerate().flat_map(|(child, name)| left[name].iter().map(move |at| (*at, child))).collect();
    order.sort_unstable();
    let n = weights.len();
    let (mut served, mut low, mut high) = (vec![0.0; n], vec![vec![0.0_f64; n]; n], vec![vec![0.0_f64; n]; n]);
    for (_, one) in order {
        served[one] += 1.0;
        for other in (0..n).filter(|other| *other != one) {
            let (a, b) = (one.min(other), one.max(other));
            let ahead = served[a] / f64::from(weights[a]) - served[b] / f64::from(weights[b]);
            low[a][b] = low[a][b].min(ahead);
            high[a][b] = high[a][b].max(ahead);
        }
    }
    for a in 0..n {
        for b in a + 1..n {
            let jobs = (high[a][b] - low[a][b]) / (1.0 / f64::from(weights[a]) + 1.0 / f64::from(weights[b]));
            assert!(jobs <= 2.0 + 1e-9, "weights {} and {}: {jobs:.2} jobs of each", weights[a], weights[b]);
        }
    }
}

#[test]
fn a_child_keeps_its_turn_while_only_a_delayed_job_of_it_waits_whatever_is_pushed_then() {
    let mut case = flat("1/s", &[("seldom", "1/10s", 1), ("flood", "100/s", 1)]);
    fill(&mut case, [("seldom".to_owned(), 1)].into_iter());
    assert_eq!(case.settle_at(T0).dispatched, 1);
    assert_eq!(case.submit_at(T0, "seldom", "delayed", &["DELAY", "1000"]).five[0], 1);
    fill(&mut case, [("flood".to_owned(), 20)].into_iter());
    // Its time comes after a second, its own pace keeps it away for nine more, and its queue is empty when this one comes.
    let left = run(&mut case, 15, vec![(T0 + 9 * S + 500_000, "seldom".to_owned())]);
    assert_eq!(left["seldom"], [0, 11 * S - 20_000], "it has the next turn after it may go: {left:?}");
}

#[test]
fn a_child_whose_only_job_was_turned_away_comes_back_as_one_whose_job_failed() {
    for how in [&["RETRY_IN", "1"][..], &["THROTTLED", "RETRY_AFTER", "1"]] {
        let mut case = flat("1/s", &[("seldom", "100/s", 1), ("flood", "100/s", 1)]);
        fill(&mut case, [("seldom".to_owned(), 1)].into_iter());
        assert_eq!(case.settle_at(T0).dispatched, 1);
        fill(&mut case, [("flood".to_owned(), 20)].into_iter());
        for second in 1..=10 {
            assert_eq!(case.settle_at(T0 + second * S).dispatched, 1);
        }
        let (now, entry) = ((T0 + 10 * S + 500_000).to_string(), case.take("ready", 1).remove(0).id);
        let args: Vec<&str> = [now.as_str(), entry.as_str()].into_iter().chain(how.iter().copied()).collect();
        assert_eq!(case.fcall::<i64>("drip__fail", &["ready"], &args), 1);
        case.settle_at(T0 + 10 * S + 600_000);
        for second in 11..=12 {
            assert_eq!(case.settle_at(T0 + second * S).dispatched, 1);
        }
        let left: Vec<String> = case.stream("ready").iter().map(|entry| entry.text("bucket")).collect();
        // Nothing is known of it any more, so it waits behind the flood, which came first.
        assert_eq!(left[left.len() - 2..], ["flood", "seldom"], "{how:?}");
    }
}
