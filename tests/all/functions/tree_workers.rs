//! What workers do in `tree_model`: they take jobs, acknowledge them, fail, and are turned away by the other side.

use std::collections::BTreeMap;

use super::model::{Back, Slow};
use super::tree_fates::{Dead, Failed, Retry};
use super::tree_model::{Pair, With, name};
use crate::rig::S;

/// All of a rate, as `Slow::numbers` has it.
const WHOLE: u64 = 1_000_000_000_000;

impl Pair {
    /// Workers take some jobs. Replies one that some worker holds.
    pub(super) fn take_some(&mut self) -> Option<usize> {
        let held = self.take(3);
        (!held.is_empty()).then(|| held[self.rng.usize(0..held.len())])
    }

    /// Workers take at most so many jobs. Replies all that they hold.
    pub(super) fn take(&mut self, most: usize) -> Vec<usize> {
        for entry in self.case.take("ready", most) {
            while self.tree.done.contains(&self.taken.len()) {
                self.taken.push((String::new(), false)); // nobody read it
            }
            let at = self.taken.len();
            // "The entry id of the job's first dispatch, its stable identity."
            let first = self.tree.first_dispatch(at);
            let identity = if self.tree.is_submitted(at) {
                Some(self.tree.left[at].job.clone())
            } else {
                self.taken.get(first).map(|(entry, _)| entry.clone())
            };
            assert_eq!(
                entry.fields.contains_key("id").then(|| entry.text("id")),
                identity,
                "{}",
                self.story.join("\n")
            );
            self.taken.push((entry.id, false));
        }
        self.tree.undone().filter(|at| *at < self.taken.len()).collect()
    }

    /// Some of that, one after the other.
    pub(super) fn work(&mut self) {
        for _ in 0..self.rng.usize(1..5) {
            self.now += 1 + self.rng.u64(0..50);
            if self.rng.u8(0..20) == 0 {
                self.deletes_unread();
            }
            let Some(at) = self.take_some() else { return };
            match self.rng.u8(0..10) {
                0..2 => self.ack(at),
                2..5 if self.has(With::Slow) => self.throttled(at),
                8 => self.finished_plainly(at),
                9 if self.has(With::Slots) => _ = self.lease_ends(at),
                _ => self.fail(at),
            }
        }
    }

    fn ack(&mut self, at: usize) {
        let left = self.tree.left[at].clone();
        let (entry, is_told) = self.taken[at].clone();
        let mut args = vec![self.now.to_string(), entry];
        let tells = self.has(With::Costs) && self.rng.u8(0..3) > 0;
        if tells {
            self.settle_what_came();
            self.settle();
        }
        if tells {
            let cost = [0, 1, 2, 7, 60, 900][self.rng.usize(0..6)];
            self.tell(&format!("ack {left:?} that cost {cost}"));
            args.extend(["COST".into(), cost.to_string()]);
            if !is_told {
                let units = i64::from(cost) - left.cost as i64;
                self.tree.adjust(&left, units, self.now);
            }
        } else {
            self.tell(&format!("ack {left:?}"));
        }
        self.acks(at, &args);
    }

    /// A worker acknowledges a job, in these words.
    pub(super) fn acks(&mut self, at: usize, args: &[String]) {
        assert_eq!(self.case.fcall::<i64>("drip__ack", &["ready"], args), 1, "{}", self.story.join("\n"));
        self.tree.acked(at, self.now);
    }

    fn fail(&mut self, at: usize) {
        let ms = [None, None, None, Some(0), Some(40), Some(700)][self.rng.usize(0..6)];
        let (keep, dead) = (self.rng.u8(0..4) == 0, self.rng.u8(0..12) == 0);
        self.fails(at, ms, keep, dead);
    }

    /// A worker gives a job back, to be retried in so many milliseconds or after its back-off. `false`: nothing is done, as nobody says which of
    /// two jobs leaves first then.
    pub(super) fn fails(&mut self, at: usize, ms: Option<u64>, keep: bool, dead: bool) -> bool {
        let failed = Failed { back: ms.map_or(Back::Off, Back::In), keep, dead };
        let n = self.tree.bucket_of(&self.tree.left[at]);
        let would_end = self.tree.would_end(at, failed, self.now);
        if self.tree.nodes[n].later.retries.keys().any(|(ends, _)| Some(*ends) == would_end) {
            return false; // which of the two leaves first nobody says
        }
        self.tell(&format!("fail {:?} {failed:?}", self.tree.left[at]));
        let mut args = vec![self.now.to_string(), self.taken[at].0.clone()];
        args.extend(ms.into_iter().flat_map(|ms| ["RETRY_IN".to_owned(), ms.to_string()]));
        args.extend(
            [(failed.keep, "KEEP"), (failed.dead, "DEAD")]
                .iter()
                .filter(|(is, _)| *is)
                .map(|(_, word)| word.to_string()),
        );
        let told: i64 = self.case.fcall("drip__fail", &["ready"], &args);
        assert_eq!(told, self.tree.fails(at, failed, "failed", self.now), "{}", self.story.join("\n"));
        true
    }

