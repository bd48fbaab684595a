//! Where the time of a job goes: a bar for each part, each beginning where the one before it ends.

use super::super::report::{Point, figure};
use super::paper::{MARGIN, Paper, Scale, Side, WIDTH};

const ROW: f64 = 24.0;
const NAME: f64 = 292.0;
const FIGURE: f64 = 64.0;

/// The parts of a job, from the first one on.
pub(super) fn profile(points: &[Point]) -> Option<Paper> {
    let parts: Vec<&Point> = points.iter().filter(|point| point.plot == "profile").collect();
    let all: f64 = parts.iter().map(|part| part.x.max(0.0)).sum();
    parts.first()?;
    let height = 92.0 + (parts.len() + 1) as f64 * ROW;
    let (mut paper, top) = Paper::new(
        "Where the time of a job goes in Redis",
        "Processor time of a job when 100,000 buckets are due at once. Grey: every design takes it that keeps queues, \
         dues and a ready stream in Redis. Blue: dripd's own.",
        height,
    );
    let scale = Scale { values: (0.0, all), places: (MARGIN + NAME, WIDTH - MARGIN - FIGURE), log: false };
    let (mut y, mut from) = (top + 20.0, 0.0);
    for part in parts {
        let to = from + part.x.max(0.0);
        let hue = if part.y > 0.5 { "beside" } else { "mine" };
        paper.text((MARGIN, y + 4.0), Side::Left, "name", &part.line);
        paper.bar((scale.at(from), y), scale.at(to) - scale.at(from), hue);
        paper.text((WIDTH - MARGIN, y + 4.0), Side::Right, "name", &format!("{:.1} us", part.x));
        (y, from) = (y + ROW, to);
    }
    paper.text((MARGIN, y + 4.0), Side::Left, "name", "in all");
    paper.text((WIDTH - MARGIN, y + 4.0), Side::Right, "name", &format!("{} us", figure(all)));
    Some(paper)
}
