//! The functions against a small reference model: random sequences of pushes through both doors, wakes, drains, takes,
//! acks, fails, reaps, clock steps and policy changes. Every reply and the whole state are compared after every step.
//!
//! The model is written from the contract, with exact arithmetic and no thought for speed: one call of it does what any
//! number of bounded calls of the functions do in the end.

mod operators;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use crate::rig::{Case, MS, S};

const BUCKETS: [&str; 4] = ["a", "b", "slow", "mail"];

/// The policies that a sequence changes between, in the words of `config.toml`.
const CONFIGS: [&str; 4] = [
    "[defaults]\nrate = '7/s'\ncapacity = 4\nlease = '2s'\nattempts = 3\nbackoff = { initial = '300ms', max = '1s' }\n",
    "[defaults]\nrate = '3/s'\ncapacity = 2\nlease = '5s'\nattempts = 2\nbackoff = { initial = '100ms', max = '10s' }\ncatch_up = '0s'\n\
     [[bucket]]\nmatch = 's*'\nrate = '1/10s'\ncapacity = 6\n[[bucket]]\nmatch = 'mail'\nroute = 'mail'\noverflow = 'drop-oldest'\ncapacity = 3\n\
     [limits]\nmax_ready = 4\n",
    "[defaults]\nrate = '1000/s'\ncapacity = 6\nlease = '1s'\ncatch_up = '50ms'\n[[bucket]]\nmatch = '*l*'\nrate = '1/s'\ncapacity = 1\n\
     [limits]\nmax_ready = 3\nmax_job_bytes = 3\n",
    "[defaults]\nrate = '333/s'\ncapacity = 8\noverflow = 'drop-oldest'\nroute = 'mail'\nlease = '3s'\n[limits]\nmax_ready = 5\n",
];

#[derive(Debug, Clone)]
enum Op {
    Plain(usize, usize),
    Atomic(usize, usize),
    Peek(usize),
    Wake(Vec<usize>),
    Drain,
    Take(usize),
    Ack(usize),
    Fail(usize, Option<u64>, bool, bool),
    Reap,
    Advance(u64),
    StepBack(u64),
    Configure(usize),
    Operate(operators::Op),
}

