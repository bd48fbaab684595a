//! Explanations in words of why a bucket or a budget waits, and of what a change would do, for the command line and for
//! HTTP. The functions find the facts (`store::explain`); this module only words them.

mod ancestors;
mod binding;
mod blocking;
mod budget;
mod forecast;
mod local_time;
mod provenance;

use std::time::Duration;

use serde::Serialize;

pub use binding::Binding;
use blocking::{Question, what_binds};
pub use budget::BudgetSaid;
pub use forecast::WhatIfSaid;
pub use local_time::LocalTime;
pub use provenance::Origin;

use crate::model::counted::counted;
use crate::model::duration::{say, show};
use crate::model::escape::{escaped, line as one_line, shell};
use crate::store::explain::{Facts, Gate, Level, Place, Retries, Share, Slots, Worker, Wrong};
use crate::store::level_limits::{Credit, QuotaUsed, ToldLimit};
use crate::store::routes::{Ready, say_pace};

/// The narrowest terminal, and in it the widths of labels and of values, in columns.
const WIDTH: usize = 80;
const LABEL: usize = 10;
const VALUE: usize = 10;

/// The most workers that the text for a terminal lists.
const MAX_WORKERS: usize = 10;

/// The configuration at hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = FileAtHand)]
pub struct File {
    /// What it is known by.
    pub name: String,
    /// Whether its record is the one in force; `None`: there is no file to compare, or no record.
    pub is_in_force: Option<bool>,
}

/// Why a bucket waits. Its JSON is what `dripd explain --json` prints; `docs/explain.md` says what each field means.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = BucketExplanation)]
pub struct Explanation {
    bucket: String,
    binds: Binding,
    binds_at: At,
    also: Vec<Binding>,
    says: Vec<String>,
    place: Place,
    depth: u64,
    over: u64,
    capacity: u64,
    keeps: Option<u64>,
    due_in_us: Option<u64>,
    overdue_ms: u64,
    chain: Vec<Link>,
    limits: Vec<Row>,
    retries: Retries,
    delayed: Retries,
    route: Ready,
    workers: Vec<Worker>,
    gates: Vec<Gate>,
    daemons: u64,
    file: File,
    spreading: bool,
    wrong_keys: Vec<Wrong>,
    /// When its next job may leave, in words.
    #[serde(skip)]
    due: Option<String>,
}

/// Which level of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = WhatBinds)]
struct At {
    kind: String,
    name: String,
}

/// A level of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = ChainLevel)]
struct Link {
    kind: String,
    name: String,
    rate: Option<String>,
    due_in_us: Option<u64>,
    place: Place,
    refused: Option<String>,
    slots: Option<Slots>,
    share: Option<Share>,
    waiting: Option<u64>,
    slow_us: u64,
    told: Option<ToldLimit>,
    credit: Option<Credit>,
    quotas: Vec<QuotaUsed>,
    paused: Option<provenance::Hand>,
    closed: Option<provenance::Hand>,
    policy: Vec<Row>,
}

/// A key of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = PolicyValue)]
struct Row {
    key: &'static str,
    value: String,
    from: Origin,
    said: String,
}

/// A text from outside, escaped for a terminal.
fn plain(text: &str) -> String {
    escaped(text.as_bytes())
}

/// A name, a value and where the value comes from: one line where that fits, otherwise two.
fn row(name: &str, value: &str, said: &str) -> String {
    let name = format!("{name:<width$}", width = LABEL.max(name.chars().count() + 1));
    let (value, said) = (one_line(value), one_line(said));
    let line = format!("{name}{value:<VALUE$}  {said}\n");
    if line.chars().count() <= WIDTH { line } else { format!("{name}{value}\n{:LABEL$}{said}\n", "") }
}

impl Explanation {
    /// Explain the facts of a bucket, compared with `file`; times are shown by `local_time`.
    pub fn of(facts: &Facts, file: File, local_time: &LocalTime) -> Self {
        let bucket = facts.levels.first().expect("a chain begins with its bucket");
        let found = what_binds(&Question { facts, file: &file, local_time });
        let (first, others) = found.split_first().expect("something always binds");
        let says = others.iter().rev().chain([first]).map(|said| said.words.clone()).filter(|words| !words.is_empty());
        Self {
            bucket: bucket.name.clone(),
            binds: first.binding,
            binds_at: At::of(first.at.as_ref(), bucket),
            also: others.iter().map(|said| said.binding).collect(),
            says: says.collect(),
            place: facts.place,
            depth: facts.depth,
            over: facts.over,
            capacity: bucket.policy.capacity,
            keeps: facts.keeps,
            due_in_us: bucket.due_us,
            overdue_ms: bucket.late_ms.unwrap_or(0),
            chain: facts.levels.iter().map(|level| Link::of(facts.into(), level, local_time)).collect(),
            limits: limits(facts, local_time),
            retries: facts.retries.clone(),
            delayed: facts.delayed.clone(),
            route: facts.route.clone(),
            workers: facts.workers.clone(),
            gates: facts.gates.clone(),
            daemons: facts.daemons,
            file,
            spreading: facts.spreading,
            wrong_keys: facts.wrong.clone(),
            due: due(bucket, local_time),
        }
    }

