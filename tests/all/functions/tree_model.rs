//! Budgets against a small reference model: random trees of up to four levels, and random sequences of pushes through both doors, drains
//! in time and late, rates, weights and pauses that change, purges; in some trees several quotas of a node, which change too, gates of
//! every kind, and slow-downs of buckets and budgets, of which some are adaptive, and limits of what is in flight, which change while jobs are out, with ordered buckets among them; in every second tree `job_rate`, and submits with ids, costs, deadlines and delays, duplicates, cancels, finds, and
//! adjustments. Workers take jobs, acknowledge them, give them back, or fall silent; some use a plain XACK, and entries are deleted. Every reply, every entry and the whole state are compared after every step, with the clock passed in, and the audit finds
//! nothing.

use std::collections::BTreeMap;

use fastrand::Rng;
use redis::Value;

use super::model::Rate;
use super::tree_delayed::Later;
use super::tree_doors::Asked;
use super::tree_fates::TRIES;
use super::tree_gates::Gate;
use super::tree_quotas::Quota;
use super::tree_reference::{Job, Node, Tree};
use super::tree_slots::random_slots;
use super::tree_slow::slowing_toml;
use crate::rig::{Case, MS, S, Server, T0};

const CAPACITY: usize = 6;

/// What so many sequences must have come to.
const MANY: u64 = 200;
const RARE: [&str; 12] = [
    "an ordered bucket goes on with the job that failed",
    "a bucket has a slot again",
    "a budget has a slot again",
    "a limit is below what is in flight",
    "a slot is free after a plain XACK or XDEL",
    "an entry without a slot is deleted",
    "an entry is deleted before a worker reads it",
    "a lease ends",
    "an incident lowers a rate",
    "the rate of a bucket comes back",
    "the rate of a budget comes back",
    "a due is earlier as all of the rate is back",
];

/// What there is in some trees and not in others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum With {
    /// Jobs are submitted, with costs and deadlines.
    Costs,
    Quotas,
    Gates,
    /// Buckets and budgets are slowed down.
    Slow,
    /// Some nodes limit what is in flight.
    Slots,
    /// Some buckets are ordered.
    Order,
}

impl With {
    fn of(seed: u64) -> Vec<Self> {
        let all = [
            (Self::Costs, seed % 2 == 1),
            (Self::Quotas, seed % 4 >= 2),
            (Self::Gates, seed % 3 == 1),
            (Self::Slow, seed % 5 >= 2),
            (Self::Slots, seed % 7 >= 3),
            (Self::Order, seed % 7 >= 5),
        ];
        all.into_iter().filter(|(_, is)| *is).map(|(it, _)| it).collect()
    }
}

pub(super) struct Pair {
    pub(super) case: Case,
    pub(super) tree: Tree,
    pub(super) now: u64,
    /// When something happened last.
    told: u64,
    pub(super) rng: Rng,
    pub(super) pushed: u64,
    with: Vec<With>,
    /// The jobs that were submitted, with their buckets.
    pub(super) submitted: Vec<(usize, String)>,
    /// The entries that workers hold, in their order, and whether it was told what they really cost.
    pub(super) taken: Vec<(String, bool)>,
    /// How many jobs had left when a rate changed last.
    pub(super) steady_since: usize,
    /// What was done, for whoever reads a failure.
    pub(super) story: Vec<String>,
}

pub(super) fn random_rate(rng: &mut Rng) -> Rate {
    let period = [100 * MS, 700 * MS, S, S, 10 * S][rng.usize(0..5)];
    Rate { count: u128::from(rng.u64(1..30)), period: u128::from(period) }
}

/// Of each node in so many some quotas, no two of them with the same windows.
pub(super) fn random_quotas(rng: &mut Rng, has_quotas: bool, one_in: u8) -> Vec<Quota> {
    let mut quotas: Vec<Quota> = Vec::new();
    for _ in 0..if has_quotas && rng.u8(0..one_in) == 0 { rng.usize(1..4) } else { 0 } {
        let quota = Quota::random(rng);
        if quotas.iter().all(|known| known.name() != quota.name()) {
            quotas.push(quota);
        }
    }
    quotas
}

