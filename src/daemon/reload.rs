//! Reading the configuration again, and answering whoever asked for it.
//!
//! The file is read, and refused, at once. What is good is put into force one at a time: while one runs the next ones wait,
//! and one put of the newest file stands for all of them, so the last one asked for wins. Until a file is in force `must_put`
//! is set, and the next connection makes up for what a lost one cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::ready::{look_at_all, put};
use super::{Daemon, End, Ended};
use crate::config::Config;
use crate::http::Keys;
use crate::loops::progress::Progress;
use crate::store::acl::Role;
use crate::store::wake::Reports;
use crate::store::{StoreError, Whole};
use crate::system::control::{Answer, Request};
use crate::system::systemd;

/// How long a reload may take before whoever asked is told how far it is; it goes on.
const ANSWERED_WITHIN: Duration = Duration::from_secs(50);

/// One that was asked for: by HUP, or by a request that waits for its answer.
struct Asked {
    request: Option<Request>,
    at: Instant,
}

/// The one that runs, with all it stands for.
struct Running {
    asked: Vec<Asked>,
    /// Whether the record is stored: from then on it only spreads.
    stored: Arc<AtomicBool>,
}

/// The reloads of a daemon that were asked for and are not over.
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
}

impl Daemon {
    /// Read the configuration again, whole or not at all. Replies the refusal.
    fn read_again(&mut self, request: Option<&Request>) -> Result<(), Answer> {
        let read = Config::load(self.named.as_deref(), &self.environment);
        if let Some(request) = request {
            let source = read.as_ref().map_or_else(|_| self.config.source(), Config::source);
            if request.reload.source != source && request.reload.source != self.config.source() {
                return Err(Answer::NotMine { pid: std::process::id(), source });
            }
        }
        let new = read.map_err(|why| Answer::Refused { why: why.to_string() })?;
        if let Some(why) = self.config.needs_restart(&new) {
            return Err(Answer::Refused { why: why.to_string() });
        }
        let keys = Keys::read(&new.http, &new.source()).map_err(|why| Answer::Refused { why: why.to_string() })?;
        if let Some(door) = &self.door {
            door.may_reload(&keys, &new.source()).map_err(|why| Answer::Refused { why: why.to_string() })?;
        }
        super::warn_of(&new);
        if let Some(door) = &self.door {
            door.reload(new.clone(), keys);
        }
        self.config = new;
        self.must_put = true;
        self.warned.clear();
        Ok(())
    }

    /// Reload while serving: put into force as soon as those before it are, and answered when it has spread.
    pub(super) async fn reload(&mut self, request: Option<Request>, tasks: &mut JoinSet<Ended>, whole: &Whole) {
        if let Err(answer) = self.read_again(request.as_ref()) {
            return finish(request, answer).await;
        }
        systemd::reloading();
        self.reloads.waiting.push(Asked { request, at: Instant::now() });
        self.start_reload(tasks, whole);
    }

    /// Start the next one, if one waits and none runs.
    fn start_reload(&mut self, tasks: &mut JoinSet<Ended>, whole: &Whole) {
        if self.reloads.running.is_some() || self.reloads.waiting.is_empty() {
            return;
        }
        let stored = Arc::new(AtomicBool::new(false));
        let asked = std::mem::take(&mut self.reloads.waiting);
        self.reloads.running = Some(Running { asked, stored: Arc::clone(&stored) });
        let (whole, config) = (whole.clone(), self.config.clone());
        let (reports, progress) = (Arc::clone(&self.reports), Arc::clone(&self.progress));
        tasks.spawn(async move { Ended::Reload(put_into_force(whole, config, &stored, &reports, &progress).await) });
    }

