//! The reference model of `model`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::jobs::{Dead, Job, Line, Ready, Retry};
use super::lists::List;
use super::pace::Paid;
use super::policy::{Policy, Record};
use super::settings::Own;
use super::slow::Slow;
use super::strangers::Lost;
use super::submit::Changed;
use crate::rig::MS;

/// The end of a bucket's first back-off; `None`: it is over, and the bucket was scheduled for it.
pub(super) type Announced = Option<u64>;

pub(super) struct Model {
    pub(super) record: Record,
    pub(super) prev: Option<Record>,
    /// What is set for names.
    pub(super) own: BTreeMap<String, Own>,
    /// When what changed has reached a bucket, as long as it spreads.
    pub(super) spread: BTreeMap<String, u64>,
    pub(super) queues: BTreeMap<String, VecDeque<Job>>,
    /// Delayed jobs by their time, then by the moment of the accept and what is stored.
    pub(super) delayed: BTreeMap<String, BTreeMap<(u64, String), Job>>,
    /// The buckets in which a job of the queue leaves next, while delayed ones could.
    pub(super) turns: BTreeSet<String>,
    /// The ids that producers gave, of jobs that have left, with the moment of the accept.
    pub(super) ids: BTreeMap<String, BTreeMap<String, u64>>,
    /// What is known of submitted jobs that wait.
    pub(super) lines: BTreeMap<String, BTreeMap<String, Line>>,
    /// By bucket, id and key of a job that waits: what has replaced it; none: it is cancelled.
    pub(super) changed: BTreeMap<(String, String, String), Option<Job>>,
    /// Whether anything was ever submitted.
    pub(super) has_mark: bool,
    pub(super) paid: BTreeMap<String, Paid>,
    pub(super) slow: BTreeMap<String, Slow>,
    /// The entries of which it was told what they really cost.
    pub(super) adjusted: BTreeSet<String>,
    /// When the window of a bucket's gate began, and how many it has let in.
    pub(super) gates: BTreeMap<String, (u64, usize)>,
    pub(super) levels: BTreeMap<String, usize>,
    pub(super) schedule: BTreeMap<String, u64>,
    pub(super) held: BTreeMap<String, Held>,
    /// The routes for which buckets are held and had their turns in this call: they take no other jobs.
    pub(super) closed: BTreeSet<String>,
    /// How many undelivered jobs each route takes, as the functions say: "an estimate of what workers take between two looks".
    pub(super) limits: BTreeMap<String, usize>,
    /// The routes for which buckets are held, in the order in which that began.
    pub(super) routes_held: Vec<String>,
    /// Of each route for which buckets were held.
    pub(super) had_turns: BTreeMap<String, Turns>,
    /// A bucket has its turn at its route: its wait for workers is no lateness.
    pub(super) at_route: Option<String>,
    /// With work, and stopped by an operator.
    pub(super) paused: BTreeMap<String, u64>,
    /// With work, and without a free slot.
    pub(super) full: BTreeMap<String, u64>,
    /// Without work, and not past their due.
    pub(super) rest: BTreeMap<String, u64>,
    /// When those at rest were last forgotten.
    pub(super) forgot: u64,
    pub(super) retries: BTreeMap<String, BTreeSet<Retry>>,
    pub(super) index: BTreeMap<String, Announced>,
    pub(super) ready: Vec<Ready>,
    /// Buckets whose limit is new by the end of a setting, and whose jobs are not counted yet.
    pub(super) uncounted: BTreeSet<String>,
    /// Whether any ready stream has an entry; the functions are asked.
    pub(super) is_any_out: bool,
    /// Entries that somebody acknowledged plainly, or deleted, and of which something is held still.
    pub(super) lost: Vec<Lost>,
    /// Somebody has deleted an entry before.
    pub(super) was_deleted: bool,
    /// Where the jobs go of a route that forwards.
    pub(super) list: List,
    /// The entries that are done with, by route and id.
    pub(super) gone: Vec<(String, String)>,
    pub(super) rejected: Vec<(String, String, &'static str)>,
    pub(super) dead: Vec<Dead>,
}

/// A bucket that waits for a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) route: String,
    pub(super) due: u64,
    /// The finish tag of its next job.
    pub(super) rank: u64,
}

