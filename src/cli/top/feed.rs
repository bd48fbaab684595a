//! What Redis is asked for, once a second and after a key: a few calls, whatever the number of buckets. A lost connection is told, and
//! made again.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::cli::Failure;
use crate::cli::change::by;
use crate::cli::stop::{Go, Stop, Way};
use crate::config::Config;
use crate::explain::{BudgetSaid, Explanation, File, Wall};
use crate::store::acl::Role;
use crate::store::figures::Figures;
use crate::store::routes::RouteStatus;
use crate::store::rows::{BucketNow, BudgetNow, MOST, Now};
use crate::store::top::{By, KEPT, Top};
use crate::store::{Address, Layout, StoreError, Whole};
use crate::words::bucket::BucketName;
use crate::words::subject::Subject;

/// How often everything is asked for.
const EVERY: Duration = Duration::from_secs(1);

/// After a key it is asked at once, and then not for so long: a key that is held down asks no more often.
const AT_LEAST: Duration = Duration::from_millis(50);

/// What the screen wants to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) by: By,
    /// What is on the screen.
    pub(super) names: Vec<String>,
    /// Of which one it is to be explained why it waits.
    pub(super) selected: Option<String>,
    pub(super) frozen: bool,
}

impl Wants {
    pub(super) fn is_of_budgets(&self) -> bool {
        self.by == By::Budgets
    }
}

/// Something to be done to one bucket or budget.
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

/// Why one waits: the sentence that says what binds, and everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) name: String,
    pub(super) last: String,
    pub(super) text: String,
}

/// What came.
pub(super) enum News {
    Figures(Figures, Vec<RouteStatus>),
    /// The ranking, or how old it is now; `None`: there is none yet. With its order, for another one may be wanted by now.
    Ranking(By, Option<Ranked>),
    Buckets(Now<BucketNow>),
    Budgets(Now<BudgetNow>),
    Said(Said),
    /// What became of a deed.
    Done(Result<String, String>),
    Lost(String),
}

/// The ranking.
pub(super) enum Ranked {
    New(Top),
    /// It is the same as before, by now so old.
    Same {
        age_ms: u64,
    },
}

/// Ask, and tell, until the screen is gone.
pub(super) struct Feed<'a> {
    pub(super) config: &'a Config,
    pub(super) wants: watch::Receiver<Wants>,
    pub(super) deeds: mpsc::Receiver<Deed>,
    pub(super) news: mpsc::Sender<News>,
    /// The ranking that the screen has: by what, and as of when.
    pub(super) has: Option<(By, u64)>,
}

impl Feed<'_> {
    /// It ends only by being dropped. Any connection that it is given is used until it is lost.
    pub(super) async fn run(mut self, store: Whole) -> Result<(), Failure> {
        let (address, layout) = (Address::of(&self.config.redis)?, Layout::of(&self.config.redis));
        let mut store = Some(store);
        loop {
            let lost = match &mut store {
                Some(store) => self.ask(store).await.err(),
                None => match Whole::connect(&address, &layout).await {
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

    /// Wait before it is tried again. What is asked to be done meanwhile is not done later, when nobody expects it any more.
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
        let _ = self.news.send(news).await; // nobody listens: then this is dropped next
    }

    /// Ask again and again, until a connection is lost.
    async fn ask(&mut self, store: &mut Whole) -> Result<(), StoreError> {
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
                    let done = do_it(store, &deed).await;
                    self.tell(News::Done(done)).await;
                    tick.reset_immediately();
                }
            }
        }
    }

    /// The ranking where it is a new one, then how those on the screen stand, and why the selected one waits.
    async fn look(&mut self, store: &mut Whole) -> Result<(), StoreError> {
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
            let now = store.budgets_now(&wants.names[..wants.names.len().min(MOST)]).await?;
            self.tell(News::Budgets(now)).await;
        } else {
            for names in wants.names.chunks(MOST) {
                let now = store.rows_now(names).await?;
                self.tell(News::Buckets(now)).await;
            }
        }
        self.explain(store).await
    }

    async fn explain(&mut self, store: &mut Whole) -> Result<(), StoreError> {
        let wants = self.wants.borrow_and_update().clone();
        let Some(name) = wants.selected.as_ref().and_then(|name| BucketName::parse(name.as_bytes()).ok()) else {
            return Ok(());
        };
        let said = if wants.is_of_budgets() {
            match store.of(&name).explain_budget(&name).await {
                Err(StoreError::Refused { message, .. }) => (message.clone(), message), // it is none any more
                facts => {
                    let facts = facts?;
                    let said = BudgetSaid::of(&facts, &Wall::here(facts.now_us));
                    (said.says().to_owned(), said.text())
                }
            }
        } else {
            let facts = store.of(&name).explain(&name).await?;
            // Whether the file at hand is in force is left out: to compare them takes the whole record.
            let file = File { name: self.config.source(), is_in_force: None };
            let said = Explanation::of(&facts, file, &Wall::here(facts.now_us));
            (said.says().last().cloned().unwrap_or_default(), said.text())
        };
        self.tell(News::Said(Said { name: name.to_string(), last: said.0, text: said.1 })).await;
        Ok(())
    }
}

/// Pause or resume, as the commands do it. Replies what there is to say, with who did it.
async fn do_it(store: &mut Whole, deed: &Deed) -> Result<String, String> {
    let subject = deed.subject();
    let tried = format!("{} {subject}", if deed.resumes { "resume" } else { "pause" });
    let done = if deed.resumes {
        Go::of(&subject).make(store, Way::Out).await
    } else {
        Stop::of(&subject).make(store, Way::Out).await
    };
    done.map(|line| format!("{line}; by {}", by())).map_err(|why| why.said(&tried, Role::Operator))
}
