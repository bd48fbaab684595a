//! One bucket as it is seen from outside: what producers were told, what workers got and when. Every time is in microseconds of the
//! machine's clock, which is also that of its Redis.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::bucket::BucketName;
use crate::model::rate::Rate;

/// A rate is taken over at least so long, and over at least so many intervals.
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
    pub(super) at_us: u64,
    /// When its worker asked for jobs, and when it got the answer: it took this one in between.
    pub(super) handed_us: (u64, u64),
}

impl Taken {
    /// The earliest and the latest moment at which its worker took it: not before it had left.
    pub(super) fn given_us(&self) -> (u64, u64) {
        (self.handed_us.0.max(self.at_us), self.handed_us.1.max(self.at_us))
    }
}

/// At what pace jobs leave a bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pace {
    /// There were no two jobs yet whose distance says anything.
    Starting,
    /// So many a second.
    Rate(f64),
    /// All that was accepted is out.
    Empty,
}

/// One bucket, as its producers and workers see it.
pub(super) struct Bucket {
    pub(super) name: BucketName,
    pub(super) rate: Rate,
    pub(super) capacity: u64,
    pub(super) pushes: Vec<Push>,
    /// The numbers of the jobs that were accepted.
    pub(super) accepted: Vec<u64>,
    pub(super) pushed: u64,
    pub(super) rejected: u64,
    pub(super) depth: u64,
    /// By when they left.
    pub(super) taken: Vec<Taken>,
    /// When the first job after a time without any was pushed.
    busy_since_us: Vec<u64>,
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
            pushed: 0,
            rejected: 0,
            depth: 0,
            taken: Vec::new(),
            busy_since_us: Vec::new(),
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
    pub(super) fn pushed(&mut self, at_us: u64, jobs: u64, length: u64) {
        if self.accepted.len() == self.taken.len() {
            self.busy_since_us.push(at_us);
        }
        let rejected = length.saturating_sub(self.capacity).min(jobs);
        let accepted = jobs - rejected;
        self.accepted.extend(self.pushed..self.pushed + accepted);
        self.rejected += rejected;
        self.pushed += jobs;
        self.pushes.push(Push { at_us, accepted, rejected });
    }

    /// So many jobs wait: asked before one moment, answered before another.
    pub(super) fn waits(&mut self, depth: u64, asked: Instant, answered: Instant) {
        self.depth = depth;
        if depth <= self.capacity {
            self.over_since = None;
            return;
        }
        let since = *self.over_since.get_or_insert(answered);
        // Surely from the first answer to the last question: a demo that was slow to look is no broken promise.
        self.longest_over = self.longest_over.max(asked.saturating_duration_since(since));
    }

    /// When a job was pushed, by its number.
    pub(super) fn pushed_us(&self, number: u64) -> Option<u64> {
        let mut first = 0;
        self.pushes.iter().find_map(|push| {
            first += push.accepted + push.rejected;
            (number < first).then_some(push.at_us)
        })
    }

    /// Whether every accepted job is out or waits: none is under way between the two.
    pub(super) fn is_settled(&self) -> bool {
        self.accepted.len() as u64 == self.taken.len() as u64 + self.depth
    }

    fn taken_until(&self, at_us: u64) -> &[Taken] {
        &self.taken[..self.taken.partition_point(|job| job.at_us <= at_us)]
    }

    pub(super) fn taken_between(&self, from_us: u64, to_us: u64) -> &[Taken] {
        let all = self.taken_until(to_us);
        &all[all.partition_point(|job| job.at_us <= from_us)..]
    }

    /// The pace at a moment, from the distances of the last jobs. A pause that goes on lowers it.
    pub(super) fn pace(&self, at_us: u64) -> Pace {
        let (interval, busy) = (self.interval_us(), self.busy_since_us.iter().rev().find(|since| **since <= at_us));
        let (Some(busy), Some(last)) = (busy, self.taken_until(at_us).last()) else { return Pace::Starting };
        let end = last.at_us.max(at_us - interval);
        let accepted: u64 = self.pushes.iter().filter(|push| push.at_us <= at_us).map(|push| push.accepted).sum();
        if end > last.at_us && self.taken_until(at_us).len() as u64 == accepted {
            return Pace::Empty;
        }
        let over = RATE_OVER_US.max(RATE_OVER_INTERVALS * interval);
        match self.taken_between(end.saturating_sub(over + 1).max(*busy - 1), at_us) {
            [first, rest @ ..] if !rest.is_empty() => {
                Pace::Rate(rest.len() as f64 * 1e6 / (end - first.at_us).max(1) as f64)
            }
            // The last job is so long ago that the pace is hardly one.
            _ if end > last.at_us => Pace::Rate(1e6 / (end + interval - last.at_us) as f64),
            _ => Pace::Starting,
        }
    }

