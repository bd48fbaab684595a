//! Reading the configuration again, and answering whoever asked for it.
//!
//! The file is read, and refused, at once. Good files are put into force one at a time: while one reload runs the next ones wait,
//! and one reload of the newest file stands for all of them, so the last one asked for wins. Until a file is in force
//! `must_store_record` is set, and the next session makes up for what a lost connection cut off.
//!
//! A file comes into force whole or not at all: the daemon and its HTTP server go on with the old one, tokens and hosts
//! included, until Redis has stored the record of the new one. Where Redis refuses it, all stays as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tracing::{error, info, warn};

use super::ready::Connection;
use super::{Daemon, End, Ended, Session};
use crate::config::Config;
use crate::http::AccessPolicy;
use crate::store::StoreError;
use crate::store::acl::Role;
use crate::system::control::{Answer, Request};
use crate::system::systemd;

/// How long a reload may take before whoever asked is told how far it is; the reload continues.
const ANSWERED_WITHIN: Duration = Duration::from_secs(50);

/// A reload that was asked for: by HUP, or by a request that waits for its answer.
struct Asked {
    request: Option<Request>,
    at: Instant,
}

/// A configuration that was read and found good, and is not in force yet, with its tokens.
pub(super) struct Next {
    pub(super) config: Config,
    access: AccessPolicy,
    /// Whether a record was to be stored before this one was read.
    was_due: bool,
}

/// The reload that runs, with all those that it stands for.
struct Running {
    asked: Vec<Asked>,
    /// What it puts into force; `None`: the configuration that the daemon has already.
    next: Option<Arc<Next>>,
    /// Whether the record is stored: from then on the change only spreads.
    stored: Arc<AtomicBool>,
}

/// The reloads of a session that were asked for and are not over.
#[derive(Default)]
pub(super) struct Reloads {
    running: Option<Running>,
    waiting: Vec<Asked>,
}

impl Reloads {
    /// Whether a file that was read is on its way into force.
    pub(super) fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    fn is_stored(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.stored.load(Ordering::Relaxed))
    }

    /// What the reload that runs puts into force.
    fn next(&self) -> Option<Arc<Next>> {
        self.running.as_ref().and_then(|running| running.next.clone())
    }

    /// The same, if its record is stored.
    pub(super) fn stored_next(&self) -> Option<Arc<Next>> {
        self.next().filter(|_| self.is_stored())
    }

    /// The reload that ran is over: its requests are replied.
    fn take_running(&mut self) -> Vec<Asked> {
        self.running.take().map(|running| running.asked).unwrap_or_default()
    }

    async fn answer_running(&mut self, answer: &Answer) {
        for asked in self.take_running() {
            finish(asked.request, answer.clone()).await;
        }
    }

    /// Tell those who have waited for long how far their reload is. No reload is given up.
    pub(super) async fn answer_overdue(&mut self) {
        let how_far = if self.is_stored() {
            "the change is stored and still spreads"
        } else {
            "the change is not stored yet: the queues are looked at by the old policies first; the reload continues"
        };
        let overdue =
            |asked: &mut Asked| if asked.at.elapsed() < ANSWERED_WITHIN { None } else { asked.request.take() };
        let running = self.running.iter_mut().flat_map(|running| &mut running.asked).filter_map(overdue);
        let running: Vec<Request> = running.collect();
        let waiting: Vec<Request> = self.waiting.iter_mut().filter_map(overdue).collect();
        for request in running {
            finish(Some(request), Answer::Failed { why: how_far.to_owned() }).await;
        }
        for request in waiting {
            let why = "the change is not stored yet: an earlier one still spreads; the reload continues".to_owned();
            finish(Some(request), Answer::Failed { why }).await;
        }
    }

    /// The session is over. The next session makes up for what was cut off, if there is one.
    pub(super) async fn cut_off(&mut self, stops: bool) {
        let stored = self.is_stored();
        let why = match (stops, stored) {
            (true, false) => "the daemon stops; the configuration is good and will be live with its next start",
            (_, true) => "the change is stored and still spreads",
            (false, false) => "redis was lost; the configuration is good and will be live when it is back",
        };
        let why = why.to_owned();
        let answer = if stops || stored { Answer::Failed { why } } else { Answer::Waits { why } };
        let asked = self.take_running().into_iter().chain(std::mem::take(&mut self.waiting));
        // Side by side: all answers together take no longer than one of them, for a stop has only so much time.
        join_all(asked.map(|asked| finish(asked.request, answer.clone()))).await;
    }
}

