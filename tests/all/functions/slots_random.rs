//! Random sequences over a tree with slots: workers that acknowledge, fail, give back, fall silent or use a plain XACK; entries, streams
//! and groups that somebody deletes; lines that are lost or damaged; limits and trees that change. After each step the audit finds
//! nothing, and no node has more jobs in flight than it may, counted by the entries themselves.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use redis::Value;

use super::slots::{ack, audit, change, fail, heal_all, reap, set_slots, start};
use super::tree_faults::replicate;
use crate::rig::{Case, Entry, MS, S, Server, load_library};

const BUCKETS: [&str; 8] = ["p:a:x1", "p:a:y1", "p:a:z1", "p:b:x1", "p:b:y1", "p:b:y2", "lone", "plain"];
const STREAMS: [&str; 2] = ["ready", "ready:two"];

/// How many jobs may be in flight; `None`: any number.
type Limit = Option<usize>;

/// A tree: the limits of the root, of an account, of buckets of the kinds x, y, z, and of `lone`.
#[derive(Debug, Clone)]
struct Tree {
    root: Limit,
    account: Limit,
    kinds: [Limit; 3],
    lone: Limit,
    deep: bool,
    paced: bool,
    batch: u32,
}

impl Tree {
    fn random(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, of: std::ops::Range<usize>| rng.bool().then(|| rng.usize(of));
        Self {
            root: some(rng, 2..7),
            account: some(rng, 1..5),
            kinds: [Some(1), some(rng, 1..4), some(rng, 1..4)],
            lone: some(rng, 1..3),
            deep: rng.u8(0..3) > 0,
            paced: rng.bool(),
            batch: [3, 10, 100][rng.usize(0..3)],
        }
    }

    fn toml(&self) -> String {
        let slots = |limit: Limit| limit.map_or_else(String::new, |n| format!("concurrency = {n}\n"));
        let rate = if self.paced { "rate = '200/s'\n" } else { "rate = '1000000/s'\n" };
        let within = if self.deep { "p:{1}" } else { "p" };
        let kind = |kind: &str, limit: Limit, more: &str| {
            format!("[[bucket]]\nmatch = 'p:*:{kind}*'\nwithin = '{within}'\n{more}{}", slots(limit))
        };
        format!(
            "[limits]\nbatch = {}\n[defaults]\nrate = '100/s'\nlease = '7d'\nattempts = 4\nbackoff = {{ initial = '50ms', max = '1s' }}\n\
             [[budget]]\nmatch = 'p'\n{rate}{}[[budget]]\nmatch = 'p:*'\n{rate}within = 'p'\n{}{}{}{}[[bucket]]\nmatch = 'lone'\n{}",
            self.batch,
            slots(self.root),
            slots(self.account),
            kind("x", self.kinds[0], "ordered = true\n"),
            kind("y", self.kinds[1], "route = 'two'\n"),
            kind("z", self.kinds[2], ""),
            slots(self.lone),
        )
    }

    /// The limits of the nodes above and at a bucket.
    fn limits(&self, bucket: &str) -> Vec<(String, Limit)> {
        let mut parts = bucket.split(':');
        let (Some("p"), Some(account), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return vec![(bucket.to_owned(), if bucket == "lone" { self.lone } else { None })];
        };
        let kind = usize::from(name.as_bytes()[0] - b'x');
        let mut nodes = vec![(bucket.to_owned(), self.kinds[kind]), ("{p}".to_owned(), self.root)];
        if self.deep {
            nodes.push((format!("{{p:{account}}}"), self.account));
        }
        nodes
    }
}

