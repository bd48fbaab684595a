//! The rows as cells: the columns that a terminal has room for, and their texts.

use std::time::Duration;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr as _;

use super::pace::shown;
use super::view::View;
use super::why;
use crate::cli::columns;
use crate::cli::screen::has_colors;
use crate::model::duration::{rough, show_per_period};
use crate::model::subject::Subject;
use crate::operate::pace::A_SECOND;
use crate::store::snapshots::{BucketSnapshot, BudgetSnapshot, Cause};
use crate::store::top::By;

/// The symbols of a cell that is filled from the left, by eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// The widths of a terminal: from `WIDE` on all columns are shown, from `USUAL` on most, from `NARROW` on a few, and
/// below that the name, the depth and why.
const WIDE: usize = 108;
const USUAL: usize = 76;
const NARROW: usize = 56;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Bar,
    Depth,
    Empty,
    Rejected,
    Late,
    Waiting,
    Now,
    Set,
    Slots,
    Quota,
    Why,
}

/// The text of a cell, and its colour.
struct Cell(String, Option<Color>);

impl Cell {
    fn plain(text: impl Into<String>) -> Self {
        Self(text.into(), None)
    }
}

impl Column {
    fn head(self, is_of_budgets: bool) -> &'static str {
        match self {
            Self::Name if is_of_budgets => "BUDGET",
            Self::Name => "BUCKET",
            Self::Bar if is_of_budgets => "USED",
            Self::Bar => "FULL",
            Self::Depth => "DEPTH",
            Self::Empty => "EMPTY IN",
            Self::Rejected => "REJECTED",
            Self::Late => "LATE",
            Self::Waiting => "WAITING",
            Self::Now => "NOW",
            Self::Set => "SET",
            Self::Slots => "SLOTS",
            Self::Quota => "QUOTA",
            Self::Why => "WHY",
        }
    }

    /// Whether the rows are ranked by this column.
    fn is_of(self, by: By) -> bool {
        match by {
            By::Empty => self == Self::Empty,
            By::Depth => self == Self::Depth,
            By::Rejected => self == Self::Rejected,
            By::Late => self == Self::Late,
            By::Budgets => self == Self::Waiting,
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Self::Name | Self::Bar | Self::Why)
    }
}

/// The columns that a terminal has room for, each with its width. One column of the terminal stands between two of
/// them.
fn columns_of(by: By, width: usize) -> Vec<(Column, usize)> {
    use Column::{Bar, Depth, Empty, Late, Name, Now, Quota, Rejected, Set, Slots, Waiting, Why};
    let figure = match by {
        By::Rejected => Rejected,
        By::Late => Late,
        _ => Empty,
    };
    let mut columns = match (by, width) {
        (By::Budgets, WIDE..) => {
            vec![(Name, 0), (Bar, 12), (Waiting, 7), (Now, 9), (Set, 9), (Slots, 9), (Quota, 9), (Why, 0)]
        }
        (By::Budgets, USUAL..) => vec![(Name, 0), (Bar, 6), (Waiting, 7), (Now, 7), (Set, 8), (Slots, 9), (Why, 0)],
        (By::Budgets, NARROW..) => vec![(Name, 0), (Waiting, 7), (Now, 7), (Set, 8), (Why, 0)],
        (By::Budgets, _) => vec![(Name, 0), (Waiting, 7), (Why, 0)],
        (_, WIDE..) => {
            vec![(Name, 0), (Bar, 12), (Depth, 9), (Empty, 8), (Rejected, 8), (Late, 7), (Now, 9), (Set, 9), (Why, 0)]
        }
        (_, USUAL..) => vec![(Name, 0), (Bar, 6), (Depth, 9), (figure, 8), (Now, 7), (Set, 8), (Why, 0)],
        (_, NARROW..) => vec![(Name, 0), (Depth, 9), (figure, 8), (Why, 0)],
        _ => vec![(Name, 0), (Depth, 5), (Why, 0)],
    };
    let fixed = columns.iter().map(|(_, width)| width).sum::<usize>() + columns.len() - 1;
    let rest = width.saturating_sub(fixed);
    let why = if width < NARROW { rest * 3 / 7 } else { (16 + rest.saturating_sub(36) / 2).min(rest / 2).min(44) };
    for (column, width) in &mut columns {
        match column {
            Name => *width = rest - why,
            Why => *width = why,
            _ => {}
        }
    }
    columns
}

