//! The reference model of `tree_model`: slots. "At most n jobs of the bucket, or below the budget, are in flight: dispatched and not finished,
//! delivered or not."

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use redis::Value;

use super::flow::set_at;
use super::model::Back;
use super::tree_fates::Failed;
use super::tree_model::Pair;
use super::tree_reference::{Place, Tree};
use crate::rig::MS;

/// How many slots a node has, where it has a limit.
pub(super) fn random_slots(rng: &mut Rng, has_slots: bool) -> Option<usize> {
    (has_slots && rng.bool()).then(|| rng.usize(1..5))
}

impl Tree {
    /// How many jobs of a node hold a slot of it.
    fn in_flight(&self, n: usize) -> usize {
        self.held.values().filter(|nodes| nodes.contains(&n)).count()
    }

    /// Whether a node waits for a slot.
    pub(super) fn is_full(&self, n: usize, now: u64) -> bool {
        let node = &self.nodes[n];
        node.slots.is_some_and(|slots| self.in_flight(n) >= slots) || node.later.waits_for_retry(now)
    }

    /// A job of a bucket is about to leave: it takes a slot of each node of its chain that has a limit.
    pub(super) fn takes_slots(&mut self, n: usize) {
        let chain = std::iter::once(n).chain(self.above(n));
        let nodes: Vec<usize> = chain.filter(|n| self.nodes[*n].slots.is_some()).collect();
        if !nodes.is_empty() {
            self.held.insert(self.left.len(), nodes);
        }
    }

    /// A job is in flight no more: "frees exactly those slots, whatever the policy says by then". "What frees one puts it back, with no credit
    /// for the wait." Replies whether it held any.
    pub(super) fn frees_slots(&mut self, at: usize, now: u64) -> bool {
        let Some(nodes) = self.held.remove(&at) else { return false };
        for n in nodes {
            if matches!(self.nodes[n].place, Place::Full(_)) && !self.is_full(n, now) {
                let is_budget = self.nodes[n].queue.is_none();
                self.happens(if is_budget { "a budget has a slot again" } else { "a bucket has a slot again" });
                self.has_slot(n, now);
            }
        }
        true
    }

    /// A bucket that waited for a slot has nothing that may leave, were it due: its delayed jobs wait for one that backs off. So it rests until the
    /// end of that.
    pub(super) fn rests_where_it_waited(&mut self, n: usize, now: u64) {
        self.has_no_work(n, now);
        self.nodes[n].place = Place::Nowhere;
    }

    /// A node that waited for a slot goes on.
    pub(super) fn has_slot(&mut self, n: usize, now: u64) {
        self.goes_on(n, now);
        if self.nodes[n].queue.is_none() {
            self.settle_budget(n, now);
        } else {
            self.nodes[n].place = Place::Schedule(self.due(n));
        }
    }

    /// A node goes on after a wait by order, which earns nothing.
    pub(super) fn goes_on(&mut self, n: usize, now: u64) {
        let node = &mut self.nodes[n];
        if node.queue.is_none() {
            node.went_on = node.went_on.max(now);
        } else {
            node.due = node.due.max(now);
        }
    }

    /// Where a node must stand that an operator stops, or that has no slot free.
    pub(super) fn stopped(&self, n: usize, due: u64, now: u64) -> Option<Place> {
        if self.nodes[n].is_paused { Some(Place::Paused) } else { self.is_full(n, now).then_some(Place::Full(due)) }
    }

    /// "`ordered = true` (needs `concurrency = 1` on the bucket)."
    fn orders(&mut self, n: usize, now: u64) {
        let node = &mut self.nodes[n];
        node.later.is_ordered = node.is_ordered && node.slots == Some(1);
        node.later.expects_first(now);
    }

    /// "Jobs in flight count when a limit is added."
    fn counts_what_is_out(&mut self, n: usize) {
        let out: Vec<usize> = self.undone().collect();
        for at in out {
            let bucket = self.bucket_of(&self.left[at]);
            if bucket == n || self.above(bucket).contains(&n) {
                let held = self.held.entry(at).or_default();
                if !held.contains(&n) {
                    held.push(n);
                }
            }
        }
    }