struct World {
    case: Case,
    /// The server that takes over, and remembers what it saw when it was the primary before.
    standby: Case,
    now: u64,
    rng: Rng,
    tree: Tree,
    /// What is set for a name.
    set: BTreeMap<String, usize>,
    paused: BTreeSet<String>,
    /// Of each entry that was seen, the nodes that limited it when it left.
    held: BTreeMap<(String, String), Vec<String>>,
    pushed: BTreeSet<String>,
    done: BTreeSet<String>,
    /// Entries that a worker has.
    hand: Vec<(&'static str, Entry)>,
    /// What was done, for whoever reads a failure.
    story: Vec<String>,
}

impl World {
    fn new(servers: &[Server; 2], seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let tree = Tree::random(&mut rng);
        for server in servers {
            let mut flush = Case { redis: server.connect(), prefix: String::new() };
            let _: Value = flush.cmd(&["FLUSHALL"]);
        }
        let [mut case, standby] = [0, 1].map(|n| Case::on(&servers[n], &tree.toml()));
        let now = start(&mut case);
        let (set, paused, held) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self {
            case,
            standby,
            now,
            rng,
            tree,
            set,
            paused,
            held,
            pushed: BTreeSet::new(),
            done: BTreeSet::new(),
            hand: Vec::new(),
            story: Vec::new(),
        }
    }

    fn limit(&self, node: &str, configured: Limit) -> Limit {
        self.set.get(node).copied().or(configured)
    }

    /// The entries that are dispatched and not finished, as the streams say it.
    fn in_flight(&mut self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for stream in STREAMS {
            let key = self.case.key(stream);
            if self.case.cmd::<i64>(&["EXISTS", &key]) == 0 {
                continue;
            }
            let workers = self.workers_group(stream);
            let delivered = match workers.as_ref().map(|group| &group["last-delivered-id"]) {
                Some(Value::BulkString(id)) => number(&String::from_utf8_lossy(id)),
                _ => (0, 0),
            };
            let rows: Vec<(String, String, u64, u64)> = if workers.is_none() {
                Vec::new()
            } else {
                self.case.cmd(&["XPENDING", &key, "workers", "-", "+", "100000"])
            };
            let pending: BTreeSet<String> = rows.into_iter().map(|row| row.0).collect();
            let entries = self.case.stream(stream).into_iter();
            let live = entries.filter(|entry| pending.contains(&entry.id) || number(&entry.id) > delivered);
            all.extend(live.map(|entry| (stream.to_owned(), entry.id)));
        }
        all
    }

    /// What Redis says of the group of the workers, where there is one.
    fn workers_group(&mut self, stream: &str) -> Option<BTreeMap<String, Value>> {
        let key = self.case.key(stream);
        let groups: Result<Vec<BTreeMap<String, Value>>, _> = self.case.try_cmd(&["XINFO", "GROUPS", &key]);
        let is_workers = |group: &BTreeMap<String, Value>| group["name"] == Value::BulkString(b"workers".to_vec());
        groups.ok()?.into_iter().find(is_workers)
    }

    /// How many jobs of each node are in flight.
    fn counts(&mut self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for entry in self.in_flight() {
            for node in self.held.get(&entry).into_iter().flatten() {
                *counts.entry(node.clone()).or_insert(0) += 1;
            }
        }
        counts
    }

    /// Let out what may leave now, and see that no limit is passed.
    fn settle(&mut self) {
        let before = self.counts();
        self.case.settle_at(self.now);
        for stream in STREAMS {
            for entry in self.case.stream(stream) {
                let bucket = entry.text("bucket");
                let limits = self.tree.limits(&bucket).into_iter();
                let nodes = limits.filter(|(node, limit)| self.limit(node, *limit).is_some()).map(|(node, _)| node);
                let nodes: Vec<String> = nodes.collect();
                self.held.entry((stream.to_owned(), entry.id)).or_insert(nodes);
            }
        }
        for (node, n) in self.counts() {
            let configured = BUCKETS.iter().flat_map(|bucket| self.tree.limits(bucket)).find(|(name, _)| *name == node);
            let Some(limit) = self.limit(&node, configured.and_then(|(_, limit)| limit)) else { continue };
            let had = before.get(&node).copied().unwrap_or(0);
            assert!(n <= limit.max(had), "{n} jobs of {node} in flight, {limit} may be: {:#?}", self.story);
        }
    }

