//! The lines above the table: the title, with the order and the age of the ranking, and the totals.

use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr as _;

use super::table::{colored, short};
use super::view::View;
use crate::cli::columns;
use crate::model::counted::counted;
use crate::model::duration::rough;
use crate::store::top::By;

/// The gap between two figures.
const GAP: &str = "  ";

/// Spans side by side; those that do not fit are left out.
fn side_by_side(spans: Vec<Span<'static>>, width: usize) -> Line<'static> {
    let (mut line, mut used) = (Vec::new(), 0);
    for span in spans {
        let gap = if line.is_empty() { 0 } else { GAP.len() };
        if used + gap + span.width() > width {
            continue; // a shorter one may fit
        }
        if gap > 0 {
            line.push(Span::raw(GAP));
        }
        used += gap + span.width();
        line.push(span);
    }
    Line::from(line)
}

fn pace(per_second: Option<f64>) -> String {
    match per_second {
        None => "…".to_owned(),
        Some(n) if n == 0.0 || n >= 99.95 => format!("{n:.0}/s"),
        Some(n) => format!("{n:.1}/s"),
    }
}

impl View {
    /// The title: the order of the rows, the filter, the place of the selected row, and the age of the ranking.
    pub(super) fn title(&self, width: usize) -> Line<'static> {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let by = match self.order() {
            By::Empty if width < 60 => "by empty",
            By::Empty => "by time until empty",
            By::Depth => "by depth",
            By::Rejected => "by rejected",
            By::Late => "by lateness",
            By::Budgets => "budgets",
        };
        let mut left = vec![Span::styled("dripd top", bold), Span::raw(by)];
        if let Some(frozen) = self.frozen {
            let frozen = format!("FROZEN {}", rough(frozen.elapsed()));
            left.insert(1, Span::styled(frozen, colored(Some(Color::Cyan)).add_modifier(Modifier::BOLD)));
        }
        if let Some(only) = &self.only {
            left.push(Span::raw(format!("match {}", columns::name(&only.text, 24))));
        }
        let age = self.age().map(|age| format!("ranked {} ago", rough(age)));
        let place = match self.place() {
            (_, 0) => None,
            (at, all) => Some(format!("{at} of {all}")),
        };
        let both = [place, age.clone()].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let age = age.unwrap_or_default();
        // The age comes before everything but the name of the command.
        let room = width.saturating_sub(GAP.len());
        let reserved = if age.width() + 9 <= room { age.width() + GAP.len() } else { 0 };
        let left = side_by_side(left, width - reserved);
        let right = if left.width() + both.width() <= room { both } else { age };
        let gap = width.saturating_sub(left.width() + right.width());
        let mut spans = left.spans;
        if reserved == 0 {
            return Line::from(spans);
        }
        spans.extend([Span::raw(" ".repeat(gap)), Span::raw(right)]);
        Line::from(spans)
    }

    /// The totals, the most important first; or the message that Redis does not answer.
    pub(super) fn totals(&self, width: usize) -> Line<'static> {
        let alarm = |text: String| Span::styled(text, colored(Some(Color::Red)).add_modifier(Modifier::BOLD));
        if let Some((since, _)) = &self.lost {
            let text = format!("REDIS DOES NOT ANSWER for {}; shown is what was known before", rough(since.elapsed()));
            let short = "REDIS DOES NOT ANSWER";
            return Line::from(alarm(if text.width() <= width { text } else { short.to_owned() }));
        }
        let Some(figures) = &self.figures else { return Line::from("asking Redis …") };
        let [out, rejected] = self.pace_of_all();
        let plain = |text: String| Span::raw(text);
        let mut parts = vec![plain(format!("out {}", pace(out)))];
        parts.push(match figures.count("daemons") {
            0 => alarm("NO DAEMON RUNS".to_owned()),
            n => plain(counted(n, "daemon", "daemons")),
        });
        let behind =
            self.routes.iter().filter(|route| route.held > 0 && route.is_behind()).max_by_key(|route| route.age_us);
        if let Some(route) = behind {
            let age = rough(Duration::from_micros(route.age_us));
            parts.push(alarm(format!("WORKERS OF {} ARE {age} BEHIND", route.route)));
        }
        match &figures.away[..] {
            [] => {}
            [one] => parts.push(alarm(format!("PARTITION {} AWAY", one.partition))),
            several => parts.push(alarm(format!("{} PARTITIONS AWAY", several.len()))),
        }
        parts.push(plain(format!("{} waiting", short(figures.buckets_waiting()))));
        let rejects = rejected.is_some_and(|n| n > 0.0);
        let rejected = format!("rejected {}", pace(rejected));
        parts.push(if rejects { Span::styled(rejected, colored(Some(Color::Red))) } else { plain(rejected) });
        parts.push(plain(format!("{} dead", short(figures.count("dead")))));
        let more = ["refused", "held", "paused"].map(|place| (place, place));
        for (place, what) in more.into_iter().chain([("retrying", "retrying or delayed"), ("slots", "without a slot")])
        {
            let n = figures.waiting.get(place).copied().unwrap_or(0);
            parts.extend((n > 0).then(|| plain(format!("{} {what}", short(n)))));
        }
        let delayed = figures.count("delayed");
        parts.extend((delayed > 0).then(|| plain(format!("{} jobs delayed", short(delayed)))));
        side_by_side(parts, width)
    }
}
