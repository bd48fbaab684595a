//! What children get of a budget that they ask nearly all of, the promise on every level where very fast and very slow ones are side by side,
//! and budgets with more children than any call could look at.

use std::fmt::Write as _;

use fastrand::Rng;

use super::flow::{self, audit, excess, left};
use crate::rig::{Case, MS, S, T0};

/// What a budget lets out in a second, where children ask for a part of that.
const RATE: u64 = 100;

/// The rates of the children are counted in jobs of so long.
const PERIOD: u64 = 100;

/// Push so many jobs into each of some buckets.
fn fill(case: &mut Case, buckets: impl Iterator<Item = String>, jobs: usize) {
    let (mut pipe, jobs, now) = (redis::pipe(), vec!["x"; jobs], T0.to_string());
    for bucket in buckets {
        for jobs in jobs.chunks(1_000) {
            pipe.cmd("FCALL").arg("drip__push").arg(1).arg(case.queue(&bucket)).arg(&now).arg(jobs).ignore();
        }
    }
    pipe.exec(&mut case.redis).expect("pushed");
}

/// Let time pass from due to due, each time a little late. Replies when all is over.
fn run(case: &mut Case, until: u64, mut late: impl FnMut() -> u64) -> u64 {
    let mut now = T0;
    loop {
        let wait = case.settle_at(now).wait_us;
        let next = now + u64::try_from(wait).unwrap_or(0) + late();
        if wait < 0 || next > until {
            return now;
        }
        now = next;
    }
}

/// So many numbers that add up to `sum`: the same, or by chance, none of which is very small.
fn parts(rng: &mut Rng, n: usize, sum: u64, is_random: bool) -> Vec<u64> {
    let weights: Vec<u64> = (0..n).map(|_| if is_random { rng.u64(10..100) } else { 1 }).collect();
    let all: u64 = weights.iter().sum();
    weights.iter().map(|weight| sum * weight / all).collect()
}

/// What the child that loses most of its rate loses of it, in percent. Ten children ask for `load` percent of their budget, in one budget or in two
/// that ask for as much of one above them.
fn most_lost(rng: &mut Rng, load: u64, levels: usize, is_random: bool) -> f64 {
    const CHILDREN: usize = 10;
    let mut toml = format!(
        "[limits]\nmax_ready = 1000000\n[defaults]\ncapacity = 100000\n[[budget]]\nmatch = 'top'\nrate = '{RATE}/s'\n"
    );
    let mut children = Vec::new();
    // Each of those right above the children, and what it lets out in a period.
    let budgets: Vec<(String, u64)> = match levels {
        1 => vec![("top".to_owned(), RATE * PERIOD)],
        _ => parts(rng, 2, RATE * PERIOD * load / 100, false)
            .into_iter()
            .enumerate()
            .map(|(n, count)| {
                writeln!(toml, "[[budget]]\nmatch = 'top:{n}'\nrate = '{count}/{PERIOD}s'\nwithin = 'top'")
                    .expect("a text");
                (format!("top:{n}"), count)
            })
            .collect(),
    };
    for (budget, count) in &budgets {
        for (n, own) in parts(rng, CHILDREN / budgets.len(), count * load / 100, is_random).into_iter().enumerate() {
            let name = format!("{budget}:child-{n}");
            writeln!(toml, "[[bucket]]\nmatch = '{name}'\nrate = '{own}/{PERIOD}s'\nwithin = '{budget}'")
                .expect("a text");
            children.push((name, own));
        }
    }
    let mut case = Case::with(&toml);
    case.settle_at(T0);
    fill(&mut case, children.iter().map(|(name, _)| name.clone()), 1_500);
    run(&mut case, T0 + 40 * S, || rng.u64(0..300));
    audit(&mut case);
    let period_us = PERIOD * S;
    for (budget, count) in &budgets {
        let catch_up = if levels == 1 { 20 * MS } else { period_us.div_ceil(*count).max(2 * S / RATE) };
        assert!(excess(&left(&mut case, &format!("{budget}:")), *count, period_us) <= catch_up + 1, "{budget}");
    }
    let lost = children.iter().map(|(name, own)| {
        let at = left(&mut case, name);
        let up = budgets.iter().find(|(budget, _)| name.starts_with(&format!("{budget}:"))).expect("its budget").1;
        let catch_up = period_us.div_ceil(*own).max(2 * period_us.div_ceil(up)).max(20 * MS);
        assert!(excess(&at, *own, period_us) <= catch_up + 1, "{name}");
        let (first, last) = (at.first().expect("some left"), at.last().expect("some left"));
        100.0 * (1.0 - (at.len() - 1) as f64 * period_us as f64 / (last - first) as f64 / *own as f64)
    });
    lost.fold(f64::MIN, f64::max)
}

