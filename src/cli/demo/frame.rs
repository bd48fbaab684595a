//! What the pictures of the demos share.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Stylize as _};
use ratatui::text::Line;

pub(super) const WAITING: Color = Color::Blue;
pub(super) const OUT: Color = Color::Green;

/// A picture of at least so many columns and rows has room for explanations.
pub(super) const WHOLE: (u16, u16) = (76, 18);

pub(super) const HIGHEST_CHART: u16 = 10;

/// Whether there is room for everything.
pub(super) fn is_whole(area: Rect) -> bool {
    area.width >= WHOLE.0 && area.height >= WHOLE.1
}

/// The title, and how much of the demo is over, where there is room for it.
pub(super) fn draw_title(frame: &mut Frame, area: Rect, title: &'static str, seconds: f64, of_seconds: f64) {
    let time = format!("{seconds:.1} of {of_seconds:.0} s");
    frame.render_widget(Line::from(title).bold(), area);
    if area.width as usize > title.len() + time.len() {
        frame.render_widget(Line::from(time).right_aligned(), area);
    }
}
