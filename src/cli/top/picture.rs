//! The picture: the title and the totals, the table or what is open in its place, why the selected row waits, and the
//! keys. At 80 × 24 nothing important is cut; at 40 columns each row still has its name, its depth and why.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};
use unicode_width::UnicodeWidthStr as _;

use super::keys::KEYS;
use super::table::colored;
use super::view::{Mode, Ranking, View};
use crate::cli::change::by;
use crate::cli::columns;
use crate::model::escape::lines;
use crate::store::top::By;

/// The hints of the last line, the most needed first.
const HINTS: [&str; 9] = [
    "? help",
    "q quit",
    "Enter explain",
    "p pause",
    "/ filter",
    "Space freeze",
    "e d r l order",
    "b budgets",
    "↑↓ select",
];

/// The heights in rows below which the lines around the table give way to it.
const ROOMY: u16 = 14;
const LOW: u16 = 9;

/// The most columns of a sentence that are looked at: more than two lines of the widest terminal.
const LONGEST: usize = 2_000;

pub(super) fn draw(frame: &mut Frame, view: &mut View) {
    let area = frame.area();
    let (width, detail) =
        (usize::from(area.width), if area.height >= ROOMY { 2 } else { u16::from(area.height >= LOW) });
    let figures = u16::from(area.height >= LOW);
    let rows = [1, figures, 1].map(Constraint::Length).into_iter().chain([Constraint::Min(0)]);
    let rows = rows.chain([detail, u16::from(area.height >= 4)].map(Constraint::Length));
    let [title, figures, heads, table, detail, keys] = Layout::vertical(rows).areas(area);
    view.has_rows(usize::from(table.height));
    frame.render_widget(view.title(width), title);
    frame.render_widget(view.totals(width), figures);
    let whole = Rect { y: heads.y, height: heads.height + table.height, ..table };
    match view.mode {
        Mode::Explain(above) => {
            let above = draw_text(frame, whole, explanation(view), above);
            view.mode = Mode::Explain(above);
        }
        Mode::Help(above) => {
            let above = draw_text(frame, whole, help(), above);
            view.mode = Mode::Help(above);
        }
        _ => {
            frame.render_widget(view.heads(width), heads);
            match nothing(view) {
                Some(why) => frame.render_widget(Paragraph::new(why).wrap(Wrap { trim: true }), table),
                None => frame.render_widget(Text::from(view.rows(width)), table),
            }
        }
    }
    frame.render_widget(Paragraph::new(sentence(view)).wrap(Wrap { trim: true }), detail);
    frame.render_widget(last_line(view, width), keys);
}

/// Draw a text that can be longer than the area. Returns how many of its lines are above the edge.
fn draw_text(frame: &mut Frame, area: Rect, text: Text<'static>, above: usize) -> usize {
    let paragraph = Paragraph::new(text).wrap(Wrap { trim: false });
    let lines = wrapped(&paragraph, area.width);
    let above = above.min(lines.saturating_sub(usize::from(area.height)));
    frame.render_widget(paragraph.scroll((u16::try_from(above).unwrap_or(u16::MAX), 0)), area);
    above
}

/// The number of lines that a text takes in `width` columns.
fn wrapped(paragraph: &Paragraph, width: u16) -> usize {
    // The text is drawn into a buffer that is not shown, because ratatui counts lines only behind an unstable feature.
    let mut buffer = ratatui::buffer::Buffer::empty(Rect::new(0, 0, width.max(1), 500));
    ratatui::widgets::Widget::render(paragraph, buffer.area, &mut buffer);
    let is_blank = |y: u16| (0..buffer.area.width).all(|x| buffer[(x, y)].symbol() == " ");
    (0..buffer.area.height).rev().find(|y| !is_blank(*y)).map_or(0, |y| usize::from(y) + 1)
}

/// The whole explanation of why the selected row waits.
fn explanation(view: &View) -> Text<'static> {
    match view.explained.as_ref().filter(|said| Some(said.name.as_str()) == view.selected()) {
        Some(said) => Text::from(lines(&said.text).lines().map(|line| Line::from(line.to_owned())).collect::<Vec<_>>()),
        None => Text::from("asking Redis …"),
    }
}

