//! What Redis holds, next to what the model says that it must hold.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use redis::{FromRedisValue, Value};

use super::jobs::{Dead, Options, Ready};
use super::pace::Paid;
use super::slow::Slow;
use super::{BUCKETS, Pair, stream};
use crate::rig::{Case, Entry, held, held_key};

const ROUTES: [&str; 2] = ["default", "mail"];

/// What Redis holds, streams aside: key by key.
struct Stored(BTreeMap<String, Value>);

impl Stored {
    /// All of it in one trip.
    fn read(case: &mut Case) -> Self {
        let one = |command: &str, name: &str, args: &[&str]| {
            let words = [command].into_iter().chain(args.iter().copied());
            (name.to_owned(), words.map(str::to_owned).collect::<Vec<_>>())
        };
        let sorted = |name: &str| one("ZRANGE", name, &["0", "-1", "WITHSCORES"]);
        let mut reads = vec![one("HGET", "policy", &["mark"]), one("HKEYS", "turns", &[])];
        reads.extend(["schedule", "rest", "paused", "full", "inflight", "retries", "adjusted"].map(sorted));
        reads.extend(ROUTES.map(|route| sorted(&held_key(route))));
        reads.extend(["level", "paid", "slow", "slots"].map(|name| one("HGETALL", name, &[])));
        for bucket in BUCKETS {
            reads.push(one("LRANGE", &format!("queue:{bucket}"), &["0", "-1"]));
            reads.extend(["delayed", "retry", "ids"].map(|kind| sorted(&format!("{kind}:{bucket}"))));
            reads.push(one("HGETALL", &format!("jobs:{bucket}"), &[]));
        }
        let mut pipe = redis::pipe();
        for (name, words) in &reads {
            pipe.cmd(&words[0]).arg(case.key(name)).arg(&words[1..]);
        }
        let values: Vec<Value> = pipe.query(&mut case.redis).expect("read");
        Self(reads.into_iter().map(|(name, _)| name).zip(values).collect())
    }

    fn get<T: FromRedisValue>(&self, name: &str) -> T {
        redis::from_redis_value_ref(&self.0[name]).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    fn sorted(&self, name: &str) -> BTreeMap<String, f64> {
        self.get::<Vec<(String, f64)>>(name).into_iter().collect()
    }
}

impl Pair {
    /// The whole state: and the ids of new entries, which Redis chose.
    pub(super) fn compare(&mut self) -> Result<(), TestCaseError> {
        let stored = Stored::read(&mut self.case);
        self.compare_waiting(&stored)?;
        self.compare_places(&stored)?;
        self.compare_slow(&stored)?;
        self.compare_ids(&stored)?;
        self.compare_streams()?;
        self.compare_list()?;
        self.compare_slots(&stored)
    }

    /// Jobs that wait: what is stored of each, and in which order.
    fn compare_waiting(&self, stored: &Stored) -> Result<(), TestCaseError> {
        let mark: Option<Vec<u8>> = stored.get("policy");
        for bucket in BUCKETS {
            let found: Vec<Vec<u8>> = stored.get(&format!("queue:{bucket}"));
            let found: Vec<String> = found.iter().rev().map(|job| readable(job, mark.as_ref())).collect();
            let expect = self.model.queues.get(bucket).into_iter().flatten().map(super::Job::stored);
            prop_assert_eq!(found, expect.collect::<Vec<_>>(), "the queue of {}", bucket);
            let found: Vec<(Vec<u8>, f64)> = stored.get(&format!("delayed:{bucket}"));
            let found = found.iter().map(|(job, at)| (*at as u64, readable(job, mark.as_ref())));
            let expect = self.model.delayed.get(bucket).into_iter().flat_map(BTreeMap::keys).cloned();
            prop_assert_eq!(found.collect::<Vec<_>>(), expect.collect::<Vec<_>>(), "the delayed jobs of {}", bucket);
            let found: Vec<(String, f64)> = stored.get(&format!("retry:{bucket}"));
            let found: Vec<(u64, String)> = found.into_iter().map(|(member, ends)| (ends as u64, member)).collect();
            let retries = self.model.retries.get(bucket).into_iter().flatten();
            let expect: Vec<(u64, String)> = retries.map(|retry| (retry.ends, retry.member.clone())).collect();
            prop_assert_eq!(found, expect, "the retries of {}", bucket);
        }
        let found: BTreeSet<String> = stored.get("turns");
        prop_assert_eq!(&found, &self.model.turns, "where a job of the queue is next");
        Ok(())
    }

