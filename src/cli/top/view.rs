//! The state of `top`: the ranking, the states of the names on the screen, the selection, and what is open over the
//! table.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::feed::{Deed, Explained, News, Ranked, Wants};
use crate::model::glob::{self, Glob};
use crate::model::subject::Subject;
use crate::operate::pace::{A_SECOND, Paces};
use crate::store::figures::Figures;
use crate::store::routes::RouteStatus;
use crate::store::snapshots::{BucketSnapshot, BudgetSnapshot, Cause, Why};
use crate::store::top::{By, Place, Row, Top};

/// The names under which the paces of all dispatches and of all rejections are kept; no bucket can have them.
const ALL: &str = "";
const REJECTED: &str = "{}";

/// How long the outcome of a deed is shown.
const TOLD_FOR: Duration = Duration::from_secs(20);

/// A filter of names.
pub(super) struct Only {
    pub(super) text: String,
    glob: Glob,
}

impl Only {
    /// The filter of a glob.
    pub(super) fn glob(text: String) -> Self {
        Self { glob: Glob::parse(&text), text }
    }

    /// The filter that somebody types: a text that is no glob means every name that contains it. `None`: all names.
    pub(super) fn typed(text: &str) -> Option<Self> {
        match text {
            "" => None,
            text if glob::is_glob(text) => Some(Self::glob(text.to_owned())),
            text => Some(Self::glob(format!("*{text}*"))),
        }
    }

    fn is_met_by(&self, name: &str) -> bool {
        self.glob.matches(name.as_bytes())
    }
}

/// The part of the screen that has the keys.
pub(super) enum Mode {
    /// Only the table.
    Table,
    /// A filter is being typed.
    Filter(String),
    /// A deed waits for a yes.
    Confirm(Deed),
    /// The whole explanation of the selected row; so many of its lines are above the edge.
    Explain(usize),
    /// The help about keys; so many of its lines are above the edge.
    Help(usize),
}

/// The ranking, as far as it is known.
pub(super) enum Ranking {
    /// Redis has not answered yet.
    Asked,
    /// There is no ranking: no walk over all buckets has ended.
    None,
    /// The ranking, and when it came.
    Of(Top, Instant),
}

/// Everything that is drawn.
pub(super) struct View {
    by: By,
    is_of_budgets: bool,
    pub(super) only: Option<Only>,
    pub(super) mode: Mode,
    pub(super) frozen: Option<Instant>,
    pub(super) ranking: Ranking,
    buckets: HashMap<String, BucketSnapshot>,
    budgets: Vec<BudgetSnapshot>,
    pub(super) figures: Option<Figures>,
    /// The states of the routes.
    pub(super) routes: Vec<RouteStatus>,
    pub(super) paces: Paces,
    /// The time since when Redis does not answer, and why.
    pub(super) lost: Option<(Instant, String)>,
    pub(super) explained: Option<Explained>,
    /// The outcome of a deed, and when it came.
    told: Option<(Result<String, String>, Instant)>,
    /// The names that may be selected, in the order of the rows.
    items: Vec<String>,
    selected: Option<String>,
    at: usize,
    offset: usize,
    height: usize,
}

impl View {
    pub(super) fn new(by: By, is_of_budgets: bool, only: Option<Only>) -> Self {
        Self {
            by,
            is_of_budgets,
            only,
            mode: Mode::Table,
            frozen: None,
            ranking: Ranking::Asked,
            buckets: HashMap::new(),
            budgets: Vec::new(),
            figures: None,
            routes: Vec::new(),
            paces: Paces::default(),
            lost: None,
            explained: None,
            told: None,
            items: Vec::new(),
            selected: None,
            at: 0,
            offset: 0,
            height: 0,
        }
    }

    // ---- what is asked of Redis ----

    /// The order of the rows.
    pub(super) fn order(&self) -> By {
        if self.is_of_budgets { By::Budgets } else { self.by }
    }

    pub(super) fn is_of_budgets(&self) -> bool {
        self.is_of_budgets
    }

    pub(super) fn wants(&self) -> Wants {
        Wants {
            by: self.order(),
            names: self.shown().to_vec(),
            selected: self.selected.clone(),
            frozen: self.frozen.is_some(),
        }
    }

