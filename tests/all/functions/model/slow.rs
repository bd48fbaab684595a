//! Slow-downs, as the model knows them: the other side says when to come back, and with `adaptive` what that leaves of the rate.

use proptest::prelude::*;

use super::fates::Back;
use super::policy::Slowing;
use super::reference::{Model, State};
use super::{BUCKETS, Pair, stream};
use crate::rig::{MS, S};

const DAY: u64 = 86_400 * S;

/// "Before all other retries": so much before its slow-down began a job that was turned away is due again.
pub(in crate::functions) const FIRST: u64 = 366 * 86_400 * S;

#[derive(Debug, Clone)]
pub enum Op {
    /// A bucket, for so many milliseconds; none: clear.
    Slow(usize, Option<u64>),
    /// An entry that is pending was turned away: come back in so many milliseconds.
    Throttled(usize, Option<u64>),
    /// The job that left last was turned away, and so is one that leaves after the slow-down, so many times.
    Again(usize),
}

pub fn op() -> impl Strategy<Value = Op> {
    let pause = prop_oneof![Just(1), Just(90), Just(1_500), Just(8_000), Just(9_000_000)];
    let retry_after = prop_oneof![Just(0), Just(3), Just(250), Just(4_000), Just(50_000)];
    prop_oneof![
        2 => (0..BUCKETS.len(), pause).prop_map(|(b, ms)| Op::Slow(b, Some(ms))),
        1 => (0..BUCKETS.len()).prop_map(|b| Op::Slow(b, None)),
        4 => (0..8_usize, prop::option::of(retry_after)).prop_map(|(n, ms)| Op::Throttled(n, ms)),
        1 => (2..5_usize).prop_map(Op::Again),
    ]
}

/// The slow-down of a bucket: "a node may go at the latest" of its pace and of the end of that.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::functions) struct Slow {
    /// When the last one began, and when the bucket goes on; both may be over.
    pub(in crate::functions) begun: u64,
    pub(in crate::functions) till: u64,
    /// "Each with its own bound", where the clock stepped back.
    length: u64,
    pub(in crate::functions) incidents: u64,
    last: u64,
    /// "Incidents are forgotten after `max` without one."
    max: u64,
    /// What is left of the rate, where the policy is adaptive.
    left: f64,
    /// For how long jobs have waited since that last changed, and, where one waits, up to when that is reckoned.
    waited: u64,
    seen: Option<u64>,
    /// Of a bucket that it holds: its due without it, and when it was to go on.
    held: Option<(u64, u64)>,
}

impl Default for Slow {
    fn default() -> Self {
        Self {
            begun: 0,
            till: 0,
            length: 0,
            incidents: 0,
            last: 0,
            max: 0,
            left: 1.0,
            waited: 0,
            seen: None,
            held: None,
        }
    }
}

impl Slow {
    /// No moment of it lies further ahead than it may.
    pub(in crate::functions) fn put_right(&self, now: u64) -> Self {
        let till = self.till.min(now + self.length);
        let incidents = if now >= till + self.max { 0 } else { self.incidents };
        let last = self.last.min(now);
        // "It is forgotten after a day without an incident."
        let left = if now >= last + DAY { 1.0 } else { self.left };
        let seen = self.seen.filter(|seen| *seen <= now);
        let right = Self { begun: self.begun.min(now), till, incidents, last, left, seen, ..self.clone() };
        // Then nothing of it is known any more, save where its bucket stands.
        if now >= right.over() { Self { held: right.held, ..Self::default() } } else { right }
    }

    /// From then on nothing of it is known any more.
    pub(in crate::functions) fn over(&self) -> u64 {
        let lowered = if self.left < 1.0 { self.last + DAY } else { 0 };
        lowered.max(self.till + self.max)
    }

    /// What is left of the rate.
    pub(in crate::functions) fn left(&self) -> f64 {
        self.left
    }

