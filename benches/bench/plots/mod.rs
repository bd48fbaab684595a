//! Plots of what was found, as SVG: each figure as a mark whose place can be read, dripd in one hue and what it is compared
//! with in grey. They stand on light and dark pages alike.

mod lines;
mod paper;
mod profile;
mod rows;

use std::io;
use std::path::Path;

use super::report::{Compared, Point};
use lines::Lines;
use paper::Paper;

const LINES: [Lines; 2] = [
    Lines {
        name: "lateness",
        title: "Lateness by load",
        subtitle: "How long after its due moment a job leaves: half of the jobs (p50), 99 of 100 (p99), 999 of 1,000 (p99.9). \
                   The floor is what the kernel and one round trip to Redis take at the same time.",
        x: Axis { says: "jobs out a second, from ever more buckets at 10/s", unit: "/s", log: true },
        y: Axis { says: "", unit: " ms", log: true },
    },
    Lines {
        name: "drain",
        title: "Throughput when every bucket is due at once",
        subtitle: "Jobs out a second, one job in each bucket, compared with the two commands alone that no dispatch can do \
                   without.",
        x: Axis { says: "buckets", unit: "", log: true },
        y: Axis { says: "", unit: "/s", log: false },
    },
];

/// What an axis shows.
struct Axis {
    /// In words, below it; nothing where the title says it.
    says: &'static str,
    /// Behind each number.
    unit: &'static str,
    log: bool,
}

/// Draw every plot for which there are figures into a directory.
pub(super) fn draw(points: &[Point], compared: &[Compared], directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let save = |name: &str, paper: Option<Paper>| match paper {
        Some(paper) => paper.save(&directory.join(format!("{name}.svg"))),
        None => Ok(()),
    };
    for plot in &LINES {
        save(plot.name, plot.draw(points))?;
    }
    save("spacing", rows::spacing(points))?;
    save("profile", profile::profile(points))?;
    save("peers", rows::peers(compared))
}

/// A number on an axis: whole where it is, its thousands apart, and no digit more than it has.
fn plain(value: f64) -> String {
    if value >= 100.0 {
        return super::report::figure(value);
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
