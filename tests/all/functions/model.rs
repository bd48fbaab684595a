//! The functions against a small reference model: random sequences of pushes through both doors, submits with all options, wakes, drains,
//! takes, acks, fails, slow-downs, reaps, what operators do, what others do to entries and to a list that jobs are forwarded into, clock steps and policy changes. Every reply and
//! the whole state are compared after every step.
//!
//! The model is written from the contract, with exact arithmetic and no thought for speed: one call of it does what any
//! number of bounded calls of the functions do in the end.

mod compare;
mod counted;
mod fates;
mod jobs;
mod lists;
mod many;
mod operators;
mod options;
mod pace;
mod policy;
mod reference;
mod settings;
mod slow;
mod strangers;
mod submit;
mod turns;
mod workers;

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

pub(super) use fates::{Back, Fate, GivenBack, Tries};
use jobs::Job;
pub(super) use pace::{Pace, Paid};
use policy::Record;
pub(super) use policy::{Policy, Rate, Slowing};
use reference::Model;
pub(super) use slow::{FIRST, Slow};

use crate::rig::{Case, MS, S, Server, load_library};

const BUCKETS: [&str; 4] = ["a", "b", "slow", "mail"];

/// The policies that a sequence changes between, in the words of `config.toml`. By the last two the route `mail` forwards into a list, at one end of it and at the other.
const CONFIGS: [&str; 8] = [
    "[defaults]\ncost_max = 100000\nrate = '7/s'\ncapacity = 4\nlease = '2s'\nattempts = 3\nbackoff = { initial = '300ms', max = '1s' }\n",
    "[defaults]\ncost_max = 100000\nrate = '3/s'\ncapacity = 2\nlease = '5s'\nattempts = 2\nbackoff = { initial = '100ms', max = '10s' }\ncatch_up = '0s'\n\
     slow = { initial = '300ms', max = '2s', cap = '5s' }\ndedup = '3s'\n[[bucket]]\nmatch = 's*'\nrate = '1/10s'\njob_rate = '1/4s'\ncapacity = 2\nslow = { adaptive = true }\n\
     [[bucket]]\nmatch = 'mail'\nroute = 'mail'\noverflow = 'drop-oldest'\ncapacity = 3\nconcurrency = 2\n\
     admit = { limiter = 'fixed-window', limit = 4, period = '3s' }\n[limits]\nmax_ready = 4\nready_window = '300ms'\n",
    "[defaults]\ncost_max = 100000\nrate = '1000/s'\ncapacity = 6\nlease = '1s'\ncatch_up = '50ms'\njob_rate = '3/s'\nttl = '2s'\n\
     [[bucket]]\nmatch = '*l*'\nrate = '1/s'\ncapacity = 1\ndedup = '1s'\n[limits]\nmax_ready = 3\nmax_job_bytes = 3\n",
    "[defaults]\ncost_max = 100000\nrate = '333/s'\ncapacity = 8\noverflow = 'drop-oldest'\nroute = 'mail'\nlease = '3s'\nslow = { max = '20s', adaptive = true }\n[limits]\nmax_ready = 5\nready_window = '40ms'\n\
     [[bucket]]\nmatch = '*l*'\nconcurrency = 3\n",
    "[defaults]\ncost_max = 100000\nrate = '30/s'\njob_rate = '8/s'\ncapacity = 5\nlease = '4s'\ndedup = '20s'\n\
     admit = { limiter = 'fixed-window', limit = 6, period = '2s' }\nslow = { initial = '10ms', adaptive = true }\n\
     [[bucket]]\nmatch = 's*'\nttl = '30s'\njob_rate = '11/10s'\nadmit = []\n",
    "[defaults]\ncost_max = 100000\nrate = '20/s'\ncapacity = 6\nlease = '2s'\nattempts = 4\nbackoff = { initial = '400ms', max = '3s' }\nconcurrency = 1\nordered = true\n\
     slow = { initial = '200ms', max = '1s' }\n[[bucket]]\nmatch = 's*'\nrate = '1/3s'\njob_rate = '1/2s'\nattempts = 2\n\
     [[bucket]]\nmatch = 'mail'\nroute = 'mail'\nordered = false\n[limits]\nmax_ready = 2\nready_window = '2s'\n",
    "[[route]]\nname = 'mail'\nto = 'K0'\nregister = { set = 'K1', member = 'them' }\nnotify = 'K2'\n\
     [defaults]\ncost_max = 100000\nrate = '25/s'\ncapacity = 5\nroute = 'mail'\njob_rate = '9/s'\nttl = '6s'\ndedup = '4s'\nlease = '2s'\nconcurrency = 1\nordered = true\n\
     slow = { initial = '100ms', adaptive = true }\n[[bucket]]\nmatch = 's*'\nroute = 'default'\nrate = '3/s'\n\
     [[bucket]]\nmatch = 'mail'\noverflow = 'drop-oldest'\nrate = '400/s'\njob_rate = 'none'\n[limits]\nmax_ready = 3\n",
    "[[route]]\nname = 'mail'\nto = 'K0'\nready_window = 'off'\nend = 'right'\nregister = { set = 'K1', member = 'them' }\nnotify = 'K2'\n\
     [defaults]\ncost_max = 100000\nrate = '15/s'\ncapacity = 4\nlease = '3s'\n[[bucket]]\nmatch = '*l*'\nroute = 'mail'\nrate = '40/s'\n[limits]\nmax_ready = 2\nready_window = '700ms'\n",
];