    /// Where buckets wait, and from when on they may go.
    fn compare_places(&mut self, stored: &Stored) -> Result<(), TestCaseError> {
        let expect: BTreeMap<String, f64> =
            self.model.schedule.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(stored.sorted("schedule"), expect, "the schedule");
        // One that is past its due may be forgotten at any time.
        let (now, found) = (self.now, stored.sorted("rest"));
        self.model.rest.retain(|bucket, due| *due > now || found.contains_key(bucket));
        let expect: BTreeMap<String, f64> = self.model.rest.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(found, expect, "at rest");
        let expect: BTreeMap<String, f64> = self.model.paused.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(stored.sorted("paused"), expect, "paused");
        let expect: BTreeMap<String, f64> = self.model.full.iter().map(|(b, due)| (b.clone(), *due as f64)).collect();
        prop_assert_eq!(stored.sorted("full"), expect, "without a free slot");
        for route in ROUTES {
            let expect = self.model.held_for(route).into_iter().map(|(rank, due, bucket)| ((bucket, due), rank as f64));
            let found = stored.sorted(&held_key(route)).into_iter().map(|(member, rank)| (held(&member), rank));
            prop_assert_eq!(found.collect::<BTreeMap<_, _>>(), expect.collect(), "held for {}", route);
        }
        let ends = |ends: &Option<u64>| ends.map_or(f64::INFINITY, |ends| ends as f64);
        let expect: BTreeMap<String, f64> = self.model.index.iter().map(|(b, at)| (b.clone(), ends(at))).collect();
        prop_assert_eq!(stored.sorted("retries"), expect, "the index of retries and delayed jobs");
        let found: BTreeMap<String, usize> = stored.get("level");
        prop_assert_eq!(&found, &self.model.levels, "levels");
        // Payments; those that are over may be forgotten at any time.
        let found: BTreeMap<String, String> = stored.get("paid");
        let now = self.now;
        self.model.paid.retain(|bucket, paid| paid.ends() > now || found.contains_key(bucket));
        let found = found.into_iter().map(|(bucket, text)| (bucket, Paid::stored(&text).cooled(now)));
        let found = found.filter(|(_, paid)| paid.ends() > now);
        let expect = self.model.paid.iter().map(|(bucket, paid)| (bucket.clone(), paid.clone().cooled(now)));
        let expect = expect.filter(|(_, paid)| paid.ends() > now);
        prop_assert_eq!(found.collect::<Vec<_>>(), expect.collect::<Vec<_>>(), "what was paid");
        Ok(())
    }

    /// What is known of slow-downs.
    fn compare_slow(&mut self, stored: &Stored) -> Result<(), TestCaseError> {
        let now = self.now;
        let found: BTreeMap<String, String> = stored.get("slow");
        let found: BTreeMap<_, _> = found.into_iter().map(|(bucket, text)| (bucket, Slow::stored(&text))).collect();
        // One that is over is forgotten whenever somebody looks at it.
        self.model.slow.retain(|bucket, slow| found.contains_key(bucket) || slow.over() > now);
        for (bucket, slow) in &mut self.model.slow {
            slow.takes_over(found.get(bucket).map_or((0, 0), |numbers| (numbers[0], numbers[1])), now);
            slow.takes_forgotten(found.get(bucket), now);
        }
        let expect = self.model.slow.iter().map(|(bucket, slow)| (bucket.clone(), slow.numbers()));
        prop_assert_eq!(found, expect.collect::<BTreeMap<_, _>>(), "what is slowed down");
        Ok(())
    }

