//! What reaches the hands of workers: a world with the clock in hand, in which a daemon calls as one does, and workers come, read and go.
//! `Checker` reads the deliveries alone: which entry was handed out when.

use std::collections::{BTreeMap, VecDeque};

use crate::rig::{Case, Entry, MS, S, T0};

/// A delivery: when, and of which bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) at: u64,
    pub(super) bucket: String,
    pub(super) job: String,
    pub(super) left_at: u64,
}

/// A node whose jobs are delivered at a rate: a bucket, or a budget.
#[derive(Debug, Clone)]
pub(super) struct Paced {
    pub(super) count: u64,
    pub(super) period_us: u64,
    pub(super) catch_up_us: u64,
    /// How many routes its jobs use.
    pub(super) routes: u64,
}

impl Paced {
    fn in_us(&self, us: u64) -> u64 {
        us * self.count / self.period_us
    }

    /// "In every window of length W workers are delivered at most so many."
    pub(super) fn most(&self, ready_window_us: u64, w: u64) -> u64 {
        self.routes * (1 + self.in_us(ready_window_us + self.catch_up_us)) + 1 + self.in_us(w + self.catch_up_us)
    }

    /// The first window in which more were delivered than the promise allows.
    pub(super) fn broken_by(&self, ready_window_us: u64, at: &[u64]) -> Option<String> {
        for (i, from) in at.iter().enumerate() {
            for (j, to) in at.iter().enumerate().skip(i) {
                let (n, most) = ((j - i + 1) as u64, self.most(ready_window_us, to - from));
                if n > most {
                    return Some(format!("{n} in {} us from {}, at most {most}", to - from, from - T0));
                }
            }
        }
        None
    }
}

/// How a worker reads.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    /// When it is there.
    pub(super) shifts: Vec<(u64, u64)>,
    /// How many jobs it reads at once, and for how long it holds each batch.
    pub(super) count: usize,
    pub(super) service_us: u64,
    /// Every so manieth job fails, to be tried again at once; 0: none does.
    pub(super) fails: usize,
    /// By how much each service time differs at most, in thousandths; and from which route it reads.
    pub(super) varies: u64,
    pub(super) route: &'static str,
}

impl Hand {
    pub(super) fn always(service_us: u64) -> Self {
        Self { shifts: vec![(0, u64::MAX)], count: 1, service_us, fails: 0, varies: 0, route: "default" }
    }

    pub(super) fn varying(service_us: u64, varies: u64) -> Self {
        Self { varies, ..Self::always(service_us) }
    }

    pub(super) fn of(route: &'static str, service_us: u64, varies: u64) -> Self {
        Self { route, ..Self::varying(service_us, varies) }
    }

    fn is_there(&self, at: u64) -> bool {
        self.shifts.iter().any(|(from, to)| (*from..*to).contains(&(at - T0)))
    }
}

/// Jobs that are pushed into a bucket at a time since the beginning.
pub(super) type Push = (u64, String, Vec<String>);

pub(super) struct World {
    pub(super) case: Case,
    pub(super) deliveries: Vec<Delivery>,
    /// For how long the stream was empty while buckets were held and a worker was free, each time.
    pub(super) starved: Vec<u64>,
    hands: Vec<(Hand, u64, Vec<Entry>)>,
    pushes: VecDeque<Push>,
    now: u64,
    next_call: u64,
    done: usize,
    idle_since: Option<u64>,
    unseen: Vec<String>,
    /// How many calls a daemon made, and how many of them moved nothing and asked for another one at once.
    pub(super) calls: u64,
    pub(super) in_vain: u64,
    /// The state of the random numbers.
    random: u64,
    /// While it is away no daemon calls.
    pub(super) away: Vec<(u64, u64)>,
}

/// A step of the clock: workers that wait in a read have a job so soon, and so does a daemon.
const TICK: u64 = MS / 2;

impl World {
    pub(super) fn new(toml: &str, hands: Vec<Hand>, mut pushes: Vec<Push>) -> Self {
        let mut case = Case::with(toml);
        case.settle_at(T0);
        pushes.sort();
        let hands = hands.into_iter().map(|hand| (hand, T0, Vec::new())).collect();
        Self {
            case,
            deliveries: Vec::new(),
            starved: Vec::new(),
            hands,
            pushes: pushes.into(),
            now: T0,
            next_call: T0,
            done: 0,
            idle_since: None,
            unseen: Vec::new(),
            calls: 0,
            in_vain: 0,
            random: 88_172_645_463_325_252,
            away: Vec::new(),
        }
    }

    /// So many jobs of a bucket at a time since the beginning.
    pub(super) fn backlog(at: u64, bucket: &str, n: usize) -> Push {
        (at, bucket.to_owned(), (0..n).map(|k| format!("{bucket}-{k}")).collect())
    }

