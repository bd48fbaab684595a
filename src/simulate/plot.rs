//! A plot of waits and depths over time, for light and dark pages.

use std::time::Duration;

use svg::Document;
use svg::node::element::{Line, Path as Stroke, Rectangle, Style, Text, Title, path::Data};

use super::measure::{SLOTS, Slot};
use super::report::{Report, name_of};
use crate::model::duration::rough;

/// Sizes, in pixels: the page, its margin, a panel, and the space for labels to the left of it.
const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
const PANEL: f64 = 130.0;
const LEFT: f64 = 64.0;

/// The most groups that are drawn.
const MOST: usize = 20;

const STYLE: &str = "
text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #59636e }
.title { font-size: 16px; font-weight: 600; fill: #1f2328 }
.name { font-weight: 600; fill: #1f2328 }
.page { fill: #ffffff }
.grid { stroke: #d1d9e0 }
.line { fill: none; stroke: #0969da; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.before { stroke: #818b98 }
.p50 { stroke-width: 1; stroke-dasharray: 3 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, .name { fill: #f0f6fc }
  .page { fill: #0d1117 }
  .grid { stroke: #2f353d }
  .line { stroke: #4493f8 }
  .before { stroke: #656c76 }
}
";

/// A panel: its title, the lines with their classes, and how its values are shown.
struct Panel {
    title: String,
    lines: Vec<(&'static str, Vec<Option<f64>>)>,
    show: fn(f64) -> String,
}

fn text(at: (f64, f64), anchor: &str, class: &str, words: &str) -> Text {
    let node = Text::new(words).set("x", at.0.round()).set("y", at.1.round()).set("text-anchor", anchor);
    if class.is_empty() { node } else { node.set("class", class) }
}

fn seconds(us: f64) -> String {
    if us > 0.0 && us < 10_000.0 { format!("{:.2}ms", us / 1e3) } else { rough(Duration::from_micros(us as u64)) }
}

fn jobs(n: f64) -> String {
    format!("{n:.0}")
}

impl Panel {
    /// The waits and the depth of each group, beside those of the other run.
    fn all(report: &Report, against: Option<&Report>) -> Vec<Self> {
        let mut panels = Vec::new();
        for figures in report.groups.iter().take(MOST) {
            let before = against.and_then(|other| other.of_group(&figures.name, figures.is_budget));
            let lines = |of: &[fn(&Slot) -> Option<u64>], classes: [&'static str; 4]| {
                let value = |slot: &Slot, at: usize| of[at](slot).map(|value| value as f64);
                let line = |slots: &[Slot], at: usize| slots.iter().map(|slot| value(slot, at)).collect::<Vec<_>>();
                let mut lines = Vec::new();
                for at in 0..of.len() {
                    lines.extend(before.map(|before| (classes[2 * at + 1], line(&before.slots, at))));
                    lines.push((classes[2 * at], line(&figures.slots, at)));
                }
                lines
            };
            let wait = lines(
                &[|slot| slot.p99_us, |slot| slot.p50_us],
                ["line", "line before", "line p50", "line before p50"],
            );
            let waiting = lines(&[|slot| Some(slot.waiting)], ["line", "line before", "", ""]);
            let name = name_of(figures);
            panels.push(Self { title: format!("{name}: wait, 99 of 100 (dashed: half)"), lines: wait, show: seconds });
            panels.push(Self { title: format!("{name}: jobs that wait"), lines: waiting, show: jobs });
        }
        panels
    }

    fn draw(&self, mut page: Document, top: f64) -> Document {
        let (bottom, right) = (top + PANEL - 36.0, WIDTH - MARGIN);
        let most = self.lines.iter().flat_map(|(_, values)| values).copied().flatten().fold(1.0, f64::max);
        page = page.add(text((MARGIN, top - 8.0), "start", "name", &self.title));
        for share in [0.0, 0.5, 1.0] {
            let y = bottom - share * (bottom - top);
            let line = Line::new().set("x1", LEFT).set("x2", right).set("y1", y).set("y2", y).set("class", "grid");
            page = page.add(line).add(text((LEFT - 6.0, y + 4.0), "end", "", &(self.show)(share * most)));
        }
        if self.lines.iter().all(|(_, values)| values.iter().all(Option::is_none)) {
            page = page.add(text((LEFT + 8.0, bottom - 8.0), "start", "", "no worker took a job"));
        }
        for (class, values) in &self.lines {
            let place = |(at, value): (usize, &Option<f64>)| {
                let x = LEFT + (at + 1) as f64 / SLOTS as f64 * (right - LEFT);
                let y = bottom - (*value)? / most * (bottom - top);
                Some(((10.0 * x).round() / 10.0, (10.0 * y).round() / 10.0))
            };
            // Over slots in which nobody took a job the line goes straight on.
            let mut places = values.iter().enumerate().filter_map(place);
            if let Some(first) = places.next() {
                // One place alone is a dot.
                let data = places.fold(Data::new().move_to(first).line_to(first), Data::line_to);
                page = page.add(Stroke::new().set("d", data).set("class", *class));
            }
        }
        page
    }
}

/// Draw waits and depths over time of the first groups, beside those of another run (grey). A wait stands where its job was taken; the
/// last place also has the jobs that still wait.
pub fn plot(report: &Report, against: Option<&Report>, lasts: Duration) -> String {
    let panels = Panel::all(report, against);
    let height = 70.0 + PANEL * panels.len() as f64 + 24.0;
    let (rows, drawn) = (report.groups.len(), report.groups.len().min(MOST));
    let cut = if drawn < rows { format!(": the first {drawn} of {rows} rows") } else { String::new() };
    let title = format!("{} over {}{cut}", report.config, rough(lasts));
    let mut page = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .add(Title::new(&title))
        .add(Style::new(STYLE))
        .add(Rectangle::new().set("class", "page").set("width", WIDTH).set("height", height))
        .add(text((MARGIN, 30.0), "start", "title", &title));
    if let Some(other) = against {
        page = page.add(text((WIDTH - MARGIN, 30.0), "end", "", &format!("grey: {}", other.config)));
    }
    for (at, panel) in panels.iter().enumerate() {
        page = panel.draw(page, 70.0 + PANEL * at as f64);
    }
    let axis = height - 12.0;
    page = page.add(text((LEFT, axis), "start", "", "0")).add(text((WIDTH - MARGIN, axis), "end", "", &rough(lasts)));
    format!("{page}\n")
}
