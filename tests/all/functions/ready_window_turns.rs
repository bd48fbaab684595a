//! The turns of held buckets: where workers take less than what is due, each bucket has its turn (`READY.md`, promise 5).

use std::collections::BTreeMap;

use super::delivered::{Hand, Push, World};
use super::flow::audit;
use crate::rig::{Case, MS, S, Server, T0};

pub(super) fn names(held: Vec<(String, u64)>) -> Vec<String> {
    held.into_iter().map(|(bucket, _)| bucket).collect()
}

/// Pushes of a job a second into a quiet bucket, and when each was pushed.
fn quiet(seconds: u64) -> (Vec<Push>, BTreeMap<String, u64>) {
    let at = |k: u64| (2 + k) * S + k * 37 * MS;
    let pushes = (0..seconds).map(|k| (at(k), "quiet".to_owned(), vec![k.to_string()])).collect();
    (pushes, (0..seconds).map(|k| (k.to_string(), at(k))).collect())
}

#[test]
fn a_flood_delays_a_quiet_bucket_by_no_more_than_a_round_of_turns() {
    let toml = "[defaults]\nrate = '1000/s'\ncapacity = 1000000\n[limits]\nready_window = '250ms'\n";
    for (floods, within) in [(1, 300 * MS), (50, S)] {
        let (mut load, pushed) = quiet(8);
        load.extend((0..floods).map(|n| World::backlog(0, &format!("flood-{n}"), 12_000 / floods)));
        let mut world = World::new(toml, vec![Hand::always(10 * MS)], load);
        world.run(12 * S);
        let waits = world.waits("quiet", &pushed);
        assert_eq!(waits.len(), 8, "every job of it beside {floods}");
        assert!(waits.iter().all(|wait| *wait <= within), "beside {floods}: {waits:?}");
        let taken = world.deliveries.len();
        assert!(taken as u64 >= 1_100, "the worker is never without a job: {taken}");
        world.audit();
    }
}

/// Buckets that only drop jobs at their turns leave the route empty, and that says nothing of the workers.
#[test]
fn jobs_that_are_dropped_do_not_make_the_route_take_more_than_workers_need() {
    let toml = "[defaults]\nrate = '1000/s'\ncapacity = 1000000\n\
                [limits]\nready_window = '250ms'\nmax_job_bytes = 100\n";
    let (mut load, pushed) = quiet(6);
    let dropped = |n: u64| vec!["x".repeat(101); 3_000].into_iter().map(move |job| format!("{job}{n}"));
    load.extend((0..4).map(|n| World::backlog(0, &format!("flood-{n}"), 30)));
    load.extend((0..4).map(|n| (1, format!("flood-{n}"), dropped(n).collect())));
    load.extend((0..4).map(|n| World::backlog(2, &format!("flood-{n}"), 3_000)));
    let mut world = World::new(toml, vec![Hand::always(10 * MS)], load);
    world.run(9 * S);
    let waits = world.waits("quiet", &pushed);
    assert_eq!(waits.len(), 6, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 400 * MS), "{waits:?}");
    assert!(world.case.routes(T0 + 9 * S)[0].limit <= 64);
    world.audit();
}

#[test]
fn where_workers_take_half_of_what_is_due_every_bucket_gets_an_equal_turn() {
    let toml = "[defaults]\nrate = '2/s'\ncapacity = 1000\n[[bucket]]\nmatch = 'fast-*'\nrate = '50/s'\n[limits]\nready_window = '250ms'\n";
    let pushes =
        (0..200).map(|n| World::backlog(n * MS, &format!("{}-{n}", if n % 2 == 0 { "fast" } else { "slow" }), 200));
    let mut world = World::new(toml, vec![Hand::always(5 * MS)], pushes.collect());
    world.run(21 * S);
    let settled: Vec<(String, usize)> = world
        .by_bucket()
        .into_iter()
        .map(|(bucket, at)| (bucket, at.iter().filter(|t| **t > T0 + S).count()))
        .collect();
    let mean = settled.iter().map(|(_, n)| *n).sum::<usize>() as f64 / 200.0;
    for (bucket, n) in settled {
        assert!((0.9..=1.1).contains(&(n as f64 / mean)), "{bucket}: {n} turns, {mean} on average");
    }
    world.audit();
}

