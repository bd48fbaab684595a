//! The picture on the screen: a row for each bucket with a chart of what comes out, and, where it has figures, left of that what is
//! pushed and what waits. It uses what there is: 80 × 24 well, 40 × 12 in short, more for larger charts that reach further back.

use std::iter::{once, repeat_n};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::bucket::Bucket;
use super::plan::Event;
use super::seen::Seen;
use crate::cli::charts::{Bars, Column, Vessel};

pub(super) const PUSHED: Color = Color::Cyan;
pub(super) const WAITING: Color = Color::Blue;
pub(super) const OUT: Color = Color::Green;
/// Of what is rejected, killed or refused.
pub(super) const BAD: Color = Color::Red;

/// A picture of at least so many columns and rows has room for explanations.
const WHOLE: (u16, u16) = (76, 18);

const HIGHEST_CHART: u16 = 10;
const VESSEL: u16 = 14;
const BETWEEN: u16 = 3;

/// What a column of a chart stands for.
const COLUMN_US: u64 = 250_000;

/// A chart reaches so many times as high as the rate: there is room for a pace that is too fast.
const HEADROOM: f64 = 1.6;

/// What is shown of one bucket.
pub(super) struct Row<'a> {
    pub(super) bucket: &'a Bucket,
    /// In short: its cell in a table of plain lines.
    pub(super) cell: String,
    /// Where there is room.
    pub(super) head: Line<'static>,
    /// What stands below what is pushed, what waits, and what comes out; none: only the last one is shown.
    pub(super) figures: Option<[Line<'static>; 3]>,
}

/// What a demo shows of what it saw.
pub(super) struct Look {
    /// Its rows at a moment.
    pub(super) rows: for<'a> fn(&'a Seen, u64) -> Vec<Row<'a>>,
    /// Put what was seen into a line or a caption.
    pub(super) fill: fn(&Seen, &str) -> String,
}

/// What is drawn, and for which moment.
struct Picture<'a> {
    seen: &'a Seen,
    look: &'a Look,
    shown_us: u64,
    /// Whether there is room for everything.
    whole: bool,
}

pub(super) fn draw(frame: &mut Frame, seen: &Seen, look: &Look) {
    let area = frame.area();
    let whole = area.width >= WHOLE.0 && area.height >= WHOLE.1;
    let area = if whole { Rect { x: area.x + 1, width: area.width - 2, ..area } } else { area };
    Picture { seen, look, shown_us: seen.shown_us(), whole }.draw(frame, area);
}