    /// A job leaves. "Every 10 s without one in which jobs waited adds 1 % of the configured rate, up to it, reckoned when jobs leave."
    pub(in crate::functions) fn comes_back(&mut self, now: u64, another_waits: bool) {
        if self.left < 1.0 {
            self.waited += self.seen.map_or(0, |seen| now - seen);
            let steps = self.waited / (10 * S);
            self.waited %= 10 * S;
            self.left = (self.left + steps as f64 * 0.01).min(1.0);
            self.seen = another_waits.then_some(now);
        }
    }

    /// The same of a budget, for which the job had waited, or came while nothing did: what waited by order until it `went_on` does not count.
    pub(in crate::functions) fn comes_back_above(&mut self, now: u64, has_waited: bool, went_on: u64) {
        if self.left < 1.0 {
            self.seen = self.seen.filter(|_| has_waited).map(|seen| seen.max(went_on));
            self.comes_back(now, has_waited);
        }
    }

    /// Something waits for a budget from now on, for which nothing did.
    pub(in crate::functions) fn has_waiting(&mut self, now: u64) {
        if self.left < 1.0 {
            self.seen = Some(now);
        }
    }

    /// Nothing waits any more.
    pub(in crate::functions) fn rests(&mut self) {
        self.seen = None;
    }

    /// The due of a bucket that stands at `due`, without the slow-down.
    pub(super) fn pace(&self, due: u64) -> u64 {
        self.held.map_or(due, |(pace, _)| pace)
    }

    /// When a bucket may go that could by its pace. "Waiting by order earns nothing": it goes on at the end.
    pub(super) fn hold(&mut self, now: u64, pace: Option<u64>) -> Option<u64> {
        if self.till > pace.unwrap_or(now).max(now) {
            // One that is over let it go on at its end.
            let went_on = self.held.filter(|(_, till)| *till <= now).map_or(0, |(_, till)| till);
            self.held = Some((pace.unwrap_or(now).max(went_on), self.till));
            return Some(self.till);
        }
        let went_on = self.held.take().map_or(0, |(_, till)| till.min(now));
        pace.map(|pace| pace.max(went_on))
    }

    /// "A slow-down is only ever extended."
    fn pause(&mut self, now: u64, length: u64, p: &Slowing) {
        if now >= self.till {
            self.begun = now;
        }
        if now + length > self.till {
            (self.till, self.length) = (now + length, length);
        }
        self.max = p.max;
    }

    /// "The same without a job, and no incident."
    pub(in crate::functions) fn ask(&mut self, now: u64, ms: u64, p: &Slowing) {
        self.pause(now, (ms * MS).min(p.cap), p);
    }

    /// "`CLEAR` shortens": it is over, and so is what came before.
    pub(in crate::functions) fn clear(&mut self, now: u64) {
        (self.till, self.length, self.incidents) = (self.till.min(now), 0, 0);
        (self.left, self.waited, self.seen) = (1.0, 0, None);
    }

    /// A job that left at `left` was turned away. `told` is when the bucket goes on, as it was found: that says what the jitter was.
    pub(in crate::functions) fn incident(
        &mut self,
        now: u64,
        left: u64,
        retry_after: Option<u64>,
        told: u64,
        p: &Slowing,
    ) {
        let asked = retry_after.map(|ms| (ms * MS).min(p.cap));
        // "A `THROTTLED` for a job that left before the last slow-down began, present or over, belongs to that incident (its `RETRY_AFTER`
        // may still extend it)."
        if self.begun > 0 && left <= self.begun {
            if let Some(length) = asked {
                self.pause(now, length, p);
            }
            return;
        }
        (self.incidents, self.last) = (self.incidents + 1, now);
        // "Each incident also multiplies the effective rate by 0.9 (not below 1/64 of the configured one)."
        if p.is_adaptive {
            (self.left, self.waited, self.seen) = ((self.left * 0.9).max(1.0 / 64.0), 0, None);
        }
        // "`initial * 2^(incidents - 1)`, at most `max`, and up to a tenth of jitter"; adaptive: "for `initial` only".
        let doubled = (p.initial << (self.incidents - 1).min(40)).min(p.max);
        let length = if p.is_adaptive { p.initial } else { doubled };
        let jitter = told.saturating_sub(now + length).min(length / 10);
        self.pause(now, asked.unwrap_or(length + jitter), p);
        self.begun = now;
    }