#[test]
fn beside_floods_siblings_below_a_slow_budget_have_equal_turns_too() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 100000\n[[budget]]\nmatch = 'b'\nrate = '1/s'\n\
                [[bucket]]\nmatch = 'c*'\nwithin = 'b'\n[limits]\nready_window = '250ms'\n";
    for (floods, hand) in [(10, 10 * MS), (30, 20 * MS)] {
        let names = (0..floods).map(|n| format!("flood-{n}")).chain((0..3).map(|n| format!("c{n}")));
        let mut world =
            World::new(toml, vec![Hand::always(hand)], names.map(|name| World::backlog(0, &name, 1_000)).collect());
        world.run(40 * S);
        let by_bucket = world.by_bucket();
        let turns = |name: &str| by_bucket.get(name).map_or(0, Vec::len);
        let siblings = ["c0", "c1", "c2"].map(turns);
        assert!(siblings.iter().all(|n| *n >= 8), "beside {floods}, of one job a second: {siblings:?}");
        world.audit();
    }
}

#[test]
fn a_clock_that_steps_back_by_an_hour_leaves_held_buckets_their_turns() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nmax_ready = 2\nready_window = '250ms'\n";
    let mut case = Case::with(toml);
    let mut now = T0 + 7_200 * S;
    case.settle_at(now);
    for n in 0..20 {
        case.push_at(now, &format!("f{n}"), &["x"; 500]);
    }
    for step in 0..800 {
        now += 100 * MS;
        if step == 100 {
            now -= 3_600 * S;
        }
        case.settle_at(now);
        for entry in case.take("ready", 1) {
            let stream = case.key("ready");
            let _: i64 = case.cmd(&["XACK", &stream, "workers", &entry.id]);
            let _: i64 = case.cmd(&["XDEL", &stream, &entry.id]);
        }
    }
    let left: Vec<u64> = (0..20).map(|n| 500 - case.cmd::<u64>(&["LLEN", &case.queue(&format!("f{n}"))])).collect();
    assert!(left.iter().all(|n| (25..=60).contains(n)), "jobs that left each of twenty: {left:?}");
}

#[test]
fn held_buckets_go_in_the_order_in_which_their_last_jobs_left_whatever_their_rates() {
    let mut case = Case::with(
        "[defaults]\nrate = '100/s'\ncapacity = 100\n[[bucket]]\nmatch = 'slow'\nrate = '1/s'\n[limits]\nready_window = '1h'\nmax_ready = 1\n",
    );
    case.settle_at(T0);
    case.push_at(T0, "first", &["x"]);
    case.drain_at(T0);
    for (n, bucket) in ["a", "b", "slow"].iter().enumerate() {
        case.push_at(T0 + (n as u64 + 1) * MS, bucket, &["1", "2", "3"]);
        case.drain_at(T0 + (n as u64 + 1) * MS);
    }
    assert_eq!(names(case.held("default")), ["a", "b", "slow"], "where it had no work: whose first job came first");
    let mut order = Vec::new();
    for turn in 1..=6 {
        assert_eq!(case.take("ready", 10).len(), 1);
        let now = T0 + turn * 2 * S;
        assert_eq!(case.drain_at(now).dispatched, 1, "one at a time");
        order.push(case.stream("ready").pop().expect("it left").text("bucket"));
    }
    assert_eq!(order, ["a", "b", "slow", "a", "b", "slow"]);
    audit(&mut case);
}

