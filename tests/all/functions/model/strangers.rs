//! What somebody does to entries who does not know dripd: a plain XACK, XDEL and XTRIM; before a worker reads them, or while one holds them. Their jobs
//! are gone then. What they still hold is found later: a slot by the healing pass, and a place among the pending ones when the lease ends, or
//! by a worker that answers.

use proptest::prelude::*;

use super::jobs::Ready;
use super::reference::Model;
use super::workers::{ANSWERS, Answer, MARGIN_MS, ROUTES};
use super::{Pair, stream};
use crate::rig::MS;

/// "After a plain `XACK` the slot is free within 1 s"; that an entry was deleted is looked up less often.
const FREE_IN: u64 = 1_000 * MS;
const FOUND_IN: u64 = 12_000 * MS;

#[derive(Debug, Clone)]
pub enum Op {
    /// A worker acknowledges an entry plainly.
    Acked(usize),
    /// An entry is deleted that a worker holds, or that nobody has read yet; and what its worker says.
    Deleted(usize, bool, Answer),
    /// So many entries of a route are trimmed away, the oldest; the same.
    Trimmed(usize, usize, Answer),
    /// Time passes until no entry that is gone holds a slot.
    Healed,
}

pub fn op() -> impl Strategy<Value = Op> {
    let answer = (0..ANSWERS.len()).prop_map(|n| ANSWERS[n]);
    prop_oneof![
        3 => (0..8_usize).prop_map(Op::Acked),
        4 => (0..8_usize, any::<bool>(), answer.clone()).prop_map(|(n, is_held, answer)| Op::Deleted(n, is_held, answer)),
        2 => (0..ROUTES.len(), 1..4_usize, answer).prop_map(|(route, n, answer)| Op::Trimmed(route, n, answer)),
        2 => Just(Op::Healed),
    ]
}

/// An entry that is in its stream no more, though nobody told dripd.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    /// `holds`: its slot is not free yet. `taken_ms`: since when a worker holds it, as Redis still says.
    pub(super) entry: Ready,
    /// That it was deleted; else a worker acknowledged it.
    is_deleted: bool,
}

impl Model {
    /// The entries that hold a slot, also those of which nobody knows yet that they are gone.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &Ready> {
        self.ready.iter().chain(self.lost.iter().map(|lost| &lost.entry)).filter(|entry| entry.holds)
    }

    /// An entry is deleted, or acknowledged plainly.
    fn loses(&mut self, n: usize, is_deleted: bool) {
        let mut entry = self.ready.remove(n);
        self.adjusted.remove(&format!("{} {}", entry.route, entry.id));
        if !is_deleted {
            entry.taken_ms = None;
        }
        self.was_deleted |= is_deleted;
        self.lost.push(Lost { entry, is_deleted });
        self.forget_lost();
    }

    /// Of those of which nothing is held any more nobody knows anything.
    fn forget_lost(&mut self) {
        let (over, lost) = self.lost.drain(..).partition(|lost| !lost.entry.holds && lost.entry.taken_ms.is_none());
        let over: Vec<Lost> = over;
        self.lost = lost;
        self.gone.extend(over.into_iter().map(|lost| (lost.entry.route, lost.entry.id)));
    }

    /// The slot of one that is gone is free, if it held any.
    fn frees_lost(&mut self, now: u64, n: usize) {
        let entry = self.lost[n].entry.clone();
        self.lost[n].entry.holds = false;
        self.slot_freed(now, &entry);
    }

    /// One that is gone is found: nobody holds it, and nothing of it is held.
    fn finds_lost(&mut self, now: u64, n: usize) {
        self.lost[n].entry.taken_ms = None;
        self.frees_lost(now, n);
    }

    /// The place of one that Redis says is held.
    fn lost_pending(&self) -> Option<usize> {
        self.lost.iter().position(|lost| lost.entry.taken_ms.is_some())
    }
}