#[test]
fn children_that_ask_for_nearly_all_of_their_budget_get_their_rates() {
    let mut rng = Rng::with_seed(13);
    for load in [80, 90, 95, 99] {
        for (levels, is_random) in [(1, false), (1, true), (2, false), (2, true)] {
            let lost = most_lost(&mut rng, load, levels, is_random);
            let rates = if is_random { "random" } else { "equal" };
            println!("at {load} % on {levels} level(s), {rates} rates: the worst child loses {lost:.2} %");
            let most = if load == 99 { 3.0 } else { 1.0 };
            assert!(lost <= most, "at {load} % on {levels} level(s), {rates} rates: {lost:.2} % lost");
        }
    }
}

#[test]
fn one_an_hour_beside_a_thousand_a_second_keeps_the_promise_on_four_levels_whatever_the_drains_do() {
    const NODES: [(&str, u64, u64); 7] = [
        ("a", 1_300, S),
        ("a:b", 1_250, S),
        ("a:b:c", 1_200, S),
        ("a:b:c:fast", 1_000, S),
        ("a:b:c:slow", 1, 3_600 * S),
        ("a:b:c:odd", 70, 3 * S),
        ("a:b:c:bursts", 300, S),
    ];
    for seed in 0..4 {
        let mut rng = Rng::with_seed(seed);
        let mut toml = "[limits]\nmax_ready = 1000000\n[defaults]\ncapacity = 100000\n".to_owned();
        for (n, (name, count, period_us)) in NODES.into_iter().enumerate() {
            let kind = if n < 3 { "budget" } else { "bucket" };
            write!(toml, "[[{kind}]]\nmatch = '{name}'\nrate = '{count}/{}s'\n", period_us / S).expect("a text");
            if let Some((up, _)) = name.rsplit_once(':') {
                writeln!(toml, "within = '{up}'").expect("a text");
            }
        }
        let mut case = Case::with(&toml);
        case.settle_at(T0);
        fill(&mut case, NODES[3..6].iter().map(|(name, ..)| (*name).to_owned()), 8_000);
        let (mut now, mut bursts) = (T0, Vec::new());
        while now < T0 + 10 * S {
            if rng.u8(0..20) == 0 {
                bursts.push(case.push_at(now, "a:b:c:bursts", &["x"; 60])[0]);
            }
            let wait = case.settle_at(now).wait_us;
            assert!(wait > 0, "there is always work");
            // Most drains are in time. Some come late, and some after a pause of the machine.
            let late = [0, 0, 50, 20 * MS, 400 * MS][rng.usize(0..5)];
            now += wait as u64 + rng.u64(0..=late);
        }
        assert!(bursts.len() > 3, "there were bursts");
        audit(&mut case);
        let mut above = 0;
        for (name, count, period_us) in NODES {
            let at = left(&mut case, name);
            let own = period_us.div_ceil(count);
            let catch_up = if above == 0 { 20 * MS } else { own.max(2 * above).max(20 * MS) };
            let found = excess(&at, count, period_us);
            assert!(found <= catch_up + 1, "seed {seed}, {name}: {} jobs, {found} us too soon", at.len());
            if name.len() < 6 {
                above = own;
            }
        }
        assert_eq!(left(&mut case, "a:b:c:slow").len(), 1, "one an hour");
        let fast = left(&mut case, "a:b:c:fast").len();
        assert!(fast > 1_000, "the others were let out besides: {fast}");
    }
}