    /// "Incidents are forgotten when a job that left after the slow-down was acknowledged."
    pub(in crate::functions) fn done(&mut self, left: u64) {
        if left >= self.till {
            self.incidents = 0;
        }
    }

    /// A due that is over is as good as any other one that is, and so is a slow-down that is over as long as nobody has looked at its bucket
    /// since. It shows only where the clock steps back: the model takes what is stored, `pace` and `held`; 0: nothing.
    pub(super) fn takes_over(&mut self, (pace, held): (u64, u64), now: u64) {
        let is_over = |(pace, held): (u64, u64)| pace <= now && held <= now;
        if is_over((pace, held)) && self.held.is_none_or(is_over) {
            self.held = Some((pace, held)).filter(|(_, held)| *held > 0);
        }
        if let Some(known) = self.held.as_mut().filter(|known| known.0 <= now && known.1 == held && pace <= now) {
            known.0 = pace;
        }
    }

    /// What is over is forgotten whenever somebody looks at it: the model takes what is stored.
    pub(super) fn takes_forgotten(&mut self, stored: Option<&Vec<u64>>, now: u64) {
        if let Some(stored) = stored.filter(|_| now >= self.till + self.max) {
            self.incidents = stored[5];
        }
        let without_over = self.put_right(now);
        if stored == Some(&without_over.numbers()) {
            *self = without_over;
        }
    }

    /// Its numbers, as they are stored.
    pub(in crate::functions) fn numbers(&self) -> Vec<u64> {
        let (pace, held) = self.held.unwrap_or((0, 0));
        let (waited, seen) = (self.waited, self.seen.unwrap_or(0));
        vec![
            pace,
            held,
            self.begun,
            self.till,
            self.length,
            self.incidents,
            self.last,
            self.max,
            waited,
            seen,
            parts(self.left),
        ]
    }

    /// The numbers that Redis holds.
    pub(in crate::functions) fn stored(text: &str) -> Vec<u64> {
        let line = text.lines().next().expect("a line");
        let words: Vec<&str> = line.split([' ', '/']).skip(1).collect();
        let (left, whole) = words.split_last().expect("words");
        let whole = whole.iter().map(|word| word.parse().expect("a number"));
        whole.chain([parts(left.parse().expect("a number"))]).collect()
    }
}

/// What is left of a rate, in parts that are coarser than how exactly it is reckoned.
fn parts(left: f64) -> u64 {
    (left * 1e12).round() as u64
}

impl Model {
    /// What a call found of a slow-down stays found.
    pub(super) fn keep_slow(&mut self, bucket: &str, state: &State) {
        let Some(slow) = state.slow.as_ref().filter(|slow| self.slow.get(bucket) != Some(slow)) else { return };
        if slow.over() > state.now {
            self.slow.insert(bucket.into(), slow.clone());
        } else {
            self.slow.remove(bucket);
        }
    }

    /// Something happens to the slow-down of a bucket.
    fn slowed(&mut self, now: u64, bucket: &str, act: impl FnOnce(&mut Slow, &Slowing)) -> Slow {
        let mut slow = self.slow.get(bucket).map_or_else(Slow::default, |slow| slow.put_right(now));
        act(&mut slow, &self.policy(now, bucket).slow);
        self.slow.insert(bucket.into(), slow.clone());
        slow
    }

    /// The bucket stands where it must.
    fn put_slowed_right(&mut self, now: u64, bucket: &str) {
        self.put_right(now, bucket, None);
        self.slow.retain(|name, slow| name != bucket || slow.over() > now);
    }

    /// Replies "{ms until it goes on, incidents}".
    fn ask_slow(&mut self, now: u64, bucket: &str, ms: Option<u64>) -> (u64, u64) {
        let slow = self.slowed(now, bucket, |slow, p| match ms {
            Some(ms) => slow.ask(now, ms, p),
            None => slow.clear(now),
        });
        self.put_slowed_right(now, bucket);
        (slow.till.saturating_sub(now).div_ceil(MS), slow.incidents)
    }

