//! The worlds: a few nodes each, and what can happen to them.

use std::fmt;

use super::super::model::Rate;
use super::super::tree_model::{Pair, toml};
use super::super::tree_quotas::Quota;
use super::super::tree_reference::{Node, Tree};
use crate::rig::{Case, MS, S, rand_u64, record};

/// A world: its nodes, each budget behind the one above it.
pub(super) struct World {
    pub(super) name: &'static str,
    nodes: fn() -> Vec<Node>,
}

pub(super) const WORLDS: [&World; 5] = [
    &World { name: "two buckets", nodes: two_buckets },
    &World { name: "two buckets that hold slots, one of them ordered", nodes: slots },
    &World { name: "two buckets under one budget", nodes: one_budget },
    &World { name: "two buckets under one budget with a quota and slots", nodes: narrow_budget },
    &World { name: "two levels", nodes: two_levels },
];

/// Jobs that wait in a bucket, and with workers, at most: more of them are the same again.
const MOST: usize = 2;

/// Bodies of seven digits, which stand for nothing else (`super::digest`).
const FIRST_JOB: u64 = 7_000_000;

fn rate(count: u64, period: u64) -> Rate {
    Rate { count: count.into(), period: period.into() }
}

fn node(id: &str, parent: Option<usize>, count: u64, period: u64) -> Node {
    Node { catch_up: Some(20 * MS), ..Node::new(id, parent, rate(count, period)) }
}

fn two_buckets() -> Vec<Node> {
    vec![node("a", None, 2, S), Node { is_adaptive: true, ..node("b", None, 1, S) }]
}

fn slots() -> Vec<Node> {
    let mut ordered = Node { slots: Some(1), is_ordered: true, ..node("b", None, 5, S) };
    ordered.later.is_ordered = true;
    vec![Node { slots: Some(1), ..node("a", None, 2, S) }, ordered]
}

fn one_budget() -> Vec<Node> {
    vec![node("{p}", None, 3, S), Node { weight: 2, ..node("a", Some(0), 2, S) }, node("b", Some(0), 5, S)]
}

fn narrow_budget() -> Vec<Node> {
    let quotas = vec![Quota { count: 2, period: 5 * S, hours: 0 }];
    let budget = Node { quotas, slots: Some(1), is_adaptive: true, ..node("{p}", None, 3, S) };
    vec![budget, node("a", Some(0), 2, S), node("b", Some(0), 5, S)]
}

fn two_levels() -> Vec<Node> {
    let below = Node { slots: Some(1), ..node("{p}", Some(0), 2, S) };
    vec![node("{top}", None, 3, S), below, node("a", Some(1), 5, S), node("b", Some(0), 2, S)]
}

/// Its configuration is put into force.
fn reload(pair: &mut Pair) {
    let (now, id, record) = (pair.now.to_string(), format!("{:016x}", rand_u64()), pair.story[0].clone());
    let _: i64 = pair.case.fcall("drip__policy", &["policy"], &[now, id, record, "replace".to_owned()]);
}

/// What happens. A node has the number that it has in its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A job is pushed through the atomic door.
    Push(usize),
    /// With a plain `LPUSH`, and a daemon hears of it.
    PlainPush(usize),
    /// A daemon calls, until nothing is due.
    Drain,
    /// Time passes until something is due.
    Next,
    /// Longer than anything may make up for.
    Late,
    /// A worker is done with the oldest job that workers hold.
    Ack,
    /// It gives it back.
    Fail,
    /// The other side turned it away: its bucket, or the budget at the top, is slowed down.
    Throttled { in_budget: bool },
    /// It falls silent, and its lease ends.
    LeaseEnds,
    /// An operator pauses a node, or lets it go on.
    Pause(usize),
    /// Sets another rate, or takes that back.
    SetRate(usize),
    /// Slows a node down, or ends that.
    Slow(usize),
    /// The same configuration is put into force again, as by a daemon that starts.
    Reload,
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self:?}")
    }
}

