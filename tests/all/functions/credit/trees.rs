//! The law of credit below a budget: children that are honest beside one that says too much, too little, or nothing. The functions must share
//! as the law does.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::law::Law;
use crate::rig::{Case, T0};

const RATE: f64 = 1_500.0;
const SECONDS: f64 = 150.0;
const WARM: f64 = 60.0;
const CATCH_UP: f64 = 0.020;

/// A child of the budget; its jobs always wait.
#[derive(Clone, Copy)]
struct Child {
    name: &'static str,
    weight: u32,
    says: u64,
    costs: u64,
    /// So many answers come together.
    burst: usize,
    /// Whether its workers say what its jobs cost.
    is_corrected: bool,
    /// Whether each of its jobs comes into a bucket of its own.
    is_once: bool,
}

const HONEST: Child =
    Child { name: "honest", weight: 1, says: 100, costs: 100, burst: 1, is_corrected: true, is_once: false };

fn other(says: u64, costs: u64) -> Child {
    Child { name: "other", says, costs, ..HONEST }
}

struct World {
    name: &'static str,
    other: Child,
}

#[rustfmt::skip] // a row each
fn worlds() -> Vec<World> {
    vec![
        World { name: "3 times over", other: other(300, 100) },
        World { name: "10 times over", other: other(1_000, 100) },
        World { name: "40 times over", other: other(4_000, 100) },
        World { name: "10 times over, 40 answers at once", other: Child { burst: 40, ..other(1_000, 100) } },
        World { name: "10 times under", other: other(10, 100) },
        World { name: "never corrects, 3 times over", other: Child { is_corrected: false, ..other(300, 100) } },
        World { name: "weight 3, 3 times over", other: Child { weight: 3, ..other(300, 100) } },
        World { name: "each job in a new bucket", other: Child { is_once: true, ..other(300, 120) } },
    ]
}

/// The units that really left after the warm-up, a second, of each child.
type Shares = BTreeMap<&'static str, f64>;

const LATENCY: f64 = 2.0;

fn by_functions(children: &[Child]) -> Shares {
    let mut toml =
        "[limits]\nmax_ready = 1000000\n[defaults]\ncost_max = 100000\nlease = '7d'\nrate = '1500/s'\nwithin = 'up'\n\
                    [[budget]]\nmatch = 'up'\nrate = '1500/s'\n"
            .to_owned();
    for child in children {
        toml += &format!("[[bucket]]\nmatch = '{}*'\nweight = {}\n", child.name, child.weight);
    }
    let mut case = Case::with(&toml);
    let (mut now, mut n, mut shares) = (T0, 0, Shares::new());
    let mut flight: BTreeMap<(u64, usize), (usize, String)> = BTreeMap::new();
    let mut held: Vec<Vec<String>> = vec![Vec::new(); children.len()];
    let mut come = |case: &mut Case, now: u64, child: &Child| {
        n += 1;
        let bucket = if child.is_once { format!("{}{n}", child.name) } else { child.name.to_owned() };
        case.submit_at(now, &bucket, "x", &["COST", &child.says.to_string()]);
    };
    for child in children {
        come(&mut case, now, child);
    }
    let seconds = |now: u64| (now - T0) as f64 / 1e6;
    while seconds(now) < SECONDS {
        let drained = case.drain_at(now);
        if drained.dispatched > 0 {
            for entry in case.take("ready", 10) {
                let bucket = entry.text("bucket");
                let which = children.iter().position(|child| bucket.starts_with(child.name)).expect("its child");
                let child = &children[which];
                if seconds(now) > WARM {
                    *shares.entry(child.name).or_default() += child.costs as f64 / (SECONDS - WARM);
                }
                if child.is_corrected {
                    flight.insert((now + (LATENCY * 1e6) as u64, flight.len() + held.len() * 1_000), (which, entry.id));
                }
                come(&mut case, now, child);
            }
            continue;
        }
        let due = u64::try_from(drained.wait_us).map_or(u64::MAX, |wait| now + wait.max(1));
        match flight.first_key_value() {
            Some(((back, _), _)) if *back <= due => {
                let ((back, _), (which, id)) = flight.pop_first().expect("the first");
                now = now.max(back);
                held[which].push(id);
                if held[which].len() >= children[which].burst {
                    for id in held[which].drain(..) {
                        let args = [now.to_string(), id, "COST".into(), children[which].costs.to_string()];
                        assert_eq!(case.fcall::<i64>("drip__ack", &["ready"], &args), 1);
                    }
                }
            }
            _ => now = due,
        }
    }
    let wrong: Vec<String> = case.fcall("drip__audit", &["policy"], &[now.to_string()]);
    assert_eq!(wrong, Vec::<String>::new());
    shares
}

