//! Jobs with options in random sequences: submits with each option alone and together, cancel, find, and what a job really cost.

use proptest::prelude::*;

use super::submit::{Asked, Told};
use super::{BUCKETS, Pair, stream};
use crate::rig::MS;

/// Ids of producers; what lies beyond is one that was made up.
const IDS: usize = 5;

#[derive(Debug, Clone)]
pub enum Op {
    Submit(Submit),
    Find(usize, usize),
    Cancel(usize, usize),
    /// The same of any id that a producer gave.
    CancelOf(usize, usize),
    /// An entry that is pending, and so many units more or less.
    Adjust(usize, i64),
    /// It is done, and cost so many units.
    AckCost(usize, i64),
}

#[derive(Debug, Clone)]
pub struct Submit {
    bucket: usize,
    id: Option<usize>,
    replaces: bool,
    time: Time,
    ttl: Option<u64>,
    cost: Option<u64>,
    headers: usize,
}

impl Submit {
    /// Without any option.
    pub(super) fn plain(bucket: usize) -> Self {
        Self { bucket, id: None, replaces: false, time: Time::Now, ttl: None, cost: None, headers: 0 }
    }

    /// With an id alone.
    pub(super) fn of_id(bucket: usize, id: usize) -> Self {
        Self { bucket, id: Some(id), replaces: false, time: Time::Now, ttl: None, cost: None, headers: 0 }
    }

    /// With a short delay alone.
    pub(super) fn delayed(bucket: usize) -> Self {
        Self { bucket, id: None, replaces: false, time: Time::Delay(40), ttl: None, cost: None, headers: 0 }
    }
}

#[derive(Debug, Clone)]
enum Time {
    Now,
    Delay(u64),
    /// Milliseconds from now, or ago.
    At(i64),
}

pub fn op() -> impl Strategy<Value = Op> {
    let bucket = 0..BUCKETS.len();
    let delay = prop_oneof![Just(0), Just(40), Just(700), Just(5_000), Just(31_622_400_000)];
    let time = prop_oneof![
        3 => Just(Time::Now),
        2 => delay.prop_map(Time::Delay),
        1 => prop_oneof![Just(-900), Just(300), Just(2_000)].prop_map(Time::At),
    ];
    let ttl = prop::option::of(prop_oneof![Just(1), Just(150), Just(900), Just(4_000), Just(60_000)]);
    let cost = prop::option::of(prop_oneof![1..5_u64, Just(9), Just(40)]);
    let id = (prop::option::of(0..IDS), prop::bool::weighted(0.4));
    let submit = (bucket.clone(), id, time, ttl, cost, 0..3_usize);
    let units = prop_oneof![-3..4_i64, Just(-50), Just(60), Just(9_000)];
    prop_oneof![
        8 => submit.prop_map(|(bucket, (id, replaces), time, ttl, cost, headers)| {
            Op::Submit(Submit { bucket, id, replaces: replaces && id.is_some(), time, ttl, cost, headers })
        }),
        2 => (bucket.clone(), 0..IDS + 3).prop_map(|(b, id)| Op::Find(b, id)),
        2 => (bucket, 0..IDS + 3).prop_map(|(b, id)| Op::Cancel(b, id)),
        2 => (0..8_usize, units.clone()).prop_map(|(n, units)| Op::Adjust(n, units)),
        1 => (0..8_usize, 0..9_i64).prop_map(|(n, units)| Op::AckCost(n, units)),
    ]
}

impl Pair {
    pub fn with_options(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = self.now;
        match op {
            Op::Submit(submit) => self.submit(submit)?,
            Op::Find(b, id) => {
                let (bucket, id) = (BUCKETS[*b], self.id(*b, *id));
                prop_assert_eq!(self.case.find_at(now, bucket, &id), self.model.find(now, bucket, &id));
            }
            Op::Cancel(b, id) => {
                let (bucket, id) = (BUCKETS[*b], self.id(*b, *id));
                prop_assert_eq!(self.case.cancel_at(now, bucket, &id), self.model.cancel(now, bucket, &id));
            }
            Op::CancelOf(b, id) => {
                let (bucket, id) = (BUCKETS[*b], format!("id{id}"));
                prop_assert_eq!(self.case.cancel_at(now, bucket, &id), self.model.cancel(now, bucket, &id));
            }
            Op::Adjust(n, units) => {
                let Some(at) = self.model.pending().get(*n).copied() else { return Ok(()) };
                let entry = self.model.ready[at].clone();
                let args = [now.to_string(), entry.id, format!("{units:+}")];
                let reply: i64 = self.case.fcall("drip__adjust", &[&stream(&entry.route)], &args);
                prop_assert_eq!(reply, i64::from(self.model.adjust(now, at, *units)));
            }
            Op::AckCost(n, units) => {
                let Some(at) = self.model.pending().get(*n).copied() else { return Ok(()) };
                let entry = self.model.ready[at].clone();
                let args = [now.to_string(), entry.id, "COST".to_owned(), units.to_string()];
                prop_assert_eq!(self.case.fcall::<i64>("drip__ack", &[&stream(&entry.route)], &args), 1);
                self.model.adjust(now, at, units - entry.cost as i64);
                self.model.finish(now, at);
                self.model.ends_incidents(now, &entry.bucket, entry.at);
            }
        }
        Ok(())
    }