#[derive(Debug, Clone)]
pub(super) enum Op {
    Plain(usize, usize),
    Atomic(usize, usize),
    Peek(usize),
    Wake(Vec<usize>),
    Drain,
    Ack(usize),
    Fail(usize, Option<u64>, bool, bool),
    Advance(u64),
    StepBack(u64),
    Configure(usize),
    Operate(operators::Op),
    WithOptions(options::Op),
    Set(settings::Op),
    Slow(slow::Op),
    Workers(workers::Op),
    Many(many::Op),
    Lists(lists::Op),
    Strangers(strangers::Op),
}

fn op() -> impl Strategy<Value = Op> {
    let bucket = 0..BUCKETS.len();
    prop_oneof![
        4 => (bucket.clone(), 1..5_usize).prop_map(|(b, n)| Op::Plain(b, n)),
        4 => (bucket.clone(), 1..5_usize).prop_map(|(b, n)| Op::Atomic(b, n)),
        2 => bucket.clone().prop_map(Op::Peek),
        4 => prop::collection::vec(bucket, 1..4).prop_map(Op::Wake),
        6 => Just(Op::Drain),
        3 => (0..8_usize).prop_map(Op::Ack),
        4 => (0..8_usize, prop::option::of(prop_oneof![Just(0), Just(250), Just(60_000)]), any::<bool>(), prop::bool::weighted(0.15))
            .prop_map(|(n, wait, keep, dead)| Op::Fail(n, wait, keep, dead)),
        8 => prop_oneof![
            30 => prop_oneof![Just(1), Just(10), Just(130), Just(1_000), Just(3_500), Just(20_000)],
            1 => Just(86_400_000),
        ].prop_map(Op::Advance),
        1 => prop_oneof![Just(50), Just(2_000), Just(3_600_000)].prop_map(Op::StepBack),
        2 => (0..CONFIGS.len()).prop_map(Op::Configure),
        3 => operators::op().prop_map(Op::Operate),
        16 => options::op().prop_map(Op::WithOptions),
        4 => settings::op().prop_map(Op::Set),
        8 => slow::op().prop_map(Op::Slow),
        10 => workers::op().prop_map(Op::Workers),
        2 => many::op().prop_map(Op::Many),
        6 => lists::op().prop_map(Op::Lists),
        6 => strangers::op().prop_map(Op::Strangers),
    ]
}

/// Where a sequence begins: the last three, in which jobs keep their order, or are forwarded, more often than the others.
fn config() -> impl Strategy<Value = usize> {
    let n = CONFIGS.len();
    prop_oneof![4 => 0..n - 3, 2 => Just(n - 3), 2 => Just(n - 2), 1 => Just(n - 1)]
}