    // ---- news ----

    pub(super) fn take(&mut self, news: News) {
        if !matches!(news, News::Lost(_) | News::Done(_)) {
            self.lost = None;
        }
        // News that was on its way when the picture was frozen is dropped.
        if self.frozen.is_some() && !matches!(news, News::Lost(_) | News::Done(_) | News::Explained(_)) {
            return;
        }
        match news {
            News::Figures(figures, routes) => {
                self.routes = routes;
                self.paces.note(ALL, figures.at_us, figures.counter("dispatched"), A_SECOND);
                self.paces.note(REJECTED, figures.at_us, figures.rejected(), A_SECOND);
                self.paces.forget(figures.at_us);
                self.figures = Some(figures);
            }
            News::Ranking(by, _) if by != self.order() => return,
            News::Ranking(_, ranked) => self.take_ranking(ranked),
            News::Buckets(now) => {
                for bucket in now.rows {
                    let (row, left) = (&bucket.row, bucket.left);
                    self.paces.note(&row.bucket, now.at_us, left, (row.count, row.period_us));
                    self.buckets.insert(row.bucket.clone(), bucket);
                }
            }
            News::Budgets(now) => {
                for budget in &now.rows {
                    let name = Subject { is_budget: true, pattern: &budget.budget }.stored();
                    self.paces.note(&name, now.at_us, budget.passed, budget.rate.unwrap_or(A_SECOND));
                }
                self.budgets = now.rows;
            }
            News::Explained(explained) => self.explained = Some(explained),
            News::Done(told) => self.told = Some((told, Instant::now())),
            News::Lost(why) => {
                let since = self.lost.take().map_or_else(Instant::now, |(since, _)| since);
                self.lost = Some((since, why));
            }
        }
        self.list();
    }

    fn take_ranking(&mut self, ranked: Option<Ranked>) {
        match ranked {
            None => self.ranking = Ranking::None,
            Some(Ranked::New(top)) => {
                let shown = self.shown().to_vec();
                self.buckets.retain(|name, _| shown.contains(name)); // other rows are asked for when shown
                self.ranking = Ranking::Of(top, Instant::now());
            }
            Some(Ranked::Same { age_ms }) => {
                if let Ranking::Of(top, at) = &mut self.ranking {
                    (top.age_ms, *at) = (age_ms, Instant::now());
                }
            }
        }
    }

    /// Make the list of names, and select among them: the selection keeps its name, not its place. A name that is gone
    /// leaves the selection to the one in its place.
    fn list(&mut self) {
        let ranked = self.ranked().iter().map(|row| Subject::of_stored(&row.bucket).pattern.to_owned());
        let mut items: Vec<String> = ranked.collect();
        if self.is_of_budgets {
            let named: Vec<_> = self.budgets.iter().map(|budget| &budget.budget).collect();
            let more: Vec<String> = named.into_iter().filter(|name| !items.contains(name)).cloned().collect();
            items.extend(more);
        }
        items.retain(|name| self.only.as_ref().is_none_or(|only| only.is_met_by(name)));
        self.items = items;
        let kept = self.selected.as_ref().and_then(|name| self.items.iter().position(|item| item == name));
        self.select(kept.unwrap_or(self.at));
    }

    // ---- the selection ----

    pub(super) fn select(&mut self, at: usize) {
        self.at = at.min(self.items.len().saturating_sub(1));
        self.selected = self.items.get(self.at).cloned();
        self.scroll();
    }

    fn scroll(&mut self) {
        let height = self.height.max(1);
        self.offset = self.offset.clamp((self.at + 1).saturating_sub(height), self.at);
        self.offset = self.offset.min(self.items.len().saturating_sub(height));
    }

    /// Set the number of rows that are drawn.
    pub(super) fn has_rows(&mut self, height: usize) {
        self.height = height;
        self.scroll();
    }

    pub(super) fn move_by(&mut self, rows: isize) {
        self.select(self.at.saturating_add_signed(rows));
    }

    /// The number of rows of a page.
    pub(super) fn page(&self) -> isize {
        isize::try_from(self.height.max(1)).unwrap_or(1)
    }

