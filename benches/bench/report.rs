//! What came out: rows of a table, and points of plots. A row says what was measured, beside what, and whether the goal
//! is met; one that the machine was too noisy for says that instead.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub(super) use super::measure::Bound;
use super::measure::{Cost, Pairs, Spread};

/// Whether a goal is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// It is.
    Met,
    /// It is not.
    NotMet,
    /// The samples lie so far apart that they do not agree about it.
    Noisy,
}

/// What a goal is about.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    Value(Bound),
    Ratio(Bound),
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    suite: &'static str,
    what: String,
    value: f64,
    /// The quartiles of the value, where it was measured more than once.
    values: Option<[f64; 3]>,
    unit: &'static str,
    beside: Option<(String, f64)>,
    /// The quartiles of the ratio of value to what is beside it.
    ratio: Option<[f64; 3]>,
    goal: Option<Goal>,
    pub(super) verdict: Option<Verdict>,
    /// Processor time of a job.
    cost: Option<Cost>,
}

impl Row {
    /// A figure by itself.
    pub(super) fn new(suite: &'static str, what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            suite,
            what: what.into(),
            value,
            values: None,
            unit,
            beside: None,
            ratio: None,
            goal: None,
            verdict: None,
            cost: None,
        }
    }

    /// A figure measured several times: its median.
    pub(super) fn of(suite: &'static str, what: impl Into<String>, values: Spread, unit: &'static str) -> Self {
        let mut row = Self::new(suite, what, values.median, unit);
        row.values = Some([values.low, values.median, values.high]);
        row
    }

    /// What it is measured against; the ratio is that of the two.
    pub(super) fn beside(mut self, what: impl Into<String>, value: f64) -> Self {
        self.ratio = Some([self.value / value; 3]);
        self.beside = Some((what.into(), value));
        self
    }

    /// The ratio, from pairs taken in turns.
    pub(super) fn ratio(mut self, ratio: Spread) -> Self {
        self.ratio = Some([ratio.low, ratio.median, ratio.high]);
        self
    }

    /// The processor time that each job took in all.
    pub(super) fn cost(mut self, cost: Cost) -> Self {
        self.cost = Some(cost);
        self
    }

    /// What the value has to reach.
    pub(super) fn value_goal(self, bound: Bound) -> Self {
        let values = self.values.unwrap_or([self.value; 3]);
        self.judged(Goal::Value(bound), bound, values)
    }

    /// What the ratio has to reach.
    pub(super) fn ratio_goal(self, bound: Bound) -> Self {
        let ratios = self.ratio.unwrap_or([f64::NAN; 3]);
        self.judged(Goal::Ratio(bound), bound, ratios)
    }

    fn judged(mut self, goal: Goal, bound: Bound, [low, median, high]: [f64; 3]) -> Self {
        let noisy = Spread { low, median, high }.is_noisy_about(bound);
        self.goal = Some(goal);
        self.verdict = Some(match (noisy, bound.is_met(median)) {
            (true, _) => Verdict::Noisy,
            (false, true) => Verdict::Met,
            (false, false) => Verdict::NotMet,
        });
        self
    }

    fn cells(&self) -> [String; 8] {
        let ratio = self.ratio.map_or(String::new(), |[low, median, high]| {
            if (low - high).abs() < f64::EPSILON {
                figure(median)
            } else {
                format!("{} ({}–{})", figure(median), figure(low), figure(high))
            }
        });
        let goal = match self.goal {
            Some(Goal::Value(bound)) => shown(bound, self.unit),
            Some(Goal::Ratio(bound)) => shown(bound, "×"),
            None => String::new(),
        };
        let verdict = match self.verdict {
            Some(Verdict::Met) => "met",
            Some(Verdict::NotMet) => "not met",
            Some(Verdict::Noisy) => "not measured: noisy",
            None => "",
        };
        let cost = self.cost.map(|cost| format!("{} + {} us", figure(cost.redis_us), figure(cost.daemon_us)));
        let beside = self.beside.as_ref().map(|(what, value)| format!("{} ({what})", amount(*value, self.unit)));
        [
            self.suite.to_owned(),
            self.what.clone(),
            amount(self.value, self.unit),
            beside.unwrap_or_default(),
            ratio,
            goal,
            verdict.to_owned(),
            cost.unwrap_or_default(),
        ]
    }
}

