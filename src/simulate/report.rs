//! The figures of a simulation, for people and for programs.

use std::time::Duration;

use serde::{Serialize, Serializer};
use unicode_width::UnicodeWidthStr as _;

use super::measure::{Counts, Group, Slot};
use super::run::{Outcome, Plan};
use crate::model::duration::rough;
use crate::model::escape::escaped;

/// The narrowest terminal, and in it the width of names, in columns.
const WIDTH: usize = 80;
const NAME: usize = 20;

/// How long jobs waited, from the push until a worker took them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Half of them no longer than this.
    pub p50: Duration,
    /// 95 of 100 no longer.
    pub p95: Duration,
    /// 99 of 100 no longer.
    pub p99: Duration,
    /// None longer.
    pub max: Duration,
}

/// Written in milliseconds.
impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let all = [("p50", self.p50), ("p95", self.p95), ("p99", self.p99), ("max", self.max)];
        serializer.collect_map(all.map(|(name, time)| (name, ms(time))))
    }
}

/// A reason that bound waiting buckets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// As `dripd explain --json` names it, and the budget, if any; `workers` where none is free.
    pub by: String,
    /// The share of the waiting buckets that were asked, 0 to 1.
    pub share: f64,
}

/// The figures of a group of buckets, or of a budget.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// The pattern, or the name of the budget.
    #[serde(rename = "match")]
    pub name: String,
    /// Whether it is a budget.
    #[serde(rename = "budget")]
    pub is_budget: bool,
    /// How many buckets of it had traffic.
    pub buckets: u64,
    /// How many jobs came and went.
    #[serde(flatten)]
    pub counts: Counts,
    /// How long they waited; those that wait at the end count with what they waited so far. None: none was accepted.
    #[serde(rename = "wait_ms")]
    pub wait: Option<Wait>,
    /// How many times workers took a job a second, each try counted.
    pub per_second: f64,
    /// How much of what its rates let through was used, of the one that was used most, 0 to 1, or in a short run
    /// a little more by `catch_up`; none: there is no rate.
    #[serde(rename = "use")]
    pub used: Option<f64>,
    /// Jain's index over its buckets of the share of their accepted jobs that workers took; none: they took none.
    pub fairness: Option<f64>,
    /// What bound, the most frequent reason first.
    pub bound: Vec<Bound>,
    /// Over time, for a plot.
    #[serde(skip)]
    pub slots: Vec<Slot>,
}

/// What happened under one configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The configuration.
    pub config: String,
    /// How many jobs producers sent, in all.
    pub pushed: u64,
    /// How many tries failed.
    pub failed: u64,
    /// How many were refused by the other side, because they came too fast.
    pub throttled: u64,
    /// The groups of buckets, then the budgets.
    pub groups: Vec<Figures>,
    /// What the traffic says and was not simulated, in words.
    #[serde(skip)]
    pub left_out: Option<String>,
}

fn figures(group: Group, lasts: Duration) -> Figures {
    let max = Duration::from_micros(group.longest_us);
    let at = |quantile| Duration::from_micros(group.waits.value_at_quantile(quantile)).min(max);
    let wait = (!group.waits.is_empty()).then(|| Wait { p50: at(0.5), p95: at(0.95), p99: at(0.99), max });
    let asked: u64 = group.bound.values().sum();
    let mut bound: Vec<Bound> =
        group.bound.iter().map(|(by, n)| Bound { by: by.clone(), share: *n as f64 / asked as f64 }).collect();
    bound.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.by.cmp(&b.by)));
    let seconds = lasts.as_secs_f64();
    let (fairness, used) = (group.fairness(), group.used());
    Figures {
        buckets: group.buckets,
        counts: group.counts,
        wait,
        per_second: group.counts.tries as f64 / seconds,
        used,
        fairness,
        bound,
        slots: group.slots,
        name: group.name,
        is_budget: group.is_budget,
    }
}

/// A number with points between its thousands, as `1,440,000`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let with_commas = |(at, digit): (usize, char)| {
        let comma = at > 0 && (digits.len() - at).is_multiple_of(3);
        comma.then_some(',').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(with_commas).collect()
}

/// The name of a group, as people read it.
pub(super) fn name_of(figures: &Figures) -> String {
    let name = escaped(figures.name.as_bytes());
    if figures.is_budget { format!("budget {name}") } else { name }
}

