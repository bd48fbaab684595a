//! What `settings_world` sees of Redis: the whole state after a step.

use std::collections::BTreeMap;

use redis::Value;

use super::settings_world::{BUCKETS, ROUTES};
use crate::rig::{Case, Entry, held, held_key};

/// An entry of a stream as Redis replies it.
type RawEntry = (String, Vec<(String, Vec<u8>)>);

/// The state that a step left.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) queues: Vec<Vec<String>>,
    /// The end of the back-off, and the job.
    pub(super) retries: Vec<Vec<(u64, String)>>,
    pub(super) index: BTreeMap<String, f64>,
    pub(super) places: Vec<Vec<(String, u64)>>,
    pub(super) ready: Vec<(usize, Entry)>,
    pub(super) dead: Vec<String>,
    pub(super) rejected: Vec<Entry>,
    pub(super) peeked: Option<Vec<[i64; 5]>>,
}

impl Seen {
    pub(super) fn read(case: &mut Case, now: u64, peeks: bool) -> Self {
        let mut pipe = redis::pipe();
        for bucket in BUCKETS {
            pipe.cmd("LRANGE").arg(case.queue(bucket)).arg(0).arg(-1);
            pipe.cmd("ZRANGE").arg(case.key(&format!("retry:{bucket}"))).arg(0).arg(-1).arg("WITHSCORES");
        }
        let places = ["schedule", "rest", "paused", "held:default", "held:mail"];
        for name in places.iter().chain(&["retries"]) {
            let name = name.strip_prefix("held:").map_or_else(|| (*name).to_owned(), held_key);
            pipe.cmd("ZRANGE").arg(case.key(&name)).arg(0).arg(-1).arg("WITHSCORES");
        }
        for name in ["ready", "ready:mail", "dead", "rejected"] {
            pipe.cmd("XRANGE").arg(case.key(name)).arg("-").arg("+");
        }
        for bucket in BUCKETS.iter().filter(|_| peeks) {
            pipe.cmd("FCALL").arg("drip__peek").arg(1).arg(case.queue(bucket)).arg(now.to_string());
        }
        let replies: Vec<Value> = pipe.query(&mut case.redis).expect("the state");
        let mut replies = replies.into_iter();
        let mut next = || replies.next().expect("a reply for each");
        let mut seen = Self::default();
        for _ in BUCKETS {
            let mut queue: Vec<String> = redis::from_redis_value(next()).expect("jobs");
            queue.reverse();
            seen.queues.push(queue);
            let retries: Vec<(String, f64)> = redis::from_redis_value(next()).expect("retries");
            let job = |member: &str| member.splitn(8, ' ').nth(7).expect("a job").to_owned();
            seen.retries.push(retries.iter().map(|(member, ends)| (*ends as u64, job(member))).collect());
        }
        seen.places = vec![Vec::new(); BUCKETS.len()];
        for place in places {
            let members: Vec<(String, f64)> = redis::from_redis_value(next()).expect("names");
            for (member, due) in members {
                let (name, due) = if place.starts_with("held:") { held(&member) } else { (member, due as u64) };
                let b = BUCKETS.iter().position(|bucket| *bucket == name).expect("one of ours");
                seen.places[b].push((place.to_owned(), due));
            }
        }
        let index: Vec<(String, f64)> = redis::from_redis_value(next()).expect("names");
        seen.index = index.into_iter().collect();
        let mut entries = || -> Vec<Entry> {
            let raw: Vec<RawEntry> = redis::from_redis_value(next()).expect("entries");
            raw.into_iter().map(|(id, fields)| Entry { id, fields: fields.into_iter().collect() }).collect()
        };
        for route in 0..ROUTES.len() {
            seen.ready.extend(entries().into_iter().map(|entry| (route, entry)));
        }
        seen.dead = entries().iter().map(|entry| entry.text("job")).collect();
        seen.rejected = entries();
        if peeks {
            let peeked = BUCKETS.map(|_| redis::from_redis_value::<Vec<i64>>(next()).expect("five"));
            seen.peeked = Some(peeked.into_iter().map(|five| five.try_into().expect("five")).collect());
        }
        seen
    }

    pub(super) fn stands(&self, b: usize, now: u64) -> bool {
        self.places[b].iter().any(|(place, due)| place != "rest" || *due > now)
    }

    pub(super) fn is_in(&self, b: usize, is_it: impl Fn(&str) -> bool) -> bool {
        self.places[b].iter().any(|(place, _)| is_it(place))
    }
}
