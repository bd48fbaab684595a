//! The line of a route: where workers are scarce, every bucket without a budget and every child of a top budget has its
//! turn, and below a budget its pace and shares decide (`HELD.md`). The worlds are those of its simulation.

use std::collections::BTreeMap;

use super::delivered::{Hand, Push, World};
use super::flow::{audit, set_at, unset_at};
use super::tree_faults::replicate;
use crate::rig::{Case, MS, S, Server, T0};

pub(super) const WINDOW: &str = "[limits]\nready_window = '250ms'\n";

/// So many buckets `<name>0`, `<name>1` ... whose jobs do not end.
pub(super) fn floods(name: &str, n: usize, jobs: usize) -> Vec<Push> {
    (0..n).map(|k| World::backlog(0, &format!("{name}{k}"), jobs)).collect()
}

/// How many jobs a second each bucket with this name gave, from `from` to `to`.
pub(super) fn rates(world: &World, name: &str, n: usize, from: u64, to: u64) -> Vec<f64> {
    let by_bucket = world.by_bucket();
    let within = |at: &Vec<u64>| at.iter().filter(|t| (from..to).contains(&(**t - T0))).count();
    let of = |k: usize| by_bucket.get(&format!("{name}{k}")).map_or(0, within);
    (0..n).map(|k| of(k) as f64 * 1e6 / (to - from) as f64).collect()
}

#[track_caller]
pub(super) fn assert_near(what: &str, rate: f64, wanted: f64, off: f64) {
    assert!((rate / wanted - 1.0).abs() <= off, "{what}: {rate:.3}/s, {wanted}/s by the simulation");
}

#[track_caller]
pub(super) fn assert_each(what: &str, rates: &[f64], wanted: f64, off: f64) {
    assert!(rates.iter().all(|rate| (rate / wanted - 1.0).abs() <= off), "{what}: {rates:.2?}, not {wanted}/s each");
}

pub(super) fn sum(rates: &[f64]) -> f64 {
    rates.iter().sum()
}

#[test]
fn ten_children_of_a_budget_have_its_rate_beside_five_others_whatever_workers_do() {
    let toml = "[defaults]\nrate = '20/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '30/s'\n\
                [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    for varies in [0, 10, 200] {
        let hands = (0..5).map(|_| Hand::varying(100 * MS, varies)).collect();
        let load = [floods("p", 10, 1_000), floods("o", 5, 2_000)].concat();
        let mut world = World::new(&toml, hands, load);
        world.run(40 * S);
        let (p, o) = (rates(&world, "p", 10, 2 * S, 40 * S), rates(&world, "o", 5, 2 * S, 40 * S));
        assert_near(&format!("together, varying by {varies}"), sum(&p), 29.4, 0.05);
        assert_each(&format!("children, varying by {varies}"), &p, sum(&p) / 10.0, 0.1);
        assert_each(&format!("the others, varying by {varies}"), &o, 4.1, 0.1);
        assert_eq!(world.in_vain, 0, "no call serves nothing");
        world.audit();
    }
}

#[test]
fn equal_children_of_a_budget_have_equal_turns_at_one_worker() {
    let toml = "[defaults]\nrate = '20/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '100/s'\n\
                [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    let load = [floods("p", 3, 2_000), floods("o", 3, 2_000)].concat();
    let mut world = World::new(&toml, vec![Hand::always(20 * MS)], load);
    world.run(42 * S);
    let all = [rates(&world, "p", 3, 2 * S, 42 * S), rates(&world, "o", 3, 2 * S, 42 * S)].concat();
    assert_each("children and others", &all, 50.0 / 6.0, 0.05);
    world.audit();
}

#[test]
fn two_hundred_children_have_equal_shares_of_their_budget_where_workers_are_faster() {
    let toml = "[defaults]\nrate = '20/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '250/s'\n\
                [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    let mut world = World::new(&toml, (0..3).map(|_| Hand::always(10 * MS)).collect(), floods("p", 200, 400));
    world.run(21 * S);
    let p = rates(&world, "p", 200, S, 21 * S);
    assert_near("together", sum(&p), 250.0, 0.02);
    assert_each("each", &p, 1.25, 0.05);
    let each = world.calls as f64 / world.deliveries.len() as f64;
    assert!(each <= 2.1, "{each} calls a job");
    world.audit();
}

#[test]
fn weights_below_a_budget_hold_where_workers_are_scarce() {
    let toml = "[defaults]\nrate = '50/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '30/s'\n\
                [[bucket]]\nmatch = 'p0'\nwithin = 'p'\nweight = 3\n[[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    let load = [floods("p", 3, 3_000), floods("o", 2, 3_000)].concat();
    let mut world = World::new(&toml, vec![Hand::varying(50 * MS, 200)], load);
    world.run(62 * S);
    let (p, o) = (rates(&world, "p", 3, 2 * S, 62 * S), rates(&world, "o", 2, 2 * S, 62 * S));
    assert_near("weight 3", p[0], 7.17, 0.05);
    assert_each("weight 1", &p[1..], 2.37, 0.07);
    assert_each("the others", &o, 4.02, 0.05);
    world.audit();
}