    /// The longest time without a job that ended, or goes on, between two moments; it may have begun before the first.
    pub(super) fn longest_pause_us(&self, from_us: u64, to_us: u64) -> u64 {
        let before = self.taken_until(from_us).last().map_or(from_us, |job| job.at_us);
        let mut times: Vec<u64> = vec![before];
        times.extend(self.taken_between(from_us, to_us).iter().map(|job| job.at_us));
        times.push(to_us);
        times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(0)
    }

    /// The rate over all the time in which jobs waited and workers took them: what is longer than one and a half intervals and the next
    /// burst's wait besides is a time without jobs, and what goes on into `away` one without workers.
    pub(super) fn rate_out(&self, away: Option<(u64, u64)>) -> f64 {
        let mut busy = self.busy_since_us.iter().skip(1).peekable();
        let mut gaps: Vec<u64> = Vec::new();
        for pair in self.taken.windows(2) {
            let idle = busy.next_if(|since| (pair[0].at_us..=pair[1].at_us).contains(since)).is_some();
            let no_workers = away.is_some_and(|(from, to)| pair[0].at_us <= to && pair[1].at_us >= from);
            if !idle && !no_workers {
                gaps.push(pair[1].at_us - pair[0].at_us);
            }
        }
        if gaps.is_empty() { 0.0 } else { gaps.len() as f64 * 1e6 / gaps.iter().sum::<u64>().max(1) as f64 }
    }

    /// The lateness that `part` of the jobs stayed below, in milliseconds.
    pub(super) fn late_ms(&self, part: f64) -> f64 {
        let mut late: Vec<u64> = self.taken.iter().map(|job| job.at_us.saturating_sub(job.due_us)).collect();
        late.sort_unstable();
        let at = ((late.len() as f64 * part).ceil() as usize).clamp(1, late.len().max(1)) - 1;
        late.get(at).map_or(0.0, |us| *us as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five a second, room for ten.
    fn bucket() -> Bucket {
        Bucket::new("b", "5/s", 10)
    }

    fn take(bucket: &mut Bucket, times_ms: impl IntoIterator<Item = u64>) {
        for ms in times_ms {
            let (number, at_us) = (bucket.taken.len() as u64, ms * 1_000);
            bucket.taken.push(Taken { number, due_us: at_us, at_us, handed_us: (at_us, at_us) });
        }
    }

    #[test]
    fn the_reply_to_a_push_says_which_of_its_jobs_were_accepted() {
        let mut b = bucket();
        b.pushed(0, 8, 8);
        b.pushed(1, 5, 13);
        assert_eq!((b.accepted.len(), b.rejected, b.pushed), (10, 3, 13));
        b.pushed(2, 2, 12);
        assert_eq!((b.rejected, b.pushes[2].accepted), (5, 0));
    }

    #[test]
    fn a_steady_bucket_shows_its_rate_at_every_moment_between_two_jobs() {
        let mut b = bucket();
        b.pushed(900_000, 10, 10);
        take(&mut b, (0..8).map(|n| 1_000 + 200 * n));
        assert_eq!(b.pace(1_100_000), Pace::Starting);
        for at_us in [1_600_000, 2_000_001, 2_100_000, 2_399_999, 2_599_999] {
            assert_eq!(b.pace(at_us), Pace::Rate(5.0), "{at_us}");
        }
    }

    #[test]
    fn a_pause_that_goes_on_lowers_the_rate_unless_the_bucket_is_empty() {
        let mut b = bucket();
        b.pushed(900_000, 6, 6);
        take(&mut b, (0..5).map(|n| 1_000 + 200 * n));
        let Pace::Rate(slow) = b.pace(2_600_000) else { panic!("a job still waits") };
        assert!(slow < 3.5, "{slow}");
        assert_eq!(b.pace(20_000_000), Pace::Rate(1e6 / 18_200_000.0), "hardly any, and that is said");
        take(&mut b, [2_600]);
        assert_eq!(b.pace(2_900_000), Pace::Empty);
        b.pushed(4_000_000, 2, 2);
        take(&mut b, [4_000, 4_200]);
        assert_eq!(b.pace(4_300_000), Pace::Rate(5.0), "the time without jobs says nothing about the pace");
        let rate = b.rate_out(None);
        assert!((rate - 6.0 / 1.8).abs() < 1e-9, "the late job counts, the time without jobs does not: {rate}");
    }

    #[test]
    fn the_longest_pause_counts_one_that_began_before_and_one_that_goes_on() {
        let mut b = bucket();
        b.pushed(900_000, 10, 10);
        take(&mut b, [1_000, 1_200, 1_700, 1_900]);
        assert_eq!(b.longest_pause_us(1_250_000, 2_000_000), 500_000);
        assert_eq!(b.longest_pause_us(1_750_000, 2_000_000), 200_000);
        assert_eq!(b.longest_pause_us(1_950_000, 2_600_000), 700_000);
    }
}
