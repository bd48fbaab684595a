//! What operators do with jobs: purge a bucket, put dead jobs back, drop them.

use proptest::prelude::*;

use super::{BUCKETS, Model, Pair, Retry};

#[derive(Debug, Clone)]
pub enum Op {
    /// A bucket, with its retries or without.
    Purge(usize, bool),
    /// So many dead jobs at most, the oldest.
    PutBack(u64),
    Drop(usize),
}

pub fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..BUCKETS.len(), any::<bool>()).prop_map(|(bucket, retries)| Op::Purge(bucket, retries)),
        4 => (1..6_u64).prop_map(Op::PutBack),
        1 => (1..3_usize).prop_map(Op::Drop),
    ]
}

impl Model {
    /// Replies what a purge replies: jobs and retries thrown away, retries that stay, jobs that were cut.
    fn purge(&mut self, now: u64, bucket: &str, with_retries: bool) -> [i64; 4] {
        let state = self.look(now, bucket);
        let over = self.len(bucket) - state.keeps;
        self.settle(bucket, &state);
        self.queues.remove(bucket);
        self.levels.remove(bucket);
        let waiting = self.retries.get(bucket).map_or(0, std::collections::BTreeSet::len);
        if with_retries {
            self.retries.remove(bucket);
            self.index.remove(bucket);
        }
        let is_working = self.index.get(bucket).is_some_and(|ends| ends.is_none_or(|ends| ends <= now));
        match state.due {
            Some(due) if is_working => self.store_due(now, bucket, due),
            Some(due) => {
                self.schedule.remove(bucket);
                self.held.remove(bucket);
                self.rest.remove(bucket);
                if due > now {
                    self.rest.insert(bucket.into(), due);
                }
            }
            None => {}
        }
        let gone = if with_retries { waiting } else { 0 };
        [state.keeps, gone, waiting - gone, over].map(|n| n as i64)
    }

    /// The oldest dead jobs go back, `most` of them at most; `entries` are their ids in the dead stream. Replies how many.
    fn put_back(&mut self, now: u64, most: u64, entries: &[String]) -> u64 {
        let n = most.min(self.dead.len() as u64);
        let gone: Vec<_> = self.dead.drain(..n as usize).collect();
        for (at, ((bucket, job, _, id, _), entry)) in gone.into_iter().zip(entries).enumerate() {
            let (route, ends) = (self.record.policy(&bucket).route, now - (most - at as u64));
            let member = format!("2 {entry} {route} 0 1 0 {id} {job}");
            self.retries.entry(bucket.clone()).or_default().insert(Retry { ends, member, delay: 0 });
            let first = self.index.entry(bucket).or_insert(Some(ends));
            *first = first.map(|first| first.min(ends));
        }
        n
    }
}

impl Pair {
    pub fn operate(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = self.now.to_string();
        match op {
            Op::Purge(b, with_retries) => {
                let args = [now.as_str(), if *with_retries { "1" } else { "0" }, "", "", ""];
                let reply: Vec<i64> = self.case.fcall("drip__purge", &[&format!("queue:{}", BUCKETS[*b])], &args);
                prop_assert_eq!(reply, self.model.purge(self.now, BUCKETS[*b], *with_retries));
            }
            Op::PutBack(most) => {
                let entries: Vec<String> = self.case.stream("dead").into_iter().map(|entry| entry.id).collect();
                let n = self.dead_call("drip__dead_retry", &most.to_string());
                prop_assert_eq!(n, self.model.put_back(self.now, *most, &entries));
            }
            Op::Drop(most) => {
                let n = self.dead_call("drip__dead_drop", &most.to_string());
                let gone = self.model.dead.drain(..(*most).min(self.model.dead.len()));
                prop_assert_eq!(n, gone.count() as u64);
            }
        }
        Ok(())
    }

    /// One call on the oldest dead jobs. Replies how many were changed.
    fn dead_call(&mut self, name: &str, most: &str) -> u64 {
        let now = self.now.to_string();
        let args = [now.as_str(), "", "", "", "", "", most, "", "", "", "", "", "0"];
        let reply: Vec<redis::Value> = self.case.fcall(name, &["dead"], &args);
        redis::from_redis_value(reply[1].clone()).expect("a number")
    }
}
