//! Saying that no daemon runs, to whoever waits for room that only a daemon can make.

use std::time::{Duration, Instant};

use crate::store::Partitions;

/// How often it is looked and said.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// When it was last looked.
#[derive(Default)]
pub(super) struct Absence(Option<Instant>);

impl Absence {
    /// Look, at most once a minute, whether a daemon runs. Replies what to say when none does. What cannot be asked is not
    /// said: the next push finds out what is wrong.
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