    /// The names on the screen.
    pub(super) fn shown(&self) -> &[String] {
        let from = self.offset.min(self.items.len());
        &self.items[from..self.items.len().min(from + self.height)]
    }

    pub(super) fn selected(&self) -> Option<&str> {
        self.selected.as_deref()
    }

    /// The place of the selected name, from 1, and the number of names.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.at + 1, self.items.len())
    }

    /// Show buckets, in this order.
    pub(super) fn sort_by(&mut self, by: By) {
        (self.by, self.is_of_budgets) = (by, false);
        self.turn();
    }

    pub(super) fn turn_to_budgets(&mut self, budgets: bool) {
        self.is_of_budgets = budgets;
        self.turn();
    }

    /// Begin anew, because something else is shown: at the first row, and not frozen.
    fn turn(&mut self) {
        self.ranking = Ranking::Asked;
        (self.explained, self.frozen, self.selected) = (None, None, None);
        self.budgets.clear();
        (self.at, self.offset) = (0, 0);
        self.list();
    }

    /// Show only names that match; `None`: all names.
    pub(super) fn filter(&mut self, only: Option<Only>) {
        self.only = only;
        self.list();
    }

    // ---- what is drawn ----

    /// The rows of the ranking, in its order.
    fn ranked(&self) -> &[Row] {
        match &self.ranking {
            Ranking::Of(top, _) => &top.rows,
            Ranking::Asked | Ranking::None => &[],
        }
    }

    /// The state of a bucket: as it is now, or until that is known, as the walk found it.
    pub(super) fn bucket(&self, name: &str) -> Option<BucketSnapshot> {
        self.buckets.get(name).cloned().or_else(|| {
            let found = self.ranked().iter().find(|row| row.bucket == name)?;
            Some(BucketSnapshot { why: why_of(found), row: found.clone(), closed_by: None, left: 0 })
        })
    }

    pub(super) fn budget(&self, name: &str) -> Option<&BudgetSnapshot> {
        self.budgets.iter().find(|budget| budget.budget == name)
    }

    /// Whether any daemon is alive; true while that is not known.
    pub(super) fn has_daemon(&self) -> bool {
        self.figures.as_ref().is_none_or(|figures| figures.count("daemons") > 0)
    }

    /// Whether a bucket, or a budget, is paused; false while that is not known.
    pub(super) fn is_paused(&self, name: &str) -> bool {
        let why = if self.is_of_budgets {
            self.budget(name).map(|budget| budget.why.clone())
        } else {
            self.bucket(name).map(|bucket| bucket.why)
        };
        why.is_some_and(|why| why.cause() == Ok(Cause::Paused))
    }

    /// The jobs a second that leave all buckets, and those that are rejected.
    pub(super) fn pace_of_all(&self) -> [Option<f64>; 2] {
        [ALL, REJECTED].map(|name| self.paces.per_second(name, A_SECOND))
    }

    /// The age of the ranking.
    pub(super) fn age(&self) -> Option<Duration> {
        let Ranking::Of(top, at) = &self.ranking else { return None };
        let since = self.frozen.unwrap_or_else(Instant::now).saturating_duration_since(*at);
        Some(Duration::from_millis(top.age_ms) + since)
    }

    /// The outcome of a deed, while it is shown.
    pub(super) fn told(&self) -> Option<&Result<String, String>> {
        self.told.as_ref().filter(|(_, at)| at.elapsed() < TOLD_FOR).map(|(told, _)| told)
    }

    pub(super) fn forget_told(&mut self) {
        self.told = None;
    }
}

/// The reason why a bucket waits, as far as the walk tells it.
fn why_of(row: &Row) -> Why {
    let (cause, about) = match row.place {
        Place::Due if row.due_in_us > 0 => (Cause::Rate, ""),
        Place::Due => (Cause::Due, ""),
        Place::Share => (Cause::Share, ""),
        Place::Full => (Cause::Slots, ""),
        Place::Held => (Cause::Held, row.route.as_str()),
        Place::Paused => (Cause::Paused, row.bucket.as_str()),
        Place::Refused => (Cause::Refused, ""),
        Place::Idle => (Cause::Empty, ""),
    };
    Why::new(cause, about)
}