    /// What binds first, and the budget above the bucket that it is about, if any.
    pub fn binds(&self) -> (Binding, Option<&str>) {
        (self.binds, (self.binds_at.kind == "budget").then_some(&self.binds_at.name))
    }

    /// The sentences. The last one says what binds first.
    pub fn says(&self) -> &[String] {
        &self.says
    }

    /// The explanation as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = chain_text(&self.chain);
        out.push('\n');
        let mut line = |label: &str, text: String| out += &format!("{label:<LABEL$}{}\n", one_line(&text));
        let over = if self.over > 0 { format!(", {} more are to be rejected", self.over) } else { String::new() };
        line("waiting", format!("{} of {}{over}", self.depth, self.capacity));
        if let Some(due) = &self.due {
            line("due", due.clone());
        }
        if self.retries.waiting > 0 {
            line("retries", waiting_text(&self.retries, "job waits for another try", "jobs wait for another try"));
        }
        if self.delayed.waiting > 0 {
            line("delayed", waiting_text(&self.delayed, "job waits for its time", "jobs wait for their time"));
        }
        line("ready", route_text(&self.route));
        for worker in self.workers.iter().take(MAX_WORKERS) {
            let idle = say(Duration::from_millis(worker.idle_ms));
            let leases = counted(worker.leases, "lease", "leases");
            line("worker", format!("{}: {leases}, last heard of {idle} ago", plain(&worker.name)));
        }
        if self.workers.is_empty() && self.route.workers > 0 {
            line("workers", format!("{}, too many to list", self.route.workers));
        } else if self.route.workers > MAX_WORKERS as u64 {
            line("", format!("and {} more workers", self.route.workers - MAX_WORKERS as u64));
        }
        for gate in &self.gates {
            let wait = if gate.wait_ms > 0 {
                format!(", the next in {}", say(Duration::from_millis(gate.wait_ms)))
            } else {
                String::new()
            };
            line("gate", format!("{}: {} of {} left{wait}", gate.limiter, gate.remaining, gate.limit));
        }
        out += &values_text(self.chain[..1].iter().flat_map(|link| &link.policy).chain(&self.limits));
        let says: Vec<_> = self.says.iter().map(|words| one_line(words)).collect();
        out + "\n" + &says.join("\n") + "\n"
    }
}

/// The time at which the next job of a bucket may leave, in words. A job that waits for something else than its time is
/// not late: the last line of the explanation says what it waits for.
fn due(bucket: &Level, local_time: &LocalTime) -> Option<String> {
    let due = bucket.due_us?;
    if due > 0 {
        return Some(format!("in {}", say(Duration::from_micros(due))));
    }
    if bucket.paused.is_some() {
        let since = provenance::Hand::of_key(bucket, "pause").map_or_else(String::new, |hand| hand.since(local_time));
        return Some(format!("now, but it is paused since {since}"));
    }
    let waits = match (bucket.place, &bucket.share) {
        (Place::Full, _) if bucket.counting => "but its jobs in flight are counted first",
        (Place::Full, _) if bucket.slots.is_some_and(|slots| slots.taken < slots.of) => "but a failed job goes first",
        (Place::Full, _) => "but no slot is free",
        (Place::Held, _) => "but it is held for the workers of its route",
        (Place::Refused, _) => "but its budgets cannot be found",
        (_, Some(share)) => return Some(format!("now, but it waits for its share of budget {}", plain(&share.of))),
        _ => {
            let late = bucket.late_ms.filter(|ms| *ms > 0);
            return Some(late.map_or_else(|| "now".to_owned(), |ms| format!("{} ago", say(Duration::from_millis(ms)))));
        }
    };
    Some(format!("now, {waits}"))
}

/// The limits of all buckets that the route obeys. A ready window of its own is left out: its line in the file is not
/// known.
fn limits(facts: &Facts, local_time: &LocalTime) -> Vec<Row> {
    let route = &facts.route;
    let row = |key, value| Row::new(key, value, Origin::of_limit(facts.into(), key), local_time);
    let window = route.ready_window_us.map_or_else(|| "off".to_owned(), |us| show(Duration::from_micros(us)));
    let mut rows = vec![row("max_ready", route.max_ready.to_string())];
    if !route.is_own_window {
        rows.push(row("ready_window", window));
    }
    rows
}

/// A line for each level, with its rate and where that comes from; a second line where more applies to it.
fn chain_text(chain: &[Link]) -> String {
    let mut out = String::new();
    for link in chain {
        let from = link.policy.iter().find(|value| value.key == "rate").map_or("", |value| &value.said);
        let (rate, from) = link.rate.as_ref().map_or(("no rate", ""), |rate| (rate, from));
        out += row(&plain(&link.name), rate, from).trim_end();
        out += "\n";
        let more = link.more();
        if !more.is_empty() {
            out += &format!("  {}\n", more.join("; "));
        }
    }
    out
}

