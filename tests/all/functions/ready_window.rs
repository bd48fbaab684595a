//! The ready window: the rate and the fair turn hold where workers take the jobs (`READY.md`), whatever workers did before.

use proptest::prelude::*;

use super::delivered::{Hand, Paced, World};
use super::flow::{audit, set_at};
use super::ready_window_turns::names;
use crate::rig::{Case, MS, S, Server, T0};

const WINDOW: u64 = 250 * MS;

fn limit(case: &mut Case, now: u64) -> u64 {
    case.routes(now)[0].limit
}

#[test]
fn a_bucket_whose_workers_were_away_gives_what_the_promise_allows_and_no_more() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 100000\n[limits]\nready_window = '250ms'\n";
    for away in [1, 20] {
        let hands = (0..5).map(|_| Hand { shifts: vec![(away * S, u64::MAX)], ..Hand::always(MS) }).collect();
        let mut world = World::new(toml, hands, vec![World::backlog(0, "a", 2_000)]);
        world.run((away + 4) * S);
        let at = &world.by_bucket()["a"];
        let paced = Paced { count: 10, period_us: S, catch_up_us: 20 * MS, routes: 1 };
        assert_eq!(paced.broken_by(WINDOW, at), None, "away for {away} s");
        let first: Vec<&u64> = at.iter().filter(|t| **t < at[0] + S).collect();
        assert!((11..=14).contains(&first.len()), "away for {away} s: {} in the first second", first.len());
        assert!(at.len() >= 40, "then it goes on at its rate: {}", at.len());
        world.audit();
    }
}

#[test]
fn with_the_window_off_a_bucket_gives_all_that_lay_ready() {
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 100000\n[limits]\nready_window = 'off'\n";
    let hands = vec![Hand { shifts: vec![(20 * S, u64::MAX)], ..Hand::always(MS) }];
    let mut world = World::new(toml, hands, vec![World::backlog(0, "a", 2_000)]);
    world.run(22 * S);
    assert!(world.most_in_a_second("a") > 200, "{}", world.most_in_a_second("a"));
}

#[test]
fn a_free_worker_does_not_wait_longer_than_a_look_for_a_held_job() {
    let toml = "[defaults]\nrate = '20/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n";
    // Twenty times as much is due as one worker takes, then half of what five take.
    let hands = (0..5).map(|n| Hand { shifts: vec![(n * 2 * S, u64::MAX)], ..Hand::always(10 * MS) }).collect();
    let mut world = World::new(toml, hands, (0..20).map(|n| World::backlog(0, &format!("b{n}"), 400)).collect());
    world.run(14 * S);
    world.starved.sort_unstable();
    let longest = world.starved.last().copied().unwrap_or(0);
    assert!(longest <= 25 * MS, "a free worker waited {longest} us beside held jobs");
    let taken = world.deliveries.len();
    assert!(taken > 3_400, "400/s are due and nothing is lost once workers suffice: {taken}");
}

#[test]
fn where_workers_keep_up_nothing_is_held_and_a_burst_leaves_in_a_few_calls() {
    let mut case = Case::with("[defaults]\nrate = '1/m'\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    let buckets: Vec<String> = (0..100).map(|n| format!("b{n}")).collect();
    for bucket in &buckets {
        case.push_at(T0, bucket, &["x"]);
    }
    let mut left = Vec::new();
    for call in 0..6 {
        let drained = case.drain_at(T0 + call * 200);
        left.push(drained.dispatched);
        let undelivered = case.take("ready", 1_000).len();
        assert_eq!(undelivered as i64, drained.dispatched);
        assert!(drained.wait_us == 0 || names(case.held("default")).is_empty(), "the next look follows at once");
    }
    assert_eq!(left, [8, 16, 32, 44, 0, 0], "the limit doubles with each look that finds the route empty");
    assert_eq!(case.routes(T0 + MS)[0].held, 0);
    audit(&mut case);
    for n in 1..=2_000 {
        let now = T0 + 61 * S + n * MS;
        case.push_at(now, "one", &["x"]);
        case.wake_at(now, &["one"]);
        case.take("ready", 10);
    }
    let policy = case.key("policy");
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "held"]), None, "no bucket was written anywhere else");
}

