//! The picture on the screen: for each bucket what is pushed on the left, what waits in the middle, and what comes out on the
//! right. It uses what there is: 80 × 24 well, 40 × 12 in short, more for larger charts that reach further back.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::seen::Seen;
use super::verdict::{PAUSE_WITHIN, pause_since_kill_us};
use super::{AWAY_UNTIL, KILL_AT, LASTS, last_push};
use crate::cli::charts::{Bars, Column, Vessel};
use crate::cli::demo::bucket::{Bucket, Pace};
use crate::cli::demo::frame::{HIGHEST_CHART, OUT, WAITING, draw_title, is_whole};

const PUSHED: Color = Color::Cyan;
const REJECTED: Color = Color::Red;
const KILLED: Color = Color::Red;

/// A steady pace reaches so far up: there is room above it for one that is too fast.
const STEADY_AT: f64 = 1.0 / 1.6;

const VESSEL: u16 = 14;
const BETWEEN: u16 = 3;

/// What a column of a chart stands for; half of it where there are that many columns.
const COLUMN_US: u64 = 250_000;
const MANY_COLUMNS: u16 = 64;

/// What is drawn, and for which moment.
struct Picture<'a> {
    seen: &'a Seen,
    shown_us: u64,
    /// Whether there is room for everything.
    whole: bool,
}

pub(super) fn draw(frame: &mut Frame, seen: &Seen) {
    let area = frame.area();
    let whole = is_whole(area);
    let picture = Picture { seen, shown_us: Seen::shown_us().max(seen.start_us), whole };
    if whole { picture.draw_whole(frame, area) } else { picture.draw_short(frame, area) }
}

