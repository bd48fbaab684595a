//! What operators do with jobs: purge a bucket, put dead jobs back, drop them.

use proptest::prelude::*;

use super::jobs::Retry;
use super::{BUCKETS, Model, Pair};

#[derive(Debug, Clone)]
pub enum Op {
    /// A bucket, with its retries or without, and what of its delayed jobs.
    Purge(usize, bool, Delayed),
    /// So many dead jobs at most, the oldest.
    PutBack(u64),
    Drop(usize),
}

/// What a purge does with delayed jobs: nothing, as earlier versions asked; nothing; they too; nothing but them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Delayed {
    Unsaid,
    Stay,
    Too,
    Only,
}

pub fn op() -> impl Strategy<Value = Op> {
    let delayed = prop_oneof![Just(Delayed::Unsaid), Just(Delayed::Stay), Just(Delayed::Too), Just(Delayed::Only)];
    prop_oneof![
        4 => (0..BUCKETS.len(), any::<bool>(), delayed).prop_map(|(bucket, retries, delayed)| Op::Purge(bucket, retries, delayed)),
        4 => (1..6_u64).prop_map(Op::PutBack),
        1 => (1..3_usize).prop_map(Op::Drop),
    ]
}

impl Model {
    /// Replies what a purge replies: jobs and retries thrown away, retries that stay, jobs that were cut; delayed jobs thrown away,
    /// and those that stay.
    fn purge(&mut self, now: u64, bucket: &str, with_retries: bool, delayed: Delayed) -> [i64; 6] {
        let state = self.look(now, bucket);
        let (over, with_queue) = (self.len(bucket) - state.keeps, delayed != Delayed::Only);
        let with_delayed = matches!(delayed, Delayed::Too | Delayed::Only);
        self.settle(bucket, &state);
        let waiting = self.retries.get(bucket).map_or(0, std::collections::BTreeSet::len);
        let aside = self.delayed.get(bucket).map_or(0, std::collections::BTreeMap::len);
        if with_queue {
            self.queues.remove(bucket);
            self.levels.remove(bucket);
        }
        if with_retries {
            self.retries.remove(bucket);
        }
        if with_delayed {
            self.delayed.remove(bucket);
            self.turns.remove(bucket);
        }
        if with_retries || with_delayed {
            self.announce(now, bucket, true);
        }
        // What is gone does not wait any more, be it cancelled or not. "Frees its id at once."
        let is_gone = |state: char| match state.to_ascii_lowercase() {
            'q' => with_queue,
            'd' => with_delayed,
            _ => with_retries,
        };
        let lines = self.lines.entry(bucket.into()).or_default();
        let gone = lines.iter().filter(|(_, line)| is_gone(line.state)).map(|(id, _)| id.clone()).collect::<Vec<_>>();
        let gone: Vec<_> = gone.into_iter().map(|id| (lines.remove(&id).expect("it is there"), id)).collect();
        for (line, id) in gone {
            if line.state.eq_ignore_ascii_case(&'r') {
                self.remember(now, bucket, &state.policy, &id, line.accepted);
            }
            self.changed.remove(&(bucket.to_owned(), id, line.key()));
        }
        if let Some(due) = state.due {
            // An ordered one may have waited for a retry that is gone: "a wait by order is no lateness".
            let goes_on = self.full.contains_key(bucket) && !self.is_full(now, bucket, &state.policy);
            self.place(now, bucket, if goes_on { due.max(now) } else { due });
        }
        let gone = |is: bool, n: usize| if is { n } else { 0 };
        let (jobs, retries, later) =
            (gone(with_queue, state.keeps), gone(with_retries, waiting), gone(with_delayed, aside));
        [jobs, retries, waiting - retries, over, later, aside - later].map(|n| n as i64)
    }

    /// The oldest dead jobs go back, `most` of them at most; `entries` are their ids in the dead stream. Replies how many.
    fn put_back(&mut self, now: u64, most: u64, entries: &[String]) -> u64 {
        let n = most.min(self.dead.len() as u64);
        let gone: Vec<_> = self.dead.drain(..n as usize).collect();
        for (at, (gone, entry)) in gone.into_iter().zip(entries).enumerate() {
            let (route, ends) = (self.policy(now, &gone.bucket).route, now - (most - at as u64));
            // "`dead retry` restores them, without the deadline."
            let (from, options) = (format!("{entry} {route}"), gone.options.without_deadline());
            self.can_be_found(now, &gone.bucket, &options.id, entry, (1, ends));
            let retry = Retry::new(ends, 0, &from, (1, 0), options, gone.job);
            self.backs_off(now, &gone.bucket, retry);
        }
        n
    }
}

impl Pair {
    pub fn operate(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = self.now.to_string();
        match op {
            Op::Purge(b, with_retries, delayed) => {
                let mut args = vec![now.as_str(), if *with_retries { "1" } else { "0" }, "", "", ""];
                args.extend(match delayed {
                    Delayed::Unsaid => None,
                    Delayed::Stay => Some("0"),
                    Delayed::Too => Some("1"),
                    Delayed::Only => Some("only"),
                });
                let reply: Vec<i64> = self.case.fcall("drip__purge", &[&format!("queue:{}", BUCKETS[*b])], &args);
                let told = self.model.purge(self.now, BUCKETS[*b], *with_retries, *delayed);
                prop_assert_eq!(&reply[..], &told[..if *delayed == Delayed::Unsaid { 4 } else { 6 }]);
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