fn help() -> Text<'static> {
    let mut lines: Vec<Line> = KEYS
        .iter()
        .map(|(key, what)| Line::from(vec![Span::styled(format!("{key:<20}"), bold()), Span::raw(*what)]))
        .collect();
    let more = [
        "",
        "DEPTH is how many jobs wait, of how many may. EMPTY IN is how long that takes at the rate that is SET, of a \
         bucket that waits for a share or a slot at that of NOW. NOW is measured, over the last ten seconds or five jobs. The order of the rows is that of the last walk over all \
         buckets, as old as the title says; the figures in them are of this second.",
    ];
    lines.extend(more.map(Line::from));
    Text::from(lines)
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// The reason why there is no row.
fn nothing(view: &View) -> Option<String> {
    if !view.shown().is_empty() {
        return None;
    }
    let is_filtered = view.only.as_ref().map(|only| columns::name(&only.text, 40));
    Some(match (&view.ranking, is_filtered) {
        (Ranking::Asked, _) => "asking Redis …".to_owned(),
        (Ranking::None, _) if view.has_daemon() => "No ranking yet: a daemon is looking at all buckets.".to_owned(),
        (Ranking::None, _) => "No ranking: no daemon runs. Start one with `dripd run`.".to_owned(),
        (_, Some(only)) => format!("None of those that are ranked matches {only}. `/` and Enter show all."),
        (_, None) => match view.order() {
            By::Empty | By::Depth => "No bucket has work.",
            By::Rejected => "No bucket has rejected a job in the last 10 to 20 minutes.",
            By::Late => "No bucket is late.",
            By::Budgets => "Nothing waits for a budget, and the configuration names none without a glob.",
        }
        .to_owned(),
    })
}

/// The outcome of a deed; why Redis does not answer; else why the selected row waits.
fn sentence(view: &View) -> Line<'static> {
    let safe = |text: &str| columns::name(text, LONGEST);
    match (view.told(), &view.lost) {
        (Some(Ok(done)), _) => Line::styled(safe(done), colored(Some(Color::Green))),
        (Some(Err(why)), _) => Line::styled(safe(why), colored(Some(Color::Red))),
        (None, Some((_, why))) => Line::raw(safe(why)),
        (None, None) if matches!(view.mode, Mode::Explain(_)) => Line::default(), // the explanation is above
        (None, None) => {
            let said = view.explained.as_ref().filter(|said| Some(said.name.as_str()) == view.selected());
            Line::raw(said.map_or_else(String::new, |said| safe(&said.last)))
        }
    }
}

/// The last line: a question, the filter that is typed, or hints.
fn last_line(view: &View, width: usize) -> Line<'static> {
    match &view.mode {
        Mode::Filter(text) => {
            let label = if width >= 60 { "filter (a glob, or a part of the name): " } else { "filter: " };
            let room = width.saturating_sub(label.width() + 1);
            Line::from(vec![Span::styled(label, bold()), Span::raw(columns::name(text, room.max(1))), Span::raw("▏")])
        }
        Mode::Confirm(deed) => {
            let who = format!(" as {}? [y/N] ", columns::name(&by(), 40));
            let kind = if deed.is_budget { "budget " } else { "" };
            let room = width.saturating_sub(deed.verb().len() + 1 + kind.len() + who.width()).max(8);
            let name = columns::name(&deed.name, room);
            Line::styled(format!("{} {kind}{name}{who}", deed.verb()), bold())
        }
        Mode::Explain(_) | Mode::Help(_) => hints(&["↑↓ PgUp PgDn scroll", "Esc back"], width),
        Mode::Table => hints(&HINTS, width),
    }
}

fn hints(hints: &[&'static str], width: usize) -> Line<'static> {
    let (mut spans, mut used) = (Vec::new(), 0);
    for hint in hints {
        if used + hint.width() + 2 > width {
            break;
        }
        let (key, what) = hint.rsplit_once(' ').unwrap_or((hint, ""));
        spans.extend([Span::styled(key, bold()), Span::raw(" "), Span::raw(what), Span::raw("  ")]);
        used += hint.width() + 2;
    }
    Line::from(spans)
}
