//! The reasons why a bucket's next job does not leave now, and what else is worth knowing, each in a sentence.

use std::time::Duration;

use super::binding::{Binding, Reason};
use super::local_time::LocalTime;
use super::provenance::Origin;
use super::{File, ancestors, plain};
use crate::model::counted::counted;
use crate::model::duration::say;
use crate::store::explain::{Facts, Level, Parked, Place, Worker, Wrong};
use crate::store::routes::say_pace;

/// The most workers with leases that a sentence names.
const MAX_WORKERS_NAMED: usize = 3;

/// The lateness from which on a due job is reported as late, in milliseconds.
const LATE_MS: u64 = 1_000;

/// A question about a bucket, with everything that its answer needs.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The facts that the functions replied.
    pub facts: &'a Facts,
    /// The configuration file of whoever asks.
    pub file: &'a File,
    /// The current time and the time zone of whoever asks.
    pub local_time: &'a LocalTime,
}

/// All reasons that apply to a bucket. The first one is what an operator has to deal with first: a key of the wrong
/// type, a pause, a missing daemon, the time of the bucket itself, its route.
pub fn what_binds(question: &Question) -> Vec<Reason> {
    let mut found = question.out();
    let (first, into) = (&mut found[0], question.into());
    for said in &into {
        first.words += &format!("; {}", said.words);
    }
    found.extend(into.into_iter().map(|said| Reason { words: String::new(), ..said })); // said in the first sentence
    found.extend(question.aside());
    found
}

/// The types that a key has and should have, in words, with the way out.
fn holds(wrong: &Wrong) -> String {
    format!(
        "the key {} holds a {}, not a {}; see what it is, then rename or delete it",
        plain(&wrong.key),
        wrong.holds,
        wrong.wanted
    )
}

fn us(us: u64) -> String {
    say(Duration::from_micros(us))
}

fn ms(ms: u64) -> String {
    say(Duration::from_millis(ms))
}