/// A child by the law.
struct Node {
    law: Law,
    tag: f64,
    last: f64,
}

/// What came back of a job: whose it is, its bases, and how far its tag went.
struct Back {
    which: usize,
    said: f64,
    base: f64,
}

/// The law: self-clocked shares below a budget that is charged what its children were charged.
fn by_law(children: &[Child]) -> Shares {
    let (interval, mut rng) = (1.0 / RATE, Rng::with_seed(1));
    let (mut up, mut clock, mut largest, mut mean) = (Law::default(), 0.0_f64, 1.0_f64, 1.0_f64);
    let mut nodes: Vec<Node> = children
        .iter()
        .map(|child| Node { law: Law::default(), tag: 1.0 / f64::from(child.weight) - 1.0, last: 1.0 })
        .collect();
    let (mut now, mut shares) = (0.0_f64, Shares::new());
    let mut flight: BTreeMap<(u64, u64), Back> = BTreeMap::new();
    let mut held: Vec<Vec<Back>> = children.iter().map(|_| Vec::new()).collect();
    while now < SECONDS {
        let ends = |node: &Node, child: &Child| node.tag + 1.0 / f64::from(child.weight);
        while up.due <= now + 1e-9 {
            let ready = (0..nodes.len()).filter(|n| nodes[*n].law.due <= now + 1e-9);
            let Some(which) =
                ready.min_by(|a, b| ends(&nodes[*a], &children[*a]).total_cmp(&ends(&nodes[*b], &children[*b])))
            else {
                break;
            };
            let (child, node) = (&children[which], &mut nodes[which]);
            let weight = f64::from(child.weight);
            clock = clock.max(ends(node, child));
            let charged = node.law.charge(child.says as f64, interval, 0.0);
            let most = CATCH_UP.max(interval).max(2.0 * interval * largest).max(node.last * interval);
            node.last = charged;
            node.law.due = node.law.due.max(now - most) + charged * interval;
            let above = up.charge(charged, interval, 0.0);
            up.due = up.due.max(now - CATCH_UP) + above * interval;
            node.tag += charged / weight;
            largest = largest.max(charged / weight);
            mean += (charged - mean) / 16.0;
            if child.is_once {
                (node.law, node.last) = (Law::default(), 1.0);
                node.tag = clock - mean + (2.0 * mean - 1.0) / weight;
            }
            if now > WARM {
                *shares.entry(child.name).or_default() += child.costs as f64 / (SECONDS - WARM);
            }
            if child.is_corrected {
                let back = Back { which, said: child.says as f64, base: charged };
                flight.insert((((now + LATENCY) * 1e6) as u64, rng.u64(..)), back);
            }
        }
        let dues = nodes.iter().map(|node| node.law.due).chain([up.due]).filter(|due| *due > now + 1e-9);
        let first = flight.first_key_value().map(|((back, _), _)| *back as f64 / 1e6);
        now = dues.chain(first.map(|back| back.max(now))).chain([now + 0.5]).fold(f64::MAX, f64::min);
        while let Some(((back, _), _)) = flight.first_key_value()
            && *back as f64 / 1e6 <= now
        {
            let (_, back) = flight.pop_first().expect("the first");
            let which = back.which;
            held[which].push(back);
            if held[which].len() < children[which].burst {
                continue;
            }
            for Back { said, base, .. } in held[which].drain(..) {
                let real = children[which].costs as f64;
                up.correct(base, real, interval);
                if !children[which].is_once {
                    let node = &mut nodes[which];
                    node.law.correct(said, real, interval);
                    let tag = node.tag + (real - base) / f64::from(children[which].weight);
                    node.tag = tag.max(node.tag.min(clock));
                }
            }
        }
    }
    shares
}

#[test]
fn below_a_budget_an_honest_child_keeps_its_share_beside_a_liar() {
    let chosen = std::env::var("DRIPD_WORLD").unwrap_or_default();
    for world in worlds().into_iter().filter(|world| world.name.contains(&chosen)) {
        let children = [HONEST, world.other];
        let (found, expected) = (by_functions(&children), by_law(&children));
        println!("{}: {found:?}, by the law {expected:?}", world.name);
        for (name, expected) in expected {
            let found = found.get(name).copied().unwrap_or_default();
            assert!((found - expected).abs() <= 0.05 * RATE * 0.5, "{}: {name} {found}, {expected}", world.name);
        }
    }
}