    /// What is known of jobs by their ids.
    fn compare_ids(&mut self, stored: &Stored) -> Result<(), TestCaseError> {
        for bucket in BUCKETS {
            let found = stored.sorted(&format!("ids:{bucket}"));
            let score = |(id, at): (&String, &u64)| (id.clone(), *at as f64);
            let expect: BTreeMap<_, _> = self.model.ids.get(bucket).into_iter().flatten().map(score).collect();
            prop_assert_eq!(&found, &expect, "the ids that {} remembers", bucket);
            // It expires by the clock of the server: here that is another one.
            let key = self.case.key(&format!("ids:{bucket}"));
            let _: i64 = self.case.cmd(&["PERSIST", &key]);
            let found: BTreeMap<String, Vec<u8>> = stored.get(&format!("jobs:{bucket}"));
            let text = |(id, line): (String, Vec<u8>)| (id, String::from_utf8_lossy(&line).into_owned());
            let mut found: BTreeMap<String, String> = found.into_iter().map(text).collect();
            let gone = found.remove(" gone").unwrap_or("0 0 0".into());
            let gone: Vec<u64> = gone.split(' ').map(|mark| mark.parse().expect("a time")).collect();
            let is_gone = |line: &str| {
                let (state, rest) = line.split_once(' ').expect("a line");
                let mark = gone["qdr".find(&state.to_lowercase()).expect("a state")];
                rest.split(' ').next().expect("since").parse::<u64>().expect("a time") <= mark
            };
            let (changed, lines): (BTreeMap<_, _>, BTreeMap<_, _>) =
                found.into_iter().partition(|(id, _)| id.contains(' '));
            let lines: BTreeMap<String, String> = lines.into_iter().filter(|(_, line)| !is_gone(line)).collect();
            let expect = self.model.lines.get(bucket).into_iter().flatten();
            let expect = expect.map(|(id, line)| (id.clone(), line.text())).collect();
            prop_assert_eq!(lines, expect, "what is known of the jobs of {}", bucket);
            for ((_, id, key), change) in self.model.changed.iter().filter(|((b, ..), _)| b == bucket) {
                let found = changed.get(&format!("{id} {key}")).map(String::is_empty);
                prop_assert_eq!(found, Some(change.is_none()), "what has changed of {} {} in {}", id, key, bucket);
            }
        }
        // The name of one that a plain XACK finished may stay.
        let found: BTreeSet<String> = stored.sorted("adjusted").into_keys().collect();
        prop_assert!(found.is_superset(&self.model.adjusted), "adjusted: {:?} {:?}", found, self.model.adjusted);
        Ok(())
    }

    /// What has left.
    fn compare_streams(&mut self) -> Result<(), TestCaseError> {
        // By bucket: in which order a sweep comes by the buckets is Redis' own affair.
        let mut rejected: Vec<_> =
            self.case.stream("rejected").iter().map(|e| (e.text("bucket"), e.text("job"), e.text("reason"))).collect();
        let mut expect: Vec<_> =
            self.model.rejected.iter().map(|(b, job, why)| (b.clone(), job.clone(), (*why).to_owned())).collect();
        rejected.sort_by(|a, b| a.0.cmp(&b.0));
        expect.sort_by(|a, b| a.0.cmp(&b.0));
        prop_assert_eq!(rejected, expect, "rejected");
        for route in ROUTES {
            let entries = self.case.stream(&stream(route));
            let mut known: Vec<&mut Ready> = self.model.ready.iter_mut().filter(|entry| entry.route == route).collect();
            prop_assert_eq!(entries.len(), known.len(), "{} {:?} {:?}", route, entries, known);
            for (n, found) in entries.iter().enumerate() {
                // Which of two buckets with one due goes first nobody promises: after a step of the clock it is the one that a sweep met first.
                let is_like = |one: &Ready| one.id.is_empty() && (one.at, one.due) == (known[n].at, known[n].due);
                let same = known[n..].iter().position(|one| is_like(one) && one.bucket == found.text("bucket"));
                if let Some(m) = same.filter(|m| *m > 0) {
                    let (before, behind) = known.split_at_mut(n + m);
                    std::mem::swap(&mut *before[n], &mut *behind[0]);
                }
                let expect = &mut *known[n];
                if expect.id.is_empty() {
                    expect.id.clone_from(&found.id);
                }
                prop_assert_eq!(&ready(found, route, expect), &*expect);
            }
        }
        let dead: Vec<Dead> = self
            .case
            .stream("dead")
            .iter()
            .map(|entry| Dead {
                bucket: entry.text("bucket"),
                job: entry.text("job"),
                attempt: entry.number("attempt"),
                reason: entry.text("reason"),
                options: options(entry, entry.text("id")),
            })
            .collect();
        prop_assert_eq!(&dead, &self.model.dead, "dead");
        Ok(())
    }