impl Pair {
    pub fn strangers(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Acked(n) => {
                let pending = self.model.pending();
                let Some(n) = pending.iter().cycle().nth(*n).copied() else { return Ok(()) };
                let entry = self.model.ready[n].clone();
                let key = self.case.key(&stream(&entry.route));
                prop_assert_eq!(self.case.cmd::<i64>(&["XACK", &key, "workers", &entry.id]), 1);
                self.model.loses(n, false);
                self.deletes_finished(); // it is in its stream until then
            }
            Op::Deleted(n, is_held, answer) => {
                let all = 0..self.model.ready.len();
                let some: Vec<usize> = all.filter(|n| self.model.ready[*n].taken_ms.is_some() == *is_held).collect();
                let Some(n) = some.iter().cycle().nth(*n).copied() else { return Ok(()) };
                let entry = self.model.ready[n].clone();
                let key = self.case.key(&stream(&entry.route));
                prop_assert_eq!(self.case.cmd::<i64>(&["XDEL", &key, &entry.id]), 1);
                self.model.loses(n, true);
                self.answers_for_lost(*answer)?;
            }
            Op::Trimmed(route, most, answer) => {
                let route = ROUTES[*route];
                let all = self.model.ready.iter().filter(|entry| entry.route == route).count();
                let (stays, n) = (all.saturating_sub(*most).to_string(), all.min(*most));
                let key = self.case.key(&stream(route));
                prop_assert_eq!(self.case.cmd::<usize>(&["XTRIM", &key, "MAXLEN", "=", &stays]), n);
                for _ in 0..n {
                    let oldest = self.model.ready.iter().position(|entry| entry.route == route);
                    self.model.loses(oldest.expect("one of them"), true);
                }
                self.answers_for_lost(*answer)?;
            }
            Op::Healed => self.heals()?,
        }
        Ok(())
    }

    /// The reaper deletes what is finished. "Gone within 10 s": where somebody deleted entries Redis counts wrong for a while how many are finished, and
    /// only each fifth pass looks at all of them.
    pub(super) fn deletes_finished(&mut self) {
        for _ in 0..if self.model.was_deleted { 5 } else { 1 } {
            self.reap_real(false);
        }
        self.model.forget(self.now);
    }

    /// Workers answer for entries that were deleted while they held them: those were pending, and there is nothing left to do for their jobs. Where that
    /// leaves one pending its lease ends at once: until then it counts in `max_ready` as if an entry had been delivered that was not, and how
    /// many more leave for that is not compared.
    fn answers_for_lost(&mut self, answer: Answer) -> Result<(), TestCaseError> {
        for n in (0..self.model.lost.len()).filter(|n| self.model.lost[*n].entry.taken_ms.is_some()).collect::<Vec<_>>()
        {
            let Ready { route, id, .. } = self.model.lost[n].entry.clone();
            let is_acked = matches!(answer, Answer::Acked | Answer::AckedPlainly | Answer::Cost);
            prop_assert_eq!(self.answer(&route, &id, answer), i64::from(is_acked), "{} {} was deleted", route, id);
            // Redis lets go of an entry that it does not find when somebody claims it.
            if is_acked || matches!(answer, Answer::Renewed) {
                self.model.lost[n].entry.taken_ms = None;
            }
            if !matches!(answer, Answer::AckedPlainly | Answer::Renewed | Answer::Adjusted) {
                self.model.frees_lost(self.now, n);
            }
        }
        self.model.forget_lost();
        self.ends_lost()
    }

    /// The leases of those end that are held still, and the reaper lets go of them. "A stream is reaped until it is empty": of one that is, their
    /// workers do.
    fn ends_lost(&mut self) -> Result<(), TestCaseError> {
        if self.model.lost_pending().is_none() {
            return Ok(());
        }
        let held =
            self.model.lost.iter().filter_map(|lost| Some(lost.entry.taken_ms? + lost.entry.lease_ms.max(1_000)));
        self.now = self.now.max((held.max().expect("one is") + 2 * MARGIN_MS) * MS);
        self.reap()?;
        while let Some(n) = self.model.lost_pending() {
            let Ready { route, id, .. } = self.model.lost[n].entry.clone();
            let is_empty = self.model.ready.iter().all(|entry| entry.route != route);
            let pending = self.answer(&route, &id, Answer::AckedPlainly);
            prop_assert!(pending == 0 || is_empty, "{} {} was deleted, and is held still", route, id);
            if pending == 0 {
                self.model.finds_lost(self.now, n);
            }
            self.model.lost[n].entry.taken_ms = None;
        }
        self.model.forget_lost();
        Ok(())
    }

    /// The healing pass comes by again and again, and drains do.
    fn heals(&mut self) -> Result<(), TestCaseError> {
        let began = self.now;
        while self.model.lost.iter().any(|lost| lost.entry.holds) {
            self.step(&super::Op::Drain)?;
            let now = self.now;
            let (wait_ms, freed, _): (i64, i64, redis::Value) =
                self.case.fcall("drip__heal", &["policy"], &[now.to_string()]);
            let key = self.case.key("slots");
            let stored: Vec<String> = self.case.cmd(&["HKEYS", &key]);
            let mut found = 0;
            for n in 0..self.model.lost.len() {
                let Lost { entry, is_deleted, .. } = self.model.lost[n].clone();
                if entry.holds && !stored.contains(&format!("{} {}", entry.route, entry.id)) {
                    self.model.finds_lost(now, n);
                    found += 1;
                } else if entry.holds {
                    let most = if is_deleted { FOUND_IN } else { FREE_IN };
                    prop_assert!(now - began <= most, "{:?} holds a slot still", entry);
                }
            }
            prop_assert_eq!(freed, found, "so many slots were free");
            self.model.forget_lost();
            prop_assert!(wait_ms >= 0 || self.model.lost.iter().all(|lost| !lost.entry.holds), "nobody looks");
            self.now += wait_ms.max(0) as u64 * MS;
        }
        Ok(())
    }
}
