//! Simulated workers: what `--workers` says.

use std::str::FromStr;
use std::time::Duration;

use crate::model::duration;
use crate::store::simulation::Group;

const HINT: &str = "write [ROUTE: ]COUNTxTIME and, with commas, exponential, away FROM to TO; as in '20x150ms' or \
                    'mail: 5x2s, exponential, away 10m to 12m'";

/// The most workers of one sort.
const MOST: u64 = 1_000_000;

/// Workers of one sort.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    /// The route that they serve; `None`: each one that has no workers of its own.
    pub route: Option<String>,
    count: u64,
    takes: Duration,
    is_exponential: bool,
    away: Vec<(Duration, Duration)>,
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Workers {
    /// Workers that are always free, and take no time.
    pub fn enough() -> Self {
        Self { route: None, count: MOST, takes: Duration::ZERO, is_exponential: false, away: Vec::new() }
    }

    /// The longest that a job takes, or, where that varies exponentially, that one of 150 takes.
    pub(super) fn longest(&self) -> Duration {
        if self.is_exponential { self.takes * 5 } else { self.takes }
    }

    /// The n-th group of a route.
    pub(super) fn group(&self, n: usize) -> Group {
        Group {
            name: format!("group-{n}"),
            free: self.count,
            service_us: us(self.takes),
            is_exponential: self.is_exponential,
            away: self.away.iter().map(|(from, to)| (us(*from), us(*to))).collect(),
        }
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (route, workers) = match text.rsplit_once(": ") {
            Some((route, workers)) => (Some(route.trim().to_owned()), workers),
            None => (None, text),
        };
        let mut parts = workers.split(',').map(str::trim);
        let how_many = parts.next().and_then(|part| part.split_once('x'));
        let (count, takes) = how_many
            .and_then(|(count, takes)| {
                Some((count.parse().ok().filter(|n| (1..=MOST).contains(n))?, duration::parse(takes)?))
            })
            .ok_or(HINT)?;
        let mut read = Self { route, count, takes, is_exponential: false, away: Vec::new() };
        for part in parts {
            let words: Vec<&str> = part.split_whitespace().collect();
            match words[..] {
                ["exponential"] => read.is_exponential = true,
                ["away", from, "to", to] => {
                    let times = duration::parse(from).zip(duration::parse(to)).filter(|(from, to)| from < to);
                    read.away.push(times.ok_or_else(|| format!("{part:?} is no time away: {HINT}"))?);
                }
                _ => return Err(format!("{part:?} is not understood: {HINT}")),
            }
        }
        Ok(read)
    }
}