fn op() -> impl Strategy<Value = Op> {
    let bucket = 0..BUCKETS.len();
    prop_oneof![
        4 => (bucket.clone(), 1..5_usize).prop_map(|(b, n)| Op::Plain(b, n)),
        4 => (bucket.clone(), 1..5_usize).prop_map(|(b, n)| Op::Atomic(b, n)),
        2 => bucket.clone().prop_map(Op::Peek),
        4 => prop::collection::vec(bucket, 1..4).prop_map(Op::Wake),
        6 => Just(Op::Drain),
        4 => (1..6_usize).prop_map(Op::Take),
        3 => (0..8_usize).prop_map(Op::Ack),
        4 => (0..8_usize, prop::option::of(prop_oneof![Just(0), Just(250), Just(60_000)]), any::<bool>(), prop::bool::weighted(0.15))
            .prop_map(|(n, wait, keep, dead)| Op::Fail(n, wait, keep, dead)),
        2 => Just(Op::Reap),
        8 => prop_oneof![Just(1), Just(10), Just(130), Just(1_000), Just(3_500), Just(20_000)].prop_map(Op::Advance),
        1 => prop_oneof![Just(50), Just(2_000), Just(3_600_000)].prop_map(Op::StepBack),
        2 => (0..CONFIGS.len()).prop_map(Op::Configure),
        3 => operators::op().prop_map(Op::Operate),
    ]
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Policy {
    count: u128,
    period: u128,
    pub(super) capacity: usize,
    pub(super) lease_ms: u64,
    attempts: u64,
    backoff: (u64, u64),
    pub(super) drop_oldest: bool,
    pub(super) route: String,
    pub(super) catch_up: u64,
}

#[derive(Debug, Clone)]
struct Record {
    json: String,
    value: serde_json::Value,
}

impl Record {
    fn new(toml: &str) -> Self {
        let json = crate::rig::record(toml);
        Self { value: serde_json::from_str(&json).expect("JSON"), json }
    }

    fn limit(&self, name: &str) -> usize {
        self.value["limits"][name].as_u64().expect("a number") as usize
    }

    /// The globs of the configurations above, by hand.
    fn policy(&self, bucket: &str) -> Policy {
        let matches = |glob: &str| match glob {
            "s*" => bucket.starts_with('s'),
            "mail" => bucket == "mail",
            "*l*" => bucket.contains('l'),
            other => panic!("{other}"),
        };
        let entries = self.value["buckets"].as_array().expect("entries");
        let entry = entries.iter().find(|entry| matches(entry["match"].as_str().expect("a glob")));
        let own = entry.map(|entry| &entry["policy"]);
        Policy::read(|name| own.and_then(|own| own.get(name)).unwrap_or(&self.value["defaults"][name]))
    }
}

impl Policy {
    /// From its fields as a record holds them.
    pub(super) fn read<'a>(field: impl Fn(&str) -> &'a serde_json::Value) -> Self {
        let n = |name: &str| field(name).as_u64().expect("a number");
        Self {
            count: n("count").into(),
            period: n("period_us").into(),
            capacity: n("capacity") as usize,
            lease_ms: n("lease_ms"),
            attempts: n("attempts"),
            backoff: (n("backoff_initial_us"), n("backoff_max_us")),
            drop_oldest: field("overflow") == "drop-oldest",
            route: field("route").as_str().expect("a route").to_owned(),
            catch_up: n("catch_up_us"),
        }
    }

    fn part(&self, k: u128) -> u128 {
        k * self.period / self.count
    }

    /// One interval later, the remainder carried: parts of a period begin at floor(k * period / count).
    pub(super) fn after(&self, t: u64) -> u64 {
        let t = u128::from(t);
        let (base, r) = (t - t % self.period, t % self.period);
        let k = ((r + 1) * self.count).div_ceil(self.period) - 1;
        (base + self.part(k + 1) + (r - self.part(k))) as u64
    }

    fn interval(&self) -> u64 {
        self.period.div_ceil(self.count) as u64
    }

    fn eta_ms(&self, due: u64, now: u64, n: usize) -> i64 {
        let scaled = (i128::from(due) - i128::from(now)) * self.count as i128 + (n as i128 - 1) * self.period as i128;
        let unit = 1_000 * self.count as i128;
        scaled.max(0).div_euclid(unit) as i64 + i64::from(scaled.max(0) % unit != 0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Retry {
    ends: u64,
    member: String,
    delay: u64,
}

#[derive(Debug, Clone, PartialEq)]
struct Ready {
    id: String,
    route: String,
    bucket: String,
    job: String,
    attempt: u64,
    kept: u64,
    due: u64,
    at: u64,
    lease_ms: u64,
    first: Option<String>,
    taken_ms: Option<u64>,
}

/// The end of a bucket's first back-off; `None`: it is over, and the bucket was scheduled for it.
type Announced = Option<u64>;

struct Model {
    record: Record,
    prev: Option<Record>,
    spread: BTreeSet<String>,
    queues: BTreeMap<String, VecDeque<String>>,
    levels: BTreeMap<String, usize>,
    schedule: BTreeMap<String, u64>,
    held: BTreeMap<String, (String, u64)>,
    /// Without work, and not past their due.
    rest: BTreeMap<String, u64>,
    /// When those at rest were last forgotten.
    forgot: u64,
    retries: BTreeMap<String, BTreeSet<Retry>>,
    index: BTreeMap<String, Announced>,
    ready: Vec<Ready>,
    rejected: Vec<(String, String, &'static str)>,
    dead: Vec<(String, String, u64, String, String)>,
}

struct State {
    policy: Policy,
    fresh: bool,
    due: Option<u64>,
    keeps: usize,
}

impl Model {
    fn new(record: Record) -> Self {
        Self {
            record,
            prev: None,
            spread: BTreeSet::new(),
            queues: BTreeMap::new(),
            levels: BTreeMap::new(),
            schedule: BTreeMap::new(),
            held: BTreeMap::new(),
            rest: BTreeMap::new(),
            forgot: 0,
            retries: BTreeMap::new(),
            index: BTreeMap::new(),
            ready: Vec::new(),
            rejected: Vec::new(),
            dead: Vec::new(),
        }
    }

    fn len(&self, bucket: &str) -> usize {
        self.queues.get(bucket).map_or(0, VecDeque::len)
    }

    fn look(&self, now: u64, bucket: &str) -> State {
        let policy = self.record.policy(bucket);
        let mut due = self.schedule.get(bucket).copied().or(self.held.get(bucket).map(|(_, due)| *due));
        due = due.or(self.rest.get(bucket).copied());
        let mut bound = policy.capacity.max(self.levels.get(bucket).copied().unwrap_or(0));
        let mut fresh = false;
        if let Some(prev) = self.prev.as_ref().filter(|_| !self.spread.contains(bucket)) {
            let old = prev.policy(bucket);
            fresh = true;
            bound = bound.max(old.capacity);
            if (old.count, old.period) != (policy.count, policy.period) {
                due = due.map(|due| policy.after(due - (old.period / old.count) as u64).max(due.min(now)));
            }
        }
        due = due.map(|due| due.min(now + policy.interval()));
        due = due.filter(|due| *due > now || !self.rest.contains_key(bucket));
        State { policy, fresh, due, keeps: self.len(bucket).min(bound) }
    }

    fn set_level(&mut self, bucket: &str, capacity: usize) {
        let len = self.len(bucket);
        if len > capacity {
            self.levels.insert(bucket.into(), len)
        } else {
            self.levels.remove(bucket)
        };
    }

    fn cut(&mut self, bucket: &str, keeps: usize, drop_oldest: bool) {
        let queue = self.queues.entry(bucket.into()).or_default();
        let over = queue.len() - keeps;
        let gone: Vec<String> =
            if drop_oldest { queue.drain(..over).collect() } else { queue.drain(keeps..).collect() };
        let reason = if drop_oldest { "dropped" } else { "full" };
        self.rejected.extend(gone.into_iter().map(|job| (bucket.to_owned(), job, reason)));
    }

    fn settle(&mut self, bucket: &str, state: &State) {
        self.cut(bucket, state.keeps, state.policy.drop_oldest);
        self.set_level(bucket, state.policy.capacity);
        if state.fresh {
            self.spread.insert(bucket.into());
        }
    }

    /// Drop the buckets at rest whose due is over, at most every 100 ms, and not while a change spreads: it may put a due off.
    fn forget(&mut self, now: u64) {
        let is_soon = (self.forgot..self.forgot + 100 * MS).contains(&now);
        if !is_soon && self.prev.is_none() && self.rest.values().any(|due| *due <= now) {
            self.rest.retain(|_, due| *due > now);
            self.forgot = now;
        }
    }

    /// A bucket with work waits for its own due first, and only then for its route.
    fn store_due(&mut self, now: u64, bucket: &str, due: u64) {
        let route = self.record.policy(bucket).route;
        match self.held.get_mut(bucket) {
            Some(held) if due <= now && held.0 == route => held.1 = due,
            held => {
                // Time spent held is no lateness.
                let due = if held.is_some() { due.max(now) } else { due };
                self.schedule(bucket, due);
            }
        }
    }

    fn schedule(&mut self, bucket: &str, due: u64) {
        self.rest.remove(bucket);
        self.held.remove(bucket);
        self.schedule.insert(bucket.into(), due);
    }

    fn push(&mut self, now: u64, bucket: &str, jobs: &[String]) -> Option<[i64; 5]> {
        let state = self.look(now, bucket);
        let limit = self.record.limit("max_job_bytes");
        if jobs.iter().any(|job| job.len() > limit) {
            return None;
        }
        self.settle(bucket, &state);
        let p = &state.policy;
        let mut due = state.due;
        let accepted = if p.drop_oldest { jobs.len() } else { jobs.len().min(p.capacity.saturating_sub(state.keeps)) };
        if accepted > 0 {
            let working = match self.index.get(bucket) {
                Some(None) => true,
                Some(Some(ends)) => *ends <= now,
                None => false,
            };
            if due.is_none_or(|due| due < now && state.keeps == 0 && !working) {
                due = Some(now);
            }
            let level = p.capacity.max(state.keeps);
            self.queues.entry(bucket.into()).or_default().extend(jobs[..accepted].iter().cloned());
            if self.len(bucket) > level {
                self.cut(bucket, level, true);
            }
        }
        // Before it moves: one that its old route held goes on now by the route that it has now, with no credit.
        let (depth, reckoned) = (self.len(bucket), self.reckoned(now, bucket, due));
        if let Some(due) = due {
            self.store_due(now, bucket, due);
        } else if self.rest.get(bucket).is_some_and(|due| *due > now) {
            self.rest.remove(bucket); // by a new rate it rested for long enough
        }
        let due = reckoned;
        let retry = ((due as i64 - now as i64).div_euclid(1_000)
            + i64::from((due as i64 - now as i64).rem_euclid(1_000) != 0))
        .max(1);
        let all = accepted == jobs.len();
        let eta = if accepted == 0 { -1 } else { p.eta_ms(due, now, depth) };
        Some([accepted as i64, depth as i64, p.capacity as i64, if all { -1 } else { retry }, eta])
    }

    fn peek(&self, now: u64, bucket: &str) -> [i64; 5] {
        let state = self.look(now, bucket);
        let (p, depth, due) = (&state.policy, state.keeps, self.reckoned(now, bucket, state.due));
        let full = depth >= p.capacity && !p.drop_oldest;
        let wait = due as i64 - now as i64;
        let retry = (wait.div_euclid(1_000) + i64::from(wait.rem_euclid(1_000) != 0)).max(1);
        let eta = if depth == 0 { -1 } else { p.eta_ms(due, now, 1) };
        [0, depth as i64, p.capacity as i64, if full { retry } else { -1 }, eta]
    }

    /// The due that a reply reckons with: of a held bucket as if that ended now.
    fn reckoned(&self, now: u64, bucket: &str, due: Option<u64>) -> u64 {
        due.map_or(now, |due| if self.held.contains_key(bucket) { due.max(now) } else { due })
    }

    /// Replies how many jobs left: those that came into buckets without work that may go. A bucket on the schedule keeps its turn.
    fn wake(&mut self, now: u64, buckets: &[&str]) -> usize {
        self.begin(now);
        let mut left = 0;
        for bucket in buckets {
            if self.len(bucket) > 0 {
                let mut state = self.look(now, bucket);
                if let Some(due) = state.due {
                    self.settle(bucket, &state);
                    self.store_due(now, bucket, due);
                } else {
                    self.rest.remove(*bucket);
                    state.due = Some(now);
                    left += self.visit(now, bucket, state);
                }
            }
        }
        left
    }

    /// What every call does first: held buckets go on where there is room, and back-offs end.
    fn begin(&mut self, now: u64) {
        for route in ["default", "mail"] {
            let held = self.held.iter().filter(|(_, (name, _))| name == route);
            let mut held: Vec<(u64, String)> = held.map(|(bucket, (_, due))| (*due, bucket.clone())).collect();
            held.sort();
            for (due, bucket) in held.into_iter().take(self.room(route)) {
                self.held.remove(&bucket);
                self.schedule.insert(bucket, due.max(now));
            }
        }
        let ended = self.index.iter().filter(|(_, announced)| announced.is_some_and(|ends| ends <= now));
        for bucket in ended.map(|(bucket, _)| bucket.clone()).collect::<Vec<_>>() {
            self.index.insert(bucket.clone(), None);
            if !self.held.contains_key(&bucket) && !self.schedule.contains_key(&bucket) {
                let state = self.look(now, &bucket);
                if state.fresh {
                    self.settle(&bucket, &state); // what changed reaches it before its due becomes now
                }
                self.schedule(&bucket, state.due.unwrap_or(now).max(now));
            }
        }
    }

    fn room(&self, route: &str) -> usize {
        let undelivered = self.ready.iter().filter(|entry| entry.route == route && entry.taken_ms.is_none()).count();
        self.record.limit("max_ready").saturating_sub(undelivered)
    }

    /// Everything that drains do at one moment, however many it takes. Replies how many jobs left.
    fn drain(&mut self, now: u64) -> usize {
        self.begin(now);
        self.drain_begun(now)
    }

    /// The same in a call that has begun already.
    fn drain_begun(&mut self, now: u64) -> usize {
        let mut left = 0;
        loop {
            let before = (left, self.prev.is_some(), self.schedule.clone(), self.held.clone(), self.index.clone());
            // A sweep takes the held buckets first and those on the schedule last, and what has become due in between leaves in between.
            for part in [Self::sweep_held, Self::sweep_rest, Self::sweep_schedule] {
                left += self.turns(now);
                self.forget(now);
                part(self, now);
                self.begin(now);
            }
            if before == (left, false, self.schedule.clone(), self.held.clone(), self.index.clone()) {
                return left;
            }
        }
    }

    /// The turns of the buckets that are due, the longest due first. Replies how many jobs left.
    fn turns(&mut self, now: u64) -> usize {
        let due = self.schedule.iter().map(|(bucket, due)| (*due, bucket.clone()));
        let mut due: Vec<(u64, String)> = due.filter(|(due, _)| *due <= now).collect();
        due.sort();
        let mut left = 0;
        for (_, bucket) in due {
            let state = self.look(now, &bucket);
            left += self.visit(now, &bucket, state);
        }
        left
    }

    fn visit(&mut self, now: u64, bucket: &str, state: State) -> usize {
        self.settle(bucket, &state);
        let p = state.policy;
        let (mut due, mut left) = (state.due.expect("scheduled"), 0);
        let next = |due: u64| p.after(due.max(now - p.catch_up));
        let announced = self.index.get(bucket) == Some(&None);
        while announced && due <= now && self.room(&p.route) > 0 {
            let retries = self.retries.entry(bucket.into()).or_default();
            let Some(retry) = retries.first().filter(|retry| retry.ends <= now).cloned() else { break };
            retries.remove(&retry);
            let words: Vec<&str> = retry.member.splitn(8, ' ').collect();
            self.dispatch(
                now,
                bucket,
                &p,
                due,
                words[7],
                words[4].parse().expect("attempt"),
                Some((words[6].to_owned(), words[5].parse().expect("kept"))),
            );
            due = next(due);
            left += 1;
        }
        let mut working = false;
        if announced {
            match self.retries.get(bucket).and_then(|retries| retries.first()) {
                None => drop(self.index.remove(bucket)),
                Some(retry) if retry.ends <= now => working = true,
                Some(retry) => drop(self.index.insert(bucket.into(), Some(retry.ends))),
            }
        }
        let limit = self.record.limit("max_job_bytes");
        while due <= now && self.room(&p.route) > 0 {
            let Some(job) = self.queues.get_mut(bucket).and_then(VecDeque::pop_front) else { break };
            if job.len() > limit {
                self.rejected.push((bucket.into(), job, "too_large"));
            } else {
                self.dispatch(now, bucket, &p, due, &job, 1, None);
                due = next(due);
                left += 1;
            }
        }
        self.set_level(bucket, p.capacity);
        self.schedule.remove(bucket);
        match (due > now, self.len(bucket) > 0 || working) {
            (true, true) => drop(self.schedule.insert(bucket.into(), due)),
            (true, false) => drop(self.rest.insert(bucket.into(), due)),
            (false, true) => drop(self.held.insert(bucket.into(), (p.route.clone(), due))),
            (false, false) => {}
        }
        left
    }

    #[allow(clippy::too_many_arguments)]
    fn dispatch(
        &mut self,
        now: u64,
        bucket: &str,
        p: &Policy,
        due: u64,
        job: &str,
        attempt: u64,
        first: Option<(String, u64)>,
    ) {
        let (first, kept) = first.map_or((None, 0), |(id, kept)| (Some(id), kept));
        self.ready.push(Ready {
            id: String::new(),
            route: p.route.clone(),
            bucket: bucket.into(),
            job: job.into(),
            attempt,
            kept,
            due,
            at: now,
            lease_ms: p.lease_ms,
            first,
            taken_ms: None,
        });
    }

    /// What a sweep does to the buckets that wait with work.
    fn sweep_all(&mut self, now: u64, names: Vec<String>) {
        for bucket in names {
            let state = self.look(now, &bucket);
            if self.prev.is_some() {
                self.settle(&bucket, &state);
            }
            self.store_due(now, &bucket, state.due.expect("scheduled"));
        }
    }

    fn sweep_held(&mut self, now: u64) {
        self.sweep_all(now, self.held.keys().cloned().collect());
    }

    fn sweep_rest(&mut self, now: u64) {
        for bucket in self.rest.keys().cloned().collect::<Vec<_>>() {
            let state = self.look(now, &bucket);
            if self.prev.is_some() {
                self.settle(&bucket, &state);
            }
            match state.due {
                Some(due) => drop(self.rest.insert(bucket, due)),
                None if self.prev.is_some() => drop(self.rest.remove(&bucket)),
                None => {}
            }
        }
    }

    /// Then the change that spread is over; and it looks at the back-offs.
    fn sweep_schedule(&mut self, now: u64) {
        self.sweep_all(now, self.schedule.keys().cloned().collect());
        self.prev = None;
        self.spread.clear();
        for (bucket, retries) in &mut self.retries {
            let clamped: BTreeSet<Retry> =
                retries.iter().map(|r| Retry { ends: r.ends.min(now + r.delay), ..r.clone() }).collect();
            if clamped != *retries {
                *retries = clamped;
                if let Some(Some(ends)) = self.index.get_mut(bucket) {
                    *ends = retries.first().expect("some").ends;
                }
            }
        }
    }

    fn pending(&self) -> Vec<usize> {
        (0..self.ready.len()).filter(|n| self.ready[*n].taken_ms.is_some()).collect()
    }

    fn fail(&mut self, now: u64, n: usize, wait: Option<u64>, keep: bool, dead: bool, reason: &str) -> i64 {
        let entry = self.ready.remove(n);
        let p = self.record.policy(&entry.bucket);
        let first = entry.first.clone().unwrap_or(entry.id.clone());
        let counts = !keep || entry.kept >= 20;
        if dead || (counts && entry.attempt >= p.attempts) {
            self.dead.push((entry.bucket, entry.job, entry.attempt, first, reason.to_owned()));
            return 2;
        }
        let doubled = u128::from(p.backoff.0) << (entry.attempt - 1).min(60);
        let delay = wait.map_or(doubled.min(p.backoff.1.into()) as u64, |ms| ms * MS);
        let (next, kept) = (entry.attempt + u64::from(counts), entry.kept + u64::from(keep));
        let member = format!("2 {} {} {delay} {next} {kept} {first} {}", entry.id, entry.route, entry.job);
        let ends = now + delay;
        self.retries.entry(entry.bucket.clone()).or_default().insert(Retry { ends, member, delay });
        match self.index.get(&entry.bucket) {
            None => drop(self.index.insert(entry.bucket, Some(ends))),
            Some(Some(first)) if *first > ends => drop(self.index.insert(entry.bucket, Some(ends))),
            Some(_) => {}
        }
        1
    }

    fn configure(&mut self, now: u64, record: Record) -> i64 {
        if record.json == self.record.json {
            return 0;
        }
        if self.prev.is_some() {
            return -1;
        }
        let old = std::mem::replace(&mut self.record, record);
        if !self.schedule.is_empty() || !self.held.is_empty() || self.rest.values().any(|due| *due > now) {
            self.prev = Some(old);
            self.spread.clear();
        }
        1
    }
}

/// The real thing and the model side by side.
struct Pair {
    case: Case,
    model: Model,
    now: u64,
    pushed: u64,
}

impl Pair {
    fn new() -> Self {
        let mut case = Case::with(CONFIGS[0]);
        let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
        // Some days ago, so that however far a sequence goes no delivery lies in the server's future.
        let now = (seconds - 40 * 86_400) * S;
        case.settle_at(now);
        Self { case, model: Model::new(Record::new(CONFIGS[0])), now, pushed: 0 }
    }

    /// Jobs no two of which are the same, save every fifth; some are longer than the smallest limit.
    fn jobs(&mut self, n: usize) -> Vec<String> {
        let job = |n: u64| match (n.is_multiple_of(5), n.is_multiple_of(11)) {
            (true, _) => "=".to_owned(),
            (_, true) => format!("{n}-long"),
            _ => n.to_string(),
        };
        self.pushed += n as u64;
        (self.pushed - n as u64..self.pushed).map(job).collect()
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = self.now;
        match op {
            Op::Plain(b, n) => {
                let jobs = self.jobs(*n);
                let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
                let length = self.case.lpush(BUCKETS[*b], &refs);
                self.model.queues.entry(BUCKETS[*b].into()).or_default().extend(jobs);
                prop_assert_eq!(length as usize, self.model.len(BUCKETS[*b]));
            }
            Op::Atomic(b, n) => {
                let jobs = self.jobs(*n);
                let expect = self.model.push(now, BUCKETS[*b], &jobs);
                let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
                if let Some(expect) = expect {
                    prop_assert_eq!(self.case.push_at(now, BUCKETS[*b], &refs), expect);
                } else {
                    let args: Vec<String> = [now.to_string()].into_iter().chain(jobs.clone()).collect();
                    let code = self.case.refusal("drip__push", &[&format!("queue:{}", BUCKETS[*b])], &args);
                    prop_assert_eq!(code, "TOOLARGE");
                }
            }
            Op::Peek(b) => prop_assert_eq!(self.case.peek_at(now, BUCKETS[*b]), self.model.peek(now, BUCKETS[*b])),
            Op::Wake(which) => {
                let names: BTreeSet<&str> = which.iter().map(|b| BUCKETS[*b]).collect();
                let names: Vec<&str> = names.into_iter().collect();
                let woken = self.case.wake_at(now, &names);
                let drained = self.drain_real();
                let expect = self.model.wake(now, &names) + self.model.drain_begun(now);
                prop_assert_eq!(woken.dispatched as usize + drained.0, expect);
            }
            Op::Drain => {
                let drained = self.drain_real();
                let expect = self.model.drain(now);
                prop_assert_eq!(drained.0, expect);
                let waits = self.model.schedule.values().copied();
                let waits = waits.chain(self.model.index.values().filter_map(|ends| *ends));
                let held = (!self.model.held.is_empty()).then_some(now + 20 * MS);
                let wait = waits.chain(held).min().map_or(-1, |at| at as i64 - now as i64);
                // Or sooner, to write counters, once a second.
                let sooner = (0..=S as i64).contains(&drained.1) && (wait == -1 || drained.1 < wait);
                prop_assert!(drained.1 == wait || sooner, "wait {} instead of {wait}", drained.1);
            }
            Op::Take(n) => self.take(*n),
            Op::Ack(n) => {
                let pending = self.model.pending();
                if let Some(at) = pending.get(*n) {
                    let entry = self.model.ready.remove(*at);
                    let stream = stream(&entry.route);
                    if n % 2 == 0 {
                        prop_assert_eq!(self.case.fcall::<i64>("drip_ack", &[&stream], &[&entry.id]), 1);
                    } else {
                        let key = self.case.key(&stream);
                        prop_assert_eq!(self.case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]), 1);
                        self.reap_real(false);
                        self.model.forget(now);
                    }
                    prop_assert_eq!(self.case.fcall::<i64>("drip_ack", &[&stream], &[&entry.id]), 0);
                }
            }
            Op::Fail(n, wait, keep, dead) => {
                let pending = self.model.pending();
                if let Some(at) = pending.get(*n) {
                    let entry = self.model.ready[*at].clone();
                    let (time, ms) = (now.to_string(), wait.unwrap_or(0).to_string());
                    let mut args = vec![time.as_str(), entry.id.as_str()];
                    if wait.is_some() {
                        args.extend(["RETRY_IN", &ms]);
                    }
                    if *keep {
                        args.push("KEEP");
                    }
                    if *dead {
                        args.push("DEAD");
                    }
                    let reply: i64 = self.case.fcall("drip__fail", &[&stream(&entry.route)], &args);
                    prop_assert_eq!(reply, self.model.fail(now, *at, *wait, *keep, *dead, "failed"));
                }
            }
            Op::Reap => {
                self.reap_real(true);
                self.model.forget(now);
                for route in ["default", "mail"] {
                    let now_ms = now / MS;
                    while let Some(at) = self.model.pending().into_iter().find(|at| {
                        let entry = &self.model.ready[*at];
                        let idle = now_ms.saturating_sub(entry.taken_ms.expect("pending"));
                        entry.route == route && idle >= entry.lease_ms.max(1_000)
                    }) {
                        self.model.fail(now, at, None, false, false, "lease expired");
                    }
                }
            }
            Op::Advance(ms) => self.now += ms * MS,
            Op::StepBack(ms) => self.now -= ms * MS,
            Op::Operate(op) => self.operate(op)?,
            Op::Configure(n) => {
                let reply = self.case.configure_at(&now.to_string(), CONFIGS[*n]);
                prop_assert_eq!(reply, self.model.configure(now, Record::new(CONFIGS[*n])));
            }
        }
        self.compare()
    }

    /// Drain until nothing moves any more: a call is bounded, and a full route is released a part at a time.
    fn drain_real(&mut self) -> (usize, i64) {
        let (mut left, mut quiet) = (0, 0);
        loop {
            let drained = self.case.drain_at(self.now);
            left += drained.dispatched as usize;
            quiet = if drained.dispatched == 0 && drained.wait_us != 0 { quiet + 1 } else { 0 };
            if quiet == 6 {
                return (left, drained.wait_us);
            }
        }
    }

    /// Deliver jobs, as if it were the time of the model five milliseconds ago.
    fn take(&mut self, n: usize) {
        for route in ["default", "mail"] {
            let (stream, at) = (stream(route), self.now / MS - 5);
            if self.model.ready.iter().all(|entry| entry.route != route || entry.taken_ms.is_some()) {
                continue;
            }
            let (key, time) = (self.case.key(&stream), at.to_string());
            for entry in self.case.take(&stream, n) {
                let _: redis::Value =
                    self.case.cmd(&["XCLAIM", &key, "workers", "w", "0", &entry.id, "TIME", &time, "JUSTID"]);
                let known = self.model.ready.iter_mut().find(|known| known.route == route && known.id == entry.id);
                known.expect("known").taken_ms = Some(at);
            }
        }
    }

    fn reap_real(&mut self, take_back: bool) {
        let (mut route, mut id) = (String::new(), String::new());
        loop {
            let now = self.now.to_string();
            let args = [now.as_str(), if take_back { "1" } else { "0" }, &route, &id];
            let reply: Vec<redis::Value> = self.case.fcall("drip__reap", &["policy"], &args);
            let text = |n: usize| redis::from_redis_value::<String>(reply[n].clone()).expect("text");
            (route, id) = (text(0), text(1));
            if route.is_empty() {
                return;
            }
        }
    }

    /// The whole state: and the ids of new entries, which Redis chose.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        for bucket in BUCKETS {
            let expect: Vec<String> =
                self.model.queues.get(bucket).map(|q| q.iter().cloned().collect()).unwrap_or_default();
            prop_assert_eq!(self.case.waiting(bucket), expect, "the queue of {}", bucket);
            let retry = self.case.key(&format!("retry:{bucket}"));
            let found: Vec<(String, f64)> = self.case.cmd(&["ZRANGE", &retry, "0", "-1", "WITHSCORES"]);
            let found: Vec<(u64, String)> = found.into_iter().map(|(member, ends)| (ends as u64, member)).collect();
            let retries = self.model.retries.get(bucket).into_iter().flatten();
            let expect: Vec<(u64, String)> = retries.map(|retry| (retry.ends, retry.member.clone())).collect();
            prop_assert_eq!(found, expect, "the retries of {}", bucket);
        }
        let sorted = |case: &mut Case, name: &str| -> BTreeMap<String, f64> {
            let key = case.key(name);
            case.cmd::<Vec<(String, f64)>>(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).into_iter().collect()
        };
        let expect: BTreeMap<String, f64> =
            self.model.schedule.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(sorted(&mut self.case, "schedule"), expect, "the schedule");
        let expect: BTreeMap<String, f64> = self.model.rest.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(sorted(&mut self.case, "rest"), expect, "at rest");
        for route in ["default", "mail"] {
            let held = self.model.held.iter().filter(|(_, (r, _))| r == route);
            let expect: BTreeMap<String, f64> = held.map(|(b, (_, due))| (b.clone(), *due as f64)).collect();
            prop_assert_eq!(sorted(&mut self.case, &format!("held:{route}")), expect, "held by {}", route);
        }
        let expect: BTreeMap<String, f64> = self
            .model
            .index
            .iter()
            .map(|(b, ends)| (b.clone(), ends.map_or(f64::INFINITY, |ends| ends as f64)))
            .collect();
        prop_assert_eq!(sorted(&mut self.case, "retries"), expect, "the index of retries");
        let level = self.case.key("level");
        prop_assert_eq!(
            self.case.cmd::<BTreeMap<String, usize>>(&["HGETALL", &level]),
            self.model.levels.clone(),
            "levels"
        );

        // By bucket: in which order a sweep comes by the buckets is Redis' own affair.
        let mut rejected: Vec<_> =
            self.case.stream("rejected").iter().map(|e| (e.text("bucket"), e.text("job"), e.text("reason"))).collect();
        let mut expect: Vec<_> =
            self.model.rejected.iter().map(|(b, job, why)| (b.clone(), job.clone(), (*why).to_owned())).collect();
        rejected.sort_by(|a, b| a.0.cmp(&b.0));
        expect.sort_by(|a, b| a.0.cmp(&b.0));
        prop_assert_eq!(rejected, expect, "rejected");
        for route in ["default", "mail"] {
            let entries = self.case.stream(&stream(route));
            let mut known: Vec<&mut Ready> = self.model.ready.iter_mut().filter(|entry| entry.route == route).collect();
            prop_assert_eq!(entries.len(), known.len(), "{} {:?} {:?}", route, entries, known);
            for (found, expect) in entries.iter().zip(&mut known) {
                if expect.id.is_empty() {
                    expect.id.clone_from(&found.id);
                }
                let found = Ready {
                    id: found.id.clone(),
                    route: route.into(),
                    bucket: found.text("bucket"),
                    job: found.text("job"),
                    attempt: found.number("attempt"),
                    kept: if found.fields.contains_key("kept") { found.number("kept") } else { 0 },
                    due: found.number("due_us"),
                    at: found.number("at_us"),
                    lease_ms: found.number("lease_ms"),
                    first: found.fields.contains_key("id").then(|| found.text("id")),
                    taken_ms: expect.taken_ms,
                };
                prop_assert_eq!(&found, &**expect);
            }
        }
        let dead: Vec<_> = self
            .case
            .stream("dead")
            .iter()
            .map(|e| (e.text("bucket"), e.text("job"), e.number("attempt"), e.text("id"), e.text("reason")))
            .collect();
        prop_assert_eq!(&dead, &self.model.dead, "dead");
        Ok(())
    }
}

pub(super) fn stream(route: &str) -> String {
    if route == "default" { "ready".to_owned() } else { format!("ready:{route}") }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_functions_do_what_the_model_does(ops in prop::collection::vec(op(), 1..60)) {
        let mut pair = Pair::new();
        for (n, op) in ops.iter().enumerate() {
            pair.step(op).map_err(|why| TestCaseError::fail(format!("step {n}, {op:?}: {why}")))?;
        }
        let names = pair.case.keys();
        let keys: Vec<String> = names.iter().map(|name| pair.case.key(name)).collect();
        let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        let _: i64 = pair.case.cmd(&words);
    }
}