    /// The one that ran came to its end; those that waited go on. Replies the end of the session where the connection is lost.
    pub(super) async fn end_reload(
        &mut self,
        ended: Result<(), StoreError>,
        tasks: &mut JoinSet<Ended>,
        whole: &Whole,
    ) -> Option<End> {
        match ended {
            Ok(()) => {
                self.must_put = !self.reloads.waiting.is_empty();
                self.answer_running(&Answer::Live).await;
                if !self.must_put {
                    self.say_whose_record(true);
                }
            }
            Err(why @ (StoreError::Refused { .. } | StoreError::Reply { .. })) => {
                self.answer_running(&Answer::Failed { why: why.to_string() }).await;
            }
            Err(why) if whole.is_cluster() => {
                // The next session with the authority makes up for it.
                let why = format!("it will be live when partition 0 is back: {}", why.in_words(Role::Daemon));
                self.answer_running(&Answer::Waits { why }).await;
            }
            Err(why) => return Some(End::Lost(why)), // answered when the session ends
        }
        self.start_reload(tasks, whole);
        if !self.reloads.is_busy() {
            systemd::ready();
        }
        None
    }

    async fn answer_running(&mut self, answer: &Answer) {
        for asked in self.reloads.running.take().map(|running| running.asked).unwrap_or_default() {
            finish(asked.request, answer.clone()).await;
        }
    }

    /// Tell those who have waited for long how far it is. Nothing is given up.
    pub(super) async fn answer_overdue(&mut self) {
        let stored = self.reloads.running.as_ref().is_some_and(|running| running.stored.load(Ordering::Relaxed));
        let overdue =
            |asked: &mut Asked| if asked.at.elapsed() < ANSWERED_WITHIN { None } else { asked.request.take() };
        let running = self.reloads.running.iter_mut().flat_map(|running| &mut running.asked).filter_map(overdue);
        let running: Vec<Request> = running.collect();
        let waiting: Vec<Request> = self.reloads.waiting.iter_mut().filter_map(overdue).collect();
        let how_far = if stored {
            "the change is stored and still spreads"
        } else {
            "the change is not stored yet: the queues are looked at by the old policies first; it goes on"
        };
        for request in running {
            finish(Some(request), Answer::Failed { why: how_far.to_owned() }).await;
        }
        for request in waiting {
            let why = "the change is not stored yet: an earlier one still spreads; it goes on".to_owned();
            finish(Some(request), Answer::Failed { why }).await;
        }
    }

    /// The session is over. What was cut off is made up for with the next connection, if there is one.
    pub(super) async fn cut_off_reloads(&mut self, stops: bool) {
        let stored = self.reloads.running.as_ref().is_some_and(|running| running.stored.load(Ordering::Relaxed));
        let why = match (stops, stored) {
            (true, false) => "the daemon stops; the configuration is good and will be live with its next start",
            (_, true) => "the change is stored and still spreads",
            (false, false) => "redis was lost; the configuration is good and will be live when it is back",
        };
        let why = why.to_owned();
        let answer = if stops || stored { Answer::Failed { why } } else { Answer::Waits { why } };
        let waiting = std::mem::take(&mut self.reloads.waiting);
        let running = self.reloads.running.take().map(|running| running.asked).unwrap_or_default();
        // Side by side: they may take no longer together than one of them, for a stop has only so much time.
        join_all(running.into_iter().chain(waiting).map(|asked| finish(asked.request, answer.clone()))).await;
    }

    /// Reload while Redis is away: checked now, stored with the next connection.
    pub(super) async fn reload_while_away(&mut self, request: Option<Request>) {
        let answer = match self.read_again(request.as_ref()) {
            Err(answer) => answer,
            Ok(()) => Answer::Waits {
                why: "redis cannot be used now; the configuration is good and will be live with it".to_owned(),
            },
        };
        finish(request, answer).await;
    }
}

/// Store a record, and drain until it has reached every bucket. What was pushed before is judged by what held then.
async fn put_into_force(
    mut whole: Whole,
    config: Config,
    stored: &AtomicBool,
    reports: &Reports,
    progress: &Progress,
) -> Result<(), StoreError> {
    look_at_all(&mut whole, progress).await?;
    put(&mut whole, &config, progress).await?;
    stored.store(true, Ordering::Relaxed);
    for mut store in whole.each() {
        reports.of(store.keys().number()).dues.notify_one();
        loop {
            let drained = match store.drain(&[]).await {
                Err(why) if whole.goes_on_without(&why) => break, // it is brought there when it is back
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