    /// One that a producer gave, or the last ones that were made up in this bucket.
    fn id(&self, bucket: usize, n: usize) -> String {
        let mut made = self.made.iter().rev().filter(|(b, _)| *b == bucket).map(|(_, id)| id.clone());
        if n < IDS { format!("id{n}") } else { made.nth(n - IDS).unwrap_or("nobody's".into()) }
    }

    fn submit(&mut self, submit: &Submit) -> Result<(), TestCaseError> {
        let (bucket, body) = (BUCKETS[submit.bucket], self.jobs(1).remove(0));
        let (words, asked) = self.in_words(submit);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let now = self.now;
        if body.len() > self.model.record.limit("max_job_bytes") {
            let args: Vec<String> =
                [now.to_string(), body.clone()].into_iter().chain(words.iter().map(|w| (*w).into())).collect();
            prop_assert_eq!(self.case.refusal("drip__submit", &[&format!("queue:{bucket}")], &args), "TOOLARGE");
            prop_assert_eq!(self.model.submit(now, bucket, &body, &asked, ""), None);
            return Ok(());
        }
        let found = self.case.submit_at(now, bucket, &body, &words);
        let are_held = !self.model.held.is_empty();
        let told = self.model.submit(now, bucket, &body, &asked, &found.id).expect("small enough");
        let is_new = ["queued", "delayed"].contains(&told.verdict);
        prop_assert_eq!(told.five[0] == 1, !found.id.is_empty(), "an id, made up or not: {:?}", found);
        // An estimate: "-1 where eta is -1, never below eta". Of a bucket alone it is eta, unless buckets are held: then it has its turns.
        let is_eta = found.expected_ms == told.five[4];
        let may_be_later = are_held && told.five[4] >= 0 && found.expected_ms > told.five[4];
        prop_assert!(is_eta || may_be_later, "{:?}", found);
        let by = found.by.clone();
        let found = Told { five: found.five, verdict: known(&found.verdict), id: found.id, by };
        prop_assert_eq!(&found, &told);
        self.keep_gate(bucket, is_new)?;
        if is_new && asked.id.is_none() {
            let is_other = self.made.iter().all(|(_, id)| *id != told.id);
            prop_assert!(is_other, "made up twice: {}", told.id);
            self.made.push((submit.bucket, told.id));
        }
        Ok(())
    }

    /// A key expires, by the clock of the server: here that is another one, so it is kept.
    pub(super) fn keep(&mut self, key: &str, longest: u64) -> Result<(), TestCaseError> {
        let key = self.case.key(key);
        let left: i64 = self.case.cmd(&["PTTL", &key]);
        prop_assert!(left > 0 && left as u64 <= longest.div_ceil(MS), "{} expires in {} ms", key, left);
        let _: i64 = self.case.cmd(&["PERSIST", &key]);
        Ok(())
    }

    /// The same of the window of a gate, where one let something in.
    pub(super) fn keep_gate(&mut self, bucket: &str, has_passed: bool) -> Result<(), TestCaseError> {
        let gate = self.model.policy(self.now, bucket).gate.filter(|_| has_passed);
        gate.map_or(Ok(()), |gate| self.keep(&format!("gate:fixed-window:1:{bucket}"), 2 * gate.period))
    }

    /// A submit as its caller writes it, and as the model takes it.
    fn in_words(&self, submit: &Submit) -> (Vec<String>, Asked) {
        let mut words = Vec::new();
        let mut say = |option: &str, value: String| words.extend([option.to_owned(), value]);
        let id = submit.id.map(|n| format!("id{n}"));
        if let Some(id) = &id {
            say("ID", id.clone());
        }
        let at = match submit.time {
            Time::Now => None,
            Time::Delay(ms) => {
                say("DELAY", ms.to_string());
                Some(self.now + ms * MS)
            }
            Time::At(ms) => {
                let at = (self.now / MS) as i64 + ms;
                say("AT", at.to_string());
                Some(at as u64 * MS)
            }
        };
        if let Some(ms) = submit.ttl {
            say("TTL", ms.to_string());
        }
        if let Some(cost) = submit.cost {
            say("COST", cost.to_string());
        }
        let headers: Vec<(String, String)> =
            (0..submit.headers).map(|n| (format!("h-{n}"), format!("value: {n}"))).collect();
        if submit.replaces {
            words.push("REPLACE".into());
        }
        for (name, value) in &headers {
            words.extend(["HEADER".to_owned(), name.clone(), value.clone()]);
        }
        (words, Asked { id, replaces: submit.replaces, at, ttl: submit.ttl, cost: submit.cost.unwrap_or(1), headers })
    }
}

fn known(verdict: &str) -> &'static str {
    let all = ["queued", "delayed", "replaced", "duplicate", "full", "late", "gated"];
    all.into_iter().find(|one| *one == verdict).unwrap_or("none of them")
}
