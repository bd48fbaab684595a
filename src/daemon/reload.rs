//! Reading the configuration again, and answering whoever asked for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::ready::{look_at_all, put};
use super::{Daemon, Ended};
use crate::config::Config;
use crate::store::{Store, StoreError};
use crate::system::control::{Answer, Request};
use crate::system::systemd;

/// How long a change of policy may take to spread before `reload` says that it still does.
const SPREADS_WITHIN: Duration = Duration::from_secs(55);

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
        self.config = new;
        self.warned.clear();
        Ok(())
    }

    /// Reload while serving: the record is stored at once, and the answer given when it has spread.
    pub(super) async fn reload(&mut self, request: Option<Request>, tasks: &mut JoinSet<Ended>, store: &Store) {
        if let Err(answer) = self.read_again(request.as_ref()) {
            return finish_reload(request, answer).await;
        }
        systemd::reloading();
        let (mut store, record) = (store.clone(), self.config.record.clone());
        let (hints, progress) = (Arc::clone(&self.hints), Arc::clone(&self.progress));
        tasks.spawn(async move {
            let spread = async {
                look_at_all(&mut store, &progress).await?;
                put(&mut store, &record).await?;
                hints.dues.notify_one();
                while store.drain(&[]).await?.spreading {}
                Ok::<_, StoreError>(())
            };
            let answer = match tokio::time::timeout(SPREADS_WITHIN, spread).await {
                Ok(Ok(())) => Answer::Live,
                Ok(Err(why)) => Answer::Failed { why: why.to_string() },
                Err(_) => Answer::Failed { why: "the change is stored and still spreads".to_owned() },
            };
            Ended::Reload(request, answer)
        });
    }

    /// A reload came to its end. One that is not live is made so with the next connection.
    pub(super) async fn end_reload(&mut self, request: Option<Request>, answer: Answer) {
        self.must_put |= answer != Answer::Live;
        systemd::ready();
        finish_reload(request, answer).await;
    }

    /// Reload while Redis is away: checked now, stored with the next connection.
    pub(super) async fn reload_while_away(&mut self, request: Option<Request>) {
        let answer = if let Err(answer) = self.read_again(request.as_ref()) {
            answer
        } else {
            self.must_put = true;
            Answer::Failed {
                why: "redis cannot be used now; the configuration is good and will be live with it".to_owned(),
            }
        };
        finish_reload(request, answer).await;
    }
}

async fn finish_reload(request: Option<Request>, answer: Answer) {
    match &answer {
        Answer::Live => info!("the configuration was reloaded and is live"),
        Answer::Refused { why } => error!("the configuration is refused and the old one stays: {why}"),
        Answer::Failed { why } => warn!("the configuration is not live yet: {why}"),
        Answer::NotMine { .. } => {}
    }
    if let Some(request) = request {
        request.answer(&answer).await;
    }
}
