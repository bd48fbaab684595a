//! A route that forwards, as the model knows it: the list that workers of somebody else take from, and what else is told of each job.

use std::collections::VecDeque;

use dripd::config::{Config, Environment};
use dripd::store::change::Change;
use proptest::prelude::*;

use super::policy::End;
use super::reference::Model;
use super::{Pair, settings};
use crate::rig::Case;

/// The list, the set that names it, and what is told of each job: as the keys are called, and what each must hold.
const KEYS: [(&str, &str); 3] = [("their-list", "list"), ("their-lists", "set"), ("their-notes", "list")];

/// The route that forwards, where one does, and what its list is called in the set.
const ROUTE: &str = "mail";
const MEMBER: &str = "them";

/// What a bucket whose jobs are forwarded cannot have.
const UNFIT: [&str; 2] = ["concurrency", "ordered"];

#[derive(Debug, Clone)]
pub enum Op {
    /// Their workers take so many.
    Taken(usize),
    /// The same, and the functions look at the list when they asked for it: so many times.
    TakenAgain(usize, usize),
    /// Somebody else adds a job.
    Added,
    /// Nobody works: more jobs come into a bucket than the list takes, and go on when their workers do.
    Filled(usize),
    /// While jobs of a bucket wait it moves between a route that forwards and another one; to each for so long, where that is said.
    Moved { bucket: usize, is_first: bool, lasts: Option<u64> },
    /// Somebody deletes the set that names the list.
    Unnamed,
    /// One of the keys holds something else from now on; it held nothing of use.
    Spoiled(usize),
    /// It is deleted.
    Mended,
}

pub fn op() -> impl Strategy<Value = Op> {
    let lasts = prop::option::weighted(0.4, prop_oneof![Just(900), Just(5_000)]);
    prop_oneof![
        4 => (1..4_usize).prop_map(Op::Taken),
        3 => (1..3_usize, 1..4_usize).prop_map(|(n, times)| Op::TakenAgain(n, times)),
        1 => Just(Op::Added),
        1 => (0..super::BUCKETS.len()).prop_map(Op::Filled),
        1 => (0..super::BUCKETS.len(), any::<bool>(), lasts)
            .prop_map(|(bucket, is_first, lasts)| Op::Moved { bucket, is_first, lasts }),
        1 => Just(Op::Unnamed),
        1 => (0..KEYS.len()).prop_map(Op::Spoiled),
        2 => Just(Op::Mended),
    ]
}

#[derive(Debug, Default)]
pub(super) struct List {
    /// From the left to the right.
    pub(super) jobs: VecDeque<String>,
    is_registered: bool,
    notes: usize,
    /// Which of the keys holds something else.
    spoiled: Option<usize>,
}

/// The keys of a case.
pub(super) fn keys(case: &Case) -> Vec<String> {
    KEYS.iter().map(|(name, _)| format!("{}-{name}", case.prefix)).collect()
}

impl List {
    /// "`max_ready` counts the list's length", "a target of the wrong type holds the bucket".
    pub(super) fn room(&self, max_ready: usize) -> usize {
        if self.spoiled.is_some() { 0 } else { max_ready.saturating_sub(self.jobs.len()) }
    }

    /// "Pushes the job's bytes, and nothing else": `SADD` "whenever the push found the list empty", and a note of each job.
    pub(super) fn send(&mut self, body: String, end: End) {
        self.is_registered |= self.jobs.is_empty();
        self.add(body, end);
        self.notes += 1;
    }

    fn add(&mut self, body: String, end: End) {
        match end {
            End::Left => self.jobs.push_front(body),
            End::Right => self.jobs.push_back(body),
        }
    }

    /// Their workers take from the other end than the one where jobs are added.
    fn take(&mut self, end: End) -> Option<String> {
        match end {
            End::Left => self.jobs.pop_back(),
            End::Right => self.jobs.pop_front(),
        }
    }

    fn clear(&mut self, key: usize) {
        match key {
            0 => self.jobs.clear(),
            1 => self.is_registered = false,
            _ => self.notes = 0,
        }
    }
}

impl Model {
    /// "`concurrency`, `ordered` in the same entry are refused by name": so is a setting of a bucket.
    pub(super) fn cannot_forward(&self, now: u64, change: &Change) -> bool {
        let is_unfit = !change.is_glob && UNFIT.iter().any(|key| change.set.contains_key(*key));
        is_unfit && self.record.forwards(&self.policy(now, &change.pattern).route)
    }
}

impl Pair {
    /// The words of a configuration, with the keys of this case: `K0`, `K1` and `K2`.
    pub(super) fn with_keys(case: &Case, config: &str) -> String {
        let named = |text: String, (n, key): (usize, String)| text.replace(&format!("K{n}"), &key);
        keys(case).into_iter().enumerate().fold(config.to_owned(), named)
    }

    /// What `dripd acl` grants on the keys of the routes: they are outside of the prefix.
    pub(super) fn give_rights(case: &Case) {
        let parse = |config: &&str| Config::parse(&Self::with_keys(case, config), None, &Environment::default());
        let configs = super::CONFIGS.iter().map(|config| parse(config).expect("a good one"));
        crate::roles::forward(configs.flat_map(|config| config.record.routes).collect());
    }