/// The first column: where it is too long for it, it stands in a line of its own.
fn first_column(name: &str) -> String {
    let columns = name.width();
    if columns < NAME {
        format!("{name}{}", " ".repeat(NAME - columns))
    } else {
        format!("{name}\n{}", " ".repeat(NAME))
    }
}

impl Report {
    /// The figures of a run.
    pub fn of(config: String, outcome: Outcome, plan: &Plan) -> Self {
        let Outcome { measures, pushed, failed, throttled, left_out } = outcome;
        let groups = measures.groups.into_iter().map(|group| figures(group, plan.lasts)).collect();
        Self { config, pushed, failed, throttled, groups, left_out }
    }

    /// The figures of a group.
    pub fn of_group(&self, name: &str, is_budget: bool) -> Option<&Figures> {
        self.groups.iter().find(|figures| figures.is_budget == is_budget && figures.name == name)
    }

    /// The names of all groups, for a message.
    pub fn names(&self) -> String {
        self.groups.iter().map(name_of).collect::<Vec<_>>().join(", ")
    }

    /// The figures as a table of 80 columns, beside those of another run with the same traffic.
    pub fn table(&self, against: Option<&Self>) -> String {
        let mut out = String::new();
        out += &format!(
            "{:NAME$}{:>12}{:>11}{:>8}{:>7}{:>7}{:>7}{:>8}\n",
            "", "pushed", "rejected", "late", "p50", "p95", "p99", "longest"
        );
        self.rows(against, &mut out, |f| {
            let wait =
                |of: fn(&Wait) -> Duration| f.wait.as_ref().map_or_else(|| "-".to_owned(), |wait| rough(of(wait)));
            format!(
                "{:>12}{:>11}{:>8}{:>7}{:>7}{:>7}{:>8}",
                grouped(f.counts.pushed),
                grouped(f.counts.rejected + f.counts.pushed_out),
                grouped(f.counts.late),
                wait(|wait| wait.p50),
                wait(|wait| wait.p95),
                wait(|wait| wait.p99),
                wait(|wait| wait.max)
            )
        });
        // Where jobs died somebody must see it, and elsewhere nobody needs the place that it takes.
        let dead = |report: &Self| report.groups.iter().any(|figures| figures.counts.dead > 0);
        let shows_dead = dead(self) || against.is_some_and(dead);
        let dead = |words: String| if shows_dead { format!("{words:>8}") } else { String::new() };
        let head = dead("dead".to_owned());
        out += &format!("\n{:NAME$}{:>9}{:>6}{:>5}{:>9}{head}  {}\n", "", "out", "use", "fair", "waiting", "bound by");
        self.rows(against, &mut out, |f| {
            let used = f.used.map_or_else(|| "-".to_owned(), |used| format!("{:.0}%", (100.0 * used).min(9_999.0)));
            let mut bound: Vec<String> = f
                .bound
                .iter()
                .filter(|bound| bound.share >= 0.005) // less would be shown as 0%
                .take(2)
                .map(|bound| format!("{} {:.0}%", escaped(bound.by.as_bytes()), 100.0 * bound.share))
                .collect();
            if bound.is_empty() {
                bound.push("-".to_owned());
            }
            let line = format!(
                "{:>9}{used:>6}{:>5}{:>9}{}  {}",
                format!("{:.1}/s", f.per_second),
                f.fairness.map_or_else(|| "-".to_owned(), |index| format!("{index:.2}")),
                grouped(f.counts.waiting + f.counts.retrying),
                dead(grouped(f.counts.dead)),
                bound.join(", ")
            );
            line.chars().take(WIDTH - NAME).collect()
        });
        out
    }

    fn rows(&self, against: Option<&Self>, out: &mut String, row: impl Fn(&Figures) -> String) {
        for figures in &self.groups {
            *out += &format!("{}{}\n", first_column(&name_of(figures)), row(figures).trim_end());
            if let Some(other) = against {
                let before = other.of_group(&figures.name, figures.is_budget);
                let row = before.map_or_else(|| "           not there".to_owned(), &row);
                *out += &format!("{}{}\n", first_column("  against"), row.trim_end());
            }
        }
    }
}
