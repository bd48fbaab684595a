//! Random sequences over a tree with quotas and slow-downs on every level: what has left says that no window held more than its quota,
//! that nothing left what was slowed down, that every node kept its pace, and in the end nothing is lost and nothing stays behind.

use proptest::prelude::*;

use super::flow::{ack_at, audit, fail_at, jobs, run, slow_at, slow_downs};
use crate::rig::{Case, Entry, MS, S, T0};

const TREE: &str = "[[budget]]\nmatch = 'p'\nrate = '20/s'\nquota = ['30/7s', '100/m@+00:01']\nslow = { adaptive = true, initial = '500ms' }\n\
                    [[budget]]\nmatch = 'p:*'\nquota = '17/10s'\nwithin = 'p'\nslow = { initial = '300ms', max = '2s' }\n\
                    [[bucket]]\nmatch = 'p:a:*'\nrate = '6/s'\nquota = '9/5s'\nwithin = 'p:a'\n\
                    [[bucket]]\nmatch = 'p:*:*'\nrate = '6/s'\nwithin = 'p:{1}'\nslow = { adaptive = true }\n\
                    [defaults]\nrate = '100/s'\nattempts = 1000\n";

const NAMES: [&str; 5] = ["p:a:1", "p:a:2", "p:b:1", "p:b:2", "alone"];

/// What each quota counts: the beginning of the names, how many, the period, and how far its windows are shifted.
const QUOTAS: [(&str, usize, u64, u64); 6] = [
    ("p:", 30, 7 * S, 0),
    ("p:", 100, 60 * S, 0), // a minute is the same in every time zone of whole minutes
    ("p:a:", 17, 10 * S, 0),
    ("p:b:", 17, 10 * S, 0),
    ("p:a:1", 9, 5 * S, 0),
    ("p:a:2", 9, 5 * S, 0),
];

#[derive(Debug, Clone)]
enum Step {
    Push(usize, usize),
    Plain(usize),
    Pass(u64),
    Throttle { retry_after: Option<u64>, budget: usize, jobs: usize },
    Ack(usize),
    Pause { name: usize, ms: u64, within: bool },
    Clear { name: usize, within: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        4 => (name.clone(), 1..20_usize).prop_map(|(name, n)| Step::Push(name, n)),
        2 => name.clone().prop_map(Step::Plain),
        5 => prop_oneof![Just(0_u64), 1..400_u64, 400..9_000_u64].prop_map(|ms| Step::Pass(ms * MS)),
        3 => (proptest::option::of(prop_oneof![Just(0_u64), 1..4_000_u64]), 0..3_usize, 1..6_usize)
            .prop_map(|(retry_after, budget, jobs)| Step::Throttle { retry_after, budget, jobs }),
        2 => (1..10_usize).prop_map(Step::Ack),
        1 => (name.clone(), 1..5_000_u64, any::<bool>()).prop_map(|(name, ms, within)| Step::Pause { name, ms, within }),
        1 => (name, any::<bool>()).prop_map(|(name, within)| Step::Clear { name, within }),
    ]
}

/// A tree at work, and all that has left it.
struct World {
    case: Case,
    now: u64,
    held: Vec<Entry>,
    /// The bucket and the moment.
    left: Vec<(String, u64)>,
    /// The node, from when and until when it was slowed down.
    slowed: Vec<(String, u64, u64)>,
    pushed: usize,
    done: usize,
}

impl World {
    fn take(&mut self) {
        for entry in self.case.take("ready", 1_000) {
            self.left.push((entry.text("bucket"), entry.number("at_us")));
            self.held.push(entry);
        }
    }

    fn pass(&mut self, until: u64) {
        run(&mut self.case, self.now, until);
        self.now = until;
        self.take();
    }

