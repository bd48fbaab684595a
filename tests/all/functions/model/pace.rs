//! What jobs pay, as the model knows it: a job of cost n takes n slots of the rate, and one of `job_rate`.

use super::policy::{Policy, Rate};
use super::reference::Model;
use super::slow::Slow;
use crate::rig::S;

/// What one job pays at most.
const LONGEST: u64 = 366 * 86_400 * S;

/// "Owes at most an hour."
const OWES: u64 = 3_600 * S;

/// What the last job of a bucket paid, where that was not one interval of its rate.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::functions) struct Paid {
    pub(in crate::functions) cost: u64,
    /// When the next job may leave by the rate, and by `job_rate`; 0: not known.
    pub(in crate::functions) unit: u64,
    pub(in crate::functions) job: u64,
    /// From then on nobody needs to know.
    pub(in crate::functions) over: u64,
}

impl Paid {
    const NOTHING: Self = Self { cost: 1, unit: 0, job: 0, over: 0 };

    /// Both dues of a bucket that meets this one.
    fn dues(&self, due: u64) -> (u64, u64) {
        if due > self.unit.max(self.job) { (due, due) } else { (self.unit.min(due), self.job.min(due)) }
    }
}

impl Rate {
    /// When a job of this cost is paid for that left in return for `t`.
    pub(in crate::functions) fn after_cost(self, t: u64, cost: u64) -> u64 {
        self.after_many(t, cost).min(t + LONGEST)
    }

    /// A whole interval, its fraction of a microsecond left out.
    pub(in crate::functions) fn step(self) -> u64 {
        (self.period / self.count) as u64
    }
}

/// At which pace a node lets jobs out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::functions) struct Pace {
    pub(in crate::functions) rate: Rate,
    /// `job_rate`: it paces jobs whatever they cost.
    pub(in crate::functions) job: Option<Rate>,
    pub(in crate::functions) catch_up: u64,
    /// What slow-downs leave of the rate, with `adaptive`: 1 where they leave all of it. `job_rate` stays.
    pub(in crate::functions) left: f64,
}

impl Pace {
    /// The longest interval at what is left of the rate.
    fn interval(self) -> u64 {
        if self.left < 1.0 {
            (self.rate.period as f64 / self.rate.count as f64 / self.left).ceil() as u64
        } else {
            self.rate.interval()
        }
    }

    /// So many intervals later, by the rate.
    fn after(self, t: u64, cost: u64) -> u64 {
        if self.left < 1.0 { (t + cost * self.interval()).min(t + LONGEST) } else { self.rate.after_cost(t, cost) }
    }

    /// When a job of this cost left that paid up to `t`.
    fn before(self, t: u64, cost: u64) -> u64 {
        t - LONGEST.min(cost * if self.left < 1.0 { self.interval() } else { self.rate.step() })
    }

    /// "No pace due may lie further ahead than what its last job paid."
    pub(in crate::functions) fn reach(self, paid: Option<&Paid>) -> u64 {
        let reach = LONGEST.min(paid.map_or(1, |paid| paid.cost) * self.interval());
        reach.max(self.job.map_or(0, Rate::interval))
    }

    /// When the n-th waiting job may leave at the earliest: by the rate and by `job_rate`, the later of both.
    pub(in crate::functions) fn eta_ms(self, due: u64, now: u64, n: usize) -> i64 {
        self.job.map_or(0, |job| job.eta_ms(due, now, n)).max(self.rate.eta_ms(due, now, n))
    }

    /// A due that followed this pace follows another one: last job + what it pays now, with no credit. So do both dues of what it paid.
    pub(in crate::functions) fn re_anchored(self, to: Self, paid: Option<&mut Paid>, due: u64, now: u64) -> u64 {
        let (unit, by_job) = match (&paid, self.job) {
            (Some(paid), Some(_)) => paid.dues(due),
            _ => (due, due),
        };
        let cost = paid.as_ref().map_or(1, |paid| paid.cost);
        let mut new = to.after(self.before(unit, cost), cost);
        let Some(paid) = paid else { return new.max(due.min(now)) };
        if let (Some(old), Some(job)) = (self.job, to.job) {
            let is_known = by_job > old.step();
            (paid.unit, paid.job) = (new, if is_known { job.after(by_job - old.step()) } else { 0 });
            new = new.max(paid.job);
        }
        new = new.max(due.min(now));
        paid.over = paid.over.max(new + to.catch_up);
        new
    }