/// The line of a route: self-clocked fair queueing.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When anything last stood there.
    pub(super) at: u64,
    /// "Virtual time is the highest finish tag served."
    pub(super) time: u64,
    /// The last tag of each bucket.
    pub(super) tags: BTreeMap<String, u64>,
    /// Whether its jobs went into a list then: where they go elsewhere now nothing of it holds.
    pub(super) forwards: bool,
}

pub(super) struct State {
    pub(super) policy: Policy,
    pub(super) fresh: bool,
    pub(super) due: Option<u64>,
    pub(super) slow: Option<Slow>,
    pub(super) keeps: usize,
    /// What its last job paid, as the policy has it now.
    pub(super) paid: Option<Paid>,
    pub(super) now: u64,
}

impl Model {
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            prev: None,
            own: BTreeMap::new(),
            spread: BTreeMap::new(),
            queues: BTreeMap::new(),
            delayed: BTreeMap::new(),
            turns: BTreeSet::new(),
            ids: BTreeMap::new(),
            changed: BTreeMap::new(),
            has_mark: false,
            lines: BTreeMap::new(),
            paid: BTreeMap::new(),
            slow: BTreeMap::new(),
            adjusted: BTreeSet::new(),
            uncounted: BTreeSet::new(),
            is_any_out: false,
            gates: BTreeMap::new(),
            levels: BTreeMap::new(),
            schedule: BTreeMap::new(),
            held: BTreeMap::new(),
            closed: BTreeSet::new(),
            limits: BTreeMap::new(),
            routes_held: Vec::new(),
            had_turns: BTreeMap::new(),
            at_route: None,
            paused: BTreeMap::new(),
            full: BTreeMap::new(),
            rest: BTreeMap::new(),
            forgot: 0,
            retries: BTreeMap::new(),
            index: BTreeMap::new(),
            ready: Vec::new(),
            lost: Vec::new(),
            was_deleted: false,
            list: List::default(),
            gone: Vec::new(),
            rejected: Vec::new(),
            dead: Vec::new(),
        }
    }

    pub(super) fn len(&self, bucket: &str) -> usize {
        self.queues.get(bucket).map_or(0, VecDeque::len)
    }

    pub(super) fn look(&self, now: u64, bucket: &str) -> State {
        self.look_from(now, bucket, self.before(now, bucket))
    }

    /// How things stand with a bucket that was last put right by `old`, where that is not what applies now.
    pub(super) fn look_from(&self, now: u64, bucket: &str, old: Option<Policy>) -> State {
        let policy = self.policy(now, bucket);
        let mut due = self.schedule.get(bucket).copied().or(self.held.get(bucket).map(|held| held.due));
        due = due.or(self.rest.get(bucket).copied()).or(self.paused.get(bucket).copied());
        due = due.or(self.full.get(bucket).copied());
        let mut slow = self.slow.get(bucket).map(|slow| slow.put_right(now));
        due = due.map(|due| slow.as_ref().map_or(due, |slow| slow.pace(due)));
        let mut bound = policy.capacity.max(self.levels.get(bucket).copied().unwrap_or(0));
        let (mut fresh, mut paid) = (false, self.paid.get(bucket).cloned().map(|paid| paid.cooled(now)));
        if let Some(old) = old {
            fresh = true;
            bound = bound.max(old.capacity);
            if (old.rate, old.job) != (policy.rate, policy.job) {
                let (from, to) = (old.slowed_pace(slow.as_ref()), policy.slowed_pace(slow.as_ref()));
                due = due.map(|due| from.re_anchored(to, paid.as_mut(), due, now));
            }
        }
        due = due.map(|due| due.min(now + policy.slowed_pace(slow.as_ref()).reach(paid.as_ref())));
        due = due.filter(|due| *due > now || !self.rest.contains_key(bucket));
        // One that another route holds than its own goes on now, and so does one that is paused no more, or that has a slot free: "going on
        // gives no credit".
        let goes_on = self.paused.contains_key(bucket) && policy.paused_by.is_none()
            || self.full.contains_key(bucket) && !self.is_full(now, bucket, &policy);
        if goes_on || self.held.get(bucket).is_some_and(|held| held.route != policy.route) {
            due = due.map(|due| due.max(now));
        }
        due = slow.as_mut().map_or(due, |slow| slow.hold(now, due));
        State { policy, fresh, due, slow, keeps: self.len(bucket).min(bound), paid, now }
    }

    pub(super) fn set_level(&mut self, bucket: &str, capacity: usize) {
        let len = self.len(bucket);
        if len > capacity {
            self.levels.insert(bucket.into(), len)
        } else {
            self.levels.remove(bucket)
        };
    }

    pub(super) fn cut(&mut self, bucket: &str, keeps: usize, p: &Policy) {
        let drop_oldest = p.drop_oldest;
        let queue = self.queues.entry(bucket.into()).or_default();
        let over = queue.len() - keeps;
        let gone: Vec<Job> = if drop_oldest { queue.drain(..over).collect() } else { queue.drain(keeps..).collect() };
        let reason = if drop_oldest {
            "dropped"
        } else if p.is_closed {
            "closed"
        } else {
            "full"
        };
        for job in gone {
            let changed = job.options.as_ref().map(|o| self.taken(bucket, &o.id, &format!("q{}", o.accepted), 0).0);
            let body = if let Some(Changed::Replaced(other)) = changed { other.body } else { job.body };
            self.rejected.push((bucket.to_owned(), body, reason));
        }
    }

    pub(super) fn settle(&mut self, bucket: &str, state: &State) {
        self.keep_slow(bucket, state);
        self.cut(bucket, state.keeps, &state.policy);
        self.set_level(bucket, state.policy.capacity);
        if state.fresh {
            if self.prev.is_some() || self.has_glob_ended(state.now) {
                self.spread.insert(bucket.into(), state.now);
            }
            self.has_limit_again(state.now, bucket);
            self.drop_over(state.now, bucket);
            match &state.paid {
                Some(paid) if self.paid.get(bucket) == Some(paid) => {}
                Some(paid) if paid.ends() > state.now => drop(self.paid.insert(bucket.into(), paid.clone())),
                _ => drop(self.paid.remove(bucket)),
            }
        }
    }

    /// Drop the buckets at rest whose due is over, at most every 100 ms, and not while a change spreads, or the end of a setting is still to be
    /// seen: it may put a due off.
    pub(super) fn forget(&mut self, now: u64) {
        let is_soon = (self.forgot..self.forgot + 100 * MS).contains(&now);
        let is_settled = self.prev.is_none() && self.first_end().is_none_or(|end| end > now);
        if !is_soon && is_settled && self.rest.values().any(|due| *due <= now) {
            self.rest.retain(|_, due| *due > now);
            self.forgot = now;
        }
        self.paid.retain(|_, paid| paid.ends() > now);
        self.slow.retain(|_, slow| slow.over() > now);
    }

    /// A bucket with work waits for the end of a pause first, then for a slot, then for its own due, and only then for its route.
    pub(super) fn store_due(&mut self, now: u64, bucket: &str, due: u64) {
        let p = self.policy(now, bucket);
        if p.paused_by.is_some() {
            self.leave_all(bucket);
            self.paused.insert(bucket.into(), due);
            return;
        }
        if self.is_full(now, bucket, &p) {
            self.leave_all(bucket);
            self.full.insert(bucket.into(), due);
            return;
        }
        self.hold_or_schedule(now, bucket, due, &p);
    }

    /// The same of one that neither an operator nor a slot stops.
    pub(super) fn hold_or_schedule(&mut self, now: u64, bucket: &str, due: u64, p: &Policy) {
        match self.held.get_mut(bucket) {
            Some(held) if due <= now && held.route == p.route => held.due = due,
            held => {
                // Time spent held is no lateness.
                let due = if held.is_some() { due.max(now) } else { due };
                self.schedule(bucket, due);
            }
        }
    }

    pub(super) fn schedule(&mut self, bucket: &str, due: u64) {
        self.leave_all(bucket);
        self.schedule.insert(bucket.into(), due);
    }

    /// It stands nowhere.
    pub(super) fn leave_all(&mut self, bucket: &str) {
        self.schedule.remove(bucket);
        self.rest.remove(bucket);
        self.held.remove(bucket);
        self.paused.remove(bucket);
        self.full.remove(bucket);
    }

    /// Whether a retry of a bucket, or a delayed job, could leave, were it due.
    pub(super) fn is_working(&self, now: u64, bucket: &str) -> bool {
        self.index.get(bucket).is_some_and(|ends| ends.is_none_or(|ends| ends <= now))
    }

    /// Where a bucket waits from now on that may go from `due` on.
    pub(super) fn place(&mut self, now: u64, bucket: &str, due: u64) {
        self.place_as(now, bucket, due, self.len(bucket) > 0 || self.is_working(now, bucket));
    }

    /// The same of one of which it is known whether something of it could leave.
    pub(super) fn place_as(&mut self, now: u64, bucket: &str, due: u64, has_work: bool) {
        if has_work {
            return self.store_due(now, bucket, due);
        }
        self.leave_all(bucket);
        self.has_no_work(now, bucket, Some(due));
        if due > now {
            self.rest.insert(bucket.into(), due);
        }
    }

    /// The same after a push. One that is at rest stays so, and one without work that is due stays where it is.
    pub(super) fn stand(&mut self, now: u64, bucket: &str, due: Option<u64>) {
        let waits = self.schedule.contains_key(bucket) || self.held.contains_key(bucket);
        let is_stopped = self.paused.contains_key(bucket) || self.full.contains_key(bucket);
        let stands = waits || is_stopped || self.rest.contains_key(bucket);
        match due {
            Some(due) if self.len(bucket) > 0 || stands && self.is_working(now, bucket) => {
                self.store_due(now, bucket, due);
            }
            Some(due) if due > now => self.place(now, bucket, due),
            Some(due) => {
                let places = [&mut self.schedule, &mut self.paused, &mut self.full];
                if let Some(stored) = places.into_iter().find_map(|place| place.get_mut(bucket)) {
                    *stored = due;
                }
            }
            // By a new rate it rested for long enough.
            None if self.rest.get(bucket).is_some_and(|due| *due > now) => drop(self.rest.remove(bucket)),
            None => {}
        }
    }

    /// The due of a bucket once jobs come into it: idle time earns no credit.
    pub(super) fn begun(&self, now: u64, bucket: &str, state: &State) -> u64 {
        let is_idle = state.keeps == 0 && !self.is_working(now, bucket);
        state.due.filter(|due| *due >= now || !is_idle).unwrap_or(now)
    }

    /// Accepted jobs go into the queue, and with drop-oldest others out of it. Replies the due that is reckoned with.
    pub(super) fn queue_up(&mut self, now: u64, bucket: &str, state: &State, jobs: Vec<Job>) -> u64 {
        let due = self.begun(now, bucket, state);
        self.pass_gate(now, bucket, &state.policy, jobs.len());
        let level = state.policy.capacity.max(state.keeps);
        self.queues.entry(bucket.into()).or_default().extend(jobs);
        if self.len(bucket) > level {
            self.cut(bucket, level, &state.policy);
        }
        // Before it moves: one that its old route held goes on now by the route that it has now, with no credit.
        let reckoned = self.reckoned(now, bucket, Some(due));
        self.stand(now, bucket, Some(due));
        reckoned
    }

    pub(super) fn push(&mut self, now: u64, bucket: &str, jobs: &[String]) -> Option<[i64; 5]> {
        let state = self.look(now, bucket);
        let limit = self.record.limit("max_job_bytes");
        if jobs.iter().any(|job| job.len() > limit) {
            return None;
        }
        self.settle(bucket, &state);
        let p = &state.policy;
        let places = if p.drop_oldest { jobs.len() } else { jobs.len().min(p.capacity.saturating_sub(state.keeps)) };
        let accepted = places.min(self.gate(now, bucket, p).0);
        let waits_by_order = self.waits_by_order(now, bucket);
        let due = if accepted > 0 {
            self.queue_up(now, bucket, &state, jobs[..accepted].iter().map(|job| Job::plain(job)).collect())
        } else {
            let due = self.reckoned(now, bucket, state.due);
            self.stand(now, bucket, state.due);
            due
        };
        let (depth, mut retry) = (self.len(bucket), -1);
        if accepted < jobs.len() {
            retry = self.gate_wait(now, bucket, p);
            if depth >= p.capacity && !p.drop_oldest {
                let is_overdue = due + 1_000 * MS < now;
                let is_stuck = waits_by_order
                    || self.is_full(now, bucket, p)
                    || p.capacity == 0
                    || is_overdue
                    || accepted == 0 && self.waits_for_somebody(now, bucket, &state, due);
                retry = retry.max(honest(retry_ms(now, due), is_stuck));
            }
        }
        let eta = if accepted == 0 { -1 } else { p.pace().eta_ms(due, now, depth) };
        Some([accepted as i64, depth as i64, p.capacity as i64, retry, eta])
    }

    pub(super) fn peek(&self, now: u64, bucket: &str) -> [i64; 5] {
        let state = self.look(now, bucket);
        let (p, depth, due) = (&state.policy, state.keeps, self.reckoned(now, bucket, state.due));
        let full = depth >= p.capacity && !p.drop_oldest;
        let eta = if depth == 0 { -1 } else { p.pace().eta_ms(due, now, 1) };
        let is_stuck = self.waits_for_somebody(now, bucket, &state, due);
        [0, depth as i64, p.capacity as i64, if full { honest(retry_ms(now, due), is_stuck) } else { -1 }, eta]
    }

    /// The due that a reply reckons with: of a held or paused bucket, or one that waits for a slot, as if that ended now.
    pub(super) fn reckoned(&self, now: u64, bucket: &str, due: Option<u64>) -> u64 {
        due.map_or(now, |due| if self.waits_by_order(now, bucket) { due.max(now) } else { due })
    }

    /// Whether a bucket is held or paused, or waits for a slot.
    pub(super) fn waits_by_order(&self, now: u64, bucket: &str) -> bool {
        self.held.contains_key(bucket) || self.full.contains_key(bucket) || self.policy(now, bucket).paused_by.is_some()
    }

    /// "At least 1,000 where only an operator, a daemon or a worker can free it."
    pub(super) fn waits_for_somebody(&self, now: u64, bucket: &str, state: &State, due: u64) -> bool {
        let is_unseen = state.due.is_none() && state.keeps > 0;
        let is_stopped = self.waits_by_order(now, bucket) || self.is_full(now, bucket, &state.policy);
        is_stopped || state.policy.capacity == 0 || is_unseen || due + 1_000 * MS < now
    }

    pub(super) fn configure(&mut self, now: u64, record: Record) -> i64 {
        if record.json == self.record.json {
            return 0;
        }
        if self.prev.is_some() {
            return -1;
        }
        let globs = self.record.globs.clone();
        let old = std::mem::replace(&mut self.record, Record { globs, ..record });
        self.spreads_from(now, old);
        1
    }

    /// Whether a bucket stands somewhere, or did at a moment.
    pub(super) fn stands(&self, at: u64) -> bool {
        let waits = [&self.schedule, &self.paused, &self.full].iter().any(|place| !place.is_empty());
        waits || !self.held.is_empty() || self.rest.values().any(|due| *due > at)
    }

    /// A change spreads to the buckets that stand somewhere.
    pub(super) fn spreads_from(&mut self, now: u64, old: Record) {
        let keys: Vec<&str> = old.globs.iter().map(|(_, key, _)| key.as_str()).collect();
        if self.stands(now) || self.may_count(&keys) {
            self.prev = Some(old);
            self.spread.clear();
        }
    }
}

/// A wait in milliseconds: at least a second where somebody has to do something.
pub(super) fn honest(ms: i64, is_stuck: bool) -> i64 {
    if is_stuck { ms.max(1_000) } else { ms }
}

/// Until a moment, in milliseconds: at least one.
pub(super) fn retry_ms(now: u64, at: u64) -> i64 {
    at.saturating_sub(now).div_ceil(1_000).max(1) as i64
}