#[test]
fn the_limit_falls_with_the_age_once_a_window_and_begins_anew_after_a_second_without_held_buckets() {
    let mut case = Case::with("[defaults]\nrate = '1000/s'\ncapacity = 10000\n[limits]\nready_window = '100ms'\n");
    case.settle_at(T0);
    for n in 0..100 {
        case.push_at(T0, &format!("b{n}"), &["x"; 50]);
    }
    let mut now = T0;
    for limit_then in [8, 16, 32] {
        case.drain_at(now);
        assert_eq!(limit(&mut case, now), limit_then);
        case.take("ready", 100);
        now += MS;
    }
    case.drain_at(now);
    assert_eq!((limit(&mut case, now), case.routes(now)[0].undelivered), (64, 64));
    assert_eq!(case.drain_at(now + 100 * MS).dispatched, 0, "the limit is reached");
    assert_eq!(limit(&mut case, now + 100 * MS), 64, "and the window is not over yet");
    case.drain_at(now + 200 * MS);
    assert_eq!(limit(&mut case, now + 200 * MS), 32, "64 * 100 / 200");
    case.drain_at(now + 250 * MS);
    assert_eq!(limit(&mut case, now + 250 * MS), 32, "at most once a window");
    case.drain_at(now + 301 * MS);
    assert_eq!(limit(&mut case, now + 301 * MS), 10, "32 * 100 / 301");
    let now = now + 10 * S;
    assert_eq!(case.drain_at(now).dispatched, 0, "too old");
    assert_eq!(limit(&mut case, now), 1, "never below 1");
    case.take("ready", 64);
    assert_eq!(case.drain_at(now).dispatched, 2, "it doubles");
    for n in 0..100 {
        let key = format!("queue:b{n}");
        let _: Vec<i64> = case.fcall("drip__purge", &[&key], &[now.to_string(), "1".to_owned(), "1".to_owned()]);
    }
    case.settle_at(now + 100 * MS);
    assert_eq!(case.routes(now + 100 * MS)[0].held, 0);
    assert_eq!(limit(&mut case, now + 1_101 * MS), 8, "anew");
}

#[test]
fn a_bucket_that_moves_to_another_route_goes_on_there_and_its_part_counts_once_for_each_route() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 100]);
    let away = |case: &mut Case, since: u64| (0..100).for_each(|n| _ = case.drain_at(since + n * 20 * MS));
    away(&mut case, T0);
    set_at(&mut case, T0 + 2 * S, "b", "route", r#"{"route":"mail"}"#);
    away(&mut case, T0 + 2 * S);
    let (old, new) = (case.take("ready", 100).len(), case.take("ready:mail", 100).len());
    // 1 + ⌊(250 + 20) / 100⌋ for each of them, and 1 + ⌊20 / 100⌋ more.
    assert!((1..=3).contains(&old) && (1..=3).contains(&new) && old + new <= 7, "{old} and {new} at once");
    audit(&mut case);
}

#[test]
fn an_entry_of_a_stranger_counts_and_one_that_a_stranger_takes_away_holds_nothing() {
    let server = Server::start(&[]); // who moves a group there disturbs no other test
    let mut case =
        Case::on(&server, "[defaults]\nrate = '1000/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    let ready = case.key("ready");
    for _ in 0..8 {
        let _: String = case.cmd(&["XADD", &ready, "*", "job", "theirs"]);
    }
    case.push_at(T0, "b", &["x"; 100]);
    assert_eq!(case.drain_at(T0).dispatched, 0, "eight are undelivered");
    let _: i64 = case.cmd(&["XTRIM", &ready, "MAXLEN", "0"]);
    assert!(case.drain_at(T0 + 20 * MS).dispatched > 0, "a stream that was trimmed is empty");
    let all = case.take("ready", 100).len() as i64;
    assert!(all > 0);
    let _: String = case.cmd(&["XGROUP", "SETID", &ready, "workers", "0"]);
    case.drain_at(T0 + 500 * MS);
    assert_eq!(case.drain_at(T0 + 520 * MS).dispatched, 0, "what was delivered is undelivered again, and too old");
    let _: String = case.cmd(&["XGROUP", "SETID", &ready, "workers", "$"]);
    assert!(case.drain_at(T0 + 540 * MS).dispatched > 0, "and again all is delivered");
    let _: i64 = case.cmd(&["DEL", &ready]);
    assert!(case.drain_at(T0 + 600 * MS).dispatched > 0, "a stream that was deleted is made anew");
    assert!(!case.take("ready", 10).is_empty());
}

#[test]
fn an_entry_that_claims_to_be_of_the_future_ages_from_when_it_was_first_seen() {
    for fields in [["at_us", "9999999999999999"], ["x", "foreign"]] {
        let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
        case.settle_at(T0);
        let ready = case.key("ready");
        let _: String = case.cmd(&["XADD", &ready, "9999999999999-0", fields[0], fields[1]]);
        case.push_at(T0, "b", &["x"; 100]);
        let left: i64 = (0..100).map(|n| case.drain_at(T0 + n * 20 * MS).dispatched).sum();
        assert!(left <= 4, "{left} left within 2 s, of 10/s, beside {fields:?}");
        let routes = case.routes(T0 + 2 * S);
        assert!(routes[0].age_us >= S, "{} us", routes[0].age_us);
    }
}

#[test]
fn a_group_that_somebody_destroyed_is_there_again_with_the_next_look() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 100]);
    case.drain_at(T0);
    let ready = case.key("ready");
    let _: i64 = case.cmd(&["XGROUP", "DESTROY", &ready, "workers"]);
    case.drain_at(T0 + 101 * MS);
    assert!(!case.take("ready", 10).is_empty());
}