/// The real thing and the model side by side.
struct Pair {
    case: Case,
    model: Model,
    now: u64,
    pushed: u64,
    /// Ids that were made up, with their buckets.
    made: Vec<(usize, String)>,
    /// Where the data moves next, if it does: see [`Pair::fail_over`].
    standby: Option<Case>,
}

impl Pair {
    fn new(config: usize) -> Self {
        Self::on(Case::bare(), None, config)
    }

    fn on(mut case: Case, standby: Option<Case>, config: usize) -> Self {
        Self::give_rights(&case);
        let text = Self::with_keys(&case, CONFIGS[config]);
        assert_eq!(case.configure(&text), 1, "stored");
        let (seconds, _): (u64, u64) = case.cmd(&["TIME"]);
        // Some days ago, so that however far a sequence goes no delivery lies in the server's future.
        let now = (seconds - 40 * 86_400) * S;
        case.settle_at(now);
        Self { case, model: Model::new(Record::new(&text)), now, pushed: 0, made: Vec::new(), standby }
    }

    /// Time passes: enough for another server to have taken over, where it is a second or more.
    fn advance(&mut self, ms: u64) {
        self.now += ms * MS;
        if ms >= 1_000 {
            self.fail_over();
        }
    }

    /// Another server has all data from now on, and the one that had it remembers what it did: all that is remembered of a space is out of date
    /// when the data comes back. The order of turns of held buckets is kept in memory alone, so it begins anew.
    fn fail_over(&mut self) {
        let Some(standby) = &mut self.standby else { return };
        let names = self.case.keys();
        let keys: Vec<String> = names.iter().map(|name| self.case.key(name)).chain(lists::keys(&self.case)).collect();
        for key in keys {
            let dump: Option<Vec<u8>> = redis::cmd("DUMP").arg(&key).query(&mut self.case.redis).expect("its dump");
            if let Some(dump) = dump {
                redis::cmd("RESTORE").arg(&key).arg(0).arg(dump).exec(&mut standby.redis).expect("it has moved");
                redis::cmd("DEL").arg(&key).exec(&mut self.case.redis).expect("it is gone");
            }
        }
        std::mem::swap(&mut self.case, standby);
        self.model.had_turns.clear();
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
        self.now += 1; // so that no two jobs are accepted at the same moment
        let now = self.now;
        self.sees_what_is_out();
        match op {
            Op::Plain(b, n) => {
                let jobs = self.jobs(*n);
                let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
                let length = self.case.lpush(BUCKETS[*b], &refs);
                self.model.queues.entry(BUCKETS[*b].into()).or_default().extend(jobs.iter().map(|job| Job::plain(job)));
                prop_assert_eq!(length as usize, self.model.len(BUCKETS[*b]));
            }
            Op::Atomic(b, n) => {
                let jobs = self.jobs(*n);
                let expect = self.model.push(now, BUCKETS[*b], &jobs);
                let refs: Vec<&str> = jobs.iter().map(String::as_str).collect();
                if let Some(expect) = expect {
                    prop_assert_eq!(self.case.push_at(now, BUCKETS[*b], &refs), expect);
                    self.keep_gate(BUCKETS[*b], expect[0] > 0)?;
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
                let waits = waits.chain(self.model.first_end());
                let held = (!self.model.held.is_empty()).then_some(now + 20 * MS);
                let wait = waits.chain(held).min().map_or(-1, |at| at as i64 - now as i64);
                // Or sooner, to write counters, once a second.
                let sooner = (0..=S as i64).contains(&drained.1) && (wait == -1 || drained.1 < wait);
                prop_assert!(drained.1 == wait || sooner, "wait {} instead of {wait}", drained.1);
            }
            Op::Ack(n) => {
                let pending = self.model.pending();
                if let Some(at) = pending.iter().cycle().nth(*n) {
                    let entry = self.model.finish(now, *at);
                    let stream = stream(&entry.route);
                    // What a plain XACK frees is found later, by a pass of its own.
                    if n % 2 == 0 || entry.holds {
                        let args = [now.to_string(), entry.id.clone()];
                        prop_assert_eq!(self.case.fcall::<i64>("drip__ack", &[&stream], &args), 1);
                        self.model.ends_incidents(now, &entry.bucket, entry.at);
                    } else {
                        let key = self.case.key(&stream);
                        prop_assert_eq!(self.case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]), 1);
                        self.answers_again(*n)?;
                        self.deletes_finished();
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
                    prop_assert_eq!(
                        reply,
                        self.model.fail(now, *at, wait.map_or(Back::Off, Back::In), *keep, *dead, "failed")
                    );
                }
            }
            Op::Advance(ms) => self.advance(*ms),
            Op::StepBack(ms) => self.step_back(*ms)?,
            Op::Operate(op) => self.operate(op)?,
            Op::WithOptions(op) => self.with_options(op)?,
            Op::Set(op) => self.set(op)?,
            Op::Slow(op) => self.slow_down(op)?,
            Op::Workers(op) => self.workers(op)?,
            Op::Many(op) => self.many(op)?,
            Op::Lists(op) => self.lists(op)?,
            Op::Strangers(op) => self.strangers(op)?,
            Op::Configure(n) => self.configure(*n)?,
        }
        self.compare()
    }

