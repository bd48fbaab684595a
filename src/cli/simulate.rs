//! `dripd simulate`: what a configuration would do with some traffic, before it goes live.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::json;

use super::{Exit, Failure, print, say_err};
use crate::config::{BadConfig, Config};
use crate::model::counted::counted;
use crate::model::duration::{say as say_time, show};
use crate::model::escape::escaped_json;
use crate::model::expectation::Expectation;
use crate::operate::bounds;
use crate::simulate::{
    Load, Plan, Report, SimulationError, Trace, Traffic, Workers, check_routes, judge, left_out, plot, simulate,
};
use crate::system::signals::{Signal, Signals};

/// When a simulation begins unless somebody says otherwise: at the beginning of a week and a year, almost.
const START: &str = "2026-01-05T00:00:00Z";

/// A simulation begins before 2200: the functions reckon in whole microseconds, up to 2^53.
const LATEST_US: u64 = 7_258_118_400_000_000;

/// A trace that does not say for how long lasts whole minutes.
const MINUTE: Duration = Duration::from_secs(60);

/// Run traffic through a configuration at simulated times, and say what would happen.
#[derive(Debug, Args)]
pub(super) struct Simulate {
    /// Traffic that is generated, as in 'sms:*: 200 buckets, 2/s, bursts of 50'; several add up
    #[arg(long, value_name = "TRAFFIC", required_unless_present = "trace", conflicts_with = "trace")]
    load: Vec<Load>,
    /// Traffic that was recorded: a file of JSON lines, or - for standard input
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Who takes the jobs of a route, as in 'mail: 5x2s', or of each other one, as in '20x150ms'; where nobody is named a worker is always free
    #[arg(long, value_name = "WORKERS")]
    workers: Vec<Workers>,
    /// For how long; otherwise until the `until` of each TRAFFIC, or to the end of the last minute of the trace
    #[arg(long = "for", value_name = "DURATION", value_parser = bounds::time)]
    lasts: Option<Duration>,
    /// Another configuration to compare with, under the same traffic
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// What must come out, as in 'sms:* wait.p99 < 30s'; exit code 1 where it does not
    #[arg(long = "assert", value_name = "EXPECTATION")]
    expected: Vec<Expectation>,
    /// What happens by chance follows from this number alone
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The time at which it begins, for quotas of the calendar
    #[arg(long, value_name = "TIME", default_value = START)]
    start: Timestamp,
    /// Draw waits and depths over time into this file
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl From<SimulationError> for Failure {
    fn from(why: SimulationError) -> Self {
        match why {
            why @ SimulationError::Server(_) => Self::new(Exit::Unavailable, why.to_string()),
            SimulationError::Store(why) => why.into(),
            why @ (SimulationError::Trace(_) | SimulationError::Refused { .. }) => {
                Self::new(Exit::Usage, why.to_string())
            }
        }
    }
}

/// A bar for so many runs, where somebody looks.
fn bar(runs: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {percent}% of the time, {eta} to go");
    ProgressBar::new(crate::simulate::SLOTS as u64 * runs).with_style(style.expect("it is well formed"))
}

impl Simulate {
    /// A plot does not replace what is read.
    fn check_plot(&self, config: &Config) -> Result<(), Failure> {
        let real = |path: &PathBuf| std::fs::canonicalize(path).ok();
        let Some(plot) = self.plot.as_ref().and_then(real) else { return Ok(()) };
        let inputs = [config.path.as_ref(), self.trace.as_ref(), self.against.as_ref()];
        if inputs.into_iter().flatten().any(|path| real(path).as_ref() == Some(&plot)) {
            let why = format!("--plot would replace {}, which is read: name another file", plot.display());
            return Err(Failure::new(Exit::Usage, why));
        }
        Ok(())
    }

