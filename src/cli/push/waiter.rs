//! A push of one job that waits: its connection, and the sleep until the next try.

use std::time::Duration;

use super::absence::Absence;
use super::backoff::Backoff;
use super::{connect_or_stop, nothing_accepted};
use crate::cli::{Failure, say_err};
use crate::config::Config;
use crate::model::bucket::BucketName;
use crate::store::jobs::push::MOVING_RETRY;
use crate::store::{Partitions, StoreError};
use crate::system::signals::Signals;

/// The connection of a push that waits, and the tries so far.
pub(super) struct Waiter<'a> {
    config: &'a Config,
    signals: &'a mut Signals,
    store: Option<Partitions>,
    backoff: Backoff,
    absence: Absence,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(config: &'a Config, signals: &'a mut Signals) -> Self {
        Self { config, signals, store: None, backoff: Backoff::default(), absence: Absence::default() }
    }

    /// The connection, made where there is none. A signal ends that; nothing was pushed by then.
    pub(super) async fn store(&mut self) -> Result<&mut Partitions, Failure> {
        if self.store.is_none() {
            self.store = Some(connect_or_stop(self.config, self.signals).await?);
        }
        Ok(self.store.as_mut().expect("it was made"))
    }

    /// Wait until one more job may be accepted. Where the bucket `is_full` it is looked at again and again, because an
    /// operator may make room earlier than was answered, and others may be faster than this push.
    pub(super) async fn for_room(
        &mut self,
        bucket: &BucketName,
        retry_after: Duration,
        is_full: bool,
    ) -> Result<(), Failure> {
        let mut wait = retry_after;
        loop {
            if let Some(store) = &mut self.store
                && let Some(line) = self.absence.look(store).await
            {
                say_err(line);
            }
            self.sleep(wait).await?;
            // Also for what a look does not see, as a gate: a connection that was idle may have been closed on the way,
            // and a push that is lost may have happened.
            match self.look(bucket).await {
                Some(more) if is_full => wait = more,
                _ => return Ok(()),
            }
        }
    }

    /// Wait after a refusal that passes.
    pub(super) async fn until_it_passes(&mut self, why: &StoreError) -> Result<(), Failure> {
        if let Some(line) = self.absence.refused(why) {
            say_err(&line);
        }
        if why.is_unusable() {
            self.store = None; // another server may have become the primary
        }
        self.sleep(MOVING_RETRY).await
    }

    async fn sleep(&mut self, asked: Duration) -> Result<(), Failure> {
        tokio::select! {
            () = tokio::time::sleep(self.backoff.after(asked)) => Ok(()),
            () = self.signals.stop() => Err(nothing_accepted()),
        }
    }

    /// How long a full bucket takes nothing yet; `None`: it may take a job, as far as is known.
    async fn look(&mut self, bucket: &BucketName) -> Option<Duration> {
        let store = self.store.as_mut()?;
        match store.of(bucket).peek(bucket).await {
            Ok(peeked) => peeked.retry_after,
            Err(StoreError::Refused { .. } | StoreError::Reply { .. }) => None,
            Err(_) => {
                self.store = None;
                None
            }
        }
    }
}