    /// What is in force is noted; what an operator ended ends now.
    fn note_slow_downs(&mut self) {
        let in_force = slow_downs(&mut self.case, self.now);
        for (node, from, till) in &mut self.slowed {
            if *till > self.now && *from <= self.now && !in_force.iter().any(|one| one.0 == *node) {
                *till = self.now;
            }
        }
        for (node, stands) in in_force {
            let till: u64 = stands["till"].as_str().expect("text").parse().expect("a number");
            let is_lowered = stands["text"].as_str().expect("text").contains('%');
            // Of a lowered rate `till` is when that is forgotten, so only the pause of others is known from here.
            if !is_lowered && till > self.now {
                self.slowed.push((node, self.now, till));
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Push(name, n) => {
                self.case.push_at(now, NAMES[name], &jobs(n));
                self.pushed += n;
            }
            Step::Plain(name) => {
                self.case.lpush(NAMES[name], &["plain"]);
                self.case.wake_at(now, &[NAMES[name]]);
                self.pushed += 1;
            }
            Step::Pass(us) => self.pass(now + us),
            Step::Throttle { retry_after, budget, jobs } => {
                for _ in 0..jobs.min(self.held.len()) {
                    let entry = self.held.remove(0);
                    let account = entry.text("bucket")[..3].to_owned();
                    let mut how = vec!["THROTTLED".to_owned()];
                    how.extend(retry_after.iter().flat_map(|ms| ["RETRY_AFTER".to_owned(), ms.to_string()]));
                    if budget > 0 && entry.text("bucket") != "alone" {
                        how.extend(["IN".to_owned(), if budget == 1 { "p".to_owned() } else { account }]);
                    }
                    let how: Vec<&str> = how.iter().map(String::as_str).collect();
                    assert_eq!(fail_at(&mut self.case, now, &entry, &how), 1);
                    self.note_slow_downs();
                }
            }
            Step::Ack(n) => {
                let done: Vec<Entry> = self.held.drain(..n.min(self.held.len())).collect();
                if !done.is_empty() {
                    ack_at(&mut self.case, now, &done);
                    self.done += done.len();
                }
            }
            Step::Pause { name, ms, within } => {
                let ms = ms.to_string();
                let mut how = vec!["PAUSE", &ms];
                how.extend(["IN", &NAMES[name][..3]].iter().filter(|_| within && NAMES[name] != "alone"));
                slow_at(&mut self.case, now, NAMES[name], &how);
                self.note_slow_downs();
            }
            Step::Clear { name, within } => {
                let mut how = vec!["CLEAR"];
                how.extend(["IN", "p"].iter().filter(|_| within && NAMES[name] != "alone"));
                slow_at(&mut self.case, now, NAMES[name], &how);
                self.note_slow_downs();
            }
        }
        self.take();
        audit(&mut self.case);
    }

    /// Whether a bucket is the node, or below it.
    fn is_below(bucket: &str, node: &str) -> bool {
        let budget = node.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        budget.map_or(bucket == node, |budget| bucket.starts_with(&format!("{budget}:")))
    }

    fn check(&self) {
        for (head, most, period, shift) in QUOTAS {
            let mut windows = std::collections::BTreeMap::<u64, usize>::new();
            for (_, at) in self.left.iter().filter(|one| one.0.starts_with(head)) {
                *windows.entry((at + shift) / period).or_default() += 1;
            }
            assert!(windows.values().all(|n| *n <= most), "{head}: {most} in {period} us: {windows:?}");
        }
        for (node, from, till) in &self.slowed {
            let mut inside =
                self.left.iter().filter(|(bucket, at)| Self::is_below(bucket, node) && from < at && at < till);
            assert_eq!(inside.next(), None, "{node} was slowed down from {from} to {till}");
        }
        let paces =
            [("p:", 50 * MS, 20 * MS)].into_iter().chain(NAMES[..4].iter().map(|name| (*name, 166_666, 300 * MS)));
        for (head, interval, catch_up) in paces {
            let (mut latest, mut n) = (0, 0);
            for (bucket, at) in self.left.iter().filter(|one| one.0.starts_with(head)) {
                let ahead = *at as i64 - n * interval as i64;
                n += 1;
                latest = if n == 1 { ahead } else { latest.max(ahead) };
                assert!(
                    latest - ahead <= catch_up as i64 + 2,
                    "{bucket} left {} us too early for {head}",
                    latest - ahead
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn quotas_and_slow_downs_hold_on_every_level_of_a_tree(steps in prop::collection::vec(step(), 1..60)) {
        let case = Case::with(TREE);
        let mut world =
            World { case, now: T0, held: Vec::new(), left: Vec::new(), slowed: Vec::new(), pushed: 0, done: 0 };
        for one in &steps {
            world.step(one);
        }
        for name in 0..NAMES.len() {
            for within in [false, true] {
                world.step(&Step::Clear { name, within });
            }
        }
        // At least 100 a minute: everything that was pushed leaves, and is done.
        world.pass(world.now + 1_200 * S);
        world.check();
        while !world.held.is_empty() {
            world.step(&Step::Ack(500));
        }
        prop_assert_eq!(world.done, world.pushed, "nothing is lost");
        world.case.settle_at(world.now + 2 * 86_400 * S);
        let settled = ["events", "policy", "ready", "rejected", "routes", "stats", "wake"];
        let rest: Vec<String> = world.case.keys().into_iter().filter(|key| !settled.contains(&key.as_str())).collect();
        prop_assert_eq!(rest, Vec::<String>::new());
    }
}
