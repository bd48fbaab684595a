//! One bucket as it is seen from outside: what producers were told, what workers got and when. Every time is in microseconds of the
//! machine's clock, which is also that of its Redis.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::bucket::BucketName;
use crate::model::rate::Rate;

/// A rate is taken over so long, and over at least so many intervals.
const RATE_OVER_US: u64 = 500_000;
const RATE_OVER_INTERVALS: u64 = 4;

/// A push, and what its reply said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Push {
    pub(super) at_us: u64,
    pub(super) accepted: u64,
    pub(super) rejected: u64,
}

/// A job in a worker's hand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) number: u64,
    pub(super) due_us: u64,
    /// When it left its bucket.
    pub(super) at_us: u64,
    /// When its worker asked Redis for it, or to take it back, and when it got the answer: it happened in between.
    pub(super) asked_us: (u64, u64),
}

/// One bucket, as its producers and workers see it.
pub(super) struct Bucket {
    pub(super) name: BucketName,
    pub(super) rate: Rate,
    pub(super) capacity: u64,
    pub(super) pushes: Vec<Push>,
    /// The numbers of the jobs that were accepted.
    pub(super) accepted: Vec<u64>,
    pub(super) rejected: u64,
    pub(super) depth: u64,
    /// How many jobs waited when the daemon was killed.
    pub(super) depth_at_kill: u64,
    /// What workers did, by when it left.
    pub(super) taken: Vec<Taken>,
    /// What a worker gave back, because the other side refused it.
    pub(super) refused: Vec<Taken>,
    over_since: Option<Instant>,
    /// For how long more jobs waited than may.
    pub(super) longest_over: Duration,
}

/// The machine's clock.
pub(super) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

impl Bucket {
    pub(super) fn new(name: &str, rate: &str, capacity: u32) -> Self {
        Self {
            name: name.parse().expect("a good name"),
            rate: Rate::parse(rate).expect("a good rate"),
            capacity: u64::from(capacity),
            pushes: Vec::new(),
            accepted: Vec::new(),
            rejected: 0,
            depth: 0,
            depth_at_kill: 0,
            taken: Vec::new(),
            refused: Vec::new(),
            over_since: None,
            longest_over: Duration::ZERO,
        }
    }

    pub(super) fn interval_us(&self) -> u64 {
        (self.rate.period().as_micros() / u128::from(self.rate.count())) as u64
    }

    /// A job is in a worker's hand.
    pub(super) fn took(&mut self, job: Taken) {
        // Several workers hand over what they took: two jobs may come in the wrong order.
        let at = self.taken.partition_point(|other| other.at_us <= job.at_us);
        self.taken.insert(at, job);
    }

    /// So many jobs were pushed; the reply said how many wait now, which is the verdict.
    pub(super) fn note_push(&mut self, at_us: u64, jobs: u64, length: u64) {
        let first = self.pushed();
        let rejected = length.saturating_sub(self.capacity).min(jobs);
        let accepted = jobs - rejected;
        self.accepted.extend(first..first + accepted);
        self.rejected += rejected;
        self.pushes.push(Push { at_us, accepted, rejected });
    }