    /// The plan, and a trace from standard input, which is read twice.
    fn plan(&self, expected: &[Expectation]) -> Result<(Plan, Option<File>), Failure> {
        let (mut spooled, mut lasts) = (None, self.lasts);
        let traffic = match &self.trace {
            None => {
                let ends: Option<Vec<Duration>> = self.load.iter().map(Load::until).collect();
                lasts = lasts.or_else(|| ends?.into_iter().max());
                Traffic::Loads(self.load.clone())
            }
            Some(path) => {
                let mut path = path.clone();
                if path.as_os_str() == "-" {
                    // It has no name, so nothing stays behind whatever ends this.
                    let mut file = tempfile::tempfile()?;
                    Trace::copy(std::io::stdin().lock(), &mut BufWriter::new(&mut file), self.lasts)
                        .map_err(SimulationError::from)?;
                    path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                    spooled = Some(file);
                }
                let length = Trace::length(&path).map_err(SimulationError::from)?;
                if length > bounds::LONGEST {
                    return Err(Failure::new(
                        Exit::Usage,
                        "the trace lasts longer than 366d: say for how long, as in --for 1h",
                    ));
                }
                lasts = Some(lasts.unwrap_or(MINUTE * (length.as_secs() / 60 + 1) as u32));
                Traffic::Trace(path)
            }
        };
        let lasts = lasts.ok_or_else(|| {
            Failure::new(Exit::Usage, "the traffic of --load never ends: say for how long, as in --for 1h")
        })?;
        let patterns = match &traffic {
            Traffic::Loads(loads) => loads.iter().map(Load::pattern).collect(),
            Traffic::Trace(_) => vec!["*".to_owned()],
        };
        let asked = expected.iter().filter(|one| !one.is_budget).map(|one| one.name.clone());
        let mut all = Vec::<String>::new();
        for pattern in patterns.into_iter().chain(asked) {
            if !all.contains(&pattern) {
                all.push(pattern);
            }
        }
        let start_us = u64::try_from(self.start.as_microsecond()).ok().filter(|us| *us < LATEST_US);
        let start_us = start_us.ok_or_else(|| {
            Failure::new(Exit::Usage, "a simulation begins between 1970 and 2200, as on 2026-01-05T00:00:00Z")
        })?;
        let (workers, seed) = (self.workers.clone(), self.seed);
        Ok((Plan { traffic, workers, lasts, start_us, seed, patterns: all }, spooled))
    }

    pub(super) async fn run(
        self,
        config: Config,
        load: impl FnOnce(&std::path::Path) -> Result<Config, BadConfig>,
    ) -> Result<Exit, Failure> {
        let expected: Vec<Expectation> = config.expected.iter().chain(&self.expected).cloned().collect();
        self.check_plot(&config)?;
        let (plan, _spooled) = self.plan(&expected)?;
        let second = self.against.as_deref().map(load).transpose()?;
        let records: Vec<_> =
            [Some(&config), second.as_ref()].into_iter().flatten().map(|config| &config.record).collect();
        check_routes(&records, &plan.workers).map_err(|why| Failure::new(Exit::Usage, why.to_string()))?;
        let (bar, began) = (bar(1 + u64::from(second.is_some())), Instant::now());
        let report = async |config: &Config| {
            let outcome = simulate(config, &plan, |_| bar.inc(1)).await?;
            let name = config.path.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
            let name = name.map_or_else(|| config.source(), std::borrow::Cow::into_owned);
            Ok::<_, SimulationError>(Report::of(name, outcome, &plan))
        };
        let other = async {
            match &second {
                Some(other) => report(other).await.map(Some),
                None => Ok(None),
            }
        };
        let mut signals = Signals::listen()?;
        let both = async { tokio::try_join!(report(&config), other) };
        let (report, against) = tokio::select! {
            both = both => both?,
            () = async { while signals.next().await == Signal::Status {} } => return Err(Failure::new(Exit::Interrupted, "interrupted: nothing was decided")),
        };
        bar.finish_and_clear();
        if report.pushed == 0 {
            return Err(Failure::new(Exit::Usage, "nothing is pushed in this time: look at --for, `from` and `until`"));
        }
        let runs = [(Some(&config), Some(&report)), (second.as_ref(), against.as_ref())];
        for (config, report) in runs.into_iter().filter_map(|(config, report)| config.zip(report)) {
            for words in left_out(&config.record, &plan).into_iter().chain(report.left_out.clone()) {
                say_err(&format!("{}: {words}", config.source()));
            }
        }
        if let Some(path) = &self.plot {
            std::fs::write(path, plot(&report, against.as_ref(), plan.lasts))
                .map_err(|why| Failure::new(Exit::Failed, format!("cannot write {}: {why}", path.display())))?;
        }
        let failed: Vec<_> = expected.iter().filter_map(|one| judge(one, &report).err()).collect();
        if self.json {
            let shown: Vec<_> = expected
                .iter()
                .map(|one| {
                    let found = failed.iter().find(|failed| failed.text == one.text).map(|failed| &failed.found);
                    json!({ "assert": one.text, "met": found.is_none(), "found": found })
                })
                .collect();
            let all = json!({
                "for_s": plan.lasts.as_secs_f64(), "seed": plan.seed, "report": report, "against": against,
                "expected": shown,
            });
            print(format!("{}\n", escaped_json(&all.to_string())).as_bytes())?;
        } else {
            let mut text = report.table(against.as_ref());
            if !expected.is_empty() {
                text += &format!("\n{} of {} as expected\n", expected.len() - failed.len(), expected.len());
            }
            print(text.as_bytes())?;
            let jobs = report.pushed + against.as_ref().map_or(0, |against| against.pushed);
            let took = began.elapsed();
            say_err(&format!(
                "{} in {} simulated in {}: {:.0} jobs a second",
                counted(jobs, "job", "jobs"),
                show(plan.lasts),
                say_time(took),
                jobs as f64 / took.as_secs_f64()
            ));
        }
        for failed in &failed {
            say_err(&format!("dripd simulate: not as expected: {failed}"));
        }
        Ok(if failed.is_empty() { Exit::Done } else { Exit::Failed })
    }
}
