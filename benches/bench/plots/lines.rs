//! Plots with lines: a mark on the axis where the points are, and the name of each line at its end.

use super::super::report::Point;
use super::paper::{Paper, Scale, Side, WIDTH};
use super::{Axis, plain};

const HEIGHT: f64 = 400.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 176.0;
const BELOW: f64 = 56.0;

/// Names of lines keep this distance.
const APART: f64 = 17.0;

pub(super) struct Lines {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) subtitle: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

/// The points of one line, from left to right.
struct Series<'a> {
    name: &'a str,
    points: Vec<(f64, f64)>,
}

impl Series<'_> {
    /// One hue for dripd, grey for what it is compared with; a percentile has the same stroke in both.
    fn class(&self) -> String {
        let hue = if self.is_mine() { "mine" } else { "beside" };
        let stroke = match self.name.rsplit(' ').next() {
            Some("p99") => "p99",
            Some("p99.9") => "p999",
            _ => "p50",
        };
        format!("{hue} {stroke}")
    }

    fn is_mine(&self) -> bool {
        self.name.starts_with("dripd")
    }
}

impl Lines {
    /// The plot, if there are points for it.
    pub(super) fn draw(&self, points: &[Point]) -> Option<Paper> {
        let mut all: Vec<Series> = Vec::new();
        for point in points.iter().filter(|point| point.plot == self.name) {
            let place = (point.x, point.y);
            match all.iter_mut().find(|series| series.name == point.line) {
                Some(series) => series.points.push(place),
                None => all.push(Series { name: &point.line, points: vec![place] }),
            }
        }
        for series in &mut all {
            series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        all.sort_by_key(Series::is_mine); // dripd lies on top
        let (mut paper, top) = Paper::new(self.title, self.subtitle, HEIGHT);
        let (x, y) = self.scales(&all, top + 8.0)?;
        self.draw_axes(&mut paper, &x, &y, &all);
        for series in &all {
            let places: Vec<_> = series.points.iter().map(|(a, b)| (x.at(*a), y.at(*b))).collect();
            paper.path(&places, &series.class());
            let hue = if series.is_mine() { "mine" } else { "beside" };
            for place in places {
                paper.dot(place, 3.0, hue);
            }
        }
        draw_names(&mut paper, &x, &y, &all);
        Some(paper)
    }

    /// The axes end where the points do; one that is not logarithmic begins at nothing.
    fn scales(&self, all: &[Series], top: f64) -> Option<(Scale, Scale)> {
        let values = |pick: fn(&(f64, f64)) -> f64| {
            let values = all.iter().flat_map(|series| &series.points).map(pick).collect::<Vec<_>>();
            let least = values.iter().copied().reduce(f64::min)?;
            Some((least, values.iter().copied().reduce(f64::max)?))
        };
        let ((x_least, x_most), (y_least, y_most)) = (values(|point| point.0)?, values(|point| point.1)?);
        let x = Scale { values: (x_least, x_most), places: (LEFT, WIDTH - RIGHT), log: self.x.log };
        let y_least = if self.y.log { y_least } else { 0.0 };
        let y = Scale { values: (y_least, y_most), places: (HEIGHT - BELOW, top), log: self.y.log };
        Some((x, y))
    }

    fn draw_axes(&self, paper: &mut Paper, x: &Scale, y: &Scale, all: &[Series]) {
        let ((left, right), (bottom, top)) = (x.places, y.places);
        for value in y.ticks() {
            let at = y.at(value);
            paper.line((left - 8.0, at), (right + 8.0, at), "grid");
            let unit = if value > 0.0 { self.y.unit } else { "" };
            paper.text((left - 14.0, at + 4.0), Side::Right, "", &format!("{}{unit}", plain(value)));
        }
        paper.line((left - 8.0, bottom), (left - 8.0, top), "axis");
        paper.line((left - 8.0, bottom + 8.0), (right + 8.0, bottom + 8.0), "axis");
        let mut marks: Vec<f64> = all.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        for value in marks {
            let at = x.at(value);
            paper.line((at, bottom + 8.0), (at, bottom + 13.0), "axis");
            paper.text((at, bottom + 28.0), Side::Middle, "", &format!("{}{}", plain(value), self.x.unit));
        }
        paper.text((f64::midpoint(left, right), bottom + 46.0), Side::Middle, "", self.x.says);
    }
}

/// The names at the ends of the lines, moved apart where the ends are close.
fn draw_names(paper: &mut Paper, x: &Scale, y: &Scale, all: &[Series]) {
    let mut ends: Vec<(f64, &Series)> =
        all.iter().filter_map(|series| Some((y.at(series.points.last()?.1), series))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted: Vec<f64> = ends.iter().map(|(at, _)| *at).collect();
    for ((_, series), at) in ends.iter().zip(apart(&wanted)) {
        let (end_x, end_y) = series.points.last().map_or((0.0, 0.0), |(a, b)| (x.at(*a), y.at(*b)));
        let class = if series.is_mine() { "mine-name" } else { "" };
        if (at - end_y).abs() > 3.0 {
            paper.line((end_x + 6.0, end_y), (end_x + 22.0, at), "grid");
        } else {
            paper.line((end_x + 6.0, end_y), (end_x + 22.0, end_y), "grid");
        }
        paper.text((end_x + 26.0, at + 4.0), Side::Left, class, series.name);
    }
}

/// Places in their order, at least [`APART`] from each other, and as near to where they were as that allows.
fn apart(wanted: &[f64]) -> Vec<f64> {
    // Those that touch are a group around the middle of what its members wanted; groups that touch become one.
    let mut groups: Vec<Vec<f64>> = Vec::new();
    let middle = |group: &[f64]| group.iter().sum::<f64>() / group.len() as f64;
    let half = |group: &[f64]| group.len() as f64 * APART / 2.0;
    for at in wanted {
        groups.push(vec![*at]);
        while let [.., before, last] = &groups[..]
            && middle(before) + half(before) > middle(last) - half(last)
        {
            let last = groups.pop().unwrap_or_default();
            groups.last_mut().expect("two were there").extend(last);
        }
    }
    let places = |group: &Vec<f64>| {
        let first = middle(group) - half(group) + APART / 2.0;
        (0..group.len()).map(move |n| first + n as f64 * APART).collect::<Vec<_>>()
    };
    groups.iter().flat_map(places).collect()
}

#[cfg(test)]
#[allow(
    unused_imports,
    dead_code,
    reason = "cargo sets cfg(test) for a bench without a harness too, without its tests"
)]
mod tests {
    use super::*;

    #[test]
    fn names_move_apart_and_no_further_than_they_must() {
        let near = |places: &[f64], expected: &[f64]| {
            places.len() == expected.len() && places.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9)
        };
        assert!(near(&apart(&[10.0, 100.0]), &[10.0, 100.0]));
        assert!(near(&apart(&[50.0, 50.0]), &[41.5, 58.5]));
        let places = apart(&[50.0, 52.0, 60.0, 200.0]);
        assert!(near(&places, &[37.0, 54.0, 71.0, 200.0]), "{places:?}");
    }
}