/// What could not be measured here, and what it lacks.
#[derive(Debug, Serialize)]
struct Skipped {
    suite: &'static str,
    what: String,
    why: &'static str,
}

impl Skipped {
    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.suite.to_owned(), self.what.clone(), format!("SKIPPED: {}", self.why)];
        cells.resize(HEAD.len(), String::new());
        cells
    }
}

/// The head of the table of rows.
const HEAD: [&str; 8] =
    ["suite", "what", "measured", "compared with", "ratio (quartiles)", "goal", "verdict", "CPU a job: Redis + daemon"];

fn shown(bound: Bound, unit: &str) -> String {
    match bound {
        Bound::AtLeast(bound) => format!("≥ {}", amount(bound, unit)),
        Bound::AtMost(bound) => format!("≤ {}", amount(bound, unit)),
    }
}

fn amount(value: f64, unit: &str) -> String {
    format!("{} {unit}", figure(value)).trim_end().to_owned()
}

/// A number with three digits that matter, its thousands apart.
pub(super) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        a if !a.is_finite() => return "-".to_owned(),
        a if a >= 99.95 || a == 0.0 => 0, // as it comes out when it is rounded
        a if a >= 9.995 => 1,
        a if a >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let whole = text.split('.').next().unwrap_or_default().len();
    let mut grouped = String::new();
    for (i, c) in text.chars().enumerate() {
        if i > 0 && i < whole && (whole - i) % 3 == 0 && text.as_bytes()[i - 1] != b'-' {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped
}

/// A point of a plot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) plot: Cow<'static, str>,
    pub(super) line: String,
    pub(super) x: f64,
    pub(super) y: f64,
}

/// The same figure of several tools.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Compared {
    pub(super) what: String,
    pub(super) unit: Cow<'static, str>,
    /// By tool; none where it could not be measured.
    pub(super) cells: Vec<(String, Option<f64>)>,
}

impl Compared {
    fn cells(&self) -> Vec<String> {
        let cell = |value: &Option<f64>| value.map_or("-".to_owned(), |value| amount(value, &self.unit));
        [self.what.clone()].into_iter().chain(self.cells.iter().map(|(_, value)| cell(value))).collect()
    }
}

/// What of a report becomes plots.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Plotted {
    pub(super) points: Vec<Point>,
    pub(super) compared: Vec<Compared>,
}

impl Plotted {
    /// Read it from what earlier runs wrote.
    pub(super) fn read(paths: &[impl AsRef<Path>]) -> io::Result<Self> {
        let mut all = Self::default();
        for path in paths {
            let path = path.as_ref();
            let named = |why: &dyn std::fmt::Display| io::Error::other(format!("{}: {why}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|why| named(&why))?;
            let read: Self = serde_json::from_str(&text).map_err(|why| named(&why))?;
            all.points.extend(read.points);
            all.compared.extend(read.compared);
        }
        Ok(all)
    }
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    rows: Vec<Row>,
    skipped: Vec<Skipped>,
    pub(super) compared: Vec<Compared>,
    pub(super) points: Vec<Point>,
    /// How a long run went on.
    course: Vec<Vec<String>>,
    #[serde(skip)]
    since: std::time::Instant,
}

/// What it ran on.
#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    dripd: &'static str,
    /// How much of the time the host gave to others, in percent, over the whole run.
    stolen_percent: f64,
    #[serde(skip)]
    before: (f64, f64),
}

impl Machine {
    fn look() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let processor =
            processor.lines().find(|line| line.starts_with("model name")).and_then(|l| l.split(": ").nth(1));
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.unwrap_or("unknown").to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().trim().to_owned(),
            dripd: env!("CARGO_PKG_VERSION"),
            stolen_percent: 0.0,
            before: stolen_and_all(),
        }
    }
}

/// Processor time taken by the host, and all of it, from proc(5).
fn stolen_and_all() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    (fields.get(7).copied().unwrap_or(0.0), fields.iter().take(8).sum())
}

impl Report {
    /// Nothing found yet.
    pub(super) fn new() -> Self {
        Self {
            machine: Machine::look(),
            rows: Vec::new(),
            skipped: Vec::new(),
            compared: Vec::new(),
            points: Vec::new(),
            course: Vec::new(),
            since: std::time::Instant::now(),
        }
    }