    /// The other side turned a job away.
    fn throttled(&mut self, at: usize) {
        let n = self.tree.bucket_of(&self.tree.left[at]);
        let above = self.tree.above(n);
        let slowed = if above.is_empty() || self.rng.bool() { n } else { above[self.rng.usize(0..above.len())] };
        let ms = [None, None, None, Some(0), Some(30), Some(400), Some(8_000)][self.rng.usize(0..7)];
        self.turned_away(at, slowed, ms);
    }

    /// The other side turned a job away, for so many milliseconds or for as long as is configured: its bucket or a budget above is slowed down.
    pub(super) fn turned_away(&mut self, at: usize, slowed: usize, ms: Option<u64>) {
        self.settle();
        let n = self.tree.bucket_of(&self.tree.left[at]);
        let id = self.tree.nodes[slowed].id.clone();
        self.tell(&format!("throttled {:?} in {id} {ms:?}", self.tree.left[at]));
        let mut args = vec![self.now.to_string(), self.taken[at].0.clone(), "THROTTLED".into()];
        args.extend(ms.into_iter().flat_map(|ms| ["RETRY_AFTER".to_owned(), ms.to_string()]));
        if slowed != n {
            args.extend(["IN".into(), name(&id).to_owned()]);
        }
        let outcome: i64 = self.case.fcall("drip__fail", &["ready"], &args);
        let till = self.stored_slow().get(&id).map_or(0, |numbers| numbers[3]);
        // A RETRY_AFTER of 0 says nothing.
        let expected = self.tree.throttled(at, slowed, ms.filter(|ms| *ms > 0), till, self.now);
        assert_eq!(outcome, expected, "{}", self.story.join("\n"));
        self.settle();
    }

    fn stored_slow(&mut self) -> BTreeMap<String, Vec<u64>> {
        let key = self.case.key("slow");
        let stored: BTreeMap<String, String> = self.case.cmd(&["HGETALL", &key]);
        stored.into_iter().map(|(id, text)| (id, Slow::stored(&text))).collect()
    }

    /// When slow-downs began, when they end, how many incidents there were, what they left of the rate, and for how long jobs have waited since.
    pub(super) fn compare_slow(&mut self) {
        let now = self.now;
        let stored = self.stored_slow();
        for node in &self.tree.nodes {
            let found = stored.get(&node.id).and_then(|numbers| known(numbers, now));
            let expected = node.slow.as_ref().and_then(|slow| known(&slow.numbers(), now));
            assert_eq!(found, expected, "what slows {} down\n{}", node.id, self.story.join("\n"));
        }
    }

    /// The jobs that back off, and those that were given up.
    pub(super) fn compare_retries(&mut self) {
        for node in self.tree.nodes.clone().into_iter().filter(|node| node.queue.is_some()) {
            let found = self.scores(&format!("retry:{}", node.id));
            let read = |(member, ends): &(String, f64)| {
                let words: Vec<&str> = member.split([' ', '\n']).collect();
                let from = if words[0] == "2" { 3 } else { 4 };
                let number = |at: usize| words[from + at].parse::<u64>().expect("a number");
                (*ends as u64, words.last().expect("a body").to_string(), number(0), number(1), number(2))
            };
            let expected = node.later.retries.iter().map(|((ends, _), retry)| {
                let Retry { job, attempt, kept, delay } = retry;
                (*ends, job.body.clone(), *delay, *attempt, *kept)
            });
            assert!(
                expected.eq(found.iter().map(read)),
                "the retries of {node:?}: {found:?}\n{}",
                self.story.join("\n")
            );
        }
        let dead = self.case.stream("dead").into_iter().map(|entry| Dead {
            bucket: entry.text("bucket"),
            job: entry.text("job"),
            attempt: entry.number("attempt"),
            reason: entry.text("reason"),
            cost: if entry.fields.contains_key("cost") { entry.number("cost") } else { 1 },
        });
        let dead: Vec<Dead> = dead.collect();
        assert_eq!(dead, self.tree.dead, "the dead\n{}", self.story.join("\n"));
    }
}

/// What counts of the numbers of a slow-down: when it began, when it ends, incidents; and where less than all of the rate is left how much, for how
/// long jobs have waited since, and up to when that is reckoned. None: all of it is over.
fn known(numbers: &[u64], now: u64) -> Option<[u64; 6]> {
    let [_, _, begun, till, _, incidents, last, max, waited, seen, left] = numbers else { panic!("{numbers:?}") };
    let lowered = *left < WHOLE && now < last + 86_400 * S;
    let incidents = if now < till + max { *incidents } else { 0 };
    let of_rate = if lowered { [*left, *waited, *seen] } else { [WHOLE, 0, 0] };
    (lowered || now < till + max).then_some([*begun, *till, incidents, of_rate[0], of_rate[1], of_rate[2]])
}