#[test]
fn who_was_held_by_an_older_version_of_the_library_goes_on_and_stands_in_one_place() {
    let mut case = Case::with(
        "[defaults]\nrate = '10/s'\n[limits]\nready_window = '250ms'\n[[budget]]\nmatch = 'p'\nrate = '1000/s'\n\
         [[budget]]\nmatch = 'c'\nrate = '1000/s'\nwithin = 'p'\n[[bucket]]\nmatch = 'c*'\nwithin = 'c'\n",
    );
    let (policy, waiting, budgets) = (case.key("policy"), case.key("waiting"), case.key("budgets"));
    let stand = |case: &mut Case, line: &str, id: &str, rank: u64| {
        let key = case.key(&format!("wait:{line}"));
        let due = T0 - S;
        let _: i64 = case.cmd(&["ZADD", &key, &rank.to_string(), &format!("{due:016}{id}")]);
        let _: i64 = case.cmd(&["HSET", &waiting, id, &format!("{due:016} {line}")]);
    };
    for n in 0..3 {
        case.lpush(&format!("b{n}"), &["1", "2"]);
        stand(&mut case, "{default}", &format!("b{n}"), T0 - S + n);
    }
    for (bucket, line) in [("c0", "{default}"), ("c1", "c")] {
        case.lpush(bucket, &["1", "2"]);
        stand(&mut case, line, bucket, T0);
    }
    stand(&mut case, "p", "{c}", 5);
    let at = T0 - S;
    let _: i64 = case.cmd(&["HSET", &budgets, "{c}", &format!("{at} 0 5 {at} wait:p")]);
    let _: i64 = case.cmd(&["HSET", &policy, "held", "default"]);
    assert_eq!(case.settle_at(T0 + MS).dispatched, 5);
    assert_eq!(case.cmd::<i64>(&["EXISTS", &waiting]), 0);
    assert_eq!(case.cmd::<Option<String>>(&["HGET", &policy, "held"]), None);
    assert_eq!(case.due("b0"), Some(T0 + MS + 100 * MS), "at its rate, with no credit");
    audit(&mut case);
}

/// A random world.
#[derive(Debug, Clone)]
struct Random {
    window_ms: u64,
    catch_up_ms: Option<u64>,
    /// Jobs in 10 s.
    rates: Vec<u64>,
    hands: Vec<Hand>,
    budget: Option<u64>,
    away: Vec<(u64, u64)>,
}

fn hand() -> impl Strategy<Value = Hand> {
    let shift = (0..6_u64, 1..6_u64).prop_map(|(from, lasts)| (from * S, (from + lasts) * S));
    let batch = prop_oneof![3 => Just((1, 1)), 2 => Just((1, 20)), 1 => Just((1, 400)), 2 => Just((10, 50)), 1 => Just((100, 50))];
    (prop::collection::vec(shift, 1..3), batch, prop_oneof![2 => Just(0), 1 => Just(3), 1 => Just(7)]).prop_map(
        |(shifts, (count, service_ms), fails)| Hand {
            shifts,
            count,
            service_us: service_ms * MS,
            fails,
            ..Hand::always(0)
        },
    )
}

