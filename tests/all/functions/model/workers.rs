//! What workers do, and what the reaper does with those that fall silent: jobs are taken, kept, and taken back when their lease is over.

use proptest::prelude::*;

use super::fates::Back;
use super::reference::Model;
use super::{Pair, stream};
use crate::rig::MS;

pub(super) const ROUTES: [&str; 2] = ["default", "mail"];

/// So far from the end of a lease nobody asks whether it is over: that is told from how long Redis says that the entry was idle, and from the time of
/// the model, which stands still while the call goes on: on a busy machine that may take some hundred milliseconds.
pub(super) const MARGIN_MS: u64 = 450;

#[derive(Debug, Clone)]
pub enum Op {
    /// So many of each route are delivered.
    Take(usize),
    /// The worker that has this pending entry keeps it.
    Renew(usize),
    /// The reaper comes by.
    Reap,
    /// Jobs are delivered and nobody answers, until shortly before the lease of this one ends, or shortly after that, when the reaper comes by.
    /// Then a worker answers, too late. That goes on so many times, with so many milliseconds in between.
    Silent { which: usize, is_over: bool, times: usize, pause: u64, late: Option<Answer> },
    /// A worker answers for an entry that is not its own: one that was finished or taken back before, so many before the last one, or one that
    /// was not delivered yet.
    Late(usize, bool, Answer),
}

/// What a worker says that is too late.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    Acked,
    AckedPlainly,
    Cost,
    Adjusted,
    Failed,
    Kept,
    Dead,
    Throttled,
    Renewed,
}

pub(super) const ANSWERS: [Answer; 9] = [
    Answer::Acked,
    Answer::AckedPlainly,
    Answer::Cost,
    Answer::Adjusted,
    Answer::Failed,
    Answer::Kept,
    Answer::Dead,
    Answer::Throttled,
    Answer::Renewed,
];

pub fn op() -> impl Strategy<Value = Op> {
    let answer = (0..ANSWERS.len()).prop_map(|n| ANSWERS[n]);
    let pause = prop_oneof![Just(40), Just(1_000), Just(12_000)];
    let silent = (0..8_usize, prop::bool::weighted(0.8), 1..6_usize, pause, prop::option::of(answer.clone()));
    prop_oneof![
        8 => (1..6_usize).prop_map(Op::Take),
        2 => (0..8_usize).prop_map(Op::Renew),
        3 => Just(Op::Reap),
        4 => silent.prop_map(|(which, is_over, times, pause, late)| Op::Silent { which, is_over, times, pause, late }),
        4 => (0..5_usize, any::<bool>(), answer).prop_map(|(n, is_gone, answer)| Op::Late(n, is_gone, answer)),
    ]
}

/// What the calls of a whole pass of the reaper reply together.
pub(super) struct Reaped {
    taken_back: u64,
    /// Until the next lease may end; none: nobody holds a job, nor will when the next one is asked for.
    left_ms: Option<u64>,
}

impl Model {
    /// For how long an entry that is pending may still be held, in milliseconds; 0: its lease is over. "A lease is 1 s to 7 d."
    fn left_ms(&self, now: u64, n: usize) -> u64 {
        let entry = &self.ready[n];
        let idle = (now / MS).saturating_sub(entry.taken_ms.expect("pending"));
        entry.lease_ms.max(1_000).saturating_sub(idle)
    }

    /// "Silent for longer than the lease: dripd takes the job back as if it had failed, reason `lease expired`." Replies how many.
    fn take_back(&mut self, now: u64) -> u64 {
        let mut taken_back = 0;
        for route in ROUTES {
            let is_over = |model: &Self, n: &usize| model.ready[*n].route == route && model.left_ms(now, *n) == 0;
            while let Some(n) = self.pending().into_iter().find(|n| is_over(self, n)) {
                self.fail(now, n, Back::Off, false, false, "lease expired");
                taken_back += 1;
            }
        }
        taken_back
    }
}