    /// So many jobs wait: asked before one moment, answered before another.
    pub(super) fn note_depth(&mut self, depth: u64, asked: Instant, answered: Instant) {
        self.depth = depth;
        if depth <= self.capacity {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(answered);
        // Surely from the first answer to the last question: a demo that was slow to look is no broken promise.
        self.longest_over = self.longest_over.max(asked.saturating_duration_since(since));
    }

    pub(super) fn pushed(&self) -> u64 {
        self.accepted.len() as u64 + self.rejected
    }

    /// How long a job waited, from its push.
    pub(super) fn waited_us(&self, job: &Taken) -> Option<u64> {
        let mut next = 0;
        let push = self.pushes.iter().find(|push| {
            next += push.accepted + push.rejected;
            job.number < next
        })?;
        Some(job.at_us.saturating_sub(push.at_us))
    }

    /// Whether every accepted job is out or waits: none is under way between the two.
    pub(super) fn is_settled(&self) -> bool {
        self.accepted.len() as u64 == self.taken.len() as u64 + self.depth
    }

    /// What left after one moment and not after another.
    pub(super) fn taken_between(&self, from_us: u64, to_us: u64) -> &[Taken] {
        let after = |at_us| self.taken.partition_point(|job| job.at_us <= at_us);
        &self.taken[after(from_us).min(after(to_us))..after(to_us)]
    }

    /// How many jobs leave a second, from the distances of the last ones. A pause that goes on lowers it. `None`: there were no two jobs
    /// yet whose distance says anything.
    pub(super) fn rate_at(&self, at_us: u64) -> Option<f64> {
        let over = RATE_OVER_US.max(RATE_OVER_INTERVALS * self.interval_us());
        let last = self.taken_between(0, at_us).last()?.at_us;
        let per_second = |jobs: usize, us: u64| Some(jobs as f64 * 1e6 / us.max(1) as f64);
        match self.taken_between(at_us.saturating_sub(over + 1), at_us) {
            [first, rest @ ..] if !rest.is_empty() => {
                let distance = (last - first.at_us) / rest.len() as u64;
                per_second(rest.len(), last.max(at_us - distance) - first.at_us)
            }
            _ if at_us - last > self.interval_us() => per_second(1, at_us - last),
            _ => None,
        }
    }

    /// The longest time without a job that ended, or goes on, between two moments; it may have begun before the first.
    pub(super) fn longest_pause_us(&self, from_us: u64, to_us: u64) -> u64 {
        let before = self.taken_between(0, from_us).last().map_or(from_us, |job| job.at_us);
        let between = self.taken_between(from_us, to_us).iter().map(|job| job.at_us);
        let times: Vec<u64> = std::iter::once(before).chain(between).chain([to_us]).collect();
        times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
    }

    /// The rate over all the time in which workers took jobs, which is not that of `away`.
    pub(super) fn rate_out(&self, away: Option<(u64, u64)>) -> f64 {
        let had_workers = |pair: &&[Taken]| away.is_none_or(|(from, to)| pair[1].at_us < from || pair[0].at_us > to);
        let pairs = self.taken.windows(2).filter(had_workers);
        let (jobs, us) = pairs.fold((0.0, 0), |(jobs, us), pair| (jobs + 1.0, us + pair[1].at_us - pair[0].at_us));
        jobs * 1e6 / us.max(1) as f64
    }

    /// The lateness that `part` of the jobs stayed below, in milliseconds.
    pub(super) fn late_ms(&self, part: f64) -> f64 {
        let mut late: Vec<u64> = self.taken.iter().map(|job| job.at_us.saturating_sub(job.due_us)).collect();
        late.sort_unstable();
        let at = ((late.len() as f64 * part).ceil() as usize).saturating_sub(1);
        late.get(at).map_or(0.0, |us| *us as f64 / 1e3)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A job that left and was taken when it was due.
    pub(in crate::cli::demo) fn took(number: u64, at_us: u64) -> Taken {
        Taken { number, due_us: at_us, at_us, asked_us: (at_us, at_us) }
    }

    /// Five a second, room for ten; jobs that left at some milliseconds.
    fn bucket(times_ms: &[u64]) -> Bucket {
        let mut bucket = Bucket::new("b", "5/s", 10);
        bucket.taken = times_ms.iter().zip(0..).map(|(ms, number)| took(number, ms * 1_000)).collect();
        bucket
    }

    #[test]
    fn the_reply_to_a_push_says_which_of_its_jobs_were_accepted() {
        let mut b = bucket(&[]);
        b.note_push(0, 8, 8);
        b.note_push(1, 5, 13);
        assert_eq!((b.accepted.len(), b.rejected, b.pushed()), (10, 3, 13));
        b.note_push(2, 2, 12);
        assert_eq!((b.rejected, b.pushes[2].accepted), (5, 0));
        assert_eq!(b.waited_us(&took(9, 50)), Some(49));
    }

    #[test]
    fn a_steady_bucket_shows_its_rate_between_two_jobs_and_a_pause_that_goes_on_lowers_it() {
        let b = bucket(&[1_000, 1_200, 1_400, 1_600, 1_800]);
        assert_eq!(b.rate_at(1_100_000), None);
        for at_us in [1_600_000, 1_800_001, 1_899_999, 1_999_999] {
            assert_eq!(b.rate_at(at_us), Some(5.0), "{at_us}");
        }
        assert!(b.rate_at(2_600_000).is_some_and(|slow| slow < 3.5));
        assert_eq!(b.rate_at(20_000_000), Some(1e6 / 18_200_000.0), "hardly any, and that is said");
        let late = bucket(&[1_000, 1_200, 1_700, 9_000, 9_200]);
        assert!((late.rate_out(Some((2_000_000, 8_000_000))) - 3.0 / 0.9).abs() < 1e-9);
    }
}