impl<'a> Question<'a> {
    fn bucket(&self) -> &'a Level {
        self.facts.levels.first().expect("a chain begins with its bucket")
    }

    /// The budgets above the bucket, the nearest first.
    fn above(&self) -> &'a [Level] {
        &self.facts.levels[1..]
    }

    fn name(&self) -> String {
        plain(&self.bucket().name)
    }

    fn has_work(&self) -> bool {
        self.facts.depth + self.facts.retries.waiting + self.facts.delayed.waiting > 0
    }

    /// Whether it waits for workers: it is held, or it waits for a budget that is.
    fn is_held(&self) -> bool {
        let waits_for_one = || self.above().last().is_some_and(|top| top.place == Place::Held);
        self.facts.place == Place::Held || self.facts.place == Place::Share && waits_for_one()
    }

    /// The reasons why nothing leaves now: at least one.
    fn out(&self) -> Vec<Reason> {
        let facts = self.facts;
        let mut found: Vec<Reason> = Vec::new();
        let level = self.bucket();
        found.extend(self.wrong().map(|words| Reason::new(Binding::WrongType, words)));
        found.extend(ancestors::refused(level));
        if found.is_empty() && !self.has_work() {
            found.push(Reason::new(Binding::Empty, self.empty()));
        }
        found.extend(ancestors::paused(level, self.local_time));
        found.extend(ancestors::no_server(facts.writes_refused.as_ref(), facts.daemons));
        if found.is_empty() {
            let above = || (!self.is_held()).then(|| ancestors::waiting_for(&facts.levels, self.local_time)).flatten();
            let stopped = ancestors::stopped(self.above(), self.local_time);
            let first = stopped.or_else(|| ancestors::full(level)).or_else(|| self.ordered());
            found.extend(first.or_else(|| self.parked()).or_else(|| self.own_time()).or_else(above));
        }
        if self.has_work() && (self.is_held() || facts.route.holds()) {
            found.push(Reason::new(Binding::Held, self.held(found.is_empty())));
        }
        if found.is_empty() {
            found.push(Reason::new(Binding::Due, self.due()));
        }
        found
    }

    /// The sentence about a queue, or else a key of the route, that is of another type than it must be.
    fn wrong(&self) -> Option<String> {
        let keys = &self.facts.wrong;
        let stops_all = |wrong: &&Wrong| wrong.of == "route" || wrong.of == "slots";
        let (of_route, others): (Vec<&Wrong>, Vec<&Wrong>) = keys.iter().partition(stops_all);
        let queue = others.into_iter().find(|wrong| wrong.wanted == "list");
        let queue = queue.map(|wrong| format!("nothing goes in or out: {}", holds(wrong)));
        queue.or_else(|| of_route.first().map(|wrong| format!("nothing leaves: {}", holds(wrong))))
    }

    fn empty(&self) -> String {
        let (level, name) = (self.bucket(), self.name());
        let waits = level.due_us.filter(|us| *us > 0).max(ancestors::latest(self.above()).map(|(us, _)| us));
        let is_full = |level: &Level| ancestors::full(level).is_some();
        let is_stopped = level.paused.is_some()
            || ancestors::stopped(self.above(), self.local_time).is_some()
            || self.facts.levels.iter().any(is_full);
        let is_served = self.facts.writes_refused.is_none() && self.facts.daemons > 0;
        let stopped = is_stopped || level.closed.is_some() || !is_served;
        let then = match waits {
            _ if stopped => String::new(),
            Some(wait) => format!("; a job that comes now leaves in {}", us(wait)),
            None => "; a job that comes now leaves at once".to_owned(),
        };
        format!("nothing waits: {name} is empty{then}")
    }

    /// The last turn of the bucket failed: why, and when it is tried again.
    fn parked(&self) -> Option<Reason> {
        let parked = self.facts.parked.as_ref()?;
        let Parked { kind, subject, detail } = parked;
        let (key, detail) = (plain(subject), plain(detail));
        let because = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        let failed = match kind.as_str() {
            "refused" => format!("the stream {key} does not take an entry{because}"),
            "wrong-type" => format!("the key {key} holds something else than it must{because}"),
            "newer" => format!("a newer version of dripd wrote what is in {key}"),
            _ => format!("a key of it may hold something else than it must, see {key}{because}"),
        };
        let name = self.name();
        let words = format!(
            "{name} is tried again in {}: its last turn failed, {failed}",
            us(self.bucket().due_us.unwrap_or(0))
        );
        Some(Reason::new(Binding::Parked, words))
    }

    /// The reason that lies in the bucket's own time: delayed jobs, failed jobs that back off, or its due. `None` where
    /// that time has come, or a budget above it makes the next job wait longer.
    fn own_time(&self) -> Option<Reason> {
        let (retries, delayed, name) = (&self.facts.retries, &self.facts.delayed, self.name());
        let due = self.bucket().due_us.unwrap_or(0);
        let above_us = ancestors::latest(self.above()).map_or(0, |(us, _)| us);
        let nothing_can = self.facts.depth + retries.ended + delayed.ended == 0;
        if let Some(next) = delayed.next_in_us.filter(|next| {
            nothing_can && retries.next_in_us.is_none_or(|other| *next <= other) && *next > due.max(above_us)
        }) {
            let jobs = counted(delayed.waiting, "delayed job waits for its time", "delayed jobs wait for their time");
            let words = format!("the next job leaves in {}: {jobs} in {name}", us(next));
            return Some(Reason::new(Binding::Delayed, words));
        }
        let next = retries.next_in_us.unwrap_or(0);
        if nothing_can && next > due.max(above_us) {
            let jobs = counted(retries.waiting, "failed job waits", "failed jobs wait");
            let words = format!("the next job leaves in {}: {name} is backing off, {jobs} for another try", us(next));
            return Some(Reason::new(Binding::BackingOff, words));
        }
        let (binding, because) = ancestors::its_time_is_for(self.bucket(), self.local_time);
        let words = || format!("the next job leaves in {}: {name} {because}", us(due));
        (due > 0 && due >= above_us).then(|| Reason::new(binding, words()))
    }

    fn held(&self, is_first: bool) -> String {
        let (facts, name) = (self.facts, self.name());
        let since = self.local_time.say_ago(self.bucket().late_ms.unwrap_or(0));
        let route = &facts.route;
        let name_of_route = &route.name;
        let others = counted(route.held, "bucket waits", "buckets wait");
        if let Some(pace) = route.taken_per_second.filter(|pace| *pace > 0.0) {
            let they_take = format!("workers of route {name_of_route} take {}", say_pace(pace));
            if !is_first {
                return format!("the {they_take}, and {others} for them: its turn comes after those");
            }
            let turn = Duration::from_secs_f64((route.ahead.unwrap_or(route.held) + 1) as f64 / pace);
            return format!("held: the {they_take}, and {others} for them; its turn comes in about {}", say(turn));
        }
        let ready = counted(route.ready, "job is ready", "jobs are ready");
        let oldest = match route.age_us {
            0..100_000 => String::new(),
            age => format!("the oldest for {}, ", us(age)),
        };
        let away = match &route.to {
            Some(to) => format!(
                "the workers of the list {} take nothing: {} in it, {oldest}and it takes {} at most",
                plain(to),
                counted(route.ready, "job is", "jobs are"),
                route.most()
            ),
            None => format!("nobody takes jobs of route {name_of_route}: {ready}, {oldest}{}", self.leases()),
        };
        if is_first { format!("held: {name} waits since {since}, and {away}") } else { away }
    }

    /// The workers that hold leases of the route, in words.
    fn leases(&self) -> String {
        let facts = self.facts;
        let shown = |worker: &Worker| {
            format!("{} ({}, last heard of {} ago)", plain(&worker.name), worker.leases, ms(worker.idle_ms))
        };
        let with_leases: Vec<&Worker> = facts.workers.iter().filter(|worker| worker.leases > 0).collect();
        let named: Vec<String> = with_leases.iter().take(MAX_WORKERS_NAMED).map(|worker| shown(worker)).collect();
        let more = with_leases.len().saturating_sub(MAX_WORKERS_NAMED);
        match (named.is_empty(), more) {
            (true, _) if facts.route.pending > 0 => {
                format!("{} held", counted(facts.route.pending, "lease is", "leases are"))
            }
            (true, _) => "no leases are held".to_owned(),
            (false, 0) => format!("leases are held by {}", named.join(", ")),
            (false, more) => format!("leases are held by {} and {more} more", named.join(", ")),
        }
    }

    fn due(&self) -> String {
        let name = self.name();
        match self.bucket().late_ms {
            Some(late) if late >= LATE_MS => {
                format!("the next job has been due for {}: the daemons are behind with {name}", ms(late))
            }
            _ => format!("the next job leaves now: nothing holds {name} back"),
        }
    }

    /// The back-off of a failed job that all others wait for, in a bucket that keeps the order of its jobs.
    fn ordered(&self) -> Option<Reason> {
        let is_free = !self.bucket().counting && self.bucket().slots.is_some_and(|slots| slots.taken < slots.of);
        let is_full = self.facts.place == Place::Full && is_free;
        if is_full && !self.bucket().policy.ordered {
            let words =
                format!("a slot of {} is free: its next job leaves when daemons next look at all slots", self.name());
            return Some(Reason::new(Binding::Slot, words));
        }
        let next = us(self.facts.retries.next_in_us.unwrap_or(0));
        let words = || {
            format!(
                "the next job leaves in {next}: {} keeps the order of its jobs, and the failed one backs off",
                self.name()
            )
        };
        is_full.then(|| Reason::new(Binding::BackingOff, words()))
    }

    /// The reasons that keep jobs from coming in. They are appended to the sentence about what keeps jobs from leaving.
    fn into(&self) -> Vec<Reason> {
        let (facts, level) = (self.facts, self.bucket());
        if let Some(refused) = facts.writes_refused.as_ref().filter(|refused| refused.pushes_only) {
            return vec![Reason::new(Binding::NoWrites, format!("it takes nothing in: {}", refused.why))];
        }
        if level.closed.is_some() {
            let Origin::Closed(hand) = Origin::of(facts.into(), level, "capacity") else { return Vec::new() };
            let words = format!("it takes nothing in: closed {}", hand.say_all(self.local_time));
            return vec![Reason::new(Binding::Closed, words)];
        }
        if facts.depth < level.policy.capacity || self.wrong().is_some() {
            return Vec::new();
        }
        let push = if level.policy.drops_oldest() { "each push drops the oldest" } else { "a push is rejected" };
        let words = format!("it is full, {} of {}: {push}", facts.depth, level.policy.capacity);
        vec![Reason::new(Binding::Full, words)]
    }

    /// Facts that surprise somebody who knows only the file at hand.
    fn aside(&self) -> Vec<Reason> {
        let (facts, level, mut found) = (self.facts, self.bucket(), Vec::new());
        let mut add = |binding, words| found.push(Reason::new(binding, words));
        for wrong in facts.wrong.iter().filter(|wrong| wrong.wanted == "sorted set" && wrong.of != "slots") {
            let what =
                if wrong.of == "delayed" { "no job can be delayed" } else { "no failed job can wait for another try" };
            add(Binding::WrongType, format!("{what}: {}", holds(wrong)));
        }
        if let Some(why) = &facts.bad_gate {
            add(Binding::WrongType, format!("atomic pushes are refused: {}", plain(why)));
        }
        if let (Some(keeps), None) = (facts.keeps, &level.closed) {
            let capacity = level.policy.capacity;
            add(
                Binding::Lowered,
                format!(
                    "{} keeps {keeps} though its capacity is {capacity}: lowering it threw nothing out",
                    self.name()
                ),
            );
        }
        if facts.spreading {
            add(Binding::Spreading, "a change of policies still spreads to the buckets that wait".to_owned());
        }
        let path = &self.file.name;
        match (self.file.is_in_force, facts.has_record) {
            (_, false) => add(
                Binding::NoRecord,
                "no policies are stored: pushes by function are refused until a daemon runs".to_owned(),
            ),
            (Some(false), true) => {
                let other = facts.source.as_ref().map_or_else(String::new, |source| {
                    let from = source.path.as_ref().map_or("its built-in defaults".to_owned(), |path| plain(path));
                    let names: Vec<String> = source.variables().map(|name| format!("${}", plain(name))).collect();
                    let with = if names.is_empty() { String::new() } else { format!(" with {}", names.join(", ")) };
                    format!(", that of {}:{from}{with}", plain(&source.host))
                });
                add(
                    Binding::AnotherFile,
                    format!(
                        "another file is in force than {path}{other}; a daemon that reads yours puts it in force by starting or `dripd reload`"
                    ),
                );
            }
            _ => {}
        }
        found
    }
}