impl Picture<'_> {
    fn seconds(&self) -> f64 {
        if self.seen.running.is_empty() { 0.0 } else { (self.shown_us - self.seen.start_us) as f64 / 1e6 }
    }

    fn draw_whole(&self, frame: &mut Frame, area: Rect) {
        let area = Rect { x: area.x + 1, width: area.width - 2, ..area };
        let chart = ((area.height - 15) / 3).clamp(1, HIGHEST_CHART);
        let spare = u16::from(area.height >= 18);
        let bucket = Constraint::Length(chart + 2);
        let rows = [1, spare, 1].map(Constraint::Length).into_iter().chain([bucket; 3]);
        let rows = rows.chain([spare, 2, spare, 2].map(Constraint::Length));
        let rows: [Rect; 10] = Layout::vertical(rows).areas(area);
        draw_title(
            frame,
            rows[0],
            "dripd demo: bursts go in, a steady drip comes out",
            self.seconds(),
            LASTS.as_secs_f64(),
        );
        let sides = sides(rows[2]);
        let back = format!("last {:.0} s", (u64::from(sides[0].width) * column_us(sides[0].width)) as f64 / 1e6);
        frame.render_widget(Line::from(format!("jobs pushed, {back}")).dim(), sides[0]);
        frame.render_widget(Line::from("in the bucket").dim().centered(), sides[1]);
        frame.render_widget(Line::from(format!("jobs out, {back}")).dim(), sides[2]);
        for (bucket, area) in self.seen.buckets.iter().zip(&rows[3..6]) {
            self.draw_bucket(frame, *area, bucket);
        }
        frame.render_widget(Paragraph::new(self.daemons()), rows[7]);
        let (first, second) = self.words();
        frame.render_widget(Paragraph::new(vec![first, second.dim()]), rows[9]);
    }

    /// A bucket with everything: its name and policy, the charts and the vessel, the figures.
    fn draw_bucket(&self, frame: &mut Frame, area: Rect, bucket: &Bucket) {
        let [head, charts, figures] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(area);
        let policy = format!(" rate {}, room for {} ", bucket.rate, bucket.capacity);
        let used = bucket.name.as_str().len() + policy.len();
        let rule = "─".repeat(usize::from(head.width).saturating_sub(used));
        frame.render_widget(Line::from(vec![bucket.name.as_str().bold(), policy.into(), rule.dim()]), head);
        let [pushed, vessel, out] = sides(charts);
        self.draw_pushed(frame, pushed, bucket);
        let part = bucket.depth as f64 / bucket.capacity as f64;
        frame.render_widget(Vessel { part, color: WAITING }, vessel);
        for gap in [pushed.right(), vessel.right()] {
            let area = Rect { x: gap, y: charts.y + charts.height / 2, width: BETWEEN, height: 1 };
            frame.render_widget(Line::from("→").dim().centered(), area);
        }
        self.draw_out(frame, out, bucket);
        let [pushed, vessel, out] = sides(figures);
        let told = vec![
            format!("{} pushed", bucket.pushed).fg(PUSHED),
            ", ".into(),
            format!("{} rejected", bucket.rejected).fg(REJECTED),
        ];
        frame.render_widget(Line::from(told), pushed);
        let depth = format!("{} of {}", bucket.depth.min(bucket.capacity), bucket.capacity);
        frame.render_widget(Line::from(depth).fg(WAITING).centered(), vessel);
        frame.render_widget(self.pace(bucket), out);
    }

    fn pace(&self, bucket: &Bucket) -> Line<'static> {
        match bucket.pace(self.shown_us) {
            Pace::Starting => Line::from("nothing yet").dim(),
            Pace::Rate(rate) if self.whole => {
                Line::from(vec![format!("{rate:.1}/s").fg(OUT).bold(), format!(" ({} set)", bucket.rate).into()])
            }
            Pace::Rate(rate) => Line::from(format!("{rate:.1}/s")).fg(OUT),
            Pace::Empty if self.whole => Line::from(format!("empty: all {} are out", bucket.taken.len())).fg(OUT),
            Pace::Empty => Line::from("empty").fg(OUT),
        }
    }

    /// All in little room: a line and a chart for each bucket, and one sentence.
    fn draw_short(&self, frame: &mut Frame, area: Rect) {
        let chart = (area.height.saturating_sub(6) / 3).clamp(1, HIGHEST_CHART);
        let rows = [Constraint::Length(1)].into_iter().chain([Constraint::Length(chart + 1); 3]);
        let rows: [Rect; 5] = Layout::vertical(rows.chain([Constraint::Length(2)])).areas(area);
        draw_title(frame, rows[0], "dripd demo", self.seconds(), LASTS.as_secs_f64());
        for (bucket, area) in self.seen.buckets.iter().zip(&rows[1..4]) {
            let [head, charts] = Layout::vertical([Constraint::Length(1), Constraint::Length(chart)]).areas(*area);
            let mut line = vec![format!("{:<8}", bucket.name.as_str()).bold()];
            line.extend(self.pace(bucket).spans.into_iter().map(|span| span.fg(OUT)));
            line.push(format!(" {} of {}", bucket.depth.min(bucket.capacity), bucket.capacity).fg(WAITING));
            line.push(format!(" -{}", bucket.rejected).fg(REJECTED));
            frame.render_widget(Line::from(line), head);
            let halves = [Constraint::Fill(1), Constraint::Length(1), Constraint::Fill(1)];
            let [pushed, _, out] = Layout::horizontal(halves).areas(charts);
            self.draw_pushed(frame, pushed, bucket);
            self.draw_out(frame, out, bucket);
        }
        frame.render_widget(Paragraph::new(self.words().0).wrap(Wrap { trim: true }), rows[4]);
    }

    /// Where the columns of a chart so wide begin and end, the last one with the moment that is shown.
    fn columns(&self, width: u16) -> impl Iterator<Item = (u64, u64)> + use<> {
        let long = column_us(width);
        let first = self.seen.first_column_us(long);
        let last = self.shown_us.saturating_sub(first) / long;
        (0..u64::from(width)).rev().filter_map(move |back| {
            let from = first + last.checked_sub(back)? * long;
            Some((from, from + long))
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
        frame.render_widget(Bars { columns: &columns, most, lower: PUSHED, upper: REJECTED, marked: None }, area);
    }

    fn draw_out(&self, frame: &mut Frame, area: Rect, bucket: &Bucket) {
        let (rate, apart) = (bucket.rate.per_second(), bucket.interval_us() >= 2 * column_us(area.width));
        let column = |(from, to)| match bucket.pace(self.shown_us.min(to)) {
            // Where they come one at a time, each job is a mark.
            _ if apart && bucket.taken_between(from - 1, to - 1).is_empty() => Column::Nothing,
            _ if apart => Column::Mark(rate),
            Pace::Rate(now) => Column::Bar(now, 0.0),
            Pace::Starting | Pace::Empty => Column::Nothing,
        };
        let columns: Vec<_> = self.columns(area.width).map(column).collect();
        let marked = self.seen.killed.as_ref().and_then(|kill| {
            let at = self.columns(area.width).position(|(from, to)| (from..to).contains(&kill.at_us))?;
            Some(columns.len() - 1 - at)
        });
        let most = rate / STEADY_AT;
        frame.render_widget(Bars { columns: &columns, most, lower: OUT, upper: KILLED, marked }, area);
    }

    /// A line for each daemon.
    fn daemons(&self) -> Vec<Line<'static>> {
        let killed = self.seen.killed.as_ref().map(|kill| {
            let at = (kill.at_us - self.seen.start_us) as f64 / 1e6;
            let what = format!("process {}: killed with kill -9 at {at:.1} s", kill.process);
            Line::from(vec!["daemon 1  ".bold(), Span::from(what).fg(KILLED)])
        });
        let running = self.seen.running.iter().map(|(number, process)| {
            let alone = if self.seen.killed.is_some() { "runs on" } else { "runs" };
            Line::from(vec![format!("daemon {number}  ").bold(), format!("process {process}: {alone}").fg(OUT)])
        });
        killed.into_iter().chain(running).collect()
    }

    /// What happens now, in words: a sentence of at most 80 letters, and one more where there is room.
    fn words(&self) -> (Line<'static>, Line<'static>) {
        let line = |first: &str, second: &str| (Line::from(first.to_owned()), Line::from(second.to_owned()));
        if self.seen.running.is_empty() {
            return line("Starting two daemons and a Redis, which end with the demo.", "Ctrl-C ends it.");
        }
        if let Some(kill) = &self.seen.killed {
            return self.words_of_kill(kill);
        }
        if self.seen.are_workers_away() {
            return line(
                "All workers have stopped for three seconds. What is due waits in its bucket.",
                "Only what left within the last quarter of a second lies ready for them.",
            );
        }
        if self.seen.pause().is_some() && self.seconds() < AWAY_UNTIL.as_secs_f64() + 1.5 {
            return line(
                "The workers are back. Each bucket goes on at its rate, with no burst.",
                "Nobody behind the workers is called faster than its rate.",
            );
        }
        let until_kill = KILL_AT.as_secs_f64() - self.seconds();
        if until_kill < 2.5 {
            return line(
                &format!("In {until_kill:.0} s daemon 1 is killed with kill -9. Watch what comes out."),
                "Daemon 2 does the same work at the same time; neither of them leads.",
            );
        }
        if self.seconds() < 2.5 {
            return line(
                "Producers push in bursts. Jobs come out one by one, at the rate that was set.",
                "A push is a plain LPUSH. Jobs wait in the bucket, a list in Redis.",
            );
        }
        line(
            "A full bucket rejects the newest jobs; the reply to the push says how many.",
            "What comes out does not change, whatever goes in.",
        )
    }

    fn words_of_kill(&self, kill: &super::seen::Kill) -> (Line<'static>, Line<'static>) {
        let fastest = self.seen.fastest();
        let depth = self.seen.buckets.iter().zip(&kill.depths).find(|(b, _)| b.name == fastest.name);
        let pause = depth.and_then(|(bucket, depth)| pause_since_kill_us(bucket, kill, *depth, self.shown_us));
        let pause = pause.map_or("not known yet".to_owned(), |us| format!("{:.1} ms", us as f64 / 1e3));
        let first = format!("Daemon 1 is dead, daemon 2 goes on. Longest pause since then: {pause}.");
        if self.seconds() > last_push().as_secs_f64() {
            let second = "There are no more pushes. The buckets become empty at the same pace.";
            return (Line::from(first).fg(KILLED), Line::from(second));
        }
        let (name, every) = (fastest.name.as_str(), fastest.interval_us() as f64 / 1e3);
        let limit = PAUSE_WITHIN.as_millis();
        let second = format!("A {name} job leaves every {every} ms. A pause {limit} ms longer fails the demo.");
        (Line::from(first).fg(KILLED), Line::from(second))
    }
}