/// A job that is dropped at its turn, because its deadline has passed or somebody cancelled it, is no turn: the next
/// job of its bucket takes it.
#[test]
fn a_held_bucket_loses_no_turn_by_jobs_that_are_dropped() {
    let mut case =
        Case::with("[defaults]\nrate = '100/s'\ncapacity = 1000\n[limits]\nready_window = '1h'\nmax_ready = 1\n");
    case.settle_at(T0);
    case.push_at(T0, "first", &["x"]);
    case.drain_at(T0);
    case.push_at(T0 + MS, "plain", &["x"; 20]);
    let now = (T0 + 2 * MS).to_string();
    for n in 0..200 {
        let ttl_ms = if n % 50 == 49 { "3600000" } else { "1" };
        let _: Vec<redis::Value> = case.fcall("drip__submit", &["queue:late"], &[&now, &n.to_string(), "TTL", ttl_ms]);
    }
    case.wake_at(T0 + 2 * MS, &["plain", "late"]);
    let mut order = Vec::new();
    for turn in 1..=8 {
        assert_eq!(case.take("ready", 10).len(), 1, "turn {turn}");
        let now = T0 + turn * S;
        let mut calls = 0;
        while case.drain_at(now).wait_us == 0 {
            calls += 1;
            assert!(calls < 3, "a call drops many");
        }
        order.push(case.stream("ready").pop().expect("it left").text("bucket"));
    }
    assert_eq!(order, ["plain", "late", "plain", "late", "plain", "late", "plain", "late"]);
    audit(&mut case);
}