fn random() -> impl Strategy<Value = Random> {
    let rate = prop_oneof![Just(5), Just(20), Just(100), Just(330), Just(2_000)];
    let away = prop::collection::vec((0..8_u64, 1..3_u64).prop_map(|(at, lasts)| (at * S, (at + lasts) * S)), 0..2);
    let window = prop_oneof![Just(10), Just(100), Just(250), Just(1_000)];
    let catch_up = prop::option::of(prop_oneof![Just(0), Just(20), Just(500)]);
    let budget = prop::option::weighted(0.4, prop_oneof![Just(50), Just(500)]);
    let hands = prop::collection::vec(hand(), 1..5);
    (window, catch_up, prop::collection::vec(rate, 1..7), hands, budget, away).prop_map(
        |(window_ms, catch_up_ms, rates, hands, budget, away)| Random {
            window_ms,
            catch_up_ms,
            rates,
            hands,
            budget,
            away,
        },
    )
}

impl Random {
    fn toml(&self) -> String {
        let mut toml = format!("[limits]\nready_window = '{}ms'\n[defaults]\ncapacity = 100000\n", self.window_ms);
        if let Some(ms) = self.catch_up_ms {
            toml += &format!("catch_up = '{ms}ms'\n");
        }
        if let Some(rate) = self.budget {
            toml += &format!("within = 'all'\n[[budget]]\nmatch = 'all'\nrate = '{rate}/10s'\n");
        }
        for (n, rate) in self.rates.iter().enumerate() {
            toml += &format!("[[bucket]]\nmatch = 'b{n}'\nrate = '{rate}/10s'\n");
        }
        toml
    }

    /// The most lateness that a bucket makes up for.
    fn catch_up_us(&self, rate: u64) -> u64 {
        match (self.catch_up_ms, self.budget) {
            (Some(ms), _) => ms * MS,
            (None, Some(budget)) => (20 * MS).max(10 * S / rate).max(2 * 10 * S / budget),
            (None, None) => 20 * MS,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn whatever_workers_and_daemons_do_no_bucket_and_no_budget_is_delivered_faster_than_is_promised(world in random()) {
        let pushes = world.rates.iter().enumerate().map(|(n, rate)| World::backlog(0, &format!("b{n}"), 2 * *rate as usize));
        let mut live = World::new(&world.toml(), world.hands.clone(), pushes.collect());
        live.away.clone_from(&world.away);
        live.run(10 * S);
        let window = world.window_ms * MS;
        for (bucket, at) in live.by_bucket() {
            let rate = world.rates[bucket[1..].parse::<usize>().expect("a number")];
            let paced = Paced { count: rate, period_us: 10 * S, catch_up_us: world.catch_up_us(rate), routes: 1 };
            prop_assert_eq!(paced.broken_by(window, &at), None, "{}", bucket);
        }
        if let Some(rate) = world.budget {
            let at: Vec<u64> = live.deliveries.iter().map(|one| one.at).collect();
            let paced = Paced { count: rate, period_us: 10 * S, catch_up_us: 20 * MS, routes: 1 };
            prop_assert_eq!(paced.broken_by(window, &at), None, "the budget");
        }
        let wrong: Vec<String> = live.case.fcall("drip__audit", &["policy"], &[""; 0]);
        prop_assert_eq!(wrong, Vec::<String>::new());
    }
}

#[test]
fn a_stream_whose_jobs_in_hand_were_deleted_is_as_old_as_its_oldest_job() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 500]);
    let mut held = Vec::new();
    for n in 0..100 {
        case.drain_at(T0 + n * 20 * MS);
        held.extend(case.take("ready", 10));
    }
    assert!(held.len() >= 19, "{}", held.len());
    let stream = case.key("ready");
    let ids: Vec<&str> = held.iter().map(|entry| entry.id.as_str()).collect();
    let _: i64 = case.cmd(&[&["XDEL", &stream], &ids[..]].concat());
    for n in 100..300 {
        case.drain_at(T0 + n * 20 * MS);
    }
    let there = case.cmd::<i64>(&["XLEN", &stream]);
    assert!((1..=4).contains(&there), "{there} undelivered: 2 + ⌊270 / 100⌋ are allowed");
    audit(&mut case);
}