    pub fn lists(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let (keys, is_list) = (keys(&self.case), self.model.list.spoiled != Some(0));
        let end = self.model.record.end(ROUTE);
        match op {
            Op::Taken(n) if is_list => {
                let pop = if end == End::Left { "RPOP" } else { "LPOP" };
                let taken: Option<Vec<String>> = self.case.cmd(&[pop, &keys[0], &n.to_string()]);
                let expect: Vec<String> = (0..*n).map_while(|_| self.model.list.take(end)).collect();
                prop_assert_eq!(taken.unwrap_or_default(), expect);
            }
            Op::TakenAgain(n, times) => {
                for _ in 0..*times {
                    self.step(&super::Op::Lists(Op::Taken(*n)))?;
                    self.step(&super::Op::Advance(20))?;
                    self.step(&super::Op::Drain)?;
                }
            }
            Op::Added if is_list => {
                let job = self.jobs(1).remove(0);
                let push = if end == End::Left { "LPUSH" } else { "RPUSH" };
                let _: i64 = self.case.cmd(&[push, &keys[0], &job]);
                self.model.list.add(job, end);
            }
            Op::Filled(b) => {
                for _ in 0..3 {
                    self.step(&super::Op::Atomic(*b, 4))?;
                    self.step(&super::Op::Advance(1_000))?;
                    self.step(&super::Op::Drain)?;
                }
                self.step(&super::Op::Lists(Op::TakenAgain(2, 3)))?;
            }
            Op::Moved { bucket, is_first, lasts } => {
                let routes = if *is_first { ["route=mail", "route=default"] } else { ["route=default", "route=mail"] };
                for route in routes {
                    self.step(&super::Op::Atomic(*bucket, 3))?;
                    self.step(&super::Op::Set(settings::Op::of(super::BUCKETS[*bucket], route, *lasts)))?;
                    for wait_ms in [0, 130, 1_000] {
                        self.step(&super::Op::Advance(wait_ms))?;
                        self.step(&super::Op::Drain)?;
                    }
                }
            }
            Op::Unnamed if self.model.list.spoiled != Some(1) => {
                let _: i64 = self.case.cmd(&["DEL", &keys[1]]);
                self.model.list.clear(1);
            }
            Op::Spoiled(which) if self.model.list.spoiled.is_none() => {
                let _: String = self.case.cmd(&["SET", &keys[*which], "text"]);
                self.model.list.clear(*which);
                self.model.list.spoiled = Some(*which);
            }
            Op::Mended => {
                if let Some(which) = self.model.list.spoiled.take() {
                    let _: i64 = self.case.cmd(&["DEL", &keys[which]]);
                }
            }
            Op::Taken(_) | Op::Added | Op::Unnamed | Op::Spoiled(_) => {}
        }
        Ok(())
    }

    /// What has arrived, what is told of it, and what is said of the route.
    pub(super) fn compare_list(&mut self) -> Result<(), TestCaseError> {
        let keys = keys(&self.case);
        let list = &self.model.list;
        let is = |key: usize| list.spoiled != Some(key);
        if is(0) {
            let found: Vec<String> = self.case.cmd(&["LRANGE", &keys[0], "0", "-1"]);
            prop_assert_eq!(found.iter().collect::<Vec<_>>(), list.jobs.iter().collect::<Vec<_>>(), "their list");
        }
        if is(1) {
            let found: Vec<String> = self.case.cmd(&["SMEMBERS", &keys[1]]);
            prop_assert_eq!(found, vec![MEMBER; usize::from(list.is_registered)], "their lists");
        }
        if is(2) {
            let found: Vec<String> = self.case.cmd(&["LRANGE", &keys[2], "0", "-1"]);
            prop_assert_eq!(found, vec!["1"; list.notes], "what is told of each job");
        }
        if let Some(key) = list.spoiled {
            prop_assert_eq!(self.case.cmd::<String>(&["GET", &keys[key]]), "text");
        }
        let found: Vec<_> = self.case.routes(self.now).into_iter().filter(|route| !route.to.is_empty()).collect();
        if !self.model.record.forwards(ROUTE) {
            prop_assert_eq!(found, []);
            return Ok(());
        }
        let ready = if list.spoiled.is_some() { 0 } else { list.jobs.len() };
        let held = self.model.held_for(ROUTE).len();
        let (wrong, wanted) = list.spoiled.map_or(("", ""), |key| (keys[key].as_str(), KEYS[key].1));
        let [found] = &found[..] else { return Err(TestCaseError::fail(format!("{found:?} is not one route"))) };
        prop_assert_eq!([&found.route, &found.to, &found.wrong], [ROUTE, &keys[0], wrong]);
        prop_assert!(wrong.is_empty() || found.wanted == wanted, "{:?}", found);
        prop_assert_eq!((found.undelivered, found.held), (ready as u64, held as u64));
        Ok(())
    }
}
