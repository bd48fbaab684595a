//! The reference model of `tree_model`: budgets, buckets and shares as the contract has them, a list of nodes and a loop. Every
//! question is answered by walking up the tree or over all nodes; nothing is remembered that follows from something else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::model::{Paid, Rate, Slow};
use super::tree_delayed::Later;
use super::tree_fates::Dead;
use super::tree_gates::Gate;
pub(super) use super::tree_jobs::{Job, Left};
use super::tree_quotas::{Quota, Windows};

/// Where a node with work waits, or what is known of one without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    Nowhere,
    /// For its own due, or to be looked at.
    Schedule(u64),
    /// For its share of the budget above it: the end of its next job, and its due.
    Share(f64, u64),
    Paused,
    /// As many of its jobs are in flight as may be; its due.
    Full(u64),
}

/// The end of a child whose next job nothing overtakes: before all others. What it pays follows its own.
pub(super) const FRONT: f64 = -2.0;

/// A bucket or a budget.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// As sets have it: a budget stands in braces.
    pub(super) id: String,
    pub(super) parent: Option<usize>,
    pub(super) rate: Rate,
    pub(super) job_rate: Option<Rate>,
    pub(super) quotas: Vec<Quota>,
    /// What was used of the windows of quotas, also of those that it has no more.
    pub(super) windows: Windows,
    /// What the job costs that a quota keeps waiting.
    pub(super) needs: u64,
    /// What slows it down, or did lately.
    pub(super) slow: Option<Slow>,
    /// `slow = { adaptive = true }`: that also leaves less of its rate.
    pub(super) is_adaptive: bool,
    /// Of a bucket: before its doors that run code.
    pub(super) gates: Vec<Gate>,
    /// As configured.
    pub(super) catch_up: Option<u64>,
    pub(super) weight: u32,
    /// At most so many of its jobs are in flight.
    pub(super) slots: Option<usize>,
    /// Of a bucket: its jobs finish in their order.
    pub(super) is_ordered: bool,
    pub(super) is_paused: bool,
    /// The jobs of a bucket; none: it is a budget.
    pub(super) queue: Option<VecDeque<Job>>,
    /// The jobs of a bucket that wait for their time, or back off.
    pub(super) later: Later,
    /// The ids that were accepted: here nothing of them is ever forgotten.
    pub(super) ids: BTreeSet<String>,
    /// Those of them whose jobs were taken back, or gone before they ever left.
    pub(super) dropped: BTreeSet<String>,
    /// What its last job paid, where that was not one interval.
    pub(super) paid: Option<Paid>,
    pub(super) place: Place,
    /// When its next job may leave; 0: at once.
    pub(super) due: u64,
    /// When it last went on after a pause, or will when the window of its quota or a slow-down ends. Of a bucket the latter two alone.
    pub(super) went_on: u64,
    /// Its place among the children of its parent, as long as it is known.
    pub(super) tag: Option<f64>,
    /// Of its children: the highest end that was served.
    pub(super) clock: f64,
    /// Of its children: the largest step of a tag so far.
    pub(super) largest: f64,
    /// Of its children: the mean of such steps, of a child of weight 1, "running, over 16".
    pub(super) mean: f64,
}

impl Node {
    /// A bucket, or where its id has braces a budget, of which nothing but its rate is said and to which nothing has happened.
    pub(super) fn new(id: &str, parent: Option<usize>, rate: Rate) -> Self {
        Self {
            id: id.to_owned(),
            parent,
            rate,
            job_rate: None,
            quotas: Vec::new(),
            windows: Windows::new(),
            needs: 1,
            slow: None,
            is_adaptive: false,
            gates: Vec::new(),
            catch_up: None,
            weight: 1,
            slots: None,
            is_ordered: false,
            is_paused: false,
            queue: (!id.starts_with('{')).then(VecDeque::new),
            later: Later::default(),
            ids: BTreeSet::new(),
            dropped: BTreeSet::new(),
            paid: None,
            place: Place::Nowhere,
            due: 0,
            went_on: 0,
            tag: None,
            clock: 0.0,
            largest: 1.0,
            mean: 1.0,
        }
    }
}