    /// One more row; it is shown at once on standard error, since a run takes minutes.
    pub(super) fn add(&mut self, row: Row) {
        let cells = row.cells();
        let elapsed = self.since.elapsed().as_secs();
        eprintln!(
            "{elapsed:>4} s  {}",
            cells.iter().filter(|cell| !cell.is_empty()).cloned().collect::<Vec<_>>().join(" | ")
        );
        self.rows.push(row);
    }

    /// A row that cannot be measured here: `why` says what it lacks and what brings that.
    pub(super) fn skip(&mut self, suite: &'static str, what: String, why: &'static str) {
        let skipped = Skipped { suite, what, why };
        eprintln!("{:>4} s  {}", self.since.elapsed().as_secs(), skipped.cells()[..3].join(" | "));
        self.skipped.push(skipped);
    }

    /// A row of pairs taken in turns. One that comes out noisy is measured once more.
    pub(super) fn pairs(
        &mut self,
        row: impl Fn(&Pairs) -> Row,
        mut mine: impl FnMut() -> io::Result<f64>,
        mut beside: impl FnMut() -> io::Result<f64>,
    ) -> io::Result<Pairs> {
        let mut pairs = Pairs::measure(&mut mine, &mut beside)?;
        let mut made = row(&pairs);
        if made.verdict == Some(Verdict::Noisy) {
            pairs = Pairs::measure(&mut mine, &mut beside)?;
            made = row(&pairs);
        }
        self.add(made);
        Ok(pairs)
    }

    /// A figure of several tools.
    pub(super) fn compare(&mut self, compared: Compared) {
        eprintln!("{}", compared.cells().join(" | "));
        self.compared.push(compared);
    }

    /// A line of the course of a long run; the first one is its head.
    pub(super) fn course(&mut self, line: Vec<String>) {
        eprintln!("{:>4} s  {}", self.since.elapsed().as_secs(), line.join(" | "));
        self.course.push(line);
    }

    /// A point of a plot.
    pub(super) fn point(&mut self, plot: &'static str, line: impl Into<String>, x: f64, y: f64) {
        self.points.push(Point { plot: plot.into(), line: line.into(), x, y });
    }

    /// The run is over: how busy the host was with others.
    pub(super) fn finish(&mut self) {
        let (stolen, all) = stolen_and_all();
        let (before_stolen, before_all) = self.machine.before;
        self.machine.stolen_percent = 100.0 * (stolen - before_stolen) / (all - before_all).max(1.0);
    }

    /// The tables, as text that is also Markdown.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() || !self.skipped.is_empty() {
            let measured = self.rows.iter().map(|row| row.cells().to_vec());
            text += &table(&HEAD, measured.chain(self.skipped.iter().map(Skipped::cells)));
        }
        if let Some(first) = self.compared.first() {
            let tools = first.cells.iter().map(|(tool, _)| tool.as_str());
            let head: Vec<&str> = ["the same work"].into_iter().chain(tools).collect();
            text += &table(&head, self.compared.iter().map(Compared::cells));
        }
        if let Some((head, lines)) = self.course.split_first() {
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            text += &table(&head, lines.iter().cloned());
        }
        let m = &self.machine;
        let (cores, processor, kernel, stolen) = (m.cores, &m.processor, &m.kernel, m.stolen_percent);
        let dripd = m.dripd;
        text += &format!(
            "dripd {dripd}, {cores} cores of {processor}, Linux {kernel}; the host gave {stolen:.1} % of the time to others\n"
        );
        text
    }

    /// Everything, as JSON.
    pub(super) fn json(&self) -> io::Result<String> {
        serde_json::to_string_pretty(self).map_err(io::Error::other)
    }
}

/// Rows under a head, their columns as wide as they need to be, and an empty line.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    lines.extend(rows);
    let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    lines.insert(1, widths.iter().map(|width| "-".repeat(*width)).collect());
    let padded = |(cell, width): (&String, &usize)| format!("{cell}{}", " ".repeat(width - cell.chars().count()));
    let shown =
        |line: &Vec<String>| format!("| {} |\n", line.iter().zip(&widths).map(padded).collect::<Vec<_>>().join(" | "));
    lines.iter().map(shown).collect::<String>() + "\n"
}
