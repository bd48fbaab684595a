//! Partitions of a cluster that stood still, for their slot was on the move to another server: when they were last seen to. The first calls
//! after that are told, for the wait is no lateness of the jobs that were due meanwhile, wherever the partition is served then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::reply::Drained;
use super::{Store, StoreError};

/// When each of some partitions was last seen to stand still, by number.
#[derive(Debug, Default)]
pub(super) struct Still {
    seen: Mutex<BTreeMap<u8, Instant>>,
}

impl Still {
    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<u8, Instant>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long a partition is known to go on that stood still; `None`: it did not, or nothing waits any more that was due by then.
    fn ago(&self, number: u8) -> Option<Duration> {
        self.seen().get(&number).map(Instant::elapsed)
    }

    /// A drain came back.
    fn drained(&self, number: u8, drained: &Result<Drained, StoreError>) {
        match drained {
            Err(why) if why.is_on_the_move() => drop(self.seen().insert(number, Instant::now())),
            Ok(drained) if drained.record.is_some() && drained.wait != Some(Duration::ZERO) => {
                self.seen().remove(&number);
            }
            _ => {}
        }
    }
}

impl Store {
    /// [`Still::ago`] as the functions take it, in microseconds.
    pub(super) fn goes_on_for(&self) -> Option<String> {
        let table = self.home.upgrade()?;
        let ago = table.still()?.ago(self.keys().number())?;
        Some(ago.as_micros().to_string())
    }

    /// A drain of its partition came back.
    pub(super) fn note_standstill(&self, drained: &Result<Drained, StoreError>) {
        if let Some(table) = self.home.upgrade()
            && let Some(still) = table.still()
        {
            still.drained(self.keys().number(), drained);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> Result<Drained, StoreError> {
        Err(StoreError::Refused { call: "drip__drain", code: code.to_owned(), message: String::new() })
    }

    fn drained(wait: Option<Duration>) -> Drained {
        Drained {
            wait,
            dispatched: 1,
            rejected: 0,
            latest: Duration::ZERO,
            record: Some("a".to_owned()),
            spreading: false,
            notes: Vec::new(),
            looked: 0,
        }
    }

    #[test]
    fn it_is_told_until_nothing_waits_that_was_due_while_the_partition_stood_still() {
        let still = Still::default();
        for code in ["MOVED", "CLUSTERDOWN"] {
            still.drained(3, &refused(code));
            assert_eq!(still.ago(3), None, "{code} is no move of keys");
        }
        still.drained(3, &refused("TRYAGAIN"));
        still.drained(3, &refused("ASK"));
        assert!(still.ago(3).is_some());
        assert_eq!(still.ago(4), None, "it is known of each");
        still.drained(3, &Ok(drained(Some(Duration::ZERO))));
        assert!(still.ago(3).is_some(), "more is due");
        still.drained(3, &Ok(drained(Some(Duration::from_millis(5)))));
        assert_eq!(still.ago(3), None);
    }
}
