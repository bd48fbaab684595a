//! The end of a daemon: five seconds from the word to stop, of which all parts know how many are left to them. The loops finish first, then
//! the HTTP door closes, and the built-in Redis is stopped last: a part of the time is kept for it.

use std::time::{Duration, Instant};

use tracing::info;

use super::{Daemon, End};
use crate::system::systemd;

/// How long all of it may take. Five seconds are promised; the rest of them is for what the system itself takes to end a process.
const ALL_WITHIN: Duration = Duration::from_millis(4_600);

/// How long the loops may take to finish the calls in hand.
pub(super) const LOOPS_WITHIN: Duration = Duration::from_secs(1);

/// What is kept for the built-in Redis: it writes down what it has, and exits.
const KEPT_FOR_REDIS: Duration = Duration::from_secs(2);

/// When a daemon was told to stop, and what follows from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    began: Instant,
}

impl Ending {
    fn now() -> Self {
        Self { began: Instant::now() }
    }

    /// Until when the loops may finish.
    pub(super) fn of_loops(self) -> Instant {
        self.began + LOOPS_WITHIN
    }

    /// Until when requests over HTTP may.
    fn of_door(self, has_redis: bool) -> Instant {
        self.began + if has_redis { ALL_WITHIN.saturating_sub(KEPT_FOR_REDIS) } else { ALL_WITHIN }
    }

    fn of_all(self) -> Instant {
        self.began + ALL_WITHIN
    }
}

impl Daemon {
    /// It was told to stop: from now on the time runs.
    pub(super) fn begin_to_end(&mut self) -> End {
        info!("stopping");
        self.ending.get_or_insert_with(Ending::now);
        End::Stop
    }

    /// Close what is open, after the loops.
    pub(super) async fn close(self) {
        systemd::stopping();
        let ending = self.ending.unwrap_or_else(Ending::now);
        if let Some(door) = self.door {
            door.close(ending.of_door(self.built_in.is_some())).await;
        }
        if let Some(built_in) = self.built_in {
            built_in.stop(ending.of_all()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_stop_ends_within_five_seconds_and_redis_has_two_of_them() {
        let ending = Ending::now();
        let after = |at: Instant| at - ending.began;
        assert!(after(ending.of_all()) < Duration::from_secs(5));
        assert!(ending.of_loops() < ending.of_door(true), "the door has a part of its own");
        assert_eq!(ending.of_all() - ending.of_door(true), Duration::from_secs(2));
        assert_eq!(ending.of_door(false), ending.of_all());
    }
}