    fn step_back(&mut self, ms: u64) -> Result<(), TestCaseError> {
        self.workers(&workers::Op::Take(1_000))?; // the age of what no worker has read counts from when somebody looks
        self.now -= ms * MS;
        self.fail_over(); // what the other server remembers is from a later time
        Ok(())
    }

    fn configure(&mut self, n: usize) -> Result<(), TestCaseError> {
        self.sees_end()?;
        let text = Self::with_keys(&self.case, CONFIGS[n]);
        let reply = self.case.configure_at(&self.now.to_string(), &text);
        prop_assert_eq!(reply, self.model.configure(self.now, Record::new(&text)));
        Ok(())
    }

    /// Drain until nothing moves any more: a call is bounded, and a full route is released a part at a time.
    fn drain_real(&mut self) -> (usize, i64) {
        let (mut left, mut quiet) = (0, 0);
        loop {
            let drained = self.case.drain_at(self.now);
            left += drained.dispatched as usize;
            quiet = if drained.dispatched == 0 && drained.wait_us != 0 { quiet + 1 } else { 0 };
            if quiet == 6 {
                let routes = self.case.routes(self.now);
                self.model.limits = routes.into_iter().map(|route| (route.route, route.limit as usize)).collect();
                return (left, drained.wait_us);
            }
        }
    }
}

pub(super) fn stream(route: &str) -> String {
    if route == "default" { "ready".to_owned() } else { format!("ready:{route}") }
}

