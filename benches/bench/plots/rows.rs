//! Plots with a row for each load or tool, and its figures beside its name.

use super::super::report::{Compared, Point, figure};
use super::paper::{MARGIN, Paper, Scale, Side, WIDTH};
use super::plain;

const ROW: f64 = 26.0;

/// The percentiles that a row shows: how its mark looks, and what it means.
const MARKS: [(f64, &str); 3] = [(50.0, "half of the gaps"), (99.0, "99 of 100"), (99.9, "999 of 1,000")];

/// How far the gaps of each load are from the interval: a mark for each percentile.
pub(super) fn spacing(points: &[Point]) -> Option<Paper> {
    let points: Vec<&Point> = points.iter().filter(|point| point.plot == "spacing").collect();
    let mut loads: Vec<&str> = Vec::new();
    for point in &points {
        if !loads.contains(&point.line.as_str()) {
            loads.push(&point.line);
        }
    }
    let at = |load: &str, percent: f64| {
        points.iter().find(|point| point.line == load && (point.y - percent).abs() < 1e-9).map(|point| point.x)
    };
    let shown: Vec<f64> =
        loads.iter().flat_map(|load| MARKS.iter().filter_map(|(percent, _)| at(load, *percent))).collect();
    let (least, most) = (shown.iter().copied().reduce(f64::min)?.max(0.001), shown.iter().copied().reduce(f64::max)?);
    let height = 130.0 + loads.len() as f64 * ROW + 30.0;
    let (mut paper, top) = Paper::new(
        "Spacing error by load",
        "How far the gap between two jobs of a bucket is from its interval, at most, for a share of all gaps.",
        height,
    );
    let mut x = MARGIN;
    for (n, (_, says)) in MARKS.iter().enumerate() {
        mark(&mut paper, (x + 5.0, top + 8.0), n);
        paper.text((x + 16.0, top + 12.0), Side::Left, "", says);
        x += 34.0 + says.len() as f64 * 6.4;
    }
    let (first, end) = (top + 44.0, top + 44.0 + (loads.len() - 1) as f64 * ROW);
    let scale = Scale { values: (least, most), places: (190.0, WIDTH - 40.0), log: true };
    draw_scale(&mut paper, &scale, (first - 14.0, end + 14.0), "ms");
    for (n, load) in loads.iter().enumerate() {
        let y = first + n as f64 * ROW;
        paper.text((MARGIN, y + 4.0), Side::Left, "name", &in_words(load));
        let places: Vec<(usize, f64)> =
            (0..MARKS.len()).filter_map(|n| Some((n, scale.at(at(load, MARKS[n].0)?.max(least))))).collect();
        if let ([(_, from), ..], [.., (_, to)]) = (&places[..], &places[..]) {
            paper.line((*from, y), (*to, y), "mine wide");
        }
        for (n, x) in places {
            mark(&mut paper, (x, y), n);
        }
    }
    Some(paper)
}

/// The mark of the first, second or third percentile.
fn mark(paper: &mut Paper, (x, y): (f64, f64), n: usize) {
    match n {
        0 => paper.dot((x, y), 5.0, "mine"),
        1 => paper.dot((x, y), 4.5, "mine ring"),
        _ => paper.path(&[(x, y - 6.0), (x, y + 6.0)], "mine"),
    }
}

/// Lines from top to bottom with what they stand for below; the last one says the unit, which hangs over at its right.
fn draw_scale(paper: &mut Paper, scale: &Scale, (top, bottom): (f64, f64), unit: &str) {
    let ticks = scale.ticks();
    for (n, value) in ticks.iter().enumerate() {
        let x = scale.at(*value);
        paper.line((x, top), (x, bottom), "grid");
        paper.text((x, bottom + 16.0), Side::Middle, "", &plain(*value));
        if n + 1 == ticks.len() {
            let half = plain(*value).len() as f64 * 3.6;
            paper.text((x + half + 4.0, bottom + 16.0), Side::Left, "", unit);
        }
    }
}

/// A load in words, the thousands of its rate apart.
fn in_words(load: &str) -> String {
    let number = |word: &str| {
        let (count, period) = word.split_once('/')?;
        Some(format!("{}/{period}", figure(count.parse().ok().filter(|n| *n >= 1_000.0)?)))
    };
    let words: Vec<_> = load.split(' ').map(|word| number(word).unwrap_or_else(|| word.to_owned())).collect();
    words.join(" ")
}