/// The style of a colour, where colours are wanted.
pub(super) fn colored(color: Option<Color>) -> Style {
    match color {
        Some(color) if has_colors() => Style::new().fg(color),
        _ => Style::new(),
    }
}

/// A number, shortened to at most four characters below 1,000 million: `9999`, `12k`, `1.2M`.
pub(super) fn short(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{}k", n / 1_000),
        1_000_000..10_000_000 => format!("{}.{}M", n / 1_000_000, n / 100_000 % 10),
        _ => format!("{}M", n / 1_000_000),
    }
}

/// A bar that is filled from the left. A part above 0 is always seen, and only a part of 1 fills the bar.
fn bar(part: f64, width: usize) -> Cell {
    let all = width * 8;
    let mut filled = (part.clamp(0.0, 1.0) * all as f64).round() as usize;
    if part > 0.0 {
        filled = filled.max(1);
    }
    if part < 1.0 {
        filled = filled.min(all.saturating_sub(1));
    }
    let text = "█".repeat(filled / 8) + EIGHTHS[filled % 8];
    let color = match part {
        ..0.5 => Color::Green,
        ..0.9 => Color::Yellow,
        _ => Color::Red,
    };
    Cell(text, Some(color))
}

/// A text in exactly `width` columns: cut, or padded.
fn fit(text: &str, width: usize, to_the_right: bool) -> String {
    let text = columns::name(text, width);
    let fill = " ".repeat(width.saturating_sub(text.width()));
    if to_the_right { fill + &text } else { text + &fill }
}

