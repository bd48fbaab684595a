//! Plots of what was found, as SVG.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

use super::report::Point;

/// What a plot is about.
struct Plot {
    name: &'static str,
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// Whether the values upwards are on a logarithmic scale; those to the right always are.
    log_y: bool,
}

const PLOTS: [Plot; 3] = [
    Plot {
        name: "spacing",
        title: "Spacing error: share of gaps that are off by at most so much",
        x: "|gap - interval|, ms",
        y: "percent of gaps",
        log_y: false,
    },
    Plot { name: "lateness", title: "Lateness against load", x: "dispatches a second", y: "lateness, ms", log_y: true },
    Plot {
        name: "drain",
        title: "Everything due at once: throughput against buckets",
        x: "buckets",
        y: "dispatches a second",
        log_y: false,
    },
];

/// The least value on a logarithmic scale.
const LEAST: f64 = 0.001;

/// Draw every plot for which there are points into a directory.
pub(super) fn draw(points: &[Point], directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for plot in &PLOTS {
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for point in points.iter().filter(|point| point.plot == plot.name) {
            lines.entry(&point.line).or_default().push((point.x.max(LEAST), point.y.max(LEAST)));
        }
        if !lines.is_empty() {
            plot.draw(&mut lines, &directory.join(format!("{}.svg", plot.name))).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// A number on an axis: as short as it can be said.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the type of a formatter")]
fn shown(value: &f64) -> String {
    if *value >= 1_000.0 { format!("{} k", value / 1_000.0) } else { format!("{}", (value * 1e6).round() / 1e6) }
}

/// From the least to the most of some values, with a little room.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    least * 0.8..most * 1.2
}

impl Plot {
    fn draw(
        &self,
        lines: &mut BTreeMap<&str, Vec<(f64, f64)>>,
        path: &Path,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for line in lines.values_mut() {
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let xs = range(lines.values().flatten().map(|point| point.0));
        let ys = range(lines.values().flatten().map(|point| point.1));
        let root = SVGBackend::new(path, (860, 460)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut builder = ChartBuilder::on(&root);
        builder.caption(self.title, ("sans-serif", 18)).margin(12).x_label_area_size(42).y_label_area_size(72);
        // Two kinds of axes are two types of chart, so what is done with one is said twice by a macro.
        macro_rules! fill {
            ($chart:expr) => {{
                let mut chart = $chart?;
                let mut mesh = chart.configure_mesh();
                mesh.x_desc(self.x).y_desc(self.y).label_style(("sans-serif", 13)).x_labels(6).max_light_lines(0);
                mesh.x_label_formatter(&shown).y_label_formatter(&shown).draw()?;
                for (n, (name, line)) in lines.iter().enumerate() {
                    let color = Palette99::pick(n).to_rgba();
                    let drawn = chart.draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)))?;
                    drawn
                        .label(*name)
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
                    chart.draw_series(line.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
                }
                chart
                    .configure_series_labels()
                    .position(if self.log_y { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::LowerRight })
                    .background_style(WHITE.mix(0.8))
                    .border_style(BLACK.mix(0.3))
                    .label_font(("sans-serif", 13))
                    .draw()?;
            }};
        }
        if self.log_y {
            fill!(builder.build_cartesian_2d(xs.log_scale(), ys.log_scale()));
        } else {
            fill!(builder.build_cartesian_2d(xs.log_scale(), 0.0..ys.end));
        }
        root.present()?;
        Ok(())
    }
}