/// What of the comparison is plotted: how its name ends, and what that means in plain words.
const PANELS: [(&str, &str); 3] = [
    ("spacing error p99", "99 of 100 gaps are off by at most (less is better)"),
    ("rate a bucket", "rate of a bucket (10/s was asked for)"),
    ("from the first push to the last handler", "jobs a second, first push to last handler (more is better)"),
];

/// Where even the rate is plotted: the load at which it is not the same for all.
const RATE_OF: &str = "1,000 buckets at 10/s";

const TOOL_ROW: f64 = 19.0;
const TOOL_NAME: f64 = 132.0;
const FIGURE: f64 = 74.0;
const BETWEEN: f64 = 36.0;

/// The same work on several tools: a panel for each work.
pub(super) fn peers(compared: &[Compared]) -> Option<Paper> {
    let panels: Vec<(&Compared, &str, &str)> = PANELS
        .iter()
        .flat_map(|(ends, says)| compared.iter().map(move |c| (c, *ends, *says)))
        .filter_map(|(c, ends, says)| {
            let work = c.what.strip_suffix(ends)?.strip_suffix(": ")?;
            (ends != "rate a bucket" || work == RATE_OF).then_some((c, work, says))
        })
        .collect();
    let tools = panels.first()?.0.cells.len() as f64;
    let panel = 46.0 + tools * TOOL_ROW + 34.0;
    let height = 74.0 + panel * panels.len().div_ceil(2) as f64;
    let (mut paper, top) = Paper::new(
        "The same work on other tools",
        "Jobs are queued, let out at a rate, and handed to a handler. On one machine, medians of three runs in turns.",
        height,
    );
    let gaps = panels.iter().filter(|(c, ..)| c.unit == "ms");
    let gaps: Vec<f64> = gaps.flat_map(|(c, ..)| c.cells.iter().filter_map(|(_, value)| *value)).collect();
    let range = gaps.iter().copied().reduce(f64::min).zip(gaps.iter().copied().reduce(f64::max));
    let width = (WIDTH - 2.0 * MARGIN - BETWEEN) / 2.0;
    for (n, (compared, work, says)) in panels.iter().enumerate() {
        let x = MARGIN + (n % 2) as f64 * (width + BETWEEN);
        let y = top + 14.0 + (n / 2) as f64 * panel;
        paper.text((x, y), Side::Left, "name", work);
        paper.text((x, y + 16.0), Side::Left, "", says);
        let places = (x + TOOL_NAME, x + width - FIGURE);
        let scale = match range {
            Some(values) if compared.unit == "ms" => Scale { values, places, log: true },
            _ => {
                let most = compared.cells.iter().filter_map(|(_, value)| *value).reduce(f64::max).unwrap_or(1.0);
                Scale { values: (0.0, most), places, log: false }
            }
        };
        draw_panel(&mut paper, compared, &scale, y + 38.0, x + width);
    }
    Some(paper)
}

/// A row for each tool: its name, its mark or bar, its figure.
fn draw_panel(paper: &mut Paper, compared: &Compared, scale: &Scale, top: f64, right: f64) {
    let bottom = top + (compared.cells.len() - 1) as f64 * TOOL_ROW + 10.0;
    if scale.log {
        draw_scale(paper, scale, (top - 10.0, bottom), "ms");
    } else {
        paper.line((scale.places.0, top - 10.0), (scale.places.0, bottom), "axis");
    }
    for (n, (tool, value)) in compared.cells.iter().enumerate() {
        let (y, mine) = (top + n as f64 * TOOL_ROW, tool == "dripd");
        let (hue, name) = if mine { ("mine", "mine-name") } else { ("beside", "name") };
        paper.text((scale.places.0 - TOOL_NAME, y + 4.0), Side::Left, name, tool);
        let Some(value) = value else {
            paper.text((right, y + 4.0), Side::Right, "", "not measured");
            continue;
        };
        let at = scale.at(*value);
        if scale.log {
            paper.dot((at, y), 5.0, hue);
        } else {
            paper.bar((scale.places.0, y), at - scale.places.0, hue);
        }
        let unit =
            if compared.unit.starts_with('/') { compared.unit.to_string() } else { format!(" {}", compared.unit) };
        paper.text((right, y + 4.0), Side::Right, name, &format!("{}{unit}", figure(*value)));
    }
}