/// The three parts of a row: pushed, vessel, out.
fn sides(area: Rect) -> [Rect; 3] {
    let gap = Constraint::Length(BETWEEN);
    let parts = [Constraint::Fill(1), gap, Constraint::Length(VESSEL), gap, Constraint::Fill(1)];
    let [pushed, _, vessel, _, out] = Layout::horizontal(parts).areas(area);
    [pushed, vessel, out]
}

fn column_us(width: u16) -> u64 {
    if width >= MANY_COLUMNS { COLUMN_US / 2 } else { COLUMN_US }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::seen::Kill;
    use super::super::{BUCKETS, Seen};
    use super::*;
    use crate::cli::demo::bucket::{Taken, now_us};
    use crate::cli::demo::frame::WHOLE;

    /// Ten seconds into a demo whose first daemon was killed.
    fn seen() -> Seen {
        let (mut seen, now) = (Seen::new(&BUCKETS), now_us());
        seen.start_us = now - 10_000_000;
        seen.running = vec![(2, 12)];
        for b in &mut seen.buckets {
            let interval = b.interval_us();
            b.pushed(seen.start_us, 10_000_000 / interval + 9, 1);
            let times = (0..).map(|n| seen.start_us + n * interval).take_while(|at_us| *at_us < now);
            b.taken = times
                .enumerate()
                .map(|(n, at_us)| Taken { number: n as u64, due_us: at_us, at_us, handed_us: (at_us, at_us) })
                .collect();
            b.depth = b.capacity / 2;
        }
        seen.killed = Some(Kill { at_us: now - 3_000_000, process: 11, depths: vec![8, 80, 800] });
        seen
    }

    #[test]
    fn every_size_of_a_terminal_has_a_picture() {
        let mut seen = seen();
        for width in [1, 2, 20, 40, WHOLE.0 - 1, WHOLE.0, 200] {
            for height in [1, 2, 5, 9, 12, WHOLE.1 - 1, WHOLE.1, 50] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it cannot fail");
                terminal.draw(|frame| draw(frame, &seen)).expect("it cannot fail");
            }
        }
        seen.running.clear();
        let mut terminal = Terminal::new(TestBackend::new(40, 12)).expect("it cannot fail");
        terminal.draw(|frame| draw(frame, &seen)).expect("it cannot fail");
        assert!(terminal.backend().to_string().contains("Starting two daemons and a Redis"), "{}", terminal.backend());
    }

    #[test]
    fn the_pace_is_flat_and_single_jobs_stand_apart_as_marks() {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("it cannot fail");
        terminal.draw(|frame| draw(frame, &seen())).expect("it cannot fail");
        let text = terminal.backend().to_string();
        assert!(text.contains("│ │ │ │ │ │ │ │ │ │ │ │") && text.contains("▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇"), "{text}");
        assert!(text.contains("2.0/s (2/s set)") && text.contains("200.0/s (200/s set)"), "{text}");
        assert!(text.contains("Longest pause since then: 5.0 ms"), "{text}");
    }
}