    pub(super) fn run(&mut self, until: u64) {
        while self.now < T0 + until {
            let mut changed = std::mem::take(&mut self.unseen);
            while self.pushes.front().is_some_and(|(at, ..)| T0 + at <= self.now) {
                let (_, bucket, jobs) = self.pushes.pop_front().expect("one is there");
                for some in jobs.chunks(1_000) {
                    self.case.lpush(&bucket, &some.iter().map(String::as_str).collect::<Vec<_>>());
                }
                changed.push(bucket);
            }
            let is_away = self.away.iter().any(|(from, to)| (*from..*to).contains(&(self.now - T0)));
            if !is_away && !changed.is_empty() {
                for some in changed.chunks(100) {
                    let names: Vec<&str> = some.iter().map(String::as_str).collect();
                    self.call(&names);
                }
            } else if is_away {
                self.unseen = changed; // who comes back looks for what was pushed meanwhile
            } else if self.now >= self.next_call {
                self.call(&[]);
            }
            self.work();
            self.now += TICK;
        }
    }

    /// Somebody changed something: the daemons call.
    pub(super) fn is_woken(&mut self) {
        self.next_call = self.now;
    }

    /// One call of a daemon, and further ones where it did not look at all of these queues. It calls again when the reply says so.
    fn call(&mut self, names: &[&str]) {
        let mut names = names;
        loop {
            let (drained, looked) = if names.is_empty() {
                (self.case.drain_at(self.now), 0)
            } else {
                self.case.wake_some_at(self.now, names)
            };
            self.calls += 1;
            self.in_vain += u64::from(drained.dispatched == 0 && drained.wait_us == 0);
            self.next_call = if drained.wait_us < 0 { u64::MAX } else { self.now + drained.wait_us as u64 };
            names = &names[looked..];
            if names.is_empty() {
                return;
            }
        }
    }

    fn work(&mut self) {
        let mut free = false;
        for k in 0..self.hands.len() {
            let (hand, busy_until, held) = &mut self.hands[k];
            if *busy_until > self.now {
                continue;
            }
            let (is_there, count, fails, route) = (hand.is_there(self.now), hand.count, hand.fails, hand.route);
            let ready = if route == "default" { "ready".to_owned() } else { format!("ready:{route}") };
            // xorshift: a random number of the range.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let spread = hand.service_us * hand.varies / 1_000;
            let service_us = hand.service_us - spread + self.random % (2 * spread + 1);
            for entry in std::mem::take(held) {
                self.done += 1;
                let (id, now) = (entry.id, self.now.to_string());
                if fails > 0 && self.done.is_multiple_of(fails) {
                    let _: i64 = self.case.fcall("drip__fail", &[&ready], &[now.as_str(), &id, "RETRY_IN", "0"]);
                } else {
                    let _: i64 = self.case.fcall("drip__ack", &[&ready], &[now, id]);
                }
            }
            if !is_there {
                continue;
            }
            let taken = self.case.take(&ready, count);
            if taken.is_empty() {
                free = true;
                continue;
            }
            self.deliveries.extend(taken.iter().map(|entry| Delivery {
                at: self.now,
                bucket: entry.text("bucket"),
                job: entry.text("job"),
                left_at: entry.number("at_us"),
            }));
            self.hands[k].1 = self.now + service_us;
            self.hands[k].2 = taken;
        }
        let waits = free && !self.case.held("default").is_empty();
        match (waits, self.idle_since) {
            (true, None) => self.idle_since = Some(self.now),
            (false, Some(since)) => {
                self.starved.push(self.now - since);
                self.idle_since = None;
            }
            _ => {}
        }
    }

    /// When the jobs of each bucket were delivered.
    pub(super) fn by_bucket(&self) -> BTreeMap<String, Vec<u64>> {
        let mut of: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for one in &self.deliveries {
            of.entry(one.bucket.clone()).or_default().push(one.at);
        }
        of
    }

    /// For how long each job of a bucket that was pushed by itself at these times waited.
    pub(super) fn waits(&self, bucket: &str, pushed: &BTreeMap<String, u64>) -> Vec<u64> {
        let of_it = self.deliveries.iter().filter(|one| one.bucket == bucket);
        of_it.map(|one| one.at - T0 - pushed[&one.job]).collect()
    }

    /// The most that were delivered of a bucket in any second.
    pub(super) fn most_in_a_second(&self, bucket: &str) -> usize {
        let at = &self.by_bucket()[bucket];
        let within = |i: usize| at[i..].iter().take_while(|to| *to - at[i] < S).count();
        (0..at.len()).map(within).max().unwrap_or(0)
    }

    /// Nothing stands in two places or in none.
    #[track_caller]
    pub(super) fn audit(&mut self) {
        super::flow::audit(&mut self.case);
    }
}