    /// Who holds a slot: by entry, and by bucket.
    fn compare_slots(&self, stored: &Stored) -> Result<(), TestCaseError> {
        let holding = || self.model.in_flight();
        let expect = holding().map(|entry| (format!("{} {}", entry.route, entry.id), entry.bucket.clone()));
        prop_assert_eq!(
            stored.get::<BTreeMap<String, String>>("slots"),
            expect.collect::<BTreeMap<_, _>>(),
            "the slots"
        );
        let expect = holding().map(|entry| (format!("{}\n{} {}", entry.bucket, entry.route, entry.id), 0.0));
        prop_assert_eq!(stored.sorted("inflight"), expect.collect::<BTreeMap<_, _>>(), "the slots by bucket");
        Ok(())
    }

    /// At the end: everything stands where it must.
    pub(super) fn audit(&mut self) -> Result<(), TestCaseError> {
        self.step(&super::Op::Strangers(super::strangers::Op::Healed))?;
        self.step(&super::Op::Wake((0..BUCKETS.len()).collect()))?; // what was pushed plainly stands nowhere before
        let wrong: Vec<String> = self.case.fcall("drip__audit", &["policy"], &[self.now.to_string()]);
        prop_assert_eq!(wrong, Vec::<String>::new());
        Ok(())
    }
}

/// A stored job, with `@` for the mark of submitted ones.
fn readable(stored: &[u8], mark: Option<&Vec<u8>>) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let at = mark.and_then(|mark| stored.windows(mark.len()).position(|part| part == mark).map(|at| (at, mark.len())));
    at.map_or_else(|| text(stored), |(at, n)| text(&stored[..at]) + "@" + &text(&stored[at + n..]))
}

fn if_there(entry: &Entry, field: &str) -> Option<u64> {
    entry.fields.contains_key(field).then(|| entry.number(field))
}

/// What an entry says of the options of its job.
fn options(entry: &Entry, id: String) -> Options {
    let headers = entry.fields.keys().filter_map(|field| field.strip_prefix("h:"));
    let mut headers: Vec<(String, String)> =
        headers.map(|name| (name.to_owned(), entry.text(&format!("h:{name}")))).collect();
    headers.sort();
    let (cost, deadline) = (if_there(entry, "cost").unwrap_or(1), if_there(entry, "deadline_us"));
    Options { id, cost, deadline, accepted: 0, headers }
}

/// An entry as the model knows it. What the entry does not say is as expected.
fn ready(entry: &Entry, route: &str, expect: &Ready) -> Ready {
    let Options { cost, deadline, headers, .. } = options(entry, String::new());
    Ready {
        id: entry.id.clone(),
        route: route.into(),
        bucket: entry.text("bucket"),
        job: entry.text("job"),
        attempt: entry.number("attempt"),
        kept: if_there(entry, "kept").unwrap_or(0),
        due: entry.number("due_us"),
        at: entry.number("at_us"),
        lease_ms: entry.number("lease_ms"),
        first: entry.fields.contains_key("id").then(|| entry.text("id")),
        cost,
        charged: if_there(entry, "charged").unwrap_or(cost),
        deadline,
        headers,
        holds: expect.holds,
        taken_ms: expect.taken_ms,
    }
}