/// All that can happen in this state.
pub(super) fn events(pair: &Pair) -> Vec<Event> {
    let tree = &pair.tree;
    let nodes = 0..tree.nodes.len();
    let buckets: Vec<usize> = nodes.clone().filter(|n| tree.nodes[*n].queue.is_some()).collect();
    let mut events = Vec::new();
    for n in buckets.iter().copied().filter(|n| tree.nodes[*n].queue.as_ref().is_some_and(|jobs| jobs.len() < MOST)) {
        events.extend([Event::Push(n), Event::PlainPush(n)]);
    }
    if let Some(due) = tree.first_due() {
        events.push(if due <= pair.now { Event::Drain } else { Event::Next });
    }
    events.push(Event::Late);
    if tree.undone().next().is_some() {
        events.extend([Event::Ack, Event::Fail, Event::Throttled { in_budget: false }, Event::LeaseEnds]);
        if tree.nodes[0].queue.is_none() {
            events.push(Event::Throttled { in_budget: true });
        }
    }
    for n in nodes {
        events.extend([Event::Pause(n), Event::SetRate(n), Event::Slow(n)]);
    }
    events.push(Event::Reload);
    events
}

impl World {
    fn tree(&self) -> Tree {
        Tree::new((self.nodes)(), MOST)
    }

    /// Its configuration as it is stored.
    pub(super) fn record(&self) -> String {
        record(&toml(&self.tree()))
    }

    /// The world before anything happens, in a space of its own.
    pub(super) fn begin(&self, case: Case, record: &str) -> Pair {
        let mut pair = Pair::of(case, self.tree(), record.to_owned());
        pair.pushed = FIRST_JOB;
        reload(&mut pair);
        pair.settle();
        pair
    }

    /// It happens, in the functions and in the reference. `false`: nothing was done, as nobody says what follows.
    pub(super) fn apply(&self, pair: &mut Pair, event: Event) -> bool {
        match event {
            Event::Push(n) => {
                let jobs = pair.next_jobs(1);
                pair.push_jobs(n, &jobs);
            }
            Event::PlainPush(n) => {
                let jobs = pair.next_jobs(1);
                pair.plain_push(n, &jobs);
            }
            Event::Drain => pair.settle(),
            Event::Next => {
                if let Some(due) = pair.tree.first_due() {
                    pair.now = pair.now.max(due);
                }
            }
            Event::Late => pair.now += 700 * MS,
            Event::Ack | Event::Fail | Event::Throttled { .. } | Event::LeaseEnds => {
                let Some(at) = pair.take(1).first().copied() else { return false };
                return Self::work(pair, at, event);
            }
            Event::Pause(n) => {
                pair.settle_what_came();
                pair.pauses(n);
            }
            Event::SetRate(n) => {
                let configured = (self.nodes)()[n].rate;
                let other = Rate { count: configured.count * 2, period: configured.period };
                if pair.tree.nodes[n].rate == configured {
                    return pair.sets_rate(n, other);
                }
                return pair.unsets_rate(n, configured);
            }
            Event::Slow(n) => {
                pair.settle_what_came();
                let is_slowed = pair.tree.slowed_till(n, pair.now) > 0;
                let is_below = |b: &usize| *b == n || pair.tree.above(*b).contains(&n);
                let bucket = (0..pair.tree.nodes.len()).filter(is_below).find(|b| pair.tree.nodes[*b].queue.is_some());
                pair.slows(bucket.expect("each budget has one"), n, if is_slowed { None } else { Some(400) });
            }
            Event::Reload => {
                reload(pair);
                pair.settle();
            }
        }
        true
    }

    fn work(pair: &mut Pair, at: usize, event: Event) -> bool {
        match event {
            Event::Ack => {
                let args = [pair.now.to_string(), pair.taken[at].0.clone()];
                pair.acks(at, &args);
                true
            }
            Event::Fail => pair.fails(at, None, false, false),
            Event::Throttled { in_budget } => {
                let n = pair.tree.bucket_of(&pair.tree.left[at]);
                let slowed = if in_budget { pair.tree.above(n).last().copied() } else { Some(n) };
                slowed.is_some_and(|slowed| {
                    pair.turned_away(at, slowed, Some(400));
                    true
                })
            }
            _ => pair.lease_ends(at),
        }
    }
}
