//! The feed of `top`: it asks Redis once a second and after a key, in a few calls whatever the number of buckets. A
//! lost connection is reported, and made again.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::cli::change::by;
use crate::cli::{Exit, Failure};
use crate::config::Config;
use crate::explain::{Explanation, File, LocalTime};
use crate::model::bucket::BucketName;
use crate::model::glob;
use crate::model::subject::Subject;
use crate::operate::explain::explain_budget;
use crate::operate::pause::{Direction, PauseRequest, ResumeRequest};
use crate::operate::target::Target;
use crate::store::acl::Role;
use crate::store::figures::Figures;
use crate::store::routes::RouteStatus;
use crate::store::snapshots::{BucketSnapshot, BudgetSnapshot, MAX_SNAPSHOTS, Now};
use crate::store::top::{By, KEPT, Top};
use crate::store::{Address, Layout, Partitions, StoreError};

/// How often Redis is asked for everything.
const EVERY: Duration = Duration::from_secs(1);

/// After a key Redis is asked at once, and then not for this long: a key that is held down asks no more often.
const AT_LEAST: Duration = Duration::from_millis(50);

/// The data that the screen needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) by: By,
    /// The names on the screen.
    pub(super) names: Vec<String>,
    /// The name whose wait is to be explained.
    pub(super) selected: Option<String>,
    pub(super) frozen: bool,
}

impl Wants {
    pub(super) fn is_of_budgets(&self) -> bool {
        self.by == By::Budgets
    }
}

/// A pause or a resume of one bucket or budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) name: String,
    pub(super) is_budget: bool,
    pub(super) resumes: bool,
}

impl Deed {
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { is_budget: self.is_budget, pattern: &self.name }
    }

    pub(super) fn verb(&self) -> &'static str {
        if self.resumes { "resume" } else { "pause" }
    }
}

/// The explanation of why a bucket or a budget waits: its last sentence, and its whole text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Explained {
    pub(super) name: String,
    pub(super) last: String,
    pub(super) text: String,
}

/// News for the screen.
pub(super) enum News {
    Figures(Figures, Vec<RouteStatus>),
    /// The ranking, or how old it is now; `None`: there is none yet. The order comes with it, because another one may
    /// be wanted by now.
    Ranking(By, Option<Ranked>),
    Buckets(Now<BucketSnapshot>),
    Budgets(Now<BudgetSnapshot>),
    Explained(Explained),
    /// The outcome of a deed.
    Done(Result<String, String>),
    Lost(String),
}

/// A ranking that Redis has.
pub(super) enum Ranked {
    New(Top),
    /// The ranking is the one from before, and is now this old.
    Same {
        age_ms: u64,
    },
}

/// The task that asks Redis and sends news, until the screen is gone.
pub(super) struct Feed<'a> {
    pub(super) config: &'a Config,
    pub(super) wants: watch::Receiver<Wants>,
    pub(super) deeds: mpsc::Receiver<Deed>,
    pub(super) news: mpsc::Sender<News>,
    /// The ranking that the screen has: its order, and when its walk began, in microseconds.
    pub(super) has: Option<(By, u64)>,
}