impl Pair {
    pub fn workers(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Take(n) => self.take(*n),
            Op::Renew(n) => self.renew(*n),
            Op::Reap => self.reap()?,
            Op::Silent { which, is_over, times, pause, late } => {
                for _ in 0..*times {
                    self.falls_silent(*which, *is_over, *late)?;
                    self.step(&super::Op::Advance(*pause))?;
                    self.step(&super::Op::Drain)?;
                }
            }
            Op::Late(n, is_gone, answer) => self.answers_late(*n, *is_gone, *answer)?,
        }
        Ok(())
    }

    /// Deliver jobs, as if it were the time of the model five milliseconds ago.
    fn take(&mut self, n: usize) {
        for route in ROUTES {
            let (stream, at) = (stream(route), self.now / MS - 5);
            if self.model.ready.iter().all(|entry| entry.route != route || entry.taken_ms.is_some()) {
                continue;
            }
            for entry in self.case.take(&stream, n) {
                self.claim(&stream, &entry.id, at);
                let known = self.model.ready.iter_mut().find(|known| known.route == route && known.id == entry.id);
                known.expect("known").taken_ms = Some(at);
            }
        }
    }

    /// A worker keeps an entry from this moment on. Replies whether it is its own.
    fn claim(&mut self, stream: &str, id: &str, at: u64) -> bool {
        let (key, time) = (self.case.key(stream), at.to_string());
        let ids: Vec<String> = self.case.cmd(&["XCLAIM", &key, "workers", "w", "0", id, "TIME", &time, "JUSTID"]);
        !ids.is_empty()
    }

    fn renew(&mut self, n: usize) {
        let Some(n) = self.model.pending().iter().cycle().nth(n).copied() else { return };
        let (entry, at) = (self.model.ready[n].clone(), self.now / MS - 5);
        assert!(self.claim(&stream(&entry.route), &entry.id, at), "{entry:?}");
        self.model.ready[n].taken_ms = Some(at);
    }

    /// A whole pass: leases that ran out are failures.
    pub(super) fn reap(&mut self) -> Result<(), TestCaseError> {
        // A lease that is about to end, or has just ended, is left for a moment.
        while self.model.pending().into_iter().any(|n| self.is_near(n)) {
            self.now += MARGIN_MS * MS;
        }
        let now = self.now;
        let reaped = self.reap_real(true);
        prop_assert_eq!(reaped.taken_back, self.model.take_back(now), "so many were taken back");
        self.model.forget(now);
        // "At the latest 1 s after it ran out": so the next pass is no later than the next end.
        let runs = |n: &usize| self.model.ready[*n].taken_ms.is_some_and(|taken| taken <= now / MS); // else the clock stepped back
        let left_ms = self.model.pending().into_iter().filter(runs).map(|n| self.model.left_ms(now, n)).min();
        if let Some(left_ms) = left_ms {
            let told = reaped.left_ms.is_some_and(|told| told <= left_ms + MARGIN_MS);
            prop_assert!(told, "the next lease ends in {} ms, and not in {:?}", left_ms, reaped.left_ms);
        }
        Ok(())
    }

    fn falls_silent(&mut self, which: usize, is_over: bool, late: Option<Answer>) -> Result<(), TestCaseError> {
        self.step(&super::Op::Workers(Op::Take(5)))?;
        let Some(n) = self.model.pending().iter().cycle().nth(which).copied() else { return Ok(()) };
        let entry = &self.model.ready[n];
        let end = entry.taken_ms.expect("pending") + entry.lease_ms.max(1_000);
        let at = if is_over { end + MARGIN_MS + 1 } else { end - MARGIN_MS - 1 };
        self.now = self.now.max(at * MS);
        self.step(&super::Op::Workers(Op::Reap))?;
        late.map_or(Ok(()), |late| self.step(&super::Op::Workers(Op::Late(0, true, late))))
    }

    fn is_near(&self, n: usize) -> bool {
        let entry = &self.model.ready[n];
        let idle = (self.now / MS).saturating_sub(entry.taken_ms.expect("pending"));
        idle.abs_diff(entry.lease_ms.max(1_000)) < MARGIN_MS
    }

    /// An entry was acknowledged a moment ago, and is not deleted yet: for the functions it is gone.
    pub(super) fn answers_again(&mut self, n: usize) -> Result<(), TestCaseError> {
        self.answers_late(0, true, ANSWERS[n % ANSWERS.len()])
    }

    /// "An empty answer means that it is no longer yours"; "0: not pending any more: nothing changed".
    fn answers_late(&mut self, n: usize, is_gone: bool, answer: Answer) -> Result<(), TestCaseError> {
        let undelivered = self.model.ready.iter().filter(|entry| entry.taken_ms.is_none());
        let undelivered = undelivered.map(|entry| (entry.route.clone(), entry.id.clone()));
        let (gone, undelivered) = (self.model.gone.iter().rev().nth(n).cloned(), undelivered.cycle().nth(n));
        let Some((route, id)) = (if is_gone { gone } else { undelivered }) else { return Ok(()) };
        prop_assert_eq!(self.answer(&route, &id, answer), 0, "{} {} is not pending", route, id);
        Ok(())
    }

    /// What a worker says of an entry. Replies what it is told.
    pub(super) fn answer(&mut self, route: &str, id: &str, answer: Answer) -> i64 {
        let (stream, now) = (stream(route), self.now.to_string());
        let mut call = |name: &str, more: &[&str]| {
            let args: Vec<&str> = [now.as_str(), id].into_iter().chain(more.iter().copied()).collect();
            self.case.fcall::<i64>(name, &[&stream], &args)
        };
        match answer {
            Answer::Acked => call("drip__ack", &[]),
            Answer::Cost => call("drip__ack", &["COST", "70"]),
            Answer::Adjusted => call("drip__adjust", &["+70"]),
            Answer::Failed => call("drip__fail", &["RETRY_IN", "3"]),
            Answer::Kept => call("drip__fail", &["KEEP"]),
            Answer::Dead => call("drip__fail", &["DEAD"]),
            Answer::Throttled => call("drip__fail", &["THROTTLED", "RETRY_AFTER", "7000"]),
            Answer::Renewed => i64::from(self.claim(&stream, id, self.now / MS - 5)),
            Answer::AckedPlainly => {
                let key = self.case.key(&stream);
                self.case.cmd(&["XACK", &key, "workers", id])
            }
        }
    }

    pub(super) fn reap_real(&mut self, take_back: bool) -> Reaped {
        let (mut route, mut id) = (String::new(), String::new());
        let mut reaped = Reaped { taken_back: 0, left_ms: None };
        loop {
            let now = self.now.to_string();
            let args = [now.as_str(), if take_back { "1" } else { "0" }, &route, &id];
            let reply: Vec<redis::Value> = self.case.fcall("drip__reap", &["policy"], &args);
            let text = |n: usize| redis::from_redis_value::<String>(reply[n].clone()).expect("text");
            let number = |n: usize| redis::from_redis_value::<i64>(reply[n].clone()).expect("a number");
            reaped.taken_back += number(3) as u64;
            let left_ms = u64::try_from(number(2)).ok();
            reaped.left_ms = reaped.left_ms.into_iter().chain(left_ms).min();
            (route, id) = (text(0), text(1));
            if route.is_empty() {
                return reaped;
            }
        }
    }
}