impl View {
    /// The line of the columns' heads.
    pub(super) fn heads(&self, width: usize) -> Line<'static> {
        let mut spans = Vec::new();
        for (column, width) in columns_of(self.order(), width) {
            let head = fit(column.head(self.is_of_budgets()), width, column.is_number());
            let style = Style::new().add_modifier(Modifier::BOLD);
            let is_order = column.is_of(self.order());
            spans.push(Span::styled(head, if is_order { style.add_modifier(Modifier::UNDERLINED) } else { style }));
            spans.push(Span::raw(" "));
        }
        Line::from(spans)
    }

    /// The rows on the screen.
    pub(super) fn rows(&self, width: usize) -> Vec<Line<'static>> {
        let columns = columns_of(self.order(), width);
        let line = |name: &String| {
            let cells: Vec<Cell> = if self.is_of_budgets() {
                let budget = self.budget(name);
                columns.iter().map(|(column, width)| self.budget_cell(name, budget, *column, *width)).collect()
            } else {
                let bucket = self.bucket(name);
                columns.iter().map(|(column, width)| self.bucket_cell(name, bucket.as_ref(), *column, *width)).collect()
            };
            let mut spans: Vec<Span> = Vec::new();
            for ((column, width), Cell(text, color)) in columns.iter().zip(cells) {
                spans.push(Span::styled(fit(&text, *width, column.is_number()), colored(color)));
                spans.push(Span::raw(" "));
            }
            spans.pop();
            let line = Line::from(spans);
            if self.selected() == Some(name) { line.style(Style::new().add_modifier(Modifier::REVERSED)) } else { line }
        };
        self.shown().iter().map(line).collect()
    }

    fn pace(&self, name: &str, rate: (u64, u64)) -> Cell {
        match self.paces.per_second(name, rate) {
            Some(pace) => Cell(shown(pace, rate.1), (pace > 0.0).then_some(Color::Green)),
            None => Cell::plain("…"),
        }
    }

    fn bucket_cell(&self, name: &str, bucket: Option<&BucketSnapshot>, column: Column, width: usize) -> Cell {
        let Some(bucket) = bucket else {
            return Cell::plain(if column == Column::Name { name } else { "" });
        };
        let row = &bucket.row;
        let rate = (row.count, row.period_us);
        let ms = |ms| rough(Duration::from_millis(ms));
        Cell::plain(match column {
            Column::Name => name.to_owned(),
            Column::Bar => return bar(row.depth as f64 / row.capacity.max(1) as f64, width),
            Column::Depth if width < 9 => short(row.depth),
            Column::Depth => format!("{}/{}", short(row.depth), short(row.capacity)),
            Column::Empty if row.depth == 0 => "-".to_owned(),
            Column::Empty => match self.paces.per_second(name, rate) {
                // Where others take a part of a budget or of slots, only the measured pace tells how fast the bucket
                // empties.
                Some(pace) if pace > 0.0 && matches!(bucket.why.cause(), Ok(Cause::Share | Cause::Slots)) => {
                    rough(Duration::try_from_secs_f64(row.depth as f64 / pace).unwrap_or(Duration::MAX))
                }
                _ => ms(row.empty_in_ms),
            },
            Column::Rejected if row.rejected == 0 => "-".to_owned(),
            Column::Rejected => return Cell(short(row.rejected), Some(Color::Red)),
            Column::Late if row.late_us < 1_000 => "-".to_owned(),
            Column::Late => ms(row.late_us / 1_000),
            Column::Now => return self.pace(name, rate),
            Column::Set => show_per_period(row.count, Duration::from_micros(row.period_us)),
            Column::Why => {
                let (text, color) = why::of_bucket(bucket, self.has_daemon());
                return Cell(text, color);
            }
            Column::Waiting | Column::Slots | Column::Quota => String::new(),
        })
    }

    fn budget_cell(&self, name: &str, budget: Option<&BudgetSnapshot>, column: Column, width: usize) -> Cell {
        let Some(budget) = budget else {
            return Cell::plain(if column == Column::Name { name } else { "" });
        };
        let id = Subject { is_budget: true, pattern: name }.stored();
        let of =
            |part: Option<(u64, u64)>| part.map_or("-".to_owned(), |(n, all)| format!("{}/{}", short(n), short(all)));
        Cell::plain(match column {
            Column::Name => name.to_owned(),
            Column::Bar => match budget.used(self.paces.per_second(&id, budget.rate.unwrap_or(A_SECOND))) {
                Some(part) => return bar(part, width),
                None => String::new(),
            },
            Column::Waiting => short(budget.waiting),
            Column::Now => return self.pace(&id, budget.rate.unwrap_or(A_SECOND)),
            Column::Set => budget.rate.map_or("none".to_owned(), |(count, period_us)| {
                show_per_period(count, Duration::from_micros(period_us))
            }),
            Column::Slots => of(budget.slots.map(|slots| (slots.taken, slots.of))),
            Column::Quota => of(budget.quota),
            Column::Why => {
                let (text, color) = why::of_budget(budget, self.has_daemon());
                return Cell(text, color);
            }
            Column::Depth | Column::Empty | Column::Rejected | Column::Late => String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_fill_every_width_and_the_important_ones_are_never_left_out() {
        for by in [By::Empty, By::Depth, By::Rejected, By::Late, By::Budgets] {
            for width in 20..300 {
                let columns = columns_of(by, width);
                let all = columns.iter().map(|(_, width)| width).sum::<usize>() + columns.len() - 1;
                assert_eq!(all, width, "{by} {columns:?}");
                let has = |column| columns.iter().any(|(other, width)| *other == column && *width > 2);
                let depth = if by == By::Budgets { Column::Waiting } else { Column::Depth };
                assert!(has(Column::Name) && has(depth) && has(Column::Why), "{by} {width} {columns:?}");
                assert!(width < NARROW || columns.iter().any(|(column, _)| column.is_of(by)), "{by} {width}");
            }
        }
        let at_80 = columns_of(By::Empty, 80);
        assert!(at_80.contains(&(Column::Name, 20)) && at_80.contains(&(Column::Why, 16)), "{at_80:?}");
    }

    #[test]
    fn a_bar_shows_the_least_and_is_whole_only_when_it_is_full() {
        let bars = [0.0, 0.001, 0.5, 0.999, 1.0, 3.0].map(|part| bar(part, 2).0);
        assert_eq!(bars, ["", "▏", "█", "█▉", "██", "██"]);
    }

    #[test]
    fn numbers_stay_short() {
        let shown = [0, 9_999, 10_000, 999_999, 1_000_000, 9_999_999, 10_000_000].map(short);
        assert_eq!(shown, ["0", "9999", "10k", "999k", "1.0M", "9.9M", "10M"]);
    }

    #[test]
    fn a_cell_takes_its_columns_whatever_stands_in_it() {
        for text in ["", "a", "短信短信", "sms:\u{202e}gro", "x\u{1b}[2Jy", "e\u{301}e\u{301}", "very long indeed"]
        {
            for width in 1..20 {
                assert_eq!(fit(text, width, true).width(), width, "{text:?}");
                assert_eq!(fit(text, width, false).width(), width, "{text:?}");
            }
        }
    }
}