    /// What the job really cost that left at `left.0` and paid for `left.1` units: `units` more, or less. It "gives back no more than was
    /// charged and makes nothing due before now". Replies the new due, and what is to be known of the payment.
    pub(in crate::functions) fn adjusted(
        self,
        known: Option<Paid>,
        due: Option<u64>,
        left: (u64, u64),
        units: i64,
        now: u64,
    ) -> (u64, Paid) {
        let interval = self.interval();
        let known = known.filter(|paid| paid.over > now);
        let is_known = self.job.is_some() && known.is_some();
        let mut paid = known.unwrap_or(Paid::NOTHING);
        // What is known of a payment may lie too far ahead, where the clock stepped back since: the due was put right.
        let latest = due.unwrap_or(now);
        let by_rate = match due {
            Some(due) if is_known => Some(paid.dues(due).0),
            None if is_known => Some(paid.unit.min(now)),
            due => due,
        };
        // Where the due is over it is reckoned from when the job left.
        let was = by_rate.filter(|due| *due > now).unwrap_or(by_rate.unwrap_or(0).max(left.0 + left.1 * interval));
        let moved = (was as i64 + units * interval as i64).min(was.max(now + OWES) as i64);
        let mut due = (moved.max(now as i64)) as u64;
        paid.cost = paid.cost.max((due - now).div_ceil(interval));
        if self.job.is_some() {
            (paid.unit, due) = (due, due.max(paid.job.min(latest)));
        }
        paid.over = paid.over.max(due + self.catch_up);
        (due, paid)
    }

    /// A job of this cost leaves in return for `due`: "paid after: the next due is n intervals later". Replies that, and what is to be known
    /// of the payment.
    pub(in crate::functions) fn pay(self, known: Option<Paid>, due: u64, cost: u64, now: u64) -> (u64, Option<Paid>) {
        let from = now - self.catch_up;
        let due = due.max(from);
        if known.is_none() && cost == 1 && self.job.is_none() {
            return (self.after(due, 1), None);
        }
        let mut paid = known.filter(|paid| paid.over > now).unwrap_or(Paid::NOTHING);
        let mut next = self.after(due, cost);
        if let Some(job) = self.job {
            let (unit, by_job) = paid.dues(due);
            (paid.unit, paid.job) = (self.after(unit.max(from), cost), job.after(by_job.max(from)));
            next = paid.unit.max(paid.job);
        }
        (paid.cost, paid.over) = (cost, next + self.catch_up);
        (next, Some(paid))
    }
}

impl Policy {
    pub(super) fn pace(&self) -> Pace {
        Pace { rate: self.rate, job: self.job, catch_up: self.catch_up, left: 1.0 }
    }

    /// The same of a bucket that may be slowed down.
    pub(super) fn slowed_pace(&self, slow: Option<&Slow>) -> Pace {
        Pace { left: slow.filter(|_| self.slow.is_adaptive).map_or(1.0, Slow::left), ..self.pace() }
    }
}

impl Model {
    /// A job of a bucket has left. Replies when the next one may.
    pub(super) fn pay(&mut self, now: u64, bucket: &str, p: &Policy, due: u64, cost: u64) -> u64 {
        let known = self.paid.remove(bucket);
        self.comes_back(now, bucket);
        let (next, paid) = p.slowed_pace(self.slow.get(bucket)).pay(known, due, cost, now);
        // Of a job that paid one interval nothing needs to be known.
        if let Some(paid) = paid.filter(|_| cost > 1 || p.job.is_some()) {
            self.paid.insert(bucket.into(), paid);
        }
        next
    }

    /// What the job of the n-th entry really cost: `units` more, or less, "once". It "gives back no more than was charged and makes
    /// nothing due before now". Replies whether it is told for the first time.
    pub(super) fn adjust(&mut self, now: u64, n: usize, units: i64) -> bool {
        let entry = self.ready[n].clone();
        if !self.adjusted.insert(format!("{} {}", entry.route, entry.id)) {
            return false;
        }
        let units = units.max(-(entry.cost as i64));
        if units == 0 {
            return true;
        }
        let state = self.look(now, &entry.bucket);
        self.settle(&entry.bucket, &state);
        let pace = state.policy.slowed_pace(state.slow.as_ref());
        // Of one that is held, what it waits for besides; one that went on has its due from then.
        let is_held = state.slow.as_ref().is_some_and(Slow::is_held);
        let due = if is_held { state.pace } else { state.due };
        let (due, paid) = pace.adjusted(state.paid, due, (entry.at, entry.cost), units, now);
        self.paid.remove(&entry.bucket);
        if paid.over > now {
            self.paid.insert(entry.bucket.clone(), paid);
        }
        let due = self.slow.get_mut(&entry.bucket).and_then(|slow| slow.hold(now, Some(due))).unwrap_or(due);
        self.place(now, &entry.bucket, due);
        true
    }
}
