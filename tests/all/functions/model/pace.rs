//! What jobs pay, as the model knows it: a job of cost n takes n slots of the rate, and one of `job_rate`.

use super::policy::{Policy, Rate};
use super::reference::Model;
use super::slow::Slow;
use crate::rig::S;

/// What one job pays at most.
const LONGEST: u64 = 366 * 86_400 * S;

/// "Up to a minute, or one such job if longer; down to an hour of debt." "Forgotten after an idle hour."
const CREDIT_MOST: f64 = 60e6;
const DEBT_MOST: f64 = 3_600e6;
const KEPT: u64 = 3_600 * S;

/// "2 s of credit halve a price, of debt double it."
const HALVES: f64 = 2e6;

/// What the last job of a bucket paid, where that was not one interval of its rate.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::functions) struct Paid {
    pub(in crate::functions) cost: u64,
    /// When the next job may leave by the rate, and by `job_rate`; 0: not known.
    pub(in crate::functions) unit: u64,
    pub(in crate::functions) job: u64,
    /// From then on nobody needs to know the three.
    pub(in crate::functions) over: u64,
    /// What corrections left over, in microseconds, negative in debt; and until when it is known.
    pub(in crate::functions) credit: i64,
    pub(in crate::functions) kept: u64,
    /// Since when a node in debt has no work and is past its due; 0: it has, or owes nothing.
    pub(in crate::functions) idle: u64,
}

impl Paid {
    const NOTHING: Self = Self { cost: 1, unit: 0, job: 0, over: 0, credit: 0, kept: 0, idle: 0 };

    /// As it is stored, behind the version and the due without constraints.
    pub(in crate::functions) fn stored(text: &str) -> Self {
        let words: Vec<i64> = text.split([' ', '/']).skip(3).map(|word| word.parse().expect("a number")).collect();
        let [cost, unit, job, _, _, over, credit, kept, idle] = words[..] else { panic!("{text}") };
        let [cost, unit, job, over, kept, idle] = [cost, unit, job, over, kept, idle].map(|n| n as u64);
        Self { cost, unit, job, over, credit, kept, idle }
    }

    /// The same without what is over.
    pub(in crate::functions) fn cooled(self, now: u64) -> Self {
        let paid = if self.over <= now { Self { cost: 1, unit: 0, job: 0, over: 0, ..self } } else { self };
        if paid.kept <= now { Self { credit: 0, kept: 0, idle: 0, ..paid } } else { paid }
    }

    /// From then on nobody needs to know anything of it.
    pub(in crate::functions) fn ends(&self) -> u64 {
        self.over.max(self.kept)
    }

    /// "Time without work pays debt."
    fn credit_since(&self, since: u64) -> i64 {
        match self.idle {
            idle if self.credit < 0 && idle > 0 => (self.credit + since.saturating_sub(idle) as i64).min(0),
            _ => self.credit,
        }
    }

    fn set_credit(&mut self, now: u64, due: u64, credit: i64) {
        (self.credit, self.idle) = (credit, 0);
        self.kept = if credit == 0 { 0 } else { now.max(due) + KEPT };
    }

    /// A node with this due has no work from now on.
    pub(in crate::functions) fn rests(&mut self, now: u64, due: u64) {
        if self.credit < 0 && self.idle == 0 {
            self.idle = now.max(due);
        }
    }

    /// Something waits for it from now on.
    pub(in crate::functions) fn has_work(&mut self, now: u64) {
        if self.idle > 0 {
            self.set_credit(now, 0, self.credit_since(now));
        }
    }

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

    /// "A correction adds (base - real) x interval." Replies what is to be known from now on.
    pub(in crate::functions) fn corrected(
        self,
        known: Option<Paid>,
        due: u64,
        (base, real): (u64, u64),
        now: u64,
    ) -> Option<Paid> {
        if base == real {
            return known;
        }
        let mut paid = known.map_or(Paid::NOTHING, |paid| paid.cooled(now));
        let (interval, base, real) = (self.exact_interval(), base as f64, real as f64);
        let most = CREDIT_MOST.max(base * interval);
        let credit = (paid.credit_since(now) as f64 + (base - real) * interval).min(most).max(-DEBT_MOST);
        paid.set_credit(now, due, (credit + 0.5).floor() as i64);
        Some(paid)
    }

