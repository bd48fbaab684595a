//! Charts that ratatui does not have: bars of two parts, marks that stay apart, and a vessel that fills.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::Widget;

/// The symbols of a cell that is filled from below, by eighths.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// One column of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Column {
    Nothing,
    /// A bar: the value of its lower part, and the value of the part on top.
    Bar(f64, f64),
    /// A thin mark whose height is this value.
    Mark(f64),
}

/// Columns side by side, the last one at the right edge. Where not all fit, the first ones are left out.
pub(super) struct Bars<'a> {
    pub(super) columns: &'a [Column],
    /// The value whose bar reaches the top.
    pub(super) most: f64,
    pub(super) lower: Color,
    pub(super) upper: Color,
    /// The column to point at, counted from the right from 0; it is shown in the `upper` colour.
    pub(super) marked: Option<usize>,
}

/// The height of a value in eighths of a row. A value above 0 has at least one.
fn eighths(value: f64, most: f64, rows: u16) -> u16 {
    let whole = f64::from(rows * 8);
    let height = (value / most.max(f64::MIN_POSITIVE) * whole).round().clamp(0.0, whole) as u16;
    if value > 0.0 { height.max(1) } else { 0 }
}

impl Widget for Bars<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.is_empty() {
            return;
        }
        let shown = self.columns.len().min(usize::from(area.width));
        for (n, column) in self.columns[self.columns.len() - shown..].iter().enumerate() {
            let from_right = shown - 1 - n;
            let x = area.right() - 1 - from_right as u16;
            let color = if self.marked == Some(from_right) { self.upper } else { self.lower };
            let height = |value| eighths(value, self.most, area.height);
            for row in 0..area.height {
                let below = row * 8; // eighths that the rows below this one hold
                let fill = |height: u16| usize::from(height.saturating_sub(below).min(8));
                let cell = &mut buffer[(x, area.bottom() - 1 - row)];
                match *column {
                    Column::Mark(value) if row == 0 || fill(height(value)) >= 4 => {
                        cell.set_symbol("│").set_style(Style::new().fg(color));
                    }
                    Column::Nothing | Column::Mark(_) => {}
                    Column::Bar(low, high) => {
                        let (low, all) = (fill(height(low)), fill(height(low + high)));
                        // A cell has two colours: where the parts meet, one is the background of the other.
                        let style = match low {
                            0 => Style::new().fg(self.upper),
                            8 => Style::new().fg(color),
                            _ if all == 8 => Style::new().fg(color).bg(self.upper),
                            _ => Style::new().fg(color),
                        };
                        cell.set_symbol(EIGHTHS[if low == 0 || low == 8 { all } else { low }]).set_style(style);
                    }
                }
            }
            let top = &mut buffer[(x, area.top())];
            if self.marked == Some(from_right) && top.symbol() == " " {
                top.set_symbol("▼").set_style(Style::new().fg(self.upper));
            }
        }
    }
}

/// A vessel with walls in the terminal's own colour, filled from below.
pub(super) struct Vessel {
    /// The part that is filled, from 0, empty, to 1, full.
    pub(super) part: f64,
    pub(super) color: Color,
}

impl Widget for Vessel {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        if area.width < 3 {
            return;
        }
        let wall = Style::new().dim();
        let inner = Rect { x: area.x + 1, width: area.width - 2, ..area };
        for y in area.top()..area.bottom() {
            buffer[(area.left(), y)].set_symbol("▕").set_style(wall);
            buffer[(area.right() - 1, y)].set_symbol("▏").set_style(wall);
        }
        let columns = vec![Column::Bar(self.part, 0.0); usize::from(inner.width)];
        Bars { columns: &columns, most: 1.0, lower: self.color, upper: self.color, marked: None }.render(inner, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(columns: &[Column], width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        let bars = Bars { columns, most: 16.0, lower: Color::Cyan, upper: Color::Red, marked: None };
        bars.render(area, &mut buffer);
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..height).map(row).collect()
    }

    #[test]
    fn a_bar_is_as_high_as_its_parts_together_and_the_least_value_is_seen() {
        let columns = [Column::Bar(8.0, 4.0), Column::Bar(16.0, 0.0), Column::Bar(0.1, 0.0), Column::Nothing];
        assert_eq!(drawn(&columns, 4, 2), ["▄█  ", "██▁ "]);
    }

    #[test]
    fn marks_take_whole_rows_and_at_least_one() {
        assert_eq!(drawn(&[Column::Mark(11.0), Column::Nothing, Column::Mark(1.0)], 3, 2), ["   ", "│ │"]);
        assert_eq!(drawn(&[Column::Mark(12.0)], 1, 2), ["│", "│"]);
    }

    #[test]
    fn the_last_columns_stand_at_the_right_edge_whatever_the_width() {
        let columns = [Column::Mark(1.0), Column::Nothing, Column::Mark(1.0)];
        assert_eq!((drawn(&columns, 2, 1), drawn(&columns, 5, 1)), (vec![" │".to_owned()], vec!["  │ │".to_owned()]));
        assert_eq!(drawn(&columns, 0, 1), [""]);
    }

    #[test]
    fn a_vessel_fills_from_its_floor_between_its_walls() {
        let area = Rect::new(0, 0, 4, 2);
        let mut buffer = Buffer::empty(area);
        Vessel { part: 0.75, color: Color::Blue }.render(area, &mut buffer);
        assert_eq!(buffer, {
            let mut expected = Buffer::with_lines(["▕▄▄▏", "▕██▏"]);
            let fill = Style::new().fg(Color::Blue);
            for y in 0..2 {
                expected.set_style(Rect::new(1, y, 2, 1), fill);
                expected.set_style(Rect::new(0, y, 1, 1), Style::new().dim());
                expected.set_style(Rect::new(3, y, 1, 1), Style::new().dim());
            }
            expected
        });
    }
}