impl Feed<'_> {
    /// Run until dropped. `store` is used until its connection is lost; then another one is made.
    pub(super) async fn run(mut self, store: Partitions) -> Result<(), Failure> {
        let (address, layout) = (Address::of(&self.config.redis)?, Layout::of(&self.config.redis));
        let mut store = Some(store);
        loop {
            let lost = match &mut store {
                Some(store) => self.ask(store).await.err(),
                None => match Partitions::connect(&address, &layout).await {
                    Ok(found) => {
                        store = Some(found);
                        continue;
                    }
                    Err(why) => Some(why),
                },
            };
            let why = lost.expect("it asks until that fails");
            (store, self.has) = (None, None); // a Redis that was started anew has another ranking
            self.tell(News::Lost(why.in_words(Role::Observer))).await;
            self.pass_time().await;
        }
    }

    /// Wait before the next try. A deed that is asked for meanwhile is refused, and not done later, when nobody expects
    /// it any more.
    async fn pass_time(&mut self) {
        let again = tokio::time::sleep(EVERY);
        tokio::pin!(again);
        loop {
            tokio::select! {
                () = &mut again => return,
                Some(deed) = self.deeds.recv() => {
                    let told = format!("{}: Redis does not answer; nothing was done", deed.subject());
                    self.tell(News::Done(Err(told))).await;
                }
            }
        }
    }

    async fn tell(&self, news: News) {
        let _ = self.news.send(news).await; // fails where the screen is gone
    }

    /// Ask Redis again and again, until a call fails.
    async fn ask(&mut self, store: &mut Partitions) -> Result<(), StoreError> {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    if !self.wants.borrow().frozen {
                        let (figures, routes) = (store.figures().await?, store.routes().await?);
                        self.tell(News::Figures(figures, routes)).await;
                        self.look(store).await?;
                    }
                }
                Ok(()) = self.wants.changed() => {
                    if self.wants.borrow().frozen {
                        self.explain(store).await?;
                    } else {
                        self.look(store).await?;
                    }
                    tokio::time::sleep(AT_LEAST).await;
                }
                Some(deed) = self.deeds.recv() => {
                    let done = pause_or_resume(store, &deed).await;
                    self.tell(News::Done(done)).await;
                    tick.reset_immediately();
                }
            }
        }
    }

    /// Ask for the ranking if it is a new one, then for the states of the names on the screen, and why the selected one
    /// waits.
    async fn look(&mut self, store: &mut Partitions) -> Result<(), StoreError> {
        let by = self.wants.borrow().by;
        let top = store.top(by, None, 0).await?;
        match top {
            None => {
                self.has = None;
                self.tell(News::Ranking(by, None)).await;
            }
            Some(top) if self.has == Some((by, top.as_of_us)) => {
                self.tell(News::Ranking(by, Some(Ranked::Same { age_ms: top.age_ms }))).await;
            }
            Some(_) => {
                let top = store.top(by, None, KEPT).await?;
                self.has = top.as_ref().map(|top| (by, top.as_of_us));
                self.tell(News::Ranking(by, top.map(Ranked::New))).await;
            }
        }
        let wants = self.wants.borrow_and_update().clone();
        if wants.is_of_budgets() {
            let now = store.budget_snapshots(&wants.names[..wants.names.len().min(MAX_SNAPSHOTS)]).await?;
            self.tell(News::Budgets(now)).await;
        } else {
            for names in wants.names.chunks(MAX_SNAPSHOTS) {
                let now = store.bucket_snapshots(names).await?;
                self.tell(News::Buckets(now)).await;
            }
        }
        self.explain(store).await
    }

    async fn explain(&mut self, store: &mut Partitions) -> Result<(), StoreError> {
        let wants = self.wants.borrow_and_update().clone();
        let Some(name) = wants.selected.as_ref().and_then(|name| BucketName::parse(name.as_bytes()).ok()) else {
            return Ok(());
        };
        let (last, text) = if wants.is_of_budgets() {
            match explain_budget(store, &name).await {
                Err(StoreError::Refused { message, .. }) => (message.clone(), message), // the budget no longer exists
                explanation => {
                    let explanation = explanation?;
                    (explanation.says().to_owned(), explanation.text())
                }
            }
        } else {
            let facts = store.of(&name).explain(&name).await?;
            // Whether the file is in force is left out: the comparison takes the whole record.
            let file = File { name: self.config.source(), is_in_force: None };
            let said = Explanation::of(&facts, file, &LocalTime::here(facts.now_us));
            (said.says().last().cloned().unwrap_or_default(), said.text())
        };
        self.tell(News::Explained(Explained { name: name.to_string(), last, text })).await;
        Ok(())
    }
}

/// Pause or resume, as the commands do it. Returns the message for the user, with the name of who did it.
async fn pause_or_resume(store: &mut Partitions, deed: &Deed) -> Result<String, String> {
    let subject = deed.subject();
    let action = format!("{} {subject}", if deed.resumes { "resume" } else { "pause" });
    let (direction, by) = (Direction::Out, by());
    let done: Result<String, Failure> = async {
        // The target is one bucket or budget, whatever its name looks like.
        let target = Target::parse(subject.is_budget, &glob::of_name(subject.pattern));
        let target = target.map_err(|why| Failure::new(Exit::Usage, why.to_string()))?;
        if deed.resumes {
            let request = ResumeRequest { direction, target, reason: None };
            let changed = request.run(store, &by).await?;
            request.describe(&changed).map_err(|why| Failure::new(Exit::Failed, why))
        } else {
            let request = PauseRequest { direction, target, lasts: None, reason: None };
            Ok(request.run_counted(store, &by).await?.to_string())
        }
    }
    .await;
    done.map(|line| format!("{line}; by {by}")).map_err(|why| why.said(&action, Role::Operator))
}