/// A tree: budgets first, each behind its parent, then buckets.
fn random_tree(rng: &mut Rng, with: &[With]) -> Tree {
    let has_costs = with.contains(&With::Costs);
    let mut nodes: Vec<Node> = Vec::new();
    let (budgets, buckets) = (rng.usize(1..6), rng.usize(2..9));
    let level = |nodes: &[Node], n: usize| std::iter::successors(nodes[n].parent, |n| nodes[*n].parent).count() + 1;
    for n in 0..budgets + buckets {
        let is_budget = n < budgets;
        let most = if is_budget { 2 } else { 3 };
        let parents: Vec<usize> = (0..n.min(budgets)).filter(|parent| level(&nodes, *parent) <= most).collect();
        let is_root = n == 0 || is_budget && rng.u8(0..4) == 0 || !is_budget && rng.u8(0..10) == 0;
        let is_ordered = !is_budget && with.contains(&With::Order) && rng.bool();
        let id = if is_budget { format!("{{b{n}}}") } else { format!("q{n}") };
        let parent = if is_root { None } else { Some(parents[rng.usize(0..parents.len())]) };
        let node = Node::new(&id, parent, random_rate(rng));
        let quotas = random_quotas(rng, with.contains(&With::Quotas), 3);
        let is_adaptive = rng.bool();
        let gates = (0..rng.usize(0..4)).filter(|_| with.contains(&With::Gates) && !is_budget);
        let gates = gates.map(|_| Gate::random(rng)).collect();
        nodes.push(Node {
            quotas,
            is_adaptive,
            gates,
            // With costs what a node makes up for by default changes with each job: there it is said.
            job_rate: (has_costs && rng.u8(0..3) == 0).then(|| random_rate(rng)),
            catch_up: [Some(90 * MS), Some(20 * MS), Some(0), None, None, None]
                [rng.usize(0..if has_costs { 3 } else { 6 })],
            weight: rng.u32(1..5),
            slots: if is_ordered { Some(1) } else { random_slots(rng, with.contains(&With::Slots)) },
            later: Later { is_ordered, ..Later::default() },
            is_ordered,
            ..node
        });
    }
    Tree::new(nodes, if has_costs { rng.usize(2..7) } else { CAPACITY })
}

pub(super) fn name(id: &str) -> &str {
    id.trim_matches(['{', '}'])
}

pub(super) fn toml(tree: &Tree) -> String {
    let entry = |node: &Node| {
        let kind = if node.queue.is_some() { "bucket" } else { "budget" };
        let Rate { count, period } = node.rate;
        let mut text = format!(
            "[[{kind}]]\nmatch = '{}'\nrate = '{count}/{}ms'\nweight = {}\n{}",
            name(&node.id),
            period / 1_000,
            node.weight,
            slowing_toml(node.is_adaptive),
        );
        if let Some(parent) = node.parent {
            text += &format!("within = '{}'\n", name(&tree.nodes[parent].id));
        }
        if let Some(Rate { count, period }) = node.job_rate {
            text += &format!("job_rate = '{count}/{}ms'\n", period / 1_000);
        }
        if let Some(slots) = node.slots {
            text += &format!("concurrency = {slots}\n");
        }
        if node.is_ordered {
            text += "ordered = true\n";
        }
        let list = |of: Vec<String>| of.join(", ");
        if !node.quotas.is_empty() {
            text += &format!("quota = [{}]\n", list(node.quotas.iter().map(|quota| quota.toml()).collect()));
        }
        if !node.gates.is_empty() {
            text += &format!("admit = [{}]\n", list(node.gates.iter().map(|gate| gate.toml.clone()).collect()));
        }
        if let Some(us) = node.catch_up {
            text += &format!("catch_up = '{}ms'\n", us / 1_000);
        }
        text
    };
    format!(
        "[defaults]\ncost_max = 1000\ncapacity = {}\ndedup = '7d'\nattempts = {}\nbackoff = {{ initial = '{}ms', max = '{}ms' }}\n{}",
        tree.capacity,
        TRIES.attempts,
        TRIES.backoff.0 / MS,
        TRIES.backoff.1 / MS,
        tree.nodes.iter().map(entry).collect::<String>()
    )
}