    /// Let time pass from due to due.
    fn pass(&mut self, us: u64) {
        let until = self.now + us;
        loop {
            self.settle();
            let wait = self.case.drain_at(self.now).wait_us;
            if wait < 0 || self.now + wait as u64 > until {
                break;
            }
            self.now += wait as u64;
        }
        self.now = until;
        self.settle();
    }

    fn take(&mut self) {
        for stream in STREAMS {
            let most = self.rng.usize(1..6);
            let key = self.case.key(stream);
            if self.case.cmd::<i64>(&["EXISTS", &key]) == 1 {
                let _: Result<Value, _> = self.case.try_cmd(&["XGROUP", "CREATE", &key, "workers", "0"]);
                self.hand.extend(self.case.take(stream, most).into_iter().map(|entry| (stream, entry)));
            }
        }
    }

    fn some_entry(&mut self) -> Option<(&'static str, Entry)> {
        if self.hand.is_empty() {
            return None;
        }
        let n = self.rng.usize(0..self.hand.len());
        Some(self.hand.swap_remove(n))
    }

    fn heal(&mut self) {
        // Where a group was set back, what is finished counts as undelivered until it is deleted.
        reap(&mut self.case, self.now);
        // After a step back of the clock the next pass that looks at everything may come later.
        for _ in 0..2 {
            self.now = heal_all(&mut self.case, self.now);
        }
        reap(&mut self.case, self.now);
    }

    /// What a worker does with one of its jobs.
    fn work(&mut self) {
        let Some((stream, entry)) = self.some_entry() else { return };
        let job = entry.text("job");
        match self.rng.u8(0..10) {
            0..4 => {
                if ack(&mut self.case, self.now, stream, &[&entry]) == 1 {
                    self.done.insert(job);
                }
            }
            4..7 => {
                let options: [&[&str]; 4] = [&[], &["KEEP", "RETRY_IN", "0"], &["RETRY_IN", "300"], &["DEAD"]];
                let options = options[self.rng.usize(0..4)];
                if fail(&mut self.case, self.now, stream, &entry, options) == 2 {
                    self.done.insert(job);
                }
            }
            7 => {
                let key = self.case.key(stream);
                let idle = (8 * 86_400_000_u64).to_string();
                // The group may be gone.
                let words = ["XCLAIM", &key, "workers", "w", "0", &entry.id, "IDLE", &idle, "JUSTID"];
                let _: Result<Value, _> = self.case.try_cmd(&words);
                reap(&mut self.case, self.now);
                let dead = self.case.stream("dead");
                self.done.extend(dead.into_iter().map(|entry| entry.text("job")));
            }
            _ => {
                let key = self.case.key(stream);
                let acked: i64 = self.case.cmd(&["XACK", &key, "workers", &entry.id]);
                if acked == 1 {
                    self.done.insert(job);
                }
                self.heal();
            }
        }
    }

