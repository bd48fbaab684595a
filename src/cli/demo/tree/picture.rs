//! The picture on the screen: a chart of what leaves for the provider and for each account, with what waits there. 80 × 24 well,
//! 40 × 12 in short.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::seen::{Seen, wait_ms};
use super::{ACCOUNTS, FLOOD, FLOODED, LASTS, PROVIDER_RATE, RETRY_AFTER};
use crate::cli::charts::{Bars, Column};
use crate::cli::demo::bucket::Bucket;
use crate::cli::demo::frame::{HIGHEST_CHART, OUT, WAITING, draw_title, is_whole};

const ALL: Color = Color::Cyan;
const EVENT: Color = Color::Red;

/// What one step of a chart stands for.
const STEP_US: u64 = 500_000;

/// The charts reach so high, in jobs a second: what the provider takes, and a little room above it.
const HIGHEST: f64 = 70.0;

/// What is drawn, and for which moment.
struct Picture<'a> {
    seen: &'a Seen,
    shown_us: u64,
    /// Whether there is room for everything.
    whole: bool,
}

pub(super) fn draw(frame: &mut Frame, seen: &Seen) {
    let area = frame.area();
    Picture { seen, shown_us: seen.shown_us(), whole: is_whole(area) }.draw(frame, area);
}

impl Picture<'_> {
    fn draw(&self, frame: &mut Frame, area: Rect) {
        let area = if self.whole { Rect { x: area.x + 1, width: area.width - 2, ..area } } else { area };
        let (spare, words) = (u16::from(self.whole), if self.whole { 3 } else { 2 });
        let nodes = ACCOUNTS.len() as u16 + 1;
        let chart =
            (area.height.saturating_sub(1 + 2 * spare + words) / nodes).saturating_sub(1).clamp(1, HIGHEST_CHART);
        let rows = [1, spare].map(Constraint::Length).into_iter().chain([Constraint::Length(chart + 1); 4]);
        let rows: [Rect; 8] = Layout::vertical(rows.chain([spare, words].map(Constraint::Length))).areas(area);
        self.draw_title(frame, rows[0]);
        self.draw_node(frame, rows[2], self.provider(), ALL, &|from, to| self.seen.left_between(from, to));
        for (n, (account, row)) in self.seen.accounts.iter().zip(&rows[3..6]).enumerate() {
            self.draw_node(frame, *row, self.account(n, account), OUT, &|from, to| {
                account.taken_between(from, to).len()
            });
        }
        frame.render_widget(Paragraph::new(self.words()).wrap(Wrap { trim: true }), rows[7]);
    }

    fn draw_title(&self, frame: &mut Frame, area: Rect) {
        let title = if self.whole { "dripd demo tree: three accounts share a provider" } else { "dripd demo tree" };
        let seconds = if self.seen.has_begun { (self.shown_us - self.seen.start_us) as f64 / 1e6 } else { 0.0 };
        draw_title(frame, area, title, seconds, LASTS.as_secs_f64());
    }

    /// Jobs that left in the last second.
    fn a_second(&self, count: impl Fn(u64, u64) -> usize) -> Span<'static> {
        format!("{}/s out", count(self.shown_us - 1_000_000, self.shown_us)).bold()
    }

    fn provider(&self) -> Line<'static> {
        let waiting: u64 = self.seen.accounts.iter().map(|account| account.depth).sum();
        let out = self.a_second(|from, to| self.seen.left_between(from, to)).fg(ALL);
        let mut words = vec!["provider  ".bold(), out, format!(", {waiting} wait").fg(WAITING)];
        if self.whole {
            words.push(format!("; it takes {PROVIDER_RATE}").into());
        }
        Line::from(words)
    }

    fn account(&self, n: usize, account: &Bucket) -> Line<'static> {
        let out = self.a_second(|from, to| account.taken_between(from, to).len()).fg(OUT);
        let name = format!("{:<10}", account.name.as_str()).bold();
        let mut words = vec![name, out, format!(", {} wait", account.depth).fg(WAITING)];
        if self.whole {
            words.push(format!("; {}/s are pushed", ACCOUNTS[n].1).into());
            if let Some(ms) = wait_ms(account, self.shown_us) {
                words.push(format!(", they wait up to {:.2} s", ms / 1e3).into());
            }
        }
        Line::from(words)
    }

    /// A line about a node, and the chart of what left it.
    fn draw_node(
        &self,
        frame: &mut Frame,
        area: Rect,
        head: Line<'static>,
        color: Color,
        count: &dyn Fn(u64, u64) -> usize,
    ) {
        let [line, chart] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        frame.render_widget(head, line);
        let steps = LASTS.as_micros() as u64 / STEP_US;
        let wide = (u64::from(chart.width) / steps).max(1);
        let ended = self.shown_us.saturating_sub(self.seen.start_us) / STEP_US;
        let columns: Vec<Column> = (0..ended)
            .flat_map(|step| {
                let from = self.seen.start_us + step * STEP_US;
                let rate = count(from, from + STEP_US) as f64 * 1e6 / STEP_US as f64;
                let column = if rate > 0.0 { Column::Bar(rate, 0.0) } else { Column::Nothing };
                std::iter::repeat_n(column, wide as usize)
            })
            .collect();
        // It grows from the left, and only moves on where there is no room.
        let used = (columns.len() as u16).min(chart.width);
        let chart = Rect { width: used, ..chart };
        frame.render_widget(Bars { columns: &columns, most: HIGHEST, lower: color, upper: EVENT, marked: None }, chart);
    }

    /// What happens now, in words.
    fn words(&self) -> Vec<Line<'static>> {
        let line = |first: &str, second: &str| {
            let mut lines = vec![Line::from(first.to_owned())];
            lines.extend(self.whole.then(|| Line::from(second.to_owned()).dim()));
            lines
        };
        if !self.seen.has_begun {
            return line("Starting a daemon and a Redis, which end with the demo.", "Ctrl-C ends it.");
        }
        let flooded = ACCOUNTS[FLOODED].0;
        match (self.seen.closed_us(), self.seen.flood_us) {
            (Some((_, until)), _) if self.shown_us < until => {
                let after = RETRY_AFTER.as_secs();
                let first = format!("The provider answered 429, Retry-After: {after}. Nobody asks it before that.");
                let mut lines = line(&first, "One answer, one pause, for every worker and every account under it.");
                lines[0] = lines[0].clone().fg(EVENT);
                lines
            }
            (Some(_), _) => line(
                "The pause is over: it goes on at the same pace, without a burst.",
                "The job that was refused went out first, and its attempt did not count.",
            ),
            (None, Some(_)) => line(
                &format!("{FLOOD} jobs at once for {flooded}: they wait their turn, the others' turns do not change."),
                "A flood costs nobody but the one who pushed it.",
            ),
            (None, None) => line(
                "Together they want more than the provider takes, so it is shared fairly.",
                "Who asks for less than its share gets it at once; the others get equal parts of the rest.",
            ),
        }
    }
}
