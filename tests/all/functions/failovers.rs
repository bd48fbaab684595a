//! Random sequences on two servers that take over from each other: each remembers what it saw last, the clock steps back now and then, before,
//! between and after, functions that only read come to a replica too, and a library is loaded anew. After each step the audit finds nothing,
//! no budget is faster than its rate, and in the end each job has left.

use std::collections::BTreeSet;

use super::flow::{excess, set_at, unset_at};
use super::slots::{ack, fail};
use super::tree_faults::replicate;
use super::tree_model::number;
use crate::rig::{Case, MS, S, Server, T0, load_library};
use fastrand::Rng;

const BUCKETS: [&str; 6] = ["p:a", "p:b", "q:a", "q:b", "s:a", "x"];
const STREAMS: [&str; 2] = ["ready", "ready:two"];
const HOUR: u64 = 3_600 * S;

/// The jobs below {p}, in so much time.
const RATES: [(u64, u64); 3] = [(1, S), (4, S), (1, 5 * S)];

struct World {
    servers: [Server; 2],
    /// The primary, and the one that was it before or never was.
    cases: [Case; 2],
    /// What the clock of the servers says, and how much time has really passed.
    now: u64,
    real: u64,
    rng: Rng,
    rate: (u64, u64),
    paused: BTreeSet<&'static str>,
    pushed: BTreeSet<String>,
    done: BTreeSet<String>,
    hand: Vec<(&'static str, crate::rig::Entry)>,
    /// When jobs below {p} have left.
    left: Vec<u64>,
    seen: BTreeSet<(&'static str, String)>,
    /// Whether a daemon has drained the primary since it became one.
    is_drained: bool,
    story: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rate = RATES[rng.usize(0..3)];
        let slots = |rng: &mut Rng| {
            if rng.bool() { format!("concurrency = {}\n", rng.u32(1..4)) } else { String::new() }
        };
        let toml = format!(
            "[defaults]\nrate = '1000/s'\nlease = '7d'\nattempts = 100\n[limits]\nmax_ready = 100000\n\
             [[budget]]\nmatch = 'p'\nrate = '{}/{}ms'\ncatch_up = '0s'\n{}[[budget]]\nmatch = 'q'\nwithin = 'p'\nrate = '3/s'\n{}\
             [[budget]]\nmatch = 's'\nconcurrency = 1\n[[bucket]]\nmatch = 'p:*'\nwithin = 'p'\n\
             [[bucket]]\nmatch = 'q:b'\nwithin = 'q'\nroute = 'two'\n{}[[bucket]]\nmatch = 'q:*'\nwithin = 'q'\n\
             [[bucket]]\nmatch = 's:*'\nwithin = 's'\n[[bucket]]\nmatch = 'x'\nrate = '2/s'\n",
            rate.0,
            rate.1 / MS,
            slots(&mut rng),
            slots(&mut rng),
            slots(&mut rng),
        );
        let servers = [Server::start(&[]), Server::start(&[])];
        let cases = [0, 1].map(|n| Case::on(&servers[n], &toml));
        Self {
            servers,
            cases,
            now: T0 + 10 * HOUR,
            real: 0,
            rng,
            rate,
            paused: BTreeSet::new(),
            pushed: BTreeSet::new(),
            done: BTreeSet::new(),
            hand: Vec::new(),
            left: Vec::new(),
            seen: BTreeSet::new(),
            is_drained: false,
            story: vec![format!("seed {seed}\n{toml}")],
        }
    }

    fn case(&mut self) -> &mut Case {
        &mut self.cases[0]
    }

    fn tell(&mut self, what: &str) {
        self.story.push(format!("{} ({} since the beginning): {what}", self.now - T0, self.real));
    }

    fn passes(&mut self, us: u64) {
        self.now += us;
        self.real += us;
    }

    fn settle(&mut self) -> i64 {
        let now = self.now;
        let wait = self.case().settle_at(now).wait_us;
        self.is_drained = true;
        for stream in STREAMS {
            for entry in self.case().stream(stream) {
                if self.seen.insert((stream, entry.text("job")))
                    && !["s:a", "x"].contains(&entry.text("bucket").as_str())
                {
                    self.left.push(self.real);
                }
            }
        }
        wait
    }

    /// Time passes from due to due, as a daemon does.
    fn run(&mut self, us: u64) {
        let until = self.real + us;
        loop {
            let wait = self.settle();
            if wait < 0 || self.real + wait as u64 > until {
                break;
            }
            self.passes(wait as u64);
        }
        self.passes(until - self.real);
        self.settle();
    }

    fn push(&mut self, n: usize) {
        let bucket = BUCKETS[self.rng.usize(0..BUCKETS.len())];
        let jobs: Vec<String> = (0..self.rng.usize(1..4)).map(|k| format!("{bucket}.{n}.{k}")).collect();
        let texts: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let (now, is_plain) = (self.now, self.rng.bool());
        self.tell(&format!("{} {jobs:?}", if is_plain { "lpush" } else { "push" }));
        if is_plain {
            self.case().lpush(bucket, &texts);
            self.case().wake_at(now, &[bucket]);
            self.settle();
        } else {
            self.case().push_at(now, bucket, &texts);
        }
        self.pushed.extend(jobs);
    }

    fn take(&mut self) {
        for stream in STREAMS {
            let key = self.case().key(stream);
            if self.case().cmd::<i64>(&["EXISTS", &key]) == 1 {
                let taken = self.case().take(stream, 3);
                self.hand.extend(taken.into_iter().map(|entry| (stream, entry)));
            }
        }
    }

    fn work(&mut self) {
        self.take();
        if self.hand.is_empty() {
            return;
        }
        let n = self.rng.usize(0..self.hand.len());
        let (stream, entry) = self.hand.swap_remove(n);
        let (job, now) = (entry.text("job"), self.now);
        if self.rng.u8(0..4) == 0 {
            self.tell(&format!("fail {job}"));
            assert_eq!(fail(self.case(), now, stream, &entry, &["RETRY_IN", "300"]), 1);
            self.seen.remove(&(stream, job));
        } else {
            self.tell(&format!("ack {job}"));
            assert_eq!(ack(self.case(), now, stream, &[&entry]), 1);
            self.done.insert(job);
        }
    }

    /// The other server has all that the primary has, and is the primary. A server is none for so short that no daemon drains it.
    fn fails_over(&mut self) {
        if !self.is_drained {
            self.settle();
        }
        self.is_drained = false;
        self.tell("the other server takes over");
        let [primary, other] = &mut self.cases;
        replicate(primary, other);
        self.cases.swap(0, 1);
        self.servers.swap(0, 1);
    }

    /// The other server has all that the primary has, and is asked what only reads.
    fn replica_is_read(&mut self) {
        self.tell("the replica is read");
        let (now, [primary, other]) = (self.now, &mut self.cases);
        replicate(primary, other);
        for bucket in BUCKETS {
            other.peek_at(now, bucket);
        }
    }

    fn operate(&mut self) {
        let name = ["{p}", "{q}", "{s}", "p:a", "x"][self.rng.usize(0..5)];
        let now = self.now;
        self.tell(&format!("pause {name}, or it goes on"));
        if self.paused.remove(name) {
            unset_at(self.case(), now, name, "pause");
        } else {
            self.paused.insert(name);
            set_at(self.case(), now, name, "pause", "{}");
        }
    }

    fn step(&mut self, n: usize) {
        match self.rng.u8(0..100) {
            0..28 => self.push(n),
            28..40 => {
                let us = [0, MS, 200 * MS, 2 * S][self.rng.usize(0..4)];
                self.tell(&format!("runs for {us}"));
                self.run(us);
            }
            40..48 => {
                let us = [MS, 100 * MS, 300 * MS, 7 * S][self.rng.usize(0..4)];
                self.passes(us);
                self.tell(&format!("{us} late"));
            }
            48..66 => self.work(),
            66..72 => self.operate(),
            72..82 => {
                let us = [300, 5 * MS, 400 * MS, 10 * S, HOUR][self.rng.usize(0..5)].min(self.now - T0);
                self.now -= us;
                self.tell(&format!("the clock steps back by {us}"));
            }
            82..94 => self.fails_over(),
            94..98 => self.replica_is_read(),
            _ => {
                self.tell("the library is loaded anew");
                load_library(&mut self.cases[0].redis);
            }
        }
        let now = self.now.to_string();
        let wrong: Vec<String> = self.case().fcall("drip__audit", &["policy"], &[now]);
        assert!(wrong.is_empty(), "{wrong:?}\n{}", self.story.join("\n"));
    }

    /// All goes on, and all that was pushed leaves and is done.
    fn finish(&mut self) {
        let now = self.now;
        for name in std::mem::take(&mut self.paused) {
            unset_at(self.case(), now, name, "pause");
        }
        self.tell("all go on");
        for _ in 0..2_000 {
            self.run(S);
            self.take();
            let now = self.now;
            for (stream, entry) in std::mem::take(&mut self.hand) {
                assert_eq!(ack(self.case(), now, stream, &[&entry]), 1);
                self.done.insert(entry.text("job"));
            }
            if self.done.len() == self.pushed.len() {
                break;
            }
        }
        let stuck: Vec<&String> = self.pushed.difference(&self.done).collect();
        assert!(stuck.is_empty(), "{stuck:?}\n{}", self.story.join("\n"));
        let sooner = excess(&self.left, self.rate.0, self.rate.1);
        assert!(sooner <= 1, "{sooner} us sooner than {{p}} lets\n{}", self.story.join("\n"));
    }
}

#[test]
fn servers_that_take_over_from_each_other_while_clocks_step_back_lose_no_node_and_pass_no_rate() {
    let (first, seeds) = (number("DRIPD_SEED").unwrap_or(0), number("DRIPD_SEEDS").unwrap_or(12));
    for seed in first..first + seeds {
        let mut world = World::new(seed);
        for n in 0..150 {
            world.step(n);
        }
        world.finish();
    }
}
