//! A memory of the log, so that the daemon does not repeat a line at every attempt.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::store::server::Server;
use crate::store::{Address, StoreError};

/// How often the log repeats a reason that stays the same.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The last reason that the log gave for one thing.
#[derive(Default)]
pub(super) struct LastReason(Option<(String, Instant)>);

impl LastReason {
    /// Whether a reason is to be said now: it is new, or was said a minute ago. The caller says it then.
    pub(super) fn is_news(&mut self, why: &str) -> bool {
        let is_news = self.0.as_ref().is_none_or(|(said, at)| said != why || at.elapsed() >= SAY_AGAIN);
        if is_news {
            self.0 = Some((why.to_owned(), Instant::now()));
        }
        is_news
    }
}

/// The lines that the log has, over all sessions of a daemon.
#[derive(Default)]
pub(super) struct Said {
    /// Warnings about the server: each is said once until the next reload.
    warnings: Vec<String>,
    /// Whether the log says that another daemon's record is in force.
    obeys_another: bool,
    /// Why there is no Redis.
    no_redis: LastReason,
}

impl Said {
    /// Warn of what a server lacks.
    pub(super) fn warn_about(&mut self, server: &Server, address: &Address) {
        for warning in &server.warnings {
            if !self.warnings.contains(warning) {
                warn!(redis = address.redacted(), "{warning}");
                self.warnings.push(warning.clone());
            }
        }
    }

    /// The configuration was read again: its warnings are said anew.
    pub(super) fn forget_warnings(&mut self) {
        self.warnings.clear();
    }

    /// Say when another daemon's record came into force, and when this daemon's own is in force again.
    pub(super) fn whose_record(&mut self, is_own: bool) {
        if is_own && self.obeys_another {
            info!("the policies of this daemon's own file are in force again");
        }
        if !is_own && !self.obeys_another {
            warn!("another daemon's policies are in force: this daemon obeys them; its own file differs");
        }
        self.obeys_another = !is_own;
    }

    /// Say why there is no Redis: `text` is the error in words. A server that loads its data is no fault.
    pub(super) fn waits_for_redis(&mut self, why: &StoreError, text: &str, address: &Address) {
        if !self.no_redis.is_news(text) {
            return;
        }
        if matches!(why, StoreError::Loading { .. }) {
            info!(redis = address.redacted(), "redis is loading its data, waiting for it");
        } else {
            warn!(why = text, "redis cannot be used, trying again");
        }
    }

    /// Redis is served again.
    pub(super) fn serves(&mut self) {
        self.no_redis = LastReason::default();
    }
}
