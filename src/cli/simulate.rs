//! `dripd simulate`: what a configuration would do with some traffic, before it goes live.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::json;
use tempfile::NamedTempFile;

use super::{Exit, Failure, say, say_all, say_err, say_json};
use crate::config::{BadConfig, Config};
use crate::model::counted::counted;
use crate::model::duration::{say as say_time, show};
use crate::model::expectation::Expectation;
use crate::operate::bounds;
use crate::simulate::{Load, Plan, Report, SimulationError, Trace, Traffic, Workers, judge, plot, simulate};

/// When a simulation begins unless somebody says otherwise: at the beginning of a week and a year, almost.
const START: &str = "2026-01-05T00:00:00Z";

/// Run traffic through a configuration at simulated times, and say what would happen.
#[derive(Debug, Args)]
pub(super) struct Simulate {
    /// Traffic that is generated, as in 'sms:*: 200 buckets, 2/s, bursts of 50'; several add up
    #[arg(long, value_name = "TRAFFIC", required_unless_present = "trace", conflicts_with = "trace")]
    load: Vec<Load>,
    /// Traffic that was recorded: a file of JSON lines, or - for standard input
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Who takes the jobs, as in '20x150ms'; otherwise a worker is always free
    #[arg(long, value_name = "WORKERS")]
    workers: Vec<Workers>,
    /// For how long; a trace lasts as long as it is, unless this is shorter
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
            SimulationError::Server(why) => why.into(),
            SimulationError::Store(why) => why.into(),
            why @ (SimulationError::Trace(_) | SimulationError::NoRoute { .. } | SimulationError::Refused { .. }) => {
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
    /// The plan, and a trace from standard input, which is read twice.
    fn plan(&self, expected: &[Expectation]) -> Result<(Plan, Option<NamedTempFile>), Failure> {
        let (mut spooled, mut lasts) = (None, self.lasts);
        let traffic = match &self.trace {
            None => Traffic::Loads(self.load.clone()),
            Some(path) => {
                let mut path = path.clone();
                if path.as_os_str() == "-" {
                    let mut file = NamedTempFile::new()?;
                    std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
                    file.flush()?;
                    file.path().clone_into(&mut path);
                    spooled = Some(file);
                }
                let length = Trace::length(&path).map_err(SimulationError::from)? + Duration::from_micros(1);
                lasts = Some(lasts.unwrap_or(length));
                Traffic::Trace(path)
            }
        };
        let lasts = lasts.ok_or_else(|| {
            Failure::new(Exit::Usage, "the traffic of --load never ends: say for how long, as in --for 1h")
        })?;
        let patterns = match &traffic {
            Traffic::Loads(loads) => loads.iter().map(|load| load.name.clone()).collect(),
            Traffic::Trace(_) => vec!["*".to_owned()],
        };
        let asked = expected.iter().filter(|one| !one.is_budget).map(|one| one.name.clone());
        let mut all = Vec::<String>::new();
        for pattern in patterns.into_iter().chain(asked) {
            if !all.contains(&pattern) {
                all.push(pattern);
            }
        }
        let start_us = u64::try_from(self.start.as_microsecond())
            .map_err(|_| Failure::new(Exit::Usage, "a simulation begins after 1970"))?;
        let (workers, seed) = (self.workers.clone(), self.seed);
        Ok((Plan { traffic, workers, lasts, start_us, seed, patterns: all }, spooled))
    }

    pub(super) async fn run(
        self,
        config: Config,
        load: impl FnOnce(&std::path::Path) -> Result<Config, BadConfig>,
    ) -> Result<Exit, Failure> {
        let expected: Vec<Expectation> = config.expected.iter().chain(&self.expected).cloned().collect();
        let (plan, _spooled) = self.plan(&expected)?;
        let other = self.against.as_deref().map(load).transpose()?;
        let (bar, began) = (bar(1 + u64::from(other.is_some())), Instant::now());
        let report = async |config: &Config| {
            let outcome = simulate(config, &plan, |_| bar.inc(1)).await?;
            let name = config.path.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
            let name = name.map_or_else(|| config.source(), std::borrow::Cow::into_owned);
            Ok::<_, SimulationError>(Report::of(name, outcome, &plan))
        };
        let other = async {
            match &other {
                Some(other) => report(other).await.map(Some),
                None => Ok(None),
            }
        };
        let (report, against) = tokio::try_join!(report(&config), other)?;
        bar.finish_and_clear();
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
            say_json(&json!({
                "for_s": plan.lasts.as_secs_f64(), "seed": plan.seed, "report": report, "against": against,
                "expected": shown,
            }));
        } else {
            say_all(report.table(against.as_ref()).trim_end());
            let jobs = report.pushed + against.as_ref().map_or(0, |against| against.pushed);
            let took = began.elapsed();
            say_err(&format!(
                "{} in {} simulated in {}: {:.0} jobs a second",
                counted(jobs, "job", "jobs"),
                show(plan.lasts),
                say_time(took),
                jobs as f64 / took.as_secs_f64()
            ));
            if !expected.is_empty() {
                let met = expected.len() - failed.len();
                say("");
                say(&format!("{met} of {} as expected", expected.len()));
            }
        }
        for failed in &failed {
            say_err(&format!("dripd simulate: not as expected: {failed}"));
        }
        Ok(if failed.is_empty() { Exit::Done } else { Exit::Failed })
    }
}