/// The tree. A node stands behind its parent in the list.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    pub(super) capacity: usize,
    pub(super) left: Vec<Left>,
    /// What each of them was charged by each node.
    pub(super) charges: Vec<BTreeMap<usize, u64>>,
    /// Those of them that a worker is done with, by their number.
    pub(super) done: BTreeSet<usize>,
    /// Of which nodes they hold slots, the bucket first, by their number.
    pub(super) held: BTreeMap<usize, Vec<usize>>,
    pub(super) dead: Vec<Dead>,
    /// Of jobs that met the dues of budgets at rest that may have been forgotten by then, one sooner than another: the dues that they may have
    /// met without these, by their number.
    pub(super) without_over: BTreeMap<usize, Vec<u64>>,
    /// Jobs whose deadline was over when their turn came, with their buckets.
    pub(super) expired: Vec<(String, String)>,
    /// How often what is rare has happened.
    pub(super) happened: BTreeMap<&'static str, usize>,
    /// The budgets whose turn it is, from the one on the schedule down.
    pub(super) serving: Vec<usize>,
    /// With which end each of them, and the bucket, was picked.
    picked: Vec<f64>,
    /// Nodes whose next job found too little left of a quota above: nothing overtakes it.
    pub(super) go_first: BTreeSet<usize>,
}

/// As many jobs as a call lets out of one node while others are due, and of one that is alone: of a batch of 100.
pub(super) const QUARTER: usize = 25;
const BATCH: usize = 100;

impl Tree {
    pub(super) fn new(nodes: Vec<Node>, capacity: usize) -> Self {
        Self {
            nodes,
            capacity,
            left: Vec::new(),
            charges: Vec::new(),
            done: BTreeSet::new(),
            held: BTreeMap::new(),
            dead: Vec::new(),
            without_over: BTreeMap::new(),
            expired: Vec::new(),
            happened: BTreeMap::new(),
            serving: Vec::new(),
            picked: Vec::new(),
            go_first: BTreeSet::new(),
        }
    }

    /// What a node may make up for: as configured, else 20 ms, or inside a budget its own interval or two of its parent's.
    pub(super) fn catch_up(&self, n: usize) -> u64 {
        let node = &self.nodes[n];
        let by_default = |parent: usize| 20_000.max(node.rate.interval()).max(2 * self.nodes[parent].rate.interval());
        node.catch_up.unwrap_or_else(|| node.parent.map_or(20_000, by_default))
    }

    /// The budgets above a node, the nearest first.
    pub(super) fn above(&self, n: usize) -> Vec<usize> {
        std::iter::successors(self.nodes[n].parent, |n| self.nodes[*n].parent).collect()
    }

    /// When a node, or anything above it, last went on: what it waited until then was no lateness. What is still to come above is the
    /// place of that one.
    fn went_on(&self, n: usize, now: u64) -> u64 {
        let above = self.above(n).into_iter().map(|b| self.ended(b, now)).max().unwrap_or(0);
        above.min(now).max(self.ended(n, now))
    }

    /// The same of one node. A budget without work waits for nothing, so a window that ends meanwhile is nothing after which it goes on. "A
    /// budget does not know whether somebody waited: its lateness is now - due, at most its catch-up", as after any idle time; promise 1 holds
    /// with that (`tree_promise`).
    fn ended(&self, n: usize, now: u64) -> u64 {
        let went_on = self.nodes[n].went_on;
        if self.is_at_rest(n) && went_on <= now { 0 } else { went_on }
    }

    /// Whether it is a budget that nothing waits for.
    pub(super) fn is_at_rest(&self, n: usize) -> bool {
        self.nodes[n].queue.is_none() && self.nodes[n].place == Place::Nowhere
    }

    /// When a bucket may go: "the node waits until the window's end".
    pub(super) fn due(&self, n: usize) -> u64 {
        self.nodes[n].due.max(self.nodes[n].went_on)
    }

    /// The due that a job meets at a budget.
    pub(super) fn met(&self, n: usize, now: u64) -> u64 {
        self.nodes[n].due.max(self.went_on(n, now)).max(now - self.catch_up(n))
    }