    /// "Lowered: what runs, runs on; nothing new until it is below. Raised: woken at once."
    fn set_slots(&mut self, n: usize, slots: Option<usize>, now: u64) {
        let is_added = self.nodes[n].slots.is_none() && slots.is_some();
        self.nodes[n].slots = slots;
        if is_added {
            self.counts_what_is_out(n);
        }
        self.orders(n, now);
        if self.in_flight(n) > slots.unwrap_or(usize::MAX) {
            self.happens("a limit is below what is in flight");
        }
        self.put_right(n, now);
    }
}

impl Pair {
    /// A change of a limit, often of one where jobs are in flight.
    pub(super) fn set_slots(&mut self) {
        self.settle_what_came();
        self.settle();
        let busy: Vec<usize> = self.tree.held.values().flatten().copied().collect();
        let n = if busy.is_empty() || self.rng.u8(0..3) == 0 {
            self.any(|_| true)
        } else {
            busy[self.rng.usize(0..busy.len())]
        };
        let slots = if self.rng.bool() { Some(1) } else { random_slots(&mut self.rng, true) };
        let id = self.tree.nodes[n].id.clone();
        self.tell(&format!("set {id} concurrency {slots:?}"));
        set_at(&mut self.case, self.now, &id, "concurrency", &format!(r#"{{"concurrency":{}}}"#, slots.unwrap_or(0)));
        self.tree.set_slots(n, slots, self.now);
    }

    /// A worker that knows nothing of slots is done with a job, or somebody deletes its entry. "After a plain `XACK` the slot is free within 1 s":
    /// the healing pass finds that it is in flight no more.
    pub(super) fn finished_plainly(&mut self, at: usize) {
        let (key, entry) = (self.case.key("ready"), self.taken[at].0.clone());
        let (holds, is_deleted) = (self.tree.held.contains_key(&at), self.rng.bool());
        if is_deleted && !holds {
            self.is_silent(&entry); // later Redis would say that there is no such entry
        }
        self.tell(&format!("{} {:?}", if is_deleted { "XDEL" } else { "XACK" }, self.tree.left[at]));
        let words = if is_deleted { vec!["XDEL", &key, &entry] } else { vec!["XACK", &key, "workers", &entry] };
        assert_eq!(self.case.cmd::<i64>(&words), 1);
        self.tree.done.insert(at);
        if holds {
            self.is_healed(at, is_deleted);
        } else if is_deleted {
            self.lets_deleted_go(&entry);
        }
        // Where entries were deleted before they were read, Redis counts too many unread: then only each fifth pass looks at all.
        for _ in 0..5 {
            self.reap("0");
        }
        self.settle();
    }

    /// Somebody deletes an entry that no worker has read yet: its job is gone, and its slots are free.
    pub(super) fn deletes_unread(&mut self) {
        let unread: Vec<usize> = self.tree.undone().filter(|at| *at >= self.taken.len()).collect();
        if unread.is_empty() {
            return;
        }
        let (nth, many) = (self.rng.usize(0..unread.len()), self.tree.undone().count());
        let at = unread[nth];
        self.tell(&format!("XDEL, not read yet: {:?}", self.tree.left[at]));
        let entry = self.case.stream("ready").swap_remove(many - unread.len() + nth).id;
        let key = self.case.key("ready");
        assert_eq!(self.case.cmd::<i64>(&["XDEL", &key, &entry]), 1);
        self.tree.done.insert(at);
        self.tree.happens("an entry is deleted before a worker reads it");
        if self.tree.held.contains_key(&at) {
            self.is_healed(at, true);
        }
        self.settle();
    }

    /// An entry that held slots is in flight no more, which is found sooner or later.
    fn is_healed(&mut self, at: usize, is_deleted: bool) {
        self.heal(is_deleted);
        assert!(self.tree.frees_slots(at, self.now));
        self.tree.happens("a slot is free after a plain XACK or XDEL");
    }

    /// An entry without a slot was deleted while a worker held it. The worker may answer: it was pending, and its job is gone. Where nobody is done
    /// with it, it is no more when its lease ends, and nothing is taken back.
    fn lets_deleted_go(&mut self, entry: &str) {
        let answers = [
            ("drip__ack", "", 1),
            ("drip__fail", "KEEP", 0),
            ("drip__fail", "THROTTLED", 0),
            ("drip__adjust", "+9", 0),
        ];
        if let Some((name, word, told)) = answers.get(self.rng.usize(0..6)) {
            self.tell(&format!("{name} {word}"));
            let (now, words) = (self.now.to_string(), [entry, word]);
            let args = [now.as_str()].into_iter().chain(words.into_iter().filter(|word| !word.is_empty()));
            let found: i64 = self.case.fcall(name, &["ready"], &args.collect::<Vec<_>>());
            assert_eq!(found, *told, "{}", self.story.join("\n"));
        }
        assert_eq!(self.reap("1"), 0, "taken back\n{}", self.story.join("\n"));
        let key = self.case.key("ready");
        let pending: Vec<Value> = self.case.cmd(&["XPENDING", &key, "workers", entry, entry, "1"]);
        // "A stream is reaped until it is empty": of one that is, Redis still says that a worker holds it.
        assert!(pending.is_empty() || self.tree.undone().next().is_none(), "{pending:?}\n{}", self.story.join("\n"));
        self.tree.happens("an entry without a slot is deleted");
    }

    /// The healing pass, until it finds one that is in flight no more.
    fn heal(&mut self, is_deleted: bool) {
        let began = self.now;
        loop {
            let now = self.now.to_string();
            let (wait, freed, _): (u64, i64, Value) = self.case.fcall("drip__heal", &["policy"], &[now]);
            if freed > 0 {
                assert_eq!(freed, 1, "{}", self.story.join("\n"));
                return self.tell("healed");
            }
            self.now += wait * MS;
            let most = if is_deleted { 12_000 } else { 1_000 };
            assert!(self.now - began <= most * MS, "it is not found\n{}", self.story.join("\n"));
        }
    }

    /// The reaper: "1" takes back what workers hold for too long, "0" only deletes what is finished. Replies how many it took back.
    fn reap(&mut self, takes_back: &str) -> i64 {
        let (mut route, mut id, mut sum) = (String::new(), String::new(), 0);
        loop {
            let args = [self.now.to_string(), takes_back.to_owned(), route, id];
            let reply: (String, String, i64, i64, i64, i64, i64, Value, i64, i64) =
                self.case.fcall("drip__reap", &["policy"], &args);
            (route, id) = (reply.0, reply.1);
            sum += reply.3;
            if route.is_empty() {
                return sum;
            }
        }
    }

    /// A worker fell silent: its lease ends. `false` as of `fails`.
    pub(super) fn lease_ends(&mut self, at: usize) -> bool {
        let failed = Failed { back: Back::Off, keep: false, dead: false };
        let n = self.tree.bucket_of(&self.tree.left[at]);
        let would_end = self.tree.would_end(at, failed, self.now);
        if self.tree.nodes[n].later.retries.keys().any(|(ends, _)| Some(*ends) == would_end) {
            return false; // which of the two leaves first nobody says
        }
        self.tell(&format!("the lease of {:?} ends", self.tree.left[at]));
        let entry = self.taken[at].0.clone();
        self.is_silent(&entry);
        self.reap("1");
        self.tree.fails(at, failed, "lease expired", self.now);
        self.tree.happens("a lease ends");
        true
    }

    /// The lease of an entry is over.
    fn is_silent(&mut self, entry: &str) {
        // Redis says for how long an entry is idle, by its own clock.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        let (key, idle) = (self.case.key("ready"), (clock.saturating_sub(self.now / MS) + 600_000).to_string());
        let _: Value = self.case.cmd(&["XCLAIM", &key, "workers", "w", "0", entry, "IDLE", &idle, "JUSTID"]);
    }

    /// Which entries hold slots of which nodes.
    pub(super) fn compare_slots(&mut self) {
        let key = self.case.key("slots");
        let mut found: Vec<String> = self.case.cmd(&["HVALS", &key]);
        let ids =
            |nodes: &Vec<usize>| nodes.iter().map(|n| self.tree.nodes[*n].id.clone()).collect::<Vec<_>>().join("\n");
        let mut expected: Vec<String> = self.tree.held.values().map(ids).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "who holds slots\n{}", self.story.join("\n"));
        let full = self.scores("full");
        for node in &self.tree.nodes {
            let score = full.iter().find(|(id, _)| *id == node.id).map(|(_, due)| *due as u64);
            let expected = if let Place::Full(due) = node.place { Some(due) } else { None };
            // Of a budget another key says the due; and of a bucket one that has passed makes no difference: it resumes at its slot.
            let says_no_due = node.queue.is_none() || score.max(expected) <= Some(self.now);
            let same = if says_no_due { score.is_some() == expected.is_some() } else { score == expected };
            assert!(same, "{} waits for a slot: {score:?}, {expected:?}\n{}", node.id, self.story.join("\n"));
        }
    }
}