#[test]
fn ten_thousand_children_that_cannot_go_any_more_cost_bounded_calls_and_nobodys_turn() {
    const GONE: usize = 10_000;
    let mut case = Case::with(
        "[limits]\nmax_ready = 1000000\n[[budget]]\nmatch = 'b'\nrate = '10/s'\ncatch_up = '0s'\n\
         [[bucket]]\nmatch = '*'\nrate = '1000/s'\nwithin = 'b'\n",
    );
    case.settle_at(T0);
    fill(&mut case, (0..GONE).map(|n| format!("gone-{n}")), 1);
    assert_eq!(case.settle_at(T0).dispatched, 1, "the first one leaves, and the others wait");
    // Its end is behind those of all others.
    case.push_at(T0 + 1, "stays", &["x"; 3]);
    case.settle_at(T0 + 1);
    for from in (0..GONE).step_by(1_000) {
        let queues: Vec<String> = (from..from + 1_000).map(|n| case.queue(&format!("gone-{n}"))).collect();
        let words: Vec<&str> = std::iter::once("DEL").chain(queues.iter().map(String::as_str)).collect();
        case.cmd::<i64>(&words);
    }
    let (mut calls, mut dispatched) = (0, 0);
    let wait = loop {
        let reply = case.drain_at(T0 + 100 * MS);
        (calls, dispatched) = (calls + 1, dispatched + reply.dispatched);
        if reply.wait_us != 0 {
            break reply.wait_us;
        }
    };
    println!("{calls} calls for {GONE} children");
    assert_eq!((dispatched, wait), (1, 100 * MS as i64), "the turn is still there for the one that stayed");
    assert!((GONE / 100..GONE / 100 * 11 / 10).contains(&calls), "each call looks at a batch: {calls}");
    audit(&mut case);
    flow::run(&mut case, T0 + 100 * MS, T0 + 2 * S);
    assert_eq!(left(&mut case, "stays"), [100 * MS, 200 * MS, 300 * MS]);
    case.settle_at(T0 + 20 * S);
    let names = [case.key("wait:b{default}"), case.key("waiting"), case.key("budgets"), case.key("schedule")];
    let words: Vec<&str> = std::iter::once("EXISTS").chain(names.iter().map(String::as_str)).collect();
    assert_eq!(case.cmd::<i64>(&words), 0, "nothing is left of them");
}

#[test]
fn a_budget_of_ten_thousand_a_second_with_a_hundred_thousand_children_lets_out_just_that() {
    const CHILDREN: usize = 100_000;
    let mut case = Case::with(
        "[limits]\nmax_ready = 1000000\n[[budget]]\nmatch = 'b'\nrate = '10000/s'\n\
         [[bucket]]\nmatch = '*'\nrate = '10/s'\nwithin = 'b'\n",
    );
    case.settle_at(T0);
    for from in (0..CHILDREN).step_by(10_000) {
        fill(&mut case, (from..from + 10_000).map(|n| format!("c{n}")), 1);
    }
    case.settle_at(T0);
    let over = run(&mut case, T0 + 20 * S, || 5 * MS);
    let at = left(&mut case, "c");
    assert_eq!(at.len(), CHILDREN, "each has let out its job");
    assert!(excess(&at, 10_000, S) <= 20 * MS + 1);
    let last = at.last().expect("some left");
    assert!((9_970 * MS..=10_100 * MS).contains(last), "after {last} us, {over}");
    audit(&mut case);
}