/// A line for each key of a policy except its rate.
fn values_text<'a>(values: impl Iterator<Item = &'a Row>) -> String {
    values.filter(|value| value.key != "rate").map(|value| row(value.key, &value.value, &value.said)).collect()
}

impl At {
    fn of(at: Option<&(String, String)>, bucket: &Level) -> Self {
        let (kind, name) = at.cloned().unwrap_or_else(|| (bucket.kind.clone(), bucket.name.clone()));
        Self { kind, name }
    }
}

impl Row {
    fn new(key: &'static str, value: String, from: Origin, local_time: &LocalTime) -> Self {
        Self { key, value, said: from.say(local_time), from }
    }
}

impl Link {
    fn of(known: provenance::Known<'_>, level: &Level, local_time: &LocalTime) -> Self {
        let value = |(key, value)| Row::new(key, value, Origin::of(known, level, key), local_time);
        let hand = |stops: &Option<String>, key| stops.as_ref().and_then(|_| provenance::Hand::of_key(level, key));
        Self {
            kind: level.kind.clone(),
            name: level.name.clone(),
            rate: level.policy.rate(),
            due_in_us: level.due_us,
            place: level.place,
            refused: level.refused.clone(),
            slots: level.slots,
            share: level.share.clone(),
            waiting: level.waiting,
            slow_us: level.slow_us,
            told: level.told.clone(),
            credit: level.credit,
            quotas: level.quotas.clone(),
            paused: hand(&level.paused, "pause"),
            closed: hand(&level.closed, "close"),
            policy: level.policy.values(&level.kind).into_iter().map(value).collect(),
        }
    }

    /// The facts about a level besides its rate.
    fn more(&self) -> Vec<String> {
        let mut more = Vec::new();
        if let Some(due) = self.due_in_us.filter(|us| *us > 0 && self.kind == "budget") {
            more.push(format!("due in {}", say(Duration::from_micros(due))));
        }
        if let Some(waiting) = self.waiting {
            more.push(counted(waiting, "waits for a share of it", "wait for a share of it"));
        }
        if let Some(job_rate) = self.policy.iter().find(|value| value.key == "job_rate") {
            more.push(format!("job_rate {}", job_rate.value));
        }
        if let Some(slots) = self.slots {
            more.push(format!("{} of {} jobs in flight", slots.taken, slots.of));
        }
        if self.slow_us > 0 {
            more.push(format!("slowed down for {} more", say(Duration::from_micros(self.slow_us))));
        }
        if let Some(told) = &self.told {
            more.push(format!("told: {}, reset in {}", told.shown(), say(Duration::from_micros(told.reset_us))));
        }
        more.extend(self.credit.map(|credit| credit.describe()));
        for quota in &self.quotas {
            let ends = say(Duration::from_micros(quota.ends_us));
            let (used, shown) = (quota.used, quota.shown());
            let begins = if quota.is_of_weeks() { " (weeks begin on Thursday)" } else { "" };
            more.push(format!("{used} of its quota of {shown} used, its window ends in {ends}{begins}"));
        }
        if let Some(share) = &self.share {
            let weight = self.policy.iter().find(|value| value.key == "weight").map_or("1", |value| &value.value);
            let place = if share.ahead == 0 { "first".to_owned() } else { format!("after {}", share.ahead) };
            more.push(format!(
                "waits for a share of {}: {place} of {}, weight {weight}",
                plain(&share.of),
                share.waiting
            ));
        }
        more
    }
}

/// Jobs that wait for a time, in words: `3 jobs wait for another try, the first in 2 s`.
fn waiting_text(jobs: &Retries, one: &str, many: &str) -> String {
    let waiting = counted(jobs.waiting, one, many);
    match (jobs.ended, jobs.next_in_us) {
        (0, Some(next)) => format!("{waiting}, the first in {}", say(Duration::from_micros(next))),
        (ended, _) => format!("{waiting}, {ended} of them now"),
    }
}

/// The state of a route in words: `3 of 100 on route mail, the oldest for 2 s; 4 with workers, they take 98/s`.
fn route_text(route: &Ready) -> String {
    let Ready { name, ready, pending, .. } = route;
    if let Some(to) = &route.to {
        let (jobs, to) = (counted(*ready, "job is", "jobs are"), plain(to));
        return format!("{jobs} in the list {to}, at most {}: route {name} forwards to it", route.most());
    }
    let oldest = route.oldest_ms.filter(|_| *ready > 0);
    let oldest = oldest.map_or_else(String::new, |ms| format!(", the oldest for {}", say(Duration::from_millis(ms))));
    let take = route.taken_per_second.map_or_else(String::new, |pace| format!(", they take {}", say_pace(pace)));
    format!("{ready} of {} on route {name}{oldest}; {pending} with workers{take}", route.most())
}