#[test]
fn a_budget_over_two_routes_loses_nothing_by_one_without_workers_and_has_its_turns_at_one_that_is_scarce() {
    let toml = "[defaults]\nrate = '50/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '30/s'\n\
                [[bucket]]\nmatch = 'r*'\nwithin = 'p'\n[[bucket]]\nmatch = 's*'\nwithin = 'p'\nroute = 'scarce'\n\
                [[bucket]]\nmatch = 'o*'\nroute = 'scarce'\n"
        .to_owned()
        + WINDOW;
    let load = [floods("r", 3, 2_000), floods("s", 3, 2_000)].concat();
    let mut world = World::new(&toml, (0..4).map(|_| Hand::varying(50 * MS, 200)).collect(), load.clone());
    world.run(32 * S);
    assert_near("without workers at the other", sum(&rates(&world, "r", 3, 2 * S, 32 * S)), 29.8, 0.05);
    world.audit();
    let hands = (0..4).map(|_| Hand::always(10 * MS));
    let scarce = (0..3).map(|_| Hand::of("scarce", 100 * MS, 200));
    let mut world = World::new(&toml, hands.chain(scarce).collect(), [load, floods("o", 5, 2_000)].concat());
    world.run(42 * S);
    assert_each("at the fast one", &rates(&world, "r", 3, 2 * S, 42 * S), 6.25, 0.05);
    assert_each("at the scarce one", &rates(&world, "s", 3, 2 * S, 42 * S), 3.75, 0.05);
    assert_each("the others there", &rates(&world, "o", 5, 2 * S, 42 * S), 3.75, 0.05);
    world.audit();
}

#[test]
fn a_budget_of_budgets_shares_what_it_gets_of_scarce_workers_at_each_level() {
    let toml = "[defaults]\nrate = '50/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '40/s'\n\
                [[budget]]\nmatch = 'c?'\nrate = '30/s'\nwithin = 'p'\n[[bucket]]\nmatch = 'a*'\nwithin = 'ca'\n\
                [[bucket]]\nmatch = 'b*'\nwithin = 'cb'\n"
        .to_owned()
        + WINDOW;
    let load = [floods("a", 3, 2_000), floods("b", 1, 2_000), floods("o", 2, 2_000)].concat();
    let mut world = World::new(&toml, (0..3).map(|_| Hand::varying(100 * MS, 200)).collect(), load);
    world.run(42 * S);
    let of = |name: &str, n: usize| rates(&world, name, n, 2 * S, 42 * S);
    assert_each("three below one of them", &of("a", 3), 2.5, 0.05);
    assert_each("one below the other", &of("b", 1), 7.5, 0.05);
    assert_each("the others", &of("o", 2), 7.5, 0.05);
    world.audit();
}

#[test]
fn a_second_without_jobs_that_can_leave_costs_no_more_calls_than_looks() {
    let toml = "[defaults]\nrate = '50/s'\ncapacity = 100000\n[[budget]]\nmatch = 'p'\nrate = '300/s'\n\
                [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    let load = [floods("p", 300, 20), floods("o", 300, 20)].concat();
    let mut world = World::new(&toml, Vec::new(), load);
    world.run(2 * S);
    let before = world.calls;
    world.run(4 * S);
    assert!(world.calls - before <= 2 * 60, "{} calls in 2 s", world.calls - before);
    world.audit();
}

/// A case whose default route takes nothing: `first` lies there.
fn full(toml: &str) -> Case {
    let mut case = Case::with(&format!("{toml}[limits]\nready_window = '1h'\nmax_ready = 1\n"));
    case.settle_at(T0);
    case.push_at(T0, "first", &["x"]);
    case.settle_at(T0);
    case
}

fn text_of(case: &mut Case, id: &str) -> Option<String> {
    let waiting = case.key("waiting");
    case.cmd(&["HGET", &waiting, id])
}

/// What becomes of a bucket, and how.
type Event<'a> = (&'a str, &'a dyn Fn(&mut Case, u64));

