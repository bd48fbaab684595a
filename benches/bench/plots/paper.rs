//! What a plot is drawn on: shapes with classes, and one style sheet for light and dark pages.

use std::io;
use std::path::Path;

use svg::Document;
use svg::node::element::{Circle, Line, Path as Stroke, Rectangle, Style, Text, Title, path::Data};

/// As wide as a column of text.
pub(super) const WIDTH: f64 = 760.0;

/// Where everything begins and ends.
pub(super) const MARGIN: f64 = 16.0;

const STYLE: &str = "
text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: #59636e }
.title { font-size: 16px; font-weight: 600; fill: #1f2328 }
.name { fill: #1f2328 }
.mine-name { fill: #0550ae; font-weight: 600 }
.page { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.axis { stroke: #818b98; stroke-width: 1 }
.mine { stroke: #0969da; fill: #0969da }
.beside { stroke: #818b98; fill: #818b98 }
.line { stroke-width: 2; fill: none; stroke-linejoin: round }
.thin { stroke-width: 1 }
.wide { stroke-width: 4; opacity: 0.35 }
.p50 { }
.p99 { stroke-dasharray: 7 4 }
.p999 { stroke-dasharray: 1.5 4; stroke-linecap: round }
.ring { fill: #ffffff; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title, .name { fill: #f0f6fc }
  .mine-name { fill: #79c0ff }
  .page { fill: #0d1117 }
  .grid { stroke: #2f353d }
  .axis { stroke: #656c76 }
  .mine { stroke: #4493f8; fill: #4493f8 }
  .line { fill: none }
  .ring { fill: #0d1117 }
}
";

/// Where a text stands to its place.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Left,
    Middle,
    Right,
}

pub(super) struct Paper {
    document: Document,
}

impl Paper {
    /// A page with a title and, below it, what the figures mean. Replies where the rest may begin, too.
    pub(super) fn new(title: &str, subtitle: &str, height: f64) -> (Self, f64) {
        let document = Document::new()
            .set("viewBox", (0, 0, WIDTH, height))
            .set("width", WIDTH)
            .set("height", height)
            .set("role", "img")
            .add(Title::new(title))
            .add(Style::new(STYLE))
            .add(Rectangle::new().set("class", "page").set("width", WIDTH).set("height", height));
        let mut paper = Self { document };
        paper.text((MARGIN, 30.0), Side::Left, "title", title);
        let mut y = 30.0;
        for line in wrapped(subtitle, 120) {
            y += 17.0;
            paper.text((MARGIN, y), Side::Left, "", &line);
        }
        (paper, y + 12.0)
    }

    fn add(&mut self, node: impl svg::Node) {
        let document = std::mem::replace(&mut self.document, Document::new());
        self.document = document.add(node);
    }

    /// A text of one line, its base line at `y`.
    pub(super) fn text(&mut self, (x, y): (f64, f64), side: Side, class: &str, text: &str) {
        let anchor = match side {
            Side::Left => "start",
            Side::Middle => "middle",
            Side::Right => "end",
        };
        let node = Text::new(text).set("x", short(x)).set("y", short(y)).set("text-anchor", anchor);
        self.add(if class.is_empty() { node } else { node.set("class", class) });
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let node = Line::new().set("x1", short(x1)).set("y1", short(y1)).set("x2", short(x2)).set("y2", short(y2));
        self.add(node.set("class", class));
    }

    /// A line through several places.
    pub(super) fn path(&mut self, places: &[(f64, f64)], class: &str) {
        let Some((first, rest)) = places.split_first() else { return };
        let place = |(x, y): &(f64, f64)| (short(*x), short(*y));
        let data = rest.iter().fold(Data::new().move_to(place(first)), |data, next| data.line_to(place(next)));
        self.add(Stroke::new().set("d", data).set("class", format!("line {class}")));
    }

    pub(super) fn dot(&mut self, (x, y): (f64, f64), radius: f64, class: &str) {
        self.add(Circle::new().set("cx", short(x)).set("cy", short(y)).set("r", radius).set("class", class));
    }

    /// A bar to the right of a place, a line of text high.
    pub(super) fn bar(&mut self, (x, y): (f64, f64), width: f64, class: &str) {
        let node = Rectangle::new().set("x", short(x)).set("y", short(y - 5.0));
        self.add(node.set("width", short(width.max(1.0))).set("height", 10).set("class", class));
    }

    pub(super) fn save(self, path: &Path) -> io::Result<()> {
        svg::save(path, &self.document)
    }
}

/// A tenth of a pixel is enough.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A text in lines of at most so many letters.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < most => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// From values to places: linear, or a decade as long as the next.
pub(super) struct Scale {
    pub(super) values: (f64, f64),
    pub(super) places: (f64, f64),
    pub(super) log: bool,
}

impl Scale {
    pub(super) fn at(&self, value: f64) -> f64 {
        let on = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let (from, to) = (on(self.values.0), on(self.values.1));
        let part = if (to - from).abs() < f64::EPSILON { 0.5 } else { (on(value) - from) / (to - from) };
        self.places.0 + part * (self.places.1 - self.places.0)
    }

    /// Round values for the marks of the axis, all of them between its ends.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let (from, to) = self.values;
        if self.log {
            let decades = (-6..=9).map(|power| 10_f64.powi(power));
            let all: Vec<f64> = decades.flat_map(|decade| [1.0, 3.0].map(|n| n * decade)).collect();
            let within = |value: &f64| *value >= from * 0.999 && *value <= to * 1.001;
            let found: Vec<f64> = all.into_iter().filter(within).collect();
            let tens: Vec<f64> = found.iter().copied().filter(|v| v.log10().fract().abs() < 1e-9).collect();
            return if to / from > 1_000.0 { tens } else { found };
        }
        let rough = (to - from) / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|step| *step >= 0.9 * rough);
        let step = step.unwrap_or(rough);
        (0..=10).map(|n| from + f64::from(n) * step).filter(|value| *value <= to * 1.001).collect()
    }
}