    fn exact_interval(self) -> f64 {
        self.rate.period as f64 / self.rate.count as f64
    }

    /// "A job of t = cost x interval takes x = credit x min(1, t / (2 s + max(0, credit))) from it and is charged t - x, in whole units, at
    /// least 1." `since`: it is there since then. Replies what it is charged, and the credit after that, where there was any.
    pub(in crate::functions) fn price(self, paid: Option<&Paid>, cost: u64, since: u64) -> (u64, Option<i64>) {
        let Some(paid) = paid.filter(|paid| paid.credit != 0) else { return (cost, None) };
        let (credit, interval, units) = (paid.credit_since(since) as f64, self.exact_interval(), cost as f64);
        if credit == 0.0 {
            return (cost, Some(0));
        }
        let part = (units * interval / (HALVES + credit.max(0.0))).min(1.0);
        let charged = (units - credit / interval * part + 0.5).floor().max(1.0);
        (charged as u64, Some((credit - (units - charged) * interval + 0.5).floor() as i64))
    }

    /// A job of this cost, there since `since`, leaves in return for `due`: "paid after: the next due is n intervals later". Replies that, what
    /// is to be known of the payment, and the charge.
    pub(in crate::functions) fn pay(
        self,
        known: Option<Paid>,
        (due, since): (u64, u64),
        cost: u64,
        now: u64,
    ) -> (u64, Option<Paid>, u64) {
        let from = now - self.catch_up;
        let due = due.max(from);
        let known = known.map(|paid| paid.cooled(now));
        let (charged, credit) = self.price(known.as_ref(), cost, since);
        if known.is_none() && charged == 1 && self.job.is_none() {
            return (self.after(due, 1), None, 1);
        }
        let mut paid = known.unwrap_or(Paid::NOTHING);
        let mut next = self.after(due, charged);
        if let Some(job) = self.job {
            let (unit, by_job) = paid.dues(due);
            (paid.unit, paid.job) = (self.after(unit.max(from), charged), job.after(by_job.max(from)));
            next = paid.unit.max(paid.job);
        }
        (paid.cost, paid.over) = (charged, next + self.catch_up);
        if let Some(credit) = credit {
            paid.set_credit(now, next, credit);
        }
        (next, Some(paid), charged)
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
    /// A job of a bucket has left. Replies when the next one may, and what it was charged.
    pub(super) fn pay(&mut self, now: u64, bucket: &str, p: &Policy, due: u64, cost: u64) -> (u64, u64) {
        let known = self.paid.remove(bucket);
        self.comes_back(now, bucket);
        let (next, paid, charged) = p.slowed_pace(self.slow.get(bucket)).pay(known, (due, due), cost, now);
        // Of a job that paid one interval nothing needs to be known.
        if let Some(paid) = paid.filter(|paid| charged > 1 || p.job.is_some() || paid.credit != 0) {
            self.paid.insert(bucket.into(), paid);
        }
        (next, charged)
    }

    /// What the job of the n-th entry really cost: `units` more, or less, "once". Replies whether it is told for the first time.
    pub(super) fn adjust(&mut self, now: u64, n: usize, units: i64) -> bool {
        let entry = self.ready[n].clone();
        if !self.adjusted.insert(format!("{} {}", entry.route, entry.id)) {
            return false;
        }
        let real = entry.cost.saturating_add_signed(units);
        if real == entry.cost && entry.charged == entry.cost {
            return true;
        }
        let state = self.look(now, &entry.bucket);
        self.settle(&entry.bucket, &state);
        let pace = state.policy.slowed_pace(state.slow.as_ref());
        let paid = pace.corrected(state.paid, state.due.unwrap_or(0), (entry.cost, real), now);
        self.paid.remove(&entry.bucket);
        if let Some(paid) = paid.filter(|paid| paid.ends() > now) {
            self.paid.insert(entry.bucket.clone(), paid);
        }
        if let Some(due) = state.due {
            self.place(now, &entry.bucket, due);
        } else {
            self.leave_all(&entry.bucket);
            self.has_no_work(now, &entry.bucket, None);
        }
        true
    }
}