#[test]
fn workers_that_take_all_there_is_now_and_then_get_the_whole_rate() {
    // 200 jobs a second; a worker looks every 200 ms, which is within the window. Then it is away, and others are slow.
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    for n in 0..20 {
        case.push_at(T0 + n * 5 * MS, &format!("b{n}"), &["x"; 200]);
    }
    let mut taken = Vec::new();
    for n in 0..2_000 {
        case.drain_at(T0 + n * 5 * MS);
        if n % 40 == 39 {
            taken.push(case.take("ready", 1_000).len());
        }
    }
    let all: usize = taken[10..].iter().sum();
    assert!(all >= 40 * 40 - 8, "{all} of 1,600 in eight seconds: {taken:?}");
    assert!(
        limit(&mut case, T0 + 10 * S) <= 75,
        "a quarter more than is taken at once: of each bucket three, after it was held"
    );
    for n in 2_000..3_000 {
        case.drain_at(T0 + n * 5 * MS);
    }
    let there = case.routes(T0 + 15 * S)[0].undelivered;
    assert!(there <= 20 * 4, "{there} lie there of twenty buckets");
    assert!(limit(&mut case, T0 + 15 * S) <= 8, "it fell with the age");
}

#[test]
fn a_worker_that_reads_now_and_then_takes_the_next_burst_as_fast_after_a_quiet_time() {
    // A thousand buckets with a job each; a worker that reads all there is every 200 ms. Then half a minute with a single job in it.
    let mut case = Case::with("[defaults]\nrate = '10/s'\n[limits]\nready_window = '250ms'\n");
    let mut reads_of = |start: u64, jobs: usize| {
        for n in 0..jobs {
            case.push_at(start, &format!("{start}-{n}"), &["x"]);
        }
        let (mut left, mut reads) = (jobs, 0);
        while left > 0 && reads < 20 {
            for n in 0..10 {
                case.settle_at(start + reads * 200 * MS + n * 20 * MS);
            }
            left -= case.take("ready", 1_000).len();
            reads += 1;
        }
        assert_eq!(left, 0);
        reads
    };
    let first = reads_of(T0, 1_000);
    assert!(first <= 9, "the limit doubles with each read: {first} reads");
    assert_eq!(reads_of(T0 + 15 * S, 1), 1);
    let second = reads_of(T0 + 30 * S, 1_000);
    assert!(second <= 2, "{second} reads for the second burst, {first} for the first");
}

#[test]
fn a_stream_whose_undelivered_jobs_were_deleted_goes_on_while_a_worker_holds_one() {
    let mut case = Case::with("[defaults]\nrate = '10/s'\ncapacity = 1000\n[limits]\nready_window = '250ms'\n");
    case.settle_at(T0);
    case.push_at(T0, "b", &["x"; 100]);
    case.drain_at(T0);
    assert_eq!(case.take("ready", 1).len(), 1);
    for n in 1..100 {
        case.drain_at(T0 + n * 20 * MS);
    }
    let (stream, ids) = (case.key("ready"), case.stream("ready").into_iter().map(|entry| entry.id).collect::<Vec<_>>());
    let words: Vec<&str> = ["XDEL", stream.as_str()].into_iter().chain(ids[1..].iter().map(String::as_str)).collect();
    assert!(case.cmd::<i64>(&words) >= 2);
    let left = (100..110).map(|n| case.drain_at(T0 + n * 20 * MS).dispatched).sum::<i64>();
    assert!(left >= 1, "nothing leaves for 200 ms though nothing lies there");
    audit(&mut case);
}

/// Workers that wait in a read are woken by a new entry, and by nothing else.
#[test]
fn a_group_that_was_set_back_gets_a_job_that_wakes_its_workers() {
    let server = Server::start(&[]); // who moves a group there disturbs no other test
    let toml = "[defaults]\nrate = '10/s'\ncapacity = 100\n[limits]\nready_window = '250ms'\n";
    let mut case = Case::on(&server, toml);
    case.settle_at(T0);
    case.push_at(T0, "a", &["1", "2", "3", "4", "5", "6", "7", "8"]);
    for n in 0..2 {
        case.drain_at(T0 + n * S);
        assert_eq!(case.take("ready", 10).len(), 1, "acknowledged, and still in the stream");
    }
    let key = case.key("ready");
    case.cmd::<()>(&["XGROUP", "SETID", &key, "workers", "0"]);
    let left = |case: &mut Case, now: u64| (0..4).map(|n| case.drain_at(now + n * 20 * MS).dispatched).sum::<i64>();
    assert_eq!(left(&mut case, T0 + 2 * S), 1, "the others wait until the old ones are taken");
    assert_eq!(left(&mut case, T0 + 3 * S), 0);
    audit(&mut case);
}