/// "Where only workers stop them, all get the same within a tenth."
#[test]
fn two_floods_of_one_rate_have_equal_shares_of_few_workers() {
    for (rate, workers) in [("30/s", 1), ("47/s", 3), ("60/s", 3), ("100/s", 3), ("100/s", 7)] {
        let toml = format!("[defaults]\nrate = '{rate}'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
        let hands = (0..workers).map(|_| Hand::always(250 * MS)).collect();
        let floods = ["a", "b"].map(|bucket| World::backlog(0, bucket, 1_000));
        let mut world = World::new(&toml, hands, floods.to_vec());
        world.run(20 * S);
        let of = world.by_bucket();
        let (a, b) = (of["a"].len(), of["b"].len());
        let mean = (a + b) as f64 / 2.0;
        assert!(a.abs_diff(b) as f64 / 2.0 <= 0.1 * mean, "{rate}, {workers} workers: {a} and {b}");
        world.audit();
    }
}

/// Where what the workers take is less than the rates of all, a bucket of a high rate has no more turns than one of a low rate, as long as the
/// low one's rate allows them: the route holds no more jobs than the workers need.
#[test]
fn floods_of_different_rates_have_equal_turns_at_slow_workers() {
    type Buckets = &'static [(&'static str, &'static str)];
    let cases: [(usize, u64, f64, Buckets); 5] = [
        (1, 40, 0.1, &[("a", "5000/s"), ("b", "100/s"), ("c", "12/s")]),
        (1, 50, 0.1, &[("a", "2000/s"), ("b", "20/s")]),
        (2, 100, 0.1, &[("a", "2000/s"), ("b", "20/s")]),
        (2, 100, 0.1, &[("a", "1000/s"), ("b", "100/s"), ("c", "20/s"), ("d", "10/s"), ("e", "8/s")]),
        // Both workers take at the same time, and find two more than they need.
        (2, 150, 0.3, &[("a", "100/s"), ("b", "10/s")]),
    ];
    for (workers, service_ms, off, buckets) in cases {
        let entry = |(name, rate): &(&str, &str)| format!("[[bucket]]\nmatch = '{name}'\nrate = '{rate}'\n");
        let entries: String = buckets.iter().map(entry).collect();
        let toml = format!("[defaults]\ncapacity = 100000\n{entries}[limits]\nready_window = '250ms'\n");
        let hands = (0..workers).map(|_| Hand::always(service_ms * MS)).collect();
        let mut world = World::new(&toml, hands, buckets.iter().map(|(b, _)| World::backlog(0, b, 2_000)).collect());
        world.run(22 * S);
        let since = |at: &Vec<u64>| at.iter().filter(|t| **t > T0 + 2 * S).count();
        let turns: Vec<usize> = world.by_bucket().values().map(since).collect();
        let mean = turns.iter().sum::<usize>() as f64 / turns.len() as f64;
        assert!(turns.iter().all(|n| (*n as f64 / mean - 1.0).abs() <= off), "{workers} x {service_ms} ms: {turns:?}");
        let all = 20_000 * workers as u64 / service_ms;
        assert!(turns.iter().sum::<usize>() as f64 >= 0.98 * all as f64, "they are never idle: {turns:?} of {all}");
        world.audit();
    }
}

/// What is remembered of spaces is bounded, and one that is in use is not the one that is forgotten.
#[test]
fn hundreds_of_other_spaces_on_the_server_change_nobody_s_turn() {
    let server = Server::start(&[]);
    let toml = "[defaults]\nrate = '100/s'\ncapacity = 100\n[[bucket]]\nmatch = 'a'\nrate = '24/m'\n[limits]\nready_window = '1h'\nmax_ready = 1\n";
    let mut case = Case::on(&server, toml);
    case.settle_at(T0);
    case.push_at(T0, "first", &["x"]);
    case.drain_at(T0);
    for (n, bucket) in ["a", "b", "c"].iter().enumerate() {
        case.push_at(T0 + (n as u64 + 1) * MS, bucket, &["1", "2", "3", "4"]);
        case.drain_at(T0 + (n as u64 + 1) * MS);
    }
    let mut order = Vec::new();
    for turn in 1..=9 {
        for n in 0..100 {
            Case::beside(&server, &format!("other-{turn}-{n}"), toml).settle_at(T0);
        }
        case.drain_at(T0 + turn * S - MS); // all three are held
        case.take("ready", 10);
        // Of equal tags the earlier due is first, and that of the slow one is later; where tags were forgotten it would have no turn of its own.
        assert_eq!(case.drain_at(T0 + turn * S).dispatched, 1);
        order.push(case.stream("ready").pop().expect("it left").text("bucket"));
    }
    assert_eq!(order.concat(), "abcbcabca");
}

#[test]
fn whoever_makes_new_names_all_the_time_pushes_nobody_back() {
    let mut case =
        Case::with("[defaults]\nrate = '1/d'\ncapacity = 100\n[limits]\nready_window = '1h'\nmax_ready = 1\n");
    case.settle_at(T0);
    case.push_at(T0, "first", &["x"]);
    case.drain_at(T0);
    case.push_at(T0 + MS, "patient", &["x"]);
    case.drain_at(T0 + MS);
    for n in 0..50 {
        case.push_at(T0 + (2 + n) * MS, &format!("new-{n}"), &["x"]);
        case.drain_at(T0 + (2 + n) * MS);
    }
    case.take("ready", 1);
    case.drain_at(T0 + S);
    assert_eq!(case.stream("ready").pop().expect("it left").text("bucket"), "patient");
}

#[test]
fn no_job_overtakes_those_that_are_held_for_its_route_and_another_route_is_not_concerned() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\n[[bucket]]\nmatch = 'mail'\nroute = 'mail'\n[limits]\nready_window = '1h'\nmax_ready = 2\n",
    );
    case.settle_at(T0);
    case.push_at(T0, "full", &["1", "2", "3", "4"]);
    for n in 0..4 {
        case.drain_at(T0 + n * 100 * MS);
    }
    assert_eq!(names(case.held("default")), ["full"]);
    case.take("ready", 2);
    let now = T0 + S;
    case.lpush("new", &["x"]);
    case.lpush("mail", &["x"]);
    assert_eq!(case.wake_at(now, &["new", "mail"]).dispatched, 3);
    assert_eq!(case.stream("ready:mail").len(), 1);
    let left: Vec<String> = case.stream("ready").iter().skip(2).map(|entry| entry.text("bucket")).collect();
    assert_eq!(left, ["full", "new"], "the held one first");
    audit(&mut case);
}