#[test]
fn whatever_becomes_of_the_only_child_that_waits_its_budgets_leave_the_lines_in_the_same_call() {
    let toml = "[defaults]\nrate = '100/s'\ncapacity = 100\n[[budget]]\nmatch = 'p'\nrate = '50/s'\n\
                [[budget]]\nmatch = 'c'\nrate = '50/s'\nwithin = 'p'\n[[budget]]\nmatch = 'q'\nrate = '50/s'\n\
                [[bucket]]\nmatch = 'a'\nwithin = 'c'\n";
    let events: [Event; 4] = [
        ("purge", &|case, now| {
            let _: Vec<i64> = case.fcall("drip__purge", &["queue:a"], &[now.to_string(), "1".into(), "1".into()]);
        }),
        ("another budget", &|case, now| set_at(case, now, "a", "within", r#"{"within":"q"}"#)),
        ("another route", &|case, now| set_at(case, now, "a", "route", r#"{"route":"mail"}"#)),
        ("a pause", &|case, now| set_at(case, now, "a", "pause", "{}")),
    ];
    for (what, act) in events {
        let mut case = full(toml);
        case.push_at(T0 + MS, "a", &["1", "2"]);
        case.settle_at(T0 + MS);
        assert_eq!(case.held("default").into_iter().map(|(id, _)| id).collect::<Vec<_>>(), ["{p}"], "{what}");
        assert!(text_of(&mut case, "a").is_some_and(|text| text.ends_with(" c{default}")), "{what}");
        audit(&mut case);
        act(&mut case, T0 + 2 * MS);
        assert_eq!(case.held("default"), [], "{what}: {{p}} has nothing to let out there");
        audit(&mut case);
        case.settle_at(T0 + 3 * MS);
        audit(&mut case);
        case.take("ready", 10);
        case.settle_at(T0 + S);
        audit(&mut case);
    }
}

#[test]
fn a_budget_that_is_paused_or_has_no_slot_leaves_the_line_and_comes_back_when_that_ends() {
    let toml = "[defaults]\nrate = '100/s'\ncapacity = 100\n\
                [[budget]]\nmatch = 'p'\nrate = '50/s'\nconcurrency = 1\n[[bucket]]\nmatch = 'a'\nwithin = 'p'\n";
    let mut case = full(toml);
    case.push_at(T0 + MS, "a", &["1", "2", "3"]);
    case.settle_at(T0 + MS);
    assert_eq!(case.held("default").len(), 1);
    set_at(&mut case, T0 + 2 * MS, "{p}", "pause", "{}");
    assert_eq!(case.held("default"), []);
    audit(&mut case);
    unset_at(&mut case, T0 + 3 * MS, "{p}", "pause");
    case.settle_at(T0 + 3 * MS);
    assert_eq!(case.held("default").len(), 1);
    audit(&mut case);
    case.take("ready", 10);
    case.settle_at(T0 + 30 * MS);
    case.take("ready", 10);
    case.settle_at(T0 + 60 * MS);
    assert_eq!(case.held("default"), [], "its slot is taken");
    audit(&mut case);
}

#[test]
fn small_batches_and_failovers_there_and_back_leave_every_child_its_turns() {
    let servers = (Server::start(&[]), Server::start(&[]));
    for batch in [1, 2, 5] {
        let toml = format!(
            "[defaults]\nrate = '50/s'\ncapacity = 1000\n[[budget]]\nmatch = 'p'\nrate = '30/s'\n\
             [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n[limits]\nready_window = '250ms'\nbatch = {batch}\n"
        );
        let (mut here, mut there) = (Case::on(&servers.0, &toml), Case::on(&servers.1, &toml));
        let mut now = T0;
        here.settle_at(now);
        for n in 0..4 {
            here.push_at(now, &format!("p{n}"), &["x"; 200]);
            here.push_at(now, &format!("o{n}"), &["x"; 200]);
        }
        let mut got: BTreeMap<String, usize> = BTreeMap::new();
        for step in 0..1_200 {
            if step % 300 == 299 {
                replicate(&mut here, &mut there);
                std::mem::swap(&mut here, &mut there);
            }
            here.settle_at(now);
            if step % 5 == 0 {
                let taken = here.take("ready", 1);
                for entry in taken {
                    *got.entry(entry.text("bucket")).or_default() += 1;
                }
            }
            now += 10 * MS;
        }
        assert_eq!(got.len(), 8, "batch {batch}: {got:?}");
        assert!(got.values().all(|n| (26..=34).contains(n)), "batch {batch}: 20/s for 12 s are 30 each: {got:?}");
        audit(&mut here);
    }
}

#[test]
fn ten_thousand_children_of_a_held_budget_have_a_turn_each() {
    let toml = "[defaults]\nrate = '1/s'\ncapacity = 10\n[[budget]]\nmatch = 'p'\nrate = '100000/s'\n\
                [[bucket]]\nmatch = 'p*'\nwithin = 'p'\n"
        .to_owned()
        + WINDOW;
    let mut case = Case::with(&toml);
    case.settle_at(T0);
    for n in 0..10_000 {
        case.lpush(&format!("p{n}"), &["1", "2"]);
    }
    let names: Vec<String> = (0..10_000).map(|n| format!("p{n}")).collect();
    for some in names.chunks(100) {
        case.wake_at(T0, &some.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut got: BTreeMap<String, usize> = BTreeMap::new();
    let mut now = T0;
    while got.values().sum::<usize>() < 10_000 {
        case.settle_at(now);
        for entry in case.take("ready", 100) {
            *got.entry(entry.text("bucket")).or_default() += 1;
        }
        now += 2 * MS;
        assert!(now < T0 + 10 * S, "{} of 10,000 in ten seconds", got.values().sum::<usize>());
    }
    assert!(got.len() >= 9_900 && got.values().all(|n| *n <= 2), "a turn each: {}", got.len());
    audit(&mut case);
}