    fn children(&self, n: usize) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(move |child| self.nodes[*child].parent == Some(n))
    }

    /// The child of a budget whose turn it is: the lowest end, of equal ones the earliest due, then by name.
    fn first(&self, n: usize) -> Option<(usize, f64)> {
        let waiting = self.children(n).filter_map(|child| match self.nodes[child].place {
            Place::Share(ends, due) => Some((ends, due, child)),
            _ => None,
        });
        let order = |a: &(f64, u64, usize), b: &(f64, u64, usize)| {
            a.0.total_cmp(&b.0).then((a.1, &self.nodes[a.2].id).cmp(&(b.1, &self.nodes[b.2].id)))
        };
        waiting.min_by(order).map(|(ends, _, child)| (child, ends))
    }

    /// Whether nothing of its own keeps a budget from going.
    fn may_go(&self, n: usize, now: u64) -> bool {
        !self.nodes[n].is_paused && !self.is_full(n, now) && self.met(n, now) <= now
    }

    /// Whether a budget above keeps a node from going: by itself, or because others wait for it whose turn it is.
    fn is_blocked(&self, n: usize, now: u64) -> bool {
        let others_wait = |b: usize| self.nodes[b].place != Place::Nowhere && !self.serving.contains(&b);
        self.above(n).into_iter().any(|b| !self.may_go(b, now) || others_wait(b))
    }

    /// The end of a child's next job.
    fn end_of(&self, n: usize) -> f64 {
        let (node, parent) = (&self.nodes[n], &self.nodes[self.nodes[n].parent.expect("it is a child")]);
        let step = 1.0 / f64::from(node.weight);
        node.tag.map_or(parent.clock - parent.mean + 2.0 * parent.mean / f64::from(node.weight), |tag| {
            tag.max(parent.clock - parent.largest) + step
        })
    }

    /// A bucket without work gets some: one that was away for long enough is as good as new.
    pub(super) fn arrives(&mut self, n: usize) {
        let Some(parent) = self.nodes[n].parent else { return };
        if self.nodes[n].tag.is_some_and(|tag| self.nodes[parent].clock - tag > self.nodes[parent].largest) {
            self.nodes[n].tag = None;
        }
    }

    /// It waits for its share, and what it waits for has work from now on.
    fn come(&mut self, n: usize, due: u64, now: u64) {
        let parent = self.nodes[n].parent.expect("it is a child");
        let ends = if self.go_first.remove(&n) { FRONT } else { self.end_of(n) };
        self.nodes[n].place = Place::Share(ends, due);
        if self.nodes[parent].place == Place::Nowhere {
            if self.is_over(parent, now) {
                self.nodes[parent].due = 0;
            }
            self.nodes[parent].went_on = self.ended(parent, now);
            self.arrives(parent);
            self.has_waiting(parent, now);
            self.stand(parent, now);
        }
    }

    /// A budget with work stands where it must.
    fn stand(&mut self, n: usize, now: u64) {
        let due = self.met(n, now);
        if let Some(place) = self.stopped(n, self.nodes[n].due, now) {
            self.nodes[n].place = place;
        } else if due <= now && self.is_blocked(n, now) {
            self.come(n, due, now);
        } else {
            self.nodes[n].place = Place::Schedule(due);
        }
    }

    pub(super) fn settle_budget(&mut self, n: usize, now: u64) {
        if self.first(n).is_some() {
            self.stand(n, now);
        } else {
            self.rest(n, now);
        }
    }

    /// "Whatever empties such a line takes the budget out of the one above in the same call."
    pub(super) fn settle_emptied(&mut self, now: u64) {
        let is_empty = |tree: &Self, n: &usize| {
            let node = &tree.nodes[*n];
            node.queue.is_none() && node.place != Place::Nowhere && tree.first(*n).is_none()
        };
        while let Some(n) = (0..self.nodes.len()).find(|n| is_empty(self, n)) {
            self.rest(n, now);
        }
    }

    /// A budget without work. What it waited by order is no lateness of its next job either.
    fn rest(&mut self, n: usize, now: u64) {
        self.idles(n, self.nodes[n].due, now);
        let node = &mut self.nodes[n];
        node.place = Place::Nowhere;
        if node.went_on <= now {
            (node.due, node.went_on) = (node.due.max(node.went_on), 0);
        }
    }

    /// Let one job out of a bucket, if it and everything above let it.
    fn let_out(&mut self, n: usize, now: u64) -> bool {
        let due = self.nodes[n].due.max(self.went_on(n, now));
        if !self.has_jobs(n, now) || self.stopped(n, due, now).is_some() || due > now || self.is_blocked(n, now) {
            return false;
        }
        self.nodes[n].due = due;
        self.gives_up(n, now);
        if !self.has_jobs(n, now) || self.is_full(n, now) || !self.has_room(n, now) {
            return false;
        }
        let above = self.above(n);
        let meets = |b: &usize| self.nodes[*b].due.max(self.went_on(*b, now));
        let dues: Vec<u64> = above.iter().map(meets).collect();
        let met = dues.iter().copied().fold(due, u64::max);
        let known = above.iter().filter(|b| !self.is_over(**b, now)).map(meets).fold(due, u64::max);
        let (job, attempt, kept) = self.take_next(n, now).expect("it has jobs");
        // "Its place frees at its turn, without a rate slot." "In the queue it is noticed when its turn comes: without a rate slot."
        if job.is_cancelled || job.is_late(now) {
            if (attempt, kept) == (1, 0) {
                self.nodes[n].dropped.insert(job.body.clone()); // it has never left
            }
            if !job.is_cancelled {
                self.expired.push((self.nodes[n].id.clone(), job.body));
            }
            return true;
        }
        let Job { body, cost, deadline, .. } = job;
        let bucket = self.nodes[n].id.clone();
        self.takes_slots(n);
        if known < met {
            let may_be = dues.into_iter().chain([known]).filter(|due| *due >= known).collect();
            self.without_over.insert(self.left.len(), may_be);
        }
        let charged = self.price(n, cost, due, now);
        self.left.push(Left { bucket, job: body, cost, charged, due: met, at: now, attempt, kept, deadline });
        let mut by_node = BTreeMap::from([(n, charged)]);
        for b in &above {
            let due = self.nodes[*b].due.max(self.went_on(*b, now));
            self.comes_back(*b, now);
            by_node.insert(*b, self.pay(*b, (due, now), charged, now));
            self.uses(*b, cost, now);
            if self.nodes[*b].place == Place::Nowhere && !self.serving.contains(b) {
                self.idles(*b, self.nodes[*b].due, now);
            }
        }
        self.charges.push(by_node);
        self.comes_back(n, now);
        self.pay(n, (due, due), cost, now);
        self.uses(n, cost, now);
        // Shares: each node of the chain at its parent, from the bucket up, with the end by which it was picked.
        let mut picked = self.picked.iter().rev().copied();
        for child in std::iter::once(n).chain(above) {
            let Some(parent) = self.nodes[child].parent else { break };
            let ends = picked.next().unwrap_or_else(|| self.end_of(child));
            let (units, weight) = (self.units(parent, charged), f64::from(self.nodes[child].weight));
            self.nodes[child].tag = Some(ends + (units - 1.0) / weight);
            let up = &mut self.nodes[parent];
            (up.clock, up.largest) = (up.clock.max(ends), up.largest.max(units / weight));
            up.mean += (units - up.mean) / 16.0;
        }
        true
    }

    /// The turn of a bucket that is due.
    pub(super) fn bucket_turn(&mut self, n: usize, most: usize, now: u64) {
        self.looks_at(n, now);
        let is_picked = !self.serving.is_empty();
        let (mut out, left) = (0, self.left.len());
        while out < most && self.let_out(n, now) {
            out += 1;
        }
        self.look_ahead(n, now);
        let due = self.due(n);
        self.nodes[n].place = if self.has_jobs(n, now) {
            self.stopped(n, due, now).unwrap_or(Place::Schedule(due))
        } else {
            self.has_no_work(n, now);
            Place::Nowhere
        };
        let waits = self.nodes[n].place == Place::Schedule(due) && due <= now && self.nodes[n].parent.is_some();
        if waits && (is_picked || self.is_blocked(n, now)) {
            let keeps = is_picked && self.left.len() == left && !self.go_first.contains(&n);
            self.come(n, due, now);
            if let Some(ends) = self.picked.last().filter(|_| keeps) {
                self.nodes[n].place = Place::Share(*ends, due); // "a turn in which no job left changes no tag"
            }
        }
        self.go_first.remove(&n);
    }

    /// A budget picks the child whose turn it is. Replies whether a job left; `None`: no child waits.
    fn pick(&mut self, n: usize, now: u64) -> Option<bool> {
        let (child, ends) = self.first(n)?;
        let ends = if ends == FRONT { self.end_of(child) } else { ends };
        let before = self.left.len();
        self.picked.push(ends);
        if self.nodes[child].queue.is_some() {
            self.bucket_turn(child, 1, now);
        } else {
            if self.may_go(child, now) {
                self.serving.push(child);
                self.pick(child, now);
                self.serving.pop();
            }
            let has_left = self.left.len() > before;
            if self.first(child).is_none() {
                self.rest(child, now);
            } else if !self.may_go(child, now) {
                self.stand(child, now);
            } else if has_left || self.go_first.contains(&child) {
                self.come(child, self.met(child, now), now);
            }
        }
        self.picked.pop();
        Some(self.left.len() > before)
    }

    /// The turn of a budget that is due.
    fn budget_turn(&mut self, n: usize, most: usize, now: u64) {
        let mut turns = 0;
        while turns < most && self.may_go(n, now) && !self.is_blocked(n, now) {
            self.serving.push(n);
            let found = self.pick(n, now);
            self.serving.pop();
            if found.is_none() {
                break;
            }
            turns += 1;
        }
        self.settle_budget(n, now);
    }

    /// The earliest time at which something is due, or the time of a delayed job comes.
    pub(super) fn first_due(&self) -> Option<u64> {
        let due = |node: &Node| if let Place::Schedule(due) = node.place { Some(due) } else { None };
        self.nodes.iter().filter_map(due).chain(self.nodes.iter().filter_map(|node| node.later.next_look())).min()
    }

    /// Calls at one time until nothing is due then.
    pub(super) fn settle(&mut self, now: u64) {
        while self.first_due().is_some_and(|due| due <= now) {
            self.times_come(now);
            self.drain(now);
        }
        self.forgets_slow(now);
    }

    /// One call: all that is due, the longest due first.
    fn drain(&mut self, now: u64) {
        let due = |n: &usize| match self.nodes[*n].place {
            Place::Schedule(due) if due <= now => Some((due, self.nodes[*n].id.clone(), *n)),
            _ => None,
        };
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let mut turns: Vec<_> = all.iter().filter_map(due).collect();
        turns.sort();
        let (mut quota, many) = (BATCH, turns.len());
        let share = if many == 1 { BATCH } else { QUARTER.min(BATCH / many.max(1)).max(1) };
        for (_, _, n) in turns {
            let before = self.left.len();
            if self.nodes[n].queue.is_some() {
                self.bucket_turn(n, share.min(quota), now);
            } else {
                self.budget_turn(n, if many == 1 { quota } else { quota.min(QUARTER) }, now);
            }
            quota = quota.saturating_sub((self.left.len() - before).max(1));
        }
    }

    /// When the n-th job of a bucket could leave, in milliseconds from now, siblings left out.
    pub(super) fn eta_ms(&self, n: usize, due: u64, now: u64, jobs: usize) -> i64 {
        self.leaves(n, due, now, jobs).0
    }

    /// Whether nothing that is known of a node without work makes a difference.
    pub(super) fn is_over(&self, n: usize, now: u64) -> bool {
        let node = &self.nodes[n];
        let makes_up = if node.queue.is_some() { 0 } else { self.catch_up(n) };
        node.place == Place::Nowhere && if node.queue.is_some() { self.due(n) } else { node.due } + makes_up <= now
    }

    /// Whether a new rate of a node would change what a budget below it may make up for that is at rest: what is stored of that one is
    /// when it will be forgotten, which is its due and that, so its next job may leave an interval later than here.
    pub(super) fn moves_a_resting_budget(&self, n: usize, rate: Rate, now: u64) -> bool {
        let mut after = self.clone();
        after.nodes[n].rate = rate;
        let rests = |b: usize| {
            self.nodes[b].queue.is_none()
                && self.nodes[b].place == Place::Nowhere
                && !(self.is_over(b, now) && after.is_over(b, now))
        };
        self.children(n).any(|b| rests(b) && after.catch_up(b) != self.catch_up(b))
    }

    /// An operator stops a node, or lets it go on: that wait is no lateness of it, nor of anything below it.
    pub(super) fn set_paused(&mut self, n: usize, is_paused: bool, now: u64) {
        self.nodes[n].is_paused = is_paused;
        self.put_right(n, now);
    }

    /// A node of which something changed stands where it must.
    pub(super) fn put_right(&mut self, n: usize, now: u64) {
        self.looks_at(n, now);
        if self.nodes[n].later.is_ordered {
            self.nodes[n].later.expects_first(now);
        }
        let goes_on = match self.nodes[n].place {
            Place::Nowhere => return,
            Place::Paused if self.nodes[n].queue.is_some() => !self.nodes[n].is_paused,
            Place::Paused | Place::Full(_) => self.stopped(n, 0, now).is_none(),
            _ => false,
        };
        if goes_on {
            self.goes_on(n, now);
        }
        let is_waiting = matches!(self.nodes[n].place, Place::Share(..));
        if self.nodes[n].queue.is_none() {
            if !(is_waiting && self.may_go(n, now)) {
                self.settle_budget(n, now);
            }
        } else if !self.has_jobs(n, now) {
            self.rests_where_it_waited(n, now);
        } else if let Some(place) = self.stopped(n, self.due(n), now) {
            self.nodes[n].place = place;
        } else if !is_waiting || self.due(n) > now {
            self.nodes[n].place = Place::Schedule(self.due(n));
        } else if let Place::Share(ends, _) = self.nodes[n].place {
            self.nodes[n].place = Place::Share(ends, self.due(n));
        }
    }
}