    /// What a stranger does.
    fn meddle(&mut self) {
        let stream = STREAMS[self.rng.usize(0..2)];
        let key = self.case.key(stream);
        let entries = self.case.stream(stream);
        let kind = self.rng.u8(0..6);
        self.story.push(format!("meddles with {stream}: {kind}"));
        match kind {
            0 if !entries.is_empty() => {
                let entry = &entries[self.rng.usize(0..entries.len())];
                self.done.insert(entry.text("job"));
                let _: Value = self.case.cmd(&["XDEL", &key, &entry.id]);
            }
            1 => {
                let most = self.rng.usize(0..4);
                let gone = entries.len().saturating_sub(most);
                self.done.extend(entries[..gone].iter().map(|entry| entry.text("job")));
                let _: Value = self.case.cmd(&["XTRIM", &key, "MAXLEN", &most.to_string()]);
            }
            2 => {
                // A finished entry that is still there would be delivered once more, by the new group, without a slot.
                for _ in 0..5 {
                    reap(&mut self.case, self.now);
                }
                let _: Result<Value, _> = self.case.try_cmd(&["XGROUP", "DESTROY", &key, "workers"]);
            }
            3 => {
                let id = ["$", "0", "9999999999999-0"][self.rng.usize(0..3)];
                let _: Result<Value, _> = self.case.try_cmd(&["XGROUP", "CREATE", &key, "billing", "0"]);
                let _: Result<Value, _> = self.case.try_cmd(&["XGROUP", "SETID", &key, "billing", id]);
            }
            4 => {
                for _ in 0..5 {
                    reap(&mut self.case, self.now); // as above: a group that is set back delivers what is there
                }
                // Where somebody deleted an undelivered entry nothing tells that its group was moved.
                if self.workers_group(stream).is_some_and(|group| group["lag"] == Value::Nil) {
                    return self.heal();
                }
                let id = ["$", "0", "9999999999999-0"][self.rng.usize(0..3)];
                let _: Result<Value, _> = self.case.try_cmd(&["XGROUP", "SETID", &key, "workers", id]);
                for _ in 0..5 {
                    reap(&mut self.case, self.now); // only each fifth pass looks at a group of an empty stream
                }
            }
            _ => {
                self.done.extend(entries.iter().map(|entry| entry.text("job")));
                let _: Value = self.case.cmd(&["DEL", &key]);
            }
        }
        self.heal();
    }

    /// Lines and members are lost or damaged: either of the two, for what both have lost nobody knows.
    fn damage(&mut self) {
        let (slots, inflight) = (self.case.key("slots"), self.case.key("inflight"));
        let lines: Vec<String> = self.case.cmd(&["HKEYS", &slots]);
        let members: Vec<String> = self.case.cmd(&["ZRANGE", &inflight, "0", "-1"]);
        let line = (!lines.is_empty()).then(|| lines[self.rng.usize(0..lines.len())].clone());
        let member = (!members.is_empty()).then(|| members[self.rng.usize(0..members.len())].clone());
        let words: Vec<String> = match (self.rng.u8(0..8), line, member) {
            (0, Some(line), _) => vec!["HDEL".into(), slots, line],
            (1, Some(line), _) => vec!["HSET".into(), slots, line, "}{\n\n".into()],
            (2, _, Some(member)) => vec!["ZREM".into(), inflight, member],
            (3, _, Some(member)) => vec!["ZADD".into(), inflight, "5".into(), member],
            (4, ..) => vec!["DEL".into(), slots],
            (5, ..) => vec!["DEL".into(), inflight],
            (6, ..) => vec!["HSET".into(), slots, "no entry".into(), "{p}".into()],
            _ => vec!["ZADD".into(), inflight, "0".into(), "{p}\ndefault 1-1".into()],
        };
        self.story.push(format!("{words:?}"));
        let _: Value = self.case.cmd(&words.iter().map(String::as_str).collect::<Vec<_>>());
        self.heal();
    }