impl Pair {
    fn new(server: &Server, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let with = With::of(seed);
        let tree = random_tree(&mut rng, &with);
        let mut flush = Case { redis: server.connect(), prefix: String::new() };
        let _: Value = flush.cmd(&["FLUSHALL"]);
        let toml = toml(&tree);
        let case = Case::on(server, &toml);
        Self { rng, with, ..Self::of(case, tree, format!("seed {seed}\n{toml}")) }
    }

    /// A tree and the space that is configured so, before anything happened there.
    pub(super) fn of(case: Case, tree: Tree, told: String) -> Self {
        Self {
            case,
            tree,
            now: T0 + 1,
            told: T0 + 1,
            rng: Rng::with_seed(0),
            pushed: 0,
            with: Vec::new(),
            submitted: Vec::new(),
            taken: Vec::new(),
            steady_since: 0,
            story: vec![told],
        }
    }

    pub(super) fn has(&self, it: With) -> bool {
        self.with.contains(&it)
    }

    /// A line of the story. What happened before has taken budgets without work out of their lines.
    pub(super) fn tell(&mut self, what: &str) {
        self.tree.settle_emptied(self.told);
        self.told = self.now;
        self.story.push(format!("{} {what}", self.now - T0));
    }

    pub(super) fn any(&mut self, of: impl Fn(&Node) -> bool) -> usize {
        let all: Vec<usize> = (0..self.tree.nodes.len()).filter(|n| of(&self.tree.nodes[*n])).collect();
        all[self.rng.usize(0..all.len())]
    }

    fn jobs(&mut self) -> Vec<String> {
        let n = self.rng.u64(1..5);
        self.next_jobs(n)
    }

    /// So many jobs, no two of which are the same.
    pub(super) fn next_jobs(&mut self, n: u64) -> Vec<String> {
        let first = self.pushed;
        self.pushed += n;
        (first..self.pushed).map(|n| n.to_string()).collect()
    }

    pub(super) fn settle(&mut self) {
        self.case.settle_at(self.now);
        self.tree.settle(self.now);
    }

    fn step(&mut self) {
        self.now += 1 + self.rng.u64(0..50);
        match self.rng.u8(0..30) {
            0 if !self.submitted.is_empty() => {
                if self.rng.bool() {
                    self.cancel();
                } else {
                    self.find();
                }
            }
            20 => self.purge(),
            22 if self.has(With::Slow) => self.slow_down(),
            19 | 23 if self.has(With::Slow) => self.stays_busy(),
            21 if self.has(With::Costs) => self.adjust(),
            0..5 if self.has(With::Costs) => {
                let n = self.any(|node| node.queue.is_some());
                for _ in 0..self.rng.usize(1..5) {
                    self.now += 1; // so that no two jobs are accepted at the same moment
                    self.submit(n);
                }
            }
            0..5 => {
                let n = self.any(|node| node.queue.is_some());
                self.push(n);
            }
            5..8 => {
                let (n, jobs) = (self.any(|node| node.queue.is_some()), self.jobs());
                self.plain_push(n, &jobs);
            }
            16 if self.has(With::Slots) => self.set_slots(),
            8..16 => {
                let times = self.rng.usize(1..12);
                self.settle_often(times);
            }
            16..18 => {
                self.now += [MS, 30 * MS, 400 * MS, 5 * S][self.rng.usize(0..4)];
                self.tell("late");
                self.settle();
            }
            24.. => self.work(),
            18 => self.set(),
            _ => self.pause(),
        }
        if self.has(With::Slots) && self.rng.u8(0..3) == 0 {
            self.work();
        }
        self.compare();
    }

    /// A push through the atomic door.
    pub(super) fn push(&mut self, n: usize) {
        let jobs = self.jobs();
        self.push_jobs(n, &jobs);
    }