impl Session<'_> {
    /// Reload while serving. The file is put into force as soon as those before it are, and answered when it has spread.
    pub(super) async fn reload(&mut self, request: Option<Request>) {
        if let Err(answer) = self.daemon.read_again(request.as_ref()) {
            return finish(request, answer).await;
        }
        systemd::reloading();
        self.reloads.waiting.push(Asked { request, at: Instant::now() });
        self.start_reload();
    }

    /// Start the reload that stands for all that wait, if none runs.
    fn start_reload(&mut self) {
        if self.reloads.is_busy() || self.reloads.waiting.is_empty() {
            return;
        }
        let stored = Arc::new(AtomicBool::new(false));
        let (asked, next) = (std::mem::take(&mut self.reloads.waiting), self.daemon.next.clone());
        self.reloads.running = Some(Running { asked, next: next.clone(), stored: Arc::clone(&stored) });
        let (connection, config) = (self.connection.clone(), self.daemon.config_to_store());
        let switch_http = next.and_then(|next| self.daemon.http_switch(&next));
        let is_stored = move || {
            if let Some(switch) = switch_http {
                switch();
            }
            stored.store(true, Ordering::Relaxed);
        };
        self.tasks.spawn(async move { Ended::Reload(put_into_force(connection, config, is_stored).await) });
    }

    /// The reload that ran is over; the next one starts. Replies the end of the session where the connection is lost.
    pub(super) async fn end_reload(&mut self, ended: Result<(), StoreError>) -> Option<End> {
        if let Some(next) = self.reloads.stored_next() {
            self.daemon.has_stored(&next);
        }
        match ended {
            Ok(()) => {
                self.daemon.must_store_record = !self.reloads.waiting.is_empty();
                self.reloads.answer_running(&Answer::Live).await;
                if !self.daemon.must_store_record {
                    self.daemon.obeys_own_record(true);
                }
            }
            Err(why @ (StoreError::Refused { .. } | StoreError::Reply { .. })) => {
                let mut why = why.in_words(Role::Daemon);
                if !self.reloads.is_stored() {
                    why = format!("redis refused it, and all stays as it was: {why}");
                    if let Some(next) = self.reloads.next() {
                        self.daemon.give_up(&next);
                    }
                }
                self.reloads.answer_running(&Answer::Failed { why }).await;
            }
            Err(why) if self.connection.partitions.is_cluster() => {
                // The record is stored when the authority is served again.
                let why = format!("it will be live when partition 0 is back: {}", why.in_words(Role::Daemon));
                self.reloads.answer_running(&Answer::Waits { why }).await;
            }
            Err(why) => return Some(End::Lost(why)), // answered when the session ends
        }
        self.start_reload();
        if !self.reloads.is_busy() {
            systemd::ready();
        }
        None
    }
}

impl Daemon {
    /// Reload while Redis is away: the file is checked now, and stored with the next connection.
    pub(super) async fn reload_while_away(&mut self, request: Option<Request>) {
        let answer = match self.read_again(request.as_ref()) {
            Err(answer) => answer,
            Ok(()) => Answer::Waits {
                why: "redis cannot be used now; the configuration is good and will be live with it".to_owned(),
            },
        };
        finish(request, answer).await;
    }