#[test]
fn the_wait_of_a_held_bucket_is_no_lateness_and_up_to_its_catch_up_is_made_up() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 20]);
    for n in 0..10 {
        case.drain_at(T0 + n * 100 * MS);
    }
    assert_eq!(case.stream("ready").len(), 3, "the third left within the window");
    case.take("ready", 10);
    let now = T0 + 5 * S + 3;
    case.drain_at(now);
    let last = case.stream("ready").pop().expect("it left");
    assert_eq!((last.number("due_us"), last.number("at_us")), (now, now));
    assert_eq!(case.due("b"), Some(now + 80 * MS), "a held bucket makes up for as much as any other");
}

/// Buckets of many routes are held, and workers of some of them are away.
struct ManyRoutes {
    _server: Server,
    case: Case,
    now: u64,
}

impl ManyRoutes {
    const ROUTES: usize = 250;

    /// Two seconds after the workers of all routes went away.
    fn without_workers() -> Self {
        let server = Server::start(&[]);
        let of = |n: usize| format!("[[bucket]]\nmatch = 'b{n}'\nroute = 'r{n}'\n");
        let toml = "[defaults]\nrate = '1000/s'\ncapacity = 100\n[limits]\nready_window = '250ms'\n".to_owned()
            + &(0..Self::ROUTES).map(of).collect::<String>();
        let case = Case::on(&server, &toml);
        let mut it = Self { _server: server, case, now: T0 };
        for n in 0..Self::ROUTES {
            it.case.push_at(T0, &format!("b{n}"), &["x"; 100]);
        }
        it.after(50 * MS);
        it.after(2 * S);
        it
    }

    /// The daemon calls, so long after it called last, and again as long as it is told to.
    fn after(&mut self, us: u64) {
        self.now += us;
        self.case.settle_at(self.now);
    }

    /// How often groups were looked at.
    fn looks(&mut self) -> u64 {
        let stats: String = self.case.cmd(&["INFO", "commandstats"]);
        let of = |line: &str| line.strip_prefix("cmdstat_xinfo|groups:calls=")?.split(',').next()?.parse().ok();
        stats.lines().find_map(of).unwrap_or(0)
    }

    /// A worker of a route reads all that there is. Replies how many jobs.
    fn read(&mut self, n: usize) -> usize {
        self.case.take(&format!("ready:r{n}"), 1_000).len()
    }
}

#[test]
fn routes_whose_workers_are_away_are_looked_at_every_20_ms_however_many_calls_are_made() {
    let mut it = ManyRoutes::without_workers();
    it.after(20 * MS);
    let before = it.looks();
    for _ in 0..18 {
        it.after(MS);
    }
    assert_eq!(it.looks() - before, 0, "looks in 18 calls");
    it.after(2 * MS);
    let looks = it.looks() - before;
    assert_eq!(looks, ManyRoutes::ROUTES as u64, "one of each route, over several calls");
    // Workers come back to one of them: it waits for the next look, and then no more.
    assert!(it.read(77) > 0);
    it.after(20 * MS);
    assert!(it.read(77) > 0, "within 20 ms");
    it.after(MS);
    assert!(it.read(77) > 0, "at once");
    assert_eq!(it.read(78), it.read(79), "and the others wait on");
}

#[test]
fn of_many_routes_with_workers_none_is_passed_over() {
    let mut it = ManyRoutes::without_workers();
    for n in 0..ManyRoutes::ROUTES {
        it.read(n);
    }
    it.after(20 * MS);
    for round in 0..5 {
        let none: Vec<usize> = (0..ManyRoutes::ROUTES).filter(|n| it.read(*n) == 0).collect();
        assert_eq!(none, Vec::<usize>::new(), "round {round}: their workers got nothing");
        it.after(20 * MS);
    }
}
