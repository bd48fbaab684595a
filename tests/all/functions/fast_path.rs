//! The fast path of a dispatch (`dispatch/fast_path`) beside the full one: random sequences on two servers, one of whose libraries takes the full path
//! at every turn. Replies and all that is stored must be the same (`crate::twin`).

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{model, tree_model};
use crate::rig::{Case, S, Server, T0};
use crate::twin;

/// The library without its fast path.
fn full_path_only() -> String {
    let (fast, full) = ("return not ctx.old_rec and not ctx.has_allowances", "return false");
    assert_eq!(dripd::store::library::source().matches(fast).count(), 1, "where the fast path is chosen");
    dripd::store::library::source().replace(fast, full)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig {
        max_shrink_iters: 300,
        failure_persistence: None,
        rng_seed: model::seed(),
        ..ProptestConfig::with_cases(cases)
    })
}

#[test]
fn the_sequences_of_the_model_go_the_same_way_on_both() {
    let _mirror = twin::mirror(full_path_only());
    let follow = |(config, ops): (usize, Vec<_>)| model::follow(config, &ops);
    runner(model::cases() / 6).run(&model::sequence(), follow).unwrap_or_else(|why| panic!("{why}"));
    assert!(twin::calls() > 500, "{} calls", twin::calls());
}

#[test]
fn the_sequences_through_trees_go_the_same_way_on_both() {
    let _mirror = twin::mirror(full_path_only());
    let (first, seeds) =
        (tree_model::number("DRIPD_SEED").unwrap_or(100), tree_model::number("DRIPD_SEEDS").unwrap_or(10));
    tree_model::walk(&Server::start(&[]), first..first + seeds);
    assert!(twin::calls() > 500, "{} calls", twin::calls());
}

/// Many buckets that are due at once, with little room for what leaves and much to catch up: the edges of the fast path.
#[derive(Debug, Clone)]
struct Crowd {
    rate: &'static str,
    catch_up: &'static str,
    capacity: u32,
    max_ready: u32,
    budget: Option<&'static str>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Jobs of so many bytes each, with a plain push.
    Push { bucket: usize, jobs: usize, bytes: usize },
    /// So many microseconds pass, and a daemon calls.
    Drain(u64),
    /// Workers take so many, and finish all of them.
    Work(usize),
}

const BUCKETS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn crowd() -> impl Strategy<Value = Crowd> {
    let step = prop_oneof![
        3 => (0..BUCKETS.len(), 1..8_usize, prop_oneof![9 => Just(1_usize), 1 => Just(5_000)])
            .prop_map(|(bucket, jobs, bytes)| Step::Push { bucket, jobs, bytes }),
        3 => prop_oneof![Just(0), Just(1), Just(999), Just(10_000), Just(333_333), Just(S), Just(7 * S)].prop_map(Step::Drain),
        2 => (1..9_usize).prop_map(Step::Work),
    ];
    (
        prop::sample::select(vec!["3/s", "100/s", "20/m", "1000/s"]),
        prop::sample::select(vec!["0s", "10ms", "1s"]),
        prop::sample::select(vec![3, 40]),
        prop::sample::select(vec![1, 2, 5, 50]),
        prop::sample::select(vec![None, None, Some("50/s"), Some("2/s")]),
        prop::collection::vec(step, 4..24),
    )
        .prop_map(|(rate, catch_up, capacity, max_ready, budget, steps)| Crowd {
            rate,
            catch_up,
            capacity,
            max_ready,
            budget,
            steps,
        })
}

fn drive(crowd: &Crowd) -> Case {
    let Crowd { rate, catch_up, capacity, max_ready, budget, steps } = crowd;
    let (within, budget) = match budget {
        Some(rate) => ("within = 'p'\n", format!("[[budget]]\nmatch = 'p'\nrate = '{rate}'\n")),
        None => ("", String::new()),
    };
    let mut case = Case::with(&format!(
        "[defaults]\nrate = '{rate}'\ncatch_up = '{catch_up}'\ncapacity = {capacity}\n{within}[limits]\nmax_ready = {max_ready}\n{budget}"
    ));
    let mut now = T0;
    case.settle_at(now);
    for step in steps {
        match step {
            Step::Push { bucket, jobs, bytes } => {
                let jobs = vec!["x".repeat(*bytes); *jobs];
                case.lpush(BUCKETS[*bucket], &jobs.iter().map(String::as_str).collect::<Vec<_>>());
                case.wake_at(now, &[BUCKETS[*bucket]]);
            }
            Step::Drain(us) => {
                now += us;
                case.settle_at(now);
            }
            Step::Work(most) => {
                for entry in case.take("ready", *most) {
                    let stream = case.key("ready");
                    let _: i64 = case.cmd(&["XACK", &stream, "workers", &entry.id]);
                    let _: i64 = case.cmd(&["XDEL", &stream, &entry.id]);
                }
            }
        }
    }
    case
}

#[test]
fn crowds_with_little_room_and_much_to_catch_up_go_the_same_way_on_both() {
    let _mirror = twin::mirror(full_path_only());
    runner(model::cases() * 3)
        .run(&crowd(), |crowd| {
            drive(&crowd);
            Ok(())
        })
        .unwrap_or_else(|why| panic!("{why}"));
    assert!(twin::calls() > 500, "{} calls", twin::calls());
}

/// Below a budget, a bucket that is still due after the last job that its route took waits in the line of the budget, not of the route.
#[test]
fn who_is_due_after_the_last_job_that_a_route_takes_waits_in_the_line_of_its_budget() {
    let push = |bucket, jobs| Step::Push { bucket, jobs, bytes: 1 };
    let steps = vec![push(0, 1), Step::Work(1), push(1, 2), Step::Drain(S)];
    let mut case = drive(&Crowd { rate: "3/s", catch_up: "1s", capacity: 3, max_ready: 1, budget: Some("2/s"), steps });
    let held: Vec<String> = case.held("default").into_iter().map(|(bucket, _)| bucket).collect();
    assert!(!held.contains(&"b".to_owned()), "{held:?}");
    let waiting = case.key("waiting");
    let text = case.cmd::<Option<String>>(&["HGET", &waiting, "b"]).expect("it waits");
    assert!(text.ends_with("{default}") && !text.ends_with(" {default}"), "{text}");
}