impl Picture<'_> {
    fn draw(&self, frame: &mut Frame, area: Rect) {
        let rows = (self.look.rows)(self.seen, self.shown_us);
        let has_figures = rows.iter().any(|row| row.figures.is_some());
        let where_whole = |lines: usize| if self.whole { lines as u16 } else { 0 };
        let (gap, daemons, words) = (where_whole(1), where_whole(self.seen.plan.daemons), 2);
        let figures = where_whole(has_figures.into()); // one row below each chart, and one above all
        let for_rows = area.height.saturating_sub(1 + gap + figures + gap + daemons + gap + words) / rows.len() as u16;
        let row = for_rows.saturating_sub(1 + figures).clamp(1, HIGHEST_CHART) + 1 + figures;
        let lengths = [1, gap, figures].into_iter().chain(repeat_n(row, rows.len())).chain([gap, daemons, gap, words]);
        let areas = Layout::vertical(lengths.map(Constraint::Length)).split(area);

        self.draw_title(frame, areas[0]);
        self.draw_heads(frame, areas[2]);
        for (row, area) in rows.iter().zip(&areas[3..]) {
            self.draw_row(frame, *area, row);
        }
        frame.render_widget(Paragraph::new(self.daemons()), areas[rows.len() + 4]);
        frame.render_widget(Paragraph::new(self.words()).wrap(Wrap { trim: true }), areas[rows.len() + 6]);
    }

    /// The title, and how much of the demo is over, where there is room for it.
    fn draw_title(&self, frame: &mut Frame, area: Rect) {
        let title = self.seen.plan.title;
        let title = if self.whole { title } else { title.split(':').next().unwrap_or(title) };
        let (shown_ms, lasts_ms) = (self.seen.shown_ms(), self.seen.plan.lasts_ms);
        let time = format!("{:.1} of {:.0} s", shown_ms as f64 / 1e3, lasts_ms as f64 / 1e3);
        frame.render_widget(Line::from(title).bold(), area);
        if area.width as usize > title.len() + time.len() {
            frame.render_widget(Line::from(time).right_aligned(), area);
        }
    }

    /// What the parts of a row are.
    fn draw_heads(&self, frame: &mut Frame, area: Rect) {
        let [pushed, waiting, out] = self.sides(area);
        let back = u64::from(pushed.width) * COLUMN_US / 1_000_000;
        frame.render_widget(Line::from(format!("jobs pushed, last {back} s")).dim(), pushed);
        frame.render_widget(Line::from("in the bucket").dim().centered(), waiting);
        frame.render_widget(Line::from(format!("jobs out, last {back} s")).dim(), out);
    }

    fn draw_row(&self, frame: &mut Frame, area: Rect, row: &Row) {
        let below = u16::from(self.whole && row.figures.is_some());
        let parts = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(below)];
        let [head, charts, figures] = Layout::vertical(parts).areas(area);
        let name = Span::from(format!("{:<10}", row.bucket.name.as_str())).bold();
        let words = if self.whole { row.head.clone() } else { Line::from(row.cell.clone()).fg(OUT) };
        if below > 0 {
            frame.render_widget(Line::from("─".repeat(head.width.into())).dim(), head);
        }
        frame.render_widget(once(name).chain(words).collect::<Line>(), head);
        let Some(lines) = &row.figures else { return self.draw_out(frame, charts, row) };
        let [pushed, waiting, out] = self.sides(charts);
        self.draw_pushed(frame, pushed, row.bucket);
        let part = row.bucket.depth as f64 / row.bucket.capacity as f64;
        frame.render_widget(Vessel { part, color: WAITING }, waiting);
        if self.whole {
            for x in [pushed.right(), waiting.right()] {
                let area = Rect { x, y: charts.y + charts.height / 2, width: BETWEEN, height: 1 };
                frame.render_widget(Line::from("→").dim().centered(), area);
            }
        }
        self.draw_out(frame, out, row);
        for (line, area) in lines.iter().zip(self.sides(figures)) {
            frame.render_widget(line, area);
        }
    }

    /// The three parts of a row: pushed, in the bucket, out. In little room the second one is only a gap.
    fn sides(&self, area: Rect) -> [Rect; 3] {
        let (between, vessel) = if self.whole { (BETWEEN, VESSEL) } else { (0, 1) };
        let gap = Constraint::Length(between);
        let parts = [Constraint::Fill(1), gap, Constraint::Length(vessel), gap, Constraint::Fill(1)];
        let [pushed, _, vessel, _, out] = Layout::horizontal(parts).areas(area);
        [pushed, vessel, out]
    }

    /// Where the columns of a chart so wide begin and end, the last one with the moment that is shown. The first job of the slowest bucket
    /// is in the middle of one: each of its jobs is a mark, and none may come so close to the edge of a column that it stands now in one,
    /// now in the other.
    fn columns(&self, width: u16) -> impl Iterator<Item = (u64, u64)> + use<> {
        let slowest = self.seen.buckets.iter().max_by_key(|bucket| bucket.interval_us());
        let first_job = slowest.and_then(|bucket| bucket.taken.first());
        let first = first_job.map_or(self.seen.start_us, |job| job.at_us - COLUMN_US / 2);
        let last = self.shown_us.saturating_sub(first) / COLUMN_US;
        (0..u64::from(width)).rev().filter_map(move |back| {
            let from = first + last.checked_sub(back)? * COLUMN_US;
            Some((from, from + COLUMN_US))
        })
    }

    fn draw_pushed(&self, frame: &mut Frame, area: Rect, bucket: &Bucket) {
        let column = |(from, to)| {
            let pushes = bucket.pushes.iter().filter(|push| (from..to).contains(&push.at_us));
            let (low, high) = pushes.fold((0, 0), |(low, high), push| (low + push.accepted, high + push.rejected));
            if low + high == 0 { Column::Nothing } else { Column::Bar(low as f64, high as f64) }
        };
        let columns: Vec<_> = self.columns(area.width).map(column).collect();
        let most = bucket.pushes.iter().map(|push| push.accepted + push.rejected).max().unwrap_or(1) as f64;
        frame.render_widget(Bars { columns: &columns, most, lower: PUSHED, upper: BAD, marked: None }, area);
    }

    /// The rate at which jobs left; where they come one at a time, each is a mark.
    fn draw_out(&self, frame: &mut Frame, area: Rect, row: &Row) {
        let is_apart = row.bucket.interval_us() >= 2 * COLUMN_US;
        let column = |(from, to)| match row.bucket.rate_at(self.shown_us.min(to)) {
            _ if is_apart && row.bucket.taken_between(from - 1, to - 1).is_empty() => Column::Nothing,
            _ if is_apart => Column::Mark(row.bucket.rate.per_second()),
            Some(rate) => Column::Bar(rate, 0.0),
            None => Column::Nothing,
        };
        let columns: Vec<_> = self.columns(area.width).map(column).collect();
        let marked = self.seen.when(Event::Kill).and_then(|at_us| {
            let n = self.columns(area.width).position(|(from, to)| (from..to).contains(&at_us))?;
            Some(columns.len() - 1 - n)
        });
        let most = self.seen.budget.as_ref().unwrap_or(row.bucket).rate.per_second() * HEADROOM;
        frame.render_widget(Bars { columns: &columns, most, lower: OUT, upper: BAD, marked }, area);
    }

    /// A line for each daemon.
    fn daemons(&self) -> Vec<Line<'static>> {
        let daemon = |(number, process)| {
            let what = match self.seen.when(Event::Kill) {
                Some(at_us) if number == 1 => {
                    let seconds = (at_us - self.seen.start_us) as f64 / 1e6;
                    format!("process {process}: killed with kill -9 at {seconds:.1} s").fg(BAD)
                }
                Some(_) => format!("process {process}: runs on").fg(OUT),
                None => format!("process {process}: runs").fg(OUT),
            };
            Line::from(vec![format!("daemon {number}  ").bold(), what])
        };
        (1..).zip(&self.seen.processes).map(daemon).collect()
    }

    /// What happens now, in words: a sentence, and one more where there is room.
    fn words(&self) -> Vec<Line<'static>> {
        let (plan, shown_ms) = (self.seen.plan, self.seen.shown_ms());
        let caption = plan.captions.iter().rfind(|(from, ..)| *from <= shown_ms && !self.seen.processes.is_empty());
        let (first, second) = caption.map_or((plan.starting, "Ctrl-C ends it."), |(_, first, second)| (first, second));
        let first = Line::from((self.look.fill)(self.seen, first));
        if self.whole { vec![first, Line::from(second).dim()] } else { vec![first] }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::bucket::now_us;
    use super::super::bucket::tests::took;
    use super::super::{Script, drip, tree};
    use super::*;

    /// Ten seconds into a demo, after all its events.
    fn seen(script: &'static Script) -> Seen {
        let (mut seen, now) = (Seen::new(&script.plan), now_us());
        (seen.processes, seen.start_us) = (vec![11, 12], now - 10_200_000);
        for bucket in seen.buckets.iter_mut().chain(&mut seen.budget) {
            let interval = bucket.interval_us();
            bucket.note_push(seen.start_us, 10_000_000 / interval + 9, 1);
            bucket.taken = (0..10_000_000 / interval).map(|n| took(n, seen.start_us + n * interval)).collect();
            (bucket.depth, bucket.depth_at_kill) = (bucket.capacity / 2, bucket.capacity);
        }
        seen.came_us = vec![now - 3_000_000; script.plan.events.len()];
        seen
    }

    fn drawn(script: &Script, seen: &Seen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it cannot fail");
        terminal.draw(|frame| draw(frame, seen, &script.look)).expect("it cannot fail");
        terminal.backend().to_string()
    }

    #[test]
    fn every_size_of_a_terminal_has_a_picture() {
        for script in [&drip::SCRIPT, &tree::SCRIPT] {
            for width in [1, 2, 20, 40, WHOLE.0 - 1, WHOLE.0, 200] {
                for height in [1, 2, 5, 9, 12, WHOLE.1 - 1, WHOLE.1, 50] {
                    drawn(script, &seen(script), width, height);
                }
            }
            let text = drawn(script, &Seen::new(&script.plan), 40, 12);
            assert!(text.contains("Starting "), "{text}");
        }
    }
}