/// Where the sequences begin: the same in each run, or anywhere with `$DRIPD_SEED`. There are rare sequences in which model and functions
/// still differ.
pub(super) fn seed() -> RngSeed {
    RngSeed::Fixed(std::env::var("DRIPD_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(55))
}

/// So many sequences take some ten seconds; `PROPTEST_CASES` asks for others.
pub(super) fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(96)
}

/// A beginning, and what happens.
pub(super) fn sequence() -> impl Strategy<Value = (usize, Vec<Op>)> {
    (config(), prop::collection::vec(op(), 1..60))
}

/// Do that, and compare with the model after each step.
pub(super) fn follow(config: usize, ops: &[Op]) -> Result<(), TestCaseError> {
    follow_with(Pair::new(config), ops)
}

fn follow_with(mut pair: Pair, ops: &[Op]) -> Result<(), TestCaseError> {
    for (n, op) in ops.iter().enumerate() {
        pair.step(op).map_err(|why| TestCaseError::fail(format!("step {n}, {op:?}: {why}")))?;
    }
    pair.audit()?;
    let names = pair.case.keys();
    let keys: Vec<String> = names.iter().map(|name| pair.case.key(name)).chain(lists::keys(&pair.case)).collect();
    let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let _: i64 = pair.case.cmd(&words);
    Ok(())
}

/// Sequences in which they once differed.
#[test]
fn sequences_that_once_differed_do_so_no_more() {
    let a_bucket_that_forwarded_and_gets_a_limit = [
        Op::Atomic(2, 1),
        Op::Configure(2),
        Op::Many(many::Op::Order { bucket: 2, is_ordered: false, back_off: 0, lasts: None, by_glob: false }),
    ];
    follow(7, &a_bucket_that_forwarded_and_gets_a_limit).unwrap_or_else(|why| panic!("{why}"));
    let a_held_bucket_whose_due_a_clock_that_steps_back_brings_nearer = [
        Op::Lists(lists::Op::Filled(3)),
        Op::WithOptions(options::Op::Submit(options::Submit::plain(2))),
        Op::Advance(10),
        Op::Wake(vec![0]),
        Op::StepBack(50),
        Op::Wake(vec![0]),
        Op::Workers(workers::Op::Silent { which: 0, is_over: false, times: 1, pause: 40, late: None }),
    ];
    follow(7, &a_held_bucket_whose_due_a_clock_that_steps_back_brings_nearer).unwrap_or_else(|why| panic!("{why}"));
    let a_job_that_left_before_a_slow_down_that_is_forgotten = [
        Op::Atomic(0, 1),
        Op::Drain,
        Op::Workers(workers::Op::Take(1)),
        Op::Slow(slow::Op::Slow(0, Some(1))),
        Op::Advance(700_000),
        Op::Slow(slow::Op::Throttled(0, None)),
    ];
    follow(0, &a_job_that_left_before_a_slow_down_that_is_forgotten).unwrap_or_else(|why| panic!("{why}"));
    let a_bucket_that_had_no_turn_and_one_of_the_same_due_that_had_some = [
        Op::Plain(1, 4),
        Op::Plain(3, 2),
        Op::Wake(vec![3]),
        Op::Atomic(0, 2),
        Op::Configure(2),
        Op::Plain(3, 2),
        Op::Plain(1, 3),
        Op::Wake(vec![2]),
        Op::Configure(3),
        Op::Slow(slow::Op::Slow(1, None)),
        Op::Workers(workers::Op::Silent { which: 0, is_over: true, times: 2, pause: 40, late: None }),
        Op::Atomic(1, 1),
        Op::Slow(slow::Op::Again(3)),
        Op::Plain(0, 1),
        Op::Operate(operators::Op::Purge(0, false, operators::Delayed::Unsaid)),
        Op::Many(many::Op::GiveBack { which: 4, times: 19, throttled: 2 }),
    ];
    follow(0, &a_bucket_that_had_no_turn_and_one_of_the_same_due_that_had_some).unwrap_or_else(|why| panic!("{why}"));
    let who_is_held_for_a_route_comes_before_one_that_moves_to_it = [
        Op::Atomic(1, 2),
        Op::Lists(lists::Op::TakenAgain(1, 1)),
        Op::Advance(1_000),
        Op::WithOptions(options::Op::Submit(options::Submit::plain(3))),
        Op::Plain(3, 1),
        Op::Lists(lists::Op::Moved { bucket: 0, is_first: false, lasts: None }),
        Op::Configure(6),
    ];
    follow(7, &who_is_held_for_a_route_comes_before_one_that_moves_to_it).unwrap_or_else(|why| panic!("{why}"));
    let buckets_that_had_turns_of_the_route_that_they_came_from = [
        Op::Atomic(1, 2),
        Op::Wake(vec![0]),
        Op::Advance(1_000),
        Op::Configure(5),
        Op::Lists(lists::Op::Filled(0)),
        Op::Workers(workers::Op::Take(1)),
        Op::Configure(3),
        Op::Wake(vec![0]),
        Op::Many(many::Op::Order { bucket: 1, is_ordered: false, back_off: 0, lasts: None, by_glob: false }),
    ];
    follow(0, &buckets_that_had_turns_of_the_route_that_they_came_from).unwrap_or_else(|why| panic!("{why}"));
    let a_glob_that_ends_while_a_job_of_a_bucket_with_a_new_limit_is_out = [
        Op::Set(settings::Op::of("s*", "route=mail", Some(5_000))),
        Op::Lists(lists::Op::Moved { bucket: 0, is_first: false, lasts: None }),
        Op::Operate(operators::Op::Purge(0, false, operators::Delayed::Unsaid)),
        Op::WithOptions(options::Op::Submit(options::Submit::plain(2))),
        Op::Workers(workers::Op::Silent { which: 0, is_over: false, times: 2, pause: 1_000, late: None }),
    ];
    follow(6, &a_glob_that_ends_while_a_job_of_a_bucket_with_a_new_limit_is_out).unwrap_or_else(|why| panic!("{why}"));
    let the_first_setting_of_all_while_a_record_spreads =
        [Op::Atomic(2, 1), Op::Configure(1), Op::Set(settings::Op::of("slow", "concurrency=1", None)), Op::Drain];
    follow(0, &the_first_setting_of_all_while_a_record_spreads).unwrap_or_else(|why| panic!("{why}"));
    let a_slow_down_after_one_that_is_forgotten =
        [Op::Atomic(2, 1), Op::Slow(slow::Op::Again(2)), Op::Advance(86_400_000), Op::Slow(slow::Op::Slow(2, Some(1)))];
    follow(0, &a_slow_down_after_one_that_is_forgotten).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn sequences_of_scarce_routes_that_once_differed_do_so_no_more() {
    let a_bucket_that_moves_to_a_route_whose_line_it_left_long_ago = [
        Op::Atomic(1, 2),
        Op::WithOptions(options::Op::Submit(options::Submit::plain(0))),
        Op::Plain(0, 2),
        Op::Atomic(3, 3),
        Op::Workers(workers::Op::Silent { which: 0, is_over: false, times: 2, pause: 40, late: None }),
        Op::Advance(130),
        Op::Wake(vec![0]),
        Op::Configure(6),
    ];
    let a_full_bucket_of_jobs_that_nobody_has_seen = [
        Op::Lists(lists::Op::Moved { bucket: 0, is_first: true, lasts: None }),
        Op::Plain(0, 1),
        Op::Plain(0, 1),
        Op::Plain(0, 1),
        Op::Plain(0, 1),
        Op::Configure(5),
        Op::Lists(lists::Op::Filled(0)),
    ];
    follow(2, &a_full_bucket_of_jobs_that_nobody_has_seen).unwrap_or_else(|why| panic!("{why}"));
    follow(7, &a_bucket_that_moves_to_a_route_whose_line_it_left_long_ago).unwrap_or_else(|why| panic!("{why}"));
}

/// Two servers have the data in turns: whenever a second or more passes it moves to the other one. Nothing of what a server remembers may make a
/// difference to what is stored and replied. (Where the clock steps back at the same time, too, a server cannot know that its memory is old.)
#[test]
fn what_servers_remember_changes_nothing_where_they_have_the_data_in_turns() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let prefix = Cell::new(0);
    let follow = |(config, ops): (usize, Vec<Op>)| {
        prefix.set(prefix.get() + 1);
        let [case, standby] = servers.each_ref().map(|server| {
            let mut case = Case { redis: server.connect(), prefix: format!("m{}", prefix.get()) };
            load_library(&mut case.redis);
            case
        });
        follow_with(Pair::on(case, Some(standby), config), &ops)
    };
    // A server that has the data again counts turns from the start, as one does that never had it.
    let turns_before_it_went_and_after_it_came_back = vec![
        Op::Configure(7),
        Op::Lists(lists::Op::Filled(2)),
        Op::Workers(workers::Op::Silent { which: 0, is_over: false, times: 2, pause: 1_000, late: None }),
        Op::Lists(lists::Op::Taken(1)),
        Op::Atomic(2, 1),
        Op::Workers(workers::Op::Silent { which: 0, is_over: false, times: 2, pause: 40, late: None }),
    ];
    follow((0, turns_before_it_went_and_after_it_came_back)).unwrap_or_else(|why| panic!("{why}"));
    let sequences = sequence().prop_map(|(config, ops)| {
        (config, ops.into_iter().filter(|op| !matches!(op, Op::StepBack(_))).collect::<Vec<_>>())
    });
    let config = ProptestConfig {
        max_shrink_iters: 500,
        failure_persistence: None,
        rng_seed: seed(),
        ..ProptestConfig::with_cases(cases() / 2)
    };
    TestRunner::new(config).run(&sequences, follow).unwrap_or_else(|why| panic!("{why}"));
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, failure_persistence: None, rng_seed: seed(), ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn the_functions_do_what_the_model_does((config, ops) in sequence()) {
        crate::roles::as_roles();
        follow(config, &ops)?;
    }
}
