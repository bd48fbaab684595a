//! The message that no daemon runs, for a push that waits for room which only a daemon can make.

use std::time::{Duration, Instant};

use crate::store::Partitions;

/// How often daemons are looked for, and the message is repeated.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The time of the last look.
#[derive(Default)]
pub(super) struct Absence(Option<Instant>);

impl Absence {
    /// Look for a daemon, at most once a minute. Returns the message if none runs. An error of Redis is ignored: the
    /// next push finds out what is wrong.
    pub(super) async fn look(&mut self, store: &mut Partitions) -> Option<&'static str> {
        if self.0.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        self.0 = Some(Instant::now());
        let is_empty = store.any().daemons().await.is_ok_and(|daemons| daemons.is_empty());
        is_empty.then_some(
            "dripd push: no daemon runs, so nothing leaves the bucket: start one with `dripd run`; still waiting",
        )
    }
}