    fn operate(&mut self) {
        let names = ["{p}", "{p:a}", "{p:b}", "p:a:y1", "lone", "p:b:x1"];
        let name = names[self.rng.usize(0..names.len())];
        match self.rng.u8(0..5) {
            0 | 1 => {
                let slots = self.rng.u32(1..6);
                set_slots(&mut self.case, self.now, name, slots);
                self.set.insert(name.to_owned(), slots as usize);
            }
            2 => {
                change(&mut self.case, self.now, name, "{}", r#"["concurrency"]"#);
                self.set.remove(name);
            }
            3 => {
                change(&mut self.case, self.now, name, r#"{"pause":{"text":"yes","policy":{}}}"#, "[]");
                self.paused.insert(name.to_owned());
            }
            _ => self.resume(name),
        }
    }

    fn resume(&mut self, name: &str) {
        change(&mut self.case, self.now, name, "{}", r#"["pause"]"#);
        self.paused.remove(name);
    }

    fn step(&mut self, n: usize) {
        let kind = self.rng.u8(0..106);
        self.story.push(format!("{n}: {kind} at {}", self.now));
        match kind {
            0..22 => {
                let bucket = BUCKETS[self.rng.usize(0..BUCKETS.len())];
                let jobs: Vec<String> = (0..self.rng.usize(1..5)).map(|k| format!("{bucket}.{n}.{k}")).collect();
                let texts: Vec<&str> = jobs.iter().map(String::as_str).collect();
                if self.rng.bool() {
                    assert_eq!(self.case.push_at(self.now, bucket, &texts)[0], texts.len() as i64);
                } else {
                    self.case.lpush(bucket, &texts);
                    self.case.wake_at(self.now, &[bucket]);
                    self.settle();
                }
                self.pushed.extend(jobs);
            }
            22..42 => {
                let us = [0, MS, 20 * MS, 200 * MS, 2 * S][self.rng.usize(0..5)];
                self.pass(us);
            }
            42..55 => self.take(),
            55..80 => self.work(),
            80..85 => self.meddle(),
            85..90 => self.damage(),
            90..96 => self.operate(),
            96..99 => {
                self.settle();
                self.tree = Tree::random(&mut self.rng);
                assert!(self.case.configure_at(&self.now.to_string(), &self.tree.toml()) >= 0, "it is not busy");
                self.settle();
            }
            99 => load_library(&mut self.case.redis),
            _ => self.fails_over(),
        }
    }

    /// The clock steps back, or not, and the other server takes over with all that there is.
    fn fails_over(&mut self) {
        let steps = [0, 600, 5 * MS, 2 * S, 100 * S];
        self.now -= steps[self.rng.usize(0..steps.len())];
        replicate(&mut self.case, &mut self.standby);
        std::mem::swap(&mut self.case, &mut self.standby);
        self.now -= steps[self.rng.usize(0..steps.len())];
    }

    /// Everything that is left is worked off: nothing was lost, and nothing stays behind.
    fn finish(&mut self) {
        for name in self.paused.clone() {
            self.resume(&name);
        }
        self.heal();
        for _ in 0..2_000 {
            self.pass(50 * MS);
            self.take();
            for (stream, entry) in std::mem::take(&mut self.hand) {
                if ack(&mut self.case, self.now, stream, &[&entry]) == 1 {
                    self.done.insert(entry.text("job"));
                }
            }
            if self.case.keys().iter().all(|key| !key.starts_with("queue") && !key.starts_with("retr"))
                && self.in_flight().is_empty()
            {
                break;
            }
        }
        let lost: Vec<&String> = self.pushed.difference(&self.done).collect();
        assert!(lost.is_empty(), "{lost:?}: {:#?}", self.story);
        for name in self.set.keys() {
            change(&mut self.case, self.now, name, "{}", r#"["concurrency"]"#);
        }
        self.heal();
        self.now += 20 * S;
        self.settle();
        let known = ["policy", "ready", "ready:two", "routes", "stats", "wake", "dead", "events"];
        let left: Vec<String> = self.case.keys().into_iter().filter(|key| !known.contains(&key.as_str())).collect();
        assert_eq!(left, Vec::<String>::new(), "{:#?}", self.story);
    }
}

fn number(id: &str) -> (u64, u64) {
    let (ms, n) = id.split_once('-').expect("an id");
    (ms.parse().expect("ms"), n.parse().expect("n"))
}

#[test]
fn no_node_ever_has_more_in_flight_than_it_may_and_nothing_gets_stuck() {
    crate::roles::as_roles();
    let servers = [Server::start(&[]), Server::start(&[])];
    let seeds = std::env::var("DRIPD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let first = std::env::var("DRIPD_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let mut world = World::new(&servers, seed);
        world.story.push(format!("seed {seed}: {:?}", world.tree));
        for n in 0..120 {
            world.step(n);
            let wrong: Vec<String> = world.case.fcall("drip__audit", &["policy"], &[world.now.to_string()]);
            assert!(wrong.is_empty(), "seed {seed}: {wrong:?} {:#?}", world.story);
        }
        world.finish();
        audit(&mut world.case, world.now);
    }
}