    /// "Gives the job back as `KEEP` does (those of one slow-down leave first, in the order of their first dispatch) and slows the bucket."
    fn throttled(&mut self, now: u64, n: usize, retry_after: Option<u64>, told: u64) -> i64 {
        let (bucket, left) = (self.ready[n].bucket.clone(), self.ready[n].at);
        let slow = self.slowed(now, &bucket, |slow, p| slow.incident(now, left, retry_after, told, p));
        let outcome = self.fail(now, n, Back::First(slow.begun.saturating_sub(FIRST)), true, false, "throttled");
        self.put_slowed_right(now, &bucket);
        outcome
    }

    /// A job of a bucket has left and is about to pay. What waits for nothing but its turn has waited.
    pub(super) fn comes_back(&mut self, now: u64, bucket: &str) {
        let has_retry =
            self.retries.get(bucket).and_then(|retries| retries.first()).is_some_and(|retry| retry.ends <= now);
        let first = self.delayed.get(bucket).and_then(|jobs| jobs.first_key_value());
        let another_waits = self.len(bucket) > 0 || has_retry || first.is_some_and(|((at, _), _)| *at <= now);
        if let Some(slow) = self.slow.get_mut(bucket) {
            slow.comes_back(now, another_waits);
        }
    }

    /// Nothing of a bucket waits any more, for whatever reason.
    pub(super) fn has_no_work(&mut self, now: u64, bucket: &str, due: Option<u64>) {
        if let Some(paid) = self.paid.get_mut(bucket) {
            paid.rests(now, due.unwrap_or(0));
        }
        if let Some(slow) = self.slow.get_mut(bucket) {
            slow.rests();
        }
    }

    /// A job that left at this moment was acknowledged.
    pub(super) fn ends_incidents(&mut self, now: u64, bucket: &str, left: u64) {
        let Some(known) = self.slow.get(bucket) else { return };
        let mut slow = known.put_right(now);
        slow.done(left);
        if slow != *known {
            self.slow.insert(bucket.into(), slow);
            self.slow.retain(|name, slow| name != bucket || slow.over() > now);
        }
    }
}

impl Pair {
    pub fn slow_down(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let (now, text) = (self.now, self.now.to_string());
        match op {
            Op::Again(times) => {
                for _ in 0..*times {
                    let last = self.model.pending().len().saturating_sub(1);
                    self.step(&super::Op::Slow(Op::Throttled(last, None)))?;
                    for next in
                        [super::Op::Advance(3_500), super::Op::Drain, super::Op::Workers(super::workers::Op::Take(5))]
                    {
                        self.step(&next)?;
                    }
                }
            }
            Op::Slow(b, ms) => {
                let pause = ms.map(|ms| ms.to_string());
                let how = pause.as_ref().map_or(vec!["CLEAR"], |ms| vec!["PAUSE", ms]);
                let args: Vec<&str> = [text.as_str()].into_iter().chain(how).collect();
                let told: (u64, u64) = self.case.fcall("drip__slow", &[&format!("queue:{}", BUCKETS[*b])], &args);
                prop_assert_eq!(told, self.model.ask_slow(now, BUCKETS[*b], *ms));
            }
            Op::Throttled(n, ms) => {
                let Some(at) = self.model.pending().iter().cycle().nth(*n).copied() else { return Ok(()) };
                let entry = self.model.ready[at].clone();
                let ms_text = ms.unwrap_or(0).to_string();
                let mut args = vec![text.as_str(), entry.id.as_str(), "THROTTLED"];
                if ms.is_some() {
                    args.extend(["RETRY_AFTER", &ms_text]);
                }
                let outcome: i64 = self.case.fcall("drip__fail", &[&stream(&entry.route)], &args);
                let key = self.case.key("slow");
                let stored: Option<String> = self.case.cmd(&["HGET", &key, &entry.bucket]);
                let till = stored.map_or(0, |text| Slow::stored(&text)[3]);
                // A RETRY_AFTER of 0 says nothing.
                prop_assert_eq!(outcome, self.model.throttled(now, at, ms.filter(|ms| *ms > 0), till));
            }
        }
        Ok(())
    }
}
