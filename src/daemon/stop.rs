//! The end of a session and of the daemon. A daemon ends within five seconds of the command to stop, and each part knows how many of them
//! are left to it: the loops finish first, then the HTTP server closes, and the built-in Redis is stopped last, in a time kept for it.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Daemon, End, Session};
use crate::system::systemd;

/// How long the end of a daemon may take. Five seconds are promised; the system itself takes the rest of them to end the process.
const ALL_WITHIN: Duration = Duration::from_millis(4_600);

/// How long the loops may take to finish the calls in hand.
const LOOPS_WITHIN: Duration = Duration::from_secs(1);

/// The time kept for the built-in Redis, which writes its data to disk and exits.
const KEPT_FOR_REDIS: Duration = Duration::from_secs(2);

/// When a daemon was told to stop, and by when each part of it must have ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    began: Instant,
}

impl Ending {
    fn now() -> Self {
        Self { began: Instant::now() }
    }

    /// Until when the loops may finish.
    fn of_loops(self) -> Instant {
        self.began + LOOPS_WITHIN
    }

    /// Until when requests over HTTP may finish.
    fn of_http(self, has_redis: bool) -> Instant {
        self.began + if has_redis { ALL_WITHIN.saturating_sub(KEPT_FOR_REDIS) } else { ALL_WITHIN }
    }

    fn of_all(self) -> Instant {
        self.began + ALL_WITHIN
    }
}

impl Session<'_> {
    /// End the loops, and answer the reloads that were not finished. The next session does what was cut off, if there is one.
    pub(super) async fn close(mut self, end: &End) {
        self.daemon.must_store_record |= self.primaries.stores_record();
        self.stop.cancel();
        let until = self.daemon.ending.map_or_else(|| Instant::now() + LOOPS_WITHIN, Ending::of_loops).into();
        let finish = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout_at(until, finish).await.is_err() {
            warn!("a call in hand did not finish in time");
        }
        if let Some(next) = self.reloads.stored_next() {
            self.daemon.has_stored(&next);
        }
        self.reloads.cut_off(matches!(end, End::Stop)).await;
    }
}

impl Daemon {
    /// The daemon was told to stop: the five seconds begin.
    pub(super) fn begin_to_end(&mut self) -> End {
        info!("stopping");
        self.ending.get_or_insert_with(Ending::now);
        End::Stop
    }

    /// Close the HTTP server and stop the built-in Redis, after the loops.
    pub(super) async fn close(self) {
        systemd::stopping();
        let ending = self.ending.unwrap_or_else(Ending::now);
        if let Some(http) = self.http {
            http.close(ending.of_http(self.built_in.is_some())).await;
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
        assert!(ending.of_loops() < ending.of_http(true), "the HTTP server has a part of its own");
        assert_eq!(ending.of_all() - ending.of_http(true), Duration::from_secs(2));
        assert_eq!(ending.of_http(false), ending.of_all());
    }
}