    pub(super) fn push_jobs(&mut self, n: usize, jobs: &[String]) {
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("push {id} {jobs:?}"));
        let texts: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let plain: Vec<Job> = jobs.iter().map(|job| Job::plain(job)).collect();
        let (told, expected) = (self.case.push_at(self.now, &id, &texts), self.tree.push(n, &plain, self.now));
        assert_eq!(told, expected, "{}", self.story.join("\n"));
        self.keep_gates(n);
    }

    /// A plain push, and a daemon that hears of it.
    pub(super) fn plain_push(&mut self, n: usize, jobs: &[String]) {
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("lpush {id} {jobs:?}"));
        let texts: Vec<&str> = jobs.iter().map(String::as_str).collect();
        self.case.lpush(&id, &texts);
        self.case.wake_at(self.now, &[&id]);
        self.tree.wake(n, jobs, self.now);
        self.settle();
    }

    /// Time passes so many times from due to due, as a daemon does that is never late.
    pub(super) fn settle_often(&mut self, times: usize) {
        for _ in 0..times {
            let Some(due) = self.tree.first_due() else { break };
            self.now = self.now.max(due);
            self.tell("settle");
            self.settle();
        }
    }

    /// What operators change finds no delayed job whose time has come and that no call has seen.
    pub(super) fn settle_what_came(&mut self) {
        let look = self.tree.nodes.iter().filter_map(|node| node.later.next_look()).min();
        if look.is_some_and(|look| look <= self.now) {
            self.tell("settle");
            self.settle();
        }
    }

    fn submit(&mut self, n: usize) {
        let mut job = self.jobs().remove(0);
        let is_known = |(of, job): &&(usize, String)| *of == n && !self.tree.is_free(n, job, self.now);
        let known: Vec<&String> = self.submitted.iter().filter(is_known).map(|(_, job)| job).collect();
        if !known.is_empty() && self.rng.u8(0..6) == 0 {
            job.clone_from(known[self.rng.usize(0..known.len())]);
        }
        let (id, cost) = (self.tree.nodes[n].id.clone(), [1, 1, 2, 5, 30][self.rng.usize(0..5)]);
        let ttl = [None, None, Some(5), Some(300), Some(4_000)][self.rng.usize(0..5)];
        let delay = [None, None, None, Some(1), Some(40), Some(300), Some(4_000)][self.rng.usize(0..7)];
        let asked = Asked { cost, ttl, delay };
        self.tell(&format!("submit {id} {job} {asked:?}"));
        let mut words = vec!["ID".to_owned(), job.clone(), "COST".into(), cost.to_string()];
        for (option, value) in [("TTL", ttl), ("DELAY", delay)] {
            words.extend(value.into_iter().flat_map(|ms| [option.to_owned(), ms.to_string()]));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = self.case.submit_at(self.now, &id, &job, &words);
        let (five, verdict, by) = self.tree.submit(n, &job, asked, self.now);
        let story = || self.story.join("\n");
        assert_eq!((told.five, told.verdict.as_str(), &told.by), (five, verdict, &by), "{}", story());
        assert!(told.expected_ms >= told.five[4], "{told:?}\n{}", story());
        self.keep_gates(n);
        if five[0] == 1 && verdict != "duplicate" {
            self.submitted.push((n, job));
        }
    }

    /// Their keys expire by the clock of the server: here that is another one.
    fn keep_gates(&mut self, n: usize) {
        let node = &self.tree.nodes[n];
        let nth = |i: usize| node.gates[..=i].iter().filter(|gate| gate.kind == node.gates[i].kind).count();
        let name = |i: usize| format!("gate:{}:{}:{}", node.gates[i].kind, nth(i), node.id);
        for name in (0..node.gates.len()).map(name).collect::<Vec<_>>() {
            let key = self.case.key(&name);
            let _: i64 = self.case.cmd(&["PERSIST", &key]);
        }
    }
}

/// Random trees, and sixty random steps in each. Replies what happened, and how often.
pub(super) fn walk(server: &Server, seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, usize> {
    let mut happened: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in seeds {
        let mut pair = Pair::new(server, seed);
        for _ in 0..60 {
            pair.step();
        }
        pair.keeps_promise();
        for (what, times) in pair.tree.happened {
            *happened.entry(what).or_default() += times;
        }
    }
    happened
}

pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_tree_does_what_the_reference_does() {
    crate::roles::as_roles();
    let (first, seeds) = (number("DRIPD_SEED").unwrap_or(0), number("DRIPD_SEEDS").unwrap_or(20));
    let happened = walk(&Server::start(&[]), first..first + seeds);
    println!("{happened:?}");
    for what in RARE {
        assert!(seeds < MANY || happened.contains_key(what), "{what}: never");
    }
}
