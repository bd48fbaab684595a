//! The message of a push that waits for what only somebody else can do: why Redis takes no jobs, or that no daemon runs.

use std::time::{Duration, Instant};

use crate::store::acl::Role;
use crate::store::{Partitions, StoreError};

/// How often daemons are looked for, and the message is repeated.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The time of the last message or look, and the refusal that was said then.
#[derive(Default)]
pub(super) struct Absence {
    at: Option<Instant>,
    refusal: Option<String>,
}

impl Absence {
    /// Look for a daemon, at most once a minute. Returns the message if none runs. An error of Redis is ignored: the
    /// next push finds out what is wrong.
    pub(super) async fn look(&mut self, store: &mut Partitions) -> Option<&'static str> {
        if self.at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        self.at = Some(Instant::now());
        let is_empty = store.any().daemons().await.is_ok_and(|daemons| daemons.is_empty());
        is_empty.then_some(
            "dripd push: no daemon runs, so nothing leaves the bucket: start one with `dripd run`; still waiting",
        )
    }

    /// The message for a refusal that passes, at most once a minute while it stays the same.
    pub(super) fn refused(&mut self, why: &StoreError) -> Option<String> {
        let refusal = why.in_words(Role::Submitter);
        if self.refusal.as_ref() == Some(&refusal) && self.at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return None;
        }
        (self.at, self.refusal) = (Some(Instant::now()), Some(refusal.clone()));
        Some(format!("dripd push: {refusal}; still waiting"))
    }
}