    /// Read the configuration again, whole or not at all. Replies the refusal.
    fn read_again(&mut self, request: Option<&Request>) -> Result<(), Answer> {
        let refused = |why: &dyn std::fmt::Display| Answer::Refused { why: why.to_string() };
        let read = Config::load(self.named.as_deref(), &self.environment);
        if let Some(request) = request {
            let source = read.as_ref().map_or_else(|_| self.config.source(), Config::source);
            if request.reload.source != source && request.reload.source != self.config.source() {
                return Err(Answer::NotMine { pid: std::process::id(), source });
            }
        }
        let new = read.map_err(|why| refused(&why))?;
        if let Some(why) = self.config.needs_restart(&new) {
            return Err(refused(&why));
        }
        let keys = AccessPolicy::read(&new.http, &new.source()).map_err(|why| refused(&why))?;
        if let Some(http) = &self.http {
            http.may_reload(&keys, &new.source()).map_err(|why| refused(&why))?;
        }
        super::warn_of(&new);
        // Of one that was read before and is not stored, this one takes the place.
        let was_due = self.next.as_ref().map_or(self.must_store_record, |next| next.was_due);
        self.next = Some(Arc::new(Next { config: new, access: keys, was_due }));
        self.must_store_record = true;
        self.said.forget_warnings();
        Ok(())
    }

    /// The configuration whose record is to be stored: the one that was read last.
    pub(super) fn config_to_store(&self) -> Config {
        self.next.as_ref().map_or(&self.config, |next| &next.config).clone()
    }

    /// What makes the HTTP server obey a configuration: to be called when its record is stored.
    fn http_switch(&self, next: &Next) -> Option<impl FnOnce() + Send + use<>> {
        self.http.as_ref().map(|http| http.switch_to(next.config.clone(), next.access.clone()))
    }

    /// The record of a configuration is stored in a way that did not switch the HTTP server: from here on all is by it.
    pub(super) fn obey(&mut self, next: &Arc<Next>) {
        self.http_switch(next).into_iter().for_each(|switch| switch());
        self.has_stored(next);
    }

    /// The record of a configuration is stored: from here on it is the daemon's own.
    pub(super) fn has_stored(&mut self, next: &Arc<Next>) {
        self.config = next.config.clone();
        self.next.take_if(|newest| Arc::ptr_eq(newest, next));
    }

    /// Redis refused the record of a configuration: the old one stays.
    fn give_up(&mut self, next: &Arc<Next>) {
        if self.next.take_if(|newest| Arc::ptr_eq(newest, next)).is_some() {
            self.must_store_record = next.was_due;
        }
    }
}

/// Store a record, and drain until it has reached every bucket. Jobs that were pushed before are judged by the old record.
async fn put_into_force(
    mut connection: Connection,
    config: Config,
    is_stored: impl FnOnce(),
) -> Result<(), StoreError> {
    connection.look_at_all().await?;
    connection.store_record(&config, is_stored).await?;
    let Connection { partitions, invalidations, progress } = connection;
    for mut store in partitions.each() {
        invalidations.of(store.keys().number()).wake_pacer.notify_one();
        loop {
            let drained = match store.drain(&[]).await {
                Err(why) if partitions.tolerates(&why) => break, // the replicator brings it when the partition is back
                drained => drained?,
            };
            progress.count(&drained);
            if !drained.spreading {
                break;
            }
        }
    }
    Ok(())
}

/// Say in the log how a reload went, and answer its request.
async fn finish(request: Option<Request>, answer: Answer) {
    match &answer {
        Answer::Live => info!("the configuration was reloaded and is live"),
        Answer::Refused { why } => {
            // A problem a line, for people; a record has one.
            error!("the configuration is refused and the old one stays: {}", why.replace("\n  ", "; "));
        }
        Answer::Failed { why } | Answer::Waits { why } => warn!("the configuration is not live yet: {why}"),
        Answer::NotMine { .. } => {}
    }
    if let Some(request) = request {
        request.answer(&answer).await;
    }
}
